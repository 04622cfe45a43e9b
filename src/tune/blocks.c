/* Graphs of a rank's blocks: work and communication by phase, and lifetimes. */
#include "program/build.h"
#include "tune/tuner.h"

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory describing a block");
}

/* ---- memory --------------------------------------------------------------------------------- */

/* What a system keeps is there from the forward to the backward that uses it. */
static void add_system(const tune_system *system, tune_block *b)
{
    const dh_system_block more = dh_system_block_of(&system->row, &system->said, b->graph);
    b->lives.kept += more.kept_bytes;
    b->lives.f_peak += more.kept_bytes + more.work_bytes;
    b->lives.b_peak += more.kept_bytes + more.work_bytes;
    b->lives.i_peak += more.kept_bytes + more.work_bytes;
}

/* ---- times ---------------------------------------------------------------------------------- */

static int comm_kind(int32_t of)
{
    const dh_group_kind group = dh_group_whole((dh_group_kind)of);
    return group == DH_GROUP_CP                              ? TUNE_COMM_CP
           : group == DH_GROUP_EP || group == DH_GROUP_TP_EP ? TUNE_COMM_EP
                                                             : TUNE_COMM_TP;
}

static void add_times(const dh_program_spec *spec, tune_block *b)
{
    static const int phases[DH_N_PHASE] = {
        [DH_PHASE_F] = TUNE_F, [DH_PHASE_B] = TUNE_B, [DH_PHASE_W] = TUNE_W};
    for (size_t i = 0; i < b->graph->ops.n; i++) {
        const dh_op *op = &b->graph->ops.at[i];
        const dh_cost_op at = {b->graph, op, &spec->recipe.mesh, spec->rank};
        const int phase = phases[op->phase];
        const double ns = spec->recipe.costs->solo(spec->recipe.costs->self, &at).ns;
        if (dh_op_info_of(op->type)->resource == DH_RES_COMM) {
            b->comm_ns[phase][comm_kind(op->group)] += ns;
        } else {
            b->compute_ns[phase] += ns;
            b->n_launched[phase]++;
        }
    }
}

static unsigned streams_of(const dh_program_spec *spec, const dh_graph *g)
{
    unsigned streams = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_cost_op at = {g, &g->ops.at[i], &spec->recipe.mesh, spec->rank};
        if (dh_op_info_of(at.op->type)->resource == DH_RES_COMM)
            streams |= 1u << dh_cost_stream(&at);
    }
    return streams;
}

/* ---- entry ---------------------------------------------------------------------------------- */

dh_status tune_blocks_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                           const tune_system *system, const tune_blocks *plain,
                           tune_blocks **blocks)
{
    static const dh_block_kind kinds[TUNE_N_BLOCK] = {DH_BLOCK_EMBED, DH_BLOCK_LAYER,
                                                      DH_BLOCK_HEAD};
    const dh_mesh *m = &spec->recipe.mesh;
    const dh_shard first = {.tp = m->tp, .ep = m->ep, .whole_experts = m->whole_experts};
    tune_blocks *made = DH_NEW(arena, tune_blocks);
    if (!made) return no_memory(ctx);
    dh_status st = DH_OK;
    for (int i = 0; st == DH_OK && i < TUNE_N_BLOCK; i++) {
        tune_block *b = &made->at[i];
        if (plain && !dh_pass_recomputes(kinds[i])) {
            *b = plain->at[i];
            b->borrowed = true;
            continue;
        }
        st = plan_build_graph(ctx, spec, kinds[i], 0, first, 0, &b->graph);
        if (st == DH_OK) st = dh_block_lives_find(ctx, b->graph, spec->recipe.backend, &b->lives);
        if (st == DH_OK) {
            add_system(system, b);
            add_times(spec, b);
        }
        if (st == DH_OK && i == TUNE_HEAD && b->graph->ops.n > TUNE_MAX_HEAD_OPS) {
            dh_graph_destroy(b->graph); /* nobody looks at it again, and it is thousands */
            b->graph = NULL;
        }
    }
    if (st != DH_OK) {
        tune_blocks_fini(made);
        return st;
    }
    made->streams = streams_of(spec, made->at[TUNE_LAYER].graph);
    *blocks = made;
    return DH_OK;
}

void tune_blocks_fini(tune_blocks *blocks)
{
    for (int i = 0; i < TUNE_N_BLOCK; i++) {
        if (!blocks->at[i].borrowed) dh_graph_destroy(blocks->at[i].graph);
        blocks->at[i].graph = NULL;
    }
}
