/* dhelix sample: text from a trained model, shown as it is drawn. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "cli/cli.h"
#include "dhelix/generate.h"
#include "train/session.h"

typedef struct sample_args {
    const char *prompt, *tokenizer, *base, *template, *system;
    int64_t tokens, top_k, seed, threads;
    double temperature, top_p;
    bool greedy;
    bool chat, special;
    int dtype, full, bos; /* full, bos: index of names below */
} sample_args;

/* Names of the actions at a full context. */
static const char *const full_names[] = {"slide", "stop", NULL};

static const char *const bos_names[] = {"auto", "always", "never", NULL};
_Static_assert(DH_BOS_AS_TRAINED == 0 && DH_BOS_ALWAYS == 1 && DH_BOS_NEVER == 2, "order");

#define AT(field) .offset = offsetof(sample_args, field)

static const dh_cli_option options[] = {
    {.name = "prompt",
     .kind = DH_CLI_TEXT,
     AT(prompt),
     .value = "TEXT",
     .doc = "text to continue; - reads it from standard input (default: none)"},
    {.name = "tokens",
     .kind = DH_CLI_INT,
     AT(tokens),
     .value = "N",
     .max = DH_CLI_ANY,
     .doc = "new tokens at most (default: 256)"},
    {.name = "temperature",
     .kind = DH_CLI_REAL,
     AT(temperature),
     .value = "T",
     .max = 1e6,
     .doc = "divides the logits; 0 always takes the likeliest token (default: 1)"},
    {.name = "top-k",
     .kind = DH_CLI_INT,
     AT(top_k),
     .value = "K",
     .max = DH_CLI_ANY,
     .doc = "draw from the K likeliest tokens; 0: all (default: 0)"},
    {.name = "top-p",
     .kind = DH_CLI_REAL,
     AT(top_p),
     .value = "P",
     .max = 1,
     .doc = "draw from the likeliest tokens that together have probability P; 1: all "
            "(default: 0.9)"},
    {.name = "greedy", .kind = DH_CLI_FLAG, AT(greedy), .doc = "the same as --temperature 0"},
    {.name = "seed",
     .kind = DH_CLI_INT,
     AT(seed),
     .value = "S",
     .max = DH_CLI_ANY,
     .doc = "seed of the draws: the same seed gives the same text (default: 1337)"},
    {.name = "full-context",
     .kind = DH_CLI_ENUM,
     AT(full),
     .names = full_names,
     .doc = "when the model's context is full, forget its older half, or end the text "
            "(default: slide)"},
    {.name = "bos",
     .kind = DH_CLI_ENUM,
     AT(bos),
     .names = bos_names,
     .doc = "whether the prompt begins with the tokenizer's BOS token; auto: yes, except for our "
            "own runs, whose data had none (default: auto)"},
    {.name = "special-tokens",
     .kind = DH_CLI_FLAG,
     AT(special),
     .doc = "texts of special tokens in the prompt (<|endoftext|>) become those tokens"},
    {.name = "chat",
     .kind = DH_CLI_FLAG,
     AT(chat),
     .doc = "the prompt is a message, and the text is its answer, in the form of a conversation "
            "template"},
    {.name = "chat-template",
     .kind = DH_CLI_TEXT,
     AT(template),
     .value = "NAME",
     .doc = "a name that data.chat_template allows (default: the run's, else the tokenizer's)"},
    {.name = "system",
     .kind = DH_CLI_TEXT,
     AT(system),
     .value = "TEXT",
     .doc = "a system message before the prompt (default: none)"},
    {.name = "tokenizer",
     .kind = DH_CLI_TEXT,
     AT(tokenizer),
     .value = "SPEC",
     .doc = "bytes, or the path of a tokenizer (default: the one next to the weights)"},
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

static const sample_args defaults = {
    .tokens = 256, .temperature = 1.0, .top_p = 0.9, .seed = 1337, .dtype = DH_F32};

/* ---- the prompt --------------------------------------------------------------------------- */

static dh_status read_stdin(dh_ctx *ctx, dh_str *text)
{
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof part, stdin)) > 0) dh_str_append(text, part, n);
    if (ferror(stdin))
        return dh_fail(ctx, DH_EIO, "cannot read the prompt from standard input: %s",
                       strerror(errno));
    return text->failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_status read_prompt(dh_ctx *ctx, const sample_args *a, dh_str *text)
{
    if (a->prompt && strcmp(a->prompt, "-") == 0) return read_stdin(ctx, text);
    if (a->prompt) dh_str_append(text, a->prompt, strlen(a->prompt));
    return text->failed ? dh_no_memory(ctx) : DH_OK;
}

/* ---- the text ------------------------------------------------------------------------------- */

/* Where the text goes: as it comes, or collected for JSON. */
static dh_status stream(dh_ctx *ctx, void *self, const char *bytes, size_t n_bytes)
{
    bool *begun = self;
    DH_TRY(dh_cli_print(ctx, bytes, n_bytes));
    *begun = *begun || n_bytes > 0;
    return dh_cli_flush(ctx);
}

