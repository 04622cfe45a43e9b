/* Building the program of one rank: which blocks it holds, then their operators in
 * the order of the pipeline schedule, transfers between stages, reductions of
 * gradients where a block's last backward is done, and the optimizer.
 *
 * Order and deadlock. A rank's streams run in order and a transfer occupies the
 * streams of both ends, so all ranks must agree on one order of everything that
 * communicates. It is taken from the schedule's own clock with unit durations: a slot
 * counts at its start, a transfer or reduction at the end of the slot that makes its
 * data. Each rank emits what concerns it sorted by that time; whatever is earliest
 * anywhere then always stands first at all its ranks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "program/reductions.h"

/* One virtual stage held by this rank. */
typedef struct stage {
    int32_t id;
    uint32_t *chain; /* blocks in forward order: [embedding] layers [head] */
    size_t n_chain;
    uint32_t recv_forward, send_forward, recv_backward, send_backward; /* links, DH_NONE */
    int64_t backward_left; /* backwards (or weight gradients) of the step not yet emitted */
} stage;

typedef struct plan {
    dh_emitter *emitter;
    const dh_program_spec *spec;
    const dh_schedule *schedule;
    const dh_strategy *strategy;
    int32_t pipe_rank;
    int64_t *layers; /* [n_stages]: layers of each virtual stage */
    stage *stages;   /* of this rank, by depth */
    size_t n_stages;
    uint32_t data, optimizer;
    dh_reducer reducer;
    uint32_t embed_graph, layer_graph, head_graph, experts_graph; /* DH_NONE until wanted */
    uint32_t send_graph, recv_graph;
    unsigned char *loaded; /* by micro-batch */
    const dh_costs *costs;
    DH_VEC(dh_op_cost *) op_costs; /* [graph][operator], NULL until wanted */
} plan;

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory building a program");
}

static const dh_mesh *mesh_of(const plan *b)
{
    return &b->spec->mesh;
}

/* ---- graphs ------------------------------------------------------------------------------- */

static dh_status add_graph(dh_ctx *ctx, plan *b, dh_block_kind kind, uint32_t *graph)
{
    if (*graph != DH_NONE) return DH_OK;
    const dh_program_spec *s = b->spec;
    dh_build build = {.model = s->model,
                      .mode = s->mode,
                      .dtype = s->dtype,
                      .batch = s->micro_batch,
                      .seq = s->seq / s->mesh.cp,
                      .cache_len = s->cache_len,
                      .dropout = s->dropout,
                      .loss_scale = s->loss_scale,
                      .head_chunk_bytes =
                          s->head_chunk_bytes ? s->head_chunk_bytes : DH_HEAD_CHUNK_BYTES,
                      .moe_capacity = s->moe_mode == DH_MOE_CAPACITY ? s->moe_capacity : 0};
    dh_graph *g;
    DH_TRY(dh_graph_build(ctx, &build, kind, &g));
    dh_status st =
        dh_pass_context_parallel(ctx, g, s->mesh.cp, dh_mesh_coord(&s->mesh, s->rank).cp);
    if (st == DH_OK) st = dh_pass_tensor_parallel(ctx, g, dh_emit_shard(b->emitter));
    const bool computes = kind != DH_BLOCK_DATA && kind != DH_BLOCK_EXPERTS;
    if (st == DH_OK && s->mode == DH_MODE_TRAIN && computes) st = dh_graph_differentiate(ctx, g);
    if (st == DH_OK && s->mode == DH_MODE_TRAIN) st = dh_pass_recompute(ctx, g, s->recompute);
    if (st != DH_OK) {
        dh_graph_destroy(g);
        return st;
    }
    return dh_emit_add_graph(ctx, b->emitter, g, graph);
}

