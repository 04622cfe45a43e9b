/* Devices: memory, streams and kernels that programs run on.
 *
 * A device is one row of a table; programs, planner and trainer do not know which one they use, and
 * the executor (exec.h) knows it by this table alone.
 *
 * A program becomes commands on streams when it is made ready, one an instruction, and a step runs
 * all of them. Commands are bound to addresses once and stay as they are from step to step, so a
 * device may prepare them as a whole (a CUDA graph). Changing values lie in memory that commands
 * read (dh_scalars). A stream runs its commands in order and after the events that they wait for.
 * Only the caller of run waits on the host. */
#ifndef DH_RUN_EXEC_DEVICE_H
#define DH_RUN_EXEC_DEVICE_H

#include "program/program.h"
#include "program/recipe.h"
#include "run/comm/comm.h"
#include "run/exec/scalars.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory --------------------------------------------------------------------------------- */

/* A rank's memory; devices embed it as the first member of their own. */
typedef struct dh_slab {
    unsigned char *at; /* on the device: the host may compute with this address, not follow it */
    uint64_t n_bytes;
    uint64_t peak; /* end of the highest byte that any run has used so far */
} dh_slab;

/* ---- commands ------------------------------------------------------------------------------- */

/* An instruction bound to memory, all of it on the device. Pointers of absent operands are NULL. */
typedef struct dh_call {
    const dh_graph *graph;
    const dh_op *op;
    const void *kernel; /* the result of kernel_prepare, or NULL */
    int layer;
    int32_t mb;
    unsigned accumulate; /* bit i: output i is added to */
    const void *in[DH_MAX_OPERANDS];
    void *out[DH_MAX_OPERANDS];
    void *work;
    const dh_scalars *scalars;
    int64_t *choices;      /* moe_order: how many rows chose each expert, [E], is left here */
    dh_part_hook progress; /* the device's; who does the work may leave it all to the end */
} dh_call;

/* From the device to the host, or the other way. */
typedef struct dh_copy {
    void *to;
    const void *from;
    size_t n_bytes;
} dh_copy;

/* One instruction on its stream: a kernel, or a function of the host between copies of its inputs
 * and outputs. Events are numbers below dh_streams_spec.n_events, each of one command. The command
 * that completes an event comes before all commands that wait for the event. */
typedef struct dh_stream_command {
    uint32_t id;           /* below dh_streams_spec.n_commands */
    uint32_t stream;       /* dh_stream */
    const uint32_t *waits; /* [n_waits] events; borrowed */
    uint32_t n_waits;
    uint32_t event0, n_parts; /* event event0 + k: part k is complete; the last: all of it is */
    dh_call *call;            /* borrowed; the device sets its progress */
    /* NULL: the operator's kernel is launched. Else called once the waits are over, on a thread
     * that may sleep and that holds up no other stream. */
    dh_status (*host)(dh_ctx *ctx, void *user, const dh_call *call);
    /* Or puts work on the stream, whose handle is the device's own, and returns; where the device
     * has links. Fetches are there before it is called, copies are none. */
    dh_status (*enqueue)(dh_ctx *ctx, void *user, const dh_call *call, void *stream);
    void *host_user; /* of either */
    /* Before it, to the host; behind it, from there, the first output's first; borrowed. */
    const dh_copy *fetches, *copies;
    uint32_t n_fetches, n_copies;
    const char *uncaptured; /* why no graph can have it; NULL: as far as the above lets it */
    bool updates;           /* it writes what lasts from step to step: the watch is told of it */
} dh_stream_command;

/* An observer of the streams, told on the threads that do the work. */
typedef struct dh_watch {
    void *user;
    /* A stream begins to work on a command, or has ended it; by devices that can tell. */
    void (*working)(void *user, uint32_t stream, bool works);
    /* Around each command of a run in single steps, its results being there; else not called. */
    dh_status (*before)(dh_ctx *ctx, void *user, uint32_t id);
    dh_status (*after)(dh_ctx *ctx, void *user, uint32_t id);
    /* Around a command that updates: done false before it begins, which may wait; true once its
     * results are in memory. By devices that tell of updates. */
    void (*update)(void *user, bool done);
    /* A command failed, for the reason in ctx. */
    void (*explain)(dh_ctx *ctx, void *user, uint32_t id);
    /* The first failure of a run. */
    void (*failed)(void *user, dh_status status, const char *message);
    /* Told now and then by who waits for a stream on which others are met: whether it is to go on
     * waiting. NULL: no stream meets anybody. */
    dh_status (*waiting)(dh_ctx *ctx, void *user, uint32_t stream, int64_t waited_ns);
} dh_watch;

