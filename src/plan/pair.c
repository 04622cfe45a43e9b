/* Entry: the table of policies, the checks they share, and one run of one of them. */
#include <stdlib.h>
#include <string.h>

#include "pair_build.h"

/* ---- names ------------------------------------------------------------------------------ */

const char *dh_pair_source_name(dh_pair_source source)
{
    static const char *const names[] = {
#define X(name, text) text,
        DH_PAIR_SOURCE_LIST(X)
#undef X
    };
    return names[source];
}

static const dh_pair_policy policies[] = {
    {"sequential", "one strand after the other: what every overlap is compared with",
     pair_search_sequential},
    {"round-robin", "operators of the two strands alternate, k-th beside k-th (Wavelet+, DHelix 5)",
     pair_search_round_robin},
    {"dp", "best cuts of the given orders into segments (DHelix, equation 2)", pair_search_dp},
    {"dp-orders", "dp over 5 x 5 orders: given, wgrad early or late, communication early or late",
     pair_search_dp_orders},
    {"exact",
     "best over all orders and all cuts at once; dp-orders where that is too much (note says)",
     pair_search_exact},
};

const dh_pair_policy *pair_policies(size_t *n)
{
    *n = DH_COUNTOF(policies);
    return policies;
}

dh_status dh_pair_policy_find(dh_ctx *ctx, const char *name, const dh_pair_policy **policy)
{
    const char *names[DH_COUNTOF(policies)];
    for (size_t i = 0; i < DH_COUNTOF(policies); i++) {
        names[i] = policies[i].name;
        if (strcmp(name, names[i]) == 0) {
            *policy = &policies[i];
            return DH_OK;
        }
    }
    const char *near = dh_nearest(name, names, DH_COUNTOF(policies));
    return dh_fail(ctx, DH_EMISSING,
                   "no pairing policy \"%.80s\"%s%s%s; `dhelix list policies` has all", name,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* ---- checks ----------------------------------------------------------------------------- */

static dh_status check_op(dh_ctx *ctx, const char *side, const dh_pair_strand *strand, int32_t k)
{
    const dh_pair_op *op = &strand->ops[k];
    if (!op->name || !*op->name)
        return dh_fail(ctx, DH_EINVAL, "%s operator %d has no name", side, k);
    if ((unsigned)op->engine >= DH_N_ENGINE || (unsigned)op->source >= DH_N_PAIR_SOURCES)
        return dh_fail(ctx, DH_EINVAL, "%s operator %s: class %d or source %d is unknown", side,
                       op->name, (int)op->engine, (int)op->source);
    if (op->solo_ns < 0 || op->solo_ns > DH_PAIR_MAX_NS)
        return dh_fail(ctx, DH_EINVAL, "%s operator %s takes %lld ns; 0..%lld are possible", side,
                       op->name, (long long)op->solo_ns, (long long)DH_PAIR_MAX_NS);
    if (op->n_preds < 0 || op->n_preds > k)
        return dh_fail(ctx, DH_EINVAL,
                       "%s operator %s: %d predecessors; %d operators are before it", side,
                       op->name, op->n_preds, k);
    for (int32_t i = 0; i < op->n_preds; i++)
        if (op->preds[i] < 0 || op->preds[i] >= k)
            return dh_fail(ctx, DH_EINVAL,
                           "%s operator %s (number %d) needs number %d; list operators in an order "
                           "that computes",
                           side, op->name, k, op->preds[i]);
    return DH_OK;
}

static dh_status check_strand(dh_ctx *ctx, const char *side, const dh_pair_strand *strand)
{
    if (strand->n < 0 || strand->n > DH_PAIR_MAX_OPS)
        return dh_fail(ctx, DH_EINVAL, "%d %s operators; 0..%d are possible", strand->n, side,
                       DH_PAIR_MAX_OPS);
    for (int32_t k = 0; k < strand->n; k++) DH_TRY(check_op(ctx, side, strand, k));
    return DH_OK;
}

static bool is_time(int64_t ns)
{
    return ns >= 1 && ns <= DH_PAIR_MAX_NS;
}

static dh_status check_together(dh_ctx *ctx, const dh_pair_problem *p, int32_t f, int32_t b)
{
    const dh_pair_op *fop = &p->f.ops[f], *bop = &p->b.ops[b];
    const dh_pair_time *t = &p->together[(size_t)f * (size_t)p->b.n + (size_t)b];
    if ((unsigned)t->source >= DH_N_PAIR_SOURCES)
        return dh_fail(ctx, DH_EINVAL, "%s beside %s: source %d is unknown", fop->name, bop->name,
                       (int)t->source);
    if (fop->solo_ns == 0 || bop->solo_ns == 0 || (is_time(t->f_ns) && is_time(t->b_ns)))
        return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "%s beside %s end after %lld and %lld ns; 1..%lld are possible",
                   fop->name, bop->name, (long long)t->f_ns, (long long)t->b_ns,
                   (long long)DH_PAIR_MAX_NS);
}

dh_status dh_pair_problem_validate(dh_ctx *ctx, const dh_pair_problem *p)
{
    DH_TRY(check_strand(ctx, "forward", &p->f));
    DH_TRY(check_strand(ctx, "backward", &p->b));
    if ((int64_t)p->f.n * p->b.n > DH_PAIR_MAX_PAIRS)
        return dh_fail(ctx, DH_EINVAL,
                       "%d forward beside %d backward operators; %lld pairs are possible", p->f.n,
                       p->b.n, (long long)DH_PAIR_MAX_PAIRS);
    if (p->round_ns < 0 || p->round_ns > DH_PAIR_MAX_NS)
        return dh_fail(ctx, DH_EINVAL, "a round costs %lld ns; 0..%lld are possible",
                       (long long)p->round_ns, (long long)DH_PAIR_MAX_NS);
    for (int32_t f = 0; f < p->f.n; f++)
        for (int32_t b = 0; b < p->b.n; b++) DH_TRY(check_together(ctx, p, f, b));
    return DH_OK;
}

static dh_status check_options(dh_ctx *ctx, const dh_pair_options *o)
{
    if (o->max_segment < 1 || o->max_segment > DH_PAIR_MAX_SEGMENT)
        return dh_fail(ctx, DH_EINVAL, "segments of at most %d operators; 1..%d are possible",
                       o->max_segment, DH_PAIR_MAX_SEGMENT);
    if (o->max_states < 1 || o->max_moves < 1)
        return dh_fail(ctx, DH_EINVAL, "a search of at most %lld states and %lld moves; 1 is least",
                       (long long)o->max_states, (long long)o->max_moves);
    return DH_OK;
}

/* ---- one policy ------------------------------------------------------------------------- */

void dh_pair_plan_destroy(dh_pair_plan *plan)
{
    if (plan) dh_arena_destroy(plan->arena);
}

static dh_status plan_create(dh_ctx *ctx, const char *policy, dh_pair_plan **plan)
{
    dh_arena *arena = dh_arena_create();
    dh_pair_plan *p = arena ? DH_NEW(arena, dh_pair_plan) : NULL;
    if (!p || !(p->policy = dh_arena_strdup(arena, policy))) {
        dh_arena_destroy(arena);
        return dh_no_memory(ctx);
    }
    p->arena = arena;
    *plan = p;
    return DH_OK;
}

/* The moves of a policy, in `search`, whose arena is there. */
static dh_status run_search(dh_ctx *ctx, const dh_pair_policy *policy, dh_pair_search *search)
{
    const dh_pair_problem *p = search->costs.problem;
    const bool move_wgrad = search->costs.options->move_wgrad;
    DH_TRY(pair_rates_make(ctx, search->arena, &search->costs));
    DH_TRY(pair_dag_make(ctx, search->arena, p->f, move_wgrad, &search->f));
    DH_TRY(pair_dag_make(ctx, search->arena, p->b, move_wgrad, &search->b));
    return policy->search(ctx, search);
}

static dh_status run_policy(dh_ctx *ctx, const dh_pair_policy *policy,
                            const dh_pair_problem *problem, const dh_pair_options *options,
                            dh_pair_plan **plan)
{
    dh_pair_search search = {.costs = {problem, options, NULL}, .arena = dh_arena_create()};
    dh_pair_plan *p = NULL;
    dh_status st = DH_OK;
    if (!search.arena) return dh_no_memory(ctx);
    DH_TRY_GOTO(run_search(ctx, policy, &search), done);
    DH_TRY_GOTO(plan_create(ctx, policy->name, &p), done);
    DH_TRY_GOTO(pair_result_make(ctx, &search, p), done);
    *plan = p;
    p = NULL;
done:
    dh_pair_plan_destroy(p);
    dh_vec_fini(&search.moves);
    dh_arena_destroy(search.arena);
    return st;
}

/* ---- entry ------------------------------------------------------------------------------ */

static dh_status run_others(dh_ctx *ctx, const dh_pair_policy *chosen,
                            const dh_pair_problem *problem, const dh_pair_options *options,
                            dh_pair_plan *plan)
{
    plan->others = DH_NEW_N(plan->arena, dh_pair_other, DH_COUNTOF(policies));
    if (!plan->others) return dh_no_memory(ctx);
    for (size_t k = 0; k < DH_COUNTOF(policies); k++) {
        dh_pair_plan *other;
        if (strcmp(policies[k].name, chosen->name) == 0) continue;
        DH_TRY(run_policy(ctx, &policies[k], problem, options, &other));
        plan->others[plan->n_others++] = (dh_pair_other){policies[k].name, other->makespan_ns};
        dh_pair_plan_destroy(other);
    }
    return DH_OK;
}

dh_status dh_pair_plan_make(dh_ctx *ctx, const dh_pair_policy *policy,
                            const dh_pair_problem *problem, const dh_pair_options *options,
                            dh_pair_plan **plan)
{
    static const dh_pair_options standard = DH_PAIR_OPTIONS_INIT;
    dh_pair_plan *made;
    if (!options) options = &standard;
    DH_TRY(check_options(ctx, options));
    DH_TRY(dh_pair_problem_validate(ctx, problem));
    DH_TRY(run_policy(ctx, policy, problem, options, &made));
    dh_status st = options->compare ? run_others(ctx, policy, problem, options, made) : DH_OK;
    if (st == DH_OK)
        *plan = made;
    else
        dh_pair_plan_destroy(made);
    return st;
}
