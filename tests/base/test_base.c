#include "dh_test.h"

#include "base/c_locale.h"
#include "base/mapped.h"
#include "base/printable.h"

#include <sys/stat.h>
#include <sys/wait.h>

static void first_failure_wins(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_int_equal(dh_fail(&ctx, DH_EIO, "disk %d", 7), DH_EIO);
    assert_int_equal(dh_fail(&ctx, DH_EINVAL, "later"), DH_EIO);
    assert_int_equal(dh_ctx_while(&ctx, "saving %s", "x"), DH_EIO);
    assert_string_equal(ctx.message, "while saving x: disk 7");
}

static void arena_is_zeroed_and_aligned(void **state)
{
    dh_arena *a = dh_arena_create();
    for (size_t size = 0; size < 100000; size = size * 3 + 1) {
        unsigned char *p = dh_arena_alloc(a, size);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < size; i++) assert_int_equal(p[i], 0);
        memset(p, 0xAB, size);
    }
    assert_null(dh_arena_alloc_n(a, SIZE_MAX / 2, 3));
    assert_string_equal(dh_arena_printf(a, "%s-%d", "x", 3), "x-3");
    dh_arena_destroy(a);
    dh_arena_destroy(NULL);
}

static void nearest_name(void **state)
{
    const char *names[] = {"learning_rate", "layers", "seed", "vocab_size"};
    assert_string_equal(dh_nearest("learning_rte", names, 4), "learning_rate");
    assert_string_equal(dh_nearest("sede", names, 4), "seed");
    assert_null(dh_nearest("zebra", names, 4));
}

static void numbers_are_whole_strings(void **state)
{
    int64_t i;
    double f;
    assert_true(dh_parse_i64("-12", &i) && i == -12);
    assert_false(dh_parse_i64("12x", &i) || dh_parse_i64("", &i));
    assert_false(dh_parse_i64("99999999999999999999", &i));
    assert_true(dh_parse_f64("1e-3", &f) && f == 1e-3);
    assert_false(dh_parse_f64("1e-3 ", &f) || dh_parse_f64("1e999", &f));
}

static void philox_known_answers(void **state)
{
    /* Random123 kat_vectors, philox4x32 10. */
    uint32_t out[4];
    dh_philox4x32((dh_philox_key){{0, 0}}, (uint32_t[4]){0, 0, 0, 0}, out);
    assert_int_equal(out[0], 0x6627e8d5u);
    uint32_t ones = 0xffffffffu;
    dh_philox4x32((dh_philox_key){{ones, ones}}, (uint32_t[4]){ones, ones, ones, ones}, out);
    assert_int_equal(out[0], 0x408f276du);
    dh_philox4x32((dh_philox_key){{0xa4093822u, 0x299f31d0u}},
                  (uint32_t[4]){0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, out);
    assert_int_equal(out[0], 0xd16cfe09u);
}

static void files_replace_atomically(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a/b/c.txt", dir);
    assert_fails(&ctx, dh_file_write_atomic(&ctx, path, "x", 1), DH_EIO, "a/b/c.txt");
    char sub[300];
    snprintf(sub, sizeof sub, "%s/a/b", dir);
    assert_ok(&ctx, dh_dir_create(&ctx, sub));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "first", 5));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "second", 6));
    char *text;
    size_t n;
    assert_ok(&ctx, dh_file_read(&ctx, path, 100, &text, &n));
    assert_string_equal(text, "second");
    free(text);
    assert_fails(&ctx, dh_file_read(&ctx, path, 3, &text, &n), DH_EINVAL, "6 bytes");
    dh_map map;
    assert_fails(&ctx, dh_map_open(&ctx, dir, &map), DH_EINVAL, "regular file");
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    assert_false(dh_path_exists(dir));
}

/* A link at the file's name is replaced and what it points at is not written to. */
static void links_are_replaced(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300], secret[300], *text;
    size_t n;
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/out", dir);
    snprintf(secret, sizeof secret, "%s/secret", dir);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, secret, "kept", 4));
    assert_int_equal(symlink(secret, path), 0);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "new", 3));
    assert_ok(&ctx, dh_file_read(&ctx, secret, 100, &text, &n));
    assert_string_equal(text, "kept");
    free(text);
    assert_int_equal(test_n_entries(dir), 2);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* What a living process writes stays, whatever its process id; what a dead one left goes. So do
 * names that are not drawn, which are somebody's own. */
