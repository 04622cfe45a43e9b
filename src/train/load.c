/* Recording what experts get (load.h). */
#include "train/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/metrics.h"

/* ---- a record -------------------------------------------------------------------------------- */

/* Of a layer's row in sums: shares [E], loads [E + 1] by ranks, micro-batches. */
static int64_t width_of(const dh_load_record *r)
{
    return 2 * r->model->n_experts + 2;
}

static double *loads_of(const dh_load_record *r, double *sums, int64_t layer)
{
    return sums + layer * width_of(r) + r->model->n_experts;
}

static double *n_of(const dh_load_record *r, double *sums, int64_t layer)
{
    return sums + (layer + 1) * width_of(r) - 1;
}

static double *counts_of(const dh_load_record *r, int64_t layer, int64_t mb)
{
    return r->step + (layer * r->n_micro + mb) * r->model->n_experts;
}

static int64_t n_counts(const dh_load_record *r)
{
    return r->model->n_layers * r->n_micro * r->model->n_experts;
}

dh_status dh_load_record_create(dh_ctx *ctx, const dh_model *model, int64_t n_micro,
                                dh_load_record **record)
{
    dh_load_record *r = calloc(1, sizeof *r);
    const size_t n_layers = (size_t)model->n_layers, n_experts = (size_t)model->n_experts;
    if (r) {
        *r = (dh_load_record){.model = model, .n_micro = n_micro};
        r->step = calloc((size_t)n_counts(r), sizeof *r->step);
        r->sums = calloc(n_layers * (size_t)width_of(r), sizeof *r->sums);
        r->total = calloc(n_layers * (size_t)width_of(r), sizeof *r->total);
        r->most = calloc(n_layers * n_experts, sizeof *r->most);
    }
    if (r && r->step && r->sums && r->total && r->most) {
        *record = r;
        return DH_OK;
    }
    dh_load_record_destroy(r);
    return dh_no_memory(ctx);
}

void dh_load_record_destroy(dh_load_record *record)
{
    if (!record) return;
    free(record->step);
    free(record->sums);
    free(record->total);
    free(record->most);
    free(record);
}

/* ---- steps ----------------------------------------------------------------------------------- */

void dh_load_record_choices(void *user, int64_t layer, int64_t mb, const int64_t *counts, int64_t n)
{
    double *all = counts_of(user, layer, mb);
    for (int64_t e = 0; e < n; e++) all[e] += (double)counts[e];
}

/* Of n experts over so many ranks, as they lie: the choices of the rank that has most. */
static double busiest_rank(const double *counts, int64_t n, int64_t ranks)
{
    const int64_t here = n / ranks;
    double most = 0;
    for (int64_t r = 0; r < ranks; r++) {
        double sum = 0;
        for (int64_t e = 0; e < here; e++) sum += counts[r * here + e];
        most = DH_MAX(most, sum);
    }
    return most;
}

static void add_micro_batch(dh_load_record *r, int64_t layer, const double *counts)
{
    const int64_t n = r->model->n_experts;
    double *shares = r->sums + layer * width_of(r), *loads = loads_of(r, r->sums, layer);
    double *most = r->most + layer * n, total = 0;
    for (int64_t e = 0; e < n; e++) total += counts[e];
    if (total == 0) return; /* another stage's layer */
    for (int64_t e = 0; e < n; e++) {
        shares[e] += counts[e] / total;
        most[e] = DH_MAX(most[e], counts[e] / total);
    }
    for (int64_t ranks = 1; ranks <= n; ranks++)
        if (n % ranks == 0) loads[ranks] += (double)ranks * busiest_rank(counts, n, ranks) / total;
    *n_of(r, r->sums, layer) += 1;
}

/* Sums of loads over layers and micro-batches so far: of one expert, of a rank; how many. */
static void sum_loads(dh_load_record *r, int64_t n_expert_ranks, double sums[3])
{
    for (int k = 0; k < 3; k++) sums[k] = 0;
    for (int64_t layer = 0; layer < r->model->n_layers; layer++) {
        sums[0] += loads_of(r, r->sums, layer)[r->model->n_experts];
        sums[1] += loads_of(r, r->sums, layer)[n_expert_ranks];
        sums[2] += *n_of(r, r->sums, layer);
    }
}

