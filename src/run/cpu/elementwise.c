/* Kernels that map rows or elements one to one: residual and dropout,
 * activations, rotary embedding, casts; and the optimizer. */
#include "base/base.h"
#include "config/yarn.h"
#include "run/cpu/split.h"

#include <math.h>
#include <string.h>

/* ---- dropout and residual -------------------------------------------------------------- */

/* Key from (seed, step, site), counter from (column, position, sample). */
const dh_drop_row *dh_drop_row_of(const dh_dropout *drop, int64_t n, dh_drop_row *row)
{
    if (!drop || drop->prob <= 0) return NULL;
    const uint64_t mixed = dh_mix64(dh_mix64(dh_mix64(drop->seed) + drop->step) + drop->site);
    const uint64_t sample = (uint64_t)drop->row_sample[n];
    *row = (dh_drop_row){
        .key = {{(uint32_t)mixed, (uint32_t)(mixed >> 32)}},
        .pos = (uint32_t)drop->row_pos[n],
        .sample_lo = (uint32_t)sample,
        .sample_hi = (uint32_t)(sample >> 32),
        .threshold = (uint32_t)ceil((double)drop->prob * 16777216.0),
        .scale = 1.0f / (1.0f - drop->prob),
    };
    return row;
}

void dh_k_residual(dh_dtype dtype, int64_t N, int64_t C, const void *x, const void *p,
                   const float *bias, const dh_dropout *drop, void *out)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        dh_drop_row row;
        simd->residual(dtype, 0, C, const_at(dtype, x, n * C), const_at(dtype, p, n * C), bias,
                       dh_drop_row_of(drop, n, &row), at(dtype, out, n * C));
    }
}

void dh_k_dropout_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dout,
                       const dh_dropout *drop, void *dp)
{
    dh_k_residual(dtype, N, C, NULL, dout, NULL, drop, dp);
}

/* ---- activations ----------------------------------------------------------------------- */

void dh_k_gelu_fwd(dh_dtype dtype, int64_t n, const void *h, void *g)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        simd->gelu_fwd(dtype, DH_MIN(RANGE, n - i), const_at(dtype, h, i), at(dtype, g, i));
}

void dh_k_gelu_bwd(dh_dtype dtype, int64_t n, const void *dg, const void *h, void *dh)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        simd->gelu_bwd(dtype, DH_MIN(RANGE, n - i), const_at(dtype, dg, i), const_at(dtype, h, i),
                       at(dtype, dh, i));
}

void dh_k_swiglu_fwd(dh_dtype dtype, int64_t N, int64_t F, const void *h, void *g)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * F >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        simd->swiglu_fwd(dtype, F, const_at(dtype, h, 2 * n * F), at(dtype, g, n * F));
}

void dh_k_swiglu_bwd(dh_dtype dtype, int64_t N, int64_t F, const void *dg, const void *h, void *dh)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * F >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        simd->swiglu_bwd(dtype, F, const_at(dtype, dg, n * F), const_at(dtype, h, 2 * n * F),
                         at(dtype, dh, 2 * n * F));
}

void dh_k_geglu_fwd(dh_dtype dtype, int64_t N, int64_t F, const void *h, void *g)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * F >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        simd->geglu_fwd(dtype, F, const_at(dtype, h, 2 * n * F), at(dtype, g, n * F));
}

void dh_k_geglu_bwd(dh_dtype dtype, int64_t N, int64_t F, const void *dg, const void *h, void *dh)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * F >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        simd->geglu_bwd(dtype, F, const_at(dtype, dg, n * F), const_at(dtype, h, 2 * n * F),
                        at(dtype, dh, 2 * n * F));
}

void dh_k_softcap_fwd(int64_t n, float c, const float *x, float *y)
{
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) y[i] = c * tanhf(x[i] / c);
}

void dh_k_softcap_bwd(dh_dtype dtype, int64_t n, float c, const void *dy, const float *y, void *dx)
{
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++)
        set_element(dtype, dx, i, element(dtype, dy, i) * (1.0f - y[i] / c * (y[i] / c)));
}

/* ---- rotary position embedding --------------------------------------------------------- */

#define PI 3.14159265358979323846

/* Llama 3.1's scaling (HF _compute_llama3_parameters): wavelengths longer than
 * original/low are stretched by factor, shorter than original/high are kept, and
 * between them the two are blended. */
