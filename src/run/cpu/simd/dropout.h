/* Dropout masks, and the loops that apply them. */
#ifndef DH_RUN_CPU_SIMD_DROPOUT_H
#define DH_RUN_CPU_SIMD_DROPOUT_H

#include "run/cpu/simd.h"
#include "run/cpu/simd/vec.h"

/* Factors (0 or scale) of the 64 columns of a stripe. Column c takes word (c mod 64) / 16 of block
 * 16 (c / 64) + c mod 16, divisions being of integers. So vectors of up to 16 lanes need no shuffle
 * of a Philox block, which has four words. */
INLINE void dropout_stripe(const dh_drop_row *drop, int64_t stripe, float factor[DH_STRIPE])
{
    for (int lane = 0; lane < 16; lane += W) {
        vu block = {0}, word[4];
        for (int j = 0; j < W; j++) block[j] = (uint32_t)(stripe * 16 + lane + j);
        vec_philox(drop->key, block, drop->pos, drop->sample_lo, drop->sample_hi, word);
        for (int j = 0; j < 4; j++) {
            vi keep = (vi)(word[j] >> 8) >= (vi){0} + (int32_t)drop->threshold;
            store_f32(factor + 16 * j + lane, W, (vf)((vi)splat(drop->scale) & keep));
        }
    }
}

INLINE void residual_of(bool bf16, int64_t c0, int64_t n, const void *x, const void *p,
                        const float *bias, const dh_drop_row *drop, void *out)
{
    float factor[DH_STRIPE];
    for (int64_t c = c0; c < c0 + n; c += W) {
        const int64_t k = c0 + n - c;
        if (drop && c % DH_STRIPE == 0) dropout_stripe(drop, c / DH_STRIPE, factor);
        vf v = load(bf16, p, c, k);
        if (bias) v += load_f32(bias + c, k);
        if (drop) v *= load_f32(factor + c % DH_STRIPE, W);
        if (x) v += load(bf16, x, c, k);
        store(bf16, out, c, k, v);
    }
}

static void residual(dh_dtype dtype, int64_t c0, int64_t n, const void *x, const void *p,
                     const float *bias, const dh_drop_row *drop, void *out)
{
    BY_DTYPE(dtype, residual_of, c0, n, x, p, bias, drop, out);
}

INLINE void embed_add_of(bool bf16, int64_t c0, int64_t n, const void *dx, const dh_drop_row *drop,
                         float *sum1, float *sum2)
{
    float factor[DH_STRIPE];
    for (int64_t c = 0; c < n; c += W) {
        if (drop && c % DH_STRIPE == 0) dropout_stripe(drop, (c0 + c) / DH_STRIPE, factor);
        vf v = load(bf16, dx, c0 + c, n - c);
        if (drop) v *= load_f32(factor + c % DH_STRIPE, W);
        if (sum1) store_f32(sum1 + c, n - c, load_f32(sum1 + c, n - c) + v);
        if (sum2) store_f32(sum2 + c, n - c, load_f32(sum2 + c, n - c) + v);
    }
}

static void embed_add(dh_dtype dtype, int64_t c0, int64_t n, const void *dx,
                      const dh_drop_row *drop, float *sum1, float *sum2)
{
    BY_DTYPE(dtype, embed_add_of, c0, n, dx, drop, sum1, sum2);
}

#endif
