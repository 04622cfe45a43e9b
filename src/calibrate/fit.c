/* Two thirds of the rows decide, the last third says how far the result carries.
 *
 * The misfit is the sum of squared logarithms of predicted over measured time. It has kinks, where
 * another algorithm or tile becomes the fastest, so the search asks for values alone: each constant
 * in turn is multiplied and divided by a factor, which shrinks when no constant gains any more. */
#include "calibrate/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "costs/cluster_table.h"

#define KIND(id) (1u << DH_MEASURED_##id)

/* In order: what is fitted before is known to those behind. Of one stage the first are kept where
 * there are few rows. `least` keeps what may be 0 searchable by factors, in the struct's unit. */
static const struct {
    const char *key;
    unsigned stage, rows; /* rows: kinds that tell about it */
    double least;
} constants[] = {
    {"local.efficiency", 0, KIND(LOCAL), 0.01},
    {"local.step_us", 0, KIND(LOCAL), 1},
    {"local.transfer_efficiency", 1, KIND(LOCAL_TRANSFER), 0.01},
    {"network.efficiency", 2, KIND(NETWORK), 0.001},
    {"network.step_us", 2, KIND(NETWORK), 1},
    {"network.transfer_efficiency", 3, KIND(NETWORK_TRANSFER), 0.001},
    {"gemm.efficiency", 4, KIND(GEMM), 0.01},
    {"device.kernel_us", 4, KIND(GEMM), 1},
    {"gemm.start_k", 4, KIND(GEMM), 0.1},
    {"gemm.tile_half", 4, KIND(GEMM), 0.1},
};
enum { N_CONSTANTS = DH_COUNTOF(constants), N_STAGES = 5 };

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory fitting a cluster");
}

/* ---- predictions ---------------------------------------------------------------------------- */

/* Members of a node hang on several of its switches where they are more than one has. */
static bool is_spread(const dh_cluster *c, const dh_cluster_span *span)
{
    return c->node_switches > 1 &&
           (double)span->nodes.max_per_node > c->node_devices / c->node_switches;
}

static double predict(const dh_cluster *c, const dh_measured_row *row)
{
    if (row->kind == DH_MEASURED_GEMM) return dh_cluster_gemm_ns(c, &row->gemm);
    dh_cluster_span span = row->span;
    span.spread = is_spread(c, &span);
    return dh_cluster_collective(c, row->type, row->bytes, span).ns;
}

static double row_misfit(const dh_fit *f, unsigned kinds)
{
    double sum = 0;
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        if (row->held || !(kinds >> row->kind & 1)) continue;
        const double off = log(predict(&f->cluster, row) / row->ns);
        sum += row->weight * off * off;
    }
    return sum;
}

/* ---- constants ------------------------------------------------------------------------------ */

static const dh_cluster_setting *setting_of(const char *key)
{
    size_t n, i = 0;
    const dh_cluster_setting *settings = dh_cluster_settings(&n);
    while (i < n && strcmp(settings[i].key, key) != 0) i++;
    DH_CHECK(i < n, "constant %s is no setting", key);
    return &settings[i];
}

static double *place_of(dh_cluster *c, size_t constant)
{
    return (double *)((char *)c + setting_of(constants[constant].key)->offset);
}

static double value_of(const dh_cluster *c, size_t constant)
{
    return *(const double *)((const char *)c + setting_of(constants[constant].key)->offset);
}

static double most_of(size_t constant)
{
    const dh_cluster_setting *s = setting_of(constants[constant].key);
    return s->max * s->factor;
}

static size_t count_rows(const dh_fit *f, unsigned kinds, bool held)
{
    size_t n = 0;
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        n += row->held == held && (kinds >> row->kind & 1);
    }
    return n;
}

/* Rows for each constant of a stage, so that noise in one of them does not decide it. */
enum { ROWS_FOR_ONE = 3 };

/* Whether there are rows enough for it beside those of its stage that come before it. */
static bool is_wanted(const dh_fit *f, size_t constant)
{
    size_t before = 1;
    for (size_t i = 0; i < constant; i++) before += constants[i].stage == constants[constant].stage;
    return count_rows(f, constants[constant].rows, false) >= before * ROWS_FOR_ONE;
}

