/* dhelix convert: weights of any kind to a Hugging Face folder. */
#include "cli/cli.h"
#include "describe/converted.h"

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

static dh_status print(dh_ctx *ctx, const dh_cli *cli, const dh_converted *c)
{
    const char *out = cli->args.at[1];
    if (cli->json) return dh_cli_print_json(ctx, dh_converted_json(out, c));
    if (cli->quiet) return DH_OK;
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "%s: %zu tensors, %lld parameters, %s\n", out, c->n_tensors,
                  (long long)c->n_parameters,
                  c->for_transformers        ? "with tokenizer"
                  : c->n_tokenizer_files > 0 ? "with a tokenizer that Transformers does not read"
                                             : "without a tokenizer: none was found");
    return dh_cli_print_str(ctx, &text);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const convert_args *a = args;
    const dh_describe_convert_options how = {
        .base = a->base, .dtype = (dh_dtype)a->dtype, .replace = a->replace};
    dh_converted converted;
    DH_TRY(dh_converted_make(ctx, cli->args.at[0], cli->args.at[1], &how, &converted));
    return print(ctx, cli, &converted);
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
