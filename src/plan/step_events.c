/* Making the events of a step: slots and transfers in order of the schedule's clock, then around
 * them what parameters and gradients need. */
#include "plan/step_events.h"

#include <stdlib.h>

const char *dh_step_kind_name(dh_step_kind kind)
{
    static const char *const names[DH_N_STEP_KINDS] = {
        [DH_STEP_GATHER] = "gather",   [DH_STEP_SLOT] = "slot",     [DH_STEP_TRANSFER] = "transfer",
        [DH_STEP_RELEASE] = "release", [DH_STEP_REDUCE] = "reduce", [DH_STEP_UPDATE] = "update"};
    return names[kind];
}

int32_t dh_step_goes_to(const dh_schedule *s, const dh_pipe_action *a)
{
    const int32_t to = a->kind == DH_PIPE_F ? a->stage + 1 : a->stage - 1;
    if (a->kind == DH_PIPE_W || to < 0 || to >= s->n_stages) return -1;
    return dh_schedule_rank(s, to, a->micro) == dh_schedule_rank(s, a->stage, a->micro) ? -1 : to;
}

/* ---- slots and transfers -------------------------------------------------------------------- */

/* A slot or a transfer, by its place in the order. */
typedef struct timed {
    int64_t time;
    int32_t slot, rank;
    int32_t action; /* of a transfer, whose result it brings; of a slot -1 */
    int32_t peer, stage, micro;
    bool forward;
} timed;
typedef DH_VEC(timed) timed_list;

typedef struct maker {
    const dh_step_spec *spec;
    const dh_schedule *schedule;
    dh_schedule_timing timing;
    int64_t last_ns; /* when the last slot ends */
    timed_list timed;
    dh_step_events *events;
    DH_VEC(dh_step_event) behind; /* reductions whose transfers are to come */
    bool each;                    /* every micro-batch's gradients are reduced */
    int32_t *place;               /* by slot: its event, -1 */
    int32_t *arrival[2];          /* [stage][micro], backward and forward: what brings its input */
    int32_t *n_micro;             /* [copy]: micro-batches that run through it */
    int32_t *left;                /* [copy][stage]: micro-batches whose gradients are to come */
    int32_t *n_later;             /* [rank]: stages with such */
    bool *whole;                  /* [copy][stage]: its parameters are gathered */
    bool *loaded;                 /* [rank][micro] */
    int32_t *turns, *n_turns;     /* [rank][stage]: stages as their sums come; how many came */
} maker;

static int by_time(const void *x, const void *y)
{
    const timed *a = x, *b = y;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if ((a->action < 0) != (b->action < 0)) return a->action < 0 ? 1 : -1;
    if (a->action < 0) return a->slot - b->slot;
    if (a->stage != b->stage) return a->stage - b->stage;
    if (a->micro != b->micro) return a->micro - b->micro;
    return (int)a->forward - (int)b->forward;
}

static bool is_listed(const maker *m, int32_t rank)
{
    return m->spec->rank < 0 || m->spec->rank == rank;
}

static bool takes_part(const maker *m, const dh_pipe_action *a)
{
    return m->spec->trains || a->kind == DH_PIPE_F;
}

static bool list_slot(maker *m, int32_t rank, int32_t slot)
{
    const dh_schedule *s = m->schedule;
    const timed own = {
        .time = m->timing.start_ns[slot], .slot = slot, .rank = rank, .action = -1, .peer = -1};
    if (is_listed(m, rank) && !dh_vec_push(&m->timed, own)) return false;
    for (int32_t k = 0; k < s->slots[slot].n_actions; k++) {
        const dh_pipe_action *a = &s->slots[slot].action[k];
        const int32_t to = dh_step_goes_to(s, a);
        if (to < 0 || !takes_part(m, a)) continue;
        const timed made = {.time = m->timing.end_ns[slot],
                            .slot = slot,
                            .rank = rank,
                            .action = k,
                            .peer = dh_schedule_rank(s, to, a->micro),
                            .stage = a->stage,
                            .micro = a->micro,
                            .forward = a->kind == DH_PIPE_F};
        if (!is_listed(m, rank) && !is_listed(m, made.peer)) continue;
        if (!dh_vec_push(&m->timed, made)) return false;
    }
    return true;
}

