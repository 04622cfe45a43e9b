/* Memory that a job needs on this machine, known before anything large is allocated. */
#ifndef DH_TRAIN_ROOM_H
#define DH_TRAIN_ROOM_H

#include "train/rank.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_room {
    int64_t n_ranks;   /* on this machine */
    double rank_bytes; /* the rank that needs most: its slab, and memory outside of it */
    double bytes;      /* all ranks together */
    double available;  /* 0: not known */
    bool at_least;     /* weights and moments alone */
    bool of_model;     /* there is no job whose settings could change it: evaluation, sampling */
} dh_room;

/* Outside of a slab: kernels that are generated, buffers, stacks. */
enum { DH_ROOM_OUTSIDE = 32 << 20 };

/* A bound from below, of weights and moments alone, by which a job far too large is refused before
 * its programs are built. */
dh_room dh_room_least(const dh_job *job);
/* The memory of the programs of all ranks, as threads of one process. */
dh_room dh_room_of(const dh_job *job, const dh_mesh_footprint *programs);
/* Of one rank by its slab. */
dh_room dh_room_of_rank(const dh_session_spec *spec, uint64_t slab_bytes);

/* Bytes of a rank's slab that plans may count on. This is the machine's memory without
 * DH_MEMORY_RESERVE of it and without a run's memory outside of slabs, divided by its ranks. It
 * does not depend on the memory that is free at the moment, so the same job gets the same plan. 0:
 * not known. */
double dh_room_planned(const dh_job *job, int64_t n_local);

bool dh_room_is_there(const dh_room *room);
/* "64 ranks need 3.9 TB of memory on this machine, at most 62 GB each", and where that is not there
 * ", and 22 GB are free". */
void dh_room_print(const dh_room *room, dh_str *out);
/* errors    DH_ENOMEM: both numbers, and what can be done */
dh_status dh_room_check(dh_ctx *ctx, const dh_room *room);
/* The same where ranks are processes, of those on each machine together. Every rank calls. */
dh_status dh_ranks_room(dh_ctx *ctx, const dh_ranks *ranks, const dh_room *own);

#ifdef __cplusplus
}
#endif
#endif
