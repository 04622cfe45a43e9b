/* Emission of instructions, operands and waits. See emit.h.
 *
 * Waits: every instruction carries a vector clock, the last instruction of each
 * stream known to be complete when it starts. A dependence already implied by
 * the clock needs no wait; the rest become waits, the fewest the order allows. */
#include "program/emit.h"

#include <stdlib.h>
#include <string.h>

/* Instruction ids plus one; 0 means none. */
typedef struct clock_vec {
    uint32_t at[DH_N_STREAM];
} clock_vec;

typedef struct accesses {
    clock_vec writes, reads; /* last on each stream */
} accesses;

/* Accesses of a range of a buffer. Ranges of one buffer may overlap. */
typedef struct piece {
    uint64_t byte0, n_bytes;
    uint32_t next; /* of the same buffer, DH_NONE */
    accesses seen;
} piece;

struct dh_emitter {
    const dh_program_spec *spec;
    dh_program *program;
    DH_VEC(piece) pieces;
    DH_VEC(uint32_t) piece0;                       /* by buffer: its first piece, DH_NONE */
    accesses (*param_accesses)[DH_BUF_ADAM_V + 1]; /* by parameter and kind, in place of pieces */
    DH_VEC(uint32_t) param0; /* by block: its first own parameter; the others follow */
    DH_VEC(clock_vec) done;  /* by instruction: what is known complete after it */
    clock_vec known[DH_N_STREAM];
    clock_vec barrier;              /* what every further instruction comes after */
    DH_VEC(uint32_t **) frames;     /* [block][micro-batch] -> buffer by tensor, or NULL */
    size_t n_frames;                /* micro-batches, and one for what belongs to none */
    uint32_t (*inputs)[DH_N_INPUT]; /* by micro-batch */
    uint32_t states[DH_N_STATE];
    DH_VEC(uint32_t) routers; /* DH_STATE_ROUTER by micro-batch */
    DH_VEC(uint32_t) kv;      /* by layer */
};

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory building a program");
}

/* ---- life cycle ------------------------------------------------------------------------ */

dh_status dh_emitter_create(dh_ctx *ctx, const dh_program_spec *spec, dh_emitter **emitter)
{
    dh_emitter *e = calloc(1, sizeof *e);
    dh_program *p = calloc(1, sizeof *p);
    if (p) p->arena = dh_arena_create();
    if (!e || !p || !p->arena) {
        free(e);
        dh_program_destroy(p);
        return no_memory(ctx);
    }
    p->mode = spec->mode;
    p->dtype = spec->recipe.dtype;
    p->mesh = spec->recipe.mesh;
    p->rank = spec->rank;
    p->n_micro = spec->recipe.n_micro;
    p->result.buffer = DH_NONE;
    e->spec = spec;
    e->program = p;
    memset(e->states, 0xff, sizeof e->states);
    *emitter = e;
    return DH_OK;
}

void dh_emitter_destroy(dh_emitter *emitter)
{
    if (!emitter) return;
    for (size_t b = 0; b < emitter->frames.n; b++) {
        for (size_t i = 0; i < emitter->n_frames; i++) free(emitter->frames.at[b][i]);
        free(emitter->frames.at[b]);
    }
    dh_vec_fini(&emitter->frames);
    free(emitter->inputs);
    free(emitter->param_accesses);
    dh_vec_fini(&emitter->pieces);
    dh_vec_fini(&emitter->piece0);
    dh_vec_fini(&emitter->param0);
    dh_vec_fini(&emitter->done);
    dh_vec_fini(&emitter->kv);
    dh_vec_fini(&emitter->routers);
    free(emitter);
}

dh_program *dh_emitter_program(dh_emitter *emitter)
{
    return emitter->program;
}

dh_shard dh_emit_shard(const dh_emitter *emitter)
{
    const dh_program *p = emitter->program;
    const dh_coord c = dh_mesh_coord(&p->mesh, p->rank);
    return (dh_shard){.tp = p->mesh.tp, .tp_rank = c.tp, .ep = p->mesh.ep, .ep_rank = c.ep};
}

/* ---- graphs, blocks, parameters -------------------------------------------------------------- */

