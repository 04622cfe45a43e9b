/* Shared by the two files of the cuBLASLt on the host: the objects behind its handles. */
#ifndef DH_RUN_CUDA_HOST_LT_H
#define DH_RUN_CUDA_HOST_LT_H

#include <cublasLt.h>

#include "run/cuda/host/host.h"

typedef struct dh_host_matrix matrix;

typedef struct matmul {
    int32_t trans_a, trans_b, bias_type, sms;
    uint32_t epilogue;
    const void *bias;
    void *aux; /* of D's type, written or read */
    int64_t aux_ld;
    int32_t scale_mode[2]; /* of A and B */
    const float *scales[2];
} matmul;

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t alignment[4]; /* A, B, C, D */
} preference;

enum { DEFAULT_ALIGN = 256 };

/* The handles, whose types are CUDA's own where its headers are. */
static inline matmul *matmul_of(cublasLtMatmulDesc_t desc)
{
    return (matmul *)(void *)desc;
}

static inline matrix *matrix_of(cublasLtMatrixLayout_t layout)
{
    return (matrix *)(void *)layout;
}

static inline preference *preference_of(cublasLtMatmulPreference_t pref)
{
    return (preference *)(void *)pref;
}

#endif
