/* Shapes that an operator of attention gives its kernels, on whatever device. */
#ifndef DH_RUN_CPU_ATTN_SHAPE_H
#define DH_RUN_CPU_ATTN_SHAPE_H

#include "graph/graph.h"
#include "run/cpu/kernels.h"
#include "run/exec/device.h"

static inline dh_attn_shape dh_attn_of_op(const dh_graph *g, const dh_op *op)
{
    const dh_attn_sizes z = dh_op_attn_sizes(g, op);
    dh_attn_shape s =
        dh_attn_packed(g->dtype, z.batch, z.seq, z.n_heads, z.n_kv_heads, g->dims.head_dim);
    s.scale = (float)g->dims.attn_scale;
    s.softcap = (float)g->dims.attn_softcap;
    return s;
}

/* The same with the keys that a call's queries see: the layer's window, and documents by positions
 * that begin anew. */
static inline dh_attn_shape dh_attn_of_call(const dh_call *c, const int32_t *pos)
{
    dh_attn_shape s = dh_attn_of_op(c->graph, c->op);
    s.window = dh_dims_window(&c->graph->dims, c->layer);
    s.q_doc = pos;
    s.q_doc_batch = s.Tq;
    return s;
}

/* New rows attend to the cache, whose rows hold the keys, then the values, of all heads. */
static inline dh_attn_shape dh_attn_of_cache(const dh_graph *g, const dh_op *op, int64_t n_keys)
{
    dh_attn_shape s = dh_attn_of_op(g, op);
    s.Tk = n_keys;
    s.kv_row = 2 * s.KV * s.D;
    s.kv_batch = g->dims.max_seq * s.kv_row;
    return s;
}

/* ---- ring attention --------------------------------------------------------------------------- */

/* One part, and the sizes of what it works on. */
typedef struct dh_ring {
    dh_ring_part part;
    dh_attn_shape s;
    int64_t seq;        /* tokens of a sample */
    int64_t o_floats;   /* of o and of dq, all samples */
    int64_t lse_floats; /* all samples */
} dh_ring;

/* Queries lie in packed rows, keys and values in the block's rows, gradients in float32 rows of
 * their own. pos: dh_ring_write_positions's, where the kernels read it; NULL: for sizes alone. */
static inline dh_ring dh_ring_of_op(const dh_graph *g, const dh_op *op, const int32_t *pos)
{
    dh_ring r = {.part = dh_ring_part_of(&g->dims, op->step), .s = dh_attn_of_op(g, op)};
    dh_attn_shape *s = &r.s;
    r.seq = s->Tq;
    s->Tq = r.part.n_q;
    s->Tk = r.part.n_k;
    s->kv_row = s->dkv_row = 2 * s->KV * s->D;
    s->kv_batch = s->dkv_batch = r.seq * s->kv_row;
    s->dq_row = s->H * s->D;
    s->dq_batch = r.seq * s->dq_row;
    s->g_dtype = DH_F32;
    s->q_pos = pos;
    s->k_pos = pos ? pos + r.part.n_q : NULL;
    r.o_floats = s->B * s->dq_batch;
    r.lse_floats = s->B * r.seq * s->H;
    return r;
}

/* The same with the keys that the call's queries see. docs: positions of all tokens, or NULL. */
static inline dh_ring dh_ring_of_call(const dh_call *c, const int32_t *docs)
{
    dh_ring r = dh_ring_of_op(c->graph, c->op, c->kernel);
    r.s.window = dh_dims_window(&c->graph->dims, c->layer);
    r.s.q_doc = docs ? docs + r.part.q0 : NULL;
    r.s.q_doc_batch = r.seq;
    return r;
}

/* Bytes of the positions of a part's queries, then of its keys. */
static inline size_t dh_ring_position_bytes(const dh_graph *g, const dh_op *op)
{
    const dh_ring_part part = dh_ring_part_of(&g->dims, op->step);
    return (size_t)(part.n_q + part.n_k) * sizeof(int32_t);
}

static inline void dh_ring_write_positions(const dh_graph *g, const dh_op *op, int32_t *pos)
{
    const dh_dims *d = &g->dims;
    const dh_ring_part part = dh_ring_part_of(d, op->step);
    for (int64_t t = 0; t < part.n_q; t++)
        pos[t] = (int32_t)dh_cp_position(d, d->cp_rank, part.q0 + t);
    for (int64_t t = 0; t < part.n_k; t++)
        pos[part.n_q + t] = (int32_t)dh_cp_position(d, part.from, t);
}

/* Bytes of floats in scratch, up to the next buffer's alignment. */
static inline size_t dh_ring_padded(int64_t n_floats)
{
    const size_t n = (size_t)n_floats * sizeof(float);
    return (n + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

static inline float *dh_ring_take(char **work, int64_t n_floats)
{
    float *taken = (float *)(void *)*work;
    *work += dh_ring_padded(n_floats);
    return taken;
}

/* Queries from q0 of every sample: addresses move, strides stay. */
static inline const void *dh_ring_queries(const dh_ring *r, const void *x, dh_dtype dtype,
                                          int64_t row)
{
    return (const char *)x + (size_t)(r->part.q0 * row) * dh_dtype_bytes(dtype);
}

static inline const void *dh_ring_values(const dh_ring *r, const void *kv)
{
    return (const char *)kv + (size_t)(r->s.kv_row / 2) * dh_dtype_bytes(r->s.dtype);
}

/* Gradients of the block's keys and values. */
static inline int64_t dh_ring_kv_floats(const dh_ring *r)
{
    return r->s.B * r->s.dkv_batch;
}

/* Whether an output is not float32, as kernels make it. */
static inline bool dh_ring_narrows(const dh_graph *g, const dh_op *op, int out)
{
    return g->tensors.at[op->out[out]].dtype != DH_F32;
}

#endif
