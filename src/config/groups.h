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

/* The job that trains the documents of one group: that of all with the group's longest length as
 * train.seq_len, its settings, and as train.batch what all ranks compute in one pass of its
 * program. Degrees of parallelism that an entry does not name are 1 where it names any, dp what is
 * left of the ranks; a micro-batch is one sequence, a pass has as many as there are stages, unless
 * micro_batch and micro_batches say otherwise. Shares the job's strings.
 * in        job: its ranks, batch and length derived (dh_job_check)
 * errors    DH_EINVAL the entry, naming it; those of dh_job_check; DH_ENOMEM */
dh_status dh_job_group(dh_ctx *ctx, const dh_job *job, size_t group, dh_job *of);

/* The part of dh_job_check that is about data.packing=group. errors: DH_EINVAL, DH_EUNSUPPORTED */
dh_status dh_job_check_groups(dh_ctx *ctx, const dh_job *job);

#ifdef __cplusplus
}
#endif
#endif
