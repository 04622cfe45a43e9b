/* Finding the files behind a path: a folder with one file or shards, or a file. */
#include "base/json_text.h"
#include "weights_impl.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MAX_BYTES = 64 << 20 };

/* ---- safetensors, one file or several ------------------------------------------------- */

static dh_status add_tensor(dh_ctx *ctx, dh_weights *w, const dh_st_tensor *t)
{
    weight item = {
        .name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = t->data, .file = t->file};
    memcpy(item.shape, t->shape, sizeof item.shape);
    return dh_vec_push(&w->tensors, item) ? DH_OK : dh_no_memory(ctx);
}

/* Takes the shard. */
static dh_status add_shard(dh_ctx *ctx, dh_weights *w, const char *path, dh_safetensors *st)
{
    if (dh_vec_push(&w->shards, st)) return DH_OK;
    dh_st_close(st);
    return dh_no_memory_while(ctx, "opening %s", path);
}

static dh_status open_shard(dh_ctx *ctx, dh_weights *w, const char *path, dh_safetensors **out)
{
    DH_TRY(dh_st_open(ctx, path, out));
    return add_shard(ctx, w, path, *out);
}

static dh_status add_tensors(dh_ctx *ctx, dh_weights *w, const dh_safetensors *st)
{
    for (size_t i = 0; i < dh_st_n_tensors(st); i++) DH_TRY(add_tensor(ctx, w, dh_st_at(st, i)));
    return DH_OK;
}

static dh_status open_one(dh_ctx *ctx, dh_weights *w, const char *path)
{
    dh_safetensors *st = NULL;
    DH_TRY(open_shard(ctx, w, path, &st));
    return add_tensors(ctx, w, st);
}

static dh_status parse_one(dh_ctx *ctx, dh_weights *w, const void *data, size_t n_bytes)
{
    dh_safetensors *st = NULL;
    DH_TRY(dh_st_parse(ctx, data, n_bytes, w->path, &st));
    DH_TRY(add_shard(ctx, w, w->path, st));
    return add_tensors(ctx, w, st);
}

/* The shard of a file name, opened at its first use; opened: name -> index. */
static dh_status shard_of(dh_ctx *ctx, dh_weights *w, json_t *opened, const char *file,
                          dh_safetensors **out)
{
    const json_t *known = json_object_get(opened, file);
    if (known) {
        *out = w->shards.at[json_integer_value(known)];
        return DH_OK;
    }
    if (strchr(file, '/') || file[0] == '.' || file[0] == '\0')
        return dh_fail(ctx, DH_EFORMAT, "\"%.200s\" is not a plain file name", file);
    char *path = dh_arena_printf(w->arena, "%s/%s", w->folder, file);
    if (!path) return dh_no_memory_while(ctx, "opening %s", file);
    DH_TRY(open_shard(ctx, w, path, out));
    if (json_object_set_new(opened, file, json_integer((json_int_t)w->shards.n - 1)) != 0)
        return dh_no_memory_while(ctx, "opening %s", path);
    return DH_OK;
}

static dh_status add_mapped(dh_ctx *ctx, dh_weights *w, const json_t *root)
{
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map))
        return dh_fail(ctx, DH_EFORMAT, "\"weight_map\" must be an object: tensor -> file");
    json_t *opened = json_object();
    if (!opened) return dh_no_memory(ctx);
    dh_status st = DH_OK;
    const char *name;
    json_t *file;
    json_object_foreach(map, name, file)
    {
        dh_safetensors *shard = NULL;
        if (!json_is_string(file))
            st = dh_fail(ctx, DH_EFORMAT, "the file of \"%.200s\" must be a string", name);
        if (st == DH_OK) st = shard_of(ctx, w, opened, json_string_value(file), &shard);
        if (st != DH_OK) break;
        const dh_st_tensor *t = dh_st_find(shard, name);
        st = t ? add_tensor(ctx, w, t)
               : dh_fail(ctx, DH_EFORMAT, "tensor \"%.200s\" is not in %.200s", name,
                         json_string_value(file));
        if (st != DH_OK) break;
    }
    json_decref(opened);
    return st;
}

