/* Figures from metrics, summary, pairs and tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "describe/grid.h"
#include "report/html/chart.h"
#include "report/html/figure.h"
#include "validate/draw.h"

static const json_t *get(const json_t *value, const char *key)
{
    return json_object_get(value, key);
}

static double number(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* A comma, and the number where there is one. */
static void add_number(dh_str *csv, double value)
{
    dh_str_append(csv, ",", 1);
    if (isfinite(value)) dh_str_printf(csv, "%.9g", value);
}

/* ---- curves over steps ----------------------------------------------------------------------- */

/* Of metrics.jsonl, by the names of their figures. */
typedef struct quantity {
    const char *figure, *key, *title, *unit;
    bool from_zero;
} quantity;

static const quantity quantities[] = {
    {"loss", "loss", "Loss", "loss (nats per token)", false},
    {"learning-rate", "lr", "Learning rate", "learning rate", true},
    {"gradient-norm", "grad_norm", "Gradient norm", "gradient norm", true},
    {"tokens-per-second", "tokens_per_s", "Speed of training", "tokens per second", true},
    {"load-balancing-loss", "aux_loss", "Load-balancing loss", "load-balancing loss", false}};

static const int run_looks[] = {LOOK_FORWARD, LOOK_BACKWARD, LOOK_LOCAL,
                                LOOK_CROSS,   LOOK_WEIGHTS,  LOOK_OTHER};

static void add_point(chart_curve *c, double x, double y, dh_str *out)
{
    if (!dh_vec_push(&c->points, (chart_point){x, y})) out->failed = true;
}

/* Rows of a run by step: the quantity, and of the loss also that of validation. */
static void add_steps(const figured_run *run, const quantity *q, chart_curve *curve,
                      chart_curve *validation, dh_figure *f)
{
    const json_t *metrics = get(run->data, "metrics"), *steps = get(metrics, "step");
    const json_t *values = get(metrics, q->key);
    const json_t *vals = validation ? get(metrics, "val") : NULL;
    const size_t n = json_array_size(values), n_vals = json_array_size(vals);
    for (size_t i = 0, k = 0; i < n || k < n_vals;) {
        const json_t *val = json_array_get(vals, k);
        const double own = i < n ? number(json_array_get(steps, i)) : INFINITY;
        const double other = k < n_vals ? number(json_array_get(val, 0)) : INFINITY;
        const bool is_step = !(other < own), is_val = validation && !(own < other);
        const double step = fmin(own, other), y = number(json_array_get(values, i));
        dh_csv_put(run->label, &f->csv);
        add_number(&f->csv, step);
        add_number(&f->csv, is_step ? y : (double)NAN);
        if (validation) add_number(&f->csv, is_val ? number(json_array_get(val, 1)) : (double)NAN);
        dh_str_append(&f->csv, "\n", 1);
        if (is_step) add_point(curve, step, y, &f->svg), i++;
        if (is_val) add_point(validation, step, number(json_array_get(val, 1)), &f->svg), k++;
    }
}

bool figure_metric(const figured_run *runs, size_t n, dh_figure *f)
{
    const quantity *q = quantities;
    while (strcmp(q->figure, f->name) != 0) q++;
    const bool loss = q == quantities;
    chart_curve curves[2 * DH_REPORT_MAX_RUNS] = {0};
    dh_str names[DH_REPORT_MAX_RUNS] = {0}; /* of the losses of validation */
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (!json_array_size(get(get(runs[i].data, "metrics"), q->key))) continue;
        chart_curve *c = &curves[used], *v = loss ? c + 1 : NULL;
        if (!used) dh_str_printf(&f->csv, "run,step,%s%s\n", q->key, loss ? ",val_loss" : "");
        const char *name = n > 1 ? runs[i].label : q->title;
        dh_str_printf(&names[i], "%s, validation", name);
        f->svg.failed |= names[i].failed;
        for (int k = 0; k < (loss ? 2 : 1); k++)
            c[k] = (chart_curve){.label = k && names[i].text ? names[i].text : name,
                                 .look = run_looks[i % DH_COUNTOF(run_looks)],
                                 .form = k ? CHART_DOTS : CHART_LINE};
        add_steps(&runs[i], q, c, v, f);
        used += v && v->points.n ? 2 : 1;
    }
    const chart_text text = {q->title, "step", q->unit};
    for (size_t i = 0; i < n && !used; i++)
        if (get(runs[i].data, "metrics"))
            snprintf(f->why, sizeof f->why, "no line of the metrics has `%s`", q->key);
    if (used) chart_curves(&text, curves, used, q->from_zero, &f->svg);
    for (size_t i = 0; i < DH_COUNTOF(curves); i++) dh_vec_fini(&curves[i].points);
    for (size_t i = 0; i < n; i++) dh_str_fini(&names[i]);
    return used > 0;
}

