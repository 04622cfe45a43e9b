/* The events of a step beside what is said of them elsewhere: for every schedule's rows and random
 * settings of what ranks share, a second account of one rank's step, made by walking its slots in
 * the order of the clock, says the same line by line; and what the events promise holds in
 * themselves. */
#include "schedules.h"

#include "plan/step_events.h"

typedef struct given {
    dh_schedule *schedule;
    dh_step_spec spec;
} given;

/* ---- a second account of one rank's step ------------------------------------------------------ */

typedef struct item {
    int64_t time;
    int32_t rank, stage, micro, forward; /* rank: 0 transfers, 1 slots */
    int32_t slot;
    bool sends;
} item;

static int by_time(const void *x, const void *y)
{
    const item *a = x, *b = y;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->rank != b->rank) return a->rank - b->rank;
    if (a->stage != b->stage) return a->stage - b->stage;
    if (a->micro != b->micro) return a->micro - b->micro;
    return a->forward - b->forward;
}

typedef struct account {
    const given *g;
    const dh_schedule *s;
    int32_t rank;
    dh_schedule_timing timing;
    int64_t last;
    DH_VEC(item) items;
    int left[64]; /* [copy][stage] */
    bool loaded[64];
    int32_t turns[64];
    int n_turns, turn;
    bool held[64]; /* by stage: it waits for the send */
    dh_str out;
} account;

static bool own(const account *a, int32_t copy, int32_t stage)
{
    return stage >= 0 && stage < a->s->n_stages &&
           a->s->rank_of[copy * a->s->n_stages + stage] == a->rank;
}

static bool reads(const account *a, const dh_pipe_action *x)
{
    return x->kind == DH_PIPE_F || (a->g->spec.trains && x->kind != DH_PIPE_W);
}

static bool is_each(const account *a)
{
    const dh_sharing *by = &a->g->spec.sharing;
    return a->g->spec.trains && by->gradients && by->gradient_sync == DH_GRADIENT_SYNC_EVERY &&
           a->s->n_micro > 1;
}

static void list_items(account *a)
{
    const dh_schedule *s = a->s;
    for (int32_t r = 0; r < s->n_ranks; r++)
        for (int32_t i = s->first_slot[r]; i < s->first_slot[r + 1]; i++) {
            a->last = DH_MAX(a->last, a->timing.end_ns[i]);
            const item slot = {.time = a->timing.start_ns[i], .rank = 1, .slot = i};
            if (r == a->rank) assert_true(dh_vec_push(&a->items, slot));
            for (int32_t k = 0; k < s->slots[i].n_actions; k++) {
                const dh_pipe_action *x = &s->slots[i].action[k];
                const int32_t to = x->kind == DH_PIPE_F ? x->stage + 1 : x->stage - 1;
                const int32_t copy = s->copy_of[x->micro];
                const bool from_here = own(a, copy, x->stage), to_here = own(a, copy, to);
                if (x->kind == DH_PIPE_W || to < 0 || to >= s->n_stages) continue;
                if (from_here == to_here || (!a->g->spec.trains && x->kind != DH_PIPE_F)) continue;
                const item made = {a->timing.end_ns[i],  0, x->stage, x->micro,
                                   x->kind == DH_PIPE_F, i, from_here};
                assert_true(dh_vec_push(&a->items, made));
            }
        }
    qsort(a->items.at, a->items.n, sizeof *a->items.at, by_time);
}

static int64_t complete_ns(const account *a, int32_t stage)
{
    int64_t last = 0;
    for (int32_t i = 0; i < a->s->first_slot[a->s->n_ranks]; i++)
        for (int32_t k = 0; k < a->s->slots[i].n_actions; k++)
            if (a->s->slots[i].action[k].stage == stage) last = DH_MAX(last, a->timing.end_ns[i]);
    return last;
}

static bool has(const account *a, int32_t stage)
{
    for (int32_t copy = 0; copy < a->s->n_copies; copy++)
        if (own(a, copy, stage)) return true;
    return false;
}

