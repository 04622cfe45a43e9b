/* The pipeline schedule a job plans, against a clock on which a forward takes one unit and
 * a backward two. */
#include "report/html/run.h"

#include <stdlib.h>

#include "plan/schedule.h"
#include "train/recipe.h"

/* Actions as [kind, virtual stage, micro-batch]. */
static void write_slot(const dh_pipe_slot *slot, int64_t start, int64_t end, json_out *out)
{
    out_open(out, '[');
    out_int(out, start);
    out_int(out, end);
    for (int i = 0; i < slot->n_actions; i++) {
        const char letter[2] = {dh_pipe_kind_letter(slot->action[i].kind), '\0'};
        out_text(out, letter);
        out_int(out, slot->action[i].stage);
        out_int(out, slot->action[i].micro);
    }
    out_close(out, ']');
}

static void write_slots(const dh_schedule *s, const dh_schedule_timing *t, json_out *out)
{
    out_key(out, "slots");
    out_open(out, '[');
    for (int32_t g = 0; g < s->n_ranks; g++) {
        out_open(out, '[');
        for (int32_t i = s->first_slot[g]; i < s->first_slot[g + 1]; i++)
            write_slot(&s->slots[i], t->start_ns[i], t->end_ns[i], out);
        out_close(out, ']');
    }
    out_close(out, ']');
}

/* Layers of each virtual stage, where the model's layers divide so. */
static dh_status write_layers(dh_ctx *ctx, const dh_job *job, const dh_schedule *s, json_out *out)
{
    if (job->model.n_layers == 0) return DH_OK; /* times of stages in place of a model */
    int64_t *layers = calloc((size_t)s->n_stages + 1, sizeof *layers);
    if (!layers) return dh_no_memory(ctx);
    const char *split = dh_job_splits(job) ? "*" : job->layer_split;
    dh_status st = dh_layer_split(ctx, job->model.n_layers, s->n_stages, split, layers);
    if (st == DH_OK) {
        out_key(out, "layers");
        out_open(out, '[');
        for (int32_t v = 0; v < s->n_stages; v++) out_int(out, layers[v]);
        out_close(out, ']');
    }
    free(layers);
    return st;
}

static dh_status write_plan(dh_ctx *ctx, const dh_job *job, const dh_schedule *s, json_out *out)
{
    const dh_schedule_costs costs = {.every = {.f_ns = 1, .i_ns = 1, .w_ns = 1, .b_ns = 2}};
    dh_schedule_timing timing;
    DH_TRY(dh_schedule_time(ctx, s, &costs, &timing));
    out_key(out, "plan");
    out_open(out, '{');
    out_key(out, "name");
    out_text(out, s->name);
    out_key(out, "stages");
    out_int(out, s->n_stages);
    dh_status st = write_layers(ctx, job, s, out);
    if (st == DH_OK) write_slots(s, &timing, out);
    out_close(out, '}');
    dh_schedule_timing_fini(&timing);
    return st;
}

/* One stage has one order, which 1F1B gives. */
static dh_status schedule_of(dh_ctx *ctx, const dh_job *job, dh_schedule **schedule)
{
    const dh_strategy *strategy;
    DH_TRY(dh_strategy_read(ctx, job->arena, job->strategy, &strategy));
    DH_TRY(dh_job_schedule(ctx, job, strategy, NULL, dh_job_n_micro(job), schedule));
    if (*schedule) return DH_OK;
    const dh_schedule_row *row;
    const dh_schedule_spec one = {.n_ranks = 1, .n_micro = (int32_t)dh_job_n_micro(job)};
    DH_TRY(dh_schedule_find(ctx, "1f1b", &row));
    return dh_schedule_generate(ctx, row, &one, schedule);
}

/* A schedule that cannot be made, its CSV file having moved, say, is a part that is absent. */
dh_status dh_html_plan(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    dh_schedule *schedule;
    dh_ctx inner = DH_CTX_INIT;
    dh_status made = schedule_of(&inner, run->job, &schedule);
    if (made == DH_ENOMEM) return dh_fail(ctx, made, "%s", inner.message);
    if (made != DH_OK) {
        out_key(out, "plan_error");
        out_text(out, inner.message);
        return DH_OK;
    }
    dh_status st = write_plan(ctx, run->job, schedule, out);
    dh_schedule_destroy(schedule);
    return st;
}
