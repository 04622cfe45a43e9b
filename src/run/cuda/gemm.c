/* GEMMs through cuBLASLt, which sees matrices by columns.
 *
 * A matrix [r,c] by rows with a stride is, by columns, its transpose: c x r with that stride as
 * leading dimension. So C = op(A) op(B) is asked for as C' = op(B)' op(A)': B comes first, and is
 * transposed if it is stored [n,k]. A bias goes along the rows of C', where cuBLASLt's epilogue
 * adds it; it wants C's type. GELU after it and its gradient are epilogues too. They leave and read
 * a matrix of sums in addition to C, in C's type. Its rows are multiples of 8 elements at addresses
 * of multiples of 16 bytes.
 *
 * The algorithm is chosen when a product is planned and stays, so that a repeated call has the same
 * bits. */
#include "run/cuda/gemm.h"

#include <pthread.h>
#include <stdlib.h>

#include "run/cuda/link.h"
#include "run/cuda/runtime.h"

enum { MOST_DEVICES = DH_CUDA_MOST_GPUS, OPERAND_ALIGN = 16, WORKSPACE_ALIGN = 256, AUX_RUN = 8 };

struct dh_cuda_gemm {
    dh_gemm_desc d;        /* leading dimensions filled in */
    cudaDataType types[2]; /* of A and B */
    dh_cuda_epilogue epilogue;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* of our A, B, C */
    cublasLtMatmulAlgo_t algo;
};

/* ---- one handle a device ----------------------------------------------------------------------
 */

static dh_status handle_of_device(dh_ctx *ctx, cublasLtHandle_t *handle)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static cublasLtHandle_t handles[MOST_DEVICES];
    int device;
    CUDA_TRY(cudaGetDevice(&device));
    if (device >= MOST_DEVICES)
        return dh_fail(ctx, DH_EUNSUPPORTED, "more than %d GPUs on a machine", MOST_DEVICES);
    pthread_mutex_lock(&lock);
    dh_status st = DH_OK;
    if (!handles[device])
        st = dh_cublas_check(ctx, cublasLtCreate(&handles[device]), "cublasLtCreate");
    *handle = handles[device];
    pthread_mutex_unlock(&lock);
    return st;
}

/* ---- scratch ----------------------------------------------------------------------------------
 */

