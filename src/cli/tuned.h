/* A search's result, as text and as JSON. */
#ifndef DH_CLI_TUNED_H
#define DH_CLI_TUNED_H

#include <jansson.h>

#include "costs/cluster.h"
#include "dhelix/job.h"
#include "dhelix/tune.h"

typedef struct dh_tuned {
    const dh_job *job;
    const dh_cluster *cluster; /* NULL: this machine */
    int64_t devices;
    double memory_bytes;
    const dh_tune *tune;
} dh_tuned;

void dh_tuned_print(const dh_tuned *tuned, dh_str *out);
/* NULL: out of memory */
json_t *dh_tuned_json(const dh_tuned *tuned);

#endif
