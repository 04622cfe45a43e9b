/* Sums of squares. Only the sum of each 32 of them is rounded.
 *
 * Neal 2015, arXiv 1505.05571, section 2: fixed point over the whole range, wide digits that take
 * many additions before they carry. The least square of float32 is 2^-298, and the last bit of its
 * float64 is 2^-350. Above the largest, 2^31 sums of EXACT_RUN squares fit.
 *
 * Sums of runs are added a vector at a time where all are near each other, as is usual inside an
 * array. Each lane then has digits of its own, from the same one on. */
#ifndef DH_RUN_CPU_SIMD_EXACT_H
#define DH_RUN_CPU_SIMD_EXACT_H

#include "run/cpu/simd/elementwise.h"

enum { EXACT_RUN = 32, EXACT_HIGHEST = 2 * 128 + 5 };
enum { EXACT_LANES = W / 2, EXACT_DIGITS = 4 }; /* of a vector */

/* Of a float64's exponent field: its last bit's place above DH_EXACT_LOWEST; the largest of a
 * sum. */
enum { EXACT_PLACE = 1075 + DH_EXACT_LOWEST, EXACT_LARGEST = 1023 + EXACT_HIGHEST };

static void exact_add(dh_exact *e, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52);
    if (exponent == 0) return;
    if (exponent > EXACT_LARGEST) { /* not finite: a sum of squares has no other sign */
        e->odd += x;
        return;
    }
    const uint64_t mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    const int at = exponent - EXACT_PLACE;
    uint64_t *digit = &e->digits[at / 32];
    const uint64_t above = mantissa >> (32 - at % 32);
    digit[0] += (uint32_t)(mantissa << at % 32);
    digit[1] += (uint32_t)above;
    digit[2] += above >> 32;
}

/* ---- a vector of sums --------------------------------------------------------------------- */

/* Digits first to first + EXACT_DIGITS - 1, by lane. */
typedef struct exact_lanes {
    vq digits[EXACT_DIGITS];
    int first;
} exact_lanes;

static void exact_flush(exact_lanes *l, dh_exact *e)
{
    for (int k = 0; k < EXACT_DIGITS; k++) {
        for (int j = 0; j < EXACT_LANES; j++) e->digits[l->first + k] += l->digits[k][j];
        l->digits[k] = (vq){0};
    }
}

/* Digits in the middle of which a sum lies: 16 binades to either side of it are there too. */
static void exact_center(exact_lanes *l, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int at = (int)(bits >> 52) - EXACT_PLACE;
    l->first = DH_MIN(DH_MAX((at - 16) / 32, 0), DH_SQSUM_DIGITS - EXACT_DIGITS);
}

INLINE bool any_lane(vq mask)
{
#if VEC_AVX512
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#elif VEC_AVX2
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    uint64_t any = 0;
    for (int j = 0; j < EXACT_LANES; j++) any |= mask[j];
    return any != 0;
#endif
}

/* False, with nothing added, where one of them has other digits or is not finite. */
INLINE bool exact_add_lanes(exact_lanes *l, vd x)
{
    const vq bits = (vq)x, exponent = bits >> 52;
    const vq is_zero = (vq)(exponent == 0);
    const vq at = (exponent - (uint64_t)(EXACT_PLACE + 32 * l->first)) & ~is_zero;
    if (any_lane((vq)(at > 63) | (vq)(exponent > EXACT_LARGEST))) return false;
    const vq mantissa = ((bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52) & ~is_zero;
    const vq low = mantissa << at, high = (mantissa >> 1) >> (63 - at);
    l->digits[0] += low & 0xffffffffu;
    l->digits[1] += low >> 32;
    l->digits[2] += high & 0xffffffffu;
    l->digits[3] += high >> 32;
    return true;
}

static void exact_add_apart(exact_lanes *l, vd x, dh_exact *e)
{
    exact_flush(l, e);
    exact_center(l, x[0]);
    if (exact_add_lanes(l, x)) return;
    for (int j = 0; j < EXACT_LANES; j++) exact_add(e, x[j]);
}

/* ---- sums of runs -------------------------------------------------------------------------- */

/* Of a run: what sqsum adds up lane by lane. */
INLINE vd run_squares(const float *x)
{
    vd low = {0}, high = {0};
    for (int i = 0; i < EXACT_RUN; i += W) {
        const vf v = *(const vf_mem *)(x + i);
        const vd a = low_doubles(v), b = high_doubles(v);
        low += a * a;
        high += b * b;
    }
    return low + high;
}

/* Rows i and i + half for columns: their first and second halves of blocks of 2 half. */
#if VEC_AVX512
#define EXACT_HALVES(half, a, b, first, second)                                                    \
    do {                                                                                           \
        if ((half) == 4) {                                                                         \
            first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);                       \
            second = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);                    \
        } else if ((half) == 2) {                                                                  \
            first = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);                       \
            second = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);                    \
        } else {                                                                                   \
            first = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);                      \
            second = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);                     \
        }                                                                                          \
    } while (0)
#elif VEC_AVX2
#define EXACT_HALVES(half, a, b, first, second)                                                    \
    do {                                                                                           \
        if ((half) == 2) {                                                                         \
            first = __builtin_shufflevector(a, b, 0, 1, 4, 5);                                     \
            second = __builtin_shufflevector(a, b, 2, 3, 6, 7);                                    \
        } else {                                                                                   \
            first = __builtin_shufflevector(a, b, 0, 4, 2, 6);                                     \
            second = __builtin_shufflevector(a, b, 1, 5, 3, 7);                                    \
        }                                                                                          \
    } while (0)
#else
#define EXACT_HALVES(half, a, b, first, second)                                                    \
    do {                                                                                           \
        first = __builtin_shufflevector(a, b, 0, 2);                                               \
        second = __builtin_shufflevector(a, b, 1, 3);                                              \
    } while (0)
#endif

/* Sums of EXACT_LANES runs behind each other, each with the rounding that sqsum has. */
INLINE vd runs_squares(const float *x)
{
    vd rows[EXACT_LANES];
    for (int i = 0; i < EXACT_LANES; i++) rows[i] = run_squares(x + (ptrdiff_t)i * EXACT_RUN);
    for (int half = EXACT_LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < EXACT_LANES / 2; k++) {
            const int i = k / half * 2 * half + k % half;
            const vd a = rows[i], b = rows[i + half];
            EXACT_HALVES(half, a, b, rows[i], rows[i + half]);
        }
    vd sum = rows[0];
    for (int i = 1; i < EXACT_LANES; i++) sum += rows[i];
    return sum;
}
#undef EXACT_HALVES

/* Adds the squares of x[n], EXACT_RUN at a time. */
static void exact_squares(int64_t n, const float *x, dh_exact *e)
{
    enum { VECTOR = EXACT_LANES * EXACT_RUN };
    exact_lanes lanes = {{{0}}, 0};
    int64_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        const vd sums = runs_squares(x + i);
        if (!exact_add_lanes(&lanes, sums)) exact_add_apart(&lanes, sums, e);
    }
    exact_flush(&lanes, e);
    for (; i < n; i += EXACT_RUN)
        exact_add(e, sum_doubles(true, DH_MIN((int64_t)EXACT_RUN, n - i), x + i));
}

#endif
