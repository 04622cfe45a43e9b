/* Costs where tokens do not choose experts evenly.
 *
 * The ranks that share a layer's experts meet in every exchange of rows. Each layer therefore
 * takes as long as the rank with most rows. Other costs hold for an even share. A load is the
 * number of rows of the busiest rank over that share, as a mean over layers and micro-batches; 1
 * is even. It depends on the number of ranks that share the experts, and is 1 for one rank. */
#ifndef DH_COSTS_LOAD_H
#define DH_COSTS_LOAD_H

#include "costs/costs.h"

typedef struct dh_expert_load {
    const char *name; /* for people: "1.5", "of runs/mine" */
    int64_t n_experts;
    const double *by_ranks; /* [n_experts + 1] by ranks that share the experts; 0: not known */
} dh_expert_load;

/* For a known load of the busiest expert alone. All other experts, also those on its rank, then
 * share the remaining rows evenly.
 * in        busiest: rows of the busiest expert over an even share
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
