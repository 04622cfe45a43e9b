/* Schedules, ready to be timed with any durations.
 *
 * dh_schedule_time asks for a schedule anew each time. Here its slots are put once into an order
 * in which a slot comes after all that it waits for. Each slot knows the slots of other ranks that
 * it waits for; on its own rank the order says it. A pass over them gives ends and memory. */
#include <stdlib.h>
#include <string.h>

#include "plan/step_events.h"
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

/* ---- slots and transfers ------------------------------------------------------------------ */

typedef struct filling {
    dh_step_events events;
    int32_t *number; /* by event: that of its slot, or transfer */
    int32_t *known;  /* number_class */
    /* [n_ranks]: 1: its last slot that reads parameters was a backward; -1: none. */
    int32_t *before;
} filling;

static int32_t link_of(int32_t from, int32_t to)
{
    static const int32_t number[DH_N_GROUPS] = {
        [DH_GROUP_PP_ODD] = 1, [DH_GROUP_PP_BACK] = 2, [DH_GROUP_PP_BACK_ODD] = 3};
    return number[dh_mesh_link(from, to)];
}

static void fill_slot(tune_timetable *t, filling *f, const dh_step_event *e, int32_t n)
{
    const dh_schedule *s = t->schedule;
    const dh_pipe_slot *slot = &s->slots[e->slot];
    const int32_t last = slot->n_actions - 1, reduce = e->use[last].reduce;
    const bool during = reduce >= 0 && f->events.list.at[reduce].when == DH_REDUCE_DURING;
    const int32_t back = slot->action[last].kind != DH_PIPE_F;
    bool reads = false;
    t->slots[n].cls = number_class(t, f->known, class_of(t, slot, during));
    for (int32_t k = 0; k <= last; k++) {
        const dh_pipe_action *a = &slot->action[k];
        const int32_t backward = a->kind != DH_PIPE_F;
        if (k == last && (a->kind == DH_PIPE_B || a->kind == DH_PIPE_W))
            t->last[s->copy_of[a->micro] * s->n_stages + a->stage] = n;
        if (a->kind == DH_PIPE_W) continue;
        t->n_visits[backward][a->stage]++;
        t->n_turns[backward][a->stage] += f->before[e->rank] == !backward;
        reads = true;
    }
    if (reads) f->before[e->rank] = back;
}

static void fill(tune_timetable *t, filling *f)
{
    int32_t n = 0;
    for (int32_t i = 0; i < f->events.end; i++) {
        const dh_step_event *e = &f->events.list.at[i];
        if (e->kind == DH_STEP_GATHER) t->n_gathers[!e->forward][e->stage]++;
        if (e->kind != DH_STEP_SLOT && e->kind != DH_STEP_TRANSFER) continue;
        f->number[i] = n;
        t->slots[n] = (tune_slot){.rank = e->rank, .cls = -1, .peer = e->peer, .stage = -1};
        for (int k = 0; k < 2; k++)
            t->slots[n].need[k] = e->need[k] < 0 ? -1 : f->number[e->need[k]];
        if (e->kind == DH_STEP_SLOT)
            fill_slot(t, f, e, n);
        else
            t->slots[n].link = link_of(e->rank, e->peer);
        n++;
    }
    for (int32_t v = 0; v < t->schedule->n_stages && t->schedule->n_copies == 1; v++)
        t->slots[t->last[v]].stage = v;
}

static bool reserve(dh_arena *arena, filling *f, tune_timetable *t)
{
    t->n_slots = f->events.n_timed;
    t->slots = DH_NEW_N(arena, tune_slot, t->n_slots + 1);
    f->number = malloc((f->events.list.n + 1) * sizeof *f->number);
    f->known = calloc(most_classes(t) + 1, sizeof *f->known);
    f->before = malloc(((size_t)t->n_ranks + 1) * sizeof *f->before);
    for (int32_t r = 0; f->before && r < t->n_ranks; r++) f->before[r] = -1;
    return t->slots && f->number && f->known && f->before;
}

