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

/* Rows of x and y, of C columns, some of which are worked on: [first, last). */
typedef struct stripe {
    int64_t C, first, last;
    const dh_bf16 *x;
    dh_bf16 *y;
} stripe;

static void find_greatest(const stripe *s, int64_t from, int64_t to, float *most)
{
    for (int64_t n = from; n < to; n++)
        for (int64_t c = s->first; c < s->last; c++)
            most[c] = greater(most[c], size_of(s->x[n * s->C + c]));
}

static void round_rows(const stripe *s, dh_fp8_grid grid, int64_t from, int64_t to,
                       const float *scales)
{
    for (int64_t n = from; n < to; n++)
        for (int64_t c = s->first; c < s->last; c++)
            s->y[n * s->C + c] = rounded(grid, s->x[n * s->C + c], (int32_t)scales[c]);
}

/* Expert e's scales, found in a first pass over its rows; then those rows. */
static void round_expert(const stripe *s, dh_fp8_grid grid, int64_t e, int64_t E, int64_t n_runs,
                         const int64_t *offsets, float *scales)
{
    for (int64_t c = s->first; c < s->last; c++) scales[c] = 0;
    for (int64_t r = e; r < n_runs; r += E) find_greatest(s, offsets[r], offsets[r + 1], scales);
    for (int64_t c = s->first; c < s->last; c++) scales[c] = (float)dh_fp8_scale(grid, scales[c]);
    for (int64_t r = e; r < n_runs; r += E) round_rows(s, grid, offsets[r], offsets[r + 1], scales);
}

/* Stripes of columns, of one expert at a time. */
void dh_k_fp8_expert_columns(dh_fp8_format format, int64_t E, int64_t n_runs,
                             const int64_t *offsets, int64_t C, const dh_bf16 *x, dh_bf16 *y,
                             float *scales)
{
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
#pragma omp parallel for collapse(2) schedule(static) if (offsets[n_runs] * C >= PARALLEL_MIN)
    for (int64_t e = 0; e < E; e++) {
        for (int64_t first = 0; first < C; first += DH_STRIPE) {
            const stripe s = {C, first, DH_MIN(first + DH_STRIPE, C), x, y};
            round_expert(&s, grid, e, E, n_runs, offsets, scales + e * C);
        }
    }
}

void dh_k_fp8_columns(dh_fp8_format format, int64_t N, int64_t C, const dh_bf16 *x, dh_bf16 *y,
                      float *scales)
{
    const int64_t all[2] = {0, N};
    dh_k_fp8_expert_columns(format, 1, 1, all, C, x, y, scales);
}
