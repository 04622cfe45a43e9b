/* Ranked configurations, then what each single choice would come to. */
#include "cli/tuned.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

enum { WIDTH = 120 };

/* ---- ranked --------------------------------------------------------------------------------- */

static bool has_experts(const dh_tuned *t)
{
    return t->job->model.n_experts > 0;
}

static double step_ns(const dh_tune_row *row)
{
    return row->simulated_ns > 0 ? (double)row->simulated_ns : row->step_ns;
}

static double memory_of(const dh_tune_row *row)
{
    return (double)(row->simulated_ns > 0 ? row->simulated_bytes : row->memory.peak_bytes);
}

static void print_mesh(const dh_tuned *t, const dh_tune_config *c, dh_str *out)
{
    static const dh_tune_dim degrees[] = {DH_TUNE_TP, DH_TUNE_CP, DH_TUNE_PP,
                                          DH_TUNE_DP, DH_TUNE_EP, DH_TUNE_MICRO_BATCH};
    for (size_t i = 0; i < DH_COUNTOF(degrees); i++)
        if (degrees[i] != DH_TUNE_EP || has_experts(t))
            dh_str_printf(out, "%4lld ", (long long)c->at[degrees[i]]);
}

static void print_plan(const dh_tune_config *c, dh_str *out)
{
    char schedule[64], recompute[32], strategy[64];
    dh_tune_value(DH_TUNE_SCHEDULE, c->at[DH_TUNE_SCHEDULE], schedule, sizeof schedule);
    if (c->at[DH_TUNE_STAGES] > 1)
        snprintf(schedule + strlen(schedule), sizeof schedule - strlen(schedule), " x%lld",
                 (long long)c->at[DH_TUNE_STAGES]);
    dh_str_printf(
        out, "%-9s %-20s %-25s",
        dh_tune_value(DH_TUNE_RECOMPUTE, c->at[DH_TUNE_RECOMPUTE], recompute, sizeof recompute),
        schedule,
        dh_tune_value(DH_TUNE_STRATEGY, c->at[DH_TUNE_STRATEGY], strategy, sizeof strategy));
}

static void print_row(const dh_tuned *t, size_t place, dh_str *out)
{
    const dh_tune_row *row = &t->tune->rows[place];
    char text[32];
    dh_str_printf(out, "%3zu ", place + 1);
    print_mesh(t, &row->config, out);
    print_plan(&row->config, out);
    dh_str_printf(out, " %9s", dh_format_ns(text, sizeof text, row->step_ns));
    if (row->simulated_ns > 0)
        dh_str_printf(out, " %9s %+5.1f%%",
                      dh_format_ns(text, sizeof text, (double)row->simulated_ns),
                      100 * (row->step_ns / (double)row->simulated_ns - 1));
    else
        dh_str_printf(out, " %9s %6s", "-", "-");
    dh_str_printf(out, " %10s  %s\n", dh_format_bytes(text, sizeof text, memory_of(row)),
                  place == 0 && row->fits ? "<- best" : row->why);
}

static void print_rows(const dh_tuned *t, dh_str *out)
{
    dh_str_printf(out,
                  "\n  #   tp   cp   pp   dp %s  mb recompute %-20s %-25s %9s %9s %6s %10s  %s\n",
                  has_experts(t) ? "  ep " : "", "schedule", "strategy", "estimate", "simulated",
                  "off by", "memory", "why not");
    for (size_t i = 0; i < t->tune->n_rows; i++) print_row(t, i, out);
}

static void print_best(const dh_tuned *t, dh_str *out)
{
    const dh_tune_row *best = &t->tune->rows[0];
    char step[32], part[32];
    const double s = step_ns(best) * 1e-9;
    const double tokens = (double)(t->job->global_batch * t->job->seq_len);
    dh_str_printf(out, "\nbest: %s a step, %.6g tokens/s, %.4g TFLOP/s a device;",
                  dh_format_ns(step, sizeof step, step_ns(best)), tokens / s,
                  dh_model_flops_per_token(&t->job->model, t->job->seq_len) * tokens / s /
                      (double)t->devices * 1e-12);
    const char *separator = " ";
    for (int p = 0; p < DH_N_TUNE_PART; p++) {
        if (best->part_ns[p] < .005 * best->step_ns) continue;
        dh_str_printf(out, "%s%s %s", separator, dh_tune_part_name((dh_tune_part)p),
                      dh_format_ns(part, sizeof part, best->part_ns[p]));
        separator = ", ";
    }
    dh_str_printf(out, " (estimated)\n");
}

/* ---- by value ------------------------------------------------------------------------------- */

/* Simulated over simulated, or estimate over estimate. */
static double ratio(const dh_tune_row *row, const dh_tune_row *best)
{
    if (row->simulated_ns > 0 && best->simulated_ns > 0)
        return (double)row->simulated_ns / (double)best->simulated_ns;
    return row->step_ns / best->step_ns;
}

