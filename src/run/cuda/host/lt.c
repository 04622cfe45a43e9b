/* cuBLASLt on the host, for tests: matrices by columns, as their layouts say and no other way.
 *
 * A call is held against the query of its heuristic. It is refused for layouts that do not fit one
 * another, matrices that reach beyond memory of the device, or too little workspace. It is
 * also refused for addresses aligned less than promised, and for an auxiliary matrix over the
 * result's bytes.
 * The workspace is overwritten. Sums are of float32, in order. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "dhelix/dtype.h"
#include "run/cpu/fp8.h"
#include "run/cuda/host/lt.h"

/* The promises for which an algorithm was found. */
typedef struct choice {
    uint32_t magic, alignment[4], bias_alignment, aux_alignment;
    uint64_t workspace_bytes;
} choice;

enum { CHOSEN = 0x17c4, WORKSPACE_ALIGN = 256, AUX_RUN = 8, AUX_ALIGN = 16 };

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

static bool has_bias(const matmul *m)
{
    return m->epilogue == CUBLASLT_EPILOGUE_BIAS || m->epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           m->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool writes_aux(const matmul *m)
{
    return m->epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           m->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_aux(const matmul *m)
{
    return writes_aux(m) || m->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static bool has_gelu(const matmul *m)
{
    return writes_aux(m) || m->epilogue == CUBLASLT_EPILOGUE_GELU ||
           m->epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
}

static bool same(const matrix *a, const matrix *b)
{
    return a->type == b->type && a->rows == b->rows && a->cols == b->cols && a->ld == b->ld;
}

/* cuBLASLt's rules for operands of 8 bits: A transposed and B not, rows of 16 bytes, not both e5m2,
 * a bias in bf16. Here also: A's and B's vectors scale them. */
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

static _Atomic bool lacks_gelu;

void dh_host_lack_gelu(bool lacks)
{
    lacks_gelu = lacks;
}

/* GELU, and its gradient, of products whose types are all one. */
static cublasStatus_t check_epilogue(const matmul *m, const matrix *a, const matrix *d)
{
    const int bias_type = m->bias_type == -1 ? d->type : m->bias_type;
    const bool gelu = has_gelu(m) || has_aux(m);
    if (m->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if (!gelu && !has_bias(m)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_bias(m) && bias_type != d->type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (gelu && (lacks_gelu || a->type != d->type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool fits = m->aux_ld % AUX_RUN == 0 && m->aux_ld >= (int64_t)d->rows;
    return has_aux(m) && !fits ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
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
    return check_epilogue(m, a, d);
}

/* The alignment that a pointer's address promises of later ones. */
static uint32_t promised(const void *at)
{
    const uintptr_t address = (uintptr_t)at;
    return at ? (uint32_t)DH_MIN((uintptr_t)DEFAULT_ALIGN, address & -address) : DEFAULT_ALIGN;
}

/* Takes less than all of the workspace that it may. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t pref, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
    const preference *p = preference_of(pref);
    choice chosen = {.magic = CHOSEN,
                     .bias_alignment = promised(matmul_of(operationDesc)->bias),
                     .aux_alignment = promised(matmul_of(operationDesc)->aux),
                     .workspace_bytes = p->workspace_bytes / 2};
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
    return has_bias(&p->m) ? value(&column, p->m.bias, row, 0) : 0;
}

static void set_value(const matrix *m, void *at, uint64_t row, uint64_t col, float x)
{
    const uint64_t i = row + col * (uint64_t)m->ld;
    if (m->type == CUDA_R_16BF)
        ((dh_bf16 *)at)[i] = dh_f32_to_bf16(x);
    else
        ((float *)at)[i] = x;
}

static matrix aux_of(const product *p)
{
    return (matrix){p->d.type, p->d.rows, p->d.cols, p->m.aux_ld};
}

/* GELU by tanh, x (1 + t) / 2 with t = tanh(u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static double tanh_of(double x)
{
    return tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x));
}

static float gelu(float x)
{
    return (float)(0.5 * (double)x * (1 + tanh_of((double)x)));
}

static float gelu_slope(float y)
{
    const double x = (double)y, t = tanh_of(x);
    const double du = sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * x * x);
    return (float)(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du);
}

/* Result of the epilogue for a sum that includes the bias. */
static float finished(const product *p, uint64_t row, uint64_t col, float sum)
{
    const matrix aux = aux_of(p);
    if (writes_aux(&p->m)) set_value(&aux, p->m.aux, row, col, sum);
    if (has_gelu(&p->m)) return gelu(sum);
    return has_aux(&p->m) ? sum * gelu_slope(value(&aux, p->m.aux, row, col)) : sum;
}

/* An operand's values, each vector that is multiplied with another in one piece: [n_vectors][n].
 * by_columns: its vectors are columns. Caller frees. */
static float *vectors_of(const matrix *m, const void *at, bool by_columns, uint64_t n_vectors,
                         uint64_t n)
{
    float *values = malloc(n_vectors * n * sizeof *values);
    DH_CHECK(values, "out of memory for %llu values", (unsigned long long)(n_vectors * n));
    for (uint64_t v = 0; v < n_vectors; v++)
        for (uint64_t k = 0; k < n; k++)
            values[v * n + k] = value(m, at, by_columns ? k : v, by_columns ? v : k);
    return values;
}

/* D is no part of an operand: the device would read some of it before it is written, some after. */
static void check_unchanged(const matrix *m, const void *at, bool by_columns, uint64_t n_vectors,
                            uint64_t n, float *values)
{
    float *now = vectors_of(m, at, by_columns, n_vectors, n);
    DH_CHECK(memcmp(now, values, n_vectors * n * sizeof *now) == 0, "a product over its operand");
    free(now);
    free(values);
}

static float dot(const float *a, const float *b, uint64_t n)
{
    float sum = 0;
    for (uint64_t k = 0; k < n; k++) sum += a[k] * b[k];
    return sum;
}

static void run_product(const void *user)
{
    const product *p = user;
    const bool ta = p->m.trans_a, tb = !p->m.trans_b;
    const uint64_t n = rows_of(&p->b, p->m.trans_b);
    if (p->workspace_bytes) memset(p->workspace, 0xFF, p->workspace_bytes);
    float *a = vectors_of(&p->a, p->at_a, ta, p->d.rows, n);
    float *b = vectors_of(&p->b, p->at_b, tb, p->d.cols, n);
    for (uint64_t j = 0; j < p->d.cols; j++)
        for (uint64_t i = 0; i < p->d.rows; i++) {
            const float c = p->beta != 0 ? p->beta * value(&p->c, p->at_c, i, j) : 0;
            float sum = dot(a + i * n, b + j * n, n);
            if (is_fp8(p->a.type)) sum = sum * p->m.scales[0][i] * p->m.scales[1][j];
            sum = p->alpha * sum + c + bias_of(p, i);
            set_value(&p->d, p->at_d, i, j, finished(p, i, j, sum));
        }
    check_unchanged(&p->a, p->at_a, ta, p->d.rows, n, a);
    check_unchanged(&p->b, p->at_b, tb, p->d.cols, n, b);
}

static uint64_t span_bytes(const matrix *m)
{
    return ((m->cols - 1) * (uint64_t)m->ld + m->rows) * element_bytes(m->type);
}

static bool is_there(const matrix *m, const void *at, uint32_t alignment)
{
    return (uintptr_t)at % alignment == 0 && dh_host_on_device(at, span_bytes(m));
}

/* No byte of it is D's: which of the two comes first is nobody's to say. */
static bool aux_is_there(const product *p, const choice *chosen)
{
    const matrix aux = aux_of(p);
    const char *at = p->m.aux, *d = p->at_d;
    return !has_aux(&p->m) || (is_there(&aux, at, DH_MAX(AUX_ALIGN, chosen->aux_alignment)) &&
                               (at + span_bytes(&aux) <= d || d + span_bytes(&p->d) <= at));
}

static bool bias_is_there(const product *p, const choice *chosen)
{
    const matrix column = {p->d.type, p->d.rows, 1, (int64_t)p->d.rows};
    return !has_bias(&p->m) || is_there(&column, p->m.bias, DH_MAX(16, chosen->bias_alignment));
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
    return is_there(&p->a, p->at_a, chosen->alignment[0]) &&
           is_there(&p->b, p->at_b, chosen->alignment[1]) &&
           is_there(&p->c, p->at_c, chosen->alignment[2]) &&
           is_there(&p->d, p->at_d, chosen->alignment[3]) && bias_is_there(p, chosen) &&
           aux_is_there(p, chosen) &&
           (chosen->workspace_bytes == 0 || ((uintptr_t)p->workspace % WORKSPACE_ALIGN == 0 &&
                                             dh_host_on_device(p->workspace, p->workspace_bytes)));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dh_host_product last;
static int64_t n_gelu;

static void note(const product *p)
{
    pthread_mutex_lock(&lock);
    last = (dh_host_product){.trans_a = p->m.trans_a,
                             .trans_b = p->m.trans_b,
                             .bias = has_bias(&p->m),
                             .epilogue = p->m.epilogue,
                             .aux_ld = p->m.aux_ld,
                             .a = p->a,
                             .b = p->b,
                             .c = p->c,
                             .d = p->d,
                             .beta = p->beta,
                             .workspace_bytes = p->workspace_bytes,
                             .sms = p->m.sms};
    n_gelu += has_gelu(&p->m) || has_aux(&p->m);
    pthread_mutex_unlock(&lock);
}

dh_host_product dh_host_last_product(void)
{
    pthread_mutex_lock(&lock);
    const dh_host_product copy = last;
    pthread_mutex_unlock(&lock);
    return copy;
}

int64_t dh_host_n_gelu(void)
{
    pthread_mutex_lock(&lock);
    const int64_t n = n_gelu;
    pthread_mutex_unlock(&lock);
    return n;
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
