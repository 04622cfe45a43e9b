/* The folders under RUN/checkpoints: which steps there are, what is left over,
 * which are old. Whatever is removed is renamed to a temporary name first, so that no
 * half of it ever looks like a checkpoint. */
#include "ckpt_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- steps ------------------------------------------------------------------------------ */

/* "step-000123" -> 123; false for names that are not written so. */
static bool step_of_name(const char *name, int64_t *step)
{
    static const char prefix[] = "step-";
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
        if (step_of_name(e->d_name, &step)) ok = dh_vec_push(&found, step);
    }
    const int fault = ok ? errno : ENOMEM; /* readdir's, which ends as the last entry does */
    if (dir) closedir(dir);
    if (fault) {
        dh_vec_fini(&found);
        return dh_fail(ctx, dh_status_of_errno(fault), "cannot list %s: %s", parent,
                       strerror(fault));
    }
    if (found.n) qsort(found.at, found.n, sizeof *found.at, newest_first);
    *steps = found.at;
    *n = found.n;
    return DH_OK;
}

/* ---- old ones ------------------------------------------------------------------------------- */

static bool is_complete(const char *path)
{
    dh_ctx ctx = DH_CTX_INIT;
    ckpt_manifest m;
    if (ckpt_manifest_read(&ctx, path, &m) != DH_OK) return false;
    bool complete = ckpt_manifest_verify(&ctx, path, &m, false) == DH_OK;
    ckpt_manifest_fini(&m);
    return complete;
}

dh_status ckpt_trash_create(dh_ctx *ctx, const char *parent, dh_temporary *trash)
{
    dh_str stem = DH_STR_INIT;
    dh_str_printf(&stem, "%s/.old", parent);
    const dh_status st = stem.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory")
                                     : dh_temporary_dir(ctx, stem.text, trash);
    dh_str_fini(&stem);
    return st;
}

/* What a reader holds stays until the next checkpoint. */
static void remove_step(const char *parent, const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
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

void ckpt_prune(const char *parent, int64_t step, int64_t keep)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t *steps = NULL, n_kept = 1;
    size_t n = 0, n_old = 0;
    if (keep < 1) return;
    if (ckpt_list_steps(&ctx, parent, &steps, &n) != DH_OK) {
        dh_log(DH_LOG_WARN, "old checkpoints are not removed: %s", ctx.message);
        return;
    }
    for (size_t i = 0; i < n; i++) { /* keep the newest complete ones, gather the rest */
        dh_str path = DH_STR_INIT;
        dh_str_printf(&path, "%s/step-%06lld", parent, (long long)steps[i]);
        bool mine = steps[i] == step || path.failed;
        if (!mine && n_kept >= keep)
            steps[n_old++] = steps[i];
        else if (!mine && is_complete(path.text))
            n_kept++;
        dh_str_fini(&path);
    }
    while (n_old > 0) { /* oldest first */
        dh_str path = DH_STR_INIT;
        int64_t old = steps[--n_old];
        dh_str_printf(&path, "%s/step-%06lld", parent, (long long)old);
        if (!path.failed) remove_step(parent, path.text);
        dh_str_fini(&path);
    }
    free(steps);
}

/* ---- suspects ------------------------------------------------------------------------------- */

static dh_status rename_to_suspect(dh_ctx *ctx, const char *parent, int64_t step)
{
    dh_str from = DH_STR_INIT, to = DH_STR_INIT;
    dh_str_printf(&from, "%s/step-%06lld", parent, (long long)step);
    dh_str_printf(&to, "%s/suspect-%06lld", parent, (long long)step);
    dh_status st = from.failed || to.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory") : DH_OK;
    if (st == DH_OK) st = dh_dir_remove(ctx, to.text); /* of an earlier time */
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
    dh_status st = parent.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory")
                                 : ckpt_list_steps(ctx, parent.text, &steps, &n);
    if (st == DH_OK && n > 1 && steps[0] == step) st = rename_to_suspect(ctx, parent.text, step);
    free(steps);
    dh_str_fini(&parent);
    return st;
}
