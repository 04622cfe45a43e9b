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
 * One copy per node (moe.dispatch node). Where the ranks lie on several nodes a token may go to each
 * node once, whatever number of its experts are there. A rank sends the rows of its tokens, in the
 * order by node, to the rank at its own place on every node. Each row carries the experts that the
 * token chose there, and their weights. The receiver routes the rows again among the experts of its
 * node. It sorts them by source node and expert, and the ranks of the node exchange them. They
 * arrive as they would have without the detour: by source rank, by expert within each, and in the
 * order of tokens within these. Results come back to the rank between, which sums a token's rows by
 * the weights and sends one row back. The token's own rank adds those of all nodes.
 * The numbers of rows that cross nodes are data, also with a capacity. The token's rank decides
 * which choices are dropped. With a capacity, blocks inside a node are therefore of equal size.
 * Numbers. A sum over a token's experts is rounded to the type of rows on each node and then added
 * over nodes, forward and backward. Where a token's experts are on one node, no bit differs from
 * the exchange in one step.
 *
 * Goes after tensor parallelism, whose ranks exchange alike: each the rows for its share of the
 * experts' columns. If these ranks have experts of their own, they take part in the exchange with
 * the rows of their own tokens.
 *
 * Source: Lepikhin et al. 2020 (arXiv 2006.16668) section 3.2; dropless as in Gale et al.
 * 2022 (arXiv 2211.15841). One copy per node: DeepSeek-V3 (arXiv 2412.19437, 3.2.2) and DeepEP. */
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
    dh_group_stages stages; /* of a copy per node; n_nodes 0: rows go in one step */
    int64_t capacity;       /* rows of an expert for the rank's tokens; 0: dropless */
    struct {
        /* Numbers of places: of the rank's tokens by node; that come if all ranks get as many; that
         * may come. */
        int64_t own, share, room;
        uint32_t places;        /* place of each of the rank's tokens, by node */
        uint32_t sent, arrived; /* offsets of places by node: of the rank's, and of those here */
        uint32_t slots;         /* slots of the choices of places here, by expert */
        uint32_t weights;       /* weights of these choices */
        int64_t room_between;   /* rows in that order */
    } node;
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
    p->share = share;
    if (p->capped) return DH_OK;
    if (!(room >= 1))
        return dh_fail(ctx, DH_EINVAL,
                       "moe.capacity=%g leaves no room for an even share of the rows, which "
                       "moe.mode dropless with %s=%lld needs: 1 at least, 2 is usual",
                       room, degree_of(p), (long long)p->n_ranks);
    p->room = DH_MIN((int64_t)ceil(DH_MIN(room * (double)share, (double)most)), most);
    return DH_OK;
}

/* Expected number of nodes with an expert of a token's choice, as in cluster_comm.c. There are
 * `places` equal parts of n. All k choices miss one of them in C(n - n / places, k) of C(n, k)
 * cases. */
static double places_chosen(double places, double n, int64_t k)
{
    double missed = 1;
    for (int64_t i = 0; i < k; i++)
        missed *= DH_MAX(n - n / places - (double)i, 0) / DH_MAX(n - (double)i, 1);
    return places * (1 - missed);
}

/* Of a router that chooses among groups of experts, groups are on nodes as a whole or the other way
 * round. */
static double nodes_of_token(const pass *p, double n_experts)
{
    const dh_dims *d = &p->to.graph->dims;
    const double n_nodes = (double)p->stages.n_nodes;
    const double nodes = places_chosen(n_nodes, n_experts, d->top_k);
    if (d->n_groups <= 0 || d->n_groups % p->stages.n_nodes) return nodes;
    return DH_MIN(nodes, places_chosen(n_nodes, (double)d->n_groups, d->top_groups));
}

