/* Tuning: the mesh, micro-batch, recomputation, schedule and strategy that train a job fastest on
 * given devices and memory.
 *
 *   1. Every combination that the job could have is enumerated. A combination that a job file or
 *      its mesh would refuse is refused here with the same message.
 *   2. The others get an estimate. Time: the operators of the program's graphs, with the program's
 *      costs and orders, along the slots of the pipeline schedule. Memory: lifetimes in these
 *      graphs, and the program's layout of persistent data.
 *   3. The best few, and the best with each value, are simulated (simulate.h). The simulation
 *      decides among them.
 * Same input, same result. */
#ifndef DHELIX_TUNE_H
#define DHELIX_TUNE_H

#include <signal.h>

#include "dhelix/cluster.h"
#include "dhelix/export.h"
#include "dhelix/job.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(id, column, setting, doc): what is searched over. */
#define DH_TUNE_DIM_LIST(X)                                                                        \
    X(TP, "tp", "parallel.tp", "tensor parallel")                                                  \
    X(CP, "cp", "parallel.cp", "context parallel")                                                 \
    X(PP, "pp", "parallel.pp", "pipeline stages")                                                  \
    X(EP, "ep", "parallel.ep", "expert parallel")                                                  \
    X(DP, "dp", "parallel.dp", "data parallel: what the others leave of the devices")              \
    X(MICRO_BATCH, "mb", "train.micro_batch", "sequences of a micro-batch")                        \
    X(RECOMPUTE, "recompute", "train.recompute", "activations computed again in backward")         \
    X(SCHEDULE, "schedule", "parallel.schedule", "pipeline schedule")                              \
    X(STAGES, "vs", "parallel.virtual_stages",                                                     \
      "virtual stages of a rank, where the schedule asks")                                         \
    X(STRATEGY, "strategy", "strategy", "how communication is hidden")                             \
    X(ZERO, "zero", "parallel.zero", "what data-parallel ranks share out")                         \
    X(BUCKET, "bucket", "parallel.bucket_mb", "most gradients of one transfer, in MB; 0: auto")    \
    X(CP_LINEAR, "cp_linear", "parallel.cp_linear",                                                \
      "how states of linear attention travel; -1: there are none that do")                         \
    X(SEQUENCE, "sp", "parallel.sequence",                                                         \
      "tokens between linears split, or whole on every rank; -1: as the job has it")               \
    X(FUSE, "fuse", "optimizer.fuse",                                                              \
      "pieces in which a bucket is reduced and stepped by; 0: off, -1: as the job has it")         \
    X(POST, "post", "optimizer.post_validation",                                                   \
      "stages step before the norm is known; -1: as the job has it")                               \
    X(SPLIT, "split", "parallel.layer_split",                                                      \
      "layers fewer than an even share: 4 times those of the first virtual stage, and those of "   \
      "the last; -1: as the job has it")

typedef enum dh_tune_dim {
#define X(id, column, setting, doc) DH_TUNE_##id,
    DH_TUNE_DIM_LIST(X)
#undef X
        DH_N_TUNE_DIM
} dh_tune_dim;

DH_API const char *dh_tune_dim_name(dh_tune_dim dim);
DH_API const char *dh_tune_dim_setting(dh_tune_dim dim);
/* DH_N_TUNE_DIM: none has this setting. */
DH_API dh_tune_dim dh_tune_dim_of(const char *setting);

/* One value of each; of schedule and strategy the row's index. */
typedef struct dh_tune_config {
    int64_t at[DH_N_TUNE_DIM];
} dh_tune_config;
/* A value as the job file has it. */
DH_API const char *dh_tune_value(dh_tune_dim dim, int64_t value, char *buf, size_t cap);
/* The job with a configuration's values, checked; strings are in the job's arena. Layers that
 * do not divide are split evenly.
 * errors    those of dh_job_check; DH_ENOMEM */
DH_API dh_status dh_tune_apply(dh_ctx *ctx, const dh_tune_config *config, dh_job *job);

