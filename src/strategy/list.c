/* List scheduling over both strands at once (Graham 1969). Priorities are the longest way to the
 * end, as in HEFT (Topcuoglu 2002). Whenever a stream is free, the operator that can start on it
 * first is issued; of several, the most urgent. Nothing waits for weight gradients, so they fill
 * the gaps. Several sets of priorities are tried, and the given order too: a strand without a
 * partner is often best left alone. The best order is kept.
 * An operator that would exceed the limit of memory waits until others release some. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

typedef struct trial {
    double comm_weight; /* of communication on the way to the end */
    double patience;    /* share of an operator's time a more urgent one may be waited for */
    double noise;       /* share of a priority drawn at random */
    double lead;        /* blocks that the forward may be ahead of the backward; 0: any */
} trial;

static const trial trials[] = {
    {1, 0, 0, 0},   {2, 0, 0, 0},   {1, .3, 0, 0},  {2, .3, 0, 0},  {1, 1, 0, 0},   {2, 1, 0, 0},
    {4, .3, 0, 0},  {1, 0, .1, 0},  {1, 0, .3, 0},  {2, .3, .1, 0}, {2, .3, .3, 0}, {1, .3, .2, 0},
    {2, .5, .2, 0}, {1, .3, .4, 0}, {1, 0, 0, 1},   {2, 0, 0, 1},   {1, 0, .1, 1},  {1, 0, .3, 1},
    {2, .3, .1, 1}, {1, .3, 0, .5}, {1, 0, .1, .5}, {1, 0, .3, .5}, {1, 0, 0, 1.5}, {1, 0, .1, 1.5},
};

typedef struct scheduler {
    const dh_slot *slot;
    uint32_t n;
    double *priority; /* [n] */
    double *ready;    /* [n] when what it needs has ended */
    double *start;
    uint32_t *waits; /* [n] needs not yet issued */
    uint32_t *succ0; /* [n + 1] */
    uint32_t *succ;
    uint32_t *succ_part; /* part of the output that each waits for; DH_NONE: all */
    uint32_t *open;      /* [n_open] all needs issued */
    uint32_t n_open;
    double free_at[DH_N_STREAM];
    slot_memory memory;
    uint64_t limit_bytes;
    uint64_t *reserve; /* [backward operators + 1] what the rest of the backward takes at most */
    double lead;
    uint32_t n_back; /* backward operators issued */
} scheduler;

/* For each operator of the backward, the memory that the rest of it needs above what it holds then.
 * While the forward leaves that much, the backward can always go on and release memory. */
static void set_reserve(scheduler *s)
{
    const uint32_t n0 = s->slot->strand[0].n, n = s->slot->strand[1].n;
    slot_memory *m = &s->memory;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t peak = slot_memory_with(m, n0 + i);
        s->reserve[i] = peak;
        slot_memory_issue(m, n0 + i);
    }
    uint64_t most = 0;
    for (uint32_t i = n; i-- > 0;) s->reserve[i] = most = DH_MAX(most, s->reserve[i]);
    slot_memory_reset(m);
    for (uint32_t i = 0; i < n; i++) {
        s->reserve[i] -= slot_memory_now(m);
        slot_memory_issue(m, n0 + i);
    }
}

static bool scheduler_init(scheduler *s, const dh_slot *slot)
{
    *s = (scheduler){.slot = slot, .n = slot_nodes(slot)};
    size_t n_needs = 0, n = s->n + 1;
    for (uint32_t i = 0; i < s->n; i++) n_needs += slot_n_needs(slot, i);
    const bool ok =
        (s->priority = calloc(n, sizeof *s->priority)) &&
        (s->ready = calloc(n, sizeof *s->ready)) && (s->start = calloc(n, sizeof *s->start)) &&
        (s->waits = calloc(n, sizeof *s->waits)) && (s->open = calloc(n, sizeof *s->open)) &&
        (s->succ0 = calloc(n + 1, sizeof *s->succ0)) &&
        (s->succ = calloc(n_needs + 1, sizeof *s->succ)) &&
        (s->succ_part = calloc(n_needs + 1, sizeof *s->succ_part)) &&
        slot_memory_init(&s->memory, slot) &&
        (s->reserve = calloc((size_t)slot->strand[1].n + 1, sizeof *s->reserve));
    if (!ok) return false;
    set_reserve(s);
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < slot_n_needs(slot, i); k++) s->succ0[slot_need(slot, i, k) + 1]++;
    for (uint32_t i = 0; i < s->n; i++) s->succ0[i + 1] += s->succ0[i];
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < slot_n_needs(slot, i); k++) {
            const uint32_t from = slot_need(slot, i, k);
            s->succ_part[s->succ0[from] + s->waits[from]] = slot_need_part(slot, i, k);
            s->succ[s->succ0[from] + s->waits[from]++] = i;
        }
    return true;
}

