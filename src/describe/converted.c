/* Weights of any kind to a Hugging Face folder. */
#include "describe/converted.h"

#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "train/inputs.h"
#include "train/session.h"
#include "train/tensors.h"
#include "train/trained.h"

/* ---- which tensors ------------------------------------------------------------------------- */

typedef struct written {
    dh_tensor_shapes shapes;
    size_t n_stored; /* the first of them: zeros come after them */
} written;

/* A GPT-2 without biases is one of nanoGPT's; GPT2Model has them always, and takes zeros for the
 * same model. */
static bool wants_biases(const dh_model *model)
{
    return model->family == DH_FAMILY_GPT2 && !model->bias;
}

static bool has(const dh_tensor_shapes *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list->at[i].name, name) == 0) return true;
    return false;
}

/* Adds the tensors that the model has only with biases, at the end. */
static dh_status add_biases(dh_ctx *ctx, const dh_model *model, dh_tensor_shapes *list)
{
    dh_model biased = *model;
    dh_tensor_shapes all = {0};
    biased.bias = true;
    dh_status st = dh_model_tensors(ctx, &biased, "", &all);
    const size_t n = list->n;
    for (size_t i = 0; st == DH_OK && i < all.n; i++)
        if (!has(list, n, all.at[i].name) && !dh_vec_push(list, all.at[i])) st = dh_no_memory(ctx);
    dh_vec_fini(&all);
    return st;
}

/* Lists the tensors of the model; other contents of the files are left out. */
static dh_status collect(dh_ctx *ctx, const dh_model *model, written *w)
{
    dh_model whole = *model;
    whole.lora.rank = 0; /* merged into the others */
    DH_TRY(dh_model_tensors(ctx, &whole, "", &w->shapes));
    w->n_stored = w->shapes.n;
    return wants_biases(model) ? add_biases(ctx, &whole, &w->shapes) : DH_OK;
}

/* GPT2LMHeadModel has them one level down; where a head is stored too, it demands that. */
static const char *outer_name(dh_arena *names, const dh_model *model, const char *name)
{
    if (model->family != DH_FAMILY_GPT2 || strcmp(name, "lm_head.weight") == 0) return name;
    return dh_arena_printf(names, "transformer.%s", name);
}

