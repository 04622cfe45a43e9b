/* Norms of heads of queries and keys, out of packed rows. */
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

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
    dh_k_head_norm_fwd(c->graph->dtype, heads_of(c->graph, c->op), c->in[0], c->in[1], c->in[2],
                       (float)c->graph->dims.norm_eps, c->out[0], c->out[1]);
    return DH_OK;
}

dh_status dh_cpu_run_head_norm_dgrad(dh_ctx *ctx, const dh_call *c)
{
    dh_k_head_norm_dgrad(c->graph->dtype, heads_of(c->graph, c->op), c->in[0], c->in[1], c->in[2],
                         c->in[3], c->in[4], c->out[0]);
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
