/* The plan of a reshard whose busiest wire is done soonest. See reshard.h.
 *
 * Branch and bound over the slices that have several owners, largest first. A placed slice only
 * adds to wires, so a branch ends where one of them is as full as the best plan's busiest. This is
 * a makespan problem on unrelated machines, NP-hard in general. The search therefore ends after a
 * number of steps, and says whether it was complete; with many slices it is not begun. It starts
 * from the plan at hand and is never worse. */
#include <stdlib.h>
#include <string.h>

#include "program/reshard_load.h"

/* ---- loads ---------------------------------------------------------------------------------- */

dh_status dh_reshard_load_init(dh_ctx *ctx, const dh_reshard *reshard, dh_reshard_wires wires,
                               dh_reshard_load *load)
{
    *load = (dh_reshard_load){.reshard = reshard, .wires = wires};
    int64_t *all = calloc(4 * (size_t)reshard->n_ranks + 1, sizeof *all);
    if (!all) return dh_no_memory(ctx);
    for (int k = 0; k < 4; k++) load->bytes[k / 2][k % 2] = all + k * reshard->n_ranks;
    return DH_OK;
}

void dh_reshard_load_fini(dh_reshard_load *load)
{
    free(load->bytes[0][0]);
}

void dh_reshard_load_add(dh_reshard_load *load, uint32_t from, uint32_t to, int64_t bytes)
{
    const bool cross = !dh_reshard_is_local(load->reshard, from, to);
    if (from == to) return;
    load->bytes[cross][0][from] += bytes;
    load->bytes[cross][1][to] += bytes;
}

static double wire_ns(const dh_reshard_load *load, bool cross, int64_t bytes)
{
    return (double)bytes * (cross ? load->wires.cross_ns : load->wires.local_ns);
}

double dh_reshard_load_between(const dh_reshard_load *load, uint32_t from, uint32_t to)
{
    const bool cross = !dh_reshard_is_local(load->reshard, from, to);
    if (from == to) return 0;
    return wire_ns(load, cross, DH_MAX(load->bytes[cross][0][from], load->bytes[cross][1][to]));
}

double dh_reshard_load_busiest(const dh_reshard_load *load)
{
    double most = 0;
    for (int k = 0; k < 4; k++)
        for (int64_t r = 0; r < load->reshard->n_ranks; r++)
            most = DH_MAX(most, wire_ns(load, k / 2, load->bytes[k / 2][k % 2][r]));
    return most;
}

/* ---- a bound --------------------------------------------------------------------------------- */

/* Bytes that must pass a rank's wires. */
typedef struct dues {
    int64_t cross; /* all owners are on other nodes */
    int64_t any;   /* an owner is on the rank's node, others perhaps on other nodes */
} dues;

/* Two wires side by side: as if bytes were a fluid. */
static double side_by_side_ns(const dh_reshard_load *load, const dues *d)
{
    const double local = load->wires.local_ns, cross = load->wires.cross_ns;
    const double rate = (local > 0 ? 1 / local : 0) + (cross > 0 ? 1 / cross : 0);
    const double shared = rate > 0 ? (double)(d->cross + d->any) / rate : 0;
    return DH_MAX(shared, wire_ns(load, true, d->cross));
}

static bool has_owner_near(const dh_reshard *r, const dh_slice *s)
{
    for (uint32_t i = s->owner0; i < s->owner0 + s->n_owners; i++)
        if (dh_reshard_is_local(r, r->owners.at[i].rank, s->to)) return true;
    return false;
}

static bool stays(const dh_reshard *r, const dh_slice *s)
{
    return r->owners.at[s->owner0].rank == s->to;
}

/* A rank takes the same bytes in every plan; only the wires by which they come differ. */
static double taking_ns(const dh_reshard_load *load, int64_t rank)
{
    const dh_reshard *r = load->reshard;
    dues d = {0};
    double most = 0;
    for (size_t i = 0; i < r->slices.n; i++) {
        const dh_slice *s = &r->slices.at[i];
        if (s->to != rank || stays(r, s)) continue;
        const bool near = has_owner_near(r, s);
        const int64_t bytes = dh_slice_bytes(r, s);
        *(near ? &d.any : &d.cross) += bytes;
        most = DH_MAX(most, DH_MIN(wire_ns(load, !near, bytes), wire_ns(load, true, bytes)));
    }
    return DH_MAX(most, side_by_side_ns(load, &d));
}

