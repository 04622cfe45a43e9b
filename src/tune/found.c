/* Results of a search: the best, the best with each value, and why values are not possible. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune/tuner.h"

dh_status tune_found_init(dh_ctx *ctx, tune_found *f, dh_arena *arena, size_t n_kept)
{
    *f = (tune_found){.arena = arena, .n_kept = n_kept};
    f->best = calloc(n_kept + 1, sizeof *f->best);
    f->places = calloc(n_kept + 1, sizeof *f->places);
    return f->best && f->places ? DH_OK : dh_no_memory(ctx);
}

void tune_found_fini(tune_found *f)
{
    free(f->best);
    free(f->places);
    dh_vec_fini(&f->values);
}

/* ---- order of rows -------------------------------------------------------------------------- */

/* How far a configuration is from the plainest; what comes first weighs most. */
static int plainness(const dh_tune_config *config)
{
    size_t n;
    const char *strategy = dh_strategies(&n)[config->at[DH_TUNE_STRATEGY]].name;
    const char *schedule = dh_schedule_rows(&n)[config->at[DH_TUNE_SCHEDULE]]->name;
    return 4 * (strcmp(strategy, "sequential") != 0) + 2 * (strcmp(schedule, "1f1b") != 0) +
           (config->at[DH_TUNE_STAGES] > 1);
}

int tune_compare(const dh_tune_config *a, double a_ns, const dh_tune_config *b, double b_ns)
{
    const double x = floor(log(a_ns) / TUNE_EQUAL), y = floor(log(b_ns) / TUNE_EQUAL);
    if (x != y) return x < y ? -1 : 1;
    const int by_plainness = plainness(a) - plainness(b);
    if (by_plainness) return by_plainness;
    return a_ns < b_ns ? -1 : a_ns > b_ns;
}

/* No row that takes longer comes before one of this time. */
static double longest_equal(double ns)
{
    return ns * (1 + 2 * TUNE_EQUAL);
}

/* ---- values --------------------------------------------------------------------------------- */

/* A dimension in which this configuration chooses nothing: a choice of others. */
static bool is_idle(const dh_tune_config *config, int dim)
{
    switch (dim) {
    case DH_TUNE_CP_LINEAR:
    case DH_TUNE_SEQUENCE:
    case DH_TUNE_FUSE:
    case DH_TUNE_POST:
    case DH_TUNE_SPLIT:
        return config->at[dim] < 0;
    default:
        return false;
    }
}

static bool is_value(const tune_found *f, size_t at, int dim, int64_t value)
{
    if (at >= f->values.n) return false;
    const dh_tune_value_row *row = &f->values.at[at].row;
    return (int)row->dim == dim && row->value == value;
}

/* hint: where the last one of the dimension was, which is mostly the same. */
static tune_value *value_at(tune_found *f, int dim, int64_t value, int64_t place, size_t *hint)
{
    size_t at = *hint;
    if (!is_value(f, at, dim, value))
        for (at = 0; at < f->values.n && !is_value(f, at, dim, value);) at++;
    if (at == f->values.n) {
        const tune_value made = {.row = {.dim = (dh_tune_dim)dim, .value = value}, .first = place};
        if (!dh_vec_push(&f->values, made)) return NULL;
    }
    tune_value *v = &f->values.at[at];
    v->first = DH_MIN(v->first, place);
    *hint = at;
    return v;
}

dh_status tune_found_limits(dh_ctx *ctx, tune_found *f, const dh_tune_config *config, int64_t place,
                            tune_hints *hints, tune_limits *limits)
{
    double most_ns = f->n_best < f->n_kept ? INFINITY : f->best[f->n_best - 1].step_ns;
    limits->bytes = 0;
    for (int d = 0; d < DH_N_TUNE_DIM; d++) {
        if (is_idle(config, d)) continue;
        const tune_value *v = value_at(f, d, config->at[d], place, &hints->at[d]);
        if (!v) return dh_no_memory(ctx);
        const dh_tune_value_row *row = &v->row;
        most_ns = DH_MAX(most_ns, row->n_fit ? row->best.step_ns : INFINITY);
        if (row->n_fit == 0)
            limits->bytes = DH_MAX(
                limits->bytes, row->n_too_large ? (double)row->best.memory.peak_bytes : INFINITY);
    }
    limits->step_ns = longest_equal(most_ns);
    return DH_OK;
}

/* ---- estimates ------------------------------------------------------------------------------ */

/* Of equals the first stays ahead. */
static bool is_before(const dh_tune_row *a, int64_t place_a, const dh_tune_row *b, int64_t place_b)
{
    const int order = tune_compare(&a->config, a->step_ns, &b->config, b->step_ns);
    return order < 0 || (order == 0 && place_a < place_b);
}

