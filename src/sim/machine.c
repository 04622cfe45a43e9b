/* Execution of all nodes' programs in simulated time.
 *
 * All events of one time are taken together. Instructions end, streams go on as far as they can,
 * and communications meet. Speeds are set anew only when nothing more happens at that time. The
 * order of events of one time therefore does not matter. */
#include "sim/machine.h"

#include <math.h>
#include <stdlib.h>

#include "base/stop.h"

static const dh_program *program_of(const machine *m, uint32_t node)
{
    return m->node[node].costs->program;
}

static const dh_instr *instr_at(const machine *m, uint32_t id)
{
    return &program_of(m, node_of_lane(id))->instrs.at[m->lanes[id].instr];
}

static const dh_op *op_at(const machine *m, uint32_t id)
{
    return dh_instr_op(program_of(m, node_of_lane(id)), instr_at(m, id));
}

static void set_state(machine *m, uint32_t id, lane_state state)
{
    busy *of = &m->busy[node_of_lane(id)];
    const uint32_t bit = 1U << stream_of_lane(id);
    m->lanes[id].state = state;
    of->idle = state == LANE_IDLE ? of->idle | bit : of->idle & ~bit;
    of->runs = state == LANE_RUNS ? of->runs | bit : of->runs & ~bit;
}

static dh_status add_node(machine *m, id_list *list, bool *is_in, uint32_t node)
{
    if (is_in[node]) return DH_OK;
    is_in[node] = true;
    return dh_vec_push(list, node) ? DH_OK : dh_no_memory(m->ctx);
}

/* ---- the host: what it has issued ------------------------------------------------------------ */

static const dh_sim_host *host_of(const machine *m, uint32_t node)
{
    return &m->node[node].costs->host;
}

/* When the host begins to issue an instruction, all that it waits for before being over. */
static int64_t issue_ns(const machine *m, uint32_t node, uint32_t instr)
{
    const int64_t *issued = host_of(m, node)->issued_ns;
    const host_clock *clock = &m->hosts[node];
    return issued ? clock->ns + issued[instr] - issued[clock->from] : 0;
}

/* The host waits for something that comes before the instruction. */
static bool host_is_held(const machine *m, uint32_t node, uint32_t instr)
{
    const dh_sim_host *host = host_of(m, node);
    const uint32_t n = m->hosts[node].n_waited;
    return n < host->n_waits && host->waits[n] < instr;
}

static void let_host_go_on(machine *m, uint32_t node, uint32_t instr, int64_t now)
{
    const dh_sim_host *host = host_of(m, node);
    host_clock *clock = &m->hosts[node];
    if (clock->n_waited == host->n_waits || host->waits[clock->n_waited] != instr) return;
    clock->ns = DH_MAX(now, issue_ns(m, node, instr + 1));
    clock->from = instr + 1;
    clock->n_waited++;
}

/* ---- tasks: what runs ----------------------------------------------------------------------- */

/* The next part of what runs on a stream of a node is complete. */
static void end_part(machine *m, uint32_t node, int stream, int64_t now)
{
    const dh_program *p = program_of(m, node);
    const uint32_t instr = m->lanes[lane_of(node, stream)].instr;
    uint32_t *part = &m->replay[node].parts[stream];
    if (*part >= dh_instr_n_parts(p, instr)) return;
    const size_t at = dh_program_part_span(p, instr, *part);
    dh_span *spans = m->node[node].spans;
    const int64_t before = *part ? spans[at - 1].end_ns : spans[instr].met_ns;
    spans[at] = (dh_span){before, before, now};
    ++*part;
}

static void end_parts(machine *m, uint32_t node, int stream, int64_t now)
{
    const dh_program *p = program_of(m, node);
    const uint32_t instr = m->lanes[lane_of(node, stream)].instr;
    const uint32_t n_parts = dh_instr_n_parts(p, instr);
    while (n_parts > 1 && m->replay[node].parts[stream] < n_parts) end_part(m, node, stream, now);
}

static dh_status finish(machine *m, task *t, int stream, int64_t now)
{
    t->version++;
    m->n_executed += t->n;
    for (uint32_t i = 0; i < t->n; i++) {
        const uint32_t node = t->nodes[i];
        lane *l = &m->lanes[lane_of(node, stream)];
        m->node[node].spans[l->instr].end_ns = now;
        end_parts(m, node, stream, now);
        set_state(m, lane_of(node, stream), LANE_IDLE);
        l->started = true;
        l->last_end_ns = now;
        let_host_go_on(m, node, l->instr, now);
        dh_replay_step(&m->replay[node], stream);
        DH_TRY(add_node(m, &m->able, m->is_able, node));
        DH_TRY(add_node(m, &m->shifted, m->is_shifted, node));
    }
    return DH_OK;
}