static size_t aligned(size_t n_bytes)
{
    return (n_bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

static size_t bias_bytes(const dh_gemm_desc *d)
{
    return d->bias ? aligned((size_t)d->n * dh_dtype_bytes(d->out)) : 0;
}

/* TUNING: a guess until one has run: NVIDIA advises 32 MiB for Hopper; a product that is cut along
 * k into eight needs no more than eight results. */
static size_t library_bytes(const dh_gemm_desc *d)
{
    const size_t most = (size_t)32 << 20, result = (size_t)d->m * (size_t)d->n * sizeof(float);
    return DH_MIN(most, aligned(8 * result));
}

size_t dh_cuda_gemm_workspace(const dh_gemm_desc *desc)
{
    return WORKSPACE_ALIGN + bias_bytes(desc) + library_bytes(desc);
}

/* ---- planning ---------------------------------------------------------------------------------
 */

static dh_status check(dh_ctx *ctx, dh_gemm_desc *d)
{
    const int64_t a_cols = d->trans_a ? d->m : d->k, b_cols = d->trans_b ? d->k : d->n;
    const bool narrows = d->in == DH_F32 && d->out == DH_BF16;
    if (d->m < 1 || d->n < 1 || d->k < 1 || (d->bias && d->accumulate) || narrows)
        return dh_fail(ctx, DH_EINVAL, "no product of %lld x %lld x %lld, %s to %s%s%s",
                       (long long)d->m, (long long)d->n, (long long)d->k, dh_dtype_name(d->in),
                       dh_dtype_name(d->out), d->bias ? ", with a bias" : "",
                       d->accumulate ? ", added to what is there" : "");
    if (!d->lda) d->lda = a_cols;
    if (!d->ldb) d->ldb = b_cols;
    if (!d->ldc) d->ldc = d->n;
    return DH_OK;
}

static cudaDataType type_of(dh_dtype dtype)
{
    return dtype == DH_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cudaDataType type_of_codes(dh_fp8_format format)
{
    return format == DH_FP8_FORMAT_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

/* A matrix of rows x cols by rows. */
static dh_status describe(dh_ctx *ctx, cudaDataType type, int64_t rows, int64_t cols, int64_t ld,
                          cublasLtMatrixLayout_t *layout)
{
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(layout, type, (uint64_t)cols, (uint64_t)rows, ld));
    return DH_OK;
}

static dh_status describe_operands(dh_ctx *ctx, dh_cuda_gemm *g)
{
    const dh_gemm_desc *d = &g->d;
    const bool ta = d->trans_a, tb = d->trans_b;
    DH_TRY(describe(ctx, g->types[0], ta ? d->k : d->m, ta ? d->m : d->k, d->lda, &g->a));
    DH_TRY(describe(ctx, g->types[1], tb ? d->n : d->k, tb ? d->k : d->n, d->ldb, &g->b));
    return describe(ctx, type_of(d->out), d->m, d->n, d->ldc, &g->c);
}

/* Processors that communicators of the GPU leave; 0: there are none. */
static dh_status free_sms(dh_ctx *ctx, int32_t *n)
{
    int gpu;
    struct cudaDeviceProp is;
    *n = 0;
    CUDA_TRY(cudaGetDevice(&gpu));
    const int taken = dh_cuda_sms_of_links(gpu);
    if (taken == 0) return DH_OK;
    CUDA_TRY(cudaGetDeviceProperties(&is, gpu));
    *n = DH_MAX(is.multiProcessorCount - taken, is.multiProcessorCount / 2);
    return DH_OK;
}

static dh_status check_epilogue(dh_ctx *ctx, const dh_cuda_gemm *g)
{
    const dh_gemm_desc *d = &g->d;
    if (g->epilogue == DH_CUDA_PLAIN) return DH_OK;
    if (d->in != d->out || d->accumulate)
        return dh_fail(ctx, DH_EINVAL, "no GELU of a product of %s to %s%s", dh_dtype_name(d->in),
                       dh_dtype_name(d->out), d->accumulate ? ", added to what is there" : "");
    if (d->ldc % AUX_RUN == 0) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "GELU in a product wants rows of a multiple of %d elements, not of %lld",
                   AUX_RUN, (long long)d->ldc);
}

/* A scale for every row of A and of B: B comes first. */
static dh_status describe_scales(dh_ctx *ctx, cublasLtMatmulDesc_t product)
{
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode,
                                              sizeof mode));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode,
                                              sizeof mode));
    return DH_OK;
}

static uint32_t epilogue_of(const dh_cuda_gemm *g)
{
    const bool bias = g->d.bias;
    switch (g->epilogue) {
    case DH_CUDA_GELU:
        return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case DH_CUDA_GELU_AUX:
        return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case DH_CUDA_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    case DH_CUDA_PLAIN:
        break;
    }
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Pointers are set when it is launched. Until then they stand for how they will be aligned, which
 * cuBLASLt chooses by. */
static dh_status describe_epilogue(dh_ctx *ctx, const dh_cuda_gemm *g)
{
    const uint32_t epilogue = epilogue_of(g);
    const int32_t bias_type = type_of(g->d.out);
    const uintptr_t least = OPERAND_ALIGN;
    const int64_t ld = g->d.ldc;
    cublasLtMatmulDesc_t p = g->product;
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                              sizeof epilogue));
    if (g->d.bias) {
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                  &bias_type, sizeof bias_type));
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &least,
                                                  sizeof least));
    }
    if (g->epilogue != DH_CUDA_GELU_AUX && g->epilogue != DH_CUDA_DGELU) return DH_OK;
    CUBLAS_TRY(
        cublasLtMatmulDescSetAttribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &least,
                                              sizeof least));
    return DH_OK;
}

