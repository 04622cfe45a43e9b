/* From moves to a plan: rounds, times of every operator, and where the time went; and the
 * check of a plan against its problem. */
#include <stdlib.h>
#include <string.h>

#include "pair_build.h"

/* ---- rounds ------------------------------------------------------------------------------ */

static bool is_alone(const pair_move *m)
{
    return m->n_f == 0 || m->n_b == 0;
}

/* Whether a move goes on with the run of one strand that the move before it was. */
static bool joins(const pair_move *before, const pair_move *m)
{
    return is_alone(before) && is_alone(m) && (before->n_f > 0) == (m->n_f > 0);
}

static dh_status make_rounds(dh_ctx *ctx, const dh_pair_search *s, dh_pair_plan *plan)
{
    int32_t *f = DH_NEW_N(plan->arena, int32_t, s->f.n + 1);
    int32_t *b = DH_NEW_N(plan->arena, int32_t, s->b.n + 1);
    plan->rounds = DH_NEW_N(plan->arena, dh_pair_round, s->moves.n + 1);
    if (!f || !b || !plan->rounds) return dh_no_memory(ctx);
    for (size_t k = 0; k < s->moves.n; k++) {
        const pair_move *m = &s->moves.at[k];
        if (k == 0 || !joins(m - 1, m))
            plan->rounds[plan->n_rounds++] = (dh_pair_round){.f_ops = f, .b_ops = b};
        dh_pair_round *round = &plan->rounds[plan->n_rounds - 1];
        for (int32_t i = 0; i < m->n_f; i++) *f++ = m->f[i];
        for (int32_t i = 0; i < m->n_b; i++) *b++ = m->b[i];
        round->n_f += m->n_f;
        round->n_b += m->n_b;
    }
    return DH_OK;
}

/* ---- times ------------------------------------------------------------------------------ */

/* Work of a round's computation, alone. */
static int64_t compute_work(const dh_pair_op *ops, const int32_t *run, int32_t n)
{
    int64_t ns = 0;
    for (int32_t i = 0; i < n; i++)
        if (ops[run[i]].engine == DH_ENGINE_COMPUTE) ns += ops[run[i]].solo_ns;
    return ns;
}

static bool computes(const dh_pair_op *ops, const int32_t *run, int32_t i, int32_t n)
{
    return i < n && ops[run[i]].engine == DH_ENGINE_COMPUTE;
}

/* Walk the intervals in which the current operators stay the same. */
static void attribute(const dh_pair_problem *p, dh_pair_plan *plan, dh_pair_round *round,
                      const int64_t *f_end, const int64_t *b_end, int64_t duration_ns)
{
    int64_t now = 0, computing = 0;
    for (int32_t i = 0, j = 0; i < round->n_f || j < round->n_b;) {
        const bool f_next = j == round->n_b || (i < round->n_f && f_end[i] <= b_end[j]);
        const int64_t end = f_next ? f_end[i] : b_end[j];
        if (computes(p->f.ops, round->f_ops, i, round->n_f) ||
            computes(p->b.ops, round->b_ops, j, round->n_b))
            computing += end - now;
        if (end > now && i < round->n_f && j < round->n_b)
            plan->n_pairs[p->together[(size_t)round->f_ops[i] * (size_t)p->b.n +
                                      (size_t)round->b_ops[j]]
                              .source]++;
        now = end;
        if (f_next)
            i++;
        else
            j++;
    }
    round->exposed.launch_ns = p->round_ns;
    round->exposed.dependency_ns = duration_ns - computing;
    round->exposed.contention_ns = computing - compute_work(p->f.ops, round->f_ops, round->n_f) -
                                   compute_work(p->b.ops, round->b_ops, round->n_b);
}

static void place_ops(dh_pair_span *spans, const int32_t *run, int32_t n, const int64_t *end,
                      int64_t start_ns)
{
    for (int32_t i = 0; i < n; i++)
        spans[run[i]] = (dh_pair_span){start_ns + (i ? end[i - 1] : 0), start_ns + end[i]};
}

