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
            return plan_no_memory(ctx);
    return DH_OK;
}

/* Operators of a block of reductions, behind the backward of block `place`. */
static dh_status list_sums(dh_ctx *ctx, plan *b, uint32_t id, int32_t mb, uint32_t place,
                           plan_items *list)
{
    for (uint32_t i = 0; id != DH_NONE && i < plan_graph_of(b, id)->ops.n; i++)
        if (!dh_vec_push(list, (plan_item){id, i, mb, place})) return plan_no_memory(ctx);
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

static dh_status list_forward(dh_ctx *ctx, plan *b, stage *s, int32_t mb, plan_items *list)
{
    if (!b->loaded[mb]) DH_TRY(list_phases(ctx, b, b->data, mb, DH_PHASES(DH_PHASE_F), list));
    b->loaded[mb] = 1;
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
    if (b->unsettled.place == DH_NONE) return DH_OK;
    return dh_reductions_emit(ctx, &b->reducer, b->unsettled.place, b->unsettled.which,
                              b->unsettled.mb);
}

/* Whether a backward of weights completes gradients that are reduced, and which. */
static bool completes(const plan *b, const stage *s, dh_sums *which)
{
    const bool last = s->backward_left == 1;
    *which = DH_SUMS_STEP;
    if (!b->reducer.reduces_each) return last && !plan_has_copies(b) && !b->spec->goes_on;
    const bool first = s->backward_left == b->spec->recipe.n_micro;
    *which = last ? DH_SUMS_LAST : first ? DH_SUMS_FIRST : DH_SUMS_NEXT;
    return true;
}

/* Reductions of a step wait until the sends are on their way. Those of a micro-batch do not: its
 * whole gradients go as the backward goes on. */
static dh_status list_backward(dh_ctx *ctx, plan *b, stage *s, int32_t mb, unsigned phases,
                               plan_items *list)
{
    const bool inputs = phases & DH_PHASES(DH_PHASE_B), weights = phases & DH_PHASES(DH_PHASE_W);
    dh_sums which = DH_SUMS_STEP;
    const bool last = weights && completes(b, s, &which);
    const bool sends = inputs && s->send_backward != DH_NONE && !b->reducer.reduces_each;
    uint32_t from = source_of(b, s, false);
    if (weights) DH_TRY(list_settled(ctx, b, s->chain[s->n_chain - 1], list));
    for (size_t i = s->n_chain; i-- > 0; from = s->chain[i]) {
        if (from != DH_NONE && inputs)
            DH_TRY(dh_emit_bind(ctx, b->emitter, from, s->chain[i], mb, false));
        DH_TRY(list_phases(ctx, b, s->chain[i], mb, phases, list));
        if (last && !sends) DH_TRY(list_reductions(ctx, b, s->chain[i], which, mb, list));
    }
    for (size_t i = s->n_chain; last && sends && i-- > 0;) /* placed when these are ordered */
        DH_TRY(list_reductions(ctx, b, s->chain[i], which, mb, list));
    if (weights) s->backward_left--;
    return DH_OK;
}

/* One action of a slot. */
typedef struct strand {
    plan_items list;
    plan_walk walk;
} strand;

static bool reads_parameters(const plan *b, const dh_pipe_action *a)
{
    return a->kind == DH_PIPE_F || (b->spec->mode == DH_MODE_TRAIN && a->kind != DH_PIPE_W);
}

/* The rank's next slot that reads parameters; NULL: none. */
static const dh_pipe_slot *next_reader(const plan *b, const dh_pipe_slot *slot)
{
    const dh_schedule *s = b->schedule;
    const dh_pipe_slot *end = &s->slots[s->first_slot[b->pipe_rank + 1]];
    while (++slot < end)
        for (int32_t k = 0; k < slot->n_actions; k++)
            if (reads_parameters(b, &slot->action[k])) return slot;
    return NULL;
}

/* Tell a walk from the next slot what becomes of its blocks. */
static void look_ahead(plan *b, const dh_pipe_slot *slot, plan_walk *walk)
{
    const dh_pipe_slot *next =
        b->spec->recipe.sharing.regather == DH_REGATHER_STAGE ? next_reader(b, slot) : NULL;
    for (int32_t k = 0; next && k < next->n_actions; k++)
        walk->goes_on |=
            reads_parameters(b, &next->action[k]) && plan_stage_of(b, &next->action[k]) == walk->s;
    if (!next || walk->goes_on || slot->n_actions + next->n_actions > 2) return;
    walk->then = plan_stage_of(b, next->action);
    walk->then_mb = next->action->micro;
    walk->then_backward = next->action->kind != DH_PIPE_F;
}

static dh_status list_action(dh_ctx *ctx, plan *b, const dh_pipe_slot *slot,
                             const dh_pipe_action *a, strand *to)
{
    static const struct {
        bool forward, inputs, weights;
    } kinds[DH_N_PIPE_KINDS] = {[DH_PIPE_F] = {true, false, false},
                                [DH_PIPE_B] = {false, true, true},
                                [DH_PIPE_I] = {false, true, false},
                                [DH_PIPE_W] = {false, false, true}};
    stage *s = plan_stage_of(b, a);
    unsigned phases = (kinds[a->kind].inputs ? DH_PHASES(DH_PHASE_B) : 0) |
                      (kinds[a->kind].weights ? DH_PHASES(DH_PHASE_W) : 0);
    to->walk = (plan_walk){
        .s = a->kind == DH_PIPE_W ? NULL : s, .mb = a->micro, .backward = !kinds[a->kind].forward};
    look_ahead(b, slot, &to->walk);
    return kinds[a->kind].forward ? list_forward(ctx, b, s, a->micro, &to->list)
                                  : list_backward(ctx, b, s, a->micro, phases, &to->list);
}

/* ---- emission -------------------------------------------------------------------------------- */

/* later: reductions wait until what the slot made is on its way. */
static dh_status emit_in_order(dh_ctx *ctx, plan *b, strand strands[2], bool later)
{
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < strands[s].list.n; i++) {
            const plan_item *item = &strands[s].list.at[i];
            if (!later || !plan_is_reduction(b, item))
                DH_TRY(plan_walk_item(ctx, b, &strands[s].walk, item));
            else if (!dh_vec_push(&b->held, *item))
                return plan_no_memory(ctx);
        }
    return DH_OK;
}

