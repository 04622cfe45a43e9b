/* The folders under RUN/checkpoints: which steps there are, which are old, which are set aside.
 * Whatever is removed is renamed to a temporary name first, so that no half of it ever looks like a
 * checkpoint. */
#include "ckpt_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- steps ------------------------------------------------------------------------------ */

#define FORMER "former-"

/* "step-000123" -> 123; false for names that are not written so. */
static bool step_of_name(const char *name, const char *prefix, int64_t *step)
{
    char canonical[32];
    if (strncmp(name, prefix, strlen(prefix)) != 0 || !dh_parse_i64(name + strlen(prefix), step) ||
        *step < 0)
        return false;
    snprintf(canonical, sizeof canonical, "%s%06lld", prefix, (long long)*step);
    return strcmp(name, canonical) == 0;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

dh_status ckpt_list_steps(dh_ctx *ctx, const char *parent, int64_t **steps, size_t *n)
{
    DH_VEC(int64_t) found = {0};
    DIR *dir = opendir(parent);
    if (!dir && errno != ENOENT)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open folder %s: %s", parent,
                       strerror(errno));
    bool ok = true;
    errno = 0;
    for (struct dirent *e; dir && ok && (e = readdir(dir)); errno = 0) {
        int64_t step;
        if (step_of_name(e->d_name, "step-", &step) || step_of_name(e->d_name, FORMER, &step))
            ok = dh_vec_push(&found, step);
    }
    const int fault = ok ? errno : ENOMEM; /* readdir's, which ends as the last entry does */
    if (dir) closedir(dir);
    if (fault) {
        dh_vec_fini(&found);
        return dh_fail(ctx, dh_status_of_errno(fault), "cannot list %s: %s", parent,
                       strerror(fault));
    }
    if (found.n) qsort(found.at, found.n, sizeof *found.at, newest_first);
    size_t n_once = 0;
    for (size_t i = 0; i < found.n; i++)
        if (i == 0 || found.at[i] != found.at[i - 1]) found.at[n_once++] = found.at[i];
    *steps = found.at;
    *n = n_once;
    return DH_OK;
}

/* ---- former ones of a step ------------------------------------------------------------------ */

bool ckpt_former_path(const char *parent, int64_t step, dh_str *path)
{
    dh_str_printf(path, "%s/" FORMER "%06lld", parent, (long long)step);
    if (!path->failed) return true;
    dh_str_fini(path);
    return false;
}

/* The power went, or the process was killed, while one replaced the other. */
static void settle_former(const char *parent, int64_t step)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str former = DH_STR_INIT, path = DH_STR_INIT;
    dh_str_printf(&path, "%s/step-%06lld", parent, (long long)step);
    if (path.failed || !ckpt_former_path(parent, step, &former)) {
        dh_no_memory(&ctx);
    } else if (dh_path_exists(path.text)) {
        dh_dir_remove(&ctx, former.text);
    } else if (rename(former.text, path.text) != 0) {
        dh_fail(&ctx, DH_EIO, "cannot rename %s to %s: %s", former.text, path.text,
                strerror(errno));
    }
    if (ctx.status != DH_OK) dh_log(DH_LOG_WARN, "%s", ctx.message);
    dh_str_fini(&former);
    dh_str_fini(&path);
}

void ckpt_clean(const char *parent)
{
    int64_t *steps = NULL;
    size_t n = 0;
    dh_ctx ctx = DH_CTX_INIT; /* a folder that cannot be listed is told of by whoever needs it */
    if (ckpt_list_steps(&ctx, parent, &steps, &n) != DH_OK) n = 0;
    for (size_t i = 0; i < n; i++) {
        dh_str former = DH_STR_INIT;
        if (ckpt_former_path(parent, steps[i], &former) && dh_path_exists(former.text))
            settle_former(parent, steps[i]);
        dh_str_fini(&former);
    }
    free(steps);
    dh_dir_drop_leftovers(parent);
}

