/* Checkpoints of a run: weights and moments as Hugging Face tensors, and where the
 * run stands.
 *
 * Every checkpoint is a folder that other programs open. Its weights are in model.safetensors and
 * config.json. For a run that trains adapters, PEFT opens adapter_model.safetensors and
 * adapter_config.json. The moments are exp_avg.NAME and exp_avg_sq.NAME in optimizer.safetensors,
 * in the same layout. So nothing in a checkpoint depends on how ranks were arranged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "train/run.h"
#include "train/saving.h"
#include "train/tensors.h"

static const char *const files[DH_SAVE_FILES] = {"model.safetensors", "optimizer.safetensors"};
const dh_save_section dh_save_sections[DH_SAVE_SECTIONS] = {
    {0, "", DH_BUF_MASTER}, {1, "exp_avg.", DH_BUF_ADAM_M}, {1, "exp_avg_sq.", DH_BUF_ADAM_V}};

/* With adapters these are what a checkpoint holds of the weights, in the file that PEFT reads. */
static const char *name_of(const dh_run *run, size_t file)
{
    return run->job->model.lora.rank > 0 && file == 0 ? DH_ADAPTER_FILE : files[file];
}

static const char SPIKES[] = "spikes.json"; /* the bands of recent losses, where they are watched */
enum { MAX_SPIKES_BYTES = 1 << 20 };

/* ---- writing -------------------------------------------------------------------------------- */

/* On every rank alike: the file's header follows from it. */
dh_status dh_save_declare(dh_ctx *ctx, const dh_model *model, const dh_save_section *section,
                          dh_st_writer *writer)
{
    dh_tensor_shapes shapes = {0};
    dh_status st = dh_model_tensors(ctx, model, section->prefix, &shapes);
    for (size_t i = 0; st == DH_OK && i < shapes.n; i++)
        st = dh_st_writer_declare(ctx, writer, shapes.at[i].name, DH_ST_F32, shapes.at[i].ndim,
                                  shapes.at[i].shape);
    dh_vec_fini(&shapes);
    return st;
}

static dh_status declare_file(dh_ctx *ctx, const dh_run *run, dh_st_writer *writer, size_t file)
{
    DH_TRY(dh_st_writer_metadata(ctx, writer, "format", "pt"));
    for (size_t s = 0; s < DH_SAVE_SECTIONS; s++)
        if (dh_save_sections[s].file == file)
            DH_TRY(dh_save_declare(ctx, &run->job->model, &dh_save_sections[s], writer));
    return DH_OK;
}

static dh_status open_file(dh_ctx *ctx, const dh_run *run, const dh_save *save, size_t file,
                           dh_st_writer *writer)
{
    const dh_st_mode mode = run->ranks.n == 1      ? DH_ST_CREATE
                            : run->ranks.rank == 0 ? DH_ST_CREATE_SHARED
                                                   : DH_ST_JOIN;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", save->folder, name_of(run, file));
    dh_status st = path.failed ? dh_no_memory_while(ctx, "saving %s", files[file])
                               : declare_file(ctx, run, writer, file);
    if (st == DH_OK) st = dh_st_writer_start(ctx, writer, path.text, mode);
    dh_str_fini(&path);
    return st;
}

dh_status dh_save_open(dh_ctx *ctx, const dh_run *run, dh_save *save)
{
    for (size_t i = 0; i < DH_SAVE_FILES; i++) {
        DH_TRY(dh_st_writer_create(ctx, &save->files[i]));
        DH_TRY(open_file(ctx, run, save, i, save->files[i]));
    }
    return DH_OK;
}

dh_status dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                      const float *copy)
{
    for (size_t i = 0; i < DH_SAVE_FILES; i++) {
        for (size_t s = 0; s < DH_SAVE_SECTIONS; s++)
            if (dh_save_sections[s].file == i)
                DH_TRY(dh_share_store(ctx, run->session, share, copy, save->files[i],
                                      dh_save_sections[s].prefix, dh_save_sections[s].kind));
        DH_TRY(dh_st_writer_finish(ctx, save->files[i]));
    }
    return DH_OK;
}

