/* Writing safetensors. The layout follows from the declarations alone. So the file exists at its
 * full size before the data comes. Any number of ranks can put their parts at their offsets without
 * talking to each other. */
#include "base/json_text.h"
#include "weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DATA_ALIGN = 64, CONVERT_ITEMS = 8192 };

struct dh_st_writer {
    dh_arena *arena;
    json_t *meta;
    DH_VEC(dh_st_tensor) tensors; /* once laid out: in order of the data */
    const dh_st_tensor **by_name; /* set by layout */
    char *header;                 /* length, JSON, padding */
    size_t header_bytes, data_bytes;
    char *path;
    int fd; /* -1: not started or finished */
    dh_st_mode mode;
    atomic_uint_fast64_t put_bytes;
};

dh_status dh_st_writer_create(dh_ctx *ctx, dh_st_writer **out)
{
    dh_arena *arena = dh_arena_create();
    dh_st_writer *w = arena ? DH_NEW(arena, dh_st_writer) : NULL;
    json_t *meta = json_object();
    if (!w || !meta) {
        json_decref(meta);
        dh_arena_destroy(arena);
        return dh_no_memory(ctx);
    }
    w->arena = arena;
    w->meta = meta;
    w->fd = -1;
    atomic_init(&w->put_bytes, 0);
    *out = w;
    return DH_OK;
}

void dh_st_writer_destroy(dh_st_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) {
        close(w->fd);
        if (w->mode != DH_ST_JOIN) unlink(w->path);
    }
    json_decref(w->meta);
    free(w->header);
    dh_vec_fini(&w->tensors);
    dh_arena_destroy(w->arena);
}

/* ---- declarations ------------------------------------------------------------------ */

dh_status dh_st_writer_metadata(dh_ctx *ctx, dh_st_writer *w, const char *key, const char *value)
{
    json_t *text = json_string(value);
    if (!text)
        return dh_fail(ctx, DH_EINVAL, "metadata \"%s\" is not valid UTF-8 (or out of memory)",
                       key);
    if (json_object_set_new(w->meta, key, text) != 0)
        return dh_fail(ctx, DH_EINVAL, "metadata key is not valid UTF-8 (or out of memory)");
    return DH_OK;
}

dh_status dh_st_writer_declare(dh_ctx *ctx, dh_st_writer *w, const char *name, dh_st_dtype dtype,
                               int ndim, const int64_t *shape)
{
    if (w->header) return dh_fail(ctx, DH_EINVAL, "tensor \"%s\" declared after the start", name);
    if (strcmp(name, "__metadata__") == 0)
        return dh_fail(ctx, DH_EINVAL, "\"__metadata__\" cannot name a tensor");
    if (ndim < 0 || ndim > DH_ST_MAX_DIMS || dh_st_dtype_bytes(dtype) == 0)
        return dh_fail(ctx, DH_EINVAL, "tensor \"%s\": %d dimensions of %s cannot be written", name,
                       ndim, dh_st_dtype_name(dtype));
    dh_st_tensor t = {.dtype = dtype, .ndim = ndim, .n_items = 1};
    int64_t n_bytes;
    for (int i = 0; i < ndim; i++) {
        t.shape[i] = shape[i];
        if (shape[i] < 0 || __builtin_mul_overflow(t.n_items, shape[i], &t.n_items))
            return dh_fail(ctx, DH_EINVAL, "tensor \"%s\": size %lld of dimension %d", name,
                           (long long)shape[i], i);
    }
    if (__builtin_mul_overflow(t.n_items, (int64_t)dh_st_dtype_bytes(dtype), &n_bytes))
        return dh_fail(ctx, DH_EINVAL, "tensor \"%s\": its size overflows 64 bits", name);
    t.n_bytes = (size_t)n_bytes;
    t.name = dh_arena_strdup(w->arena, name);
    if (!t.name || !dh_vec_push(&w->tensors, t)) return dh_no_memory(ctx);
    return DH_OK;
}

/* ---- layout --------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    const dh_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Wider types first, else as declared (n_items of equal rank keep their order):
 * a counting pass per width keeps it stable. */
