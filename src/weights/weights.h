/* Model weights under their Hugging Face names, whatever file they come from.
 *
 *   folder   The file model.safetensors, or model.safetensors.index.json with its shards,
 *            or one lone *.safetensors or *.bin file.
 *   *.safetensors
 *   *.bin    A legacy checkpoint of llama2.c (run.c): 7 int32, then float32 tensors.
 *            Or a GPT-2 checkpoint of llm.c (train_gpt2.c): magic 20240326, version 3
 *            = float32 or 5 = bfloat16, padded vocabulary.
 *
 * The .bin files appear as Hugging Face would store them. Query and key rows of
 * llama2.c are in half-split rotary order. Linears of llm.c are Conv1D [in, out], and its
 * vocabulary has no padding. A name is found with and without the prefixes "transformer." and
 * "model.". */
#ifndef DH_WEIGHTS_WEIGHTS_H
#define DH_WEIGHTS_WEIGHTS_H

#include "base/base.h"
#include "dhelix/model.h"
#include "weights/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_weights dh_weights;

typedef struct dh_weight_info {
    const char *name;  /* as in the file */
    dh_st_dtype dtype; /* as stored */
    int ndim;
    int64_t shape[DH_ST_MAX_DIMS]; /* as Hugging Face shows it */
} dh_weight_info;

/* ---- reading --------------------------------------------------------------------- */

/* Files are mapped and validated; data is paged in when read. One dh_weights may
 * be read by several threads at once (each with its own ctx).
 * out       caller closes with dh_weights_close
 * errors    DH_EIO; DH_EMISSING no weights in the folder; DH_EFORMAT; DH_EUNSUPPORTED */
dh_status dh_weights_open(dh_ctx *ctx, const char *path, dh_weights **out);
/* A safetensors file in memory; borrows data until the close. name: for messages. */
dh_status dh_weights_parse(dh_ctx *ctx, const void *data, size_t n_bytes, const char *name,
                           dh_weights **out);
void dh_weights_close(dh_weights *w);

/* Tensors sorted by name. info's strings live as long as w. */
size_t dh_weights_n(const dh_weights *w);
void dh_weights_at(const dh_weights *w, size_t i, dh_weight_info *info);
/* The tensor must exist with this shape and a type that can be read.
 * errors    DH_EMISSING with the nearest name; DH_EINVAL with both shapes; DH_EUNSUPPORTED */
dh_status dh_weights_expect(dh_ctx *ctx, const dh_weights *w, const char *hf_name, int ndim,
                            const int64_t *shape);

/* Read rows [row0, row0 + n_rows) x columns [col0, col0 + n_cols) as float32: exact from F16, BF16
 * and F32, rounded from F64. A vector is one row. All dimensions before the last count as rows.
 * dst       element (r, c) of the region at dst[r * dst_ld + c]; transpose: at
 *           dst[c * dst_ld + r]
 * errors    DH_EMISSING; DH_EINVAL region outside, with the shape; DH_EUNSUPPORTED integers */
dh_status dh_weights_read(dh_ctx *ctx, const dh_weights *w, const char *hf_name, int64_t row0,
                          int64_t n_rows, int64_t col0, int64_t n_cols, bool transpose, float *dst,
                          int64_t dst_ld);

/* That all n values, which are of this tensor, are finite.
 * errors    DH_EINVAL with the name */
dh_status dh_weights_check_finite(dh_ctx *ctx, const char *name, const float *values, int64_t n);

/* For a model whose head is its embedding: where the head's tensor alone is stored, it is found
 * under the embedding's name too. */
void dh_weights_tie(dh_weights *w);

/* Name of the next tensor never read, NULL at the end; start with *at = 0. Leaves
 * out buffers that older transformers versions saved (attention masks, rotary
 * frequencies) and a head that is bit for bit the embedding. */
const char *dh_weights_next_unread(const dh_weights *w, size_t *at);

/* The architecture: what a .bin file's header says, else config.json in the folder
 * or beside the file.
 * errors    DH_EMISSING no config.json; those of dh_model_from_config_file */
dh_status dh_weights_model(dh_ctx *ctx, const dh_weights *w, dh_model *model);

/* ---- adapters (adapter.c) ----------------------------------------------------------- */

#define DH_ADAPTER_CONFIG "adapter_config.json" /* PEFT's names */
#define DH_ADAPTER_FILE "adapter_model.safetensors"

