/* A Hugging Face folder from float32 data: config.json, one safetensors file or
 * shards with their index. All of it is written into a folder beside the target,
 * which it then becomes by one rename. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weights/weights.h"

#include "base/json_text.h"

enum { CHUNK_BYTES = 16 << 20 };

typedef struct export
{
    const dh_export_tensor *tensors;
    size_t n_tensors;
    dh_export_fill fill;
    dh_export_more more;
    dh_export_replaces replaces;
    void *user;
    dh_dtype dtype;
    int64_t shard_bytes;
    dh_arena *arena;
    char *dir; /* without trailing slashes */
    dh_temporary tmp;
    size_t *first_of; /* [n_shards + 1]: shard s holds tensors first_of[s].. */
    size_t n_shards;
    int64_t total_bytes;
    float *chunk;
}
export;

/* ---- which tensor in which shard -------------------------------------------------------- */

static dh_status tensor_bytes(dh_ctx *ctx, const export *x, const dh_export_tensor *t, int64_t *out)
{
    int64_t n = (int64_t)dh_dtype_bytes(x->dtype);
    if (t->ndim < 0 || t->ndim > DH_ST_MAX_DIMS)
        return dh_fail(ctx, DH_EINVAL, "tensor \"%s\" has %d dimensions", t->name, t->ndim);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(n, t->shape[i], &n))
            return dh_fail(ctx, DH_EINVAL, "tensor \"%s\": size %lld of dimension %d", t->name,
                           (long long)t->shape[i], i);
    *out = n;
    return DH_OK;
}

/* In order, a new shard when the next tensor would exceed the limit; a single
 * tensor above it gets a shard of its own. */
static dh_status plan_shards(dh_ctx *ctx, export *x)
{
    x->first_of = DH_NEW_N(x->arena, size_t, x->n_tensors + 2);
    if (!x->first_of) return dh_no_memory_while(ctx, "writing %s", x->dir);
    int64_t in_shard = 0;
    x->n_shards = 1;
    for (size_t i = 0; i < x->n_tensors; i++) {
        int64_t n = 0;
        DH_TRY(tensor_bytes(ctx, x, &x->tensors[i], &n));
        if (in_shard && n > x->shard_bytes - in_shard) {
            x->first_of[x->n_shards++] = i;
            in_shard = 0;
        }
        in_shard += n;
        x->total_bytes += n;
    }
    x->first_of[x->n_shards] = x->n_tensors;
    return DH_OK;
}

static char *shard_name(const export *x, size_t shard)
{
    return x->n_shards == 1 ? dh_arena_strdup(x->arena, "model.safetensors")
                            : dh_arena_printf(x->arena, "model-%05zu-of-%05zu.safetensors",
                                              shard + 1, x->n_shards);
}

/* ---- data --------------------------------------------------------------------------------- */

/* A trained model has finite numbers, which the written type can hold. */
static dh_status check_values(dh_ctx *ctx, const export *x, const char *name, const float *values,
                              int64_t n)
{
    DH_TRY(dh_weights_check_finite(ctx, name, values, n));
    for (int64_t i = 0; x->dtype == DH_BF16 && i < n; i++)
        if (!isfinite(dh_bf16_to_f32(dh_f32_to_bf16(values[i]))))
            return dh_fail(ctx, DH_EINVAL, "tensor \"%s\" holds %g, which is too large for bf16",
                           name, (double)values[i]);
    return DH_OK;
}

static dh_status write_tensor(dh_ctx *ctx, export *x, dh_st_writer *w, size_t index)
{
    const dh_export_tensor *t = &x->tensors[index];
    int64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1, rows = 1;
    for (int i = 0; i + 1 < t->ndim; i++) rows *= t->shape[i];
    if (rows == 0 || cols == 0) return DH_OK;
    int64_t step = DH_MAX(1, (int64_t)CHUNK_BYTES / (cols * (int64_t)sizeof(float)));
    step = DH_MIN(step, rows);
    float *grown = realloc(x->chunk, (size_t)(step * cols) * sizeof *grown);
    if (!grown) return dh_no_memory(ctx);
    x->chunk = grown;
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = DH_MIN(step, rows - row);
        /* A vector is one row for the writer, and row 0 of one here. */
        DH_TRY(x->fill(x->user, ctx, index, row, n, x->chunk));
        DH_TRY(check_values(ctx, x, t->name, x->chunk, n * cols));
        DH_TRY(dh_st_writer_put_f32(ctx, w, t->name, row, n, 0, cols, x->chunk, cols));
    }
    return DH_OK;
}

