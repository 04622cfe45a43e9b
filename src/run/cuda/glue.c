/* From graph operators to kernels for CUDA: shapes out of the graph, pointers out of the call, as
 * run/cpu/glue.c does. Nothing that lies on the device is looked at here. Attention is in
 * glue_attn.c, norms of heads in glue_heads.c, linear and latent attention in files of those names,
 * products of dense matrices in products.c, those of experts in glue_grouped.c. */
#include "run/cuda/glue.h"

#include "run/cpu/glue.h"

static const dh_tensor *in_of(const dh_graph *g, const dh_op *op, int k)
{
    return &g->tensors.at[op->in[k]];
}

static const dh_tensor *in_tensor(const dh_call *c, int k)
{
    return in_of(c->graph, c->op, k);
}

static const dh_tensor *out_tensor(const dh_call *c, int k)
{
    return &c->graph->tensors.at[c->op->out[k]];
}

static bool adds(const dh_call *c, int k)
{
    return c->accumulate >> k & 1;
}

static dh_cuda_dropout dropout_of(const dh_call *c, int pos, int sample)
{
    return (dh_cuda_dropout){.prob = (float)c->graph->dims.dropout,
                             .site = (uint32_t)(c->layer * DH_N_SITE + DH_MAX(c->op->site, 0)),
                             .scalars = c->scalars,
                             .row_sample = c->in[sample],
                             .row_pos = c->in[pos]};
}

/* ---- embedding ------------------------------------------------------------------------------ */

static void run_embed(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = out_tensor(c, 0), *wte = in_tensor(c, 3);
    const int64_t v0 = c->op->vocab0;
    const dh_cuda_dropout drop = dropout_of(c, 1, 2);
    dh_cuda_embed_fwd(stream, x->dtype, x->shape[0], x->shape[1], c->in[0], c->in[1], c->in[3], v0,
                      v0 + wte->shape[0], c->in[4], &drop, c->out[0]);
}

static size_t ws_embed_grad(const dh_graph *g, const dh_op *op)
{
    return dh_cuda_embed_bwd_workspace(in_of(g, op, 0)->shape[0]);
}

static void run_embed_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dx = in_tensor(c, 0), *dwte = out_tensor(c, 0);
    const int64_t v0 = c->op->vocab0, n_pos = c->out[1] ? out_tensor(c, 1)->shape[0] : 0;
    const dh_cuda_dropout drop = dropout_of(c, 2, 3);
    /* A tied head has written dwte already; then dwpe alone starts here. */
    if (c->out[1] && adds(c, 0) && !adds(c, 1))
        dh_cuda_zero(stream, (size_t)dh_tensor_bytes(out_tensor(c, 1)), c->out[1]);
    dh_cuda_embed_bwd(stream, dx->dtype, dx->shape[0], dx->shape[1], c->in[0], c->in[1], c->in[2],
                      &drop, v0, v0 + dwte->shape[0], n_pos, c->out[0], c->out[1], adds(c, 0),
                      c->work);
}

/* ---- norms ------------------------------------------------------------------------------------
 */

static void run_norm(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    float *work = c->work;
    const float *w = dh_cuda_norm_weights(stream, c, c->in[1], x->shape[1], &work);
    dh_cuda_norm_fwd(stream, c->graph->dims.norm, x->dtype, x->shape[0], x->shape[1], c->in[0], w,
                     c->in[2], (float)c->graph->dims.norm_eps, c->out[0], c->out[1]);
}

static void run_norm_dgrad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 1);
    float *work = c->work;
    const float *w = dh_cuda_norm_weights(stream, c, c->in[2], x->shape[1], &work);
    dh_cuda_norm_dgrad(stream, c->graph->dims.norm, x->dtype, x->shape[0], x->shape[1], c->in[0],
                       c->in[1], w, c->in[3], c->in[4], c->out[0]);
}

/* Scratch of a sum over the rows of the first operand. */
static size_t ws_columns(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *dy = in_of(g, op, 0);
    return dh_cuda_columns_workspace(dy->shape[0], dy->shape[1]);
}

static void run_norm_wgrad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 1);
    dh_cuda_norm_wgrad(stream, x->dtype, x->shape[0], x->shape[1], c->in[0], c->in[1], c->in[2],
                       c->out[0], c->out[1], adds(c, 0), c->work);
}

static void run_bias_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dy = in_tensor(c, 0);
    dh_cuda_bias_grad(stream, dy->dtype, dy->shape[0], dy->shape[1], c->in[0], c->out[0],
                      adds(c, 0), c->work);
}

/* ---- pointwise, columns ------------------------------------------------------------------------
 */

