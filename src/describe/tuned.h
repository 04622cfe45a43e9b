/* A search's result. */
#ifndef DH_DESCRIBE_TUNED_H
#define DH_DESCRIBE_TUNED_H

#include <jansson.h>

#include "costs/cluster.h"
#include "costs/precedents.h"
#include "dhelix/job.h"
#include "dhelix/tune.h"

typedef struct dh_tuned {
    const dh_job *job;
    const dh_cluster *cluster; /* NULL: this machine */
    int64_t devices;
    double memory_bytes;
    const dh_tune *tune;
} dh_tuned;

/* Whether the job as it stands has a row. */
bool dh_tuned_has_given(const dh_tune *tune);
dh_tuned dh_tuned_of(const dh_job *job, const dh_tune_options *how, const dh_tune *tune);
/* Facts of the best configuration. False: there is none, or it is for this machine. */
bool dh_tuned_facts(const dh_tuned *tuned, dh_step_facts *facts);
/* NULL: out of memory */
json_t *dh_tuned_json(const dh_tuned *tuned);

#endif