/* The step's events (plan/step_events.h), with parameters that stay for all micro-batches that follow
 * each other, so that what gathers is among them. */
static dh_status list_slots(dh_ctx *ctx, dh_arena *arena, tune_timetable *t)
{
    filling f = {.number = NULL};
    dh_step_spec spec = {.schedule = t->schedule,
                         .sharing = dh_sharing_of(3),
                         .rank = -1,
                         .trains = true,
                         .runs = true};
    spec.sharing.regather = DH_REGATHER_STAGE;
    dh_status st = dh_step_events_make(ctx, &spec, &f.events);
    if (st == DH_OK && !reserve(arena, &f, t)) st = dh_no_memory(ctx);
    if (st == DH_OK) fill(t, &f);
    dh_step_events_fini(&f.events);
    free(f.number);
    free(f.known);
    free(f.before);
    return st;
}

static bool count_slots(tune_timetable *t, dh_arena *arena)
{
    t->counts = DH_NEW_N(arena, int32_t, (size_t)t->n_ranks * (size_t)t->n_classes);
    for (int32_t i = 0; t->counts && i < t->n_slots; i++)
        if (t->slots[i].peer < 0) t->counts[t->slots[i].rank * t->n_classes + t->slots[i].cls]++;
    return t->counts != NULL;
}

/* ---- entries -------------------------------------------------------------------------------- */

dh_status tune_timetable_make(dh_ctx *ctx, dh_arena *arena, const dh_schedule *schedule,
                              const dh_model *model, const int64_t *layers, tune_timetable **table)
{
    tune_timetable *t = DH_NEW(arena, tune_timetable);
    if (!t) return dh_no_memory(ctx);
    const int32_t n_stages = schedule->n_stages;
    *t = (tune_timetable){.schedule = schedule,
                          .types = DH_NEW_N(arena, tune_stage, n_stages),
                          .type_of = DH_NEW_N(arena, int32_t, n_stages),
                          .like = DH_NEW_N(arena, int32_t, schedule->n_ranks),
                          .last = DH_NEW_N(arena, int32_t, schedule->n_copies * n_stages),
                          .n_ranks = schedule->n_ranks};
    int32_t *counts = DH_NEW_N(arena, int32_t, 6 * n_stages);
    if (!t->types || !t->type_of || !t->like || !t->last || !counts) return dh_no_memory(ctx);
    for (int backward = 0; backward < 2; backward++, counts += 3 * (ptrdiff_t)n_stages) {
        t->n_gathers[backward] = counts;
        t->n_visits[backward] = counts + n_stages;
        t->n_turns[backward] = counts + 2 * (ptrdiff_t)n_stages;
    }
    find_types(t, model, layers);
    find_like(t);
    t->classes = DH_NEW_N(arena, tune_class, most_classes(t));
    if (!t->classes) return dh_no_memory(ctx);
    DH_TRY(list_slots(ctx, arena, t));
    if (!count_slots(t, arena)) return dh_no_memory(ctx);
    *table = t;
    return tune_moments_find(ctx, arena, t);
}

/* ---- running ----------------------------------------------------------------------------------- */

typedef struct running {
    const tune_timetable *t;
    tune_transfer transfer;
    const tune_behind *behind;
    tune_rank_end *ranks;
    double *end; /* [n_slots] */
} running;

/* Reductions that are left on a rank at a time behind its last slot. */
static double left_at(const tune_rank_end *r, double ns)
{
    return DH_MAX(r->left_ns - DH_MAX(ns - DH_MAX(r->end_ns, r->begin_ns), 0.0), 0.0);
}

static void leave(const running *r, int32_t stage, tune_rank_end *rank)
{
    const tune_behind *more = &r->behind[stage];
    rank->left_ns += more->ns;
    rank->beside_slots = more->beside_slots;
    rank->transfer_speed = more->transfer_speed;
    rank->holds_up = more->holds_up;
}

