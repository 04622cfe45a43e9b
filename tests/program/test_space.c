/* Bytes in use over time: random uses and queries against a plain list of them. */
#include "dh_test.h"

#include "program/space.h"

enum { MAX_USES = 400 };

typedef struct use {
    uint32_t t0, t1;
    uint64_t lo, hi;
} use;

static bool is_free(const use *uses, size_t n, dh_space_span span, uint64_t lo, uint64_t hi)
{
    for (size_t i = 0; i < n; i++)
        if (uses[i].t0 < span.t1 && span.t0 < uses[i].t1 && uses[i].lo < hi && lo < uses[i].hi)
            return false;
    return true;
}

static uint64_t lowest(const use *uses[2], const size_t n[2], const dh_space_span spans[2],
                       uint64_t from, uint64_t n_bytes)
{
    for (uint64_t at = from;; at++)
        if (is_free(uses[0], n[0], spans[0], at, at + n_bytes) &&
            is_free(uses[1], n[1], spans[1], at, at + n_bytes))
            return at;
}

static void agrees_with_a_list(void **state)
{
    uint64_t seed = test_seed("agrees_with_a_list");
    static use lists[2][MAX_USES];
    for (int turn = 0; turn < 20; turn++) {
        const uint32_t n_times = 1 + (uint32_t)(test_rand(&seed) % 100);
        dh_space *spaces[2] = {dh_space_create(n_times), dh_space_create(n_times)};
        size_t n[2] = {0, 0};
        for (int i = 0; i < MAX_USES; i++) {
            dh_space_span spans[2];
            for (int k = 0; k < 2; k++) {
                const uint32_t t0 = (uint32_t)(test_rand(&seed) % n_times);
                const uint32_t t1 = t0 + 1 + (uint32_t)(test_rand(&seed) % (n_times - t0));
                spans[k] = (dh_space_span){spaces[k], t0, t1};
            }
            const uint64_t from = test_rand(&seed) % 5, n_bytes = 1 + test_rand(&seed) % 30;
            const uint64_t at = dh_space_lowest(spans, 2, from, n_bytes);
            const use *uses[2] = {lists[0], lists[1]};
            assert_int_equal(at, lowest(uses, n, spans, from, n_bytes));
            const int k = (int)(test_rand(&seed) % 2);
            const uint64_t lo = test_rand(&seed) % 3 ? at : test_rand(&seed) % 200;
            assert_true(dh_space_use(spaces[k], spans[k].t0, spans[k].t1, lo, lo + n_bytes));
            lists[k][n[k]++] = (use){spans[k].t0, spans[k].t1, lo, lo + n_bytes};
        }
        for (int k = 0; k < 2; k++) dh_space_destroy(spaces[k]);
    }
}

static void nothing_in_use(void **state)
{
    dh_space *space = dh_space_create(0);
    assert_non_null(space);
    const dh_space_span spans[] = {{NULL, 0, 5}, {space, 0, 1}};
    assert_int_equal(dh_space_lowest(spans, 2, 64, 1000), 64);
    dh_space_destroy(space);
    dh_space_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_list),
        cmocka_unit_test(nothing_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
