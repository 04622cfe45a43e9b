/* Domino: a micro-batch in independent parts, and the weight before a sum over ranks in parts. The
 * collectives of one part are then under way while another one computes.
 *
 * By rows: the samples of a micro-batch go through the layers in parts. Every operator is cut by
 * rows, attention by samples. Tensors inside a layer are made once a part. For the inputs and for
 * tensors that blocks hand to each other, a part is a view. Tensor parallelism then puts a
 * collective after every part, and differentiation gives every part its backward; the gradients of
 * the parts are added for a weight. As much is sent as before, in more and shorter calls.
 *
 * By columns: the last weight before such a sum is cut into rows [row0, row0 + n) as stored. Each
 * cut gives as many columns of the result, which are summed by themselves while the next are
 * computed. The operators after it, residual and norm, want whole rows. So the columns are put
 * together (a copy) where the result is first read. In the backward its gradient is split, and the
 * columns' gradients of their common input are added. Both ways at once, the columns of one part
 * come after those of another: they are put together after the other part has computed.
 *
 * Here a part goes on to where its result is summed over ranks, then the next does. The operands
 * decide the overlap. The order in which parts take turns, over layers too and beside weight
 * gradients, is for the strategy's order policy.
 *
 * The head stays in its chunks of rows, which are independent of parts. Its norm is cut, since its
 * input and the gradient that leaves it travel in parts as well.
 *
 * Numbers: a row's sums are those of the whole if a GEMM's do not depend on its number of rows.
 * A weight's gradient is a sum of float32 sums, one a part of the rows. The gradient of what
 * columns are computed from is a sum of as many sums, each rounded to the graph's type.
 *
 * Source: Wang et al. 2024 (arXiv 2409.15241), sections 3 and 4. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

enum { PARTS, COLUMNS }; /* parameters */
enum { MAX_PARTS = 8, MAX_COLUMNS = 4 };

