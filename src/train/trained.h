/* Trained models on disk: what trained.c, data.c and the command line share. */
#ifndef DH_TRAIN_TRAINED_H
#define DH_TRAIN_TRAINED_H

#include "dhelix/train.h"
#include "weights/checkpoint.h"
#include "weights/weights.h"

/* In the run folder: files of the job's tokenizer, or the characters of its text. */
#define DH_TOKENIZER_DIR "tokenizer"
#define DH_CHARS_FILE "tokenizer.chars.json"

/* ---- trained.c ---------------------------------------------------------------------------- */

/* Weights found under a path as dh_trained_open takes it. */
typedef struct dh_found {
    dh_weights *weights;
    dh_ckpt *ckpt; /* held until the end, so that a run does not remove it; NULL: none */
    dh_model model;
    dh_str path;      /* of the weights, or of adapters: then weights has both, */
    dh_str base;      /* and this is where the others are; else empty */
    dh_str tokenizer; /* for dh_tokenizer_load; empty: there is none */
} dh_found;

/* Adapters come with the weights that they belong to: base, or where that is NULL those that they
 * name. Of a checkpoint of adapters these must be what they were.
 * out       caller closes with dh_found_close */
dh_status dh_found_open(dh_ctx *ctx, const char *path, const char *base, dh_found *found);
void dh_found_close(dh_found *found);
/* The tokenizer asked for (spec->tokenizer), which must fit the model, or the one
 * found, which is left out with a warning if it does not; NULL when there is none. */
dh_status dh_found_tokenizer(dh_ctx *ctx, const dh_found *found, const dh_trained_spec *spec,
                             dh_tokenizer **tokenizer);
/* The template of conversations: that of the checkpoint's run, where it was trained on some by name
 * (data.chat_template); else the one that the tokenizer (as dh_tokenizer_load takes it; NULL: none)
 * comes with.
 * errors    DH_EMISSING there is none; DH_EUNSUPPORTED none that is known */
dh_status dh_found_chat(dh_ctx *ctx, const dh_found *found, const char *tokenizer,
                        const struct dh_chat **chat);
/* A session with the weights loaded. documents: it evaluates rows of documents. */
dh_status dh_found_session(dh_ctx *ctx, const dh_found *found, const dh_trained_spec *spec,
                           bool documents, dh_session **session);

/* ---- fit.c --------------------------------------------------------------------------------- */

/* Whether weights hold a model whole, its adapters, or both: every tensor with its shape and of a
 * type that is read, no part of a quantised weight, no factor that belongs to none of the linears.
 * From then on a tied head stands for an embedding that is not stored.
 * errors    DH_EMISSING, DH_EINVAL, DH_EUNSUPPORTED with the tensor's name */
typedef enum dh_fit_part { DH_FIT_ALL, DH_FIT_BASE, DH_FIT_ADAPTERS } dh_fit_part;
dh_status dh_weights_fit(dh_ctx *ctx, dh_weights *weights, const dh_model *model, dh_fit_part part);

/* ---- tokenizer_files.c ---------------------------------------------------------------------- */

/* Appends to spec what dh_tokenizer_load takes to load the tokenizer that lies beside
 * weights (a file or folder), or in the run they belong to (run_dir, may be NULL);
 * appends nothing when there is none. */
dh_status dh_tokenizer_beside(dh_ctx *ctx, const char *weights, const char *run_dir, dh_str *spec);
/* Copies the files behind spec into a folder, which is created; none for "bytes". */
dh_status dh_tokenizer_copy_files(dh_ctx *ctx, const char *spec, const char *to_dir,
                                  size_t *n_copied);
/* Whether a file of this name is one that the loaders read. */
bool dh_tokenizer_owns_file(const char *name);
/* The file of that name, where there is one; then *n_copied grows. A symbolic link is followed
 * within its folder and into the blobs of the same repository of a Hugging Face cache.
 * errors    DH_EPERM a link to elsewhere: what it points at may be nobody's to pass on */
dh_status dh_file_copy_into(dh_ctx *ctx, const char *from_dir, const char *name, const char *to_dir,
                            size_t *n_copied);
/* The same under another name. */
dh_status dh_file_copy_as(dh_ctx *ctx, const char *from_dir, const char *name, const char *to_dir,
                          const char *new_name, size_t *n_copied);

/* ---- tokenizer_export.c --------------------------------------------------------------------- */

/* Completes a model folder that the files of a tokenizer were copied into by what Transformers'
 * AutoTokenizer needs to give the same ids; *n_files grows by what was written. *reads: whether it
 * finds a tokenizer there then. */
dh_status dh_tokenizer_for_transformers(dh_ctx *ctx, const char *spec, const char *to_dir,
                                        size_t *n_files, bool *reads);

/* ---- model_files.c --------------------------------------------------------------------------- */

/* What lies beside weights (a file or folder) and is no tokenizer, into the model folder to_dir:
 * generation_config.json, chat templates; and the ids of special tokens into its config.json. */
dh_status dh_model_keep_files(dh_ctx *ctx, const char *weights, const char *to_dir,
                              size_t *n_files);
/* Which of a tokenizer's ids (spec: as dh_tokenizer_load takes it) begin and end a text, into
 * config.json and generation_config.json of a model folder, unless they say so themselves. null
 * where it has none: Transformers would take its own, which a vocabulary may not have. */
dh_status dh_model_add_ids(dh_ctx *ctx, const char *spec, int64_t vocab, const char *dir);
/* Whether a file of this name is one of those, or a tokenizer's: what a model folder that is
 * replaced loses. */
bool dh_model_owns_file(const char *name);

#endif
