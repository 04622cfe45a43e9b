/* Parameters that are stored as shards (ZeRO-3, Rajbhandari et al. 2020, arXiv 1910.02054, 5.3).
 *
 * A block's matrices are made whole in a transient buffer before its forward, released after it,
 * and again for its backward. The order is that of PyTorch's fully_shard with explicit prefetch:
 * before a block computes, the gathers of the next `prefetch` blocks are issued. A gather starts
 * when the block prefetch + 1 before it has released its own, counted over slots. At most
 * prefetch + 1 blocks are therefore whole at once (per strand, in a slot with two). The first
 * gathers of a slot run during the end of the slot before.
 *
 * Gathers and releases are placed while a slot is emitted, around the readers of the parameters, in
 * whatever order these come. A strategy orders the operators of its strands, the same on all ranks
 * of a stage. A bucket records that it is whole, and its users. A strand that finds it whole
 * gathers nothing, and the last user releases it. Without resharding after the forward it stays
 * whole until a backward is through with it. */
#include "program/build.h"
#include "program/emitter.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_sharded(const dh_flat *f)
{
    return f->n_shard < f->n_piece;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The flats of the matrices that operators of the phases read; their number. */
static int list_flats(const plan *b, uint32_t block, unsigned phases,
                      uint32_t flats[DH_MAX_GATHERS])
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_graph *g = plan_graph_of(b, block);
    int n = 0;
    for (uint32_t i = 0; i < g->ops.n; i++)
        for (int k = 0; k < DH_MAX_OPERANDS && phases >> g->ops.at[i].phase & 1; k++) {
            const uint32_t in = g->ops.at[i].in[k];
            if (in == DH_NONE || g->tensors.at[in].kind != DH_TENSOR_PARAM) continue;
            const uint32_t param = p->blocks.at[block].params[g->tensors.at[in].which];
            if (!dh_param_is_matrix(&p->params.at[param])) continue;
            const uint32_t flat = p->blocks.at[p->homes.at[param].block].flat;
            bool seen = !is_sharded(&p->flats.at[flat]);
            for (int j = 0; j < n; j++) seen |= flats[j] == flat;
            if (seen) continue;
            DH_CHECK(n < DH_MAX_GATHERS, "block %u uses matrices of more flats", block);
            flats[n++] = flat;
        }
    return n;
}

static dh_gather describe(const plan *b, uint32_t flat, bool backward)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_flat *f = &p->flats.at[flat];
    return (dh_gather){.flat = flat,
                       .n_pieces = f->n_pieces,
                       .n_piece = f->n_piece,
                       .n_shard = f->n_shard,
                       .group = (int32_t)dh_program_data_group(p, f->first_block),
                       .dtype = p->dtype,
                       .phase = backward ? DH_PHASE_B : DH_PHASE_F};
}

static dh_status add_graph(dh_ctx *ctx, plan *b, uint32_t block, dh_graph *g, uint32_t *id)
{
    dh_program *p = dh_emitter_program(b->emitter);
    uint32_t graph;
    DH_TRY(dh_emit_add_graph(ctx, b->emitter, g, &graph));
    DH_TRY(dh_emit_add_block(ctx, b->emitter, graph, p->blocks.at[block].layer, id));
    p->blocks.at[*id].of = block;
    return DH_OK;
}

static dh_status add_gather(dh_ctx *ctx, plan *b, uint32_t block, uint32_t flat, bool backward,
                            uint32_t *id)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_flat f = p->flats.at[flat];
    const dh_buffer_kind kind = p->dtype == DH_F32 ? DH_BUF_MASTER : DH_BUF_COPY;
    uint32_t *shards = malloc((size_t)f.n_pieces * sizeof *shards);
    if (!shards) return dh_no_memory(ctx);
    dh_gather gather = describe(b, flat, backward);
    dh_graph *g = NULL;
    dh_status st = DH_OK;
    for (int64_t k = 0; st == DH_OK && k < f.n_pieces; k++)
        st = dh_emit_range(
            ctx, b->emitter,
            dh_flat_part(f.matrix[kind], k * f.n_shard, f.n_shard, dh_dtype_bytes(p->dtype)),
            &shards[k]);
    gather.shards = shards;
    if (st == DH_OK)
        st = dh_reductions_gather_stages(ctx, &b->reducer, (dh_group_kind)gather.group,
                                         &gather.stages);
    if (st == DH_OK) st = dh_graph_build_gather(ctx, &gather, &g);
    free(shards);
    DH_TRY(st);
    return add_graph(ctx, b, block, g, id);
}