static dh_status list_timed(dh_ctx *ctx, maker *m)
{
    const dh_schedule *s = m->schedule;
    for (int32_t i = 0; i < s->first_slot[s->n_ranks]; i++)
        m->last_ns = DH_MAX(m->last_ns, m->timing.end_ns[i]);
    for (int32_t r = 0; r < s->n_ranks; r++)
        for (int32_t i = s->first_slot[r]; i < s->first_slot[r + 1]; i++)
            if (!list_slot(m, r, i)) return dh_no_memory(ctx);
    if (m->timed.n) qsort(m->timed.at, m->timed.n, sizeof *m->timed.at, by_time);
    return DH_OK;
}

/* ---- turns of two copies of the model -------------------------------------------------------- */

/* When a stage's gradients are complete in all copies, by the schedule's clock. */
static int64_t complete_ns(const maker *m, int32_t stage)
{
    const dh_schedule *s = m->schedule;
    int64_t last = 0;
    for (int32_t i = 0; i < s->first_slot[s->n_ranks]; i++)
        for (int32_t k = 0; k < s->slots[i].n_actions; k++)
            if (s->slots[i].action[k].stage == stage) last = DH_MAX(last, m->timing.end_ns[i]);
    return last;
}

static bool holds(const dh_schedule *s, int32_t rank, int32_t stage)
{
    for (int32_t copy = 0; copy < s->n_copies; copy++)
        if (s->rank_of[copy * s->n_stages + stage] == rank) return true;
    return false;
}

/* The rank's stages in the order of their sums; -1 behind the last. times [n_stages] */
static void order_turns_of(maker *m, int32_t rank, const int64_t *times, int64_t *own)
{
    const dh_schedule *s = m->schedule;
    int32_t *turns = &m->turns[(size_t)rank * (size_t)(s->n_stages + 1)];
    int32_t n = 0;
    for (int32_t stage = s->n_stages; stage-- > 0;) { /* at equal ends, the last stage first */
        int64_t ns = times[stage];
        if (!holds(s, rank, stage)) continue;
        /* A tied embedding's gradient has the part of a head on the same rank. */
        if (stage == 0 && m->spec->tied && holds(s, rank, s->n_stages - 1))
            ns = DH_MAX(ns, times[s->n_stages - 1]);
        int32_t at = n++;
        for (; at > 0 && own[at - 1] > ns; at--) {
            own[at] = own[at - 1];
            turns[at] = turns[at - 1];
        }
        own[at] = ns;
        turns[at] = stage;
    }
    turns[n] = -1;
}

static dh_status order_turns(dh_ctx *ctx, maker *m)
{
    const dh_schedule *s = m->schedule;
    if (s->n_copies == 1 || !m->spec->trains) return DH_OK;
    m->turns = calloc((size_t)s->n_ranks * (size_t)(s->n_stages + 1), sizeof *m->turns);
    m->n_turns = calloc((size_t)s->n_ranks, sizeof *m->n_turns);
    int64_t *times = calloc(2 * (size_t)s->n_stages, sizeof *times);
    const bool ok = m->turns && m->n_turns && times;
    for (int32_t stage = 0; ok && stage < s->n_stages; stage++)
        times[stage] = complete_ns(m, stage);
    for (int32_t r = 0; ok && r < s->n_ranks; r++)
        if (is_listed(m, r)) order_turns_of(m, r, times, times + s->n_stages);
    free(times);
    return ok ? DH_OK : dh_no_memory(ctx);
}

/* ---- around a slot ---------------------------------------------------------------------------- */

static int32_t *cell(const maker *m, int32_t *of, int32_t stage, int32_t micro)
{
    return &of[(size_t)stage * (size_t)m->schedule->n_micro + (size_t)micro];
}

static size_t place_of(const dh_schedule *s, const dh_pipe_action *a)
{
    return (size_t)s->copy_of[a->micro] * (size_t)s->n_stages + (size_t)a->stage;
}

