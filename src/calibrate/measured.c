/* Rows of measurements, whatever file they come from. */
#include "calibrate/measured.h"
#include "base/c_locale.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/index.h"
#include "base/mapped.h"
#include "calibrate/nccl.h"
#include "data/unpack.h"

enum { MAX_FILE_BYTES = 1 << 30, NOTE_BYTES = 512 };

/* TUNING: messages of training steps are megabytes; below, latencies differ between collectives in
 * ways that one constant for all cannot have. Small rows count as much as it takes to fix that
 * one. */
#define LARGE_BYTES 1048576.0
#define SMALL_WEIGHT 0.05

static const char *const texts[DH_N_MEASURED] = {
#define X(id, text) text,
    DH_MEASURED_LIST(X)
#undef X
};

const char *dh_measured_text(dh_measured_kind kind)
{
    return texts[kind];
}

dh_status dh_measured_init(dh_ctx *ctx, int64_t node_devices, dh_measured *measured)
{
    *measured = (dh_measured){.arena = dh_arena_create(), .node_devices = node_devices};
    return measured->arena ? DH_OK : dh_no_memory(ctx);
}

void dh_measured_fini(dh_measured *measured)
{
    dh_vec_fini(&measured->pairs);
    dh_vec_fini(&measured->rows);
    dh_vec_fini(&measured->kernels);
    dh_vec_fini(&measured->notes);
    dh_arena_destroy(measured->arena);
}

dh_status measured_no_memory(const measured_file *file)
{
    return dh_no_memory_while(file->ctx, "reading %s", file->path);
}

