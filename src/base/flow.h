/* The clock of all that runs at once: flows of work that slow each other down.
 *
 * A flow has work left, in ns at full speed, and a speed. Pairing, orders of slots, simulation
 * and estimates know operators and streams; here are only flows, and one rule for their speeds:
 *
 *   Beside several others a flow goes at the product of its speeds beside each; where one of
 *   these is not positive, at the lowest. A flow with a negative speed loses work (pairing.h says
 *   where such speeds come from). If then none progresses, the first goes on at full speed and
 *   the others stand still. A transfer without work left ends, whatever its speed.
 *
 * With n flows every step ends at least one, so a caller's loop ends. */
#ifndef DH_BASE_FLOW_H
#define DH_BASE_FLOW_H

#include <math.h>

#include "base/base.h"

/* Work that is left from rounding, in ns: a thousandth of what is ever reported. */
#define DH_FLOW_RESIDUE_NS 1e-3

typedef struct dh_flow {
    double left_ns; /* of work, at full speed */
    double speed;   /* 1: full */
} dh_flow;

/* A flow's speed, when one more runs beside it; begin with 1. */
static inline double dh_flow_beside(double speed, double beside)
{
    return speed > 0 && beside > 0 ? speed * beside : DH_MIN(speed, beside);
}

/* If none of the flows progresses, the first does and the others stand still. */
static inline void dh_flows_settle(dh_flow *flows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (flows[i].speed > 0) return;
    for (size_t i = 0; i < n; i++) flows[i].speed = i == 0;
}

static inline bool dh_flow_is_done(const dh_flow *f)
{
    return f->left_ns < DH_FLOW_RESIDUE_NS;
}

/* Time to its end; INFINITY: it does not progress. */
static inline double dh_flow_needs(const dh_flow *f)
{
    if (dh_flow_is_done(f)) return 0;
    return f->speed > 0 ? f->left_ns / f->speed : INFINITY;
}

static inline void dh_flow_pass(dh_flow *f, double ns)
{
    f->left_ns -= ns * f->speed;
}

/* All flows go on for a time in which none ends. */
static inline void dh_flows_pass(dh_flow *flows, size_t n, double ns)
{
    for (size_t i = 0; i < n; i++) dh_flow_pass(&flows[i], ns);
}

/* All flows go on to the next end; those that end are done.
 * in        n > 0, one that progresses (dh_flows_settle)
 * returns   the time that takes */
static inline double dh_flows_step(dh_flow *flows, size_t n)
{
    size_t first = 0;
    double span = dh_flow_needs(&flows[0]);
    for (size_t i = 1; i < n; i++) {
        const double needs = dh_flow_needs(&flows[i]);
        if (needs < span) first = i;
        span = DH_MIN(span, needs);
    }
    dh_flows_pass(flows, n, span);
    flows[first].left_ns = 0; /* however coarse the clock is by now */
    return span;
}

/* dh_flows_step of two, which pairing does by the million. */
static inline double dh_flow_pair_step(dh_flow *a, dh_flow *b)
{
    const double needs_a = dh_flow_needs(a), needs_b = dh_flow_needs(b);
    if (needs_b < needs_a) {
        dh_flow_pass(a, needs_b);
        b->left_ns = 0;
        return needs_b;
    }
    dh_flow_pass(b, needs_a);
    a->left_ns = 0;
    return needs_a;
}

/* When each of two flows that begin together ends: beside each other until one does, then the
 * other alone at full speed. end_ns [2] */
void dh_flows_together(dh_flow flows[2], double end_ns[2]);
/* The inverse: speeds beside each other from times alone and together. */
void dh_flow_speeds(const double solo_ns[2], const double end_ns[2], double speed[2]);

#endif
