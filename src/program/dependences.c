/* Which earlier instructions an instruction waits for. See emit.h.
 *
 * Every instruction carries a vector clock: for each stream, the last moment (an instruction or a
 * part of its output) known to have passed when it starts. Streams are in order. A moment
 * that is a part of an output implies three facts about its instruction:
 *   - all instructions before it on its stream are complete;
 *   - everything in its own clock, which held at its start, has passed;
 *   - it may still be running.
 * A dependence that the clock implies needs no wait. The others become waits, the fewest that the
 * order allows. */
#include "program/emitter.h"

#include <stdlib.h>

/* Whether uses of a buffer are recorded by parameters. Each parameter counts as a whole, or by rows
 * if operators use rows of it (views). Ranges of an update or a reduction are not recorded. */
static bool holds_params(const dh_buffer *b)
{
    return b->kind <= DH_BUF_ADAM_V && b->kind != DH_BUF_STATE;
}

/* Whether the bytes are shards of parameters that are whole nowhere on the rank. */
static bool in_shards(const dh_emitter *e, const dh_operand *o)
{
    const dh_buffer *b = &e->program->buffers.at[o->buffer];
    if (!e->spec->recipe.sharing.parameters || (b->kind != DH_BUF_MASTER && b->kind != DH_BUF_COPY))
        return false;
    const dh_flat *f = &e->program->flats.at[b->owner];
    return f->n_shard < f->n_piece && o->byte0 + o->n_bytes <= f->matrix[b->kind].n_bytes;
}

static bool by_params(const dh_emitter *e, const dh_operand *o)
{
    return holds_params(&e->program->buffers.at[o->buffer]) && !in_shards(e, o);
}

/* Whether uses of the other operands are recorded by the bytes they concern. */
static bool by_ranges(const dh_emitter *e, const dh_operand *o)
{
    const dh_buffer *b = &e->program->buffers.at[o->buffer];
    return (!dh_buffer_is_persistent(b->kind) && b->kind != DH_BUF_WORK) || in_shards(e, o);
}

static bool overlap(const dh_operand *o, uint64_t byte0, uint64_t n_bytes)
{
    return byte0 < o->byte0 + o->n_bytes && o->byte0 < byte0 + n_bytes;
}

static dh_access_range *next_range(dh_emitter *e, const dh_access_range *r)
{
    return r->next == DH_NONE ? NULL : &e->ranges.at[r->next];
}

static void visit_params(dh_emitter *e, const dh_operand *o, void (*visit)(dh_accesses *, void *),
                         void *arg)
{
    const dh_buffer *b = &e->program->buffers.at[o->buffer];
    const dh_param_place *places = e->places + (size_t)b->kind * e->program->params.n;
    for (uint32_t i = e->place0[b->owner]; i < e->place0[b->owner + 1]; i++) {
        const dh_param_place *at = &places[i];
        if (at->buffer != o->buffer || at->end <= o->byte0 || o->byte0 + o->n_bytes <= at->byte0)
            continue;
        for (dh_access_range *r = &e->params[at->param][b->kind]; r; r = next_range(e, r))
            if (overlap(o, r->byte0, r->n_bytes)) visit(&r->seen, arg);
    }
}

/* The access records an operand concerns: of ranges of an activation, of parameters in
 * range. Calls visit for each. */
static void visit_accesses(dh_emitter *e, const dh_operand *o, void (*visit)(dh_accesses *, void *),
                           void *arg)
{
    if (o->buffer == DH_NONE) return;
    if (by_params(e, o)) {
        visit_params(e, o, visit, arg);
        return;
    }
    for (uint32_t i = e->range0.at[o->buffer]; i != DH_NONE; i = e->ranges.at[i].next)
        if (overlap(o, e->ranges.at[i].byte0, e->ranges.at[i].n_bytes))
            visit(&e->ranges.at[i].seen, arg);
}

typedef struct listing {
    dh_emitter *emitter;
    uint32_t n;
} listing;

static void list_place(uint32_t param, void *arg)
{
    listing *l = arg;
    const dh_program *p = l->emitter->program;
    for (size_t kind = 0; kind <= DH_BUF_ADAM_V; kind++) {
        const dh_operand *home = &p->homes.at[param].at[kind];
        l->emitter->places[kind * p->params.n + l->n] =
            (dh_param_place){home->byte0, home->byte0 + home->n_bytes, home->buffer, param};
    }
    l->n++;
}

