/* cuBLASLt on the host: descriptions of products, matrices and preferences, as they were set. */
#include <stdlib.h>
#include <string.h>

#include "run/cuda/host/lt.h"

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
    if (attr == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)
        return set((void *)&m->aux, sizeof m->aux, buf, sizeInBytes);
    if (attr == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)
        return set(&m->aux_ld, sizeof m->aux_ld, buf, sizeInBytes);
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
