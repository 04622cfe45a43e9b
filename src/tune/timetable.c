/* Schedules, ready to be timed with any durations.
 *
 * dh_schedule_time asks for a schedule anew each time. Here its slots are put once into an order
 * in which a slot comes after all that it waits for. Each slot knows the slots of other ranks that
 * it waits for; on its own rank the order says it. A pass over them gives ends and memory. */
#include <stdlib.h>
#include <string.h>

#include "tune/tuner.h"

/* ---- types of stages ---------------------------------------------------------------------- */

static bool same_stage(const tune_stage *a, const tune_stage *b)
{
    return memcmp(&a->kinds, &b->kinds, sizeof a->kinds) == 0 && a->embed == b->embed &&
           a->head == b->head;
}

static void find_types(tune_timetable *t, const dh_model *model, const int64_t *layers)
{
    const int32_t n = t->schedule->n_stages;
    int64_t first = 0;
    for (int32_t v = 0; v < n; first += layers[v++]) {
        tune_stage s = {.n_layers = layers[v], .embed = v == 0, .head = v == n - 1};
        for (int64_t i = 0; i < layers[v]; i++)
            s.kinds.of[model ? dh_model_layer_kind(model, first + i) : 0]++;
        int32_t k = 0;
        while (k < t->n_types && !same_stage(&t->types[k], &s)) k++;
        if (k == t->n_types) t->types[t->n_types++] = s;
        t->type_of[v] = k;
    }
}

