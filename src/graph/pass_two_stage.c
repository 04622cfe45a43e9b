/* Collectives of a group that spans nodes in two stages: among the ranks of a node, and among those
 * at the same place of every node (mesh.h: dh_mesh_group_stages).
 *
 * Of n = k N ranks, k on each of N nodes, and a vector of B bytes, a rank sends to other nodes:
 *
 *                    one stage          narrow: calls                        bytes      wide: calls
 *   all-reduce       2 B (n-1)/n   RS local, AR cross, AG local   2 B (N-1)/n   RS cross, AR local,
 *                                                                               AG cross
 *   all-gather         B (n-1)/n   AG cross, N times AG local       B (N-1)/n   AG local, AG cross
 *   reduce-scatter     B (n-1)/n   N times RS local, RS cross       B (N-1)/n   RS cross, RS local
 *   all-to-all         B (n-1)/n   A2A cross, N times A2A local     B (N-1)/N   the same
 *   ... of rows      B (n-1)/n   A2A cross, A2A local; back the   B (N-1)/N   the same
 *                                other way round
 *
 * A wide order sends B (N-1)/N of a gather or reduce-scatter to other nodes, k times as much, in
 * fewer calls. It is for clusters whose links between nodes are the faster ones. N - 1 messages
 * cross nodes in place of n - k; an all-to-all gains only by that. The order is chosen by costs
 * (`auto`), and may be to leave groups whole.
 *
 * Rows whose number is data (dropless experts) go first to another node, to the rank there at their
 * sender's place, and from there to their expert's. Their results go back the same way. The rank
 * between holds them by source node, then by expert, in runs whose lengths come to it as they do to
 * the expert's rank. It has a block for each node, with a share for every rank of its own node. Its
 * room is that of an expert's rank, or all rows that can come if these are fewer. More rows are the
 * same error.
 *
 * No rows are moved within a rank. Members of a group are in rank order, so those of node a have
 * the rows of block a. A local stage of each block by itself finds and leaves everything at its
 * place. In one call over all blocks, a place's rows of the blocks would lie apart.
 *
 * Chunks. With `parts` above 1 calls are used as they come. An all-reduce goes through its stages
 * in so many chunks of rows, a reduce-scatter block by block. Each goes when the GEMM before it has
 * made its rows (dh_op.parts). The GEMM after a gather becomes one of each block's rows. Local and
 * cross stages then run beside each other as well, each on the stream of its links.
 *
 * Numbers. Gathers and exchanges change no bit. Sums are added by node first, then over nodes,
 * where one stage adds in the order of ranks, and are rounded to the tensor's type in between
 * (docs/tolerances.md). All ranks add alike.
 *
 * Source: Centauri (Chen et al., ASPLOS 2024, doi:10.1145/3620666.3651369): primitive substitution,
 * group partition, workload partition. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

/* TUNING: as in pass_ring_gemm.c: a GEMM of fewer rows takes longer than any transfer it hides. */
enum { MIN_ROWS = 8 };

enum { ORDER, PARTS }; /* parameters */
static const char *const order_words[] = {[DH_STAGES_AUTO] = "auto",
                                          [DH_STAGES_NARROW] = "narrow",
                                          [DH_STAGES_WIDE] = "wide",
                                          [DH_STAGES_WHOLE] = "whole",
                                          NULL};

/* Lengths or offsets of runs of rows, by the tensor that has them where the rows end. */
typedef struct halfway {
    uint32_t id; /* the same at the rank between; DH_NONE: the rows go in one stage */
    dh_group_stages stages;
} halfway;

/* A collective on its way into several. */
typedef struct place {
    dh_op op;
    dh_group_stages stages;
    uint32_t gemm; /* that is cut: it makes what is summed, or reads what is gathered; DH_NONE */
    bool is_one;
} place;

