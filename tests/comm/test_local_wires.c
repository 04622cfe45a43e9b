/* Sharing of paced wires, by times that are given: no clock is read. */
#include "dh_test.h"

#include "run/comm/local_wires.h"

enum { RANKS = 4, MAX_TRANSFERS = 4, MAX_MEMBERS = 3 };

/* Begins at `from`, takes `ns` alone; among all members, or from the first to the second. */
typedef struct transfer_row {
    dh_engine wire;
    int members[MAX_MEMBERS], n;
    bool one_way;
    int64_t from, ns, end; /* end: what is expected */
} transfer_row;

typedef struct wires_case {
    const char *what;
    transfer_row rows[MAX_TRANSFERS];
    size_t n;
} wires_case;

#define LOCAL DH_ENGINE_LOCAL
#define CROSS DH_ENGINE_CROSS

static const wires_case cases[] = {
    {"one alone", {{CROSS, {0, 1}, 2, false, 50, 100, 150}}, 1},
    {"two at once go at half speed",
     {{CROSS, {0, 1}, 2, false, 0, 100, 200}, {CROSS, {0, 1}, 2, false, 0, 100, 200}},
     2},
    {"a short one beside a long one takes twice its time, not the long one's",
     {{CROSS, {0, 1}, 2, false, 0, 1000, 1100}, {CROSS, {0, 1}, 2, false, 100, 100, 300}},
     2},
    {"three: thirds, then halves, then all",
     {{CROSS, {0, 1}, 2, false, 0, 100, 180},
      {CROSS, {0, 1}, 2, false, 0, 20, 60},
      {CROSS, {0, 1}, 2, false, 0, 60, 140}},
     3},
    {"as the fullest wire lets it: rank 1 is in both",
     {{CROSS, {0, 1}, 2, false, 0, 100, 200},
      {CROSS, {1, 2}, 2, false, 0, 100, 200},
      {CROSS, {3, 2}, 2, true, 0, 10, 20}},
     3},
    {"there and back are two wires",
     {{CROSS, {0, 1}, 2, true, 0, 100, 100}, {CROSS, {1, 0}, 2, true, 0, 100, 100}},
     2},
    {"so are the two links",
     {{CROSS, {0, 1}, 2, false, 0, 100, 100}, {LOCAL, {0, 1}, 2, false, 0, 100, 100}},
     2},
    {"to two others: the sender's wire is shared",
     {{CROSS, {0, 1}, 2, true, 0, 100, 200}, {CROSS, {0, 2}, 2, true, 0, 100, 200}},
     2},
    {"one behind the other",
     {{CROSS, {0, 1, 2}, 3, false, 0, 100, 100}, {CROSS, {0, 1, 2}, 3, false, 100, 7, 107}},
     2},
    {"nothing takes no time",
     {{CROSS, {0, 1}, 2, false, 0, 100, 100}, {CROSS, {0, 1}, 2, false, 30, 0, 30}},
     2},
};

static local_way way_of(const transfer_row *t)
{
    if (t->one_way) return (local_way){t->wire, &t->members[0], &t->members[1], 1, 1};
    return (local_way){t->wire, t->members, t->members, t->n, t->n};
}

/* Asked at every `every` ns by the time that has come; each end is final when it is past. */
static void run_case(const wires_case *c, int64_t every)
{
    local_wires w;
    local_ticket tickets[MAX_TRANSFERS];
    int64_t ends[MAX_TRANSFERS] = {0}, last = 0;
    size_t n = 0;
    assert_true(local_wires_init(&w, RANKS));
    for (int64_t now = 0; now <= 2000; now++) {
        for (; n < c->n && c->rows[n].from == now; n++)
            tickets[n] = local_wires_begin(&w, way_of(&c->rows[n]), now, c->rows[n].ns, 5);
        for (size_t i = 0; now % every == 0 && i < n; i++) {
            const int64_t end = local_wires_when(&w, tickets[i], 1, now);
            assert_true(end >= ends[i] || end == 0); /* put off, never brought forward */
            if (end == 0) assert_true(ends[i] + 5 < now);
            if (end != 0) ends[i] = end;
            last = DH_MAX(last, ends[i]);
        }
    }
    for (size_t i = 0; i < c->n; i++)
        if (ends[i] != c->rows[i].end)
            fail_msg("%s: transfer %zu ends at %lld, not %lld", c->what, i, (long long)ends[i],
                     (long long)c->rows[i].end);
    assert_int_equal(local_wires_when(&w, tickets[0], 1, last + 3000), 0);
    assert_int_equal(w.flows.n, 0);
    local_wires_fini(&w);
}

static void transfers_share_their_wires(void **state)
{
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        run_case(&cases[i], 1);
        run_case(&cases[i], 10);
    }
}

/* Whoever asks late is told the same: what has ended has, however busy the machine is. */
static void late_questions_change_nothing(void **state)
{
    (void)state;
    const int pair[2] = {0, 1};
    const local_way way = {CROSS, pair, pair, 2, 2};
    local_wires w;
    assert_true(local_wires_init(&w, RANKS));
    const local_ticket longer = local_wires_begin(&w, way, 0, 1000, 5000);
    const local_ticket shorter = local_wires_begin(&w, way, 100, 100, 5000);
    assert_int_equal(local_wires_when(&w, shorter, 1, 4000), 300);
    assert_int_equal(local_wires_when(&w, longer, 1, 4000), 1100);
    const local_ticket past = local_wires_begin(&w, way, 3000, 10, 0);
    assert_int_equal(local_wires_when(&w, past, 1, 4000), 4010); /* from when the account stands */
    local_wires_fini(&w);
}

/* Parts of a transfer are there as it goes, however fast that is. */
static void a_share_passes_before_the_end(void **state)
{
    (void)state;
    const int pair[2] = {0, 1};
    const local_way way = {CROSS, pair, pair, 2, 2};
    local_wires w;
    assert_true(local_wires_init(&w, RANKS));
    const local_ticket first = local_wires_begin(&w, way, 0, 100, 0);
    assert_int_equal(local_wires_when(&w, first, .25, 0), 25);
    const local_ticket second = local_wires_begin(&w, way, 20, 100, 0);
    assert_int_equal(local_wires_when(&w, first, .25, 20), 30);  /* 5 ns at half speed */
    assert_int_equal(local_wires_when(&w, second, .5, 20), 120); /* 50 ns at half speed */
    assert_int_equal(local_wires_when(&w, second, .9, 20),
                     190); /* 80 to the other's end, 10 more */
    assert_true(local_wires_when(&w, first, .25, 40) <= 40);
    assert_int_equal(local_wires_when(&w, second, 1, 40), 200);
    local_wires_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_share_their_wires),
        cmocka_unit_test(late_questions_change_nothing),
        cmocka_unit_test(a_share_passes_before_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
