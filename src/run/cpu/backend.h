/* The CPU backend's table row. */
#ifndef DH_RUN_CPU_BACKEND_H
#define DH_RUN_CPU_BACKEND_H

#include "run/exec/backend.h"

extern const dh_backend dh_backend_cpu;

#endif
