/* Starting the ranks of a job, whatever they then do. */
#ifndef DH_TRAIN_LAUNCH_H
#define DH_TRAIN_LAUNCH_H

#include <pthread.h>

#include "train/fault.h"
#include "train/rank.h"

/* One rank as it starts. */
typedef struct dh_place {
    dh_ranks ranks;
    int local_rank, n_local_ranks; /* among those that share its cores */
} dh_place;

typedef struct dh_launch dh_launch;
struct dh_launch {
    const dh_job *job;
    dh_mesh mesh;
    bool quiet;
    int n_before; /* starts of the same run, each with ranks that were lost */
    /* The work of every rank, on a thread of its own where a process has several. Its failure
     * ends all ranks; the first that is not the echo of another's is reported. */
    dh_status (*work)(dh_ctx *ctx, dh_launch *launch, const dh_place *place);
    void *user;
    /* Facts, apart from program, machine and job, that all ranks must have alike: lines
     * "name: value", appended before the start. */
    dh_str facts;

    /* Processors of a device that calls of each stream take; 0: as many as fill its link. Set,
     * where the job leaves them open, before the start. */
    int link_sms[DH_N_STREAM];

    dh_comm_world *world; /* NULL: one rank */
    dh_turns turns;       /* turns of its ranks here, as many at a time as processors */
    dh_fault fault;       /* of tests, from DHELIX_FAULT */
    pthread_mutex_t lock;
    dh_ctx failure;
    int64_t n_lost; /* in the end: ranks for want of which the run failed, */
    bool *lost;     /* and which; [job->ranks], the caller's, false before; NULL: not wanted */
};

/* The job's mesh; its number of ranks against the launcher's. */
dh_status dh_launch_prepare(dh_ctx *ctx, const dh_job *job, bool quiet, dh_launch *launch);
/* Start the ranks of this process and wait for them. Ranks in several processes are compared
 * before they do anything (dh_ranks_alike). Takes launch->facts. */
dh_status dh_launch_run(dh_ctx *ctx, dh_launch *launch);
/* Whether other processes have ranks too, which read their jobs by themselves, each on its machine;
 * threads share one. Once it runs. */
bool dh_launch_apart(const dh_launch *launch);

#endif
