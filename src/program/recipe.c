/* Recipes: what follows from their fields. */
#include "program/recipe.h"

dh_status dh_recipe_graphs(dh_ctx *ctx, const dh_recipe *r, dh_graph_spec *graphs)
{
    *graphs = (dh_graph_spec){
        .build = {.model = &r->model,
                  .mode = DH_MODE_TRAIN,
                  .dtype = r->dtype,
                  .batch = r->micro_batch,
                  .seq = r->seq / r->mesh.cp,
                  .dropout = r->dropout,
                  .loss_scale = r->global_tokens > 0 ? 1.0 / (double)r->global_tokens : 1.0,
                  .head_chunk_bytes =
                      r->head_chunk_bytes ? r->head_chunk_bytes : DH_HEAD_CHUNK_BYTES,
                  .moe_capacity = r->moe_mode == DH_MOE_CAPACITY ? r->moe_capacity : 0,
                  .documents = r->documents,
                  .linear_ring = r->linear_ring,
                  .float_kv_grads = r->float_kv_grads,
                  .balances_routers = r->balances_routers,
                  .fp8 = r->fp8},
        .mesh = r->mesh,
        .recompute = r->recompute,
        .whole_tokens = r->whole_tokens,
        .zero = r->zero,
        .moe_room = r->moe_capacity,
        .fuse_gelu = r->fuse_gelu};
    return dh_strategy_passes(ctx, r->strategy, &graphs->passes);
}

dh_status dh_recipe_has_whole_tokens(dh_ctx *ctx, const dh_recipe *recipe, bool *whole)
{
    dh_graph_spec graphs;
    *whole = false;
    if (!recipe->whole_tokens) return DH_OK;
    DH_TRY(dh_recipe_graphs(ctx, recipe, &graphs));
    *whole = dh_graph_whole_tokens(&graphs);
    return DH_OK;
}

dh_status dh_recipe_in_stages(dh_ctx *ctx, const dh_recipe *recipe, bool *in_stages)
{
    dh_graph_spec graphs;
    DH_TRY(dh_recipe_graphs(ctx, recipe, &graphs));
    *in_stages = recipe->in_stages || dh_graph_in_stages(&graphs);
    return DH_OK;
}

dh_status dh_recipe_stages_by_costs(dh_ctx *ctx, const dh_recipe *recipe, bool *by_costs)
{
    dh_graph_spec graphs;
    DH_TRY(dh_recipe_graphs(ctx, recipe, &graphs));
    *by_costs = recipe->in_stages ? recipe->stages_by_costs : dh_graph_stages_by_costs(&graphs);
    return DH_OK;
}

dh_status dh_recipe_stream_rows(dh_ctx *ctx, const dh_recipe *recipe, int64_t *rows)
{
    bool whole;
    DH_TRY(dh_recipe_has_whole_tokens(ctx, recipe, &whole));
    *rows = recipe->micro_batch * (recipe->seq / recipe->mesh.cp);
    if (!whole) *rows /= recipe->mesh.tp;
    return DH_OK;
}

dh_status dh_recipe_ordering(dh_ctx *ctx, const dh_recipe *recipe, dh_ordering *ordering)
{
    *ordering = recipe->ordering;
    if (ordering->policy) return DH_OK;
    DH_TRY(dh_strategy_ordering(ctx, recipe->strategy, ordering));
    ordering->cache = recipe->ordering.cache;
    return DH_OK;
}
