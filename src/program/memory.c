/* Memory plan: offsets of the transient buffers of a program.
 *
 * A buffer's storage may be given to a second buffer if every access to the first is known to be
 * complete where the second is first written. The vector clock of instructions and waits knows
 * this, so reuse across streams never needs an additional wait. An operator that can work in place
 * hands its input's storage to its output when the input dies there.
 *
 * Placement: largest first, each at the lowest offset free of conflicts (places.c).
 * The lower bound, the most bytes alive at once in issue order, is reported beside
 * the result. */
#include <stdlib.h>
#include <string.h>

#include "base/live.h"
#include "program/clock.h"
#include "program/emit.h"
#include "program/places.h"
#include "program/replay.h"

/* Clocks count instructions: ids plus one. */
typedef struct life {
    uint32_t buffer;   /* root of the aliases sharing the storage */
    uint32_t first;    /* instruction that writes first; DH_NONE: never used */
    dh_clock_vec last; /* last access on each stream */
    uint64_t n_bytes, offset;
} life;

typedef struct planner {
    dh_program *program;
    dh_clock_vec *known; /* by instruction: complete on each stream when it starts */
    life *lives;         /* by buffer */
    uint32_t *order;     /* roots; placed largest first */
    size_t n_order;
    /* By instruction, and behind the last: how many before it write some root first. A release
     * matters only to such, so that these are times enough, and programs which differ in others
     * alone ask for the same places. */
    uint32_t *n_firsts;
    /* By stream: something that needs a place is first written there. Only these ask what is
     * free; streams of gradients and parameters, which have their places, do not. */
    bool asks[DH_N_STREAM];
    dh_replay streams;
} planner;

/* ---- clocks and lifetimes --------------------------------------------------------------- */

static void compute_clocks(planner *m)
{
    const dh_program *p = m->program;
    dh_clock_vec streams[DH_N_STREAM] = {{{0}}};
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        dh_clock_vec *known = &streams[instr->stream];
        for (uint32_t w = 0; w < instr->n_waits; w++) {
            const dh_wait wait = p->waits.at[instr->wait0 + w];
            dh_clock_merge(known, &m->known[wait.instr]);
            if (dh_wait_parts_left(p, wait)) continue; /* it still reads and writes */
            uint8_t stream = p->instrs.at[wait.instr].stream;
            known->at[stream] = DH_MAX(known->at[stream], wait.instr + 1);
        }
        m->known[i] = *known;
        known->at[instr->stream] = i + 1;
    }
}

static void touch(planner *m, uint32_t buffer, uint32_t instr)
{
    if (buffer == DH_NONE) return;
    life *l = &m->lives[buffer];
    if (l->first == DH_NONE) l->first = instr;
    l->last.at[m->program->instrs.at[instr].stream] = instr + 1;
}

static void compute_lives(planner *m)
{
    const dh_program *p = m->program;
    for (uint32_t b = 0; b < p->buffers.n; b++)
        m->lives[b] = (life){.buffer = b, .first = DH_NONE, .n_bytes = p->buffers.at[b].n_bytes};
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
        for (int k = 0; k < info->n_in + info->n_out; k++)
            touch(m, dh_instr_operand(p, instr, k)->buffer, i);
        touch(m, instr->work, i);
    }
    /* The result outlives the last instruction, and gradients can be looked at after a step. */
    for (uint32_t b = 0; b < p->buffers.n; b++)
        if (b == p->result.buffer || p->buffers.at[b].kind == DH_BUF_REDUCED)
            for (int s = 0; s < DH_N_STREAM; s++) m->lives[b].last.at[s] = UINT32_MAX;
}

/* ---- in place ------------------------------------------------------------------------------- */

static uint32_t root_of(const planner *m, uint32_t buffer)
{
    while (m->lives[buffer].buffer != buffer) buffer = m->lives[buffer].buffer;
    return buffer;
}

static bool covers_buffer(const dh_program *p, const dh_operand *o)
{
    return o->buffer != DH_NONE && p->buffers.at[o->buffer].kind == DH_BUF_ACT && o->byte0 == 0 &&
           o->n_bytes == p->buffers.at[o->buffer].n_bytes;
}