static dh_status assign_offsets(dh_ctx *ctx, dh_st_writer *w)
{
    static const size_t widths[] = {8, 4, 2, 1};
    size_t n = w->tensors.n, n_placed = 0;
    int64_t at = 0;
    dh_st_tensor *placed = n ? malloc(n * sizeof *placed) : NULL;
    if (n && !placed) return dh_no_memory_while(ctx, "laying out %s", w->path);
    for (size_t k = 0; k < DH_COUNTOF(widths); k++)
        for (size_t i = 0; i < n; i++) {
            dh_st_tensor *t = &w->tensors.at[i];
            if (dh_st_dtype_bytes(t->dtype) != widths[k]) continue;
            t->offset = (size_t)at;
            if (__builtin_add_overflow(at, (int64_t)t->n_bytes, &at)) {
                free(placed);
                return dh_fail(ctx, DH_EINVAL, "%s: its size overflows 64 bits", w->path);
            }
            placed[n_placed++] = *t;
        }
    if (n) memcpy(w->tensors.at, placed, n * sizeof *placed);
    free(placed);
    w->data_bytes = (size_t)at;
    return DH_OK;
}

static dh_status index_names(dh_ctx *ctx, dh_st_writer *w)
{
    size_t n = w->tensors.n;
    w->by_name = DH_NEW_N(w->arena, const dh_st_tensor *, n);
    if (!w->by_name) return dh_no_memory_while(ctx, "laying out %s", w->path);
    for (size_t i = 0; i < n; i++) w->by_name[i] = &w->tensors.at[i];
    if (n) qsort(w->by_name, n, sizeof *w->by_name, compare_names);
    for (size_t i = 1; i < n; i++)
        if (strcmp(w->by_name[i - 1]->name, w->by_name[i]->name) == 0)
            return dh_fail(ctx, DH_EINVAL, "tensor \"%s\" is declared twice", w->by_name[i]->name);
    return DH_OK;
}

static json_t *entry_json(const dh_st_tensor *t)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->ndim; i++) json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dh_st_dtype_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)t->offset, (json_int_t)(t->offset + t->n_bytes));
}

/* NULL when out of memory or a name is not UTF-8. */
static char *header_text(const dh_st_writer *w)
{
    json_t *header = json_object();
    bool ok = header != NULL;
    if (ok && json_object_size(w->meta)) ok = json_object_set(header, "__metadata__", w->meta) == 0;
    for (size_t i = 0; ok && i < w->tensors.n; i++)
        ok = json_object_set_new(header, w->tensors.at[i].name, entry_json(&w->tensors.at[i])) == 0;
    if (ok) return dh_json_text(header, JSON_COMPACT);
    json_decref(header);
    return NULL;
}