/* Adds the tensors of another path: a folder's DH_ADAPTER_FILE, or a file. Records of tensors that
 * were read stay.
 * errors    those of dh_weights_open; DH_EINVAL a name that is there already */
dh_status dh_weights_join(dh_ctx *ctx, dh_weights *w, const char *path);
/* XXH3-128 of all names, types, shapes and bytes but those of adapters, as 32 hexadecimal digits:
 * of equal weights the same, in however many files. cost: reads all of them */
enum { DH_WEIGHTS_HASH_TEXT = 33 };
dh_status dh_weights_hash(dh_ctx *ctx, const dh_weights *w, char text[DH_WEIGHTS_HASH_TEXT]);
/* The same of adapters' tensors alone. */
dh_status dh_adapter_hash(dh_ctx *ctx, const dh_weights *w, char text[DH_WEIGHTS_HASH_TEXT]);

/* Reads a folder's adapter_config.json into model->lora, and appends the path of its weights to
 * base (nothing where none are named). Kinds of adapters that we do not compute are refused by
 * their key.
 * errors    DH_EFORMAT, DH_EUNSUPPORTED, DH_EIO */
dh_status dh_adapter_read_config(dh_ctx *ctx, const char *folder, dh_lora *lora, dh_str *base);
/* Opens an adapter alone: a folder, or the newest checkpoint of a run. It must fit the model's
 * lora.
 * out       caller closes with dh_weights_close
 * errors    those of dh_weights_open; DH_EINVAL another rank or other linears */
dh_status dh_adapter_open(dh_ctx *ctx, const char *path, const dh_model *model, dh_weights **out);
/* Its text, which PEFT reads; caller frees. base: as it is to stand there */
dh_status dh_adapter_print_config(dh_ctx *ctx, const dh_model *model, const char *base,
                                  char **text);
/* Merges the adapter into a tensor's rows, if it has one for it. Adds scale B A to rows [row0, row0
 * + n_rows) of tensor `name` in dst [n_rows, columns].
 * in        model: the weights' model, with its lora */
dh_status dh_adapter_merge(dh_ctx *ctx, const dh_weights *w, const dh_model *model,
                           const char *name, int64_t row0, int64_t n_rows, int64_t n_cols,
                           float *dst);
/* Whether a tensor is one of an adapter. */
bool dh_adapter_has(const char *name);

/* ---- writing a Hugging Face folder ------------------------------------------------- */

#define DH_EXPORT_SHARD_BYTES ((int64_t)5000000000) /* transformers' former default */

typedef struct dh_export_tensor {
    const char *name; /* HF name */
    int ndim;
    int64_t shape[DH_ST_MAX_DIMS];
} dh_export_tensor;

/* Fill dst with rows [row0, row0 + n_rows) of tensor `index`, contiguous float32. */
typedef dh_status (*dh_export_fill)(void *user, dh_ctx *ctx, size_t index, int64_t row0,
                                    int64_t n_rows, float *dst);

/* Write more files into the folder before it appears; the user of fill. */
typedef dh_status (*dh_export_more)(void *user, dh_ctx *ctx, const char *dir);

/* Whether a file of this name belongs to the model that is replaced, in addition to config.json,
 * weights and their index. */
typedef bool (*dh_export_replaces)(const char *name);

typedef struct dh_export_options {
    dh_dtype dtype;      /* DH_F32 or DH_BF16 */
    int64_t shard_bytes; /* split above this size; 0: DH_EXPORT_SHARD_BYTES */
    bool replace;        /* a model folder (one with config.json) is replaced; what else it holds
                          * stays in it */
    dh_export_more more; /* may be NULL */
    dh_export_replaces replaces; /* may be NULL */
} dh_export_options;

/* Write folder `dir` with config.json and model.safetensors, or shards
 * model-00001-of-0000N.safetensors and model.safetensors.index.json. It is written next to `dir`
 * and renamed, so the folder appears complete or not at all.
 * in        options: NULL: float32, default shards, refuse an existing folder
 * errors    DH_EINVAL the folder exists, or a value is not finite in the written type; DH_EIO, disk
 *           full included; those of fill and more
 * cost      holds at most max(16 MiB, one row) of data */
dh_status dh_weights_export(dh_ctx *ctx, const char *dir, const dh_model *model,
                            const dh_export_tensor *tensors, size_t n_tensors, dh_export_fill fill,
                            void *user, const dh_export_options *options);

#ifdef __cplusplus
}
#endif
#endif
