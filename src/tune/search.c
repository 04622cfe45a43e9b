/* The search: every configuration estimated, the best simulated, all of them ranked. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/progress.h"
#include "train/recipe.h"
#include "tune/lengths.h"
#include "tune/tuner.h"

typedef struct search {
    dh_ctx *ctx;
    tuner t;
    const dh_tune_options *options;
    dh_tune *tune;
    dh_tune_row *best; /* [n_best], at most n_kept, by estimate */
    size_t n_best, n_kept;
    DH_VEC(dh_tune_value_row) values;
    dh_progress progress;
    int64_t n_all, n_done;
    const char *first_refusal;
    char no_split[1]; /* empty: as each schedule can */
} search;

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory tuning");
}

/* ---- what was found for each value ---------------------------------------------------------- */

static dh_tune_value_row *value_row(search *s, dh_tune_dim dim, int64_t value)
{
    for (size_t i = 0; i < s->values.n; i++)
        if (s->values.at[i].dim == dim && s->values.at[i].value == value) return &s->values.at[i];
    const dh_tune_value_row made = {.dim = dim, .value = value};
    return dh_vec_push(&s->values, made) ? &s->values.at[s->values.n - 1] : NULL;
}

static void note_fit(dh_tune_value_row *v, const dh_tune_row *row)
{
    if (v->n_fit++ == 0 || row->step_ns < v->best.step_ns) v->best = *row;
}

static void note_too_large(dh_tune_value_row *v, const dh_tune_row *row)
{
    const bool least = v->n_fit == 0 &&
                       (v->n_too_large == 0 || row->memory.peak_bytes < v->best.memory.peak_bytes);
    v->n_too_large++;
    if (least) v->best = *row;
}

/* Values that are not decided yet (-1) have no part in a refusal. */
static dh_status note_refused(search *s, const dh_tune_config *config, const char *reason)
{
    const char *own = NULL;
    s->tune->n_refused++;
    for (int d = 0; d < DH_N_TUNE_DIM; d++) {
        if (config->at[d] < 0) continue;
        dh_tune_value_row *v = value_row(s, (dh_tune_dim)d, config->at[d]);
        if (!v) return no_memory(s->ctx);
        if (v->n_refused++ > 0) continue;
        if (!own) own = dh_arena_strdup(s->tune->arena, reason);
        if (!own) return no_memory(s->ctx);
        v->why = own;
    }
    if (!s->first_refusal) s->first_refusal = dh_arena_strdup(s->tune->arena, reason);
    return DH_OK;
}

/* A dimension in which this configuration chooses nothing: a choice of others. */
static bool is_idle(const dh_tune_config *config, int dim)
{
    return dim == DH_TUNE_CP_LINEAR && config->at[dim] < 0;
}

static dh_status limits_of(search *s, const dh_tune_config *config, tune_limits *limits)
{
    limits->step_ns = s->n_best < s->n_kept ? INFINITY : s->best[s->n_best - 1].step_ns;
    limits->bytes = 0;
    for (int d = 0; d < DH_N_TUNE_DIM; d++) {
        if (is_idle(config, d)) continue;
        const dh_tune_value_row *v = value_row(s, (dh_tune_dim)d, config->at[d]);
        if (!v) return no_memory(s->ctx);
        limits->step_ns = DH_MAX(limits->step_ns, v->n_fit ? v->best.step_ns : INFINITY);
        if (v->n_fit == 0)
            limits->bytes = DH_MAX(limits->bytes,
                                   v->n_too_large ? (double)v->best.memory.peak_bytes : INFINITY);
    }
    return DH_OK;
}

static dh_status note_estimate(search *s, const dh_tune_row *row)
{
    *(row->fits ? &s->tune->n_fit : &s->tune->n_too_large) += 1;
    for (int d = 0; d < DH_N_TUNE_DIM; d++) {
        if (is_idle(&row->config, d)) continue;
        dh_tune_value_row *v = value_row(s, (dh_tune_dim)d, row->config.at[d]);
        if (!v) return no_memory(s->ctx);
        if (row->fits)
            note_fit(v, row);
        else
            note_too_large(v, row);
    }
    return DH_OK;
}

