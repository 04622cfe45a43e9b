/* Experts in other software.
 *
 * Kernels are those that Megatron-Core launches beside ours, counted in its source (core/transformer/
 * moe: router.py, moe_utils.py, token_dispatcher.py, experts.py); views launch nothing. A pass of an
 * unfused permutation is a pass over rows, and moves bytes; the other kernels are small and take as
 * long as any. Atomic additions read what they write.
 *
 * Sources: Megatron-Core 0.9 to 0.11 for unfused-experts, 0.14 for fused kernels (--moe-router-fusion,
 * --moe-permute-fusion); TransformerEngine, te_general_grouped_gemm: one product an expert. DeepEP's
 * README: a token goes once to a node, whence it is passed on to the experts there. */
#include "costs/experts.h"

#include "costs/launches.h"

/* ---- what a layer has ----------------------------------------------------------------------- */

/* Experts of this rank; 0: the graph has no products of experts. */
static double experts_here(const dh_graph *g)
{
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (op->type == DH_OP_GROUPED_LINEAR || op->type == DH_OP_GROUPED_DGRAD)
            return (double)g->tensors.at[op->in[1]].shape[0];
    }
    return 0;
}

static bool moves_rows(const dh_cost_op *op)
{
    const dh_op *o = op->op;
    return (o->type == DH_OP_ALL_TO_ALL || o->type == DH_OP_ALL_TO_ALL_ROWS) &&
           o->group == (int32_t)dh_mesh_expert_group(op->mesh) &&
           op->graph->tensors.at[o->out[0]].axis[0] == DH_AXIS_ROUTED;
}

/* Tensor-parallel ranks with the same rows, of which each has a part before they are sent. */
static bool has_shared_rows(const dh_system *system, const dh_cost_op *op)
{
    return dh_system_has(system, DH_TRAIT_SHARED_ROWS) && op->mesh->tp > 1 &&
           !op->mesh->whole_experts && experts_here(op->graph) > 0;
}

/* ---- exchanges ------------------------------------------------------------------------------ */

static double collective_ns(const dh_cluster *c, const dh_cost_op *op, dh_op_type type,
                            double bytes, dh_group_kind group)
{
    const dh_cluster_span span = dh_cluster_span_of(c, op->mesh, group, op->rank);
    return dh_cluster_collective(c, type, bytes, span).ns;
}

static double exchange_ns(const dh_system *system, const dh_cluster *c, const dh_cost_op *op,
                          double bytes)
{
    const dh_group_kind group = (dh_group_kind)op->op->group;
    const dh_cluster_span span = dh_cluster_span_of(c, op->mesh, group, op->rank);
    const double n_experts = experts_here(op->graph) * (double)span.size;
    if (!dh_system_has(system, DH_TRAIT_ONE_COPY) || n_experts <= 0)
        return dh_cluster_collective(c, DH_OP_ALL_TO_ALL, bytes, span).ns;
    return dh_cluster_dispatch_ns(c, bytes, span, n_experts, (double)op->graph->dims.top_k);
}

static double bytes_of(const dh_cost_op *op)
{
    const dh_op *o = op->op;
    const dh_tensor *t = op->graph->tensors.at;
    if (o->type == DH_OP_ALL_TO_ALL_ROWS) return dh_op_bytes(op->graph, o) / 2;
    return DH_MAX((double)dh_tensor_bytes(&t[o->in[0]]), (double)dh_tensor_bytes(&t[o->out[0]]));
}

/* Since 0.13, weights travel to the experts with the rows, and their gradients travel back with the
 * rows' gradients. Both use exchanges of their own: half of one for each exchange of rows. */
static double weights_ns(const dh_system *system, const dh_cluster *c, const dh_cost_op *op)
{
    if (!dh_system_has(system, DH_TRAIT_EXPERT_KERNELS) || dh_system_has(system, DH_TRAIT_ONE_COPY))
        return 0;
    const double row_bytes =
        (double)op->graph->dims.width * (double)dh_dtype_bytes(op->graph->dtype);
    const double rows = bytes_of(op) / row_bytes;
    return collective_ns(c, op, DH_OP_ALL_TO_ALL, rows * sizeof(float),
                         (dh_group_kind)op->op->group) /
           2;
}