typedef struct pass {
    rewrite to;
    rewrite_uses uses; /* uses in the graph before */
    const dh_mesh *mesh;
    bool wide;
    int64_t parts;
    place *places;       /* by operator */
    uint32_t *gather_of; /* by operator: of a GEMM that is cut, the gather; else DH_NONE */
    halfway *halfway;    /* by tensor of the graph before */
    dh_pass_report *report;
} pass;

static dh_op *op_at(const pass *p, uint32_t id)
{
    return &p->to.graph->ops.at[id];
}

static const dh_tensor *tensor(const pass *p, uint32_t id)
{
    return rewrite_tensor(&p->to, id);
}

/* ---- calls --------------------------------------------------------------------------------- */

static uint32_t rows_of(pass *p, uint32_t id, int64_t row0, int64_t n)
{
    char name[sizeof tensor(p, id)->name];
    if (p->to.failed || n == tensor(p, id)->shape[0]) return id;
    snprintf(name, sizeof name, "%.13s.%lld", tensor(p, id)->name, (long long)row0);
    return rewrite_rows(&p->to, id, name, row0, n);
}

/* Between two stages. */
static uint32_t add_rows(pass *p, uint32_t like, const char *what, int64_t n)
{
    if (p->to.failed) return DH_NONE;
    dh_tensor t = rewrite_like(&p->to, like);
    t.shape[0] = n;
    rewrite_name(&t, "%.14s.%s", tensor(p, like)->name, what);
    return rewrite_add(&p->to, &t);
}

static void push(pass *p, const place *at, dh_op_type type, dh_group_kind group, uint32_t in,
                 uint32_t out)
{
    rewrite_push_op(&p->to, type, at->op.phase, (int32_t)group, REWRITE_IDS(in), REWRITE_IDS(out));
}

/* The same on each node's block of the rows of both. */
static void push_blocks(pass *p, const place *at, dh_op_type type, uint32_t in, uint32_t out)
{
    const int64_t n_blocks = at->stages.n_nodes;
    for (int64_t j = 0; j < n_blocks && !p->to.failed; j++) {
        const int64_t n_in = tensor(p, in)->shape[0] / n_blocks;
        const int64_t n_out = tensor(p, out)->shape[0] / n_blocks;
        const uint32_t from = rows_of(p, in, j * n_in, n_in);
        push(p, at, type, at->stages.local, from, rows_of(p, out, j * n_out, n_out));
    }
}

/* ---- collectives --------------------------------------------------------------------------- */

static void sum_rows(pass *p, const place *at, uint32_t in, uint32_t out)
{
    const dh_group_stages *s = &at->stages;
    const dh_group_kind outer = p->wide ? s->cross : s->local;
    const dh_group_kind inner = p->wide ? s->local : s->cross;
    const int64_t n = tensor(p, in)->shape[0] / (p->wide ? s->n_nodes : s->per_node);
    const uint32_t own = add_rows(p, out, "own", n), sum = add_rows(p, out, "sum", n);
    push(p, at, DH_OP_REDUCE_SCATTER, outer, in, own);
    push(p, at, DH_OP_ALL_REDUCE, inner, own, sum);
    push(p, at, DH_OP_ALL_GATHER, outer, sum, out);
}

static void all_reduce(pass *p, const place *at)
{
    const uint32_t in = at->op.in[0], out = at->op.out[0];
    const int64_t n_parts = at->gemm == DH_NONE ? 1 : p->parts;
    const int64_t n = tensor(p, in)->shape[0] / n_parts;
    for (int64_t k = 0; k < n_parts && !p->to.failed; k++) {
        const uint32_t from = rows_of(p, in, k * n, n);
        sum_rows(p, at, from, rows_of(p, out, k * n, n));
    }
}

/* Rows of one rank's share between the stages: those of its node's ranks, or of one a node. */
static uint32_t add_shares(pass *p, const place *at, uint32_t own)
{
    const int64_t n = tensor(p, own)->shape[0];
    if (p->wide) return add_rows(p, own, "node", n * at->stages.per_node);
    return add_rows(p, own, "nodes", n * at->stages.n_nodes);
}

