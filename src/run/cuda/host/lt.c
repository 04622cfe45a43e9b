/* cuBLASLt on the host, for tests: matrices by columns, as their layouts say and no other way.
 *
 * What a call is given is held against what its heuristic was asked for: layouts that do not fit
 * one another, matrices that reach beyond memory of the device, addresses that are less aligned
 * than was promised, too little workspace are refused. The workspace is overwritten. Sums are of
 * float32, in order. */
#include <cublasLt.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "dhelix/dtype.h"
#include "run/cpu/fp8.h"
#include "run/cuda/host/host.h"

typedef struct dh_host_matrix matrix;

typedef struct matmul {
    int32_t trans_a, trans_b, bias_type, sms;
    uint32_t epilogue;
    const void *bias;
    int32_t scale_mode[2]; /* of A and B */
    const float *scales[2];
} matmul;

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t alignment[4]; /* A, B, C, D */
} preference;

/* What an algorithm was found for. */
typedef struct choice {
    uint32_t magic, alignment[4];
    uint64_t workspace_bytes;
} choice;

enum { CHOSEN = 0x17c4, WORKSPACE_ALIGN = 256, DEFAULT_ALIGN = 256 };

/* The handles, whose types are CUDA's own where its headers are. */
static matmul *matmul_of(cublasLtMatmulDesc_t desc)
{
    return (matmul *)(void *)desc;
}

static matrix *matrix_of(cublasLtMatrixLayout_t layout)
{
    return (matrix *)(void *)layout;
}

static preference *preference_of(cublasLtMatmulPreference_t pref)
{
    return (preference *)(void *)pref;
}