typedef struct pass {
    rewrite to;
    int n_parts, n_columns;
    /* By tensor of the graph before, DH_NONE until wanted: parts of rows; of a weight, of
     * columns. */
    uint32_t (*parts)[MAX_PARTS];
    dh_op joins[MAX_PARTS]; /* by part: puts the columns of its last sum together */
    int n_joins;            /* not in the new order yet: those of all parts, or 0 */
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

static void cut_shared(pass *p, uint32_t id, int n_parts)
{
    const int64_t n = tensor(p, id)->shape[0] / n_parts;
    for (int k = 0; k < n_parts && !p->to.failed; k++) {
        char name[sizeof tensor(p, id)->name];
        snprintf(name, sizeof name, "%.20s.%d", tensor(p, id)->name, k);
        p->parts[id][k] = rewrite_rows(&p->to, id, name, k * n, n);
    }
}

/* The first part takes the place of the whole. */
static void cut_own(pass *p, uint32_t id, int n_parts)
{
    const dh_tensor whole = *tensor(p, id);
    for (int k = 0; k < n_parts && !p->to.failed; k++) {
        dh_tensor t = whole;
        t.shape[0] /= n_parts;
        rewrite_name(&t, "%.20s.%d", t.name, k);
        p->parts[id][k] = k > 0 ? rewrite_add(&p->to, &t) : id;
        if (k == 0) *tensor(p, id) = t;
    }
}

/* Rows are cut; parameters have none of a sample. */
static uint32_t part_of(pass *p, uint32_t id, int part)
{
    if (id == DH_NONE || p->to.failed || p->n_parts == 1) return id;
    const dh_tensor_kind kind = tensor(p, id)->kind;
    if (kind != DH_TENSOR_ACT && kind != DH_TENSOR_INPUT) return id;
    if (p->parts[id][0] == DH_NONE) (is_shared(p, id) ? cut_shared : cut_own)(p, id, p->n_parts);
    return p->parts[id][part];
}

/* A weight has a row for each column that it gives, a bias an element. */
static uint32_t columns_of(pass *p, uint32_t param, int which)
{
    if (param == DH_NONE || p->to.failed) return param;
    if (p->parts[param][0] == DH_NONE) cut_shared(p, param, p->n_columns);
    return p->parts[param][which];
}

/* ---- operators ----------------------------------------------------------------------------- */

/* By type: what is cut by samples, what of the head stays as it is. */
typedef enum rule { UNKNOWN, CUT, STAYS } rule;
static const rule rules[DH_N_OP_TYPE] = {
    [DH_OP_EMBED] = CUT,       [DH_OP_NORM] = CUT,           [DH_OP_SCALE] = CUT,
    [DH_OP_SOFTCAP] = STAYS,   [DH_OP_SOFTCAP_GRAD] = STAYS, [DH_OP_LINEAR] = CUT,
    [DH_OP_ROPE] = CUT,        [DH_OP_ATTN] = CUT,           [DH_OP_RESIDUAL] = CUT,
    [DH_OP_ACT] = CUT,         [DH_OP_LOSS_STATS] = STAYS,   [DH_OP_LOSS] = STAYS,
    [DH_OP_HEAD_NORM] = CUT,   [DH_OP_QK_SQUARES] = CUT,     [DH_OP_QK_NORM] = CUT,
    [DH_OP_FEATURE_MAP] = CUT, [DH_OP_LINEAR_ATTN] = CUT,    [DH_OP_HEAD_RMS] = CUT,
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

/* A linear of a part, some columns after others. */
static void push_columns(pass *p, const dh_op *op, int part)
{
    dh_op join = dh_op_make(DH_OP_JOIN_COLUMNS, op->phase,
                            REWRITE_IDS(DH_NONE, DH_NONE, DH_NONE, DH_NONE), op->out);
    for (int k = 0; k < p->n_columns && !p->to.failed; k++) {
        dh_op some = *op;
        dh_tensor t = rewrite_like(&p->to, op->out[0]);
        t.shape[1] /= p->n_columns;
        rewrite_name(&t, "%.18s.c%d", t.name, k);
        some.in[1] = columns_of(p, op->in[1], k);
        some.in[2] = columns_of(p, op->in[2], k);
        some.out[0] = join.in[k] = rewrite_add(&p->to, &t);
        rewrite_push(&p->to, &some);
    }
    p->joins[part] = join;
}

static void push_op(pass *p, const dh_op *whole, int part)
{
    dh_op op = *whole;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        op.in[k] = part_of(p, op.in[k], part);
        op.out[k] = part_of(p, op.out[k], part);
    }
    if (p->n_columns > 1 && is_summed(p, &op))
        push_columns(p, &op, part);
    else
        rewrite_push(&p->to, &op);
}

/* Operators [begin, end), part after part; of which only the last is summed, if any. */
static void push_run(pass *p, size_t begin, size_t end)
{
    const dh_op *ops = p->to.graph->ops.at;
    const bool in_columns = p->n_columns > 1 && end > begin && is_summed(p, &ops[end - 1]);
    for (int part = 0; part < p->n_parts; part++) {
        if (p->n_joins > 0) rewrite_push(&p->to, &p->joins[part]);
        for (size_t i = begin; i < end && !p->to.failed; i++) push_op(p, &ops[i], part);
    }
    p->n_joins = in_columns ? p->n_parts : 0;
    if (p->report) p->report->n_places += p->n_parts > 1 ? end - begin : in_columns;
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

/* An argument that costs have not chosen yet means one part. */
static int64_t parts_of(int64_t arg)
{
    return DH_MAX(arg, 1);
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    const dh_build *b = &spec->build;
    if (spec->mesh.tp == 1) return "there is no collective to hide (parallel.tp=1)";
    if (b->mode == DH_MODE_DECODE) return "decoding has one sequence";
    if (b->model->n_experts > 0)
        return "layers of experts stay whole: these choose among all rows (model.n_experts)";
    if (b->model->lora.rank > 0)
        return "what adapters give is added before the sum over ranks that would be cut "
               "(lora.rank)";
    if (b->model->norm_place == DH_NORMS_AFTER)
        return "linears read the residual stream itself, which is gathered whole (norms after a "
               "layer's parts)";
    if (args[PARTS] == 1 && args[COLUMNS] == 1)
        return "one part of rows and of columns: nothing is cut";
    if (b->batch % parts_of(args[PARTS]) != 0)
        return "sequences of a micro-batch do not divide into the parts (train.micro_batch)";
    if (b->model->width % parts_of(args[COLUMNS]) != 0)
        return "columns of a layer's result do not divide into so many parts (model.width)";
    if (spec->sharing.sequence == DH_SEQUENCE_SPLIT &&
        b->batch / parts_of(args[PARTS]) * b->seq % spec->mesh.tp != 0)
        return "tokens of a part do not divide by parallel.tp";
    return NULL;
}

/* Micro-batches come in, experts and adapters are looked up: none computes. */
static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    const dh_block_kind kind = w->graph->kind;
    if (kind == DH_BLOCK_DATA || kind == DH_BLOCK_EXPERTS || kind == DH_BLOCK_ADAPTERS)
        return DH_OK;
    const size_t n = w->graph->tensors.n;
    pass p = {.to = {.graph = w->graph},
              .n_parts = (int)parts_of(w->args[PARTS]),
              .n_columns = (int)parts_of(w->args[COLUMNS]),
              .report = w->report};
    p.parts = malloc((n + 1) * sizeof *p.parts);
    p.to.failed = !p.parts;
    if (p.parts) memset(p.parts, 0xff, (n + 1) * sizeof *p.parts);
    const dh_status st = rewrite_all(ctx, &p);
    free(p.parts);
    return rewrite_end(ctx, &p.to, st, "cutting a micro-batch in parts");
}

/* TUNING: what parts are chosen among, whole first; each choice takes the time to be measured. More
 * than four calls in place of one take longer to begin than they hide. */
static const int64_t some_parts[] = {1, 2, 4, 0};

const dh_pass dh_pass_row_domino = {
    .name = "domino",
    .doc = "cuts the samples of a micro-batch, the columns of a weight before a sum over ranks, "
           "or both: the collectives of one part run while another computes (Domino, arXiv "
           "2409.15241)",
    .place = DH_PASS_BEFORE_MESH,
    .params = {[PARTS] = {.name = "parts",
                          .doc = "parts of a micro-batch",
                          .kind = DH_PASS_INT,
                          .fallback = 2,
                          .min = 1,
                          .max = MAX_PARTS,
                          .choices = some_parts},
               [COLUMNS] = {.name = "columns",
                            .doc =
                                "parts of the columns of the last weight before a sum over ranks",
                            .kind = DH_PASS_INT,
                            .fallback = 1,
                            .min = 1,
                            .max = MAX_COLUMNS,
                            .choices = some_parts}},
    .applicable = applicable,
    .apply = apply};
