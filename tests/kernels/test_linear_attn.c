/* Linear attention against its definition in float64: every query against every key.
 *
 * Tolerances, over an element plus its array's root mean square. float32: sums of up to T D
 * products with relative error 6e-8 each, grouped by chunks and states; bf16: one rounding of each
 * result (2^-9), and inputs that are exact. */
#include "kernel_test.h"

typedef struct linear_case {
    int64_t B, T, H, KV, D;
} linear_case;

/* Within a chunk of 64, at its edges, behind it; widths that are whole vectors and not. */
static const linear_case cases[] = {
    {1, 1, 1, 1, 8},    {2, 3, 2, 1, 10},  {1, 63, 2, 2, 16},
    {1, 64, 4, 2, 12},  {2, 65, 4, 1, 24}, {1, 200, 3, 3, 64},
    {1, 130, 2, 1, 80}, {3, 129, 2, 2, 6}, {1, 70, 1, 1, 258},
};

static int64_t columns(const linear_case *c)
{
    return (c->H + 2 * c->KV) * c->D;
}

static dh_linear_shape shape_of(const linear_case *c, dh_dtype dtype, dh_dtype out)
{
    return (dh_linear_shape){.dtype = dtype,
                             .o_dtype = out,
                             .g_dtype = out,
                             .B = c->B,
                             .T = c->T,
                             .H = c->H,
                             .KV = c->KV,
                             .D = c->D};
}

/* Heads of a packed row: queries, keys, values. */
static double *head(const linear_case *c, double *packed, int64_t b, int64_t t, int64_t column)
{
    return packed + (b * c->T + t) * columns(c) + column * c->D;
}

