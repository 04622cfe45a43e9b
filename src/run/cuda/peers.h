/* Inside of the links between ranks on one GPU: what peers.c (making them), peer_meet.c (meeting),
 * peer_calls.c (calls) and peer_wires.c (paced wires) share.
 *
 * A room is a group as all its members see it. Its lock guards all of it, and is held while a
 * member puts a call's work on its stream. An abort therefore comes between two calls, and nobody's
 * memory goes while others are about to read it. */
#ifndef DH_RUN_CUDA_PEERS_H
#define DH_RUN_CUDA_PEERS_H

#include <pthread.h>

#include "run/cuda/cuda.h"
#include "run/cuda/kernels.h"
#include "run/cuda/link.h"

/* One of a call's transfers, for as long as the call lasts. */
typedef struct peer_post {
    dh_comm_xfer xfer;
    bool done;
} peer_post;

/* A member's place. */
typedef struct peer_seat {
    cudaEvent_t ready;    /* its data for the call are in its memory */
    cudaEvent_t done;     /* it has read what it reads of the others, and written to them */
    cudaEvent_t *taken;   /* [n] by sender: the same of what it has received from that one */
    uint64_t n_come;      /* collectives that it has come to */
    uint64_t n_done;      /* collectives that are on its stream as a whole */
    dh_devlink_call call; /* the last of these; its xfers are NULL */
    peer_post *posts;     /* [n_posts] of the transfers that it is in */
    size_t n_posts;
} peer_seat;

typedef struct peer_room {
    int n, n_users; /* n_users: members that have not left it */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool aborted;
    peer_seat *seats; /* [n] */
} peer_room;

/* Wires that transfers share (peer_wires.c). */
typedef struct peer_wires peer_wires;

typedef struct peer_pace {
    peer_wires *wires; /* NULL: not paced */
    dh_comm_pace pace;
    int32_t *ways;          /* on the device: wires of every member, then of each to this one */
    dh_cuda_flow_state *on; /* on the device: flows under way */
} peer_pace;

enum {
    PEER_MOST = 64,      /* members: sums take as many addresses */
    PEER_MOST_FLOWS = 16 /* transfers to one member that share wires at a time */
};

typedef struct peer_link {
    const char *name; /* of the group */
    dh_comm *comm;
    peer_room *room;
    int gpu, me, n;
    uint64_t n_collectives;
    size_t n_posts; /* room for them at its seat */
    peer_pace pace;
} peer_link;

/* ---- peer_meet.c: the room's lock is held --------------------------------------------------- */

/* errors    DH_ECOMM a rank has failed, or the links have ended */
dh_status peer_check(dh_ctx *ctx, const peer_link *l);
/* Until something in the room has moved; `what`: the call, for whoever waits too long.
 * errors    DH_ECOMM: a rank has failed, or nobody came */
dh_status peer_await(dh_ctx *ctx, peer_link *l, const char *what, int64_t deadline_ns);
void peer_moved(peer_room *room);
/* Members' calls that do not fit together end the world.
 * returns   DH_ECOMM */
dh_status peer_misfit(dh_ctx *ctx, peer_link *l, const char *text);
/* A stream goes on once another member's data are there, or once that member is through with this
 * one's. The event has been recorded before this is called. A stream therefore waits only for work
 * that was put on its stream earlier, so streams never wait for each other in a ring. */
dh_status peer_wait_ready(dh_ctx *ctx, void *stream, cudaEvent_t event);
dh_status peer_wait_done(dh_ctx *ctx, void *stream, cudaEvent_t event);

/* ---- peer_calls.c --------------------------------------------------------------------------- */

dh_status peer_call(dh_ctx *ctx, peer_link *l, cudaStream_t stream, const dh_devlink_call *call);

/* ---- peer_wires.c --------------------------------------------------------------------------- */

/* ranks [n]: of the members.
 * errors    DH_ENOMEM; those of CUDA */
dh_status peer_pace_create(dh_ctx *ctx, const dh_devlink_spec *spec, const int *ranks,
                           peer_link *l);
void peer_pace_destroy(peer_link *l);
/* Transfers under way end at once. Any thread. */
void peer_pace_stop(const peer_link *l);
/* A collective of so many bytes as a whole begins; all members are ready for it. */
void peer_pace_collective(peer_link *l, cudaStream_t stream, dh_comm_kind kind, int64_t n_bytes);
/* Until this share of it has passed, 1: all. */
void peer_pace_share(peer_link *l, cudaStream_t stream, double share);
/* A transfer from a member begins, the k-th of those that do so together. */
void peer_pace_transfer(peer_link *l, cudaStream_t stream, int k, int from, int64_t n_bytes);
/* Until these n are over. */
void peer_pace_transfers(peer_link *l, cudaStream_t stream, int n);
/* Delay the transfer by the latency of so many more steps. */
void peer_pace_latency(peer_link *l, cudaStream_t stream, int steps);

#endif
