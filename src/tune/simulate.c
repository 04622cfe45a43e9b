/* A configuration's step as `dhelix simulate` has it, and what it is made of. */
#include "train/recipe.h"
#include "train/simulation.h"
#include "tune/tuner.h"

static dh_status resolve_row(dh_ctx *ctx, const tuner *t, const dh_tune_config *config,
                             dh_resolved **job)
{
    const dh_resolve_options how = {.cluster = t->options->cluster, .quiet = true};
    dh_job own = *t->job;
    own.layer_split = t->own_split; /* not that of the mesh that was visited last */
    DH_TRY(dh_tune_apply(ctx, config, &own));
    return dh_job_resolve(ctx, &own, &how, job);
}

/* Means over all ranks, each that was simulated counting for those that it stands for. */
static void add_items(const dh_sim *sim, dh_tune_row *row)
{
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        const dh_timeline *t = &r->times;
        const double share = (double)r->n_ranks / (double)sim->n_ranks;
        const int64_t bubble = t->waits_ns[DH_WAITS_STAGES];
        const int64_t partners = t->waits_ns[DH_WAITS_PARTNERS];
        const int64_t ns[DH_N_TUNE_SIMULATED] = {
            [DH_TUNE_SIMULATED_COMPUTE] = t->busy_ns[DH_ENGINE_COMPUTE],
            [DH_TUNE_SIMULATED_EXPOSED] = t->exposed_ns,
            [DH_TUNE_SIMULATED_BUBBLE] = bubble,
            [DH_TUNE_SIMULATED_PARTNERS] = partners,
            [DH_TUNE_SIMULATED_REST] = t->idle_ns - bubble - partners};
        for (int p = 0; p < DH_N_TUNE_SIMULATED; p++)
            row->simulated_item_ns[p] += share * (double)ns[p];
        row->simulated_bytes = DH_MAX(row->simulated_bytes, r->memory.peak_bytes);
    }
}

/* Where the system is another, what that would need counts. */
static dh_status add_system_memory(dh_ctx *ctx, const dh_job *job, const dh_sim *sim,
                                   dh_tune_row *row)
{
    dh_system_memory *each;
    uint64_t most = 0;
    DH_TRY(dh_train_system_memory(ctx, job, sim, &each));
    if (!each) return DH_OK;
    for (size_t k = 0; k < sim->n_classes; k++) most = DH_MAX(most, each[k].peak_bytes);
    row->simulated_bytes = most;
    return DH_OK;
}

dh_status tune_simulate(dh_ctx *ctx, const tuner *t, dh_tune_row *row)
{
    const dh_train_simulation how = {.n_slow_nodes = 0};
    dh_resolved *job;
    dh_sim *sim = NULL;
    DH_TRY(resolve_row(ctx, t, &row->config, &job));
    dh_status st = dh_train_simulate(ctx, job, &how, &sim);
    if (st == DH_OK) {
        row->simulated_ns = sim->step_ns;
        add_items(sim, row);
        st = add_system_memory(ctx, &job->job, sim, row);
        row->fits = (double)row->simulated_bytes <= t->memory_bytes;
    }
    dh_sim_destroy(sim);
    dh_resolved_destroy(job);
    return st;
}
