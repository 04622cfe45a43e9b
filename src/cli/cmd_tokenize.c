/* dhelix tokenize: text to a token file or a list of ids, and back; a tokenizer from texts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "data/chat.h"
#include "data/dataset.h"
#include "data/train_bpe.h"
#include "train/inputs.h"

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

enum { READ_TOKENS = 1 << 16 };

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

static dh_status open_tokenizer(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a,
                                const dh_str *text, dh_tokenizer **tok)
{
    if (strcmp(a->tokenizer, "chars") != 0) return dh_tokenizer_load(ctx, a->tokenizer, tok);
    if (from_stdin(cli)) return dh_tokenizer_chars_from_text(ctx, text->text, text->len, tok);
    return dh_dataset_chars(ctx, cli->args.at, cli->args.n, a->text_field, tok);
}

/* ---- what is written ------------------------------------------------------------------------ */

/* Empty: none is written. */
static dh_status chars_path(dh_ctx *ctx, const tokenize_args *a, dh_str *path)
{
    if (!a->output || !a->tokenizer || strcmp(a->tokenizer, "chars") != 0) return DH_OK;
    dh_str_printf(path, "%s.chars.json", a->output);
    return path->failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_status save_chars(dh_ctx *ctx, const tokenize_args *a, const dh_tokenizer *tok)
{
    dh_str path = DH_STR_INIT;
    dh_status st = chars_path(ctx, a, &path);
    if (st == DH_OK && path.len > 0) st = dh_tokenizer_save_chars(ctx, tok, path.text);
    dh_str_fini(&path);
    return st;
}

static dh_status check_text(dh_ctx *ctx, void *user, const char *setting, const char *text)
{
    const tokenize_args *a = user;
    dh_str path = DH_STR_INIT;
    (void)setting;
    dh_status st = dh_output_check(ctx, a->output, text, false);
    if (st == DH_OK) st = chars_path(ctx, a, &path);
    if (st == DH_OK) st = dh_output_check(ctx, path.text, text, false);
    dh_str_fini(&path);
    return st;
}

/* The files of folders and patterns, and what is written beside the tokens. */
static dh_status check_texts(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a)
{
    for (size_t i = 0; i < cli->args.n; i++)
        DH_TRY(dh_each_text(ctx, "INPUT", cli->args.at[i], check_text, (void *)(uintptr_t)a));
    return DH_OK;
}

/* ---- encoding ------------------------------------------------------------------------------- */

typedef struct tally {
    int64_t tokens;
    double seconds;
} tally;

static dh_status print_ids(dh_ctx *ctx, const int32_t *ids, size_t n)
{
    dh_str out = DH_STR_INIT;
    for (size_t i = 0; i < n; i++) dh_str_printf(&out, "%d\n", ids[i]);
    return dh_cli_print_str(ctx, &out);
}

static dh_status encode_text(dh_ctx *ctx, const tokenize_args *a, const dh_tokenizer *tok,
                             const dh_str *text, tally *t)
{
    dh_ids ids = {0};
    dh_status st = dh_tokenizer_encode(ctx, tok, text->text ? text->text : "", text->len,
                                       a->special ? DH_ENCODE_SPECIAL : 0, &ids);
    t->tokens = (int64_t)ids.n;
    if (st == DH_OK && a->to_stdout) st = print_ids(ctx, ids.at, ids.n);
    if (st == DH_OK && a->output)
        st = dh_tokens_write_llmc(ctx, a->output, ids.at, ids.n, dh_tokenizer_vocab_size(tok));
    dh_vec_fini(&ids);
    return st;
}

typedef dh_status (*ids_sink)(dh_ctx *ctx, void *self, const int32_t *ids, size_t n);

static dh_status each_part(dh_ctx *ctx, const dh_dataset *ds, ids_sink sink, void *self)
{
    int64_t total = dh_dataset_tokens(ds);
    int32_t *ids = malloc(READ_TOKENS * sizeof *ids);
    if (!ids) return dh_no_memory(ctx);
    dh_status st = DH_OK;
    for (int64_t at = 0; st == DH_OK && at < total; at += READ_TOKENS) {
        int64_t n = DH_MIN(total - at, READ_TOKENS);
        st = dh_dataset_read(ctx, ds, at, n, ids);
        if (st == DH_OK) st = sink(ctx, self, ids, (size_t)n);
    }
    free(ids);
    return st;
}

static dh_status print_part(dh_ctx *ctx, void *self, const int32_t *ids, size_t n)
{
    (void)self;
    return print_ids(ctx, ids, n);
}

/* Of conversations: each id and whether it is learnt, an empty line behind the last of each. */
static dh_status print_chats(dh_ctx *ctx, void *self, const int32_t *ids, size_t n)
{
    const tokenize_args *a = self;
    dh_str out = DH_STR_INIT;
    for (size_t i = 0; a->to_stdout && i < n; i++)
        dh_str_printf(&out, "%d %d\n%s", ids[i] & DH_TOKEN_ID, !(ids[i] & DH_TOKEN_UNLEARNT),
                      ids[i] & DH_TOKEN_LAST ? "\n" : "");
    return a->to_stdout ? dh_cli_print_str(ctx, &out) : DH_OK;
}

static dh_status find_chat(dh_ctx *ctx, const tokenize_args *a, const dh_chat **chat)
{
    *chat = NULL;
    if (!a->template) return DH_OK;
    if (strcmp(a->template, "auto") == 0) return dh_chat_of_tokenizer(ctx, a->tokenizer, chat);
    return dh_chat_find(ctx, a->template, chat);
}

static dh_status open_files(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a,
                            const dh_tokenizer *tok, dh_dataset **ds)
{
    dh_dataset_spec spec = {.files = cli->args.at,
                            .n_files = cli->args.n,
                            .tokenizer = tok,
                            .text_field = a->text_field,
                            .special_tokens = a->special,
                            .order = DH_ORDER_SEQUENTIAL};
    DH_TRY(find_chat(ctx, a, &spec.chat));
    return dh_dataset_open(ctx, &spec, ds);
}

static dh_status encode_files(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a,
                              const dh_tokenizer *tok, tally *t)
{
    dh_dataset *ds;
    DH_TRY(open_files(ctx, cli, a, tok, &ds));
    t->tokens = dh_dataset_tokens(ds);
    dh_status st = DH_OK;
    if (a->template)
        st = each_part(ctx, ds, print_chats, (void *)(uintptr_t)a);
    else if (a->to_stdout)
        st = each_part(ctx, ds, print_part, NULL);
    if (st == DH_OK && a->output)
        st = dh_dataset_write_llmc(ctx, ds, a->output, dh_tokenizer_vocab_size(tok));
    dh_dataset_close(ds);
    return st;
}

/* ---- decoding ------------------------------------------------------------------------------- */

/* Pieces know the token before them, so parts of a stream decode as the whole does. */
typedef struct decoder {
    const dh_tokenizer *tok;
    int32_t prev;
    tally *tally;
} decoder;

static dh_status print_text(dh_ctx *ctx, void *self, const int32_t *ids, size_t n)
{
    decoder *d = self;
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes;
        const char *piece = dh_tokenizer_piece(d->tok, d->prev, ids[i], &n_bytes);
        if (!piece)
            return dh_fail(ctx, DH_EINVAL, "token %lld is %d; the tokenizer has %d tokens",
                           (long long)d->tally->tokens, ids[i], dh_tokenizer_vocab_size(d->tok));
        DH_TRY(dh_cli_print(ctx, piece, n_bytes));
        d->prev = ids[i];
        d->tally->tokens++;
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

static dh_status decode(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a,
                        const dh_tokenizer *tok, dh_str *text, tally *t)
{
    decoder d = {tok, -1, t};
    if (!from_stdin(cli)) {
        dh_dataset *ds;
        DH_TRY(open_files(ctx, cli, a, NULL, &ds));
        dh_status st = each_part(ctx, ds, print_text, &d);
        dh_dataset_close(ds);
        return st;
    }
    dh_ids ids = {0};
    dh_status st = text->text ? parse_ids(ctx, text->text, &ids) : DH_OK;
    if (st == DH_OK) st = print_text(ctx, &d, ids.at, ids.n);
    dh_vec_fini(&ids);
    return st;
}

/* ---- learning ------------------------------------------------------------------------------- */

static dh_status report_learned(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a,
                                const dh_learned_bpe *learned, double seconds)
{
    const size_t n = learned->vocab.pieces.n;
    if (cli->json)
        return dh_cli_print_json(ctx, json_pack("{sI sI sI sf ss}", "vocab", (json_int_t)n,
                                                "merges", (json_int_t)learned->merges.n, "words",
                                                (json_int_t)learned->n_words, "seconds", seconds,
                                                "output", a->output));
    if (cli->quiet) return DH_OK;
    char took[32];
    dh_cli_say("%zu tokens from %zu different words, %s -> %s", n, learned->n_words,
               dh_format_ns(took, sizeof took, seconds * 1e9), a->output);
    if ((int64_t)n < a->train_bpe) dh_cli_say("the texts have no more pairs that are there twice");
    return DH_OK;
}

static dh_status learn(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a)
{
    const int64_t start = dh_now_ns();
    dh_learned_bpe learned;
    DH_TRY(dh_bpe_learn(ctx, cli->args.at, cli->args.n, a->text_field, a->train_bpe, &learned));
    dh_status st = dh_learned_bpe_save(ctx, &learned, a->output);
    if (st == DH_OK)
        st = report_learned(ctx, cli, a, &learned, (double)(dh_now_ns() - start) * 1e-9);
    dh_learned_bpe_fini(&learned);
    return st;
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
static dh_status report(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a,
                        const dh_tokenizer *tok, const tally *t)
{
    double speed = t->seconds > 0 ? (double)t->tokens / t->seconds : 0;
    if (cli->json)
        return dh_cli_print_json(ctx, json_pack("{sI sI sf sf ss}", "tokens", (json_int_t)t->tokens,
                                                "vocab", (json_int_t)dh_tokenizer_vocab_size(tok),
                                                "seconds", t->seconds, "tokens_per_s", speed,
                                                "output", a->output ? a->output : ""));
    char took[32], rate[32];
    if (!cli->quiet)
        dh_cli_say("%lld tokens of a vocabulary of %d, %s, %s tokens/s%s%s", (long long)t->tokens,
                   dh_tokenizer_vocab_size(tok), dh_format_ns(took, sizeof took, t->seconds * 1e9),
                   dh_format_count(rate, sizeof rate, speed), a->output ? " -> " : "",
                   a->output ? a->output : "");
    return DH_OK;
}

static dh_status work(dh_ctx *ctx, const dh_cli *cli, const tokenize_args *a, dh_str *text)
{
    if (from_stdin(cli)) DH_TRY(read_stdin(ctx, text));
    dh_tokenizer *tok;
    DH_TRY(open_tokenizer(ctx, cli, a, text, &tok));
    tally t = {0};
    int64_t start = dh_now_ns();
    dh_status st = a->decode         ? decode(ctx, cli, a, tok, text, &t)
                   : from_stdin(cli) ? encode_text(ctx, a, tok, text, &t)
                                     : encode_files(ctx, cli, a, tok, &t);
    t.seconds = (double)(dh_now_ns() - start) * 1e-9;
    if (st == DH_OK) st = save_chars(ctx, a, tok);
    if (st == DH_OK) st = report(ctx, cli, a, tok, &t);
    dh_tokenizer_destroy(tok);
    return st;
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
    DH_TRY(check_texts(ctx, cli, a));
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
