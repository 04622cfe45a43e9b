/* Fuse: a reduce-scatter and the operators by rows behind it, as one pipeline over chunks of rows.
 *
 * CoCoNet's third rewrite. After split and reorder, or with sequence parallelism, a rank's rows of
 * a sum go through operators that compute a row from a row before they are gathered. These are the
 * residual connection, dropout, norm and their input gradients. They need not wait for all rows:
 *
 *     s = reduce_scatter(p)              s = reduce_scatter(p), complete in parts
 *     y = residual(x, s)          =>     y.0 = residual(x.0, s.0);  n.0 = norm(y.0)
 *     n = norm(y)                        y.1 = residual(x.1, s.1);  n.1 = norm(y.1)
 *
 * A chunk passes through all of them while the next one is being summed. So only the time of the
 * last chunk is exposed, and tensors in between stay in the cache. The reduce-scatter remains one
 * call. Operators in between that do not work by rows end the pipeline, and the operators after
 * them begin a new one.
 *
 * The all-gather after it waits for the last chunk: its own input is not taken in parts. With
 * `gather` it goes by the same chunks. Each chunk leaves for its rows on every other rank as it is
 * done (shift). It is copied to the rank's own rows unless it lies there. That is as many bytes in
 * more calls. Between sum and gather, only the first operator's wait is exposed.
 *
 * AdamW works by rows too (reorder). A program that sums a gradient and steps by it therefore
 * becomes CoCoNet's fused optimizer (6.1): reduce-scatter, update and gather of a chunk, each
 * beside those of the next. In a job's step optimizer.fuse does that (optimizer.c of program).
 *
 * Numbers: every row is computed as before, so the bits are the same.
 *
 * Source: Jangda et al., ASPLOS 2022 (arXiv 2105.05720), 3.3 (fuse) and 3.4 (overlap). */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

enum { PARTS, GATHER }; /* arguments */

typedef struct fuser {
    rewrite to;
    const dh_pass_work *work;
    rewrite_uses uses; /* uses in the graph before */
    int64_t parts;
    bool *in_parts;    /* by tensor: it is complete chunk by chunk */
    DH_VEC(dh_op) run; /* operators by rows, one behind the other, and gathers, to be cut */
    dh_pass_report *report;
} fuser;

static const dh_tensor *tensor(const fuser *f, uint32_t id)
{
    return rewrite_tensor(&f->to, id);
}

/* ---- what can be cut ------------------------------------------------------------------------ */

/* A value of its own that nobody uses in parts. */
static bool is_plain(const fuser *f, uint32_t id)
{
    const dh_tensor *t = tensor(f, id);
    return t->kind == DH_TENSOR_ACT && t->base == DH_NONE && !f->uses.in_parts[id];
}

/* Rows of the chunked value that it reads; 0: none. */
static int64_t rows_of(const fuser *f, const dh_op *op, const rewrite_row_op *row)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->in[k] != DH_NONE && (row->in >> k & 1) && f->in_parts[op->in[k]])
            return tensor(f, op->in[k])->shape[0];
    return 0;
}

static bool is_cut(const fuser *f, const dh_op *op)
{
    const rewrite_row_op *row = rewrite_row_op_of(op->type);
    const int64_t rows = row->sums ? 0 : rows_of(f, op, row);
    if (rows == 0) return false;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op->in[k] != DH_NONE && (row->in >> k & 1) && tensor(f, op->in[k])->shape[0] != rows)
            return false;
        if (op->out[k] == DH_NONE) continue;
        if (!(row->out >> k & 1) || tensor(f, op->out[k])->shape[0] != rows) return false;
        if (!rewrite_updates(op, k) && !is_plain(f, op->out[k])) return false;
    }
    return true;
}

static int32_t members(const fuser *f, int32_t group)
{
    return (int32_t)dh_mesh_group_size(&f->work->spec->mesh, (dh_group_kind)group);
}

static int32_t place(const fuser *f, int32_t group)
{
    const dh_pass_work *w = f->work;
    if (w->spec->build.model) return (int32_t)w->rank.shard.tp_rank;
    return (int32_t)dh_mesh_group_index(&w->spec->mesh, (dh_group_kind)group, w->rank.rank);
}

/* A gather of what an operator of the run makes chunk by chunk. */
static bool is_gathered(const fuser *f, const dh_op *op)
{
    if (!f->work->args[GATHER] || op->type != DH_OP_ALL_GATHER || op->parts > 1) return false;
    if (f->work->spec->build.model && op->group != DH_GROUP_TP) return false;
    for (size_t i = 0; i < f->run.n; i++)
        for (int k = 0; k < DH_MAX_OPERANDS; k++)
            if (f->run.at[i].out[k] == op->in[0] && f->run.at[i].type != DH_OP_ALL_GATHER)
                return true;
    return false;
}

/* NULL, or why a reduce-scatter stays whole. first: what reads it. */
static const char *why_not(fuser *f, const dh_op *scatter, uint32_t first)
{
    const uint32_t own = scatter->out[0];
    if (scatter->parts > 1 || !is_plain(f, own)) return "it is used in parts";
    if (first == DH_NONE) return "nothing reads it";
    if (tensor(f, own)->shape[0] % f->parts) return "its rows are not so many equal parts";
    f->in_parts[own] = true;
    const bool cut = is_cut(f, &f->to.graph->ops.at[first]);
    f->in_parts[own] = cut;
    return cut ? NULL : "what reads it first does not work by rows";
}

/* ---- pieces --------------------------------------------------------------------------------- */