static void run_residual(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    const dh_cuda_dropout drop = dropout_of(c, 3, 4);
    dh_cuda_residual(stream, x->dtype, x->shape[0], x->shape[1], c->in[0], c->in[1], c->in[2],
                     &drop, c->out[0]);
}

static void run_dropout_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dy = in_tensor(c, 0);
    const dh_cuda_dropout drop = dropout_of(c, 1, 2);
    dh_cuda_dropout_grad(stream, dy->dtype, dy->shape[0], dy->shape[1], c->in[0], &drop, c->out[0]);
}

static void run_act(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *g = out_tensor(c, 0);
    if (c->graph->dims.act == DH_ACT_GEGLU)
        dh_cuda_geglu_fwd(stream, g->dtype, g->shape[0], g->shape[1], c->in[0], c->out[0]);
    else if (c->graph->dims.act == DH_ACT_SWIGLU)
        dh_cuda_swiglu_fwd(stream, g->dtype, g->shape[0], g->shape[1], c->in[0], c->out[0]);
    else
        dh_cuda_gelu_fwd(stream, g->dtype, dh_tensor_elements(g), c->in[0], c->out[0]);
}

static void run_act_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dg = in_tensor(c, 0);
    if (c->graph->dims.act == DH_ACT_GEGLU)
        dh_cuda_geglu_bwd(stream, dg->dtype, dg->shape[0], dg->shape[1], c->in[0], c->in[1],
                          c->out[0]);
    else if (c->graph->dims.act == DH_ACT_SWIGLU)
        dh_cuda_swiglu_bwd(stream, dg->dtype, dg->shape[0], dg->shape[1], c->in[0], c->in[1],
                           c->out[0]);
    else
        dh_cuda_gelu_bwd(stream, dg->dtype, dh_tensor_elements(dg), c->in[0], c->in[1], c->out[0]);
}

static void run_add(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *y = out_tensor(c, 0);
    dh_cuda_add(stream, y->dtype, dh_tensor_elements(y), c->in[0], c->in[1], c->out[0]);
}

static void run_sum_shares(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *y = out_tensor(c, 0);
    const int64_t n = dh_tensor_elements(y);
    const void *x[3] = {0};
    int64_t n_shares[3] = {0};
    for (int k = 0; k < 3; k++) {
        if (c->op->in[k] == DH_NONE) continue;
        x[k] = c->in[k];
        n_shares[k] = dh_tensor_elements(in_tensor(c, k)) / n;
    }
    dh_cuda_sum_shares(stream, y->dtype, n, x, n_shares, c->out[0]);
}

static void run_copy(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_copy(stream, (size_t)dh_tensor_bytes(out_tensor(c, 0)), c->in[0], c->out[0]);
}

static void run_clear(dh_cuda_stream stream, const dh_call *c)
{
    if (c->out[0]) dh_cuda_zero(stream, (size_t)dh_tensor_bytes(out_tensor(c, 0)), c->out[0]);
}

/* A point in the stream's order, and nothing to compute. */
static void run_release(dh_cuda_stream stream, const dh_call *c)
{
    (void)stream;
    (void)c;
}

static void run_join_columns(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *y = out_tensor(c, 0);
    char *at = c->out[0];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (c->op->in[k] == DH_NONE) continue;
        const int64_t n = in_tensor(c, k)->shape[1];
        dh_cuda_cast_rows(stream, y->shape[0], n, y->dtype, c->in[k], n, y->dtype, at, y->shape[1]);
        at += (size_t)n * dh_dtype_bytes(y->dtype);
    }
}

static void run_split_columns(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    const char *at = c->in[0];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (c->op->out[k] == DH_NONE) continue;
        const int64_t n = out_tensor(c, k)->shape[1];
        dh_cuda_cast_rows(stream, x->shape[0], n, x->dtype, at, x->shape[1], x->dtype, c->out[k],
                          n);
        at += (size_t)n * dh_dtype_bytes(x->dtype);
    }
}

/* ---- embeddings and logits of Gemma, adapters ---------------------------------------------------
 */

/* The factor has the rows' type, as Transformers' has. */
static void run_scale(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    float factor = (float)c->graph->dims.embed_scale;
    if (x->dtype == DH_BF16) factor = dh_bf16_to_f32(dh_f32_to_bf16(factor));
    dh_cuda_scale(stream, x->dtype, dh_tensor_elements(x), factor, c->in[0], c->out[0]);
}

static void run_softcap(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_softcap_fwd(stream, dh_tensor_elements(in_tensor(c, 0)),
                        (float)c->graph->dims.logit_softcap, c->in[0], c->out[0]);
}