/* ---- set aside ------------------------------------------------------------------------------ */

/* To the first free name KIND-N, KIND-N.1, ... */
static dh_status rename_aside(dh_ctx *ctx, const char *parent, int64_t step, const char *kind)
{
    dh_str from = DH_STR_INIT, to = DH_STR_INIT;
    dh_str_printf(&from, "%s/step-%06lld", parent, (long long)step);
    dh_str_printf(&to, "%s/%s-%06lld", parent, kind, (long long)step);
    for (int i = 1; !to.failed && dh_path_exists(to.text); i++) {
        dh_str_clear(&to);
        dh_str_printf(&to, "%s/%s-%06lld.%d", parent, kind, (long long)step, i);
    }
    dh_status st = from.failed || to.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK && rename(from.text, to.text) != 0)
        st =
            dh_fail(ctx, DH_EIO, "cannot rename %s to %s: %s", from.text, to.text, strerror(errno));
    if (st == DH_OK) st = dh_dir_sync(ctx, parent);
    dh_str_fini(&from);
    dh_str_fini(&to);
    return st;
}

dh_status dh_ckpt_set_aside(dh_ctx *ctx, const char *run_dir, int64_t step)
{
    int64_t *steps = NULL;
    size_t n = 0;
    dh_str parent = DH_STR_INIT;
    dh_str_printf(&parent, "%s/checkpoints", run_dir);
    dh_status st =
        parent.failed ? dh_no_memory(ctx) : ckpt_list_steps(ctx, parent.text, &steps, &n);
    if (st == DH_OK && n > 1 && steps[0] == step)
        st = rename_aside(ctx, parent.text, step, "suspect");
    free(steps);
    dh_str_fini(&parent);
    return st;
}

/* Whether PARENT holds KIND-N of a step, under any number. */
static bool has_aside(const char *parent, const char *kind, int64_t step)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s-%06lld", parent, kind, (long long)step);
    const bool there = !path.failed && dh_path_exists(path.text);
    dh_str_fini(&path);
    return there;
}

static dh_status leave_damaged(dh_ctx *ctx, const char *parent, int64_t step)
{
    int64_t *steps = NULL, saved;
    bool recorded;
    size_t n = 0;
    DH_TRY(ckpt_list_steps(ctx, parent, &steps, &n));
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n && steps[i] > step; i++)
        st = rename_aside(ctx, parent, steps[i], "damaged");
    free(steps);
    if (st == DH_OK) st = ckpt_record_read(ctx, parent, &recorded, &saved);
    if (st == DH_OK && recorded && saved > step && !has_aside(parent, "damaged", saved) &&
        !has_aside(parent, "suspect", saved))
        dh_log(DH_LOG_WARN,
               "the checkpoint of step %lld was written and is not in %s; the newest there is of "
               "step %lld",
               (long long)saved, parent, (long long)step);
    return st;
}

dh_status dh_ckpt_leave_damaged(dh_ctx *ctx, const char *run_dir, int64_t step)
{
    dh_str parent = DH_STR_INIT;
    dh_str_printf(&parent, "%s/checkpoints", run_dir);
    const dh_status st = parent.failed ? dh_no_memory(ctx) : leave_damaged(ctx, parent.text, step);
    dh_str_fini(&parent);
    return st;
}

/* ---- old ones ------------------------------------------------------------------------------- */

/* Whether the checkpoint is whole; with checksums, whether its content is. */
static dh_status prove(dh_ctx *ctx, const char *path, bool checksums)
{
    ckpt_manifest m;
    DH_TRY(ckpt_manifest_read(ctx, path, &m));
    const dh_status st = ckpt_manifest_verify(ctx, path, &m, checksums);
    ckpt_manifest_fini(&m);
    return st;
}

