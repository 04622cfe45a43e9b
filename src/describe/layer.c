/* The slot and its order are those that a program of the job would have. */
#include "describe/layer.h"

#include "describe/cargo.h"
#include "train/link_sms.h"
#include "train/recipe.h"
#include "train/simulation.h"

static dh_status choose_layers(dh_ctx *ctx, const dh_model *m, const int64_t *layers,
                               dh_layer_plan *l)
{
    for (int s = 0; s < 2; s++) {
        l->layer[s] = layers ? layers[s] : dh_usual_layer(m);
        if (l->layer[s] < 0 || l->layer[s] >= m->n_layers)
            return dh_fail(ctx, DH_EINVAL, "there is no layer %lld: they are 0 to %lld",
                           (long long)l->layer[s], (long long)m->n_layers - 1);
    }
    return DH_OK;
}

/* As rank 0 has them, whether or not its stages have such layers. */
static dh_status make_graphs(dh_ctx *ctx, const dh_recipe *recipe, dh_layer_plan *l)
{
    const dh_mesh *m = &l->program->mesh;
    const dh_graph_rank first = {
        .shard = {.tp = m->tp, .ep = m->ep, .whole_experts = m->whole_experts}};
    dh_graph_spec spec = dh_recipe_graphs(recipe);
    spec.build.layer = l->layer[0];
    DH_TRY(dh_graph_make(ctx, &spec, DH_BLOCK_LAYER, first, NULL, &l->graphs[0]));
    l->graphs[1] = l->graphs[0];
    if (dh_model_layer_kind(&recipe->model, l->layer[0]) ==
        dh_model_layer_kind(&recipe->model, l->layer[1]))
        return DH_OK;
    l->graphs[1] = NULL;
    spec.build.layer = l->layer[1];
    return dh_graph_make(ctx, &spec, DH_BLOCK_LAYER, first, NULL, &l->graphs[1]);
}

dh_status dh_layer_plan_open(dh_ctx *ctx, const dh_resolved *job, const char *policy,
                             const int64_t *layers, dh_layer_plan *l)
{
    const dh_session_spec spec = dh_train_session(&job->job, &job->recipe);
    *l = (dh_layer_plan){
        .ordering = job->recipe.ordering, .costs = job->recipe.costs, .model = &job->recipe.model};
    if (policy) DH_TRY(dh_order_policy_find(ctx, policy, &l->ordering.policy));
    DH_TRY(choose_layers(ctx, &job->recipe.model, layers, l));
    DH_TRY(dh_session_program(ctx, &spec, DH_MODE_TRAIN, 0, &l->program));
    DH_TRY(make_graphs(ctx, &spec.recipe, l));
    l->arena = dh_arena_create();
    if (!l->arena) return dh_no_memory(ctx);
    DH_TRY(dh_slot_of_graphs(ctx, l->arena, l->costs, &l->program->mesh, 0, l->graphs[0],
                             l->graphs[1], &l->slot));
    l->n = l->slot->strand[0].n + l->slot->strand[1].n;
    l->order = DH_NEW_N(l->arena, dh_slot_pick, l->n + 1);
    return l->order ? DH_OK : dh_no_memory(ctx);
}

void dh_layer_plan_close(dh_layer_plan *l)
{
    if (l->graphs[1] != l->graphs[0]) dh_graph_destroy(l->graphs[1]);
    dh_graph_destroy(l->graphs[0]);
    dh_program_destroy(l->program);
    dh_arena_destroy(l->arena);
}

/* ---- policies side by side ------------------------------------------------------------------ */

static dh_status time_policy(dh_ctx *ctx, dh_layer_plan *l, const dh_order_policy *policy,
                             dh_slot_timing *t)
{
    *t = (dh_slot_timing){0};
    DH_TRY(dh_slot_order(ctx, l->slot, policy, &l->ordering.options, l->order));
    return dh_slot_time(ctx, l->slot, l->order, t);
}

static json_t *policy_row(const dh_order_policy *policy, const dh_slot_timing *t, double first_ns)
{
    const double comm = t->communication_ns;
    return json_pack("{ss sf sf sf sf}", "policy", policy->name, "slot_us", t->period_ns / 1e3,
                     "speed_up", first_ns / t->period_ns, "exposed_us", t->exposed_ns / 1e3,
                     "hidden", comm > 0 ? 1 - t->exposed_ns / comm : 0.0);
}