/* ---- where the time went --------------------------------------------------------------------- */

/* Parts of a mean step, which together are the whole of it. */
enum { COMPUTE, FIRST_CAUSE, BUBBLE = FIRST_CAUSE + 5, PARTNERS, IDLE, N_PART };

static const struct {
    const char *key, *text;
    int look;
} parts[N_PART] = {{"compute", "computation", LOOK_COMPUTE},
                   {"dependency", "exposed: the next operator waits", LOOK_EXPOSED},
                   {"contention", "exposed: holds up another transfer", LOOK_EXPOSED + 1},
                   {"tail", "exposed: nothing left to compute", LOOK_EXPOSED + 2},
                   {"late", "exposed: computation began late", LOOK_EXPOSED + 3},
                   {"slowdown", "exposed: computation slowed down", LOOK_EXPOSED + 4},
                   {"bubble", "pipeline bubble", LOOK_BUBBLE},
                   {"partners", "waits for ranks that are late", LOOK_PARTNERS},
                   {"idle", "nothing ran", LOOK_IDLE}};

static double or_zero(double value)
{
    return isfinite(value) ? value : 0;
}

/* Milliseconds of each part of a step, from times of `steps` steps. False: they are not known. */
static bool shares_of(const json_t *times, double steps, double ms[N_PART])
{
    if (!json_is_number(get(times, "compute_ms"))) return false;
    ms[COMPUTE] = number(get(times, "compute_ms"));
    for (int i = FIRST_CAUSE; i < BUBBLE; i++)
        ms[i] = or_zero(number(get(get(times, "exposed_by_ms"), parts[i].key)));
    ms[BUBBLE] = or_zero(number(get(times, "bubble_ms")));
    ms[PARTNERS] = or_zero(number(get(times, "partners_ms")));
    ms[IDLE] = or_zero(number(get(times, "idle_ms"))) - ms[BUBBLE] - ms[PARTNERS];
    double sum = 0; /* of what can be drawn */
    for (int i = 0; i < N_PART; i++) sum += chart_is_drawn(ms[i]) ? DH_MAX(ms[i], 0) : 0;
    for (int i = 0; i < N_PART; i++)
        ms[i] = ms[i] > 1e-9 * sum ? ms[i] / DH_MAX(steps, 1) : 0; /* the rest is rounding */
    return true;
}

/* A mean step of a run, or a simulated one of a table. */
typedef struct bar {
    const char *label;
    double ms[N_PART];
} bar;
typedef DH_VEC(bar) bars;

static void add_bars(const figured_run *run, bars *all, dh_figure *f)
{
    const json_t *summary = get(run->data, "summary"), *table = get(run->data, "table");
    const json_t *cells = get(table, "cells");
    const json_t *names = get(json_array_get(get(table, "settings"), 0), "values");
    bar one = {.label = run->label};
    if (shares_of(get(summary, "times"), or_zero(number(get(summary, "steps"))) - 1, one.ms))
        f->svg.failed |= !dh_vec_push(all, one);
    for (size_t i = 0; (run->from & FROM_SUMMARY) && i < json_array_size(cells); i++) {
        one.label = json_string_value(json_array_get(names, i));
        if (one.label && shares_of(json_array_get(cells, i), 1, one.ms))
            f->svg.failed |= !dh_vec_push(all, one);
    }
}

