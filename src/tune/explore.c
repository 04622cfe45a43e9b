/* Every configuration, by as many threads as are asked for, with a result that does not depend on
 * them.
 *
 * Threads take groups of units with the same tensor, context and expert parallelism. Graphs, their
 * times and outlines are shared inside a group and nowhere else. One thread runs a group in the
 * order of its units, so shared parts are the same whichever thread that is. A limit that one
 * thread finds counts for all at once: limits leave out only configurations that cannot be in the
 * result. Only the number of schedules left out unplaced would depend on when a limit is known.
 * Configurations whose schedule is placed by a search of its own therefore get only bounds at
 * first. When all others are done they are looked at by bound, in batches, each by its group's
 * thread. A batch uses the limits at its beginning.
 *
 * If there are many, those of the first strategy go first (scouts). A configuration is worth no
 * look if its work, which no strategy saves, takes longer than a multiple of the scouts' best. An
 * example is 4 tokens a rank. A ring over 512 ranks has 512 steps, which take most of the
 * time. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/stop.h"
#include "train/recipe.h"
#include "tune/tuner.h"

/* TUNING: a thread's progress is shown, and a stop seen, so often. */
enum { SHOW_EVERY = 256 };
/* TUNING: more than a mesh, or so many configurations, add. */
enum { LEAST_FREE = 32 << 20 };
/* TUNING: of the 175B model on 1,024 A100; the larger a batch, the more is placed that a batch of
 * one would leave out. */
enum { BATCH = 64 };
/* TUNING: blocks of so many kinds are kept from batch to batch, tens of MB of most meshes. */
enum { MOST_KEPT = 64 };

/* A configuration whose schedule is placed by a search of its own. */
typedef struct placed {
    dh_tune_config config;
    int64_t place;
    double least_ns, least_bytes; /* bounds */
    bool fits;                    /* by the bound */
    size_t owner;                 /* worker that has its graphs */
    tune_limits limits;
} placed;

/* Units [first, end) of the sorted ones. */
typedef struct group {
    size_t first, end;
} group;

typedef struct worker worker;
typedef dh_status worker_part(worker *w);

typedef struct exploration {
    tune_found *found;
    dh_progress *progress;
    tune_units units;
    DH_VEC(group) groups;
    worker *workers; /* [n_workers] */
    size_t n_workers;
    pthread_mutex_t lock; /* guards the members below, found and progress */
    size_t next_group;
    DH_VEC(placed) placed;
    placed *batch[BATCH];
    size_t n_batch;
    int64_t n_all, n_done;
    int64_t scout;     /* strategy of scouts; -1: none is wanted */
    double scouted_ns; /* the best of them; INFINITY: there is none yet */
    bool failed;
} exploration;

struct worker {
    exploration *x;
    size_t index;
    tuner own, *t; /* the first one's is the search's */
    dh_job job;
    dh_ctx ctx;
    dh_status status;
    tune_hints hints;
    int64_t place; /* the present configuration's */
    int64_t n_counted;
    pthread_t thread;
    worker_part *part;
    bool started;
};

/* ---- threads -------------------------------------------------------------------------------- */

static void *run_part(void *arg)
{
    worker *w = arg;
    w->status = w->part(w);
    if (w->status == DH_OK) return NULL;
    pthread_mutex_lock(&w->x->lock);
    w->x->failed = true;
    pthread_mutex_unlock(&w->x->lock);
    return NULL;
}

/* Where a thread cannot be had the calling one does its part. The first worker that failed says
 * why. */
static dh_status run_all(dh_ctx *ctx, exploration *x, worker_part *part)
{
    dh_status st = DH_OK;
    x->next_group = 0;
    for (size_t i = 0; i < x->n_workers; i++) {
        worker *w = &x->workers[i];
        w->part = part;
        w->started = i > 0 && pthread_create(&w->thread, NULL, run_part, w) == 0;
    }
    run_part(&x->workers[0]);
    for (size_t i = 1; i < x->n_workers; i++) {
        if (x->workers[i].started)
            pthread_join(x->workers[i].thread, NULL);
        else
            run_part(&x->workers[i]);
    }
    for (size_t i = 0; st == DH_OK && i < x->n_workers; i++)
        if ((st = x->workers[i].status) != DH_OK) dh_fail(ctx, st, "%s", x->workers[i].ctx.message);
    return st;
}

