/* The sets of a strand's operators that may be finished at a round's end, as a lattice. Nodes are
 * downward-closed sets of operators. An edge adds the operators of one segment.
 *
 * The set that an edge adds (a convex set) has few members and occurs on many edges. It is kept
 * once, with all its orders. The cost of a paired round depends on the two convex sets and the
 * orders inside them, not on the operators finished before. */
#include <stdlib.h>
#include <string.h>

#include "pair_build.h"

/* ---- dag -------------------------------------------------------------------------------- */

dh_status pair_dag_make(dh_ctx *ctx, dh_arena *arena, dh_pair_strand strand, bool move_wgrad,
                        pair_dag *dag)
{
    size_t most = 0;
    for (int32_t k = 0; k < strand.n; k++) most += (size_t)strand.ops[k].n_preds + 1;
    int32_t *first = DH_NEW_N(arena, int32_t, strand.n + 1);
    int32_t *preds = DH_NEW_N(arena, int32_t, most + 1);
    if (!first || !preds) return dh_no_memory(ctx);
    int32_t n = 0;
    for (int32_t k = 0; k < strand.n; k++) {
        const dh_pair_op *op = &strand.ops[k];
        first[k] = n;
        for (int32_t i = 0; i < op->n_preds; i++) preds[n++] = op->preds[i];
        /* An operator that keeps its place stays between its neighbours. */
        bool pinned = !move_wgrad && k > 0 && (op->movable || op[-1].movable);
        if (pinned) preds[n++] = k - 1;
    }
    first[strand.n] = n;
    *dag = (pair_dag){strand.n, first, preds};
    return DH_OK;
}

static bool is_ready(const pair_dag *dag, const bool *done, int32_t k)
{
    if (done[k]) return false;
    for (int32_t i = dag->first[k]; i < dag->first[k + 1]; i++)
        if (!done[dag->preds[i]]) return false;
    return true;
}

dh_status pair_dag_order(dh_ctx *ctx, dh_arena *arena, const pair_dag *dag, const int32_t *key,
                         int32_t *order)
{
    bool *done = DH_NEW_N(arena, bool, dag->n + 1);
    if (!done) return dh_no_memory(ctx);
    for (int32_t at = 0; at < dag->n; at++) {
        int32_t next = -1;
        for (int32_t k = 0; k < dag->n; k++)
            if (is_ready(dag, done, k) && (next < 0 || key[k] < key[next])) next = k;
        DH_CHECK(next >= 0, "operators depend on each other in a circle");
        order[at] = next;
        done[next] = true;
    }
    return DH_OK;
}

/* ---- sets of operators by number -------------------------------------------------------- */

/* Open addressing; grows at half full. Sets are kept in order of their numbers. */
typedef struct set_index {
    DH_VEC(uint64_t) sets;
    int32_t *slots; /* number + 1; 0: free */
    size_t n_slots; /* a power of two */
} set_index;

static void index_fini(set_index *x)
{
    dh_vec_fini(&x->sets);
    free(x->slots);
}

static size_t slot_of(const set_index *x, uint64_t set)
{
    size_t slot = (size_t)dh_mix64(set) & (x->n_slots - 1);
    while (x->slots[slot] && x->sets.at[x->slots[slot] - 1] != set)
        slot = (slot + 1) & (x->n_slots - 1);
    return slot;
}

static bool index_grow(set_index *x)
{
    size_t n_slots = x->n_slots ? 2 * x->n_slots : 256;
    int32_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return false;
    free(x->slots);
    x->slots = slots;
    x->n_slots = n_slots;
    for (size_t k = 0; k < x->sets.n; k++) slots[slot_of(x, x->sets.at[k])] = (int32_t)k + 1;
    return true;
}

/* Number of a set, which is new when it equals the old sets.n; -1: out of memory. */
static int32_t index_put(set_index *x, uint64_t set)
{
    if (2 * (x->sets.n + 1) > x->n_slots && !index_grow(x)) return -1;
    size_t slot = slot_of(x, set);
    if (x->slots[slot]) return x->slots[slot] - 1;
    if (!dh_vec_push(&x->sets, set)) return -1;
    x->slots[slot] = (int32_t)x->sets.n;
    return (int32_t)x->sets.n - 1;
}

/* ---- all downward-closed sets ----------------------------------------------------------- */

