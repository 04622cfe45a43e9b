/* Linear attention, chunk by chunk. Tokens of a chunk see each other one by one. They see all
 * tokens before the chunk by the state S, which is the sum of k v^T. M is the causal mask inside a
 * chunk, and U the sum of q do^T over the chunks after it.
 *
 *   O = (Q K^T * M) V + Q S,    S += K^T V.
 *   dQ = (dO V^T * M) K + dO S^T,   dV = (Q K^T * M)^T dO + K U,   dK = (dO V^T * M)^T Q + V U^T.
 *
 * A block does a key head of a sample with the query heads that share it, in order, so sums have
 * one order. States and scores lie in its part of the scratch, which stays in the cache. TUNING: a
 * guess until one has run: GEMMs are loops over float32, without tensor cores; they are a small
 * share of a layer's work. States are joined to a share of the sequence element by element, a
 * thread each. Source: Yang et al. 2024 (arXiv 2312.06635), section 3; LASP-2 (arXiv 2502.07563),
 * section 2. Reference: run/cpu/simd/linear_attn.h. */
#include "run/cuda/kernels/device.cuh"

enum { BLOCK = 64, THREADS = 256 };

/* ---- operands ----------------------------------------------------------------------------------
 */

struct sizes {
    int64_t T, H, KV, D;
};

static sizes sizes_of(const dh_linear_shape *s)
{
    const sizes z = {s->T, s->H, s->KV, s->D};
    return z;
}

/* Where token t has head `column` of packed rows: queries, then keys, then values. */
DEVICE int64_t packed_at(const sizes &z, int64_t b, int64_t t, int64_t column)
{
    return ((b * z.T + t) * (z.H + 2 * z.KV) + column) * z.D;
}

DEVICE int64_t out_at(const sizes &z, int64_t b, int64_t t, int64_t head)
{
    return ((b * z.T + t) * z.H + head) * z.D;
}

/* A block's part of the scratch. */
struct arrays {
    float *state, *p, *d, *dk, *dv; /* [D][D], [BLOCK][BLOCK] twice, [BLOCK][D] twice */
};

static size_t floats_of(const dh_linear_shape *s)
{
    return (size_t)(s->D * s->D + 2 * BLOCK * BLOCK + 2 * BLOCK * s->D);
}

DEVICE arrays arrays_of(const sizes &z, float *ws)
{
    arrays a;
    a.state = ws + (int64_t)blockIdx.x * (z.D * z.D + 2 * BLOCK * BLOCK + 2 * BLOCK * z.D);
    a.p = a.state + z.D * z.D;
    a.d = a.p + BLOCK * BLOCK;
    a.dk = a.d + BLOCK * BLOCK;
    a.dv = a.dk + BLOCK * z.D;
    return a;
}

size_t dh_cuda_linear_workspace(const dh_linear_shape *s)
{
    return (size_t)(s->B * s->KV) * floats_of(s) * sizeof(float);
}

/* put(i, j, sum of a(i, k) b(k, j) over k < n) for rows x columns elements, by all threads. */
template <class A, class B, class P>
DEVICE void product(int64_t rows, int64_t columns, int64_t n, A a, B b, P put)
{
    for (int64_t i = threadIdx.x; i < rows * columns; i += blockDim.x) {
        const int64_t r = i / columns, c = i % columns;
        float sum = 0;
        for (int64_t k = 0; k < n; k++) sum += a(r, k) * b(k, c);
        put(r, c, sum);
    }
}

/* p = x y^T of n rows as far as the mask lets them. */
template <class X, class Y> DEVICE void make_scores(int64_t n, int64_t D, X x, Y y, float *p)
{
    product(
        n, n, D, x, [&](int64_t k, int64_t c) { return y(c, k); },
        [&](int64_t r, int64_t c, float v) { p[r * BLOCK + c] = c <= r ? v : 0.0f; });
    __syncthreads();
}

/* state += x^T y of n rows. */
template <class X, class Y> DEVICE void add_state(int64_t n, int64_t D, X x, Y y, float *state)
{
    product(
        D, D, n, [&](int64_t i, int64_t k) { return x(k, i); }, y,
        [&](int64_t i, int64_t j, float v) { state[i * D + j] += v; });
    __syncthreads();
}

DEVICE void fill_state(int64_t D, const float *from, float *state)
{
    for (int64_t i = threadIdx.x; i < D * D; i += blockDim.x) state[i] = from ? from[i] : 0.0f;
    __syncthreads();
}

