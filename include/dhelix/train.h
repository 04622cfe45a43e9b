/* Training a job from its first step to its last, or on from a checkpoint. */
#ifndef DHELIX_TRAIN_H
#define DHELIX_TRAIN_H

#include <signal.h>

#include "dhelix/checkpoint.h"
#include "dhelix/cluster.h"
#include "dhelix/job.h"
#include "dhelix/profile.h"
#include "dhelix/session.h"
#include "dhelix/simulate.h"
#include "dhelix/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_train_options {
    bool quiet; /* no progress */
    bool fresh; /* set an existing run folder aside instead of resuming it */
    /* When it becomes non-zero: finish the step, checkpoint, return DH_EINTERRUPTED. */
    const volatile sig_atomic_t *stop;
} dh_train_options;

enum { DH_RUN_PATH_BYTES = 4096 }; /* of any path below a run folder, as the system takes them */

/* Under MPI only rank 0's process has a result; the others' have `primary` false. */
typedef struct dh_train_result {
    bool primary;
    int64_t steps;        /* optimizer steps done in all */
    int64_t resumed_at;   /* step the run continued from, 0: from the start */
    double loss;          /* of the last step */
    double val_loss;      /* last validation; NaN if never */
    double tokens_per_s;  /* median over this run's steps, warm-up left out */
    double hidden_share;  /* of rank 0's transfers, behind computation; NaN: there were none */
    double exposed_share; /* of its steps' time, in which it only communicated */
    uint64_t slab_planned, slab_peak;
    char checkpoint[DH_RUN_PATH_BYTES]; /* last one written, "" if none */
} dh_train_result;

/* Train. The run folder job->out_dir gets job.yaml, metrics.jsonl (one object a step),
 * summary.json, tokenizer files and checkpoints/. With a checkpoint there, training
 * continues from the newest intact one, bit-identical to a run without the break.
 * errors    DH_EDIVERGED (step and operator named), DH_EINTERRUPTED, and whatever
 *           job, data and disk give; the last checkpoint is intact in every case */
dh_status dh_train(dh_ctx *ctx, const dh_job *job, const dh_train_options *options,
                   dh_train_result *result);

/* Ranks of the launcher (mpirun, srun) this process was started by; 0: none. */
int64_t dh_launched_ranks(void);

/* ---- recipes of jobs (recipe.h) -------------------------------------------------------------- */

/* What a job left open, what that came to, and why: for people. */
typedef struct dh_derived {
    const char *name, *value, *why;
} dh_derived;
enum { DH_MAX_DERIVED = 16 };

/* A job, resolved: what checking, planning, training and simulating it go by. Made once, then
 * read only. Borrows the job's strings and the cluster; owns the rest. */
typedef struct dh_resolved {
    dh_job job; /* with vocabulary and strategy filled in */
    dh_recipe recipe;
    const dh_cluster *cluster; /* whose devices and links; NULL: this machine */
    dh_derived derived[DH_MAX_DERIVED];
    size_t n_derived, n_common; /* the first n_common hold for any strategy */
    dh_schedule *schedule;      /* the recipe's */
    dh_arena *arena;
} dh_resolved;

typedef struct dh_resolve_options {
    const dh_cluster *cluster;     /* NULL: this machine's costs, by a profile or estimates */
    const dh_tokenizer *tokenizer; /* decides a vocabulary left open; NULL: the job's is opened */
    bool open;                     /* no strategy, nor what follows from it: dh_resolved_vary */
    bool quiet;                    /* what strategy=auto compares is not logged */
} dh_resolve_options;

/* The vocabulary by the tokenizer, ranks on nodes, strategy (of `auto` the one whose simulated
 * step is shortest), its ordering with a cache, costs by which it orders, schedule. No data is
 * read, but for a vocabulary left open. Caller frees with dh_resolved_destroy.
 * errors    of every setting that cannot be had */
dh_status dh_job_resolve(dh_ctx *ctx, const dh_job *job, const dh_resolve_options *options,
                         dh_resolved **resolved);
/* The same with another strategy. Needs `from` no longer. */
dh_status dh_resolved_vary(dh_ctx *ctx, const dh_resolved *from, const dh_strategy *strategy,
                           dh_resolved **varied);
void dh_resolved_destroy(dh_resolved *resolved);
/* Rank 0's session of a run: training, and evaluation where the job has any. */
dh_session_spec dh_train_session(const dh_job *job, const dh_recipe *recipe);

/* The job's tokenizer, whose ids the vocabulary must hold where it is given. "chars" reads the
 * training texts. Caller frees *tokenizer. */
dh_status dh_train_tokenizer(dh_ctx *ctx, const dh_job *job, dh_tokenizer **tokenizer);

/* ---- simulated training ---------------------------------------------------------------------- */

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

/* One training step of a job, simulated: the programs that dh_train would run, on costs. On a
 * cluster, nodes are the cluster's and kernels need no scratch.
 * out       set only on DH_OK; caller frees with dh_sim_destroy
 * errors    as dh_simulate; DH_EINVAL a slow node that is none */
dh_status dh_train_simulate(dh_ctx *ctx, const dh_resolved *job, const dh_train_simulation *how,
                            dh_sim **sim);

