/* Kernels that map elements one to one: residual with dropout, activations, rotary embedding,
 * casts, sums; and AdamW. All are bound by memory: threads move 16 bytes at once where rows and
 * addresses allow it. Reference: the functions of the same names in run/cpu/kernels.h. */
#include "run/cuda/kernels/act.cuh"
#include "run/cuda/kernels/device.cuh"

/* ---- residual and dropout ---------------------------------------------------------------------
 */

template <class T, int V>
__global__ void residual(int64_t n, int64_t C, const T *x, const T *p, const float *bias, T *out)
{
    float a[V], b[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        load<T, V>(p + i, a);
        if (bias) {
            load_floats<V>(bias + i % C, b);
            for (int k = 0; k < V; k++) a[k] += b[k];
        }
        if (x) {
            load<T, V>(x + i, b);
            for (int k = 0; k < V; k++) a[k] += b[k];
        }
        store<T, V>(a, out + i);
    }
}

/* A thread takes the four columns of a stripe that one Philox block decides; 16 neighbours read
 * and write 16 columns side by side. */
template <class T>
__global__ void residual_dropped(int64_t N, int64_t C, const T *x, const T *p, const float *bias,
                                 drop_rule rule, T *out)
{
    const int64_t stripes = (C + STRIPE - 1) / STRIPE;
    for (int64_t i = first_of_grid(); i < N * stripes * STRIPE_LANES; i += grid_step()) {
        const int lane = (int)(i % STRIPE_LANES);
        const int64_t stripe = i / STRIPE_LANES % stripes, n = i / (STRIPE_LANES * stripes);
        float factor[STRIPE_WORDS];
        drop_factors(rule, n, stripe, lane, factor);
        for (int j = 0; j < STRIPE_WORDS; j++) {
            const int64_t c = stripe * STRIPE + j * STRIPE_LANES + lane, at = n * C + c;
            if (c >= C) break;
            float v = widen(p[at]);
            if (bias) v += bias[c];
            v *= factor[j];
            if (x) v += widen(x[at]);
            narrow(v, &out[at]);
        }
    }
}

void dh_cuda_residual(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *x,
                      const void *p, const float *bias, const dh_cuda_dropout *drop, void *out)
{
    const drop_rule rule = drop_rule_of(drop);
    const bool drops = rule.scalars != NULL;
    const bool wide = !drops && are_aligned(x, p, bias, out);
    by_type(dtype, wide, C, [&](auto t) {
        typedef typename decltype(t)::type T;
        const T *x_at = (const T *)x, *p_at = (const T *)p;
        if (drops)
            launch(residual_dropped<T>, flat_blocks(N * div_up(C, STRIPE) * STRIPE_LANES),
                   FLAT_THREADS, stream, N, C, x_at, p_at, bias, rule, (T *)out);
        else
            launch(residual<T, t.width>, flat_blocks(N * C / t.width), FLAT_THREADS, stream, N * C,
                   C, x_at, p_at, bias, (T *)out);
    });
}

void dh_cuda_dropout_grad(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                          const void *dout, const dh_cuda_dropout *drop, void *dp)
{
    dh_cuda_residual(stream, dtype, N, C, NULL, dout, NULL, drop, dp);
}

/* ---- activations --------------------------------------------------------------------------------
 */

template <class T, int V> __global__ void gelu_fwd(int64_t n, const T *h, T *g)
{
    float v[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        load<T, V>(h + i, v);
        for (int k = 0; k < V; k++) v[k] = gelu(v[k]);
        store<T, V>(v, g + i);
    }
}

template <class T, int V> __global__ void gelu_bwd(int64_t n, const T *dg, const T *h, T *dh)
{
    float v[V], d[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        load<T, V>(h + i, v);
        load<T, V>(dg + i, d);
        for (int k = 0; k < V; k++) d[k] *= gelu_slope(v[k]);
        store<T, V>(d, dh + i);
    }
}

void dh_cuda_gelu_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *h, void *g)
{
    by_type(dtype, are_aligned(h, g), n, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(gelu_fwd<T, t.width>, flat_blocks(n / t.width), FLAT_THREADS, stream, n,
               (const T *)h, (T *)g);
    });
}

void dh_cuda_gelu_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *dg,
                      const void *h, void *dh)
{
    by_type(dtype, are_aligned(dg, h, dh), n, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(gelu_bwd<T, t.width>, flat_blocks(n / t.width), FLAT_THREADS, stream, n,
               (const T *)dg, (const T *)h, (T *)dh);
    });
}

