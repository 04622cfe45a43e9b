/* Tensor parallelism, with sequence parallelism or without, as a rewrite of a forward graph.
 *
 * Three things change. Axes that count heads, FFN columns or vocabulary shrink to
 * the rank's part. Tokens of the residual stream shrink to the rank's part. Where
 * the two regions meet, a collective goes in: all-gather into a column-parallel
 * linear, reduce-scatter out of a row-parallel linear or the embedding, all-gather
 * of the loss statistics. The backward follows by differentiation, which turns one
 * collective into the other. Where the stream is made in parts (views), a rank has its share of
 * each, and each has collectives of its own.
 *
 * Without sequence parallelism all ranks have all tokens. The sum of a row-parallel linear is an
 * all-reduce, whose gradient is the identity. The input of a column-parallel linear needs no
 * transfer, but each rank has a part of its gradient. These operators name the group, and
 * differentiation sums over it. All operators in between are computed by every rank alike, their
 * gradients too.
 *
 * Experts are cut into columns like any other FFN, and every rank has all rows that go to them. Or
 * they are spread over the ranks (shard.whole_experts; pass_ep.c). A rank then routes the rows of
 * its own tokens. The sums of the load-balancing loss count over all tokens, so they are gathered.
 *
 * Ranks with columns of the experts may share out the rows' own columns (shard.shared_rows). Each
 * has 1 / tp of every row on its way to the experts and back. The ranks gather rows where they
 * arrive. Tokens are then exchanged by columns before they are sorted by expert, in place of a
 * gather. Results are exchanged after they are back, in place of the scatter of a sum.
 *
 * Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
 * Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

typedef struct pass {
    rewrite to;
    dh_shard shard;
    uint32_t *gathered;      /* by tensor: all rows of a token-sharded one, DH_NONE */
    bool *own;               /* by tensor: it is the rank's rows already */
    DH_VEC(uint32_t) pieces; /* views in which norms wrote what is gathered */
    int64_t vocab0;          /* first id of the rank's shard */
    size_t n_tensors;        /* tensors of the graph before the rewrite */
} pass;

static bool splits(dh_axis axis)
{
    return axis == DH_AXIS_HEADS || axis == DH_AXIS_FFN || axis == DH_AXIS_VOCAB ||
           axis == DH_AXIS_LATENT;
}

/* Without sequence parallelism. */
static bool whole_tokens(const pass *p)
{
    return p->shard.sequence == DH_SEQUENCE_WHOLE;
}

static dh_tensor *tensor(pass *p, uint32_t id)
{
    return rewrite_tensor(&p->to, id);
}

/* ---- shapes ------------------------------------------------------------------------------- */

static dh_status split_axis(dh_ctx *ctx, pass *p, dh_tensor *t, int axis)
{
    if (t->axis[axis] == DH_AXIS_VOCAB) {
        int64_t first;
        dh_vocab_shard(t->shape[axis], p->shard, &first, &t->shape[axis]);
        return t->shape[axis] > 0
                   ? DH_OK
                   : dh_fail(ctx, DH_EINVAL, "parallel.tp=%lld leaves tp rank %lld no vocabulary",
                             (long long)p->shard.tp, (long long)p->shard.tp_rank);
    }
    if (t->shape[axis] % p->shard.tp != 0)
        return dh_fail(ctx, DH_EINVAL, "%s: axis of size %lld does not divide by parallel.tp=%lld",
                       t->name, (long long)t->shape[axis], (long long)p->shard.tp);
    t->shape[axis] /= p->shard.tp;
    return DH_OK;
}

/* Rows of each expert that a rank's tokens may have, where `capacity` are those of all. */
static int64_t own_capacity(const pass *p, int64_t capacity)
{
    return (capacity + p->shard.tp - 1) / p->shard.tp;
}

static int64_t capacity_of(const dh_graph *g)
{
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].capacity > 0) return g->ops.at[i].capacity;
    return 0;
}

