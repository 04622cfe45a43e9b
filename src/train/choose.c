/* strategy: auto. Whole steps are simulated, on what is known of the machine or of the cluster, and
 * the shortest is taken. These are tried in turn:
 *   1. Every row of the table of strategies, each with the schedule that it needs.
 *   2. Two strands, ordered by costs, on each schedule that pairs a forward with a backward.
 *   3. The best of two strands, with the passes of each row of one strand.
 *      The best of one strand, in the order of each other row of one strand.
 *   4. The best with layers by costs (split.c), where the job leaves them even.
 *   5. On a cluster, two copies of the model, on each schedule that keeps them: without passes, and
 *      with those of the best of two strands. Then the best of these with layers by costs.
 * A schedule that makes pairs, or a split of layers, stays if the job fixes it. Schedules with two
 * copies of the model take twice the memory of its weights, and a cluster says what a device has; on
 * this machine they are left to the job. */
#include <string.h>

#include "train/recipe.h"
#include "train/simulation.h"

enum { MOST = 64 }; /* candidates */

typedef struct candidate {
    const dh_strategy *strategy;
    dh_resolved *job; /* with it; NULL: cannot run */
    dh_train_trial at;
} candidate;

typedef struct choosing {
    const dh_resolved *open;
    bool paired;     /* the job's own schedule makes pairs */
    dh_arena *arena; /* owns the strategies that have no row */
    candidate list[MOST];
    size_t n;
    size_t n_single; /* the first so many have one copy of the model */
} choosing;

/* ---- one candidate --------------------------------------------------------------------------- */

static dh_status simulate(dh_ctx *ctx, const dh_resolved *open, candidate *c)
{
    dh_status st = dh_strategy_runs(ctx, c->strategy);
    if (st == DH_OK) st = dh_resolved_vary(ctx, open, c->strategy, &c->job);
    if (st == DH_OK) st = dh_train_try(ctx, c->job, &c->at);
    if (st == DH_OK) return DH_OK;
    dh_resolved_destroy(c->job);
    c->job = NULL;
    if (st != DH_EINVAL && st != DH_EUNSUPPORTED) return st;
    dh_log(DH_LOG_DEBUG, "strategy auto: not %s: %s", c->strategy->name, ctx->message);
    dh_ctx_reset(ctx);
    return DH_OK;
}

