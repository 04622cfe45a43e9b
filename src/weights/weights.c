/* Weights as a set of named tensors over mapped files: look a name up, read a
 * region as float32. Nothing is converted before it is asked for. */
#include "weights_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"

/* ---- lookup ----------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const weight *)a)->name, ((const weight *)b)->name);
}

static const weight *find_exact(const dh_weights *w, const char *name)
{
    const weight key = {.name = name};
    if (w->tensors.n == 0) return NULL;
    return bsearch(&key, w->tensors.at, w->tensors.n, sizeof key, compare_names);
}

/* Models that read images too keep the text model's tensors below a name of its own: in newer files
 * inside of "model.", in older ones around it. */
static const weight *find_in_text_model(const dh_weights *w, const char *name)
{
    char longer[256];
    const bool inner = strncmp(name, "model.", 6) == 0;
    const char *const forms[] = {"model.language_model.%s", "language_model.%s"};
    const char *const rests[] = {inner ? name + 6 : name, name};
    const weight *hit = NULL;
    for (size_t i = 0; !hit && i < DH_COUNTOF(forms); i++)
        if ((size_t)snprintf(longer, sizeof longer, forms[i], rests[i]) < sizeof longer)
            hit = find_exact(w, longer);
    return hit;
}

static bool is_embedding(const char *name)
{
    return strcmp(name, "wte.weight") == 0 || strcmp(name, "model.embed_tokens.weight") == 0;
}

/* Whole models and their inner part are saved under names that differ by a prefix. */
static const weight *find_stored(const dh_weights *w, const char *name)
{
    static const char *const prefixes[] = {"transformer.", "model."};
    const weight *hit = find_exact(w, name);
    for (size_t i = 0; !hit && i < DH_COUNTOF(prefixes); i++) {
        size_t n = strlen(prefixes[i]);
        char longer[256];
        if (strncmp(name, prefixes[i], n) == 0)
            hit = find_exact(w, name + n);
        else if ((size_t)snprintf(longer, sizeof longer, "%s%s", prefixes[i], name) < sizeof longer)
            hit = find_exact(w, longer);
    }
    return hit ? hit : find_in_text_model(w, name);
}

static const weight *find_weight(const dh_weights *w, const char *name)
{
    const weight *hit = find_stored(w, name);
    return hit || !w->tied || !is_embedding(name) ? hit : find_stored(w, "lm_head.weight");
}

void dh_weights_tie(dh_weights *w)
{
    w->tied = true;
}

static dh_status missing(dh_ctx *ctx, const dh_weights *w, const char *name)
{
    const char **names = malloc((w->tensors.n + 1) * sizeof *names);
    const char *near = NULL;
    if (names) {
        for (size_t i = 0; i < w->tensors.n; i++) names[i] = w->tensors.at[i].name;
        near = dh_nearest(name, names, w->tensors.n);
    }
    free(names);
    return dh_fail(ctx, DH_EMISSING, "%s has no tensor \"%s\"%s%s%s (%zu tensors)",
                   dh_adapter_has(name) ? "the adapters' file" : w->path, name,
                   near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "",
                   w->tensors.n);
}

static void describe(const weight *t, dh_weight_info *info)
{
    *info = (dh_weight_info){.name = t->name, .dtype = t->dtype, .ndim = t->ndim};
    memcpy(info->shape, t->shape, sizeof info->shape);
}

size_t dh_weights_n(const dh_weights *w)
{
    return w->tensors.n;
}

void dh_weights_at(const dh_weights *w, size_t i, dh_weight_info *info)
{
    DH_CHECK(i < w->tensors.n, "tensor %zu of %zu", i, w->tensors.n);
    describe(&w->tensors.at[i], info);
}

/* ---- conversion to float32: n contiguous items, each to dst[i * step] ------------------ */

static void from_f32(const unsigned char *src, int64_t n, float *dst, int64_t step)
{
    if (step == 1) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) memcpy(&dst[i * step], src + i * 4, 4);
}

static void from_f64(const unsigned char *src, int64_t n, float *dst, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, src + i * 8, 8);
        dst[i * step] = (float)v;
    }
}

static void from_bf16(const unsigned char *src, int64_t n, float *dst, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        dh_bf16 v;
        memcpy(&v, src + i * 2, 2);
        dst[i * step] = dh_bf16_to_f32(v);
    }
}

