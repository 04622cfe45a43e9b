/* Program container: destruction, lookups, descriptions, listing. */
#include "program/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[DH_N_BUFFER_KIND] = {[DH_BUF_MASTER] = "master",
                                                         [DH_BUF_COPY] = "copy",
                                                         [DH_BUF_STATE] = "state",
                                                         [DH_BUF_GRAD] = "grad",
                                                         [DH_BUF_ADAM_M] = "adam.m",
                                                         [DH_BUF_ADAM_V] = "adam.v",
                                                         [DH_BUF_KV] = "kv",
                                                         [DH_BUF_IN] = "in",
                                                         [DH_BUF_OUT] = "out",
                                                         [DH_BUF_ACT] = "act",
                                                         [DH_BUF_WORK] = "work",
                                                         [DH_BUF_UNREDUCED] = "unreduced gradients",
                                                         [DH_BUF_REDUCED] = "reduced gradients",
                                                         [DH_BUF_ADDEND] =
                                                             "reduced gradients to add"};
static const char *const state_names[DH_N_STATE] = {
    [DH_STATE_LOSS] = "loss",
    [DH_STATE_SQSUM] = "sqsum",
    [DH_STATE_SQTOTAL] = "sqtotal",
    [DH_STATE_NORM] = "norm",
    [DH_STATE_SQCHAIN] = "sqchain",
    [DH_STATE_NORM_SO_FAR] = "norm so far",
    [DH_STATE_ROUTER] = "router",
    [DH_STATE_AUX] = "aux",
    [DH_STATE_TIED_GRAD] = "head's part of a tied gradient",
};

const char *dh_buffer_kind_name(dh_buffer_kind kind)
{
    return (unsigned)kind < DH_N_BUFFER_KIND ? kind_names[kind] : "?";
}

void dh_program_destroy(dh_program *program)
{
    if (!program) return;
    for (size_t i = 0; i < program->graphs.n; i++) dh_graph_destroy(program->graphs.at[i]);
    dh_vec_fini(&program->graphs);
    dh_vec_fini(&program->blocks);
    dh_vec_fini(&program->params);
    dh_vec_fini(&program->homes);
    dh_vec_fini(&program->flats);
    dh_vec_fini(&program->ranges);
    dh_vec_fini(&program->buffers);
    dh_vec_fini(&program->operands);
    dh_vec_fini(&program->instrs);
    dh_vec_fini(&program->waits);
    dh_vec_fini(&program->lengths);
    dh_vec_fini(&program->probe_classes);
    dh_vec_fini(&program->probes);
    dh_arena_destroy(program->arena);
    free(program);
}

/* ---- lookups ------------------------------------------------------------------------- */

uint32_t dh_program_param(const dh_program *program, const char *name)
{
    for (uint32_t i = 0; i < program->params.n; i++)
        if (strcmp(program->params.at[i].name, name) == 0) return i;
    return DH_NONE;
}

uint32_t dh_program_state_buffer(const dh_program *program, dh_state state)
{
    for (uint32_t i = 0; i < program->buffers.n; i++)
        if (program->buffers.at[i].kind == DH_BUF_STATE && program->buffers.at[i].owner == state)
            return i;
    return DH_NONE;
}

dh_group_kind dh_program_data_group(const dh_program *program, uint32_t block)
{
    const bool experts = dh_program_is_experts(program, block);
    if (dh_program_joins_copies(program))
        return experts ? DH_GROUP_EDP_CP_COPIES : DH_GROUP_DP_CP_COPIES;
    return experts ? DH_GROUP_EDP_CP : DH_GROUP_DP_CP;
}

/* The middle one of an odd number of stages has both copies' layers itself. */
bool dh_program_joins_copies(const dh_program *p)
{
    return p->mirrored && 2 * dh_mesh_coord(&p->mesh, p->rank).pp != p->mesh.pp - 1;
}

