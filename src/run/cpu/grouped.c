/* Grouped GEMM: runs of rows, each times the matrix of its expert.
 *
 * The number of a run's rows is known only at run time, while a fast bf16 GEMM is planned for one
 * shape (gemm.c). So plans are made for TILE, 2 TILE, 4 TILE, ... rows. A run is cut into the
 * largest that fit; the rest, less than TILE rows, is copied into a tile filled up with zeros.
 * Float32 takes sgemm, which needs no plan, on the whole run. The cuts depend on the counts alone,
 * so equal inputs give equal bits. */
#include "base/base.h"
#include "run/cpu/split.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 32,
    N_SIZES = 7 /* up to 2048 rows at once */
};

struct dh_grouped {
    dh_grouped_desc d;
    int threads;             /* team size of every run */
    int n_sizes;             /* bf16 */
    dh_gemm *tiles[N_SIZES]; /* for TILE << i rows */
    size_t tile_ws;
};

/* ---- shapes ---------------------------------------------------------------------------- */

/* Columns of operand a, and of the second one that has rows of its own: the result's, or x's. */
static int64_t a_cols(const dh_grouped_desc *d)
{
    return d->kind == DH_GROUPED_FORWARD ? d->I : d->O;
}

static int64_t row_cols(const dh_grouped_desc *d)
{
    return d->kind == DH_GROUPED_FORWARD ? d->O : d->I;
}

static dh_gemm_desc tile_shape(const dh_grouped_desc *d, int64_t rows)
{
    if (d->kind == DH_GROUPED_WGRAD)
        return (dh_gemm_desc){.m = d->O,
                              .n = d->I,
                              .k = rows,
                              .trans_a = true,
                              .in = d->dtype,
                              .out = DH_F32,
                              .accumulate = true};
    return (dh_gemm_desc){.m = rows,
                          .n = row_cols(d),
                          .k = a_cols(d),
                          .trans_b = d->kind == DH_GROUPED_FORWARD,
                          .in = d->dtype,
                          .out = d->dtype};
}

static size_t padded(int64_t n_elements, dh_dtype dtype)
{
    return (size_t)div_up(n_elements * (int64_t)dh_dtype_bytes(dtype), 64) * 64;
}

/* ---- object ---------------------------------------------------------------------------- */

static dh_status plan_tiles(dh_ctx *ctx, dh_grouped *g)
{
    for (int64_t rows = TILE; g->n_sizes < N_SIZES; rows *= 2) {
        const dh_gemm_desc shape = tile_shape(&g->d, rows);
        DH_TRY(dh_gemm_create(ctx, &shape, &g->tiles[g->n_sizes++]));
        const size_t ws = dh_gemm_workspace(g->tiles[g->n_sizes - 1]);
        g->tile_ws = DH_MAX(g->tile_ws, ws);
        if (rows * 2 > g->d.rows) break;
    }
    return DH_OK;
}

dh_status dh_grouped_create(dh_ctx *ctx, const dh_grouped_desc *desc, dh_grouped **grouped)
{
    dh_grouped *g = calloc(1, sizeof *g);
    if (!g) return dh_no_memory(ctx);
    g->d = *desc;
    g->threads = dh_k_fit_team();
    dh_status st = desc->dtype == DH_F32 ? DH_OK : plan_tiles(ctx, g);
    if (st != DH_OK) {
        dh_grouped_destroy(g);
        return st;
    }
    *grouped = g;
    return DH_OK;
}

void dh_grouped_destroy(dh_grouped *grouped)
{
    if (!grouped) return;
    for (int i = 0; i < grouped->n_sizes; i++) dh_gemm_destroy(grouped->tiles[i]);
    free(grouped);
}

/* A tile of each operand with rows, then what its product needs. */
size_t dh_grouped_workspace(const dh_grouped *g)
{
    if (g->d.dtype == DH_F32) return 0;
    return padded(TILE * a_cols(&g->d), g->d.dtype) + padded(TILE * row_cols(&g->d), g->d.dtype) +
           (g->tile_ws + 63) / 64 * 64;
}

/* ---- one run ----------------------------------------------------------------------------- */

static dh_status run_f32(dh_ctx *ctx, const dh_grouped_desc *d, int64_t rows, const float *a,
                         const float *b, float *c)
{
    dnnl_status_t status = dnnl_success;
    switch (d->kind) {
    case DH_GROUPED_FORWARD:
        status = dnnl_sgemm('N', 'T', rows, d->O, d->I, 1.0f, a, d->I, b, d->I, 0.0f, c, d->O);
        break;
    case DH_GROUPED_DGRAD:
        status = dnnl_sgemm('N', 'N', rows, d->I, d->O, 1.0f, a, d->O, b, d->I, 0.0f, c, d->I);
        break;
    case DH_GROUPED_WGRAD:
        status = dnnl_sgemm('T', 'N', d->O, d->I, rows, 1.0f, a, d->O, b, d->I, 1.0f, c, d->I);
        break;
    }
    return status == dnnl_success
               ? DH_OK
               : dh_fail(ctx, DH_EINTERNAL, "oneDNN: sgemm of a group: status %d", (int)status);
}