/* Normal numbers only change their exponent's bias; the rest is rare. */
static inline float f16_to_f32(uint16_t half)
{
    uint32_t exponent = (half >> 10) & 0x1f;
    if (exponent == 0 || exponent == 31) return dh_f16_to_f32(half);
    uint32_t bits = (uint32_t)(half & 0x8000u) << 16 | (((uint32_t)half & 0x7fffu) << 13);
    bits += (uint32_t)(127 - 15) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void from_f16(const unsigned char *src, int64_t n, float *dst, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, src + i * 2, 2);
        dst[i * step] = f16_to_f32(v);
    }
}

typedef void (*convert_fn)(const unsigned char *src, int64_t n, float *dst, int64_t step);

/* NULL: not a type of weights. */
static const convert_fn converters[DH_N_ST_DTYPE] = {
    [DH_ST_F32] = from_f32,
    [DH_ST_F64] = from_f64,
    [DH_ST_BF16] = from_bf16,
    [DH_ST_F16] = from_f16,
};

/* ---- reading a region --------------------------------------------------------------------- */

typedef struct matrix {
    int64_t rows, cols;
} matrix;

/* An opened tensor's item count fits 64 bits; an empty one's other sizes may not. */
static matrix matrix_of(const weight *t)
{
    matrix m = {.rows = 1, .cols = t->ndim ? t->shape[t->ndim - 1] : 1};
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0) return (matrix){0, m.cols};
    for (int i = 0; i + 1 < t->ndim; i++) m.rows *= t->shape[i];
    return m;
}

static dh_status check_type(dh_ctx *ctx, const dh_weights *w, const weight *t)
{
    if (converters[t->dtype]) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "%s: tensor \"%s\" is %s; weights are read from F32, F16, BF16 and F64", w->path,
                   t->name, dh_st_dtype_name(t->dtype));
}

dh_status dh_weights_expect(dh_ctx *ctx, const dh_weights *w, const char *hf_name, int ndim,
                            const int64_t *shape)
{
    const weight *t = find_weight(w, hf_name);
    if (!t) return missing(ctx, w, hf_name);
    if (t->ndim != ndim || memcmp(t->shape, shape, (size_t)ndim * sizeof *shape) != 0) {
        char have[192], want[192];
        return dh_fail(ctx, DH_EINVAL, "%s: tensor \"%s\" has shape %s, the model needs %s",
                       w->path, t->name, dh_shape_text(have, sizeof have, t->ndim, t->shape),
                       dh_shape_text(want, sizeof want, ndim, shape));
    }
    return check_type(ctx, w, t);
}

static bool inside(int64_t first, int64_t n, int64_t size)
{
    return first >= 0 && n >= 0 && first <= size && n <= size - first;
}

static dh_status check_region(dh_ctx *ctx, const dh_weights *w, const weight *t, int64_t row0,
                              int64_t n_rows, int64_t col0, int64_t n_cols)
{
    matrix m = matrix_of(t);
    if (inside(row0, n_rows, m.rows) && inside(col0, n_cols, m.cols)) return DH_OK;
    char shape[192];
    return dh_fail(ctx, DH_EINVAL,
                   "%s: tensor \"%s\" has shape %s; rows %lld+%lld, columns %lld+%lld lie outside",
                   w->path, t->name, dh_shape_text(shape, sizeof shape, t->ndim, t->shape),
                   (long long)row0, (long long)n_rows, (long long)col0, (long long)n_cols);
}

static int64_t stored_row(const weight *t, int64_t row)
{
    if (t->layout != LAYOUT_ROPE_PAIRS) return row;
    int64_t half = t->head_dim / 2, in_head = row % t->head_dim;
    int64_t paired = in_head < half ? 2 * in_head : 2 * (in_head - half) + 1;
    return row - in_head + paired;
}

/* A region in stored orientation: item (i, j) goes to dst[i * step_i + j * step_j]. */
typedef struct region {
    int64_t i0, n_i, j0, n_j;
    int64_t step_i, step_j;
} region;

enum { TILE_ROWS = 16, TILE_COLS = 64, BLOCK_BYTES = 1 << 18 };

