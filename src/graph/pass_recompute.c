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
#include "dhelix/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef DH_VEC(dh_op) op_list;

typedef struct rewrite {
    dh_graph *graph;
    dh_recompute_kind kind;
    op_list ops;         /* the new order */
    uint32_t *maker;     /* by tensor: forward operator (index in the old order), DH_NONE */
    uint32_t *again;     /* by tensor: its recomputed copy, DH_NONE */
    unsigned char *by_b; /* by tensor: an input-gradient operator needs it, now or through others */
    size_t n_tensors;
    bool failed;
} rewrite;

static bool is_cheap(dh_op_type type)
{
    return type == DH_OP_NORM || type == DH_OP_ACT || type == DH_OP_ROPE ||
           type == DH_OP_ALL_GATHER || type == DH_OP_MOE_PERMUTE;
}

/* Tensors the forward made that the backward may not find kept. */
static bool is_remade(const rewrite *r, uint32_t tensor)
{
    if (tensor == DH_NONE || tensor >= r->n_tensors || r->maker[tensor] == DH_NONE) return false;
    const dh_op *op = &r->graph->ops.at[r->maker[tensor]];
    if (r->kind == DH_RECOMPUTE_KIND_FULL) return true;
    return is_cheap(op->type) && tensor == op->out[0];
}

static void find_makers(rewrite *r)
{
    for (uint32_t i = 0; i < r->graph->ops.n; i++) {
        const dh_op *op = &r->graph->ops.at[i];
        for (int k = 0; op->phase == DH_PHASE_F && k < DH_MAX_OPERANDS; k++)
            if (op->out[k] != DH_NONE && r->graph->tensors.at[op->out[k]].kind == DH_TENSOR_ACT)
                r->maker[op->out[k]] = i;
    }
}

/* A copy wanted by input gradients must be there before weight gradients run, which a
 * schedule may put much later. */
static void mark_for_b(rewrite *r, uint32_t tensor)
{
    if (!is_remade(r, tensor) || r->by_b[tensor]) return;
    r->by_b[tensor] = 1;
    const dh_op *op = &r->graph->ops.at[r->maker[tensor]];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) mark_for_b(r, op->in[k]);
}

static uint32_t copy_of(rewrite *r, uint32_t tensor)
{
    dh_tensor t = r->graph->tensors.at[tensor];
    char name[sizeof t.name];
    snprintf(name, sizeof name, "%.20s.re", t.name);
    memcpy(t.name, name, sizeof name);
    uint32_t id = dh_graph_add_tensor(r->graph, &t);
    r->failed |= id == DH_NONE;
    return id;
}

static void push(rewrite *r, const dh_op *op)
{
    r->failed |= !dh_vec_push(&r->ops, *op);
}

static void remake(rewrite *r, uint32_t tensor)
{
    if (!is_remade(r, tensor) || r->again[tensor] != DH_NONE || r->failed) return;
    const uint32_t id = r->maker[tensor];
    dh_op op = r->graph->ops.at[id];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        remake(r, op.in[k]);
        if (is_remade(r, op.in[k])) op.in[k] = r->again[op.in[k]];
    }
    op.phase = r->by_b[tensor] ? DH_PHASE_B : DH_PHASE_W;
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op.out[k] == DH_NONE) continue;
        const uint32_t old = op.out[k];
        op.out[k] = copy_of(r, old);
        /* A second output that is kept anyway (a norm's statistics) stays kept. */
        if (is_remade(r, old)) r->again[old] = op.out[k];
    }
    push(r, &op);
}

static void rewrite_ops(rewrite *r)
{
    for (size_t i = 0; i < r->graph->ops.n; i++) {
        const dh_op *op = &r->graph->ops.at[i];
        for (int k = 0; op->phase == DH_PHASE_B && k < DH_MAX_OPERANDS; k++)
            mark_for_b(r, op->in[k]);
    }
    for (size_t i = 0; i < r->graph->ops.n && !r->failed; i++) {
        dh_op op = r->graph->ops.at[i];
        for (int k = 0; op.phase != DH_PHASE_F && k < DH_MAX_OPERANDS; k++) {
            remake(r, op.in[k]);
            if (is_remade(r, op.in[k])) op.in[k] = r->again[op.in[k]];
        }
        push(r, &op);
    }
}

dh_status dh_pass_recompute(dh_ctx *ctx, dh_graph *graph, dh_recompute_kind kind)
{
    if (kind == DH_RECOMPUTE_KIND_NONE || graph->kind != DH_BLOCK_LAYER) return DH_OK;
    if (graph->dx_out == DH_NONE)
        return dh_fail(ctx, DH_EINVAL, "recomputation rewrites a graph that has its backward");
    rewrite r = {.graph = graph, .kind = kind, .n_tensors = graph->tensors.n};
    r.maker = malloc((r.n_tensors + 1) * sizeof *r.maker);
    r.again = malloc((r.n_tensors + 1) * sizeof *r.again);
    r.by_b = calloc(r.n_tensors + 1, 1);
    r.failed = !r.maker || !r.again || !r.by_b;
    if (!r.failed) {
        memset(r.maker, 0xff, (r.n_tensors + 1) * sizeof *r.maker);
        memset(r.again, 0xff, (r.n_tensors + 1) * sizeof *r.again);
        find_makers(&r);
        rewrite_ops(&r);
    }
    if (!r.failed) {
        op_list old = {graph->ops.at, graph->ops.n, graph->ops.cap};
        graph->ops.at = r.ops.at;
        graph->ops.n = r.ops.n;
        graph->ops.cap = r.ops.cap;
        r.ops = old;
    }
    dh_vec_fini(&r.ops);
    free(r.maker);
    free(r.again);
    free(r.by_b);
    return r.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory planning recomputation") : DH_OK;
}
