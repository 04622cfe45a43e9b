/* Simulated steps of a job, as text and as JSON. */
#ifndef DH_CLI_SIMULATED_H
#define DH_CLI_SIMULATED_H

#include <jansson.h>

#include "cli/cargo.h"
#include "costs/cluster.h"
#include "train/simulation.h"

/* One strategy's step. */
typedef struct dh_simulated {
    const dh_strategy *strategy;
    dh_resolved *job; /* with it */
    dh_sim *sim;      /* NULL: it cannot run this job */
    dh_cargo_means cargo;
    char reason[512]; /* why not */
} dh_simulated;

typedef struct dh_simulated_list {
    const dh_job *job;         /* its vocabulary known, its strategy as it was given */
    const dh_cluster *cluster; /* NULL: this machine */
    double peak_flops_per_s;   /* of a device; 0: not known */
    dh_simulated *at;          /* [n] */
    size_t n;
} dh_simulated_list;

void dh_simulated_print(const dh_simulated_list *list, dh_str *out);
/* NULL: out of memory */
json_t *dh_simulated_json(const dh_simulated_list *list);

#endif
