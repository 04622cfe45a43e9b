/* Strategies: which operators run at once. One row each; `dhelix list strategies`.
 *
 * Passes rewrite the graphs of blocks (pass.h). A pipeline schedule says which forward and which
 * backward share a slot. An order policy says in which order the operators of the slot are issued.
 * Overlap then follows from the streams: while the communication of one strand is under way, the
 * other strand computes. No order changes a bit of the results. A strategy is a list of passes, a
 * schedule and a policy; nothing else in the program knows its name. */
#ifndef DH_STRATEGY_STRATEGY_H
#define DH_STRATEGY_STRATEGY_H

#include <math.h>

#include "costs/costs.h"
#include "graph/pass.h"
#include "plan/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a slot ----------------------------------------------------------------------------- */

typedef struct dh_slot_op {
    dh_cost_op at;
    double ns; /* alone */
    dh_stream stream;
    uint32_t block;        /* place of its block in the strand */
    bool wgrad;            /* weight gradient: only reductions wait for it */
    bool reduces;          /* reduces gradients after the block's backward; in no pair of a plan */
    const uint32_t *preds; /* [n_preds] operators of the strand that it follows */
    /* [n_preds] the part of each predecessor's output that it reads, DH_NONE: all parts; NULL: all
     * parts of every predecessor */
    const uint32_t *pred_parts;
    uint32_t n_preds;
    const uint32_t *uses; /* [n_uses] tensors of the strand that it reads or writes, each once */
    uint32_t n_uses;
    uint64_t work_bytes; /* further memory while it runs */
    uint32_t after_f;    /* backward strand only: the first after_f operators of the forward strand
                          * come before it, since they add to the same gradient */
} dh_slot_op;

/* An activation, or the gradient of one. It takes memory from its first user (or from before the
 * slot) to its last user (or beyond the slot). */
typedef struct dh_slot_tensor {
    uint64_t n_bytes;
    bool before, beyond;
} dh_slot_tensor;

typedef struct dh_slot_strand {
    const dh_slot_op *ops; /* [n] in an order that computes */
    uint32_t n, n_blocks;
    const dh_slot_tensor *tensors; /* [n_tensors] */
    uint32_t n_tensors;
} dh_slot_strand;

/* The rest of a step after a slot with reductions. Where another rank waits for the results of the
 * slot's strands, the strands are urgent. Reductions have until the end of the step. */
typedef struct dh_slot_rest {
    double room;      /* time to that end, in times of the slot; 0: no other rank waits */
    uint32_t n_later; /* later slots of the rank with as many reductions, on the same streams */
    bool by_rule;     /* ranks of the stage may judge differently: where there is room, all
                       * reductions are put after the slot */
} dh_slot_rest;

/* Operators of a slot: strand 0 the forward of one micro-batch, strand 1 the backward of
 * another; either may be empty. Where a schedule pairs other actions (schedule.h), strand 0 is the
 * first of them. */
typedef struct dh_slot {
    dh_slot_strand strand[2];
    const dh_costs *costs;
    dh_slot_rest rest;
    struct slot_rates *rates; /* NULL, or rates that costs have given so far (again.c) */
    uint64_t one_strand_peak; /* of the order in which a job gives the operators (later.c); 0: this
                               * slot's own */
} dh_slot;

/* The next operator to issue. With `barrier` it starts when all earlier ones have ended. With
 * `behind`, a reduction starts when both strands have ended, and is issued after them. */
typedef struct dh_slot_pick {
    uint32_t op;
    uint8_t strand;
    bool barrier, behind;
} dh_slot_pick;

/* When each pick of an order would run. */
typedef struct dh_slot_timing {
    double makespan_ns;
    double period_ns; /* time that one more slot of the same kind adds; with reductions: the end of
                       * the strands, and the delay of the step by reductions beyond that */
    double busy_ns[DH_N_STREAM];
    double communication_ns;   /* own times of communications */
    double exposed_ns;         /* by which the slot is longer than its computation alone */
    double slowdown_ns;        /* ... of it: computations beside communication took longer */
    double *start_ns, *end_ns; /* [n picks], or NULL: not wanted */
} dh_slot_timing;

/* When each pick runs: streams in order, each pick after its predecessors and barrier. Operators
 * that run at the same time slow each other down as the costs say.
 * in        order [n]: every operator of the slot once, after its predecessors
 * errors    DH_ENOMEM; DH_EINVAL an order that cannot run */
