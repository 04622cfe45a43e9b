/* From graph operators to kernels: shapes out of the graph, pointers out of the
 * call. Nothing is computed here; kernels.def says which functions belong together. */
#include "run/cpu/glue.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/cpu/attn_shape.h"
#include "run/cpu/kernels.h"

static const dh_tensor *in_of(const dh_graph *g, const dh_op *op, int k)
{
    return &g->tensors.at[op->in[k]];
}

static const dh_tensor *out_of(const dh_graph *g, const dh_op *op, int k)
{
    return &g->tensors.at[op->out[k]];
}

static const dh_tensor *in_tensor(const dh_call *c, int k)
{
    return in_of(c->graph, c->op, k);
}

static const dh_tensor *out_tensor(const dh_call *c, int k)
{
    return out_of(c->graph, c->op, k);
}

static dh_dropout dropout_of(const dh_call *c, int pos, int sample)
{
    return (dh_dropout){.prob = (float)c->graph->dims.dropout,
                        .seed = c->scalars->seed,
                        .step = (uint64_t)c->scalars->step,
                        .site = (uint32_t)(c->layer * DH_N_SITE + DH_MAX(c->op->site, 0)),
                        .row_pos = c->in[pos],
                        .row_sample = c->in[sample]};
}

/* ---- embedding ------------------------------------------------------------------------------ */

static dh_status run_embed(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = out_tensor(c, 0), *wte = in_tensor(c, 3);
    const int64_t v0 = c->op->vocab0;
    dh_dropout drop = dropout_of(c, 1, 2);
    dh_k_embed_fwd(x->dtype, x->shape[0], x->shape[1], c->in[0], c->in[1], c->in[3], v0,
                   v0 + wte->shape[0], c->in[4], &drop, c->out[0]);
    return DH_OK;
}

static dh_status run_embed_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dx = in_tensor(c, 0), *dwte = out_tensor(c, 0);
    const int64_t v0 = c->op->vocab0;
    const bool adds = c->accumulate & 1, positions_add = c->accumulate >> 1 & 1;
    int64_t n_pos = c->out[1] ? out_tensor(c, 1)->shape[0] : 0;
    dh_dropout drop = dropout_of(c, 2, 3);
    /* A tied head has written dwte already; then dwpe alone starts here. */
    if (c->out[1] && adds && !positions_add)
        dh_k_zero((size_t)dh_tensor_bytes(out_tensor(c, 1)), c->out[1]);
    dh_k_embed_bwd(dx->dtype, dx->shape[0], dx->shape[1], c->in[0], c->in[1], c->in[2], &drop, v0,
                   v0 + dwte->shape[0], n_pos, c->out[0], c->out[1], adds);
    return DH_OK;
}

/* ---- norm ----------------------------------------------------------------------------------- */

static dh_status run_norm(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    float *work = c->work;
    const float *w = dh_cpu_norm_weights(c, c->in[1], x->shape[1], &work);
    dh_k_norm_fwd(c->graph->dims.norm, x->dtype, x->shape[0], x->shape[1], c->in[0], w, c->in[2],
                  (float)c->graph->dims.norm_eps, c->out[0], c->out[1]);
    return DH_OK;
}

static dh_status run_norm_dgrad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 1);
    float *work = c->work;
    const float *w = dh_cpu_norm_weights(c, c->in[2], x->shape[1], &work);
    dh_k_norm_dgrad(c->graph->dims.norm, x->dtype, x->shape[0], x->shape[1], c->in[0], c->in[1], w,
                    c->in[3], c->in[4], c->out[0]);
    return DH_OK;
}

static dh_status run_norm_wgrad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 1);
    dh_k_norm_wgrad(c->graph->dims.norm, x->dtype, x->shape[0], x->shape[1], c->in[0], c->in[1],
                    c->in[2], c->out[0], c->out[1], c->accumulate & 1);
    return DH_OK;
}

/* ---- linear --------------------------------------------------------------------------------- */

/* A weight in float32 (a router's) makes the product one of float32: rows of another type
 * are widened into scratch before it, or narrowed out of scratch behind it. */