/* By selection: the earliest complete one next, the deepest of equal ones. */
static void order_turns(account *a)
{
    int64_t ns[64];
    bool taken[64] = {false};
    const int32_t n = a->s->n_stages;
    for (int32_t v = 0; v < n; v++) ns[v] = complete_ns(a, v);
    if (a->g->spec.tied && has(a, 0) && has(a, n - 1)) ns[0] = DH_MAX(ns[0], ns[n - 1]);
    for (;;) {
        int32_t best = -1;
        for (int32_t v = n; v-- > 0;)
            if (has(a, v) && !taken[v] && (best < 0 || ns[v] < ns[best])) best = v;
        if (best < 0) return;
        taken[best] = true;
        a->turns[a->n_turns++] = best;
    }
}

static const dh_pipe_slot *next_reader(const account *a, int32_t slot, int32_t *at)
{
    for (*at = slot + 1; *at < a->s->first_slot[a->rank + 1]; ++*at)
        for (int32_t k = 0; k < a->s->slots[*at].n_actions; k++)
            if (reads(a, &a->s->slots[*at].action[k])) return &a->s->slots[*at];
    return NULL;
}

static void tell_reduce(account *a, int32_t stage, const char *which)
{
    dh_str_printf(&a->out, "reduce %d %s\n", stage, which);
}

static void tell_walk(account *a, const dh_pipe_slot *slot, int32_t i, const dh_pipe_action *x)
{
    int32_t at = -1;
    const dh_sharing *by = &a->g->spec.sharing;
    const dh_pipe_slot *next = by->regather == DH_REGATHER_STAGE ? next_reader(a, i, &at) : NULL;
    bool goes_on = false;
    for (int32_t k = 0; next && k < next->n_actions; k++)
        goes_on |= reads(a, &next->action[k]) && next->action[k].stage == x->stage &&
                   a->s->copy_of[next->action[k].micro] == a->s->copy_of[x->micro];
    const bool waits =
        x->kind == DH_PIPE_F && a->g->spec.trains && by->reshard == DH_GATHERED_WHOLE;
    if (by->parameters && reads(a, x))
        dh_str_printf(&a->out, "  %s", goes_on || waits ? "stays" : "goes");
    if (by->parameters && reads(a, x) && next && !goes_on && slot->n_actions + next->n_actions < 3)
        dh_str_printf(&a->out, " then %d", at);
    dh_str_printf(&a->out, "\n");
}

static void tell_slot(account *a, int32_t i)
{
    const dh_pipe_slot *slot = &a->s->slots[i];
    const dh_pipe_action *end = &slot->action[slot->n_actions - 1];
    const int32_t copy = a->s->copy_of[end->micro];
    const bool each = is_each(a);
    const bool sends = end->kind == DH_PIPE_B && end->stage > 0 && !own(a, copy, end->stage - 1) &&
                       !each && a->g->spec.trains;
    const int64_t begin = a->timing.start_ns[i], over = a->timing.end_ns[i];
    const char *which[2] = {NULL, NULL};
    int n_later = 0;
    for (int32_t k = 0; k < slot->n_actions; k++) {
        const dh_pipe_action *x = &slot->action[k];
        int *left = &a->left[a->s->copy_of[x->micro] * a->s->n_stages + x->stage];
        if (!a->g->spec.trains || x->kind == DH_PIPE_F || x->kind == DH_PIPE_I) continue;
        if (each)
            which[k] = *left == 1 ? "last" : *left == a->s->n_micro ? "first" : "next";
        else if (*left == 1 && a->s->n_copies == 1 && !a->g->spec.goes_on)
            which[k] = "step";
        --*left;
    }
    for (int32_t c = 0; c < a->s->n_copies; c++)
        for (int32_t v = 0; v < a->s->n_stages; v++)
            n_later += own(a, c, v) && a->left[c * a->s->n_stages + v] > 0;
    dh_str_printf(&a->out, "slot %d later %d room %.6g\n", i, n_later,
                  sends ? (double)(a->last - over) / (double)(over - begin) : 0.0);
    for (int32_t k = 0; k < slot->n_actions; k++) {
        const dh_pipe_action *x = &slot->action[k];
        if (!a->g->spec.trains && x->kind != DH_PIPE_F) continue;
        if (x->kind == DH_PIPE_F && !a->loaded[x->micro]) dh_str_printf(&a->out, "  loads");
        a->loaded[x->micro] |= x->kind == DH_PIPE_F;
        tell_walk(a, slot, i, x);
    }
    for (int32_t k = 0; k < slot->n_actions; k++) {
        if (which[k] && sends && slot->action[k].kind == DH_PIPE_B)
            a->held[slot->action[k].stage] = true;
        else if (which[k])
            tell_reduce(a, slot->action[k].stage, which[k]);
    }
    for (; a->turn < a->n_turns; a->turn++) {
        bool complete = true;
        for (int32_t c = 0; c < a->s->n_copies; c++)
            complete &= !own(a, c, a->turns[a->turn]) ||
                        a->left[c * a->s->n_stages + a->turns[a->turn]] == 0;
        if (!complete) break;
        if (sends)
            a->held[a->turns[a->turn]] = true;
        else
            tell_reduce(a, a->turns[a->turn], "turn");
    }
}

