/* The safetensors file format: named tensors behind a JSON header.
 *
 * Layout (huggingface/safetensors, README "Format"): 8 bytes little-endian header length N, N bytes
 * of JSON, then the data. The JSON is {"name": {"dtype", "shape", "data_offsets": [begin, end]},
 * ..., "__metadata__": {text: text}}. Offsets count from the end of the header. Data are row-major,
 * little-endian, without holes and overlaps. A file is validated wholly before any of it is
 * used. */
#ifndef DH_WEIGHTS_SAFETENSORS_H
#define DH_WEIGHTS_SAFETENSORS_H

#include "base/mapped.h"
#include "dhelix/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of the format: code, name in the header, bytes. */
#define DH_ST_DTYPE_LIST(X)                                                                        \
    X(F32, 4)                                                                                      \
    X(F64, 8)                                                                                      \
    X(F16, 2)                                                                                      \
    X(BF16, 2)                                                                                     \
    X(F8_E4M3, 1)                                                                                  \
    X(F8_E5M2, 1)                                                                                  \
    X(I64, 8)                                                                                      \
    X(I32, 4)                                                                                      \
    X(I16, 2)                                                                                      \
    X(I8, 1)                                                                                       \
    X(U64, 8)                                                                                      \
    X(U32, 4)                                                                                      \
    X(U16, 2)                                                                                      \
    X(U8, 1)                                                                                       \
    X(BOOL, 1)

typedef enum dh_st_dtype {
#define X(code, bytes) DH_ST_##code,
    DH_ST_DTYPE_LIST(X)
#undef X
        DH_N_ST_DTYPE
} dh_st_dtype;

const char *dh_st_dtype_name(dh_st_dtype dtype); /* "BF16"; never NULL */
size_t dh_st_dtype_bytes(dh_st_dtype dtype);     /* 0 when unknown */
dh_st_dtype dh_st_dtype_parse(const char *name); /* DH_N_ST_DTYPE when unknown */
dh_st_dtype dh_st_dtype_of(dh_dtype dtype);      /* the same type here */
const char *dh_shape_text(char *buf, size_t cap, int ndim,
                          const int64_t *shape); /* "[50257, 768]" into buf, returns it */

#define DH_ST_MAX_DIMS 8
#define DH_ST_MAX_HEADER_BYTES ((size_t)100 << 20) /* the reference reader's bound */

typedef struct dh_st_tensor {
    const char *name;
    dh_st_dtype dtype;
    int ndim; /* 0: a scalar */
    int64_t shape[DH_ST_MAX_DIMS];
    int64_t n_items;
    size_t offset, n_bytes;    /* offset from the start of the data */
    const unsigned char *data; /* row-major; may be unaligned: read with dh_st_copy */
    const dh_mapped *file;
} dh_st_tensor;

/* ---- reading ------------------------------------------------------------------- */

typedef struct dh_safetensors dh_safetensors;

/* Map a file and validate it. The data is paged in when it is copied.
 * out       caller closes with dh_st_close; tensors live as long as it
 * errors    DH_EIO; DH_EFORMAT (names the file, and the tensor at fault); DH_ENOMEM */
dh_status dh_st_open(dh_ctx *ctx, const char *path, dh_safetensors **out);
/* The same from memory; borrows data until the close. name: for messages. */
dh_status dh_st_parse(dh_ctx *ctx, const void *data, size_t n_bytes, const char *name,
                      dh_safetensors **out);
void dh_st_close(dh_safetensors *st);

size_t dh_st_n_tensors(const dh_safetensors *st);
const dh_st_tensor *dh_st_at(const dh_safetensors *st, size_t i); /* in order of the data */
/* O(log n); NULL when absent. */
const dh_st_tensor *dh_st_find(const dh_safetensors *st, const char *name);
/* Bytes of a tensor, [at, at + n_bytes).
 * errors    DH_EIO another program has cut the file short */
dh_status dh_st_copy(dh_ctx *ctx, const dh_st_tensor *t, size_t at, size_t n_bytes, void *to);
/* A text of the file's metadata; NULL: absent. */
const char *dh_st_metadata_get(const dh_safetensors *st, const char *key);

/* ---- writing: declare every tensor, start the file, put data in any order -------- */

typedef struct dh_st_writer dh_st_writer;

typedef enum dh_st_mode {
    DH_ST_CREATE,        /* sole writer: finish demands that every byte was put */
    DH_ST_CREATE_SHARED, /* creates the file that others join */
    DH_ST_JOIN           /* puts into a file another rank has created */
} dh_st_mode;

dh_status dh_st_writer_create(dh_ctx *ctx, dh_st_writer **out);
/* Closes; a file that was created here and not finished is removed. */
void dh_st_writer_destroy(dh_st_writer *w);
dh_status dh_st_writer_metadata(dh_ctx *ctx, dh_st_writer *w, const char *key, const char *value);
dh_status dh_st_writer_declare(dh_ctx *ctx, dh_st_writer *w, const char *name, dh_st_dtype dtype,
                               int ndim, const int64_t *shape);
/* Lay the file out, then create it at its full size, or join it. Wider types come first, so that
 * all are aligned; else the order is that of declaration. The data starts at a multiple of 64. The
 * header depends on the declarations alone: ranks that declare the same may put parts of one file.
 * They may do so once the creator's start has returned (the caller's barrier). A joiner's header
 * must match the file's.
 * errors    DH_EINVAL a name twice, or headers differ; DH_EIO, disk full included */
dh_status dh_st_writer_start(dh_ctx *ctx, dh_st_writer *w, const char *path, dh_st_mode mode);
/* After start, the put functions may be called from several threads at once
 * (each with its own ctx). Every byte is put once.
 * Bytes of one tensor, in its declared type. */
dh_status dh_st_writer_put(dh_ctx *ctx, dh_st_writer *w, const char *name, size_t offset_bytes,
                           const void *data, size_t n_bytes);
/* Region of a matrix from float32, row r of the region at src + r * src_ld; the
 * declared type is F32 or BF16 (rounded to nearest even). Leading dimensions
 * count as rows; a vector is one row. */
dh_status dh_st_writer_put_f32(dh_ctx *ctx, dh_st_writer *w, const char *name, int64_t row0,
                               int64_t n_rows, int64_t col0, int64_t n_cols, const float *src,
                               int64_t src_ld);
/* fsync and close. */
dh_status dh_st_writer_finish(dh_ctx *ctx, dh_st_writer *w);

#ifdef __cplusplus
}
#endif
#endif
