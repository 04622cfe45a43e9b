/* Activation recomputation on a differentiated graph (Chen et al. 2016; Korthikanti et
 * al. 2022, section 5): what the backward reads and may not be kept is computed again.
 *
 * A forward operator whose output must not be kept is cloned in front of the first backward
 * operator that wants it. Its own inputs are cloned first if they are not kept either. The clone
 * sees the same inputs and the same random bits. So losses and gradients do not change by a bit.
 * The forward's own copy dies in the forward.
 *
 *   selective  Outputs that cost little to make again and much to keep: norms, activations,
 *              rotations, gathered copies. The blockwise attention keeps no scores to begin with.
 *   full       Everything except the block's input.
 *   attention  The scores of attention, which the blockwise kernel never keeps: nothing here.
 *   forward    The whole forward at the start of the backward, also results without a reader.
 *              Systems that checkpoint a function and not a graph do so. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "graph/pass.h"
#include "rewrite.h"

/* Of a tensor that is made in parts all that follows is said of the whole. */
typedef struct pass {
    rewrite to;
    dh_recompute_kind kind;
    rewrite_uses uses;   /* uses in the graph before */
    uint32_t *again;     /* by tensor: its recomputed copy, or the part of it; DH_NONE */
    unsigned char *by_b; /* by tensor: an input-gradient operator needs it, now or through others */
    size_t n_tensors;
} pass;

static bool is_cheap(dh_op_type type)
{
    return type == DH_OP_NORM || type == DH_OP_ACT || type == DH_OP_ROPE ||
           type == DH_OP_HEAD_NORM || type == DH_OP_QK_NORM || type == DH_OP_ALL_GATHER ||
           type == DH_OP_MOE_PERMUTE || type == DH_OP_FEATURE_MAP || type == DH_OP_HEAD_RMS ||
           type == DH_OP_LATENT_PACK;
}

/* The first forward operator from `begin` on that makes (a part of) what a tensor is of. */
static uint32_t maker_from(const pass *p, uint32_t tensor, uint32_t begin)
{
    const dh_graph *g = p->to.graph;
    const uint32_t n = (uint32_t)g->ops.n, whole = dh_graph_storage(g, tensor);
    uint32_t i = rewrite_first_use(&p->uses, whole, begin, n, true);
    while (i != DH_NONE && g->ops.at[i].phase != DH_PHASE_F)
        i = rewrite_first_use(&p->uses, whole, i + 1, n, true);
    return i;
}

/* Tensors the forward made that the backward may not find kept. */
static bool is_remade(const pass *p, uint32_t tensor)
{
    const dh_graph *g = p->to.graph;
    if (tensor == DH_NONE || tensor >= p->n_tensors || g->tensors.at[tensor].kind != DH_TENSOR_ACT)
        return false;
    const uint32_t maker = maker_from(p, tensor, 0);
    if (maker == DH_NONE) return false;
    const dh_op *op = &g->ops.at[maker];
    if (p->kind != DH_RECOMPUTE_KIND_SELECTIVE) return true;
    return is_cheap(op->type) && dh_graph_storage(g, tensor) == dh_graph_storage(g, op->out[0]);
}

/* A copy wanted by input gradients must be there before weight gradients run, which a
 * schedule may put much later. */
static void mark_for_b(pass *p, uint32_t tensor)
{
    if (!is_remade(p, tensor)) return;
    const uint32_t whole = dh_graph_storage(p->to.graph, tensor);
    if (p->by_b[whole]) return;
    p->by_b[whole] = 1;
    for (uint32_t i = 0; (i = maker_from(p, whole, i)) != DH_NONE; i++)
        for (int k = 0; k < DH_MAX_OPERANDS; k++) mark_for_b(p, p->to.graph->ops.at[i].in[k]);
}

/* The recomputed copy of a tensor; of a part the part of it. */
static uint32_t copy_of(pass *p, uint32_t tensor)
{
    if (p->again[tensor] != DH_NONE || p->to.failed) return p->again[tensor];
    dh_tensor t = *rewrite_tensor(&p->to, tensor);
    rewrite_name(&t, "%.20s.re", t.name);
    if (t.base != DH_NONE) t.base = copy_of(p, t.base);
    return p->again[tensor] = rewrite_add(&p->to, &t);
}

/* A second output that is kept anyway (a norm's statistics) stays kept. */
static uint32_t unused_copy(pass *p, uint32_t tensor)
{
    dh_tensor t = rewrite_like(&p->to, tensor);
    rewrite_name(&t, "%.20s.re", t.name);
    return rewrite_add(&p->to, &t);
}

static void remake(pass *p, uint32_t tensor);

static void clone(pass *p, uint32_t id, bool by_b)
{
    dh_op op = p->to.graph->ops.at[id];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        remake(p, op.in[k]);
        if (is_remade(p, op.in[k])) op.in[k] = copy_of(p, op.in[k]);
    }
    op.phase = by_b ? DH_PHASE_B : DH_PHASE_W;
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op.out[k] != DH_NONE)
            op.out[k] = is_remade(p, op.out[k]) ? copy_of(p, op.out[k]) : unused_copy(p, op.out[k]);
    rewrite_push(&p->to, &op);
}

