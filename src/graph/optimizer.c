/* Graphs outside the model: the optimizer, reductions of gradients, stage links.
 *
 * All work on ranges: runs of consecutive elements across the parameters of a flat, so
 * that one operator (and one transfer) serves one block or several. A range of matrices
 * is written as a [1, n] matrix, one of vectors as a vector: weight decay looks at
 * the number of axes, as it does in every published recipe. */
#include "config/mesh.h"
#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct builder {
    dh_graph *graph;
    bool failed;
} builder;

static dh_status start(dh_ctx *ctx, builder *b, dh_block_kind kind, dh_dtype dtype)
{
    b->graph = calloc(1, sizeof *b->graph);
    if (!b->graph) return dh_fail(ctx, DH_ENOMEM, "out of memory building a graph");
    dh_graph *g = b->graph;
    g->kind = kind;
    g->mode = DH_MODE_TRAIN;
    g->dtype = dtype;
    g->x_in = g->x_out = g->dx_out = g->dx_in = g->loss_x = g->loss_dx = DH_NONE;
    return DH_OK;
}

static dh_status finish(dh_ctx *ctx, builder *b, dh_graph **graph)
{
    if (b->failed) {
        dh_graph_destroy(b->graph);
        return dh_fail(ctx, DH_ENOMEM, "out of memory building a graph");
    }
    *graph = b->graph;
    return DH_OK;
}

static uint32_t add(builder *b, const dh_tensor *tensor)
{
    uint32_t id = dh_graph_add_tensor(b->graph, tensor);
    b->failed |= id == DH_NONE;
    return id;
}

static uint32_t add_range(builder *b, const char *name, dh_dtype dtype, uint32_t range, int64_t n,
                          bool matrix)
{
    if (range == DH_NONE) return DH_NONE;
    dh_tensor t = {.kind = DH_TENSOR_RANGE,
                   .dtype = dtype,
                   .ndim = matrix ? 2 : 1,
                   .base = DH_NONE,
                   .which = range};
    t.shape[0] = matrix ? 1 : n;
    t.shape[1] = matrix ? n : 0;
    snprintf(t.name, sizeof t.name, "%s", name);
    return add(b, &t);
}

static uint32_t add_state(builder *b, const char *name, dh_state which, int64_t rows, int64_t n)
{
    dh_tensor t = {.kind = DH_TENSOR_STATE,
                   .dtype = DH_F64,
                   .ndim = 2,
                   .shape = {rows, n},
                   .base = DH_NONE,
                   .which = which};
    snprintf(t.name, sizeof t.name, "%s", name);
    return add(b, &t);
}

static void add_op(builder *b, dh_op_type type, dh_phase phase, uint32_t flat, int32_t group,
                   const uint32_t *in, const uint32_t *out)
{
    uint32_t id = dh_graph_add_op(b->graph, type, phase, in, out);
    b->failed |= id == DH_NONE;
    if (id == DH_NONE) return;
    b->graph->ops.at[id].flat = flat;
    b->graph->ops.at[id].group = group;
}
#define IDS(...) ((const uint32_t[DH_MAX_OPERANDS]){__VA_ARGS__})

/* ---- optimizer --------------------------------------------------------------------------- */

static uint32_t view_of(builder *b, uint32_t base, int64_t row)
{
    if (b->failed) return DH_NONE;
    dh_tensor t = b->graph->tensors.at[base];
    t.base = base;
    t.row0 = row;
    t.shape[0] = 1;
    return add(b, &t);
}

static uint32_t clip_factor(builder *b, const dh_opt_region *regions, size_t n,
                            const uint32_t *grads, int32_t norm_group)
{
    int64_t n_counted = 0;
    for (size_t i = 0; i < n; i++) n_counted += regions[i].counts;
    /* A stage may have nothing that counts: the head of a tied model alone. */
    uint32_t sums =
        n_counted ? add_state(b, "sq", DH_STATE_SQSUM, n_counted, DH_SQSUM_DIGITS) : DH_NONE;
    int64_t row = 0;
    for (size_t i = 0; i < n; i++)
        if (regions[i].counts)
            add_op(b, DH_OP_SQSUM, DH_PHASE_OPT, regions[i].flat, -1, IDS(grads[i]),
                   IDS(view_of(b, sums, row++)));
    uint32_t total = add_state(b, "total", DH_STATE_SQTOTAL, 1, DH_SQSUM_DIGITS);
    uint32_t norm = add_state(b, "norm", DH_STATE_NORM, 1, 2);
    add_op(b, DH_OP_SUM, DH_PHASE_OPT, DH_NONE, -1, IDS(sums), IDS(total));
    if (norm_group >= 0)
        add_op(b, DH_OP_ALL_REDUCE, DH_PHASE_OPT, DH_NONE, norm_group, IDS(total), IDS(total));
    add_op(b, DH_OP_CLIP, DH_PHASE_OPT, DH_NONE, -1, IDS(total), IDS(norm));
    return norm;
}

