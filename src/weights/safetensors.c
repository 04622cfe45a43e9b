/* Reading safetensors: parse the header, then prove that the tensors tile the
 * data exactly, before anything is handed out. Nothing is copied but names. */
#include "weights/safetensors.h"
#include "base/json_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the data is used in place");

typedef struct st_meta {
    const char *key, *value;
} st_meta;

struct dh_safetensors {
    dh_arena *arena;
    dh_mapped file;        /* without a path when parsed from memory */
    dh_st_tensor *tensors; /* in order of the data */
    const dh_st_tensor **by_name;
    size_t n_tensors;
    st_meta *meta;
    size_t n_meta;
};

/* ---- element types ---------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t bytes;
} st_dtypes[DH_N_ST_DTYPE] = {
#define X(code, bytes) [DH_ST_##code] = {#code, bytes},
    DH_ST_DTYPE_LIST(X)
#undef X
};

const char *dh_st_dtype_name(dh_st_dtype dtype)
{
    return (unsigned)dtype < DH_N_ST_DTYPE ? st_dtypes[dtype].name : "?";
}

size_t dh_st_dtype_bytes(dh_st_dtype dtype)
{
    return (unsigned)dtype < DH_N_ST_DTYPE ? st_dtypes[dtype].bytes : 0;
}

dh_st_dtype dh_st_dtype_parse(const char *name)
{
    for (int i = 0; i < DH_N_ST_DTYPE; i++)
        if (strcmp(st_dtypes[i].name, name) == 0) return (dh_st_dtype)i;
    return DH_N_ST_DTYPE;
}

dh_st_dtype dh_st_dtype_of(dh_dtype dtype)
{
    static const dh_st_dtype same[DH_N_DTYPE] = {
        [DH_F32] = DH_ST_F32, [DH_BF16] = DH_ST_BF16, [DH_I32] = DH_ST_I32,
        [DH_U8] = DH_ST_U8,   [DH_F64] = DH_ST_F64,   [DH_I64] = DH_ST_I64,
    };
    return (unsigned)dtype < DH_N_DTYPE ? same[dtype] : DH_N_ST_DTYPE;
}

const char *dh_shape_text(char *buf, size_t cap, int ndim, const int64_t *shape)
{
    size_t at = 0;
    if (cap == 0) return buf;
    buf[0] = '\0';
    for (int i = 0; i <= ndim && at < cap; i++) {
        int n = i == ndim
                    ? snprintf(buf + at, cap - at, ndim ? "]" : "[]")
                    : snprintf(buf + at, cap - at, "%s%lld", i ? ", " : "[", (long long)shape[i]);
        at += (size_t)n;
    }
    return buf;
}

/* ---- one tensor's entry -------------------------------------------------------------- */

static dh_status entry_fault(dh_ctx *ctx, const char *tensor, const char *what)
{
    return dh_fail(ctx, DH_EFORMAT, "tensor \"%.200s\": %s", tensor, what);
}

static dh_status read_dtype(dh_ctx *ctx, const json_t *entry, dh_st_tensor *t)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name) return entry_fault(ctx, t->name, "\"dtype\" must be a string such as \"F32\"");
    t->dtype = dh_st_dtype_parse(name);
    if (t->dtype == DH_N_ST_DTYPE)
        return dh_fail(ctx, DH_EFORMAT,
                       "tensor \"%.200s\": unknown dtype \"%.40s\" (known: F64, F32, F16, BF16, "
                       "F8_E4M3, F8_E5M2, I64..I8, U64..U8, BOOL)",
                       t->name, name);
    return DH_OK;
}

static dh_status read_shape(dh_ctx *ctx, const json_t *entry, dh_st_tensor *t)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return entry_fault(ctx, t->name, "\"shape\" must be an array of sizes");
    size_t ndim = json_array_size(shape);
    if (ndim > DH_ST_MAX_DIMS)
        return dh_fail(ctx, DH_EFORMAT, "tensor \"%.200s\": %zu dimensions, at most %d are read",
                       t->name, ndim, DH_ST_MAX_DIMS);
    t->ndim = (int)ndim;
    t->n_items = 1;
    bool empty = false, overflow = false;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return dh_fail(ctx, DH_EFORMAT,
                           "tensor \"%.200s\": shape[%d] must be a whole number, at least 0",
                           t->name, i);
        t->shape[i] = json_integer_value(size);
        empty = empty || t->shape[i] == 0;
        overflow = overflow || __builtin_mul_overflow(t->n_items, t->shape[i], &t->n_items);
    }
    if (empty) t->n_items = 0;
    int64_t n_bytes;
    if ((!empty && overflow) ||
        __builtin_mul_overflow(t->n_items, (int64_t)dh_st_dtype_bytes(t->dtype), &n_bytes))
        return entry_fault(ctx, t->name, "the shape's size overflows 64 bits");
    t->n_bytes = (size_t)n_bytes;
    return DH_OK;
}

