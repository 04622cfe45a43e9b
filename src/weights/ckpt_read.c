/* Opening a checkpoint: nothing is handed out before the manifest and the files it
 * lists are proved.
 *
 * A run removes old checkpoints while others read them. A reader holds a shared lock on the folder
 * it reads, and ckpt_prune leaves such a folder alone. If a folder was gone before the lock was
 * there, the reader looks again, since a newer one has taken its place. */
#include "ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/stop.h"

struct dh_ckpt {
    dh_arena *arena;
    char *folder;
    int hold_fd; /* the folder, locked as long as this is open; -1: not held */
    ckpt_manifest manifest;
    dh_ckpt_state state;
};

/* ---- conditions ------------------------------------------------------------------------------ */

static const char *const condition_names[] = {[DH_CKPT_INTACT] = "intact",
                                              [DH_CKPT_DAMAGED] = "damaged",
                                              [DH_CKPT_NEWER] = "of a newer program",
                                              [DH_CKPT_FORBIDDEN] = "not permitted to be read",
                                              [DH_CKPT_UNREADABLE] = "unreadable"};

dh_ckpt_condition dh_ckpt_condition_of(dh_status st)
{
    switch (st) {
    case DH_OK:
        return DH_CKPT_INTACT;
    case DH_EUNSUPPORTED:
        return DH_CKPT_NEWER;
    case DH_EPERM:
        return DH_CKPT_FORBIDDEN;
    case DH_EIO:
    case DH_ENOMEM:
    case DH_EINTERRUPTED:
        return DH_CKPT_UNREADABLE;
    default:
        return DH_CKPT_DAMAGED;
    }
}

const char *dh_ckpt_condition_name(dh_ckpt_condition condition)
{
    return condition_names[condition];
}

/* ---- one folder ------------------------------------------------------------------------------ */

static bool is_gone(const dh_ckpt *c)
{
    struct stat held, now;
    if (stat(c->folder, &now) != 0) return errno == ENOENT;
    return c->hold_fd >= 0 && fstat(c->hold_fd, &held) == 0 &&
           (held.st_ino != now.st_ino || held.st_dev != now.st_dev);
}

/* Where the folder may be searched but not listed, and where there are no locks, reading
 * goes on without. */
static dh_status hold(dh_ctx *ctx, dh_ckpt *c)
{
    c->hold_fd = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->hold_fd < 0 && errno == ENOTDIR)
        return dh_fail(ctx, DH_EFORMAT, "%s is not a folder", c->folder);
    const bool leaving = c->hold_fd >= 0 && dh_fd_lock(c->hold_fd, true) == DH_LOCK_HELD;
    if (leaving || is_gone(c))
        return dh_fail(ctx, DH_EMISSING, "%s was removed meanwhile", c->folder);
    return DH_OK;
}

static dh_status load(dh_ctx *ctx, dh_ckpt *c, bool checksums)
{
    DH_TRY(ckpt_manifest_read(ctx, c->folder, &c->manifest));
    DH_TRY(ckpt_manifest_verify(ctx, c->folder, &c->manifest, checksums));
    if (!ckpt_manifest_find(&c->manifest, CKPT_STATE))
        return dh_fail(ctx, DH_EFORMAT, "%s lists no %s", CKPT_MANIFEST, CKPT_STATE);
    DH_TRY(ckpt_state_read(ctx, c->folder, &c->state));
    if (c->state.step != c->manifest.step)
        return dh_fail(ctx, DH_EFORMAT, "%s is of step %lld, %s of step %lld", CKPT_STATE,
                       (long long)c->state.step, CKPT_MANIFEST, (long long)c->manifest.step);
    return DH_OK;
}

static dh_status hold_and_load(dh_ctx *ctx, dh_ckpt *c, bool checksums)
{
    dh_ctx attempt = dh_ctx_like(ctx);
    DH_TRY(hold(ctx, c));
    dh_status st = load(&attempt, c, checksums);
    if (st == DH_OK) return DH_OK;
    if (is_gone(c)) return dh_fail(ctx, DH_EMISSING, "%s was removed while it was read", c->folder);
    return dh_fail(ctx, st, "%s", attempt.message);
}

