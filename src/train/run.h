/* One training run: what the files of a run (trainer.c, snapshot.c, times.c, launch.c) share. */
#ifndef DH_TRAIN_RUN_H
#define DH_TRAIN_RUN_H

#include "costs/profile.h"
#include "data/dataset.h"
#include "dhelix/train.h"
#include "report/timeline.h"
#include "train/carry.h"
#include "train/fault.h"
#include "train/load.h"
#include "train/lock.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/rank.h"
#include "train/saving.h"
#include "train/spikes.h"
#include "train/switch.h"
#include "train/together.h"
#include "weights/checkpoint.h"

enum { DH_MEASURED_STEPS = 1 << 16 }; /* the speeds that are kept, of however many steps */

/* Work of all ranks together in a step. */
typedef struct dh_step_work {
    int64_t tokens; /* with a target */
    /* Of packed documents: how many, tokens without target behind them. */
    int64_t documents, padding;
    double flops; /* of the model */
} dh_step_work;

struct dh_run {
    const dh_job *job;         /* resolved */
    const dh_recipe *recipe;   /* borrowed from the process */
    const dh_profile *profile; /* that its costs rest on, likewise; NULL: estimates */
    const dh_recipe *groups;   /* likewise, of groups of lengths; NULL: there are none */
    size_t n_groups;
    dh_mesh mesh;
    dh_ranks ranks;
    dh_turns *turns;               /* the launch's, to build programs in */
    dh_together *together;         /* likewise, to verify them; NULL: they have been verified */
    int local_rank, n_local_ranks; /* among those that share its cores */
    bool stopping;                 /* some rank was asked to stop */
    bool validation_cut;           /* by that: whoever continues from this step validates first */
    const dh_train_options *options;
    dh_fault *fault;                   /* of tests: at an instruction of this rank; NULL */
    dh_tokenizer *tokenizer;           /* NULL with ready token files and no tokenizer */
    dh_dataset *train_data, *val_data; /* val NULL: no validation */
    uint64_t data_hash;                /* of train_data */
    dh_session *session;
    const char *base_path;                /* of a run with adapters: the weights they belong to, */
    char base_hash[DH_WEIGHTS_HASH_TEXT]; /* and what these are */
    dh_folder_lock lock;                  /* on rank 0 */
    dh_metrics metrics;
    dh_progress progress;
    int64_t step;     /* optimizer steps done */
    int64_t left_out; /* samples that the run went back behind and does not use again */
    dh_spikes spikes;
    int64_t n_micro; /* micro-batches a step on this rank */
    int n_threads;
    int64_t sent_bytes[DH_N_ENGINE]; /* that this rank's last step put on each link */
    double gemm_peak;                /* FLOP/s of all ranks; 0: not measured; on rank 0 */
    int64_t slowest_step_ns;         /* of this run; 0: none yet */
    double *step_tokens_per_s;       /* of this run's last steps, for the median */
    size_t n_measured;
    double *op_ns;                  /* by operator type, summed over the steps measured */
    dh_timeline times, total_times; /* last step; steps after the first. Rank 0 of several */
    const dh_program *measured_of;  /* the program whose own times by the profile are known */
    double *measured_ns;
    double flops_per_token;
    dh_step_work work;                              /* work of the current step */
    dh_switch_done switched;                        /* of its groups */
    int64_t all_documents, all_padding, all_tokens; /* over the steps of this run */
    double loss, grad_norm, val_loss;
    double aux_loss;                    /* of routers, where the model has any */
    dh_load_record *load;               /* of experts, likewise; NULL: there are none */
    double expert_load, rank_load;      /* in the last step: of the busiest over an even share */
    char checkpoint[DH_RUN_PATH_BYTES]; /* newest, complete or under way */
    dh_ckpt_steps proved; /* checkpoints known to be intact; on rank 0, of who writes one */
    dh_saver saver;
    /* of runs that go on without ranks they lose */
    bool is_set_up;      /* masters and moments are those of `step`, outside of a running step */
    bool in_step;        /* from its begin until it counts */
    dh_remains *remains; /* where this rank leaves its memory when others are lost; NULL: nowhere */
    dh_carried *carried; /* the state it begins with; NULL: that of a checkpoint, or new */
};

/* ---- data.c: tokenizer and datasets of a job -------------------------------------------- */
dh_status dh_run_open_tokenizer(dh_ctx *ctx, dh_run *run);
/* Of a job whose vocabulary is known: training data; and those for validation. */
dh_status dh_run_open_train(dh_ctx *ctx, dh_run *run);
dh_status dh_run_open_data(dh_ctx *ctx, dh_run *run);
dh_batch_source dh_run_source(dh_dataset *dataset);
/* The work of the next step.
 * errors    those of dh_dataset_lengths */
dh_status dh_run_step_work(dh_ctx *ctx, const dh_run *run, dh_step_work *work);
/* Into the run folder, so that a sample needs nothing else. */
dh_status dh_run_save_tokenizer(dh_ctx *ctx, const dh_run *run);