static dh_status add_link_graph(dh_ctx *ctx, plan *b, bool send, uint32_t *graph)
{
    if (*graph != DH_NONE) return DH_OK;
    const dh_program_spec *s = b->spec;
    dh_graph *g;
    DH_TRY(dh_graph_build_link(ctx, send, s->micro_batch * (s->seq / s->mesh.cp) / s->mesh.tp,
                               s->model->width, s->dtype,
                               s->mode == DH_MODE_TRAIN ? s->model->n_experts : 0, &g));
    return dh_emit_add_graph(ctx, b->emitter, g, graph);
}

/* ---- blocks --------------------------------------------------------------------------------- */

static dh_status add_link(dh_ctx *ctx, plan *b, bool send, bool forward, int32_t other_stage,
                          uint32_t *link)
{
    *link = DH_NONE;
    if (other_stage < 0 || other_stage >= b->schedule->n_stages) return DH_OK;
    int32_t peer = b->schedule->rank_of[other_stage];
    if (peer == b->pipe_rank) return DH_OK;
    uint32_t *graph = send ? &b->send_graph : &b->recv_graph;
    DH_TRY(add_link_graph(ctx, b, send, graph));
    DH_TRY(dh_emit_add_block(ctx, b->emitter, *graph, 0, link));
    dh_block *block = dh_emit_block(b->emitter, *link);
    block->peer = peer;
    block->tag = forward ? 0 : 1;
    return DH_OK;
}

/* Its experts, which the layer looks up, come first. */
static dh_status add_layer(dh_ctx *ctx, plan *b, int layer, uint32_t *id)
{
    if (b->spec->model->n_experts > 0) {
        uint32_t experts;
        DH_TRY(add_graph(ctx, b, DH_BLOCK_EXPERTS, &b->experts_graph));
        DH_TRY(dh_emit_add_block(ctx, b->emitter, b->experts_graph, layer, &experts));
    }
    DH_TRY(add_graph(ctx, b, DH_BLOCK_LAYER, &b->layer_graph));
    return dh_emit_add_block(ctx, b->emitter, b->layer_graph, layer, id);
}

static dh_status add_chain(dh_ctx *ctx, plan *b, stage *s, int64_t first_layer)
{
    const bool first = s->id == 0, last = s->id == b->schedule->n_stages - 1;
    const int64_t n = b->layers[s->id];
    s->chain = malloc((size_t)(n + 2) * sizeof *s->chain);
    if (!s->chain) return no_memory(ctx);
    if (first) {
        DH_TRY(add_graph(ctx, b, DH_BLOCK_EMBED, &b->embed_graph));
        DH_TRY(dh_emit_add_block(ctx, b->emitter, b->embed_graph, 0, &s->chain[s->n_chain++]));
    }
    for (int64_t i = 0; i < n; i++)
        DH_TRY(add_layer(ctx, b, (int)(first_layer + i), &s->chain[s->n_chain++]));
    if (last) {
        DH_TRY(add_graph(ctx, b, DH_BLOCK_HEAD, &b->head_graph));
        DH_TRY(dh_emit_add_block(ctx, b->emitter, b->head_graph, 0, &s->chain[s->n_chain++]));
    }
    DH_TRY(add_link(ctx, b, false, true, s->id - 1, &s->recv_forward));
    DH_TRY(add_link(ctx, b, true, true, s->id + 1, &s->send_forward));
    DH_TRY(add_link(ctx, b, false, false, s->id + 1, &s->recv_backward));
    return add_link(ctx, b, true, false, s->id - 1, &s->send_backward);
}

