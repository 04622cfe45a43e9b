/* Latent attention's rows: heads of few channels laid out as packed qkv, and heads' results without
 * what fills them up. A thread an element that is written. Reference: run/cpu/latent.c. */
#include "run/cuda/kernels/device.cuh"

/* ---- rotation ----------------------------------------------------------------------------------
 */

/* Channels of pair i of R that are turned together. */
DEVICE int64_t first_of(const dh_latent &l, int64_t i)
{
    return l.pairs ? 2 * i : i;
}

DEVICE int64_t second_of(const dh_latent &l, int64_t i)
{
    return l.pairs ? 2 * i + 1 : i + l.R / 2;
}

/* Channel r of what the rotation makes of R channels: halves. */
template <class T>
DEVICE float rotated(const dh_latent &l, const T *x, const float *turn, int64_t r)
{
    const int64_t half = l.R / 2, i = r % half;
    const float a = widen(x[first_of(l, i)]), b = widen(x[second_of(l, i)]);
    return r < half ? a * turn[i] - b * turn[half + i] : b * turn[i] + a * turn[half + i];
}

/* Channel r of its gradient, from the sum of n results' gradients that are `step` channels apart.
 */
template <class T>
DEVICE float rotated_back(const dh_latent &l, const T *dy, int64_t n, int64_t step,
                          const float *turn, int64_t r)
{
    const int64_t half = l.R / 2;
    const int64_t i = l.pairs ? r / 2 : r % half;
    const bool is_first = l.pairs ? r % 2 == 0 : r < half;
    float a = 0, b = 0;
    for (int64_t k = 0; k < n; k++) {
        a += widen(dy[k * step + i]);
        b += widen(dy[k * step + half + i]);
    }
    return is_first ? a * turn[i] + b * turn[half + i] : b * turn[i] - a * turn[half + i];
}

/* ---- packing -----------------------------------------------------------------------------------
 */

template <class T>
__global__ void latent_pack(dh_latent l, const T *q, const T *kv, const T *k_rot,
                            const float *table, const int32_t *pos, T *qkv)
{
    const int64_t D = l.D, P = D - l.R, row = 3 * l.H * D;
    for (int64_t i = first_of_grid(); i < l.N * row; i += grid_step()) {
        const int64_t n = i / row, h = i % row / D % l.H, c = i % D, part = i % row / (l.H * D);
        const float *turn = table + pos[n] * l.R;
        const T *of_q = q + (n * l.H + h) * D, *of_kv = kv + (n * l.H + h) * (P + l.V);
        float x = 0;
        if (part == 0)
            x = c < P ? widen(of_q[c]) : rotated(l, of_q + P, turn, c - P);
        else if (part == 1)
            x = c < P ? widen(of_kv[c]) : rotated(l, k_rot + n * l.R, turn, c - P);
        else if (c < l.V)
            x = widen(of_kv[P + c]);
        narrow(x, &qkv[i]);
    }
}

void dh_cuda_latent_pack(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype, const void *q,
                         const void *kv, const void *k_rot, const float *table, const int32_t *pos,
                         void *qkv)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(latent_pack<T>, flat_blocks(3 * l->N * l->H * l->D), FLAT_THREADS, stream, *l,
               (const T *)q, (const T *)kv, (const T *)k_rot, table, pos, (T *)qkv);
    });
}

/* Of a row dq, dkv and dk_rot, one behind another. */
template <class T>
__global__ void latent_unpack(dh_latent l, const T *dqkv, const float *table, const int32_t *pos,
                              T *dq, T *dkv, T *dk_rot)
{
    const int64_t D = l.D, P = D - l.R, n_q = l.H * D, of_kv = P + l.V, n_kv = l.H * of_kv;
    const int64_t all = n_q + n_kv + l.R;
    for (int64_t i = first_of_grid(); i < l.N * all; i += grid_step()) {
        const int64_t n = i / all, c = i % all;
        const T *row = dqkv + n * 3 * n_q;
        const float *turn = table + pos[n] * l.R;
        if (c < n_q) {
            const int64_t r = c % D - P;
            narrow(r < 0 ? widen(row[c]) : rotated_back(l, row + c / D * D + P, 1, 0, turn, r),
                   &dq[n * n_q + c]);
        } else if (c < n_q + n_kv) {
            const int64_t h = (c - n_q) / of_kv, k = (c - n_q) % of_kv;
            dkv[n * n_kv + c - n_q] = k < P ? row[n_q + h * D + k] : row[2 * n_q + h * D + k - P];
        } else {
            const int64_t r = c - n_q - n_kv;
            narrow(rotated_back(l, row + n_q + P, l.H, D, turn, r), &dk_rot[n * l.R + r]);
        }
    }
}

void dh_cuda_latent_pack_bwd(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype,
                             const void *dqkv, const float *table, const int32_t *pos, void *dq,
                             void *dkv, void *dk_rot)
{
    const int64_t all = l->H * (2 * l->D - l->R + l->V) + l->R;
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(latent_unpack<T>, flat_blocks(l->N * all), FLAT_THREADS, stream, *l, (const T *)dqkv,
               table, pos, (T *)dq, (T *)dkv, (T *)dk_rot);
    });
}

/* ---- cutting -----------------------------------------------------------------------------------
 */

/* Rows of `to` elements from rows of `from`: what is beyond them is 0. */
template <class T>
__global__ void resize_rows(int64_t n_items, int64_t from, int64_t to, const T *x, T *y)
{
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step()) {
        const int64_t r = i / to, c = i % to;
        narrow(c < from ? widen(x[r * from + c]) : 0.0f, &y[i]);
    }
}

static void resize(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t from, int64_t to,
                   const void *x, void *y)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(resize_rows<T>, flat_blocks(rows * to), FLAT_THREADS, stream, rows * to, from, to,
               (const T *)x, (T *)y);
    });
}

void dh_cuda_latent_cut(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype, const void *o,
                        void *cut)
{
    resize(stream, dtype, l->N * l->H, l->D, l->V, o, cut);
}

void dh_cuda_latent_cut_bwd(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype,
                            const void *dcut, void *dout)
{
    resize(stream, dtype, l->N * l->H, l->V, l->D, dcut, dout);
}
