/* Documents in rows of one length: which go together, and where each begins. */
#ifndef DH_DATA_PACK_H
#define DH_DATA_PACK_H

#include "base/base.h"

/* A document, or a part of one that is longer than a row. `n` tokens of the stream from `first` on
 * are inputs. Their targets are the n tokens from first + 1 on. */
typedef struct dh_doc {
    int64_t first;
    int32_t n;
} dh_doc;
typedef DH_VEC(dh_doc) dh_docs;

/* Rows of pieces: row r has pieces [row[r], row[r + 1]), one after another from its start. */
typedef struct dh_pack {
    dh_docs pieces;
    DH_VEC(int64_t) row; /* number of rows and one */
    int64_t n_targets;
} dh_pack;

/* Adds what a document of n_tokens from `first` on comes to: nothing where a token has none behind
 * it, several pieces where it is longer than a row. */
dh_status dh_docs_add(dh_ctx *ctx, dh_docs *pieces, int64_t first, int64_t n_tokens,
                      int64_t row_len);

/* Puts pieces into rows of row_len and cuts none. It takes a few thousand at a time, in their order
 * or in one that the seed draws. The longest go first, each into the row that it leaves the least
 * room in (best-fit decreasing: Johnson 1973). The same pieces and seed give the same rows.
 * in        pieces: taken over, also on failure
 * out       pack: dh_pack_fini
 * cost      O(n log n) time; memory of a few numbers a piece
 * errors    DH_ENOMEM */
dh_status dh_pack_make(dh_ctx *ctx, dh_docs *pieces, int64_t row_len, const uint64_t *seed,
                       dh_pack *pack);
/* A row for each piece, in their order. Frees the pieces.
 * errors    DH_ENOMEM */
dh_status dh_pack_alone(dh_ctx *ctx, dh_docs *pieces, dh_pack *pack);
void dh_pack_fini(dh_pack *pack);
int64_t dh_pack_rows(const dh_pack *pack);

#endif