dh_status ckpt_trash_create(dh_ctx *ctx, const char *parent, dh_temporary *trash)
{
    dh_str stem = DH_STR_INIT;
    dh_str_printf(&stem, "%s/.old", parent);
    const dh_status st = stem.failed ? dh_no_memory(ctx) : dh_temporary_dir(ctx, stem.text, trash);
    dh_str_fini(&stem);
    return st;
}

/* A folder that a reader holds stays until the next checkpoint. */
static void remove_step(const char *parent, const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && dh_fd_lock(fd, false) == DH_LOCK_HELD) {
        close(fd);
        return;
    }
    dh_ctx ctx = DH_CTX_INIT;
    dh_temporary trash = DH_TEMPORARY_NONE;
    if (ckpt_trash_create(&ctx, parent, &trash) != DH_OK)
        dh_log(DH_LOG_WARN, "cannot remove the old checkpoint %s: %s", path, ctx.message);
    else if (rename(path, trash.path) != 0)
        dh_log(DH_LOG_WARN, "cannot remove the old checkpoint %s: %s", path, strerror(errno));
    dh_temporary_drop(&trash);
    if (fd >= 0) close(fd);
}

static bool is_among(const dh_ckpt_steps *steps, int64_t step)
{
    for (size_t i = 0; i < steps->n; i++)
        if (steps->at[i] == step) return true;
    return false;
}

/* Whether the checkpoint counts as one that is kept. One that may be whole and cannot be read
 * stays, and does not count. */
static bool counts(const char *parent, int64_t step, const dh_ckpt_steps *proved)
{
    dh_ctx ctx = DH_CTX_INIT, aside = DH_CTX_INIT;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/step-%06lld", parent, (long long)step);
    dh_status st =
        path.failed ? dh_no_memory(&ctx) : prove(&ctx, path.text, !is_among(proved, step));
    dh_str_fini(&path);
    if (st == DH_OK) return true;
    dh_log(DH_LOG_WARN, "the checkpoint of step %lld is %s and does not count as one kept: %s",
           (long long)step, dh_ckpt_condition_name(dh_ckpt_condition_of(st)), ctx.message);
    if (dh_ckpt_condition_of(st) == DH_CKPT_DAMAGED &&
        rename_aside(&aside, parent, step, "damaged") != DH_OK)
        dh_log(DH_LOG_WARN, "%s", aside.message);
    return false;
}

/* Sets aside what is damaged of the newest, and says how many of `steps` stay: the first ones. */
static size_t find_kept(const char *parent, const int64_t *steps, size_t n, int64_t step,
                        int64_t keep, dh_ckpt_steps *proved)
{
    int64_t n_kept = 1;
    dh_ckpt_steps kept = {0};
    size_t i = 0;
    bool known = dh_vec_push(&kept, step);
    for (; i < n && n_kept < keep; i++) {
        if (steps[i] == step || !counts(parent, steps[i], proved)) continue;
        n_kept++;
        known = known && dh_vec_push(&kept, steps[i]);
    }
    if (known) { /* else they are proved again */
        dh_vec_fini(proved);
        *proved = kept;
    } else {
        dh_vec_fini(&kept);
    }
    return i;
}

void ckpt_prune(const char *parent, int64_t step, int64_t keep, dh_ckpt_steps *proved)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t *steps = NULL;
    size_t n = 0;
    if (keep < 1) return;
    if (ckpt_list_steps(&ctx, parent, &steps, &n) != DH_OK) {
        dh_log(DH_LOG_WARN, "old checkpoints are not removed: %s", ctx.message);
        return;
    }
    const size_t n_stay = find_kept(parent, steps, n, step, keep, proved);
    for (size_t i = n; i-- > n_stay;) { /* oldest first */
        dh_str path = DH_STR_INIT;
        dh_str_printf(&path, "%s/step-%06lld", parent, (long long)steps[i]);
        if (!path.failed && steps[i] != step) remove_step(parent, path.text);
        dh_str_fini(&path);
    }
    free(steps);
}