dh_status dh_emit_add_graph(dh_ctx *ctx, dh_emitter *e, dh_graph *graph, uint32_t *id)
{
    if (!dh_vec_push(&e->program->graphs, graph)) {
        dh_graph_destroy(graph);
        return no_memory(ctx);
    }
    *id = (uint32_t)(e->program->graphs.n - 1);
    return dh_graph_check(ctx, graph);
}

/* A tied head finds the embedding's, if that is here, a layer its experts'. */
static dh_status add_param(dh_ctx *ctx, dh_program *p, dh_block_kind kind, const dh_param *param,
                           uint32_t *id)
{
    *id = param->kind == kind ? DH_NONE : dh_program_param(p, param->name);
    if (*id != DH_NONE) return DH_OK;
    dh_param_home home = {.block = (uint32_t)p->blocks.n};
    memset(home.at, 0xff, sizeof home.at);
    if (!dh_vec_push(&p->params, *param) || !dh_vec_push(&p->homes, home)) return no_memory(ctx);
    *id = (uint32_t)(p->params.n - 1);
    return DH_OK;
}

dh_status dh_emit_add_block(dh_ctx *ctx, dh_emitter *e, uint32_t graph, int layer, uint32_t *id)
{
    dh_program *p = e->program;
    dh_block block = {.graph = graph, .layer = layer, .flat = DH_NONE};
    dh_block_kind kind = p->graphs.at[graph]->kind;
    if (!dh_vec_push(&e->param0, (uint32_t)p->params.n)) return no_memory(ctx);
    for (uint32_t slot = 0; slot < DH_MAX_SLOT; slot++) {
        dh_param param;
        block.params[slot] = DH_NONE;
        if (dh_param_describe(&e->spec->recipe.model, kind, layer, slot, &param) &&
            dh_param_shard(&param, dh_emit_shard(e), &param))
            DH_TRY(add_param(ctx, p, kind, &param, &block.params[slot]));
    }
    if (!dh_vec_push(&p->blocks, block)) return no_memory(ctx);
    *id = (uint32_t)(p->blocks.n - 1);
    return DH_OK;
}

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

dh_block *dh_emit_block(dh_emitter *e, uint32_t id)
{
    return &e->program->blocks.at[id];
}

dh_status dh_emit_range(dh_ctx *ctx, dh_emitter *e, dh_operand operand, uint32_t *range)
{
    *range = DH_NONE;
    if (operand.buffer == DH_NONE) return DH_OK;
    if (!dh_vec_push(&e->program->ranges, operand)) return no_memory(ctx);
    *range = (uint32_t)(e->program->ranges.n - 1);
    return DH_OK;
}

dh_status dh_emit_add_flat(dh_ctx *ctx, dh_emitter *e, int64_t n_pieces, uint32_t *id)
{
    dh_flat flat = {.first_block = DH_NONE, .after = DH_NONE, .n_pieces = n_pieces};
    memset(flat.matrix, 0xff, sizeof flat.matrix);
    memset(flat.vector, 0xff, sizeof flat.vector);
    if (!dh_vec_push(&e->program->flats, flat)) return no_memory(ctx);
    *id = (uint32_t)(e->program->flats.n - 1);
    return DH_OK;
}

void dh_emit_join_flat(dh_emitter *e, uint32_t flat, uint32_t block, uint32_t after)
{
    dh_flat *f = &e->program->flats.at[flat];
    e->program->blocks.at[block].flat = flat;
    f->last_block = f->first_block == DH_NONE ? block : DH_MAX(f->last_block, block);
    f->first_block = DH_MIN(f->first_block, block);
    f->after = after;
}

/* ---- buffers -------------------------------------------------------------------------------- */

static dh_status add_buffer(dh_ctx *ctx, dh_emitter *e, const dh_buffer *buffer, uint32_t *id)
{
    if (!dh_vec_push(&e->program->buffers, *buffer) || !dh_vec_push(&e->piece0, DH_NONE))
        return no_memory(ctx);
    *id = (uint32_t)(e->program->buffers.n - 1);
    return DH_OK;
}