/* Of experts that are spread, and of the rows of the rank's own tokens for them. */
static bool keep_columns(pass *p, dh_tensor *t, int64_t capacity)
{
    if (!p->shard.whole_experts) return false;
    if (t->axis[0] == DH_AXIS_ROUTED)
        t->shape[0] = capacity ? t->shape[0] / capacity * own_capacity(p, capacity)
                               : t->shape[0] / p->shard.tp;
    return t->axis[0] == DH_AXIS_ROUTED || (t->axis[0] == DH_AXIS_EXPERTS && t->ndim == 3);
}

static dh_status split_tensors(dh_ctx *ctx, pass *p)
{
    const int64_t capacity = capacity_of(p->to.graph);
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        dh_tensor *t = tensor(p, i);
        if (keep_columns(p, t, capacity)) continue;
        for (int a = 0; a < t->ndim; a++)
            if (splits(t->axis[a])) DH_TRY(split_axis(ctx, p, t, a));
    }
    return DH_OK;
}

static dh_status split_dims(dh_ctx *ctx, pass *p)
{
    dh_dims *d = &p->to.graph->dims;
    const int64_t tp = p->shard.tp;
    if (d->n_heads % tp || d->n_kv_heads % tp || d->ffn_width % tp)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld heads, %lld key/value heads and FFN width %lld must all divide by "
                       "parallel.tp=%lld",
                       (long long)d->n_heads, (long long)d->n_kv_heads, (long long)d->ffn_width,
                       (long long)tp);
    if (!whole_tokens(p) && d->batch * d->seq % tp)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld tokens of a micro-batch do not divide by "
                       "parallel.tp=%lld: change train.seq_len or train.micro_batch",
                       (long long)(d->batch * d->seq), (long long)tp);
    d->n_heads /= tp;
    d->n_kv_heads /= tp;
    if (!p->shard.whole_experts) d->ffn_width /= tp;
    /* Every rank's share is added up with the logits' gradient; or is that of its own rows. */
    if (!p->shard.whole_experts) d->aux_scale /= (double)tp;
    dh_vocab_shard(d->vocab, p->shard, &p->vocab0, &d->vocab);
    return DH_OK;
}

/* ---- collectives ---------------------------------------------------------------------------- */

static uint32_t add_tensor(pass *p, uint32_t like, const char *suffix, int64_t rows)
{
    if (p->to.failed) return DH_NONE;
    dh_tensor t = rewrite_like(&p->to, like);
    rewrite_name(&t, "%.18s%s", t.name, suffix);
    t.shape[0] = rows;
    return rewrite_add(&p->to, &t);
}

static void keep(pass *p, dh_op *op)
{
    rewrite_push(&p->to, op);
}

static void push_collective(pass *p, dh_op_type type, uint32_t in, uint32_t out)
{
    rewrite_push_op(&p->to, type, DH_PHASE_F, DH_GROUP_TP, REWRITE_IDS(in), REWRITE_IDS(out));
}

/* Rows of the residual stream that the rank has, of `rows` of the micro-batch. */
static int64_t rows_here(const pass *p, int64_t rows)
{
    return whole_tokens(p) ? rows : rows / p->shard.tp;
}

/* A tensor of the residual stream becomes the rank's rows. Of one in parts these are its rows of
 * the first part, then of the second: each part can be gathered and reduced by itself. */
static void keep_own_rows(pass *p, uint32_t id)
{
    if (id == DH_NONE || p->own[id]) return;
    dh_tensor *t = tensor(p, id);
    p->own[id] = true;
    t->shape[0] = rows_here(p, t->shape[0]);
    t->row0 = rows_here(p, t->row0);
    keep_own_rows(p, t->base);
}

/* Gathers what was written in pieces piece by piece; false: it was not. */
static bool gather_pieces(pass *p, uint32_t base, uint32_t all)
{
    bool any = false;
    for (size_t i = 0; i < p->pieces.n && !p->to.failed; i++) {
        const uint32_t piece = p->pieces.at[i];
        const dh_tensor t = *tensor(p, piece);
        if (t.base != base) continue;
        const uint32_t rows = rewrite_rows(&p->to, all, t.name, t.row0, t.shape[0]);
        keep_own_rows(p, piece);
        push_collective(p, DH_OP_ALL_GATHER, piece, rows);
        any = true;
    }
    return any;
}

