/* Activation recomputation on a differentiated graph (Chen et al. 2016; Korthikanti et
 * al. 2022, section 5): what the backward reads and may not be kept is computed again.
 *
 * A forward operator whose output must not be kept is cloned in front of the first
 * backward operator that wants it, its own inputs cloned first where they are not kept
 * either. The clone sees the same inputs and the same random bits, so losses and
 * gradients do not change by a bit; the forward's own copy dies in the forward.
 *
 *   selective  outputs that cost little to make again and much to keep: norms,
 *              activations, rotations, gathered copies. The blockwise attention keeps
 *              no scores to begin with.
 *   full       everything but the block's input. */
#include <stdlib.h>
#include <string.h>

#include "dhelix/pass.h"
#include "rewrite.h"

typedef struct pass {
    rewrite to;
    dh_recompute_kind kind;
    uint32_t *maker;     /* by tensor: forward operator (index in the old order), DH_NONE */
    uint32_t *again;     /* by tensor: its recomputed copy, DH_NONE */
    unsigned char *by_b; /* by tensor: an input-gradient operator needs it, now or through others */
    size_t n_tensors;
} pass;

static bool is_cheap(dh_op_type type)
{
    return type == DH_OP_NORM || type == DH_OP_ACT || type == DH_OP_ROPE ||
           type == DH_OP_ALL_GATHER || type == DH_OP_MOE_PERMUTE;
}

/* Tensors the forward made that the backward may not find kept. */
static bool is_remade(const pass *p, uint32_t tensor)
{
    if (tensor == DH_NONE || tensor >= p->n_tensors || p->maker[tensor] == DH_NONE) return false;
    const dh_op *op = &p->to.graph->ops.at[p->maker[tensor]];
    if (p->kind == DH_RECOMPUTE_KIND_FULL) return true;
    return is_cheap(op->type) && tensor == op->out[0];
}

static void find_makers(pass *p)
{
    for (uint32_t i = 0; i < p->to.graph->ops.n; i++) {
        const dh_op *op = &p->to.graph->ops.at[i];
        for (int k = 0; op->phase == DH_PHASE_F && k < DH_MAX_OPERANDS; k++)
            if (op->out[k] != DH_NONE && p->to.graph->tensors.at[op->out[k]].kind == DH_TENSOR_ACT)
                p->maker[op->out[k]] = i;
    }
}

/* A copy wanted by input gradients must be there before weight gradients run, which a
 * schedule may put much later. */
static void mark_for_b(pass *p, uint32_t tensor)
{
    if (!is_remade(p, tensor) || p->by_b[tensor]) return;
    p->by_b[tensor] = 1;
    const dh_op *op = &p->to.graph->ops.at[p->maker[tensor]];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) mark_for_b(p, op->in[k]);
}

static uint32_t copy_of(pass *p, uint32_t tensor)
{
    dh_tensor t = *rewrite_tensor(&p->to, tensor);
    rewrite_name(&t, "%.20s.re", t.name);
    return rewrite_add(&p->to, &t);
}

static void remake(pass *p, uint32_t tensor)
{
    if (!is_remade(p, tensor) || p->again[tensor] != DH_NONE || p->to.failed) return;
    const uint32_t id = p->maker[tensor];
    dh_op op = p->to.graph->ops.at[id];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        remake(p, op.in[k]);
        if (is_remade(p, op.in[k])) op.in[k] = p->again[op.in[k]];
    }
    op.phase = p->by_b[tensor] ? DH_PHASE_B : DH_PHASE_W;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op.out[k] == DH_NONE) continue;
        const uint32_t old = op.out[k];
        op.out[k] = copy_of(p, old);
        /* A second output that is kept anyway (a norm's statistics) stays kept. */
        if (is_remade(p, old)) p->again[old] = op.out[k];
    }
    rewrite_push(&p->to, &op);
}

/* A clone writes copies of all that the operator writes. */
static dh_status check_clone(dh_ctx *ctx, const pass *p, const dh_op *op)
{
    bool again = false, alone = true;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op->out[k] == DH_NONE) continue;
        const dh_tensor *t = rewrite_tensor(&p->to, op->out[k]);
        again |= is_remade(p, op->out[k]);
        alone &= t->kind == DH_TENSOR_ACT && t->base == DH_NONE;
    }
    if (!again || alone) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "recomputation cannot run operator %s a second time: it writes more than "
                   "activations of its own",
                   dh_op_info_of(op->type)->name);
}

static dh_status rewrite_ops(dh_ctx *ctx, pass *p)
{
    for (size_t i = 0; i < p->to.graph->ops.n; i++) {
        const dh_op *op = &p->to.graph->ops.at[i];
        if (op->phase == DH_PHASE_F) DH_TRY(check_clone(ctx, p, op));
        for (int k = 0; op->phase == DH_PHASE_B && k < DH_MAX_OPERANDS; k++)
            mark_for_b(p, op->in[k]);
    }
    for (size_t i = 0; i < p->to.graph->ops.n && !p->to.failed; i++) {
        dh_op op = p->to.graph->ops.at[i];
        for (int k = 0; op.phase != DH_PHASE_F && k < DH_MAX_OPERANDS; k++) {
            remake(p, op.in[k]);
            if (is_remade(p, op.in[k])) op.in[k] = p->again[op.in[k]];
        }
        rewrite_push(&p->to, &op);
    }
    return DH_OK;
}

dh_status dh_pass_recompute(dh_ctx *ctx, dh_graph *graph, dh_recompute_kind kind)
{
    if (kind == DH_RECOMPUTE_KIND_NONE || graph->kind != DH_BLOCK_LAYER) return DH_OK;
    if (graph->dx_out == DH_NONE)
        return dh_fail(ctx, DH_EINVAL, "recomputation rewrites a graph that has its backward");
    const size_t n = graph->tensors.n;
    pass p = {.to = {.graph = graph}, .kind = kind, .n_tensors = n};
    p.maker = malloc((n + 1) * sizeof *p.maker);
    p.again = malloc((n + 1) * sizeof *p.again);
    p.by_b = calloc(n + 1, 1);
    p.to.failed = !p.maker || !p.again || !p.by_b;
    dh_status st = DH_OK;
    if (!p.to.failed) {
        memset(p.maker, 0xff, (n + 1) * sizeof *p.maker);
        memset(p.again, 0xff, (n + 1) * sizeof *p.again);
        find_makers(&p);
        st = rewrite_ops(ctx, &p);
    }
    free(p.maker);
    free(p.again);
    free(p.by_b);
    return rewrite_end(ctx, &p.to, st, "planning recomputation");
}

/* ---- row ------------------------------------------------------------------------------------ */

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (spec->build.mode != DH_MODE_TRAIN) return "only training has a backward";
    return spec->recompute ? NULL : "all is kept (train.recompute=none)";
}

static dh_status apply(dh_ctx *ctx, const dh_pass_work *w)
{
    return dh_pass_recompute(ctx, w->graph, w->spec->recompute);
}

const dh_pass dh_pass_row_recompute = {
    .name = "recompute",
    .doc =
        "the backward computes again what train.recompute does not keep (Chen et al. 2016, arXiv "
        "1604.06174)",
    .place = DH_PASS_ON_RECOMPUTE,
    .of_job = true,
    .applicable = applicable,
    .apply = apply};
