/* Whether a sum of gradients goes in stages, where that is left to costs.
 *
 * Stages send less to other nodes, in more calls, one behind the other, and what they take in all
 * is also what computation beside them loses. So a bucket's sum is in stages where these take less
 * than the one call, each alone. All ranks that sum have the same sizes and costs, and agree. */
#include "program/reductions.h"

enum { MOST_CALLS = 3 };

static dh_status time_calls(dh_ctx *ctx, const dh_reducer *r, const dh_grad_reduction *calls,
                            const int64_t *times, size_t n, double *ns)
{
    const dh_recipe *recipe = &r->spec->recipe;
    const dh_costs *costs = recipe->costs ? recipe->costs : &dh_costs_default;
    dh_graph *g;
    *ns = 0;
    DH_TRY(dh_graph_build_reductions(ctx, calls, n, &g));
    for (size_t i = 0; i < n; i++) {
        const dh_cost_op op = {g, &g->ops.at[i], &recipe->mesh, r->spec->rank};
        *ns += (double)times[i] * costs->solo(costs->self, &op).ns;
    }
    dh_graph_destroy(g);
    return DH_OK;
}

/* Ranges are nobody's: only sizes count. */
static dh_grad_reduction call_of(dh_op_type type, dh_group_kind group, int64_t n, int64_t n_shard)
{
    return (dh_grad_reduction){.type = type,
                               .group = (int32_t)group,
                               .n = n,
                               .shard = n_shard ? 0 : DH_NONE,
                               .n_shard = n_shard,
                               .addend = DH_NONE};
}

dh_status dh_sum_is_shorter_in_stages(dh_ctx *ctx, const dh_reducer *r, dh_group_kind group,
                                      const dh_group_stages *s, int64_t n, bool sharded,
                                      bool *shorter)
{
    const int64_t n_ranks = s->per_node * s->n_nodes, once = 1;
    const int64_t block = n / s->n_nodes, slice = n / s->per_node;
    const dh_grad_reduction one = sharded ? call_of(DH_OP_REDUCE_SCATTER, group, n, n / n_ranks)
                                          : call_of(DH_OP_ALL_REDUCE, group, n, 0);
    const dh_grad_reduction to_shards[] = {
        call_of(DH_OP_REDUCE_SCATTER, s->local, block, n / n_ranks),
        call_of(DH_OP_REDUCE_SCATTER, s->cross, slice, n / n_ranks)};
    const dh_grad_reduction to_all[] = {call_of(DH_OP_REDUCE_SCATTER, s->local, n, slice),
                                        call_of(DH_OP_ALL_REDUCE, s->cross, slice, 0),
                                        call_of(DH_OP_ALL_GATHER, s->local, slice, n)};
    const int64_t times[MOST_CALLS] = {sharded ? s->n_nodes : 1, 1, 1};
    double whole_ns, stages_ns;
    DH_TRY(time_calls(ctx, r, &one, &once, 1, &whole_ns));
    DH_TRY(time_calls(ctx, r, sharded ? to_shards : to_all, times, sharded ? 2 : 3, &stages_ns));
    *shorter = stages_ns < whole_ns;
    return DH_OK;
}
