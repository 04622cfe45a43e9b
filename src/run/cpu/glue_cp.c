/* Ring attention: one block of keys and values at a time (src/graph/pass_cp.c).
 *
 * A part computes o and its log-sum-exp for the queries that see anything of the block,
 * then joins them to what the parts before made. Everything in between is float32, so
 * that a value is rounded to the activations' type once, in the last part. */
#include <stdlib.h>
#include <string.h>

#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* ---- blocks of keys and values ---------------------------------------------------------- */

/* Columns of packed qkv that queries, and keys and values together, take. */
static int64_t q_cols(const dh_graph *g)
{
    return g->dims.n_heads * g->dims.head_dim;
}

static int64_t kv_cols(const dh_graph *g)
{
    return 2 * g->dims.n_kv_heads * g->dims.head_dim;
}

static int64_t n_rows(const dh_graph *g)
{
    return g->dims.batch * g->dims.seq;
}

/* Address of element i. */
static const void *at(const void *x, dh_dtype dtype, int64_t i)
{
    return (const char *)x + (size_t)i * dh_dtype_bytes(dtype);
}

static void *out_at(void *x, dh_dtype dtype, int64_t i)
{
    return (char *)x + (size_t)i * dh_dtype_bytes(dtype);
}

dh_status dh_cpu_run_kv_pack(dh_ctx *ctx, const dh_cpu_call *c)
{
    const dh_graph *g = c->graph;
    const int64_t q = q_cols(g), kv = kv_cols(g);
    dh_k_cast_rows(n_rows(g), kv, g->dtype, at(c->in[0], g->dtype, q), q + kv, g->dtype, c->out[0],
                   kv);
    return DH_OK;
}

dh_status dh_cpu_run_qkv_join(dh_ctx *ctx, const dh_cpu_call *c)
{
    const dh_graph *g = c->graph;
    const int64_t q = q_cols(g), kv = kv_cols(g);
    dh_k_cast_rows(n_rows(g), q, DH_F32, c->in[0], q, g->dtype, c->out[0], q + kv);
    dh_k_cast_rows(n_rows(g), kv, DH_F32, c->in[1], kv, g->dtype, out_at(c->out[0], g->dtype, q),
                   q + kv);
    return DH_OK;
}

/* ---- parts --------------------------------------------------------------------------------- */

/* Positions of the queries, then of the keys, that a part joins. */
dh_status dh_cpu_prepare_ring(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                              void **state)
{
    const dh_dims *d = &g->dims;
    const dh_ring_part part = dh_ring_part_of(d, op->step);
    int32_t *pos = malloc((size_t)(part.n_q + part.n_k) * sizeof *pos);
    if (!pos) return dh_fail(ctx, DH_ENOMEM, "out of memory for positions");
    for (int64_t t = 0; t < part.n_q; t++)
        pos[t] = (int32_t)dh_cp_position(d, d->cp_rank, part.q0 + t);
    for (int64_t t = 0; t < part.n_k; t++)
        pos[part.n_q + t] = (int32_t)dh_cp_position(d, part.from, t);
    *state = pos;
    return DH_OK;
}

/* q lies in packed rows, keys and values in the block's; o and gradients in rows of
 * their own, float32 where g's kernels make them. pos NULL: for sizes only. */
static dh_attn_shape ring_shape(const dh_graph *g, const dh_ring_part *part, const int32_t *pos)
{
    const dh_dims *d = &g->dims;
    dh_attn_shape s =
        dh_attn_packed(g->dtype, d->batch, d->seq, d->n_heads, d->n_kv_heads, d->head_dim);
    s.Tq = part->n_q;
    s.Tk = part->n_k;
    s.kv_row = s.dkv_row = kv_cols(g);
    s.kv_batch = s.dkv_batch = d->seq * s.kv_row;
    s.dq_row = q_cols(g);
    s.dq_batch = d->seq * s.dq_row;
    s.g_dtype = DH_F32;
    s.q_pos = pos;
    s.k_pos = pos ? pos + part->n_q : NULL;
    return s;
}