static void all_gather(pass *p, const place *at)
{
    const uint32_t own = at->op.in[0], all = at->op.out[0], some = add_shares(p, at, own);
    push(p, at, DH_OP_ALL_GATHER, p->wide ? at->stages.local : at->stages.cross, own, some);
    if (p->wide)
        push(p, at, DH_OP_ALL_GATHER, at->stages.cross, some, all);
    else
        push_blocks(p, at, DH_OP_ALL_GATHER, some, all);
}

static void reduce_scatter(pass *p, const place *at)
{
    const uint32_t all = at->op.in[0], own = at->op.out[0], some = add_shares(p, at, own);
    if (p->wide)
        push(p, at, DH_OP_REDUCE_SCATTER, at->stages.cross, all, some);
    else
        push_blocks(p, at, DH_OP_REDUCE_SCATTER, all, some);
    push(p, at, DH_OP_REDUCE_SCATTER, p->wide ? at->stages.local : at->stages.cross, some, own);
}

static void all_to_all(pass *p, const place *at)
{
    const uint32_t in = at->op.in[0], out = at->op.out[0], known = p->halfway[out].id;
    const uint32_t some =
        known != DH_NONE ? known : add_rows(p, out, "nodes", tensor(p, out)->shape[0]);
    push(p, at, DH_OP_ALL_TO_ALL, at->stages.cross, in, some);
    push_blocks(p, at, DH_OP_ALL_TO_ALL, some, out);
}

/* ---- rows whose number is data -------------------------------------------------------------- */

/* Room of a rank between: with even shares no more than the rows of one rank of every node. */
static int64_t room_halfway(const dh_group_stages *stages, int64_t room, int64_t share)
{
    return share > 0 ? DH_MIN(room, stages->n_nodes * share) : room;
}

static void offsets(pass *p, const place *at)
{
    dh_op between = at->op;
    rewrite_push(&p->to, &at->op);
    between.in[0] = p->halfway[at->op.in[0]].id;
    between.out[0] = p->halfway[at->op.out[0]].id;
    between.room = room_halfway(&at->stages, at->op.room, at->op.rows);
    rewrite_push(&p->to, &between);
}

static void push_exchange(pass *p, const place *at, bool crosses, const uint32_t *in, uint32_t out)
{
    dh_op op = dh_op_make(at->op.type, at->op.phase, in, REWRITE_IDS(out));
    op.group = (int32_t)(crosses ? at->stages.cross : at->stages.local);
    op.rows = at->op.rows;
    op.blocks = crosses ? 0 : (int32_t)at->stages.n_nodes;
    rewrite_push(&p->to, &op);
}

/* To where lengths came from before, across nodes first; or back. */
static void all_to_all_rows(pass *p, const place *at)
{
    const uint32_t x = at->op.in[0], from = at->op.in[1], to = at->op.in[2], y = at->op.out[0];
    const bool goes = p->halfway[to].id != DH_NONE;
    const uint32_t runs = p->halfway[goes ? to : from].id;
    const int64_t room = DH_MAX(tensor(p, x)->shape[0], tensor(p, y)->shape[0]);
    const uint32_t some = add_rows(p, y, "nodes", room_halfway(&at->stages, room, at->op.rows));
    push_exchange(p, at, goes, REWRITE_IDS(x, from, runs), some);
    push_exchange(p, at, !goes, REWRITE_IDS(some, runs, to), y);
}

static void (*const rules[DH_N_OP_TYPE])(pass *, const place *) = {
    [DH_OP_ALL_REDUCE] = all_reduce,           [DH_OP_ALL_GATHER] = all_gather,
    [DH_OP_REDUCE_SCATTER] = reduce_scatter,   [DH_OP_ALL_TO_ALL] = all_to_all,
    [DH_OP_ALL_TO_ALL_ROWS] = all_to_all_rows, [DH_OP_MOE_OFFSETS] = offsets,
};

/* ---- places --------------------------------------------------------------------------------- */