static dh_status collect(dh_ctx *ctx, void *self, const char *bytes, size_t n_bytes)
{
    dh_str *text = self;
    dh_str_append(text, bytes, n_bytes);
    return text->failed ? dh_no_memory(ctx) : DH_OK;
}

static const char *const end_names[] = {[DH_GENERATE_LENGTH] = "length",
                                        [DH_GENERATE_EOS] = "end of text",
                                        [DH_GENERATE_CONTEXT] = "context full",
                                        [DH_GENERATE_STOPPED] = "stopped"};

static dh_status print_json(dh_ctx *ctx, const dh_str *text, const dh_generate_result *r)
{
    json_t *body = json_stringn(text->text ? text->text : "", text->len);
    if (!body)
        return dh_fail(ctx, DH_EFORMAT,
                       "the text is not valid UTF-8 and cannot be written as "
                       "JSON: leave --json away");
    return dh_cli_print_json(ctx, json_pack("{so sI sI sf sf ss}", "text", body, "prompt_tokens",
                                            (json_int_t)r->n_prompt, "new_tokens",
                                            (json_int_t)r->n_new, "prompt_s", r->prompt_s, "new_s",
                                            r->new_s, "end", end_names[r->end]));
}

static void notice(const dh_cli *cli, const dh_trained *trained, const dh_generate_result *r)
{
    if (cli->quiet) return;
    if (r->end == DH_GENERATE_CONTEXT)
        dh_cli_say("the text ends because the model's context of %lld tokens is full",
                   (long long)trained->session->spec.cache_len);
    if (r->n_new > 1)
        dh_cli_say("%lld tokens, %.1f tokens/s", (long long)r->n_new, (double)r->n_new / r->new_s);
}

static dh_status generate(dh_ctx *ctx, dh_cli *cli, const sample_args *a, const dh_str *prompt,
                          dh_trained *trained, dh_sampler *sampler)
{
    dh_str text = DH_STR_INIT;
    bool begun = false; /* a line that a message must not go on */
    dh_generate_spec spec = {.prompt = prompt->text,
                             .n_prompt = prompt->len,
                             .bos = (dh_generate_bos)a->bos,
                             .special_tokens = a->special,
                             .chat = a->chat ? (a->template ? a->template : "auto") : NULL,
                             .system = a->system,
                             .max_tokens = a->tokens,
                             .sampler = sampler,
                             .slide = a->full == 0,
                             .stop = dh_cli_catch_signals(),
                             .emit = cli->json ? collect : stream,
                             .self = cli->json ? (void *)&text : &begun};
    dh_generate_result result;
    dh_status st = dh_generate(ctx, trained, &spec, &result);
    if (st == DH_OK && cli->json) st = print_json(ctx, &text, &result);
    if (!cli->json && (st == DH_OK || begun)) {
        dh_status ended = dh_cli_print(ctx, "\n", 1);
        if (st == DH_OK) st = ended;
    }
    dh_str_fini(&text);
    DH_TRY(st);
    DH_TRY(dh_cli_flush(ctx));
    notice(cli, trained, &result);
    if (result.end == DH_GENERATE_STOPPED)
        return dh_fail(ctx, DH_EINTERRUPTED, "stopped after %lld tokens", (long long)result.n_new);
    return DH_OK;
}

static dh_status sample_with(dh_ctx *ctx, dh_cli *cli, const sample_args *a, const dh_str *prompt)
{
    dh_trained_spec spec = {.path = cli->args.at[0],
                            .base = a->base,
                            .tokenizer = a->tokenizer,
                            .dtype = (dh_dtype)a->dtype,
                            .threads = a->threads,
                            .decode = true};
    dh_trained trained;
    dh_cli_end_at_signals(cli->quiet);
    DH_TRY(dh_trained_open(ctx, &spec, &trained));
    dh_sampler sampler;
    dh_status st =
        dh_sampler_init(ctx, &sampler, trained.session->spec.recipe.model.vocab,
                        a->greedy ? 0 : a->temperature, a->top_k, a->top_p, (uint64_t)a->seed);
    if (st == DH_OK) {
        st = generate(ctx, cli, a, prompt, &trained, &sampler);
        dh_sampler_fini(&sampler);
    }
    dh_trained_close(&trained);
    return st;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const sample_args *a = args;
    if (a->special && a->chat)
        return dh_cli_misuse(ctx, cli,
                             "--special-tokens does not go with --chat, whose template "
                             "puts the marks");
    dh_str prompt = DH_STR_INIT;
    dh_status st = read_prompt(ctx, a, &prompt);
    if (st == DH_OK) st = sample_with(ctx, cli, a, &prompt);
    dh_str_fini(&prompt);
    return st;
}

const dh_command dh_command_sample = {
    .name = "sample",
    .doc = "continue a text with a trained model",
    .usage = "PATH",
    .notes =
        "PATH is a run folder (its newest checkpoint), a checkpoint, a Hugging Face folder or\n"
        "safetensors file, a llama2.c or llm.c .bin file, or a folder of adapters. The prompt is "
        "part of the text.\n"
        "A text ends at the model's end-of-text token, after --tokens new tokens, or when\n"
        "the model's context is full. It is printed byte for byte, control characters too.\n",
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(sample_args),
    .defaults = &defaults,
    .run = run};
