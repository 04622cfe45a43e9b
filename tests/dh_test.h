/* cmocka with its required includes, and helpers shared by the suites. */
#ifndef DH_TEST_H
#define DH_TEST_H

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <execinfo.h>

#include "base/base.h"

/* cmocka keeps a message for the thread that a test began on. On another one, such as a rank's, a
 * failed assertion or a signal ends the process with status -1 and in silence: this says where. */
static inline void test_show_end(int status, void *unused)
{
    static const char text[] =
        "a test has ended on a thread of its own: failed assertion or signal\n";
    void *frames[40];
    if (status != -1) return;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
}

__attribute__((constructor)) static inline void test_watch_end(void)
{
    on_exit(test_show_end, NULL);
}

/* Whether a sanitizer slows everything down. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TEST_SANITIZED = 1 };
#else
enum { TEST_SANITIZED = 0 };
#endif

/* Whether a suite leaves out cases that are much like others of its own. Every one of them runs
 * with DHELIX_TEST_DEEP, which ./test.sh sets with --full, in builds without a sanitizer. */
static inline bool test_is_thin(void)
{
    return TEST_SANITIZED || !getenv("DHELIX_TEST_DEEP");
}

/* The same of cases that are to run under sanitizers too where DHELIX_TEST_DEEP is set: --full. */
static inline bool test_is_short(void)
{
    return !getenv("DHELIX_TEST_DEEP");
}

/* Whether it is the short form of a suite under a sanitizer, where a run takes 4 to 20 times as
 * long; ./test.sh --full sets DHELIX_TEST_DEEP there too. */
static inline bool test_is_slow(void)
{
    return TEST_SANITIZED && test_is_short();
}

/* Steps between the cases of a long list that run: all, or every thin-th, or under sanitizers,
 * unless DHELIX_TEST_DEEP is set, every sanitized-th. */
static inline size_t test_stride(size_t thin, size_t sanitized)
{
    return test_is_slow() ? sanitized : test_is_thin() ? thin : 1;
}

/* Of n variations of case number i, whether the k-th runs: all of them with DHELIX_TEST_DEEP, else
 * one, which is another one for each case. */
static inline bool test_takes(size_t i, size_t k, size_t n)
{
    return !test_is_short() || k % n == i % n;
}

/* Of a list of runs that are much alike, whether the i-th is left out: there, four of five. */
static inline bool test_leaves_out(size_t i)
{
    return test_is_slow() && i % 5 != 0;
}

/* A call must succeed; its message is shown when it does not. */
#define assert_ok(ctx, call)                                                                       \
    do {                                                                                           \
        dh_status assert_ok_status_ = (call);                                                      \
        if (assert_ok_status_ != DH_OK)                                                            \
            fail_msg("%s: %s: %s", #call, dh_status_name(assert_ok_status_), (ctx)->message);      \
    } while (0)

/* A call must fail with `code` and a message containing `part`; the context is reset. */
#define assert_fails(ctx, call, code, part)                                                        \
    do {                                                                                           \
        dh_status assert_fails_status_ = (call);                                                   \
        if (assert_fails_status_ != (code))                                                        \
            fail_msg("%s: got %s (%s), want %s", #call, dh_status_name(assert_fails_status_),      \
                     (ctx)->message, #code);                                                       \
        if (!strstr((ctx)->message, (part)))                                                       \
            fail_msg("%s: message \"%s\" lacks \"%s\"", #call, (ctx)->message, (part));            \
        dh_ctx_reset(ctx);                                                                         \
    } while (0)

/* Fresh temporary folder, removed by the caller with dh_dir_remove. */
static inline void test_tmpdir(char *path, size_t cap)
{
    const char *base = getenv("TMPDIR");
    snprintf(path, cap, "%s/dhelix-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(path)) fail_msg("mkdtemp %s failed", path);
}

/* Files and folders right in a folder. */
static inline size_t test_n_entries(const char *path)
{
    size_t n = 0;
    DIR *dir = opendir(path);
    if (!dir) fail_msg("no folder %s", path);
    while (readdir(dir)) n++;
    closedir(dir);
    return n - 2; /* itself, and the one it lies in */
}

/* Seed of a randomized test: DHELIX_TEST_SEED; with DHELIX_TEST_FRESH the time; else always the
 * same, so that a test is red for a change only. Printed, so that a failure repeats. */
static inline uint64_t test_seed(const char *name)
{
    const char *env = getenv("DHELIX_TEST_SEED");
    uint64_t seed = getenv("DHELIX_TEST_FRESH") ? (uint64_t)dh_now_ns() : 7405934735833;
    if (env) seed = strtoull(env, NULL, 0);
    printf("%s: DHELIX_TEST_SEED=%llu\n", name, (unsigned long long)seed);
    return seed;
}

/* Small deterministic generator for test inputs. */
static inline uint64_t test_rand(uint64_t *state)
{
    return dh_mix64((*state)++);
}
static inline float test_randf(uint64_t *state) /* about uniform in (-1, 1) */
{
    return 2.0f * dh_u32_to_unit((uint32_t)test_rand(state)) - 1.0f;
}

#endif