/* All rows of x, gathered once however many operators want them. A view becomes a
 * view of the gathered base. */
static uint32_t gather(pass *p, uint32_t x)
{
    if (whole_tokens(p)) return x;
    const uint32_t base = dh_graph_storage(p->to.graph, x);
    if (p->gathered[base] == DH_NONE) {
        const int64_t times = p->own[base] ? p->shard.tp : 1;
        const uint32_t all = add_tensor(p, base, ".all", tensor(p, base)->shape[0] * times);
        p->gathered[base] = all;
        if (!gather_pieces(p, base, all)) {
            keep_own_rows(p, base);
            push_collective(p, DH_OP_ALL_GATHER, base, all);
        }
    }
    if (base == x) return p->gathered[base];
    tensor(p, x)->base = p->gathered[base];
    return x;
}

/* y gets the rank's rows of the sum of x. */
static void push_sum(pass *p, uint32_t x, uint32_t y)
{
    push_collective(p, whole_tokens(p) ? DH_OP_ALL_REDUCE : DH_OP_REDUCE_SCATTER, x, y);
}

/* y becomes the rank's rows of the sum of what `op` writes. */
static void reduce(pass *p, dh_op *op)
{
    uint32_t y = op->out[0];
    int64_t rows = tensor(p, y)->shape[0];
    uint32_t partial = add_tensor(p, y, ".part", rows);
    if (p->to.failed) return;
    keep_own_rows(p, y);
    op->out[0] = partial;
    keep(p, op);
    push_sum(p, partial, y);
}

/* Of operands, those with rows of tokens get the rank's. */
static void keep_own_tokens(pass *p, const uint32_t *ids)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (ids[k] != DH_NONE && tensor(p, ids[k])->axis[0] == DH_AXIS_TOKENS)
            keep_own_rows(p, ids[k]);
}

/* An operator that works on the rank's tokens alone. */
static void keep_own(pass *p, dh_op *op)
{
    keep_own_tokens(p, op->in);
    keep_own_tokens(p, op->out);
    keep(p, op);
}

/* A linear whose weight all ranks have works on the rank's rows; all get its result. */
static void gather_result(pass *p, dh_op *op)
{
    uint32_t y = op->out[0];
    uint32_t own = add_tensor(p, y, ".own", tensor(p, y)->shape[0] / p->shard.tp);
    op->out[0] = own;
    keep(p, op);
    push_collective(p, DH_OP_ALL_GATHER, own, y);
}

/* Each rank has a part of the gradient of what enters here. Where tokens are split, the gather
 * before it says so. */
static void sum_gradient(pass *p, dh_op *op)
{
    if (whole_tokens(p)) op->group = DH_GROUP_TP;
}

/* ---- operators ------------------------------------------------------------------------------ */

/* Adapters of a linear whose columns are split: all ranks have A and its whole result, and each
 * rank's B gives its columns. If rows are split, each rank's A gives a part of a sum. All have B,
 * which makes that a part of the linear's own sum. So nothing more is sent forward. In the backward
 * each rank has a part of the gradient of A's output. It is summed by itself if no collective
 * follows A's input anyway (it has the rank's columns, few). */
static void rewrite_adapter(pass *p, dh_op *op)
{
    const dh_tensor *w = tensor(p, op->in[1]);
    if (w->axis[1] == DH_AXIS_WIDTH) op->in[0] = gather(p, op->in[0]);
    if (splits(w->axis[0])) sum_gradient(p, op);
    keep(p, op);
}

static bool is_adapter(const pass *p, uint32_t weight)
{
    const dh_tensor *w = rewrite_tensor(&p->to, weight);
    return p->to.graph->kind == DH_BLOCK_LAYER && w->kind == DH_TENSOR_PARAM &&
           dh_param_is_adapter(w->which);
}

/* The sum over ranks follows what adapters add. */
static bool is_adapted(const pass *p, uint32_t y)
{
    const dh_graph *g = p->to.graph;
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == DH_OP_ADAPT && g->ops.at[i].in[1] == y) return true;
    return false;
}

