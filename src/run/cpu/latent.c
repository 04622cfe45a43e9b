/* Latent attention's rows: heads of few channels laid out as packed qkv, and heads' results without
 * what fills them up. Rows are copied once; the rotation is a small part of it. */
#include <string.h>

#include "base/base.h"
#include "run/cpu/split.h"

/* ---- rotation -------------------------------------------------------------------------------- */

/* Channels of pair i of R that are turned together. */
static int64_t first_of(const dh_latent *l, int64_t i)
{
    return l->pairs ? 2 * i : i;
}

static int64_t second_of(const dh_latent *l, int64_t i)
{
    return l->pairs ? 2 * i + 1 : i + l->R / 2;
}

static void rotate(const dh_latent *l, dh_dtype dtype, const void *x, const float *turn, void *y)
{
    const int64_t half = l->R / 2;
    for (int64_t i = 0; i < half; i++) {
        const float a = element(dtype, x, first_of(l, i)), b = element(dtype, x, second_of(l, i));
        set_element(dtype, y, i, a * turn[i] - b * turn[half + i]);
        set_element(dtype, y, half + i, b * turn[i] + a * turn[half + i]);
    }
}

/* Gradient of rotate from the sum of n of its results' gradients, `step` channels apart. */
static void rotate_back(const dh_latent *l, dh_dtype dtype, const void *dy, int64_t n, int64_t step,
                        const float *turn, void *dx)
{
    const int64_t half = l->R / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = 0, b = 0;
        for (int64_t k = 0; k < n; k++) {
            a += element(dtype, dy, k * step + i);
            b += element(dtype, dy, k * step + half + i);
        }
        set_element(dtype, dx, first_of(l, i), a * turn[i] + b * turn[half + i]);
        set_element(dtype, dx, second_of(l, i), b * turn[i] - a * turn[half + i]);
    }
}

/* ---- packing --------------------------------------------------------------------------------- */

static void copy(dh_dtype dtype, int64_t n, const void *x, int64_t from, void *y, int64_t to)
{
    memcpy(at(dtype, y, to), const_at(dtype, x, from), (size_t)n * dh_dtype_bytes(dtype));
}

static void zero(dh_dtype dtype, int64_t n, void *y, int64_t to)
{
    if (n > 0) memset(at(dtype, y, to), 0, (size_t)n * dh_dtype_bytes(dtype));
}

/* One row. */
static void pack(const dh_latent *l, dh_dtype dtype, const void *q, const void *kv,
                 const void *k_rot, const float *turn, void *qkv)
{
    const int64_t D = l->D, P = D - l->R, V = l->V;
    for (int64_t h = 0; h < l->H; h++) {
        const int64_t k = (l->H + h) * D, v = (2 * l->H + h) * D, of_head = h * (P + V);
        copy(dtype, P, q, h * D, qkv, h * D);
        rotate(l, dtype, const_at(dtype, q, h * D + P), turn, at(dtype, qkv, h * D + P));
        copy(dtype, P, kv, of_head, qkv, k);
        if (h == 0)
            rotate(l, dtype, k_rot, turn, at(dtype, qkv, k + P));
        else
            copy(dtype, l->R, qkv, l->H * D + P, qkv, k + P);
        copy(dtype, V, kv, of_head + P, qkv, v);
        zero(dtype, D - V, qkv, v + V);
    }
}

void dh_k_latent_pack(const dh_latent *l, dh_dtype dtype, const void *q, const void *kv,
                      const void *k_rot, const float *table, const int32_t *pos, void *qkv)
{
    const int64_t row = 3 * l->H * l->D, kv_row = l->H * (l->D - l->R + l->V);
#pragma omp parallel for schedule(static) if (l->N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < l->N; n++)
        pack(l, dtype, const_at(dtype, q, n * l->H * l->D), const_at(dtype, kv, n * kv_row),
             const_at(dtype, k_rot, n * l->R), table + pos[n] * l->R, at(dtype, qkv, n * row));
}

static void unpack(const dh_latent *l, dh_dtype dtype, const void *dqkv, const float *turn,
                   void *dq, void *dkv, void *dk_rot)
{
    const int64_t D = l->D, P = D - l->R, V = l->V;
    for (int64_t h = 0; h < l->H; h++) {
        const int64_t of_head = h * (P + V);
        copy(dtype, P, dqkv, h * D, dq, h * D);
        rotate_back(l, dtype, const_at(dtype, dqkv, h * D + P), 1, 0, turn,
                    at(dtype, dq, h * D + P));
        copy(dtype, P, dqkv, (l->H + h) * D, dkv, of_head);
        copy(dtype, V, dqkv, (2 * l->H + h) * D, dkv, of_head + P);
    }
    rotate_back(l, dtype, const_at(dtype, dqkv, l->H * D + P), l->H, D, turn, dk_rot);
}

void dh_k_latent_pack_bwd(const dh_latent *l, dh_dtype dtype, const void *dqkv, const float *table,
                          const int32_t *pos, void *dq, void *dkv, void *dk_rot)
{
    const int64_t row = 3 * l->H * l->D, kv_row = l->H * (l->D - l->R + l->V);
#pragma omp parallel for schedule(static) if (l->N * row >= PARALLEL_MIN)
    for (int64_t n = 0; n < l->N; n++)
        unpack(l, dtype, const_at(dtype, dqkv, n * row), table + pos[n] * l->R,
               at(dtype, dq, n * l->H * l->D), at(dtype, dkv, n * kv_row),
               at(dtype, dk_rot, n * l->R));
}

/* ---- cutting --------------------------------------------------------------------------------- */

void dh_k_latent_cut(const dh_latent *l, dh_dtype dtype, const void *o, void *cut)
{
#pragma omp parallel for schedule(static) if (l->N * l->H * l->D >= PARALLEL_MIN)
    for (int64_t i = 0; i < l->N * l->H; i++) copy(dtype, l->V, o, i * l->D, cut, i * l->V);
}

void dh_k_latent_cut_bwd(const dh_latent *l, dh_dtype dtype, const void *dcut, void *dout)
{
#pragma omp parallel for schedule(static) if (l->N * l->H * l->D >= PARALLEL_MIN)
    for (int64_t i = 0; i < l->N * l->H; i++) {
        copy(dtype, l->V, dcut, i * l->V, dout, i * l->D);
        zero(dtype, l->D - l->V, dout, i * l->D + l->V);
    }
}
