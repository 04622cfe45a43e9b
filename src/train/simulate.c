/* A job's training step, simulated. */
#include "dhelix/simulate.h"
#include "base/needs.h"

#include <stdlib.h>
#include <string.h>

#include "train/recipe.h"
#include "train/run.h"
#include "train/simulation.h"
#include "train/slow.h"

/* Threads of this process share what it may use; a launcher gives every process its own. */
int64_t dh_train_cores(const dh_resolved *job)
{
    const bool threads = !job->cluster && job->job.nodes <= 1 && dh_launched_ranks() == 0;
    return threads ? dh_own_processors() : 0;
}

dh_status dh_train_simulate_on(dh_ctx *ctx, const dh_resolved *job, const dh_train_simulation *how,
                               const dh_costs *costs, dh_sim **sim)
{
    dh_sim_options options;
    if (job->job.packing == DH_PACKING_GROUP)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "data.packing group trains a step on several meshes, each with the documents of its "
            "lengths; one mesh cannot be simulated for it: data.packing pack would be right");
    DH_TRY(dh_train_slow(ctx, &job->job, how, &job->recipe.mesh, &options));
    options.cores = dh_train_cores(job);
    return dh_simulate(ctx, &job->recipe, costs, &options, sim);
}

dh_status dh_train_simulate(dh_ctx *ctx, const dh_resolved *job, const dh_train_simulation *how,
                            dh_sim **sim)
{
    return dh_train_simulate_on(ctx, job, how, job->recipe.costs, sim);
}

dh_status dh_train_system_memory(dh_ctx *ctx, const dh_job *job, const dh_sim *sim,
                                 dh_system_memory **memory)
{
    dh_system system;
    dh_system_job said;
    *memory = NULL;
    DH_TRY(dh_job_system(ctx, job, &system, &said));
    if (system.traits == 0) return DH_OK;
    dh_system_memory *each = DH_NEW_N(sim->arena, dh_system_memory, sim->n_classes);
    if (!each) return dh_no_memory(ctx);
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        DH_TRY(dh_system_memory_of(ctx, &system, &said, r->program, r->spans, &each[k]));
    }
    *memory = each;
    return DH_OK;
}

/* ---- a run folder ---------------------------------------------------------------------------- */

static dh_status write_trace(dh_ctx *ctx, const dh_sim_rank *rank, const char *dir)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/trace-rank%lld.json", dir, (long long)rank->rank);
    dh_status st = path.failed ? dh_no_memory(ctx)
                               : dh_trace_write(ctx, path.text, rank->program, rank->spans);
    dh_str_fini(&path);
    return st;
}

/* Mean over all ranks, as `dhelix simulate` prints it. All fields are nanoseconds. */
dh_timeline dh_train_mean_times(const dh_sim *sim)
{
    enum { N = sizeof(dh_timeline) / sizeof(int64_t) };
    _Static_assert(sizeof(dh_timeline) == N * sizeof(int64_t), "fields of one type");
    int64_t one[N], sum[N] = {0};
    dh_timeline mean;
    for (size_t k = 0; k < sim->n_classes; k++) {
        memcpy(one, &sim->ranks[k].times, sizeof one);
        for (int i = 0; i < N; i++) sum[i] += one[i] * sim->ranks[k].n_ranks;
    }
    for (int i = 0; i < N; i++) sum[i] /= sim->n_ranks;
    memcpy(&mean, sum, sizeof mean);
    return mean;
}

static dh_status write_summary(dh_ctx *ctx, const dh_sim *sim, const char *dir)
{
    const double step_s = (double)sim->step_ns * 1e-9;
    uint64_t planned = 0, peak = 0;
    for (size_t k = 0; k < sim->n_classes; k++) {
        planned = DH_MAX(planned, sim->ranks[k].memory.slab_bytes);
        peak = DH_MAX(peak, sim->ranks[k].memory.peak_bytes);
    }
    json_t *object = json_pack(
        "{sb ss sI sI sf sI}", "simulated", 1, "costs", sim->costs, "nodes",
        (json_int_t)sim->ranks[0].program->mesh.nodes, "steps", (json_int_t)1, "tokens_per_s",
        step_s > 0 ? (double)sim->tokens / step_s : 0.0, "slab_peak_bytes", (json_int_t)peak);
    if (object && planned > 0)
        json_object_set_new(object, "slab_planned_bytes", json_integer((json_int_t)planned));
    const dh_timeline times = dh_train_mean_times(sim);
    if (object) dh_times_summarize(&times, object);
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/summary.json", dir);
    if (path.failed) json_decref(object);
    dh_status st = path.failed ? dh_no_memory(ctx) : dh_json_write(ctx, path.text, object);
    dh_str_fini(&path);
    return st;
}

dh_status dh_train_write_simulated(dh_ctx *ctx, const dh_resolved *resolved, const dh_sim *sim,
                                   const char *dir, bool few)
{
    DH_TRY(dh_dir_create(ctx, dir));
    DH_TRY(dh_run_write_job(ctx, &resolved->job, dir));
    DH_TRY(dh_run_write_profile(ctx, resolved->profile, dir));
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        if (!few || k == 0 || r->stage != r[-1].stage) DH_TRY(write_trace(ctx, r, dir));
    }
    return write_summary(ctx, sim, dir);
}

/* ---- for callers ----------------------------------------------------------------------------- */

static uint64_t peak_of(const dh_sim *sim)
{
    uint64_t peak = 0;
    for (size_t k = 0; k < sim->n_classes; k++)
        peak = DH_MAX(peak, sim->ranks[k].memory.peak_bytes);
    return peak;
}

dh_status dh_train_try(dh_ctx *ctx, const dh_resolved *job, dh_train_trial *trial)
{
    const dh_train_simulation how = {.sim.sums = true};
    const double room = job->cluster ? job->room_bytes : 0;
    dh_sim *sim;
    DH_TRY(dh_train_simulate(ctx, job, &how, &sim));
    *trial = (dh_train_trial){.step_ns = sim->step_ns, .peak_bytes = peak_of(sim)};
    trial->hidden_share = dh_timeline_hidden_share(&sim->ranks[0].times);
    trial->fits = room <= 0 || (double)trial->peak_bytes <= room;
    dh_sim_destroy(sim);
    return DH_OK;
}

static dh_simulate_result result_of(const dh_sim *sim)
{
    return (dh_simulate_result){.n_ranks = sim->n_ranks,
                                .tokens = sim->tokens,
                                .step_s = (double)sim->step_ns * 1e-9,
                                .peak_bytes = peak_of(sim)};
}

dh_status dh_simulate_job(dh_ctx *ctx, const dh_job *job, const dh_simulate_options *options,
                          dh_simulate_result *result)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, result);
    DH_OR_DEFAULTS(dh_simulate_options, options);
    const dh_resolve_options how = {.cluster = options->cluster, .quiet = options->quiet};
    const dh_train_simulation plain = {.sim.sums = options->dir == NULL};
    dh_resolved *resolved;
    dh_sim *sim = NULL;
    DH_TRY(dh_job_resolve(ctx, job, &how, &resolved));
    dh_status st = dh_train_simulate(ctx, resolved, &plain, &sim);
    if (st == DH_OK && options->dir)
        st = dh_train_write_simulated(ctx, resolved, sim, options->dir, false);
    if (st == DH_OK) *result = result_of(sim);
    dh_sim_destroy(sim);
    dh_resolved_destroy(resolved);
    return st;
}