static dh_status try_one(dh_ctx *ctx, choosing *c, const dh_resolved *open,
                         const dh_strategy *strategy)
{
    if (c->n == MOST) return DH_OK;
    candidate *one = &c->list[c->n++];
    one->strategy = strategy;
    return simulate(ctx, open, one);
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool is_known(const choosing *c, const dh_strategy *s)
{
    for (size_t i = 0; i < c->n; i++) {
        const dh_strategy *o = c->list[i].strategy;
        if (!o->searches && dh_pass_list_equal(&o->passes, &s->passes) &&
            same_text(o->schedule, s->schedule) && strcmp(o->policy, s->policy) == 0 &&
            o->barriers == s->barriers)
            return true;
    }
    return false;
}

/* A strategy of these parts, unless it was tried; schedule NULL: the job's. Its name is what a job
 * file would say. */
static dh_status try_parts(dh_ctx *ctx, choosing *c, const dh_pass_list *passes,
                           const char *schedule, const char *order)
{
    dh_str text = DH_STR_INIT;
    dh_strategy *made = DH_NEW(c->arena, dh_strategy);
    dh_str_printf(&text, "{passes: [");
    dh_pass_list_print(passes, &text);
    dh_str_printf(&text, "]%s%s, order: %s}", schedule ? ", schedule: " : "",
                  schedule ? schedule : "", order);
    const char *name = text.failed ? NULL : dh_arena_strdup(c->arena, text.text);
    dh_str_fini(&text);
    if (!made || !name) return dh_no_memory(ctx);
    *made = (dh_strategy){.name = name,
                          .doc = "made by strategy=auto",
                          .passes = *passes,
                          .schedule = schedule,
                          .policy = order};
    return is_known(c, made) ? DH_OK : try_one(ctx, c, c->open, made);
}

/* ---- which is best --------------------------------------------------------------------------- */

/* TUNING: what is taken in place of the first row, or two copies in place of one, has to promise
 * more than this share of a step. On this machine a gain within the error of predictions (beside.c)
 * is not worth another order; on a cluster all candidates share that error. */
static double worth_it(const choosing *c)
{
    return c->open->cluster ? 0.995 : 0.98;
}

/* A candidate that fits goes before one that does not. Of equals the earlier. */
static bool is_better(const choosing *c, const candidate *a, const candidate *b)
{
    if (a->at.fits != b->at.fits) return a->at.fits;
    const candidate *copies = c->list + c->n_single;
    const double margin = b == c->list || (a >= copies && b < copies) ? worth_it(c) : 1;
    return (double)a->at.step_ns < margin * (double)b->at.step_ns;
}

typedef enum n_strands { ANY, ONE, TWO } n_strands;

static candidate *best_of(choosing *c, n_strands strands)
{
    candidate *best = NULL;
    for (size_t i = 0; i < c->n; i++) {
        candidate *one = &c->list[i];
        const bool two = one->strategy->schedule != NULL;
        if (!one->job || (strands == ONE && two) || (strands == TWO && !two)) continue;
        if (!best || is_better(c, one, best)) best = one;
    }
    return best;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static dh_status try_rows(dh_ctx *ctx, choosing *c)
{
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && c->open->job.ranks == 1) break; /* nothing to hide */
        DH_TRY(try_one(ctx, c, c->open, &rows[i]));
    }
    return DH_OK;
}

static bool keeps_copies(const dh_schedule_row *row)
{
    return row->placement == DH_PLACE_BIDIRECTIONAL || row->placement == DH_PLACE_PARALLEL;
}

static dh_status try_schedules(dh_ctx *ctx, choosing *c)
{
    size_t n;
    const dh_pass_list none = {.n = 0};
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    if (c->paired || dh_job_schedule_file(&c->open->job)) return DH_OK;
    for (size_t i = 0; i < n; i++)
        if (rows[i]->pairs && !keeps_copies(rows[i]))
            DH_TRY(try_parts(ctx, c, &none, rows[i]->name, "auto"));
    return DH_OK;
}

/* Names are copied, since the list grows. */
static dh_status try_combinations(dh_ctx *ctx, choosing *c)
{
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    const candidate *two = best_of(c, TWO), *one = best_of(c, ONE);
    const dh_strategy pairs = two ? *two->strategy : (dh_strategy){.name = NULL};
    const dh_strategy single = one ? *one->strategy : (dh_strategy){.name = NULL};
    for (size_t i = 0; i < n; i++) {
        if (rows[i].schedule || rows[i].searches) continue;
        if (pairs.name && rows[i].passes.n > 0)
            DH_TRY(try_parts(ctx, c, &rows[i].passes, pairs.schedule, pairs.policy));
        if (single.name && !single.searches)
            DH_TRY(try_parts(ctx, c, &single.passes, NULL, rows[i].policy));
    }
    return DH_OK;
}

static bool leaves_split(const choosing *c)
{
    return c->open->job.pp > 1 && !*c->open->job.layer_split;
}

/* From the candidate `first` on. */
static dh_status try_split(dh_ctx *ctx, choosing *c, size_t first)
{
    dh_resolved open = *c->open;
    const candidate *best = best_of(c, ANY);
    if (!best || best < &c->list[first] || !leaves_split(c)) return DH_OK;
    open.job.layer_split = "auto";
    open.recipe.layer_split = "*";
    return try_one(ctx, c, &open, best->strategy);
}