/* Rows of one head of a chunk. */
template <class T> struct rows_of {
    const T *at;
    int64_t step;
    __device__ float operator()(int64_t r, int64_t c) const
    {
        return widen(at[r * step + c]);
    }
};

/* Rows of packed heads, and of what goes out, from token t on. */
template <class T>
DEVICE rows_of<T> packed_rows(const sizes &z, const T *qkv, int64_t b, int64_t t, int64_t column)
{
    return rows_of<T>{qkv + packed_at(z, b, t, column), (z.H + 2 * z.KV) * z.D};
}

template <class T>
DEVICE rows_of<T> out_rows(const sizes &z, const T *o, int64_t b, int64_t t, int64_t head)
{
    return rows_of<T>{o + out_at(z, b, t, head), z.H * z.D};
}

/* The block's sample and key head; rows of the chunk at t. */
struct place {
    int64_t b, kv, group;
};

DEVICE place place_of(const sizes &z)
{
    place p;
    p.b = blockIdx.x / z.KV;
    p.kv = blockIdx.x % z.KV;
    p.group = z.H / z.KV;
    return p;
}

DEVICE int64_t chunk_rows(const sizes &z, int64_t t)
{
    return z.T - t < BLOCK ? z.T - t : (int64_t)BLOCK;
}

/* ---- forward -----------------------------------------------------------------------------------
 */

template <class T, class O>
__global__ void linear_fwd(sizes z, const T *qkv, float *state, const int32_t *pos, O *o, float *ws)
{
    const arrays a = arrays_of(z, ws);
    const place p = place_of(z);
    const int64_t D = z.D;
    float *kept = state ? state + (int64_t)blockIdx.x * D * D : NULL;
    fill_state(D, pos && pos[0] == 0 ? NULL : kept, a.state);
    for (int64_t t = 0; t < z.T; t += BLOCK) {
        const int64_t n = chunk_rows(z, t);
        const rows_of<T> k = packed_rows(z, qkv, p.b, t, z.H + p.kv);
        const rows_of<T> v = packed_rows(z, qkv, p.b, t, z.H + z.KV + p.kv);
        for (int64_t h = p.kv * p.group; h < (p.kv + 1) * p.group; h++) {
            const rows_of<T> q = packed_rows(z, qkv, p.b, t, h);
            make_scores(n, D, q, k, a.p);
            for (int64_t i = threadIdx.x; i < n * D; i += blockDim.x) {
                const int64_t r = i / D, c = i % D;
                float sum = 0;
                for (int64_t s = 0; s <= r; s++) sum += a.p[r * BLOCK + s] * v(s, c);
                for (int64_t s = 0; s < D; s++) sum += q(r, s) * a.state[s * D + c];
                narrow(sum, &o[out_at(z, p.b, t + r, h) + c]);
            }
            __syncthreads();
        }
        add_state(n, D, k, v, a.state);
    }
    if (kept) fill_state(D, a.state, kept);
}

/* Calls f with the types of both. */
template <class F> static void by_types(dh_dtype in, dh_dtype out, F f)
{
    by_type(in, [&](auto t) { by_type(out, [&](auto u) { f(t, u); }); });
}

void dh_cuda_linear_fwd(dh_cuda_stream stream, const dh_linear_shape *s, const void *qkv,
                        float *state, const int32_t *pos, void *o, void *ws)
{
    by_types(s->dtype, s->o_dtype, [&](auto t, auto u) {
        typedef typename decltype(t)::type T;
        typedef typename decltype(u)::type O;
        launch(linear_fwd<T, O>, s->B * s->KV, THREADS, stream, sizes_of(s), (const T *)qkv, state,
               pos, (O *)o, (float *)ws);
    });
}

/* The sum of k v^T, or, where dout is given, of q do^T. */
template <class T> __global__ void linear_state(sizes z, const T *dout, const T *qkv, float *state)
{
    const place p = place_of(z);
    float *to = state + (int64_t)blockIdx.x * z.D * z.D;
    fill_state(z.D, NULL, to);
    for (int64_t t = 0; t < z.T; t += BLOCK) {
        const int64_t n = chunk_rows(z, t);
        if (!dout) {
            add_state(n, z.D, packed_rows(z, qkv, p.b, t, z.H + p.kv),
                      packed_rows(z, qkv, p.b, t, z.H + z.KV + p.kv), to);
            continue;
        }
        for (int64_t h = p.kv * p.group; h < (p.kv + 1) * p.group; h++)
            add_state(n, z.D, packed_rows(z, qkv, p.b, t, h), out_rows(z, dout, p.b, t, h), to);
    }
}

