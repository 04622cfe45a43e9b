/* Shared by the front (comm.c) and the kinds of worlds behind it. */
#ifndef DHELIX_RUN_COMM_IMPL_H
#define DHELIX_RUN_COMM_IMPL_H

#include "run/comm/comm.h"

#define DH_COMM_NAME_BYTES 32
#define DH_COMM_CALL_TEXT_BYTES 320
#define DH_COMM_WHY_BYTES 160
#define DH_COMM_MOST_AWAITED 64
#define DH_COMM_STATE_BYTES 480

/* TUNING: up to this many bytes, an mpi reduction or broadcast is one step of whole
 * vectors; beyond, slices. About where two latencies cost more than the bytes. */
#define DH_COMM_SMALL_BYTES 4096

/* A range of elements in a call's buffer. */
typedef struct dh_comm_part {
    int64_t at, n;
} dh_comm_part;

/* One call on a group. Fields that must agree between members come first; they travel as a header
 * when an mpi world checks. */
typedef struct dh_comm_head {
    int32_t kind, dtype, reduce, root;
    int64_t seq;    /* counts the member's collectives, or its transfers, on the group */
    int64_t count;  /* elements of the vector: all slices together */
    uint64_t shape; /* hash of the slices; 0 for all_to_all, where members differ */
} dh_comm_head;

typedef struct dh_comm_call {
    dh_comm_head head;
    const char *send;
    char *recv;
    const dh_comm_part *send_parts; /* [n] slices; all_to_all: by destination */
    const dh_comm_part *recv_parts; /* [n] the same slices; all_to_all: by source */
    const dh_part_hook *progress;   /* for several parts, else NULL */
} dh_comm_call;

/* Bases: every kind of world embeds them as first members of its own structs. */
struct dh_comm_world {
    const dh_comm_ops *ops;
    dh_comm_config config; /* defaults filled in */
    int size, first_here, n_here;
    /* [size] by rank, from the declared topology or from MPI's shared-memory domains; numbered from
     * 0 by their first rank. */
    int *node;
    bool *lost; /* [size] or NULL: dh_comm_world_lost */
};

struct dh_comm {
    dh_comm_world *world;
    int rank;
    dh_comm_group *groups; /* owned, newest first */
    _Atomic int64_t n_calls;
    _Atomic int64_t sent_bytes[DH_N_ENGINE];
    _Atomic int64_t timeout_ns;
    char timeout_why[DH_COMM_WHY_BYTES]; /* "" where the world's configuration gives it */
    _Atomic uint32_t running;            /* bits: streams inside an instruction */
};

struct dh_comm_group {
    dh_comm *comm;
    dh_comm_group *next;
    char name[DH_COMM_NAME_BYTES];
    int stream, n, me;
    dh_engine wire;
    int *members;           /* [n] */
    dh_comm_part *parts[2]; /* [n] each: slices of the call under way */
    const void **operands;  /* [n] of a reduction */
    int64_t n_collectives, n_transfers;
    char *scratch;
    size_t scratch_bytes;
    dh_comm_times times;
};

struct dh_comm_impl {
    dh_status (*world_create)(dh_ctx *ctx, const dh_comm_config *config, dh_comm_world **world);
    void (*world_destroy)(dh_comm_world *world);
    dh_status (*attach)(dh_ctx *ctx, dh_comm_world *world, int rank, dh_comm **comm);
    void (*detach)(dh_comm *comm);
    /* The group comes from dh_comm_group_new; the front links it to the rank. */
    dh_status (*group_create)(dh_ctx *ctx, dh_comm *comm, const dh_comm_group_spec *spec,
                              dh_comm_group **group);
    void (*group_destroy)(dh_comm_group *group); /* the front has unlinked it, and frees the base */
    dh_status (*collective)(dh_ctx *ctx, dh_comm_group *group, const dh_comm_call *call);
    dh_status (*transfer)(dh_ctx *ctx, dh_comm_group *group, const dh_comm_head *head,
                          const dh_comm_xfer *xfers, size_t n);
    void (*abort)(dh_comm *comm, const char *message);
    dh_status (*check)(dh_ctx *ctx, dh_comm *comm);
};

