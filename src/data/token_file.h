/* Token files: types, formats read in place, and the streaming atomic writer. */
#ifndef DH_DATA_TOKEN_FILE_H
#define DH_DATA_TOKEN_FILE_H

#include "base/base.h"
#include "data/dataset.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read in place");

size_t dh_token_bytes(dh_token_type type);
/* Copies n tokens of a run from index `first` on, up to the first one outside of [0, bound).
 * out       *bad: that token; DH_TOKEN_CUT: another program has cut the file short
 * returns   number of tokens copied */
#define DH_TOKEN_CUT INT64_MIN
size_t dh_token_widen(const dh_token_run *run, int64_t first, size_t n, int64_t bound, int32_t *out,
                      int64_t *bad);

bool dh_is_llmc(const void *data, size_t n_bytes);

/* Writer of PATH through a temporary file: header, then tokens of 2 or 4 bytes. */
typedef struct dh_token_writer dh_token_writer;
dh_status dh_token_writer_open(dh_ctx *ctx, const char *path, size_t header_bytes,
                               dh_token_type type, dh_token_writer **w);
dh_status dh_token_writer_add(dh_ctx *ctx, dh_token_writer *w, const int32_t *ids, size_t n);
dh_status dh_token_writer_flush(dh_ctx *ctx, dh_token_writer *w); /* before asking the hash */
uint64_t dh_token_writer_count(const dh_token_writer *w);
uint64_t dh_token_writer_hash(const dh_token_writer *w); /* XXH3 of the token bytes so far */
/* Put the header in, sync, rename; map: of the file that was written, may be NULL. The writer is
 * gone afterwards, success or not. */
dh_status dh_token_writer_commit(dh_ctx *ctx, dh_token_writer *w, const void *header, dh_map *map);
void dh_token_writer_abort(dh_token_writer *w); /* NULL is fine */

#endif
