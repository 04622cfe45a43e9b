/* Emission of blocks and instructions. See emit.h. */
#include "program/emitter.h"
#include "program/program_spec.h"

#include <stdlib.h>
#include <string.h>

/* ---- life cycle ------------------------------------------------------------------------ */

dh_status dh_emitter_create(dh_ctx *ctx, const dh_program_spec *spec, dh_emitter **emitter)
{
    dh_emitter *e = calloc(1, sizeof *e);
    dh_program *p = calloc(1, sizeof *p);
    if (p) p->arena = dh_arena_create();
    if (!e || !p || !p->arena) {
        free(e);
        dh_program_destroy(p);
        return dh_no_memory(ctx);
    }
    p->mode = spec->mode;
    p->dtype = spec->recipe.dtype;
    p->mesh = spec->recipe.mesh;
    p->rank = spec->rank;
    p->part = spec->part;
    p->adds = spec->adds;
    p->goes_on = spec->goes_on;
    p->persistent_bytes = spec->base;
    p->n_micro = spec->recipe.n_micro;
    p->steps_by_own = dh_recipe_is_fused(&spec->recipe) && !spec->recipe.clips;
    p->mirrored =
        spec->recipe.schedule && dh_schedule_copies_of(spec->recipe.schedule) == DH_COPIES_MIRRORED;
    p->result.buffer = DH_NONE;
    e->spec = spec;
    e->program = p;
    for (int g = 0; g < DH_N_GROUPS; g++)
        e->stream_of[g] = (uint8_t)dh_stream_of_group((dh_group_kind)g, &p->mesh, p->rank);
    memset(e->states, 0xff, sizeof e->states);
    *emitter = e;
    return DH_OK;
}

void dh_emitter_destroy(dh_emitter *emitter)
{
    if (!emitter) return;
    for (size_t b = 0; b < emitter->frames.n; b++) {
        for (size_t i = 0; i < emitter->n_frames; i++) free(emitter->frames.at[b][i]);
        free(emitter->frames.at[b]);
    }
    dh_vec_fini(&emitter->frames);
    free(emitter->inputs);
    free(emitter->params);
    free(emitter->places);
    free(emitter->place0);
    dh_vec_fini(&emitter->ranges);
    dh_vec_fini(&emitter->range0);
    dh_vec_fini(&emitter->param0);
    dh_vec_fini(&emitter->done);
    dh_vec_fini(&emitter->ends);
    dh_vec_fini(&emitter->gathers);
    dh_vec_fini(&emitter->whole);
    dh_vec_fini(&emitter->moments);
    dh_vec_fini(&emitter->kv);
    dh_vec_fini(&emitter->routers);
    free(emitter);
}

dh_program *dh_emitter_program(dh_emitter *emitter)
{
    return emitter->program;
}

dh_shard dh_emit_shard(const dh_emitter *emitter)
{
    const dh_program *p = emitter->program;
    const dh_coord c = dh_mesh_coord(&p->mesh, p->rank);
    return (dh_shard){.tp = p->mesh.tp,
                      .tp_rank = c.tp,
                      .ep = p->mesh.ep,
                      .ep_rank = c.ep,
                      .whole_experts = p->mesh.whole_experts};
}

const dh_graph *dh_emit_graph_of(const dh_emitter *e, uint32_t block)
{
    return e->program->graphs.at[e->program->blocks.at[block].graph];
}

dh_status dh_emit_buffer(dh_ctx *ctx, dh_emitter *e, const dh_buffer *buffer, uint32_t *id)
{
    if (!dh_vec_push(&e->program->buffers, *buffer) || !dh_vec_push(&e->range0, DH_NONE))
        return dh_no_memory(ctx);
    *id = (uint32_t)(e->program->buffers.n - 1);
    return DH_OK;
}

/* ---- graphs, blocks, parameters -------------------------------------------------------------- */

dh_status dh_emit_add_graph(dh_ctx *ctx, dh_emitter *e, dh_graph *graph, uint32_t *id)
{
    if (!dh_vec_push(&e->program->graphs, graph)) {
        dh_graph_destroy(graph);
        return dh_no_memory(ctx);
    }
    *id = (uint32_t)(e->program->graphs.n - 1);
    return e->spec->outline ? DH_OK : dh_graph_check(ctx, graph); /* an outline is never run */
}

/* A parameter of another block, of the same copy of the model. */
static uint32_t find_param(const dh_program *p, const char *name, bool again)
{
    for (uint32_t i = 0; i < p->params.n; i++)
        if (p->homes.at[i].block < p->blocks.n &&
            p->blocks.at[p->homes.at[i].block].again == again &&
            strcmp(p->params.at[i].name, name) == 0)
            return i;
    return DH_NONE;
}

/* A tied head finds the embedding's, if that is here, a layer its experts'. */
static dh_status add_param(dh_ctx *ctx, dh_program *p, dh_block_kind kind, const dh_param *param,
                           bool again, uint32_t *id)
{
    *id = param->kind == kind ? DH_NONE : find_param(p, param->name, again);
    if (*id != DH_NONE) return DH_OK;
    dh_param_home home = {.block = (uint32_t)p->blocks.n};
    memset(home.at, 0xff, sizeof home.at);
    if (!dh_vec_push(&p->params, *param) || !dh_vec_push(&p->homes, home)) return dh_no_memory(ctx);
    *id = (uint32_t)(p->params.n - 1);
    return DH_OK;
}

