/* Products through cuBLASLt, as the host plays it: numbers of every case that operators have, on
 * matrices that are not square and whose rows lie apart; and the very layouts that it is given. */
#include "kernel_test.h"
#include "run/cuda/cuda.h"
#include "run/cuda/gemm.h"
#include "run/cuda/host/host.h"

typedef struct gemm_case {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate, bias;
    int64_t pad; /* added to every leading dimension */
} gemm_case;

/* Forward, gradient of the input, gradient of the weights; one way that nobody takes. */
static const gemm_case cases[] = {
    {5, 7, 3, false, true, false, true, 0},      {24, 40, 16, false, true, false, true, 8},
    {24, 40, 16, false, false, false, false, 0}, {9, 13, 17, false, false, false, false, 4},
    {24, 40, 16, true, false, true, false, 0},   {11, 6, 19, true, false, false, false, 3},
    {12, 20, 28, true, true, false, false, 0},   {1, 33, 8, false, true, false, true, 0},
};

static int64_t a_row(const gemm_case *c)
{
    return (c->trans_a ? c->m : c->k) + c->pad;
}

static int64_t b_row(const gemm_case *c)
{
    return (c->trans_b ? c->k : c->n) + c->pad;
}

/* Operands on the device, one behind another. */
typedef struct operands {
    dh_slab *slab;
    uint64_t used;
} operands;

static void *put(operands *o, buf x, size_t n_bytes)
{
    dh_ctx ctx = DH_CTX_INIT;
    unsigned char *at = o->slab->at + o->used;
    assert_ok(&ctx, cuda_slab_write(&ctx, o->slab, o->used, x.raw, n_bytes));
    o->used += (n_bytes + 63) / 64 * 64;
    return at;
}

static size_t bytes(dh_dtype dtype, int64_t n)
{
    return (size_t)n * dh_dtype_bytes(dtype);
}

/* y becomes the product. */
static void run_product(const dh_gemm_desc *d, buf a, buf b, buf bias, buf y)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cuda_gemm *g;
    operands o = {0};
    cudaStream_t stream;
    const size_t y_bytes = bytes(d->out, d->m * d->ldc), ws = dh_cuda_gemm_workspace(d);
    assert_ok(&ctx, cuda_slab_create(&ctx, (1 << 16) + ws, &o.slab));
    void *at_a = put(&o, a, bytes(d->in, (d->trans_a ? d->k : d->m) * d->lda));
    void *at_b = put(&o, b, bytes(d->in, (d->trans_b ? d->n : d->k) * d->ldb));
    float *at_bias = put(&o, bias, bytes(DH_F32, d->n));
    const uint64_t y_at = o.used;
    void *at_y = put(&o, y, y_bytes);
    assert_ok(&ctx, dh_cuda_gemm_create(&ctx, d, &g));
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_ok(&ctx, dh_cuda_gemm_run(&ctx, stream, g, at_a, at_b, d->bias ? at_bias : NULL, NULL,
                                     at_y, o.slab->at + o.used + 64));
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_ok(&ctx, cuda_slab_read(&ctx, o.slab, y_at, y.raw, y_bytes));
    cudaStreamDestroy(stream);
    dh_cuda_gemm_destroy(g);
    cuda_slab_destroy(o.slab);
}

static double product_of(const gemm_case *c, buf a, buf b, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t l = 0; l < c->k; l++)
        sum += get(a, c->trans_a ? l * a_row(c) + i : i * a_row(c) + l) *
               get(b, c->trans_b ? j * b_row(c) + l : l * b_row(c) + j);
    return sum;
}

static void run_case(const gemm_case *c, dh_dtype in, dh_dtype out, uint64_t *seed)
{
    const int64_t ldc = c->n + c->pad;
    buf a = buf_random(in, (c->trans_a ? c->k : c->m) * a_row(c), 1, seed);
    buf b = buf_random(in, (c->trans_b ? c->n : c->k) * b_row(c), 1, seed);
    buf bias = buf_random(DH_F32, c->n, 1, seed), y = buf_random(out, c->m * ldc, 1, seed);
    double *want = widen(y);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            const double before = c->accumulate ? want[i * ldc + j] : 0;
            want[i * ldc + j] = before + (c->bias ? get(bias, j) : 0) + product_of(c, a, b, i, j);
        }
    const dh_gemm_desc desc = {c->m,
                               c->n,
                               c->k,
                               c->trans_a,
                               c->trans_b,
                               a_row(c),
                               b_row(c),
                               ldc,
                               in,
                               out,
                               .accumulate = c->accumulate,
                               .bias = c->bias};
    run_product(&desc, a, b, bias, y);
    /* A bias in bf16 is rounded once more than one in float32. */
    check_close("gemm", y, want, out == DH_BF16 ? 9e-3 : 1e-5);
    free(want);
    buf_free(y);
    buf_free(bias);
    buf_free(b);
    buf_free(a);
}

