/* Running an order of a slot against the clock: streams in order, operators that run at
 * the same time progress at their mutual rates. */
#include <math.h>

#include <stdlib.h>
#include <string.h>

#include "base/flow.h"
#include "strategy/slot.h"

enum { N_STREAMS = DH_N_STREAM };

/* One or more copies of an order, one behind the other. */
typedef struct replay {
    const dh_slot *slot;
    const dh_slot_pick *order;
    uint32_t n, n_copies;
    const dh_slot_op **ops;                    /* [n * copies] by place in the order */
    uint32_t *queue;                           /* places, stream by stream */
    uint32_t head[N_STREAMS], tail[N_STREAMS]; /* of a stream in the queue: next, behind last */
    uint32_t *place_of;                        /* [n] by node */
    uint32_t *phase;                           /* [n * copies]: barriers before a place */
    uint32_t *phase_left;                      /* operators of a phase not yet ended */
    uint32_t phase_now;
    uint32_t n_strands_left; /* operators of the strands not yet ended */
    bool *ended;
    uint32_t *parts; /* of outputs that are complete, by place; NULL: no operator has several */
    double *start, *end;
    int64_t running[N_STREAMS]; /* place, -1 */
    double left[N_STREAMS];
    double now, exposed, busy[N_STREAMS];
    void *all; /* the allocation of all arrays */
} replay;

static bool has_parts(const dh_slot *slot)
{
    bool any = false;
    for (uint32_t i = 0; i < slot_nodes(slot); i++)
        any |= dh_op_n_parts(slot_node(slot, i)->at.op) > 1;
    return any;
}

static void list_ops(replay *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t node = slot_pick_node(r->slot, &r->order[i]);
        r->place_of[node] = i;
        for (uint32_t k = 0; k < r->n_copies; k++) r->ops[k * r->n + i] = slot_node(r->slot, node);
    }
}

/* Copies are few: no division. */
static uint32_t begin_of_copy(const replay *r, uint32_t place)
{
    uint32_t first = 0;
    while (place - first >= r->n) first += r->n;
    return first;
}

static const dh_slot_pick *pick_at(const replay *r, uint32_t place)
{
    return &r->order[place - begin_of_copy(r, place)];
}

static void fill_queues(replay *r)
{
    uint32_t n_queued[N_STREAMS] = {0}, phase = 0, first = 0;
    const uint32_t n = r->n * r->n_copies;
    for (uint32_t i = 0; i < n; i++) n_queued[r->ops[i]->stream]++;
    for (int s = 0; s < N_STREAMS; first += n_queued[s++]) r->head[s] = r->tail[s] = first;
    for (uint32_t i = 0; i < n; i++) {
        phase += pick_at(r, i)->barrier;
        r->phase[i] = phase;
        r->phase_left[phase]++;
        r->n_strands_left += !r->ops[i]->reduces;
        r->queue[r->tail[r->ops[i]->stream]++] = i;
    }
}

/* The next n elements of one allocation. */
static void *take(char **at, size_t n, size_t size)
{
    void *taken = *at;
    *at += n * size;
    return taken;
}

/* All arrays in one allocation, which orders are timed too often for to have one each: those of the
 * largest elements come first. */
static bool reserve(replay *r, bool parts)
{
    const size_t n = (size_t)r->n * r->n_copies + 2;
    const size_t bytes = n * (sizeof *r->ops + sizeof *r->start + sizeof *r->end) +
                         n * (sizeof *r->queue + sizeof *r->place_of + sizeof *r->phase +
                              sizeof *r->phase_left + sizeof *r->parts + sizeof *r->ended);
    char *at = r->all = calloc(1, bytes);
    if (!at) return false;
    r->ops = take(&at, n, sizeof *r->ops);
    r->start = take(&at, n, sizeof *r->start);
    r->end = take(&at, n, sizeof *r->end);
    r->queue = take(&at, n, sizeof *r->queue);
    r->place_of = take(&at, n, sizeof *r->place_of);
    r->phase = take(&at, n, sizeof *r->phase);
    r->phase_left = take(&at, n, sizeof *r->phase_left);
    r->parts = parts ? take(&at, n, sizeof *r->parts) : NULL;
    r->ended = take(&at, n, sizeof *r->ended);
    return true;
}

static bool replay_init(replay *r, const dh_slot *slot, const dh_slot_pick *order,
                        uint32_t n_copies)
{
    *r = (replay){.slot = slot, .order = order, .n = slot_nodes(slot), .n_copies = n_copies};
    if (!reserve(r, has_parts(slot))) return false;
    for (int s = 0; s < N_STREAMS; s++) r->running[s] = -1;
    list_ops(r);
    fill_queues(r);
    return true;
}