/* Length, JSON, and spaces up to a multiple of DATA_ALIGN. */
static dh_status build_header(dh_ctx *ctx, dh_st_writer *w)
{
    char *text = header_text(w);
    if (!text)
        return dh_fail(ctx, DH_EINVAL, "%s: a tensor name is not valid UTF-8 (or out of memory)",
                       w->path);
    size_t text_bytes = strlen(text);
    size_t total = (sizeof(uint64_t) + text_bytes + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    uint64_t claimed = total - sizeof claimed;
    dh_status st = DH_OK;
    if (claimed > DH_ST_MAX_HEADER_BYTES)
        st = dh_fail(ctx, DH_EINVAL, "%s: too many tensors for one header", w->path);
    else if (!(w->header = malloc(total)))
        st = dh_no_memory_while(ctx, "laying out %s", w->path);
    if (st == DH_OK) {
        memcpy(w->header, &claimed, sizeof claimed);
        memcpy(w->header + sizeof claimed, text, text_bytes);
        memset(w->header + sizeof claimed + text_bytes, ' ', claimed - text_bytes);
        w->header_bytes = total;
    }
    free(text);
    return st;
}

/* ---- the file ---------------------------------------------------------------------------- */

static dh_status write_at(dh_ctx *ctx, const dh_st_writer *w, size_t offset, const void *data,
                          size_t n_bytes)
{
    const char *at = data;
    while (n_bytes > 0) {
        ssize_t n = pwrite(w->fd, at, DH_MIN(n_bytes, (size_t)1 << 30), (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return dh_fail(ctx, DH_EIO, "cannot write %s at byte %zu: %s", w->path, offset,
                           strerror(errno));
        at += n;
        offset += (size_t)n;
        n_bytes -= (size_t)n;
    }
    return DH_OK;
}

/* Reserving the blocks finds a full disk before any work is spent; a file system
 * that cannot reserve only gets the size. */
static dh_status reserve(dh_ctx *ctx, const dh_st_writer *w, size_t n_bytes)
{
    if (fallocate(w->fd, 0, 0, (off_t)n_bytes) == 0) return DH_OK;
    if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(w->fd, (off_t)n_bytes) == 0)
        return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot reserve %zu bytes for %s: %s", n_bytes, w->path,
                   strerror(errno));
}

static dh_status create_file(dh_ctx *ctx, dh_st_writer *w)
{
    w->fd = open(w->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) return dh_fail(ctx, DH_EIO, "cannot create %s: %s", w->path, strerror(errno));
    DH_TRY(reserve(ctx, w, w->header_bytes + w->data_bytes));
    return write_at(ctx, w, 0, w->header, w->header_bytes);
}

/* n_read: fewer bytes than the header's where the file ends before it does */
static dh_status read_header(dh_ctx *ctx, const dh_st_writer *w, char *header, size_t *n_read)
{
    for (*n_read = 0; *n_read < w->header_bytes;) {
        const ssize_t n = pread(w->fd, header + *n_read, w->header_bytes - *n_read, (off_t)*n_read);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return dh_fail(ctx, dh_status_of_errno(errno), "cannot read %s: %s", w->path,
                           strerror(errno));
        if (n == 0) return DH_OK;
        *n_read += (size_t)n;
    }
    return DH_OK;
}

/* Others may be writing their tensors, so only the length and the header stand still. */
static dh_status check_joined(dh_ctx *ctx, const dh_st_writer *w)
{
    struct stat info;
    size_t n_read = 0;
    char *header = malloc(w->header_bytes + 1);
    dh_status st = header ? read_header(ctx, w, header, &n_read)
                          : dh_no_memory_while(ctx, "reading %s", w->path);
    const bool same = st == DH_OK && n_read == w->header_bytes &&
                      memcmp(header, w->header, n_read) == 0 && fstat(w->fd, &info) == 0 &&
                      (size_t)info.st_size == w->header_bytes + w->data_bytes;
    free(header);
    DH_TRY(st);
    return same ? DH_OK
                : dh_fail(ctx, DH_EINVAL,
                          "%s was created for other tensors than those declared here; all writers "
                          "of a file must declare the same",
                          w->path);
}

static dh_status join_file(dh_ctx *ctx, dh_st_writer *w)
{
    w->fd = open(w->path, O_RDWR | O_CLOEXEC);
    if (w->fd < 0) return dh_fail(ctx, DH_EIO, "cannot open %s: %s", w->path, strerror(errno));
    const dh_status st = check_joined(ctx, w);
    if (st == DH_OK) return DH_OK;
    close(w->fd);
    w->fd = -1;
    return st;
}

dh_status dh_st_writer_start(dh_ctx *ctx, dh_st_writer *w, const char *path, dh_st_mode mode)
{
    if (w->header) return dh_fail(ctx, DH_EINVAL, "%s: the writer was started before", path);
    w->mode = mode;
    w->path = dh_arena_strdup(w->arena, path);
    if (!w->path) return dh_no_memory_while(ctx, "starting %s", path);
    DH_TRY(assign_offsets(ctx, w));
    DH_TRY(index_names(ctx, w));
    DH_TRY(build_header(ctx, w));
    return mode == DH_ST_JOIN ? join_file(ctx, w) : create_file(ctx, w);
}

/* ---- data ------------------------------------------------------------------------------------ */

static dh_status find_started(dh_ctx *ctx, const dh_st_writer *w, const char *name,
                              const dh_st_tensor **out)
{
    if (w->fd < 0) return dh_fail(ctx, DH_EINVAL, "tensor \"%s\" put into no open file", name);
    const dh_st_tensor key = {.name = name}, *key_at = &key;
    const dh_st_tensor **hit =
        w->tensors.n ? bsearch(&key_at, w->by_name, w->tensors.n, sizeof *w->by_name, compare_names)
                     : NULL;
    if (!hit) return dh_fail(ctx, DH_EMISSING, "%s: tensor \"%s\" was not declared", w->path, name);
    *out = *hit;
    return DH_OK;
}

static dh_status put_bytes(dh_ctx *ctx, dh_st_writer *w, const dh_st_tensor *t, size_t offset,
                           const void *data, size_t n_bytes)
{
    DH_TRY(write_at(ctx, w, w->header_bytes + t->offset + offset, data, n_bytes));
    atomic_fetch_add_explicit(&w->put_bytes, n_bytes, memory_order_relaxed);
    return DH_OK;
}

dh_status dh_st_writer_put(dh_ctx *ctx, dh_st_writer *w, const char *name, size_t offset_bytes,
                           const void *data, size_t n_bytes)
{
    const dh_st_tensor *t;
    DH_TRY(find_started(ctx, w, name, &t));
    if (offset_bytes > t->n_bytes || n_bytes > t->n_bytes - offset_bytes)
        return dh_fail(ctx, DH_EINVAL, "tensor \"%s\": %zu bytes at %zu, but it has %zu", name,
                       n_bytes, offset_bytes, t->n_bytes);
    return put_bytes(ctx, w, t, offset_bytes, data, n_bytes);
}

/* n contiguous items from float32, starting at item `first` of the tensor. */
static dh_status put_run(dh_ctx *ctx, dh_st_writer *w, const dh_st_tensor *t, int64_t first,
                         const float *src, int64_t n)
{
    if (t->dtype == DH_ST_F32)
        return put_bytes(ctx, w, t, (size_t)first * sizeof *src, src, (size_t)n * sizeof *src);
    dh_bf16 half[CONVERT_ITEMS];
    for (int64_t done = 0; done < n;) {
        int64_t count = DH_MIN(n - done, CONVERT_ITEMS);
        for (int64_t i = 0; i < count; i++) half[i] = dh_f32_to_bf16(src[done + i]);
        DH_TRY(put_bytes(ctx, w, t, (size_t)(first + done) * sizeof *half, half,
                         (size_t)count * sizeof *half));
        done += count;
    }
    return DH_OK;
}

dh_status dh_st_writer_put_f32(dh_ctx *ctx, dh_st_writer *w, const char *name, int64_t row0,
                               int64_t n_rows, int64_t col0, int64_t n_cols, const float *src,
                               int64_t src_ld)
{
    const dh_st_tensor *t;
    DH_TRY(find_started(ctx, w, name, &t));
    if (t->dtype != DH_ST_F32 && t->dtype != DH_ST_BF16)
        return dh_fail(ctx, DH_EUNSUPPORTED, "tensor \"%s\" is %s; float32 goes into F32 or BF16",
                       name, dh_st_dtype_name(t->dtype));
    int64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1;
    int64_t rows = cols ? t->n_items / cols : 0;
    if (row0 < 0 || n_rows < 0 || row0 > rows || n_rows > rows - row0 || col0 < 0 || n_cols < 0 ||
        col0 > cols || n_cols > cols - col0 || src_ld < n_cols)
        return dh_fail(ctx, DH_EINVAL,
                       "tensor \"%s\": rows %lld+%lld, columns %lld+%lld (source row length %lld) "
                       "do not fit %lld x %lld",
                       name, (long long)row0, (long long)n_rows, (long long)col0, (long long)n_cols,
                       (long long)src_ld, (long long)rows, (long long)cols);
    if (n_cols == cols && src_ld == cols)
        return put_run(ctx, w, t, row0 * cols, src, n_rows * cols);
    for (int64_t r = 0; r < n_rows; r++)
        DH_TRY(put_run(ctx, w, t, (row0 + r) * cols + col0, src + r * src_ld, n_cols));
    return DH_OK;
}

dh_status dh_st_writer_finish(dh_ctx *ctx, dh_st_writer *w)
{
    if (w->fd < 0) return dh_fail(ctx, DH_EINVAL, "no safetensors file is open for writing");
    uint64_t put = atomic_load(&w->put_bytes);
    if (w->mode == DH_ST_CREATE && put != w->data_bytes)
        return dh_fail(ctx, DH_EINVAL, "%s: %llu bytes were put, but its tensors have %zu", w->path,
                       (unsigned long long)put, w->data_bytes);
    if (fsync(w->fd) != 0)
        return dh_fail(ctx, DH_EIO, "cannot sync %s: %s", w->path, strerror(errno));
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) == 0) return DH_OK;
    int cause = errno;
    if (w->mode != DH_ST_JOIN) unlink(w->path);
    return dh_fail(ctx, DH_EIO, "cannot close %s: %s", w->path, strerror(cause));
}