static bool push(maker *m, dh_step_event e, int32_t *number)
{
    if (number) *number = (int32_t)m->events->list.n;
    return dh_vec_push(&m->events->list, e);
}

static dh_step_event event_of(const maker *m, dh_step_kind kind, int32_t rank, int32_t slot,
                              const dh_pipe_action *a)
{
    return (dh_step_event){.kind = kind,
                           .rank = rank,
                           .peer = -1,
                           .slot = slot,
                           .copy = a ? m->schedule->copy_of[a->micro] : -1,
                           .stage = a ? a->stage : -1,
                           .micro = a ? a->micro : -1,
                           .forward = a && a->kind == DH_PIPE_F,
                           .need = {-1, -1},
                           .use = {{-1, -1, -1, false}, {-1, -1, -1, false}},
                           .then = -1};
}

static bool reads_parameters(const maker *m, const dh_pipe_action *a)
{
    return takes_part(m, a) && a->kind != DH_PIPE_W;
}

static bool is_reader(const maker *m, int32_t slot)
{
    const dh_pipe_slot *s = &m->schedule->slots[slot];
    for (int32_t k = 0; k < s->n_actions; k++)
        if (reads_parameters(m, &s->action[k])) return true;
    return false;
}

/* The rank's slots before and after one that read parameters; -1: none. */
static int32_t reader_before(const maker *m, int32_t rank, int32_t slot)
{
    while (slot-- > m->schedule->first_slot[rank])
        if (is_reader(m, slot)) return slot;
    return -1;
}

static int32_t reader_after(const maker *m, int32_t rank, int32_t slot)
{
    while (++slot < m->schedule->first_slot[rank + 1])
        if (is_reader(m, slot)) return slot;
    return -1;
}

/* Whether a slot reads the parameters that an action reads. */
static bool goes_through(const maker *m, int32_t slot, const dh_pipe_action *a)
{
    const dh_schedule *s = m->schedule;
    for (int32_t k = 0; slot >= 0 && k < s->slots[slot].n_actions; k++) {
        const dh_pipe_action *b = &s->slots[slot].action[k];
        if (reads_parameters(m, b) && place_of(s, b) == place_of(s, a)) return true;
    }
    return false;
}

/* The next slot, if the first blocks of its stage may be gathered in this one. That is so by
 * virtual stage, if both slots have one strand and this one's strand comes to the end of its
 * blocks. */
static int32_t begun_in(const maker *m, int32_t rank, int32_t slot)
{
    const dh_pipe_slot *slots = m->schedule->slots;
    const dh_sharing *by = &m->spec->sharing;
    if (!by->parameters || by->regather != DH_REGATHER_STAGE || !is_reader(m, slot)) return -1;
    const int32_t next = reader_after(m, rank, slot);
    const bool begins = next >= 0 && slots[slot].n_actions + slots[next].n_actions == 2 &&
                        !goes_through(m, next, slots[slot].action);
    return begins ? next : -1;
}

/* Parameters that are not whole are gathered. By virtual stage, they stay whole until the
 * consecutive slots that use them are over. */
static bool add_gathers(maker *m, int32_t rank, int32_t slot, int32_t gathers[2])
{
    const dh_schedule *s = m->schedule;
    if (!m->spec->sharing.parameters || !is_reader(m, slot)) return true;
    const int32_t before = reader_before(m, rank, slot);
    for (int32_t k = 0; k < s->slots[slot].n_actions; k++) {
        const dh_pipe_action *a = &s->slots[slot].action[k];
        if (!reads_parameters(m, a) || m->whole[place_of(s, a)]) continue;
        dh_step_event e = event_of(m, DH_STEP_GATHER, rank, slot, a);
        if (before >= 0 && m->events->list.at[m->place[before]].then == slot)
            e.need[0] = m->place[before];
        if (!push(m, e, &gathers[k])) return false;
        m->whole[place_of(s, a)] = true;
    }
    return true;
}