static void replay_fini(replay *r)
{
    free(r->all);
}

/* In a further copy the backward is that of the forward of the copy before. */
static bool follows_forward(const replay *r, uint32_t place)
{
    const uint32_t copy0 = begin_of_copy(r, place), n_f = r->slot->strand[0].n;
    if (copy0 == 0 || r->order[place - copy0].strand == 0 || n_f == 0) return true;
    return r->ended[copy0 - r->n + r->place_of[n_f - 1]];
}

static bool is_there(const replay *r, uint32_t place, uint32_t part)
{
    return r->ended[place] || (r->parts && part < r->parts[place]);
}

static bool can_start(replay *r, uint32_t place, bool *other_stream)
{
    while (r->phase_left[r->phase_now] == 0 && r->phase_now < r->phase[place]) r->phase_now++;
    if (r->phase[place] > r->phase_now || !follows_forward(r, place)) return false;
    const uint32_t copy0 = begin_of_copy(r, place);
    if (r->order[place - copy0].behind && r->n_strands_left > 0) return false;
    const uint32_t node = slot_pick_node(r->slot, &r->order[place - copy0]);
    *other_stream = false;
    for (uint32_t i = 0; i < slot_n_needs(r->slot, node); i++) {
        const uint32_t before = r->place_of[slot_need(r->slot, node, i)];
        if (!is_there(r, copy0 + before, slot_need_part(r->slot, node, i))) return false;
        if (r->ops[before]->stream != r->ops[place]->stream) *other_stream = true;
    }
    return true;
}

static void start_what_can(replay *r)
{
    const dh_costs *c = r->slot->costs;
    for (int s = 0; s < N_STREAMS; s++) {
        bool waits;
        if (r->running[s] >= 0 || r->head[s] == r->tail[s]) continue;
        const uint32_t place = r->queue[r->head[s]];
        if (!can_start(r, place, &waits)) continue;
        r->head[s]++;
        r->running[s] = place;
        r->start[place] = r->now;
        r->left[s] = r->ops[place]->ns + c->launch_ns + (waits ? c->event_ns : 0);
    }
}

/* Streams on which something runs. */
typedef struct running {
    size_t n;
    int stream[N_STREAMS];
    dh_flow flow[N_STREAMS];
} running;

static void find_running(const replay *r, running *now)
{
    now->n = 0;
    for (int s = 0; s < N_STREAMS; s++) {
        if (r->running[s] < 0) continue;
        now->stream[now->n] = s;
        now->flow[now->n++] = (dh_flow){.left_ns = r->left[s], .speed = 1};
    }
}

static uint32_t running_node(const replay *r, int stream)
{
    return slot_pick_node(r->slot, pick_at(r, (uint32_t)r->running[stream]));
}

/* Streams come in their order, that of computation first: the second of two communicates. */
static void slow_down(const replay *r, running *now)
{
    for (size_t a = 0; a < now->n; a++)
        for (size_t b = a + 1; b < now->n; b++) {
            double speeds[2];
            slot_speeds(r->slot, running_node(r, now->stream[a]), running_node(r, now->stream[b]),
                        speeds);
            now->flow[a].speed = dh_flow_beside(now->flow[a].speed, speeds[0]);
            now->flow[b].speed = dh_flow_beside(now->flow[b].speed, speeds[1]);
        }
    dh_flows_settle(now->flow, now->n);
}

/* Work left on a stream when the next part of an output there is complete. Negative: there is none
 * before the last part, which is complete when the operator ends. */
static double left_at_part(const replay *r, int stream)
{
    const uint32_t place = (uint32_t)r->running[stream];
    const dh_slot_op *op = r->ops[place];
    if (r->parts[place] + 1 >= dh_op_n_parts(op->at.op)) return -1;
    return op->ns * (1 - dh_cost_part_share(&op->at, r->parts[place]));
}

/* To the next part that is complete, if one is before anything ends; else does nothing. */
static bool step_to_part(replay *r, running *now, double *step)
{
    size_t first = now->n;
    double left_first = 0;
    *step = INFINITY;
    for (size_t i = 0; i < now->n; i++) *step = DH_MIN(*step, dh_flow_needs(&now->flow[i]));
    for (size_t i = 0; i < now->n; i++) {
        const double left = left_at_part(r, now->stream[i]);
        const dh_flow until = {now->flow[i].left_ns - left, now->flow[i].speed};
        if (left < 0 || dh_flow_needs(&until) >= *step) continue;
        *step = dh_flow_needs(&until);
        left_first = left;
        first = i;
    }
    if (first == now->n) return false;
    dh_flows_pass(now->flow, now->n, *step);
    now->flow[first].left_ns = left_first;
    r->parts[r->running[now->stream[first]]]++;
    return true;
}

