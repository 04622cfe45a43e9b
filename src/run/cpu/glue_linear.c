/* Linear attention: its operators joined to kernels. */
#include <string.h>

#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"
#include "run/cpu/linear_shape.h"

static dh_linear_shape shape(const dh_call *c)
{
    return dh_linear_shape_of(c->graph, c->op);
}

size_t dh_cpu_ws_linear_attn(const dh_graph *g, const dh_op *op)
{
    const dh_linear_shape s = dh_linear_shape_of(g, op);
    return dh_k_linear_workspace(&s);
}

/* ---- attention ------------------------------------------------------------------------------ */

dh_status dh_cpu_run_linear_attn(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_fwd(&s, c->in[0], NULL, c->out[0], c->work);
    return DH_OK;
}

/* A text begins anew where its first row is at position 0. */
dh_status dh_cpu_run_linear_cached(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    const int32_t *pos = c->in[1];
    float *state = c->out[1];
    if (pos[0] == 0) memset(state, 0, (size_t)(s.KV * s.D * s.D) * sizeof *state);
    dh_k_linear_fwd(&s, c->in[0], state, c->out[0], c->work);
    return DH_OK;
}

dh_status dh_cpu_run_linear_attn_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_bwd(&s, c->in[0], c->in[1], c->out[0], c->work);
    return DH_OK;
}

/* ---- states --------------------------------------------------------------------------------- */

dh_status dh_cpu_run_linear_state(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_state(&s, c->in[0], c->out[0], c->work);
    return DH_OK;
}

dh_status dh_cpu_run_linear_state_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_state_grad(&s, c->in[0], c->in[1], c->out[0], c->work);
    return DH_OK;
}

/* Nearest to the sequence's beginning first; back: to its end. */
dh_status dh_cpu_run_linear_before(dh_ctx *ctx, const dh_call *c)
{
    const dh_state_blocks s = dh_state_blocks_of(c);
    const size_t n_bytes = (size_t)s.n * sizeof(float);
    const float *all = c->in[0];
    for (int64_t block = 0; block < s.blocks; block++) {
        float *m = (float *)c->out[0] + block * s.n;
        int64_t at = dh_state_before(c, s, block, 0);
        if (at < 0)
            dh_k_zero(n_bytes, m);
        else
            dh_k_copy(n_bytes, all + at, m);
        for (int64_t k = 1; at >= 0 && (at = dh_state_before(c, s, block, k)) >= 0; k++)
            dh_k_add(DH_F32, s.n, m, all + at, m);
    }
    return DH_OK;
}

dh_status dh_cpu_run_linear_pass(dh_ctx *ctx, const dh_call *c)
{
    const dh_dims *d = &c->graph->dims;
    const int64_t n = dh_tensor_elements(&c->graph->tensors.at[c->op->out[0]]);
    if (d->cp_rank == (c->op->back ? d->cp - 1 : 0))
        dh_k_copy((size_t)n * sizeof(float), c->in[0], c->out[0]);
    else
        dh_k_add(DH_F32, n, c->in[1], c->in[0], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_linear_join(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_join(&s, c->in[0], c->in[1], dh_state_before_own(c, 2), c->out[0], c->work);
    return DH_OK;
}

dh_status dh_cpu_run_linear_join_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_join_bwd(&s, c->in[0], c->in[1], c->in[2], dh_state_before_own(c, 3),
                         dh_state_behind_own(c, 4), c->out[0], c->work);
    return DH_OK;
}

/* ---- before and behind it ------------------------------------------------------------------- */

static dh_heads heads_of(const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    return (dh_heads){.N = s.B * s.T, .H = s.H, .KV = s.KV, .D = s.D};
}

dh_status dh_cpu_run_feature_map(dh_ctx *ctx, const dh_call *c)
{
    dh_k_feature_map_fwd((dh_feature_map)c->graph->dims.feature_map, c->graph->dtype, heads_of(c),
                         c->in[0], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_feature_map_grad(dh_ctx *ctx, const dh_call *c)
{
    dh_k_feature_map_bwd((dh_feature_map)c->graph->dims.feature_map, c->graph->dtype, heads_of(c),
                         c->in[0], c->in[1], c->out[0]);
    return DH_OK;
}

/* Rows of norm's kernels are heads here, and weights are 1. */
size_t dh_cpu_ws_head_rms(const dh_graph *g, const dh_op *op)
{
    return (size_t)g->dims.head_dim * sizeof(float);
}

static const float *ones(const dh_call *c)
{
    float *w = c->work;
    for (int64_t i = 0; i < c->graph->dims.head_dim; i++) w[i] = 1;
    return w;
}

static int64_t n_heads_in_all(const dh_call *c)
{
    return dh_tensor_elements(&c->graph->tensors.at[c->op->in[0]]) / c->graph->dims.head_dim;
}

dh_status dh_cpu_run_head_rms(dh_ctx *ctx, const dh_call *c)
{
    const dh_dims *d = &c->graph->dims;
    dh_k_norm_fwd(DH_NORM_RMS, c->graph->dtype, n_heads_in_all(c), d->head_dim, c->in[0], ones(c),
                  NULL, (float)d->norm_eps, c->out[0], c->out[1]);
    return DH_OK;
}

dh_status dh_cpu_run_head_rms_grad(dh_ctx *ctx, const dh_call *c)
{
    dh_k_norm_dgrad(DH_NORM_RMS, c->graph->dtype, n_heads_in_all(c), c->graph->dims.head_dim,
                    c->in[0], c->in[1], ones(c), c->in[2], NULL, c->out[0]);
    return DH_OK;
}
