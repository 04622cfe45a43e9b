/* The loss of a trained model on given data. */
#include "describe/evaluated.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "data/chat.h"
#include "data/dataset.h"
#include "train/run.h"
#include "train/session.h"
#include "train/trained.h"

enum { LONGEST_DEFAULT = 1024 };

/* ---- bytes of text ------------------------------------------------------------------------ */

/* The text of the tokens that were predicted; special tokens have none. */
static dh_status count_bytes(dh_ctx *ctx, const dh_dataset *ds, const dh_tokenizer *tok,
                             dh_evaluated *r)
{
    enum { PART = 1 << 16 };
    int32_t *ids = malloc(PART * sizeof *ids);
    if (!ids) return dh_no_memory(ctx);
    dh_str text = DH_STR_INIT;
    dh_status st = DH_OK;
    for (int64_t at = 0; st == DH_OK && at < r->tokens; at += PART) {
        int64_t n = DH_MIN(r->tokens - at, PART);
        dh_str_clear(&text);
        st = dh_heed_stop(ctx, "bytes of tokens were counted");
        if (st == DH_OK) st = dh_dataset_read(ctx, ds, at + 1, n, ids);
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
static dh_status find_chat(dh_ctx *ctx, const dh_describe_eval_options *a, const dh_found *found,
                           const dh_chat **chat)
{
    *chat = NULL;
    if (!a->chat_template) return DH_OK;
    if (found->model.n_experts > 0 || found->model.attention == DH_ATTENTION_LINEAR)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "a chat template with %s: conversations are computed in rows with padding, which "
            "it does not take",
            found->model.n_experts > 0 ? "a model of experts" : "linear attention");
    const char *tokenizer = a->tokenizer ? a->tokenizer : found->tokenizer.text;
    if (strcmp(a->chat_template, "auto") != 0) return dh_chat_find(ctx, a->chat_template, chat);
    return dh_found_chat(ctx, found, tokenizer, chat);
}

static void add_targets(void *user, int64_t n, int64_t n_targets)
{
    *(int64_t *)user += n_targets;
}

static dh_status measure(dh_ctx *ctx, const dh_describe_eval_options *a, const dh_found *found,
                         dh_trained_spec *spec, dh_dataset *ds, dh_evaluated *r)
{
    DH_TRY(dh_dataset_check(ctx, ds, spec->seq));
    int64_t windows = dh_dataset_windows(ds, spec->seq);
    spec->micro_batch = DH_MIN(DH_MAX(a->micro_batch, 1), windows);
    int64_t n = windows / spec->micro_batch;
    if (a->batches > 0) n = DH_MIN(n, a->batches);
    r->sequences = n * spec->micro_batch;
    const bool rows = dh_dataset_is_packed(ds);
    if (!rows) r->tokens = r->sequences * spec->seq;
    for (int64_t i = 0; rows && i < r->sequences; i++)
        DH_TRY(dh_dataset_lengths(ctx, ds, i, add_targets, &r->tokens));
    dh_session *session;
    dh_progress progress;
    DH_TRY(dh_found_session(ctx, found, spec, rows, &session));
    dh_batch_source source = dh_run_source(ds);
    dh_progress_start(&progress, 0, n, 1, !a->progress);
    dh_status st = dh_session_eval(ctx, session, &source, 0, n, &progress, &r->loss);
    dh_progress_clear(&progress);
    dh_session_destroy(session);
    return st;
}

static dh_status evaluate_with(dh_ctx *ctx, const dh_describe_eval_options *a,
                               const dh_found *found, const dh_tokenizer *tok,
                               dh_trained_spec *spec, dh_evaluated *r)
{
    dh_dataset_spec data = {.files = a->data,
                            .n_files = a->n_data,
                            .tokenizer = tok,
                            .text_field = a->text_field,
                            .special_tokens = a->special_tokens,
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

static dh_status evaluate(dh_ctx *ctx, const dh_describe_eval_options *a, const dh_found *found,
                          dh_trained_spec *spec, dh_evaluated *r)
{
    spec->seq = a->seq > 0 ? a->seq : DH_MIN(found->model.max_seq, LONGEST_DEFAULT);
    dh_tokenizer *tok;
    DH_TRY(dh_found_tokenizer(ctx, found, spec, &tok));
    dh_status st = evaluate_with(ctx, a, found, tok, spec, r);
    dh_tokenizer_destroy(tok);
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static dh_status check_range(dh_ctx *ctx, const char *what, int64_t value, int64_t most)
{
    if (value >= 0 && value <= most) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "%s: %lld; 0 to %lld would be right", what, (long long)value,
                   (long long)most);
}

static dh_status check_options(dh_ctx *ctx, const dh_describe_eval_options *a)
{
    if (a->n_data == 0) return dh_fail(ctx, DH_EINVAL, "data: no files; name those to evaluate on");
    if (a->dtype != DH_F32 && a->dtype != DH_BF16)
        return dh_fail(ctx, DH_EINVAL, "dtype: unknown; f32 or bf16 would be right");
    DH_TRY(check_range(ctx, "seq", a->seq, INT32_MAX));
    DH_TRY(check_range(ctx, "batches", a->batches, INT64_MAX));
    DH_TRY(check_range(ctx, "micro_batch", a->micro_batch, 1 << 20));
    return check_range(ctx, "threads", a->threads, 4096);
}

dh_status dh_evaluated_make(dh_ctx *ctx, const char *path, const dh_describe_eval_options *options,
                            dh_evaluated *evaluated)
{
    DH_TRY(check_options(ctx, options));
    *evaluated = (dh_evaluated){0};
    dh_trained_spec spec = {.path = path,
                            .tokenizer = options->tokenizer,
                            .dtype = options->dtype,
                            .threads = options->threads};
    dh_found found;
    DH_TRY(dh_found_open(ctx, path, options->base, &found));
    const dh_status st = evaluate(ctx, options, &found, &spec, evaluated);
    dh_found_close(&found);
    return st;
}

/* ---- as JSON -------------------------------------------------------------------------------- */

/* Total information in bits over the bytes it describes: comparable between tokenizers. */
double dh_evaluated_bits_per_byte(const dh_evaluated *r)
{
    return r->loss / M_LN2 * (double)r->tokens / (double)r->bytes;
}

/* JSON has no number for a perplexity above what a double holds. */
static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *dh_evaluated_json(const dh_evaluated *r)
{
    json_t *object =
        json_pack("{sf so sI sI}", "loss", r->loss, "perplexity", real_or_null(exp(r->loss)),
                  "sequences", (json_int_t)r->sequences, "tokens", (json_int_t)r->tokens);
    if (object && r->bytes > 0) {
        json_object_set_new(object, "bytes", json_integer((json_int_t)r->bytes));
        json_object_set_new(object, "bits_per_byte", json_real(dh_evaluated_bits_per_byte(r)));
    }
    return object;
}
