/* What is alive when, worked by hand: walks, storage handed on, curves. */
#include "dh_test.h"

#include "base/live.h"

/* 0: there before, used by the first; 1: made by the first for the second; 2: made by the second,
 * outlasts it; 3: made and used by the first alone. */
static const dh_live_storage four[] = {
    {8, 1, true, false}, {4, 2, false, false}, {16, 1, false, true}, {2, 1, false, false}};
static const uint32_t first[] = {0, 1, 3}, second[] = {1, 2};

static void a_walk_holds_from_first_use_to_last(void **state)
{
    (void)state;
    dh_live_storage at[4];
    dh_live live;
    memcpy(at, four, sizeof at);
    dh_live_begin(&live, at, 4);
    assert_int_equal(live.n_bytes, 8);
    assert_int_equal(dh_live_with(&live, first, 3), 14);
    assert_int_equal(live.n_bytes, 8); /* asking changes nothing */
    dh_live_use(&live, first, 3);
    assert_int_equal(live.n_bytes, 4);
    assert_int_equal(dh_live_with(&live, second, 2), 20);
    dh_live_use(&live, second, 2);
    assert_int_equal(live.n_bytes, 16);
    assert_true(at[2].alive && !at[0].alive && !at[1].alive && !at[3].alive);
}

static void an_input_that_dies_hands_its_storage_on(void **state)
{
    (void)state;
    static const uint32_t both[] = {0, 1};
    dh_live_storage at[] = {{8, 1, true, false}, {8, 1, false, true}};
    dh_live live;
    dh_live_begin(&live, at, 2);
    assert_int_equal(dh_live_with(&live, both, 2), 16);
    assert_true(dh_live_can_hand_on(&live, 0, 1));
    dh_live_hand_on(&live, 0, 1);
    assert_int_equal(dh_live_with(&live, both, 2), 8);
    dh_live_use(&live, both, 2);
    assert_true(live.n_bytes == 8 && at[1].alive && !at[0].alive);
}

static void storage_that_is_wanted_is_not_handed_on(void **state)
{
    (void)state;
    /* the input: used again, wanted later, not alive; the output: alive already, of another size */
    static const dh_live_storage refused[][2] = {{{8, 2, true, false}, {8, 1, false, false}},
                                                 {{8, 1, true, true}, {8, 1, false, false}},
                                                 {{8, 1, false, false}, {8, 1, false, false}},
                                                 {{8, 1, true, false}, {8, 1, true, false}},
                                                 {{8, 1, true, false}, {4, 1, false, false}}};
    for (size_t i = 0; i < DH_COUNTOF(refused); i++) {
        dh_live_storage at[2];
        dh_live live;
        memcpy(at, refused[i], sizeof at);
        dh_live_begin(&live, at, 2);
        assert_false(dh_live_can_hand_on(&live, 0, 1));
    }
}

static void a_curve_takes_a_moment_as_one(void **state)
{
    (void)state;
    /* 5 from 0 to 20, 3 of scratch from 10 to 20, 4 from 20 to 30: never beside the others; 7 that
     * begin as 7 others end at 25 */
    dh_live_point p[] = {{20, {4, 0}},  {0, {5, 0}},  {10, {0, 3}}, {20, {-5, 0}}, {20, {0, -3}},
                         {30, {-4, 0}}, {25, {7, 0}}, {22, {7, 0}}, {25, {-7, 0}}, {30, {-7, 0}}};
    static const dh_live_point want[] = {
        {0, {5, 0}}, {10, {5, 3}}, {20, {4, 0}}, {22, {11, 0}}, {30, {0, 0}}};
    assert_true(dh_live_sort(p, DH_COUNTOF(p)));
    assert_int_equal(dh_live_sum(p, DH_COUNTOF(p)), DH_COUNTOF(want));
    assert_memory_equal(p, want, sizeof want);
    const dh_live_point *most = dh_live_highest(p, DH_COUNTOF(want));
    assert_true(most == &p[3] && dh_live_total(most) == 11);
    assert_ptr_equal(dh_live_highest(p, 2), &p[1]);
    assert_null(dh_live_highest(&p[4], 1));
    assert_int_equal(dh_live_sum(p, 0), 0);
}

/* Moments that differ in any of their digits, below zero too. */
static void changes_come_by_moment(void **state)
{
    (void)state;
    enum { N = 1000 };
    static dh_live_point p[N];
    int64_t bytes = 0;
    uint64_t seed = 1;
    assert_true(dh_live_sort(p, 0));
    for (int bits = 0; bits < 64; bits++) {
        for (int i = 0; i < N; i++)
            p[i] = (dh_live_point){(int64_t)(seed = dh_mix64(seed)) >> bits, {i, 0}};
        assert_true(dh_live_sort(p, N));
        for (int i = 1; i < N; i++) assert_true(p[i - 1].at <= p[i].at);
        for (int i = 0; i < N; i++) bytes += p[i].bytes[0];
        assert_int_equal(bytes, (bits + 1) * N * (N - 1) / 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_walk_holds_from_first_use_to_last),
        cmocka_unit_test(an_input_that_dies_hands_its_storage_on),
        cmocka_unit_test(storage_that_is_wanted_is_not_handed_on),
        cmocka_unit_test(a_curve_takes_a_moment_as_one),
        cmocka_unit_test(changes_come_by_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