/* The ranks of a flat's data group that keep its parameters between them: so many neighbours, or
 * those on this one's node. */
static dh_group_kind share_group(const plan *b, uint32_t flat)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const bool experts = dh_program_is_experts(p, p->flats.at[flat].first_block);
    if (p->mesh.share_ranks > 0) return experts ? DH_GROUP_EDP_CP_SHARE : DH_GROUP_DP_CP_SHARE;
    return experts ? DH_GROUP_EDP_CP_NODE : DH_GROUP_DP_CP_NODE;
}

static int64_t n_sharing(const plan *b, uint32_t flat)
{
    return dh_mesh_group_size(&b->spec->recipe.mesh, share_group(b, flat));
}

/* Shares are for flats of more than one such group, and of more than one rank in each. */
static bool has_shares(const plan *b, uint32_t flat)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_group_kind all = dh_program_data_group(p, p->flats.at[flat].first_block);
    const int64_t n = n_sharing(b, flat);
    return b->spec->recipe.sharing.reshard == DH_GATHERED_SHARE && b->spec->mode == DH_MODE_TRAIN &&
           n > 1 && n < dh_mesh_group_size(&p->mesh, all);
}

/* As many as share, or a whole data group, or all there is of a smaller one. */
static dh_status check_run(dh_ctx *ctx, const dh_mesh *m, dh_group_kind all, const char *what)
{
    const int64_t n = dh_mesh_group_size(m, all), share = m->share_ranks;
    if (n == 1 || (n > share && n % share == 0)) return DH_OK;
    if (all == DH_GROUP_EDP_CP && share % n == 0) return DH_OK; /* copies of experts are fewer */
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "parallel.reshard_after_forward=%" PRId64 ": %s are shared out over %" PRId64
                   " ranks (group %s), which this does not divide into equal groups of two or more "
                   "ranks: take a divisor between 1 and %" PRId64 ", true, false or node",
                   share, what, n, dh_group_name(all), n);
}

/* Shares of one rank alone would be all there is, on every rank. */
static dh_status check_shares(dh_ctx *ctx, const plan *b)
{
    const dh_mesh *m = &b->spec->recipe.mesh;
    if (b->spec->recipe.sharing.reshard != DH_GATHERED_SHARE) return DH_OK;
    if (m->share_ranks > 0) {
        DH_TRY(check_run(ctx, m, DH_GROUP_DP_CP, "parameters"));
        return b->spec->recipe.model.n_experts > 0
                   ? check_run(ctx, m, DH_GROUP_EDP_CP, "experts' parameters")
                   : DH_OK;
    }
    if (dh_mesh_group_size(m, DH_GROUP_DP_CP_NODE) > 1 ||
        dh_mesh_group_size(m, DH_GROUP_DP_CP) == 1)
        return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "parallel.reshard_after_forward=node: of the %" PRId64
                   " ranks that share out parameters no two are on one node of %" PRId64
                   ", or nodes end between them: take true or false",
                   dh_mesh_group_size(m, DH_GROUP_DP_CP), m->ranks_per_node);
}

