/* Byte-pair merging: pair table, merge engine, cache of words already merged. */
#ifndef DH_DATA_MERGE_H
#define DH_DATA_MERGE_H

#include "data/vocab.h"
#include "dhelix/tokenizer.h"

/* ---- which pair of symbols becomes which, and how early ---------------------------- */

typedef struct dh_pair {
    uint32_t left, right;
    uint32_t rank, id; /* lower ranks merge first; id is the result */
} dh_pair;

typedef struct dh_pair_table {
    DH_VEC(dh_pair) pairs;
    dh_index index;
} dh_pair_table;

void dh_pairs_fini(dh_pair_table *t);
/* The first definition of a pair stays. */
dh_status dh_pairs_add(dh_ctx *ctx, dh_pair_table *t, uint32_t left, uint32_t right, uint32_t rank,
                       uint32_t id);
/* Hash of two ids, which no other pair has. */
uint64_t dh_pair_hash(uint32_t left, uint32_t right);
const dh_pair *dh_pairs_find(const dh_pair_table *t, uint32_t left, uint32_t right);

/* ---- merge engine: lowest rank first, leftmost among equals ---------------------------
 * Doubly linked symbols and a heap of candidate pairs: O(n log n) for n symbols,
 * however long the word. */

#define DH_SYMBOL_END UINT32_MAX

typedef struct dh_symbol {
    uint32_t id;         /* DH_NO_ID: merges with nothing */
    uint32_t start;      /* byte offset in the word */
    uint32_t prev, next; /* DH_SYMBOL_END at the ends */
} dh_symbol;

typedef struct dh_candidate {
    uint64_t key; /* rank << 32 | position */
    uint32_t left, right, id;
} dh_candidate;

typedef struct dh_merger {
    DH_VEC(dh_symbol) symbols; /* symbol 0 is always the first of the list */
    DH_VEC(dh_candidate) heap;
} dh_merger;

void dh_merger_fini(dh_merger *m);
void dh_merger_clear(dh_merger *m);
bool dh_merger_add(dh_merger *m, uint32_t id, size_t start); /* false: out of memory */
bool dh_merger_run(dh_merger *m, const dh_pair_table *pairs);

/* ---- cache: bytes of a word -> its token ids -------------------------------------------- */

#define DH_CACHED_WORD_MAX 64 /* longer words seldom come twice */

/* Records lie one behind the other: n_ids << 16 | length of the word, ids, the word's bytes filled
 * up to whole numbers. */
typedef struct dh_word_cache {
    dh_ids records;
    dh_index index; /* where each begins, by the word's hash */
} dh_word_cache;

void dh_cache_fini(dh_word_cache *c);
/* Ids of the word (valid until the next put), or NULL. */
const int32_t *dh_cache_get(const dh_word_cache *c, const void *word, size_t len, size_t *n_ids);
/* Remembers a word not held yet; forgets all when full. Failing to is no error. */
void dh_cache_put(dh_word_cache *c, const void *word, size_t len, const int32_t *ids, size_t n_ids);

#endif
