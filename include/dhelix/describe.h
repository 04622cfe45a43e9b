/* JSON documents of the program's commands, as text, for callers such as bindings that want
 * documents rather than structs. The keys are those of `dhelix check --json` and so on.
 *
 * Every function appends one JSON object to *json, only on DH_OK. Every function may also return
 * DH_ENOMEM. */
#ifndef DHELIX_DESCRIBE_H
#define DHELIX_DESCRIBE_H

#include "dhelix/cluster.h"
#include "dhelix/dtype.h"
#include "dhelix/export.h"
#include "dhelix/growable.h"
#include "dhelix/job.h"
#include "dhelix/train.h"
#include "dhelix/tune.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All lists that `dhelix list` prints: models, clusters, strategies and schedules; devices, systems
 * and settings; and more. Each list is an array of flat objects with the same keys. */
DH_API dh_status dh_describe_lists(dh_ctx *ctx, dh_str *json);

/* A rank's programs: sizes, memory by use, and the settings that the job left open. The programs of
 * all ranks are built and verified together, and not run.
 * errors    DH_EVERIFY; DH_EINVAL a rank that the job has not, or a setting that cannot be used */
DH_API dh_status dh_describe_check(dh_ctx *ctx, const dh_job *job, int64_t rank, dh_str *json);

typedef struct dh_describe_plan_options {
    const dh_cluster *cluster; /* NULL: this machine, by a profile of it or estimates */
    const char *policy;        /* order policy; NULL: the job's */
    bool explain;              /* also its operators in order with their times, and where gradients
                                * and parameters travel in a simulated step */
} dh_describe_plan_options;

/* One layer's forward paired with another's backward, by every order policy.
 * errors    those of dh_simulate_job */
DH_API dh_status dh_describe_plan(dh_ctx *ctx, const dh_job *job,
                                  const dh_describe_plan_options *options, dh_str *json);

/* The order of one policy for other programs to follow (docs/reference/plan-export.md). It has
 * operators by module path, call and occurrence, and their times. It has operators that run at
 * once, and causes of exposed time. options->explain is not read.
 * errors    those of dh_describe_plan */
DH_API dh_status dh_describe_order(dh_ctx *ctx, const dh_job *job,
                                   const dh_describe_plan_options *options, dh_str *json);

typedef struct dh_describe_simulate_options {
    const dh_cluster *cluster; /* NULL: this machine, by a profile of it or estimates */
    const char *strategies;    /* names with commas, or "all"; NULL: the job's */
    /* The same; with each, as many virtual stages as it fixes. NULL: each strategy has the job's
     * schedule if that makes the pairs that it needs, else its own. */
    const char *schedules;
    const char *dir;         /* gets the files of a run, a folder for each of several; NULL: none */
    double peak_flops_per_s; /* of a device, for utilisation; 0: the cluster's */
} dh_describe_simulate_options;

/* One training step by each strategy with each schedule (simulate.h). A strategy that cannot run
 * the job has the reason in its place. If it is the only one, the reason is the error. The first of
 * several is the job as given (`as_given`); `speed_up` is over it. `same_as` names an earlier
 * strategy with the same programs.
 * errors    those of dh_simulate_job; DH_EMISSING a strategy or schedule; DH_EINVAL options */
DH_API dh_status dh_describe_simulate(dh_ctx *ctx, const dh_job *job,
                                      const dh_describe_simulate_options *options, dh_str *json);

typedef struct dh_describe_table_options {
    const dh_cluster *cluster;   /* NULL: this machine, by a profile of it or estimates */
    const char *const *settings; /* one or two, with their values: "parallel.tp=1,2,4" */
    size_t n_settings;
    const char *dir;         /* gets table.json and table.csv, for reports; NULL: none */
    double peak_flops_per_s; /* of a device, for utilisation; 0: the cluster's */
} dh_describe_table_options;

/* One training step with every value of one or two settings: a job file with overrides as
 * dh_job_load takes them, then the cell's values. A cell that is not possible has its reason.
 * errors    those of the job without the values; an unknown setting; the first reason where no cell
 *           is possible */
DH_API dh_status dh_describe_table(dh_ctx *ctx, const char *path, const char *const *overrides,
                                   size_t n_overrides, const dh_describe_table_options *options,
                                   dh_str *json);

/* A search's ranking, and the best with each value (tune.h).
 * errors    those of dh_tune_search */
DH_API dh_status dh_describe_tune(dh_ctx *ctx, const dh_job *job, const dh_tune_options *options,
                                  dh_str *json);

typedef struct dh_describe_calibrate_options {
    const char *like; /* cluster of the same hardware, for all that the measurements do not tell */
    const char *out;  /* gets the cluster, for dh_cluster_find; NULL: none */
    int64_t devices;  /* of a node; 0: those of `like` */
} dh_describe_calibrate_options;

/* A cluster fitted to measurements: output of nccl-tests, a CSV of GEMMs, PyTorch profiler traces.
 * The document names the fitted constants and the number of their rows. It has the errors of
 * predictions on these rows, and on the third of the rows that the fit did not see.
 *
 * errors    DH_EFORMAT with file and line; DH_EMISSING no cluster `like`; DH_EINVAL; DH_EIO */