static dh_status add_shares(dh_ctx *ctx, plan *b, uint32_t block, int k)
{
    const dh_block_gathers g = b->emitter->gathers.at[block];
    const dh_group_kind group = share_group(b, g.flat[k]);
    const int64_t n = n_sharing(b, g.flat[k]);
    const int64_t index = dh_mesh_group_index(&b->spec->recipe.mesh, group, b->spec->rank);
    dh_gather gather = describe(b, g.flat[k], false);
    dh_graph *graph;
    uint32_t id;
    DH_TRY(dh_graph_build_share(ctx, &gather, n, index, &graph));
    DH_TRY(add_graph(ctx, b, block, graph, &id));
    b->emitter->gathers.at[block].share[k] = id;
    for (int backward = 0; backward < 2; backward++) {
        if (g.at[backward][k] == DH_NONE) continue;
        gather = describe(b, g.flat[k], backward);
        gather.group = (int32_t)group;
        DH_TRY(dh_graph_build_gather_shares(ctx, &gather, n, &graph));
        DH_TRY(add_graph(ctx, b, block, graph, &id));
        b->emitter->gathers.at[block].near[backward][k] = id;
    }
    return DH_OK;
}

static dh_status add_gathers_of(dh_ctx *ctx, plan *b, uint32_t block, bool backward)
{
    const unsigned phases = backward ? DH_PHASES(DH_PHASE_B, DH_PHASE_W) : DH_PHASES(DH_PHASE_F);
    uint32_t flats[DH_MAX_GATHERS];
    const int n = list_flats(b, block, phases, flats);
    for (int j = 0; j < n; j++) {
        uint32_t id;
        int k = 0;
        DH_TRY(add_gather(ctx, b, block, flats[j], backward, &id));
        dh_block_gathers *g = &b->emitter->gathers.at[block];
        while (k < DH_MAX_GATHERS && g->flat[k] != DH_NONE && g->flat[k] != flats[j]) k++;
        DH_CHECK(k < DH_MAX_GATHERS, "block %u uses matrices of more flats", block);
        g->flat[k] = flats[j];
        g->at[backward][k] = id;
    }
    return DH_OK;
}

/* A schedule may do weight gradients later than input gradients: what these read is released. */
static dh_status check_weights(dh_ctx *ctx, const plan *b, uint32_t block)
{
    uint32_t flats[DH_MAX_GATHERS];
    if (list_flats(b, block, DH_PHASES(DH_PHASE_W), flats) == 0) return DH_OK;
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "with parallel.zero=3 weight gradients may not read parameters again, as they do "
        "here: take another train.recompute, or parallel.zero=2");
}

dh_status plan_add_gathers(dh_ctx *ctx, plan *b, const stage *s)
{
    dh_block_gathers none;
    memset(&none, 0xff, sizeof none);
    if (!b->spec->recipe.sharing.parameters) return DH_OK;
    DH_TRY(check_shares(ctx, b));
    if (b->spec->part == DH_PART_UPDATE) return DH_OK; /* which reads shards alone */
    for (size_t i = 0; i < s->n_chain; i++) {
        while (b->emitter->gathers.n <= s->chain[i])
            if (!dh_vec_push(&b->emitter->gathers, none)) return dh_no_memory(ctx);
        DH_TRY(add_gathers_of(ctx, b, s->chain[i], false));
        if (b->spec->mode != DH_MODE_TRAIN) continue;
        DH_TRY(check_weights(ctx, b, s->chain[i]));
        DH_TRY(add_gathers_of(ctx, b, s->chain[i], true));
        for (int k = 0; k < DH_MAX_GATHERS; k++) {
            const uint32_t flat = b->emitter->gathers.at[s->chain[i]].flat[k];
            if (flat != DH_NONE && has_shares(b, flat)) DH_TRY(add_shares(ctx, b, s->chain[i], k));
        }
    }
    return DH_OK;
}

/* ---- whole buckets --------------------------------------------------------------------------- */

static dh_status find_whole(dh_ctx *ctx, plan *b, uint32_t flat, dh_whole **whole)
{
    const dh_whole none = {.block = DH_NONE, .share = DH_NONE};
    while (b->emitter->whole.n <= flat)
        if (!dh_vec_push(&b->emitter->whole, none)) return dh_no_memory(ctx);
    *whole = &b->emitter->whole.at[flat];
    return DH_OK;
}

/* With two strands either may have as many blocks whole. */
static size_t window_of(const plan *b)
{
    return ((size_t)b->spec->recipe.sharing.prefetch + 1) * (b->n_strands > 1 ? 2 : 1);
}