static dh_status read_offsets(dh_ctx *ctx, const json_t *entry, size_t data_bytes, dh_st_tensor *t)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return entry_fault(ctx, t->name, "\"data_offsets\" must be two whole numbers");
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return dh_fail(ctx, DH_EFORMAT,
                       "tensor \"%.200s\": data_offsets [%lld, %lld] lie outside the %zu bytes of "
                       "data (is the file truncated?)",
                       t->name, (long long)begin, (long long)end, data_bytes);
    if ((size_t)(end - begin) != t->n_bytes) {
        char shape[160];
        return dh_fail(ctx, DH_EFORMAT,
                       "tensor \"%.200s\": data_offsets [%lld, %lld] hold %lld bytes, but %s %s "
                       "takes %zu",
                       t->name, (long long)begin, (long long)end, (long long)(end - begin),
                       dh_st_dtype_name(t->dtype),
                       dh_shape_text(shape, sizeof shape, t->ndim, t->shape), t->n_bytes);
    }
    t->offset = (size_t)begin;
    return DH_OK;
}

static dh_status read_entry(dh_ctx *ctx, dh_arena *arena, const char *name, const json_t *entry,
                            size_t data_bytes, dh_st_tensor *t)
{
    t->name = dh_arena_strdup(arena, name);
    if (!t->name) return dh_no_memory(ctx);
    if (!json_is_object(entry)) return entry_fault(ctx, name, "its entry must be an object");
    DH_TRY(read_dtype(ctx, entry, t));
    DH_TRY(read_shape(ctx, entry, t));
    return read_offsets(ctx, entry, data_bytes, t);
}

/* ---- the header as a whole -------------------------------------------------------------- */

static dh_status read_metadata(dh_ctx *ctx, dh_safetensors *st, json_t *meta)
{
    if (!json_is_object(meta))
        return dh_fail(ctx, DH_EFORMAT, "\"__metadata__\" must be an object of strings");
    st->meta = DH_NEW_N(st->arena, st_meta, json_object_size(meta));
    if (!st->meta) return dh_no_memory(ctx);
    const char *key;
    json_t *value;
    json_object_foreach(meta, key, value)
    {
        if (!json_is_string(value))
            return dh_fail(ctx, DH_EFORMAT, "\"__metadata__\": \"%.200s\" must be a string", key);
        st_meta *m = &st->meta[st->n_meta++];
        m->key = dh_arena_strdup(st->arena, key);
        m->value = dh_arena_strdup(st->arena, json_string_value(value));
        if (!m->key || !m->value) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static dh_status read_entries(dh_ctx *ctx, dh_safetensors *st, json_t *header, size_t data_bytes)
{
    size_t n = json_object_size(header);
    st->tensors = DH_NEW_N(st->arena, dh_st_tensor, n);
    st->by_name = DH_NEW_N(st->arena, const dh_st_tensor *, n);
    if (!st->tensors || !st->by_name) return dh_no_memory(ctx);
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            DH_TRY(read_metadata(ctx, st, entry));
            continue;
        }
        dh_st_tensor *t = &st->tensors[st->n_tensors++];
        DH_TRY(read_entry(ctx, st->arena, name, entry, data_bytes, t));
    }
    return DH_OK;
}

/* By begin, then end: an empty tensor comes before the one that starts where it is. */
static int compare_offsets(const void *a, const void *b)
{
    const dh_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    const dh_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* In order of the data, every tensor must start where the last one ended. */
static dh_status check_tiling(dh_ctx *ctx, dh_safetensors *st, size_t data_bytes)
{
    if (st->n_tensors) qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_offsets);
    size_t at = 0;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const dh_st_tensor *t = &st->tensors[i];
        if (t->offset < at)
            return dh_fail(ctx, DH_EFORMAT, "tensors \"%.200s\" and \"%.200s\" overlap",
                           st->tensors[i - 1].name, t->name);
        if (t->offset > at)
            return dh_fail(ctx, DH_EFORMAT,
                           "tensor \"%.200s\": bytes %zu to %zu before it belong to no tensor",
                           t->name, at, t->offset);
        at += t->n_bytes;
    }
    if (at != data_bytes)
        return dh_fail(ctx, DH_EFORMAT, "the tensors take %zu bytes, but the file has %zu", at,
                       data_bytes);
    return DH_OK;
}

static void index_names(dh_safetensors *st, const unsigned char *data)
{
    for (size_t i = 0; i < st->n_tensors; i++) {
        st->tensors[i].data = data + st->tensors[i].offset;
        st->tensors[i].file = &st->file;
        st->by_name[i] = &st->tensors[i];
    }
    if (st->n_tensors) qsort(st->by_name, st->n_tensors, sizeof *st->by_name, compare_names);
}

