/* GELU, SwiGLU, GEGLU, rotary embedding. */
#ifndef DH_RUN_CPU_SIMD_ACT_H
#define DH_RUN_CPU_SIMD_ACT_H

#include "run/cpu/simd.h"
#include "run/cpu/simd/vec.h"

/* sigmoid(u) and, without cancellation, 1 - sigmoid(u). u is held above -87 so that
 * e^-u stays finite; there the result is below 2e-38 anyway. */
INLINE vf sigmoid(vf u, vf *rest)
{
    vf e = vec_exp(-vec_max(splat(-87.0f), u));
    vf s = 1.0f / (1.0f + e);
    *rest = e * s;
    return s;
}

/* 0.5 + 0.5 tanh(u) = sigmoid(2u), so GELU(x) = x sigmoid(A x + B x^3). Beyond 16 the sigmoid is 0
 * or 1 in float32; holding its argument there keeps x^3 finite. */
#define GELU_A 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_B 0.0713548162726002f /* 0.044715 * A */

INLINE vf hold(vf x)
{
    return vec_min(splat(16.0f), vec_max(splat(-16.0f), x));
}

INLINE void gelu_fwd_of(bool bf16, int64_t n, const void *h, void *g)
{
    for (int64_t i = 0; i < n; i += W) {
        vf x = load(bf16, h, i, n - i), z = hold(x), rest;
        store(bf16, g, i, n - i, x * sigmoid(z * (GELU_A + GELU_B * z * z), &rest));
    }
}

static void gelu_fwd(dh_dtype dtype, int64_t n, const void *h, void *g)
{
    BY_DTYPE(dtype, gelu_fwd_of, n, h, g);
}

INLINE void gelu_bwd_of(bool bf16, int64_t n, const void *dg, const void *h, void *dh)
{
    for (int64_t i = 0; i < n; i += W) {
        vf z = hold(load(bf16, h, i, n - i)), rest;
        vf s = sigmoid(z * (GELU_A + GELU_B * z * z), &rest);
        vf slope = s * (1.0f + rest * (z * (GELU_A + 3 * GELU_B * z * z)));
        store(bf16, dh, i, n - i, load(bf16, dg, i, n - i) * slope);
    }
}

static void gelu_bwd(dh_dtype dtype, int64_t n, const void *dg, const void *h, void *dh)
{
    BY_DTYPE(dtype, gelu_bwd_of, n, dg, h, dh);
}

/* 1 + elu(x) is 1 + x above 0, e^x below; x; silu(x). Slopes likewise. */
INLINE vf feature_of(dh_feature_map map, vf x)
{
    vf rest;
    if (map == DH_FEATURE_ELU)
        return vec_select(x > (vf){0}, x + 1.0f, vec_exp(vec_min(x, (vf){0})));
    return map == DH_FEATURE_SILU ? x * sigmoid(x, &rest) : x;
}

INLINE vf feature_slope(dh_feature_map map, vf x)
{
    vf rest, s;
    if (map == DH_FEATURE_ELU)
        return vec_select(x > (vf){0}, splat(1.0f), vec_exp(vec_min(x, (vf){0})));
    if (map != DH_FEATURE_SILU) return splat(1.0f);
    s = sigmoid(x, &rest);
    return s * (1.0f + x * rest);
}

INLINE void feature_map_of(bool bf16, dh_feature_map map, int64_t n, const void *dy, const void *x,
                           void *y)
{
    for (int64_t i = 0; i < n; i += W) {
        const vf v = load(bf16, x, i, n - i);
        store(bf16, y, i, n - i,
              dy ? load(bf16, dy, i, n - i) * feature_slope(map, v) : feature_of(map, v));
    }
}

static void feature_map(dh_feature_map map, dh_dtype dtype, int64_t n, const void *dy,
                        const void *x, void *y)
{
    BY_DTYPE(dtype, feature_map_of, map, n, dy, x, y);
}

INLINE void swiglu_fwd_of(bool bf16, int64_t F, const void *h, void *g)
{
    for (int64_t i = 0; i < F; i += W) {
        vf gate = load(bf16, h, i, F - i), up = load(bf16, h, F + i, F - i), rest;
        store(bf16, g, i, F - i, gate * sigmoid(gate, &rest) * up);
    }
}

static void swiglu_fwd(dh_dtype dtype, int64_t F, const void *h, void *g)
{
    BY_DTYPE(dtype, swiglu_fwd_of, F, h, g);
}

INLINE void swiglu_bwd_of(bool bf16, int64_t F, const void *dg, const void *h, void *dh)
{
    for (int64_t i = 0; i < F; i += W) {
        vf gate = load(bf16, h, i, F - i), up = load(bf16, h, F + i, F - i), rest;
        vf d = load(bf16, dg, i, F - i), s = sigmoid(gate, &rest);
        store(bf16, dh, i, F - i, d * up * s * (1.0f + gate * rest));
        store(bf16, dh, F + i, F - i, d * gate * s);
    }
}

static void swiglu_bwd(dh_dtype dtype, int64_t F, const void *dg, const void *h, void *dh)
{
    BY_DTYPE(dtype, swiglu_bwd_of, F, dg, h, dh);
}

INLINE void geglu_fwd_of(bool bf16, int64_t F, const void *h, void *g)
{
    for (int64_t i = 0; i < F; i += W) {
        vf gate = load(bf16, h, i, F - i), up = load(bf16, h, F + i, F - i);
        vf z = hold(gate), rest;
        store(bf16, g, i, F - i, gate * sigmoid(z * (GELU_A + GELU_B * z * z), &rest) * up);
    }
}

static void geglu_fwd(dh_dtype dtype, int64_t F, const void *h, void *g)
{
    BY_DTYPE(dtype, geglu_fwd_of, F, h, g);
}

INLINE void geglu_bwd_of(bool bf16, int64_t F, const void *dg, const void *h, void *dh)
{
    for (int64_t i = 0; i < F; i += W) {
        vf gate = load(bf16, h, i, F - i), up = load(bf16, h, F + i, F - i), rest;
        vf d = load(bf16, dg, i, F - i), z = hold(gate);
        vf s = sigmoid(z * (GELU_A + GELU_B * z * z), &rest);
        vf slope = s * (1.0f + rest * (z * (GELU_A + 3 * GELU_B * z * z)));
        store(bf16, dh, i, F - i, d * up * slope);
        store(bf16, dh, F + i, F - i, d * gate * s);
    }
}

static void geglu_bwd(dh_dtype dtype, int64_t F, const void *dg, const void *h, void *dh)
{
    BY_DTYPE(dtype, geglu_bwd_of, F, dg, h, dh);
}

INLINE void rope_of(bool bf16, int64_t n_heads, int64_t D, const void *x, const float *cs,
                    float sign, void *y)
{
    const int64_t half = D / 2;
    for (int64_t head = 0; head < n_heads; head++) {
        for (int64_t i = 0; i < half; i += W) {
            const int64_t a = head * D + i, b = a + half, n = half - i;
            vf u = load(bf16, x, a, n), v = load(bf16, x, b, n);
            vf c = load_f32(cs + i, n), s = load_f32(cs + half + i, n) * sign;
            store(bf16, y, a, n, u * c - v * s);
            store(bf16, y, b, n, v * c + u * s);
        }
    }
}

static void rope(dh_dtype dtype, int64_t n_heads, int64_t D, const void *x, const float *cs,
                 float sign, void *y)
{
    BY_DTYPE(dtype, rope_of, n_heads, D, x, cs, sign, y);
}

#endif
