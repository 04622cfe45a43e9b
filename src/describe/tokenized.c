/* Text to token ids, in a file or to whoever takes them; a tokenizer from texts. */
#include "describe/tokenized.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/stop.h"
#include "data/chat.h"
#include "data/dataset.h"
#include "data/train_bpe.h"
#include "train/inputs.h"

enum { READ_TOKENS = 1 << 16 };

/* ---- the tokenizer --------------------------------------------------------------------------- */

static bool is_chars(const dh_tokenize_input *in)
{
    return in->how->tokenizer && strcmp(in->how->tokenizer, "chars") == 0;
}

static dh_status open_tokenizer(dh_ctx *ctx, const dh_tokenize_input *in, dh_tokenizer **tok)
{
    const dh_describe_tokenize_options *how = in->how;
    if (!is_chars(in)) return dh_tokenizer_load(ctx, how->tokenizer, tok);
    if (how->text) return dh_tokenizer_chars_from_text(ctx, how->text, how->n_text, tok);
    return dh_dataset_chars(ctx, in->files, in->n_files, how->text_field, tok);
}

/* ---- what is written ------------------------------------------------------------------------ */

/* Empty: none is written. */
static dh_status chars_path(dh_ctx *ctx, const dh_tokenize_input *in, dh_str *path)
{
    if (!in->how->output || !is_chars(in)) return DH_OK;
    dh_str_printf(path, "%s.chars.json", in->how->output);
    return path->failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_status save_chars(dh_ctx *ctx, const dh_tokenize_input *in, const dh_tokenizer *tok)
{
    dh_str path = DH_STR_INIT;
    dh_status st = chars_path(ctx, in, &path);
    if (st == DH_OK && path.len > 0) st = dh_tokenizer_save_chars(ctx, tok, path.text);
    dh_str_fini(&path);
    return st;
}

static dh_status check_text(dh_ctx *ctx, void *user, const char *setting, const char *text)
{
    const dh_tokenize_input *in = user;
    dh_str path = DH_STR_INIT;
    (void)setting;
    dh_status st = dh_output_check(ctx, in->how->output, text, false);
    if (st == DH_OK) st = chars_path(ctx, in, &path);
    if (st == DH_OK) st = dh_output_check(ctx, path.len ? path.text : NULL, text, false);
    dh_str_fini(&path);
    return st;
}

/* The files of folders and patterns, and what is written beside the tokens. */
static dh_status check_texts(dh_ctx *ctx, const dh_tokenize_input *in)
{
    for (size_t i = 0; i < in->n_files; i++)
        DH_TRY(dh_each_text(ctx, "INPUT", in->files[i], check_text, (void *)(uintptr_t)in));
    return DH_OK;
}

/* ---- encoding ------------------------------------------------------------------------------- */

static dh_status encode_text(dh_ctx *ctx, const dh_tokenize_input *in, const dh_tokenizer *tok,
                             dh_tokenized *t)
{
    const dh_describe_tokenize_options *how = in->how;
    dh_ids ids = {0};
    dh_status st = dh_tokenizer_encode(ctx, tok, how->text, how->n_text,
                                       how->special_tokens ? DH_ENCODE_SPECIAL : 0, &ids);
    t->tokens = (int64_t)ids.n;
    if (st == DH_OK && in->sink) st = in->sink(ctx, in->self, ids.at, ids.n);
    if (st == DH_OK && how->output)
        st = dh_tokens_write_llmc(ctx, how->output, ids.at, ids.n, dh_tokenizer_vocab_size(tok));
    dh_vec_fini(&ids);
    return st;
}

static dh_status each_part(dh_ctx *ctx, const dh_dataset *ds, const dh_tokenize_input *in)
{
    int64_t total = dh_dataset_tokens(ds);
    int32_t *ids = malloc(READ_TOKENS * sizeof *ids);
    if (!ids) return dh_no_memory(ctx);
    dh_status st = DH_OK;
    for (int64_t at = 0; st == DH_OK && at < total; at += READ_TOKENS) {
        int64_t n = DH_MIN(total - at, READ_TOKENS);
        st = dh_heed_stop(ctx, "tokens were read");
        if (st == DH_OK) st = dh_dataset_read(ctx, ds, at, n, ids);
        if (st == DH_OK) st = in->sink(ctx, in->self, ids, (size_t)n);
    }
    free(ids);
    return st;
}

static dh_status find_chat(dh_ctx *ctx, const dh_describe_tokenize_options *how,
                           const dh_chat **chat)
{
    *chat = NULL;
    if (!how->chat_template) return DH_OK;
    if (strcmp(how->chat_template, "auto") == 0)
        return dh_chat_of_tokenizer(ctx, how->tokenizer, chat);
    return dh_chat_find(ctx, how->chat_template, chat);
}

static dh_status open_files(dh_ctx *ctx, const dh_tokenize_input *in, const dh_tokenizer *tok,
                            dh_dataset **ds)
{
    dh_dataset_spec spec = {.files = in->files,
                            .n_files = in->n_files,
                            .tokenizer = tok,
                            .text_field = in->how->text_field,
                            .special_tokens = in->how->special_tokens,
                            .order = DH_ORDER_SEQUENTIAL};
    DH_TRY(find_chat(ctx, in->how, &spec.chat));
    return dh_dataset_open(ctx, &spec, ds);
}

static dh_status encode_files(dh_ctx *ctx, const dh_tokenize_input *in, const dh_tokenizer *tok,
                              dh_tokenized *t)
{
    dh_dataset *ds;
    DH_TRY(open_files(ctx, in, tok, &ds));
    t->tokens = dh_dataset_tokens(ds);
    dh_status st = in->sink ? each_part(ctx, ds, in) : DH_OK;
    if (st == DH_OK && in->how->output)
        st = dh_dataset_write_llmc(ctx, ds, in->how->output, dh_tokenizer_vocab_size(tok));
    dh_dataset_close(ds);
    return st;
}

dh_status dh_tokenized_make(dh_ctx *ctx, const dh_tokenize_input *in, dh_tokenized *t)
{
    dh_tokenizer *tok;
    DH_TRY(check_texts(ctx, in));
    DH_TRY(open_tokenizer(ctx, in, &tok));
    *t = (dh_tokenized){.vocab = dh_tokenizer_vocab_size(tok)};
    const int64_t start = dh_now_ns();
    dh_status st = in->how->text ? encode_text(ctx, in, tok, t) : encode_files(ctx, in, tok, t);
    t->seconds = (double)(dh_now_ns() - start) * 1e-9;
    if (st == DH_OK) st = save_chars(ctx, in, tok);
    dh_tokenizer_destroy(tok);
    return st;
}

dh_status dh_tokens_each(dh_ctx *ctx, const dh_tokenize_input *in)
{
    dh_dataset *ds;
    DH_TRY(open_files(ctx, in, NULL, &ds));
    dh_status st = each_part(ctx, ds, in);
    dh_dataset_close(ds);
    return st;
}

double dh_tokenized_per_s(const dh_tokenized *t)
{
    return t->seconds > 0 ? (double)t->tokens / t->seconds : 0;
}

json_t *dh_tokenized_json(const dh_tokenize_input *in, const dh_tokenized *t)
{
    return json_pack("{sI sI sf sf ss}", "tokens", (json_int_t)t->tokens, "vocab",
                     (json_int_t)t->vocab, "seconds", t->seconds, "tokens_per_s",
                     dh_tokenized_per_s(t), "output", in->how->output ? in->how->output : "");
}

/* ---- learning ------------------------------------------------------------------------------- */

dh_status dh_tokenizer_learn(dh_ctx *ctx, const dh_tokenize_input *in, dh_learned *learned)
{
    const int64_t start = dh_now_ns();
    dh_learned_bpe bpe;
    DH_TRY(check_texts(ctx, in));
    DH_TRY(
        dh_bpe_learn(ctx, in->files, in->n_files, in->how->text_field, in->how->train_bpe, &bpe));
    dh_status st = dh_learned_bpe_save(ctx, &bpe, in->how->output);
    *learned = (dh_learned){.vocab = bpe.vocab.pieces.n,
                            .merges = bpe.merges.n,
                            .words = bpe.n_words,
                            .seconds = (double)(dh_now_ns() - start) * 1e-9};
    dh_learned_bpe_fini(&bpe);
    return st;
}

json_t *dh_learned_json(const dh_tokenize_input *in, const dh_learned *learned)
{
    return json_pack("{sI sI sI sf ss}", "vocab", (json_int_t)learned->vocab, "merges",
                     (json_int_t)learned->merges, "words", (json_int_t)learned->words, "seconds",
                     learned->seconds, "output", in->how->output);
}

/* ---- for callers ---------------------------------------------------------------------------- */

static dh_status add_ids(dh_ctx *ctx, void *self, const int32_t *ids, size_t n)
{
    json_t *list = json_object_get(self, "ids"), *learnt = json_object_get(self, "learnt"),
           *last = json_object_get(self, "last");
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        const int32_t id = learnt ? ids[i] & DH_TOKEN_ID : ids[i];
        ok = json_array_append_new(list, json_integer(id)) == 0;
        if (!learnt || !last) continue;
        ok = ok && json_array_append_new(learnt, json_boolean(!(ids[i] & DH_TOKEN_UNLEARNT))) == 0;
        ok = ok && json_array_append_new(last, json_boolean(ids[i] & DH_TOKEN_LAST)) == 0;
    }
    return ok ? DH_OK : dh_no_memory(ctx);
}