/* by_rule is for whoever knows the nodes. */
static dh_slot_rest rest_of(plan *b, const dh_pipe_slot *slot, double to_end)
{
    const dh_pipe_action *a = &slot->action[slot->n_actions - 1];
    const bool sends = a->kind == DH_PIPE_B && plan_stage_of(b, a)->send_backward != DH_NONE &&
                       !b->reducer.reduces_each;
    dh_slot_rest rest = {.room = sends ? to_end : 0};
    for (size_t i = 0; i < b->n_stages; i++) rest.n_later += b->stages[i].backward_left > 0;
    return rest;
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
        else if (!dh_vec_push(&b->held, *item))
            return plan_no_memory(ctx);
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

dh_status plan_emit_held(dh_ctx *ctx, plan *b)
{
    if (b->held.n > 0) dh_emit_mark(b->emitter);
    for (size_t i = 0; i < b->held.n; i++) {
        if (may_wait(b, &b->held.at[i])) dh_emit_after_mark(b->emitter);
        const plan_item *item = &b->held.at[i];
        DH_TRY(dh_emit_op(ctx, b->emitter, item->block, item->mb, item->op));
    }
    b->held.n = 0;
    return DH_OK;
}

static dh_status emit_strands(dh_ctx *ctx, plan *b, const dh_pipe_slot *slot, double to_end,
                              strand strands[2])
{
    const dh_slot_rest rest = rest_of(b, slot, to_end);
    const bool training = b->spec->mode == DH_MODE_TRAIN, later = rest.room > 0;
    const plan_items lists[2] = {strands[0].list, strands[1].list};
    const bool places =
        !b->spec->recipe.sharing.parameters && later && plan_has_reductions(b, lists);
    const bool ordered = training && (plan_orders(b) || places);
    b->n_strands = ordered ? slot->n_actions : 1;
    for (int s = 0; s < 2; s++) {
        strands[s].walk.ordered = ordered;
        DH_TRY(plan_begin_walk(ctx, b, &strands[s].list, &strands[s].walk));
    }
    DH_TRY(ordered ? emit_ordered(ctx, b, strands, &rest) : emit_in_order(ctx, b, strands, later));
    return training ? plan_emit_turns(ctx, b, later) : DH_OK;
}

dh_status plan_emit_slot(dh_ctx *ctx, plan *b, const dh_pipe_slot *slot, double to_end)
{
    strand strands[2] = {{.list = {0}}, {.list = {0}}};
    dh_status st = DH_OK;
    for (int32_t k = 0; st == DH_OK && k < slot->n_actions; k++) {
        const dh_pipe_action *a = &slot->action[k];
        const int at = slot->n_actions == 2 ? k : a->kind == DH_PIPE_F ? 0 : 1;
        if (b->spec->mode == DH_MODE_TRAIN || a->kind == DH_PIPE_F)
            st = list_action(ctx, b, slot, a, &strands[at]);
    }
    if (st == DH_OK) st = emit_strands(ctx, b, slot, to_end, strands);
    for (int s = 0; s < 2; s++) {
        dh_vec_fini(&strands[s].list);
        free(strands[s].walk.left);
    }
    return st;
}
