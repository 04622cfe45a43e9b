/* Times of a recipe's virtual stages, for schedules that are placed by times. */
#ifndef DH_PROGRAM_STAGE_COSTS_H
#define DH_PROGRAM_STAGE_COSTS_H

#include "program/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_stage_costs {
    dh_schedule_costs costs;
    int32_t wgrad_permille; /* share of a layer's activations still held between its I and W */
} dh_stage_costs;

/* The time of every virtual stage on its first rank: its operators' solo times, with communication.
 * in        recipe: with strategy and costs; its schedule is not read
 * out       costs in the arena
 * errors    those of graphs and of layer splits; DH_ENOMEM */
dh_status dh_stage_costs_find(dh_ctx *ctx, dh_arena *arena, const dh_recipe *recipe,
                              int32_t n_stages, dh_stage_costs *found);

#ifdef __cplusplus
}
#endif
#endif
