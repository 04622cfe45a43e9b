/* Schedules of stages with given times, as JSON. */
#include "describe/stage_times.h"

static json_t *rank_json(const dh_stage_times *t, int32_t rank)
{
    const double busy = (double)t->timing.busy_ns[rank];
    return json_pack("{si sf sf si}", "rank", rank, "busy_ms", busy * 1e-6, "idle_ms",
                     ((double)t->step_ns - busy) * 1e-6, "activations", t->activations[rank]);
}

json_t *dh_stage_times_json(const dh_stage_times *t)
{
    const dh_schedule *s = t->schedule;
    json_t *ranks = json_array();
    bool ok = ranks != NULL;
    for (int32_t g = 0; ok && g < s->n_ranks; g++)
        ok = json_array_append_new(ranks, rank_json(t, g)) == 0;
    if (!ok) {
        json_decref(ranks);
        return NULL;
    }
    return json_pack("{ss si si si sf sf sf so}", "schedule", s->name, "n_ranks", s->n_ranks,
                     "n_stages", s->n_stages, "micro_batches", s->n_micro, "step_ms",
                     (double)t->step_ns * 1e-6, "makespan_ms", (double)t->timing.makespan_ns * 1e-6,
                     "bubble", t->bubble, "ranks", ranks);
}
