/* Runs that go on with fewer ranks. */
#ifndef DH_TRAIN_ELASTIC_H
#define DH_TRAIN_ELASTIC_H

#include "dhelix/job.h"

/* The job over the most ranks it can have that are at most n_left: fewer data-parallel ones, each
 * with more micro-batches of the size they have, so that a step still sees the same samples.
 * Everything else of the mesh stays, and where the ranks no longer fill nodes alike they are one.
 * in        job: checked
 * out       smaller: strings and arena are the job's
 * errors    DH_EINVAL: there is none, or it has fewer ranks than elastic.min_ranks */
dh_status dh_job_shrink(dh_ctx *ctx, const dh_job *job, int64_t n_left, dh_job *smaller);

#endif
