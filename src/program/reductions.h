/* After a rank's backward: which gradients are reduced together and when, and the optimizer. */
#ifndef DH_PROGRAM_REDUCTIONS_H
#define DH_PROGRAM_REDUCTIONS_H

#include "program/emit.h"
#include "program/program_spec.h"

/* Sums of gradients after a block's backward.
 *
 * STEP: the sums of the whole step at once. Where every micro-batch's gradients are reduced
 * (dh_flat.reduces_each) the others are used: FIRST for the stage's first micro-batch, NEXT for
 * further ones, LAST for its last one with all other sums. SETTLE follows a reduction: shards
 * are added to those of earlier micro-batches, and whole gradients are freed. */
typedef enum dh_sums {
    DH_SUMS_STEP,
    DH_SUMS_FIRST,
    DH_SUMS_NEXT,
    DH_SUMS_LAST,
    DH_SUMS_SETTLE_FIRST,
    DH_SUMS_SETTLE
} dh_sums;

/* A block of reductions: id, the block whose backward they follow, and which sums. */
typedef struct dh_reducing {
    uint32_t id, place; /* id DH_NONE: there are none */
    dh_sums which;
} dh_reducing;

typedef struct dh_reducer {
    dh_emitter *emitter;
    const dh_program_spec *spec;
    bool tied_apart;   /* embedding and head are tied and lie on ranks of different stages */
    bool reduces_each; /* every micro-batch's gradients are reduced */
    DH_VEC(dh_reducing) made;
} dh_reducer;

/* Elements [first, first + n) of a run of a flat; absent where the run is absent or n is 0. */
static inline dh_operand dh_flat_part(dh_operand run, int64_t first, int64_t n, size_t item)
{
    if (run.buffer == DH_NONE || n == 0) return (dh_operand){.buffer = DH_NONE};
    run.byte0 += (uint64_t)first * item;
    run.n_bytes = (uint64_t)n * item;
    return run;
}

/* buckets.c: puts the blocks of a virtual stage into flats. Neighbours share a flat while their
 * gradients fit recipe.bucket_bytes. All ranks of the stage get the same flats. Call it before
 * dh_emit_layout.
 * in        chain [n]: blocks in forward order, the experts before each layer
 *           frees: reductions run during the backward. Whole gradients of a bucket that do not
 *           persist are freed when the next bucket's are complete */
dh_status dh_reductions_plan(dh_ctx *ctx, const dh_reducer *r, const uint32_t *chain, size_t n,
                             bool frees);
/* buckets.c: sizes of the gradients of a block's own parameters on the first tensor-parallel
 * rank. Shards of the vocabulary and position embeddings may differ between ranks, and all ranks
 * of a stage must use the same sizes. */
typedef struct dh_weight {
    int64_t n_bytes, matrix_bytes;
    int64_t matrices;           /* how many */
    int64_t n_matrix, n_vector; /* elements in a flat, alignment included */
    int64_t n_replicated;       /* vector elements that all tensor-parallel ranks have */
    int64_t n_by_heads;         /* of them, those with gradients of own heads only */
} dh_weight;
dh_weight dh_reductions_weigh(const dh_reducer *r, uint32_t block);
/* recipe.bucket_bytes, or the default. */
int64_t dh_reductions_bucket_bytes(const dh_reducer *r);
dh_block_kind dh_reductions_kind(const dh_reducer *r, uint32_t block);
/* Whether the block's sums come last: both ends of a tied embedding meet after all their other
 * transfers. */
bool dh_reductions_last(const dh_reducer *r, uint32_t block);
/* Makes the reductions of gradients that are complete after the block's backward, as operators of a
 * block of their own, which the reducer keeps. With DH_SUMS_STEP they belong to no micro-batch;
 * others serve any.
 * out       *id: DH_NONE where there are none */
dh_status dh_reductions_add(dh_ctx *ctx, dh_reducer *r, uint32_t block, dh_sums which,
                            uint32_t *id);
/* The graph of a block of reductions on the first tensor-parallel rank, and the gradients that each
 * operator sums there. All ranks of a stage order a slot by it. It has the same operators and sizes
 * on all.
 * out       graph and sums [graph->ops.n] are the caller's */
dh_status dh_reductions_first(dh_ctx *ctx, const dh_reducer *r, uint32_t id, dh_graph **graph,
                              dh_operand **sums);
/* The place of a gradient on that rank; all vectors of a flat count as one. */
dh_operand dh_reductions_place(const dh_reducer *r, uint32_t param);
/* Adds and emits reductions of micro-batch mb; -1 with DH_SUMS_STEP. */
dh_status dh_reductions_emit(dh_ctx *ctx, dh_reducer *r, uint32_t block, dh_sums which, int32_t mb);
/* gaps.c: a tensor-parallel rank's part of a block's parameter; false: it has none. */
bool dh_reductions_shard(const dh_reducer *r, uint32_t block, uint32_t which, int64_t tp_rank,
                         dh_param *param);
/* Elements [begin, end) of a flat's matrices that belong to no parameter. */
typedef struct dh_gap {
    int64_t begin, end;
} dh_gap;
typedef DH_VEC(dh_gap) dh_gaps;
/* Gaps of a flat on a tensor-parallel rank, and the number of gaps on the rank with most.
 * out       gaps is the caller's, also on failure */
dh_status dh_reductions_gaps(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, int64_t tp_rank,
                             dh_gaps *gaps, size_t *n_most);
/* first_gathers.c: gathers shards that the optimizer of the previous step updated, in the order in
 * which a forward reads the parameters. Where the events of the step have them. */
dh_status dh_first_gathers_emit(dh_ctx *ctx, const dh_reducer *r);
/* sums_by_costs.c: kinds of data that a group of ranks shares. */
typedef enum dh_shared {
    DH_SHARED_SUM,    /* a sum of gradients, which all ranks get */
    DH_SHARED_SHARDS, /* a sum of which each rank gets its shard */
    DH_SHARED_GATHER  /* gathered shards, in compute precision */
} dh_shared;
/* Whether a group shares in stages by nodes, by the strategy's passes or by costs. The answer is
 * the same on all of its ranks, whose runs of parameters are multiples of DH_FLAT_ALIGN.
 * out       stages: set where *found */
dh_status dh_reductions_stages(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group,
                               dh_shared what, dh_group_stages *stages, bool *found);
dh_status dh_reductions_gather_stages(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group,
                                      dh_gather_stages *stages);
/* repeats.c: elements [begin, end) of a parameter, in its flat's matrices or vectors, that all
 * ranks of DH_GROUP_KV have. */
typedef struct dh_repeat {
    uint32_t param;
    int64_t begin, end;
} dh_repeat;
typedef DH_VEC(dh_repeat) dh_repeats;
/* Repeats of a flat's matrices, or of its vectors, in rising order.
 * out       list is the caller's, also on failure */
dh_status dh_flat_repeats(dh_ctx *ctx, const dh_program *program, uint32_t flat, bool matrices,
                          dh_repeats *list);
/* optimizer.c: emits the optimizer; *id is its block. */
dh_status dh_optimizer_emit(dh_ctx *ctx, const dh_reducer *r, uint32_t *id);

#endif
