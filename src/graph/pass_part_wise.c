/* Collectives of tensor parallelism whose chunks are used as they come, or sent as they are made.
 *
 * All-gather, then GEMM: the gather stays one call, complete in parts. The GEMM
 * becomes several: one of the rank's own rows, which waits for nothing, and one for each part of
 * the other ranks' rows. These parts come from the next rank on, round the group. Other readers of
 * the gathered tensor wait for all of it.
 *
 * GEMM, then all-reduce (the tokens are not split): the GEMM stays one operator, complete in
 * parts, and each part's rows are summed while the next part is computed.
 *
 * GEMM, then reduce-scatter (`scatter`): the GEMM stays one operator, complete in parts, of which
 * each has rows of one rank. It begins with those of the next rank and ends with its own. Rows of
 * another rank leave for it at once (shift). At the end the rank's own rows and those from the
 * others are added, in the order of a reduce-scatter. That is an all-to-all and a local sum: as
 * many bytes as a ring sends, no additions on the way, and memory for the arrived rows. The sum
 * stands before its first reader, so weight gradients in between hide the last transfers as they
 * hide a whole reduce-scatter.
 *
 * The rows that operators use decide which one waits for which part (dependences.c of program).
 *
 * Numbers: no sum is cut, and every one has the order that it has without this pass. So the bits
 * are the same if those of a GEMM's row do not depend on the number of its rows. Applied again it
 * changes nothing: tensors that are used in parts are left alone, with the reason.
 *
 * `fused`: what is cut of a GEMM are tiles of one kernel, which waits for each one's rows, and not
 * kernels of their own. A device without such a kernel (cpu) makes the same calls either way;
 * models of devices charge the tiles their share of the whole GEMM (`tile_of`).
 *
 * Source: CoCoNet (Jangda et al. 2022, arXiv 2105.05720), the rewrite "overlap": chunks of a
 * producer feed chunks of its consumer. Flux (Chang et al. 2024, arXiv 2406.06858):
 *   waits for chunks and not for the transfer;
 *   own rows, which never wait (3.2);
 *   rows that leave from the GEMM's epilogue and are added where they arrive (3.1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

/* TUNING: as in pass_ring_gemm.c: a GEMM of fewer rows takes longer than any transfer it hides. */
enum { MIN_ROWS = 8 };

enum { PARTS, SCATTER, FUSED, CUT }; /* parameters */
static const char *const cut_words[] = {
    [DH_CUT_AUTO] = "auto", [DH_CUT_ALL] = "all", [DH_CUT_NONE] = "none", NULL};
/* Where nobody chose the parts. */
enum { SOME_PARTS = 2 };

