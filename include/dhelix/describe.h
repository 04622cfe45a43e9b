/* What the program's commands say with --json, as text: for callers that want documents rather than
 * structs, such as bindings. The keys are those of `dhelix check --json` and so on.
 *
 * Every function appends one JSON object to *json, only on DH_OK. Beside the errors of each:
 * DH_ENOMEM. */
#ifndef DHELIX_DESCRIBE_H
#define DHELIX_DESCRIBE_H

#include "dhelix/cluster.h"
#include "dhelix/export.h"
#include "dhelix/growable.h"
#include "dhelix/job.h"
#include "dhelix/train.h"
#include "dhelix/tune.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's programs, built and verified without running them, those of all ranks together: sizes,
 * memory by what it is for, and what the job left open.
 * errors    DH_EVERIFY; DH_EINVAL a rank that the job has not, and of every setting that cannot be
 *           had */
DH_API dh_status dh_describe_check(dh_ctx *ctx, const dh_job *job, int64_t rank, dh_str *json);

typedef struct dh_describe_plan_options {
    const dh_cluster *cluster; /* NULL: this machine, by a profile of it or estimates */
    const char *policy;        /* the one in question; NULL: the job's */
    bool explain;              /* also its operators in order with their times, and where gradients
                                * and parameters travel in a simulated step */
} dh_describe_plan_options;

/* One layer's forward beside another's backward, by every order policy. */
DH_API dh_status dh_describe_plan(dh_ctx *ctx, const dh_job *job,
                                  const dh_describe_plan_options *options, dh_str *json);

/* The order of one policy for other programs to follow: operators by module path, call and
 * occurrence, their times, what runs beside what, and why what is exposed is (docs/plan-export.md).
 * options->explain is not read. */
DH_API dh_status dh_describe_order(dh_ctx *ctx, const dh_job *job,
                                   const dh_describe_plan_options *options, dh_str *json);

typedef struct dh_describe_simulate_options {
    const dh_cluster *cluster; /* NULL: this machine, by a profile of it or estimates */
    const char *strategies;    /* names with commas, or "all"; NULL: the job's */
    const char *schedules;     /* the same; with each, as many virtual stages as it fixes */
    const char *dir;           /* gets what a run leaves, of several a folder each; NULL: none */
    double peak_flops_per_s;   /* of a device, for utilisation; 0: the cluster's */
} dh_describe_simulate_options;

/* One training step by each strategy with each schedule (simulate.h). Why one cannot run the job
 * stands in its place, unless it is the only one: then that is the error. */
DH_API dh_status dh_describe_simulate(dh_ctx *ctx, const dh_job *job,
                                      const dh_describe_simulate_options *options, dh_str *json);

typedef struct dh_describe_table_options {
    const dh_cluster *cluster;   /* NULL: this machine, by a profile of it or estimates */
    const char *const *settings; /* what is varied: "parallel.tp=1,2,4", one or two */
    size_t n_settings;
    const char *dir;         /* gets table.json and table.csv, for reports; NULL: none */
    double peak_flops_per_s; /* of a device, for utilisation; 0: the cluster's */
} dh_describe_table_options;

/* One training step with every value of one or two settings: a job file with overrides as
 * dh_job_load takes them, then the cell's values. What a cell cannot have is its reason. errors of
 * the job without the values, of a setting that there is not; the first reason where no cell can be
 * had */
DH_API dh_status dh_describe_table(dh_ctx *ctx, const char *path, const char *const *overrides,
                                   size_t n_overrides, const dh_describe_table_options *options,
                                   dh_str *json);

/* A search's ranking, and the best with each value (tune.h). */
DH_API dh_status dh_describe_tune(dh_ctx *ctx, const dh_job *job, const dh_tune_options *options,
                                  dh_str *json);

typedef struct dh_describe_calibrate_options {
    const char *like; /* cluster of the same hardware: what the measurements do not tell is its */
    const char *out;  /* gets the cluster, for dh_cluster_find; NULL: none */
    int64_t devices;  /* of a node; 0: those of `like` */
} dh_describe_calibrate_options;

/* A cluster fitted to measurements: what nccl-tests printed, a CSV of GEMMs, PyTorch profiler
 * traces. Which constants were fitted and to how many rows; how far predictions are from these, and
 * from the third of the rows that the fit did not see. errors    DH_EFORMAT with file and line;
 * DH_EMISSING no cluster `like`; DH_EINVAL; DH_EIO */
DH_API dh_status dh_describe_calibrate(dh_ctx *ctx, const char *const *files, size_t n_files,
                                       const dh_describe_calibrate_options *options, dh_str *json);

/* What training came to. */
DH_API dh_status dh_describe_train(dh_ctx *ctx, const dh_job *job, const dh_train_result *result,
                                   dh_str *json);

#ifdef __cplusplus
}
#endif
#endif
