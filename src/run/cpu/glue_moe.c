/* Mixture of experts: shapes out of the graph, pointers out of the call. */
#include "run/cpu/glue.h"

#include <math.h>
#include <stdlib.h>

#include "run/cpu/kernels.h"

static const dh_tensor *tensor_of(const dh_graph *g, uint32_t id)
{
    return &g->tensors.at[id];
}

static const dh_tensor *in_tensor(const dh_call *c, int k)
{
    return tensor_of(c->graph, c->op->in[k]);
}

static const dh_tensor *out_tensor(const dh_call *c, int k)
{
    return tensor_of(c->graph, c->op->out[k]);
}

/* ---- router -------------------------------------------------------------------------------- */

static dh_grouped_router groups_of(const dh_call *c, const dh_tensor *probs,
                                   const dh_tensor *weights)
{
    const dh_dims *d = &c->graph->dims;
    return (dh_grouped_router){.N = probs->shape[0],
                               .E = probs->shape[1],
                               .top_k = weights->shape[1],
                               .n_groups = d->n_groups,
                               .top_groups = d->top_groups,
                               .scale = d->router_scale,
                               .plain = d->topk_plain != 0};
}

static void run_softmax_router(const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0), *weights = out_tensor(c, 0);
    dh_k_router_fwd(logits->dtype, logits->shape[0], logits->shape[1], weights->shape[1], c->in[0],
                    c->out[1], c->out[2], c->out[0]);
    if (c->graph->dims.topk_plain)
        dh_k_router_plain(logits->shape[0], logits->shape[1], weights->shape[1], c->out[1],
                          c->out[2], c->out[0]);
}

dh_status dh_cpu_run_router(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0), *weights = out_tensor(c, 0);
    if (c->graph->dims.n_groups) {
        const dh_grouped_router r = groups_of(c, out_tensor(c, 1), weights);
        dh_k_router_groups_fwd(&r, logits->dtype, c->in[0], c->in[1], c->out[1], c->out[2],
                               c->out[0]);
    } else if (c->graph->dims.sparsemixer) {
        dh_k_router_mix_fwd(logits->dtype, logits->shape[0], logits->shape[1],
                            c->graph->dims.router_jitter, c->in[0], c->out[1], c->out[2],
                            c->out[0]);
    } else {
        run_softmax_router(c);
    }
    if (c->scalars->even_experts)
        dh_k_router_deal(logits->shape[0], logits->shape[1], weights->shape[1], c->out[2]);
    return DH_OK;
}

/* Counts, then sums of probabilities. */
dh_status dh_cpu_run_router_sums(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *probs = in_tensor(c, 0), *experts = in_tensor(c, 1);
    const int64_t E = probs->shape[1];
    double *sums = c->out[0];
    if (!(c->accumulate & 1)) dh_k_zero((size_t)(2 * E) * sizeof *sums, sums);
    (c->graph->dims.n_groups ? dh_k_router_groups_sums : dh_k_router_sums)(
        probs->shape[0], E, experts->shape[1], c->in[0], c->in[1], sums, sums + E);
    return DH_OK;
}

dh_status dh_cpu_run_router_aux(dh_ctx *ctx, const dh_call *c)
{
    const int64_t E = in_tensor(c, 0)->shape[1];
    const double *sums = c->in[0];
    double *aux = c->out[0];
    const double loss = dh_k_router_aux(E, c->op->rows, sums, sums + E);
    const bool adds = c->accumulate & 1;
    aux[0] = adds ? aux[0] + loss : loss;
    aux[1] = adds ? aux[1] + 1 : 1;
    return DH_OK;
}

