/* dhelix eval: the loss of a trained model on given data. */
#include <math.h>

#include "cli/cli.h"
#include "describe/evaluated.h"

typedef struct eval_args {
    dh_cli_list data;
    const char *tokenizer, *text_field, *base, *template;
    int64_t seq, batches, micro_batch, threads;
    int dtype;
    bool special;
} eval_args;

#define AT(field) .offset = offsetof(eval_args, field)

static const dh_cli_option options[] = {
    {.name = "data",
     .kind = DH_CLI_TAIL,
     AT(data),
     .value = "FILE...",
     .doc = "texts, JSON lines or token files; required"},
    {.name = "tokenizer",
     .kind = DH_CLI_TEXT,
     AT(tokenizer),
     .value = "SPEC",
     .doc = "bytes, or the path of a tokenizer (default: the one next to the weights)"},
    {.name = "text-field",
     .kind = DH_CLI_TEXT,
     AT(text_field),
     .value = "NAME",
     .doc = "field of JSON lines that holds the text (default: text)"},
    {.name = "special-tokens",
     .kind = DH_CLI_FLAG,
     AT(special),
     .doc = "texts of special tokens (<|endoftext|>) become those tokens"},
    {.name = "chat-template",
     .kind = DH_CLI_TEXT,
     AT(template),
     .value = "NAME",
     .doc = "JSON lines are conversations, by this template, or auto: the run's, else the "
            "tokenizer's; the loss is that of the answers"},
    {.name = "seq",
     .kind = DH_CLI_INT,
     AT(seq),
     .value = "N",
     .max = DH_CLI_ANY,
     .doc = "tokens of a sequence (default: the model's longest, at most 1024)"},
    {.name = "batches",
     .kind = DH_CLI_INT,
     AT(batches),
     .value = "N",
     .max = DH_CLI_ANY,
     .doc = "micro-batches from the start of the data; 0: all (default: 0)"},
    {.name = "micro-batch",
     .kind = DH_CLI_INT,
     AT(micro_batch),
     .value = "N",
     .min = 1,
     .max = 1 << 20,
     .doc = "sequences computed together (default: 1)"},
    {.name = "base",
     .kind = DH_CLI_TEXT,
     AT(base),
     .value = "PATH",
     .doc = "where PATH has adapters: the weights they belong to (default: those they name)"},
    {.name = "dtype",
     .kind = DH_CLI_ENUM,
     AT(dtype),
     .names = dh_cli_dtype_names,
     .doc = "type of computation (default: f32)"},
    {.name = "threads",
     .kind = DH_CLI_INT,
     AT(threads),
     .value = "N",
     .max = 4096,
     .doc = "threads; 0: all cores (default: 0)"},
};

static const eval_args defaults = {.dtype = DH_F32, .micro_batch = 1};

static dh_status print(dh_ctx *ctx, const dh_cli *cli, const dh_evaluated *r)
{
    if (cli->json) return dh_cli_print_json(ctx, dh_evaluated_json(r));
    dh_str out = DH_STR_INIT;
    dh_str_printf(&out, "loss           %.6f\nperplexity     %.4f\n", r->loss, exp(r->loss));
    if (r->bytes > 0) dh_str_printf(&out, "bits per byte  %.4f\n", dh_evaluated_bits_per_byte(r));
    dh_str_printf(&out, "tokens         %lld in %lld sequences\n", (long long)r->tokens,
                  (long long)r->sequences);
    return dh_cli_print_str(ctx, &out);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const eval_args *a = args;
    if (a->data.n == 0) return dh_cli_misuse(ctx, cli, "--data FILE... is missing");
    const dh_describe_eval_options how = {.data = a->data.at,
                                          .n_data = a->data.n,
                                          .tokenizer = a->tokenizer,
                                          .text_field = a->text_field,
                                          .chat_template = a->template,
                                          .base = a->base,
                                          .seq = a->seq,
                                          .batches = a->batches,
                                          .micro_batch = a->micro_batch,
                                          .threads = a->threads,
                                          .dtype = (dh_dtype)a->dtype,
                                          .special_tokens = a->special,
                                          .progress = !cli->quiet};
    dh_evaluated evaluated;
    DH_TRY(dh_evaluated_make(ctx, cli->args.at[0], &how, &evaluated));
    return print(ctx, cli, &evaluated);
}

const dh_command dh_command_eval = {
    .name = "eval",
    .doc = "loss, perplexity and bits per byte of a trained model on given data",
    .usage = "PATH --data FILE...",
    .notes = "PATH is what `dhelix sample` takes. The data are cut into sequences in file order.\n"
             "Each token except the first of a sequence is predicted from the tokens before it.\n"
             "With --chat-template each conversation is a sequence, and only its answers are\n"
             "predicted.\n",
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(eval_args),
    .defaults = &defaults,
    .run = run};
