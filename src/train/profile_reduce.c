/* Samples of all ranks to medians.
 *
 * Computation: samples of all ranks together. A collective: of its members' times in one
 * repetition the least counts. All end it together, but some begin it earlier and wait; the
 * last to come waits for nobody, so its time is the transfer's. */
#include <stdlib.h>
#include <string.h>

#include "program/program.h"
#include "train/profile.h"

/* One end of one probe on one rank. */
typedef struct series {
    uint32_t a, b;   /* operators of the profile; b DH_NONE: alone */
    int64_t team[2]; /* number of the group that runs the end together; -1: the rank alone */
    const int64_t *ns[2];
} series;

typedef struct reducer {
    dh_profile *profile;
    size_t n; /* samples of a series */
    DH_VEC(series) all;
    DH_VEC(int64_t) pool;
} reducer;

/* ---- collecting ---------------------------------------------------------------------------- */

static dh_status add_class(dh_ctx *ctx, reducer *r, const dh_probe_class *cls, uint32_t *id)
{
    dh_profile *p = r->profile;
    *id = dh_profile_find_op(p, cls->key);
    if (*id != DH_NONE) {
        p->ops.at[*id].forward |= cls->forward;
        p->ops.at[*id].backward |= cls->backward;
        return DH_OK;
    }
    const dh_profile_op op = {.key = cls->key,
                              .label = cls->label,
                              .stream = cls->stream,
                              .forward = cls->forward,
                              .backward = cls->backward,
                              .source = DH_PAIR_MEASURED,
                              .solo_ns = 1,
                              .estimate_ns = DH_MAX(cls->estimate_ns, 1)};
    return dh_profile_add_op(ctx, p, &op, id);
}

static int64_t team_of(const dh_rank_samples *rank, int32_t group)
{
    if (group < 0) return -1;
    return dh_mesh_group_id(&rank->program->mesh, (dh_group_kind)group, rank->rank);
}

static dh_status collect(dh_ctx *ctx, reducer *r, const dh_rank_samples *rank)
{
    const dh_program *p = rank->program;
    uint32_t *ids = malloc((p->probe_classes.n + 1) * sizeof *ids);
    dh_status st = ids ? DH_OK : dh_no_memory(ctx);
    for (size_t c = 0; st == DH_OK && c < p->probe_classes.n; c++)
        st = add_class(ctx, r, &p->probe_classes.at[c], &ids[c]);
    for (size_t i = 0; st == DH_OK && i < p->probes.n; i++) {
        const uint32_t *cls = p->probes.at[i].cls;
        series s = {.a = ids[cls[0]], .b = cls[1] == DH_NONE ? DH_NONE : ids[cls[1]]};
        for (int k = 0; k < 2; k++) {
            if (cls[k] != DH_NONE) s.team[k] = team_of(rank, p->probe_classes.at[cls[k]].group);
            s.ns[k] = rank->ns + (2 * i + (size_t)k) * r->n;
        }
        if (!dh_vec_push(&r->all, s)) st = dh_no_memory(ctx);
    }
    free(ids);
    return st;
}

/* ---- medians ------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

typedef struct summary {
    int64_t median, spread;
    int32_t n;
} summary;

static int64_t at_least_1(int64_t ns)
{
    return DH_MIN(DH_MAX(ns, 1), DH_PAIR_MAX_NS);
}

/* Sorts. */
static summary summarize(int64_t *ns, size_t n)
{
    if (n == 0) return (summary){.median = 1};
    qsort(ns, n, sizeof *ns, by_value);
    return (summary){at_least_1(ns[n / 2]), ns[n * 3 / 4] - ns[n / 4], (int32_t)n};
}

static bool same_probe(const series *x, const series *y)
{
    return x->a == y->a && x->b == y->b;
}