static void time_rounds(const pair_costs *costs, dh_pair_plan *plan, int64_t *f_end, int64_t *b_end)
{
    const dh_pair_problem *p = costs->problem;
    int64_t now = 0;
    for (int32_t k = 0; k < plan->n_rounds; k++) {
        dh_pair_round *round = &plan->rounds[k];
        const int64_t ns = pair_fluid(costs, (pair_run){round->f_ops, round->n_f},
                                      (pair_run){round->b_ops, round->n_b}, f_end, b_end);
        round->start_ns = now;
        place_ops(plan->f_span, round->f_ops, round->n_f, f_end, now + p->round_ns);
        place_ops(plan->b_span, round->b_ops, round->n_b, b_end, now + p->round_ns);
        attribute(p, plan, round, f_end, b_end, ns);
        round->end_ns = now += p->round_ns + ns;
        plan->exposed.launch_ns += round->exposed.launch_ns;
        plan->exposed.dependency_ns += round->exposed.dependency_ns;
        plan->exposed.contention_ns += round->exposed.contention_ns;
    }
    plan->makespan_ns = now;
}

/* ---- sums ------------------------------------------------------------------------------- */

static void sum_work(const dh_pair_problem *p, dh_pair_plan *plan)
{
    const dh_pair_strand *strands[] = {&p->f, &p->b};
    for (int s = 0; s < 2; s++) {
        if (strands[s]->n > 0) plan->sequential_ns += p->round_ns;
        for (int32_t k = 0; k < strands[s]->n; k++) {
            const dh_pair_op *op = &strands[s]->ops[k];
            plan->work_ns[op->engine] += op->solo_ns;
            plan->sequential_ns += op->solo_ns;
        }
    }
    for (int c = 0; c < DH_N_ENGINE; c++) {
        plan->bound_ns = DH_MAX(plan->bound_ns, plan->work_ns[c]);
        if (c != DH_ENGINE_COMPUTE) plan->communication_ns += plan->work_ns[c];
    }
}

dh_status pair_result_make(dh_ctx *ctx, const dh_pair_search *search, dh_pair_plan *plan)
{
    const dh_pair_problem *p = search->costs.problem;
    plan->f_span = DH_NEW_N(plan->arena, dh_pair_span, p->f.n + 1);
    plan->b_span = DH_NEW_N(plan->arena, dh_pair_span, p->b.n + 1);
    int64_t *f_end = DH_NEW_N(plan->arena, int64_t, p->f.n + 1);
    int64_t *b_end = DH_NEW_N(plan->arena, int64_t, p->b.n + 1);
    if (!plan->f_span || !plan->b_span || !f_end || !b_end) return dh_no_memory(ctx);
    DH_TRY(make_rounds(ctx, search, plan));
    time_rounds(&search->costs, plan, f_end, b_end);
    sum_work(p, plan);
    plan->n_states = search->n_states;
    plan->n_moves = search->n_moves;
    if (search->note && !(plan->note = dh_arena_strdup(plan->arena, search->note)))
        return dh_no_memory(ctx);
    return DH_OK;
}

/* ---- check ------------------------------------------------------------------------------ */

/* Marks one run as executed; every operator must be new and ready. */
static dh_status check_run(dh_ctx *ctx, const char *side, const dh_pair_op *ops,
                           const pair_dag *dag, const int32_t *run, int32_t n, int32_t round,
                           bool *done)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t k = run[i];
        if (k < 0 || k >= dag->n)
            return dh_fail(ctx, DH_EINVAL, "round %d: %s operator %d; there are %d", round, side, k,
                           dag->n);
        if (done[k])
            return dh_fail(ctx, DH_EINVAL, "round %d: %s operator %s runs twice", round, side,
                           ops[k].name);
        for (int32_t e = dag->first[k]; e < dag->first[k + 1]; e++)
            if (!done[dag->preds[e]])
                return dh_fail(ctx, DH_EINVAL, "round %d: %s operator %s runs before %s", round,
                               side, ops[k].name, ops[dag->preds[e]].name);
        done[k] = true;
    }
    return DH_OK;
}

static dh_status check_complete(dh_ctx *ctx, const char *side, dh_pair_strand strand,
                                const bool *done)
{
    for (int32_t k = 0; k < strand.n; k++)
        if (!done[k])
            return dh_fail(ctx, DH_EINVAL, "%s operator %s is in no round", side,
                           strand.ops[k].name);
    return DH_OK;
}