static void say_part(const void *user, size_t item, dh_str *title)
{
    const bars *all = user;
    dh_str_printf(title, "%s: %.4g ms", parts[item % N_PART].text,
                  all->at[item / N_PART].ms[item % N_PART]);
}

/* The parts of a bar, one after the other, in a row of its own. */
static void add_parts(const bars *all, size_t i, chart_spans *s, dh_figure *f)
{
    const chart_row row = {.name = all->at[i].label, .apart = true};
    double at = 0;
    f->svg.failed |= !dh_vec_push(&s->rows, row);
    for (int k = 0; k < N_PART; k++) {
        const double ms = all->at[i].ms[k];
        const chart_span span = {.row = i,
                                 .begin = at,
                                 .end = at + ms,
                                 .look = parts[k].look,
                                 .item = i * N_PART + (size_t)k};
        dh_csv_put(row.name, &f->csv);
        dh_str_printf(&f->csv, ",%s", parts[k].key);
        add_number(&f->csv, ms);
        dh_str_append(&f->csv, "\n", 1);
        if (!(ms > 0) || !chart_is_drawn(ms)) continue;
        f->svg.failed |= !dh_vec_push(&s->spans, span);
        at = span.end;
    }
}

bool figure_time(const figured_run *runs, size_t n, dh_figure *f)
{
    static const chart_text text = {"Where the time of a step went", "milliseconds of a step", ""};
    bars all = {0};
    chart_entry entries[N_PART];
    chart_legend legend = {.at = entries};
    chart_spans s = {.title_of = say_part, .user = &all};
    for (size_t i = 0; i < n; i++) add_bars(&runs[i], &all, f);
    for (int k = 0; k < N_PART; k++)
        entries[legend.n++] = (chart_entry){parts[k].text, parts[k].look};
    if (all.n) dh_str_printf(&f->csv, "run,part,ms\n");
    for (size_t i = 0; i < all.n; i++) add_parts(&all, i, &s, f);
    const bool any = all.n > 0;
    if (any && !f->svg.failed) chart_spans_draw(&text, &s, legend, &f->svg);
    dh_vec_fini(&all);
    dh_vec_fini(&s.rows);
    dh_vec_fini(&s.spans);
    return any;
}

/* ---- grids ----------------------------------------------------------------------------------- */

typedef struct grid {
    chart_grid chart;
    const char **rows, **columns;
    double *at;
} grid;

/* Texts of an array's strings. */
static const char **names_of(const json_t *array)
{
    const size_t n = json_array_size(array);
    const char **names = malloc((n + 1) * sizeof *names);
    for (size_t i = 0; names && i < n; i++) {
        names[i] = json_string_value(json_array_get(array, i));
        if (!names[i]) names[i] = "?";
    }
    return names;
}

/* columns: NULL: one without a name */
static bool grid_create(const json_t *rows, const json_t *columns, grid *g)
{
    const size_t n = json_array_size(rows), m = columns ? json_array_size(columns) : 1;
    *g = (grid){.rows = names_of(rows), .columns = names_of(columns)};
    g->at = malloc((n * m + 1) * sizeof *g->at);
    if (g->columns && !columns) {
        free(g->columns);
        g->columns = malloc(sizeof *g->columns);
        if (g->columns) g->columns[0] = "";
    }
    g->chart = (chart_grid){g->rows, g->columns, n, m, g->at};
    return g->rows && g->columns && g->at;
}

static void grid_free(grid *g)
{
    free(g->rows);
    free(g->columns);
    free(g->at);
}

