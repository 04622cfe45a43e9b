/* Collectives on node links and the network.
 *
 * An algorithm is a number of steps, each of which costs a latency, and a number of bytes that
 * every member sends over its slowest link. A ring that spans nodes leaves each of them once. Its
 * members on a node use the sum of their shares of the node's network (NCCL opens a ring for each
 * adapter). Shares are even, because all devices of a node run the same program.
 *
 * Sources: ring, Patarasu and Yuan 2009; tree, Sanders et al. 2009 (NCCL's double binary tree);
 * hierarchical, Mikami et al. 2018 (arXiv 1811.05233). */
#include <math.h>
#include <string.h>

#include "costs/cluster.h"

static const char *const names[DH_N_COLLECTIVE] = {
#define X(id, name, doc) name,
    DH_COLLECTIVE_LIST(X)
#undef X
};

const char *dh_collective_name(dh_collective collective)
{
    return names[collective];
}

/* Links of a group: rates and latencies. */
typedef struct wires {
    double n, nodes, per_node; /* members; nodes; members on a node */
    double local, network; /* bytes per ns: of a member on its node, of its share of the network */
    double local_step, network_step;
    double in_switch, direct; /* latencies inside a node */
    double tree;              /* between nodes, of a vector that goes up and down */
    double switches, trees;   /* the same of a node's switches, and of trees with them; 0: none */
    double own, between; /* local without the link between a node's switches; that link's share of
                                 a group, 0: members do not use it */
} wires;

/* Where every two devices of a node have a link, a member has those to the others of its group; a
 * message has one. */
static double own_links(const dh_cluster *c, dh_cluster_span span, bool transfer)
{
    const double n = transfer ? 1 : DH_MAX((double)span.nodes.max_per_node - 1, 1);
    return c->pair_bytes_per_s > 0 ? DH_MIN(c->local.bytes_per_s, n * c->pair_bytes_per_s)
                                   : c->local.bytes_per_s;
}

static double between_rate(const dh_cluster *c, dh_cluster_span span)
{
    const double groups = DH_MAX(c->node_devices / (double)span.nodes.max_per_node, 1);
    return c->between_bytes_per_s / groups;
}

/* Of a member on its node. Groups of one kind communicate at the same time: those of a node
 * share the link between its switches. A ring passes it once each way. */
static double local_rate(const dh_cluster *c, dh_cluster_span span, bool transfer)
{
    const double share = transfer ? c->local.transfer_efficiency : c->local.efficiency;
    const double own = own_links(c, span, transfer) * share;
    return span.spread ? DH_MIN(own, between_rate(c, span)) : own;
}

/* Every member has something of its own for every other. */
static bool is_personal(dh_op_type type)
{
    return type == DH_OP_ALL_TO_ALL || type == DH_OP_ALL_TO_ALL_ROWS;
}

static bool is_transfer(dh_op_type type)
{
    return type == DH_OP_RING_EXCHANGE || type == DH_OP_RING_EXCHANGE_BOTH || type == DH_OP_SHIFT ||
           type == DH_OP_SCATTER_STEP || type == DH_OP_SEND || type == DH_OP_RECV ||
           type == DH_OP_MESSAGES;
}

/* Messages of a pair of ranks each. */
static bool is_of_pairs(dh_op_type type)
{
    return is_personal(type) || is_transfer(type);
}

/* Of a node. NCCL has no ring for an exchange: it sends messages (nccl, src/enqueue.cc: tasks of
 * pairs). */
static double network_rate(const dh_cluster *c, dh_op_type type)
{
    if (is_of_pairs(type)) return c->network.bytes_per_s * c->network.transfer_efficiency;
    const double rate = c->network.bytes_per_s * c->network.efficiency;
    return c->network.most_bytes_per_s > 0 ? DH_MIN(rate, c->network.most_bytes_per_s) : rate;
}

static wires wires_of(const dh_cluster *c, dh_cluster_span span, dh_op_type type)
{
    const bool transfer = is_transfer(type);
    const double network = network_rate(c, type) / c->node_devices;
    const double per_node = (double)span.nodes.max_per_node;
    const bool whole = per_node >= c->node_devices; /* switches add for all of a node alone */
    return (wires){.n = (double)span.size,
                   .nodes = (double)span.nodes.n_nodes,
                   .per_node = per_node,
                   .local = local_rate(c, span, transfer) * 1e-9,
                   .own = own_links(c, span, transfer) * 1e-9 *
                          (transfer ? c->local.transfer_efficiency : c->local.efficiency),
                   .between = span.spread ? between_rate(c, span) * 1e-9 : 0,
                   .network = network * 1e-9,
                   .local_step = c->local.step_ns,
                   .network_step = c->network.step_ns,
                   .in_switch = c->local.in_switch_ns > 0 ? c->local.in_switch_ns
                                                          : (per_node - 1) * c->local.step_ns,
                   .direct = c->local.direct_ns > 0 ? c->local.direct_ns : c->local.step_ns,
                   .tree = network * per_node * c->network.tree * 1e-9,
                   .switches = whole ? c->local.bytes_per_s * c->local.in_switch * 1e-9 : 0,
                   .trees = whole ? network * per_node * c->network.in_switch * 1e-9 : 0};
}

