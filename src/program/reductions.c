/* Reductions of gradients, and the optimizer.
 *
 * Gradients travel in buckets (Li et al. 2020, arXiv 2006.15704, 3.2.1): a backward goes
 * from the last block of a stage to its first, so blocks are collected from the end until a
 * bucket is full, and a bucket is reduced when its first block is through. A block larger
 * than a bucket goes in pieces, the last parameters first: each waits for no more than the
 * gradients in it. Sums are by element in a fixed order, so buckets change no bit of them. */
#include "program/reductions.h"

#include <stdlib.h>

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory building a program");
}

static const dh_mesh *mesh_of(const dh_reducer *r)
{
    return &r->spec->recipe.mesh;
}

static dh_block_kind kind_of(const dh_reducer *r, uint32_t block)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    return p->graphs.at[p->blocks.at[block].graph]->kind;
}

bool dh_reductions_last(const dh_reducer *r, uint32_t block)
{
    const dh_block_kind kind = kind_of(r, block);
    return r->tied_apart && (kind == DH_BLOCK_EMBED || kind == DH_BLOCK_HEAD);
}

/* ---- buckets -------------------------------------------------------------------------------- */

static int64_t bucket_bytes(const dh_reducer *r)
{
    return r->spec->recipe.bucket_bytes > 0 ? r->spec->recipe.bucket_bytes : DH_BUCKET_BYTES;
}

typedef struct weight {
    int64_t n_bytes, matrix_bytes;
} weight;

/* Gradients of a block's own parameters, as on the first tensor-parallel rank: shards of
 * the vocabulary and position embeddings may differ, but all ranks of a stage must agree. */
static weight weigh(const dh_reducer *r, uint32_t id)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_block *block = &p->blocks.at[id];
    const dh_shard first = {.tp = mesh_of(r)->tp, .ep = mesh_of(r)->ep};
    weight w = {0};
    for (uint32_t slot = 0; slot < DH_MAX_SLOT; slot++) {
        dh_param param;
        const uint32_t own = block->params[slot];
        if (!dh_param_describe(&r->spec->recipe.model, kind_of(r, id), block->layer, slot,
                               &param) ||
            !dh_param_shard(&param, first, &param) ||
            (own != DH_NONE && p->homes.at[own].block != id))
            continue;
        const int64_t n = dh_param_elements(&param) * (int64_t)sizeof(float);
        w.n_bytes += n;
        if (dh_param_is_matrix(&param)) w.matrix_bytes += n;
    }
    return w;
}

/* The flat being filled, of one data group. */
typedef struct bucket {
    uint32_t flat; /* DH_NONE: none */
    int64_t n_bytes;
} bucket;

static dh_status put(dh_ctx *ctx, const dh_reducer *r, bucket *b, uint32_t block, uint32_t after)
{
    const int64_t most = bucket_bytes(r);
    const weight w = weigh(r, block);
    if (w.n_bytes == 0) return DH_OK;
    const bool alone = dh_reductions_last(r, block);
    if (b->flat == DH_NONE || alone || b->n_bytes + w.n_bytes > most) {
        const int64_t n_pieces = DH_MAX((w.matrix_bytes + most - 1) / most, (int64_t)1);
        DH_TRY(dh_emit_add_flat(ctx, r->emitter, n_pieces, &b->flat));
        b->n_bytes = 0;
    }
    dh_emit_join_flat(r->emitter, b->flat, block, after);
    b->n_bytes += w.n_bytes;
    if (alone) b->flat = DH_NONE;
    return DH_OK;
}

/* The block of a layer's experts is the one before the layer. */
static bool has_experts(const dh_reducer *r, uint32_t block)
{
    return r->spec->recipe.model.n_experts > 0 && kind_of(r, block) == DH_BLOCK_LAYER;
}

dh_status dh_reductions_plan(dh_ctx *ctx, const dh_reducer *r, const uint32_t *chain, size_t n)
{
    bucket blocks = {.flat = DH_NONE}, experts = {.flat = DH_NONE};
    for (size_t i = n; i-- > 0;) {
        if (has_experts(r, chain[i])) DH_TRY(put(ctx, r, &experts, chain[i] - 1, chain[i]));
        DH_TRY(put(ctx, r, &blocks, chain[i], chain[i]));
    }
    return DH_OK;
}

