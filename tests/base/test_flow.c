/* Flows of work, worked by hand: speeds beside each other, ends, and what does not progress. */
#include "dh_test.h"

#include "base/flow.h"

enum { MAX = 4 };

/* Runs n flows to their ends, each pair at the speeds of beside[a][b] (a beside b). */
static void run(size_t n, const double *work, const double beside[MAX][MAX], double *end)
{
    size_t at[MAX], n_left = n;
    dh_flow flows[MAX];
    double now = 0;
    for (size_t i = 0; i < n; i++) {
        at[i] = i;
        flows[i].left_ns = work[i];
    }
    while (n_left > 0) {
        for (size_t a = 0; a < n_left; a++) {
            flows[a].speed = 1;
            for (size_t b = 0; b < n_left; b++)
                if (b != a) flows[a].speed = dh_flow_beside(flows[a].speed, beside[at[a]][at[b]]);
        }
        dh_flows_settle(flows, n_left);
        now += dh_flows_step(flows, n_left);
        size_t kept = 0;
        for (size_t i = 0; i < n_left; i++) {
            if (dh_flow_is_done(&flows[i])) {
                end[at[i]] = now;
                continue;
            }
            at[kept] = at[i];
            flows[kept++] = flows[i];
        }
        assert_true(kept < n_left); /* every step ends a flow */
        n_left = kept;
    }
}

static void expect(size_t n, const double *work, const double beside[MAX][MAX], const double *want)
{
    double end[MAX];
    run(n, work, beside, end);
    for (size_t i = 0; i < n; i++)
        if (fabs(end[i] - want[i]) > 1e-9)
            fail_msg("flow %zu ends at %.12g, want %.12g", i, end[i], want[i]);
}

static void speeds_multiply(void **state)
{
    (void)state;
    assert_true(dh_flow_beside(1, .5) == .5);
    assert_true(dh_flow_beside(dh_flow_beside(1, .5), .8) == .4);
    assert_true(dh_flow_beside(dh_flow_beside(1, 1.5), .5) == .75);
    /* [0,100): .5 * .8 = .4, .5, .25. [100,300): .8, .25. [300,310): 1. */
    expect(3, (double[]){200, 50, 85},
           (const double[MAX][MAX]){{1, .5, .8}, {.5, 1, 1}, {.25, 1, 1}},
           (double[]){300, 100, 310});
    /* each beside two at half its speed and one at full: a quarter */
    expect(4, (double[]){10, 10, 10, 10},
           (const double[MAX][MAX]){{1, .5, .5, 1}, {.5, 1, 1, .5}, {.5, 1, 1, .5}, {1, .5, .5, 1}},
           (double[]){40, 40, 40, 40});
}

static void the_lowest_counts_where_one_is_not_positive(void **state)
{
    (void)state;
    static const double rates[] = {.5, -.25, .8, -.125, 0};
    double speed = 1;
    for (size_t i = 0; i < DH_COUNTOF(rates); i++) speed = dh_flow_beside(speed, rates[i]);
    assert_true(speed == -.25);
    assert_true(dh_flow_beside(dh_flow_beside(1, 0), 2) == 0);
    /* the second loses a quarter of the first's 40: 30 + 10 after it */
    expect(2, (double[]){40, 30}, (const double[MAX][MAX]){{1, 1}, {-.25, 1}}, (double[]){40, 80});
}

static void where_none_progresses_the_first_does(void **state)
{
    (void)state;
    dh_flow flows[] = {{10, -1}, {10, 0}, {10, -.5}};
    dh_flows_settle(flows, 3);
    assert_true(flows[0].speed == 1 && flows[1].speed == 0 && flows[2].speed == 0);
    dh_flow one_does[] = {{10, -1}, {10, .001}};
    dh_flows_settle(one_does, 2);
    assert_true(one_does[0].speed == -1 && one_does[1].speed == .001);
    /* one after the other; nobody loses what it does not run for */
    expect(3, (double[]){10, 20, 30}, (const double[MAX][MAX]){{1, 0, -1}, {0, 1, -1}, {-1, -1, 1}},
           (double[]){10, 30, 60});
}

static void what_has_no_work_ends_at_once(void **state)
{
    (void)state;
    expect(2, (double[]){0, 30}, (const double[MAX][MAX]){{1, -1}, {1, 1}}, (double[]){0, 30});
    const dh_flow stuck = {1, 0}, done = {DH_FLOW_RESIDUE_NS / 2, -1};
    assert_true(isinf(dh_flow_needs(&stuck)) && dh_flow_needs(&done) == 0);
    assert_true(dh_flow_is_done(&done) && !dh_flow_is_done(&stuck));
}

static void speeds_follow_from_ends(void **state)
{
    (void)state;
    /* alone and beside each other; the second pair loses more than it does by itself */
    static const double cases[][4] = {
        {100, 50, 120, 80}, {100, 300, 400, 500}, {40, 40, 50, 50}, {30, 30, 30, 75}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (int swap = 0; swap < 2; swap++) {
            const double solo[] = {cases[i][swap], cases[i][!swap]};
            const double want[] = {cases[i][2 + swap], cases[i][3 - swap]};
            double speed[2], end[2];
            dh_flow_speeds(solo, want, speed);
            dh_flows_together((dh_flow[]){{solo[0], speed[0]}, {solo[1], speed[1]}}, end);
            assert_true(fabs(end[0] - want[0]) < 1e-9 && fabs(end[1] - want[1]) < 1e-9);
        }
    double speed[2], end[2];
    dh_flow_speeds((double[]){30, 30}, (double[]){30, 75}, speed);
    assert_true(speed[0] == 1 && speed[1] == -.5);
    dh_flows_together((dh_flow[]){{30, -1}, {20, -2}}, end);
    assert_true(end[0] == 30 && end[1] == 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speeds_multiply),
        cmocka_unit_test(the_lowest_counts_where_one_is_not_positive),
        cmocka_unit_test(where_none_progresses_the_first_does),
        cmocka_unit_test(what_has_no_work_ends_at_once),
        cmocka_unit_test(speeds_follow_from_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
