/* Trained models on disk, for trained.c, data.c and the command line. */
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
    dh_str path;      /* path of the weights, or of adapters (weights then has both) */
    dh_str base;      /* with adapters: path of the weights that they belong to; else empty */
    dh_str tokenizer; /* for dh_tokenizer_load; empty: none */
} dh_found;

/* Opens weights. Adapters are opened with their base weights: `base`, or the path that they name if
 * base is NULL. For a checkpoint of adapters these weights must be unchanged.
 * out       caller closes with dh_found_close */
dh_status dh_found_open(dh_ctx *ctx, const char *path, const char *base, dh_found *found);
void dh_found_close(dh_found *found);
/* The tokenizer of spec->tokenizer, which must fit the model, or else the one found. The latter
 * is left out with a warning if it does not fit. NULL when there is none. */
dh_status dh_found_tokenizer(dh_ctx *ctx, const dh_found *found, const dh_trained_spec *spec,
                             dh_tokenizer **tokenizer);
/* The template of conversations. It is the one that the checkpoint's job named
 * (data.chat_template), or else that of the tokenizer's folder.
 * in        tokenizer: as dh_tokenizer_load takes it; NULL: none
 * errors    DH_EMISSING there is none; DH_EUNSUPPORTED it is none of the known ones */
dh_status dh_found_chat(dh_ctx *ctx, const dh_found *found, const char *tokenizer,
                        const struct dh_chat **chat);
/* A session with the weights loaded.
 * in        documents: it evaluates rows of documents */
dh_status dh_found_session(dh_ctx *ctx, const dh_found *found, const dh_trained_spec *spec,
                           bool documents, dh_session **session);

/* ---- fit.c --------------------------------------------------------------------------------- */

/* Whether weights hold a complete model, its adapters, or both. That is so if
 *   - every tensor is there, with its shape and a type that is read;
 *   - no tensor is part of a quantised weight;
 *   - every factor belongs to one of the linears.
 *
 * Afterwards a tied head stands for an embedding that is not stored.
 * errors    DH_EMISSING, DH_EINVAL, DH_EUNSUPPORTED with the tensor's name */
typedef enum dh_fit_part { DH_FIT_ALL, DH_FIT_BASE, DH_FIT_ADAPTERS } dh_fit_part;
dh_status dh_weights_fit(dh_ctx *ctx, dh_weights *weights, const dh_model *model, dh_fit_part part);

/* ---- tokenizer_files.c ---------------------------------------------------------------------- */

/* Appends to spec the argument of dh_tokenizer_load for the tokenizer next to weights (a file or
 * folder), or in their run (run_dir, may be NULL). Appends nothing when there is none. */
dh_status dh_tokenizer_beside(dh_ctx *ctx, const char *weights, const char *run_dir, dh_str *spec);
/* Copies the files of spec into a folder, which is created; none for "bytes". */
dh_status dh_tokenizer_copy_files(dh_ctx *ctx, const char *spec, const char *to_dir,
                                  size_t *n_copied);
/* Whether the loaders read a file of this name. */
bool dh_tokenizer_owns_file(const char *name);
/* Copies the file of that name, where there is one, and counts it in *n_copied. A symbolic link is
 * followed within its folder, and into the blobs of the same repository of a Hugging Face cache.
 *
 * errors    DH_EPERM a link to elsewhere, whose target may be private */
dh_status dh_file_copy_into(dh_ctx *ctx, const char *from_dir, const char *name, const char *to_dir,
                            size_t *n_copied);
/* The same under another name. */
dh_status dh_file_copy_as(dh_ctx *ctx, const char *from_dir, const char *name, const char *to_dir,
                          const char *new_name, size_t *n_copied);

/* ---- tokenizer_export.c --------------------------------------------------------------------- */

/* Completes a model folder with copied tokenizer files, so that Transformers' AutoTokenizer gives
 * the same ids.
 * out       *n_files grows by the number of written files; *reads: AutoTokenizer finds one */
dh_status dh_tokenizer_for_transformers(dh_ctx *ctx, const char *spec, const char *to_dir,
                                        size_t *n_files, bool *reads);

/* ---- model_files.c --------------------------------------------------------------------------- */

/* Copies other files next to weights (a file or folder) into the model folder to_dir:
 * generation_config.json and chat templates. The ids of special tokens go into its config.json. */
dh_status dh_model_keep_files(dh_ctx *ctx, const char *weights, const char *to_dir,
                              size_t *n_files);
/* Writes the ids that begin and end a text into config.json and generation_config.json of a model
 * folder, unless these have them. Where the tokenizer has no such id, the value is null. Otherwise
 * Transformers would use its own default, which may be outside the vocabulary.
 *
 * in        spec: the tokenizer, as dh_tokenizer_load takes it */
dh_status dh_model_add_ids(dh_ctx *ctx, const char *spec, int64_t vocab, const char *dir);
/* Whether a file of this name is one of those, or a tokenizer's. A model folder that is replaced
 * loses these files. */
bool dh_model_owns_file(const char *name);

#endif