static void run_softcap_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dy = in_tensor(c, 0);
    dh_cuda_softcap_bwd(stream, dy->dtype, dh_tensor_elements(dy),
                        (float)c->graph->dims.logit_softcap, c->in[0], c->in[1], c->out[0]);
}

static void run_adapt(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *part = in_tensor(c, 0), *y = out_tensor(c, 0);
    char *to = (char *)c->out[0] + (size_t)c->op->to * dh_dtype_bytes(y->dtype);
    if (c->in[1] != c->out[0])
        dh_cuda_copy(stream, (size_t)dh_tensor_bytes(y), c->in[1], c->out[0]);
    dh_cuda_add_scaled_rows(stream, y->dtype, part->shape[0], part->shape[1],
                            (float)c->graph->dims.lora_scale, c->in[0], to, y->shape[1]);
}

static void run_adapt_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dy = in_tensor(c, 0), *dpart = out_tensor(c, 0);
    const char *from = (const char *)c->in[0] + (size_t)c->op->from * dh_dtype_bytes(dy->dtype);
    dh_cuda_scale_rows(stream, dy->dtype, dpart->shape[0], dpart->shape[1],
                       (float)c->graph->dims.lora_scale, from, dy->shape[1], c->out[0]);
}

/* ---- columns that move --------------------------------------------------------------------------
 */

static void run_take_columns(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    const int64_t row = dh_tensor_elements(x) / x->shape[0], n = c->op->columns;
    const char *at = (const char *)c->in[0] + (size_t)c->op->from * dh_dtype_bytes(x->dtype);
    dh_cuda_cast_rows(stream, x->shape[0], n, x->dtype, at, row, x->dtype, c->out[0], n);
}

static void run_put_columns(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0), *y = out_tensor(c, 0);
    const int64_t n_rows = y->shape[0], n = c->op->columns;
    const int64_t from_row = dh_tensor_elements(x) / n_rows, row = dh_tensor_elements(y) / n_rows;
    const size_t item = dh_dtype_bytes(x->dtype);
    const char *from = (const char *)c->in[0] + (size_t)c->op->from * item;
    char *to = (char *)c->out[0] + (size_t)c->op->to * item;
    if (c->op->adds)
        dh_cuda_add_rows(stream, n_rows, n, (const float *)(const void *)from, from_row,
                         (float *)(void *)to, row);
    else
        dh_cuda_cast_rows(stream, n_rows, n, x->dtype, from, from_row, x->dtype, to, row);
}

/* ---- loss ---------------------------------------------------------------------------------- */

static void run_loss_stats(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0);
    const int64_t v0 = c->op->vocab0;
    dh_cuda_ce_stats(stream, logits->dtype, logits->shape[0], v0, v0 + logits->shape[1], c->in[0],
                     c->in[1], c->out[0]);
}

static void run_loss_merge(dh_cuda_stream stream, const dh_call *c)
{
    const int64_t n = out_tensor(c, 0)->shape[0];
    dh_cuda_ce_merge(stream, in_tensor(c, 0)->shape[0] / n, n, c->in[0], c->out[0]);
}

static size_t ws_loss(const dh_graph *g, const dh_op *op)
{
    return (size_t)in_of(g, op, 0)->shape[0] * sizeof(float);
}

static void run_loss(dh_cuda_stream stream, const dh_call *c)
{
    const int64_t n = in_tensor(c, 0)->shape[0];
    dh_cuda_ce_loss(stream, n, c->in[0], c->in[1], c->work);
    dh_cuda_ce_total(stream, n, c->work, c->in[1], adds(c, 0), c->out[0]);
}

static void run_loss_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0);
    const int64_t v0 = c->op->vocab0;
    dh_cuda_ce_grad(stream, logits->dtype, out_tensor(c, 0)->dtype, c->scalars, logits->shape[0],
                    v0, v0 + logits->shape[1], c->in[0], c->in[1], c->in[2],
                    (float)c->graph->dims.loss_scale, c->out[0]);
}

/* ---- mixture of experts -------------------------------------------------------------------- */

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

static void run_softmax_router(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0);
    const int64_t N = logits->shape[0], E = logits->shape[1], top_k = out_tensor(c, 0)->shape[1];
    dh_cuda_router_fwd(stream, logits->dtype, N, E, top_k, c->in[0], c->out[1], c->out[2],
                       c->out[0]);
    if (c->graph->dims.topk_plain)
        dh_cuda_router_plain(stream, N, E, top_k, c->out[1], c->out[2], c->out[0]);
}

