/* Checkpoints of a run: weights and moments as Hugging Face tensors, and where the
 * run stands.
 *
 * model.safetensors with config.json makes every checkpoint a folder that other
 * programs open; optimizer.safetensors holds exp_avg.NAME and exp_avg_sq.NAME in the
 * same layout, so nothing in a checkpoint depends on how ranks were arranged. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dhelix/checkpoint.h"
#include "train/run.h"

typedef struct section {
    const char *file;
    const char *prefix;
    dh_buffer_kind kind;
} section;

static const section sections[] = {{"model.safetensors", "", DH_BUF_MASTER},
                                   {"optimizer.safetensors", "exp_avg.", DH_BUF_ADAM_M},
                                   {"optimizer.safetensors", "exp_avg_sq.", DH_BUF_ADAM_V}};
static const char SPIKES[] = "spikes.json"; /* the bands of recent losses, where they are watched */
enum { NAME_MAX_BYTES = 128, MAX_SPIKES_BYTES = 1 << 20 };

/* ---- what must not change on resuming ------------------------------------------------------- */

/* The model, the data order and the optimizer's own constants: with another value of
 * any of these the continued run would be neither the old one nor a new one. */
static void fingerprint(const dh_run *run, char text[DH_CKPT_HASH_TEXT])
{
    const dh_job *j = run->job;
    const dh_model *m = &j->model;
    char line[1024];
    int n = snprintf(line, sizeof line,
                     "family %d layers %" PRId64 " width %" PRId64 " heads %" PRId64 " %" PRId64
                     " %" PRId64 " ffn %" PRId64 " experts %" PRId64 " %" PRId64
                     " aux %.17g vocab %" PRId64 " tied %d bias %d norm %d %.17g "
                     "act %d theta %.17g dropout %.17g seed %" PRIu64 " order %d seq %" PRId64
                     " batch %" PRId64 " tokens %" PRId64 " beta %.17g %.17g eps %.17g",
                     (int)m->family, m->n_layers, m->width, m->n_heads, m->n_kv_heads, m->head_dim,
                     m->ffn_width, m->n_experts, m->top_k, m->router_aux_coef, m->vocab,
                     m->tied_head, m->bias, (int)m->norm, m->norm_eps, (int)m->act, m->rope.theta,
                     j->dropout, j->seed, (int)j->order, j->seq_len, j->global_batch,
                     dh_dataset_tokens(run->train_data), j->beta1, j->beta2, j->eps);
    dh_ckpt_fingerprint(line, (size_t)n, text);
}

static void tokenizer_fingerprint(const dh_run *run, char text[DH_CKPT_HASH_TEXT])
{
    uint64_t value = run->tokenizer ? dh_tokenizer_fingerprint(run->tokenizer) : 0;
    snprintf(text, DH_CKPT_HASH_TEXT, "%016" PRIx64, value);
}

/* ---- writing -------------------------------------------------------------------------------- */

static dh_status declare_param(dh_ctx *ctx, dh_st_writer *writer, const char *prefix,
                               const dh_param *p)
{
    char before[NAME_MAX_BYTES] = "";
    for (int k = 0; k < p->n_pieces; k++) {
        const dh_param_piece piece = dh_param_piece_at(p, k);
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "%s%s", prefix, piece.hf_name);
        if (strcmp(name, before) == 0) continue;
        DH_TRY(dh_st_writer_declare(ctx, writer, name, DH_ST_F32, piece.hf_ndim, piece.hf_shape));
        memcpy(before, name, sizeof before);
    }
    return DH_OK;
}

