/* Ring attention: one block of keys and values at a time (src/graph/pass_cp.c).
 *
 * A part computes o and its log-sum-exp for the queries that see anything of the block,
 * then joins them to what the parts before made. Everything in between is float32, so
 * that a value is rounded to the activations' type once, in the last part. */
#include <stdlib.h>
#include <string.h>

#include "run/cpu/attn_shape.h"
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* ---- blocks of keys and values ---------------------------------------------------------- */

static const dh_tensor *tensor_of(const dh_graph *g, uint32_t id)
{
    return &g->tensors.at[id];
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

dh_status dh_cpu_run_kv_pack(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *qkv = tensor_of(c->graph, c->op->in[0]);
    const dh_tensor *kv = tensor_of(c->graph, c->op->out[0]);
    const int64_t row = qkv->shape[1], n = kv->shape[1];
    dh_k_cast_rows(kv->shape[0], n, qkv->dtype, at(c->in[0], qkv->dtype, row - n), row, kv->dtype,
                   c->out[0], n);
    return DH_OK;
}

dh_status dh_cpu_run_qkv_join(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *qkv = tensor_of(c->graph, c->op->out[0]);
    const int64_t q = tensor_of(c->graph, c->op->in[0])->shape[1];
    const int64_t kv = tensor_of(c->graph, c->op->in[1])->shape[1];
    const int64_t n = qkv->shape[0];
    dh_k_cast_rows(n, q, DH_F32, c->in[0], q, qkv->dtype, c->out[0], q + kv);
    dh_k_cast_rows(n, kv, tensor_of(c->graph, c->op->in[1])->dtype, c->in[1], kv, qkv->dtype,
                   out_at(c->out[0], qkv->dtype, q), q + kv);
    return DH_OK;
}

/* ---- parts --------------------------------------------------------------------------------- */

/* Positions of the queries, then of the keys, that a part joins. */
dh_status dh_cpu_prepare_ring(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                              void **state)
{
    int32_t *pos = malloc(dh_ring_position_bytes(g, op));
    if (!pos) return dh_no_memory(ctx);
    dh_ring_write_positions(g, op, pos);
    *state = pos;
    return DH_OK;
}

/* Whether any query of the part sees any of its keys: the first one, as far as it reaches back.
 * Keys of other ranks lie before all queries that the part has. */
static bool meets(const dh_ring *r)
{
    const int32_t *k_pos = r->s.k_pos; /* NULL: keys lie where they stand */
    const int64_t last_key = k_pos ? k_pos[r->s.Tk - 1] : r->s.Tk - 1;
    bool any = false;
    for (int64_t b = 0; b < r->s.B && !any; b++) any = dh_attn_first_seen(&r->s, b, 0) <= last_key;
    return any;
}

/* Statistics of the part's queries out of all [B,H,T] into [B,H,n_q], and back. */
static void gather_lse(const dh_ring *r, const float *all, float *some)
{
    for (int64_t h = 0; h < r->s.B * r->s.H; h++)
        memcpy(some + h * r->part.n_q, all + h * r->seq + r->part.q0,
               (size_t)r->part.n_q * sizeof *some);
}

static void scatter_lse(const dh_ring *r, const float *some, float *all)
{
    for (int64_t h = 0; h < r->s.B * r->s.H; h++)
        memcpy(all + h * r->seq + r->part.q0, some + h * r->part.n_q,
               (size_t)r->part.n_q * sizeof *some);
}

/* ---- forward -------------------------------------------------------------------------------- */

size_t dh_cpu_ws_ring_attn(const dh_graph *g, const dh_op *op)
{
    const dh_ring r = dh_ring_of_op(g, op, NULL);
    size_t n = dh_k_attn_fwd_workspace(&r.s);
    if (op->step > 0) n += dh_ring_padded(r.o_floats) + 2 * dh_ring_padded(r.lse_floats);
    if (dh_ring_narrows(g, op, 0)) n += dh_ring_padded(r.o_floats);
    return n;
}

/* o and lse hold the parts before; this one is computed beside them and merged. */
static void join_part(const dh_call *c, const dh_ring *r, float *o, float *lse, char *work)
{
    float *o_part = dh_ring_take(&work, r->o_floats),
          *lse_part = dh_ring_take(&work, r->lse_floats);
    float *lse_own = dh_ring_take(&work, r->lse_floats);
    dh_k_attn_fwd(&r->s, dh_ring_queries(r, c->in[0], r->s.dtype, r->s.q_row), c->in[1],
                  dh_ring_values(r, c->in[1]), o_part, lse_part, work);
    gather_lse(r, lse, lse_own);
    dh_k_attn_merge(&r->s, o + r->part.q0 * r->s.o_row, lse_own, o_part, lse_part);
    scatter_lse(r, lse_own, lse);
}

dh_status dh_cpu_run_ring_attn(dh_ctx *ctx, const dh_call *c)
{
    dh_ring r = dh_ring_of_call(c, c->in[4]);
    r.s.o_dtype = DH_F32;
    const bool narrow = dh_ring_narrows(c->graph, c->op, 0);
    char *work = c->work;
    float *o = narrow ? dh_ring_take(&work, r.o_floats) : c->out[0], *lse = c->out[1];
    if (c->in[2]) {
        if (c->in[2] != o) dh_k_copy((size_t)r.o_floats * sizeof *o, c->in[2], o);
        dh_k_copy((size_t)r.lse_floats * sizeof *lse, c->in[3], lse);
        if (meets(&r)) join_part(c, &r, o, lse, work);
    } else {
        dh_k_attn_fwd(&r.s, c->in[0], c->in[1], dh_ring_values(&r, c->in[1]), o, lse, work);
    }
    if (narrow) dh_k_cast(r.o_floats, DH_F32, o, c->graph->dtype, c->out[0]);
    return DH_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

size_t dh_cpu_ws_ring_attn_grad(const dh_graph *g, const dh_op *op)
{
    const dh_ring r = dh_ring_of_op(g, op, NULL);
    const size_t n_narrow = dh_ring_narrows(g, op, 1) ? dh_ring_padded(dh_ring_kv_floats(&r)) : 0;
    return dh_ring_padded(r.lse_floats) + n_narrow + dh_k_attn_bwd_workspace(&r.s);
}

/* o and lse are those of all keys. dq adds to the parts before; what the rank's queries
 * give to keys they do not see is 0. */
dh_status dh_cpu_run_ring_attn_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_ring r = dh_ring_of_call(c, c->in[6]);
    const dh_attn_shape *s = &r.s;
    const bool adds = c->in[5] != NULL, narrow = dh_ring_narrows(c->graph, c->op, 1);
    char *work = c->work;
    float *lse = dh_ring_take(&work, r.lse_floats), *dq = c->out[0];
    float *dkv = narrow ? dh_ring_take(&work, dh_ring_kv_floats(&r)) : c->out[1];
    gather_lse(&r, c->in[3], lse);
    if (adds) {
        if (c->in[5] != dq) dh_k_copy((size_t)r.o_floats * sizeof *dq, c->in[5], dq);
        dh_k_zero((size_t)dh_ring_kv_floats(&r) * sizeof *dkv, dkv);
    }
    if (!adds || meets(&r))
        dh_k_attn_bwd(s, dh_ring_queries(&r, c->in[0], s->dtype, s->o_row),
                      dh_ring_queries(&r, c->in[2], s->o_dtype, s->o_row), lse,
                      dh_ring_queries(&r, c->in[1], s->dtype, s->q_row), c->in[4],
                      dh_ring_values(&r, c->in[4]), dq + r.part.q0 * s->dq_row, dkv,
                      dkv + s->dkv_row / 2, adds, work);
    if (narrow) dh_k_cast(dh_ring_kv_floats(&r), DH_F32, dkv, c->graph->dtype, c->out[1]);
    return DH_OK;
}