static dh_status parse_header(dh_ctx *ctx, dh_safetensors *st, const char *text,
                              size_t header_bytes)
{
    const size_t head = sizeof(uint64_t) + header_bytes, data_bytes = st->file.map.n_bytes - head;
    json_error_t fault;
    json_t *header;
    DH_TRY(dh_json_read(ctx, text, header_bytes, JSON_REJECT_DUPLICATES, &fault, &header));
    if (!header)
        return dh_fail(ctx, DH_EFORMAT, "the header is no valid JSON at byte %d: %s",
                       fault.position, fault.text);
    dh_status st_code = json_is_object(header)
                            ? read_entries(ctx, st, header, data_bytes)
                            : dh_fail(ctx, DH_EFORMAT, "the header must be a JSON object");
    json_decref(header);
    DH_TRY(st_code);
    DH_TRY(check_tiling(ctx, st, data_bytes));
    index_names(st, st->file.map.at + head);
    return DH_OK;
}

static dh_status read_header(dh_ctx *ctx, dh_safetensors *st)
{
    const size_t n_bytes = st->file.map.n_bytes;
    uint64_t header_bytes;
    if (n_bytes < sizeof header_bytes)
        return dh_fail(ctx, DH_EFORMAT, "%zu bytes are too short for a header length", n_bytes);
    DH_TRY(dh_mapped_copy(ctx, &st->file, &header_bytes, st->file.map.at, sizeof header_bytes));
    if (header_bytes > DH_ST_MAX_HEADER_BYTES)
        return dh_fail(ctx, DH_EFORMAT, "the header claims %llu bytes, more than the %zu allowed",
                       (unsigned long long)header_bytes, DH_ST_MAX_HEADER_BYTES);
    if (header_bytes > n_bytes - sizeof header_bytes)
        return dh_fail(ctx, DH_EFORMAT, "the header claims %llu bytes, but only %zu follow",
                       (unsigned long long)header_bytes, n_bytes - sizeof header_bytes);
    char *text = malloc((size_t)header_bytes + 1);
    if (!text) return dh_no_memory(ctx);
    dh_status code = dh_mapped_copy(ctx, &st->file, text, st->file.map.at + sizeof header_bytes,
                                    (size_t)header_bytes);
    if (code == DH_OK) code = parse_header(ctx, st, text, (size_t)header_bytes);
    free(text);
    return code;
}

/* ---- public -------------------------------------------------------------------------------- */

static dh_safetensors *create(const dh_mapped *file)
{
    dh_arena *arena = dh_arena_create();
    dh_safetensors *st = arena ? DH_NEW(arena, dh_safetensors) : NULL;
    if (st) {
        st->arena = arena;
        st->file = *file;
        if (file->path) st->file.path = dh_arena_strdup(arena, file->path);
    }
    if (st && (st->file.path || !file->path)) return st;
    dh_arena_destroy(arena);
    return NULL;
}

static dh_status parse(dh_ctx *ctx, const dh_mapped *file, const char *name, dh_safetensors **out)
{
    dh_safetensors *st = create(file);
    if (!st) return dh_no_memory_while(ctx, "reading %s", name);
    if (read_header(ctx, st) != DH_OK) {
        dh_arena_destroy(st->arena);
        return dh_ctx_while(ctx, "reading %s as safetensors", name);
    }
    *out = st;
    return DH_OK;
}

dh_status dh_st_parse(dh_ctx *ctx, const void *data, size_t n_bytes, const char *name,
                      dh_safetensors **out)
{
    const dh_mapped memory = {.map = {data, n_bytes}};
    return parse(ctx, &memory, name, out);
}

dh_status dh_st_open(dh_ctx *ctx, const char *path, dh_safetensors **out)
{
    dh_mapped file;
    DH_TRY(dh_mapped_open(ctx, path, &file));
    const dh_status code = parse(ctx, &file, path, out);
    if (code != DH_OK) dh_map_close(&file.map);
    return code;
}

void dh_st_close(dh_safetensors *st)
{
    if (!st) return;
    if (st->file.path) dh_map_close(&st->file.map);
    dh_arena_destroy(st->arena);
}

size_t dh_st_n_tensors(const dh_safetensors *st)
{
    return st->n_tensors;
}

const dh_st_tensor *dh_st_at(const dh_safetensors *st, size_t i)
{
    DH_CHECK(i < st->n_tensors, "tensor %zu of %zu", i, st->n_tensors);
    return &st->tensors[i];
}

const dh_st_tensor *dh_st_find(const dh_safetensors *st, const char *name)
{
    const dh_st_tensor key = {.name = name}, *key_at = &key;
    if (!st->n_tensors) return NULL;
    const dh_st_tensor **hit =
        bsearch(&key_at, st->by_name, st->n_tensors, sizeof *st->by_name, compare_names);
    return hit ? *hit : NULL;
}

const char *dh_st_metadata_get(const dh_safetensors *st, const char *key)
{
    for (size_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, key) == 0) return st->meta[i].value;
    return NULL;
}

dh_status dh_st_copy(dh_ctx *ctx, const dh_st_tensor *t, size_t at, size_t n_bytes, void *to)
{
    return dh_mapped_copy(ctx, t->file, to, t->data + at, n_bytes);
}
