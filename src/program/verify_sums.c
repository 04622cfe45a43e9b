/* Gradients that the optimizer reads are sums over all ranks with the same parameters, and
 * parameters that it updates in shards are gathered.
 *
 * Ranks that miss a sum alike meet in all their other calls and race with nobody: only the numbers
 * would differ, and the copies of the model with them. So a collective of the ranks with the same
 * parameters must write every byte of a gradient that the optimizer reads. If a rank has two copies
 * of a stage, the other copy's gradient must have been added. If ranks update shards of matrices
 * that each has whole, gathers among them must cover these matrices, after the updates or at the
 * beginning of the next step.
 *
 * In stages: bytes scattered over a node's ranks and then summed over the ranks at the same place
 * of every node are summed over the group. This holds too for bytes gathered on the node from such
 * bytes: the same check holds for its other ranks' programs. */
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

/* The group over which a sum over a stage, or a gather of it, completes the sum: the whole one, or
 * else its own group. */
static dh_group_kind completes(const summed_list *list, const dh_program *p, const dh_op *op,
                               const dh_operand *in)
{
    const dh_group_kind group = (dh_group_kind)op->group, whole = dh_group_whole(group);
    dh_group_stages s;
    if (whole == group || dh_mesh_group_stages(&p->mesh, whole, &s)) return group;
    const bool gathers = op->type == DH_OP_ALL_GATHER;
    const dh_group_kind before = gathers ? whole : group == s.cross ? s.local : s.cross;
    return covers(list, *in, before) ? whole : group;
}

/* A sum over ranks, or of two operands. */
static bool list_sum(const dh_program *p, const dh_instr *i, summed_list *list)
{
    const dh_op *op = dh_instr_op(p, i);
    const bool reduces = op->type == DH_OP_ALL_REDUCE || op->type == DH_OP_REDUCE_SCATTER;
    if (reduces || op->type == DH_OP_ALL_GATHER) {
        const dh_operand *out = dh_instr_operand(p, i, dh_op_info_of(op->type)->n_in);
        const dh_group_kind group = completes(list, p, op, dh_instr_operand(p, i, 0));
        if (!reduces && group == (dh_group_kind)op->group) return true;
        return dh_vec_push(list, ((summed){*out, group}));
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

/* Gathers of parameters, behind the optimizer or at the beginning. In stages: what is gathered on a
 * node from shards that came from its place of every node. */
static bool list_gather(const dh_program *p, const dh_instr *i, summed_list *list)
{
    const dh_op *op = dh_instr_op(p, i);
    const dh_block_kind kind = kind_of(p, i);
    dh_group_kind group = (dh_group_kind)op->group;
    dh_group_stages s;
    if (op->type != DH_OP_ALL_GATHER || (kind != DH_BLOCK_OPT && kind != DH_BLOCK_GATHER))
        return true;
    const dh_group_kind whole = dh_group_whole(group);
    if (whole != group && !dh_mesh_group_stages(&p->mesh, whole, &s) && group == s.local &&
        covers(list, *dh_instr_operand(p, i, 0), s.cross))
        group = whole;
    return dh_vec_push(list, ((summed){*dh_instr_operand(p, i, 1), group}));
}

/* An operand of the optimizer that is a shard of a matrix's piece which the rank has whole. */
static bool is_shard(const dh_program *p, const dh_operand *o)
{
    const dh_buffer_kind kind = p->dtype == DH_F32 ? DH_BUF_MASTER : DH_BUF_COPY;
    if (o->buffer == DH_NONE || p->buffers.at[o->buffer].kind != kind) return false;
    const dh_flat *f = &p->flats.at[p->buffers.at[o->buffer].owner];
    const dh_operand *all = &f->matrix[kind];
    return f->n_shard < f->n_piece && o->byte0 + o->n_bytes <= all->byte0 + all->n_bytes &&
           all->n_bytes == (uint64_t)f->n_matrix * dh_dtype_bytes(p->dtype);
}

static dh_status check_updates(dh_ctx *ctx, const dh_program *p, uint32_t instr,
                               const summed_list *list)
{
    const dh_instr *i = &p->instrs.at[instr];
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, i)->type);
    for (int k = info->n_in; k < info->n_in + info->n_out; k++) {
        const dh_operand *o = dh_instr_operand(p, i, k);
        char text[256], buffer[256];
        if (!is_shard(p, o)) continue;
        const dh_flat *f = &p->flats.at[p->buffers.at[o->buffer].owner];
        const dh_group_kind group = dh_program_data_group(p, f->first_block);
        if (covers(list, dh_program_piece(p, *o), group)) continue;
        return dh_fail(
            ctx, DH_EVERIFY, "%s updates a shard of %s, and group %s does not gather them all",
            dh_instr_describe(p, instr, text, sizeof text),
            dh_buffer_describe(p, o->buffer, buffer, sizeof buffer), dh_group_name(group));
    }
    return DH_OK;
}