static dh_status add_stages(dh_ctx *ctx, plan *b)
{
    const dh_schedule *sch = b->schedule;
    b->layers = calloc((size_t)sch->n_stages + 1, sizeof *b->layers);
    b->stages = calloc((size_t)sch->n_stages + 1, sizeof *b->stages);
    b->loaded = calloc((size_t)b->spec->n_micro + 1, 1);
    if (!b->layers || !b->stages || !b->loaded) return no_memory(ctx);
    DH_TRY(dh_layer_split(ctx, b->spec->model->n_layers, sch->n_stages,
                          b->spec->layer_split ? b->spec->layer_split : "", b->layers));
    uint32_t data = DH_NONE;
    DH_TRY(add_graph(ctx, b, DH_BLOCK_DATA, &data));
    DH_TRY(dh_emit_add_block(ctx, b->emitter, data, 0, &b->data));
    int64_t first_layer = 0;
    for (int32_t v = 0; v < sch->n_stages; first_layer += b->layers[v++]) {
        if (sch->rank_of[v] != b->pipe_rank) continue;
        stage *s = &b->stages[b->n_stages++];
        s->id = v;
        s->backward_left = b->spec->n_micro;
        DH_TRY(add_chain(ctx, b, s, first_layer));
        DH_TRY(dh_reductions_plan(ctx, &b->reducer, s->chain, s->n_chain));
    }
    return DH_OK;
}

/* ---- actions
 * ------------------------------------------------------------------------------------------ */

static stage *stage_of(plan *b, int32_t id)
{
    for (size_t i = 0; i < b->n_stages; i++)
        if (b->stages[i].id == id) return &b->stages[i];
    return NULL;
}

/* The block whose output enters virtual stage `id`, on this rank or by a link. */
static uint32_t source_of(plan *b, const stage *s, bool forward)
{
    uint32_t link = forward ? s->recv_forward : s->recv_backward;
    if (link != DH_NONE) return link;
    const stage *other = stage_of(b, forward ? s->id - 1 : s->id + 1);
    if (!other) return DH_NONE;
    return forward ? other->chain[other->n_chain - 1] : other->chain[0];
}

/* One operator of a slot, or the reductions of a block whose gradients are done. */
typedef struct item {
    uint32_t block, op; /* op DH_NONE: reductions */
    int32_t mb;
} item;
typedef DH_VEC(item) item_list;

static dh_status list_phases(dh_ctx *ctx, plan *b, uint32_t block, int32_t mb, unsigned phases,
                             item_list *list)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_graph *g = p->graphs.at[p->blocks.at[block].graph];
    for (uint32_t i = 0; i < g->ops.n; i++)
        if (phases >> g->ops.at[i].phase & 1 && !dh_vec_push(list, (item){block, i, mb}))
            return no_memory(ctx);
    return DH_OK;
}

static dh_status list_forward(dh_ctx *ctx, plan *b, stage *s, int32_t mb, item_list *list)
{
    if (!b->loaded[mb]) DH_TRY(list_phases(ctx, b, b->data, mb, DH_PHASES(DH_PHASE_F), list));
    b->loaded[mb] = 1;
    uint32_t from = source_of(b, s, true);
    for (size_t i = 0; i < s->n_chain; from = s->chain[i++]) {
        if (from != DH_NONE) DH_TRY(dh_emit_bind(ctx, b->emitter, from, s->chain[i], mb, true));
        DH_TRY(list_phases(ctx, b, s->chain[i], mb, DH_PHASES(DH_PHASE_F), list));
    }
    return DH_OK;
}

static dh_status list_backward(dh_ctx *ctx, plan *b, stage *s, int32_t mb, unsigned phases,
                               item_list *list)
{
    const bool inputs = phases & DH_PHASES(DH_PHASE_B), weights = phases & DH_PHASES(DH_PHASE_W);
    uint32_t from = source_of(b, s, false);
    for (size_t i = s->n_chain; i-- > 0; from = s->chain[i]) {
        if (from != DH_NONE && inputs)
            DH_TRY(dh_emit_bind(ctx, b->emitter, from, s->chain[i], mb, false));
        DH_TRY(list_phases(ctx, b, s->chain[i], mb, phases, list));
        bool reduces =
            weights && s->backward_left == 1 && !dh_reductions_last(&b->reducer, s->chain[i]);
        if (reduces && !dh_vec_push(list, (item){s->chain[i], DH_NONE, mb})) return no_memory(ctx);
    }
    if (weights) s->backward_left--;
    return DH_OK;
}