extern const dh_comm_impl dh_comm_local_impl;
#ifdef DH_HAVE_MPI
extern const dh_comm_impl dh_comm_mpi_impl;
#endif

/* Zeroed group of `bytes` (base first) with the spec copied; NULL: out of memory. */
dh_comm_group *dh_comm_group_new(size_t bytes, dh_comm *comm, const dh_comm_group_spec *spec);
void dh_comm_group_free(dh_comm_group *group);
void dh_comm_groups_free(dh_comm *comm);
dh_status dh_comm_scratch(dh_ctx *ctx, dh_comm_group *group, size_t n_bytes);

/* "all_gather #17 of group tp (ranks 0 1)"; head NULL: "the creation of group ..." */
const char *dh_comm_call_text(const dh_comm_group *group, const dh_comm_head *head, char *buf,
                              size_t cap);
/* Why two members' calls do not fit together, into buf; false when they do. */
bool dh_comm_heads_differ(const dh_comm_group *group, int a, const dh_comm_head *head_a, int b,
                          const dh_comm_head *head_b, char *buf, size_t cap);
/* in        head: may be NULL
 * returns   DH_ECOMM "rank N stopped: message; rank M was waiting in CALL" */
dh_status dh_comm_fail_stopped(dh_ctx *ctx, const dh_comm_group *group, const dh_comm_head *head,
                               int by_rank, const char *message);

/* "rank 1 waited 2 s in ...", and where somebody chose the timeout, why so long. */
void dh_comm_print_waited(const dh_comm *comm, const char *what, dh_str *out);

/* ---- culprit.c: who holds up a rank ------------------------------------------------------- */

/* The state of a rank. Ranks may send it to each other as bytes. */
typedef struct dh_comm_state {
    int32_t waits; /* in a call, and not computing beside it */
    uint32_t waiting_streams;
    int32_t n_awaited;
    int32_t awaited[DH_COMM_MOST_AWAITED]; /* ranks it waits for; none: it holds up others */
    char text[DH_COMM_STATE_BYTES];        /* "waiting in all_gather #17 of ..." */
} dh_comm_state;

void dh_comm_state_begin(dh_comm_state *state);
/* A call on a stream's group, "all_gather #17 of ...", that waits for these ranks. */
void dh_comm_state_wait(dh_comm_state *state, int stream, const char *text);
void dh_comm_state_await(dh_comm_state *state, int rank);
/* running: dh_comm.running. A rank that is inside an instruction which does not wait is
 * computing, whatever its other streams wait for. Returns whether the rank waits. */
bool dh_comm_state_end(dh_comm_state *state, uint32_t running);

/* Appends the chains from the missing ranks [n] to the ranks at their ends, that wait for nobody.
 * in        states [n]; teller: the rank that has waited
 * out       lost [n]: the ranks that wait for nobody; NULL is fine
 * cost      O(n * awaited) */
void dh_comm_print_culprits(const dh_comm_state *states, int n, int teller, const bool *missing,
                            bool *lost, dh_str *out);

/* dst[i] = src[0][i] (+) src[1][i] (+) ... in this order, for i in [at, at + count).
 * dst may be one of src; otherwise they do not overlap. */
void dh_comm_reduce_ordered(dh_dtype dtype, dh_comm_reduce reduce, void *dst,
                            const void *const *src, int n, int64_t at, int64_t count);

/* Bytes the busiest member puts on its wire; calls[n] of all members. */
int64_t dh_comm_wire_bytes(int n, const dh_comm_call *const *calls);
/* Of a member's own call the bytes that it sends to others. */
int64_t dh_comm_bytes_of(int n, int me, const dh_comm_call *call);

#endif
