/* Context parallelism as a rewrite of a forward graph.
 *
 * Everything but attention works token by token, so the rank's graph is that of a
 * shorter sequence whose positions are told by the data block. Attention of own queries
 * to all keys becomes one part for each rank's block of keys and values: while a part is
 * computed, the next block travels. Parts join by their log-sum-exps in float32, in an
 * order that each rank's place in the ring fixes. What waits for what is said by the
 * operands alone; the streams of a program overlap the rest.
 *
 * Blocks in memory: an exchange begins once the part before the present one is done
 * (operand `after`), so that two blocks exist at a time, not one of every rank.
 *
 * Source: Liu et al. 2023 (arXiv 2310.01889); chunks i and 2*cp-1-i for rank i as in
 * Megatron-LM's context parallelism and zigzag ring attention. */
#include "dhelix/graph.h"
#include "dhelix/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which tokens, which pairs -------------------------------------------------------- */

int64_t dh_cp_position(const dh_dims *dims, int64_t cp_rank, int64_t t)
{
    const int64_t half = dims->seq / 2, cp = DH_MAX(dims->cp, 1);
    return t < half ? cp_rank * half + t : (2 * cp - 1 - cp_rank) * half + t - half;
}

/* A rank has an early chunk and a late one. Blocks from lower ranks have an early chunk
 * before both of ours and a late one behind both; those from higher ranks have both
 * between ours. */
dh_ring_part dh_ring_part_of(const dh_dims *dims, int32_t step)
{
    const int64_t half = dims->seq / 2;
    dh_ring_part p = {.from = dims->cp_rank - step, .n_q = dims->seq, .n_k = dims->seq};
    if (step == 0) return p;
    if (p.from >= 0) {
        p.n_k = half;
    } else {
        p.from += dims->cp;
        p.q0 = half;
        p.n_q = dims->seq - half;
    }
    return p;
}

/* ---- rewrite --------------------------------------------------------------------------- */

typedef struct rewrite {
    dh_graph *graph;
    DH_VEC(dh_op) ops; /* the new order */
    bool failed;
} rewrite;

static uint32_t add_tensor(rewrite *r, const dh_tensor *like, const char *name, int32_t step,
                           dh_dtype dtype)
{
    dh_tensor t = *like;
    t.dtype = dtype;
    snprintf(t.name, sizeof t.name, "%.12s.%d", name, step);
    uint32_t id = dh_graph_add_tensor(r->graph, &t);
    r->failed |= id == DH_NONE;
    return id;
}

static void push(rewrite *r, const dh_op *op)
{
    r->failed |= !dh_vec_push(&r->ops, *op);
}

static dh_op new_op(dh_op_type type, int32_t step)
{
    dh_op op = {.type = type, .phase = DH_PHASE_F, .site = -1, .group = -1, .param = DH_NONE};
    memset(op.in, 0xff, sizeof op.in);
    memset(op.out, 0xff, sizeof op.out);
    op.step = step;
    return op;
}

/* Keys and values of the rank's own tokens, out of packed qkv. */
static uint32_t pack_block(rewrite *r, uint32_t qkv)
{
    const dh_dims *d = &r->graph->dims;
    dh_tensor kv = r->graph->tensors.at[qkv];
    kv.shape[1] = 2 * d->n_kv_heads * d->head_dim;
    dh_op op = new_op(DH_OP_KV_PACK, 0);
    op.in[0] = qkv;
    op.out[0] = add_tensor(r, &kv, "kv", 0, kv.dtype);
    push(r, &op);
    return op.out[0];
}

static uint32_t exchange(rewrite *r, uint32_t kv, int32_t step, uint32_t after)
{
    if (r->failed) return DH_NONE;
    dh_tensor like = r->graph->tensors.at[kv];
    dh_op op = new_op(DH_OP_RING_EXCHANGE, 0);
    op.group = DH_GROUP_CP;
    op.in[0] = kv;
    op.in[1] = after;
    op.out[0] = add_tensor(r, &like, "kv", step, like.dtype);
    push(r, &op);
    return op.out[0];
}

static void ring(rewrite *r, const dh_op *attn)
{
    const int32_t last = (int32_t)r->graph->dims.cp - 1;
    const dh_tensor o = r->graph->tensors.at[attn->out[0]];
    const dh_tensor lse = r->graph->tensors.at[attn->out[1]];
    uint32_t kv = pack_block(r, attn->in[0]), next = DH_NONE;
    dh_op part = new_op(DH_OP_RING_ATTN, 0);
    part.in[0] = attn->in[0];
    for (int32_t s = 0; s <= last && !r->failed; s++, kv = next) {
        uint32_t done = part.out[1]; /* of the part before */
        if (s < last) next = exchange(r, kv, s + 1, done);
        part.step = s;
        part.in[1] = kv;
        part.in[2] = part.out[0];
        part.in[3] = done;
        part.out[0] = s == last ? attn->out[0] : add_tensor(r, &o, "o", s, DH_F32);
        part.out[1] = s == last ? attn->out[1] : add_tensor(r, &lse, "lse", s, DH_F32);
        push(r, &part);
    }
}

/* What the ranks' tokens chose is summed before anyone uses it. */
static void sum_router(rewrite *r, const dh_op *aux)
{
    dh_op op = new_op(DH_OP_ALL_REDUCE, 0);
    op.group = DH_GROUP_CP;
    op.in[0] = op.out[0] = aux->in[0];
    push(r, &op);
    push(r, aux);
}

static dh_status split_dims(dh_ctx *ctx, dh_dims *d, int64_t cp, int64_t cp_rank)
{
    if (d->seq % 2)
        return dh_fail(ctx, DH_EINVAL,
                       "sequences of %lld tokens do not divide into 2 * parallel.cp = %lld chunks: "
                       "change train.seq_len",
                       (long long)(d->seq * cp), (long long)(2 * cp));
    d->cp = cp;
    d->cp_rank = cp_rank;
    d->max_seq = d->seq * cp;
    d->router_rows *= cp;
    d->aux_scale *= (double)cp;
    return DH_OK;
}

dh_status dh_pass_context_parallel(dh_ctx *ctx, dh_graph *graph, int64_t cp, int64_t cp_rank)
{
    if (cp == 1) return DH_OK;
    if (graph->dx_in != DH_NONE || graph->mode == DH_MODE_DECODE)
        return dh_fail(ctx, DH_EINVAL,
                       "context parallelism rewrites forward graphs of training and evaluation");
    DH_TRY(split_dims(ctx, &graph->dims, cp, cp_rank));
    rewrite r = {.graph = graph};
    for (size_t i = 0; i < graph->ops.n && !r.failed; i++) {
        const dh_op op = graph->ops.at[i];
        if (op.type == DH_OP_ATTN)
            ring(&r, &op);
        else if (op.type == DH_OP_ROUTER_AUX)
            sum_router(&r, &op);
        else
            push(&r, &op);
    }
    if (r.failed) {
        dh_vec_fini(&r.ops);
        return dh_fail(ctx, DH_ENOMEM, "out of memory splitting a graph");
    }
    dh_vec_fini(&graph->ops);
    graph->ops.at = r.ops.at;
    graph->ops.n = r.ops.n;
    graph->ops.cap = r.ops.cap;
    return DH_OK;
}
