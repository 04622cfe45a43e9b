/* The commands' JSON for callers: each makes the same document by the same functions. */
#include "dhelix/describe.h"

#include <math.h>

#include "base/json_text.h"
#include "base/needs.h"
#include "describe/calibrated.h"
#include "describe/checked.h"
#include "describe/converted.h"
#include "describe/evaluated.h"
#include "describe/grid.h"
#include "describe/layer.h"
#include "describe/lists.h"
#include "describe/order.h"
#include "describe/profiled.h"
#include "describe/simulated.h"
#include "describe/tokenized.h"
#include "describe/trained.h"
#include "describe/tuned.h"

static dh_status check_peak(dh_ctx *ctx, double flops_per_s)
{
    if (flops_per_s >= 0 && isfinite(flops_per_s)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "a peak of %g FLOP/s: 0, for the cluster's, or more would be right",
                   flops_per_s);
}

dh_status dh_describe_lists(dh_ctx *ctx, dh_str *json)
{
    DH_NEEDS(ctx, json);
    return dh_json_append(ctx, dh_lists_json(), json);
}

dh_status dh_describe_check(dh_ctx *ctx, const dh_job *job, int64_t rank, dh_str *json)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, json);
    const dh_resolve_options how = {.quiet = true};
    dh_resolved *resolved;
    dh_checked checked;
    if (rank < 0 || rank >= job->ranks)
        return dh_fail(ctx, DH_EINVAL, "rank %lld: the job has ranks 0 to %lld", (long long)rank,
                       (long long)job->ranks - 1);
    DH_TRY(dh_job_resolve(ctx, job, &how, &resolved));
    dh_status st = dh_checked_make(ctx, resolved, rank, &checked);
    if (st == DH_OK) st = dh_json_append(ctx, dh_checked_json(resolved, &checked), json);
    dh_checked_fini(&checked);
    dh_resolved_destroy(resolved);
    return st;
}

dh_status dh_describe_plan(dh_ctx *ctx, const dh_job *job, const dh_describe_plan_options *options,
                           dh_str *json)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, json);
    DH_OR_DEFAULTS(dh_describe_plan_options, options);
    const dh_resolve_options how = {.cluster = options->cluster, .quiet = true};
    const dh_train_simulation plain = {0};
    dh_resolved *resolved;
    dh_sim *sim = NULL;
    json_t *document;
    dh_layer_plan layer;
    DH_TRY(dh_job_resolve(ctx, job, &how, &resolved));
    dh_status st = dh_layer_plan_open(ctx, resolved, options->policy, NULL, &layer);
    if (st == DH_OK && options->explain) st = dh_train_simulate(ctx, resolved, &plain, &sim);
    if (st == DH_OK) st = dh_layer_plan_json(ctx, resolved, sim, &layer, &document);
    if (st == DH_OK) st = dh_json_append(ctx, document, json);
    dh_sim_destroy(sim);
    dh_layer_plan_close(&layer);
    dh_resolved_destroy(resolved);
    return st;
}

dh_status dh_describe_order(dh_ctx *ctx, const dh_job *job, const dh_describe_plan_options *options,
                            dh_str *json)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, json);
    DH_OR_DEFAULTS(dh_describe_plan_options, options);
    const dh_resolve_options how = {.cluster = options->cluster, .quiet = true};
    dh_resolved *resolved;
    json_t *document;
    dh_layer_plan layer;
    DH_TRY(dh_job_resolve(ctx, job, &how, &resolved));
    dh_status st = dh_layer_plan_open(ctx, resolved, options->policy, NULL, &layer);
    if (st == DH_OK) st = dh_order_json(ctx, resolved, &layer, &document);
    if (st == DH_OK) st = dh_json_append(ctx, document, json);
    dh_layer_plan_close(&layer);
    dh_resolved_destroy(resolved);
    return st;
}

dh_status dh_describe_simulate(dh_ctx *ctx, const dh_job *job,
                               const dh_describe_simulate_options *options, dh_str *json)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, json);
    DH_OR_DEFAULTS(dh_describe_simulate_options, options);
    DH_TRY(check_peak(ctx, options->peak_flops_per_s));
    const dh_simulated_how how = {
        .cluster = options->cluster,
        .peak_flops_per_s = options->peak_flops_per_s,
        .simulation = {.sim = {.placed = options->dir != NULL, .sums = options->dir == NULL}}};
    dh_simulated_list list;
    dh_status st = dh_simulated_open(ctx, job, options->strategies, options->schedules, &list);
    if (st == DH_OK) st = dh_simulated_run(ctx, job, &how, &list);
    if (st == DH_OK && options->dir) st = dh_simulated_write(ctx, &list, options->dir);
    if (st == DH_OK) st = dh_json_append(ctx, dh_simulated_json(&list), json);
    dh_simulated_fini(&list);
    return st;
}