void dh_cuda_linear_state(dh_cuda_stream stream, const dh_linear_shape *s, const void *dout,
                          const void *qkv, float *state)
{
    by_type(s->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(linear_state<T>, s->B * s->KV, THREADS, stream, sizes_of(s), (const T *)dout,
               (const T *)qkv, state);
    });
}

/* ---- backward ----------------------------------------------------------------------------------
 */

/* dq, in the order of the sequence. */
template <class T, class G>
__global__ void linear_dq(sizes z, const T *dout, const T *qkv, G *dqkv, float *ws)
{
    const arrays a = arrays_of(z, ws);
    const place p = place_of(z);
    const int64_t D = z.D;
    fill_state(D, NULL, a.state);
    for (int64_t t = 0; t < z.T; t += BLOCK) {
        const int64_t n = chunk_rows(z, t);
        const rows_of<T> k = packed_rows(z, qkv, p.b, t, z.H + p.kv);
        const rows_of<T> v = packed_rows(z, qkv, p.b, t, z.H + z.KV + p.kv);
        for (int64_t h = p.kv * p.group; h < (p.kv + 1) * p.group; h++) {
            const rows_of<T> g = out_rows(z, dout, p.b, t, h);
            make_scores(n, D, g, v, a.d);
            for (int64_t i = threadIdx.x; i < n * D; i += blockDim.x) {
                const int64_t r = i / D, c = i % D;
                float sum = 0;
                for (int64_t s = 0; s <= r; s++) sum += a.d[r * BLOCK + s] * k(s, c);
                for (int64_t s = 0; s < D; s++) sum += g(r, s) * a.state[c * D + s];
                narrow(sum, &dqkv[packed_at(z, p.b, t + r, h) + c]);
            }
            __syncthreads();
        }
        add_state(n, D, k, v, a.state);
    }
}

/* Add the gradients that the queries of one chunk and head give to its keys and values. */
template <class T>
DEVICE void add_pairs(int64_t n, int64_t D, const arrays &a, const rows_of<T> &q,
                      const rows_of<T> &g)
{
    for (int64_t i = threadIdx.x; i < n * D; i += blockDim.x) {
        const int64_t s = i / D, c = i % D;
        float dk = 0, dv = 0;
        for (int64_t r = s; r < n; r++) {
            dk += a.d[r * BLOCK + s] * q(r, c);
            dv += a.p[r * BLOCK + s] * g(r, c);
        }
        a.dk[i] += dk;
        a.dv[i] += dv;
    }
    __syncthreads();
}

/* dk and dv, from the sequence's end. */
template <class T, class G>
__global__ void linear_dkv(sizes z, const T *dout, const T *qkv, G *dqkv, float *ws)
{
    const arrays a = arrays_of(z, ws);
    const place p = place_of(z);
    const int64_t D = z.D;
    fill_state(D, NULL, a.state);
    for (int64_t t = (z.T - 1) / BLOCK * BLOCK; t >= 0; t -= BLOCK) {
        const int64_t n = chunk_rows(z, t);
        const rows_of<T> k = packed_rows(z, qkv, p.b, t, z.H + p.kv);
        const rows_of<T> v = packed_rows(z, qkv, p.b, t, z.H + z.KV + p.kv);
        for (int64_t i = threadIdx.x; i < n * D; i += blockDim.x) {
            const int64_t r = i / D, c = i % D;
            float dk = 0, dv = 0;
            for (int64_t s = 0; s < D; s++) {
                dk += v(r, s) * a.state[c * D + s];
                dv += k(r, s) * a.state[s * D + c];
            }
            a.dk[i] = dk;
            a.dv[i] = dv;
        }
        __syncthreads();
        for (int64_t h = p.kv * p.group; h < (p.kv + 1) * p.group; h++) {
            const rows_of<T> q = packed_rows(z, qkv, p.b, t, h), g = out_rows(z, dout, p.b, t, h);
            make_scores(n, D, q, k, a.p);
            make_scores(n, D, g, v, a.d);
            add_pairs(n, D, a, q, g);
            add_state(n, D, q, g, a.state);
        }
        for (int64_t i = threadIdx.x; i < n * D; i += blockDim.x) {
            narrow(a.dk[i], &dqkv[packed_at(z, p.b, t + i / D, z.H + p.kv) + i % D]);
            narrow(a.dv[i], &dqkv[packed_at(z, p.b, t + i / D, z.H + z.KV + p.kv) + i % D]);
        }
        __syncthreads();
    }
}