static void leftovers_are_those_of_the_dead(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], stem[300], own[300];
    dh_temporary mine, folder;
    int end;
    test_tmpdir(dir, sizeof dir);
    snprintf(stem, sizeof stem, "%s/file", dir);
    snprintf(own, sizeof own, "%s/notes.tmp-1", dir);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, own, "x", 1));
    fflush(stdout);
    const pid_t dead = fork();
    if (dead == 0) {
        dh_temporary left;
        const bool ok = dh_temporary_file(&ctx, stem, &left) == DH_OK &&
                        dh_temporary_dir(&ctx, stem, &left) == DH_OK;
        _exit(ok ? 0 : 1);
    }
    assert_true(waitpid(dead, &end, 0) == dead && end == 0);
    assert_ok(&ctx, dh_temporary_file(&ctx, stem, &mine));
    assert_ok(&ctx, dh_temporary_dir(&ctx, stem, &folder));
    assert_string_not_equal(mine.path, folder.path);
    assert_int_equal(test_n_entries(dir), 5);
    const pid_t other = fork();
    if (other == 0) {
        dh_dir_drop_leftovers(dir);
        _exit(0);
    }
    assert_true(waitpid(other, &end, 0) == other && end == 0);
    dh_dir_drop_leftovers(dir);
    assert_int_equal(test_n_entries(dir), 3);
    assert_true(dh_path_exists(mine.path) && dh_path_exists(folder.path) && dh_path_exists(own));
    assert_ok(&ctx, dh_temporary_commit(&ctx, &mine, stem));
    assert_true(dh_path_exists(stem) && !mine.path && mine.fd < 0);
    dh_temporary_drop(&folder);
    assert_int_equal(test_n_entries(dir), 2);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

typedef struct race {
    const char *stem, *dir;
    int n_failed;
} race;