/* ---- units ---------------------------------------------------------------------------------- */

/* Large groups of ranks that share sequences come last: these take longest, and are seldom the
 * best. Costs of this machine are a mesh's. */
static const dh_tune_dim by_graphs[] = {DH_TUNE_CP, DH_TUNE_TP, DH_TUNE_EP};
static const dh_tune_dim by_mesh[] = {DH_TUNE_CP, DH_TUNE_TP, DH_TUNE_EP, DH_TUNE_PP};

static int compare(bool mesh, const tune_unit *a, const tune_unit *b)
{
    const dh_tune_dim *dims = mesh ? by_mesh : by_graphs;
    const size_t n = mesh ? DH_COUNTOF(by_mesh) : DH_COUNTOF(by_graphs);
    for (size_t i = 0; i < n; i++) {
        const int64_t x = a->config.at[dims[i]], y = b->config.at[dims[i]];
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}

static int compare_places(const tune_unit *a, const tune_unit *b)
{
    return a->place < b->place ? -1 : a->place > b->place;
}

static int unit_by_graphs(const void *a, const void *b)
{
    const int order = compare(false, a, b);
    return order ? order : compare_places(a, b);
}

static int unit_by_mesh(const void *a, const void *b)
{
    const int order = compare(true, a, b);
    return order ? order : compare_places(a, b);
}

static dh_status list_groups(dh_ctx *ctx, const tuner *t, exploration *x)
{
    const bool mesh = t->options->cluster == NULL;
    tune_unit *units = x->units.at;
    const size_t n = x->units.n;
    if (n > 0) qsort(units, n, sizeof *units, mesh ? unit_by_mesh : unit_by_graphs);
    for (size_t i = 0, first = 0; i < n; i++) {
        if (i + 1 < n && compare(mesh, &units[i], &units[i + 1]) == 0) continue;
        const group g = {first, i + 1};
        if (!dh_vec_push(&x->groups, g)) return dh_no_memory(ctx);
        first = i + 1;
    }
    return DH_OK;
}

/* The next group; false: there is none, or there is no use. */
static bool take_group(exploration *x, group *g)
{
    pthread_mutex_lock(&x->lock);
    const bool there = !x->failed && x->next_group < x->groups.n;
    if (there) *g = x->groups.at[x->next_group++];
    pthread_mutex_unlock(&x->lock);
    return there;
}

/* A search fills memory bit by bit: the kernel would end it, where it cannot say no. */
static dh_status check_memory(dh_ctx *ctx)
{
    return dh_memory_check(ctx, LEAST_FREE, "going on with the search (--threads 1 takes least)");
}

static dh_status each_unit(worker *w, tune_visit *visit)
{
    group g;
    while (take_group(w->x, &g)) {
        for (size_t i = g.first; i < g.end; i++) {
            w->place = w->x->units.at[i].place;
            DH_TRY(check_memory(&w->ctx));
            DH_TRY(tune_each(&w->ctx, w->t, &w->x->units.at[i], visit, w));
        }
        DH_TRY(tune_forget(&w->ctx, w->t));
    }
    return DH_OK;
}

/* ---- counting ------------------------------------------------------------------------------- */

static dh_status count_one(dh_ctx *ctx, void *user, const dh_tune_config *config,
                           const char *refused)
{
    worker *w = user;
    w->n_counted++;
    return DH_OK;
}

static dh_status count_units(worker *w)
{
    return each_unit(w, count_one);
}

/* ---- scouts ---------------------------------------------------------------------------------- */

static dh_status check_stop(worker *w)
{
    if (!dh_stop_asked(w->ctx.stop)) return DH_OK;
    return dh_fail(&w->ctx, DH_EINTERRUPTED, "interrupted before %lld configurations",
                   (long long)w->x->n_all);
}

static double scouted_ns(exploration *x)
{
    pthread_mutex_lock(&x->lock);
    const double ns = x->scouted_ns;
    pthread_mutex_unlock(&x->lock);
    return ns;
}

static void note_scout(exploration *x, double ns)
{
    pthread_mutex_lock(&x->lock);
    x->scouted_ns = DH_MIN(x->scouted_ns, ns);
    pthread_mutex_unlock(&x->lock);
}

/* Only what is faster than all before it is of interest, so the result goes by no order. */
static dh_status scout_one(dh_ctx *ctx, void *user, const dh_tune_config *config,
                           const char *refused)
{
    worker *w = user;
    if (refused || config->at[DH_TUNE_STRATEGY] != w->x->scout) return DH_OK;
    const double best_ns = scouted_ns(w->x);
    const tune_limits limits = {
        .step_ns = best_ns, .worth_ns = isinf(best_ns) ? 0 : best_ns, .defer = true};
    dh_tune_row row = {.config = *config, .why = ""};
    tune_outcome outcome;
    const dh_status st = tune_estimate(ctx, w->t, &limits, &row, &outcome);
    if (st == DH_EINVAL || st == DH_EUNSUPPORTED) {
        dh_ctx_reset(ctx);
        return DH_OK;
    }
    if (st == DH_OK && outcome == TUNE_ESTIMATED && row.fits) note_scout(w->x, row.step_ns);
    return st == DH_OK ? check_stop(w) : st;
}

static dh_status scout_units(worker *w)
{
    return each_unit(w, scout_one);
}

static dh_status find_worth(dh_ctx *ctx, const tuner *t, exploration *x)
{
    const double asked = t->options->within;
    const bool all = asked > 0 ? isinf(asked) : x->n_all <= DH_TUNE_MANY;
    if (all || x->scout < 0) return DH_OK;
    DH_TRY(run_all(ctx, x, scout_units));
    if (!isinf(x->scouted_ns))
        x->found->worth_ns = (asked > 0 ? asked : TUNE_WORTH) * x->scouted_ns;
    return DH_OK;
}

/* ---- estimates ------------------------------------------------------------------------------ */

/* The caller holds the lock; `limits` is its own. */
static dh_status begin_one(worker *w, const dh_tune_config *config, int64_t place,
                           tune_limits *limits)
{
    exploration *x = w->x;
    if (x->n_done++ % SHOW_EVERY == 0) {
        dh_progress_count(x->progress, x->n_done, "configurations");
        if (dh_stop_asked(w->ctx.stop))
            return dh_fail(&w->ctx, DH_EINTERRUPTED,
                           "interrupted after %lld of %lld configurations", (long long)x->n_done,
                           (long long)x->n_all);
        DH_TRY(check_memory(&w->ctx));
    }
    return limits ? tune_found_limits(&w->ctx, x->found, config, place, &w->hints, limits) : DH_OK;
}

static dh_status defer(worker *w, const dh_tune_row *row, int64_t place)
{
    const placed p = {.config = row->config,
                      .place = place,
                      .least_ns = row->step_ns,
                      .least_bytes = (double)row->memory.peak_bytes,
                      .fits = row->fits,
                      .owner = w->index};
    return dh_vec_push(&w->x->placed, p) ? DH_OK : dh_no_memory(&w->ctx);
}

static dh_status note(worker *w, const dh_tune_row *row, tune_outcome outcome, int64_t place)
{
    if (outcome == TUNE_DEFERRED) return defer(w, row, place);
    if (outcome == TUNE_BEHIND)
        return tune_found_behind(&w->ctx, w->x->found, row, place, &w->hints);
    w->x->found->n_left_out += outcome == TUNE_LEFT_OUT;
    if (outcome == TUNE_LEFT_OUT) return DH_OK;
    return tune_found_estimate(&w->ctx, w->x->found, row, outcome, place, &w->hints);
}

/* The tuner has the configuration's mesh and micro-batch. */
static dh_status estimate_at(worker *w, const dh_tune_config *config, int64_t place,
                             const tune_limits *limits)
{
    dh_tune_row row = {.config = *config, .why = ""};
    tune_outcome outcome;
    char reason[sizeof w->ctx.message] = "";
    dh_status st = tune_estimate(&w->ctx, w->t, limits, &row, &outcome);
    const bool refused = st == DH_EINVAL || st == DH_EUNSUPPORTED;
    if (refused) {
        memcpy(reason, w->ctx.message, sizeof reason);
        dh_ctx_reset(&w->ctx);
    } else if (st != DH_OK) {
        return st;
    }
    pthread_mutex_lock(&w->x->lock);
    st = refused ? tune_found_refusal(&w->ctx, w->x->found, config, reason, place)
                 : note(w, &row, outcome, place);
    pthread_mutex_unlock(&w->x->lock);
    return st;
}

static dh_status estimate_one(dh_ctx *ctx, void *user, const dh_tune_config *config,
                              const char *refused)
{
    worker *w = user;
    const int64_t place = w->place++;
    tune_limits limits = {.worth_ns = w->x->found->worth_ns, .defer = true};
    pthread_mutex_lock(&w->x->lock);
    dh_status st = begin_one(w, config, place, refused ? NULL : &limits);
    if (st == DH_OK && refused) st = tune_found_refusal(ctx, w->x->found, config, refused, place);
    pthread_mutex_unlock(&w->x->lock);
    return st == DH_OK && !refused ? estimate_at(w, config, place, &limits) : st;
}

static dh_status estimate_units(worker *w)
{
    return each_unit(w, estimate_one);
}

/* ---- what is placed by a search of its own --------------------------------------------------- */

static int by_bound(const void *x, const void *y)
{
    const placed *a = x, *b = y;
    if (a->fits != b->fits) return a->fits ? -1 : 1;
    const double p = a->fits ? a->least_ns : a->least_bytes;
    const double q = b->fits ? b->least_ns : b->least_bytes;
    if (p != q) return p < q ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* Estimate the batch's configurations whose graphs the worker has, in their order. */
static dh_status estimate_batch(worker *w)
{
    const exploration *x = w->x;
    for (size_t i = 0; i < x->n_batch; i++) {
        const placed *p = x->batch[i];
        if (p->owner != w->index) continue;
        DH_TRY(tune_enter(&w->ctx, w->t, &p->config));
        DH_TRY(estimate_at(w, &p->config, p->place, &p->limits));
    }
    return w->t->all_blocks.n > MOST_KEPT ? tune_forget(&w->ctx, w->t) : DH_OK;
}

/* The next of them that bounds do not leave out, from *at on. */
static dh_status fill_batch(dh_ctx *ctx, exploration *x, size_t *at)
{
    tune_hints hints = {{0}};
    for (x->n_batch = 0; x->n_batch < BATCH && *at < x->placed.n; ++*at) {
        placed *p = &x->placed.at[*at];
        DH_TRY(tune_found_limits(ctx, x->found, &p->config, p->place, &hints, &p->limits));
        if (p->fits ? p->least_ns > p->limits.step_ns : p->least_bytes >= p->limits.bytes)
            x->found->n_left_out++;
        else
            x->batch[x->n_batch++] = p;
    }
    return DH_OK;
}

static dh_status estimate_placed(dh_ctx *ctx, exploration *x)
{
    size_t at = 0;
    if (x->placed.n == 0) return DH_OK;
    qsort(x->placed.at, x->placed.n, sizeof *x->placed.at, by_bound);
    do {
        if (dh_stop_asked(ctx->stop))
            return dh_fail(ctx, DH_EINTERRUPTED, "interrupted with %zu of %zu schedules placed", at,
                           x->placed.n);
        DH_TRY(fill_batch(ctx, x, &at));
        DH_TRY(run_all(ctx, x, estimate_batch));
        dh_progress_count(x->progress, x->n_all - (int64_t)(x->placed.n - at), "configurations");
    } while (at < x->placed.n);
    return DH_OK;
}

/* ---- layers of the ends ----------------------------------------------------------------------- */

/* TUNING: a gain of less is within what estimates are off by between splits. */
#define SPLIT_GAIN 1e-3
enum { SPLIT_ROWS = 5 }; /* TUNING: of the best; all of them would take as long as the search */

/* Schedules that are placed by times take a search each, and are placed for even stages. */
static bool has_ends(const dh_tune_config *config)
{
    size_t n;
    return config->at[DH_TUNE_SPLIT] == 0 &&
           !dh_schedule_rows(&n)[config->at[DH_TUNE_SCHEDULE]]->planned;
}

/* The fastest split of a configuration, by estimates; *better has it where there is one. All share
 * the outlines of the even split, which is estimated first. */
static dh_status find_split(dh_ctx *ctx, tuner *t, const dh_tune_row *even, dh_tune_row *better)
{
    const tune_limits none = {.step_ns = INFINITY};
    double most_ns = INFINITY;
    *better = *even;
    for (int64_t split = 0; split < TUNE_N_SPLITS; split++) {
        dh_tune_row row = {.config = even->config, .why = ""};
        tune_outcome outcome;
        row.config.at[DH_TUNE_SPLIT] = split;
        const dh_status st = tune_estimate(ctx, t, &none, &row, &outcome);
        if (st == DH_EINVAL || st == DH_EUNSUPPORTED) { /* too few layers */
            dh_ctx_reset(ctx);
            continue;
        }
        DH_TRY(st);
        if (split == 0) most_ns = row.step_ns * (1 - SPLIT_GAIN);
        if (outcome != TUNE_ESTIMATED || !row.fits || row.step_ns >= most_ns) continue;
        *better = row;
        most_ns = row.step_ns;
    }
    return DH_OK;
}

/* Fewer layers at the ends, which also have the embedding and the head, with each of the best: with
 * all configurations this would take many times as long. */
static dh_status split_best(dh_ctx *ctx, exploration *x)
{
    tuner *t = x->workers[0].t;
    tune_found *f = x->found;
    const size_t n = DH_MIN(f->n_best, (size_t)SPLIT_ROWS);
    dh_tune_row rows[SPLIT_ROWS];
    memcpy(rows, f->best, n * sizeof *rows);
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n; i++) {
        dh_tune_row better;
        size_t at = 0;
        if (!has_ends(&rows[i].config)) continue;
        st = tune_begin_anew(ctx, t);
        if (st == DH_OK) st = tune_enter(ctx, t, &rows[i].config);
        if (st == DH_OK) st = find_split(ctx, t, &rows[i], &better);
        if (st != DH_OK || better.config.at[DH_TUNE_SPLIT] == 0) continue;
        while (memcmp(&f->best[at].config, &rows[i].config, sizeof rows[i].config) != 0) at++;
        st = tune_found_instead(ctx, f, at, &better, INT64_MAX - (int64_t)(n - i));
    }
    return st;
}

/* ---- entry ---------------------------------------------------------------------------------- */

size_t tune_n_threads(const tuner *t)
{
    if (t->options->n_threads > 0) return (size_t)t->options->n_threads;
    return (size_t)DH_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
}

static dh_status add_workers(dh_ctx *ctx, tuner *t, exploration *x)
{
    const size_t n = DH_MAX(DH_MIN(tune_n_threads(t), x->groups.n), (size_t)1);
    x->workers = calloc(n, sizeof *x->workers);
    if (!x->workers) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) {
        worker *w = &x->workers[i];
        *w = (worker){.x = x, .index = i, .own = *t, .job = *t->job, .ctx = dh_ctx_like(ctx)};
        w->t = i == 0 ? t : &w->own;
        x->n_workers = i + 1;
        if (i > 0) DH_TRY(tune_tuner_init(ctx, &w->own, &w->job));
    }
    return DH_OK;
}