/* Columns that are split count from the rank's first; others are parts of a sum. */
static void rewrite_adapt(pass *p, dh_op *op)
{
    if (!splits(tensor(p, op->in[1])->axis[1])) {
        reduce(p, op);
        return;
    }
    op->to /= p->shard.tp;
    keep(p, op);
}

/* y: the columns of some tensors, side by side, four at a time. */
static void push_join(pass *p, const uint32_t *parts, int64_t n, uint32_t y)
{
    enum { MOST = 4 };
    uint32_t in[MOST] = {DH_NONE, DH_NONE, DH_NONE, DH_NONE};
    const int64_t each = (n + MOST - 1) / MOST;
    if (!parts) return; /* p->to has failed */
    for (int64_t k = 0, at = 0; at < n && !p->to.failed; k++, at += each) {
        const int64_t n_here = DH_MIN(each, n - at);
        in[k] = parts[at];
        if (n_here == 1) continue;
        in[k] = add_tensor(p, parts[at], ".joined", tensor(p, parts[at])->shape[0]);
        if (p->to.failed) return;
        tensor(p, in[k])->shape[1] = n_here * tensor(p, parts[at])->shape[1];
        push_join(p, parts + at, n_here, in[k]);
    }
    rewrite_push_op(&p->to, DH_OP_JOIN_COLUMNS, DH_PHASE_F, -1, in, REWRITE_IDS(y));
}

/* Latent channels: each rank makes some of all tokens', and gets all of its own tokens'. Their
 * norms are then by rows, like those of the residual stream. */
static void rewrite_latent(pass *p, dh_op *op)
{
    const int64_t tp = p->shard.tp;
    const uint32_t y = op->out[0];
    uint32_t *parts = malloc((size_t)tp * sizeof *parts);
    op->in[0] = gather(p, op->in[0]);
    keep_own_rows(p, y);
    const uint32_t some = add_tensor(p, y, ".cols", tensor(p, y)->shape[0] * tp);
    const uint32_t own = add_tensor(p, y, ".own", tensor(p, y)->shape[0] * tp);
    p->to.failed |= !parts;
    if (!p->to.failed) {
        const int64_t rows = tensor(p, y)->shape[0];
        tensor(p, some)->shape[1] /= tp;
        tensor(p, own)->shape[1] /= tp;
        op->out[0] = some;
        keep(p, op);
        push_collective(p, DH_OP_ALL_TO_ALL, some, own);
        for (int64_t r = 0; r < tp && !p->to.failed; r++)
            parts[r] = rewrite_rows(&p->to, own, "latent.from", r * rows, rows);
        push_join(p, parts, tp, y);
    }
    free(parts);
}

static void rewrite_linear(pass *p, dh_op *op)
{
    if (is_adapter(p, op->in[1])) {
        rewrite_adapter(p, op);
        return;
    }
    const dh_tensor *w = tensor(p, op->in[1]);
    if (w->axis[0] == DH_AXIS_LATENT) {
        rewrite_latent(p, op);
        return;
    }
    bool column = splits(w->axis[0]), row = splits(w->axis[1]);
    if (column) {
        op->in[0] = gather(p, op->in[0]);
        sum_gradient(p, op);
    }
    if (row && !is_adapted(p, op->out[0])) /* an adapted one is summed with its adapter */
        reduce(p, op);
    else if (row || column || whole_tokens(p))
        keep(p, op);
    else if (p->shard.whole_experts)
        keep_own(p, op);
    else
        gather_result(p, op);
}

/* Weights of a token's experts, of whose gradient the experts' columns here make a part. */
static void rewrite_router(pass *p, dh_op *op)
{
    sum_gradient(p, op);
    keep(p, op);
}

