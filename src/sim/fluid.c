/* Speeds of what runs at the same time.
 *
 * On a rank what its streams run are flows (base/flow.h). A communication progresses as its
 * slowest member lets it. Ranks that compute on one core at the same time get equal shares of it.
 *
 * Work left is brought up to date only when a speed changes, so that what happens on
 * other ranks leaves no trace in its rounding. */
#include <math.h>

#include "sim/machine.h"

/* ---- on one rank -------------------------------------------------------------------------- */

/* Streams of a node on which something runs, and of the one beside it. */
typedef struct running {
    size_t n;
    uint32_t node[2 * DH_N_STREAM];
    int stream[2 * DH_N_STREAM];
    uint32_t kind[2 * DH_N_STREAM]; /* of operator */
    dh_flow flow[2 * DH_N_STREAM];
} running;

static void add_running(const machine *m, uint32_t node, running *r)
{
    for (uint32_t streams = m->busy[node].runs; streams;) {
        const int s = take_stream(&streams);
        r->node[r->n] = node;
        r->stream[r->n] = s;
        r->kind[r->n] = sim_instr_at(m, lane_of(node, s))->kind;
        r->flow[r->n++] = (dh_flow){.speed = 1};
    }
}

static dh_status rates_of(const machine *m, const running *r, size_t a, size_t b, double *beside_b,
                          double *beside_a)
{
    dh_sim_op_costs *of_a = m->node[r->node[a]].costs, *of_b = m->node[r->node[b]].costs;
    if (r->node[a] == r->node[b])
        return dh_sim_rates_beside(m->ctx, of_a, r->kind[a], r->kind[b], beside_b, beside_a);
    return dh_sim_rates_across(m->ctx, of_a, r->kind[a], of_b, r->kind[b], beside_b, beside_a);
}

static dh_status slow_down(const machine *m, running *r)
{
    for (size_t a = 0; a < r->n; a++)
        for (size_t b = a + 1; b < r->n; b++) {
            double beside_b, beside_a;
            DH_TRY(rates_of(m, r, a, b, &beside_b, &beside_a));
            r->flow[a].speed = dh_flow_beside(r->flow[a].speed, beside_b);
            r->flow[b].speed = dh_flow_beside(r->flow[b].speed, beside_a);
        }
    dh_flows_settle(r->flow, r->n);
    return DH_OK;
}

static bool computes(const machine *m, uint32_t node)
{
    return m->busy[node].runs & 1U << DH_STREAM_COMPUTE;
}

/* Nodes that share the node's core now, at least 1. */
static double n_computing(const machine *m, uint32_t node)
{
    uint32_t n = 0;
    for (uint32_t k = m->node[node].mate0; k < m->node[node].mates_end; k++) n += computes(m, k);
    return DH_MAX(n, 1U);
}

static dh_status shift(machine *m, uint32_t node)
{
    if (m->is_shifted[node]) return DH_OK;
    m->is_shifted[node] = true;
    return dh_vec_push(&m->shifted, node) ? DH_OK : dh_no_memory(m->ctx);
}

/* An instruction that begins or ends on a core concerns all that compute there, and all that run at
 * the same time. */
static dh_status shift_mates(machine *m)
{
    for (size_t i = 0; i < m->shifted.n; i++) {
        const dh_sim_node *n = &m->node[m->shifted.at[i]];
        for (uint32_t k = n->mate0; k < n->mates_end; k++) DH_TRY(shift(m, k));
        if (n->beside != DH_NONE) DH_TRY(shift(m, n->beside));
    }
    return DH_OK;
}

static dh_status set_rates(machine *m, uint32_t node)
{
    running r;
    r.n = 0;
    add_running(m, node, &r);
    const size_t n_own = r.n;
    if (m->node[node].beside != DH_NONE) add_running(m, m->node[node].beside, &r);
    DH_TRY(slow_down(m, &r));
    for (size_t i = 0; i < n_own; i++) {
        const double shares = r.stream[i] == DH_STREAM_COMPUTE ? n_computing(m, node) : 1;
        m->lanes[lane_of(node, r.stream[i])].rate = r.flow[i].speed / shares;
    }
    return DH_OK;
}

static dh_status queue_tasks(machine *m, uint32_t node)
{
    for (uint32_t streams = m->busy[node].runs; streams;) {
        const uint32_t id = m->lanes[lane_of(node, take_stream(&streams))].task;
        if (m->tasks[id].queued) continue;
        m->tasks[id].queued = true;
        if (!dh_vec_push(&m->retimed, id)) return dh_no_memory(m->ctx);
    }
    return DH_OK;
}

/* ---- of a task ----------------------------------------------------------------------------- */

dh_status dh_sim_expect(machine *m, uint32_t id)
{
    const task *t = &m->tasks[id];
    const dh_flow until = {.left_ns = t->flow.left_ns - t->stop_ns, .speed = t->flow.speed};
    const double wait = dh_flow_needs(&until);
    if (isinf(wait)) return DH_OK;
    const int64_t at = t->since_ns + (int64_t)llround(DH_MIN(wait, (double)DH_PAIR_MAX_NS));
    return dh_sim_heap_push(&m->heap, at, id, t->version) ? DH_OK : dh_no_memory(m->ctx);
}

static dh_status set_speed(machine *m, uint32_t id, double rate, int64_t now)
{
    task *t = &m->tasks[id];
    if (!t->fresh) dh_flow_pass(&t->flow, (double)(now - t->since_ns));
    t->fresh = false;
    t->flow.speed = rate;
    t->since_ns = now;
    t->version++;
    return dh_sim_expect(m, id);
}

static dh_status retime_task(machine *m, uint32_t id, int64_t now)
{
    task *t = &m->tasks[id];
    double rate = INFINITY;
    t->queued = false;
    for (uint32_t i = 0; i < t->n; i++)
        rate = DH_MIN(rate, m->lanes[lane_of(t->nodes[i], stream_of_lane(id))].rate);
    return t->fresh || rate != t->flow.speed ? set_speed(m, id, rate, now) : DH_OK;
}

dh_status dh_sim_retime(machine *m, int64_t now)
{
    DH_TRY(shift_mates(m));
    for (size_t i = 0; i < m->shifted.n; i++) {
        m->is_shifted[m->shifted.at[i]] = false;
        DH_TRY(set_rates(m, m->shifted.at[i]));
    }
    for (size_t i = 0; i < m->shifted.n; i++) DH_TRY(queue_tasks(m, m->shifted.at[i]));
    m->shifted.n = 0;
    for (size_t i = 0; i < m->retimed.n; i++) DH_TRY(retime_task(m, m->retimed.at[i], now));
    m->retimed.n = 0;
    return DH_OK;
}

dh_status dh_sim_force(machine *m, int64_t now, bool *forced)
{
    *forced = false;
    for (uint32_t id = 0; id < m->n * DH_N_STREAM; id++) {
        if (m->lanes[id].state != LANE_RUNS) continue;
        *forced = true;
        return set_speed(m, m->lanes[id].task, 1, now);
    }
    return DH_OK;
}