template <class T, int V> __global__ void swiglu_fwd(int64_t n, int64_t F, const T *h, T *g)
{
    float gate[V], up[V], rest;
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        const T *row = h + i / F * 2 * F + i % F;
        load<T, V>(row, gate);
        load<T, V>(row + F, up);
        for (int k = 0; k < V; k++) gate[k] = gate[k] * sigmoid(gate[k], &rest) * up[k];
        store<T, V>(gate, g + i);
    }
}

template <class T, int V>
__global__ void swiglu_bwd(int64_t n, int64_t F, const T *dg, const T *h, T *dh)
{
    float gate[V], up[V], d[V], rest;
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        const int64_t at = i / F * 2 * F + i % F;
        load<T, V>(h + at, gate);
        load<T, V>(h + at + F, up);
        load<T, V>(dg + i, d);
        for (int k = 0; k < V; k++) {
            const float s = sigmoid(gate[k], &rest), slope = s * (1.0f + gate[k] * rest);
            up[k] = d[k] * up[k] * slope;
            gate[k] = d[k] * gate[k] * s;
        }
        store<T, V>(up, dh + at);
        store<T, V>(gate, dh + at + F);
    }
}

void dh_cuda_swiglu_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *h,
                        void *g)
{
    by_type(dtype, are_aligned(h, g), F, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(swiglu_fwd<T, t.width>, flat_blocks(N * F / t.width), FLAT_THREADS, stream, N * F, F,
               (const T *)h, (T *)g);
    });
}

void dh_cuda_swiglu_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *dg,
                        const void *h, void *dh)
{
    by_type(dtype, are_aligned(dg, h, dh), F, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(swiglu_bwd<T, t.width>, flat_blocks(N * F / t.width), FLAT_THREADS, stream, N * F, F,
               (const T *)dg, (const T *)h, (T *)dh);
    });
}

/* ---- rotary position embedding --------------------------------------------------------------- */

/* A thread a pair (i, i + D/2) of a head; those of values are copied. */
template <class T>
__global__ void rope(int64_t n_pairs, int64_t seq, int64_t n_heads, int64_t n_rotated, int64_t D,
                     const T *qkv, const float *table, const int32_t *row_pos, float sign, T *out)
{
    const int64_t half = D / 2;
    for (int64_t i = first_of_grid(); i < n_pairs; i += grid_step()) {
        const int64_t pair = i % half, head = i / half % n_heads, n = i / (half * n_heads);
        const int64_t a = (n * n_heads + head) * D + pair, b = a + half;
        if (head >= n_rotated) {
            out[a] = qkv[a];
            out[b] = qkv[b];
            continue;
        }
        const float *angle = table + (row_pos ? row_pos[n] : n % seq) * D + pair;
        const float u = widen(qkv[a]), v = widen(qkv[b]), c = angle[0], s = angle[half] * sign;
        narrow(u * c - v * s, &out[a]);
        narrow(v * c + u * s, &out[b]);
    }
}

void dh_cuda_rope(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t T, int64_t H,
                  int64_t KV, int64_t D, const void *qkv, const float *table,
                  const int32_t *row_pos, bool inverse, void *out)
{
    const int64_t n_heads = H + 2 * KV, n_pairs = N * n_heads * (D / 2);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type E;
        launch(rope<E>, flat_blocks(n_pairs), FLAT_THREADS, stream, n_pairs, T, n_heads, H + KV, D,
               (const E *)qkv, table, row_pos, inverse ? -1.0f : 1.0f, (E *)out);
    });
}

/* ---- casts, sums, copies
 * ------------------------------------------------------------------------- */

template <class From, class To>
__global__ void cast_rows(int64_t n_items, int64_t n, const From *x, int64_t x_row, To *y,
                          int64_t y_row)
{
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step()) {
        const int64_t r = i / n, c = i % n;
        narrow(widen(x[r * x_row + c]), &y[r * y_row + c]);
    }
}

void dh_cuda_cast_rows(dh_cuda_stream stream, int64_t rows, int64_t n, dh_dtype from, const void *x,
                       int64_t x_row, dh_dtype to, void *y, int64_t y_row)
{
    const int64_t n_items = rows * n;
    if (n_items == 0) return;
    by_type(from, [&](auto f) {
        by_type(to, [&](auto t) {
            typedef typename decltype(f)::type From;
            typedef typename decltype(t)::type To;
            launch(cast_rows<From, To>, flat_blocks(n_items), FLAT_THREADS, stream, n_items, n,
                   (const From *)x, x_row, (To *)y, y_row);
        });
    });
}

void dh_cuda_cast(dh_cuda_stream stream, int64_t n, dh_dtype from, const void *x, dh_dtype to,
                  void *y)
{
    dh_cuda_cast_rows(stream, 1, n, from, x, n, to, y, n);
}

