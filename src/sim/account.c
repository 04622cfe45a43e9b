/* What a rank's times come to: the memory's peak, bubbles, busy and idle streams. */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory simulating");
}

/* ---- memory ------------------------------------------------------------------------------- */

dh_status dh_sim_account_memory(dh_ctx *ctx, dh_arena *arena, dh_sim_rank *rank)
{
    const dh_program *p = rank->program;
    dh_sim_memory *m = &rank->memory;
    dh_memory_point *points;
    DH_TRY(dh_memory_over_time(ctx, p, rank->spans, &points, &m->n_transient));
    dh_memory_point *own = DH_NEW_N(arena, dh_memory_point, m->n_transient + 1);
    if (own && m->n_transient > 0) memcpy(own, points, m->n_transient * sizeof *own);
    free(points);
    if (!own) return no_memory(ctx);
    m->transient = own;
    m->slab_bytes = p->slab_bytes;
    m->peak_bytes = p->persistent_bytes;
    for (size_t b = 0; b < p->buffers.n; b++)
        if (dh_buffer_is_persistent(p->buffers.at[b].kind))
            m->persistent[p->buffers.at[b].kind] += p->buffers.at[b].n_bytes;
    for (size_t i = 0; i < m->n_transient; i++) {
        const uint64_t activations = (uint64_t)own[i].activation_bytes;
        const uint64_t scratch = (uint64_t)own[i].scratch_bytes;
        if (p->persistent_bytes + activations + scratch <= m->peak_bytes) continue;
        m->peak_bytes = p->persistent_bytes + activations + scratch;
        m->peak_ns = own[i].at_ns;
        m->peak_activations = activations;
        m->peak_scratch = scratch;
    }
    return DH_OK;
}

/* ---- bubbles --------------------------------------------------------------------------------- */

/* By stream: instruction id plus one, 0 for none. */
typedef struct clock_vec {
    uint32_t at[DH_N_STREAM];
} clock_vec;

typedef struct gaps {
    const dh_sim_rank *rank;
    dh_replay streams;
    clock_vec *needed; /* by instruction: what must end before it starts */
} gaps;

static void require(gaps *g, uint32_t id, uint32_t other)
{
    const uint8_t stream = g->rank->program->instrs.at[other].stream;
    clock_vec *c = &g->needed[id];
    for (int s = 0; s < DH_N_STREAM; s++) c->at[s] = DH_MAX(c->at[s], g->needed[other].at[s]);
    c->at[stream] = DH_MAX(c->at[stream], other + 1);
}

static void find_needs(gaps *g)
{
    const dh_program *p = g->rank->program;
    uint32_t last[DH_N_STREAM] = {0}; /* plus one */
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        const dh_instr *i = &p->instrs.at[id];
        if (last[i->stream]) require(g, id, last[i->stream] - 1);
        for (uint32_t w = 0; w < i->n_waits; w++) require(g, id, p->waits.at[i->wait0 + w]);
        last[i->stream] = id + 1;
    }
}

/* The stream's first communication between stages that waits for partners after t. */
static uint32_t waiting_after(gaps *g, int stream, int64_t t)
{
    const dh_program *p = g->rank->program;
    for (;; dh_replay_step(&g->streams, stream)) {
        const uint32_t id = dh_replay_head(&g->streams, stream);
        if (id == DH_NONE) return id;
        const dh_op *op = dh_instr_op(p, &p->instrs.at[id]);
        if (g->rank->met_ns[id] > t && dh_sim_group_spans_stages((dh_group_kind)op->group))
            return id;
    }
}

/* How long in [t, end) what `next` needs waits for other stages. */
static int64_t bubble_in(gaps *g, uint32_t next, int64_t t, int64_t end)
{
    int64_t sum = 0;
    while (t < end) {
        int64_t until = t, begin = end;
        for (int s = DH_STREAM_COMPUTE + 1; s < DH_N_STREAM; s++) {
            const uint32_t id = waiting_after(g, s, t);
            if (id == DH_NONE || id >= g->needed[next].at[s]) continue;
            const int64_t start = g->rank->spans[id].start_ns;
            if (start <= t)
                until = DH_MAX(until, g->rank->met_ns[id]);
            else
                begin = DH_MIN(begin, start);
        }
        sum += DH_MIN(until, end) - t;
        t = until > t ? until : begin;
    }
    return sum;
}

static int64_t sum_bubbles(gaps *g)
{
    int64_t idle_since = 0, sum = 0;
    const dh_span *spans = g->rank->spans;
    for (uint32_t id; (id = dh_replay_head(&g->streams, DH_STREAM_COMPUTE)) != DH_NONE;) {
        sum += bubble_in(g, id, idle_since, spans[id].start_ns);
        idle_since = spans[id].end_ns;
        dh_replay_step(&g->streams, DH_STREAM_COMPUTE);
    }
    return sum;
}

dh_status dh_sim_account_bubble(dh_ctx *ctx, dh_sim_rank *rank)
{
    if (rank->program->mesh.pp == 1) return DH_OK;
    gaps g = {.rank = rank, .needed = calloc(rank->program->instrs.n + 1, sizeof *g.needed)};
    dh_status st = dh_replay_init(ctx, &g.streams, rank->program);
    if (st == DH_OK && g.needed) {
        find_needs(&g);
        rank->bubble_ns = sum_bubbles(&g);
    } else if (st == DH_OK) {
        st = no_memory(ctx);
    }
    dh_replay_fini(&g.streams);
    free(g.needed);
    return st;
}

/* ---- streams -------------------------------------------------------------------------------- */

dh_status dh_sim_account_times(dh_ctx *ctx, dh_sim_rank *rank)
{
    const size_t n = rank->program->instrs.n;
    dh_span *moving = malloc((n + 1) * sizeof *moving);
    if (!moving) return no_memory(ctx);
    for (size_t i = 0; i < n; i++) moving[i] = (dh_span){rank->met_ns[i], rank->spans[i].end_ns};
    dh_status st = dh_timeline_reduce(ctx, rank->program, rank->spans, &rank->times);
    if (st == DH_OK) st = dh_timeline_reduce(ctx, rank->program, moving, &rank->transfers);
    free(moving);
    return st;
}
