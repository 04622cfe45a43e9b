/* Chains of ranks that wait, by hand: whoever waits for nobody is named, however far away. */
#include "dh_test.h"

#include "run/comm/impl.h"

enum { N = 64 };

static dh_comm_state states[N];
static bool missing[N];

static void all_idle(void)
{
    for (int r = 0; r < N; r++) {
        dh_comm_state_begin(&states[r]);
        dh_comm_state_end(&states[r], 0);
        missing[r] = false;
    }
}

static void waits(int rank, int for_rank)
{
    char text[DH_COMM_CALL_TEXT_BYTES];
    dh_comm_state_begin(&states[rank]);
    snprintf(text, sizeof text, "all_gather #%d of group tp (ranks 0 1 2 3 4 5 6 7 ... 63)", rank);
    dh_comm_state_wait(&states[rank], 1, text);
    dh_comm_state_await(&states[rank], for_rank);
    dh_comm_state_end(&states[rank], 0);
}

static void expect(const char *want)
{
    dh_str out = DH_STR_INIT;
    dh_comm_print_culprits(states, N, 0, missing, NULL, &out);
    assert_string_equal(out.text, want);
    dh_str_fini(&out);
}

#define WAITS(rank)                                                                                \
    " rank " #rank " (waiting in all_gather #" #rank " of group tp (ranks 0 1 2 3 "                \
    "4 5 6 7 ... 63))"

static void the_end_of_a_long_chain_is_named(void **state)
{
    all_idle();
    for (int r = 0; r < 63; r++) waits(r, r + 1);
    missing[1] = true;
    expect(WAITS(1) ", for want of" WAITS(2) ", for want of" WAITS(
        3) ", for want of 58 more, one "
           "after the other, for want of" WAITS(62) ", for want of rank 63 (no call yet)");
    waits(2, 63);
    expect(WAITS(1) ", for want of" WAITS(2) ", for want of rank 63 (no call yet)");
}

/* Every rank of a large group waits for one: it is told once, and nobody else. */
static void one_of_many_is_named_alone(void **state)
{
    all_idle();
    for (int r = 0; r < N; r++)
        if (r != 37) waits(r, 37);
    for (int r = 1; r < N; r++) missing[r] = r % 2;
    expect(" rank 37 (no call yet)");
    missing[37] = false;
    expect(WAITS(1) ", for want of rank 37 (no call yet)");
}

static void several_are_named(void **state)
{
    all_idle();
    missing[5] = missing[9] = true;
    waits(9, 20);
    expect(" rank 5 (no call yet), and" WAITS(9) ", for want of rank 20 (no call yet)");
    for (int r = 40; r < 46; r++) missing[r] = true;
    expect(" rank 5 (no call yet), and rank 40 (no call yet), and rank 41 (no call yet), and "
           "rank 42 (no call yet), and 4 more");
}

static void a_circle_has_no_end(void **state)
{
    all_idle();
    waits(0, 1);
    waits(1, 2);
    waits(2, 0);
    missing[1] = true;
    expect(WAITS(1) WAITS(2) "; they wait for one another");
}

/* Rank 0 waits for a gradient of rank 1 on one stream, and on another for rank 2, without which it
 * sends rank 1 nothing. */
static void a_chain_through_the_teller_has_an_end(void **state)
{
    bool lost[N];
    dh_str out = DH_STR_INIT;
    all_idle();
    missing[1] = true;
    waits(1, 0);
    dh_comm_state_begin(&states[0]);
    dh_comm_state_wait(&states[0], 1, "a");
    dh_comm_state_await(&states[0], 1);
    dh_comm_state_wait(&states[0], 2, "b");
    dh_comm_state_await(&states[0], 2);
    dh_comm_state_end(&states[0], 0);
    expect(
        WAITS(1) ", for want of rank 0 (waiting in a and in b), for want of rank 2 (no call yet)");
    dh_comm_print_culprits(states, N, 0, missing, lost, &out);
    for (int r = 0; r < N; r++) assert_int_equal(lost[r], r == 2);
    waits(2, 1);
    dh_str_fini(&out);
    expect(WAITS(1) WAITS(2) "; they wait for one another");
    dh_comm_state_end(&states[0], 1); /* the teller computes, or hangs there, as well */
    expect(WAITS(1) ", for want of rank 0 (computing)");
    dh_str again = DH_STR_INIT;
    dh_comm_print_culprits(states, N, 0, missing, lost, &again);
    for (int r = 0; r < N; r++) assert_int_equal(lost[r], r == 0);
    dh_str_fini(&again);
}

static void computing_beside_a_wait_is_computing(void **state)
{
    all_idle();
    missing[1] = true;
    waits(1, 0);
    assert_true(dh_comm_state_end(&states[1], 1u << 1)); /* inside the call that waits */
    assert_false(dh_comm_state_end(&states[1], 1u << 1 | 1u << 0));
    expect(" rank 1 (computing)");
}

static void several_calls_of_a_rank_count(void **state)
{
    all_idle();
    missing[1] = true;
    dh_comm_state_begin(&states[1]);
    dh_comm_state_wait(&states[1], 1, "a");
    dh_comm_state_await(&states[1], 2);
    dh_comm_state_wait(&states[1], 2, "b");
    dh_comm_state_await(&states[1], 3);
    dh_comm_state_await(&states[1], 3);
    assert_true(dh_comm_state_end(&states[1], 0));
    assert_int_equal(states[1].n_awaited, 2);
    waits(2, 0);
    expect(" rank 1 (waiting in a and in b), for want of rank 3 (no call yet)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_long_chain_is_named),
        cmocka_unit_test(one_of_many_is_named_alone),
        cmocka_unit_test(several_are_named),
        cmocka_unit_test(a_circle_has_no_end),
        cmocka_unit_test(a_chain_through_the_teller_has_an_end),
        cmocka_unit_test(computing_beside_a_wait_is_computing),
        cmocka_unit_test(several_calls_of_a_rank_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