static void products_match_the_reference(void **state)
{
    uint64_t seed = test_seed("cuda gemm");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        run_case(&cases[i], DH_F32, DH_F32, &seed);
        run_case(&cases[i], DH_BF16, DH_F32, &seed);
        run_case(&cases[i], DH_BF16, DH_BF16, &seed);
    }
}

static void assert_layout(struct dh_host_matrix got, uint64_t rows, uint64_t cols, int64_t ld)
{
    assert_int_equal(got.rows, rows);
    assert_int_equal(got.cols, cols);
    assert_int_equal(got.ld, ld);
}

/* y[5,7] = x[5,3] w[7,3]' + b: by columns y' is 7 x 5, w' is 3 x 7 and is transposed, x' is 3 x 5.
 */
static void forward_is_given_by_columns(void **state)
{
    uint64_t seed = 1;
    run_case(&cases[0], DH_BF16, DH_F32, &seed);
    const dh_host_product p = dh_host_last_product();
    assert_true(p.trans_a && !p.trans_b && p.bias && p.beta == 0);
    assert_layout(p.a, 3, 7, 3);
    assert_layout(p.b, 3, 5, 3);
    assert_layout(p.d, 7, 5, 7);
    assert_int_equal(p.a.type, CUDA_R_16BF);
    assert_int_equal(p.d.type, CUDA_R_32F);
}

/* dx[9,13] = dy[9,17] w[17,13], rows 4 further apart. */
static void the_inputs_gradient_is_given_by_columns(void **state)
{
    uint64_t seed = 1;
    run_case(&cases[3], DH_F32, DH_F32, &seed);
    const dh_host_product p = dh_host_last_product();
    assert_true(!p.trans_a && !p.trans_b && !p.bias);
    assert_layout(p.a, 13, 17, 17);
    assert_layout(p.b, 17, 9, 21);
    assert_layout(p.d, 13, 9, 17);
}

/* dw[24,40] += dy[16,24]' x[16,40]. */
static void the_weights_gradient_is_given_by_columns(void **state)
{
    uint64_t seed = 1;
    run_case(&cases[4], DH_BF16, DH_F32, &seed);
    const dh_host_product p = dh_host_last_product();
    assert_true(!p.trans_a && p.trans_b && p.beta == 1);
    assert_layout(p.a, 40, 16, 40);
    assert_layout(p.b, 24, 16, 24);
    assert_layout(p.d, 40, 24, 40);
    assert_layout(p.c, 40, 24, 40);
}

/* ---- GELU ------------------------------------------------------------------------------------ */

/* GELU by tanh and its slope, in float64. */
static double tanh_part(double x)
{
    return tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * pow(x, 3)));
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh_part(x));
}

static double gelu_slope(double x)
{
    const double t = tanh_part(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / acos(-1)) * (1 + 0.134145 * x * x);
}

/* A product's operands on the device, and where its result and the matrix beside it are. */
typedef struct gelu_run {
    operands o;
    void *a, *b, *y, *aux;
    float *bias;
    uint64_t y_at, aux_at;
} gelu_run;

static void begin_gelu(gelu_run *r, const dh_gemm_desc *d, buf a, buf b, buf bias, buf y, buf aux)
{
    dh_ctx ctx = DH_CTX_INIT;
    *r = (gelu_run){.a = NULL};
    assert_ok(&ctx, cuda_slab_create(&ctx, (1 << 16) + dh_cuda_gemm_workspace(d), &r->o.slab));
    r->a = put(&r->o, a, bytes(d->in, d->m * d->lda));
    r->b = put(&r->o, b, bytes(d->in, (d->trans_b ? d->n : d->k) * d->ldb));
    r->bias = put(&r->o, bias, bytes(DH_F32, d->n));
    r->y_at = r->o.used;
    r->y = put(&r->o, y, bytes(d->out, d->m * d->ldc));
    r->aux_at = r->o.used;
    r->aux = put(&r->o, aux, bytes(d->out, d->m * d->ldc));
}

