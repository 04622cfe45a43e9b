/* RMSNorm of all heads of queries together, and of all heads of keys, out of packed rows. A rank
 * may have some of the heads. Sums over columns are therefore left as sums, together with the
 * number of columns; the caller adds both over the ranks. */
#include "run/cpu/split.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 512 }; /* columns that are float32 at a time */

/* Where queries and keys lie in a row. */
typedef struct side {
    int64_t at, n; /* columns */
    const float *w;
} side;

static int64_t row_columns(const dh_heads *h)
{
    return (h->H + 2 * h->KV) * h->D;
}

static float rstd_of(const float *sums, int64_t which, float eps)
{
    return 1.0f / sqrtf(sums[2 * which] / sums[2 * which + 1] + eps);
}

void dh_k_qk_squares(dh_dtype dtype, dh_heads h, const void *qkv, float *sums)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t row = row_columns(&h), n_q = h.H * h.D, n_k = h.KV * h.D;
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < h.N; n++) {
        const void *q = const_at(dtype, qkv, n * row), *k = const_at(dtype, qkv, n * row + n_q);
        float *s = sums + 4 * n;
        s[0] = simd->dot(dtype, n_q, q, q);
        s[1] = (float)n_q;
        s[2] = simd->dot(dtype, n_k, k, k);
        s[3] = (float)n_k;
    }
}

static void scale_columns(const dh_simd *simd, dh_dtype dtype, const side *s, const void *x,
                          float rstd, void *y)
{
    float v[CHUNK];
    for (int64_t c = 0; c < s->n; c += CHUNK) {
        const int64_t n = DH_MIN(CHUNK, s->n - c);
        simd->cast(n, dtype, const_at(dtype, x, c), DH_F32, v);
        for (int64_t i = 0; i < n; i++) v[i] *= rstd * s->w[c + i];
        simd->cast(n, DH_F32, v, dtype, at(dtype, y, c));
    }
}

void dh_k_qk_norm_fwd(dh_dtype dtype, dh_heads h, const void *qkv, const float *sums,
                      const float *w_q, const float *w_k, float eps, void *out)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t row = row_columns(&h), n_q = h.H * h.D, n_k = h.KV * h.D;
    const side sides[2] = {{0, n_q, w_q}, {n_q, n_k, w_k}};
    const size_t v_bytes = (size_t)n_k * dh_dtype_bytes(dtype);
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < h.N; n++) {
        for (int64_t k = 0; k < 2; k++)
            scale_columns(simd, dtype, &sides[k], const_at(dtype, qkv, n * row + sides[k].at),
                          rstd_of(sums + 4 * n, k, eps), at(dtype, out, n * row + sides[k].at));
        memcpy(at(dtype, out, n * row + n_q + n_k), const_at(dtype, qkv, n * row + n_q + n_k),
               v_bytes);
    }
}

/* Sum of w dy x. */
static float weighted_dot(const dh_simd *simd, dh_dtype dtype, const side *s, const void *dy,
                          const void *x)
{
    float g[CHUNK], v[CHUNK], sum = 0;
    for (int64_t c = 0; c < s->n; c += CHUNK) {
        const int64_t n = DH_MIN(CHUNK, s->n - c);
        simd->cast(n, dtype, const_at(dtype, dy, c), DH_F32, g);
        simd->cast(n, dtype, const_at(dtype, x, c), DH_F32, v);
        for (int64_t i = 0; i < n; i++) g[i] *= s->w[c + i];
        sum += simd->dot(DH_F32, n, g, v);
    }
    return sum;
}

void dh_k_qk_norm_dots(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                       const float *w_q, const float *w_k, float *dots)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t row = row_columns(&h), n_q = h.H * h.D, n_k = h.KV * h.D;
    const side sides[2] = {{0, n_q, w_q}, {n_q, n_k, w_k}};
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < h.N; n++)
        for (int64_t k = 0; k < 2; k++) {
            const int64_t c = n * row + sides[k].at;
            dots[4 * n + 2 * k] = weighted_dot(simd, dtype, &sides[k], const_at(dtype, dy, c),
                                               const_at(dtype, qkv, c));
            dots[4 * n + 2 * k + 1] = 0;
        }
}

/* dx = rstd w dy - x rstd^3 dot / columns. */
static void gradient_columns(const dh_simd *simd, dh_dtype dtype, const side *s, const void *dy,
                             const void *x, float rstd, float dot_mean, void *dx)
{
    float g[CHUNK], v[CHUNK];
    const float back = rstd * rstd * dot_mean;
    for (int64_t c = 0; c < s->n; c += CHUNK) {
        const int64_t n = DH_MIN(CHUNK, s->n - c);
        simd->cast(n, dtype, const_at(dtype, dy, c), DH_F32, g);
        simd->cast(n, dtype, const_at(dtype, x, c), DH_F32, v);
        for (int64_t i = 0; i < n; i++) g[i] = rstd * (s->w[c + i] * g[i] - v[i] * back);
        simd->cast(n, DH_F32, g, dtype, at(dtype, dx, c));
    }
}

void dh_k_qk_norm_dgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                        const float *sums, const float *w_q, const float *w_k, const float *dots,
                        float eps, void *dqkv)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t row = row_columns(&h), n_q = h.H * h.D, n_k = h.KV * h.D;
    const side sides[2] = {{0, n_q, w_q}, {n_q, n_k, w_k}};
    const size_t v_bytes = (size_t)n_k * dh_dtype_bytes(dtype);
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < h.N; n++) {
        const float *s = sums + 4 * n, *d = dots + 4 * n;
        for (int64_t k = 0; k < 2; k++) {
            const int64_t c = n * row + sides[k].at;
            gradient_columns(simd, dtype, &sides[k], const_at(dtype, dy, c),
                             const_at(dtype, qkv, c), rstd_of(s, k, eps), d[2 * k] / s[2 * k + 1],
                             at(dtype, dqkv, c));
        }
        memcpy(at(dtype, dqkv, n * row + n_q + n_k), const_at(dtype, dy, n * row + n_q + n_k),
               v_bytes);
    }
}

size_t dh_k_qk_norm_wgrad_workspace(dh_heads h)
{
    return (size_t)(4 * h.N) * sizeof(float);
}

/* Column sums as a norm's, by statistics of each row: mean 0 and rstd of q, then of k. */
void dh_k_qk_norm_wgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                        const float *sums, float eps, float *dw_q, float *dw_k, unsigned accumulate,
                        void *ws)
{
    const dh_simd *simd = dh_simd_get();
    const int64_t row = row_columns(&h), columns[2] = {h.H * h.D, h.KV * h.D};
    const int64_t first = div_up(columns[0], DH_STRIPE);
    const int64_t stripes = first + div_up(columns[1], DH_STRIPE);
    float *stats = ws;
    for (int64_t n = 0; n < h.N; n++)
        for (int64_t k = 0; k < 2; k++) {
            stats[4 * n + 2 * k] = 0;
            stats[4 * n + 2 * k + 1] = rstd_of(sums + 4 * n, k, eps);
        }
#pragma omp parallel for schedule(static) if (h.N * row >= PARALLEL_MIN)
    for (int64_t i = 0; i < stripes; i++) {
        const int k = i >= first;
        const int64_t at0 = k ? columns[0] : 0;
        simd->col_sums(dtype, (dh_row_steps){row, 4}, h.N, columns[k],
                       (i - (k ? first : 0)) * DH_STRIPE, const_at(dtype, dy, at0),
                       const_at(dtype, qkv, at0), stats + (size_t)(2 * k), k ? dw_k : dw_q, NULL,
                       accumulate >> k & 1);
    }
}