/* How much of a region is copied out of the file at a time. Where rows become columns of dst, as
 * many rows as fill a line of it; else as many as fit, or a part of one. */
static void choose_block(const region *r, size_t item_bytes, int64_t *n_i, int64_t *n_j)
{
    const int64_t most = BLOCK_BYTES / (int64_t)item_bytes;
    const int64_t fit = DH_MAX(most / DH_MAX(r->n_j, 1), 1);
    *n_i = r->step_j == 1 ? fit : TILE_ROWS;
    *n_j = DH_MIN(DH_MAX(r->n_j, 1), most / *n_i);
}

/* A block, packed, to its place in dst: in tiles when rows become columns, so that the lines of dst
 * stay in the first cache while they are filled. */
static void place_block(const weight *t, const unsigned char *block, region r, float *dst)
{
    const size_t item_bytes = dh_st_dtype_bytes(t->dtype);
    const int64_t tile = r.step_j == 1 ? DH_MAX(r.n_j, 1) : TILE_COLS;
    convert_fn convert = converters[t->dtype];
    for (int64_t j = 0; j < r.n_j; j += tile)
        for (int64_t k = 0; k < r.n_i; k++)
            convert(block + (size_t)(k * r.n_j + j) * item_bytes, DH_MIN(tile, r.n_j - j),
                    dst + k * r.step_i + j * r.step_j, r.step_j);
}

/* Rows that lie in order in the file are copied together; those of rotary pairs do not. */
static dh_status copy_block(dh_ctx *ctx, const dh_reading *from, const weight *t,
                            int64_t stored_cols, const region *r, unsigned char *block)
{
    const size_t item_bytes = dh_st_dtype_bytes(t->dtype), row = (size_t)r->n_j * item_bytes;
    const int64_t n = t->layout == LAYOUT_ROPE_PAIRS ? 1 : r->n_i;
    for (int64_t k = 0; k < r->n_i; k += n) {
        const int64_t item = stored_row(t, r->i0 + k) * stored_cols + r->j0;
        DH_TRY(dh_mapped_rows(ctx, from, block + (size_t)k * row,
                              t->data + (size_t)item * item_bytes, (size_t)n, row,
                              (size_t)stored_cols * item_bytes));
    }
    return DH_OK;
}

static dh_status copy_blocks(dh_ctx *ctx, const dh_reading *from, const weight *t,
                             int64_t stored_cols, region r, unsigned char *block, float *dst)
{
    int64_t n_i, n_j;
    choose_block(&r, dh_st_dtype_bytes(t->dtype), &n_i, &n_j);
    for (int64_t i = 0; i < r.n_i; i += n_i)
        for (int64_t j = 0; j < r.n_j; j += n_j) {
            region part = r;
            DH_TRY(dh_heed_stop(ctx, "weights were read"));
            part.i0 += i;
            part.j0 += j;
            part.n_i = DH_MIN(n_i, r.n_i - i);
            part.n_j = DH_MIN(n_j, r.n_j - j);
            DH_TRY(copy_block(ctx, from, t, stored_cols, &part, block));
            place_block(t, block, part, dst + i * r.step_i + j * r.step_j);
        }
    return DH_OK;
}

static dh_status copy_region(dh_ctx *ctx, const weight *t, int64_t stored_cols, region r,
                             float *dst)
{
    unsigned char *block = malloc(BLOCK_BYTES);
    if (!block) return dh_no_memory(ctx);
    dh_reading from = dh_mapped_begin(t->file);
    const dh_status st = copy_blocks(ctx, &from, t, stored_cols, r, block, dst);
    free(block);
    return dh_mapped_end(ctx, &from, st);
}