static double dot(int64_t n, const double *x, const double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void axpy(int64_t n, double a, const double *x, double *y)
{
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* o, and by pairs what each gives to dq, dk and dv. */
static void reference(const linear_case *c, double *qkv, const double *dout, double *o,
                      double *dqkv)
{
    const int64_t D = c->D, group = c->H / c->KV;
    for (int64_t b = 0; b < c->B; b++)
        for (int64_t h = 0; h < c->H; h++)
            for (int64_t t = 0; t < c->T; t++)
                for (int64_t s = 0; s <= t; s++) {
                    const int64_t k = c->H + h / group, v = k + c->KV;
                    const int64_t row = ((b * c->T + t) * c->H + h) * D;
                    const double score = dot(D, head(c, qkv, b, t, h), head(c, qkv, b, s, k));
                    const double dscore = dot(D, dout + row, head(c, qkv, b, s, v));
                    axpy(D, score, head(c, qkv, b, s, v), o + row);
                    axpy(D, dscore, head(c, qkv, b, s, k), head(c, dqkv, b, t, h));
                    axpy(D, dscore, head(c, qkv, b, t, h), head(c, dqkv, b, s, k));
                    axpy(D, score, dout + row, head(c, dqkv, b, s, v));
                }
}

static void check(const char *what, const linear_case *c, buf got, const double *want,
                  double tolerance)
{
    double squares = 0, worst = 0;
    for (int64_t i = 0; i < got.n; i++) squares += want[i] * want[i];
    const double size = sqrt(squares / (double)got.n);
    for (int64_t i = 0; i < got.n; i++) {
        const double e = fabs(get(got, i) - want[i]) / (size + fabs(want[i]));
        if (!(e <= worst)) worst = e;
    }
    if (!(worst <= tolerance))
        fail_msg("%s of B%lld T%lld H%lld/%lld D%lld %s: off by %g", what, (long long)c->B,
                 (long long)c->T, (long long)c->H, (long long)c->KV, (long long)c->D,
                 dh_dtype_name(got.dtype), worst);
}

static double allowed(dh_dtype dtype)
{
    return dtype == DH_BF16 ? 4.5e-3 : 5e-6;
}

/* A call's operands, its reference, and scratch. */
typedef struct fixture {
    const linear_case *c;
    buf qkv, dout;
    double *o, *dqkv;
    size_t ws_bytes;
    void *ws;
} fixture;

static fixture fixture_new(const linear_case *c, dh_dtype dtype, uint64_t *seed)
{
    const int64_t n = c->B * c->T;
    const dh_linear_shape s = shape_of(c, dtype, dtype);
    fixture f = {.c = c,
                 .qkv = buf_random(dtype, n * columns(c), 1, seed),
                 .dout = buf_random(dtype, n * c->H * c->D, 1, seed),
                 .o = zeros(n * c->H * c->D),
                 .dqkv = zeros(n * columns(c)),
                 .ws_bytes = dh_k_linear_workspace(&s)};
    double *qkv = widen(f.qkv), *dout = widen(f.dout);
    reference(c, qkv, dout, f.o, f.dqkv);
    free(qkv);
    free(dout);
    f.ws = scratch_new(f.ws_bytes);
    return f;
}

static void fixture_free(fixture *f)
{
    buf_free(f->qkv);
    buf_free(f->dout);
    free(f->o);
    free(f->dqkv);
    scratch_free(f->ws, f->ws_bytes);
}

static void is_its_definition(void **state)
{
    uint64_t seed = test_seed("linear attention");
    EACH_DTYPE(dtype)
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (dh_dtype out = DH_F32; out <= dtype; out = (dh_dtype)(out + 1)) {
            fixture f = fixture_new(&cases[i], dtype, &seed);
            const dh_linear_shape s = shape_of(&cases[i], dtype, out);
            buf o = buf_new(out, f.dout.n), dqkv = buf_new(out, f.qkv.n);
            dh_k_linear_fwd(&s, f.qkv.raw, NULL, o.raw, f.ws);
            dh_k_linear_bwd(&s, f.dout.raw, f.qkv.raw, dqkv.raw, f.ws);
            check("o", f.c, o, f.o, allowed(out));
            check("dqkv", f.c, dqkv, f.dqkv, allowed(out));
            buf_free(o);
            buf_free(dqkv);
            fixture_free(&f);
        }
}

/* ---- in shares ------------------------------------------------------------------------------ */

/* Tokens [t0, t0 + n) of every sample. */
static buf tokens_of(buf whole, int64_t B, int64_t T, int64_t t0, int64_t n)
{
    const int64_t row = whole.n / (B * T);
    buf part = buf_new(whole.dtype, B * n * row);
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < n * row; i++)
            set(part, b * n * row + i, get(whole, (b * T + t0) * row + i));
    return part;
}

static void put_tokens(buf whole, int64_t B, int64_t T, int64_t t0, int64_t n, buf part)
{
    const int64_t row = whole.n / (B * T);
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < n * row; i++)
            set(whole, (b * T + t0) * row + i, get(part, b * n * row + i));
}

/* Two shares of a sequence, each by itself, joined by the state of the first and the gradient of
 * that by the second. */
