/* The order in which the operators of a slot are emitted. The strategy's policy is asked once for
 * slots that are alike, with sizes that all ranks of a stage agree on. */
#include <stdlib.h>
#include <string.h>

#include "program/build.h"
#include "program/ranks.h"

/* ---- what is known ------------------------------------------------------------------------- */

/* An order, and the slot it is for: operators by graph, whatever block and micro-batch. */
typedef struct known_order {
    uint64_t *key;
    size_t n_key;
    dh_slot_pick *order;
} known_order;

/* A graph as the first rank has it, NULL until wanted; of reductions, what each of them sums. */
typedef struct like_graph {
    dh_graph *graph;
    dh_operand *sums; /* [ops] */
} like_graph;

typedef struct slot_maker {
    dh_ordering ordering;
    const dh_costs *costs;
    dh_order_cache *own;     /* where none was given */
    DH_VEC(like_graph) like; /* by graph */
    DH_VEC(known_order) known;
    bool nodes_alike;   /* set with places */
    dh_operand *places; /* by parameter: of its gradient on the first rank; NULL until wanted */
} slot_maker;

dh_status slot_maker_create(dh_ctx *ctx, const dh_recipe *recipe, slot_maker **maker)
{
    slot_maker *m = calloc(1, sizeof *m);
    if (!m) return dh_no_memory(ctx);
    *maker = m;
    m->costs = recipe->costs ? recipe->costs : &dh_costs_default;
    DH_TRY(dh_recipe_ordering(ctx, recipe, &m->ordering));
    if (m->ordering.cache) return DH_OK;
    m->own = m->ordering.cache = dh_order_cache_create();
    return m->own ? DH_OK : dh_no_memory(ctx);
}

void slot_maker_destroy(slot_maker *maker)
{
    if (!maker) return;
    for (size_t i = 0; i < maker->like.n; i++) {
        dh_graph_destroy(maker->like.at[i].graph);
        free(maker->like.at[i].sums);
    }
    dh_vec_fini(&maker->like);
    for (size_t i = 0; i < maker->known.n; i++) {
        free(maker->known.at[i].key);
        free(maker->known.at[i].order);
    }
    dh_vec_fini(&maker->known);
    free(maker->places);
    dh_order_cache_destroy(maker->own);
    free(maker);
}

static dh_status keep_like(dh_ctx *ctx, slot_maker *m, uint32_t graph, like_graph **kept)
{
    while (m->like.n <= graph)
        if (!dh_vec_push(&m->like, (like_graph){0})) return dh_no_memory(ctx);
    *kept = &m->like.at[graph];
    return DH_OK;
}

static void check_like(const plan *b, uint32_t graph, const dh_graph *like)
{
    const dh_graph *own = dh_emitter_program(b->emitter)->graphs.at[graph];
    DH_CHECK(like && like->ops.n == own->ops.n, "graph %u has other operators on another rank",
             graph);
}

/* A layer that has the graph; of other blocks 0. */
static int64_t layer_of(const plan *b, uint32_t graph)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    for (size_t i = 0; i < p->blocks.n; i++)
        if (p->blocks.at[i].graph == graph) return p->blocks.at[i].layer;
    return 0;
}

dh_status plan_graph_like(dh_ctx *ctx, plan *b, uint32_t graph, const dh_graph **like)
{
    const dh_graph *own = dh_emitter_program(b->emitter)->graphs.at[graph];
    const dh_shard here = dh_emit_shard(b->emitter);
    const dh_shard first = {.tp = here.tp, .ep = here.ep, .whole_experts = here.whole_experts};
    like_graph *kept;
    DH_TRY(keep_like(ctx, b->slots, graph, &kept));
    if (!kept->graph)
        DH_TRY(
            plan_build_graph(ctx, b->spec, own->kind, layer_of(b, graph), first, 0, &kept->graph));
    *like = kept->graph;
    check_like(b, graph, *like);
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
static uint64_t *key_of(const plan *b, const plan_items lists[2], size_t *n_key)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    uint64_t *key = malloc((lists[0].n + lists[1].n + 2) * sizeof *key);
    size_t n = 0;
    if (!key) return NULL;
    key[n++] = lists[0].n;
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < lists[s].n; i++) {
            const plan_item *it = &lists[s].at[i];
            const bool begins = i == 0 || it[-1].place != it->place;
            key[n++] =
                (uint64_t)p->blocks.at[it->block].graph << 33 | (uint64_t)begins << 32 | it->op;
        }
    *n_key = n;
    return key;
}

/* ---- items --------------------------------------------------------------------------------- */

/* Whether an item adds to the gradient that `op` of the forward strand adds to: the
 * head of a tied model, which makes its weight gradient in the forward. */
