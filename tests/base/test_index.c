/* Numbers by hash and values by key, beside a search through all of them. */
#include "dh_test.h"

#include <stdlib.h>

#include "base/table.h"

enum { MANY = 5000 };

static uint32_t find(const dh_index *index, const uint64_t *names, uint64_t hash, uint64_t name)
{
    size_t at = 0;
    uint32_t i = dh_index_first(index, hash, &at);
    while (i != DH_NONE && names[i] != name) i = dh_index_next(index, hash, &at);
    return i;
}

/* Hashes: all different; a few, so that most are shared; one, so that all are. */
static void numbers_are_found_by_what_they_name(void **state)
{
    (void)state;
    static uint64_t names[MANY];
    static const uint64_t n_hashes[] = {UINT64_MAX, 37, 1};
    static const size_t n_names[] = {MANY, MANY, 300};
    for (size_t k = 0; k < DH_COUNTOF(n_hashes); k++) {
        dh_index index = {0};
        assert_int_equal(find(&index, names, 0, 0), DH_NONE);
        for (uint32_t i = 0; i < n_names[k]; i++) {
            names[i] = 3 * (uint64_t)i;
            assert_true(dh_index_add(&index, dh_mix64(names[i]) % n_hashes[k], i));
        }
        assert_int_equal(index.n, n_names[k]);
        assert_true(2 * index.n <= index.n_places);
        for (uint64_t name = 0; name < 3 * n_names[k] + 3; name++) {
            const uint32_t want =
                name % 3 == 0 && name / 3 < n_names[k] ? (uint32_t)(name / 3) : DH_NONE;
            assert_int_equal(find(&index, names, dh_mix64(name) % n_hashes[k], name), want);
        }
        dh_index_clear(&index);
        assert_int_equal(find(&index, names, dh_mix64(0) % n_hashes[k], 0), DH_NONE);
        dh_index_fini(&index);
    }
}

/* Keys of any length, those that begin alike and those of zeros included. */
static void values_are_found_by_key(void **state)
{
    (void)state;
    enum { LONGEST = 40 };
    static unsigned char bytes[LONGEST + 1];
    static int values[2][LONGEST + 1];
    dh_table table = {0};
    dh_arena *arena = dh_arena_create();
    assert_non_null(arena);
    for (int pass = 0; pass < 2; pass++)
        for (int last = 0; last < 2; last++)
            for (size_t n = 1; n <= LONGEST; n++) {
                bytes[n - 1] = (unsigned char)last;
                void **place = dh_table_at(&table, arena, bytes, n);
                assert_non_null(place);
                assert_ptr_equal(*place, pass ? &values[last][n] : NULL);
                *place = &values[last][n];
                bytes[n - 1] = 0;
            }
    assert_int_equal(table.rows.n, 2 * LONGEST);
    dh_table_fini(&table);
    dh_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_found_by_what_they_name),
        cmocka_unit_test(values_are_found_by_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
