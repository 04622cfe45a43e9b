/* Answers that a search among orders of one slot needs many times.
 *
 * Most sets of priorities lead to an order that another set has led to before. It is timed once.
 * All orders run the same operators at once. Costs are asked once for the speeds of two of them. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

/* ---- rates ---------------------------------------------------------------------------------- */

/* TUNING: of longer slots, rings over hundreds of ranks, a table takes longer to clear than to do
 * without. */
enum { MOST_PAIRS = 1 << 20 };

bool slot_rates_init(slot_rates *rates, const dh_slot *slot)
{
    const uint32_t n = slot_nodes(slot);
    uint32_t n_rows = 0;
    *rates = (slot_rates){.n_nodes = n, .row = calloc((size_t)n + 1, sizeof *rates->row)};
    for (uint32_t i = 0; rates->row && i < n; i++) {
        rates->row[i] = n_rows;
        n_rows += slot_node(slot, i)->stream != DH_STREAM_COMPUTE;
    }
    const size_t n_pairs = (size_t)n_rows * n + 1;
    if (n_pairs > MOST_PAIRS) return rates->row != NULL;
    rates->at = malloc(n_pairs * sizeof *rates->at);
    rates->known = calloc(n_pairs, sizeof *rates->known);
    return rates->row && rates->at && rates->known;
}

void slot_rates_fini(slot_rates *rates)
{
    free(rates->row);
    free(rates->at);
    free(rates->known);
}

static void ask(const dh_slot *slot, uint32_t a, uint32_t b, double speeds[2])
{
    const dh_costs *c = slot->costs;
    const dh_op_rates both = c->beside(c->self, &slot_node(slot, a)->at, &slot_node(slot, b)->at);
    speeds[0] = both.a;
    speeds[1] = both.b;
}

void slot_speeds(const dh_slot *slot, uint32_t a, uint32_t b, double speeds[2])
{
    slot_rates *rates = slot->rates;
    if (!rates || !rates->at) {
        ask(slot, a, b, speeds);
        return;
    }
    const size_t at = (size_t)rates->row[b] * rates->n_nodes + a;
    if (!rates->known[at]) ask(slot, a, b, rates->at[at]);
    rates->known[at] = true;
    memcpy(speeds, rates->at[at], sizeof rates->at[at]);
}

/* ---- orders --------------------------------------------------------------------------------- */

void slot_trials_fini(slot_trials *trials)
{
    for (size_t i = 0; i < trials->n; i++) free(trials->at[i].order);
    dh_vec_fini(trials);
}

static uint64_t number_of(const dh_slot *slot, const dh_slot_pick *pick)
{
    return (uint64_t)slot_pick_node(slot, pick) << 2 | (uint64_t)pick->barrier << 1 | pick->behind;
}

static uint64_t hash_of(const dh_slot *slot, const dh_slot_pick *order)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < slot_nodes(slot); i++)
        hash = (hash ^ number_of(slot, &order[i])) * UINT64_C(0x9e3779b97f4a7c15);
    return hash;
}

static bool is_same(const dh_slot *slot, const dh_slot_pick *a, const dh_slot_pick *b)
{
    for (uint32_t i = 0; i < slot_nodes(slot); i++)
        if (number_of(slot, &a[i]) != number_of(slot, &b[i])) return false;
    return true;
}

slot_tried *slot_trial_of(slot_trials *trials, const dh_slot *slot, const dh_slot_pick *order)
{
    const size_t n = slot_nodes(slot);
    const slot_tried made = {.hash = hash_of(slot, order)};
    for (size_t i = 0; i < trials->n; i++)
        if (trials->at[i].hash == made.hash && is_same(slot, trials->at[i].order, order))
            return &trials->at[i];
    if (!dh_vec_push(trials, made)) return NULL;
    slot_tried *kept = &trials->at[trials->n - 1];
    kept->order = malloc((n + 1) * sizeof *kept->order);
    if (!kept->order) {
        trials->n--;
        return NULL;
    }
    memcpy(kept->order, order, n * sizeof *order);
    kept->peak_bytes = dh_slot_peak(slot, order);
    return kept;
}

dh_status slot_time_trial(dh_ctx *ctx, const dh_slot *slot, slot_tried *trial)
{
    dh_slot_timing t = {0};
    if (trial->timed) return DH_OK;
    DH_TRY(dh_slot_time(ctx, slot, trial->order, &t));
    trial->period_ns = t.period_ns;
    trial->makespan_ns = t.makespan_ns;
    trial->timed = true;
    return DH_OK;
}