/* A rank between gets each token of the ranks at its place once at most. */
static void choose_node_rooms(pass *p, int64_t experts_here, double room)
{
    const dh_dims *d = &p->to.graph->dims;
    const int64_t n_nodes = p->stages.n_nodes, on_node = experts_here * p->stages.per_node;
    if (n_nodes == 0) return;
    const int64_t a_node = p->capped ? DH_MIN(p->tokens, on_node * p->capacity) : p->tokens;
    const int64_t most = n_nodes * p->tokens * DH_MIN(d->top_k, on_node);
    const double share = (double)p->tokens * nodes_of_token(p, (double)(experts_here * p->n_ranks));
    p->node.own = p->tokens * DH_MIN(d->top_k, n_nodes);
    p->node.share = DH_MIN((int64_t)ceil(share), n_nodes * a_node);
    p->node.room = n_nodes * a_node;
    p->node.room_between = p->own_rows;
    if (p->capped) return;
    p->node.room = (int64_t)DH_MIN(ceil(room * share), (double)p->node.room);
    p->node.room_between =
        (int64_t)DH_MIN(ceil(DH_MIN(room * (double)p->share, (double)most)), (double)most);
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
    for (size_t i = 0; i < p->to.graph->ops.n; i++)
        if (p->to.graph->ops.at[i].type == DH_OP_MOE_PERMUTE)
            p->own_rows = tensor(p, p->to.graph->ops.at[i].out[0])->shape[0];
    DH_CHECK(p->capped || p->own_rows > 0, "experts without rows of their own");
    /* as many times the room as they were the rows: parts of columns lie one after another */
    for (uint32_t i = 0; !p->capped && i < p->to.graph->tensors.n; i++) {
        dh_tensor *t = tensor(p, i);
        if (t->axis[0] != DH_AXIS_ROUTED) continue;
        t->shape[0] = t->shape[0] / p->own_rows * p->room;
        t->row0 = t->row0 / p->own_rows * p->room;
    }
    choose_node_rooms(p, experts_here, room);
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

/* ---- one copy per node --------------------------------------------------------------------- */

static bool by_node(const pass *p)
{
    return p->stages.n_nodes > 0;
}

static void push_rows(pass *p, dh_group_kind group, int64_t blocks, int64_t share, uint32_t x,
                      uint32_t from, uint32_t to, uint32_t y)
{
    dh_op op =
        dh_op_make(DH_OP_ALL_TO_ALL_ROWS, DH_PHASE_F, REWRITE_IDS(x, from, to), REWRITE_IDS(y));
    op.group = (int32_t)group;
    op.rows = share;
    op.blocks = (int32_t)blocks;
    rewrite_push(&p->to, &op);
}

/* Rows of places by node, to the ranks between; or back. */
static void cross(pass *p, bool goes, uint32_t x, uint32_t y)
{
    const uint32_t from = goes ? p->node.sent : p->node.arrived;
    const uint32_t to = goes ? p->node.arrived : p->node.sent;
    push_rows(p, p->stages.cross, 0, p->node.share, x, from, to, y);
}

/* The ranks of a node exchange what came from each node by itself. */
static void push_blocks(pass *p, uint32_t x, uint32_t y)
{
    const int64_t n_blocks = p->stages.n_nodes;
    if (p->to.failed) return;
    const int64_t n = tensor(p, x)->shape[0] / n_blocks;
    for (int64_t a = 0; a < n_blocks && !p->to.failed; a++) {
        const uint32_t from = rewrite_rows(&p->to, x, "block.sent", a * n, n);
        const uint32_t to = rewrite_rows(&p->to, y, "block.got", a * n, n);
        rewrite_push_op(&p->to, DH_OP_ALL_TO_ALL, DH_PHASE_F, (int32_t)p->stages.local,
                        REWRITE_IDS(from), REWRITE_IDS(to));
    }
}

/* Rows by source node and expert, to the ranks of the experts; or back. */
static void inside(pass *p, bool goes, uint32_t x, uint32_t y)
{
    if (p->capped)
        push_blocks(p, x, y);
    else
        push_rows(p, p->stages.local, p->stages.n_nodes, p->share, x, goes ? p->sent : p->arrived,
                  goes ? p->arrived : p->sent, y);
}

/* From their lengths. */
static uint32_t push_offsets(pass *p, uint32_t lengths, const char *name, int64_t room,
                             int64_t share)
{
    if (p->to.failed) return DH_NONE;
    const uint32_t out = add_tensor(p, lengths, name, tensor(p, lengths)->shape[0] + 1);
    dh_op op = dh_op_make(DH_OP_MOE_OFFSETS, DH_PHASE_F, REWRITE_IDS(lengths), REWRITE_IDS(out));
    op.room = room;
    op.rows = share;
    rewrite_push(&p->to, &op);
    return out;
}

/* Of places, by a tensor with a row for each token. */
static uint32_t add_places(pass *p, uint32_t like, const char *name, int64_t n)
{
    const uint32_t id = add_tensor(p, like, name, n);
    if (!p->to.failed) tensor(p, id)->axis[0] = DH_AXIS_ROUTED;
    return id;
}

/* Places of the rank's tokens by node, and which experts there their choices are. Returns the
 * latter as the rank between has them. */
static uint32_t order_by_node(pass *p, const dh_op *order)
{
    const uint32_t experts = order->in[0], slots = order->out[0], offsets = order->out[1];
    const int64_t n_nodes = p->stages.n_nodes;
    p->node.places = add_tensor(p, slots, "places", p->tokens);
    p->node.sent = add_tensor(p, offsets, "places.sent", n_nodes + 1);
    const uint32_t counts = add_tensor(p, offsets, "places.counts", n_nodes);
    const uint32_t own = add_places(p, experts, "choices.own", p->node.own);
    const uint32_t coming = add_tensor(p, offsets, "places.coming", n_nodes);
    rewrite_push_op(&p->to, DH_OP_MOE_NODES, DH_PHASE_F, -1, REWRITE_IDS(experts, slots, offsets),
                    REWRITE_IDS(p->node.places, p->node.sent, counts, own));
    rewrite_push_op(&p->to, DH_OP_ALL_TO_ALL, DH_PHASE_F, (int32_t)p->stages.cross,
                    REWRITE_IDS(counts), REWRITE_IDS(coming));
    p->node.arrived = push_offsets(p, coming, "places.here", p->node.room, p->node.share);
    const uint32_t here = add_places(p, experts, "choices.here", p->node.room);
    cross(p, true, own, here);
    return here;
}

/* Dropless: lengths of the runs from each rank of the node. */
static void announce_inside(pass *p, uint32_t counts)
{
    const uint32_t arriving = add_tensor(p, counts, "arriving", tensor(p, counts)->shape[0]);
    p->sent = push_offsets(p, counts, "sent", p->node.room_between, p->share);
    push_blocks(p, counts, arriving);
    p->arrived = push_offsets(p, arriving, "arrived", p->room, p->share);
}

static void order_twice(pass *p, dh_op *op)
{
    rewrite_push(&p->to, op);
    const uint32_t here = order_by_node(p, op), offsets = op->out[1];
    if (p->to.failed) return;
    const uint32_t counts = add_tensor(p, offsets, "counts", tensor(p, offsets)->shape[0] - 1);
    p->node.slots = add_tensor(p, here, "slots.here", p->node.room);
    dh_op order = dh_op_make(DH_OP_MOE_NODE_ORDER, DH_PHASE_F, REWRITE_IDS(here, p->node.arrived),
                             REWRITE_IDS(p->node.slots, counts));
    order.capacity = p->capacity;
    order.room = p->capped ? 0 : p->node.room_between;
    rewrite_push(&p->to, &order);
    p->arrived = offsets;
    if (!p->capped && !p->to.failed) announce_inside(p, counts);
}

static void push_permute(pass *p, uint32_t x, uint32_t slots, uint32_t y)
{
    rewrite_push_op(&p->to, DH_OP_MOE_PERMUTE, DH_PHASE_F, -1, REWRITE_IDS(x, slots),
                    REWRITE_IDS(y));
}

/* Weights that the layer's results are summed by. */
static uint32_t weights_of(const pass *p)
{
    const dh_graph *g = p->to.graph;
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == DH_OP_MOE_UNPERMUTE) return g->ops.at[i].in[2];
    return DH_NONE;
}

