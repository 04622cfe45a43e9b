/* Program verifier: idea 4 of the design, "verified before it runs".
 *
 * Knows nothing of how the program was made. It replays instructions stream by stream. For every
 * byte range of the slab it keeps the buffer of its data, the last writer, and the last reader on
 * each stream. It orders accesses with vector clocks. Offsets are compressed to the distinct
 * boundaries of all operands, so a range is a run of segments. */
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "program/clock.h"
#include "program/ranks.h"
#include "program/replay.h"

/* One slab segment between neighbouring boundaries. */
typedef struct segment {
    uint32_t owner;               /* buffer whose data it holds, DH_NONE: never written */
    uint32_t writer;              /* instruction of the last write, DH_NONE */
    uint32_t reader[DH_N_STREAM]; /* last instruction on each stream that read it since */
} segment;

typedef struct seg_range {
    size_t begin, end;
} seg_range;

typedef struct verifier {
    dh_ctx *ctx;
    const dh_program *p;
    uint64_t *bounds; /* sorted distinct offsets */
    size_t n_bounds;
    seg_range *of_buffer; /* by buffer: all of it */
    segment *segments;
    dh_replay replay;
    /* By instruction: parts of its stream that are complete once it is. An instruction without
     * parts counts as one. */
    uint32_t *end;
    /* Clocks count parts (end). */
    dh_clock_vec known[DH_N_STREAM]; /* for the stream's next instruction */
    dh_clock_vec *done;              /* by instruction: once it is complete */
} verifier;

static dh_operand whole(const dh_program *p, uint32_t buffer)
{
    return (dh_operand){.buffer = buffer, .n_bytes = p->buffers.at[buffer].n_bytes};
}

/* ---- structure: ids, sizes, places ------------------------------------------------------- */

static dh_status check_operand(verifier *v, uint32_t instr, const dh_operand *o, bool optional)
{
    const dh_program *p = v->p;
    char text[256];
    if (o->buffer == DH_NONE)
        return optional ? DH_OK
                        : dh_fail(v->ctx, DH_EVERIFY, "%s lacks an operand",
                                  dh_instr_describe(p, instr, text, sizeof text));
    if (o->buffer >= p->buffers.n)
        return dh_fail(v->ctx, DH_EVERIFY, "%s names buffer %u of %zu",
                       dh_instr_describe(p, instr, text, sizeof text), o->buffer, p->buffers.n);
    const dh_buffer *b = &p->buffers.at[o->buffer];
    if (o->n_bytes == 0 || o->n_bytes > b->n_bytes || o->byte0 > b->n_bytes - o->n_bytes)
        return dh_fail(v->ctx, DH_EVERIFY, "%s uses bytes [%llu, %llu) of a buffer of %llu bytes",
                       dh_instr_describe(p, instr, text, sizeof text), (unsigned long long)o->byte0,
                       (unsigned long long)(o->byte0 + o->n_bytes), (unsigned long long)b->n_bytes);
    if (b->offset + b->n_bytes > p->slab_bytes)
        return dh_fail(v->ctx, DH_EVERIFY,
                       "%s: its buffer ends at byte %llu, after the end of the slab of %llu bytes",
                       dh_instr_describe(p, instr, text, sizeof text),
                       (unsigned long long)(b->offset + b->n_bytes),
                       (unsigned long long)p->slab_bytes);
    return DH_OK;
}

static dh_status check_instr(verifier *v, uint32_t id)
{
    const dh_program *p = v->p;
    const dh_instr *i = &p->instrs.at[id];
    if (i->block >= p->blocks.n || i->op >= dh_instr_graph(p, i)->ops.n ||
        i->stream >= DH_N_STREAM || (size_t)i->wait0 + i->n_waits > p->waits.n)
        return dh_fail(v->ctx, DH_EVERIFY,
                       "instruction %u of rank %lld names a block, operator, "
                       "stream or wait that does not exist",
                       id, (long long)p->rank);
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, i)->type);
    if ((size_t)i->operand0 + (size_t)(info->n_in + info->n_out) > p->operands.n)
        return dh_fail(v->ctx, DH_EVERIFY, "instruction %u of rank %lld has too few operands", id,
                       (long long)p->rank);
    for (int k = 0; k < info->n_in; k++)
        DH_TRY(check_operand(v, id, dh_instr_operand(p, i, k), info->in[k].optional));
    for (int k = 0; k < info->n_out; k++)
        DH_TRY(check_operand(v, id, dh_instr_operand(p, i, info->n_in + k), info->out[k].optional));
    if (i->work != DH_NONE) {
        if (i->work >= p->buffers.n)
            return dh_fail(v->ctx, DH_EVERIFY, "instruction %u of rank %lld has no such scratch",
                           id, (long long)p->rank);
        dh_operand work = whole(p, i->work);
        DH_TRY(check_operand(v, id, &work, false));
    }
    return DH_OK;
}