dh_operand dh_program_param_part(const dh_program *p, uint32_t param, dh_buffer_kind kind,
                                 int64_t k, int64_t *first, int64_t *n)
{
    const uint64_t item = kind == DH_BUF_COPY ? dh_dtype_bytes(p->dtype) : sizeof(float);
    const dh_operand *home = &p->homes.at[param].at[kind];
    const dh_flat *flat = &p->flats.at[p->blocks.at[p->homes.at[param].block].flat];
    const bool reduced = kind == DH_BUF_GRAD && flat->reduced.buffer != DH_NONE;
    const dh_operand *shards = reduced ? &flat->reduced : &flat->matrix[kind];
    /* Elements count from the start of the flat's matrices. */
    const int64_t origin = p->homes.at[param].first;
    const int64_t shard0 = k * flat->n_piece + flat->shard0;
    const int64_t begin = DH_MAX(origin + *first, shard0);
    const int64_t end = DH_MIN(origin + *first + *n, shard0 + flat->n_shard);
    *n = DH_MAX(end - begin, 0);
    *first = begin - origin;
    const bool whole = home->buffer != DH_NONE && !reduced;
    const int64_t at = whole ? *first : k * flat->n_shard + begin - shard0;
    const dh_operand *run = whole ? home : shards;
    return (dh_operand){run->buffer, run->byte0 + (uint64_t)at * item, (uint64_t)*n * item};
}

static bool contains(const dh_operand *whole, const dh_operand *part)
{
    return whole->buffer == part->buffer && whole->byte0 <= part->byte0 &&
           part->byte0 + part->n_bytes <= whole->byte0 + whole->n_bytes;
}

uint64_t dh_program_kept_bytes(const dh_program *p)
{
    enum { KEPT = 4 }; /* output of adamw */
    uint64_t n_bytes = 0;
    for (size_t g = 0; g < p->graphs.n; g++) {
        const dh_graph *graph = p->graphs.at[g];
        for (size_t i = 0; i < graph->ops.n; i++) {
            const dh_op *op = &graph->ops.at[i];
            if (op->type == DH_OP_ADAMW && op->out[KEPT] != DH_NONE)
                n_bytes += (uint64_t)dh_tensor_bytes(&graph->tensors.at[op->out[KEPT]]);
        }
    }
    return n_bytes;
}

dh_operand dh_program_of_micro(const dh_program *p, dh_operand o, int32_t mb)
{
    if (o.buffer == DH_NONE || mb <= 0) return o;
    const dh_buffer *b = &p->buffers.at[o.buffer];
    const bool apart = b->kind == DH_BUF_UNREDUCED || b->kind == DH_BUF_ADDEND;
    if (apart && p->flats.at[b->owner].reduces_each) o.buffer += (uint32_t)mb;
    return o;
}

dh_operand dh_program_piece(const dh_program *p, dh_operand o)
{
    if (o.buffer == DH_NONE) return o;
    const dh_buffer *b = &p->buffers.at[o.buffer];
    if (b->kind > DH_BUF_ADAM_V || b->kind == DH_BUF_STATE) return o;
    const dh_flat *f = &p->flats.at[b->owner];
    const dh_operand *matrix = &f->matrix[b->kind];
    const uint64_t n_bytes = f->n_pieces ? matrix->n_bytes / (uint64_t)f->n_pieces : 0;
    if (n_bytes == 0 || !contains(matrix, &o)) return o;
    const uint64_t first = (o.byte0 - matrix->byte0) / n_bytes * n_bytes;
    const dh_operand piece = {o.buffer, matrix->byte0 + first, n_bytes};
    return contains(&piece, &o) ? piece : o;
}

uint32_t dh_instr_part_of(const dh_program *program, uint32_t instr, const dh_operand *operand)
{
    const dh_instr *i = &program->instrs.at[instr];
    const dh_op *op = dh_instr_op(program, i);
    const uint32_t last = dh_op_n_parts(op) - 1;
    if (last == 0) return last;
    const dh_operand *out = dh_instr_operand(program, i, dh_op_info_of(op->type)->n_in);
    const uint64_t from = DH_MAX(operand->byte0, out->byte0);
    const uint64_t to = DH_MIN(operand->byte0 + operand->n_bytes, out->byte0 + out->n_bytes);
    if (operand->buffer != out->buffer || from >= to) return last;
    return dh_op_part_of(op, (int64_t)out->n_bytes, (int64_t)(from - out->byte0),
                         (int64_t)(to - out->byte0));
}

/* ---- descriptions ------------------------------------------------------------------------- */