static bool is_float(dh_dtype dtype)
{
    return dtype == DH_F32 || dtype == DH_BF16 || dtype == DH_F64;
}

/* An exchange of lengths of runs of rows that go the same way. */
static bool announces_rows(const pass *p, uint32_t id)
{
    const uint32_t n = (uint32_t)p->to.graph->ops.n, lengths = op_at(p, id)->out[0];
    const uint32_t reader = rewrite_first_use(&p->uses, lengths, id + 1, n, false);
    return reader != DH_NONE && op_at(p, reader)->type == DH_OP_MOE_OFFSETS;
}

/* Rows go through another rank where that learns their lengths. */
static const char *match_rows(const pass *p, const dh_op *op)
{
    const bool goes = p->halfway[op->in[2]].id != DH_NONE;
    if (goes != (p->halfway[op->in[1]].id != DH_NONE)) return NULL;
    return "a rank between would not know which of its rows are for whom: their lengths are not "
           "exchanged";
}

/* NULL, or why it stays one. */
static const char *match(const pass *p, uint32_t id, dh_group_stages *stages)
{
    const dh_op *op = op_at(p, id);
    const char *obstacle = dh_mesh_group_stages(p->mesh, (dh_group_kind)op->group, stages);
    if (obstacle) return obstacle;
    if (op->type == DH_OP_ALL_TO_ALL_ROWS) return match_rows(p, op);
    if (op->type == DH_OP_ALL_TO_ALL && announces_rows(p, id)) return NULL;
    if (!rules[op->type]) return "it has no form in stages";
    const dh_tensor *in = tensor(p, op->in[0]);
    if (in->kind != DH_TENSOR_ACT || tensor(p, op->out[0])->kind != DH_TENSOR_ACT)
        return "it is about a state, a few bytes";
    if (!is_float(in->dtype)) return "it carries lengths, a few bytes";
    if (dh_op_n_parts(op) > 1) return "it is used in parts";
    const int64_t n = p->wide ? stages->n_nodes : stages->per_node;
    if (op->type == DH_OP_ALL_REDUCE && in->shape[0] % n != 0)
        return "its rows do not divide by the ranks of a stage";
    return NULL;
}

static void leave(pass *p, const dh_op *op, const char *why)
{
    char what[64];
    const uint32_t whole = op->type == DH_OP_ALL_GATHER ? op->out[0] : op->in[0];
    snprintf(what, sizeof what, "%s of %s", dh_op_info_of(op->type)->name, tensor(p, whole)->name);
    p->to.failed |= !dh_pass_leave(p->report, what, why);
}

/* Chunks that its GEMM is cut into; NULL, or why it is not. */
static const char *match_chunks(const pass *p, uint32_t id, const place *at, uint32_t *gemm)
{
    const bool gathers = at->op.type == DH_OP_ALL_GATHER, sums = at->op.type == DH_OP_ALL_REDUCE;
    const bool exchanges = at->op.type == DH_OP_ALL_TO_ALL || at->op.type == DH_OP_ALL_TO_ALL_ROWS;
    if (exchanges || (p->wide && !sums)) return "it comes whole";
    const char *obstacle =
        (gathers ? rewrite_find_reader : rewrite_find_maker)(&p->to, &p->uses, id, gemm);
    if (obstacle) return obstacle;
    if (p->gather_of[*gemm] != DH_NONE || dh_op_n_parts(op_at(p, *gemm)) > 1)
        return "its GEMM is cut already";
    const int64_t n_ranks = p->wide ? at->stages.n_nodes : at->stages.per_node;
    const int64_t n = tensor(p, gathers ? at->op.out[0] : at->op.in[0])->shape[0];
    const int64_t n_chunks = sums ? p->parts : at->stages.n_nodes;
    if (n_chunks > DH_MAX_PARTS) return "it would have too many parts";
    if (n % (n_chunks * n_ranks) != 0) return "its rows are not so many equal parts";
    return n / n_chunks < MIN_ROWS ? "a GEMM of one part's rows would be too small" : NULL;
}

