/* Costs with processors held by communicators (link_sms.h). */
#include "costs/link_sms.h"

typedef struct held_costs {
    dh_costs costs;
    const dh_costs *plain;
    dh_link_sms sms, before; /* now; when plain was measured */
    bool planned;            /* products were, then, for what was left */
    /* A cluster's model: as it is, for products, and for calls of each stream; NULL: there is none,
     * or nothing changes. */
    const dh_costs *whole, *products, *calls[DH_N_STREAM];
} held_costs;

int dh_link_sms_held(const dh_link_sms *sms)
{
    int n = 0;
    for (int s = 0; s < DH_N_STREAM; s++) n += sms->of[s];
    return DH_MIN(n, sms->processors / 2);
}

dh_link_sms dh_link_sms_of_cluster(const dh_cluster *cluster)
{
    return (dh_link_sms){.processors = (int)DH_MIN(cluster->processors, 1e6),
                         .full = {[DH_ENGINE_LOCAL] = (int)cluster->local.processors,
                                  [DH_ENGINE_CROSS] = (int)cluster->network.processors}};
}

/* ---- rates ----------------------------------------------------------------------------------- */

/* Of a link's, by a call of so many processors. */
static double share(const dh_link_sms *sms, dh_stream stream)
{
    const int full = sms->full[dh_stream_engine(stream)];
    return sms->of[stream] > 0 && sms->of[stream] < full ? (double)sms->of[stream] / full : 1;
}

static double left(const dh_link_sms *sms)
{
    return (double)(sms->processors - dh_link_sms_held(sms));
}

/* Planned for a number of processors; others take what is free. */
static bool is_product(const dh_op *op)
{
    return op->type == DH_OP_LINEAR || op->type == DH_OP_LINEAR_DGRAD ||
           op->type == DH_OP_LINEAR_WGRAD || op->type == DH_OP_LINEAR_GELU ||
           op->type == DH_OP_LINEAR_DGRAD_GELU;
}

/* Made by a communicator's kernels; triggered steps are made by copy engines. */
static bool is_call(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM && op->type != DH_OP_SCATTER_STEP;
}

/* ---- alone ----------------------------------------------------------------------------------- */

static double by_model(const held_costs *c, const dh_costs *other, const dh_cost_op *op)
{
    const double whole = c->whole->solo(c->whole->self, op).ns;
    return whole > 0 ? other->solo(other->self, op).ns / whole : 1;
}

static double factor(const held_costs *c, const dh_cost_op *op)
{
    if (is_call(op->op)) {
        const dh_stream stream = dh_cost_stream(op);
        if (c->calls[stream]) return by_model(c, c->calls[stream], op);
        return share(&c->before, stream) / share(&c->sms, stream);
    }
    if (!is_product(op->op)) return 1;
    if (c->products) return by_model(c, c->products, op);
    return (c->planned ? left(&c->before) : c->before.processors) / left(&c->sms);
}

static dh_op_time solo(const void *self, const dh_cost_op *op)
{
    const held_costs *c = self;
    dh_op_time time = c->plain->solo(c->plain->self, op);
    const double times = factor(c, op);
    time.ns *= times;
    if (times > 1 || times < 1) time.source = DH_PAIR_MODELLED;
    return time;
}

/* ---- beside each other ----------------------------------------------------------------------- */

/* Rate of computation during a call. The measured rate contains the loss to the processors that the
 * call had then. That part is put back, and the loss to the processors that it has now is taken. A
 * GEMM planned for the remaining processors has this loss already when it runs alone. */
static double beside_call(const held_costs *c, double rate, const dh_op *op, dh_stream stream)
{
    if (!(rate > 0)) return rate;
    const double all = c->sms.processors;
    const double then = is_product(op) && c->planned ? 1 : (all - c->before.of[stream]) / all;
    const double now = is_product(op) ? 1 : (all - c->sms.of[stream]) / all;
    return DH_MIN(1, rate / then * now);
}

static dh_op_rates beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    const held_costs *c = self;
    dh_op_rates rates = c->plain->beside(c->plain->self, a, b);
    const bool calls[2] = {is_call(a->op), is_call(b->op)};
    if (calls[0] == calls[1]) return rates;
    if (calls[0] && dh_op_info_of(b->op->type)->resource == DH_RES_COMPUTE)
        rates.b = beside_call(c, rates.b, b->op, dh_cost_stream(a));
    if (calls[1] && dh_op_info_of(a->op->type)->resource == DH_RES_COMPUTE)
        rates.a = beside_call(c, rates.a, a->op, dh_cost_stream(b));
    return rates;
}

/* ---- a cluster's model ----------------------------------------------------------------------- */

static dh_status model(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster, double processors,
                       double links, const dh_costs **costs)
{
    dh_cluster *c = DH_NEW(arena, dh_cluster);
    if (!c) return dh_no_memory(ctx);
    *c = *cluster;
    /* Tiles take as long as before, and fewer are under way. */
    c->processors = cluster->processors * processors;
    c->f32_flops_per_s *= processors;
    c->bf16_flops_per_s *= processors;
    c->fp8_flops_per_s *= processors;
    c->local.bytes_per_s *= links;
    c->network.bytes_per_s *= links;
    c->between_bytes_per_s *= links;
    return dh_cluster_costs(ctx, arena, c, costs);
}

static dh_status add_models(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                            held_costs *own)
{
    DH_TRY(model(ctx, arena, cluster, 1, 1, &own->whole));
    DH_TRY(model(ctx, arena, cluster, left(&own->sms) / own->sms.processors, 1, &own->products));
    for (int s = 0; s < DH_N_STREAM; s++)
        if (own->sms.of[s] > 0)
            DH_TRY(model(ctx, arena, cluster, 1, share(&own->sms, (dh_stream)s), &own->calls[s]));
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

/* Calls that had what they liked. */
static dh_link_sms unplanned(dh_link_sms sms)
{
    for (int s = 0; s < DH_N_STREAM; s++)
        if (sms.of[s] > 0) sms.of[s] = sms.full[dh_stream_engine((dh_stream)s)];
    return sms;
}

static uint64_t id_of(uint64_t id, const dh_link_sms *sms)
{
    for (int s = 0; id && s < DH_N_STREAM; s++)
        id = (id ^ (uint64_t)sms->of[s]) * UINT64_C(0x9e3779b97f4a7c15);
    return id;
}

dh_status dh_link_sms_costs(dh_ctx *ctx, dh_arena *arena, const dh_link_sms_basis *basis,
                            const dh_link_sms *sms, const dh_costs **costs)
{
    held_costs *own = DH_NEW(arena, held_costs);
    if (own) {
        *own = (held_costs){.costs = *basis->plain,
                            .plain = basis->plain,
                            .sms = *sms,
                            .before = basis->measured ? *basis->measured : unplanned(*sms),
                            .planned = basis->measured != NULL};
        own->costs.name = dh_arena_printf(arena, "%s, %d processors held by communicators",
                                          basis->plain->name, dh_link_sms_held(sms));
    }
    if (!own || !own->costs.name) return dh_no_memory(ctx);
    if (basis->cluster && !basis->measured) DH_TRY(add_models(ctx, arena, basis->cluster, own));
    own->costs.solo = solo;
    own->costs.beside = beside;
    own->costs.id = id_of(basis->plain->id, sms);
    own->costs.self = own;
    *costs = &own->costs;
    return DH_OK;
}
