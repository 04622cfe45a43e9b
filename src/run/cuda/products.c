/* The operators that are products of dense matrices: y = x w' + b, dx = dy w, dw = dy' x.
 *
 * A weight in float32 (a router's) makes the product one of float32: rows of another type are
 * widened into scratch before it, or narrowed out of scratch behind it. As run/cpu/glue.c does. */
#include "run/cuda/gemm.h"
#include "run/cuda/glue.h"

/* What a row of the table does with its operands. */
typedef struct product {
    dh_gemm_desc desc;
    const dh_tensor *x, *y; /* the rows that go in first, and the result */
    const dh_tensor *wide;  /* operand that is not of the product's type: x of forward or wgrad, dx
                             * of dgrad; NULL: none */
    uint32_t n_parts;
} product;

static const dh_tensor *input(const dh_graph *g, const dh_op *op, int k)
{
    return &g->tensors.at[op->in[k]];
}

static const dh_tensor *if_wide(const dh_tensor *t, dh_dtype dtype)
{
    return dtype == DH_F32 && t->dtype != DH_F32 ? t : NULL;
}

static product forward(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *x = input(g, op, 0), *w = input(g, op, 1), *y = &g->tensors.at[op->out[0]];
    product p = {.x = x, .y = y, .wide = if_wide(x, w->dtype), .n_parts = dh_op_n_parts(op)};
    p.desc = (dh_gemm_desc){.m = x->shape[0] / p.n_parts,
                            .n = w->shape[0],
                            .k = w->shape[1],
                            .trans_b = true,
                            .in = w->dtype,
                            .out = y->dtype,
                            .bias = op->in[2] != DH_NONE};
    return p;
}

static product input_gradient(const dh_graph *g, const dh_op *op)
{
    const dh_tensor *dy = input(g, op, 0), *w = input(g, op, 1), *dx = &g->tensors.at[op->out[0]];
    product p = {.x = dy, .y = dx, .wide = if_wide(dx, w->dtype), .n_parts = dh_op_n_parts(op)};
    p.desc = (dh_gemm_desc){.m = dy->shape[0] / p.n_parts,
                            .n = w->shape[1],
                            .k = w->shape[0],
                            .in = dy->dtype,
                            .out = p.wide ? DH_F32 : dx->dtype};
    return p;
}

static product weight_gradient(const dh_graph *g, const dh_op *op, bool accumulate)
{
    const dh_tensor *dy = input(g, op, 0), *x = input(g, op, 1), *dw = &g->tensors.at[op->out[0]];
    product p = {.x = dy, .y = dw, .wide = if_wide(x, dy->dtype), .n_parts = 1};
    p.desc = (dh_gemm_desc){.m = dy->shape[1],
                            .n = x->shape[1],
                            .k = dy->shape[0],
                            .trans_a = true,
                            .in = dy->dtype,
                            .out = DH_F32,
                            .accumulate = accumulate};
    return p;
}

static product product_of(const dh_graph *g, const dh_op *op, bool accumulate)
{
    if (op->type == DH_OP_LINEAR) return forward(g, op);
    if (op->type == DH_OP_LINEAR_DGRAD) return input_gradient(g, op);
    return weight_gradient(g, op, accumulate);
}

static size_t wide_bytes(const product *p)
{
    return p->wide ? (size_t)dh_tensor_elements(p->wide) * sizeof(float) : 0;
}

size_t dh_cuda_ws_product(const dh_graph *g, const dh_op *op)
{
    const product p = product_of(g, op, false);
    return wide_bytes(&p) + dh_cuda_gemm_workspace(&p.desc);
}

dh_status dh_cuda_prepare_product(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                  unsigned accumulate, void **state)
{
    const product p = product_of(g, op, accumulate & 1);
    return dh_cuda_gemm_create(ctx, &p.desc, (dh_cuda_gemm **)state);
}

void dh_cuda_release_product(void *state)
{
    dh_cuda_gemm_destroy(state);
}

static size_t row_bytes(const dh_tensor *t, dh_dtype dtype)
{
    return (size_t)(dh_tensor_elements(t) / t->shape[0]) * dh_dtype_bytes(dtype);
}

/* By rows of x and y: all of them, or part by part, each told of behind its launch. */
static dh_status run_parts(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c, const product *p,
                           const char *x, const char *w, char *y, void *ws)
{
    const size_t x_row = row_bytes(p->x, p->desc.in), y_row = row_bytes(p->y, p->desc.out);
    for (uint32_t k = 0; k < p->n_parts; k++) {
        const size_t row = (size_t)dh_op_part_begin(c->op, p->y->shape[0], k);
        DH_TRY(dh_cuda_gemm_run(ctx, stream, c->kernel, x + row * x_row, w, c->in[2],
                                y + row * y_row, ws));
        /* What is narrowed afterwards is all told of at the end. */
        if (p->wide != p->y) dh_part_tell(&c->progress, k);
    }
    return DH_OK;
}

dh_status dh_cuda_run_product(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c)
{
    const product p = product_of(c->graph, c->op, c->accumulate & 1);
    const void *in[2] = {c->in[0], c->in[1]};
    void *y = c->out[0], *wide = c->work;
    for (int k = 0; k < 2; k++)
        if (p.wide && p.wide == input(c->graph, c->op, k)) {
            dh_cuda_cast(stream, dh_tensor_elements(p.wide), p.wide->dtype, in[k], DH_F32, wide);
            in[k] = wide;
        }
    if (p.wide == p.y) y = wide;
    DH_TRY(run_parts(ctx, stream, c, &p, in[0], in[1], y, (char *)c->work + wide_bytes(&p)));
    if (p.wide == p.y)
        dh_cuda_cast(stream, dh_tensor_elements(p.y), DH_F32, wide, p.y->dtype, c->out[0]);
    return DH_OK;
}