/* State that the checkpoint records of a run that goes on meanwhile. */
static dh_status describe(dh_ctx *ctx, const dh_run *run, dh_save *save)
{
    save->state = (dh_ckpt_state){.step = run->step,
                                  .next_sample = run->left_out + run->step * run->job->global_batch,
                                  .seed = run->job->seed,
                                  .n_ranks = run->ranks.n,
                                  .n_threads = run->n_threads,
                                  .decay_steps = dh_job_decay_end(run->job),
                                  .lr = dh_job_lr(run->job, run->step),
                                  .from_text = dh_dataset_has_text(run->train_data),
                                  .version = DH_VERSION};
    DH_TRY(dh_run_describe(ctx, run, &save->state));
    DH_TRY(dh_model_to_config_json(ctx, &run->job->model, &save->config));
    if (run->job->model.lora.rank > 0)
        DH_TRY(dh_adapter_print_config(ctx, &run->job->model, run->base_path, &save->adapter));
    if (run->job->spike_action == DH_SPIKE_OFF) return DH_OK;
    return dh_spikes_print(ctx, &run->spikes, run->job->spike_window, &save->spikes);
}

/* A checkpoint names the data that the run began with. */
static void warn_of_data(const dh_run *run)
{
    dh_ctx changed = DH_CTX_INIT;
    if (dh_dataset_check_same(&changed, run->train_data) != DH_OK)
        dh_log(DH_LOG_WARN, "%s; with another content the run cannot be continued",
               changed.message);
}

static dh_status begin(dh_ctx *ctx, dh_run *run, dh_save *save)
{
    warn_of_data(run);
    DH_TRY(dh_run_keep_folder(ctx, run));
    DH_TRY(describe(ctx, run, save));
    DH_TRY(dh_ckpt_begin(ctx, run->job->out_dir, run->step, &save->ckpt));
    snprintf(save->folder, sizeof save->folder, "%s", dh_ckpt_folder(save->ckpt));
    return DH_OK;
}

dh_status dh_save_begin(dh_ctx *ctx, dh_run *run, dh_save *save)
{
    *save = (dh_save){.step = run->step, .proved = &run->proved};
    dh_status st = run->ranks.rank == 0 ? begin(ctx, run, save) : DH_OK;
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    return dh_ranks_broadcast(ctx, &run->ranks, save->folder, sizeof save->folder);
}

static dh_status put_text(dh_ctx *ctx, dh_ckpt_writer *ckpt, const char *file, const char *text)
{
    return text ? dh_ckpt_put_file(ctx, ckpt, file, text, strlen(text)) : DH_OK;
}

dh_status dh_save_seal(dh_ctx *ctx, const dh_run *run, dh_save *save)
{
    DH_TRY(dh_metrics_sync(ctx, &run->metrics));
    for (size_t i = 0; i < DH_SAVE_FILES; i++) {
        dh_ckpt_file sealed;
        DH_TRY(dh_ckpt_seal_file(ctx, save->folder, name_of(run, i), &sealed));
        DH_TRY(dh_ckpt_add_file(ctx, save->ckpt, &sealed));
    }
    DH_TRY(put_text(ctx, save->ckpt, "config.json", save->config));
    DH_TRY(put_text(ctx, save->ckpt, DH_ADAPTER_CONFIG, save->adapter));
    DH_TRY(put_text(ctx, save->ckpt, SPIKES, save->spikes));
    DH_TRY(dh_ckpt_put_state(ctx, save->ckpt, &save->state));
    return dh_ckpt_commit(ctx, save->ckpt, run->job->checkpoint_keep, save->proved);
}

void dh_save_end(dh_save *save)
{
    for (size_t i = 0; i < DH_SAVE_FILES; i++) dh_st_writer_destroy(save->files[i]);
    dh_ckpt_destroy(save->ckpt);
    free(save->config);
    free(save->adapter);
    free(save->spikes);
    *save = (dh_save){.step = 0};
}

/* Moments take twice the weights' bytes; the other files are small. */
static dh_status reserve(dh_ctx *ctx, const dh_run *run, dh_ckpt_writer *ckpt)
{
    const int64_t weights = dh_model_n_trained(&run->job->model) * (int64_t)sizeof(float);
    DH_TRY(dh_ckpt_reserve(ctx, ckpt, name_of(run, 0), weights));
    return dh_ckpt_reserve(ctx, ckpt, name_of(run, 1), 2 * weights);
}

dh_status dh_run_try_saving(dh_ctx *ctx, const dh_run *run)
{
    dh_ckpt_writer *ckpt;
    const bool had_any = *run->checkpoint;
    /* One alone may come, where the run is stopped: that is no reason not to begin. */
    if (run->job->checkpoint_every == 0 && !run->job->checkpoint_last) return DH_OK;
    dh_status st = dh_ckpt_begin(ctx, run->job->out_dir, run->job->steps, &ckpt);
    if (st == DH_OK) {
        st = reserve(ctx, run, ckpt);
        dh_ckpt_destroy(ckpt);
        if (!had_any) dh_ckpt_drop_empty(run->job->out_dir);
    }
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "trying whether a checkpoint can be written");
}