/* ---- the best ------------------------------------------------------------------------------- */

/* Of equals the first stays ahead. */
static void keep(search *s, const dh_tune_row *row)
{
    size_t at = s->n_best;
    while (at > 0 && row->step_ns < s->best[at - 1].step_ns) at--;
    if (at == s->n_kept) return;
    if (s->n_best < s->n_kept) s->n_best++;
    memmove(&s->best[at + 1], &s->best[at], (s->n_best - at - 1) * sizeof *s->best);
    s->best[at] = *row;
}

static dh_status check_stop(const search *s)
{
    if (!s->options->stop || !*s->options->stop) return DH_OK;
    return dh_fail(s->ctx, DH_EINTERRUPTED, "interrupted after %lld of %lld configurations",
                   (long long)s->n_done, (long long)s->n_all);
}

enum { SHOW_EVERY = 256 };

static dh_status count_one(dh_ctx *ctx, void *user, const dh_tune_config *config,
                           const char *refused)
{
    search *s = user;
    s->n_all++;
    return DH_OK;
}

static dh_status estimate_one(dh_ctx *ctx, void *user, const dh_tune_config *config,
                              const char *refused)
{
    search *s = user;
    dh_tune_row row = {.config = *config, .why = ""};
    if (s->n_done++ % SHOW_EVERY == 0) {
        dh_progress_count(&s->progress, s->n_done, "configurations");
        DH_TRY(check_stop(s));
    }
    if (refused) return note_refused(s, config, refused);
    tune_limits limits;
    bool left_out = false;
    DH_TRY(limits_of(s, config, &limits));
    dh_status st = tune_estimate(ctx, &s->t, &limits, &row, &left_out);
    if (st == DH_EINVAL || st == DH_EUNSUPPORTED) {
        char reason[sizeof ctx->message];
        memcpy(reason, ctx->message, sizeof reason);
        dh_ctx_reset(ctx);
        return note_refused(s, config, reason);
    }
    DH_TRY(st);
    s->tune->n_left_out += left_out;
    if (left_out) return DH_OK;
    if (row.fits) keep(s, &row);
    return note_estimate(s, &row);
}

/* ---- simulation ----------------------------------------------------------------------------- */

/* What fits before what does not, what was simulated before what was not, then by time. */
static bool is_better(const dh_tune_row *a, const dh_tune_row *b)
{
    if (a->fits != b->fits) return a->fits;
    if ((a->simulated_ns > 0) != (b->simulated_ns > 0)) return a->simulated_ns > 0;
    if (a->simulated_ns != b->simulated_ns) return a->simulated_ns < b->simulated_ns;
    return a->step_ns < b->step_ns;
}

static void sort_rows(dh_tune_row *rows, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const dh_tune_row row = rows[i];
        size_t at = i;
        for (; at > 0 && is_better(&row, &rows[at - 1]); at--) rows[at] = rows[at - 1];
        rows[at] = row;
    }
}

/* What only a program can say: the configuration is none after all. */
static dh_status drop(search *s, size_t i)
{
    char reason[sizeof s->ctx->message];
    memcpy(reason, s->ctx->message, sizeof reason);
    dh_ctx_reset(s->ctx);
    s->tune->n_fit--;
    DH_TRY(note_refused(s, &s->best[i].config, reason));
    s->n_best--;
    memmove(&s->best[i], &s->best[i + 1], (s->n_best - i) * sizeof *s->best);
    return DH_OK;
}