/* Parameters that a forward leaves for its backward stay, and those of the next slot's. */
static bool add_releases(maker *m, int32_t rank, int32_t slot, int32_t at)
{
    const dh_schedule *s = m->schedule;
    const dh_sharing *by = &m->spec->sharing;
    for (int32_t k = 0; k < s->slots[slot].n_actions && by->parameters; k++) {
        const dh_pipe_action *a = &s->slots[slot].action[k];
        const bool waits =
            a->kind == DH_PIPE_F && m->spec->trains && by->reshard == DH_GATHERED_WHOLE;
        if (!reads_parameters(m, a) || waits) continue;
        if (by->regather == DH_REGATHER_STAGE && goes_through(m, reader_after(m, rank, slot), a))
            continue;
        dh_step_event e = event_of(m, DH_STEP_RELEASE, rank, slot, a);
        int32_t number;
        e.need[0] = at;
        if (!push(m, e, &number)) return false;
        m->events->list.at[at].use[k].release = number;
        m->whole[place_of(s, a)] = false;
    }
    return true;
}

/* A reduction that waits comes into the list after its transfer. */
static bool add_reduction(maker *m, dh_step_event e, int32_t action, bool behind)
{
    int32_t number;
    if (behind) return dh_vec_push(&m->behind, e);
    const int32_t slot = m->place[e.slot];
    e.need[0] = slot;
    if (!push(m, e, &number)) return false;
    if (action >= 0) m->events->list.at[slot].use[action].reduce = number;
    return true;
}

/* Whether the action's gradients complete what is reduced, and which. */
static bool completes(const maker *m, const dh_pipe_action *a, dh_reduce_of *of)
{
    const int32_t left = m->left[place_of(m->schedule, a)];
    *of = DH_REDUCE_STEP;
    if (!m->each) return left == 1 && m->schedule->n_copies == 1 && !m->spec->goes_on;
    *of = left == 1                      ? DH_REDUCE_LAST
          : left == m->schedule->n_micro ? DH_REDUCE_FIRST
                                         : DH_REDUCE_NEXT;
    return true;
}

static bool add_reductions(maker *m, int32_t rank, int32_t slot, int32_t at)
{
    const dh_schedule *s = m->schedule;
    const bool sends = m->events->list.at[at].room > 0;
    for (int32_t k = 0; k < s->slots[slot].n_actions; k++) {
        const dh_pipe_action *a = &s->slots[slot].action[k];
        if (!m->spec->trains || (a->kind != DH_PIPE_B && a->kind != DH_PIPE_W)) continue;
        dh_step_event e = event_of(m, DH_STEP_REDUCE, rank, slot, a);
        const bool behind = sends && a->kind == DH_PIPE_B;
        e.when = behind ? DH_REDUCE_BEHIND : DH_REDUCE_DURING;
        if (completes(m, a, &e.of) && !add_reduction(m, e, k, behind)) return false;
        if (--m->left[place_of(s, a)] == 0) m->n_later[rank]--;
    }
    return true;
}

static bool is_complete(const maker *m, int32_t rank, int32_t stage)
{
    const dh_schedule *s = m->schedule;
    for (int32_t copy = 0; copy < s->n_copies; copy++) {
        const int32_t at = copy * s->n_stages + stage;
        if (s->rank_of[at] == rank && m->left[at] > 0) return false;
    }
    return true;
}

/* Sums of stages that are complete in all copies on the rank, in their one order. */
static bool add_turns(maker *m, int32_t rank, int32_t slot, int32_t at)
{
    const dh_schedule *s = m->schedule;
    if (!m->turns) return true;
    const int32_t *turns = &m->turns[(size_t)rank * (size_t)(s->n_stages + 1)];
    for (int32_t *n = &m->n_turns[rank]; turns[*n] >= 0; ++*n) {
        const bool behind = m->events->list.at[at].room > 0;
        dh_step_event e = event_of(m, DH_STEP_REDUCE, rank, slot, NULL);
        if (!is_complete(m, rank, turns[*n])) return true;
        e.stage = turns[*n];
        e.when = DH_REDUCE_BY_TURN;
        if (!add_reduction(m, e, -1, behind)) return false;
    }
    return true;
}

/* ---- all of them -------------------------------------------------------------------------------- */

