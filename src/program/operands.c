/* Which buffer, and which bytes of it, a block's tensor is. See emit.h. */
#include "program/emitter.h"

#include <stdlib.h>
#include <string.h>

static dh_status frame_of(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t **frame)
{
    while (e->frames.n <= block) {
        uint32_t **frames = calloc(e->n_frames + 1, sizeof *frames);
        if (!frames) return dh_no_memory(ctx);
        if (!dh_vec_push(&e->frames, frames)) {
            free(frames);
            return dh_no_memory(ctx);
        }
    }
    uint32_t **at = &e->frames.at[block][mb < 0 ? e->n_frames - 1 : (size_t)mb];
    if (!*at) {
        size_t n = e->program->graphs.at[e->program->blocks.at[block].graph]->tensors.n;
        *at = malloc((n + 1) * sizeof **at);
        if (!*at) return dh_no_memory(ctx);
        memset(*at, 0xff, (n + 1) * sizeof **at);
    }
    *frame = *at;
    return DH_OK;
}

static dh_status act_buffer(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t tensor,
                            uint32_t *at)
{
    if (*at != DH_NONE) return DH_OK;
    const dh_graph *g = e->program->graphs.at[e->program->blocks.at[block].graph];
    dh_buffer b = {.kind = DH_BUF_ACT,
                   .n_bytes = (uint64_t)dh_tensor_bytes(&g->tensors.at[tensor]),
                   .owner = block,
                   .tensor = tensor,
                   .mb = mb,
                   .alias = DH_NONE};
    return dh_emit_buffer(ctx, e, &b, at);
}

/* A matrix that is stored as a shard: where its flat is whole. */
static dh_status gathered_operand(dh_ctx *ctx, dh_emitter *e, uint32_t param, dh_operand *operand)
{
    const dh_program *p = e->program;
    const dh_param_home *home = &p->homes.at[param];
    const uint32_t flat = p->blocks.at[home->block].flat;
    uint32_t *frame;
    DH_CHECK(flat < e->whole.n && e->whole.at[flat].block != DH_NONE,
             "parameter %s is used where it is not gathered", p->params.at[param].name);
    const dh_whole at = e->whole.at[flat];
    const dh_graph *g = dh_emit_graph_of(e, at.block);
    DH_TRY(frame_of(ctx, e, at.block, at.mb, &frame));
    DH_TRY(act_buffer(ctx, e, at.block, at.mb, g->x_out, &frame[g->x_out]));
    const uint64_t item = dh_dtype_bytes(g->dtype);
    *operand = (dh_operand){frame[g->x_out], (uint64_t)home->first * item,
                            (uint64_t)dh_param_elements(&p->params.at[param]) * item};
    return DH_OK;
}

static dh_operand param_operand(const dh_emitter *e, const dh_block *block, const dh_tensor *t)
{
    uint32_t param = block->params[t->which];
    DH_CHECK(param != DH_NONE, "tensor %s: block has no such parameter", t->name);
    const dh_operand *at = e->program->homes.at[param].at;
    const uint32_t tied = e->states[DH_STATE_TIED_GRAD];
    const bool head = e->program->graphs.at[block->graph]->kind == DH_BLOCK_HEAD;
    if (t->kind == DH_TENSOR_GRAD && tied != DH_NONE && head && t->which == DH_PARAM_HEAD_W)
        return (dh_operand){.buffer = tied, .n_bytes = at[DH_BUF_GRAD].n_bytes};
    if (t->kind == DH_TENSOR_GRAD) return at[DH_BUF_GRAD];
    return at[DH_BUF_COPY].buffer != DH_NONE ? at[DH_BUF_COPY] : at[DH_BUF_MASTER];
}

static dh_operand state_operand(const dh_emitter *e, const dh_block *block, int32_t mb,
                                const dh_tensor *t)
{
    return (dh_operand){.buffer = t->which == DH_STATE_KV_CACHE ? e->kv.at[block->layer]
                                  : t->which == DH_STATE_ROUTER ? e->routers.at[mb]
                                                                : e->states[t->which],
                        .n_bytes = (uint64_t)dh_tensor_bytes(t)};
}