/* The series, or for a collective the least of its team's; counted with the first of them. */
static dh_status pool_team(dh_ctx *ctx, reducer *r, const series *s, int end)
{
    const bool alone = s->team[end] < 0;
    for (const series *t = r->all.at; !alone && t < s; t++)
        if (same_probe(s, t) && t->team[end] == s->team[end]) return DH_OK;
    for (size_t i = 0; i < r->n; i++) {
        int64_t ns = s->ns[end][i];
        for (const series *t = s + 1; !alone && t < r->all.at + r->all.n; t++)
            if (same_probe(s, t) && t->team[end] == s->team[end]) ns = DH_MIN(ns, t->ns[end][i]);
        if (!dh_vec_push(&r->pool, ns)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static dh_status pooled(dh_ctx *ctx, reducer *r, const series *probe, int end, summary *sum)
{
    r->pool.n = 0;
    for (size_t i = 0; i < r->all.n; i++)
        if (same_probe(probe, &r->all.at[i])) DH_TRY(pool_team(ctx, r, &r->all.at[i], end));
    *sum = summarize(r->pool.at, r->pool.n);
    return DH_OK;
}

static bool is_first(const reducer *r, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (same_probe(&r->all.at[j], &r->all.at[i])) return false;
    return true;
}

static dh_status reduce_probe(dh_ctx *ctx, reducer *r, const series *s)
{
    summary sums[2] = {{0}};
    for (int k = 0; k < (s->b == DH_NONE ? 1 : 2); k++) DH_TRY(pooled(ctx, r, s, k, &sums[k]));
    if (s->b == DH_NONE) {
        dh_profile_op *op = &r->profile->ops.at[s->a];
        op->solo_ns = sums[0].median;
        op->spread_ns = sums[0].spread;
        op->n_samples = sums[0].n;
        return DH_OK;
    }
    const dh_profile_pair pair = {.a = s->a,
                                  .b = s->b,
                                  .source = DH_PAIR_MEASURED,
                                  .a_ns = sums[0].median,
                                  .b_ns = sums[1].median,
                                  .a_spread_ns = sums[0].spread,
                                  .b_spread_ns = sums[1].spread,
                                  .n_samples = DH_MIN(sums[0].n, sums[1].n)};
    return dh_profile_add_pair(ctx, r->profile, &pair);
}

dh_status dh_profile_reduce(dh_ctx *ctx, const dh_rank_samples *ranks, size_t n_ranks, size_t n,
                            dh_profile *profile)
{
    reducer r = {.profile = profile, .n = n};
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n_ranks; i++) st = collect(ctx, &r, &ranks[i]);
    for (size_t i = 0; st == DH_OK && i < r.all.n; i++)
        if (is_first(&r, i)) st = reduce_probe(ctx, &r, &r.all.at[i]);
    dh_vec_fini(&r.all);
    dh_vec_fini(&r.pool);
    return st;
}

/* ---- overheads ----------------------------------------------------------------------------- */

/* A step has thousands of gaps, so their mean counts, which a median would miss by far: most are
 * short. Single interruptions are cut to the 98th percentile. */
static int64_t typical_gap(int64_t *ns, size_t n)
{
    int64_t sum = 0;
    if (n == 0) return 0;
    qsort(ns, n, sizeof *ns, by_value);
    const int64_t most = ns[n * 98 / 100];
    for (size_t i = 0; i < n; i++) sum += DH_MIN(ns[i], most);
    return at_least_1(sum / (int64_t)n);
}

/* From the end of the last thing an instruction waited for to its start. *crosses: that was
 * of another stream. */
static int64_t gap_before(const dh_program *p, const dh_span *spans, uint32_t instr,
                          uint32_t before, bool *crosses)
{
    const dh_instr *i = &p->instrs.at[instr];
    int64_t ready = spans[before].end_ns;
    *crosses = false;
    for (uint32_t w = 0; w < i->n_waits; w++) {
        const int64_t end = dh_wait_end_ns(p, spans, p->waits.at[i->wait0 + w]);
        if (end > ready) {
            ready = end;
            *crosses = true;
        }
    }
    return DH_MAX(spans[instr].start_ns - ready, 0);
}

dh_status dh_profile_overheads(dh_ctx *ctx, const dh_program *p, const dh_span *spans,
                               dh_profile *profile)
{
    uint32_t last[DH_N_STREAM];
    size_t n[2] = {0, 0};
    int64_t *gaps[2];
    memset(last, 0xff, sizeof last);
    for (int k = 0; k < 2; k++) gaps[k] = malloc((p->instrs.n + 1) * sizeof **gaps);
    if (gaps[0] && gaps[1]) {
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            const uint8_t stream = p->instrs.at[i].stream;
            bool crosses = false;
            if (last[stream] != DH_NONE) {
                const int64_t gap = gap_before(p, spans, i, last[stream], &crosses);
                gaps[crosses][n[crosses]++] = gap;
            }
            last[stream] = i;
        }
        profile->launch_ns = typical_gap(gaps[0], n[0]);
        profile->event_ns = typical_gap(gaps[1], n[1]);
    }
    dh_status st = gaps[0] && gaps[1] ? DH_OK : dh_no_memory(ctx);
    free(gaps[0]);
    free(gaps[1]);
    return st;
}
