/* Tensor and sequence parallelism as a rewrite of a forward graph.
 *
 * Three things change. Axes that count heads, FFN columns or vocabulary shrink to
 * the rank's part. Tokens of the residual stream shrink to the rank's part. Where
 * the two regions meet, a collective goes in: all-gather into a column-parallel
 * linear, reduce-scatter out of a row-parallel linear or the embedding, all-gather
 * of the loss statistics. The backward follows by differentiation, which turns one
 * collective into the other.
 *
 * Source: Shoeybi et al. 2019 (arXiv 1909.08053) section 3; Korthikanti et al. 2022
 * (arXiv 2205.05198) section 4.2.2. */
#include "dhelix/graph.h"
#include "dhelix/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef DH_VEC(dh_op) op_list;

typedef struct rewrite {
    dh_graph *graph;
    dh_shard shard;
    op_list ops;        /* the new order */
    uint32_t *gathered; /* by tensor: all rows of a token-sharded one, DH_NONE */
    size_t n_tensors;   /* of the graph before the rewrite */
    bool failed;
} rewrite;

static bool splits(dh_axis axis)
{
    return axis == DH_AXIS_HEADS || axis == DH_AXIS_FFN || axis == DH_AXIS_VOCAB;
}

static dh_tensor *tensor(rewrite *r, uint32_t id)
{
    return &r->graph->tensors.at[id];
}

/* ---- shapes ------------------------------------------------------------------------------- */

static dh_status split_axis(dh_ctx *ctx, rewrite *r, dh_tensor *t, int axis)
{
    if (t->axis[axis] == DH_AXIS_VOCAB) {
        int64_t first;
        dh_vocab_shard(t->shape[axis], r->shard, &first, &t->shape[axis]);
        return t->shape[axis] > 0
                   ? DH_OK
                   : dh_fail(ctx, DH_EINVAL, "parallel.tp=%lld leaves tp rank %lld no vocabulary",
                             (long long)r->shard.tp, (long long)r->shard.tp_rank);
    }
    if (t->shape[axis] % r->shard.tp != 0)
        return dh_fail(ctx, DH_EINVAL, "%s: axis of size %lld does not divide by parallel.tp=%lld",
                       t->name, (long long)t->shape[axis], (long long)r->shard.tp);
    t->shape[axis] /= r->shard.tp;
    return DH_OK;
}

static dh_status split_tensors(dh_ctx *ctx, rewrite *r)
{
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        dh_tensor *t = tensor(r, i);
        for (int a = 0; a < t->ndim; a++)
            if (splits(t->axis[a])) DH_TRY(split_axis(ctx, r, t, a));
    }
    return DH_OK;
}

static dh_status split_dims(dh_ctx *ctx, rewrite *r)
{
    dh_dims *d = &r->graph->dims;
    const int64_t tp = r->shard.tp;
    if (d->n_heads % tp || d->n_kv_heads % tp || d->ffn_width % tp)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld heads, %lld key/value heads and FFN width %lld must all divide by "
                       "parallel.tp=%lld",
                       (long long)d->n_heads, (long long)d->n_kv_heads, (long long)d->ffn_width,
                       (long long)tp);
    if (d->batch * d->seq % tp)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld tokens of a micro-batch do not divide by "
                       "parallel.tp=%lld: change train.seq_len or train.micro_batch",
                       (long long)(d->batch * d->seq), (long long)tp);
    d->n_heads /= tp;
    d->n_kv_heads /= tp;
    d->ffn_width /= tp;
    d->aux_scale /= (double)tp; /* every rank's share is added up with the logits' gradient */
    dh_vocab_shard(d->vocab, r->shard, &d->vocab0, &d->vocab);
    return DH_OK;
}

/* ---- collectives ---------------------------------------------------------------------------- */

static uint32_t add_tensor(rewrite *r, uint32_t like, const char *suffix, int64_t rows)
{
    dh_tensor t = *tensor(r, like);
    char name[sizeof t.name];
    snprintf(name, sizeof name, "%.18s%s", t.name, suffix);
    memcpy(t.name, name, sizeof name);
    t.kind = DH_TENSOR_ACT;
    t.base = DH_NONE;
    t.row0 = 0;
    t.shape[0] = rows;
    uint32_t id = dh_graph_add_tensor(r->graph, &t);
    r->failed |= id == DH_NONE;
    return id;
}

