/* Lengths of documents from files: lists and histograms, with headings and without, and what is
 * wrong with them. */
#include "dh_test.h"

#include "data/lengths.h"

static char dir[256];

static dh_status read_text(dh_ctx *ctx, const char *text, dh_lengths *lengths)
{
    char path[300];
    dh_ctx_reset(ctx);
    snprintf(path, sizeof path, "%s/lengths", dir);
    assert_ok(ctx, dh_file_write_atomic(ctx, path, text, strlen(text)));
    return dh_lengths_read(ctx, path, lengths);
}

static int64_t n_between(const dh_lengths *l, int64_t low, int64_t high)
{
    int64_t n = 0;
    for (size_t i = 0; i < l->of.n; i++) n += l->of.at[i] > low && l->of.at[i] <= high;
    return n;
}

static void lines_say_what_they_are(void **state)
{
    static const struct {
        const char *text, *says;
        size_t n;
        int64_t first, last, sum;
    } files[] = {
        {"5\n33\n\n40", "a list of 3 lengths, one a line", 3, 5, 40, 78},
        {"tokens\r\n5\r\n33\r\n", "a list of 2 lengths, one a line", 2, 5, 33, 38},
        {"# of a corpus\nlength\tcount\n7\t3\n9\t2\n",
         "a histogram of 2 lengths (length, count), documents: 5", 5, 7, 9, 39},
        {"7,3\n9, 2\n", "a histogram of 2 lengths (length, count), documents: 5", 5, 7, 9, 39},
        {"7 3\n 9   2 \n", "a histogram of 2 lengths (length, count), documents: 5", 5, 7, 9, 39},
        {"low,high,count\n0,8,2\n8,8,1\n", /* 2 and 6 of 8; from 8 to 8 is 8 */
         "a histogram of 2 ranges (low, high, count), documents: 3, spread evenly over the "
         "logarithm "
         "of length in each",
         3, 2, 8, 16},
        {"100\t400\t2\n", /* a quarter and three quarters of two octaves */
         "a histogram of 1 ranges (low, high, count), documents: 2, spread evenly over the "
         "logarithm "
         "of length in each",
         2, 142, 283, 425},
        {"10 0\n20 3\n", "a histogram of 2 lengths (length, count), documents: 3", 3, 20, 20, 60},
    };
    for (size_t i = 0; i < DH_COUNTOF(files); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_lengths l;
        char text[200];
        int64_t sum = 0;
        assert_ok(&ctx, read_text(&ctx, files[i].text, &l));
        assert_string_equal(dh_lengths_describe(&l, text, sizeof text), files[i].says);
        assert_int_equal(l.of.n, files[i].n);
        for (size_t k = 0; k < l.of.n; k++) sum += l.of.at[k];
        assert_int_equal(l.of.at[0], files[i].first);
        assert_int_equal(l.of.at[l.of.n - 1], files[i].last);
        assert_int_equal(sum, files[i].sum);
        dh_lengths_fini(&l);
    }
}

/* Published counts and shares of them are the same documents, in proportion, however many. */
static void many_documents_are_scaled_down(void **state)
{
    static const char *const files[] = {"tests/data/published/wikipedia_2023_lengths.tsv",
                                        NULL /* the same as shares */};
    for (size_t i = 0; i < DH_COUNTOF(files); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_lengths l;
        char text[200];
        if (files[i])
            assert_ok(&ctx, dh_lengths_read(&ctx, files[i], &l));
        else
            assert_ok(&ctx, read_text(&ctx,
                                      "0 1024 0.82384\n1024 2048 0.10744\n2048 4096 0.04659\n"
                                      "4096 8192 0.01645\n8192 16384 0.00474\n16384 32768 0.00075\n"
                                      "32768 65536 0.00019\n65536 128000 0.00001\n",
                                      &l));
        printf("  %s\n", dh_lengths_describe(&l, text, sizeof text));
        assert_int_equal(l.of.n, DH_LENGTHS_MOST);
        assert_non_null(strstr(text, files[i] ? "ranges (low, high, count), documents: 6458670, "
                                                "counted as 1048576, spread evenly"
                                              : "ranges (low, high, count), shares of 1"));
        const double n = (double)DH_LENGTHS_MOST;
        assert_true(fabs((double)n_between(&l, 0, 1024) / n - 5320881. / 6458670) < 1e-5);
        assert_true(fabs((double)n_between(&l, 8192, 16384) / n - 30611. / 6458670) < 1e-5);
        assert_in_range(n_between(&l, 65536, 128000), 6, 12);
        assert_int_equal(n_between(&l, 128000, INT64_MAX), 0);
        /* Evenly over the logarithm: half of an octave's documents lie below its square root. */
        const double low = (double)n_between(&l, 1024, 1448),
                     all = (double)n_between(&l, 1024, 2048);
        assert_true(fabs(low / all - 0.5) < 1e-3);
        dh_lengths_fini(&l);
    }
}

static void what_is_wrong_is_said(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"5\nlong\n",
         "lengths:2: \"long\": a document's number of tokens is wanted, one a line, or "
         "a histogram's lines"},
        {"length count\nmore words\n", "lengths:2: \"more words\""},
        {"5 1\n6\n", "lengths:2: lines before have length and count, and this one has a length"},
        {"0 5 1\n6 1\n",
         "lengths:2: lines before have low, high and count, and this one has length"},
        {"1 2 3 4\n", "lengths:1: \"1 2 3 4\""},
        {"5 -1\n", "lengths:1: \"5 -1\""},
        {"5 nan\n", "lengths:1: \"5 nan\""},
        {"-5\n", "lengths:1: \"-5\""},
        {"9 5 1\n", "lengths:1: \"9 5 1\""},
        {"1.5\n", "lengths:1: \"1.5\""},
        {"source\tdocs\ttokens\tmean\nlinux\t3\t9\t3\n", "lengths:2: \"linux\t3\t9\t3\""},
        {"{\n \"wiki\": {\n", "lengths:2: "},
        {"5,0\n", "has no documents"},
        {"5,1e308\n6,1e308\n", "the sum of its counts is no finite number"},
        {"9223372036854775807\n", "more than the 6.87e+10 allowed"},
        {"4294967296,20\n", "its documents have 8.59e+10 tokens together"},
        {"# nothing\n", "has no documents"},
        {"", "has no documents"},
    };
    for (size_t i = 0; i < DH_COUNTOF(wrong); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_lengths l;
        assert_fails(&ctx, read_text(&ctx, wrong[i].text, &l), DH_EFORMAT, wrong[i].says);
        dh_lengths_fini(&l);
    }
}

static int prepare(void **state)
{
    test_tmpdir(dir, sizeof dir);
    return 0;
}

static int clean(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, dir) == DH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_say_what_they_are),
        cmocka_unit_test(many_documents_are_scaled_down),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
