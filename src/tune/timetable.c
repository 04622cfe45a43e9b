/* Schedules, ready to be timed with any durations.
 *
 * dh_schedule_time asks for a schedule anew each time. Here its slots are put once into an
 * order in which what a slot waits for comes first, with what they wait for on other ranks
 * (on their own rank the order says it); then a pass over them gives ends and memory. */
#include <stdlib.h>
#include <string.h>

#include "tune/tuner.h"

static dh_status no_memory(dh_ctx *ctx)
{
    return dh_fail(ctx, DH_ENOMEM, "out of memory preparing a schedule");
}

/* ---- types of stages ---------------------------------------------------------------------- */

static bool same_stage(const tune_stage *a, const tune_stage *b)
{
    return a->n_layers == b->n_layers && a->embed == b->embed && a->head == b->head;
}

static void find_types(tune_timetable *t, const int64_t *layers)
{
    const int32_t n = t->schedule->n_stages;
    for (int32_t v = 0; v < n; v++) {
        const tune_stage s = {layers[v], v == 0, v == n - 1};
        int32_t k = 0;
        while (k < t->n_types && !same_stage(&t->types[k], &s)) k++;
        if (k == t->n_types) t->types[t->n_types++] = s;
        t->type_of[v] = k;
    }
}

static bool same_ranks(const tune_timetable *t, int32_t a, int32_t b)
{
    const dh_schedule *s = t->schedule;
    int32_t v = 0, u = 0;
    for (;; v++, u++) {
        while (v < s->n_stages && s->rank_of[v] != a) v++;
        while (u < s->n_stages && s->rank_of[u] != b) u++;
        if (v == s->n_stages || u == s->n_stages) return v == s->n_stages && u == s->n_stages;
        if (t->type_of[v] != t->type_of[u]) return false;
    }
}

static void find_like(tune_timetable *t)
{
    for (int32_t r = 0; r < t->n_ranks; r++) {
        t->like[r] = 0;
        while (!same_ranks(t, t->like[r], r)) t->like[r]++;
    }
}

/* ---- classes of slots ------------------------------------------------------------------------ */

static tune_class class_of(const tune_timetable *t, const dh_pipe_slot *slot)
{
    const dh_pipe_action *a = &slot->action[slot->n_actions - 1];
    return (tune_class){.kind = (int32_t)a->kind,
                        .f = slot->n_actions == 2 ? t->type_of[slot->action[0].stage] : -1,
                        .type = t->type_of[a->stage]};
}

/* known [kinds][1 + types][types]: class plus one. */
static int32_t number_class(tune_timetable *t, int32_t *known, tune_class c)
{
    int32_t *number = &known[(c.kind * (t->n_types + 1) + c.f + 1) * t->n_types + c.type];
    if (*number == 0) {
        t->classes[t->n_classes] = c;
        *number = ++t->n_classes;
    }
    return *number - 1;
}

/* ---- order and needs ----------------------------------------------------------------------------
 */

typedef struct placed {
    int64_t start;
    int32_t slot, rank;
} placed;

static int by_start(const void *x, const void *y)
{
    const placed *a = x, *b = y;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    return a->slot - b->slot;
}

typedef struct ordering {
    placed *order;   /* [n_slots] */
    int32_t *made_f; /* [stage][micro]: slot that makes the output; its place in the order */
    int32_t *made_b; /* the same of the gradient */
    int32_t *known;
} ordering;

static size_t cell(const dh_schedule *s, int32_t stage, int32_t micro)
{
    return (size_t)stage * (size_t)s->n_micro + (size_t)micro;
}

/* The slot of another rank that an action takes its input from; -1. */
static int32_t input_of(const tune_timetable *t, const ordering *o, const dh_pipe_action *a)
{
    const dh_schedule *s = t->schedule;
    const int32_t from = a->kind == DH_PIPE_F ? a->stage - 1 : a->stage + 1;
    if (a->kind == DH_PIPE_W || from < 0 || from >= s->n_stages) return -1;
    if (dh_schedule_rank(s, from, a->micro) == dh_schedule_rank(s, a->stage, a->micro)) return -1;
    return (a->kind == DH_PIPE_F ? o->made_f : o->made_b)[cell(s, from, a->micro)];
}

static void fill(tune_timetable *t, ordering *o)
{
    const dh_schedule *s = t->schedule;
    for (int32_t i = 0; i < t->n_slots; i++) {
        const dh_pipe_slot *slot = &s->slots[o->order[i].slot];
        tune_slot *own = &t->slots[i];
        *own = (tune_slot){.rank = o->order[i].rank, .need = {-1, -1}};
        own->cls = number_class(t, o->known, class_of(t, slot));
        for (int32_t k = 0; k < slot->n_actions; k++) {
            const dh_pipe_action *a = &slot->action[k];
            own->need[k] = input_of(t, o, a);
            int32_t *made = a->kind == DH_PIPE_F ? o->made_f : o->made_b;
            if (a->kind != DH_PIPE_W) made[cell(s, a->stage, a->micro)] = i;
        }
    }
}