static void run_router(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0), *weights = out_tensor(c, 0);
    const int64_t N = logits->shape[0], E = logits->shape[1], top_k = weights->shape[1];
    if (c->graph->dims.n_groups) {
        const dh_grouped_router r = groups_of(c, out_tensor(c, 1), weights);
        dh_cuda_router_groups_fwd(stream, &r, logits->dtype, c->in[0], c->in[1], c->out[1],
                                  c->out[2], c->out[0]);
    } else if (c->graph->dims.sparsemixer) {
        dh_cuda_router_mix_fwd(stream, logits->dtype, N, E, c->graph->dims.router_jitter, c->in[0],
                               c->out[1], c->out[2], c->out[0]);
    } else {
        run_softmax_router(stream, c);
    }
    dh_cuda_router_deal(stream, N, E, top_k, c->scalars, c->out[2]);
}

/* Counts, then sums of probabilities. */
static void run_router_sums(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *probs = in_tensor(c, 0);
    const int64_t E = probs->shape[1];
    double *sums = c->out[0];
    if (!adds(c, 0)) dh_cuda_zero(stream, (size_t)(2 * E) * sizeof *sums, sums);
    (c->graph->dims.n_groups ? dh_cuda_router_groups_sums : dh_cuda_router_sums)(
        stream, probs->shape[0], E, in_tensor(c, 1)->shape[1], c->in[0], c->in[1], sums, sums + E);
}

static void run_router_aux(dh_cuda_stream stream, const dh_call *c)
{
    const int64_t E = in_tensor(c, 0)->shape[1];
    const double *sums = c->in[0];
    dh_cuda_router_aux(stream, E, c->op->rows, sums, sums + E, adds(c, 0), c->out[0]);
}

static void run_router_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *probs = in_tensor(c, 1), *weights = in_tensor(c, 3);
    const dh_dims *d = &c->graph->dims;
    if (d->n_groups) {
        const dh_grouped_router r = groups_of(c, probs, weights);
        dh_cuda_router_groups_bwd(stream, &r, out_tensor(c, 0)->dtype, c->in[1], c->in[2], c->in[0],
                                  c->out[0]);
        return;
    }
    if (d->sparsemixer) {
        dh_cuda_router_mix_bwd(stream, out_tensor(c, 0)->dtype, probs->shape[0], probs->shape[1],
                               d->router_jitter, c->in[5], c->in[1], c->in[2], c->in[0], c->in[4],
                               c->op->rows, d->aux_scale, c->out[0]);
        return;
    }
    dh_cuda_router_bwd(stream, out_tensor(c, 0)->dtype, probs->shape[0], probs->shape[1],
                       weights->shape[1], c->in[1], c->in[2], d->topk_plain ? NULL : c->in[3],
                       c->in[0], c->in[4], c->op->rows, d->aux_scale, c->out[0]);
}

/* Zeros where it is the first of the step. */
static void run_stay(dh_cuda_stream stream, const dh_call *c)
{
    if (!adds(c, 0)) dh_cuda_zero(stream, (size_t)dh_tensor_bytes(out_tensor(c, 0)), c->out[0]);
}

static void run_router_load(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_router_load(stream, dh_tensor_elements(in_tensor(c, 0)), out_tensor(c, 0)->shape[0],
                        c->in[0], c->out[0], adds(c, 0));
}

static void run_balance(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_balance(stream, c->scalars, c->in[1], dh_tensor_elements(out_tensor(c, 0)), c->in[0],
                    c->out[0]);
}

/* Rows of each expert are the choices that have a slot: without capacity all, with it that many,
 * as offsets say. */
static void run_moe_order(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *experts = in_tensor(c, 0);
    const int64_t E = out_tensor(c, 1)->shape[0] - 1, top_k = experts->shape[1];
    dh_cuda_moe_order(stream, experts->shape[0], E, top_k, c->in[0], c->op->capacity, c->out[1],
                      c->out[0]);
    if (c->out[2]) dh_cuda_moe_lengths(stream, E, c->out[1], c->out[2]);
    if (c->choices) dh_cuda_moe_count(stream, dh_tensor_elements(experts), E, c->in[0], c->choices);
}

static void run_moe_offsets(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_moe_offsets(stream, in_tensor(c, 0)->shape[0], c->in[0], c->out[0]);
}

/* How many rows come: more than there is room for nobody may go on with. */
static const int64_t *rows_that_come(const dh_call *c)
{
    return (const int64_t *)c->out[0] + in_tensor(c, 0)->shape[0];
}

