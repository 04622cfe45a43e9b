/* Columns of a tensor as tensors of their own, and side by side again: copies row by row. */
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

#include <string.h>

static const dh_tensor *tensor_of(const dh_call *c, uint32_t id)
{
    return &c->graph->tensors.at[id];
}

dh_status dh_cpu_run_join_columns(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *y = tensor_of(c, c->op->out[0]);
    char *at = c->out[0];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (c->op->in[k] == DH_NONE) continue;
        const int64_t n = tensor_of(c, c->op->in[k])->shape[1];
        dh_k_cast_rows(y->shape[0], n, y->dtype, c->in[k], n, y->dtype, at, y->shape[1]);
        at += (size_t)n * dh_dtype_bytes(y->dtype);
    }
    return DH_OK;
}

dh_status dh_cpu_run_split_columns(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = tensor_of(c, c->op->in[0]);
    const char *at = c->in[0];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (c->op->out[k] == DH_NONE) continue;
        const int64_t n = tensor_of(c, c->op->out[k])->shape[1];
        dh_k_cast_rows(x->shape[0], n, x->dtype, at, x->shape[1], x->dtype, c->out[k], n);
        at += (size_t)n * dh_dtype_bytes(x->dtype);
    }
    return DH_OK;
}

dh_status dh_cpu_run_take_columns(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = tensor_of(c, c->op->in[0]);
    const int64_t row = dh_tensor_elements(x) / x->shape[0], n = c->op->columns;
    const char *at = (const char *)c->in[0] + (size_t)c->op->from * dh_dtype_bytes(x->dtype);
    dh_k_cast_rows(x->shape[0], n, x->dtype, at, row, x->dtype, c->out[0], n);
    return DH_OK;
}

dh_status dh_cpu_run_put_columns(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *x = tensor_of(c, c->op->in[0]), *y = tensor_of(c, c->op->out[0]);
    const int64_t n_rows = y->shape[0], n = c->op->columns;
    const int64_t from_row = dh_tensor_elements(x) / n_rows, row = dh_tensor_elements(y) / n_rows;
    const size_t item = dh_dtype_bytes(x->dtype);
    const char *from = (const char *)c->in[0] + (size_t)c->op->from * item;
    char *to = (char *)c->out[0] + (size_t)c->op->to * item;
    if (c->op->adds)
        dh_k_add_rows(n_rows, n, (const float *)(const void *)from, from_row, (float *)(void *)to,
                      row);
    else
        dh_k_cast_rows(n_rows, n, x->dtype, from, from_row, x->dtype, to, row);
    return DH_OK;
}

/* ---- adapters -------------------------------------------------------------------------------- */

dh_status dh_cpu_run_adapt(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *part = tensor_of(c, c->op->in[0]), *y = tensor_of(c, c->op->out[0]);
    char *to = (char *)c->out[0] + (size_t)c->op->to * dh_dtype_bytes(y->dtype);
    if (c->in[1] != c->out[0]) memcpy(c->out[0], c->in[1], (size_t)dh_tensor_bytes(y));
    dh_k_add_scaled_rows(y->dtype, part->shape[0], part->shape[1], (float)c->graph->dims.lora_scale,
                         c->in[0], to, y->shape[1]);
    return DH_OK;
}

dh_status dh_cpu_run_adapt_grad(dh_ctx *ctx, const dh_call *c)
{
    const dh_tensor *dy = tensor_of(c, c->op->in[0]), *dpart = tensor_of(c, c->op->out[0]);
    const char *from = (const char *)c->in[0] + (size_t)c->op->from * dh_dtype_bytes(dy->dtype);
    dh_k_scale_rows(dy->dtype, dpart->shape[0], dpart->shape[1], (float)c->graph->dims.lora_scale,
                    from, dy->shape[1], c->out[0]);
    return DH_OK;
}
