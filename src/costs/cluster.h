/* Times of operators on a cluster.
 *
 * A cluster file (YAML, clusters/README.md) gives the sizes of devices, nodes and links and a few
 * calibration constants, each with its source. The model behind it:
 *
 *   GEMM             output tiles over the device's processors, in whole waves; a tile's time is its
 *                    arithmetic over a shared axis of K + start_k, and at least that of its bytes
 *   attention        blockwise: its arithmetic at an efficiency of its own; or with the scores
 *                    in memory (before FlashAttention): batched GEMMs, softmax and dropout by bytes
 *   everything else  bytes at the memory's sustained bandwidth
 *   collectives      steps times latency plus bytes over the slowest link passed, for each
 *                    algorithm that fits; the fastest one counts
 *   two at a time    overlap effectiveness (OEF) by class of operator; both slowed down alike
 *
 * Every device runs the same program, so a node's network is shared evenly by its devices. */
#ifndef DH_COSTS_CLUSTER_H
#define DH_COSTS_CLUSTER_H

#include "costs/costs.h"
#include "dhelix/cluster.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(id, name in files, doc): classes of operators whose co-execution was measured. */
#define DH_CLUSTER_CLASS_LIST(X)                                                                   \
    X(GEMM, "gemm", "matrix products")                                                             \
    X(ATTENTION, "attention", "attention, forward")                                                \
    X(ATTENTION_GRAD, "attention_grad", "attention, backward")                                     \
    X(MEMORY, "memory", "norms, activations and others bound by memory; where absent: as gemm")    \
    X(LOCAL, "local", "communication inside a node")                                               \
    X(CROSS, "cross", "communication between nodes")

typedef enum dh_cluster_class {
#define X(id, name, doc) DH_CLUSTER_##id,
    DH_CLUSTER_CLASS_LIST(X)
#undef X
        DH_N_CLUSTER_CLASS
} dh_cluster_class;

/* How attention is computed: software, not hardware, but it decides what the device does. */
typedef enum dh_attention_kernel {
    DH_ATTENTION_BLOCKWISE,       /* FlashAttention: scores never in memory */
    DH_ATTENTION_SCORES,          /* scores and dropout mask written, kept for the backward */
    DH_ATTENTION_SCORES_RECOMPUTE /* written, not kept: the backward makes them again (Korthikanti
                                   * et al. 2022, section 5, "selective") */
} dh_attention_kernel;

typedef struct dh_cluster_link {
    double bytes_per_s;         /* one direction; of a device (local), of a node (network) */
    double efficiency;          /* of that, sustained by collectives with large messages */
    double most_bytes_per_s;    /* of a node: most that these sustain; 0: no limit (network) */
    double transfer_efficiency; /* of that, by messages from one device to another */
    double step_ns;             /* of one step of a collective, whatever its size */
    double in_switch_ns;        /* of an all-reduce that switches add up; 0: a ring's steps */
    double direct_ns;           /* of an all-to-all; 0: one step */
    double tree;       /* of efficiency's rate, by all-reduces up and down trees of nodes */
    double processors; /* of a device with which its calls reach that (link_sms.h) */
    /* The same where switches of a node add what its devices send. Of a node: share of bytes_per_s
     * by an all-reduce of all its devices. 0: they do not. */
    double in_switch;
} dh_cluster_link;

