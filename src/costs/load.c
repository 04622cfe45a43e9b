/* Costs with the load of experts (load.h). */
#include "costs/load.h"

#include <string.h>

/* ---- from one number ------------------------------------------------------------------------ */

/* Of n experts over so many ranks. */
static double load_of_rank(double busiest, double n, double ranks)
{
    const double here = n / ranks;
    const double other = n > 1 ? (n - busiest) / (n - 1) : 0;
    return (busiest + (here - 1) * other) / here;
}

dh_status dh_load_of_busiest(dh_ctx *ctx, dh_arena *arena, int64_t n_experts, int64_t top_k,
                             double busiest, dh_expert_load *load)
{
    double *by_ranks = DH_NEW_N(arena, double, n_experts + 1);
    const char *name = dh_arena_printf(arena, "%g", busiest);
    if (busiest > (double)n_experts / (double)top_k)
        return dh_fail(ctx, DH_EINVAL,
                       "moe.load=%g: the busiest of %lld experts gets at most all tokens, %g times "
                       "an even share",
                       busiest, (long long)n_experts, (double)n_experts / (double)top_k);
    if (!by_ranks || !name) return dh_no_memory(ctx);
    for (int64_t ranks = 1; ranks <= n_experts; ranks++)
        if (n_experts % ranks == 0)
            by_ranks[ranks] = load_of_rank(busiest, (double)n_experts, (double)ranks);
    *load = (dh_expert_load){.name = name, .n_experts = n_experts, .by_ranks = by_ranks};
    return DH_OK;
}

/* ---- costs ----------------------------------------------------------------------------------- */

typedef struct load_costs {
    dh_costs costs;
    const dh_costs *plain;
    dh_expert_load load;
} load_costs;

static double factor(const load_costs *c, const dh_cost_op *op)
{
    const int64_t ranks = dh_mesh_group_size(op->mesh, dh_mesh_expert_group(op->mesh));
    if (!dh_op_follows_load(op->op) || ranks > c->load.n_experts) return 1;
    return c->load.by_ranks[ranks] > 0 ? c->load.by_ranks[ranks] : 1;
}

static dh_op_time solo(const void *self, const dh_cost_op *op)
{
    const load_costs *c = self;
    dh_op_time time = c->plain->solo(c->plain->self, op);
    time.ns *= factor(c, op);
    return time;
}

static dh_op_rates beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    const load_costs *c = self;
    return c->plain->beside(c->plain->self, a, b);
}

/* Another load is another content. */
static uint64_t id_of(uint64_t id, const dh_expert_load *load)
{
    for (int64_t i = 1; id && i <= load->n_experts; i++) {
        uint64_t bits;
        memcpy(&bits, &load->by_ranks[i], sizeof bits);
        id = (id ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return id;
}

dh_status dh_load_costs(dh_ctx *ctx, dh_arena *arena, const dh_costs *plain,
                        const dh_expert_load *load, const dh_costs **costs)
{
    load_costs *own = DH_NEW(arena, load_costs);
    if (own) {
        *own = (load_costs){.costs = *plain, .plain = plain, .load = *load};
        own->costs.name = dh_arena_printf(arena, "%s, load of experts %s", plain->name, load->name);
    }
    if (!own || !own->costs.name) return dh_no_memory(ctx);
    own->costs.solo = solo;
    own->costs.beside = beside;
    own->costs.id = id_of(plain->id, load);
    own->costs.self = own;
    *costs = &own->costs;
    return DH_OK;
}
