/* Rotary embedding, attention, cached and ring attention: shapes out of the graph, pointers out of
 * the call; as run/cpu/glue.c and glue_cp.c, whose arithmetic this is. */
#include "run/cpu/attn_shape.h"
#include "run/cuda/glue.h"

static const dh_tensor *tensor_of(const dh_graph *g, uint32_t id)
{
    return &g->tensors.at[id];
}

static const void *in_at(const void *x, dh_dtype dtype, int64_t i)
{
    return (const char *)x + (size_t)i * dh_dtype_bytes(dtype);
}

static void *out_at(void *x, dh_dtype dtype, int64_t i)
{
    return (char *)x + (size_t)i * dh_dtype_bytes(dtype);
}

/* ---- rotary embedding -------------------------------------------------------------------------
 */

/* Angles for every position the program can see; where some layers have others, two tables behind
 * each other. */
size_t dh_cuda_image_rope(const dh_graph *g, const dh_op *op)
{
    const dh_dims *d = &g->dims;
    return (size_t)((d->nth ? 2 : 1) * d->max_seq * d->head_dim) * sizeof(float);
}

void dh_cuda_write_rope(const dh_graph *g, const dh_op *op, void *image)
{
    const dh_dims *d = &g->dims;
    float *table = image;
    if (d->rope.scaling == DH_ROPE_SCALING_LONGROPE)
        dh_k_longrope_table(&d->rope, &d->longrope, d->max_seq, d->head_dim, table);
    else
        dh_k_rope_table(&d->rope, d->max_seq, d->head_dim, table);
    if (d->nth)
        dh_k_rope_table(&d->rope_nth, d->max_seq, d->head_dim, table + d->max_seq * d->head_dim);
}

static void rope(dh_cuda_stream stream, const dh_call *c, bool inverse)
{
    const dh_tensor *qkv = tensor_of(c->graph, c->op->in[0]);
    const dh_attn_sizes s = dh_op_attn_sizes(c->graph, c->op);
    const dh_dims *d = &c->graph->dims;
    const float *table = c->kernel;
    if (d->nth && (c->layer + 1) % d->nth == 0) table += d->max_seq * d->head_dim;
    dh_cuda_rope(stream, qkv->dtype, qkv->shape[0], s.seq, s.n_heads, s.n_kv_heads, d->head_dim,
                 c->in[0], table, c->in[1], inverse, c->out[0]);
}

void dh_cuda_run_rope(dh_cuda_stream stream, const dh_call *c)
{
    rope(stream, c, false);
}

void dh_cuda_run_rope_grad(dh_cuda_stream stream, const dh_call *c)
{
    rope(stream, c, true);
}

/* ---- attention ----------------------------------------------------------------------------------
 */

/* Elements into a packed row where keys, and values, begin. */
static int64_t key_at(const dh_attn_shape *s)
{
    return s->H * s->D;
}

static int64_t value_at(const dh_attn_shape *s)
{
    return (s->H + s->KV) * s->D;
}

void dh_cuda_run_attn(dh_cuda_stream stream, const dh_call *c)
{
    const dh_attn_shape s = dh_attn_of_call(c, c->in[1]);
    dh_cuda_attn_fwd(stream, &s, c->in[0], in_at(c->in[0], s.dtype, key_at(&s)),
                     in_at(c->in[0], s.dtype, value_at(&s)), c->out[0], c->out[1]);
}

size_t dh_cuda_ws_attn_grad(const dh_graph *g, const dh_op *op)
{
    const dh_attn_shape s = dh_attn_of_op(g, op);
    return dh_cuda_attn_bwd_workspace(&s);
}

void dh_cuda_run_attn_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_attn_shape s = dh_attn_of_call(c, c->in[4]);
    const int64_t k = key_at(&s), v = value_at(&s);
    dh_cuda_attn_bwd(stream, &s, c->in[0], c->in[2], c->in[3], c->in[1],
                     in_at(c->in[1], s.dtype, k), in_at(c->in[1], s.dtype, v), c->out[0],
                     out_at(c->out[0], s.dtype, k), out_at(c->out[0], s.dtype, v), false, c->work);
}

