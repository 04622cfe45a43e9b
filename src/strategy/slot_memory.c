/* Memory that the orders of a slot need: tensors of the strands from first to last use, and an
 * operator's workspace while it runs. Tensors that a strand keeps for a later slot, or takes over
 * from an earlier one, count throughout. An output counts in addition to the input whose storage it
 * may get. Whether it gets it depends on the streams' waits, which an order does not have. */
#include <stdlib.h>

#include "strategy/slot.h"

static int strand_of(const dh_slot *slot, uint32_t node)
{
    return node >= slot->strand[0].n;
}

bool slot_memory_init(slot_memory *m, const dh_slot *slot)
{
    *m = (slot_memory){.slot = slot};
    for (int s = 0; s < 2; s++) {
        m->storages[s] = calloc((size_t)slot->strand[s].n_tensors + 1, sizeof *m->storages[s]);
        if (!m->storages[s]) return false;
    }
    slot_memory_reset(m);
    return true;
}

void slot_memory_fini(slot_memory *m)
{
    for (int s = 0; s < 2; s++) free(m->storages[s]);
}

void slot_memory_reset(slot_memory *m)
{
    for (int s = 0; s < 2; s++) {
        const dh_slot_strand *strand = &m->slot->strand[s];
        dh_live_storage *at = m->storages[s];
        for (uint32_t i = 0; i < strand->n_tensors; i++)
            at[i] = (dh_live_storage){.n_bytes = strand->tensors[i].n_bytes,
                                      .alive = strand->tensors[i].before,
                                      .outlasts = strand->tensors[i].beyond};
        for (uint32_t i = 0; i < strand->n; i++)
            for (uint32_t k = 0; k < strand->ops[i].n_uses; k++)
                at[strand->ops[i].uses[k]].n_uses++;
        dh_live_begin(&m->live[s], at, strand->n_tensors);
    }
}

uint64_t slot_memory_now(const slot_memory *m)
{
    return m->live[0].n_bytes + m->live[1].n_bytes;
}

uint64_t slot_memory_with(const slot_memory *m, uint32_t node)
{
    const int s = strand_of(m->slot, node);
    const dh_slot_op *op = slot_node(m->slot, node);
    return m->live[!s].n_bytes + dh_live_with(&m->live[s], op->uses, op->n_uses) + op->work_bytes;
}

void slot_memory_issue(slot_memory *m, uint32_t node)
{
    const dh_slot_op *op = slot_node(m->slot, node);
    dh_live_use(&m->live[strand_of(m->slot, node)], op->uses, op->n_uses);
}

/* UINT64_MAX: out of memory, which no order is worth failing for. */
static uint64_t peak(const dh_slot *slot, const dh_slot_pick *order)
{
    slot_memory m;
    const uint32_t n = slot_nodes(slot), n0 = slot->strand[0].n;
    uint64_t most = slot_memory_init(&m, slot) ? 0 : UINT64_MAX;
    for (uint32_t i = 0; most != UINT64_MAX && i < n; i++) {
        /* without an order: the backward, then the forward */
        const uint32_t node = order ? slot_pick_node(slot, &order[i]) : (n0 + i) % n;
        most = DH_MAX(most, slot_memory_with(&m, node));
        slot_memory_issue(&m, node);
    }
    slot_memory_fini(&m);
    return most;
}

uint64_t dh_slot_peak(const dh_slot *slot, const dh_slot_pick *order)
{
    return peak(slot, order);
}

uint64_t dh_slot_one_strand_peak(const dh_slot *slot)
{
    return slot->one_strand_peak ? slot->one_strand_peak : peak(slot, NULL);
}

uint64_t slot_memory_limit(const dh_slot *slot, const dh_order_options *options)
{
    const uint32_t n_blocks = DH_MAX(slot->strand[0].n_blocks, slot->strand[1].n_blocks);
    const double one = (double)dh_slot_one_strand_peak(slot);
    const double limit =
        one + DH_MIN(one * options->memory_blocks / DH_MAX(n_blocks, 1U), options->memory_bytes);
    return limit < 1e18 ? (uint64_t)limit : UINT64_MAX;
}
