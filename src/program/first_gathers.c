/* Parameters that the optimizer updated in shards, gathered at the beginning of the next step.
 *
 * After the optimizer a gather can only run beside updates, which are short. The next step's
 * forward needs the first block's parameters first and the last one's last, and has computation for
 * all of them. So a step begins with the gathers of the previous step's updates, in the order of
 * the forward, and every operator waits for its own parameters. The gathers are first on their
 * streams, in one order on all ranks of a stage, so they wait for nothing after them. Gathering
 * again what is whole changes nothing; the first step does so.
 *
 * Between two steps the rank's shards are up to date, and nothing else of its matrices: checkpoints
 * take the shards; what evaluates makes the parameters whole first (dh_program_spec.gathers). */
#include "program/reductions.h"

#include <stdlib.h>

typedef struct place {
    uint32_t first_block, flat;
} place;

static int by_block(const void *x, const void *y)
{
    const place *a = x, *b = y;
    if (a->first_block != b->first_block) return a->first_block < b->first_block ? -1 : 1;
    return a->flat < b->flat ? -1 : a->flat > b->flat;
}

/* Blocks are numbered stage by stage, each in the order of its forward. */
static place *order_flats(const dh_program *p)
{
    place *order = malloc((p->flats.n + 1) * sizeof *order);
    for (uint32_t i = 0; order && i < p->flats.n; i++)
        order[i] = (place){p->flats.at[i].first_block, i};
    if (order) qsort(order, p->flats.n, sizeof *order, by_block);
    return order;
}

typedef DH_VEC(dh_first_gather) first_gather_list;

/* Every piece of a flat's matrices, of which the rank has updated a shard in its place. */
static dh_status add_flat(dh_ctx *ctx, const dh_reducer *r, uint32_t id, first_gather_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const dh_flat f = p->flats.at[id];
    const dh_operand all = f.matrix[p->dtype == DH_F32 ? DH_BUF_MASTER : DH_BUF_COPY];
    const size_t item = dh_dtype_bytes(p->dtype);
    const dh_group_kind group = dh_program_data_group(p, f.first_block);
    dh_gather_stages stages;
    DH_TRY(dh_reductions_gather_stages(ctx, r, group, &stages));
    for (int64_t k = 0; f.n_shard < f.n_piece && k < f.n_pieces; k++) {
        const int64_t first = k * f.n_piece;
        dh_first_gather made = {.flat = id,
                                .n_own = f.n_shard,
                                .n_whole = f.n_piece,
                                .group = (int32_t)group,
                                .stages = stages};
        DH_TRY(dh_emit_range(ctx, r->emitter, dh_flat_part(all, first + f.shard0, f.n_shard, item),
                             &made.own));
        DH_TRY(
            dh_emit_range(ctx, r->emitter, dh_flat_part(all, first, f.n_piece, item), &made.whole));
        if (!dh_vec_push(list, made)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static dh_status list_all(dh_ctx *ctx, const dh_reducer *r, first_gather_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    place *order = order_flats(p);
    dh_status st = order ? DH_OK : dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < p->flats.n; i++)
        st = add_flat(ctx, r, order[i].flat, list);
    free(order);
    return st;
}

dh_status dh_first_gathers_emit(dh_ctx *ctx, const dh_reducer *r)
{
    first_gather_list list = {0};
    dh_graph *g = NULL;
    uint32_t graph, id;
    dh_status st = list_all(ctx, r, &list);
    if (st == DH_OK && list.n > 0)
        st = dh_graph_build_first_gathers(ctx, list.at, list.n,
                                          dh_emitter_program(r->emitter)->dtype, &g);
    dh_vec_fini(&list);
    if (st != DH_OK || !g) return st;
    DH_TRY(dh_emit_add_graph(ctx, r->emitter, g, &graph));
    DH_TRY(dh_emit_add_block(ctx, r->emitter, graph, 0, &id));
    DH_TRY(dh_emit_phases(ctx, r->emitter, id, -1, DH_PHASES(DH_PHASE_F)));
    dh_emitter_program(r->emitter)->gathers_first = true;
    dh_emit_no_barrier(r->emitter);
    return DH_OK;
}
