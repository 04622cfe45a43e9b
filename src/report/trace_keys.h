/* Inside the folder: keys of a trace for tools around PyTorch. Inductor's profile-guided estimator
 * and Holistic Trace Analysis take events of category "kernel" with a stream. They know collectives
 * by a name from "nccl" on, with group and sizes. A kernel's computation comes from the host's
 * operator ("cpu_op") of the same "External id", whose operands have sizes. */
#ifndef DH_REPORT_TRACE_KEYS_H
#define DH_REPORT_TRACE_KEYS_H

#include "program/program.h"

/* Calls of a program so far. */
typedef struct trace_calls {
    uint32_t of_group[DH_N_GROUPS];
    uint32_t *sent, *received; /* [pipeline ranks][2]: messages by peer and tag */
} trace_calls;
bool trace_calls_init(trace_calls *calls, const dh_program *p); /* false: out of memory */
void trace_calls_fini(trace_calls *calls);

/* "distributedInfo" and its neighbours: a comma behind each. */
void trace_print_distributed(const dh_program *p, dh_str *out);
/* "linear", "ncclDevKernel_all_gather" */
void trace_print_name(const dh_op *op, dh_str *out);
/* Into an instruction's args, a comma before each. Instructions in their order. */
void trace_print_keys(const dh_program *p, uint32_t id, trace_calls *calls, dh_str *out);
/* The host's operator, of those that PyTorch has too. */
void trace_print_host(const dh_program *p, const dh_span *span, uint32_t id, dh_str *out);
/* The end of an arrow from a send to its receive, which another rank's trace has. */
void trace_print_message(const dh_program *p, const dh_span *span, uint32_t id, trace_calls *calls,
                         dh_str *out);

enum { TRACE_HOST = DH_N_STREAM }; /* thread of the host's operators */

#endif
