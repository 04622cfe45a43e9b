/* GEMM and reduce-scatter where hardware tracks the GEMM's output and triggers the transfers.
 *
 * The GEMM stays one operator, complete in as many parts as there are ranks. The rows of the rank
 * after this one come first, its own last, so the GEMMs of different ranks are staggered. The
 * reduce-scatter becomes a ring of n - 1 steps towards the ranks before (scatter_step). In step k
 * the rows of the k-th rank after this one leave, added to their sum from step k - 1. A step begins
 * when the tracker has seen both, the GEMM's writes and the arrived ones. Memory adds data as they
 * are written. So neither the steps nor the last addition, to the rank's own rows (near_sum), use
 * compute units. In the first step the GEMM's stores themselves are remote.
 *
 * There is no such device here: what comes of it can be simulated (keys `trigger` of a cluster
 * file), and is refused where it would have to run.
 *
 * Numbers: shares are added in the order of the ring.
 *
 * Source: T3 (Pati et al., ASPLOS 2024, arXiv 2401.16677), 4: track and trigger, near-memory
 * reduction, staggered GEMMs; the arbitration of 4.5 is a rate of the cluster's. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

typedef struct pass {
    rewrite to;
    rewrite_uses uses; /* uses in the graph before */
    rewrite_late late; /* last additions that nobody has read so far */
    int32_t n, me;     /* ranks, and which this is */
    bool *is_cut;      /* by operator: a reduce-scatter that becomes steps */
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

/* NULL, or why not. Rows that were written to another rank's memory are not here to be read. */
static const char *match(const pass *p, uint32_t id, uint32_t *gemm)
{
    const uint32_t all = op_at(p, id)->in[0], end = (uint32_t)p->to.graph->ops.n;
    *gemm = rewrite_first_use(&p->uses, all, 0, id, true);
    if (tensor(p, all)->base != DH_NONE || p->uses.in_parts[all]) return "it is used in parts";
    if (*gemm == DH_NONE || !rewrite_is_row_gemm(&p->to, op_at(p, *gemm)))
        return "it comes from no GEMM by rows";
    if (op_at(p, *gemm)->phase != op_at(p, id)->phase) return "its GEMM belongs to another phase";
    if (rewrite_first_use(&p->uses, all, *gemm + 1, id, false) != DH_NONE ||
        rewrite_first_use(&p->uses, all, id + 1, end, false) != DH_NONE)
        return "something else reads it";
    return p->n > DH_MAX_PARTS ? "it would have too many parts" : NULL;
}

static void find_place(pass *p, uint32_t id)
{
    const dh_op *op = op_at(p, id);
    uint32_t gemm;
    if (op->group != DH_GROUP_TP || op->type != DH_OP_REDUCE_SCATTER) return;
    const char *obstacle = match(p, id, &gemm);
    if (obstacle) {
        char what[64];
        snprintf(what, sizeof what, "reduce_scatter of %s", tensor(p, op->in[0])->name);
        p->to.failed |= !dh_pass_leave(p->report, what, obstacle);
        return;
    }
    p->n_places++;
    p->is_cut[id] = true;
    op_at(p, gemm)->parts = p->n;
    op_at(p, gemm)->part0 = (p->me + 1) % p->n;
}

/* The rows of one rank. */
static uint32_t rows_of(pass *p, uint32_t all, int32_t rank)
{
    const int64_t n = tensor(p, all)->shape[0] / p->n;
    char name[sizeof tensor(p, all)->name];
    snprintf(name, sizeof name, "%.15s.%d", tensor(p, all)->name, (int)rank);
    return rewrite_rows(&p->to, all, name, rank * n, n);
}

static uint32_t arriving(pass *p, uint32_t all, int32_t rank)
{
    dh_tensor t = rewrite_like(&p->to, all);
    t.shape[0] /= p->n;
    rewrite_name(&t, "%.14s.in%d", tensor(p, all)->name, (int)rank);
    return rewrite_add(&p->to, &t);
}

static void push_step(pass *p, const dh_op *scatter, uint32_t rows, uint32_t came, uint32_t next)
{
    dh_op op =
        dh_op_make(DH_OP_SCATTER_STEP, scatter->phase, REWRITE_IDS(rows, came), REWRITE_IDS(next));
    op.group = scatter->group;
    op.by = p->n - 1;
    rewrite_push(&p->to, &op);
}

static void cut(pass *p, uint32_t id)
{
    const dh_op scatter = *op_at(p, id);
    uint32_t came = DH_NONE;
    for (int32_t k = 1; k < p->n && !p->to.failed; k++) {
        const uint32_t rows = rows_of(p, scatter.in[0], (p->me + k) % p->n);
        const uint32_t next = arriving(p, scatter.in[0], (p->me + k + 1) % p->n);
        push_step(p, &scatter, rows, came, next);
        came = next;
    }
    const uint32_t own = rows_of(p, scatter.in[0], p->me);
    const dh_op sum = dh_op_make(DH_OP_NEAR_SUM, scatter.phase, REWRITE_IDS(own, came),
                                 REWRITE_IDS(scatter.out[0]));
    rewrite_keep_late(&p->to, &p->late, &sum);
}

static void rewrite_all(pass *p)
{
    const uint32_t n = (uint32_t)p->to.graph->ops.n;
    p->is_cut = calloc(n + 1, sizeof *p->is_cut);
    p->to.failed = !rewrite_uses_init(&p->uses, p->to.graph) || !p->is_cut;
    if (p->to.failed) return;
    for (uint32_t i = 0; i < n && !p->to.failed; i++) find_place(p, i);
    for (uint32_t i = 0; i < n && !p->to.failed; i++) {
        rewrite_push_late(&p->to, &p->late, op_at(p, i));
        if (p->is_cut[i])
            cut(p, i);
        else
            rewrite_push(&p->to, op_at(p, i));
    }
    rewrite_push_late(&p->to, &p->late, NULL);
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (spec->mesh.tp == 1) return "nothing is scattered over one rank (parallel.tp=1)";
    return dh_graph_sequence(spec) == DH_SEQUENCE_WHOLE
               ? "all-reduces stay whole (parallel.sequence=false)"
               : NULL;
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    pass p = {.to = {.graph = w->graph},
              .n = (int32_t)w->rank.shard.tp,
              .me = (int32_t)w->rank.shard.tp_rank,
              .report = w->report};
    rewrite_all(&p);
    if (p.report) p.report->n_places += p.n_places;
    rewrite_uses_fini(&p.uses);
    rewrite_late_fini(&p.late);
    free(p.is_cut);
    return rewrite_end(ctx, &p.to, DH_OK, "tracking GEMMs");
}

/* Which rows go first follows from the tp index, as in pass_ring_gemm.c. */
const dh_pass dh_pass_row_track_trigger = {
    .name = "track-trigger",
    .doc = "steps of a reduce-scatter begin when hardware has seen the rows of the GEMM before it, "
           "and memory adds them; simulated only (T3, arXiv 2401.16677)",
    .place = DH_PASS_AFTER_RECOMPUTE,
    .varies_by = 1u << DH_MESH_TP,
    .simulated = "no device here tracks what a GEMM writes, starts transfers by that, and adds in "
                 "memory",
    .applicable = applicable,
    .apply = apply};
