/* What the optimizer reads is the sum over all that has the same parameters.
 *
 * Ranks that miss a sum alike meet in all their other calls and race with nobody: only the numbers
 * would differ, and the copies of the model with them. So every byte of a gradient that the
 * optimizer reads has to be written by a collective of the ranks that hold the same parameters, and
 * where a rank itself has two copies of a stage, to have had the other's gradient added. */
#include <stdlib.h>

#include "program/ranks.h"

/* Bytes that sums have dealt with. */
typedef struct summed {
    dh_operand bytes;
    dh_group_kind group; /* DH_N_GROUPS: added on the rank */
} summed;
typedef DH_VEC(summed) summed_list;

static bool covers(const summed_list *list, dh_operand o, dh_group_kind group)
{
    const uint64_t end = o.byte0 + o.n_bytes;
    for (uint64_t at = o.byte0, before; at < end;) {
        before = at;
        for (size_t i = 0; i < list->n; i++) {
            const summed *s = &list->at[i];
            const bool here = s->group == group && s->bytes.buffer == o.buffer &&
                              s->bytes.byte0 <= at && at < s->bytes.byte0 + s->bytes.n_bytes;
            if (here) at = s->bytes.byte0 + s->bytes.n_bytes;
        }
        if (at == before) return false;
    }
    return true;
}

static dh_block_kind kind_of(const dh_program *p, const dh_instr *i)
{
    return dh_instr_graph(p, i)->kind;
}

/* A sum over ranks, or of two operands. */
static bool list_sum(const dh_program *p, const dh_instr *i, summed_list *list)
{
    const dh_op *op = dh_instr_op(p, i);
    const bool reduces = op->type == DH_OP_ALL_REDUCE || op->type == DH_OP_REDUCE_SCATTER;
    if (reduces) {
        const dh_operand *out = dh_instr_operand(p, i, dh_op_info_of(op->type)->n_in);
        return dh_vec_push(list, ((summed){*out, (dh_group_kind)op->group}));
    }
    return op->type != DH_OP_ADD ||
           dh_vec_push(list, ((summed){*dh_instr_operand(p, i, 1), DH_N_GROUPS}));
}

/* The flat of an operand of the optimizer; NULL: it is no gradient. */
static const dh_flat *flat_of(const dh_program *p, const dh_operand *o)
{
    if (o->buffer == DH_NONE || o->n_bytes == 0) return NULL;
    const dh_buffer *b = &p->buffers.at[o->buffer];
    return b->kind == DH_BUF_GRAD || b->kind == DH_BUF_REDUCED ? &p->flats.at[b->owner] : NULL;
}

static dh_status check_reads(dh_ctx *ctx, const dh_program *p, uint32_t instr,
                             const summed_list *list)
{
    const dh_instr *i = &p->instrs.at[instr];
    for (int k = 0; k < dh_op_info_of(dh_instr_op(p, i)->type)->n_in; k++) {
        const dh_operand *o = dh_instr_operand(p, i, k);
        const dh_flat *f = flat_of(p, o);
        char text[256], buffer[256];
        if (!f) continue;
        const dh_group_kind group = dh_program_data_group(p, f->first_block);
        if (dh_mesh_group_size(&p->mesh, group) == 1 || covers(list, *o, group)) continue;
        return dh_fail(ctx, DH_EVERIFY,
                       "%s reads %s, which was not summed over group %s, the ranks that have the "
                       "same parameters",
                       dh_instr_describe(p, instr, text, sizeof text),
                       dh_buffer_describe(p, o->buffer, buffer, sizeof buffer),
                       dh_group_name(group));
    }
    return DH_OK;
}

/* Gradients of the rank's second copy of a stage. */
static dh_status check_copies(dh_ctx *ctx, const dh_program *p, const summed_list *list)
{
    for (size_t f = 0; f < p->flats.n; f++) {
        const dh_flat *flat = &p->flats.at[f];
        const dh_operand gradients[] = {flat->matrix[DH_BUF_GRAD], flat->vector[DH_BUF_GRAD]};
        char text[256];
        if (flat->first_copy == DH_NONE) continue;
        for (size_t k = 0; k < DH_COUNTOF(gradients); k++)
            if (gradients[k].buffer != DH_NONE && !covers(list, gradients[k], DH_N_GROUPS))
                return dh_fail(
                    ctx, DH_EVERIFY,
                    "rank %lld: %s, of the second copy of the model, is not added to the "
                    "first's",
                    (long long)p->rank,
                    dh_buffer_describe(p, gradients[k].buffer, text, sizeof text));
    }
    return DH_OK;
}

dh_status dh_sums_verify(dh_ctx *ctx, const dh_program *p)
{
    summed_list list = {0};
    bool ok = true, updates = false;
    dh_status st = DH_OK;
    for (uint32_t i = 0; ok && i < p->instrs.n; i++)
        if (kind_of(p, &p->instrs.at[i]) == DH_BLOCK_GRADS)
            ok = list_sum(p, &p->instrs.at[i], &list);
    if (!ok) st = dh_fail(ctx, DH_ENOMEM, "out of memory verifying a program");
    for (uint32_t i = 0; st == DH_OK && i < p->instrs.n; i++) {
        if (kind_of(p, &p->instrs.at[i]) != DH_BLOCK_OPT) continue;
        updates = true;
        st = check_reads(ctx, p, i, &list);
    }
    if (st == DH_OK && updates) st = check_copies(ctx, p, &list);
    dh_vec_fini(&list);
    return st;
}
