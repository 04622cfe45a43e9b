/* CoCoNet's autotuner for a recipe: times by strategy/rewrites.h, memory beside them. */
#ifndef DH_PROGRAM_REWRITES_H
#define DH_PROGRAM_REWRITES_H

#include "program/recipe.h"
#include "strategy/rewrites.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every sequence of rewrites that the recipe may have, with its time and memory, and the best one.
 * The best is the shortest whose step fits, or the one that needs least if none fits. Memory is the
 * first stage's: persistent data, and activations of as many micro-batches as in 1F1B.
 * in        recipe: with costs; the passes of its strategy are not read
 *           memory_bytes: memory of a device; 0: not known, everything fits
 * errors    of layers and programs that cannot be built; DH_ENOMEM
 * cost      as dh_rewrites_find, and a program without micro-batches */
dh_status dh_recipe_rewrites(dh_ctx *ctx, const dh_recipe *recipe, double memory_bytes,
                             dh_rewrites *rewrites);

/* Choices that a recipe's strategy leaves to costs, and their reasons; in an arena. */
typedef struct dh_decided {
    const dh_rewrites *rewrites; /* the tried sequences of a strategy that searches; else NULL */
    const char *dispatch_why;    /* of moe.dispatch or parallel.expert_rows auto; NULL: said */
    const char *passes_why;      /* time of each choice of arguments; NULL: none was left open */
} dh_decided;

/* Memory is not looked at: sequences of rewrites are compared by time alone, and not measured. */
#define DH_BY_TIME_ALONE (-1.0)

/* Decides it all: the passes of a strategy that searches, then arguments that say auto
 * (dh_recipe_settle), then how rows travel to experts (dh_recipe_dispatch). The recipe's strategy is
 * then one in the arena that has them said.
 * in        recipe: with costs and strategy; memory_bytes: as dh_recipe_rewrites, or
 *           DH_BY_TIME_ALONE
 * errors    those of all; DH_ENOMEM */
dh_status dh_recipe_decide(dh_ctx *ctx, dh_arena *arena, dh_recipe *recipe, double memory_bytes,
                           dh_decided *decided);

#ifdef __cplusplus
}
#endif
#endif
