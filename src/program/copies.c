/* Two copies of the model: Wavelet (Wang et al. 2021), Chimera (Li and Hoefler 2021, 3.2) and
 * DualPipe (DeepSeek-V3, 3.2.1); arXiv 2107.06925 and 2412.19437.
 *
 * Both copies start equal and are stepped by the sum of their gradients, so they stay equal. If
 * they lie in opposite directions, stage g and its mirror image p-1-g hold the same layers, one
 * copy each. These ranks are further data-parallel ranks to each other (dh_program_data_group). One
 * sum then serves copies and data-parallel ranks: fewer bytes than two sums, and ZeRO shards over
 * all of them. If a rank has both copies of a stage, it adds their gradients before that sum, and
 * steps both.
 *
 * Order. Mirrored stages complete the gradients that they share at different times, and in slots
 * that are not alike. Sums therefore have one order, by when the schedule's clock has them complete
 * in both copies. A stage's sums stand after the slot of that time and after the sums before them.
 * They are alone on their streams (dh_stream_of_group), and no slot waits for them, not even after
 * a barrier between strands. A rank in a sum therefore waits only for slots, which need no sum,
 * and for earlier sums. So the first sum in that order that is not complete always gets its
 * partners. */
#include <stdlib.h>

#include "program/build.h"

/* ---- what can be trained --------------------------------------------------------------------- */

static dh_status check_micro(dh_ctx *ctx, const dh_schedule *s)
{
    for (int32_t copy = 0; copy < s->n_copies; copy++) {
        int32_t j = 0;
        while (j < s->n_micro && s->copy_of[j] != copy) j++;
        if (j == s->n_micro)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "schedule %s keeps %d copies of the model, and of %d micro-batches none "
                           "runs through one of them: take more, by a larger train.batch or a "
                           "smaller train.micro_batch",
                           s->name, s->n_copies, s->n_micro);
    }
    return DH_OK;
}

static dh_status check_zero(dh_ctx *ctx, const dh_recipe *r, const dh_schedule *s, bool together)
{
    if (r->sharing.parameters)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "schedule %s keeps two copies of the model, which use the same parameters "
                       "at different times, so parallel.zero=3 cannot gather them for both: take "
                       "parallel.zero=2 or less",
                       s->name);
    if (dh_recipe_reduces_each(r))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "schedule %s keeps two copies of the model and sums their gradients once "
                       "per step: use parallel.gradient_sync=last",
                       s->name);
    if (r->sharing.gradients && together)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "schedule %s has both copies of a stage on one rank, whose gradients stay "
                       "until they are added, so parallel.zero=2 would save nothing: take "
                       "parallel.zero=1, or dualpipe, whose copies lie on different ranks",
                       s->name);
    return DH_OK;
}

dh_status plan_check_copies(dh_ctx *ctx, const dh_recipe *recipe, const dh_schedule *s)
{
    const dh_schedule_copies copies = dh_schedule_copies_of(s);
    if (copies == DH_COPIES_ONE) return DH_OK;
    if (copies == DH_COPIES_OTHER)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "schedule %s keeps %d copies of the model, and can be drawn and timed; to be "
            "trained it has two, both along the ranks or one in the other's mirror "
            "image",
            s->name, s->n_copies);
    DH_TRY(check_micro(ctx, s));
    return check_zero(ctx, recipe, s, copies == DH_COPIES_TOGETHER || s->n_ranks % 2 == 1);
}

/* ---- order ------------------------------------------------------------------------------------
 */

/* When a stage's gradients are complete in all copies, by the schedule's clock. */
static int64_t complete_ns(const plan *b, const dh_schedule_timing *timing, int32_t id)
{
    const dh_schedule *s = b->schedule;
    int64_t last = 0;
    for (int32_t i = 0; i < s->first_slot[s->n_ranks]; i++)
        for (int32_t k = 0; k < s->slots[i].n_actions; k++)
            if (s->slots[i].action[k].stage == id) last = DH_MAX(last, timing->end_ns[i]);
    return last;
}

static bool holds(const plan *b, int32_t id)
{
    for (size_t i = 0; i < b->n_stages; i++)
        if (b->stages[i].id == id) return true;
    return false;
}

dh_status plan_order_turns(dh_ctx *ctx, plan *b, const dh_schedule_timing *timing)
{
    const int32_t last = b->schedule->n_stages - 1;
    int64_t *times = calloc(b->n_stages + 1, sizeof *times);
    b->turns = calloc(b->n_stages + 1, sizeof *b->turns);
    if (!times || !b->turns) {
        free(times);
        return plan_no_memory(ctx);
    }
    for (size_t i = b->n_stages; i-- > 0;) { /* at equal ends, the last stage first */
        const int32_t id = b->stages[i].id;
        if (b->stages[i].again) continue;
        int64_t ns = complete_ns(b, timing, id);
        /* A tied embedding's gradient has the part of a head on the same rank. */
        if (id == 0 && b->spec->recipe.model.tied_head && holds(b, last))
            ns = DH_MAX(ns, complete_ns(b, timing, last));
        size_t at = b->n_turns++;
        for (; at > 0 && times[at - 1] > ns; at--) {
            times[at] = times[at - 1];
            b->turns[at] = b->turns[at - 1];
        }
        times[at] = ns;
        b->turns[at] = id;
    }
    free(times);
    return DH_OK;
}

/* ---- emission ----------------------------------------------------------------------------------
 */

static bool is_complete(const plan *b, int32_t id)
{
    for (size_t i = 0; i < b->n_stages; i++)
        if (b->stages[i].id == id && b->stages[i].backward_left > 0) return false;
    return true;
}

static const stage *first_copy_of(const plan *b, int32_t id)
{
    const stage *s = b->stages;
    while (s->id != id || s->again) s++;
    return s;
}

static dh_status emit_block(dh_ctx *ctx, plan *b, uint32_t block, bool held)
{
    uint32_t id;
    if (dh_reductions_last(&b->reducer, block)) return DH_OK;
    DH_TRY(dh_reductions_add(ctx, &b->reducer, block, DH_SUMS_STEP, &id));
    for (uint32_t i = 0; id != DH_NONE && i < plan_graph_of(b, id)->ops.n; i++) {
        const plan_item item = {id, i, -1, block};
        if (!held)
            DH_TRY(dh_emit_op(ctx, b->emitter, item.block, item.mb, item.op));
        else if (!dh_vec_push(&b->held, item))
            return plan_no_memory(ctx);
    }
    return DH_OK;
}

dh_status plan_emit_turns(dh_ctx *ctx, plan *b, bool held)
{
    for (; b->next_turn < b->n_turns && is_complete(b, b->turns[b->next_turn]); b->next_turn++) {
        const stage *s = first_copy_of(b, b->turns[b->next_turn]);
        for (size_t i = s->n_chain; i-- > 0;) DH_TRY(emit_block(ctx, b, s->chain[i], held));
    }
    return DH_OK;
}