static size_t padded(int64_t n_floats)
{
    return ((size_t)n_floats * sizeof(float) + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN *
           DH_BUFFER_ALIGN;
}

static float *take(char **work, int64_t n_floats)
{
    float *taken = (float *)(void *)*work;
    *work += padded(n_floats);
    return taken;
}

static int64_t o_floats(const dh_graph *g)
{
    return n_rows(g) * q_cols(g);
}

static int64_t lse_floats(const dh_graph *g)
{
    return n_rows(g) * g->dims.n_heads;
}

/* Statistics of the part's queries out of all [B,H,T] into [B,H,n_q], and back. */
static void gather_lse(const dh_graph *g, const dh_ring_part *part, const float *all, float *some)
{
    const int64_t heads = g->dims.batch * g->dims.n_heads;
    for (int64_t h = 0; h < heads; h++)
        memcpy(some + h * part->n_q, all + h * g->dims.seq + part->q0,
               (size_t)part->n_q * sizeof *some);
}

static void scatter_lse(const dh_graph *g, const dh_ring_part *part, const float *some, float *all)
{
    const int64_t heads = g->dims.batch * g->dims.n_heads;
    for (int64_t h = 0; h < heads; h++)
        memcpy(all + h * g->dims.seq + part->q0, some + h * part->n_q,
               (size_t)part->n_q * sizeof *some);
}

/* ---- forward -------------------------------------------------------------------------------- */

static bool narrows(const dh_graph *g, const dh_op *op)
{
    return g->tensors.at[op->out[0]].dtype != DH_F32;
}

size_t dh_cpu_ws_ring_attn(const dh_graph *g, const dh_op *op)
{
    const dh_ring_part part = dh_ring_part_of(&g->dims, op->step);
    const dh_attn_shape s = ring_shape(g, &part, NULL);
    size_t n = dh_k_attn_fwd_workspace(&s);
    if (op->step > 0) n += padded(o_floats(g)) + 2 * padded(lse_floats(g));
    if (narrows(g, op)) n += padded(o_floats(g));
    return n;
}

/* Queries from q0 of every sample: addresses move, strides stay. */
static const void *queries_at(const void *x, dh_dtype dtype, const dh_ring_part *part, int64_t row)
{
    return at(x, dtype, part->q0 * row);
}

/* o and lse hold the parts before; this one is computed beside them and merged. */
static void join_part(const dh_cpu_call *c, const dh_ring_part *part, float *o, float *lse,
                      char *work)
{
    const dh_graph *g = c->graph;
    dh_attn_shape s = ring_shape(g, part, c->state);
    s.o_dtype = DH_F32;
    float *o_part = take(&work, o_floats(g)), *lse_part = take(&work, lse_floats(g));
    float *lse_own = take(&work, lse_floats(g));
    const char *kv = c->in[1];
    dh_k_attn_fwd(&s, queries_at(c->in[0], s.dtype, part, s.q_row), kv,
                  at(kv, s.dtype, kv_cols(g) / 2), o_part, lse_part, work);
    gather_lse(g, part, lse, lse_own);
    dh_k_attn_merge(&s, o + part->q0 * s.o_row, lse_own, o_part, lse_part);
    scatter_lse(g, part, lse_own, lse);
}

static void first_part(const dh_cpu_call *c, const dh_ring_part *part, float *o, float *lse,
                       char *work)
{
    dh_attn_shape s = ring_shape(c->graph, part, c->state);
    s.o_dtype = DH_F32;
    dh_k_attn_fwd(&s, c->in[0], c->in[1], at(c->in[1], s.dtype, kv_cols(c->graph) / 2), o, lse,
                  work);
}

dh_status dh_cpu_run_ring_attn(dh_ctx *ctx, const dh_cpu_call *c)
{
    const dh_graph *g = c->graph;
    const dh_ring_part part = dh_ring_part_of(&g->dims, c->op->step);
    const bool narrow = narrows(g, c->op);
    char *work = c->work;
    float *o = narrow ? take(&work, o_floats(g)) : c->out[0], *lse = c->out[1];
    if (c->in[2]) {
        if (c->in[2] != o) dh_k_copy((size_t)o_floats(g) * sizeof *o, c->in[2], o);
        dh_k_copy((size_t)lse_floats(g) * sizeof *lse, c->in[3], lse);
        join_part(c, &part, o, lse, work);
    } else {
        first_part(c, &part, o, lse, work);
    }
    if (narrow) dh_k_cast(o_floats(g), DH_F32, o, g->dtype, c->out[0]);
    return DH_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

size_t dh_cpu_ws_ring_attn_grad(const dh_graph *g, const dh_op *op)
{
    const dh_ring_part part = dh_ring_part_of(&g->dims, op->step);
    const dh_attn_shape s = ring_shape(g, &part, NULL);
    return padded(lse_floats(g)) + dh_k_attn_bwd_workspace(&s);
}

/* o and lse are those of all keys. dq adds to the parts before; what the rank's queries
 * give to keys they do not see is 0. */
dh_status dh_cpu_run_ring_attn_grad(dh_ctx *ctx, const dh_cpu_call *c)
{
    const dh_graph *g = c->graph;
    const dh_ring_part part = dh_ring_part_of(&g->dims, c->op->step);
    const dh_attn_shape s = ring_shape(g, &part, c->state);
    const bool adds = c->in[5] != NULL;
    char *work = c->work;
    float *lse = take(&work, lse_floats(g)), *dq = c->out[0], *dkv = c->out[1];
    gather_lse(g, &part, c->in[3], lse);
    if (adds) {
        if (c->in[5] != dq) dh_k_copy((size_t)o_floats(g) * sizeof *dq, c->in[5], dq);
        dh_k_zero((size_t)(n_rows(g) * s.dkv_row) * sizeof *dkv, dkv);
    }
    const void *kv = c->in[4];
    dh_k_attn_bwd(&s, queries_at(c->in[0], s.dtype, &part, s.o_row),
                  queries_at(c->in[2], s.o_dtype, &part, s.o_row), lse,
                  queries_at(c->in[1], s.dtype, &part, s.q_row), kv,
                  at(kv, s.dtype, kv_cols(g) / 2), dq + part.q0 * s.dq_row, dkv,
                  dkv + kv_cols(g) / 2, adds, work);
    return DH_OK;
}
