/* Parameters that are stored as shards (ZeRO-3, Rajbhandari et al. 2020, arXiv 1910.02054, 5.3).
 *
 * A block's matrices are made whole in a transient buffer before its forward, released behind it,
 * and again for its backward. The order is that of PyTorch's fully_shard with explicit prefetch:
 * before a block computes, the gathers of the next `prefetch` blocks are issued. A gather starts
 * when the block prefetch + 1 before it has released its own, counted over slots, so that no more
 * than prefetch + 1 blocks are whole at once and a slot's first gathers run beside the end of the
 * slot before. */
#include "program/build.h"
#include "program/emitter.h"

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

static dh_status add_gather(dh_ctx *ctx, plan *b, uint32_t block, uint32_t flat, bool backward,
                            uint32_t *id)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_flat f = p->flats.at[flat];
    const dh_buffer_kind kind = p->dtype == DH_F32 ? DH_BUF_MASTER : DH_BUF_COPY;
    uint32_t *shards = malloc((size_t)f.n_pieces * sizeof *shards), graph;
    if (!shards) return plan_no_memory(ctx);
    dh_gather gather = {.shards = shards,
                        .n_pieces = f.n_pieces,
                        .n_piece = f.n_piece,
                        .n_shard = f.n_shard,
                        .group = (int32_t)dh_program_data_group(p, f.first_block),
                        .dtype = p->dtype,
                        .phase = backward ? DH_PHASE_B : DH_PHASE_F};
    dh_graph *g = NULL;
    dh_status st = DH_OK;
    for (int64_t k = 0; st == DH_OK && k < f.n_pieces; k++)
        st = dh_emit_range(
            ctx, b->emitter,
            dh_flat_part(f.matrix[kind], k * f.n_shard, f.n_shard, dh_dtype_bytes(p->dtype)),
            &shards[k]);
    if (st == DH_OK) st = dh_graph_build_gather(ctx, &gather, &g);
    free(shards);
    DH_TRY(st);
    DH_TRY(dh_emit_add_graph(ctx, b->emitter, g, &graph));
    return dh_emit_add_block(ctx, b->emitter, graph, p->blocks.at[block].layer, id);
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

dh_status plan_check_gathers(dh_ctx *ctx, const plan *b)
{
    const dh_recipe *r = &b->spec->recipe;
    if (r->zero < 3 || b->spec->mode != DH_MODE_TRAIN || !plan_orders(b)) return DH_OK;
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "with parallel.zero=3 operators run in the order they have, gathers of parameters "
        "among them, and strategy %s orders them anew: take one that does not, such as "
        "strategy=sequential or intra-batch, or parallel.zero=2",
        r->strategy ? r->strategy->name : "sequential");
}

dh_status plan_add_gathers(dh_ctx *ctx, plan *b, const stage *s)
{
    dh_block_gathers none;
    memset(&none, 0xff, sizeof none);
    if (b->spec->recipe.zero < 3) return DH_OK;
    for (size_t i = 0; i < s->n_chain; i++) {
        while (b->emitter->gathers.n <= s->chain[i])
            if (!dh_vec_push(&b->emitter->gathers, none)) return plan_no_memory(ctx);
        DH_TRY(add_gathers_of(ctx, b, s->chain[i], false));
        if (b->spec->mode != DH_MODE_TRAIN) continue;
        DH_TRY(check_weights(ctx, b, s->chain[i]));
        DH_TRY(add_gathers_of(ctx, b, s->chain[i], true));
    }
    return DH_OK;
}

/* ---- slots ------------------------------------------------------------------------------------
 */

static uint32_t block_at(const plan_walk *walk, size_t i)
{
    return walk->s->chain[walk->backward ? walk->s->n_chain - 1 - i : i];
}

/* The operators of the gathers of a block: all but the release, or that. */
static dh_status list_ops(dh_ctx *ctx, plan *b, const plan_walk *walk, size_t i, bool release,
                          plan_items *list)
{
    const uint32_t block = block_at(walk, i);
    for (int k = 0; k < DH_MAX_GATHERS; k++) {
        const uint32_t gather = b->emitter->gathers.at[block].at[walk->backward][k];
        if (gather == DH_NONE) continue;
        const uint32_t n = (uint32_t)plan_graph_of(b, gather)->ops.n - 1;
        for (uint32_t op = release ? n : 0; op < (release ? n + 1 : n); op++)
            if (!dh_vec_push(list, (plan_item){gather, op, walk->mb, block}))
                return plan_no_memory(ctx);
    }
    return DH_OK;
}

dh_status plan_list_gathers(dh_ctx *ctx, plan *b, plan_walk *walk, size_t i, plan_items *list)
{
    if (b->spec->recipe.zero < 3) return DH_OK;
    const size_t end = DH_MIN(i + (size_t)b->spec->recipe.prefetch + 1, walk->s->n_chain);
    for (; walk->next < end; walk->next++) DH_TRY(list_ops(ctx, b, walk, walk->next, false, list));
    return DH_OK;
}

/* What runs again behind the step reads its parameters where they were. */
dh_status plan_list_release(dh_ctx *ctx, plan *b, const plan_walk *walk, size_t i, plan_items *list)
{
    if (b->spec->recipe.zero < 3 || b->spec->probes) return DH_OK;
    return list_ops(ctx, b, walk, i, true, list);
}

/* ---- emission ----------------------------------------------------------------------------------
 */

static bool is_gather(const plan *b, const plan_item *i)
{
    return plan_graph_of(b, i->block)->kind == DH_BLOCK_GATHER;
}

static bool is_release(const plan *b, const plan_item *i)
{
    return plan_graph_of(b, i->block)->ops.at[i->op].type == DH_OP_RELEASE;
}

void plan_before_item(plan *b, const plan_item *item)
{
    if (!is_gather(b, item) || is_release(b, item)) return;
    if (item->op == 0) b->n_gathers++;
    const size_t window = (size_t)b->spec->recipe.prefetch + 1;
    if (b->n_gathers <= window || b->releases.n == 0) return;
    const size_t at = DH_MIN(b->n_gathers - window, b->releases.n);
    dh_emit_after(b->emitter, b->releases.at[at - 1]);
}

dh_status plan_after_item(dh_ctx *ctx, plan *b, const plan_item *item)
{
    if (!is_gather(b, item) || !is_release(b, item)) return DH_OK;
    const uint32_t id = (uint32_t)dh_emitter_program(b->emitter)->instrs.n - 1;
    return dh_vec_push(&b->releases, id) ? DH_OK : plan_no_memory(ctx);
}
