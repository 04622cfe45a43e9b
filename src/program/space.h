/* Bytes in use over time, for placing buffers. */
#ifndef DH_PROGRAM_SPACE_H
#define DH_PROGRAM_SPACE_H

#include "base/base.h"

typedef struct dh_space dh_space;

/* Times are [0, n_times). NULL: out of memory. */
dh_space *dh_space_create(uint32_t n_times);
void dh_space_destroy(dh_space *space);

/* Bytes [lo, hi) are in use at all times of [t0, t1), t0 < t1. false: out of memory.
 * cost      log(n_times) * log(runs) */
bool dh_space_use(dh_space *space, uint32_t t0, uint32_t t1, uint64_t lo, uint64_t hi);

/* Times of one space in which a buffer is wanted. */
typedef struct dh_space_span {
    const dh_space *space; /* NULL: nothing in use */
    uint32_t t0, t1;
} dh_space_span;
enum { DH_MAX_SPANS = 16 };

/* Lowest start, at or above `from`, of n_bytes that are free at all times of all spans. */
uint64_t dh_space_lowest(const dh_space_span *spans, size_t n_spans, uint64_t from,
                         uint64_t n_bytes);

#endif
