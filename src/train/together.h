/* Ranks that are threads of one process: their programs verified together as they are.
 *
 * Each rank builds its own programs, which its session owns, and verifies each by itself. Then one
 * rank replays all of them, before any gets memory. So the programs that were verified are those
 * that run. Nothing of them is kept for another mesh: the board belongs to one start of a run.
 *
 * A rank does not get a program that another thread built. Scratch of the cpu's products depends on
 * the number of threads of whoever builds, and ranks may have different numbers. */
#ifndef DH_TRAIN_TOGETHER_H
#define DH_TRAIN_TOGETHER_H

#include <pthread.h>

#include "program/places.h"
#include "train/rank.h"

typedef struct dh_together {
    pthread_mutex_t lock;        /* of sessions */
    const dh_session **sessions; /* [n], borrowed, of ranks that are there */
    size_t n;
    dh_places *places; /* for all their programs, until those are there */
    dh_mesh_footprint programs;
} dh_together;

/* A rank's part: dh_session_spec.built of its session. */
typedef struct dh_together_rank {
    dh_together *all; /* NULL: programs were verified before */
    const dh_ranks *ranks;
    const dh_job *job;
} dh_together_rank;

/* For n ranks. Caller frees with dh_together_fini, also after a failure.
 * errors    DH_ENOMEM */
dh_status dh_together_init(dh_ctx *ctx, int64_t n, dh_together *together);
void dh_together_fini(dh_together *together); /* zeros are fine */

/* Collective over all ranks: their programs are verified together, and there is memory for all.
 * in        user: the rank's dh_together_rank
 * errors    those of dh_sessions_verify and dh_room_check; DH_ECOMM: a rank has ended */
dh_status dh_together_verify(dh_ctx *ctx, const dh_session *session, void *user);

#endif
