/* One product of dense matrices through cuBLASLt: planned once, launched on streams. */
#ifndef DH_RUN_CUDA_GEMM_H
#define DH_RUN_CUDA_GEMM_H

#include "run/cuda/kernels.h"

typedef struct dh_cuda_gemm dh_cuda_gemm;

/* As dh_gemm_desc says (run/cpu/kernels.h), but without row_invariant: matrices by rows. On the
 * calling thread's device. Addresses of a, b and c will be multiples of 16 bytes, or of as many as
 * divide the length of their rows. Launches of one object must not overlap in time on the host.
 * errors    DH_EINVAL sizes or types; DH_EUNSUPPORTED cuBLASLt has no algorithm; DH_EINTERNAL,
 *           DH_ENOMEM from cuBLASLt */
dh_status dh_cuda_gemm_create(dh_ctx *ctx, const dh_gemm_desc *desc, dh_cuda_gemm **gemm);
/* Of codes of 8 bits: A [m,k] and B [n,k] in these formats, not both e5m2; desc: in DH_U8, trans_b,
 * and rows in whole runs of 16 bytes. Needs a GPU that has such products. */
dh_status dh_cuda_gemm_create_fp8(dh_ctx *ctx, const dh_gemm_desc *desc,
                                  const dh_fp8_format formats[2], dh_cuda_gemm **gemm);
/* Treatment of the sums, with the bias in them; GELU is the one by tanh. */
typedef enum dh_cuda_epilogue {
    DH_CUDA_PLAIN,
    DH_CUDA_GELU,     /* C = GELU(sums) */
    DH_CUDA_GELU_AUX, /* C = GELU(sums), aux = sums */
    DH_CUDA_DGELU     /* C = sums times the slope of GELU at aux */
} dh_cuda_epilogue;
/* aux is a matrix like C, of the same type and distance of rows, without a byte in common with C.
 * After DH_EUNSUPPORTED a kernel of its own has to do the epilogue.
 * errors    those of dh_cuda_gemm_create; DH_EUNSUPPORTED also if cuBLASLt has no such epilogue,
 *           or if C's rows are no multiple of 8 elements */
dh_status dh_cuda_gemm_create_gelu(dh_ctx *ctx, const dh_gemm_desc *desc, dh_cuda_epilogue epilogue,
                                   dh_cuda_gemm **gemm);
dh_cuda_epilogue dh_cuda_gemm_epilogue(const dh_cuda_gemm *gemm);
void dh_cuda_gemm_destroy(dh_cuda_gemm *gemm);
/* Bytes of scratch that any such product is given, at any address; known without a device. */
size_t dh_cuda_gemm_workspace(const dh_gemm_desc *desc);
/* Of codes: the rows of A and of B are multiplied by a_scales [m] and b_scales [n], on the device.
 */
typedef struct dh_cuda_scales {
    const float *a, *b;
} dh_cuda_scales;
/* scales: NULL where operands are no codes */
dh_status dh_cuda_gemm_run(dh_ctx *ctx, dh_cuda_stream stream, const dh_cuda_gemm *gemm,
                           const void *a, const void *b, const float *bias,
                           const dh_cuda_scales *scales, void *c, void *ws);
/* With an epilogue; aux: NULL where it has none. */
dh_status dh_cuda_gemm_run_gelu(dh_ctx *ctx, dh_cuda_stream stream, const dh_cuda_gemm *gemm,
                                const void *a, const void *b, const float *bias, const void *aux,
                                void *c, void *ws);

#endif
