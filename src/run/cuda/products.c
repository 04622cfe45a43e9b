/* The operators that are GEMMs: y = x w' + b, dx = dy w, dw = dy' x. GELU of the first and its
 * gradient of the second are in the GEMM itself, where cuBLASLt can, or after it.
 *
 * A weight in float32 (a router's) makes the product one of float32: rows of another type are
 * widened into scratch before it, or narrowed out of scratch behind it. As run/cpu/glue.c does.
 * Where operands are rounded to 8 bits, both are codes in scratch, by rows of what is summed over.
 */
#include "run/cuda/gemm.h"
#include "run/cuda/glue.h"

/* The GEMM of a row of the table on its operands. */
typedef struct product {
    dh_gemm_desc desc;
    const dh_tensor *x, *y; /* the rows that go in first, and the result */
    const dh_tensor *wide;  /* operand that is not of the product's type: x of forward or wgrad, dx
                             * of dgrad; NULL: none */
    uint32_t n_parts;
    bool fp8; /* desc is of codes */
    dh_fp8_format formats[2];
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

static product plain_product(const dh_graph *g, const dh_op *op, bool accumulate)
{
    if (op->type == DH_OP_LINEAR || op->type == DH_OP_LINEAR_GELU) return forward(g, op);
    if (op->type == DH_OP_LINEAR_DGRAD || op->type == DH_OP_LINEAR_DGRAD_GELU)
        return input_gradient(g, op);
    return weight_gradient(g, op, accumulate);
}

static product product_of(const dh_graph *g, const dh_op *op, bool accumulate)
{
    product p = plain_product(g, op, accumulate);
    p.fp8 = dh_op_fp8(g, op, p.formats);
    if (!p.fp8) return p;
    p.desc.in = DH_U8;
    p.desc.k = dh_cuda_fp8_row(p.desc.k);
    p.desc.trans_a = false;
    p.desc.trans_b = true;
    return p;
}

static size_t wide_bytes(const product *p)
{
    return p->wide ? (size_t)dh_tensor_elements(p->wide) * sizeof(float) : 0;
}

/* ---- codes of 8 bits ------------------------------------------------------------------------- */

/* Of an operand of n rows of the product's, its codes and then their scales. */
static size_t codes_bytes(const product *p, int64_t n)
{
    return dh_cuda_aligned((size_t)(n * p->desc.k));
}

static size_t scaled_bytes(const product *p, int64_t n)
{
    return codes_bytes(p, n) + dh_cuda_aligned((size_t)n * sizeof(float));
}

static size_t fp8_bytes(const product *p)
{
    return p->fp8 ? scaled_bytes(p, p->desc.m) + scaled_bytes(p, p->desc.n) : 0;
}

/* Operand k of the operator, `rows` rows of it from `x` on, as codes with their scales. */
static const float *encode(dh_cuda_stream stream, const dh_call *c, const product *p, int k,
                           const void *x, int64_t rows, char *codes)
{
    const bool by_columns =
        c->op->type == DH_OP_LINEAR_WGRAD || (c->op->type == DH_OP_LINEAR_DGRAD && k == 1);
    const int64_t cols = input(c->graph, c->op, k)->shape[1];
    float *scales = (float *)(void *)(codes + codes_bytes(p, by_columns ? cols : rows));
    if (by_columns)
        dh_cuda_fp8_columns(stream, p->formats[k], rows, cols, x, (uint8_t *)codes, scales);
    else
        dh_cuda_fp8_rows(stream, p->formats[k], rows, cols, x, (uint8_t *)codes, scales);
    return scales;
}

static size_t row_bytes(const dh_tensor *t, dh_dtype dtype)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): both operands of a product are there
    return (size_t)(dh_tensor_elements(t) / t->shape[0]) * dh_dtype_bytes(dtype);
}

/* Part by part, as run_parts: the second operand is encoded once, the first one's rows for each. */
static dh_status run_fp8(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c, const product *p)
{
    const int64_t n_rows = p->x->shape[0] / p->n_parts;
    const size_t x_row = row_bytes(p->x, p->x->dtype), y_row = row_bytes(p->y, p->y->dtype);
    char *b = c->work, *a = b + scaled_bytes(p, p->desc.n), *ws = a + scaled_bytes(p, p->desc.m);
    dh_cuda_scales scales;
    scales.b = encode(stream, c, p, 1, c->in[1], input(c->graph, c->op, 1)->shape[0], b);
    for (uint32_t k = 0; k < p->n_parts; k++) {
        const size_t row = (size_t)dh_op_part_begin(c->op, p->y->shape[0], k);
        scales.a = encode(stream, c, p, 0, (const char *)c->in[0] + row * x_row, n_rows, a);
        const float *bias = p->desc.bias ? c->in[2] : NULL;
        DH_TRY(dh_cuda_gemm_run(ctx, stream, c->kernel, a, b, bias, &scales,
                                (char *)c->out[0] + row * y_row, ws));
        dh_part_tell(&c->progress, k);
    }
    return DH_OK;
}

/* ---- the operators --------------------------------------------------------------------------- */

size_t dh_cuda_ws_product(const dh_graph *g, const dh_op *op)
{
    const product p = product_of(g, op, false);
    return wide_bytes(&p) + fp8_bytes(&p) + dh_cuda_gemm_workspace(&p.desc);
}

