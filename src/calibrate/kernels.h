/* Collectives, GEMMs, attention and norms of a trace, put together from its events. */
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
    int64_t id;      /* by which kernels name it */
    uint64_t thread; /* thread of the host where it ran, and when */
    double begin_us, end_us;
    dh_measured_kernel is;
} kernel_op;

/* A call of the runtime that started a kernel. */
typedef struct kernel_start {
    int64_t correlation;
    uint64_t thread;
    double at_us;
} kernel_start;

typedef struct kernels {
    DH_VEC(kernel_call) calls;
    DH_VEC(kernel_op) ops;
    DH_VEC(kernel_start) starts; /* by correlation, once all are there */
    DH_VEC(uint32_t) in_time;    /* ops, by thread and when they begin */
    DH_VEC(int64_t) ids;         /* of all operators of the host, in order once all are there */
    int64_t n_unsized;           /* GEMM operators without their sizes */
    int64_t n_unnamed;           /* collectives without name, size or group */
    int64_t n_unjoined;          /* kernels whose operator cannot be told */
    int64_t n_unplaced;          /* collectives whose ranks cannot be told */
} kernels;

/* Both return false where memory is short. */
bool kernels_add_call(kernels *k, const json_t *args, const char *name, double ns,
                      int64_t node_devices);
bool kernels_add_op(kernels *k, const json_t *event, const char *name);
/* Whether an operator of this kind can have run a kernel, as far as the kernel's name tells. */
bool kernels_can_run(dh_kernel_kind kind, const char *kernel);
/* The thread of the host that an event names. */
uint64_t kernels_thread_of(const json_t *event);

#endif
