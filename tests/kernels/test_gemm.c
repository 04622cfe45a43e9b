#include "kernel_test.h"

#include <pthread.h>

typedef struct gemm_case {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate, bias;
    int64_t pad; /* added to every leading dimension */
} gemm_case;

static const gemm_case cases[] = {
    {1, 1, 1, false, false, false, false, 0},      {3, 5, 7, false, true, false, true, 0},
    {64, 96, 32, false, true, false, false, 0},    {64, 96, 32, false, false, false, false, 3},
    {96, 32, 64, true, false, true, false, 0},     {96, 32, 64, true, false, false, false, 5},
    {33, 65, 129, true, true, false, false, 0},    {130, 257, 70, false, true, true, false, 8},
    {200, 300, 513, false, false, false, true, 0}, {17, 1000, 64, false, true, false, false, 0},
    {1, 512, 256, false, true, false, true, 0},    {256, 64, 1024, true, false, true, false, 0},
};

static int64_t stored_cols(bool trans, int64_t rows, int64_t cols)
{
    return trans ? rows : cols;
}

static double a_element(buf x, bool trans, int64_t ld, int64_t row, int64_t col)
{
    return get(x, trans ? col * ld + row : row * ld + col);
}

static void run_case(const gemm_case *c, dh_dtype in, dh_dtype out, bool row_invariant,
                     uint64_t *seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    const int64_t lda = stored_cols(c->trans_a, c->m, c->k) + c->pad;
    const int64_t ldb = stored_cols(c->trans_b, c->k, c->n) + c->pad, ldc = c->n + c->pad;
    buf a = buf_random(in, (c->trans_a ? c->k : c->m) * lda, 1, seed);
    buf b = buf_random(in, (c->trans_b ? c->n : c->k) * ldb, 1, seed);
    buf bias = buf_random(DH_F32, c->n, 1, seed), y = buf_random(out, c->m * ldc, 1, seed);
    double *want = widen(y);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            double sum = c->accumulate ? want[i * ldc + j] : 0;
            if (c->bias) sum += get(bias, j);
            for (int64_t l = 0; l < c->k; l++)
                sum += a_element(a, c->trans_a, lda, i, l) * a_element(b, c->trans_b, ldb, l, j);
            want[i * ldc + j] = sum;
        }

    const dh_gemm_desc desc = {.m = c->m,
                               .n = c->n,
                               .k = c->k,
                               .trans_a = c->trans_a,
                               .trans_b = c->trans_b,
                               .lda = lda,
                               .ldb = ldb,
                               .ldc = ldc,
                               .in = in,
                               .out = out,
                               .accumulate = c->accumulate,
                               .bias = c->bias,
                               .row_invariant = row_invariant};
    dh_gemm *g;
    assert_ok(&ctx, dh_gemm_create(&ctx, &desc, &g));
    void *ws = scratch_new(dh_gemm_workspace(g));
    buf again = buf_copy(y);
    assert_ok(&ctx, dh_gemm_run(&ctx, g, a.raw, b.raw, c->bias ? f32(bias) : NULL, y.raw, ws));
    /* Sums of k <= 1024 products below 1 reach 20; each addition rounds at 1e-6 of that. */
    check_close("gemm", y, want, out == DH_BF16 ? 4.5e-3 : 4e-5);

    omp_set_num_threads(1); /* another setting at run time changes nothing */
    assert_ok(&ctx, dh_gemm_run(&ctx, g, a.raw, b.raw, c->bias ? f32(bias) : NULL, again.raw, ws));
    assert_int_equal(omp_get_max_threads(), 1);
    omp_set_num_threads(2);
    assert_true(buf_same(y, again));

    scratch_free(ws, dh_gemm_workspace(g));
    dh_gemm_destroy(g);
    free(want);
    buf_free(again);
    buf_free(y);
    buf_free(bias);
    buf_free(b);
    buf_free(a);
}

static void gemm_matches_reference(void **state)
{
    uint64_t seed = test_seed("gemm");
    omp_set_num_threads(2);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        run_case(&cases[i], DH_F32, DH_F32, false, &seed);
        run_case(&cases[i], DH_F32, DH_F32, true, &seed);
        run_case(&cases[i], DH_BF16, DH_F32, false, &seed);
        run_case(&cases[i], DH_BF16, DH_BF16, false, &seed);
    }
}

