/* Slots of the schedule to instructions: which operators an action has, and in what order
 * those of a slot are emitted. */
#include <stdlib.h>
#include <string.h>

#include "program/build.h"

/* One operator of a slot, or the reductions of a block whose gradients are done. */
typedef struct item {
    uint32_t block, op; /* op DH_NONE: reductions */
    int32_t mb;
} item;
typedef DH_VEC(item) item_list;

/* ---- actions ------------------------------------------------------------------------------- */

stage *plan_stage(plan *b, int32_t id)
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
    const stage *other = plan_stage(b, forward ? s->id - 1 : s->id + 1);
    if (!other) return DH_NONE;
    return forward ? other->chain[other->n_chain - 1] : other->chain[0];
}

static const dh_graph *graph_of(const plan *b, uint32_t block)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    return p->graphs.at[p->blocks.at[block].graph];
}

static dh_status list_phases(dh_ctx *ctx, plan *b, uint32_t block, int32_t mb, unsigned phases,
                             item_list *list)
{
    const dh_graph *g = graph_of(b, block);
    for (uint32_t i = 0; i < g->ops.n; i++)
        if (phases >> g->ops.at[i].phase & 1 && !dh_vec_push(list, (item){block, i, mb}))
            return plan_no_memory(ctx);
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
    /* Those over tensor parallelism may share a stream with the transfer that the stage before
     * waits for. */
    const bool last = weights && s->backward_left == 1;
    const bool late = inputs && s->send_backward != DH_NONE;
    uint32_t from = source_of(b, s, false);
    for (size_t i = s->n_chain; i-- > 0; from = s->chain[i]) {
        if (from != DH_NONE && inputs)
            DH_TRY(dh_emit_bind(ctx, b->emitter, from, s->chain[i], mb, false));
        DH_TRY(list_phases(ctx, b, s->chain[i], mb, phases, list));
        const bool reduces = last && !late && !dh_reductions_last(&b->reducer, s->chain[i]);
        if (reduces && !dh_vec_push(list, (item){s->chain[i], DH_NONE, mb}))
            return plan_no_memory(ctx);
    }
    if (weights) s->backward_left--;
    s->reduces_late = last && late;
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
    stage *s = plan_stage(b, a->stage);
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

static bool adds_to_gradient(const plan *b, const item *i)
{
    return i->op != DH_NONE && same_gradient(b, i, i);
}

/* ---- orders --------------------------------------------------------------------------------- */

/* An order, and the slot it is for: operators by graph, whatever block and micro-batch. */
typedef struct known_order {
    uint64_t *key;
    size_t n_key;
    dh_slot_pick *order;
} known_order;

typedef struct slot_maker {
    dh_ordering ordering;
    const dh_costs *costs;
    dh_order_cache *own;     /* where none was given */
    DH_VEC(dh_graph *) like; /* by graph, NULL until wanted */
    DH_VEC(known_order) known;
} slot_maker;

dh_status slot_maker_create(dh_ctx *ctx, const dh_recipe *recipe, slot_maker **maker)
{
    slot_maker *m = calloc(1, sizeof *m);
    if (!m) return plan_no_memory(ctx);
    *maker = m;
    m->costs = recipe->costs ? recipe->costs : &dh_costs_default;
    DH_TRY(dh_recipe_ordering(ctx, recipe, &m->ordering));
    if (m->ordering.cache) return DH_OK;
    m->own = m->ordering.cache = dh_order_cache_create();
    return m->own ? DH_OK : plan_no_memory(ctx);
}

void slot_maker_destroy(slot_maker *maker)
{
    if (!maker) return;
    for (size_t i = 0; i < maker->like.n; i++) dh_graph_destroy(maker->like.at[i]);
    dh_vec_fini(&maker->like);
    for (size_t i = 0; i < maker->known.n; i++) {
        free(maker->known.at[i].key);
        free(maker->known.at[i].order);
    }
    dh_vec_fini(&maker->known);
    dh_order_cache_destroy(maker->own);
    free(maker);
}

dh_status plan_graph_like(dh_ctx *ctx, plan *b, uint32_t graph, const dh_graph **like)
{
    slot_maker *m = b->slots;
    const dh_graph *own = dh_emitter_program(b->emitter)->graphs.at[graph];
    const dh_shard here = dh_emit_shard(b->emitter);
    const dh_shard first = {.tp = here.tp, .ep = here.ep};
    while (m->like.n <= graph)
        if (!dh_vec_push(&m->like, NULL)) return plan_no_memory(ctx);
    if (!m->like.at[graph])
        DH_TRY(plan_build_graph(ctx, b->spec, own->kind, first, 0, &m->like.at[graph]));
    *like = m->like.at[graph];
    DH_CHECK((*like)->ops.n == own->ops.n, "graph %u has other operators on another rank", graph);
    return DH_OK;
}

static const known_order *find_known(const slot_maker *m, const uint64_t *key, size_t n)
{
    for (size_t i = 0; i < m->known.n; i++)
        if (m->known.at[i].n_key == n && memcmp(m->known.at[i].key, key, n * sizeof *key) == 0)
            return &m->known.at[i];
    return NULL;
}

/* Graph and operator of every item, and where blocks begin. */
static uint64_t *key_of(const plan *b, const item_list lists[2], size_t *n_key)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    uint64_t *key = malloc((lists[0].n + lists[1].n + 2) * sizeof *key);
    size_t n = 0;
    if (!key) return NULL;
    key[n++] = lists[0].n;
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < lists[s].n; i++) {
            const item *it = &lists[s].at[i];
            const bool begins = i == 0 || it[-1].block != it->block;
            key[n++] =
                (uint64_t)p->blocks.at[it->block].graph << 33 | (uint64_t)begins << 32 | it->op;
        }
    *n_key = n;
    return key;
}