static void permute_twice(pass *p, dh_op *op)
{
    const uint32_t routed = op->out[0], weights = weights_of(p);
    const uint32_t x_own = add_places(p, routed, "x.own", p->node.own);
    const uint32_t x_here = add_places(p, routed, "x.here", p->node.room);
    const uint32_t w_own = add_places(p, weights, "weights.own", p->node.own);
    p->node.weights = add_places(p, weights, "weights.here", p->node.room);
    const uint32_t sent = add_tensor(p, routed, "routed.own", p->node.room_between);
    op->in[1] = p->node.places;
    op->out[0] = x_own;
    rewrite_push(&p->to, op);
    cross(p, true, x_own, x_here);
    push_permute(p, weights, p->node.places, w_own);
    cross(p, true, w_own, p->node.weights);
    push_permute(p, x_here, p->node.slots, sent);
    inside(p, true, sent, routed);
}

static void push_unpermute(pass *p, uint32_t y, uint32_t slots, uint32_t weights, uint32_t x)
{
    rewrite_push_op(&p->to, DH_OP_MOE_UNPERMUTE, DH_PHASE_F, -1, REWRITE_IDS(y, slots, weights),
                    REWRITE_IDS(x));
}

static void unpermute_twice(pass *p, dh_op *op)
{
    const uint32_t y = op->in[0];
    const uint32_t got = add_tensor(p, y, "y.own", p->node.room_between);
    const uint32_t sum = add_places(p, y, "y.here", p->node.room);
    const uint32_t sums = add_places(p, y, "y.nodes", p->node.own);
    inside(p, false, y, got);
    push_unpermute(p, got, p->node.slots, p->node.weights, sum);
    cross(p, false, sum, sums);
    push_unpermute(p, sums, p->node.places, DH_NONE, op->out[0]);
}

