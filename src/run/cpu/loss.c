/* Cross-entropy over a vocabulary that may be sharded: statistics of each shard's
 * columns, their merge, the loss and the gradient of the logits. */
#include "run/cpu/split.h"

#include <math.h>
#include <string.h>

void dh_k_ce_stats(dh_dtype dtype, int64_t n, int64_t v0, int64_t v1, const void *logits,
                   const int32_t *targets, float *stats)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t V = v1 - v0;
#pragma omp parallel for schedule(static) if (n * V >= PARALLEL_MIN)
    for (int64_t r = 0; r < n; r++) {
        const void *row = const_at(dtype, logits, r * V);
        float *s = stats + 3 * r;
        simd->ce_stats(dtype, V, row, &s[0], &s[1]);
        s[2] = targets[r] >= v0 && targets[r] < v1 ? element(dtype, row, targets[r] - v0) : 0.0f;
    }
}

void dh_k_ce_merge(int64_t tp, int64_t n, const float *parts, float *stats)
{
    for (int64_t r = 0; r < n; r++) {
        float max = parts[3 * r], sum = 0, target = 0;
        for (int64_t i = 1; i < tp; i++) max = fmaxf(max, parts[3 * (i * n + r)]);
        for (int64_t i = 0; i < tp; i++) {
            const float *part = parts + 3 * (i * n + r);
            sum += part[1] * expf(part[0] - max);
            target += part[2];
        }
        stats[3 * r] = max;
        stats[3 * r + 1] = sum;
        stats[3 * r + 2] = target;
    }
}

void dh_k_ce_loss(int64_t n, const float *stats, const int32_t *targets, float *loss)
{
    for (int64_t r = 0; r < n; r++) {
        const float *s = stats + 3 * r;
        loss[r] = targets[r] < 0 ? 0.0f : (float)(log((double)s[1]) + ((double)s[0] - s[2]));
    }
}

void dh_k_ce_grad(dh_dtype dtype, int64_t n, int64_t v0, int64_t v1, const void *logits,
                  const int32_t *targets, const float *stats, float scale, void *dlogits)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t V = v1 - v0;
#pragma omp parallel for schedule(static) if (n * V >= PARALLEL_MIN)
    for (int64_t r = 0; r < n; r++) {
        const float *s = stats + 3 * r;
        void *row = at(dtype, dlogits, r * V);
        if (targets[r] < 0) {
            memset(row, 0, (size_t)V * dh_dtype_bytes(dtype));
            continue;
        }
        /* The target's probability minus one is formed before rounding to bf16. */
        const int64_t target = targets[r] - v0;
        const bool owned = target >= 0 && target < V;
        const float hot =
            owned ? expf(element(dtype, const_at(dtype, logits, r * V), target) - s[0]) / s[1] : 0;
        simd->ce_grad(dtype, V, const_at(dtype, logits, r * V), s[0], scale / s[1], row);
        if (owned) set_element(dtype, row, target, (hot - 1.0f) * scale);
    }
}
