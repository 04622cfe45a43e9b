/* Trained models: found by path, loaded into a session, with their tokenizer. */
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/needs.h"
#include "base/stop.h"
#include "data/chat.h"
#include "train/session.h"
#include "train/trained.h"

/* TUNING: prompts are read in chunks of this many tokens; larger ones gain little,
 * since the GEMMs of 32 rows already reuse each weight from cache. */
enum { PREFILL_CHUNK = 32 };

/* ---- finding weights -------------------------------------------------------------------- */

static bool holds(const char *dir, const char *name)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", dir, name);
    bool there = !path.failed && dh_path_exists(path.text);
    dh_str_fini(&path);
    return there;
}

/* RUN of RUN/checkpoints/step-000123, NULL when out of memory or not there, errno says which. */
static char *run_of_checkpoint(const char *path)
{
    char *run = realpath(path, NULL);
    if (run) dirname(run);
    if (run) dirname(run);
    return run;
}

static dh_status find_weights(dh_ctx *ctx, const char *path, dh_found *found, char **run_dir)
{
    bool checkpoint = dh_path_is_dir(path) &&
                      (holds(path, "checkpoints") || holds(path, "manifest.json") ||
                       holds(path, "saved.json")); /* of a run whose checkpoints are gone */
    if (checkpoint) {
        /* With checksums, before it is believed. */
        DH_TRY(dh_ckpt_open(ctx, NULL, path, true, &found->ckpt));
        dh_str_printf(&found->path, "%s", dh_ckpt_path(found->ckpt));
        *run_dir = found->path.failed ? NULL : run_of_checkpoint(found->path.text);
        if (!found->path.failed && !*run_dir) /* its tokenizer would be missing, and nobody told */
            return dh_fail(ctx, DH_EIO, "cannot find the run folder of %s: %s", found->path.text,
                           strerror(errno));
    } else {
        dh_str_printf(&found->path, "%s", path);
    }
    return found->path.failed ? dh_no_memory(ctx) : DH_OK;
}

/* A setting of a checkpoint's run, by the checkpoint; NULL: not recorded, or no checkpoint. */
static const char *setting_of(const dh_found *found, const char *name)
{
    const dh_ckpt_state *state = found->ckpt ? dh_ckpt_get_state(found->ckpt) : NULL;
    for (size_t i = 0; state && i < state->n_settings; i++)
        if (strcmp(state->settings[i].name, name) == 0) return state->settings[i].value;
    return NULL;
}

/* Byte tokens need no file. A checkpoint of a run on texts knows that they are its tokenizer; else
 * a vocabulary of 256 says so, which nothing else has. */
static dh_status has_bytes(dh_ctx *ctx, const dh_found *found, bool *yes)
{
    const dh_ckpt_state *state = found->ckpt ? dh_ckpt_get_state(found->ckpt) : NULL;
    dh_tokenizer *bytes;
    *yes = found->model.vocab == 256;
    if (*yes || !state || !state->from_text) return DH_OK;
    DH_TRY(dh_tokenizer_load(ctx, "bytes", &bytes));
    *yes = strtoull(state->tokenizer_fingerprint, NULL, 16) ==
           (uint64_t)dh_tokenizer_fingerprint(bytes);
    dh_tokenizer_destroy(bytes);
    return DH_OK;
}

/* The base of a checkpoint's adapters is what it was. */
static dh_status check_base(dh_ctx *ctx, const dh_found *found)
{
    char hash[DH_WEIGHTS_HASH_TEXT], is[80];
    const char *was = setting_of(found, DH_BASE_SETTING);
    if (!was) return DH_OK;
    DH_TRY(dh_weights_hash(ctx, found->weights, hash));
    snprintf(is, sizeof is, DH_BASE_VALUE "%s", hash);
    if (strcmp(was, is) == 0) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "the adapters of %s were trained on %s, but %s has %s: it has changed, or it "
                   "is another model",
                   found->path.text, was, found->base.text, is);
}

