/* Simulating a job with several strategies and schedules: what they have in common is resolved
 * once.
 */
#include "describe/simulated.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/stop.h"
#include "describe/shown.h"
#include "train/recipe.h"

/* ---- rows ----------------------------------------------------------------------------------- */

size_t dh_simulated_word(const char *texts)
{
    size_t n = 0;
    for (int depth = 0; texts[n] && (depth > 0 || texts[n] != ','); n++)
        depth += (strchr("({[", texts[n]) != NULL) - (strchr(")}]", texts[n]) != NULL);
    return n;
}

static size_t count_words(const char *texts)
{
    size_t n = 1;
    for (const char *c = texts; *c; c++) n += *c == ',';
    return n;
}

/* Strategies of the list, or schedules: what stands in a row before the two are crossed. */
typedef struct choices {
    const dh_strategy **strategy;
    char **schedule;
    size_t n;
} choices;

/* Stands for the strategy that costs choose. */
static const dh_strategy open_strategy = {.name = "auto", .doc = "chosen by simulated steps"};

static dh_status read_strategy(dh_ctx *ctx, dh_arena *arena, char *name, choices *c)
{
    if (strcmp(name, open_strategy.name) == 0) {
        c->strategy[c->n++] = &open_strategy;
        return DH_OK;
    }
    return dh_strategy_read(ctx, arena, name, &c->strategy[c->n++]);
}

static dh_status read_schedule(dh_ctx *ctx, dh_arena *arena, char *name, choices *c)
{
    const dh_schedule_row *row;
    (void)arena;
    c->schedule[c->n++] = name;
    return dh_schedule_named(ctx, name, &row);
}

static dh_status read_each(dh_ctx *ctx, dh_arena *arena, const char *names, choices *c,
                           dh_status (*read)(dh_ctx *, dh_arena *, char *, choices *))
{
    for (;;) {
        const size_t n = dh_simulated_word(names);
        char *name = dh_arena_printf(arena, "%.*s", (int)n, names);
        if (!name) return dh_no_memory(ctx);
        DH_TRY(read(ctx, arena, name, c));
        if (!names[n]) return DH_OK;
        names += n + 1;
    }
}

static dh_status choose_strategies(dh_ctx *ctx, const dh_job *job, const char *names,
                                   dh_arena *arena, choices *c)
{
    size_t n_all;
    const dh_strategy *all = dh_strategies(&n_all);
    if (!names) names = job->strategy;
    const bool open = names == job->strategy && strcmp(names, open_strategy.name) == 0;
    const bool every = strcmp(names, "all") == 0 || open;
    c->strategy = DH_NEW_N(arena, const dh_strategy *, every ? n_all + 1 : count_words(names));
    if (!c->strategy) return dh_no_memory(ctx);
    if (!every) return read_each(ctx, arena, names, c, read_strategy);
    for (size_t i = 0; i < n_all; i++) c->strategy[c->n++] = &all[i];
    if (open) c->strategy[c->n++] = &open_strategy;
    return DH_OK;
}

static dh_status choose_schedules(dh_ctx *ctx, const char *names, dh_arena *arena, choices *c)
{
    size_t n_all;
    const dh_schedule_row *const *all = dh_schedule_rows(&n_all);
    if (!names) return DH_OK;
    const bool every = strcmp(names, "all") == 0;
    c->schedule = DH_NEW_N(arena, char *, every ? n_all : count_words(names));
    if (!c->schedule) return dh_no_memory(ctx);
    if (!every) return read_each(ctx, arena, names, c, read_schedule);
    for (size_t i = 0; i < n_all; i++)
        if (!(c->schedule[c->n++] = dh_arena_strdup(arena, all[i]->name))) return dh_no_memory(ctx);
    return DH_OK;
}

/* The strategy of the job as it was given; of a job that leaves it open, the first. */
static dh_status given_strategy(dh_ctx *ctx, const dh_job *job, dh_arena *arena,
                                const dh_strategy **given)
{
    size_t n;
    *given = dh_strategies(&n);
    return strcmp(job->strategy, "auto") == 0 ? DH_OK
                                              : dh_strategy_read(ctx, arena, job->strategy, given);
}

