/* A model in memory and the programs that run on it: one rank's slab with
 * parameters, and training, evaluation and decoding programs that share it. */
#ifndef DH_TRAIN_SESSION_H
#define DH_TRAIN_SESSION_H

#include "program/program_spec.h"
#include "run/exec/exec.h"
#include "train/progress.h"
#include "train/turns.h"
#include "weights/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_session dh_session;

typedef struct dh_session_spec {
    dh_recipe recipe;        /* its backend is left to the session */
    const dh_device *device; /* that executes */
    dh_comm *comm;           /* of this rank; NULL: one rank */
    int64_t rank;
    bool train, eval, decode; /* programs wanted */
    bool probes;              /* behind the training step (program.h) */
    int64_t cache_len;        /* decode: longest sequence */
    int64_t prefill_chunk;    /* decode: tokens of the prompt read at once; 0: one by one */
    /* Training over several meshes (switch.h): one recipe a group, of one pass each; the session's
     * own is where weights and optimizer live, and what evaluates. Borrowed. */
    const dh_recipe *groups;
    size_t n_groups;
    bool overlaps; /* parameters and gradients move while groups are computed */
    /* Index of the rank among the ranks that share its cores, and their number, for threads of the
     * session. n_local_ranks 0: the threads run where they begin. */
    int local_rank, n_local_ranks;
    dh_turns *turns; /* of ranks that build programs at once; NULL: this one does not wait */
    struct dh_places *places; /* dh_program_spec.places */
    /* Called once the programs are built and verified, before they get memory; NULL: nothing. The
     * session then ends where it fails. */
    dh_status (*built)(dh_ctx *ctx, const dh_session *session, void *user);
    void *built_user;
} dh_session_spec;

struct dh_session {
    dh_session_spec spec;
    /* NULL where not wanted. gather: of parameters that a step makes whole at its beginning, for
     * evaluation between steps */
    dh_program *train, *eval, *gather, *decode, *prefill;
    struct dh_switch *switched; /* with groups: all of a step but the optimizer, which train is */
    dh_exec *train_exec, *eval_exec, *gather_exec, *decode_exec, *prefill_exec;
    dh_slab *slab;
    uint64_t slab_bytes; /* largest of the programs */
    float *logits;       /* decode: those of the last run, on the host */
};

/* Builds, verifies and prepares every program wanted, in one slab of the largest
 * one's size; parameters are zero. Caller frees with dh_session_destroy. */
dh_status dh_session_create(dh_ctx *ctx, const dh_session_spec *spec, dh_session **session);
void dh_session_destroy(dh_session *session);
/* Nothing is run in it any more: its memory can be read, whatever becomes of the communicator. */
void dh_session_end_programs(dh_session *session);
/* The spec of the program of one mode. Borrows from the session's. */
dh_program_spec dh_session_program_spec(const dh_session_spec *spec, dh_mode mode);
/* The program of one mode, built and verified as a session would, without memory to
 * run in: for checks. The first keep_bytes of the slab, where they are more than the
 * program's own, belong to another one (persistent_bytes of the training program, for
 * what runs between its steps). Caller frees with dh_program_destroy. */
dh_status dh_session_program(dh_ctx *ctx, const dh_session_spec *spec, dh_mode mode,
                             uint64_t keep_bytes, dh_program **program);
/* All ranks' training programs, and evaluation's where wanted, verified together
 * (dh_mesh_verify). They are built for it. out: footprint of the training programs; may be NULL. */
dh_status dh_session_verify_mesh(dh_ctx *ctx, const dh_session_spec *spec,
                                 dh_mesh_footprint *footprint);
/* Of sessions that train: the programs that they have and that each has verified, all ranks
 * together. They need no memory to run in yet.
 * in        sessions [n], that of rank i at i; all ranks of one run
 * out       footprint: its slabs are those of the sessions, for all their programs
 * errors    those of dh_programs_replay */
dh_status dh_sessions_verify(dh_ctx *ctx, const dh_session *const *sessions, size_t n,
                             dh_mesh_footprint *footprint);
/* Any of its programs: for what they share, the persistent layout. */
const dh_program *dh_session_layout(const dh_session *session);

/* ---- parameters --------------------------------------------------------------------------- */

/* Warns of each tensor that was not read. */
void dh_weights_tell_unread(const dh_weights *weights, const dh_model *model);
/* Normal or constant initialisation. A value depends on seed, Hugging Face tensor
 * name and element only, so any mesh starts from the same weights. */
dh_status dh_session_init_params(dh_ctx *ctx, dh_session *session, uint64_t seed);
/* From a checkpoint of HF names; shapes must fit, values be finite. Tensors of the file that the
 * model does not have are reported as a warning. */
dh_status dh_session_load_params(dh_ctx *ctx, dh_session *session, dh_weights *weights);

/* Of a model with adapters the others alone, which are not trained; tensors as above. */
dh_status dh_session_load_base(dh_ctx *ctx, dh_session *session, dh_weights *weights);
/* The adapters alone, as dh_session_init_params does. */
dh_status dh_session_init_adapters(dh_ctx *ctx, dh_session *session, uint64_t seed);
dh_status dh_session_load_adapters(dh_ctx *ctx, dh_session *session, const dh_weights *weights);

/* Fill the elements this rank has of a kind (MASTER, ADAM_M, ADAM_V) of what is trained from
 * tensors PREFIX + HF name; masters refresh the compute copies. Shapes must fit. */
dh_status dh_session_load_kind(dh_ctx *ctx, dh_session *session, const dh_weights *weights,
                               const char *prefix, dh_buffer_kind kind);

/* ---- running --------------------------------------------------------------------------------- */

/* After a training step, before parameters are read as a whole, by evaluation for one: all ranks
 * together. Nothing to do where a step leaves them so. */
dh_status dh_session_gather(dh_ctx *ctx, dh_session *session);
/* Sum of losses and rows of one micro-batch from sample `first` of the source. */
dh_status dh_session_eval_batch(dh_ctx *ctx, dh_session *session, const dh_batch_source *source,
                                int64_t first, double *sum, double *rows);
/* Mean loss over n_batches micro-batches starting at sample `first` of the source, which progress
 * counts. */
dh_status dh_session_eval(dh_ctx *ctx, dh_session *session, const dh_batch_source *source,
                          int64_t first, int64_t n_batches, dh_progress *progress, double *loss);

/* Append n tokens at position pos; logits (float32 [vocab], borrowed until the next
 * call) are those after the last. */
dh_status dh_session_decode(dh_ctx *ctx, dh_session *session, const int32_t *tokens, int64_t n,
                            int64_t pos, const float **logits);

/* Sum of losses and rows of the last training or evaluation run; gradient norm. */
dh_status dh_session_loss(dh_ctx *ctx, const dh_session *session, double *sum, double *rows);
dh_status dh_session_grad_norm(dh_ctx *ctx, const dh_session *session, double *norm);
/* Mean load-balancing loss of the last training run's micro-batches, on ranks that hold
 * the head; 0 for a model without experts. */
dh_status dh_session_aux_loss(dh_ctx *ctx, const dh_session *session, double *loss);

#ifdef __cplusplus
}
#endif
#endif