static double solo_at(const machine *m, uint32_t id)
{
    const dh_sim_node *n = &m->node[node_of_lane(id)];
    return n->costs->solo[sim_instr_at(m, id)->kind].ns *
           n->factor[dh_stream_engine((dh_stream)stream_of_lane(id))];
}

static void set_stop(const machine *m, task *t, uint32_t id)
{
    const dh_program *p = program_of(m, node_of_lane(id));
    t->stop_ns = 0;
    if (t->n_done + 1 == t->n_parts) return;
    const dh_cost_op at = {dh_instr_graph(p, instr_at(m, id)), op_at(m, id), &p->mesh, p->rank};
    t->stop_ns = t->work_ns * (1 - dh_cost_part_share(&at, t->n_done));
}

static void begin_work(const machine *m, task *t, uint32_t id, double ns)
{
    t->flow.left_ns = t->work_ns = ns;
    t->n_parts = dh_instr_n_parts(program_of(m, node_of_lane(id)), m->lanes[id].instr);
    t->n_done = 0;
    set_stop(m, t, id);
}

/* A task goes on after a part. */
static dh_status complete_part(machine *m, uint32_t id, int64_t now)
{
    task *t = &m->tasks[id];
    for (uint32_t i = 0; i < t->n; i++) {
        end_part(m, t->nodes[i], stream_of_lane(id), now);
        DH_TRY(add_node(m, &m->able, m->is_able, t->nodes[i]));
    }
    t->n_done++;
    set_stop(m, t, id);
    return dh_sim_expect(m, id);
}

/* All members are there. */
static dh_status launch(machine *m, const uint32_t *nodes, uint32_t n, int stream, int64_t now)
{
    const uint32_t id = lane_of(nodes[0], stream);
    task *t = &m->tasks[id];
    double solo = 0;
    t->nodes = nodes;
    t->n = n;
    t->fresh = true;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t member = lane_of(nodes[i], stream);
        lane *l = &m->lanes[member];
        set_state(m, member, LANE_RUNS);
        l->task = id;
        m->node[nodes[i]].spans[l->instr].met_ns = now;
        solo = DH_MAX(solo, solo_at(m, member));
    }
    begin_work(m, t, id, (double)llround(DH_MIN(solo, (double)DH_PAIR_MAX_NS)));
    if (t->flow.left_ns <= 0) return finish(m, t, stream, now);
    for (uint32_t i = 0; i < n; i++) DH_TRY(add_node(m, &m->shifted, m->is_shifted, nodes[i]));
    return DH_OK;
}

/* ---- meeting partners ----------------------------------------------------------------------- */

static dh_status list_members(const machine *m, dh_group_kind group, uint32_t node,
                              dh_sim_members *members)
{
    uint32_t side0;
    const dh_sim_nodes *nodes = side_of(m, node, &side0);
    DH_TRY(dh_sim_group_members(m->ctx, m->arena, nodes, group, node - side0, members));
    for (uint32_t i = 0; i < members->n; i++) members->node[i] += side0;
    return DH_OK;
}

static uint32_t first_of_group(const machine *m, dh_group_kind group, uint32_t node)
{
    uint32_t side0;
    const dh_sim_nodes *nodes = side_of(m, node, &side0);
    return side0 + dh_sim_group_first(nodes, group, node - side0);
}

static uint32_t peer_of(const machine *m, uint32_t node, int32_t stage)
{
    uint32_t side0;
    const dh_sim_nodes *nodes = side_of(m, node, &side0);
    return side0 + dh_sim_stage_peer(nodes, node - side0, stage);
}

static dh_status join_group(machine *m, uint32_t id, dh_group_kind group, int64_t now)
{
    const uint32_t first = first_of_group(m, group, node_of_lane(id));
    meeting *at = &m->meetings[(size_t)group * m->n + first];
    if (at->members.n == 0) DH_TRY(list_members(m, group, first, &at->members));
    const int stream = stream_of_lane(id);
    if (at->n_here > 0 && at->stream != (uint32_t)stream)
        return dh_fail(m->ctx, DH_EVERIFY, "group %s is used from two streams: verify the programs",
                       dh_group_name(group));
    at->stream = (uint32_t)stream;
    if (++at->n_here < at->members.n) return DH_OK;
    at->n_here = 0;
    return launch(m, at->members.node, at->members.n, stream, now);
}

