/* Collectives of tensor parallelism as rings of transfers between partial GEMMs.
 *
 * All-gather, then GEMM: the GEMM of the rank's own rows runs while the next shard
 * arrives; a shard is passed on while it is multiplied. Each product goes to its rows of
 * the output. GEMM, then reduce-scatter: the rows of the result that another rank keeps
 * travel to it as a sum; each rank on the way computes its share while the sum arrives,
 * adds it, and passes it on. What waits for what is said by the operands alone, and a
 * transfer stands before the GEMM it may hide behind: the streams of a program overlap
 * the two by themselves.
 *
 * A GEMM is cut by rows, never along what it sums over. A weight gradient sums over rows
 * and stays whole; where one reads a gathered tensor, the shards are put together for it.
 * A gather between a GEMM and its reduce-scatter (that of the input of the same layer's
 * weight gradient) goes in front of the ring, so that it does not wait for the ring's GEMMs.
 *
 * Both ways at once, a ring takes half as many steps: ranks up to half of the ring away
 * are reached forwards, the others backwards. Two ranks are neighbours either way.
 *
 * What is left alone, by shape and use only, is logged with its reason (level debug).
 *
 * Source: Wang et al. 2023 (ASPLOS, doi:10.1145/3567955.3567959), looped CollectiveEinsum;
 * MegaScale (Jiang et al. 2024, arXiv 2402.15627) section 3.2. */
#include "dhelix/graph.h"
#include "dhelix/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One collective and its GEMM. */
typedef struct ring {
    uint32_t collective, gemm; /* operators, in the old order */
    bool whole;                /* gather: somebody else reads the gathered tensor */
    dh_tensor chunk;           /* one rank's rows, under the name of the whole */
    uint32_t spare;            /* the whole, where chunks take its place; then DH_NONE */
    uint32_t own;              /* the rank's own chunk */
    uint32_t forth, back;      /* chunks that came last, either way */
} ring;

typedef struct rewrite {
    dh_graph *graph;
    int32_t n, me;           /* ranks, and which this is */
    int32_t n_forth, n_back; /* ranks that a chunk reaches either way */
    DH_VEC(dh_op) ops;       /* the new order */
    DH_VEC(ring) rings;
    uint32_t *ring_of;   /* by operator: the ring it belongs to, DH_NONE */
    unsigned char *done; /* by operator: it is in the new order */
    bool failed;
} rewrite;

static const dh_op *op_at(const rewrite *r, uint32_t id)
{
    return &r->graph->ops.at[id];
}

static dh_tensor *tensor(const rewrite *r, uint32_t id)
{
    return &r->graph->tensors.at[id];
}

/* ---- what can be cut ----------------------------------------------------------------------- */

static uint32_t storage_of(const rewrite *r, uint32_t id)
{
    return tensor(r, id)->base == DH_NONE ? id : tensor(r, id)->base;
}

/* Row n of the output comes from row n of the first input, and from a weight. */
static bool is_row_gemm(const rewrite *r, const dh_op *op)
{
    return (op->type == DH_OP_LINEAR || op->type == DH_OP_LINEAR_DGRAD) &&
           tensor(r, op->in[0])->shape[0] == tensor(r, op->out[0])->shape[0];
}

/* An activation of which there are no views, and which no other block knows. */
static bool is_plain(const rewrite *r, uint32_t id)
{
    const dh_graph *g = r->graph;
    const uint32_t ends[] = {g->x_in, g->x_out, g->dx_out, g->dx_in, g->loss_x, g->loss_dx};
    if (tensor(r, id)->kind != DH_TENSOR_ACT || tensor(r, id)->base != DH_NONE) return false;
    for (size_t i = 0; i < DH_COUNTOF(ends); i++)
        if (ends[i] == id) return false;
    for (size_t i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].base == id) return false;
    return true;
}

/* Operators in [begin, end) that read or write a tensor: the first, DH_NONE. */
static uint32_t first_user(const rewrite *r, uint32_t begin, uint32_t end, uint32_t id, bool writes)
{
    for (uint32_t i = begin; i < end; i++)
        for (int k = 0; k < DH_MAX_OPERANDS; k++) {
            const uint32_t t = writes ? op_at(r, i)->out[k] : op_at(r, i)->in[k];
            if (t != DH_NONE && storage_of(r, t) == id) return i;
        }
    return DH_NONE;
}

static const char *misfit_of_rows(const rewrite *r, uint32_t all, uint32_t part)
{
    const int64_t rows = tensor(r, part)->shape[0];
    if (rows * r->n != tensor(r, all)->shape[0]) return "its rows are not as many for every rank";
    return rows < DH_RING_MIN_ROWS ? "a GEMM of one rank's rows would be too small" : NULL;
}