dh_status dh_layer_plan_compare(dh_ctx *ctx, dh_layer_plan *l, json_t *rows)
{
    size_t n;
    double first_ns = 0;
    const dh_order_policy *policies = dh_order_policies(&n);
    for (size_t i = 0; i < n; i++) {
        dh_slot_timing t;
        DH_TRY(time_policy(ctx, l, &policies[i], &t));
        if (i == 0) first_ns = t.period_ns;
        if (json_array_append_new(rows, policy_row(&policies[i], &t, first_ns)) != 0)
            return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* ---- the job's order ------------------------------------------------------------------------- */

static const char *strand_of(const dh_slot_pick *pick, const dh_slot_op *op)
{
    return pick->strand == 0 ? "F" : op->wgrad ? "W" : "B";
}

static json_t *operator_json(const dh_layer_plan *l, uint32_t i, const dh_slot_timing *t)
{
    const dh_slot_pick *pick = &l->order[i];
    const dh_slot_op *op = &l->slot->strand[pick->strand].ops[pick->op];
    const uint32_t out = op->at.op->out[0];
    return json_pack("{sf sf sf ss ss ss ss}", "start_us", t->start_ns[i] / 1e3, "end_us",
                     t->end_ns[i] / 1e3, "alone_us", op->ns / 1e3, "stream",
                     dh_stream_name(op->stream), "strand", strand_of(pick, op), "operator",
                     dh_op_info_of(op->at.op->type)->name, "output",
                     out == DH_NONE ? "" : op->at.graph->tensors.at[out].name);
}

static dh_status list_operators(dh_ctx *ctx, dh_layer_plan *l, json_t *operators)
{
    dh_slot_timing t = {.start_ns = DH_NEW_N(l->arena, double, l->n + 1),
                        .end_ns = DH_NEW_N(l->arena, double, l->n + 1)};
    bool ok = t.start_ns && t.end_ns;
    if (ok) DH_TRY(dh_slot_time(ctx, l->slot, l->order, &t));
    for (uint32_t i = 0; ok && i < l->n; i++)
        ok = json_array_append_new(operators, operator_json(l, i, &t)) == 0;
    return ok ? DH_OK : dh_no_memory(ctx);
}

/* ---- memory of orders ----------------------------------------------------------------------- */

static json_t *point_json(const dh_limit_point *p)
{
    json_t *point = json_pack("{sI sf sb sb}", "memory_bytes", (json_int_t)p->peak_bytes, "step_ms",
                              (double)p->step_ns * 1e-6, "fits", (int)p->fits, "job", (int)p->own);
    if (point && p->bytes < 1e18)
        json_object_set_new(point, "limit_bytes", json_integer((json_int_t)p->bytes));
    else if (point && p->blocks < 1e6)
        json_object_set_new(point, "limit_blocks", json_real(p->blocks));
    return point;
}

static dh_status add_frontier(dh_ctx *ctx, const dh_resolved *job, json_t *document)
{
    dh_memory_frontier f;
    DH_TRY(dh_resolved_memory_frontier(ctx, job, &f));
    json_t *points = json_array();
    for (size_t i = 0; i < f.n; i++) json_array_append_new(points, point_json(&f.at[i]));
    json_t *memory = json_pack("{so}", "points", points);
    if (memory && f.room_bytes > 0)
        json_object_set_new(memory, "room_bytes", json_integer((json_int_t)f.room_bytes));
    return memory && json_object_set_new(document, "order_memory", memory) == 0 ? DH_OK
                                                                                : dh_no_memory(ctx);
}

/* ---- processors of communicators ------------------------------------------------------------- */

static json_t *groups_json(uint64_t groups)
{
    json_t *names = json_array();
    for (int g = 0; names && g < DH_N_GROUPS; g++)
        if (groups >> g & 1)
            json_array_append_new(names, json_string(dh_group_name((dh_group_kind)g)));
    return names;
}

static json_t *tried_json(const dh_link_choice *c, int stream)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < c->n_tried; i++)
        if ((int)c->tried[i].stream == stream)
            json_array_append_new(list, json_pack("{si sf}", "processors", c->tried[i].sms,
                                                  "step_ms", (double)c->tried[i].step_ns * 1e-6));
    return list;
}

