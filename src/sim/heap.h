/* Events in order of time; those of one time in the order in which they came. */
#ifndef DH_SIM_HEAP_H
#define DH_SIM_HEAP_H

#include "base/base.h"

typedef struct dh_sim_event {
    int64_t at_ns;
    uint64_t sequence;
    uint32_t lane;    /* node * DH_N_STREAM + stream */
    uint32_t version; /* version of the lane's task; events of older ones are void */
} dh_sim_event;

typedef struct dh_sim_heap {
    DH_VEC(dh_sim_event) events;
    uint64_t n_pushed;
} dh_sim_heap;

bool dh_sim_heap_push(dh_sim_heap *heap, int64_t at_ns, uint32_t lane, uint32_t version);
/* The heap must not be empty. */
dh_sim_event dh_sim_heap_pop(dh_sim_heap *heap);

#endif
