#include "data/token_file.h"
#include "base/mapped.h"
#include "base/stamp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- token types -------------------------------------------------------------------- */

#define TOKEN_TYPES(X)                                                                             \
    X(DH_TOKEN_U8, uint8_t)                                                                        \
    X(DH_TOKEN_U16, uint16_t)                                                                      \
    X(DH_TOKEN_I16, int16_t)                                                                       \
    X(DH_TOKEN_I32, int32_t)                                                                       \
    X(DH_TOKEN_U32, uint32_t)                                                                      \
    X(DH_TOKEN_I64, int64_t)

#define WIDEN(code, type)                                                                          \
    static size_t widen_##code(const unsigned char *at, size_t n, int64_t bound, int32_t *out,     \
                               int64_t *bad)                                                       \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            type value;                                                                            \
            memcpy(&value, at + i * sizeof value, sizeof value);                                   \
            int64_t id = (int64_t)value;                                                           \
            if (id < 0 || id >= bound) {                                                           \
                *bad = id;                                                                         \
                return i;                                                                          \
            }                                                                                      \
            out[i] = (int32_t)id;                                                                  \
        }                                                                                          \
        return n;                                                                                  \
    }
TOKEN_TYPES(WIDEN)

typedef struct token_row {
    size_t n_bytes;
    size_t (*widen)(const unsigned char *at, size_t n, int64_t bound, int32_t *out, int64_t *bad);
} token_row;

#define ROW(code, type) [code] = {sizeof(type), widen_##code},
static const token_row token_rows[DH_N_TOKEN_TYPES] = {TOKEN_TYPES(ROW)};

size_t dh_token_bytes(dh_token_type type)
{
    return token_rows[type].n_bytes;
}

size_t dh_token_widen(const dh_token_run *run, int64_t first, size_t n, int64_t bound, int32_t *out,
                      int64_t *bad)
{
    enum { PIECE_BYTES = 16384 };
    const token_row *row = &token_rows[run->type];
    const unsigned char *at = run->at + (size_t)first * row->n_bytes;
    unsigned char piece[PIECE_BYTES];
    for (size_t done = 0, part; done < n; done += part) {
        part = DH_MIN(n - done, PIECE_BYTES / row->n_bytes);
        *bad = DH_TOKEN_CUT;
        if (!dh_copy_mapped(piece, at + done * row->n_bytes, part * row->n_bytes)) return done;
        const size_t good = row->widen(piece, part, bound, out + done, bad);
        if (good < part) return done + good;
    }
    return n;
}

/* ---- llm.c ---------------------------------------------------------------------------- */

enum { LLMC_HEADER_INTS = 256, LLMC_HEADER_BYTES = 4 * LLMC_HEADER_INTS };

static const struct llmc_row {
    int32_t magic, version;
    dh_token_type type;
} llmc_rows[] = {{20240520, 1, DH_TOKEN_U16}, {20240801, 7, DH_TOKEN_U32}};

static const struct llmc_row *llmc_row_of(const void *data, size_t n_bytes)
{
    int32_t magic;
    if (n_bytes < sizeof magic || !dh_copy_mapped(&magic, data, sizeof magic)) return NULL;
    for (size_t i = 0; i < DH_COUNTOF(llmc_rows); i++)
        if (llmc_rows[i].magic == magic) return &llmc_rows[i];
    return NULL;
}

bool dh_is_llmc(const void *data, size_t n_bytes)
{
    return llmc_row_of(data, n_bytes) != NULL;
}

dh_status dh_tokens_parse_llmc(dh_ctx *ctx, const void *data, size_t n_bytes, dh_token_run *run)
{
    const struct llmc_row *row = llmc_row_of(data, n_bytes);
    int32_t header[3];
    if (!row)
        return dh_fail(ctx, DH_EFORMAT, "not an llm.c token file: it starts with neither %d nor %d",
                       llmc_rows[0].magic, llmc_rows[1].magic);
    if (n_bytes < LLMC_HEADER_BYTES)
        return dh_fail(ctx, DH_EFORMAT, "cut off in the header: %zu of %d bytes", n_bytes,
                       LLMC_HEADER_BYTES);
    if (!dh_copy_mapped(header, data, sizeof header))
        return dh_fail(ctx, DH_EIO, "it was cut short by another program while it was read");
    if (header[1] != row->version)
        return dh_fail(ctx, DH_EUNSUPPORTED, "llm.c file of magic %d has version %d, want %d",
                       row->magic, header[1], row->version);
    size_t width = dh_token_bytes(row->type), n_payload = n_bytes - LLMC_HEADER_BYTES;
    if (header[2] < 0 || (uint64_t)header[2] * width != n_payload)
        return dh_fail(ctx, DH_EFORMAT,
                       "the header counts %d tokens of %zu bytes, but %zu bytes follow it",
                       header[2], width, n_payload);
    *run = (dh_token_run){(const unsigned char *)data + LLMC_HEADER_BYTES, row->type, header[2]};
    return DH_OK;
}

