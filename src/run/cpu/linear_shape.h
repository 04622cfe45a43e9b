/* Sizes that an operator of linear attention gives its kernels, on whatever device. */
#ifndef DH_RUN_CPU_LINEAR_SHAPE_H
#define DH_RUN_CPU_LINEAR_SHAPE_H

#include "graph/graph.h"
#include "run/cpu/kernels.h"
#include "run/exec/device.h"

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

/* Results that come from the rank's own tokens alone are float32. */
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

/* The state that came to the first rank, or back to the last, has gone round and does not count.
 * With two chunks, one has others before it on every rank. */
static inline const float *dh_state_before_own(const dh_call *c, int k)
{
    const dh_dims *d = &c->graph->dims;
    return d->cp_rank > 0 || dh_cp_chunks(d) > 1 ? c->in[k] : NULL;
}

static inline const float *dh_state_behind_own(const dh_call *c, int k)
{
    const dh_dims *d = &c->graph->dims;
    return d->cp_rank < d->cp - 1 || dh_cp_chunks(d) > 1 ? c->in[k] : NULL;
}

/* States of a rank as blocks: one for each chunk of each sample, a sample's side by side; with one
 * chunk of each sample all of them together. */
typedef struct dh_state_blocks {
    int64_t chunks; /* of a sample */
    int64_t blocks; /* of a rank */
    int64_t n;      /* numbers of a block */
} dh_state_blocks;

static inline dh_state_blocks dh_state_blocks_of(const dh_call *c)
{
    const dh_dims *d = &c->graph->dims;
    const int64_t n = dh_tensor_elements(&c->graph->tensors.at[c->op->out[0]]);
    const int64_t chunks = dh_cp_chunks(d), of_chunk = d->n_kv_heads * d->head_dim * d->head_dim;
    return chunks == 1 ? (dh_state_blocks){1, 1, n}
                       : (dh_state_blocks){chunks, n / of_chunk, of_chunk};
}

/* Where linear_before's k-th summand of the rank's `block` lies in the states of all, in the order
 * of the sequence (back: against it); -1: there are k. */
static inline int64_t dh_state_before(const dh_call *c, dh_state_blocks s, int64_t block, int64_t k)
{
    const dh_dims *d = &c->graph->dims;
    const int64_t own = block % s.chunks;
    const dh_cp_chunk at = dh_cp_chunk_at(d, c->op->back ? s.chunks * d->cp - 1 - k : k);
    if (at.rank == d->cp_rank && at.own == own) return -1;
    return (at.rank * s.blocks + block - own + at.own) * s.n;
}

#endif
