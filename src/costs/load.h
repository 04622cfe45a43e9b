/* Costs where tokens do not choose experts evenly.
 *
 * The ranks that share a layer's experts meet in every exchange of rows, so that each layer takes
 * as long as the rank that gets most. What the others' costs say holds for an even share. A load is
 * how many rows the busiest gets over that share, as a mean over layers and micro-batches: 1 is
 * even. It depends on how many ranks the experts are spread over, and is 1 on one of them. */
#ifndef DH_COSTS_LOAD_H
#define DH_COSTS_LOAD_H

#include "costs/costs.h"

typedef struct dh_expert_load {
    const char *name; /* for people: "1.5", "of runs/mine" */
    int64_t n_experts;
    const double *by_ranks; /* [n_experts + 1] by ranks that share the experts; 0: not known */
} dh_expert_load;

/* Where nothing but the busiest expert is known: the experts beside it on its rank share evenly
 * with all others what it leaves.
 * in        busiest: its rows over an even share
 * out       in the arena
 * errors    DH_EINVAL more than all tokens, each of which chooses an expert once; DH_ENOMEM */
dh_status dh_load_of_busiest(dh_ctx *ctx, dh_arena *arena, int64_t n_experts, int64_t top_k,
                             double busiest, dh_expert_load *load);
/* Costs in which what works on rows of experts, or carries them, takes `load` times as long.
 * borrows   plain, load's texts and numbers: until the arena is destroyed
 * errors    DH_ENOMEM */
dh_status dh_load_costs(dh_ctx *ctx, dh_arena *arena, const dh_costs *plain,
                        const dh_expert_load *load, const dh_costs **costs);

#endif
