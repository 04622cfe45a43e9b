/* The optimizer of a rank: norm, clipping, update, gathering.
 *
 * Post-validation (Qi et al. 2024, arXiv 2401.10241, 4): no stage of a pipeline waits for the norm
 * of all gradients. The sum of squares goes from stage to stage. Each steps by the sum so far and
 * keeps the values that it overwrites, unless it clips already. The total comes back the same way.
 * A step that disagrees with it is amended: restored from the kept values and made anew. Sums are
 * exact, so all get the bits of the step that waits. The last stage of the chain knows the norm of
 * all, and steps once. Kept values lie where activations were.
 *
 * Not as published there: the amendment ends the step and does not go on into the first forwards of
 * the next one. Checkpoints and evaluations may therefore read the parameters after a step.
 *
 * Fused (recipe.fuse; CoCoNet, arXiv 2105.05720, 6.1): reduce-scatter, AdamW on the shard and
 * all-gather of a bucket's pieces as one pipeline. A piece steps by the norm of its own gradients
 * while the next one is still being summed, and is gathered while that steps. Pieces go in the
 * order of their sums. With clipping, a step keeps what it overwrites, as above, and gathers follow
 * the norm. Without, a gradient that is not finite stops the steps of its own piece alone; the run
 * then ends or goes back as after any such step. */
#include "program/reductions.h"

#include <stdlib.h>

#include "program/stage_costs.h"

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
    const bool shards = r->spec->recipe.sharing.parameters && f->n_shard < f->n_piece;
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_MASTER], wide || shards ? kept : first, n,
                    sizeof(float), &region->master));
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_ADAM_M], kept, n, sizeof(float), &region->adam_m));
    DH_TRY(range_of(ctx, r, f->matrix[DH_BUF_ADAM_V], kept, n, sizeof(float), &region->adam_v));
    return range_of(ctx, r, f->matrix[DH_BUF_COPY], shards ? kept : first, n, item, &region->copy);
}

/* A flat as the optimizer reads it. A second copy of the model steps by the sum of both copies'
 * gradients, with its own moments, as data-parallel ranks do. So the copies stay equal. */
static dh_flat flat_of(const dh_program *p, uint32_t flat)
{
    dh_flat f = p->flats.at[flat];
    if (f.first_copy == DH_NONE) return f;
    f.matrix[DH_BUF_GRAD] = p->flats.at[f.first_copy].matrix[DH_BUF_GRAD];
    f.vector[DH_BUF_GRAD] = p->flats.at[f.first_copy].vector[DH_BUF_GRAD];
    return f;
}

/* Where the rank's gradients of elements [first, first + n) lie, from the at-th element of a run
 * on. */
typedef struct stretch {
    dh_operand run;
    int64_t at, first, n;
} stretch;

static dh_status add_counted(dh_ctx *ctx, const dh_reducer *r, const stretch *s, int64_t begin,
                             int64_t end, const dh_opt_region *whole, region_list *list)
{
    dh_opt_region region = {.flat = whole->flat,
                            .n = end - begin,
                            .decay = whole->decay,
                            .counts = true,
                            .norm_only = true,
                            .copy = DH_NONE,
                            .gather = DH_NONE};
    if (begin >= end) return DH_OK;
    DH_TRY(
        range_of(ctx, r, s->run, s->at + begin - s->first, region.n, sizeof(float), &region.grad));
    return dh_vec_push(list, region) ? DH_OK : dh_no_memory(ctx);
}

/* Add a region that counts in the norm, on a rank whose keys and values another rank counts. Only
 * the parts between keys and values count here. */
static dh_status count_in_parts(dh_ctx *ctx, const dh_reducer *r, const stretch *s,
                                const dh_opt_region *whole, region_list *list)
{
    dh_repeats repeats = {0};
    const int64_t end = s->first + s->n;
    int64_t begin = s->first;
    dh_status st =
        dh_flat_repeats(ctx, dh_emitter_program(r->emitter), whole->flat, whole->decay, &repeats);
    for (size_t i = 0; st == DH_OK && i < repeats.n; i++) {
        const dh_repeat *k = &repeats.at[i];
        if (k->end <= begin || k->begin >= end) continue;
        st = add_counted(ctx, r, s, begin, k->begin, whole, list);
        begin = k->end;
    }
    if (st == DH_OK) st = add_counted(ctx, r, s, begin, end, whole, list);
    dh_vec_fini(&repeats);
    return st;
}

