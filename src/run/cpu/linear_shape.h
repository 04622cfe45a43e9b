/* Sizes that an operator of linear attention gives its kernels, on whatever device. */
#ifndef DH_RUN_CPU_LINEAR_SHAPE_H
#define DH_RUN_CPU_LINEAR_SHAPE_H

#include "graph/graph.h"
#include "run/cpu/kernels.h"

/* Which input has the packed rows of queries, keys and values. */
static inline int dh_linear_packed_input(const dh_op *op)
{
    switch (op->type) {
    case DH_OP_LINEAR_JOIN:
    case DH_OP_LINEAR_ATTN_GRAD:
    case DH_OP_LINEAR_STATE_GRAD:
    case DH_OP_FEATURE_MAP_GRAD:
        return 1;
    case DH_OP_LINEAR_JOIN_GRAD:
        return 2;
    default:
        return 0;
    }
}

/* What is computed of the rank's own tokens alone is float32. */
static inline dh_linear_shape dh_linear_shape_of(const dh_graph *g, const dh_op *op)
{
    const dh_attn_sizes z = dh_linear_sizes(g, &g->tensors.at[op->in[dh_linear_packed_input(op)]]);
    const dh_dtype out = g->tensors.at[op->out[0]].dtype;
    return (dh_linear_shape){.dtype = g->dtype,
                             .o_dtype = out,
                             .g_dtype = out,
                             .B = z.batch,
                             .T = z.seq,
                             .H = z.n_heads,
                             .KV = z.n_kv_heads,
                             .D = g->dims.head_dim};
}

#endif
