/* Numbers of 8 bits against their definition: every code, the nearest of all of them, and rows and
 * columns whose scales are found by trying. */
#include "kernel_test.h"

#include "run/cpu/fp8.h"

static const dh_fp8_format formats[] = {DH_FP8_FORMAT_E4M3, DH_FP8_FORMAT_E5M2};
static const char *const names[] = {"e4m3", "e5m2"};
static const double greatest[] = {448, 57344};

/* As arXiv 2209.05433, table 1, has it; NaN where the code is none, infinity included. */
static double value_of(dh_fp8_format format, int code)
{
    const int bits = format == DH_FP8_FORMAT_E4M3 ? 3 : 2;
    const int bias = format == DH_FP8_FORMAT_E4M3 ? 7 : 15;
    const int exponent = (code & 0x7f) >> bits, fraction = code & ((1 << bits) - 1);
    const bool none = format == DH_FP8_FORMAT_E4M3 ? (code & 0x7f) == 0x7f : exponent == 31;
    const double size = exponent ? ldexp(1 + ldexp(fraction, -bits), exponent - bias)
                                 : ldexp(fraction, 1 - bias - bits);
    return none ? NAN : code & 0x80 ? -size : size;
}

/* The nearest of all numbers, halves to the even code. */
static double nearest(dh_fp8_format format, double x)
{
    double best = NAN;
    int best_code = 0;
    for (int code = 0; code < 128; code++) {
        const double v = value_of(format, code), d = fabs(v - fabs(x));
        if (isnan(v)) continue;
        const double least = fabs(best - fabs(x));
        if (!(d > least) && (!(d == least) || (code % 2 == 0 && best_code % 2 == 1))) {
            best = v;
            best_code = code;
        }
    }
    return copysign(best, x);
}

static void codes_are_the_formats(void **state)
{
    for (int f = 0; f < 2; f++) {
        const dh_fp8_grid grid = dh_fp8_grid_of(formats[f]);
        double most = 0;
        for (int code = 0; code < 256; code++) {
            const double want = value_of(formats[f], code);
            const float got = dh_fp8_value(grid, (uint8_t)code);
            if (isnan(want)) {
                assert_true(isnan(got));
                continue;
            }
            most = fmax(most, want);
            if ((double)got != want || dh_fp8_code(grid, got) != code)
                fail_msg("%s: code %02x is %g, not %g; coded as %02x", names[f], (unsigned)code,
                         (double)got, want, dh_fp8_code(grid, got));
        }
        assert_true(most == greatest[f]);
        assert_int_equal(dh_fp8_code(grid, NAN) & 0x7f, 0x7f);
    }
}

static void rounding_takes_the_nearest(void **state)
{
    uint64_t seed = 7;
    for (int f = 0; f < 2; f++) {
        const dh_fp8_grid grid = dh_fp8_grid_of(formats[f]);
        for (int i = 0; i < 20000; i++) {
            /* Also halves between two neighbours, and what is next to zero. */
            const double size = ldexp(1, (int)(test_rand(&seed) % 30) - 20);
            double x = (double)(float)(size * (1 + (double)(test_rand(&seed) % 64) / 64));
            if (i % 2) x = -x;
            if (fabs(x) > greatest[f]) continue;
            const double got = (double)dh_fp8_round(grid, (float)x), want = nearest(formats[f], x);
            if (got != want) fail_msg("%s: %.9g becomes %.9g, not %.9g", names[f], x, got, want);
        }
        assert_true(isnan(dh_fp8_round(grid, NAN)));
        assert_false(isfinite(dh_fp8_round(grid, INFINITY)));
    }
}

/* The greatest e with which x stays in the format. */
static int scale_by_trying(int f, double x)
{
    int e = 126;
    while (e > -126 && ldexp(x, e) > greatest[f]) e--;
    return e;
}

static void scales_fill_the_format(void **state)
{
    uint64_t seed = 11;
    for (int f = 0; f < 2; f++) {
        const dh_fp8_grid grid = dh_fp8_grid_of(formats[f]);
        for (int i = 0; i < 2000; i++) {
            const double fraction = 1 + (double)(test_rand(&seed) % 128) / 128;
            const double x = ldexp(fraction, (int)(test_rand(&seed) % 200) - 100);
            assert_int_equal(dh_fp8_scale(grid, (float)x), scale_by_trying(f, x));
        }
        assert_int_equal(dh_fp8_scale(grid, 0), 0);
        assert_int_equal(dh_fp8_scale(grid, INFINITY), 0);
    }
}

static double greatest_of(buf x, int64_t first, int64_t step, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(get(x, first + i * step)));
    return most;
}

/* One run, n elements from `first` on, `step` apart. */
static void check_run(int f, buf x, buf y, int64_t first, int64_t step, int64_t n)
{
    const int e = scale_by_trying(f, greatest_of(x, first, step, n));
    for (int64_t i = first; i < first + n * step; i += step) {
        const double want = ldexp(nearest(formats[f], ldexp(get(x, i), e)), -e);
        if (get(y, i) != want)
            fail_msg("%s: element %lld, %g, becomes %g, not %g", names[f], (long long)i, get(x, i),
                     get(y, i), want);
    }
}