static dh_status try_copies(dh_ctx *ctx, choosing *c)
{
    size_t n;
    c->n_single = c->n;
    const candidate *two = best_of(c, TWO);
    const dh_pass_list none = {.n = 0}, passes = two ? two->strategy->passes : none;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    if (!c->open->cluster || c->paired || dh_job_schedule_file(&c->open->job)) return DH_OK;
    for (size_t i = 0; i < n; i++) {
        if (!rows[i]->pairs || !keeps_copies(rows[i])) continue;
        DH_TRY(try_parts(ctx, c, &none, rows[i]->name, "auto"));
        DH_TRY(try_parts(ctx, c, &passes, rows[i]->name, "auto"));
    }
    return try_split(ctx, c, c->n_single);
}

static dh_status try_all(dh_ctx *ctx, choosing *c)
{
    DH_TRY(try_rows(ctx, c));
    if (c->open->job.ranks == 1) return DH_OK;
    DH_TRY(try_schedules(ctx, c));
    DH_TRY(try_combinations(ctx, c));
    DH_TRY(try_split(ctx, c, 0));
    return try_copies(ctx, c);
}

/* ---- the result ------------------------------------------------------------------------------- */

static void tell(const choosing *c, const candidate *best)
{
    for (size_t i = 0; i < c->n; i++) {
        const candidate *one = &c->list[i];
        if (!one->job) continue;
        dh_log(DH_LOG_INFO, "strategy auto: %-26s %9.1f ms a step predicted, %3.0f %% hidden%s%s%s",
               one->strategy->name, (double)one->at.step_ns * 1e-6, 100 * one->at.hidden_share,
               one->at.fits ? "" : ", does not fit",
               leaves_split(c) && *one->job->job.layer_split ? ", layers by costs" : "",
               one == best ? "  <- taken" : "");
    }
    for (size_t i = 1; i < c->n && best == c->list; i++) {
        if (!c->list[i].job || c->list[i].at.step_ns >= best->at.step_ns || !c->list[i].at.fits)
            continue;
        dh_log(DH_LOG_INFO,
               "strategy auto: keeps %s, because the others save less than %.1f %% of a step",
               best->strategy->name, 100 * (1 - worth_it(c)));
        return;
    }
}

static dh_status take(dh_ctx *ctx, choosing *c, candidate *best, bool quiet, dh_resolved **chosen)
{
    if (!best)
        return dh_fail(ctx, DH_EINVAL,
                       "strategy=auto: no strategy can run this job; --set strategy=sequential "
                       "says why");
    DH_TRY(dh_resolved_note(ctx, best->job, "strategy", best->strategy->name,
                            "of %zu the shortest simulated step%s, %.1f ms, since strategy=auto",
                            c->n, c->open->cluster ? " that fits" : "",
                            (double)best->at.step_ns * 1e-6));
    if (!quiet && best->job->job.ranks > 1) tell(c, best);
    *chosen = best->job;
    best->job = NULL;
    (*chosen)->strategies = c->arena;
    c->arena = NULL;
    return DH_OK;
}

dh_status dh_resolved_choose(dh_ctx *ctx, const dh_resolved *open, bool quiet, dh_resolved **chosen)
{
    const dh_schedule_row *row;
    dh_ctx unknown = DH_CTX_INIT;
    choosing c = {.open = open, .arena = dh_arena_create(), .n_single = MOST};
    if (!c.arena) return dh_no_memory(ctx);
    if (!dh_job_schedule_file(&open->job) &&
        dh_schedule_find(&unknown, open->job.schedule, &row) == DH_OK)
        c.paired = row->pairs;
    dh_status st = try_all(ctx, &c);
    if (st == DH_OK) st = take(ctx, &c, best_of(&c, ANY), quiet, chosen);
    for (size_t i = 0; i < c.n; i++) dh_resolved_destroy(c.list[i].job);
    dh_arena_destroy(c.arena);
    return st;
}