static void push(rewrite *r, const dh_op *op)
{
    r->failed |= !dh_vec_push(&r->ops, *op);
}

static void push_op(rewrite *r, dh_op_type type, uint32_t in, uint32_t out)
{
    dh_op op = {.type = type, .phase = DH_PHASE_F, .site = -1, .param = DH_NONE, .group = -1};
    memset(op.in, 0xff, sizeof op.in);
    memset(op.out, 0xff, sizeof op.out);
    op.in[0] = in;
    op.out[0] = out;
    if (dh_op_info_of(type)->resource == DH_RES_COMM) op.group = DH_GROUP_TP;
    push(r, &op);
}

/* All rows of x, gathered once however many operators want them. A view becomes a
 * view of the gathered base. */
static uint32_t gather(rewrite *r, uint32_t x)
{
    uint32_t base = tensor(r, x)->base == DH_NONE ? x : tensor(r, x)->base;
    if (r->gathered[base] == DH_NONE) {
        int64_t rows = tensor(r, base)->shape[0];
        tensor(r, base)->shape[0] = rows / r->shard.tp;
        uint32_t all = add_tensor(r, base, ".all", rows);
        r->gathered[base] = all;
        push_op(r, DH_OP_ALL_GATHER, base, all);
    }
    if (base == x) return r->gathered[base];
    tensor(r, x)->base = r->gathered[base];
    return x;
}

/* y becomes the rank's rows of the sum of what `op` writes. */
static void reduce(rewrite *r, dh_op *op)
{
    uint32_t y = op->out[0];
    int64_t rows = tensor(r, y)->shape[0];
    uint32_t partial = add_tensor(r, y, ".part", rows);
    if (r->failed) return;
    tensor(r, y)->shape[0] = rows / r->shard.tp;
    op->out[0] = partial;
    push(r, op);
    push_op(r, DH_OP_REDUCE_SCATTER, partial, y);
}

/* A linear whose weight all ranks have works on the rank's rows; all get its result. */
static void gather_result(rewrite *r, dh_op *op)
{
    uint32_t y = op->out[0];
    uint32_t own = add_tensor(r, y, ".own", tensor(r, y)->shape[0] / r->shard.tp);
    op->out[0] = own;
    push(r, op);
    push_op(r, DH_OP_ALL_GATHER, own, y);
}

static void shrink_tokens(rewrite *r, uint32_t id)
{
    if (id != DH_NONE && tensor(r, id)->shape[0] == r->graph->dims.batch * r->graph->dims.seq)
        tensor(r, id)->shape[0] /= r->shard.tp;
}

/* ---- operators ------------------------------------------------------------------------------ */

static void rewrite_linear(rewrite *r, dh_op *op)
{
    const dh_tensor *w = tensor(r, op->in[1]);
    bool column = splits(w->axis[0]), row = splits(w->axis[1]);
    if (column) op->in[0] = gather(r, op->in[0]);
    if (row)
        reduce(r, op);
    else if (column)
        push(r, op);
    else
        gather_result(r, op);
}

static void rewrite_moe_permute(rewrite *r, dh_op *op)
{
    op->in[0] = gather(r, op->in[0]);
    push(r, op);
}

static void rewrite_embed(rewrite *r, dh_op *op)
{
    if (r->shard.tp_rank != 0) op->in[4] = DH_NONE; /* positions are added once */
    reduce(r, op);
}

static void rewrite_norm(rewrite *r, dh_op *op)
{
    shrink_tokens(r, op->in[0]);
    shrink_tokens(r, op->out[1]);
    push(r, op); /* y shrinks when it is gathered */
}

/* The rank's rows of a per-token input. */
static uint32_t own_rows(rewrite *r, uint32_t id)
{
    if (id == DH_NONE || r->failed) return id;
    dh_tensor t = *tensor(r, id);
    t.base = id;
    t.shape[0] /= r->shard.tp;
    t.row0 = r->shard.tp_rank * t.shape[0];
    snprintf(t.name, sizeof t.name, "%.18s.own", tensor(r, id)->name);
    uint32_t own = dh_graph_add_tensor(r->graph, &t);
    r->failed |= own == DH_NONE;
    return own;
}

