/* Bytes on the wires of ranks, which plans of a reshard are measured by. */
#ifndef DH_PROGRAM_RESHARD_LOAD_H
#define DH_PROGRAM_RESHARD_LOAD_H

#include "program/reshard.h"

/* A rank has four wires: out and in, on its node and between nodes. A wire takes its bytes times
 * its time a byte; all go at once. */
typedef struct dh_reshard_load {
    const dh_reshard *reshard;
    dh_reshard_wires wires;
    int64_t *bytes[2][2]; /* [cross][in], by rank */
} dh_reshard_load;

dh_status dh_reshard_load_init(dh_ctx *ctx, const dh_reshard *reshard, dh_reshard_wires wires,
                               dh_reshard_load *load);
void dh_reshard_load_fini(dh_reshard_load *load);
/* bytes may be below 0, to take back an addition. Slices that stay on a rank use no wire. */
void dh_reshard_load_add(dh_reshard_load *load, uint32_t from, uint32_t to, int64_t bytes);
/* Until the fuller of the two wires between these ranks is done. */
double dh_reshard_load_between(const dh_reshard_load *load, uint32_t from, uint32_t to);
double dh_reshard_load_busiest(const dh_reshard_load *load);
/* A bound, in ns, that no choice of owners beats. A rank must receive its slices over all its
 * wires. Slices whose owners all lie on one node, or are one rank, must be sent over all wires of
 * that node or rank. */
double dh_reshard_bound(const dh_reshard_load *load);

/* Changes the plan at hand to the best there is. *ended: it is proved to be that. */
dh_status dh_reshard_search(dh_ctx *ctx, dh_reshard *reshard, dh_reshard_wires wires, bool *ended);

int64_t dh_slice_bytes(const dh_reshard *reshard, const dh_slice *slice);
static inline bool dh_reshard_is_local(const dh_reshard *r, uint32_t a, uint32_t b)
{
    return a / (uint32_t)r->ranks_per_node == b / (uint32_t)r->ranks_per_node;
}

#endif
