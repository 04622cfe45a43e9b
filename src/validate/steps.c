/* Steps of shipped jobs, each simulated once, by several threads at once.
 *
 * The calling thread takes the tables one after the other. The other threads simulate steps ahead of
 * it. Which jobs a table needs is known only to its function: to list them, a thread runs the table
 * once with a step that stands for every other one, which simulates none. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "dhelix/growable.h"
#include "validate/job.h"

typedef enum step_state { LISTED, AT_WORK, KNOWN, FAILED } step_state;

typedef struct kept_step {
    const char *command;
    step_state state;
    /* LISTED: what to simulate */
    const dh_validation *v; /* borrowed */
    dh_shipped_job job;     /* its texts are the validation's */
    dh_shipped_step step;   /* KNOWN */
} kept_step;

struct dh_validation_steps {
    dh_arena *arena;
    pthread_mutex_t lock;  /* of the members below */
    pthread_cond_t change; /* a step is no longer AT_WORK */
    DH_VEC(kept_step) kept;
    size_t next; /* all before it are not LISTED */
    bool over;
};

dh_validation_steps *dh_validation_steps_create(void)
{
    dh_validation_steps *steps = calloc(1, sizeof *steps);
    if (!steps) return NULL;
    steps->arena = dh_arena_create();
    if (!steps->arena) {
        free(steps);
        return NULL;
    }
    pthread_mutex_init(&steps->lock, NULL);
    pthread_cond_init(&steps->change, NULL);
    return steps;
}

void dh_validation_steps_destroy(dh_validation_steps *steps)
{
    if (!steps) return;
    pthread_cond_destroy(&steps->change);
    pthread_mutex_destroy(&steps->lock);
    dh_vec_fini(&steps->kept);
    dh_arena_destroy(steps->arena);
    free(steps);
}

/* The number of steps: there is none yet. */
static size_t find(const dh_validation_steps *steps, const char *command)
{
    size_t i = 0;
    while (i < steps->kept.n && strcmp(steps->kept.at[i].command, command) != 0) i++;
    return i;
}

static dh_status add(dh_ctx *ctx, dh_validation_steps *steps, const char *command, step_state state,
                     const dh_validation *v, const dh_shipped_job *job)
{
    const kept_step kept = {
        .command = dh_arena_strdup(steps->arena, command), .state = state, .v = v, .job = *job};
    return kept.command && dh_vec_push(&steps->kept, kept) ? DH_OK : dh_no_memory(ctx);
}

/* Simulates the step of that place, which is AT_WORK. */
static dh_status simulate(dh_ctx *ctx, dh_validation_steps *steps, size_t i, const dh_validation *v,
                          const dh_shipped_job *job)
{
    dh_shipped_step step;
    const dh_status st = dh_shipped_measure(ctx, v, job, &step);
    pthread_mutex_lock(&steps->lock);
    kept_step *kept = &steps->kept.at[i];
    kept->state = st == DH_OK ? KNOWN : FAILED;
    if (st == DH_OK) kept->step = step;
    pthread_cond_broadcast(&steps->change);
    pthread_mutex_unlock(&steps->lock);
    return st;
}

/* What stands for a step while jobs are listed. */
static dh_status list(dh_ctx *ctx, dh_validation *v, const char *command, const dh_shipped_job *job,
                      dh_shipped_step *step)
{
    *step = (dh_shipped_step){.ns = 1,
                              .period_ns = 1,
                              .devices = 1,
                              .peak_flops_per_s = 1,
                              .model_flops = 1,
                              .hardware_flops = 1,
                              .causal_flops = 1,
                              .memory_bytes = 1,
                              .device_bytes = 1,
                              .n_params = 1};
    dh_status st = DH_OK;
    pthread_mutex_lock(&v->steps->lock);
    if (find(v->steps, command) == v->steps->kept.n)
        st = add(ctx, v->steps, command, LISTED, v, job);
    pthread_mutex_unlock(&v->steps->lock);
    return st;
}

/* The step of a command is the caller's to simulate, or it is known.
 * out       place */
static dh_status claim(dh_ctx *ctx, dh_validation *v, const char *command,
                       const dh_shipped_job *job, size_t *place, bool *known)
{
    dh_validation_steps *steps = v->steps;
    const size_t i = *place = find(steps, command);
    *known = false;
    if (i == steps->kept.n) return add(ctx, steps, command, AT_WORK, v, job);
    while (steps->kept.at[i].state == AT_WORK) pthread_cond_wait(&steps->change, &steps->lock);
    *known = steps->kept.at[i].state == KNOWN;
    if (!*known) steps->kept.at[i].state = AT_WORK;
    return DH_OK;
}