/* Whether another rank counts this one's keys and values in the gradient norm. */
static bool counts_in_parts(const dh_reducer *r)
{
    return dh_mesh_group_index(mesh_of(r), DH_GROUP_KV, r->spec->rank) > 0;
}

static dh_status push_region(dh_ctx *ctx, const dh_reducer *r, const stretch *s,
                             dh_opt_region *region, region_list *list)
{
    if (region->counts && counts_in_parts(r)) {
        DH_TRY(count_in_parts(ctx, r, s, region, list));
        region->counts = false;
    }
    return dh_vec_push(list, *region) ? DH_OK : dh_no_memory(ctx);
}

/* The k-th region's piece: fused, those whose sums come first (reductions.c) go first. */
static int64_t piece_at(const dh_reducer *r, int64_t n, int64_t k)
{
    return dh_recipe_is_fused(&r->spec->recipe) ? n - 1 - k : k;
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
    const bool gathers = sharded && !r->spec->recipe.sharing.parameters &&
                         r->spec->recipe.sharing.gather == DH_GATHER_OPTIMIZER;
    const dh_group_kind group = dh_program_data_group(p, f.first_block);
    dh_gather_stages stages = {0};
    if (gathers) DH_TRY(dh_reductions_gather_stages(ctx, r, group, &stages));
    for (int64_t i = 0; i < n_regions; i++) {
        const int64_t k = piece_at(r, n_regions, i);
        dh_opt_region region = {.flat = flat,
                                .n = sharded ? f.n_shard : f.n_matrix,
                                .decay = true,
                                .counts = counts && !tied_copy,
                                .n_gathered = f.n_piece,
                                .group = (int32_t)group,
                                .stages = stages,
                                .gather = DH_NONE};
        DH_TRY(place_matrix_region(ctx, r, &f, k * f.n_piece + f.shard0, k * f.n_shard, &region));
        if (gathers)
            DH_TRY(range_of(ctx, r, f.matrix[wide ? DH_BUF_COPY : DH_BUF_MASTER], k * f.n_piece,
                            f.n_piece, wide ? dh_dtype_bytes(r->spec->recipe.dtype) : sizeof(float),
                            &region.gather));
        const bool early = f.reduced.buffer != DH_NONE;
        const int64_t at = k * f.n_piece + f.shard0;
        const stretch own = {early ? f.reduced : f.matrix[DH_BUF_GRAD], early ? k * f.n_shard : at,
                             at, region.n};
        DH_TRY(push_region(ctx, r, &own, &region, list));
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
                            .decay = first >= f.decayed0 && first < f.balanced0,
                            .counts = counts,
                            .balances = first >= f.balanced0,
                            .copy = DH_NONE,
                            .gather = DH_NONE};
    if (n == 0) return DH_OK;
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_GRAD], first, n, sizeof(float), &region.grad));
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_MASTER], first, n, sizeof(float), &region.master));
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_ADAM_M], first, n, sizeof(float), &region.adam_m));
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_ADAM_V], first, n, sizeof(float), &region.adam_v));
    DH_TRY(range_of(ctx, r, f.vector[DH_BUF_COPY], first, n, dh_dtype_bytes(r->spec->recipe.dtype),
                    &region.copy));
    const stretch own = {f.vector[DH_BUF_GRAD], first, first, n};
    return push_region(ctx, r, &own, &region, list);
}

/* Ranks over which the gradient norm is summed: those of one copy of the weights, or
 * everyone with the distributed optimizer; stage by stage those of them on this stage. */
static dh_group_kind norm_group(const dh_reducer *r, bool of_stage)
{
    if (r->spec->recipe.sharing.moments) return of_stage ? DH_GROUP_STAGE : DH_GROUP_WORLD;
    if (mesh_of(r)->ep > 1) return of_stage ? DH_GROUP_TP_EP : DH_GROUP_TP_EP_PP;
    return of_stage ? DH_GROUP_TP : DH_GROUP_TP_PP;
}

/* An element counts in the gradient norm on exactly one rank of that group, in the first copy of
 * the model there. Keys and values that several ranks have count on the first of them. Ranks that
 * differ in their experts have the other weights alike; so have the
 * ranks of two stages with copies in opposite directions. */
