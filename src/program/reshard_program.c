/* The program of a reshard on one rank. See reshard.h.
 *
 *   take    copies slices that leave out of the first layout, in the order of their receivers.
 *   send    is one operator for all messages of a chunk, type and wire.
 *   put     copies slices that came, or were here, to their places in the second layout.
 *
 * Blocks are numbered alike on all ranks. The first has a tensor for every buffer of the layouts;
 * then each chunk, type and wire has three. A chunk is taken before the previous one is put, so
 * that it travels meanwhile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/emitter.h"
#include "program/reshard_load.h"

/* One operator's messages. */
typedef struct lane {
    uint32_t chunk;
    dh_dtype dtype;
    bool cross;
    uint32_t take, send, put; /* blocks */
    uint32_t sent;            /* the send's instruction */
} lane;

typedef struct building {
    const dh_reshard *r;
    dh_emitter *e;
    uint32_t rank;
    uint32_t *buffers[2]; /* by side and buffer of the holding: the program's, DH_NONE */
    DH_VEC(lane) lanes;
    DH_VEC(uint32_t) own; /* slices that the rank sends or takes, in order */
    uint32_t keep;        /* block of what the rank had itself */
    uint32_t last_put;    /* instruction that put the last of a chunk, DH_NONE */
} building;

/* ---- graphs ---------------------------------------------------------------------------------- */

static dh_status new_graph(dh_ctx *ctx, dh_dtype dtype, dh_graph **graph)
{
    dh_graph *g = *graph = calloc(1, sizeof *g);
    if (!g) return dh_no_memory(ctx);
    g->kind = DH_BLOCK_RESHARD;
    g->dtype = dtype;
    g->x_in = g->x_out = g->dx_out = g->dx_in = g->loss_x = g->loss_dx = DH_NONE;
    return DH_OK;
}

static dh_status add_block(dh_ctx *ctx, building *b, dh_graph *graph, uint32_t *block)
{
    uint32_t id;
    DH_TRY(dh_emit_add_graph(ctx, b->e, graph, &id));
    return dh_emit_add_block(ctx, b->e, id, 0, block);
}

static dh_status add_tensor(dh_ctx *ctx, dh_graph *g, const char *name, dh_tensor t, uint32_t *id)
{
    t.base = t.base ? t.base - 1 : DH_NONE;
    snprintf(t.name, sizeof t.name, "%s", name);
    *id = dh_graph_add_tensor(g, &t);
    return *id == DH_NONE ? dh_no_memory(ctx) : DH_OK;
}

