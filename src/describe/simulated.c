/* Simulating a job with several strategies: what they have in common is resolved once. */
#include "describe/simulated.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- strategies ----------------------------------------------------------------------------- */

static dh_status add_strategy(dh_ctx *ctx, const char *name, size_t n_name, dh_simulated_list *list)
{
    const dh_strategy *strategy;
    const char *text = dh_arena_printf(list->arena, "%.*s", (int)n_name, name);
    if (!text) return dh_fail(ctx, DH_ENOMEM, "out of memory listing strategies");
    DH_TRY(dh_strategy_read(ctx, list->arena, text, &strategy));
    list->at[list->n++] = (dh_simulated){.strategy = strategy};
    return DH_OK;
}

/* Up to the next comma outside brackets. */
static size_t name_length(const char *names)
{
    size_t n = 0;
    for (int depth = 0; names[n] && (depth > 0 || names[n] != ','); n++)
        depth += (strchr("({[", names[n]) != NULL) - (strchr(")}]", names[n]) != NULL);
    return n;
}

dh_status dh_simulated_open(dh_ctx *ctx, const dh_job *job, const char *strategies,
                            dh_simulated_list *list)
{
    size_t n_all, n_named = 1;
    const dh_strategy *all = dh_strategies(&n_all);
    const char *names = strategies ? strategies : job->strategy;
    if (strcmp(names, "auto") == 0) names = "all";
    for (const char *c = names; *c; c++) n_named += *c == ',';
    *list = (dh_simulated_list){.arena = dh_arena_create()};
    if (list->arena) list->at = DH_NEW_N(list->arena, dh_simulated, DH_MAX(n_all, n_named));
    if (!list->at) return dh_fail(ctx, DH_ENOMEM, "out of memory listing strategies");
    if (strcmp(names, "all") == 0) {
        for (size_t i = 0; i < n_all; i++)
            list->at[list->n++] = (dh_simulated){.strategy = &all[i]};
        return DH_OK;
    }
    for (;;) {
        const size_t n = name_length(names);
        DH_TRY(add_strategy(ctx, names, n, list));
        if (!names[n]) return DH_OK;
        names += n + 1;
    }
}

void dh_simulated_fini(dh_simulated_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        dh_sim_destroy(list->at[i].sim);
        dh_resolved_destroy(list->at[i].job);
    }
    dh_resolved_destroy(list->open);
    dh_arena_destroy(list->arena);
    *list = (dh_simulated_list){.n = 0};
}

/* ---- simulating ----------------------------------------------------------------------------- */

/* What this machine could never hold is meant for another one. A bound from below: weights and
 * moments in float32, once over all ranks. */
static dh_status check_here(dh_ctx *ctx, const dh_job *job)
{
    enum { LEAST_BYTES = 12 }; /* of a parameter */
    char need[32], room[32];
    const double bytes = LEAST_BYTES * (double)dh_model_n_params(&job->model);
    const double here = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    if (bytes <= here) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s cannot run on this machine: its weights and moments alone take %s of %s; "
                   "name the hardware to simulate with --cluster (dhelix list clusters)",
                   job->model.name, dh_format_bytes(need, sizeof need, bytes),
                   dh_format_bytes(room, sizeof room, here));
}

static double peak_of(const dh_simulated_how *how, const dh_job *job)
{
    if (how->peak_flops_per_s > 0) return how->peak_flops_per_s;
    if (!how->cluster) return 0;
    return job->dtype == DH_F32 ? how->cluster->f32_flops_per_s : how->cluster->bf16_flops_per_s;
}

static dh_status simulate_one(dh_ctx *ctx, const dh_simulated_list *list,
                              const dh_train_simulation *how, dh_simulated *one)
{
    dh_status st = dh_resolved_vary(ctx, list->open, one->strategy, &one->job);
    if (st == DH_OK) st = dh_train_simulate(ctx, one->job, how, &one->sim);
    if (st == DH_OK) st = dh_cargo_means_of(ctx, one->sim, one->job->recipe.costs, &one->cargo);
    if (st == DH_OK || list->n == 1 || st == DH_ENOMEM) return st;
    snprintf(one->reason, sizeof one->reason, "%s", ctx->message);
    dh_ctx_reset(ctx);
    return DH_OK;
}

dh_status dh_simulated_run(dh_ctx *ctx, const dh_job *job, const dh_simulated_how *how,
                           dh_simulated_list *list)
{
    const dh_resolve_options any = {.cluster = how->cluster, .open = true};
    if (!how->cluster) DH_TRY(check_here(ctx, job));
    list->cluster = how->cluster;
    list->peak_flops_per_s = peak_of(how, job);
    DH_TRY(dh_job_resolve(ctx, job, &any, &list->open));
    list->job = &list->open->job;
    for (size_t i = 0; i < list->n; i++)
        DH_TRY(simulate_one(ctx, list, &how->simulation, &list->at[i]));
    return DH_OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

static dh_status write_folder(dh_ctx *ctx, const dh_simulated_list *list, const dh_simulated *one,
                              const char *out)
{
    dh_str dir = DH_STR_INIT;
    dh_str_printf(&dir, list->n > 1 ? "%s/%s" : "%s", out, one->strategy->name);
    dh_status st = dir.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory writing a run folder")
                              : dh_train_write_simulated(ctx, &one->job->job, one->sim, dir.text);
    dh_str_fini(&dir);
    return st;
}

dh_status dh_simulated_write(dh_ctx *ctx, const dh_simulated_list *list, const char *dir)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->at[i].sim) DH_TRY(write_folder(ctx, list, &list->at[i], dir));
    return DH_OK;
}
