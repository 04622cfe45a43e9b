/* Generation: read the prompt, then draw a token, show it, feed it back. */
#include "dhelix/generate.h"
#include "base/needs.h"
#include "base/stop.h"
#include "data/chat.h"
#include "train/session.h"

#include <stdlib.h>
#include <string.h>

/* ---- the prompt ----------------------------------------------------------------------- */

/* GPT-2's only special token both ends and starts texts; it is no prefix of prompts. */
static bool has_bos_of_its_own(const dh_tokenizer *tok)
{
    int32_t bos = dh_tokenizer_bos(tok);
    return bos >= 0 && bos != dh_tokenizer_eos(tok);
}

/* Push the token with which an empty prompt starts. */
static dh_status push_start(dh_ctx *ctx, const dh_tokenizer *tok, dh_ids *ids)
{
    int32_t id = dh_tokenizer_bos(tok) >= 0 ? dh_tokenizer_bos(tok) : dh_tokenizer_eos(tok);
    if (id >= 0) return dh_vec_push(ids, id) ? DH_OK : dh_no_memory(ctx);
    dh_ctx unknown = DH_CTX_INIT;
    if (dh_tokenizer_encode(&unknown, tok, "\n", 1, 0, ids) == DH_OK && ids->n > 0) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "the tokenizer has no token to start a text with: give a prompt");
}

/* A message, and where its answer begins: nothing of it is shown. */
static dh_status read_message(dh_ctx *ctx, const dh_trained *trained, const dh_generate_spec *spec,
                              const dh_chat *chat, dh_ids *ids)
{
    dh_chat_messages list = {0};
    dh_encoder *enc = NULL;
    const dh_chat_message said[] = {
        {DH_CHAT_SYSTEM, spec->system, spec->system ? strlen(spec->system) : 0, false},
        {DH_CHAT_USER, spec->prompt ? spec->prompt : "", spec->n_prompt, false}};
    bool ok = !spec->system || dh_vec_push(&list, said[0]);
    ok = ok && dh_vec_push(&list, said[1]);
    dh_status st = ok ? dh_chat_check(ctx, chat, trained->tokenizer) : dh_no_memory(ctx);
    if (st == DH_OK) st = dh_encoder_create(ctx, trained->tokenizer, &enc);
    if (st == DH_OK) st = dh_chat_encode(ctx, chat, trained->tokenizer, enc, &list, true, ids);
    for (size_t i = 0; i < ids->n; i++) ids->at[i] &= DH_TOKEN_ID;
    dh_encoder_destroy(enc);
    dh_vec_fini(&list);
    return st;
}

static dh_status find_template(dh_ctx *ctx, const dh_trained *trained, const char *name,
                               const dh_chat **chat)
{
    if (strcmp(name, "auto") != 0) return dh_chat_find(ctx, name, chat);
    *chat = trained->chat;
    if (*chat) return DH_OK;
    return dh_fail(ctx, DH_EMISSING,
                   "the tokenizer comes with no chat_template that is known: name a template "
                   "(`dhelix help job`, data.chat_template)");
}

static bool begins_with_bos(const dh_trained *trained, const dh_generate_spec *spec)
{
    if (!has_bos_of_its_own(trained->tokenizer) || spec->bos == DH_BOS_NEVER) return false;
    return spec->bos == DH_BOS_ALWAYS || !trained->of_run;
}

/* Tokens to read; the first *n_silent of them leave no text. */
static dh_status read_prompt(dh_ctx *ctx, const dh_trained *trained, const dh_generate_spec *spec,
                             const dh_chat *chat, dh_ids *ids, size_t *n_silent)
{
    const dh_tokenizer *tok = trained->tokenizer;
    if (chat) {
        DH_TRY(read_message(ctx, trained, spec, chat, ids));
        *n_silent = ids->n;
        return DH_OK;
    }
    *n_silent = 1;
    if (spec->n_prompt == 0) return push_start(ctx, tok, ids);
    unsigned flags = begins_with_bos(trained, spec) ? DH_ENCODE_BOS : 0;
    if (!flags) *n_silent = 0;
    if (spec->special_tokens) flags |= DH_ENCODE_SPECIAL;
    return dh_tokenizer_encode(ctx, tok, spec->prompt, spec->n_prompt, flags, ids);
}

/* ---- showing -------------------------------------------------------------------------- */

static dh_status emit_token(dh_ctx *ctx, const dh_tokenizer *tok, const dh_generate_spec *spec,
                            int32_t prev, int32_t id)
{
    size_t n;
    const char *bytes = dh_tokenizer_piece(tok, prev, id, &n);
    /* A model's vocabulary may be padded beyond the tokenizer's. */
    return bytes && n > 0 ? spec->emit(ctx, spec->self, bytes, n) : DH_OK;
}

static dh_status emit_prompt(dh_ctx *ctx, const dh_tokenizer *tok, const dh_generate_spec *spec,
                             const dh_ids *ids, size_t n_silent)
{
    for (size_t i = n_silent; i < ids->n; i++)
        DH_TRY(emit_token(ctx, tok, spec, i > 0 ? ids->at[i - 1] : -1, ids->at[i]));
    return DH_OK;
}

/* ---- the loop ------------------------------------------------------------------------- */

/* A text in the making. */
typedef struct text {
    const dh_trained *trained;
    const dh_generate_spec *spec;
    dh_ids *ids;    /* prompt and new tokens */
    int64_t origin; /* begin of the context: ids->at[origin] is at position 0 */
    int32_t end;    /* the token that ends an answer; -1: only BOS and EOS */
    int64_t n_read; /* tokens of ids the session has seen */
    const float *logits;
} text;