/* The operators of the forward strand that come before this one because they add to the
 * same gradient: sums keep the order they have without interleaving. */
static uint32_t after_forward(const plan *b, const item *back, const item_list *f)
{
    if (!adds_to_gradient(b, back)) return 0;
    for (size_t i = f->n; i-- > 0;)
        if (same_gradient(b, back, &f->at[i])) return (uint32_t)i + 1;
    return 0;
}

static dh_status slot_items(dh_ctx *ctx, plan *b, const item_list lists[2], int s,
                            dh_slot_item *items)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_backend_info *backend = b->spec->recipe.backend;
    uint32_t block = 0;
    for (size_t i = 0; i < lists[s].n; i++) {
        const item *it = &lists[s].at[i];
        if (i > 0 && it->block != it[-1].block) block++;
        items[i] = (dh_slot_item){.op = it->op, .block = block};
        if (it->op != DH_NONE)
            DH_TRY(plan_graph_like(ctx, b, p->blocks.at[it->block].graph, &items[i].graph));
        if (it->op != DH_NONE && backend)
            items[i].work_bytes =
                backend->workspace_bytes(items[i].graph, &items[i].graph->ops.at[it->op]);
        if (s == 1) items[i].after_f = after_forward(b, it, &lists[0]);
    }
    return DH_OK;
}

static dh_status make_order(dh_ctx *ctx, plan *b, const item_list lists[2],
                            const dh_slot_pick **order)
{
    dh_arena *arena = dh_arena_create();
    dh_slot_items strands[2];
    dh_slot *slot;
    dh_status st = arena ? DH_OK : plan_no_memory(ctx);
    for (int s = 0; st == DH_OK && s < 2; s++) {
        dh_slot_item *items = DH_NEW_N(arena, dh_slot_item, lists[s].n + 1);
        strands[s] = (dh_slot_items){items, lists[s].n};
        st = items ? slot_items(ctx, b, lists, s, items) : plan_no_memory(ctx);
    }
    if (st == DH_OK)
        st = dh_slot_build(ctx, arena, b->slots->costs, &b->spec->recipe.mesh, b->spec->rank,
                           strands, &slot);
    if (st == DH_OK)
        st = dh_order_cache_get(ctx, b->slots->ordering.cache, slot, b->slots->ordering.policy,
                                &b->slots->ordering.options, order);
    dh_arena_destroy(arena);
    return st;
}

static dh_status find_order(dh_ctx *ctx, plan *b, const item_list lists[2],
                            const dh_slot_pick **order)
{
    size_t n_key;
    uint64_t *key = key_of(b, lists, &n_key);
    if (!key) return plan_no_memory(ctx);
    const known_order *known = find_known(b->slots, key, n_key);
    if (known) {
        free(key);
        *order = known->order;
        return DH_OK;
    }
    const dh_slot_pick *made;
    const size_t n = lists[0].n + lists[1].n;
    dh_status st = make_order(ctx, b, lists, &made);
    known_order add = {key, n_key, st == DH_OK ? malloc((n + 1) * sizeof *made) : NULL};
    if (st == DH_OK && add.order) memcpy(add.order, made, n * sizeof *made);
    if (st == DH_OK && (!add.order || !dh_vec_push(&b->slots->known, add)))
        st = plan_no_memory(ctx);
    if (st != DH_OK) {
        free(add.order);
        free(key);
    }
    *order = add.order;
    return st;
}

/* ---- emission -------------------------------------------------------------------------------- */

static dh_status emit_in_order(dh_ctx *ctx, plan *b, const item_list lists[2])
{
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < lists[s].n; i++) DH_TRY(emit_item(ctx, b, &lists[s].at[i]));
    return DH_OK;
}

static dh_status emit_ordered(dh_ctx *ctx, plan *b, const item_list lists[2])
{
    const dh_slot_pick *order = NULL;
    DH_TRY(find_order(ctx, b, lists, &order));
    for (size_t i = 0; i < lists[0].n + lists[1].n; i++) {
        if (order[i].barrier) dh_emit_barrier(b->emitter);
        DH_TRY(emit_item(ctx, b, &lists[order[i].strand].at[order[i].op]));
    }
    return DH_OK;
}

/* The order found is for a slot in which gradients are summed forward strand first. */
dh_status plan_emit_slot(dh_ctx *ctx, plan *b, const dh_pipe_slot *slot)
{
    item_list lists[2] = {{0}, {0}};
    dh_status st = DH_OK;
    for (int32_t k = 0; st == DH_OK && k < slot->n_actions; k++) {
        const dh_pipe_action *a = &slot->action[k];
        const int strand = a->kind == DH_PIPE_F ? 0 : 1;
        if (b->spec->mode == DH_MODE_TRAIN || a->kind == DH_PIPE_F)
            st = list_action(ctx, b, a, &lists[strand]);
    }
    const dh_ordering *o = &b->slots->ordering;
    const bool as_they_come = !o->policy->order && !o->options.barriers;
    const bool plain = as_they_come || b->spec->mode != DH_MODE_TRAIN;
    if (st == DH_OK) st = plain ? emit_in_order(ctx, b, lists) : emit_ordered(ctx, b, lists);
    dh_vec_fini(&lists[0]);
    dh_vec_fini(&lists[1]);
    return st;
}
