/* A run that does not set a timeout: a rank that stops in a step is found after a minute, which
 * is long beside these steps, and the message says how long ranks wait and why. */
#include "ranks.h"

static void a_short_step_is_not_waited_for_long(void **state)
{
    char out[300];
    dh_ctx ctx = DH_CTX_INIT;
    run_folder(out, sizeof out, "run");
    setenv("DHELIX_FAULT", "hang:1:i5000", 1);
    dh_status st = run_job(&ctx, RUN_GPT2, "parallel.pp=2 parallel.timeout_s=auto", out, NULL);
    unsetenv("DHELIX_FAULT");
    printf("  %s\n", ctx.message);
    assert_int_equal(st, DH_ECOMM);
    assert_non_null(strstr(ctx.message, "rank 0 waited 60 s (20 times the slowest step, "));
    assert_non_null(strstr(ctx.message, "did not come: rank 1 ("));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_short_step_is_not_waited_for_long)};
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
