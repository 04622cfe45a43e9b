/* The parts of a step's time, from when every instruction of a rank ran: how much
 * communication was hidden behind computation, and why the rest was not. And the same
 * step as a file for chrome://tracing or Perfetto.
 *
 * Hidden time has one definition: communication's own time minus the time by which the step got
 * longer because of it. The own time of an instruction, or its time alone, is that with nothing
 * beside it. The step gets longer in two ways. The compute stream stands still while a transfer
 * runs, or a computation beside a transfer takes longer than alone. */
#ifndef DH_REPORT_TIMELINE_H
#define DH_REPORT_TIMELINE_H

#include "costs/costs.h"
#include "program/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why communication made the step longer. In the first four cases the compute stream did nothing
 * while a transfer ran; "next" is the next instruction of the compute stream. A communication runs
 * from dh_span.met_ns on; its wait for partners before that is no transfer, nothing can hide it,
 * and it counts apart (dh_waiting). Where it is not known it is in the transfer's time, and another
 * rank's lateness shows as dependency. */
typedef enum dh_exposure {
    DH_EXPOSED_DEPENDENCY, /* next waits for this communication, directly or through others */
    DH_EXPOSED_CONTENTION, /* next waits for a later one of the same stream: this is in its way */
    DH_EXPOSED_TAIL,       /* no computation is left in the step */
    DH_EXPOSED_LATE,       /* next waits for no transfer that runs: it was started late */
    DH_EXPOSED_SLOWDOWN,   /* a computation beside the transfer took longer than alone */
    DH_N_EXPOSURE
} dh_exposure;
/* "dependency", ... */
const char *dh_exposure_name(dh_exposure cause);

/* For whom the rank stood still: nothing ran, and next, or the end of the step, waits for a
 * communication whose partners have not all come, directly or through others. */
typedef enum dh_waiting {
    DH_WAITS_STAGES,   /* it spans pipeline stages: the bubble */
    DH_WAITS_PARTNERS, /* ranks of its own stage that are late */
    DH_N_WAITING
} dh_waiting;
/* "bubble", "partners" */
const char *dh_waiting_name(dh_waiting what);

/* Nanoseconds of one rank's step, or of several added up. Exactly
 *   exposed = sum of exposed_by
 *   hidden + exposed = alone
 *   span = (busy[compute] - exposed_by[slowdown]) + exposed + idle
 *   idle = sum of waits + time of launches, and of cores that were not given
 *
 * Hidden time is negative where communication costs the step more than its own time. If two
 * communications run at once, the cause that comes first counts. */
typedef struct dh_timeline {
    int64_t span_ns;              /* first start to last end */
    int64_t busy_ns[DH_N_ENGINE]; /* something ran on a stream of the engine */
    int64_t alone_ns;             /* own times of all communications, added up */
    int64_t hidden_ns;
    int64_t exposed_ns; /* by which the step is longer */
    int64_t exposed_by_ns[DH_N_EXPOSURE];
    int64_t idle_ns; /* no computation and no transfer on any stream */
    int64_t waits_ns[DH_N_WAITING];
} dh_timeline;

/* A wait for a part counts as one for its instruction: while that runs, it is what is waited for.
 * A computation is slowed down by at most the time for which a transfer ran beside it.
 * in        spans: one for each instruction of the program
 *           alone_ns [instructions]: own times; NULL: each took its own time
 * out       set only on DH_OK; all 0 for an empty program
 * errors    DH_EINVAL a span ends before it starts or meets outside itself, or starts before the
 *           stream's previous one ended; an instruction waits for a later one; DH_ENOMEM
 * cost      O(instructions + waits): streams run in order, so spans come sorted; pure */
dh_status dh_timeline_reduce(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                             const double *alone_ns, dh_timeline *timeline);
/* The same of a step that really ran, with own times that it shows itself. Operators in the same
 * place of one graph are of one kind. A kind's own time is the mean over those of its instructions
 * that had nothing beside them: a computation no transfer, a transfer no computation. A kind that
 * has none takes its measured time, scaled by the time of its engine's other kinds here over their
 * measured time. Without a measured time it took its own time, and so its slowdown counts as
 * none.
 * in        measured_ns [instructions]: NULL, or own times from a profile; 0: not measured */