static dh_status simulate_best(search *s)
{
    size_t i = 0, n_fit = 0;
    const size_t n = DH_MIN(s->n_best, s->options->n_simulated);
    dh_progress_start(&s->progress, 0, (int64_t)n, 1, s->options->quiet);
    if (n > 0)
        dh_progress_note(&s->progress, "%lld of %lld configurations fit; simulating the best %zu",
                         (long long)s->tune->n_fit, (long long)s->n_all, n);
    while (i < s->n_best && n_fit < n) {
        dh_progress_count(&s->progress, (int64_t)n_fit, "simulated");
        DH_TRY(check_stop(s));
        const dh_status st = tune_simulate(s->ctx, &s->t, &s->best[i]);
        if (st == DH_EINVAL || st == DH_EUNSUPPORTED)
            DH_TRY(drop(s, i));
        else if (st != DH_OK)
            return st;
        else
            n_fit += s->best[i++].fits;
    }
    if (n > 0) dh_progress_end(&s->progress);
    sort_rows(s->best, s->n_best);
    return DH_OK;
}

static bool is_same(const dh_tune_config *a, const dh_tune_config *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Of the configuration, where it has been simulated: among the best, or with an earlier value. */
static const dh_tune_row *find_simulated(const search *s, const dh_tune_config *config, size_t n)
{
    for (size_t i = 0; i < s->n_best; i++)
        if (s->best[i].simulated_ns > 0 && is_same(&s->best[i].config, config)) return &s->best[i];
    for (size_t i = 0; i < n; i++) {
        const dh_tune_row *row = &s->values.at[i].best;
        if (row->simulated_ns > 0 && is_same(&row->config, config)) return row;
    }
    return NULL;
}

/* What is faster than all that the estimate preferred is the best after all. */
static void put_first(search *s, const dh_tune_row *row)
{
    if (s->n_best > 0 && !is_better(row, &s->best[0])) return;
    s->n_best = DH_MIN(s->n_best + 1, s->n_kept);
    memmove(&s->best[1], &s->best[0], (s->n_best - 1) * sizeof *s->best);
    s->best[0] = *row;
}

/* TUNING: estimates are up to 25 % off; of what is further behind than this the reason is plain,
 * and simulating it takes longest. */
#define WORTH_SIMULATING 1.5

/* The best with a value, by estimate. What only a program refuses stays an estimate. */
static dh_status simulate_value(search *s, size_t i)
{
    dh_tune_value_row *v = &s->values.at[i];
    const dh_tune_row *known = find_simulated(s, &v->best.config, i);
    if (known) {
        v->best = *known;
        return DH_OK;
    }
    const dh_status st = tune_simulate(s->ctx, &s->t, &v->best);
    if (st == DH_EINVAL || st == DH_EUNSUPPORTED) {
        dh_ctx_reset(s->ctx);
        return DH_OK;
    }
    if (st == DH_OK && v->best.fits) put_first(s, &v->best);
    return st;
}

static dh_status simulate_values(search *s)
{
    const double limit_ns = s->n_best > 0 ? WORTH_SIMULATING * s->best[0].step_ns : 0;
    if (s->options->n_simulated == 0) return DH_OK;
    dh_progress_start(&s->progress, 0, (int64_t)s->values.n, 1, s->options->quiet);
    for (size_t i = 0; i < s->values.n; i++) {
        dh_progress_count(&s->progress, (int64_t)i, "values simulated, each with the best others");
        DH_TRY(check_stop(s));
        const dh_tune_value_row *v = &s->values.at[i];
        if (v->n_fit > 0 && v->best.step_ns <= limit_ns) DH_TRY(simulate_value(s, i));
    }
    dh_progress_end(&s->progress);
    return DH_OK;
}

/* ---- result --------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    const dh_tune_value_row *a = x, *b = y;
    if (a->dim != b->dim) return (int)a->dim - (int)b->dim;
    return a->value < b->value ? -1 : a->value > b->value;
}

static const char *why_too_large(const search *s, const dh_tune_row *row)
{
    dh_tune_memory memory = row->memory;
    if (row->simulated_ns > 0) {
        memory.activations += row->simulated_bytes - memory.peak_bytes;
        memory.peak_bytes = row->simulated_bytes;
    }
    return tune_why_too_large(s->tune->arena, &memory, s->t.memory_bytes);
}

static int64_t node_devices(const search *s)
{
    return s->options->cluster ? (int64_t)s->options->cluster->node_devices : 0;
}

static const char *why_row(const search *s, const dh_tune_row *row, const dh_tune_row *best)
{
    if (row == best) return "";
    return row->fits ? tune_why_slower(s->tune->arena, row, best, node_devices(s))
                     : why_too_large(s, row);
}

static const char *why_value(const search *s, const dh_tune_value_row *v)
{
    const dh_tune_row *best = s->tune->n_rows ? &s->tune->rows[0] : NULL;
    if (v->n_fit == 0 && v->n_too_large == 0) return v->why;
    if (!v->best.fits) return why_too_large(s, &v->best);
    if (best && best->config.at[v->dim] == v->value) return "";
    return best ? tune_why_slower(s->tune->arena, &v->best, best, node_devices(s)) : "";
}

static dh_status finish(search *s)
{
    dh_tune *t = s->tune;
    t->n_rows = DH_MIN(s->n_best, s->options->n_rows);
    t->n_values = s->values.n;
    t->rows = DH_NEW_N(t->arena, dh_tune_row, t->n_rows + 1);
    t->values = DH_NEW_N(t->arena, dh_tune_value_row, t->n_values + 1);
    if (!t->rows || !t->values) return no_memory(s->ctx);
    if (t->n_rows) memcpy(t->rows, s->best, t->n_rows * sizeof *t->rows);
    if (t->n_values) memcpy(t->values, s->values.at, t->n_values * sizeof *t->values);
    qsort(t->values, t->n_values, sizeof *t->values, by_value);
    for (size_t i = 0; i < t->n_rows; i++)
        if (!(t->rows[i].why = why_row(s, &t->rows[i], &t->rows[0]))) return no_memory(s->ctx);
    for (size_t i = 0; i < t->n_values; i++)
        if (!(t->values[i].why = why_value(s, &t->values[i]))) return no_memory(s->ctx);
    return DH_OK;
}

static dh_status check_any(const search *s)
{
    if (s->tune->n_fit + s->tune->n_too_large > 0) return DH_OK;
    return dh_fail(s->ctx, DH_EINVAL, "no configuration of %lld devices is possible%s%s",
                   (long long)s->options->devices, s->first_refusal ? "; the first: " : "",
                   s->first_refusal ? s->first_refusal : "");
}

/* ---- entry --------------------------------------------------------------------------------- */

double dh_tune_device_bytes(const dh_tune_options *o)
{
    if (o->memory_bytes > 0) return o->memory_bytes;
    if (o->cluster) return o->cluster->memory_bytes;
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE) / (double)o->devices;
}