static bool same_gradient(const plan *b, const plan_item *x, const plan_item *y)
{
    const dh_program *p = dh_emitter_program(b->emitter);
    const dh_block *bx = &p->blocks.at[x->block], *by = &p->blocks.at[y->block];
    const dh_graph *gx = p->graphs.at[bx->graph], *gy = p->graphs.at[by->graph];
    for (int i = 0; i < DH_MAX_OPERANDS; i++)
        for (int j = 0; j < DH_MAX_OPERANDS; j++) {
            uint32_t tx = gx->ops.at[x->op].out[i], ty = gy->ops.at[y->op].out[j];
            if (tx == DH_NONE || ty == DH_NONE) continue;
            const dh_tensor *a = &gx->tensors.at[tx], *c = &gy->tensors.at[ty];
            if (a->kind == DH_TENSOR_GRAD && c->kind == DH_TENSOR_GRAD &&
                bx->params[a->which] == by->params[c->which])
                return true;
        }
    return false;
}

static bool adds_to_gradient(const plan *b, const plan_item *i)
{
    return same_gradient(b, i, i);
}

/* The operators of the forward strand that come before this one because they add to the
 * same gradient: sums keep the order they have without interleaving. */
static uint32_t after_forward(const plan *b, const plan_item *back, const plan_items *f)
{
    if (!adds_to_gradient(b, back)) return 0;
    for (size_t i = f->n; i-- > 0;)
        if (same_gradient(b, back, &f->at[i])) return (uint32_t)i + 1;
    return 0;
}

/* The gradients that a reduction sums, on the first rank. */
static dh_operand sum_of(const plan *b, const plan_item *reduction)
{
    const uint32_t graph = dh_emitter_program(b->emitter)->blocks.at[reduction->block].graph;
    return b->slots->like.at[graph].sums[reduction->op];
}

static bool overlap(dh_operand x, dh_operand y)
{
    return x.buffer == y.buffer && x.byte0 < y.byte0 + y.n_bytes && y.byte0 < x.byte0 + x.n_bytes;
}

static dh_status find_places(dh_ctx *ctx, const plan *b)
{
    const size_t n = dh_emitter_program(b->emitter)->params.n;
    if (b->slots->places) return DH_OK;
    b->slots->places = malloc((n + 1) * sizeof *b->slots->places);
    if (!b->slots->places) return dh_no_memory(ctx);
    for (uint32_t i = 0; i < n; i++) b->slots->places[i] = dh_reductions_place(&b->reducer, i);
    b->slots->nodes_alike = dh_mesh_nodes_alike(&b->spec->recipe.mesh);
    return DH_OK;
}

static bool adds_to_sum(const plan *b, const plan_item *i, dh_operand sum)
{
    const dh_block *block = &dh_emitter_program(b->emitter)->blocks.at[i->block];
    const dh_graph *g = plan_graph_of(b, i->block);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        const uint32_t out = g->ops.at[i->op].out[k];
        if (out == DH_NONE || g->tensors.at[out].kind != DH_TENSOR_GRAD) continue;
        const uint32_t param = block->params[g->tensors.at[out].which];
        if (overlap(sum, b->slots->places[param])) return true;
    }
    return false;
}

static dh_stream stream_of(const plan *b, const plan_item *i)
{
    const dh_op *op = &plan_graph_of(b, i->block)->ops.at[i->op];
    return dh_stream_of(op, &b->spec->recipe.mesh, b->spec->rank);
}

/* A reduction follows the operators that add to its gradients, and earlier reductions of some of
 * them. Places are the first rank's, as all ranks of a stage have to come to one order. If some
 * groups leave their nodes and others do not, members have the layers' traffic on different
 * streams, and would order it differently. Reductions then stay in the order they have. */
static bool follows(const plan *b, const plan_item *reduction, const plan_item *before)
{
    const dh_operand sum = sum_of(b, reduction);
    if (!plan_is_reduction(b, before)) return adds_to_sum(b, before, sum);
    if (overlap(sum, sum_of(b, before))) return true;
    return !b->slots->nodes_alike && stream_of(b, reduction) == stream_of(b, before);
}

static bool releases(const plan *b, const plan_item *i)
{
    return plan_graph_of(b, i->block)->ops.at[i->op].type == DH_OP_RELEASE;
}

/* A maker of gradients follows the last release before it, whose storage they may take. */
static dh_status find_release(dh_ctx *ctx, const plan *b, dh_arena *arena, const plan_item *list,
                              size_t i, dh_slot_item *to)
{
    if (!adds_to_gradient(b, &list[i])) return DH_OK;
    for (size_t k = i; k-- > 0;) {
        if (!releases(b, &list[k])) continue;
        uint32_t *after = DH_NEW(arena, uint32_t);
        if (!after) return dh_no_memory(ctx);
        *after = (uint32_t)k;
        to->after = after;
        to->n_after = 1;
        break;
    }
    return DH_OK;
}

