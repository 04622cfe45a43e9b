/* The optimizer of a rank: norm, clipping, update, gathering. */
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

typedef DH_VEC(dh_opt_region) region_list;

static dh_status range_of(dh_ctx *ctx, const dh_reducer *r, dh_operand whole, int64_t first,
                          int64_t n, size_t item, uint32_t *range)
{
    return dh_emit_range(ctx, r->emitter, dh_flat_part(whole, first, n, item), range);
}

/* Elements [first, first + n) of a flat's matrices, of which moments (and masters, beside
 * copies in compute precision) lie at `kept`. */
static dh_status place_matrix_region(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f,
                                     int64_t first, int64_t kept, dh_opt_region *region)
{
    const bool wide = r->spec->recipe.dtype != DH_F32;
    const size_t item = dh_dtype_bytes(r->spec->recipe.dtype);
    const int64_t n = region->n;
    const bool early = f->reduced.buffer != DH_NONE;
    DH_TRY(range_of(ctx, r, early ? f->reduced : f->matrix[DH_BUF_GRAD], early ? kept : first, n,
                    sizeof(float), &region->grad));
    const bool shards = r->spec->recipe.zero >= 3 && f->n_shard < f->n_piece;
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_MASTER], wide || shards ? kept : first, n,
                    sizeof(float), &region->master));
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_ADAM_M], kept, n, sizeof(float), &region->adam_m));
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_ADAM_V], kept, n, sizeof(float), &region->adam_v));
    return range_of(ctx, r, f->matrix[DH_BUF_COPY], shards ? kept : first, n, item, &region->copy);
}

/* A flat as the optimizer reads it: a second copy of the model steps by the sum of both copies'
 * gradients, with moments of its own, as data-parallel ranks do, so that it stays equal. */
static dh_flat flat_of(const dh_program *p, uint32_t flat)
{
    dh_flat f = p->flats.at[flat];
    if (f.first_copy == DH_NONE) return f;
    f.matrix[DH_BUF_GRAD] = p->flats.at[f.first_copy].matrix[DH_BUF_GRAD];
    f.vector[DH_BUF_GRAD] = p->flats.at[f.first_copy].vector[DH_BUF_GRAD];
    return f;
}

/* All matrices of a flat, or the rank's shard of each piece. */
static dh_status add_matrix_regions(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, bool counts,
                                    region_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_flat f = flat_of(p, flat);
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
        if (sharded && r->spec->recipe.zero < 3)
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
    const dh_flat f = flat_of(dh_emitter_program(r->emitter), flat);
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
    if (r->spec->recipe.zero > 0) return DH_GROUP_WORLD;
    return mesh_of(r)->ep > 1 ? DH_GROUP_TP_EP_PP : DH_GROUP_TP_PP;
}

/* An element counts in the gradient norm on exactly one rank of that group, in the first copy of
 * the model there. Ranks that differ in their experts have the other weights alike; so have the
 * ranks of two stages with copies in opposite directions. */
static dh_status list_regions(dh_ctx *ctx, const dh_reducer *r, region_list *list)
{
    const dh_mesh *m = mesh_of(r);
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_coord c = dh_mesh_coord(m, r->spec->rank);
    const bool sharded = r->spec->recipe.zero > 0, first_tp = c.tp == 0;
    const bool lower = !dh_program_joins_copies(p) || 2 * c.pp < m->pp - 1;
    const bool first =
        sharded ? dh_mesh_group_index(m, DH_GROUP_DP_CP, r->spec->rank) == 0 : c.ep == 0;
    for (uint32_t i = 0; i < p->flats.n; i++) {
        const dh_flat f = p->flats.at[i];
        const bool again = f.first_copy != DH_NONE, counts = first && lower && !again;
        const bool experts = lower && dh_program_is_experts(p, f.first_block);
        DH_TRY(add_matrix_regions(ctx, r, i, counts || (!again && (sharded || experts)), list));
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
