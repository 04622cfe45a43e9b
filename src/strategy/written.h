/* An order in a file: a layer's forward and another's backward, an operator a line, in the order of
 * issue. `dhelix plan --write FILE` writes one, people may move its lines, and overlap.policy: FILE
 * is the policy that issues the layers of every slot by it (docs/reference/plan-export.md). */
#ifndef DH_STRATEGY_WRITTEN_H
#define DH_STRATEGY_WRITTEN_H

#include "strategy/strategy.h"

typedef struct dh_written_op {
    int32_t line; /* of the file */
    uint8_t strand;
    bool barrier;
    dh_op_type type;
    const char *output;
    uint32_t occurrence; /* among those of the strand with the same type and output */
} dh_written_op;

struct dh_written_order {
    const char *path;
    const dh_written_op *ops; /* [n] */
    uint32_t n;
    int64_t layer[2]; /* layer of the forward and of the backward; -1: not known */
};

/* In the arena.
 * errors    DH_EFORMAT with file and line; DH_EIO; DH_ENOMEM */
dh_status dh_written_order_read(dh_ctx *ctx, dh_arena *arena, const char *path,
                                const dh_written_order **order);
dh_status dh_written_order_parse(dh_ctx *ctx, dh_arena *arena, const char *text, size_t n_bytes,
                                 const char *path, const dh_written_order **order);
/* Whether it has every operator of a slot of two layers once, each after all that it needs.
 * errors    DH_EINVAL with file and line, and what would be right */
dh_status dh_written_order_check(dh_ctx *ctx, const dh_written_order *order, const dh_slot *slot);
/* Appends the text of an order of a slot of two layers.
 * in        order [n operators]; layer: numbers of both; about: of whom it is, a line
 * errors    those of dh_slot_time */
dh_status dh_written_order_print(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                                 const int64_t layer[2], const char *about, dh_str *out);
/* The policy of options that have an order. */
const dh_order_policy *dh_written_policy(void);

#endif