static dh_status list_flat(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, region_list *list)
{
    const dh_mesh *m = mesh_of(r);
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_coord c = dh_mesh_coord(m, r->spec->rank);
    const bool sharded = r->spec->recipe.sharing.moments, first_tp = c.tp == 0;
    const bool lower = !dh_program_joins_copies(p) || 2 * c.pp < m->pp - 1;
    const bool first =
        sharded ? dh_mesh_group_index(m, DH_GROUP_DP_CP, r->spec->rank) == 0 : c.ep == 0;
    const dh_flat f = p->flats.at[flat];
    if (f.frozen) return DH_OK;
    const bool again = f.first_copy != DH_NONE, counts = first && lower && !again;
    const bool experts = lower && dh_program_is_experts(p, f.first_block);
    DH_TRY(add_matrix_regions(ctx, r, flat, counts || (!again && (sharded || experts)), list));
    DH_TRY(add_vector_region(ctx, r, flat, 0, f.replicated0, counts, list));
    DH_TRY(add_vector_region(ctx, r, flat, f.replicated0, f.decayed0, counts && first_tp, list));
    DH_TRY(add_vector_region(ctx, r, flat, f.decayed0, f.balanced0, counts && first_tp, list));
    return add_vector_region(ctx, r, flat, f.balanced0, f.n_vector, false, list);
}

/* A flat, and its place among those whose sums come before and behind it. */
typedef struct turn {
    bool last; /* both ends of a tied embedding meet when all else has been summed */
    uint32_t after, flat;
} turn;

/* Blocks are numbered stage by stage, each in the order of its forward. */
static int by_turn(const void *x, const void *y)
{
    const turn *a = x, *b = y;
    if (a->last != b->last) return a->last ? 1 : -1;
    if (a->after != b->after) return a->after > b->after ? -1 : 1;
    return a->flat < b->flat ? -1 : a->flat > b->flat;
}

/* Fused, in the order in which their gradients are summed, which is the same on all ranks of a
 * stage; else as they are numbered. */
static dh_status list_regions(dh_ctx *ctx, const dh_reducer *r, region_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    turn *turns = malloc((p->flats.n + 1) * sizeof *turns);
    dh_status st = turns ? DH_OK : dh_no_memory(ctx);
    for (uint32_t i = 0; turns && i < p->flats.n; i++)
        turns[i] =
            (turn){dh_reductions_last(r, p->flats.at[i].first_block), p->flats.at[i].after, i};
    if (turns && dh_recipe_is_fused(&r->spec->recipe))
        qsort(turns, p->flats.n, sizeof *turns, by_turn);
    for (uint32_t i = 0; st == DH_OK && i < p->flats.n; i++)
        st = list_flat(ctx, r, turns[i].flat, list);
    free(turns);
    return st;
}

/* ---- stage by stage -------------------------------------------------------------------------- */

/* Neighbours of a stage in the chain of the norm; -1: it is an end. */
typedef struct chain_place {
    int32_t before, behind;
} chain_place;

/* The neighbours among ranks in the order of these times; of equal ones by number. */
static chain_place place_among(const int64_t *last_ns, int32_t n, int32_t own)
{
    chain_place place = {-1, -1};
    for (int32_t k = 0; k < n; k++) {
        const bool sooner = k < own ? last_ns[k] <= last_ns[own] : last_ns[k] < last_ns[own];
        if (sooner && (place.before < 0 || last_ns[k] >= last_ns[place.before])) place.before = k;
        if (!sooner && k != own && (place.behind < 0 || last_ns[k] < last_ns[place.behind]))
            place.behind = k;
    }
    return place;
}

/* Pipeline ranks are in the order in which they complete their gradients, by the times of their
 * stages. So no rank waits for the sum of a later one: at its turn a stage has all it needs. The
 * last rank is the one that keeps nothing, as all others wait for it before they are sure. Costs
 * are the same on all ranks, as for the order of slots. */
static dh_status find_place(dh_ctx *ctx, const dh_reducer *r, chain_place *place)
{
    dh_recipe recipe = r->spec->recipe;
    const dh_schedule *s = recipe.schedule;
    dh_stage_costs stages;
    dh_schedule_timing timing;
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    if (!recipe.costs) recipe.costs = &dh_costs_default;
    dh_status st = dh_stage_costs_find(ctx, arena, &recipe, s->n_stages, &stages);
    if (st == DH_OK) st = dh_schedule_time(ctx, s, &stages.costs, &timing);
    dh_arena_destroy(arena);
    DH_TRY(st);
    *place = place_among(timing.last_ns, s->n_ranks,
                         (int32_t)dh_mesh_coord(mesh_of(r), r->spec->rank).pp);
    dh_schedule_timing_fini(&timing);
    return DH_OK;
}

/* The optimizer's block, and those of its transfers; DH_NONE. */
typedef struct step_blocks {
    uint32_t step, before, behind;
} step_blocks;