typedef struct builder {
    dh_ctx *ctx;
    int32_t n, max_segment;
    size_t max_edges;
    uint64_t preds[DH_PAIR_MAX_EXACT_OPS], succs[DH_PAIR_MAX_EXACT_OPS];
    set_index closed, convex;
    pair_lattice *lattice;
    size_t n_edges; /* counted only */
    bool full;      /* more than max_edges */
} builder;

static uint64_t bit(int32_t k)
{
    return UINT64_C(1) << k;
}

static void read_dag(builder *s, const pair_dag *dag)
{
    s->n = dag->n;
    for (int32_t k = 0; k < dag->n; k++)
        for (int32_t i = dag->first[k]; i < dag->first[k + 1]; i++) {
            s->preds[k] |= bit(dag->preds[i]);
            s->succs[dag->preds[i]] |= bit(k);
        }
}

/* Breadth first from nothing finished: by size, so that all parts of a set come before it. */
static dh_status list_closed(builder *s)
{
    if (index_put(&s->closed, 0) < 0) return dh_no_memory(s->ctx);
    for (size_t at = 0; at < s->closed.sets.n; at++) {
        const uint64_t set = s->closed.sets.at[at];
        for (int32_t k = 0; k < s->n; k++) {
            if ((set & bit(k)) || (s->preds[k] & ~set)) continue;
            if (index_put(&s->closed, set | bit(k)) < 0) return dh_no_memory(s->ctx);
        }
    }
    return DH_OK;
}

/* ---- how many there are ----------------------------------------------------------------- */

/* As list_edges() below, but nothing is kept. */
static void count_edges(builder *s, uint64_t set, uint64_t kept, uint64_t removed,
                        int32_t n_removed)
{
    const uint64_t rest = set & ~removed;
    for (uint64_t left = rest & ~kept; left && !s->full; left &= left - 1) {
        const int32_t k = __builtin_ctzll(left);
        if (s->succs[k] & rest) continue;
        s->full = ++s->n_edges > s->max_edges;
        if (n_removed + 1 < s->max_segment)
            count_edges(s, set, kept, removed | bit(k), n_removed + 1);
        kept |= bit(k);
    }
}

/* A set is what is left when something is removed from everything. */
int64_t pair_dag_count_sets(const pair_dag *dag, int64_t max_sets)
{
    const int64_t most = DH_MIN(DH_MAX(1, max_sets), INT32_MAX - 1); /* sets have int32_t numbers */
    builder s = {.max_segment = dag->n, .max_edges = (size_t)most - 1};
    read_dag(&s, dag);
    const uint64_t all = dag->n < 64 ? bit(dag->n) - 1 : UINT64_MAX;
    count_edges(&s, all, 0, 0, 0);
    return (int64_t)s.n_edges + 1;
}

dh_status pair_dag_count_edges(dh_ctx *ctx, const pair_dag *dag, int32_t max_segment,
                               int64_t max_edges, int64_t *n_edges)
{
    builder s = {.ctx = ctx, .max_segment = max_segment, .max_edges = (size_t)max_edges};
    read_dag(&s, dag);
    dh_status st = list_closed(&s);
    for (size_t k = 0; st == DH_OK && k < s.closed.sets.n && !s.full; k++)
        count_edges(&s, s.closed.sets.at[k], 0, 0, 0);
    *n_edges = (int64_t)s.n_edges;
    index_fini(&s.closed);
    return st;
}

/* ---- segments --------------------------------------------------------------------------- */

/* All orders of `left` that keep predecessors first, appended to lattice->ops. */
static bool list_orders(builder *s, uint64_t left, int32_t *order, int32_t n, pair_segment *segment)
{
    if (left == 0) {
        for (int32_t i = 0; i < n; i++)
            if (!dh_vec_push(&s->lattice->ops, order[i])) return false;
        segment->n_orders++;
        return true;
    }
    for (int32_t k = 0; k < s->n; k++) {
        if (!(left & bit(k)) || (s->preds[k] & left)) continue;
        order[n] = k;
        if (!list_orders(s, left & ~bit(k), order, n + 1, segment)) return false;
    }
    return true;
}

