/* Patterns, normalizers and pre-tokenizers of someone else's tokenizer file: what they find does
 * not depend on how the search is bounded, and those that explode are given up. */
#include "dh_test.h"

#include "data/normalize.h"
#include "data/pattern.h"
#include "data/split.h"
#include "data/trie.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- the same matches as in one look ----------------------------------------------------- */

/* Runs of one character each, as long as a quick look sees, shorter or longer by a little, or of
 * any length below 3000. */
static size_t draw_text(uint64_t *seed, char *text, size_t n)
{
    static const char *const letters[] = {"a", "b", " ", "\n", "x", "\xc3\xa9", "\xe4\xbd\xa0"};
    size_t at = 0;
    for (;;) {
        const char *letter = letters[(*seed = dh_mix64(*seed)) % DH_COUNTOF(letters)];
        const size_t len = strlen(letter), drawn = dh_mix64(*seed + 1);
        const size_t runs[] = {1 + drawn % 3, 1015 + drawn % 20, 1 + drawn % 3000, 1 + drawn % 40};
        size_t run = runs[(drawn >> 32) % 4];
        for (; run > 0 && at + len <= n; run--, at += len) memcpy(text + at, letter, len);
        if (run > 0) return at;
    }
}

static void compare_matches(const char *pattern, const unsigned char *text, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pattern *ours;
    dh_pattern_work *work;
    int error;
    PCRE2_SIZE place;
    pcre2_code *theirs =
        pcre2_compile((PCRE2_SPTR)pattern, strlen(pattern), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                      &error, &place, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    assert_non_null(theirs);
    assert_ok(&ctx, dh_pattern_compile(&ctx, pattern, strlen(pattern), false, &ours));
    assert_ok(&ctx, dh_pattern_work_create(&ctx, &work));
    dh_pattern_begin(work, n, 1);
    for (size_t at = 0; at <= n;) {
        bool found;
        size_t begin = 0, end = 0;
        const int rc = pcre2_match(theirs, text, n, at, 0, match, NULL);
        const PCRE2_SIZE *want = pcre2_get_ovector_pointer(match);
        assert_ok(&ctx, dh_pattern_next(&ctx, ours, work, text, n, at, &found, &begin, &end));
        if (found != (rc >= 0) || (found && (begin != want[0] || end != want[1])))
            fail_msg("%s at %zu of %zu: %d %zu..%zu, want %d %zu..%zu", pattern, at, n, found,
                     begin, end, rc, (size_t)want[0], (size_t)want[1]);
        if (!found) break;
        at = end > begin ? end : end + 1;
        while (at < n && (text[at] & 0xC0) == 0x80) at++;
    }
    dh_pattern_work_destroy(work);
    dh_pattern_free(ours);
    pcre2_match_data_free(match);
    pcre2_code_free(theirs);
}

static void bounds_change_no_match(void **state)
{
    static const char *const patterns[] = {
        "'s| ?\\p{L}+| ?\\p{N}+| ?[^ \\n\\p{L}\\p{N}]+|[ \\n]+(?![^ \\n])|[ \\n]+",
        "x",
        "xb",
        "a{1200}",
        "[^\\n]+",
        "\\n^",
        "^",
        "$",
        "\\n+$",
        "(?<=a{3})b",
        "b(?=[^x]{0,100}x)",
        "b(?!.{0,100}a)",
        "a*",
        "\\p{L}{1,100}?(?=\\n)",
        "(?:a|b)+",
        "(a{1,20}) \\1",
        "\\p{Han}{1,20}\\z",
        " (?= )| ",
        "\\X",
        "(?s:.{1,1500})",
    };
    enum { N = 12000 };
    char *text = malloc(N);
    uint64_t seed = 20260731;
    for (int i = 0; i < (test_is_thin() ? 4 : 40); i++) {
        const size_t n = draw_text(&seed, text, N - (size_t)(seed % 3000));
        for (size_t p = 0; p < DH_COUNTOF(patterns); p++) {
            unsigned char *copy = malloc(n); /* of exactly n bytes, for the sanitizer */
            memcpy(copy, text, n);
            compare_matches(patterns[p], copy, n);
            free(copy);
        }
    }
    free(text);
}

/* ---- patterns that explode -------------------------------------------------------------- */

static dh_status keep_nothing(dh_ctx *ctx, void *arg, const unsigned char *word, size_t n)
{
    *(size_t *)arg += n;
    return DH_OK;
}

/* Splits n bytes of one character, in texts of `part` bytes each. */
static dh_status split_run(dh_ctx *ctx, const char *pattern, char letter, size_t n, size_t part)
{
    dh_splitter splitter = {0};
    dh_split_scratch *scratch;
    size_t sum = 0;
    unsigned char *text = malloc(n);
    memset(text, letter, n);
    assert_ok(ctx, dh_splitter_add(ctx, &splitter, pattern, strlen(pattern), false));
    assert_ok(ctx, dh_split_scratch_create(ctx, &splitter, &scratch));
    dh_status st = DH_OK;
    for (size_t at = 0; at < n && st == DH_OK; at += part)
        st = dh_split(ctx, &splitter, scratch, text + at, part, true, keep_nothing, &sum);
    dh_split_scratch_destroy(scratch);
    dh_splitter_fini(&splitter);
    free(text);
    return st;
}

static void explosions_are_given_up(void **state)
{
    static const char *const patterns[] = {
        "a(?=.*$)",                /* each of n matches sees the end */
        "(?=.*[yz])x|a",           /* each of n places does */
        ".*[yz]",                  /* n * n in one match */
        "(?:a+)+[yz]",             /* 2 to the power of n */
        "(?:a|aa)+[yz]",           /* the same */
        "(?:(?:a*)*)*[yz]",        /* the same */
        "(?=(a+))\\1[yz]|a",       /* each place compares all of the text */
        "a(?=(?:.*[yz])?)",        /* n steps back */
        "(?:a{1,30}){1,30}[yz]|a", /* no more than 900 characters */
    };
    for (size_t p = 0; p < DH_COUNTOF(patterns); p++) {
        dh_ctx ctx = DH_CTX_INIT;
        char want[200];
        snprintf(want, sizeof want,
                 "the pattern \"%s\" gave up after 100000 bytes of text: too many steps (at most "
                 "4194304 steps",
                 patterns[p]);
        assert_fails(&ctx, split_run(&ctx, patterns[p], 'a', 100000, 100000), DH_EUNSUPPORTED,
                     want);
    }
    /* Many short texts have no more than a long one. */
    dh_ctx ctx = DH_CTX_INIT;
    assert_fails(&ctx, split_run(&ctx, "(?:a|aa)+z|a", 'a', 1 << 20, 32), DH_EUNSUPPORTED,
                 "gave up");
}

/* A literal and a repeat that fail in their last byte, as late as can be: work that steps do not
 * show is bounded by what one part of a pattern may be. */
static void late_failures_end(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, split_run(&ctx, "a{1000}b|a+", 'a', 1 << 20, 1 << 20));
    assert_ok(&ctx, split_run(&ctx, "a+", 'a', 50 << 20, 50 << 20));
}