DH_API dh_status dh_describe_calibrate(dh_ctx *ctx, const char *const *files, size_t n_files,
                                       const dh_describe_calibrate_options *options, dh_str *json);

typedef struct dh_describe_eval_options {
    const char *const *data; /* texts, JSON lines or token files */
    size_t n_data;
    const char *tokenizer;     /* as dh_tokenizer_load takes it; NULL: the one beside the weights */
    const char *text_field;    /* of JSON lines; NULL: text */
    const char *chat_template; /* JSON lines are conversations, by this template, or "auto": the
                                * run's, else the tokenizer's. NULL: they are texts */
    const char *base;          /* for adapters: their base weights; NULL: those they name */
    int64_t seq;               /* tokens of a sequence; 0: the model's longest, at most 1024 */
    int64_t batches;           /* micro-batches from the start of the data; 0: all */
    int64_t micro_batch;       /* sequences computed together; 0: 1 */
    int64_t threads;           /* 0: all cores */
    dh_dtype dtype;            /* of computation: DH_F32 or DH_BF16 */
    bool special_tokens;       /* texts of special tokens become those tokens */
    bool progress;             /* a line of progress on standard error, where that is a terminal */
} dh_describe_eval_options;

/* The loss of a trained model on given data, which are cut into sequences in file order.
 * in        path: as dh_trained_open takes it
 * errors    those of the model and of the data; DH_EINVAL an option out of its range */
DH_API dh_status dh_describe_eval(dh_ctx *ctx, const char *path,
                                  const dh_describe_eval_options *options, dh_str *json);

typedef struct dh_describe_convert_options {
    const char *base; /* for adapters: their base weights; NULL: those they name */
    dh_dtype dtype;   /* type of the weights written: DH_F32 or DH_BF16 */
    bool replace;     /* a model folder `out` is replaced; its other files stay */
} dh_describe_convert_options;

/* Write weights as a Hugging Face folder, which appears complete or not at all. Adapters are merged
 * into the weights they belong to.
 * in        path: as dh_trained_open takes it
 * errors    DH_EINVAL `out` is there, or is read; DH_EMISSING a tensor; DH_EIO; what the weights
 *           have */
DH_API dh_status dh_describe_convert(dh_ctx *ctx, const char *path, const char *out,
                                     const dh_describe_convert_options *options, dh_str *json);

typedef struct dh_describe_tokenize_options {
    const char *tokenizer; /* as dh_tokenizer_load takes it, or "chars": of these texts */
    const char *text;      /* in place of files; NULL: none */
    size_t n_text;
    const char *output;        /* token file of llm.c, or with train_bpe a folder; NULL: none */
    const char *text_field;    /* of JSON lines; NULL: text */
    const char *chat_template; /* JSON lines are conversations, by this template, or "auto": the
                                * tokenizer's. NULL: they are texts */
    int64_t train_bpe;         /* learn a tokenizer of as many tokens; 0: encode */
    bool special_tokens;       /* texts of special tokens become those tokens */
    bool ids;                  /* the document has the ids */
} dh_describe_tokenize_options;

/* Text to tokens: counted, written to a file, or as `ids`. Of conversations `learnt` and `last` have
 * a value for each id: whether it is in the loss, and whether it ends its conversation. With
 * train_bpe a tokenizer is learnt from the files instead.
 * errors    those of the texts and of the tokenizer; DH_EINVAL options that do not go together */
DH_API dh_status dh_describe_tokenize(dh_ctx *ctx, const char *const *files, size_t n_files,
                                      const dh_describe_tokenize_options *options, dh_str *json);

typedef struct dh_describe_profile_options {
    const char *out;           /* profile to write; NULL: where runs of such a job find it */
    int64_t samples;           /* of every operator and pair; 0: 11 */
    double seconds;            /* after this no sample is begun, once there are 3; 0: 60 */
    const char *matrix;        /* measure nothing: a CSV of overlap effectiveness; NULL: none */
    const char *const *traces; /* measure nothing: traces of PyTorch's profiler, or our own */
    size_t n_traces;
    bool progress;                     /* lines of progress on standard error */
    const volatile sig_atomic_t *stop; /* as in dh_train_options; then nothing is written */
} dh_describe_profile_options;

/* Measures a job's operators, alone and in pairs, on its ranks and links, and writes the profile.
 * Under MPI only rank 0's process has a document; the others' *json stays as it is.
 *
 * errors    those of training and of the files; DH_EINVAL options that do not go together, or `out`
 *           is read; DH_EINTERRUPTED */
DH_API dh_status dh_describe_profile(dh_ctx *ctx, const dh_job *job,
                                     const dh_describe_profile_options *options, dh_str *json);

/* Results of training. */
DH_API dh_status dh_describe_train(dh_ctx *ctx, const dh_job *job, const dh_train_result *result,
                                   dh_str *json);

#ifdef __cplusplus
}
#endif
#endif
