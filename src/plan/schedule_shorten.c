/* The steady phase of a schedule: from some slot on every rank repeats its slots, each time with
 * later micro-batches. Of two copies of the model each has half of a period's micro-batches. */
#include "plan/schedule_build.h"

#include <stdlib.h>
#include <string.h>

/* The repeated slots of a rank: slot i + length is slot i one period later, for i in [first, end). */
typedef struct phase {
    int32_t first, end, length;
} phase;

/* ---- micro-batches that are later ------------------------------------------------------------- */

/* later [n_micro]: the micro-batch of the same copy n micro-batches later, -1: there is none.
 * Returns how much higher its number is, the same for all; 0: it differs. */
static int32_t fill_later(const dh_schedule *s, int32_t n, int32_t *later)
{
    const int32_t of_copy = n / s->n_copies;
    int32_t step = 0;
    if (of_copy * s->n_copies != n) return 0;
    for (int32_t copy = 0; copy < s->n_copies; copy++) {
        int32_t ahead = 0, n_ahead = 0; /* micro-batches of the copy among those before `ahead` */
        for (int32_t j = 0, n_here = 0; j < s->n_micro; j++) {
            if (s->copy_of[j] != copy) continue;
            for (; ahead < s->n_micro && n_ahead <= n_here + of_copy; ahead++)
                n_ahead += s->copy_of[ahead] == copy;
            const bool is_there = n_ahead == n_here + of_copy + 1;
            later[j] = is_there ? ahead - 1 : -1;
            if (is_there && step == 0) step = later[j] - j;
            if (is_there && later[j] - j != step) return 0;
            n_here++;
        }
    }
    return step;
}

static bool is_later(const dh_pipe_slot *a, const dh_pipe_slot *b, const int32_t *later)
{
    bool same = a->n_actions == b->n_actions;
    for (int k = 0; same && k < a->n_actions; k++)
        same = a->action[k].kind == b->action[k].kind && a->action[k].stage == b->action[k].stage &&
               later[a->action[k].micro] == b->action[k].micro;
    return same;
}

/* ---- phases ----------------------------------------------------------------------------------- */

/* The phase around the middle slot; length 0: it comes once. */
static phase find_phase(const dh_pipe_slot *slots, int32_t n, const int32_t *later)
{
    const int32_t middle = n / 2;
    int32_t again = middle + 1;
    while (again < n && !is_later(&slots[middle], &slots[again], later)) again++;
    if (again >= n) return (phase){0, 0, 0};
    phase f = {middle, middle + 1, again - middle};
    while (f.first > 0 && is_later(&slots[f.first - 1], &slots[f.first - 1 + f.length], later))
        f.first--;
    while (f.end + f.length < n && is_later(&slots[f.end], &slots[f.end + f.length], later))
        f.end++;
    return f;
}

/* Forwards, or backwards: a B or an I. */
static int64_t count(const dh_pipe_slot *slots, int32_t first, int32_t end, bool forward)
{
    int64_t n = 0;
    for (int32_t i = first; i < end; i++)
        for (int k = 0; k < slots[i].n_actions; k++) {
            const dh_pipe_kind kind = slots[i].action[k].kind;
            n += forward ? kind == DH_PIPE_F : kind == DH_PIPE_B || kind == DH_PIPE_I;
        }
    return n;
}

/* Whether n_left_out micro-batches can be cut out of a rank's phase: all their forwards and
 * backwards. Breadth-first schedules have phases of forwards alone. */
static bool may_cut(const dh_schedule *s, int32_t rank, const int32_t *later, int32_t period,
                    int32_t n_left_out, phase *f)
{
    const int32_t first = s->first_slot[rank], n = s->first_slot[rank + 1] - first;
    const dh_pipe_slot *slots = s->slots + first;
    if (n == 0) return false;
    *f = find_phase(slots, n, later);
    const int64_t cut = (int64_t)f->length * (n_left_out / period);
    if (f->length == 0 || f->first + cut > f->end) return false;
    const int32_t end = f->first + (int32_t)cut;
    bool whole = true;
    for (int forward = 0; forward < 2; forward++)
        whole &= count(slots, f->first, end, forward) * s->n_micro ==
                 count(slots, 0, n, forward) * n_left_out;
    return whole;
}

static bool all_may_cut(const dh_schedule *s, const int32_t *later, int32_t period,
                        int32_t n_left_out)
{
    phase f;
    for (int32_t rank = 0; rank < s->n_ranks; rank++)
        if (!may_cut(s, rank, later, period, n_left_out, &f)) return false;
    return true;
}

dh_schedule_phase dh_schedule_steady(const dh_schedule *s)
{
    const int32_t periods[] = {1, 2, s->n_ranks, 2 * s->n_ranks};
    dh_schedule_phase steady = {0, 0};
    int32_t *later = malloc((size_t)s->n_micro * sizeof *later);
    for (size_t i = 0; later && i < DH_COUNTOF(periods) && steady.period == 0; i++) {
        const int32_t step = fill_later(s, periods[i], later);
        if (step > 0 && all_may_cut(s, later, periods[i], periods[i]))
            steady = (dh_schedule_phase){periods[i], step};
    }
    free(later);
    return steady;
}

