/* Collectives of tensor parallelism as rings of transfers between partial GEMMs.
 *
 * All-gather, then GEMM: the GEMM of the rank's own rows runs while the next shard arrives; a shard
 * is passed on while it is multiplied. Each GEMM writes its rows of the output. GEMM, then
 * reduce-scatter: the rows of the result that another rank keeps travel to it as a sum. Each rank
 * on the way computes its share while the sum arrives, adds it, and passes the sum on. The operands
 * alone say which operator waits for which. A transfer stands before the GEMM it may hide behind,
 * so the streams of a program overlap the two by themselves.
 *
 * A GEMM is cut by rows, never along the summed dimension. A weight gradient sums over rows and
 * stays whole; if one reads a gathered tensor, the shards are put together for it. There may be a
 * gather between a GEMM and its reduce-scatter, for the input of the same layer's weight gradient.
 * It goes in front of the ring, so it does not wait for the ring's GEMMs.
 *
 * Numbers: no GEMM's sum is cut. A reduced row adds the ranks' shares in the order of the ring,
 * rounded to the graph's type at each rank, not once in the order of the group. For two ranks the
 * bits are the same if the GEMM's own do not depend on its number of rows. For more they are the
 * same up to rounding. Applied again it changes nothing.
 *
 * Both ways at once, a ring takes half as many steps: ranks up to half of the ring away
 * are reached forwards, the others backwards. Two ranks are neighbours either way.
 *
 * GEMMs that are left alone, by shape and use only, are reported with the reason.
 *
 * Source: Wang et al. 2023 (ASPLOS, doi:10.1145/3567955.3567959), looped CollectiveEinsum;
 * MegaScale (Jiang et al. 2024, arXiv 2402.15627) section 3.2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

/* TUNING: rate of one AVX-512 core by rows of a GEMM, in float32 and bf16 (bench/kernels, "gemm
 * qkv"). A further cut takes longer than any transfer it hides.
 *
 *   rows   128    64     32    16     8
 *   rate   full   0.95   0.8   0.65   0.5 */
enum { MIN_ROWS = 8 };

/* One collective and its GEMM. */
typedef struct ring {
    uint32_t collective, gemm; /* operators, in the old order */
    bool whole;                /* gather: somebody else reads the gathered tensor */
    dh_tensor chunk;           /* one rank's rows, under the name of the whole */
    uint32_t spare;            /* the whole, where chunks take its place; then DH_NONE */
    uint32_t own;              /* the rank's own chunk */
    uint32_t forth, back;      /* chunks that came last, either way */
} ring;

enum { WAYS }; /* parameters */
static const char *const ways_words[] = {[DH_RING_FORTH] = "forth", [DH_RING_BOTH] = "both", NULL};

typedef struct pass {
    rewrite to;
    rewrite_uses uses;       /* uses in the graph before */
    int32_t n, me;           /* ranks, and which this is */
    int32_t n_forth, n_back; /* ranks that a chunk reaches either way */
    DH_VEC(ring) rings;
    uint32_t *ring_of;   /* by operator: the ring it belongs to, DH_NONE */
    unsigned char *done; /* by operator: it is in the new order */
    dh_pass_report *report;
} pass;

static const dh_op *op_at(const pass *p, uint32_t id)
{
    return &p->to.graph->ops.at[id];
}

static dh_tensor *tensor(const pass *p, uint32_t id)
{
    return rewrite_tensor(&p->to, id);
}

/* ---- what can be cut ----------------------------------------------------------------------- */

/* An activation of which there are no views, and which no other block knows. */
static bool is_plain(const pass *p, uint32_t id)
{
    const dh_graph *g = p->to.graph;
    const uint32_t ends[] = {g->x_in, g->x_out, g->dx_out, g->dx_in, g->loss_x, g->loss_dx};
    for (size_t i = 0; i < DH_COUNTOF(ends); i++)
        if (ends[i] == id) return false;
    return tensor(p, id)->kind == DH_TENSOR_ACT && tensor(p, id)->base == DH_NONE &&
           !p->uses.in_parts[id];
}

/* Operators in [begin, end) that read or write a tensor: the first, DH_NONE. */
static uint32_t first_user(const pass *p, uint32_t begin, uint32_t end, uint32_t id, bool writes)
{
    return rewrite_first_use(&p->uses, dh_graph_storage(p->to.graph, id), begin, end, writes);
}

static const char *misfit_of_rows(const pass *p, uint32_t all, uint32_t part)
{
    const int64_t rows = tensor(p, part)->shape[0];
    if (rows * p->n != tensor(p, all)->shape[0]) return "its rows are not as many for every rank";
    return rows < MIN_ROWS ? "a GEMM of one rank's rows would be too small" : NULL;
}