bool figure_pairs(const figured_run *runs, size_t n, dh_figure *f)
{
    const json_t *oef = get(runs[0].data, "oef"), *at = get(oef, "at");
    if (n != 1 || !json_array_size(at)) return false;
    grid g;
    const bool whole = grid_create(get(oef, "rows"), get(oef, "columns"), &g);
    dh_str_printf(&f->csv, "forward,backward,effectiveness\n");
    for (size_t i = 0; whole && i < g.chart.n_rows * g.chart.n_columns; i++) {
        g.at[i] = number(json_array_get(at, i));
        if (!isfinite(g.at[i])) continue;
        dh_csv_put(g.rows[i / g.chart.n_columns], &f->csv);
        dh_str_append(&f->csv, ",", 1);
        dh_csv_put(g.columns[i % g.chart.n_columns], &f->csv);
        add_number(&f->csv, g.at[i]);
        dh_str_append(&f->csv, "\n", 1);
    }
    const chart_text text = {"Overlap effectiveness of operator pairs", "backward", "forward"};
    f->svg.failed |= !whole;
    if (whole) chart_matrix(&text, &g.chart, &f->svg);
    grid_free(&g);
    return true;
}

/* ---- tables of simulated steps --------------------------------------------------------------- */

static void add_cell(const json_t *cell, dh_str *csv)
{
    const char *reason = json_string_value(get(cell, "reason"));
    for (size_t k = 0; k < DH_N_GRID_FIGURE; k++)
        add_number(csv, number(get(cell, dh_grid_figures[k].key)));
    const json_t *fits = reason ? NULL : get(cell, "fits"); /* nor without a device's memory */
    dh_str_printf(csv, ",%s,", !fits ? "" : json_is_true(fits) ? "1" : "0");
    dh_csv_put(reason ? reason : "", csv);
    dh_str_append(csv, "\n", 1);
}

/* The table's shape has been looked at by its reader (table.c). */
bool figure_table(const figured_run *runs, size_t n, dh_figure *f)
{
    const json_t *table = get(runs[0].data, "table"), *settings = get(table, "settings");
    const json_t *first = json_array_get(settings, 0), *second = json_array_get(settings, 1);
    const json_t *cells = get(table, "cells");
    if (n != 1 || !table) return false;
    grid g;
    const bool whole = grid_create(get(first, "values"), get(second, "values"), &g);
    dh_csv_put(json_string_value(get(first, "key")), &f->csv);
    if (second) dh_str_append(&f->csv, ",", 1);
    if (second) dh_csv_put(json_string_value(get(second, "key")), &f->csv);
    for (size_t k = 0; k < DH_N_GRID_FIGURE; k++)
        dh_str_printf(&f->csv, ",%s", dh_grid_figures[k].key);
    dh_str_printf(&f->csv, ",fits,reason\n");
    for (size_t i = 0; whole && i < g.chart.n_rows * g.chart.n_columns; i++) {
        g.at[i] = number(get(json_array_get(cells, i), "step_ms"));
        dh_csv_put(g.rows[i / g.chart.n_columns], &f->csv);
        if (second) dh_str_append(&f->csv, ",", 1);
        if (second) dh_csv_put(g.columns[i % g.chart.n_columns], &f->csv);
        add_cell(json_array_get(cells, i), &f->csv);
    }
    dh_str axis = DH_STR_INIT;
    dh_str_printf(&axis, second ? "%s; colours: %s" : "%s", json_string_value(get(first, "key")),
                  json_string_value(get(second, "key")));
    const chart_text text = {"A simulated training step", axis.text, "milliseconds of a step"};
    f->svg.failed |= !whole || axis.failed;
    if (!f->svg.failed) chart_bars(&text, &g.chart, &f->svg);
    dh_str_fini(&axis);
    grid_free(&g);
    return true;
}

/* ---- published tables ------------------------------------------------------------------------ */

bool figure_validation(const figured_run *runs, size_t n, dh_figure *f)
{
    const dh_validation *v = runs[0].validation;
    if (n != 1 || !v) return false;
    dh_validation_draw(v, &f->svg);
    dh_str_printf(&f->csv, "row,predicted,published,error\n");
    for (size_t i = 0; i < v->n_rows; i++) {
        const dh_validation_row *r = &v->rows[i];
        const double numbers[] = {r->predicted, r->published, r->error};
        dh_csv_put(r->label, &f->csv);
        for (size_t k = 0; k < DH_COUNTOF(numbers); k++) add_number(&f->csv, numbers[k]);
        dh_str_append(&f->csv, "\n", 1);
    }
    return true;
}
