/* Times of stages: sums over the graphs of their blocks. */
#include "program/stage_costs.h"

#include <math.h>

#include "program/block_lives.h"
#include "program/build.h"

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory timing stages");
}

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

static dh_status time_block(dh_ctx *ctx, const dh_recipe *r, dh_block_kind kind, block_ns *ns,
                            dh_block_lives *lives)
{
    const dh_program_spec spec = {.recipe = *r};
    const dh_shard first = {
        .tp = r->mesh.tp, .ep = r->mesh.ep, .whole_experts = r->mesh.whole_experts};
    dh_graph *g;
    DH_TRY(plan_build_graph(ctx, &spec, kind, first, 0, &g));
    *ns = sum_ops(r, g);
    const dh_status st = dh_block_lives_find(ctx, g, r->backend, lives);
    dh_graph_destroy(g);
    return st;
}

static dh_status time_link(dh_ctx *ctx, const dh_recipe *r, double *ns)
{
    dh_graph *g;
    int64_t rows;
    DH_TRY(dh_recipe_stream_rows(ctx, r, &rows));
    DH_TRY(dh_graph_build_link(ctx, true, rows, r->model.width, r->dtype, r->model.n_experts, &g));
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

dh_status dh_stage_costs_find(dh_ctx *ctx, dh_arena *arena, const dh_recipe *recipe,
                              int32_t n_stages, dh_stage_costs *found)
{
    block_ns embed, layer, head;
    dh_block_lives lives, of_end;
    double link_ns;
    int64_t *layers = DH_NEW_N(arena, int64_t, n_stages);
    dh_stage_cost *stages = DH_NEW_N(arena, dh_stage_cost, n_stages);
    if (!layers || !stages) return no_memory(ctx);
    DH_TRY(dh_layer_split(ctx, recipe->model.n_layers, n_stages,
                          recipe->layer_split ? recipe->layer_split : "", layers));
    DH_TRY(time_block(ctx, recipe, DH_BLOCK_EMBED, &embed, &of_end));
    DH_TRY(time_block(ctx, recipe, DH_BLOCK_LAYER, &layer, &lives));
    DH_TRY(time_block(ctx, recipe, DH_BLOCK_HEAD, &head, &of_end));
    DH_TRY(time_link(ctx, recipe, &link_ns));
    for (int32_t v = 0; v < n_stages; v++) {
        add_block(&layer, layers[v], &stages[v]);
        if (v == 0) add_block(&embed, 1, &stages[v]);
        if (v == n_stages - 1) add_block(&head, 1, &stages[v]);
    }
    const int32_t share = (int32_t)(dh_block_lives_wgrad_share(&lives) * 1000 + .5);
    *found = (dh_stage_costs){.costs = {.stage = stages, .p2p_ns = llround(link_ns)},
                              .wgrad_permille = DH_MAX(share, 1)};
    return DH_OK;
}
