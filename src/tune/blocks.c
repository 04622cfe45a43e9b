/* Graphs of a rank's blocks: work and communication by phase, and lifetimes. */
#include "program/build.h"
#include "tune/tuner.h"

/* ---- memory --------------------------------------------------------------------------------- */

/* A system's own tensors live from the forward to the backward that uses them. */
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

/* Whatever passes make of a graph, these stay, and have as much to do. */
static bool is_sure(dh_op_type type)
{
    switch (type) {
    case DH_OP_LINEAR:
    case DH_OP_LINEAR_GELU:
    case DH_OP_LINEAR_DGRAD:
    case DH_OP_LINEAR_DGRAD_GELU:
    case DH_OP_LINEAR_WGRAD:
    case DH_OP_ATTN:
    case DH_OP_ATTN_GRAD:
    case DH_OP_RING_ATTN:
    case DH_OP_RING_ATTN_GRAD:
    case DH_OP_RING_EXCHANGE:
        return true;
    default:
        return false;
    }
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
        b->stream_ns[phase][dh_cost_stream(&at)] += ns + spec->recipe.costs->launch_ns;
        if (is_sure(op->type)) b->sure_ns[dh_cost_stream(&at)] += ns;
        if (dh_op_info_of(op->type)->resource == DH_RES_COMM) {
            b->comm_ns[phase][comm_kind(op->group)] += ns;
        } else {
            b->compute_ns[phase] += ns;
            b->n_launched[phase]++;
        }
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_block_kind kind_of(int block)
{
    return block == TUNE_EMBED  ? DH_BLOCK_EMBED
           : block == TUNE_HEAD ? DH_BLOCK_HEAD
                                : DH_BLOCK_LAYER;
}

static dh_status make_block(dh_ctx *ctx, const dh_program_spec *spec, const tune_system *system,
                            int block, int64_t layer, tune_block *b)
{
    const dh_mesh *m = &spec->recipe.mesh;
    const dh_shard first = {.tp = m->tp, .ep = m->ep, .whole_experts = m->whole_experts};
    DH_TRY(plan_build_graph(ctx, spec, kind_of(block), layer, first, 0, &b->graph));
    DH_TRY(dh_block_lives_find(ctx, b->graph, spec->recipe.backend, &b->lives));
    add_system(system, b);
    add_times(spec, b);
    if (block == TUNE_HEAD && b->graph->ops.n > TUNE_MAX_HEAD_OPS) {
        dh_graph_destroy(b->graph); /* nobody looks at it again, and it is thousands */
        b->graph = NULL;
    }
    return DH_OK;
}

/* Layers, one of each kind. */
static dh_status make_layers(dh_ctx *ctx, const dh_program_spec *spec, const tune_system *system,
                             tune_blocks *made)
{
    const dh_model *model = &spec->recipe.model;
    const dh_layer_kinds kinds = dh_model_kinds(model, 0, model->n_layers);
    int64_t most = 0;
    made->first = TUNE_LAYER + (int)dh_model_layer_kind(model, 0);
    made->last = TUNE_LAYER + (int)dh_model_layer_kind(model, model->n_layers - 1);
    for (int k = 0; k < kinds.n; k++) {
        const unsigned kind = dh_model_layer_kind(model, kinds.layer[k]);
        tune_block *b = &made->at[TUNE_LAYER + kind];
        DH_TRY(make_block(ctx, spec, system, TUNE_LAYER, kinds.layer[k], b));
        made->share[kind] = (double)kinds.count[k] / (double)model->n_layers;
        if (kinds.count[k] > most) {
            most = kinds.count[k];
            made->most = TUNE_LAYER + (int)kind;
        }
    }
    return DH_OK;
}

dh_status tune_blocks_make(dh_ctx *ctx, dh_arena *arena, const dh_program_spec *spec,
                           const tune_system *system, const tune_blocks *plain,
                           tune_blocks **blocks)
{
    static const int ends[] = {TUNE_EMBED, TUNE_HEAD};
    tune_blocks *made = DH_NEW(arena, tune_blocks);
    if (!made) return dh_no_memory(ctx);
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < DH_COUNTOF(ends); i++) {
        tune_block *b = &made->at[ends[i]];
        if (plain && !dh_pass_recomputes(kind_of(ends[i]))) {
            *b = plain->at[ends[i]];
            b->borrowed = true;
        } else {
            st = make_block(ctx, spec, system, ends[i], 0, b);
        }
    }
    if (st == DH_OK) st = make_layers(ctx, spec, system, made);
    if (st != DH_OK) {
        tune_blocks_fini(made);
        return st;
    }
    *blocks = made;
    return DH_OK;
}

/* TUNING: parts of a GEMM take as long as the whole, or longer. Rounding to tiles may make them
 * shorter, by less than this share. */
#define PARTS_GAIN 0.05

double tune_least_ns(const tune_blocks *blocks, const dh_recipe *r)
{
    double most = 0;
    for (int s = 0; s < DH_N_STREAM; s++) {
        double ns = blocks->at[TUNE_EMBED].sure_ns[s] + blocks->at[TUNE_HEAD].sure_ns[s];
        for (int k = 0; k < DH_N_LAYER_KINDS; k++)
            ns += blocks->share[k] * (double)r->model.n_layers *
                  blocks->at[TUNE_LAYER + k].sure_ns[s];
        most = DH_MAX(most, ns);
    }
    return (1 - PARTS_GAIN) * most * (double)r->n_micro / (double)r->mesh.pp;
}

void tune_blocks_fini(tune_blocks *blocks)
{
    for (int i = 0; i < TUNE_N_BLOCK; i++) {
        if (!blocks->at[i].borrowed) dh_graph_destroy(blocks->at[i].graph);
        blocks->at[i].graph = NULL;
    }
}
