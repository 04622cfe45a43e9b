/* A job's training step, simulated. */
#include "dhelix/simulate.h"

#include <stdlib.h>
#include <string.h>

#include "train/run.h"
#include "train/slow.h"

/* ---- what the job's programs are built from ---------------------------------------------- */

static dh_status resolve_vocab(dh_ctx *ctx, dh_job *job)
{
    if (job->model.vocab > 0) return DH_OK;
    dh_tokenizer *tokenizer;
    DH_TRY(dh_train_tokenizer(ctx, job, &tokenizer));
    dh_tokenizer_destroy(tokenizer);
    return DH_OK;
}

static dh_status place_on(dh_ctx *ctx, dh_job *job, const dh_cluster *cluster,
                          dh_session_spec *spec)
{
    if (!cluster) return dh_train_costs(ctx, job, &spec->recipe.costs);
    DH_TRY(dh_cluster_mesh(ctx, cluster, job->dp, job->tp, job->pp, job->cp, job->ep,
                           &spec->recipe.mesh));
    spec->recipe.backend = NULL;
    return dh_cluster_costs(ctx, job->arena, cluster, &spec->recipe.costs);
}

static dh_status simulate_job(dh_ctx *ctx, dh_job *job, const dh_train_simulation *how,
                              dh_sim **sim)
{
    dh_session_spec session;
    dh_schedule *schedule;
    DH_TRY(resolve_vocab(ctx, job));
    DH_TRY(dh_train_plan(ctx, job, &session));
    DH_TRY(dh_model_validate(ctx, &session.recipe.model));
    DH_TRY(dh_train_ordering(ctx, job, &session.recipe.ordering));
    DH_TRY(place_on(ctx, job, how->cluster, &session));
    DH_TRY(dh_train_schedule(ctx, job, &schedule));
    session.recipe.schedule = schedule;
    dh_sim_options options;
    dh_status st = dh_train_slow(ctx, job, how, &session.recipe.mesh, &options);
    /* Threads of this process share what it may use; a launcher gives every process its own. */
    const bool threads = !how->cluster && job->nodes <= 1 && dh_launched_ranks() == 0;
    if (threads) options.cores = dh_own_processors();
    if (st == DH_OK) st = dh_simulate(ctx, &session.recipe, session.recipe.costs, &options, sim);
    dh_schedule_destroy(schedule);
    return st;
}

dh_status dh_train_simulate(dh_ctx *ctx, dh_job *job, const dh_train_simulation *how, dh_sim **sim)
{
    char *const own = job->strategy;
    if (how->strategy) job->strategy = dh_arena_strdup(job->arena, how->strategy);
    dh_status st = job->strategy ? simulate_job(ctx, job, how, sim)
                                 : dh_fail(ctx, DH_ENOMEM, "out of memory simulating");
    job->strategy = own;
    return st;
}

/* ---- a run folder ---------------------------------------------------------------------------- */

static dh_status write_trace(dh_ctx *ctx, const dh_sim_rank *rank, const char *dir)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/trace-rank%lld.json", dir, (long long)rank->rank);
    dh_status st = path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory writing a trace")
                               : dh_trace_write(ctx, path.text, rank->program, rank->spans);
    dh_str_fini(&path);
    return st;
}

static dh_status write_summary(dh_ctx *ctx, const dh_sim *sim, const char *dir)
{
    const double step_s = (double)sim->step_ns * 1e-9;
    uint64_t planned = 0, peak = 0;
    for (size_t k = 0; k < sim->n_classes; k++) {
        planned = DH_MAX(planned, sim->ranks[k].memory.slab_bytes);
        peak = DH_MAX(peak, sim->ranks[k].memory.peak_bytes);
    }
    json_t *object =
        json_pack("{sb ss sI sf sI}", "simulated", 1, "costs", sim->costs, "steps", (json_int_t)1,
                  "tokens_per_s", step_s > 0 ? (double)sim->tokens / step_s : 0.0,
                  "slab_peak_bytes", (json_int_t)peak);
    if (object && planned > 0)
        json_object_set_new(object, "slab_planned_bytes", json_integer((json_int_t)planned));
    if (object) dh_times_summarize(&sim->ranks[0].times, object);
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/summary.json", dir);
    if (path.failed) json_decref(object);
    dh_status st = path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory writing the summary")
                               : dh_json_write(ctx, path.text, object);
    dh_str_fini(&path);
    return st;
}

dh_status dh_train_write_simulated(dh_ctx *ctx, const dh_job *job, const dh_sim *sim,
                                   const char *dir)
{
    DH_TRY(dh_dir_create(ctx, dir));
    DH_TRY(dh_run_write_job(ctx, job, dir));
    for (size_t k = 0; k < sim->n_classes; k++) DH_TRY(write_trace(ctx, &sim->ranks[k], dir));
    return write_summary(ctx, sim, dir);
}