static bool same_ranks(const tune_timetable *t, int32_t a, int32_t b)
{
    const dh_schedule *s = t->schedule;
    const int32_t n = s->n_copies * s->n_stages;
    int32_t v = 0, u = 0;
    for (;; v++, u++) {
        while (v < n && s->rank_of[v] != a) v++;
        while (u < n && s->rank_of[u] != b) u++;
        if (v == n || u == n) return v == n && u == n;
        if (t->type_of[v % s->n_stages] != t->type_of[u % s->n_stages]) return false;
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

static tune_class class_of(const tune_timetable *t, const dh_pipe_slot *slot, bool last)
{
    const dh_pipe_action *a = &slot->action[slot->n_actions - 1];
    if (slot->n_actions == 2 && slot->action[0].kind == DH_PIPE_I) /* both of the same stage */
        return (tune_class){.kind = DH_PIPE_B, .f = -1, .type = t->type_of[a->stage], .last = last};
    return (tune_class){.kind = (int32_t)a->kind,
                        .f = slot->n_actions == 2 ? t->type_of[slot->action[0].stage] : -1,
                        .type = t->type_of[a->stage],
                        .last = last};
}

/* Classes that there can be. */
static size_t most_classes(const tune_timetable *t)
{
    return (size_t)DH_N_PIPE_KINDS * (size_t)((t->n_types + 1) * t->n_types) * 2;
}

/* known [kinds][1 + types][types][2]: class plus one. */
static int32_t number_class(tune_timetable *t, int32_t *known, tune_class c)
{
    const int32_t types = (c.kind * (t->n_types + 1) + c.f + 1) * t->n_types + c.type;
    int32_t *number = &known[2 * types + c.last];
    if (*number == 0) {
        t->classes[t->n_classes] = c;
        *number = ++t->n_classes;
    }
    return *number - 1;
}

/* ---- order and needs --------------------------------------------------------------------- */

/* A slot or a transfer, by its place in the order that all ranks' programs share. */
typedef struct event {
    int64_t time;
    int32_t slot, rank; /* of a transfer: the sender's */
    int32_t peer;       /* of a transfer, -1 */
    int32_t stage, micro;
    bool forward;
} event;

typedef struct ordering {
    event *events; /* [n_slots of the timetable] */
    int32_t n;
    int32_t *place;                 /* by slot of the schedule */
    int32_t *arrival_f, *arrival_b; /* [stage][micro]: transfer that brings its input; -1 */
    int32_t *known;
    int32_t *left; /* [copy][stage]: micro-batches whose weight gradients are to come */
} ordering;

static int by_time(const void *x, const void *y)
{
    const event *a = x, *b = y;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if ((a->peer < 0) != (b->peer < 0)) return a->peer < 0 ? 1 : -1;
    if (a->peer < 0) return a->slot - b->slot;
    if (a->stage != b->stage) return a->stage - b->stage;
    if (a->micro != b->micro) return a->micro - b->micro;
    return (int)a->forward - (int)b->forward;
}

static size_t cell(const dh_schedule *s, int32_t stage, int32_t micro)
{
    return (size_t)stage * (size_t)s->n_micro + (size_t)micro;
}

/* Stage that an action's result goes to, on another rank; -1: there is none. */
static int32_t goes_to(const dh_schedule *s, const dh_pipe_action *a)
{
    const int32_t to = a->kind == DH_PIPE_F ? a->stage + 1 : a->stage - 1;
    if (a->kind == DH_PIPE_W || to < 0 || to >= s->n_stages) return -1;
    return dh_schedule_rank(s, to, a->micro) == dh_schedule_rank(s, a->stage, a->micro) ? -1 : to;
}

static int32_t count_transfers(const dh_schedule *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->first_slot[s->n_ranks]; i++)
        for (int32_t k = 0; k < s->slots[i].n_actions; k++)
            n += goes_to(s, &s->slots[i].action[k]) >= 0;
    return n;
}

static void list_slot(const dh_schedule *s, const dh_schedule_timing *timing, int32_t rank,
                      int32_t slot, ordering *o)
{
    o->events[o->n++] = (event){timing->start_ns[slot], slot, rank, -1, 0, 0, false};
    for (int32_t k = 0; k < s->slots[slot].n_actions; k++) {
        const dh_pipe_action *a = &s->slots[slot].action[k];
        const int32_t to = goes_to(s, a);
        if (to < 0) continue;
        o->events[o->n++] = (event){
            timing->end_ns[slot], slot, rank, dh_schedule_rank(s, to, a->micro), a->stage, a->micro,
            a->kind == DH_PIPE_F};
    }
}

/* The clock by which programs put transfers between slots (plan/step_events.h). */
static dh_status list_events(dh_ctx *ctx, const dh_schedule *s, ordering *o)
{
    dh_schedule_timing timing;
    DH_TRY(dh_schedule_time_order(ctx, s, &timing));
    for (int32_t r = 0; r < s->n_ranks; r++)
        for (int32_t i = s->first_slot[r]; i < s->first_slot[r + 1]; i++)
            list_slot(s, &timing, r, i, o);
    dh_schedule_timing_fini(&timing);
    qsort(o->events, (size_t)o->n, sizeof *o->events, by_time);
    return DH_OK;
}

/* Whether the slot makes the last gradients of its stage, and reductions run during it. They do not
 * if another stage waits for its result, or another copy of the model must complete them. */
static bool completes(tune_timetable *t, ordering *o, const dh_pipe_slot *slot, int32_t i)
{
    const dh_schedule *s = t->schedule;
    const dh_pipe_action *a = &slot->action[slot->n_actions - 1];
    const int32_t at = s->copy_of[a->micro] * s->n_stages + a->stage;
    if (a->kind != DH_PIPE_B && a->kind != DH_PIPE_W) return false;
    t->last[at] = i;
    return --o->left[at] == 0 && s->n_copies == 1 && goes_to(s, a) < 0;
}

static void fill_slot(tune_timetable *t, ordering *o, int32_t i)
{
    const dh_schedule *s = t->schedule;
    const dh_pipe_slot *slot = &s->slots[o->events[i].slot];
    tune_slot *own = &t->slots[i];
    own->cls = number_class(t, o->known, class_of(t, slot, completes(t, o, slot, i)));
    o->place[o->events[i].slot] = i;
    for (int32_t k = 0; k < slot->n_actions; k++) {
        const dh_pipe_action *a = &slot->action[k];
        if (a->kind == DH_PIPE_W) continue;
        const int32_t *arrival = a->kind == DH_PIPE_F ? o->arrival_f : o->arrival_b;
        own->need[k] = arrival[cell(s, a->stage, a->micro)] - 1;
    }
}

static void fill(tune_timetable *t, ordering *o)
{
    for (int32_t i = 0; i < t->n_slots; i++) {
        const event *e = &o->events[i];
        tune_slot *own = &t->slots[i];
        *own = (tune_slot){.rank = e->rank, .cls = -1, .peer = e->peer, .need = {-1, -1}};
        if (e->peer < 0) {
            fill_slot(t, o, i);
            continue;
        }
        own->need[0] = o->place[e->slot];
        int32_t *arrival = e->forward ? o->arrival_f : o->arrival_b;
        arrival[cell(t->schedule, e->forward ? e->stage + 1 : e->stage - 1, e->micro)] = i + 1;
    }
}

static dh_status order_and_fill(dh_ctx *ctx, tune_timetable *t)
{
    const dh_schedule *s = t->schedule;
    const size_t n_cells = (size_t)s->n_stages * (size_t)s->n_micro + 1;
    const int32_t n_chunks = s->n_copies * s->n_stages;
    ordering o = {.events = malloc(((size_t)t->n_slots + 1) * sizeof *o.events),
                  .place = calloc((size_t)t->n_slots + 1, sizeof *o.place),
                  .arrival_f = calloc(n_cells, sizeof *o.arrival_f),
                  .arrival_b = calloc(n_cells, sizeof *o.arrival_b),
                  .known = calloc(most_classes(t) + 1, sizeof *o.known),
                  .left = malloc(((size_t)n_chunks + 1) * sizeof *o.left)};
    const bool ok = o.events && o.place && o.arrival_f && o.arrival_b && o.known && o.left;
    for (int32_t v = 0; ok && v < n_chunks; v++) o.left[v] = s->n_micro;
    dh_status st = ok ? list_events(ctx, s, &o) : dh_no_memory(ctx);
    if (st == DH_OK) fill(t, &o);
    free(o.events);
    free(o.place);
    free(o.arrival_f);
    free(o.arrival_b);
    free(o.known);
    free(o.left);
    return st;
}

static bool count_slots(tune_timetable *t, dh_arena *arena)
{
    t->counts = DH_NEW_N(arena, int32_t, (size_t)t->n_ranks * (size_t)t->n_classes);
    for (int32_t i = 0; t->counts && i < t->n_slots; i++)
        if (t->slots[i].peer < 0) t->counts[t->slots[i].rank * t->n_classes + t->slots[i].cls]++;
    return t->counts != NULL;
}

/* ---- gathers --------------------------------------------------------------------------------- */

static bool reads_parameters(const dh_pipe_action *a)
{
    return a->kind != DH_PIPE_W;
}

/* A slot that reads parameters of the stage of an action, in the same copy of the model. */
static bool goes_through(const dh_schedule *s, const dh_pipe_slot *slot, const dh_pipe_action *a)
{
    for (int32_t k = 0; slot && k < slot->n_actions; k++) {
        const dh_pipe_action *b = &slot->action[k];
        if (reads_parameters(b) && b->stage == a->stage &&
            s->copy_of[b->micro] == s->copy_of[a->micro])
            return true;
    }
    return false;
}

static void count_gathers_of(tune_timetable *t, int32_t rank)
{
    const dh_schedule *s = t->schedule;
    const dh_pipe_slot *before = NULL;
    for (int32_t i = s->first_slot[rank]; i < s->first_slot[rank + 1]; i++) {
        const dh_pipe_slot *slot = &s->slots[i];
        bool reads = false;
        for (int32_t k = 0; k < slot->n_actions; k++) {
            const dh_pipe_action *a = &slot->action[k];
            const int backward = a->kind != DH_PIPE_F;
            if (!reads_parameters(a)) continue;
            t->n_visits[backward][a->stage]++;
            t->n_gathers[backward][a->stage] += !goes_through(s, before, a);
            reads = true;
        }
        if (reads) before = slot;
    }
}

static bool count_gathers(tune_timetable *t, dh_arena *arena)
{
    for (int backward = 0; backward < 2; backward++) {
        t->n_gathers[backward] = DH_NEW_N(arena, int32_t, t->schedule->n_stages);
        t->n_visits[backward] = DH_NEW_N(arena, int32_t, t->schedule->n_stages);
        if (!t->n_gathers[backward] || !t->n_visits[backward]) return false;
    }
    for (int32_t r = 0; r < t->n_ranks; r++) count_gathers_of(t, r);
    return true;
}

/* ---- entries -------------------------------------------------------------------------------- */

dh_status tune_timetable_make(dh_ctx *ctx, dh_arena *arena, const dh_schedule *schedule,
                              const dh_model *model, const int64_t *layers, tune_timetable **table)
{
    tune_timetable *t = DH_NEW(arena, tune_timetable);
    if (!t) return dh_no_memory(ctx);
    const int32_t n_slots = schedule->first_slot[schedule->n_ranks] + count_transfers(schedule);
    *t = (tune_timetable){.schedule = schedule,
                          .types = DH_NEW_N(arena, tune_stage, schedule->n_stages),
                          .type_of = DH_NEW_N(arena, int32_t, schedule->n_stages),
                          .slots = DH_NEW_N(arena, tune_slot, n_slots + 1),
                          .like = DH_NEW_N(arena, int32_t, schedule->n_ranks),
                          .last = DH_NEW_N(arena, int32_t, schedule->n_copies * schedule->n_stages),
                          .n_slots = n_slots,
                          .n_ranks = schedule->n_ranks};
    if (!t->types || !t->type_of || !t->slots || !t->like || !t->last) return dh_no_memory(ctx);
    find_types(t, model, layers);
    find_like(t);
    t->classes = DH_NEW_N(arena, tune_class, most_classes(t));
    if (!t->classes) return dh_no_memory(ctx);
    DH_TRY(order_and_fill(ctx, t));
    if (!count_slots(t, arena) || !count_gathers(t, arena)) return dh_no_memory(ctx);
    *table = t;
    return tune_moments_find(ctx, arena, t);
}

/* Streams run in order, and both ends of a transfer must come to it. If slots communicate on the
 * same stream, the transfer runs after the slots before it and before the slots after it. */
static double run_transfer(const tune_slot *x, tune_transfer transfer, const double *end,
                           tune_rank_end *ranks)
{
    tune_rank_end *from = &ranks[x->rank], *to = &ranks[x->peer];
    const double start = DH_MAX(end[x->need[0]], DH_MAX(from->link_ns, to->link_ns));
    from->link_ns = to->link_ns = start + transfer.ns;
    from->beside_ns += transfer.ns;
    to->beside_ns += transfer.ns;
    return start + transfer.ns;
}

/* Time that transfers add to a slot. Transfers that fit before it begins add nothing. */
static double slowed_ns(tune_rank_end *r, tune_transfer transfer, double start)
{
    const double ns = DH_MAX(r->beside_ns - (start - r->end_ns), 0.0);
    r->beside_ns = 0;
    return transfer.shared ? 0 : ns * transfer.slows;
}

static double run_slot(const tune_slot *slot, const tune_slot_cost *cost, tune_transfer transfer,
                       const double *end, tune_rank_end *r)
{
    double start = transfer.shared ? DH_MAX(r->end_ns, r->link_ns) : r->end_ns;
    for (int k = 0; k < 2; k++)
        if (slot->need[k] >= 0) start = DH_MAX(start, end[slot->need[k]]);
    r->end_ns = start + cost->ns + slowed_ns(r, transfer, start);
    if (transfer.shared) r->link_ns = r->end_ns;
    r->busy_ns += cost->ns;
    r->peak_bytes = DH_MAX(r->peak_bytes, r->bytes + cost->peak_bytes);
    r->bytes += cost->delta_bytes;
    return r->end_ns;
}

void tune_timetable_run(const tune_timetable *t, const tune_slot_cost *costs,
                        tune_transfer transfer, double *end, tune_rank_end *ranks)
{
    for (int32_t r = 0; r < t->n_ranks; r++) ranks[r] = (tune_rank_end){0};
    for (int32_t i = 0; i < t->n_slots; i++) {
        const tune_slot *x = &t->slots[i];
        end[i] = x->peer >= 0 ? run_transfer(x, transfer, end, ranks)
                              : run_slot(x, &costs[x->cls], transfer, end, &ranks[x->rank]);
    }
}
