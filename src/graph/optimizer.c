/* Graphs outside the model: the optimizer, reductions of gradients, stage links.
 *
 * All work on ranges: runs of consecutive elements across the parameters of a flat. So one operator
 * (and one transfer) serves one block or several. A range of matrices is written as a [1, n]
 * matrix, one of vectors as a vector. Weight decay looks at the number of axes, as it does in every
 * published recipe. */
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
    if (!b->graph) return dh_no_memory(ctx);
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
        return dh_no_memory(ctx);
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
    dh_tensor_set_name(&t, name);
    return add(b, &t);
}

/* [rows, n]. which: DH_NONE of a value. */
static uint32_t add_matrix(builder *b, const char *name, dh_tensor_kind kind, dh_dtype dtype,
                           uint32_t which, int64_t rows, int64_t n)
{
    dh_tensor t = {.kind = kind,
                   .dtype = dtype,
                   .ndim = 2,
                   .shape = {rows, n},
                   .base = DH_NONE,
                   .which = which};
    dh_tensor_set_name(&t, name);
    return add(b, &t);
}

static uint32_t add_state(builder *b, const char *name, dh_state which, int64_t rows, int64_t n)
{
    return add_matrix(b, name, DH_TENSOR_STATE, DH_F64, which, rows, n);
}