static dh_status write_shard_with(dh_ctx *ctx, export *x, dh_st_writer *w, size_t shard)
{
    size_t first = x->first_of[shard], end = x->first_of[shard + 1];
    DH_TRY(dh_st_writer_metadata(ctx, w, "format", "pt"));
    for (size_t i = first; i < end; i++) {
        const dh_export_tensor *t = &x->tensors[i];
        DH_TRY(dh_st_writer_declare(ctx, w, t->name, dh_st_dtype_of(x->dtype), t->ndim, t->shape));
    }
    char *name = shard_name(x, shard);
    char *path = name ? dh_arena_printf(x->arena, "%s/%s", x->tmp.path, name) : NULL;
    if (!path) return dh_no_memory_while(ctx, "writing %s", x->dir);
    DH_TRY(dh_st_writer_start(ctx, w, path, DH_ST_CREATE));
    for (size_t i = first; i < end; i++) DH_TRY(write_tensor(ctx, x, w, i));
    return dh_st_writer_finish(ctx, w);
}

static dh_status write_shard(dh_ctx *ctx, export *x, size_t shard)
{
    dh_st_writer *w;
    DH_TRY(dh_st_writer_create(ctx, &w));
    dh_status st = write_shard_with(ctx, x, w, shard);
    dh_st_writer_destroy(w);
    return st;
}

/* ---- the files beside it -------------------------------------------------------------------- */

static dh_status write_text(dh_ctx *ctx, const export *x, const char *name, const char *text)
{
    char *path = dh_arena_printf(x->arena, "%s/%s", x->tmp.path, name);
    if (!path || !text) return dh_no_memory_while(ctx, "writing %s", x->dir);
    return dh_file_write_atomic(ctx, path, text, strlen(text));
}

static dh_status write_index(dh_ctx *ctx, export *x)
{
    json_t *map = json_object();
    for (size_t s = 0; s < x->n_shards; s++)
        for (size_t i = x->first_of[s]; i < x->first_of[s + 1]; i++)
            json_object_set_new(map, x->tensors[i].name, json_string(shard_name(x, s)));
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)x->total_bytes,
                             "weight_map", map);
    char *text = dh_json_text(root, JSON_INDENT(2));
    dh_status st = write_text(ctx, x, "model.safetensors.index.json", text);
    free(text);
    return st;
}

static dh_status write_config(dh_ctx *ctx, const export *x, const dh_model *model)
{
    char *text;
    DH_TRY(dh_model_to_config_json(ctx, model, &text));
    dh_status st = write_text(ctx, x, "config.json", text);
    free(text);
    return st;
}

static dh_status write_all(dh_ctx *ctx, export *x, const dh_model *model)
{
    DH_TRY(write_config(ctx, x, model));
    for (size_t s = 0; s < x->n_shards; s++) DH_TRY(write_shard(ctx, x, s));
    if (x->n_shards > 1) DH_TRY(write_index(ctx, x));
    if (x->more) DH_TRY(x->more(x->user, ctx, x->tmp.path));
    return dh_dir_sync(ctx, x->tmp.path);
}

/* ---- the folder ----------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* A model that is replaced loses the files that are written here, and those that `replaces` names.
 * All others in its folder are somebody's. */
static bool is_of_model(const export *x, const char *name)
{
    return strcmp(name, "config.json") == 0 || strcmp(name, "model.safetensors.index.json") == 0 ||
           (strncmp(name, "model", 5) == 0 && ends_with(name, ".safetensors")) ||
           (x->replaces && x->replaces(name));
}

static bool holds(const export *x, const char *name)
{
    const char *path = dh_arena_printf(x->arena, "%s/%s", x->dir, name);
    return path && dh_path_exists(path);
}