/* Rate at which bytes go round a ring over all members. NCCL opens a ring for each adapter, and in
 * each ring another member makes the hop out of the node. Over all rings a member therefore makes
 * per_node - 1 of per_node hops inside the node. */
static double ring_rate(const wires *w)
{
    if (w->nodes <= 1) return w->local;
    const double inside = w->per_node > 1 ? w->local * w->per_node / (w->per_node - 1) : INFINITY;
    return DH_MIN(inside, w->network * w->per_node);
}

/* The mean of a ring's hops, of which one a node leaves it. */
static double ring_step(const wires *w)
{
    if (w->nodes <= 1) return w->local_step;
    return w->local_step + (w->network_step - w->local_step) * w->nodes / w->n;
}

/* Times a ring's bytes and steps are passed: twice for an all-reduce. */
static double rounds_of(dh_op_type type)
{
    return type == DH_OP_ALL_REDUCE ? 2 : 1;
}

static double ring_ns(const wires *w, dh_op_type type, double bytes)
{
    if (is_personal(type)) return INFINITY;
    const double steps = w->n - 1;
    return rounds_of(type) * (steps * ring_step(w) + bytes * steps / w->n / ring_rate(w));
}

/* Up and down a tree of nodes, the members of each in a chain. */
static double tree_steps(const wires *w)
{
    return 2 * (ceil(log2(w->nodes)) * w->network_step + (w->per_node - 1) * w->local_step);
}

/* Every byte goes up and down once; two trees use both directions of the links. Between nodes
 * only, as NCCL does it. */
static double tree_ns(const wires *w, dh_op_type type, double bytes)
{
    if (type != DH_OP_ALL_REDUCE || w->nodes <= 1) return INFINITY;
    return tree_steps(w) + bytes / DH_MIN(w->tree, w->local);
}

/* Inside a node its switches add what the devices send and give all the sum; between nodes such
 * sums go up and down a tree. Two nodes are a tree without an inner node, which would have two
 * children and a parent on its adapters. */
static double in_switch_ns(const wires *w, dh_op_type type, double bytes)
{
    if (type != DH_OP_ALL_REDUCE || w->switches <= 0) return INFINITY;
    const double inside = w->in_switch;
    if (w->nodes <= 1) return inside + bytes / w->switches;
    if (w->trees <= 0) return INFINITY;
    const double pair = w->nodes <= 2 ? 5.0 / 3 : 1;
    return inside + 2 * ceil(log2(w->nodes)) * w->network_step +
           bytes / DH_MIN(w->trees * pair, w->switches);
}

/* Members of a node work on the vector together; then those with the same part of it. */
static double hierarchical_ns(const wires *w, dh_op_type type, double bytes)
{
    if (w->nodes <= 1 || w->per_node <= 1 || is_personal(type)) return INFINITY;
    const wires inside = {
        .n = w->per_node, .nodes = 1, .local = w->local, .local_step = w->local_step};
    const double between = (w->nodes - 1) * w->network_step +
                           bytes / w->per_node * (w->nodes - 1) / w->nodes / w->network;
    return ring_ns(&inside, type, bytes) + rounds_of(type) * between;
}

/* Messages of so many bytes between every two members of a node. Each of one half of them sends to
 * each of the other over the link between switches, which a ring passes once each way. */
static double pairs_ns(const wires *w, double part)
{
    const double own = part * (w->per_node - 1) / w->own;
    if (w->between <= 0) return own;
    return DH_MAX(own, part * w->per_node * w->per_node / 4 / w->between);
}

/* To members of the same node and of others at the same time, over different wires. */
static double direct_ns(const wires *w, dh_op_type type, double bytes)
{
    if (!is_personal(type)) return INFINITY;
    const double part = bytes / w->n, far = w->n - w->per_node;
    const double near_ns = w->direct + pairs_ns(w, part);
    const double far_ns = far > 0 ? w->network_step + part * far / w->network : 0;
    return DH_MAX(near_ns, far_ns);
}

/* Time of one message to the member at that distance, when all members send one. If the group spans
 * nodes, some of the m messages of a node's m members leave the node. Their number is the distance
 * by the shorter way round, at most m: one between neighbours. They share the network of all m
 * members. */