/* Beside reductions on either end a transfer is slower. */
static double transfer_ns(const running *r, const tune_slot *x, double start)
{
    const tune_rank_end *from = &r->ranks[x->rank], *to = &r->ranks[x->peer];
    const double left = DH_MAX(left_at(from, start), left_at(to, start));
    const double speed = DH_MIN(from->transfer_speed, to->transfer_speed), ns = r->transfer.ns;
    if (left <= 0 || speed >= 1) return ns;
    return speed > 0 ? DH_MIN(ns / speed, ns + left * (1 - speed)) : ns + left;
}

/* Streams run in order, and both ends of a transfer must come to it. Reductions of the slot that
 * it is from may wait for it. */
static double run_transfer(const running *r, const tune_slot *x)
{
    tune_rank_end *from = &r->ranks[x->rank], *to = &r->ranks[x->peer];
    const int link = r->transfer.one_link ? 0 : x->link;
    const double start = DH_MAX(r->end[x->need[0]], DH_MAX(from->link_ns[link], to->link_ns[link]));
    const double ns = transfer_ns(r, x, start);
    from->link_ns[link] = to->link_ns[link] = start + ns;
    from->beside_ns += ns;
    to->beside_ns += ns;
    if (from->waits == x->need[0]) {
        from->waits = -1;
        from->begin_ns = DH_MAX(from->begin_ns, start + ns);
        leave(r, r->t->slots[x->need[0]].stage, from);
    }
    return start + ns;
}

/* Time that transfers add to a slot. Transfers that fit before it begins add nothing. */
static double slowed_ns(tune_rank_end *r, tune_transfer transfer, double start)
{
    const double ns = DH_MAX(r->beside_ns - (start - r->end_ns), 0.0);
    r->beside_ns = 0;
    return ns * transfer.slows;
}

static double run_slot(const running *r, int32_t i, const tune_slot_cost *cost)
{
    const tune_slot *slot = &r->t->slots[i];
    tune_rank_end *rank = &r->ranks[slot->rank];
    double start = rank->end_ns;
    for (int k = 0; k < 2; k++)
        if (slot->need[k] >= 0) start = DH_MAX(start, r->end[slot->need[k]]);
    rank->left_ns = left_at(rank, start);
    if (rank->holds_up && r->t->classes[slot->cls].kind != DH_PIPE_W) {
        start += rank->left_ns;
        rank->left_ns = 0;
    }
    const double work_ns = cost->ns + slowed_ns(rank, r->transfer, start), before = rank->left_ns;
    rank->end_ns =
        start +
        (before > 0 ? tune_run_beside(rank->beside_slots, work_ns, &rank->left_ns) : work_ns);
    if (r->behind && slot->stage >= 0 && r->behind[slot->stage].waits) {
        rank->waits = i;
    } else if (r->behind && slot->stage >= 0) {
        rank->left_ns += DH_MIN(before - rank->left_ns, r->behind[slot->stage].during_ns);
        leave(r, slot->stage, rank);
    }
    rank->busy_ns += cost->ns;
    return rank->end_ns;
}

void tune_timetable_run(const tune_timetable *t, const tune_slot_cost *costs,
                        tune_transfer transfer, const tune_behind *behind, double *end,
                        tune_rank_end *ranks)
{
    const running r = {t, transfer, behind, ranks, end};
    for (int32_t k = 0; k < t->n_ranks; k++)
        ranks[k] = (tune_rank_end){.transfer_speed = 1, .waits = -1};
    for (int32_t i = 0; i < t->n_slots; i++) {
        const tune_slot *x = &t->slots[i];
        end[i] = x->peer >= 0 ? run_transfer(&r, x) : run_slot(&r, i, &costs[x->cls]);
    }
}