/* NULL, or why not. */
static const char *match_gather(const rewrite *r, uint32_t id, ring *match)
{
    const uint32_t all = op_at(r, id)->out[0], end = (uint32_t)r->graph->ops.n;
    const uint32_t gemm = first_user(r, id + 1, end, all, false);
    if (!is_plain(r, all)) return "it is used in parts";
    if (gemm == DH_NONE) return "nothing reads it";
    const dh_op *op = op_at(r, gemm);
    if (!is_row_gemm(r, op) || op->in[0] != all) return "what reads it first is no GEMM by rows";
    if (op->phase != op_at(r, id)->phase) return "its GEMM belongs to another phase";
    if (tensor(r, op->out[0])->base != DH_NONE) return "its GEMM writes a part of something";
    match->gemm = gemm;
    match->whole = first_user(r, gemm + 1, end, all, false) != DH_NONE;
    match->spare = match->whole ? DH_NONE : all;
    match->chunk = *tensor(r, all);
    return misfit_of_rows(r, all, op_at(r, id)->in[0]);
}

static const char *match_scatter(const rewrite *r, uint32_t id, ring *match)
{
    const uint32_t all = op_at(r, id)->in[0], end = (uint32_t)r->graph->ops.n;
    const uint32_t gemm = first_user(r, 0, id, all, true);
    if (!is_plain(r, all)) return "it is used in parts";
    if (gemm == DH_NONE || !is_row_gemm(r, op_at(r, gemm))) return "it comes from no GEMM by rows";
    if (op_at(r, gemm)->phase != op_at(r, id)->phase) return "its GEMM belongs to another phase";
    if (r->ring_of[gemm] != DH_NONE) return "its GEMM is in a ring already";
    if (first_user(r, gemm + 1, id, all, false) != DH_NONE ||
        first_user(r, id + 1, end, all, false) != DH_NONE)
        return "something else reads it";
    match->gemm = gemm;
    match->spare = all;
    match->chunk = *tensor(r, all);
    return misfit_of_rows(r, all, op_at(r, id)->out[0]);
}

static void find_ring(rewrite *r, uint32_t id)
{
    const dh_op *op = op_at(r, id);
    const bool gathers = op->type == DH_OP_ALL_GATHER, scatters = op->type == DH_OP_REDUCE_SCATTER;
    if (op->group != DH_GROUP_TP || !(gathers || scatters)) return;
    ring match = {.collective = id, .forth = DH_NONE, .back = DH_NONE};
    const char *obstacle = gathers ? match_gather(r, id, &match) : match_scatter(r, id, &match);
    if (obstacle) {
        dh_log(DH_LOG_DEBUG, "%s of %s stays whole: %s", dh_op_info_of(op->type)->name,
               tensor(r, gathers ? op->out[0] : op->in[0])->name, obstacle);
        return;
    }
    match.chunk.shape[0] /= r->n;
    r->ring_of[id] = r->ring_of[match.gemm] = (uint32_t)r->rings.n;
    r->failed |= !dh_vec_push(&r->rings, match);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static int32_t rank_at(const rewrite *r, int32_t distance)
{
    return ((r->me + distance) % r->n + r->n) % r->n;
}

static void rename_piece(dh_tensor *t, const char *whole, const char *tag, int32_t rank)
{
    char name[sizeof t->name];
    snprintf(name, sizeof name, "%.13s.%s%d", whole, tag, (int)rank);
    memcpy(t->name, name, sizeof name);
}

static uint32_t add_tensor(rewrite *r, const dh_tensor *t)
{
    const uint32_t id = dh_graph_add_tensor(r->graph, t);
    r->failed |= id == DH_NONE;
    return id;
}

/* A view: the rank's rows of a tensor. */
static uint32_t rows_of(rewrite *r, uint32_t all, int32_t rank)
{
    dh_tensor t = *tensor(r, all);
    if (t.base == DH_NONE) t.base = all;
    t.shape[0] /= r->n;
    t.row0 += rank * t.shape[0];
    rename_piece(&t, tensor(r, all)->name, "", rank);
    return add_tensor(r, &t);
}

/* A tensor for one rank's rows; the first takes the place of the whole. */
static uint32_t new_chunk(rewrite *r, ring *g, const char *tag, int32_t rank)
{
    dh_tensor t = g->chunk;
    rename_piece(&t, g->chunk.name, tag, rank);
    if (g->spare == DH_NONE) return add_tensor(r, &t);
    const uint32_t id = g->spare;
    *tensor(r, id) = t;
    g->spare = DH_NONE;
    return id;
}

static void push(rewrite *r, const dh_op *op)
{
    r->failed |= !dh_vec_push(&r->ops, *op);
}

/* An operator of the ring, in the phase of its collective. */
static void push_op(rewrite *r, const ring *g, dh_op_type type, const uint32_t *in,
                    const uint32_t *out)
{
    const dh_op_info *info = dh_op_info_of(type);
    dh_op op = *op_at(r, g->collective);
    op.type = type;
    if (info->resource != DH_RES_COMM) op.group = -1;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        op.in[k] = k < info->n_in ? in[k] : DH_NONE;
        op.out[k] = k < info->n_out ? out[k] : DH_NONE;
    }
    push(r, &op);
}
#define IDS(...) ((const uint32_t[DH_MAX_OPERANDS]){__VA_ARGS__})