dh_status dh_emit_operand(dh_ctx *ctx, dh_emitter *e, uint32_t block_id, int32_t mb,
                          uint32_t tensor, dh_operand *operand)
{
    *operand = (dh_operand){.buffer = DH_NONE};
    if (tensor == DH_NONE) return DH_OK;
    const dh_block *block = &e->program->blocks.at[block_id];
    const dh_graph *g = e->program->graphs.at[block->graph];
    const dh_tensor *t = &g->tensors.at[tensor];
    uint32_t storage = t->base == DH_NONE ? tensor : t->base;
    uint32_t *frame;
    DH_TRY(frame_of(ctx, e, block_id, mb, &frame));
    operand->n_bytes = (uint64_t)dh_tensor_bytes(t);
    switch (t->kind) {
    case DH_TENSOR_ACT:
        DH_TRY(act_buffer(ctx, e, block_id, mb, storage, &frame[storage]));
        operand->buffer = frame[storage];
        break;
    case DH_TENSOR_INPUT:
        DH_TRY(act_buffer(ctx, e, block_id, mb, storage, &e->inputs[mb][t->which]));
        operand->buffer = e->inputs[mb][t->which];
        break;
    case DH_TENSOR_PARAM:
    case DH_TENSOR_GRAD:
        *operand = dh_program_of_micro(e->program, param_operand(e, block, t), mb);
        if (t->kind == DH_TENSOR_PARAM && operand->buffer == DH_NONE)
            DH_TRY(gathered_operand(ctx, e, block->params[t->which], operand));
        break;
    case DH_TENSOR_RANGE:
        *operand = dh_program_of_micro(e->program, e->program->ranges.at[t->which], mb);
        break;
    default:
        *operand = state_operand(e, block, mb, t);
        break;
    }
    DH_CHECK(operand->buffer != DH_NONE, "tensor %s has no buffer", t->name);
    if (t->base != DH_NONE) {
        operand->n_bytes = (uint64_t)dh_tensor_bytes(t);
        operand->byte0 += (uint64_t)t->row0 * (operand->n_bytes / (uint64_t)t->shape[0]);
    }
    return DH_OK;
}

static dh_status bind(dh_ctx *ctx, dh_emitter *e, uint32_t from, uint32_t from_tensor, uint32_t to,
                      uint32_t to_tensor, int32_t mb)
{
    uint32_t *source, *target;
    DH_TRY(frame_of(ctx, e, from, mb, &source));
    DH_TRY(frame_of(ctx, e, to, mb, &target));
    DH_TRY(act_buffer(ctx, e, from, mb, from_tensor, &source[from_tensor]));
    target[to_tensor] = source[from_tensor];
    return DH_OK;
}

/* A link has one tensor for either direction of travel. */
static uint32_t leaving(const dh_graph *g, bool forward)
{
    return g->kind == DH_BLOCK_LINK || forward ? g->x_out : g->dx_in;
}

static uint32_t entering(const dh_graph *g, bool forward)
{
    return g->kind == DH_BLOCK_LINK || forward ? g->x_in : g->dx_out;
}

dh_status dh_emit_hand_on(dh_ctx *ctx, dh_emitter *e, uint32_t from, int32_t from_mb, uint32_t to,
                          int32_t to_mb)
{
    const uint32_t leaves = dh_emit_graph_of(e, from)->x_out;
    uint32_t *source, *target;
    DH_TRY(frame_of(ctx, e, from, from_mb, &source));
    DH_TRY(frame_of(ctx, e, to, to_mb, &target));
    target[dh_emit_graph_of(e, to)->x_in] = source[leaves];
    return DH_OK;
}

dh_status dh_emit_bind(dh_ctx *ctx, dh_emitter *e, uint32_t from, uint32_t to, int32_t mb,
                       bool forward)
{
    return bind(ctx, e, from, leaving(dh_emit_graph_of(e, from), forward), to,
                entering(dh_emit_graph_of(e, to), forward), mb);
}