static bool widens(const dh_tensor *rows, dh_dtype dtype)
{
    return rows->dtype != dtype && dtype == DH_F32;
}

static size_t wide_bytes(const dh_tensor *rows, dh_dtype dtype)
{
    if (!widens(rows, dtype)) return 0;
    return ((size_t)dh_tensor_elements(rows) * sizeof(float) + DH_BUFFER_ALIGN - 1) /
           DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

/* Data of the type wanted; scratch moves on behind what was widened. */
static const void *widened(const dh_tensor *rows, dh_dtype dtype, const void *data, char **work)
{
    if (!widens(rows, dtype)) return data;
    float *wide = (float *)(void *)*work;
    *work += wide_bytes(rows, dtype);
    dh_k_cast(dh_tensor_elements(rows), rows->dtype, data, DH_F32, wide);
    return wide;
}

/* Shape for the rows of one part, if the output has several. */
static dh_gemm_desc linear_shape(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *x = in_of(g, op, 0), *w = in_of(g, op, 1);
    return (dh_gemm_desc){.m = x->shape[0] / dh_op_n_parts(op),
                          .n = w->shape[0],
                          .k = w->shape[1],
                          .trans_b = true,
                          .in = w->dtype,
                          .out = out_of(g, op, 0)->dtype,
                          .bias = op->in[2] != DH_NONE};
}

static dh_gemm_desc dgrad_shape(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *dy = in_of(g, op, 0), *w = in_of(g, op, 1), *dx = out_of(g, op, 0);
    return (dh_gemm_desc){.m = dy->shape[0] / dh_op_n_parts(op),
                          .n = w->shape[1],
                          .k = w->shape[0],
                          .in = dy->dtype,
                          .out = widens(dx, w->dtype) ? DH_F32 : dx->dtype};
}

static dh_gemm_desc wgrad_shape(const dh_graph *g, const dh_op *op, bool accumulate)
{
    const dh_tensor *dy = in_of(g, op, 0), *x = in_of(g, op, 1);
    return (dh_gemm_desc){.m = dy->shape[1],
                          .n = x->shape[1],
                          .k = dy->shape[0],
                          .trans_a = true,
                          .in = dy->dtype,
                          .out = DH_F32,
                          .accumulate = accumulate};
}

/* Scratch of the GEMM a description makes, beside that for wide copies. A description that makes
 * none has it reported when the kernel is prepared. */
static size_t gemm_workspace(const dh_gemm_desc *desc, size_t wide)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_gemm *gemm;
    const dh_status st = dh_gemm_create(&ctx, desc, &gemm);
    if (st != DH_OK) return st == DH_ENOMEM ? DH_NO_WORKSPACE : wide;
    const size_t n_bytes = wide + dh_gemm_workspace(gemm);
    dh_gemm_destroy(gemm);
    return n_bytes;
}

static size_t ws_linear(const dh_graph *g, const dh_op *op)
{
    dh_gemm_desc s = linear_shape(g, op);
    return gemm_workspace(&s, wide_bytes(in_of(g, op, 0), s.in) + dh_cpu_fp8_bytes(g, op));
}

static size_t ws_dgrad(const dh_graph *g, const dh_op *op)
{
    dh_gemm_desc s = dgrad_shape(g, op);
    return gemm_workspace(&s, wide_bytes(out_of(g, op, 0), s.in) + dh_cpu_fp8_bytes(g, op));
}

static size_t ws_wgrad(const dh_graph *g, const dh_op *op)
{
    dh_gemm_desc first = wgrad_shape(g, op, false), later = wgrad_shape(g, op, true);
    const size_t wide = wide_bytes(in_of(g, op, 1), first.in) + dh_cpu_fp8_bytes(g, op);
    const size_t a = gemm_workspace(&first, wide), b = gemm_workspace(&later, wide);
    return DH_MAX(a, b);
}

static dh_status prepare_linear(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                unsigned accumulate, void **state)
{
    dh_gemm_desc s = linear_shape(g, op);
    return dh_gemm_create(ctx, &s, (dh_gemm **)state);
}

static dh_status prepare_dgrad(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                               void **state)
{
    dh_gemm_desc s = dgrad_shape(g, op);
    return dh_gemm_create(ctx, &s, (dh_gemm **)state);
}