/* Every tensor of the model, on every rank alike: the file's header follows from it. */
static dh_status declare_model(dh_ctx *ctx, dh_st_writer *writer, const char *prefix,
                               const dh_model *m)
{
    static const struct {
        dh_block_kind kind;
        bool once;
    } blocks[] = {{DH_BLOCK_EMBED, true},
                  {DH_BLOCK_LAYER, false},
                  {DH_BLOCK_EXPERTS, false},
                  {DH_BLOCK_HEAD, true}};
    for (size_t k = 0; k < DH_COUNTOF(blocks); k++)
        for (int64_t layer = 0; layer < (blocks[k].once ? 1 : m->n_layers); layer++)
            for (uint32_t slot = 0; slot < DH_MAX_SLOT; slot++) {
                const dh_block_kind kind = blocks[k].kind;
                dh_param p;
                if (dh_param_describe(m, kind, (int)layer, slot, &p) && p.kind == kind)
                    DH_TRY(declare_param(ctx, writer, prefix, &p));
            }
    return DH_OK;
}

static dh_status write_tensors(dh_ctx *ctx, const dh_run *run, dh_st_writer *writer,
                               const char *path, const char *file)
{
    const bool alone = run->ranks.n == 1;
    DH_TRY(dh_st_writer_metadata(ctx, writer, "format", "pt"));
    for (size_t s = 0; s < DH_COUNTOF(sections); s++)
        if (strcmp(sections[s].file, file) == 0)
            DH_TRY(declare_model(ctx, writer, sections[s].prefix, &run->job->model));
    dh_status st = DH_OK;
    if (run->ranks.rank == 0)
        st = dh_st_writer_start(ctx, writer, path, alone ? DH_ST_CREATE : DH_ST_CREATE_SHARED);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    if (run->ranks.rank != 0) st = dh_st_writer_start(ctx, writer, path, DH_ST_JOIN);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    for (size_t s = 0; s < DH_COUNTOF(sections); s++)
        if (strcmp(sections[s].file, file) == 0)
            DH_TRY(dh_session_store(ctx, run->session, run->ranks.data, writer, sections[s].prefix,
                                    sections[s].kind));
    return dh_st_writer_finish(ctx, writer);
}

/* All ranks write their parts of one file; rank 0 seals it when all are done. */
static dh_status save_file(dh_ctx *ctx, const dh_run *run, dh_ckpt_writer *ckpt, const char *folder,
                           const char *file)
{
    dh_st_writer *writer = NULL;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, file);
    dh_status st = path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory saving %s", file)
                               : dh_st_writer_create(ctx, &writer);
    if (st == DH_OK) st = write_tensors(ctx, run, writer, path.text, file);
    dh_st_writer_destroy(writer);
    dh_str_fini(&path);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    if (!ckpt) return DH_OK;
    dh_ckpt_file sealed;
    DH_TRY(dh_ckpt_seal_file(ctx, folder, file, &sealed));
    return dh_ckpt_add_file(ctx, ckpt, &sealed);
}

static dh_status save_config(dh_ctx *ctx, const dh_run *run, dh_ckpt_writer *ckpt)
{
    char *config;
    DH_TRY(dh_model_to_config_json(ctx, &run->job->model, &config));
    dh_status st = dh_ckpt_put_file(ctx, ckpt, "config.json", config, strlen(config));
    free(config);
    return st;
}

static dh_status save_spikes(dh_ctx *ctx, const dh_run *run, dh_ckpt_writer *ckpt)
{
    char *text;
    DH_TRY(dh_spikes_print(ctx, &run->spikes, run->job->spike_window, &text));
    dh_status st = dh_ckpt_put_file(ctx, ckpt, SPIKES, text, strlen(text));
    free(text);
    return st;
}

static dh_status commit(dh_ctx *ctx, const dh_run *run, dh_ckpt_writer *ckpt)
{
    DH_TRY(save_config(ctx, run, ckpt));
    if (run->job->spike_action != DH_SPIKE_OFF) DH_TRY(save_spikes(ctx, run, ckpt));
    dh_ckpt_state state = {.step = run->step,
                           .next_sample = run->left_out + run->step * run->job->global_batch,
                           .seed = run->job->seed,
                           .version = DH_VERSION};
    fingerprint(run, state.job_fingerprint);
    tokenizer_fingerprint(run, state.tokenizer_fingerprint);
    DH_TRY(dh_ckpt_put_state(ctx, ckpt, &state));
    return dh_ckpt_commit(ctx, ckpt, run->job->checkpoint_keep);
}