static void rows_and_columns_have_their_scales(void **state)
{
    static const int64_t sizes[][2] = {{1, 1}, {3, 5}, {33, 130}, {64, 64}, {257, 48}};
    uint64_t seed = 3;
    for (size_t s = 0; s < DH_COUNTOF(sizes); s++)
        for (int f = 0; f < 2; f++) {
            const int64_t N = sizes[s][0], C = sizes[s][1];
            buf x = buf_random(DH_BF16, N * C, 1, &seed), y = buf_new(DH_BF16, N * C);
            buf scales = buf_new(DH_F32, C);
            /* Rows and columns of very different sizes, so that sharing a scale shows. */
            for (int64_t i = 0; i < N * C; i++)
                set(x, i, ldexp(get(x, i), (int)((i / C) % 7 * 5 - i % C % 5 * 6)));
            dh_k_fp8_rows(formats[f], N, C, (dh_bf16 *)(void *)x.raw, (dh_bf16 *)(void *)y.raw);
            for (int64_t n = 0; n < N; n++) check_run(f, x, y, n * C, 1, C);
            dh_k_fp8_columns(formats[f], N, C, (dh_bf16 *)(void *)x.raw, (dh_bf16 *)(void *)y.raw,
                             f32(scales));
            for (int64_t c = 0; c < C; c++) check_run(f, x, y, c, C, N);
            buf_free(scales);
            buf_free(y);
            buf_free(x);
        }
}

/* Rows of 3 experts in 6 runs, some empty, and rows behind them that nobody has written. */
enum { X_E = 3, X_RUNS = 6, X_ROWS = 90, X_C = 70 };
static const int64_t x_offsets[X_RUNS + 1] = {0, 7, 7, 40, 41, 60, 83};

static double greatest_of_expert(buf x, int64_t e, int64_t c)
{
    double most = 0;
    for (int64_t s = e; s < X_RUNS; s += X_E)
        for (int64_t n = x_offsets[s]; n < x_offsets[s + 1]; n++)
            most = fmax(most, fabs(get(x, n * X_C + c)));
    return most;
}

static void columns_of_experts_have_their_scales(void **state)
{
    uint64_t seed = 5;
    for (int f = 0; f < 2; f++) {
        buf x = buf_random(DH_BF16, X_ROWS * X_C, 1, &seed), y = buf_new(DH_BF16, X_ROWS * X_C);
        buf scales = buf_new(DH_F32, X_E * X_C);
        for (int64_t i = 0; i < X_ROWS * X_C; i++)
            set(x, i,
                i / X_C >= x_offsets[X_RUNS] ? (double)NAN
                                             : ldexp(get(x, i), (int)((i / X_C) % 9 * 4)));
        dh_k_fp8_expert_columns(formats[f], X_E, X_RUNS, x_offsets, X_C, (dh_bf16 *)(void *)x.raw,
                                (dh_bf16 *)(void *)y.raw, f32(scales));
        for (int64_t s = 0; s < X_RUNS; s++)
            for (int64_t i = x_offsets[s] * X_C; i < x_offsets[s + 1] * X_C; i++) {
                const int e = scale_by_trying(f, greatest_of_expert(x, s % X_E, i % X_C));
                const double want = ldexp(nearest(formats[f], ldexp(get(x, i), e)), -e);
                if (get(y, i) != want)
                    fail_msg("%s: run %d, element %d: %g becomes %g, not %g", names[f], (int)s,
                             (int)i, get(x, i), get(y, i), want);
            }
        buf_free(scales);
        buf_free(y);
        buf_free(x);
    }
}

/* In which runs an expert's rows come, as from other ranks, changes no number. */
static void runs_change_no_number(void **state)
{
    static const int64_t whole[2] = {0, 60}, runs[5] = {0, 1, 20, 20, 60};
    uint64_t seed = 9;
    buf x = buf_random(DH_BF16, 60 * X_C, 1, &seed), scales = buf_new(DH_F32, X_C);
    buf y[2] = {buf_new(DH_BF16, 60 * X_C), buf_new(DH_BF16, 60 * X_C)};
    dh_k_fp8_expert_columns(DH_FP8_FORMAT_E5M2, 1, 1, whole, X_C, (dh_bf16 *)(void *)x.raw,
                            (dh_bf16 *)(void *)y[0].raw, f32(scales));
    dh_k_fp8_expert_columns(DH_FP8_FORMAT_E5M2, 1, 4, runs, X_C, (dh_bf16 *)(void *)x.raw,
                            (dh_bf16 *)(void *)y[1].raw, f32(scales));
    assert_memory_equal(y[0].raw, y[1].raw, 60 * X_C * sizeof(dh_bf16));
    buf all[] = {x, scales, y[0], y[1]};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

/* What is not a number stays so, and is seen. */
static void nothing_hides_what_is_not_finite(void **state)
{
    dh_bf16 x[4], y[4];
    float scales[4];
    for (int i = 0; i < 4; i++) x[i] = dh_f32_to_bf16(i == 1 ? NAN : i == 2 ? INFINITY : 0.5f);
    dh_k_fp8_rows(DH_FP8_FORMAT_E4M3, 1, 4, x, y);
    assert_false(isfinite(dh_bf16_to_f32(y[1])));
    assert_false(isfinite(dh_bf16_to_f32(y[2])));
    dh_k_fp8_columns(DH_FP8_FORMAT_E5M2, 2, 2, x, y, scales);
    assert_false(isfinite(dh_bf16_to_f32(y[1])));
    assert_false(isfinite(dh_bf16_to_f32(y[2])));
    assert_true(dh_bf16_to_f32(y[3]) == 0.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_formats),
        cmocka_unit_test(rounding_takes_the_nearest),
        cmocka_unit_test(scales_fill_the_format),
        cmocka_unit_test(rows_and_columns_have_their_scales),
        cmocka_unit_test(columns_of_experts_have_their_scales),
        cmocka_unit_test(runs_change_no_number),
        cmocka_unit_test(nothing_hides_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
