/* Two thirds of the rows decide, the last third says how far the result carries.
 *
 * The misfit is the sum of squared logarithms of predicted over measured time, of constants by
 * their logarithms, so that each is searched in its own measure (costs/fit.h). */
#include "calibrate/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "costs/cluster_table.h"
#include "costs/fit.h"

#define KIND(id) (1u << DH_MEASURED_##id)

/* Which rows of its kinds tell about a constant: those of one collective only; else all. */
typedef enum row_type { ANY_ROW, ALL_REDUCES, PERSONAL } row_type;

/* Stages of the fit; those with a name are fitted twice. */
enum { MEMORY = 4, PRODUCTS = 5, N_STAGES = 8 };

/* In order: what is fitted before is known to those behind. Of one stage the first are kept where
 * there are few rows. `least` keeps what may be 0 searchable by factors, in the struct's unit.
 * `needs`: what is 0 where a cluster lacks such hardware. */
static const struct {
    const char *key;
    unsigned stage, rows; /* rows: kinds that tell about it */
    double least;
    row_type type;
    const char *needs;
} constants[] = {
    {"local.efficiency", 0, KIND(LOCAL), 0.01, ANY_ROW, NULL},
    {"local.step_us", 0, KIND(LOCAL), 1, ANY_ROW, NULL},
    {"local.in_switch", 0, KIND(LOCAL), 0.001, ALL_REDUCES, "local.in_switch"},
    {"local.in_switch_us", 0, KIND(LOCAL), 1, ALL_REDUCES, "local.in_switch"},
    {"local.direct_us", 0, KIND(LOCAL), 1, PERSONAL, NULL},
    {"local.transfer_efficiency", 1, KIND(LOCAL_TRANSFER), 0.01, ANY_ROW, NULL},
    {"network.efficiency", 2, KIND(NETWORK), 0.001, ANY_ROW, NULL},
    {"network.step_us", 2, KIND(NETWORK), 1, ANY_ROW, NULL},
    {"network.in_switch", 2, KIND(NETWORK), 0.001, ALL_REDUCES, "network.in_switch"},
    {"network.tree", 2, KIND(NETWORK), 0.001, ALL_REDUCES, NULL},
    {"network.transfer_efficiency", 3, KIND(NETWORK_TRANSFER), 0.001, ANY_ROW, NULL},
    {"device.memory_efficiency", MEMORY, KIND(NORM), 0.01, ANY_ROW, NULL},
    {"gemm.efficiency", PRODUCTS, KIND(GEMM), 0.01, ANY_ROW, NULL},
    {"device.kernel_us", PRODUCTS, KIND(GEMM), 1, ANY_ROW, NULL},
    {"gemm.start_k", PRODUCTS, KIND(GEMM), 0.1, ANY_ROW, NULL},
    {"gemm.tile_half", PRODUCTS, KIND(GEMM), 0.1, ANY_ROW, NULL},
    {"attention.efficiency", 6, KIND(ATTN), 0.01, ANY_ROW, NULL},
    {"attention.grad_efficiency", 7, KIND(ATTN_GRAD), 0.01, ANY_ROW, NULL},
};
enum { N_CONSTANTS = DH_COUNTOF(constants) };

/* ---- predictions ---------------------------------------------------------------------------- */

static double predict(const dh_cluster *c, const dh_measured_row *row)
{
    switch (row->kind) {
    case DH_MEASURED_GEMM:
        return dh_cluster_gemm_ns(c, &row->gemm);
    case DH_MEASURED_NORM:
        return dh_cluster_memory_ns(c, row->bytes);
    case DH_MEASURED_ATTN:
    case DH_MEASURED_ATTN_GRAD:
        return dh_cluster_attention_ns(c, &row->attention, row->kind == DH_MEASURED_ATTN_GRAD);
    default:
        return dh_cluster_collective(c, row->type, row->bytes, row->span).ns;
    }
}

static bool is_personal(dh_op_type type)
{
    return type == DH_OP_ALL_TO_ALL || type == DH_OP_ALL_TO_ALL_ROWS;
}

/* Whether the row tells about the constant. */
static bool tells(const dh_measured_row *row, size_t constant)
{
    if (!(constants[constant].rows >> row->kind & 1)) return false;
    switch (constants[constant].type) {
    case ALL_REDUCES:
        return row->type == DH_OP_ALL_REDUCE;
    case PERSONAL:
        return is_personal(row->type);
    default:
        return true;
    }
}

