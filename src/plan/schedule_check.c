/* Validation of a schedule, and its execution in dependency order.
 *
 * One walk serves both and the timing. Ranks advance through their lists while the
 * inputs of their next slot exist. A rank whose input has just been made is looked at
 * again. Slots that stay undone wait in a cycle; the message shows it. The result
 * does not depend on the order in which ranks are looked at, since lists are fixed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/c_locale.h"
#include "schedule_build.h"

enum { DONE_F = 1, DONE_B = 2, DONE_W = 4 }; /* of one stage and micro-batch */

static size_t cell(const dh_schedule *s, dh_pipe_action a)
{
    return (size_t)a.stage * (size_t)s->n_micro + (size_t)a.micro;
}

static uint8_t done_bit(dh_pipe_kind kind)
{
    return kind == DH_PIPE_F ? DONE_F : kind == DH_PIPE_W ? DONE_W : DONE_B;
}

int dh_action_needs(const dh_schedule *s, dh_pipe_action a, dh_pipe_action needs[2])
{
    int n = 0;
    if (a.kind == DH_PIPE_F) {
        if (a.stage > 0) needs[n++] = (dh_pipe_action){DH_PIPE_F, a.stage - 1, a.micro};
    } else if (a.kind == DH_PIPE_W) {
        needs[n++] = (dh_pipe_action){DH_PIPE_B, a.stage, a.micro};
    } else {
        needs[n++] = (dh_pipe_action){DH_PIPE_F, a.stage, a.micro};
        if (a.stage + 1 < s->n_stages)
            needs[n++] = (dh_pipe_action){DH_PIPE_B, a.stage + 1, a.micro};
    }
    return n;
}

/* ---- walk ----------------------------------------------------------------------------------- */

typedef struct walk {
    const dh_schedule *s;
    uint8_t *done;  /* [stage][micro]: DONE_ bits */
    int32_t *head;  /* [rank]: next slot */
    int32_t *queue; /* [rank]: ranks to look at, a ring */
    bool *queued;   /* [rank] */
    int32_t queue_first, queue_n;
} walk;

static void look_at(walk *w, int32_t rank)
{
    if (w->queued[rank]) return;
    w->queued[rank] = true;
    w->queue[(w->queue_first + w->queue_n++) % w->s->n_ranks] = rank;
}

/* First input of the slot that does not exist yet. */
static bool is_missing_input(const walk *w, const dh_pipe_slot *slot, dh_pipe_action *missing)
{
    for (int32_t i = 0; i < slot->n_actions; i++) {
        dh_pipe_action needs[2];
        int n = dh_action_needs(w->s, slot->action[i], needs);
        for (int k = 0; k < n; k++)
            if (!(w->done[cell(w->s, needs[k])] & done_bit(needs[k].kind))) {
                *missing = needs[k];
                return true;
            }
    }
    return false;
}

static void complete(walk *w, const dh_pipe_slot *slot)
{
    for (int32_t i = 0; i < slot->n_actions; i++) {
        dh_pipe_action a = slot->action[i];
        w->done[cell(w->s, a)] |= done_bit(a.kind);
        int32_t next = a.kind == DH_PIPE_F ? a.stage + 1 : a.stage - 1;
        if (a.kind != DH_PIPE_W && next >= 0 && next < w->s->n_stages)
            look_at(w, dh_schedule_rank(w->s, next, a.micro));
    }
}

/* Slot of `rank`, at or after its head, that does what is missing; -1: none. */
static int32_t find_slot(const walk *w, int32_t rank, dh_pipe_action missing)
{
    for (int32_t n = w->head[rank]; n < w->s->first_slot[rank + 1]; n++) {
        const dh_pipe_slot *slot = &w->s->slots[n];
        for (int32_t i = 0; i < slot->n_actions; i++) {
            dh_pipe_action a = slot->action[i];
            if (a.stage == missing.stage && a.micro == missing.micro &&
                done_bit(a.kind) == done_bit(missing.kind))
                return n;
        }
    }
    return -1;
}