template <class T>
__global__ void put_rows(int64_t n_items, int64_t n, const T *x, int64_t x_row, const int32_t *at,
                         T *y)
{
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step())
        y[at[i / n] * n + i % n] = x[i / n * x_row + i % n];
}

void dh_cuda_put_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t n, const void *x,
                      int64_t x_row, const int32_t *at, void *y)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(put_rows<T>, flat_blocks(rows * n), FLAT_THREADS, stream, rows * n, n, (const T *)x,
               x_row, at, (T *)y);
    });
}

__global__ void add_rows(int64_t n_items, int64_t n, const float *x, int64_t x_row, float *y,
                         int64_t y_row)
{
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step())
        y[i / n * y_row + i % n] += x[i / n * x_row + i % n];
}

void dh_cuda_add_rows(dh_cuda_stream stream, int64_t rows, int64_t n, const float *x, int64_t x_row,
                      float *y, int64_t y_row)
{
    if (rows * n == 0) return;
    launch(add_rows, flat_blocks(rows * n), FLAT_THREADS, stream, rows * n, n, x, x_row, y, y_row);
}

template <class T, int V> __global__ void add(int64_t n, const T *a, const T *b, T *y)
{
    float u[V], v[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        load<T, V>(a + i, u);
        load<T, V>(b + i, v);
        for (int k = 0; k < V; k++) u[k] += v[k];
        store<T, V>(u, y + i);
    }
}

void dh_cuda_add(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *a, const void *b,
                 void *y)
{
    by_type(dtype, are_aligned(a, b, y), n, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(add<T, t.width>, flat_blocks(n / t.width), FLAT_THREADS, stream, n, (const T *)a,
               (const T *)b, (T *)y);
    });
}

struct share_lists {
    const void *x[3];
    int64_t n[3];
};

template <class T, int V> __global__ void sum_shares(int64_t n, share_lists from, T *y)
{
    float sum[V] = {0}, v[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        bool first = true;
        for (int k = 0; k < 3; k++)
            for (int64_t s = 0; s < from.n[k]; s++) {
                load<T, V>((const T *)from.x[k] + s * n + i, v);
                for (int e = 0; e < V; e++) sum[e] = first ? v[e] : sum[e] + v[e];
                first = false;
            }
        store<T, V>(sum, y + i);
    }
}

void dh_cuda_sum_shares(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *const x[3],
                        const int64_t n_shares[3], void *y)
{
    share_lists from;
    for (int k = 0; k < 3; k++) {
        from.x[k] = x[k];
        from.n[k] = n_shares[k];
    }
    by_type(dtype, are_aligned(x[0], x[1], x[2], y), n, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(sum_shares<T, t.width>, flat_blocks(n / t.width), FLAT_THREADS, stream, n, from,
               (T *)y);
    });
}

template <class T, int V> __global__ void scale(int64_t n, float factor, const T *x, T *y)
{
    float v[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        load<T, V>(x + i, v);
        for (int k = 0; k < V; k++) v[k] *= factor;
        store<T, V>(v, y + i);
    }
}

void dh_cuda_scale(dh_cuda_stream stream, dh_dtype dtype, int64_t n, float factor, const void *x,
                   void *y)
{
    by_type(dtype, are_aligned(x, y), n, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(scale<T, t.width>, flat_blocks(n / t.width), FLAT_THREADS, stream, n, factor,
               (const T *)x, (T *)y);
    });
}

void dh_cuda_copy(dh_cuda_stream stream, size_t n_bytes, const void *x, void *y)
{
    cudaMemcpyAsync(y, x, n_bytes, cudaMemcpyDeviceToDevice, stream);
}

void dh_cuda_zero(dh_cuda_stream stream, size_t n_bytes, void *y)
{
    cudaMemsetAsync(y, 0, n_bytes, stream);
}

/* ---- AdamW
 * ------------------------------------------------------------------------------------------ */

/* p (1 - lr wd) - step m / (sqrt v / sqrt bc2 + eps). One thread of each block folds the factors
 * that all elements share, in float64. */
struct adamw_factors {
    float decay, step, inv_root, eps, beta1, rest1, beta2, rest2, grad;
};

DEVICE adamw_factors adamw_factors_of(const dh_scalars *s, const double *norm, bool decays)
{
    const double done = (double)(s->step + 1);
    const double bc1 = 1 - pow(s->beta1, done), bc2 = 1 - pow(s->beta2, done);
    adamw_factors f;
    f.decay = (float)(1 - s->lr * (decays ? s->weight_decay : 0.0));
    f.step = (float)(s->lr / bc1);
    f.inv_root = (float)(1 / sqrt(bc2));
    f.eps = (float)s->eps;
    f.beta1 = (float)s->beta1;
    f.rest1 = (float)(1 - s->beta1);
    f.beta2 = (float)s->beta2;
    f.rest2 = (float)(1 - s->beta2);
    f.grad = (float)norm[1];
    return f;
}

