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

/* A part, and the sizes of what it works on. */
typedef struct ring {
    dh_ring_part part;
    dh_attn_shape s;
    int64_t seq, o_floats, lse_floats; /* tokens of a sample; of all samples: o and dq, lse */
} ring;

/* q lies in packed rows, keys and values in the block's; o and gradients in rows of
 * their own, float32 where g's kernels make them. pos NULL: for sizes only. */
static ring ring_of(const dh_graph *g, const dh_op *op, const int32_t *pos)
{
    const dh_attn_sizes z = dh_op_attn_sizes(g, op);
    ring r = {.part = dh_ring_part_of(&g->dims, op->step), .seq = z.seq};
    dh_attn_shape *s = &r.s;
    *s = dh_attn_packed(g->dtype, z.batch, z.seq, z.n_heads, z.n_kv_heads, g->dims.head_dim);
    s->scale = (float)g->dims.attn_scale;
    s->softcap = (float)g->dims.attn_softcap;
    s->Tq = r.part.n_q;
    s->Tk = r.part.n_k;
    s->kv_row = s->dkv_row = 2 * s->KV * s->D;
    s->kv_batch = s->dkv_batch = z.seq * s->kv_row;
    s->dq_row = s->H * s->D;
    s->dq_batch = z.seq * s->dq_row;
    s->g_dtype = DH_F32;
    s->q_pos = pos;
    s->k_pos = pos ? pos + r.part.n_q : NULL;
    r.o_floats = z.batch * s->dq_batch;
    r.lse_floats = z.batch * z.seq * s->H;
    return r;
}

/* Keys that a call's queries see: the layer's window, documents by positions that begin anew. */
static ring ring_of_call(const dh_call *c, const int32_t *docs)
{
    ring r = ring_of(c->graph, c->op, c->kernel);
    r.s.window = dh_dims_window(&c->graph->dims, c->layer);
    r.s.q_doc = docs ? docs + r.part.q0 : NULL;
    r.s.q_doc_batch = r.seq;
    return r;
}

/* Whether any query of the part sees any of its keys: the first one, as far as it reaches back.
 * Keys of other ranks lie before all queries that the part has. */