/* Append "rank 1 slot 5 (0F3) waits for ...", return the rank it waits for (-1: nobody). */
static int32_t explain_wait(const walk *w, int32_t rank, dh_str *text)
{
    char slot_text[64], action_text[96];
    const dh_pipe_slot *slot = &w->s->slots[w->head[rank]];
    dh_pipe_action missing = {0};
    is_missing_input(w, slot, &missing);
    int32_t from = dh_schedule_rank(w->s, missing.stage, missing.micro);
    int32_t found = find_slot(w, from, missing);
    dh_str_printf(text, "%srank %d slot %d (%s) waits for %s", text->len ? "; " : "", rank,
                  w->head[rank] - w->s->first_slot[rank],
                  dh_slot_text(slot_text, sizeof slot_text, slot),
                  dh_action_text(action_text, sizeof action_text, missing));
    if (found < 0) {
        dh_str_printf(text, ", which is nowhere");
        return -1;
    }
    int32_t index = found - w->s->first_slot[from];
    if (from != rank)
        dh_str_printf(text, " (rank %d slot %d)", from, index);
    else if (found == w->head[rank])
        dh_str_printf(text, ", which is in the same slot");
    else
        dh_str_printf(text, ", which comes later in its own list (slot %d)", index);
    return from == rank ? -1 : from;
}

/* Follow waits from a stuck rank until one repeats, then show that cycle. */
static dh_status fail_deadlock(dh_ctx *ctx, walk *w)
{
    const int32_t n_ranks = w->s->n_ranks;
    dh_str text = DH_STR_INIT;
    int32_t rank = 0;
    while (w->head[rank] == w->s->first_slot[rank + 1]) rank++;
    for (int32_t i = 0; i < n_ranks && rank >= 0; i++) { /* at least one is on the cycle now */
        int32_t next = explain_wait(w, rank, &text);
        if (next < 0) goto report; /* not a cycle of ranks: the last part says all */
        dh_str_clear(&text);
        rank = next;
    }
    dh_str_clear(&text);
    const int32_t start = rank;
    for (int32_t i = 0; i < 8; i++) {
        rank = explain_wait(w, rank, &text);
        if (rank == start || rank < 0) break;
        if (i == 7) dh_str_printf(&text, "; ...");
    }
report:;
    dh_status st = dh_fail(ctx, DH_EINVAL, "schedule %s deadlocks: %s", w->s->name,
                           text.text ? text.text : "ranks wait for each other");
    dh_str_fini(&text);
    return st;
}

static dh_status advance_all(dh_ctx *ctx, walk *w, dh_slot_visitor visit, void *arg)
{
    const dh_schedule *s = w->s;
    int32_t n_left = s->first_slot[s->n_ranks];
    for (int32_t g = 0; g < s->n_ranks; g++) {
        w->head[g] = s->first_slot[g];
        look_at(w, g);
    }
    while (w->queue_n > 0) {
        int32_t rank = w->queue[w->queue_first];
        w->queue_first = (w->queue_first + 1) % s->n_ranks;
        w->queue_n--;
        w->queued[rank] = false;
        dh_pipe_action missing;
        while (w->head[rank] < s->first_slot[rank + 1] &&
               !is_missing_input(w, &s->slots[w->head[rank]], &missing)) {
            if (visit) visit(arg, rank, w->head[rank]);
            complete(w, &s->slots[w->head[rank]++]);
            n_left--;
        }
    }
    return n_left == 0 ? DH_OK : fail_deadlock(ctx, w);
}

dh_status dh_schedule_walk(dh_ctx *ctx, const dh_schedule *s, dh_slot_visitor visit, void *arg)
{
    walk w = {
        .s = s,
        .done = calloc((size_t)s->n_stages * (size_t)s->n_micro, 1),
        .head = calloc((size_t)s->n_ranks, sizeof(int32_t)),
        .queue = calloc((size_t)s->n_ranks, sizeof(int32_t)),
        .queued = calloc((size_t)s->n_ranks, sizeof(bool)),
    };
    dh_status st = w.done && w.head && w.queue && w.queued ? advance_all(ctx, &w, visit, arg)
                                                           : dh_no_memory(ctx);
    free(w.done);
    free(w.head);
    free(w.queue);
    free(w.queued);
    return st;
}

/* ---- shape ---------------------------------------------------------------------------------- */

