/* A job's tokenizer and datasets, and what a run folder keeps of them. */
#include <stdlib.h>
#include <string.h>

#include "base/needs.h"
#include "data/chat.h"
#include "train/recipe.h"
#include "train/run.h"
#include "train/trained.h"

/* ---- tokenizer ---------------------------------------------------------------------- */

static dh_status run_path(dh_ctx *ctx, const dh_job *job, const char *name, dh_str *path)
{
    dh_str_printf(path, "%s/%s", job->out_dir, name);
    return path->failed ? dh_no_memory(ctx) : DH_OK;
}

/* Every character of training and validation texts, as nanoGPT does. */
static dh_status chars_of_texts(dh_ctx *ctx, const dh_job *job, dh_tokenizer **tok)
{
    size_t n = job->n_train_files + job->n_val_files;
    const char **files = calloc(n + 1, sizeof *files);
    if (!files) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++)
        files[i] =
            i < job->n_train_files ? job->train_files[i] : job->val_files[i - job->n_train_files];
    dh_status st = dh_dataset_chars(ctx, files, n, job->text_field, tok);
    free(files);
    return st;
}

/* A run that is continued keeps the ids it began with. */
static dh_status open_chars(dh_ctx *ctx, const dh_job *job, bool fresh, dh_tokenizer **tok)
{
    dh_str saved = DH_STR_INIT;
    DH_TRY(run_path(ctx, job, DH_CHARS_FILE, &saved));
    dh_status st = !fresh && dh_path_exists(saved.text) ? dh_tokenizer_load(ctx, saved.text, tok)
                                                        : chars_of_texts(ctx, job, tok);
    dh_str_fini(&saved);
    return st;
}

static bool is(const dh_job *job, const char *name)
{
    return strcmp(job->tokenizer, name) == 0;
}

static dh_status open_tokenizer(dh_ctx *ctx, const dh_job *job, bool fresh, dh_tokenizer **tok)
{
    if (is(job, "chars")) return open_chars(ctx, job, fresh, tok);
    if (is(job, "gpt2"))
        return dh_fail(ctx, DH_EMISSING,
                       "GPT-2's tokenizer is read from its files: set "
                       "data.tokenizer to the folder that holds encoder.json and "
                       "vocab.bpe, or tokenizer.json");
    return dh_tokenizer_load(ctx, job->tokenizer, tok);
}

/* Bytes are the default, which files of ready tokens leave unused: their ids count, and are
 * checked as they are read. */
static dh_status check_fits(dh_ctx *ctx, const dh_job *job, const dh_tokenizer *tok)
{
    const int64_t n = dh_tokenizer_vocab_size(tok), vocab = job->model.vocab;
    if (vocab == 0 || n <= vocab || is(job, "bytes")) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "model.vocab is %lld, but tokenizer %s has %lld tokens: set model.vocab=auto or "
                   "at least %lld",
                   (long long)vocab, job->tokenizer, (long long)n, (long long)n);
}

static dh_status open_fitting(dh_ctx *ctx, const dh_job *job, bool fresh, dh_tokenizer **tokenizer)
{
    dh_tokenizer *tok;
    dh_status st = open_tokenizer(ctx, job, fresh, &tok);
    if (st != DH_OK)
        return dh_ctx_while(ctx, is(job, "chars") ? "reading the characters of data.train"
                                                  : "opening data.tokenizer");
    st = check_fits(ctx, job, tok);
    if (st == DH_OK)
        *tokenizer = tok;
    else
        dh_tokenizer_destroy(tok);
    return st;
}

dh_status dh_train_tokenizer(dh_ctx *ctx, const dh_job *job, dh_tokenizer **tokenizer)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, tokenizer);
    return open_fitting(ctx, job, false, tokenizer);
}

dh_status dh_job_vocab(dh_ctx *ctx, const dh_job *job, const dh_tokenizer *tokenizer,
                       int64_t *vocab)
{
    dh_tokenizer *own = NULL;
    *vocab = job->model.vocab;
    if (*vocab > 0) return DH_OK;
    if (!tokenizer) DH_TRY(dh_train_tokenizer(ctx, job, &own));
    *vocab = dh_tokenizer_vocab_size(own ? own : tokenizer);
    dh_tokenizer_destroy(own);
    return DH_OK;
}

