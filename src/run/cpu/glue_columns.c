/* Columns of a tensor as tensors of their own, and side by side again: copies row by row. */
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

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
