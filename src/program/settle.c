/* Arguments of passes that costs choose ("auto"): how many parts, of what.
 *
 * A choice is judged by the time that one more layer adds to a step. This is the layer's forward
 * and backward in the strategy's own order, timed as orders are (dh_slot_time). If cutting loses,
 * as with messages too small for their latency, the choice cuts least. Ranks have the same costs
 * and look at the same graph, the first rank's. So they agree. */
#include <stdlib.h>

#include "program/program_spec.h"

typedef struct settling {
    const dh_recipe *recipe;
    dh_pass_list own;     /* as the strategy has them */
    dh_graph_spec graphs; /* with the passes so far */
    dh_ordering ordering;
    dh_str why;
} settling;

static dh_status time_slot(dh_ctx *ctx, const settling *s, const dh_slot *slot, double *ns)
{
    dh_slot_timing timing = {.start_ns = NULL};
    dh_slot_pick *order = calloc((size_t)slot->strand[0].n + slot->strand[1].n + 1, sizeof *order);
    if (!order) return dh_no_memory(ctx);
    dh_status st = dh_slot_order(ctx, slot, s->ordering.policy, &s->ordering.options, order);
    if (st == DH_OK) st = dh_slot_time(ctx, slot, order, &timing);
    *ns = timing.period_ns;
    free(order);
    return st;
}

/* Either graph may be NULL. */
static dh_status time_strands(dh_ctx *ctx, const settling *s, const dh_graph *f, const dh_graph *b,
                              double *ns)
{
    const dh_costs *costs = s->recipe->costs ? s->recipe->costs : &dh_costs_default;
    dh_arena *arena = dh_arena_create();
    dh_slot *slot;
    if (!arena) return dh_no_memory(ctx);
    dh_status st = dh_slot_of_graphs(ctx, arena, costs, &s->graphs.mesh, 0, f, b, &slot);
    if (st == DH_OK) st = time_slot(ctx, s, slot, ns);
    dh_arena_destroy(arena);
    return st;
}

/* Whether to time both strands apart. An order in which they take turns would hide one's transfers
 * during the other, although the strategy makes no pairs. Other orders come to the same. */
static bool is_alone(const settling *s)
{
    const dh_order_policy *policy = s->ordering.policy;
    return !s->recipe->strategy->schedule && policy->order && !policy->fixed;
}

static dh_status time_layer(dh_ctx *ctx, const settling *s, const dh_graph *layer, double *ns)
{
    double backward_ns = 0;
    if (!is_alone(s)) return time_strands(ctx, s, layer, layer, ns);
    DH_TRY(time_strands(ctx, s, layer, NULL, ns));
    DH_TRY(time_strands(ctx, s, NULL, layer, &backward_ns));
    *ns += backward_ns;
    return DH_OK;
}

/* Of a layer with the passes as they are: the mean of the model's layers. */
static dh_status time_choice(dh_ctx *ctx, settling *s, double *ns)
{
    const dh_mesh *m = &s->graphs.mesh;
    const dh_model *model = &s->recipe->model;
    const dh_graph_rank first = {
        .shard = {.tp = m->tp, .ep = m->ep, .whole_experts = m->whole_experts}};
    const dh_layer_kinds kinds = dh_model_kinds(model, 0, model->n_layers);
    *ns = 0;
    for (int k = 0; k < kinds.n; k++) {
        dh_graph *layer;
        double own = 0;
        s->graphs.build.layer = kinds.layer[k];
        DH_TRY(dh_graph_make(ctx, &s->graphs, DH_BLOCK_LAYER, first, NULL, &layer));
        const dh_status st = time_layer(ctx, s, layer, &own);
        dh_graph_destroy(layer);
        if (st != DH_OK) return st;
        *ns += (double)kinds.count[k] / (double)model->n_layers * own;
    }
    return DH_OK;
}

static dh_status choose(dh_ctx *ctx, settling *s, int64_t *arg, const dh_pass_param *param)
{
    const int64_t *choices = param->choices;
    double least = 0;
    int64_t best = 0;
    for (int i = 0; choices[i]; i++) {
        double ns = 0;
        *arg = choices[i];
        DH_TRY(time_choice(ctx, s, &ns));
        if (i == 0) dh_str_printf(&s->why, "; %s ", param->name);
        dh_pass_param_put(param, *arg, &s->why);
        dh_str_printf(&s->why, ": %.4g us%s", ns * 1e-3, choices[i + 1] ? ", " : "");
        if (best && ns >= least) continue;
        best = *arg;
        least = ns;
    }
    *arg = best;
    return DH_OK;
}

static dh_status choose_all(dh_ctx *ctx, settling *s)
{
    int64_t *arg;
    const dh_pass_param *param;
    while (dh_pass_list_open(&s->graphs.passes, &arg, &param)) DH_TRY(choose(ctx, s, arg, param));
    return DH_OK;
}

/* All passes that the strategy names, with the choices. A pass that does not apply says why in
 * print. */
static dh_pass_list with_choices(const dh_pass_list *own, const dh_pass_list *chosen)
{
    dh_pass_list all = *own;
    for (int64_t i = 0; i < all.n; i++)
        for (int64_t k = 0; k < chosen->n; k++)
            if (chosen->at[k].pass == all.at[i].pass) all.at[i] = chosen->at[k];
    return all;
}

/* The strategy with what was chosen, under its name. */
static dh_status use(dh_ctx *ctx, dh_arena *arena, const settling *s, dh_recipe *recipe,
                     const char **why)
{
    const dh_pass_list all = with_choices(&s->own, &s->graphs.passes);
    *why = s->why.failed ? NULL : dh_arena_strdup(arena, s->why.text);
    if (!*why) return dh_no_memory(ctx);
    return dh_strategy_with(ctx, arena, recipe->strategy, &all, &recipe->strategy);
}

