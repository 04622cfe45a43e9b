/* The whole library. Each header below can be included alone; they follow the way of
 * the data, and each says what enters, what leaves and who frees it.
 *
 * Every function that can fail returns dh_status and takes a dh_ctx, which then holds
 * the message; nothing ends the process for what its caller or a file got wrong. */
#ifndef DHELIX_DHELIX_H
#define DHELIX_DHELIX_H

/* services */
#include "dhelix/base.h"
#include "dhelix/dtype.h"
#include "dhelix/status.h"

/* what to train, and on which ranks */
#include "dhelix/job.h"
#include "dhelix/mesh.h"
#include "dhelix/model.h"

/* text in, samples out */
#include "dhelix/dataset.h"
#include "dhelix/tokenizer.h"

/* operators, schedules, pairing, programs */
#include "dhelix/cluster.h"
#include "dhelix/costs.h"
#include "dhelix/graph.h"
#include "dhelix/pairing.h"
#include "dhelix/profile.h"
#include "dhelix/program.h"
#include "dhelix/recipe.h"
#include "dhelix/schedule.h"
#include "dhelix/strategy.h"

/* execution, for real and simulated, and what its time went into */
#include "dhelix/backend.h"
#include "dhelix/comm.h"
#include "dhelix/simulate.h"
#include "dhelix/timeline.h"
#include "dhelix/tune.h"

/* predictions beside published measurements */
#include "dhelix/validate.h"

/* weights in and out */
#include "dhelix/checkpoint.h"
#include "dhelix/safetensors.h"
#include "dhelix/weights.h"

/* training, evaluation, sampling, and a page about it */
#include "dhelix/generate.h"
#include "dhelix/report.h"
#include "dhelix/sampler.h"
#include "dhelix/session.h"
#include "dhelix/train.h"

#endif
