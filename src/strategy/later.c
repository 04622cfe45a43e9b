/* A slot whose weight gradients come after the input gradients of their block.
 *
 * List scheduling breaks ties and reserves memory by the given order, so that order decides which
 * orders it finds. A search tries this one too. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

/* Weight gradients that nothing in their strand waits for, except reductions, which move too. */
static bool mark_movable(const dh_slot_strand *strand, bool *moves)
{
    bool any = false;
    for (uint32_t i = strand->n; i-- > 0;) {
        const dh_slot_op *op = &strand->ops[i];
        moves[i] = (op->wgrad || op->reduces) && !moves[i];
        any |= moves[i] && op->wgrad;
        /* Until its turn, moves[i] says that an operator that stays needs i. */
        for (uint32_t k = 0; !moves[i] && k < op->n_preds; k++) moves[op->preds[k]] = true;
    }
    return any;
}

/* given [n]: the number in the slot as given of each operator. */
static void renumber(const dh_slot_strand *strand, const bool *moves, uint32_t *given)
{
    uint32_t n = 0;
    for (uint32_t first = 0, end; first < strand->n; first = end) {
        for (end = first; end < strand->n && strand->ops[end].block == strand->ops[first].block;)
            end++;
        for (int later = 0; later < 2; later++)
            for (uint32_t i = first; i < end; i++)
                if (moves[i] == later) given[n++] = i;
    }
}

static bool copy_strand(slot_later *l, const dh_slot_strand *from, int s)
{
    const uint32_t n = from->n;
    size_t n_preds = 0;
    for (uint32_t i = 0; i < n; i++) n_preds += from->ops[i].n_preds;
    bool *moves = calloc((size_t)n + 1, sizeof *moves);
    uint32_t *number = calloc((size_t)n + 1, sizeof *number);
    l->given[s] = calloc((size_t)n + 1, sizeof *l->given[s]);
    l->ops[s] = calloc((size_t)n + 1, sizeof *l->ops[s]);
    l->preds[s] = calloc(n_preds + 1, sizeof *l->preds[s]);
    const bool ok = moves && number && l->given[s] && l->ops[s] && l->preds[s];
    if (ok) {
        l->differs |= mark_movable(from, moves);
        renumber(from, moves, l->given[s]);
        for (uint32_t i = 0; i < n; i++) number[l->given[s][i]] = i;
        uint32_t *preds = l->preds[s];
        for (uint32_t i = 0; i < n; i++) {
            dh_slot_op *op = &l->ops[s][i];
            *op = from->ops[l->given[s][i]];
            for (uint32_t k = 0; k < op->n_preds; k++) preds[k] = number[op->preds[k]];
            op->preds = preds;
            preds += op->n_preds;
        }
        l->slot.strand[s].ops = l->ops[s];
    }
    free(moves);
    free(number);
    return ok;
}

bool slot_later_init(slot_later *l, const dh_slot *slot)
{
    *l = (slot_later){.slot = *slot};
    l->slot.rates = NULL; /* by the numbers of the slot as given */
    l->slot.one_strand_peak = dh_slot_one_strand_peak(slot);
    bool ok = true;
    for (int s = 0; ok && s < 2; s++) ok = copy_strand(l, &slot->strand[s], s);
    return ok;
}

void slot_later_fini(slot_later *l)
{
    for (int s = 0; s < 2; s++) {
        free(l->given[s]);
        free(l->ops[s]);
        free(l->preds[s]);
    }
}

void slot_later_as_given(const slot_later *l, dh_slot_pick *order)
{
    for (uint32_t i = 0; i < slot_nodes(&l->slot); i++)
        order[i].op = l->given[order[i].strand][order[i].op];
}
