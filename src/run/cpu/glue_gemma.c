/* Norms by 1 + weight, scaled embeddings, capped logits. */
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* ---- norms by 1 + weight --------------------------------------------------------------------- */

/* The sum is made anew each time: a vector, beside rows of as many elements. */
const float *dh_cpu_norm_weights(const dh_call *c, const float *w, int64_t n, float **work)
{
    if (!c->graph->dims.norm_plus_one) return w;
    float *sum = *work;
    *work += n;
    for (int64_t i = 0; i < n; i++) sum[i] = 1.0f + w[i];
    return sum;
}

size_t dh_cpu_ws_norm(const dh_graph *g, const dh_op *op)
{
    return g->dims.norm_plus_one ? (size_t)g->dims.width * sizeof(float) : 0;
}

size_t dh_cpu_ws_head_norm(const dh_graph *g, const dh_op *op)
{
    return g->dims.norm_plus_one ? (size_t)(2 * g->dims.head_dim) * sizeof(float) : 0;
}

/* ---- embeddings ------------------------------------------------------------------------------ */

/* The factor has the rows' type, as Transformers' has. */
dh_status dh_cpu_run_scale(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = &c->graph->tensors.at[c->op->in[0]];
    float factor = (float)c->graph->dims.embed_scale;
    if (x->dtype == DH_BF16) factor = dh_bf16_to_f32(dh_f32_to_bf16(factor));
    dh_k_scale(x->dtype, dh_tensor_elements(x), factor, c->in[0], c->out[0]);
    return DH_OK;
}

/* ---- logits ---------------------------------------------------------------------------------- */

dh_status dh_cpu_run_softcap(dh_ctx *ctx, const dh_call *c)
{
    dh_k_softcap_fwd(dh_tensor_elements(&c->graph->tensors.at[c->op->in[0]]),
                     (float)c->graph->dims.logit_softcap, c->in[0], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_softcap_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dy = &c->graph->tensors.at[c->op->in[0]];
    dh_k_softcap_bwd(dy->dtype, dh_tensor_elements(dy), (float)c->graph->dims.logit_softcap,
                     c->in[0], c->in[1], c->out[0]);
    return DH_OK;
}
