/* All headers for callers. Each can be included alone. Their order is the
 * way of a job. Each gives the inputs, the outputs and who frees them.
 *
 * Every function that can fail returns dh_status and takes a dh_ctx, which then holds the
 * message. No mistake of a caller or a file ends the process. */
#ifndef DHELIX_DHELIX_H
#define DHELIX_DHELIX_H

/* status, messages; texts and lists that results come in */
#include "dhelix/growable.h"
#include "dhelix/status.h"

/* job, model and ranks */
#include "dhelix/dtype.h"
#include "dhelix/job.h"
#include "dhelix/model.h"

/* text to token ids and back */
#include "dhelix/tokenizer.h"

/* before there is a machine: hardware, a step on it, the fastest configuration */
#include "dhelix/cluster.h"
#include "dhelix/simulate.h"
#include "dhelix/tune.h"

/* training, sampling, and a page about a run */
#include "dhelix/generate.h"
#include "dhelix/report.h"
#include "dhelix/sampler.h"
#include "dhelix/train.h"

/* documents of the commands with --json */
#include "dhelix/describe.h"

#endif