/* A rank sends every slice that only it has. */
static double sending_ns(const dh_reshard_load *load, int64_t rank)
{
    const dh_reshard *r = load->reshard;
    int64_t bytes[2] = {0};
    for (size_t i = 0; i < r->slices.n; i++) {
        const dh_slice *s = &r->slices.at[i];
        if (s->n_owners != 1 || r->owners.at[s->owner0].rank != rank || stays(r, s)) continue;
        bytes[!dh_reshard_is_local(r, (uint32_t)rank, s->to)] += dh_slice_bytes(r, s);
    }
    return DH_MAX(wire_ns(load, false, bytes[0]), wire_ns(load, true, bytes[1]));
}

double dh_reshard_bound(const dh_reshard_load *load)
{
    double bound = 0;
    for (int64_t rank = 0; rank < load->reshard->n_ranks; rank++) {
        bound = DH_MAX(bound, taking_ns(load, rank));
        bound = DH_MAX(bound, sending_ns(load, rank));
    }
    return bound;
}

/* ---- search ---------------------------------------------------------------------------------- */

/* TUNING: a second or two. Cases of 30 free slices with 4 owners mostly end far below. */
#define MAX_STEPS 20000000
#define MAX_FREE 64

typedef struct choice {
    uint32_t slice;
    int64_t bytes;
} choice;

typedef struct search {
    dh_reshard *r;
    dh_reshard_load load;
    choice *free; /* [n_free] slices with several owners, largest first */
    size_t n_free;
    uint32_t *at, *best_at; /* chosen owners of free slices */
    double best, bound;
    int64_t n_steps;
} search;

static int by_size(const void *a, const void *b)
{
    const choice *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->slice < y->slice ? -1 : x->slice > y->slice;
}

static void descend(search *s, size_t depth, double most)
{
    if (s->best <= s->bound || s->n_steps >= MAX_STEPS) return;
    s->n_steps++;
    if (depth == s->n_free) {
        s->best = most;
        memcpy(s->best_at, s->at, s->n_free * sizeof *s->at);
        return;
    }
    const choice *c = &s->free[depth];
    const dh_slice *slice = &s->r->slices.at[c->slice];
    for (uint32_t i = slice->owner0; i < slice->owner0 + slice->n_owners; i++) {
        const uint32_t from = s->r->owners.at[i].rank;
        dh_reshard_load_add(&s->load, from, slice->to, c->bytes);
        const double busy = DH_MAX(most, dh_reshard_load_between(&s->load, from, slice->to));
        s->at[depth] = i;
        if (busy < s->best) descend(s, depth + 1, busy);
        dh_reshard_load_add(&s->load, from, slice->to, -c->bytes);
    }
}

/* The wires of what has one owner, and the list of the rest. */
static void set_out(search *s)
{
    dh_reshard *r = s->r;
    for (uint32_t i = 0; i < r->slices.n; i++) {
        const dh_slice *slice = &r->slices.at[i];
        const int64_t bytes = dh_slice_bytes(r, slice);
        if (slice->n_owners > 1 && !stays(r, slice))
            s->free[s->n_free++] = (choice){i, bytes};
        else
            dh_reshard_load_add(&s->load, r->owners.at[slice->owner0].rank, slice->to, bytes);
    }
    if (s->n_free) qsort(s->free, s->n_free, sizeof *s->free, by_size);
    for (size_t i = 0; i < s->n_free; i++) s->best_at[i] = r->slices.at[s->free[i].slice].from;
}

dh_status dh_reshard_search(dh_ctx *ctx, dh_reshard *reshard, dh_reshard_wires wires, bool *ended)
{
    const size_t n = reshard->slices.n + 1;
    dh_reshard_sum sum;
    search s = {.r = reshard};
    DH_TRY(dh_reshard_sum_up(ctx, reshard, wires, &sum));
    DH_TRY(dh_reshard_load_init(ctx, reshard, wires, &s.load));
    s.free = calloc(n, sizeof *s.free);
    s.at = calloc(n, sizeof *s.at);
    s.best_at = calloc(n, sizeof *s.best_at);
    s.best = sum.busiest_ns;
    s.bound = sum.bound_ns;
    const bool ok = s.free && s.at && s.best_at;
    if (ok) {
        set_out(&s);
        s.n_steps = s.n_free <= MAX_FREE || s.best <= s.bound ? 0 : MAX_STEPS;
        descend(&s, 0, dh_reshard_load_busiest(&s.load));
        for (size_t i = 0; i < s.n_free; i++)
            reshard->slices.at[s.free[i].slice].from = s.best_at[i];
    }
    *ended = s.n_steps < MAX_STEPS;
    dh_reshard_load_fini(&s.load);
    free(s.free);
    free(s.at);
    free(s.best_at);
    return ok ? DH_OK : dh_no_memory(ctx);
}