static dh_status check_sizes(dh_ctx *ctx, const dh_schedule *s)
{
    if (s->n_ranks < 1 || s->n_ranks > DH_SCHEDULE_MAX_RANKS || s->n_micro < 1 ||
        s->n_micro > DH_SCHEDULE_MAX_MICRO || s->n_stages < 1 || s->n_copies < 1 ||
        (int64_t)s->n_stages * s->n_micro > DH_SCHEDULE_MAX_CELLS)
        return dh_fail(ctx, DH_EINVAL,
                       "schedule %s: %d ranks, %d stages, %d micro-batches, %d copies are out of "
                       "range (at most %d ranks and %d stages * micro-batches)",
                       s->name, s->n_ranks, s->n_stages, s->n_micro, s->n_copies,
                       DH_SCHEDULE_MAX_RANKS, DH_SCHEDULE_MAX_CELLS);
    for (int32_t j = 0; j < s->n_micro; j++)
        if (s->copy_of[j] < 0 || s->copy_of[j] >= s->n_copies)
            return dh_fail(ctx, DH_EINVAL, "schedule %s: micro-batch %d runs through copy %d of %d",
                           s->name, j, s->copy_of[j], s->n_copies);
    for (int64_t i = 0; i < (int64_t)s->n_copies * s->n_stages; i++)
        if (s->rank_of[i] < 0 || s->rank_of[i] >= s->n_ranks)
            return dh_fail(ctx, DH_EINVAL, "schedule %s: stage %d of copy %d is on rank %d of %d",
                           s->name, (int)(i % s->n_stages), (int)(i / s->n_stages), s->rank_of[i],
                           s->n_ranks);
    if (s->first_slot[0] != 0)
        return dh_fail(ctx, DH_EINVAL, "schedule %s: first_slot[0] is not 0", s->name);
    for (int32_t g = 0; g < s->n_ranks; g++)
        if (s->first_slot[g + 1] < s->first_slot[g])
            return dh_fail(ctx, DH_EINVAL, "schedule %s: rank %d has fewer than 0 slots", s->name,
                           g);
    return DH_OK;
}

