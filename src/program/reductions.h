/* What follows a rank's backward: which gradients are reduced together and when, and
 * the optimizer. */
#ifndef DH_PROGRAM_REDUCTIONS_H
#define DH_PROGRAM_REDUCTIONS_H

#include "program/emit.h"

typedef struct dh_reducer {
    dh_emitter *emitter;
    const dh_program_spec *spec;
    bool tied_apart; /* embedding and head are tied and lie on different stages' ranks */
} dh_reducer;

/* Puts the blocks of a virtual stage, in forward order and with the experts before each
 * layer, into flats: neighbours together while their gradients fit recipe.bucket_bytes.
 * All ranks of the stage come to the same flats. Before dh_emit_layout. */
dh_status dh_reductions_plan(dh_ctx *ctx, const dh_reducer *r, const uint32_t *chain, size_t n);
/* Both ends of a tied embedding meet when neither has transfers left to do. */
bool dh_reductions_last(const dh_reducer *r, uint32_t block);
/* The reductions of what is complete once the block's last backward is emitted. */
dh_status dh_reductions_emit(dh_ctx *ctx, const dh_reducer *r, uint32_t block);
/* Norm, clipping, update, gathering; *id is its block. */
dh_status dh_optimizer_emit(dh_ctx *ctx, const dh_reducer *r, uint32_t *id);

#endif
