/* LayerNorm and RMSNorm. Forward and input gradient go by rows, the weight gradients by
 * stripes of columns. Each stripe sums all rows in order. So no thread needs a copy of
 * its own, and bits do not depend on their number. */
#include "run/cpu/split.h"

#include <string.h>

void dh_k_norm_fwd(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C, const void *x,
                   const float *w, const float *b, float eps, void *y, float *stats)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        simd->norm_fwd(kind, dtype, C, const_at(dtype, x, n * C), w, b, eps, at(dtype, y, n * C),
                       stats + 2 * n);
}

void dh_k_norm_dgrad(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                     const void *x, const float *w, const float *stats, const void *dres, void *dx)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        simd->norm_dgrad(kind, dtype, C, const_at(dtype, dy, n * C), const_at(dtype, x, n * C), w,
                         stats + 2 * n, const_at(dtype, dres, n * C), at(dtype, dx, n * C));
}

void dh_k_norm_wgrad(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                     const void *x, const float *stats, float *dw, float *db, bool accumulate)
{
    const dh_simd *simd = dh_simd_get();
    (void)kind; /* RMSNorm's stats hold mean 0 */
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t c = 0; c < C; c += DH_STRIPE)
        simd->col_sums(dtype, (dh_row_steps){C, 2}, N, C, c, dy, x, stats, dw, db, accumulate);
}

void dh_k_bias_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dy, float *db,
                    bool accumulate)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t c = 0; c < C; c += DH_STRIPE)
        simd->col_sums(dtype, (dh_row_steps){C, 0}, N, C, c, dy, NULL, NULL, NULL, db, accumulate);
}

/* ---- heads of queries and keys ---------------------------------------------------------- */

void dh_k_head_norm_fwd(dh_dtype dtype, dh_heads h, const void *qkv, const float *w_q,
                        const float *w_k, float eps, void *out, float *stats)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t normed = h.H + h.KV, row = (normed + h.KV) * h.D;
    const size_t v_bytes = (size_t)(h.KV * h.D) * dh_dtype_bytes(dtype);
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < h.N; n++) {
        const int64_t v = n * row + normed * h.D;
        for (int64_t i = 0; i < normed; i++)
            simd->norm_fwd(DH_NORM_RMS, dtype, h.D, const_at(dtype, qkv, n * row + i * h.D),
                           i < h.H ? w_q : w_k, NULL, eps, at(dtype, out, n * row + i * h.D),
                           stats + 2 * (n * normed + i));
        memcpy(at(dtype, out, v), const_at(dtype, qkv, v), v_bytes);
    }
}

void dh_k_head_norm_dgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                          const float *w_q, const float *w_k, const float *stats, void *dqkv)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t normed = h.H + h.KV, row = (normed + h.KV) * h.D;
    const size_t v_bytes = (size_t)(h.KV * h.D) * dh_dtype_bytes(dtype);
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < h.N; n++) {
        const int64_t v = n * row + normed * h.D;
        for (int64_t i = 0; i < normed; i++) {
            const int64_t head = n * row + i * h.D;
            simd->norm_dgrad(DH_NORM_RMS, dtype, h.D, const_at(dtype, dy, head),
                             const_at(dtype, qkv, head), i < h.H ? w_q : w_k,
                             stats + 2 * (n * normed + i), NULL, at(dtype, dqkv, head));
        }
        memcpy(at(dtype, dqkv, v), const_at(dtype, dy, v), v_bytes);
    }
}

size_t dh_k_head_norm_wgrad_workspace(dh_heads h)
{
    return (size_t)((h.H + h.KV) * h.D) * sizeof(float);
}

/* Of heads [i0, i1) in order. */
static void add_heads(const dh_heads *h, const float *sums, int64_t i0, int64_t i1, float *dw,
                      bool accumulate)
{
    for (int64_t c = 0; c < h->D; c++) {
        float total = 0;
        for (int64_t i = i0; i < i1; i++) total += sums[i * h->D + c];
        dw[c] = accumulate ? dw[c] + total : total;
    }
}

/* Each head's rows are summed by themselves, so that heads and stripes are shared among threads. */
void dh_k_head_norm_wgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                          const float *stats, float *dw_q, float *dw_k, unsigned accumulate,
                          void *ws)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t normed = h.H + h.KV, row = (normed + h.KV) * h.D;
    const int64_t stripes = div_up(h.D, DH_STRIPE);
    float *sums = ws;
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t k = 0; k < normed * stripes; k++) {
        const int64_t i = k / stripes;
        simd->col_sums(dtype, (dh_row_steps){row, 2 * normed}, h.N, h.D, k % stripes * DH_STRIPE,
                       const_at(dtype, dy, i * h.D), const_at(dtype, qkv, i * h.D), stats + 2 * i,
                       sums + i * h.D, NULL, false);
    }
    add_heads(&h, sums, 0, h.H, dw_q, accumulate & 1);
    add_heads(&h, sums, h.H, normed, dw_k, accumulate >> 1 & 1);
}
