/* dhelix tokenize: text to a token file or a list of ids, and back; a tokenizer from texts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "data/chat.h"
#include "data/train_bpe.h"
#include "describe/tokenized.h"

typedef struct tokenize_args {
    const char *tokenizer, *output, *text_field;
    const char *template; /* of conversations */
    bool to_stdout, decode, special;
    int64_t train_bpe; /* tokens wanted; 0: none is learned */
} tokenize_args;

#define AT(field) .offset = offsetof(tokenize_args, field)

static const dh_cli_option options[] = {
    {.name = "tokenizer",
     .kind = DH_CLI_TEXT,
     AT(tokenizer),
     .value = "SPEC",
     .doc = "bytes, chars (of these texts), gpt2:FOLDER, or the path of a tokenizer; required"},
    {.name = "output",
     .letter = 'o',
     .kind = DH_CLI_TEXT,
     .writes = true,
     AT(output),
     .value = "FILE",
     .doc = "llm.c token file to write; with --tokenizer chars, FILE.chars.json next to it; with "
            "--train-bpe the folder"},
    {.name = "stdout", .kind = DH_CLI_FLAG, AT(to_stdout), .doc = "print the ids, one a line"},
    {.name = "decode",
     .kind = DH_CLI_FLAG,
     AT(decode),
     .doc = "the other direction: inputs are token files, or ids as text on standard input; prints "
            "the text"},
    {.name = "train-bpe",
     .kind = DH_CLI_INT,
     AT(train_bpe),
     .min = DH_BPE_SMALLEST,
     .max = DH_VOCAB_MAX,
     .value = "SIZE",
     .doc = "learn a byte-level BPE tokenizer of SIZE tokens from the inputs; --output FOLDER gets "
            "tokenizer.json and tokenizer_config.json"},
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
     .doc = "JSON lines are conversations, by this template, or auto: the tokenizer's; --stdout "
            "prints each id and 1 where it is learnt, 0 where it is only read"},
};

/* ---- input ---------------------------------------------------------------------------------- */

static bool from_stdin(const dh_cli *cli)
{
    return cli->args.n == 0 || (cli->args.n == 1 && strcmp(cli->args.at[0], "-") == 0);
}

static dh_status read_stdin(dh_ctx *ctx, dh_str *text)
{
    char part[1 << 16];
    size_t n;
    while ((n = fread(part, 1, sizeof part, stdin)) > 0) dh_str_append(text, part, n);
    if (ferror(stdin))
        return dh_fail(ctx, DH_EIO, "cannot read standard input: %s", strerror(errno));
    return text->failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_describe_tokenize_options options_of(const tokenize_args *a, const dh_str *text)
{
    return (dh_describe_tokenize_options){.tokenizer = a->tokenizer,
                                          .text = text ? text->text ? text->text : "" : NULL,
                                          .n_text = text ? text->len : 0,
                                          .text_field = a->text_field,
                                          .output = a->output,
                                          .chat_template = a->template,
                                          .special_tokens = a->special,
                                          .train_bpe = a->train_bpe};
}

/* ---- encoding ------------------------------------------------------------------------------- */

static dh_status print_ids(dh_ctx *ctx, void *self, const int32_t *ids, size_t n)
{
    dh_str out = DH_STR_INIT;
    (void)self;
    for (size_t i = 0; i < n; i++) dh_str_printf(&out, "%d\n", ids[i]);
    return dh_cli_print_str(ctx, &out);
}

/* Of conversations: each id and whether it is learnt, an empty line behind the last of each. */
static dh_status print_chats(dh_ctx *ctx, void *self, const int32_t *ids, size_t n)
{
    dh_str out = DH_STR_INIT;
    (void)self;
    for (size_t i = 0; i < n; i++)
        dh_str_printf(&out, "%d %d\n%s", ids[i] & DH_TOKEN_ID, !(ids[i] & DH_TOKEN_UNLEARNT),
                      ids[i] & DH_TOKEN_LAST ? "\n" : "");
    return dh_cli_print_str(ctx, &out);
}

/* ---- decoding ------------------------------------------------------------------------------- */

/* Pieces know the token before them, so parts of a stream decode as the whole does. */
typedef struct decoder {
    const dh_tokenizer *tok;
    int32_t prev;
    dh_tokenized *tokenized;
} decoder;

static dh_status print_text(dh_ctx *ctx, void *self, const int32_t *ids, size_t n)
{
    decoder *d = self;
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes;
        const char *piece = dh_tokenizer_piece(d->tok, d->prev, ids[i], &n_bytes);
        if (!piece)
            return dh_fail(ctx, DH_EINVAL, "token %lld is %d; the tokenizer has %d tokens",
                           (long long)d->tokenized->tokens, ids[i],
                           dh_tokenizer_vocab_size(d->tok));
        DH_TRY(dh_cli_print(ctx, piece, n_bytes));
        d->prev = ids[i];
        d->tokenized->tokens++;
    }
    return DH_OK;
}

