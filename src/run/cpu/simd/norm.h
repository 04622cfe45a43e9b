/* LayerNorm and RMSNorm of one row, and column sums of many rows. */
#ifndef DH_RUN_CPU_SIMD_NORM_H
#define DH_RUN_CPU_SIMD_NORM_H

#include "run/cpu/simd.h"
#include "run/cpu/simd/vec.h"

INLINE float row_mean(bool bf16, int64_t C, const void *x)
{
    vf total = {0};
    for (int64_t i = 0; i < C; i += W) total += load(bf16, x, i, C - i);
    return lane_sum(total) / (float)C;
}

/* Mean square distance from `mean`; tail lanes hold 0 and are masked out. */
INLINE float row_variance(bool bf16, int64_t C, const void *x, float mean)
{
    vf total = {0};
    for (int64_t i = 0; i < C; i += W) {
        vf d = load(bf16, x, i, C - i) - mean;
        if (C - i < W) d = (vf)((vi)d & first_lanes(C - i));
        total += d * d;
    }
    return lane_sum(total) / (float)C;
}

INLINE void norm_fwd_of(bool bf16, bool center, int64_t C, const void *x, const float *w,
                        const float *b, float eps, void *y, float stats[2])
{
    const float mean = center ? row_mean(bf16, C, x) : 0.0f;
    const float rstd = 1.0f / __builtin_sqrtf(row_variance(bf16, C, x, mean) + eps);
    for (int64_t i = 0; i < C; i += W) {
        const int64_t n = C - i;
        vf v = (load(bf16, x, i, n) - mean) * rstd * load_f32(w + i, n);
        store(bf16, y, i, n, b ? v + load_f32(b + i, n) : v);
    }
    stats[0] = mean;
    stats[1] = rstd;
}

static void norm_fwd(dh_norm_kind kind, dh_dtype dtype, int64_t C, const void *x, const float *w,
                     const float *b, float eps, void *y, float stats[2])
{
    if (kind == DH_NORM_LAYER)
        BY_DTYPE(dtype, norm_fwd_of, true, C, x, w, b, eps, y, stats);
    else
        BY_DTYPE(dtype, norm_fwd_of, false, C, x, w, b, eps, y, stats);
}

/* With g = dy w and xh = rstd (x - mean):
 *   dx = rstd (g - mean[g] - xh mean[g xh]). RMSNorm has no mean[g] term. */
INLINE void norm_dgrad_of(bool bf16, bool center, int64_t C, const void *dy, const void *x,
                          const float *w, const float stats[2], const void *dres, void *dx)
{
    const float mean = stats[0], rstd = stats[1];
    vf sum_g = {0}, sum_gx = {0};
    for (int64_t i = 0; i < C; i += W) {
        const int64_t n = C - i;
        vf g = load(bf16, dy, i, n) * load_f32(w + i, n);
        sum_g += g;
        sum_gx += g * ((load(bf16, x, i, n) - mean) * rstd);
    }
    const float mean_g = center ? lane_sum(sum_g) / (float)C : 0.0f;
    const float mean_gx = lane_sum(sum_gx) / (float)C;
    for (int64_t i = 0; i < C; i += W) {
        const int64_t n = C - i;
        vf g = load(bf16, dy, i, n) * load_f32(w + i, n);
        vf d = (g - mean_g - (load(bf16, x, i, n) - mean) * rstd * mean_gx) * rstd;
        store(bf16, dx, i, n, dres ? d + load(bf16, dres, i, n) : d);
    }
}

static void norm_dgrad(dh_norm_kind kind, dh_dtype dtype, int64_t C, const void *dy, const void *x,
                       const float *w, const float stats[2], const void *dres, void *dx)
{
    if (kind == DH_NORM_LAYER)
        BY_DTYPE(dtype, norm_dgrad_of, true, C, dy, x, w, stats, dres, dx);
    else
        BY_DTYPE(dtype, norm_dgrad_of, false, C, dy, x, w, stats, dres, dx);
}

/* Adds rows [r0, r1) of W columns in registers: the inner of two levels of summing,
 * so that rounding grows with the root of N rather than with N. */
INLINE void sum_rows(bool bf16, bool weight, dh_row_steps step, int64_t r0, int64_t r1, int64_t c,
                     int64_t n, const void *dy, const void *x, const float *stats, vf *dw, vf *db)
{
    for (int64_t r = r0; r < r1; r++) {
        vf d = load(bf16, dy, r * step.x + c, n);
        const float *s = stats + r * step.stats;
        *db += d;
        if (weight) *dw += d * ((load(bf16, x, r * step.x + c, n) - s[0]) * s[1]);
    }
}

enum { SUM_ROWS = 64 };

INLINE void col_sums_of(bool bf16, bool weight, dh_row_steps step, int64_t N, int64_t C, int64_t c0,
                        const void *dy, const void *x, const float *stats, float *dw, float *db,
                        bool accumulate)
{
    const int64_t c1 = DH_MIN(c0 + DH_STRIPE, C);
    float sums_w[DH_STRIPE] = {0}, sums_b[DH_STRIPE] = {0};
    for (int64_t r = 0; r < N; r += SUM_ROWS) {
        for (int64_t c = c0; c < c1; c += W) {
            vf part_w = {0}, part_b = {0};
            sum_rows(bf16, weight, step, r, DH_MIN(r + SUM_ROWS, N), c, c1 - c, dy, x, stats,
                     &part_w, &part_b);
            store_f32(sums_w + c - c0, W, load_f32(sums_w + c - c0, W) + part_w);
            store_f32(sums_b + c - c0, W, load_f32(sums_b + c - c0, W) + part_b);
        }
    }
    for (int64_t c = c0; c < c1; c++) {
        if (weight) dw[c] = accumulate ? dw[c] + sums_w[c - c0] : sums_w[c - c0];
        if (db) db[c] = accumulate ? db[c] + sums_b[c - c0] : sums_b[c - c0];
    }
}

static void col_sums(dh_dtype dtype, dh_row_steps step, int64_t N, int64_t C, int64_t c0,
                     const void *dy, const void *x, const float *stats, float *dw, float *db,
                     bool accumulate)
{
    if (stats)
        BY_DTYPE(dtype, col_sums_of, true, step, N, C, c0, dy, x, stats, dw, db, accumulate);
    else
        BY_DTYPE(dtype, col_sums_of, false, step, N, C, c0, dy, x, stats, dw, db, accumulate);
}

#endif