/* ---- descriptions -----------------------------------------------------------------------------
 */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    static int handle;
    *lightHandle = (cublasLtHandle_t)(void *)&handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_ALLOC_FAILED  ? "CUBLAS_STATUS_ALLOC_FAILED"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_NOT_SUPPORTED";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType_t scaleType)
{
    if (computeType != CUBLAS_COMPUTE_32F || scaleType != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    matmul *m = calloc(1, sizeof *m);
    if (!m) return CUBLAS_STATUS_ALLOC_FAILED;
    m->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    m->bias_type = -1;
    *matmulDesc = (cublasLtMatmulDesc_t)(void *)m;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc)
{
    free(matmul_of(matmulDesc));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *to, size_t room, const void *buf, size_t n_bytes)
{
    if (n_bytes != room) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, buf, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t sizeInBytes)
{
    matmul *m = matmul_of(matmulDesc);
    if (attr == CUBLASLT_MATMUL_DESC_TRANSA)
        return set(&m->trans_a, sizeof m->trans_a, buf, sizeInBytes);
    if (attr == CUBLASLT_MATMUL_DESC_TRANSB)
        return set(&m->trans_b, sizeof m->trans_b, buf, sizeInBytes);
    if (attr == CUBLASLT_MATMUL_DESC_EPILOGUE)
        return set(&m->epilogue, sizeof m->epilogue, buf, sizeInBytes);
    if (attr == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        return set((void *)&m->bias, sizeof m->bias, buf, sizeInBytes);
    if (attr == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)
        return set(&m->bias_type, sizeof m->bias_type, buf, sizeInBytes);
    for (int k = 0; k < 2; k++) {
        if ((int)attr == (int)CUBLASLT_MATMUL_DESC_A_SCALE_POINTER + k)
            return set((void *)&m->scales[k], sizeof m->scales[k], buf, sizeInBytes);
        if ((int)attr == (int)CUBLASLT_MATMUL_DESC_A_SCALE_MODE + k)
            return set(&m->scale_mode[k], sizeof m->scale_mode[k], buf, sizeInBytes);
    }
    if (attr == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET)
        return set(&m->sms, sizeof m->sms, buf, sizeInBytes);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    matrix *m = calloc(1, sizeof *m);
    if (!m) return CUBLAS_STATUS_ALLOC_FAILED;
    *m = (matrix){(int)type, rows, cols, ld};
    *matLayout = (cublasLtMatrixLayout_t)(void *)m;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout)
{
    free(matrix_of(matLayout));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    preference *p = calloc(1, sizeof *p);
    if (!p) return CUBLAS_STATUS_ALLOC_FAILED;
    for (int i = 0; i < 4; i++) p->alignment[i] = DEFAULT_ALIGN;
    *pref = (cublasLtMatmulPreference_t)(void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes)
{
    preference *p = preference_of(pref);
    const int i = (int)attr - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&p->workspace_bytes, sizeof p->workspace_bytes, buf, sizeInBytes);
    if (i < 0 || i >= 4) return CUBLAS_STATUS_NOT_SUPPORTED;
    return set(&p->alignment[i], sizeof p->alignment[i], buf, sizeInBytes);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    free(preference_of(pref));
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static bool is_fp8(int type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static bool is_type(int type)
{
    return type == CUDA_R_32F || type == CUDA_R_16BF || is_fp8(type);
}

static size_t element_bytes(int type)
{
    return is_fp8(type) ? 1 : type == CUDA_R_16BF ? sizeof(dh_bf16) : sizeof(float);
}

static uint64_t rows_of(const matrix *m, bool transposed)
{
    return transposed ? m->cols : m->rows;
}

static bool same(const matrix *a, const matrix *b)
{
    return a->type == b->type && a->rows == b->rows && a->cols == b->cols && a->ld == b->ld;
}

/* What cuBLASLt asks of operands of 8 bits: A transposed and B not, rows of 16 bytes, not both
 * e5m2, a bias in bf16; and here, that A's and B's vectors scale them. */
static cublasStatus_t check_fp8(const matmul *m, const matrix *a, const matrix *b, const matrix *d)
{
    const bool both = is_fp8(a->type) && is_fp8(b->type) &&
                      (a->type == CUDA_R_8F_E4M3 || b->type == CUDA_R_8F_E4M3);
    const bool scaled = m->scale_mode[0] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
                        m->scale_mode[1] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const bool in_runs = a->rows % 16 == 0 && a->ld % 16 == 0 && b->ld % 16 == 0 &&
                         d->ld * (int64_t)element_bytes(d->type) % 16 == 0;
    const bool fits = m->trans_a && !m->trans_b && in_runs && !is_fp8(d->type) &&
                      (m->epilogue == CUBLASLT_EPILOGUE_DEFAULT || d->type == CUDA_R_16BF);
    return both && scaled && fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* As cuBLASLt's table of types has it, for those that are known here. */
static cublasStatus_t check(const matmul *m, const matrix *a, const matrix *b, const matrix *c,
                            const matrix *d)
{
    const matrix *all[] = {a, b, c, d};
    for (size_t i = 0; i < DH_COUNTOF(all); i++)
        if (!is_type(all[i]->type) || all[i]->rows == 0 || all[i]->cols == 0 ||
            all[i]->ld < (int64_t)all[i]->rows)
            return CUBLAS_STATUS_INVALID_VALUE;
    if (rows_of(a, m->trans_a) != d->rows || rows_of(b, !m->trans_b) != d->cols ||
        rows_of(a, !m->trans_a) != rows_of(b, m->trans_b) || !same(c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_fp8(a->type) || is_fp8(b->type)) {
        const cublasStatus_t st = check_fp8(m, a, b, d);
        if (st != CUBLAS_STATUS_SUCCESS) return st;
    } else if (a->type != b->type || (a->type == CUDA_R_32F && d->type != CUDA_R_32F)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (m->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if (m->epilogue != CUBLASLT_EPILOGUE_BIAS) return CUBLAS_STATUS_NOT_SUPPORTED;
    const int bias_type = m->bias_type == -1 ? d->type : m->bias_type;
    return bias_type == d->type ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Takes less than all of the workspace that it may. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t pref, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
    const preference *p = preference_of(pref);
    choice chosen = {.magic = CHOSEN, .workspace_bytes = p->workspace_bytes / 2};
    const cublasStatus_t st = check(matmul_of(operationDesc), matrix_of(Adesc), matrix_of(Bdesc),
                                    matrix_of(Cdesc), matrix_of(Ddesc));
    *returnAlgoCount = 0;
    if (st != CUBLAS_STATUS_SUCCESS) return st;
    if (requestedAlgoCount < 1) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(chosen.alignment, p->alignment, sizeof chosen.alignment);
    cublasLtMatmulHeuristicResult_t *found = &heuristicResultsArray[0];
    memset(found, 0, sizeof *found);
    memcpy(&found->algo, &chosen, sizeof chosen);
    found->workspaceSize = chosen.workspace_bytes;
    *returnAlgoCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ------------------------------------------------------------------------------
 */

typedef struct product {
    matmul m;
    matrix a, b, c, d;
    const void *at_a, *at_b, *at_c;
    void *at_d, *workspace;
    size_t workspace_bytes;
    float alpha, beta;
} product;

static float value(const matrix *m, const void *at, uint64_t row, uint64_t col)
{
    const uint64_t i = row + col * (uint64_t)m->ld;
    if (is_fp8(m->type))
        return dh_fp8_value(
            dh_fp8_grid_of(m->type == CUDA_R_8F_E4M3 ? DH_FP8_FORMAT_E4M3 : DH_FP8_FORMAT_E5M2),
            ((const uint8_t *)at)[i]);
    return m->type == CUDA_R_16BF ? dh_bf16_to_f32(((const dh_bf16 *)at)[i])
                                  : ((const float *)at)[i];
}

static float bias_of(const product *p, uint64_t row)
{
    const matrix column = {p->d.type, p->d.rows, 1, (int64_t)p->d.rows};
    return p->m.epilogue == CUBLASLT_EPILOGUE_BIAS ? value(&column, p->m.bias, row, 0) : 0;
}

static void set_value(const product *p, uint64_t row, uint64_t col, float x)
{
    const uint64_t i = row + col * (uint64_t)p->d.ld;
    if (p->d.type == CUDA_R_16BF)
        ((dh_bf16 *)p->at_d)[i] = dh_f32_to_bf16(x);
    else
        ((float *)p->at_d)[i] = x;
}

static float dot(const product *p, uint64_t row, uint64_t col)
{
    const bool ta = p->m.trans_a, tb = p->m.trans_b;
    const uint64_t n = rows_of(&p->b, tb);
    float sum = 0;
    for (uint64_t k = 0; k < n; k++)
        sum += value(&p->a, p->at_a, ta ? k : row, ta ? row : k) *
               value(&p->b, p->at_b, tb ? col : k, tb ? k : col);
    return is_fp8(p->a.type) ? sum * p->m.scales[0][row] * p->m.scales[1][col] : sum;
}

static void run_product(const void *user)
{
    const product *p = user;
    if (p->workspace_bytes) memset(p->workspace, 0xFF, p->workspace_bytes);
    for (uint64_t j = 0; j < p->d.cols; j++)
        for (uint64_t i = 0; i < p->d.rows; i++) {
            const float c = p->beta != 0 ? p->beta * value(&p->c, p->at_c, i, j) : 0;
            set_value(p, i, j, p->alpha * dot(p, i, j) + c + bias_of(p, i));
        }
}

static bool is_there(const matrix *m, const void *at, uint32_t alignment)
{
    const uint64_t n = (m->cols - 1) * (uint64_t)m->ld + m->rows;
    return (uintptr_t)at % alignment == 0 && dh_host_on_device(at, n * element_bytes(m->type));
}

/* A float for each row of D, and for each column. */
static bool scales_are_there(const product *p)
{
    return !is_fp8(p->a.type) ||
           (dh_host_on_device(p->m.scales[0], p->d.rows * sizeof(float)) &&
            dh_host_on_device(p->m.scales[1], p->d.cols * sizeof(float)) &&
            (uintptr_t)p->m.scales[0] % 16 == 0 && (uintptr_t)p->m.scales[1] % 16 == 0);
}

static bool operands_are_there(const product *p, const choice *chosen)
{
    const bool has_bias = p->m.epilogue == CUBLASLT_EPILOGUE_BIAS;
    return is_there(&p->a, p->at_a, chosen->alignment[0]) &&
           is_there(&p->b, p->at_b, chosen->alignment[1]) &&
           is_there(&p->c, p->at_c, chosen->alignment[2]) &&
           is_there(&p->d, p->at_d, chosen->alignment[3]) &&
           (!has_bias || (dh_host_on_device(p->m.bias, p->d.rows * element_bytes(p->d.type)) &&
                          (uintptr_t)p->m.bias % 16 == 0)) &&
           (chosen->workspace_bytes == 0 || ((uintptr_t)p->workspace % WORKSPACE_ALIGN == 0 &&
                                             dh_host_on_device(p->workspace, p->workspace_bytes)));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dh_host_product last;

static void note(const product *p)
{
    pthread_mutex_lock(&lock);
    last = (dh_host_product){.trans_a = p->m.trans_a,
                             .trans_b = p->m.trans_b,
                             .bias = p->m.epilogue == CUBLASLT_EPILOGUE_BIAS,
                             .a = p->a,
                             .b = p->b,
                             .c = p->c,
                             .d = p->d,
                             .beta = p->beta,
                             .workspace_bytes = p->workspace_bytes,
                             .sms = p->m.sms};
    pthread_mutex_unlock(&lock);
}

dh_host_product dh_host_last_product(void)
{
    pthread_mutex_lock(&lock);
    const dh_host_product copy = last;
    pthread_mutex_unlock(&lock);
    return copy;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
                              const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
                              const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspaceSize, cudaStream_t stream)
{
    const product p = {*matmul_of(computeDesc),
                       *matrix_of(Adesc),
                       *matrix_of(Bdesc),
                       *matrix_of(Cdesc),
                       *matrix_of(Ddesc),
                       A,
                       B,
                       C,
                       D,
                       workspace,
                       workspaceSize,
                       *(const float *)alpha,
                       *(const float *)beta};
    choice chosen;
    const cublasStatus_t st = check(&p.m, &p.a, &p.b, &p.c, &p.d);
    if (st != CUBLAS_STATUS_SUCCESS) return st;
    memcpy(&chosen, algo, sizeof chosen);
    if (chosen.magic != CHOSEN || workspaceSize < chosen.workspace_bytes || !scales_are_there(&p) ||
        !operands_are_there(&p, &chosen))
        return CUBLAS_STATUS_INVALID_VALUE;
    note(&p);
    return dh_host_enqueue(stream, run_product, &p, sizeof p) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}