/* How members lie on switches, by the rule of meshes. */
static dh_status place_rows(dh_ctx *ctx, const dh_cluster *c, const dh_measured *m)
{
    for (size_t i = 0; i < m->rows.n; i++) {
        dh_measured_row *row = &m->rows.at[i];
        dh_mesh mesh;
        if (!dh_measured_is_call(row)) continue;
        DH_TRY(dh_mesh_init(ctx, row->span.size, 1, 1, 1, 1, row->span.nodes.n_nodes,
                            row->span.nodes.max_per_node, &mesh));
        row->span = dh_cluster_span_of(c, &mesh, DH_GROUP_DP, 0);
    }
    return DH_OK;
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

/* Time of its arithmetic at the peak of the base's device; 0: the row has none. */
static double flop_ns(const dh_cluster *base, const dh_measured_row *row)
{
    const dh_gemm_shape *g = &row->gemm;
    const bool product = row->kind == DH_MEASURED_GEMM;
    const double flops =
        product ? 2.0 * (double)g->rows * (double)g->columns * (double)g->shared * (double)g->batch
                : row->attention.flops;
    const dh_dtype dtype = product ? g->dtype : row->attention.dtype;
    return flops / (dtype == DH_F32 ? base->f32_flops_per_s : base->bf16_flops_per_s) * 1e9;
}

static double bytes_of(const dh_measured_row *row)
{
    if (row->kind == DH_MEASURED_GEMM) return row->gemm.bytes;
    return row->kind == DH_MEASURED_NORM ? row->bytes : row->attention.bytes;
}

/* Time of its bytes at the full rate of the memory of the base's device. */
static double memory_ns(const dh_cluster *base, const dh_measured_row *row)
{
    return bytes_of(row) / base->memory_bytes_per_s * 1e9;
}

/* Whether the constant limits the row's time. Rates limit rows of full weight. A launch limits
 * products that the device could do in less time. The other latencies are part of every call. */
static bool limits(const dh_calibration *f, size_t constant, const dh_measured_row *row)
{
    if (strcmp(setting_of(constants[constant].key)->unit, "us") != 0) return row->weight >= 1;
    return row->kind != DH_MEASURED_GEMM ||
           DH_MAX(flop_ns(f->base, row), memory_ns(f->base, row)) < f->base->kernel_ns;
}

/* Rows of the fit that tell about the constant. */
typedef struct row_count {
    size_t n, n_limited; /* n_limited: those that it limits */
    bool median;         /* one of these is a median of enough occurrences */
} row_count;

/* Rows for each constant of a stage, so that noise in one of them does not decide it. Where a stage
 * has one constant alone, a median of as many occurrences does as well. */
enum { ROWS_FOR_ONE = 3 };

static row_count count_rows(const dh_calibration *f, size_t constant)
{
    row_count count = {0};
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        if (row->held || !tells(row, constant)) continue;
        count.n++;
        if (!limits(f, constant, row)) continue;
        count.n_limited++;
        count.median |= row->n_samples >= ROWS_FOR_ONE;
    }
    return count;
}

static bool is_alone(size_t constant)
{
    size_t n = 0;
    for (size_t i = 0; i < N_CONSTANTS; i++) n += constants[i].stage == constants[constant].stage;
    return n == 1;
}

static bool is_lacking(const dh_calibration *f, size_t constant)
{
    const char *needs = constants[constant].needs;
    return needs && *(const double *)((const char *)f->base + setting_of(needs)->offset) <= 0;
}

/* Enough rows for this constant and the earlier ones of its stage. */
static size_t rows_wanted(size_t constant)
{
    size_t before = 1;
    for (size_t i = 0; i < constant; i++)
        before +=
            constants[i].stage == constants[constant].stage &&
            (constants[constant].type == ANY_ROW || constants[i].type == constants[constant].type);
    return before * ROWS_FOR_ONE;
}

/* Why the rows are not enough for the constant; NULL: they are. */
static const char *shortage_of(const dh_calibration *f, size_t constant)
{
    const row_count count = count_rows(f, constant);
    if (count.median && is_alone(constant)) return NULL;
    if (count.n == 0) return "no measurement of it";
    if (count.n < rows_wanted(constant)) return "too few rows for it";
    return count.n_limited < ROWS_FOR_ONE ? "too few rows whose time it limits" : NULL;
}

