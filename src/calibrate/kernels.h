/* What a trace has of collectives, GEMMs, attention and norms, put together over its events. */
#ifndef DH_CALIBRATE_KERNELS_H
#define DH_CALIBRATE_KERNELS_H

#include <jansson.h>

#include "calibrate/measured.h"

/* A collective of one size on one kind of group: its shortest occurrence. */
typedef struct kernel_call {
    dh_op_type type;
    int64_t ranks, nodes;
    double bytes, ns;
} kernel_call;

/* An operator of the host, and what its kernels took. */
typedef struct kernel_op {
    int64_t id; /* by which kernels name it */
    dh_measured_kernel is;
} kernel_op;

typedef struct kernels {
    DH_VEC(kernel_call) calls;
    DH_VEC(kernel_op) ops;
    int64_t n_unsized; /* GEMM operators without their sizes */
    int64_t n_unnamed; /* collectives without name, size or group */
} kernels;

/* Both return false where memory is short. */
bool kernels_add_call(kernels *k, const json_t *args, const char *name, double ns,
                      int64_t node_devices);
bool kernels_add_op(kernels *k, const json_t *args, const char *name);

#endif
