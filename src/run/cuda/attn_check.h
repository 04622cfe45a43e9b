/* Which attention a GPU uses. */
#ifndef DH_RUN_CUDA_ATTN_CHECK_H
#define DH_RUN_CUDA_ATTN_CHECK_H

#include "base/base.h"

/* The first time for the calling thread's device: compares attention by wgmma with the portable
 * kernels, and uses it from then on where it is close; says once what came of it. Nothing happens
 * where the GPU or the build has none, or with DHELIX_WGMMA=off. errors: CUDA's; kernels that do
 * not end */
dh_status dh_cuda_choose_attention(dh_ctx *ctx);

#endif
