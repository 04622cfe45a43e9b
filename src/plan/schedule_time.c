/* A schedule against the clock.
 *
 * A slot starts when its rank is free and all inputs are there: those made on the same
 * rank at once, those of other ranks one transfer later. Transfers occupy nobody, as if
 * sent by a stream of their own; what a transfer costs the compute stream is the
 * simulator's business. */
#include <stdlib.h>

#include "schedule_build.h"

const dh_schedule_costs dh_one_step_each = {
    .every = {.f_ns = 1, .i_ns = 1, .w_ns = 1, .b_ns = 1, .fb_ns = 1, .fi_ns = 1, .other_ns = 1},
};

typedef struct clock_state {
    const dh_schedule *s;
    const dh_schedule_costs *costs;
    dh_schedule_timing *t;
    int64_t *f_end, *b_end; /* [stage][micro]: when F, and B or I, ended */
} clock_state;

/* ---- durations ------------------------------------------------------------------------------ */

static const dh_stage_cost *cost_of(const dh_schedule_costs *costs, int32_t stage)
{
    return costs->stage ? &costs->stage[stage] : &costs->every;
}

static int64_t action_ns(const dh_schedule_costs *costs, dh_pipe_action a)
{
    const dh_stage_cost *c = cost_of(costs, a.stage);
    switch (a.kind) {
    case DH_PIPE_F:
        return c->f_ns;
    case DH_PIPE_I:
        return c->i_ns;
    case DH_PIPE_W:
        return c->w_ns;
    default:
        return c->b_ns ? c->b_ns : c->i_ns + c->w_ns;
    }
}

static int64_t slot_ns(const dh_schedule *s, const dh_schedule_costs *costs,
                       const dh_pipe_slot *slot)
{
    const dh_pipe_action *a = slot->action;
    if (slot->n_actions == 1) return action_ns(costs, a[0]);
    const dh_stage_cost *c = cost_of(costs, a[0].stage);
    int64_t together = a[1].kind == DH_PIPE_I   ? c->fi_ns
                       : a[1].kind != DH_PIPE_B ? c->other_ns
                       : costs->fb_pair_ns
                           ? costs->fb_pair_ns[(int64_t)a[0].stage * s->n_stages + a[1].stage]
                           : c->fb_ns;
    return together ? together : action_ns(costs, a[0]) + action_ns(costs, a[1]);
}

static dh_status check_duration(dh_ctx *ctx, const char *what, int32_t stage, int64_t ns,
                                int64_t limit)
{
    if (ns >= 0 && ns <= limit) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "%s of stage %d takes %lld ns; durations lie in 0..%lld", what,
                   stage, (long long)ns, (long long)limit);
}

/* Durations so small that no sum of the schedule overflows. */
static dh_status check_costs(dh_ctx *ctx, const dh_schedule *s, const dh_schedule_costs *costs)
{
    const int64_t limit = INT64_MAX / (4 * ((int64_t)s->first_slot[s->n_ranks] + 1));
    DH_TRY(check_duration(ctx, "the transfer", 0, costs->p2p_ns, limit));
    for (int32_t v = 0; v < (costs->stage ? s->n_stages : 1); v++) {
        const dh_stage_cost *c = cost_of(costs, v);
        DH_TRY(check_duration(ctx, "F", v, c->f_ns, limit));
        DH_TRY(check_duration(ctx, "I", v, c->i_ns, limit));
        DH_TRY(check_duration(ctx, "W", v, c->w_ns, limit));
        DH_TRY(check_duration(ctx, "B", v, c->b_ns, limit));
        DH_TRY(check_duration(ctx, "F beside B", v, c->fb_ns, limit));
        DH_TRY(check_duration(ctx, "F beside I", v, c->fi_ns, limit));
        DH_TRY(check_duration(ctx, "another pair", v, c->other_ns, limit));
    }
    for (int64_t i = 0; costs->fb_pair_ns && i < (int64_t)s->n_stages * s->n_stages; i++)
        DH_TRY(check_duration(ctx, "F beside B", (int32_t)(i / s->n_stages), costs->fb_pair_ns[i],
                              limit));
    return DH_OK;
}

/* ---- execution ------------------------------------------------------------------------------ */

static size_t cell(const dh_schedule *s, dh_pipe_action a)
{
    return (size_t)a.stage * (size_t)s->n_micro + (size_t)a.micro;
}