static dh_status prepare_wgrad(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                               void **state)
{
    dh_gemm_desc s = wgrad_shape(g, op, accumulate & 1);
    return dh_gemm_create(ctx, &s, (dh_gemm **)state);
}

static void release_gemm(void *state)
{
    dh_gemm_destroy(state);
}

/* A row of a matrix like t, but of this type. */
static int64_t row_bytes(const dh_tensor *t, dh_dtype dtype)
{
    return dh_tensor_elements(t) / t->shape[0] * (int64_t)dh_dtype_bytes(dtype);
}

/* A product by rows: all of them, or part by part. */
typedef struct row_product {
    const char *x;
    const void *w;
    const float *bias;
    char *y;
    int64_t x_row, y_row; /* bytes */
    void *work;
} row_product;

static dh_status run_rows(dh_ctx *ctx, const dh_call *c, const row_product *r)
{
    const int64_t n_rows = out_tensor(c, 0)->shape[0];
    for (uint32_t k = 0; k < dh_op_n_parts(c->op); k++) {
        const int64_t row = dh_op_part_begin(c->op, n_rows, k);
        DH_TRY(dh_gemm_run(ctx, c->kernel, r->x + row * r->x_row, r->w, r->bias,
                           r->y + row * r->y_row, r->work));
        dh_part_tell(&c->progress, k);
    }
    return DH_OK;
}

static dh_status run_linear(dh_ctx *ctx, const dh_call *c)
{
    char *work = c->work;
    const dh_tensor *x = in_tensor(c, 0), *y = out_tensor(c, 0);
    const dh_dtype dtype = in_tensor(c, 1)->dtype;
    const void *operands[2];
    dh_cpu_fp8_operands(c, operands, &work);
    const row_product r = {.x = widened(x, dtype, operands[0], &work),
                           .w = operands[1],
                           .bias = c->in[2],
                           .y = c->out[0],
                           .x_row = row_bytes(x, widens(x, dtype) ? DH_F32 : x->dtype),
                           .y_row = row_bytes(y, y->dtype),
                           .work = work};
    return run_rows(ctx, c, &r);
}

/* h is there where anybody reads it; else it is made where g will be. */
static dh_status run_linear_gelu(dh_ctx *ctx, const dh_call *c)
{
    dh_call product = *c;
    const dh_tensor *g = out_tensor(c, 0);
    product.out[0] = c->out[1] ? c->out[1] : c->out[0];
    product.progress.n = 0;
    DH_TRY(run_linear(ctx, &product));
    dh_k_gelu_fwd(g->dtype, dh_tensor_elements(g), product.out[0], c->out[0]);
    return DH_OK;
}

/* Outputs computed in float32 and narrowed afterwards are told of as a whole, at the end. */
static dh_status run_dgrad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dy = in_tensor(c, 0), *dx = out_tensor(c, 0);
    const size_t n_wide = wide_bytes(dx, in_tensor(c, 1)->dtype);
    const bool narrows = n_wide > 0; /* then nothing is rounded to 8 bits */
    const void *operands[2];
    char *work = c->work;
    dh_cpu_fp8_operands(c, operands, &work);
    const row_product r = {.x = operands[0],
                           .w = operands[1],
                           .y = narrows ? c->work : c->out[0],
                           .x_row = row_bytes(dy, dy->dtype),
                           .y_row = row_bytes(dx, narrows ? DH_F32 : dx->dtype),
                           .work = work ? work + n_wide : NULL};
    dh_call quiet = *c;
    if (narrows) quiet.progress.n = 0;
    DH_TRY(run_rows(ctx, &quiet, &r));
    if (narrows) dh_k_cast(dh_tensor_elements(dx), DH_F32, c->work, dx->dtype, c->out[0]);
    return DH_OK;
}

static dh_status run_dgrad_gelu(dh_ctx *ctx, const dh_call *c)
{
    dh_call product = *c;
    const dh_tensor *dh = out_tensor(c, 0);
    product.progress.n = 0;
    DH_TRY(run_dgrad(ctx, &product));
    dh_k_gelu_bwd(dh->dtype, dh_tensor_elements(dh), c->out[0], c->in[2], c->out[0]);
    return DH_OK;
}

