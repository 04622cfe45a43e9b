/* A job's life: defaults, file, overrides, model, checks; and the learning rate. */
#include "base/base.h"
#include "base/needs.h"
#include "config/shipped.h"
#include "settings.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOB_MAX_BYTES (1u << 20)

/* ---- life ------------------------------------------------------------------------ */

dh_status dh_job_create(dh_ctx *ctx, dh_job **out)
{
    DH_NEEDS(ctx, out);
    dh_job *job = calloc(1, sizeof *job);
    if (!job || !(job->arena = dh_arena_create_shared())) {
        dh_job_destroy(job);
        return dh_no_memory(ctx);
    }
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    for (size_t i = 0; i < n; i++) {
        dh_status st = dh_setting_store_default(ctx, job, &settings[i]);
        if (st != DH_OK) {
            dh_job_destroy(job);
            return st;
        }
    }
    *out = job;
    return DH_OK;
}

void dh_job_destroy(dh_job *job)
{
    if (!job) return;
    dh_arena_destroy(job->arena);
    free(job);
}

/* ---- reading ------------------------------------------------------------------------ */

/* Applies everything except the model, whose keys wait for its source. */
static dh_status apply(dh_ctx *ctx, dh_job *job, const dh_assignments *list, const char *base_dir)
{
    for (size_t i = 0; i < list->n; i++) {
        const dh_assignment *a = &list->at[i];
        if (a->setting->type == DH_SET_MODEL || dh_setting_in_model(a->setting)) continue;
        DH_TRY(dh_setting_store(ctx, job, a, a->from_file ? base_dir : NULL));
    }
    return DH_OK;
}

static dh_status fill(dh_ctx *ctx, dh_job *job, const char *text, size_t n_bytes,
                      const char *file_name, const char *base_dir, const char *const *overrides,
                      size_t n_overrides, dh_assignments *list)
{
    DH_TRY(dh_job_read_yaml(ctx, job, text, n_bytes, file_name, list));
    for (size_t i = 0; i < n_overrides; i++)
        DH_TRY(dh_job_read_override(ctx, job, overrides[i], list));
    DH_TRY(apply(ctx, job, list, base_dir));
    DH_TRY(dh_job_resolve_model(ctx, job, list, file_name, base_dir));
    dh_status st = dh_job_check(ctx, job);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "checking the job %s", file_name);
}

dh_status dh_job_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *file_name,
                       const char *base_dir, const char *const *overrides, size_t n_overrides,
                       dh_job **out)
{
    DH_NEEDS(ctx, out);
    DH_NEEDS(ctx, text);
    DH_NEEDS_LIST(ctx, overrides, n_overrides);
    if (!file_name) file_name = "the job";
    dh_job *job;
    dh_assignments list = {0};
    DH_TRY(dh_job_create(ctx, &job));
    dh_status st =
        fill(ctx, job, text, n_bytes, file_name, base_dir, overrides, n_overrides, &list);
    dh_vec_fini(&list);
    if (st != DH_OK) {
        dh_job_destroy(job);
        return st;
    }
    *out = job;
    return DH_OK;
}

static dh_status working_folder(dh_ctx *ctx, char *buf, size_t cap)
{
    if (getcwd(buf, cap)) return DH_OK;
    return dh_fail(ctx, DH_EIO, "the working folder has no path of at most %zu bytes", cap - 1);
}

/* Absolute folder of a file. */
static void folder_of(const char *path, const char *cwd, dh_str *out)
{
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)DH_MIN(slash - path, INT_MAX) : 0;
    if (*path == '/')
        dh_str_printf(out, "/%.*s", DH_MAX(n - 1, 0), path + 1);
    else
        dh_str_printf(out, "%s%s%.*s", cwd, n ? "/" : "", n, path);
}

/* The file's, or that of a job of the library; caller frees. */
static dh_status read_text(dh_ctx *ctx, const char *path, char **text, size_t *n_bytes)
{
    const dh_embedded *shipped = dh_path_exists(path) ? NULL : dh_shipped_job_find(path);
    if (!shipped) return dh_file_read(ctx, path, JOB_MAX_BYTES, text, n_bytes);
    *text = malloc(shipped->n_bytes + 1);
    if (!*text) return dh_no_memory(ctx);
    memcpy(*text, shipped->text, shipped->n_bytes);
    *n_bytes = shipped->n_bytes;
    return DH_OK;
}

