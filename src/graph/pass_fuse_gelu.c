/* Fuse-gelu: products make GELU, and its gradient, of what they compute.
 *
 *     h = linear(x, w, b)
 *     g = activation(h)                 =>   g, h = linear_gelu(x, w, b)
 *
 *     dg = linear_dgrad(dy, w)
 *     dh = activation_grad(dg, h)       =>   dh = linear_dgrad_gelu(dy, w, h)
 *
 * Each pair is one operator, which a device may launch as one kernel (epilogues of cuBLASLt).
 * Schedules, memory plan, profiles and simulation see it as one. Nothing comes between the two, so
 * fusion does not depend on the order of a step. h is made if the backward, or anything else, reads
 * it. dg never exists.
 *
 * It works on the result of all other passes. Numbers on such a device: GELU is of h as it was
 * summed, before it is rounded. Recomputation must give the same bits, so the linears of a weight
 * are rewritten all or none. Selective recomputation, which makes g alone again from a kept h,
 * leaves them alone. On a device that runs the two one after another (the cpu) all bits are the
 * same.
 *
 * GELU is the one by tanh, the only one that models have (DH_ACT_GELU_TANH). */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

typedef struct fuser {
    rewrite to;
    rewrite_uses uses; /* uses in the graph before */
    uint32_t *partner; /* by operator: the one that it becomes one with; DH_NONE */
    dh_pass_report *report;
} fuser;

static const dh_op *op_at(const fuser *f, uint32_t id)
{
    return &f->to.graph->ops.at[id];
}

static uint32_t n_ops(const fuser *f)
{
    return (uint32_t)f->to.graph->ops.n;
}

static void leave(fuser *f, const dh_op *op, uint32_t made, const char *why)
{
    char what[64];
    snprintf(what, sizeof what, "%s -> %s", dh_op_info_of(op->type)->name,
             rewrite_tensor(&f->to, made)->name);
    f->to.failed |= !dh_pass_leave(f->report, what, why);
}

/* ---- what can be one ------------------------------------------------------------------------ */

/* The next operator from `begin` on that reads a tensor's storage. */
static uint32_t reader(const fuser *f, uint32_t tensor, uint32_t begin)
{
    return rewrite_first_use(&f->uses, dh_graph_storage(f->to.graph, tensor), begin, n_ops(f),
                             false);
}

