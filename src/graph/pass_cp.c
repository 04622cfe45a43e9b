/* Context parallelism as a rewrite of a forward graph.
 *
 * Except for attention, everything works token by token. The rank's graph is therefore that of a
 * shorter sequence whose positions the data block tells. Attention of own queries to all keys
 * becomes one part for each rank's block of keys and values: while a part is computed, the next
 * block travels. Parts join by their log-sum-exps in float32, in an order that each rank's place in
 * the ring fixes. The operands alone say which operator waits for which. The streams of a program
 * overlap the rest.
 *
 * Linear attention needs from other ranks' tokens only their sums k v^T, of D x D a head whatever
 * the length. Its work does not grow along the sequence, so ranks have consecutive shares of it.
 * The rank's state travels while the attention inside its share is computed. Then the contribution
 * of all earlier states is joined. LASP-2 takes one all-gather. LASP takes cp - 1 exchanges, each
 * of which hands on what came with the rank's own state added, so none begins before its
 * predecessor. With layers of softmax attention in between (LASP-2H) ranks have the rings' two
 * chunks of a sequence, for all layers. So tokens do not move between layers, and rings stay
 * balanced, as they would not with consecutive shares. To linear attention each chunk is a sequence
 * with a state of its own, and twice as many states are gathered.
 *
 * Blocks in memory: an exchange begins once the part before the present one is done
 * (operand `after`), so that two blocks exist at a time, not one of every rank.
 *
 * Source: Liu et al. 2023 (arXiv 2310.01889); chunks i and 2*cp-1-i for rank i as in
 * Megatron-LM's context parallelism and zigzag ring attention. LASP: Sun et al. 2024,
 * algorithm 2 (arXiv 2404.02882). LASP-2: Sun et al. 2025, algorithm 2 (arXiv 2502.07563). */
#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

/* ---- which tokens, which pairs -------------------------------------------------------- */

int64_t dh_cp_chunks(const dh_dims *dims)
{
    return dims->cp > 1 && (!dims->linear || dims->zigzag) ? 2 : 1;
}

/* Early chunks from the first rank to the last, late ones back. */
dh_cp_chunk dh_cp_chunk_at(const dh_dims *dims, int64_t n)
{
    return n < dims->cp ? (dh_cp_chunk){n, 0} : (dh_cp_chunk){2 * dims->cp - 1 - n, 1};
}

