/* Vectors of W floats for the kernels in this folder, which are compiled once per
 * instruction set (see simd.h). Loads and stores of float32 and bf16 with partial
 * tails, exp, reductions in a fixed order, Philox on W counters.
 *
 * GCC/clang vector extensions carry the arithmetic; intrinsics stand where the
 * extension has no word for it. Without x86 the same source runs on W = 4. */
#ifndef DH_RUN_CPU_SIMD_VEC_H
#define DH_RUN_CPU_SIMD_VEC_H

#include "base/base.h"
#include "dhelix/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define VEC_AVX512 1
#define W 16
#elif defined(__AVX2__) && defined(__FMA__)
#define VEC_AVX2 1
#define W 8
#elif defined(__x86_64__)
#define VEC_SSE2 1
#define W 4
#else
#define W 4
#endif

#define INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint64_t vq __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));
typedef float vf_mem __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint32_t vu_mem __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t vh_mem __attribute__((vector_size(2 * W), aligned(2), may_alias));

INLINE vf splat(float x)
{
    return x - (vf){0}; /* unlike + 0, exact for -0 and so free */
}

/* ---- float32 and bf16 in memory: n >= W lanes are read, or the first n, others 0 ------- */

INLINE vf load_f32(const float *p, int64_t n)
{
    if (n >= W) return *(const vf_mem *)p;
#if VEC_AVX512
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
    vf v = {0};
    for (int64_t j = 0; j < n; j++) v[j] = p[j];
    return v;
#endif
}

INLINE void store_f32(float *p, int64_t n, vf v)
{
    if (n >= W) {
        *(vf_mem *)p = v;
        return;
    }
#if VEC_AVX512
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
#else
    for (int64_t j = 0; j < n; j++) p[j] = v[j];
#endif
}

INLINE vf widen_bf16(vh h)
{
#if VEC_AVX512
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif VEC_AVX2
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

/* Round to nearest even, NaN stays NaN: as dh_f32_to_bf16. */
INLINE vh narrow_bf16(vf v)
{
    vu bits = (vu)v, high = bits >> 16;
    vu rounded = (bits + 0x7fffu + (high & 1u)) >> 16;
#if VEC_AVX512
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    __m512i out = _mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)high, _mm512_set1_epi32(64));
    return (vh)_mm512_cvtepi32_epi16(out);
#else
    vu nan = (vu)(v != v);
    vu out = (rounded & ~nan) | ((high | 0x40u) & nan);
#if VEC_AVX2
    __m256i packed = _mm256_packus_epi32((__m256i)out, (__m256i)out);
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(out, vh);
#endif
#endif
}

INLINE vf load_bf16(const dh_bf16 *p, int64_t n)
{
    if (n >= W) return widen_bf16(*(const vh_mem *)p);
#if VEC_AVX512
    return widen_bf16((vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), p));
#else
    vh h = {0};
    for (int64_t j = 0; j < n; j++) h[j] = p[j];
    return widen_bf16(h);
#endif
}

INLINE void store_bf16(dh_bf16 *p, int64_t n, vf v)
{
    vh h = narrow_bf16(v);
    if (n >= W) {
        *(vh_mem *)p = h;
        return;
    }
#if VEC_AVX512
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1u), (__m256i)h);
#else
    for (int64_t j = 0; j < n; j++) p[j] = h[j];
#endif
}

/* Element i of an array whose type is known when the caller is compiled. */
INLINE vf load(bool bf16, const void *p, int64_t i, int64_t n)
{
    return bf16 ? load_bf16((const dh_bf16 *)p + i, n) : load_f32((const float *)p + i, n);
}

INLINE void store(bool bf16, void *p, int64_t i, int64_t n, vf v)
{
    if (bf16)
        store_bf16((dh_bf16 *)p + i, n, v);
    else
        store_f32((float *)p + i, n, v);
}

/* Makes one function of element type bool out of two compiled ones. */
#define BY_DTYPE(dtype, function, ...)                                                             \
    ((dtype) == DH_BF16 ? function(true, __VA_ARGS__) : function(false, __VA_ARGS__))

/* ---- lanes ----------------------------------------------------------------------------- */

INLINE vf vec_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* A NaN in b is the result. */
INLINE vf vec_max(vf a, vf b)
{
#if VEC_AVX512
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VEC_AVX2
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif VEC_SSE2
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vec_select(a > b, a, b);
#endif
}

INLINE vf vec_min(vf a, vf b)
{
#if VEC_AVX512
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VEC_AVX2
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif VEC_SSE2
    return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return vec_select(a < b, a, b);
#endif
}

INLINE vf vec_sqrt(vf a)
{
#if VEC_AVX512
    return (vf)_mm512_sqrt_ps((__m512)a);
#elif VEC_AVX2
    return (vf)_mm256_sqrt_ps((__m256)a);
#elif VEC_SSE2
    return (vf)_mm_sqrt_ps((__m128)a);
#else
    for (int j = 0; j < W; j++) a[j] = __builtin_sqrtf(a[j]);
    return a;
#endif
}