static dh_status open_folder(dh_ctx *ctx, const char *folder, bool checksums, dh_ckpt **out)
{
    dh_arena *arena = dh_arena_create();
    dh_ckpt *c = arena ? DH_NEW(arena, dh_ckpt) : NULL;
    if (c) c->folder = dh_arena_strdup(arena, folder);
    if (!c || !c->folder) {
        dh_arena_destroy(arena);
        return dh_no_memory_while(ctx, "opening %s", folder);
    }
    c->arena = arena;
    c->hold_fd = -1;
    if (hold_and_load(ctx, c, checksums) != DH_OK) {
        dh_ckpt_close(c);
        return dh_ctx_while(ctx, "opening the checkpoint %s", folder);
    }
    *out = c;
    return DH_OK;
}

void dh_ckpt_close(dh_ckpt *c)
{
    if (!c) return;
    if (c->hold_fd >= 0) close(c->hold_fd);
    ckpt_manifest_fini(&c->manifest);
    dh_arena_destroy(c->arena);
}

/* ---- the newest of a run --------------------------------------------------------------------- */

static dh_status open_step(dh_ctx *ctx, const char *parent, int64_t step, bool checksums,
                           dh_ckpt **out)
{
    dh_str folder = DH_STR_INIT, former = DH_STR_INIT;
    dh_str_printf(&folder, "%s/step-%06lld", parent, (long long)step);
    const bool ok = ckpt_former_path(parent, step, &former) && !folder.failed;
    const bool is_former = ok && !dh_path_exists(folder.text) && dh_path_exists(former.text);
    dh_status st = ok ? open_folder(ctx, is_former ? former.text : folder.text, checksums, out)
                      : dh_no_memory_while(ctx, "opening %s", parent);
    dh_str_fini(&folder);
    dh_str_fini(&former);
    return st;
}

/* From the newest on, damage is passed over. One that may be whole, and only cannot be read now or
 * here, is not: an older one in its place would undo the steps between. */
static dh_status open_newest(dh_ctx *ctx, const char *parent, const int64_t *steps, size_t n,
                             bool checksums, dh_ckpt **out)
{
    dh_ctx newest = DH_CTX_INIT;
    for (size_t i = 0; i < n; i++) {
        dh_ctx attempt = dh_ctx_like(ctx);
        dh_status st = open_step(&attempt, parent, steps[i], checksums, out);
        if (st == DH_OK) return DH_OK;
        if (st == DH_EMISSING || st == DH_EINTERRUPTED)
            return dh_fail(ctx, st, "%s", attempt.message);
        const dh_ckpt_condition condition = dh_ckpt_condition_of(st);
        if (condition != DH_CKPT_DAMAGED)
            return dh_fail(ctx, st, "the checkpoint of step %lld is %s: %s", (long long)steps[i],
                           dh_ckpt_condition_name(condition), attempt.message);
        dh_log(DH_LOG_WARN, "damaged checkpoint passed over: %s", attempt.message);
        if (i == 0) newest = attempt;
    }
    return dh_fail(ctx, DH_EFORMAT, "%s: none of its %zu checkpoints is intact; the newest: %s",
                   parent, n, newest.message);
}

enum { MAX_ATTEMPTS = 1000, PAUSE_NS = 1000000 }; /* a second of removals, one after the other */

static dh_status find_latest(dh_ctx *ctx, const char *run_dir, const char *parent, bool checksums,
                             dh_ckpt **out)
{
    for (int attempts = 1;; attempts++) {
        dh_ctx attempt = dh_ctx_like(ctx);
        int64_t *steps = NULL;
        size_t n = 0;
        DH_TRY(ckpt_list_steps(ctx, parent, &steps, &n));
        if (n == 0) {
            DH_TRY(dh_ckpt_check_none(ctx, run_dir));
            return dh_fail(ctx, DH_EMISSING, "%s holds no checkpoint", parent);
        }
        dh_status st = open_newest(&attempt, parent, steps, n, checksums, out);
        free(steps);
        if (st == DH_OK) return DH_OK;
        if (st != DH_EMISSING || attempts == MAX_ATTEMPTS)
            return dh_fail(ctx, st == DH_EMISSING ? DH_EIO : st, "%s", attempt.message);
        dh_sleep_until_ns(dh_now_ns() + PAUSE_NS);
    }
}

