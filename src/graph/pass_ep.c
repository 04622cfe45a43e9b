/* Expert parallelism as a rewrite of a layer's forward graph.
 *
 * A rank keeps E / ep experts and routes its own tokens as before. Rows in the order by expert are
 * also in the order by rank that has the expert. They are sent there and arrive by source rank and
 * by expert within each. So they are runs of rows, of which run s belongs to expert s mod (E / ep).
 * That is the input of grouped linears, so nothing is put in order again. Results go back the way
 * the rows came. The backward follows by differentiation: an exchange is its own gradient, the
 * other way round.
 *
 * How many rows come is data. Dropless: counts are exchanged first, buffers have room for a
 * given number, and moe_offsets ends the run where more come. With a capacity every
 * rank sends each expert as many rows, and the exchange is of equal blocks.
 *
 * Goes after tensor parallelism, whose ranks exchange alike: each the rows for its share of the
 * experts' columns. If these ranks have experts of their own, they take part in the exchange with
 * the rows of their own tokens.
 *
 * Source: Lepikhin et al. 2020 (arXiv 2006.16668) section 3.2; dropless as in Gale et al.
 * 2022 (arXiv 2211.15841). */
#include <math.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

typedef struct pass {
    rewrite to;
    int64_t n_ranks;        /* that the experts are spread over, */
    dh_group_kind group;    /* which these are */
    int64_t tokens;         /* that the rank routes */
    bool capped;            /* experts have a capacity */
    int64_t own_rows;       /* rows that the rank's tokens make in the order by expert */
    int64_t share, room;    /* dropless: that come here if all ranks get as many; may come here */
    uint32_t sent, arrived; /* offsets of runs: before and after the exchange */
} pass;

static dh_tensor *tensor(pass *p, uint32_t id)
{
    return rewrite_tensor(&p->to, id);
}

static const char *degree_of(const pass *p)
{
    return p->group == DH_GROUP_EP ? "parallel.ep" : "parallel.ep * tp";
}

/* ---- sizes -------------------------------------------------------------------------------- */

static bool is_experts_weight(const dh_tensor *t)
{
    return t->kind == DH_TENSOR_PARAM && t->ndim == 3 && t->axis[0] == DH_AXIS_EXPERTS;
}

/* The even share of all ranks' choices times a factor; no more than all tokens of all
 * ranks, each in as many of the experts here as it may choose. */
static dh_status choose_room(dh_ctx *ctx, pass *p, int64_t experts_here, double room)
{
    const dh_dims *d = &p->to.graph->dims;
    const int64_t share = p->tokens * d->top_k;
    const int64_t most = p->n_ranks * p->tokens * DH_MIN(d->top_k, experts_here);
    if (p->capped) return DH_OK;
    if (!(room >= 1))
        return dh_fail(ctx, DH_EINVAL,
                       "moe.capacity=%g leaves no room for an even share of the rows, which "
                       "moe.mode dropless with %s=%lld needs: 1 at least, 2 is usual",
                       room, degree_of(p), (long long)p->n_ranks);
    p->share = share;
    p->room = DH_MIN((int64_t)ceil(DH_MIN(room * (double)share, (double)most)), most);
    return DH_OK;
}

static dh_status split_tensors(dh_ctx *ctx, pass *p, double room)
{
    int64_t n_split = 0, experts_here = 0;
    for (uint32_t i = 0; i < p->to.graph->tensors.n; i++) {
        dh_tensor *t = tensor(p, i);
        if (!is_experts_weight(t)) continue;
        if (t->shape[0] % p->n_ranks)
            return dh_fail(ctx, DH_EINVAL, "%s: %lld experts do not divide by %s=%lld", t->name,
                           (long long)t->shape[0], degree_of(p), (long long)p->n_ranks);
        experts_here = t->shape[0] /= p->n_ranks;
        n_split++;
    }
    if (n_split == 0)
        return dh_fail(ctx, DH_EINVAL, "%s=%lld, but the layer has no experts", degree_of(p),
                       (long long)p->n_ranks);
    DH_TRY(choose_room(ctx, p, experts_here, room));
    for (uint32_t i = 0; i < p->to.graph->tensors.n; i++) {
        if (tensor(p, i)->axis[0] != DH_AXIS_ROUTED) continue;
        p->own_rows = tensor(p, i)->shape[0];
        if (!p->capped) tensor(p, i)->shape[0] = p->room;
    }
    return DH_OK;
}