typedef struct dh_streams_spec {
    uint32_t n_commands, n_events;
    int log_rank; /* of messages of their threads; -1: none */
    dh_watch watch;
} dh_streams_spec;

/* Streams of one program, by dh_stream; devices embed it as the first member of their own. */
typedef struct dh_streams {
    dh_streams_spec spec;
    dh_slab *slab, *values; /* values: scalars and choices; all addresses lie in one of them */
} dh_streams;

/* ---- communication on streams ---------------------------------------------------------------- */

/* A rank's end of a communicator of the device's own: of one group, for calls on one stream. */
typedef struct dh_devlink dh_devlink;

typedef struct dh_devlink_spec {
    const char *name;     /* the group's; static */
    dh_comm *comm;        /* borrowed, as is the group */
    dh_comm_group *group; /* by which the members agree on the link */
    int n;                /* members */
    int rank;             /* of this member in the world */
    int stream; /* dh_stream of all its calls: those of one are never under way together */
    dh_engine wire;
    dh_comm_pace pace; /* pace of the wire; none: unpaced */
    int sms;           /* processors that its calls take at most; 0: as many as they like */
    bool holds;        /* they are its own: GEMMs are planned for the others */
    bool spares;       /* these are fewer than fill its wires: it is to be sparing of them */
} dh_devlink_spec;

typedef enum dh_devlink_kind {
    DH_DEVLINK_ALL_GATHER,
    DH_DEVLINK_REDUCE_SCATTER,
    DH_DEVLINK_ALL_REDUCE,
    DH_DEVLINK_TRANSFERS
} dh_devlink_kind;

/* As the functions of comm.h of that name; reductions are sums. Transfers are made all at once, as
 * dh_comm_batch does; between two members they match in their order, whatever their tags. Of an
 * all-gather and a reduce-scatter in equal parts `progress` is told, where links tell of parts. */
typedef struct dh_devlink_call {
    dh_devlink_kind kind;
    dh_dtype dtype; /* of transfers: of all of them */
    int64_t count;
    const void *send;
    void *recv;
    const dh_comm_xfer *xfers;
    size_t n_xfers;
    int steps; /* of transfers: how many one behind another, of which each takes a wire's latency */
    const dh_part_hook *progress; /* NULL: nobody is told */
} dh_devlink_call;

/* Calls that a device's streams make themselves, without the host waiting. `stream`: the handle
 * that dh_stream_command.enqueue is given. */
typedef struct dh_devlinks {
    const char *name;
    dh_comm_links kind;     /* the job's name for them */
    bool tells_parts;       /* their collectives tell of parts */
    bool paces;             /* their calls take the time of paced wires */
    const char *uncaptured; /* why no graph can have their calls; NULL: it can */
    /* Collective over the group. If its members cannot have a link, *link stays as it is, and why
     * says the reason, the same for all of them. NCCL for example refuses several ranks on one
     * GPU. */
    dh_status (*create)(dh_ctx *ctx, const dh_slab *slab, const dh_devlink_spec *spec,
                        dh_devlink **link, char *why, size_t cap);
    void (*destroy)(dh_devlink *link); /* NULL is fine */
    /* Ends calls under way, done or not; all later calls fail. Any thread. */
    void (*abort)(dh_devlink *link);
    /* Reports a failure after a call that returned. */
    dh_status (*check)(dh_ctx *ctx, dh_devlink *link);
    dh_status (*call)(dh_ctx *ctx, dh_devlink *link, void *stream, const dh_devlink_call *call);
    dh_status (*zero)(dh_ctx *ctx, void *stream, void *at, size_t n_bytes);
    /* y [n] = x [n], rounded to the nearest even or widened. */
    void (*cast)(void *stream, int64_t n, dh_dtype from, const void *x, dh_dtype to, void *y);
} dh_devlinks;

/* ---- the table ------------------------------------------------------------------------------ */