/* The columns of x, side by side, to tensors; four at a time. */
static void push_split(pass *p, uint32_t x, const uint32_t *parts, int64_t n)
{
    enum { MOST = 4 };
    uint32_t out[MOST] = {DH_NONE, DH_NONE, DH_NONE, DH_NONE};
    const int64_t each = (n + MOST - 1) / MOST;
    for (int64_t k = 0, at = 0; at < n && !p->to.failed; k++, at += each) {
        const int64_t n_here = DH_MIN(each, n - at);
        out[k] = parts[at];
        if (n_here == 1) continue;
        out[k] = add_tensor(p, parts[at], ".both", tensor(p, parts[at])->shape[0]);
        if (p->to.failed) return;
        tensor(p, out[k])->shape[1] = n_here * tensor(p, parts[at])->shape[1];
    }
    rewrite_push_op(&p->to, DH_OP_SPLIT_COLUMNS, DH_PHASE_F, -1, REWRITE_IDS(x), out);
    for (int64_t k = 0, at = 0; at < n && !p->to.failed; k++, at += each) {
        const int64_t n_here = DH_MIN(each, n - at);
        if (n_here > 1)
            push_split(p, out[k], parts + at, n_here); // NOLINT(misc-no-recursion): depth is log n
    }
}

/* Columns of rows, one rank's after another's: `times` the rows of x, each with 1 / tp of its
 * columns.
 * out       parts [tp]: their views by rank, which the caller frees; NULL: out of memory */
static uint32_t add_by_columns(pass *p, uint32_t x, const char *suffix, int64_t times,
                               uint32_t **parts)
{
    const int64_t tp = p->shard.tp;
    *parts = NULL;
    if (p->to.failed) return DH_NONE;
    const int64_t n = tensor(p, x)->shape[0];
    const uint32_t all = add_tensor(p, x, suffix, n * times);
    *parts = calloc((size_t)tp, sizeof **parts);
    p->to.failed |= !*parts;
    if (p->to.failed) return DH_NONE;
    tensor(p, all)->shape[1] /= tp;
    for (int64_t r = 0; r < tp && !p->to.failed; r++)
        (*parts)[r] = rewrite_rows(&p->to, all, "columns.of", r * (n * times / tp), n * times / tp);
    return all;
}

/* Like x, with the rank's columns alone. */
static uint32_t add_own_columns(pass *p, uint32_t x, const char *suffix, int64_t rows)
{
    const uint32_t own = add_tensor(p, x, suffix, rows);
    if (!p->to.failed) tensor(p, own)->shape[1] /= p->shard.tp;
    return own;
}

/* The rank's tokens, of all columns, become all tokens, of its columns; rows of these go to the
 * experts' ranks and are gathered there. */
static void permute_columns(pass *p, dh_op *op)
{
    const uint32_t x = op->in[0], routed = op->out[0];
    uint32_t *parts;
    keep_own_rows(p, x);
    const uint32_t cut = add_by_columns(p, x, ".cut", p->shard.tp, &parts);
    if (!p->to.failed) push_split(p, x, parts, p->shard.tp);
    free(parts);
    const uint32_t some =
        p->to.failed ? DH_NONE : add_tensor(p, cut, ".cols", tensor(p, cut)->shape[0]);
    push_collective(p, DH_OP_ALL_TO_ALL, cut, some);
    if (p->to.failed) return;
    op->in[0] = some;
    op->out[0] = add_own_columns(p, routed, ".cols", tensor(p, routed)->shape[0]);
    keep(p, op);
    const uint32_t all = add_by_columns(p, routed, ".parts", p->shard.tp, &parts);
    push_collective(p, DH_OP_ALL_GATHER, op->out[0], all);
    if (!p->to.failed) push_join(p, parts, p->shard.tp, routed);
    free(parts);
}

/* Each rank has a part of every result, and gets the sum of its columns; these go back. */
static void unpermute_columns(pass *p, dh_op *op)
{
    const uint32_t y = op->in[0], f = op->out[0];
    uint32_t *parts;
    const uint32_t cut = add_by_columns(p, y, ".cut", p->shard.tp, &parts);
    if (!p->to.failed) push_split(p, y, parts, p->shard.tp);
    free(parts);
    if (p->to.failed) return;
    op->in[0] = add_own_columns(p, y, ".cols", tensor(p, y)->shape[0]);
    push_collective(p, DH_OP_REDUCE_SCATTER, cut, op->in[0]);
    op->out[0] = add_own_columns(p, f, ".cols", tensor(p, f)->shape[0]);
    keep(p, op);
    keep_own_rows(p, f);
    const uint32_t own = add_by_columns(p, f, ".own", p->shard.tp, &parts);
    push_collective(p, DH_OP_ALL_TO_ALL, op->out[0], own);
    if (!p->to.failed) push_join(p, parts, p->shard.tp, f);
    free(parts);
}