/* Instructions are in range by now. */
static dh_status check_waits(verifier *v, uint32_t id)
{
    const dh_program *p = v->p;
    const dh_instr *i = &p->instrs.at[id];
    char text[256];
    for (uint32_t w = 0; w < i->n_waits; w++) {
        const dh_wait wait = p->waits.at[i->wait0 + w];
        if (wait.instr >= p->instrs.n)
            return dh_fail(v->ctx, DH_EVERIFY, "%s waits for instruction %u, which does not exist",
                           dh_instr_describe(p, id, text, sizeof text), wait.instr);
        const uint32_t n_parts = dh_instr_n_parts(p, wait.instr);
        if (wait.part != DH_NONE && wait.part >= n_parts)
            return dh_fail(
                v->ctx, DH_EVERIFY, "%s waits for part %u of instruction %u, which has %u",
                dh_instr_describe(p, id, text, sizeof text), wait.part, wait.instr, n_parts);
    }
    return DH_OK;
}

static bool count_parts(verifier *v)
{
    uint32_t filled[DH_N_STREAM] = {0};
    v->end = malloc((v->p->instrs.n + 1) * sizeof *v->end);
    for (uint32_t i = 0; v->end && i < v->p->instrs.n; i++) {
        uint32_t *at = &filled[v->p->instrs.at[i].stream];
        *at += dh_instr_n_parts(v->p, i);
        v->end[i] = *at;
    }
    return v->end != NULL;
}

/* ---- segments ------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

static bool is_whole(const dh_program *p, const dh_operand *o)
{
    return o->buffer == DH_NONE ||
           (o->byte0 == 0 && o->n_bytes == p->buffers.at[o->buffer].n_bytes);
}

/* Every range that matters, in turn: parts of buffers that are operands, buffers, gradients of
 * parameters. */
static dh_operand range_at(const dh_program *p, size_t i)
{
    const dh_operand none = {.buffer = DH_NONE};
    if (i < p->operands.n) return is_whole(p, &p->operands.at[i]) ? none : p->operands.at[i];
    i -= p->operands.n;
    if (i < p->buffers.n) return whole(p, (uint32_t)i);
    return p->homes.at[i - p->buffers.n].at[DH_BUF_GRAD];
}

static bool find_bounds(verifier *v)
{
    const dh_program *p = v->p;
    const size_t n_ranges = p->operands.n + p->buffers.n + p->homes.n;
    v->bounds = malloc((2 * n_ranges + 2) * sizeof *v->bounds);
    if (!v->bounds) return false;
    size_t n = 0;
    for (size_t i = 0; i < n_ranges; i++) {
        dh_operand o = range_at(p, i);
        if (o.buffer == DH_NONE) continue;
        v->bounds[n++] = p->buffers.at[o.buffer].offset + o.byte0;
        v->bounds[n++] = p->buffers.at[o.buffer].offset + o.byte0 + o.n_bytes;
    }
    qsort(v->bounds, n, sizeof *v->bounds, by_value);
    for (size_t i = 0; i < n; i++)
        if (v->n_bounds == 0 || v->bounds[v->n_bounds - 1] != v->bounds[i])
            v->bounds[v->n_bounds++] = v->bounds[i];
    return true;
}

/* The first bound at an offset or behind it, among those from `begin` to `end`. */
static size_t bound_at(const verifier *v, size_t begin, size_t end, uint64_t offset)
{
    while (begin < end) {
        const size_t mid = (begin + end) / 2;
        if (v->bounds[mid] < offset)
            begin = mid + 1;
        else
            end = mid;
    }
    return begin;
}

