/* dhelix convert: weights of any kind to a Hugging Face folder. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "graph/graph.h"
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
     .doc = "of the weights written (default: f32)"},
    {.name = "base",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(convert_args, base),
     .value = "PATH",
     .doc = "where IN has adapters: the weights they belong to (default: those they name)"},
    {.name = "replace",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(convert_args, replace),
     .doc = "an existing model folder OUT is replaced"},
};

/* ---- which tensors ------------------------------------------------------------------------- */

/* Left out: what is no weight (integer masks; attention masks and rotary frequencies that
 * old files hold) and a tied head, which is the embedding once more. */
static bool is_weight(const dh_model *model, const dh_weight_info *info)
{
    static const char *const buffers[] = {".attn.bias", ".attn.masked_bias",
                                          ".rotary_emb.inv_freq"};
    size_t n = strlen(info->name);
    if (dh_adapter_has(info->name)) return false; /* merged into the others */
    for (size_t i = 0; i < DH_COUNTOF(buffers); i++)
        if (n >= strlen(buffers[i]) && strcmp(info->name + n - strlen(buffers[i]), buffers[i]) == 0)
            return false;
    if (model->tied_head && strcmp(info->name, "lm_head.weight") == 0) return false;
    return true;
}

typedef DH_VEC(dh_export_tensor) tensors;

static dh_status collect(dh_ctx *ctx, const dh_found *found, tensors *list)
{
    for (size_t i = 0; i < dh_weights_n(found->weights); i++) {
        dh_weight_info info;
        dh_weights_at(found->weights, i, &info);
        if (!is_weight(&found->model, &info)) continue;
        dh_export_tensor t = {.name = info.name, .ndim = info.ndim};
        memcpy(t.shape, info.shape, sizeof t.shape);
        if (!dh_vec_push(list, t)) return dh_fail(ctx, DH_ENOMEM, "out of memory listing tensors");
    }
    return DH_OK;
}

/* ---- biases that Transformers wants --------------------------------------------------------- */

/* A GPT-2 without biases is one of nanoGPT's; GPT2Model has them always, and takes zeros for the
 * same model. What else is missing stays missing. */
static bool wants_biases(const dh_model *model)
{
    return model->family == DH_FAMILY_GPT2 && !model->bias;
}

static bool has(const tensors *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->at[i].name, name) == 0) return true;
    return false;
}

static dh_status add_bias(dh_ctx *ctx, dh_arena *names, const dh_param *p, tensors *list)
{
    const dh_param_piece piece = dh_param_piece_at(p, 0);
    dh_export_tensor t = {.name = dh_arena_strdup(names, piece.hf_name), .ndim = piece.hf_ndim};
    memcpy(t.shape, piece.hf_shape, sizeof piece.hf_shape);
    if (t.name && has(list, t.name)) return DH_OK;
    return t.name && dh_vec_push(list, t)
               ? DH_OK
               : dh_fail(ctx, DH_ENOMEM, "out of memory listing tensors");
}

static dh_status add_biases(dh_ctx *ctx, dh_arena *names, const dh_model *model, tensors *list)
{
    dh_model biased = *model;
    dh_param p, without;
    biased.bias = true;
    for (int layer = 0; layer <= model->n_layers; layer++) {
        const dh_block_kind kind = layer < model->n_layers ? DH_BLOCK_LAYER : DH_BLOCK_HEAD;
        for (uint32_t which = 0; which < DH_MAX_BLOCK_PARAMS; which++)
            if (dh_param_describe(&biased, kind, layer, which, &p) &&
                !dh_param_describe(model, kind, layer, which, &without))
                DH_TRY(add_bias(ctx, names, &p, list));
    }
    return DH_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* What became of the tokenizer. */
typedef struct kept_tokenizer {
    size_t n_files;
    bool for_transformers;
} kept_tokenizer;

typedef struct source {
    const dh_found *found;
    const tensors *list;
    size_t n_stored; /* the first; zeros behind them */
    kept_tokenizer tokenizer;
} source;

static dh_status fill(void *user, dh_ctx *ctx, size_t index, int64_t row0, int64_t n_rows,
                      float *dst)
{
    const source *s = user;
    const dh_export_tensor *t = &s->list->at[index];
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

/* What lies beside the weights. */
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
    return dh_tokenizer_for_transformers(ctx, spec, dir, &kept->n_files, &kept->for_transformers);
}

static dh_status export(dh_ctx *ctx, const dh_cli *cli, const convert_args *a,
                        const dh_found *found, const tensors *list, size_t n_stored,
                        kept_tokenizer *tokenizer)
{
    source s = {.found = found, .list = list, .n_stored = n_stored};
    const dh_export_options how = {
        .dtype = (dh_dtype)a->dtype, .replace = a->replace, .more = keep_files};
    DH_TRY(
        dh_weights_export(ctx, cli->args.at[1], &found->model, list->at, list->n, fill, &s, &how));
    *tokenizer = s.tokenizer;
    return DH_OK;
}

static dh_status print(dh_ctx *ctx, const dh_cli *cli, const dh_found *found, const tensors *list,
                       kept_tokenizer tokenizer)
{
    const char *out = cli->args.at[1];
    if (cli->json)
        return dh_cli_print_json(
            ctx, json_pack("{ss sI sI sI sb}", "out", out, "tensors", (json_int_t)list->n,
                           "parameters", (json_int_t)dh_model_n_params(&found->model),
                           "tokenizer_files", (json_int_t)tokenizer.n_files,
                           "tokenizer_for_transformers", (int)tokenizer.for_transformers));
    if (cli->quiet) return DH_OK;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s: %zu tensors, %lld parameters, %s\n", out, list->n,
                  (long long)dh_model_n_params(&found->model),
                  tokenizer.for_transformers ? "with tokenizer"
                  : tokenizer.n_files > 0    ? "with a tokenizer that Transformers does not read"
                                             : "without a tokenizer: none was found");
    return dh_cli_print_str(ctx, &text);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    dh_found found;
    DH_TRY(dh_found_open(ctx, cli->args.at[0], ((const convert_args *)args)->base, &found));
    tensors list = {0};
    kept_tokenizer tokenizer = {0};
    dh_arena *names = dh_arena_create();
    dh_status st = names ? collect(ctx, &found, &list)
                         : dh_fail(ctx, DH_ENOMEM, "out of memory listing tensors");
    const size_t n_stored = list.n;
    if (st == DH_OK && wants_biases(&found.model)) st = add_biases(ctx, names, &found.model, &list);
    if (st == DH_OK) st = export(ctx, cli, args, &found, &list, n_stored, &tokenizer);
    if (st == DH_OK) st = print(ctx, cli, &found, &list, tokenizer);
    dh_vec_fini(&list);
    dh_arena_destroy(names);
    dh_found_close(&found);
    return st;
}

const dh_command dh_command_convert = {
    .name = "convert",
    .doc = "write weights as a Hugging Face folder",
    .usage = "IN OUT",
    .notes =
        "IN is what `dhelix sample` takes: a run, a checkpoint, a Hugging Face folder or file, a\n"
        "llama2.c or llm.c .bin file; adapters, a run's or a folder of PEFT's, are merged into "
        "the\n"
        "weights they belong to. OUT gets config.json, safetensors and, where IN has them,\n"
        "tokenizer files, generation_config.json, chat templates and the ids of special tokens.\n"
        "Of a tokenizer Transformers reads the same ids: bytes and characters become a\n"
        "tokenizer.json, and a tokenizer_config.json is written where there is none.\n"
        "OUT appears complete or not at all.\n",
    .min_args = 2,
    .max_args = 2,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(convert_args),
    .run = run};