dh_status dh_slot_time(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                       dh_slot_timing *timing);
/* The makespan alone, in a third of the time.
 * errors    those of dh_slot_time */
dh_status dh_slot_makespan(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order, double *ns);
/* Exposed time of a communication, and the next computation. */
typedef struct dh_slot_exposure {
    double ns;
    uint32_t next; /* pick; DH_NONE: no computation is left in the slot */
    bool needed;   /* `next` waits for this communication; else it waits for other data */
} dh_slot_exposure;
/* Whether a pick of an order communicates and is exposed.
 * in        timing: of that order, with start_ns and end_ns */
bool dh_slot_exposed(const dh_slot *slot, const dh_slot_pick *order, const dh_slot_timing *timing,
                     uint32_t pick, dh_slot_exposure *exposure);
/* Most bytes of the strands' tensors alive at once in an order; and with the backward followed by
 * the forward, which is the memory of one strand alone. */
uint64_t dh_slot_peak(const dh_slot *slot, const dh_slot_pick *order);
uint64_t dh_slot_one_strand_peak(const dh_slot *slot);
/* Appends text for people to out: totals, streams as bars over time, every operator, and exposed
 * time with its causes.
 * errors    those of dh_slot_time */
dh_status dh_slot_draw(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                       const char *title, dh_str *out);
/* Lower bound of the time of any order of the slot: the largest sum of one engine. */
double dh_slot_bound(const dh_slot *slot);

/* An operator on its way into a slot. */
typedef struct dh_slot_item {
    const dh_graph *graph; /* its block's, or that of the reductions (DH_BLOCK_GRADS) after it */
    uint32_t op;           /* of the graph */
    uint32_t block;        /* place of its block in the strand, from 0 */
    /* [n_after] earlier items of the strand that it follows, in addition to those by tensors:
     * reductions share no graph with their gradients. */
    const uint32_t *after;
    uint32_t n_after;
    uint32_t after_f;    /* dh_slot_op */
    uint64_t work_bytes; /* dh_slot_op */
} dh_slot_item;
typedef struct dh_slot_items {
    const dh_slot_item *at; /* [n] in an order that computes */
    size_t n;
} dh_slot_items;

/* Times and dependences of the operators of two strands: forward, backward. A block's x_out
 * (backward: dx_in) enters the next block.
 * in        graphs, mesh, costs: borrowed
 * out       slot: in the arena
 * errors    DH_ENOMEM */
dh_status dh_slot_build(dh_ctx *ctx, dh_arena *arena, const dh_costs *costs, const dh_mesh *mesh,
                        int64_t rank, const dh_slot_items strands[2], dh_slot **slot);
/* A slot of two graphs' blocks: the forward operators of f and the backward operators of b.
 * in        f, b: borrowed, as mesh and costs; one of them may be NULL
 * out       slot: in the arena
 * errors    DH_ENOMEM */
dh_status dh_slot_of_graphs(dh_ctx *ctx, dh_arena *arena, const dh_costs *costs,
                            const dh_mesh *mesh, int64_t rank, const dh_graph *f, const dh_graph *b,
                            dh_slot **slot);

/* ---- order policies: one row each --------------------------------------------------------- */

typedef struct dh_written_order dh_written_order; /* written.h */

typedef struct dh_order_options {
    dh_pair_options pairing; /* switches of the paper's ablation */
    bool barriers;           /* between the rounds of a plan, as in the paper; else events */
    /* Memory that an order may hold in addition to one strand's, for policies that limit it. The
     * smaller of both limits counts. Where every order needs more, the one that needs least is
     * taken. */
    double memory_blocks; /* in blocks' activations: a forward beside a backward has one to two */
    double memory_bytes;
    const dh_written_order *written; /* of policy dh_written_policy; else NULL */
    dh_pair_memo *plans;             /* borrowed; NULL: each plan is made anew */
} dh_order_options;
/* Limit where nothing is known of a device's memory: the forward of one layer fits beside the
 * backward of another, and little more. */
#define DH_ORDER_BLOCKS 1.5
#define DH_ORDER_OPTIONS_INIT                                                                      \
    {                                                                                              \
        .pairing = DH_PAIR_OPTIONS_INIT, .memory_blocks = DH_ORDER_BLOCKS,                         \
        .memory_bytes = INFINITY                                                                   \
    }

