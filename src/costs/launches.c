/* How many kernels PyTorch launches for an operator.
 *
 * Counted in the source of Megatron-LM and Megatron-DeepSpeed (megatron/model/transformer.py,
 * core/tensor_parallel) and in PyTorch's derivatives.yaml. Views launch nothing. */
#include "costs/launches.h"

typedef struct launches {
    float fused; /* norms, softmax, bias with activation: one kernel each */
    float eager; /* a kernel for every arithmetic operator; 0: the same */
} launches;

static const launches of_type[DH_N_OP_TYPE] = {
    [DH_OP_LOAD] = {12, 0},  /* tokens, labels, mask and positions copied and made */
    [DH_OP_EMBED] = {3, 0},  /* two lookups and their sum */
    [DH_OP_NORM] = {1, 7},   /* to float32, square, mean, scale, back, weight, bias */
    [DH_OP_LINEAR] = {1, 0}, /* and its bias */
    [DH_OP_LINEAR_GELU] = {2, 0},
    [DH_OP_ROPE] = {2, 12},    /* of q and of k: two halves turned, two products, a sum, a copy */
    [DH_OP_RESIDUAL] = {1, 0}, /* and its bias, and dropout */
    [DH_OP_ACT] = {1, 2},
    [DH_OP_LOSS_STATS] = {12, 0}, /* to float32, maximum, difference, masks, lookup, exp, sum */
    [DH_OP_LOSS_MERGE] = {3, 0},
    [DH_OP_LOSS] = {6, 0},      /* logarithm, difference, mask, two sums, quotient */
    [DH_OP_LOSS_GRAD] = {5, 0}, /* quotient, lookup, product, to half precision, scale */
    [DH_OP_LINEAR_DGRAD_GELU] = {2, 0},
    [DH_OP_LINEAR_WGRAD] = {2, 0}, /* GEMM, and adding it to the gradient */
    [DH_OP_BIAS_GRAD] = {2, 0},    /* sum, and adding it */
    [DH_OP_NORM_DGRAD] = {2, 8},   /* and adding the gradient that passed the norm by */
    [DH_OP_NORM_WGRAD] = {3, 5},   /* sums over rows, and adding both */
    [DH_OP_ROPE_GRAD] = {2, 12},
    [DH_OP_ACT_GRAD] = {1, 3},
    [DH_OP_EMBED_GRAD] = {4, 0},
    [DH_OP_ROUTER] = {8, 0},
    [DH_OP_MOE_ORDER] = {6, 0},
    [DH_OP_MOE_NODES] = {6, 0},
    [DH_OP_MOE_NODE_ORDER] = {6, 0},
    [DH_OP_GROUPED_WGRAD] = {2, 0},
    [DH_OP_ADAMW] = {4, 0}, /* unscale, check, update, copy */
};

static bool has_dropout(const dh_cost_op *op)
{
    return op->graph->dims.dropout > 0;
}

/* Forward: scores, mask with softmax, dropout, product with values, heads joined. Backward: four
 * products, softmax, dropout, and the gradient of packed q, k and v put together. */
static double attention_launches(const dh_cost_op *op, bool scores)
{
    const double dropout = has_dropout(op);
    if (op->op->type == DH_OP_ATTN_GRAD) return scores ? 7 + dropout : 4;
    return scores ? 4 + dropout : 3;
}

static double operands_launches(const dh_cost_op *op)
{
    const dh_op *o = op->op;
    if (o->type == DH_OP_LINEAR) return o->in[2] != DH_NONE;
    if (o->type != DH_OP_RESIDUAL) return 0;
    return (o->in[2] != DH_NONE) + (double)has_dropout(op);
}

/* Recomputed operators are a module's forward, whatever their phase; what only a backward has
 * comes behind the loss in the list of types. */
static bool is_autograd(const dh_op *op)
{
    return op->phase != DH_PHASE_F && op->phase != DH_PHASE_OPT && op->type >= DH_OP_LOSS_GRAD;
}

static double n_launches(const dh_cost_op *op, bool scores, bool eager)
{
    const dh_op_type type = op->op->type;
    const launches *l = &of_type[type];
    if (type == DH_OP_ATTN || type == DH_OP_ATTN_GRAD) return attention_launches(op, scores);
    /* NCCL's kernel, and the event by which another stream waits for it. */
    if (dh_op_info_of(type)->resource == DH_RES_COMM) return 2;
    const double own = eager && l->eager > 0 ? (double)l->eager : (double)l->fused;
    return (own > 0 ? own : 1) + operands_launches(op);
}

double dh_torch_launches(const dh_cost_op *op, bool scores, bool eager)
{
    return n_launches(op, scores, eager) * (is_autograd(op->op) ? DH_AUTOGRAD_SHARE : 1);
}