static bool make_segments(verifier *v)
{
    const dh_program *p = v->p;
    if (!find_bounds(v)) return false;
    v->of_buffer = calloc(p->buffers.n + 1, sizeof *v->of_buffer);
    for (size_t i = 0; v->of_buffer && i < p->buffers.n; i++) {
        const dh_buffer *b = &p->buffers.at[i];
        seg_range *r = &v->of_buffer[i];
        r->begin = bound_at(v, 0, v->n_bounds, b->offset);
        r->end = bound_at(v, r->begin, v->n_bounds, b->offset + b->n_bytes);
    }
    v->segments = malloc((v->n_bounds + 1) * sizeof *v->segments);
    if (!v->of_buffer || !v->segments) return false;
    memset(v->segments, 0xff, (v->n_bounds + 1) * sizeof *v->segments);
    return true;
}

static seg_range range_of(const verifier *v, const dh_operand *o)
{
    const seg_range all = v->of_buffer[o->buffer];
    if (is_whole(v->p, o)) return all;
    const uint64_t at = v->p->buffers.at[o->buffer].offset + o->byte0;
    const size_t begin = bound_at(v, all.begin, all.end, at);
    return (seg_range){begin, bound_at(v, begin, all.end, at + o->n_bytes)};
}

static void set_owner(verifier *v, const dh_operand *o, uint32_t owner)
{
    seg_range r = range_of(v, o);
    for (size_t s = r.begin; s < r.end; s++) v->segments[s].owner = owner;
}

/* Of whole matrices that a step begins by gathering, what other ranks have updated is old. */
static void disown_gathered(verifier *v, const dh_flat *f)
{
    const dh_operand *all = &f->matrix[v->p->dtype == DH_F32 ? DH_BUF_MASTER : DH_BUF_COPY];
    const uint64_t item = dh_dtype_bytes(v->p->dtype);
    if (all->buffer == DH_NONE || f->n_shard == f->n_piece) return;
    set_owner(v, all, DH_NONE);
    for (int64_t k = 0; k < f->n_pieces; k++) {
        const uint64_t first = (uint64_t)(k * f->n_piece + f->shard0) * item;
        const dh_operand own = {all->buffer, all->byte0 + first, (uint64_t)f->n_shard * item};
        set_owner(v, &own, all->buffer);
    }
}

/* Buffers that the previous program of the step has left. The optimizer's program finds all
 * gradients; a program that adds to gradients finds these and the sums of losses. */
static bool is_left(const verifier *v, uint32_t buffer)
{
    const dh_buffer_kind kind = v->p->buffers.at[buffer].kind;
    if (v->p->part == DH_PART_UPDATE) return kind == DH_BUF_GRAD;
    return v->p->adds && (kind == DH_BUF_GRAD || kind == DH_BUF_STATE);
}

/* Parameters, moments and caches hold data when a step starts; gradients and
 * sums do not, so a step that reads one before writing it is at fault. Padding
 * between gradients is never written: it holds the zeros of a new slab. */
static void own_persistent(verifier *v)
{
    static const dh_buffer_kind filled[] = {DH_BUF_MASTER, DH_BUF_COPY, DH_BUF_GRAD, DH_BUF_ADAM_M,
                                            DH_BUF_ADAM_V, DH_BUF_KV,   DH_BUF_IN};
    for (uint32_t b = 0; b < v->p->buffers.n; b++)
        for (size_t k = 0; k < DH_COUNTOF(filled); k++) {
            if (v->p->buffers.at[b].kind != filled[k]) continue;
            dh_operand o = whole(v->p, b);
            set_owner(v, &o, b);
        }
    for (size_t i = 0; i < v->p->homes.n; i++) {
        const dh_operand *gradient = &v->p->homes.at[i].at[DH_BUF_GRAD];
        if (gradient->buffer != DH_NONE) set_owner(v, gradient, DH_NONE);
    }
    for (size_t i = 0; v->p->gathers_first && i < v->p->flats.n; i++)
        disown_gathered(v, &v->p->flats.at[i]);
    for (uint32_t b = 0; b < v->p->buffers.n; b++) {
        dh_operand o = whole(v->p, b);
        if (is_left(v, b)) set_owner(v, &o, b);
    }
}

/* ---- accesses ------------------------------------------------------------------------------- */

static bool ordered(const verifier *v, uint32_t earlier, const dh_clock_vec *known)
{
    return v->end[earlier] <= known->at[v->p->instrs.at[earlier].stream];
}

