/* Communication between ranks: groups, collectives and point-to-point transfers.
 *
 * A world holds all ranks of a run. Its kind is a row of a table: `local` (ranks
 * are threads of this process) or `mpi` (one rank a process). Every call blocks
 * its thread until the data have arrived and sleeps meanwhile. Calls are meant for
 * the worker thread of a communication stream, so they never take the computing
 * core.
 *
 * Numbers. Reductions combine operands in group order 0..n-1, element by element;
 * bf16 accumulates in float32 and rounds once at the end. Results are therefore
 * bit-identical from run to run, for every group layout and for every kind of world.
 * Integer sums wrap; a NaN operand makes the maximum NaN.
 *
 * Failure. Every wait is bounded by dh_comm_config.timeout_ns. The first failure
 * (dh_comm_abort, a timeout, calls that do not fit together) ends the world. All
 * calls under way and all later ones return DH_ECOMM with that failure's message
 * and what this rank was doing. After it a world can only be destroyed.
 *
 * Threads. A group is used by one thread at a time; different groups of one rank
 * by different threads freely. dh_comm_abort may be called from any thread. */
#ifndef DH_RUN_COMM_COMM_H
#define DH_RUN_COMM_COMM_H

#include "base/base.h"
#include "base/engine.h"
#include "dhelix/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Code, name, then a ring's charges on a paced link over n ranks: dependent steps, and
 * elements on the busiest member's wire. The vector has `total` elements, its smallest
 * slice `least`. */
#define DH_COMM_KIND_LIST(X)                                                                       \
    X(DH_COMM_ALL_GATHER, "all_gather", (n)-1, total - least)                                      \
    X(DH_COMM_REDUCE_SCATTER, "reduce_scatter", (n)-1, total - least)                              \
    X(DH_COMM_ALL_REDUCE, "all_reduce", 2 * ((n)-1), 2 * (total - total / (n)))                    \
    X(DH_COMM_ALL_TO_ALL, "all_to_all", (n)-1, total - least)                                      \
    X(DH_COMM_BROADCAST, "broadcast", (n)-1, (n) > 1 ? total : 0)                                  \
    X(DH_COMM_BARRIER, "barrier", dh_comm_log2_ceil(n), 0)                                         \
    X(DH_COMM_SEND, "send", 1, total)                                                              \
    X(DH_COMM_RECV, "recv", 1, total)                                                              \
    X(DH_COMM_EXCHANGE, "exchange", 1, total)                                                      \
    X(DH_COMM_BATCH, "batch", 1, total)

typedef enum dh_comm_kind {
#define X(code, name, steps, wire) code,
    DH_COMM_KIND_LIST(X)
#undef X
        DH_N_COMM_KIND
} dh_comm_kind;
const char *dh_comm_kind_name(dh_comm_kind kind);

typedef enum dh_comm_reduce { DH_REDUCE_SUM, DH_REDUCE_MAX, DH_N_REDUCE } dh_comm_reduce;

/* ---- the table of worlds ---------------------------------------------------------------- */

typedef struct dh_comm_impl dh_comm_impl;
typedef struct dh_comm_ops {
    const char *name, *doc;
    const dh_comm_impl *impl; /* NULL: not built in */
} dh_comm_ops;
const dh_comm_ops *dh_comm_table(size_t *n);

/* ---- worlds ----------------------------------------------------------------------------- */

/* An emulated link; paced when either is above 0. */
typedef struct dh_comm_pace {
    double gbps;       /* 1e9 bits per second, each direction; 0: unlimited */
    double latency_us; /* per dependent step */
} dh_comm_pace;

/* How an mpi call waits. Measured over a rate-limited wire with the computing
 * thread on the same core: YIELD hides most, BLOCK least. */
typedef enum dh_comm_progress {
    DH_PROGRESS_YIELD, /* test, sched_yield; sleeps once nothing came for a long time */
    DH_PROGRESS_SLEEP, /* a few tests, a few yields, then sleeps of 20 to 200 us */
    DH_PROGRESS_BLOCK, /* MPI_Waitall: neither timeout nor abort is noticed inside */
    DH_N_PROGRESS
} dh_comm_progress;

/* Which collectives mpi compares between members before any data travel. local compares all. */
typedef enum dh_comm_checking {
    DH_CHECK_FIRST, /* calls whose kind, type, sizes or root are new on the group */
    DH_CHECK_EVERY
} dh_comm_checking;

/* Called at the start of every call on a group, on the calling thread; for tests
 * and fault injection. It may sleep or end the thread; DROP makes the call return
 * DH_OK without taking part. seq counts the rank's calls of all groups from 1. */
typedef enum dh_comm_action { DH_COMM_PROCEED, DH_COMM_DROP } dh_comm_action;
typedef dh_comm_action (*dh_comm_hook)(void *user, int rank, int64_t seq, dh_comm_kind kind);