static void run_moe_nodes(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *experts = in_tensor(c, 0);
    const int64_t E = in_tensor(c, 2)->shape[0] - 1, n_nodes = out_tensor(c, 2)->shape[0];
    dh_cuda_moe_nodes(stream, experts->shape[0], E, experts->shape[1], n_nodes, c->in[0], c->in[1],
                      out_tensor(c, 3)->shape[0], c->out[0], c->out[1], c->out[3]);
    dh_cuda_moe_lengths(stream, n_nodes, c->out[1], c->out[2]);
}

static void run_moe_node_order(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *here = in_tensor(c, 0);
    dh_cuda_moe_node_order(stream, here->shape[0], out_tensor(c, 1)->shape[0], here->shape[1],
                           in_tensor(c, 1)->shape[0] - 1, c->in[0], c->in[1], c->op->capacity,
                           c->op->room, c->out[1], c->out[0]);
}

static void run_moe_permute(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    dh_cuda_moe_permute(stream, x->dtype, x->shape[0], x->shape[1], in_tensor(c, 1)->shape[1],
                        c->in[0], c->in[1], out_tensor(c, 0)->shape[0], c->out[0]);
}

static void run_moe_unpermute(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *x = out_tensor(c, 0);
    dh_cuda_moe_unpermute(stream, x->dtype, x->shape[0], x->shape[1], in_tensor(c, 1)->shape[1],
                          c->in[0], c->in[1], c->in[2], c->out[0]);
}

static void run_moe_unpermute_grad(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *dx = in_tensor(c, 0);
    dh_cuda_moe_unpermute_bwd(stream, dx->dtype, dx->shape[0], dx->shape[1],
                              in_tensor(c, 2)->shape[1], c->in[0], c->in[1], c->in[2], c->in[3],
                              out_tensor(c, 0)->shape[0], c->out[0], c->out[1]);
}

/* ---- optimizer ----------------------------------------------------------------------------- */

static size_t ws_sqsum(const dh_graph *g, const dh_op *op)
{
    return dh_cuda_sqsum_workspace(dh_tensor_elements(in_of(g, op, 0)));
}

static void run_sqsum(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_sqsum(stream, dh_tensor_elements(in_tensor(c, 0)), c->in[0], c->out[0], c->work);
}

static void run_sum(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_exact_sum(stream, c->in[0] ? in_tensor(c, 0)->shape[0] : 0, c->in[0], c->out[0]);
}

static void run_clip(dh_cuda_stream stream, const dh_call *c)
{
    dh_cuda_clip(stream, c->in[0], c->scalars, c->out[0]);
}

static void run_adamw(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *p = out_tensor(c, 0);
    dh_cuda_adamw(stream, c->scalars, c->in[1], p->ndim == 2, dh_tensor_elements(p), c->in[0],
                  c->out[0], c->out[1], c->out[2], c->out[3], c->out[4]);
}

static void run_amend(dh_cuda_stream stream, const dh_call *c)
{
    const dh_tensor *p = out_tensor(c, 0);
    dh_cuda_amend(stream, c->scalars, c->in[1], c->in[2], p->ndim == 2, dh_tensor_elements(p),
                  c->in[0], c->in[3], c->out[0], c->out[1], c->out[2], c->out[3]);
}

/* ---- table --------------------------------------------------------------------------------- */

static const dh_cuda_kernel kernels[DH_N_OP_TYPE] = {
#define DH_KERNEL(op, workspace_of, bytes, write, run_it)                                          \
    [DH_OP_##op] = {                                                                               \
        .workspace = workspace_of, .image_bytes = bytes, .image_write = write, .run = run_it},
#define DH_PRODUCT(op)                                                                             \
    [DH_OP_##op] = {.workspace = dh_cuda_ws_product,                                               \
                    .prepare = dh_cuda_prepare_product,                                            \
                    .release = dh_cuda_release_product,                                            \
                    .product = dh_cuda_run_product},
#define DH_GELU_PRODUCT(op)                                                                        \
    [DH_OP_##op] = {.workspace = dh_cuda_ws_product,                                               \
                    .prepare = dh_cuda_prepare_gelu,                                               \
                    .release = dh_cuda_release_product,                                            \
                    .product = dh_cuda_run_gelu},
#define DH_CHECKED(op, run_it, found, check_it)                                                    \
    [DH_OP_##op] = {.run = run_it, .found_at = found, .check = check_it},
#include "run/cuda/kernels.def"
#undef DH_KERNEL
#undef DH_PRODUCT
#undef DH_GELU_PRODUCT
#undef DH_CHECKED
};

const dh_cuda_kernel *dh_cuda_kernel_of(dh_op_type type)
{
    if ((unsigned)type >= DH_N_OP_TYPE) return NULL;
    return kernels[type].run || kernels[type].product ? &kernels[type] : NULL;
}
