/* Expert parallelism as a rewrite of a layer's forward graph.
 *
 * A rank keeps E / ep experts and routes its own tokens as before. Rows in the order by
 * expert are also in the order by rank that has the expert: they are sent there, come
 * in by source rank and by expert within each, and so are runs of rows of which run s
 * belongs to expert s mod (E / ep). That is what grouped linears take, so nothing is put
 * in order again. Results go back the way the rows came. The backward follows by
 * differentiation: an exchange is its own gradient, the other way round.
 *
 * How many rows come is data. Dropless: counts are exchanged first, buffers have room for
 * dims.expert_rows, and moe_offsets ends the run where more come. With a capacity every
 * rank sends each expert as many rows, and the exchange is of equal blocks.
 *
 * Goes after tensor parallelism, whose ranks exchange alike, each the rows for its share
 * of the experts' columns.
 *
 * Source: Lepikhin et al. 2020 (arXiv 2006.16668) section 3.2; dropless as in Gale et al.
 * 2022 (arXiv 2211.15841). */
#include "dhelix/graph.h"
#include "dhelix/mesh.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef DH_VEC(dh_op) op_list;

typedef struct rewrite {
    dh_graph *graph;
    dh_shard shard;
    op_list ops;            /* the new order */
    int64_t own_rows;       /* rows that the rank's tokens make in the order by expert */
    uint32_t sent, arrived; /* offsets of runs: before and after the exchange */
    bool failed;
} rewrite;

static dh_tensor *tensor(rewrite *r, uint32_t id)
{
    return &r->graph->tensors.at[id];
}

/* ---- sizes -------------------------------------------------------------------------------- */

static bool is_experts_weight(const dh_tensor *t)
{
    return t->kind == DH_TENSOR_PARAM && t->ndim == 3 && t->axis[0] == DH_AXIS_EXPERTS;
}

/* The even share of all ranks' choices times a factor; no more than all tokens of all
 * ranks, each in as many of the experts here as it may choose. */
static dh_status choose_room(dh_ctx *ctx, rewrite *r, int64_t experts_here, double room)
{
    dh_dims *d = &r->graph->dims;
    const int64_t tokens = d->batch * d->seq, share = tokens * d->top_k;
    const int64_t most = r->shard.ep * tokens * DH_MIN(d->top_k, experts_here);
    if (d->expert_capacity) return DH_OK;
    if (!(room >= 1))
        return dh_fail(ctx, DH_EINVAL,
                       "moe.capacity=%g leaves no room for an even share of the rows, which "
                       "moe.mode dropless with parallel.ep=%lld needs: 1 at least, 2 is usual",
                       room, (long long)r->shard.ep);
    d->expert_rows = DH_MIN((int64_t)ceil(DH_MIN(room * (double)share, (double)most)), most);
    return DH_OK;
}

static dh_status split_tensors(dh_ctx *ctx, rewrite *r, double room)
{
    int64_t n_split = 0, experts_here = 0;
    for (uint32_t i = 0; i < r->graph->tensors.n; i++) {
        dh_tensor *t = tensor(r, i);
        if (!is_experts_weight(t)) continue;
        if (t->shape[0] % r->shard.ep)
            return dh_fail(ctx, DH_EINVAL, "%s: %lld experts do not divide by parallel.ep=%lld",
                           t->name, (long long)t->shape[0], (long long)r->shard.ep);
        experts_here = t->shape[0] /= r->shard.ep;
        n_split++;
    }
    if (n_split == 0)
        return dh_fail(ctx, DH_EINVAL, "parallel.ep=%lld, but the layer has no experts",
                       (long long)r->shard.ep);
    DH_TRY(choose_room(ctx, r, experts_here, room));
    const int64_t rows = r->graph->dims.expert_rows;
    for (uint32_t i = 0; i < r->graph->tensors.n; i++) {
        if (tensor(r, i)->axis[0] != DH_AXIS_ROUTED) continue;
        r->own_rows = tensor(r, i)->shape[0];
        if (rows) tensor(r, i)->shape[0] = rows;
    }
    return DH_OK;
}

/* ---- operators ---------------------------------------------------------------------------- */

static uint32_t add_tensor(rewrite *r, uint32_t like, const char *name, int64_t rows)
{
    if (r->failed) return DH_NONE;
    dh_tensor t = *tensor(r, like);
    snprintf(t.name, sizeof t.name, "%s", name);
    t.shape[0] = rows;
    uint32_t id = dh_graph_add_tensor(r->graph, &t);
    r->failed |= id == DH_NONE;
    return id;
}

static void push(rewrite *r, const dh_op *op)
{
    r->failed |= !dh_vec_push(&r->ops, *op);
}

