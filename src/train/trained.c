/* Trained models: found by path, loaded into a session, with their tokenizer. */
#include <libgen.h>
#include <stdlib.h>
#include <string.h>

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

/* RUN of RUN/checkpoints/step-000123, NULL when out of memory or not there. */
static char *run_of_checkpoint(const char *path)
{
    char *run = realpath(path, NULL);
    if (run) dirname(run);
    if (run) dirname(run);
    return run;
}

static dh_status find_weights(dh_ctx *ctx, const char *path, dh_found *found, char **run_dir)
{
    bool checkpoint =
        dh_path_is_dir(path) && (holds(path, "checkpoints") || holds(path, "manifest.json"));
    if (checkpoint) {
        /* With checksums, before it is believed. */
        DH_TRY(dh_ckpt_open(ctx, NULL, path, true, &found->ckpt));
        dh_str_printf(&found->path, "%s", dh_ckpt_path(found->ckpt));
        *run_dir = found->path.failed ? NULL : run_of_checkpoint(found->path.text);
    } else {
        dh_str_printf(&found->path, "%s", path);
    }
    return found->path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory for a path") : DH_OK;
}

static dh_status open_found(dh_ctx *ctx, const char *path, dh_found *found)
{
    char *run_dir = NULL;
    dh_status st = find_weights(ctx, path, found, &run_dir);
    if (st == DH_OK) st = dh_tokenizer_beside(ctx, found->path.text, run_dir, &found->tokenizer);
    free(run_dir);
    DH_TRY(st);
    DH_TRY(dh_weights_open(ctx, found->path.text, &found->weights));
    DH_TRY(dh_weights_model(ctx, found->weights, &found->model));
    /* Byte tokens need no file, and nothing else has a vocabulary of 256. */
    if (found->tokenizer.len == 0 && found->model.vocab == 256)
        dh_str_printf(&found->tokenizer, "bytes");
    return DH_OK;
}

dh_status dh_found_open(dh_ctx *ctx, const char *path, dh_found *found)
{
    *found = (dh_found){0};
    dh_status st = open_found(ctx, path, found);
    if (st != DH_OK) dh_found_close(found);
    return st;
}

void dh_found_close(dh_found *found)
{
    dh_weights_close(found->weights);
    dh_ckpt_close(found->ckpt);
    dh_str_fini(&found->path);
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
    dh_ctx unfit = DH_CTX_INIT;
    if (load_fitting(&unfit, found->tokenizer.text, &found->model, tokenizer) != DH_OK)
        dh_log(DH_LOG_WARN, "going on without the tokenizer beside the weights: %s", unfit.message);
    return DH_OK;
}

/* ---- session -------------------------------------------------------------------------------- */

dh_status dh_found_session(dh_ctx *ctx, const dh_found *found, const dh_trained_spec *spec,
                           dh_session **session)
{
    const dh_model *model = &found->model;
    const int64_t longest = model->max_seq;
    const dh_device *device;
    DH_TRY(dh_device_get(ctx, "auto", &device));
    dh_session_spec wanted = {.device = device,
                              .recipe = {.model = *model,
                                         .dtype = spec->dtype,
                                         .micro_batch = spec->micro_batch,
                                         .seq = spec->seq},
                              .eval = spec->seq > 0,
                              .decode = spec->decode,
                              .cache_len = longest,
                              .prefill_chunk = DH_MIN(PREFILL_CHUNK, longest)};
    if (spec->seq > longest)
        return dh_fail(ctx, DH_EINVAL,
                       "a sequence of %lld tokens is longer than the model's longest, %lld",
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
    dh_found found;
    DH_TRY(dh_found_open(ctx, spec->path, &found));
    dh_trained t = {0};
    dh_status st = dh_found_tokenizer(ctx, &found, spec, &t.tokenizer);
    if (st == DH_OK) st = dh_found_session(ctx, &found, spec, &t.session);
    if (st == DH_OK)
        *trained = t;
    else
        dh_trained_close(&t);
    dh_found_close(&found);
    return st;
}

void dh_trained_close(dh_trained *trained)
{
    dh_session_destroy(trained->session);
    dh_tokenizer_destroy(trained->tokenizer);
    *trained = (dh_trained){0};
}

int64_t dh_trained_vocab(const dh_trained *trained)
{
    return trained->session->spec.recipe.model.vocab;
}