/* Each rank's rows, then those of all its tensor-parallel ranks: instead of the tokens, which are
 * gathered before the router here. Results the other way round. The cheaper of both ways. */
static double rows_ns(const dh_system *system, const dh_cluster *c, const dh_cost_op *op,
                      double plain_ns)
{
    const double bytes = bytes_of(op), tp = (double)op->mesh->tp;
    const double top_k = (double)DH_MAX(op->graph->dims.top_k, 1);
    double ns =
        dh_system_has(system, DH_TRAIT_ONE_COPY) ? exchange_ns(system, c, op, bytes) : plain_ns;
    ns += weights_ns(system, c, op);
    if (!has_shared_rows(system, op)) return ns;
    const double gathered = collective_ns(c, op, DH_OP_ALL_GATHER, bytes, DH_GROUP_TP) -
                            collective_ns(c, op, DH_OP_ALL_GATHER, bytes / top_k, DH_GROUP_TP);
    return DH_MIN(ns, exchange_ns(system, c, op, bytes / tp) + DH_MAX(gathered, 0));
}

/* ---- kernels -------------------------------------------------------------------------------- */

/* Kernels in addition to the one of our operator. */
typedef struct extra {
    double fused, unfused; /* small kernels */
    double row_bytes;      /* unfused: of passes over rows, an element */
    int rows_out, rows_in; /* operand with the rows; -1: none */
    bool sorts;            /* rows by rank become rows by expert, or back */
} extra;

/* The small kernels of the router, unfused, are 45:
 *   the choice, and its scatter into a map and into weights   3 + 5
 *   with a capacity: its choice among tokens, and its map     10 + 5
 *   the loss: scores and map; the loss and its log            8 + 9
 *   conversions of types                                      5
 *
 * The order has sums, offsets and copies. Unfused, it is a stable sort. The weights of rows are
 * transposed and indexed. */
static const extra extras[DH_N_OP_TYPE] = {
    [DH_OP_ROUTER] = {10, 45, 0, -1, -1, false},
    [DH_OP_ROUTER_GRAD] = {5, 16, 0, -1, -1, false},
    [DH_OP_MOE_ORDER] = {12, 9, 0, -1, -1, false},
    [DH_OP_MOE_PERMUTE] = {3, 0, 0, 0, -1, true},
    /* product with weights (2 + 2), atomic additions' reads and second writes (4) */
    [DH_OP_MOE_UNPERMUTE] = {0, 7, 8, -1, 0, true},
    /* Bytes an element: gather 2 + 2, product 2 + 2, gradient of its other factor 2 + 2 + 2, and
     * sum 2. Our kernel has 4 of these bytes. */
    [DH_OP_MOE_UNPERMUTE_GRAD] = {1, 7, 12, 0, -1, true},
};

/* Calibrated: moe-folding, its rows of Mixtral 8x22B and Qwen2: time of a small kernel on H100 with
 * the gap before it. A cluster's kernel_us is the shortest kernel alone. */
#define SMALL_KERNEL_GAP_NS 8e3

static double small_ns(const dh_cluster *c, double kernels)
{
    return kernels * (c->kernel_ns + SMALL_KERNEL_GAP_NS);
}

static const dh_tensor *rows_of(const dh_cost_op *op, const extra *e)
{
    const dh_tensor *t = op->graph->tensors.at;
    if (e->rows_out >= 0) return &t[op->op->out[e->rows_out]];
    return e->rows_in >= 0 ? &t[op->op->in[e->rows_in]] : NULL;
}