/* Ways that rows may go to experts. */
typedef struct ways {
    dh_dispatch dispatch[2];
    dh_tp_rows rows[2];
    int n_dispatch, n_rows;
} ways;

/* The ways of moe.dispatch. *why: the reason where auto has only one. */
static dh_status find_dispatches(dh_ctx *ctx, const dh_recipe *recipe, ways *w, const char **why)
{
    dh_group_stages stages;
    w->n_dispatch = 1;
    w->dispatch[0] = recipe->moe_dispatch;
    if (recipe->moe_dispatch == DH_DISPATCH_NODE)
        return dh_dispatch_by_node(ctx, &recipe->mesh, &stages);
    if (recipe->moe_dispatch == DH_DISPATCH_FLAT) return DH_OK;
    const char *obstacle = dh_mesh_dispatch_stages(&recipe->mesh, &stages);
    w->dispatch[0] = DH_DISPATCH_FLAT;
    w->dispatch[1] = DH_DISPATCH_NODE;
    w->n_dispatch = obstacle ? 1 : 2;
    if (obstacle) *why = obstacle;
    return DH_OK;
}

/* Those of parallel.expert_rows. */
static dh_status find_rows(dh_ctx *ctx, const dh_recipe *recipe, const dh_graph_spec *graphs,
                           ways *w, const char **why)
{
    const char *obstacle = dh_tp_rows_obstacle(graphs);
    w->n_rows = 1;
    w->rows[0] = recipe->expert_rows;
    if (recipe->expert_rows == DH_TP_ROWS_SHARED && obstacle)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "parallel.expert_rows=shared gives tensor-parallel ranks a share of each row to "
            "send, but %s: parallel.expert_rows=whole would be right",
            obstacle);
    if (recipe->expert_rows != DH_TP_ROWS_AUTO) return DH_OK;
    w->rows[0] = DH_TP_ROWS_WHOLE;
    w->rows[1] = DH_TP_ROWS_SHARED;
    w->n_rows = obstacle ? 1 : 2;
    if (obstacle) *why = obstacle;
    return DH_OK;
}

/* Whichever makes a layer shortest, each in the strategy's own order; of equal ones the first. */
static dh_status choose_way(dh_ctx *ctx, settling *s, const ways *w, dh_recipe *recipe)
{
    double least = 0;
    dh_str_printf(&s->why, "a layer's forward and backward by these costs");
    for (int i = 0; i < w->n_dispatch * w->n_rows; i++) {
        double ns;
        s->graphs.moe_dispatch = w->dispatch[i / w->n_rows];
        s->graphs.expert_rows = w->rows[i % w->n_rows];
        DH_TRY(time_choice(ctx, s, &ns));
        dh_str_printf(&s->why, "%s %s %s: %.4g us", i ? "," : ";",
                      s->graphs.moe_dispatch == DH_DISPATCH_NODE ? "node" : "flat",
                      s->graphs.expert_rows == DH_TP_ROWS_SHARED ? "shared" : "whole", ns * 1e-3);
        if (i && ns >= least) continue;
        least = ns;
        recipe->moe_dispatch = s->graphs.moe_dispatch;
        recipe->expert_rows = s->graphs.expert_rows;
    }
    return DH_OK;
}

dh_status dh_recipe_dispatch(dh_ctx *ctx, dh_arena *arena, dh_recipe *recipe, const char **why)
{
    const dh_program_spec spec = {.mode = DH_MODE_TRAIN, .recipe = *recipe};
    settling s = {.recipe = recipe, .graphs = dh_program_graph_spec(&spec), .why = DH_STR_INIT};
    ways w = {.n_dispatch = 0};
    *why = NULL;
    DH_TRY(find_dispatches(ctx, recipe, &w, why));
    DH_TRY(find_rows(ctx, recipe, &s.graphs, &w, why));
    recipe->moe_dispatch = w.dispatch[0];
    recipe->expert_rows = w.rows[0];
    if (w.n_dispatch * w.n_rows == 1 || !recipe->strategy) return DH_OK;
    DH_TRY(dh_recipe_ordering(ctx, recipe, &s.ordering));
    dh_status st = choose_way(ctx, &s, &w, recipe);
    if (st == DH_OK) {
        *why = s.why.failed ? NULL : dh_arena_strdup(arena, s.why.text);
        if (!*why) st = dh_no_memory(ctx);
    }
    dh_str_fini(&s.why);
    return st;
}

dh_status dh_recipe_settle(dh_ctx *ctx, dh_arena *arena, dh_recipe *recipe, const char **why)
{
    const dh_program_spec spec = {.mode = DH_MODE_TRAIN, .recipe = *recipe};
    settling s = {.recipe = recipe, .graphs = dh_program_graph_spec(&spec), .why = DH_STR_INIT};
    int64_t *arg;
    const dh_pass_param *param;
    *why = NULL;
    s.own = s.graphs.passes;
    s.graphs.passes = dh_pass_list_reduced(&s.graphs, &s.own);
    if (!recipe->strategy || !dh_pass_list_open(&s.graphs.passes, &arg, &param)) return DH_OK;
    DH_TRY(dh_recipe_ordering(ctx, recipe, &s.ordering));
    dh_str_printf(&s.why, "a layer's forward and backward by these costs");
    dh_status st = choose_all(ctx, &s);
    if (st == DH_OK) st = use(ctx, arena, &s, recipe, why);
    dh_str_fini(&s.why);
    return st;
}
