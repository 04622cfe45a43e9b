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

/* Shares one after another, nearest to the sequence's beginning first; back: to its end. */
dh_status dh_cpu_run_linear_before(dh_ctx *ctx, const dh_call *c)
{
    const dh_dims *d = &c->graph->dims;
    const int64_t n = dh_tensor_elements(&c->graph->tensors.at[c->op->out[0]]);
    const int64_t first = c->op->back ? d->cp - 1 : 0, step = c->op->back ? -1 : 1;
    const float *all = c->in[0];
    float *m = c->out[0];
    if (d->cp_rank == first) dh_k_zero((size_t)n * sizeof *m, m);
    for (int64_t r = first; r != d->cp_rank; r += step) {
        if (r == first)
            dh_k_copy((size_t)n * sizeof *m, all + r * n, m);
        else
            dh_k_add(DH_F32, n, m, all + r * n, m);
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

/* What came to the first rank, or back to the last, has gone round: it is nothing of theirs. */
static const float *state_before(const dh_call *c, int k)
{
    return c->graph->dims.cp_rank > 0 ? c->in[k] : NULL;
}

static const float *state_behind(const dh_call *c, int k)
{
    return c->graph->dims.cp_rank < c->graph->dims.cp - 1 ? c->in[k] : NULL;
}

dh_status dh_cpu_run_linear_join(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_join(&s, c->in[0], c->in[1], state_before(c, 2), c->out[0], c->work);
    return DH_OK;
}

dh_status dh_cpu_run_linear_join_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_k_linear_join_bwd(&s, c->in[0], c->in[1], c->in[2], state_before(c, 3), state_behind(c, 4),
                         c->out[0], c->work);
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
