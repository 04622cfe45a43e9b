/* A job's training step, simulated: on a cluster that need not be there, or on this machine.
 *
 * The simulation executes the programs of training on costs instead of a machine. Same input, same
 * result, to the bit. */
#ifndef DHELIX_SIMULATE_H
#define DHELIX_SIMULATE_H

#include "dhelix/cluster.h"
#include "dhelix/export.h"
#include "dhelix/job.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_simulate_options {
    const dh_cluster *cluster; /* NULL: this machine, by a profile of it or estimates */
    const char *dir;           /* folder that gets what a run leaves in its own; NULL: none */
    bool quiet;                /* comparisons of strategy=auto are not logged */
} dh_simulate_options;

typedef struct dh_simulate_result {
    int64_t n_ranks, tokens; /* that the step is of */
    double step_s;           /* until the last rank has ended */
    uint64_t peak_bytes;     /* memory of the rank that needs most */
} dh_simulate_result;

/* Simulate one step.
 * in        job: as loaded; ranks, mesh, strategy and schedule are its settings
 * out       set only on DH_OK
 * errors    those of every setting that cannot be used, with what would be right; DH_EIO, DH_ENOMEM
 * cost      grows with the job's layers, micro-batches and pipeline stages, hardly with its ranks
 */
DH_API dh_status dh_simulate_job(dh_ctx *ctx, const dh_job *job, const dh_simulate_options *options,
                                 dh_simulate_result *result);

#ifdef __cplusplus
}
#endif
#endif