typedef struct pass {
    rewrite to;
    rewrite_uses uses; /* uses in the graph before */
    int32_t n, me;     /* ranks, and which this is */
    int32_t parts;     /* of one rank's rows, or of a sum's */
    bool scatters, fused;
    uint32_t *gather_of; /* by operator: of a GEMM that is cut, the gather; else DH_NONE */
    bool *is_cut;        /* by operator: an all-reduce or a reduce-scatter that is */
    rewrite_late sums;   /* of shares, that nobody has read so far */
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

static const char *misfit_of_rows(const pass *p, int64_t rows)
{
    if (rows % p->parts != 0) return "its rows are not so many equal parts";
    return rows / p->parts < MIN_ROWS ? "a GEMM of one part's rows would be too small" : NULL;
}

/* NULL, or why not. */
static const char *match_gather(const pass *p, uint32_t id, uint32_t *gemm)
{
    const char *obstacle = rewrite_find_reader(&p->to, &p->uses, id, gemm);
    if (obstacle) return obstacle;
    if ((int64_t)p->parts * p->n > DH_MAX_PARTS) return "it would have too many parts";
    return misfit_of_rows(p, tensor(p, op_at(p, id)->in[0])->shape[0]);
}

static const char *match_sum(const pass *p, uint32_t id, uint32_t *gemm)
{
    const char *obstacle =
        p->parts == 1 ? "one part is all of it" : rewrite_find_maker(&p->to, &p->uses, id, gemm);
    return obstacle ? obstacle : misfit_of_rows(p, tensor(p, op_at(p, id)->in[0])->shape[0]);
}

static const char *match_scatter(const pass *p, uint32_t id, uint32_t *gemm)
{
    const char *obstacle = rewrite_find_maker(&p->to, &p->uses, id, gemm);
    if (obstacle) return obstacle;
    if (p->gather_of[*gemm] != DH_NONE) return "its GEMM is cut by what it reads";
    if ((int64_t)p->parts * p->n > DH_MAX_PARTS) return "it would have too many parts";
    return misfit_of_rows(p, tensor(p, op_at(p, id)->out[0])->shape[0]);
}

static void leave(pass *p, const dh_op *op, const dh_tensor *whole, const char *why)
{
    char what[64];
    snprintf(what, sizeof what, "%s of %s", dh_op_info_of(op->type)->name, whole->name);
    p->to.failed |= !dh_pass_leave(p->report, what, why);
}

static void mark_gather(pass *p, uint32_t id, uint32_t gemm)
{
    dh_op *op = op_at(p, id);
    op->parts = p->n * p->parts;
    op->part0 = p->me * p->parts;
    p->gather_of[gemm] = id;
}

static void mark_sum(pass *p, uint32_t id, uint32_t gemm)
{
    op_at(p, gemm)->parts = p->parts;
    p->is_cut[id] = true;
}

/* The rank's own rows come last: nobody waits for them. */
static void mark_scatter(pass *p, uint32_t id, uint32_t gemm)
{
    dh_op *product = op_at(p, gemm);
    product->parts = p->n * p->parts;
    product->part0 = (p->me + 1) % p->n * p->parts;
    p->is_cut[id] = true;
}

/* Collectives that may be cut: whether they can be, and whose output then comes in parts. */
static const struct {
    dh_op_type type;
    const char *(*match)(const pass *p, uint32_t id, uint32_t *gemm); /* NULL, or why not */
    void (*mark)(pass *p, uint32_t id, uint32_t gemm);
} kinds[] = {{DH_OP_ALL_GATHER, match_gather, mark_gather},
             {DH_OP_ALL_REDUCE, match_sum, mark_sum},
             {DH_OP_REDUCE_SCATTER, match_scatter, mark_scatter}};

static void find_place(pass *p, uint32_t id)
{
    const dh_op *op = op_at(p, id);
    size_t k = 0;
    while (k < DH_COUNTOF(kinds) && kinds[k].type != op->type) k++;
    if (op->group != DH_GROUP_TP || k == DH_COUNTOF(kinds)) return;
    if (op->type == DH_OP_REDUCE_SCATTER && !p->scatters) return;
    uint32_t gemm = DH_NONE;
    const char *obstacle = kinds[k].match(p, id, &gemm);
    if (obstacle) {
        leave(p, op, tensor(p, op->type == DH_OP_ALL_GATHER ? op->out[0] : op->in[0]), obstacle);
        return;
    }
    p->n_places++;
    kinds[k].mark(p, id, gemm);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static uint32_t rows_of(pass *p, uint32_t id, int64_t row0, int64_t n_rows)
{
    if (n_rows == tensor(p, id)->shape[0]) return id;
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
    const dh_op gather = *op_at(p, p->gather_of[id]);
    dh_op gemm = *op_at(p, id);
    const int64_t own = tensor(p, gather.in[0])->shape[0], rows = own / p->parts;
    if (p->fused) gemm.tile_of = p->n * own;
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

/* The n rows that came from rank j, those of the ranks in their order without this one. */
static int64_t place_of(const pass *p, int32_t j, int64_t n)
{
    return (j < p->me ? j : j - 1) * n;
}

/* To the rank `by` places on, and from the one as many places back, part by part. */
static void send_rows(pass *p, const dh_op *scatter, int32_t by, uint32_t came)
{
    const uint32_t all = scatter->in[0];
    const int64_t n = tensor(p, scatter->out[0])->shape[0], rows = n / p->parts;
    const int32_t to = (p->me + by) % p->n, from = (p->me + p->n - by) % p->n;
    for (int32_t k = 0; k < p->parts && !p->to.failed; k++) {
        const uint32_t in = rows_of(p, all, to * n + k * rows, rows);
        rewrite_push_shift(&p->to, scatter->phase, scatter->group, by, in,
                           rows_of(p, came, place_of(p, from, n) + k * rows, rows));
    }
}

static void keep_sum(pass *p, const dh_op *scatter, uint32_t came)
{
    const uint32_t all = scatter->in[0];
    const int64_t n = tensor(p, scatter->out[0])->shape[0], n_before = p->me * n;
    const int64_t n_behind = (p->n - 1) * n - n_before;
    const uint32_t before = n_before > 0 ? rows_of(p, came, 0, n_before) : DH_NONE;
    const uint32_t own = rows_of(p, all, n_before, n);
    const uint32_t behind = n_behind > 0 ? rows_of(p, came, n_before, n_behind) : DH_NONE;
    const dh_op sum = dh_op_make(DH_OP_SUM_SHARES, scatter->phase, REWRITE_IDS(before, own, behind),
                                 REWRITE_IDS(scatter->out[0]));
    rewrite_keep_late(&p->to, &p->sums, &sum);
}

static void cut_scatter(pass *p, uint32_t id)
{
    const dh_op scatter = *op_at(p, id);
    dh_tensor t = rewrite_like(&p->to, scatter.in[0]);
    t.shape[0] -= t.shape[0] / p->n;
    rewrite_name(&t, "%.15s.came", tensor(p, scatter.in[0])->name);
    const uint32_t came = rewrite_add(&p->to, &t);
    for (int32_t by = 1; by < p->n && !p->to.failed; by++) send_rows(p, &scatter, by, came);
    if (!p->to.failed) keep_sum(p, &scatter, came);
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
        rewrite_push_late(&p->to, &p->sums, op_at(p, i));
        if (p->gather_of[i] != DH_NONE)
            cut_gathered(p, i);
        else if (p->is_cut[i])
            (op_at(p, i)->type == DH_OP_ALL_REDUCE ? cut_sum : cut_scatter)(p, i);
        else
            rewrite_push(&p->to, op_at(p, i));
    }
    rewrite_push_late(&p->to, &p->sums, NULL);
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    if (args[CUT] == DH_CUT_NONE) return "by costs GEMMs are faster whole (cut=none)";
    return spec->mesh.tp == 1 ? "nothing is gathered or summed over one rank (parallel.tp=1)"
                              : NULL;
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    pass p = {.to = {.graph = w->graph},
              .n = (int32_t)w->rank.shard.tp,
              .me = (int32_t)w->rank.shard.tp_rank,
              .parts = (int32_t)(w->args[PARTS] ? w->args[PARTS] : SOME_PARTS),
              .scatters = w->args[SCATTER] != 0,
              .fused = w->args[FUSED] != 0,
              .report = w->report};
    rewrite_all(&p);
    if (p.report) p.report->n_places += p.n_places;
    rewrite_uses_fini(&p.uses);
    free(p.gather_of);
    free(p.is_cut);
    rewrite_late_fini(&p.sums);
    return rewrite_end(ctx, &p.to, DH_OK, "cutting GEMMs by parts of what they read");
}

/* Nothing is scattered where every rank has all tokens. */
static void reduce(const dh_graph_spec *spec, int64_t *args)
{
    if (dh_graph_sequence(spec) == DH_SEQUENCE_WHOLE) args[SCATTER] = 0;
}

/* TUNING: choices for the parts. With two ranks and four parts an eighth of a GEMM passes before
 * its first rows leave. With twice as many parts a sixteenth would, for as many messages more. And
 * each choice takes the time to be measured. */
static const int64_t some_parts[] = {1, 2, 4, 0};

static const int64_t some_cuts[] = {DH_CUT_NONE, DH_CUT_ALL, 0};

/* Which rows a piece has follows from the tp index, as in pass_ring_gemm.c. */
const dh_pass dh_pass_row_part_wise = {
    .name = "part-wise",
    .doc = "a GEMM begins with the rows of an all-gather that have arrived; its finished rows are "
           "summed over ranks, or sent to the rank that sums them, while it computes others "
           "(CoCoNet, arXiv 2105.05720; Flux, arXiv 2406.06858)",
    .place = DH_PASS_AFTER_RECOMPUTE,
    .params = {[PARTS] = {.name = "parts",
                          .doc = "of one rank's rows of an all-gather or reduce-scatter, and of an "
                                 "all-reduce",
                          .kind = DH_PASS_INT,
                          .fallback = SOME_PARTS,
                          .min = 1,
                          .max = 16,
                          .choices = some_parts},
               [SCATTER] = {.name = "scatter",
                            .doc = "reduce-scatters too: each rank's rows of a GEMM leave as they "
                                   "are made, and are added where they arrive",
                            .kind = DH_PASS_FLAG},
               [FUSED] = {.name = "fused",
                          .doc = "models of devices take a GEMM's pieces for tiles of one kernel",
                          .kind = DH_PASS_FLAG},
               [CUT] = {.name = "cut",
                        .doc = "what is cut: all that can be, or by costs nothing",
                        .kind = DH_PASS_WORD,
                        .fallback = DH_CUT_ALL,
                        .words = cut_words,
                        .choices = some_cuts}},
    .varies_by = 1u << DH_MESH_TP,
    .applicable = applicable,
    .reduce = reduce,
    .apply = apply};