dh_status dh_emit_init_params(dh_ctx *ctx, dh_emitter *e)
{
    const dh_program *p = e->program;
    e->params = calloc(p->params.n + 1, sizeof *e->params);
    e->places = calloc((DH_BUF_ADAM_V + 1) * p->params.n + 1, sizeof *e->places);
    e->place0 = calloc(p->flats.n + 1, sizeof *e->place0);
    if (!e->params || !e->places || !e->place0) return dh_no_memory(ctx);
    for (size_t i = 0; i < p->params.n; i++)
        for (int kind = 0; kind <= DH_BUF_ADAM_V; kind++) {
            const dh_operand *home = &p->homes.at[i].at[kind];
            e->params[i][kind] =
                (dh_access_range){.byte0 = home->byte0, .n_bytes = home->n_bytes, .next = DH_NONE};
        }
    listing l = {.emitter = e};
    for (uint32_t flat = 0; flat < p->flats.n; flat++) {
        dh_emit_visit_params(e, flat, list_place, &l);
        e->place0[flat + 1] = l.n;
    }
    return DH_OK;
}

/* The range with a byte inside becomes two with the same history. */
static bool cut_at(dh_emitter *e, dh_access_range *first, uint64_t byte)
{
    dh_access_range *r = first;
    while (r && (byte <= r->byte0 || byte >= r->byte0 + r->n_bytes)) r = next_range(e, r);
    if (!r) return true;
    dh_access_range rest = *r;
    rest.byte0 = byte;
    rest.n_bytes -= byte - r->byte0;
    r->n_bytes = byte - r->byte0;
    r->next = (uint32_t)e->ranges.n;
    return dh_vec_push(&e->ranges, rest);
}

dh_status dh_emit_cut_param(dh_ctx *ctx, dh_emitter *e, uint32_t param, const dh_operand *rows)
{
    const dh_buffer *b = &e->program->buffers.at[rows->buffer];
    if (!holds_params(b)) return DH_OK; /* a tied gradient's own sum: used as a whole */
    dh_access_range *first = &e->params[param][b->kind];
    const bool ok = cut_at(e, first, rows->byte0) && cut_at(e, first, rows->byte0 + rows->n_bytes);
    return ok ? DH_OK : dh_no_memory(ctx);
}

/* Uses of an operand in a transient buffer are recorded at exactly its range; those of other
 * buffers at one range for all. */
static dh_status find_range(dh_ctx *ctx, dh_emitter *e, const dh_operand *operand,
                            dh_accesses **seen)
{
    const dh_buffer *b = &e->program->buffers.at[operand->buffer];
    const dh_operand all = {.buffer = operand->buffer, .n_bytes = b->n_bytes};
    const dh_operand *o = by_ranges(e, operand) ? operand : &all;
    uint32_t *first = &e->range0.at[o->buffer];
    for (uint32_t i = *first; i != DH_NONE; i = e->ranges.at[i].next) {
        dh_access_range *r = &e->ranges.at[i];
        *seen = &r->seen;
        if (r->byte0 == o->byte0 && r->n_bytes == o->n_bytes) return DH_OK;
    }
    const dh_access_range new = {.byte0 = o->byte0, .n_bytes = o->n_bytes, .next = *first};
    if (!dh_vec_push(&e->ranges, new)) return dh_no_memory(ctx);
    *first = (uint32_t)(e->ranges.n - 1);
    *seen = &e->ranges.at[*first].seen;
    return DH_OK;
}

/* An operand that is read, and what its reader must come after. */
typedef struct reading {
    const dh_emitter *emitter;
    const dh_operand *operand;
    dh_clock_vec *needed;
} reading;

/* The moment from which what a writer that ends at `end` wrote of the operand may be read. */
static uint32_t readable_at(const dh_emitter *e, uint32_t end, const dh_operand *operand)
{
    const dh_program *p = e->program;
    if (e->moments.n == p->instrs.n) return end; /* nothing completes in parts */
    const uint32_t writer = e->moments.at[end - 1].instr;
    return end - (dh_instr_n_parts(p, writer) - 1 - dh_instr_part_of(p, writer, operand));
}

static void need_read(dh_accesses *a, void *arg)
{
    const reading *r = arg;
    for (int s = 0; s < DH_N_STREAM; s++) {
        const uint32_t end = a->writes.at[s];
        if (end <= r->needed->at[s]) continue;
        r->needed->at[s] = DH_MAX(r->needed->at[s], readable_at(r->emitter, end, r->operand));
    }
}

static void need_writes(dh_accesses *a, void *needed)
{
    dh_clock_merge(needed, &a->writes);
}

static void need_all(dh_accesses *a, void *needed)
{
    dh_clock_merge(needed, &a->writes);
    dh_clock_merge(needed, &a->reads);
}

/* Moments that this instruction must come after, from its operands' earlier accesses. */
static dh_clock_vec dependences(dh_emitter *e, const dh_op_info *info, const dh_operand *operands)
{
    dh_clock_vec needed = {{0}};
    for (int k = 0; k < info->n_in; k++) {
        reading r = {e, &operands[k], &needed};
        visit_accesses(e, &operands[k], need_read, &r);
    }
    for (int k = info->n_in; k < info->n_in + info->n_out; k++)
        visit_accesses(e, &operands[k], need_all, &needed);
    return needed;
}