/* All of a message buffer, [n], or elements [first, first + n) of it. */
static dh_status add_run(dh_ctx *ctx, dh_graph *g, const char *name, int64_t first, int64_t n,
                         uint32_t base, uint32_t *id)
{
    return add_tensor(ctx, g, name,
                      (dh_tensor){.kind = DH_TENSOR_ACT,
                                  .dtype = g->dtype,
                                  .ndim = 1,
                                  .shape = {n},
                                  .base = base == DH_NONE ? 0 : base + 1,
                                  .row0 = first,
                                  .which = DH_NONE},
                      id);
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* Name of a layout's buffer: "from.master3". */
static dh_status add_buffer(dh_ctx *ctx, building *b, dh_graph *g, int side, const dh_buffer *of,
                            uint32_t *id)
{
    char name[24];
    uint32_t tensor;
    snprintf(name, sizeof name, "%s.%s%u", side ? "to" : "from", dh_buffer_kind_name(of->kind),
             of->owner);
    DH_TRY(add_tensor(ctx, g, name,
                      (dh_tensor){.kind = DH_TENSOR_RANGE,
                                  .dtype = DH_U8,
                                  .ndim = 1,
                                  .shape = {(int64_t)of->n_bytes},
                                  .which = 0},
                      &tensor));
    /* Of a stored row only some columns may come: the rest is there already. */
    const dh_buffer own = {.kind = DH_BUF_IN,
                           .offset = of->offset,
                           .n_bytes = of->n_bytes,
                           .owner = 0,
                           .tensor = tensor,
                           .mb = -1,
                           .alias = DH_NONE};
    return dh_emit_buffer(ctx, b->e, &own, id);
}

/* Add the buffers that hold something that moves. */
static dh_status add_buffers(dh_ctx *ctx, building *b, dh_graph *g)
{
    for (int side = 0; side < 2; side++) {
        const dh_holding *h = &b->r->holdings[side][b->rank];
        b->buffers[side] = malloc((h->buffers.n + 1) * sizeof(uint32_t));
        if (!b->buffers[side]) return dh_no_memory(ctx);
        memset(b->buffers[side], 0xff, (h->buffers.n + 1) * sizeof(uint32_t));
        for (size_t i = 0; i < h->held.n; i++) {
            const uint32_t buffer = h->held.at[i].buffer;
            uint32_t *at = &b->buffers[side][buffer];
            if (*at == DH_NONE) DH_TRY(add_buffer(ctx, b, g, side, &h->buffers.at[buffer], at));
        }
    }
    return DH_OK;
}

/* A box of a held one as rows of the rank's memory. */
typedef struct place {
    uint32_t range;
    int64_t n_rows, width, column;
} place;

/* flat: where its columns are all there are, as one row. */
static dh_status place_of(dh_ctx *ctx, building *b, int side, const dh_held *h, const dh_box *box,
                          bool flat, place *at)
{
    const uint64_t item = dh_dtype_bytes(b->r->tensors.at[h->tensor].dtype);
    const int64_t row = box->row - h->box.row, column = box->col - h->box.col;
    const bool rows = h->box.n_rows > 1; /* else what the box has of its one row */
    int64_t first = h->first + row * h->stride;
    *at = (place){.n_rows = box->n_rows, .width = h->stride, .column = column};
    if (!rows) {
        first += column;
        at->width = box->n_cols;
        at->column = 0;
    } else if (flat && box->n_cols == h->stride) {
        at->width *= at->n_rows;
        at->n_rows = 1;
    }
    const dh_operand operand = {b->buffers[side][h->buffer], (uint64_t)first * item,
                                (uint64_t)(at->n_rows * at->width) * item};
    return dh_emit_range(ctx, b->e, operand, &at->range);
}

static dh_status add_place(dh_ctx *ctx, dh_graph *g, dh_dtype dtype, const char *name,
                           const place *at, uint32_t *id)
{
    return add_tensor(ctx, g, name,
                      (dh_tensor){.kind = DH_TENSOR_RANGE,
                                  .dtype = dtype,
                                  .ndim = 2,
                                  .shape = {at->n_rows, at->width},
                                  .which = at->range},
                      id);
}

/* ---- operators ------------------------------------------------------------------------------- */

/* NULL: out of memory. */
static dh_op *add_op(dh_graph *g, dh_op_type type, uint32_t in, uint32_t out)
{
    const uint32_t id =
        dh_graph_add_op(g, type, DH_PHASE_F, (const uint32_t[]){in}, (const uint32_t[]){out});
    return id == DH_NONE ? NULL : &g->ops.at[id];
}

static bool is_of(const building *b, const lane *l, const dh_slice *s)
{
    const uint32_t from = b->r->owners.at[s->from].rank;
    return from != s->to && s->chunk == l->chunk && b->r->tensors.at[s->tensor].dtype == l->dtype &&
           dh_reshard_is_local(b->r, from, s->to) != l->cross;
}

/* Members of the lane's group, and the rank of one. */
static uint32_t n_members(const building *b, const lane *l)
{
    return (uint32_t)(l->cross ? b->r->n_ranks : b->r->ranks_per_node);
}

static uint32_t member(const building *b, const lane *l, uint32_t i)
{
    const uint32_t per_node = (uint32_t)b->r->ranks_per_node;
    return l->cross ? i : b->rank / per_node * per_node + i;
}

/* Only a few slices are the rank's own, and every lane and member asks for them. */
static dh_status find_own(dh_ctx *ctx, building *b)
{
    for (uint32_t i = 0; i < b->r->slices.n; i++) {
        const dh_slice *s = &b->r->slices.at[i];
        if (s->to != b->rank && b->r->owners.at[s->from].rank != b->rank) continue;
        if (!dh_vec_push(&b->own, i)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* Slices of a lane from one rank to another, one of which is this one, in order; *at goes on behind
 * the one found. */
static const dh_slice *next_slice(const building *b, const lane *l, uint32_t from, uint32_t to,
                                  size_t *at)
{
    while (*at < b->own.n) {
        const dh_slice *s = &b->r->slices.at[b->own.at[(*at)++]];
        if (s->to == to && b->r->owners.at[s->from].rank == from && is_of(b, l, s)) return s;
    }
    return NULL;
}

static int64_t length_of(const building *b, const lane *l, uint32_t from, uint32_t to)
{
    int64_t n = 0;
    size_t at = 0;
    for (const dh_slice *s; (s = next_slice(b, l, from, to, &at));) n += dh_box_elements(&s->box);
    return n;
}

static dh_status take_slice(dh_ctx *ctx, building *b, dh_graph *g, const dh_slice *s, int64_t first)
{
    const dh_held *h = &b->r->holdings[0][b->rank].held.at[b->r->owners.at[s->from].held];
    place from;
    uint32_t x, y;
    DH_TRY(place_of(ctx, b, 0, h, &s->box, true, &from));
    DH_TRY(add_place(ctx, g, g->dtype, "part", &from, &x));
    DH_TRY(add_run(ctx, g, "message", first, dh_box_elements(&s->box), g->x_out, &y));
    dh_op *op = add_op(g, DH_OP_TAKE_COLUMNS, x, y);
    if (!op) return dh_no_memory(ctx);
    op->from = from.column;
    op->columns = dh_box_elements(&s->box) / from.n_rows;
    return DH_OK;
}

static dh_status put_slice(dh_ctx *ctx, building *b, dh_graph *g, const dh_slice *s, uint32_t x,
                           int64_t column, bool flat)
{
    const dh_held *h = &b->r->holdings[1][b->rank].held.at[s->held];
    place to;
    uint32_t y;
    DH_TRY(place_of(ctx, b, 1, h, &s->box, flat, &to));
    DH_TRY(add_place(ctx, g, b->r->tensors.at[s->tensor].dtype, "part", &to, &y));
    dh_op *op = add_op(g, DH_OP_PUT_COLUMNS, x, y);
    if (!op) return dh_no_memory(ctx);
    op->from = column;
    op->to = to.column;
    op->columns = dh_box_elements(&s->box) / to.n_rows;
    op->adds = b->r->adds;
    return DH_OK;
}

/* ---- blocks of a lane ------------------------------------------------------------------------ */

/* Elements that the rank sends (or takes) in all. */
static int64_t total_of(const building *b, const lane *l, bool from)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < n_members(b, l); i++)
        n += from ? length_of(b, l, member(b, l, i), b->rank)
                  : length_of(b, l, b->rank, member(b, l, i));
    return n;
}

static dh_status fill_take(dh_ctx *ctx, building *b, const lane *l, int64_t n, dh_graph *g)
{
    int64_t first = 0;
    if (n == 0) return DH_OK;
    DH_TRY(add_run(ctx, g, "sent", 0, n, DH_NONE, &g->x_out));
    for (uint32_t i = 0; i < n_members(b, l); i++) {
        size_t at = 0;
        for (const dh_slice *s; (s = next_slice(b, l, b->rank, member(b, l, i), &at));) {
            DH_TRY(take_slice(ctx, b, g, s, first));
            first += dh_box_elements(&s->box);
        }
    }
    return DH_OK;
}

static dh_status fill_send(dh_ctx *ctx, const lane *l, int64_t n_out, int64_t n_in, dh_graph *g)
{
    if (n_out > 0) DH_TRY(add_run(ctx, g, "sent", 0, n_out, DH_NONE, &g->x_in));
    if (n_in > 0) DH_TRY(add_run(ctx, g, "came", 0, n_in, DH_NONE, &g->x_out));
    dh_op *op = add_op(g, DH_OP_MESSAGES, g->x_in, g->x_out);
    if (!op) return dh_no_memory(ctx);
    op->group = l->cross ? DH_GROUP_WORLD : DH_GROUP_TP;
    return DH_OK;
}

static dh_status fill_put(dh_ctx *ctx, building *b, const lane *l, int64_t n, dh_graph *g)
{
    int64_t first = 0;
    uint32_t x;
    if (n == 0) return DH_OK;
    DH_TRY(add_run(ctx, g, "came", 0, n, DH_NONE, &g->x_in));
    for (uint32_t i = 0; i < n_members(b, l); i++) {
        size_t at = 0;
        for (const dh_slice *s; (s = next_slice(b, l, member(b, l, i), b->rank, &at));) {
            const int64_t n_here = dh_box_elements(&s->box);
            DH_TRY(add_run(ctx, g, "message", first, n_here, g->x_in, &x));
            DH_TRY(put_slice(ctx, b, g, s, x, 0, true));
            first += n_here;
        }
    }
    return DH_OK;
}

static dh_status set_lengths(dh_ctx *ctx, building *b, const lane *l)
{
    dh_program *p = b->e->program;
    dh_emit_block(b->e, l->send)->lengths0 = (uint32_t)p->lengths.n;
    for (int from = 0; from < 2; from++)
        for (uint32_t i = 0; i < n_members(b, l); i++) {
            const uint32_t other = member(b, l, i);
            const int64_t n =
                from ? length_of(b, l, other, b->rank) : length_of(b, l, b->rank, other);
            if (!dh_vec_push(&p->lengths, n)) return dh_no_memory(ctx);
        }
    return DH_OK;
}

/* Fill a graph with the lane's take, send or put (`which`), and make it a block. */
static dh_status add_lane_block(dh_ctx *ctx, building *b, const lane *l, int which, int64_t n_out,
                                int64_t n_in, uint32_t *block)
{
    dh_graph *g;
    DH_TRY(new_graph(ctx, l->dtype, &g));
    dh_status st = which == 0   ? fill_take(ctx, b, l, n_out, g)
                   : which == 1 ? fill_send(ctx, l, n_out, n_in, g)
                                : fill_put(ctx, b, l, n_in, g);
    if (st == DH_OK) return add_block(ctx, b, g, block);
    dh_graph_destroy(g);
    return st;
}

static dh_status add_lane(dh_ctx *ctx, building *b, lane l)
{
    const int64_t n_out = total_of(b, &l, false), n_in = total_of(b, &l, true);
    uint32_t *const blocks[] = {&l.take, &l.send, &l.put};
    for (int k = 0; k < 3; k++) DH_TRY(add_lane_block(ctx, b, &l, k, n_out, n_in, blocks[k]));
    DH_TRY(set_lengths(ctx, b, &l));
    if (n_out > 0) DH_TRY(dh_emit_bind(ctx, b->e, l.take, l.send, -1, true));
    if (n_in > 0) DH_TRY(dh_emit_bind(ctx, b->e, l.send, l.put, -1, true));
    return dh_vec_push(&b->lanes, l) ? DH_OK : dh_no_memory(ctx);
}

/* Whether any rank sends anything there: all ranks make the same calls. */
static bool is_used(const building *b, const lane *l)
{
    for (size_t i = 0; i < b->r->slices.n; i++)
        if (is_of(b, l, &b->r->slices.at[i])) return true;
    return false;
}

static dh_status add_lanes(dh_ctx *ctx, building *b)
{
    static const dh_dtype types[] = {DH_F32, DH_BF16};
    for (uint32_t chunk = 0; chunk < b->r->n_chunks; chunk++)
        for (size_t t = 0; t < DH_COUNTOF(types); t++)
            for (int cross = 0; cross < 2; cross++) {
                const lane l = {.chunk = chunk, .dtype = types[t], .cross = cross != 0};
                if (is_used(b, &l)) DH_TRY(add_lane(ctx, b, l));
            }
    return DH_OK;
}

/* ---- what the rank had itself ---------------------------------------------------------------- */

static dh_status fill_keep(dh_ctx *ctx, building *b, dh_graph *g)
{
    for (size_t i = 0; i < b->r->slices.n; i++) {
        const dh_slice *s = &b->r->slices.at[i];
        const dh_owner *from = &b->r->owners.at[s->from];
        if (s->to != b->rank || from->rank != b->rank) continue;
        const dh_held *h = &b->r->holdings[0][b->rank].held.at[from->held];
        const dh_held *to = &b->r->holdings[1][b->rank].held.at[s->held];
        const bool flat = s->box.n_cols == h->stride && s->box.n_cols == to->stride;
        place at;
        uint32_t x;
        DH_TRY(place_of(ctx, b, 0, h, &s->box, flat, &at));
        DH_TRY(add_place(ctx, g, b->r->tensors.at[s->tensor].dtype, "own", &at, &x));
        DH_TRY(put_slice(ctx, b, g, s, x, at.column, flat));
    }
    return DH_OK;
}

static dh_status add_keep(dh_ctx *ctx, building *b)
{
    dh_graph *g;
    DH_TRY(new_graph(ctx, DH_F32, &g));
    dh_status st = fill_keep(ctx, b, g);
    if (st == DH_OK) return add_block(ctx, b, g, &b->keep);
    dh_graph_destroy(g);
    return st;
}

/* ---- emission -------------------------------------------------------------------------------- */

static dh_status emit_block(dh_ctx *ctx, building *b, uint32_t block)
{
    return dh_emit_phases(ctx, b->e, block, -1, DH_PHASES(DH_PHASE_F));
}

/* The block starts when all that was sent two chunks before has left. */
static void wait_for_sent(const building *b, const lane *l)
{
    if (dh_emit_graph_of(b->e, l->take)->ops.n == 0) return;
    for (size_t i = 0; i < b->lanes.n && b->lanes.at[i].chunk + 1 < l->chunk; i++)
        dh_emit_after(b->e, b->lanes.at[i].sent);
}

/* Lanes [*end, ...) of one chunk. They are taken when the chunk before the last has left, and sent
 * when that one has been put, as they take its storage. So two are under way at a time. */
static dh_status emit_sends(dh_ctx *ctx, building *b, size_t *end)
{
    const size_t begin = *end;
    while (*end < b->lanes.n && b->lanes.at[*end].chunk == b->lanes.at[begin].chunk) {
        lane *l = &b->lanes.at[(*end)++];
        wait_for_sent(b, l);
        DH_TRY(emit_block(ctx, b, l->take));
        if (b->last_put != DH_NONE) dh_emit_after(b->e, b->last_put);
        l->sent = (uint32_t)b->e->program->instrs.n;
        DH_TRY(emit_block(ctx, b, l->send));
    }
    return DH_OK;
}

static dh_status emit(dh_ctx *ctx, building *b)
{
    size_t sent = 0, put = 0;
    DH_TRY(emit_sends(ctx, b, &sent));
    DH_TRY(emit_block(ctx, b, b->keep));
    while (put < b->lanes.n) {
        const size_t end = sent;
        DH_TRY(emit_sends(ctx, b, &sent));
        for (; put < end; put++) DH_TRY(emit_block(ctx, b, b->lanes.at[put].put));
        b->last_put = (uint32_t)b->e->program->instrs.n - 1;
    }
    return DH_OK;
}

static dh_status build(dh_ctx *ctx, building *b, uint64_t keep_bytes)
{
    dh_program *p = b->e->program;
    uint32_t layouts;
    dh_graph *g;
    b->e->n_frames = 1; /* for what belongs to no micro-batch */
    DH_TRY(find_own(ctx, b));
    DH_TRY(new_graph(ctx, DH_F32, &g));
    dh_status st = add_buffers(ctx, b, g);
    if (st != DH_OK) {
        dh_graph_destroy(g);
        return st;
    }
    DH_TRY(add_block(ctx, b, g, &layouts));
    DH_TRY(dh_emit_init_params(ctx, b->e));
    for (int side = 0; side < 2; side++)
        p->persistent_bytes = DH_MAX(p->persistent_bytes, b->r->holdings[side][b->rank].end);
    p->persistent_bytes = DH_MAX(p->persistent_bytes, keep_bytes);
    p->persistent_bytes =
        (p->persistent_bytes + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
    DH_TRY(add_keep(ctx, b));
    DH_TRY(add_lanes(ctx, b));
    DH_TRY(emit(ctx, b));
    return dh_program_plan_memory(ctx, p, true, NULL);
}

dh_status dh_reshard_program(dh_ctx *ctx, const dh_reshard *reshard, int64_t rank,
                             uint64_t keep_bytes, const dh_backend_info *backend,
                             dh_program **program)
{
    const int64_t nodes = reshard->n_ranks / reshard->ranks_per_node;
    dh_program_spec spec = {.recipe = {.dtype = DH_F32, .n_micro = 1, .backend = backend},
                            .rank = rank};
    building b = {.r = reshard, .rank = (uint32_t)rank, .last_put = DH_NONE};
    DH_TRY(dh_mesh_init(ctx, nodes, reshard->ranks_per_node, 1, 1, 1, nodes,
                        reshard->ranks_per_node, &spec.recipe.mesh));
    DH_TRY(dh_emitter_create(ctx, &spec, &b.e));
    dh_program *p = dh_emitter_program(b.e);
    p->beside = reshard->beside;
    dh_status st = build(ctx, &b, keep_bytes);
    dh_emitter_destroy(b.e);
    free(b.buffers[0]);
    free(b.buffers[1]);
    dh_vec_fini(&b.lanes);
    dh_vec_fini(&b.own);
    if (st == DH_OK)
        *program = p;
    else
        dh_program_destroy(p);
    return st;
}
