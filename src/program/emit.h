/* Emission: turning (block, micro-batch, operator) triples into instructions.
 *
 * An emitter owns the program under construction. Callers choose the order; the
 * emitter resolves operands to buffers, decides which outputs accumulate, and
 * derives the waits between streams from data dependences. */
#ifndef DH_PROGRAM_EMIT_H
#define DH_PROGRAM_EMIT_H

#include "program/places.h"
#include "program/program.h"
#include "program/program_spec.h"

typedef struct dh_emitter dh_emitter;

/* Takes the spec by reference; program is empty except for mode, dtype and n_micro. */
dh_status dh_emitter_create(dh_ctx *ctx, const dh_program_spec *spec, dh_emitter **emitter);
void dh_emitter_destroy(dh_emitter *emitter); /* with the program, unless taken */
dh_program *dh_emitter_program(dh_emitter *emitter);

dh_shard dh_emit_shard(const dh_emitter *emitter);

/* Graph ownership moves to the program, also on failure. */
dh_status dh_emit_add_graph(dh_ctx *ctx, dh_emitter *e, dh_graph *graph, uint32_t *id);
/* Block instance; its parameters are added to the program's table, tied ones once. */
dh_status dh_emit_add_block(dh_ctx *ctx, dh_emitter *e, uint32_t graph, int layer, uint32_t *id);
dh_block *dh_emit_block(dh_emitter *e, uint32_t id);
/* Whether blocks that are added from here on are of a second copy of the model, beside the same
 * ones of the first: their parameters are apart from those. */
void dh_emit_again(dh_emitter *e, bool again);
/* Index of persistent bytes for DH_TENSOR_RANGE; DH_NONE for an absent operand. */
dh_status dh_emit_range(dh_ctx *ctx, dh_emitter *e, dh_operand operand, uint32_t *range);
/* An empty bucket of blocks whose parameters will lie together (dh_flat), their matrices in
 * n_pieces pieces; then its blocks, which must be of one data group. `after`: the block whose
 * backward completes the gradients of all that have joined so far. */
dh_status dh_emit_add_flat(dh_ctx *ctx, dh_emitter *e, int64_t n_pieces, uint32_t *id);
void dh_emit_join_flat(dh_emitter *e, uint32_t flat, uint32_t block, uint32_t after);
/* Sets dh_flat.frees. */
void dh_emit_flat_frees(dh_emitter *e, uint32_t flat, uint32_t frees);
/* Sets dh_flat.reduces_each, which holds where gradients of matrices do not persist. */
void dh_emit_flat_each(dh_emitter *e, uint32_t flat);
/* Sets dh_flat.first_copy of all flats of second copies. */
void dh_emit_match_copies(dh_emitter *e);
/* Ranks over which the distributed optimizer shards a block's parameters; without it 1. */
int64_t dh_emit_flat_shards(const dh_emitter *e, uint32_t block);
/* Cuts a flat's n_matrix elements into its n_pieces equal pieces, with padding; none without
 * matrices. */
void dh_emit_cut_flat(dh_flat *flat, int64_t shards);
static inline int64_t dh_flat_pad(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}
/* All blocks with parameters are in a flat: lays out the persistent buffers. */
dh_status dh_emit_layout(dh_ctx *ctx, dh_emitter *e);

#define DH_PHASES(...) dh_phases_((const dh_phase[]){__VA_ARGS__, DH_N_PHASE})
static inline unsigned dh_phases_(const dh_phase *list)
{
    unsigned mask = 0;
    for (; *list != DH_N_PHASE; list++) mask |= 1u << *list;
    return mask;
}

/* The operators of one block and micro-batch that are in the phases, in order. */
dh_status dh_emit_phases(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, unsigned phases);
dh_status dh_emit_op(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t op);
/* Everything emitted from here on, on any stream, starts after everything emitted so far. Sums over
 * two copies of the model are excepted. */
void dh_emit_barrier(dh_emitter *e);
/* No barrier waits for what has been emitted so far on streams of gradients and parameters, unless
 * something else follows it there. */
void dh_emit_no_barrier(dh_emitter *e);
/* The next instruction starts when this one is complete, whatever it uses, and those that were
 * named since the last instruction. */
void dh_emit_after(dh_emitter *e, uint32_t instr);
/* The residual stream (forward) or its gradient that leaves `from` enters `to`; either
 * may be a link. `from` need not have been emitted. */
dh_status dh_emit_bind(dh_ctx *ctx, dh_emitter *e, uint32_t from, uint32_t to, int32_t mb,
                       bool forward);
/* Output of block `from` in one micro-batch is the input of `to` in another, or the same. */
dh_status dh_emit_hand_on(dh_ctx *ctx, dh_emitter *e, uint32_t from, int32_t from_mb, uint32_t to,
                          int32_t to_mb);
/* Operand of a block's tensor, for naming the result. */
dh_status dh_emit_operand(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t tensor,
                          dh_operand *operand);

/* Lifetimes of all transient buffers and, unless placed is false, their offsets behind
 * the persistent ones (memory.c). places: found so far; may be NULL. */
dh_status dh_program_plan_memory(dh_ctx *ctx, dh_program *program, bool placed, dh_places *places);

#endif
