/* A program of the forward of one hand-made graph, by the emitter that makes all programs. */
#ifndef TEST_PROGRAM_ONE_BLOCK_H
#define TEST_PROGRAM_ONE_BLOCK_H

#include "dh_test.h"

#include "program/emit.h"
#include "program/program_spec.h"

/* Takes the graph; on a rank of tensor parallelism alone, placed in memory. A layer has the model's
 * parameters. Without a backend, kernels have no scratch. */
static inline dh_program *one_block_with(const dh_model *model, const dh_backend_info *backend,
                                         dh_graph *graph, int64_t tp, int64_t rank)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_emitter *e;
    uint32_t graph_id, block, flat;
    dh_program_spec spec = {
        .recipe = {.model = *model, .dtype = DH_F32, .n_micro = 1, .backend = backend},
        .rank = rank};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, tp, 1, 1, 1, 0, 0, &spec.recipe.mesh));
    assert_ok(&ctx, dh_emitter_create(&ctx, &spec, &e));
    assert_ok(&ctx, dh_emit_add_graph(&ctx, e, graph, &graph_id));
    assert_ok(&ctx, dh_emit_add_block(&ctx, e, graph_id, 0, &block));
    if (dh_emitter_program(e)->params.n > 0) {
        assert_ok(&ctx, dh_emit_add_flat(&ctx, e, 1, &flat));
        dh_emit_join_flat(e, flat, block, block);
    }
    assert_ok(&ctx, dh_emit_layout(&ctx, e));
    assert_ok(&ctx, dh_emit_phases(&ctx, e, block, 0, DH_PHASES(DH_PHASE_F)));
    dh_program *p = dh_emitter_program(e);
    assert_ok(&ctx, dh_program_plan_memory(&ctx, p, true, NULL));
    dh_emitter_destroy(e);
    return p;
}

static inline dh_program *one_block_of(const dh_model *model, dh_graph *graph, int64_t tp,
                                       int64_t rank)
{
    return one_block_with(model, NULL, graph, tp, rank);
}

static inline dh_program *one_block(dh_graph *graph, int64_t tp, int64_t rank)
{
    return one_block_of(&(dh_model){.n_layers = 0}, graph, tp, rank);
}

#endif
