/* Programs made ready to run on the CPU, and the memory they run in. */
#ifndef DH_RUN_CPU_EXEC_H
#define DH_RUN_CPU_EXEC_H

#include "run/comm/comm.h"
#include "run/exec/backend.h"

struct dh_slab {
    unsigned char *at;
    uint64_t n_bytes;
    size_t mapped; /* bytes mapped, with the guard page behind the slab */
    uint64_t peak; /* end of the highest byte used */
};

dh_status dh_cpu_exec_create(dh_ctx *ctx, const dh_program *program, dh_slab *slab, dh_comm *comm,
                             dh_exec **exec);
void dh_cpu_exec_destroy(dh_exec *exec);
dh_status dh_cpu_exec_run(dh_ctx *ctx, dh_exec *exec, const dh_step *step);
const dh_span *dh_cpu_exec_spans(const dh_exec *exec);

bool dh_cpu_can_communicate(dh_op_type type);
/* One communication operator on a group (communicate.c): tensor shapes give counts. */
struct dh_cpu_call;
dh_status dh_cpu_communicate(dh_ctx *ctx, dh_comm_group *group, const dh_block *block,
                             const struct dh_cpu_call *call);

#endif