static void tell_transfer(account *a, const item *e)
{
    dh_str_printf(&a->out, "%s %c%d.%d\n", e->sends ? "send" : "receive", e->forward ? 'F' : 'B',
                  e->stage, e->micro);
    if (!e->sends || e->forward) return;
    for (int t = 0; t < DH_MAX(a->n_turns, a->s->n_stages); t++) {
        const int32_t v = a->n_turns ? a->turns[t] : t;
        if (a->held[v]) tell_reduce(a, v, a->n_turns ? "turn after it" : "step after it");
        a->held[v] = false;
    }
}

/* Text of the caller's. */
static dh_str account_of(const given *g, int32_t rank)
{
    dh_ctx ctx = DH_CTX_INIT;
    account a = {.g = g, .s = g->schedule, .rank = rank};
    assert_true(a.s->n_copies * a.s->n_stages <= 64 && a.s->n_micro <= 64);
    assert_ok(&ctx, dh_schedule_time_order(&ctx, a.s, &a.timing));
    for (int32_t j = 0; j < a.s->n_micro; j++)
        for (int32_t v = 0; v < a.s->n_stages; v++) a.left[a.s->copy_of[j] * a.s->n_stages + v]++;
    list_items(&a);
    if (a.s->n_copies > 1 && g->spec.trains) order_turns(&a);
    for (size_t i = 0; i < a.items.n; i++)
        if (a.items.at[i].rank == 1)
            tell_slot(&a, a.items.at[i].slot);
        else
            tell_transfer(&a, &a.items.at[i]);
    dh_schedule_timing_fini(&a.timing);
    dh_vec_fini(&a.items);
    return a.out;
}

/* ---- the events, in the same words ------------------------------------------------------------ */

static void tell_event_slot(const given *g, const dh_step_event *e, dh_str *out)
{
    const dh_pipe_slot *slot = &g->schedule->slots[e->slot];
    dh_str_printf(out, "slot %d later %d room %.6g\n", e->slot, e->n_later, e->room);
    for (int32_t k = 0; k < slot->n_actions; k++) {
        const dh_pipe_action *x = &slot->action[k];
        if (!g->spec.trains && x->kind != DH_PIPE_F) continue;
        if (e->use[k].loads) dh_str_printf(out, "  loads");
        const bool read = g->spec.sharing.parameters && x->kind != DH_PIPE_W;
        if (read) dh_str_printf(out, "  %s", e->use[k].release < 0 ? "stays" : "goes");
        if (read && e->then >= 0) dh_str_printf(out, " then %d", e->then);
        dh_str_printf(out, "\n");
    }
}

static void tell_event(const given *g, const dh_step_events *all, const dh_step_event *e,
                       int32_t rank, dh_str *out)
{
    static const char *const of[] = {"step", "first", "next", "last"};
    if (e->kind == DH_STEP_SLOT) tell_event_slot(g, e, out);
    if (e->kind == DH_STEP_TRANSFER)
        dh_str_printf(out, "%s %c%d.%d\n", e->rank == rank ? "send" : "receive",
                      e->forward ? 'F' : 'B', e->stage, e->micro);
    if (e->kind == DH_STEP_REDUCE && e->slot >= 0)
        dh_str_printf(out, "reduce %d %s%s\n", e->stage,
                      e->when == DH_REDUCE_BY_TURN ? "turn" : of[e->of],
                      all->list.at[e->need[0]].kind == DH_STEP_TRANSFER ? " after it" : "");
}

