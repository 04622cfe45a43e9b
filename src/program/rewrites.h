/* CoCoNet's autotuner for a recipe: times by strategy/rewrites.h, memory beside them. */
#ifndef DH_PROGRAM_REWRITES_H
#define DH_PROGRAM_REWRITES_H

#include "program/recipe.h"
#include "strategy/rewrites.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every sequence that the recipe may have, what it takes and keeps, and the best: the shortest
 * whose step fits, by what the first stage has beside activations and 1F1B's number of them. Where
 * none does, the one that needs least.
 * in        recipe: with costs; the passes of its strategy are not looked at
 *           memory_bytes: of a device; 0: not known, everything fits
 * errors    of layers and programs that cannot be built; DH_ENOMEM
 * cost      as dh_rewrites_find, and a program without micro-batches */
dh_status dh_recipe_rewrites(dh_ctx *ctx, const dh_recipe *recipe, double memory_bytes,
                             dh_rewrites *rewrites);

#ifdef __cplusplus
}
#endif
#endif