static dh_status list_action(dh_ctx *ctx, plan *b, const dh_pipe_action *a, item_list *list)
{
    static const struct {
        bool forward, inputs, weights;
    } kinds[DH_N_PIPE_KINDS] = {[DH_PIPE_F] = {true, false, false},
                                [DH_PIPE_B] = {false, true, true},
                                [DH_PIPE_I] = {false, true, false},
                                [DH_PIPE_W] = {false, false, true}};
    stage *s = stage_of(b, a->stage);
    unsigned phases = (kinds[a->kind].inputs ? DH_PHASES(DH_PHASE_B) : 0) |
                      (kinds[a->kind].weights ? DH_PHASES(DH_PHASE_W) : 0);
    return kinds[a->kind].forward ? list_forward(ctx, b, s, a->micro, list)
                                  : list_backward(ctx, b, s, a->micro, phases, list);
}

static dh_status emit_item(dh_ctx *ctx, plan *b, const item *i)
{
    return i->op == DH_NONE ? dh_reductions_emit(ctx, &b->reducer, i->block)
                            : dh_emit_op(ctx, b->emitter, i->block, i->mb, i->op);
}

/* The graph with the shapes it has on the first tensor-parallel rank: shards of the
 * vocabulary may differ, but all ranks of a group must come to the same order. Shares
 * all but the tensors, which the caller frees. */
static bool first_rank_shapes(const plan *b, const dh_graph *graph, dh_graph *like)
{
    const dh_shard own = dh_emit_shard(b->emitter), first = {.tp = own.tp};
    int64_t begin, own_rows, first_rows;
    dh_vocab_shard(b->spec->model->vocab, own, &begin, &own_rows);
    dh_vocab_shard(b->spec->model->vocab, first, &begin, &first_rows);
    *like = *graph;
    like->tensors.at = malloc((graph->tensors.n + 1) * sizeof *like->tensors.at);
    if (!like->tensors.at) return false;
    for (size_t i = 0; i < graph->tensors.n; i++) {
        dh_tensor *t = &like->tensors.at[i];
        *t = graph->tensors.at[i];
        for (int a = 0; a < t->ndim; a++)
            if (t->axis[a] == DH_AXIS_VOCAB && t->shape[a] == own_rows) t->shape[a] = first_rows;
    }
    if (like->dims.vocab == own_rows) like->dims.vocab = first_rows;
    return true;
}

static dh_op_cost cost_of(const plan *b, const dh_graph *g, const dh_op *op)
{
    const dh_cost_op at = {.graph = g, .op = op, .mesh = mesh_of(b), .rank = b->spec->rank};
    return (dh_op_cost){.ns = (int64_t)b->costs->solo(b->costs->self, &at).ns,
                        .stream = dh_cost_stream(&at)};
}

/* Costs of a graph's operators, estimated once. */
static dh_status graph_costs(dh_ctx *ctx, plan *b, uint32_t graph, const dh_op_cost **costs)
{
    const dh_graph *g = dh_emitter_program(b->emitter)->graphs.at[graph];
    while (b->op_costs.n <= graph)
        if (!dh_vec_push(&b->op_costs, NULL)) return no_memory(ctx);
    dh_op_cost **slot = &b->op_costs.at[graph];
    if (!*slot) {
        dh_graph like;
        dh_op_cost *made = calloc(g->ops.n + 1, sizeof *made);
        if (!made || !first_rank_shapes(b, g, &like)) {
            free(made);
            return no_memory(ctx);
        }
        for (size_t i = 0; i < g->ops.n; i++) made[i] = cost_of(b, &like, &g->ops.at[i]);
        free(like.tensors.at);
        *slot = made;
    }
    *costs = *slot;
    return DH_OK;
}