/* How far the cache is filled only the device knows: all of it is in the shape, and rows behind the
 * last new one are seen by no query. */
static dh_attn_shape cached_shape(const dh_graph *g, const dh_op *op)
{
    return dh_attn_of_cache(g, op, g->dims.max_seq);
}

/* Log-sum-exps, which nobody reads. */
size_t dh_cuda_ws_attn_cached(const dh_graph *g, const dh_op *op)
{
    const dh_attn_shape s = cached_shape(g, op);
    return (size_t)(s.B * s.H * s.Tq) * sizeof(float);
}

void dh_cuda_run_attn_cached(dh_cuda_stream stream, const dh_call *c)
{
    dh_attn_shape s = cached_shape(c->graph, c->op);
    const int64_t n_new = tensor_of(c->graph, c->op->in[0])->shape[0];
    void *cache = c->out[1];
    dh_cuda_put_rows(stream, s.dtype, n_new, s.kv_row, in_at(c->in[0], s.dtype, key_at(&s)),
                     key_at(&s) + s.kv_row, c->in[1], cache);
    s.q_pos = c->in[1];
    s.window = dh_dims_window(&c->graph->dims, c->layer);
    dh_cuda_attn_fwd(stream, &s, c->in[0], cache, in_at(cache, s.dtype, s.kv_row / 2), c->out[0],
                     c->work);
}

/* ---- ring attention: blocks --------------------------------------------------------------------
 */

void dh_cuda_run_kv_pack(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *qkv = tensor_of(c->graph, c->op->in[0]);
    const dh_tensor *kv = tensor_of(c->graph, c->op->out[0]);
    const int64_t row = qkv->shape[1], n = kv->shape[1];
    dh_cuda_cast_rows(stream, kv->shape[0], n, qkv->dtype, in_at(c->in[0], qkv->dtype, row - n),
                      row, kv->dtype, c->out[0], n);
}

void dh_cuda_run_qkv_join(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *qkv = tensor_of(c->graph, c->op->out[0]);
    const int64_t q = tensor_of(c->graph, c->op->in[0])->shape[1];
    const int64_t kv = tensor_of(c->graph, c->op->in[1])->shape[1], n = qkv->shape[0];
    dh_cuda_cast_rows(stream, n, q, DH_F32, c->in[0], q, qkv->dtype, c->out[0], q + kv);
    dh_cuda_cast_rows(stream, n, kv, tensor_of(c->graph, c->op->in[1])->dtype, c->in[1], kv,
                      qkv->dtype, out_at(c->out[0], qkv->dtype, q), q + kv);
}

/* ---- ring attention: parts ----------------------------------------------------------------------
 */

/* Positions of the queries, then of the keys, that a part joins. */
size_t dh_cuda_image_ring(const dh_graph *g, const dh_op *op)
{
    return dh_ring_position_bytes(g, op);
}

void dh_cuda_write_ring(const dh_graph *g, const dh_op *op, void *image)
{
    dh_ring_write_positions(g, op, image);
}

/* Statistics of the part's queries out of all [B,H,T] into [B,H,n_q], and back. */
static void gather_lse(dh_cuda_stream stream, const dh_ring *r, const float *all, float *some)
{
    dh_cuda_cast_rows(stream, r->s.B * r->s.H, r->part.n_q, DH_F32, all + r->part.q0, r->seq,
                      DH_F32, some, r->part.n_q);
}

static void scatter_lse(dh_cuda_stream stream, const dh_ring *r, const float *some, float *all)
{
    dh_cuda_cast_rows(stream, r->s.B * r->s.H, r->part.n_q, DH_F32, some, r->part.n_q, DH_F32,
                      all + r->part.q0, r->seq);
}

size_t dh_cuda_ws_ring_attn(const dh_graph *g, const dh_op *op)
{
    const dh_ring r = dh_ring_of_op(g, op, NULL);
    size_t n = 0;
    if (op->step > 0) n += dh_ring_padded(r.o_floats) + 2 * dh_ring_padded(r.lse_floats);
    if (dh_ring_narrows(g, op, 0)) n += dh_ring_padded(r.o_floats);
    return n;
}