static uint64_t align_up(uint64_t n)
{
    return (n + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
}

static dh_status add_persistent(dh_ctx *ctx, dh_emitter *e, dh_buffer_kind kind, uint32_t owner,
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
    return add_buffer(ctx, e, &b, id);
}

static int64_t pad(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Order of a block's parameters: matrices; split vectors; vectors that all ranks of a
 * tensor-parallel group have, whose gradients one collective sums; with these a router's
 * weight, which is small and float32 as they are, but decays. */
enum { MATRICES, SPLIT_VECTORS, REPLICATED_VECTORS, ROUTERS, N_LAYOUT_CLASS };

static int layout_class(const dh_param *param)
{
    if (dh_param_is_matrix(param)) return MATRICES;
    return param->ndim > 1 ? ROUTERS : param->sharded ? SPLIT_VECTORS : REPLICATED_VECTORS;
}

/* Calls visit for each parameter of a flat, in the order of blocks. */
static void visit_params(const dh_emitter *e, uint32_t flat, void (*visit)(uint32_t, void *),
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

typedef struct measuring {
    const dh_program *program;
    dh_flat *flat;
    int layout_class;
    int64_t *first; /* by parameter: its first element in the run it belongs to */
} measuring;

static void measure_param(uint32_t param, void *arg)
{
    measuring *m = arg;
    const dh_param *p = &m->program->params.at[param];
    if (layout_class(p) != m->layout_class) return;
    int64_t *n = m->layout_class == MATRICES ? &m->flat->n_matrix : &m->flat->n_vector;
    m->first[param] = *n;
    *n = pad(*n + dh_param_elements(p), DH_FLAT_ALIGN);
}

/* Cuts the matrices into as few equal pieces as n_pieces, which is what it takes on the first
 * tensor-parallel rank, or fewer where padding fills the last ones. */
static void cut_pieces(dh_flat *f, int64_t shards)
{
    const int64_t unit = DH_FLAT_ALIGN * shards;
    f->n_piece = f->n_matrix ? pad((f->n_matrix + f->n_pieces - 1) / f->n_pieces, unit) : 0;
    f->n_pieces = f->n_matrix ? (f->n_matrix + f->n_piece - 1) / f->n_piece : 0;
    f->n_matrix = f->n_piece * f->n_pieces;
    f->n_shard = f->n_piece / shards;
}

/* Elements of the flat's parameters in order; first[i] of parameter i in its run. */
static void measure_flat(const dh_emitter *e, uint32_t id, int64_t *first)
{
    const dh_program *p = e->program;
    dh_flat *flat = &p->flats.at[id];
    const dh_group_kind group = dh_program_data_group(p, flat->first_block);
    const int64_t shards = e->spec->recipe.zero1 ? dh_mesh_group_size(&p->mesh, group) : 1;
    measuring m = {.program = p, .flat = flat, .first = first};
    for (int class = 0; class < N_LAYOUT_CLASS; class ++) {
        if (class == REPLICATED_VECTORS) flat->replicated0 = flat->n_vector;
        if (class == ROUTERS) flat->decayed0 = flat->n_vector;
        m.layout_class = class;
        visit_params(e, id, measure_param, &m);
    }
    cut_pieces(flat, shards);
    if (shards > 1) flat->shard0 = flat->n_shard * dh_mesh_group_index(&p->mesh, group, p->rank);
}

/* Matrix elements a buffer of this kind holds. */
static int64_t matrix_elements(const dh_emitter *e, const dh_flat *flat, dh_buffer_kind kind)
{
    const bool wide = e->program->dtype != DH_F32;
    const int64_t kept = flat->n_shard * flat->n_pieces;
    switch (kind) {
    case DH_BUF_COPY:
        return wide ? flat->n_matrix : 0;
    case DH_BUF_MASTER:
        return wide ? kept : flat->n_matrix;
    case DH_BUF_GRAD:
        return flat->n_matrix;
    default:
        return kept;
    }
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
                 .n_vector = kind == DH_BUF_COPY ? 0 : flat->n_vector,
                 .item = kind == DH_BUF_COPY ? dh_dtype_bytes(p->dtype) : sizeof(float),
                 .first = first};
    const uint64_t matrix_bytes = (uint64_t)l.n_matrix * l.item;
    const uint64_t vector_bytes = (uint64_t)l.n_vector * l.item;
    if (matrix_bytes + vector_bytes == 0) return DH_OK;
    uint32_t buffer;
    DH_TRY(add_persistent(ctx, e, kind, id, matrix_bytes + vector_bytes, &buffer));
    if (matrix_bytes) flat->matrix[kind] = (dh_operand){buffer, 0, matrix_bytes};
    if (vector_bytes) flat->vector[kind] = (dh_operand){buffer, matrix_bytes, vector_bytes};
    visit_params(e, id, place_param, &l);
    return DH_OK;
}

static dh_status layout_params(dh_ctx *ctx, dh_emitter *e, const int64_t *first, int from, int to)
{
    for (int kind = from; kind <= to; kind++)
        for (uint32_t f = 0; f < e->program->flats.n; f++)
            DH_TRY(layout_flat(ctx, e, f, (dh_buffer_kind)kind, first));
    return DH_OK;
}

static dh_status layout_kv(dh_ctx *ctx, dh_emitter *e)
{
    const dh_model *m = &e->spec->recipe.model;
    uint64_t n_bytes = (uint64_t)(e->spec->cache_len * 2 * m->n_kv_heads * m->head_dim) *
                       dh_dtype_bytes(e->program->dtype);
    for (int64_t layer = 0; layer < m->n_layers; layer++) {
        uint32_t id;
        DH_TRY(add_persistent(ctx, e, DH_BUF_KV, (uint32_t)layer, n_bytes, &id));
        if (!dh_vec_push(&e->kv, id)) return no_memory(ctx);
    }
    return DH_OK;
}

static dh_status layout_routers(dh_ctx *ctx, dh_emitter *e)
{
    const uint64_t n_bytes = (uint64_t)(2 * e->spec->recipe.model.n_experts) * sizeof(double);
    for (int64_t mb = 0; mb < e->spec->recipe.n_micro && n_bytes > 0; mb++) {
        uint32_t id;
        DH_TRY(add_persistent(ctx, e, DH_BUF_STATE, DH_STATE_ROUTER, n_bytes, &id));
        e->program->buffers.at[id].mb = (int32_t)mb;
        if (!dh_vec_push(&e->routers, id)) return no_memory(ctx);
    }
    return DH_OK;
}

/* A sum for every region of the optimizer: pieces, and classes of vectors. */
static uint64_t sqsum_bytes(const dh_program *p)
{
    uint64_t n = 0;
    for (size_t f = 0; f < p->flats.n; f++) n += (uint64_t)p->flats.at[f].n_pieces + N_LAYOUT_CLASS;
    return n * DH_SQSUM_DIGITS * sizeof(double);
}

static const dh_graph *graph_of(const dh_emitter *e, uint32_t block)
{
    return e->program->graphs.at[e->program->blocks.at[block].graph];
}

/* Of a tied embedding that is on this rank at both ends of the model, the gradient is two
 * sums, each by micro-batch, added once at the end, as it is where they lie on different
 * ranks: a single sum would take the contributions in the order of the schedule. Bytes of
 * the head's; 0 where there is no other order, with one micro-batch or with no rank to
 * wait for. */
static uint64_t tied_bytes(const dh_emitter *e)
{
    const dh_program *p = e->program;
    const dh_mesh *m = &p->mesh;
    if (p->n_micro == 1 || m->tp * m->cp * m->ep * m->pp == 1) return 0;
    for (uint32_t b = 0; b < p->blocks.n; b++) {
        if (graph_of(e, b)->kind != DH_BLOCK_HEAD) continue;
        const uint32_t param = p->blocks.at[b].params[DH_SLOT_HEAD_W];
        if (param == DH_NONE || p->homes.at[param].block == b) continue;
        return (uint64_t)dh_param_elements(&p->params.at[param]) * sizeof(float);
    }
    return 0;
}

static dh_status layout_tied(dh_ctx *ctx, dh_emitter *e)
{
    const uint64_t n_bytes = tied_bytes(e);
    if (n_bytes == 0) return DH_OK;
    return add_persistent(ctx, e, DH_BUF_STATE, DH_STATE_TIED_GRAD, n_bytes,
                          &e->states[DH_STATE_TIED_GRAD]);
}

static dh_status layout_states(dh_ctx *ctx, dh_emitter *e)
{
    const struct {
        dh_state state;
        uint64_t n_bytes;
    } states[] = {{DH_STATE_LOSS, 16},
                  {DH_STATE_AUX, 16},
                  {DH_STATE_NORM, 16},
                  {DH_STATE_SQTOTAL, DH_SQSUM_DIGITS * sizeof(double)},
                  {DH_STATE_SQSUM, sqsum_bytes(e->program)}};
    for (size_t i = 0; i < DH_COUNTOF(states); i++)
        DH_TRY(add_persistent(ctx, e, DH_BUF_STATE, states[i].state, states[i].n_bytes,
                              &e->states[states[i].state]));
    return DH_OK;
}

static dh_status layout_persistent(dh_ctx *ctx, dh_emitter *e, int64_t *first)
{
    const bool trains = e->program->mode == DH_MODE_TRAIN;
    for (uint32_t f = 0; f < e->program->flats.n; f++) measure_flat(e, f, first);
    DH_TRY(layout_params(ctx, e, first, DH_BUF_MASTER, DH_BUF_COPY));
    DH_TRY(layout_states(ctx, e));
    if (trains) DH_TRY(layout_routers(ctx, e));
    if (trains) DH_TRY(layout_tied(ctx, e));
    if (trains) DH_TRY(layout_params(ctx, e, first, DH_BUF_GRAD, DH_BUF_ADAM_V));
    return e->program->mode == DH_MODE_DECODE ? layout_kv(ctx, e) : DH_OK;
}

dh_status dh_emit_layout(dh_ctx *ctx, dh_emitter *e)
{
    dh_program *p = e->program;
    e->n_frames = (size_t)(e->spec->recipe.n_micro + 1);
    e->inputs = malloc((e->n_frames + 1) * sizeof *e->inputs);
    e->param_accesses = calloc(p->params.n + 1, sizeof *e->param_accesses);
    int64_t *first = calloc(p->params.n + 1, sizeof *first);
    dh_status st = e->inputs && e->param_accesses && first ? DH_OK : no_memory(ctx);
    if (st == DH_OK) {
        memset(e->inputs, 0xff, (e->n_frames + 1) * sizeof *e->inputs);
        st = layout_persistent(ctx, e, first);
    }
    free(first);
    return st;
}

/* ---- operands ------------------------------------------------------------------------------- */

static dh_status frame_of(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t **frame)
{
    while (e->frames.n <= block) {
        uint32_t **frames = calloc(e->n_frames + 1, sizeof *frames);
        if (!frames) return no_memory(ctx);
        if (!dh_vec_push(&e->frames, frames)) {
            free(frames);
            return no_memory(ctx);
        }
    }
    uint32_t **slot = &e->frames.at[block][mb < 0 ? e->n_frames - 1 : (size_t)mb];
    if (!*slot) {
        size_t n = e->program->graphs.at[e->program->blocks.at[block].graph]->tensors.n;
        *slot = malloc((n + 1) * sizeof **slot);
        if (!*slot) return no_memory(ctx);
        memset(*slot, 0xff, (n + 1) * sizeof **slot);
    }
    *frame = *slot;
    return DH_OK;
}

static dh_status act_buffer(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t tensor,
                            uint32_t *slot)
{
    if (*slot != DH_NONE) return DH_OK;
    const dh_graph *g = e->program->graphs.at[e->program->blocks.at[block].graph];
    dh_buffer b = {.kind = DH_BUF_ACT,
                   .n_bytes = (uint64_t)dh_tensor_bytes(&g->tensors.at[tensor]),
                   .owner = block,
                   .tensor = tensor,
                   .mb = mb,
                   .alias = DH_NONE};
    return add_buffer(ctx, e, &b, slot);
}

static dh_operand param_operand(const dh_emitter *e, const dh_block *block, const dh_tensor *t)
{
    uint32_t param = block->params[t->slot];
    DH_CHECK(param != DH_NONE, "tensor %s: block has no such parameter", t->name);
    const dh_operand *at = e->program->homes.at[param].at;
    const uint32_t tied = e->states[DH_STATE_TIED_GRAD];
    const bool head = e->program->graphs.at[block->graph]->kind == DH_BLOCK_HEAD;
    if (t->kind == DH_TENSOR_GRAD && tied != DH_NONE && head && t->slot == DH_SLOT_HEAD_W)
        return (dh_operand){.buffer = tied, .n_bytes = at[DH_BUF_GRAD].n_bytes};
    if (t->kind == DH_TENSOR_GRAD) return at[DH_BUF_GRAD];
    return at[DH_BUF_COPY].buffer != DH_NONE ? at[DH_BUF_COPY] : at[DH_BUF_MASTER];
}

static dh_operand state_operand(const dh_emitter *e, const dh_block *block, int32_t mb,
                                const dh_tensor *t)
{
    return (dh_operand){.buffer = t->slot == DH_STATE_KV_CACHE ? e->kv.at[block->layer]
                                  : t->slot == DH_STATE_ROUTER ? e->routers.at[mb]
                                                               : e->states[t->slot],
                        .n_bytes = (uint64_t)dh_tensor_bytes(t)};
}

static dh_status resolve(dh_ctx *ctx, dh_emitter *e, uint32_t block_id, int32_t mb, uint32_t tensor,
                         dh_operand *operand)
{
    *operand = (dh_operand){.buffer = DH_NONE};
    if (tensor == DH_NONE) return DH_OK;
    const dh_block *block = &e->program->blocks.at[block_id];
    const dh_graph *g = e->program->graphs.at[block->graph];
    const dh_tensor *t = &g->tensors.at[tensor];
    uint32_t storage = t->base == DH_NONE ? tensor : t->base;
    uint32_t *frame;
    DH_TRY(frame_of(ctx, e, block_id, mb, &frame));
    operand->n_bytes = (uint64_t)dh_tensor_bytes(t);
    switch (t->kind) {
    case DH_TENSOR_ACT:
        DH_TRY(act_buffer(ctx, e, block_id, mb, storage, &frame[storage]));
        operand->buffer = frame[storage];
        break;
    case DH_TENSOR_INPUT:
        DH_TRY(act_buffer(ctx, e, block_id, mb, storage, &e->inputs[mb][t->slot]));
        operand->buffer = e->inputs[mb][t->slot];
        break;
    case DH_TENSOR_PARAM:
    case DH_TENSOR_GRAD:
        *operand = param_operand(e, block, t);
        break;
    case DH_TENSOR_RANGE:
        *operand = e->program->ranges.at[t->slot];
        break;
    default:
        *operand = state_operand(e, block, mb, t);
        break;
    }
    DH_CHECK(operand->buffer != DH_NONE, "tensor %s has no buffer", t->name);
    if (t->base != DH_NONE) {
        operand->n_bytes = (uint64_t)dh_tensor_bytes(t);
        operand->byte0 += (uint64_t)t->row0 * (operand->n_bytes / (uint64_t)t->shape[0]);
    }
    return DH_OK;
}

dh_status dh_emit_operand(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t tensor,
                          dh_operand *operand)
{
    return resolve(ctx, e, block, mb, tensor, operand);
}

static dh_status bind(dh_ctx *ctx, dh_emitter *e, uint32_t from, uint32_t from_tensor, uint32_t to,
                      uint32_t to_tensor, int32_t mb)
{
    uint32_t *source, *target;
    DH_TRY(frame_of(ctx, e, from, mb, &source));
    DH_TRY(frame_of(ctx, e, to, mb, &target));
    DH_TRY(act_buffer(ctx, e, from, mb, from_tensor, &source[from_tensor]));
    target[to_tensor] = source[from_tensor];
    return DH_OK;
}

/* A link has one tensor for either direction of travel. */
static uint32_t leaving(const dh_graph *g, bool forward)
{
    return g->kind == DH_BLOCK_LINK || forward ? g->x_out : g->dx_in;
}

static uint32_t entering(const dh_graph *g, bool forward)
{
    return g->kind == DH_BLOCK_LINK || forward ? g->x_in : g->dx_out;
}

dh_status dh_emit_bind(dh_ctx *ctx, dh_emitter *e, uint32_t from, uint32_t to, int32_t mb,
                       bool forward)
{
    return bind(ctx, e, from, leaving(graph_of(e, from), forward), to,
                entering(graph_of(e, to), forward), mb);
}

/* ---- instructions --------------------------------------------------------------------------- */

static void need(clock_vec *needed, const clock_vec *earlier)
{
    for (int s = 0; s < DH_N_STREAM; s++) needed->at[s] = DH_MAX(needed->at[s], earlier->at[s]);
}

/* Whether what used a buffer is recorded by parameters, not by ranges of bytes. */
static bool holds_params(const dh_buffer *b)
{
    return b->kind <= DH_BUF_ADAM_V && b->kind != DH_BUF_STATE;
}

static bool overlap(const dh_operand *o, uint64_t byte0, uint64_t n_bytes)
{
    return byte0 < o->byte0 + o->n_bytes && o->byte0 < byte0 + n_bytes;
}

typedef struct visiting {
    dh_emitter *emitter;
    const dh_operand *operand;
    dh_buffer_kind kind;
    void (*visit)(accesses *, void *);
    void *arg;
} visiting;

static void visit_if_touched(uint32_t param, void *arg)
{
    const visiting *v = arg;
    const dh_operand *o = v->operand, *home = &v->emitter->program->homes.at[param].at[v->kind];
    if (home->buffer == o->buffer && overlap(o, home->byte0, home->n_bytes))
        v->visit(&v->emitter->param_accesses[param][v->kind], v->arg);
}

/* The access records an operand concerns: of ranges of an activation, of parameters in
 * range. Calls visit for each. */
static void visit_accesses(dh_emitter *e, const dh_operand *o, void (*visit)(accesses *, void *),
                           void *arg)
{
    if (o->buffer == DH_NONE) return;
    const dh_buffer *b = &e->program->buffers.at[o->buffer];
    if (!holds_params(b)) {
        for (uint32_t i = e->piece0.at[o->buffer]; i != DH_NONE; i = e->pieces.at[i].next)
            if (overlap(o, e->pieces.at[i].byte0, e->pieces.at[i].n_bytes))
                visit(&e->pieces.at[i].seen, arg);
        return;
    }
    visiting v = {.emitter = e, .operand = o, .kind = b->kind, .visit = visit, .arg = arg};
    visit_params(e, b->owner, visit_if_touched, &v);
}

/* What uses an operand is recorded at the piece that is exactly its range; of other buffers
 * than activations at one piece for all. */
static dh_status find_piece(dh_ctx *ctx, dh_emitter *e, const dh_operand *operand, accesses **seen)
{
    const dh_buffer *b = &e->program->buffers.at[operand->buffer];
    const dh_operand all = {.buffer = operand->buffer, .n_bytes = b->n_bytes};
    const dh_operand *o = b->kind == DH_BUF_ACT ? operand : &all;
    uint32_t *first = &e->piece0.at[o->buffer];
    for (uint32_t i = *first; i != DH_NONE; i = e->pieces.at[i].next) {
        piece *p = &e->pieces.at[i];
        *seen = &p->seen;
        if (p->byte0 == o->byte0 && p->n_bytes == o->n_bytes) return DH_OK;
    }
    const piece new = {.byte0 = o->byte0, .n_bytes = o->n_bytes, .next = *first};
    if (!dh_vec_push(&e->pieces, new)) return no_memory(ctx);
    *first = (uint32_t)(e->pieces.n - 1);
    *seen = &e->pieces.at[*first].seen;
    return DH_OK;
}

static void need_writes(accesses *a, void *needed)
{
    need(needed, &a->writes);
}

static void need_reads(accesses *a, void *needed)
{
    need(needed, &a->reads);
}

/* The bytes whose accesses an operand's order depends on: its own, but for a shard of
 * a piece of matrices all of that. Where a shard lies then does not show in the waits, so
 * that data-parallel ranks differ in nothing else, and one of padding alone waits too. */
static dh_operand scope_of(const dh_emitter *e, const dh_tensor *t, const dh_operand *o)
{
    return t && t->kind == DH_TENSOR_RANGE ? dh_program_piece(e->program, *o) : *o;
}

/* What this instruction must come after, from its operands' earlier accesses. */
static clock_vec dependences(dh_emitter *e, const dh_op_info *info, const dh_operand *operands)
{
    clock_vec needed = {{0}};
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        visit_accesses(e, &operands[k], need_writes, &needed);
        if (k >= info->n_in) visit_accesses(e, &operands[k], need_reads, &needed);
    }
    return needed;
}

static dh_status add_waits(dh_ctx *ctx, dh_emitter *e, dh_instr *instr, const clock_vec *needed)
{
    clock_vec *known = &e->known[instr->stream];
    instr->wait0 = (uint32_t)e->program->waits.n;
    for (int s = 0; s < DH_N_STREAM; s++) {
        if (s == instr->stream || needed->at[s] <= known->at[s]) continue;
        uint32_t target = needed->at[s] - 1;
        if (!dh_vec_push(&e->program->waits, target)) return no_memory(ctx);
        instr->n_waits++;
        need(known, &e->done.at[target]);
    }
    return DH_OK;
}

typedef struct position {
    int stream;
    uint32_t instr;
} position;

static void mark_read(accesses *a, void *at)
{
    const position *p = at;
    a->reads.at[p->stream] = p->instr + 1;
}

static void mark_written(accesses *a, void *at)
{
    const position *p = at;
    a->writes.at[p->stream] = p->instr + 1;
}

static dh_status record_accesses(dh_ctx *ctx, dh_emitter *e, const dh_op_info *info,
                                 const dh_operand *operands, int stream, uint32_t instr)
{
    position at = {stream, instr};
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        const dh_operand *o = &operands[k];
        void (*mark)(accesses *, void *) = k < info->n_in ? mark_read : mark_written;
        accesses *seen = NULL;
        if (o->buffer == DH_NONE) continue;
        if (holds_params(&e->program->buffers.at[o->buffer])) {
            visit_accesses(e, o, mark, &at);
            continue;
        }
        DH_TRY(find_piece(ctx, e, o, &seen));
        mark(seen, &at);
    }
    return DH_OK;
}

