/* A job with times of stages instead of a model: its schedule against the clock. */
#ifndef DH_TRAIN_STAGE_TIMES_H
#define DH_TRAIN_STAGE_TIMES_H

#include "dhelix/job.h"
#include "plan/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_stage_times {
    dh_schedule *schedule;
    dh_schedule_timing timing;
    int32_t *activations; /* [n_ranks]: most that a rank holds, of virtual stages' micro-batches */
    /* A step's period: from the first slot to the last of any rank. Where backwards are split it is
     * that of the slowest rank, since ranks need not meet between steps (Zero Bubble, arXiv
     * 2401.10241, section 4). */
    int64_t step_ns;
    double bubble; /* 1 - work / step_ns, the mean over ranks */
} dh_stage_times;

/* in        job: dh_job_has_stage_times
 * out       caller frees with dh_stage_times_fini, also after a failure
 * errors    those of schedules; DH_EINVAL the number of times is not that of virtual stages;
 *           DH_EUNSUPPORTED a strategy, whose operators have no times */
dh_status dh_stage_times_find(dh_ctx *ctx, const dh_job *job, dh_stage_times *found);
void dh_stage_times_fini(dh_stage_times *times);

#ifdef __cplusplus
}
#endif
#endif
