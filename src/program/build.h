/* Inside the folder: one rank's program while it is being built. */
#ifndef DH_PROGRAM_BUILD_H
#define DH_PROGRAM_BUILD_H

#include "plan/step_events.h"
#include "program/emit.h"
#include "program/program_spec.h"
#include "program/reductions.h"

/* TUNING: an instruction takes about 550 bytes while its program is built and verified, so that
 * the longest program takes about 1.6 GB. */
#define DH_MAX_INSTRS 3000000

/* One virtual stage held by this rank. */
typedef struct stage {
    int32_t id, copy;
    bool again;      /* of a second copy of the model, where the rank has the same of the first */
    uint32_t *chain; /* blocks in forward order: [embedding] layers [head] */
    size_t n_chain;
    uint32_t recv_forward, send_forward, recv_backward, send_backward; /* links, DH_NONE */
} stage;

/* One operator of a slot. */
typedef struct plan_item {
    uint32_t block, op;
    int32_t mb;
    uint32_t place; /* its block, or that behind whose backward the reductions come */
} plan_item;
typedef DH_VEC(plan_item) plan_items;

typedef struct plan {
    dh_emitter *emitter;
    const dh_program_spec *spec;
    const dh_schedule *schedule;
    int32_t pipe_rank;
    int64_t *layers; /* [n_stages]: layers of each virtual stage */
    stage *stages;   /* of this rank, by depth */
    size_t n_stages;
    dh_step_events events; /* of this rank, which the emission goes through */
    uint32_t data, optimizer;
    dh_reducer reducer;
    uint32_t embed_graph, head_graph; /* DH_NONE until wanted */
    /* By dh_model_layer_kind, likewise. */
    uint32_t layer_graphs[DH_N_LAYER_KINDS], experts_graphs[DH_N_LAYER_KINDS],
        adapters_graphs[DH_N_LAYER_KINDS];
    /* Without and with sums of routers; by link and direction. */
    uint32_t send_graph[2][4], recv_graph[2][4];
    DH_VEC(uint32_t) releases; /* of gathered parameters, in order */
    size_t n_gathers;          /* that have been emitted, of buckets */
    size_t n_ahead;            /* blocks of the next slot that are gathered already */
    int n_strands;             /* strands of the emitted slot */
    plan_items behind;         /* reductions that the order of a slot leaves for their event */
    struct {
        uint32_t place; /* behind whose backward they came; DH_NONE: there are none */
        dh_sums which;
        int32_t mb;
    } unsettled; /* reductions whose shards are still to be added, and whole gradients to go */
    struct slot_maker *slots;
} plan;

/* build.c */
/* Whether the schedule is of the recipe's stages and micro-batches, and can be trained.
 * errors    DH_EINVAL, DH_EUNSUPPORTED */
dh_status plan_check_schedule(dh_ctx *ctx, const dh_recipe *recipe, const dh_schedule *s);
/* The graph of a block on the rank of this shard and context-parallel index; of a layer, of one of
 * the kind that layer is of. */
dh_status plan_build_graph(dh_ctx *ctx, const dh_program_spec *spec, dh_block_kind kind,
                           int64_t layer, dh_shard shard, int64_t cp_rank, dh_graph **graph);

static inline const dh_graph *plan_graph_of(const plan *b, uint32_t block)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    return p->graphs.at[p->blocks.at[block].graph];
}

static inline bool plan_is_reduction(const plan *b, const plan_item *i)
{
    return plan_graph_of(b, i->block)->kind == DH_BLOCK_GRADS;
}

static inline bool plan_has_reductions(const plan *b, const plan_items lists[2])
{
    for (size_t i = 0; i < lists[1].n; i++)
        if (plan_is_reduction(b, &lists[1].at[i])) return true;
    return false;
}

/* slots.c */
stage *plan_stage(plan *b, int32_t copy, int32_t id); /* NULL: another rank's */
/* The stage in the copy that the action's micro-batch runs through. */
static inline stage *plan_stage_of(plan *b, const dh_pipe_action *a)
{
    return plan_stage(b, b->schedule->copy_of[a->micro], a->stage);
}
/* The stage in the first copy that the rank has of it. */
const stage *plan_first_copy(const plan *b, int32_t id);
dh_status plan_emit_slot(dh_ctx *ctx, plan *b, const dh_step_event *e);
/* Reductions after a slot, or what the slot's order left of them. */
dh_status plan_emit_reduce(dh_ctx *ctx, plan *b, const dh_step_event *e);
/* The last reductions of a step: their shards are added. */
dh_status plan_emit_settled(dh_ctx *ctx, plan *b);

/* copies.c: two copies of the model */
/* errors    DH_EUNSUPPORTED copies of the model that cannot be trained, or not with these
 *           settings */
dh_status plan_check_copies(dh_ctx *ctx, const dh_recipe *recipe, const dh_schedule *s);
static inline bool plan_has_copies(const plan *b)
{
    return b->schedule->n_copies > 1;
}

/* gathers.c: parameters that are stored as shards */
/* The blocks that make the parameters of a chain's blocks whole. After dh_emit_layout. */
dh_status plan_add_gathers(dh_ctx *ctx, plan *b, const stage *s);
/* A walk over the blocks that a strand of a slot uses one after another, forward or backward.
 * Before the first operator of block i it emits gathers of blocks up to i + prefetch that are
 * not under way. After the last use of block i it emits its release. */
typedef struct plan_walk {
    const stage *s; /* NULL: nothing is gathered for the strand */
    int32_t mb;
    bool backward;
    bool ordered; /* operators come in an order of the strategy's */
    bool stays;   /* its blocks stay whole: nothing releases them */
    /* Otherwise, for a slot of one strand with parameters gathered by virtual stage: the blocks
     * of the next slot. The first of them are gathered ahead, after this walk's last blocks. */
    const stage *then; /* NULL: nothing is gathered for it yet */
    int32_t then_mb;
    bool then_backward;
    size_t at;      /* where the item before was */
    size_t next;    /* the first block whose gathers are not emitted */
    uint32_t *left; /* [n_chain] operators that are still to use it; free */
} plan_walk;
/* list: all that the strand will emit */
dh_status plan_begin_walk(dh_ctx *ctx, plan *b, const plan_items *list, plan_walk *walk);
/* Emits an item of the strand, and what comes before and behind it. */
dh_status plan_walk_item(dh_ctx *ctx, plan *b, plan_walk *walk, const plan_item *item);

/* slot_orders.c */
dh_status slot_maker_create(dh_ctx *ctx, const dh_recipe *recipe, struct slot_maker **maker);
void slot_maker_destroy(struct slot_maker *maker);
/* The graph of the first rank of the tensor- and context-parallel groups. Shards of the
 * vocabulary and parts of the sequence differ, but all ranks must come to the same order. */
dh_status plan_graph_like(dh_ctx *ctx, plan *b, uint32_t graph, const dh_graph **like);
bool plan_orders(const plan *b); /* false: operators are emitted as they come */
/* An order of both strands' items. rest: what follows the slot. order: borrowed from the plan */
dh_status plan_find_order(dh_ctx *ctx, plan *b, const plan_items lists[2], const dh_slot_rest *rest,
                          const dh_slot_pick **order);

/* probe.c */
dh_status plan_emit_probes(dh_ctx *ctx, plan *b);

#endif