/* y, and what is beside it, become what they are afterwards. */
static dh_status run_gelu(gelu_run *r, const dh_gemm_desc *d, dh_cuda_epilogue epilogue, buf y,
                          buf aux)
{
    dh_ctx ctx = DH_CTX_INIT, run_ctx = DH_CTX_INIT;
    dh_cuda_gemm *g;
    cudaStream_t stream;
    assert_ok(&ctx, dh_cuda_gemm_create_gelu(&ctx, d, epilogue, &g));
    assert_int_equal(dh_cuda_gemm_epilogue(g), epilogue);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    const dh_status st =
        dh_cuda_gemm_run_gelu(&run_ctx, stream, g, r->a, r->b, d->bias ? r->bias : NULL, r->aux,
                              r->y, r->o.slab->at + r->o.used + 64);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    const size_t n = bytes(d->out, d->m * d->ldc);
    assert_ok(&ctx, cuda_slab_read(&ctx, r->o.slab, r->y_at, y.raw, n));
    assert_ok(&ctx, cuda_slab_read(&ctx, r->o.slab, r->aux_at, aux.raw, n));
    cudaStreamDestroy(stream);
    dh_cuda_gemm_destroy(g);
    cuda_slab_destroy(r->o.slab);
    return st;
}

static dh_gemm_desc desc_of(const gemm_case *c, dh_dtype dtype)
{
    return (dh_gemm_desc){c->m,     c->n,          c->k,  c->trans_a, c->trans_b,     a_row(c),
                          b_row(c), c->n + c->pad, dtype, dtype,      .bias = c->bias};
}

/* Between rows nothing is touched. */
static void run_gelu_case(const gemm_case *c, dh_cuda_epilogue epilogue, dh_dtype dtype,
                          uint64_t *seed)
{
    const dh_gemm_desc d = desc_of(c, dtype);
    const double tolerance = dtype == DH_BF16 ? 1.3e-2 : 1e-5;
    buf a = buf_random(dtype, c->m * a_row(c), 1, seed);
    buf b = buf_random(dtype, (c->trans_b ? c->n : c->k) * b_row(c), 1, seed);
    buf bias = buf_random(DH_F32, c->n, 1, seed), y = buf_random(dtype, c->m * d.ldc, 1, seed);
    buf aux = buf_random(dtype, c->m * d.ldc, 2, seed);
    double *want = widen(y), *sums = widen(aux);
    gelu_run r;
    begin_gelu(&r, &d, a, b, bias, y, aux);
    if (epilogue == DH_CUDA_GELU) r.aux = NULL;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            const double sum = (c->bias ? get(bias, j) : 0) + product_of(c, a, b, i, j);
            const int64_t at = i * d.ldc + j;
            want[at] = epilogue == DH_CUDA_DGELU ? sum * gelu_slope(sums[at]) : gelu(sum);
            if (epilogue == DH_CUDA_GELU_AUX) sums[at] = sum;
        }
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, run_gelu(&r, &d, epilogue, y, aux));
    check_close("GELU of a product", y, want, tolerance);
    check_close("beside it", aux, sums, tolerance);
    free(want);
    free(sums);
    buf_free(aux);
    buf_free(y);
    buf_free(bias);
    buf_free(b);
    buf_free(a);
}

static void gelu_is_made_in_products(void **state)
{
    static const gemm_case forward[] = {{24, 40, 16, false, true, false, true, 8},
                                        {7, 16, 5, false, true, false, false, 0}},
                           backward[] = {{24, 40, 16, false, false, false, false, 8},
                                         {5, 8, 3, false, false, false, false, 0}};
    uint64_t seed = test_seed("gelu in gemm");
    for (dh_dtype t = DH_F32; t <= DH_BF16; t = (dh_dtype)(t + 1))
        for (size_t i = 0; i < DH_COUNTOF(forward); i++) {
            run_gelu_case(&forward[i], DH_CUDA_GELU, t, &seed);
            run_gelu_case(&forward[i], DH_CUDA_GELU_AUX, t, &seed);
            run_gelu_case(&backward[i], DH_CUDA_DGELU, t, &seed);
        }
}

