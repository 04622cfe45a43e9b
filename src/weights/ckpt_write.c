/* Writing a checkpoint: begin, add files, commit. Until the rename in commit there
 * is only a temporary folder; after it there is a whole checkpoint. */
#include "ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct dh_ckpt_writer {
    dh_arena *arena;
    char *parent, *final;
    dh_temporary tmp; /* locked while the writer lives */
    ckpt_manifest manifest;
};

/* ---- begin ------------------------------------------------------------------------------ */

static dh_status begin(dh_ctx *ctx, dh_ckpt_writer *c, const char *run_dir, int64_t step)
{
    c->manifest.step = step;
    c->parent = dh_arena_printf(c->arena, "%s/checkpoints", run_dir);
    if (!c->parent) return dh_no_memory(ctx);
    c->final = dh_arena_printf(c->arena, "%s/step-%06lld", c->parent, (long long)step);
    char *stem = dh_arena_printf(c->arena, "%s/.step-%06lld", c->parent, (long long)step);
    if (!c->final || !stem) return dh_no_memory(ctx);
    bool recorded;
    int64_t saved;
    DH_TRY(ckpt_record_read(ctx, c->parent, &recorded, &saved));
    if (recorded && !dh_path_exists(c->parent))
        dh_log(DH_LOG_WARN, "%s is gone, with the checkpoints in it; it is made again", c->parent);
    DH_TRY(dh_dir_create(ctx, c->parent));
    ckpt_clean(c->parent);
    return dh_temporary_dir(ctx, stem, &c->tmp);
}

dh_status dh_ckpt_begin(dh_ctx *ctx, const char *run_dir, int64_t step, dh_ckpt_writer **out)
{
    if (step < 0)
        return dh_fail(ctx, DH_EINVAL, "checkpoint of step %lld: steps are 0 or more",
                       (long long)step);
    dh_arena *arena = dh_arena_create();
    dh_ckpt_writer *c = arena ? DH_NEW(arena, dh_ckpt_writer) : NULL;
    if (!c) {
        dh_arena_destroy(arena);
        return dh_no_memory(ctx);
    }
    c->arena = arena;
    c->tmp = DH_TEMPORARY_NONE;
    if (begin(ctx, c, run_dir, step) != DH_OK) {
        dh_ckpt_destroy(c);
        return dh_ctx_while(ctx, "starting the checkpoint of step %lld", (long long)step);
    }
    *out = c;
    return DH_OK;
}

void dh_ckpt_clean(const char *run_dir)
{
    dh_str parent = DH_STR_INIT;
    dh_str_printf(&parent, "%s/checkpoints", run_dir);
    if (!parent.failed) ckpt_clean(parent.text);
    dh_str_fini(&parent);
}

void dh_ckpt_drop_empty(const char *run_dir)
{
    dh_str parent = DH_STR_INIT;
    dh_str_printf(&parent, "%s/checkpoints", run_dir);
    if (!parent.failed) rmdir(parent.text); /* which fails where the folder holds something */
    dh_str_fini(&parent);
}

const char *dh_ckpt_folder(const dh_ckpt_writer *c)
{
    return c->tmp.path;
}

/* ---- files -------------------------------------------------------------------------------- */

static dh_status check_name(dh_ctx *ctx, const char *name)
{
    if (ckpt_name_ok(name)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "\"%.200s\" cannot name a file of a checkpoint (letters, digits, '.', '_', '-')",
                   name);
}

dh_status dh_ckpt_seal_file(dh_ctx *ctx, const char *folder, const char *name, dh_ckpt_file *file)
{
    DH_TRY(check_name(ctx, name));
    return ckpt_measure(ctx, folder, name, true, file);
}

dh_status dh_ckpt_add_file(dh_ctx *ctx, dh_ckpt_writer *c, const dh_ckpt_file *file)
{
    DH_TRY(check_name(ctx, file->name));
    if (ckpt_manifest_find(&c->manifest, file->name))
        return dh_fail(ctx, DH_EINVAL, "\"%s\" was added to the checkpoint before", file->name);
    if (file->n_bytes < 0 || strlen(file->xxh3_128) != DH_CKPT_HASH_TEXT - 1)
        return dh_fail(ctx, DH_EINVAL, "\"%s\" was not sealed", file->name);
    if (!dh_vec_push(&c->manifest.files, *file)) return dh_no_memory(ctx);
    return DH_OK;
}

dh_status dh_ckpt_put_file(dh_ctx *ctx, dh_ckpt_writer *c, const char *name, const void *data,
                           size_t n_bytes)
{
    DH_TRY(check_name(ctx, name));
    char *path = dh_arena_printf(c->arena, "%s/%s", c->tmp.path, name);
    if (!path) return dh_no_memory_while(ctx, "writing %s", name);
    DH_TRY(dh_file_write_atomic(ctx, path, data, n_bytes)); /* syncs */
    dh_ckpt_file file = {.n_bytes = (int64_t)n_bytes};
    snprintf(file.name, sizeof file.name, "%s", name);
    dh_ckpt_fingerprint(data, n_bytes, file.xxh3_128);
    return dh_ckpt_add_file(ctx, c, &file);
}

static dh_status reserve(dh_ctx *ctx, int fd, const char *path, int64_t n_bytes)
{
    struct statvfs disk;
    if (fallocate(fd, 0, 0, (off_t)n_bytes) == 0) return DH_OK;
    const int fault = errno;
    if (fstatvfs(fd, &disk) != 0)
        return dh_fail(ctx, DH_EIO, "cannot tell the space of %s: %s", path, strerror(errno));
    const double available = (double)disk.f_bavail * (double)disk.f_frsize;
    const bool unable = fault == EOPNOTSUPP || fault == ENOSYS; /* the file system cannot say */
    if (unable && available >= (double)n_bytes) return DH_OK;
    char needed[32], left[32];
    dh_format_bytes(needed, sizeof needed, (double)n_bytes);
    dh_format_bytes(left, sizeof left, available);
    return dh_fail(ctx, DH_EIO, "%s needs %s on the disk, and %s are free there: %s", path, needed,
                   left, strerror(unable ? ENOSPC : fault));
}

