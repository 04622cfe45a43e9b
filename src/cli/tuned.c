/* Ranked configurations, then what each single choice would come to, as text. */
#include "cli/tuned.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/simulated.h"
#include "cli/table.h"

/* ---- ranked --------------------------------------------------------------------------------- */

static bool has_experts(const dh_tuned *t)
{
    return t->job->model.n_experts > 0;
}

static double step_ns(const dh_tune_row *row)
{
    return row->simulated_ns > 0 ? (double)row->simulated_ns : row->step_ns;
}

static const char *by_of(const dh_tune_row *row)
{
    return row->simulated_ns > 0 ? "simulated" : "estimated";
}

static double memory_of(const dh_tune_row *row)
{
    return (double)(row->simulated_ns > 0 ? row->simulated_bytes : row->memory.peak_bytes);
}

static const dh_tune_dim degrees[] = {DH_TUNE_TP, DH_TUNE_CP, DH_TUNE_PP,
                                      DH_TUNE_DP, DH_TUNE_EP, DH_TUNE_MICRO_BATCH};

/* Dimensions that are searched only if they are asked for, or if there is a choice. */
static const dh_tune_dim sharing[] = {DH_TUNE_ZERO, DH_TUNE_BUCKET, DH_TUNE_CP_LINEAR,
                                      DH_TUNE_FUSE, DH_TUNE_POST,   DH_TUNE_SEQUENCE,
                                      DH_TUNE_SPLIT};

static bool is_searched(const dh_tuned *t, dh_tune_dim dim)
{
    size_t n = 0;
    for (size_t i = 0; i < t->tune->n_values; i++) n += t->tune->values[i].dim == dim;
    return n > 1;
}

static void add_columns(const dh_tuned *t, dh_cli_table *table)
{
    dh_cli_table_column(table, "#", DH_CLI_COLUMN_RIGHT);
    for (size_t i = 0; i < DH_COUNTOF(degrees); i++)
        if (degrees[i] != DH_TUNE_EP || has_experts(t))
            dh_cli_table_column(table, dh_tune_dim_name(degrees[i]), DH_CLI_COLUMN_RIGHT);
    for (size_t i = 0; i < DH_COUNTOF(sharing); i++)
        if (is_searched(t, sharing[i]))
            dh_cli_table_column(table, dh_tune_dim_name(sharing[i]), DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "recompute", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(table, "schedule", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(table, "strategy", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(table, "estimated", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "simulated", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "off by", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "memory", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "why not", DH_CLI_COLUMN_NOTE);
}

static void add_plan(const dh_tune_config *c, dh_cli_table *table)
{
    char schedule[64], recompute[32], strategy[64];
    dh_tune_value(DH_TUNE_SCHEDULE, c->at[DH_TUNE_SCHEDULE], schedule, sizeof schedule);
    if (c->at[DH_TUNE_STAGES] > 1)
        snprintf(schedule + strlen(schedule), sizeof schedule - strlen(schedule), " x%lld",
                 (long long)c->at[DH_TUNE_STAGES]);
    dh_cli_table_cell(
        table, "%s",
        dh_tune_value(DH_TUNE_RECOMPUTE, c->at[DH_TUNE_RECOMPUTE], recompute, sizeof recompute));
    dh_cli_table_cell(table, "%s", schedule);
    dh_cli_table_cell(
        table, "%s",
        dh_tune_value(DH_TUNE_STRATEGY, c->at[DH_TUNE_STRATEGY], strategy, sizeof strategy));
}

/* "-": a pipeline of one stage has no layers to split. text [32] */
static const char *value_of(const dh_tune_row *row, dh_tune_dim dim, char *text)
{
    if (dim == DH_TUNE_SPLIT && row->config.at[DH_TUNE_PP] == 1) return "-";
    return dh_tune_value(dim, row->config.at[dim], text, 32);
}

static void add_row(const dh_tuned *t, const dh_tune_row *row, const char *name, const char *why,
                    dh_cli_table *table)
{
    char text[32];
    dh_cli_table_cell(table, "%s", name);
    for (size_t i = 0; i < DH_COUNTOF(degrees); i++)
        if (degrees[i] != DH_TUNE_EP || has_experts(t))
            dh_cli_table_cell(table, "%lld", (long long)row->config.at[degrees[i]]);
    for (size_t i = 0; i < DH_COUNTOF(sharing); i++)
        if (is_searched(t, sharing[i]))
            dh_cli_table_cell(table, "%s", value_of(row, sharing[i], text));
    add_plan(&row->config, table);
    dh_cli_table_cell(table, "%s",
                      row->step_ns > 0 ? dh_format_ns(text, sizeof text, row->step_ns) : "-");
    if (row->simulated_ns > 0) {
        dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, (double)row->simulated_ns));
        if (row->step_ns > 0)
            dh_cli_table_cell(table, "%+.1f%%",
                              100 * (row->step_ns / (double)row->simulated_ns - 1));
        else
            dh_cli_table_cell(table, "-");
    } else {
        dh_cli_table_cell(table, "-");
        dh_cli_table_cell(table, "-");
    }
    dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, memory_of(row)));
    dh_cli_table_cell(table, "%s", why);
}

