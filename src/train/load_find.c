/* The load of experts that a job's predictions go by (load.h). */
#include "train/load.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/json_text.h"

enum { MAX_FILE_BYTES = 64 << 20 };

/* ---- reading --------------------------------------------------------------------------------- */

static dh_status check_experts(dh_ctx *ctx, const json_t *root, const dh_model *model,
                               const char *path)
{
    const json_int_t n = json_integer_value(json_object_get(root, "experts"));
    const json_int_t k = json_integer_value(json_object_get(root, "top_k"));
    if (n == model->n_experts && k == model->top_k) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s is of %lld experts, %lld for a token; the job's model has %lld, %lld for a "
                   "token",
                   path, (long long)n, (long long)k, (long long)model->n_experts,
                   (long long)model->top_k);
}

static dh_status read_loads(dh_ctx *ctx, const json_t *root, int64_t n, const char *path,
                            double *by_ranks)
{
    const json_t *loads = json_object_get(root, "load");
    for (int64_t ranks = 1; ranks <= n; ranks++) {
        char name[32];
        if (n % ranks) continue;
        snprintf(name, sizeof name, "%lld", (long long)ranks);
        const double load = json_number_value(json_object_get(loads, name));
        /* Means of quotients may end just below 1. */
        if (!(load >= 0.999 && load <= (double)ranks * 1.001))
            return dh_fail(ctx, DH_EFORMAT, "%s: \"load\" lacks a number from 1 to %lld for \"%s\"",
                           path, (long long)ranks, name);
        by_ranks[ranks] = load;
    }
    return DH_OK;
}

static dh_status read_file(dh_ctx *ctx, const char *path, const dh_model *model, double *by_ranks)
{
    char *text;
    size_t n_bytes;
    json_t *root;
    if (!dh_path_exists(path))
        return dh_fail(ctx, DH_EMISSING,
                       "there is no %s, which training a model with experts leaves: moe.recorded "
                       "is to name a run folder",
                       path);
    DH_TRY(dh_file_read(ctx, path, MAX_FILE_BYTES, &text, &n_bytes));
    dh_status st = dh_json_read(ctx, text, n_bytes, JSON_REJECT_DUPLICATES, NULL, &root);
    free(text);
    if (st != DH_OK) return st;
    if (!json_is_object(root))
        st = dh_fail(ctx, DH_EFORMAT, "%s is no JSON object, as training writes it", path);
    if (st == DH_OK) st = check_experts(ctx, root, model, path);
    if (st == DH_OK) st = read_loads(ctx, root, model->n_experts, path, by_ranks);
    json_decref(root);
    return st;
}

dh_status dh_load_read(dh_ctx *ctx, dh_arena *arena, const dh_model *model, const char *run,
                       dh_expert_load *load)
{
    double *by_ranks = DH_NEW_N(arena, double, model->n_experts + 1);
    const char *path = dh_arena_printf(arena, "%s/experts.json", run);
    const char *name = dh_arena_printf(arena, "as in %s", run);
    if (!by_ranks || !path || !name) return dh_no_memory(ctx);
    DH_TRY(read_file(ctx, path, model, by_ranks));
    *load = (dh_expert_load){.name = name, .n_experts = model->n_experts, .by_ranks = by_ranks};
    return DH_OK;
}

/* ---- of a job -------------------------------------------------------------------------------- */

dh_status dh_job_load_costs(dh_ctx *ctx, dh_arena *arena, const dh_job *job, const dh_costs *plain,
                            const dh_costs **costs)
{
    dh_expert_load load;
    const dh_model *model = &job->model;
    const bool recorded = job->moe_recorded && *job->moe_recorded;
    *costs = plain;
    if (!model->n_experts || (!recorded && job->moe_load <= 1)) return DH_OK;
    DH_TRY(recorded ? dh_load_read(ctx, arena, model, job->moe_recorded, &load)
                    : dh_load_of_busiest(ctx, arena, model->n_experts, model->top_k, job->moe_load,
                                         &load));
    return dh_load_costs(ctx, arena, plain, &load, costs);
}
