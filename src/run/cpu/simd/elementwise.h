/* Casts, sums, AdamW and other loops over whole arrays. */
#ifndef DH_RUN_CPU_SIMD_ELEMENTWISE_H
#define DH_RUN_CPU_SIMD_ELEMENTWISE_H

#include "run/cpu/simd.h"
#include "run/cpu/simd/vec.h"

typedef double vd __attribute__((vector_size(4 * W))); /* W/2 doubles */
typedef float vf_half __attribute__((vector_size(2 * W)));

static void cast(int64_t n, dh_dtype from, const void *x, dh_dtype to, void *y)
{
    const bool in = from == DH_BF16, out = to == DH_BF16;
    if (in == out)
        memcpy(y, x, (size_t)n * (in ? 2 : 4));
    else if (in)
        for (int64_t i = 0; i < n; i += W) store(false, y, i, n - i, load(true, x, i, n - i));
    else
        for (int64_t i = 0; i < n; i += W) store(true, y, i, n - i, load(false, x, i, n - i));
}

INLINE void add_of(bool bf16, int64_t n, const void *a, const void *b, void *y)
{
    for (int64_t i = 0; i < n; i += W)
        store(bf16, y, i, n - i, load(bf16, a, i, n - i) + load(bf16, b, i, n - i));
}

static void add(dh_dtype dtype, int64_t n, const void *a, const void *b, void *y)
{
    BY_DTYPE(dtype, add_of, n, a, b, y);
}

INLINE void scale_of(bool bf16, int64_t n, float factor, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i += W) store(bf16, y, i, n - i, load(bf16, x, i, n - i) * factor);
}

static void scale(dh_dtype dtype, int64_t n, float factor, const void *x, void *y)
{
    BY_DTYPE(dtype, scale_of, n, factor, x, y);
}

/* ---- sums in float64 ------------------------------------------------------------------- */

INLINE vd low_doubles(vf v)
{
    vf_half h;
    memcpy(&h, &v, sizeof h);
    return __builtin_convertvector(h, vd);
}

INLINE vd high_doubles(vf v)
{
    vf_half h;
    memcpy(&h, (const char *)&v + sizeof h, sizeof h);
    return __builtin_convertvector(h, vd);
}

INLINE double sum_doubles(bool squares, int64_t n, const float *x)
{
    vd low = {0}, high = {0};
    for (int64_t i = 0; i < n; i += W) {
        vf v = load_f32(x + i, n - i);
        vd a = low_doubles(v), b = high_doubles(v);
        low += squares ? a * a : a;
        high += squares ? b * b : b;
    }
    low += high;
    double total = 0;
    for (int j = 0; j < W / 2; j++) total += low[j];
    return total;
}

static double sum(int64_t n, const float *x)
{
    return sum_doubles(false, n, x);
}

INLINE bool all_finite_of(bool bf16, int64_t n, const void *x)
{
    vu bad = {0};
    for (int64_t i = 0; i < n; i += W) {
        vu exponent = (vu)load(bf16, x, i, n - i) & 0x7f800000u;
        bad |= (vu)(exponent == 0x7f800000u);
    }
    uint32_t any = 0;
    for (int j = 0; j < W; j++) any |= bad[j];
    return any == 0;
}

static bool all_finite(dh_dtype dtype, int64_t n, const void *x)
{
    return BY_DTYPE(dtype, all_finite_of, n, x);
}

static void exp_array(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i += W) store_f32(y + i, n - i, vec_exp(load_f32(x + i, n - i)));
}

/* ---- scaled sums ----------------------------------------------------------------------- */

INLINE void axpy_of(bool bf16, int64_t n, float factor, const void *x, float *y, bool accumulate)
{
    for (int64_t i = 0; i < n; i += W) {
        vf v = load(bf16, x, i, n - i) * factor;
        store_f32(y + i, n - i, accumulate ? load_f32(y + i, n - i) + v : v);
    }
}

static void axpy(dh_dtype dtype, int64_t n, float factor, const void *x, float *y, bool accumulate)
{
    BY_DTYPE(dtype, axpy_of, n, factor, x, y, accumulate);
}

INLINE float dot_of(bool bf16, int64_t n, const void *x, const void *y)
{
    vf s0 = {0}, s1 = {0};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        s0 += load(bf16, x, i, W) * load(bf16, y, i, W);
        s1 += load(bf16, x, i + W, W) * load(bf16, y, i + W, W);
    }
    for (; i < n; i += W) s0 += load(bf16, x, i, n - i) * load(bf16, y, i, n - i);
    return lane_sum(s0 + s1);
}

static float dot(dh_dtype dtype, int64_t n, const void *x, const void *y)
{
    return BY_DTYPE(dtype, dot_of, n, x, y);
}

INLINE void blend_of(bool bf16, int64_t n, float a, void *y, float b, const void *x)
{
    for (int64_t i = 0; i < n; i += W)
        store(bf16, y, i, n - i, load(bf16, y, i, n - i) * a + load(bf16, x, i, n - i) * b);
}

static void blend(dh_dtype dtype, int64_t n, float a, void *y, float b, const void *x)
{
    BY_DTYPE(dtype, blend_of, n, a, y, b, x);
}

/* ---- AdamW ----------------------------------------------------------------------------- */

/* Scalars are folded in float64: p (1 - lr wd) - step m / (sqrt v / sqrt bc2 + eps). */
static void adamw(const dh_adamw *opt, int64_t n, const float *g, float *p, float *m, float *v,
                  dh_bf16 *copy)
{
    const double bc1 = 1 - __builtin_pow(opt->beta1, (double)opt->step);
    const double bc2 = 1 - __builtin_pow(opt->beta2, (double)opt->step);
    const float decay = (float)(1 - opt->lr * opt->weight_decay), step = (float)(opt->lr / bc1);
    const float inv_root = (float)(1 / __builtin_sqrt(bc2)), eps = (float)opt->eps;
    const float b1 = (float)opt->beta1, c1 = (float)(1 - opt->beta1);
    const float b2 = (float)opt->beta2, c2 = (float)(1 - opt->beta2);
    const float grad_scale = (float)opt->grad_scale;
    for (int64_t i = 0; i < n; i += W) {
        const int64_t k = n - i;
        vf grad = load_f32(g + i, k) * grad_scale;
        vf m1 = load_f32(m + i, k) * b1 + grad * c1;
        vf v1 = load_f32(v + i, k) * b2 + grad * grad * c2;
        vf p1 = load_f32(p + i, k) * decay - m1 * step / (vec_sqrt(v1) * inv_root + eps);
        store_f32(m + i, k, m1);
        store_f32(v + i, k, v1);
        store_f32(p + i, k, p1);
        if (copy) store_bf16(copy + i, k, p1);
    }
}

#endif