static void scheduler_fini(scheduler *s)
{
    free(s->priority);
    free(s->ready);
    free(s->start);
    free(s->waits);
    free(s->open);
    free(s->succ0);
    free(s->succ);
    free(s->succ_part);
    slot_memory_fini(&s->memory);
    free(s->reserve);
}

/* Nodes of a strand come in an order that computes, and those of strand 1 follow at most
 * some of strand 0: backwards, successors are done first. */
static void set_priorities(scheduler *s, const trial *t, uint64_t *seed)
{
    for (uint32_t i = s->n; i-- > 0;) {
        const dh_slot_op *op = slot_node(s->slot, i);
        double longest = 0; /* of a reduction none: those behind it are urgent for nobody else */
        for (uint32_t k = s->succ0[i]; k < s->succ0[i + 1] && !op->reduces; k++)
            longest = DH_MAX(longest, s->priority[s->succ[k]]);
        s->priority[i] = longest + op->ns * (op->stream > 0 ? t->comm_weight : 1);
    }
    for (uint32_t i = 0; t->noise > 0 && i < s->n; i++) {
        *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const double draw = (double)(*seed >> 11) / 9007199254740992.0;
        s->priority[i] *= 1 + t->noise * (2 * draw - 1);
    }
}

static double start_of(const scheduler *s, uint32_t node)
{
    return DH_MAX(s->ready[node], s->free_at[slot_node(s->slot, node)->stream]);
}

/* Transfers before computation, since they need nobody's attention once they run. */
static bool more_urgent(const scheduler *s, uint32_t a, uint32_t b)
{
    const bool link_a = slot_node(s->slot, a)->stream != 0;
    const bool link_b = slot_node(s->slot, b)->stream != 0;
    if (link_a != link_b) return link_a;
    if (s->priority[a] != s->priority[b]) return s->priority[a] > s->priority[b];
    return a < b;
}

/* Whether the forward would be further ahead than it may, in shares of the strands' blocks and
 * operators. */
static bool too_early(const scheduler *s, uint32_t node)
{
    const dh_slot_strand *f = &s->slot->strand[0], *b = &s->slot->strand[1];
    if (s->lead == 0 || node >= f->n || b->n == 0) return false;
    const double done = (double)s->n_back / b->n * f->n_blocks;
    return slot_node(s->slot, node)->block > done + s->lead;
}

/* Whether the bytes held while the node runs are beyond the limit, in the forward with what the
 * backward beside it still needs. */
static bool too_large(const scheduler *s, uint32_t node, uint64_t n_bytes)
{
    const uint64_t reserve = node < s->slot->strand[0].n ? s->reserve[s->n_back] : 0;
    return n_bytes + reserve > s->limit_bytes;
}

/* Moves operators that memory and the backward's progress allow to the front of `open`. Returns
 * their number. If none is allowed, it is the one that needs least memory. */
static uint32_t allowed(scheduler *s)
{
    uint64_t least = UINT64_MAX;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_open; i++) {
        const uint32_t node = s->open[i];
        const uint64_t n_bytes = slot_memory_with(&s->memory, node);
        least = DH_MIN(least, n_bytes);
        if (too_early(s, node) || too_large(s, node, n_bytes)) continue;
        s->open[i] = s->open[n];
        s->open[n++] = node;
    }
    for (uint32_t i = 0; n == 0 && i < s->n_open; i++) {
        const uint32_t node = s->open[i];
        if (slot_memory_with(&s->memory, node) > least) continue;
        s->open[i] = s->open[0];
        s->open[0] = node;
        n = 1;
    }
    return n;
}