static void rewrite_moe_unpermute(pass *p, dh_op *op)
{
    (p->shard.shared_rows ? unpermute_columns : reduce)(p, op);
}

static void rewrite_moe_permute(pass *p, dh_op *op)
{
    if (p->shard.shared_rows) {
        permute_columns(p, op);
        return;
    }
    op->in[0] = gather(p, op->in[0]);
    sum_gradient(p, op);
    keep(p, op);
}

/* Every rank has the sums of all tokens, since every one takes gradients of its rows by them. */
static void gather_router_sums(pass *p, dh_op *op)
{
    for (int k = 0; k < 2; k++) op->in[k] = gather(p, op->in[k]);
    keep(p, op);
}

static void order_own_rows(pass *p, dh_op *op)
{
    op->capacity = own_capacity(p, op->capacity);
    keep_own(p, op);
}

/* Each rank sums over its own heads. */
static void sum_heads(pass *p, dh_op *op)
{
    const uint32_t sums = op->out[0];
    op->out[0] = add_tensor(p, sums, ".part", tensor(p, sums)->shape[0]);
    keep(p, op);
    push_collective(p, DH_OP_ALL_REDUCE, op->out[0], sums);
}

/* Gradients of the sums too come only from the rank's own heads. */
static void rewrite_qk_norm(pass *p, dh_op *op)
{
    op->group = DH_GROUP_TP;
    keep(p, op);
}

/* Split the rank's rows, or all tokens'. */
static void rewrite_split(pass *p, dh_op *op)
{
    (p->own[op->in[0]] ? keep_own : keep)(p, op);
}

/* Pack the rank's heads, whose keys have rotated channels of all tokens in common. */
static void rewrite_latent_pack(pass *p, dh_op *op)
{
    op->in[2] = gather(p, op->in[2]);
    keep(p, op);
}

static void rewrite_embed(pass *p, dh_op *op)
{
    op->vocab0 = p->vocab0;
    if (p->shard.tp_rank != 0) op->in[4] = DH_NONE; /* positions are added once */
    reduce(p, op);
}

static void rewrite_norm(pass *p, dh_op *op)
{
    keep_own_rows(p, op->in[0]);
    keep_own_rows(p, op->out[1]);
    keep(p, op); /* y becomes the rank's rows when it is gathered */
    if (tensor(p, op->out[0])->base != DH_NONE)
        p->to.failed |= !dh_vec_push(&p->pieces, op->out[0]);
}

/* The rank's rows of a per-token input. */
static uint32_t own_rows(pass *p, uint32_t id)
{
    if (id == DH_NONE || whole_tokens(p) || p->to.failed) return id;
    const int64_t n = tensor(p, id)->shape[0] / p->shard.tp;
    char name[sizeof tensor(p, id)->name];
    snprintf(name, sizeof name, "%.18s.own", tensor(p, id)->name);
    return rewrite_rows(&p->to, id, name, p->shard.tp_rank * n, n);
}

static void rewrite_residual(pass *p, dh_op *op)
{
    keep_own_rows(p, op->in[0]);
    keep_own_rows(p, op->in[1]); /* a sum, or the norm of one */
    keep_own_rows(p, op->out[0]);
    op->in[3] = own_rows(p, op->in[3]);
    op->in[4] = own_rows(p, op->in[4]);
    keep(p, op);
}

/* Of rows that are summed column by column. */
static void rewrite_join(pass *p, dh_op *op)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++) keep_own_rows(p, op->in[k]);
    keep_own_rows(p, op->out[0]);
    keep(p, op);
}

