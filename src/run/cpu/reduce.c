/* Sums of whole arrays: a fixed number of parts, each summed in order, then the
 * parts in order; sums of squares exactly, in any order. */
#include "base/base.h"
#include "run/cpu/split.h"

#include <math.h>
#include <string.h>

enum { PARTS = 256 };

/* First element of part i; parts are whole multiples of 64 elements. */
static int64_t part_start(int64_t n, int64_t i)
{
    return DH_MIN(n, div_up(div_up(n, PARTS), 64) * 64 * i);
}

double dh_k_sum(int64_t n, const float *x)
{
    double parts[PARTS];
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < PARTS; i++) {
        const int64_t start = part_start(n, i);
        parts[i] = simd->sum(part_start(n, i + 1) - start, x + start);
    }
    double total = 0;
    for (int64_t i = 0; i < PARTS; i++) total += parts[i];
    return total;
}

/* ---- exact sums of squares -------------------------------------------------------------- */

static void exact_join(dh_exact *e, const dh_exact *other)
{
    for (int i = 0; i < DH_SQSUM_DIGITS; i++) e->digits[i] += other->digits[i];
    e->odd += other->odd;
}

/* Digits below 2^32, except the last: one form for one value. */
static void exact_carry(dh_exact *e)
{
    for (int i = 0; i + 1 < DH_SQSUM_DIGITS; i++) {
        e->digits[i + 1] += e->digits[i] >> 32;
        e->digits[i] = (uint32_t)e->digits[i];
    }
}

static void exact_write(dh_exact *e, double *digits)
{
    exact_carry(e);
    for (int i = 0; i < DH_SQSUM_DIGITS; i++) digits[i] = (double)e->digits[i];
    if (e->odd != 0) digits[0] = e->odd;
}

static void exact_read(const double *digits, dh_exact *e)
{
    *e = (dh_exact){.odd = isfinite(digits[0]) ? 0 : digits[0]};
    for (int i = 0; i < DH_SQSUM_DIGITS; i++)
        if (isfinite(digits[i])) e->digits[i] = (uint64_t)digits[i];
}

void dh_k_sqsum(int64_t n, const float *x, double *digits)
{
    dh_exact parts[PARTS];
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < PARTS; i++) {
        const int64_t start = part_start(n, i);
        parts[i] = (dh_exact){{0}, 0};
        simd->exact_squares(part_start(n, i + 1) - start, x + start, &parts[i]);
    }
    for (int64_t i = 1; i < PARTS; i++) exact_join(&parts[0], &parts[i]);
    exact_write(&parts[0], digits);
}

void dh_k_exact_sum(int64_t n, const double *rows, double *digits)
{
    dh_exact sum = {{0}, 0}, row;
    for (int64_t i = 0; i < n; i++) {
        exact_read(rows + i * DH_SQSUM_DIGITS, &row);
        exact_join(&sum, &row);
    }
    exact_write(&sum, digits);
}

double dh_k_exact_value(const double *digits)
{
    dh_exact e;
    double value = 0;
    exact_read(digits, &e);
    exact_carry(&e);
    for (int i = DH_SQSUM_DIGITS; i-- > 0;)
        value += ldexp((double)e.digits[i], 32 * i + DH_EXACT_LOWEST);
    return e.odd != 0 ? e.odd : value;
}

int64_t dh_k_first_nonfinite(dh_dtype dtype, int64_t n, const void *x)
{
    const dh_simd *simd = dh_simd_get();
    int64_t first = n; /* begin of the first range with a bad element */
#pragma omp parallel for schedule(static) reduction(min : first) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        if (i < first && !simd->all_finite(dtype, DH_MIN(RANGE, n - i), const_at(dtype, x, i)))
            first = i;
    for (int64_t i = first; i < n; i++)
        if (!isfinite(element(dtype, x, i))) return i;
    return -1;
}