enum { NORM_TAG = 2 }; /* 0 and 1 are activations and their gradients */

static dh_status add_link(dh_ctx *ctx, const dh_reducer *r, int32_t peer, bool behind, uint32_t *id)
{
    dh_graph *g;
    uint32_t graph;
    *id = DH_NONE;
    if (peer < 0) return DH_OK;
    DH_TRY(dh_graph_build_norm_link(ctx, behind, &g));
    DH_TRY(dh_emit_add_graph(ctx, r->emitter, g, &graph));
    DH_TRY(dh_emit_add_block(ctx, r->emitter, graph, 0, id));
    dh_block *block = dh_emit_block(r->emitter, *id);
    block->peer = peer;
    block->tag = NORM_TAG;
    return DH_OK;
}

static dh_status emit_link(dh_ctx *ctx, const dh_reducer *r, uint32_t block, uint32_t way)
{
    return block == DH_NONE ? DH_OK : dh_emit_op(ctx, r->emitter, block, -1, way);
}

static dh_status emit_ops(dh_ctx *ctx, const dh_reducer *r, uint32_t block, uint32_t begin,
                          uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) DH_TRY(dh_emit_op(ctx, r->emitter, block, -1, i));
    return DH_OK;
}

/* The first operator that makes a factor, of DH_STATE_NORM or of any norm. */
static uint32_t find_clip(const dh_graph *g, bool of_all)
{
    uint32_t i = 0;
    while (g->ops.at[i].type != DH_OP_CLIP ||
           (of_all && g->tensors.at[g->ops.at[i].out[0]].which != DH_STATE_NORM))
        i++;
    return i;
}

/* The sum so far is complete with the operator ahead of the first factor. */
static dh_status emit_stage(dh_ctx *ctx, const dh_reducer *r, const step_blocks *b)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_graph *g = p->graphs.at[p->blocks.at[b->step].graph];
    const uint32_t n = (uint32_t)g->ops.n, known = find_clip(g, false), all = find_clip(g, true);
    DH_TRY(emit_ops(ctx, r, b->step, 0, known - 1));
    DH_TRY(emit_link(ctx, r, b->before, DH_NORM_LINK_FORTH));
    DH_TRY(emit_ops(ctx, r, b->step, known - 1, known));
    DH_TRY(emit_link(ctx, r, b->behind, DH_NORM_LINK_FORTH));
    DH_TRY(emit_ops(ctx, r, b->step, known, all));
    DH_TRY(emit_link(ctx, r, b->behind, DH_NORM_LINK_BACK));
    DH_TRY(emit_link(ctx, r, b->before, DH_NORM_LINK_BACK));
    return emit_ops(ctx, r, b->step, all, n);
}

/* ---- entry --------------------------------------------------------------------------------- */

static dh_status build_graph(dh_ctx *ctx, const dh_reducer *r, const chain_place *place,
                             dh_graph **graph)
{
    const dh_dtype dtype = dh_emitter_program(r->emitter)->dtype;
    const dh_group_kind group = norm_group(r, dh_recipe_is_post_validated(&r->spec->recipe));
    const dh_opt_norm norm = {.group =
                                  dh_mesh_group_size(mesh_of(r), group) > 1 ? (int32_t)group : -1,
                              .before = place->before >= 0,
                              .behind = place->behind >= 0,
                              .fused = dh_recipe_is_fused(&r->spec->recipe),
                              .clips = r->spec->recipe.clips};
    region_list list = {0};
    dh_status st = list_regions(ctx, r, &list);
    if (st == DH_OK) st = dh_graph_build_optimizer(ctx, list.at, list.n, dtype, &norm, graph);
    dh_vec_fini(&list);
    return st;
}

dh_status dh_optimizer_emit(dh_ctx *ctx, const dh_reducer *r, uint32_t *id)
{
    chain_place place = {-1, -1};
    step_blocks blocks;
    dh_graph *g;
    uint32_t graph;
    if (dh_recipe_is_post_validated(&r->spec->recipe)) DH_TRY(find_place(ctx, r, &place));
    DH_TRY(build_graph(ctx, r, &place, &g));
    DH_TRY(dh_emit_add_graph(ctx, r->emitter, g, &graph));
    DH_TRY(dh_emit_add_block(ctx, r->emitter, graph, 0, &blocks.step));
    DH_TRY(add_link(ctx, r, place.before, false, &blocks.before));
    DH_TRY(add_link(ctx, r, place.behind, true, &blocks.behind));
    *id = blocks.step;
    return emit_stage(ctx, r, &blocks);
}
