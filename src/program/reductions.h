/* What follows a rank's backward: which gradients are reduced together and when, and
 * the optimizer. */
#ifndef DH_PROGRAM_REDUCTIONS_H
#define DH_PROGRAM_REDUCTIONS_H

#include "program/emit.h"
#include "program/program_spec.h"

/* Which of the sums of gradients a block's backward completes. Those of a step come at once; or
 * where every micro-batch's are reduced (dh_flat.each_micro) those of the stage's first one, of
 * further ones, and of its last one with all else. What is settled later has been reduced: shards
 * are added to those of micro-batches before, and whole gradients go. */
typedef enum dh_sums {
    DH_SUMS_STEP,
    DH_SUMS_FIRST,
    DH_SUMS_NEXT,
    DH_SUMS_LAST,
    DH_SUMS_SETTLE_FIRST,
    DH_SUMS_SETTLE
} dh_sums;

/* A block of reductions: whose backward they come behind, and which. */
typedef struct dh_reducing {
    uint32_t id, place; /* id DH_NONE: there are none */
    dh_sums which;
} dh_reducing;

typedef struct dh_reducer {
    dh_emitter *emitter;
    const dh_program_spec *spec;
    bool tied_apart; /* embedding and head are tied and lie on different stages' ranks */
    bool each_micro; /* every micro-batch's gradients are reduced */
    DH_VEC(dh_reducing) made;
} dh_reducer;

/* Elements [first, first + n) of a run of a flat; absent where that is, or n is 0. */
static inline dh_operand dh_flat_part(dh_operand run, int64_t first, int64_t n, size_t item)
{
    if (run.buffer == DH_NONE || n == 0) return (dh_operand){.buffer = DH_NONE};
    run.byte0 += (uint64_t)first * item;
    run.n_bytes = (uint64_t)n * item;
    return run;
}

/* buckets.c: puts the blocks of a virtual stage, in forward order and with the experts before each
 * layer, into flats: neighbours together while their gradients fit recipe.bucket_bytes.
 * All ranks of the stage come to the same flats. frees: reductions go on while the backward does,
 * and a bucket's whole gradients, where they do not persist, go when the next one's are there.
 * Before dh_emit_layout. */
dh_status dh_reductions_plan(dh_ctx *ctx, const dh_reducer *r, const uint32_t *chain, size_t n,
                             bool frees);
/* buckets.c: gradients of a block's own parameters, as on the first tensor-parallel rank: shards of
 * the vocabulary and position embeddings may differ, but all ranks of a stage must agree. */
typedef struct dh_weight {
    int64_t n_bytes, matrix_bytes;
    int64_t n_matrix, n_vector; /* elements as they lie in a flat */
    int64_t n_replicated;       /* of the vectors: those that all tensor-parallel ranks have */
    int64_t n_by_heads;         /* of these: gradients are of own heads */
} dh_weight;
dh_weight dh_reductions_weigh(const dh_reducer *r, uint32_t block);
/* recipe.bucket_bytes, or the usual. */
int64_t dh_reductions_bucket_bytes(const dh_reducer *r);
dh_block_kind dh_reductions_kind(const dh_reducer *r, uint32_t block);
/* Both ends of a tied embedding meet when neither has transfers left to do. */
bool dh_reductions_last(const dh_reducer *r, uint32_t block);
/* The reductions of what is complete once the block's backward is emitted, as operators of a block
 * of their own, which the reducer keeps. With DH_SUMS_STEP they belong to no micro-batch; others
 * serve any. *id DH_NONE: there are none. */
dh_status dh_reductions_add(dh_ctx *ctx, dh_reducer *r, uint32_t block, dh_sums which,
                            uint32_t *id);
/* The graph of such a block as the first tensor-parallel rank has it, the same operators of the
 * same sizes on all ranks of a stage, which order a slot by it; and the gradients that each sums,
 * as they lie there. graph and sums [graph->ops.n] are the caller's. */
dh_status dh_reductions_first(dh_ctx *ctx, const dh_reducer *r, uint32_t id, dh_graph **graph,
                              dh_operand **sums);
/* Where on that rank a gradient lies: all vectors of a flat as one. */
dh_operand dh_reductions_place(const dh_reducer *r, uint32_t param);
/* Adds and emits them, of micro-batch mb; -1 with DH_SUMS_STEP. */
dh_status dh_reductions_emit(dh_ctx *ctx, dh_reducer *r, uint32_t block, dh_sums which, int32_t mb);
/* gaps.c: a block's parameter as a tensor-parallel rank has it; false: it has none of it. */
bool dh_reductions_shard(const dh_reducer *r, uint32_t block, uint32_t which, int64_t tp_rank,
                         dh_param *param);
/* Elements [begin, end) of a flat's matrices that are no parameter's. */
typedef struct dh_gap {
    int64_t begin, end;
} dh_gap;
typedef DH_VEC(dh_gap) dh_gaps;
/* Those of a flat as a tensor-parallel rank has it, and how many the rank with most of them has.
 * gaps is the caller's, also on failure. */
dh_status dh_reductions_gaps(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, int64_t tp_rank,
                             dh_gaps *gaps, size_t *n_most);
/* regathers.c: the shards that the optimizer of the step before has updated, gathered in the order
 * in which a forward reads the parameters. None with ZeRO-0, and where the optimizer gathers. */
dh_status dh_regathers_emit(dh_ctx *ctx, const dh_reducer *r);
/* sums_by_costs.c: what a group of ranks shares. */
typedef enum dh_shared {
    DH_SHARED_SUM,    /* of gradients, which all have */
    DH_SHARED_SHARDS, /* of which each has its shard */
    DH_SHARED_GATHER  /* of shards, in compute precision */
} dh_shared;
/* Whether a group shares in stages by nodes, as the strategy's passes or costs say: the same on all
 * of its ranks, whose runs of parameters are multiples of DH_FLAT_ALIGN. stages: set where found.
 */
dh_status dh_reductions_stages(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group,
                               dh_shared what, dh_group_stages *stages, bool *found);
dh_status dh_reductions_gather_stages(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group,
                                      dh_gather_stages *stages);
/* repeats.c: a parameter's elements [begin, end) of its flat's matrices or vectors that the ranks
 * of DH_GROUP_KV have alike. */
typedef struct dh_repeat {
    uint32_t param;
    int64_t begin, end;
} dh_repeat;
typedef DH_VEC(dh_repeat) dh_repeats;
/* Those of a flat's matrices, or of its vectors, from the first on. list is the caller's, also on
 * failure. */
dh_status dh_flat_repeats(dh_ctx *ctx, const dh_program *program, uint32_t flat, bool matrices,
                          dh_repeats *list);
/* optimizer.c: *id is its block. */
dh_status dh_optimizer_emit(dh_ctx *ctx, const dh_reducer *r, uint32_t *id);

#endif
