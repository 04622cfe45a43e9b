/* Where groups of lengths may end: halves of the longest, and where a list's documents do. */
#include "dh_test.h"

#include "data/groups.h"
#include "tune/length_cuts.h"

typedef struct hump {
    int64_t low, high, n; /* documents, evenly from low to high */
} hump;

static size_t cut(const hump *humps, size_t n_humps, int64_t seq_len, int64_t cuts[DH_LENGTH_CUTS])
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds;
    DH_VEC(int64_t) lengths = {0};
    size_t n;
    for (size_t h = 0; h < n_humps; h++)
        for (int64_t i = 0; i < humps[h].n; i++)
            assert_true(dh_vec_push(&lengths, humps[h].low + (humps[h].high - humps[h].low) * i /
                                                                 (humps[h].n - 1)));
    assert_ok(&ctx, dh_dataset_of_lengths(&ctx, lengths.at, lengths.n, seq_len, 1, &ds));
    assert_ok(&ctx,
              dh_length_cuts_find(&ctx, ds, seq_len, dh_dataset_windows(ds, seq_len), cuts, &n));
    printf(" ");
    for (size_t i = 0; i < n; i++) printf(" %lld", (long long)cuts[i]);
    printf("\n");
    dh_dataset_close(ds);
    dh_vec_fini(&lengths);
    assert_int_equal(cuts[n - 1], seq_len);
    for (size_t i = 1; i < n; i++) assert_true(cuts[i - 1] < cuts[i]);
    return n;
}

static bool has(const int64_t *cuts, size_t n, int64_t cut)
{
    for (size_t i = 0; i < n; i++)
        if (cuts[i] == cut) return true;
    return false;
}

/* Both humps lie between the same halves, 4,096 and 8,192, and are cut behind the first, whichever
 * of them has more tokens. */
static void two_humps_are_cut_between_them(void **state)
{
    static const int64_t sizes[][2] = {{400, 400}, {1000, 100}, {150, 1000}};
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++) {
        const hump humps[] = {{4300, 5000, sizes[i][0]}, {7000, 8000, sizes[i][1]}};
        int64_t cuts[DH_LENGTH_CUTS];
        const size_t n = cut(humps, 2, 8192, cuts);
        for (int64_t half = 512; half <= 8192; half *= 2) assert_true(has(cuts, n, half));
        assert_true(has(cuts, n, 5120));
    }
}

/* What is worth no cut gets none: documents that end at halves, or below the shortest. */
static void halves_are_enough_for_others(void **state)
{
    static const hump at_halves[] = {{512, 512, 50}, {4096, 4096, 50}, {8192, 8192, 50}};
    static const hump brief[] = {{10, 500, 1000}};
    int64_t cuts[DH_LENGTH_CUTS];
    assert_int_equal(cut(at_halves, 3, 8192, cuts), 5);
    assert_int_equal(cut(brief, 1, 8192, cuts), 5);
}

/* Lengths that are no power of two, or short: halves end where they are no whole numbers. */
static void any_longest_length_will_do(void **state)
{
    static const hump humps[] = {{100, 12000, 500}};
    static const int64_t lengths[] = {300, 1000, 1023, 5000, 12288, 100000, 131072};
    for (size_t i = 0; i < DH_COUNTOF(lengths); i++) {
        int64_t cuts[DH_LENGTH_CUTS];
        const size_t n = cut(humps, 1, lengths[i], cuts);
        assert_in_range(n, 1, DH_LENGTH_CUTS);
        for (size_t k = 0; k + 1 < n; k++) /* a half, or a multiple of a power of two */
            assert_true(lengths[i] % cuts[k] == 0 || cuts[k] % 64 == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_humps_are_cut_between_them),
        cmocka_unit_test(halves_are_enough_for_others),
        cmocka_unit_test(any_longest_length_will_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