static void print_value(const dh_tuned *t, const dh_tune_value_row *v, bool first, dh_str *out)
{
    char text[64], value[64];
    const dh_tune_row *best = t->tune->n_rows ? &t->tune->rows[0] : NULL;
    const bool chosen = best && best->config.at[v->dim] == v->value;
    dh_str_printf(out, "%-10s %-25s", first ? dh_tune_dim_name(v->dim) : "",
                  dh_tune_value(v->dim, v->value, value, sizeof value));
    if (chosen)
        dh_str_printf(out, " %9s %7s  ", dh_format_ns(text, sizeof text, step_ns(best)), "best");
    else if (v->n_fit > 0 && best)
        dh_str_printf(out, " %9s %+6.1f%%  ", dh_format_ns(text, sizeof text, step_ns(&v->best)),
                      100 * (ratio(&v->best, best) - 1));
    else
        dh_str_printf(out, " %9s %7s  ", "-", "");
    dh_str_wrap(out, chosen ? "" : v->why, 56, WIDTH);
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
    const dh_tune *r = t->tune;
    dh_str_printf(out, "\nthe best with each value, everything else free (estimated, where not "
                       "among those simulated):\n");
    for (size_t i = 0; i < r->n_values; i++)
        if (is_choice(r, i))
            print_value(t, &r->values[i], i == 0 || r->values[i - 1].dim != r->values[i].dim, out);
}

void dh_tuned_print(const dh_tuned *t, dh_str *out)
{
    const dh_tune *r = t->tune;
    char room[32];
    dh_str_printf(
        out, "%s on %lld devices of %s%s with %s each: %lld sequences of %lld tokens, %s\n",
        t->job->model.name, (long long)t->devices, t->cluster ? "cluster " : "this machine",
        t->cluster ? t->cluster->name : "", dh_format_bytes(room, sizeof room, t->memory_bytes),
        (long long)t->job->global_batch, (long long)t->job->seq_len, dh_dtype_name(t->job->dtype));
    dh_str_printf(out, "%lld configurations fit, %lld need more memory, %lld are not possible\n",
                  (long long)r->n_fit, (long long)r->n_too_large, (long long)r->n_refused);
    if (r->n_rows > 0) {
        print_rows(t, out);
        print_best(t, out);
    }
    print_values(t, out);
}

/* ---- as JSON ------------------------------------------------------------------------------- */

static json_t *value_json(dh_tune_dim dim, int64_t value)
{
    char text[64];
    if (dim == DH_TUNE_SCHEDULE || dim == DH_TUNE_STRATEGY || dim == DH_TUNE_RECOMPUTE)
        return json_string(dh_tune_value(dim, value, text, sizeof text));
    return json_integer((json_int_t)value);
}

static json_t *config_json(const dh_tune_config *c)
{
    json_t *object = json_object();
    for (int d = 0; object && d < DH_N_TUNE_DIM; d++)
        json_object_set_new(object, dh_tune_dim_setting((dh_tune_dim)d),
                            value_json((dh_tune_dim)d, c->at[d]));
    return object;
}

static json_t *parts_json(const dh_tune_row *row)
{
    json_t *parts = json_object();
    for (int p = 0; parts && p < DH_N_TUNE_PART; p++)
        json_object_set_new(parts, dh_tune_part_name((dh_tune_part)p),
                            json_real(row->part_ns[p] * 1e-6));
    return parts;
}

static json_t *row_json(const dh_tune_row *row)
{
    const dh_tune_memory *m = &row->memory;
    json_t *object = json_pack(
        "{so sb s{sI sI sI sI sI sI}}", "settings", config_json(&row->config), "fits", row->fits,
        "estimated_bytes", "stage", (json_int_t)m->stage, "parameters", (json_int_t)m->parameters,
        "gradients", (json_int_t)m->gradients, "optimizer", (json_int_t)m->optimizer, "activations",
        (json_int_t)m->activations, "peak", (json_int_t)m->peak_bytes);
    if (!object) return NULL;
    if (row->step_ns > 0) {
        json_object_set_new(object, "estimated_ms", json_real(row->step_ns * 1e-6));
        json_object_set_new(object, "estimated_parts_ms", parts_json(row));
    }
    if (row->simulated_ns > 0) {
        json_object_set_new(object, "simulated_ms", json_real((double)row->simulated_ns * 1e-6));
        json_object_set_new(object, "simulated_peak_bytes",
                            json_integer((json_int_t)row->simulated_bytes));
    }
    return object;
}

static json_t *ranked_json(const dh_tune *t)
{
    json_t *rows = json_array();
    for (size_t i = 0; rows && i < t->n_rows; i++) {
        json_t *row = row_json(&t->rows[i]);
        if (row) json_object_set_new(row, "why", json_string(t->rows[i].why));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *values_json(const dh_tune *t)
{
    json_t *rows = json_array();
    for (size_t i = 0; rows && i < t->n_values; i++) {
        const dh_tune_value_row *v = &t->values[i];
        json_t *row = json_pack("{ss so sI sI sI ss}", "setting", dh_tune_dim_setting(v->dim),
                                "value", value_json(v->dim, v->value), "fit", (json_int_t)v->n_fit,
                                "too_large", (json_int_t)v->n_too_large, "refused",
                                (json_int_t)v->n_refused, "why", v->why);
        if (row && v->n_fit + v->n_too_large > 0)
            json_object_set_new(row, v->n_fit ? "best" : "smallest", row_json(&v->best));
        json_array_append_new(rows, row);
    }
    return rows;
}

json_t *dh_tuned_json(const dh_tuned *t)
{
    const dh_tune *r = t->tune;
    json_t *document =
        json_pack("{ss ss sI sf sI sI sI so so}", "model", t->job->model.name, "costs", r->costs,
                  "devices", (json_int_t)t->devices, "memory_bytes", t->memory_bytes, "fit",
                  (json_int_t)r->n_fit, "too_large", (json_int_t)r->n_too_large, "refused",
                  (json_int_t)r->n_refused, "ranked", ranked_json(r), "by_value", values_json(r));
    if (document && t->cluster)
        json_object_set_new(document, "cluster", json_string(t->cluster->name));
    return document;
}