static uint32_t add_rows(builder *b, const char *name, dh_dtype dtype, int64_t rows, int64_t n)
{
    return add_matrix(b, name, DH_TENSOR_ACT, dtype, DH_NONE, rows, n);
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

static uint32_t views_of(builder *b, uint32_t base, int64_t row, int64_t n)
{
    if (b->failed) return DH_NONE;
    dh_tensor t = b->graph->tensors.at[base];
    t.base = base;
    t.row0 = row;
    t.shape[0] = n;
    return add(b, &t);
}

static uint32_t view_of(builder *b, uint32_t base, int64_t row)
{
    return views_of(b, base, row, 1);
}

/* ---- shards made whole ---------------------------------------------------------------------- */

/* An all-gather of shards of n elements, into rows of `whole` from `row` on. */
typedef struct gathering {
    dh_phase phase;
    uint32_t flat;
    int32_t group;
    dh_gather_stages stages;
    int64_t n;
    dh_dtype dtype;
} gathering;

/* Of a piece: its nodes' shards. */
static int64_t rows_of_piece(const dh_gather_stages *stages)
{
    return stages->n_nodes > 0 ? stages->n_nodes : 1;
}

static uint32_t row_of(builder *b, uint32_t rows, int64_t row)
{
    return b->failed || b->graph->tensors.at[rows].shape[0] == 1 ? rows : view_of(b, rows, row);
}

static void gather_shards(builder *b, const gathering *g, uint32_t own, uint32_t whole, int64_t row)
{
    const int64_t n_nodes = g->stages.n_nodes;
    if (n_nodes == 0) {
        add_op(b, DH_OP_ALL_GATHER, g->phase, g->flat, g->group, IDS(own),
               IDS(row_of(b, whole, row)));
        return;
    }
    const uint32_t nodes = add_rows(b, "nodes", g->dtype, n_nodes, g->n);
    add_op(b, DH_OP_ALL_GATHER, g->phase, g->flat, g->stages.cross, IDS(own), IDS(nodes));
    for (int64_t j = 0; j < n_nodes; j++)
        add_op(b, DH_OP_ALL_GATHER, g->phase, g->flat, g->stages.local, IDS(view_of(b, nodes, j)),
               IDS(row_of(b, whole, row + j)));
}

/* A range of n elements that is gathered into. */
static uint32_t add_whole(builder *b, dh_dtype dtype, uint32_t range, int64_t n,
                          const dh_gather_stages *stages)
{
    const int64_t n_rows = rows_of_piece(stages);
    return add_matrix(b, "all", DH_TENSOR_RANGE, dtype, range, n_rows, n / n_rows);
}

/* ---- optimizer --------------------------------------------------------------------------- */

static int64_t count_counted(const dh_opt_region *regions, size_t n)
{
    int64_t n_counted = 0;
    for (size_t i = 0; i < n; i++) n_counted += regions[i].counts;
    return n_counted;
}

/* Squared sums, and the group's, into `total`. sums DH_NONE: there are none. */
static void sum_over_ranks(builder *b, uint32_t sums, int32_t group, uint32_t total)
{
    add_op(b, DH_OP_SUM, DH_PHASE_OPT, DH_NONE, -1, IDS(sums), IDS(total));
    if (group >= 0)
        add_op(b, DH_OP_ALL_REDUCE, DH_PHASE_OPT, DH_NONE, group, IDS(total), IDS(total));
}

/* The exact sum of squares of this rank's regions, and of the group's, into `total`. */
static void sum_squares(builder *b, const dh_opt_region *regions, size_t n, const uint32_t *grads,
                        int32_t group, uint32_t total)
{
    const int64_t n_counted = count_counted(regions, n);
    /* A stage may have nothing that counts: the head of a tied model alone. */
    uint32_t sums =
        n_counted ? add_state(b, "sq", DH_STATE_SQSUM, n_counted, DH_SQSUM_DIGITS) : DH_NONE;
    int64_t row = 0;
    for (size_t i = 0; i < n; i++)
        if (regions[i].counts)
            add_op(b, DH_OP_SQSUM, DH_PHASE_OPT, regions[i].flat, -1, IDS(grads[i]),
                   IDS(view_of(b, sums, row++)));
    sum_over_ranks(b, sums, group, total);
}

/* The sum that is known before transfers with later stages, `total`. Without these it is the sum of
 * all. */
static uint32_t sum_so_far(builder *b, const dh_opt_region *regions, size_t n,
                           const uint32_t *grads, const dh_opt_norm *norm)
{
    const uint32_t total = add_state(b, "total", DH_STATE_SQTOTAL, 1, DH_SQSUM_DIGITS);
    if (!norm->before) {
        sum_squares(b, regions, n, grads, norm->group, total);
        return total;
    }
    const uint32_t chain = add_state(b, "chain", DH_STATE_SQCHAIN, 2, DH_SQSUM_DIGITS);
    sum_squares(b, regions, n, grads, norm->group, view_of(b, chain, 0));
    add_op(b, DH_OP_SUM, DH_PHASE_OPT, DH_NONE, -1, IDS(chain), IDS(total));
    return total;
}

static uint32_t clip_factor(builder *b, dh_state which, const char *name, uint32_t total)
{
    const uint32_t norm = add_state(b, name, which, 1, 2);
    add_op(b, DH_OP_CLIP, DH_PHASE_OPT, DH_NONE, -1, IDS(total), IDS(norm));
    return norm;
}

/* Whether AdamW steps it. */
static bool is_stepped(const dh_opt_region *r)
{
    return !r->norm_only && !r->balances;
}

/* Routers' biases, once the norm of all is known. */
static void balance(builder *b, const dh_opt_region *regions, size_t n, const uint32_t *grads,
                    uint32_t norm)
{
    for (size_t i = 0; i < n; i++) {
        const dh_opt_region *r = &regions[i];
        if (!r->balances) continue;
        const uint32_t p = add_range(b, "p", DH_F32, r->master, r->n, false);
        add_op(b, DH_OP_BALANCE, DH_PHASE_OPT, r->flat, -1, IDS(grads[i], norm), IDS(p));
    }
}

/* Operands of a region's step. */
typedef struct stepped {
    uint32_t grad, norm, p, m, v, copy;
    uint32_t old; /* overwritten values; DH_NONE: the step is final */
} stepped;

static stepped update(builder *b, const dh_opt_region *r, uint32_t grad, uint32_t norm,
                      dh_dtype dtype, bool keeps)
{
    const stepped s = {.grad = grad,
                       .norm = norm,
                       .p = add_range(b, "p", DH_F32, r->master, r->n, r->decay),
                       .m = add_range(b, "m", DH_F32, r->adam_m, r->n, r->decay),
                       .v = add_range(b, "v", DH_F32, r->adam_v, r->n, r->decay),
                       .copy = add_range(b, "c", dtype, r->copy, r->n, r->decay),
                       .old = keeps ? add_rows(b, "old", DH_F32, 3, r->n) : DH_NONE};
    add_op(b, DH_OP_ADAMW, DH_PHASE_OPT, r->flat, -1, IDS(grad, norm),
           IDS(s.p, s.m, s.v, s.copy, s.old));
    return s;
}

static void gather(builder *b, const dh_opt_region *r, const stepped *s, dh_dtype dtype)
{
    if (r->gather == DH_NONE) return;
    const gathering g = {.phase = DH_PHASE_OPT,
                         .flat = r->flat,
                         .group = r->group,
                         .stages = r->stages,
                         .n = r->n,
                         .dtype = s->copy == DH_NONE ? DH_F32 : dtype};
    const uint32_t whole = add_whole(b, g.dtype, r->gather, r->n_gathered, &r->stages);
    gather_shards(b, &g, s->copy == DH_NONE ? s->p : s->copy, whole, 0);
}

static void step_at_once(builder *b, const dh_opt_region *regions, size_t n, const uint32_t *grads,
                         dh_dtype dtype, uint32_t total)
{
    const uint32_t norm = clip_factor(b, DH_STATE_NORM, "norm", total);
    for (size_t i = 0; i < n; i++) {
        if (!is_stepped(&regions[i])) continue;
        const stepped s = update(b, &regions[i], grads[i], norm, dtype, false);
        gather(b, &regions[i], &s, dtype);
    }
    balance(b, regions, n, grads, norm);
}

/* Amend every step by the norm of all. Gathers come after it, as they cannot be left out. */
static void amend_all(builder *b, const dh_opt_region *regions, size_t n, const stepped *list,
                      dh_dtype dtype, uint32_t norm)
{
    for (size_t i = 0; i < n; i++) {
        const stepped *s = &list[i];
        if (!is_stepped(&regions[i])) continue;
        add_op(b, DH_OP_AMEND, DH_PHASE_OPT, regions[i].flat, -1,
               IDS(s->grad, norm, s->norm, s->old), IDS(s->p, s->m, s->v, s->copy));
        gather(b, &regions[i], s, dtype);
    }
}

static void step_ahead(builder *b, const dh_opt_region *regions, size_t n, const uint32_t *grads,
                       dh_dtype dtype, uint32_t total)
{
    stepped *list = calloc(n + 1, sizeof *list);
    if (!list) {
        b->failed = true;
        return;
    }
    const uint32_t so_far = clip_factor(b, DH_STATE_NORM_SO_FAR, "so_far", total);
    for (size_t i = 0; i < n; i++)
        if (is_stepped(&regions[i]))
            list[i] = update(b, &regions[i], grads[i], so_far, dtype, true);
    const uint32_t norm = clip_factor(b, DH_STATE_NORM, "norm", total);
    amend_all(b, regions, n, list, dtype, norm);
    balance(b, regions, n, grads, norm);
    free(list);
}

/* A region as its gradients come: their squares, whose sum is at `row`, and a step by these. */
static stepped step_own(builder *b, const dh_opt_region *r, uint32_t grad, uint32_t square,
                        uint32_t norm, dh_dtype dtype, bool clips)
{
    add_op(b, DH_OP_SQSUM, DH_PHASE_OPT, r->flat, -1, IDS(grad), IDS(square));
    if (r->norm_only) return (stepped){.grad = grad};
    add_op(b, DH_OP_CLIP, DH_PHASE_OPT, DH_NONE, -1, IDS(square), IDS(norm));
    return update(b, r, grad, norm, dtype, clips);
}

/* Sums of those that count come first, side by side. */
static void step_fused(builder *b, const dh_opt_region *regions, size_t n, const uint32_t *grads,
                       dh_dtype dtype, const dh_opt_norm *norm)
{
    const int64_t n_counted = count_counted(regions, n);
    int64_t row[2] = {n_counted, 0}; /* by whether it counts */
    stepped *list = calloc(n + 1, sizeof *list);
    if (!list) {
        b->failed = true;
        return;
    }
    const uint32_t squares = add_state(b, "sq", DH_STATE_SQSUM, (int64_t)n, DH_SQSUM_DIGITS);
    const uint32_t own = add_state(b, "own", DH_STATE_NORM_SO_FAR, (int64_t)n, 2);
    for (size_t i = 0; i < n; i++) {
        if (regions[i].balances) continue;
        const int64_t at = row[regions[i].counts]++;
        list[i] = step_own(b, &regions[i], grads[i], view_of(b, squares, at), view_of(b, own, at),
                           dtype, norm->clips);
        if (!norm->clips && !regions[i].norm_only) gather(b, &regions[i], &list[i], dtype);
    }
    const uint32_t total = add_state(b, "total", DH_STATE_SQTOTAL, 1, DH_SQSUM_DIGITS);
    const uint32_t counted = n_counted ? views_of(b, squares, 0, n_counted) : DH_NONE;
    sum_over_ranks(b, counted, norm->group, total);
    const uint32_t of_all = clip_factor(b, DH_STATE_NORM, "norm", total);
    if (norm->clips) amend_all(b, regions, n, list, dtype, of_all);
    balance(b, regions, n, grads, of_all);
    free(list);
}

dh_status dh_graph_build_optimizer(dh_ctx *ctx, const dh_opt_region *regions, size_t n,
                                   dh_dtype dtype, const dh_opt_norm *norm, dh_graph **graph)
{
    builder b = {0};
    uint32_t *grads = calloc(n + 1, sizeof *grads);
    if (!grads) return dh_no_memory(ctx);
    dh_status st = start(ctx, &b, DH_BLOCK_OPT, dtype);
    if (st == DH_OK) {
        for (size_t i = 0; i < n; i++)
            grads[i] = add_range(&b, "g", DH_F32, regions[i].grad, regions[i].n, regions[i].decay);
        const uint32_t total = norm->fused ? DH_NONE : sum_so_far(&b, regions, n, grads, norm);
        if (norm->fused)
            step_fused(&b, regions, n, grads, dtype, norm);
        else if (norm->behind)
            step_ahead(&b, regions, n, grads, dtype, total);
        else
            step_at_once(&b, regions, n, grads, dtype, total);
        st = finish(ctx, &b, graph);
    }
    free(grads);
    return st;
}

dh_status dh_graph_build_norm_link(dh_ctx *ctx, bool behind, dh_graph **graph)
{
    builder b = {0};
    DH_TRY(start(ctx, &b, DH_BLOCK_OPT, DH_F32));
    const uint32_t total = add_state(&b, "total", DH_STATE_SQTOTAL, 1, DH_SQSUM_DIGITS);
    const uint32_t chain =
        behind ? DH_NONE : add_state(&b, "chain", DH_STATE_SQCHAIN, 2, DH_SQSUM_DIGITS);
    const uint32_t forth = behind ? total : view_of(&b, chain, 1);
    for (int way = DH_NORM_LINK_FORTH; way <= DH_NORM_LINK_BACK; way++) {
        const uint32_t what = way == DH_NORM_LINK_FORTH ? forth : total;
        const bool send = (way == DH_NORM_LINK_FORTH) == behind;
        add_op(&b, send ? DH_OP_SEND : DH_OP_RECV, DH_PHASE_OPT, DH_NONE, DH_GROUP_PP, IDS(what),
               IDS(what));
    }
    return finish(ctx, &b, graph);
}

/* ---- reductions of gradients ---------------------------------------------------------------- */

static void add_reduction(builder *b, const dh_grad_reduction *r, uint32_t *passing)
{
    const bool leaves = r->passing.n_row > 0 && !r->reads_passing;
    if (leaves && r->passing.row == 0)
        *passing = add_rows(b, "passing", DH_F32, r->passing.n_rows, r->passing.n_row);
    const uint32_t all =
        r->reads_passing ? *passing : add_range(b, "g", DH_F32, r->range, r->n, false);
    const uint32_t addend = add_range(b, "g.tied", DH_F32, r->addend, r->n, false);
    const uint32_t own = leaves ? view_of(b, *passing, r->passing.row)
                                : add_range(b, "g.own", DH_F32, r->shard, r->n_shard, false);
    add_op(b, r->type, DH_PHASE_W, DH_NONE, r->group, IDS(all, addend),
           IDS(own == DH_NONE ? all : own));
    if (!b->failed) b->graph->ops.at[b->graph->ops.n - 1].wire = (int32_t)r->wire;
}

dh_status dh_graph_build_reductions(dh_ctx *ctx, const dh_grad_reduction *list, size_t n,
                                    dh_graph **graph)
{
    builder b = {0};
    uint32_t passing = DH_NONE;
    DH_TRY(start(ctx, &b, DH_BLOCK_GRADS, DH_F32));
    for (size_t i = 0; i < n; i++) add_reduction(&b, &list[i], &passing);
    return finish(ctx, &b, graph);
}

/* ---- parameters made whole ------------------------------------------------------------------- */

static void add_release(builder *b, const dh_gather *gather, uint32_t whole)
{
    add_op(b, DH_OP_RELEASE, gather->phase, DH_NONE, -1, IDS(DH_NONE), IDS(whole));
}

dh_status dh_graph_build_gather(dh_ctx *ctx, const dh_gather *gather, dh_graph **graph)
{
    builder b = {0};
    const int64_t n = gather->n_pieces, n_rows = rows_of_piece(&gather->stages);
    const gathering g = {.phase = gather->phase,
                         .flat = gather->flat,
                         .group = gather->group,
                         .stages = gather->stages,
                         .n = gather->n_shard,
                         .dtype = gather->dtype};
    DH_TRY(start(ctx, &b, DH_BLOCK_GATHER, gather->dtype));
    const uint32_t id = add_rows(&b, "whole", gather->dtype, n * n_rows, gather->n_piece / n_rows);
    for (int64_t k = 0; k < n; k++) {
        const uint32_t shard =
            add_range(&b, "own", gather->dtype, gather->shards[k], gather->n_shard, false);
        gather_shards(&b, &g, shard, id, k * n_rows);
    }
    add_release(&b, gather, id);
    b.graph->x_out = id;
    return finish(ctx, &b, graph);
}

dh_status dh_graph_build_share(dh_ctx *ctx, const dh_gather *gather, int64_t n_parts, int64_t index,
                               dh_graph **graph)
{
    builder b = {0};
    const int64_t n = gather->n_pieces, n_part = gather->n_piece / n_parts;
    DH_TRY(start(ctx, &b, DH_BLOCK_GATHER, gather->dtype));
    const uint32_t whole = add_rows(&b, "whole", gather->dtype, n * n_parts, n_part);
    const uint32_t own = add_rows(&b, "share", gather->dtype, n, n_part);
    for (int64_t k = 0; k < n; k++)
        add_op(&b, DH_OP_COPY, DH_PHASE_F, DH_NONE, -1, IDS(row_of(&b, whole, k * n_parts + index)),
               IDS(row_of(&b, own, k)));
    b.graph->x_in = whole;
    b.graph->x_out = own;
    return finish(ctx, &b, graph);
}

dh_status dh_graph_build_gather_shares(dh_ctx *ctx, const dh_gather *gather, int64_t n_parts,
                                       dh_graph **graph)
{
    builder b = {0};
    const int64_t n = gather->n_pieces;
    DH_TRY(start(ctx, &b, DH_BLOCK_GATHER, gather->dtype));
    const uint32_t own = add_rows(&b, "share", gather->dtype, n, gather->n_piece / n_parts);
    const uint32_t whole = add_rows(&b, "whole", gather->dtype, n, gather->n_piece);
    for (int64_t k = 0; k < n; k++)
        add_op(&b, DH_OP_ALL_GATHER, gather->phase, gather->flat, gather->group,
               IDS(row_of(&b, own, k)), IDS(row_of(&b, whole, k)));
    add_release(&b, gather, whole);
    b.graph->x_in = own;
    b.graph->x_out = whole;
    return finish(ctx, &b, graph);
}

dh_status dh_graph_build_first_gathers(dh_ctx *ctx, const dh_first_gather *list, size_t n,
                                       dh_dtype dtype, dh_graph **graph)
{
    builder b = {0};
    DH_TRY(start(ctx, &b, DH_BLOCK_GATHER, dtype));
    for (size_t i = 0; i < n; i++) {
        const dh_first_gather *r = &list[i];
        const gathering g = {.phase = DH_PHASE_F,
                             .flat = r->flat,
                             .group = r->group,
                             .stages = r->stages,
                             .n = r->n_own,
                             .dtype = dtype};
        const uint32_t own = add_range(&b, "own", dtype, r->own, r->n_own, true);
        gather_shards(&b, &g, own, add_whole(&b, dtype, r->whole, r->n_whole, &r->stages), 0);
    }
    return finish(ctx, &b, graph);
}

dh_status dh_graph_build_call(dh_ctx *ctx, dh_op_type type, int32_t group, dh_dtype dtype,
                              int64_t n_in, int64_t n_out, dh_graph **graph)
{
    builder b = {0};
    DH_TRY(start(ctx, &b, DH_BLOCK_GRADS, dtype));
    const uint32_t in = add_rows(&b, "in", dtype, 1, n_in);
    add_op(&b, type, DH_PHASE_W, DH_NONE, group, IDS(in),
           IDS(add_rows(&b, "out", dtype, 1, n_out)));
    return finish(ctx, &b, graph);
}

/* ---- links ---------------------------------------------------------------------------------- */

/* The choices of the micro-batch's routers so far travel with it. */
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

dh_status dh_graph_build_link(dh_ctx *ctx, bool send, int32_t group, int64_t rows, int64_t width,
                              dh_dtype dtype, int64_t n_experts, dh_graph **graph)
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
    add_op(&b, type, DH_PHASE_F, DH_NONE, group, IDS(id), IDS(id));
    if (n_experts > 0) {
        uint32_t router = add_router(&b, n_experts);
        add_op(&b, type, DH_PHASE_F, DH_NONE, group, IDS(router), IDS(router));
    }
    *(send ? &b.graph->x_in : &b.graph->x_out) = id;
    return finish(ctx, &b, graph);
}
