/* State that is carried on in memory when a run loses ranks.
 *
 * Ranks of data parallelism hold parameters and, without sharding, moments alike: what one is lost
 * with the others still have, as of the step that was under way. Each rank leaves its memory behind
 * (dh_run_leave); where those that are left hold all of the state, as of one step, it is put
 * together under Hugging Face's names, as a checkpoint would have it, and the ranks of the smaller
 * mesh take from that what is theirs. So the run goes on with the bits that it would have from a
 * checkpoint of that step. Of shards that only a lost rank had there is none: the newest checkpoint
 * has them.
 *
 * Just-in-time checkpointing (Gupta et al., EuroSys 2024) takes the state from such replicas too,
 * after the failure, and restarts on as many ranks as before.
 *
 * Ranks are threads of one process here. A process that is lost takes its memory along, and its
 * launcher ends the others. */
#ifndef DH_TRAIN_CARRY_H
#define DH_TRAIN_CARRY_H

#include "dhelix/train.h"
#include "train/session.h"
#include "train/spikes.h"

typedef struct dh_run dh_run;

/* What a rank leaves. Zeroed: nothing. */
typedef struct dh_remains {
    dh_session *session; /* its memory; NULL: it was never set up */
    int64_t step;        /* that masters and moments are of; -1: not all of one */
    bool counted;        /* the step's loss was known, and it counted */
    int64_t left_out;
    dh_spikes spikes;
    char checkpoint[DH_RUN_PATH_BYTES];
} dh_remains;

/* State put together. Zeroed: none. */
typedef struct dh_carried {
    dh_map image; /* safetensors: what a checkpoint has in its files */
    int64_t step;
    bool counted;
    int64_t left_out;
    dh_spikes spikes;
    char checkpoint[DH_RUN_PATH_BYTES]; /* newest of the run */
} dh_carried;

/* Of a rank that has failed: takes its session. */
void dh_run_leave(dh_run *run, dh_remains *remains);
void dh_remains_fini(dh_remains *remains);

/* The state of the latest step that the ranks which are left hold as a whole.
 * in        remains [job->ranks]; lost [job->ranks]: whose memory is not read
 * out       caller frees with dh_carried_fini
 * errors    DH_EMISSING, DH_ENOMEM: it cannot be had; ctx says why, to follow "since". Others:
 * those of writing to memory cost      12 bytes a weight of memory, and copying them */
dh_status dh_carry(dh_ctx *ctx, const dh_job *job, const dh_remains *remains, const bool *lost,
                   dh_carried *carried);
void dh_carried_fini(dh_carried *carried);

/* The run is where its state (run->carried) was left, which is freed. Every rank calls. */
dh_status dh_run_take_up(dh_ctx *ctx, dh_run *run);

#endif
