/* LayerNorm and RMSNorm. Forward and input gradient go by rows; the weight
 * gradients by stripes of columns, each summing all rows in order, so that no
 * thread needs a copy of its own and bits do not depend on their number. */
#include "run/cpu/split.h"

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
        simd->col_sums(dtype, N, C, c, dy, x, stats, dw, db, accumulate);
}

void dh_k_bias_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dy, float *db,
                    bool accumulate)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t c = 0; c < C; c += DH_STRIPE)
        simd->col_sums(dtype, N, C, c, dy, NULL, NULL, NULL, db, accumulate);
}
