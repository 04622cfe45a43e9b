/* What the virtual stages of a recipe take, for schedules that are placed by times. */
#ifndef DH_PROGRAM_STAGE_COSTS_H
#define DH_PROGRAM_STAGE_COSTS_H

#include "program/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_stage_costs {
    dh_schedule_costs costs;
    int32_t wgrad_permille; /* of a layer's activations, still held between its I and its W */
} dh_stage_costs;

/* Of every virtual stage, on the first rank of each: all its operators one after the other, as
 * costs have them alone, communication included. in        recipe: with strategy and costs; its
 * schedule is not looked at out       costs in the arena errors    those of graphs and of layer
 * splits; DH_ENOMEM */
dh_status dh_stage_costs_find(dh_ctx *ctx, dh_arena *arena, const dh_recipe *recipe,
                              int32_t n_stages, dh_stage_costs *found);

#ifdef __cplusplus
}
#endif
#endif