/* h[24,40] beside g, rows 48 apart: by columns 40 x 24 with that leading dimension. */
static void the_matrix_beside_it_is_given_as_the_result_is(void **state)
{
    static const gemm_case c = {24, 40, 16, false, true, false, true, 8};
    uint64_t seed = 1;
    const int64_t before = dh_host_n_gelu();
    run_gelu_case(&c, DH_CUDA_GELU_AUX, DH_BF16, &seed);
    const dh_host_product p = dh_host_last_product();
    assert_int_equal(p.epilogue, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    assert_int_equal(p.aux_ld, 48);
    assert_true(p.bias);
    assert_layout(p.d, 40, 24, 48);
    assert_int_equal(dh_host_n_gelu(), before + 1);
}

/* Where cuBLASLt has none: rows, types, or none at all. */
static void refuses_gelu_that_there_is_not(void **state)
{
    static const dh_gemm_desc odd = {8, 12, 8, .in = DH_BF16, .out = DH_BF16},
                              wide = {8, 16, 8, .in = DH_BF16, .out = DH_F32},
                              adding = {8, 16, 8, .in = DH_F32, .out = DH_F32, .accumulate = true},
                              good = {8, 16, 8, .in = DH_F32, .out = DH_F32};
    dh_cuda_gemm *g;
    dh_ctx ctx = DH_CTX_INIT;
    assert_int_equal(dh_cuda_gemm_create_gelu(&ctx, &odd, DH_CUDA_GELU_AUX, &g), DH_EUNSUPPORTED);
    assert_non_null(strstr(ctx.message, "multiple of 8 elements, not of 12"));
    dh_ctx_reset(&ctx);
    assert_int_equal(dh_cuda_gemm_create_gelu(&ctx, &wide, DH_CUDA_GELU, &g), DH_EINVAL);
    dh_ctx_reset(&ctx);
    assert_int_equal(dh_cuda_gemm_create_gelu(&ctx, &adding, DH_CUDA_DGELU, &g), DH_EINVAL);
    dh_ctx_reset(&ctx);
    dh_host_lack_gelu(true);
    assert_int_equal(dh_cuda_gemm_create_gelu(&ctx, &good, DH_CUDA_DGELU, &g), DH_EUNSUPPORTED);
    assert_non_null(strstr(ctx.message, "by the slope of GELU: CUBLAS_STATUS_NOT_SUPPORTED"));
    dh_host_lack_gelu(false);
    assert_int_equal(dh_host_n_objects(), 0);
}

/* The matrix beside it at an address that is not what was promised; on bytes of the result; beyond
 * the device's memory. */
static void a_matrix_that_lies_wrong_is_found(void **state)
{
    static const gemm_case c = {8, 16, 8, false, false, false, false, 0};
    const dh_gemm_desc d = desc_of(&c, DH_BF16);
    uint64_t seed = 1;
    buf a = buf_random(DH_BF16, 64, 1, &seed), b = buf_random(DH_BF16, 128, 1, &seed),
        bias = buf_random(DH_F32, 16, 1, &seed), y = buf_random(DH_BF16, 128, 1, &seed),
        aux = buf_random(DH_BF16, 128, 1, &seed);
    for (int kind = 0; kind < 4; kind++) {
        gelu_run r;
        begin_gelu(&r, &d, a, b, bias, y, aux);
        if (kind == 1) r.aux = (char *)r.aux + 8;
        if (kind == 2) r.aux = (char *)r.y + 32; /* a row of both is the same */
        if (kind == 3) r.aux = r.o.slab->at + r.o.slab->n_bytes + (1 << 20);
        assert_int_equal(run_gelu(&r, &d, DH_CUDA_DGELU, y, aux), kind ? DH_EINTERNAL : DH_OK);
    }
    buf_free(aux);
    buf_free(y);
    buf_free(bias);
    buf_free(b);
    buf_free(a);
}

static void refuses_impossible_products(void **state)
{
    static const dh_gemm_desc wrong[] = {
        {0, 4, 4, .in = DH_F32, .out = DH_F32},
        {4, 4, 4, .in = DH_F32, .out = DH_BF16},
        {4, 4, 4, .in = DH_F32, .out = DH_F32, .bias = true, .accumulate = true},
    };
    dh_cuda_gemm *g;
    for (size_t i = 0; i < DH_COUNTOF(wrong); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        assert_int_equal(dh_cuda_gemm_create(&ctx, &wrong[i], &g), DH_EINVAL);
    }
    dh_ctx ctx = DH_CTX_INIT;
    const dh_gemm_desc narrow = {8, 8, 8, .lda = 4, .in = DH_F32, .out = DH_F32};
    assert_int_equal(dh_cuda_gemm_create(&ctx, &narrow, &g), DH_EUNSUPPORTED);
    assert_non_null(strstr(ctx.message, "CUBLAS_STATUS_INVALID_VALUE"));
    assert_int_equal(dh_host_n_objects(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_the_reference),
        cmocka_unit_test(forward_is_given_by_columns),
        cmocka_unit_test(the_inputs_gradient_is_given_by_columns),
        cmocka_unit_test(the_weights_gradient_is_given_by_columns),
        cmocka_unit_test(gelu_is_made_in_products),
        cmocka_unit_test(the_matrix_beside_it_is_given_as_the_result_is),
        cmocka_unit_test(refuses_gelu_that_there_is_not),
        cmocka_unit_test(a_matrix_that_lies_wrong_is_found),
        cmocka_unit_test(refuses_impossible_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