static dh_status strand_of(dh_ctx *ctx, plan *b, const item_list *list, dh_op_cost **costs)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    *costs = calloc(list->n + 1, sizeof **costs);
    if (!*costs) return no_memory(ctx);
    for (size_t i = 0; i < list->n; i++) {
        const dh_op_cost *known;
        if (list->at[i].op == DH_NONE) continue; /* reductions overlap by themselves */
        DH_TRY(graph_costs(ctx, b, p->blocks.at[list->at[i].block].graph, &known));
        (*costs)[i] = known[list->at[i].op];
    }
    return DH_OK;
}

/* Whether an item adds to the gradient that `op` of the forward strand adds to: the
 * head of a tied model, which makes its weight gradient in the forward. */
static bool same_gradient(const plan *b, const item *x, const item *y)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    if (x->op == DH_NONE || y->op == DH_NONE) return false;
    const dh_block *bx = &p->blocks.at[x->block], *by = &p->blocks.at[y->block];
    const dh_graph *gx = p->graphs.at[bx->graph], *gy = p->graphs.at[by->graph];
    for (int i = 0; i < DH_MAX_OPERANDS; i++)
        for (int j = 0; j < DH_MAX_OPERANDS; j++) {
            uint32_t tx = gx->ops.at[x->op].out[i], ty = gy->ops.at[y->op].out[j];
            if (tx == DH_NONE || ty == DH_NONE) continue;
            const dh_tensor *a = &gx->tensors.at[tx], *c = &gy->tensors.at[ty];
            if (a->kind == DH_TENSOR_GRAD && c->kind == DH_TENSOR_GRAD &&
                bx->params[a->slot] == by->params[c->slot])
                return true;
        }
    return false;
}

/* Sums of gradients keep the order they have without interleaving: an operator of the
 * backward strand waits for those of the forward strand that add to the same one. */
static bool must_wait(const plan *b, const item *back, const item_list *f, size_t next)
{
    for (size_t i = next; i < f->n; i++)
        if (same_gradient(b, back, &f->at[i])) return true;
    return false;
}

static bool adds_to_gradient(const plan *b, const item *i)
{
    return i->op != DH_NONE && same_gradient(b, i, i);
}

/* The two strands of a slot in the strategy's order. */
static dh_status emit_pair(dh_ctx *ctx, plan *b, const item_list *f, const item_list *back)
{
    dh_op_cost *f_ops = NULL, *b_ops = NULL;
    unsigned char *from_b = malloc(f->n + back->n + 1);
    dh_status st = from_b ? DH_OK : no_memory(ctx);
    if (st == DH_OK) st = strand_of(ctx, b, f, &f_ops);
    if (st == DH_OK) st = strand_of(ctx, b, back, &b_ops);
    if (st == DH_OK)
        b->strategy->interleave((dh_strand){f_ops, f->n}, (dh_strand){b_ops, back->n}, from_b);
    size_t i = 0, j = 0;
    for (size_t k = 0; st == DH_OK && k < f->n + back->n; k++) {
        bool take_b = i == f->n || (j < back->n && from_b[k]);
        if (take_b && i < f->n && adds_to_gradient(b, &back->at[j]) &&
            must_wait(b, &back->at[j], f, i))
            take_b = false;
        st = emit_item(ctx, b, take_b ? &back->at[j++] : &f->at[i++]);
    }
    free(f_ops);
    free(b_ops);
    free(from_b);
    return st;
}

static dh_status emit_slot(dh_ctx *ctx, plan *b, const dh_pipe_slot *slot)
{
    item_list lists[2] = {{0}, {0}};
    dh_status st = DH_OK;
    for (int32_t k = 0; st == DH_OK && k < slot->n_actions; k++)
        if (b->spec->mode == DH_MODE_TRAIN || slot->action[k].kind == DH_PIPE_F)
            st = list_action(ctx, b, &slot->action[k], &lists[k]);
    if (st == DH_OK) st = emit_pair(ctx, b, &lists[0], &lists[1]);
    dh_vec_fini(&lists[0]);
    dh_vec_fini(&lists[1]);
    return st;
}