dh_status dh_weights_read(dh_ctx *ctx, const dh_weights *w, const char *hf_name, int64_t row0,
                          int64_t n_rows, int64_t col0, int64_t n_cols, bool transpose, float *dst,
                          int64_t dst_ld)
{
    const weight *t = find_weight(w, hf_name);
    if (!t) return missing(ctx, w, hf_name);
    DH_TRY(check_type(ctx, w, t));
    DH_TRY(check_region(ctx, w, t, row0, n_rows, col0, n_cols));
    int64_t run = transpose ? n_rows : n_cols;
    if (dst_ld < run)
        return dh_fail(ctx, DH_EINVAL, "tensor \"%s\": rows of %lld do not fit a stride of %lld",
                       hf_name, (long long)run, (long long)dst_ld);
    bool swapped = t->layout == LAYOUT_TRANSPOSED;
    matrix m = matrix_of(t);
    region r = swapped ? (region){.i0 = col0, .n_i = n_cols, .j0 = row0, .n_j = n_rows}
                       : (region){.i0 = row0, .n_i = n_rows, .j0 = col0, .n_j = n_cols};
    r.step_i = swapped != transpose ? 1 : dst_ld;
    r.step_j = swapped != transpose ? dst_ld : 1;
    DH_TRY(copy_region(ctx, t, swapped ? m.rows : m.cols, r, dst));
    atomic_store_explicit(&w->used[t - w->tensors.at], true, memory_order_relaxed);
    return DH_OK;
}

dh_status dh_weights_check_finite(dh_ctx *ctx, const char *name, const float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return dh_fail(ctx, DH_EINVAL, "tensor \"%s\" holds %f: weights must be finite numbers",
                           name, (double)values[i]);
    return DH_OK;
}

/* ---- what was not read ---------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static bool is_buffer(const char *name)
{
    static const char *const buffers[] = {".attn.bias", ".attn.masked_bias",
                                          ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < DH_COUNTOF(buffers); i++)
        if (ends_with(name, buffers[i])) return true;
    return false;
}

static bool same_data(const weight *a, const weight *b)
{
    if (a->dtype != b->dtype || a->ndim != b->ndim || a->layout != b->layout ||
        memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return false;
    matrix m = matrix_of(a);
    const size_t n_bytes = (size_t)(m.rows * m.cols) * dh_st_dtype_bytes(a->dtype);
    unsigned char of_a[BLOCK_BYTES / 8], of_b[BLOCK_BYTES / 8];
    dh_ctx cut = DH_CTX_INIT;
    for (size_t at = 0, n; at < n_bytes; at += n) {
        n = DH_MIN(n_bytes - at, sizeof of_a);
        if (dh_mapped_copy(&cut, a->file, of_a, a->data + at, n) != DH_OK ||
            dh_mapped_copy(&cut, b->file, of_b, b->data + at, n) != DH_OK ||
            memcmp(of_a, of_b, n) != 0)
            return false;
    }
    return true;
}

/* Some tools save the tied head as a second copy of the embedding. */
static bool is_tied_copy(const dh_weights *w, const weight *t)
{
    static const char *const embeddings[] = {"wte.weight", "model.embed_tokens.weight"};
    if (strcmp(t->name, "lm_head.weight") != 0) return false;
    for (size_t i = 0; i < DH_COUNTOF(embeddings); i++) {
        const weight *e = find_stored(w, embeddings[i]);
        if (e && same_data(e, t)) return true;
    }
    return false;
}

const char *dh_weights_next_unread(const dh_weights *w, size_t *at)
{
    while (*at < w->tensors.n) {
        size_t i = (*at)++;
        const weight *t = &w->tensors.at[i];
        if (!atomic_load_explicit(&w->used[i], memory_order_relaxed) && !is_buffer(t->name) &&
            !is_tied_copy(w, t))
            return t->name;
    }
    return NULL;
}

dh_status dh_weights_model(dh_ctx *ctx, const dh_weights *w, dh_model *model)
{
    if (w->has_model) {
        *model = w->model;
        return DH_OK;
    }
    dh_str file = DH_STR_INIT;
    dh_str_printf(&file, "%s/config.json", w->folder);
    dh_status st = DH_OK;
    if (file.failed)
        st = dh_no_memory(ctx);
    else if (!dh_path_exists(file.text))
        st = dh_fail(ctx, DH_EMISSING,
                     "%s says nothing about its architecture: there is no %s; give the model "
                     "explicitly",
                     w->path, file.text);
    else
        st = dh_model_from_config_file(ctx, file.text, model);
    dh_str_fini(&file);
    return st;
}

void dh_weights_close(dh_weights *w)
{
    if (!w) return;
    for (size_t i = 0; i < w->shards.n; i++) dh_st_close(w->shards.at[i]);
    dh_vec_fini(&w->shards);
    dh_vec_fini(&w->tensors);
    dh_map_close(&w->bin.map);
    dh_arena_destroy(w->arena);
}
