/* A configuration's step as `dhelix simulate` has it, and what it is made of; of many, a thread
 * each at a time. */
#include <pthread.h>

#include "base/stop.h"
#include "train/recipe.h"
#include "train/simulation.h"
#include "tune/tuner.h"

/* The search's job is every thread's: what is added to it goes to the arena. */
static dh_status resolve_row(dh_ctx *ctx, const tuner *t, const dh_tune_config *config,
                             dh_arena *arena, dh_resolved **job)
{
    const dh_resolve_options how = {
        .cluster = t->options->cluster, .room_bytes = t->memory_bytes, .quiet = true};
    dh_job own = *t->job;
    own.arena = arena;
    own.layer_split = t->own_split; /* not that of the mesh that was visited last */
    if (t->splits && !(own.layer_split = dh_arena_strdup(arena, "auto"))) return dh_no_memory(ctx);
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
            [DH_TUNE_SIMULATED_COMPUTE] = dh_timeline_compute_ns(t),
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

static dh_status simulate_resolved(dh_ctx *ctx, const tuner *t, const dh_resolved *job,
                                   dh_tune_row *row)
{
    const dh_train_simulation how = {.sim.sums = true};
    dh_sim *sim = NULL;
    dh_status st = dh_train_simulate(ctx, job, &how, &sim);
    if (st == DH_OK) {
        row->simulated_ns = sim->step_ns;
        add_items(sim, row);
        st = add_system_memory(ctx, &job->job, sim, row);
        row->fits = (double)row->simulated_bytes <= t->memory_bytes;
    }
    dh_sim_destroy(sim);
    return st;
}

static dh_status simulate(dh_ctx *ctx, const tuner *t, dh_tune_row *row)
{
    dh_resolved *job = NULL;
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    dh_status st = resolve_row(ctx, t, &row->config, arena, &job);
    if (st == DH_OK) st = simulate_resolved(ctx, t, job, row);
    dh_resolved_destroy(job);
    dh_arena_destroy(arena);
    return st;
}

/* ---- many ------------------------------------------------------------------------------------ */

bool tune_is_refused(const tune_simulation *s)
{
    return s->ctx.status == DH_EINVAL || s->ctx.status == DH_EUNSUPPORTED;
}

/* TUNING: a simulation has a few hundred MB. */
enum { MOST_AT_ONCE = 8 };

typedef struct crew {
    const tuner *t;
    tune_simulation *at;
    size_t n;
    dh_progress *progress;
    int64_t n_before; /* where progress begins to count */
    const char *what;
    pthread_mutex_t lock; /* guards the members below, and progress */
    size_t n_taken, n_done;
    bool failed;
} crew;

/* The next to simulate, in their order; NULL: there is none, or none is wanted any more. */
static tune_simulation *take(crew *c)
{
    pthread_mutex_lock(&c->lock);
    dh_progress_count(c->progress, c->n_before + (int64_t)c->n_done, c->what);
    const bool ends = c->failed || c->n_taken == c->n || dh_stop_asked(c->at[0].ctx.stop);
    tune_simulation *s = ends ? NULL : &c->at[c->n_taken++];
    pthread_mutex_unlock(&c->lock);
    return s;
}

static void put(crew *c, const tune_simulation *s)
{
    pthread_mutex_lock(&c->lock);
    c->n_done++;
    c->failed |= s->ctx.status != DH_OK && !tune_is_refused(s);
    pthread_mutex_unlock(&c->lock);
}

static void *work(void *arg)
{
    crew *c = arg;
    for (tune_simulation *s = take(c); s; s = take(c)) {
        if (s->row.simulated_ns == 0) (void)simulate(&s->ctx, c->t, &s->row); /* put() looks */
        put(c, s);
    }
    return NULL;
}

void tune_simulate(const tuner *t, tune_simulation *at, size_t n, dh_progress *progress,
                   int64_t n_before, const char *what)
{
    crew c = {.t = t, .at = at, .n = n, .progress = progress, .n_before = n_before, .what = what};
    pthread_mutex_init(&c.lock, NULL);
    dh_work_together(DH_MIN(DH_MIN(tune_n_threads(t), n), (size_t)MOST_AT_ONCE), work, &c);
    pthread_mutex_destroy(&c.lock);
}
