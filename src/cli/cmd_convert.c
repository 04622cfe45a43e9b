/* dhelix convert: weights of any kind to a Hugging Face folder. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "train/session.h"
#include "train/tensors.h"
#include "train/trained.h"

typedef struct convert_args {
    const char *base;
    int dtype;
    bool replace;
} convert_args;

static const dh_cli_option options[] = {
    {.name = "dtype",
     .kind = DH_CLI_ENUM,
     .offset = offsetof(convert_args, dtype),
     .names = dh_cli_dtype_names,
     .doc = "type of the weights written (default: f32)"},
    {.name = "base",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(convert_args, base),
     .value = "PATH",
     .doc = "where IN has adapters: the weights they belong to (default: those they name)"},
    {.name = "replace",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(convert_args, replace),
     .doc = "replace an existing model folder OUT; its other files stay"},
};

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

static dh_status export(dh_ctx *ctx, const dh_cli *cli, const convert_args *a,
                        const dh_found *found, const written *w, kept_tokenizer *tokenizer)
{
    const dh_export_options how = {.dtype = (dh_dtype)a->dtype,
                                   .replace = a->replace,
                                   .more = keep_files,
                                   .replaces = dh_model_owns_file};
    dh_export_tensor *list;
    dh_arena *names = dh_arena_create();
    if (!names) return dh_no_memory(ctx);
    dh_status st = declare(ctx, names, &found->model, w, &list);
    if (st == DH_OK) {
        source s = {.found = found, .list = list, .n_stored = w->n_stored};
        st = dh_weights_export(ctx, cli->args.at[1], &found->model, list, w->shapes.n, fill, &s,
                               &how);
        *tokenizer = s.tokenizer;
    }
    dh_arena_destroy(names);
    return st;
}

static dh_status print(dh_ctx *ctx, const dh_cli *cli, const written *w, kept_tokenizer tokenizer)
{
    const char *out = cli->args.at[1];
    if (cli->json)
        return dh_cli_print_json(
            ctx, json_pack("{ss sI sI sI sb}", "out", out, "tensors", (json_int_t)w->shapes.n,
                           "parameters", (json_int_t)n_params(w), "tokenizer_files",
                           (json_int_t)tokenizer.n_files, "tokenizer_for_transformers",
                           (int)tokenizer.for_transformers));
    if (cli->quiet) return DH_OK;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s: %zu tensors, %lld parameters, %s\n", out, w->shapes.n,
                  (long long)n_params(w),
                  tokenizer.for_transformers ? "with tokenizer"
                  : tokenizer.n_files > 0    ? "with a tokenizer that Transformers does not read"
                                             : "without a tokenizer: none was found");
    return dh_cli_print_str(ctx, &text);
}

static dh_status check_output(dh_ctx *ctx, const dh_cli *cli, const dh_found *found)
{
    const char *out = cli->args.at[1];
    DH_TRY(dh_cli_check_output(ctx, out, found->path.text, true));
    DH_TRY(dh_cli_check_output(ctx, out, found->tokenizer.text, true));
    return dh_cli_check_output(ctx, out, found->base.text, true);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    dh_found found;
    DH_TRY(dh_found_open(ctx, cli->args.at[0], ((const convert_args *)args)->base, &found));
    written w = {0};
    kept_tokenizer tokenizer = {0};
    dh_status st = check_output(ctx, cli, &found);
    if (st == DH_OK) st = collect(ctx, &found.model, &w);
    if (st == DH_OK) st = export(ctx, cli, args, &found, &w, &tokenizer);
    if (st == DH_OK) dh_weights_tell_unread(found.weights, &found.model);
    if (st == DH_OK) st = print(ctx, cli, &w, tokenizer);
    dh_vec_fini(&w.shapes);
    dh_found_close(&found);
    return st;
}

const dh_command dh_command_convert = {
    .name = "convert",
    .doc = "write weights as a Hugging Face folder",
    .usage = "IN OUT",
    .notes =
        "IN is what `dhelix sample` takes: a run, a checkpoint, a Hugging Face folder or\n"
        "file, or a .bin file of llama2.c or llm.c. Adapters (a run's, or a folder of PEFT's)\n"
        "are merged into the weights they belong to.\n"
        "\n"
        "OUT gets config.json and safetensors. Where IN has them, it also gets tokenizer\n"
        "files, generation_config.json, chat templates and the ids of special tokens.\n"
        "Transformers gets the same ids: bytes and characters become a tokenizer.json, and a\n"
        "tokenizer_config.json is written where there is none.\n"
        "\n"
        "A model that `dhelix eval` refuses is not written: a tensor or factor is missing,\n"
        "has another shape, or is not finite. Files are not copied through links that leave\n"
        "the model's folder. OUT appears complete or not at all.\n",
    .min_args = 2,
    .max_args = 2,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(convert_args),
    .run = run};