/* The GEMM on some rows. */
static void push_gemm(rewrite *r, const ring *g, uint32_t in, uint32_t out)
{
    dh_op op = *op_at(r, g->gemm);
    op.in[0] = in;
    op.out[0] = out;
    push(r, &op);
}

/* What travels: forth_in to the next rank and, unless absent, back_in to the previous. */
static void push_exchange(rewrite *r, const ring *g, uint32_t forth_in, uint32_t forth,
                          uint32_t back_in, uint32_t back)
{
    if (back_in == DH_NONE)
        push_op(r, g, DH_OP_RING_EXCHANGE, IDS(forth_in, DH_NONE), IDS(forth));
    else
        push_op(r, g, DH_OP_RING_EXCHANGE_BOTH, IDS(forth_in, back_in), IDS(forth, back));
}

/* ---- all-gather and GEMM --------------------------------------------------------------------- */

static uint32_t arriving_chunk(rewrite *r, ring *g, int32_t rank)
{
    return g->whole ? rows_of(r, op_at(r, g->collective)->out[0], rank) : new_chunk(r, g, "", rank);
}

/* In step k the chunks of the ranks k before and k behind arrive, and those that arrived
 * in the step before go on. */
static void gather_step(rewrite *r, ring *g, int32_t k)
{
    const bool both = k <= r->n_back;
    const uint32_t forth_in = g->forth, back_in = both ? g->back : DH_NONE;
    g->forth = arriving_chunk(r, g, rank_at(r, -k));
    if (both) g->back = arriving_chunk(r, g, rank_at(r, k));
    push_exchange(r, g, forth_in, g->forth, back_in, g->back);
}

/* Whoever assembles the whole copies his own chunk into it first: all that touches the
 * whole then comes after the copy. */
static void begin_gather(rewrite *r, ring *g)
{
    g->own = op_at(r, g->collective)->in[0];
    if (g->whole) {
        const uint32_t x = g->own;
        g->own = rows_of(r, op_at(r, g->collective)->out[0], r->me);
        push_op(r, g, DH_OP_COPY, IDS(x), IDS(g->own));
    }
    g->forth = g->back = g->own;
    gather_step(r, g, 1);
}

static void multiply_gathered(rewrite *r, ring *g)
{
    const uint32_t y = op_at(r, g->gemm)->out[0];
    push_gemm(r, g, g->own, rows_of(r, y, r->me));
    for (int32_t k = 1; k <= r->n_forth && !r->failed; k++) {
        const uint32_t forth = g->forth, back = g->back;
        if (k < r->n_forth) gather_step(r, g, k + 1);
        push_gemm(r, g, forth, rows_of(r, y, rank_at(r, -k)));
        if (k <= r->n_back) push_gemm(r, g, back, rows_of(r, y, rank_at(r, k)));
    }
}

/* ---- GEMM and reduce-scatter ----------------------------------------------------------------- */

/* This rank's share of another's rows. */
static uint32_t share_of(rewrite *r, ring *g, int32_t rank)
{
    const uint32_t in = rows_of(r, op_at(r, g->gemm)->in[0], rank);
    const uint32_t out = new_chunk(r, g, "", rank);
    if (!r->failed) push_gemm(r, g, in, out);
    return out;
}

/* What goes on to a rank: one's own share, and the sum that came if one did. */
static uint32_t sum_of(rewrite *r, ring *g, int32_t rank, uint32_t share, uint32_t came)
{
    if (came == DH_NONE) return share;
    const uint32_t sum = new_chunk(r, g, "sum", rank);
    push_op(r, g, DH_OP_ADD, IDS(share, came), IDS(sum));
    return sum;
}

/* The sums that set out in step k have n_forth - k + 1 steps to go, either way: where fewer
 * ranks are reached backwards, that way begins later. GEMMs stand before the sums, which
 * wait for what comes. */
