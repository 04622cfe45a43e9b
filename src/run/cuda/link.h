/* Communication on the cuda device's own streams: NCCL, and copies between ranks on one GPU. */
#ifndef DH_RUN_CUDA_LINK_H
#define DH_RUN_CUDA_LINK_H

#include "run/exec/device.h"

#define DH_CUDA_MOST_GPUS 64

#ifdef DH_HAVE_NCCL
extern const dh_devlinks dh_cuda_nccl_links;
#endif
extern const dh_devlinks dh_cuda_peer_links;
/* "NCCL 2.28.0", or "no NCCL". */
const char *dh_cuda_nccl_version(char *buf, size_t cap);

/* Processors that products leave to the communicators of a GPU: of each stream those of the
 * greatest, as streams work at the same time. */
int dh_cuda_sms_of_links(int gpu);

#endif
