/* Published tables as CSV, and rows of predictions. */
#include "validate/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/csv.h"
#include "base/embedded.h"

extern const dh_embedded dh_published_files[];
extern const size_t dh_published_files_n;

/* ---- CSV ----------------------------------------------------------------------------------- */

/* The line's cells into cells [cap]; *n: how many there are, at most cap + 1. */
static dh_status read_cells(dh_ctx *ctx, dh_csv *csv, dh_arena *arena, const char **cells,
                            size_t cap, size_t *n)
{
    dh_csv_text cell;
    for (*n = 0; *n <= cap && dh_csv_next_cell(csv, &cell); ++*n) {
        if (*n == cap) continue;
        cells[*n] = dh_arena_printf(arena, "%.*s", (int)cell.n, cell.at);
        if (!cells[*n]) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static dh_status add_line(dh_ctx *ctx, dh_published *t, dh_csv *csv)
{
    enum { MAX_COLUMNS = 64 };
    const char *cells[MAX_COLUMNS];
    size_t n;
    DH_TRY(read_cells(ctx, csv, t->arena, cells, MAX_COLUMNS, &n));
    if (n > MAX_COLUMNS || (t->columns && n != t->n_columns))
        return dh_fail(ctx, DH_EFORMAT, "%s:%d: %zu cells where the first line has %zu", t->file,
                       csv->line, n, t->n_columns);
    const char **kept = t->columns ? t->cells + t->n_rows++ * t->n_columns
                                   : (t->columns = DH_NEW_N(t->arena, const char *, n));
    if (!kept) return dh_no_memory(ctx);
    t->n_columns = n;
    memcpy(kept, cells, n * sizeof *kept);
    return DH_OK;
}

/* The first comment says where the table comes from. */
static dh_status read_lines(dh_ctx *ctx, dh_published *t, dh_csv *csv, size_t most_lines)
{
    dh_csv_text line;
    for (;;) {
        const dh_csv_line kind = dh_csv_next_line(csv, &line);
        if (kind == DH_CSV_END) return DH_OK;
        if (kind == DH_CSV_COMMENT && !*t->source)
            t->source = dh_arena_printf(t->arena, "%.*s", (int)line.n, line.at);
        if (!t->source) return dh_no_memory(ctx);
        if (kind != DH_CSV_CELLS) continue;
        DH_TRY(add_line(ctx, t, csv));
        if (!t->cells) t->cells = DH_NEW_N(t->arena, const char *, most_lines * t->n_columns);
        if (!t->cells) return dh_no_memory(ctx);
    }
}

dh_status dh_published_parse(dh_ctx *ctx, dh_arena *arena, const char *text, size_t n_bytes,
                             const char *file, dh_published *table)
{
    dh_csv csv;
    dh_published t = {.arena = arena, .file = file, .source = ""};
    size_t n_lines = 1;
    for (size_t i = 0; i < n_bytes; i++) n_lines += text[i] == '\n';
    dh_csv_begin(&csv, text, n_bytes);
    DH_TRY(read_lines(ctx, &t, &csv, n_lines));
    if (!t.columns) return dh_fail(ctx, DH_EFORMAT, "%s: no line names the columns", file);
    *table = t;
    return DH_OK;
}

dh_status dh_published_read(dh_ctx *ctx, dh_arena *arena, const char *file, dh_published *table)
{
    for (size_t i = 0; i < dh_published_files_n; i++) {
        const dh_embedded *f = &dh_published_files[i];
        if (strcmp(f->name, file) == 0)
            return dh_published_parse(ctx, arena, (const char *)f->text, f->n_bytes, f->name,
                                      table);
    }
    return dh_fail(ctx, DH_EMISSING, "no published table is called %s", file);
}

dh_status dh_published_text(dh_ctx *ctx, const dh_published *t, size_t row, const char *column,
                            const char **text)
{
    for (size_t c = 0; c < t->n_columns; c++) {
        if (strcmp(t->columns[c], column) != 0) continue;
        *text = t->cells[row * t->n_columns + c];
        return DH_OK;
    }
    return dh_fail(ctx, DH_EMISSING, "%s has no column %s", t->file, column);
}

dh_status dh_published_real(dh_ctx *ctx, const dh_published *t, size_t row, const char *column,
                            double *value)
{
    const char *text;
    DH_TRY(dh_published_text(ctx, t, row, column, &text));
    if (dh_parse_f64(text, value)) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: %s is \"%s\", not a number", t->file, row + 1,
                   column, text);
}

dh_status dh_published_int(dh_ctx *ctx, const dh_published *t, size_t row, const char *column,
                           int64_t *value)
{
    const char *text;
    DH_TRY(dh_published_text(ctx, t, row, column, &text));
    if (dh_parse_i64(text, value)) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: %s is \"%s\", not a whole number", t->file,
                   row + 1, column, text);
}

/* ---- predictions ----------------------------------------------------------------------------- */

static double error_of(const dh_validation_table *table, double predicted, double published)
{
    const double off = fabs(predicted - published);
    if (table->measure != DH_VALIDATION_RELATIVE) return off;
    return published != 0 ? 100 * off / fabs(published) : (off != 0 ? INFINITY : 0);
}

dh_status dh_validation_add(dh_ctx *ctx, dh_validation *v, double predicted, double published,
                            const char *fmt, ...)
{
    enum { STEP = 64 };
    char label[160];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(label, sizeof label, fmt, args);
    va_end(args);
    if (v->n_rows % STEP == 0) {
        dh_validation_row *rows = DH_NEW_N(v->arena, dh_validation_row, v->n_rows + STEP);
        if (!rows) return dh_no_memory(ctx);
        if (v->n_rows) memcpy(rows, v->rows, v->n_rows * sizeof *rows);
        v->rows = rows;
    }
    dh_validation_row *row = &v->rows[v->n_rows];
    *row = (dh_validation_row){.label = dh_arena_strdup(v->arena, label),
                               .block = v->block > 0 ? v->block : (int)v->n_rows,
                               .group = v->group,
                               .predicted = predicted,
                               .published = published,
                               .error = error_of(v->table, predicted, published)};
    if (!row->label) return dh_no_memory(ctx);
    v->n_rows++;
    return DH_OK;
}

void dh_validation_series(dh_validation *v, const char *name)
{
    dh_validation_row *row = &v->rows[v->n_rows - 1];
    const size_t n = strlen(row->label), cut = strlen(name);
    DH_CHECK(n > cut && strcmp(row->label + n - cut, name) == 0);
    row->series = row->label + n - cut;
}

void dh_validation_begin_block(dh_validation *v)
{
    v->block++;
}

dh_status dh_validation_group(dh_ctx *ctx, dh_validation *v, const char *fmt, ...)
{
    char label[160];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(label, sizeof label, fmt, args);
    va_end(args);
    if (v->group && strcmp(v->group, label) == 0) return DH_OK;
    dh_validation_begin_block(v);
    v->group = dh_arena_strdup(v->arena, label);
    return v->group ? DH_OK : dh_no_memory(ctx);
}