static void check_shares(const linear_case *c, dh_dtype dtype, uint64_t *seed)
{
    fixture f = fixture_new(c, dtype, seed);
    const int64_t cut = c->T / 3, begin[2] = {0, cut}, n[2] = {cut, c->T - cut};
    const int64_t n_state = c->B * c->KV * c->D * c->D;
    buf m = buf_new(DH_F32, n_state), dm = buf_new(DH_F32, n_state);
    buf o = buf_new(dtype, f.dout.n), dqkv = buf_new(dtype, f.qkv.n);
    for (int i = 0; i < 2; i++) {
        linear_case part = *c;
        part.T = n[i];
        const dh_linear_shape s = shape_of(&part, dtype, DH_F32);
        buf qkv = tokens_of(f.qkv, c->B, c->T, begin[i], n[i]);
        buf dout = tokens_of(f.dout, c->B, c->T, begin[i], n[i]);
        if (i == 0) dh_k_linear_state(&s, qkv.raw, f32(m), f.ws);
        if (i == 1) dh_k_linear_state_grad(&s, dout.raw, qkv.raw, f32(dm), f.ws);
        buf_free(qkv);
        buf_free(dout);
    }
    for (int i = 0; i < 2; i++) {
        linear_case part = *c;
        part.T = n[i];
        const dh_linear_shape own = shape_of(&part, dtype, DH_F32),
                              all = shape_of(&part, dtype, dtype);
        buf qkv = tokens_of(f.qkv, c->B, c->T, begin[i], n[i]);
        buf dout = tokens_of(f.dout, c->B, c->T, begin[i], n[i]);
        buf o_own = buf_new(DH_F32, dout.n), o_all = buf_new(dtype, dout.n);
        buf d_own = buf_new(DH_F32, qkv.n), d_all = buf_new(dtype, qkv.n);
        dh_k_linear_fwd(&own, qkv.raw, NULL, o_own.raw, f.ws);
        dh_k_linear_join(&all, f32(o_own), qkv.raw, i ? f32(m) : NULL, o_all.raw, f.ws);
        dh_k_linear_bwd(&own, dout.raw, qkv.raw, d_own.raw, f.ws);
        dh_k_linear_join_bwd(&all, f32(d_own), dout.raw, qkv.raw, i ? f32(m) : NULL,
                             i ? NULL : f32(dm), d_all.raw, f.ws);
        put_tokens(o, c->B, c->T, begin[i], n[i], o_all);
        put_tokens(dqkv, c->B, c->T, begin[i], n[i], d_all);
        buf_free(qkv), buf_free(dout), buf_free(o_own), buf_free(o_all);
        buf_free(d_own), buf_free(d_all);
    }
    check("o in shares", c, o, f.o, allowed(dtype));
    check("dqkv in shares", c, dqkv, f.dqkv, allowed(dtype));
    buf_free(m), buf_free(dm), buf_free(o), buf_free(dqkv);
    fixture_free(&f);
}

static void shares_are_joined(void **state)
{
    uint64_t seed = test_seed("shares of linear attention");
    EACH_DTYPE(dtype)
    for (size_t i = 1; i < DH_COUNTOF(cases); i++) check_shares(&cases[i], dtype, &seed);
}

/* Token by token, and in runs of several, from the state that the tokens before left. */
static void a_state_goes_on(void **state)
{
    static const int64_t runs[] = {1, 7, 64, 100};
    static const linear_case c = {1, 133, 4, 2, 20};
    uint64_t seed = test_seed("state of linear attention");
    for (size_t k = 0; k < DH_COUNTOF(runs); k++) {
        fixture f = fixture_new(&c, DH_F32, &seed);
        buf m = buf_new(DH_F32, c.KV * c.D * c.D), o = buf_new(DH_F32, f.dout.n);
        memset(m.raw, 0, (size_t)m.n * sizeof(float));
        for (int64_t t = 0; t < c.T; t += runs[k]) {
            linear_case part = c;
            part.T = DH_MIN(runs[k], c.T - t);
            const dh_linear_shape s = shape_of(&part, DH_F32, DH_F32);
            dh_k_linear_fwd(&s, at(f.qkv, t * columns(&c)), f32(m), at(o, t * c.H * c.D), f.ws);
        }
        check("o from a state", &c, o, f.o, allowed(DH_F32));
        buf_free(m);
        buf_free(o);
        fixture_free(&f);
    }
}

/* Whoever computes a head computes all of it. */
static void threads_do_not_change_bits(void **state)
{
    uint64_t seed = test_seed("threads of linear attention");
    const linear_case *c = &cases[4];
    fixture f = fixture_new(c, DH_BF16, &seed);
    const dh_linear_shape s = shape_of(c, DH_BF16, DH_BF16);
    buf one = buf_new(DH_BF16, f.qkv.n), four = buf_new(DH_BF16, f.qkv.n);
    const int team = omp_get_max_threads();
    omp_set_num_threads(1);
    dh_k_linear_bwd(&s, f.dout.raw, f.qkv.raw, one.raw, f.ws);
    omp_set_num_threads(4);
    dh_k_linear_bwd(&s, f.dout.raw, f.qkv.raw, four.raw, f.ws);
    omp_set_num_threads(team);
    assert_true(buf_same(one, four));
    buf_free(one);
    buf_free(four);
    fixture_free(&f);
}