/* RUN/checkpoints. */
static dh_status parent_of(dh_ctx *ctx, const char *run_dir, dh_str *parent)
{
    dh_str_printf(parent, "%s/checkpoints", run_dir);
    return parent->failed ? dh_no_memory_while(ctx, "opening %s", run_dir) : DH_OK;
}

dh_status dh_ckpt_find_latest(dh_ctx *ctx, const char *run_dir, bool checksums, dh_ckpt **out)
{
    dh_str parent = DH_STR_INIT;
    dh_status st = parent_of(ctx, run_dir, &parent);
    if (st == DH_OK) st = find_latest(ctx, run_dir, parent.text, checksums, out);
    dh_str_fini(&parent);
    return st;
}

dh_status dh_ckpt_list(dh_ctx *ctx, const char *run_dir, int64_t **steps, size_t *n)
{
    dh_str parent = DH_STR_INIT;
    dh_status st = parent_of(ctx, run_dir, &parent);
    if (st == DH_OK) st = ckpt_list_steps(ctx, parent.text, steps, n);
    dh_str_fini(&parent);
    return st;
}

dh_status dh_ckpt_open_step(dh_ctx *ctx, const char *run_dir, int64_t step, bool checksums,
                            dh_ckpt **out)
{
    dh_str parent = DH_STR_INIT;
    dh_status st = parent_of(ctx, run_dir, &parent);
    if (st == DH_OK) st = open_step(ctx, parent.text, step, checksums, out);
    dh_str_fini(&parent);
    return st;
}

/* ---- public ---------------------------------------------------------------------------------- */

static bool has_entry(const char *folder, const char *name)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, name);
    bool there = !path.failed && dh_path_exists(path.text);
    dh_str_fini(&path);
    return there;
}

dh_status dh_ckpt_open(dh_ctx *ctx, const char *run_dir, const char *where, bool checksums,
                       dh_ckpt **out)
{
    if (strcmp(where, "latest") == 0) {
        if (run_dir) return dh_ckpt_find_latest(ctx, run_dir, checksums, out);
        return dh_fail(ctx, DH_EINVAL, "\"latest\" needs a run folder");
    }
    if (!dh_path_is_dir(where))
        return dh_fail(ctx, DH_EMISSING, "there is no checkpoint or run folder %s", where);
    if (has_entry(where, CKPT_MANIFEST)) return open_folder(ctx, where, checksums, out);
    if (has_entry(where, "checkpoints") || has_entry(where, CKPT_RECORD))
        return dh_ckpt_find_latest(ctx, where, checksums, out);
    return dh_fail(ctx, DH_EFORMAT,
                   "%s has no %s (an incomplete checkpoint?) and no folder checkpoints", where,
                   CKPT_MANIFEST);
}

const char *dh_ckpt_path(const dh_ckpt *c)
{
    return c->folder;
}

const dh_ckpt_state *dh_ckpt_get_state(const dh_ckpt *c)
{
    return &c->state;
}

size_t dh_ckpt_n_files(const dh_ckpt *c)
{
    return c->manifest.files.n;
}

const dh_ckpt_file *dh_ckpt_file_at(const dh_ckpt *c, size_t i)
{
    DH_CHECK(i < c->manifest.files.n, "file %zu of %zu", i, c->manifest.files.n);
    return &c->manifest.files.at[i];
}

bool dh_ckpt_has_file(const dh_ckpt *c, const char *name)
{
    return ckpt_manifest_find(&c->manifest, name) != NULL;
}
