/* Order policies: the table, the simple ones, and the choice among all. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

/* ---- simple policies ------------------------------------------------------------------------ */

static dh_status in_order(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                          dh_slot_pick *order)
{
    for (uint32_t i = 0; i < slot_nodes(slot); i++) {
        order[i] = slot_pick_of(slot, i);
        order[i].barrier = options->barriers;
    }
    return DH_OK;
}

static dh_status alternate(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                           dh_slot_pick *order)
{
    const uint32_t n[2] = {slot->strand[0].n, slot->strand[1].n};
    uint32_t next[2] = {0, 0};
    for (uint32_t k = 0; k < n[0] + n[1]; k++) {
        const uint8_t from = next[0] == n[0] || (next[1] < n[1] && next[1] < next[0]);
        /* A round: one operator of each strand, while both have any. */
        const bool begins = from == 0 || next[1] >= n[0];
        order[k] = (dh_slot_pick){
            .op = next[from]++, .strand = from, .barrier = options->barriers && begins};
    }
    return DH_OK;
}

/* ---- orders that respect every dependence ------------------------------------------------- */

typedef struct repair {
    const dh_slot *slot;
    bool wgrad_stays; /* weight gradients do not leave their place in the backward */
    bool *issued;
    dh_slot_pick *order;
    uint32_t n;
} repair;

static void issue(repair *r, dh_slot_pick pick);

/* All of the backward that stands before a weight gradient, or weight gradients before another
 * operator. Reductions have places of their own. */
static void issue_before(repair *r, const dh_slot_pick *pick)
{
    const dh_slot_op *ops = r->slot->strand[1].ops;
    if (pick->strand == 0 || ops[pick->op].reduces) return;
    for (uint32_t k = 0; k < pick->op; k++)
        if ((ops[k].wgrad || ops[pick->op].wgrad) && !ops[k].reduces)
            issue(r, (dh_slot_pick){.op = k, .strand = 1});
}

/* Issue a node after everything that it needs. Most orders have that already. */
static void issue(repair *r, dh_slot_pick pick)
{
    const uint32_t node = slot_pick_node(r->slot, &pick);
    if (r->issued[node]) return;
    r->issued[node] = true;
    if (r->wgrad_stays) issue_before(r, &pick);
    for (uint32_t i = 0; i < slot_n_needs(r->slot, node); i++)
        issue(r, slot_pick_of(r->slot, slot_need(r->slot, node, i)));
    r->order[r->n++] = pick;
}

/* Bits 1 << dh_engine of the strands. */
static unsigned engines_of(const dh_slot *slot)
{
    unsigned engines = 0;
    for (uint32_t i = 0; i < slot_nodes(slot); i++)
        if (!slot_node(slot, i)->reduces)
            engines |= 1u << dh_stream_engine(slot_node(slot, i)->stream);
    return engines;
}

/* An operator that may not run beside one of the other strand waits for it, and the other way
 * round: a barrier stands between them. The slot before may still run operators like the slot's
 * own. */
static void keep_apart(const dh_slot *slot, const dh_pair_options *may, dh_slot_pick *order)
{
    if (may->overlap_local && may->overlap_cross && may->overlap_comm_comm) return;
    const unsigned all = engines_of(slot);
    unsigned running[2] = {all, all}; /* since the last barrier */
    for (uint32_t i = 0; i < slot_nodes(slot); i++) {
        const dh_slot_op *op = slot_node(slot, slot_pick_node(slot, &order[i]));
        const dh_engine own = dh_stream_engine(op->stream);
        const unsigned others = running[!order[i].strand];
        if (op->reduces) continue;
        for (int e = 0; e < DH_N_ENGINE; e++)
            order[i].barrier |= others >> e & 1 && !dh_pair_may_overlap(may, own, (dh_engine)e);
        if (order[i].barrier) running[0] = running[1] = 0;
        running[order[i].strand] |= 1u << own;
    }
}

