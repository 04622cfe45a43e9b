/* Recipes: what follows from their fields. */
#include "program/recipe.h"

dh_status dh_recipe_ordering(dh_ctx *ctx, const dh_recipe *recipe, dh_ordering *ordering)
{
    *ordering = recipe->ordering;
    if (ordering->policy) return DH_OK;
    DH_TRY(dh_strategy_ordering(ctx, recipe->strategy, ordering));
    ordering->cache = recipe->ordering.cache;
    return DH_OK;
}