/* Statistics of the vocabulary shards are gathered and merged. */
static void rewrite_loss_stats(pass *p, dh_op *op)
{
    uint32_t stats = op->out[0];
    int64_t rows = tensor(p, stats)->shape[0];
    uint32_t local = add_tensor(p, stats, ".shard", rows);
    uint32_t parts = add_tensor(p, stats, ".parts", rows * p->shard.tp);
    op->out[0] = local;
    op->vocab0 = p->vocab0;
    keep(p, op);
    push_collective(p, DH_OP_ALL_GATHER, local, parts);
    rewrite_push_op(&p->to, DH_OP_LOSS_MERGE, DH_PHASE_F, -1, REWRITE_IDS(parts),
                    REWRITE_IDS(stats));
}

static void rewrite_loss_grad(pass *p, dh_op *op)
{
    op->vocab0 = p->vocab0;
    keep(p, op);
}

/* Kept operators work on the axes that are split, or on tensors that all ranks have. */
static void (*const rules[DH_N_OP_TYPE])(pass *, dh_op *) = {
    [DH_OP_LINEAR] = rewrite_linear,
    [DH_OP_EMBED] = rewrite_embed,
    [DH_OP_NORM] = rewrite_norm,
    [DH_OP_ROUTER] = rewrite_router,
    [DH_OP_MOE_PERMUTE] = rewrite_moe_permute,
    [DH_OP_MOE_UNPERMUTE] = rewrite_moe_unpermute,
    [DH_OP_RESIDUAL] = rewrite_residual,
    [DH_OP_JOIN_COLUMNS] = rewrite_join,
    [DH_OP_SPLIT_COLUMNS] = rewrite_split,
    [DH_OP_ADAPT] = rewrite_adapt,
    [DH_OP_LOSS_STATS] = rewrite_loss_stats,
    [DH_OP_HEAD_NORM] = keep,
    [DH_OP_QK_SQUARES] = sum_heads,
    [DH_OP_QK_NORM] = rewrite_qk_norm,
    [DH_OP_ROPE] = keep,
    [DH_OP_LATENT_PACK] = rewrite_latent_pack,
    [DH_OP_LATENT_CUT] = keep,
    [DH_OP_ADD] = keep_own,
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
    [DH_OP_ALL_REDUCE] = keep,
    [DH_OP_ALL_GATHER] = keep, /* of context parallelism, like the one before */
    [DH_OP_ACT] = keep,
    [DH_OP_ROUTER_SUMS] = keep,
    [DH_OP_ROUTER_AUX] = keep,
    [DH_OP_MOE_ORDER] = keep,
    [DH_OP_GROUPED_LINEAR] = keep,
    [DH_OP_LOSS] = keep,
    [DH_OP_SCALE] = keep_own,
    [DH_OP_SOFTCAP] = keep,
    [DH_OP_SOFTCAP_GRAD] = keep,
    [DH_OP_LOSS_GRAD] = rewrite_loss_grad,
    [DH_OP_LINEAR_DGRAD] = keep,
    [DH_OP_LINEAR_WGRAD] = keep,
    [DH_OP_BIAS_GRAD] = keep,
};

/* Where experts are spread over the ranks: instead of those. */
static void (*const rules_of_own_rows[DH_N_OP_TYPE])(pass *, dh_op *) = {
    [DH_OP_ROUTER] = keep_own,          [DH_OP_ROUTER_SUMS] = gather_router_sums,
    [DH_OP_MOE_ORDER] = order_own_rows, [DH_OP_MOE_PERMUTE] = keep_own,
    [DH_OP_MOE_UNPERMUTE] = keep_own,
};

static void rewrite_op(pass *p, dh_op *op)
{
    const bool own = p->shard.whole_experts && rules_of_own_rows[op->type];
    (own ? rules_of_own_rows : rules)[op->type](p, op);
}

/* Piece by piece if what it is the gradient of was written so; false: it was not. */
static bool reduce_pieces(pass *p, uint32_t x, uint32_t dx, uint32_t own)
{
    const int64_t times = whole_tokens(p) ? 1 : p->shard.tp;
    bool any = false;
    for (size_t i = 0; i < p->pieces.n && !p->to.failed; i++) {
        const dh_tensor t = *tensor(p, p->pieces.at[i]);
        if (t.base != x) continue;
        const uint32_t all = rewrite_rows(&p->to, dx, t.name, t.row0 * times, t.shape[0] * times);
        push_sum(p, all, rewrite_rows(&p->to, own, t.name, t.row0, t.shape[0]));
        any = true;
    }
    return any;
}

