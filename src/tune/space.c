/* The configurations that a job could have on a number of devices.
 *
 * Degrees are divisors of the devices, micro-batches of the sequences of a data-parallel rank,
 * virtual stages of a stage's layers. The job reader decides which of them the model can have
 * (dh_job_check), and its message is kept. Left out are configurations that equal another one:
 *
 *   - all schedules without folding except one, if there is one pipeline stage;
 *   - a strategy whose passes come to those of an earlier one;
 *   - a strategy of two strands with a schedule without pairs. It would bring its own;
 *   - a strategy of one strand with a schedule of pairs. It would run them one after the other. */
#include <stdio.h>
#include <string.h>

#include "train/recipe.h"
#include "tune/tuner.h"

/* ---- names -------------------------------------------------------------------------------- */

bool tune_is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strcspn(at, ",") == n && memcmp(at, name, n) == 0) return true;
    return false;
}

/* Every name of a list is a row's. */
static dh_status check_names(dh_ctx *ctx, const char *list,
                             dh_status (*find)(dh_ctx *, const char *))
{
    char name[64];
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const size_t n = DH_MIN(strcspn(at, ","), sizeof name - 1);
        memcpy(name, at, n);
        name[n] = '\0';
        DH_TRY(find(ctx, name));
    }
    return DH_OK;
}

static dh_status find_strategy(dh_ctx *ctx, const char *name)
{
    const dh_strategy *row;
    return dh_strategy_find(ctx, name, &row);
}

static dh_status find_schedule(dh_ctx *ctx, const char *name)
{
    const dh_schedule_row *row;
    return dh_schedule_named(ctx, name, &row);
}

static const char *list_of(const char *list)
{
    return list && strcmp(list, "all") == 0 ? NULL : list;
}

static bool is_fixed(const tuner *t, dh_tune_dim dim)
{
    return t->options->fixed >> dim & 1;
}

static bool is_wanted(const tuner *t, dh_tune_dim dim, const char *list, const char *name,
                      int64_t row)
{
    if (is_fixed(t, dim)) return t->own.at[dim] == row;
    return !list || tune_is_listed(list, name);
}

/* A strategy that can only be simulated is searched if it is named. */
static bool is_offered(const tuner *t, const char *named, const dh_strategy *row)
{
    dh_ctx attempt = DH_CTX_INIT;
    return named || is_fixed(t, DH_TUNE_STRATEGY) || dh_strategy_runs(&attempt, row) == DH_OK;
}

static bool read_number(const char *at, size_t n, int64_t *value)
{
    char text[24];
    snprintf(text, sizeof text, "%.*s", (int)DH_MIN(n, sizeof text - 1), at);
    return dh_parse_i64(text, value);
}