/* Where rows leave it open which of two constants differs from the base, both do, and by little: of
 * products that all have one shared axis nobody can tell efficiency from start. */
static double misfit(const dh_fit *f, unsigned stage)
{
    enum { ROW_PER_THOUSAND = 1000 };
    double sum = 0;
    unsigned kinds = 0;
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        if (constants[i].stage != stage || !f->constants[i].fitted) continue;
        const double base = f->constants[i].base * setting_of(constants[i].key)->factor;
        const double off = log(value_of(&f->cluster, i) / DH_MAX(base, constants[i].least));
        sum += off * off / ROW_PER_THOUSAND;
        kinds |= constants[i].rows;
    }
    return sum + row_misfit(f, kinds);
}

/* ---- search --------------------------------------------------------------------------------- */

/* One constant times a factor, where that gains; false: it does not. */
static bool try_factor(dh_fit *f, size_t constant, double factor, double *best)
{
    double *at = place_of(&f->cluster, constant);
    const double before = *at;
    *at = DH_MIN(DH_MAX(before * factor, constants[constant].least), most_of(constant));
    const double now = misfit(f, constants[constant].stage);
    if (now < *best * (1 - 1e-12)) {
        *best = now;
        return true;
    }
    *at = before;
    return false;
}

static void fit_stage(dh_fit *f, unsigned stage)
{
    enum { HALVINGS = 12 }; /* of the step, from a factor of 2 to one of 1.0003 */
    double best = misfit(f, stage), factor = 2;
    for (int halving = 0; halving < HALVINGS; halving++, factor = sqrt(factor)) {
        bool gained = true;
        for (int rounds = 0; gained && rounds < 64; rounds++) {
            gained = false;
            for (size_t i = 0; i < N_CONSTANTS; i++) {
                if (constants[i].stage != stage || !f->constants[i].fitted) continue;
                gained |= try_factor(f, i, factor, &best) || try_factor(f, i, 1 / factor, &best);
            }
        }
    }
}

/* Whether a tenth more or less of it shows in any row. */
static bool is_determined(const dh_fit *f, size_t constant)
{
    dh_cluster less = f->cluster, more = f->cluster;
    *place_of(&less, constant) *= 0.9;
    *place_of(&more, constant) *= 1.1;
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        if (row->held || !(constants[constant].rows >> row->kind & 1)) continue;
        if (fabs(predict(&more, row) / predict(&less, row) - 1) > 1e-3) return true;
    }
    return false;
}

/* Back to the base's value where the rows say nothing of it. */
static void drop_free(dh_fit *f)
{
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        if (!f->constants[i].fitted || is_determined(f, i)) continue;
        f->constants[i].fitted = false;
        f->constants[i].why = "no row depends on it";
        *place_of(&f->cluster, i) = f->constants[i].base * setting_of(constants[i].key)->factor;
    }
}

/* ---- rows left out -------------------------------------------------------------------------- */

static double size_of(const dh_measured_row *row)
{
    const dh_gemm_shape *g = &row->gemm;
    if (row->kind != DH_MEASURED_GEMM) return row->bytes;
    return (double)g->rows * (double)g->columns * (double)g->shared * (double)g->batch;
}

static int by_group_and_size(const void *x, const void *y)
{
    const dh_measured_row *a = x, *b = y;
    const int group = strcmp(a->group, b->group);
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (group != 0) return group;
    if (size_of(a) != size_of(b)) return size_of(a) < size_of(b) ? -1 : 1;
    return (a->ns > b->ns) - (a->ns < b->ns);
}

/* Every third of a group by size, so that what is left out lies between what is used. */
static void hold_rows(dh_measured *m)
{
    size_t nth = 0;
    qsort(m->rows.at, m->rows.n, sizeof *m->rows.at, by_group_and_size);
    for (size_t i = 0; i < m->rows.n; i++) {
        const bool begins = i == 0 || strcmp(m->rows.at[i].group, m->rows.at[i - 1].group) != 0;
        nth = begins ? 0 : nth + 1;
        m->rows.at[i].held = nth % 3 == 1;
    }
}

/* ---- errors --------------------------------------------------------------------------------- */

static void add_error(double off, dh_fit_error *e)
{
    e->mean = (e->mean * (double)e->n + fabs(off)) / (double)(e->n + 1);
    e->n++;
}

