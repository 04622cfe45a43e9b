/* Inside of the local world: what its three files share.
 *
 * Locks, in the order they may be taken: world.lock, one group's lock, world.wire_lock.
 * Nobody waits while holding world.lock except for members of a new group. */
#ifndef DHELIX_RUN_COMM_LOCAL_H
#define DHELIX_RUN_COMM_LOCAL_H

#include "impl.h"
#include "local_wires.h"

#include <pthread.h>
#include <stdatomic.h>

/* A posted send or receive. The poster waits while it is POSTED or COPYING, so it
 * lives in the poster's memory; a detached copy of a small send lives on the heap. */
typedef enum local_post_state { POST_POSTED, POST_COPYING, POST_DONE } local_post_state;
typedef struct local_post {
    struct local_post *next;
    int src, dst, tag; /* group indices */
    dh_dtype dtype;
    int64_t count;
    char *buf;
    bool detached;
    local_post_state state;
    local_ticket on_wire; /* paced: begun when detached or matched */
    int64_t met_ns;       /* when its partner had come; 0: not yet */
} local_post;

typedef struct local_queue {
    local_post *first, **last;
} local_queue;

typedef enum local_activity { ACT_NONE, ACT_WAITING, ACT_FINISHED } local_activity;

/* A member's place in a group; guarded by the group's lock. */
typedef struct local_slot {
    pthread_cond_t wake;
    const dh_comm_call *call; /* published while the collective is under way */
    uint64_t arrived;         /* number of the last collective this member arrived at */
    bool joined, left;
    local_queue sends_in;    /* towards this member */
    local_queue recvs;       /* posted by this member */
    size_t n_open;           /* open parts of the transfer under way */
    bool gives_up;           /* it waits only for what is being copied */
    local_activity activity; /* its last seen activity, for reports */
    dh_comm_head head;
    int64_t since_ns;
    /* Members that did not come, [n]. Here, not in the member's own group, for others may still
     * ask for whom it waited when it has given up and destroyed that. */
    bool *missing;
    bool gave_up; /* a transfer, for want of the missing */
} local_slot;

typedef struct local_world local_world;

/* A group as all its members share it. */
typedef struct local_shared {
    struct local_shared *next; /* in the world's list */
    local_world *world;
    char name[DH_COMM_NAME_BYTES];
    int stream, n;
    dh_engine wire;
    int *members;
    int n_joined; /* guarded by world.lock, as slot.joined */
    int n_gone;   /* members that destroyed the group; likewise */

    pthread_mutex_t lock;
    bool broken;    /* the world has failed */
    int n_arrived;  /* at the collective being gathered */
    uint64_t begun; /* collectives at which all have arrived */
    uint64_t ended; /* collectives through with copying */
    int n_copying;
    int64_t arrived_ns;   /* when all arrived at the last begun collective */
    local_ticket on_wire; /* paced: the same on the members' wires */
    local_slot *slots;    /* [n] */
} local_shared;

typedef struct local_group {
    dh_comm_group base;
    local_shared *shared;
    const dh_comm_call **calls; /* [n] of the collective under way */
    bool *missing;              /* its slot's */
    local_post *posts;          /* posts of the transfer under way */
    size_t n_posts;
} local_group;

typedef struct local_rank {
    dh_comm base;
    bool attached, left;
} local_rank;

struct local_world {
    dh_comm_world base;
    pthread_mutex_t lock;
    pthread_cond_t joined; /* a member joined a group, or the world failed */
    local_shared *groups;
    local_rank *ranks; /* [size] */

    atomic_bool failed; /* written under lock, with by_rank and message */
    int by_rank;
    char message[DH_CTX_MESSAGE_BYTES];

    pthread_mutex_t wire_lock;
    local_wires wires;
};

/* local.c */
int64_t local_deadline(const dh_comm_group *group);
/* Wait for slot's condition; false when the deadline has passed. */
bool local_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns);
void local_note(local_slot *slot, local_activity activity, const dh_comm_head *head);
/* Fail with the world's message; no lock is held. */
dh_status local_fail_stopped(dh_ctx *ctx, const local_group *group, const dh_comm_head *head);
/* Stops the world because of this call.
 * returns   DH_ECOMM with the message */
dh_status local_fail_here(dh_ctx *ctx, local_group *group, const char *message);
/* Stop it because members marked in group->missing did not come: they left the
 * world, or did nothing until the timeout. what: "all_gather #17 of group ..." */
dh_status local_fail_missing(dh_ctx *ctx, local_group *group, const char *what, bool left);
/* A paced transfer that takes ns where it has its wires to itself, and is waited for until
 * latency_ns after its end. */
local_ticket local_wire_begin(local_world *world, local_way way, int64_t from_ns, int64_t ns,
                              int64_t latency_ns);
/* Sleep until latency_ns after this share of it has passed; returns early when the world fails. */
void local_wire_wait(local_world *world, local_ticket ticket, double share, int64_t latency_ns);

/* local_ops.c, local_p2p.c */
dh_status local_collective(dh_ctx *ctx, dh_comm_group *group, const dh_comm_call *call);
dh_status local_transfer(dh_ctx *ctx, dh_comm_group *group, const dh_comm_head *head,
                         const dh_comm_xfer *xfers, size_t n);
void local_queue_init(local_queue *queue);
void local_queue_free_detached(local_queue *queue);

#endif
