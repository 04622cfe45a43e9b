/* Paced wires: times of transfers that share wires.
 *
 * This is accounting only: the caller tells the time, holds the lock and sleeps. Each rank has
 * one wire per link and direction. Transfers on a wire have equal parts of its speed. A transfer
 * on several wires is as slow as the fullest. The simulation does the same (src/sim/fluid.c). A
 * transfer that begins later delays the end of the others, so an end is known only when it has
 * come. */
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
    local_flows flows; /* transfers under way, and those that ended recently */
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