/* Puts the job as it was given before all others. */
static dh_status add_given(dh_ctx *ctx, const dh_job *job, dh_simulated_list *list)
{
    dh_simulated given = {.as_given = true};
    bool strategy = false, schedule = false;
    DH_TRY(given_strategy(ctx, job, list->arena, &given.strategy));
    for (size_t i = 0; i < list->n; i++) {
        const dh_simulated *s = &list->at[i];
        strategy |= strcmp(s->strategy->name, given.strategy->name) == 0;
        schedule |= !s->schedule || strcmp(s->schedule, job->schedule) == 0;
    }
    list->n_strategies += !strategy;
    list->n_schedules += !schedule;
    memmove(list->at + 1, list->at, list->n++ * sizeof *list->at);
    list->at[0] = given;
    return DH_OK;
}

dh_status dh_simulated_open(dh_ctx *ctx, const dh_job *job, const char *strategies,
                            const char *schedules, dh_simulated_list *list)
{
    choices strategy = {.n = 0}, schedule = {.n = 0};
    *list = (dh_simulated_list){.arena = dh_arena_create()};
    if (!list->arena) return dh_no_memory(ctx);
    DH_TRY(choose_strategies(ctx, job, strategies, list->arena, &strategy));
    DH_TRY(choose_schedules(ctx, schedules, list->arena, &schedule));
    list->n_strategies = strategy.n;
    list->n_schedules = schedule.n;
    const size_t n_schedules = DH_MAX(schedule.n, (size_t)1);
    list->at = DH_NEW_N(list->arena, dh_simulated, strategy.n * n_schedules + 1);
    if (!list->at) return dh_no_memory(ctx);
    for (size_t i = 0; i < n_schedules; i++)
        for (size_t k = 0; k < strategy.n; k++)
            list->at[list->n++] =
                (dh_simulated){.strategy = strategy.strategy[k],
                               .schedule = schedule.n > 0 ? schedule.schedule[i] : NULL};
    return list->n > 1 ? add_given(ctx, job, list) : DH_OK;
}

void dh_simulated_fini(dh_simulated_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        dh_sim_destroy(list->at[i].sim);
        dh_resolved_destroy(list->at[i].job);
    }
    dh_resolved_destroy(list->open);
    dh_arena_destroy(list->arena);
    *list = (dh_simulated_list){.n = 0};
}

/* ---- simulating ----------------------------------------------------------------------------- */

/* A job that this machine could never hold is meant for another one. A bound from below: weights
 * and moments in float32, once over all ranks. */
dh_status dh_simulated_check_here(dh_ctx *ctx, const dh_job *job, const dh_cluster *cluster)
{
    enum { LEAST_BYTES = 12 }; /* of a parameter */
    char need[32], room[32];
    const double bytes = LEAST_BYTES * (double)dh_model_n_params(&job->model);
    const double here = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    if (cluster || bytes <= here) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "%s cannot run on this machine: its weights and moments alone take %s of %s; "
                   "name the hardware to simulate with --cluster (dhelix list clusters)",
                   job->model.name, dh_format_bytes(need, sizeof need, bytes),
                   dh_format_bytes(room, sizeof room, here));
}

double dh_simulated_peak(const dh_simulated_how *how, const dh_job *job)
{
    if (how->peak_flops_per_s > 0) return how->peak_flops_per_s;
    if (!how->cluster) return 0;
    return job->dtype == DH_F32 ? how->cluster->f32_flops_per_s : how->cluster->bf16_flops_per_s;
}

/* Gives a job another schedule, whose name is in the arena; NULL: it keeps its own. */
static dh_status use_schedule(dh_ctx *ctx, dh_arena *arena, const char *schedule,
                              int64_t least_stages, dh_job *job)
{
    const dh_schedule_row *row;
    if (!schedule) return DH_OK;
    DH_TRY(dh_schedule_find(ctx, schedule, &row));
    job->schedule = dh_arena_strdup(arena, row->name);
    if (!job->schedule) return dh_no_memory(ctx);
    job->vpp = row->n_chunks > 0 ? row->n_chunks : DH_MAX(job->vpp, least_stages);
    return dh_job_check(ctx, job);
}