/* By the clock of equal durations: what a slot needs has ended when it starts. */
static dh_status order_slots(dh_ctx *ctx, const tune_timetable *t, ordering *o)
{
    const dh_schedule *s = t->schedule;
    const dh_schedule_costs unit = {
        .every = {.f_ns = 1, .i_ns = 1, .w_ns = 1, .b_ns = 1, .fb_ns = 1, .fi_ns = 1}};
    dh_schedule_timing timing;
    DH_TRY(dh_schedule_time(ctx, s, &unit, &timing));
    for (int32_t r = 0; r < s->n_ranks; r++)
        for (int32_t i = s->first_slot[r]; i < s->first_slot[r + 1]; i++)
            o->order[i] = (placed){timing.start_ns[i], i, r};
    dh_schedule_timing_fini(&timing);
    qsort(o->order, (size_t)t->n_slots, sizeof *o->order, by_start);
    return DH_OK;
}

static dh_status order_and_fill(dh_ctx *ctx, tune_timetable *t)
{
    const dh_schedule *s = t->schedule;
    const size_t n_cells = (size_t)s->n_stages * (size_t)s->n_micro;
    const size_t n_known = (size_t)DH_N_PIPE_KINDS * (size_t)((t->n_types + 1) * t->n_types);
    ordering o = {.order = malloc((size_t)t->n_slots * sizeof *o.order),
                  .made_f = calloc(n_cells + 1, sizeof *o.made_f),
                  .made_b = calloc(n_cells + 1, sizeof *o.made_b),
                  .known = calloc(n_known + 1, sizeof *o.known)};
    dh_status st =
        o.order && o.made_f && o.made_b && o.known ? order_slots(ctx, t, &o) : no_memory(ctx);
    if (st == DH_OK) fill(t, &o);
    free(o.order);
    free(o.made_f);
    free(o.made_b);
    free(o.known);
    return st;
}

static bool count_slots(tune_timetable *t, dh_arena *arena)
{
    t->counts = DH_NEW_N(arena, int32_t, (size_t)t->n_ranks * (size_t)t->n_classes);
    for (int32_t i = 0; t->counts && i < t->n_slots; i++)
        t->counts[t->slots[i].rank * t->n_classes + t->slots[i].cls]++;
    return t->counts != NULL;
}

/* ---- entries
 * ------------------------------------------------------------------------------------- */

dh_status tune_timetable_make(dh_ctx *ctx, dh_arena *arena, const dh_schedule *schedule,
                              const int64_t *layers, tune_timetable **table)
{
    tune_timetable *t = DH_NEW(arena, tune_timetable);
    if (!t) return no_memory(ctx);
    const int32_t n_slots = schedule->first_slot[schedule->n_ranks];
    *t = (tune_timetable){.schedule = schedule,
                          .types = DH_NEW_N(arena, tune_stage, schedule->n_stages),
                          .type_of = DH_NEW_N(arena, int32_t, schedule->n_stages),
                          .slots = DH_NEW_N(arena, tune_slot, n_slots + 1),
                          .like = DH_NEW_N(arena, int32_t, schedule->n_ranks),
                          .n_slots = n_slots,
                          .n_ranks = schedule->n_ranks};
    if (!t->types || !t->type_of || !t->slots || !t->like) return no_memory(ctx);
    find_types(t, layers);
    find_like(t);
    t->classes = DH_NEW_N(arena, tune_class,
                          (size_t)DH_N_PIPE_KINDS * (size_t)((t->n_types + 1) * t->n_types));
    if (!t->classes) return no_memory(ctx);
    DH_TRY(order_and_fill(ctx, t));
    *table = t;
    return count_slots(t, arena) ? DH_OK : no_memory(ctx);
}

void tune_timetable_run(const tune_timetable *t, const tune_slot_cost *costs, double transfer_ns,
                        double *end, tune_rank_end *ranks)
{
    for (int32_t r = 0; r < t->n_ranks; r++) ranks[r] = (tune_rank_end){0};
    for (int32_t i = 0; i < t->n_slots; i++) {
        const tune_slot *slot = &t->slots[i];
        const tune_slot_cost *cost = &costs[slot->cls];
        tune_rank_end *r = &ranks[slot->rank];
        double start = r->end_ns;
        for (int k = 0; k < 2; k++)
            if (slot->need[k] >= 0) start = DH_MAX(start, end[slot->need[k]] + transfer_ns);
        end[i] = r->end_ns = start + cost->ns;
        r->busy_ns += cost->ns;
        r->peak_bytes = DH_MAX(r->peak_bytes, r->bytes + cost->peak_bytes);
        r->bytes += cost->delta_bytes;
    }
}