/* ---- the shorter schedule --------------------------------------------------------------------- */

/* Slots of a rank without the first repetitions of its phase. */
static void cut_rank(const dh_schedule *s, int32_t rank, const phase *f, int32_t n_slots,
                     int32_t step, dh_schedule *shorter)
{
    const int32_t first = s->first_slot[rank], n = s->first_slot[rank + 1] - first - n_slots;
    const dh_pipe_slot *slots = s->slots + first;
    dh_pipe_slot *to = shorter->slots + shorter->first_slot[rank];
    memcpy(to, slots, (size_t)f->first * sizeof *to);
    memcpy(to + f->first, slots + f->first + n_slots, (size_t)(n - f->first) * sizeof *to);
    for (int32_t i = f->first; i < n; i++)
        for (int k = 0; k < to[i].n_actions; k++) to[i].action[k].micro -= step;
    shorter->first_slot[rank + 1] = shorter->first_slot[rank] + n;
}

/* The last micro-batches of each copy go, and the others are numbered anew. */
static void number_anew(const dh_schedule *s, const int32_t *later_by_all, dh_schedule *shorter,
                        int32_t *number)
{
    int32_t n = 0;
    for (int32_t j = 0; j < s->n_micro; j++) {
        number[j] = n;
        if (later_by_all[j] >= 0) shorter->copy_of[n++] = s->copy_of[j];
    }
    for (int32_t i = 0; i < shorter->first_slot[shorter->n_ranks]; i++)
        for (int k = 0; k < shorter->slots[i].n_actions; k++)
            shorter->slots[i].action[k].micro = number[shorter->slots[i].action[k].micro];
}

static dh_status allocate(dh_ctx *ctx, const dh_schedule *s, int32_t n_left_out, dh_schedule **to)
{
    dh_schedule *made;
    DH_TRY(dh_schedule_alloc(ctx, s->name, s->n_ranks, s->n_stages, s->n_micro - n_left_out,
                             s->n_copies, &made));
    made->slots = DH_NEW_N(made->arena, dh_pipe_slot, s->first_slot[s->n_ranks]);
    made->planned = s->planned ? DH_NEW_N(made->arena, dh_stage_cost, s->n_stages) : NULL;
    if (!made->slots || (s->planned && !made->planned)) {
        dh_schedule_destroy(made);
        return dh_no_memory(ctx);
    }
    memcpy(made->rank_of, s->rank_of,
           (size_t)s->n_copies * (size_t)s->n_stages * sizeof *made->rank_of);
    if (s->planned) memcpy(made->planned, s->planned, (size_t)s->n_stages * sizeof *made->planned);
    *to = made;
    return DH_OK;
}

/* later [3 * n_micro]: room. */
static dh_status shorten(dh_ctx *ctx, const dh_schedule *s, int32_t period, int32_t n_left_out,
                         int32_t *later, dh_schedule **shorter)
{
    int32_t *by_all = later + s->n_micro, *number = by_all + s->n_micro;
    const int32_t step = fill_later(s, n_left_out, by_all);
    dh_ctx quiet = DH_CTX_INIT;
    dh_schedule *to = NULL;
    phase f = {0, 0, 0};
    if (step == 0 || fill_later(s, period, later) == 0 ||
        !all_may_cut(s, later, period, n_left_out))
        return DH_OK;
    DH_TRY(allocate(ctx, s, n_left_out, &to));
    for (int32_t rank = 0; rank < s->n_ranks; rank++) {
        (void)may_cut(s, rank, later, period, n_left_out, &f); /* it may: above */
        cut_rank(s, rank, &f, f.length * (n_left_out / period), step, to);
    }
    number_anew(s, by_all, to, number);
    const dh_status st = dh_schedule_validate(&quiet, to, NULL);
    if (st == DH_OK)
        *shorter = to;
    else
        dh_schedule_destroy(to);
    return st == DH_ENOMEM ? dh_no_memory(ctx) : DH_OK;
}

dh_status dh_schedule_shorten(dh_ctx *ctx, const dh_schedule *s, int32_t n_left_out,
                              dh_schedule **shorter)
{
    const int32_t period = dh_schedule_steady(s).period;
    *shorter = NULL;
    if (period == 0 || n_left_out <= 0 || n_left_out % period != 0 || n_left_out >= s->n_micro)
        return DH_OK;
    int32_t *later = malloc(3 * (size_t)s->n_micro * sizeof *later);
    if (!later) return dh_no_memory(ctx);
    const dh_status st = shorten(ctx, s, period, n_left_out, later, shorter);
    free(later);
    return st;
}