static dh_status open_adapters(dh_ctx *ctx, const char *base, dh_found *found)
{
    dh_lora lora;
    DH_TRY(dh_adapter_read_config(ctx, found->path.text, &lora, &found->base));
    if (base) {
        dh_str_clear(&found->base);
        dh_str_printf(&found->base, "%s", base);
    }
    if (found->base.failed) return dh_no_memory(ctx);
    if (found->base.len == 0 || !dh_path_exists(found->base.text))
        return dh_fail(
            ctx, DH_EMISSING,
            "%s has adapters of \"%s\", which is no file or folder here: give the weights "
            "that they belong to by the option base",
            found->path.text, found->base.len ? found->base.text : "");
    DH_TRY(dh_weights_open(ctx, found->base.text, &found->weights));
    /* A run's own config.json is of the model as it was trained. */
    DH_TRY(holds(found->path.text, "config.json")
               ? dh_model_from_config_file(ctx, found->path.text, &found->model)
               : dh_weights_model(ctx, found->weights, &found->model));
    DH_TRY(check_base(ctx, found));
    found->model.lora = lora;
    if (dh_model_validate(ctx, &found->model) != DH_OK)
        return dh_ctx_while(ctx, "reading the adapters of %s", found->path.text);
    return dh_weights_join(ctx, found->weights, found->path.text);
}

static dh_status open_weights(dh_ctx *ctx, const char *base, dh_found *found)
{
    const char *path = found->path.text;
    if (dh_path_is_dir(path) && holds(path, DH_ADAPTER_CONFIG) && !holds(path, "model.safetensors"))
        return open_adapters(ctx, base, found);
    if (base)
        return dh_fail(
            ctx, DH_EINVAL,
            "the option base belongs to adapters: leave it out, since %s has no " DH_ADAPTER_CONFIG,
            path);
    DH_TRY(dh_weights_open(ctx, path, &found->weights));
    return dh_weights_model(ctx, found->weights, &found->model);
}

static dh_status open_found(dh_ctx *ctx, const char *path, const char *base, dh_found *found)
{
    char *run_dir = NULL;
    dh_status st = find_weights(ctx, path, found, &run_dir);
    if (st == DH_OK) st = dh_tokenizer_beside(ctx, found->path.text, run_dir, &found->tokenizer);
    free(run_dir);
    DH_TRY(st);
    DH_TRY(open_weights(ctx, base, found));
    if (dh_weights_fit(ctx, found->weights, &found->model, DH_FIT_ALL) != DH_OK)
        return dh_ctx_while(ctx, "reading %s", found->path.text);
    if (found->base.len > 0 && found->tokenizer.len == 0)
        DH_TRY(dh_tokenizer_beside(ctx, found->base.text, NULL, &found->tokenizer));
    bool bytes = false;
    if (found->tokenizer.len == 0) DH_TRY(has_bytes(ctx, found, &bytes));
    if (bytes) dh_str_printf(&found->tokenizer, "bytes");
    return found->tokenizer.failed ? dh_no_memory(ctx) : DH_OK;
}

dh_status dh_found_open(dh_ctx *ctx, const char *path, const char *base, dh_found *found)
{
    *found = (dh_found){0};
    dh_status st = open_found(ctx, path, base, found);
    if (st != DH_OK) dh_found_close(found);
    return st;
}

void dh_found_close(dh_found *found)
{
    dh_weights_close(found->weights);
    dh_ckpt_close(found->ckpt);
    dh_str_fini(&found->path);
    dh_str_fini(&found->base);
    dh_str_fini(&found->tokenizer);
    *found = (dh_found){0};
}

/* ---- tokenizer ------------------------------------------------------------------------------ */

static dh_status load_fitting(dh_ctx *ctx, const char *spec, const dh_model *model,
                              dh_tokenizer **tokenizer)
{
    dh_tokenizer *tok;
    DH_TRY(dh_tokenizer_load(ctx, spec, &tok));
    int64_t n = dh_tokenizer_vocab_size(tok);
    if (n <= model->vocab) { /* vocabularies are often padded */
        *tokenizer = tok;
        return DH_OK;
    }
    dh_tokenizer_destroy(tok);
    return dh_fail(ctx, DH_EINVAL,
                   "tokenizer %s has %lld tokens, the model's vocabulary %lld: it belongs to "
                   "another model",
                   spec, (long long)n, (long long)model->vocab);
}

/* A tokenizer that was asked for must do; one that only lies there need not. */
dh_status dh_found_tokenizer(dh_ctx *ctx, const dh_found *found, const dh_trained_spec *spec,
                             dh_tokenizer **tokenizer)
{
    if (spec->tokenizer) return load_fitting(ctx, spec->tokenizer, &found->model, tokenizer);
    *tokenizer = NULL;
    if (found->tokenizer.len == 0) return DH_OK;
    dh_ctx unfit = dh_ctx_like(ctx);
    const dh_status st = load_fitting(&unfit, found->tokenizer.text, &found->model, tokenizer);
    if (st == DH_EINTERRUPTED) return dh_fail(ctx, st, "%s", unfit.message);
    if (st != DH_OK)
        dh_log(DH_LOG_WARN, "going on without the tokenizer next to the weights: %s",
               unfit.message);
    return DH_OK;
}

