/* Fuse: a reduce-scatter and the operators by rows behind it, as one pipeline over chunks of rows.
 *
 * CoCoNet's third rewrite. Behind split and reorder, or with sequence parallelism, a rank's rows of
 * a sum go through operators that compute a row from a row (residual connection, dropout, norm,
 * their input gradients) before they are gathered. These need not wait for all of the sum:
 *
 *     s = reduce_scatter(p)              s = reduce_scatter(p), complete in parts
 *     y = residual(x, s)          =>     y.0 = residual(x.0, s.0);  n.0 = norm(y.0)
 *     n = norm(y)                        y.1 = residual(x.1, s.1);  n.1 = norm(y.1)
 *
 * A chunk passes through all of them while the next one is being summed, so that of their time only
 * that of the last chunk is left; what is between them stays in the cache. The reduce-scatter
 * remains one call. Operators in between that do not work by rows end the pipeline, and those
 * behind begin a new one. The all-gather behind it waits for the last chunk: its own input is not
 * taken in parts.
 *
 * Numbers: every row is computed as before, so the bits are the same.
 *
 * Source: Jangda et al., ASPLOS 2022 (arXiv 2105.05720), 3.3 (fuse) and 3.4 (overlap). */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

enum { PARTS }; /* argument */

typedef struct fuser {
    rewrite to;
    rewrite_uses uses; /* of the graph before */
    int64_t parts;
    bool *in_parts;    /* by tensor: it is complete chunk by chunk */
    DH_VEC(dh_op) run; /* operators by rows, one behind the other, to be cut */
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
        if (!(row->out >> k & 1) || !is_plain(f, op->out[k]) ||
            tensor(f, op->out[k])->shape[0] != rows)
            return false;
    }
    return true;
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

/* A chunk goes through all of them before the next one does. */
static void push_run(fuser *f)
{
    for (int64_t k = 0; f->run.n > 0 && k < f->parts; k++)
        for (size_t i = 0; i < f->run.n && !f->to.failed; i++) push_piece(f, &f->run.at[i], k);
    f->run.n = 0;
}

static void add_to_run(fuser *f, const dh_op *op)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->out[k] != DH_NONE) f->in_parts[op->out[k]] = true;
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
    if (is_cut(f, &op)) {
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
    fuser f = {.to = {.graph = work->graph}, .parts = work->args[PARTS], .report = work->report};
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
    if (spec->build.mode == DH_MODE_DECODE) return "a token is no rows to cut";
    return dh_graph_whole_tokens(spec)
               ? "every rank has all tokens (parallel.sequence=false): what works on slices of a "
                 "sum is behind pass reorder"
               : NULL;
}

const dh_pass dh_pass_row_fuse = {
    .name = "fuse",
    .doc = "operators by rows behind a reduce-scatter work on its chunks as they are summed "
           "(CoCoNet, arXiv 2105.05720, 3.3)",
    .place = DH_PASS_AFTER_RECOMPUTE,
    .params = {{.name = "parts",
                .doc = "chunks of a rank's rows",
                .kind = DH_PASS_INT,
                .fallback = 2,
                .min = 2,
                .max = 16}},
    .applicable = applicable,
    .apply = apply};
