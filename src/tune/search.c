/* The search: every configuration estimated, the best simulated, all of them ranked. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/needs.h"
#include "base/stop.h"
#include "train/progress.h"
#include "train/recipe.h"
#include "tune/lengths.h"
#include "tune/tuner.h"

typedef struct search {
    dh_ctx *ctx;
    tuner t;
    const dh_tune_options *options;
    dh_tune *tune;
    tune_found found;
    dh_progress progress;
    int64_t n_all;
    char no_split[1]; /* empty: as each schedule can */
} search;

/* ---- simulation ----------------------------------------------------------------------------- */

/* Rows that fit come first, then rows that were simulated, then shorter ones (tune_compare). */
static bool is_better(const dh_tune_row *a, const dh_tune_row *b)
{
    if (a->fits != b->fits) return a->fits;
    if ((a->simulated_ns > 0) != (b->simulated_ns > 0)) return a->simulated_ns > 0;
    const bool simulated = a->simulated_ns > 0;
    const int order = tune_compare(&a->config, simulated ? (double)a->simulated_ns : a->step_ns,
                                   &b->config, simulated ? (double)b->simulated_ns : b->step_ns);
    return order ? order < 0 : a->step_ns < b->step_ns;
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

static dh_status check_stop(const search *s)
{
    if (!dh_stop_asked(s->ctx->stop)) return DH_OK;
    return dh_fail(s->ctx, DH_EINTERRUPTED, "interrupted after %lld of %lld configurations",
                   (long long)s->n_all, (long long)s->n_all);
}

/* Drop a configuration that only its program showed to be impossible. */
static dh_status drop(search *s, size_t i, const char *reason)
{
    tune_found *f = &s->found;
    f->n_fit--;
    DH_TRY(tune_found_refusal(s->ctx, f, &f->best[i].config, reason, INT64_MAX));
    f->n_best--;
    memmove(&f->best[i], &f->best[i + 1], (f->n_best - i) * sizeof *f->best);
    return DH_OK;
}

static dh_status simulate(search *s, tune_simulation *sims, size_t n, int64_t n_before,
                          const char *what)
{
    DH_TRY(check_stop(s));
    tune_simulate(&s->t, sims, n, &s->progress, n_before, what);
    DH_TRY(check_stop(s));
    for (size_t i = 0; i < n; i++)
        if (sims[i].ctx.status != DH_OK && !tune_is_refused(&sims[i]))
            return dh_fail(s->ctx, sims[i].ctx.status, "%s", sims[i].ctx.message);
    return DH_OK;
}

/* The n best rows from the *i-th on, of which *n_fit have fitted so far; both go on. */
static dh_status simulate_rows(search *s, tune_simulation *sims, size_t n, size_t *i, size_t *n_fit)
{
    for (size_t k = 0; k < n; k++)
        sims[k] = (tune_simulation){s->found.best[*i + k], dh_ctx_like(s->ctx)};
    DH_TRY(simulate(s, sims, n, (int64_t)*n_fit, "simulated"));
    for (size_t k = 0; k < n; k++) {
        if (tune_is_refused(&sims[k])) {
            DH_TRY(drop(s, *i, sims[k].ctx.message));
            continue;
        }
        s->found.best[*i] = sims[k].row;
        *n_fit += s->found.best[(*i)++].fits;
    }
    return DH_OK;
}

/* Until so many fit. */
static dh_status simulate_best(search *s)
{
    size_t i = 0, n_fit = 0;
    const size_t n = DH_MIN(s->found.n_best, s->options->n_simulated);
    tune_simulation *sims = calloc(DH_MAX(n, (size_t)1), sizeof *sims);
    dh_status st = sims ? DH_OK : dh_no_memory(s->ctx);
    dh_progress_start(&s->progress, 0, (int64_t)n, 1, s->options->quiet);
    if (n > 0)
        dh_progress_note(&s->progress, "%lld of %lld configurations fit; simulating the best %zu",
                         (long long)s->found.n_fit, (long long)s->n_all, n);
    while (st == DH_OK && i < s->found.n_best && n_fit < n)
        st = simulate_rows(s, sims, DH_MIN(n - n_fit, s->found.n_best - i), &i, &n_fit);
    free(sims);
    DH_TRY(st);
    if (n > 0) dh_progress_clear(&s->progress);
    sort_rows(s->found.best, s->found.n_best);
    return DH_OK;
}

static bool is_same(const dh_tune_config *a, const dh_tune_config *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* The configuration's row, if it is among the best and has been simulated. */
static const dh_tune_row *find_simulated(const search *s, const dh_tune_config *config)
{
    for (size_t i = 0; i < s->found.n_best; i++)
        if (s->found.best[i].simulated_ns > 0 && is_same(&s->found.best[i].config, config))
            return &s->found.best[i];
    return NULL;
}

/* A row that is faster than all that the estimate preferred becomes the best. */
static void put_first(search *s, const dh_tune_row *row)
{
    if (s->found.n_best > 0 && !is_better(row, &s->found.best[0])) return;
    s->found.n_best = DH_MIN(s->found.n_best + 1, s->found.n_kept);
    memmove(&s->found.best[1], &s->found.best[0], (s->found.n_best - 1) * sizeof *s->found.best);
    s->found.best[0] = *row;
}

/* The best row of each value that is worth it, each once. */
typedef struct value_sims {
    double limit_ns;
    tune_simulation *at;
    size_t n;
} value_sims;

static const tune_simulation *find_value(const value_sims *sims, const dh_tune_config *config)
{
    for (size_t i = 0; i < sims->n; i++)
        if (is_same(&sims->at[i].row.config, config)) return &sims->at[i];
    return NULL;
}

/* List them. Rows that were simulated among the best have their result already. */
static void list_values(const search *s, value_sims *sims)
{
    for (size_t i = 0; i < s->found.values.n; i++) {
        const dh_tune_value_row *v = &s->found.values.at[i].row;
        const dh_tune_row *known = find_simulated(s, &v->best.config);
        if (v->n_fit == 0 || v->best.step_ns > sims->limit_ns) continue;
        if (!find_value(sims, &v->best.config))
            sims->at[sims->n++] = (tune_simulation){known ? *known : v->best, dh_ctx_like(s->ctx)};
    }
}

/* Take the simulated rows. A row that only its program refused stays an estimate. */
static void take_values(search *s, const value_sims *sims)
{
    for (size_t i = 0; i < s->found.values.n; i++) {
        dh_tune_row *best = &s->found.values.at[i].row.best;
        const tune_simulation *sim = find_value(sims, &best->config);
        if (!sim || tune_is_refused(sim)) continue;
        *best = sim->row;
        if (best->fits) put_first(s, best);
    }
}

/* A faster simulated row may have the value too, although its estimate was longer than the best
 * one's. The table of values must not contradict the table of rows above it. */
static void take_faster(dh_tune_value_row *v, const dh_tune_row *row)
{
    if (row->simulated_ns > 0 && row->fits && row->config.at[v->dim] == v->value &&
        is_better(row, &v->best))
        v->best = *row;
}

static void take_fastest(search *s)
{
    tune_found *f = &s->found;
    for (size_t i = 0; i < f->values.n; i++) {
        dh_tune_value_row *v = &f->values.at[i].row;
        for (size_t k = 0; k < f->n_best; k++) take_faster(v, &f->best[k]);
        for (size_t k = 0; k < f->values.n; k++) take_faster(v, &f->values.at[k].row.best);
    }
}

static dh_status simulate_values(search *s)
{
    value_sims sims = {s->found.n_best > 0 ? TUNE_WORTH * s->found.best[0].step_ns : 0, NULL, 0};
    if (s->options->n_simulated == 0) return DH_OK;
    sims.at = calloc(s->found.values.n + 1, sizeof *sims.at);
    if (!sims.at) return dh_no_memory(s->ctx);
    list_values(s, &sims);
    dh_progress_start(&s->progress, 0, (int64_t)sims.n, 1, s->options->quiet);
    const dh_status st =
        simulate(s, sims.at, sims.n, 0, "values simulated, each with the best others");
    if (st == DH_OK) take_values(s, &sims);
    free(sims.at);
    DH_TRY(st);
    dh_progress_clear(&s->progress);
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
        const uint64_t rest = memory.peak_bytes - DH_MIN(memory.activations, memory.peak_bytes);
        memory.activations = row->simulated_bytes - DH_MIN(rest, row->simulated_bytes);
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

static const char *why_behind(const search *s, const dh_tune_value_row *v)
{
    char least[32];
    const char *too_large = v->n_too_large > 0 ? why_too_large(s, &v->best) : "";
    if (!too_large) return NULL;
    return dh_arena_printf(
        s->tune->arena, "%s%sproducts, attention and rings alone take %s or more", too_large,
        *too_large ? "; of others " : "", dh_format_ns(least, sizeof least, v->least_ns));
}

static const char *why_value(const search *s, const dh_tune_value_row *v)
{
    const dh_tune_row *best = s->tune->n_rows ? &s->tune->rows[0] : NULL;
    if (v->n_fit == 0 && v->n_behind > 0) return why_behind(s, v);
    if (v->n_fit == 0 && v->n_too_large == 0) return v->why;
    if (!v->best.fits) return why_too_large(s, &v->best);
    if (best && best->config.at[v->dim] == v->value) return "";
    return best ? tune_why_slower(s->tune->arena, &v->best, best, node_devices(s)) : "";
}

static const char *why_given(const search *s)
{
    const dh_tune *t = s->tune;
    if (!t->given.fits) return why_too_large(s, &t->given);
    if (t->n_rows == 0) return "";
    return is_same(&t->given.config, &t->rows[0].config)
               ? "is the best"
               : tune_why_slower(t->arena, &t->given, &t->rows[0], node_devices(s));
}

static dh_status finish(search *s)
{
    dh_tune *t = s->tune;
    t->n_fit = s->found.n_fit;
    t->n_too_large = s->found.n_too_large;
    t->n_refused = s->found.n_refused;
    t->n_left_out = s->found.n_left_out;
    t->n_behind = s->found.n_behind;
    t->worth_ns = s->found.worth_ns;
    t->n_rows = DH_MIN(s->found.n_best, s->options->n_rows);
    t->n_values = s->found.values.n;
    t->rows = DH_NEW_N(t->arena, dh_tune_row, t->n_rows + 1);
    t->values = DH_NEW_N(t->arena, dh_tune_value_row, t->n_values + 1);
    if (!t->rows || !t->values) return dh_no_memory(s->ctx);
    if (t->n_rows) memcpy(t->rows, s->found.best, t->n_rows * sizeof *t->rows);
    for (size_t i = 0; i < t->n_values; i++) t->values[i] = s->found.values.at[i].row;
    qsort(t->values, t->n_values, sizeof *t->values, by_value);
    for (size_t i = 0; i < t->n_rows; i++)
        if (!(t->rows[i].why = why_row(s, &t->rows[i], &t->rows[0]))) return dh_no_memory(s->ctx);
    if (t->given.config.at[DH_TUNE_DP] > 0 && !(t->given.why = why_given(s)))
        return dh_no_memory(s->ctx);
    if (t->n_rows > 0)
        DH_TRY(tune_beyond(s->ctx, t->arena, &s->t, &t->rows[0].config, &t->beyond, &t->measured,
                           &t->n_beyond));
    for (size_t i = 0; i < t->n_values; i++)
        if (!(t->values[i].why = why_value(s, &t->values[i]))) return dh_no_memory(s->ctx);
    return DH_OK;
}

/* Nothing was refused: what is kept fits no schedule or strategy of the search. */
static dh_status fail_unvisited(const search *s)
{
    dh_str kept = DH_STR_INIT;
    char value[64];
    for (int d = 0; d < DH_N_TUNE_DIM; d++)
        if (s->options->fixed >> d & 1 && s->t.own.at[d] >= 0)
            dh_str_printf(&kept, "%s%s=%s", kept.len ? ", " : "",
                          dh_tune_dim_setting((dh_tune_dim)d),
                          dh_tune_value((dh_tune_dim)d, s->t.own.at[d], value, sizeof value));
    const dh_status st =
        dh_fail(s->ctx, DH_EINVAL,
                "no configuration of %lld devices is possible: with what is kept (%s) no schedule "
                "is left; virtual stages have to divide the layers of a stage, the degrees the "
                "devices, and a strategy of two strands needs a schedule of pairs",
                (long long)s->options->devices, kept.text ? kept.text : "nothing");
    dh_str_fini(&kept);
    return st;
}

static dh_status check_any(const search *s)
{
    if (s->found.n_fit + s->found.n_too_large > 0) return DH_OK;
    if (!s->found.first_refusal) return fail_unvisited(s);
    return dh_fail(s->ctx, DH_EINVAL, "no configuration of %lld devices is possible%s%s",
                   (long long)s->options->devices, s->found.first_refusal ? "; the first: " : "",
                   s->found.first_refusal ? s->found.first_refusal : "");
}

/* ---- entry --------------------------------------------------------------------------------- */

double dh_tune_device_bytes(const dh_tune_options *o)
{
    if (o->memory_bytes > 0) return o->memory_bytes;
    if (o->cluster) return dh_cluster_usable_bytes(o->cluster);
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE) / (double)o->devices;
}

/* -1: a size that is no whole number. */
static int64_t whole_mb(const dh_job *job)
{
    const int64_t mb = (int64_t)job->bucket_mb;
    return (double)mb == job->bucket_mb ? mb : -1;
}

static int64_t schedule_at(const char *name)
{
    size_t n;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i]->name, name) == 0) return (int64_t)i;
    return -1;
}

