/* Traffic between ranks in a step, by what it carries: bytes, times, and computation meanwhile. */
#ifndef DH_REPORT_CARGO_H
#define DH_REPORT_CARGO_H

#include "report/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dh_cargo {
    DH_CARGO_LAYERS,     /* of tensor, context and expert parallelism */
    DH_CARGO_STAGES,     /* activations and their gradients, from stage to stage */
    DH_CARGO_GRADIENTS,  /* of parameters: reductions */
    DH_CARGO_NORM,       /* of the gradients */
    DH_CARGO_PARAMETERS, /* gathered after the optimizer */
    DH_N_CARGO
} dh_cargo;
/* "layers", ... */
const char *dh_cargo_name(dh_cargo cargo);
/* The kind of data that an instruction carries; DH_N_CARGO: it computes. */
dh_cargo dh_instr_cargo(const dh_program *program, uint32_t instr);

/* Bytes that a rank sends in a communication, by the formulas of paced links (comm.h of run).
 * Each of n members sends (n - 1) / n of the whole, twice that in an all-reduce; a transfer
 * sends all. */
double dh_instr_sent_bytes(const dh_program *program, uint32_t instr);

/* Communications of one rank, added up. */
typedef struct dh_haul {
    uint32_t n;
    double n_bytes;                 /* size of the moved or summed whole, on this rank */
    double sent_bytes[DH_N_ENGINE]; /* that the rank sends on each link: rings, direct exchanges */
    double alone_ns;                /* their own times */
    int64_t ns;                     /* under way, from when all partners had come */
    dh_transfer_times times;
} dh_haul;
/* Own time that does not make the step longer, one call's exposed time added to another's. */
int64_t dh_haul_hidden_ns(const dh_haul *haul);
int64_t dh_haul_exposed_ns(const dh_haul *haul);
/* Most frequent cause of what is exposed. */
dh_exposure dh_haul_cause(const dh_haul *haul);
void dh_haul_add(dh_haul *sum, const dh_haul *one);

/* Communications of gradients and parameters that are alike: of neighbouring blocks, on one group,
 * in one slot of the schedule. */
typedef struct dh_cargo_row {
    dh_cargo cargo;
    dh_op_type type;
    dh_group_kind group;
    dh_phase phase;                   /* DH_PHASE_OPT, or in (parameters: for) whose */
    int32_t mb;                       /* ... forward or backward */
    uint32_t first_block, last_block; /* blocks of the parameters; DH_NONE: all */
    int64_t start_ns, end_ns;
    dh_haul haul;
} dh_cargo_row;

typedef struct dh_cargo_list {
    dh_haul all[DH_N_CARGO];
    DH_VEC(dh_cargo_row) rows; /* by start: DH_CARGO_GRADIENTS and what follows it */
} dh_cargo_list;

/* Of a rank's step.
 * in        spans, alone_ns: as in dh_timeline_reduce, alone_ns not NULL
 * out       freed with dh_cargo_list_fini, also after an error
 * errors    those of dh_timeline_reduce
 * cost      O((instructions + waits) log instructions) */
dh_status dh_cargo_read(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                        const double *alone_ns, dh_cargo_list *list);
void dh_cargo_list_fini(dh_cargo_list *list);

#ifdef __cplusplus
}
#endif
#endif
