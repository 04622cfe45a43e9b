/* Strategies: what is run beside what. One row each; `dhelix list strategies`.
 *
 * Passes rewrite the graphs of blocks (pass.h). A pipeline schedule says which forward and which
 * backward share a slot. An order policy says in what order the operators of such a slot are
 * issued; what then overlaps follows from the streams: while the communication of one strand is
 * under way, the other strand computes. No order changes a bit of the results. A strategy is a list
 * of passes, a schedule and a policy; nothing else in the program knows its name. */
#ifndef DH_STRATEGY_STRATEGY_H
#define DH_STRATEGY_STRATEGY_H

#include "costs/costs.h"
#include "graph/pass.h"

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
    bool reduces;          /* gradients, behind the block's backward: in no pair of a plan */
    const uint32_t *preds; /* [n_preds] operators of the strand that it follows */
    /* [n_preds] the part of each one's output that it wants, DH_NONE: all of it; NULL: all of all
     */
    const uint32_t *pred_parts;
    uint32_t n_preds;
    const uint32_t *uses; /* [n_uses] tensors of the strand that it reads or writes, each once */
    uint32_t n_uses;
    uint64_t work_bytes; /* that it takes besides while it runs */
    uint32_t after_f;    /* of the backward strand: the first after_f operators of the forward one
                          * come before it, since they add to the same gradient */
} dh_slot_op;

/* An activation or gradient of one: takes memory from the first operator that uses it, or from
 * before the slot, to the last one, or beyond the slot. */
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

/* What a step does behind a slot with reductions. Where another rank waits for what its strands
 * make, they are urgent, and reductions have until the end of the step. */
typedef struct dh_slot_rest {
    double room;      /* time to that end, in times of the slot; 0: no other rank waits */
    uint32_t n_later; /* slots of the rank to come with as many reductions, on the same streams */
    bool by_rule;     /* ranks of the stage may judge differently: where there is room, all
                       * reductions are put behind the slot */
} dh_slot_rest;

/* Operators of a slot: strand 0 the forward of one micro-batch, strand 1 the backward of
 * another; either may be empty. Where a schedule pairs other actions (schedule.h), strand 0 is the
 * first of them. */
typedef struct dh_slot {
    dh_slot_strand strand[2];
    const dh_costs *costs;
    dh_slot_rest rest;
    struct slot_rates *rates; /* NULL, or what costs have said so far (again.c) */
} dh_slot;

/* Next operator to issue. With barrier it starts after all issued before it have ended. A
 * reduction behind the slot starts after all of both strands have ended, and is issued after
 * them. */
typedef struct dh_slot_pick {
    uint32_t op;
    uint8_t strand;
    bool barrier, behind;
} dh_slot_pick;

/* When each pick of an order would run. */
typedef struct dh_slot_timing {
    double makespan_ns;
    double period_ns; /* what one more slot of the same kind behind it adds; with reductions: when
                       * its strands have ended, and what reductions delay the step beyond that */
    double busy_ns[DH_N_STREAM];
    double communication_ns;   /* own times of communications */
    double exposed_ns;         /* by which the slot is longer than its computation alone */
    double slowdown_ns;        /* ... of it: computations beside communication took longer */
    double *start_ns, *end_ns; /* [n picks], or NULL: not wanted */
} dh_slot_timing;

/* Streams in order, each pick after its predecessors and barrier; operators that run at
 * the same time slow each other down as the costs say.
 * in        order [n]: every operator of the slot once, after its predecessors
 * errors    DH_ENOMEM; DH_EINVAL an order that cannot run */
dh_status dh_slot_time(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                       dh_slot_timing *timing);
/* The makespan alone, in a third of the time. errors: as dh_slot_time */
dh_status dh_slot_makespan(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order, double *ns);
/* Communication that had no computation beside it for some time, and the computation after it. */
typedef struct dh_slot_exposure {
    double ns;
    uint32_t next; /* pick; DH_NONE: no computation is left in the slot */
    bool needed;   /* by next; else next waits for other data */
} dh_slot_exposure;
/* Whether a pick of an order communicates and is exposed.
 * in        timing: of that order, with start_ns and end_ns */
bool dh_slot_exposed(const dh_slot *slot, const dh_slot_pick *order, const dh_slot_timing *timing,
                     uint32_t pick, dh_slot_exposure *exposure);
/* Most bytes of the strands' tensors alive at once in an order, and in the backward followed by
 * the forward: what one strand alone takes. */
uint64_t dh_slot_peak(const dh_slot *slot, const dh_slot_pick *order);
uint64_t dh_slot_one_strand_peak(const dh_slot *slot);
/* Text for people, appended to out: totals, streams as bars over time, every operator, and what
 * stays exposed and why. errors: those of dh_slot_time */
dh_status dh_slot_draw(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                       const char *title, dh_str *out);
/* Least time any order of the slot takes: the largest sum of one engine. */
double dh_slot_bound(const dh_slot *slot);

/* An operator on its way into a slot. */
typedef struct dh_slot_item {
    const dh_graph *graph; /* of its block, or of reductions (DH_BLOCK_GRADS) behind that */
    uint32_t op;           /* of the graph */
    uint32_t block;        /* place of its block in the strand, from 0 */
    const uint32_t
        *after; /* [n_after] items of the strand before this one that it follows, whatever
                 * the tensors say: gradients are in no graph that reductions share */
    uint32_t n_after;
    uint32_t after_f;    /* dh_slot_op */
    uint64_t work_bytes; /* dh_slot_op */
} dh_slot_item;
typedef struct dh_slot_items {
    const dh_slot_item *at; /* [n] in an order that computes */
    size_t n;
} dh_slot_items;