static dh_status describe_product(dh_ctx *ctx, dh_cuda_gemm *g)
{
    int32_t n_sms;
    const int32_t first = g->d.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                  second = g->d.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDesc_t *p = &g->product;
    CUBLAS_TRY(cublasLtMatmulDescCreate(p, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(
        cublasLtMatmulDescSetAttribute(*p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    CUBLAS_TRY(
        cublasLtMatmulDescSetAttribute(*p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    DH_TRY(free_sms(ctx, &n_sms));
    if (n_sms > 0)
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(*p, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &n_sms,
                                                  sizeof n_sms));
    if (g->d.in == DH_U8) DH_TRY(describe_scales(ctx, *p));
    return g->d.bias || g->epilogue != DH_CUDA_PLAIN ? describe_epilogue(ctx, g) : DH_OK;
}

/* Views begin at any row. */
static uint32_t alignment_of(dh_dtype dtype, int64_t ld)
{
    const uint64_t row = (uint64_t)ld * dh_dtype_bytes(dtype);
    return (uint32_t)DH_MIN((uint64_t)OPERAND_ALIGN, row & -row);
}

static dh_status prefer(dh_ctx *ctx, const dh_gemm_desc *d, cublasLtMatmulPreference_t pref)
{
    const uint64_t room = library_bytes(d);
    const uint32_t a = alignment_of(d->in, d->lda), b = alignment_of(d->in, d->ldb),
                   c = alignment_of(d->out, d->ldc);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t bytes;
    } alignments[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b}, /* B comes first */
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c}};
    for (size_t i = 0; i < DH_COUNTOF(alignments); i++)
        CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(pref, alignments[i].attribute,
                                                        &alignments[i].bytes, sizeof(uint32_t)));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &room, sizeof room));
    return DH_OK;
}

static dh_status choose(dh_ctx *ctx, dh_cuda_gemm *g, cublasLtMatmulPreference_t pref)
{
    cublasLtMatmulHeuristicResult_t found = {.workspaceSize = 0};
    int n = 0;
    DH_TRY(prefer(ctx, &g->d, pref));
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(g->handle, g->product, g->b, g->a,
                                                                 g->c, g->c, pref, 1, &found, &n);
    if (status != CUBLAS_STATUS_SUCCESS || n < 1)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "cuBLASLt has no way to a product of %lld x %lld x "
                       "%lld, %s to %s%s: %s%s",
                       (long long)g->d.m, (long long)g->d.n, (long long)g->d.k,
                       g->d.in == DH_U8 ? "fp8" : dh_dtype_name(g->d.in), dh_dtype_name(g->d.out),
                       g->epilogue == DH_CUDA_DGELU   ? ", by the slope of GELU"
                       : g->epilogue != DH_CUDA_PLAIN ? ", with GELU of it"
                                                      : "",
                       cublasLtGetStatusName(status),
                       g->d.in == DH_U8 ? " (train.fp8 needs a GPU with products of 8 bits and "
                                          "scales by rows, and sizes that are multiples of 16)"
                                        : "");
    g->algo = found.algo;
    return DH_OK;
}

static dh_status plan(dh_ctx *ctx, dh_cuda_gemm *g)
{
    cublasLtMatmulPreference_t pref;
    DH_TRY(check(ctx, &g->d));
    DH_TRY(check_epilogue(ctx, g));
    DH_TRY(handle_of_device(ctx, &g->handle));
    DH_TRY(describe_operands(ctx, g));
    DH_TRY(describe_product(ctx, g));
    CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&pref));
    const dh_status st = choose(ctx, g, pref);
    cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

static dh_status create(dh_ctx *ctx, const dh_gemm_desc *desc, const cudaDataType types[2],
                        dh_cuda_epilogue epilogue, dh_cuda_gemm **gemm)
{
    dh_cuda_gemm *g = calloc(1, sizeof *g);
    if (!g) return dh_no_memory(ctx);
    *g = (dh_cuda_gemm){.d = *desc, .types = {types[0], types[1]}, .epilogue = epilogue};
    const dh_status st = plan(ctx, g);
    if (st != DH_OK) {
        dh_cuda_gemm_destroy(g);
        return st;
    }
    *gemm = g;
    return DH_OK;
}

