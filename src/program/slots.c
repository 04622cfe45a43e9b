/* Slots of the schedule to instructions: which operators an action has, reductions of gradients
 * behind the last backward among them. */
#include <stdlib.h>

#include "program/build.h"
#include "program/recipe.h"

/* ---- actions ------------------------------------------------------------------------------- */

stage *plan_stage(plan *b, int32_t copy, int32_t id)
{
    for (size_t i = 0; i < b->n_stages; i++)
        if (b->stages[i].id == id && b->stages[i].copy == copy) return &b->stages[i];
    return NULL;
}

const stage *plan_first_copy(const plan *b, int32_t id)
{
    const stage *s = b->stages;
    while (s->id != id || s->again) s++;
    return s;
}

/* The block whose output enters virtual stage `id`, on this rank or by a link. */
static uint32_t source_of(plan *b, const stage *s, bool forward)
{
    uint32_t link = forward ? s->recv_forward : s->recv_backward;
    if (link != DH_NONE) return link;
    const stage *other = plan_stage(b, s->copy, forward ? s->id - 1 : s->id + 1);
    if (!other) return DH_NONE;
    return forward ? other->chain[other->n_chain - 1] : other->chain[0];
}

static dh_status list_phases(dh_ctx *ctx, plan *b, uint32_t block, int32_t mb, unsigned phases,
                             plan_items *list)
{
    const dh_graph *g = plan_graph_of(b, block);
    for (uint32_t i = 0; i < g->ops.n; i++)
        if (phases >> g->ops.at[i].phase & 1 &&
            !dh_vec_push(list, (plan_item){block, i, mb, block}))
            return dh_no_memory(ctx);
    return DH_OK;
}

/* Operators of a block of reductions, behind the backward of block `place`. */
static dh_status list_sums(dh_ctx *ctx, plan *b, uint32_t id, int32_t mb, uint32_t place,
                           plan_items *list)
{
    for (uint32_t i = 0; id != DH_NONE && i < plan_graph_of(b, id)->ops.n; i++)
        if (!dh_vec_push(list, (plan_item){id, i, mb, place})) return dh_no_memory(ctx);
    return DH_OK;
}

/* The last reductions are settled before the next ones, or the next micro-batch's gradients. */
static dh_status list_settled(dh_ctx *ctx, plan *b, uint32_t place, plan_items *list)
{
    uint32_t id;
    if (b->unsettled.place == DH_NONE) return DH_OK;
    DH_TRY(dh_reductions_add(ctx, &b->reducer, b->unsettled.place, b->unsettled.which, &id));
    b->unsettled.place = DH_NONE;
    return list_sums(ctx, b, id, b->unsettled.mb, place, list);
}

/* List the reductions of the gradients that the block's backward completes. */
static dh_status list_reductions(dh_ctx *ctx, plan *b, uint32_t block, dh_sums which, int32_t mb,
                                 plan_items *list)
{
    uint32_t id;
    if (dh_reductions_last(&b->reducer, block)) return DH_OK;
    DH_TRY(dh_reductions_add(ctx, &b->reducer, block, which, &id));
    if (which == DH_SUMS_STEP) return list_sums(ctx, b, id, -1, block, list);
    if (id == DH_NONE) return DH_OK;
    DH_TRY(list_settled(ctx, b, block, list));
    b->unsettled.place = block;
    b->unsettled.which = which == DH_SUMS_FIRST ? DH_SUMS_SETTLE_FIRST : DH_SUMS_SETTLE;
    b->unsettled.mb = mb;
    return list_sums(ctx, b, id, mb, block, list);
}

/* Whether they come in its forward. A strategy's order has reductions beside backwards alone. */
static bool makes_gradients(const plan *b, uint32_t block)
{
    return plan_graph_of(b, block)->kind == DH_BLOCK_HEAD && !plan_orders(b);
}

static dh_status list_forward(dh_ctx *ctx, plan *b, stage *s, int32_t mb, bool loads,
                              plan_items *list)
{
    if (loads) DH_TRY(list_phases(ctx, b, b->data, mb, DH_PHASES(DH_PHASE_F), list));
    uint32_t from = source_of(b, s, true);
    for (size_t i = 0; i < s->n_chain; from = s->chain[i++]) {
        if (from != DH_NONE) DH_TRY(dh_emit_bind(ctx, b->emitter, from, s->chain[i], mb, true));
        if (makes_gradients(b, s->chain[i])) DH_TRY(list_settled(ctx, b, s->chain[i], list));
        DH_TRY(list_phases(ctx, b, s->chain[i], mb, DH_PHASES(DH_PHASE_F), list));
    }
    return DH_OK;
}

dh_status plan_emit_settled(dh_ctx *ctx, plan *b)
{
    const uint32_t place = b->unsettled.place;
    b->unsettled.place = DH_NONE;
    if (place == DH_NONE) return DH_OK;
    return dh_reductions_emit(ctx, &b->reducer, place, b->unsettled.which, b->unsettled.mb);
}