static void update(builder *b, const dh_opt_region *r, uint32_t grad, uint32_t norm, dh_dtype dtype)
{
    uint32_t p = add_range(b, "p", DH_F32, r->master, r->n, r->decay);
    uint32_t m = add_range(b, "m", DH_F32, r->adam_m, r->n, r->decay);
    uint32_t v = add_range(b, "v", DH_F32, r->adam_v, r->n, r->decay);
    uint32_t copy = add_range(b, "c", dtype, r->copy, r->n, r->decay);
    add_op(b, DH_OP_ADAMW, DH_PHASE_OPT, r->flat, -1, IDS(grad, norm), IDS(p, m, v, copy));
    if (r->gather == DH_NONE) return;
    uint32_t whole =
        add_range(b, "all", copy == DH_NONE ? DH_F32 : dtype, r->gather, r->n_gathered, r->decay);
    add_op(b, DH_OP_ALL_GATHER, DH_PHASE_OPT, r->flat, r->group, IDS(copy == DH_NONE ? p : copy),
           IDS(whole));
}

dh_status dh_graph_build_optimizer(dh_ctx *ctx, const dh_opt_region *regions, size_t n,
                                   dh_dtype dtype, int32_t norm_group, dh_graph **graph)
{
    builder b = {0};
    uint32_t *grads = calloc(n + 1, sizeof *grads);
    if (!grads) return dh_fail(ctx, DH_ENOMEM, "out of memory building the optimizer");
    dh_status st = start(ctx, &b, DH_BLOCK_OPT, dtype);
    if (st == DH_OK) {
        for (size_t i = 0; i < n; i++)
            grads[i] = add_range(&b, "g", DH_F32, regions[i].grad, regions[i].n, regions[i].decay);
        uint32_t norm = clip_factor(&b, regions, n, grads, norm_group);
        for (size_t i = 0; i < n; i++) update(&b, &regions[i], grads[i], norm, dtype);
        st = finish(ctx, &b, graph);
    }
    free(grads);
    return st;
}

/* ---- reductions of gradients ---------------------------------------------------------------- */

dh_status dh_graph_build_reductions(dh_ctx *ctx, const dh_grad_reduction *list, size_t n,
                                    dh_graph **graph)
{
    builder b = {0};
    DH_TRY(start(ctx, &b, DH_BLOCK_GRADS, DH_F32));
    for (size_t i = 0; i < n; i++) {
        const dh_grad_reduction *r = &list[i];
        const uint32_t all = add_range(&b, "g", DH_F32, r->range, r->n, false);
        const uint32_t addend = add_range(&b, "g.tied", DH_F32, r->addend, r->n, false);
        const uint32_t own = add_range(&b, "g.own", DH_F32, r->shard, r->n_shard, false);
        add_op(&b, r->type, DH_PHASE_W, DH_NONE, r->group, IDS(all, addend),
               IDS(own == DH_NONE ? all : own));
    }
    return finish(ctx, &b, graph);
}

/* ---- parameters made whole ------------------------------------------------------------------- */

dh_status dh_graph_build_gather(dh_ctx *ctx, const dh_gather *gather, dh_graph **graph)
{
    builder b = {0};
    DH_TRY(start(ctx, &b, DH_BLOCK_GATHER, gather->dtype));
    const dh_tensor whole = {.name = "whole",
                             .kind = DH_TENSOR_ACT,
                             .dtype = gather->dtype,
                             .ndim = 2,
                             .shape = {gather->n_pieces, gather->n_piece},
                             .base = DH_NONE,
                             .which = DH_NONE};
    const uint32_t id = add(&b, &whole);
    for (int64_t k = 0; k < gather->n_pieces; k++) {
        const uint32_t shard =
            add_range(&b, "own", gather->dtype, gather->shards[k], gather->n_shard, false);
        const uint32_t piece = gather->n_pieces == 1 ? id : view_of(&b, id, k);
        add_op(&b, DH_OP_ALL_GATHER, gather->phase, DH_NONE, gather->group, IDS(shard), IDS(piece));
    }
    add_op(&b, DH_OP_RELEASE, gather->phase, DH_NONE, -1, IDS(DH_NONE), IDS(id));
    b.graph->x_out = id;
    return finish(ctx, &b, graph);
}

/* ---- links ---------------------------------------------------------------------------------- */

/* What the micro-batch's routers have chosen so far travels with it. */
static uint32_t add_router(builder *b, int64_t n_experts)
{
    dh_tensor t = {.name = "router",
                   .kind = DH_TENSOR_STATE,
                   .dtype = DH_F64,
                   .ndim = 2,
                   .shape = {2, n_experts},
                   .base = DH_NONE,
                   .which = DH_STATE_ROUTER};
    return add(b, &t);
}

dh_status dh_graph_build_link(dh_ctx *ctx, bool send, int64_t rows, int64_t width, dh_dtype dtype,
                              int64_t n_experts, dh_graph **graph)
{
    builder b = {0};
    DH_TRY(start(ctx, &b, DH_BLOCK_LINK, dtype));
    dh_tensor x = {.name = "x",
                   .kind = DH_TENSOR_ACT,
                   .dtype = dtype,
                   .ndim = 2,
                   .shape = {rows, width},
                   .axis = {DH_AXIS_TOKENS, DH_AXIS_WIDTH},
                   .base = DH_NONE,
                   .which = DH_NONE};
    uint32_t id = add(&b, &x);
    const dh_op_type type = send ? DH_OP_SEND : DH_OP_RECV;
    add_op(&b, type, DH_PHASE_F, DH_NONE, DH_GROUP_PP, IDS(id), IDS(id));
    if (n_experts > 0) {
        uint32_t router = add_router(&b, n_experts);
        add_op(&b, type, DH_PHASE_F, DH_NONE, DH_GROUP_PP, IDS(router), IDS(router));
    }
    *(send ? &b.graph->x_in : &b.graph->x_out) = id;
    return finish(ctx, &b, graph);
}