struct dh_cluster {
    dh_arena *arena; /* owns the struct and its strings */
    const char *name, *doc, *path;
    double node_devices;  /* a whole number */
    double node_switches; /* devices hang on this many switches or sockets, evenly; 1: all on one */
    /* device */
    double processors; /* multiprocessors, each working on one tile of a GEMM at a time */
    double f32_flops_per_s, bf16_flops_per_s; /* peak, dense */
    double fp8_flops_per_s;                   /* 0: there are no such products */
    double memory_bytes, memory_bytes_per_s;  /* bytes as the device's driver reports them */
    double memory_reserve; /* share of them that contexts, communicators and fragmentation take */
    double memory_efficiency; /* of peak, sustained by operators bound by memory */
    double kernel_ns;         /* least time of an operator */
    double rated_watts, limit_watts, power_exponent;
    /* GEMM */
    double gemm_efficiency; /* of peak: full waves of the largest tile, long shared axis */
    double gemm_tile_rows, gemm_tile_columns;
    double gemm_tile_half; /* tile size, rows * columns / (rows + columns), at half of peak */
    double gemm_start_k;   /* cost of starting and ending a tile, in elements of K */
    double gemm_fp8;       /* of gemm_efficiency: products of 8 bits */
    /* attention */
    dh_attention_kernel attention;
    double attention_efficiency, attention_grad_efficiency; /* of peak; blockwise */
    double attention_start_keys; /* cost of starting and ending a row of queries, in keys */
    double attention_head_half;  /* head dimension at which half of an endless one's rate is */
    double attention_block; /* queries of a block, which one processor works on; 0: no blocks */
    dh_cluster_link local, network;
    /* between switches of a node, one direction, sustained; shared by the groups that cross */
    double between_bytes_per_s;
    /* between two devices of a node, one direction, where every two have a link; 0: switches */
    double pair_bytes_per_s;
    /* Steps of a reduce-scatter that a GEMM's writes trigger (pass track-trigger): what one takes
     * to begin, and at what speeds it and computation run beside each other. */
    double trigger_ns, trigger_compute, trigger_transfer;
    double segment_ns, event_ns, host_ns;               /* dh_costs.launch_ns, event_ns, host_ns */
    double oef[DH_N_CLUSTER_CLASS][DH_N_CLUSTER_CLASS]; /* symmetric; NaN: not given */
};

/* ---- settings ---------------------------------------------------------------------------- */

/* A setting of a cluster file, for people. */
typedef struct dh_cluster_key {
    const char *key, *unit, *doc; /* unit "": none */
} dh_cluster_key;
/* The i-th; false: there are no more. */
bool dh_cluster_key_at(size_t i, dh_cluster_key *row);

/* A number by its key, in the file's unit, and the range that it may have.
 * errors    DH_EMISSING no number is called so; DH_EINVAL out of range */
typedef struct dh_cluster_number {
    double value, min, max;
} dh_cluster_number;
dh_status dh_cluster_get(dh_ctx *ctx, const dh_cluster *cluster, const char *key,
                         dh_cluster_number *number);
dh_status dh_cluster_set(dh_ctx *ctx, dh_cluster *cluster, const char *key, double value);

/* Mesh on the cluster's nodes, as by dh_mesh_init with the cluster's devices per node. Fewer ranks
 * than a node has devices lie on one node. Ranks that do not fill whole nodes lie on the fewest
 * nodes with equal numbers of ranks, at least half of a node's devices each.
 *
 * errors    DH_EINVAL no such number divides the ranks */
dh_status dh_cluster_mesh(dh_ctx *ctx, const dh_cluster *cluster, int64_t dp, int64_t tp,
                          int64_t pp, int64_t cp, int64_t ep, dh_mesh *mesh);

/* ---- parts of the model -------------------------------------------------------------------- */

typedef struct dh_gemm_shape {
    dh_dtype dtype;        /* of the operands */
    bool fp8;              /* rounded to 8 bits first */
    int64_t rows, columns; /* of the result */
    int64_t shared;        /* K */
    int64_t batch;         /* products side by side */
    double bytes;          /* operands and result */
} dh_gemm_shape;
double dh_cluster_gemm_ns(const dh_cluster *cluster, const dh_gemm_shape *shape);
/* Attention block by block, whose scores are never in memory: by its operations or its bytes. */
typedef struct dh_attention_work {
    dh_dtype dtype;
    double flops, bytes;
    /* Its parts. heads 0: not known; the rate is then that of endless work. */
    double heads;           /* heads of all samples */
    double queries, keys;   /* tokens of one head */
    double pairs, head_dim; /* pairs that meet, fewer than all under a mask; channels */
} dh_attention_work;
double dh_cluster_attention_ns(const dh_cluster *cluster, const dh_attention_work *work, bool grad);
double dh_cluster_memory_ns(const dh_cluster *cluster, double bytes);
/* Part of a communication's time in which its values are rounded to the type `wire`, and widened
 * again. */