/* ---- what no test measured ------------------------------------------------------------------ */

/* All-reduces and the other collectives of a link rest on different constants where switches add up
 * or trees are gone up and down. Rows of the one kind say little of the other's constants. */
typedef struct link_rows {
    size_t n_reduces, n_others; /* used and held */
} link_rows;

static link_rows rows_of_link(const dh_calibration *f, unsigned kinds)
{
    link_rows n = {0, 0};
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        if (!(kinds >> row->kind & 1) || is_personal(row->type)) continue;
        *(row->type == DH_OP_ALL_REDUCE ? &n.n_reduces : &n.n_others) += 1;
    }
    return n;
}

/* Constants that follow another one. A row with `reduces` holds where a link has only rows
 * of all-reduces, the others where it has none of these. NULL in `of`: the constant is a share of
 * the link's efficiency already. */
static const struct tie {
    const char *key, *of;
    bool reduces;
} ties[] = {{"local.efficiency", "local.in_switch", true},
            {"local.step_us", "local.in_switch_us", true},
            {"local.in_switch", "local.efficiency", false},
            {"local.in_switch_us", "local.step_us", false},
            {"network.tree", NULL, true},
            {"network.in_switch", NULL, true}};

static size_t constant_of(const char *key)
{
    size_t i = 0;
    while (i < N_CONSTANTS && strcmp(constants[i].key, key) != 0) i++;
    DH_CHECK(i < N_CONSTANTS, "%s is no fitted constant", key);
    return i;
}

/* NULL: measured, or in no proportion to anything that is. */
static const struct tie *tie_of(const dh_calibration *f, const char *key)
{
    const bool local = strncmp(key, "local.", 6) == 0;
    const link_rows n = rows_of_link(f, local ? KIND(LOCAL) : KIND(NETWORK));
    if (local && f->base->local.in_switch <= 0) return NULL; /* all of them are rings */
    for (size_t i = 0; i < DH_COUNTOF(ties); i++) {
        if (strcmp(ties[i].key, key) != 0) continue;
        if (ties[i].reduces ? n.n_reduces > 0 && n.n_others == 0
                            : n.n_others > 0 && n.n_reduces == 0)
            return &ties[i];
    }
    return NULL;
}

static double start_of(const dh_calibration *f, size_t constant);

/* A constant that is 0 in the base has a rule of its own there, which keeps the proportion. */
static void follow(const dh_calibration *f, dh_cluster *c)
{
    for (size_t i = 0; i < DH_COUNTOF(ties); i++) {
        const size_t own = constant_of(ties[i].key);
        if (!ties[i].of || tie_of(f, ties[i].key) != &ties[i] || value_of(f->base, own) <= 0)
            continue;
        const size_t other = constant_of(ties[i].of);
        if (value_of(c, other) <= 0) continue; /* it is not fitted */
        const double ratio = value_of(c, other) / start_of(f, other);
        *place_of(c, own) = DH_MIN(value_of(f->base, own) * ratio, most_of(own));
    }
}

/* Back to the base's values of those that follow. */
static void unfollow(const dh_calibration *f, dh_cluster *c)
{
    for (size_t i = 0; i < DH_COUNTOF(ties); i++)
        if (ties[i].of && tie_of(f, ties[i].key) == &ties[i])
            *place_of(c, constant_of(ties[i].key)) = value_of(f->base, constant_of(ties[i].key));
}

/* Says which test is missing. */
static dh_status note_ties(dh_ctx *ctx, dh_calibration *f)
{
    static const struct {
        const char *key, *text;
    } notes[] = {
        {"local.efficiency",
         "inside a node only all-reduces were measured: local.efficiency and local.step_us, which "
         "all-gathers and reduce-scatters go by, are kept in proportion; all_gather_perf on one "
         "node measures them"},
        {"local.in_switch",
         "inside a node no all-reduce was measured: local.in_switch, which all-reduces go by, is "
         "kept in proportion; all_reduce_perf on one node measures it"},
        {"network.tree",
         "between nodes only all-reduces were measured: network.tree and network.in_switch are "
         "kept, so that all-gathers and reduce-scatters stay in proportion; all_gather_perf on "
         "several nodes tells them apart"}};
    for (size_t i = 0; i < DH_COUNTOF(notes); i++)
        if (tie_of(f, notes[i].key) && !dh_vec_push(&f->measured->notes, notes[i].text))
            return dh_no_memory(ctx);
    return DH_OK;
}

