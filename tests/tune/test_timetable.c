/* Timetables: every schedule's ends are those of dh_schedule_time, its peaks those of
 * dh_schedule_validate, and many micro-batches continue a straight line. */
#include "dh_test.h"

#include "plan/step_events.h"
#include "tune/estimate.h"

/* An input and a weight gradient side by side count as a whole backward. */
static const dh_stage_cost unit = {.f_ns = 1000,
                                   .i_ns = 1100,
                                   .w_ns = 900,
                                   .b_ns = 2000,
                                   .fb_ns = 2500,
                                   .fi_ns = 1700,
                                   .other_ns = 2000};

typedef struct timed {
    dh_arena *arena;
    dh_schedule *schedule;
    tune_timetable *table;
    tune_rank_end ends[16];
    double last_ns;
    double peaks[16]; /* by moments */
} timed;

static dh_schedule *schedule_of(const dh_schedule_row *row, int32_t p, int32_t m)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_spec spec = {.n_ranks = p, .n_micro = m};
    dh_schedule *schedule;
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &spec, &schedule));
    return schedule;
}

/* An activation is one byte, dropped by B or W. */
static tune_slot_cost cost_of(const tune_class *c)
{
    const double ns[DH_N_PIPE_KINDS] = {[DH_PIPE_F] = (double)unit.f_ns,
                                        [DH_PIPE_B] = (double)unit.b_ns,
                                        [DH_PIPE_I] = (double)unit.i_ns,
                                        [DH_PIPE_W] = (double)unit.w_ns};
    if (c->f < 0) return (tune_slot_cost){.ns = ns[c->kind], .peak_bytes = c->kind == DH_PIPE_F};
    const int64_t both = c->kind == DH_PIPE_I   ? unit.fi_ns
                         : c->kind == DH_PIPE_B ? unit.fb_ns
                                                : unit.other_ns;
    return (tune_slot_cost){.ns = (double)both, .peak_bytes = 1 + (c->kind == DH_PIPE_F)};
}

static timed time_schedule(dh_schedule *schedule)
{
    dh_ctx ctx = DH_CTX_INIT;
    timed t = {.arena = dh_arena_create(), .schedule = schedule};
    int64_t layers[64];
    tune_slot_cost costs[64];
    tune_held held[64];
    for (int i = 0; i < 64; i++) layers[i] = 1;
    assert_ok(&ctx, tune_timetable_make(&ctx, t.arena, schedule, NULL, layers, &t.table));
    double *scratch = calloc((size_t)t.table->n_slots, sizeof *scratch);
    assert_true(t.table->n_classes <= 64);
    for (int32_t c = 0; c < t.table->n_classes; c++) costs[c] = cost_of(&t.table->classes[c]);
    tune_timetable_run(t.table, costs, (tune_transfer){0}, NULL, scratch, t.ends);
    for (int32_t k = 0; k < 64; k++) held[k] = (tune_held){1, 1};
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        t.last_ns = fmax(t.last_ns, t.ends[r].end_ns);
        t.peaks[r] = tune_moments_peak(t.table, r, costs, held);
    }
    free(scratch);
    return t;
}

static void release(timed *t)
{
    dh_schedule_destroy(t->schedule);
    dh_arena_destroy(t->arena);
}

typedef void check_row(const dh_schedule_row *row, int32_t p);

static void each_row(check_row *check)
{
    size_t n;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    int n_checked = 0;
    for (size_t i = 0; i < n; i++) {
        check(rows[i], 4);
        n_checked++;
    }
    assert_true(n_checked >= 16);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void same_as_schedule_time(const dh_schedule_row *row, int32_t p)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule_use use[16];
    dh_schedule_timing timing;
    timed t = time_schedule(schedule_of(row, p, 16));
    const dh_schedule_costs costs = {.every = unit};
    assert_ok(&ctx, dh_schedule_time(&ctx, t.schedule, &costs, &timing));
    assert_ok(&ctx, dh_schedule_validate(&ctx, t.schedule, use));
    for (int32_t r = 0; r < p; r++) {
        const double off = t.ends[r].end_ns / (double)timing.last_ns[r] - 1;
        if (fabs(off) > .02) fail_msg("%s: rank %d ends %+.3f off", row->name, r, off);
        assert_true(t.ends[r].busy_ns == (double)timing.busy_ns[r]);
        assert_true(t.peaks[r] == use[r].peak);
    }
    dh_schedule_timing_fini(&timing);
    release(&t);
}

