/* Ranks of a run beside what their programs send each other. */
#ifndef DH_TRAIN_RANK_H
#define DH_TRAIN_RANK_H

#include "dhelix/train.h"
#include "run/comm/comm.h"
#include "train/session.h"

/* This rank among the ranks of the run. */
typedef struct dh_ranks {
    int64_t rank, n;
    dh_comm *comm;          /* NULL when alone, and so are the groups */
    dh_comm_group *control; /* all ranks: agreement, losses, paths */
    dh_comm_group *experts; /* ranks that share a layer's experts; NULL: each rank has all */
} dh_ranks;

/* ---- ranks.c: what ranks tell each other beside the program ------------------------------- */
/* Returns DH_OK when all ranks have called with DH_OK. A rank that calls with another status ends
 * the world and keeps its message. The others get the message in their current call, which may be
 * an earlier one. Every rank calls at the same points. */
dh_status dh_ranks_agree(dh_ctx *ctx, const dh_ranks *ranks, dh_status st);
/* Rank 0's bytes reach all. */
dh_status dh_ranks_broadcast(dh_ctx *ctx, const dh_ranks *ranks, void *data, size_t n_bytes);
/* Sums of n values over all ranks, in place, the same bits everywhere. */
dh_status dh_ranks_sum(dh_ctx *ctx, const dh_ranks *ranks, double *values, int64_t n);

/* A group of the mesh beside the program's; stream: DH_N_STREAM and beyond, one a group, so that
 * nothing it carries can meet what the program sends. NULL: the rank is alone in it. */
dh_status dh_ranks_group(dh_ctx *ctx, const dh_ranks *ranks, const dh_mesh *mesh,
                         dh_group_kind kind, int stream, dh_comm_group **group);

/* ---- alike.c: what they were given ---------------------------------------------------------- */
/* Whether all ranks have the same facts, lines "name: value".
 * errors    DH_EINVAL, the same on all ranks: it names the ranks that differ from the majority, and
 *           their different facts */
dh_status dh_ranks_alike(dh_ctx *ctx, const dh_ranks *ranks, const char *facts);

/* ---- patience.c: how long they wait for each other -------------------------------------- */
/* The timeout of parallel.timeout_s. "auto" is resolved for the time before a step is measured and
 * between steps, where one rank may write files alone. Also its origin, for messages. */
int64_t dh_job_patience_ns(const dh_job *job);
extern const char dh_patience_reason[];
/* The timeout of "auto" in a step, from the slowest step so far, and its origin. */
int64_t dh_step_patience_ns(int64_t slowest_ns, char *why, size_t cap);

/* ---- place.c: cores ------------------------------------------------------------------------- */

/* Equal for processes of the same machine, whichever containers they are in. */
uint64_t dh_machine_key(void);
/* For ranks that are processes: how many may use the same cores of one machine, and
 * which of those this one is. Collective over all ranks, before any is bound. */
dh_status dh_ranks_place(dh_ctx *ctx, const dh_ranks *ranks, int *local_rank, int *n_local_ranks);

#endif
