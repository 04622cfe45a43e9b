/* Liveness: bytes of storage from their first use to their last.
 *
 * There are two forms.
 *   walk    issues operators one after another and knows the bytes held at any place, so the next
 *           operator may be chosen by them. An operator that works in place hands its input's
 *           storage to its output.
 *   curve   Sums up changes over moments of time or of an order. First and last uses are known
 *           already.
 * The caller decides what counts as a use, and which storage outlasts the walk. */
#ifndef DH_BASE_LIVE_H
#define DH_BASE_LIVE_H

#include "base/base.h"

/* ---- a walk over an order ----------------------------------------------------------------- */

typedef struct dh_live_storage {
    uint64_t n_bytes; /* 0: none of its own, or handed on */
    uint32_t n_uses;  /* still to come, each operator's once */
    bool alive;
    bool outlasts; /* alive behind its last use */
} dh_live_storage;

typedef struct dh_live {
    dh_live_storage *at; /* by number; filled by the caller before dh_live_begin */
    uint64_t n_bytes;    /* alive now */
} dh_live;

/* From what is alive before the first operator. storages [n] */
void dh_live_begin(dh_live *live, dh_live_storage *storages, size_t n);
/* Bytes alive while an operator runs that uses these. ids [n], each once */
uint64_t dh_live_with(const dh_live *live, const uint32_t *ids, size_t n);
/* It has run: what it uses is alive if it is wanted further on. */
void dh_live_use(dh_live *live, const uint32_t *ids, size_t n);
/* Whether the operator that uses both next can put `to` where `from` is, of as many bytes. */
bool dh_live_can_hand_on(const dh_live *live, uint32_t from, uint32_t to);
void dh_live_hand_on(dh_live *live, uint32_t from, uint32_t to);

/* ---- a curve over moments ----------------------------------------------------------------- */

enum { DH_LIVE_ACTIVATIONS, DH_LIVE_SCRATCH, DH_N_LIVE_KINDS };

typedef struct dh_live_point {
    int64_t at; /* ns, or a place in an order */
    int64_t bytes[DH_N_LIVE_KINDS];
} dh_live_point;

/* By moment; false when out of memory: nothing changed. */
bool dh_live_sort(dh_live_point *changes, size_t n);
/* Changes by moment become sums: those of one moment one point, those that change nothing none.
 * returns   how many points are left */
size_t dh_live_sum(dh_live_point *points, size_t n);
/* The first of the highest, all kinds together; NULL: nothing is ever alive. */
const dh_live_point *dh_live_highest(const dh_live_point *points, size_t n);
static inline int64_t dh_live_total(const dh_live_point *p)
{
    return p->bytes[DH_LIVE_ACTIVATIONS] + p->bytes[DH_LIVE_SCRATCH];
}

#endif