dh_status dh_emit_add_block(dh_ctx *ctx, dh_emitter *e, uint32_t graph, int layer, uint32_t *id)
{
    dh_program *p = e->program;
    dh_block block = {
        .graph = graph, .layer = layer, .flat = DH_NONE, .of = DH_NONE, .again = e->again};
    dh_block_kind kind = p->graphs.at[graph]->kind;
    if (!dh_vec_push(&e->param0, (uint32_t)p->params.n)) return dh_no_memory(ctx);
    for (uint32_t which = 0; which < DH_MAX_BLOCK_PARAMS; which++) {
        dh_param param;
        block.params[which] = DH_NONE;
        if (dh_param_describe(&e->spec->recipe.model, kind, layer, which, &param) &&
            dh_param_shard(&param, dh_emit_shard(e), &param))
            DH_TRY(add_param(ctx, p, kind, &param, e->again, &block.params[which]));
    }
    if (!dh_vec_push(&p->blocks, block)) return dh_no_memory(ctx);
    *id = (uint32_t)(p->blocks.n - 1);
    return DH_OK;
}

void dh_emit_again(dh_emitter *e, bool again)
{
    e->again = again;
}

dh_block *dh_emit_block(dh_emitter *e, uint32_t id)
{
    return &e->program->blocks.at[id];
}

dh_status dh_emit_range(dh_ctx *ctx, dh_emitter *e, dh_operand operand, uint32_t *range)
{
    *range = DH_NONE;
    if (operand.buffer == DH_NONE) return DH_OK;
    if (!dh_vec_push(&e->program->ranges, operand)) return dh_no_memory(ctx);
    *range = (uint32_t)(e->program->ranges.n - 1);
    return DH_OK;
}

/* ---- instructions --------------------------------------------------------------------------- */

static dh_status add_workspace(dh_ctx *ctx, dh_emitter *e, const dh_graph *g, const dh_op *op,
                               dh_instr *instr, uint32_t id)
{
    instr->work = DH_NONE;
    const size_t n_bytes = dh_backend_workspace(e->spec->recipe.backend, g, op);
    if (n_bytes == 0) return DH_OK;
    if (n_bytes == DH_NO_WORKSPACE) return dh_no_memory(ctx);
    dh_buffer b = {.kind = DH_BUF_WORK,
                   .n_bytes = n_bytes,
                   .owner = id,
                   .tensor = DH_NONE,
                   .mb = -1,
                   .alias = DH_NONE};
    return dh_emit_buffer(ctx, e, &b, &instr->work);
}

static uint8_t stream_of(const dh_emitter *e, const dh_op *op, const dh_op_info *info)
{
    return info->resource == DH_RES_COMM ? e->stream_of[op->group] : (uint8_t)DH_STREAM_COMPUTE;
}

/* An operand, and the bytes that order its use: its own, or all of a piece of matrices for a shard
 * of it. The place of a shard then does not show in the waits. So data-parallel ranks differ in
 * nothing else, and a rank whose shard is padding alone waits too. */
static dh_status find_operand(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb,
                              uint32_t tensor, dh_operand *operand, dh_operand *scope)
{
    DH_TRY(dh_emit_operand(ctx, e, block, mb, tensor, operand));
    *scope = *operand;
    if (tensor == DH_NONE) return DH_OK;
    const dh_tensor *t = &dh_emit_graph_of(e, block)->tensors.at[tensor];
    if (t->kind == DH_TENSOR_RANGE) *scope = dh_program_piece(e->program, *operand);
    if (t->base == DH_NONE) return DH_OK;
    if (t->kind != DH_TENSOR_PARAM && t->kind != DH_TENSOR_GRAD) return DH_OK;
    return dh_emit_cut_param(ctx, e, e->program->blocks.at[block].params[t->which], operand);
}

/* Whether an output that sums finds something there: of this program, or of the one before. */
static bool finds_sum(dh_emitter *e, const dh_operand *operand)
{
    if (dh_emit_written_before(e, operand)) return true;
    return e->program->adds && operand->buffer != DH_NONE &&
           dh_buffer_is_persistent(e->program->buffers.at[operand->buffer].kind);
}

dh_status dh_emit_op(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t op_id)
{
    dh_program *p = e->program;
    const dh_graph *g = dh_emit_graph_of(e, block);
    const dh_op *op = &g->ops.at[op_id];
    const dh_op_info *info = dh_op_info_of(op->type);
    uint32_t id = (uint32_t)p->instrs.n;
    dh_instr instr = {.block = block,
                      .op = op_id,
                      .mb = mb,
                      .stream = stream_of(e, op, info),
                      .operand0 = (uint32_t)p->operands.n,
                      .part0 = p->n_parts};
    dh_operand operands[2 * DH_MAX_OPERANDS], scopes[2 * DH_MAX_OPERANDS];
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        uint32_t tensor = k < info->n_in ? op->in[k] : op->out[k - info->n_in];
        DH_TRY(find_operand(ctx, e, block, mb, tensor, &operands[k], &scopes[k]));
        if (!dh_vec_push(&p->operands, operands[k])) return dh_no_memory(ctx);
    }
    for (int k = 0; k < info->n_out; k++) {
        if (info->out[k].accumulate && finds_sum(e, &operands[info->n_in + k]))
            instr.accumulate |= (uint8_t)(1u << k);
    }
    DH_TRY(add_workspace(ctx, e, g, op, &instr, id));
    DH_TRY(dh_emit_waits(ctx, e, info, scopes, &instr));
    if (dh_op_n_parts(op) > 1) p->n_parts += dh_op_n_parts(op);
    return dh_vec_push(&p->instrs, instr) ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_emit_phases(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, unsigned phases)
{
    const dh_graph *g = dh_emit_graph_of(e, block);
    for (uint32_t i = 0; i < g->ops.n; i++)
        if (phases >> g->ops.at[i].phase & 1) DH_TRY(dh_emit_op(ctx, e, block, mb, i));
    return DH_OK;
}
