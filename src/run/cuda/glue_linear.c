/* Linear attention: its operators joined to kernels, as run/cpu/glue_linear.c does. */
#include "run/cuda/glue.h"

static const dh_tensor *in_tensor(const dh_graph *g, const dh_op *op, int k)
{
    return &g->tensors.at[op->in[k]];
}

/* By the packed rows, input k. What is computed of the rank's own tokens alone is float32. */
static dh_linear_shape shape_of(const dh_graph *g, const dh_op *op, int k)
{
    const dh_attn_sizes z = dh_linear_sizes(g, in_tensor(g, op, k));
    const dh_dtype out = g->tensors.at[op->out[0]].dtype;
    return (dh_linear_shape){.dtype = g->dtype,
                             .o_dtype = out,
                             .g_dtype = out,
                             .B = z.batch,
                             .T = z.seq,
                             .H = z.n_heads,
                             .KV = z.n_kv_heads,
                             .D = g->dims.head_dim};
}

static int packed_input(const dh_op *op)
{
    switch (op->type) {
    case DH_OP_LINEAR_JOIN:
    case DH_OP_LINEAR_ATTN_GRAD:
    case DH_OP_LINEAR_STATE_GRAD:
    case DH_OP_FEATURE_MAP_GRAD:
        return 1;
    case DH_OP_LINEAR_JOIN_GRAD:
        return 2;
    default:
        return 0;
    }
}

static dh_linear_shape shape(const dh_call *c)
{
    return shape_of(c->graph, c->op, packed_input(c->op));
}

size_t dh_cuda_ws_linear_attn(const dh_graph *g, const dh_op *op)
{
    const dh_linear_shape s = shape_of(g, op, packed_input(op));
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