static dh_status parse_ids(dh_ctx *ctx, char *text, dh_ids *ids)
{
    char *rest = NULL;
    for (char *word = strtok_r(text, " \t\r\n,", &rest); word;
         word = strtok_r(NULL, " \t\r\n,", &rest)) {
        int64_t id;
        if (!dh_parse_i64(word, &id) || id < 0 || id > INT32_MAX)
            return dh_fail(ctx, DH_EINVAL, "\"%.40s\" is not a token id: give whole numbers", word);
        if (!dh_vec_push(ids, (int32_t)id)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static dh_status decode_with(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a, decoder *d,
                             dh_str *text)
{
    if (!from_stdin(cli)) {
        const dh_describe_tokenize_options how = options_of(a, NULL);
        const dh_tokenize_input in = {cli->args.at, cli->args.n, &how, print_text, d};
        return dh_tokens_each(ctx, &in);
    }
    dh_ids ids = {0};
    dh_status st = text->text ? parse_ids(ctx, text->text, &ids) : DH_OK;
    if (st == DH_OK) st = print_text(ctx, d, ids.at, ids.n);
    dh_vec_fini(&ids);
    return st;
}

static dh_status decode(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a, dh_str *text,
                        dh_tokenized *t)
{
    dh_tokenizer *tok;
    DH_TRY(dh_tokenizer_load(ctx, a->tokenizer, &tok));
    *t = (dh_tokenized){.vocab = dh_tokenizer_vocab_size(tok)};
    decoder d = {tok, -1, t};
    const int64_t start = dh_now_ns();
    const dh_status st = decode_with(ctx, cli, a, &d, text);
    t->seconds = (double)(dh_now_ns() - start) * 1e-9;
    dh_tokenizer_destroy(tok);
    return st;
}

/* ---- learning ------------------------------------------------------------------------------- */

static dh_status report_learned(dh_ctx *ctx, const dh_cli *cli, const dh_tokenize_input *in,
                                const dh_learned *learned)
{
    if (cli->json) return dh_cli_print_json(ctx, dh_learned_json(in, learned));
    if (cli->quiet) return DH_OK;
    char took[32];
    dh_cli_say("%zu tokens from %zu different words, %s -> %s", learned->vocab, learned->words,
               dh_format_ns(took, sizeof took, learned->seconds * 1e9), in->how->output);
    if ((int64_t)learned->vocab < in->how->train_bpe)
        dh_cli_say("the texts have no more pairs that are there twice");
    return DH_OK;
}

static dh_status learn(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a)
{
    const dh_describe_tokenize_options how = options_of(a, NULL);
    const dh_tokenize_input in = {.files = cli->args.at, .n_files = cli->args.n, .how = &how};
    dh_learned learned;
    DH_TRY(dh_tokenizer_learn(ctx, &in, &learned));
    return report_learned(ctx, cli, &in, &learned);
}

static dh_status check_learning(dh_ctx *ctx, dh_cli *cli, const tokenize_args *a)
{
    if (a->tokenizer || a->decode || a->to_stdout)
        return dh_cli_misuse(ctx, cli, "--train-bpe makes a tokenizer: leave --%s away",
                             a->tokenizer ? "tokenizer"
                             : a->decode  ? "decode"
                                          : "stdout");
    if (!a->output) return dh_cli_misuse(ctx, cli, "--train-bpe needs --output FOLDER");
    if (from_stdin(cli)) return dh_cli_misuse(ctx, cli, "--train-bpe reads files: name them");
    return DH_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* On stderr where stdout carries the ids or the text. */
static dh_status report(dh_ctx *ctx, const dh_cli *cli, const dh_tokenize_input *in,
                        const dh_tokenized *t)
{
    if (cli->json) return dh_cli_print_json(ctx, dh_tokenized_json(in, t));
    const char *output = in->how->output;
    char took[32], rate[32];
    if (!cli->quiet)
        dh_cli_say("%lld tokens of a vocabulary of %d, %s, %s tokens/s%s%s", (long long)t->tokens,
                   t->vocab, dh_format_ns(took, sizeof took, t->seconds * 1e9),
                   dh_format_count(rate, sizeof rate, dh_tokenized_per_s(t)), output ? " -> " : "",
                   output ? output : "");
    return DH_OK;
}

static dh_status work(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a, dh_str *text)
{
    const bool streams = from_stdin(cli);
    if (streams) DH_TRY(read_stdin(ctx, text));
    const dh_describe_tokenize_options how = options_of(a, streams ? text : NULL);
    const dh_tokenize_input in = {.files = streams ? NULL : cli->args.at,
                                  .n_files = streams ? 0 : cli->args.n,
                                  .how = &how,
                                  .sink = !a->to_stdout ? NULL
                                          : a->template ? print_chats
                                                        : print_ids};
    dh_tokenized t;
    DH_TRY(a->decode ? decode(ctx, cli, a, text, &t) : dh_tokenized_make(ctx, &in, &t));
    return report(ctx, cli, &in, &t);
}

static dh_status check_chats(dh_ctx *ctx, dh_cli *cli, const tokenize_args *a)
{
    if (!a->template) return DH_OK;
    if (a->output)
        return dh_cli_misuse(ctx, cli,
                             "a token file cannot say which tokens are learnt: conversations go to "
                             "--stdout, or are read by training (data.format=chat)");
    if (a->decode || a->special)
        return dh_cli_misuse(ctx, cli, "--chat-template does not go with --%s",
                             a->decode ? "decode" : "special-tokens");
    if (from_stdin(cli)) return dh_cli_misuse(ctx, cli, "conversations are read from files");
    return DH_OK;
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const tokenize_args *a = args;
    if (a->train_bpe) {
        DH_TRY(check_learning(ctx, cli, a));
        return learn(ctx, cli, a);
    }
    if (!a->tokenizer) return dh_cli_misuse(ctx, cli, "--tokenizer SPEC is missing");
    if (a->decode && (a->output || a->to_stdout))
        return dh_cli_misuse(ctx, cli, "--decode prints text; leave --output and --stdout away");
    if (a->decode && strcmp(a->tokenizer, "chars") == 0)
        return dh_cli_misuse(ctx, cli, "--decode needs the chars file as --tokenizer");
    if (cli->json && (a->to_stdout || a->decode))
        return dh_cli_misuse(ctx, cli, "--%s has no JSON form: leave --json away",
                             a->decode ? "decode" : "stdout");
    DH_TRY(check_chats(ctx, cli, a));
    dh_str text = DH_STR_INIT;
    dh_status st = work(ctx, cli, a, &text);
    dh_str_fini(&text);
    return st;
}

const dh_command dh_command_tokenize = {
    .name = "tokenize",
    .doc = "turn text into token files, ids back into text, or learn a tokenizer",
    .usage = "[INPUT...]",
    .notes =
        "Inputs are text files, JSON lines (an object a line, or one array of objects: each\n"
        "document is followed by the tokenizer's EOS) or token files; the content of a file\n"
        "decides. Without INPUT, or with -, text is read from standard input. With neither\n"
        "--output nor --stdout the tokens are only counted. Token files are llm.c's:\n"
        "uint16, or uint32 for a vocabulary above 65,536. With --chat-template an empty line ends\n"
        "each conversation. --train-bpe learns from files alone:\n"
        "the vocabulary and merges are those of Hugging Face's trainer (min_frequency 2).\n",
    .max_args = SIZE_MAX,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(tokenize_args),
    .run = run};
