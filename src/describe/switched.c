/* Steps over several meshes, simulated: their figures as JSON. */
#include "describe/switched.h"

#include "describe/resharded.h"
#include "describe/simulated.h"

static json_t *group_json(const dh_switched_group *g)
{
    char layout[96];
    const dh_switched_moves *m = &g->moves;
    return json_pack("{sI ss sb sf sf sf sf sI sf sf sf sf sI sI sI sf}", "max_len",
                     (json_int_t)g->job->recipe.seq, "layout",
                     dh_resharded_layout(g->job, layout, sizeof layout), "at_home", g->at_home,
                     "documents", g->load.docs, "tokens", g->load.tokens, "rows", g->load.rows,
                     "passes", g->passes, "pass_rows", (json_int_t)g->pass.rows, "pass_ms",
                     (double)g->pass.ns[1] * 1e-6, "last_pass_ms", (double)g->pass.ns[0] * 1e-6,
                     "params_ms", (double)m->params_ns * 1e-6, "grads_ms",
                     (double)m->grads_ns * 1e-6, "params_bytes", (json_int_t)m->params_bytes,
                     "grads_bytes", (json_int_t)m->grads_bytes, "peak_bytes",
                     (json_int_t)g->pass.peak_bytes, "ms", g->ns * 1e-6);
}

json_t *dh_switched_json(const dh_switched *s, const dh_resolved *job)
{
    char layout[96];
    json_t *groups = json_array();
    bool ok = groups != NULL;
    for (size_t i = 0; ok && i < s->n; i++)
        ok = json_array_append_new(groups, group_json(&s->groups[i])) == 0;
    if (!ok) {
        json_decref(groups);
        return NULL;
    }
    json_t *document = json_pack(
        "{ss ss sI sI sf sf sf sf sf sI sf sI so}", "home",
        dh_resharded_layout(job, layout, sizeof layout), "costs", job->recipe.costs->name, "ranks",
        (json_int_t)job->recipe.mesh.ranks, "steps_counted", (json_int_t)s->n_steps, "tokens",
        s->tokens, "optimizer_ms", (double)s->update_ns * 1e-6, "step_ms", s->step_ns * 1e-6,
        "hidden_ms", s->hidden_ns * 1e-6, "tokens_per_s", s->tokens / (s->step_ns * 1e-9),
        "peak_bytes", (json_int_t)s->peak_bytes, "packed_ms", s->packed_ns * 1e-6, "packed_bytes",
        (json_int_t)s->packed_bytes, "groups", groups);
    dh_step_facts facts;
    if (document && dh_resolved_facts(job, &facts)) dh_nearest_json(&facts, document);
    return document;
}

/* ---- plans ----------------------------------------------------------------------------------- */

const dh_length_plan *dh_length_plans_packed(const dh_length_plans *plans)
{
    for (size_t i = 0; i < plans->n; i++)
        if (plans->plans[i].n_groups == 1 && plans->plans[i].fits) return &plans->plans[i];
    return NULL;
}

json_t *dh_length_plans_json(const dh_length_plans *plans)
{
    json_t *rows = json_array();
    bool ok = rows != NULL;
    for (size_t i = 0; ok && i < plans->n; i++) {
        const dh_length_plan *p = &plans->plans[i];
        ok = json_array_append_new(
                 rows, json_pack("{sI ss ss sb so}", "n_groups", (json_int_t)p->n_groups, "home",
                                 p->home, "groups", p->groups, "fits", p->fits, "step",
                                 dh_switched_json(&p->switched, p->resolved))) == 0;
    }
    if (!ok) {
        json_decref(rows);
        return NULL;
    }
    return json_pack("{sf ss sI sI sI so}", "memory_bytes", plans->memory_bytes, "lengths",
                     plans->reading, "passes_simulated", (json_int_t)plans->n_passes, "refused",
                     (json_int_t)plans->n_refused, "left_out", (json_int_t)plans->n_left_out,
                     "plans", rows);
}
