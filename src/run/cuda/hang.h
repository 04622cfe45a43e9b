/* A run on streams that does not end. */
#ifndef DH_RUN_CUDA_HANG_H
#define DH_RUN_CUDA_HANG_H

#include "run/cuda/lanes.h"

/* DHELIX_CUDA_HANG_S=S in the environment: a run of the streams that takes longer than S seconds
 * ends the process, once it has said of every stream how far it is. Without it nothing is watched.
 * Destroy before what the streams have is destroyed; both may be called without it. */
dh_status cuda_hang_watch(dh_ctx *ctx, cuda_streams *s);
void cuda_hang_leave(cuda_streams *s);
/* Around a run. */
void cuda_hang_begin(cuda_streams *s);
void cuda_hang_end(cuda_streams *s);

#endif