static void mark_chunks(pass *p, uint32_t id, place *at)
{
    uint32_t gemm = DH_NONE;
    const char *obstacle = match_chunks(p, id, at, &gemm);
    if (obstacle) {
        leave(p, &at->op, obstacle);
        return;
    }
    at->gemm = gemm;
    if (at->op.type == DH_OP_ALL_GATHER)
        p->gather_of[gemm] = id;
    else
        op_at(p, gemm)->parts =
            (int32_t)(at->op.type == DH_OP_ALL_REDUCE ? p->parts : at->stages.n_nodes);
}

/* The tensor on the rank between, so that later operators find it. */
static void add_halfway(pass *p, const dh_op *op, const dh_group_stages *stages)
{
    const uint32_t out = op->out[0];
    p->halfway[out] =
        (halfway){.id = add_rows(p, out, "nodes", tensor(p, out)->shape[0]), .stages = *stages};
}

/* Offsets of runs whose lengths a rank between learns as well. */
static void find_offsets(pass *p, place *at)
{
    const halfway *lengths = &p->halfway[at->op.in[0]];
    at->is_one = lengths->id != DH_NONE;
    if (!at->is_one) return;
    at->stages = lengths->stages;
    add_halfway(p, &at->op, &at->stages);
}

static void find_place(pass *p, uint32_t id)
{
    const dh_op *op = op_at(p, id);
    place *at = &p->places[id];
    *at = (place){.op = *op, .gemm = DH_NONE};
    if (op->type == DH_OP_MOE_OFFSETS) find_offsets(p, at);
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return;
    const char *obstacle = match(p, id, &at->stages);
    if (obstacle) {
        leave(p, op, obstacle);
        return;
    }
    at->is_one = true;
    if (op->type == DH_OP_ALL_TO_ALL && !is_float(tensor(p, op->in[0])->dtype))
        add_halfway(p, op, &at->stages);
    if (p->report) p->report->n_places++;
    if (p->parts > 1) mark_chunks(p, id, at);
}

/* ---- entry ---------------------------------------------------------------------------------- */

/* One GEMM a node's block of the rows it reads. */
static void cut_gemm(pass *p, uint32_t id)
{
    const dh_op gemm = *op_at(p, id);
    const int64_t n_blocks = p->places[p->gather_of[id]].stages.n_nodes;
    const int64_t n = tensor(p, gemm.in[0])->shape[0] / n_blocks;
    for (int64_t j = 0; j < n_blocks && !p->to.failed; j++) {
        dh_op piece = gemm;
        piece.in[0] = rows_of(p, gemm.in[0], j * n, n);
        piece.out[0] = rows_of(p, gemm.out[0], j * n, n);
        rewrite_push(&p->to, &piece);
    }
}

static void rewrite_all(pass *p)
{
    const uint32_t n = (uint32_t)p->to.graph->ops.n;
    p->places = calloc((size_t)n + 1, sizeof *p->places);
    p->gather_of = malloc(((size_t)n + 1) * sizeof *p->gather_of);
    p->halfway = calloc(p->to.graph->tensors.n + 1, sizeof *p->halfway);
    p->to.failed =
        !rewrite_uses_init(&p->uses, p->to.graph) || !p->places || !p->gather_of || !p->halfway;
    if (p->to.failed) return;
    memset(p->gather_of, 0xff, n * sizeof *p->gather_of);
    for (size_t i = 0; i < p->to.graph->tensors.n; i++) p->halfway[i].id = DH_NONE;
    for (uint32_t i = 0; i < n && !p->to.failed; i++) find_place(p, i);
    for (uint32_t i = 0; i < n && !p->to.failed; i++) {
        if (p->places[i].is_one)
            rules[op_at(p, i)->type](p, &p->places[i]);
        else if (p->gather_of[i] != DH_NONE)
            cut_gemm(p, i);
        else
            rewrite_push(&p->to, op_at(p, i));
    }
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    pass p = {.to = {.graph = w->graph},
              .mesh = &w->spec->mesh,
              .wide = w->args[ORDER] == DH_STAGES_WIDE,
              .parts = DH_MAX(w->args[PARTS], 1),
              .report = w->report};
    rewrite_all(&p);
    rewrite_uses_fini(&p.uses);
    free(p.places);
    free(p.gather_of);
    free(p.halfway);
    return rewrite_end(ctx, &p.to, DH_OK, "taking collectives apart into stages");
}

