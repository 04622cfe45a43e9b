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

/* Shares one after another, nearest to the sequence's beginning first; back: to its end. */
void dh_cuda_run_linear_before(dh_cuda_stream stream, const dh_call *c)
{
    const dh_dims *d = &c->graph->dims;
    const int64_t n = dh_tensor_elements(&c->graph->tensors.at[c->op->out[0]]);
    const int64_t first = c->op->back ? d->cp - 1 : 0, step = c->op->back ? -1 : 1;
    const float *all = c->in[0];
    float *m = c->out[0];
    if (d->cp_rank == first) dh_cuda_zero(stream, (size_t)n * sizeof *m, m);
    for (int64_t r = first; r != d->cp_rank; r += step) {
        if (r == first)
            dh_cuda_copy(stream, (size_t)n * sizeof *m, all + r * n, m);
        else
            dh_cuda_add(stream, DH_F32, n, m, all + r * n, m);
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

/* What came to the first rank, or back to the last, has gone round: it is nothing of theirs. */
static const float *state_before(const dh_call *c, int k)
{
    return c->graph->dims.cp_rank > 0 ? c->in[k] : NULL;
}

static const float *state_behind(const dh_call *c, int k)
{
    return c->graph->dims.cp_rank < c->graph->dims.cp - 1 ? c->in[k] : NULL;
}

void dh_cuda_run_linear_join(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_join(stream, &s, c->in[0], c->in[1], state_before(c, 2), c->out[0]);
}

void dh_cuda_run_linear_join_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_linear_shape s = shape(c);
    dh_cuda_linear_join_bwd(stream, &s, c->in[0], c->in[1], c->in[2], state_before(c, 3),
                            state_behind(c, 4), c->out[0]);
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