static double room_of(const maker *m, int32_t slot)
{
    const dh_pipe_slot *s = &m->schedule->slots[slot];
    const dh_pipe_action *a = &s->action[s->n_actions - 1];
    const int64_t begin = m->timing.start_ns[slot], end = m->timing.end_ns[slot];
    if (a->kind != DH_PIPE_B || m->each || dh_step_goes_to(m->schedule, a) < 0) return 0;
    return (double)(m->last_ns - end) / (double)(end - begin);
}

static bool add_slot(maker *m, const timed *t)
{
    const dh_schedule *s = m->schedule;
    const dh_pipe_slot *slot = &s->slots[t->slot];
    dh_step_event e = event_of(m, DH_STEP_SLOT, t->rank, t->slot, NULL);
    int32_t gathers[2] = {-1, -1}, at;
    DH_CHECK(slot->n_actions <= (int32_t)DH_COUNTOF(gathers), "a slot of too many actions");
    if (!add_gathers(m, t->rank, t->slot, gathers)) return false;
    for (int32_t k = 0; k < slot->n_actions; k++) {
        const dh_pipe_action *a = &slot->action[k];
        e.use[k].gather = gathers[k];
        if (!takes_part(m, a) || a->kind == DH_PIPE_W) continue;
        e.need[k] = *cell(m, m->arrival[a->kind == DH_PIPE_F], a->stage, a->micro);
        bool *loaded = &m->loaded[(size_t)t->rank * (size_t)s->n_micro + (size_t)a->micro];
        e.use[k].loads = a->kind == DH_PIPE_F && !*loaded;
        *loaded |= a->kind == DH_PIPE_F;
    }
    e.room = m->spec->trains ? room_of(m, t->slot) : 0;
    e.then = begun_in(m, t->rank, t->slot);
    if (!push(m, e, &at)) return false;
    m->place[t->slot] = at;
    if (!add_releases(m, t->rank, t->slot, at) || !add_reductions(m, t->rank, t->slot, at) ||
        !add_turns(m, t->rank, t->slot, at))
        return false;
    m->events->list.at[at].n_later = m->n_later[t->rank];
    return true;
}

/* Reductions of a slot wait for its last backward's transfer. */
static bool add_behind(maker *m, const timed *t, int32_t transfer)
{
    const dh_pipe_slot *slot = &m->schedule->slots[t->slot];
    size_t kept = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < m->behind.n; i++) {
        dh_step_event e = m->behind.at[i];
        int32_t number;
        if (e.slot != t->slot || t->action != slot->n_actions - 1) {
            m->behind.at[kept++] = e;
            continue;
        }
        e.need[0] = transfer;
        ok = push(m, e, &number);
        if (ok && e.when == DH_REDUCE_BEHIND)
            m->events->list.at[m->place[t->slot]].use[t->action].reduce = number;
    }
    m->behind.n = kept;
    return ok;
}

static bool add_transfer(maker *m, const timed *t)
{
    const dh_pipe_action *a = &m->schedule->slots[t->slot].action[t->action];
    const int32_t to = dh_step_goes_to(m->schedule, a);
    dh_step_event e = event_of(m, DH_STEP_TRANSFER, t->rank, t->slot, a);
    int32_t at;
    e.peer = t->peer;
    e.need[0] = m->place[t->slot];
    if (!push(m, e, &at)) return false;
    *cell(m, m->arrival[t->forward], to, t->micro) = at;
    return add_behind(m, t, at);
}

static bool add_around(maker *m, int32_t rank)
{
    const dh_schedule *s = m->schedule;
    dh_step_event e = event_of(m, DH_STEP_REDUCE, rank, -1, NULL);
    e.when = DH_REDUCE_AT_END;
    for (int32_t end = 0; end < 2 && m->spec->trains && m->spec->tied_apart; end++) {
        e.stage = end ? s->n_stages - 1 : 0;
        if (!m->spec->goes_on && holds(s, rank, e.stage) && !push(m, e, NULL)) return false;
    }
    return !m->spec->updates || push(m, event_of(m, DH_STEP_UPDATE, rank, -1, NULL), NULL);
}