static bool any_stages(const dh_mesh *mesh, const dh_group_kind *groups, size_t n)
{
    dh_group_stages stages;
    for (size_t i = 0; i < n; i++)
        if (!dh_mesh_group_stages(mesh, groups[i], &stages)) return true;
    return false;
}

static bool layers_have_stages(const dh_mesh *mesh)
{
    static const dh_group_kind groups[] = {DH_GROUP_TP, DH_GROUP_EP, DH_GROUP_TP_EP};
    return any_stages(mesh, groups, DH_COUNTOF(groups));
}

static bool gradients_have_stages(const dh_mesh *mesh)
{
    static const dh_group_kind groups[] = {DH_GROUP_DP_CP, DH_GROUP_EDP_CP};
    return any_stages(mesh, groups, DH_COUNTOF(groups));
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    const dh_mesh *m = &spec->mesh;
    if (m->ranks_per_node >= m->ranks)
        return "all ranks are on one node (topology.nodes, topology.ranks_per_node)";
    if (args[ORDER] == DH_STAGES_WHOLE)
        return "by costs collectives in one stage are faster (order=whole)";
    if (!dh_mesh_cuts_one_axis(m)) return "nodes cut groups of ranks into unequal parts";
    if (layers_have_stages(m)) return NULL;
    return gradients_have_stages(m) ? NULL
                                    : "no group of ranks has several on each of several nodes";
}

/* Where only gradients' sums have stages, they are narrow (reductions.c of program). */
static void reduce(const dh_graph_spec *spec, int64_t *args)
{
    if (layers_have_stages(&spec->mesh)) return;
    args[ORDER] = DH_STAGES_NARROW;
    args[PARTS] = 1;
}

/* Where layers have none nobody chose an order for them, and sums are left to costs one by one. */
static bool stages_by_costs(const int64_t *args)
{
    return args[ORDER] == DH_STAGES_AUTO;
}

/* TUNING: of orders that come to the same the one that sends least to other nodes. Each choice
 * takes the time to be measured, in each order: gathers and reduce-scatters are cut alike by any
 * number. */
static const int64_t some_orders[] = {DH_STAGES_NARROW, DH_STAGES_WIDE, DH_STAGES_WHOLE, 0};
static const int64_t some_parts[] = {1, 2, 0};

const dh_pass dh_pass_row_two_stage = {
    .name = "two-stage",
    .doc = "splits collectives of groups that span nodes: one on every node and one across nodes "
           "(Centauri, ASPLOS 2024)",
    .place = DH_PASS_AFTER_RECOMPUTE,
    .params = {[ORDER] = {.name = "order",
                          .doc = "narrow: least bytes to other nodes, summed on a node before and "
                                 "gathered there after; wide: the other way round, fewer calls; "
                                 "whole: one stage",
                          .kind = DH_PASS_WORD,
                          .fallback = DH_STAGES_NARROW,
                          .words = order_words,
                          .choices = some_orders},
               [PARTS] = {.name = "parts",
                          .doc = "chunks of rows that an all-reduce goes through its stages in, as "
                                 "its GEMM makes them; above 1, gathers and reduce-scatters are "
                                 "used node by node",
                          .kind = DH_PASS_INT,
                          .fallback = 1,
                          .min = 1,
                          .max = 16,
                          .choices = some_parts}},
    .in_stages = true,
    .stages_by_costs = stages_by_costs,
    .applicable = applicable,
    .reduce = reduce,
    .apply = apply};
