/* Which attention a GPU uses. */
#ifndef DH_RUN_CUDA_ATTN_CHECK_H
#define DH_RUN_CUDA_ATTN_CHECK_H

#include "base/base.h"

/* At its first call for the calling thread's device it compares attention by wgmma with the
 * portable kernels. From then on that attention is used if it is close. The result is said once.
 * Nothing happens where the GPU or the build has no wgmma, or with DHELIX_WGMMA=off.
 * errors    those of CUDA; DH_EINTERNAL kernels that do not end */
dh_status dh_cuda_choose_attention(dh_ctx *ctx);

#endif