/* ckpt is NULL on all ranks but 0. */
static dh_status save_all(dh_ctx *ctx, const dh_run *run, dh_ckpt_writer *ckpt, const char *folder)
{
    dh_status st = save_file(ctx, run, ckpt, folder, "model.safetensors");
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    st = save_file(ctx, run, ckpt, folder, "optimizer.safetensors");
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    return dh_ranks_agree(ctx, &run->ranks, ckpt ? commit(ctx, run, ckpt) : DH_OK);
}

static dh_status save(dh_ctx *ctx, dh_run *run)
{
    char folder[DH_RUN_PATH_BYTES] = "";
    dh_ckpt_writer *ckpt = NULL;
    dh_status st = DH_OK;
    if (run->ranks.rank == 0) {
        st = dh_run_keep_folder(ctx, run);
        if (st == DH_OK) st = dh_ckpt_begin(ctx, run->job->out_dir, run->step, &ckpt);
        if (st == DH_OK) snprintf(folder, sizeof folder, "%s", dh_ckpt_folder(ckpt));
    }
    st = dh_ranks_agree(ctx, &run->ranks, st);
    if (st == DH_OK) st = dh_ranks_broadcast(ctx, &run->ranks, folder, sizeof folder);
    if (st == DH_OK) st = save_all(ctx, run, ckpt, folder);
    dh_ckpt_destroy(ckpt);
    return st;
}

dh_status dh_run_save(dh_ctx *ctx, dh_run *run)
{
    dh_status st = save(ctx, run);
    if (st != DH_OK)
        return dh_ctx_while(ctx, "saving the checkpoint of step %lld", (long long)run->step);
    snprintf(run->checkpoint, sizeof run->checkpoint, "%s/checkpoints/step-%06lld",
             run->job->out_dir, (long long)run->step);
    return DH_OK;
}

/* Moments take twice the weights' bytes; the other files are small. */
static dh_status reserve(dh_ctx *ctx, const dh_run *run, dh_ckpt_writer *ckpt)
{
    const int64_t weights = dh_model_n_params(&run->job->model) * (int64_t)sizeof(float);
    DH_TRY(dh_ckpt_reserve(ctx, ckpt, "model.safetensors", weights));
    return dh_ckpt_reserve(ctx, ckpt, "optimizer.safetensors", 2 * weights);
}

dh_status dh_run_try_saving(dh_ctx *ctx, const dh_run *run)
{
    dh_ckpt_writer *ckpt;
    dh_status st = dh_ckpt_begin(ctx, run->job->out_dir, run->job->steps, &ckpt);
    if (st == DH_OK) {
        st = reserve(ctx, run, ckpt);
        dh_ckpt_destroy(ckpt);
        dh_ckpt_clean(run->job->out_dir);
    }
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "trying whether a checkpoint can be written");
}

/* ---- resuming ------------------------------------------------------------------------------- */

static dh_status load_section(dh_ctx *ctx, dh_run *run, const char *folder, const section *s)
{
    dh_weights *weights = NULL;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, s->file);
    dh_status st = path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory loading %s", s->file)
                               : dh_weights_open(ctx, path.text, &weights);
    if (st == DH_OK) st = dh_session_load_kind(ctx, run->session, weights, s->prefix, s->kind);
    dh_weights_close(weights);
    dh_str_fini(&path);
    return st;
}

