/* dhelix eval: the loss of a trained model on given data. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "data/chat.h"
#include "data/dataset.h"
#include "train/run.h"
#include "train/session.h"
#include "train/trained.h"

typedef struct eval_args {
    dh_cli_list data;
    const char *tokenizer, *text_field, *base, *template;
    int64_t seq, batches, micro_batch, threads;
    int dtype;
    bool special;
} eval_args;

#define AT(field) .offset = offsetof(eval_args, field)

enum { LONGEST_DEFAULT = 1024 };

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

typedef struct result {
    double loss;
    int64_t sequences, tokens, bytes; /* bytes of their text; 0: not known */
} result;

/* ---- bytes of text ------------------------------------------------------------------------ */

/* The text of the tokens that were predicted; special tokens have none. */
static dh_status count_bytes(dh_ctx *ctx, const dh_dataset *ds, const dh_tokenizer *tok, result *r)
{
    enum { PART = 1 << 16 };
    int32_t *ids = malloc(PART * sizeof *ids);
    if (!ids) return dh_no_memory(ctx);
    dh_str text = DH_STR_INIT;
    dh_status st = DH_OK;
    for (int64_t at = 0; st == DH_OK && at < r->tokens; at += PART) {
        int64_t n = DH_MIN(r->tokens - at, PART);
        dh_str_clear(&text);
        st = dh_dataset_read(ctx, ds, at + 1, n, ids);
        if (st == DH_OK)
            st = dh_tokenizer_decode(ctx, tok, ids, (size_t)n, DH_DECODE_SKIP_SPECIAL, &text);
        r->bytes += (int64_t)text.len;
    }
    free(ids);
    dh_str_fini(&text);
    return st;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Conversations: the template, if there is one, and what rows with padding cannot be. */
static dh_status find_chat(dh_ctx *ctx, const eval_args *a, const dh_found *found,
                           const dh_chat **chat)
{
    *chat = NULL;
    if (!a->template) return DH_OK;
    if (found->model.n_experts > 0 || found->model.attention == DH_ATTENTION_LINEAR)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "--chat-template with %s: conversations are computed in rows with padding",
                       found->model.n_experts > 0 ? "a model of experts" : "linear attention");
    const char *tokenizer = a->tokenizer ? a->tokenizer : found->tokenizer.text;
    if (strcmp(a->template, "auto") != 0) return dh_chat_find(ctx, a->template, chat);
    return dh_found_chat(ctx, found, tokenizer, chat);
}

static void add_targets(void *user, int64_t n, int64_t n_targets)
{
    *(int64_t *)user += n_targets;
}

static dh_status measure(dh_ctx *ctx, const eval_args *a, const dh_found *found,
                         dh_trained_spec *spec, dh_dataset *ds, result *r)
{
    DH_TRY(dh_dataset_check(ctx, ds, spec->seq));
    int64_t windows = dh_dataset_windows(ds, spec->seq);
    spec->micro_batch = DH_MIN(a->micro_batch, windows);
    int64_t n = windows / spec->micro_batch;
    if (a->batches > 0) n = DH_MIN(n, a->batches);
    r->sequences = n * spec->micro_batch;
    const bool rows = dh_dataset_is_packed(ds);
    if (!rows) r->tokens = r->sequences * spec->seq;
    for (int64_t i = 0; rows && i < r->sequences; i++)
        DH_TRY(dh_dataset_lengths(ctx, ds, i, add_targets, &r->tokens));
    dh_session *session;
    DH_TRY(dh_found_session(ctx, found, spec, rows, &session));
    dh_batch_source source = dh_run_source(ds);
    dh_status st = dh_session_eval(ctx, session, &source, 0, n, &r->loss);
    dh_session_destroy(session);
    return st;
}

static dh_status evaluate_with(dh_ctx *ctx, const eval_args *a, const dh_found *found,
                               const dh_tokenizer *tok, dh_trained_spec *spec, result *r)
{
    dh_dataset_spec data = {.files = a->data.at,
                            .n_files = a->data.n,
                            .tokenizer = tok,
                            .text_field = a->text_field,
                            .special_tokens = a->special,
                            .vocab_size = found->model.vocab,
                            .order = DH_ORDER_SEQUENTIAL};
    dh_dataset *ds;
    DH_TRY(find_chat(ctx, a, found, &data.chat));
    DH_TRY(dh_dataset_open(ctx, &data, &ds));
    dh_status st = data.chat ? dh_dataset_pack_chats(ctx, ds, spec->seq, true) : DH_OK;
    if (st == DH_OK) st = measure(ctx, a, found, spec, ds, r);
    if (st == DH_OK && tok && !data.chat) st = count_bytes(ctx, ds, tok, r);
    dh_dataset_close(ds);
    return st;
}

static dh_status evaluate(dh_ctx *ctx, const eval_args *a, const dh_found *found,
                          dh_trained_spec *spec, result *r)
{
    spec->seq = a->seq > 0 ? a->seq : DH_MIN(found->model.max_seq, LONGEST_DEFAULT);
    dh_tokenizer *tok;
    DH_TRY(dh_found_tokenizer(ctx, found, spec, &tok));
    dh_status st = evaluate_with(ctx, a, found, tok, spec, r);
    dh_tokenizer_destroy(tok);
    return st;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* Total information in bits over the bytes it describes: comparable between tokenizers. */
static double bits_per_byte(const result *r)
{
    return r->loss / M_LN2 * (double)r->tokens / (double)r->bytes;
}

/* JSON has no number for a perplexity above what a double holds. */
static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static dh_status print(dh_ctx *ctx, const dh_cli *cli, const result *r)
{
    if (cli->json) {
        json_t *object =
            json_pack("{sf so sI sI}", "loss", r->loss, "perplexity", real_or_null(exp(r->loss)),
                      "sequences", (json_int_t)r->sequences, "tokens", (json_int_t)r->tokens);
        if (object && r->bytes > 0) {
            json_object_set_new(object, "bytes", json_integer((json_int_t)r->bytes));
            json_object_set_new(object, "bits_per_byte", json_real(bits_per_byte(r)));
        }
        return dh_cli_print_json(ctx, object);
    }
    dh_str out = DH_STR_INIT;
    dh_str_printf(&out, "loss           %.6f\nperplexity     %.4f\n", r->loss, exp(r->loss));
    if (r->bytes > 0) dh_str_printf(&out, "bits per byte  %.4f\n", bits_per_byte(r));
    dh_str_printf(&out, "tokens         %lld in %lld sequences\n", (long long)r->tokens,
                  (long long)r->sequences);
    return dh_cli_print_str(ctx, &out);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const eval_args *a = args;
    if (a->data.n == 0) return dh_cli_misuse(ctx, cli, "--data FILE... is missing");
    dh_trained_spec spec = {.path = cli->args.at[0],
                            .tokenizer = a->tokenizer,
                            .dtype = (dh_dtype)a->dtype,
                            .threads = a->threads};
    dh_found found;
    DH_TRY(dh_found_open(ctx, spec.path, a->base, &found));
    result r = {0};
    dh_status st = evaluate(ctx, a, &found, &spec, &r);
    dh_found_close(&found);
    return st == DH_OK ? print(ctx, cli, &r) : st;
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