/* options: NULL: the order keeps to the job's switches already, by a plan. */
static dh_status repair_order(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                              dh_slot_pick *order)
{
    const uint32_t n = slot_nodes(slot);
    repair r = {
        .slot = slot, .wgrad_stays = options && !options->pairing.move_wgrad, .order = order};
    dh_slot_pick *given = malloc(((size_t)n + 1) * sizeof *given);
    r.issued = calloc((size_t)n + 1, sizeof *r.issued);
    const bool ok = given && r.issued;
    if (ok) memcpy(given, order, n * sizeof *given);
    for (uint32_t i = 0; ok && i < n; i++) issue(&r, given[i]);
    if (ok && options) keep_apart(slot, &options->pairing, order);
    free(given);
    free(r.issued);
    return ok ? DH_OK : dh_no_memory(ctx);
}

/* The order of a policy; it may break dependences, which repair_order puts right. */
static dh_status propose(dh_ctx *ctx, const dh_slot *slot, const dh_order_policy *policy,
                         const dh_order_options *options, dh_slot_pick *order)
{
    return (policy->order ? policy->order : in_order)(ctx, slot, options, order);
}

dh_status dh_slot_order(dh_ctx *ctx, const dh_slot *slot, const dh_order_policy *policy,
                        const dh_order_options *options, dh_slot_pick *order)
{
    const dh_slot strands = slot_without_reductions(slot);
    const bool wait = slot->rest.room > 0 && slot_nodes(&strands) < slot_nodes(slot);
    const dh_slot *ordered = wait ? &strands : slot;
    /* Plans heed the switches themselves, and their barriers hold what they found. */
    const dh_order_options *open = policy->plans && options->barriers ? NULL : options;
    DH_TRY(propose(ctx, ordered, policy, options, order));
    if (policy->order) DH_TRY(repair_order(ctx, ordered, open, order));
    return wait ? slot_place_reductions(ctx, slot, order) : DH_OK;
}

/* ---- the best of all ------------------------------------------------------------------------- */

static bool is_faster(const slot_tried *t, const slot_best *best)
{
    const double gain = 1e-6 * best->period_ns;
    if (t->period_ns < best->period_ns - gain) return true;
    return t->period_ns <= best->period_ns + gain &&
           t->makespan_ns < best->makespan_ns * (1 - 1e-6);
}

dh_status slot_consider(dh_ctx *ctx, const dh_slot *slot, dh_slot_pick *order, slot_best *best)
{
    DH_TRY(repair_order(ctx, slot, best->options, order));
    slot_tried *trial = slot_trial_of(&best->tried, slot, order);
    if (!trial) return dh_no_memory(ctx);
    const uint64_t peak = trial->peak_bytes;
    const uint64_t excess = peak > best->limit_bytes ? peak - best->limit_bytes : 0;
    if (best->any && excess > best->excess_bytes) return DH_OK;
    DH_TRY(slot_time_trial(ctx, slot, trial));
    if (best->any && excess == best->excess_bytes && !is_faster(trial, best)) return DH_OK;
    memcpy(best->order, order, slot_nodes(slot) * sizeof *order);
    best->excess_bytes = excess;
    best->period_ns = trial->period_ns;
    best->makespan_ns = trial->makespan_ns;
    best->any = true;
    return DH_OK;
}

bool slot_is_enough(const slot_best *best, double bound_ns, double factor)
{
    const double rounding = 1e-6;
    return best->any && best->excess_bytes == 0 && best->period_ns <= factor * bound_ns &&
           best->period_ns >= (1 - rounding) * bound_ns;
}

/* Whether the strands do. Reductions alone are hidden wherever their gradients are made. */
static bool communicates(const dh_slot *slot)
{
    for (uint32_t i = 0; i < slot_nodes(slot); i++)
        if (slot_node(slot, i)->stream != DH_STREAM_COMPUTE && !slot_node(slot, i)->reduces)
            return true;
    return false;
}

static dh_status order_auto(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                            dh_slot_pick *order);

/* Tries the other rows in their order, except the fixed ones. Cheap rows come first. A row that does
 * not move weight gradients itself also tries them after input gradients. The search stops when an
 * order is near the bound. */