static bool is_of(const dh_step_event *e, int32_t rank)
{
    return e->rank == rank || e->peer == rank;
}

static dh_step_events make(const given *g, int32_t rank)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_step_events events;
    dh_step_spec spec = g->spec;
    spec.rank = rank;
    assert_ok(&ctx, dh_step_events_make(&ctx, &spec, &events));
    return events;
}

static void assert_same_account(const given *g, const dh_step_events *all, int32_t rank)
{
    dh_str want = account_of(g, rank), got = DH_STR_INIT;
    for (size_t i = 0; i < all->list.n; i++)
        if (is_of(&all->list.at[i], rank)) tell_event(g, all, &all->list.at[i], rank, &got);
    assert_false(want.failed || got.failed);
    if (strcmp(want.text ? want.text : "", got.text ? got.text : "") != 0)
        fail_msg("%s, rank %d of %d, %d micro-batches: want\n%s\ngot\n%s", g->schedule->name, rank,
                 g->schedule->n_ranks, g->schedule->n_micro, want.text, got.text);
    dh_str_fini(&want);
    dh_str_fini(&got);
}

/* ---- what they promise ------------------------------------------------------------------------ */

/* The events of one rank are those of all ranks in which it takes part, in their order. */
static void assert_part_of_all(const given *g, const dh_step_events *all, int32_t rank)
{
    dh_step_events part = make(g, rank);
    size_t n = 0;
    for (size_t i = 0; i < all->list.n; i++) {
        const dh_step_event *a = &all->list.at[i], *b = &part.list.at[n];
        if (!is_of(a, rank)) continue;
        assert_true(n++ < part.list.n);
        assert_true(a->kind == b->kind && a->slot == b->slot && a->stage == b->stage &&
                    a->micro == b->micro && a->copy == b->copy && a->when == b->when &&
                    a->of == b->of && a->then == b->then && a->n_later == b->n_later);
    }
    assert_int_equal(n, part.list.n);
    dh_step_events_fini(&part);
}

/* Every event comes after those that it needs; a slot's input is what the neighbour sent. */
static void assert_needs(const given *g, const dh_step_events *all)
{
    const dh_schedule *s = g->schedule;
    int32_t n_timed = 0;
    for (int32_t i = 0; i < (int32_t)all->list.n; i++) {
        const dh_step_event *e = &all->list.at[i];
        n_timed += e->kind == DH_STEP_SLOT || e->kind == DH_STEP_TRANSFER;
        assert_true((i < all->end) == (e->slot >= 0 || e->kind == DH_STEP_GATHER));
        for (int k = 0; k < 2; k++) assert_true(e->need[k] < i);
        if (e->kind == DH_STEP_TRANSFER) {
            assert_int_equal(all->list.at[e->need[0]].slot, e->slot);
            assert_int_equal(all->list.at[e->need[0]].kind, DH_STEP_SLOT);
        }
        for (int32_t k = 0; e->kind == DH_STEP_SLOT && k < s->slots[e->slot].n_actions; k++) {
            const dh_pipe_action *x = &s->slots[e->slot].action[k];
            const int32_t from = x->kind == DH_PIPE_F ? x->stage - 1 : x->stage + 1;
            const bool comes = x->kind != DH_PIPE_W && from >= 0 && from < s->n_stages &&
                               dh_schedule_rank(s, from, x->micro) != e->rank;
            assert_int_equal(e->need[k] >= 0, comes);
            if (!comes) continue;
            const dh_step_event *t = &all->list.at[e->need[k]];
            assert_int_equal(t->kind, DH_STEP_TRANSFER);
            assert_true(t->peer == e->rank && t->stage == from && t->micro == x->micro &&
                        t->forward == (x->kind == DH_PIPE_F));
        }
    }
    assert_int_equal(n_timed, all->n_timed);
}