/* ---- Megatron ---------------------------------------------------------------------------
 * X.idx (Megatron-LM, indexed_dataset.py) has a header and three arrays:
 *   header         magic, u64 version, u8 type code, u64 sequences, u64 document marks
 *   each sequence  i32 length
 *   each sequence  i64 byte offset in X.bin
 *   each document  i64 first sequence */

static const char megatron_magic[9] = "MMIDIDX\0";
enum { MEGATRON_HEAD_BYTES = 9 + 8 + 1 + 8 + 8 };

static const struct {
    unsigned char code;
    dh_token_type type;
} megatron_types[] = {
    {1, DH_TOKEN_U8}, {3, DH_TOKEN_I16}, {4, DH_TOKEN_I32}, {5, DH_TOKEN_I64}, {8, DH_TOKEN_U16}};

typedef struct megatron_index {
    dh_token_type type;
    uint64_t n_sequences, n_marks;
    const unsigned char *lengths, *pointers, *marks; /* unaligned i32, i64, i64 */
} megatron_index;

static uint64_t load_u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static dh_status read_index_head(dh_ctx *ctx, const unsigned char *idx, size_t n,
                                 megatron_index *index)
{
    if (n < MEGATRON_HEAD_BYTES)
        return dh_fail(ctx, DH_EFORMAT, "the index is cut off in its header: %zu of %d bytes", n,
                       MEGATRON_HEAD_BYTES);
    if (memcmp(idx, megatron_magic, sizeof megatron_magic) != 0)
        return dh_fail(ctx, DH_EFORMAT, "the index does not start with MMIDIDX");
    if (load_u64(idx + 9) != 1)
        return dh_fail(ctx, DH_EUNSUPPORTED, "the index has version %llu, want 1",
                       (unsigned long long)load_u64(idx + 9));
    size_t row = 0;
    while (row < DH_COUNTOF(megatron_types) && megatron_types[row].code != idx[17]) row++;
    if (row == DH_COUNTOF(megatron_types))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "the index has token type %d; 1, 3, 4, 5 and 8 are integers", idx[17]);
    index->type = megatron_types[row].type;
    index->n_sequences = load_u64(idx + 18);
    index->n_marks = load_u64(idx + 26);
    uint64_t left = n - MEGATRON_HEAD_BYTES;
    if (index->n_sequences > left / 12 || index->n_marks > (left - 12 * index->n_sequences) / 8)
        return dh_fail(ctx, DH_EFORMAT,
                       "the index counts %llu sequences and %llu document marks, but has %zu bytes",
                       (unsigned long long)index->n_sequences, (unsigned long long)index->n_marks,
                       n);
    index->lengths = idx + MEGATRON_HEAD_BYTES;
    index->pointers = index->lengths + 4 * index->n_sequences;
    index->marks = index->pointers + 8 * index->n_sequences;
    return DH_OK;
}

static dh_status check_marks(dh_ctx *ctx, const megatron_index *index)
{
    uint64_t last = 0;
    for (uint64_t i = 0; i < index->n_marks; i++) {
        uint64_t mark = load_u64(index->marks + 8 * i);
        if (mark < last || mark > index->n_sequences)
            return dh_fail(ctx, DH_EFORMAT,
                           "document mark %llu of the index is %lld, want %llu..%llu",
                           (unsigned long long)i, (long long)mark, (unsigned long long)last,
                           (unsigned long long)index->n_sequences);
        last = mark;
    }
    /* Megatron marks where each document begins, and the end of the last. One mark says nothing. */
    if (index->n_marks > 1 && (load_u64(index->marks) != 0 || last != index->n_sequences))
        return dh_fail(
            ctx, DH_EFORMAT,
            "the index marks documents from sequence %llu to %llu, but has sequences 0 to "
            "%llu: it was cut, or merged wrongly",
            (unsigned long long)load_u64(index->marks), (unsigned long long)last,
            (unsigned long long)index->n_sequences);
    return DH_OK;
}