static dh_status try_rows(dh_ctx *ctx, const dh_slot *slot, const slot_later *later,
                          dh_slot_pick *made, slot_best *best)
{
    size_t n;
    const dh_order_policy *rows = dh_order_policies(&n);
    const double bound_ns = dh_slot_bound(slot);
    const bool may_move = later->differs && best->options->pairing.move_wgrad;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].order == order_auto || rows[i].fixed) continue;
        for (int k = 0; k < (may_move && !rows[i].plans ? 2 : 1); k++) {
            DH_TRY(propose(ctx, k ? &later->slot : slot, &rows[i], best->options, made));
            if (k) slot_later_as_given(later, made);
            DH_TRY(slot_consider(ctx, slot, made, best));
            if (slot_is_enough(best, bound_ns, DH_ORDER_ENOUGH)) return DH_OK;
        }
    }
    return DH_OK;
}

static dh_status order_auto(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                            dh_slot_pick *order)
{
    if (!communicates(slot)) return in_order(ctx, slot, options, order);
    slot_best best = {
        .order = order, .options = options, .limit_bytes = slot_memory_limit(slot, options)};
    slot_later later;
    const bool ok = slot_later_init(&later, slot);
    dh_slot_pick *made = calloc(slot_nodes(slot) + 1, sizeof *made);
    const dh_status st = ok && made ? try_rows(ctx, slot, &later, made, &best) : dh_no_memory(ctx);
    free(made);
    slot_later_fini(&later);
    slot_trials_fini(&best.tried);
    return st;
}

/* ---- the table ------------------------------------------------------------------------------ */

static const dh_order_policy policies[] = {
    {.name = "sequential", .doc = "one strand after the other"},
    {.name = "round-robin",
     .doc = "operators of the two strands alternate (Wavelet+ of DHelix, 6.1)",
     .order = alternate},
    {.name = "list",
     .doc = "the operator that can start first; among several the most urgent one, over all blocks "
            "of the slot (Graham 1969; HEFT)",
     .order = slot_order_list,
     .limits = true},
    {.name = "dp",
     .doc = "pairs of segments in the given order, by equation 2 (DHelix, arXiv 2411.15871)",
     .order = slot_order_dp,
     .plans = true},
    {.name = "exact",
     .doc = "pairs of segments over all orders and cuts",
     .order = slot_order_exact,
     .plans = true},
    {.name = "auto",
     .doc =
         "the fastest order by the costs among those of the other policies; fixed orders are not "
         "tried",
     .order = order_auto,
     .limits = true},
    {.name = "dualpipe",
     .doc = "fixed: attention, dispatch, MLP and combine of the forward run during combine, MLP "
            "with its weight gradients, dispatch, and attention with its weight gradients of the "
            "backward (DeepSeek-V3, arXiv 2412.19437, 3.2.1)",
     .order = slot_order_dualpipe,
     .fixed = true},
    {.name = "combined-1f1b",
     .doc = "fixed: five nodes a layer on two streams; the last weight gradients cover the "
            "transfer to the next stage (Megatron-Core)",
     .order = slot_order_combined,
     .fixed = true},
    {.name = "stp",
     .doc = "fixed: attention or MLP of a forward and of an unsplit backward take turns (STP, "
            "arXiv 2510.27257)",
     .order = slot_order_stp,
     .fixed = true},
    {.name = "critical-path",
     .doc = "one strand after the other; weight gradients run before or after input gradients, or "
            "during waits for transfers, whichever ends first (Centauri, ASPLOS 2024)",
     .order = slot_order_critical,
     .fixed = true,
     .limits = true},
};

const dh_order_policy *dh_order_policies(size_t *n)
{
    *n = DH_COUNTOF(policies);
    return policies;
}

dh_status dh_order_policy_find(dh_ctx *ctx, const char *name, const dh_order_policy **policy)
{
    const char *names[DH_COUNTOF(policies)];
    for (size_t i = 0; i < DH_COUNTOF(policies); i++) {
        names[i] = policies[i].name;
        if (strcmp(names[i], name) != 0) continue;
        *policy = &policies[i];
        return DH_OK;
    }
    const char *near = dh_nearest(name, names, DH_COUNTOF(names));
    return dh_fail(ctx, DH_EMISSING,
                   "no order policy is called %s%s%s; dhelix list policies has all", name,
                   near ? "; did you mean " : "", near ? near : "");
}