static void multiply_to_scatter(rewrite *r, ring *g)
{
    const int32_t late = r->n_forth - r->n_back;
    for (int32_t k = 1; k <= r->n_forth && !r->failed; k++) {
        const int32_t left = r->n_forth - k + 1;
        const int32_t ahead = rank_at(r, left), behind = rank_at(r, -left);
        const bool both = k > late;
        uint32_t forth_in = share_of(r, g, ahead);
        uint32_t back_in = both ? share_of(r, g, behind) : DH_NONE;
        forth_in = sum_of(r, g, ahead, forth_in, g->forth);
        if (both) back_in = sum_of(r, g, behind, back_in, g->back);
        g->forth = new_chunk(r, g, "in", rank_at(r, left - 1));
        if (both) g->back = new_chunk(r, g, "back", rank_at(r, 1 - left));
        push_exchange(r, g, forth_in, g->forth, back_in, g->back);
    }
    g->own = share_of(r, g, r->me);
}

static void finish_scatter(rewrite *r, ring *g)
{
    const uint32_t y = op_at(r, g->collective)->out[0];
    if (r->n_back == 0) {
        push_op(r, g, DH_OP_ADD, IDS(g->own, g->forth), IDS(y));
        return;
    }
    const uint32_t sum = new_chunk(r, g, "sum", r->me);
    push_op(r, g, DH_OP_ADD, IDS(g->own, g->forth), IDS(sum));
    push_op(r, g, DH_OP_ADD, IDS(sum, g->back), IDS(y));
}

/* ---- order ---------------------------------------------------------------------------------- */

static void place(rewrite *r, uint32_t id);

/* An operator behind `begin`, those behind `begin` that it needs first. */
static void place_early(rewrite *r, uint32_t begin, uint32_t id)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        const uint32_t in = op_at(r, id)->in[k];
        for (uint32_t i = begin + 1; in != DH_NONE && i < id; i++)
            if (first_user(r, i, i + 1, storage_of(r, in), true) == i) place_early(r, begin, i);
    }
    place(r, id);
}

static void place_gathers_between(rewrite *r, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin + 1; i < end; i++)
        if (op_at(r, i)->type == DH_OP_ALL_GATHER) place_early(r, begin, i);
}

static void place_ring(rewrite *r, uint32_t id, ring *g)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): ring_of names rings that are there
    const bool gathers = g->collective < g->gemm;
    if (id == g->collective) {
        (gathers ? begin_gather : finish_scatter)(r, g);
    } else if (gathers) {
        multiply_gathered(r, g);
    } else {
        place_gathers_between(r, g->gemm, g->collective);
        multiply_to_scatter(r, g);
    }
}

static void place(rewrite *r, uint32_t id)
{
    if (r->done[id] || r->failed) return;
    r->done[id] = 1;
    if (r->ring_of[id] == DH_NONE)
        push(r, op_at(r, id));
    else
        place_ring(r, id, &r->rings.at[r->ring_of[id]]);
}

/* ---- entry ---------------------------------------------------------------------------------- */

static void rewrite_ops(rewrite *r)
{
    const uint32_t n = (uint32_t)r->graph->ops.n;
    r->ring_of = malloc((n + 1) * sizeof *r->ring_of);
    r->done = calloc(n + 1, 1);
    r->failed = !r->ring_of || !r->done;
    if (r->failed) return;
    memset(r->ring_of, 0xff, (n + 1) * sizeof *r->ring_of);
    for (uint32_t i = 0; i < n && !r->failed; i++) find_ring(r, i);
    for (uint32_t i = 0; i < n && !r->failed; i++) place(r, i);
}

dh_status dh_pass_decompose_tp(dh_ctx *ctx, dh_graph *graph, dh_shard shard, dh_decompose_kind kind)
{
    if (kind == DH_DECOMPOSE_NONE || shard.tp == 1) return DH_OK;
    rewrite r = {.graph = graph, .n = (int32_t)shard.tp, .me = (int32_t)shard.tp_rank};
    r.n_back = kind == DH_DECOMPOSE_BOTH ? (r.n - 1) / 2 : 0;
    r.n_forth = r.n - 1 - r.n_back;
    rewrite_ops(&r);
    if (!r.failed) {
        dh_vec_fini(&graph->ops);
        graph->ops.at = r.ops.at;
        graph->ops.n = r.ops.n;
        graph->ops.cap = r.ops.cap;
    } else {
        dh_vec_fini(&r.ops);
    }
    dh_vec_fini(&r.rings);
    free(r.ring_of);
    free(r.done);
    return r.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory cutting GEMMs into rings") : DH_OK;
}