static dh_status find_followed(dh_ctx *ctx, const plan *b, dh_arena *arena, const plan_item *list,
                               size_t i, dh_slot_item *to)
{
    if (!plan_is_reduction(b, &list[i])) return find_release(ctx, b, arena, list, i, to);
    DH_TRY(find_places(ctx, b));
    uint32_t *after = DH_NEW_N(arena, uint32_t, i + 1);
    if (!after) return dh_no_memory(ctx);
    to->after = after;
    for (uint32_t k = 0; k < i; k++)
        if (follows(b, &list[i], &list[k])) after[to->n_after++] = k;
    return DH_OK;
}

/* The first rank's graph in place of the item's own. */
static dh_status like_of(dh_ctx *ctx, plan *b, const plan_item *i, const dh_graph **like)
{
    const uint32_t graph = dh_emitter_program(b->emitter)->blocks.at[i->block].graph;
    if (!plan_is_reduction(b, i)) return plan_graph_like(ctx, b, graph, like);
    like_graph *kept;
    DH_TRY(keep_like(ctx, b->slots, graph, &kept));
    if (!kept->graph)
        DH_TRY(dh_reductions_first(ctx, &b->reducer, i->block, &kept->graph, &kept->sums));
    *like = kept->graph;
    check_like(b, graph, *like);
    return DH_OK;
}

static dh_status slot_items(dh_ctx *ctx, plan *b, dh_arena *arena, const plan_items lists[2], int s,
                            dh_slot_item *items)
{
    const dh_backend_info *backend = b->spec->recipe.backend;
    uint32_t block = 0;
    for (size_t i = 0; i < lists[s].n; i++) {
        const plan_item *it = &lists[s].at[i];
        if (i > 0 && it->place != it[-1].place && !plan_is_reduction(b, it)) block++;
        items[i] = (dh_slot_item){.op = it->op, .block = block};
        DH_TRY(like_of(ctx, b, it, &items[i].graph));
        DH_TRY(find_followed(ctx, b, arena, lists[s].at, i, &items[i]));
        items[i].work_bytes =
            dh_backend_workspace(backend, items[i].graph, &items[i].graph->ops.at[it->op]);
        if (items[i].work_bytes == DH_NO_WORKSPACE) return dh_no_memory(ctx);
        if (s == 1) items[i].after_f = after_forward(b, it, &lists[0]);
    }
    return DH_OK;
}

/* ---- orders -------------------------------------------------------------------------------- */

static dh_status make_order(dh_ctx *ctx, plan *b, const plan_items lists[2],
                            const dh_slot_rest *rest, const dh_slot_pick **order)
{
    dh_arena *arena = dh_arena_create();
    dh_slot_items strands[2];
    dh_slot *slot;
    dh_status st = arena ? DH_OK : dh_no_memory(ctx);
    for (int s = 0; st == DH_OK && s < 2; s++) {
        dh_slot_item *items = DH_NEW_N(arena, dh_slot_item, lists[s].n + 1);
        strands[s] = (dh_slot_items){items, lists[s].n};
        st = items ? slot_items(ctx, b, arena, lists, s, items) : dh_no_memory(ctx);
    }
    if (st == DH_OK)
        st = dh_slot_build(ctx, arena, b->slots->costs, &b->spec->recipe.mesh, b->spec->rank,
                           strands, &slot);
    if (st == DH_OK && plan_has_reductions(b, lists)) {
        slot->rest = *rest;
        slot->rest.by_rule = !b->slots->nodes_alike; /* costs differ: see follows */
    }
    if (st == DH_OK)
        st = dh_order_cache_get(ctx, b->slots->ordering.cache, slot, b->slots->ordering.policy,
                                &b->slots->ordering.options, order);
    dh_arena_destroy(arena);
    return st;
}

dh_status plan_find_order(dh_ctx *ctx, plan *b, const plan_items lists[2], const dh_slot_rest *rest,
                          const dh_slot_pick **order)
{
    size_t n_key;
    uint64_t *key = key_of(b, lists, &n_key);
    if (!key) return dh_no_memory(ctx);
    const known_order *known = find_known(b->slots, key, n_key);
    if (known) {
        free(key);
        *order = known->order;
        return DH_OK;
    }
    const dh_slot_pick *made;
    const size_t n = lists[0].n + lists[1].n;
    dh_status st = make_order(ctx, b, lists, rest, &made);
    known_order add = {key, n_key, st == DH_OK ? malloc((n + 1) * sizeof *made) : NULL};
    if (st == DH_OK && add.order) memcpy(add.order, made, n * sizeof *made);
    if (st == DH_OK && (!add.order || !dh_vec_push(&b->slots->known, add))) st = dh_no_memory(ctx);
    if (st != DH_OK) {
        free(add.order);
        free(key);
    }
    *order = add.order;
    return st;
}

bool plan_orders(const plan *b)
{
    const dh_ordering *o = &b->slots->ordering;
    return o->policy->order || o->options.barriers;
}