dh_status dh_cpu_run_router_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *probs = in_tensor(c, 1), *weights = in_tensor(c, 3);
    const dh_dtype dtype = out_tensor(c, 0)->dtype;
    if (c->graph->dims.n_groups) {
        const dh_grouped_router r = groups_of(c, probs, weights);
        dh_k_router_groups_bwd(&r, dtype, c->in[1], c->in[2], c->in[0], c->out[0]);
        return DH_OK;
    }
    if (c->graph->dims.sparsemixer) {
        dh_k_router_mix_bwd(dtype, probs->shape[0], probs->shape[1], c->graph->dims.router_jitter,
                            c->in[5], c->in[1], c->in[2], c->in[0], c->in[4], c->op->rows,
                            c->graph->dims.aux_scale, c->out[0]);
        return DH_OK;
    }
    if (c->graph->dims.topk_plain) {
        dh_k_router_plain_bwd(dtype, probs->shape[0], probs->shape[1], weights->shape[1], c->in[1],
                              c->in[2], c->in[0], c->in[4], c->op->rows, c->graph->dims.aux_scale,
                              c->out[0]);
        return DH_OK;
    }
    dh_k_router_bwd(dtype, probs->shape[0], probs->shape[1], weights->shape[1], c->in[1], c->in[2],
                    c->in[3], c->in[0], c->in[4], c->op->rows, c->graph->dims.aux_scale, c->out[0]);
    return DH_OK;
}