static dh_status add_waits(dh_ctx *ctx, dh_emitter *e, dh_instr *instr, const dh_clock_vec *needed)
{
    dh_clock_vec *known = &e->known[instr->stream];
    instr->wait0 = (uint32_t)e->program->waits.n;
    for (int s = 0; s < DH_N_STREAM; s++) {
        if (s == instr->stream || needed->at[s] <= known->at[s]) continue;
        const dh_wait wait = e->moments.at[needed->at[s] - 1];
        if (!dh_vec_push(&e->program->waits, wait)) return dh_no_memory(ctx);
        instr->n_waits++;
        dh_clock_vec done = e->done.at[wait.instr];
        done.at[s] = needed->at[s];
        dh_clock_merge(known, &done);
    }
    return DH_OK;
}

/* The moments of the next instruction, of which the last is its end. */
static bool add_moments(dh_emitter *e, const dh_instr *instr)
{
    const uint32_t id = (uint32_t)e->program->instrs.n;
    const uint32_t n_parts = dh_op_n_parts(dh_instr_op(e->program, instr));
    bool ok = true;
    for (uint32_t k = 0; ok && k < n_parts; k++)
        ok = dh_vec_push(&e->moments, ((dh_wait){id, k + 1 < n_parts ? k : DH_NONE}));
    return ok;
}

typedef struct position {
    int stream;
    uint32_t moment;
} position;

static void mark_read(dh_accesses *a, void *at)
{
    const position *p = at;
    a->reads.at[p->stream] = p->moment;
}

static void mark_written(dh_accesses *a, void *at)
{
    const position *p = at;
    a->writes.at[p->stream] = p->moment;
}

static dh_status record_accesses(dh_ctx *ctx, dh_emitter *e, const dh_op_info *info,
                                 const dh_operand *operands, int stream, uint32_t moment)
{
    position at = {stream, moment};
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        const dh_operand *o = &operands[k];
        void (*mark)(dh_accesses *, void *) = k < info->n_in ? mark_read : mark_written;
        dh_accesses *seen = NULL;
        if (o->buffer == DH_NONE) continue;
        if (by_params(e, o)) {
            visit_accesses(e, o, mark, &at);
            continue;
        }
        DH_TRY(find_range(ctx, e, o, &seen));
        mark(seen, &at);
    }
    return DH_OK;
}

bool dh_emit_written_before(dh_emitter *e, const dh_operand *operand)
{
    dh_clock_vec writes = {{0}};
    visit_accesses(e, operand, need_writes, &writes);
    for (int s = 0; s < DH_N_STREAM; s++)
        if (writes.at[s]) return true;
    return false;
}

dh_status dh_emit_waits(dh_ctx *ctx, dh_emitter *e, const dh_op_info *info,
                        const dh_operand *scopes, dh_instr *instr)
{
    dh_clock_vec needed = dependences(e, info, scopes);
    dh_clock_merge(&needed, &e->barrier);
    dh_clock_merge(&needed, &e->after);
    e->after = (dh_clock_vec){{0}};
    DH_TRY(add_waits(ctx, e, instr, &needed));
    if (!add_moments(e, instr)) return dh_no_memory(ctx);
    const uint32_t end = (uint32_t)e->moments.n;
    DH_TRY(record_accesses(ctx, e, info, scopes, instr->stream, end));
    e->known[instr->stream].at[instr->stream] = end;
    if (!dh_vec_push(&e->ends, end)) return dh_no_memory(ctx);
    return dh_vec_push(&e->done, e->known[instr->stream]) ? DH_OK : dh_no_memory(ctx);
}

/* The ends of all that has been emitted. */
static dh_clock_vec emitted(const dh_emitter *e)
{
    dh_clock_vec all;
    for (int s = 0; s < DH_N_STREAM; s++) all.at[s] = e->known[s].at[s];
    return all;
}

/* Sums over copies of the model wait for slots of other stages, which may wait for what comes
 * behind the barrier. Gathers at the beginning are waited for by what reads them. */
void dh_emit_barrier(dh_emitter *e)
{
    const dh_clock_vec before = e->barrier, all = emitted(e);
    for (int s = 0; s < DH_N_STREAM; s++) {
        const bool data = dh_stream_traffic((dh_stream)s) == DH_TRAFFIC_DATA;
        const bool skips = e->program->mirrored || all.at[s] == e->unbarred.at[s];
        e->barrier.at[s] = data && skips ? before.at[s] : all.at[s];
    }
}

void dh_emit_no_barrier(dh_emitter *e)
{
    e->unbarred = emitted(e);
}

void dh_emit_after(dh_emitter *e, uint32_t instr)
{
    uint32_t *at = &e->after.at[e->program->instrs.at[instr].stream];
    *at = DH_MAX(*at, e->ends.at[instr]);
}