/* Transfers take no time here, but keep to the order that ranks share, which costs a little
 * where durations are not those of that order's clock. */
static void test_timetables_time_as_schedules_do(void **state)
{
    (void)state;
    each_row(same_as_schedule_time);
}

/* Slots and transfers of the timetable are those of a program's events without shards, in their order,
 * with the same needs; what reduces is the same. */
static void same_as_events(const dh_schedule_row *row, int32_t p)
{
    dh_ctx ctx = DH_CTX_INIT;
    timed t = time_schedule(schedule_of(row, p, 16));
    const dh_schedule *s = t.schedule;
    dh_step_events events;
    const dh_step_spec spec = {
        .schedule = s, .sharing = dh_sharing_of(0), .rank = -1, .trains = true, .runs = true};
    assert_ok(&ctx, dh_step_events_make(&ctx, &spec, &events));
    int32_t *number = calloc(events.list.n + 1, sizeof *number); /* of the timetable, by event */
    int32_t n = 0;
    assert_int_equal(events.n_timed, t.table->n_slots);
    for (size_t i = 0; i < events.list.n; i++) {
        const dh_step_event *e = &events.list.at[i];
        const tune_slot *slot = &t.table->slots[n];
        if (e->kind != DH_STEP_SLOT && e->kind != DH_STEP_TRANSFER) continue;
        number[i] = n++;
        assert_true(slot->rank == e->rank && slot->peer == e->peer);
        for (int k = 0; k < 2; k++)
            assert_int_equal(slot->need[k], e->need[k] < 0 ? -1 : number[e->need[k]]);
        if (e->kind != DH_STEP_SLOT) continue;
        const int32_t reduce = e->use[s->slots[e->slot].n_actions - 1].reduce;
        const bool during = reduce >= 0 && events.list.at[reduce].when == DH_REDUCE_DURING;
        assert_int_equal(t.table->classes[slot->cls].last, during);
    }
    assert_int_equal(n, t.table->n_slots);
    free(number);
    dh_step_events_fini(&events);
    release(&t);
}

static void test_timetables_are_of_the_events(void **state)
{
    (void)state;
    each_row(same_as_events);
}

static void continues_straight(const dh_schedule_row *row, int32_t p)
{
    const int32_t settled = p * dh_schedule_settles(row);
    timed once = time_schedule(schedule_of(row, p, settled));
    timed twice = time_schedule(schedule_of(row, p, 2 * settled));
    timed many = time_schedule(schedule_of(row, p, 16 * settled));
    for (int32_t r = 0; r < p; r++) {
        const double end = twice.ends[r].end_ns + 14 * (twice.ends[r].end_ns - once.ends[r].end_ns);
        const double off = end / many.ends[r].end_ns - 1;
        if (fabs(off) > .01) fail_msg("%s: rank %d ends %+.4f off", row->name, r, off);
        assert_true(twice.peaks[r] + 14 * (twice.peaks[r] - once.peaks[r]) == many.peaks[r]);
    }
    release(&once);
    release(&twice);
    release(&many);
}

static void test_many_micro_batches_continue_a_straight_line(void **state)
{
    (void)state;
    each_row(continues_straight);
}

/* Two stages and one micro-batch, by hand: F, transfer, F B, transfer, B. */
static void test_transfers_by_hand(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    const int64_t layers[] = {1, 1};
    double scratch[16];
    assert_ok(&ctx, dh_schedule_find(&ctx, "1f1b", &row));
    dh_schedule *s = schedule_of(row, 2, 1);
    timed t = {.arena = dh_arena_create(), .schedule = s};
    assert_ok(&ctx, tune_timetable_make(&ctx, t.arena, s, NULL, layers, &t.table));
    assert_int_equal(t.table->n_slots, 6);
    tune_slot_cost costs[8];
    for (int32_t c = 0; c < t.table->n_classes; c++) costs[c] = cost_of(&t.table->classes[c]);
    tune_timetable_run(t.table, costs, (tune_transfer){.ns = 50}, NULL, scratch, t.ends);
    assert_true(t.ends[1].end_ns == 1000 + 50 + 1000 + 2000);
    assert_true(t.ends[0].end_ns == 1000 + 50 + 1000 + 2000 + 50 + 2000);
    assert_true(t.ends[0].busy_ns == 3000);
    release(&t);
}