static void end_on(replay *r, int stream)
{
    const uint32_t place = (uint32_t)r->running[stream];
    r->end[place] = r->now;
    r->ended[place] = true;
    r->phase_left[r->phase[place]]--;
    r->n_strands_left -= !r->ops[place]->reduces;
    r->running[stream] = -1;
}

/* To the next end of an operator, or of a part of one; false when nothing runs. */
static bool advance(replay *r)
{
    running now;
    find_running(r, &now);
    if (now.n == 0) return false;
    slow_down(r, &now);
    double step;
    if (!r->parts || !step_to_part(r, &now, &step)) step = dh_flows_step(now.flow, now.n);
    if (r->running[0] < 0) r->exposed += step;
    r->now += step;
    for (size_t i = 0; i < now.n; i++) {
        r->busy[now.stream[i]] += step;
        r->left[now.stream[i]] = now.flow[i].left_ns;
        if (dh_flow_is_done(&now.flow[i])) end_on(r, now.stream[i]);
    }
    return true;
}

static dh_status replay_run(dh_ctx *ctx, replay *r)
{
    do start_what_can(r);
    while (advance(r));
    for (int s = 0; s < N_STREAMS; s++) {
        if (r->head[s] == r->tail[s]) continue;
        const dh_slot_pick *pick = pick_at(r, r->queue[r->head[s]]);
        return dh_fail(ctx, DH_EINVAL,
                       "this order of a slot cannot run: operator %u of %s waits for ever",
                       pick->op, pick->strand ? "the backward" : "the forward");
    }
    return DH_OK;
}

/* When the strands have ended, and the delay of the step by reductions after them. Reductions of
 * later slots follow. If the step ends with reductions as long as these anyway, nothing is lost. */
static double end_of_strands(const replay *r)
{
    const dh_slot_rest *rest = &r->slot->rest;
    double strands_ns = 0, reductions_ns = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        if (!r->ops[i]->reduces) strands_ns = DH_MAX(strands_ns, r->end[i]);
        if (r->ops[i]->reduces) reductions_ns += r->ops[i]->ns;
    }
    if (rest->room <= 0) return strands_ns;
    const double rest_ns = rest->room * strands_ns + DH_MAX(reductions_ns - strands_ns, 0);
    return DH_MAX(strands_ns, r->now + rest->n_later * reductions_ns - rest_ns);
}

static void add_exposed(const replay *r, dh_slot_timing *t)
{
    t->communication_ns = 0;
    t->slowdown_ns = r->busy[DH_STREAM_COMPUTE];
    for (uint32_t i = 0; i < r->n; i++)
        *(r->ops[i]->stream == DH_STREAM_COMPUTE ? &t->slowdown_ns : &t->communication_ns) +=
            r->ops[i]->stream == DH_STREAM_COMPUTE ? -r->ops[i]->ns : r->ops[i]->ns;
    if (fabs(t->slowdown_ns) < 1e-9 * r->now) t->slowdown_ns = 0; /* rounding of sums */
    t->exposed_ns = r->exposed + t->slowdown_ns;
}

static dh_status time_copies(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                             uint32_t n_copies, dh_slot_timing *timing)
{
    replay r;
    dh_status st = replay_init(&r, slot, order, n_copies) ? replay_run(ctx, &r) : dh_no_memory(ctx);
    if (st == DH_OK && n_copies == 1) {
        timing->makespan_ns = r.now;
        timing->period_ns = end_of_strands(&r);
        memcpy(timing->busy_ns, r.busy, sizeof timing->busy_ns);
        add_exposed(&r, timing);
        if (timing->start_ns) memcpy(timing->start_ns, r.start, r.n * sizeof *r.start);
        if (timing->end_ns) memcpy(timing->end_ns, r.end, r.n * sizeof *r.end);
    } else if (st == DH_OK) {
        timing->period_ns = r.now - timing->makespan_ns;
    }
    replay_fini(&r);
    return st;
}

/* Behind the last backward of a step: no slot of the same kind follows. */
static bool comes_once(const dh_slot *slot)
{
    for (uint32_t i = 0; i < slot_nodes(slot); i++)
        if (slot_node(slot, i)->reduces) return true;
    return false;
}

dh_status dh_slot_time(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                       dh_slot_timing *timing)
{
    DH_TRY(time_copies(ctx, slot, order, 1, timing));
    if (!comes_once(slot)) return time_copies(ctx, slot, order, 2, timing);
    return DH_OK;
}

dh_status dh_slot_makespan(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order, double *ns)
{
    dh_slot_timing timing = {0};
    DH_TRY(time_copies(ctx, slot, order, 1, &timing));
    *ns = timing.makespan_ns;
    return DH_OK;
}