static void print_rows(const dh_tuned *t, dh_str *out)
{
    dh_cli_table table;
    dh_cli_table_begin(&table);
    add_columns(t, &table);
    if (dh_tuned_has_given(t->tune))
        add_row(t, &t->tune->given, "as given", t->tune->given.why, &table);
    for (size_t i = 0; i < t->tune->n_rows; i++) {
        const dh_tune_row *row = &t->tune->rows[i];
        char place[32];
        snprintf(place, sizeof place, "%zu", i + 1);
        add_row(t, row, place, i == 0 && row->fits ? "<- best" : row->why, &table);
    }
    dh_str_printf(out, "\n");
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

/* "; compute 10 s, bubble 3 s (simulated)": what is no part of a rounding error. */
static void append_items(const dh_tune_row *row, dh_str *text)
{
    char ns[32];
    const bool simulated = row->simulated_ns > 0;
    const double *item_ns = simulated ? row->simulated_item_ns : row->item_ns;
    const int n = simulated ? DH_N_TUNE_SIMULATED : DH_N_TUNE_ITEM;
    const char *separator = ";";
    for (int p = 0; p < n; p++) {
        if (item_ns[p] < .005 * step_ns(row)) continue;
        dh_str_printf(text, "%s %s %s", separator,
                      simulated ? dh_tune_simulated_name((dh_tune_simulated)p)
                                : dh_tune_item_name((dh_tune_item)p),
                      dh_format_ns(ns, sizeof ns, item_ns[p]));
        separator = ",";
    }
    dh_str_printf(text, " (all %s)", by_of(row));
}

static void print_best(const dh_tuned *t, dh_str *out)
{
    const dh_tune_row *best = &t->tune->rows[0];
    char step[32], rate[32];
    dh_str text = DH_STR_INIT;
    const double s = step_ns(best) * 1e-9;
    const double tokens = (double)(t->job->global_batch * t->job->seq_len);
    dh_str_printf(&text, "best: %s a step, %s tokens/s, %.4g TFLOP/s a device",
                  dh_format_ns(step, sizeof step, step_ns(best)),
                  dh_format_number(rate, sizeof rate, tokens / s, 6),
                  dh_model_flops_per_token(&t->job->model, t->job->seq_len) * tokens / s /
                      (double)t->devices * 1e-12);
    append_items(best, &text);
    dh_str_printf(out, "\n");
    dh_cli_paragraph(out, &text, 2);
}

/* How far the best is from what was measured. */
static void print_beyond(const dh_tune *t, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    if (t->n_beyond == 0) return;
    dh_str_printf(&text,
                  "the best is unlike every measured step that predictions were held against:");
    for (size_t i = 0; i < t->n_beyond; i++)
        dh_str_printf(&text, "%s %s", i > 0 ? ";" : "", t->beyond[i]);
    if (*t->measured)
        dh_str_printf(&text, "; errors of such devices: `dhelix validate %s`", t->measured);
    dh_cli_paragraph(out, &text, 2);
}

static void print_refused(const dh_tune *t, dh_str *out)
{
    dh_str text = DH_STR_INIT;
    if (!t->given_refused) return;
    dh_str_printf(&text, "the job as given is not possible here: %s", t->given_refused);
    dh_cli_paragraph(out, &text, 2);
}

/* ---- by value ------------------------------------------------------------------------------- */

/* Simulated over simulated, or estimate over estimate. */
static double ratio(const dh_tune_row *row, const dh_tune_row *best)
{
    if (row->simulated_ns > 0 && best->simulated_ns > 0)
        return (double)row->simulated_ns / (double)best->simulated_ns;
    return row->step_ns / best->step_ns;
}

static void add_value(const dh_tuned *t, const dh_tune_value_row *v, bool first,
                      dh_cli_table *table)
{
    char text[64], value[64];
    const dh_tune_row *best = t->tune->n_rows ? &t->tune->rows[0] : NULL;
    const bool chosen = best && best->config.at[v->dim] == v->value;
    const dh_tune_row *shown = chosen                                 ? best
                               : v->n_fit > 0 && v->best.fits && best ? &v->best
                                                                      : NULL;
    dh_cli_table_cell(table, "%s", first ? dh_tune_dim_name(v->dim) : "");
    dh_cli_table_cell(table, "%s", dh_tune_value(v->dim, v->value, value, sizeof value));
    dh_cli_table_cell(table, "%s", shown ? dh_format_ns(text, sizeof text, step_ns(shown)) : "-");
    dh_cli_table_cell(table, "%s", shown ? by_of(shown) : "");
    if (shown && !chosen)
        dh_cli_table_cell(table, "%+.1f%%", 100 * (ratio(shown, best) - 1));
    else
        dh_cli_table_cell(table, "%s", chosen ? "best" : "");
    dh_cli_table_cell(table, "%s", chosen ? "" : v->why);
}

/* A dimension with a single value is no choice. */
static bool is_choice(const dh_tune *t, size_t i)
{
    const dh_tune_dim dim = t->values[i].dim;
    return (i > 0 && t->values[i - 1].dim == dim) ||
           (i + 1 < t->n_values && t->values[i + 1].dim == dim);
}

static void print_values(const dh_tuned *t, dh_str *out)
{
    static const struct {
        const char *heading;
        dh_cli_column_kind kind;
    } columns[] = {{"", DH_CLI_COLUMN_LEFT},        {"value", DH_CLI_COLUMN_LEFT},
                   {"a step", DH_CLI_COLUMN_RIGHT}, {"by", DH_CLI_COLUMN_LEFT},
                   {"", DH_CLI_COLUMN_RIGHT},       {"why not", DH_CLI_COLUMN_NOTE}};
    const dh_tune *r = t->tune;
    dh_cli_table table;
    dh_cli_table_begin(&table);
    for (size_t i = 0; i < DH_COUNTOF(columns); i++)
        dh_cli_table_column(&table, columns[i].heading, columns[i].kind);
    for (size_t i = 0; i < r->n_values; i++)
        if (is_choice(r, i))
            add_value(t, &r->values[i], i == 0 || r->values[i - 1].dim != r->values[i].dim, &table);
    dh_str_printf(out, "\nthe best with each value, everything else free:\n");
    dh_cli_table_end(&table, dh_cli_columns(), out);
}

void dh_tuned_print(const dh_tuned *t, dh_str *out)
{
    const dh_tune *r = t->tune;
    char room[128];
    const bool of_cluster = t->cluster && t->memory_bytes == dh_cluster_usable_bytes(t->cluster);
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text,
                  "%s on %lld devices of %s%s with %s each: %lld sequences of %lld tokens, %s",
                  t->job->model.name, (long long)t->devices,
                  t->cluster ? "cluster " : "this machine", t->cluster ? t->cluster->name : "",
                  of_cluster ? dh_cluster_room_text(t->cluster, room, sizeof room)
                             : dh_format_bytes(room, sizeof room, t->memory_bytes),
                  (long long)t->job->global_batch, (long long)t->job->seq_len,
                  dh_precision_name(t->job->dtype, t->job->fp8));
    dh_cli_paragraph(out, &text, 2);
    dh_str_printf(out, "%lld configurations fit, %lld need more memory, %lld are not possible\n",
                  (long long)r->n_fit, (long long)r->n_too_large, (long long)r->n_refused);
    if (r->n_left_out > 0)
        dh_str_printf(
            out, "%lld more of zb-auto left out: bounds on time or memory say none is the best\n",
            (long long)r->n_left_out);
    if (r->n_behind > 0)
        dh_str_printf(out,
                      "%lld more not looked at: GEMMs, attention and rings alone take more than %s "
                      "(--within)\n",
                      (long long)r->n_behind, dh_format_ns(room, sizeof room, r->worth_ns));
    print_refused(r, out);
    if (r->n_rows > 0 || dh_tuned_has_given(r)) print_rows(t, out);
    if (r->n_rows > 0) print_best(t, out);
    print_beyond(r, out);
    dh_step_facts facts;
    if (dh_tuned_facts(t, &facts)) dh_nearest_print(&facts, out);
    print_values(t, out);
}
