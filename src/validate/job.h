/* Shipped jobs (validation/jobs), simulated by what `dhelix simulate` calls. */
#ifndef DH_VALIDATE_JOB_H
#define DH_VALIDATE_JOB_H

#include "train/resolve.h"
#include "train/simulation.h"
#include "validate/table.h"

/* A job file with settings of its own, as the command line has them. */
enum { DH_SHIPPED_SETS = 14 };
typedef struct dh_shipped_job {
    const char *file;                 /* of validation/jobs, without extension */
    const char *set[DH_SHIPPED_SETS]; /* "key=value"; NULL: no more */
    const char *cluster; /* unless the validation has another; NULL: its times are its own */
} dh_shipped_job;

/* Whether such a job file is shipped. */
bool dh_shipped_is_there(const char *file);
/* Adds settings, "key=value key=value"; words NULL: out of memory. */
dh_status dh_shipped_words(dh_ctx *ctx, dh_validation *v, dh_shipped_job *job, const char *words);

/* Adds one setting.
 * errors    DH_ENOMEM */
dh_status dh_shipped_set(dh_ctx *ctx, dh_validation *v, dh_shipped_job *job, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* "dhelix simulate validation/jobs/FILE.yaml --cluster NAME --set key=value"; in the arena.
 * NULL: out of memory */
const char *dh_shipped_command(const dh_validation *v, const dh_shipped_job *job);

/* ---- a simulation, to look into ------------------------------------------------------------- */

typedef struct dh_shipped_run {
    dh_job *job;
    dh_cluster *cluster;
    dh_resolved *resolved; /* NULL: only read */
    dh_sim *sim;           /* the same */
} dh_shipped_run;
/* Free with dh_shipped_fini, also after a failure.
 * errors    DH_EMISSING no such file; those of reading a job, and a cluster */
dh_status dh_shipped_read(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                          dh_shipped_run *run);
/* The same, resolved and simulated.
 * errors    those of dh_shipped_read, dh_job_resolve and dh_train_simulate */
dh_status dh_shipped_simulate(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                              dh_shipped_run *run);
void dh_shipped_fini(dh_shipped_run *run);

/* ---- its step alone -------------------------------------------------------------------------- */

/* The parts of rank 0's time. Every moment belongs to the first of these that runs then:
 * transfers between stages (others), tensor and expert parallelism, computation of layers, context
 * parallelism. All else is others. */
typedef enum dh_step_part_of {
    DH_STEP_TP,
    DH_STEP_CP,
    DH_STEP_EP,
    DH_STEP_COMPUTE,
    DH_STEP_OTHERS,
    DH_N_STEP_PARTS
} dh_step_part_of;
/* Shares of the step.
 * errors    DH_ENOMEM */
dh_status dh_step_parts(dh_ctx *ctx, const dh_sim *sim, double shares[DH_N_STEP_PARTS]);

typedef struct dh_shipped_step {
    double ns;
    /* Where no rank waits for the others between steps: the longest from a rank's first operator to
     * its last, then its own part of the optimizer. */
    double period_ns;
    double devices, peak_flops_per_s; /* of one */
    /* Of a step, all devices, as Megatron-LM counts them (Narayanan et al. SC21, equation 3;
     * Korthikanti et al. 2022, appendix A): causality not used. Model: forward and backward;
     * hardware: with what is computed again. */
    double model_flops, hardware_flops;
    double causal_flops; /* of a step, all devices: 6 a parameter and token and causal attention */
    /* As the job's system would need it (system_memory.h); zeros: the system is ours. */
    dh_system_memory first_stage; /* of rank 0 */
    double memory_bytes;          /* most of any rank */
    double device_bytes;          /* memory of a device */
    double n_params;              /* of the model */
    /* Of rank 0: shares of its step, and parts of its communication's own time. */
    double shares[DH_N_STEP_PARTS];
    double hidden_share, slowdown_share;
} dh_shipped_step;
/* Simulates.
 * errors    those of dh_shipped_simulate; DH_ENOMEM */
dh_status dh_shipped_measure(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                             dh_shipped_step *step);
/* From the validation's steps (steps.c): a step that another thread simulates is waited for. */
dh_status dh_shipped_step_of(dh_ctx *ctx, dh_validation *v, const dh_shipped_job *job,
                             dh_shipped_step *step);
double dh_megatron_model_flops(const dh_job *job);
double dh_megatron_hardware_flops(const dh_job *job);
/* The row added last is of that job.
 * errors    those of dh_shipped_read; DH_ENOMEM */
dh_status dh_shipped_name_row(dh_ctx *ctx, dh_validation *v, const dh_shipped_job *job,
                              double step_ns);

#endif
