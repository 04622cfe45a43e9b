/* Recipes: what follows from their fields. */
#include "program/recipe.h"

dh_graph_spec dh_recipe_graphs(const dh_recipe *r)
{
    return (dh_graph_spec){
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
        .sharing = r->sharing,
        .moe_room = r->moe_capacity,
        .moe_dispatch = r->moe_dispatch,
        .expert_rows = r->expert_rows,
        .fuse_gelu = r->fuse_gelu,
        .passes = r->strategy ? r->strategy->passes : (dh_pass_list){.n = 0}};
}

dh_sequence dh_recipe_sequence(const dh_recipe *recipe)
{
    const dh_graph_spec graphs = dh_recipe_graphs(recipe);
    return dh_graph_sequence(&graphs);
}

bool dh_recipe_in_stages(const dh_recipe *recipe)
{
    const dh_graph_spec graphs = dh_recipe_graphs(recipe);
    return recipe->in_stages || dh_graph_in_stages(&graphs);
}

bool dh_recipe_stages_by_costs(const dh_recipe *recipe)
{
    const dh_graph_spec graphs = dh_recipe_graphs(recipe);
    return recipe->in_stages ? recipe->stages_by_costs : dh_graph_stages_by_costs(&graphs);
}

int64_t dh_recipe_stream_rows(const dh_recipe *recipe)
{
    const int64_t rows = recipe->micro_batch * (recipe->seq / recipe->mesh.cp);
    return dh_recipe_sequence(recipe) == DH_SEQUENCE_WHOLE ? rows : rows / recipe->mesh.tp;
}

dh_status dh_recipe_ordering(dh_ctx *ctx, const dh_recipe *recipe, dh_ordering *ordering)
{
    *ordering = recipe->ordering;
    if (ordering->policy) return DH_OK;
    DH_TRY(dh_strategy_ordering(ctx, recipe->strategy, ordering));
    ordering->cache = recipe->ordering.cache;
    return DH_OK;
}
