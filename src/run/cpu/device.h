/* The cpu device's table row. */
#ifndef DH_RUN_CPU_DEVICE_H
#define DH_RUN_CPU_DEVICE_H

#include "run/exec/device.h"

extern const dh_device dh_device_cpu;

#endif