/* NULL: the product may have an epilogue that makes `made`. */
static const char *why_no_product(const fuser *f, const dh_op *product, uint32_t made)
{
    dh_fp8_format formats[2];
    const dh_dtype dtype = rewrite_tensor(&f->to, made)->dtype;
    if (product->parts > 1 || product->tile_of > 0) return "its rows are complete in parts";
    if (dh_op_fp8(f->to.graph, product, formats)) return "it is a product in fp8";
    for (int k = 0; k < 2; k++)
        if (rewrite_tensor(&f->to, product->in[k])->dtype != dtype)
            return "its operands are of two types";
    return NULL;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* The only activation of a linear's output; DH_NONE: none, or there are several. */
static uint32_t activation_of(const fuser *f, const dh_op *linear, uint32_t *n)
{
    uint32_t found = DH_NONE;
    *n = 0;
    for (uint32_t i = 0; (i = reader(f, linear->out[0], i)) != DH_NONE; i++) {
        if (op_at(f, i)->type != DH_OP_ACT) continue;
        found = i;
        ++*n;
    }
    return *n == 1 ? found : DH_NONE;
}

/* Weight gradients may come much later than input gradients. Operators for them alone then move to
 * them, in place of the operator that made their input. The forward ends before either. */
static bool phases_agree(const dh_op *linear, const dh_op *act)
{
    return linear->phase == act->phase || (linear->phase == DH_PHASE_B && act->phase == DH_PHASE_W);
}

static const char *why_no_linear(const fuser *f, uint32_t id, uint32_t *act)
{
    const dh_op *linear = op_at(f, id);
    uint32_t n;
    *act = activation_of(f, linear, &n);
    const char *why = why_no_product(f, linear, linear->out[0]);
    if (why) return why;
    if (n > 1) return "its activation is computed again, of the same values";
    if (!rewrite_is_plain(&f->to, &f->uses, linear->out[0]) ||
        !rewrite_is_plain(&f->to, &f->uses, op_at(f, *act)->out[0]))
        return "its rows are used in parts";
    return phases_agree(linear, op_at(f, *act)) ? NULL : "its activation belongs to another phase";
}

static bool is_activated(const fuser *f, const dh_op *op)
{
    uint32_t n = 0;
    if (op->type == DH_OP_LINEAR) activation_of(f, op, &n);
    return n > 0;
}

/* Whether all linears of the weight can be rewritten. */
static bool all_can(const fuser *f, uint32_t weight)
{
    bool can = true;
    for (uint32_t i = 0, act; i < n_ops(f) && can; i++)
        if (is_activated(f, op_at(f, i)) && op_at(f, i)->in[1] == weight)
            can = why_no_linear(f, i, &act) == NULL;
    return can;
}

static void match_linear(fuser *f, uint32_t id)
{
    const dh_op *linear = op_at(f, id);
    uint32_t act;
    if (!is_activated(f, linear)) return;
    const char *why = why_no_linear(f, id, &act);
    if (!why && !all_can(f, linear->in[1])) why = "another one of its weight stays";
    if (why) {
        leave(f, linear, linear->out[0], why);
        return;
    }
    f->partner[id] = act;
    f->partner[act] = id;
}

/* Whether anything but the activation reads what the linear makes, or gets it from the block. */
static bool is_read(const fuser *f, uint32_t tensor, uint32_t act)
{
    for (uint32_t i = 0; (i = reader(f, tensor, i)) != DH_NONE; i++)
        if (i != act) return true;
    return tensor == f->to.graph->x_out;
}

/* Whether one of the weight's products is to leave h: then all do, so that a kernel's choice is the
 * same for all. */
static bool keeps_h(const fuser *f, uint32_t weight)
{
    bool keeps = false;
    for (uint32_t i = 0; i < n_ops(f) && !keeps; i++)
        if (is_activated(f, op_at(f, i)) && op_at(f, i)->in[1] == weight)
            keeps = is_read(f, op_at(f, i)->out[0], f->partner[i]);
    return keeps;
}

static void push_linear(fuser *f, uint32_t id)
{
    const dh_op linear = *op_at(f, id);
    const uint32_t g = op_at(f, f->partner[id])->out[0];
    dh_op op = dh_op_make(DH_OP_LINEAR_GELU, linear.phase, linear.in,
                          REWRITE_IDS(g, keeps_h(f, linear.in[1]) ? linear.out[0] : DH_NONE));
    op.group = linear.group;
    rewrite_push(&f->to, &op);
    if (f->report) f->report->n_places++;
}

/* ---- backward ------------------------------------------------------------------------------- */

static const char *why_no_dgrad(const fuser *f, uint32_t dgrad, uint32_t act_grad)
{
    const dh_op *product = op_at(f, dgrad), *grad = op_at(f, act_grad);
    const uint32_t dg = product->out[0];
    const char *why = why_no_product(f, product, dg);
    if (why) return why;
    if (!rewrite_is_plain(&f->to, &f->uses, dg)) return "its rows are used in parts";
    if (is_read(f, dg, act_grad)) return "it is read by others too";
    return product->phase == grad->phase ? NULL : "its activation belongs to another phase";
}

/* The product whose output an activation's gradient begins with. */
static void match_dgrad(fuser *f, uint32_t id)
{
    const dh_op *grad = op_at(f, id);
    const uint32_t dg = grad->in[0],
                   dgrad =
                       rewrite_first_use(&f->uses, dh_graph_storage(f->to.graph, dg), 0, id, true);
    if (dgrad == DH_NONE || op_at(f, dgrad)->type != DH_OP_LINEAR_DGRAD) return;
    const char *why = why_no_dgrad(f, dgrad, id);
    if (why) {
        leave(f, op_at(f, dgrad), op_at(f, dgrad)->out[0], why);
        return;
    }
    f->partner[id] = dgrad;
    f->partner[dgrad] = id;
}

/* In the place of the second, whose other operand may come between them. */
static void push_dgrad(fuser *f, uint32_t id)
{
    const dh_op grad = *op_at(f, id), dgrad = *op_at(f, f->partner[id]);
    rewrite_push_op(&f->to, DH_OP_LINEAR_DGRAD_GELU, grad.phase, -1,
                    REWRITE_IDS(dgrad.in[0], dgrad.in[1], grad.in[1]), REWRITE_IDS(grad.out[0]));
    if (f->report) f->report->n_places++;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static void match_op(fuser *f, uint32_t id)
{
    if (op_at(f, id)->type == DH_OP_LINEAR) match_linear(f, id);
    if (op_at(f, id)->type == DH_OP_ACT_GRAD) match_dgrad(f, id);
}

static void push_op(fuser *f, uint32_t id)
{
    const dh_op op = *op_at(f, id);
    if (f->partner[id] == DH_NONE)
        rewrite_push(&f->to, &op);
    else if (op.type == DH_OP_LINEAR)
        push_linear(f, id);
    else if (op.type == DH_OP_ACT_GRAD)
        push_dgrad(f, id);
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *work)
{
    fuser f = {.to = {.graph = work->graph}, .report = work->report};
    const uint32_t n = (uint32_t)work->graph->ops.n;
    f.partner = malloc((n + 1) * sizeof *f.partner);
    f.to.failed = !rewrite_uses_init(&f.uses, work->graph) || !f.partner;
    for (uint32_t i = 0; i < n && f.partner; i++) f.partner[i] = DH_NONE;
    for (uint32_t i = 0; i < n && !f.to.failed; i++) match_op(&f, i);
    for (uint32_t i = 0; i < n && !f.to.failed; i++) push_op(&f, i);
    rewrite_uses_fini(&f.uses);
    free(f.partner);
    return rewrite_end(ctx, &f.to, DH_OK, "fusing activations with products");
}

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (!spec->fuse_gelu) return "the device gains nothing by it, or train.fuse_gelu is off";
    if (!spec->build.model) return "a program of its own";
    return spec->build.model->act == DH_ACT_GELU_TANH
               ? NULL
               : "the model's activation is not GELU of one product";
}

const dh_pass dh_pass_row_fuse_gelu = {
    .name = "fuse-gelu",
    .doc = "makes GELU, or its gradient, one operator with the GEMM before it",
    .place = DH_PASS_LAST,
    .of_job = true,
    .applicable = applicable,
    .apply = apply};
