/* Where reductions of gradients go in a slot whose result another rank waits for.
 *
 * A reduction during the strands takes memory bandwidth and cores from them. The result is sent
 * later, and every stage before is delayed. Reductions themselves have until the end of the step.
 * So the strands are ordered as if there were none. Then shares of the reductions run during them,
 * and the rest after them. The share that delays the step least is kept (dh_slot_timing). */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

/* TUNING: Llama 3 8B on H100 with tp 2, pp 2, dp 16.
 * Halves give 554.2 ms, quarters 553.6, sixteenths 553.2. */
enum { SHARES = 4 };

static uint32_t n_strand(const dh_slot *slot)
{
    uint32_t n = slot->strand[1].n;
    while (n > 0 && slot->strand[1].ops[n - 1].reduces) n--;
    return n;
}

dh_slot slot_without_reductions(const dh_slot *slot)
{
    dh_slot strands = *slot;
    strands.strand[1].n = n_strand(slot);
    strands.rest = (dh_slot_rest){0};
    return strands;
}

typedef struct placing {
    const dh_slot *slot;
    const dh_slot_pick *strands; /* [n] their order */
    uint32_t n, n_reductions;
    uint32_t *place_of; /* [nodes] in their order */
    dh_slot_pick *made; /* [nodes] */
} placing;

/* The place in the strands' order behind which all is there that the reduction needs. */
static uint32_t needed_by(const placing *p, uint32_t node)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < slot_n_needs(p->slot, node); i++)
        place = DH_MAX(place, p->place_of[slot_need(p->slot, node, i)]);
    return place;
}

/* The first n_beside reductions beside the strands, each once what it needs is issued. */
static void place(placing *p, uint32_t n_beside)
{
    const uint32_t first = slot_nodes(p->slot) - p->n_reductions;
    uint32_t n = 0, k = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        p->made[n++] = p->strands[i];
        for (; k < n_beside && needed_by(p, first + k) <= i; k++) {
            p->place_of[first + k] = i;
            p->made[n++] = slot_pick_of(p->slot, first + k);
        }
    }
    for (; k < p->n_reductions; k++) {
        p->made[n] = slot_pick_of(p->slot, first + k);
        p->made[n++].behind = true;
    }
}

static dh_status try_shares(dh_ctx *ctx, placing *p, dh_slot_pick *order)
{
    slot_best best = {.order = order, .limit_bytes = UINT64_MAX};
    const uint32_t n = p->slot->rest.by_rule ? 0 : SHARES;
    dh_status st = DH_OK;
    for (uint32_t i = 0; st == DH_OK && i <= n; i++) {
        place(p, p->n_reductions * i / SHARES);
        st = slot_consider(ctx, p->slot, p->made, &best);
    }
    slot_trials_fini(&best.tried);
    return st;
}

dh_status slot_place_reductions(dh_ctx *ctx, const dh_slot *slot, dh_slot_pick *order)
{
    const size_t n = slot_nodes(slot), n_reductions = slot->strand[1].n - n_strand(slot);
    dh_slot_pick *strands = malloc(n * sizeof *strands);
    placing p = {.slot = slot,
                 .strands = strands,
                 .n = (uint32_t)(n - n_reductions),
                 .n_reductions = (uint32_t)n_reductions,
                 .place_of = calloc(n, sizeof *p.place_of),
                 .made = calloc(n, sizeof *p.made)};
    dh_status st = strands && p.place_of && p.made ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) {
        memcpy(strands, order, p.n * sizeof *strands);
        for (uint32_t i = 0; i < p.n; i++) p.place_of[slot_pick_node(slot, &strands[i])] = i;
        st = try_shares(ctx, &p, order);
    }
    free(strands);
    free(p.place_of);
    free(p.made);
    return st;
}