/* The job's values, as far as they are rows. */
static dh_tune_config config_of(const dh_job *job)
{
    size_t n;
    const dh_strategy *strategies = dh_strategies(&n);
    dh_tune_config own = {{job->tp, job->cp, job->pp, job->ep, job->dp, job->micro_batch,
                           (int64_t)job->recompute, schedule_at(job->schedule), job->vpp, -1,
                           job->zero, whole_mb(job), (int64_t)job->cp_linear, -1, -1, -1, -1}};
    for (size_t i = 0; i < n; i++)
        if (strcmp(strategies[i].name, job->strategy) == 0) own.at[DH_TUNE_STRATEGY] = (int64_t)i;
    return own;
}

/* The job's own rows, for what is fixed. */
static dh_status find_own(dh_ctx *ctx, const dh_job *job, unsigned fixed, dh_tune_config *own)
{
    const bool csv = fixed >> DH_TUNE_SCHEDULE & 1;
    *own = config_of(job);
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

/* Numbers that a search cannot be made with, or not in any time. */
static dh_status check_options(dh_ctx *ctx, const dh_tune_options *o)
{
    enum { MOST_DEVICES = 1 << 24, MOST_ROWS = 1000000, MOST_THREADS = 4096 };
    if (o->devices < 1 || o->devices > MOST_DEVICES)
        return dh_fail(ctx, DH_EINVAL, "devices=%lld: 1 to %d would be right",
                       (long long)o->devices, MOST_DEVICES);
    if (!(o->memory_bytes >= 0 && isfinite(o->memory_bytes)))
        return dh_fail(ctx, DH_EINVAL,
                       "memory of %g bytes: 0, for the cluster's, or more would be right",
                       o->memory_bytes);
    if (o->n_rows > MOST_ROWS || o->n_simulated > MOST_ROWS)
        return dh_fail(ctx, DH_EINVAL, "%zu rows, %zu of them simulated: up to %d would be right",
                       o->n_rows, o->n_simulated, MOST_ROWS);
    if (o->n_threads < 0 || o->n_threads > MOST_THREADS)
        return dh_fail(ctx, DH_EINVAL, "%lld threads: 0, for one a core, to %d would be right",
                       (long long)o->n_threads, MOST_THREADS);
    if (!(o->within == 0 || o->within >= 1))
        return dh_fail(ctx, DH_EINVAL, "within=%g: 0, or at least 1 times the best step",
                       o->within);
    return DH_OK;
}

static dh_status prepare(search *s, dh_job *job)
{
    dh_ctx *ctx = s->ctx;
    const dh_tune_options *o = s->options;
    DH_TRY(check_options(ctx, o));
    s->t.options = o;
    s->t.own_sequence = job->sequence_parallel;
    s->t.splits = dh_job_splits(job);
    s->t.own_split =
        s->t.splits || strcmp(job->layer_split, "*") == 0 ? s->no_split : job->layer_split;
    s->t.searches_splits = !s->t.splits && !*s->t.own_split && !(o->fixed & 1u << DH_TUNE_SPLIT);
    s->tune->memory_bytes = s->t.memory_bytes = dh_tune_device_bytes(o);
    DH_TRY(tune_found_init(ctx, &s->found, s->tune->arena,
                           DH_MAX(DH_MAX(o->n_rows, o->n_simulated), (size_t)1)));
    s->t.shared = tune_shared_create();
    if (!s->t.shared) return dh_no_memory(ctx);
    DH_TRY(dh_job_vocab(ctx, job, NULL, &job->model.vocab));
    DH_TRY(dh_model_validate(ctx, &job->model));
    DH_TRY(find_own(ctx, job, o->fixed, &s->t.own));
    DH_TRY(tune_tuner_init(ctx, &s->t, job));
    return tune_select(ctx, &s->t);
}

/* ---- the job as it stands --------------------------------------------------------------------- */

/* Settings that the search has a dimension for become values, as the search would visit them. */
static void say_searched(const search *s, const dh_job *job, dh_tune_config *c)
{
    const tuner *t = &s->t;
    const dh_model *m = &job->model;
    const bool travels = m->attention == DH_ATTENTION_LINEAR && job->cp > 1;
    if (!travels) c->at[DH_TUNE_CP_LINEAR] = -1;
    if (t->sequences.at[0] >= 0 && job->tp > 1) c->at[DH_TUNE_SEQUENCE] = job->sequence_parallel;
    if (t->fusions.at[0] >= 0) c->at[DH_TUNE_FUSE] = dh_fuse_pieces(job->fuse);
    if (t->posts.at[0] >= 0) c->at[DH_TUNE_POST] = job->post_validation;
}

/* The row that its programs have: of two strands, the schedule that the strategy brings. */
static dh_tune_config given_config(const search *s, const dh_job *job)
{
    size_t n;
    dh_tune_config c = config_of(job);
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    const dh_strategy *strategies = dh_strategies(&n);
    say_searched(s, job, &c);
    if (c.at[DH_TUNE_STRATEGY] < 0 || c.at[DH_TUNE_SCHEDULE] < 0) return c;
    const char *brings = strategies[c.at[DH_TUNE_STRATEGY]].schedule;
    if (brings && !rows[c.at[DH_TUNE_SCHEDULE]]->pairs)
        c.at[DH_TUNE_SCHEDULE] = schedule_at(brings);
    const bool folded = rows[c.at[DH_TUNE_SCHEDULE]]->n_chunks == 2;
    if (s->t.searches_splits && job->pp > 1)
        c.at[DH_TUNE_SPLIT] = tune_split_of(
            job->model.n_layers, folded ? 2 * job->pp : job->pp * job->vpp, job->layer_split);
    return c;
}

/* NULL, or why the job as it stands is no configuration. */
static const char *no_row(const dh_job *job, const dh_tune_config *c)
{
    if (c->at[DH_TUNE_STRATEGY] < 0)
        return "its strategy is no row of `dhelix list strategies`; `dhelix simulate` has its step";
    if (c->at[DH_TUNE_SCHEDULE] < 0)
        return "its schedule is from a file; `dhelix simulate` has its step";
    if (dh_job_splits(job))
        return "its parallel.layer_split is auto; `dhelix simulate` has its step";
    return NULL;
}

static dh_status refuse_given(search *s, const char *why)
{
    s->tune->given_refused = dh_arena_strdup(s->tune->arena, why);
    return s->tune->given_refused ? DH_OK : dh_no_memory(s->ctx);
}

/* Its row, as those of the search: estimated, and simulated where they are. Errors are in `own`. */
static dh_status evaluate(search *s, dh_ctx *own, dh_tune_row *row)
{
    const tune_limits none = {.step_ns = INFINITY};
    const dh_tune_row *known = find_simulated(s, &row->config);
    tune_outcome outcome;
    if (known) *row = *known;
    if (known) return DH_OK;
    DH_TRY(tune_begin_anew(own, &s->t));
    DH_TRY(tune_enter(own, &s->t, &row->config));
    DH_TRY(tune_estimate(own, &s->t, &none, row, &outcome));
    if (s->options->n_simulated == 0) return DH_OK;
    tune_simulation sim = {*row, dh_ctx_like(s->ctx)};
    dh_progress_start(&s->progress, 0, 1, 1, s->options->quiet);
    tune_simulate(&s->t, &sim, 1, &s->progress, 0, "the job as given, simulated");
    dh_progress_clear(&s->progress);
    *row = sim.row;
    return sim.ctx.status == DH_OK ? DH_OK : dh_fail(own, sim.ctx.status, "%s", sim.ctx.message);
}

/* Whether a search over these values visits one; -1 in either: the setting is not searched. */
static bool is_visited(const tune_numbers *values, int64_t value)
{
    bool is = value < 0 || values->n == 0 || values->at[0] < 0;
    for (size_t i = 0; i < values->n; i++) is = is || values->at[i] == value;
    return is;
}

/* It may be the best of what was asked for. */
static void offer_given(search *s, const dh_tune_row *row)
{
    const int64_t *at = row->config.at;
    const bool asked =
        s->t.strategy_wanted[at[DH_TUNE_STRATEGY]] && s->t.schedule_wanted[at[DH_TUNE_SCHEDULE]] &&
        at[DH_TUNE_BUCKET] >= 0 && (at[DH_TUNE_SPLIT] >= 0 || at[DH_TUNE_PP] == 1) &&
        is_visited(&s->t.zeros, at[DH_TUNE_ZERO]) &&
        is_visited(&s->t.sequences, at[DH_TUNE_SEQUENCE]) &&
        is_visited(&s->t.fusions, at[DH_TUNE_FUSE]) && is_visited(&s->t.posts, at[DH_TUNE_POST]);
    if (asked && row->fits && row->simulated_ns > 0) put_first(s, row);
}

static dh_status add_given(search *s)
{
    const dh_job *job = s->options->given;
    dh_tune_row row = {.why = ""};
    if (s->options->given_refused) return refuse_given(s, s->options->given_refused);
    if (!job) return DH_OK;
    row.config = given_config(s, job);
    const char *why = no_row(job, &row.config);
    if (why) return refuse_given(s, why);
    dh_ctx own = dh_ctx_like(s->ctx);
    char *split = s->t.own_split;
    if (row.config.at[DH_TUNE_SPLIT] < 0 && s->t.searches_splits) s->t.own_split = job->layer_split;
    const dh_status st = evaluate(s, &own, &row);
    s->t.own_split = split;
    if (st == DH_EINVAL || st == DH_EUNSUPPORTED) return refuse_given(s, own.message);
    if (st != DH_OK) return dh_fail(s->ctx, st, "%s", own.message);
    s->tune->given = row;
    offer_given(s, &row);
    return DH_OK;
}

/* ---- all -------------------------------------------------------------------------------------- */

/* This machine's costs are a mesh's: those of the best, or of one that would need least. */
static dh_status find_own_costs(search *s)
{
    const tune_found *f = &s->found;
    const dh_tune_config *config = f->n_best > 0 ? &f->best[0].config : NULL;
    for (size_t i = 0; !config && i < f->values.n; i++)
        if (f->values.at[i].row.n_too_large > 0) config = &f->values.at[i].row.best.config;
    return s->options->cluster ? DH_OK : tune_enter(s->ctx, &s->t, config);
}

static dh_status run(search *s)
{
    const int64_t start = dh_now_ns();
    DH_TRY(tune_explore(s->ctx, &s->t, &s->found, &s->progress, &s->n_all));
    s->tune->search_ns = dh_now_ns() - start;
    DH_TRY(check_any(s));
    DH_TRY(find_own_costs(s));
    s->tune->costs = dh_arena_strdup(s->tune->arena, s->t.costs->name);
    if (!s->tune->costs) return dh_no_memory(s->ctx);
    DH_TRY(simulate_best(s));
    DH_TRY(simulate_values(s));
    DH_TRY(add_given(s));
    take_fastest(s);
    return finish(s);
}

dh_status dh_tune_search(dh_ctx *ctx, const dh_job *job, const dh_tune_options *options,
                         dh_tune **tune)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, tune);
    DH_OR_DEFAULTS(dh_tune_options, options);
    dh_job own = *job;
    dh_tune_options given = *options;
    if (given.devices == 0) given.devices = job->ranks;
    const volatile sig_atomic_t *own_stop = dh_stop_by(ctx, options->stop);
    search s = {.ctx = ctx, .options = &given, .tune = calloc(1, sizeof *s.tune)};
    dh_status st = s.tune && (s.tune->arena = dh_arena_create()) ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) st = prepare(&s, &own);
    if (st == DH_OK) st = run(&s);
    if (st != DH_OK) dh_progress_end(&s.progress); /* the message is below where it stopped */
    dh_vec_fini(&s.t.zeros);
    dh_vec_fini(&s.t.buckets);
    dh_vec_fini(&s.t.sequences);
    dh_vec_fini(&s.t.fusions);
    dh_vec_fini(&s.t.posts);
    tune_tuner_fini(&s.t);
    tune_shared_destroy(s.t.shared);
    tune_found_fini(&s.found);
    ctx->stop = own_stop;
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