/* A row is of the schedule that was asked for. */
static dh_status check_schedule(dh_ctx *ctx, const dh_simulated *one)
{
    if (!one->schedule || strcmp(one->taken, one->schedule) == 0) return DH_OK;
    if (one->job->job.pp == 1)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "parallel.pp is 1: with one stage its order is that of 1f1b");
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "strategy %s orders pairs of a forward and a backward, and this schedule has "
                   "none: %s has them",
                   one->strategy->name, one->taken);
}

static uint64_t digest_of(const dh_sim *sim)
{
    uint64_t digest = dh_mix64(sim->n_classes) + (uint64_t)sim->n_more;
    for (size_t k = 0; k < sim->n_classes; k++)
        digest = dh_mix64(digest ^ dh_program_digest(sim->ranks[k].program));
    return digest;
}

static void clear(dh_simulated *one)
{
    dh_sim_destroy(one->sim);
    dh_resolved_destroy(one->job);
    *one = (dh_simulated){
        .strategy = one->strategy, .schedule = one->schedule, .as_given = one->as_given};
}

/* The row with a schedule; NULL: the job's. After a failure the row is as before. */
static dh_status simulate_with(dh_ctx *ctx, const dh_simulated_list *list,
                               const dh_train_simulation *how, const char *schedule,
                               int64_t least_stages, dh_simulated *one)
{
    dh_resolved open = *list->open;
    dh_status st = use_schedule(ctx, list->arena, schedule, least_stages, &open.job);
    if (st == DH_OK)
        st = one->strategy == &open_strategy
                 ? dh_resolved_choose(ctx, &open, true, &one->job)
                 : dh_resolved_vary(ctx, &open, one->strategy, &one->job);
    if (st == DH_OK) {
        if (one->strategy == &open_strategy) one->chosen = one->job->job.strategy;
        const dh_schedule *s = one->job->schedule;
        one->taken = s ? s->name : "1f1b";
        one->virtual_stages = s ? s->n_stages / s->n_ranks : 1;
        st = check_schedule(ctx, one);
    }
    if (st == DH_OK) st = dh_train_simulate(ctx, one->job, how, &one->sim);
    if (st == DH_OK) st = dh_cargo_means_of(ctx, one->sim, &one->cargo);
    if (st == DH_OK) st = dh_train_system_memory(ctx, &one->job->job, one->sim, &one->system);
    if (st == DH_OK)
        one->digest = digest_of(one->sim);
    else
        clear(one);
    return st;
}

static bool ends_all(dh_status st)
{
    return st == DH_ENOMEM || st == DH_EINTERRUPTED || st == DH_EINTERNAL;
}

/* The schedule that a strategy brings to a job whose own makes no pairs for it. NULL: none. */
static const char *needed_schedule(const dh_job *job, const dh_strategy *strategy)
{
    const dh_schedule_row *row;
    dh_ctx quiet = DH_CTX_INIT;
    if (!strategy->schedule || dh_job_schedule_file(job)) return NULL;
    return dh_schedule_find(&quiet, job->schedule, &row) == DH_OK && row->pairs
               ? NULL
               : strategy->schedule;
}

/* The schedule with the shortest step, among those with pairs and one copy of the model. Fails with
 * what the message says where there is none. */
static dh_status simulate_any(dh_ctx *ctx, const dh_simulated_list *list,
                              const dh_train_simulation *how, dh_simulated *one)
{
    size_t n;
    dh_ctx tried = dh_ctx_like(ctx);
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    for (size_t i = 0; i < n; i++) {
        dh_simulated other = {.strategy = one->strategy};
        const bool copies =
            rows[i]->placement == DH_PLACE_BIDIRECTIONAL || rows[i]->placement == DH_PLACE_PARALLEL;
        if (!rows[i]->pairs || copies || strcmp(rows[i]->name, one->strategy->schedule) == 0)
            continue;
        const dh_status st = simulate_with(&tried, list, how, rows[i]->name, 1, &other);
        if (ends_all(st)) return dh_fail(ctx, st, "%s", tried.message);
        dh_ctx_reset(&tried);
        if (one->sim && (!other.sim || other.sim->step_ns >= one->sim->step_ns)) {
            clear(&other);
        } else if (other.sim) {
            clear(one);
            *one = other;
        }
    }
    return one->sim ? DH_OK : ctx->status;
}

