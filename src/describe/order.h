/* The order of a layer's forward beside another's backward, for other programs to follow. */
#ifndef DH_DESCRIBE_ORDER_H
#define DH_DESCRIBE_ORDER_H

#include "describe/layer.h"

/* The document of docs/reference/plan-export.md.
 * out       *made: caller releases; set only on DH_OK
 * cost      O(operators^2) */
dh_status dh_order_json(dh_ctx *ctx, const dh_resolved *job, dh_layer_plan *l, json_t **made);

#endif
