/* The fluid model: how long two segments take side by side (pairing.h has the formulas).
 *
 * Work and time are doubles inside one pair of segments only; ends are rounded to whole ns
 * before anything is added up, so that plans compare exactly. */
#include <math.h>

#include "base/flow.h"
#include "pair_build.h"

bool dh_pair_may_overlap(const dh_pair_options *o, dh_engine f, dh_engine b)
{
    if ((f == DH_ENGINE_LOCAL || b == DH_ENGINE_LOCAL) && !o->overlap_local) return false;
    if ((f == DH_ENGINE_CROSS || b == DH_ENGINE_CROSS) && !o->overlap_cross) return false;
    return f == DH_ENGINE_COMPUTE || b == DH_ENGINE_COMPUTE || o->overlap_comm_comm;
}

static pair_rate rate_of(const pair_costs *c, int32_t f, int32_t b)
{
    if (c->rates) return c->rates[(size_t)f * (size_t)c->problem->b.n + (size_t)b];
    const dh_pair_op *fop = &c->problem->f.ops[f], *bop = &c->problem->b.ops[b];
    const dh_pair_time *t = &c->problem->together[(size_t)f * (size_t)c->problem->b.n + (size_t)b];
    pair_rate rate = {1, 1, dh_pair_may_overlap(c->options, fop->engine, bop->engine)};
    if (fop->solo_ns == 0 || bop->solo_ns == 0) return rate;
    double speed[2];
    dh_flow_speeds((double[]){(double)fop->solo_ns, (double)bop->solo_ns},
                   (double[]){(double)t->f_ns, (double)t->b_ns}, speed);
    rate.f = speed[0];
    rate.b = speed[1];
    return rate;
}

dh_status pair_rates_make(dh_ctx *ctx, dh_arena *arena, pair_costs *costs)
{
    const int32_t n_f = costs->problem->f.n, n_b = costs->problem->b.n;
    pair_rate *rates = DH_NEW_N(arena, pair_rate, (size_t)n_f * (size_t)n_b);
    if (!rates) return dh_no_memory(ctx);
    for (int32_t f = 0; f < n_f; f++)
        for (int32_t b = 0; b < n_b; b++)
            rates[(size_t)f * (size_t)n_b + (size_t)b] = rate_of(costs, f, b);
    costs->rates = rates;
    return DH_OK;
}

/* One strand's way through its segment. */
typedef struct walker {
    const dh_pair_op *ops;
    pair_run run;
    int32_t at;
    int64_t *end;
} walker;

static double work_of(const walker *w)
{
    return (double)w->ops[w->run.ops[w->at]].solo_ns;
}

/* Go on to the next operator with work; operators without any end now. */
static void settle(walker *w, dh_flow *current, double now)
{
    while (w->at < w->run.n && dh_flow_is_done(current)) {
        if (w->end) w->end[w->at] = llround(now);
        if (++w->at < w->run.n) current->left_ns = work_of(w);
    }
}

static walker enter(dh_pair_strand strand, pair_run run, int64_t *end, dh_flow *current)
{
    walker w = {strand.ops, run, 0, end};
    if (run.n > 0) current->left_ns = work_of(&w);
    settle(&w, current, 0);
    return w;
}

static double run_alone(walker *w, dh_flow *current, double now)
{
    while (w->at < w->run.n) {
        now += current->left_ns;
        current->left_ns = 0;
        settle(w, current, now);
    }
    return now;
}

int64_t pair_fluid(const pair_costs *costs, pair_run f_run, pair_run b_run, int64_t *f_end,
                   int64_t *b_end)
{
    dh_flow f_now = {0, 1}, b_now = {0, 1}; /* the current operators */
    walker f = enter(costs->problem->f, f_run, f_end, &f_now);
    walker b = enter(costs->problem->b, b_run, b_end, &b_now);
    double now = 0;
    while (f.at < f.run.n && b.at < b.run.n) {
        /* At least one rate is positive, that of the operator that ends first by itself. */
        const pair_rate rate = rate_of(costs, f.run.ops[f.at], b.run.ops[b.at]);
        if (!rate.allowed) return PAIR_NEVER;
        f_now.speed = rate.f;
        b_now.speed = rate.b;
        now += dh_flow_pair_step(&f_now, &b_now);
        settle(&f, &f_now, now);
        settle(&b, &b_now, now);
    }
    return llround(f.at < f.run.n ? run_alone(&f, &f_now, now) : run_alone(&b, &b_now, now));
}

int64_t pair_coexecute(const dh_pair_problem *problem, const dh_pair_options *options,
                       const int32_t *f_ops, int32_t n_f, const int32_t *b_ops, int32_t n_b,
                       int64_t *f_end, int64_t *b_end)
{
    static const dh_pair_options standard = DH_PAIR_OPTIONS_INIT;
    const pair_costs costs = {problem, options ? options : &standard, NULL};
    int64_t ns = pair_fluid(&costs, (pair_run){f_ops, n_f}, (pair_run){b_ops, n_b}, f_end, b_end);
    return ns == PAIR_NEVER ? -1 : ns;
}