dh_status dh_job_load(dh_ctx *ctx, const char *path, const char *const *overrides,
                      size_t n_overrides, dh_job **out)
{
    DH_NEEDS(ctx, path);
    DH_NEEDS(ctx, out);
    DH_NEEDS_LIST(ctx, overrides, n_overrides);
    char cwd[PATH_MAX], *text = NULL;
    size_t n_bytes = 0;
    dh_job *job = NULL;
    dh_str base_dir = DH_STR_INIT;
    DH_TRY(working_folder(ctx, cwd, sizeof cwd));
    DH_TRY(read_text(ctx, path, &text, &n_bytes));
    folder_of(path, cwd, &base_dir);
    dh_status st =
        base_dir.failed || !base_dir.text
            ? dh_no_memory(ctx)
            : dh_job_parse(ctx, text, n_bytes, path, base_dir.text, overrides, n_overrides, &job);
    if (st == DH_OK) st = dh_job_anchor_paths(ctx, job, cwd);
    if (st == DH_OK) {
        *out = job;
        job = NULL;
    }
    dh_job_destroy(job);
    dh_str_fini(&base_dir);
    free(text);
    return st;
}

/* ---- by key --------------------------------------------------------------------------------- */

/* A new source replaces the model. Other keys change the present one. A failure leaves the model as
 * it was. */
static dh_status change_model(dh_ctx *ctx, dh_job *job, const dh_assignments *list, bool source)
{
    const dh_model before = job->model;
    char *spec = job->model_spec;
    const dh_status st = source ? dh_job_resolve_model(ctx, job, list, "at hand", NULL)
                                : dh_job_change_model(ctx, job, list);
    if (st == DH_OK) return DH_OK;
    job->model = before;
    job->model_spec = spec;
    return st;
}

static dh_status change(dh_ctx *ctx, dh_job *job, const char *key_value, dh_assignments *list)
{
    char cwd[PATH_MAX];
    bool source = false, model = false;
    DH_TRY(working_folder(ctx, cwd, sizeof cwd));
    DH_TRY(dh_job_read_override(ctx, job, key_value, list));
    for (size_t i = 0; i < list->n; i++) {
        const dh_setting *s = list->at[i].setting;
        source |= s->type == DH_SET_MODEL;
        model |= s->type == DH_SET_MODEL || dh_setting_in_model(s);
        if (s->type == DH_SET_MODEL || dh_setting_in_model(s)) continue;
        DH_TRY(dh_setting_store(ctx, job, &list->at[i], cwd));
        dh_job_is_given(job, (const char *)job + s->offset);
    }
    job->derived.stale = true;
    return model ? change_model(ctx, job, list, source) : DH_OK;
}

dh_status dh_job_set(dh_ctx *ctx, dh_job *job, const char *key, const char *value)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, key);
    DH_NEEDS(ctx, value);
    dh_assignments list = {0};
    const char *key_value = dh_arena_printf(job->arena, "%s=%s", key, value);
    if (!key_value) return dh_no_memory(ctx);
    const dh_status st = change(ctx, job, key_value, &list);
    dh_vec_fini(&list);
    return st;
}

dh_status dh_job_get(dh_ctx *ctx, const dh_job *job, const char *key, dh_str *out)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, key);
    DH_NEEDS(ctx, out);
    const dh_setting *s = dh_setting_find(key);
    if (s) {
        dh_setting_text(job, s, out);
        return out->failed ? dh_no_memory(ctx) : DH_OK;
    }
    dh_str hint = DH_STR_INIT;
    dh_setting_suggest(key, &hint);
    dh_fail(ctx, DH_EINVAL, "unknown setting \"%.80s\"; %s", key, hint.text ? hint.text : "");
    dh_str_fini(&hint);
    return DH_EINVAL;
}

/* ---- learning rate ---------------------------------------------------------------------- */

int64_t dh_job_decay_end(const dh_job *job)
{
    if (job->lr_schedule == DH_LR_CONSTANT) return 0;
    return job->decay_steps ? job->decay_steps : job->steps;
}

double dh_job_lr(const dh_job *job, int64_t step)
{
    const int64_t warmup = job->warmup_steps, decay = dh_job_decay_end(job);
    if (step < warmup) return job->lr * (double)(step + 1) / (double)warmup;
    if (job->lr_schedule == DH_LR_CONSTANT) return job->lr;
    if (step >= decay) return job->min_lr;
    double done = (double)(step - warmup) / (double)(decay - warmup);
    double rest = job->lr_schedule == DH_LR_COSINE ? 0.5 * (1 + cos(M_PI * done)) : 1 - done;
    return job->min_lr + rest * (job->lr - job->min_lr);
}