/* Zeros where it is the first of the step. */
dh_status dh_cpu_run_stay(dh_ctx *ctx, const dh_call *c)
{
    if (!(c->accumulate & 1)) dh_k_zero((size_t)dh_tensor_bytes(out_tensor(c, 0)), c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_router_load(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *experts = in_tensor(c, 0), *load = out_tensor(c, 0);
    dh_k_router_load(dh_tensor_elements(experts), load->shape[0], c->in[0], c->out[0],
                     c->accumulate & 1);
    return DH_OK;
}

dh_status dh_cpu_run_balance(dh_ctx *ctx, const dh_call *c)
{
    const double *norm = c->in[1];
    if (isfinite(norm[0]))
        dh_k_balance(dh_tensor_elements(out_tensor(c, 0)), (float)c->scalars->router_bias_rate,
                     c->in[0], c->out[0]);
    return DH_OK;
}

/* ---- rows ---------------------------------------------------------------------------------- */

dh_status dh_cpu_run_moe_order(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *experts = in_tensor(c, 0);
    const int64_t E = out_tensor(c, 1)->shape[0] - 1;
    int64_t *offsets = c->out[1], *counts = c->out[2];
    dh_k_moe_order(experts->shape[0], E, experts->shape[1], c->in[0], c->op->capacity, offsets,
                   c->out[0]);
    for (int64_t e = 0; counts && e < E; e++) counts[e] = offsets[e + 1] - offsets[e];
    if (c->choices) dh_k_moe_count(dh_tensor_elements(experts), E, c->in[0], c->choices);
    return DH_OK;
}

dh_status dh_cpu_run_moe_nodes(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *experts = in_tensor(c, 0), *here = out_tensor(c, 3);
    const int64_t E = in_tensor(c, 2)->shape[0] - 1, n_nodes = out_tensor(c, 2)->shape[0];
    const int64_t *starts = c->out[1];
    int64_t *counts = c->out[2];
    dh_k_moe_nodes(experts->shape[0], E, experts->shape[1], n_nodes, c->in[0], c->in[1],
                   here->shape[0], c->out[0], c->out[1], c->out[3]);
    for (int64_t d = 0; d < n_nodes; d++) counts[d] = starts[d + 1] - starts[d];
    return DH_OK;
}

dh_status dh_cpu_run_moe_node_order(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *here = in_tensor(c, 0);
    dh_k_moe_node_order(here->shape[0], out_tensor(c, 1)->shape[0], here->shape[1],
                        in_tensor(c, 1)->shape[0] - 1, c->in[0], c->in[1], c->op->capacity,
                        c->op->room, c->out[1], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_check_room(dh_ctx *ctx, const dh_op *op, int64_t n_rows)
{
    if (n_rows <= op->room) return DH_OK;
    const double share = (double)n_rows / (double)op->rows;
    return dh_fail(ctx, DH_EINVAL,
                   "%lld rows come to this rank, which has room for %lld: raise "
                   "moe.capacity to %.2f, or give experts a fixed share by moe.mode capacity",
                   (long long)n_rows, (long long)op->room, ceil(share * 100) / 100);
}

/* The one place that learns how many rows come, before any does. */
dh_status dh_cpu_run_moe_offsets(dh_ctx *ctx, const dh_call *c)
{
    const int64_t n_runs = in_tensor(c, 0)->shape[0];
    const int64_t *offsets = c->out[0];
    dh_k_moe_offsets(n_runs, c->in[0], c->out[0]);
    return dh_cpu_check_room(ctx, c->op, offsets[n_runs]);
}

dh_status dh_cpu_run_moe_permute(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    dh_k_moe_permute(x->dtype, x->shape[0], x->shape[1], in_tensor(c, 1)->shape[1], c->in[0],
                     c->in[1], out_tensor(c, 0)->shape[0], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_moe_unpermute(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = out_tensor(c, 0);
    dh_k_moe_unpermute(x->dtype, x->shape[0], x->shape[1], in_tensor(c, 1)->shape[1], c->in[0],
                       c->in[1], c->in[2], c->out[0]);
    return DH_OK;
}

dh_status dh_cpu_run_moe_unpermute_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dx = in_tensor(c, 0);
    dh_k_moe_unpermute_bwd(dx->dtype, dx->shape[0], dx->shape[1], in_tensor(c, 2)->shape[1],
                           c->in[0], c->in[1], c->in[2], c->in[3], out_tensor(c, 0)->shape[0],
                           c->out[0], c->out[1]);
    return DH_OK;
}

/* ---- experts ------------------------------------------------------------------------------- */

static dh_grouped_desc grouped_shape(const dh_graph *g, const dh_op *op, bool accumulate)
{
    const bool wgrad = op->type == DH_OP_GROUPED_WGRAD;
    const dh_tensor *w = tensor_of(g, wgrad ? op->out[0] : op->in[1]);
    const dh_tensor *rows = tensor_of(g, op->in[0]);
    return (dh_grouped_desc){.kind = wgrad                             ? DH_GROUPED_WGRAD
                                     : op->type == DH_OP_GROUPED_DGRAD ? DH_GROUPED_DGRAD
                                                                       : DH_GROUPED_FORWARD,
                             .dtype = rows->dtype,
                             .E = w->shape[0],
                             .O = w->shape[1],
                             .I = w->shape[2],
                             .rows = rows->shape[0],
                             .accumulate = accumulate};
}

/* Creation reports failures later. */
size_t dh_cpu_ws_grouped(const dh_graph *g, const dh_op *op)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_grouped_desc s = grouped_shape(g, op, false);
    dh_grouped *grouped;
    if (dh_grouped_create(&ctx, &s, &grouped) != DH_OK) return 0;
    const size_t n_bytes = dh_grouped_workspace(grouped);
    dh_grouped_destroy(grouped);
    return dh_cpu_fp8_bytes(g, op) + n_bytes;
}

dh_status dh_cpu_prepare_grouped(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                 unsigned accumulate, void **state)
{
    const dh_grouped_desc s = grouped_shape(g, op, accumulate & 1);
    return dh_grouped_create(ctx, &s, (dh_grouped **)state);
}

void dh_cpu_release_grouped(void *state)
{
    dh_grouped_destroy(state);
}

dh_status dh_cpu_run_grouped(dh_ctx *ctx, const dh_call *c)
{
    const void *operands[2];
    char *work = c->work;
    dh_cpu_fp8_operands(c, operands, &work);
    return dh_grouped_run(ctx, c->kernel, in_tensor(c, 2)->shape[0] - 1, c->in[2], operands[0],
                          operands[1], c->out[0], work);
}