static const dh_sums sums_of[] = {[DH_REDUCE_STEP] = DH_SUMS_STEP,
                                  [DH_REDUCE_FIRST] = DH_SUMS_FIRST,
                                  [DH_REDUCE_NEXT] = DH_SUMS_NEXT,
                                  [DH_REDUCE_LAST] = DH_SUMS_LAST};

/* reduce: the event of gradients that it completes; NULL: there is none. Reductions that wait until
 * the sends are on their way come last; others go as the backward goes on. */
static dh_status list_backward(dh_ctx *ctx, plan *b, stage *s, int32_t mb, unsigned phases,
                               const dh_step_event *reduce, plan_items *list)
{
    const bool inputs = phases & DH_PHASES(DH_PHASE_B), weights = phases & DH_PHASES(DH_PHASE_W);
    const bool behind = reduce && reduce->when == DH_REDUCE_BEHIND;
    const dh_sums which = reduce ? sums_of[reduce->of] : DH_SUMS_STEP;
    uint32_t from = source_of(b, s, false);
    if (weights) DH_TRY(list_settled(ctx, b, s->chain[s->n_chain - 1], list));
    for (size_t i = s->n_chain; i-- > 0; from = s->chain[i]) {
        if (from != DH_NONE && inputs)
            DH_TRY(dh_emit_bind(ctx, b->emitter, from, s->chain[i], mb, false));
        DH_TRY(list_phases(ctx, b, s->chain[i], mb, phases, list));
        if (reduce && !behind) DH_TRY(list_reductions(ctx, b, s->chain[i], which, mb, list));
    }
    for (size_t i = s->n_chain; behind && i-- > 0;) /* placed when these are ordered */
        DH_TRY(list_reductions(ctx, b, s->chain[i], which, mb, list));
    return DH_OK;
}

/* One action of a slot. */
typedef struct strand {
    plan_items list;
    plan_walk walk;
} strand;

/* The slot whose first blocks the walk gathers after its own. */
static void look_ahead(plan *b, const dh_step_event *e, plan_walk *walk)
{
    if (e->then < 0) return;
    const dh_pipe_action *next = b->schedule->slots[e->then].action;
    walk->then = plan_stage_of(b, next);
    walk->then_mb = next->micro;
    walk->then_backward = next->kind != DH_PIPE_F;
}

static dh_status list_action(dh_ctx *ctx, plan *b, const dh_step_event *e, int32_t k, strand *to)
{
    static const struct {
        bool forward, inputs, weights;
    } kinds[DH_N_PIPE_KINDS] = {[DH_PIPE_F] = {true, false, false},
                                [DH_PIPE_B] = {false, true, true},
                                [DH_PIPE_I] = {false, true, false},
                                [DH_PIPE_W] = {false, false, true}};
    const dh_pipe_action *a = &b->schedule->slots[e->slot].action[k];
    const dh_step_use *use = &e->use[k];
    const dh_step_event *reduce = use->reduce < 0 ? NULL : &b->events.list.at[use->reduce];
    stage *s = plan_stage_of(b, a);
    unsigned phases = (kinds[a->kind].inputs ? DH_PHASES(DH_PHASE_B) : 0) |
                      (kinds[a->kind].weights ? DH_PHASES(DH_PHASE_W) : 0);
    to->walk = (plan_walk){.s = a->kind == DH_PIPE_W ? NULL : s,
                           .mb = a->micro,
                           .backward = !kinds[a->kind].forward,
                           .stays = use->release < 0};
    look_ahead(b, e, &to->walk);
    return kinds[a->kind].forward ? list_forward(ctx, b, s, a->micro, use->loads, &to->list)
                                  : list_backward(ctx, b, s, a->micro, phases, reduce, &to->list);
}

/* ---- emission -------------------------------------------------------------------------------- */

/* later: the slot's reductions are left for their event. */
static dh_status emit_in_order(dh_ctx *ctx, plan *b, strand strands[2], bool later)
{
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < strands[s].list.n; i++) {
            const plan_item *item = &strands[s].list.at[i];
            if (!later || !plan_is_reduction(b, item))
                DH_TRY(plan_walk_item(ctx, b, &strands[s].walk, item));
            else if (!dh_vec_push(&b->behind, *item))
                return dh_no_memory(ctx);
        }
    return DH_OK;
}