/* Parameters are whole when a slot reads them, and gathered only if they are not; of every stage
 * each gradient is reduced last once. */
static void assert_whole_and_reduced(const given *g, const dh_step_events *all)
{
    const dh_schedule *s = g->schedule;
    bool whole[64] = {false};
    int n_last[64] = {0};
    for (size_t i = 0; i < all->list.n; i++) {
        const dh_step_event *e = &all->list.at[i];
        if (e->slot >= 0 && e->kind == DH_STEP_GATHER) {
            assert_false(whole[e->copy * s->n_stages + e->stage]);
            whole[e->copy * s->n_stages + e->stage] = true;
        }
        if (e->kind == DH_STEP_RELEASE) whole[e->copy * s->n_stages + e->stage] = false;
        for (int32_t k = 0; e->kind == DH_STEP_SLOT && k < s->slots[e->slot].n_actions; k++) {
            const dh_pipe_action *x = &s->slots[e->slot].action[k];
            if (g->spec.sharing.parameters && x->kind != DH_PIPE_W)
                assert_true(whole[s->copy_of[x->micro] * s->n_stages + x->stage]);
        }
        if (e->kind == DH_STEP_REDUCE && (e->of == DH_REDUCE_STEP || e->of == DH_REDUCE_LAST))
            n_last[e->stage] += e->slot >= 0;
    }
    /* Of copies on different ranks, each rank sums its own. */
    const bool apart = s->n_copies > 1 && dh_schedule_copies_of(s) != DH_COPIES_TOGETHER;
    for (int32_t v = 0; v < s->n_stages; v++) {
        const bool middle = apart && s->rank_of[v] == s->rank_of[s->n_stages + v];
        const int want = g->spec.goes_on || !g->spec.trains ? 0 : apart && !middle ? 2 : 1;
        if (s->n_copies <= 2) assert_int_equal(n_last[v], want);
    }
}

static void check(const given *g)
{
    dh_step_events all = make(g, -1);
    assert_needs(g, &all);
    assert_whole_and_reduced(g, &all);
    for (int32_t r = 0; r < g->schedule->n_ranks; r++) {
        assert_same_account(g, &all, r);
        assert_part_of_all(g, &all, r);
    }
    dh_step_events_fini(&all);
}

static dh_sharing random_sharing(uint64_t *rng, int32_t n_copies)
{
    dh_sharing by = dh_sharing_of((int64_t)(test_rand(rng) % 4));
    if (n_copies == 1) by.gradient_sync = (dh_gradient_sync)(test_rand(rng) % 2);
    by.gather = (dh_param_gather)(test_rand(rng) % 2);
    by.regather = (dh_regather_by)(test_rand(rng) % 2);
    by.reshard = (dh_gathered)(test_rand(rng) % 3);
    return by;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_every_row_tells_the_same_story(void **state)
{
    (void)state;
    size_t n_rows;
    int n_checked = 0;
    uint64_t rng = 7;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n_rows);
    for (size_t i = 0; i < n_rows; i++)
        for (int32_t p = 1; p <= 4; p++)
            for (int32_t m = 1; m <= 12; m += p == 3 ? 3 : 1) {
                dh_ctx ctx = DH_CTX_INIT;
                given g;
                const dh_schedule_spec want = {.n_ranks = p, .n_micro = m};
                if (dh_schedule_generate(&ctx, rows[i], &want, &g.schedule) != DH_OK) continue;
                g.spec = (dh_step_spec){.schedule = g.schedule,
                                        .sharing = random_sharing(&rng, g.schedule->n_copies),
                                        .trains = true,
                                        .runs = true,
                                        .updates = test_rand(&rng) % 2,
                                        .tied = test_rand(&rng) % 2};
                if (g.schedule->n_copies == 1 && !g.spec.sharing.gradients)
                    g.spec.goes_on = test_rand(&rng) % 4 == 0;
                check(&g);
                dh_schedule_destroy(g.schedule);
                n_checked++;
            }
    assert_true(n_checked > 500);
}