void dh_cuda_linear_bwd(dh_cuda_stream stream, const dh_linear_shape *s, const void *dout,
                        const void *qkv, void *dqkv, void *ws)
{
    by_types(s->dtype, s->g_dtype, [&](auto t, auto u) {
        typedef typename decltype(t)::type T;
        typedef typename decltype(u)::type G;
        launch(linear_dq<T, G>, s->B * s->KV, THREADS, stream, sizes_of(s), (const T *)dout,
               (const T *)qkv, (G *)dqkv, (float *)ws);
        launch(linear_dkv<T, G>, s->B * s->KV, THREADS, stream, sizes_of(s), (const T *)dout,
               (const T *)qkv, (G *)dqkv, (float *)ws);
    });
}

/* ---- states of other shares of the sequence -----------------------------------------------------
 */

/* Sum over j of x(j) state(j, c), or of x(j) state(c, j). */
template <class T>
DEVICE float times_state(int64_t D, const T *x, const float *state, int64_t c, bool turned)
{
    float sum = 0;
    for (int64_t j = 0; j < D; j++)
        sum += widen(x[j]) * (turned ? state[c * D + j] : state[j * D + c]);
    return sum;
}

template <class T, class O>
__global__ void linear_join(sizes z, int64_t n_items, const float *own, const T *qkv,
                            const float *before, O *o)
{
    const int64_t D = z.D, group = z.H / z.KV;
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step()) {
        const int64_t c = i % D, h = i / D % z.H, row = i / (D * z.H), b = row / z.T;
        float sum = own[i];
        if (before)
            sum += times_state(D, qkv + packed_at(z, b, row % z.T, h),
                               before + (b * z.KV + h / group) * D * D, c, false);
        narrow(sum, &o[i]);
    }
}

void dh_cuda_linear_join(dh_cuda_stream stream, const dh_linear_shape *s, const float *o_own,
                         const void *qkv, const float *before, void *o)
{
    const int64_t n = s->B * s->T * s->H * s->D;
    by_types(s->dtype, s->o_dtype, [&](auto t, auto u) {
        typedef typename decltype(t)::type T;
        typedef typename decltype(u)::type O;
        launch(linear_join<T, O>, flat_blocks(n), FLAT_THREADS, stream, sizes_of(s), n, o_own,
               (const T *)qkv, before, (O *)o);
    });
}

/* dq += do before^T, dk += v behind^T, dv += k behind. */
template <class T, class G>
__global__ void linear_join_bwd(sizes z, int64_t n_items, const float *own, const T *dout,
                                const T *qkv, const float *before, const float *behind, G *dqkv)
{
    const int64_t D = z.D, group = z.H / z.KV, columns = z.H + 2 * z.KV;
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step()) {
        const int64_t c = i % D, h = i / D % columns, row = i / (D * columns);
        const int64_t b = row / z.T, t = row % z.T, head = (h - z.H) % z.KV;
        float sum = own[i];
        if (h < z.H && before)
            sum += times_state(D, dout + out_at(z, b, t, h),
                               before + (b * z.KV + h / group) * D * D, c, true);
        if (h >= z.H && behind) {
            const bool is_key = h < z.H + z.KV;
            sum += times_state(D, qkv + packed_at(z, b, t, z.H + (is_key ? z.KV : 0) + head),
                               behind + (b * z.KV + head) * D * D, c, is_key);
        }
        narrow(sum, &dqkv[i]);
    }
}

void dh_cuda_linear_join_bwd(dh_cuda_stream stream, const dh_linear_shape *s, const float *dqkv_own,
                             const void *dout, const void *qkv, const float *before,
                             const float *behind, void *dqkv)
{
    const int64_t n = s->B * s->T * (s->H + 2 * s->KV) * s->D;
    by_types(s->dtype, s->g_dtype, [&](auto t, auto u) {
        typedef typename decltype(t)::type T;
        typedef typename decltype(u)::type G;
        launch(linear_join_bwd<T, G>, flat_blocks(n), FLAT_THREADS, stream, sizes_of(s), n,
               dqkv_own, (const T *)dout, (const T *)qkv, before, behind, (G *)dqkv);
    });
}
