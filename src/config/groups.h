/* Meshes for documents of different length: what `switch.groups` of a job says. */
#ifndef DH_CONFIG_GROUPS_H
#define DH_CONFIG_GROUPS_H

#include "dhelix/job.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DH_MAX_SWITCH_GROUPS = 8 };

/* Entries of switch.groups, one a ";". */
size_t dh_job_n_groups(const dh_job *job);

/* The job that trains the documents of one group. It is the run's job with the group's settings.
 *   train.seq_len   the group's longest length
 *   train.batch     sequences of all ranks in one pass of the group's program
 *   degrees         1 where the entry names any degree except this one; dp: the remaining ranks
 *   micro-batches   One sequence each, as many in a pass as there are stages. The settings
 *                   micro_batch and micro_batches change that.
 * Shares the job's strings.
 * in        job: its ranks, batch and length derived (dh_job_check)
 * errors    DH_EINVAL the entry, naming it; those of dh_job_check; DH_ENOMEM */
dh_status dh_job_group(dh_ctx *ctx, const dh_job *job, size_t group, dh_job *of);

/* The part of dh_job_check that is about data.packing=group.
 * errors    DH_EINVAL; DH_EUNSUPPORTED settings that groups exclude */
dh_status dh_job_check_groups(dh_ctx *ctx, const dh_job *job);

#ifdef __cplusplus
}
#endif
#endif
