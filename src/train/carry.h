/* State kept in memory when a run loses ranks.
 *
 * Data-parallel ranks hold the same parameters and, without sharding, the same moments. When one is
 * lost the others still have its state, as of the step under way. Each rank leaves its memory
 * (dh_run_leave). Where the surviving ranks together hold the complete state of one step, it is put
 * together under Hugging Face's names, as in a checkpoint. The ranks of the smaller mesh take their
 * parts from it. The run continues with the bits that it would have from a checkpoint of that step.
 * Shards that only a lost rank had cannot be recovered here; the newest checkpoint has them.
 *
 * Just-in-time checkpointing (Gupta et al., EuroSys 2024) takes the state from such replicas too,
 * after the failure, and restarts on as many ranks as before.
 *
 * Ranks are threads of one process here. A lost process takes its memory with it, and its launcher
 * ends the others. */
#ifndef DH_TRAIN_CARRY_H
#define DH_TRAIN_CARRY_H

#include "dhelix/train.h"
#include "train/session.h"
#include "train/spikes.h"

typedef struct dh_run dh_run;

/* The state that a rank leaves. Zeroed: nothing. */
typedef struct dh_remains {
    dh_session *session; /* its memory; NULL: it was never set up */
    int64_t step;        /* step of masters and moments; -1: they are not all of one step */
    bool counted;        /* the step's loss was known, and it counted */
    int64_t left_out;
    dh_spikes spikes;
    char checkpoint[DH_RUN_PATH_BYTES];
} dh_remains;

/* Complete state. Zeroed: none. */
typedef struct dh_carried {
    dh_map image; /* safetensors: the content of a checkpoint's files */
    int64_t step;
    bool counted;
    int64_t left_out;
    dh_spikes spikes;
    char checkpoint[DH_RUN_PATH_BYTES]; /* newest of the run */
} dh_carried;

/* Takes the session of a rank that has failed. */
void dh_run_leave(dh_run *run, dh_remains *remains);
void dh_remains_fini(dh_remains *remains);

/* The state of the newest step that the surviving ranks together hold completely.
 * in        remains [job->ranks]; lost [job->ranks]: ranks whose memory is not read
 * out       caller frees with dh_carried_fini
 * errors    DH_EMISSING, DH_ENOMEM: there is none; ctx says why, to follow "since". Others:
 *           those of writing to memory
 * cost      12 bytes of memory a weight, and copying them */
dh_status dh_carry(dh_ctx *ctx, const dh_job *job, const dh_remains *remains, const bool *lost,
                   dh_carried *carried);
void dh_carried_fini(dh_carried *carried);

/* Sets the run to its state (run->carried), which is then freed. Every rank calls. */
dh_status dh_run_take_up(dh_ctx *ctx, dh_run *run);

#endif