static dh_status run_wgrad(dh_ctx *ctx, const dh_call *c)
{
    char *work = c->work;
    const void *operands[2];
    dh_cpu_fp8_operands(c, operands, &work);
    const void *x = widened(in_tensor(c, 1), in_tensor(c, 0)->dtype, operands[1], &work);
    return dh_gemm_run(ctx, c->kernel, operands[0], x, NULL, c->out[0], work);
}

static dh_status run_bias_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dy = in_tensor(c, 0);
    dh_k_bias_grad(dy->dtype, dy->shape[0], dy->shape[1], c->in[0], c->out[0], c->accumulate & 1);
    return DH_OK;
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Bytes into a packed row where keys and values begin. */
static size_t key_bytes(const dh_attn_shape *s)
{
    return (size_t)(s->H * s->D) * dh_dtype_bytes(s->dtype);
}

static size_t value_bytes(const dh_attn_shape *s)
{
    return key_bytes(s) + (size_t)(s->KV * s->D) * dh_dtype_bytes(s->dtype);
}

static size_t ws_attn(const dh_graph *g, const dh_op *op)
{
    dh_attn_shape s = dh_attn_of_op(g, op);
    return dh_k_attn_fwd_workspace(&s);
}

static dh_status run_attn(dh_ctx *ctx, const dh_call *c)
{
    dh_attn_shape s = dh_attn_of_call(c, c->in[1]);
    const char *q = c->in[0];
    dh_k_attn_fwd(&s, q, q + key_bytes(&s), q + value_bytes(&s), c->out[0], c->out[1], c->work);
    return DH_OK;
}

static size_t ws_attn_grad(const dh_graph *g, const dh_op *op)
{
    dh_attn_shape s = dh_attn_of_op(g, op);
    return dh_k_attn_bwd_workspace(&s);
}

static dh_status run_attn_grad(dh_ctx *ctx, const dh_call *c)
{
    dh_attn_shape s = dh_attn_of_call(c, c->in[4]);
    const size_t k = key_bytes(&s), v = value_bytes(&s);
    const char *q = c->in[1];
    char *dq = c->out[0];
    dh_k_attn_bwd(&s, c->in[0], c->in[2], c->in[3], q, q + k, q + v, dq, dq + k, dq + v, false,
                  c->work);
    return DH_OK;
}

static size_t cached_lse_bytes(const dh_attn_shape *s)
{
    return ((size_t)(s->H * s->Tq) * sizeof(float) + 63) / 64 * 64;
}

static size_t ws_attn_cached(const dh_graph *g, const dh_op *op)
{
    dh_attn_shape s = dh_attn_of_cache(g, op, g->dims.max_seq);
    return cached_lse_bytes(&s) + dh_k_attn_fwd_workspace(&s);
}

static dh_status run_attn_cached(dh_ctx *ctx, const dh_call *c)
{
    const int32_t *pos = c->in[1];
    const int64_t n_new = in_tensor(c, 0)->shape[0];
    dh_attn_shape s = dh_attn_of_cache(c->graph, c->op, pos[n_new - 1] + 1);
    const size_t keys = key_bytes(&s), row_bytes = 2 * (value_bytes(&s) - keys);
    char *cache = c->out[1];
    for (int64_t t = 0; t < n_new; t++)
        memcpy(cache + (size_t)pos[t] * row_bytes,
               (const char *)c->in[0] + (size_t)t * (keys + row_bytes) + keys, row_bytes);
    s.q_pos = pos;
    s.window = dh_dims_window(&c->graph->dims, c->layer);
    dh_k_attn_fwd(&s, c->in[0], cache, cache + row_bytes / 2, c->out[0], c->work,
                  (char *)c->work + cached_lse_bytes(&s));
    return DH_OK;
}

/* ---- pointwise ------------------------------------------------------------------------------ */

static dh_status run_residual(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = in_tensor(c, 0);
    dh_dropout drop = dropout_of(c, 3, 4);
    dh_k_residual(x->dtype, x->shape[0], x->shape[1], c->in[0], c->in[1], c->in[2], &drop,
                  c->out[0]);
    return DH_OK;
}