/* ---- rules --------------------------------------------------------------------------------- */

/* Run s of the rows that arrive is as long as its sender says. With a capacity all runs
 * are of one length, before and after. */
static void rewrite_order(pass *p, dh_op *op)
{
    const uint32_t offsets = op->out[1];
    if (by_node(p)) {
        order_twice(p, op);
        return;
    }
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
    if (by_node(p)) {
        permute_twice(p, op);
        return;
    }
    op->out[0] = add_tensor(p, arrived, "routed.own", p->own_rows);
    rewrite_push(&p->to, op);
    exchange(p, op->out[0], p->sent, p->arrived, arrived);
}

static void rewrite_grouped(pass *p, dh_op *op)
{
    op->in[2] = p->arrived;
    op->rows = p->capped ? 0 : p->share;
    rewrite_push(&p->to, op);
}

static void rewrite_unpermute(pass *p, dh_op *op)
{
    if (by_node(p)) {
        unpermute_twice(p, op);
        return;
    }
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
        p->capacity = DH_MAX(p->capacity, p->to.graph->ops.at[i].capacity);
    p->capped = p->capacity > 0;
    DH_TRY(split_tensors(ctx, p, room));
    const dh_graph *g = p->to.graph;
    for (size_t i = 0; i < g->ops.n && !p->to.failed; i++) {
        dh_op op = g->ops.at[i];
        if (!rules[op.type]) return rewrite_refuse(ctx, "expert parallelism", &op);
        rules[op.type](p, &op);
    }
    return DH_OK;
}

dh_status dh_pass_expert_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard, double room,
                                  const dh_group_stages *stages)
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
              .arrived = DH_NONE,
              .stages = stages ? *stages : (dh_group_stages){.n_nodes = 0}};
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

dh_status dh_dispatch_by_node(dh_ctx *ctx, const dh_mesh *mesh, dh_group_stages *stages)
{
    const char *obstacle = dh_mesh_dispatch_stages(mesh, stages);
    if (!obstacle) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "moe.dispatch=node sends a token once to each node, but %s: "
                   "moe.dispatch=flat would be right",
                   obstacle);
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    if (is_dense(w)) return DH_OK;
    const dh_mesh *mesh = &w->spec->mesh;
    dh_group_stages stages;
    const bool node = w->spec->moe_dispatch == DH_DISPATCH_NODE;
    if (node) DH_TRY(dh_dispatch_by_node(ctx, mesh, &stages));
    return dh_pass_expert_parallel(ctx, w->graph, w->rank.shard, w->spec->moe_room,
                                   node ? &stages : NULL);
}

const dh_pass dh_pass_row_expert_parallel = {
    .name = "expert-parallel",
    .doc = "sends rows to the ranks of the experts that their tokens chose, and back (GShard, "
           "arXiv 2006.16668)",
    .place = DH_PASS_ON_MESH,
    .of_job = true,
    .applicable = applicable,
    .apply = apply};