static dh_status check_input(dh_ctx *ctx, const dh_tokenize_input *in)
{
    const dh_describe_tokenize_options *how = in->how;
    if (!how->text == (in->n_files == 0))
        return dh_fail(ctx, DH_EINVAL, "a text or files: give one of them");
    if (how->train_bpe && (how->tokenizer || how->text || how->ids || how->chat_template))
        return dh_fail(ctx, DH_EINVAL,
                       "train_bpe makes a tokenizer from files: leave tokenizer, text, ids and "
                       "chat_template away");
    if (how->train_bpe && !how->output)
        return dh_fail(ctx, DH_EINVAL, "train_bpe needs output, the folder to write");
    if (!how->train_bpe && !how->tokenizer)
        return dh_fail(ctx, DH_EINVAL, "tokenizer is missing: bytes, chars or a path");
    if (how->chat_template && (how->output || how->special_tokens || how->text))
        return dh_fail(ctx, DH_EINVAL,
                       "chat_template is of files, and goes neither with output nor with "
                       "special_tokens: a token file cannot say which tokens are learnt");
    return DH_OK;
}

static dh_status describe_learned(dh_ctx *ctx, const dh_tokenize_input *in, json_t **document)
{
    dh_learned learned;
    DH_TRY(dh_tokenizer_learn(ctx, in, &learned));
    *document = dh_learned_json(in, &learned);
    return DH_OK;
}

static dh_status describe_ids(dh_ctx *ctx, dh_tokenize_input *in, json_t **document)
{
    json_t *lists = json_object();
    dh_tokenized t;
    if (in->how->ids) {
        *in = (dh_tokenize_input){in->files, in->n_files, in->how, add_ids, lists};
        json_object_set_new(lists, "ids", json_array());
        if (in->how->chat_template) {
            json_object_set_new(lists, "learnt", json_array());
            json_object_set_new(lists, "last", json_array());
        }
    }
    const dh_status st = dh_tokenized_make(ctx, in, &t);
    if (st == DH_OK) {
        *document = dh_tokenized_json(in, &t);
        if (*document) json_object_update(*document, lists);
    }
    json_decref(lists);
    return st;
}

dh_status dh_tokenized_describe(dh_ctx *ctx, const char *const *files, size_t n_files,
                                const dh_describe_tokenize_options *options, json_t **document)
{
    dh_tokenize_input in = {.files = files, .n_files = n_files, .how = options};
    DH_TRY(check_input(ctx, &in));
    return options->train_bpe ? describe_learned(ctx, &in, document)
                              : describe_ids(ctx, &in, document);
}