static double llama3_frequency(const dh_rope *rope, double frequency)
{
    const double wavelength = 2 * PI / frequency, original = (double)rope->original_max_seq;
    if (wavelength < original / rope->high_freq_factor) return frequency;
    if (wavelength > original / rope->low_freq_factor) return frequency / rope->factor;
    const double smooth = (original / wavelength - rope->low_freq_factor) /
                          (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Channel pair, of D / 2, that turns so often in the first training's length. */
static double yarn_pair(const dh_rope *rope, int64_t D, double turns)
{
    return (double)D * log((double)rope->original_max_seq / (turns * 2 * PI)) /
           (2 * log(rope->theta));
}

/* Pairs that turn fast are kept, those that turn slowly are stretched, and between them the two are
 * blended (HF _compute_yarn_parameters). */
static double yarn_frequency(const dh_rope *rope, int64_t D, int64_t i, double frequency)
{
    const double low = fmax(floor(yarn_pair(rope, D, rope->beta_fast)), 0);
    double high = fmin(ceil(yarn_pair(rope, D, rope->beta_slow)), (double)(D - 1));
    if (high == low) high += 0.001;
    const double slow = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return slow * frequency / rope->factor + (1 - slow) * frequency;
}

void dh_k_longrope_table(const dh_rope *rope, const dh_longrope *l, int64_t max_pos, int64_t D,
                         float *table)
{
    const bool is_long = max_pos > rope->original_max_seq;
    const double *factors = is_long ? l->long_factors.at : l->short_factors.at;
    const double magnitude = is_long ? l->long_mscale : l->short_mscale;
    for (int64_t i = 0; i < D / 2; i++) {
        const double frequency = pow(rope->theta, -2.0 * (double)i / (double)D) / factors[i];
        for (int64_t pos = 0; pos < max_pos; pos++) {
            table[pos * D + i] = (float)(magnitude * cos((double)pos * frequency));
            table[pos * D + D / 2 + i] = (float)(magnitude * sin((double)pos * frequency));
        }
    }
}

void dh_k_rope_table(const dh_rope *rope, int64_t max_pos, int64_t D, float *table)
{
    const int64_t half = D / 2;
    const double magnitude = dh_rope_magnitude(rope);
    for (int64_t i = 0; i < half; i++) {
        /* theta 0: nothing is turned. */
        double frequency = rope->theta > 0 ? pow(rope->theta, -2.0 * (double)i / (double)D) : 0;
        if (rope->scaling == DH_ROPE_SCALING_LLAMA3) frequency = llama3_frequency(rope, frequency);
        if (rope->scaling == DH_ROPE_SCALING_LINEAR) frequency /= rope->factor;
        if (rope->scaling == DH_ROPE_SCALING_YARN)
            frequency = yarn_frequency(rope, D, i, frequency);
        for (int64_t pos = 0; pos < max_pos; pos++) {
            table[pos * D + i] = (float)(magnitude * cos((double)pos * frequency));
            table[pos * D + half + i] = (float)(magnitude * sin((double)pos * frequency));
        }
    }
}

void dh_k_rope(dh_dtype dtype, int64_t N, int64_t T, int64_t H, int64_t KV, int64_t D,
               const void *qkv, const float *table, const int32_t *row_pos, bool inverse, void *out)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t rotated = (H + KV) * D, row = rotated + KV * D;
    const size_t v_bytes = (size_t)(KV * D) * dh_dtype_bytes(dtype);
#pragma omp parallel for schedule(static) if (N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        const int64_t pos = row_pos ? row_pos[n] : n % T;
        simd->rope(dtype, H + KV, D, const_at(dtype, qkv, n * row), table + pos * D,
                   inverse ? -1.0f : 1.0f, at(dtype, out, n * row));
        if (out != qkv)
            memcpy(at(dtype, out, n * row + rotated), const_at(dtype, qkv, n * row + rotated),
                   v_bytes);
    }
}

/* ---- whole arrays ---------------------------------------------------------------------- */

void dh_k_cast(int64_t n, dh_dtype from, const void *x, dh_dtype to, void *y)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        simd->cast(DH_MIN(RANGE, n - i), from, const_at(from, x, i), to, at(to, y, i));
}