/* The part of the segment's writer that it is in. */
static uint32_t part_at(const verifier *v, size_t s)
{
    const segment *seg = &v->segments[s];
    const dh_operand bytes = {.buffer = seg->owner,
                              .byte0 = v->bounds[s] - v->p->buffers.at[seg->owner].offset,
                              .n_bytes = v->bounds[s + 1] - v->bounds[s]};
    return dh_instr_part_of(v->p, seg->writer, &bytes);
}

/* Whether the data written into the segment is there. */
static bool is_there(const verifier *v, size_t s, const dh_clock_vec *known)
{
    const uint32_t writer = v->segments[s].writer;
    if (writer == DH_NONE || ordered(v, writer, known)) return true;
    const uint32_t n_parts = dh_instr_n_parts(v->p, writer);
    if (n_parts == 1) return false;
    const uint32_t behind = n_parts - 1 - part_at(v, s);
    return v->end[writer] - behind <= known->at[v->p->instrs.at[writer].stream];
}

static dh_status race(verifier *v, uint32_t instr, const dh_operand *o, uint32_t other,
                      const char *what)
{
    char a[256], b[256], c[256];
    return dh_fail(v->ctx, DH_EVERIFY,
                   "%s %s %s before %s is known to be complete: a wait for "
                   "instruction %u is missing",
                   dh_instr_describe(v->p, instr, a, sizeof a), what,
                   dh_buffer_describe(v->p, o->buffer, b, sizeof b),
                   dh_instr_describe(v->p, other, c, sizeof c), other);
}

static dh_status early_read(verifier *v, uint32_t instr, const dh_operand *o, size_t s)
{
    const uint32_t writer = v->segments[s].writer, n_parts = dh_instr_n_parts(v->p, writer);
    char a[256], b[256], c[256];
    if (n_parts == 1) return race(v, instr, o, writer, "reads");
    return dh_fail(
        v->ctx, DH_EVERIFY,
        "%s reads bytes of %s that are in part %u of the %u of %s, before they are known "
        "to be there: a wait for part %u of instruction %u is missing",
        dh_instr_describe(v->p, instr, a, sizeof a),
        dh_buffer_describe(v->p, o->buffer, b, sizeof b), part_at(v, s), n_parts,
        dh_instr_describe(v->p, writer, c, sizeof c), part_at(v, s), writer);
}

static dh_status check_read(verifier *v, uint32_t instr, const dh_operand *o,
                            const dh_clock_vec *known)
{
    seg_range r = range_of(v, o);
    char a[256], b[256], c[256];
    for (size_t s = r.begin; s < r.end; s++) {
        segment *seg = &v->segments[s];
        if (seg->owner == DH_NONE)
            return dh_fail(v->ctx, DH_EVERIFY, "%s reads %s before anything was written there",
                           dh_instr_describe(v->p, instr, a, sizeof a),
                           dh_buffer_describe(v->p, o->buffer, b, sizeof b));
        if (seg->owner != o->buffer)
            return dh_fail(
                v->ctx, DH_EVERIFY, "%s reads %s, but its bytes at %llu hold %s%s%s",
                dh_instr_describe(v->p, instr, a, sizeof a),
                dh_buffer_describe(v->p, o->buffer, b, sizeof b), (unsigned long long)v->bounds[s],
                dh_buffer_describe(v->p, seg->owner, c, 120),
                seg->writer == DH_NONE ? "" : ": lifetimes overlap, overwritten by ",
                seg->writer == DH_NONE ? "" : dh_instr_describe(v->p, seg->writer, c + 128, 128));
        if (!is_there(v, s, known)) return early_read(v, instr, o, s);
        seg->reader[v->p->instrs.at[instr].stream] = instr;
    }
    return DH_OK;
}

static dh_status check_write(verifier *v, uint32_t instr, const dh_operand *o,
                             const dh_clock_vec *known)
{
    seg_range r = range_of(v, o);
    for (size_t s = r.begin; s < r.end; s++) {
        segment *seg = &v->segments[s];
        if (seg->writer != DH_NONE && seg->writer != instr && !ordered(v, seg->writer, known))
            return race(v, instr, o, seg->writer, "overwrites");
        for (int k = 0; k < DH_N_STREAM; k++) {
            uint32_t reader = seg->reader[k];
            if (reader != DH_NONE && reader != instr && !ordered(v, reader, known))
                return race(v, instr, o, reader, "overwrites");
            seg->reader[k] = DH_NONE;
        }
        seg->owner = o->buffer;
        seg->writer = instr;
    }
    return DH_OK;
}

