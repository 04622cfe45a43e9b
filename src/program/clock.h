/* Vector clocks: by stream, how far it is known to have come, counted as the user likes; 0: nothing
 * is known. Whoever waits for something knows from then on what that knew. */
#ifndef DH_PROGRAM_CLOCK_H
#define DH_PROGRAM_CLOCK_H

#include "base/base.h"
#include "graph/stream.h"

/* Streams and as many places more as make fours, which compilers merge at a time. */
#define DH_CLOCK_PLACES ((DH_N_STREAM + 3) / 4 * 4)

typedef struct dh_clock_vec {
    uint32_t at[DH_CLOCK_PLACES];
} dh_clock_vec;

static inline void dh_clock_merge(dh_clock_vec *into, const dh_clock_vec *from)
{
    for (int s = 0; s < DH_CLOCK_PLACES; s++) into->at[s] = DH_MAX(into->at[s], from->at[s]);
}

#endif