dh_status dh_run_open_tokenizer(dh_ctx *ctx, dh_run *run)
{
    return open_fitting(ctx, run->job, run->options->fresh, &run->tokenizer);
}

/* ---- datasets -------------------------------------------------------------------------- */

/* Of conversations: the template that the job names, or the tokenizer's. */
static dh_status find_chat(dh_ctx *ctx, const dh_job *job, const dh_chat **chat)
{
    *chat = NULL;
    if (job->format != DH_FORMAT_CHAT) return DH_OK;
    if (strcmp(job->chat_template, "auto") != 0) return dh_chat_find(ctx, job->chat_template, chat);
    DH_TRY(dh_chat_of_tokenizer(ctx, job->tokenizer, chat));
    dh_log(DH_LOG_INFO,
           "conversations by template %s, whose marks the tokenizer's chat_template has",
           (*chat)->name);
    return DH_OK;
}

static dh_status dataset_spec(dh_ctx *ctx, const dh_run *run, dh_dataset_spec *spec)
{
    const dh_job *job = run->job;
    *spec = (dh_dataset_spec){.files = (const char *const *)job->train_files,
                              .n_files = job->n_train_files,
                              .tokenizer = run->tokenizer,
                              .text_field = job->text_field,
                              .special_tokens = job->special_tokens,
                              .documents = job->packing != DH_PACKING_NONE,
                              .cache_dir = job->data_cache,
                              .part = DH_PART_ALL,
                              .val_fraction = job->val_fraction,
                              .vocab_size = job->model.vocab,
                              .order = job->order,
                              .seed = job->seed};
    return find_chat(ctx, job, &spec->chat);
}

/* The tail of the training data is kept apart even by runs that do not look at it,
 * so that changing eval.every does not change what is learnt. */
static bool splits(const dh_job *job)
{
    return job->n_val_files == 0 && job->val_fraction > 0;
}

/* "7,2,1" as numbers, in the job's arena; NULL: none are set. */
static dh_status read_shares(dh_ctx *ctx, const dh_job *job, const int64_t **shares)
{
    *shares = NULL;
    if (!*job->data_weights) return DH_OK;
    int64_t *list = DH_NEW_N(job->arena, int64_t, job->n_train_files + 1);
    size_t n = 0;
    if (!list) return dh_no_memory(ctx);
    for (char *at = job->data_weights; *at; at += *at == ',', n++) {
        const int64_t share = strtoll(at, &at, 10);
        if (n < job->n_train_files) list[n] = share;
    }
    if (n != job->n_train_files)
        return dh_fail(
            ctx, DH_EINVAL,
            "data.weights has %zu entries (%s), data.train %zu: one weight for each file, "
            "folder or pattern would be right",
            n, job->data_weights, job->n_train_files);
    *shares = list;
    return DH_OK;
}

/* As the job wants its sequences: windows of the stream, or rows of documents. */
static dh_status open_rows(dh_ctx *ctx, const dh_run *run, const dh_dataset_spec *spec,
                           dh_dataset **ds)
{
    const dh_job *job = run->job;
    DH_TRY(dh_dataset_open(ctx, spec, ds));
    if (spec->chat)
        return dh_dataset_pack_chats(ctx, *ds, job->seq_len, job->packing == DH_PACKING_NONE);
    if (job->packing == DH_PACKING_NONE) return DH_OK;
    const int32_t eos = run->tokenizer ? dh_tokenizer_eos(run->tokenizer) : -1;
    return dh_dataset_pack(ctx, *ds, job->seq_len, eos);
}

dh_status dh_run_open_train(dh_ctx *ctx, dh_run *run)
{
    dh_dataset_spec spec;
    DH_TRY(dataset_spec(ctx, run, &spec));
    DH_TRY(read_shares(ctx, run->job, &spec.shares));
    if (spec.n_files == 0)
        return dh_fail(ctx, DH_EINVAL, "data.train is not set: name the files to train on");
    if (splits(run->job)) spec.part = DH_PART_TRAIN;
    const dh_status st = open_rows(ctx, run, &spec, &run->train_data);
    if (st != DH_OK) return dh_ctx_while(ctx, "opening data.train");
    return dh_dataset_check(ctx, run->train_data, run->job->seq_len);
}

