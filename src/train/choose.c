/* strategy: auto. Every strategy's step is simulated on what is known of this machine, and
 * the shortest is trained: the sequential one too, where overlap would lose. */
#include <string.h>

#include "train/recipe.h"
#include "train/simulation.h"

enum { MAX_ROWS = 32 };

typedef struct candidate {
    const dh_strategy *strategy;
    dh_resolved *job; /* with it; NULL: cannot run */
    int64_t step_ns;
    double hidden;
} candidate;

static double hidden_share(const dh_sim *sim)
{
    return dh_timeline_hidden_share(&sim->ranks[0].times);
}

static dh_status simulate_variation(dh_ctx *ctx, const dh_resolved *job, candidate *c)
{
    const dh_train_simulation how = {.n_slow_nodes = 0};
    dh_sim *sim;
    DH_TRY(dh_train_simulate(ctx, job, &how, &sim));
    c->step_ns = sim->step_ns;
    c->hidden = hidden_share(sim);
    dh_sim_destroy(sim);
    return DH_OK;
}

static dh_status simulate_row(dh_ctx *ctx, const dh_resolved *open, candidate *c)
{
    dh_resolved *job = NULL;
    dh_status st = dh_strategy_runs(ctx, c->strategy);
    if (st == DH_OK) st = dh_resolved_vary(ctx, open, c->strategy, &job);
    if (st == DH_OK) st = simulate_variation(ctx, job, c);
    if (st == DH_OK) {
        c->job = job;
        return DH_OK;
    }
    dh_resolved_destroy(job);
    if (st != DH_EINVAL && st != DH_EUNSUPPORTED) return st;
    dh_log(DH_LOG_DEBUG, "strategy auto: not %s: %s", c->strategy->name, ctx->message);
    dh_ctx_reset(ctx);
    return DH_OK;
}

/* TUNING: what is taken has to promise more than this; a gain within the error of predictions
 * (beside.c) is still more likely than a loss. */
#define WORTH_IT 0.98

static candidate *shortest(candidate *list, size_t n)
{
    candidate *best = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!list[i].job) continue;
        const double margin = best == list ? WORTH_IT : 1;
        if (!best || (double)list[i].step_ns < margin * (double)best->step_ns) best = &list[i];
    }
    return best;
}

static void tell(const candidate *list, size_t n, const candidate *best)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].job)
            dh_log(DH_LOG_INFO, "strategy auto: %-26s %9.1f ms a step predicted, %3.0f %% hidden%s",
                   list[i].strategy->name, (double)list[i].step_ns * 1e-6, 100 * list[i].hidden,
                   &list[i] == best ? "  <- trains" : "");
    for (size_t i = 1; i < n && best == list; i++) {
        if (!list[i].job || list[i].step_ns >= best->step_ns) continue;
        dh_log(DH_LOG_INFO,
               "strategy auto: keeps %s, because the others save less than %.0f %% of a step",
               best->strategy->name, 100 * (1 - WORTH_IT));
        return;
    }
}

static dh_status simulate_rows(dh_ctx *ctx, const dh_resolved *open, candidate *list, size_t n)
{
    size_t n_rows;
    const dh_strategy *rows = dh_strategies(&n_rows);
    for (size_t i = 0; i < n; i++) {
        list[i].strategy = &rows[i];
        if (i > 0 && open->job.ranks == 1) continue; /* nothing to hide */
        DH_TRY(simulate_row(ctx, open, &list[i]));
    }
    return DH_OK;
}

static dh_status take(dh_ctx *ctx, const candidate *list, size_t n, candidate *best, bool quiet,
                      dh_resolved **chosen)
{
    if (!best)
        return dh_fail(ctx, DH_EINVAL,
                       "strategy=auto: no strategy can run this job; --set strategy=sequential "
                       "says why");
    DH_TRY(dh_resolved_note(ctx, best->job, "strategy", best->strategy->name,
                            "the shortest simulated step, %.1f ms, since strategy=auto",
                            (double)best->step_ns * 1e-6));
    if (!quiet && best->job->job.ranks > 1) tell(list, n, best);
    *chosen = best->job;
    best->job = NULL;
    return DH_OK;
}

dh_status dh_resolved_choose(dh_ctx *ctx, const dh_resolved *open, bool quiet, dh_resolved **chosen)
{
    size_t n;
    candidate list[MAX_ROWS] = {{.job = NULL}};
    dh_strategies(&n);
    n = DH_MIN(n, (size_t)MAX_ROWS);
    dh_status st = simulate_rows(ctx, open, list, n);
    if (st == DH_OK) st = take(ctx, list, n, shortest(list, n), quiet, chosen);
    for (size_t i = 0; i < n; i++) dh_resolved_destroy(list[i].job);
    return st;
}