static double neighbour_ns(const wires *w, double bytes, double distance)
{
    if (w->nodes <= 1) return w->local_step + bytes / w->local;
    const double leaving = DH_MIN(DH_MAX(DH_MIN(distance, w->n - distance), 1), w->per_node);
    return w->network_step + bytes / DH_MIN(w->local, w->network * w->per_node / leaving);
}

/* To several members at once: all of them on the node, or all on others (a group that spans nodes
 * carries what leaves them). */
static double messages_ns(const wires *w, double bytes)
{
    if (bytes <= 0) return 0;
    return w->nodes <= 1 ? w->direct + bytes / w->local : w->network_step + bytes / w->network;
}

/* Two members of one node on different switches. Members come in rank order. */
static bool is_spread(const dh_cluster *c, const dh_mesh *mesh, dh_group_kind group, int64_t rank)
{
    const int64_t n = dh_mesh_group_pattern(mesh, group);
    const int64_t on_switch = (int64_t)(c->node_devices / c->node_switches);
    int64_t last_node = -1, last_switch = -1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t member = dh_mesh_group_member(mesh, group, rank, i);
        const int64_t node = dh_mesh_node(mesh, member);
        const int64_t place = member % mesh->ranks_per_node / DH_MAX(on_switch, 1);
        if (node == last_node && place != last_switch) return true;
        last_node = node;
        last_switch = place;
    }
    return false;
}

dh_cluster_span dh_cluster_span_of(const dh_cluster *cluster, const dh_mesh *mesh,
                                   dh_group_kind group, int64_t rank)
{
    return (dh_cluster_span){.size = dh_mesh_group_size(mesh, group),
                             .nodes = dh_mesh_group_span(mesh, group, rank),
                             .spread = cluster->node_switches > 1 &&
                                       is_spread(cluster, mesh, group, rank)};
}

dh_collective_time dh_cluster_collective(const dh_cluster *cluster, dh_op_type type, double bytes,
                                         dh_cluster_span span)
{
    const wires w = wires_of(cluster, span, type);
    if (span.size <= 1) return (dh_collective_time){0, DH_COLLECTIVE_NEIGHBOUR};
    if (type == DH_OP_MESSAGES)
        return (dh_collective_time){messages_ns(&w, bytes), DH_COLLECTIVE_DIRECT};
    if (is_transfer(type))
        return (dh_collective_time){neighbour_ns(&w, bytes, span.distance),
                                    DH_COLLECTIVE_NEIGHBOUR};
    const double ns[DH_N_COLLECTIVE] = {
        [DH_COLLECTIVE_RING] = ring_ns(&w, type, bytes),
        [DH_COLLECTIVE_TREE] = tree_ns(&w, type, bytes),
        [DH_COLLECTIVE_HIERARCHICAL] = hierarchical_ns(&w, type, bytes),
        [DH_COLLECTIVE_IN_SWITCH] = in_switch_ns(&w, type, bytes),
        [DH_COLLECTIVE_DIRECT] = direct_ns(&w, type, bytes),
        [DH_COLLECTIVE_NEIGHBOUR] = INFINITY,
    };
    int best = 0;
    for (int i = 1; i < DH_N_COLLECTIVE; i++)
        if (ns[i] < ns[best]) best = i;
    return (dh_collective_time){ns[best], (dh_collective)best};
}

/* Expected number of places that have an expert of a token's choice, where the places share the
 * experts evenly. C(n - n / places, k) of the C(n, k) choices miss a given place. */
static double places_chosen(double places, double n_experts, double top_k)
{
    double missed = 1;
    for (int64_t i = 0; i < (int64_t)top_k; i++) {
        const double gone = (double)i;
        missed *= DH_MAX(n_experts - n_experts / places - gone, 0) / DH_MAX(n_experts - gone, 1);
    }
    return places * (1 - missed);
}

/* A token first goes to the rank at the sender's place on every other node with chosen experts. On
 * every node, tokens from others and the node's own go to its ranks with chosen experts. Both run
 * at the same time. */
double dh_cluster_dispatch_ns(const dh_cluster *cluster, double bytes, dh_cluster_span span,
                              double n_experts, double top_k)
{
    const wires w = wires_of(cluster, span, DH_OP_ALL_TO_ALL);
    const double token = bytes / DH_MAX(top_k, 1);
    if (span.size <= 1) return 0;
    const double ranks = places_chosen(w.n, n_experts, top_k);
    const double near_ns = w.direct + pairs_ns(&w, token * ranks / w.per_node);
    if (w.nodes <= 1) return near_ns;
    const double nodes = places_chosen(w.nodes, n_experts, top_k) * (w.nodes - 1) / w.nodes;
    return DH_MAX(near_ns, w.network_step + token * nodes / w.network);
}