static dh_status check_accesses(verifier *v, uint32_t id, const dh_clock_vec *known)
{
    const dh_program *p = v->p;
    const dh_instr *i = &p->instrs.at[id];
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, i)->type);
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        const dh_operand *o = dh_instr_operand(p, i, k);
        int out = k - info->n_in;
        bool reads = out < 0 || info->out[out].update || (i->accumulate >> out & 1);
        if (o->buffer != DH_NONE && reads) DH_TRY(check_read(v, id, o, known));
    }
    if (i->work != DH_NONE) {
        dh_operand work = whole(p, i->work);
        DH_TRY(check_write(v, id, &work, known));
    }
    for (int k = 0; k < info->n_out; k++) {
        const dh_operand *o = dh_instr_operand(p, i, info->n_in + k);
        if (o->buffer == DH_NONE) continue;
        DH_TRY(check_write(v, id, o, known));
        if (dh_instr_op(p, i)->type == DH_OP_RELEASE) set_owner(v, o, DH_NONE);
    }
    return DH_OK;
}

/* ---- replay --------------------------------------------------------------------------------- */

static dh_status run_one(verifier *v, int stream)
{
    const uint32_t id = dh_replay_head(&v->replay, stream);
    const dh_instr *i = &v->p->instrs.at[id];
    dh_clock_vec *known = &v->known[stream];
    for (uint32_t w = 0; w < i->n_waits; w++) {
        const dh_wait wait = v->p->waits.at[i->wait0 + w];
        dh_clock_vec done = v->done[wait.instr];
        done.at[v->p->instrs.at[wait.instr].stream] -= dh_wait_parts_left(v->p, wait);
        dh_clock_merge(known, &done);
    }
    DH_TRY(check_accesses(v, id, known));
    known->at[stream] = v->end[id];
    v->done[id] = *known;
    dh_replay_step(&v->replay, stream);
    return DH_OK;
}

static dh_status report_cycle(verifier *v)
{
    for (int s = 0; s < DH_N_STREAM; s++) {
        uint32_t id = dh_replay_head(&v->replay, s);
        if (id == DH_NONE) continue;
        char a[256], b[256];
        return dh_fail(v->ctx, DH_EVERIFY, "deadlock: %s waits for ever for %s",
                       dh_instr_describe(v->p, id, a, sizeof a),
                       dh_instr_describe(v->p, dh_replay_blocker(&v->replay, s), b, sizeof b));
    }
    return DH_OK;
}

/* The ready stream whose next instruction was issued first; -1: none is ready.
 * Issue order makes a missing wait show as a race, not as its consequence. */
static int next_stream(verifier *v)
{
    int best = -1;
    for (int s = 0; s < DH_N_STREAM; s++) {
        uint32_t id = dh_replay_head(&v->replay, s);
        if (id == DH_NONE || (best >= 0 && id > dh_replay_head(&v->replay, best))) continue;
        if (dh_replay_blocker(&v->replay, s) == DH_NONE) best = s;
    }
    return best;
}

static dh_status verify(verifier *v)
{
    const dh_program *p = v->p;
    for (uint32_t i = 0; i < p->instrs.n; i++) DH_TRY(check_instr(v, i));
    for (uint32_t i = 0; i < p->instrs.n; i++) DH_TRY(check_waits(v, i));
    DH_TRY(dh_replay_init(v->ctx, &v->replay, p));
    const bool ok = count_parts(v) && make_segments(v);
    v->done = calloc(p->instrs.n + 1, sizeof *v->done);
    if (!ok || !v->done) return dh_no_memory(v->ctx);
    own_persistent(v);
    for (int s; (s = next_stream(v)) >= 0;) {
        DH_TRY(dh_heed_stop(v->ctx, "a program was verified"));
        DH_TRY(run_one(v, s));
    }
    DH_TRY(report_cycle(v));
    DH_TRY(dh_sums_verify(v->ctx, p));
    DH_TRY(dh_micro_verify(v->ctx, p));
    return dh_steps_verify(v->ctx, p);
}

dh_status dh_program_verify(dh_ctx *ctx, const dh_program *program)
{
    verifier v = {.ctx = ctx, .p = program};
    dh_status st = verify(&v);
    dh_replay_fini(&v.replay);
    free(v.bounds);
    free(v.of_buffer);
    free(v.segments);
    free(v.end);
    free(v.done);
    return st;
}