static void rewrite_residual(rewrite *r, dh_op *op)
{
    shrink_tokens(r, op->in[0]);
    shrink_tokens(r, op->out[0]);
    op->in[3] = own_rows(r, op->in[3]);
    op->in[4] = own_rows(r, op->in[4]);
    push(r, op);
}

/* Statistics of the vocabulary shards are gathered and merged. */
static void rewrite_loss_stats(rewrite *r, dh_op *op)
{
    uint32_t stats = op->out[0];
    int64_t rows = tensor(r, stats)->shape[0];
    uint32_t local = add_tensor(r, stats, ".shard", rows);
    uint32_t parts = add_tensor(r, stats, ".parts", rows * r->shard.tp);
    op->out[0] = local;
    push(r, op);
    push_op(r, DH_OP_ALL_GATHER, local, parts);
    push_op(r, DH_OP_LOSS_MERGE, parts, stats);
}

static void copy(rewrite *r, dh_op *op)
{
    push(r, op);
}

static void (*const rules[DH_N_OP_TYPE])(rewrite *, dh_op *) = {
    [DH_OP_LINEAR] = rewrite_linear,
    [DH_OP_EMBED] = rewrite_embed,
    [DH_OP_NORM] = rewrite_norm,
    [DH_OP_MOE_PERMUTE] = rewrite_moe_permute,
    [DH_OP_MOE_UNPERMUTE] = reduce,
    [DH_OP_RESIDUAL] = rewrite_residual,
    [DH_OP_LOSS_STATS] = rewrite_loss_stats,
};

/* The head's dxn holds partial sums of every rank's vocabulary: reduce them at the end. */
static void reduce_loss_gradient(rewrite *r)
{
    uint32_t dx = r->graph->loss_dx;
    if (dx == DH_NONE || r->failed) return;
    int64_t rows = tensor(r, dx)->shape[0];
    uint32_t own = add_tensor(r, dx, ".own", rows / r->shard.tp);
    push_op(r, DH_OP_REDUCE_SCATTER, dx, own);
    r->graph->loss_dx = own;
}

static dh_status rewrite_all(dh_ctx *ctx, rewrite *r)
{
    DH_TRY(split_tensors(ctx, r));
    DH_TRY(split_dims(ctx, r));
    for (size_t i = 0; i < r->graph->ops.n && !r->failed; i++) {
        dh_op op = r->graph->ops.at[i];
        (rules[op.type] ? rules[op.type] : copy)(r, &op);
    }
    reduce_loss_gradient(r);
    return r->failed ? dh_fail(ctx, DH_ENOMEM, "out of memory splitting a graph") : DH_OK;
}

dh_status dh_pass_tensor_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard)
{
    if (shard.tp == 1 || graph->kind == DH_BLOCK_DATA) return DH_OK;
    if (graph->dx_in != DH_NONE || graph->mode == DH_MODE_DECODE)
        return dh_fail(ctx, DH_EINVAL,
                       "tensor parallelism rewrites forward graphs of training "
                       "and evaluation");
    rewrite r = {.graph = graph, .shard = shard, .n_tensors = graph->tensors.n};
    r.gathered = malloc((r.n_tensors + 1) * sizeof *r.gathered);
    dh_status st = DH_OK;
    if (!r.gathered) {
        st = dh_fail(ctx, DH_ENOMEM, "out of memory splitting a graph");
    } else {
        memset(r.gathered, 0xff, (r.n_tensors + 1) * sizeof *r.gathered);
        st = rewrite_all(ctx, &r);
    }
    if (st == DH_OK) {
        op_list old = {graph->ops.at, graph->ops.n, graph->ops.cap};
        graph->ops.at = r.ops.at;
        graph->ops.n = r.ops.n;
        graph->ops.cap = r.ops.cap;
        r.ops = old;
    }
    dh_vec_fini(&r.ops);
    free(r.gathered);
    return st;
}