int64_t dh_cp_position(const dh_dims *dims, int64_t cp_rank, int64_t t)
{
    const int64_t half = dims->seq / 2, cp = DH_MAX(dims->cp, 1);
    if (dh_cp_chunks(dims) == 1) return cp_rank * dims->seq + t;
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

static uint32_t add_tensor(rewrite *r, const dh_tensor *like, const char *name, int32_t step,
                           dh_dtype dtype)
{
    dh_tensor t = *like;
    t.dtype = dtype;
    rewrite_name(&t, "%.12s.%d", name, step);
    return rewrite_add(r, &t);
}

/* Keys and values of the rank's own tokens, out of packed qkv. */
static uint32_t pack_block(rewrite *r, uint32_t qkv)
{
    const dh_dims *d = &r->graph->dims;
    dh_tensor kv = *rewrite_tensor(r, qkv);
    kv.shape[1] = 2 * d->n_kv_heads * d->head_dim;
    const uint32_t id = add_tensor(r, &kv, "kv", 0, kv.dtype);
    rewrite_push_op(r, DH_OP_KV_PACK, DH_PHASE_F, -1, REWRITE_IDS(qkv), REWRITE_IDS(id));
    return id;
}

static uint32_t exchange(rewrite *r, uint32_t kv, int32_t step, uint32_t after)
{
    if (r->failed) return DH_NONE;
    const dh_tensor like = *rewrite_tensor(r, kv);
    const uint32_t id = add_tensor(r, &like, "kv", step, like.dtype);
    rewrite_push_op(r, DH_OP_RING_EXCHANGE, DH_PHASE_F, DH_GROUP_CP, REWRITE_IDS(kv, after),
                    REWRITE_IDS(id));
    return id;
}

static void rewrite_attn(rewrite *r, const dh_op *attn)
{
    const int32_t last = (int32_t)r->graph->dims.cp - 1;
    const dh_tensor o = *rewrite_tensor(r, attn->out[0]), lse = *rewrite_tensor(r, attn->out[1]);
    uint32_t kv = pack_block(r, attn->in[0]), next = DH_NONE;
    dh_op part = dh_op_make(DH_OP_RING_ATTN, DH_PHASE_F,
                            REWRITE_IDS(attn->in[0], DH_NONE, DH_NONE, DH_NONE, attn->in[1]),
                            REWRITE_IDS(DH_NONE, DH_NONE));
    for (int32_t s = 0; s <= last && !r->failed; s++, kv = next) {
        uint32_t done = part.out[1]; /* log-sum-exps of the part before */
        if (s < last) next = exchange(r, kv, s + 1, done);
        part.step = s;
        part.in[1] = kv;
        part.in[2] = part.out[0];
        part.in[3] = done;
        part.out[0] = s == last ? attn->out[0] : add_tensor(r, &o, "o", s, DH_F32);
        part.out[1] = s == last ? attn->out[1] : add_tensor(r, &lse, "lse", s, DH_F32);
        rewrite_push(r, &part);
    }
}

/* ---- linear attention ---------------------------------------------------------------------- */

/* A state of each sample and key head, D x D. */
static dh_tensor state_like(rewrite *r, uint32_t qkv)
{
    const dh_dims *d = &r->graph->dims;
    const dh_attn_sizes s = dh_linear_sizes(r->graph, rewrite_tensor(r, qkv));
    return (dh_tensor){.kind = DH_TENSOR_ACT,
                       .dtype = DH_F32,
                       .ndim = 2,
                       .shape = {s.batch * s.n_kv_heads * d->head_dim, d->head_dim},
                       .axis = {DH_AXIS_HEADS, DH_AXIS_NONE},
                       .base = DH_NONE,
                       .which = DH_NONE};
}

/* A rank's share of one attention. */
typedef struct share {
    const dh_op *attn;
    dh_tensor state;     /* like its states */
    uint32_t own, o_own; /* state of its tokens; what these give each other */
} share;

static void attend_to_own(rewrite *r, const share *s)
{
    rewrite_push_op(r, DH_OP_LINEAR_ATTN, DH_PHASE_F, -1, REWRITE_IDS(s->attn->in[0]),
                    REWRITE_IDS(s->o_own));
}

/* LASP-2. */
static uint32_t gather_states(rewrite *r, const share *s)
{
    dh_tensor all_like = s->state;
    all_like.shape[0] *= r->graph->dims.cp;
    const uint32_t all = add_tensor(r, &all_like, "m.all", 0, DH_F32);
    const uint32_t before = add_tensor(r, &s->state, "m.before", 0, DH_F32);
    rewrite_push_op(r, DH_OP_ALL_GATHER, DH_PHASE_F, DH_GROUP_CP, REWRITE_IDS(s->own),
                    REWRITE_IDS(all));
    attend_to_own(r, s);
    rewrite_push_op(r, DH_OP_LINEAR_BEFORE, DH_PHASE_F, -1, REWRITE_IDS(all), REWRITE_IDS(before));
    return before;
}

/* LASP: what arrives last is what lies before the rank. The attention stands beside the first
 * exchange, the others have nothing to run beside. */
static uint32_t hand_on_states(rewrite *r, const share *s)
{
    uint32_t next = s->own, came = DH_NONE;
    for (int32_t k = 1; k < r->graph->dims.cp && !r->failed; k++) {
        if (k > 1) {
            next = add_tensor(r, &s->state, "m.next", k, DH_F32);
            rewrite_push_op(r, DH_OP_LINEAR_PASS, DH_PHASE_F, -1, REWRITE_IDS(s->own, came),
                            REWRITE_IDS(next));
        }
        came = add_tensor(r, &s->state, "m.came", k, DH_F32);
        dh_op shift = dh_op_make(DH_OP_SHIFT, DH_PHASE_F, REWRITE_IDS(next), REWRITE_IDS(came));
        shift.group = DH_GROUP_CP;
        shift.by = 1;
        rewrite_push(r, &shift);
        if (k == 1) attend_to_own(r, s);
    }
    return came;
}

static void rewrite_linear_attn(rewrite *r, const dh_op *attn)
{
    const uint32_t qkv = attn->in[0], o = attn->out[0];
    const dh_tensor o_like = *rewrite_tensor(r, o);
    share s = {.attn = attn, .state = state_like(r, qkv)};
    s.own = add_tensor(r, &s.state, "m", 0, DH_F32);
    s.o_own = add_tensor(r, &o_like, "o.own", 0, DH_F32);
    rewrite_push_op(r, DH_OP_LINEAR_STATE, DH_PHASE_F, -1, REWRITE_IDS(qkv), REWRITE_IDS(s.own));
    const uint32_t before =
        r->graph->dims.linear_ring ? hand_on_states(r, &s) : gather_states(r, &s);
    rewrite_push_op(r, DH_OP_LINEAR_JOIN, DH_PHASE_F, -1, REWRITE_IDS(s.o_own, qkv, before),
                    REWRITE_IDS(o));
}

/* ---- experts ------------------------------------------------------------------------------- */

/* The load-balancing loss is of all ranks' tokens. */
static void rewrite_router(rewrite *r, const dh_op *op)
{
    dh_op all = *op;
    all.rows *= r->graph->dims.cp;
    rewrite_push(r, &all);
}

/* The sums of the ranks' choices come before any use of them. */
static void rewrite_router_aux(rewrite *r, const dh_op *op)
{
    const uint32_t *sums = REWRITE_IDS(op->in[0]);
    rewrite_push_op(r, DH_OP_ALL_REDUCE, DH_PHASE_F, DH_GROUP_CP, sums, sums);
    rewrite_router(r, op);
}

/* By operator: those that work token by token stay as they are. */
static void (*const rules[DH_N_OP_TYPE])(rewrite *, const dh_op *) = {
    [DH_OP_ATTN] = rewrite_attn,          [DH_OP_ROUTER_AUX] = rewrite_router_aux,
    [DH_OP_LOAD] = rewrite_push,          [DH_OP_EMBED] = rewrite_push,
    [DH_OP_NORM] = rewrite_push,          [DH_OP_LINEAR] = rewrite_push,
    [DH_OP_ROPE] = rewrite_push,          [DH_OP_RESIDUAL] = rewrite_push,
    [DH_OP_ACT] = rewrite_push,           [DH_OP_ROUTER] = rewrite_router,
    [DH_OP_ROUTER_SUMS] = rewrite_push,   [DH_OP_MOE_ORDER] = rewrite_push,
    [DH_OP_MOE_PERMUTE] = rewrite_push,   [DH_OP_GROUPED_LINEAR] = rewrite_push,
    [DH_OP_MOE_UNPERMUTE] = rewrite_push, [DH_OP_LOSS_STATS] = rewrite_push,
    [DH_OP_LOSS] = rewrite_push,          [DH_OP_LOSS_GRAD] = rewrite_push,
    [DH_OP_LINEAR_DGRAD] = rewrite_push,  [DH_OP_LINEAR_WGRAD] = rewrite_push,
    [DH_OP_ADAPT] = rewrite_push,         [DH_OP_SPLIT_COLUMNS] = rewrite_push,
    [DH_OP_JOIN_COLUMNS] = rewrite_push,  [DH_OP_HEAD_NORM] = rewrite_push,
    [DH_OP_SCALE] = rewrite_push,         [DH_OP_SOFTCAP] = rewrite_push,
    [DH_OP_SOFTCAP_GRAD] = rewrite_push,  [DH_OP_QK_SQUARES] = rewrite_push,
    [DH_OP_QK_NORM] = rewrite_push,       [DH_OP_LINEAR_ATTN] = rewrite_linear_attn,
    [DH_OP_FEATURE_MAP] = rewrite_push,   [DH_OP_HEAD_RMS] = rewrite_push,
    [DH_OP_LATENT_PACK] = rewrite_push,   [DH_OP_LATENT_CUT] = rewrite_push,
    [DH_OP_ADD] = rewrite_push,           [DH_OP_BIAS_GRAD] = rewrite_push,
};

static dh_status split_dims(dh_ctx *ctx, dh_dims *dims, int64_t cp, int64_t cp_rank)
{
    dh_dims d = *dims;
    d.cp = cp;
    d.cp_rank = cp_rank;
    d.max_seq = d.seq * cp;
    d.aux_scale *= (double)cp;
    if (d.seq % dh_cp_chunks(&d))
        return dh_fail(ctx, DH_EINVAL,
                       "sequences of %lld tokens do not divide into 2 * parallel.cp = %lld chunks: "
                       "change train.seq_len",
                       (long long)d.max_seq, (long long)(2 * cp));
    if (d.linear && d.linear_ring && d.zigzag)
        return dh_fail(ctx, DH_EINVAL,
                       "states of linear attention go from rank to rank, but among layers of "
                       "softmax attention ranks have two chunks of a sequence: "
                       "parallel.cp_linear=lasp2 would be right");
    *dims = d;
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
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < graph->ops.n && !r.failed; i++) {
        const dh_op op = graph->ops.at[i];
        if (rules[op.type])
            rules[op.type](&r, &op);
        else
            st = rewrite_refuse(ctx, "context parallelism", &op);
    }
    return rewrite_end(ctx, &r, st, "splitting a graph");
}

/* ---- row ------------------------------------------------------------------------------------ */

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    return spec->mesh.cp > 1 ? NULL : "every sequence is on one rank (parallel.cp=1)";
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    return dh_pass_context_parallel(ctx, w->graph, w->spec->mesh.cp, w->rank.cp_rank);
}

const dh_pass dh_pass_row_context_parallel = {
    .name = "context-parallel",
    .doc = "gives a rank 2 chunks of each sequence; attention becomes a ring of exchanges and "
           "partial attentions (ring attention, arXiv 2310.01889). Where all layers have linear "
           "attention: 1 chunk and a gather of states (LASP-2, arXiv 2502.07563)",
    .place = DH_PASS_ON_MESH,
    .of_job = true,
    .varies_by = 1u << DH_MESH_CP,
    .applicable = applicable,
    .apply = apply};