dh_status measured_note(const measured_file *file, const char *fmt, ...)
{
    char text[NOTE_BYTES];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const char *note = dh_arena_printf(file->m->arena, "%s: %s", file->path, text);
    return note && dh_vec_push(&file->m->notes, note) ? DH_OK : measured_no_memory(file);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Without a group: memory was short for its name. */
static dh_status add_row(const measured_file *file, dh_measured_row row)
{
    row.file = file->path;
    return row.group && dh_vec_push(&file->m->rows, row) ? DH_OK : measured_no_memory(file);
}

static bool is_transfer(dh_op_type type)
{
    return type == DH_OP_RING_EXCHANGE || type == DH_OP_SEND;
}

static const char *group_of(const measured_file *file, dh_op_type type, int64_t ranks,
                            int64_t nodes, bool large)
{
    return dh_arena_printf(file->m->arena, "%s, %lld ranks on %lld node%s, %s 1 MiB",
                           dh_op_info_of(type)->name, (long long)ranks, (long long)nodes,
                           nodes == 1 ? "" : "s", large ? "from" : "below");
}

dh_status measured_add_collective(const measured_file *file, int32_t line, dh_op_type type,
                                  int64_t ranks, int64_t nodes, double bytes, double ns)
{
    static const dh_measured_kind kinds[2][2] = {
        {DH_MEASURED_LOCAL, DH_MEASURED_LOCAL_TRANSFER},
        {DH_MEASURED_NETWORK, DH_MEASURED_NETWORK_TRANSFER}};
    const bool large = bytes >= LARGE_BYTES;
    const dh_measured_row row = {
        .kind = kinds[nodes > 1][is_transfer(type)],
        .group = group_of(file, type, ranks, nodes, large),
        .weight = large ? 1 : SMALL_WEIGHT,
        .line = line,
        .ns = ns,
        .type = type,
        .span = {.size = ranks, .nodes = {.n_nodes = nodes, .max_per_node = ranks / nodes}},
        .bytes = bytes};
    return add_row(file, row);
}

dh_status measured_add_gemm(const measured_file *file, int32_t line, dh_dtype dtype, int64_t m,
                            int64_t n, int64_t k, int64_t batch, double ns)
{
    const double elements = (double)m * (double)k + (double)k * (double)n + (double)m * (double)n;
    const dh_measured_row row = {
        .kind = DH_MEASURED_GEMM,
        .group = dtype == DH_F32 ? "gemm f32" : "gemm bf16",
        .weight = 1,
        .line = line,
        .ns = ns,
        .gemm = {.dtype = dtype,
                 .rows = m,
                 .columns = n,
                 .shared = k,
                 .batch = batch,
                 .bytes = elements * (double)batch * (double)dh_dtype_bytes(dtype)}};
    return add_row(file, row);
}

/* The same work as by dh_op_flops and dh_op_bytes: two GEMMs of queries and keys, five backward.
 * Bytes are those of queries, keys, values and results, and a float of statistics for each query.
 * The backward also has the gradients of all of these. */
static dh_attention_work attention_of(const dh_measured_kernel *k)
{
    const bool grad = k->kind == DH_KERNEL_ATTN_GRAD;
    const double heads = (double)k->size[1], kv_heads = (double)k->size[2];
    const double seq = (double)k->size[3], tokens = (double)k->size[0] * seq;
    const double dim = (double)k->size[4], item = (double)dh_dtype_bytes(k->dtype);
    const double keys = k->unmasked ? 2 * seq : seq + 1; /* times two, in the mean */
    const double packed = heads + 2 * kv_heads, results = heads;
    return (dh_attention_work){.dtype = k->dtype,
                               .flops = (grad ? 5 : 2) * tokens * keys * heads * dim,
                               .bytes = (grad ? 2 : 1) * tokens * (packed + results) * dim * item +
                                        tokens * heads * (double)sizeof(float),
                               .heads = (double)k->size[0] * heads,
                               .queries = seq,
                               .keys = seq,
                               .pairs = seq * keys / 2,
                               .head_dim = dim};
}

static dh_status add_attention(const measured_file *file, const dh_measured_kernel *k)
{
    const bool grad = k->kind == DH_KERNEL_ATTN_GRAD, wide = k->dtype == DH_F32;
    const dh_measured_row row = {.kind = grad ? DH_MEASURED_ATTN_GRAD : DH_MEASURED_ATTN,
                                 .group = grad   ? wide ? "gradient of attention f32"
                                                        : "gradient of attention bf16"
                                          : wide ? "attention f32"
                                                 : "attention bf16",
                                 .weight = 1,
                                 .n_samples = k->n_samples,
                                 .ns = k->ns,
                                 .attention = attention_of(k)};
    return add_row(file, row);
}

/* Small ones take what any kernel does. */
static dh_status add_norm(const measured_file *file, const dh_measured_kernel *k)
{
    const double elements = (double)k->size[0] * (double)k->size[1];
    const double bytes = 2 * elements * (double)dh_dtype_bytes(k->dtype);
    const bool large = bytes >= LARGE_BYTES;
    const dh_measured_row row = {.kind = DH_MEASURED_NORM,
                                 .group = large ? "norm, from 1 MiB" : "norm, below 1 MiB",
                                 .weight = large ? 1 : SMALL_WEIGHT,
                                 .n_samples = k->n_samples,
                                 .ns = k->ns,
                                 .bytes = bytes};
    return add_row(file, row);
}

dh_status measured_add_kernel(const measured_file *file, const dh_measured_kernel *k)
{
    const int64_t *s = k->size;
    if (!dh_vec_push(&file->m->kernels, *k)) return measured_no_memory(file);
    if (k->kind == DH_KERNEL_GEMM)
        return measured_add_gemm(file, 0, k->dtype, s[0], s[1], s[2], s[3], k->ns);
    if (k->kind > DH_KERNEL_NORM) return DH_OK;
    return k->kind == DH_KERNEL_NORM ? add_norm(file, k) : add_attention(file, k);
}

bool measured_dtype(const char *name, dh_dtype *dtype)
{
    static const char *const halves[] = {"bf16", "bfloat16", "fp16", "f16", "half", "float16"};
    static const char *const floats[] = {"f32", "fp32", "float32", "float"};
    const char *colon = strrchr(name, ':'); /* c10::Half */
    if (colon) name = colon + 1;
    for (size_t i = 0; i < DH_COUNTOF(halves); i++)
        if (dh_is_same_word(name, halves[i])) {
            *dtype = DH_BF16;
            return true;
        }
    for (size_t i = 0; i < DH_COUNTOF(floats); i++)
        if (dh_is_same_word(name, floats[i])) {
            *dtype = DH_F32;
            return true;
        }
    return false;
}

/* ---- files ---------------------------------------------------------------------------------- */

static dh_status check_text(const measured_file *f)
{
    if (strncmp(f->text, "\xFF\xFE", 2) == 0 || strncmp(f->text, "\xFE\xFF", 2) == 0)
        return dh_fail(f->ctx, DH_EFORMAT,
                       "%s: a text in UTF-16, as PowerShell writes it; UTF-8 is wanted", f->path);
    if (memchr(f->text, '\0', f->n_bytes))
        return dh_fail(f->ctx, DH_EFORMAT,
                       "%s: not a text; output of nccl-tests, a CSV of GEMMs, a Kineto trace or a "
                       "profile of dhelix (JSON) is wanted",
                       f->path);
    return DH_OK;
}

/* An object, or an array of them. A "[" alone may be a launcher's or a library's. */
static bool is_json(const char *text)
{
    static const char blanks[] = " \t\r\n";
    text += strspn(text, blanks);
    if (*text == '[') {
        text++;
        text += strspn(text, blanks);
    }
    return *text == '{';
}

static dh_status read_text(const measured_file *f)
{
    const size_t before = dh_measured_count(f->m) + f->m->notes.n;
    DH_TRY(check_text(f));
    if (nccl_is_csv(f->text))
        DH_TRY(nccl_read_csv(f));
    else if (strstr(f->text, NCCL_HEADING) && !strstr(f->text, "\"traceEvents\""))
        DH_TRY(measured_read_nccl(f));
    else if (nccl_is_json(f->text))
        DH_TRY(nccl_read_json(f));
    else if (is_json(f->text) && measured_is_profile(f->text))
        DH_TRY(measured_read_profile(f));
    else if (is_json(f->text))
        DH_TRY(measured_read_kineto(f));
    else
        DH_TRY(measured_read_gemms(f));
    if (dh_measured_count(f->m) + f->m->notes.n > before) return DH_OK;
    return dh_fail(f->ctx, DH_EFORMAT,
                   "%s: no measurement in it that a constant could rest on: collectives, GEMMs, "
                   "norms or attention with their sizes, or measured pairs",
                   f->path);
}

/* Terminated, unpacked where it is compressed. Caller frees. */
static dh_status read_whole(dh_ctx *ctx, const char *path, char **text, size_t *n_bytes)
{
    dh_text_file file;
    DH_TRY(dh_text_file_open(ctx, path, NULL, MAX_FILE_BYTES, &file));
    dh_status st = DH_OK;
    const size_t n = file.map.n_bytes;
    if (n > MAX_FILE_BYTES)
        st = dh_fail(ctx, DH_EINVAL, "%s has %zu bytes, more than the %d allowed", path, n,
                     MAX_FILE_BYTES);
    else if (!(*text = malloc(n + 1)))
        st = dh_no_memory_while(ctx, "reading %s", path);
    else if (n && !dh_copy_mapped(*text, file.map.at, n))
        st = dh_fail(ctx, DH_EIO, "%s was cut short by another program while it was being read",
                     path);
    if (st == DH_OK) {
        const size_t mark = n >= 3 && memcmp(*text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; /* UTF-8's */
        memmove(*text, *text + mark, n - mark);
        (*text)[n - mark] = '\0';
        *n_bytes = n - mark;
    }
    dh_text_file_close(&file);
    return st;
}

/* ---- what stands there twice ---------------------------------------------------------------- */

static uint64_t hash_of(const dh_measured_row *r)
{
    const double numbers[] = {(double)r->type,
                              r->ns,
                              r->bytes,
                              (double)r->gemm.rows,
                              (double)r->gemm.columns,
                              (double)r->gemm.shared,
                              (double)r->gemm.batch,
                              r->attention.flops};
    uint64_t hash = (uint64_t)r->kind;
    for (size_t i = 0; i < DH_COUNTOF(numbers); i++) {
        uint64_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        hash = dh_mix64(hash ^ bits);
    }
    return hash;
}

static bool same_row(const dh_measured_row *a, const dh_measured_row *b)
{
    return a->kind == b->kind && a->ns == b->ns && a->type == b->type && a->bytes == b->bytes &&
           strcmp(a->group, b->group) == 0 && a->gemm.rows == b->gemm.rows &&
           a->gemm.columns == b->gemm.columns && a->gemm.shared == b->gemm.shared &&
           a->gemm.batch == b->gemm.batch && a->attention.flops == b->attention.flops;
}

/* Whether the row stands before it; else it is one of those from now on. Operators of one profile
 * (line 0) that take the same time are several all the same. */
static bool stands_already(dh_index *seen, const dh_measured *m, const dh_measured_row *row,
                           size_t number, bool *ok)
{
    const uint64_t hash = hash_of(row);
    size_t at = 0;
    for (uint32_t i = dh_index_first(seen, hash, &at); i != DH_NONE;
         i = dh_index_next(seen, hash, &at)) {
        const dh_measured_row *other = &m->rows.at[i];
        if (same_row(other, row) &&
            (dh_measured_is_call(row) || row->line > 0 || other->file != row->file))
            return true;
    }
    *ok = *ok && dh_index_add(seen, hash, (uint32_t)number);
    return false;
}

/* A measurement that is given twice counts once: its time is the same to the last digit. */
static dh_status drop_repeated(const measured_file *f, size_t before)
{
    dh_measured *m = f->m;
    dh_index seen = {0};
    size_t n = 0;
    bool ok = true;
    for (size_t i = 0; i < m->rows.n; i++)
        if (!stands_already(&seen, m, &m->rows.at[i], n, &ok)) m->rows.at[n++] = m->rows.at[i];
    dh_index_fini(&seen);
    if (!ok) return measured_no_memory(f);
    const size_t n_repeated = m->rows.n - n;
    m->rows.n = n;
    if (n_repeated == 0) return DH_OK;
    return measured_note(f, "%zu of %zu measurements were given before, and count once", n_repeated,
                         n + n_repeated - before);
}

dh_status dh_measured_read(dh_ctx *ctx, const char *path, dh_measured *measured)
{
    char *text = NULL; /* also where reading fails */
    const size_t before = measured->rows.n;
    measured_file f = {.ctx = ctx, .m = measured, .path = dh_arena_strdup(measured->arena, path)};
    if (!f.path) return dh_no_memory_while(ctx, "reading %s", path);
    dh_status st = read_whole(ctx, path, &text, &f.n_bytes);
    f.text = text;
    if (st == DH_OK) st = read_text(&f);
    if (st == DH_OK) st = drop_repeated(&f, before);
    free(text);
    return st;
}