typedef struct dh_device {
    const char *name, *doc;
    dh_backend_info info;
    bool (*has_kernel)(dh_op_type type);
    /* Its kernels also compute what few models ask for (dh_op_variant); false: they know the rest
     * alone, and such a program is refused. */
    bool knows_variants;
    /* Whether parts of its output are told of as they are there; else all of them at the end. */
    bool (*tells_parts)(dh_op_type type);
    bool tells_updates; /* its streams tell a watch of commands that update */

    /* Zero-filled memory of a rank. Several programs may share it. */
    dh_status (*slab_create)(dh_ctx *ctx, uint64_t n_bytes, dh_slab **slab);
    void (*slab_destroy)(dh_slab *slab);
    /* Copies from and to the host between runs. They return when they are done.
     * errors    DH_EINTERNAL outside of the slab */
    dh_status (*slab_write)(dh_ctx *ctx, dh_slab *slab, uint64_t offset, const void *data,
                            uint64_t n_bytes);
    dh_status (*slab_read)(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, void *data,
                           uint64_t n_bytes);
    bool slab_is_host; /* addresses on the device may be followed on the host */
    /* Optional: memory of the host that commands' copies want (pinned); without it any will do.
     * NULL: there is none. */
    void *(*host_alloc)(size_t n_bytes);
    void (*host_free)(void *at);

    /* Optional: communication on its streams, by one way or another in the order in which they are
     * tried; the last is NULL. Without any all goes through the host. */
    const dh_devlinks *const *links;

    /* Made once per operator and accumulate mask (GEMM primitives, tables); *kernel stays NULL
     * where there is nothing to make. */
    dh_status (*kernel_prepare)(dh_ctx *ctx, const dh_graph *graph, const dh_op *op,
                                unsigned accumulate, void **kernel);
    void (*kernel_release)(dh_op_type type, void *kernel);

    /* The spec is copied, slabs are borrowed. */
    dh_status (*streams_create)(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                                const dh_streams_spec *spec, dh_streams **streams);
    void (*streams_destroy)(dh_streams *streams); /* NULL is fine; no run is under way */
    /* Puts a command behind those of its stream; the command itself is copied. */
    dh_status (*issue)(dh_ctx *ctx, dh_streams *streams, const dh_stream_command *command);
    /* All commands once; returns when all are complete, or after the first failure, once nothing is
     * under way any more. Allocates nothing. */
    dh_status (*run)(dh_ctx *ctx, dh_streams *streams, bool single_steps);
    /* Optional: the same. The first call captures all commands, and every call launches them as
     * one.
     * errors    DH_EUNSUPPORTED some commands cannot be captured: names them, before anything is
     *           done */
    dh_status (*run_captured)(dh_ctx *ctx, dh_streams *streams);
    /* Times of the last run, on dh_now_ns's clock. */
    int64_t (*began_ns)(const dh_streams *streams, uint32_t id);
    int64_t (*event_ns)(const dh_streams *streams, uint32_t event);
    /* Index of the first value that is not finite among n at an address of the device, or -1; from
     * a watch's after. */
    dh_status (*first_nonfinite)(dh_ctx *ctx, const dh_streams *streams, dh_dtype dtype, int64_t n,
                                 const void *at, int64_t *first);

    /* Threads of this rank: number, and which of the node's ranks it is. */
    dh_status (*bind_rank)(dh_ctx *ctx, int local_rank, int n_local_ranks, int64_t threads,
                           int *n_threads);
    /* Versions of libraries and instruction set: times depend on them and on the machine. */
    const char *(*describe)(char *buf, size_t cap);
    /* Optional: processors of one, which kernels share with links; 0: not known. */
    int (*processors)(void);
    /* Best GEMM rate seen in a short trial, FLOP/s, for "fraction of peak". */
    double (*gemm_peak)(dh_dtype dtype);
} dh_device;

/* Its links of a kind; NULL: it has none. */
const dh_devlinks *dh_device_links(const dh_device *device, dh_comm_links kind);

/* Whether [offset, offset + n_bytes) lies in the slab.
 * errors    DH_EINTERNAL it does not */
dh_status dh_slab_check(dh_ctx *ctx, const dh_slab *slab, uint64_t offset, uint64_t n_bytes);

const dh_device *const *dh_devices(size_t *n);
/* Adds one that not every build has, behind the others; before any is looked for. False: there are
 * too many. */
bool dh_device_add(const dh_device *device);
/* "auto" is the one that DHELIX_DEVICE names, or else the first. NULL when there is none of that
 * name. */
const dh_device *dh_device_find(const char *name);
/* dh_device_find, with an error.
 * errors    DH_EMISSING: names the devices that there are */
dh_status dh_device_get(dh_ctx *ctx, const char *name, const dh_device **device);

#ifdef __cplusplus
}
#endif
#endif
