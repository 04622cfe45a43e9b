/* SentencePiece's precompiled_charsmap: which strings of characters are written as which others.
 *
 * The file is a uint32 (bytes of the trie), a double-array trie (Darts-clone; Yata et al. 2007)
 * over UTF-8, and texts that end with a zero byte, little endian. A leaf's value is an offset into
 * the texts. */
#ifndef DH_DATA_CHARSMAP_H
#define DH_DATA_CHARSMAP_H

#include "base/base.h"

typedef struct dh_charsmap {
    uint32_t *trie; /* [n_units] */
    size_t n_units;
    char *texts; /* [n_bytes], the last one zero */
    size_t n_bytes;
} dh_charsmap;

/* errors    DH_EFORMAT cut off, or no such table; DH_ENOMEM */
dh_status dh_charsmap_read(dh_ctx *ctx, const unsigned char *data, size_t n, dh_charsmap *map);
void dh_charsmap_fini(dh_charsmap *map);
uint64_t dh_charsmap_hash(const dh_charsmap *map);

/* The replacement of the longest (else the shortest) string of the table at the beginning of
 * text, and the bytes of that string; NULL: no string begins here. */
const char *dh_charsmap_find(const dh_charsmap *map, const unsigned char *text, size_t n,
                             bool longest, size_t *n_found);

/* Appends a text as Hugging Face's Precompiled normalizer writes it. A grapheme cluster of fewer
 * than six bytes that begins with a string of the table is replaced as a whole. All other text is
 * replaced character by character.
 * returns   false: a replacement would take it beyond `most` bytes */
bool dh_charsmap_by_graphemes(const dh_charsmap *map, const unsigned char *text, size_t n,
                              size_t most, dh_str *out);
#endif