/* ---- feature maps --------------------------------------------------------------------------- */

static double map_of(dh_feature_map map, double x)
{
    if (map == DH_FEATURE_ELU) return x > 0 ? 1 + x : exp(x);
    return map == DH_FEATURE_SILU ? x / (1 + exp(-x)) : x;
}

static double map_at(const double *x, const void *map)
{
    return map_of(*(const dh_feature_map *)map, *x);
}

static void maps_have_their_slopes(void **state)
{
    static const dh_heads h = {.N = 5, .H = 3, .KV = 1, .D = 7};
    const int64_t mapped = (h.H + h.KV) * h.D, row = mapped + h.KV * h.D, n = h.N * row;
    uint64_t seed = test_seed("feature maps");
    EACH_DTYPE(dtype)
    for (dh_feature_map map = DH_FEATURE_ELU; map <= DH_FEATURE_SILU;
         map = (dh_feature_map)(map + 1)) {
        buf x = buf_random(dtype, n, 6, &seed), dy = buf_random(dtype, n, 1, &seed);
        double *y = widen(x), *dx = widen(dy);
        for (int64_t i = 0; i < n; i++) {
            if (i % row >= mapped) continue; /* values */
            double at_x = y[i];
            /* The corner of elu at 0 has slope 1 on both sides. */
            dx[i] *= finite_difference(map_at, &at_x, 0, 1e-5, &map);
            y[i] = map_of(map, y[i]);
        }
        buf got = buf_new(dtype, n), same = buf_copy(x);
        dh_k_feature_map_fwd(map, dtype, h, x.raw, got.raw);
        check_close("feature map", got, y, tolerance_of(dtype));
        dh_k_feature_map_fwd(map, dtype, h, same.raw, same.raw);
        assert_true(buf_same(got, same));
        dh_k_feature_map_bwd(map, dtype, h, dy.raw, x.raw, got.raw);
        check_close("its gradient", got, dx, tolerance_of(dtype));
        free(y), free(dx);
        buf_free(x), buf_free(dy), buf_free(got), buf_free(same);
    }
}

/* Far from 0 nothing overflows that the other branch takes. */
static void maps_stay_finite(void **state)
{
    static const dh_heads h = {.N = 1, .H = 1, .KV = 1, .D = 4};
    const float x[12] = {-1e30f, 1e30f, -100, 100, -88, 88, 0, -0.0f, 1, 2, 3, 4};
    static const float elu[12] = {0, 1e30f, 0, 101, 0, 89, 1, 1, 1, 2, 3, 4};
    float y[12], dx[12];
    dh_k_feature_map_fwd(DH_FEATURE_ELU, DH_F32, h, x, y);
    for (int i = 0; i < 12; i++) assert_true(fabsf(y[i] - elu[i]) <= 1e-30f + 1e-6f * elu[i]);
    for (dh_feature_map map = DH_FEATURE_ELU; map <= DH_FEATURE_SILU;
         map = (dh_feature_map)(map + 1)) {
        dh_k_feature_map_fwd(map, DH_F32, h, x, y);
        dh_k_feature_map_bwd(map, DH_F32, h, x, x, dx);
        assert_int_equal(dh_k_first_nonfinite(DH_F32, 12, y), -1);
        if (map == DH_FEATURE_ELU) assert_int_equal(dh_k_first_nonfinite(DH_F32, 12, dx), -1);
    }
}

const struct CMUnitTest linear_tests[] = {
    cmocka_unit_test(is_its_definition),      cmocka_unit_test(shares_are_joined),
    cmocka_unit_test(a_state_goes_on),        cmocka_unit_test(threads_do_not_change_bits),
    cmocka_unit_test(maps_have_their_slopes), cmocka_unit_test(maps_stay_finite),
};
const size_t n_linear_tests = DH_COUNTOF(linear_tests);