/* Degrees of ZeRO, or sizes of buckets in MB, of which `word` means `meant`. */
static dh_status list_numbers(dh_ctx *ctx, const tuner *t, dh_tune_dim dim, const char *list,
                              const char *word, int64_t most, tune_numbers *numbers)
{
    if (is_fixed(t, dim)) list = NULL;
    if (!list && !dh_vec_push(numbers, t->own.at[dim])) return dh_no_memory(ctx);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const size_t n = strcspn(at, ",");
        const bool named = strlen(word) == n && memcmp(at, word, n) == 0;
        int64_t value = 0;
        if (!named && (!read_number(at, n, &value) || value < 0 || value > most))
            return dh_fail(ctx, DH_EINVAL, "%s: %.*s is none of %s and 0 to %lld",
                           dh_tune_dim_setting(dim), (int)n, at, word, (long long)most);
        if (!dh_vec_push(numbers, value)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* A setting's values by name. */
typedef struct named_value {
    const char *name;
    int64_t value;
} named_value;
static const named_value truths[] = {{"true", 1}, {"false", 0}, {NULL, 0}};
static const named_value fusions[] = {{"off", 0}, {"1", 1}, {"2", 2},
                                      {"4", 4},   {"8", 8}, {NULL, 0}};

static dh_status list_named(dh_ctx *ctx, const tuner *t, dh_tune_dim dim, const char *list,
                            const named_value *all, tune_numbers *values)
{
    dh_str names = DH_STR_INIT;
    if (!list || is_fixed(t, dim))
        return dh_vec_push(values, (int64_t)-1) ? DH_OK : dh_no_memory(ctx);
    const bool every = strcmp(list, "all") == 0;
    size_t n_listed = 0, n_wanted = 1;
    for (const char *at = list; *at; at++) n_wanted += *at == ',';
    for (const named_value *v = all; v->name; v++) {
        dh_str_printf(&names, "%s%s", v == all ? "" : ", ", v->name);
        if (!every && !tune_is_listed(list, v->name)) continue;
        n_listed++;
        if (!dh_vec_push(values, v->value)) return dh_no_memory(ctx);
    }
    dh_status st = DH_OK;
    if (!every && n_listed != n_wanted)
        st = dh_fail(ctx, DH_EINVAL,
                     "%s: \"%s\" is not a list of values: give some of %s, each once, or all",
                     dh_tune_dim_setting(dim), list, names.text ? names.text : "");
    dh_str_fini(&names);
    return st;
}

/* A searched setting is set where it is possible. Elsewhere the job's value would be refused. */
static dh_status select_steps(dh_ctx *ctx, tuner *t)
{
    const dh_tune_options *o = t->options;
    DH_TRY(list_named(ctx, t, DH_TUNE_SEQUENCE, o->sequences, truths, &t->sequences));
    DH_TRY(list_named(ctx, t, DH_TUNE_FUSE, o->fusions, fusions, &t->fusions));
    return list_named(ctx, t, DH_TUNE_POST, o->posts, truths, &t->posts);
}

static dh_status select_sharing(dh_ctx *ctx, tuner *t)
{
    enum { MOST_MB = 1000000 };
    const char *zeros = t->options->zeros;
    if (zeros && strcmp(zeros, "all") == 0) zeros = "0,1,2,3";
    DH_TRY(list_numbers(ctx, t, DH_TUNE_ZERO, zeros, "all", 3, &t->zeros));
    DH_TRY(list_numbers(ctx, t, DH_TUNE_BUCKET, t->options->buckets, "auto", MOST_MB, &t->buckets));
    return select_steps(ctx, t);
}

dh_status tune_select(dh_ctx *ctx, tuner *t)
{
    size_t n_strategies, n_schedules;
    const dh_strategy *strategies = dh_strategies(&n_strategies);
    const dh_schedule_row *const *schedules = dh_schedule_rows(&n_schedules);
    const char *named = list_of(t->options->strategies), *rows = list_of(t->options->schedules);
    DH_TRY(check_names(ctx, named, find_strategy));
    DH_TRY(check_names(ctx, rows, find_schedule));
    t->strategy_wanted = DH_NEW_N(t->arena, bool, n_strategies);
    t->schedule_wanted = DH_NEW_N(t->arena, bool, n_schedules);
    const bool ok = t->strategy_wanted && t->schedule_wanted;
    for (size_t i = 0; ok && i < n_strategies; i++)
        t->strategy_wanted[i] =
            is_offered(t, named, &strategies[i]) &&
            is_wanted(t, DH_TUNE_STRATEGY, named, strategies[i].name, (int64_t)i);
    for (size_t i = 0; ok && i < n_schedules; i++)
        t->schedule_wanted[i] =
            is_wanted(t, DH_TUNE_SCHEDULE, rows, schedules[i]->name, (int64_t)i);
    return ok ? select_sharing(ctx, t) : dh_no_memory(ctx);
}

/* ---- visiting -------------------------------------------------------------------------------- */

typedef struct walk {
    dh_ctx *ctx;
    tuner *t;
    tune_visit *visit;
    void *user;
    dh_tune_config config;
} walk;

static bool is_allowed(const walk *w, dh_tune_dim dim, int64_t value)
{
    return !is_fixed(w->t, dim) || w->t->own.at[dim] == value;
}

static dh_status refuse(walk *w)
{
    char text[512];
    memcpy(text, w->ctx->message, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    dh_ctx_reset(w->ctx);
    return w->visit(w->ctx, w->user, &w->config, text);
}

static dh_status find_recipe(walk *w)
{
    tuner *t = w->t;
    const dh_cluster *cluster = t->options->cluster;
    DH_TRY(dh_recipe_of_job(w->ctx, t->job, &t->recipe));
    t->recipe.costs = t->costs;
    if (!*t->own_split)
        t->recipe.layer_split = NULL; /* the job's is of schedules without folding */
    return cluster ? dh_recipe_place(w->ctx, cluster, &t->recipe) : DH_OK;
}

/* The job with the configuration so far, checked, and its recipe. Recomputation, strategy and
 * schedule are not in the recipe yet. */
static dh_status set_job(walk *w)
{
    dh_job *job = w->t->job;
    const int64_t *at = w->config.at;
    job->tp = at[DH_TUNE_TP];
    job->cp = at[DH_TUNE_CP];
    job->pp = at[DH_TUNE_PP];
    job->ep = at[DH_TUNE_EP];
    job->dp = at[DH_TUNE_DP];
    job->vpp = at[DH_TUNE_STAGES];
    job->micro_batch = at[DH_TUNE_MICRO_BATCH];
    job->ranks = w->t->options->devices;
    job->nodes = job->ranks_per_node = 0;
    const char *split = tune_split_text(&w->config);
    job->layer_split = split ? (char *)(uintptr_t)split : w->t->own_split; /* only read */
    job->sequence_parallel =
        at[DH_TUNE_SEQUENCE] < 0 ? w->t->own_sequence : at[DH_TUNE_SEQUENCE] > 0;
    if (w->t->fusions.at[0] >= 0) job->fuse = DH_FUSE_OFF;
    if (w->t->posts.at[0] >= 0) job->post_validation = false;
    DH_TRY(tune_split_layers(w->ctx, w->t->arena, job->pp * job->vpp, job));
    DH_TRY(dh_job_check(w->ctx, job));
    return find_recipe(w);
}

static dh_status check(walk *w, bool *possible)
{
    const dh_status st = set_job(w);
    *possible = st == DH_OK;
    return st == DH_OK || st == DH_ENOMEM ? st : refuse(w);
}

/* This machine's, of a mesh with split or whole tokens, whatever the micro-batch. */
static dh_status find_own_costs(walk *w)
{
    tuner *t = w->t;
    walk mesh = *w;
    const size_t n = (DH_TUNE_DP + 1) * sizeof *w->config.at;
    const dh_sequence whole = dh_sharing_of_job(t->job).sequence;
    if (t->options->cluster) return DH_OK;
    if (memcmp(t->costs_of.at, w->config.at, n) != 0)
        t->costs_own[false] = t->costs_own[true] = NULL;
    t->costs_of = w->config;
    t->costs = t->recipe.costs = t->costs_own[whole];
    if (t->costs) return DH_OK;
    mesh.config.at[DH_TUNE_MICRO_BATCH] = mesh.config.at[DH_TUNE_STAGES] = 1;
    DH_TRY(set_job(&mesh));
    dh_profile *profile;
    const dh_status st = dh_job_costs(w->ctx, t->arena, t->job, &t->costs, &profile);
    dh_profile_destroy(profile);
    if (st != DH_OK) return st;
    t->costs_own[whole] = t->costs;
    return set_job(w);
}

/* Where every layer has linear attention and ranks share sequences, both ways; hybrids have one. */
static dh_status each_way(walk *w)
{
    const dh_model *m = &w->t->job->model;
    const bool travels = m->attention == DH_ATTENTION_LINEAR && w->t->job->cp > 1;
    const int64_t last = dh_model_cp_chunks(m) == 1 ? DH_CP_LINEAR_LASP1 : DH_CP_LINEAR_LASP2;
    w->config.at[DH_TUNE_CP_LINEAR] = -1;
    if (!travels) return w->visit(w->ctx, w->user, &w->config, NULL);
    for (int64_t way = DH_CP_LINEAR_LASP2; way <= last; way++) {
        if (!is_allowed(w, DH_TUNE_CP_LINEAR, way)) continue;
        w->config.at[DH_TUNE_CP_LINEAR] = way;
        DH_TRY(w->visit(w->ctx, w->user, &w->config, NULL));
    }
    w->config.at[DH_TUNE_CP_LINEAR] = -1;
    return DH_OK;
}

/* Pieces of buckets are stepped by where ranks have shards of what is reduced once a step. */
static bool may_fuse(const walk *w)
{
    const dh_sharing sharing = dh_sharing_of(w->config.at[DH_TUNE_ZERO]);
    const dh_job *job = w->t->job;
    return job->dp * job->cp > 1 && dh_sharing_steps_shards(&sharing) && !job->post_validation &&
           (job->gradient_sync != DH_GRADIENT_SYNC_EVERY || !sharing.gradients);
}

static bool may_step_ahead(const walk *w)
{
    const int64_t fuse = w->config.at[DH_TUNE_FUSE];
    return w->t->job->pp > 1 && (fuse < 0 ? dh_fuse_pieces(w->t->job->fuse) == 0 : fuse == 0);
}

/* NULL, or why no step of the configuration is so. */
static const char *cannot_step(const walk *w)
{
    const int64_t *at = w->config.at;
    if (at[DH_TUNE_FUSE] > 0 && at[DH_TUNE_POST] > 0)
        return "optimizer.fuse and optimizer.post_validation exclude each other";
    if (at[DH_TUNE_FUSE] > 0 && !may_fuse(w))
        return "optimizer.fuse needs gradients that are reduced to shards once a step "
               "(parallel.zero 1 or 2 with dp x cp above 1), and no optimizer.post_validation";
    if (at[DH_TUNE_POST] > 0 && !may_step_ahead(w))
        return "optimizer.post_validation needs stages (parallel.pp above 1), and no "
               "optimizer.fuse";
    return NULL;
}

/* Ways to step that the configuration cannot have are left out. If it can have none, it is refused
 * for the first reason. */
static dh_status each_step(walk *w)
{
    const tuner *t = w->t;
    const char *first = NULL;
    bool any = false;
    for (size_t f = 0; f < t->fusions.n; f++)
        for (size_t p = 0; p < t->posts.n; p++) {
            w->config.at[DH_TUNE_FUSE] = t->fusions.at[f];
            w->config.at[DH_TUNE_POST] = t->posts.at[p];
            const char *obstacle = cannot_step(w);
            if (!first) first = obstacle;
            any |= !obstacle;
            if (!obstacle) DH_TRY(each_way(w));
        }
    w->config.at[DH_TUNE_FUSE] = w->config.at[DH_TUNE_POST] = -1;
    return any ? DH_OK : w->visit(w->ctx, w->user, &w->config, first);
}

/* Micro-batches that go through one stage after another on the same rank are of use where
 * parameters are gathered for all of them. */
static bool is_idle(const walk *w, int64_t zero)
{
    size_t n;
    const dh_schedule_row *row = dh_schedule_rows(&n)[w->config.at[DH_TUNE_SCHEDULE]];
    return row->breadth_first && w->config.at[DH_TUNE_PP] == 1 && !dh_sharing_of(zero).parameters;
}

/* With one data-parallel rank nothing is shared out: all degrees are one. */
static dh_status visit_one(walk *w)
{
    const tuner *t = w->t;
    const bool alone = t->job->dp * t->job->cp == 1;
    for (size_t z = 0; z < (alone ? 1 : t->zeros.n); z++)
        for (size_t b = 0; b < (alone ? 1 : t->buckets.n); b++) {
            if (is_idle(w, t->zeros.at[z])) continue;
            w->config.at[DH_TUNE_ZERO] = t->zeros.at[z];
            w->config.at[DH_TUNE_BUCKET] = t->buckets.at[b];
            DH_TRY(each_step(w));
        }
    return DH_OK;
}

/* Whether there are one or two virtual stages more than layers. Each stage then has a layer, except
 * the first with its embedding, or the last with its head, or both. */
static bool leaves_ends_empty(const walk *w, int64_t n_chunks, int64_t split)
{
    const int64_t more = split / TUNE_SPLIT_FIRST + split % TUNE_SPLIT_FIRST;
    return w->t->searches_splits && w->config.at[DH_TUNE_PP] > 1 && split / TUNE_SPLIT_FIRST <= 1 &&
           split % TUNE_SPLIT_FIRST <= 1 && n_chunks > 2 &&
           n_chunks - w->t->job->model.n_layers == more;
}

static dh_status visit_checked(walk *w)
{
    bool possible;
    DH_TRY(check(w, &possible));
    return possible ? visit_one(w) : DH_OK;
}

/* A split whose ends are empty, of a schedule with so many virtual stages. Others are tried with
 * the best configurations (explore.c). */
static dh_status each_empty(walk *w, int64_t n_chunks)
{
    for (int64_t split = 1; split < TUNE_N_SPLITS; split++) {
        if (!leaves_ends_empty(w, n_chunks, split)) continue;
        w->config.at[DH_TUNE_SPLIT] = split;
        DH_TRY(visit_checked(w));
    }
    w->config.at[DH_TUNE_SPLIT] = w->t->searches_splits && w->config.at[DH_TUNE_PP] > 1 ? 0 : -1;
    return DH_OK;
}

/* Whether a rank can have so many virtual stages: divisors of its layers; where stages are uneven
 * anyway, all that leave none empty. Of a given split its own entries decide. */
static bool divides(const walk *w, int64_t n)
{
    const int64_t n_layers = w->t->job->model.n_layers, pp = w->config.at[DH_TUNE_PP];
    if (*w->t->own_split) return true;
    return n <= n_layers / pp && (n_layers % pp != 0 || n_layers / pp % n == 0);
}

static dh_status each_stages(walk *w)
{
    const int64_t n_layers = w->t->job->model.n_layers, pp = w->config.at[DH_TUNE_PP];
    for (int64_t n = 2; n * pp <= n_layers + 2; n++) {
        if (!is_allowed(w, DH_TUNE_STAGES, n)) continue;
        w->config.at[DH_TUNE_STAGES] = n;
        if (divides(w, n)) DH_TRY(visit_checked(w));
        DH_TRY(each_empty(w, n * pp));
    }
    w->config.at[DH_TUNE_STAGES] = w->t->job->vpp = 1;
    return DH_OK;
}

static bool is_folded(const dh_schedule_row *row)
{
    return row->n_chunks == 2;
}

/* One or two virtual stages a rank. A job whose layers do not suffice for an even split was refused
 * before (list_mesh). */
static dh_status each_end(walk *w, bool folded)
{
    const int64_t n_chunks = w->config.at[DH_TUNE_PP] * (folded ? 2 : 1);
    DH_TRY(visit_one(w));
    return folded ? each_empty(w, n_chunks) : DH_OK;
}

/* One stage has one order, whatever the schedule (dh_job_schedule), so one wanted row
 * without an order of its own stands for all: 1f1b, or the first. */
static bool stands_for_all(const walk *w, size_t index)
{
    size_t n, chosen = SIZE_MAX;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    for (size_t i = 0; i < n; i++) {
        const bool is_default = strcmp(rows[i]->name, "1f1b") == 0;
        if (!w->t->schedule_wanted[i] || dh_schedule_orders_one_stage(rows[i])) continue;
        if (chosen == SIZE_MAX || is_default) chosen = i;
    }
    return chosen == index;
}

static bool combines(const walk *w, const dh_strategy *strategy, size_t index)
{
    size_t n;
    const dh_order_policy *policy;
    const dh_schedule_row *row = dh_schedule_rows(&n)[index];
    const bool own = strategy->schedule && strcmp(strategy->schedule, row->name) == 0;
    if (dh_order_policy_find(w->ctx, strategy->policy, &policy) != DH_OK) return false;
    if (!w->t->schedule_wanted[index] && !own) return false;
    if (row->pairs != (policy->order != NULL)) return false;
    if (w->config.at[DH_TUNE_PP] > 1 || is_folded(row)) return true;
    if (row->breadth_first) return w->t->job->regather == DH_REGATHER_STAGE;
    return dh_schedule_orders_one_stage(row) || stands_for_all(w, index);
}

static dh_status each_schedule(walk *w, const dh_strategy *strategy)
{
    size_t n;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    for (size_t i = 0; i < n; i++) {
        if (!combines(w, strategy, i)) continue;
        w->config.at[DH_TUNE_SCHEDULE] = (int64_t)i;
        if (rows[i]->n_chunks == 0 && (w->config.at[DH_TUNE_PP] > 1 || rows[i]->breadth_first))
            DH_TRY(each_stages(w));
        else if (is_allowed(w, DH_TUNE_STAGES, 1))
            DH_TRY(each_end(w, is_folded(rows[i])));
    }
    return DH_OK;
}

/* The part of the configuration so far on which passes depend. */
static dh_status graphs_so_far(const walk *w, dh_graph_spec *graphs)
{
    const dh_job *job = w->t->job;
    *graphs = (dh_graph_spec){.build = {.model = &job->model,
                                        .mode = DH_MODE_TRAIN,
                                        .dtype = job->dtype,
                                        .batch = job->micro_batch,
                                        .seq = job->seq_len / job->cp},
                              .recompute = (dh_recompute_kind)job->recompute,
                              .sharing = dh_sharing_of_job(job)};
    return dh_mesh_from_job(w->ctx, job, &graphs->mesh);
}

static bool orders_alike(const dh_strategy *a, const dh_strategy *b)
{
    const bool schedules = a->schedule && b->schedule ? strcmp(a->schedule, b->schedule) == 0
                                                      : a->schedule == b->schedule;
    return schedules && strcmp(a->policy, b->policy) == 0 && a->barriers == b->barriers;
}

/* Whether an earlier row comes to the same here, whatever it is called. */
static dh_status repeats(const walk *w, const dh_strategy *rows, size_t index, bool *repeated)
{
    dh_graph_spec graphs;
    *repeated = false;
    DH_TRY(graphs_so_far(w, &graphs));
    if (rows[index].searches && graphs.mesh.tp > 1) return DH_OK;
    const dh_pass_list own = dh_pass_list_reduced(&graphs, &rows[index].passes);
    for (size_t i = 0; i < index && !*repeated; i++) {
        if (!orders_alike(&rows[i], &rows[index])) continue;
        const dh_pass_list other = dh_pass_list_reduced(&graphs, &rows[i].passes);
        *repeated = dh_pass_list_equal(&own, &other);
    }
    return DH_OK;
}

static dh_status each_strategy(walk *w)
{
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    for (size_t i = 0; i < n; i++) {
        bool repeated;
        if (!w->t->strategy_wanted[i]) continue;
        DH_TRY(repeats(w, rows, i, &repeated));
        if (repeated) continue;
        w->config.at[DH_TUNE_STRATEGY] = (int64_t)i;
        DH_TRY(each_schedule(w, &rows[i]));
    }
    return DH_OK;
}

/* Making attention's scores again is a choice where the system would keep them. */
static dh_status each_recompute(walk *w)
{
    tune_system system;
    DH_TRY(tune_system_of(w->ctx, w->t, DH_RECOMPUTE_NONE, &system));
    const bool scores = dh_system_has(&system.row, DH_TRAIT_SCORES);
    for (int64_t r = DH_RECOMPUTE_NONE; r <= DH_RECOMPUTE_ATTENTION; r++) {
        if (!is_allowed(w, DH_TUNE_RECOMPUTE, r)) continue;
        if (r == DH_RECOMPUTE_ATTENTION && !scores && !is_fixed(w->t, DH_TUNE_RECOMPUTE)) continue;
        w->config.at[DH_TUNE_RECOMPUTE] = r;
        DH_TRY(each_strategy(w));
    }
    return DH_OK;
}

/* Whole tokens are a choice where there are ranks to split them over. */
static size_t n_sequences(const walk *w)
{
    return w->config.at[DH_TUNE_TP] > 1 ? w->t->sequences.n : 1;
}

static int64_t sequence_at(const walk *w, size_t i)
{
    return w->config.at[DH_TUNE_TP] > 1 ? w->t->sequences.at[i] : -1;
}

static dh_status each_sequence(walk *w)
{
    for (size_t i = 0; i < n_sequences(w); i++) {
        bool possible;
        w->config.at[DH_TUNE_SEQUENCE] = sequence_at(w, i);
        DH_TRY(check(w, &possible));
        if (!possible) continue;
        DH_TRY(find_own_costs(w));
        DH_TRY(each_recompute(w));
    }
    return DH_OK;
}

/* ---- units ---------------------------------------------------------------------------------- */

/* Configurations of a unit are far fewer. */
enum { UNIT_BITS = 32 };

typedef struct listing {
    walk walk;
    tune_units *units;
} listing;

static dh_status add_unit(listing *l, int64_t micro_batch)
{
    tune_unit unit = {.config = l->walk.config, .place = (int64_t)l->units->n << UNIT_BITS};
    unit.config.at[DH_TUNE_MICRO_BATCH] = micro_batch;
    return dh_vec_push(l->units, unit) ? DH_OK : dh_no_memory(l->walk.ctx);
}

/* A mesh is checked before its micro-batches, so that what it cannot have is said once. */
static dh_status list_mesh(listing *l)
{
    walk *w = &l->walk;
    const int64_t share = w->t->job->global_batch / w->config.at[DH_TUNE_DP];
    for (int d = 0; d < DH_N_TUNE_DIM; d++)
        if (d > DH_TUNE_DP) w->config.at[d] = -1;
    w->config.at[DH_TUNE_MICRO_BATCH] = w->config.at[DH_TUNE_STAGES] = 1;
    dh_status st = DH_EINVAL;
    for (size_t i = 0; st != DH_OK && i < n_sequences(w); i++) {
        dh_ctx_reset(w->ctx);
        w->config.at[DH_TUNE_SEQUENCE] = sequence_at(w, i);
        if ((st = set_job(w)) == DH_ENOMEM) return st;
    }
    w->config.at[DH_TUNE_STAGES] = w->config.at[DH_TUNE_SEQUENCE] = -1;
    if (w->t->searches_splits && w->config.at[DH_TUNE_PP] > 1) w->config.at[DH_TUNE_SPLIT] = 0;
    dh_ctx_reset(w->ctx);
    if (st != DH_OK) return add_unit(l, 0);
    for (int64_t n = 1; n <= share; n++)
        if (share % n == 0 && is_allowed(w, DH_TUNE_MICRO_BATCH, n)) DH_TRY(add_unit(l, n));
    return DH_OK;
}

static dh_status each_expert_degree(listing *l)
{
    walk *w = &l->walk;
    const int64_t dp = w->config.at[DH_TUNE_DP];
    if (!is_allowed(w, DH_TUNE_DP, dp)) return DH_OK;
    for (int64_t ep = 1; ep <= (w->t->job->model.n_experts ? dp : 1); ep++) {
        if (dp % ep || !is_allowed(w, DH_TUNE_EP, ep)) continue;
        w->config.at[DH_TUNE_EP] = ep;
        DH_TRY(list_mesh(l));
    }
    return DH_OK;
}

/* Every way to write the devices as tp * cp * pp * dp. */
static dh_status each_degree(listing *l, int dim, int64_t left)
{
    walk *w = &l->walk;
    if (dim == DH_TUNE_PP + 1) {
        w->config.at[DH_TUNE_DP] = left;
        return each_expert_degree(l);
    }
    for (int64_t n = 1; n <= left; n++) {
        if (left % n || !is_allowed(w, (dh_tune_dim)dim, n)) continue;
        w->config.at[dim] = n;
        DH_TRY(each_degree(l, dim + 1, left / n));
    }
    return DH_OK;
}

dh_status tune_list_units(dh_ctx *ctx, tuner *t, tune_units *units)
{
    listing l = {.walk = {.ctx = ctx, .t = t}, .units = units};
    return each_degree(&l, DH_TUNE_TP, t->options->devices);
}

/* ---- entries -------------------------------------------------------------------------------- */

dh_status tune_each(dh_ctx *ctx, tuner *t, const tune_unit *unit, tune_visit *visit, void *user)
{
    walk w = {.ctx = ctx, .t = t, .visit = visit, .user = user, .config = unit->config};
    w.config.at[DH_TUNE_STAGES] = 1;
    w.config.at[DH_TUNE_MICRO_BATCH] = DH_MAX(unit->config.at[DH_TUNE_MICRO_BATCH], (int64_t)1);
    return each_sequence(&w);
}

dh_status tune_enter(dh_ctx *ctx, tuner *t, const dh_tune_config *config)
{
    walk w = {.ctx = ctx, .t = t, .config = *config};
    DH_TRY(set_job(&w));
    return find_own_costs(&w);
}
