/* Collectives of tensor parallelism whose chunks are used as they come, or sent as they are made.
 *
 * All-gather, then GEMM: the gather stays one call, complete in parts. The GEMM becomes one of the
 * rank's own rows, which waits for nothing, and one for each part of the other ranks' rows, in the
 * order in which these come: from the next rank on, round the group. What else reads the gathered
 * tensor waits for all of it.
 *
 * GEMM, then all-reduce (the tokens are not split): the GEMM stays one operator, complete in
 * parts, and each part's rows are summed while the next part is computed.
 *
 * What waits for which part follows from the rows that operators use (dependences.c of program).
 *
 * Numbers: no sum is cut, and every one has the order that it has without this pass, so the bits
 * are the same as far as those of a GEMM's row do not depend on the number of its rows. Applied
 * again it changes nothing: what is used in parts is left alone, with the reason.
 *
 * Source: CoCoNet (Jangda et al. 2022, arXiv 2105.05720), the rewrite "overlap": chunks of a
 * producer feed chunks of its consumer; Flux (Chang et al. 2024, arXiv 2406.06858) for what is
 * waited for, the chunk and not the transfer, and for the own rows, which never wait. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/pass.h"
#include "rewrite.h"

/* TUNING: as in pass_ring_gemm.c: a GEMM of fewer rows takes longer than any transfer it hides. */
enum { MIN_ROWS = 8 };

enum { PARTS }; /* parameters */