static bool dies_at(const life *l, uint32_t instr, const dh_clock_vec *known)
{
    for (int s = 0; s < DH_N_STREAM; s++)
        if (l->last.at[s] > known->at[s] && l->last.at[s] != instr + 1) return false;
    return true;
}

static void overlay(planner *m, uint32_t i)
{
    dh_program *p = m->program;
    const dh_instr *instr = &p->instrs.at[i];
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
    if (info->inplace < 0) return;
    const dh_operand *in = dh_instr_operand(p, instr, info->inplace);
    const dh_operand *out = dh_instr_operand(p, instr, info->n_in);
    if (!covers_buffer(p, in) || !covers_buffer(p, out) || in->n_bytes != out->n_bytes) return;
    uint32_t root = root_of(m, in->buffer);
    life *from = &m->lives[root], *to = &m->lives[out->buffer];
    if (root == out->buffer || to->first != i || !dies_at(from, i, &m->known[i])) return;
    dh_clock_merge(&from->last, &to->last);
    to->buffer = root;
    p->buffers.at[out->buffer].alias = in->buffer;
}

/* ---- placement ------------------------------------------------------------------------------ */

static int first_stream(const planner *m, const life *l)
{
    return m->program->instrs.at[l->first].stream;
}

static bool is_known(const planner *m, const life *l, uint32_t instr)
{
    for (int s = 0; s < DH_N_STREAM; s++)
        if (l->last.at[s] > m->known[instr].at[s]) return false;
    return true;
}

/* Knowledge only grows along a stream. */
static uint32_t release_on(const planner *m, const life *l, int stream)
{
    size_t lo = m->streams.first[stream], hi = m->streams.first[stream + 1];
    const size_t end = hi;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (is_known(m, l, m->streams.queue[mid]))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo < end ? m->streams.queue[lo] : (uint32_t)m->program->instrs.n;
}

static void list_roots(planner *m)
{
    const dh_program *p = m->program;
    for (uint32_t b = 0; b < p->buffers.n; b++) {
        const life *l = &m->lives[b];
        if (dh_buffer_is_persistent(p->buffers.at[b].kind) || l->buffer != b) continue;
        if (l->first == DH_NONE) continue;
        m->order[m->n_order++] = b;
        m->asks[first_stream(m, l)] = true;
    }
}

/* Sorting needs the lives; qsort has no context argument in C11, so sort pairs. */
typedef struct sort_key {
    uint64_t n_bytes;
    uint32_t first, buffer;
} sort_key;

static int by_size(const void *x, const void *y)
{
    const sort_key *a = x, *b = y;
    if (a->n_bytes != b->n_bytes) return a->n_bytes < b->n_bytes ? 1 : -1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a->buffer < b->buffer ? -1 : 1;
}

static bool order_roots(planner *m)
{
    sort_key *keys = malloc((m->n_order + 1) * sizeof *keys);
    if (!keys) return false;
    for (size_t i = 0; i < m->n_order; i++) {
        const life *l = &m->lives[m->order[i]];
        keys[i] = (sort_key){l->n_bytes, l->first, l->buffer};
    }
    qsort(keys, m->n_order, sizeof *keys, by_size);
    for (size_t i = 0; i < m->n_order; i++) m->order[i] = keys[i].buffer;
    free(keys);
    return true;
}

static bool count_firsts(planner *m)
{
    const size_t n = m->program->instrs.n;
    m->n_firsts = calloc(n + 2, sizeof *m->n_firsts);
    if (!m->n_firsts) return false;
    for (size_t i = 0; i < m->n_order; i++) m->n_firsts[m->lives[m->order[i]].first + 1] = 1;
    for (size_t i = 0; i < n; i++) m->n_firsts[i + 1] += m->n_firsts[i];
    return true;
}