dh_status dh_cuda_prepare_product(dh_ctx *ctx, const dh_graph *g, const dh_op *op,
                                  unsigned accumulate, void **state)
{
    const product p = product_of(g, op, accumulate & 1);
    if (p.fp8) return dh_cuda_gemm_create_fp8(ctx, &p.desc, p.formats, (dh_cuda_gemm **)state);
    return dh_cuda_gemm_create(ctx, &p.desc, (dh_cuda_gemm **)state);
}

void dh_cuda_release_product(void *state)
{
    dh_cuda_gemm_destroy(state);
}

/* By rows of x and y: all of them, or part by part, each told of behind its launch. */
static dh_status run_parts(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c, const product *p,
                           const char *x, const char *w, char *y, void *ws)
{
    const size_t x_row = row_bytes(p->x, p->desc.in), y_row = row_bytes(p->y, p->desc.out);
    for (uint32_t k = 0; k < p->n_parts; k++) {
        const size_t row = (size_t)dh_op_part_begin(c->op, p->y->shape[0], k);
        DH_TRY(dh_cuda_gemm_run(ctx, stream, c->kernel, x + row * x_row, w, c->in[2], NULL,
                                y + row * y_row, ws));
        /* An output that is narrowed afterwards is told of as a whole at the end. */
        if (p->wide != p->y) dh_part_tell(&c->progress, k);
    }
    return DH_OK;
}

dh_status dh_cuda_run_product(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c)
{
    const product p = product_of(c->graph, c->op, c->accumulate & 1);
    const void *in[2] = {c->in[0], c->in[1]};
    void *y = c->out[0], *wide = c->work;
    if (p.fp8) return run_fp8(ctx, stream, c, &p);
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

/* ---- with GELU ------------------------------------------------------------------------------- */

/* Planned with it, by sizes and types alone, so that all calls of one operator are alike; or, where
 * that cannot be, as a plain product. */
dh_status dh_cuda_prepare_gelu(dh_ctx *ctx, const dh_graph *g, const dh_op *op, unsigned accumulate,
                               void **state)
{
    const product p = product_of(g, op, false);
    const dh_cuda_epilogue epilogue = op->type == DH_OP_LINEAR_DGRAD_GELU ? DH_CUDA_DGELU
                                      : op->out[1] != DH_NONE             ? DH_CUDA_GELU_AUX
                                                                          : DH_CUDA_GELU;
    dh_cuda_gemm **gemm = (dh_cuda_gemm **)state;
    const dh_status st = dh_cuda_gemm_create_gelu(ctx, &p.desc, epilogue, gemm);
    if (st == DH_OK)
        dh_log(DH_LOG_DEBUG, "%s of %lld x %lld x %lld, %s: in one kernel of cuBLASLt",
               dh_op_info_of(op->type)->name, (long long)p.desc.m, (long long)p.desc.n,
               (long long)p.desc.k, dh_dtype_name(p.desc.in));
    if (st != DH_EUNSUPPORTED) return st;
    dh_log(DH_LOG_INFO, "%s: GELU has a kernel of its own, since %s", dh_op_info_of(op->type)->name,
           ctx->message);
    dh_ctx_reset(ctx);
    return dh_cuda_gemm_create(ctx, &p.desc, gemm);
}

/* h is there where anybody reads it; else it is made where g will be. */
static dh_status run_linear_gelu(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c,
                                 const product *p)
{
    void *g = c->out[0], *h = c->out[1];
    const float *bias = p->desc.bias ? c->in[2] : NULL;
    if (dh_cuda_gemm_epilogue(c->kernel) != DH_CUDA_PLAIN)
        return dh_cuda_gemm_run_gelu(ctx, stream, c->kernel, c->in[0], c->in[1], bias, h, g,
                                     c->work);
    if (!h) h = g;
    DH_TRY(dh_cuda_gemm_run(ctx, stream, c->kernel, c->in[0], c->in[1], bias, NULL, h, c->work));
    dh_cuda_gelu_fwd(stream, p->desc.out, dh_tensor_elements(p->y), h, g);
    return DH_OK;
}

static dh_status run_dgrad_gelu(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c,
                                const product *p)
{
    const void *h = c->in[2];
    void *dh = c->out[0];
    if (dh_cuda_gemm_epilogue(c->kernel) != DH_CUDA_PLAIN)
        return dh_cuda_gemm_run_gelu(ctx, stream, c->kernel, c->in[0], c->in[1], NULL, h, dh,
                                     c->work);
    DH_TRY(dh_cuda_gemm_run(ctx, stream, c->kernel, c->in[0], c->in[1], NULL, NULL, dh, c->work));
    dh_cuda_gelu_bwd(stream, p->desc.out, dh_tensor_elements(p->y), dh, h, dh);
    return DH_OK;
}

dh_status dh_cuda_run_gelu(dh_ctx *ctx, dh_cuda_stream stream, const dh_call *c)
{
    const product p = product_of(c->graph, c->op, false);
    return (c->op->type == DH_OP_LINEAR_GELU ? run_linear_gelu : run_dgrad_gelu)(ctx, stream, c,
                                                                                 &p);
}