dh_status dh_ckpt_reserve(dh_ctx *ctx, const dh_ckpt_writer *c, const char *name, int64_t n_bytes)
{
    DH_TRY(check_name(ctx, name));
    char *path = dh_arena_printf(c->arena, "%s/%s", c->tmp.path, name);
    if (!path) return dh_no_memory_while(ctx, "reserving %s", name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot create %s: %s", path,
                       strerror(errno));
    dh_status st = n_bytes > 0 ? reserve(ctx, fd, path, n_bytes) : DH_OK;
    close(fd);
    return st;
}

dh_status dh_ckpt_put_state(dh_ctx *ctx, dh_ckpt_writer *c, const dh_ckpt_state *state)
{
    if (state->step != c->manifest.step || state->next_sample < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "state of step %lld and sample %lld for the checkpoint of step %lld: the "
                       "steps must be equal, and the sample 0 or more",
                       (long long)state->step, (long long)state->next_sample,
                       (long long)c->manifest.step);
    char *text = NULL;
    DH_TRY(ckpt_state_text(ctx, state, &text));
    dh_status st = dh_ckpt_put_file(ctx, c, CKPT_STATE, text, strlen(text));
    free(text);
    return st;
}

/* ---- commit ---------------------------------------------------------------------------------- */

static dh_status write_manifest(dh_ctx *ctx, dh_ckpt_writer *c)
{
    char *path = dh_arena_printf(c->arena, "%s/%s", c->tmp.path, CKPT_MANIFEST), *text = NULL;
    if (!path) return dh_no_memory(ctx);
    DH_TRY(ckpt_manifest_text(ctx, &c->manifest, &text));
    dh_status st = dh_file_write_atomic(ctx, path, text, strlen(text));
    free(text);
    return st;
}

static dh_status rename_to(dh_ctx *ctx, const char *from, const char *to)
{
    if (rename(from, to) == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot rename %s to %s: %s", from, to, strerror(errno));
}

/* In two moves. Between them the former one has a name under which it is still found. */
static dh_status replace_by_two(dh_ctx *ctx, dh_ckpt_writer *c)
{
    dh_str former = DH_STR_INIT;
    if (!ckpt_former_path(c->parent, c->manifest.step, &former)) return dh_no_memory(ctx);
    dh_status st = rename_to(ctx, c->final, former.text);
    if (st == DH_OK && rename_to(ctx, c->tmp.path, c->final) != DH_OK) {
        st = ctx->status;
        if (rename(former.text, c->final) != 0)
            dh_log(DH_LOG_ERROR, "the former %s is now %s", c->final, former.text);
    }
    if (st == DH_OK) { /* the former one is removed where the writer ends */
        free(c->tmp.path);
        c->tmp.path = former.text;
    } else {
        dh_str_fini(&former);
    }
    return st;
}

/* One of the same step is exchanged in one move, where the file system can. */
static dh_status replace_final(dh_ctx *ctx, dh_ckpt_writer *c)
{
    if (renameat2(AT_FDCWD, c->tmp.path, AT_FDCWD, c->final, RENAME_EXCHANGE) == 0) return DH_OK;
    if (errno == EINVAL || errno == ENOSYS) return replace_by_two(ctx, c);
    return dh_fail(ctx, DH_EIO, "cannot exchange %s and %s: %s", c->tmp.path, c->final,
                   strerror(errno));
}

static dh_status commit(dh_ctx *ctx, dh_ckpt_writer *c)
{
    if (!ckpt_manifest_find(&c->manifest, CKPT_STATE))
        return dh_fail(ctx, DH_EINVAL, "it has no %s", CKPT_STATE);
    DH_TRY(ckpt_manifest_verify(ctx, c->tmp.path, &c->manifest, false));
    DH_TRY(write_manifest(ctx, c));
    DH_TRY(dh_dir_sync(ctx, c->tmp.path));
    DH_TRY(dh_path_exists(c->final) ? replace_final(ctx, c)
                                    : rename_to(ctx, c->tmp.path, c->final));
    return dh_dir_sync(ctx, c->parent);
}

dh_status dh_ckpt_commit(dh_ctx *ctx, dh_ckpt_writer *c, int64_t keep, dh_ckpt_steps *proved)
{
    dh_ctx record = DH_CTX_INIT;
    dh_ckpt_steps none = {0};
    const int64_t step = c->manifest.step;
    if (commit(ctx, c) != DH_OK)
        return dh_ctx_while(ctx, "writing the checkpoint of step %lld", (long long)step);
    ckpt_prune(c->parent, step, keep, proved ? proved : &none); /* first: it makes room */
    dh_vec_fini(&none);
    if (ckpt_record_write(&record, c->parent, step) != DH_OK)
        dh_log(DH_LOG_WARN, "the checkpoint of step %lld is complete, and not recorded: %s",
               (long long)step, record.message);
    return DH_OK;
}

void dh_ckpt_destroy(dh_ckpt_writer *c)
{
    if (!c) return;
    /* Not committed: what was written. Committed: gone, or the one that was replaced. */
    dh_temporary_drop(&c->tmp);
    ckpt_manifest_fini(&c->manifest);
    dh_arena_destroy(c->arena);
}