static dh_status gather(dh_ctx *ctx, plan *b, uint32_t id, int32_t mb)
{
    const uint32_t n = (uint32_t)plan_graph_of(b, id)->ops.n - 1;
    const size_t window = window_of(b);
    b->n_gathers++;
    for (uint32_t op = 0; op < n; op++) {
        if (b->n_gathers > window && b->releases.n > 0) {
            const size_t at = DH_MIN(b->n_gathers - window, b->releases.n);
            dh_emit_after(b->emitter, b->releases.at[at - 1]);
        }
        DH_TRY(dh_emit_op(ctx, b->emitter, id, mb, op));
    }
    return DH_OK;
}

/* Probes run operators again behind the step, and read their parameters there. */
static dh_status release(dh_ctx *ctx, plan *b, dh_whole *whole)
{
    const dh_whole was = *whole;
    if (b->spec->probes) return DH_OK;
    whole->block = DH_NONE;
    const uint32_t op = (uint32_t)plan_graph_of(b, was.block)->ops.n - 1;
    DH_TRY(dh_emit_op(ctx, b->emitter, was.block, was.mb, op));
    const uint32_t id = (uint32_t)dh_emitter_program(b->emitter)->instrs.n - 1;
    return dh_vec_push(&b->releases, id) ? DH_OK : dh_no_memory(ctx);
}

/* From the shares of the node's ranks, where the forward has left them, else from those of all. */
static dh_status make_whole(dh_ctx *ctx, plan *b, const dh_block_gathers *g, int k,
                            const plan_walk *walk, dh_whole *whole)
{
    const bool near = whole->share != DH_NONE;
    const uint32_t id = near ? g->near[walk->backward][k] : g->at[walk->backward][k];
    if (near) DH_TRY(dh_emit_hand_on(ctx, b->emitter, whole->share, whole->share_mb, id, walk->mb));
    whole->block = id;
    whole->mb = walk->mb;
    return gather(ctx, b, id, walk->mb);
}

/* Keep the rank's share on the node, or among neighbours, for the gather of the backward. */
static dh_status keep_share(dh_ctx *ctx, plan *b, const dh_block_gathers *g, int k,
                            const plan_walk *walk, dh_whole *whole)
{
    const uint32_t id = g->share[k];
    if (id == DH_NONE || g->at[1][k] == DH_NONE || whole->share != DH_NONE) return DH_OK;
    DH_TRY(dh_emit_hand_on(ctx, b->emitter, whole->block, whole->mb, id, walk->mb));
    whole->share = id;
    whole->share_mb = walk->mb;
    return dh_emit_phases(ctx, b->emitter, id, walk->mb, DH_PHASES(DH_PHASE_F));
}

/* A block is about to be used. */
static dh_status acquire(dh_ctx *ctx, plan *b, uint32_t block, const plan_walk *walk)
{
    const dh_block_gathers g = b->emitter->gathers.at[block];
    for (int k = 0; k < DH_MAX_GATHERS; k++) {
        dh_whole *whole;
        if (g.at[walk->backward][k] == DH_NONE) continue;
        DH_TRY(find_whole(ctx, b, g.flat[k], &whole));
        if (whole->block == DH_NONE) DH_TRY(make_whole(ctx, b, &g, k, walk, whole));
        whole->n_users++;
    }
    return DH_OK;
}

