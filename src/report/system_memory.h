/* Memory of a step on a device where another system runs it.
 *
 * The program is ours: its tensors, their order and the time each is needed. A system also keeps
 * data of its traits (dh_trait), such as scores of attention and masks of dropout, and has its
 * own layout of gradients. Fragmentation and memory of libraries are not included. */
#ifndef DH_REPORT_SYSTEM_MEMORY_H
#define DH_REPORT_SYSTEM_MEMORY_H

#include "costs/system.h"
#include "program/program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_system_memory {
    uint64_t states_bytes;       /* parameters, copies, gradients, moments, running sums */
    uint64_t layer_states_bytes; /* of them those of layers: embedding and head left out */
    uint64_t layers_kept_bytes;  /* most that layers' forwards keep for their backwards at a time */
    uint64_t peak_bytes;         /* states and all else that is alive at the worst moment */
    int64_t peak_ns;
} dh_system_memory;

/* Bytes that a system keeps for a block in addition to our tensors, from the block's graph
 * alone. */
typedef struct dh_system_block {
    double kept_bytes; /* between its forward and its backward */
    double work_bytes; /* most beside that while an operator runs */
} dh_system_block;
dh_system_block dh_system_block_of(const dh_system *system, const dh_system_job *job,
                                   const dh_graph *graph);

/* Gradients of a bucket (DH_BUF_GRAD) as the system has them. */
double dh_system_gradient_bytes(const dh_system *system, const dh_program *program,
                                const dh_buffer *bucket);

/* in        spans: one for each instruction of a training program; NULL: in the order of issue,
 *           of which peak_ns is then a place
 * errors    DH_ENOMEM
 * cost      O(operands + (instructions + buffers) log) */
dh_status dh_system_memory_of(dh_ctx *ctx, const dh_system *system, const dh_system_job *job,
                              const dh_program *program, const dh_span *spans,
                              dh_system_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
