/* Operands of products, rounded to 8 bits into scratch before them (dh_op_fp8). */
#include "run/cpu/glue.h"
#include "run/cpu/kernels.h"

/* The vectors of an operand that have a scale: those along the summed dimension. */
typedef enum scaled {
    ROWS,
    COLUMNS,           /* of each matrix */
    COLUMNS_OF_EXPERTS /* of each expert's rows, in all of its runs */
} scaled;

static scaled scaled_of(const dh_op *op, int k)
{
    if (op->type == DH_OP_GROUPED_WGRAD) return COLUMNS_OF_EXPERTS;
    const bool dgrad = op->type == DH_OP_LINEAR_DGRAD || op->type == DH_OP_GROUPED_DGRAD;
    return op->type == DH_OP_LINEAR_WGRAD || (dgrad && k == 1) ? COLUMNS : ROWS;
}

static const dh_tensor *tensor(const dh_graph *g, uint32_t id)
{
    return &g->tensors.at[id];
}

static size_t aligned(size_t n_bytes)
{
    return (n_bytes + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

static int64_t columns_of(const dh_tensor *t)
{
    return t->shape[t->ndim - 1];
}

/* Of one operand: its numbers, then scales of its columns, those of one expert after another. */
static size_t numbers_bytes(const dh_tensor *t)
{
    return aligned((size_t)dh_tensor_bytes(t));
}

static size_t scales_bytes(const dh_graph *g, const dh_op *op, int k)
{
    const dh_tensor *t = tensor(g, op->in[k]);
    const scaled by = scaled_of(op, k);
    if (by == ROWS) return 0;
    const int64_t experts = by == COLUMNS_OF_EXPERTS ? tensor(g, op->out[0])->shape[0] : 1;
    return aligned((size_t)(experts * columns_of(t)) * sizeof(float));
}

size_t dh_cpu_fp8_bytes(const dh_graph *g, const dh_op *op)
{
    dh_fp8_format formats[2];
    size_t n_bytes = 0;
    if (!dh_op_fp8(g, op, formats)) return 0;
    for (int k = 0; k < 2; k++)
        n_bytes += numbers_bytes(tensor(g, op->in[k])) + scales_bytes(g, op, k);
    return n_bytes;
}

/* Rows of experts end where the last run does: what is behind them was never written. */
static int64_t used_rows(const dh_call *c, int k)
{
    const dh_tensor *t = tensor(c->graph, c->op->in[k]);
    const bool grouped = c->op->type == DH_OP_GROUPED_LINEAR || c->op->type == DH_OP_GROUPED_DGRAD;
    if (!grouped || k == 1) return dh_tensor_elements(t) / columns_of(t);
    const int64_t *offsets = c->in[2];
    return offsets[tensor(c->graph, c->op->in[2])->shape[0] - 1];
}

static void round_columns(const dh_call *c, int k, dh_fp8_format format, dh_bf16 *numbers,
                          float *scales)
{
    const dh_tensor *t = tensor(c->graph, c->op->in[k]);
    const int64_t n_matrices = t->ndim == 3 ? t->shape[0] : 1;
    const int64_t rows = t->shape[t->ndim - 2], columns = columns_of(t);
    for (int64_t m = 0; m < n_matrices; m++) {
        const int64_t first = m * rows * columns;
        dh_k_fp8_columns(format, rows, columns, (const dh_bf16 *)c->in[k] + first, numbers + first,
                         scales);
    }
}

static void round_operand(const dh_call *c, int k, dh_fp8_format format, void *numbers,
                          void *scales)
{
    const dh_graph *g = c->graph;
    const int64_t columns = columns_of(tensor(g, c->op->in[k]));
    switch (scaled_of(c->op, k)) {
    case ROWS:
        dh_k_fp8_rows(format, used_rows(c, k), columns, c->in[k], numbers);
        break;
    case COLUMNS:
        round_columns(c, k, format, numbers, scales);
        break;
    case COLUMNS_OF_EXPERTS:
        dh_k_fp8_expert_columns(format, tensor(g, c->op->out[0])->shape[0],
                                tensor(g, c->op->in[2])->shape[0] - 1, c->in[2], columns, c->in[k],
                                numbers, scales);
        break;
    }
}

void dh_cpu_fp8_operands(const dh_call *c, const void *operands[2], char **work)
{
    dh_fp8_format formats[2];
    for (int k = 0; k < 2; k++) operands[k] = c->in[k];
    if (!dh_op_fp8(c->graph, c->op, formats)) return;
    for (int k = 0; k < 2; k++) {
        char *numbers = *work, *scales = numbers + numbers_bytes(tensor(c->graph, c->op->in[k]));
        round_operand(c, k, formats[k], numbers, scales);
        operands[k] = numbers;
        *work = scales + scales_bytes(c->graph, c->op, k);
    }
}