static dh_status declare(dh_ctx *ctx, dh_arena *names, const dh_model *model, const written *w,
                         dh_export_tensor **list)
{
    *list = DH_NEW_N(names, dh_export_tensor, w->shapes.n);
    if (!*list) return dh_no_memory(ctx);
    for (size_t i = 0; i < w->shapes.n; i++) {
        const dh_tensor_shape *shape = &w->shapes.at[i];
        dh_export_tensor *t = &(*list)[i];
        *t = (dh_export_tensor){.name = outer_name(names, model, shape->name), .ndim = shape->ndim};
        memcpy(t->shape, shape->shape, sizeof t->shape);
        if (!t->name) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static int64_t n_params(const written *w)
{
    int64_t sum = 0;
    for (size_t i = 0; i < w->shapes.n; i++) {
        int64_t n = 1;
        for (int k = 0; k < w->shapes.at[i].ndim; k++) n *= w->shapes.at[i].shape[k];
        sum += n;
    }
    return sum;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Tokenizer files that were written. */
typedef struct kept_tokenizer {
    size_t n_files;
    bool for_transformers;
} kept_tokenizer;

typedef struct source {
    const dh_found *found;
    const dh_export_tensor *list;
    size_t n_stored;
    kept_tokenizer tokenizer;
} source;

static dh_status fill(void *user, dh_ctx *ctx, size_t index, int64_t row0, int64_t n_rows,
                      float *dst)
{
    const source *s = user;
    const dh_export_tensor *t = &s->list[index];
    int64_t n_cols = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    DH_TRY(dh_heed_stop(ctx, "weights were written"));
    if (index >= s->n_stored) {
        memset(dst, 0, (size_t)(n_rows * n_cols) * sizeof *dst);
        return DH_OK;
    }
    const dh_weights *weights = s->found->weights;
    DH_TRY(dh_weights_read(ctx, weights, t->name, row0, n_rows, 0, n_cols, false, dst, n_cols));
    if (s->found->model.lora.rank == 0 || t->ndim != 2) return DH_OK;
    return dh_adapter_merge(ctx, weights, &s->found->model, t->name, row0, n_rows, n_cols, dst);
}

/* Copies the files that lie next to the weights. */
static dh_status keep_files(void *user, dh_ctx *ctx, const char *dir)
{
    source *s = user;
    const dh_found *found = s->found;
    const char *spec = found->tokenizer.text;
    kept_tokenizer *kept = &s->tokenizer;
    size_t n_kept = 0;
    DH_TRY(dh_model_keep_files(ctx, found->base.len ? found->base.text : found->path.text, dir,
                               &n_kept));
    if (found->tokenizer.len == 0) return DH_OK;
    DH_TRY(dh_tokenizer_copy_files(ctx, spec, dir, &kept->n_files));
    DH_TRY(dh_tokenizer_for_transformers(ctx, spec, dir, &kept->n_files, &kept->for_transformers));
    return dh_model_add_ids(ctx, spec, found->model.vocab, dir);
}

static dh_status export(dh_ctx *ctx, const char *out, const dh_describe_convert_options *a,
                        const dh_found *found, const written *w, kept_tokenizer *tokenizer)
{
    const dh_export_options how = {.dtype = a->dtype,
                                   .replace = a->replace,
                                   .more = keep_files,
                                   .replaces = dh_model_owns_file};
    dh_export_tensor *list;
    dh_arena *names = dh_arena_create();
    if (!names) return dh_no_memory(ctx);
    dh_status st = declare(ctx, names, &found->model, w, &list);
    if (st == DH_OK) {
        source s = {.found = found, .list = list, .n_stored = w->n_stored};
        st = dh_weights_export(ctx, out, &found->model, list, w->shapes.n, fill, &s, &how);
        *tokenizer = s.tokenizer;
    }
    dh_arena_destroy(names);
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static dh_status check_output(dh_ctx *ctx, const char *out, const dh_found *found)
{
    DH_TRY(dh_output_check(ctx, out, found->path.text, true));
    DH_TRY(dh_output_check(ctx, out, found->tokenizer.text, true));
    return dh_output_check(ctx, out, found->base.text, true);
}

static dh_status convert(dh_ctx *ctx, const char *out, const dh_describe_convert_options *options,
                         const dh_found *found, dh_converted *converted)
{
    written w = {0};
    kept_tokenizer tokenizer = {0};
    dh_status st = collect(ctx, &found->model, &w);
    if (st == DH_OK) st = export(ctx, out, options, found, &w, &tokenizer);
    if (st == DH_OK) {
        dh_weights_tell_unread(found->weights, &found->model);
        *converted = (dh_converted){.n_tensors = w.shapes.n,
                                    .n_parameters = n_params(&w),
                                    .n_tokenizer_files = tokenizer.n_files,
                                    .for_transformers = tokenizer.for_transformers};
    }
    dh_vec_fini(&w.shapes);
    return st;
}

dh_status dh_converted_make(dh_ctx *ctx, const char *path, const char *out,
                            const dh_describe_convert_options *options, dh_converted *converted)
{
    if (options->dtype != DH_F32 && options->dtype != DH_BF16)
        return dh_fail(ctx, DH_EINVAL, "dtype: unknown; f32 or bf16 would be right");
    dh_found found;
    DH_TRY(dh_found_open(ctx, path, options->base, &found));
    dh_status st = check_output(ctx, out, &found);
    if (st == DH_OK) st = convert(ctx, out, options, &found, converted);
    dh_found_close(&found);
    return st;
}

json_t *dh_converted_json(const char *out, const dh_converted *converted)
{
    return json_pack("{ss sI sI sI sb}", "out", out, "tensors", (json_int_t)converted->n_tensors,
                     "parameters", (json_int_t)converted->n_parameters, "tokenizer_files",
                     (json_int_t)converted->n_tokenizer_files, "tokenizer_for_transformers",
                     (int)converted->for_transformers);
}