/* May the target be written: absent, an empty folder, or a model to be replaced. */
static dh_status check_target(dh_ctx *ctx, const export *x, bool replace)
{
    static const char *const others[][2] = {{DH_ADAPTER_CONFIG, "adapters"},
                                            {"manifest.json", "a checkpoint"}};
    if (!dh_path_exists(x->dir) || rmdir(x->dir) == 0) return DH_OK;
    if (!replace)
        return dh_fail(ctx, DH_EINVAL,
                       "%s exists already; the option replace replaces a model folder, or choose "
                       "another",
                       x->dir);
    if (!holds(x, "config.json"))
        return dh_fail(ctx, DH_EINVAL,
                       "%s is no model folder (it has no config.json) and is not replaced: choose "
                       "another folder",
                       x->dir);
    for (size_t i = 0; i < DH_COUNTOF(others); i++)
        if (holds(x, others[i][0]))
            return dh_fail(ctx, DH_EINVAL, "%s holds %s (%s), and is not replaced", x->dir,
                           others[i][1], others[i][0]);
    return DH_OK;
}

static dh_status rename_to(dh_ctx *ctx, const char *from, const char *to)
{
    if (rename(from, to) == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot rename %s to %s: %s", from, to, strerror(errno));
}

/* Answers of file systems that know only rename. */
static bool is_unknown(int error)
{
    return error == EINVAL || error == ENOSYS;
}

/* To a name that is free. Where the file system cannot see to that it is looked at first: the names
 * are drawn, or in a folder that was just made. */
static dh_status rename_to_new(dh_ctx *ctx, const char *from, const char *to)
{
    struct stat info;
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return DH_OK;
    if (is_unknown(errno) && lstat(to, &info) != 0) return rename_to(ctx, from, to);
    return dh_fail(ctx, DH_EIO, "cannot rename %s to %s: %s", from, to,
                   strerror(is_unknown(errno) ? EEXIST : errno));
}

/* Both folders change their names at once. File systems without that: there is a moment without
 * `dir`, and both folders lie beside it. *former: the one that was in `dir` */
static dh_status exchange(dh_ctx *ctx, const export *x, const char *beside, const char **former)
{
    *former = beside;
    if (renameat2(AT_FDCWD, beside, AT_FDCWD, x->dir, RENAME_EXCHANGE) == 0) return DH_OK;
    if (!is_unknown(errno))
        return dh_fail(ctx, DH_EIO, "cannot replace %s: %s", x->dir, strerror(errno));
    char *third = dh_arena_printf(x->arena, "%s.former", beside);
    if (!third) return dh_no_memory_while(ctx, "writing %s", x->dir);
    *former = third;
    DH_TRY(rename_to_new(ctx, x->dir, third));
    if (rename_to(ctx, beside, x->dir) == DH_OK) return DH_OK;
    if (rename(third, x->dir) != 0) dh_log(DH_LOG_ERROR, "the former %s is now %s", x->dir, third);
    return ctx->status;
}

/* In the folder that was replaced the model's files are deleted; others move back to `dir`. */
static dh_status clear_entry(dh_ctx *ctx, const export *x, const char *old, const char *name)
{
    char *from = dh_arena_printf(x->arena, "%s/%s", old, name);
    char *to = dh_arena_printf(x->arena, "%s/%s", x->dir, name);
    if (!from || !to) return dh_no_memory_while(ctx, "writing %s", x->dir);
    struct stat info;
    if (lstat(from, &info) == 0 && !S_ISDIR(info.st_mode) &&
        (is_of_model(x, name) || dh_path_exists(to)))
        return dh_dir_remove(ctx, from);
    return rename_to_new(ctx, from, to);
}

/* The names first: entries that go change what readdir gives. */
static dh_status clear_old(dh_ctx *ctx, const export *x, const char *old)
{
    DH_VEC(char *) names = {0};
    DIR *dir = opendir(old);
    if (!dir) return dh_fail(ctx, DH_EIO, "cannot open folder %s: %s", old, strerror(errno));
    dh_status st = DH_OK;
    for (struct dirent *e; st == DH_OK && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *name = dh_arena_strdup(x->arena, e->d_name);
        if (!name || !dh_vec_push(&names, name)) st = dh_no_memory_while(ctx, "writing %s", x->dir);
    }
    closedir(dir);
    for (size_t i = 0; st == DH_OK && i < names.n; i++) st = clear_entry(ctx, x, old, names.at[i]);
    dh_vec_fini(&names);
    if (st == DH_OK) st = dh_dir_sync(ctx, x->dir); /* before the old one goes */
    if (st == DH_OK && rmdir(old) != 0)
        st = dh_fail(ctx, DH_EIO, "cannot remove folder %s: %s", old, strerror(errno));
    return st;
}

/* After the exchange the folder next to `dir` is the former one. It has a name of another kind, so
 * that nobody takes it for leftovers. A crash leaves `dir` complete, as the former model or the new
 * one. Files that are not the model's are then in `dir` or in the folder next to it. See above for
 * file systems that cannot exchange folders. */
static dh_status replace_dir(dh_ctx *ctx, export *x)
{
    char *beside =
        dh_arena_printf(x->arena, "%s.replaced-%s", x->dir, strrchr(x->tmp.path, '-') + 1);
    char *path = beside ? strdup(beside) : NULL;
    const char *former;
    if (!path) return dh_no_memory_while(ctx, "writing %s", x->dir);
    if (rename_to_new(ctx, x->tmp.path, beside) != DH_OK) {
        free(path);
        return ctx->status;
    }
    free(x->tmp.path);
    x->tmp.path = path;
    DH_TRY(exchange(ctx, x, beside, &former));
    free(x->tmp.path);
    x->tmp.path = NULL;
    dh_status st = dh_parent_sync(ctx, x->dir);
    if (st == DH_OK) st = clear_old(ctx, x, former);
    if (st == DH_OK) return dh_parent_sync(ctx, x->dir);
    return dh_ctx_while(ctx, "clearing %s, which %s has replaced", former, x->dir);
}

static dh_status move_into_place(dh_ctx *ctx, export *x)
{
    if (dh_path_exists(x->dir)) return replace_dir(ctx, x);
    return dh_temporary_commit(ctx, &x->tmp, x->dir);
}

/* Without trailing slashes; a link to a folder stays one. */
static dh_status resolve(dh_ctx *ctx, export *x, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    x->dir = dh_arena_printf(x->arena, "%.*s", (int)n, dir);
    struct stat info;
    char *target = NULL;
    if (x->dir && lstat(x->dir, &info) == 0 && S_ISLNK(info.st_mode)) {
        target = realpath(x->dir, NULL);
        if (!target)
            return dh_fail(ctx, DH_EIO, "cannot follow the link %s: %s", x->dir, strerror(errno));
        x->dir = dh_arena_strdup(x->arena, target);
        free(target);
    }
    return x->dir ? DH_OK : dh_no_memory_while(ctx, "writing %s", dir);
}

static dh_status export_to(dh_ctx *ctx, export *x, const char *dir, const dh_model *model,
                           bool replace)
{
    DH_TRY(resolve(ctx, x, dir));
    DH_TRY(check_target(ctx, x, replace));
    DH_TRY(plan_shards(ctx, x));
    DH_TRY(dh_temporary_dir(ctx, x->dir, &x->tmp));
    dh_status st = write_all(ctx, x, model);
    if (st == DH_OK) st = move_into_place(ctx, x);
    dh_temporary_drop(&x->tmp); /* in place: nothing is left there */
    return st;
}

dh_status dh_weights_export(dh_ctx *ctx, const char *dir, const dh_model *model,
                            const dh_export_tensor *tensors, size_t n_tensors, dh_export_fill fill,
                            void *user, const dh_export_options *options)
{
    static const dh_export_options usual = {.dtype = DH_F32};
    if (!options) options = &usual;
    if (options->dtype != DH_F32 && options->dtype != DH_BF16)
        return dh_fail(ctx, DH_EINVAL, "models are written as f32 or bf16, not %s",
                       dh_dtype_name(options->dtype));
    export x = {.tensors = tensors,
                .n_tensors = n_tensors,
                .fill = fill,
                .more = options->more,
                .replaces = options->replaces,
                .user = user,
                .dtype = options->dtype,
                .shard_bytes = options->shard_bytes ? options->shard_bytes : DH_EXPORT_SHARD_BYTES,
                .arena = dh_arena_create(),
                .tmp = DH_TEMPORARY_NONE};
    if (!x.arena) return dh_no_memory_while(ctx, "writing %s", dir);
    dh_status st = export_to(ctx, &x, dir, model, options->replace);
    free(x.chunk);
    dh_arena_destroy(x.arena);
    if (st != DH_OK) dh_ctx_while(ctx, "writing the model folder %s", dir);
    return st; /* a callback may have left no message */
}