/* ---- reductions ----------------------------------------------------------------------------- */

static dh_operand part_of(dh_operand whole, int64_t first, int64_t n, size_t item)
{
    if (whole.buffer == DH_NONE || n == 0) return (dh_operand){.buffer = DH_NONE};
    whole.byte0 += (uint64_t)first * item;
    whole.n_bytes = (uint64_t)n * item;
    return whole;
}

typedef DH_VEC(dh_grad_reduction) reduction_list;

static const dh_operand none = {.buffer = DH_NONE};

static dh_status add_reduction(dh_ctx *ctx, const dh_reducer *r, reduction_list *list,
                               dh_group_kind group, dh_operand all, dh_operand shard)
{
    if (all.buffer == DH_NONE || dh_mesh_group_size(mesh_of(r), group) == 1) return DH_OK;
    dh_grad_reduction made = {.group = (int32_t)group,
                              .n = (int64_t)(all.n_bytes / sizeof(float)),
                              .n_shard = (int64_t)(shard.n_bytes / sizeof(float)),
                              .addend = DH_NONE};
    DH_TRY(dh_emit_range(ctx, r->emitter, all, &made.range));
    DH_TRY(dh_emit_range(ctx, r->emitter, shard, &made.shard));
    return dh_vec_push(list, made) ? DH_OK : no_memory(ctx);
}

/* What the head on this rank has of the embedding's gradient. */
static dh_status add_own_tied(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f,
                              reduction_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const uint32_t tied = dh_program_state_buffer(p, DH_STATE_TIED_GRAD);
    if (tied == DH_NONE || kind_of(r, f->first_block) != DH_BLOCK_EMBED) return DH_OK;
    const dh_operand own = {.buffer = tied, .n_bytes = p->buffers.at[tied].n_bytes};
    const uint32_t param = p->blocks.at[f->first_block].params[DH_SLOT_WTE];
    dh_grad_reduction made = {
        .group = -1, .n = (int64_t)(own.n_bytes / sizeof(float)), .shard = DH_NONE};
    DH_TRY(dh_emit_range(ctx, r->emitter, p->homes.at[param].at[DH_BUF_GRAD], &made.range));
    DH_TRY(dh_emit_range(ctx, r->emitter, own, &made.addend));
    return dh_vec_push(list, made) ? DH_OK : no_memory(ctx);
}

/* The other end of a tied embedding has the rest of its gradient. */
static dh_status add_tied(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f, reduction_list *list)
{
    if (!dh_reductions_last(r, f->first_block)) return DH_OK;
    const dh_program *p = dh_emitter_program(r->emitter);
    const uint32_t slot =
        kind_of(r, f->first_block) == DH_BLOCK_HEAD ? DH_SLOT_HEAD_W : DH_SLOT_WTE;
    const uint32_t param = p->blocks.at[f->first_block].params[slot];
    return add_reduction(ctx, r, list, DH_GROUP_EMBED, p->homes.at[param].at[DH_BUF_GRAD], none);
}

/* Sums over the ranks that saw other samples or tokens. */
static dh_status add_data(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f, reduction_list *list)
{
    const dh_group_kind group =
        dh_program_data_group(dh_emitter_program(r->emitter), f->first_block);
    const dh_operand matrix = f->matrix[DH_BUF_GRAD], vector = f->vector[DH_BUF_GRAD];
    if (!r->spec->recipe.zero1 && f->n_pieces == 1 && vector.buffer != DH_NONE) {
        dh_operand both = matrix; /* they lie side by side */
        both.n_bytes += vector.n_bytes;
        return add_reduction(ctx, r, list, group, both, none);
    }
    for (int64_t k = f->n_pieces; k-- > 0;) {
        const dh_operand piece = part_of(matrix, k * f->n_piece, f->n_piece, sizeof(float));
        const dh_operand shard = part_of(piece, f->shard0, f->n_shard, sizeof(float));
        DH_TRY(add_reduction(ctx, r, list, group, piece, r->spec->recipe.zero1 ? shard : none));
    }
    return add_reduction(ctx, r, list, group, vector, none);
}