/* ---- search --------------------------------------------------------------------------------- */

/* A weak pull to the base's values. GEMMs that all have one shared axis cannot tell efficiency from
 * start. Where rows do not tell two constants apart, both then move a little. */
#define TO_BASE 0.001

/* A stage's constants that are fitted, and the rows that count for them. */
typedef struct stage_fit {
    dh_calibration *f;
    size_t constants[DH_FIT_MAX_CONSTANTS], n;
    size_t *rows, n_rows; /* of measured->rows */
} stage_fit;

/* Where the search of a constant begins, and what pulls it: the base's value, or what stands for
 * one that the base does not have. */
static double start_of(const dh_calibration *f, size_t constant)
{
    const dh_cluster_link *local = &f->base->local;
    const double base = value_of(f->base, constant);
    if (base > 0) return DH_MAX(base, constants[constant].least);
    if (strcmp(constants[constant].key, "local.in_switch_us") == 0)
        return DH_MAX((f->cluster.node_devices - 1) * local->step_ns, constants[constant].least);
    if (strcmp(constants[constant].key, "local.direct_us") == 0)
        return DH_MAX(local->step_ns, constants[constant].least);
    return constants[constant].least;
}

static dh_status residuals(dh_ctx *ctx, void *self, const double *x, double *r)
{
    const stage_fit *s = self;
    dh_cluster c = s->f->cluster;
    (void)ctx;
    for (size_t k = 0; k < s->n; k++) *place_of(&c, s->constants[k]) = exp(x[k]);
    follow(s->f, &c);
    for (size_t i = 0; i < s->n_rows; i++) {
        const dh_measured_row *row = &s->f->measured->rows.at[s->rows[i]];
        r[i] = sqrt(row->weight) * log(predict(&c, row) / row->ns);
    }
    for (size_t k = 0; k < s->n; k++)
        r[s->n_rows + k] = sqrt(TO_BASE) * (x[k] - log(start_of(s->f, s->constants[k])));
    return DH_OK;
}

static bool tells_of_any(const dh_measured_row *row, const stage_fit *s)
{
    bool any = false;
    for (size_t k = 0; k < s->n; k++) any |= tells(row, s->constants[k]);
    return any;
}

static void list_stage(dh_calibration *f, unsigned stage, stage_fit *s)
{
    for (size_t i = 0; i < N_CONSTANTS; i++)
        if (constants[i].stage == stage && f->constants[i].fitted) s->constants[s->n++] = i;
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        if (!row->held && tells_of_any(row, s)) s->rows[s->n_rows++] = i;
    }
}

/* The fit of a stage's constants, with their bounds; x is their logarithm. */
typedef struct search {
    dh_fit_problem problem;
    double x[DH_FIT_MAX_CONSTANTS], min[DH_FIT_MAX_CONSTANTS], max[DH_FIT_MAX_CONSTANTS];
    double rms;
} search;

static dh_status search_from(dh_ctx *ctx, search *s, const double *from, bool *better)
{
    double x[DH_FIT_MAX_CONSTANTS], rms;
    memcpy(x, from, sizeof x);
    DH_TRY(dh_fit(ctx, &s->problem, x, &rms));
    *better = rms < s->rms * (1 - 1e-6);
    if (!*better) return DH_OK;
    memcpy(s->x, x, sizeof x);
    s->rms = rms;
    return DH_OK;
}

/* At the present values no row may depend on a constant, because another link is slower. With
 * another value some might. So each constant is tried at half and at twice the value found. */
static dh_status search_around(dh_ctx *ctx, search *s, bool *improved)
{
    *improved = false;
    for (size_t k = 0; k < s->problem.n_constants; k++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double from[DH_FIT_MAX_CONSTANTS];
            bool better;
            memcpy(from, s->x, sizeof from);
            from[k] = DH_MIN(DH_MAX(from[k] + sign * log(2), s->min[k]), s->max[k]);
            DH_TRY(search_from(ctx, s, from, &better));
            *improved |= better;
        }
    return DH_OK;
}