/* Where a message says it happened: "schedule x: rank 1 slot 5: ". */
static dh_status fail_slot(dh_ctx *ctx, const dh_schedule *s, int32_t rank, int32_t slot,
                           const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static dh_status fail_slot(dh_ctx *ctx, const dh_schedule *s, int32_t rank, int32_t slot,
                           const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return dh_fail(ctx, DH_EINVAL, "schedule %s: rank %d slot %d: %s", s->name, rank,
                   slot - s->first_slot[rank], text);
}

static dh_status check_slot(dh_ctx *ctx, const dh_schedule *s, int32_t rank, int32_t n)
{
    const dh_pipe_slot *slot = &s->slots[n];
    if (slot->n_actions < 1 || slot->n_actions > 2)
        return fail_slot(ctx, s, rank, n, "%d actions; a slot has 1, or 2 when co-executed",
                         slot->n_actions);
    for (int32_t i = 0; i < slot->n_actions; i++) {
        dh_pipe_action a = slot->action[i];
        if ((unsigned)a.kind >= DH_N_PIPE_KINDS || a.stage < 0 || a.stage >= s->n_stages ||
            a.micro < 0 || a.micro >= s->n_micro)
            return fail_slot(ctx, s, rank, n,
                             "action of kind %d, stage %d, micro-batch %d; the schedule has %d "
                             "stages and %d micro-batches",
                             (int)a.kind, a.stage, a.micro, s->n_stages, s->n_micro);
        int32_t home = dh_schedule_rank(s, a.stage, a.micro);
        char text[96];
        if (home != rank)
            return fail_slot(ctx, s, rank, n, "%s belongs to rank %d, which holds the stage",
                             dh_action_text(text, sizeof text, a), home);
    }
    const dh_pipe_kind *first = &slot->action[0].kind, *second = &slot->action[1].kind;
    if (slot->n_actions == 2 && !dh_pipe_may_pair(*first, *second))
        return fail_slot(
            ctx, s, rank, n,
            "%c beside %c; a co-executed pair is an F, then any other, or an I, then a W",
            dh_pipe_kind_letter(*first), dh_pipe_kind_letter(*second));
    return DH_OK;
}

/* ---- completeness --------------------------------------------------------------------------- */

/* Every F, and either B or I and W, exactly once. seen: bit 1 << kind. */
static dh_status count_actions(dh_ctx *ctx, const dh_schedule *s, uint8_t *seen)
{
    for (int32_t g = 0; g < s->n_ranks; g++)
        for (int32_t n = s->first_slot[g]; n < s->first_slot[g + 1]; n++) {
            DH_TRY(check_slot(ctx, s, g, n));
            for (int32_t i = 0; i < s->slots[n].n_actions; i++) {
                dh_pipe_action a = s->slots[n].action[i];
                uint8_t bit = (uint8_t)(1u << a.kind), *at = &seen[cell(s, a)];
                char text[96];
                dh_action_text(text, sizeof text, a);
                if (*at & bit) return fail_slot(ctx, s, g, n, "%s is done a second time", text);
                *at |= bit;
                const uint8_t both = 1u << DH_PIPE_B, split = 1u << DH_PIPE_I | 1u << DH_PIPE_W;
                if (*at & both && *at & split)
                    return fail_slot(ctx, s, g, n,
                                     "%s, but the backward is there both whole (B) and split (I, "
                                     "W)",
                                     text);
            }
        }
    return DH_OK;
}

static dh_status check_nothing_missing(dh_ctx *ctx, const dh_schedule *s, const uint8_t *seen)
{
    for (int32_t v = 0; v < s->n_stages; v++)
        for (int32_t j = 0; j < s->n_micro; j++) {
            uint8_t has = seen[(size_t)v * (size_t)s->n_micro + (size_t)j];
            const char *missing = !(has & 1u << DH_PIPE_F)   ? "F"
                                  : has & 1u << DH_PIPE_B    ? NULL
                                  : !(has & 1u << DH_PIPE_I) ? (has & 1u << DH_PIPE_W ? "I" : "B")
                                  : !(has & 1u << DH_PIPE_W) ? "W"
                                                             : NULL;
            if (missing)
                return dh_fail(ctx, DH_EINVAL,
                               "schedule %s: rank %d never does %s of micro-batch %d on stage %d",
                               s->name, dh_schedule_rank(s, v, j), missing, j, v);
        }
    return DH_OK;
}

static dh_status check_complete(dh_ctx *ctx, const dh_schedule *s)
{
    uint8_t *seen = calloc((size_t)s->n_stages * (size_t)s->n_micro, 1);
    if (!seen) return dh_no_memory(ctx);
    dh_status st = count_actions(ctx, s, seen);
    if (st == DH_OK) st = check_nothing_missing(ctx, s, seen);
    free(seen);
    return st;
}

/* W needs its I on the same rank, so the walk has already proved that I is before W. */

/* ---- peaks ---------------------------------------------------------------------------------- */

static dh_schedule_use use_of_rank(const dh_schedule *s, int32_t rank)
{
    dh_schedule_use use = {0};
    int32_t held = 0, waiting = 0;
    for (int32_t n = s->first_slot[rank]; n < s->first_slot[rank + 1]; n++) {
        const dh_pipe_slot *slot = &s->slots[n];
        int32_t during = held;
        for (int32_t i = 0; i < slot->n_actions; i++) {
            dh_pipe_kind kind = slot->action[i].kind;
            during += kind == DH_PIPE_F;
            held += (kind == DH_PIPE_F) - (kind == DH_PIPE_B || kind == DH_PIPE_W);
            waiting += (kind == DH_PIPE_I) - (kind == DH_PIPE_W);
        }
        use.peak = DH_MAX(use.peak, during);
        use.peak_settled = DH_MAX(use.peak_settled, held);
        use.peak_wgrad = DH_MAX(use.peak_wgrad, waiting);
    }
    return use;
}

dh_status dh_schedule_validate(dh_ctx *ctx, const dh_schedule *s, dh_schedule_use *use)
{
    DH_TRY(check_sizes(ctx, s));
    DH_TRY(check_complete(ctx, s));
    DH_TRY(dh_schedule_walk(ctx, s, NULL, NULL));
    if (use)
        for (int32_t g = 0; g < s->n_ranks; g++) use[g] = use_of_rank(s, g);
    return DH_OK;
}
