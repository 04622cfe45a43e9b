/* Whether gradients' sums, and the gathers of what was updated in shards, go in stages.
 *
 * Stages send less to other nodes, in more calls, one after another. Computation beside them loses
 * their whole time. So where costs choose, a sum goes in stages if these take less, alone, than the
 * one call for a bucket. All ranks of a group have the same sizes and costs, and agree. Ranks whose
 * shards of the vocabulary differ must have the same calls, so the size is that of a whole
 * bucket. */
#include "program/reductions.h"

enum { MOST_CALLS = 3 };

/* Calls one behind the other. */
typedef struct call_list {
    size_t n;
    struct {
        dh_op_type type;
        dh_group_kind group;
        int64_t n_in, n_out; /* elements */
        int64_t times;
    } at[MOST_CALLS];
} call_list;

static dh_status add_time(dh_ctx *ctx, const dh_reducer *r, const call_list *list, dh_dtype dtype,
                          double *ns)
{
    const dh_recipe *recipe = &r->spec->recipe;
    const dh_costs *costs = recipe->costs ? recipe->costs : &dh_costs_default;
    *ns = 0;
    for (size_t i = 0; i < list->n; i++) {
        dh_graph *g;
        DH_TRY(dh_graph_build_call(ctx, list->at[i].type, (int32_t)list->at[i].group, dtype,
                                   list->at[i].n_in, list->at[i].n_out, &g));
        const dh_cost_op op = {g, &g->ops.at[0], &recipe->mesh, r->spec->rank};
        *ns += (double)list->at[i].times * costs->solo(costs->self, &op).ns;
        dh_graph_destroy(g);
    }
    return DH_OK;
}

static dh_status is_shorter(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group, dh_shared what,
                            const dh_group_stages *s, bool *shorter)
{
    const int64_t n_ranks = s->per_node * s->n_nodes;
    const int64_t n = dh_flat_pad(dh_reductions_bucket_bytes(r) / (int64_t)sizeof(float),
                                  n_ranks * DH_FLAT_ALIGN);
    const int64_t shard = n / n_ranks, block = n / s->n_nodes, slice = n / s->per_node;
    const call_list whole[] = {
        [DH_SHARED_SUM] = {1, {{DH_OP_ALL_REDUCE, group, n, n, 1}}},
        [DH_SHARED_SHARDS] = {1, {{DH_OP_REDUCE_SCATTER, group, n, shard, 1}}},
        [DH_SHARED_GATHER] = {1, {{DH_OP_ALL_GATHER, group, shard, n, 1}}}};
    const call_list stages[] = {
        [DH_SHARED_SUM] = {3,
                           {{DH_OP_REDUCE_SCATTER, s->local, n, slice, 1},
                            {DH_OP_ALL_REDUCE, s->cross, slice, slice, 1},
                            {DH_OP_ALL_GATHER, s->local, slice, n, 1}}},
        [DH_SHARED_SHARDS] = {2,
                              {{DH_OP_REDUCE_SCATTER, s->local, block, shard, s->n_nodes},
                               {DH_OP_REDUCE_SCATTER, s->cross, slice, shard, 1}}},
        [DH_SHARED_GATHER] = {2,
                              {{DH_OP_ALL_GATHER, s->cross, shard, slice, 1},
                               {DH_OP_ALL_GATHER, s->local, shard, block, s->n_nodes}}}};
    const dh_dtype dtype =
        what == DH_SHARED_GATHER ? r->spec->recipe.dtype : r->spec->recipe.grad_dtype;
    double whole_ns, stages_ns;
    DH_TRY(add_time(ctx, r, &whole[what], dtype, &whole_ns));
    DH_TRY(add_time(ctx, r, &stages[what], dtype, &stages_ns));
    *shorter = stages_ns < whole_ns;
    return DH_OK;
}

dh_status dh_reductions_stages(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group,
                               dh_shared what, dh_group_stages *stages, bool *found)
{
    const dh_recipe *recipe = &r->spec->recipe;
    *found = dh_recipe_in_stages(recipe) && !dh_mesh_group_stages(&recipe->mesh, group, stages) &&
             DH_FLAT_ALIGN % stages->per_node == 0;
    if (!*found || !dh_recipe_stages_by_costs(recipe)) return DH_OK;
    return is_shorter(ctx, r, group, what, stages, found);
}

dh_status dh_reductions_gather_stages(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group,
                                      dh_gather_stages *stages)
{
    dh_group_stages s;
    bool found;
    *stages = (dh_gather_stages){0};
    DH_TRY(dh_reductions_stages(ctx, r, group, DH_SHARED_GATHER, &s, &found));
    if (found) *stages = (dh_gather_stages){s.n_nodes, (int32_t)s.local, (int32_t)s.cross};
    return DH_OK;
}
