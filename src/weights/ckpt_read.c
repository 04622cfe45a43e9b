/* Opening a checkpoint: nothing is handed out before the manifest and the files it
 * lists are proved. */
#include "ckpt_impl.h"

#include <stdlib.h>
#include <string.h>

struct dh_ckpt {
    dh_arena *arena;
    char *folder;
    ckpt_manifest manifest;
    dh_ckpt_state state;
};

/* ---- one folder ----------------------------------------------------------------------- */

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

static dh_status open_folder(dh_ctx *ctx, const char *folder, bool checksums, dh_ckpt **out)
{
    dh_arena *arena = dh_arena_create();
    dh_ckpt *c = arena ? DH_NEW(arena, dh_ckpt) : NULL;
    if (c) c->folder = dh_arena_strdup(arena, folder);
    if (!c || !c->folder) {
        dh_arena_destroy(arena);
        return dh_fail(ctx, DH_ENOMEM, "out of memory opening %s", folder);
    }
    c->arena = arena;
    if (load(ctx, c, checksums) != DH_OK) {
        dh_ckpt_close(c);
        return dh_ctx_while(ctx, "opening the checkpoint %s", folder);
    }
    *out = c;
    return DH_OK;
}

void dh_ckpt_close(dh_ckpt *c)
{
    if (!c) return;
    ckpt_manifest_fini(&c->manifest);
    dh_arena_destroy(c->arena);
}

/* ---- the newest of a run ------------------------------------------------------------------ */

static dh_status open_step(dh_ctx *ctx, const char *parent, int64_t step, bool checksums,
                           dh_ckpt **out)
{
    dh_str folder = DH_STR_INIT;
    dh_str_printf(&folder, "%s/step-%06lld", parent, (long long)step);
    dh_status st = folder.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory opening %s", parent)
                                 : open_folder(ctx, folder.text, checksums, out);
    dh_str_fini(&folder);
    return st;
}

static dh_status find_latest(dh_ctx *ctx, const char *parent, bool checksums, dh_ckpt **out)
{
    int64_t *steps = NULL;
    size_t n = 0;
    DH_TRY(ckpt_list_steps(ctx, parent, &steps, &n));
    dh_status st = DH_EMISSING;
    for (size_t i = 0; i < n; i++) {
        dh_ctx attempt = DH_CTX_INIT;
        st = open_step(&attempt, parent, steps[i], checksums, out);
        if (st == DH_OK || st == DH_ENOMEM) break;
        dh_log(DH_LOG_WARN, "damaged checkpoint passed over: %s", attempt.message);
    }
    free(steps);
    if (st == DH_OK) return DH_OK;
    if (st == DH_ENOMEM) return dh_fail(ctx, DH_ENOMEM, "out of memory opening %s", parent);
    if (n == 0) return dh_fail(ctx, DH_EMISSING, "%s holds no checkpoint", parent);
    return dh_fail(ctx, DH_EMISSING, "%s: none of its %zu checkpoints is intact", parent, n);
}

dh_status dh_ckpt_find_latest(dh_ctx *ctx, const char *run_dir, bool checksums, dh_ckpt **out)
{
    dh_str parent = DH_STR_INIT;
    dh_str_printf(&parent, "%s/checkpoints", run_dir);
    dh_status st = parent.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory opening %s", run_dir)
                                 : find_latest(ctx, parent.text, checksums, out);
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
    if (has_entry(where, "checkpoints")) return dh_ckpt_find_latest(ctx, where, checksums, out);
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