typedef struct dh_order_policy {
    const char *name;
    const char *doc; /* one line, with its source */
    /* Fills order [operators of both strands]. The caller repairs an order that breaks a
     * dependence. Where another rank waits for the slot, the policy orders the strands only, and
     * reductions are placed afterwards. NULL: strand after strand, in the given order; with
     * barriers one operator at a time. */
    dh_status (*order)(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                       dh_slot_pick *order);
    bool plans; /* it makes pairs of segments (pairing.h), so `pairing` applies */
    bool fixed; /* it looks at no cost, or at few orders only: policy auto, which tries more, leaves
                 * it out */
    bool limits; /* it keeps to the limit of memory */
} dh_order_policy;

/* Policy auto searches no further once an order takes at most this much of the bound. */
#define DH_ORDER_ENOUGH 1.01

const dh_order_policy *dh_order_policies(size_t *n);
/* errors    DH_EMISSING with the nearest name */
dh_status dh_order_policy_find(dh_ctx *ctx, const char *name, const dh_order_policy **policy);
/* A policy's order of a slot, every operator after its predecessors.
 * out       order [operators of both strands]: the caller's
 * errors    DH_EINVAL options; DH_ENOMEM */
dh_status dh_slot_order(dh_ctx *ctx, const dh_slot *slot, const dh_order_policy *policy,
                        const dh_order_options *options, dh_slot_pick *order);

/* Orders found so far, shared by the programs of a mesh. Thread-safe. Slots are the same
 * when their operators, times and dependences are; costs must be the same object. */
typedef struct dh_order_cache dh_order_cache;
dh_order_cache *dh_order_cache_create(void); /* NULL: out of memory */
void dh_order_cache_destroy(dh_order_cache *cache);
/* dh_slot_order, or its earlier result. Threads that ask for the same order at once wait for the
 * thread that makes it.
 * out       *order: borrowed from the cache
 * errors    those of dh_slot_order */
dh_status dh_order_cache_get(dh_ctx *ctx, dh_order_cache *cache, const dh_slot *slot,
                             const dh_order_policy *policy, const dh_order_options *options,
                             const dh_slot_pick **order);

/* How slots are ordered. */
typedef struct dh_ordering {
    const dh_order_policy *policy;
    dh_order_options options;
    dh_order_cache *cache; /* shared with other programs of the mesh; NULL: each its own */
} dh_ordering;

/* ---- strategies ---------------------------------------------------------------------------- */

typedef struct dh_strategy {
    const char *name;
    const char *doc;      /* one line, with its source */
    dh_pass_list passes;  /* rewrites of its graphs; arguments may be left to costs */
    const char *schedule; /* row that makes pairs for it; NULL: the job's */
    const char *policy;   /* row of dh_order_policies */
    bool barriers;
    /* Its passes are found for each job among sequences of rewrites (rewrites.h). Until then it has
     * none. */
    bool searches;
} dh_strategy;

/* All others are compared with the first. */
const dh_strategy *dh_strategies(size_t *n);
/* errors    DH_EMISSING with the nearest name */
dh_status dh_strategy_find(dh_ctx *ctx, const char *name, const dh_strategy **strategy);
/* dh_schedule_find; the message also knows names of strategies, and what others call schedules. */
dh_status dh_schedule_named(dh_ctx *ctx, const char *name, const dh_schedule_row **row);
/* The strategy that the job's setting names, in one of three forms:
 *
 *   a row's name           "dhelix"
 *   passes added to a row  "ring-gemm(both)+dhelix"
 *   a mapping              "{passes: [ring-gemm], schedule: dhelix-w, order: auto, barriers: full}"
 *
 * A key left out of the mapping is as in the first row. With a schedule that makes pairs, an absent
 * order is auto.
 *
 * out       a row, or one in the arena
 * errors    DH_EMISSING with the nearest name; DH_EINVAL */
dh_status dh_strategy_read(dh_ctx *ctx, dh_arena *arena, const char *text,
                           const dh_strategy **strategy);
/* The strategy with other passes, which were found or chosen for a job; in the arena. */
dh_status dh_strategy_with(dh_ctx *ctx, dh_arena *arena, const dh_strategy *strategy,
                           const dh_pass_list *passes, const dh_strategy **with);
/* Whether devices can run it.
 * errors    DH_EUNSUPPORTED the result of one of its passes can only be simulated, and why */
dh_status dh_strategy_runs(dh_ctx *ctx, const dh_strategy *strategy);
/* A strategy's own ordering; everything may overlap; no cache. NULL: that of the first row. */
dh_status dh_strategy_ordering(dh_ctx *ctx, const dh_strategy *strategy, dh_ordering *ordering);

#ifdef __cplusplus
}
#endif
#endif