static bool written_before(dh_emitter *e, const dh_operand *operand)
{
    clock_vec writes = {{0}};
    visit_accesses(e, operand, need_writes, &writes);
    for (int s = 0; s < DH_N_STREAM; s++)
        if (writes.at[s]) return true;
    return false;
}

static dh_status add_workspace(dh_ctx *ctx, dh_emitter *e, const dh_graph *g, const dh_op *op,
                               dh_instr *instr, uint32_t id)
{
    instr->work = DH_NONE;
    const dh_backend_info *backend = e->spec->recipe.backend;
    size_t n_bytes = backend ? backend->workspace_bytes(g, op) : 0;
    if (n_bytes == 0) return DH_OK;
    dh_buffer b = {.kind = DH_BUF_WORK,
                   .n_bytes = n_bytes,
                   .owner = id,
                   .tensor = DH_NONE,
                   .mb = -1,
                   .alias = DH_NONE};
    return add_buffer(ctx, e, &b, &instr->work);
}

dh_status dh_emit_op(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, uint32_t op_id)
{
    dh_program *p = e->program;
    const dh_graph *g = graph_of(e, block);
    const dh_op *op = &g->ops.at[op_id];
    const dh_op_info *info = dh_op_info_of(op->type);
    uint32_t id = (uint32_t)p->instrs.n;
    dh_instr instr = {.block = block,
                      .op = op_id,
                      .mb = mb,
                      .stream = (uint8_t)dh_stream_of(op, &p->mesh, p->rank),
                      .operand0 = (uint32_t)p->operands.n};
    dh_operand operands[2 * DH_MAX_OPERANDS], scopes[2 * DH_MAX_OPERANDS];
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        uint32_t tensor = k < info->n_in ? op->in[k] : op->out[k - info->n_in];
        DH_TRY(resolve(ctx, e, block, mb, tensor, &operands[k]));
        scopes[k] = scope_of(e, tensor == DH_NONE ? NULL : &g->tensors.at[tensor], &operands[k]);
        if (!dh_vec_push(&p->operands, operands[k])) return no_memory(ctx);
    }
    for (int k = 0; k < info->n_out; k++) {
        if (info->out[k].accumulate && written_before(e, &operands[info->n_in + k]))
            instr.accumulate |= (uint8_t)(1u << k);
    }
    DH_TRY(add_workspace(ctx, e, g, op, &instr, id));
    clock_vec needed = dependences(e, info, scopes);
    need(&needed, &e->barrier);
    DH_TRY(add_waits(ctx, e, &instr, &needed));
    DH_TRY(record_accesses(ctx, e, info, scopes, instr.stream, id));
    e->known[instr.stream].at[instr.stream] = id + 1;
    if (!dh_vec_push(&e->done, e->known[instr.stream]) || !dh_vec_push(&p->instrs, instr))
        return no_memory(ctx);
    return DH_OK;
}

void dh_emit_barrier(dh_emitter *e)
{
    for (int s = 0; s < DH_N_STREAM; s++) e->barrier.at[s] = e->known[s].at[s];
}

dh_status dh_emit_phases(dh_ctx *ctx, dh_emitter *e, uint32_t block, int32_t mb, unsigned phases)
{
    const dh_graph *g = graph_of(e, block);
    for (uint32_t i = 0; i < g->ops.n; i++)
        if (phases >> g->ops.at[i].phase & 1) DH_TRY(dh_emit_op(ctx, e, block, mb, i));
    return DH_OK;
}
