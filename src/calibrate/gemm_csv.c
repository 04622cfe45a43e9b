/* A sweep of matrix products as CSV: a line of headings, then one a measurement.
 *
 *   m,n,k,dtype,time_us
 *   4096,4096,4096,bf16,205.3
 *
 * m x k times k x n; `batch` of them where there is such a column. What the product took is a time
 * (time_us, time_ms, time_s; time alone is in us) or a rate (tflops). */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/csv.h"
#include "calibrate/measured.h"

enum { MAX_CELL = 48, MAX_CELLS = 32 };

typedef enum column { M, N, K, BATCH, DTYPE, TOOK, N_COLUMNS } column;

static const struct {
    const char *name;
    column is;
    double ns; /* of a unit of time; 0: none; below 0: a rate in TFLOP/s */
} headings[] = {
    {"m", M, 0},
    {"n", N, 0},
    {"k", K, 0},
    {"batch", BATCH, 0},
    {"dtype", DTYPE, 0},
    {"type", DTYPE, 0},
    {"time", TOOK, 1e3},
    {"time_us", TOOK, 1e3},
    {"us", TOOK, 1e3},
    {"time_ms", TOOK, 1e6},
    {"ms", TOOK, 1e6},
    {"time_s", TOOK, 1e9},
    {"tflops", TOOK, -1},
    {"tflop/s", TOOK, -1},
    {"tflop_per_s", TOOK, -1},
};

typedef struct reader {
    const measured_file *file;
    dh_csv csv;
    char cells[MAX_CELLS][MAX_CELL];
    int n_cells;
    int at[N_COLUMNS]; /* cell of a column; -1: there is none */
    double ns;         /* as in `headings` */
} reader;

static void read_cells(reader *r)
{
    dh_csv_text cell;
    r->n_cells = 0;
    while (r->n_cells < MAX_CELLS && dh_csv_next_cell(&r->csv, &cell))
        snprintf(r->cells[r->n_cells++], MAX_CELL, "%.*s",
                 (int)DH_MIN(cell.n, (size_t)MAX_CELL - 1), cell.at);
}

/* ---- headings ------------------------------------------------------------------------------- */

static void read_heading(reader *r, int cell)
{
    for (size_t i = 0; i < DH_COUNTOF(headings); i++) {
        const column is = headings[i].is;
        if (strcasecmp(r->cells[cell], headings[i].name) != 0 || r->at[is] >= 0) continue;
        r->at[is] = cell;
        if (is == TOOK) r->ns = headings[i].ns;
    }
}

static dh_status read_headings(reader *r)
{
    static const char *const wanted[N_COLUMNS] = {
        [M] = "m", [N] = "n", [K] = "k", [DTYPE] = "dtype", [TOOK] = "time_us or tflops"};
    for (int c = 0; c < N_COLUMNS; c++) r->at[c] = -1;
    for (int i = 0; i < r->n_cells; i++) read_heading(r, i);
    for (int c = 0; c < N_COLUMNS; c++)
        if (wanted[c] && r->at[c] < 0)
            return dh_fail(r->file->ctx, DH_EFORMAT,
                           "%s:%d: no column %s; headings as m,n,k,dtype,time_us or "
                           "m,n,k,dtype,tflops are wanted (or output of nccl-tests, or a trace)",
                           r->file->path, r->csv.line, wanted[c]);
    return DH_OK;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static dh_status read_size(const reader *r, column c, const char *name, int64_t *size)
{
    *size = 1;
    if (r->at[c] < 0) return DH_OK;
    if (dh_parse_i64(r->cells[r->at[c]], size) && *size > 0 && *size <= INT32_MAX) return DH_OK;
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: %s \"%s\": a whole number from 1 to %d is wanted", r->file->path,
                   r->csv.line, name, r->cells[r->at[c]], INT32_MAX);
}

static dh_status read_row(const reader *r)
{
    int64_t m, n, k, batch;
    double took;
    dh_dtype dtype;
    for (int c = 0; c < N_COLUMNS; c++)
        if (r->at[c] >= r->n_cells)
            return dh_fail(r->file->ctx, DH_EFORMAT,
                           "%s:%d: %d cells; as many as there are headings are wanted",
                           r->file->path, r->csv.line, r->n_cells);
    DH_TRY(read_size(r, M, "m", &m));
    DH_TRY(read_size(r, N, "n", &n));
    DH_TRY(read_size(r, K, "k", &k));
    DH_TRY(read_size(r, BATCH, "batch", &batch));
    if (!measured_dtype(r->cells[r->at[DTYPE]], &dtype))
        return dh_fail(r->file->ctx, DH_EFORMAT, "%s:%d: dtype \"%s\": bf16, fp16 or f32 is wanted",
                       r->file->path, r->csv.line, r->cells[r->at[DTYPE]]);
    const double flops = 2 * (double)m * (double)n * (double)k * (double)batch;
    const bool is_number = dh_parse_f64(r->cells[r->at[TOOK]], &took) && measured_is_number(took);
    const double ns = !is_number ? 0 : r->ns < 0 ? flops / (took * 1e12) * 1e9 : took * r->ns;
    if (!measured_is_number(ns))
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: \"%s\": a %s above 0 is wanted, and no product of decades",
                       r->file->path, r->csv.line, r->cells[r->at[TOOK]],
                       r->ns < 0 ? "rate" : "time");
    return measured_add_gemm(r->file, r->csv.line, dtype, m, n, k, batch, ns);
}

dh_status measured_read_gemms(const measured_file *file)
{
    reader r = {.file = file};
    dh_csv_text text;
    dh_csv_line line;
    bool headed = false;
    dh_csv_begin(&r.csv, file->text, file->n_bytes);
    while ((line = dh_csv_next_line(&r.csv, &text)) != DH_CSV_END) {
        if (line != DH_CSV_CELLS) continue;
        read_cells(&r);
        DH_TRY(headed ? read_row(&r) : read_headings(&r));
        headed = true;
    }
    return DH_OK;
}
