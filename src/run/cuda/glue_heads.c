/* Weights of norms, and norms of heads of queries and keys out of packed rows; as
 * run/cpu/glue_gemma.c and glue_heads.c. */
#include "run/cuda/glue.h"

/* ---- norms by 1 + weight -----------------------------------------------------------------------
 */

const float *dh_cuda_norm_weights(dh_cuda_stream stream, const dh_call *c, const float *w,
                                  int64_t n, float **work)
{
    if (!c->graph->dims.norm_plus_one) return w;
    float *sum = *work;
    *work += n;
    dh_cuda_offset(stream, n, 1, w, sum);
    return sum;
}

size_t dh_cuda_ws_norm(const dh_graph *g, const dh_op *op)
{
    return g->dims.norm_plus_one ? (size_t)g->dims.width * sizeof(float) : 0;
}

size_t dh_cuda_ws_head_norm(const dh_graph *g, const dh_op *op)
{
    return g->dims.norm_plus_one ? (size_t)(2 * g->dims.head_dim) * sizeof(float) : 0;
}

/* ---- each head by itself -----------------------------------------------------------------------
 */

static dh_heads heads_of(const dh_graph *g, const dh_op *op)
{
    const dh_attn_sizes s = dh_op_attn_sizes(g, op);
    return (dh_heads){.N = g->tensors.at[op->in[0]].shape[0],
                      .H = s.n_heads,
                      .KV = s.n_kv_heads,
                      .D = g->dims.head_dim};
}

void dh_cuda_run_head_norm(dh_cuda_stream stream, const dh_call *c)
{
    const int64_t D = c->graph->dims.head_dim;
    float *work = c->work;
    const float *w_q = dh_cuda_norm_weights(stream, c, c->in[1], D, &work);
    const float *w_k = dh_cuda_norm_weights(stream, c, c->in[2], D, &work);
    dh_cuda_head_norm_fwd(stream, c->graph->dtype, heads_of(c->graph, c->op), c->in[0], w_q, w_k,
                          (float)c->graph->dims.norm_eps, c->out[0], c->out[1]);
}

void dh_cuda_run_head_norm_dgrad(dh_cuda_stream stream, const dh_call *c)
{
    const int64_t D = c->graph->dims.head_dim;
    float *work = c->work;
    const float *w_q = dh_cuda_norm_weights(stream, c, c->in[2], D, &work);
    const float *w_k = dh_cuda_norm_weights(stream, c, c->in[3], D, &work);
    dh_cuda_head_norm_dgrad(stream, c->graph->dtype, heads_of(c->graph, c->op), c->in[0], c->in[1],
                            w_q, w_k, c->in[4], c->out[0]);
}

size_t dh_cuda_ws_head_norm_wgrad(const dh_graph *g, const dh_op *op)
{
    return dh_cuda_head_norm_wgrad_workspace(heads_of(g, op));
}

void dh_cuda_run_head_norm_wgrad(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_head_norm_wgrad(stream, c->graph->dtype, heads_of(c->graph, c->op), c->in[0], c->in[1],
                            c->in[2], c->out[0], c->out[1], c->accumulate, c->work);
}

/* ---- all heads together ------------------------------------------------------------------ */

/* Of packed rows of these columns, which no statistics of heads go with. */
static dh_heads rows_of_heads(const dh_graph *g, const dh_tensor *packed)
{
    const dh_dims *d = &g->dims;
    const int64_t n = packed->shape[1] / d->head_dim;
    const int64_t kv = n * d->n_kv_heads / (d->n_heads + 2 * d->n_kv_heads);
    return (dh_heads){.N = packed->shape[0], .H = n - 2 * kv, .KV = kv, .D = d->head_dim};
}

static dh_heads heads_in(const dh_call *c, int k)
{
    return rows_of_heads(c->graph, &c->graph->tensors.at[c->op->in[k]]);
}

void dh_cuda_run_qk_squares(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_qk_squares(stream, c->graph->dtype, heads_in(c, 0), c->in[0], c->out[0]);
}

void dh_cuda_run_qk_norm(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_qk_norm_fwd(stream, c->graph->dtype, heads_in(c, 1), c->in[1], c->in[0], c->in[2],
                        c->in[3], (float)c->graph->dims.norm_eps, c->out[0]);
}

void dh_cuda_run_qk_norm_dots(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_qk_norm_dots(stream, c->graph->dtype, heads_in(c, 1), c->in[0], c->in[1], c->in[2],
                         c->in[3], c->out[0]);
}

void dh_cuda_run_qk_norm_dgrad(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_qk_norm_dgrad(stream, c->graph->dtype, heads_in(c, 1), c->in[0], c->in[1], c->in[2],
                          c->in[3], c->in[4], c->in[5], (float)c->graph->dims.norm_eps, c->out[0]);
}

size_t dh_cuda_ws_qk_norm_wgrad(const dh_graph *g, const dh_op *op)
{
    return dh_cuda_qk_norm_wgrad_workspace(rows_of_heads(g, &g->tensors.at[op->in[1]]));
}

void dh_cuda_run_qk_norm_wgrad(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_qk_norm_wgrad(stream, c->graph->dtype, heads_in(c, 1), c->in[0], c->in[1], c->in[2],
                          (float)c->graph->dims.norm_eps, c->out[0], c->out[1], c->accumulate,
                          c->work);
}

/* ---- heads behind linear attention --------------------------------------------------------------
 */

/* Rows of norm's kernels are heads here, and weights are 1. */
size_t dh_cuda_ws_head_rms(const dh_graph *g, const dh_op *op)
{
    return (size_t)g->dims.head_dim * sizeof(float);
}

static const float *ones(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_offset(stream, c->graph->dims.head_dim, 1, NULL, c->work);
    return c->work;
}

static int64_t n_heads_in_all(const dh_call *c)
{
    return dh_tensor_elements(&c->graph->tensors.at[c->op->in[0]]) / c->graph->dims.head_dim;
}

void dh_cuda_run_head_rms(dh_cuda_stream stream, const dh_call *c)
{
    const dh_dims *d = &c->graph->dims;
    dh_cuda_norm_fwd(stream, DH_NORM_RMS, c->graph->dtype, n_heads_in_all(c), d->head_dim, c->in[0],
                     ones(stream, c), NULL, (float)d->norm_eps, c->out[0], c->out[1]);
}

void dh_cuda_run_head_rms_grad(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_norm_dgrad(stream, DH_NORM_RMS, c->graph->dtype, n_heads_in_all(c),
                       c->graph->dims.head_dim, c->in[0], c->in[1], ones(stream, c), c->in[2], NULL,
                       c->out[0]);
}