/* -1: a size that is no whole number. */
static int64_t whole_mb(const dh_job *job)
{
    const int64_t mb = (int64_t)job->bucket_mb;
    return (double)mb == job->bucket_mb ? mb : -1;
}

/* The job's own rows, for what is fixed. */
static dh_status find_own(dh_ctx *ctx, const dh_job *job, unsigned fixed, dh_tune_config *own)
{
    size_t n_strategies, n_schedules;
    const dh_strategy *strategies = dh_strategies(&n_strategies);
    const dh_schedule_row *const *schedules = dh_schedule_rows(&n_schedules);
    const bool csv = fixed >> DH_TUNE_SCHEDULE & 1;
    *own = (dh_tune_config){{job->tp, job->cp, job->pp, job->ep, job->dp, job->micro_batch,
                             (int64_t)job->recompute, -1, job->vpp, -1, job->zero, whole_mb(job),
                             (int64_t)job->cp_linear}};
    for (size_t i = 0; i < n_strategies; i++)
        if (strcmp(strategies[i].name, job->strategy) == 0) own->at[DH_TUNE_STRATEGY] = (int64_t)i;
    for (size_t i = 0; i < n_schedules; i++)
        if (strcmp(schedules[i]->name, job->schedule) == 0) own->at[DH_TUNE_SCHEDULE] = (int64_t)i;
    if (csv && own->at[DH_TUNE_SCHEDULE] < 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "parallel.schedule=%s: a schedule from a file is for one number of stages "
                       "and micro-batches; name a row of `dhelix list schedules`",
                       job->schedule);
    if (fixed >> DH_TUNE_STRATEGY & 1 && own->at[DH_TUNE_STRATEGY] < 0)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "strategy=%s: the search is among rows of `dhelix list strategies`; name one, "
            "or leave it free",
            job->strategy);
    return DH_OK;
}