static void keep(tune_found *f, const dh_tune_row *row, int64_t place)
{
    size_t at = f->n_best;
    while (at > 0 && is_before(row, place, &f->best[at - 1], f->places[at - 1])) at--;
    if (at == f->n_kept) return;
    if (f->n_best < f->n_kept) f->n_best++;
    memmove(&f->best[at + 1], &f->best[at], (f->n_best - at - 1) * sizeof *f->best);
    memmove(&f->places[at + 1], &f->places[at], (f->n_best - at - 1) * sizeof *f->places);
    f->best[at] = *row;
    f->places[at] = place;
}

static void note_fit(tune_value *v, const dh_tune_row *row, int64_t place)
{
    dh_tune_value_row *of = &v->row;
    if (of->n_fit > 0 && !is_before(row, place, &of->best, v->best)) return;
    of->best = *row;
    v->best = place;
}

static void note_too_large(tune_value *v, const dh_tune_row *row, int64_t place)
{
    dh_tune_value_row *of = &v->row;
    const uint64_t bytes = row->memory.peak_bytes, least = of->best.memory.peak_bytes;
    const bool is_least =
        of->n_too_large == 0 || bytes < least || (bytes == least && place < v->best);
    if (of->n_fit > 0 || !is_least) return;
    of->best = *row;
    v->best = place;
}

dh_status tune_found_estimate(dh_ctx *ctx, tune_found *f, const dh_tune_row *row,
                              tune_outcome outcome, int64_t place, tune_hints *hints)
{
    const bool timed = row->fits && outcome == TUNE_ESTIMATED;
    *(row->fits ? &f->n_fit : &f->n_too_large) += 1;
    if (timed) keep(f, row, place);
    for (int d = 0; d < DH_N_TUNE_DIM; d++) {
        if (is_idle(&row->config, d)) continue;
        tune_value *v = value_at(f, d, row->config.at[d], place, &hints->at[d]);
        if (!v) return dh_no_memory(ctx);
        if (timed) note_fit(v, row, place);
        if (!row->fits) note_too_large(v, row, place);
        *(row->fits ? &v->row.n_fit : &v->row.n_too_large) += 1;
    }
    return DH_OK;
}

dh_status tune_found_instead(dh_ctx *ctx, tune_found *f, size_t i, const dh_tune_row *row,
                             int64_t place)
{
    tune_hints hints = {{0}};
    f->n_best--;
    f->n_fit--; /* counts ranked rows, of which this is one in place of the other */
    memmove(&f->best[i], &f->best[i + 1], (f->n_best - i) * sizeof *f->best);
    memmove(&f->places[i], &f->places[i + 1], (f->n_best - i) * sizeof *f->places);
    return tune_found_estimate(ctx, f, row, TUNE_ESTIMATED, place, &hints);
}

dh_status tune_found_behind(dh_ctx *ctx, tune_found *f, const dh_tune_row *row, int64_t place,
                            tune_hints *hints)
{
    f->n_behind++;
    for (int d = 0; d < DH_N_TUNE_DIM; d++) {
        if (is_idle(&row->config, d)) continue;
        tune_value *v = value_at(f, d, row->config.at[d], place, &hints->at[d]);
        if (!v) return dh_no_memory(ctx);
        if (v->row.n_behind++ == 0 || row->step_ns < v->row.least_ns)
            v->row.least_ns = row->step_ns;
    }
    return DH_OK;
}

/* ---- refusals ------------------------------------------------------------------------------- */

dh_status tune_found_refusal(dh_ctx *ctx, tune_found *f, const dh_tune_config *config,
                             const char *reason, int64_t place)
{
    const char *own = NULL;
    tune_hints hints = {{0}};
    f->n_refused++;
    for (int d = 0; d < DH_N_TUNE_DIM; d++) {
        if (config->at[d] < 0) continue;
        tune_value *v = value_at(f, d, config->at[d], place, &hints.at[d]);
        if (!v) return dh_no_memory(ctx);
        if (v->row.n_refused++ > 0 && v->refused < place) continue;
        if (!own && !(own = dh_arena_strdup(f->arena, reason))) return dh_no_memory(ctx);
        v->row.why = own;
        v->refused = place;
    }
    if (f->first_refusal && f->first_refused < place) return DH_OK;
    f->first_refusal = dh_arena_strdup(f->arena, reason);
    f->first_refused = place;
    return f->first_refusal ? DH_OK : dh_no_memory(ctx);
}

/* ---- order ---------------------------------------------------------------------------------- */

static int by_first(const void *x, const void *y)
{
    const tune_value *a = x, *b = y;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return (int)a->row.dim - (int)b->row.dim;
}

void tune_found_sort(tune_found *f)
{
    if (f->values.n > 0) qsort(f->values.at, f->values.n, sizeof *f->values.at, by_first);
}