/* Place in `open` of the next to be issued, among the first n. */
static uint32_t choose(const scheduler *s, uint32_t n, double patience)
{
    uint32_t first = 0;
    double earliest = start_of(s, s->open[0]);
    for (uint32_t i = 1; i < n; i++) {
        const double start = start_of(s, s->open[i]);
        if (start > earliest) continue;
        if (start == earliest && !more_urgent(s, s->open[i], s->open[first])) continue;
        first = i;
        earliest = start;
    }
    uint32_t best = first;
    const dh_slot_op *op = slot_node(s->slot, s->open[first]);
    const double until = earliest + patience * op->ns;
    for (uint32_t i = 0; i < n && patience > 0; i++) {
        const uint32_t node = s->open[i];
        if (slot_node(s->slot, node)->stream != op->stream || start_of(s, node) > until) continue;
        if (s->priority[node] > s->priority[s->open[best]]) best = i;
    }
    return best;
}

static void issue(scheduler *s, uint32_t place, dh_slot_pick *pick)
{
    const uint32_t node = s->open[place];
    const dh_slot_op *op = slot_node(s->slot, node);
    const double end = start_of(s, node) + op->ns;
    s->start[node] = end - op->ns;
    s->free_at[op->stream] = end;
    s->open[place] = s->open[--s->n_open];
    slot_memory_issue(&s->memory, node);
    if (node >= s->slot->strand[0].n) s->n_back++;
    *pick = slot_pick_of(s->slot, node);
    for (uint32_t k = s->succ0[node]; k < s->succ0[node + 1]; k++) {
        const uint32_t next = s->succ[k];
        const uint32_t part = s->succ_part[k];
        const double left = part == DH_NONE ? 0 : op->ns * (1 - dh_cost_part_share(&op->at, part));
        s->ready[next] = DH_MAX(s->ready[next], end - left);
        if (--s->waits[next] == 0) s->open[s->n_open++] = next;
    }
}

static void schedule(scheduler *s, const trial *t, uint64_t *seed, dh_slot_pick *order)
{
    set_priorities(s, t, seed);
    s->n_open = 0;
    slot_memory_reset(&s->memory);
    s->n_back = 0;
    s->lead = t->lead;
    memset(s->free_at, 0, sizeof s->free_at);
    for (uint32_t i = 0; i < s->n; i++) {
        s->ready[i] = 0;
        s->waits[i] = slot_n_needs(s->slot, i);
        if (s->waits[i] == 0) s->open[s->n_open++] = i;
    }
    for (uint32_t k = 0; k < s->n; k++) issue(s, choose(s, allowed(s), t->patience), &order[k]);
}

/* The order that was given, where that is shorter than the best one found. It holds no more than
 * one strand does. */
static dh_status keep_given(dh_ctx *ctx, const dh_slot *slot, slot_best *found, dh_slot_pick *made)
{
    const uint32_t n = slot_nodes(slot);
    for (uint32_t i = 0; i < n; i++) made[i] = slot_pick_of(slot, i);
    slot_tried *given = slot_trial_of(&found->tried, slot, made);
    if (!given) return dh_no_memory(ctx);
    DH_TRY(slot_time_trial(ctx, slot, given));
    const double gain = 1e-6 * found->period_ns;
    const bool shorter = given->period_ns < found->period_ns - gain;
    const bool sooner = given->period_ns <= found->period_ns + gain &&
                        given->makespan_ns < found->makespan_ns * (1 - 1e-6);
    if (shorter || sooner) memcpy(found->order, made, n * sizeof *made);
    return DH_OK;
}

static dh_status try_all(dh_ctx *ctx, scheduler *s, dh_slot_pick *made, slot_best *best)
{
    uint64_t seed = 1;
    const double bound_ns = dh_slot_bound(s->slot);
    for (size_t i = 0; i < DH_COUNTOF(trials); i++) {
        schedule(s, &trials[i], &seed, made);
        DH_TRY(slot_consider(ctx, s->slot, made, best));
        if (slot_is_enough(best, bound_ns, 1.002)) break;
    }
    return keep_given(ctx, s->slot, best, made);
}

dh_status slot_order_list(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                          dh_slot_pick *order)
{
    scheduler s;
    slot_rates rates;
    dh_slot own = *slot;
    slot_best best = {
        .order = order, .options = options, .limit_bytes = slot_memory_limit(slot, options)};
    dh_slot_pick *made = calloc((size_t)slot_nodes(slot) + 1, sizeof *made);
    own.rates = &rates;
    bool ok = slot_rates_init(&rates, slot);
    ok &= scheduler_init(&s, &own);
    s.limit_bytes = best.limit_bytes;
    const dh_status st = ok && made ? try_all(ctx, &s, made, &best) : dh_no_memory(ctx);
    scheduler_fini(&s);
    slot_rates_fini(&rates);
    slot_trials_fini(&best.tried);
    free(made);
    return st;
}