static dh_status open_index(dh_ctx *ctx, dh_weights *w, const char *path)
{
    char *text;
    size_t n_bytes;
    DH_TRY(dh_file_read(ctx, path, INDEX_MAX_BYTES, &text, &n_bytes));
    json_error_t fault;
    json_t *root;
    dh_status st = dh_json_read(ctx, text, n_bytes, JSON_REJECT_DUPLICATES, &fault, &root);
    free(text);
    if (st == DH_OK)
        st = root ? add_mapped(ctx, w, root)
                  : dh_fail(ctx, DH_EFORMAT, "line %d, column %d: %s", fault.line, fault.column,
                            fault.text);
    json_decref(root);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "reading %s", path);
}

/* ---- what kind of path ------------------------------------------------------------------- */

typedef dh_status (*open_fn)(dh_ctx *ctx, dh_weights *w, const char *path);

static const struct {
    const char *suffix;
    open_fn open;
} kinds[] = {
    {".safetensors", open_one},
    {".safetensors.index.json", open_index},
    {".bin", dh_weights_open_bin},
};

static bool has_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path), k = strlen(suffix);
    return n > k && strcmp(path + n - k, suffix) == 0;
}

static dh_status refuse_gguf(dh_ctx *ctx, const char *path)
{
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "%s: GGUF is not read; take the safetensors that it was made from", path);
}

static dh_status open_file(dh_ctx *ctx, dh_weights *w, const char *path)
{
    for (size_t i = 0; i < DH_COUNTOF(kinds); i++)
        if (has_suffix(path, kinds[i].suffix)) return kinds[i].open(ctx, w, path);
    if (has_suffix(path, ".gguf")) return refuse_gguf(ctx, path);
    return dh_fail(ctx, DH_EINVAL,
                   "%s: weights are a folder, a .safetensors file (or its .index.json) or a .bin "
                   "file of llama2.c or llm.c",
                   path);
}

