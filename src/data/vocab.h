/* Vocabulary: token id <-> bytes, and the search for special tokens in text. */
#ifndef DH_DATA_VOCAB_H
#define DH_DATA_VOCAB_H

#include "base/index.h"

#define DH_NO_ID DH_NONE
#define DH_VOCAB_MAX ((uint32_t)1 << 24)

typedef enum dh_piece_kind {
    DH_PIECE_HOLE,    /* id without a token */
    DH_PIECE_NORMAL,  /* made by merging; found by dh_vocab_find */
    DH_PIECE_BYTE,    /* fallback token of one byte */
    DH_PIECE_USER,    /* matched in text as a whole, always */
    DH_PIECE_SPECIAL, /* control token: matched in text only on request */
    DH_PIECE_UNKNOWN,
    DH_PIECE_UNUSED /* has text, but encoding never makes it */
} dh_piece_kind;

typedef struct dh_piece {
    uint32_t offset, len; /* bytes it stands for, in dh_vocab.bytes */
    dh_piece_kind kind;
} dh_piece;

typedef struct dh_vocab {
    dh_str bytes;
    DH_VEC(dh_piece) pieces; /* by id */
    dh_index index;          /* normal pieces by their bytes; empty before dh_vocab_index */
} dh_vocab;

void dh_vocab_fini(dh_vocab *v);
/* Define token `id`; ids may come in any order, a second definition is an error. */
dh_status dh_vocab_set(dh_ctx *ctx, dh_vocab *v, uint64_t id, const void *bytes, size_t len,
                       dh_piece_kind kind);
/* The same, replacing what the id stood for. */
dh_status dh_vocab_replace(dh_ctx *ctx, dh_vocab *v, uint64_t id, const void *bytes, size_t len,
                           dh_piece_kind kind);
/* Build the index over normal pieces; two with the same bytes are an error. */
dh_status dh_vocab_index(dh_ctx *ctx, dh_vocab *v);
/* Add a normal piece to an indexed (or empty) vocabulary, unless it is there. */
dh_status dh_vocab_intern(dh_ctx *ctx, dh_vocab *v, const void *bytes, size_t len);
/* Id of the normal piece with these bytes, or DH_NO_ID. */
uint32_t dh_vocab_find(const dh_vocab *v, const void *bytes, size_t len);

static inline const unsigned char *dh_vocab_bytes(const dh_vocab *v, uint32_t id)
{
    return (const unsigned char *)v->bytes.text + v->pieces.at[id].offset;
}

/* Tokens that are recognised in text as a whole, longest first at each place. */
typedef struct dh_match_entry {
    uint32_t id;
    bool always;         /* also when special tokens are not to be parsed */
    bool lstrip, rstrip; /* take white space before / after with it */
    bool single_word;    /* not beside characters of words */
} dh_match_entry;

typedef struct dh_matcher {
    DH_VEC(dh_match_entry) entries; /* by first byte, then longest first */
    uint32_t first[257];            /* range of entries of each first byte */
} dh_matcher;

void dh_matcher_fini(dh_matcher *m);
dh_status dh_matcher_add(dh_ctx *ctx, dh_matcher *m, dh_match_entry entry);
void dh_matcher_sort(dh_matcher *m, const dh_vocab *v);
/* Entry that matches at text, or NULL; those not `always` only when `special`. */
const dh_match_entry *dh_matcher_find(const dh_matcher *m, const dh_vocab *v, bool special,
                                      const unsigned char *text, size_t n);

#endif
