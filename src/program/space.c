/* A segment tree over time whose nodes hold sets of bytes.
 *
 * A use of bytes over [t0, t1) touches every node on the descent to its canonical nodes. It also
 * covers the canonical nodes. Both are noted at the node. The bytes in use somewhere in a queried
 * interval are those that touch its canonical nodes, and those that cover nodes above these. Sets
 * are unions of runs, so many buffers that lie side by side cost no more than one. */
#include "program/space.h"

#include <stdlib.h>
#include <string.h>

typedef struct run {
    uint64_t lo, hi;
} run;

/* Disjoint runs, not even touching, in order. Most sets are one run, which needs no memory of its
 * own. */
typedef struct run_set {
    run *at; /* NULL: the run is `only` */
    run only;
    uint32_t n, cap;
} run_set;

typedef struct tree_node {
    run_set touching, covering;
} tree_node;

struct dh_space {
    uint32_t n_leaves; /* a power of two */
    tree_node *nodes;  /* [2 * n_leaves]; root 1, children of k: 2k, 2k + 1 */
};

dh_space *dh_space_create(uint32_t n_times)
{
    dh_space *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    for (s->n_leaves = 1; s->n_leaves < n_times;) s->n_leaves *= 2;
    s->nodes = calloc(2 * (size_t)s->n_leaves, sizeof *s->nodes);
    if (s->nodes) return s;
    free(s);
    return NULL;
}

void dh_space_destroy(dh_space *space)
{
    if (!space) return;
    for (size_t i = 1; i < 2 * (size_t)space->n_leaves; i++) {
        free(space->nodes[i].touching.at);
        free(space->nodes[i].covering.at);
    }
    free(space->nodes);
    free(space);
}

/* ---- sets of runs ------------------------------------------------------------------------ */

static const run *runs_of(const run_set *set)
{
    return set->at ? set->at : &set->only;
}

/* First run that ends behind `offset`; n when none does. */
static uint32_t first_behind(const run_set *set, uint64_t offset)
{
    const run *runs = runs_of(set);
    uint32_t lo = 0, hi = set->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (runs[mid].hi <= offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Room for one run more. */
static bool make_room(run_set *set)
{
    if (set->n == 0 || set->n < set->cap) return true;
    const uint32_t cap = set->cap ? 2 * set->cap : 4;
    run *at = realloc(set->at, cap * sizeof *at);
    if (!at) return false;
    if (!set->at) at[0] = set->only;
    set->at = at;
    set->cap = cap;
    return true;
}

static bool unite(run_set *set, run r)
{
    const run *runs = runs_of(set);
    uint32_t first = r.lo ? first_behind(set, r.lo - 1) : 0, last = first;
    for (; last < set->n && runs[last].lo <= r.hi; last++) {
        r.lo = DH_MIN(r.lo, runs[last].lo);
        r.hi = DH_MAX(r.hi, runs[last].hi);
    }
    if (first == last && !make_room(set)) return false;
    run *at = set->at ? set->at : &set->only;
    const uint32_t kept = set->n - last;
    if (kept) memmove(at + first + 1, at + last, kept * sizeof *at);
    at[first] = r;
    set->n = first + 1 + kept;
    return true;
}

/* ---- the tree ------------------------------------------------------------------------------- */

/* A node and the times [begin, end) below it. */
typedef struct cursor {
    uint32_t node, begin, end;
} cursor;

static cursor root(const dh_space *s)
{
    return (cursor){1, 0, s->n_leaves};
}

static cursor child(cursor c, uint32_t which)
{
    const uint32_t half = (c.end - c.begin) / 2, begin = c.begin + which * half;
    return (cursor){2 * c.node + which, begin, begin + half};
}

static bool use(dh_space *s, cursor c, uint32_t t0, uint32_t t1, run r)
{
    if (t1 <= c.begin || c.end <= t0) return true;
    tree_node *node = &s->nodes[c.node];
    if (!unite(&node->touching, r)) return false;
    if (t0 <= c.begin && c.end <= t1) return unite(&node->covering, r);
    return use(s, child(c, 0), t0, t1, r) && use(s, child(c, 1), t0, t1, r);
}

bool dh_space_use(dh_space *space, uint32_t t0, uint32_t t1, uint64_t lo, uint64_t hi)
{
    return use(space, root(space), t0, t1, (run){lo, hi});
}

/* At most four nodes a level of a tree are visited. */
typedef struct set_list {
    struct {
        const run_set *runs;
        uint64_t next; /* no run lies between what was last asked for and here */
    } at[DH_MAX_SPANS * 4 * 32];
    size_t n;
} set_list;

static void collect(const dh_space *s, cursor c, uint32_t t0, uint32_t t1, set_list *sets)
{
    if (t1 <= c.begin || c.end <= t0) return;
    const tree_node *node = &s->nodes[c.node];
    const bool inside = t0 <= c.begin && c.end <= t1;
    const run_set *set = inside ? &node->touching : &node->covering;
    if (set->n) {
        sets->at[sets->n].runs = set;
        sets->at[sets->n++].next = 0;
    }
    if (inside || node->touching.n == 0) return;
    collect(s, child(c, 0), t0, t1, sets);
    collect(s, child(c, 1), t0, t1, sets);
}

/* Where [at, at + n_bytes) has to move to leave the runs; at itself: nowhere. next is
 * where the first run behind it begins. */
static uint64_t clear_of(const run_set *set, uint64_t at, uint64_t n_bytes, uint64_t *next)
{
    const run *runs = runs_of(set);
    uint32_t i = first_behind(set, at);
    for (; i < set->n && runs[i].lo < at + n_bytes; i++) at = runs[i].hi;
    *next = i < set->n ? runs[i].lo : UINT64_MAX;
    return at;
}

uint64_t dh_space_lowest(const dh_space_span *spans, size_t n_spans, uint64_t from,
                         uint64_t n_bytes)
{
    DH_ASSERT(n_spans <= DH_MAX_SPANS, "%zu spans", n_spans);
    set_list sets;
    sets.n = 0; /* the rest is written before it is read, and large */
    for (size_t i = 0; i < n_spans; i++)
        if (spans[i].space)
            collect(spans[i].space, root(spans[i].space), spans[i].t0, spans[i].t1, &sets);
    uint64_t at = from;
    for (size_t clear = 0, i = 0; clear < sets.n; i = i + 1 < sets.n ? i + 1 : 0) {
        uint64_t to = at;
        if (at + n_bytes > sets.at[i].next)
            to = clear_of(sets.at[i].runs, at, n_bytes, &sets.at[i].next);
        clear = to == at ? clear + 1 : 1;
        at = to;
    }
    return at;
}
