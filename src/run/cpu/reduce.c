/* Sums of whole arrays: a fixed number of parts, each summed in order, then the
 * parts in order. */
#include "run/cpu/split.h"

#include <math.h>

enum { PARTS = 256 };

/* First element of part i; parts are whole multiples of 64 elements. */
static int64_t part_start(int64_t n, int64_t i)
{
    return DH_MIN(n, div_up(div_up(n, PARTS), 64) * 64 * i);
}

static double sum_parts(int64_t n, const float *x, double (*sum)(int64_t n, const float *x))
{
    double parts[PARTS];
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < PARTS; i++) {
        const int64_t start = part_start(n, i);
        parts[i] = sum(part_start(n, i + 1) - start, x + start);
    }
    double total = 0;
    for (int64_t i = 0; i < PARTS; i++) total += parts[i];
    return total;
}

double dh_k_sum(int64_t n, const float *x)
{
    return sum_parts(n, x, dh_simd_get()->sum);
}

double dh_k_sqsum(int64_t n, const float *x)
{
    return sum_parts(n, x, dh_simd_get()->sqsum);
}

int64_t dh_k_first_nonfinite(dh_dtype dtype, int64_t n, const void *x)
{
    const dh_simd *simd = dh_simd_get();
    int64_t first = n; /* of the first range with a bad element */
#pragma omp parallel for schedule(static) reduction(min : first) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        if (i < first && !simd->all_finite(dtype, DH_MIN(RANGE, n - i), const_at(dtype, x, i)))
            first = i;
    for (int64_t i = first; i < n; i++)
        if (!isfinite(element(dtype, x, i))) return i;
    return -1;
}