/* Number of the segment; -1: out of memory. */
static int32_t segment_of(builder *s, uint64_t set, int32_t n_ops)
{
    pair_lattice *l = s->lattice;
    const size_t known = s->convex.sets.n;
    int32_t number = index_put(&s->convex, set);
    if (number < 0 || (size_t)number < known) return number;
    pair_segment segment = {n_ops, 0, l->ops.n};
    int32_t order[DH_PAIR_MAX_SEGMENT];
    if (!list_orders(s, set, order, 0, &segment)) return -1;
    l->n_orders += segment.n_orders;
    return dh_vec_push(&l->segments, segment) ? number : -1;
}

/* Every non-empty set of at most max_segment operators whose removal leaves a downward-closed
 * set, each once: an operator passed over at one level stays (`kept`) below it. */
static bool list_edges(builder *s, uint64_t set, uint64_t kept, uint64_t removed, int32_t n_removed)
{
    const uint64_t rest = set & ~removed;
    for (uint64_t left = rest & ~kept; left && !s->full; left &= left - 1) {
        const int32_t k = __builtin_ctzll(left);
        if (s->succs[k] & rest) continue;
        const uint64_t more = removed | bit(k);
        const int32_t from = index_put(&s->closed, set & ~more);
        const int32_t segment = segment_of(s, more, n_removed + 1);
        if (from < 0 || segment < 0) return false;
        if (!dh_vec_push(&s->lattice->edges, (pair_edge){from, segment})) return false;
        s->full = s->lattice->edges.n > s->max_edges || s->lattice->ops.n > s->max_edges;
        if (n_removed + 1 < s->max_segment && !list_edges(s, set, kept, more, n_removed + 1))
            return false;
        kept |= bit(k);
    }
    return true;
}

static dh_status link_sets(builder *s)
{
    pair_lattice *l = s->lattice;
    l->n_sets = (int32_t)s->closed.sets.n;
    for (size_t k = 0; k < s->closed.sets.n && !s->full; k++)
        if (!dh_vec_push(&l->first_edge, l->edges.n) ||
            !list_edges(s, s->closed.sets.at[k], 0, 0, 0))
            return dh_no_memory(s->ctx);
    return dh_vec_push(&l->first_edge, l->edges.n) ? DH_OK : dh_no_memory(s->ctx);
}

dh_status pair_lattice_full(dh_ctx *ctx, const pair_dag *dag, int32_t max_segment,
                            int64_t max_edges, pair_lattice *lattice, bool *fits)
{
    *lattice = (pair_lattice){0};
    builder s = {
        .ctx = ctx, .max_segment = max_segment, .max_edges = (size_t)max_edges, .lattice = lattice};
    read_dag(&s, dag);
    dh_status st = list_closed(&s);
    if (st == DH_OK) st = link_sets(&s);
    *fits = !s.full;
    index_fini(&s.closed);
    index_fini(&s.convex);
    if (st != DH_OK) pair_lattice_fini(lattice);
    return st;
}

/* ---- the prefixes of one order ---------------------------------------------------------- */

/* Edges into the prefix of length n. */
static bool link_prefix(pair_lattice *l, int32_t n, int32_t max_segment)
{
    if (!dh_vec_push(&l->first_edge, l->edges.n)) return false;
    for (int32_t length = 1; length <= DH_MIN(n, max_segment); length++) {
        const pair_edge edge = {n - length, (int32_t)l->segments.n};
        const pair_segment segment = {length, 1, (size_t)(n - length)};
        if (!dh_vec_push(&l->edges, edge) || !dh_vec_push(&l->segments, segment)) return false;
        l->n_orders++;
    }
    return true;
}

dh_status pair_lattice_chain(dh_ctx *ctx, const int32_t *order, int32_t n, int32_t max_segment,
                             pair_lattice *lattice)
{
    *lattice = (pair_lattice){.n_sets = n + 1};
    bool ok = true;
    for (int32_t k = 0; ok && k < n; k++) ok = dh_vec_push(&lattice->ops, order[k]);
    for (int32_t k = 0; ok && k <= n; k++) ok = link_prefix(lattice, k, max_segment);
    if (ok && dh_vec_push(&lattice->first_edge, lattice->edges.n)) return DH_OK;
    pair_lattice_fini(lattice);
    return dh_no_memory(ctx);
}

void pair_lattice_fini(pair_lattice *lattice)
{
    dh_vec_fini(&lattice->first_edge);
    dh_vec_fini(&lattice->edges);
    dh_vec_fini(&lattice->segments);
    dh_vec_fini(&lattice->ops);
}
