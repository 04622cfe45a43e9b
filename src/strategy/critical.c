/* Which of the gradients of a layer goes first, by critical path.
 *
 * Input gradients lead to the next layer. Weight gradients lead only to reductions, and may run
 * during a transfer or before it. The best place depends on the longest path. If it goes through
 * communication, weight gradients should fill the time of transfers. If it goes through their own
 * reductions, they should be early. A few placements, the same for all layers, are timed
 * (dh_slot_time), and the one that ends first is kept. That is coarse, but cheap, and steady over
 * the layers. List scheduling (list.c) decides for each operator by itself.
 *
 * Source: Centauri (Chen et al., ASPLOS 2024, doi:10.1145/3620666.3651369), scheduling of
 * layers. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

typedef enum placement {
    AS_THEY_COME, /* as in the strand: behind the input gradient that they belong to */
    AT_ONCE,      /* in front of it, as soon as what they need is there */
    IN_GAPS,      /* when the next computation waits for a transfer, those that were put off */
    ONE_IN_GAPS,  /* then one of them */
    LAST,         /* behind all input gradients of the block */
    N_PLACEMENTS
} placement;

typedef struct placing {
    const dh_slot *slot;
    placement how;
    bool *issued;      /* by node */
    uint32_t *put_off; /* [n_put_off], of which those before `next` have been issued */
    uint32_t n_put_off, next;
    dh_slot_pick *made; /* [n_made] */
    uint32_t n_made;
} placing;

static bool is_wgrad(const dh_slot_op *op)
{
    return op->wgrad && op->stream == DH_STREAM_COMPUTE && !op->reduces;
}

static void issue(placing *p, uint32_t node)
{
    if (p->issued[node]) return;
    p->issued[node] = true;
    p->made[p->n_made++] = slot_pick_of(p->slot, node);
}

static void issue_put_off(placing *p, uint32_t n)
{
    for (; n > 0 && p->next < p->n_put_off; n--) issue(p, p->put_off[p->next++]);
}

static bool is_ready(const placing *p, uint32_t node)
{
    for (uint32_t i = 0; i < slot_n_needs(p->slot, node); i++)
        if (!p->issued[slot_need(p->slot, node, i)]) return false;
    return true;
}

/* The weight gradients of the block behind a node for which all is there. */
static void issue_ready(placing *p, uint32_t node)
{
    const uint32_t n0 = p->slot->strand[0].n, end = node < n0 ? n0 : slot_nodes(p->slot);
    const uint32_t block = slot_node(p->slot, node)->block;
    for (uint32_t i = node + 1; i < end && slot_node(p->slot, i)->block == block; i++)
        if (is_wgrad(slot_node(p->slot, i)) && is_ready(p, i)) issue(p, i);
}

static bool waits_for_transfer(const dh_slot *slot, uint32_t node)
{
    if (slot_node(slot, node)->stream != DH_STREAM_COMPUTE) return false;
    for (uint32_t i = 0; i < slot_n_needs(slot, node); i++)
        if (slot_node(slot, slot_need(slot, node, i))->stream != DH_STREAM_COMPUTE) return true;
    return false;
}

/* Whether one of them belongs to another block, which is done. */
static bool is_behind_block(const placing *p, uint32_t node)
{
    if (p->next == p->n_put_off) return false;
    const uint32_t first = p->put_off[p->next], n0 = p->slot->strand[0].n;
    return (first < n0) != (node < n0) ||
           slot_node(p->slot, first)->block != slot_node(p->slot, node)->block;
}

/* Issue weight gradients that were put off, if the placement has them before this node. */
static void catch_up(placing *p, uint32_t node)
{
    if (p->how == LAST && is_behind_block(p, node)) issue_put_off(p, UINT32_MAX);
    if ((p->how == IN_GAPS || p->how == ONE_IN_GAPS) && waits_for_transfer(p->slot, node))
        issue_put_off(p, p->how == IN_GAPS ? UINT32_MAX : 1);
}

static void place_all(placing *p)
{
    const uint32_t n = slot_nodes(p->slot);
    const bool puts_off = p->how != AS_THEY_COME && p->how != AT_ONCE;
    p->n_made = p->n_put_off = p->next = 0;
    memset(p->issued, 0, n * sizeof *p->issued);
    for (uint32_t i = 0; i < n; i++) {
        if (puts_off && is_wgrad(slot_node(p->slot, i))) {
            p->put_off[p->n_put_off++] = i;
            continue;
        }
        catch_up(p, i);
        issue(p, i);
        if (p->how == AT_ONCE) issue_ready(p, i);
    }
    issue_put_off(p, UINT32_MAX);
}

dh_status slot_order_critical(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                              dh_slot_pick *order)
{
    const size_t n = (size_t)slot_nodes(slot) + 1;
    slot_best best = {
        .order = order, .options = options, .limit_bytes = slot_memory_limit(slot, options)};
    slot_rates rates;
    dh_slot own = *slot;
    own.rates = &rates;
    const bool ok = slot_rates_init(&rates, slot);
    placing p = {.slot = slot,
                 .issued = calloc(n, sizeof *p.issued),
                 .put_off = calloc(n, sizeof *p.put_off),
                 .made = calloc(n, sizeof *p.made)};
    dh_status st = ok && p.issued && p.put_off && p.made ? DH_OK : dh_no_memory(ctx);
    for (int how = 0; st == DH_OK && how < N_PLACEMENTS; how++) {
        p.how = (placement)how;
        place_all(&p);
        st = slot_consider(ctx, &own, p.made, &best);
    }
    free(p.issued);
    free(p.put_off);
    free(p.made);
    slot_rates_fini(&rates);
    slot_trials_fini(&best.tried);
    return st;
}