static bool meets(const ring *r)
{
    const int32_t *k_pos = r->s.k_pos; /* NULL: keys lie where they stand */
    const int64_t last_key = k_pos ? k_pos[r->s.Tk - 1] : r->s.Tk - 1;
    bool any = false;
    for (int64_t b = 0; b < r->s.B && !any; b++) any = dh_attn_first_seen(&r->s, b, 0) <= last_key;
    return any;
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

/* Statistics of the part's queries out of all [B,H,T] into [B,H,n_q], and back. */
static void gather_lse(const ring *r, const float *all, float *some)
{
    for (int64_t h = 0; h < r->s.B * r->s.H; h++)
        memcpy(some + h * r->part.n_q, all + h * r->seq + r->part.q0,
               (size_t)r->part.n_q * sizeof *some);
}

static void scatter_lse(const ring *r, const float *some, float *all)
{
    for (int64_t h = 0; h < r->s.B * r->s.H; h++)
        memcpy(all + h * r->seq + r->part.q0, some + h * r->part.n_q,
               (size_t)r->part.n_q * sizeof *some);
}

/* Queries from q0 of every sample: addresses move, strides stay. */
static const void *queries_at(const ring *r, const void *x, dh_dtype dtype, int64_t row)
{
    return at(x, dtype, r->part.q0 * row);
}

static const void *values_at(const ring *r, const void *kv)
{
    return at(kv, r->s.dtype, r->s.kv_row / 2);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Whether the output is not float32, as kernels make it. */
static bool narrows(const dh_graph *g, const dh_op *op, int out)
{
    return tensor_of(g, op->out[out])->dtype != DH_F32;
}

size_t dh_cpu_ws_ring_attn(const dh_graph *g, const dh_op *op)
{
    const ring r = ring_of(g, op, NULL);
    size_t n = dh_k_attn_fwd_workspace(&r.s);
    if (op->step > 0) n += padded(r.o_floats) + 2 * padded(r.lse_floats);
    if (narrows(g, op, 0)) n += padded(r.o_floats);
    return n;
}

/* o and lse hold the parts before; this one is computed beside them and merged. */
static void join_part(const dh_call *c, const ring *r, float *o, float *lse, char *work)
{
    float *o_part = take(&work, r->o_floats), *lse_part = take(&work, r->lse_floats);
    float *lse_own = take(&work, r->lse_floats);
    dh_k_attn_fwd(&r->s, queries_at(r, c->in[0], r->s.dtype, r->s.q_row), c->in[1],
                  values_at(r, c->in[1]), o_part, lse_part, work);
    gather_lse(r, lse, lse_own);
    dh_k_attn_merge(&r->s, o + r->part.q0 * r->s.o_row, lse_own, o_part, lse_part);
    scatter_lse(r, lse_own, lse);
}

dh_status dh_cpu_run_ring_attn(dh_ctx *ctx, const dh_call *c)
{
    ring r = ring_of_call(c, c->in[4]);
    r.s.o_dtype = DH_F32;
    const bool narrow = narrows(c->graph, c->op, 0);
    char *work = c->work;
    float *o = narrow ? take(&work, r.o_floats) : c->out[0], *lse = c->out[1];
    if (c->in[2]) {
        if (c->in[2] != o) dh_k_copy((size_t)r.o_floats * sizeof *o, c->in[2], o);
        dh_k_copy((size_t)r.lse_floats * sizeof *lse, c->in[3], lse);
        if (meets(&r)) join_part(c, &r, o, lse, work);
    } else {
        dh_k_attn_fwd(&r.s, c->in[0], c->in[1], values_at(&r, c->in[1]), o, lse, work);
    }
    if (narrow) dh_k_cast(r.o_floats, DH_F32, o, c->graph->dtype, c->out[0]);
    return DH_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

/* Of gradients of the block's keys and values. */
static int64_t kv_floats(const dh_attn_shape *s)
{
    return s->B * s->dkv_batch;
}

size_t dh_cpu_ws_ring_attn_grad(const dh_graph *g, const dh_op *op)
{
    const ring r = ring_of(g, op, NULL);
    const size_t n_narrow = narrows(g, op, 1) ? padded(kv_floats(&r.s)) : 0;
    return padded(r.lse_floats) + n_narrow + dh_k_attn_bwd_workspace(&r.s);
}

/* o and lse are those of all keys. dq adds to the parts before; what the rank's queries
 * give to keys they do not see is 0. */
dh_status dh_cpu_run_ring_attn_grad(dh_ctx *ctx, const dh_call *c)
{
    const ring r = ring_of_call(c, c->in[6]);
    const dh_attn_shape *s = &r.s;
    const bool adds = c->in[5] != NULL, narrow = narrows(c->graph, c->op, 1);
    char *work = c->work;
    float *lse = take(&work, r.lse_floats), *dq = c->out[0];
    float *dkv = narrow ? take(&work, kv_floats(s)) : c->out[1];
    gather_lse(&r, c->in[3], lse);
    if (adds) {
        if (c->in[5] != dq) dh_k_copy((size_t)r.o_floats * sizeof *dq, c->in[5], dq);
        dh_k_zero((size_t)kv_floats(s) * sizeof *dkv, dkv);
    }
    if (!adds || meets(&r))
        dh_k_attn_bwd(s, queries_at(&r, c->in[0], s->dtype, s->o_row),
                      queries_at(&r, c->in[2], s->o_dtype, s->o_row), lse,
                      queries_at(&r, c->in[1], s->dtype, s->q_row), c->in[4],
                      values_at(&r, c->in[4]), dq + r.part.q0 * s->dq_row, dkv,
                      dkv + s->dkv_row / 2, adds, work);
    if (narrow) dh_k_cast(kv_floats(s), DH_F32, dkv, c->graph->dtype, c->out[1]);
    return DH_OK;
}
