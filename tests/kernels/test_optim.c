#include "kernel_test.h"

static void adamw_matches_float64(void **state)
{
    uint64_t seed = test_seed("adamw");
    const int64_t n = 20003;
    buf p = buf_random(DH_F32, n, 1, &seed), m = buf_new(DH_F32, n), v = buf_new(DH_F32, n);
    buf copy = buf_new(DH_BF16, n);
    double *pd = widen(p), *md = zeros(n), *vd = zeros(n);
    for (int64_t step = 1; step <= 10; step++) {
        buf g = buf_random(DH_F32, n, 1, &seed);
        const dh_adamw opt = {.lr = 1e-2,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .step = step,
                              .grad_scale = 0.5};
        dh_k_adamw(&opt, n, f32(g), f32(p), f32(m), f32(v), (dh_bf16 *)(void *)copy.raw);
        for (int64_t i = 0; i < n; i++) {
            const double grad = 0.5 * get(g, i);
            pd[i] -= opt.lr * opt.weight_decay * pd[i];
            md[i] = 0.9 * md[i] + 0.1 * grad;
            vd[i] = 0.95 * vd[i] + 0.05 * grad * grad;
            const double m_hat = md[i] / (1 - pow(0.9, (double)step));
            const double v_hat = vd[i] / (1 - pow(0.95, (double)step));
            pd[i] -= opt.lr * m_hat / (sqrt(v_hat) + opt.eps);
        }
        buf_free(g);
    }
    check_close("p", p, pd, 1e-6);
    check_close("m", m, md, 1e-6);
    check_close("v", v, vd, 1e-6);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(((dh_bf16 *)(void *)copy.raw)[i], dh_f32_to_bf16(f32(p)[i]));
    free(vd);
    free(md);
    free(pd);
    buf all[] = {p, m, v, copy};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

static void binding_respects_the_cpuset(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n = 0;
    const int cores = dh_k_cores_allowed();
    assert_true(cores >= 1);
    assert_fails(&ctx, dh_k_bind_rank(&ctx, 2, 2, 0, &n), DH_EINVAL, "local rank 2");
    assert_fails(&ctx, dh_k_bind_rank(&ctx, 0, 1, -1, &n), DH_EINVAL, "-1 threads");
    assert_ok(&ctx, dh_k_bind_rank(&ctx, 0, 4 * cores, 0, &n)); /* more ranks than cores */
    assert_int_equal(n, 1);
    assert_ok(&ctx, dh_k_bind_rank(&ctx, 0, 1, 3, &n));
    assert_int_equal(n, 3);
    assert_int_equal(omp_get_max_threads(), 3);
    assert_ok(&ctx, dh_k_bind_rank(&ctx, 0, 1, 0, &n));
    assert_int_equal(n, cores);
}

const struct CMUnitTest optim_tests[] = {
    cmocka_unit_test(adamw_matches_float64),
    cmocka_unit_test(binding_respects_the_cpuset),
};
const size_t n_optim_tests = DH_COUNTOF(optim_tests);