/* Whether devices that can communicate on their own streams do so. */
typedef enum dh_comm_links {
    DH_LINKS_AUTO,   /* each group by the first kind below that it can have, if any */
    DH_LINKS_NCCL,   /* each rank having a device of its own, or it is an error */
    DH_LINKS_DEVICE, /* all being threads that share one, or it is an error */
    DH_LINKS_NEVER,
    DH_N_LINKS
} dh_comm_links;

/* Zero-initialised fields mean the default. */
typedef struct dh_comm_config {
    int ranks;                      /* local: number of ranks; mpi: 0, or what must be there */
    int ranks_per_node;             /* declared topology; 0: local has one node, mpi asks MPI */
    dh_comm_pace pace[DH_N_ENGINE]; /* by link; local only; mpi refuses: its wire is real */
    int64_t timeout_ns;             /* longest wait of one call; default 60 s */
    dh_comm_progress progress;      /* mpi; default YIELD */
    dh_comm_checking check;         /* mpi; default FIRST */
    int64_t eager_bytes; /* local: sends up to this do not wait for the peer; default 16 KiB */
    int64_t max_message_bytes; /* mpi: larger messages travel in parts; default 1 GiB */
    /* For devices that communicate on streams of their own, in addition to this world. */
    dh_comm_links links;
    /* Processors of a device that calls of each stream take hold, by dh_stream; 0: they hold none, and
     * take as many as fill their link. Borrowed; NULL: all 0. */
    const int *link_sms;
    dh_comm_hook hook;
    void *hook_user;
} dh_comm_config;

/* Exit code of mpi processes that had to stop for want of ranks that are silent or gone. */
enum { DH_COMM_EXIT_LOST = 3 };

typedef struct dh_comm_world dh_comm_world; /* of the process */
typedef struct dh_comm dh_comm;             /* of one rank */
typedef struct dh_comm_group dh_comm_group; /* of one rank in one group */

/* A world by table row. mpi initialises MPI for many threads unless that was done already, and ends
 * it at exit. A process that exits while its world is alive or failed takes the other ranks down
 * with MPI_Abort.
 * in        config: copied; NULL: all defaults
 * errors    DH_EMISSING unknown name; DH_EUNSUPPORTED not built in, too weak an MPI;
 *           DH_EINVAL config; DH_ENOMEM; DH_ECOMM MPI failed
 * out       one a process; destroy when no thread is inside a call */
dh_status dh_comm_world_create(dh_ctx *ctx, const char *name, const dh_comm_config *config,
                               dh_comm_world **world);
void dh_comm_world_destroy(dh_comm_world *world); /* with its ranks and groups; NULL is fine */

int dh_comm_world_size(const dh_comm_world *world);
/* Ranks first .. first + n - 1 live in this process, to be attached by it. */
void dh_comm_world_here(const dh_comm_world *world, int *first, int *n);
/* "local: 4 ranks, local link shared memory, cross link paced at 4 Gbit/s + 50 us".
 * Whatever reports times of a run says this beside them. */
const char *dh_comm_world_describe(const dh_comm_world *world, char *buf, size_t cap);

/* Whether a rank is one for want of which the world has failed: it left, or did nothing until the
 * others had waited too long, and waited for nobody itself. Known where its ranks are threads, once
 * all have been detached; false else, and where the world failed for another reason. */
bool dh_comm_world_lost(const dh_comm_world *world, int rank);

/* The handle of one rank, each rank once, from its own thread; lives as long as the world. A
 * detached rank makes no more calls. A rank that waits for it fails at once instead of after the
 * timeout.
 * errors    DH_EINVAL not a rank of this process, or attached before */
dh_status dh_comm_attach(dh_ctx *ctx, dh_comm_world *world, int rank, dh_comm **comm);
void dh_comm_detach(dh_comm *comm);

/* Sets the longest wait of the rank's later calls. Call it while none of its calls is under way.
 * in        why: its origin, for messages ("20 times the slowest step") */
void dh_comm_set_timeout(dh_comm *comm, int64_t timeout_ns, const char *why);

/* Its longest wait; and what its world was made with, defaults filled in. */
int64_t dh_comm_timeout_ns(const dh_comm *comm);
const dh_comm_config *dh_comm_config_of(const dh_comm *comm);

/* Around whatever a rank does on a stream (0 .. 31), its calls there included: so that one
 * that computes is told from one that waits. Any thread, cheap. */
void dh_comm_enter(dh_comm *comm, int stream);
void dh_comm_leave(dh_comm *comm, int stream);

/* End the world: all other ranks' calls return DH_ECOMM with "rank N stopped: message". */
void dh_comm_abort(dh_comm *comm, const char *message);
/* Whether the world still works. For ranks that compute long between calls. Cheap.
 * errors    DH_ECOMM it has failed, with its message */
