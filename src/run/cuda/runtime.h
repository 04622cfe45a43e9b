/* Calls of the CUDA runtime and of cuBLASLt, and what becomes of those that fail. */
#ifndef DH_RUN_CUDA_RUNTIME_H
#define DH_RUN_CUDA_RUNTIME_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "base/base.h"

/* errors    DH_ENOMEM CUDA has no memory; DH_EINTERNAL every other error. The message has the
 *           call and CUDA's name of the error */
dh_status dh_cuda_check(dh_ctx *ctx, cudaError_t error, const char *call);
dh_status dh_cublas_check(dh_ctx *ctx, cublasStatus_t status, const char *call);

#define CUDA_TRY(call) DH_TRY(dh_cuda_check(ctx, (call), #call))
#define CUBLAS_TRY(call) DH_TRY(dh_cublas_check(ctx, (call), #call))

/* Memory of the calling thread's device that holds a copy of what lies on the host.
 * out: set only on DH_OK; caller frees with dh_cuda_drop */
dh_status dh_cuda_upload(dh_ctx *ctx, const void *data, size_t n_bytes, void **at);
void dh_cuda_drop(void *at); /* NULL is fine */

#endif
