/* The cuda device's table row. */
#ifndef DH_RUN_CUDA_DEVICE_H
#define DH_RUN_CUDA_DEVICE_H

#include "run/exec/device.h"

/* Not in the registry by itself: builds that have it add it (dh_device_add). */
extern const dh_device dh_device_cuda;

#endif