/* Whether an AdamW that keeps what it overwrites steps by the norm of a part of the gradients. */
DEVICE bool steps_ahead(const double *so_far)
{
    return is_finite(so_far[0]) && so_far[1] == 1.0;
}

/* One step of elements [i, i + V) from p1, m1, v1. */
template <int V>
DEVICE void adamw_step(const adamw_factors &f, int64_t i, const float *g, float (&p1)[V],
                       float (&m1)[V], float (&v1)[V])
{
    float grad[V];
    load<float, V>(g + i, grad);
    for (int k = 0; k < V; k++) {
        const float d = grad[k] * f.grad;
        m1[k] = m1[k] * f.beta1 + d * f.rest1;
        v1[k] = v1[k] * f.beta2 + d * d * f.rest2;
        p1[k] = p1[k] * f.decay - m1[k] * f.step / (sqrtf(v1[k]) * f.inv_root + f.eps);
    }
}

template <int V>
DEVICE void adamw_store(int64_t i, const float (&p1)[V], const float (&m1)[V], const float (&v1)[V],
                        float *p, float *m, float *v, bf16 *copy)
{
    store<float, V>(m1, m + i);
    store<float, V>(v1, v + i);
    store<float, V>(p1, p + i);
    if (copy) store<bf16, V>(p1, copy + i);
}

template <int V>
__global__ void adamw(const dh_scalars *scalars, const double *norm, bool decays, int64_t n,
                      const float *g, float *p, float *m, float *v, bf16 *copy, float *old)
{
    DH_SHARED(adamw_factors, shared, [1]);
    const bool steps = old ? steps_ahead(norm) : is_finite(norm[0]); /* for all threads alike */
    if (!steps && !old) return;
    if (threadIdx.x == 0) shared[0] = adamw_factors_of(scalars, norm, decays);
    __syncthreads();
    const adamw_factors f = shared[0];
    float p1[V], m1[V], v1[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        load<float, V>(p + i, p1);
        load<float, V>(m + i, m1);
        load<float, V>(v + i, v1);
        if (old) adamw_store<V>(i, p1, m1, v1, old, old + n, old + 2 * n, NULL);
        if (!steps) continue;
        adamw_step<V>(f, i, g, p1, m1, v1);
        adamw_store<V>(i, p1, m1, v1, p, m, v, copy);
    }
}

void dh_cuda_adamw(dh_cuda_stream stream, const dh_scalars *scalars, const double *norm,
                   bool decays, int64_t n, const float *g, float *p, float *m, float *v,
                   dh_bf16 *copy, float *old)
{
    const bool wide = n % 4 == 0 && are_aligned(g, p, m, v, copy, old);
    launch(wide ? adamw<4> : adamw<1>, flat_blocks(wide ? n / 4 : n), FLAT_THREADS, stream, scalars,
           norm, decays, n, g, p, m, v, (bf16 *)copy, old);
}

template <int V>
__global__ void amend(const dh_scalars *scalars, const double *norm, const double *so_far,
                      bool decays, int64_t n, const float *g, const float *old, float *p, float *m,
                      float *v, bf16 *copy)
{
    DH_SHARED(adamw_factors, shared, [1]);
    const bool stepped = steps_ahead(so_far), steps = is_finite(norm[0]);
    if (stepped ? steps && norm[1] == 1.0 : !steps) return; /* every thread of every block */
    if (threadIdx.x == 0) shared[0] = adamw_factors_of(scalars, norm, decays);
    __syncthreads();
    const adamw_factors f = shared[0];
    float p1[V], m1[V], v1[V];
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        load<float, V>(old + i, p1);
        load<float, V>(old + n + i, m1);
        load<float, V>(old + 2 * n + i, v1);
        if (steps) adamw_step<V>(f, i, g, p1, m1, v1);
        adamw_store<V>(i, p1, m1, v1, p, m, v, copy);
    }
}

void dh_cuda_amend(dh_cuda_stream stream, const dh_scalars *scalars, const double *norm,
                   const double *so_far, bool decays, int64_t n, const float *g, const float *old,
                   float *p, float *m, float *v, dh_bf16 *copy)
{
    const bool wide = n % 4 == 0 && are_aligned(g, p, m, v, copy, old);
    launch(wide ? amend<4> : amend<1>, flat_blocks(wide ? n / 4 : n), FLAT_THREADS, stream, scalars,
           norm, so_far, decays, n, g, old, p, m, v, (bf16 *)copy);
}