/* What a run would leave in its folder: job.yaml, summary.json with rank 0's times, and
 * a trace-rankN.json for each rank that was simulated. errors: DH_EIO, DH_ENOMEM */
dh_status dh_train_write_simulated(dh_ctx *ctx, const dh_job *job, const dh_sim *sim,
                                   const char *dir);
/* ---- profiles (profile.h) -------------------------------------------------------------------- */

typedef struct dh_profile_options {
    bool quiet;                        /* no progress */
    int64_t samples;                   /* of every operator and pair; 0: 11 */
    double seconds;                    /* after this no sample is begun, once there are 3; 0: 60 */
    const volatile sig_atomic_t *stop; /* as in dh_train_options; then nothing is written */
} dh_profile_options;

/* Run the job's operators on its ranks and links, alone and in pairs: a model of one layer a
 * virtual stage with the job's sizes, on the job's data. Those of every strategy are measured,
 * whatever the job's is.
 * out       caller frees; NULL in processes other than rank 0's
 * errors    those of training; DH_EINTERRUPTED */
dh_status dh_profile_measure(dh_ctx *ctx, const dh_job *job, const dh_profile_options *options,
                             dh_profile **profile);
/* For the setting `profile: measure`: where what lies at the job's place does not know all
 * operators of its strategy (of every strategy for `auto`), measure them, and store them there
 * before any rank goes on. The job's vocabulary must be known.
 * errors    those of dh_profile_measure and dh_profile_store */
dh_status dh_profile_complete(dh_ctx *ctx, const dh_job *job, const dh_profile_options *options);
/* The job's operators with estimated times, and pairs by a matrix whose names are those of
 * dh_op_oef_name or labels.
 * in        name: of the matrix, for messages
 * errors    DH_EMISSING the matrix has none of the job's pairs */
dh_status dh_profile_import(dh_ctx *ctx, const dh_job *job, const dh_oef_matrix *matrix,
                            const char *name, dh_profile **profile);

/* Where the job's profile lies unless told otherwise: profiles/HASH.json in data.cache,
 * $XDG_CACHE_HOME/dhelix or ~/.cache/dhelix, HASH being that of the profile's facts.
 * errors    DH_EMISSING no such folder */
dh_status dh_profile_place(dh_ctx *ctx, const dh_job *job, const dh_profile *profile, dh_str *path);
/* Write, with what a file of the same facts there has beside; creates folders. */
dh_status dh_profile_store(dh_ctx *ctx, const dh_profile *profile, const char *path);
/* The profile the job goes by, from its setting `profile`: none; auto or measure, what is at its
 * place, if anything there is of use; or a file, which must be for this job and know its operators.
 * out       NULL: none; caller frees
 * errors    of a file that was named: what reading gives; DH_EINVAL with what does not match */
dh_status dh_profile_find(dh_ctx *ctx, const dh_job *job, dh_profile **profile);

/* ---- inspecting a run folder ----------------------------------------------------------------- */

typedef struct dh_run_finding {
    int64_t step;
    dh_ckpt_condition condition; /* shapes of weights and moments counted in */
    size_t n_files;              /* 0: not even the manifest could be read */
    int64_t n_bytes;
    char message[DH_CTX_MESSAGE_BYTES]; /* what is wrong; "" where nothing is */
} dh_run_finding;

typedef enum dh_resume {
    DH_RESUME_BEGINS,    /* there is no checkpoint: from the beginning */
    DH_RESUME_CONTINUES, /* from resume_step */
    DH_RESUME_REFUSED
} dh_resume;

typedef struct dh_run_findings {
    DH_VEC(dh_run_finding) checkpoints; /* newest first */
    dh_resume resume;                   /* what `dhelix train` would do */
    int64_t resume_step;
    size_t n_lines, n_unreadable; /* of metrics.jsonl */
    char unreadable[160];         /* the numbers of the first of those */
} dh_run_findings;

/* Read everything that a resume depends on: checksums, shapes, state, metrics.
 * out       caller frees with dh_run_findings_fini
 * errors    DH_EMISSING no such folder; DH_EPERM, DH_EIO it cannot be listed; DH_ENOMEM */
dh_status dh_run_inspect(dh_ctx *ctx, const char *run_dir, dh_run_findings *found);
void dh_run_findings_fini(dh_run_findings *found);

/* ---- trained models -------------------------------------------------------------------------- */

/* A model for evaluation and sampling: from a run folder (newest checkpoint), a
 * checkpoint, or anything dh_weights_open reads. */
typedef struct dh_trained {
    dh_session *session;
    dh_tokenizer *tokenizer; /* NULL when none was found and none was given */
} dh_trained;

typedef struct dh_trained_spec {
    const char *path;
    const char *tokenizer; /* NULL: the one beside the weights */
    dh_dtype dtype;
    int64_t threads;          /* 0: all cores */
    int64_t micro_batch, seq; /* evaluation; 0: no evaluation program */
    bool decode;
} dh_trained_spec;

dh_status dh_trained_open(dh_ctx *ctx, const dh_trained_spec *spec, dh_trained *trained);
void dh_trained_close(dh_trained *trained);

#ifdef __cplusplus
}
#endif
#endif