/* X(id, name, doc): what the step of the rank that is last to finish is made of. */
#define DH_TUNE_ITEM_LIST(X)                                                                       \
    X(COMPUTE, "compute", "the model's operators")                                                 \
    X(RECOMPUTE, "recompute", "operators run again in backward")                                   \
    X(TP, "tp comm", "exposed communication of tensor parallelism")                                \
    X(CP, "cp comm", "exposed communication of context parallelism")                               \
    X(EP, "ep comm", "exposed communication of expert parallelism")                                \
    X(DP, "dp comm", "exposed reductions of gradients and gathers of parameters")                  \
    X(BUBBLE, "bubble", "waiting for other stages, transfers included")                            \
    X(OPTIMIZER, "optimizer", "gradient norm, update, gathering of weights")                       \
    X(LAUNCH, "launch", "starting operators")

typedef enum dh_tune_item {
#define X(id, name, doc) DH_TUNE_ITEM_##id,
    DH_TUNE_ITEM_LIST(X)
#undef X
        DH_N_TUNE_ITEM
} dh_tune_item;
DH_API const char *dh_tune_item_name(dh_tune_item item);

/* X(id, name, doc): what a simulated step is made of, means over all ranks. */
#define DH_TUNE_SIMULATED_LIST(X)                                                                  \
    X(COMPUTE, "compute", "the rank computed")                                                     \
    X(EXPOSED, "exposed communication", "it communicated and did not compute")                     \
    X(BUBBLE, "bubble", "it waited for other stages")                                              \
    X(PARTNERS, "late partners", "it waited for ranks of its groups")                              \
    X(REST, "other waiting", "it had nothing left to do")

typedef enum dh_tune_simulated {
#define X(id, name, doc) DH_TUNE_SIMULATED_##id,
    DH_TUNE_SIMULATED_LIST(X)
#undef X
        DH_N_TUNE_SIMULATED
} dh_tune_simulated;
DH_API const char *dh_tune_simulated_name(dh_tune_simulated item);

/* Memory of the rank that needs most. */
typedef struct dh_tune_memory {
    int64_t stage;
    uint64_t parameters, gradients, optimizer, activations; /* and copies, states */
    uint64_t peak_bytes;
} dh_tune_memory;

typedef struct dh_tune_row {
    dh_tune_config config;
    bool fits;                      /* by the estimate, or the simulator where it was asked */
    double step_ns;                 /* estimated; where it does not fit: 0 */
    double item_ns[DH_N_TUNE_ITEM]; /* adds up to step_ns */
    dh_tune_memory memory;          /* estimated */
    int64_t simulated_ns;           /* 0: not simulated */
    double simulated_item_ns[DH_N_TUNE_SIMULATED]; /* adds up to simulated_ns */
    uint64_t simulated_bytes;                      /* peak */
    const char *why;                               /* why it is not the first; "" for that */
} dh_tune_row;

/* The best with one value of a dimension, whatever the others. */
typedef struct dh_tune_value_row {
    dh_tune_dim dim;
    int64_t value;
    int64_t n_fit, n_too_large, n_refused;
    int64_t n_behind; /* with work that alone takes more than is worth a look */
    double least_ns;  /* the least of such work, where there is some */
    dh_tune_row best; /* if n_fit is 0: that with the least memory; valid if n_too_large is not 0 */
    const char *why; /* the loss against the winner, by simulations of both or by estimates of both;
                       * or why there is no such configuration */
} dh_tune_value_row;

typedef struct dh_tune {
    dh_arena *arena; /* owns all below */
    const char *costs;
    double memory_bytes;                   /* of a device: the limit */
    int64_t n_fit, n_too_large, n_refused; /* configurations estimated, and refused as such */
    int64_t n_left_out; /* of schedules that are placed by a search of their own (zb-auto): neither
                         * one of rows nor the best with a value, by bounds on time or memory */
    int64_t n_behind;   /* configurations whose products, attention and rings alone take more than
                         * options.within allows; whether they fit is not known */
    double worth_ns;    /* which is this; 0: all were looked at */
    dh_tune_row *rows;  /* [n_rows], best first */
    size_t n_rows;
    /* options.given; -1 where the search has no such value. given_refused: why there is no such
     * row, which is then zeros; NULL: there is, or none was asked for. */
    dh_tune_row given;
    const char *given_refused;
    /* In what the best row is unlike all steps that were measured on such devices, and the tables of
     * these (`dhelix validate`), with spaces; "": there are none, or no cluster. */
    const char **beyond, *measured;
    size_t n_beyond;
    dh_tune_value_row *values; /* [n_values], by dimension and value */
    size_t n_values;
    int64_t search_ns; /* wall time: the only number that varies from run to run */
} dh_tune;

