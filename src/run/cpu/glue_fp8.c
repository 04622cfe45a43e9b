/* Operands of products, rounded to 8 bits into scratch before them (dh_op_fp8). */
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* Whether the k-th operand is summed over its rows, so that its columns have the scales. */
static bool by_columns(const dh_op *op, int k)
{
    return op->type == DH_OP_LINEAR_WGRAD || (op->type == DH_OP_LINEAR_DGRAD && k == 1);
}

static size_t aligned(size_t n_bytes)
{
    return (n_bytes + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

/* Of one operand: its numbers, then scales of its columns. */
static size_t numbers_bytes(const dh_tensor *t)
{
    return aligned((size_t)dh_tensor_bytes(t));
}

static size_t scales_bytes(const dh_op *op, const dh_tensor *t, int k)
{
    return by_columns(op, k) ? aligned((size_t)t->shape[1] * sizeof(float)) : 0;
}

size_t dh_cpu_fp8_bytes(const dh_graph *g, const dh_op *op)
{
    dh_fp8_format formats[2];
    size_t n_bytes = 0;
    if (!dh_op_fp8(g, op, formats)) return 0;
    for (int k = 0; k < 2; k++) {
        const dh_tensor *t = &g->tensors.at[op->in[k]];
        n_bytes += numbers_bytes(t) + scales_bytes(op, t, k);
    }
    return n_bytes;
}

void dh_cpu_fp8_operands(const dh_call *c, const void *operands[2], char **work)
{
    dh_fp8_format formats[2];
    for (int k = 0; k < 2; k++) operands[k] = c->in[k];
    if (!dh_op_fp8(c->graph, c->op, formats)) return;
    for (int k = 0; k < 2; k++) {
        const dh_tensor *t = &c->graph->tensors.at[c->op->in[k]];
        char *numbers = *work, *scales = numbers + numbers_bytes(t);
        if (by_columns(c->op, k))
            dh_k_fp8_columns(formats[k], t->shape[0], t->shape[1], c->in[k],
                             (dh_bf16 *)(void *)numbers, (float *)(void *)scales);
        else
            dh_k_fp8_rows(formats[k], t->shape[0], t->shape[1], c->in[k],
                          (dh_bf16 *)(void *)numbers);
        operands[k] = numbers;
        *work = scales + scales_bytes(c->op, t, k);
    }
}