typedef struct pass {
    rewrite to;
    rewrite_uses uses;   /* of the graph before */
    int32_t n, me;       /* ranks, and which this is */
    int32_t parts;       /* of one rank's rows, or of a sum's */
    uint32_t *gather_of; /* by operator: of a GEMM that is cut, the gather; else DH_NONE */
    bool *is_cut;        /* by operator: an all-reduce that is */
    size_t n_places;
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

/* ---- what can be cut ----------------------------------------------------------------------- */

/* Row n of the output comes from row n of the first input, and from a weight. */
static bool is_row_gemm(const pass *p, const dh_op *op)
{
    return (op->type == DH_OP_LINEAR || op->type == DH_OP_LINEAR_DGRAD) &&
           tensor(p, op->in[0])->shape[0] == tensor(p, op->out[0])->shape[0];
}

/* An activation of its own that nobody uses in parts. */
static bool is_plain(const pass *p, uint32_t id)
{
    const dh_tensor *t = tensor(p, id);
    return t->kind == DH_TENSOR_ACT && t->base == DH_NONE && !p->uses.in_parts[id];
}

static const char *misfit_of_rows(const pass *p, int64_t rows)
{
    if (rows % p->parts != 0) return "its rows are not so many equal parts";
    return rows / p->parts < MIN_ROWS ? "a GEMM of one part's rows would be too small" : NULL;
}

/* NULL, or why not. */
static const char *match_gather(const pass *p, uint32_t id, uint32_t *gemm)
{
    const uint32_t all = op_at(p, id)->out[0], end = (uint32_t)p->to.graph->ops.n;
    *gemm = rewrite_first_use(&p->uses, all, id + 1, end, false);
    if (!is_plain(p, all)) return "it is used in parts";
    if (*gemm == DH_NONE) return "nothing reads it";
    const dh_op *op = op_at(p, *gemm);
    if (!is_row_gemm(p, op) || op->in[0] != all) return "what reads it first is no GEMM by rows";
    if (op->phase != op_at(p, id)->phase) return "its GEMM belongs to another phase";
    if (!is_plain(p, op->out[0])) return "its GEMM's output is used in parts";
    if ((int64_t)p->parts * p->n > DH_MAX_PARTS) return "it would have too many parts";
    return misfit_of_rows(p, tensor(p, op_at(p, id)->in[0])->shape[0]);
}

static const char *match_sum(const pass *p, uint32_t id, uint32_t *gemm)
{
    const uint32_t all = op_at(p, id)->in[0];
    *gemm = rewrite_first_use(&p->uses, all, 0, id, true);
    if (p->parts == 1) return "one part is all of it";
    if (!is_plain(p, all) || !is_plain(p, op_at(p, id)->out[0])) return "it is used in parts";
    if (*gemm == DH_NONE || !is_row_gemm(p, op_at(p, *gemm)))
        return "it comes from no GEMM by rows";
    if (op_at(p, *gemm)->phase != op_at(p, id)->phase) return "its GEMM belongs to another phase";
    return misfit_of_rows(p, tensor(p, all)->shape[0]);
}

static void leave(pass *p, const dh_op *op, const dh_tensor *whole, const char *why)
{
    char what[64];
    snprintf(what, sizeof what, "%s of %s", dh_op_info_of(op->type)->name, whole->name);
    p->to.failed |= !dh_pass_leave(p->report, what, why);
}

/* Says of which operators the output comes in parts. */
static void find_place(pass *p, uint32_t id)
{
    dh_op *op = op_at(p, id);
    const bool gathers = op->type == DH_OP_ALL_GATHER, sums = op->type == DH_OP_ALL_REDUCE;
    if (op->group != DH_GROUP_TP || !(gathers || sums)) return;
    uint32_t gemm;
    const char *obstacle = gathers ? match_gather(p, id, &gemm) : match_sum(p, id, &gemm);
    if (obstacle) {
        leave(p, op, tensor(p, gathers ? op->out[0] : op->in[0]), obstacle);
        return;
    }
    p->n_places++;
    if (gathers) {
        op->parts = p->n * p->parts;
        op->part0 = p->me * p->parts;
        p->gather_of[gemm] = id;
    } else {
        op_at(p, gemm)->parts = p->parts;
        p->is_cut[id] = true;
    }
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static uint32_t rows_of(pass *p, uint32_t id, int64_t row0, int64_t n_rows)
{
    char name[sizeof tensor(p, id)->name];
    snprintf(name, sizeof name, "%.13s.%lld", tensor(p, id)->name, (long long)row0);
    return rewrite_rows(&p->to, id, name, row0, n_rows);
}

/* An operator on other rows. */
static void push_piece(pass *p, const dh_op *like, uint32_t in, uint32_t out)
{
    dh_op op = *like;
    op.in[0] = in;
    op.out[0] = out;
    rewrite_push(&p->to, &op);
}

static void cut_gathered(pass *p, uint32_t id)
{
    const dh_op gemm = *op_at(p, id), gather = *op_at(p, p->gather_of[id]);
    const int64_t own = tensor(p, gather.in[0])->shape[0], rows = own / p->parts;
    push_piece(p, &gemm, gather.in[0], rows_of(p, gemm.out[0], p->me * own, own));
    for (uint32_t k = (uint32_t)p->parts; k < dh_op_n_parts(&gather); k++) {
        const int64_t row0 = dh_op_part_begin(&gather, p->n * own, k);
        const uint32_t in = rows_of(p, gather.out[0], row0, rows);
        push_piece(p, &gemm, in, rows_of(p, gemm.out[0], row0, rows));
    }
}

static void cut_sum(pass *p, uint32_t id)
{
    const dh_op sum = *op_at(p, id);
    const int64_t rows = tensor(p, sum.in[0])->shape[0] / p->parts;
    for (int32_t k = 0; k < p->parts; k++) {
        const uint32_t in = rows_of(p, sum.in[0], k * rows, rows);
        push_piece(p, &sum, in, rows_of(p, sum.out[0], k * rows, rows));
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

static void rewrite_all(pass *p)
{
    const uint32_t n = (uint32_t)p->to.graph->ops.n;
    p->gather_of = malloc((n + 1) * sizeof *p->gather_of);
    p->is_cut = calloc(n + 1, sizeof *p->is_cut);
    p->to.failed = !rewrite_uses_init(&p->uses, p->to.graph) || !p->gather_of || !p->is_cut;
    if (p->to.failed) return;
    memset(p->gather_of, 0xff, (n + 1) * sizeof *p->gather_of);
    for (uint32_t i = 0; i < n && !p->to.failed; i++) find_place(p, i);
    for (uint32_t i = 0; i < n && !p->to.failed; i++) {
        if (p->gather_of[i] != DH_NONE)
            cut_gathered(p, i);
        else if (p->is_cut[i])
            cut_sum(p, i);
        else
            rewrite_push(&p->to, op_at(p, i));
    }
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    return spec->mesh.tp == 1 ? "nothing is gathered or summed over one rank (parallel.tp=1)"
                              : NULL;
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    pass p = {.to = {.graph = w->graph},
              .n = (int32_t)w->rank.shard.tp,
              .me = (int32_t)w->rank.shard.tp_rank,
              .parts = (int32_t)w->args[PARTS],
              .report = w->report};
    rewrite_all(&p);
    if (p.report) p.report->n_places += p.n_places;
    rewrite_uses_fini(&p.uses);
    free(p.gather_of);
    free(p.is_cut);
    return rewrite_end(ctx, &p.to, DH_OK, "cutting GEMMs by parts of what they read");
}

/* Which rows a piece has follows from the tp index, as in pass_ring_gemm.c. */
const dh_pass dh_pass_row_part_wise = {
    .name = "part-wise",
    .doc = "GEMMs begin with the rows of an all-gather that have come; rows of a GEMM are summed "
           "over tensor parallelism while others are computed (CoCoNet, arXiv 2105.05720; Flux, "
           "arXiv 2406.06858)",
    .place = DH_PASS_AFTER_RECOMPUTE,
    .params = {[PARTS] = {.name = "parts",
                          .doc = "of one rank's rows of an all-gather, and of an all-reduce",
                          .kind = DH_PASS_INT,
                          .fallback = 2,
                          .min = 1,
                          .max = 16}},
    .varies_by = 1u << DH_MESH_TP,
    .applicable = applicable,
    .apply = apply};
