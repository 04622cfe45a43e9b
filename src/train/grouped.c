/* Steps of documents by length: their rows by group, and running them (switch.h). */
#include "config/groups.h"
#include "data/groups.h"
#include "train/run.h"

#include <string.h>

_Static_assert((int)DH_MAX_LENGTH_GROUPS == (int)DH_MAX_SWITCH_GROUPS, "one limit");

/* ---- rows ------------------------------------------------------------------------------------ */

/* Where a group's programs get their rows. */
typedef struct group_source {
    const dh_dataset *data;
    const dh_length_groups *groups;
    size_t group;
} group_source;

static dh_status load_row(dh_ctx *ctx, void *self, int64_t sample, int64_t seq_len,
                          const dh_batch_row *row)
{
    const group_source *s = self;
    const dh_dataset_row to = {row->tokens, row->targets, row->positions, row->samples};
    return dh_length_groups_row(ctx, s->data, s->groups, s->group, sample, &to);
}

/* ---- times ----------------------------------------------------------------------------------- */

typedef struct watching {
    dh_run *run;
    dh_ctx *ctx;
    dh_status status;
} watching;

/* For a program beside others, only the wait for it is in the step's time. */
static void keep_beside(dh_timeline *t, int64_t waited_ns)
{
    const int64_t exposed = DH_MIN(t->alone_ns, waited_ns);
    t->span_ns = waited_ns;
    t->busy_ns[DH_ENGINE_COMPUTE] = 0;
    t->exposed_ns = exposed;
    t->hidden_ns = t->alone_ns - exposed;
    memset(t->exposed_by_ns, 0, sizeof t->exposed_by_ns);
    t->exposed_by_ns[DH_EXPOSED_DEPENDENCY] = exposed;
    memset(t->waits_ns, 0, sizeof t->waits_ns);
    t->idle_ns = waited_ns - exposed;
}

/* The step's timeline is that of its programs, one after another. */
static void add_times(void *user, const dh_program *program, dh_exec *exec, int64_t waited_ns)
{
    watching *w = user;
    dh_run *run = w->run;
    dh_timeline times;
    if (run->n_measured > 0) dh_run_add_operator_times(run, program, exec);
    if (run->ranks.rank != 0 || run->ranks.n == 1 || w->status != DH_OK) return;
    w->status = dh_timeline_observe(w->ctx, program, dh_exec_spans(exec), NULL, &times);
    if (w->status != DH_OK) return;
    if (waited_ns >= 0) keep_beside(&times, waited_ns);
    dh_timeline_add(&run->times, &times);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static dh_status run_groups(dh_ctx *ctx, dh_run *run, const dh_step *step,
                            const dh_length_groups *groups)
{
    group_source sources[DH_MAX_LENGTH_GROUPS];
    dh_switch_work work[DH_MAX_LENGTH_GROUPS];
    watching w = {.run = run, .ctx = ctx};
    for (size_t i = 0; i < groups->n; i++) {
        sources[i] = (group_source){run->train_data, groups, i};
        work[i] = (dh_switch_work){.n_rows = dh_pack_rows(&groups->rows[i]),
                                   .source = {.self = &sources[i], .load_row = load_row}};
    }
    run->times = (dh_timeline){0};
    DH_TRY(dh_switch_run(ctx, run->session->switched, step, work, add_times, &w, &run->switched));
    DH_TRY(dh_exec_run(ctx, run->session->train_exec, step));
    add_times(&w, run->session->train, run->session->train_exec, -1);
    run->work.padding = run->switched.n_tokens - run->work.tokens;
    return w.status;
}

dh_status dh_run_grouped_step(dh_ctx *ctx, dh_run *run, const dh_step *step)
{
    const int64_t batch = run->job->global_batch;
    int64_t max_len[DH_MAX_LENGTH_GROUPS];
    dh_length_groups groups;
    for (size_t i = 0; i < run->n_groups; i++) max_len[i] = run->groups[i].seq;
    dh_status st = dh_length_groups_make(ctx, run->train_data, run->left_out + run->step * batch,
                                         batch, max_len, run->n_groups, &groups);
    if (st == DH_OK) st = run_groups(ctx, run, step, &groups);
    dh_length_groups_fini(&groups);
    return st;
}

void dh_run_report_switch(const dh_run *run, json_t *line)
{
    const dh_switch_done *d = &run->switched;
    json_object_set_new(line, "switch_ms", json_real((double)d->switch_ns * 1e-6));
    json_object_set_new(line, "switch_wait_ms", json_real((double)d->switch_wait_ns * 1e-6));
    json_object_set_new(line, "switches", json_integer(d->n_switches));
    json_object_set_new(line, "switch_bytes", json_integer(d->switch_bytes));
    json_object_set_new(line, "passes", json_integer(d->n_passes));
}
