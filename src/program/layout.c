/* Where parameters, gradients, moments and states lie. See emit.h. */
#include "program/emitter.h"

#include <stdlib.h>
#include <string.h>

/* Parameters [begin, end) are the block's own. */
typedef struct param_range {
    uint32_t begin, end;
} param_range;

static param_range params_of(const dh_emitter *e, uint32_t block)
{
    return (param_range){e->param0.at[block], block + 1 < e->param0.n
                                                  ? e->param0.at[block + 1]
                                                  : (uint32_t)e->program->params.n};
}

dh_status dh_emit_add_flat(dh_ctx *ctx, dh_emitter *e, int64_t n_pieces, uint32_t *id)
{
    dh_flat flat = {.first_block = DH_NONE,
                    .after = DH_NONE,
                    .n_pieces = n_pieces,
                    .reduced = {.buffer = DH_NONE},
                    .addend = {.buffer = DH_NONE},
                    .frees = DH_NONE,
                    .first_copy = DH_NONE};
    memset(flat.matrix, 0xff, sizeof flat.matrix);
    memset(flat.vector, 0xff, sizeof flat.vector);
    if (!dh_vec_push(&e->program->flats, flat)) return dh_no_memory(ctx);
    *id = (uint32_t)(e->program->flats.n - 1);
    return DH_OK;
}

/* With adapters all other blocks' parameters are. */
static bool is_frozen(const dh_emitter *e, uint32_t block)
{
    return e->spec->recipe.model.lora.rank > 0 &&
           dh_emit_graph_of(e, block)->kind != DH_BLOCK_ADAPTERS;
}

void dh_emit_join_flat(dh_emitter *e, uint32_t flat, uint32_t block, uint32_t after)
{
    dh_flat *f = &e->program->flats.at[flat];
    f->frozen = is_frozen(e, block);
    e->program->blocks.at[block].flat = flat;
    f->last_block = f->first_block == DH_NONE ? block : DH_MAX(f->last_block, block);
    f->first_block = DH_MIN(f->first_block, block);
    f->after = after;
}

void dh_emit_flat_frees(dh_emitter *e, uint32_t flat, uint32_t frees)
{
    e->program->flats.at[flat].frees = frees;
}

void dh_emit_flat_each(dh_emitter *e, uint32_t flat)
{
    e->program->flats.at[flat].reduces_each = true;
}

/* Blocks of both copies share their graphs, and the first ones come before the second. */
static uint32_t first_block_like(const dh_program *p, uint32_t again)
{
    uint32_t b = 0;
    while (p->blocks.at[b].again || p->blocks.at[b].graph != p->blocks.at[again].graph ||
           p->blocks.at[b].layer != p->blocks.at[again].layer)
        b++;
    return b;
}

void dh_emit_match_copies(dh_emitter *e)
{
    dh_program *p = e->program;
    for (uint32_t f = 0; f < p->flats.n; f++)
        if (p->blocks.at[p->flats.at[f].first_block].again)
            p->flats.at[f].first_copy =
                p->blocks.at[first_block_like(p, p->flats.at[f].first_block)].flat;
}

void dh_emit_visit_params(const dh_emitter *e, uint32_t flat, void (*visit)(uint32_t, void *),
                          void *arg)
{
    const dh_program *p = e->program;
    const dh_flat *f = &p->flats.at[flat];
    for (uint32_t b = f->first_block; b <= f->last_block; b++) {
        if (p->blocks.at[b].flat != flat) continue;
        const param_range own = params_of(e, b);
        for (uint32_t i = own.begin; i < own.end; i++) visit(i, arg);
    }
}