/* NULL, or why not. */
static const char *match_gather(const pass *p, uint32_t id, ring *match)
{
    const uint32_t all = op_at(p, id)->out[0], end = (uint32_t)p->to.graph->ops.n;
    const uint32_t gemm = first_user(p, id + 1, end, all, false);
    if (!is_plain(p, all)) return "it is used in parts";
    if (gemm == DH_NONE) return "nothing reads it";
    const dh_op *op = op_at(p, gemm);
    if (!rewrite_is_row_gemm(&p->to, op) || op->in[0] != all)
        return "what reads it first is no GEMM by rows";
    if (op->phase != op_at(p, id)->phase) return "its GEMM belongs to another phase";
    if (tensor(p, op->out[0])->base != DH_NONE) return "its GEMM writes a part of something";
    match->gemm = gemm;
    match->whole = first_user(p, gemm + 1, end, all, false) != DH_NONE;
    match->spare = match->whole ? DH_NONE : all;
    match->chunk = *tensor(p, all);
    return misfit_of_rows(p, all, op_at(p, id)->in[0]);
}

static const char *match_scatter(const pass *p, uint32_t id, ring *match)
{
    const uint32_t all = op_at(p, id)->in[0], end = (uint32_t)p->to.graph->ops.n;
    const uint32_t gemm = first_user(p, 0, id, all, true);
    if (!is_plain(p, all)) return "it is used in parts";
    if (gemm == DH_NONE || !rewrite_is_row_gemm(&p->to, op_at(p, gemm)))
        return "it comes from no GEMM by rows";
    if (op_at(p, gemm)->phase != op_at(p, id)->phase) return "its GEMM belongs to another phase";
    if (p->ring_of[gemm] != DH_NONE) return "its GEMM is in a ring already";
    if (first_user(p, gemm + 1, id, all, false) != DH_NONE ||
        first_user(p, id + 1, end, all, false) != DH_NONE)
        return "something else reads it";
    match->gemm = gemm;
    match->spare = all;
    match->chunk = *tensor(p, all);
    return misfit_of_rows(p, all, op_at(p, id)->out[0]);
}

static void leave(pass *p, const dh_op *op, const dh_tensor *whole, const char *why)
{
    char what[64];
    snprintf(what, sizeof what, "%s of %s", dh_op_info_of(op->type)->name, whole->name);
    p->to.failed |= !dh_pass_leave(p->report, what, why);
}

