/* Overlap effectiveness: the paper's measure of a pair, matrices of it, and the completion
 * times that follow from it when nothing better is known. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "pair_build.h"

double dh_oef(int64_t solo_i_ns, int64_t solo_j_ns, int64_t together_ns)
{
    return (double)(solo_i_ns + solo_j_ns - together_ns) / (double)DH_MIN(solo_i_ns, solo_j_ns);
}

bool dh_oef_unusual(double oef)
{
    return oef < -1 || oef > 1;
}

/* Both run at 1/s until the shorter, of a ns, ends after s*a. The longer, of b ns, then has b - a
 * left. From s*a + b - a = P = a + b - oef*a follows s = 2 - oef. */
dh_pair_time dh_pair_time_from_oef(int64_t solo_f_ns, int64_t solo_b_ns, double oef,
                                   dh_pair_source source)
{
    const int64_t shorter = DH_MIN(solo_f_ns, solo_b_ns);
    const int64_t first = DH_MAX(llround((2 - oef) * (double)shorter), 1);
    return (dh_pair_time){first + solo_f_ns - shorter, first + solo_b_ns - shorter, source};
}

double dh_oef_modelled(dh_engine f, dh_engine b)
{
    /* Between the A40, A800 and H100 of the paper's figure 4; its A40 has 0.37 for different
     * wires, where both cross PCIe. */
    static const double oef[DH_N_ENGINE][DH_N_ENGINE] = {
        {0.00, 0.80, 0.95},
        {0.80, 0.10, 0.95},
        {0.95, 0.95, 0.10},
    };
    return oef[f][b];
}

/* ---- CSV -------------------------------------------------------------------------------- */

#define MAX_FILE_BYTES ((size_t)16 << 20)
#define MAX_CELL_CHARS 127
#define MAX_SIDE 4096

typedef struct reader {
    dh_ctx *ctx;
    const char *source;
    dh_csv csv;
    dh_oef_matrix *m;
    DH_VEC(const char *) rows;
    DH_VEC(const char *) columns;
    DH_VEC(double) values;
    DH_VEC(int32_t) unusual;
} reader;

static dh_status no_memory(const reader *r)
{
    return dh_no_memory_while(r->ctx, "reading %s", r->source);
}

/* Next cell of the line as terminated text; *found: there was one. */
static dh_status read_cell(reader *r, char cell[MAX_CELL_CHARS + 1], bool *found)
{
    dh_csv_text text;
    *found = dh_csv_next_cell(&r->csv, &text);
    if (!*found) return DH_OK;
    if (text.n > MAX_CELL_CHARS || memchr(text.at, '\0', text.n) || text.quoted ||
        memchr(text.at, '"', text.n))
        return dh_fail(r->ctx, DH_EFORMAT,
                       "%s: line %d: a cell of %zu bytes; names and numbers of at most %d without "
                       "quotes are expected",
                       r->source, r->csv.line, text.n, MAX_CELL_CHARS);
    memcpy(cell, text.at, text.n);
    cell[text.n] = '\0';
    return DH_OK;
}

static bool is_known(const char *const *names, size_t n, const char *name)
{
    for (size_t k = 0; k < n; k++)
        if (strcmp(names[k], name) == 0) return true;
    return false;
}

static dh_status check_name(const reader *r, const char *kind, const char *const *names, size_t n,
                            const char *name)
{
    if (!*name)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: line %d: %s %zu has no name", r->source,
                       r->csv.line, kind, n + 1);
    if (is_known(names, n, name))
        return dh_fail(r->ctx, DH_EFORMAT, "%s: line %d: a second %s \"%s\"", r->source,
                       r->csv.line, kind, name);
    if (n < MAX_SIDE) return DH_OK;
    return dh_fail(r->ctx, DH_EFORMAT, "%s: line %d: more than %d %ss", r->source, r->csv.line,
                   MAX_SIDE, kind);
}

