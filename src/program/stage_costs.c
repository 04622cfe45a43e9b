/* Times of stages: sums over the graphs of their blocks. */
#include "program/stage_costs.h"

#include <math.h>

#include "program/block_lives.h"
#include "program/build.h"

/* ---- a graph -------------------------------------------------------------------------------- */

typedef struct block_ns {
    double of[DH_N_PHASE];
} block_ns;

static block_ns sum_ops(const dh_recipe *r, const dh_graph *g)
{
    block_ns sum = {{0}};
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_cost_op at = {g, &g->ops.at[i], &r->mesh, 0};
        sum.of[at.op->phase] += r->costs->solo(r->costs->self, &at).ns;
    }
    return sum;
}

static dh_status time_block(dh_ctx *ctx, const dh_recipe *r, dh_block_kind kind, int64_t layer,
                            block_ns *ns, dh_block_lives *lives)
{
    const dh_program_spec spec = {.recipe = *r};
    const dh_shard first = {
        .tp = r->mesh.tp, .ep = r->mesh.ep, .whole_experts = r->mesh.whole_experts};
    dh_graph *g;
    DH_TRY(plan_build_graph(ctx, &spec, kind, layer, first, 0, &g));
    *ns = sum_ops(r, g);
    const dh_status st = dh_block_lives_find(ctx, g, r->backend, lives);
    dh_graph_destroy(g);
    return st;
}

static dh_status time_link(dh_ctx *ctx, const dh_recipe *r, double *ns)
{
    dh_graph *g;
    DH_TRY(dh_graph_build_link(ctx, true, DH_GROUP_PP, dh_recipe_stream_rows(r), r->model.width,
                               r->dtype, r->model.n_experts, &g));
    *ns = sum_ops(r, g).of[DH_PHASE_F];
    dh_graph_destroy(g);
    return DH_OK;
}

/* ---- stages --------------------------------------------------------------------------------- */

static void add_block(const block_ns *ns, int64_t times, dh_stage_cost *c)
{
    c->f_ns += times * llround(ns->of[DH_PHASE_F]);
    c->i_ns += times * llround(ns->of[DH_PHASE_B]);
    c->w_ns += times * llround(ns->of[DH_PHASE_W]);
}

/* Layers, by kind. */
typedef struct layer_times {
    block_ns ns[DH_N_LAYER_KINDS]; /* by dh_model_layer_kind */
    double wgrad_share;            /* mean of all layers */
} layer_times;

static dh_status time_layers(dh_ctx *ctx, const dh_recipe *r, layer_times *t)
{
    const dh_layer_kinds kinds = dh_model_kinds(&r->model, 0, r->model.n_layers);
    t->wgrad_share = 0;
    for (int k = 0; k < kinds.n; k++) {
        const unsigned kind = dh_model_layer_kind(&r->model, kinds.layer[k]);
        dh_block_lives lives;
        DH_TRY(time_block(ctx, r, DH_BLOCK_LAYER, kinds.layer[k], &t->ns[kind], &lives));
        t->wgrad_share +=
            (double)kinds.count[k] / (double)r->model.n_layers * dh_block_lives_wgrad_share(&lives);
    }
    return DH_OK;
}

/* Of layers [first, first + n). */
static void add_layers(const dh_recipe *r, const layer_times *t, int64_t first, int64_t n,
                       dh_stage_cost *c)
{
    const dh_layer_kinds kinds = dh_model_kinds(&r->model, first, n);
    for (int k = 0; k < kinds.n; k++)
        add_block(&t->ns[dh_model_layer_kind(&r->model, kinds.layer[k])], kinds.count[k], c);
}

dh_status dh_stage_costs_find(dh_ctx *ctx, dh_arena *arena, const dh_recipe *recipe,
                              int32_t n_stages, dh_stage_costs *found)
{
    block_ns embed, head;
    layer_times times;
    dh_block_lives of_end;
    double link_ns;
    int64_t *layers = DH_NEW_N(arena, int64_t, n_stages), first = 0;
    dh_stage_cost *stages = DH_NEW_N(arena, dh_stage_cost, n_stages);
    if (!layers || !stages) return dh_no_memory(ctx);
    DH_TRY(dh_layer_split(ctx, recipe->model.n_layers, n_stages,
                          recipe->layer_split ? recipe->layer_split : "", layers));
    DH_TRY(time_block(ctx, recipe, DH_BLOCK_EMBED, 0, &embed, &of_end));
    DH_TRY(time_layers(ctx, recipe, &times));
    DH_TRY(time_block(ctx, recipe, DH_BLOCK_HEAD, 0, &head, &of_end));
    DH_TRY(time_link(ctx, recipe, &link_ns));
    for (int32_t v = 0; v < n_stages; first += layers[v++]) {
        add_layers(recipe, &times, first, layers[v], &stages[v]);
        if (v == 0) add_block(&embed, 1, &stages[v]);
        if (v == n_stages - 1) add_block(&head, 1, &stages[v]);
    }
    const int32_t share = (int32_t)(times.wgrad_share * 1000 + .5);
    *found = (dh_stage_costs){.costs = {.stage = stages, .p2p_ns = llround(link_ns)},
                              .wgrad_permille = DH_MAX(share, 1)};
    return DH_OK;
}