dh_status dh_cuda_gemm_create(dh_ctx *ctx, const dh_gemm_desc *desc, dh_cuda_gemm **gemm)
{
    return dh_cuda_gemm_create_gelu(ctx, desc, DH_CUDA_PLAIN, gemm);
}

dh_status dh_cuda_gemm_create_gelu(dh_ctx *ctx, const dh_gemm_desc *desc, dh_cuda_epilogue epilogue,
                                   dh_cuda_gemm **gemm)
{
    const cudaDataType types[2] = {type_of(desc->in), type_of(desc->in)};
    return create(ctx, desc, types, epilogue, gemm);
}

dh_status dh_cuda_gemm_create_fp8(dh_ctx *ctx, const dh_gemm_desc *desc,
                                  const dh_fp8_format formats[2], dh_cuda_gemm **gemm)
{
    const cudaDataType types[2] = {type_of_codes(formats[0]), type_of_codes(formats[1])};
    return create(ctx, desc, types, DH_CUDA_PLAIN, gemm);
}

dh_cuda_epilogue dh_cuda_gemm_epilogue(const dh_cuda_gemm *gemm)
{
    return gemm->epilogue;
}

void dh_cuda_gemm_destroy(dh_cuda_gemm *gemm)
{
    if (!gemm) return;
    if (gemm->product) cublasLtMatmulDescDestroy(gemm->product);
    if (gemm->a) cublasLtMatrixLayoutDestroy(gemm->a);
    if (gemm->b) cublasLtMatrixLayoutDestroy(gemm->b);
    if (gemm->c) cublasLtMatrixLayoutDestroy(gemm->c);
    free(gemm);
}

/* ---- launching --------------------------------------------------------------------------------
 */

/* In C's type, at an address that any algorithm can read from. */
static dh_status set_bias(dh_ctx *ctx, dh_cuda_stream stream, const dh_cuda_gemm *g,
                          const float *bias, void *scratch)
{
    const bool fits = g->d.out == DH_F32 && (uintptr_t)bias % OPERAND_ALIGN == 0;
    const void *at = fits ? (const void *)bias : scratch;
    if (!fits) dh_cuda_cast(stream, g->d.n, DH_F32, bias, g->d.out, scratch);
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                              (const void *)&at, sizeof at));
    return DH_OK;
}

static dh_status set_scales(dh_ctx *ctx, const dh_cuda_gemm *g, const dh_cuda_scales *scales)
{
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                              (const void *)&scales->b, sizeof scales->b));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                              (const void *)&scales->a, sizeof scales->a));
    return DH_OK;
}

dh_status dh_cuda_gemm_run(dh_ctx *ctx, dh_cuda_stream stream, const dh_cuda_gemm *g, const void *a,
                           const void *b, const float *bias, const dh_cuda_scales *scales, void *c,
                           void *ws)
{
    const float alpha = 1, beta = g->d.accumulate ? 1 : 0;
    char *scratch = ws;
    scratch += aligned((uintptr_t)ws) - (uintptr_t)ws;
    if (g->d.bias) DH_TRY(set_bias(ctx, stream, g, bias, scratch));
    scratch += bias_bytes(&g->d);
    if (scales) DH_TRY(set_scales(ctx, g, scales));
    CUBLAS_TRY(cublasLtMatmul(g->handle, g->product, &alpha, b, g->b, a, g->a, &beta, c, g->c, c,
                              g->c, &g->algo, scratch, library_bytes(&g->d), stream));
    return DH_OK;
}

dh_status dh_cuda_gemm_run_gelu(dh_ctx *ctx, dh_cuda_stream stream, const dh_cuda_gemm *g,
                                const void *a, const void *b, const float *bias, const void *aux,
                                void *c, void *ws)
{
    if (aux)
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(
            g->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (const void *)&aux, sizeof aux));
    return dh_cuda_gemm_run(ctx, stream, g, a, b, bias, NULL, c, ws);
}
