/* metrics.jsonl as columns.
 *
 * Long runs are thinned while they are read: a row is then the mean over `stride` steps, so that
 * page and memory stay small and no step is left out. */
#include "base/json_text.h"
#include "base/lines.h"
#include "report/html/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 8192 };

static const char *const columns[] = {"loss",     "lr",        "grad_norm",  "tokens_per_s",
                                      "step_ms",  "aux_loss",  "compute_ms", "local_ms",
                                      "cross_ms", "hidden_ms", "exposed_ms"};
enum { N_COLUMNS = DH_COUNTOF(columns) };

/* Sums over steps, and of how many that had the quantity. */
typedef struct row {
    int64_t step; /* the last */
    double sum[N_COLUMNS], n[N_COLUMNS];
} row;

typedef struct val_row {
    int64_t step;
    double loss;
} val_row;

typedef struct metrics {
    const char *path;
    DH_VEC(row) rows;
    size_t stride, n_in_last; /* steps of a row; of the last one so far */
    DH_VEC(val_row) vals;
    bool cut; /* the last line is not whole: the run is being written, or was killed */
} metrics;

/* ---- reading -------------------------------------------------------------------------------- */

static double value_of(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void add_row(row *to, const row *from)
{
    to->step = from->step;
    for (size_t i = 0; i < N_COLUMNS; i++) {
        to->sum[i] += from->sum[i];
        to->n[i] += from->n[i];
    }
}

/* Two rows become one. */
static void thin(metrics *m)
{
    for (size_t i = 0; i < m->rows.n; i += 2) {
        m->rows.at[i / 2] = m->rows.at[i];
        if (i + 1 < m->rows.n) add_row(&m->rows.at[i / 2], &m->rows.at[i + 1]);
    }
    m->rows.n = (m->rows.n + 1) / 2;
    m->stride *= 2;
}

static bool add_step(metrics *m, const row *r)
{
    if (m->rows.n > 0 && m->n_in_last < m->stride) {
        add_row(&m->rows.at[m->rows.n - 1], r);
        m->n_in_last++;
        return true;
    }
    if (m->rows.n == MAX_ROWS) thin(m); /* an even number: all of them are full */
    m->n_in_last = 1;
    return dh_vec_push(&m->rows, *r);
}

static dh_status read_line(dh_ctx *ctx, metrics *m, const json_t *line, size_t number)
{
    const json_t *step = json_object_get(line, "step");
    if (!json_is_integer(step))
        return dh_fail(ctx, DH_EFORMAT, "%s:%zu: an object with an integer \"step\" expected",
                       m->path, number);
    bool ok = true;
    row r = {.step = json_integer_value(step)};
    for (size_t i = 0; i < N_COLUMNS; i++) {
        const double value = value_of(line, columns[i]);
        r.n[i] = isfinite(value);
        r.sum[i] = isfinite(value) ? value : 0;
    }
    if (json_object_get(line, "loss")) ok = add_step(m, &r);
    const val_row v = {r.step, value_of(line, "val_loss")};
    if (ok && isfinite(v.loss)) ok = dh_vec_push(&m->vals, v);
    return ok ? DH_OK : dh_no_memory_while(ctx, "reading %s", m->path);
}

static dh_status read_one(dh_ctx *ctx, metrics *m, const dh_line *line, size_t number)
{
    json_error_t error;
    json_t *value;
    DH_TRY(dh_json_read(ctx, line->at, line->n, 0, &error, &value));
    m->cut = !value && line->last && !line->whole;
    if (m->cut) return DH_OK;
    if (!value)
        return dh_fail(ctx, DH_EFORMAT, "%s:%zu:%d: %s", m->path, number, error.column, error.text);
    const dh_status st = read_line(ctx, m, value, number);
    json_decref(value);
    return st;
}

static dh_status read_all(dh_ctx *ctx, metrics *m)
{
    dh_lines lines;
    dh_line line;
    size_t number = 0;
    DH_TRY(dh_lines_open(ctx, m->path, &lines));
    dh_status st = dh_lines_next(ctx, &lines, &line);
    while (st == DH_OK && line.at) {
        st = read_one(ctx, m, &line, ++number);
        if (st == DH_OK) st = dh_lines_next(ctx, &lines, &line);
    }
    dh_lines_close(&lines);
    return st;
}

/* ---- writing -------------------------------------------------------------------------------- */

static bool has_column(const metrics *m, size_t column)
{
    for (size_t i = 0; i < m->rows.n; i++)
        if (m->rows.at[i].n[column] > 0) return true;
    return false;
}

static void write_column(const metrics *m, size_t column, json_out *out)
{
    out_key(out, columns[column]);
    out_open(out, '[');
    for (size_t i = 0; i < m->rows.n; i++) {
        const row *r = &m->rows.at[i];
        out_num(out, r->n[column] > 0 ? r->sum[column] / r->n[column] : (double)NAN);
    }
    out_close(out, ']');
}

static void write_validation(const metrics *m, json_out *out)
{
    out_key(out, "val");
    out_open(out, '[');
    for (size_t i = 0; i < m->vals.n; i++) {
        out_open(out, '[');
        out_int(out, m->vals.at[i].step);
        out_num(out, m->vals.at[i].loss);
        out_close(out, ']');
    }
    out_close(out, ']');
}

static void write_metrics(const metrics *m, json_out *out)
{
    out_key(out, "metrics");
    out_open(out, '{');
    out_key(out, "stride");
    out_int(out, (int64_t)m->stride);
    out_key(out, "cut");
    out_int(out, m->cut);
    out_key(out, "step"); /* the last of each row's */
    out_open(out, '[');
    for (size_t i = 0; i < m->rows.n; i++) out_int(out, m->rows.at[i].step);
    out_close(out, ']');
    for (size_t c = 0; c < N_COLUMNS; c++)
        if (has_column(m, c)) write_column(m, c, out);
    write_validation(m, out);
    out_close(out, '}');
}

/* ---- entry ---------------------------------------------------------------------------------- */

dh_status dh_html_metrics(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    char *path;
    DH_TRY(dh_run_folder_path(ctx, run, "metrics.jsonl", &path));
    if (!dh_path_exists(path)) {
        free(path);
        return DH_OK;
    }
    metrics m = {.path = path, .stride = 1};
    dh_status st = read_all(ctx, &m);
    if (st == DH_OK) {
        write_metrics(&m, out);
        run->n_parts++;
    }
    dh_vec_fini(&m.rows);
    dh_vec_fini(&m.vals);
    free(path);
    return st;
}
