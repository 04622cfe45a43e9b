/* Memory plan: offsets of the transient buffers of a program.
 *
 * A buffer's storage may be given to another once every access to the first is
 * known to be complete where the second is first written. "Known" is the vector
 * clock of instructions and waits, so reuse across streams never needs a wait
 * that is not there already. An operator that can work in place hands its
 * input's storage to its output when the input dies there.
 *
 * Placement: largest first, each at the lowest offset free of conflicts (greedy
 * by size; Pisarchyk and Lee 2020, arXiv 2001.03288). The lower bound, the most
 * bytes alive at once in issue order, is reported beside the result. */
#include <stdlib.h>
#include <string.h>

#include "base/live.h"
#include "program/clock.h"
#include "program/emit.h"
#include "program/replay.h"
#include "program/space.h"

/* Clocks count instructions: ids plus one. */
typedef struct life {
    uint32_t buffer;   /* root of the aliases sharing the storage */
    uint32_t first;    /* instruction that writes first; DH_NONE: never used */
    dh_clock_vec last; /* last access on each stream */
    uint64_t n_bytes, offset;
} life;

/* By stream that asks: the first instruction that knows all accesses to a storage to be complete,
 * and so do all later ones there: what it or they write first may take the storage. */
typedef struct release_vec {
    uint32_t at[DH_N_STREAM];
} release_vec;

_Static_assert((int)DH_N_STREAM <= (int)DH_MAX_SPANS, "a span of storage for each stream");

typedef struct planner {
    dh_program *program;
    dh_clock_vec *known; /* by instruction: complete on each stream when it starts */
    life *lives;         /* by buffer */
    uint32_t *order;     /* roots; placed largest first */
    size_t n_order;
    /* By stream: something that needs a place is first written there. Only these ask what is
     * free; streams of gradients and parameters, which have their places, do not. */
    bool asks[DH_N_STREAM];
    dh_replay streams;
    /* Storage in use, by the stream that first writes it and the stream that asks. */
    dh_space *in_use[DH_N_STREAM][DH_N_STREAM];
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

static release_vec release_of(const planner *m, const life *l)
{
    release_vec release = {{0}};
    for (int s = 0; s < DH_N_STREAM; s++)
        if (m->asks[s]) release.at[s] = release_on(m, l, s);
    return release;
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

static uint64_t align_up(uint64_t n)
{
    return (n + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

/* Two lives conflict unless one is released where the other is first written: with a
 * the one of either's streams, a.first < b.release[a] and b.first < a.release[b]. For a
 * pair of streams that is the meeting of two intervals. */
static uint64_t lowest_gap(const planner *m, const life *l, const release_vec *release)
{
    dh_space_span spans[DH_N_STREAM];
    const int stream = first_stream(m, l);
    for (int s = 0; s < DH_N_STREAM; s++)
        spans[s] = (dh_space_span){m->in_use[s][stream], l->first, release->at[s]};
    return dh_space_lowest(spans, DH_N_STREAM, m->program->persistent_bytes, l->n_bytes);
}

static bool occupy(planner *m, const life *l, const release_vec *release)
{
    const int stream = first_stream(m, l);
    for (int s = 0; s < DH_N_STREAM; s++) {
        if (!m->asks[s]) continue;
        dh_space **space = &m->in_use[stream][s];
        if (!*space) *space = dh_space_create((uint32_t)m->program->instrs.n + 1);
        if (!*space || !dh_space_use(*space, l->first, release->at[s], l->offset,
                                     align_up(l->offset + l->n_bytes)))
            return false;
    }
    return true;
}

static bool place(planner *m)
{
    dh_program *p = m->program;
    p->slab_bytes = p->persistent_bytes;
    if (!order_roots(m)) return false;
    for (size_t i = 0; i < m->n_order; i++) {
        life *l = &m->lives[m->order[i]];
        const release_vec release = release_of(m, l);
        l->offset = lowest_gap(m, l, &release);
        p->slab_bytes = DH_MAX(p->slab_bytes, l->offset + l->n_bytes);
        if (!occupy(m, l, &release)) return false;
    }
    for (uint32_t b = 0; b < p->buffers.n; b++)
        if (!dh_buffer_is_persistent(p->buffers.at[b].kind))
            p->buffers.at[b].offset = m->lives[root_of(m, b)].offset;
    return true;
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
    for (int a = 0; a < DH_N_STREAM; a++)
        for (int b = 0; b < DH_N_STREAM; b++) dh_space_destroy(m->in_use[a][b]);
    dh_replay_fini(&m->streams);
    free(m->known);
    free(m->lives);
    free(m->order);
}

dh_status dh_program_plan_memory(dh_ctx *ctx, dh_program *program, bool placed)
{
    planner m = {.program = program,
                 .known = calloc(program->instrs.n + 1, sizeof(dh_clock_vec)),
                 .lives = calloc(program->buffers.n + 1, sizeof(life)),
                 .order = calloc(program->buffers.n + 1, sizeof(uint32_t))};
    bool ok = m.known && m.lives && m.order;
    if (ok) {
        compute_clocks(&m);
        compute_lives(&m);
        for (uint32_t i = 0; i < program->instrs.n; i++) overlay(&m, i);
        list_roots(&m);
        ok = (!placed || (dh_replay_init(ctx, &m.streams, program) == DH_OK && place(&m))) &&
             bound(&m);
    }
    fini(&m);
    return ok ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory planning a program's memory");
}