static void remake(pass *p, uint32_t tensor)
{
    if (!is_remade(p, tensor) || p->to.failed) return;
    const uint32_t whole = dh_graph_storage(p->to.graph, tensor);
    if (p->again[whole] != DH_NONE) return;
    for (uint32_t i = 0; (i = maker_from(p, whole, i)) != DH_NONE; i++) clone(p, i, p->by_b[whole]);
}

/* A clone writes copies of all outputs of the operator. If it makes parts of a tensor, all other
 * makers of that tensor must be clones too. */
static dh_status check_clone(dh_ctx *ctx, const pass *p, uint32_t id)
{
    const dh_op *op = &p->to.graph->ops.at[id];
    bool again = false, alone = true;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op->out[k] == DH_NONE) continue;
        again |= is_remade(p, op->out[k]);
        alone &= rewrite_tensor(&p->to, op->out[k])->kind == DH_TENSOR_ACT;
        uint32_t a = 0, b = 0; /* makers of the first output, of this one */
        while (alone && a != DH_NONE && a == b) {
            a = maker_from(p, op->out[0], a);
            b = maker_from(p, op->out[k], b);
            alone = a == b;
            if (a != DH_NONE) a++, b++;
        }
    }
    if (!again || alone) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "recomputation cannot run operator %s a second time: it writes more than "
                   "activations of its own",
                   dh_op_info_of(op->type)->name);
}

/* In the order in which the forward made it. */
static void remake_all(pass *p)
{
    memset(p->by_b, 1, p->n_tensors);
    for (size_t i = 0; i < p->to.graph->ops.n; i++)
        if (p->to.graph->ops.at[i].phase == DH_PHASE_F) remake(p, p->to.graph->ops.at[i].out[0]);
}

static dh_status rewrite_ops(dh_ctx *ctx, pass *p)
{
    bool in_backward = false;
    for (size_t i = 0; i < p->to.graph->ops.n; i++) {
        const dh_op *op = &p->to.graph->ops.at[i];
        if (op->phase == DH_PHASE_F) DH_TRY(check_clone(ctx, p, (uint32_t)i));
        for (int k = 0; op->phase == DH_PHASE_B && k < DH_MAX_OPERANDS; k++)
            mark_for_b(p, op->in[k]);
    }
    for (size_t i = 0; i < p->to.graph->ops.n && !p->to.failed; i++) {
        dh_op op = p->to.graph->ops.at[i];
        if (op.phase != DH_PHASE_F && !in_backward && p->kind == DH_RECOMPUTE_KIND_FORWARD)
            remake_all(p);
        in_backward |= op.phase != DH_PHASE_F;
        for (int k = 0; op.phase != DH_PHASE_F && k < DH_MAX_OPERANDS; k++) {
            remake(p, op.in[k]);
            if (is_remade(p, op.in[k])) op.in[k] = copy_of(p, op.in[k]);
        }
        rewrite_push(&p->to, &op);
    }
    return DH_OK;
}

bool dh_pass_recomputes(dh_block_kind kind)
{
    return kind == DH_BLOCK_LAYER;
}

dh_status dh_pass_recompute(dh_ctx *ctx, dh_graph *graph, dh_recompute_kind kind)
{
    if (kind == DH_RECOMPUTE_KIND_NONE || kind == DH_RECOMPUTE_KIND_ATTENTION) return DH_OK;
    if (!dh_pass_recomputes(graph->kind)) return DH_OK;
    if (graph->dx_out == DH_NONE)
        return dh_fail(ctx, DH_EINVAL, "recomputation rewrites a graph that has its backward");
    const size_t n = graph->tensors.n;
    pass p = {.to = {.graph = graph}, .kind = kind, .n_tensors = n};
    p.again = malloc((n + 1) * sizeof *p.again);
    p.by_b = calloc(n + 1, 1);
    p.to.failed = !rewrite_uses_init(&p.uses, graph) || !p.again || !p.by_b;
    dh_status st = DH_OK;
    if (!p.to.failed) {
        memset(p.again, 0xff, (n + 1) * sizeof *p.again);
        st = rewrite_ops(ctx, &p);
    }
    rewrite_uses_fini(&p.uses);
    free(p.again);
    free(p.by_b);
    return rewrite_end(ctx, &p.to, st, "planning recomputation");
}

/* ---- row ------------------------------------------------------------------------------------ */

static const char *applicable(const dh_graph_spec *spec, const int64_t *args)
{
    (void)args;
    if (spec->build.mode != DH_MODE_TRAIN) return "only training has a backward";
    if (spec->recompute == DH_RECOMPUTE_KIND_ATTENTION)
        return "attention keeps no scores (train.recompute=attention)";
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
