/* Places of buffers in a slab, by when they are in use; found once for all ranks for which nothing
 * differs that a place depends on. */
#ifndef DH_PROGRAM_PLACES_H
#define DH_PROGRAM_PLACES_H

#include "graph/stream.h"

/* A buffer that wants a place. Times are instructions that write some buffer first, by number. No
 * padding: a key is made of these. */
typedef struct dh_placing {
    uint64_t n_bytes;
    uint32_t stream, first; /* the instruction that writes first, and its stream */
    /* By stream on which some buffer is first written: the time from which on instructions there
     * know all accesses to be complete. A buffer that they write first may then take the
     * storage. 0 for other streams, and for the place after them. */
    uint32_t release[DH_N_STREAM + 1];
} dh_placing;

/* A request: a place for each of n buffers, in that order, at or above `from`. */
typedef struct dh_placing_list {
    const dh_placing *at;
    size_t n;
    uint32_t n_times; /* releases are at most this */
    uint64_t from;
} dh_placing_list;

/* Places each buffer at the lowest offset that is free of earlier buffers.
 * in        offsets: [list->n]
 * errors    DH_ENOMEM; DH_EINTERRUPTED
 * cost      O(n log(n_times)) sets of runs */
dh_status dh_places_find(dh_ctx *ctx, const dh_placing_list *list, uint64_t *offsets);

/* Places found so far. Any thread. */
typedef struct dh_places dh_places;
dh_places *dh_places_create(void); /* NULL: out of memory */
void dh_places_destroy(dh_places *places);
/* dh_places_find, once for each list. A thread waits while another one searches the same list, and
 * fails as that one does.
 * in        places: NULL: search again
 * out       offsets: [list->n] */
dh_status dh_places_get(dh_ctx *ctx, dh_places *places, const dh_placing_list *list,
                        uint64_t *offsets);

#endif