double dh_cluster_narrowing_ns(const dh_cluster *cluster, const dh_cost_op *op);

/* X(id, name, doc): algorithms of collectives. */
#define DH_COLLECTIVE_LIST(X)                                                                      \
    X(RING, "ring", "n-1 steps between neighbours (twice that for all-reduce)")                    \
    X(TREE, "tree",                                                                                \
      "all-reduce up and down a binary tree, pipelined: few steps, all of the bytes")              \
    X(HIERARCHICAL, "hierarchical", "inside nodes, then between them")                             \
    X(IN_SWITCH, "in-switch",                                                                      \
      "all-reduce that a node's switches add up, then a tree of nodes (NCCL's NVLS)")              \
    X(DIRECT, "direct", "every member to every other at once")                                     \
    X(NEIGHBOUR, "neighbour", "one message to one peer")

typedef enum dh_collective {
#define X(id, name, doc) DH_COLLECTIVE_##id,
    DH_COLLECTIVE_LIST(X)
#undef X
        DH_N_COLLECTIVE
} dh_collective;
const char *dh_collective_name(dh_collective collective);

typedef struct dh_collective_time {
    double ns;
    dh_collective by;
} dh_collective_time;

/* How a group lies on the hardware. */
typedef struct dh_cluster_span {
    int64_t size;        /* members */
    dh_group_span nodes; /* how they lie on nodes */
    bool spread;         /* members of one node hang on several of its switches */
    double distance;     /* places in the group between the ends of a transfer; 0: neighbours */
} dh_cluster_span;
/* Time proportional to the group's size. */
dh_cluster_span dh_cluster_span_of(const dh_cluster *cluster, const dh_mesh *mesh,
                                   dh_group_kind group, int64_t rank);

/* Time of a communication operator.
 * in        bytes: the whole vector: result of an all-gather, operand of a reduce-scatter and an
 *           all-to-all, either of an all-reduce; one message of a transfer */
dh_collective_time dh_cluster_collective(const dh_cluster *cluster, dh_op_type type, double bytes,
                                         dh_cluster_span span);

/* Expected time of an exchange of rows, where every choice of experts is equally likely. A token goes
 * once to every node that has experts of its choice, and from there to their ranks.
 *
 * in        bytes: of all rows, one for each choice
 *           n_experts: experts over the group; top_k: experts that a token chooses */
double dh_cluster_dispatch_ns(const dh_cluster *cluster, double bytes, dh_cluster_span span,
                              double n_experts, double top_k);

const char *dh_cluster_class_name(dh_cluster_class cls);
dh_cluster_class dh_cluster_class_of(const dh_cost_op *op);
/* The same by type and engine alone. */
dh_cluster_class dh_cluster_class_by(dh_op_type type, dh_engine engine);
/* OEF of two classes: the file's, or that of the nearest class that it has. */
/* Share of a device's memory that contexts, communicators and fragmentation take, where nobody has
 * measured it: the mean of four published out-of-memory messages. */
#define DH_MEMORY_RESERVE 0.035
/* Memory of a device that a step may use. */
static inline double dh_cluster_usable_bytes(const dh_cluster *cluster)
{
    return cluster->memory_bytes * (1 - cluster->memory_reserve);
}
/* "76.4 GiB (79.2 GiB less 3.5 % for contexts, communicators and fragmentation)". returns text */
const char *dh_cluster_room_text(const dh_cluster *cluster, char *text, size_t n_bytes);
double dh_cluster_oef(const dh_cluster *cluster, dh_cluster_class a, dh_cluster_class b);

/* ---- costs ----------------------------------------------------------------------------------- */

/* Costs by a cluster.
 * in        cluster: must outlive the costs
 * out       in the arena; costs->name "cluster NAME"
 * errors    DH_ENOMEM */
dh_status dh_cluster_costs(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                           const dh_costs **costs);

#ifdef __cplusplus
}
#endif
#endif