static void push_op(rewrite *r, dh_op_type type, const uint32_t in[3], uint32_t out)
{
    dh_op op = {.type = type, .phase = DH_PHASE_F, .site = -1, .group = -1, .param = DH_NONE};
    memset(op.in, 0xff, sizeof op.in);
    memset(op.out, 0xff, sizeof op.out);
    memcpy(op.in, in, 3 * sizeof *in);
    op.out[0] = out;
    if (dh_op_info_of(type)->resource == DH_RES_COMM) op.group = DH_GROUP_EP;
    push(r, &op);
}

static void exchange(rewrite *r, uint32_t x, uint32_t from, uint32_t to, uint32_t y)
{
    if (r->graph->dims.expert_capacity)
        push_op(r, DH_OP_ALL_TO_ALL, (const uint32_t[]){x, DH_NONE, DH_NONE}, y);
    else
        push_op(r, DH_OP_ALL_TO_ALL_ROWS, (const uint32_t[]){x, from, to}, y);
}

/* Run s of the rows that arrive is as long as its sender says. With a capacity all runs
 * are of one length, before and after. */
static void rewrite_order(rewrite *r, dh_op *op)
{
    const uint32_t offsets = op->out[1];
    r->sent = r->arrived = offsets;
    if (r->graph->dims.expert_capacity) {
        push(r, op);
        return;
    }
    const int64_t n_runs = tensor(r, offsets)->shape[0] - 1;
    op->out[2] = add_tensor(r, offsets, "counts", n_runs);
    const uint32_t arriving = add_tensor(r, offsets, "arriving", n_runs);
    r->arrived = add_tensor(r, offsets, "arrived", n_runs + 1);
    push(r, op);
    push_op(r, DH_OP_ALL_TO_ALL, (const uint32_t[]){op->out[2], DH_NONE, DH_NONE}, arriving);
    push_op(r, DH_OP_MOE_OFFSETS, (const uint32_t[]){arriving, DH_NONE, DH_NONE}, r->arrived);
}

/* What followed the permutation now takes what arrived. */
static void rewrite_permute(rewrite *r, dh_op *op)
{
    const uint32_t arrived = op->out[0];
    op->out[0] = add_tensor(r, arrived, "routed.own", r->own_rows);
    push(r, op);
    exchange(r, op->out[0], r->sent, r->arrived, arrived);
}

static void rewrite_grouped(rewrite *r, dh_op *op)
{
    op->in[2] = r->arrived;
    push(r, op);
}

static void rewrite_unpermute(rewrite *r, dh_op *op)
{
    const uint32_t own = add_tensor(r, op->in[0], "y.own", r->own_rows);
    exchange(r, op->in[0], r->arrived, r->sent, own);
    op->in[0] = own;
    push(r, op);
}

static void copy(rewrite *r, dh_op *op)
{
    push(r, op);
}

static void (*const rules[DH_N_OP_TYPE])(rewrite *, dh_op *) = {
    [DH_OP_MOE_ORDER] = rewrite_order,
    [DH_OP_MOE_PERMUTE] = rewrite_permute,
    [DH_OP_GROUPED_LINEAR] = rewrite_grouped,
    [DH_OP_MOE_UNPERMUTE] = rewrite_unpermute,
};

/* ---- entry -------------------------------------------------------------------------------- */

static dh_status rewrite_all(dh_ctx *ctx, rewrite *r, double room)
{
    DH_TRY(split_tensors(ctx, r, room));
    for (size_t i = 0; i < r->graph->ops.n && !r->failed; i++) {
        dh_op op = r->graph->ops.at[i];
        (rules[op.type] ? rules[op.type] : copy)(r, &op);
    }
    return r->failed ? dh_fail(ctx, DH_ENOMEM, "out of memory splitting a graph") : DH_OK;
}

dh_status dh_pass_expert_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard, double room)
{
    if (shard.ep <= 1 || graph->kind != DH_BLOCK_LAYER) return DH_OK;
    if (graph->dx_in != DH_NONE || graph->mode == DH_MODE_DECODE)
        return dh_fail(ctx, DH_EINVAL,
                       "expert parallelism rewrites forward graphs of training and evaluation");
    rewrite r = {.graph = graph, .shard = shard, .sent = DH_NONE, .arrived = DH_NONE};
    dh_status st = rewrite_all(ctx, &r, room);
    if (st == DH_OK) {
        op_list old = {graph->ops.at, graph->ops.n, graph->ops.cap};
        graph->ops.at = r.ops.at;
        graph->ops.n = r.ops.n;
        graph->ops.cap = r.ops.cap;
        r.ops = old;
    }
    dh_vec_fini(&r.ops);
    return st;
}