dh_status dh_timeline_observe(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                              const double *measured_ns, dh_timeline *timeline);
/* out       measured_ns [instructions]: own times that these costs have measured; 0: they have not
 * errors    DH_ENOMEM */
dh_status dh_timeline_measured(dh_ctx *ctx, const dh_program *program, const dh_costs *costs,
                               double *measured_ns);
/* The parts of one communication's time, from met_ns to end_ns; they add up to it. */
typedef struct dh_transfer_times {
    int64_t beside_ns[DH_N_PHASE]; /* computation that went on, by phase */
    int64_t exposed_by_ns[DH_N_EXPOSURE];
} dh_transfer_times;

/* Of every communication; of computations zeros.
 * in        spans, alone_ns: as in dh_timeline_reduce
 * out       each [instructions]
 * errors    those of dh_timeline_reduce */
dh_status dh_timeline_transfers(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                                const double *alone_ns, dh_transfer_times *each);
void dh_timeline_add(dh_timeline *sum, const dh_timeline *one);
/* Time of the step's computation alone: busy[compute] without its slowdown. */
int64_t dh_timeline_compute_ns(const dh_timeline *timeline);
/* Hidden part of communication's own time; 0 where there is none. */
double dh_timeline_hidden_share(const dh_timeline *timeline);

/* Bytes of a rank's transient buffers alive from at_ns until the next point's. */
typedef struct dh_memory_point {
    int64_t at_ns;
    int64_t activation_bytes, scratch_bytes;
} dh_memory_point;

/* A buffer is alive from the start of the first instruction that touches it to the end of the
 * last. With program->persistent_bytes the sum never exceeds program->slab_bytes.
 * in        spans: one for each instruction of the program
 * out       set only on DH_OK: points [*n] in order of time, the last one 0; caller frees
 * errors    DH_ENOMEM
 * cost      O(operands + buffers log buffers); pure */
dh_status dh_memory_over_time(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                              dh_memory_point **points, size_t *n);

/* The step in Chrome's trace event format (JSON object form). Process = rank, thread = stream.
 *
 *   complete events   One of category "kernel" for each instruction. Name: the operator, with
 *                     "ncclDevKernel_" before a communication. Args: operator, phase, instruction,
 *                     kind of block, output tensor, micro-batch, layer, bytes of its operands.
 *                     Of a communication: group of ranks or pipeline rank, time it waited for
 *                     partners. Of a computation: flops.
 *   instant events    A part of an output is complete; an arrow leads to each instruction that
 *                     waits for it.
 *   half arrows       One for each message between stages; the other half is in the other rank's
 *                     file.
 *   counter events    The counter "memory": activations and scratch alive, in bytes.
 *   "otherData"       The rank, its planned bytes, and those of each persistent kind.
 *
 * Times are those of the monotonic clock in microseconds, so files of ranks on one machine join
 * into one trace (dh_trace_join).
 *
 * The file also has keys that PyTorch's profile-guided estimator, Holistic Trace Analysis and
 * `dhelix profile --from-trace` read, as Kineto writes them. All have "stream" and "External
 * id". Collectives have "Collective name", "Process Group Name", "Group size", "In msg nelems" and
 * more. Groups are in "distributedInfo". Operators of the host ("cpu_op") have "Input Dims".
 * errors    DH_EIO, DH_ENOMEM; path then is as it was */
dh_status dh_trace_write(dh_ctx *ctx, const char *path, const dh_program *program,
                         const dh_span *spans);

/* Ranks whose trace-rank<N>.json lie in a folder, ascending; there may be none. The caller frees
 * the list, on errors too.
 * errors    of opening and reading the folder; DH_ENOMEM */
typedef DH_VEC(int64_t) dh_trace_ranks;
dh_status dh_trace_list(dh_ctx *ctx, const char *dir, dh_trace_ranks *ranks);

/* Writes all trace-rank*.json of a run folder as one file. The keys next to the events are the
 * first rank's.
 * errors    DH_EMISSING the folder has none; DH_EFORMAT; DH_EIO; DH_ENOMEM */
dh_status dh_trace_join(dh_ctx *ctx, const char *dir, const char *path);

#ifdef __cplusplus
}
#endif
#endif