static dh_status run_dropout_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dy = in_tensor(c, 0);
    dh_dropout drop = dropout_of(c, 1, 2);
    dh_k_dropout_grad(dy->dtype, dy->shape[0], dy->shape[1], c->in[0], &drop, c->out[0]);
    return DH_OK;
}

static dh_status run_act(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *g = out_tensor(c, 0);
    if (c->graph->dims.act == DH_ACT_SWIGLU)
        dh_k_swiglu_fwd(g->dtype, g->shape[0], g->shape[1], c->in[0], c->out[0]);
    else if (c->graph->dims.act == DH_ACT_GEGLU)
        dh_k_geglu_fwd(g->dtype, g->shape[0], g->shape[1], c->in[0], c->out[0]);
    else
        dh_k_gelu_fwd(g->dtype, dh_tensor_elements(g), c->in[0], c->out[0]);
    return DH_OK;
}

static dh_status run_act_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dg = in_tensor(c, 0);
    if (c->graph->dims.act == DH_ACT_SWIGLU)
        dh_k_swiglu_bwd(dg->dtype, dg->shape[0], dg->shape[1], c->in[0], c->in[1], c->out[0]);
    else if (c->graph->dims.act == DH_ACT_GEGLU)
        dh_k_geglu_bwd(dg->dtype, dg->shape[0], dg->shape[1], c->in[0], c->in[1], c->out[0]);
    else
        dh_k_gelu_bwd(dg->dtype, dh_tensor_elements(dg), c->in[0], c->in[1], c->out[0]);
    return DH_OK;
}

static dh_status run_add(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *y = out_tensor(c, 0);
    dh_k_add(y->dtype, dh_tensor_elements(y), c->in[0], c->in[1], c->out[0]);
    return DH_OK;
}

static dh_status run_clear(dh_ctx *ctx, const dh_call *c)
{
    if (c->out[0]) dh_k_zero((size_t)dh_tensor_bytes(out_tensor(c, 0)), c->out[0]);
    return DH_OK;
}

/* That it comes after what used the storage is all there is to it. */
static dh_status run_release(dh_ctx *ctx, const dh_call *c)
{
    return DH_OK;
}

static dh_status run_copy(dh_ctx *ctx, const dh_call *c)
{
    dh_k_copy((size_t)dh_tensor_bytes(out_tensor(c, 0)), c->in[0], c->out[0]);
    return DH_OK;
}

/* ---- loss ---------------------------------------------------------------------------------- */

static dh_status run_loss_stats(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0);
    const int64_t v0 = c->op->vocab0;
    dh_k_ce_stats(logits->dtype, logits->shape[0], v0, v0 + logits->shape[1], c->in[0], c->in[1],
                  c->out[0]);
    return DH_OK;
}

static dh_status run_loss_merge(dh_ctx *ctx, const dh_call *c)
{
    int64_t n = out_tensor(c, 0)->shape[0];
    dh_k_ce_merge(in_tensor(c, 0)->shape[0] / n, n, c->in[0], c->out[0]);
    return DH_OK;
}

static size_t ws_loss(const dh_graph *g, const dh_op *op)
{
    return (size_t)in_of(g, op, 0)->shape[0] * sizeof(float);
}

static dh_status run_loss(dh_ctx *ctx, const dh_call *c)
{
    const int64_t n = in_tensor(c, 0)->shape[0];
    const int32_t *targets = c->in[1];
    double *loss = c->out[0], rows = 0;
    dh_k_ce_loss(n, c->in[0], targets, c->work);
    for (int64_t i = 0; i < n; i++) rows += targets[i] >= 0;
    double sum = dh_k_sum(n, c->work);
    loss[0] = c->accumulate & 1 ? loss[0] + sum : sum;
    loss[1] = c->accumulate & 1 ? loss[1] + rows : rows;
    return DH_OK;
}

static size_t ws_loss_grad(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *logits = in_of(g, op, 0);
    bool narrows = out_of(g, op, 0)->dtype != logits->dtype;
    return narrows ? (size_t)dh_tensor_bytes(logits) : 0;
}

