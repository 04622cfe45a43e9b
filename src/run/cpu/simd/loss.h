/* Softmax statistics and gradient of one row of logits. */
#ifndef DH_RUN_CPU_SIMD_LOSS_H
#define DH_RUN_CPU_SIMD_LOSS_H

#include "run/cpu/simd.h"
#include "run/cpu/simd/vec.h"

INLINE float row_max(bool bf16, int64_t n, const void *x)
{
    vf m0 = splat(-__builtin_inff()), m1 = m0;
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        m0 = vec_max(m0, load(bf16, x, i, W));
        m1 = vec_max(m1, load(bf16, x, i + W, W));
    }
    for (; i + W <= n; i += W) m0 = vec_max(m0, load(bf16, x, i, W));
    if (i < n) m0 = vec_select(first_lanes(n - i), vec_max(m0, load(bf16, x, i, n - i)), m0);
    return lane_max(vec_max(m0, m1));
}

/* Two passes: the second reads a row of logits that the first left in cache. */
INLINE void ce_stats_of(bool bf16, int64_t n, const void *logits, float *max, float *sum)
{
    const float top = row_max(bf16, n, logits);
    vf s0 = {0}, s1 = {0};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        s0 += vec_exp(load(bf16, logits, i, W) - top);
        s1 += vec_exp(load(bf16, logits, i + W, W) - top);
    }
    for (; i < n; i += W) {
        vf e = vec_exp(load(bf16, logits, i, n - i) - top);
        s0 += n - i >= W ? e : (vf)((vi)e & first_lanes(n - i));
    }
    *max = top;
    *sum = lane_sum(s0 + s1);
}

static void ce_stats(dh_dtype dtype, int64_t n, const void *logits, float *max, float *sum)
{
    BY_DTYPE(dtype, ce_stats_of, n, logits, max, sum);
}

INLINE void ce_grad_of(bool bf16, int64_t n, const void *logits, float max, float factor,
                       void *dlogits)
{
    for (int64_t i = 0; i < n; i += W)
        store(bf16, dlogits, i, n - i, vec_exp(load(bf16, logits, i, n - i) - max) * factor);
}

static void ce_grad(dh_dtype dtype, int64_t n, const void *logits, float max, float factor,
                    void *dlogits)
{
    BY_DTYPE(dtype, ce_grad_of, n, logits, max, factor, dlogits);
}

#endif