/* Lanes 0..n-1 all ones, others zero. */
INLINE vi first_lanes(int64_t n)
{
    vi index = {0};
    for (int j = 0; j < W; j++) index[j] = j;
    return index < (vi){0} + (int32_t)DH_MIN(n, W);
}

/* Sum and maximum over lanes, always by the same halving tree. */
#if VEC_AVX512 || VEC_AVX2
INLINE __m256 fold_to_256(vf v, bool max)
{
#if VEC_AVX512
    __m256 low = _mm512_castps512_ps256((__m512)v), high = _mm512_extractf32x8_ps((__m512)v, 1);
    return max ? _mm256_max_ps(low, high) : _mm256_add_ps(low, high);
#else
    return (__m256)v;
#endif
}

INLINE float fold(vf v, bool max)
{
    __m256 a = fold_to_256(v, max);
    __m128 low = _mm256_castps256_ps128(a), high = _mm256_extractf128_ps(a, 1);
    __m128 b = max ? _mm_max_ps(low, high) : _mm_add_ps(low, high);
    __m128 c = _mm_movehl_ps(b, b);
    b = max ? _mm_max_ps(b, c) : _mm_add_ps(b, c);
    c = _mm_shuffle_ps(b, b, 1);
    return _mm_cvtss_f32(max ? _mm_max_ss(b, c) : _mm_add_ss(b, c));
}
#else
INLINE float fold(vf v, bool max)
{
    float a[W];
    memcpy(a, &v, sizeof a);
    for (int half = W / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) a[j] = max ? DH_MAX(a[j], a[j + half]) : a[j] + a[j + half];
    return a[0];
}
#endif

INLINE float lane_sum(vf v)
{
    return fold(v, false);
}

INLINE float lane_max(vf v)
{
    return fold(v, true);
}

/* ---- exp ------------------------------------------------------------------------------- */

/* e^x within 1.5 ulp if the result is normal; 0 below -104, +inf above 88.73, NaN for NaN.
 * With x = n ln2 + r and |r| <= ln2/2, e^r is a minimax polynomial of degree 7. Coefficients
 * are those of Cephes' expf. */
INLINE vf vec_exp(vf x)
{
    x = vec_max(splat(-104.0f), x);
    x = vec_min(splat(89.0f), x);
    const vf magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf t = x * 1.44269504088896341f + magic;
    vf n = t - magic;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    vf e = p * (r * r) + r + 1.0f;
#if VEC_AVX512
    return (vf)_mm512_scalef_ps((__m512)e, (__m512)n);
#else
    vi whole = (vi)t - (vi)magic;
    vi half = whole >> 1; /* two steps: 2^n alone may not be a float */
    return e * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
#endif
}

/* tanh within 3 ulp, NaN for NaN. Below 0.625: the odd polynomial of Cephes' tanhf, whose relative
 * error is small where the result is. Above: 1 - 2 / (e^2|x| + 1). */
INLINE vf vec_tanh(vf x)
{
    const vi sign = (vi)x & (vi)splat(-0.0f);
    const vf size = (vf)((vi)x & ~(vi)splat(-0.0f)), s = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = p * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    const vf large = 1.0f - 2.0f / (vec_exp(size + size) + 1.0f);
    return vec_select(size < 0.625f, p * s * x + x, (vf)((vi)large | sign));
}

/* ---- Philox4x32-10 on W counters ------------------------------------------------------- */

INLINE void mul_hi_lo(vu a, uint32_t m, vu *hi, vu *lo)
{
#if VEC_AVX512
    __m512i factor = _mm512_set1_epi64(m);
    vq even = (vq)_mm512_mul_epu32((__m512i)a, factor);
    vq odd = (vq)_mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
#elif VEC_AVX2
    __m256i factor = _mm256_set1_epi64x(m);
    vq even = (vq)_mm256_mul_epu32((__m256i)a, factor);
    vq odd = (vq)_mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
#elif VEC_SSE2
    __m128i factor = _mm_set1_epi64x(m);
    vq even = (vq)_mm_mul_epu32((__m128i)a, factor);
    vq odd = (vq)_mm_mul_epu32(_mm_srli_epi64((__m128i)a, 32), factor);
#else
    vq even = ((vq)a & 0xffffffffu) * m;
    vq odd = ((vq)a >> 32) * m;
#endif
    *hi = (vu)((even >> 32) | (odd & 0xffffffff00000000u));
    *lo = (vu)((even & 0xffffffffu) | (odd << 32));
}

INLINE void vec_philox(dh_philox_key key, vu c0, uint32_t ctr1, uint32_t ctr2, uint32_t ctr3,
                       vu out[4])
{
    vu c1 = (vu){0} + ctr1, c2 = (vu){0} + ctr2, c3 = (vu){0} + ctr3;
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < 10; round++) {
        vu hi0, lo0, hi1, lo1;
        mul_hi_lo(c0, 0xD2511F53u, &hi0, &lo0);
        mul_hi_lo(c2, 0xCD9E8D57u, &hi1, &lo1);
        c0 = hi1 ^ c1 ^ k0;
        c2 = hi0 ^ c3 ^ k1;
        c1 = lo1;
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
