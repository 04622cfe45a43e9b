/* Numbers found by the hash of the thing that they name: open addressing, at most half full.
 *
 * The index holds hashes and numbers only. The caller keeps the things, computes hashes, and
 * compares things whose hashes are equal:
 *
 *   size_t at = 0;
 *   for (uint32_t i = dh_index_first(x, hash, &at); i != DH_NONE; i = dh_index_next(x, hash, &at))
 *       if (same(i, key)) return i;
 * / */
#ifndef DH_BASE_INDEX_H
#define DH_BASE_INDEX_H

#include "base/base.h"

typedef struct dh_index_place {
    uint64_t hash;
    uint32_t number1; /* number + 1; 0: free */
} dh_index_place;

typedef struct dh_index {
    dh_index_place *places; /* [n_places], a power of two, or none */
    size_t n, n_places;
} dh_index;

/* Adds a number below DH_NONE that is not in it yet. False when out of memory: nothing changed. */
bool dh_index_add(dh_index *index, uint64_t hash, uint32_t number);
/* Empty; keeps its memory. */
void dh_index_clear(dh_index *index);
void dh_index_fini(dh_index *index);

/* From *at on: the next number with this hash, DH_NONE behind the last. */
static inline uint32_t dh_index_from(const dh_index *index, uint64_t hash, size_t *at)
{
    for (; index->places[*at].number1; *at = (*at + 1) & (index->n_places - 1))
        if (index->places[*at].hash == hash) return index->places[*at].number1 - 1;
    return DH_NONE;
}

static inline uint32_t dh_index_first(const dh_index *index, uint64_t hash, size_t *at)
{
    if (index->n_places == 0) return DH_NONE;
    *at = (size_t)hash & (index->n_places - 1);
    return dh_index_from(index, hash, at);
}

static inline uint32_t dh_index_next(const dh_index *index, uint64_t hash, size_t *at)
{
    *at = (*at + 1) & (index->n_places - 1);
    return dh_index_from(index, hash, at);
}

#endif