dh_status dh_describe_table(dh_ctx *ctx, const char *path, const char *const *overrides,
                            size_t n_overrides, const dh_describe_table_options *options,
                            dh_str *json)
{
    DH_NEEDS(ctx, path);
    DH_NEEDS(ctx, json);
    DH_NEEDS_LIST(ctx, overrides, n_overrides);
    DH_OR_DEFAULTS(dh_describe_table_options, options);
    DH_NEEDS_LIST(ctx, options->settings, options->n_settings);
    DH_TRY(check_peak(ctx, options->peak_flops_per_s));
    const dh_simulated_how how = {.cluster = options->cluster,
                                  .peak_flops_per_s = options->peak_flops_per_s,
                                  .simulation = {.sim = {.sums = true}}};
    dh_grid grid;
    dh_status st = dh_grid_open(ctx, options->settings, options->n_settings, &grid);
    if (st == DH_OK) st = dh_grid_run(ctx, path, overrides, n_overrides, &how, &grid);
    if (st == DH_OK && options->dir) st = dh_grid_write(ctx, &grid, options->dir);
    if (st == DH_OK) st = dh_json_append(ctx, dh_grid_json(&grid), json);
    dh_grid_fini(&grid);
    return st;
}

dh_status dh_describe_tune(dh_ctx *ctx, const dh_job *job, const dh_tune_options *options,
                           dh_str *json)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, json);
    DH_OR_DEFAULTS(dh_tune_options, options);
    dh_tune *tune;
    DH_TRY(dh_tune_search(ctx, job, options, &tune));
    const dh_tuned tuned = dh_tuned_of(job, options, tune);
    dh_status st = dh_json_append(ctx, dh_tuned_json(&tuned), json);
    dh_tune_destroy(tune);
    return st;
}

dh_status dh_describe_calibrate(dh_ctx *ctx, const char *const *files, size_t n_files,
                                const dh_describe_calibrate_options *options, dh_str *json)
{
    DH_NEEDS(ctx, json);
    DH_NEEDS_LIST(ctx, files, n_files);
    DH_OR_DEFAULTS(dh_describe_calibrate_options, options);
    dh_calibrated calibrated;
    dh_status st = dh_calibrated_make(ctx, files, n_files, options, &calibrated);
    if (st == DH_OK) st = dh_json_append(ctx, dh_calibrated_json(&calibrated, options), json);
    dh_calibrated_fini(&calibrated);
    return st;
}

dh_status dh_describe_eval(dh_ctx *ctx, const char *path, const dh_describe_eval_options *options,
                           dh_str *json)
{
    DH_NEEDS(ctx, path);
    DH_NEEDS(ctx, json);
    DH_OR_DEFAULTS(dh_describe_eval_options, options);
    DH_NEEDS_LIST(ctx, options->data, options->n_data);
    dh_evaluated evaluated;
    DH_TRY(dh_evaluated_make(ctx, path, options, &evaluated));
    return dh_json_append(ctx, dh_evaluated_json(&evaluated), json);
}

dh_status dh_describe_convert(dh_ctx *ctx, const char *path, const char *out,
                              const dh_describe_convert_options *options, dh_str *json)
{
    DH_NEEDS(ctx, path);
    DH_NEEDS(ctx, out);
    DH_NEEDS(ctx, json);
    DH_OR_DEFAULTS(dh_describe_convert_options, options);
    dh_converted converted;
    DH_TRY(dh_converted_make(ctx, path, out, options, &converted));
    return dh_json_append(ctx, dh_converted_json(out, &converted), json);
}

dh_status dh_describe_tokenize(dh_ctx *ctx, const char *const *files, size_t n_files,
                               const dh_describe_tokenize_options *options, dh_str *json)
{
    DH_NEEDS(ctx, json);
    DH_NEEDS_LIST(ctx, files, n_files);
    DH_OR_DEFAULTS(dh_describe_tokenize_options, options);
    DH_NEEDS_LIST(ctx, options->text, options->n_text);
    json_t *document = NULL;
    DH_TRY(dh_tokenized_describe(ctx, files, n_files, options, &document));
    return dh_json_append(ctx, document, json);
}

dh_status dh_describe_profile(dh_ctx *ctx, const dh_job *job,
                              const dh_describe_profile_options *options, dh_str *json)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, json);
    DH_OR_DEFAULTS(dh_describe_profile_options, options);
    DH_NEEDS_LIST(ctx, options->traces, options->n_traces);
    dh_profiled profiled;
    json_t *document;
    dh_status st = dh_profiled_make(ctx, job, options, &profiled);
    if (st == DH_OK && profiled.profile) {
        st = dh_profiled_json(ctx, &profiled, &document);
        if (st == DH_OK) st = dh_json_append(ctx, document, json);
    }
    dh_profiled_fini(&profiled);
    return st;
}

dh_status dh_describe_train(dh_ctx *ctx, const dh_job *job, const dh_train_result *result,
                            dh_str *json)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, result);
    DH_NEEDS(ctx, json);
    return dh_json_append(ctx, dh_trained_json(job, result), json);
}
