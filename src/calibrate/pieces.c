/* Models in PyTorch have a matrix each for queries, keys and values, and for gate and up, where
 * this program has one product. Their activations are two kernels, and attention without a fused
 * kernel is products of scores. Products of experts are one kernel each, of as many rows as
 * came. */
#include "calibrate/pieces.h"

#include <string.h>

static const dh_tensor *tensor(const dh_graph *g, uint32_t id)
{
    return &g->tensors.at[id];
}

static void push(traced_way *way, dh_kernel_kind kind, dh_dtype dtype, int times,
                 const int64_t size[DH_KERNEL_SIZES])
{
    dh_measured_kernel *k = &way->at[way->n];
    *k = (dh_measured_kernel){.kind = kind, .dtype = dtype};
    memcpy(k->size, size, sizeof k->size);
    way->times[way->n++] = times;
}

/* ---- products ------------------------------------------------------------------------------- */

/* A product's sizes are rows, columns, shared: which of them are the tokens, and the rows and
 * columns of the weight. */
static const struct {
    dh_op_type type;
    bool of_weight; /* the product is the gradient of the weight */
    bool by_expert;
    int tokens, rows, columns;
} products[] = {
    {DH_OP_LINEAR, false, false, 0, 1, 2},       {DH_OP_LINEAR_DGRAD, false, false, 0, 2, 1},
    {DH_OP_LINEAR_WGRAD, true, false, 2, 0, 1},  {DH_OP_GROUPED_LINEAR, false, true, 0, 1, 2},
    {DH_OP_GROUPED_DGRAD, false, true, 0, 2, 1}, {DH_OP_GROUPED_WGRAD, true, true, 2, 0, 1}};

/* How the rows of a layer's matrix fall to matrices of PyTorch: the number of these, 1 for as it
 * is. The second way has keys and values in one. */
static int cut_rows(const dh_graph *g, const dh_tensor *w, int64_t rows, int way, int64_t part[3])
{
    const dh_dims *d = &g->dims;
    const int64_t heads = d->n_heads + 2 * d->n_kv_heads;
    part[0] = rows;
    if (way == 0) return 1;
    if (g->kind != DH_BLOCK_LAYER) return 0;
    if (w->which == DH_PARAM_QKV_W && way <= 2 && heads > 0 && rows % heads == 0) {
        const int64_t head = rows / heads;
        part[0] = d->n_heads * head;
        part[1] = part[2] = d->n_kv_heads * head;
        if (way == 1) return 3;
        part[1] *= 2;
        return 2;
    }
    const bool packed = w->which == DH_PARAM_FC1_W || w->which == DH_PARAM_SHARED_FC1_W;
    if (!packed || way > 1 || d->act == DH_ACT_GELU_TANH || rows % 2 != 0) return 0;
    part[0] = part[1] = rows / 2;
    return 2;
}

static bool product_way(const dh_graph *g, const dh_op *op, int p, int way, traced_way *out)
{
    const dh_tensor *x = tensor(g, op->in[0]);
    const dh_tensor *w = tensor(g, products[p].of_weight ? op->out[0] : op->in[1]);
    const bool by_expert = products[p].by_expert;
    int64_t size[DH_KERNEL_SIZES] = {0, 0, 0, 1}, part[3];
    const int n = cut_rows(g, w, w->shape[w->ndim - 2], way, part);
    size[products[p].tokens] =
        by_expert && op->rows > 0 ? DH_MIN(op->rows, x->shape[0]) : x->shape[0];
    size[products[p].columns] = w->shape[w->ndim - 1];
    for (int i = 0; i < n; i++) {
        size[products[p].rows] = part[i];
        push(out, DH_KERNEL_GEMM, x->dtype, 1, size);
    }
    if (by_expert) out->free_axis = products[p].tokens;
    return n > 0;
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Fused; else two products of scores and a softmax, backward four: those of the probabilities, and
 * of queries, keys and values. */
static bool attention_way(const dh_graph *g, const dh_op *op, int way, traced_way *out)
{
    const bool grad = op->type == DH_OP_ATTN_GRAD;
    const dh_attn_sizes s = dh_op_attn_sizes(g, op);
    const dh_dtype dtype = tensor(g, op->in[0])->dtype;
    const int64_t heads = s.batch * s.n_heads, dim = g->dims.head_dim;
    if (way == 0)
        push(out, grad ? DH_KERNEL_ATTN_GRAD : DH_KERNEL_ATTN, dtype, 1,
             (const int64_t[DH_KERNEL_SIZES]){s.batch, s.n_heads, s.n_kv_heads, s.seq, dim});
    if (way == 0) return true;
    if (way > 2) return false;
    push(out, DH_KERNEL_GEMM, dtype, 1, (const int64_t[DH_KERNEL_SIZES]){s.seq, s.seq, dim, heads});
    push(out, DH_KERNEL_GEMM, dtype, grad ? 3 : 1,
         (const int64_t[DH_KERNEL_SIZES]){s.seq, dim, s.seq, heads});
    push(out, grad ? DH_KERNEL_SOFTMAX_GRAD : DH_KERNEL_SOFTMAX, way == 1 ? dtype : DH_F32, 1,
         (const int64_t[DH_KERNEL_SIZES]){heads * s.seq, s.seq});
    return true;
}

/* ---- element by element --------------------------------------------------------------------- */

static bool rows_way(dh_kernel_kind kind, const dh_tensor *x, int way, traced_way *out)
{
    push(out, kind, x->dtype, 1, (const int64_t[DH_KERNEL_SIZES]){x->shape[0], x->shape[1]});
    return way == 0;
}

/* The activation of the gate, and the product with the other half. */
static bool activation_way(const dh_graph *g, const dh_op *op, int way, traced_way *out)
{
    const bool grad = op->type == DH_OP_ACT_GRAD, silu = g->dims.act == DH_ACT_SWIGLU;
    const dh_tensor *y = tensor(g, grad ? op->in[0] : op->out[0]);
    const int64_t size[DH_KERNEL_SIZES] = {y->shape[0], y->shape[1]};
    push(out,
         silu   ? grad ? DH_KERNEL_SILU_GRAD : DH_KERNEL_SILU
         : grad ? DH_KERNEL_GELU_GRAD
                : DH_KERNEL_GELU,
         y->dtype, 1, size);
    if (g->dims.act != DH_ACT_GELU_TANH) push(out, DH_KERNEL_MUL, y->dtype, grad ? 2 : 1, size);
    return way == 0;
}

/* ---- entry ---------------------------------------------------------------------------------- */

bool traced_way_of(const dh_graph *g, const dh_op *op, int way, traced_way *out)
{
    *out = (traced_way){.free_axis = -1};
    for (size_t p = 0; p < DH_COUNTOF(products); p++)
        if (products[p].type == op->type) return product_way(g, op, (int)p, way, out);
    switch (op->type) {
    case DH_OP_ATTN:
    case DH_OP_ATTN_GRAD:
        return attention_way(g, op, way, out);
    case DH_OP_NORM:
        return rows_way(DH_KERNEL_NORM, tensor(g, op->in[0]), way, out);
    case DH_OP_RESIDUAL:
        return g->dims.dropout == 0 && rows_way(DH_KERNEL_ADD, tensor(g, op->in[0]), way, out);
    case DH_OP_ACT:
    case DH_OP_ACT_GRAD:
        return activation_way(g, op, way, out);
    default:
        return false;
    }
}
