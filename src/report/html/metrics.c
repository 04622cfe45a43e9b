/* metrics.jsonl as columns.
 *
 * Long runs are thinned: a row of the page is then the mean over `stride` steps, so that
 * the page stays small and no step is left out. */
#include "base/json_text.h"
#include "report/html/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_METRICS_BYTES = 1 << 30, MAX_ROWS = 8192 };

static const char *const columns[] = {"loss",     "lr",        "grad_norm",  "tokens_per_s",
                                      "step_ms",  "aux_loss",  "compute_ms", "local_ms",
                                      "cross_ms", "hidden_ms", "exposed_ms"};
enum { N_COLUMNS = DH_COUNTOF(columns) };

/* A step's line; NAN where a quantity is absent. */
typedef struct row {
    int64_t step;
    double at[N_COLUMNS];
} row;

typedef struct val_row {
    int64_t step;
    double loss;
} val_row;

typedef struct metrics {
    const char *path;
    DH_VEC(row) rows;
    DH_VEC(val_row) vals;
    bool cut; /* the last line is not whole: the run is being written, or was killed */
} metrics;

/* ---- reading -------------------------------------------------------------------------------- */

static double value_of(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static dh_status read_line(dh_ctx *ctx, metrics *m, const json_t *line, size_t number)
{
    const json_t *step = json_object_get(line, "step");
    if (!json_is_integer(step))
        return dh_fail(ctx, DH_EFORMAT, "%s:%zu: an object with an integer \"step\" expected",
                       m->path, number);
    bool ok = true;
    row r = {.step = json_integer_value(step)};
    for (size_t i = 0; i < N_COLUMNS; i++) r.at[i] = value_of(line, columns[i]);
    if (json_object_get(line, "loss")) ok = dh_vec_push(&m->rows, r);
    const val_row v = {r.step, value_of(line, "val_loss")};
    if (ok && isfinite(v.loss)) ok = dh_vec_push(&m->vals, v);
    return ok ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory reading %s", m->path);
}

static dh_status read_text(dh_ctx *ctx, metrics *m, const char *text, size_t n_bytes)
{
    size_t number = 0;
    for (size_t at = 0; at < n_bytes;) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        const size_t length = end ? (size_t)(end - (text + at)) : n_bytes - at;
        json_error_t error;
        json_t *line;
        DH_TRY(dh_json_read(ctx, text + at, length, 0, &error, &line));
        at += length + 1;
        number++;
        if (!line && !end) {
            m->cut = true;
            return DH_OK;
        }
        if (!line)
            return dh_fail(ctx, DH_EFORMAT, "%s:%zu:%d: %s", m->path, number, error.column,
                           error.text);
        dh_status st = read_line(ctx, m, line, number);
        json_decref(line);
        DH_TRY(st);
    }
    return DH_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Mean over rows [from, to) of those that have the quantity. */
static double mean(const metrics *m, size_t column, size_t from, size_t to)
{
    double sum = 0, n = 0;
    for (size_t i = from; i < to; i++) {
        if (!isfinite(m->rows.at[i].at[column])) continue;
        sum += m->rows.at[i].at[column];
        n++;
    }
    return n > 0 ? sum / n : (double)NAN;
}

static bool has_column(const metrics *m, size_t column)
{
    for (size_t i = 0; i < m->rows.n; i++)
        if (isfinite(m->rows.at[i].at[column])) return true;
    return false;
}

static void write_column(const metrics *m, size_t column, size_t stride, json_out *out)
{
    out_key(out, columns[column]);
    out_open(out, '[');
    for (size_t i = 0; i < m->rows.n; i += stride)
        out_num(out, mean(m, column, i, DH_MIN(i + stride, m->rows.n)));
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
    const size_t stride = m->rows.n / MAX_ROWS + 1;
    out_key(out, "metrics");
    out_open(out, '{');
    out_key(out, "stride");
    out_int(out, (int64_t)stride);
    out_key(out, "cut");
    out_int(out, m->cut);
    out_key(out, "step"); /* the last of each row's */
    out_open(out, '[');
    for (size_t i = 0; i < m->rows.n; i += stride)
        out_int(out, m->rows.at[DH_MIN(i + stride, m->rows.n) - 1].step);
    out_close(out, ']');
    for (size_t c = 0; c < N_COLUMNS; c++)
        if (has_column(m, c)) write_column(m, c, stride, out);
    write_validation(m, out);
    out_close(out, '}');
}

/* ---- entry ---------------------------------------------------------------------------------- */

dh_status dh_html_metrics(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    char *path, *text;
    size_t n_bytes;
    DH_TRY(dh_run_folder_path(ctx, run, "metrics.jsonl", &path));
    if (!dh_path_exists(path)) {
        free(path);
        return DH_OK;
    }
    metrics m = {.path = path};
    dh_status st = dh_file_read(ctx, path, MAX_METRICS_BYTES, &text, &n_bytes);
    if (st == DH_OK) {
        st = read_text(ctx, &m, text, n_bytes);
        free(text);
    }
    if (st == DH_OK) {
        write_metrics(&m, out);
        run->n_parts++;
    }
    dh_vec_fini(&m.rows);
    dh_vec_fini(&m.vals);
    free(path);
    return st;
}