static dh_status run_loss_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *logits = in_tensor(c, 0), *dlogits = out_tensor(c, 0);
    const int64_t v0 = c->op->vocab0;
    const double n_rows = c->scalars->loss_rows;
    const double scale = n_rows > 0 ? 1 / n_rows : c->graph->dims.loss_scale;
    void *wide = c->work ? c->work : c->out[0];
    dh_k_ce_grad(logits->dtype, logits->shape[0], v0, v0 + logits->shape[1], c->in[0], c->in[1],
                 c->in[2], (float)scale, wide);
    if (c->work)
        dh_k_cast(dh_tensor_elements(logits), logits->dtype, wide, dlogits->dtype, c->out[0]);
    return DH_OK;
}

/* ---- optimizer ----------------------------------------------------------------------------- */

static dh_status run_sqsum(dh_ctx *ctx, const dh_call *c)
{
    dh_k_sqsum(dh_tensor_elements(in_tensor(c, 0)), c->in[0], c->out[0]);
    return DH_OK;
}

static dh_status run_sum(dh_ctx *ctx, const dh_call *c)
{
    dh_k_exact_sum(c->in[0] ? in_tensor(c, 0)->shape[0] : 0, c->in[0], c->out[0]);
    return DH_OK;
}

static dh_status run_clip(dh_ctx *ctx, const dh_call *c)
{
    double *norm = c->out[0];
    norm[0] = sqrt(dh_k_exact_value(c->in[0]));
    /* torch.nn.utils.clip_grad_norm_'s factor, its 1e-6 included. */
    norm[1] = c->scalars->grad_clip > 0 ? fmin(1.0, c->scalars->grad_clip / (norm[0] + 1e-6)) : 1.0;
    return DH_OK;
}

/* A norm that is not finite leaves weights and moments as they were, so that the
 * step can be examined and training can go on from intact state. */
static void step_by(const dh_call *c, const double *norm)
{
    if (!isfinite(norm[0])) return;
    const dh_scalars *s = c->scalars;
    const dh_tensor *p = out_tensor(c, 0);
    const dh_adamw a = {.lr = s->lr,
                        .beta1 = s->beta1,
                        .beta2 = s->beta2,
                        .eps = s->eps,
                        .weight_decay = p->ndim == 2 ? s->weight_decay : 0.0,
                        .step = s->step + 1,
                        .grad_scale = norm[1]};
    dh_k_adamw(&a, dh_tensor_elements(p), c->in[0], c->out[0], c->out[1], c->out[2], c->out[3]);
}

/* The norm of all is no smaller than that of a part: where that clips, a step would be in vain. */
static bool steps_ahead(const double *so_far)
{
    return isfinite(so_far[0]) && so_far[1] == 1;
}

static dh_status run_adamw(dh_ctx *ctx, const dh_call *c)
{
    float *old = c->out[4];
    if (old) dh_k_keep(dh_tensor_elements(out_tensor(c, 0)), c->out[0], c->out[1], c->out[2], old);
    if (!old || steps_ahead(c->in[1])) step_by(c, c->in[1]);
    return DH_OK;
}

static dh_status run_amend(dh_ctx *ctx, const dh_call *c)
{
    const double *norm = c->in[1];
    const bool stepped = steps_ahead(c->in[2]);
    if (stepped && isfinite(norm[0]) && norm[1] == 1) return DH_OK;
    if (stepped)
        dh_k_restore(dh_tensor_elements(out_tensor(c, 0)), c->in[3], c->out[0], c->out[1],
                     c->out[2], c->out[3]);
    step_by(c, norm);
    return DH_OK;
}

/* ---- table --------------------------------------------------------------------------------- */

static const dh_cpu_kernel kernels[DH_N_OP_TYPE] = {
#define DH_KERNEL(op, workspace, prepare, release, run)                                            \
    [DH_OP_##op] = {workspace, prepare, release, run},
#include "run/cpu/kernels.def"
#undef DH_KERNEL
};

const dh_cpu_kernel *dh_cpu_kernel_of(dh_op_type type)
{
    return (unsigned)type < DH_N_OP_TYPE && kernels[type].run ? &kernels[type] : NULL;
}