static uint64_t align_up(uint64_t n)
{
    return (n + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

dh_status dh_emit_persistent(dh_ctx *ctx, dh_emitter *e, dh_buffer_kind kind, uint32_t owner,
                             uint64_t n_bytes, uint32_t *id)
{
    dh_program *p = e->program;
    dh_buffer b = {.kind = kind,
                   .offset = p->persistent_bytes,
                   .n_bytes = n_bytes,
                   .owner = owner,
                   .tensor = DH_NONE,
                   .mb = -1,
                   .alias = DH_NONE};
    p->persistent_bytes += align_up(n_bytes);
    return dh_emit_buffer(ctx, e, &b, id);
}

/* Order of a block's parameters, as the enum lists them. Matrices and split vectors come first.
 * Then come vectors that all ranks of a tensor-parallel group have, whose gradients one collective
 * sums. First among them are vectors with a part for each rank's heads, even if the rank has all
 * tokens. A router's weight is next: small and float32 like these vectors, but it decays. A
 * router's bias is last if it follows the load of its experts. Adapters have a flat of their own
 * and decay. Adapters of all ranks lie where vectors of all ranks do. */
enum {
    MATRICES,
    SPLIT_VECTORS,
    HEAD_VECTORS,
    REPLICATED_VECTORS,
    ROUTERS,
    BALANCED,
    N_LAYOUT_CLASS
};

static int layout_class(const dh_param *param, bool balances)
{
    if (balances && param->kind == DH_BLOCK_LAYER && param->which == DH_PARAM_ROUTER_B)
        return BALANCED;
    if (dh_param_is_matrix(param)) return MATRICES;
    if (param->ndim > 1 && !param->shared) return ROUTERS;
    if (param->by_heads) return HEAD_VECTORS;
    return param->sharded ? SPLIT_VECTORS : REPLICATED_VECTORS;
}

typedef struct measuring {
    const dh_program *program;
    dh_flat *flat;
    int layout_class;
    bool balances;  /* recipe.balances_routers */
    int64_t *first; /* by parameter: its first element in the run it belongs to */
} measuring;

static void measure_param(uint32_t param, void *arg)
{
    measuring *m = arg;
    const dh_param *p = &m->program->params.at[param];
    if (layout_class(p, m->balances) != m->layout_class) return;
    int64_t *n = m->layout_class == MATRICES ? &m->flat->n_matrix : &m->flat->n_vector;
    m->first[param] = *n;
    *n = dh_flat_pad(*n + dh_param_elements(p), DH_FLAT_ALIGN);
}

int64_t dh_emit_flat_shards(const dh_emitter *e, uint32_t block)
{
    const dh_program *p = e->program;
    const dh_group_kind group = dh_program_data_group(p, block);
    if (is_frozen(e, block) && !e->spec->recipe.sharing.parameters)
        return 1; /* there are parameters alone */
    return e->spec->recipe.sharing.moments ? dh_mesh_group_size(&p->mesh, group) : 1;
}

void dh_emit_cut_flat(dh_flat *f, int64_t shards)
{
    const int64_t unit = DH_FLAT_ALIGN * shards;
    if (f->n_matrix == 0) f->n_pieces = 0;
    f->n_piece = f->n_pieces ? dh_flat_pad((f->n_matrix + f->n_pieces - 1) / f->n_pieces, unit) : 0;
    f->n_matrix = f->n_piece * f->n_pieces;
    f->n_shard = f->n_piece / shards;
}

/* Whether of its matrices' gradients the rank keeps shards alone. */
static bool shards_grads(const dh_emitter *e, const dh_flat *flat)
{
    return e->spec->recipe.sharing.gradients && flat->n_shard < flat->n_piece && !flat->frozen;
}

/* Whether whole gradients of its matrices last only until they are reduced. Where others leave
 * them for the optimizer, there are shards from the beginning. */
static bool reduces_early(const dh_emitter *e, const dh_flat *flat)
{
    return shards_grads(e, flat) && e->spec->part != DH_PART_UPDATE;
}

/* Elements of the flat's parameters in order; first[i] of parameter i in its run. */
static void measure_flat(const dh_emitter *e, uint32_t id, int64_t *first)
{
    const dh_program *p = e->program;
    dh_flat *flat = &p->flats.at[id];
    const dh_group_kind group = dh_program_data_group(p, flat->first_block);
    const int64_t shards = dh_emit_flat_shards(e, flat->first_block);
    measuring m = {
        .program = p, .flat = flat, .balances = e->spec->recipe.balances_routers, .first = first};
    for (int class = 0; class < N_LAYOUT_CLASS; class ++) {
        if (class == HEAD_VECTORS) flat->replicated0 = flat->n_vector;
        if (class == REPLICATED_VECTORS) flat->n_by_heads = flat->n_vector - flat->replicated0;
        if (class == ROUTERS) flat->decayed0 = flat->n_vector;
        if (class == BALANCED) flat->balanced0 = flat->n_vector;
        m.layout_class = class;
        dh_emit_visit_params(e, id, measure_param, &m);
    }
    if (dh_emit_graph_of(e, flat->first_block)->kind == DH_BLOCK_ADAPTERS)
        flat->decayed0 = flat->replicated0;
    dh_emit_cut_flat(flat, shards);
    flat->reduces_each &= reduces_early(e, flat);
    if (shards > 1) flat->shard0 = flat->n_shard * dh_mesh_group_index(&p->mesh, group, p->rank);
}

/* Whether of its matrices the rank keeps shards alone. */
static bool keeps_shards(const dh_emitter *e, const dh_flat *flat)
{
    return e->spec->recipe.sharing.parameters && flat->n_shard < flat->n_piece;
}

/* Matrix elements a persistent buffer of this kind holds. */
static int64_t matrix_elements(const dh_emitter *e, const dh_flat *flat, dh_buffer_kind kind)
{
    const bool wide = e->program->dtype != DH_F32;
    const int64_t kept = flat->n_shard * flat->n_pieces;
    /* Only what is computed with. */
    if (flat->frozen && kind != (wide ? DH_BUF_COPY : DH_BUF_MASTER)) return 0;
    if (e->spec->lean && wide && kind == DH_BUF_MASTER) return 0;
    switch (kind) {
    case DH_BUF_COPY:
        return !wide ? 0 : keeps_shards(e, flat) ? kept : flat->n_matrix;
    case DH_BUF_MASTER:
        return wide || keeps_shards(e, flat) ? kept : flat->n_matrix;
    case DH_BUF_GRAD:
        return reduces_early(e, flat) ? 0 : shards_grads(e, flat) ? kept : flat->n_matrix;
    default:
        return kept;
    }
}

/* Vector elements likewise. They are float32, except adapters' matrices among them. */
static int64_t vector_elements(const dh_emitter *e, const dh_flat *flat, dh_buffer_kind kind)
{
    const bool adapters = dh_emit_graph_of(e, flat->first_block)->kind == DH_BLOCK_ADAPTERS;
    if (kind == DH_BUF_COPY) return adapters && e->program->dtype != DH_F32 ? flat->n_vector : 0;
    return flat->frozen && kind != DH_BUF_MASTER ? 0 : flat->n_vector;
}

typedef struct placing {
    dh_program *program;
    const dh_flat *flat;
    dh_buffer_kind kind;
    int64_t n_matrix, n_vector;
    uint64_t item;
    const int64_t *first;
} placing;

static void place_param(uint32_t param, void *arg)
{
    const placing *l = arg;
    dh_program *p = l->program;
    const bool matrix = dh_param_is_matrix(&p->params.at[param]);
    p->homes.at[param].first = l->first[param];
    if (matrix ? l->n_matrix < l->flat->n_matrix : l->n_vector == 0) return; /* a shard, or none */
    const dh_operand *run = matrix ? &l->flat->matrix[l->kind] : &l->flat->vector[l->kind];
    p->homes.at[param].at[l->kind] =
        (dh_operand){run->buffer, run->byte0 + (uint64_t)l->first[param] * l->item,
                     (uint64_t)dh_param_elements(&p->params.at[param]) * l->item};
}

static dh_status layout_flat(dh_ctx *ctx, dh_emitter *e, uint32_t id, dh_buffer_kind kind,
                             const int64_t *first)
{
    dh_program *p = e->program;
    dh_flat *flat = &p->flats.at[id];
    placing l = {.program = p,
                 .flat = flat,
                 .kind = kind,
                 .n_matrix = matrix_elements(e, flat, kind),
                 .n_vector = vector_elements(e, flat, kind),
                 .item = kind == DH_BUF_COPY ? dh_dtype_bytes(p->dtype) : sizeof(float),
                 .first = first};
    const uint64_t matrix_bytes = (uint64_t)l.n_matrix * l.item;
    const uint64_t vector_bytes = (uint64_t)l.n_vector * l.item;
    if (matrix_bytes + vector_bytes == 0) return DH_OK;
    uint32_t buffer;
    DH_TRY(dh_emit_persistent(ctx, e, kind, id, matrix_bytes + vector_bytes, &buffer));
    const bool left = kind == DH_BUF_GRAD && l.n_matrix < flat->n_matrix;
    if (matrix_bytes)
        *(left ? &flat->reduced : &flat->matrix[kind]) = (dh_operand){buffer, 0, matrix_bytes};
    if (vector_bytes) flat->vector[kind] = (dh_operand){buffer, matrix_bytes, vector_bytes};
    dh_emit_visit_params(e, id, place_param, &l);
    return DH_OK;
}

/* A transient buffer of a flat's gradients, or one for each micro-batch: all of the first. */
static dh_status layout_gradients(dh_ctx *ctx, dh_emitter *e, uint32_t flat, dh_buffer_kind kind,
                                  int64_t n, bool each, dh_operand *all)
{
    dh_buffer b = {.kind = kind,
                   .owner = flat,
                   .n_bytes = (uint64_t)n * sizeof(float),
                   .tensor = DH_NONE,
                   .mb = each ? 0 : -1,
                   .alias = DH_NONE};
    *all = (dh_operand){.n_bytes = b.n_bytes};
    DH_TRY(dh_emit_buffer(ctx, e, &b, &all->buffer));
    for (uint32_t next; each && b.mb + 1 < e->program->n_micro;) {
        b.mb++;
        DH_TRY(dh_emit_buffer(ctx, e, &b, &next));
    }
    return DH_OK;
}

/* The whole gradients of a flat's matrices, and the shards they are reduced to. */
static dh_status layout_early(dh_ctx *ctx, dh_emitter *e, uint32_t id, const int64_t *first)
{
    dh_program *p = e->program;
    dh_flat f = p->flats.at[id];
    const int64_t n_shards = f.n_shard * f.n_pieces;
    DH_TRY(layout_gradients(ctx, e, id, DH_BUF_UNREDUCED, f.n_matrix, f.reduces_each,
                            &f.matrix[DH_BUF_GRAD]));
    DH_TRY(layout_gradients(ctx, e, id, DH_BUF_REDUCED, n_shards, false, &f.reduced));
    if (f.reduces_each)
        DH_TRY(layout_gradients(ctx, e, id, DH_BUF_ADDEND, n_shards, true, &f.addend));
    p->flats.at[id] = f;
    placing l = {.program = p,
                 .flat = &p->flats.at[id],
                 .kind = DH_BUF_GRAD,
                 .n_matrix = f.n_matrix,
                 .item = sizeof(float),
                 .first = first};
    dh_emit_visit_params(e, id, place_param, &l);
    return DH_OK;
}

static dh_status layout_all_early(dh_ctx *ctx, dh_emitter *e, const int64_t *first)
{
    for (uint32_t f = 0; f < e->program->flats.n; f++)
        if (reduces_early(e, &e->program->flats.at[f])) DH_TRY(layout_early(ctx, e, f, first));
    return DH_OK;
}

static dh_status layout_params(dh_ctx *ctx, dh_emitter *e, const int64_t *first, int from, int to)
{
    for (int kind = from; kind <= to; kind++)
        for (uint32_t f = 0; f < e->program->flats.n; f++)
            DH_TRY(layout_flat(ctx, e, f, (dh_buffer_kind)kind, first));
    return DH_OK;
}

/* Keys and values of all positions, or of linear attention a state instead. */
static uint64_t cache_bytes(const dh_emitter *e, const dh_model *m)
{
    if (m->attention == DH_ATTENTION_LINEAR)
        return (uint64_t)(m->n_kv_heads * m->head_dim * m->head_dim) * sizeof(float);
    return (uint64_t)(e->spec->cache_len * 2 * m->n_kv_heads * m->head_dim) *
           dh_dtype_bytes(e->program->dtype);
}

static dh_status layout_kv(dh_ctx *ctx, dh_emitter *e)
{
    const dh_model *m = &e->spec->recipe.model;
    for (int64_t layer = 0; layer < m->n_layers; layer++) {
        const dh_model own = dh_model_of_layer(m, layer);
        uint32_t id;
        DH_TRY(dh_emit_persistent(ctx, e, DH_BUF_KV, (uint32_t)layer, cache_bytes(e, &own), &id));
        if (!dh_vec_push(&e->kv, id)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static dh_status layout_routers(dh_ctx *ctx, dh_emitter *e)
{
    const uint64_t n_bytes = (uint64_t)(2 * e->spec->recipe.model.n_experts) * sizeof(double);
    for (int64_t mb = 0; mb < e->spec->recipe.n_micro && n_bytes > 0; mb++) {
        uint32_t id;
        DH_TRY(dh_emit_persistent(ctx, e, DH_BUF_STATE, DH_STATE_ROUTER, n_bytes, &id));
        e->program->buffers.at[id].mb = (int32_t)mb;
        if (!dh_vec_push(&e->routers, id)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* A sum for every region of the optimizer: pieces, or all matrices at once, and of the vectors
 * those that are split, those that all ranks have, and routers. */
static uint64_t sqsum_bytes(const dh_program *p)
{
    enum { MATRIX_REGION = 1, VECTOR_REGIONS = 3 };
    uint64_t n = 0;
    for (size_t f = 0; f < p->flats.n; f++)
        n += (uint64_t)p->flats.at[f].n_pieces + MATRIX_REGION + VECTOR_REGIONS;
    /* Where they count in parts, each repeated run of a parameter, and each end of a piece within
     * one, makes one part more. */
    for (size_t i = 0; i < p->params.n; i++) n += p->params.at[i].n_repeated > 0;
    for (size_t f = 0; p->mesh.kv_ranks > 1 && f < p->flats.n; f++)
        n += (uint64_t)p->flats.at[f].n_pieces;
    return n * DH_SQSUM_DIGITS * sizeof(double);
}

/* Bytes of the head's gradient where a tied embedding is on this rank at both ends of the model.
 * Its gradient is two sums, each by micro-batch, added once at the end, as on different ranks. A
 * single sum would take the contributions in the order of the schedule. 0 where there is no other
 * order: with one micro-batch, or with no rank to wait for. */
static uint64_t tied_bytes(const dh_emitter *e)
{
    const dh_program *p = e->program;
    const dh_mesh *m = &p->mesh;
    if (p->part == DH_PART_STEP && p->n_micro == 1) return 0;
    if (m->tp * m->cp * m->ep * m->pp == 1) return 0;
    if (e->spec->recipe.model.lora.rank > 0) return 0;
    for (uint32_t b = 0; b < p->blocks.n; b++) {
        if (dh_emit_graph_of(e, b)->kind != DH_BLOCK_HEAD) continue;
        const uint32_t param = p->blocks.at[b].params[DH_PARAM_HEAD_W];
        if (param == DH_NONE || p->homes.at[param].block == b) continue;
        return (uint64_t)dh_param_elements(&p->params.at[param]) * sizeof(float);
    }
    return 0;
}

static dh_status layout_tied(dh_ctx *ctx, dh_emitter *e)
{
    const uint64_t n_bytes = tied_bytes(e);
    if (n_bytes == 0) return DH_OK;
    return dh_emit_persistent(ctx, e, DH_BUF_STATE, DH_STATE_TIED_GRAD, n_bytes,
                              &e->states[DH_STATE_TIED_GRAD]);
}

static dh_status layout_state(dh_ctx *ctx, dh_emitter *e, dh_state state, uint64_t n_bytes)
{
    return dh_emit_persistent(ctx, e, DH_BUF_STATE, state, n_bytes, &e->states[state]);
}

/* Fused, regions that another rank counts have sums of their own, and each has a norm. */
static dh_status layout_states(dh_ctx *ctx, dh_emitter *e)
{
    const bool fused = dh_recipe_is_fused(&e->spec->recipe);
    const uint64_t n_squares = sqsum_bytes(e->program);
    const struct {
        dh_state state;
        uint64_t n_bytes;
    } states[] = {{DH_STATE_LOSS, 16},
                  {DH_STATE_AUX, 16},
                  {DH_STATE_NORM, 16},
                  {DH_STATE_SQTOTAL, DH_SQSUM_DIGITS * sizeof(double)},
                  {DH_STATE_SQSUM, fused ? 2 * n_squares : n_squares}};
    for (size_t i = 0; i < DH_COUNTOF(states); i++)
        DH_TRY(layout_state(ctx, e, states[i].state, states[i].n_bytes));
    if (fused)
        return layout_state(ctx, e, DH_STATE_NORM_SO_FAR, 2 * n_squares / DH_SQSUM_DIGITS * 2);
    if (!dh_recipe_is_post_validated(&e->spec->recipe)) return DH_OK;
    DH_TRY(layout_state(ctx, e, DH_STATE_SQCHAIN, sizeof(double[2][DH_SQSUM_DIGITS])));
    return layout_state(ctx, e, DH_STATE_NORM_SO_FAR, 16);
}

static dh_status layout_persistent(dh_ctx *ctx, dh_emitter *e, int64_t *first)
{
    const bool trains = e->program->mode == DH_MODE_TRAIN;
    for (uint32_t f = 0; f < e->program->flats.n; f++) measure_flat(e, f, first);
    DH_TRY(layout_params(ctx, e, first, DH_BUF_MASTER, DH_BUF_COPY));
    DH_TRY(layout_states(ctx, e));
    if (trains) DH_TRY(layout_routers(ctx, e));
    if (trains) DH_TRY(layout_tied(ctx, e));
    const int last = e->spec->lean ? DH_BUF_GRAD : DH_BUF_ADAM_V;
    if (trains) DH_TRY(layout_params(ctx, e, first, DH_BUF_GRAD, last));
    if (trains) DH_TRY(layout_all_early(ctx, e, first));
    return e->program->mode == DH_MODE_DECODE ? layout_kv(ctx, e) : DH_OK;
}

dh_status dh_emit_layout(dh_ctx *ctx, dh_emitter *e)
{
    dh_program *p = e->program;
    e->n_frames = (size_t)(e->spec->recipe.n_micro + 1);
    e->inputs = malloc((e->n_frames + 1) * sizeof *e->inputs);
    int64_t *first = calloc(p->params.n + 1, sizeof *first);
    dh_status st = e->inputs && first ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) {
        memset(e->inputs, 0xff, (e->n_frames + 1) * sizeof *e->inputs);
        st = layout_persistent(ctx, e, first);
    }
    if (st == DH_OK) st = dh_emit_init_params(ctx, e);
    free(first);
    return st;
}
