/* Paced wires: how long transfers take that are on the same wires.
 *
 * Accounting alone: the caller tells the time, holds the lock and sleeps. Each rank has one wire
 * per link and direction. Transfers on it share it, each at an equal part of its speed, and one
 * that is on several goes as the fullest lets it; so does the simulation (src/sim/fluid.c). When a
 * transfer ends is therefore known only once it has: one that begins meanwhile puts the end off. */
#ifndef DHELIX_RUN_COMM_LOCAL_WIRES_H
#define DHELIX_RUN_COMM_LOCAL_WIRES_H

#include "base/engine.h"
#include "base/flow.h"

/* The outgoing wires of some ranks and the incoming ones of some. Arrays are borrowed for as long
 * as the transfer lasts. */
typedef struct local_way {
    dh_engine wire;
    const int *out, *in;
    int n_out, n_in;
} local_way;

typedef struct local_flow {
    uint64_t number;
    local_way way;
    dh_flow flow;
    double all_ns;
    bool ended;
    int64_t end_ns; /* ended: when */
    int64_t keep_ns;
} local_flow;
typedef DH_VEC(local_flow) local_flows;

typedef struct local_wires {
    local_flows flows; /* those that have not ended, or not long ago */
    local_flows ahead; /* scratch: the same, later */
    int *n_on;         /* scratch [ranks][DH_N_ENGINE][2]: transfers on a wire */
    size_t n_wires;
    int64_t now_ns; /* accounted for until then */
    uint64_t n_begun;
} local_wires;

/* A transfer under way. number 0: it has the wires to itself, until end_ns; 0: no transfer. */
typedef struct local_ticket {
    uint64_t number;
    int64_t end_ns;
} local_ticket;

bool local_wires_init(local_wires *wires, int n_ranks); /* false: out of memory */
void local_wires_fini(local_wires *wires);
/* A transfer that would take ns alone begins at from_ns, or now where that is accounted for; its
 * end can be asked for until keep_ns after it. Without memory it goes as if it were alone. */
local_ticket local_wires_begin(local_wires *wires, local_way way, int64_t from_ns, int64_t ns,
                               int64_t keep_ns);
/* When this share of it, 1 for all, has passed, if nothing more begins before; now or earlier: it
 * has; 0: it ended more than keep_ns ago. */
int64_t local_wires_when(local_wires *wires, local_ticket ticket, double share, int64_t now_ns);

#endif