/* Times and dependences of the operators of two strands: forward, backward. A block's x_out
 * (backward: dx_in) is what enters the next one.
 * out       slot in the arena; graphs, mesh and costs are borrowed
 * errors    DH_ENOMEM */
dh_status dh_slot_build(dh_ctx *ctx, dh_arena *arena, const dh_costs *costs, const dh_mesh *mesh,
                        int64_t rank, const dh_slot_items strands[2], dh_slot **slot);
/* A slot of two graphs' blocks: forward operators of f beside backward ones of b; either may
 * be NULL. In the arena; graphs and mesh are borrowed. errors: DH_ENOMEM */
dh_status dh_slot_of_graphs(dh_ctx *ctx, dh_arena *arena, const dh_costs *costs,
                            const dh_mesh *mesh, int64_t rank, const dh_graph *f, const dh_graph *b,
                            dh_slot **slot);

/* ---- order policies: one row each --------------------------------------------------------- */

typedef struct dh_order_options {
    dh_pair_options pairing; /* switches of the paper's ablation */
    bool barriers;           /* between the rounds of a plan, as the paper has it; else events */
    /* By how many blocks' worth of what one strand takes policies that choose among orders may
     * exceed it: forward beside backward of one layer need one to two. Where no order stays below,
     * the one that exceeds it least. */
    double memory_blocks;
} dh_order_options;
#define DH_ORDER_OPTIONS_INIT                                                                      \
    {                                                                                              \
        .pairing = DH_PAIR_OPTIONS_INIT, .memory_blocks = 1.5                                      \
    }

typedef struct dh_order_policy {
    const char *name;
    const char *doc; /* one line, with its source */
    /* order [operators of both strands]; what a policy gives is put right where it would
     * break a dependence. Where another rank waits for the slot it orders the strands, and
     * reductions are placed when that is done. NULL: as they come, strand after strand; with
     * barriers one operator at a time. */
    dh_status (*order)(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                       dh_slot_pick *order);
    bool plans; /* pairs of segments (pairing.h): the switches concern it */
    bool fixed; /* looks at no cost, or only at few orders: policy auto, which tries more, leaves it
                 * out */
} dh_order_policy;

/* Policy auto searches no further once an order takes at most this much of the bound. */
#define DH_ORDER_ENOUGH 1.01

const dh_order_policy *dh_order_policies(size_t *n);
/* errors: DH_EMISSING with the nearest name */
dh_status dh_order_policy_find(dh_ctx *ctx, const char *name, const dh_order_policy **policy);
/* A policy's order of a slot, every operator after what it needs.
 * errors: DH_ENOMEM, DH_EINVAL options */
dh_status dh_slot_order(dh_ctx *ctx, const dh_slot *slot, const dh_order_policy *policy,
                        const dh_order_options *options, dh_slot_pick *order);

/* Orders found so far, shared by the programs of a mesh. Thread-safe. Slots are the same
 * when their operators, times and dependences are; costs must be the same object. */
typedef struct dh_order_cache dh_order_cache;
dh_order_cache *dh_order_cache_create(void); /* NULL: out of memory */
void dh_order_cache_destroy(dh_order_cache *cache);
/* dh_slot_order, or what it found before. order: borrowed from the cache. Threads that ask
 * for the same order at once wait for the one that makes it. */
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
    const char *passes;   /* dh_pass_list as text */
    const char *schedule; /* row that makes pairs for it; NULL: the job's */
    const char *policy;   /* row of dh_order_policies */
    bool barriers;
} dh_strategy;

/* Passes of a row that searches: for each job they are found among sequences of rewrites
 * (rewrites.h), until then there are none. */
extern const char dh_passes_searched[];
static inline bool dh_strategy_searches(const dh_strategy *strategy)
{
    return strategy->passes == dh_passes_searched;
}

/* The first is the one that everything is compared with. */
const dh_strategy *dh_strategies(size_t *n);
/* errors: DH_EMISSING with the nearest name */
dh_status dh_strategy_find(dh_ctx *ctx, const char *name, const dh_strategy **strategy);
/* What the job's setting says: a row's name; passes added to a row, "ring-gemm(both)+dhelix"; or
 * all of it, "{passes: [ring-gemm], schedule: dhelix-w, order: auto, barriers: full}", of which
 * what is left out is as in the first row, the order beside a schedule that makes pairs auto. out
 * a row, or one in the arena errors    DH_EMISSING with the nearest name, DH_EINVAL */
dh_status dh_strategy_read(dh_ctx *ctx, dh_arena *arena, const char *text,
                           const dh_strategy **strategy);
/* What a strategy does to graphs; NULL: the first row. errors: those of dh_pass_list_parse */
dh_status dh_strategy_passes(dh_ctx *ctx, const dh_strategy *strategy, dh_pass_list *passes);
/* Whether devices can run it.
 * errors    DH_EUNSUPPORTED a pass of it makes what is simulated only, and why */
dh_status dh_strategy_runs(dh_ctx *ctx, const dh_strategy *strategy);
/* A strategy's own ordering, everything may overlap, no cache; NULL: the first row. */
dh_status dh_strategy_ordering(dh_ctx *ctx, const dh_strategy *strategy, dh_ordering *ordering);

#ifdef __cplusplus
}
#endif
#endif