/* Mean of |predicted / measured - 1| over the rows that tell about the stage, by their weights. */
static double misses(const dh_cluster *c, const dh_calibration *f, const stage_fit *s)
{
    double sum = 0, weights = 0;
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        if (!tells_of_any(row, s)) continue;
        sum += row->weight * fabs(predict(c, row) / row->ns - 1);
        weights += row->weight;
    }
    return weights > 0 ? sum / weights : 0;
}

/* Back to the base's values where they predict the rows better than those that were found. */
static void keep_better(dh_calibration *f, const stage_fit *s)
{
    dh_cluster base = f->cluster;
    for (size_t k = 0; k < s->n; k++)
        *place_of(&base, s->constants[k]) = value_of(f->base, s->constants[k]);
    if (strncmp(constants[s->constants[0]].key, "local.", 6) == 0) unfollow(f, &base);
    if (misses(&base, f, s) >= misses(&f->cluster, f, s)) return;
    f->cluster = base;
    for (size_t k = 0; k < s->n; k++) {
        f->constants[s->constants[k]].fitted = false;
        f->constants[s->constants[k]].why = "the rows are further off by any other value";
    }
}

static dh_status fit_stage(dh_ctx *ctx, dh_calibration *f, unsigned stage)
{
    enum { STEPS = 60, ROUNDS = 4 };
    bool improved = true;
    stage_fit s = {.f = f, .rows = DH_NEW_N(f->arena, size_t, f->measured->rows.n + 1)};
    search at = {.rms = INFINITY};
    if (!s.rows) return dh_no_memory(ctx);
    list_stage(f, stage, &s);
    if (s.n == 0) return DH_OK;
    for (size_t k = 0; k < s.n; k++) {
        at.min[k] = log(constants[s.constants[k]].least);
        at.max[k] = log(most_of(s.constants[k]));
        at.x[k] = DH_MIN(DH_MAX(log(value_of(&f->cluster, s.constants[k])), at.min[k]), at.max[k]);
    }
    at.problem = (dh_fit_problem){.n_constants = s.n,
                                  .n_residuals = s.n_rows + s.n,
                                  .min = at.min,
                                  .max = at.max,
                                  .predict = residuals,
                                  .self = &s,
                                  .max_steps = STEPS};
    DH_TRY(search_from(ctx, &at, at.x, &improved));
    for (int i = 0; i < ROUNDS && improved; i++) DH_TRY(search_around(ctx, &at, &improved));
    for (size_t k = 0; k < s.n; k++) *place_of(&f->cluster, s.constants[k]) = exp(at.x[k]);
    follow(f, &f->cluster);
    keep_better(f, &s);
    return DH_OK;
}

/* Whether a tenth more or less of it shows in any row. */
static bool is_determined(const dh_calibration *f, size_t constant)
{
    dh_cluster less = f->cluster, more = f->cluster;
    *place_of(&less, constant) *= 0.9;
    *place_of(&more, constant) *= 1.1;
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        if (row->held || !tells(row, constant)) continue;
        if (fabs(predict(&more, row) / predict(&less, row) - 1) > 1e-3) return true;
    }
    return false;
}

/* Back to the base's value where the rows say nothing of it. */
static void drop_free(dh_calibration *f)
{
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        if (!f->constants[i].fitted || is_determined(f, i)) continue;
        f->constants[i].fitted = false;
        f->constants[i].why = "no row depends on it";
        *place_of(&f->cluster, i) = f->constants[i].base * setting_of(constants[i].key)->factor;
    }
    unfollow(f, &f->cluster);
    follow(f, &f->cluster);
}

/* Traces have kernels that never have the scores in memory: what is fitted to them is such. */
static void choose_kernel(dh_calibration *f)
{
    for (size_t i = 0; i < N_CONSTANTS; i++)
        if (f->constants[i].fitted && constants[i].rows & (KIND(ATTN) | KIND(ATTN_GRAD)))
            f->cluster.attention = DH_ATTENTION_BLOCKWISE;
}

/* ---- rows left out -------------------------------------------------------------------------- */

