/* A job's training step, simulated. */
#ifndef DH_TRAIN_SIMULATION_H
#define DH_TRAIN_SIMULATION_H

#include "report/system_memory.h"
#include "sim/simulate.h"
#include "train/resolve.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A node whose communication with other nodes takes `factor` times as long. */
typedef struct dh_slow_node {
    int64_t node;
    double factor;
} dh_slow_node;

typedef struct dh_train_simulation {
    dh_sim_options sim; /* its slow ranks beside the job's own (slow.*) */
    const dh_slow_node *slow_nodes;
    size_t n_slow_nodes;
} dh_train_simulation;

/* Cores that the ranks of a job share (dh_sim_options); 0: each has its own. */
int64_t dh_train_cores(const dh_resolved *job);

/* One training step of a job, simulated: the programs that dh_train would run, on costs. On a
 * cluster, nodes are the cluster's and kernels need no scratch.
 * out       set only on DH_OK; caller frees with dh_sim_destroy
 * errors    as dh_simulate; DH_EINVAL a slow node that is none */
dh_status dh_train_simulate(dh_ctx *ctx, const dh_resolved *job, const dh_train_simulation *how,
                            dh_sim **sim);

/* A step as it is chosen by, among others. */
typedef struct dh_train_trial {
    int64_t step_ns;
    uint64_t peak_bytes; /* most of any rank */
    bool fits;           /* a device of the cluster; true without one */
    double hidden_share; /* of communication, rank 0 */
} dh_train_trial;
/* errors    those of dh_train_simulate */
dh_status dh_train_try(dh_ctx *ctx, const dh_resolved *job, dh_train_trial *trial);

/* The same on other costs than those by which it is ordered. */
dh_status dh_train_simulate_on(dh_ctx *ctx, const dh_resolved *job, const dh_train_simulation *how,
                               const dh_costs *costs, dh_sim **sim);

/* Times of a step, means over all ranks. */
dh_timeline dh_train_mean_times(const dh_sim *sim);

/* Memory that the job's system would need.
 * out       memory [sim->n_classes], in the simulation's arena; NULL: the system is ours
 * errors    DH_ENOMEM */
dh_status dh_train_system_memory(dh_ctx *ctx, const dh_job *job, const dh_sim *sim,
                                 dh_system_memory **memory);

/* Writes the files that a run would leave in its folder: job.yaml, the profile of the costs,
 * summary.json with mean times over all ranks, and a trace-rankN.json for each simulated rank.
 *
 * in        few: traces only of the first rank of each pipeline stage
 * errors    DH_EIO, DH_ENOMEM */
dh_status dh_train_write_simulated(dh_ctx *ctx, const dh_resolved *resolved, const dh_sim *sim,
                                   const char *dir, bool few);

#ifdef __cplusplus
}
#endif
#endif