static dh_status read_columns(reader *r)
{
    char cell[MAX_CELL_CHARS + 1] = "";
    bool found;
    DH_TRY(read_cell(r, cell, &found)); /* anything */
    for (;;) {
        DH_TRY(read_cell(r, cell, &found));
        if (!found) break;
        DH_TRY(check_name(r, "column", r->columns.at, r->columns.n, cell));
        const char *name = dh_arena_strdup(r->m->arena, cell);
        if (!name || !dh_vec_push(&r->columns, name)) return no_memory(r);
    }
    if (r->columns.n > 0) return DH_OK;
    return dh_fail(r->ctx, DH_EFORMAT,
                   "%s: line %d: no columns; the first line is `anything,column,column,...`",
                   r->source, r->csv.line);
}

static dh_status keep_value(reader *r, const char *row, const char *column, const char *cell)
{
    double value;
    if (!dh_parse_f64(cell, &value) || !isfinite(value))
        return dh_fail(r->ctx, DH_EFORMAT, "%s: line %d, row %s, column %s: \"%s\" is no number",
                       r->source, r->csv.line, row, column, cell);
    if (value >= 2)
        return dh_fail(r->ctx, DH_EFORMAT,
                       "%s: line %d, row %s, column %s: %g; at 2 the shorter operator would take "
                       "no time beside the longer one",
                       r->source, r->csv.line, row, column, value);
    if (dh_oef_unusual(value) && !dh_vec_push(&r->unusual, (int32_t)r->values.n))
        return no_memory(r);
    return dh_vec_push(&r->values, value) ? DH_OK : no_memory(r);
}

static dh_status read_row(reader *r)
{
    char cell[MAX_CELL_CHARS + 1] = "";
    bool found;
    DH_TRY(read_cell(r, cell, &found));
    DH_TRY(check_name(r, "row", r->rows.at, r->rows.n, cell));
    const char *name = dh_arena_strdup(r->m->arena, cell);
    if (!name || !dh_vec_push(&r->rows, name)) return no_memory(r);
    size_t n = 0;
    for (;; n++) {
        DH_TRY(read_cell(r, cell, &found));
        if (!found || n == r->columns.n) break;
        DH_TRY(keep_value(r, name, r->columns.at[n], cell));
    }
    if (!found && n == r->columns.n) return DH_OK;
    return dh_fail(r->ctx, DH_EFORMAT, "%s: line %d, row %s: %s %zu values", r->source, r->csv.line,
                   name, found ? "more than" : "less than", r->columns.n);
}

static dh_status read_lines(reader *r, const char *text, size_t n_bytes)
{
    dh_csv_text line;
    dh_csv_begin(&r->csv, text, n_bytes);
    for (;;) {
        const dh_csv_line kind = dh_csv_next_line(&r->csv, &line);
        if (kind == DH_CSV_END) break;
        if (kind == DH_CSV_CELLS) DH_TRY(r->columns.n ? read_row(r) : read_columns(r));
    }
    if (r->rows.n > 0) return DH_OK;
    return dh_fail(r->ctx, DH_EFORMAT, "%s: no rows; `row,value,value,...` is expected", r->source);
}

/* The collected arrays, copied into the matrix's arena. */
static dh_status finish(reader *r)
{
    dh_oef_matrix *m = r->m;
    const char **rows = DH_NEW_N(m->arena, const char *, r->rows.n);
    const char **columns = DH_NEW_N(m->arena, const char *, r->columns.n);
    double *at = DH_NEW_N(m->arena, double, r->values.n);
    int32_t *unusual = DH_NEW_N(m->arena, int32_t, r->unusual.n + 1);
    if (!rows || !columns || !at || !unusual) return no_memory(r);
    memcpy(rows, r->rows.at, r->rows.n * sizeof *rows);
    memcpy(columns, r->columns.at, r->columns.n * sizeof *columns);
    memcpy(at, r->values.at, r->values.n * sizeof *at);
    if (r->unusual.n) memcpy(unusual, r->unusual.at, r->unusual.n * sizeof *unusual);
    m->n_rows = (int32_t)r->rows.n;
    m->n_columns = (int32_t)r->columns.n;
    m->n_unusual = (int32_t)r->unusual.n;
    m->row_names = rows;
    m->column_names = columns;
    m->at = at;
    m->unusual = unusual;
    return DH_OK;
}