static void describe_place(const dh_program *p, uint32_t block, int32_t mb, dh_str *out)
{
    const dh_block *b = &p->blocks.at[block];
    static const char *const kinds[DH_N_BLOCK_KIND] = {[DH_BLOCK_EMBED] = "embedding",
                                                       [DH_BLOCK_LAYER] = "layer",
                                                       [DH_BLOCK_HEAD] = "head",
                                                       [DH_BLOCK_DATA] = "data",
                                                       [DH_BLOCK_OPT] = "optimizer",
                                                       [DH_BLOCK_GRADS] = "gradients",
                                                       [DH_BLOCK_LINK] = "link",
                                                       [DH_BLOCK_EXPERTS] = "experts of layer",
                                                       [DH_BLOCK_ADAPTERS] = "adapters of layer",
                                                       [DH_BLOCK_PROGRAM] = "program",
                                                       [DH_BLOCK_GATHER] = "parameters",
                                                       [DH_BLOCK_RESHARD] = "reshard"};
    dh_block_kind kind = p->graphs.at[b->graph]->kind;
    dh_str_printf(out, "%s", kinds[kind]);
    if (kind == DH_BLOCK_LAYER || kind == DH_BLOCK_EXPERTS || kind == DH_BLOCK_ADAPTERS)
        dh_str_printf(out, " %d", b->layer);
    if (kind == DH_BLOCK_GATHER && mb >= 0) dh_str_printf(out, " of block %d", b->layer);
    if (mb >= 0) dh_str_printf(out, ", micro-batch %d", mb);
}

static void describe_flat(const dh_program *p, uint32_t flat, dh_str *out)
{
    const dh_flat *f = &p->flats.at[flat];
    describe_place(p, f->first_block, -1, out);
    if (f->last_block == f->first_block) return;
    dh_str_printf(out, " to ");
    describe_place(p, f->last_block, -1, out);
}

static const char *finish(dh_str *s, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s", s->text ? s->text : "");
    dh_str_fini(s);
    return buf;
}

const char *dh_buffer_describe(const dh_program *program, uint32_t buffer, char *buf, size_t cap)
{
    const dh_buffer *b = &program->buffers.at[buffer];
    dh_str s = DH_STR_INIT;
    if (b->kind == DH_BUF_ACT || b->kind == DH_BUF_IN || b->kind == DH_BUF_OUT) {
        const dh_graph *g = program->graphs.at[program->blocks.at[b->owner].graph];
        dh_str_printf(&s, "%s (", g->tensors.at[b->tensor].name);
        describe_place(program, b->owner, b->mb, &s);
        dh_str_printf(&s, ")");
    } else if (b->kind == DH_BUF_WORK) {
        dh_str_printf(&s, "scratch of instruction %u", b->owner);
    } else if (b->kind == DH_BUF_STATE) {
        dh_str_printf(&s, "state %s", state_names[b->owner]);
        if (b->mb >= 0) dh_str_printf(&s, " of micro-batch %d", b->mb);
    } else if (b->kind == DH_BUF_KV) {
        dh_str_printf(&s, "kv cache of layer %u", b->owner);
    } else {
        dh_str_printf(&s, "%s of ", kind_names[b->kind]);
        describe_flat(program, b->owner, &s);
        if (b->mb >= 0) dh_str_printf(&s, " of micro-batch %d", b->mb);
    }
    return finish(&s, buf, cap);
}

const char *dh_instr_describe(const dh_program *program, uint32_t instr, char *buf, size_t cap)
{
    const dh_instr *i = &program->instrs.at[instr];
    const dh_graph *g = dh_instr_graph(program, i);
    const dh_op *op = dh_instr_op(program, i);
    dh_str s = DH_STR_INIT;
    dh_str_printf(&s, "instruction %u %s", instr, dh_op_info_of(op->type)->name);
    if (op->out[0] != DH_NONE) dh_str_printf(&s, " -> %s", g->tensors.at[op->out[0]].name);
    if (op->flat != DH_NONE && op->flat < program->flats.n) {
        dh_str_printf(&s, " of ");
        describe_flat(program, op->flat, &s);
    }
    dh_str_printf(&s, " (");
    describe_place(program, i->block, i->mb, &s);
    dh_str_printf(&s, ", %s stream, rank %lld)", dh_stream_name(i->stream),
                  (long long)program->rank);
    return finish(&s, buf, cap);
}

/* ---- listing -------------------------------------------------------------------------------- */

static void print_operand(const dh_program *p, const dh_operand *o, dh_str *out)
{
    if (o->buffer == DH_NONE) {
        dh_str_printf(out, " -");
        return;
    }
    const dh_buffer *b = &p->buffers.at[o->buffer];
    dh_str_printf(out, " b%u[%llu+%llu]", o->buffer, (unsigned long long)(b->offset + o->byte0),
                  (unsigned long long)o->n_bytes);
}

