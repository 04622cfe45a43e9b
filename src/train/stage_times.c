/* Stages of given times: the user's own measurements, or published ones (Zero Bubble, table 9). */
#include "train/stage_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "train/recipe.h"

#define NS_PER_MS 1e6

/* ---- lists ---------------------------------------------------------------------------------- */

static int32_t count_entries(const char *list)
{
    int32_t n = 1;
    for (; *list; list++) n += *list == ',';
    return n;
}

static int64_t *place_of(dh_stage_cost *cost, int work)
{
    return work == DH_STAGE_FORWARD ? &cost->f_ns
           : work == DH_STAGE_INPUT ? &cost->i_ns
                                    : &cost->w_ns;
}

/* One time for all virtual stages, or one for each. */
static dh_status fill(dh_ctx *ctx, const dh_job *job, int work, int32_t n_stages,
                      dh_stage_cost *stages)
{
    static const char *const keys[] = {"forward_ms", "input_ms", "weight_ms"};
    const char *at = job->stage_ms[work];
    const int32_t n = count_entries(at);
    if (n != 1 && n != n_stages)
        return dh_fail(
            ctx, DH_EINVAL,
            "stages.%s has %d times; the schedule has %d virtual stages: one for all, or "
            "one for each",
            keys[work], n, n_stages);
    for (int32_t v = 0; v < n_stages; v++) {
        *place_of(&stages[v], work) = llround(dh_strtod(at, NULL) * NS_PER_MS);
        if (n > 1) at += strcspn(at, ",") + 1;
    }
    return DH_OK;
}

static dh_status read_costs(dh_ctx *ctx, dh_arena *arena, const dh_job *job, int32_t n_stages,
                            dh_schedule_costs *costs)
{
    dh_stage_cost *stages = DH_NEW_N(arena, dh_stage_cost, n_stages);
    if (!stages) return dh_no_memory(ctx);
    for (int work = 0; work < DH_N_STAGE_WORK; work++)
        DH_TRY(fill(ctx, job, work, n_stages, stages));
    *costs =
        (dh_schedule_costs){.stage = stages, .p2p_ns = llround(job->stage_transfer_ms * NS_PER_MS)};
    return DH_OK;
}

/* ---- figures -------------------------------------------------------------------------------- */

static bool is_split(const dh_schedule *s)
{
    for (int32_t i = 0; i < s->first_slot[s->n_ranks]; i++)
        if (s->slots[i].action[0].kind == DH_PIPE_W) return true;
    return false;
}

static dh_status count_activations(dh_ctx *ctx, dh_stage_times *t)
{
    const int32_t n = t->schedule->n_ranks;
    dh_schedule_use *use = calloc((size_t)n, sizeof *use);
    t->activations = calloc((size_t)n, sizeof *t->activations);
    dh_status st =
        use && t->activations ? dh_schedule_validate(ctx, t->schedule, use) : dh_no_memory(ctx);
    for (int32_t g = 0; st == DH_OK && g < n; g++) t->activations[g] = use[g].peak;
    free(use);
    return st;
}

static dh_status find_figures(dh_ctx *ctx, const dh_schedule_costs *costs, dh_stage_times *t)
{
    const dh_schedule *s = t->schedule;
    double work = 0;
    DH_TRY(dh_schedule_time(ctx, s, costs, &t->timing));
    t->step_ns = is_split(s) ? t->timing.longest_span_ns : t->timing.makespan_ns;
    for (int32_t g = 0; g < s->n_ranks; g++) work += (double)t->timing.busy_ns[g];
    t->bubble = t->step_ns > 0 ? 1 - work / s->n_ranks / (double)t->step_ns : 0;
    return count_activations(ctx, t);
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status find(dh_ctx *ctx, dh_arena *arena, const dh_job *job, dh_stage_times *t)
{
    dh_schedule_costs costs;
    dh_schedule_spec spec;
    const dh_schedule_row *row;
    if (strcmp(job->strategy, "sequential") != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "strategy=%s orders operators, but stages.forward_ms gives no times of "
                       "operators: use sequential",
                       job->strategy);
    if (dh_job_schedule_file(job)) {
        DH_TRY(dh_schedule_read_csv(ctx, job->schedule, &t->schedule));
        DH_TRY(read_costs(ctx, arena, job, t->schedule->n_stages, &costs));
        return find_figures(ctx, &costs, t);
    }
    DH_TRY(dh_job_schedule_row(ctx, job, dh_job_n_micro(job), &row, &spec));
    const int32_t n_chunks = row->n_chunks ? row->n_chunks : spec.n_chunks;
    DH_TRY(read_costs(ctx, arena, job, spec.n_ranks * n_chunks, &costs));
    spec.costs = &costs;
    DH_TRY(dh_schedule_generate(ctx, row, &spec, &t->schedule));
    return find_figures(ctx, &costs, t);
}

dh_status dh_stage_times_find(dh_ctx *ctx, const dh_job *job, dh_stage_times *found)
{
    dh_arena *arena = dh_arena_create();
    *found = (dh_stage_times){.schedule = NULL};
    if (!arena) return dh_no_memory(ctx);
    const dh_status st = find(ctx, arena, job, found);
    dh_arena_destroy(arena);
    return st;
}

void dh_stage_times_fini(dh_stage_times *times)
{
    dh_schedule_timing_fini(&times->timing);
    dh_schedule_destroy(times->schedule);
    free(times->activations);
    *times = (dh_stage_times){.schedule = NULL};
}
