/* Speeds of what runs at the same time.
 *
 * On a rank an instruction progresses at the product of its pairwise rates beside the others;
 * where one of these is not positive, at the lowest. If nothing on the rank would
 * progress, its first stream goes on at full speed and the others after it, as in
 * dh_costs_together. A communication progresses as its slowest member lets it. Ranks that
 * compute on one core at the same time get equal shares of it.
 *
 * Work left is brought up to date only when a speed changes, so that what happens on
 * other ranks leaves no trace in its rounding. */
#include <math.h>

#include "sim/machine.h"

static dh_status no_memory(const machine *m)
{
    return dh_fail(m->ctx, DH_ENOMEM, "out of memory simulating");
}

/* ---- on one rank -------------------------------------------------------------------------- */

static dh_status rate_beside_others(const machine *m, uint32_t node, int stream, double *rate)
{
    const lane *lanes = &m->lanes[lane_of(node, 0)];
    dh_sim_op_costs *costs = m->node[node].costs;
    const dh_instr *instrs = costs->program->instrs.at;
    double product = 1, lowest = 1;
    for (int s = 0; s < DH_N_STREAM; s++) {
        if (s == stream || lanes[s].state != LANE_RUNS) continue;
        double one;
        DH_TRY(dh_sim_rate_beside(m->ctx, costs, dh_sim_kind(costs, &instrs[lanes[stream].instr]),
                                  dh_sim_kind(costs, &instrs[lanes[s].instr]), &one));
        product *= one;
        lowest = DH_MIN(lowest, one);
    }
    *rate = lowest > 0 ? product : lowest;
    return DH_OK;
}

static bool computes(const machine *m, uint32_t node)
{
    return m->lanes[lane_of(node, DH_STREAM_COMPUTE)].state == LANE_RUNS;
}

/* Nodes that share the node's core now, at least 1. */
static double n_computing(const machine *m, uint32_t node)
{
    uint32_t n = 0;
    for (uint32_t k = m->node[node].mate0; k < m->node[node].mates_end; k++) n += computes(m, k);
    return DH_MAX(n, 1U);
}

/* What begins or ends on a core concerns all that compute there. */
static dh_status shift_mates(machine *m)
{
    for (size_t i = 0; i < m->shifted.n; i++) {
        const dh_sim_node *n = &m->node[m->shifted.at[i]];
        for (uint32_t k = n->mate0; k < n->mates_end; k++) {
            if (m->is_shifted[k]) continue;
            m->is_shifted[k] = true;
            if (!dh_vec_push(&m->shifted, k)) return no_memory(m);
        }
    }
    return DH_OK;
}

static dh_status set_rates(machine *m, uint32_t node)
{
    lane *lanes = &m->lanes[lane_of(node, 0)];
    int first = DH_N_STREAM;
    bool progress = false;
    for (int s = DH_N_STREAM; s-- > 0;) {
        if (lanes[s].state != LANE_RUNS) continue;
        DH_TRY(rate_beside_others(m, node, s, &lanes[s].rate));
        first = s;
        progress = progress || lanes[s].rate > 0;
    }
    if (first < DH_N_STREAM && !progress) lanes[first].rate = 1;
    lanes[DH_STREAM_COMPUTE].rate /= n_computing(m, node);
    return DH_OK;
}

static dh_status queue_tasks(machine *m, uint32_t node)
{
    for (int s = 0; s < DH_N_STREAM; s++) {
        const lane *l = &m->lanes[lane_of(node, s)];
        if (l->state != LANE_RUNS || m->tasks[l->task].queued) continue;
        m->tasks[l->task].queued = true;
        if (!dh_vec_push(&m->retimed, l->task)) return no_memory(m);
    }
    return DH_OK;
}

/* ---- of a task ----------------------------------------------------------------------------- */

static dh_status set_speed(machine *m, uint32_t id, double rate, int64_t now)
{
    task *t = &m->tasks[id];
    if (!t->fresh) t->left_ns -= (double)(now - t->since_ns) * t->rate;
    t->fresh = false;
    t->rate = rate;
    t->since_ns = now;
    t->version++;
    if (rate <= 0) return DH_OK;
    const double wait = DH_MAX(t->left_ns, 0) / rate;
    const int64_t end = now + (int64_t)llround(DH_MIN(wait, (double)DH_PAIR_MAX_NS));
    return dh_sim_heap_push(&m->heap, end, id, t->version) ? DH_OK : no_memory(m);
}

static dh_status retime_task(machine *m, uint32_t id, int64_t now)
{
    task *t = &m->tasks[id];
    double rate = INFINITY;
    t->queued = false;
    for (uint32_t i = 0; i < t->n; i++)
        rate = DH_MIN(rate, m->lanes[lane_of(t->nodes[i], stream_of_lane(id))].rate);
    return t->fresh || rate != t->rate ? set_speed(m, id, rate, now) : DH_OK;
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
    for (uint32_t id = 0; id < m->nodes->n * DH_N_STREAM; id++) {
        if (m->lanes[id].state != LANE_RUNS) continue;
        *forced = true;
        return set_speed(m, m->lanes[id].task, 1, now);
    }
    return DH_OK;
}