static uint32_t piece(fuser *f, uint32_t id, int64_t k)
{
    if (id == DH_NONE || f->to.failed) return id;
    const int64_t n = tensor(f, id)->shape[0] / f->parts;
    char name[sizeof tensor(f, id)->name];
    snprintf(name, sizeof name, "%.18s.%lld", tensor(f, id)->name, (long long)k);
    return rewrite_rows(&f->to, id, name, k * n, n);
}

static void push_piece(fuser *f, const dh_op *op, int64_t k)
{
    const rewrite_row_op *row = rewrite_row_op_of(op->type);
    dh_op cut = *op;
    for (int i = 0; i < DH_MAX_OPERANDS; i++) {
        if (row->in >> i & 1) cut.in[i] = piece(f, op->in[i], k);
        cut.out[i] = piece(f, op->out[i], k);
    }
    rewrite_push(&f->to, &cut);
}

/* Where the k-th chunk of a member's rows lies among all. */
static uint32_t place_of(fuser *f, const dh_op *gather, int32_t member, int64_t k)
{
    const int64_t own = tensor(f, gather->in[0])->shape[0], n = own / f->parts;
    char name[sizeof tensor(f, gather->out[0])->name];
    snprintf(name, sizeof name, "%.15s.%d.%lld", tensor(f, gather->out[0])->name, member,
             (long long)k);
    return rewrite_rows(&f->to, gather->out[0], name, member * own + k * n, n);
}

/* To every other rank, the nearest first, and from it. */
static void push_gathered(fuser *f, const dh_op *gather, int64_t k)
{
    const int32_t n = members(f, gather->group), me = place(f, gather->group);
    const uint32_t own = piece(f, gather->in[0], k);
    if (dh_graph_storage(f->to.graph, gather->in[0]) != gather->out[0])
        rewrite_push_op(&f->to, DH_OP_COPY, gather->phase, -1, REWRITE_IDS(own),
                        REWRITE_IDS(place_of(f, gather, me, k)));
    for (int32_t by = 1; by < n && !f->to.failed; by++)
        rewrite_push_shift(&f->to, gather->phase, gather->group, by, own,
                           place_of(f, gather, (me + n - by) % n, k));
}

/* A chunk goes through all of them before the next one does. */
static void push_run(fuser *f)
{
    for (int64_t k = 0; f->run.n > 0 && k < f->parts; k++)
        for (size_t i = 0; i < f->run.n && !f->to.failed; i++)
            (f->run.at[i].type == DH_OP_ALL_GATHER ? push_gathered : push_piece)(f, &f->run.at[i],
                                                                                 k);
    f->run.n = 0;
}

static void add_to_run(fuser *f, const dh_op *op)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->out[k] != DH_NONE && op->type != DH_OP_ALL_GATHER) f->in_parts[op->out[k]] = true;
    f->to.failed |= !dh_vec_push(&f->run, *op);
    if (f->report) f->report->n_places++;
}

static void leave(fuser *f, const dh_op *scatter, const char *why)
{
    char what[64];
    snprintf(what, sizeof what, "reduce_scatter -> %s", tensor(f, scatter->out[0])->name);
    f->to.failed |= !dh_pass_leave(f->report, what, why);
}

static void rewrite_op(fuser *f, uint32_t id)
{
    dh_op op = f->to.graph->ops.at[id];
    if (is_cut(f, &op) || is_gathered(f, &op)) {
        add_to_run(f, &op);
        return;
    }
    push_run(f);
    if (op.type == DH_OP_REDUCE_SCATTER) {
        const uint32_t end = (uint32_t)f->to.graph->ops.n;
        const char *why =
            why_not(f, &op, rewrite_first_use(&f->uses, op.out[0], id + 1, end, false));
        if (why)
            leave(f, &op, why);
        else
            op.parts = (int32_t)f->parts;
    }
    rewrite_push(&f->to, &op);
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status apply(dh_ctx *ctx, const dh_pass_work *work)
{
    fuser f = {.to = {.graph = work->graph},
               .work = work,
               .parts = work->args[PARTS],
               .report = work->report};
    const uint32_t n = (uint32_t)work->graph->ops.n;
    f.in_parts = calloc(work->graph->tensors.n + 1, sizeof *f.in_parts);
    f.to.failed = !rewrite_uses_init(&f.uses, work->graph) || !f.in_parts;
    for (uint32_t i = 0; i < n && !f.to.failed; i++) rewrite_op(&f, i);
    if (!f.to.failed) push_run(&f);
    rewrite_uses_fini(&f.uses);
    free(f.in_parts);
    dh_vec_fini(&f.run);
    return rewrite_end(ctx, &f.to, DH_OK, "fusing operators with reduce-scatters");
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (!spec->build.model) return NULL; /* a program of its own */
    if (spec->mesh.tp == 1) return "nothing is summed over one rank (parallel.tp=1)";
    if (spec->build.mode == DH_MODE_DECODE) return "decoding has one token, no rows to cut";
    return dh_graph_sequence(spec) == DH_SEQUENCE_WHOLE
               ? "every rank has all tokens (parallel.sequence=false): only pass reorder lets "
                 "operators work on slices of a sum"
               : NULL;
}

const dh_pass dh_pass_row_fuse = {
    .name = "fuse",
    .doc = "operators by rows after a reduce-scatter work on its chunks as they are summed "
           "(CoCoNet, arXiv 2105.05720, 3.3)",
    .place = DH_PASS_AFTER_RECOMPUTE,
    .params = {{.name = "parts",
                .doc = "chunks of a rank's rows",
                .kind = DH_PASS_INT,
                .fallback = 2,
                .min = 2,
                .max = 16},
               {.name = "gather",
                .doc = "chunks leave for the other ranks as they are done, where all are gathered",
                .kind = DH_PASS_FLAG}},
    .varies_by = 1u << DH_MESH_TP,
    .applicable = applicable,
    .apply = apply};