dh_status dh_found_chat(dh_ctx *ctx, const dh_found *found, const char *tokenizer,
                        const dh_chat **chat)
{
    const char *format = setting_of(found, "data.format");
    const char *quoted = setting_of(found, "data.chat_template");
    char name[64];
    if (format && strcmp(format, "chat") == 0 && quoted &&
        sscanf(quoted, "\"%63[^\"]\"", name) == 1 && strcmp(name, "auto") != 0)
        return dh_chat_find(ctx, name, chat);
    if (tokenizer) return dh_chat_of_tokenizer(ctx, tokenizer, chat);
    return dh_fail(ctx, DH_EMISSING,
                   "the chat template is that of the tokenizer, and no tokenizer was found: name a "
                   "template, or give a tokenizer");
}

/* ---- session -------------------------------------------------------------------------------- */

/* Tokens of a text that is being made. The rotations of longrope depend on the text's length, and a
 * cache keeps keys as they were turned: such a text stays within the short factors. */
static int64_t context_of(const dh_model *m)
{
    return m->rope.scaling == DH_ROPE_SCALING_LONGROPE
               ? DH_MIN(m->max_seq, m->rope.original_max_seq)
               : m->max_seq;
}

dh_status dh_found_session(dh_ctx *ctx, const dh_found *found, const dh_trained_spec *spec,
                           bool documents, dh_session **session)
{
    const dh_model *model = &found->model;
    const int64_t longest = model->max_seq, context = context_of(model);
    const dh_device *device;
    DH_TRY(dh_device_get(ctx, "auto", &device));
    dh_session_spec wanted = {.device = device,
                              .recipe = {.model = *model,
                                         .dtype = spec->dtype,
                                         .micro_batch = spec->micro_batch,
                                         .seq = spec->seq,
                                         .documents = documents},
                              .eval = spec->seq > 0,
                              .decode = spec->decode,
                              .cache_len = context,
                              .prefill_chunk = DH_MIN(PREFILL_CHUNK, context)};
    if (spec->seq > longest)
        return dh_fail(
            ctx, DH_EINVAL,
            "a sequence of %lld tokens is longer than the model's longest, %lld: shorten "
            "it",
            (long long)spec->seq, (long long)longest);
    int n_threads;
    DH_TRY(wanted.device->bind_rank(ctx, 0, 1, spec->threads, &n_threads));
    dh_session *s;
    DH_TRY(dh_session_create(ctx, &wanted, &s));
    dh_status st = dh_session_load_params(ctx, s, found->weights);
    if (st == DH_OK)
        *session = s;
    else
        dh_session_destroy(s);
    return st;
}

dh_status dh_trained_open(dh_ctx *ctx, const dh_trained_spec *spec, dh_trained *trained)
{
    DH_NEEDS(ctx, spec);
    DH_NEEDS(ctx, spec->path);
    DH_NEEDS(ctx, trained);
    dh_found found;
    DH_TRY(dh_found_open(ctx, spec->path, spec->base, &found));
    dh_trained t = {0};
    dh_status st = dh_found_tokenizer(ctx, &found, spec, &t.tokenizer);
    dh_ctx unknown = DH_CTX_INIT;
    const char *files = spec->tokenizer ? spec->tokenizer : found.tokenizer.text;
    if (dh_found_chat(&unknown, &found, files, &t.chat) != DH_OK) t.chat = NULL;
    t.of_run = found.ckpt != NULL;
    if (st == DH_OK) st = dh_found_session(ctx, &found, spec, false, &t.session);
    if (st == DH_OK)
        *trained = t;
    else
        dh_trained_close(&t);
    dh_found_close(&found);
    return st;
}

void dh_trained_close(dh_trained *trained)
{
    if (!trained) return;
    dh_session_destroy(trained->session);
    dh_tokenizer_destroy(trained->tokenizer);
    *trained = (dh_trained){0};
}

int64_t dh_trained_vocab(const dh_trained *trained)
{
    return trained->session->spec.recipe.model.vocab;
}