static void find_ring(pass *p, uint32_t id)
{
    const dh_op *op = op_at(p, id);
    const bool gathers = op->type == DH_OP_ALL_GATHER, scatters = op->type == DH_OP_REDUCE_SCATTER;
    if (op->group != DH_GROUP_TP || !(gathers || scatters)) return;
    ring match = {.collective = id, .forth = DH_NONE, .back = DH_NONE};
    const char *obstacle = gathers ? match_gather(p, id, &match) : match_scatter(p, id, &match);
    if (obstacle) {
        leave(p, op, tensor(p, gathers ? op->out[0] : op->in[0]), obstacle);
        return;
    }
    match.chunk.shape[0] /= p->n;
    p->ring_of[id] = p->ring_of[match.gemm] = (uint32_t)p->rings.n;
    p->to.failed |= !dh_vec_push(&p->rings, match);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static int32_t rank_at(const pass *p, int32_t distance)
{
    return ((p->me + distance) % p->n + p->n) % p->n;
}

/* A view: the rank's rows of a tensor. */
static uint32_t rows_of(pass *p, uint32_t all, int32_t rank)
{
    const int64_t n = tensor(p, all)->shape[0] / p->n;
    char name[sizeof tensor(p, all)->name];
    snprintf(name, sizeof name, "%.13s.%d", tensor(p, all)->name, (int)rank);
    return rewrite_rows(&p->to, all, name, rank * n, n);
}

/* A tensor for one rank's rows; the first takes the place of the whole. */
static uint32_t new_chunk(pass *p, ring *g, const char *tag, int32_t rank)
{
    dh_tensor t = g->chunk;
    rewrite_name(&t, "%.13s.%s%d", t.name, tag, (int)rank);
    if (g->spare == DH_NONE) return rewrite_add(&p->to, &t);
    const uint32_t id = g->spare;
    *tensor(p, id) = t;
    g->spare = DH_NONE;
    return id;
}

/* An operator of the ring, in the phase of its collective. */
static void push_op(pass *p, const ring *g, dh_op_type type, const uint32_t *in,
                    const uint32_t *out)
{
    const dh_op *collective = op_at(p, g->collective);
    const bool travels = dh_op_info_of(type)->resource == DH_RES_COMM;
    rewrite_push_op(&p->to, type, collective->phase, travels ? collective->group : -1, in, out);
}

/* The GEMM on some rows. */
static void push_gemm(pass *p, const ring *g, uint32_t in, uint32_t out)
{
    dh_op op = *op_at(p, g->gemm);
    op.in[0] = in;
    op.out[0] = out;
    rewrite_push(&p->to, &op);
}

/* Push a transfer: forth_in to the next rank and, unless absent, back_in to the previous. */
static void push_exchange(pass *p, const ring *g, uint32_t forth_in, uint32_t forth,
                          uint32_t back_in, uint32_t back)
{
    if (back_in == DH_NONE)
        push_op(p, g, DH_OP_RING_EXCHANGE, REWRITE_IDS(forth_in, DH_NONE), REWRITE_IDS(forth));
    else
        push_op(p, g, DH_OP_RING_EXCHANGE_BOTH, REWRITE_IDS(forth_in, back_in),
                REWRITE_IDS(forth, back));
}

/* ---- all-gather and GEMM --------------------------------------------------------------------- */

static uint32_t arriving_chunk(pass *p, ring *g, int32_t rank)
{
    return g->whole ? rows_of(p, op_at(p, g->collective)->out[0], rank) : new_chunk(p, g, "", rank);
}

/* In step k the chunks of the ranks k before and k behind arrive, and those that arrived
 * in the step before go on. */
static void gather_step(pass *p, ring *g, int32_t k)
{
    const bool both = k <= p->n_back;
    const uint32_t forth_in = g->forth, back_in = both ? g->back : DH_NONE;
    g->forth = arriving_chunk(p, g, rank_at(p, -k));
    if (both) g->back = arriving_chunk(p, g, rank_at(p, k));
    push_exchange(p, g, forth_in, g->forth, back_in, g->back);
}

/* Whoever assembles the whole copies his own chunk into it first: all that touches the
 * whole then comes after the copy. */
static void begin_gather(pass *p, ring *g)
{
    g->own = op_at(p, g->collective)->in[0];
    if (g->whole) {
        const uint32_t x = g->own;
        g->own = rows_of(p, op_at(p, g->collective)->out[0], p->me);
        push_op(p, g, DH_OP_COPY, REWRITE_IDS(x), REWRITE_IDS(g->own));
    }
    g->forth = g->back = g->own;
    gather_step(p, g, 1);
}

static void multiply_gathered(pass *p, ring *g)
{
    const uint32_t y = op_at(p, g->gemm)->out[0];
    push_gemm(p, g, g->own, rows_of(p, y, p->me));
    for (int32_t k = 1; k <= p->n_forth && !p->to.failed; k++) {
        const uint32_t forth = g->forth, back = g->back;
        if (k < p->n_forth) gather_step(p, g, k + 1);
        push_gemm(p, g, forth, rows_of(p, y, rank_at(p, -k)));
        if (k <= p->n_back) push_gemm(p, g, back, rows_of(p, y, rank_at(p, k)));
    }
}

/* ---- GEMM and reduce-scatter ----------------------------------------------------------------- */

/* This rank's share of another's rows. */
static uint32_t share_of(pass *p, ring *g, int32_t rank)
{
    const uint32_t in = rows_of(p, op_at(p, g->gemm)->in[0], rank);
    const uint32_t out = new_chunk(p, g, "", rank);
    if (!p->to.failed) push_gemm(p, g, in, out);
    return out;
}

/* The sum that goes on to a rank: one's own share, and the sum that came if one did. */
static uint32_t sum_of(pass *p, ring *g, int32_t rank, uint32_t share, uint32_t came)
{
    if (came == DH_NONE) return share;
    const uint32_t sum = new_chunk(p, g, "sum", rank);
    push_op(p, g, DH_OP_ADD, REWRITE_IDS(share, came), REWRITE_IDS(sum));
    return sum;
}

/* The sums that set out in step k have n_forth - k + 1 steps to go, either way: where fewer
 * ranks are reached backwards, that way begins later. GEMMs stand before the sums, which
 * wait for what comes. */
static void multiply_to_scatter(pass *p, ring *g)
{
    const int32_t late = p->n_forth - p->n_back;
    for (int32_t k = 1; k <= p->n_forth && !p->to.failed; k++) {
        const int32_t left = p->n_forth - k + 1;
        const int32_t ahead = rank_at(p, left), behind = rank_at(p, -left);
        const bool both = k > late;
        uint32_t forth_in = share_of(p, g, ahead);
        uint32_t back_in = both ? share_of(p, g, behind) : DH_NONE;
        forth_in = sum_of(p, g, ahead, forth_in, g->forth);
        if (both) back_in = sum_of(p, g, behind, back_in, g->back);
        g->forth = new_chunk(p, g, "in", rank_at(p, left - 1));
        if (both) g->back = new_chunk(p, g, "back", rank_at(p, 1 - left));
        push_exchange(p, g, forth_in, g->forth, back_in, g->back);
    }
    g->own = share_of(p, g, p->me);
}

static void finish_scatter(pass *p, ring *g)
{
    const uint32_t y = op_at(p, g->collective)->out[0];
    if (p->n_back == 0) {
        push_op(p, g, DH_OP_ADD, REWRITE_IDS(g->own, g->forth), REWRITE_IDS(y));
        return;
    }
    const uint32_t sum = new_chunk(p, g, "sum", p->me);
    push_op(p, g, DH_OP_ADD, REWRITE_IDS(g->own, g->forth), REWRITE_IDS(sum));
    push_op(p, g, DH_OP_ADD, REWRITE_IDS(sum, g->back), REWRITE_IDS(y));
}

/* ---- order ---------------------------------------------------------------------------------- */

static void place(pass *p, uint32_t id);

/* An operator behind `begin`, those behind `begin` that it needs first. */
static void place_early(pass *p, uint32_t begin, uint32_t id)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        const uint32_t in = op_at(p, id)->in[k];
        uint32_t i = in == DH_NONE ? DH_NONE : first_user(p, begin + 1, id, in, true);
        for (; i != DH_NONE; i = first_user(p, i + 1, id, in, true)) place_early(p, begin, i);
    }
    place(p, id);
}