static dh_status explore(dh_ctx *ctx, tuner *t, exploration *x)
{
    DH_TRY(tune_list_units(ctx, t, &x->units));
    DH_TRY(list_groups(ctx, t, x));
    DH_TRY(add_workers(ctx, t, x));
    DH_TRY(run_all(ctx, x, count_units));
    for (size_t i = 0; i < x->n_workers; i++) x->n_all += x->workers[i].n_counted;
    dh_progress_start(x->progress, 0, x->n_all, 1, t->options->quiet);
    dh_status st = find_worth(ctx, t, x);
    if (st == DH_OK) st = run_all(ctx, x, estimate_units);
    if (st == DH_OK) st = estimate_placed(ctx, x);
    if (st == DH_OK && t->searches_splits) st = split_best(ctx, x);
    if (st == DH_OK) dh_progress_clear(x->progress);
    tune_found_sort(x->found);
    return st;
}

static int64_t first_strategy(const tuner *t)
{
    size_t n;
    dh_strategies(&n);
    for (size_t i = 0; i < n; i++)
        if (t->strategy_wanted[i]) return (int64_t)i;
    return -1;
}

dh_status tune_explore(dh_ctx *ctx, tuner *t, tune_found *found, dh_progress *progress,
                       int64_t *n_all)
{
    exploration x = {
        .found = found, .progress = progress, .scout = first_strategy(t), .scouted_ns = INFINITY};
    pthread_mutex_init(&x.lock, NULL);
    const dh_status st = explore(ctx, t, &x);
    *n_all = x.n_all;
    for (size_t i = 1; i < x.n_workers; i++) tune_tuner_fini(&x.workers[i].own);
    free(x.workers);
    dh_vec_fini(&x.units);
    dh_vec_fini(&x.groups);
    dh_vec_fini(&x.placed);
    pthread_mutex_destroy(&x.lock);
    return st;
}