/* ---- order
 * -----------------------------------------------------------------------------------------------
 */

/* One thing this rank does, and its place in the order all ranks share. */
typedef struct event {
    int64_t time;
    int32_t rank; /* 0 transfers, 1 slots: what arrives at a time is there for what starts */
    int32_t stage, micro, forward;
    uint32_t link; /* transfers: the link block */
    uint32_t from; /* of sends: the block that made the data */
    const dh_pipe_slot *slot;
} event;
typedef DH_VEC(event) event_list;

static int by_time(const void *x, const void *y)
{
    const event *a = x, *b = y;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->rank != b->rank) return a->rank - b->rank;
    if (a->stage != b->stage) return a->stage - b->stage;
    if (a->micro != b->micro) return a->micro - b->micro;
    return a->forward - b->forward;
}

/* The transfers an action causes, where this rank is one of the ends. */
static dh_status add_transfer(dh_ctx *ctx, plan *b, const dh_pipe_action *a, int64_t end,
                              event_list *events)
{
    if (a->kind == DH_PIPE_W) return DH_OK;
    const bool forward = a->kind == DH_PIPE_F;
    const int32_t to = forward ? a->stage + 1 : a->stage - 1;
    const stage *sender = stage_of(b, a->stage), *receiver = stage_of(b, to);
    event e = {.time = end, .stage = a->stage, .micro = a->micro, .forward = forward};
    e.link = DH_NONE;
    e.from = DH_NONE;
    if (sender) {
        e.link = forward ? sender->send_forward : sender->send_backward;
        e.from = forward ? sender->chain[sender->n_chain - 1] : sender->chain[0];
    }
    if (receiver && e.link == DH_NONE) {
        e.link = forward ? receiver->recv_forward : receiver->recv_backward;
        e.from = DH_NONE;
    }
    if (e.link == DH_NONE || (sender && receiver)) return DH_OK;
    return dh_vec_push(events, e) ? DH_OK : no_memory(ctx);
}

static dh_status list_events(dh_ctx *ctx, plan *b, event_list *events)
{
    const dh_schedule *s = b->schedule;
    const bool train = b->spec->mode == DH_MODE_TRAIN;
    const dh_schedule_costs unit = {
        .every = {.f_ns = 1000, .i_ns = 1000, .w_ns = 1000, .b_ns = 2000, .fb_ns = 3000}};
    dh_schedule_timing timing;
    DH_TRY(dh_schedule_time(ctx, s, &unit, &timing));
    dh_status st = DH_OK;
    for (int32_t r = 0; r < s->n_ranks; r++)
        for (int32_t i = s->first_slot[r]; st == DH_OK && i < s->first_slot[r + 1]; i++) {
            const dh_pipe_slot *slot = &s->slots[i];
            event e = {.time = timing.start_ns[i], .rank = 1, .slot = slot, .link = DH_NONE};
            if (r == b->pipe_rank && !dh_vec_push(events, e)) st = no_memory(ctx);
            for (int32_t k = 0; st == DH_OK && k < slot->n_actions; k++)
                if (train || slot->action[k].kind == DH_PIPE_F)
                    st = add_transfer(ctx, b, &slot->action[k], timing.end_ns[i], events);
        }
    dh_schedule_timing_fini(&timing);
    if (st == DH_OK && events->n) qsort(events->at, events->n, sizeof *events->at, by_time);
    return st;
}

static dh_status emit_event(dh_ctx *ctx, plan *b, const event *e)
{
    if (e->slot) return emit_slot(ctx, b, e->slot);
    if (e->from != DH_NONE)
        DH_TRY(dh_emit_bind(ctx, b->emitter, e->from, e->link, e->micro, e->forward));
    return dh_emit_phases(ctx, b->emitter, e->link, e->micro, DH_PHASES(DH_PHASE_F));
}

