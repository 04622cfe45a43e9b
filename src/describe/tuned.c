/* Ranked configurations, then what each single choice would come to, as JSON. */
#include "describe/tuned.h"
#include "describe/simulated.h"

static json_t *value_json(dh_tune_dim dim, int64_t value)
{
    char text[64];
    const bool words = dim == DH_TUNE_FUSE || (dim == DH_TUNE_BUCKET && value <= 0);
    if (dim == DH_TUNE_SPLIT && value == 0) return json_string("*");
    if (dim == DH_TUNE_SEQUENCE || dim == DH_TUNE_POST) return json_boolean(value > 0);
    if (dim == DH_TUNE_SCHEDULE || dim == DH_TUNE_STRATEGY || dim == DH_TUNE_RECOMPUTE ||
        dim == DH_TUNE_CP_LINEAR || dim == DH_TUNE_SPLIT || words)
        return json_string(dh_tune_value(dim, value, text, sizeof text));
    return json_integer((json_int_t)value);
}

static json_t *config_json(const dh_tune_config *c)
{
    json_t *object = json_object();
    for (int d = 0; object && d < DH_N_TUNE_DIM; d++) {
        /* as the job has it, or of no consequence */
        if ((d == DH_TUNE_BUCKET || d >= DH_TUNE_CP_LINEAR) && c->at[d] < 0) continue;
        json_object_set_new(object, dh_tune_dim_setting((dh_tune_dim)d),
                            value_json((dh_tune_dim)d, c->at[d]));
    }
    return object;
}

static json_t *items_json(const dh_tune_row *row)
{
    json_t *items = json_object();
    for (int p = 0; items && p < DH_N_TUNE_ITEM; p++)
        json_object_set_new(items, dh_tune_item_name((dh_tune_item)p),
                            json_real(row->item_ns[p] * 1e-6));
    return items;
}

static json_t *simulated_items_json(const dh_tune_row *row)
{
    json_t *items = json_object();
    for (int p = 0; items && p < DH_N_TUNE_SIMULATED; p++)
        json_object_set_new(items, dh_tune_simulated_name((dh_tune_simulated)p),
                            json_real(row->simulated_item_ns[p] * 1e-6));
    return items;
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
        json_object_set_new(object, "estimated_parts_ms", items_json(row));
    }
    if (row->simulated_ns > 0) {
        json_object_set_new(object, "simulated_ms", json_real((double)row->simulated_ns * 1e-6));
        json_object_set_new(object, "simulated_parts_ms", simulated_items_json(row));
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
        json_t *row =
            json_pack("{ss so sI sI sI sI ss}", "setting", dh_tune_dim_setting(v->dim), "value",
                      value_json(v->dim, v->value), "fit", (json_int_t)v->n_fit, "too_large",
                      (json_int_t)v->n_too_large, "refused", (json_int_t)v->n_refused, "behind",
                      (json_int_t)v->n_behind, "why", v->why);
        if (row && v->n_behind > 0)
            json_object_set_new(row, "least_ms", json_real(v->least_ns * 1e-6));
        if (row && v->n_fit + v->n_too_large > 0)
            json_object_set_new(row, v->n_fit ? "best" : "smallest", row_json(&v->best));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* null: none was asked for. */
static json_t *given_json(const dh_tune *t)
{
    if (t->given_refused) return json_pack("{ss}", "refused", t->given_refused);
    json_t *row = dh_tuned_has_given(t) ? row_json(&t->given) : json_null();
    if (dh_tuned_has_given(t) && row) json_object_set_new(row, "why", json_string(t->given.why));
    return row;
}

static json_t *beyond_json(const dh_tune *t)
{
    json_t *texts = json_array();
    for (size_t i = 0; texts && i < t->n_beyond; i++)
        json_array_append_new(texts, json_string(t->beyond[i]));
    return texts;
}

bool dh_tuned_has_given(const dh_tune *t)
{
    return t->given.config.at[DH_TUNE_DP] > 0;
}

dh_tuned dh_tuned_of(const dh_job *job, const dh_tune_options *how, const dh_tune *tune)
{
    return (dh_tuned){.job = job,
                      .cluster = how->cluster,
                      .devices = how->devices > 0 ? how->devices : job->ranks,
                      .memory_bytes = tune->memory_bytes,
                      .tune = tune};
}

static void take(char fact[DH_PRECEDENT_TEXT], dh_tune_dim dim, const int64_t *at)
{
    char value[64];
    dh_step_facts_take(fact, dh_tune_value(dim, at[dim], value, sizeof value));
}

bool dh_tuned_facts(const dh_tuned *t, dh_step_facts *facts)
{
    if (!t->cluster || t->tune->n_rows == 0) return false;
    const int64_t *at = t->tune->rows[0].config.at;
    dh_step_facts_of(t->job, t->cluster, facts);
    facts->devices = (double)t->devices;
    facts->tp = (double)at[DH_TUNE_TP];
    facts->pp = (double)at[DH_TUNE_PP];
    facts->cp = (double)at[DH_TUNE_CP];
    facts->ep = (double)at[DH_TUNE_EP];
    facts->zero = (double)at[DH_TUNE_ZERO];
    take(facts->strategy, DH_TUNE_STRATEGY, at);
    take(facts->recompute, DH_TUNE_RECOMPUTE, at);
    take(facts->schedule, DH_TUNE_SCHEDULE, at);
    if (facts->pp < 2) dh_step_facts_take(facts->schedule, "");
    return true;
}

json_t *dh_tuned_json(const dh_tuned *t)
{
    const dh_tune *r = t->tune;
    json_t *document =
        json_pack("{ss ss sI sf sI sI sI sI sI so so so so}", "model", t->job->model.name, "costs",
                  r->costs, "devices", (json_int_t)t->devices, "memory_bytes", t->memory_bytes,
                  "fit", (json_int_t)r->n_fit, "too_large", (json_int_t)r->n_too_large, "refused",
                  (json_int_t)r->n_refused, "left_out", (json_int_t)r->n_left_out, "behind",
                  (json_int_t)r->n_behind, "as_given", given_json(r), "unmeasured", beyond_json(r),
                  "ranked", ranked_json(r), "by_value", values_json(r));
    if (document && t->cluster) {
        json_object_set_new(document, "cluster", json_string(t->cluster->name));
        json_object_set_new(document, "memory_reserve", json_real(t->cluster->memory_reserve));
    }
    dh_step_facts facts;
    if (document && dh_tuned_facts(t, &facts)) dh_nearest_json(&facts, document);
    return document;
}
