/* Starting ranks: where one cannot start, the others do not wait for it; and how long ranks wait
 * for each other where the job does not say. */
#include "ranks.h"

#include <errno.h>
#include <pthread.h>

#include "train/rank.h"

/* ---- threads ----------------------------------------------------------------------------------
 */

/* The linker sends calls of pthread_create here; the fail_at-th finds no thread. */
static int n_created, fail_at;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg)
{
    if (++n_created == fail_at) return EAGAIN;
    return __real_pthread_create(thread, attr, start, arg);
}

/* Ranks begin by waiting for all others, so the first calls are those that start ranks. */
static void a_rank_that_cannot_start_stops_all(void **state)
{
    char out[300], want[80];
    run_folder(out, sizeof out, "run");
    for (int rank = 0; rank < 3; rank++) {
        dh_ctx ctx = DH_CTX_INIT;
        n_created = 0;
        fail_at = rank + 1;
        const int64_t begin = dh_now_ns();
        dh_status st = run_job(&ctx, RUN_GPT2,
                               "parallel.pp=3 model.n_layers=3 parallel.timeout_s=3000", out, NULL);
        fail_at = 0;
        snprintf(want, sizeof want, "cannot start the thread of rank %d: %s", rank,
                 strerror(EAGAIN));
        assert_int_equal(st, DH_EINTERNAL);
        assert_string_equal(ctx.message, want);
        assert_true(dh_now_ns() - begin < INT64_C(300000000000)); /* not the timeout */
    }
}

/* ---- patience ----------------------------------------------------------------------------------
 */

static void patience_follows_the_steps(void **state)
{
    static const struct {
        double step_s, patience_s;
        const char *why;
    } cases[] = {{0.012, 60, "20 times the slowest step, 0.012 s, and at least 60; "},
                 {3, 60, "slowest step, 3 s"},
                 {7.5, 150, "slowest step, 7.5 s"},
                 {100, 2000, "slowest step, 100 s"}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char why[160];
        const int64_t ns = dh_step_patience_ns((int64_t)(cases[i].step_s * 1e9), why, sizeof why);
        assert_int_equal(ns, (int64_t)(cases[i].patience_s * 1e9));
        assert_non_null(strstr(why, cases[i].why));
        assert_non_null(strstr(why, "parallel.timeout_s sets another limit"));
    }
    assert_int_equal(dh_job_patience_ns(&(dh_job){.timeout_s = 2.5}), 2500000000);
    assert_int_equal(dh_job_patience_ns(&(dh_job){.timeout_s = 0}), 600000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_cannot_start_stops_all),
        cmocka_unit_test(patience_follows_the_steps),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