static dh_status check_spans(dh_ctx *ctx, const dh_pair_op *ops, const dh_pair_span *spans,
                             const int32_t *run, int32_t n, const int64_t *end, int64_t start_ns,
                             int32_t round)
{
    for (int32_t i = 0; i < n; i++) {
        const dh_pair_span at = spans[run[i]];
        const int64_t from = start_ns + (i ? end[i - 1] : 0), to = start_ns + end[i];
        if (at.start_ns != from || at.end_ns != to)
            return dh_fail(ctx, DH_EINVAL,
                           "round %d: %s from %lld to %lld ns; %lld to %lld are predicted", round,
                           ops[run[i]].name, (long long)at.start_ns, (long long)at.end_ns,
                           (long long)from, (long long)to);
    }
    return DH_OK;
}

static dh_status check_times(dh_ctx *ctx, const pair_costs *costs, const dh_pair_plan *plan,
                             int32_t k, int64_t *f_end, int64_t *b_end)
{
    const dh_pair_problem *p = costs->problem;
    const dh_pair_round *s = &plan->rounds[k];
    const int32_t longest = costs->options->max_segment;
    const bool paired = s->n_f > 0 && s->n_b > 0;
    if (paired && DH_MAX(s->n_f, s->n_b) > longest)
        return dh_fail(ctx, DH_EINVAL, "round %d: segments of %d and %d operators; at most %d", k,
                       s->n_f, s->n_b, longest);
    const int64_t ns =
        pair_fluid(costs, (pair_run){s->f_ops, s->n_f}, (pair_run){s->b_ops, s->n_b}, f_end, b_end);
    if (ns == PAIR_NEVER)
        return dh_fail(ctx, DH_EINVAL, "round %d: operators overlap that may not", k);
    const int64_t start = k ? plan->rounds[k - 1].end_ns : 0, end = start + p->round_ns + ns;
    if (s->start_ns != start || s->end_ns != end)
        return dh_fail(ctx, DH_EINVAL, "round %d: from %lld to %lld ns; %lld to %lld are predicted",
                       k, (long long)s->start_ns, (long long)s->end_ns, (long long)start,
                       (long long)end);
    DH_TRY(
        check_spans(ctx, p->f.ops, plan->f_span, s->f_ops, s->n_f, f_end, start + p->round_ns, k));
    return check_spans(ctx, p->b.ops, plan->b_span, s->b_ops, s->n_b, b_end, start + p->round_ns,
                       k);
}

static dh_status check_plan(dh_ctx *ctx, dh_arena *arena, const pair_costs *costs,
                            const dh_pair_plan *plan)
{
    const dh_pair_problem *p = costs->problem;
    pair_dag f, b;
    DH_TRY(pair_dag_make(ctx, arena, p->f, costs->options->move_wgrad, &f));
    DH_TRY(pair_dag_make(ctx, arena, p->b, costs->options->move_wgrad, &b));
    bool *f_done = DH_NEW_N(arena, bool, f.n + 1), *b_done = DH_NEW_N(arena, bool, b.n + 1);
    int64_t *f_end = DH_NEW_N(arena, int64_t, f.n + 1), *b_end = DH_NEW_N(arena, int64_t, b.n + 1);
    if (!f_done || !b_done || !f_end || !b_end) return dh_no_memory(ctx);
    for (int32_t k = 0; k < plan->n_rounds; k++) {
        const dh_pair_round *s = &plan->rounds[k];
        DH_TRY(check_run(ctx, "forward", p->f.ops, &f, s->f_ops, s->n_f, k, f_done));
        DH_TRY(check_run(ctx, "backward", p->b.ops, &b, s->b_ops, s->n_b, k, b_done));
        DH_TRY(check_times(ctx, costs, plan, k, f_end, b_end));
    }
    DH_TRY(check_complete(ctx, "forward", p->f, f_done));
    DH_TRY(check_complete(ctx, "backward", p->b, b_done));
    const int64_t end = plan->n_rounds ? plan->rounds[plan->n_rounds - 1].end_ns : 0;
    if (plan->makespan_ns == end) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "the plan says %lld ns; its last round ends at %lld",
                   (long long)plan->makespan_ns, (long long)end);
}

dh_status pair_plan_validate(dh_ctx *ctx, const dh_pair_problem *problem,
                             const dh_pair_options *options, const dh_pair_plan *plan)
{
    static const dh_pair_options standard = DH_PAIR_OPTIONS_INIT;
    DH_TRY(dh_pair_problem_validate(ctx, problem));
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    const pair_costs costs = {problem, options ? options : &standard, NULL};
    dh_status st = check_plan(ctx, arena, &costs, plan);
    dh_arena_destroy(arena);
    return st;
}
