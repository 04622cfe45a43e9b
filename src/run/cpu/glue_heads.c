/* Norms and rotations of heads of queries and keys, out of packed rows. */
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

#include <stdlib.h>

static dh_heads heads_of(const dh_graph *g, const dh_op *op)
{
    const dh_attn_sizes s = dh_op_attn_sizes(g, op);
    return (dh_heads){.N = g->tensors.at[op->in[0]].shape[0],
                      .H = s.n_heads,
                      .KV = s.n_kv_heads,
                      .D = g->dims.head_dim};
}

dh_status dh_cpu_run_head_norm(dh_ctx *ctx, const dh_call *c)
{
    const int64_t D = c->graph->dims.head_dim;
    float *work = c->work;
    const float *w_q = dh_cpu_norm_weights(c, c->in[1], D, &work);
    const float *w_k = dh_cpu_norm_weights(c, c->in[2], D, &work);
    dh_k_head_norm_fwd(c->graph->dtype, heads_of(c->graph, c->op), c->in[0], w_q, w_k,
                       (float)c->graph->dims.norm_eps, c->out[0], c->out[1]);
    return DH_OK;
}

dh_status dh_cpu_run_head_norm_dgrad(dh_ctx *ctx, const dh_call *c)
{
    const int64_t D = c->graph->dims.head_dim;
    float *work = c->work;
    const float *w_q = dh_cpu_norm_weights(c, c->in[2], D, &work);
    const float *w_k = dh_cpu_norm_weights(c, c->in[3], D, &work);
    dh_k_head_norm_dgrad(c->graph->dtype, heads_of(c->graph, c->op), c->in[0], c->in[1], w_q, w_k,
                         c->in[4], c->out[0]);
    return DH_OK;
}

size_t dh_cpu_ws_head_norm_wgrad(const dh_graph *g, const dh_op *op)
{
    return dh_k_head_norm_wgrad_workspace(heads_of(g, op));
}

dh_status dh_cpu_run_head_norm_wgrad(dh_ctx *ctx, const dh_call *c)
{
    dh_k_head_norm_wgrad(c->graph->dtype, heads_of(c->graph, c->op), c->in[0], c->in[1], c->in[2],
                         c->out[0], c->out[1], c->accumulate, c->work);
    return DH_OK;
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

dh_status dh_cpu_run_qk_squares(dh_ctx *ctx, const dh_call *c)
{
    dh_k_qk_squares(c->graph->dtype, heads_in(c, 0), c->in[0], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_qk_norm(dh_ctx *ctx, const dh_call *c)
{
    dh_k_qk_norm_fwd(c->graph->dtype, heads_in(c, 1), c->in[1], c->in[0], c->in[2], c->in[3],
                     (float)c->graph->dims.norm_eps, c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_qk_norm_dots(dh_ctx *ctx, const dh_call *c)
{
    dh_k_qk_norm_dots(c->graph->dtype, heads_in(c, 1), c->in[0], c->in[1], c->in[2], c->in[3],
                      c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_qk_norm_dgrad(dh_ctx *ctx, const dh_call *c)
{
    dh_k_qk_norm_dgrad(c->graph->dtype, heads_in(c, 1), c->in[0], c->in[1], c->in[2], c->in[3],
                       c->in[4], c->in[5], (float)c->graph->dims.norm_eps, c->out[0]);
    return DH_OK;
}

size_t dh_cpu_ws_qk_norm_wgrad(const dh_graph *g, const dh_op *op)
{
    return dh_k_qk_norm_wgrad_workspace(rows_of_heads(g, &g->tensors.at[op->in[1]]));
}

dh_status dh_cpu_run_qk_norm_wgrad(dh_ctx *ctx, const dh_call *c)
{
    dh_k_qk_norm_wgrad(c->graph->dtype, heads_in(c, 1), c->in[0], c->in[1], c->in[2],
                       (float)c->graph->dims.norm_eps, c->out[0], c->out[1], c->accumulate,
                       c->work);
    return DH_OK;
}

/* ---- rotations --------------------------------------------------------------------------- */

/* Angles for every position the program can see; made once, read by all layers. Where some layers
 * have others, two tables behind each other. */
dh_status dh_cpu_prepare_rope(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                              void **state)
{
    const dh_dims *d = &g->dims;
    const int64_t n = d->max_seq * d->head_dim;
    float *table = malloc((size_t)(d->nth ? 2 * n : n) * sizeof *table);
    if (!table) return dh_no_memory(ctx);
    if (d->rope.scaling == DH_ROPE_SCALING_LONGROPE)
        dh_k_longrope_table(&d->rope, &d->longrope, d->max_seq, d->head_dim, table);
    else
        dh_k_rope_table(&d->rope, d->max_seq, d->head_dim, table);
    if (d->nth) dh_k_rope_table(&d->rope_nth, d->max_seq, d->head_dim, table + n);
    *state = table;
    return DH_OK;
}

static void rope(const dh_call *c, bool inverse)
{
    const dh_dims *d = &c->graph->dims;
    const dh_tensor *qkv = &c->graph->tensors.at[c->op->in[0]];
    const dh_attn_sizes s = dh_op_attn_sizes(c->graph, c->op);
    const float *table = c->kernel;
    if (d->nth && (c->layer + 1) % d->nth == 0) table += d->max_seq * d->head_dim;
    dh_k_rope(qkv->dtype, qkv->shape[0], s.seq, s.n_heads, s.n_kv_heads, d->head_dim, c->in[0],
              table, c->in[1], inverse, c->out[0]);
}

dh_status dh_cpu_run_rope(dh_ctx *ctx, const dh_call *c)
{
    rope(c, false);
    return DH_OK;
}

dh_status dh_cpu_run_rope_grad(dh_ctx *ctx, const dh_call *c)
{
    rope(c, true);
    return DH_OK;
}