/* Rows to a tile of TILE rows, zeros behind them. */
static void *to_tile(dh_dtype dtype, int64_t rows, int64_t cols, const void *from, void *tile)
{
    const size_t row = (size_t)cols * dh_dtype_bytes(dtype);
    memcpy(tile, from, (size_t)rows * row);
    memset((char *)tile + (size_t)rows * row, 0, (size_t)(TILE - rows) * row);
    return tile;
}

/* Fewer rows than a tile. */
static dh_status run_rest(dh_ctx *ctx, const dh_grouped *g, int64_t rows, const void *a,
                          const void *b, void *c, char *ws)
{
    const dh_grouped_desc *d = &g->d;
    char *tile_a = ws, *other = tile_a + padded(TILE * a_cols(d), d->dtype);
    char *scratch = other + padded(TILE * row_cols(d), d->dtype);
    to_tile(d->dtype, rows, a_cols(d), a, tile_a);
    if (d->kind == DH_GROUPED_WGRAD) {
        to_tile(d->dtype, rows, row_cols(d), b, other);
        return dh_gemm_run(ctx, g->tiles[0], tile_a, other, NULL, c, scratch);
    }
    DH_TRY(dh_gemm_run(ctx, g->tiles[0], tile_a, b, NULL, other, scratch));
    memcpy(c, other, (size_t)(rows * row_cols(d)) * dh_dtype_bytes(d->dtype));
    return DH_OK;
}

static dh_status run_tiles(dh_ctx *ctx, const dh_grouped *g, int64_t rows, const void *a,
                           const void *b, void *c, char *ws)
{
    const dh_grouped_desc *d = &g->d;
    const bool wgrad = d->kind == DH_GROUPED_WGRAD;
    char *scratch = ws + dh_grouped_workspace(g) - (g->tile_ws + 63) / 64 * 64;
    int64_t done = 0;
    for (int i = g->n_sizes - 1; i >= 0; i--)
        for (const int64_t n = (int64_t)TILE << i; rows - done >= n; done += n) {
            const int64_t at_a = done * a_cols(d), at_row = done * row_cols(d);
            DH_TRY(dh_gemm_run(ctx, g->tiles[i], const_at(d->dtype, a, at_a),
                               wgrad ? const_at(d->dtype, b, at_row) : b, NULL,
                               wgrad ? c : at(d->dtype, c, at_row), scratch));
        }
    if (done == rows) return DH_OK;
    const int64_t at_a = done * a_cols(d), at_row = done * row_cols(d);
    return run_rest(ctx, g, rows - done, const_at(d->dtype, a, at_a),
                    wgrad ? const_at(d->dtype, b, at_row) : b, wgrad ? c : at(d->dtype, c, at_row),
                    ws);
}

/* ---- all runs ------------------------------------------------------------------------------ */

static dh_status run_all(dh_ctx *ctx, const dh_grouped *g, int64_t n_runs, const int64_t *offsets,
                         const void *a, const void *b, void *c, void *ws)
{
    const dh_grouped_desc *d = &g->d;
    const bool wgrad = d->kind == DH_GROUPED_WGRAD;
    for (int64_t s = 0; s < n_runs; s++) {
        const int64_t first = offsets[s], rows = offsets[s + 1] - first;
        const int64_t matrix = s % d->E * d->O * d->I;
        const void *from = const_at(d->dtype, a, first * a_cols(d));
        const void *with = const_at(d->dtype, b, wgrad ? first * d->I : matrix);
        void *to = wgrad ? (void *)((float *)c + matrix) : at(d->dtype, c, first * row_cols(d));
        if (rows == 0) continue;
        DH_TRY(d->dtype == DH_F32 ? run_f32(ctx, d, rows, from, with, to)
                                  : run_tiles(ctx, g, rows, from, with, to, ws));
    }
    return DH_OK;
}

dh_status dh_grouped_run(dh_ctx *ctx, const dh_grouped *g, int64_t n_runs, const int64_t *offsets,
                         const void *a, const void *b, void *c, void *ws)
{
    const dh_grouped_desc *d = &g->d;
    const int64_t used = offsets[n_runs];
    if (d->kind == DH_GROUPED_WGRAD) {
        if (!d->accumulate) dh_k_zero((size_t)(d->E * d->O * d->I) * sizeof(float), c);
    } else if (used < d->rows) {
        dh_k_zero((size_t)((d->rows - used) * row_cols(d)) * dh_dtype_bytes(d->dtype),
                  at(d->dtype, c, used * row_cols(d)));
    }
    /* The team size decides how oneDNN splits sums, hence the bits. */
    const int threads = dh_k_fit_team();
    if (threads != g->threads) omp_set_num_threads(g->threads);
    dh_status st = run_all(ctx, g, n_runs, offsets, a, b, c, ws);
    if (threads != g->threads) omp_set_num_threads(threads);
    return st;
}