static int32_t peer_stage(const machine *m, uint32_t id)
{
    return program_of(m, node_of_lane(id))->blocks.at[instr_at(m, id)->block].peer;
}

static dh_status join_peer(machine *m, uint32_t id, int64_t now)
{
    const uint32_t node = node_of_lane(id);
    const int stream = stream_of_lane(id);
    const uint32_t other = peer_of(m, node, peer_stage(m, id));
    const uint32_t theirs = lane_of(other, stream);
    if (m->lanes[theirs].state != LANE_WAITS) return DH_OK;
    if (sim_instr_at(m, theirs)->meets != DH_SIM_PEER ||
        op_at(m, theirs)->type == op_at(m, id)->type ||
        peer_of(m, other, peer_stage(m, theirs)) != node)
        return DH_OK; /* the peer is busy elsewhere */
    const uint32_t lower = DH_MIN(node, other);
    task *t = &m->tasks[lane_of(lower, stream)];
    t->pair[0] = lower;
    t->pair[1] = DH_MAX(node, other);
    return launch(m, t->pair, 2, stream, now);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The lane's instruction is reached. */
static dh_status arrive(machine *m, uint32_t id, int64_t now)
{
    const uint32_t node = node_of_lane(id);
    const dh_sim_instr *instr = sim_instr_at(m, id);
    m->node[node].spans[m->lanes[id].instr].start_ns = now;
    set_state(m, id, LANE_WAITS);
    if (instr->meets == DH_SIM_PEER) return join_peer(m, id, now);
    if (instr->meets == DH_SIM_GROUP) return join_group(m, id, (dh_group_kind)instr->group, now);
    task *t = &m->tasks[id];
    t->pair[0] = node;
    return launch(m, t->pair, 1, stream_of_lane(id), now);
}

/* When the lane's instruction may start, all it waits for being complete. */
static int64_t start_of(const machine *m, uint32_t id)
{
    const uint32_t node = node_of_lane(id);
    const dh_program *p = program_of(m, node);
    const dh_sim_op_costs *costs = m->node[node].costs;
    const lane *l = &m->lanes[id];
    const dh_instr *i = &p->instrs.at[l->instr];
    int64_t start = l->started ? l->last_end_ns + costs->launch_ns : 0;
    start = DH_MAX(start, issue_ns(m, node, l->instr));
    for (uint32_t w = 0; w < i->n_waits; w++) {
        const int64_t end = dh_wait_end_ns(p, m->node[node].spans, p->waits.at[i->wait0 + w]);
        start = DH_MAX(start, end + costs->event_ns);
    }
    return start;
}

static dh_status advance(machine *m, uint32_t node, int64_t now)
{
    dh_replay *r = &m->replay[node];
    for (uint32_t streams = m->busy[node].idle; streams;) {
        const int s = take_stream(&streams);
        const uint32_t id = lane_of(node, s);
        lane *l = &m->lanes[id];
        l->instr = dh_replay_head(r, s);
        if (l->instr == DH_NONE) m->busy[node].idle &= ~(1U << s);
        if (l->instr == DH_NONE || dh_replay_blocker(r, s) != DH_NONE) continue;
        if (host_is_held(m, node, l->instr)) continue;
        const int64_t start = start_of(m, id);
        if (start > now) {
            set_state(m, id, LANE_DUE);
            if (!dh_sim_heap_push(&m->heap, start, id, m->tasks[id].version))
                return dh_no_memory(m->ctx);
        } else {
            DH_TRY(arrive(m, id, now));
        }
    }
    return DH_OK;
}

/* ---- time ----------------------------------------------------------------------------------- */

static dh_status happen(machine *m, const dh_sim_event *e)
{
    lane *l = &m->lanes[e->lane];
    if (m->tasks[e->lane].version != e->version) return DH_OK;
    if (l->state == LANE_DUE) return arrive(m, e->lane, e->at_ns);
    task *t = &m->tasks[e->lane];
    if (t->n_done + 1 < t->n_parts) return complete_part(m, e->lane, e->at_ns);
    return finish(m, t, stream_of_lane(e->lane), e->at_ns);
}

/* Until nothing more happens at this time. */
static dh_status settle(machine *m, int64_t now)
{
    while (m->able.n > 0) {
        const uint32_t node = m->able.at[--m->able.n];
        m->is_able[node] = false;
        DH_TRY(advance(m, node, now));
    }
    return dh_sim_retime(m, now);
}

static dh_status step(machine *m, int64_t *now)
{
    *now = m->heap.events.at[0].at_ns;
    while (m->heap.events.n > 0 && m->heap.events.at[0].at_ns == *now) {
        const dh_sim_event e = dh_sim_heap_pop(&m->heap);
        DH_TRY(happen(m, &e));
    }
    return settle(m, *now);
}

static dh_status check_ended(const machine *m)
{
    char text[256];
    for (uint32_t id = 0; id < m->n * DH_N_STREAM; id++) {
        const uint32_t node = node_of_lane(id);
        const uint32_t head = dh_replay_head(&m->replay[node], stream_of_lane(id));
        if (head == DH_NONE) continue;
        return dh_fail(m->ctx, DH_EVERIFY,
                       "the simulation cannot go on: %s waits for ever; verify the programs",
                       dh_instr_describe(program_of(m, node), head, text, sizeof text));
    }
    return DH_OK;
}

static void tell(const machine *m)
{
    if (m->watch) m->watch->tell(m->watch->user, true, m->n_executed, m->n_all);
}

static dh_status run(machine *m)
{
    enum { TELL_EACH = 1 << 10 };
    uint64_t n_moments = 0;
    int64_t now = 0;
    bool forced = true;
    for (uint32_t k = m->n; k-- > 0;) DH_TRY(add_node(m, &m->able, m->is_able, k));
    DH_TRY(settle(m, now));
    while (forced) {
        while (m->heap.events.n > 0) {
            DH_TRY(dh_heed_stop(m->ctx, "a step was simulated"));
            DH_TRY(step(m, &now));
            if (n_moments++ % TELL_EACH == 0) tell(m);
        }
        DH_TRY(dh_sim_force(m, now, &forced));
    }
    tell(m);
    return check_ended(m);
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status init(machine *m)
{
    const size_t n = m->n;
    m->arena = dh_arena_create();
    m->replay = calloc(n, sizeof *m->replay);
    m->lanes = calloc(n * DH_N_STREAM, sizeof *m->lanes);
    m->busy = calloc(n, sizeof *m->busy);
    m->tasks = calloc(n * DH_N_STREAM, sizeof *m->tasks);
    m->hosts = calloc(n, sizeof *m->hosts);
    m->meetings = calloc(n * DH_N_GROUPS, sizeof *m->meetings);
    m->is_able = calloc(n, sizeof *m->is_able);
    m->is_shifted = calloc(n, sizeof *m->is_shifted);
    if (!m->arena || !m->replay || !m->lanes || !m->busy || !m->tasks || !m->hosts ||
        !m->meetings || !m->is_able || !m->is_shifted)
        return dh_no_memory(m->ctx);
    for (uint32_t k = 0; k < n; k++) {
        m->busy[k].idle = (1U << DH_N_STREAM) - 1;
        m->n_all += program_of(m, k)->instrs.n;
        DH_TRY(dh_replay_init(m->ctx, &m->replay[k], program_of(m, k)));
    }
    return DH_OK;
}

static void fini(machine *m)
{
    for (uint32_t k = 0; m->replay && k < m->n; k++) dh_replay_fini(&m->replay[k]);
    dh_arena_destroy(m->arena);
    free(m->replay);
    free(m->lanes);
    free(m->busy);
    free(m->tasks);
    free(m->hosts);
    free(m->meetings);
    free(m->is_able);
    free(m->is_shifted);
    dh_vec_fini(&m->heap.events);
    dh_vec_fini(&m->able);
    dh_vec_fini(&m->shifted);
    dh_vec_fini(&m->retimed);
}

dh_status dh_sim_run(dh_ctx *ctx, const dh_sim_nodes *const sides[2], const dh_sim_watch *watch,
                     dh_sim_node *node)
{
    machine m = {.ctx = ctx, .sides = sides, .second = sides[0]->n, .node = node, .watch = watch};
    m.n = m.second + (sides[1] ? sides[1]->n : 0);
    dh_status st = init(&m);
    if (st == DH_OK) st = run(&m);
    fini(&m);
    return st;
}
