/* Domino: a micro-batch in parts that know nothing of each other, so that the collectives of one
 * are under way while another computes.
 *
 * The samples of a micro-batch go through the layers in parts: every operator is cut by rows,
 * attention by samples. What only a layer sees is made once a part; of what blocks hand to each
 * other, and of the inputs, a part is a view. Tensor parallelism then puts a collective behind
 * every part, and differentiation gives every part a backward of its own; of a weight the
 * gradients of the parts are added. As much is sent as before, in more and shorter calls.
 *
 * Here a part goes on to where its result is summed over ranks, then the next does: what
 * overlaps follows from the operands, and in which order parts take turns, over layers too and
 * beside weight gradients, is for the strategy's order policy.
 *
 * The head stays in its chunks of rows, which has nothing to do with parts: its norm is cut, for
 * what enters it and the gradient that leaves it travel in parts as well.
 *
 * Numbers: a row's sums are those of the whole if a GEMM's do not depend on its number of rows.
 * A weight's gradient is a sum of float32 sums, one a part.
 *
 * Source: Wang et al. 2024 (arXiv 2409.15241), sections 3 and 4. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

enum { PARTS }; /* parameters */
enum { MAX_PARTS = 8 };

typedef struct pass {
    rewrite to;
    int n_parts;
    uint32_t (*parts)[MAX_PARTS]; /* by tensor of the graph before; DH_NONE until wanted */
    dh_pass_report *report;
} pass;

static dh_tensor *tensor(const pass *p, uint32_t id)
{
    return rewrite_tensor(&p->to, id);
}

/* ---- parts of tensors ---------------------------------------------------------------------- */

/* Other blocks know it, or views of it do. */
static bool is_shared(const pass *p, uint32_t id)
{
    const dh_graph *g = p->to.graph;
    if (tensor(p, id)->kind == DH_TENSOR_INPUT || id == g->x_in || id == g->x_out) return true;
    for (size_t i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].base == id) return true;
    return false;
}

static void cut_shared(pass *p, uint32_t id)
{
    const int64_t n = tensor(p, id)->shape[0] / p->n_parts;
    for (int k = 0; k < p->n_parts && !p->to.failed; k++) {
        char name[sizeof tensor(p, id)->name];
        snprintf(name, sizeof name, "%.20s.%d", tensor(p, id)->name, k);
        p->parts[id][k] = rewrite_rows(&p->to, id, name, k * n, n);
    }
}

/* The first part takes the place of the whole. */
static void cut_own(pass *p, uint32_t id)
{
    const dh_tensor whole = *tensor(p, id);
    for (int k = 0; k < p->n_parts && !p->to.failed; k++) {
        dh_tensor t = whole;
        t.shape[0] /= p->n_parts;
        rewrite_name(&t, "%.20s.%d", t.name, k);
        p->parts[id][k] = k > 0 ? rewrite_add(&p->to, &t) : id;
        if (k == 0) *tensor(p, id) = t;
    }
}

/* Rows are cut; parameters have none of a sample. */
static uint32_t part_of(pass *p, uint32_t id, int part)
{
    if (id == DH_NONE || p->to.failed) return id;
    const dh_tensor_kind kind = tensor(p, id)->kind;
    if (kind != DH_TENSOR_ACT && kind != DH_TENSOR_INPUT) return id;
    if (p->parts[id][0] == DH_NONE) (is_shared(p, id) ? cut_shared : cut_own)(p, id);
    return p->parts[id][part];
}

/* ---- operators ----------------------------------------------------------------------------- */

/* By type: what is cut by samples, what of the head stays as it is. */
typedef enum rule { UNKNOWN, CUT, STAYS } rule;
static const rule rules[DH_N_OP_TYPE] = {
    [DH_OP_EMBED] = CUT,       [DH_OP_NORM] = CUT,           [DH_OP_LINEAR] = CUT,
    [DH_OP_ROPE] = CUT,        [DH_OP_ATTN] = CUT,           [DH_OP_RESIDUAL] = CUT,
    [DH_OP_ACT] = CUT,         [DH_OP_LOSS_STATS] = STAYS,   [DH_OP_LOSS] = STAYS,
    [DH_OP_LOSS_GRAD] = STAYS, [DH_OP_LINEAR_DGRAD] = STAYS, [DH_OP_LINEAR_WGRAD] = STAYS,
};