static dh_status emit_step(dh_ctx *ctx, plan *b)
{
    event_list events = {0};
    dh_status st = list_events(ctx, b, &events);
    for (size_t i = 0; st == DH_OK && i < events.n; i++) st = emit_event(ctx, b, &events.at[i]);
    dh_vec_fini(&events);
    for (size_t i = 0; st == DH_OK && b->spec->mode == DH_MODE_TRAIN && i < b->n_stages; i++)
        for (size_t k = 0; st == DH_OK && k < b->stages[i].n_chain; k++)
            if (dh_reductions_last(&b->reducer, b->stages[i].chain[k]))
                st = dh_reductions_emit(ctx, &b->reducer, b->stages[i].chain[k]);
    return st;
}

/* ---- entry
 * ---------------------------------------------------------------------------------------------------
 */

static dh_status name_result(dh_ctx *ctx, plan *b)
{
    dh_program *p = dh_emitter_program(b->emitter);
    const stage *last = &b->stages[b->n_stages - 1];
    uint32_t head = last->chain[last->n_chain - 1];
    return dh_emit_operand(ctx, b->emitter, head, 0, p->graphs.at[p->blocks.at[head].graph]->x_out,
                           &p->result);
}

static dh_reducer reducer_of(const plan *b)
{
    const int32_t first = b->schedule->rank_of[0];
    const int32_t last = b->schedule->rank_of[b->schedule->n_stages - 1];
    return (dh_reducer){.emitter = b->emitter,
                        .spec = b->spec,
                        .tied_apart = b->spec->model->tied_head && first != last};
}

static dh_status build(dh_ctx *ctx, plan *b)
{
    b->reducer = reducer_of(b);
    DH_TRY(add_stages(ctx, b));
    DH_TRY(dh_emit_layout(ctx, b->emitter));
    DH_TRY(emit_step(ctx, b));
    if (b->spec->mode == DH_MODE_TRAIN) DH_TRY(dh_optimizer_emit(ctx, &b->reducer, &b->optimizer));
    if (b->spec->mode == DH_MODE_DECODE) DH_TRY(name_result(ctx, b));
    dh_program *p = dh_emitter_program(b->emitter);
    p->persistent_bytes = DH_MAX(p->persistent_bytes, b->spec->keep_bytes);
    return dh_program_plan_memory(ctx, p);
}

static dh_status check_schedule(dh_ctx *ctx, const dh_program_spec *spec, const dh_schedule *s)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): given or made by now
    if (s->n_ranks != spec->mesh.pp || s->n_micro != spec->n_micro)
        return dh_fail(ctx, DH_EINVAL,
                       "schedule %s is for %d stages and %d micro-batches; the job has "
                       "parallel.pp=%" PRId64 " and %" PRId64 " micro-batches a step",
                       s->name, s->n_ranks, s->n_micro, spec->mesh.pp, spec->n_micro);
    if (s->n_copies != 1)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "schedule %s keeps %d copies of the model, which cannot be trained; it can "
                       "be drawn and timed",
                       s->name, s->n_copies);
    return DH_OK;
}

static dh_status default_schedule(dh_ctx *ctx, const dh_program_spec *spec, dh_schedule **schedule)
{
    const dh_schedule_row *row;
    const dh_schedule_spec want = {.n_ranks = (int32_t)spec->mesh.pp,
                                   .n_micro = (int32_t)spec->n_micro};
    DH_TRY(dh_schedule_find(ctx, "1f1b", &row));
    return dh_schedule_generate(ctx, row, &want, schedule);
}

/* Evaluation keeps the placement of training, since parameters lie where that put
 * them, and runs forwards alone. */
