/* Estimates from FLOPs and bytes. */
#include "costs/costs.h"

/* TUNING: only ratios matter for an order. One AVX-512 core makes about 250 GFLOP/s in
 * float32 and 450 in bf16 (bench/kernels), reads memory at about 10 GB/s, and copies
 * between ranks at about 5 GB/s (bench/comm). */
static const dh_cost_model defaults = {
    .flops_per_s = 250e9,
    .bytes_per_s = 10e9,
    .link_bytes_per_s = {[DH_ENGINE_LOCAL] = 5e9, [DH_ENGINE_CROSS] = 5e9},
    .link_latency_ns = {[DH_ENGINE_LOCAL] = 10e3, [DH_ENGINE_CROSS] = 10e3},
};

static double rate(double given, double otherwise)
{
    return given > 0 ? given : otherwise;
}

/* To one other member: what comes is as much as what goes, all of it at once. */
static double exchange_ns(const dh_cost_op *op, double speed, double latency)
{
    double bytes = 0;
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->op->out[k] != DH_NONE)
            bytes += (double)dh_tensor_bytes(&op->graph->tensors.at[op->op->out[k]]);
    return latency + bytes / speed * 1e9;
}

/* To many at once: what goes and what comes have a wire each. */
static double messages_ns(const dh_cost_op *op, double speed, double latency)
{
    double bytes = 0;
    const uint32_t ends[] = {op->op->in[0], op->op->out[0]};
    for (int k = 0; k < 2; k++)
        if (ends[k] != DH_NONE)
            bytes = DH_MAX(bytes, (double)dh_tensor_bytes(&op->graph->tensors.at[ends[k]]));
    return bytes > 0 ? latency + bytes / speed * 1e9 : 0;
}

/* Bytes that a member sends, as a share of the bytes of both operands. V is the whole vector:
 *   gather, scatter   V (n-1)/n of V + V/n
 *   exchange          V (n-1)/n of 2 V
 *   all-reduce        2 V (n-1)/n of 2 V */
static double sent_share(dh_op_type type, double n)
{
    if (type == DH_OP_ALL_TO_ALL || type == DH_OP_ALL_TO_ALL_ROWS) return (n - 1) / (2 * n);
    return type == DH_OP_ALL_REDUCE ? (n - 1) / n : (n - 1) / (n + 1);
}

static double transfer_ns(const dh_cost_model *model, const dh_cost_op *op, dh_engine link)
{
    const double speed = rate(model->link_bytes_per_s[link], defaults.link_bytes_per_s[link]);
    const double latency = rate(model->link_latency_ns[link], defaults.link_latency_ns[link]);
    if (op->op->type == DH_OP_RING_EXCHANGE || op->op->type == DH_OP_RING_EXCHANGE_BOTH ||
        op->op->type == DH_OP_SHIFT || op->op->type == DH_OP_SCATTER_STEP)
        return exchange_ns(op, speed, latency);
    if (op->op->type == DH_OP_MESSAGES) return messages_ns(op, speed, latency);
    const double n = (double)dh_mesh_group_size(op->mesh, (dh_group_kind)op->op->group);
    const double bytes = dh_op_bytes(op->graph, op->op) * sent_share(op->op->type, n);
    return latency * (n - 1) + bytes / speed * 1e9;
}

static dh_op_time solo(const void *self, const dh_cost_op *op)
{
    const dh_cost_model *model = self;
    const dh_engine engine = dh_cost_engine(op);
    if (dh_engine_is_link(engine))
        return (dh_op_time){transfer_ns(model, op, engine), DH_PAIR_MODELLED};
    if (op->op->type == DH_OP_NEAR_SUM) return (dh_op_time){0, DH_PAIR_MODELLED};
    const double flops =
        dh_op_flops(op->graph, op->op) / rate(model->flops_per_s, defaults.flops_per_s);
    const double memory =
        dh_op_bytes(op->graph, op->op) / rate(model->bytes_per_s, defaults.bytes_per_s);
    return (dh_op_time){DH_MAX(flops, memory) * 1e9, DH_PAIR_MODELLED};
}

static dh_op_rates beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    (void)self;
    if (dh_costs_are_duplex(a, b)) return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
    if (dh_cost_engine(a) == dh_cost_engine(b)) return (dh_op_rates){.5, .5, DH_PAIR_MODELLED};
    return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
}

const dh_costs dh_costs_default = {
    .name = "estimates", .solo = solo, .beside = beside, .self = &defaults};

const dh_costs *dh_costs_estimated(dh_arena *arena, const dh_cost_model *model)
{
    dh_cost_model *own = DH_NEW(arena, dh_cost_model);
    dh_costs *costs = DH_NEW(arena, dh_costs);
    if (!own || !costs) return NULL;
    *own = *model;
    *costs = (dh_costs){.name = "estimates", .solo = solo, .beside = beside, .self = own};
    return costs;
}
