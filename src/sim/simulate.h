/* Simulation: the programs of all ranks, executed on costs instead of a machine.
 *
 * The programs are those of training (dh_program_build); nothing else decides an order.
 *
 *   start          Every rank runs its streams, each in order. An instruction starts when the one
 *                  before it on its stream and all instructions that it waits for have ended,
 *                  launch_ns and event_ns later (costs.h).
 *   host           Where the host takes time for a kernel (host_ns), an instruction also waits until
 *                  the host has issued all before it, and the host for what it is to wait for.
 *   communication  It waits until all its partners have arrived, and slows nothing down meanwhile.
 *                  It then takes the longest solo time of its members.
 *   speed          While instructions run on several streams of a rank, each progresses at the
 *                  product of its pairwise rates with the others. A communication has the lowest
 *                  such speed of its members. Speeds change when an instruction begins or ends;
 *                  between these moments work is done evenly (a fluid).
 *
 * Time is whole nanoseconds from the beginning of the step, when every rank is idle. Same input,
 * same result, to the bit. */
#ifndef DH_SIM_SIMULATE_H
#define DH_SIM_SIMULATE_H

#include "costs/costs.h"
#include "program/recipe.h"
#include "report/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A rank that is slower than its costs say: what runs on an engine takes `factor` times as
 * long (links: every communication the rank is part of). */
typedef struct dh_sim_slow {
    int64_t rank;
    double factor[DH_N_ENGINE]; /* above 0; 0 counts as 1 */
} dh_sim_slow;

/* Ranks for which one is simulated. Ranks of a pipeline stage do everything at the same times,
 * except in these cases:
 *
 *   - nodes hold different groups: then every rank is simulated;
 *   - a rank is slow: on every axis the coordinates of slow ranks stay apart;
 *   - context-parallel ranks' attention has different costs;
 *   - the last tensor-parallel ranks have fewer rows of the vocabulary;
 *   - the first tensor-, context- and data-parallel ranks add vectors to the gradient norm (a
 *     vector counts once) or have position embeddings. */
typedef enum dh_sim_collapse {
    DH_SIM_AUTO, /* LIKE up to DH_SIM_MAX_LIKE ranks, beyond them STAGES */
    DH_SIM_LIKE, /* one rank for all alike: exactly as every rank by itself */
    /* Ignores the last difference, for far fewer ranks, mostly one a stage. The first ranks, which
     * have more work, stand for the others. The optimizer's part of the step is then inexact by
     * nanoseconds to microseconds. */
    DH_SIM_STAGES,
    DH_SIM_EVERY /* every rank by itself */
} dh_sim_collapse;
/* TUNING: Llama 3.1 405B on 16,384 ranks takes 0.6 s by stages, several times that by ranks
 * alike (bench/sim). */
#define DH_SIM_MAX_LIKE 512

/* Is told of a simulation as it goes on, by its thread: the programs of its ranks are built, then
 * their instructions are executed; `done` of n. */
typedef struct dh_sim_watch {
    void (*tell)(void *user, bool executes, uint64_t done, uint64_t n);
    void *user;
} dh_sim_watch;

typedef struct dh_sim_options {
    dh_sim_collapse collapse;
    bool placed;       /* buffers also get their places: slab_bytes of dh_sim_memory */
    dh_step_part part; /* of a step, and of which kind: dh_program_spec has the same */
    bool goes_on, lean;
    const dh_sim_slow *slow;
    size_t n_slow;
    /* Programs of all ranks that run at the same time, on streams of their own: parameters and
     * gradients that move while others are used. Borrowed; NULL: there are none. */
    const dh_program *const *beside; /* [ranks] */
    /* Cores that all ranks share, rank r on core r * cores / ranks, as the CPU backend binds them.
     * Ranks that compute on one core at the same time divide it. 0, or as many as ranks: no core is
     * shared. */
    int64_t cores;
    const dh_sim_watch *watch; /* borrowed; NULL: nobody is told */
    /* The caller wants sums and peaks only. A step of many micro-batches may then be simulated as
     * one of fewer, where its steady phase repeats itself to the nanosecond (steady.c). */
    bool sums;
} dh_sim_options;