static dh_status open_val(dh_ctx *ctx, dh_run *run)
{
    const dh_job *job = run->job;
    dh_dataset_spec spec;
    DH_TRY(dataset_spec(ctx, run, &spec));
    spec.order = DH_ORDER_SEQUENTIAL;
    if (splits(job)) {
        spec.part = DH_PART_VAL;
    } else {
        spec.files = (const char *const *)job->val_files;
        spec.n_files = job->n_val_files;
    }
    DH_TRY(open_rows(ctx, run, &spec, &run->val_data));
    int64_t windows = dh_dataset_windows(run->val_data, job->seq_len);
    if (windows >= job->micro_batch) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "there are %lld tokens for validation, %lld sequences of %lld; a micro-batch "
                   "needs %lld: give more data (data.val, data.val_fraction) or set eval.every=0",
                   (long long)dh_dataset_tokens(run->val_data), (long long)windows,
                   (long long)job->seq_len, (long long)job->micro_batch);
}

dh_status dh_run_open_data(dh_ctx *ctx, dh_run *run)
{
    const dh_job *job = run->job;
    DH_TRY(dh_run_open_train(ctx, run));
    DH_TRY(dh_dataset_hash(ctx, run->train_data, &run->data_hash));
    bool validates = job->eval_every > 0 && (job->n_val_files > 0 || splits(job));
    return validates ? open_val(ctx, run) : DH_OK;
}

static dh_status load_sample(dh_ctx *ctx, void *self, int64_t sample, int64_t seq_len,
                             int32_t *tokens)
{
    return dh_dataset_sample(ctx, self, sample, seq_len, tokens);
}

static dh_status load_row(dh_ctx *ctx, void *self, int64_t sample, int64_t seq_len,
                          const dh_batch_row *row)
{
    const dh_dataset_row r = {row->tokens, row->targets, row->positions, row->samples};
    return dh_dataset_packed_row(ctx, self, sample, &r);
}

dh_batch_source dh_run_source(dh_dataset *dataset)
{
    return (dh_batch_source){.load = load_sample,
                             .self = dataset,
                             .load_row = dh_dataset_is_packed(dataset) ? load_row : NULL};
}

/* ---- what a step works on ------------------------------------------------------------------ */

typedef struct summing {
    const dh_model *model;
    dh_step_work work;
} summing;

static void add_document(void *user, int64_t n, int64_t n_targets)
{
    summing *s = user;
    s->work.tokens += n_targets;
    s->work.padding -= n;
    s->work.documents++;
    s->work.flops += dh_model_flops_per_token(s->model, n) * (double)n;
}

dh_status dh_run_step_work(dh_ctx *ctx, const dh_run *run, dh_step_work *work)
{
    const dh_job *job = run->job;
    const int64_t n = job->global_batch * job->seq_len;
    summing s = {.model = &job->model, .work.padding = n};
    *work = (dh_step_work){.tokens = n, .flops = run->flops_per_token * (double)n};
    if (!dh_dataset_is_packed(run->train_data)) return DH_OK;
    const int64_t first = run->left_out + run->step * job->global_batch;
    for (int64_t i = 0; i < job->global_batch; i++)
        DH_TRY(dh_dataset_lengths(ctx, run->train_data, first + i, add_document, &s));
    *work = s.work;
    return DH_OK;
}

/* ---- the run folder ----------------------------------------------------------------------- */

static dh_status save_chars(dh_ctx *ctx, const dh_run *run)
{
    dh_str path = DH_STR_INIT;
    dh_status st = run_path(ctx, run->job, DH_CHARS_FILE, &path);
    if (st == DH_OK) st = dh_tokenizer_save_chars(ctx, run->tokenizer, path.text);
    dh_str_fini(&path);
    return st;
}

static dh_status save_files(dh_ctx *ctx, const dh_run *run)
{
    dh_str dir = DH_STR_INIT;
    size_t n;
    dh_status st = run_path(ctx, run->job, DH_TOKENIZER_DIR, &dir);
    if (st == DH_OK) st = dh_tokenizer_copy_files(ctx, run->job->tokenizer, dir.text, &n);
    dh_str_fini(&dir);
    return st;
}

dh_status dh_run_save_tokenizer(dh_ctx *ctx, const dh_run *run)
{
    return is(run->job, "chars") ? save_chars(ctx, run) : save_files(ctx, run);
}