/* What one rank's gradients lack: where tensor parallelism splits the tokens, other shards'
 * part of vectors that it replicates; the other end of a tied embedding, and the other
 * data-parallel (and context-parallel) ranks' samples. */
static dh_status list_flat(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, reduction_list *list)
{
    const dh_flat f = dh_emitter_program(r->emitter)->flats.at[flat];
    const dh_operand replicated =
        part_of(f.vector[DH_BUF_GRAD], f.replicated0, f.n_vector - f.replicated0, sizeof(float));
    DH_TRY(add_own_tied(ctx, r, &f, list));
    if (!r->spec->recipe.whole_tokens)
        DH_TRY(add_reduction(ctx, r, list, DH_GROUP_TP, replicated, none));
    DH_TRY(add_tied(ctx, r, &f, list));
    return add_data(ctx, r, &f, list);
}

static dh_status emit_list(dh_ctx *ctx, const dh_reducer *r, const reduction_list *list)
{
    dh_graph *g;
    uint32_t graph, id;
    if (list->n == 0) return DH_OK;
    DH_TRY(dh_graph_build_reductions(ctx, list->at, list->n, &g));
    DH_TRY(dh_emit_add_graph(ctx, r->emitter, g, &graph));
    DH_TRY(dh_emit_add_block(ctx, r->emitter, graph, 0, &id));
    return dh_emit_phases(ctx, r->emitter, id, -1, DH_PHASES(DH_PHASE_W));
}

dh_status dh_reductions_emit(dh_ctx *ctx, const dh_reducer *r, uint32_t block)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    reduction_list list = {0};
    dh_status st = DH_OK;
    for (uint32_t f = 0; st == DH_OK && f < p->flats.n; f++)
        if (p->flats.at[f].after == block) st = list_flat(ctx, r, f, &list);
    if (st == DH_OK) st = emit_list(ctx, r, &list);
    dh_vec_fini(&list);
    return st;
}

/* ---- optimizer ------------------------------------------------------------------------------ */

typedef DH_VEC(dh_opt_region) region_list;

static dh_status range_of(dh_ctx *ctx, const dh_reducer *r, dh_operand whole, int64_t first,
                          int64_t n, size_t item, uint32_t *range)
{
    return dh_emit_range(ctx, r->emitter, part_of(whole, first, n, item), range);
}

/* Elements [first, first + n) of a flat's matrices, of which moments (and masters, beside
 * copies in compute precision) lie at `kept`. */
static dh_status place_matrix_region(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f,
                                     int64_t first, int64_t kept, dh_opt_region *region)
{
    const bool wide = r->spec->recipe.dtype != DH_F32;
    const size_t item = dh_dtype_bytes(r->spec->recipe.dtype);
    const int64_t n = region->n;
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_GRAD], first, n, sizeof(float), &region->grad));
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_MASTER], wide ? kept : first, n, sizeof(float),
                    &region->master));
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_ADAM_M], kept, n, sizeof(float), &region->adam_m));
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_ADAM_V], kept, n, sizeof(float), &region->adam_v));
    return range_of(ctx, r, f->matrix[DH_BUF_COPY], first, n, item, &region->copy);
}

/* All matrices of a flat, or the rank's shard of each piece. */
static dh_status add_matrix_regions(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, bool counts,
                                    region_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_flat f = p->flats.at[flat];
    const bool wide = r->spec->recipe.dtype != DH_F32, sharded = f.n_shard < f.n_piece;
    const bool tied_copy = r->tied_apart && kind_of(r, f.first_block) == DH_BLOCK_HEAD;
    const int64_t n_regions = sharded ? f.n_pieces : f.n_matrix > 0;
    for (int64_t k = 0; k < n_regions; k++) {
        dh_opt_region region = {.flat = flat,
                                .n = sharded ? f.n_shard : f.n_matrix,
                                .decay = true,
                                .counts = counts && !tied_copy,
                                .n_gathered = f.n_piece,
                                .group = (int32_t)dh_program_data_group(p, f.first_block),
                                .gather = DH_NONE};
        DH_TRY(place_matrix_region(ctx, r, &f, k * f.n_piece + f.shard0, k * f.n_shard, &region));
        if (sharded)
            DH_TRY(range_of(ctx, r, f.matrix[wide ? DH_BUF_COPY : DH_BUF_MASTER], k * f.n_piece,
                            f.n_piece, wide ? dh_dtype_bytes(r->spec->recipe.dtype) : sizeof(float),
                            &region.gather));
        if (!dh_vec_push(list, region)) return no_memory(ctx);
    }
    return DH_OK;
}