dh_status dh_comm_check(dh_ctx *ctx, dh_comm *comm);

/* ---- groups ----------------------------------------------------------------------------- */

typedef struct dh_comm_group_spec {
    const char *name;   /* for messages, up to 31 bytes: "tp" */
    const int *members; /* [n] distinct world ranks; their order is the group's order */
    int n;
    int stream;     /* calls of groups with different streams never match one another */
    dh_engine wire; /* the link that all its calls use */
} dh_comm_group_spec;

/* Collective over the members; each rank creates its groups in an order that fits
 * its partners'. The spec is copied; the group lives until it is destroyed, or as long as the
 * world.
 * errors    DH_EINVAL spec; DH_ECOMM a member did not come; DH_ENOMEM */
dh_status dh_comm_group_create(dh_ctx *ctx, dh_comm *comm, const dh_comm_group_spec *spec,
                               dh_comm_group **group);
/* Ends this rank's use of the group and frees its memory. Memory that all members share is freed
 * when the last of them calls this; no member waits for it. A group created afterwards is
 * another one, even with the same spec. Call it in an order that fits the partners', while the
 * world exists and no call is under way. NULL is fine. */
void dh_comm_group_destroy(dh_comm_group *group);
int dh_comm_group_size(const dh_comm_group *group);
int dh_comm_group_index(const dh_comm_group *group); /* of this rank */

/* The times of the last call on the group, as this rank sees them (dh_now_ns): begun, met by all
 * participants, ended. An unknown arrived_ns is 0: with mpi, or for a send that did not wait. */
typedef struct dh_comm_times {
    int64_t called_ns, arrived_ns, ended_ns;
} dh_comm_times;
dh_comm_times dh_comm_group_times(const dh_comm_group *group);

/* Bytes that the rank's calls have put on a link so far: its sends in a ring, or directly to
 * others in an all_to_all. Paced links (below) take their time by the same count. The bytes that
 * an mpi library really sends for a collective are not known. */
int64_t dh_comm_sent_bytes(const dh_comm *comm, dh_engine wire);

/* Adds what a rank has sent on a group's wire by other means than its calls. Any thread. */
void dh_comm_add_sent(dh_comm_group *group, int64_t n_bytes);

/* Reserves scratch so that no later call with up to n_bytes in its larger vector allocates (mpi
 * reductions need that much; local none). It is for callers that measure, or may not allocate.
 * Otherwise the first call that needs more allocates.
 * errors    DH_ENOMEM */
dh_status dh_comm_group_reserve(dh_ctx *ctx, dh_comm_group *group, int64_t n_bytes);

/* ---- collectives --------------------------------------------------------------------------
 *
 * Each has a plain form; some also have forms in parts, by counts or by rows. Counts are elements
 * and may be 0; then pointers may be NULL. All members call with the same counts, type and
 * reduction, else DH_ECOMM names both calls. With "in place" send and recv are the same; else they
 * must not overlap. Buffers are free again on return.
 * errors    DH_EINVAL arguments; DH_ECOMM; DH_ENOMEM scratch (mpi) */

/* Callback for completed parts of a result: from the calling thread, in order. It is not called
 * for the last part, which is complete when the call returns. */
typedef struct dh_part_hook {
    uint32_t n; /* parts; 0, 1: nobody is told */
    void (*tell)(void *user, uint32_t part);
    void *user;
} dh_part_hook;
static inline void dh_part_tell(const dh_part_hook *progress, uint32_t part)
{
    if (part + 1 < progress->n) progress->tell(progress->user, part);
}

/* recv [n * count] = the members' send [count] in group order. In place: send is
 * this rank's slice of recv. */
dh_status dh_comm_all_gather(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                             int64_t count, dh_dtype dtype);
/* The same in equal parts, as many from each member: this rank's slice first, then those of the
 * members behind it, round the group. All members have as many. mpi: a message each, one after
 * another.
 * errors    DH_EINVAL also: parts are not as many from each, or not equal */
dh_status dh_comm_all_gather_parts(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                                   int64_t count, dh_dtype dtype, const dh_part_hook *progress);
/* The same with counts[n] elements from each member. */
dh_status dh_comm_all_gatherv(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                              const int64_t *counts, dh_dtype dtype);

/* recv [count] = this rank's slice of the reduced send [n * count]. In place: recv
 * is that slice of send; the rest of send is unchanged. */
dh_status dh_comm_reduce_scatter(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                                 int64_t count, dh_dtype dtype, dh_comm_reduce reduce);
/* The same in equal parts of recv, from its first element on; the same bits. progress NULL: in
 * one. */
dh_status dh_comm_reduce_scatter_parts(dh_ctx *ctx, dh_comm_group *group, const void *send,
                                       void *recv, int64_t count, dh_dtype dtype,
                                       dh_comm_reduce reduce, const dh_part_hook *progress);