/* Sums of how often each expert was chosen, over the ranks that share a sample's tokens. */
static double loss_ns(const dh_cluster *c, const dh_cost_op *op)
{
    if (op->op->type != DH_OP_ROUTER || op->mesh->tp <= 1) return 0;
    const double counts = 8 * (double)op->graph->tensors.at[op->op->out[1]].shape[1];
    return collective_ns(c, op, DH_OP_ALL_REDUCE, counts, DH_GROUP_TP);
}

/* The backward's unpermutation has no weights: additions alone, to zeros. */
static bool only_adds(const dh_op *op)
{
    return op->type == DH_OP_MOE_UNPERMUTE && op->in[2] == DH_NONE;
}

static double pass_bytes(const dh_op *op)
{
    return only_adds(op) ? 4 : extras[op->type].row_bytes;
}

static double n_extra(const dh_system *system, const dh_op *op)
{
    const extra *e = &extras[op->type];
    if (!dh_system_has(system, DH_TRAIT_UNFUSED_EXPERTS)) return e->fused;
    return only_adds(op) ? 1 : e->unfused;
}

static double kernels_ns(const dh_system *system, const dh_cluster *c, const dh_cost_op *op,
                         double plain_ns)
{
    const extra *e = &extras[op->op->type];
    const bool unfused = dh_system_has(system, DH_TRAIT_UNFUSED_EXPERTS);
    const double part = has_shared_rows(system, op) ? 1 / (double)op->mesh->tp : 1;
    const dh_tensor *rows = rows_of(op, e);
    double ns = rows ? plain_ns * part : plain_ns;
    ns += small_ns(c, n_extra(system, op->op)) + loss_ns(c, op);
    if (!rows) return ns;
    const double n = (double)dh_tensor_elements(rows);
    if (unfused && pass_bytes(op->op) > 0)
        ns += dh_cluster_memory_ns(c, n * part * pass_bytes(op->op));
    if (e->sorts && experts_here(op->graph) > 1)
        ns += dh_cluster_memory_ns(c, n * 2 * (double)dh_dtype_bytes(rows->dtype));
    return ns;
}

static bool is_product(dh_op_type type)
{
    return type == DH_OP_GROUPED_LINEAR || type == DH_OP_GROUPED_DGRAD ||
           type == DH_OP_GROUPED_WGRAD;
}

static bool has_kernels(const dh_system *system)
{
    return dh_system_has(system, DH_TRAIT_EXPERT_KERNELS) ||
           dh_system_has(system, DH_TRAIT_UNFUSED_EXPERTS);
}

double dh_expert_ns(const dh_system *system, const dh_cluster *cluster, const dh_cost_op *op,
                    double plain_ns)
{
    if (op->op->group >= 0 && moves_rows(op)) return rows_ns(system, cluster, op, plain_ns);
    if (!has_kernels(system)) return plain_ns;
    if (is_product(op->op->type)) return plain_ns + small_ns(cluster, experts_here(op->graph) - 1);
    const extra *e = &extras[op->op->type];
    return e->fused + e->unfused > 0 ? kernels_ns(system, cluster, op, plain_ns) : plain_ns;
}

/* ---- the host ------------------------------------------------------------------------------- */

/* TransformerEngine's backwards are Python as its forwards are; PyTorch's are its engine's. */
double dh_expert_launches(const dh_system *system, const dh_cost_op *op)
{
    if (!has_kernels(system)) return 0;
    if (is_product(op->op->type)) return experts_here(op->graph);
    const extra *e = &extras[op->op->type];
    if (e->fused + e->unfused <= 0) return 0;
    const bool by_engine =
        dh_system_has(system, DH_TRAIT_UNFUSED_EXPERTS) && op->op->phase == DH_PHASE_B;
    const double sorts = e->sorts && experts_here(op->graph) > 1;
    return (1 + n_extra(system, op->op) + sorts) * (by_engine ? DH_AUTOGRAD_SHARE : 1);
}

bool dh_expert_waits(const dh_system *system, const dh_op *op)
{
    return op->type == DH_OP_MOE_OFFSETS && has_kernels(system);
}