/* It has been used. Behind the backward nothing of it stays, also of what only the forward read. */
static dh_status drop(dh_ctx *ctx, plan *b, uint32_t block, const plan_walk *walk)
{
    const bool forward = !walk->backward && b->spec->mode == DH_MODE_TRAIN;
    const dh_block_gathers g = b->emitter->gathers.at[block];
    for (int k = 0; k < DH_MAX_GATHERS; k++) {
        dh_whole *whole;
        if (g.flat[k] == DH_NONE) continue;
        DH_TRY(find_whole(ctx, b, g.flat[k], &whole));
        if (whole->block == DH_NONE) continue;
        if (g.at[walk->backward][k] != DH_NONE) whole->n_users--;
        if (whole->n_users > 0 || walk->stays) continue;
        if (forward) DH_TRY(keep_share(ctx, b, &g, k, walk, whole));
        if (!forward) whole->share = DH_NONE;
        DH_TRY(release(ctx, b, whole));
    }
    return DH_OK;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t block_at(const plan_walk *walk, size_t i)
{
    return walk->s->chain[walk->backward ? walk->s->n_chain - 1 - i : i];
}

/* The place of an item's block on the walk; SIZE_MAX: it is not on it. Mostly that of the item
 * before, or the next. */
static size_t place_of(const plan *b, plan_walk *walk, const plan_item *item)
{
    const size_t n = walk->s->n_chain;
    if (plan_is_reduction(b, item)) return SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        const size_t at = (walk->at + i) % n;
        if (block_at(walk, at) == item->block) return walk->at = at;
    }
    return SIZE_MAX;
}

static bool reads_matrices(const plan *b, const plan_item *item)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_graph *g = plan_graph_of(b, item->block);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        const uint32_t in = g->ops.at[item->op].in[k];
        if (in == DH_NONE || g->tensors.at[in].kind != DH_TENSOR_PARAM) continue;
        const uint32_t param = p->blocks.at[item->block].params[g->tensors.at[in].which];
        if (dh_param_is_matrix(&p->params.at[param])) return true;
    }
    return false;
}

/* Whether an item makes use of its block. A strategy's order may put operators that read no
 * parameters early or, as with weight gradients, late. A block without any reader is through when
 * all of it has run. */
static bool holds(const plan *b, const plan_walk *walk, const plan_item *item)
{
    const uint32_t *gathers = b->emitter->gathers.at[item->block].at[walk->backward];
    bool none = true;
    for (int k = 0; k < DH_MAX_GATHERS; k++) none &= gathers[k] == DH_NONE;
    return !walk->ordered || none || reads_matrices(b, item);
}

dh_status plan_begin_walk(dh_ctx *ctx, plan *b, const plan_items *list, plan_walk *walk)
{
    if (!b->spec->recipe.sharing.parameters || !walk->s) return DH_OK;
    walk->next = b->n_ahead;
    b->n_ahead = 0;
    walk->left = calloc(walk->s->n_chain + 1, sizeof *walk->left);
    if (!walk->left) return dh_no_memory(ctx);
    for (size_t i = 0; i < list->n; i++) {
        const size_t at = place_of(b, walk, &list->at[i]);
        if (at != SIZE_MAX && holds(b, walk, &list->at[i])) walk->left[at]++;
    }
    return DH_OK;
}

/* The first n blocks of the next slot. */
static dh_status acquire_ahead(dh_ctx *ctx, plan *b, const plan_walk *walk, size_t n)
{
    const plan_walk then = {.s = walk->then, .mb = walk->then_mb, .backward = walk->then_backward};
    for (; b->n_ahead < DH_MIN(n, then.s->n_chain); b->n_ahead++)
        DH_TRY(acquire(ctx, b, block_at(&then, b->n_ahead), &then));
    return DH_OK;
}

dh_status plan_walk_item(dh_ctx *ctx, plan *b, plan_walk *walk, const plan_item *item)
{
    const size_t at = walk->left ? place_of(b, walk, item) : SIZE_MAX;
    if (at == SIZE_MAX || !holds(b, walk, item))
        return dh_emit_op(ctx, b->emitter, item->block, item->mb, item->op);
    const size_t end = at + (size_t)b->spec->recipe.sharing.prefetch + 1, n = walk->s->n_chain;
    for (; walk->next < DH_MIN(end, n); walk->next++)
        DH_TRY(acquire(ctx, b, block_at(walk, walk->next), walk));
    if (walk->then && end > n) DH_TRY(acquire_ahead(ctx, b, walk, end - n));
    DH_TRY(dh_emit_op(ctx, b->emitter, item->block, item->mb, item->op));
    return --walk->left[at] > 0 ? DH_OK : drop(ctx, b, item->block, walk);
}