/* The head's dxn holds partial sums of every rank's vocabulary: reduce them at the end. */
static void reduce_loss_gradient(pass *p)
{
    dh_graph *g = p->to.graph;
    const uint32_t dx = g->loss_dx;
    if (dx == DH_NONE || p->to.failed) return;
    const uint32_t own = add_tensor(p, dx, ".own", rows_here(p, tensor(p, dx)->shape[0]));
    if (!reduce_pieces(p, g->loss_x, dx, own)) push_sum(p, dx, own);
    g->loss_dx = own;
}

static dh_status rewrite_all(dh_ctx *ctx, pass *p)
{
    DH_TRY(split_tensors(ctx, p));
    DH_TRY(split_dims(ctx, p));
    const dh_graph *g = p->to.graph;
    for (size_t i = 0; i < g->ops.n && !p->to.failed; i++) {
        dh_op op = g->ops.at[i];
        if (!rules[op.type]) return rewrite_refuse(ctx, "tensor parallelism", &op);
        if (whole_tokens(p) && op.type == DH_OP_LATENT_PACK)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "tensor parallelism of latent attention spreads tokens over the ranks "
                           "between its parts: it needs parallel.sequence true");
        rewrite_op(p, &op);
    }
    reduce_loss_gradient(p);
    return DH_OK;
}

dh_status dh_pass_tensor_parallel(dh_ctx *ctx, dh_graph *graph, dh_shard shard)
{
    if (shard.tp == 1 || graph->kind == DH_BLOCK_DATA) return DH_OK;
    if (graph->dx_in != DH_NONE || graph->mode == DH_MODE_DECODE)
        return dh_fail(ctx, DH_EINVAL,
                       "tensor parallelism rewrites forward graphs of training "
                       "and evaluation");
    pass p = {.to = {.graph = graph}, .shard = shard, .n_tensors = graph->tensors.n};
    p.gathered = malloc((p.n_tensors + 1) * sizeof *p.gathered);
    p.own = calloc(p.n_tensors + 1, sizeof *p.own);
    p.to.failed = !p.gathered || !p.own;
    dh_status st = DH_OK;
    if (!p.to.failed) {
        memset(p.gathered, 0xff, (p.n_tensors + 1) * sizeof *p.gathered);
        st = rewrite_all(ctx, &p);
    }
    free(p.gathered);
    free(p.own);
    dh_vec_fini(&p.pieces);
    return rewrite_end(ctx, &p.to, st, "splitting a graph");
}

/* ---- row ------------------------------------------------------------------------------------ */

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    return spec->mesh.tp > 1 ? NULL : "every layer is on one rank (parallel.tp=1)";
}

const char *dh_tp_rows_obstacle(const dh_graph_spec *spec)
{
    const dh_mesh *m = &spec->mesh;
    if (m->tp <= 1) return "one rank has whole experts (parallel.tp=1)";
    if (m->whole_experts) return "every one has experts of its own (parallel.expert_tp=1)";
    if (m->ep <= 1) return "every expert is on every rank (parallel.ep)";
    if (spec->sharing.sequence == DH_SEQUENCE_WHOLE)
        return "every one has all tokens (parallel.sequence=false)";
    return spec->build.model->width % m->tp ? "model.width does not divide by parallel.tp" : NULL;
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    dh_shard shard = w->rank.shard;
    shard.sequence = w->spec->sharing.sequence;
    shard.shared_rows = w->spec->expert_rows == DH_TP_ROWS_SHARED;
    return dh_pass_tensor_parallel(ctx, w->graph, shard);
}

const dh_pass dh_pass_row_tensor_parallel = {
    .name = "tensor-parallel",
    .doc = "splits heads, FFN columns and vocabulary over ranks, and the tokens between them; "
           "adds an all-gather or reduce-scatter where the two meet (Megatron-LM, arXiv "
           "1909.08053, 2205.05198)",
    .place = DH_PASS_ON_MESH,
    .of_job = true,
    .applicable = applicable,
    .apply = apply};