static dh_placing placing_of(const planner *m, const life *l)
{
    dh_placing p = {.n_bytes = l->n_bytes,
                    .stream = (uint32_t)first_stream(m, l),
                    .first = m->n_firsts[l->first],
                    .release = {0}};
    for (int s = 0; s < DH_N_STREAM; s++)
        if (m->asks[s]) p.release[s] = m->n_firsts[release_on(m, l, s)];
    return p;
}

static void put_places(planner *m, const uint64_t *offsets)
{
    dh_program *p = m->program;
    p->slab_bytes = p->persistent_bytes;
    for (size_t i = 0; i < m->n_order; i++) {
        life *l = &m->lives[m->order[i]];
        l->offset = offsets[i];
        p->slab_bytes = DH_MAX(p->slab_bytes, l->offset + l->n_bytes);
    }
    for (uint32_t b = 0; b < p->buffers.n; b++)
        if (!dh_buffer_is_persistent(p->buffers.at[b].kind))
            p->buffers.at[b].offset = m->lives[root_of(m, b)].offset;
}

static dh_status place(dh_ctx *ctx, planner *m, dh_places *places)
{
    DH_TRY(dh_replay_init(ctx, &m->streams, m->program));
    if (!order_roots(m) || !count_firsts(m)) return dh_no_memory(ctx);
    dh_placing *each = malloc((m->n_order + 1) * sizeof *each);
    uint64_t *offsets = malloc((m->n_order + 1) * sizeof *offsets);
    dh_status st = each && offsets ? DH_OK : dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < m->n_order; i++)
        each[i] = placing_of(m, &m->lives[m->order[i]]);
    if (st == DH_OK)
        st = dh_places_get(ctx, places,
                           &(dh_placing_list){.at = each,
                                              .n = m->n_order,
                                              .n_times = m->n_firsts[m->program->instrs.n],
                                              .from = m->program->persistent_bytes},
                           offsets);
    if (st == DH_OK) put_places(m, offsets);
    free(each);
    free(offsets);
    return st;
}

/* ---- lower bound ---------------------------------------------------------------------------- */

static bool bound(planner *m)
{
    dh_program *p = m->program;
    const size_t n = p->instrs.n + 1;
    dh_live_point *changes = calloc(n, sizeof *changes);
    if (!changes) return false;
    for (size_t i = 0; i < n; i++) changes[i].at = (int64_t)i;
    for (size_t i = 0; i < m->n_order; i++) {
        const life *l = &m->lives[m->order[i]];
        uint32_t last = 0;
        for (int s = 0; s < DH_N_STREAM; s++) last = DH_MAX(last, l->last.at[s]);
        const int kind =
            p->buffers.at[l->buffer].kind == DH_BUF_WORK ? DH_LIVE_SCRATCH : DH_LIVE_ACTIVATIONS;
        changes[l->first].bytes[kind] += (int64_t)l->n_bytes;
        changes[DH_MIN(last, (uint32_t)p->instrs.n)].bytes[kind] -= (int64_t)l->n_bytes;
    }
    const dh_live_point *most = dh_live_highest(changes, dh_live_sum(changes, n));
    p->live_bytes = p->persistent_bytes + (most ? (uint64_t)dh_live_total(most) : 0);
    free(changes);
    return true;
}

static void fini(planner *m)
{
    dh_replay_fini(&m->streams);
    free(m->known);
    free(m->lives);
    free(m->order);
    free(m->n_firsts);
}

dh_status dh_program_plan_memory(dh_ctx *ctx, dh_program *program, bool placed, dh_places *places)
{
    planner m = {.program = program,
                 .known = calloc(program->instrs.n + 1, sizeof(dh_clock_vec)),
                 .lives = calloc(program->buffers.n + 1, sizeof(life)),
                 .order = calloc(program->buffers.n + 1, sizeof(uint32_t))};
    dh_status st = m.known && m.lives && m.order ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) {
        compute_clocks(&m);
        compute_lives(&m);
        for (uint32_t i = 0; i < program->instrs.n; i++) overlay(&m, i);
        list_roots(&m);
        if (placed) st = place(ctx, &m, places);
    }
    if (st == DH_OK && !bound(&m)) st = dh_no_memory(ctx);
    fini(&m);
    return st;
}