static dh_status simulate_one(dh_ctx *ctx, const dh_simulated_list *list,
                              const dh_train_simulation *how, dh_simulated *one)
{
    const char *needed =
        one->schedule || one->as_given ? NULL : needed_schedule(list->job, one->strategy);
    const int64_t least_stages = one->schedule ? 2 : 1;
    dh_status st =
        simulate_with(ctx, list, how, needed ? needed : one->schedule, least_stages, one);
    if (st != DH_OK && needed && !ends_all(st)) st = simulate_any(ctx, list, how, one);
    if (st != DH_OK && (list->n == 1 || ends_all(st))) return st;
    if (st != DH_OK) snprintf(one->reason, sizeof one->reason, "%s", ctx->message);
    dh_ctx_reset(ctx);
    return DH_OK;
}

/* Whether a row would be that of the job as given once more. */
static bool is_given_again(const dh_simulated_list *list, const dh_simulated *one)
{
    const dh_simulated *given = &list->at[0];
    dh_job job = *list->job;
    dh_ctx quiet = DH_CTX_INIT;
    if (!given->as_given || given == one || strcmp(given->strategy->name, one->strategy->name) != 0)
        return false;
    if (!one->schedule) return given->sim || !needed_schedule(&job, one->strategy);
    if (use_schedule(&quiet, list->arena, one->schedule, 2, &job) != DH_OK) return false;
    return given->sim
               ? strcmp(given->taken, one->schedule) == 0 && given->virtual_stages == job.vpp
               : strcmp(list->job->schedule, one->schedule) == 0 && list->job->vpp == job.vpp;
}

static dh_status simulate_all(dh_ctx *ctx, const dh_simulated_how *how, dh_simulated_list *list)
{
    dh_shown shown;
    dh_train_simulation watched = how->simulation;
    dh_status st = DH_OK;
    dh_shown_start(&shown, how->progress, list->n == 1);
    watched.sim.watch = &shown.watch;
    for (size_t i = 0; st == DH_OK && i < list->n;) {
        dh_simulated *one = &list->at[i];
        if (is_given_again(list, one)) {
            memmove(one, one + 1, (--list->n - i) * sizeof *list->at);
            continue;
        }
        dh_shown_next(&shown, i++, list->n, "%s%s%s", one->strategy->name,
                      one->schedule ? " with " : "", one->schedule ? one->schedule : "");
        st = simulate_one(ctx, list, &watched, one);
    }
    dh_shown_end(&shown);
    return st;
}

dh_status dh_simulated_run(dh_ctx *ctx, const dh_job *job, const dh_simulated_how *how,
                           dh_simulated_list *list)
{
    const dh_resolve_options any = {.cluster = how->cluster, .open = true};
    DH_TRY(dh_simulated_check_here(ctx, job, how->cluster));
    list->cluster = how->cluster;
    list->peak_flops_per_s = dh_simulated_peak(how, job);
    DH_TRY(dh_job_resolve(ctx, job, &any, &list->open));
    list->job = &list->open->job;
    return simulate_all(ctx, how, list);
}

/* ---- files ---------------------------------------------------------------------------------- */

static dh_status write_folder(dh_ctx *ctx, const dh_simulated_list *list, const dh_simulated *one,
                              const char *out)
{
    dh_str dir = DH_STR_INIT;
    dh_str_printf(&dir, "%s", out);
    if (list->n_schedules > 1) dh_str_printf(&dir, "/%s", one->taken);
    if (list->n_strategies > 1) dh_str_printf(&dir, "/%s", one->strategy->name);
    dh_status st = dir.failed ? dh_no_memory(ctx)
                              : dh_train_write_simulated(ctx, one->job, one->sim, dir.text, false);
    dh_str_fini(&dir);
    return st;
}

dh_status dh_simulated_write(dh_ctx *ctx, const dh_simulated_list *list, const char *dir)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->at[i].sim) DH_TRY(write_folder(ctx, list, &list->at[i], dir));
    return DH_OK;
}
