/* Gradients of micro-batches that are reduced each by itself (dh_flat.reduces_each) all count, once.
 *
 * A micro-batch that all ranks leave out alike, or add twice, races with nobody: only the sum would
 * differ. So every piece of whole gradients of a micro-batch must be summed over the ranks with the
 * same parameters. The sum must go once to its shards: to those that the optimizer reads, or to
 * others that are added to them once. Only one micro-batch may begin the optimizer's shards. */
#include <stdlib.h>

#include "program/ranks.h"

/* Fate of a piece of one micro-batch. */
typedef struct fate {
    bool made;
    uint8_t n_reduced, n_begun, n_added; /* up to 2: more than one is one too many */
} fate;

typedef struct tracker {
    dh_ctx *ctx;
    const dh_program *p;
    fate *fates;   /* by flat, micro-batch and piece */
    size_t *first; /* by flat: its first */
} tracker;

static void count(uint8_t *n)
{
    if (*n < 2) ++*n;
}

static size_t n_fates(const dh_program *p, const dh_flat *f)
{
    return f->reduces_each ? (size_t)(p->n_micro * f->n_pieces) : 0;
}

/* The flat and piece of an operand in its gradients by micro-batch; NULL: it is elsewhere. */
static fate *fate_at(const tracker *t, const dh_operand *o, dh_buffer_kind kind, int64_t n_piece,
                     const dh_flat **flat)
{
    if (o->buffer == DH_NONE || t->p->buffers.at[o->buffer].kind != kind) return NULL;
    const dh_buffer *b = &t->p->buffers.at[o->buffer];
    *flat = &t->p->flats.at[b->owner];
    if (!(*flat)->reduces_each) return NULL;
    const uint64_t n_bytes = (uint64_t)n_piece * sizeof(float);
    return &t->fates[t->first[b->owner] + (size_t)(b->mb * (*flat)->n_pieces) +
                     (size_t)(o->byte0 / n_bytes)];
}

static const dh_flat *owner_of(const tracker *t, const dh_operand *o)
{
    return &t->p->flats.at[t->p->buffers.at[o->buffer].owner];
}

/* An operator of a micro-batch makes gradients. */
static void note_made(tracker *t, const dh_instr *i, const dh_op_info *info)
{
    for (int k = info->n_in; k < info->n_in + info->n_out; k++) {
        const dh_operand *o = dh_instr_operand(t->p, i, k);
        if (o->buffer == DH_NONE || t->p->buffers.at[o->buffer].kind != DH_BUF_UNREDUCED) continue;
        const dh_flat *f = owner_of(t, o);
        const uint64_t piece = (uint64_t)f->n_piece * sizeof(float);
        dh_operand at = *o;
        for (at.byte0 -= at.byte0 % piece; at.byte0 < o->byte0 + o->n_bytes; at.byte0 += piece) {
            fate *made = fate_at(t, &at, DH_BUF_UNREDUCED, f->n_piece, &f);
            if (made) made->made = true;
        }
    }
}

static void note_reduced(tracker *t, const dh_instr *i)
{
    const dh_operand *whole = dh_instr_operand(t->p, i, 0), *shard = dh_instr_operand(t->p, i, 1);
    const dh_flat *f;
    if (whole->buffer == DH_NONE || t->p->buffers.at[whole->buffer].kind != DH_BUF_UNREDUCED)
        return;
    fate *at = fate_at(t, whole, DH_BUF_UNREDUCED, owner_of(t, whole)->n_piece, &f);
    const dh_group_kind group = dh_program_data_group(t->p, owner_of(t, whole)->first_block);
    if (!at || (dh_group_kind)dh_instr_op(t->p, i)->group != group) return;
    count(&at->n_reduced);
    if (shard->buffer == f->reduced.buffer) count(&at->n_begun);
}

static void note_added(tracker *t, const dh_instr *i)
{
    const dh_operand *from = dh_instr_operand(t->p, i, 1), *to = dh_instr_operand(t->p, i, 2);
    const dh_flat *f;
    if (from->buffer == DH_NONE || t->p->buffers.at[from->buffer].kind != DH_BUF_ADDEND) return;
    fate *at = fate_at(t, from, DH_BUF_ADDEND, owner_of(t, from)->n_shard, &f);
    if (at && to->buffer == f->reduced.buffer && to->byte0 == from->byte0 &&
        to->n_bytes == from->n_bytes)
        count(&at->n_added);
}

static dh_status complain(const tracker *t, const dh_flat *f, int64_t mb, const char *what)
{
    char text[256];
    return dh_fail(
        t->ctx, DH_EVERIFY, "rank %lld: %s %s", (long long)t->p->rank,
        dh_buffer_describe(t->p, f->matrix[DH_BUF_GRAD].buffer + (uint32_t)mb, text, sizeof text),
        what);
}

static dh_status check_flat(const tracker *t, size_t id)
{
    const dh_flat *f = &t->p->flats.at[id];
    for (int64_t k = 0; k < f->n_pieces; k++) {
        int64_t n_begun = 0;
        for (int64_t mb = 0; f->reduces_each && mb < t->p->n_micro; mb++) {
            const fate *at = &t->fates[t->first[id] + (size_t)(mb * f->n_pieces + k)];
            if (!at->made) continue;
            if (at->n_reduced != 1)
                return complain(t, f, mb,
                                "are not summed once over the ranks that have the same parameters");
            if (at->n_begun + at->n_added != 1)
                return complain(t, f, mb, "do not count once in the sum of all micro-batches");
            n_begun += at->n_begun;
            if (n_begun > 1)
                return complain(t, f, mb, "replace the sum of the micro-batches before");
        }
    }
    return DH_OK;
}

/* Up to the optimizer: behind it are probes alone. */
static void read_instrs(tracker *t)
{
    const dh_program *p = t->p;
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        const dh_instr *i = &p->instrs.at[id];
        const dh_op *op = dh_instr_op(p, i);
        const dh_block_kind kind = dh_instr_graph(p, i)->kind;
        if (kind == DH_BLOCK_OPT) break;
        if (kind != DH_BLOCK_GRADS)
            note_made(t, i, dh_op_info_of(op->type));
        else if (op->type == DH_OP_REDUCE_SCATTER)
            note_reduced(t, i);
        else if (op->type == DH_OP_ADD)
            note_added(t, i);
    }
}

dh_status dh_micro_verify(dh_ctx *ctx, const dh_program *p)
{
    size_t n = 0;
    for (size_t f = 0; f < p->flats.n; f++) n += n_fates(p, &p->flats.at[f]);
    if (n == 0) return DH_OK;
    tracker t = {.ctx = ctx,
                 .p = p,
                 .fates = calloc(n, sizeof *t.fates),
                 .first = calloc(p->flats.n + 1, sizeof *t.first)};
    dh_status st = t.fates && t.first ? DH_OK : dh_no_memory(ctx);
    for (size_t f = 0; st == DH_OK && f < p->flats.n; f++)
        t.first[f + 1] = t.first[f] + n_fates(p, &p->flats.at[f]);
    if (st == DH_OK) read_instrs(&t);
    for (size_t f = 0; st == DH_OK && f < p->flats.n; f++) st = check_flat(&t, f);
    free(t.fates);
    free(t.first);
    return st;
}