/* Of each recomputation, since a system's operators may take another time with it. */
static dh_status find_costs(dh_ctx *ctx, tuner *t, const dh_job *job, const dh_cluster *cluster)
{
    for (int i = 0; i < DH_N_TUNE_RECOMPUTE; i++) {
        dh_job *with = DH_NEW(t->arena, dh_job);
        if (!with) return no_memory(ctx);
        *with = *job;
        with->recompute = (dh_recompute)i;
        DH_TRY(dh_job_cluster_costs(ctx, t->arena, with, cluster, &t->costs_by[i]));
        t->costs_by[i] = tune_memo_init(&t->memo[i], t->arena, t->costs_by[i]);
    }
    t->costs = t->costs_by[job->recompute];
    return DH_OK;
}

static dh_status prepare(search *s, dh_job *job)
{
    dh_ctx *ctx = s->ctx;
    const dh_tune_options *o = s->options;
    s->t.options = o;
    s->t.job = job;
    s->t.own_split = strcmp(job->layer_split, "*") == 0 ? s->no_split : job->layer_split;
    s->tune->memory_bytes = s->t.memory_bytes = dh_tune_device_bytes(o);
    s->n_kept = DH_MAX(DH_MAX(o->n_rows, o->n_simulated), (size_t)1);
    s->best = calloc(s->n_kept + 1, sizeof *s->best);
    s->t.arena = dh_arena_create();
    if (!s->best || !s->t.arena) return no_memory(ctx);
    DH_TRY(dh_job_vocab(ctx, job, NULL, &job->model.vocab));
    DH_TRY(dh_model_validate(ctx, &job->model));
    if (o->cluster) DH_TRY(find_costs(ctx, &s->t, job, o->cluster));
    DH_TRY(find_own(ctx, job, o->fixed, &s->t.own));
    return tune_select(ctx, &s->t);
}

static dh_status run(search *s)
{
    DH_TRY(tune_each(s->ctx, &s->t, count_one, s));
    dh_progress_start(&s->progress, 0, s->n_all, 1, s->options->quiet);
    const int64_t start = dh_now_ns();
    dh_status st = tune_each(s->ctx, &s->t, estimate_one, s);
    s->tune->search_ns = dh_now_ns() - start;
    dh_progress_end(&s->progress);
    DH_TRY(st);
    DH_TRY(check_any(s));
    s->tune->costs = dh_arena_strdup(s->tune->arena, s->t.costs->name);
    if (!s->tune->costs) return no_memory(s->ctx);
    DH_TRY(simulate_best(s));
    DH_TRY(simulate_values(s));
    return finish(s);
}

dh_status dh_tune_search(dh_ctx *ctx, const dh_job *job, const dh_tune_options *options,
                         dh_tune **tune)
{
    dh_job own = *job;
    dh_tune_options given = *options;
    if (given.devices == 0) given.devices = job->ranks;
    search s = {.ctx = ctx, .options = &given, .tune = calloc(1, sizeof *s.tune)};
    dh_status st = s.tune && (s.tune->arena = dh_arena_create()) ? DH_OK : no_memory(ctx);
    if (st == DH_OK) st = prepare(&s, &own);
    if (st == DH_OK) st = run(&s);
    tune_tables_fini(&s.t);
    dh_arena_destroy(s.t.arena);
    free(s.best);
    dh_vec_fini(&s.values);
    if (st == DH_OK)
        *tune = s.tune;
    else
        dh_tune_destroy(s.tune);
    return st;
}

void dh_tune_destroy(dh_tune *tune)
{
    if (!tune) return;
    dh_arena_destroy(tune->arena);
    free(tune);
}