enum { DH_TUNE_MANY = 20000 };

typedef struct dh_tune_options {
    const dh_cluster *cluster; /* NULL: this machine's costs */
    int64_t devices;           /* 0: the job's ranks */
    const dh_job *given;       /* the job as it stands, which gets a row of its own; NULL */
    const char *given_refused; /* why it cannot stand so; NULL */
    double memory_bytes;       /* of a device; 0: the cluster's, or this machine's by ranks */
    unsigned fixed;            /* bit 1 << dh_tune_dim: the job's value stays */
    const char *strategies;    /* names with commas; NULL: all */
    const char *schedules;     /* the same */
    const char *zeros;         /* degrees with commas, or all; NULL: the job's own */
    const char *buckets;       /* sizes in MB with commas, auto among them; NULL: the job's own */
    const char *sequences;     /* true, false, both with a comma, or all; NULL: the job's own */
    const char *fusions;       /* numbers of pieces with commas, off among them, or all; the same */
    const char *posts;         /* as sequences */
    size_t n_rows;             /* most rows of the result */
    size_t n_simulated;        /* number of the best by estimate that are simulated; not 0: also the
                                * best with each value, unless its estimate exceeds `within` */
    /* Limit, in steps of the best configuration with the first strategy. A value beyond it gets a
     * lower bound instead of an estimate. 0: 1.5 where there are more than DH_TUNE_MANY
     * configurations, else no limit; INFINITY: no limit. */
    double within;
    int64_t n_threads;                 /* 0: one a core; the result is the same with any number */
    bool quiet;                        /* no progress */
    const volatile sig_atomic_t *stop; /* when it becomes non-zero: DH_EINTERRUPTED; NULL: ctx's */
} dh_tune_options;

/* A job file as a search takes it. The file's mesh, micro-batch, schedule and strategy are set
 * aside. Settings that overrides give ("parallel.tp=8") stay fixed.
 * out       set only on DH_OK: the job, which the caller frees, and dh_tune_options.fixed
 * errors    those of dh_job_load */
DH_API dh_status dh_tune_load(dh_ctx *ctx, const char *path, const char *const *overrides,
                              size_t n_overrides, dh_job **job, unsigned *fixed);

/* The job file as it stands, with overrides, on a number of devices: dh_tune_options.given. Other
 * devices than its own become data-parallel ranks, more or fewer.
 * in        devices: 0: those of the job
 *           n: bytes of refused
 * out       job: set only on DH_OK, the caller frees it; NULL where the job cannot be on so many
 *           devices. refused: the reason then, else ""
 * errors    DH_ENOMEM; with 0 devices those of dh_job_load */
DH_API dh_status dh_tune_load_given(dh_ctx *ctx, const char *path, const char *const *overrides,
                                    size_t n_overrides, int64_t devices, dh_job **job,
                                    char *refused, size_t n);

/* Search.
 * in        job: its model, batch, sequence length, precision and all settings that are not
 *           searched
 * out       set only on DH_OK; caller frees with dh_tune_destroy. n_rows 0: nothing fits, and
 *           values have the configuration that needs least
 * errors    DH_EINVAL devices, memory or `within` out of range, nothing is possible (with the first
 *           reason); DH_EMISSING a strategy or schedule of that name; DH_EINTERRUPTED;
 *           those of dh_simulate_job
 * cost      tens of microseconds a configuration of a dense model, and the simulations */
DH_API dh_status dh_tune_search(dh_ctx *ctx, const dh_job *job, const dh_tune_options *options,
                                dh_tune **tune);
DH_API void dh_tune_destroy(dh_tune *tune);

#ifdef __cplusplus
}
#endif
#endif
