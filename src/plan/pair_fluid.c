/* The fluid model: how long two segments take side by side (pairing.h has the formulas).
 *
 * Work and time are doubles inside one pair of segments only; ends are rounded to whole ns
 * before anything is added up, so that plans compare exactly. */
#include <math.h>

#include "pair_build.h"

/* Work that is left from rounding, in ns: a thousandth of what is ever reported. */
#define RESIDUE_NS 1e-3

static bool may_overlap(const dh_pair_options *o, dh_pair_class f, dh_pair_class b)
{
    if ((f == DH_PAIR_LOCAL || b == DH_PAIR_LOCAL) && !o->overlap_local) return false;
    if ((f == DH_PAIR_CROSS || b == DH_PAIR_CROSS) && !o->overlap_cross) return false;
    return f == DH_PAIR_COMPUTE || b == DH_PAIR_COMPUTE || o->overlap_comm_comm;
}

/* Rates of the one that ends first (first_ns) and of the other, which does what is left alone. */
static void rates_of(int64_t solo_first, int64_t first_ns, int64_t solo_other, int64_t other_ns,
                     double *first, double *other)
{
    *first = (double)solo_first / (double)first_ns;
    *other = (double)(solo_other - (other_ns - first_ns)) / (double)first_ns;
}

static pair_rate rate_of(const pair_costs *c, int32_t f, int32_t b)
{
    if (c->rates) return c->rates[(size_t)f * (size_t)c->problem->b.n + (size_t)b];
    const dh_pair_op *fop = &c->problem->f.ops[f], *bop = &c->problem->b.ops[b];
    const dh_pair_time *t = &c->problem->together[(size_t)f * (size_t)c->problem->b.n + (size_t)b];
    pair_rate rate = {1, 1, may_overlap(c->options, fop->cls, bop->cls)};
    if (fop->solo_ns == 0 || bop->solo_ns == 0) return rate;
    if (t->f_ns <= t->b_ns)
        rates_of(fop->solo_ns, t->f_ns, bop->solo_ns, t->b_ns, &rate.f, &rate.b);
    else
        rates_of(bop->solo_ns, t->b_ns, fop->solo_ns, t->f_ns, &rate.b, &rate.f);
    return rate;
}

dh_status pair_rates_make(dh_ctx *ctx, dh_arena *arena, pair_costs *costs)
{
    const int32_t n_f = costs->problem->f.n, n_b = costs->problem->b.n;
    pair_rate *rates = DH_NEW_N(arena, pair_rate, (size_t)n_f * (size_t)n_b);
    if (!rates) return dh_fail(ctx, DH_ENOMEM, "no memory for rates of %d x %d pairs", n_f, n_b);
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
    double left; /* work of the current operator */
    int64_t *end;
} walker;

/* Go on to the next operator with work; operators without any end now. */
static void settle(walker *w, double now)
{
    while (w->at < w->run.n && w->left < RESIDUE_NS) {
        if (w->end) w->end[w->at] = llround(now);
        if (++w->at < w->run.n) w->left = (double)w->ops[w->run.ops[w->at]].solo_ns;
    }
}

static walker enter(dh_pair_strand strand, pair_run run, int64_t *end)
{
    walker w = {strand.ops, run, 0, 0, end};
    if (run.n > 0) w.left = (double)strand.ops[run.ops[0]].solo_ns;
    settle(&w, 0);
    return w;
}

static double run_alone(walker *w, double now)
{
    while (w->at < w->run.n) {
        now += w->left;
        w->left = 0;
        settle(w, now);
    }
    return now;
}

int64_t pair_fluid(const pair_costs *costs, pair_run f_run, pair_run b_run, int64_t *f_end,
                   int64_t *b_end)
{
    walker f = enter(costs->problem->f, f_run, f_end), b = enter(costs->problem->b, b_run, b_end);
    double now = 0;
    while (f.at < f.run.n && b.at < b.run.n) {
        /* At least one rate is positive, that of the operator that ends first by itself, so
         * every round ends an operator. */
        const pair_rate rate = rate_of(costs, f.run.ops[f.at], b.run.ops[b.at]);
        if (!rate.allowed) return PAIR_NEVER;
        const double f_needs = rate.f > 0 ? f.left / rate.f : INFINITY;
        const double b_needs = rate.b > 0 ? b.left / rate.b : INFINITY;
        const double span = DH_MIN(f_needs, b_needs);
        now += span;
        f.left = f_needs <= b_needs ? 0 : f.left - span * rate.f;
        b.left = b_needs <= f_needs ? 0 : b.left - span * rate.b;
        settle(&f, now);
        settle(&b, now);
    }
    return llround(run_alone(f.at < f.run.n ? &f : &b, now));
}

int64_t dh_pair_coexecute(const dh_pair_problem *problem, const dh_pair_options *options,
                          const int32_t *f_ops, int32_t n_f, const int32_t *b_ops, int32_t n_b,
                          int64_t *f_end, int64_t *b_end)
{
    static const dh_pair_options standard = DH_PAIR_OPTIONS_INIT;
    const pair_costs costs = {problem, options ? options : &standard, NULL};
    int64_t ns = pair_fluid(&costs, (pair_run){f_ops, n_f}, (pair_run){b_ops, n_b}, f_end, b_end);
    return ns == PAIR_NEVER ? -1 : ns;
}