static dh_status matrix_create(dh_ctx *ctx, const char *source, dh_oef_matrix **matrix)
{
    dh_arena *arena = dh_arena_create();
    dh_oef_matrix *m = arena ? DH_NEW(arena, dh_oef_matrix) : NULL;
    if (!m) {
        dh_arena_destroy(arena);
        return dh_no_memory_while(ctx, "reading %s", source);
    }
    m->arena = arena;
    *matrix = m;
    return DH_OK;
}

void dh_oef_matrix_destroy(dh_oef_matrix *matrix)
{
    if (matrix) dh_arena_destroy(matrix->arena);
}

dh_status dh_oef_matrix_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *source,
                              dh_oef_matrix **matrix)
{
    reader r = {.ctx = ctx, .source = source};
    DH_TRY(matrix_create(ctx, source, &r.m));
    dh_status st = read_lines(&r, text, n_bytes);
    if (st == DH_OK) st = finish(&r);
    if (st == DH_OK)
        *matrix = r.m;
    else
        dh_oef_matrix_destroy(r.m);
    dh_vec_fini(&r.rows);
    dh_vec_fini(&r.columns);
    dh_vec_fini(&r.values);
    dh_vec_fini(&r.unusual);
    return st;
}

dh_status dh_oef_matrix_read(dh_ctx *ctx, const char *path, dh_oef_matrix **matrix)
{
    char *text;
    size_t n_bytes;
    DH_TRY(dh_file_read(ctx, path, MAX_FILE_BYTES, &text, &n_bytes));
    dh_status st = dh_oef_matrix_parse(ctx, text, n_bytes, path, matrix);
    free(text);
    return st;
}

/* ---- matrix to times -------------------------------------------------------------------- */

/* Places of names in the matrix, -1 where there is none. */
static dh_status find_names(dh_ctx *ctx, const char *kind, const char *const *known,
                            int32_t n_known, const char *const *names, int32_t n, int32_t *at)
{
    for (int32_t k = 0; k < n; k++) {
        at[k] = -1;
        if (!names || !names[k] || !known) continue;
        for (int32_t i = 0; i < n_known && at[k] < 0; i++)
            if (strcmp(known[i], names[k]) == 0) at[k] = i;
        if (at[k] >= 0) continue;
        const char *near = dh_nearest(names[k], known, (size_t)n_known);
        return dh_fail(ctx, DH_EMISSING, "the matrix has no %s \"%.80s\"%s%s%s", kind, names[k],
                       near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
    return DH_OK;
}

static dh_pair_time time_of(const dh_oef_matrix *m, const dh_pair_op *f, int32_t row,
                            const dh_pair_op *b, int32_t column)
{
    if (row < 0 || column < 0)
        return dh_pair_time_from_oef(f->solo_ns, b->solo_ns, dh_oef_modelled(f->engine, b->engine),
                                     DH_PAIR_MODELLED);
    return dh_pair_time_from_oef(f->solo_ns, b->solo_ns,
                                 m->at[(size_t)row * (size_t)m->n_columns + (size_t)column],
                                 DH_PAIR_IMPORTED);
}

dh_status pair_times_from_matrix(dh_ctx *ctx, const dh_oef_matrix *m, dh_pair_strand f,
                                 const char *const *rows, dh_pair_strand b,
                                 const char *const *columns, dh_pair_time *together)
{
    int32_t row[DH_PAIR_MAX_OPS], column[DH_PAIR_MAX_OPS];
    if (DH_MAX(f.n, b.n) > DH_PAIR_MAX_OPS)
        return dh_fail(ctx, DH_EINVAL, "%d and %d operators; at most %d are possible", f.n, b.n,
                       DH_PAIR_MAX_OPS);
    DH_TRY(find_names(ctx, "row", m ? m->row_names : NULL, m ? m->n_rows : 0, rows, f.n, row));
    DH_TRY(find_names(ctx, "column", m ? m->column_names : NULL, m ? m->n_columns : 0, columns, b.n,
                      column));
    for (int32_t i = 0; i < f.n; i++)
        for (int32_t j = 0; j < b.n; j++)
            together[(size_t)i * (size_t)b.n + (size_t)j] =
                time_of(m, &f.ops[i], row[i], &b.ops[j], column[j]);
    return DH_OK;
}
