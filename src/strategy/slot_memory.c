/* Memory that the orders of a slot need: tensors of the strands from first to last use, and what
 * an operator works with while it runs. What a strand keeps for a later slot, or takes over from
 * one before, counts throughout. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

static int strand_of(const dh_slot *slot, uint32_t node)
{
    return node >= slot->strand[0].n;
}

/* Bytes that the node's own tensors add. */
static uint64_t added(const slot_memory *m, uint32_t node)
{
    const int s = strand_of(m->slot, node);
    const dh_slot_op *op = slot_node(m->slot, node);
    uint64_t n = 0;
    for (uint32_t k = 0; k < op->n_uses; k++)
        if (!m->held[s][op->uses[k]]) n += m->slot->strand[s].tensors[op->uses[k]].n_bytes;
    return n;
}

bool slot_memory_init(slot_memory *m, const dh_slot *slot)
{
    *m = (slot_memory){.slot = slot};
    for (int s = 0; s < 2; s++) {
        const size_t n = (size_t)slot->strand[s].n_tensors + 1;
        m->left[s] = calloc(n, sizeof *m->left[s]);
        m->held[s] = calloc(n, sizeof *m->held[s]);
        if (!m->left[s] || !m->held[s]) return false;
    }
    slot_memory_reset(m);
    return true;
}

void slot_memory_fini(slot_memory *m)
{
    for (int s = 0; s < 2; s++) {
        free(m->left[s]);
        free(m->held[s]);
    }
}

void slot_memory_reset(slot_memory *m)
{
    m->n_bytes = 0;
    for (int s = 0; s < 2; s++) {
        const dh_slot_strand *strand = &m->slot->strand[s];
        for (uint32_t i = 0; i < strand->n_tensors; i++) {
            m->left[s][i] = 0;
            m->held[s][i] = strand->tensors[i].before;
            if (m->held[s][i]) m->n_bytes += strand->tensors[i].n_bytes;
        }
        for (uint32_t i = 0; i < strand->n; i++)
            for (uint32_t k = 0; k < strand->ops[i].n_uses; k++)
                m->left[s][strand->ops[i].uses[k]]++;
    }
}

uint64_t slot_memory_with(const slot_memory *m, uint32_t node)
{
    return m->n_bytes + added(m, node) + slot_node(m->slot, node)->work_bytes;
}

void slot_memory_issue(slot_memory *m, uint32_t node)
{
    const int s = strand_of(m->slot, node);
    const dh_slot_op *op = slot_node(m->slot, node);
    m->n_bytes += added(m, node);
    for (uint32_t k = 0; k < op->n_uses; k++) {
        const uint32_t i = op->uses[k];
        const dh_slot_tensor *t = &m->slot->strand[s].tensors[i];
        m->held[s][i] = --m->left[s][i] > 0 || t->beyond;
        if (!m->held[s][i]) m->n_bytes -= t->n_bytes;
    }
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
    return peak(slot, NULL);
}

uint64_t slot_memory_limit(const dh_slot *slot, const dh_order_options *options)
{
    const uint32_t n_blocks = DH_MAX(slot->strand[0].n_blocks, slot->strand[1].n_blocks);
    const double one = (double)dh_slot_one_strand_peak(slot);
    const double limit = one * (1 + options->memory_blocks / DH_MAX(n_blocks, 1U));
    return limit < 1e18 ? (uint64_t)limit : UINT64_MAX;
}