static rule rule_of(const pass *p, const dh_op *op)
{
    const bool is_chunk = op->in[0] != DH_NONE && tensor(p, op->in[0])->base != DH_NONE;
    return rules[op->type] == CUT && is_chunk ? STAYS : rules[op->type];
}

/* Its result will be summed over the ranks that have parts of the heads or FFN columns. */
static bool is_summed(const pass *p, const dh_op *op)
{
    if (op->type != DH_OP_LINEAR) return false;
    const dh_axis axis = tensor(p, op->in[1])->axis[1];
    return axis == DH_AXIS_HEADS || axis == DH_AXIS_FFN;
}

/* Operators [begin, end), part after part. */
static void push_run(pass *p, size_t begin, size_t end)
{
    for (int part = 0; part < p->n_parts; part++)
        for (size_t i = begin; i < end && !p->to.failed; i++) {
            dh_op op = p->to.graph->ops.at[i];
            for (int k = 0; k < DH_MAX_OPERANDS; k++) {
                op.in[k] = part_of(p, op.in[k], part);
                op.out[k] = part_of(p, op.out[k], part);
            }
            rewrite_push(&p->to, &op);
        }
    if (p->report) p->report->n_places += end - begin;
}

static dh_status rewrite_all(dh_ctx *ctx, pass *p)
{
    const dh_graph *g = p->to.graph;
    size_t begin = 0;
    for (size_t i = 0; i < g->ops.n && !p->to.failed; i++) {
        const dh_op op = g->ops.at[i];
        const rule how = rule_of(p, &op);
        if (how == UNKNOWN) return rewrite_refuse(ctx, "domino", &op);
        if (how == CUT && !is_summed(p, &op)) continue;
        push_run(p, begin, how == CUT ? i + 1 : i);
        if (how == STAYS) rewrite_push(&p->to, &op);
        begin = i + 1;
    }
    push_run(p, begin, g->ops.n);
    return DH_OK;
}

/* ---- row ----------------------------------------------------------------------------------- */

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    const dh_build *b = &spec->build;
    if (spec->mesh.tp == 1) return "there is no collective to hide (parallel.tp=1)";
    if (b->mode == DH_MODE_DECODE) return "decoding has one sequence";
    if (b->model->n_experts > 0)
        return "experts choose among all rows of a micro-batch (model.n_experts)";
    if (b->batch % args[PARTS] != 0)
        return "sequences of a micro-batch do not divide into the parts (train.micro_batch)";
    if (!spec->whole_tokens && b->batch / args[PARTS] * b->seq % spec->mesh.tp != 0)
        return "tokens of a part do not divide by parallel.tp";
    return NULL;
}

/* Micro-batches come in, and experts are looked up: neither computes. */
static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    if (w->graph->kind == DH_BLOCK_DATA || w->graph->kind == DH_BLOCK_EXPERTS) return DH_OK;
    const size_t n = w->graph->tensors.n;
    pass p = {.to = {.graph = w->graph}, .n_parts = (int)w->args[PARTS], .report = w->report};
    p.parts = malloc((n + 1) * sizeof *p.parts);
    p.to.failed = !p.parts;
    if (p.parts) memset(p.parts, 0xff, (n + 1) * sizeof *p.parts);
    const dh_status st = rewrite_all(ctx, &p);
    free(p.parts);
    return rewrite_end(ctx, &p.to, st, "cutting a micro-batch in parts");
}

const dh_pass dh_pass_row_domino = {
    .name = "domino",
    .doc = "the samples of a micro-batch in parts: the collectives of one are under way while "
           "another computes (Domino, arXiv 2409.15241)",
    .place = DH_PASS_BEFORE_MESH,
    .params = {[PARTS] = {.name = "parts",
                          .doc = "parts of a micro-batch",
                          .kind = DH_PASS_INT,
                          .fallback = 2,
                          .min = 2,
                          .max = MAX_PARTS}},
    .applicable = applicable,
    .apply = apply};
