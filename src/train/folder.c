/* The run folder: held by one run, and with what a run needs before its first step. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_text.h"
#include "train/recipe.h"
#include "train/run.h"

/* ---- job.yaml -------------------------------------------------------------------------------- */

/* "/home/me/data/" and a pattern's rest; NULL: out of memory, or no such folder. */
static char *pattern_from_root(const char *path)
{
    char *cwd = *path == '/' ? NULL : realpath(".", NULL);
    dh_str out = DH_STR_INIT;
    if (cwd) dh_str_printf(&out, "%s/%s", cwd, path);
    free(cwd);
    if (!out.failed) return out.text;
    dh_str_fini(&out);
    return NULL;
}

/* The path from the root if it exists or is a pattern, else as it is (a table's row, "bytes"). */
static char *from_root(dh_arena *arena, char *path)
{
    char *absolute = path && *path ? realpath(path, NULL) : NULL;
    if (!absolute && path && strpbrk(path, "*?[")) absolute = pattern_from_root(path);
    char *kept = absolute ? dh_arena_strdup(arena, absolute) : path;
    free(absolute);
    return kept;
}

/* The job as it ran, to be run again from anywhere: its files named from the root. */
static dh_status print_portable(dh_ctx *ctx, const dh_job *job, char **text)
{
    dh_job copy = *job;
    char **paths[] = {&copy.tokenizer, &copy.data_cache, &copy.init_from,    &copy.lora_init_from,
                      &copy.schedule,  &copy.profile,    &copy.moe_recorded, &copy.out_dir};
    copy.train_files = DH_NEW_N(job->arena, char *, job->n_train_files + 1);
    copy.val_files = DH_NEW_N(job->arena, char *, job->n_val_files + 1);
    if (!copy.train_files || !copy.val_files) return dh_no_memory(ctx);
    for (size_t i = 0; i < DH_COUNTOF(paths); i++) *paths[i] = from_root(job->arena, *paths[i]);
    if (dh_job_order_file(job)) copy.overlap_policy = from_root(job->arena, copy.overlap_policy);
    for (size_t i = 0; i < job->n_train_files; i++)
        copy.train_files[i] = from_root(job->arena, job->train_files[i]);
    for (size_t i = 0; i < job->n_val_files; i++)
        copy.val_files[i] = from_root(job->arena, job->val_files[i]);
    return dh_job_print(ctx, &copy, text);
}

dh_status dh_run_write_job(dh_ctx *ctx, const dh_job *job, const char *dir)
{
    char *text;
    size_t at;
    DH_TRY(print_portable(ctx, job, &text));
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/job.yaml", dir);
    dh_status st = path.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK && !dh_json_can_hold(text, &at))
        st = dh_fail(ctx, DH_EINVAL,
                     "the working folder, or a link to a file of the job, has a name that is not "
                     "UTF-8");
    if (st == DH_OK) st = dh_file_write_atomic(ctx, path.text, text, strlen(text));
    free(text);
    dh_str_fini(&path);
    return st;
}

dh_status dh_run_write_profile(dh_ctx *ctx, const dh_profile *profile, const char *dir)
{
    dh_str path = DH_STR_INIT;
    if (!profile) return DH_OK;
    dh_str_printf(&path, "%s/profile.json", dir);
    dh_status st = path.failed ? dh_no_memory(ctx) : dh_profile_write(ctx, profile, path.text);
    dh_str_fini(&path);
    return st;
}

/* ---- claiming -------------------------------------------------------------------------------- */

/* The longest path a run writes is that of its last checkpoint's manifest. */
static dh_status check_path(dh_ctx *ctx, const dh_job *job)
{
    const int longest = snprintf(
        NULL, 0, "%s/checkpoints/.step-%06lld" DH_TEMPORARY_END "/manifest.json" DH_TEMPORARY_END,
        job->out_dir, (long long)job->steps);
    if (longest < DH_MIN(PATH_MAX, DH_RUN_PATH_BYTES)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "`out` has %zu bytes, and paths below it up to %d; the system takes %d: set a "
                   "shorter one",
                   strlen(job->out_dir), longest, PATH_MAX - 1);
}

static dh_status claim(dh_ctx *ctx, dh_run *run)
{
    DH_TRY(dh_dir_create(ctx, run->job->out_dir));
    return dh_folder_claim(ctx, run->job->out_dir, &run->lock);
}

static dh_status claim_anew(dh_ctx *ctx, dh_run *run)
{
    const char *dir = run->job->out_dir;
    DH_TRY(check_path(ctx, run->job));
    if (run->options->fresh && dh_path_exists(dir)) DH_TRY(dh_folder_set_aside(ctx, dir));
    DH_TRY(claim(ctx, run));
    dh_dir_drop_leftovers(dir); /* nobody else writes here now */
    dh_ckpt_clean(dir);
    return DH_OK;
}

dh_status dh_run_claim_folder(dh_ctx *ctx, dh_run *run)
{
    return dh_ranks_agree(ctx, &run->ranks, run->ranks.rank == 0 ? claim_anew(ctx, run) : DH_OK);
}

void dh_run_release_folder(dh_run *run)
{
    dh_metrics_close(&run->metrics);
    dh_folder_release(&run->lock);
}

/* ---- contents -------------------------------------------------------------------------------- */

dh_status dh_run_open_metrics(dh_ctx *ctx, dh_run *run)
{
    const char *dir = run->job->out_dir;
    DH_TRY(dh_metrics_open(ctx, dir, run->step, &run->metrics));
    return run->job->tensorboard ? dh_tensorboard_open(ctx, dir, run->step, &run->metrics.events)
                                 : DH_OK;
}

static dh_status open_outputs(dh_ctx *ctx, dh_run *run)
{
    DH_TRY(dh_run_write_job(ctx, run->job, run->job->out_dir));
    DH_TRY(dh_run_write_profile(ctx, run->profile, run->job->out_dir));
    DH_TRY(dh_run_save_tokenizer(ctx, run)); /* a run that could not be continued keeps its own */
    return dh_run_open_metrics(ctx, run);
}

dh_status dh_run_open_outputs(dh_ctx *ctx, dh_run *run)
{
    if (run->ranks.rank != 0) return DH_OK;
    if (run->step < run->job->steps) DH_TRY(dh_run_try_saving(ctx, run));
    return open_outputs(ctx, run);
}

dh_status dh_run_keep_folder(dh_ctx *ctx, dh_run *run)
{
    if (dh_folder_is_held(&run->lock)) return DH_OK;
    dh_log(DH_LOG_WARN,
           "the run folder %s was removed or replaced by step %lld; it is made again, without what "
           "was in it",
           run->job->out_dir, (long long)run->step);
    dh_run_release_folder(run);
    DH_TRY(claim(ctx, run));
    return open_outputs(ctx, run);
}