/* recv [count] = reduced send [count], the same bits on all members. In place: send == recv. */
dh_status dh_comm_all_reduce(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                             int64_t count, dh_dtype dtype, dh_comm_reduce reduce);

/* Block j of send [n * count] goes to member j; block j of recv came from it. */
dh_status dh_comm_all_to_all(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                             int64_t count, dh_dtype dtype);
/* The same with whole rows of `width` elements. Rows [send_offsets[j * runs], send_offsets[(j +
 * 1) * runs]) of send go to member j. Rows of recv from member j are cut by recv_offsets
 * likewise. Offsets [n * runs + 1] rise and may be data, for example rows by expert where each
 * member has `runs` experts. Allocates nothing. */
dh_status dh_comm_all_to_all_rows(dh_ctx *ctx, dh_comm_group *group, const void *send,
                                  const int64_t *send_offsets, void *recv,
                                  const int64_t *recv_offsets, int64_t runs, int64_t width,
                                  dh_dtype dtype);

/* buf [count] of the member with group index root reaches all. */
dh_status dh_comm_broadcast(dh_ctx *ctx, dh_comm_group *group, void *buf, int64_t count,
                            dh_dtype dtype, int root);

dh_status dh_comm_barrier(dh_ctx *ctx, dh_comm_group *group);

/* ---- point to point ---------------------------------------------------------------------
 *
 * Peers are group indices. Between one pair, messages with the same tag arrive in
 * the order sent. Count and type of both ends must agree (else DH_ECOMM). A send
 * may return before the peer receives, or only then: two ranks that both send first
 * and then receive may wait for each other. exchange and batch cannot. */

#define DH_COMM_MAX_TAG 16383

typedef enum dh_comm_direction { DH_XFER_SEND, DH_XFER_RECV } dh_comm_direction;
typedef struct dh_comm_xfer {
    dh_comm_direction direction;
    int peer;
    int tag; /* 0 .. DH_COMM_MAX_TAG */
    dh_dtype dtype;
    int64_t count;
    void *buf; /* only read by a send */
} dh_comm_xfer;

dh_status dh_comm_send(dh_ctx *ctx, dh_comm_group *group, const void *buf, int64_t count,
                       dh_dtype dtype, int peer, int tag);
dh_status dh_comm_recv(dh_ctx *ctx, dh_comm_group *group, void *buf, int64_t count, dh_dtype dtype,
                       int peer, int tag);
/* Send to one member and receive from another (or the same) at once: rings. */
dh_status dh_comm_exchange(dh_ctx *ctx, dh_comm_group *group, const void *send, int send_peer,
                           void *recv, int recv_peer, int64_t count, dh_dtype dtype, int tag);
/* Any sends and receives, issued together: they complete in any order, so no
 * order of them can deadlock. Returns when all are done. */
dh_status dh_comm_batch(dh_ctx *ctx, dh_comm_group *group, const dh_comm_xfer *xfers, size_t n);

/* ---- paced links ------------------------------------------------------------------------
 *
 * On a paced link of a local world a call ends no earlier than a ring over such
 * wires would let it:
 *     end = when all have arrived + duration
 *     duration = wire_bytes * 8 / gbps + steps * latency_us       (ns, gbps, us)
 * Steps are those of DH_COMM_KIND_LIST. The wire_bytes are the bytes that the busiest
 * member puts on its wire, for a vector of B bytes over n ranks:
 *     all_gather, reduce_scatter   B - smallest slice    (even: B - B/n)
 *     all_reduce                   2 * (B - B/n)
 *     all_to_all                   largest of any member's bytes to or from others
 *     broadcast                    B (pipelined chain)
 *     barrier                      0
 *     send, recv                   B; latency delays the arrival but leaves the wire free
 * Each rank has one wire per link and direction. Each of n transfers on it has 1/n of its speed. A
 * call is as slow as the fullest of its members' wires.
 * Waiting costs no CPU time; it sets the calling thread's timer slack to 1 us. */

bool dh_comm_pace_on(dh_comm_pace pace);
/* Time `wire_bytes` take, latency aside. */
int64_t dh_comm_bytes_ns(int64_t wire_bytes, dh_comm_pace pace);
int64_t dh_comm_latency_ns(dh_comm_kind kind, int n, dh_comm_pace pace);
/* Both together for even slices; bytes: the whole vector (send [n * count] for all_to_all). */
int64_t dh_comm_paced_ns(dh_comm_kind kind, int n, int64_t bytes, dh_comm_pace pace);

static inline int dh_comm_log2_ceil(int n)
{
    int log = 0;
    while ((1 << log) < n) log++;
    return log;
}

#ifdef __cplusplus
}
#endif
#endif