static void *write_often(void *user)
{
    race *r = user;
    for (int i = 0; i < 300; i++) {
        dh_ctx ctx = DH_CTX_INIT;
        char text[64];
        dh_temporary t;
        const int n = snprintf(text, sizeof text, "%p %d", (void *)&ctx, i);
        bool ok = dh_temporary_file(&ctx, r->stem, &t) == DH_OK &&
                  dh_fd_write_all(&ctx, t.fd, t.path, text, (size_t)n) == DH_OK;
        dh_dir_drop_leftovers(r->dir);
        ok = ok && dh_temporary_commit(&ctx, &t, r->stem) == DH_OK;
        if (!ok) __atomic_add_fetch(&r->n_failed, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Threads of one process have one process id: names are drawn, and nobody takes a file for
 * abandoned between its making and its lock. */
static void writers_do_not_meet(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], stem[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(stem, sizeof stem, "%s/file", dir);
    race r = {stem, dir, 0};
    dh_work_together(4, write_often, &r);
    assert_int_equal(r.n_failed, 0);
    assert_int_equal(test_n_entries(dir), 1);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* Another program cuts a file to its first page: what is gone is not read, and raises no signal. */
static void cut_maps_are_not_read(void **state)
{
    enum { PAGE = 4096, N = 20 * PAGE };
    dh_ctx ctx = DH_CTX_INIT;
    char path[] = "/tmp/dhelix-cut-XXXXXX";
    static unsigned char bytes[N], copy[N];
    for (int i = 0; i < N; i++) bytes[i] = (unsigned char)(i / 7);
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, bytes, N) == N);
    dh_map cut, owned, none = {0};
    assert_ok(&ctx, dh_map_open(&ctx, path, &cut));
    assert_ok(&ctx, dh_map_open(&ctx, path, &owned));
    assert_true(dh_copy_mapped(copy, cut.at, N));
    assert_memory_equal(copy, bytes, N);
    assert_true(dh_map_own(&owned));
    assert_true(dh_map_own(&none));
    assert_int_equal(ftruncate(fd, PAGE), 0);
    assert_true(dh_copy_mapped(copy, cut.at + 100, PAGE - 100));
    assert_memory_equal(copy, bytes + 100, PAGE - 100);
    assert_false(dh_copy_mapped(copy, cut.at, N));
    assert_false(dh_copy_mapped(copy, cut.at + 2 * PAGE, 1));
    assert_memory_equal(owned.at, bytes, N);
    assert_false(dh_map_own(&cut));
    dh_map_close(&cut);
    dh_map_close(&owned);
    close(fd);
    unlink(path);
}

static void words_have_no_locale(void **state)
{
    char text[] = "Time_US [AZ] @`";
    assert_true(dh_is_same_word("TIME_us", "time_US"));
    assert_false(dh_is_same_word("time", "time_"));
    assert_false(dh_is_same_word("[", "{"));
    dh_to_lower(text);
    assert_string_equal(text, "time_us [az] @`");
}

static void numbers_are_written_as_people_do(void **state)
{
    char text[32];
    assert_string_equal(dh_format_ns(text, sizeof text, 999.6e6), "1000 ms");
    assert_string_equal(dh_format_ns(text, sizeof text, 119e9), "119 s");
    assert_string_equal(dh_format_ns(text, sizeof text, 660e9), "11 min");
    assert_string_equal(dh_format_ns(text, sizeof text, 9000e9), "2.5 h");
    assert_string_equal(dh_format_ns(text, sizeof text, 1.11e15), "12.8 days");
    assert_string_equal(dh_format_ns(text, sizeof text, 1e20), "1157407 days");
    assert_string_equal(dh_format_ns(text, sizeof text, 12), "12 ns");
    assert_string_equal(dh_format_count(text, sizeof text, 70.55e9), "70.5 B");
    assert_string_equal(dh_format_count(text, sizeof text, 804096), "804 K");
    assert_string_equal(dh_format_count(text, sizeof text, 65536), "65536");
    assert_string_equal(dh_format_flop(text, sizeof text, 9.421e17), "942 PFLOP");
    assert_string_equal(dh_format_number(text, sizeof text, 106000, 3), "106000");
    assert_string_equal(dh_format_number(text, sizeof text, .0012345, 3), "0.00123");
}

static void words_wrap_behind_their_indent(void **state)
{
    dh_str out = DH_STR_INIT;
    dh_str_wrap(&out, "one two three averyverylongword four", 2, 12);
    assert_string_equal(out.text, "one two\n  three\n  averyverylongword\n  four\n");
    dh_str_fini(&out);
}

/* Text, the same as the output of a command, and as a message. */
static void controls_are_shown(void **state)
{
    static const struct {
        const char *text, *want, *message;
    } cases[] = {
        {"plain", "plain", "plain"},
        {"two\nlines\tand tab", "two\nlines\tand tab", "two\\u000alines\tand tab"},
        {"\x1b]0;title\x07", "\\u001b]0;title\\u0007", NULL},
        {"del\x7f", "del\\u007f", NULL},
        {"c1 \xc2\x9b"
         "2J \xc2\x85",
         "c1 \\u009b2J \\u0085", NULL},
        {"a\xe2\x80\xa8"
         "b\xe2\x80\xa9",
         "a\\u2028b\\u2029", NULL},
        {"\xe2\x80\xaetxt.exe\xe2\x81\xa6", "\\u202etxt.exe\\u2066", NULL},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", NULL},
        {"cut \xe2\x80", "cut \\xe2\\x80", NULL},
        {"\xff\x9b"
         "2J",
         "\\xff\\x9b2J", NULL},
        {"\xc0\x9b \xed\xa0\x80", "\\xc0\\x9b \\xed\\xa0\\x80", NULL}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const char *message = cases[i].message ? cases[i].message : cases[i].want;
        char text[64];
        dh_str str = DH_STR_INIT;
        dh_ctx ctx = DH_CTX_INIT;
        snprintf(text, sizeof text, "%s", cases[i].text);
        dh_printable(text, sizeof text);
        assert_string_equal(text, message);
        dh_str_printf(&str, "%s", cases[i].text);
        dh_str_printable(&str);
        assert_string_equal(str.text, cases[i].want);
        dh_str_fini(&str);
        dh_fail(&ctx, DH_EINVAL, "%s", cases[i].text);
        assert_string_equal(ctx.message, message);
        dh_ctx_while(&ctx, "%s", cases[i].text);
        snprintf(text, sizeof text, "while %s: ", message);
        assert_memory_equal(ctx.message, text, strlen(text));
        assert_string_equal(ctx.message + strlen(text), message);
    }
    for (size_t cap = 1; cap < 20; cap++) { /* cut, never beyond its end */
        char text[20] = "";
        memset(text, 0x1b, cap - 1);
        dh_printable(text, cap);
        assert_true(strlen(text) < cap && !strchr(text, 0x1b));
        memset(text, 0x9b, cap - 1);
        text[cap - 1] = '\0';
        dh_printable(text, cap);
        assert_true(strlen(text) < cap && !strchr(text, 0x9b));
    }
    dh_str zeros = DH_STR_INIT;
    dh_str_append(&zeros, "a\0b", 3);
    dh_str_printable(&zeros);
    assert_string_equal(zeros.text, "a\\u0000b");
    dh_str_fini(&zeros);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_wins),
        cmocka_unit_test(arena_is_zeroed_and_aligned),
        cmocka_unit_test(nearest_name),
        cmocka_unit_test(numbers_are_whole_strings),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(files_replace_atomically),
        cmocka_unit_test(links_are_replaced),
        cmocka_unit_test(leftovers_are_those_of_the_dead),
        cmocka_unit_test(writers_do_not_meet),
        cmocka_unit_test(cut_maps_are_not_read),
        cmocka_unit_test(words_have_no_locale),
        cmocka_unit_test(numbers_are_written_as_people_do),
        cmocka_unit_test(words_wrap_behind_their_indent),
        cmocka_unit_test(controls_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
