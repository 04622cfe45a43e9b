/* The staged device's table row: the cpu's kernels in an address space of their own. */
#ifndef DH_RUN_STAGED_DEVICE_H
#define DH_RUN_STAGED_DEVICE_H

#include "run/exec/device.h"

extern const dh_device dh_device_staged;

#endif