static dh_status check_same_job(dh_ctx *ctx, const dh_run *run, const dh_ckpt *ckpt)
{
    char job[DH_CKPT_HASH_TEXT], tokenizer[DH_CKPT_HASH_TEXT];
    const dh_ckpt_state *state = dh_ckpt_get_state(ckpt);
    fingerprint(run, job);
    tokenizer_fingerprint(run, tokenizer);
    const char *what = strcmp(job, state->job_fingerprint) != 0
                           ? "model, data, batch, seed or optimizer constants"
                       : strcmp(tokenizer, state->tokenizer_fingerprint) != 0 ? "tokenizer"
                                                                              : NULL;
    if (!what) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s was written by a job with another %s; use --fresh to set "
                   "the run folder aside, another `out`, or train.init_from to take its weights",
                   dh_ckpt_path(ckpt), what);
}

static dh_status load_spikes(dh_ctx *ctx, dh_run *run, const dh_ckpt *ckpt)
{
    run->spikes = (dh_spikes){.n_back = 0};
    if (!dh_ckpt_has_file(ckpt, SPIKES)) return DH_OK;
    char *text;
    size_t n_bytes;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", dh_ckpt_path(ckpt), SPIKES);
    dh_status st = path.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory loading %s", SPIKES)
                               : dh_file_read(ctx, path.text, MAX_SPIKES_BYTES, &text, &n_bytes);
    if (st == DH_OK) {
        st = dh_spikes_parse(ctx, text, n_bytes, run->job->spike_window, &run->spikes);
        free(text);
    }
    dh_str_fini(&path);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "loading %s", SPIKES);
}

static dh_status resume_from(dh_ctx *ctx, dh_run *run, const dh_ckpt *ckpt)
{
    DH_TRY(check_same_job(ctx, run, ckpt));
    for (size_t s = 0; s < DH_COUNTOF(sections); s++)
        DH_TRY(load_section(ctx, run, dh_ckpt_path(ckpt), &sections[s]));
    DH_TRY(load_spikes(ctx, run, ckpt));
    run->step = dh_ckpt_get_state(ckpt)->step;
    run->left_out = dh_ckpt_get_state(ckpt)->next_sample - run->step * run->job->global_batch;
    snprintf(run->checkpoint, sizeof run->checkpoint, "%s", dh_ckpt_path(ckpt));
    return DH_OK;
}

/* Rank 0 looks for the newest intact checkpoint and checks its sums; the others take
 * its word for the path ("" for none). */
static dh_status find(dh_ctx *ctx, dh_run *run, char *path, size_t cap)
{
    dh_ckpt *ckpt;
    dh_ctx probe = DH_CTX_INIT;
    dh_status st = dh_ckpt_find_latest(&probe, run->job->out_dir, true, &ckpt);
    *path = '\0';
    if (st == DH_EMISSING) return DH_OK; /* new, or a run that died before its first checkpoint */
    if (st != DH_OK)
        return dh_fail(ctx, st,
                       "%s; nothing was changed: mend that and start again, or begin anew with "
                       "--fresh, which sets the run folder aside",
                       probe.message);
    snprintf(path, cap, "%s", dh_ckpt_path(ckpt));
    dh_log(DH_LOG_INFO, "resuming from %s (step %lld)", path,
           (long long)dh_ckpt_get_state(ckpt)->step);
    dh_ckpt_close(ckpt);
    return DH_OK;
}

dh_status dh_run_resume(dh_ctx *ctx, dh_run *run, bool *resumed)
{
    char path[DH_RUN_PATH_BYTES] = "";
    *resumed = false;
    dh_status st = run->ranks.rank == 0 ? find(ctx, run, path, sizeof path) : DH_OK;
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    DH_TRY(dh_ranks_broadcast(ctx, &run->ranks, path, sizeof path));
    if (!*path) return DH_OK;
    dh_ckpt *ckpt;
    st = dh_ckpt_open(ctx, NULL, path, false, &ckpt);
    if (st == DH_OK) {
        st = resume_from(ctx, run, ckpt);
        dh_ckpt_close(ckpt);
    }
    if (st != DH_OK) dh_ctx_while(ctx, "resuming from %s", path);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    *resumed = true;
    return DH_OK;
}