dh_status dh_shipped_step_of(dh_ctx *ctx, dh_validation *v, const dh_shipped_job *job,
                             dh_shipped_step *step)
{
    dh_validation_steps *steps = v->steps;
    const char *command = dh_shipped_command(v, job);
    size_t i;
    bool known;
    if (!command) return dh_no_memory(ctx);
    if (v->lists) return list(ctx, v, command, job, step);
    pthread_mutex_lock(&steps->lock);
    dh_status st = claim(ctx, v, command, job, &i, &known);
    pthread_mutex_unlock(&steps->lock);
    if (st == DH_OK && !known) st = simulate(ctx, steps, i, v, job);
    if (st != DH_OK) return dh_ctx_while(ctx, "running %s", command);
    pthread_mutex_lock(&steps->lock);
    *step = steps->kept.at[i].step;
    pthread_mutex_unlock(&steps->lock);
    return DH_OK;
}

/* ---- several tables ---- */

typedef struct several {
    dh_ctx *ctx;
    const dh_validation_table *const *tables;
    size_t n;
    const char *cluster;
    dh_validation_steps *steps;
    dh_validation_shown *shown;
    void *user;
    dh_validation **listed; /* [n]: NULL where the table's jobs were not listed */
    size_t to_list; /* the next table to list; all before it are listed, or had their turn */
    pthread_t caller;
    dh_status status;
} several;

static dh_status show_tables(several *s)
{
    for (size_t i = 0; i < s->n; i++) {
        dh_validation *v;
        pthread_mutex_lock(&s->steps->lock);
        s->to_list = DH_MAX(s->to_list, i + 1);
        pthread_mutex_unlock(&s->steps->lock);
        DH_TRY(dh_validate(s->ctx, s->tables[i], s->cluster, s->steps, &v));
        const dh_status st = s->shown(s->ctx, v, s->user);
        dh_validation_destroy(v);
        DH_TRY(st);
    }
    return DH_OK;
}

/* The next listed step, which is then AT_WORK. */
static bool take_step(dh_validation_steps *steps, size_t *i)
{
    while (steps->next < steps->kept.n && steps->kept.at[steps->next].state != LISTED)
        steps->next++;
    if (steps->next == steps->kept.n) return false;
    *i = steps->next++;
    steps->kept.at[*i].state = AT_WORK;
    return true;
}

static bool take_table(several *s, size_t *i)
{
    if (s->to_list == s->n) return false;
    *i = s->to_list++;
    return true;
}

/* What fails here is done again by the calling thread when it needs it, and its error counts. */
static void work_ahead(several *s)
{
    for (bool goes_on = true; goes_on;) {
        dh_ctx ctx = dh_ctx_like(s->ctx);
        size_t i;
        pthread_mutex_lock(&s->steps->lock);
        const bool step = !s->steps->over && take_step(s->steps, &i);
        const bool table = !s->steps->over && !step && take_table(s, &i);
        const kept_step next = step ? s->steps->kept.at[i] : (kept_step){0};
        pthread_mutex_unlock(&s->steps->lock);
        goes_on = step || table;
        if (step) (void)simulate(&ctx, s->steps, i, next.v, &next.job);
        if (table) s->listed[i] = dh_validation_list(&ctx, s->tables[i], s->cluster, s->steps);
    }
}

static void *work(void *user)
{
    several *s = user;
    if (!pthread_equal(pthread_self(), s->caller)) {
        work_ahead(s);
        return NULL;
    }
    s->status = show_tables(s);
    pthread_mutex_lock(&s->steps->lock);
    s->steps->over = true;
    pthread_mutex_unlock(&s->steps->lock);
    return NULL;
}

dh_status dh_validate_tables(dh_ctx *ctx, const dh_validation_table *const *tables, size_t n,
                             const char *cluster, size_t n_threads, dh_validation_shown *shown,
                             void *user)
{
    several s = {.ctx = ctx,
                 .tables = tables,
                 .n = n,
                 .cluster = cluster,
                 .steps = dh_validation_steps_create(),
                 .shown = shown,
                 .user = user,
                 .caller = pthread_self(),
                 .listed = calloc(n + 1, sizeof *s.listed)};
    s.status = s.steps && s.listed ? DH_OK : dh_no_memory(ctx);
    if (s.status == DH_OK) dh_work_together(DH_MAX(n_threads, (size_t)1), work, &s);
    for (size_t i = 0; s.listed && i < n; i++) dh_validation_destroy(s.listed[i]);
    free(s.listed);
    dh_validation_steps_destroy(s.steps);
    return s.status;
}
