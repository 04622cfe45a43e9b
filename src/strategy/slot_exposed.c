/* Which communication of an order has no computation beside it, and what comes next. */
#include "strategy/slot.h"

typedef struct timeline {
    const dh_slot *slot;
    const dh_slot_pick *order;
    const dh_slot_timing *t;
    uint32_t n;
} timeline;

static bool computes(const timeline *l, uint32_t pick)
{
    const uint32_t node = slot_pick_node(l->slot, &l->order[pick]);
    return slot_node(l->slot, node)->stream == DH_STREAM_COMPUTE;
}

/* Time of [from, to) in which nothing is computed. */
static double uncovered(const timeline *l, double from, double to)
{
    double left = to - from;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!computes(l, i)) continue;
        const double a = DH_MAX(from, l->t->start_ns[i]), b = DH_MIN(to, l->t->end_ns[i]);
        if (b > a) left -= b - a;
    }
    return left;
}

/* The next pick on the compute stream that starts at or after a time. */
static uint32_t next_compute(const timeline *l, double ns)
{
    uint32_t best = DH_NONE;
    for (uint32_t i = 0; i < l->n; i++)
        if (computes(l, i) && l->t->start_ns[i] >= ns - 1e-3 &&
            (best == DH_NONE || l->t->start_ns[i] < l->t->start_ns[best]))
            best = i;
    return best;
}

static bool needs(const timeline *l, uint32_t pick, uint32_t before)
{
    const uint32_t node = slot_pick_node(l->slot, &l->order[pick]);
    const uint32_t wanted = slot_pick_node(l->slot, &l->order[before]);
    for (uint32_t i = 0; i < slot_n_needs(l->slot, node); i++)
        if (slot_need(l->slot, node, i) == wanted) return true;
    return false;
}

bool dh_slot_exposed(const dh_slot *slot, const dh_slot_pick *order, const dh_slot_timing *timing,
                     uint32_t pick, dh_slot_exposure *exposure)
{
    const timeline l = {slot, order, timing, slot_nodes(slot)};
    if (computes(&l, pick)) return false;
    const double bare = uncovered(&l, timing->start_ns[pick], timing->end_ns[pick]);
    const uint32_t next = next_compute(&l, timing->end_ns[pick] - bare);
    *exposure = (dh_slot_exposure){
        .ns = bare, .next = next, .needed = next != DH_NONE && needs(&l, next, pick)};
    return bare > 0;
}
