/* A cluster as a source of costs. */
#include "costs/cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "costs/cluster_ops.h"

dh_status dh_cluster_mesh(dh_ctx *ctx, const dh_cluster *cluster, int64_t dp, int64_t tp,
                          int64_t pp, int64_t cp, int64_t ep, dh_mesh *mesh)
{
    DH_TRY(dh_mesh_init(ctx, dp, tp, pp, cp, ep, 0, 0, mesh));
    const int64_t devices = (int64_t)cluster->node_devices;
    if (mesh->ranks <= devices) return DH_OK;
    int64_t per_node = devices;
    while (mesh->ranks % per_node) per_node--;
    if (2 * per_node < devices)
        return dh_fail(
            ctx, DH_EINVAL,
            "%lld ranks do not lie evenly on nodes of %lld devices (cluster %s, "
            "node.devices); a multiple of %lld, or of a number down to half of it, would "
            "be right",
            (long long)mesh->ranks, (long long)devices, cluster->name, (long long)devices);
    return dh_mesh_init(ctx, dp, tp, pp, cp, ep, 0, per_node, mesh);
}

/* The nearest class that was measured; attention's two directions stand for each other. */
static dh_cluster_class nearest(dh_cluster_class cls)
{
    static const dh_cluster_class to[DH_N_CLUSTER_CLASS] = {
        [DH_CLUSTER_ATTENTION] = DH_CLUSTER_ATTENTION_GRAD,
        [DH_CLUSTER_ATTENTION_GRAD] = DH_CLUSTER_ATTENTION,
        [DH_CLUSTER_LOCAL] = DH_CLUSTER_LOCAL,
        [DH_CLUSTER_CROSS] = DH_CLUSTER_CROSS,
    };
    return to[cls];
}

static dh_engine engine_of(dh_cluster_class cls)
{
    return cls == DH_CLUSTER_LOCAL   ? DH_ENGINE_LOCAL
           : cls == DH_CLUSTER_CROSS ? DH_ENGINE_CROSS
                                     : DH_ENGINE_COMPUTE;
}

double dh_cluster_oef(const dh_cluster *c, dh_cluster_class a, dh_cluster_class b)
{
    const dh_cluster_class tries[][2] = {
        {a, b}, {nearest(a), b}, {a, nearest(b)}, {nearest(a), nearest(b)}};
    for (size_t i = 0; i < DH_COUNTOF(tries); i++)
        if (!isnan(c->oef[tries[i][0]][tries[i][1]])) return c->oef[tries[i][0]][tries[i][1]];
    return dh_oef_modelled(engine_of(a), engine_of(b));
}

double dh_cluster_narrowing_ns(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_op *o = op->op;
    const uint32_t ends[] = {o->in[0], o->out[0]};
    double bytes = 0;
    if (o->wire == DH_F32) return 0;
    for (int i = 0; i < 2; i++)
        bytes += (double)(dh_tensor_bytes(&op->graph->tensors.at[ends[i]]) +
                          dh_op_travel_bytes(op->graph, o, ends[i]));
    return dh_cluster_memory_ns(c, bytes);
}

static double communication_ns(const dh_cluster *c, const dh_cost_op *op)
{
    const dh_group_kind group = (dh_group_kind)op->op->group;
    double bytes = 0;
    const uint32_t ends[] = {op->op->in[0], op->op->out[0]};
    for (int i = 0; i < 2; i++)
        bytes = DH_MAX(bytes, (double)dh_op_travel_bytes(op->graph, op->op, ends[i]));
    /* Where only running tells how many rows there are: those of an even load, not the room. */
    if (op->op->type == DH_OP_ALL_TO_ALL_ROWS) bytes = dh_op_bytes(op->graph, op->op) / 2;
    /* Both directions leave by the same wires. */
    if (op->op->type == DH_OP_RING_EXCHANGE_BOTH) bytes *= 2;
    dh_cluster_span span = dh_cluster_span_of(c, op->mesh, group, op->rank);
    span.distance = op->op->by;
    const double ns =
        dh_cluster_collective(c, op->op->type, bytes, span).ns + dh_cluster_narrowing_ns(c, op);
    if (op->op->type != DH_OP_SCATTER_STEP) return ns;
    return ns - (span.nodes.n_nodes > 1 ? c->network.step_ns : c->local.step_ns) + c->trigger_ns;
}

static dh_op_time solo(const void *self, const dh_cost_op *op)
{
    if (op->op->type == DH_OP_NEAR_SUM) return (dh_op_time){0, DH_PAIR_MODELLED};
    const bool communicates = dh_op_info_of(op->op->type)->resource == DH_RES_COMM;
    const double ns = communicates ? communication_ns(self, op) : dh_cluster_op_ns(self, op);
    return (dh_op_time){ns, DH_PAIR_MODELLED};
}

/* A step's copies and additions in memory meet the accesses of what computes in the memory
 * controller, whose arbitration decides who waits. */
static dh_op_rates beside_step(const dh_cluster *c, bool first)
{
    return first ? (dh_op_rates){c->trigger_transfer, c->trigger_compute, DH_PAIR_MODELLED}
                 : (dh_op_rates){c->trigger_compute, c->trigger_transfer, DH_PAIR_MODELLED};
}

static bool is_step_beside(const dh_cost_op *step, const dh_cost_op *other)
{
    return step->op->type == DH_OP_SCATTER_STEP &&
           dh_op_info_of(other->op->type)->resource == DH_RES_COMPUTE;
}

/* From OEF alone: both slowed down alike, by 2 - OEF, while they run together (pairing.h). */
static dh_op_rates beside(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    if (dh_costs_are_duplex(a, b)) return (dh_op_rates){1, 1, DH_PAIR_MODELLED};
    if (is_step_beside(a, b)) return beside_step(self, true);
    if (is_step_beside(b, a)) return beside_step(self, false);
    const double oef = dh_cluster_oef(self, dh_cluster_class_of(a), dh_cluster_class_of(b));
    const double rate = 1 / (2 - oef);
    return (dh_op_rates){rate, rate, DH_PAIR_MODELLED};
}

dh_status dh_cluster_costs(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                           const dh_costs **costs)
{
    dh_costs *own = DH_NEW(arena, dh_costs);
    char *name = dh_arena_printf(arena, "cluster %s", cluster->name);
    if (!own || !name) return dh_no_memory(ctx);
    *own = (dh_costs){.name = name,
                      .solo = solo,
                      .beside = beside,
                      .launch_ns = cluster->segment_ns,
                      .event_ns = cluster->event_ns,
                      .host_ns = cluster->host_ns,
                      .self = cluster};
    *costs = own;
    return DH_OK;
}

const char *dh_cluster_room_text(const dh_cluster *cluster, char *text, size_t n_bytes)
{
    char room[32], all[32];
    dh_format_bytes(room, sizeof room, dh_cluster_usable_bytes(cluster));
    if (cluster->memory_reserve == 0)
        snprintf(text, n_bytes, "%s", room);
    else
        dh_snprintf(text, n_bytes,
                    "%s (%s less %.3g %% for contexts, communicators and fragmentation)", room,
                    dh_format_bytes(all, sizeof all, cluster->memory_bytes),
                    100 * cluster->memory_reserve);
    return text;
}