/* y = x w^T in two halves of rows has the bits of the whole. */
static void rows_do_not_depend_on_slicing(void **state)
{
    uint64_t seed = test_seed("gemm slices");
    dh_ctx ctx = DH_CTX_INIT;
    EACH_DTYPE(T)
    {
        enum { M = 96, N = 80, K = 640 };
        buf x = buf_random(T, M * K, 1, &seed), w = buf_random(T, N * K, 1, &seed);
        buf whole = buf_new(T, M * N), parts = buf_new(T, M * N);
        dh_gemm_desc desc = {
            .m = M, .n = N, .k = K, .trans_b = true, .in = T, .out = T, .row_invariant = true};
        for (int64_t rows = M; rows >= M / 8; rows /= 2) {
            dh_gemm *g;
            desc.m = rows;
            assert_ok(&ctx, dh_gemm_create(&ctx, &desc, &g));
            void *ws = scratch_new(dh_gemm_workspace(g));
            buf y = rows == M ? whole : parts;
            for (int64_t i = 0; i < M; i += rows)
                assert_ok(&ctx, dh_gemm_run(&ctx, g, at(x, i * K), w.raw, NULL, at(y, i * N), ws));
            scratch_free(ws, dh_gemm_workspace(g));
            dh_gemm_destroy(g);
            if (rows != M) assert_true(buf_same(whole, parts));
        }
        buf_free(parts);
        buf_free(whole);
        buf_free(w);
        buf_free(x);
    }
}

/* One plan, several threads at once, each with its own scratch and result. */
typedef struct worker {
    const dh_gemm *g;
    buf a, b, y;
    dh_status st;
} worker;

static void *run_worker(void *arg)
{
    worker *w = arg;
    dh_ctx ctx = DH_CTX_INIT;
    void *ws = scratch_new(dh_gemm_workspace(w->g));
    for (int i = 0; i < 10 && w->st == DH_OK; i++)
        w->st = dh_gemm_run(&ctx, w->g, w->a.raw, w->b.raw, NULL, w->y.raw, ws);
    scratch_free(ws, dh_gemm_workspace(w->g));
    return NULL;
}

static void one_plan_serves_many_threads(void **state)
{
    uint64_t seed = test_seed("gemm threads");
    dh_ctx ctx = DH_CTX_INIT;
    EACH_DTYPE(T)
    {
        enum { M = 64, N = 96, K = 128, WORKERS = 4 };
        buf a = buf_random(T, M * K, 1, &seed), b = buf_random(T, N * K, 1, &seed);
        const dh_gemm_desc desc = {.m = M, .n = N, .k = K, .trans_b = true, .in = T, .out = T};
        dh_gemm *g;
        assert_ok(&ctx, dh_gemm_create(&ctx, &desc, &g));
        worker w[WORKERS];
        pthread_t thread[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            w[i] = (worker){g, a, b, buf_new(T, M * N), DH_OK};
            assert_int_equal(pthread_create(&thread[i], NULL, run_worker, &w[i]), 0);
        }
        for (int i = 0; i < WORKERS; i++) {
            pthread_join(thread[i], NULL);
            assert_int_equal(w[i].st, DH_OK);
            assert_true(buf_same(w[0].y, w[i].y));
        }
        for (int i = 0; i < WORKERS; i++) buf_free(w[i].y);
        dh_gemm_destroy(g);
        buf_free(b);
        buf_free(a);
    }
}

static void refuses_impossible_gemms(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_gemm *g;
    dh_gemm_desc d = {.m = 4, .n = 0, .k = 4};
    assert_fails(&ctx, dh_gemm_create(&ctx, &d, &g), DH_EINVAL, "4 x 0 x 4");
    d = (dh_gemm_desc){.m = 4, .n = 4, .k = 4, .out = DH_BF16};
    assert_fails(&ctx, dh_gemm_create(&ctx, &d, &g), DH_EINVAL, "f32 to bf16");
    d = (dh_gemm_desc){.m = 4, .n = 4, .k = 4, .bias = true, .accumulate = true};
    assert_fails(&ctx, dh_gemm_create(&ctx, &d, &g), DH_EINVAL, "cannot accumulate");
    d = (dh_gemm_desc){.m = 4, .n = 4, .k = 4, .ldc = 3};
    assert_fails(&ctx, dh_gemm_create(&ctx, &d, &g), DH_EINVAL, "below the row lengths");
    dh_gemm_destroy(NULL);
}

static void peak_is_a_rate(void **state)
{
    const double peak = dh_k_gemm_peak(DH_F32, 1);
    printf("GEMM peak: %.0f GFLOP/s float32 on one thread\n", peak / 1e9);
    assert_true(peak > 1e8 && peak < 1e14);
}

const struct CMUnitTest gemm_tests[] = {
    cmocka_unit_test(gemm_matches_reference),
    cmocka_unit_test(rows_do_not_depend_on_slicing),
    cmocka_unit_test(one_plan_serves_many_threads),
    cmocka_unit_test(refuses_impossible_gemms),
    cmocka_unit_test(peak_is_a_rate),
};
const size_t n_gemm_tests = DH_COUNTOF(gemm_tests);
