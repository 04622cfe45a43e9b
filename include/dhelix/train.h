/* Training a job from its first step to its last, or on from a checkpoint. */
#ifndef DHELIX_TRAIN_H
#define DHELIX_TRAIN_H

#include <signal.h>

#include "dhelix/export.h"
#include "dhelix/job.h"
#include "dhelix/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_train_options {
    bool quiet; /* no progress */
    bool fresh; /* set an existing run folder aside instead of resuming it */
    /* When it becomes non-zero, the run finishes the step, writes a checkpoint and returns
     * DH_EINTERRUPTED. A validation is cut short; the continued run repeats it. Before the first
     * step nothing is saved. All processes of a run have it, or none. NULL: the flag of the
     * context, where it has one. */
    const volatile sig_atomic_t *stop;
    /* May be NULL. Called by each rank here, when it is set up and its steps begin: until then a
     * process may end at any time, and nothing of the run is lost. Threads may call at once. */
    void (*on_start)(void *self);
    /* May be NULL. After each step gets its line of metrics.jsonl, a JSON object, without the end
     * of the line; the text is gone with the call. Called where rank 0 is, by the thread that
     * trains it: not the caller's where threads are ranks. While it runs that rank does nothing
     * else, and the others soon wait for it. */
    void (*on_step)(void *self, const char *line, size_t n_bytes);
    void *self;
} dh_train_options;

enum { DH_RUN_PATH_BYTES = 4096 }; /* of any path below a run folder, as the system takes them */

/* Under MPI only rank 0's process has a result; the others' have `primary` false. */
typedef struct dh_train_result {
    bool primary;
    int64_t steps;        /* optimizer steps done in all */
    int64_t resumed_at;   /* step the run continued from, 0: from the start */
    bool from_memory;     /* by what ranks had in memory that were left when others were lost */
    double loss;          /* loss of the last step */
    double val_loss;      /* last validation; NaN if never */
    double tokens_per_s;  /* median over this run's steps, warm-up left out */
    double hidden_share;  /* of rank 0's transfers, behind computation; NaN: there were none */
    double exposed_share; /* share of its steps' time in which it only communicated */
    uint64_t slab_planned, slab_peak;
    char checkpoint[DH_RUN_PATH_BYTES]; /* last one written, "" if none */
} dh_train_result;

/* Trains. The run folder job->out_dir gets job.yaml, metrics.jsonl (one object a step),
 * summary.json, tokenizer files and checkpoints/. A model with experts also gets experts.json. If
 * there is a checkpoint, training continues from the newest intact one, with the bits of a run
 * without the break.
 *
 * errors    DH_EDIVERGED (step and operator named), DH_EINTERRUPTED, and those of job, data and
 *           disk; the last checkpoint is intact in every case */
DH_API dh_status dh_train(dh_ctx *ctx, const dh_job *job, const dh_train_options *options,
                          dh_train_result *result);

/* Ranks of the launcher (mpirun, srun) this process was started by; 0: none. */
DH_API int64_t dh_launched_ranks(void);

/* The job's tokenizer. Where the model's vocabulary is given, it must hold the tokenizer's ids.
 * "chars" reads the training texts.
 * out       caller frees with dh_tokenizer_destroy
 * errors    those of dh_tokenizer_load; DH_EINVAL the vocabulary is too small */
DH_API dh_status dh_train_tokenizer(dh_ctx *ctx, const dh_job *job, dh_tokenizer **tokenizer);

/* ---- trained models -------------------------------------------------------------------------- */

typedef struct dh_session dh_session; /* a model in memory and the programs that run on it */

/* A model for evaluation and sampling: from a run folder (newest checkpoint), a checkpoint, or
 * weights of Hugging Face (a folder, model.safetensors, its index) or llm.c. */
typedef struct dh_trained {
    dh_session *session;
    dh_tokenizer *tokenizer; /* NULL when none was found and none was given */
    /* The tokenizer's template of conversations; NULL: none that is known. */
    const struct dh_chat *chat;
    bool of_run; /* from a run, none of whose documents began with BOS */
} dh_trained;

typedef struct dh_trained_spec {
    const char *path;
    const char *base;      /* of adapters: the weights they belong to; NULL: those they name */
    const char *tokenizer; /* NULL: the one beside the weights */
    dh_dtype dtype;
    int64_t threads;          /* 0: all cores */
    int64_t micro_batch, seq; /* evaluation; 0: no evaluation program */
    bool decode;
} dh_trained_spec;

DH_API dh_status dh_trained_open(dh_ctx *ctx, const dh_trained_spec *spec, dh_trained *trained);
DH_API void dh_trained_close(dh_trained *trained);
/* Token ids that the model knows. */
DH_API int64_t dh_trained_vocab(const dh_trained *trained);

#ifdef __cplusplus
}
#endif
#endif
