/* Linear attention: its operators joined to kernels, as run/cpu/glue_linear.c does. */
#include "run/cpu/linear_shape.h"
#include "run/cuda/glue.h"

static dh_linear_shape shape(const dh_call *c)
{
    return dh_linear_shape_of(c->graph, c->op);
}

size_t dh_cuda_ws_linear_attn(const dh_graph *g, const dh_op *op)
{
    const dh_linear_shape s = dh_linear_shape_of(g, op);
    return dh_cuda_linear_workspace(&s);
}

/* ---- attention ------------------------------------------------------------------------------ */

void dh_cuda_run_linear_attn(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_fwd(stream, &s, c->in[0], NULL, NULL, c->out[0], c->work);
}

/* A text begins anew where its first row is at position 0. */
void dh_cuda_run_linear_cached(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_fwd(stream, &s, c->in[0], c->out[1], c->in[1], c->out[0], c->work);
}

void dh_cuda_run_linear_attn_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_bwd(stream, &s, c->in[0], c->in[1], c->out[0], c->work);
}

/* ---- states --------------------------------------------------------------------------------- */

void dh_cuda_run_linear_state(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_state(stream, &s, NULL, c->in[0], c->out[0]);
}

void dh_cuda_run_linear_state_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_state(stream, &s, c->in[0], c->in[1], c->out[0]);
}

/* Nearest to the sequence's beginning first; back: to its end. */
void dh_cuda_run_linear_before(dh_cuda_stream stream, const dh_call *c)
{
    const dh_state_blocks s = dh_state_blocks_of(c);
    const size_t n_bytes = (size_t)s.n * sizeof(float);
    const float *all = c->in[0];
    for (int64_t block = 0; block < s.blocks; block++) {
        float *m = (float *)c->out[0] + block * s.n;
        int64_t at = dh_state_before(c, s, block, 0);
        if (at < 0)
            dh_cuda_zero(stream, n_bytes, m);
        else
            dh_cuda_copy(stream, n_bytes, all + at, m);
        for (int64_t k = 1; at >= 0 && (at = dh_state_before(c, s, block, k)) >= 0; k++)
            dh_cuda_add(stream, DH_F32, s.n, m, all + at, m);
    }
}

void dh_cuda_run_linear_pass(dh_cuda_stream stream, const dh_call *c)
{
    const dh_dims *d = &c->graph->dims;
    const int64_t n = dh_tensor_elements(&c->graph->tensors.at[c->op->out[0]]);
    if (d->cp_rank == (c->op->back ? d->cp - 1 : 0))
        dh_cuda_copy(stream, (size_t)n * sizeof(float), c->in[0], c->out[0]);
    else
        dh_cuda_add(stream, DH_F32, n, c->in[1], c->in[0], c->out[0]);
}

void dh_cuda_run_linear_join(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_join(stream, &s, c->in[0], c->in[1], dh_state_before_own(c, 2), c->out[0]);
}

void dh_cuda_run_linear_join_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_join_bwd(stream, &s, c->in[0], c->in[1], c->in[2], dh_state_before_own(c, 3),
                            dh_state_behind_own(c, 4), c->out[0]);
}

/* ---- before it ------------------------------------------------------------------- */

static dh_heads heads_of(const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    return (dh_heads){.N = s.B * s.T, .H = s.H, .KV = s.KV, .D = s.D};
}

void dh_cuda_run_feature_map(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_feature_map_fwd(stream, (dh_feature_map)c->graph->dims.feature_map, c->graph->dtype,
                            heads_of(c), c->in[0], c->out[0]);
}

void dh_cuda_run_feature_map_grad(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_feature_map_bwd(stream, (dh_feature_map)c->graph->dims.feature_map, c->graph->dtype,
                            heads_of(c), c->in[0], c->in[1], c->out[0]);
}
