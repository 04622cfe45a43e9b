/* One training step of a job, simulated with one strategy or with several. */
#ifndef DH_DESCRIBE_SIMULATED_H
#define DH_DESCRIBE_SIMULATED_H

#include <jansson.h>

#include "costs/cluster.h"
#include "describe/cargo.h"
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
    dh_resolved *open; /* owns the job */
    dh_arena *arena;   /* owns the list and strategies that have no row */
} dh_simulated_list;

typedef struct dh_simulated_how {
    const dh_cluster *cluster; /* NULL: this machine */
    double peak_flops_per_s;   /* of a device; 0: the cluster's */
    dh_train_simulation simulation;
} dh_simulated_how;

/* Strategies by their names with commas between them, "all", or (NULL) the job's.
 * out       caller frees with dh_simulated_fini, also after a failure */
dh_status dh_simulated_open(dh_ctx *ctx, const dh_job *job, const char *strategies,
                            dh_simulated_list *list);
/* Simulate each. What one strategy cannot do is its reason, unless it is the only one. */
dh_status dh_simulated_run(dh_ctx *ctx, const dh_job *job, const dh_simulated_how *how,
                           dh_simulated_list *list);
void dh_simulated_fini(dh_simulated_list *list);

/* What a run would leave in its folder; of several strategies, each in a folder of its name. */
dh_status dh_simulated_write(dh_ctx *ctx, const dh_simulated_list *list, const char *dir);

/* Every figure is of one training step. Times of several ranks are means over all ranks of the
 * mesh, each rank that was simulated counting for those that it stands for. */
typedef struct dh_simulated_figures {
    double step_s, tokens_per_s;
    double model_flops_per_s, hardware_flops_per_s;               /* of a device */
    double compute_ns, hidden_ns, exposed_ns, idle_ns, bubble_ns; /* of a rank, on average */
    double exposed_by_ns[DH_N_EXPOSURE];
    double partners_ns;    /* of idle_ns, as bubble_ns is */
    double hidden_percent; /* of communication */
    uint64_t peak_bytes;   /* most of any rank */
} dh_simulated_figures;

dh_simulated_figures dh_simulated_figures_of(const dh_sim *sim);

/* NULL: out of memory */
json_t *dh_simulated_json(const dh_simulated_list *list);

#endif