/* ---- result --------------------------------------------------------------------------- */

/* Memory of a rank over the step. */
typedef struct dh_sim_memory {
    uint64_t persistent[DH_BUF_ACT];         /* by dh_buffer_kind */
    uint64_t peak_bytes;                     /* persistent and transient */
    int64_t peak_ns;                         /* when that is first reached */
    uint64_t peak_activations, peak_scratch; /* at that time */
    uint64_t slab_bytes;                     /* planned; 0 without options.placed */
    const dh_memory_point *transient;        /* [n_transient] (timeline.h) */
    size_t n_transient;
} dh_sim_memory;

/* One rank, and all those that it stands for. Of a step that is simulated as a shorter one
 * (dh_sim.n_more), program, spans, alone_ns and memory.transient are the shorter one's. */
typedef struct dh_sim_rank {
    int64_t rank;    /* the first rank with this timeline */
    int64_t n_ranks; /* that it stands for, itself included */
    int64_t stage;   /* of the pipeline */
    const dh_program *program;
    const dh_span *spans;   /* by instruction */
    const double *alone_ns; /* by instruction: what it takes with nothing beside it */
    dh_timeline times;      /* of spans */
    uint64_t n_instrs;      /* executed */
    double flops;           /* of GEMMs and attention in a step, recomputed ones included */
    dh_sim_memory memory;
} dh_sim_rank;

typedef struct dh_sim {
    dh_arena *arena;    /* owns all below but the programs, which are freed with it */
    const char *costs;  /* their name */
    int64_t step_ns;    /* until the last rank has ended */
    int64_t beside_ns;  /* until what ran beside has, on all ranks */
    int64_t n_ranks;    /* of the mesh */
    int64_t cores;      /* that these share; 0: each has its own */
    dh_sim_rank *ranks; /* [n_classes], by lowest rank */
    size_t n_classes;
    dh_program **programs;
    size_t n_programs;
    uint64_t n_instrs;                    /* of all ranks that were simulated */
    double model_flops;                   /* of a step of all ranks: dh_model_flops_per_token */
    double hardware_flops;                /* of a step of all ranks: dh_sim_rank.flops */
    int64_t tokens;                       /* of a step */
    double solo_ns_by[DH_N_PAIR_SOURCES]; /* solo times of all instructions executed, by
                                           * where they come from */
    /* The step has n_more periods of its steady phase more than programs and spans have, and
     * `shorter` one period less. NULL, 0: programs and spans are the step's. */
    struct dh_sim *shorter;
    int64_t n_more;
} dh_sim;

/* Simulate a training step.
 * in        recipe: its costs are those of the strategy's orders
 *           costs: those of the execution
 * out       set only on DH_OK; caller frees with dh_sim_destroy
 * errors    those of dh_program_build; DH_EINVAL a slow rank that is none, a factor below 0,
 *           a cost that is negative or not finite; DH_EVERIFY the programs wait for each
 *           other for ever; DH_ENOMEM
 * cost      building the programs, and O(instructions * log(ranks simulated)) */
dh_status dh_simulate(dh_ctx *ctx, const dh_recipe *recipe, const dh_costs *costs,
                      const dh_sim_options *options, dh_sim **sim);
void dh_sim_destroy(dh_sim *sim);

/* Adds the periods that programs and spans lack (dh_sim.n_more) to sums over them.
 * in        sums [n] of sim's programs and spans; shorter [n]: of those of sim->shorter
 * out       sums of the step */
void dh_sim_extend(const dh_sim *sim, const double *shorter, size_t n, double *sums);

#ifdef __cplusplus
}
#endif
#endif