static double size_of(const dh_measured_row *row)
{
    const dh_gemm_shape *g = &row->gemm;
    if (row->attention.flops > 0) return row->attention.flops;
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
    if (m->rows.n == 0) return;
    qsort(m->rows.at, m->rows.n, sizeof *m->rows.at, by_group_and_size);
    for (size_t i = 0; i < m->rows.n; i++) {
        const bool begins = i == 0 || strcmp(m->rows.at[i].group, m->rows.at[i - 1].group) != 0;
        nth = begins ? 0 : nth + 1;
        m->rows.at[i].held = nth % 3 == 1;
    }
}

/* ---- errors --------------------------------------------------------------------------------- */

static void add_error(double off, dh_calibration_error *e)
{
    e->mean = (e->mean * (double)e->n + fabs(off)) / (double)(e->n + 1);
    e->n++;
}

static void judge_constants(dh_calibration *f)
{
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        dh_calibration_constant *c = &f->constants[i];
        const dh_cluster_setting *s = setting_of(c->key);
        c->value = value_of(&f->cluster, i) / s->factor;
        c->follows = tie_of(f, c->key) && c->value != c->base;
        c->at_bound =
            c->fitted && (c->value >= s->max || value_of(&f->cluster, i) <= constants[i].least);
        for (size_t k = 0; k < f->measured->rows.n; k++) {
            const dh_measured_row *row = &f->measured->rows.at[k];
            if (!tells(row, i)) continue;
            add_error(predict(&f->cluster, row) / row->ns - 1, row->held ? &c->held : &c->used);
        }
    }
}

static void judge_groups(dh_calibration *f)
{
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        const dh_measured_row *row = &f->measured->rows.at[i];
        const double off = predict(&f->cluster, row) / row->ns - 1;
        if (i == 0 || strcmp(row->group, row[-1].group) != 0)
            f->groups[f->n_groups++] = (dh_calibration_group){.name = row->group, .worst = row};
        dh_calibration_group *g = &f->groups[f->n_groups - 1];
        add_error(off, row->held ? &g->held : &g->used);
        add_error(predict(f->base, row) / row->ns - 1, &g->base);
        if (fabs(off) < fabs(g->worst_error)) continue;
        g->worst = row;
        g->worst_error = off;
    }
}