/* ---- resuming ------------------------------------------------------------------------------- */

static dh_status load_section(dh_ctx *ctx, dh_run *run, const char *folder,
                              const dh_save_section *s)
{
    dh_weights *weights = NULL;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, name_of(run, s->file));
    dh_status st = path.failed ? dh_no_memory_while(ctx, "loading %s", files[s->file])
                               : dh_weights_open(ctx, path.text, &weights);
    if (st == DH_OK) st = dh_session_load_kind(ctx, run->session, weights, s->prefix, s->kind);
    dh_weights_close(weights);
    dh_str_fini(&path);
    return st;
}

static dh_status load_spikes(dh_ctx *ctx, dh_run *run, const dh_ckpt *ckpt)
{
    run->spikes = (dh_spikes){.n_back = 0};
    if (!dh_ckpt_has_file(ckpt, SPIKES)) return DH_OK;
    char *text;
    size_t n_bytes;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", dh_ckpt_path(ckpt), SPIKES);
    dh_status st = path.failed ? dh_no_memory_while(ctx, "loading %s", SPIKES)
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
    DH_TRY(dh_run_check_same(ctx, run, ckpt));
    for (size_t s = 0; s < DH_SAVE_SECTIONS; s++)
        DH_TRY(load_section(ctx, run, dh_ckpt_path(ckpt), &dh_save_sections[s]));
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
    dh_ctx probe = dh_ctx_like(ctx);
    dh_status st = dh_ckpt_find_latest(&probe, run->job->out_dir, true, &ckpt);
    *path = '\0';
    if (st == DH_EMISSING) return DH_OK; /* new, or a run that died before its first checkpoint */
    if (st == DH_EINTERRUPTED) return dh_fail(ctx, st, "%s", probe.message);
    if (st != DH_OK)
        return dh_fail(ctx, st,
                       "%s; nothing was changed: mend that and start again, or begin anew with "
                       "--fresh, which sets the run folder aside",
                       probe.message);
    const int64_t step = dh_ckpt_get_state(ckpt)->step;
    snprintf(path, cap, "%s", dh_ckpt_path(ckpt));
    dh_ckpt_close(ckpt);
    dh_log(DH_LOG_INFO, "resuming from %s (step %lld)", path, (long long)step);
    run->proved.n = 0;
    if (!dh_vec_push(&run->proved, step)) return dh_no_memory(ctx);
    return dh_ckpt_leave_damaged(ctx, run->job->out_dir, step);
}

/* Processes open it by themselves: it could be another one under the same path. Rank 0 has checked
 * the sums that it names. */
static dh_status check_alike(dh_ctx *ctx, const dh_run *run, const dh_ckpt *ckpt)
{
    dh_str facts = DH_STR_INIT;
    for (size_t i = 0; i < dh_ckpt_n_files(ckpt); i++) {
        const dh_ckpt_file *file = dh_ckpt_file_at(ckpt, i);
        dh_str_printf(&facts, "in its checkpoint %s: %lld bytes, hash %s\n", file->name,
                      (long long)file->n_bytes, file->xxh3_128);
    }
    dh_status st = facts.failed ? dh_no_memory(ctx) : DH_OK;
    st = dh_ranks_agree(ctx, &run->ranks, st);
    if (st == DH_OK) st = dh_ranks_alike(ctx, &run->ranks, facts.text ? facts.text : "");
    dh_str_fini(&facts);
    return st;
}

dh_status dh_run_resume(dh_ctx *ctx, dh_run *run, bool *resumed)
{
    char path[DH_RUN_PATH_BYTES] = "";
    *resumed = false;
    dh_status st = run->ranks.rank == 0 ? find(ctx, run, path, sizeof path) : DH_OK;
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    DH_TRY(dh_ranks_broadcast(ctx, &run->ranks, path, sizeof path));
    if (!*path) return DH_OK;
    dh_ckpt *ckpt = NULL;
    st = dh_ranks_agree(ctx, &run->ranks, dh_ckpt_open(ctx, NULL, path, false, &ckpt));
    if (st == DH_OK && run->saver.apart) st = check_alike(ctx, run, ckpt);
    if (st == DH_OK) st = resume_from(ctx, run, ckpt);
    dh_ckpt_close(ckpt);
    if (st != DH_OK) dh_ctx_while(ctx, "resuming from %s", path);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    *resumed = true;
    return DH_OK;
}