static void judge_constants(dh_fit *f)
{
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        dh_fit_constant *c = &f->constants[i];
        const dh_cluster_setting *s = setting_of(c->key);
        c->value = value_of(&f->cluster, i) / s->factor;
        c->at_bound =
            c->fitted && (c->value >= s->max || value_of(&f->cluster, i) <= constants[i].least);
        for (size_t k = 0; k < f->measured->rows.n; k++) {
            const dh_measured_row *row = &f->measured->rows.at[k];
            if (!(constants[i].rows >> row->kind & 1)) continue;
            add_error(predict(&f->cluster, row) / row->ns - 1, row->held ? &c->held : &c->used);
        }
    }
}

static void judge_groups(dh_fit *f)
{
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        const double off = predict(&f->cluster, row) / row->ns - 1;
        if (i == 0 || strcmp(row->group, row[-1].group) != 0)
            f->groups[f->n_groups++] = (dh_fit_group){.name = row->group, .worst = row};
        dh_fit_group *g = &f->groups[f->n_groups - 1];
        add_error(off, row->held ? &g->held : &g->used);
        add_error(predict(f->base, row) / row->ns - 1, &g->base);
        if (fabs(off) < fabs(g->worst_error)) continue;
        g->worst = row;
        g->worst_error = off;
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status check_any(dh_ctx *ctx, const dh_measured *m)
{
    if (m->rows.n > 0) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "no measurement that a constant could rest on%s%s",
                   m->notes.n > 0 ? "; " : "", m->notes.n > 0 ? m->notes.at[0] : "");
}

static dh_status check_devices(dh_ctx *ctx, dh_fit *f, int64_t devices)
{
    int64_t most = 0;
    for (size_t i = 0; i < f->measured->rows.n; i++)
        if (f->measured->rows.at[i].kind != DH_MEASURED_GEMM)
            most = DH_MAX(most, f->measured->rows.at[i].span.nodes.max_per_node);
    if (devices > 0 && most > devices)
        return dh_fail(ctx, DH_EINVAL,
                       "--devices %lld: a measurement has %lld ranks on a node; as many at the "
                       "least are wanted",
                       (long long)devices, (long long)most);
    if (devices > 0) f->cluster.node_devices = (double)devices;
    f->cluster.node_devices = DH_MAX(f->cluster.node_devices, (double)most);
    return DH_OK;
}

static void choose_constants(dh_fit *f)
{
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        const dh_cluster_setting *s = setting_of(constants[i].key);
        double *at = place_of(&f->cluster, i);
        dh_fit_constant *c = &f->constants[i];
        *c = (dh_fit_constant){
            .key = s->key, .unit = s->unit, .base = *at / s->factor, .fitted = is_wanted(f, i)};
        c->why = c->fitted                                      ? "fitted"
                 : count_rows(f, constants[i].rows, false) == 0 ? "no measurement of it"
                                                                : "too few rows for it";
        if (c->fitted) *at = DH_MAX(*at, constants[i].least);
    }
}

dh_status dh_fit_make(dh_ctx *ctx, const dh_cluster *base, dh_measured *measured, int64_t devices,
                      dh_fit *fit)
{
    *fit =
        (dh_fit){.arena = dh_arena_create(), .cluster = *base, .base = base, .measured = measured};
    if (!fit->arena) return no_memory(ctx);
    fit->n_constants = N_CONSTANTS;
    fit->constants = DH_NEW_N(fit->arena, dh_fit_constant, N_CONSTANTS);
    fit->groups = DH_NEW_N(fit->arena, dh_fit_group, measured->rows.n + 1);
    if (!fit->constants || !fit->groups) return no_memory(ctx);
    DH_TRY(check_any(ctx, measured));
    DH_TRY(check_devices(ctx, fit, devices));
    hold_rows(measured);
    choose_constants(fit);
    for (unsigned stage = 0; stage < N_STAGES; stage++) fit_stage(fit, stage);
    drop_free(fit);
    judge_constants(fit);
    judge_groups(fit);
    return DH_OK;
}

void dh_fit_fini(dh_fit *fit)
{
    dh_arena_destroy(fit->arena);
}