void dh_k_cast_rows(int64_t rows, int64_t n, dh_dtype from, const void *x, int64_t x_row,
                    dh_dtype to, void *y, int64_t y_row)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        simd->cast(n, from, const_at(from, x, r * x_row), to, at(to, y, r * y_row));
}

void dh_k_add(dh_dtype dtype, int64_t n, const void *a, const void *b, void *y)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        simd->add(dtype, DH_MIN(RANGE, n - i), const_at(dtype, a, i), const_at(dtype, b, i),
                  at(dtype, y, i));
}

void dh_k_add_rows(int64_t rows, int64_t n, const float *x, int64_t x_row, float *y, int64_t y_row)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        simd->add(DH_F32, n, y + r * y_row, x + r * x_row, y + r * y_row);
}

static void sum_range(dh_dtype dtype, int64_t at0, int64_t n, int n_x, const void *const *x,
                      void *y)
{
    const dh_simd *simd = dh_simd_get();
    float sum[RANGE], next[RANGE];
    simd->cast(n, dtype, const_at(dtype, x[0], at0), DH_F32, sum);
    for (int j = 1; j < n_x; j++) {
        simd->cast(n, dtype, const_at(dtype, x[j], at0), DH_F32, next);
        simd->add(DH_F32, n, sum, next, sum);
    }
    simd->cast(n, DH_F32, sum, dtype, at(dtype, y, at0));
}

void dh_k_sum_ordered(dh_dtype dtype, int64_t n, int n_x, const void *const *x, void *y)
{
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE) sum_range(dtype, i, DH_MIN(RANGE, n - i), n_x, x, y);
}

void dh_k_scale(dh_dtype dtype, int64_t n, float factor, const void *x, void *y)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        simd->scale(dtype, DH_MIN(RANGE, n - i), factor, const_at(dtype, x, i), at(dtype, y, i));
}

void dh_k_add_scaled_rows(dh_dtype dtype, int64_t rows, int64_t n, float factor, const void *x,
                          void *y, int64_t y_row)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        simd->blend(dtype, n, 1.0f, at(dtype, y, r * y_row), factor, const_at(dtype, x, r * n));
}

void dh_k_scale_rows(dh_dtype dtype, int64_t rows, int64_t n, float factor, const void *x,
                     int64_t x_row, void *y)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        simd->scale(dtype, n, factor, const_at(dtype, x, r * x_row), at(dtype, y, r * n));
}

enum { COPY_BYTES = 1 << 18 };

void dh_k_copy(size_t n_bytes, const void *x, void *y)
{
#pragma omp parallel for schedule(static) if (n_bytes >= COPY_BYTES)
    for (size_t i = 0; i < n_bytes; i += COPY_BYTES)
        memcpy((char *)y + i, (const char *)x + i, DH_MIN((size_t)COPY_BYTES, n_bytes - i));
}

void dh_k_zero(size_t n_bytes, void *y)
{
#pragma omp parallel for schedule(static) if (n_bytes >= COPY_BYTES)
    for (size_t i = 0; i < n_bytes; i += COPY_BYTES)
        memset((char *)y + i, 0, DH_MIN((size_t)COPY_BYTES, n_bytes - i));
}

void dh_k_keep(int64_t n, const float *p, const float *m, const float *v, float *old)
{
    const size_t n_bytes = (size_t)n * sizeof *old;
    dh_k_copy(n_bytes, p, old);
    dh_k_copy(n_bytes, m, old + n);
    dh_k_copy(n_bytes, v, old + 2 * n);
}

void dh_k_restore(int64_t n, const float *old, float *p, float *m, float *v, dh_bf16 *copy)
{
    const size_t n_bytes = (size_t)n * sizeof *old;
    dh_k_copy(n_bytes, old, p);
    dh_k_copy(n_bytes, old + n, m);
    dh_k_copy(n_bytes, old + 2 * n, v);
    if (copy) dh_k_cast(n, DH_F32, p, DH_BF16, copy);
}

void dh_k_adamw(const dh_adamw *opt, int64_t n, const float *g, float *p, float *m, float *v,
                dh_bf16 *copy)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MIN)
    for (int64_t i = 0; i < n; i += RANGE)
        simd->adamw(opt, DH_MIN(RANGE, n - i), g + i, p + i, m + i, v + i, copy ? copy + i : NULL);
}
