/* All that callers need. Each header below can be included alone; they follow the way of the data,
 * and each says what enters, what leaves and who frees it.
 *
 * Every function that can fail returns dh_status and takes a dh_ctx, which then holds
 * the message; nothing ends the process for what its caller or a file got wrong. */
#ifndef DHELIX_DHELIX_H
#define DHELIX_DHELIX_H

/* status, messages; texts and lists that results come in */
#include "dhelix/growable.h"
#include "dhelix/status.h"

/* what to train, and on which ranks */
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

/* what the commands say with --json */
#include "dhelix/describe.h"

#endif
