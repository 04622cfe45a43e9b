/* Least squares: a line worked by hand, a curve, a bound, a constant without meaning, faults. */
#include "costs/fit.h"
#include "dh_test.h"

/* Points (0, 1), (1, 2), (2, 5): by the normal equations the line 2 x + 2/3. */
static dh_status line(dh_ctx *ctx, void *self, const double *c, double *r)
{
    static const double x[] = {0, 1, 2}, y[] = {1, 2, 5};
    (void)ctx;
    ++*(int *)self;
    for (int i = 0; i < 3; i++) r[i] = c[0] * x[i] + c[1] - y[i];
    return DH_OK;
}

/* A time with a kink where bytes begin to count: log ratios to 3 and 0.5. */
static dh_status kinked(dh_ctx *ctx, void *self, const double *c, double *r)
{
    (void)ctx;
    (void)self;
    for (int i = 0; i < 6; i++) {
        const double bytes = 1 << (2 * i);
        r[i] = log(DH_MAX(c[0], bytes / c[1])) - log(DH_MAX(3.0, bytes / 0.5));
    }
    return DH_OK;
}

static dh_status broken(dh_ctx *ctx, void *self, const double *c, double *r)
{
    (void)self;
    (void)r;
    return dh_fail(ctx, DH_EINVAL, "no prediction at %g", c[0]);
}

static void test_line(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n = 0;
    double c[] = {1, 1}, rms = 0;
    (void)state;
    const dh_fit_problem p = {.n_constants = 2,
                              .n_residuals = 3,
                              .min = (const double[]){-9, -9},
                              .max = (const double[]){9, 9},
                              .predict = line,
                              .self = &n};
    assert_ok(&ctx, dh_fit(&ctx, &p, c, &rms));
    assert_true(fabs(c[0] - 2) < 1e-4 && fabs(c[1] - 2.0 / 3) < 1e-4);
    assert_true(fabs(rms - sqrt(2.0 / 9)) < 1e-6);
    assert_true(n < 40);
}

/* The bound 1 for the slope leaves the mean, 5/3, for the rest. */
static void test_bound(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n = 0;
    double c[] = {1, 1}, rms = 0;
    (void)state;
    const dh_fit_problem p = {.n_constants = 2,
                              .n_residuals = 3,
                              .min = (const double[]){-9, -9},
                              .max = (const double[]){1, 9},
                              .predict = line,
                              .self = &n};
    assert_ok(&ctx, dh_fit(&ctx, &p, c, &rms));
    assert_true(c[0] == 1 && fabs(c[1] - 5.0 / 3) < 1e-4);
    c[0] = 2;
    assert_fails(&ctx, dh_fit(&ctx, &p, c, &rms), DH_EINVAL, "outside -9 to 1");
}

static void test_kink(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    double c[] = {2, 0.8, 7}, rms = 1;
    (void)state;
    const dh_fit_problem p = {.n_constants = 3, /* nothing depends on the third */
                              .n_residuals = 6,
                              .min = (const double[]){0.1, 0.1, 0},
                              .max = (const double[]){90, 1, 9},
                              .predict = kinked};
    assert_ok(&ctx, dh_fit(&ctx, &p, c, &rms));
    assert_true(fabs(c[0] - 3) < 1e-3 && fabs(c[1] - 0.5) < 1e-3 && c[2] == 7 && rms < 1e-4);
}

static void test_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    double c[9] = {1}, rms = -1;
    const double min[9] = {0}, max[9] = {2, 2, 2, 2, 2, 2, 2, 2, 2};
    (void)state;
    dh_fit_problem p = {
        .n_constants = 1, .n_residuals = 1, .min = min, .max = max, .predict = broken};
    assert_fails(&ctx, dh_fit(&ctx, &p, c, &rms), DH_EINVAL, "no prediction at 1");
    p.n_constants = 9;
    assert_fails(&ctx, dh_fit(&ctx, &p, c, &rms), DH_EINVAL, "8 at most");
    assert_true(rms == -1 && c[0] == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_line), cmocka_unit_test(test_bound),
                                       cmocka_unit_test(test_kink), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