static int64_t inputs_ready(const clock_state *c, int32_t rank, const dh_pipe_slot *slot)
{
    int64_t ready = 0;
    for (int32_t i = 0; i < slot->n_actions; i++) {
        dh_pipe_action needs[2];
        int n = dh_action_needs(c->s, slot->action[i], needs);
        for (int k = 0; k < n; k++) {
            const int64_t *ends = needs[k].kind == DH_PIPE_F ? c->f_end : c->b_end;
            bool sent = dh_schedule_rank(c->s, needs[k].stage, needs[k].micro) != rank;
            int64_t at = ends[cell(c->s, needs[k])] + (sent ? c->costs->p2p_ns : 0);
            ready = DH_MAX(ready, at);
        }
    }
    return ready;
}

static void run_slot(void *arg, int32_t rank, int32_t n)
{
    clock_state *c = arg;
    const dh_pipe_slot *slot = &c->s->slots[n];
    dh_schedule_timing *t = c->t;
    int64_t start = DH_MAX(t->last_ns[rank], inputs_ready(c, rank, slot));
    int64_t length = slot_ns(c->s, c->costs, slot);
    t->start_ns[n] = start;
    t->end_ns[n] = t->last_ns[rank] = start + length;
    t->busy_ns[rank] += length;
    for (int32_t i = 0; i < slot->n_actions; i++) {
        dh_pipe_kind kind = slot->action[i].kind;
        if (kind == DH_PIPE_W) continue;
        (kind == DH_PIPE_F ? c->f_end : c->b_end)[cell(c->s, slot->action[i])] = start + length;
    }
}

static void summarise(const dh_schedule *s, dh_schedule_timing *t)
{
    for (int32_t g = 0; g < s->n_ranks; g++) {
        bool idle = s->first_slot[g] == s->first_slot[g + 1];
        t->first_ns[g] = idle ? 0 : t->start_ns[s->first_slot[g]];
        t->makespan_ns = DH_MAX(t->makespan_ns, t->last_ns[g]);
        t->longest_span_ns = DH_MAX(t->longest_span_ns, t->last_ns[g] - t->first_ns[g]);
    }
    for (int32_t g = 0; g < s->n_ranks; g++)
        t->bubble[g] = t->makespan_ns ? 1.0 - (double)t->busy_ns[g] / (double)t->makespan_ns : 0.0;
}

static dh_status alloc_timing(dh_ctx *ctx, const dh_schedule *s, dh_schedule_timing *t)
{
    size_t n_slots = (size_t)s->first_slot[s->n_ranks], n_ranks = (size_t)s->n_ranks;
    *t = (dh_schedule_timing){
        .start_ns = calloc(n_slots + 1, sizeof(int64_t)),
        .end_ns = calloc(n_slots + 1, sizeof(int64_t)),
        .busy_ns = calloc(n_ranks, sizeof(int64_t)),
        .first_ns = calloc(n_ranks, sizeof(int64_t)),
        .last_ns = calloc(n_ranks, sizeof(int64_t)),
        .bubble = calloc(n_ranks, sizeof(double)),
    };
    if (t->start_ns && t->end_ns && t->busy_ns && t->first_ns && t->last_ns && t->bubble)
        return DH_OK;
    dh_schedule_timing_fini(t);
    return dh_no_memory(ctx);
}

void dh_schedule_timing_fini(dh_schedule_timing *t)
{
    if (!t) return;
    free(t->start_ns);
    free(t->end_ns);
    free(t->busy_ns);
    free(t->first_ns);
    free(t->last_ns);
    free(t->bubble);
    *t = (dh_schedule_timing){0};
}

dh_status dh_schedule_time(dh_ctx *ctx, const dh_schedule *s, const dh_schedule_costs *costs,
                           dh_schedule_timing *timing)
{
    DH_TRY(check_costs(ctx, s, costs));
    dh_schedule_timing t;
    DH_TRY(alloc_timing(ctx, s, &t));
    const size_t n_cells = (size_t)s->n_stages * (size_t)s->n_micro;
    clock_state c = {s, costs, &t, calloc(n_cells, sizeof(int64_t)),
                     calloc(n_cells, sizeof(int64_t))};
    dh_status st = c.f_end && c.b_end ? dh_schedule_walk(ctx, s, run_slot, &c) : dh_no_memory(ctx);
    free(c.f_end);
    free(c.b_end);
    if (st != DH_OK) {
        dh_schedule_timing_fini(&t);
        return st;
    }
    summarise(s, &t);
    *timing = t;
    return DH_OK;
}

dh_status dh_schedule_time_order(dh_ctx *ctx, const dh_schedule *s, dh_schedule_timing *timing)
{
    const dh_schedule_costs costs = {
        .every = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000, .b_ns = 2000, .fb_ns = 3000},
        .stage = s->planned};
    return dh_schedule_time(ctx, s, &costs, timing);
}