static bool add_all(maker *m)
{
    const dh_schedule *s = m->schedule;
    const dh_sharing *by = &m->spec->sharing;
    const bool first = m->spec->gathers && by->gather == DH_GATHER_FORWARD;
    bool ok = true;
    for (int32_t r = 0; ok && first && dh_sharing_steps_shards(by) && r < s->n_ranks; r++)
        ok = !is_listed(m, r) || push(m, event_of(m, DH_STEP_GATHER, r, -1, NULL), NULL);
    for (size_t i = 0; ok && i < m->timed.n; i++)
        ok = m->timed.at[i].action < 0 ? add_slot(m, &m->timed.at[i])
                                       : add_transfer(m, &m->timed.at[i]);
    m->events->end = (int32_t)m->events->list.n;
    m->events->n_timed = (int32_t)m->timed.n;
    for (int32_t r = 0; ok && r < s->n_ranks; r++) ok = !is_listed(m, r) || add_around(m, r);
    return ok;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static bool make_room(maker *m)
{
    const dh_schedule *s = m->schedule;
    const size_t n_slots = (size_t)s->first_slot[s->n_ranks] + 1;
    const size_t n_cells = (size_t)s->n_stages * (size_t)s->n_micro + 1;
    const size_t n_stages = (size_t)s->n_copies * (size_t)s->n_stages;
    m->place = malloc(n_slots * sizeof *m->place);
    for (int f = 0; f < 2; f++) m->arrival[f] = malloc(n_cells * sizeof *m->arrival[f]);
    m->n_micro = calloc((size_t)s->n_copies + 1, sizeof *m->n_micro);
    m->left = calloc(n_stages + 1, sizeof *m->left);
    m->n_later = calloc((size_t)s->n_ranks + 1, sizeof *m->n_later);
    m->whole = calloc(n_stages + 1, sizeof *m->whole);
    m->loaded = calloc((size_t)s->n_ranks * (size_t)s->n_micro + 1, sizeof *m->loaded);
    if (!m->place || !m->arrival[0] || !m->arrival[1] || !m->n_micro || !m->left || !m->n_later ||
        !m->whole || !m->loaded)
        return false;
    for (size_t i = 0; i < n_slots; i++) m->place[i] = -1;
    for (size_t i = 0; i < n_cells; i++) m->arrival[0][i] = m->arrival[1][i] = -1;
    for (int32_t j = 0; j < s->n_micro; j++) m->n_micro[s->copy_of[j]]++;
    for (size_t i = 0; i < n_stages; i++) {
        m->left[i] = m->n_micro[i / (size_t)s->n_stages];
        m->n_later[s->rank_of[i]] += m->left[i] > 0;
    }
    return true;
}

static void drop(maker *m)
{
    dh_schedule_timing_fini(&m->timing);
    dh_vec_fini(&m->timed);
    dh_vec_fini(&m->behind);
    free(m->place);
    free(m->arrival[0]);
    free(m->arrival[1]);
    free(m->n_micro);
    free(m->left);
    free(m->n_later);
    free(m->whole);
    free(m->loaded);
    free(m->turns);
    free(m->n_turns);
}

dh_status dh_step_events_make(dh_ctx *ctx, const dh_step_spec *spec, dh_step_events *events)
{
    maker m = {.spec = spec, .schedule = spec->schedule, .events = events};
    *events = (dh_step_events){.end = 0};
    m.each = spec->trains && dh_sharing_reduces_each(&spec->sharing, spec->schedule->n_micro);
    dh_status st = DH_OK;
    if (spec->runs) st = dh_schedule_time_order(ctx, spec->schedule, &m.timing);
    if (st == DH_OK && !make_room(&m)) st = dh_no_memory(ctx);
    if (st == DH_OK && spec->runs) st = list_timed(ctx, &m);
    if (st == DH_OK && spec->runs) st = order_turns(ctx, &m);
    if (st == DH_OK && !add_all(&m)) st = dh_no_memory(ctx);
    drop(&m);
    return st;
}

void dh_step_events_fini(dh_step_events *events)
{
    dh_vec_fini(&events->list);
    *events = (dh_step_events){.end = 0};
}