/* ---- operators ---------------------------------------------------------------------------- */

static uint32_t add_tensor(pass *p, uint32_t like, const char *name, int64_t rows)
{
    if (p->to.failed) return DH_NONE;
    dh_tensor t = *tensor(p, like);
    rewrite_name(&t, "%s", name);
    t.shape[0] = rows;
    return rewrite_add(&p->to, &t);
}

static void push_exchange(pass *p, dh_op_type type, const uint32_t *in, uint32_t out)
{
    rewrite_push_op(&p->to, type, DH_PHASE_F, (int32_t)p->group, in, REWRITE_IDS(out));
}

static void exchange(pass *p, uint32_t x, uint32_t from, uint32_t to, uint32_t y)
{
    if (p->capped) {
        push_exchange(p, DH_OP_ALL_TO_ALL, REWRITE_IDS(x), y);
        return;
    }
    dh_op op =
        dh_op_make(DH_OP_ALL_TO_ALL_ROWS, DH_PHASE_F, REWRITE_IDS(x, from, to), REWRITE_IDS(y));
    op.group = (int32_t)p->group;
    op.rows = p->share;
    rewrite_push(&p->to, &op);
}

/* Run s of the rows that arrive is as long as its sender says. With a capacity all runs
 * are of one length, before and after. */
static void rewrite_order(pass *p, dh_op *op)
{
    const uint32_t offsets = op->out[1];
    p->sent = p->arrived = offsets;
    if (p->capped) {
        rewrite_push(&p->to, op);
        return;
    }
    const int64_t n_runs = tensor(p, offsets)->shape[0] - 1;
    op->out[2] = add_tensor(p, offsets, "counts", n_runs);
    const uint32_t arriving = add_tensor(p, offsets, "arriving", n_runs);
    p->arrived = add_tensor(p, offsets, "arrived", n_runs + 1);
    rewrite_push(&p->to, op);
    push_exchange(p, DH_OP_ALL_TO_ALL, REWRITE_IDS(op->out[2]), arriving);
    dh_op arrive =
        dh_op_make(DH_OP_MOE_OFFSETS, DH_PHASE_F, REWRITE_IDS(arriving), REWRITE_IDS(p->arrived));
    arrive.room = p->room;
    arrive.rows = p->share;
    rewrite_push(&p->to, &arrive);
}

/* Operators after the permutation now take the arrived rows. */
static void rewrite_permute(pass *p, dh_op *op)
{
    const uint32_t arrived = op->out[0];
    op->out[0] = add_tensor(p, arrived, "routed.own", p->own_rows);
    rewrite_push(&p->to, op);
    exchange(p, op->out[0], p->sent, p->arrived, arrived);
}

static void rewrite_grouped(pass *p, dh_op *op)
{
    op->in[2] = p->arrived;
    op->rows = p->share;
    rewrite_push(&p->to, op);
}

static void rewrite_unpermute(pass *p, dh_op *op)
{
    const uint32_t own = add_tensor(p, op->in[0], "y.own", p->own_rows);
    exchange(p, op->in[0], p->arrived, p->sent, own);
    op->in[0] = own;
    rewrite_push(&p->to, op);
}

static void keep(pass *p, dh_op *op)
{
    rewrite_push(&p->to, op);
}

