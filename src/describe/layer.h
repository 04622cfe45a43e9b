/* Forward of one layer paired with the backward of another, on rank 0, by every policy. */
#ifndef DH_DESCRIBE_LAYER_H
#define DH_DESCRIBE_LAYER_H

#include <jansson.h>

#include "sim/simulate.h"
#include "train/resolve.h"

typedef struct dh_layer_plan {
    dh_arena *arena;
    dh_program *program;
    /* Graphs of the forward's and of the backward's layer; one graph where these are alike. */
    dh_graph *graphs[2];
    int64_t layer[2];
    const dh_model *model; /* the job's */
    dh_ordering ordering;
    const dh_costs *costs;
    dh_slot *slot;
    uint32_t n;
    dh_slot_pick *order; /* [n] */
} dh_layer_plan;

/* in        policy: instead of the job's; NULL: the job's
 *           layers: numbers of the layers whose forward and backward share the slot; NULL: for both
 *           the first layer of the most frequent kind
 * out       borrows the job; caller closes it, also after a failure
 * errors    DH_EINVAL no such layer */
dh_status dh_layer_plan_open(dh_ctx *ctx, const dh_resolved *job, const char *policy,
                             const int64_t *layers, dh_layer_plan *l);
void dh_layer_plan_close(dh_layer_plan *l);
/* A row for each policy, appended: name, a slot's time, exposed and hidden communication. */
dh_status dh_layer_plan_compare(dh_ctx *ctx, dh_layer_plan *l, json_t *rows);
/* The document. With a simulated step (sim, may be NULL) it also has the operators in the policy's
 * order, and the slots in which gradients and parameters travel.
 *
 * out       *made: caller releases; set only on DH_OK */
dh_status dh_layer_plan_json(dh_ctx *ctx, const dh_resolved *job, const dh_sim *sim,
                             dh_layer_plan *l, json_t **made);

#endif