/* ---- initial.c: the weights that a run begins with ------------------------------------------- */
/* For a run with adapters: reads the weights that stay as they are, and their hash. Other runs have
 * none. Every rank calls.
 * errors    DH_EINVAL processes have other weights under the path: names ranks and setting;
 *           those of reading the weights */
dh_status dh_run_take_base(dh_ctx *ctx, dh_run *run);
/* New weights, or those that the job names. Every rank calls.
 * errors    those of dh_run_take_base */
dh_status dh_run_init_weights(dh_ctx *ctx, dh_run *run);

/* ---- grouped.c: steps of documents by length ----------------------------------------------- */
/* The whole of such a step, the optimizer too: its documents are put to their groups, each trains
 * over its mesh. Sets run->switched, the work's padding, and adds the times of all programs. */
dh_status dh_run_grouped_step(dh_ctx *ctx, dh_run *run, const dh_step *step);
/* Writes the time of switching into a line of metrics. */
void dh_run_report_switch(const dh_run *run, json_t *line);

/* ---- snapshot.c: checkpoints (writing them: saving.h) ---------------------------------------- */
/* Whether a checkpoint could be written now. Its space is taken and given back. On rank 0.
 * errors    DH_EIO, DH_EPERM; DH_ENOMEM */
dh_status dh_run_try_saving(dh_ctx *ctx, const dh_run *run);
/* Continues from the newest intact checkpoint of the run folder; *resumed says if
 * there was one. A checkpoint of another model or data order is refused. */
dh_status dh_run_resume(dh_ctx *ctx, dh_run *run, bool *resumed);

/* ---- spikes.c: steps outside the band of those before them -------------------------------- */
/* After a step, before it counts: whether loss and gradient norm stay in their band. Every rank
 * calls.
 * out       *went_back: the step left the band, and the run is where its last good checkpoint was
 * errors    DH_EDIVERGED the step left the band, and the run ends */
dh_status dh_run_judge_step(dh_ctx *ctx, dh_run *run, bool *went_back);

/* ---- patience.c: how long ranks wait for each other ------------------------------------------ */
/* Around a step, where the job leaves its timeout open. */
void dh_run_begin_step(const dh_run *run);
void dh_run_end_step(dh_run *run, int64_t step_ns);

/* ---- same_job.c: what must not change when a run is continued -------------------------------- */
/* Whether a setting, by the n bytes of its key, is one of those. */
bool dh_run_is_lasting(const char *name, size_t n);
/* Into the state of a checkpoint: settings by name, fingerprints. */
dh_status dh_run_describe(dh_ctx *ctx, const dh_run *run, dh_ckpt_state *state);
/* errors    DH_EINVAL: names the settings that were others */
dh_status dh_run_check_same(dh_ctx *ctx, const dh_run *run, const dh_ckpt *ckpt);

/* ---- times.c: what computation and communication took ---------------------------------------- */
/* After a step: reads its times; writes the trace of the step that job.trace_step names.
 * Every rank calls. */
dh_status dh_run_time_step(dh_ctx *ctx, dh_run *run);
/* The last step's milliseconds into a line of metrics, the run's into its summary; nothing
 * where there is only one rank. */
void dh_run_report_times(const dh_run *run, json_t *line);
void dh_run_summarize_times(const dh_run *run, json_t *summary);
/* The times of a step, and its hidden share, into a summary. */
void dh_times_summarize(const dh_timeline *times, json_t *summary);

/* ---- folder.c: the run folder ---------------------------------------------------------------- */
/* DIR/job.yaml, complete and with paths that hold wherever it is read. */
dh_status dh_run_write_job(dh_ctx *ctx, const dh_job *job, const char *dir);
/* DIR/profile.json, what operators were ordered or simulated by; nothing where that is NULL. */
dh_status dh_run_write_profile(dh_ctx *ctx, const dh_profile *profile, const char *dir);
/* Make and lock it, the one before set aside where the run is to begin anew. Every rank calls. */
dh_status dh_run_claim_folder(dh_ctx *ctx, dh_run *run);
/* After resuming: job.yaml, profile, tokenizer, metrics; refuses where no checkpoint could be
 * written. */
dh_status dh_run_open_outputs(dh_ctx *ctx, dh_run *run);
/* metrics.jsonl and, where the job wants them, TensorBoard's events, from the run's step on. */
dh_status dh_run_open_metrics(dh_ctx *ctx, dh_run *run);
/* Before a checkpoint: a folder that is gone is made again. On rank 0. */
dh_status dh_run_keep_folder(dh_ctx *ctx, dh_run *run);
void dh_run_release_folder(dh_run *run);

/* ---- trainer.c: one rank's part of a run, from set-up to summary ---------------------------- */
/* Of rank 0, with no communicator. */
dh_session_spec dh_run_session(const dh_run *run);
/* Of a program that has run in a step that counts. */
void dh_run_add_operator_times(dh_run *run, const dh_program *program, dh_exec *exec);
dh_status dh_run_train(dh_ctx *ctx, dh_run *run, dh_train_result *result);

#endif
