/* Two copies of the model: Wavelet (Wang et al. 2021), Chimera (Li and Hoefler 2021, arXiv
 * 2107.06925, 3.2) and DualPipe (DeepSeek-V3, arXiv 2412.19437, 3.2.1).
 *
 * Both copies start equal and are stepped by the sum of their gradients, so they stay equal. If
 * they lie in opposite directions, stage g and its mirror image p-1-g hold the same layers, one
 * copy each. These ranks are further data-parallel ranks to each other (dh_program_data_group). One
 * sum then serves copies and data-parallel ranks: fewer bytes than two sums, and ZeRO shards over
 * all of them. If a rank has both copies of a stage, it adds their gradients before that sum, and
 * steps both.
 *
 * Order (DH_REDUCE_BY_TURN of plan/step_events.h). Mirrored stages complete the gradients that they share at different times, and in slots
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