static void print_instr(const dh_program *p, uint32_t id, dh_str *out)
{
    const dh_instr *i = &p->instrs.at[id];
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, i)->type);
    char text[256];
    dh_str_printf(out, "%s\n    in", dh_instr_describe(p, id, text, sizeof text));
    for (int k = 0; k < info->n_in; k++) print_operand(p, dh_instr_operand(p, i, k), out);
    dh_str_printf(out, "  out");
    for (int k = 0; k < info->n_out; k++) {
        print_operand(p, dh_instr_operand(p, i, info->n_in + k), out);
        if (i->accumulate >> k & 1) dh_str_printf(out, "+");
    }
    if (i->n_waits) dh_str_printf(out, "  wait");
    for (uint32_t k = 0; k < i->n_waits; k++) {
        const dh_wait *wait = &p->waits.at[i->wait0 + k];
        dh_str_printf(out, " %u", wait->instr);
        if (wait->part != DH_NONE) dh_str_printf(out, ".%u", wait->part);
    }
    dh_str_printf(out, "\n");
}

dh_status dh_program_print(dh_ctx *ctx, const dh_program *program, dh_str *out)
{
    dh_str_printf(out, "program rank %lld: %zu instructions, %zu buffers, slab %llu bytes\n",
                  (long long)program->rank, program->instrs.n, program->buffers.n,
                  (unsigned long long)program->slab_bytes);
    char text[256];
    for (uint32_t i = 0; i < program->buffers.n; i++) {
        const dh_buffer *b = &program->buffers.at[i];
        dh_str_printf(out, "b%u [%llu, %llu) %s\n", i, (unsigned long long)b->offset,
                      (unsigned long long)(b->offset + b->n_bytes),
                      dh_buffer_describe(program, i, text, sizeof text));
    }
    for (uint32_t i = 0; i < program->instrs.n; i++) print_instr(program, i, out);
    return out->failed ? dh_no_memory(ctx) : DH_OK;
}

/* ---- digest --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t digest, uint64_t value)
{
    return dh_mix64(digest ^ value) + value;
}

static uint64_t mix_op(uint64_t d, const dh_graph *g, const dh_op *op)
{
    const dh_op_info *info = dh_op_info_of(op->type);
    d = mix(d, (uint64_t)op->type << 32 | (uint32_t)op->group);
    if (op->parts > 1) d = mix(d, (uint64_t)op->parts << 32 | (uint32_t)op->part0);
    if (op->by > 0) d = mix(d, (uint64_t)op->by);
    if (op->blocks > 0) d = mix(d, (uint64_t)op->blocks);
    if (op->columns > 0)
        d = mix(mix(mix(d, (uint64_t)op->from), (uint64_t)op->to), (uint64_t)op->columns);
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        const uint32_t id = k < info->n_in ? op->in[k] : op->out[k - info->n_in];
        if (id == DH_NONE) continue;
        const dh_tensor *t = &g->tensors.at[id];
        for (int a = 0; a < t->ndim; a++) d = mix(d, (uint64_t)t->shape[a]);
        d = mix(d, (uint64_t)t->dtype);
    }
    return d;
}

static uint64_t mix_wait(uint64_t d, const dh_wait *wait)
{
    d = mix(d, wait->instr);
    return wait->part == DH_NONE ? d : mix(d, (uint64_t)wait->part << 32);
}

uint64_t dh_program_bytes(const dh_program *p)
{
    return p->instrs.n * sizeof *p->instrs.at + p->operands.n * sizeof *p->operands.at +
           p->waits.n * sizeof *p->waits.at + p->buffers.n * sizeof *p->buffers.at +
           p->blocks.n * sizeof *p->blocks.at + p->params.n * sizeof *p->params.at +
           p->homes.n * sizeof *p->homes.at + p->ranges.n * sizeof *p->ranges.at;
}

uint64_t dh_program_digest(const dh_program *p)
{
    uint64_t d = mix(p->slab_bytes, p->instrs.n);
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op *op = dh_instr_op(p, instr);
        const dh_op_info *info = dh_op_info_of(op->type);
        d = mix_op(d, dh_instr_graph(p, instr), op);
        d = mix(d, (uint64_t)instr->stream << 40 | (uint64_t)instr->accumulate << 32 |
                       (uint32_t)instr->mb);
        for (uint32_t w = 0; w < instr->n_waits; w++)
            d = mix_wait(d, &p->waits.at[instr->wait0 + w]);
        for (int k = 0; k < info->n_in + info->n_out; k++) {
            const dh_operand *o = dh_instr_operand(p, instr, k);
            if (o->buffer == DH_NONE) continue;
            d = mix(d, p->buffers.at[o->buffer].offset + o->byte0);
            d = mix(d, o->n_bytes);
        }
    }
    return d;
}
