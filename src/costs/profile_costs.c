/* Costs by a profile, and by scaled estimates for what it does not know. */
#include "costs/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct by_profile {
    const dh_profile *profile;
    const dh_costs *fallback;
    /* Median rate of an operator of the first engine beside one of the second; NaN where no
     * such pair is known. */
    double rate[DH_N_ENGINE][DH_N_ENGINE];
} by_profile;

/* ---- what is not known ------------------------------------------------------------------ */

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Sorts; NaN of none. */
static double median(double *values, size_t n)
{
    if (n == 0) return NAN;
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Length of what an operator shares in name with its gradients: "linear" of "linear_dgrad". */
static size_t stem(const char *type)
{
    static const char *const ends[] = {"_grad", "_dgrad", "_wgrad"};
    const size_t n = strcspn(type, " ");
    for (size_t i = 0; i < DH_COUNTOF(ends); i++) {
        const size_t tail = strlen(ends[i]);
        if (n > tail && strncmp(type + n - tail, ends[i], tail) == 0) return n - tail;
    }
    return n;
}

/* How far an operator of one type is from one of another, in what sizes are compared by: farther
 * than any size. Gradients do what the operator does, on the same operands, so that a machine that
 * takes its time for the one does so for the other. */
static double type_distance(const char *a, const char *b)
{
    const double other_of_it = 1e3, other_type = 1e6;
    const size_t n = strcspn(a, " "), n_stem = stem(a);
    if (strcspn(b, " ") == n && strncmp(a, b, n) == 0) return 0;
    return stem(b) == n_stem && strncmp(a, b, n_stem) == 0 ? other_of_it : other_type;
}

/* Measured over estimated time of the nearest operator. It is of the same type if there is one,
 * else the operator whose gradient this one is. Among these the nearest estimate decides. Estimates
 * leave out overhead, which is most of a small transfer or loop. Its ratio would be wrong for a
 * large one. */
static double scale_for(const dh_profile *p, const dh_cost_op *op, double estimate_ns)
{
    const char *type = dh_op_info_of(op->op->type)->name;
    const dh_engine engine = dh_cost_engine(op);
    double scale = 1, nearest = INFINITY;
    for (size_t i = 0; i < p->ops.n && estimate_ns > 0; i++) {
        const dh_profile_op *known = &p->ops.at[i];
        if (dh_stream_engine(known->stream) != engine || known->estimate_ns <= 0) continue;
        const double distance =
            fabs(log(estimate_ns / (double)known->estimate_ns)) + type_distance(known->key, type);
        if (distance >= nearest) continue;
        nearest = distance;
        scale = (double)known->solo_ns / (double)known->estimate_ns;
    }
    return scale;
}

/* Faster beside another operator than alone: that is the time alone which is too long. */
static dh_op_rates rates_of(const dh_profile *p, const dh_profile_pair *pair)
{
    dh_op_rates r =
        dh_rates_from_times((double)p->ops.at[pair->a].solo_ns, (double)p->ops.at[pair->b].solo_ns,
                            (double)pair->a_ns, (double)pair->b_ns, pair->source);
    if (pair->source == DH_PAIR_MEASURED) {
        r.a = DH_MIN(r.a, 1);
        r.b = DH_MIN(r.b, 1);
    }
    return r;
}

/* Of one that could not be, dh_profile_repair left only that it was there. */
static bool is_known(const dh_profile_pair *pair)
{
    return pair->source != DH_PAIR_MODELLED;
}

static double rate_of(const dh_profile *p, dh_engine engine, dh_engine beside, double *rates)
{
    size_t n = 0;
    for (size_t i = 0; i < p->pairs.n; i++) {
        const dh_profile_pair *pair = &p->pairs.at[i];
        if (!is_known(pair)) continue;
        const dh_engine a = dh_stream_engine(p->ops.at[pair->a].stream);
        const dh_engine b = dh_stream_engine(p->ops.at[pair->b].stream);
        if (a == engine && b == beside) rates[n++] = rates_of(p, pair).a;
        if (b == engine && a == beside) rates[n++] = rates_of(p, pair).b;
    }
    return median(rates, n);
}

static bool learn(by_profile *own)
{
    const dh_profile *p = own->profile;
    double *values = malloc((2 * p->pairs.n + 1) * sizeof *values);
    if (!values) return false;
    for (int a = 0; a < DH_N_ENGINE; a++)
        for (int b = 0; b < DH_N_ENGINE; b++)
            own->rate[a][b] = rate_of(p, (dh_engine)a, (dh_engine)b, values);
    free(values);
    return true;
}

/* ---- answers ---------------------------------------------------------------------------- */

static uint32_t find(const by_profile *own, const dh_cost_op *op)
{
    char key[DH_OP_KEY_BYTES];
    return dh_profile_find_op(own->profile, dh_op_class_key(op, key));
}

static dh_op_time solo(const void *self, const dh_cost_op *op)
{
    const by_profile *own = self;
    const uint32_t id = find(own, op);
    if (id != DH_NONE)
        return (dh_op_time){(double)own->profile->ops.at[id].solo_ns,
                            own->profile->ops.at[id].source};
    const dh_op_time estimate = own->fallback->solo(own->fallback->self, op);
    return (dh_op_time){estimate.ns * scale_for(own->profile, op, estimate.ns), DH_PAIR_MODELLED};
}

static dh_op_rates not_known(const by_profile *own, const dh_cost_op *a, const dh_cost_op *b)
{
    const dh_engine s = dh_cost_engine(a), t = dh_cost_engine(b);
    if (dh_costs_are_duplex(a, b)) return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
    if (s == t) return (dh_op_rates){.5, .5, DH_PAIR_MODELLED};
    if (!isnan(own->rate[s][t]))
        return (dh_op_rates){own->rate[s][t], own->rate[t][s], DH_PAIR_MODELLED};
    return own->fallback->beside(own->fallback->self, a, b);
}

static dh_op_rates beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    const by_profile *own = self;
    const dh_profile *p = own->profile;
    const uint32_t x = find(own, a), y = find(own, b);
    if (x == DH_NONE || y == DH_NONE) return not_known(own, a, b);
    uint32_t pair = dh_profile_find_pair(p, x, y);
    if (pair != DH_NONE && is_known(&p->pairs.at[pair])) return rates_of(p, &p->pairs.at[pair]);
    pair = dh_profile_find_pair(p, y, x);
    if (pair == DH_NONE || !is_known(&p->pairs.at[pair])) return not_known(own, a, b);
    const dh_op_rates r = rates_of(p, &p->pairs.at[pair]);
    return (dh_op_rates){r.b, r.a, r.source};
}

dh_status dh_profile_costs(dh_ctx *ctx, dh_arena *arena, const dh_profile *profile,
                           const dh_costs *fallback, const dh_costs **costs)
{
    by_profile *own = DH_NEW(arena, by_profile);
    dh_costs *made = DH_NEW(arena, dh_costs);
    dh_profile *repaired = (dh_profile *)dh_profile_copy(arena, profile);
    if (own) *own = (by_profile){repaired, fallback, {{0}}};
    if (!own || !made || !repaired) return dh_no_memory(ctx);
    DH_TRY(dh_profile_repair(ctx, repaired));
    if (!learn(own)) return dh_no_memory(ctx);
    *made = (dh_costs){
        .name = dh_arena_printf(arena, "profile %s", profile->name),
        .solo = solo,
        .beside = beside,
        .launch_ns = profile->launch_ns > 0 ? (double)profile->launch_ns : fallback->launch_ns,
        .event_ns = profile->event_ns > 0 ? (double)profile->event_ns : fallback->event_ns,
        .id = dh_profile_hash(profile),
        .self = own,
    };
    if (!made->name) return dh_no_memory(ctx);
    *costs = made;
    return DH_OK;
}