dh_status dh_load_record_end_step(dh_ctx *ctx, const dh_ranks *ranks, int64_t n_expert_ranks,
                                  dh_load_record *r, double *expert, double *rank)
{
    double before[3], after[3];
    if (ranks->experts)
        DH_TRY(dh_comm_all_reduce(ctx, ranks->experts, r->step, r->step, n_counts(r), DH_F64,
                                  DH_REDUCE_SUM));
    sum_loads(r, n_expert_ranks, before);
    for (int64_t layer = 0; layer < r->model->n_layers; layer++)
        for (int64_t mb = 0; mb < r->n_micro; mb++)
            add_micro_batch(r, layer, counts_of(r, layer, mb));
    memset(r->step, 0, (size_t)n_counts(r) * sizeof *r->step);
    r->n_steps++;
    sum_loads(r, n_expert_ranks, after);
    for (int k = 0; k < 3; k++) after[k] -= before[k];
    DH_TRY(dh_ranks_sum(ctx, ranks, after, 3));
    *expert = after[0] / after[2];
    *rank = after[1] / after[2];
    return DH_OK;
}

dh_status dh_load_record_gather(dh_ctx *ctx, const dh_ranks *ranks, dh_load_record *r)
{
    const int64_t n = r->model->n_layers * width_of(r);
    memcpy(r->total, r->sums, (size_t)n * sizeof *r->total);
    DH_TRY(dh_ranks_sum(ctx, ranks, r->total, n));
    if (!ranks->control) return DH_OK;
    return dh_comm_all_reduce(ctx, ranks->control, r->most, r->most,
                              r->model->n_layers * r->model->n_experts, DH_F64, DH_REDUCE_MAX);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* [n] values over n_all of them. */
static json_t *array_of(const double *values, int64_t n, double n_all)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(array, json_real(values[i] / n_all));
    return array;
}

/* Of sums of loads [n + 1], by ranks, over n_all micro-batches. */
static json_t *loads_json(const double *loads, int64_t n, double n_all)
{
    json_t *object = json_object();
    for (int64_t ranks = 1; ranks <= n; ranks++) {
        char name[32];
        if (n % ranks) continue;
        snprintf(name, sizeof name, "%lld", (long long)ranks);
        json_object_set_new(object, name, json_real(loads[ranks] / n_all));
    }
    return object;
}

static json_t *layer_json(const dh_load_record *r, int64_t layer)
{
    const int64_t n = r->model->n_experts;
    const double n_all = *n_of(r, r->total, layer);
    if (dh_model_of_layer(r->model, layer).n_experts == 0) return json_null();
    return json_pack("{s:o, s:o, s:o}", "load", loads_json(loads_of(r, r->total, layer), n, n_all),
                     "mean", array_of(r->total + layer * width_of(r), n, n_all), "most",
                     array_of(r->most + layer * n, n, 1));
}

/* Layers with experts count alike: each has had as many micro-batches. */
static json_t *all_loads(const dh_load_record *r)
{
    const int64_t n = r->model->n_experts;
    double *sums = calloc((size_t)n + 1, sizeof *sums), n_all = 0;
    for (int64_t layer = 0; sums && layer < r->model->n_layers; layer++) {
        for (int64_t ranks = 1; ranks <= n; ranks++)
            sums[ranks] += loads_of(r, r->total, layer)[ranks];
        n_all += *n_of(r, r->total, layer);
    }
    json_t *object = sums ? loads_json(sums, n, n_all) : NULL;
    free(sums);
    return object;
}

dh_status dh_load_record_write(dh_ctx *ctx, const dh_load_record *r, const char *dir)
{
    json_t *layers = json_array();
    for (int64_t layer = 0; layer < r->model->n_layers; layer++)
        json_array_append_new(layers, layer_json(r, layer));
    json_t *object =
        json_pack("{s:I, s:I, s:I, s:o, s:o}", "experts", (json_int_t)r->model->n_experts, "top_k",
                  (json_int_t)r->model->top_k, "steps", (json_int_t)r->n_steps, "load",
                  all_loads(r), "layers", layers);
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/experts.json", dir);
    if (path.failed) json_decref(object);
    dh_status st = path.failed ? dh_no_memory(ctx) : dh_json_write(ctx, path.text, object);
    dh_str_fini(&path);
    return st;
}