static dh_status add_vector_region(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, int64_t first,
                                   int64_t end, bool counts, region_list *list)
{
    const dh_flat f = dh_emitter_program(r->emitter)->flats.at[flat];
    const int64_t n = end - first;
    dh_opt_region region = {.flat = flat,
                            .n = n,
                            .decay = first >= f.decayed0,
                            .counts = counts,
                            .copy = DH_NONE,
                            .gather = DH_NONE};
    if (n == 0) return DH_OK;
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_GRAD], first, n, sizeof(float), &region.grad));
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_MASTER], first, n, sizeof(float), &region.master));
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_ADAM_M], first, n, sizeof(float), &region.adam_m));
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_ADAM_V], first, n, sizeof(float), &region.adam_v));
    return dh_vec_push(list, region) ? DH_OK : no_memory(ctx);
}

/* Ranks over which the gradient norm is summed: those of one copy of the weights, or
 * everyone with the distributed optimizer. */
static dh_group_kind norm_group(const dh_reducer *r)
{
    if (r->spec->recipe.zero1) return DH_GROUP_WORLD;
    return mesh_of(r)->ep > 1 ? DH_GROUP_TP_EP_PP : DH_GROUP_TP_PP;
}

/* An element counts in the gradient norm on exactly one rank of that group. Ranks that
 * differ in their experts have the other weights alike. */
static dh_status list_regions(dh_ctx *ctx, const dh_reducer *r, region_list *list)
{
    const dh_mesh *m = mesh_of(r);
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_coord c = dh_mesh_coord(m, r->spec->rank);
    const bool zero1 = r->spec->recipe.zero1, first_tp = c.tp == 0;
    const bool counts =
        zero1 ? dh_mesh_group_index(m, DH_GROUP_DP_CP, r->spec->rank) == 0 : c.ep == 0;
    for (uint32_t i = 0; i < p->flats.n; i++) {
        const dh_flat f = p->flats.at[i];
        const bool experts = dh_program_data_group(p, f.first_block) == DH_GROUP_EDP_CP;
        DH_TRY(add_matrix_regions(ctx, r, i, counts || zero1 || experts, list));
        DH_TRY(add_vector_region(ctx, r, i, 0, f.replicated0, counts, list));
        DH_TRY(add_vector_region(ctx, r, i, f.replicated0, f.decayed0, counts && first_tp, list));
        DH_TRY(add_vector_region(ctx, r, i, f.decayed0, f.n_vector, counts && first_tp, list));
    }
    return DH_OK;
}

dh_status dh_optimizer_emit(dh_ctx *ctx, const dh_reducer *r, uint32_t *id)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_group_kind norm = norm_group(r);
    region_list list = {0};
    dh_graph *g;
    uint32_t graph;
    dh_status st = list_regions(ctx, r, &list);
    if (st == DH_OK)
        st = dh_graph_build_optimizer(ctx, list.at, list.n, p->dtype,
                                      dh_mesh_group_size(mesh_of(r), norm) > 1 ? (int32_t)norm : -1,
                                      &g);
    dh_vec_fini(&list);
    DH_TRY(st);
    DH_TRY(dh_emit_add_graph(ctx, r->emitter, g, &graph));
    DH_TRY(dh_emit_add_block(ctx, r->emitter, graph, 0, id));
    return dh_emit_phases(ctx, r->emitter, *id, -1, DH_PHASES(DH_PHASE_OPT));
}
