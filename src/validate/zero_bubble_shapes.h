/* Facts about its models that both of Zero Bubble's tables need. */
#ifndef DH_VALIDATE_ZERO_BUBBLE_SHAPES_H
#define DH_VALIDATE_ZERO_BUBBLE_SHAPES_H

#include "validate/job.h"

/* Share of an activation that waits for W behind its I: 32 b s h of b s (34 h + 5 a s) (table 1).
 * in        configs: zero_bubble_table3_configs */
dh_status dh_zero_bubble_held_share(dh_ctx *ctx, const dh_published *configs, size_t row,
                                    double *share);

#endif