/* ---- texts that grow ----------------------------------------------------------------------- */

static void add_text(dh_normalizer *normalizer, const dh_normalize_kind *kind, const char *pattern,
                     const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_normalize_step step = {.kind = kind, .text = strdup(text), .n_text = strlen(text)};
    if (pattern)
        assert_ok(&ctx, dh_pattern_compile(&ctx, pattern, strlen(pattern), false, &step.pattern));
    assert_ok(&ctx, dh_normalizer_add(&ctx, normalizer, step, 0));
}

static void assert_grows_too_much(dh_normalizer *normalizer, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_normalize_work *work;
    const unsigned char *out;
    size_t n;
    assert_ok(&ctx, dh_normalize_work_create(&ctx, &work));
    assert_fails(
        &ctx,
        dh_normalize(&ctx, normalizer, work, (const unsigned char *)text, strlen(text), &out, &n),
        DH_EUNSUPPORTED, "at most 4096, and 32 more per byte");
    dh_normalize_work_destroy(work);
    dh_normalizer_fini(normalizer);
}

static void growth_is_bounded(void **state)
{
    char text[1001], big[70000];
    memset(text, 'a', 1000);
    text[1000] = '\0';
    memset(big, 'b', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    dh_normalizer doubling = {0}, one = {0}, before = {0}, empty = {0};
    for (int i = 0; i < 40; i++) add_text(&doubling, &dh_normalize_replace, "a", "aa");
    assert_grows_too_much(&doubling, text);
    add_text(&one, &dh_normalize_replace, "a", big);
    assert_grows_too_much(&one, text);
    add_text(&before, &dh_normalize_prepend, NULL, big);
    assert_grows_too_much(&before, text);
    add_text(&empty, &dh_normalize_replace, "", text);
    assert_grows_too_much(&empty, text);
}

/* What grows most of all that is in use: U+FDFA by NFKD, its 33 bytes as characters of bytes. */
static void the_longest_decomposition_fits(void **state)
{
    enum { N = 30000 };
    dh_ctx ctx = DH_CTX_INIT;
    dh_normalizer normalizer = {0};
    dh_normalize_work *work;
    const unsigned char *out;
    size_t n;
    unsigned char *text = malloc(N);
    for (size_t i = 0; i < N; i += 3) memcpy(text + i, "\xef\xb7\xba", 3);
    const dh_normalize_step form = {.kind = &dh_normalize_form, .form = DH_NFKD},
                            bytes = {.kind = &dh_normalize_bytes};
    assert_ok(&ctx, dh_normalizer_add(&ctx, &normalizer, form, 0));
    assert_ok(&ctx, dh_normalizer_add(&ctx, &normalizer, bytes, 0));
    assert_ok(&ctx, dh_normalize_work_create(&ctx, &work));
    assert_ok(&ctx, dh_normalize(&ctx, &normalizer, work, text, N, &out, &n));
    assert_true(n > (size_t)18 * N && n < (size_t)23 * N);
    dh_normalize_work_destroy(work);
    dh_normalizer_fini(&normalizer);
    free(text);
}

static void steps_have_a_limit(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_normalizer normalizer = {0};
    const dh_normalize_step step = {.kind = &dh_normalize_lowercase};
    for (int i = 0; i < DH_MOST_NORMALIZE_STEPS; i++)
        assert_ok(&ctx, dh_normalizer_add(&ctx, &normalizer, step, 0));
    assert_fails(&ctx, dh_normalizer_add(&ctx, &normalizer, step, 0), DH_EUNSUPPORTED,
                 "more than 256 steps");
    dh_normalizer_fini(&normalizer);
}

static void rewriting_is_bounded(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_splitter splitter = {0};
    dh_split_scratch *scratch;
    size_t sum = 0;
    const unsigned char text[] = "a  b  c  d";
    const dh_split_step step = {.rewrite = DH_REWRITE_METASPACE, .mark = "       "};
    for (int i = 0; i < 31; i++) assert_ok(&ctx, dh_splitter_add_rewrite(&ctx, &splitter, step));
    assert_ok(&ctx, dh_split_scratch_create(&ctx, &splitter, &scratch));
    assert_fails(
        &ctx, dh_split(&ctx, &splitter, scratch, text, sizeof text - 1, true, keep_nothing, &sum),
        DH_EUNSUPPORTED, "pre_tokenizer makes more than");
    dh_split_scratch_destroy(scratch);
    dh_splitter_fini(&splitter);
}

/* ---- tables ---------------------------------------------------------------------------- */

/* Every unit leads to itself by 'a': a walk would see all of the text from each place. */
static void tables_that_go_in_circles_end(void **state)
{
    enum { UNITS = 256, N = 200000 };
    dh_ctx ctx = DH_CTX_INIT;
    dh_charsmap map;
    dh_str out = DH_STR_INIT;
    unsigned char table[4 + 4 * UNITS + 4] = {0};
    const uint32_t n_trie = 4 * UNITS, unit = 'a' | ('a' << 10);
    memcpy(table, &n_trie, 4);
    for (size_t i = 0; i < UNITS; i++) memcpy(table + 4 + 4 * i, &unit, 4);
    unsigned char *text = malloc(N);
    memset(text, 'a', N);
    size_t n_found;
    assert_ok(&ctx, dh_charsmap_read(&ctx, table, sizeof table, &map));
    for (size_t at = 0; at < N; at++)
        assert_null(dh_charsmap_find(&map, text + at, N - at, true, &n_found));
    assert_true(dh_charsmap_by_graphemes(&map, text, N, N, &out));
    dh_charsmap_fini(&map);
    dh_str_fini(&out);
    free(text);
}

static void long_pieces_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_vocab v = {0};
    dh_trie trie = {0};
    char piece[DH_MOST_TRIE_BYTES + 1];
    memset(piece, 'a', sizeof piece);
    assert_ok(&ctx, dh_vocab_replace(&ctx, &v, 0, piece, sizeof piece, DH_PIECE_NORMAL));
    assert_fails(&ctx, dh_trie_build(&ctx, &v, &trie), DH_EUNSUPPORTED,
                 "1025 bytes (at most 1024)");
    dh_vocab_fini(&v);
    dh_trie_fini(&trie);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_change_no_match),
        cmocka_unit_test(explosions_are_given_up),
        cmocka_unit_test(late_failures_end),
        cmocka_unit_test(growth_is_bounded),
        cmocka_unit_test(the_longest_decomposition_fits),
        cmocka_unit_test(steps_have_a_limit),
        cmocka_unit_test(rewriting_is_bounded),
        cmocka_unit_test(tables_that_go_in_circles_end),
        cmocka_unit_test(long_pieces_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