/* One sequence: longer the last run, or a new one. */
static dh_status add_sequence(dh_ctx *ctx, const megatron_index *index, uint64_t i,
                              const unsigned char *bin, size_t n_bin, dh_token_runs *runs,
                              int32_t *n_tokens)
{
    int32_t length;
    memcpy(&length, index->lengths + 4 * i, sizeof length);
    uint64_t pointer = load_u64(index->pointers + 8 * i), width = dh_token_bytes(index->type);
    if (length < 0 || pointer > n_bin || (uint64_t)length * width > n_bin - pointer)
        return dh_fail(ctx, DH_EFORMAT,
                       "sequence %llu: %d tokens at byte %lld lie outside the %zu bytes of the "
                       "token file",
                       (unsigned long long)i, length, (long long)pointer, n_bin);
    *n_tokens = length;
    if (length == 0) return DH_OK;
    dh_token_run *last = runs->n ? &runs->at[runs->n - 1] : NULL;
    if (last && last->at + (size_t)last->n * width == bin + pointer) {
        last->n += length;
        return DH_OK;
    }
    dh_token_run run = {bin + pointer, index->type, length};
    return dh_vec_push(runs, run) ? DH_OK : dh_no_memory(ctx);
}

/* Documents that end before sequence i, after `at` tokens. Documents without a token do not
 * count. */
static dh_status add_ends(dh_ctx *ctx, const megatron_index *index, uint64_t i, int64_t at,
                          uint64_t *mark, dh_token_ends *ends)
{
    bool here = false;
    if (!ends) return DH_OK;
    for (; *mark < index->n_marks && load_u64(index->marks + 8 * *mark) <= i; ++*mark) here = true;
    const int64_t last = ends->n ? ends->at[ends->n - 1] : 0;
    if (!here || at == last || dh_vec_push(ends, at)) return DH_OK;
    return dh_no_memory(ctx);
}

dh_status dh_tokens_parse_megatron(dh_ctx *ctx, const void *idx, size_t n_idx, const void *bin,
                                   size_t n_bin, dh_token_runs *runs, dh_token_ends *ends)
{
    megatron_index index = {0};
    DH_TRY(read_index_head(ctx, idx, n_idx, &index));
    DH_TRY(check_marks(ctx, &index));
    dh_token_runs made = {0};
    dh_token_ends found = {0};
    dh_status st = DH_OK;
    uint64_t mark = 0;
    int64_t at = 0;
    for (uint64_t i = 0; st == DH_OK && i <= index.n_sequences; i++) {
        int32_t length = 0;
        st = add_ends(ctx, &index, i, at, &mark, ends ? &found : NULL);
        if (st == DH_OK && i < index.n_sequences)
            st = add_sequence(ctx, &index, i, bin, n_bin, &made, &length);
        at += length;
    }
    if (st == DH_OK) {
        *runs = made;
        if (ends) *ends = found;
    } else {
        dh_vec_fini(&made);
        dh_vec_fini(&found);
    }
    return st;
}

/* ---- writer --------------------------------------------------------------------------------- */

enum { BUFFER_BYTES = 1 << 18 };

struct dh_token_writer {
    char *path;
    dh_temporary tmp;
    size_t header_bytes, width, n_buffered;
    uint64_t count;
    XXH3_state_t *hash;
    unsigned char buffer[BUFFER_BYTES];
};

void dh_token_writer_abort(dh_token_writer *w)
{
    if (!w) return;
    dh_temporary_drop(&w->tmp); /* a file that was put in place stays */
    XXH3_freeState(w->hash);
    free(w->path);
    free(w);
}

static dh_status writer_start(dh_ctx *ctx, dh_token_writer *w)
{
    static const unsigned char zeros[LLMC_HEADER_BYTES];
    DH_CHECK(w->header_bytes <= sizeof zeros);
    DH_TRY(dh_temporary_file(ctx, w->path, &w->tmp));
    return dh_fd_write_all(ctx, w->tmp.fd, w->tmp.path, zeros, w->header_bytes);
}

dh_status dh_token_writer_open(dh_ctx *ctx, const char *path, size_t header_bytes,
                               dh_token_type type, dh_token_writer **w)
{
    dh_token_writer *made = calloc(1, sizeof *made);
    if (!made) return dh_no_memory_while(ctx, "writing %s", path);
    made->tmp = DH_TEMPORARY_NONE;
    made->path = strdup(path);
    made->hash = XXH3_createState();
    made->header_bytes = header_bytes;
    made->width = dh_token_bytes(type);
    dh_status st = made->path && made->hash && XXH3_64bits_reset(made->hash) == XXH_OK
                       ? writer_start(ctx, made)
                       : dh_no_memory_while(ctx, "writing %s", path);
    if (st == DH_OK)
        *w = made;
    else
        dh_token_writer_abort(made);
    return st;
}

dh_status dh_token_writer_flush(dh_ctx *ctx, dh_token_writer *w)
{
    XXH3_64bits_update(w->hash, w->buffer, w->n_buffered);
    DH_TRY(dh_fd_write_all(ctx, w->tmp.fd, w->tmp.path, w->buffer, w->n_buffered));
    w->n_buffered = 0;
    return DH_OK;
}