static dh_status add_links(dh_ctx *ctx, const dh_resolved *job, json_t *document)
{
    dh_link_choice c;
    DH_TRY(dh_resolved_link_sms(ctx, job, &c));
    if (!c.known) return DH_OK;
    json_t *streams = json_array();
    for (int k = 0; streams && k < DH_N_STREAM; k++)
        if (c.groups[k])
            json_array_append_new(
                streams,
                json_pack("{ss si si so so}", "stream", dh_stream_name((dh_stream)k), "best",
                          c.sms.of[k], "full_with", c.sms.full[dh_stream_engine((dh_stream)k)],
                          "groups", groups_json(c.groups[k]), "tried", tried_json(&c, k)));
    json_t *links =
        json_pack("{si si sb sf sf sf sf so}", "processors", c.sms.processors, "held",
                  c.held ? dh_link_sms_held(&c.sms) : 0, "given", c.given, "step_ms",
                  (double)c.step_ns * 1e-6, "none_held_step_ms", (double)c.none_ns * 1e-6,
                  "best_held_step_ms", (double)c.held_ns * 1e-6, "full_step_ms",
                  (double)c.full_ns * 1e-6, "streams", streams);
    return links && json_object_set_new(document, "communicators", links) == 0 ? DH_OK
                                                                               : dh_no_memory(ctx);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static dh_status add_explained(dh_ctx *ctx, const dh_resolved *job, const dh_sim *sim,
                               dh_layer_plan *l, json_t *document)
{
    json_t *operators = json_array(), *traffic;
    json_object_set_new(document, "operators", operators);
    DH_TRY(dh_slot_order(ctx, l->slot, l->ordering.policy, &l->ordering.options, l->order));
    DH_TRY(list_operators(ctx, l, operators));
    DH_TRY(dh_cargo_slots_json(ctx, sim, &traffic));
    json_object_set_new(document, "traffic", traffic);
    const dh_timeline step = dh_train_mean_times(sim);
    json_object_set_new(document, "step_hidden_share", json_real(dh_timeline_hidden_share(&step)));
    DH_TRY(add_frontier(ctx, job, document));
    return add_links(ctx, job, document);
}

static void add_other(json_t *steps, const char *key, const char *gain_key,
                      const dh_beside_other *other)
{
    if (!other->known) return;
    json_object_set_new(steps, key, json_real((double)other->step_ns * 1e-6));
    json_object_set_new(steps, gain_key, json_string(dh_gain_name(other->gain)));
}

static dh_status add_beside(dh_ctx *ctx, const dh_resolved *job, json_t *document)
{
    dh_beside b;
    DH_TRY(dh_resolved_beside(ctx, job, &b));
    if (!b.sequential.known && !b.plain.known) return DH_OK;
    json_t *steps = json_pack("{sf sf ss}", "step_ms", (double)b.own_ns * 1e-6, "error", b.error,
                              "error_is", b.error_source);
    if (!steps || json_object_set_new(document, "predicted", steps) != 0) return dh_no_memory(ctx);
    add_other(steps, "sequential_ms", "beside_sequential", &b.sequential);
    add_other(steps, "plain_ms", "beside_plain", &b.plain);
    if (b.plain.known) json_object_set_new(steps, "plain_without", json_string(b.settings));
    return DH_OK;
}

dh_status dh_layer_plan_json(dh_ctx *ctx, const dh_resolved *job, const dh_sim *sim,
                             dh_layer_plan *l, json_t **made)
{
    json_t *rows = json_array();
    json_t *document =
        json_pack("{ss ss sf so}", "costs", l->costs->name, "policy", l->ordering.policy->name,
                  "bound_us", dh_slot_bound(l->slot) / 1e3, "policies", rows);
    dh_status st = document ? dh_layer_plan_compare(ctx, l, rows) : dh_no_memory(ctx);
    if (st == DH_OK) st = add_beside(ctx, job, document);
    if (st == DH_OK && sim) st = add_explained(ctx, job, sim, l, document);
    if (st == DH_OK)
        *made = document;
    else
        json_decref(document);
    return st;
}