/* Says of which rows the new constants tell less than the old ones. */
static dh_status note_worse(dh_ctx *ctx, dh_calibration *f)
{
    for (size_t i = 0; i < f->n_groups; i++) {
        const dh_calibration_group *g = &f->groups[i];
        const double n = (double)(g->used.n + g->held.n);
        const double mean =
            (g->used.mean * (double)g->used.n + g->held.mean * (double)g->held.n) / n;
        if (mean <= 1.05 * g->base.mean + 0.01) continue;
        const char *note = dh_arena_printf(
            f->measured->arena,
            "%s: predictions are further off than before, %.1f %% in place of %.1f %%; other rows "
            "of these constants got nearer",
            g->name, 100 * mean, 100 * g->base.mean);
        if (!note || !dh_vec_push(&f->measured->notes, note)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* TUNING: a product or attention that its bytes or a launch limit, rather than its arithmetic, says
 * nothing of a rate. It counts as little as messages below 1 MiB. */
#define LIMITED_WEIGHT 0.05

static void weigh_rows(dh_calibration *f)
{
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        dh_measured_row *row = &f->measured->rows.at[i];
        const double flops = flop_ns(f->base, row);
        if (flops > 0 && flops < DH_MAX(memory_ns(f->base, row), f->base->kernel_ns))
            row->weight = LIMITED_WEIGHT;
    }
}

/* ---- faster than the device ------------------------------------------------------------------ */

/* TUNING: what a clock above the one that a peak is stated for, and rounding, may add. */
#define ABOVE_PEAK 1.1

/* TUNING: more than the caches of a device hold; an MI300X has 256 MiB. */
#define CACHED_BYTES (256.0 * 1048576)

/* What does not allow less time than `ns`. */
typedef enum limit { PEAK, BANDWIDTH, LINKS } limit;
typedef struct least_time {
    double ns;
    limit by;
} least_time;

/* The base's links at their full rates, without latencies, for this row's ranks alone. Limits that
 * were measured on the base are not those of its hardware. */
static double links_ns(const dh_calibration *f, const dh_measured_row *row)
{
    dh_cluster c = f->cluster;
    c.node_devices = (double)row->span.nodes.max_per_node;
    c.local.efficiency = c.local.transfer_efficiency = 1;
    c.network.efficiency = c.network.transfer_efficiency = c.network.tree = 1;
    if (c.local.in_switch > 0) c.local.in_switch = 1;
    if (c.network.in_switch > 0) c.network.in_switch = 1;
    c.local.step_ns = c.local.in_switch_ns = c.local.direct_ns = c.network.step_ns = 0;
    c.network.most_bytes_per_s = 0;
    c.between_bytes_per_s = INFINITY;
    return predict(&c, row);
}

/* Bytes that memory must move. A product's operands may be in a cache, and a batch may share them.
 * Attention is held against the peak alone. */
static double moved_bytes(const dh_measured_row *row)
{
    const dh_gemm_shape *g = &row->gemm;
    if (row->kind != DH_MEASURED_GEMM) return row->bytes; /* of attention none */
    const double longer = (double)DH_MAX(g->rows, g->columns) * (double)g->shared;
    const double result = (double)g->rows * (double)g->columns * (double)g->batch;
    const double bytes = (longer + result) * (double)dh_dtype_bytes(g->dtype);
    return bytes > CACHED_BYTES ? bytes : 0;
}

static least_time least_of(const dh_calibration *f, const dh_measured_row *row)
{
    if (dh_measured_is_call(row)) return (least_time){links_ns(f, row), LINKS};
    const double flops = flop_ns(f->base, row);
    const double memory = moved_bytes(row) / f->base->memory_bytes_per_s * 1e9;
    return memory > flops ? (least_time){memory, BANDWIDTH} : (least_time){flops, PEAK};
}

static const char *work_of(dh_arena *arena, const dh_measured_row *row)
{
    const dh_gemm_shape *g = &row->gemm;
    const dh_attention_work *a = &row->attention;
    if (row->kind == DH_MEASURED_GEMM)
        return dh_arena_printf(arena, "a product of %lld x %lld x %lld, %lld of them,",
                               (long long)g->rows, (long long)g->columns, (long long)g->shared,
                               (long long)g->batch);
    if (row->kind == DH_MEASURED_NORM)
        return dh_arena_printf(arena, "a norm that moves %.4g MB", row->bytes / 1e6);
    if (dh_measured_is_call(row))
        return dh_arena_printf(arena, "%s of %.4g MB, %lld ranks on %lld node%s",
                               dh_op_info_of(row->type)->name, row->bytes / 1e6,
                               (long long)row->span.size, (long long)row->span.nodes.n_nodes,
                               row->span.nodes.n_nodes == 1 ? "" : "s");
    return dh_arena_printf(arena, "%s of %.0f tokens in %.0f heads of %.0f",
                           row->kind == DH_MEASURED_ATTN ? "attention" : "gradient of attention",
                           a->queries, a->heads, a->head_dim);
}

static dh_status refuse_fast(dh_ctx *ctx, const dh_calibration *f, const dh_measured_row *row,
                             least_time least)
{
    static const char *const limits_of[] = {
        [PEAK] = "peak", [BANDWIDTH] = "memory", [LINKS] = "links"};
    const char *work = work_of(f->arena, row);
    if (!work) return dh_no_memory(ctx);
    return dh_fail(ctx, DH_EINVAL,
                   "%s%s%.0d: %s took %.4g us, %.2f times as fast as the %s of %s can be, %.4g us: "
                   "it is not that device (--like), or the time is another operator's",
                   row->file, row->line ? ":" : "", row->line, work, row->ns * 1e-3,
                   least.ns / row->ns, limits_of[least.by], f->base->name, least.ns * 1e-3);
}

static dh_status note_out(dh_ctx *ctx, dh_measured *m, size_t n, const char *what)
{
    if (n == 0) return DH_OK;
    const char *note = dh_arena_printf(m->arena, "%zu %s", n, what);
    return note && dh_vec_push(&m->notes, note) ? DH_OK : dh_no_memory(ctx);
}

/* A row faster than the device can be is another operator's, or another device's. Arithmetic in
 * float32 may have run in tf32, and a norm's bytes may have been in a cache. Such rows are left
 * out. */
static dh_status check_speed(dh_ctx *ctx, dh_calibration *f)
{
    dh_measured *m = f->measured;
    size_t n = 0, n_tf32 = 0, n_cached = 0;
    for (size_t i = 0; i < m->rows.n; i++) {
        const dh_measured_row row = m->rows.at[i];
        const least_time least = least_of(f, &row);
        const bool product = row.kind == DH_MEASURED_GEMM;
        const dh_dtype dtype = product ? row.gemm.dtype : row.attention.dtype;
        if (row.ns * ABOVE_PEAK >= least.ns)
            m->rows.at[n++] = row;
        else if (least.by == PEAK && dtype == DH_F32)
            n_tf32++;
        else if (row.kind == DH_MEASURED_NORM && row.bytes <= CACHED_BYTES)
            n_cached++;
        else
            return refuse_fast(ctx, f, &row, least);
    }
    m->rows.n = n;
    DH_TRY(note_out(ctx, m, n_tf32,
                    "float32 products or attention left out that are faster than the device's "
                    "peak: tf32"));
    return note_out(ctx, m, n_cached,
                    "norms left out that are faster than the device's memory: what they read may "
                    "have been in a cache");
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status check_any(dh_ctx *ctx, const dh_measured *m)
{
    if (dh_measured_count(m) > 0) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "no measurement that a constant could rest on%s%s",
                   m->notes.n > 0 ? "; " : "", m->notes.n > 0 ? m->notes.at[m->notes.n - 1] : "");
}

static dh_status check_devices(dh_ctx *ctx, dh_calibration *f, int64_t devices)
{
    enum { MOST_DEVICES = 1 << 16 };
    int64_t most = 0;
    if (devices < 0 || devices > MOST_DEVICES)
        return dh_fail(
            ctx, DH_EINVAL,
            "--devices %lld: 0, for those of the cluster that is like it, to %d would be "
            "right",
            (long long)devices, MOST_DEVICES);
    for (size_t i = 0; i < f->measured->rows.n; i++)
        if (dh_measured_is_call(&f->measured->rows.at[i]))
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

static void choose_constants(dh_calibration *f)
{
    for (size_t i = 0; i < N_CONSTANTS; i++) {
        const dh_cluster_setting *s = setting_of(constants[i].key);
        double *at = place_of(&f->cluster, i);
        dh_calibration_constant *c = &f->constants[i];
        const char *why = tie_of(f, s->key)  ? "in proportion: no test of it"
                          : is_lacking(f, i) ? "the cluster has no such hardware"
                                             : shortage_of(f, i);
        *c = (dh_calibration_constant){.key = s->key,
                                       .unit = s->unit,
                                       .base = *at / s->factor,
                                       .fitted = !why,
                                       .why = why ? why : "fitted"};
        if (c->fitted) *at = start_of(f, i);
    }
}

dh_status dh_calibration_make(dh_ctx *ctx, const dh_cluster *base, dh_measured *measured,
                              int64_t devices, dh_calibration *fit)
{
    *fit = (dh_calibration){
        .arena = dh_arena_create(), .cluster = *base, .base = base, .measured = measured};
    if (!fit->arena) return dh_no_memory(ctx);
    fit->n_constants = N_CONSTANTS;
    fit->constants = DH_NEW_N(fit->arena, dh_calibration_constant, N_CONSTANTS);
    fit->groups = DH_NEW_N(fit->arena, dh_calibration_group, measured->rows.n + 1);
    if (!fit->constants || !fit->groups) return dh_no_memory(ctx);
    DH_TRY(check_any(ctx, measured));
    DH_TRY(check_devices(ctx, fit, devices));
    DH_TRY(place_rows(ctx, &fit->cluster, measured));
    DH_TRY(check_speed(ctx, fit));
    DH_TRY(check_any(ctx, measured));
    weigh_rows(fit);
    hold_rows(measured);
    choose_constants(fit);
    DH_TRY(note_ties(ctx, fit));
    for (unsigned stage = 0; stage < N_STAGES; stage++) DH_TRY(fit_stage(ctx, fit, stage));
    /* GEMMs say what a kernel takes at least, norms how fast memory is, and each matters to the
     * other's small ones. */
    DH_TRY(fit_stage(ctx, fit, MEMORY));
    DH_TRY(fit_stage(ctx, fit, PRODUCTS));
    drop_free(fit);
    choose_kernel(fit);
    judge_constants(fit);
    judge_groups(fit);
    DH_TRY(note_worse(ctx, fit));
    return dh_calibration_find_oefs(ctx, fit);
}

void dh_calibration_fini(dh_calibration *fit)
{
    dh_arena_destroy(fit->arena);
}