dh_status dh_token_writer_add(dh_ctx *ctx, dh_token_writer *w, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (w->n_buffered == BUFFER_BYTES) DH_TRY(dh_token_writer_flush(ctx, w));
        memcpy(w->buffer + w->n_buffered, &ids[i], w->width); /* low bytes come first */
        w->n_buffered += w->width;
    }
    w->count += n;
    return DH_OK;
}

uint64_t dh_token_writer_count(const dh_token_writer *w)
{
    return w->count;
}

uint64_t dh_token_writer_hash(const dh_token_writer *w)
{
    DH_CHECK(w->n_buffered == 0, "hash before the tokens were flushed");
    return XXH3_64bits_digest(w->hash);
}

static dh_status writer_finish(dh_ctx *ctx, dh_token_writer *w, const void *header, dh_map *map)
{
    DH_TRY(dh_token_writer_flush(ctx, w));
    ssize_t n = pwrite(w->tmp.fd, header, w->header_bytes, 0);
    if (n != (ssize_t)w->header_bytes)
        return dh_fail(ctx, DH_EIO, "cannot write the header of %s: %s", w->tmp.path,
                       n < 0 ? strerror(errno) : "short write");
    if (map) DH_TRY(dh_fd_map(ctx, w->tmp.fd, w->header_bytes + w->count * w->width, w->path, map));
    return dh_temporary_commit(ctx, &w->tmp, w->path);
}

dh_status dh_token_writer_commit(dh_ctx *ctx, dh_token_writer *w, const void *header, dh_map *map)
{
    const dh_status st = writer_finish(ctx, w, header, map);
    if (st != DH_OK && map) dh_map_close(map);
    dh_token_writer_abort(w);
    return st;
}

/* ---- writing llm.c files -------------------------------------------------------------------- */

typedef dh_status (*fetch_fn)(dh_ctx *ctx, const void *source, int64_t first, int64_t n,
                              int32_t *tokens);

static dh_status check_ids(dh_ctx *ctx, const int32_t *ids, int64_t first, int64_t n,
                           int64_t vocab_size)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return dh_fail(ctx, DH_EINVAL, "token %lld is id %d, outside the vocabulary of %lld",
                           (long long)(first + i), ids[i], (long long)vocab_size);
    return DH_OK;
}

static dh_status copy_tokens(dh_ctx *ctx, dh_token_writer *w, fetch_fn fetch, const void *source,
                             int64_t n, int64_t vocab_size)
{
    enum { BLOCK = 4096 };
    int32_t block[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t part = DH_MIN(n - at, BLOCK);
        DH_TRY(fetch(ctx, source, at, part, block));
        DH_TRY(check_ids(ctx, block, at, part, vocab_size));
        DH_TRY(dh_token_writer_add(ctx, w, block, (size_t)part));
    }
    return DH_OK;
}

static dh_status write_llmc(dh_ctx *ctx, const char *path, fetch_fn fetch, const void *source,
                            int64_t n, int64_t vocab_size)
{
    if (n > INT32_MAX)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld tokens do not fit one llm.c file (2^31 - 1); write several",
                       (long long)n);
    const struct llmc_row *row = &llmc_rows[vocab_size > 65536];
    int32_t header[LLMC_HEADER_INTS] = {row->magic, row->version, (int32_t)n};
    dh_token_writer *w;
    DH_TRY(dh_token_writer_open(ctx, path, sizeof header, row->type, &w));
    dh_status st = copy_tokens(ctx, w, fetch, source, n, vocab_size);
    if (st == DH_OK) return dh_token_writer_commit(ctx, w, header, NULL);
    dh_token_writer_abort(w);
    return st;
}

static dh_status fetch_array(dh_ctx *ctx, const void *source, int64_t first, int64_t n,
                             int32_t *tokens)
{
    memcpy(tokens, (const int32_t *)source + first, (size_t)n * sizeof *tokens);
    return DH_OK;
}

dh_status dh_tokens_write_llmc(dh_ctx *ctx, const char *path, const int32_t *ids, size_t n,
                               int64_t vocab_size)
{
    return write_llmc(ctx, path, fetch_array, ids, (int64_t)n, vocab_size);
}

static dh_status fetch_dataset(dh_ctx *ctx, const void *source, int64_t first, int64_t n,
                               int32_t *tokens)
{
    return dh_dataset_read(ctx, source, first, n, tokens);
}

dh_status dh_dataset_write_llmc(dh_ctx *ctx, const dh_dataset *ds, const char *path,
                                int64_t vocab_size)
{
    return write_llmc(ctx, path, fetch_dataset, ds, dh_dataset_tokens(ds), vocab_size);
}
