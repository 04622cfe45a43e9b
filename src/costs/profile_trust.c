/* Profiles that were measured while something else used the machine: found, measured again, and
 * repaired by what their times say about each other. */
#include <stdlib.h>

#include "costs/profile.h"
#include "plan/pairing.h"

/* TUNING: medians of 11 samples on a quiet machine are within a few percent; starts of two of a pair
 * are some microseconds apart. */
static const double allowed = 0.1;
enum { SHORTEST_NS = 20000 };

/* TUNING: of 574 pairs on a quiet machine under 2 % are doubtful, beside other load 20 to 50 %. */
static const double noisy_share = 0.05;

static int64_t solo_of(const dh_profile *p, uint32_t op)
{
    return p->ops.at[op].solo_ns;
}

/* By how much a pair's end is outside of what can be; 0: inside. */
static double outside_ns(const dh_profile *p, const dh_profile_pair *pair)
{
    const double a = (double)solo_of(p, pair->a), b = (double)solo_of(p, pair->b);
    const double together = (double)DH_MAX(pair->a_ns, pair->b_ns);
    const double least = DH_MAX(a, b), most = a + b + DH_MIN(a, b);
    return together < least ? least - together : DH_MAX(together - most, 0);
}

static bool is_measured(const dh_profile_pair *pair)
{
    return pair->source == DH_PAIR_MEASURED;
}

dh_profile_doubts dh_profile_doubt(const dh_profile *p)
{
    dh_profile_doubts d = {0, 0};
    for (size_t i = 0; i < p->pairs.n; i++) {
        const dh_profile_pair *pair = &p->pairs.at[i];
        const int64_t longer = DH_MAX(solo_of(p, pair->a), solo_of(p, pair->b));
        if (!is_measured(pair) || longer < SHORTEST_NS) continue;
        d.n_pairs++;
        d.n_doubtful += outside_ns(p, pair) > allowed * (double)longer;
    }
    return d;
}

bool dh_profile_is_noisy(dh_profile_doubts d)
{
    return (double)d.n_doubtful > noisy_share * (double)d.n_pairs;
}

/* ---- the quieter of two --------------------------------------------------------------------- */

static dh_status keep_op(dh_ctx *ctx, dh_profile *into, const dh_profile_op *op, uint32_t *id)
{
    *id = dh_profile_find_op(into, op->key);
    if (*id == DH_NONE) return dh_profile_add_op(ctx, into, op, id);
    dh_profile_op *own = &into->ops.at[*id];
    own->forward |= op->forward;
    own->backward |= op->backward;
    if (op->solo_ns >= own->solo_ns) return DH_OK;
    own->solo_ns = op->solo_ns;
    own->spread_ns = op->spread_ns;
    own->n_samples = op->n_samples;
    return DH_OK;
}

static dh_status keep_pair(dh_ctx *ctx, dh_profile *into, dh_profile_pair pair)
{
    const uint32_t at = dh_profile_find_pair(into, pair.a, pair.b);
    if (at != DH_NONE) {
        const dh_profile_pair *own = &into->pairs.at[at];
        if (DH_MAX(pair.a_ns, pair.b_ns) >= DH_MAX(own->a_ns, own->b_ns)) return DH_OK;
    }
    return dh_profile_add_pair(ctx, into, &pair);
}

static int64_t quieter(int64_t a, int64_t b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

dh_status dh_profile_keep_quieter(dh_ctx *ctx, dh_profile *into, const dh_profile *from)
{
    uint32_t *ids = malloc((from->ops.n + 1) * sizeof *ids);
    dh_status st = ids ? DH_OK : dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < from->ops.n; i++)
        st = keep_op(ctx, into, &from->ops.at[i], &ids[i]);
    for (size_t i = 0; st == DH_OK && i < from->pairs.n; i++) {
        dh_profile_pair pair = from->pairs.at[i];
        pair.a = ids[pair.a];
        pair.b = ids[pair.b];
        st = keep_pair(ctx, into, pair);
    }
    into->launch_ns = quieter(from->launch_ns, into->launch_ns);
    into->event_ns = quieter(from->event_ns, into->event_ns);
    free(ids);
    return st;
}

/* ---- repair --------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* An operator's times in its pairs. A pair of an operator with itself counts twice. */
static size_t ends_of(const dh_profile *p, uint32_t op, int64_t *ns)
{
    size_t n = 0;
    for (size_t i = 0; i < p->pairs.n; i++) {
        const dh_profile_pair *pair = &p->pairs.at[i];
        if (!is_measured(pair)) continue;
        if (pair->a == op) ns[n++] = pair->a_ns;
        if (pair->b == op) ns[n++] = pair->b_ns;
    }
    return n;
}

/* TUNING: the fewest pairs whose quartile says more than one time alone. */
enum { LEAST_ENDS = 4 };

static int64_t alone_by_pairs(const dh_profile *p, uint32_t op, int64_t *ns)
{
    const int64_t solo = solo_of(p, op);
    const size_t n = ends_of(p, op, ns);
    size_t sooner = 0;
    for (size_t i = 0; i < n; i++) sooner += (double)ns[i] < (1 - allowed) * (double)solo;
    if (n < LEAST_ENDS || 2 * sooner < n) return solo;
    qsort(ns, n, sizeof *ns, by_value);
    return DH_MIN(ns[n / 4], solo);
}

dh_status dh_profile_repair(dh_ctx *ctx, dh_profile *p)
{
    int64_t *ns = malloc((2 * p->pairs.n + 1) * sizeof *ns);
    if (!ns) return dh_no_memory_while(ctx, "reading %s", p->name);
    for (uint32_t i = 0; i < p->ops.n; i++)
        if (p->ops.at[i].source == DH_PAIR_MEASURED)
            p->ops.at[i].solo_ns = alone_by_pairs(p, i, ns);
    free(ns);
    for (size_t i = 0; i < p->pairs.n; i++) {
        dh_profile_pair *pair = &p->pairs.at[i];
        const int64_t longer = DH_MAX(solo_of(p, pair->a), solo_of(p, pair->b));
        if (is_measured(pair) && outside_ns(p, pair) > allowed * (double)longer)
            pair->source = DH_PAIR_MODELLED;
    }
    return DH_OK;
}
