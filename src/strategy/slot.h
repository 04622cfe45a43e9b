/* Inside the folder: building slots, walking them as one set of nodes. */
#ifndef DH_STRATEGY_SLOT_H
#define DH_STRATEGY_SLOT_H

#include "base/live.h"
#include "strategy/strategy.h"

/* Operators of both strands numbered through: those of strand 0 first. */
static inline uint32_t slot_nodes(const dh_slot *slot)
{
    return slot->strand[0].n + slot->strand[1].n;
}
static inline const dh_slot_op *slot_node(const dh_slot *slot, uint32_t node)
{
    const uint32_t n0 = slot->strand[0].n;
    return node < n0 ? &slot->strand[0].ops[node] : &slot->strand[1].ops[node - n0];
}
static inline uint32_t slot_pick_node(const dh_slot *slot, const dh_slot_pick *pick)
{
    return pick->op + (pick->strand ? slot->strand[0].n : 0);
}
static inline dh_slot_pick slot_pick_of(const dh_slot *slot, uint32_t node)
{
    const uint32_t n0 = slot->strand[0].n;
    dh_slot_pick pick = {.op = node, .strand = 0, .barrier = false};
    if (node >= n0) pick = (dh_slot_pick){.op = node - n0, .strand = 1, .barrier = false};
    return pick;
}
/* Nodes before a node: its predecessors, then after_f operators of strand 0. */
static inline uint32_t slot_n_needs(const dh_slot *slot, uint32_t node)
{
    const dh_slot_op *op = slot_node(slot, node);
    return op->n_preds + (node < slot->strand[0].n ? 0 : op->after_f);
}
static inline uint32_t slot_need(const dh_slot *slot, uint32_t node, uint32_t i)
{
    const dh_slot_op *op = slot_node(slot, node);
    if (i >= op->n_preds) return i - op->n_preds;
    return op->preds[i] + (node < slot->strand[0].n ? 0 : slot->strand[0].n);
}

/* The part of a need's output that is wanted; DH_NONE: all of it. */
static inline uint32_t slot_need_part(const dh_slot *slot, uint32_t node, uint32_t i)
{
    const dh_slot_op *op = slot_node(slot, node);
    return op->pred_parts && i < op->n_preds ? op->pred_parts[i] : DH_NONE;
}

/* policies, in list.c, critical.c, pairs.c and braid.c */
dh_status slot_order_list(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                          dh_slot_pick *order);
dh_status slot_order_critical(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                              dh_slot_pick *order);
dh_status slot_order_dp(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                        dh_slot_pick *order);
dh_status slot_order_exact(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                           dh_slot_pick *order);
dh_status slot_order_dualpipe(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                              dh_slot_pick *order);
dh_status slot_order_combined(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                              dh_slot_pick *order);
dh_status slot_order_stp(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                         dh_slot_pick *order);

/* place.c: of a slot whose result another rank waits for. Reductions come last in its strand. */
dh_slot slot_without_reductions(const dh_slot *slot);
/* order [nodes of slot]: of the strands in, with reductions where they delay the step least out */
dh_status slot_place_reductions(dh_ctx *ctx, const dh_slot *slot, dh_slot_pick *order);

/* later.c: the slot with the weight gradients of each block after its input gradients. Costs,
 * tensors and what the slot follows are the given slot's. */
typedef struct slot_later {
    dh_slot slot;
    dh_slot_op *ops[2];
    uint32_t *preds[2];
    uint32_t *given[2]; /* [operators] by strand: numbers in the given slot */
    bool differs;       /* there are such weight gradients */
} slot_later;
bool slot_later_init(slot_later *l,
                     const dh_slot *slot); /* false: out of memory; fini all the same */
void slot_later_fini(slot_later *l);
/* An order of it becomes an order of the given slot. */
void slot_later_as_given(const slot_later *l, dh_slot_pick *order);

/* Memory of the strands' tensors while operators are issued one after another. */
typedef struct slot_memory {
    const dh_slot *slot;
    dh_live_storage *storages[2]; /* [n_tensors], by strand */
    dh_live live[2];
} slot_memory;
bool slot_memory_init(slot_memory *m, const dh_slot *slot); /* false: out of memory */
void slot_memory_fini(slot_memory *m);
void slot_memory_reset(slot_memory *m);
/* Bytes held now; and while the node runs. */
uint64_t slot_memory_now(const slot_memory *m);
uint64_t slot_memory_with(const slot_memory *m, uint32_t node);
void slot_memory_issue(slot_memory *m, uint32_t node);
/* Most that an order may hold. */
uint64_t slot_memory_limit(const dh_slot *slot, const dh_order_options *options);

/* again.c: how operators slow each other down, asked for once by who times many orders of a slot.
 * One thread at a time. */
typedef struct slot_rates {
    uint32_t n_nodes;
    uint32_t *row; /* [nodes]: of one that communicates */
    double (*at)[2];
    bool *known;
} slot_rates;
bool slot_rates_init(slot_rates *rates, const dh_slot *slot); /* false: out of memory */
void slot_rates_fini(slot_rates *rates);
/* Speeds of a and b beside each other; b communicates. Through slot->rates where there are some. */
void slot_speeds(const dh_slot *slot, uint32_t a, uint32_t b, double speeds[2]);

/* again.c: orders that were timed, so that one that comes again is not. */
typedef struct slot_tried {
    uint64_t hash;
    uint64_t peak_bytes;
    bool timed; /* the two below are known */
    double period_ns, makespan_ns;
    dh_slot_pick *order; /* [nodes] */
} slot_tried;
typedef DH_VEC(slot_tried) slot_trials;
void slot_trials_fini(slot_trials *trials);
/* The order's, with its peak; NULL: out of memory. */
slot_tried *slot_trial_of(slot_trials *trials, const dh_slot *slot, const dh_slot_pick *order);
/* Times the trial, if it has not been timed before.
 * errors    those of dh_slot_time */
dh_status slot_time_trial(dh_ctx *ctx, const dh_slot *slot, slot_tried *trial);

/* Repairs an order and keeps the better of two. The first difference in this list decides: excess
 * over the limit of memory, period, makespan. Of equal orders the earlier one stays.
 * errors    those of dh_slot_time */
typedef struct slot_best {
    dh_slot_pick *order;             /* [nodes] */
    const dh_order_options *options; /* switches that orders keep to; NULL: they do already */
    uint64_t limit_bytes, excess_bytes;
    double period_ns, makespan_ns;
    bool any;
    slot_trials tried; /* freed with slot_trials_fini */
} slot_best;
dh_status slot_consider(dh_ctx *ctx, const dh_slot *slot, dh_slot_pick *order, slot_best *best);
/* Whether the best is within a factor of the bound, so that a search may end. An order below the
 * bound proves the bound wrong, as with times from a busy machine: the search goes on. */
bool slot_is_enough(const slot_best *best, double bound_ns, double factor);

#endif
