/* Rows and columns rounded to 8 bits, as products on devices that multiply such numbers take them.
 * The cpu multiplies what bf16 holds of them, which is all. */
#include "run/cpu/fp8.h"

#include "run/cpu/split.h"

static float size_of(dh_bf16 x)
{
    return dh_bf16_to_f32(x & 0x7fff);
}

/* Their sizes compared as numbers: what is not one counts as none, and stays what it is. */
static float greater(float a, float b)
{
    return b > a ? b : a;
}

static dh_bf16 rounded(dh_fp8_grid grid, dh_bf16 x, int32_t scale)
{
    const float y = dh_fp8_round(grid, dh_bf16_to_f32(x) * dh_power_of_two(scale));
    return dh_f32_to_bf16(y * dh_power_of_two(-scale));
}

void dh_k_fp8_rows(dh_fp8_format format, int64_t N, int64_t C, const dh_bf16 *x, dh_bf16 *y)
{
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        const dh_bf16 *from = x + n * C;
        float greatest = 0;
        for (int64_t c = 0; c < C; c++) greatest = greater(greatest, size_of(from[c]));
        const int32_t scale = dh_fp8_scale(grid, greatest);
        for (int64_t c = 0; c < C; c++) y[n * C + c] = rounded(grid, from[c], scale);
    }
}

/* Stripes of columns, whose scales are found in a first pass over all rows. */
void dh_k_fp8_columns(dh_fp8_format format, int64_t N, int64_t C, const dh_bf16 *x, dh_bf16 *y,
                      float *scales)
{
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t first = 0; first < C; first += DH_STRIPE) {
        const int64_t last = DH_MIN(first + DH_STRIPE, C);
        for (int64_t c = first; c < last; c++) scales[c] = 0;
        for (int64_t n = 0; n < N; n++)
            for (int64_t c = first; c < last; c++)
                scales[c] = greater(scales[c], size_of(x[n * C + c]));
        for (int64_t c = first; c < last; c++) scales[c] = (float)dh_fp8_scale(grid, scales[c]);
        for (int64_t n = 0; n < N; n++)
            for (int64_t c = first; c < last; c++)
                y[n * C + c] = rounded(grid, x[n * C + c], (int32_t)scales[c]);
    }
}