/* The one file with a suffix; NULL when there is none or a choice. */
static dh_status lone_file(dh_ctx *ctx, dh_weights *w, const char *suffix, char **found,
                           size_t *n_found)
{
    *found = NULL;
    *n_found = 0;
    DIR *dir = opendir(w->folder);
    if (!dir) return dh_fail(ctx, DH_EIO, "cannot open folder %s: %s", w->folder, strerror(errno));
    errno = 0;
    for (struct dirent *e; (e = readdir(dir)); errno = 0) {
        if (e->d_name[0] == '.' || !has_suffix(e->d_name, suffix)) continue;
        *found = (*n_found)++ ? NULL : dh_arena_printf(w->arena, "%s/%s", w->folder, e->d_name);
    }
    const int fault = errno; /* readdir's, which ends as the last entry does */
    closedir(dir);
    if (fault == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot list %s: %s", w->folder, strerror(fault));
}

static dh_status open_folder(dh_ctx *ctx, dh_weights *w)
{
    static const char *const usual[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < DH_COUNTOF(usual); i++) {
        char *path = dh_arena_printf(w->arena, "%s/%s", w->folder, usual[i]);
        if (!path) return dh_no_memory_while(ctx, "opening %s", w->path);
        if (dh_path_exists(path)) return open_file(ctx, w, path);
    }
    static const char *const lone[] = {".safetensors", ".bin"};
    for (size_t i = 0; i < DH_COUNTOF(lone); i++) {
        char *path;
        size_t n;
        DH_TRY(lone_file(ctx, w, lone[i], &path, &n));
        if (path) return open_file(ctx, w, path);
        if (n > 1)
            return dh_fail(ctx, DH_EINVAL,
                           "%s has %zu files *%s and no model.safetensors or "
                           "model.safetensors.index.json; name one of them",
                           w->path, n, lone[i]);
    }
    char *gguf;
    size_t n_gguf;
    DH_TRY(lone_file(ctx, w, ".gguf", &gguf, &n_gguf));
    if (n_gguf > 0) return refuse_gguf(ctx, gguf ? gguf : w->path);
    return dh_fail(ctx, DH_EMISSING,
                   "%s has no model.safetensors, model.safetensors.index.json, *.safetensors or "
                   "*.bin",
                   w->path);
}

/* ---- public --------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const weight *)a)->name, ((const weight *)b)->name);
}

static dh_status index_tensors(dh_ctx *ctx, dh_weights *w)
{
    if (w->tensors.n) qsort(w->tensors.at, w->tensors.n, sizeof *w->tensors.at, compare_names);
    w->used = DH_NEW_N(w->arena, atomic_bool, w->tensors.n);
    return w->used ? DH_OK : dh_no_memory_while(ctx, "opening %s", w->path);
}

dh_status dh_weights_join(dh_ctx *ctx, dh_weights *w, const char *path)
{
    char *file = dh_path_is_dir(path) ? dh_arena_printf(w->arena, "%s/" DH_ADAPTER_FILE, path)
                                      : dh_arena_strdup(w->arena, path);
    if (!file) return dh_no_memory_while(ctx, "opening %s", path);
    if (!dh_path_exists(file)) return dh_fail(ctx, DH_EMISSING, "there is no %s", file);
    const atomic_bool *used = w->used;
    const size_t n = w->tensors.n;
    for (size_t i = 0; i < n; i++) w->tensors.at[i].was_read = atomic_load(&used[i]);
    DH_TRY(open_one(ctx, w, file));
    DH_TRY(index_tensors(ctx, w));
    for (size_t i = 0; i < w->tensors.n; i++) atomic_store(&w->used[i], w->tensors.at[i].was_read);
    for (size_t i = 1; i < w->tensors.n; i++)
        if (strcmp(w->tensors.at[i - 1].name, w->tensors.at[i].name) == 0)
            return dh_fail(ctx, DH_EINVAL, "%s has a tensor %s, which %s has too", file,
                           w->tensors.at[i].name, w->path);
    return DH_OK;
}

static dh_weights *create(const char *path)
{
    dh_arena *arena = dh_arena_create();
    dh_weights *w = arena ? DH_NEW(arena, dh_weights) : NULL;
    if (!w) {
        dh_arena_destroy(arena);
        return NULL;
    }
    w->arena = arena;
    w->path = dh_arena_strdup(arena, path);
    const char *slash = strrchr(path, '/');
    if (dh_path_is_dir(path))
        w->folder = w->path;
    else if (!slash)
        w->folder = ".";
    else
        w->folder = dh_arena_printf(arena, "%.*s", (int)(slash - path), path);
    if (!w->path || !w->folder) {
        dh_weights_close(w);
        return NULL;
    }
    if (w->folder[0] == '\0') w->folder = "/";
    return w;
}

dh_status dh_weights_open(dh_ctx *ctx, const char *path, dh_weights **out)
{
    if (!dh_path_exists(path)) return dh_fail(ctx, DH_EIO, "there is no file or folder %s", path);
    dh_weights *w = create(path);
    if (!w) return dh_no_memory_while(ctx, "opening %s", path);
    dh_status st = dh_path_is_dir(path) ? open_folder(ctx, w) : open_file(ctx, w, path);
    if (st == DH_OK) st = index_tensors(ctx, w);
    if (st != DH_OK) {
        dh_weights_close(w);
        return st;
    }
    *out = w;
    return DH_OK;
}

dh_status dh_weights_parse(dh_ctx *ctx, const void *data, size_t n_bytes, const char *name,
                           dh_weights **out)
{
    dh_weights *w = create(name);
    if (!w) return dh_no_memory_while(ctx, "opening %s", name);
    dh_status st = parse_one(ctx, w, data, n_bytes);
    if (st == DH_OK) st = index_tensors(ctx, w);
    if (st != DH_OK) {
        dh_weights_close(w);
        return st;
    }
    *out = w;
    return DH_OK;
}