static dh_status forward_only(dh_ctx *ctx, const dh_schedule *like, int32_t n_micro,
                              dh_schedule **schedule)
{
    dh_arena *arena = dh_arena_create();
    dh_schedule *s = arena ? DH_NEW(arena, dh_schedule) : NULL;
    if (s) {
        *s = *like;
        s->arena = arena;
        s->n_micro = n_micro;
        s->copy_of = DH_NEW_N(arena, int32_t, n_micro);
        s->first_slot = DH_NEW_N(arena, int32_t, like->n_ranks + 1);
        s->slots = DH_NEW_N(arena, dh_pipe_slot, like->n_stages * n_micro);
        s->rank_of = DH_NEW_N(arena, int32_t, like->n_stages);
    }
    if (!s || !s->copy_of || !s->first_slot || !s->slots || !s->rank_of) {
        dh_arena_destroy(arena);
        return no_memory(ctx);
    }
    memcpy(s->rank_of, like->rank_of, (size_t)like->n_stages * sizeof *s->rank_of);
    int32_t n = 0;
    for (int32_t r = 0; r < s->n_ranks; r++) {
        s->first_slot[r] = n;
        for (int32_t mb = 0; mb < n_micro; mb++)
            for (int32_t v = 0; v < s->n_stages; v++)
                if (s->rank_of[v] == r) s->slots[n++] = (dh_pipe_slot){1, {{DH_PIPE_F, v, mb}}};
    }
    s->first_slot[s->n_ranks] = n;
    *schedule = s;
    return DH_OK;
}

dh_status dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program)
{
    dh_program_spec whole = *spec;
    dh_schedule *made = NULL;
    if (whole.mesh.ranks == 0) DH_TRY(dh_mesh_init(ctx, 1, 1, 1, 1, 1, 1, 1, &whole.mesh));
    if (whole.mesh.ep > 1)
        return dh_fail(ctx, DH_EUNSUPPORTED, "parallel.ep above 1 cannot be built");
    if (whole.seq % (whole.mesh.cp > 1 ? 2 * whole.mesh.cp : 1))
        return dh_fail(ctx, DH_EINVAL,
                       "train.seq_len=%" PRId64 " does not divide by 2 * parallel.cp = %" PRId64,
                       whole.seq, 2 * whole.mesh.cp);
    if (!whole.schedule)
        DH_TRY(default_schedule(ctx, &whole, &made));
    else if (whole.mode != DH_MODE_TRAIN)
        DH_TRY(forward_only(ctx, whole.schedule, (int32_t)whole.n_micro, &made));
    if (made) whole.schedule = made;
    plan b = {.spec = &whole,
              .schedule = whole.schedule,
              .strategy = whole.strategy,
              .costs = whole.costs ? whole.costs : &dh_costs_default};
    if (!b.strategy) DH_TRY(dh_strategy_find(ctx, "sequential", &b.strategy));
    b.pipe_rank = (int32_t)dh_mesh_coord(&whole.mesh, whole.rank).pp;
    b.embed_graph = b.layer_graph = b.head_graph = b.experts_graph = DH_NONE;
    b.send_graph = b.recv_graph = DH_NONE;
    dh_status st = check_schedule(ctx, &whole, whole.schedule);
    if (st == DH_OK) st = dh_emitter_create(ctx, &whole, &b.emitter);
    dh_program *p = NULL;
    if (st == DH_OK) {
        st = build(ctx, &b);
        p = dh_emitter_program(b.emitter);
        dh_emitter_destroy(b.emitter);
    }
    for (size_t i = 0; i < b.n_stages; i++) free(b.stages[i].chain);
    free(b.stages);
    free(b.layers);
    free(b.loaded);
    for (size_t i = 0; i < b.op_costs.n; i++) free(b.op_costs.at[i]);
    dh_vec_fini(&b.op_costs);
    dh_schedule_destroy(made);
    if (st == DH_OK)
        *program = p;
    else
        dh_program_destroy(p);
    return st;
}
