/* Building programs: from a recipe, for one rank, or for all ranks of a mesh. */
#ifndef DH_PROGRAM_PROGRAM_SPEC_H
#define DH_PROGRAM_PROGRAM_SPEC_H

#include "program/program.h"
#include "program/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One program of a recipe. */
typedef struct dh_program_spec {
    dh_recipe recipe;
    dh_mode mode; /* others than training: one micro-batch, whatever the recipe says */
    int64_t rank;
    int64_t cache_len; /* decoding: longest sequence */
    /* Bytes at the start of the slab that another program keeps there between its
     * executions: transient buffers lie behind them. 0: a slab of its own. */
    uint64_t keep_bytes;
    /* Training: a part of the step, and for DH_PART_GRADS dh_program.adds and goes_on. All parts
     * of a recipe lay out their persistent buffers alike, however many micro-batches they have. */
    dh_step_part part;
    bool adds, goes_on;
    /* Of DH_PART_GRADS: masters beside copies in compute precision and moments are not there,
     * but in another layout, which the optimizer uses. */
    bool lean;
    /* Where in the slab its persistent buffers begin: a multiple of DH_BUFFER_ALIGN. */
    uint64_t base;
    /* Transient buffers get lifetimes but no offsets, and slab_bytes is 0: several times
     * faster to build; such a program can be simulated, not verified or run. */
    bool unplaced;
    /* Places of buffers that programs of the mesh share where they can (places.h); NULL: each finds
     * its own. */
    struct dh_places *places;
    /* Of dh_mesh_verify: threads that build and verify classes of ranks; 0: as many as there are
     * cores where programs are large, else 1. The result is the same. */
    int n_threads;
    /* Training: nothing of the micro-batches, only what surrounds them: parameters and their
     * like, the reductions of gradients in the order of a backward, the optimizer. For
     * estimates; such a program says what they take, and cannot be run. */
    bool outline;
    /* Parameters made whole, and nothing else: what stands at the beginning of a training step with
     * parallel.gather=forward, for what reads them between steps. Evaluation's layout. */
    bool gathers;
    /* Training: after the step every class of operators runs once more alone. Every pair of a
     * forward and a backward class on different streams runs at the same time. Both use the data
     * of the step. It needs 2 micro-batches. */
    bool probes;
} dh_program_spec;

/* The spec of the graphs of its blocks. */
dh_graph_spec dh_program_graph_spec(const dh_program_spec *spec);

/* Arguments of the strategy's passes that are left to costs ("auto"), chosen by the recipe's: its
 * strategy is then one in the arena that has them said. Without any it stays as it is.
 * out       why: what each choice takes; NULL: nothing was left open. In the arena
 * errors    those of graphs and orders; DH_ENOMEM */
dh_status dh_recipe_settle(dh_ctx *ctx, dh_arena *arena, dh_recipe *recipe, const char **why);
/* Settles the recipe's moe_dispatch and expert_rows, which are then no longer auto. Rows travel to
 * experts in one step, or once to each node. They travel whole, or shared out over tensor-parallel
 * ranks. For auto it is the way with the shortest layer by the recipe's costs.
 * out       why: of auto, what each takes, or why there is one; NULL: both were said. In the arena
 * errors    DH_EUNSUPPORTED a way that the mesh does not have; those of graphs and orders;
 *           DH_ENOMEM */
dh_status dh_recipe_dispatch(dh_ctx *ctx, dh_arena *arena, dh_recipe *recipe, const char **why);

/* Graphs, emission in the order of the schedule, waits, memory plan. The result
 * is not yet verified. Caller frees with dh_program_destroy. */
dh_status dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program);

/* Totals of a mesh's programs. */
typedef struct dh_mesh_footprint {
    size_t n_ranks, n_classes; /* one program was built for each class of like ranks */
    uint64_t n_instrs;         /* of those */
    uint64_t slab_bytes;       /* most of any rank, */
    uint64_t all_slabs_bytes;  /* and of all of them */
    uint64_t program_bytes;    /* a program as it lies in memory, most of any rank */
    uint64_t digest;           /* of those programs */
} dh_mesh_footprint;

/* A program that so many ranks have. */
void dh_mesh_footprint_add(dh_mesh_footprint *sum, const dh_program *program, uint64_t n_ranks);

/* Builds and verifies the programs of a whole mesh: one for each class of ranks that run the same
 * instructions. That proves the same as all programs (classes.c).
 * in        spec: its rank is ignored
 * out       may be NULL; set only on DH_OK
 * errors    those of dh_program_build; DH_EVERIFY: of the lowest class that has one
 * cost      building and verifying at most 6 programs a pipeline stage and context-parallel
 *           index (12 with expert parallelism), where nodes hold groups alike; else all ranks' */
dh_status dh_mesh_verify(dh_ctx *ctx, const dh_program_spec *spec, dh_mesh_footprint *footprint);

#ifdef __cplusplus
}
#endif
#endif
