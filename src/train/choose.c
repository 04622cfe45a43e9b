/* strategy: auto. Every strategy's step is simulated on what is known of this machine, and
 * the shortest is trained: the sequential one too, where overlap would lose. */
#include <string.h>

#include "train/run.h"

enum { MAX_ROWS = 32 };

typedef struct candidate {
    const dh_strategy *strategy;
    int64_t step_ns; /* 0: cannot run this job */
    double hidden;
} candidate;

static double hidden_share(const dh_sim *sim)
{
    return dh_timeline_hidden_share(&sim->ranks[0].times);
}

static dh_status simulate_row(dh_ctx *ctx, dh_job *job, candidate *c)
{
    const dh_train_simulation how = {.strategy = c->strategy->name};
    dh_sim *sim;
    dh_status st = dh_train_simulate(ctx, job, &how, &sim);
    if (st == DH_OK) {
        c->step_ns = sim->step_ns;
        c->hidden = hidden_share(sim);
        dh_sim_destroy(sim);
        return DH_OK;
    }
    if (st != DH_EINVAL && st != DH_EUNSUPPORTED) return st;
    dh_log(DH_LOG_DEBUG, "strategy auto: not %s: %s", c->strategy->name, ctx->message);
    dh_ctx_reset(ctx);
    return DH_OK;
}

/* Overlap must promise more than its prediction is likely to be wrong by. */
#define WORTH_IT 0.98

static const candidate *shortest(const candidate *list, size_t n)
{
    const candidate *best = NULL;
    for (size_t i = 0; i < n; i++) {
        if (list[i].step_ns == 0) continue;
        const double margin = best == list ? WORTH_IT : 1;
        if (!best || (double)list[i].step_ns < margin * (double)best->step_ns) best = &list[i];
    }
    return best;
}

static void tell(const candidate *list, size_t n, const candidate *best)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].step_ns > 0)
            dh_log(DH_LOG_INFO, "strategy auto: %-26s %9.1f ms a step predicted, %3.0f %% hidden%s",
                   list[i].strategy->name, (double)list[i].step_ns * 1e-6, 100 * list[i].hidden,
                   &list[i] == best ? "  <- trains" : "");
}

dh_status dh_train_choose(dh_ctx *ctx, dh_job *job, bool quiet)
{
    size_t n;
    candidate list[MAX_ROWS];
    const dh_strategy *rows = dh_strategies(&n);
    if (strcmp(job->strategy, "auto") != 0) return DH_OK;
    n = DH_MIN(n, (size_t)MAX_ROWS);
    for (size_t i = 0; i < n; i++) {
        list[i] = (candidate){.strategy = &rows[i]};
        if (i > 0 && job->ranks == 1) continue; /* nothing to hide */
        DH_TRY(simulate_row(ctx, job, &list[i]));
    }
    const candidate *best = shortest(list, n);
    if (!best)
        return dh_fail(ctx, DH_EINVAL,
                       "strategy=auto: no strategy can run this job; --set strategy=sequential "
                       "says why");
    job->strategy = dh_arena_strdup(job->arena, best->strategy->name);
    if (!quiet && job->ranks > 1) tell(list, n, best);
    return job->strategy ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory choosing a strategy");
}
