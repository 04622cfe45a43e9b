/* Elements of NCCL's types, as its stand-in adds them. */
#ifndef DH_RUN_CUDA_HOST_SUMS_H
#define DH_RUN_CUDA_HOST_SUMS_H

#include <nccl.h>

size_t host_type_bytes(ncclDataType_t type);
/* to[i] = to[i] (+) from[i], rounded to the type; int32 and bytes are not added. */
void host_add_into(ncclDataType_t type, ncclRedOp_t op, void *to, const void *from, size_t i);

#endif