/* Two stages and two micro-batches: a transfer of 50 slows what is computed beside it down by 25.
 * The first stage's second forward is beside the first one's transfer; the second stage's first
 * backward and second forward are beside one each; what waits for longer than a transfer takes
 * loses nothing. */
static void test_transfers_slow_down(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    const int64_t layers[] = {1, 1};
    double scratch[16];
    assert_ok(&ctx, dh_schedule_find(&ctx, "1f1b", &row));
    dh_schedule *s = schedule_of(row, 2, 2);
    timed t = {.arena = dh_arena_create(), .schedule = s};
    assert_ok(&ctx, tune_timetable_make(&ctx, t.arena, s, NULL, layers, &t.table));
    assert_int_equal(t.table->n_slots, 12);
    tune_slot_cost costs[8];
    for (int32_t c = 0; c < t.table->n_classes; c++) costs[c] = cost_of(&t.table->classes[c]);
    const tune_transfer transfer = {.ns = 50, .slows = 0.5};
    tune_timetable_run(t.table, costs, transfer, NULL, scratch, t.ends);
    assert_true(t.ends[1].end_ns == 1050 + 1000 + 2025 + 1025 + 2000);
    assert_true(t.ends[0].end_ns == t.ends[1].end_ns + 50 + 2000);
    assert_true(t.ends[0].busy_ns == 6000);
    release(&t);
}

/* Two stages of two blocks and a backward of 100 each, of which 40 and then 100 are to be reduced;
 * beside each other both go at half speed. The second stage's result is waited for: it reduces behind its
 * backward. The first one's goes on for 50, then 80 beside the first reduction, and 10 more: 140.
 */
static void reductions_slow_down_a_backward(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    assert_ok(&ctx, dh_schedule_find(&ctx, "1f1b", &row));
    timed t = time_schedule(schedule_of(row, 2, 4));
    double ends[64] = {0};
    tune_slot_cost costs[64] = {{0}};
    tune_exchange blocks[] = {{.reduce_ns = 100, .n_pieces = 1}, {.reduce_ns = 40, .n_pieces = 1}};
    tune_outline outline = {.blocks = blocks, .backward_speed = .5, .reduction_speed = .5};
    const tune_outline *outlines[] = {&outline, &outline};
    const tune_times times = {.f = {.layers[0] = {25, 25}, .embed = 25, .head = 25},
                              .b = {.layers[0] = {50, 50}, .embed = 50, .head = 50}};
    tuner at_hand = {.scratch = ends};
    const estimate e = {.t = &at_hand,
                        .long_one = t.table,
                        .basis.times = &times,
                        .costs = costs,
                        .outlines = outlines};
    int n_slowed = 0;
    for (int32_t c = 0; c < t.table->n_classes; c++) {
        const tune_class *cls = &t.table->classes[c];
        const double ns = cls->kind == DH_PIPE_F ? 50 : 100;
        costs[c] = (tune_slot_cost){.ns = ns};
        assert_ok(&ctx, tune_reductions_beside(&e, t.table, cls, &costs[c]));
        assert_true(fabs(costs[c].delay_ns - (cls->last ? 40 : 0)) < 1e-9);
        n_slowed += cls->last;
    }
    assert_int_equal(n_slowed, 1);
    assert_true(t.table->n_slots <= 64);
    tune_behind behind[2];
    for (int32_t stage = 0; stage < 2; stage++)
        behind[stage] = tune_reductions_behind(&e, t.table, stage);
    tune_timetable_run(t.table, costs, (tune_transfer){0}, behind, ends, t.ends);
    assert_true(fabs(t.ends[0].left_ns - 100) < 1e-9);
    assert_true(fabs(t.ends[1].left_ns - 140) < 1e-9);
    dh_vec_fini(&at_hand.comms);
    release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timetables_time_as_schedules_do),
        cmocka_unit_test(test_timetables_are_of_the_events),
        cmocka_unit_test(test_many_micro_batches_continue_a_straight_line),
        cmocka_unit_test(reductions_slow_down_a_backward),
        cmocka_unit_test(test_transfers_by_hand),
        cmocka_unit_test(test_transfers_slow_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