/* o and lse hold the parts before; this one is computed beside them and merged. */
static void join_part(dh_cuda_stream stream, const dh_call *c, const dh_ring *r, float *o,
                      float *lse, char *work)
{
    float *o_part = dh_ring_take(&work, r->o_floats),
          *lse_part = dh_ring_take(&work, r->lse_floats);
    float *lse_own = dh_ring_take(&work, r->lse_floats);
    dh_cuda_attn_fwd(stream, &r->s, dh_ring_queries(r, c->in[0], r->s.dtype, r->s.q_row), c->in[1],
                     dh_ring_values(r, c->in[1]), o_part, lse_part);
    gather_lse(stream, r, lse, lse_own);
    dh_cuda_attn_merge(stream, &r->s, o + r->part.q0 * r->s.o_row, lse_own, o_part, lse_part);
    scatter_lse(stream, r, lse_own, lse);
}

void dh_cuda_run_ring_attn(dh_cuda_stream stream, const dh_call *c)
{
    dh_ring r = dh_ring_of_call(c, c->in[4]);
    r.s.o_dtype = DH_F32;
    const bool narrow = dh_ring_narrows(c->graph, c->op, 0);
    char *work = c->work;
    float *o = narrow ? dh_ring_take(&work, r.o_floats) : c->out[0], *lse = c->out[1];
    if (c->in[2]) {
        if (c->in[2] != o) dh_cuda_copy(stream, (size_t)r.o_floats * sizeof *o, c->in[2], o);
        if (c->in[3] != lse)
            dh_cuda_copy(stream, (size_t)r.lse_floats * sizeof *lse, c->in[3], lse);
        join_part(stream, c, &r, o, lse, work);
    } else {
        dh_cuda_attn_fwd(stream, &r.s, c->in[0], c->in[1], dh_ring_values(&r, c->in[1]), o, lse);
    }
    if (narrow) dh_cuda_cast(stream, r.o_floats, DH_F32, o, c->graph->dtype, c->out[0]);
}

size_t dh_cuda_ws_ring_attn_grad(const dh_graph *g, const dh_op *op)
{
    const dh_ring r = dh_ring_of_op(g, op, NULL);
    const size_t n_narrow = dh_ring_narrows(g, op, 1) ? dh_ring_padded(dh_ring_kv_floats(&r)) : 0;
    return dh_ring_padded(r.lse_floats) + n_narrow + dh_cuda_attn_bwd_workspace(&r.s);
}

/* o and lse are those of all keys. dq adds to the parts before; what the rank's queries give to
 * keys they do not see is 0. */
void dh_cuda_run_ring_attn_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_ring r = dh_ring_of_call(c, c->in[6]);
    const dh_attn_shape *s = &r.s;
    const bool adds = c->in[5] != NULL, narrow = dh_ring_narrows(c->graph, c->op, 1);
    char *work = c->work;
    float *lse = dh_ring_take(&work, r.lse_floats), *dq = c->out[0];
    float *dkv = narrow ? dh_ring_take(&work, dh_ring_kv_floats(&r)) : c->out[1];
    gather_lse(stream, &r, c->in[3], lse);
    if (adds) {
        if (c->in[5] != dq) dh_cuda_copy(stream, (size_t)r.o_floats * sizeof *dq, c->in[5], dq);
        dh_cuda_zero(stream, (size_t)dh_ring_kv_floats(&r) * sizeof *dkv, dkv);
    }
    dh_cuda_attn_bwd(stream, s, dh_ring_queries(&r, c->in[0], s->dtype, s->o_row),
                     dh_ring_queries(&r, c->in[2], s->o_dtype, s->o_row), lse,
                     dh_ring_queries(&r, c->in[1], s->dtype, s->q_row), c->in[4],
                     dh_ring_values(&r, c->in[4]), dq + r.part.q0 * s->dq_row, dkv,
                     dkv + s->dkv_row / 2, adds, work);
    if (narrow)
        dh_cuda_cast(stream, dh_ring_kv_floats(&r), DH_F32, dkv, c->graph->dtype, c->out[1]);
}