static dh_status emit_ordered(dh_ctx *ctx, plan *b, strand strands[2], const dh_slot_rest *rest)
{
    const plan_items lists[2] = {strands[0].list, strands[1].list};
    const dh_slot_pick *order = NULL;
    DH_TRY(plan_find_order(ctx, b, lists, rest, &order));
    for (size_t i = 0; i < lists[0].n + lists[1].n; i++) {
        const plan_item *item = &lists[order[i].strand].at[order[i].op];
        if (order[i].barrier) dh_emit_barrier(b->emitter);
        if (!order[i].behind)
            DH_TRY(plan_walk_item(ctx, b, &strands[order[i].strand].walk, item));
        else if (!dh_vec_push(&b->behind, *item))
            return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* On the layers' streams waiting would hold up the next slot. */
static bool may_wait(const plan *b, const plan_item *i)
{
    const dh_op *op = &plan_graph_of(b, i->block)->ops.at[i->op];
    const dh_stream stream = dh_stream_of(op, &b->spec->recipe.mesh, b->spec->rank);
    return dh_stream_traffic(stream) == DH_TRAFFIC_DATA;
}

/* They come after the transfer, which is the last instruction so far. */
static dh_status emit_behind(dh_ctx *ctx, plan *b)
{
    const uint32_t sent = (uint32_t)dh_emitter_program(b->emitter)->instrs.n - 1;
    for (size_t i = 0; i < b->behind.n; i++) {
        if (may_wait(b, &b->behind.at[i])) dh_emit_after(b->emitter, sent);
        const plan_item *item = &b->behind.at[i];
        DH_TRY(dh_emit_op(ctx, b->emitter, item->block, item->mb, item->op));
    }
    b->behind.n = 0;
    return DH_OK;
}

static dh_status emit_strands(dh_ctx *ctx, plan *b, const dh_step_event *e, strand strands[2])
{
    /* by_rule is for whoever knows the nodes. */
    const dh_slot_rest rest = {.room = e->room, .n_later = e->n_later};
    const bool training = b->spec->mode == DH_MODE_TRAIN, later = rest.room > 0;
    const plan_items lists[2] = {strands[0].list, strands[1].list};
    const bool places =
        !b->spec->recipe.sharing.parameters && later && plan_has_reductions(b, lists);
    const bool ordered = training && (plan_orders(b) || places);
    b->n_strands = ordered ? b->schedule->slots[e->slot].n_actions : 1;
    for (int s = 0; s < 2; s++) {
        strands[s].walk.ordered = ordered;
        DH_TRY(plan_begin_walk(ctx, b, &strands[s].list, &strands[s].walk));
    }
    return ordered ? emit_ordered(ctx, b, strands, &rest) : emit_in_order(ctx, b, strands, later);
}

dh_status plan_emit_slot(dh_ctx *ctx, plan *b, const dh_step_event *e)
{
    const dh_pipe_slot *slot = &b->schedule->slots[e->slot];
    DH_CHECK(b->behind.n == 0, "reductions of the slot before %d wait", e->slot);
    strand strands[2] = {{.list = {0}}, {.list = {0}}};
    dh_status st = DH_OK;
    for (int32_t k = 0; st == DH_OK && k < slot->n_actions; k++) {
        const dh_pipe_action *a = &slot->action[k];
        const int at = slot->n_actions == 2 ? k : a->kind == DH_PIPE_F ? 0 : 1;
        if (b->spec->mode == DH_MODE_TRAIN || a->kind == DH_PIPE_F)
            st = list_action(ctx, b, e, k, &strands[at]);
    }
    if (st == DH_OK) st = emit_strands(ctx, b, e, strands);
    for (int s = 0; s < 2; s++) {
        dh_vec_fini(&strands[s].list);
        free(strands[s].walk.left);
    }
    return st;
}

/* ---- reductions after a slot --------------------------------------------------------------- */

/* Sums of a stage of which there are two copies: alone, or with what the transfer has let go. */
static dh_status emit_turn(dh_ctx *ctx, plan *b, const dh_step_event *e)
{
    const stage *s = plan_first_copy(b, e->stage);
    const bool waits = b->events.list.at[e->need[0]].kind == DH_STEP_TRANSFER;
    for (size_t i = s->n_chain; i-- > 0;) {
        if (waits)
            DH_TRY(list_reductions(ctx, b, s->chain[i], DH_SUMS_STEP, -1, &b->behind));
        else if (!dh_reductions_last(&b->reducer, s->chain[i]))
            DH_TRY(dh_reductions_emit(ctx, &b->reducer, s->chain[i], DH_SUMS_STEP, -1));
    }
    return DH_OK;
}

/* All that one transfer lets go is emitted together. */
static bool goes_with_next(const plan *b, const dh_step_event *e)
{
    const dh_step_event *next = e + 1;
    return next < b->events.list.at + b->events.list.n && next->kind == DH_STEP_REDUCE &&
           next->when == DH_REDUCE_BY_TURN && next->need[0] == e->need[0];
}

dh_status plan_emit_reduce(dh_ctx *ctx, plan *b, const dh_step_event *e)
{
    if (e->when == DH_REDUCE_BY_TURN) DH_TRY(emit_turn(ctx, b, e));
    return goes_with_next(b, e) ? DH_OK : emit_behind(ctx, b);
}