static size_t count(const dh_step_events *events, dh_step_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < events->list.n; i++) n += events->list.at[i].kind == kind;
    return n;
}

/* 1F1B on two ranks, two micro-batches: the whole list by hand. */
static void test_by_hand(void **state)
{
    (void)state;
    given g = {.schedule = generate("1f1b", 2, 2, 0)};
    g.spec = (dh_step_spec){.schedule = g.schedule,
                            .sharing = dh_sharing_of(1),
                            .trains = true,
                            .runs = true,
                            .gathers = true,
                            .updates = true,
                            .tied = true,
                            .tied_apart = true};
    g.spec.sharing.gather = DH_GATHER_FORWARD;
    dh_step_events all = make(&g, 1);
    dh_str got = DH_STR_INIT;
    for (size_t i = 0; i < all.list.n; i++) {
        const dh_step_event *e = &all.list.at[i];
        dh_str_printf(&got, "%s %d.%d%s\n", dh_step_kind_name(e->kind), e->stage, e->micro,
                      e->when == DH_REDUCE_BEHIND ? " behind" : "");
    }
    assert_string_equal(got.text, "gather -1.-1\n"
                                  "transfer 0.0\nslot -1.-1\ntransfer 0.1\nslot -1.-1\n"
                                  "transfer 1.0\nslot -1.-1\nslot -1.-1\n"
                                  "transfer 1.1\nreduce 1.1 behind\n"
                                  "reduce 1.-1\nupdate -1.-1\n");
    dh_str_fini(&got);
    dh_step_events_fini(&all);
    /* Without micro-batches only what stands around them. */
    g.spec.runs = false;
    all = make(&g, -1);
    assert_int_equal(count(&all, DH_STEP_GATHER), 2);
    assert_int_equal(count(&all, DH_STEP_UPDATE), 2);
    assert_int_equal(count(&all, DH_STEP_REDUCE), 2);
    assert_int_equal(all.list.n, 6);
    dh_step_events_fini(&all);
    dh_schedule_destroy(g.schedule);
}

/* Three stages on one rank, breadth first: by virtual stage each is gathered once for its forwards;
 * the last one's backwards follow them. */
static void test_gathers_by_stage(void **state)
{
    (void)state;
    given g = {.schedule = generate("looped-bfs", 1, 4, 3)};
    g.spec = (dh_step_spec){
        .schedule = g.schedule, .sharing = dh_sharing_of(3), .trains = true, .runs = true};
    dh_step_events all = make(&g, 0);
    assert_int_equal(count(&all, DH_STEP_GATHER), 2 * 3 * 4);
    assert_int_equal(count(&all, DH_STEP_RELEASE), 2 * 3 * 4);
    dh_step_events_fini(&all);
    g.spec.sharing.regather = DH_REGATHER_STAGE;
    all = make(&g, 0);
    assert_int_equal(count(&all, DH_STEP_GATHER), 5);
    assert_int_equal(count(&all, DH_STEP_RELEASE), 5);
    int n_early = 0;
    for (size_t i = 0; i < all.list.n; i++)
        n_early += all.list.at[i].kind == DH_STEP_GATHER && all.list.at[i].need[0] >= 0;
    assert_int_equal(n_early, 4);
    dh_step_events_fini(&all);
    dh_schedule_destroy(g.schedule);
}

/* Where nothing is trained, no backward sends. */
static void test_forwards_alone(void **state)
{
    (void)state;
    given g = {.schedule = generate("gpipe", 3, 2, 0)};
    g.spec = (dh_step_spec){.schedule = g.schedule, .runs = true, .rank = -1};
    dh_step_events all = make(&g, -1);
    assert_int_equal(count(&all, DH_STEP_TRANSFER), 2 * 2);
    assert_int_equal(count(&all, DH_STEP_REDUCE), 0);
    for (size_t i = 0; i < all.list.n; i++)
        assert_true(all.list.at[i].kind != DH_STEP_TRANSFER || all.list.at[i].forward);
    dh_step_events_fini(&all);
    dh_schedule_destroy(g.schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_tells_the_same_story),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_gathers_by_stage),
        cmocka_unit_test(test_forwards_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