/* Of gradients that are summed by micro-batch, those of every one. */
static bool covers_all(const dh_program *p, const summed_list *list, dh_operand o,
                       dh_group_kind group)
{
    const dh_buffer *b = &p->buffers.at[o.buffer];
    const bool each = b->kind == DH_BUF_UNREDUCED && p->flats.at[b->owner].reduces_each;
    bool all = true;
    for (int32_t mb = 0; all && mb < (each ? p->n_micro : 1); mb++)
        all = covers(list, dh_program_of_micro(p, o, mb), group);
    return all;
}

/* Keys and values that ranks have alike. */
static dh_status check_repeats(dh_ctx *ctx, const dh_program *p, const summed_list *list)
{
    for (uint32_t i = 0; i < p->params.n; i++) {
        const dh_param *info = &p->params.at[i];
        dh_operand own = p->homes.at[i].at[DH_BUF_GRAD];
        if (info->n_repeated == 0 || own.buffer == DH_NONE) continue;
        const uint64_t n_bytes = (uint64_t)info->n_repeated * sizeof(float);
        own.byte0 += own.n_bytes - n_bytes;
        own.n_bytes = n_bytes;
        if (!covers_all(p, list, own, DH_GROUP_KV))
            return dh_fail(ctx, DH_EVERIFY,
                           "rank %lld: gradients of keys and values of %s are not summed over "
                           "group %s, the ranks that have the same heads",
                           (long long)p->rank, info->name, dh_group_name(DH_GROUP_KV));
    }
    return DH_OK;
}

/* Bytes of a gradient that the rank's optimizer, wherever it is, will read. */
static dh_status check_left(dh_ctx *ctx, const dh_program *p, const dh_flat *f, dh_operand o,
                            const summed_list *list)
{
    char buffer[256];
    const dh_group_kind group = dh_program_data_group(p, f->first_block);
    if (o.buffer == DH_NONE || dh_mesh_group_size(&p->mesh, group) == 1) return DH_OK;
    if (covers(list, o, group)) return DH_OK;
    return dh_fail(ctx, DH_EVERIFY,
                   "rank %lld leaves %s, which was not summed over group %s, the ranks that have "
                   "the same parameters",
                   (long long)p->rank, dh_buffer_describe(p, o.buffer, buffer, sizeof buffer),
                   dh_group_name(group));
}

/* Shards of matrices and whole vectors that a program without the optimizer leaves to one. */
static dh_status check_all_left(dh_ctx *ctx, const dh_program *p, const summed_list *list)
{
    for (size_t i = 0; i < p->flats.n; i++) {
        const dh_flat *f = &p->flats.at[i];
        DH_TRY(check_left(ctx, p, f, f->vector[DH_BUF_GRAD], list));
        for (int64_t k = 0; k < f->n_pieces; k++) {
            dh_operand shard = f->matrix[DH_BUF_GRAD];
            shard.byte0 += (uint64_t)(k * f->n_piece + f->shard0) * sizeof(float);
            shard.n_bytes = (uint64_t)f->n_shard * sizeof(float);
            DH_TRY(check_left(ctx, p, f, shard, list));
        }
    }
    return DH_OK;
}

static dh_status verify_gathers(dh_ctx *ctx, const dh_program *p)
{
    summed_list list = {0};
    bool ok = true;
    for (uint32_t i = 0; ok && i < p->instrs.n; i++) ok = list_gather(p, &p->instrs.at[i], &list);
    dh_status st = ok ? DH_OK : dh_no_memory(ctx);
    for (uint32_t i = 0; st == DH_OK && i < p->instrs.n; i++)
        if (kind_of(p, &p->instrs.at[i]) == DH_BLOCK_OPT) st = check_updates(ctx, p, i, &list);
    dh_vec_fini(&list);
    return st;
}

dh_status dh_sums_verify(dh_ctx *ctx, const dh_program *p)
{
    summed_list list = {0};
    bool ok = true, updates = false;
    dh_status st = DH_OK;
    for (uint32_t i = 0; ok && i < p->instrs.n; i++)
        if (kind_of(p, &p->instrs.at[i]) == DH_BLOCK_GRADS)
            ok = list_sum(p, &p->instrs.at[i], &list);
    if (!ok) st = dh_no_memory(ctx);
    for (uint32_t i = 0; st == DH_OK && i < p->instrs.n; i++) {
        if (kind_of(p, &p->instrs.at[i]) != DH_BLOCK_OPT || p->part == DH_PART_UPDATE) continue;
        updates = true;
        st = check_reads(ctx, p, i, &list);
    }
    if (st == DH_OK && p->part == DH_PART_GRADS && !p->goes_on) st = check_all_left(ctx, p, &list);
    if (st == DH_OK && updates) st = check_copies(ctx, p, &list);
    if (st == DH_OK && updates) st = verify_gathers(ctx, p);
    if (st == DH_OK && (updates || (p->part == DH_PART_GRADS && !p->goes_on)))
        st = check_repeats(ctx, p, &list);
    dh_vec_fini(&list);
    return st;
}