static void place_gathers_between(pass *p, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin + 1; i < end; i++)
        if (op_at(p, i)->type == DH_OP_ALL_GATHER) place_early(p, begin, i);
}

static void place_ring(pass *p, uint32_t id, ring *g)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): ring_of names rings that are there
    const bool gathers = g->collective < g->gemm;
    if (id == g->collective) {
        (gathers ? begin_gather : finish_scatter)(p, g);
    } else if (gathers) {
        multiply_gathered(p, g);
    } else {
        place_gathers_between(p, g->gemm, g->collective);
        multiply_to_scatter(p, g);
    }
}

static void place(pass *p, uint32_t id)
{
    if (p->done[id] || p->to.failed) return;
    p->done[id] = 1;
    if (p->ring_of[id] == DH_NONE)
        rewrite_push(&p->to, op_at(p, id));
    else
        place_ring(p, id, &p->rings.at[p->ring_of[id]]);
}

/* ---- entry ---------------------------------------------------------------------------------- */

static void rewrite_all(pass *p)
{
    const uint32_t n = (uint32_t)p->to.graph->ops.n;
    p->ring_of = malloc((n + 1) * sizeof *p->ring_of);
    p->done = calloc(n + 1, 1);
    p->to.failed = !rewrite_uses_init(&p->uses, p->to.graph) || !p->ring_of || !p->done;
    if (p->to.failed) return;
    memset(p->ring_of, 0xff, (n + 1) * sizeof *p->ring_of);
    for (uint32_t i = 0; i < n && !p->to.failed; i++) find_ring(p, i);
    for (uint32_t i = 0; i < n && !p->to.failed; i++) place(p, i);
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (spec->mesh.tp == 1) return "there is no ring of one rank (parallel.tp=1)";
    return spec->sharing.sequence == DH_SEQUENCE_WHOLE
               ? "all-reduces stay whole (parallel.sequence=false)"
               : NULL;
}

/* Two ranks are neighbours either way. */
static void reduce(const dh_graph_spec *spec, int64_t *args)
{
    if (spec->mesh.tp == 2) args[WAYS] = DH_RING_FORTH;
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    pass p = {.to = {.graph = w->graph},
              .n = (int32_t)w->rank.shard.tp,
              .me = (int32_t)w->rank.shard.tp_rank,
              .report = w->report};
    p.n_back = w->args[WAYS] == DH_RING_BOTH ? (p.n - 1) / 2 : 0;
    p.n_forth = p.n - 1 - p.n_back;
    rewrite_all(&p);
    if (p.report) p.report->n_places += p.rings.n;
    dh_vec_fini(&p.rings);
    rewrite_uses_fini(&p.uses);
    free(p.ring_of);
    free(p.done);
    return rewrite_end(ctx, &p.to, DH_OK, "cutting GEMMs into rings");
}

/* The places of a tensor's chunks follow from the tp index. A check that takes all these places for
 * one (classes.c of program) would take a chunk for the whole tensor. */
const dh_pass dh_pass_row_ring_gemm = {
    .name = "ring-gemm",
    .doc = "collectives of tensor parallelism become rings of transfers that run during parts of "
           "their GEMMs (MegaScale, arXiv 2402.15627, 3.2; Wang et al., ASPLOS 2023)",
    .place = DH_PASS_AFTER_RECOMPUTE,
    .params = {[WAYS] = {.name = "ways",
                         .doc = "directions that chunks travel at once: both take half the steps",
                         .kind = DH_PASS_WORD,
                         .words = ways_words}},
    .varies_by = 1u << DH_MESH_TP,
    .applicable = applicable,
    .reduce = reduce,
    .apply = apply};