static int64_t context(const text *t)
{
    return t->trained->session->spec.cache_len;
}

/* A long prompt takes seconds: a request to stop is looked for before each piece of it. Where there
 * was one, fewer tokens than there are have been read. */
static dh_status read_new(dh_ctx *ctx, text *t)
{
    dh_session *session = t->trained->session;
    const int64_t n = (int64_t)t->ids->n, chunk = DH_MAX(session->spec.prefill_chunk, 1);
    while (t->n_read < n && !dh_stop_asked(t->spec->stop ? t->spec->stop : ctx->stop)) {
        const int64_t piece = n - t->n_read >= chunk ? chunk : 1;
        DH_TRY(dh_session_decode(ctx, session, t->ids->at + t->n_read, piece, t->n_read - t->origin,
                                 &t->logits));
        t->n_read += piece;
    }
    return DH_OK;
}

static bool is_full(const text *t)
{
    return (int64_t)t->ids->n - t->origin > context(t);
}

/* Positions are part of what the cache holds, so what stays is read again. */
static void forget_older_half(text *t)
{
    t->origin = t->n_read = (int64_t)t->ids->n - DH_MAX(context(t) / 2, 1);
}

static bool ends_text(const dh_tokenizer *tok, int32_t id)
{
    return id >= 0 && (id == dh_tokenizer_bos(tok) || id == dh_tokenizer_eos(tok));
}

static dh_status draw_token(dh_ctx *ctx, text *t, bool *ended)
{
    const dh_tokenizer *tok = t->trained->tokenizer;
    int32_t prev = t->ids->at[t->ids->n - 1];
    int32_t id;
    dh_status st = dh_sampler_next(ctx, t->spec->sampler, t->logits, &id);
    if (st != DH_OK) return dh_ctx_while(ctx, "drawing token %zu of the text", t->ids->n + 1);
    *ended = ends_text(tok, id) || (t->end >= 0 && id == t->end);
    if (!dh_vec_push(t->ids, id)) return dh_no_memory(ctx);
    return *ended ? DH_OK : emit_token(ctx, tok, t->spec, prev, id);
}

static dh_status draw_text(dh_ctx *ctx, text *t, dh_generate_result *result)
{
    const dh_generate_spec *spec = t->spec;
    result->end = DH_GENERATE_LENGTH;
    while (result->n_new < spec->max_tokens) {
        if (is_full(t) && !spec->slide) {
            result->end = DH_GENERATE_CONTEXT;
            return DH_OK;
        }
        if (is_full(t)) forget_older_half(t);
        DH_TRY(read_new(ctx, t));
        if (t->n_read < (int64_t)t->ids->n || dh_stop_asked(spec->stop ? spec->stop : ctx->stop)) {
            result->end = DH_GENERATE_STOPPED;
            return DH_OK;
        }
        bool ended = false;
        DH_TRY(draw_token(ctx, t, &ended));
        result->n_new++;
        if (ended) {
            result->end = DH_GENERATE_EOS;
            return DH_OK;
        }
    }
    return DH_OK;
}

static dh_status generate(dh_ctx *ctx, const dh_trained *trained, const dh_generate_spec *spec,
                          dh_ids *ids, dh_generate_result *result)
{
    size_t n_silent;
    const dh_chat *chat = NULL;
    text t = {.trained = trained, .spec = spec, .ids = ids, .end = -1};
    if (spec->chat) DH_TRY(find_template(ctx, trained, spec->chat, &chat));
    DH_TRY(read_prompt(ctx, trained, spec, chat, ids, &n_silent));
    if (chat) t.end = dh_chat_end(chat, trained->tokenizer);
    result->n_prompt = (int64_t)ids->n;
    if (result->n_prompt > context(&t))
        return dh_fail(ctx, DH_EINVAL,
                       "the prompt has %lld tokens; the model's context holds %lld%s",
                       (long long)result->n_prompt, (long long)context(&t),
                       context(&t) < trained->session->spec.recipe.model.max_seq
                           ? " here: sampling stays within model.rope_original_max_seq"
                           : "");
    DH_TRY(emit_prompt(ctx, trained->tokenizer, spec, ids, n_silent));
    int64_t start = dh_now_ns();
    DH_TRY(read_new(ctx, &t));
    int64_t read = dh_now_ns();
    dh_status st = draw_text(ctx, &t, result);
    result->prompt_s = (double)(read - start) * 1e-9;
    result->new_s = (double)(dh_now_ns() - read) * 1e-9;
    return st;
}

enum { MOST_TOKENS = 1000000000 };

dh_status dh_generate(dh_ctx *ctx, const dh_trained *trained, const dh_generate_spec *spec,
                      dh_generate_result *result)
{
    DH_NEEDS(ctx, trained);
    DH_NEEDS(ctx, spec);
    DH_NEEDS(ctx, spec->sampler);
    DH_NEEDS(ctx, spec->emit);
    DH_NEEDS_LIST(ctx, spec->prompt, spec->n_prompt);
    if (!trained->tokenizer)
        return dh_fail(
            ctx, DH_EINVAL,
            "generating text needs a tokenizer: none was given, and none that can be read is "
            "next to the weights");
    if (spec->max_tokens < 0 || spec->max_tokens > MOST_TOKENS)
        return dh_fail(ctx, DH_EINVAL, "a text of %lld tokens: 0 to %d would be right",
                       (long long)spec->max_tokens, MOST_TOKENS);
    dh_ids ids = {0};
    dh_generate_result unasked;
    if (!result) result = &unasked;
    *result = (dh_generate_result){0};
    dh_status st = generate(ctx, trained, spec, &ids, result);
    dh_vec_fini(&ids);
    return st;
}