/* Operators of a layer: a token's rows stay with it, except from the permutation to its end. */
static void (*const rules[DH_N_OP_TYPE])(pass *, dh_op *) = {
    [DH_OP_MOE_ORDER] = rewrite_order,
    [DH_OP_MOE_PERMUTE] = rewrite_permute,
    [DH_OP_GROUPED_LINEAR] = rewrite_grouped,
    [DH_OP_MOE_UNPERMUTE] = rewrite_unpermute,
    [DH_OP_NORM] = keep,
    [DH_OP_LINEAR] = keep,
    [DH_OP_ADAPT] = keep,
    [DH_OP_SPLIT_COLUMNS] = keep,
    [DH_OP_HEAD_NORM] = keep,
    [DH_OP_QK_SQUARES] = keep,
    [DH_OP_QK_NORM] = keep,
    [DH_OP_ROPE] = keep,
    [DH_OP_ATTN] = keep,
    [DH_OP_KV_PACK] = keep,
    [DH_OP_RING_ATTN] = keep,
    [DH_OP_RING_EXCHANGE] = keep,
    [DH_OP_FEATURE_MAP] = keep,
    [DH_OP_LINEAR_ATTN] = keep,
    [DH_OP_LINEAR_STATE] = keep,
    [DH_OP_LINEAR_BEFORE] = keep,
    [DH_OP_LINEAR_PASS] = keep,
    [DH_OP_LINEAR_JOIN] = keep,
    [DH_OP_HEAD_RMS] = keep,
    [DH_OP_SHIFT] = keep,
    [DH_OP_LATENT_PACK] = keep,
    [DH_OP_LATENT_CUT] = keep,
    [DH_OP_JOIN_COLUMNS] = keep,
    [DH_OP_ALL_TO_ALL] = keep,
    [DH_OP_ADD] = keep,
    [DH_OP_RESIDUAL] = keep,
    [DH_OP_ACT] = keep,
    [DH_OP_ROUTER] = keep,
    [DH_OP_ROUTER_SUMS] = keep,
    [DH_OP_ALL_GATHER] = keep,
    [DH_OP_ALL_REDUCE] = keep,
    [DH_OP_REDUCE_SCATTER] = keep,
};

/* ---- entry -------------------------------------------------------------------------------- */

static dh_status rewrite_all(dh_ctx *ctx, pass *p, double room)
{
    for (size_t i = 0; i < p->to.graph->ops.n; i++)
        p->capped |= p->to.graph->ops.at[i].capacity > 0;
    DH_TRY(split_tensors(ctx, p, room));
    const dh_graph *g = p->to.graph;
    for (size_t i = 0; i < g->ops.n && !p->to.failed; i++) {
        dh_op op = g->ops.at[i];
        if (!rules[op.type]) return rewrite_refuse(ctx, "expert parallelism", &op);
        rules[op.type](p, &op);
    }
    return DH_OK;
}

dh_status dh_pass_expert_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard, double room)
{
    const int64_t n_ranks = dh_shard_expert_ranks(&shard);
    if (n_ranks <= 1 || graph->kind != DH_BLOCK_LAYER) return DH_OK;
    if (graph->dx_in != DH_NONE || graph->mode == DH_MODE_DECODE)
        return dh_fail(ctx, DH_EINVAL,
                       "expert parallelism rewrites forward graphs of training and evaluation");
    const int64_t tokens = graph->dims.batch * graph->dims.seq;
    pass p = {.to = {.graph = graph},
              .n_ranks = n_ranks,
              .group = shard.whole_experts ? DH_GROUP_TP_EP : DH_GROUP_EP,
              .tokens = shard.whole_experts ? tokens / shard.tp : tokens,
              .sent = DH_NONE,
              .arrived = DH_NONE};
    return rewrite_end(ctx, &p.to, rewrite_all(ctx, &p, room), "splitting a graph");
}

/* ---- row ------------------------------------------------------------------------------------ */

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    const dh_mesh *m = &spec->mesh;
    if (m->ep > 1 || m->whole_experts) return NULL;
    return "every expert is on every rank (parallel.ep=1)";
}

/* One among layers with experts, whose rows stay where they are. */
static bool is_dense(const dh_pass_work *w)
{
    const dh_build *b = &w->spec->build;
    return w->graph->kind == DH_BLOCK_LAYER && b->model &&
           dh_model_layer_kind(b->model, b->layer) & DH_LAYER_DENSE;
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    if (is_dense(w)) return DH_OK;
    return dh_pass_expert_parallel(ctx, w->graph, w->rank.shard, w->spec->moe_room);
}

const dh_pass dh_pass_row_expert_parallel = {
    .name = "expert-parallel",
    .doc = "sends rows to the ranks of the experts that their tokens chose, and back (GShard, "
           "arXiv 2006.16668)",
    .place = DH_PASS_ON_MESH,
    .of_job = true,
    .applicable = applicable,
    .apply = apply};
