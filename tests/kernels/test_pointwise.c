#include "kernel_test.h"

static void free_all(buf *all, size_t n)
{
    for (size_t i = 0; i < n; i++) buf_free(all[i]);
}
#define FREE_ALL(...) free_all((buf[]){__VA_ARGS__}, sizeof((buf[]){__VA_ARGS__}) / sizeof(buf))

/* ---- exp ------------------------------------------------------------------------------- */

static double ulp_of(float x)
{
    return (double)nextafterf(fabsf(x), INFINITY) - (double)fabsf(x);
}

static void exp_is_within_its_bound(void **state)
{
    const dh_simd *simd = dh_simd_get();
    double worst = 0;
    for (double start = -87.3; start < 88.7; start += 0.0311) {
        float x[37], y[37];
        for (int i = 0; i < 37; i++) x[i] = (float)(start + 0.00084 * i);
        simd->exp(37, x, y);
        for (int i = 0; i < 37; i++) {
            const double want = exp((double)x[i]);
            worst = fmax(worst, fabs((double)y[i] - want) / ulp_of((float)want));
        }
    }
    printf("%s exp: worst error %.3f ulp\n", simd->name, worst);
    assert_true(worst < 1.5);
    const float edges[] = {0.0f, -200.0f, 100.0f, NAN, INFINITY, -INFINITY, -103.0f};
    float y[7];
    simd->exp(7, edges, y);
    assert_true(y[0] == 1 && y[1] == 0 && isinf(y[2]) && isnan(y[3]) && isinf(y[4]) && y[5] == 0);
    assert_true(y[6] >= 0 && y[6] < 4e-45f);
}

/* ---- activations ----------------------------------------------------------------------- */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double slope(double (*f)(double), double x)
{
    return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}

/* bf16 keeps relative precision, so errors are measured against the value where large. */
static void gelu_matches_tanh_form(void **state)
{
    uint64_t seed = test_seed("gelu");
    EACH_DTYPE(T)
    {
        const int64_t n = 40007;
        buf h = buf_random(T, n, 12, &seed), dg = buf_random(T, n, 1, &seed);
        set(h, 0, 1e30);
        set(h, 1, -1e30);
        buf g = buf_new(T, n), dh = buf_new(T, n);
        dh_k_gelu_fwd(T, n, h.raw, g.raw);
        dh_k_gelu_bwd(T, n, dg.raw, h.raw, dh.raw);
        for (int64_t i = 2; i < n; i++) {
            const double x = get(h, i);
            check_value("gelu", get(g, i), gelu(x), T == DH_BF16 ? 4.5e-3 : 5e-7);
            check_value("gelu gradient", get(dh, i), get(dg, i) * slope(gelu, x),
                        T == DH_BF16 ? 4.5e-3 : 1e-6);
        }
        assert_true(get(g, 0) == get(h, 0) && get(g, 1) <= 0 && get(g, 1) > -1e-6);
        assert_true(get(dh, 0) == get(dg, 0) && fabs(get(dh, 1)) < 1e-6);
        dh_k_gelu_bwd(T, n, dg.raw, h.raw, h.raw); /* in place */
        assert_true(buf_same(h, dh));
        FREE_ALL(h, dg, g, dh);
    }
}

static void swiglu_matches_reference(void **state)
{
    uint64_t seed = test_seed("swiglu");
    EACH_DTYPE(T)
    {
        enum { N = 37, F = 301 };
        const double tolerance = T == DH_BF16 ? 4.5e-3 : 1e-6;
        buf h = buf_random(T, N * 2 * F, 6, &seed), g = buf_new(T, N * F);
        buf dg = buf_random(T, N * F, 1, &seed), dh = buf_new(T, N * 2 * F);
        dh_k_swiglu_fwd(T, N, F, h.raw, g.raw);
        dh_k_swiglu_bwd(T, N, F, dg.raw, h.raw, dh.raw);
        for (int64_t i = 0; i < N * F; i++) {
            const int64_t gate = i / F * 2 * F + i % F, up = gate + F;
            const double a = get(h, gate), b = get(h, up), d = get(dg, i);
            check_value("swiglu", get(g, i), silu(a) * b, tolerance);
            check_value("swiglu dgate", get(dh, gate), d * b * slope(silu, a), tolerance);
            check_value("swiglu dup", get(dh, up), d * silu(a), tolerance);
        }
        dh_k_swiglu_bwd(T, N, F, dg.raw, h.raw, h.raw);
        assert_true(buf_same(h, dh));
        FREE_ALL(h, g, dg, dh);
    }
}

/* ---- dropout and residual -------------------------------------------------------------- */

typedef struct rows {
    int64_t sample[64];
    int32_t pos[64];
} rows;

static dh_dropout dropout_for(rows *r, int64_t N, int64_t T, float prob)
{
    for (int64_t n = 0; n < N; n++) {
        r->sample[n] = 100 + n / T;
        r->pos[n] = (int32_t)(n % T);
    }
    return (dh_dropout){
        .prob = prob, .seed = 7, .step = 3, .site = 5, .row_sample = r->sample, .row_pos = r->pos};
}

/* Factor of one element by the scalar Philox: the mapping kernels.h promises. */
static double factor_of(const dh_dropout *d, int64_t n, int64_t c)
{
    const uint64_t key = dh_mix64(dh_mix64(dh_mix64(d->seed) + d->step) + d->site);
    const uint32_t ctr[4] = {(uint32_t)(c / 64 * 16 + c % 16), (uint32_t)d->row_pos[n],
                             (uint32_t)d->row_sample[n],
                             (uint32_t)((uint64_t)d->row_sample[n] >> 32)};
    uint32_t word[4];
    dh_philox4x32((dh_philox_key){{(uint32_t)key, (uint32_t)(key >> 32)}}, ctr, word);
    const bool keep = dh_u32_to_unit(word[c % 64 / 16]) >= d->prob;
    return keep ? 1 / (1 - (double)d->prob) : 0;
}

static void residual_adds_dropped_branch(void **state)
{
    uint64_t seed = test_seed("residual");
    EACH_DTYPE(T)
    {
        enum { N = 21, C = 203 };
        const double tolerance = T == DH_BF16 ? 4e-3 : 1e-6;
        rows r;
        dh_dropout drop = dropout_for(&r, N, 7, 0.25f);
        buf x = buf_random(T, N * C, 1, &seed), p = buf_random(T, N * C, 1, &seed);
        buf bias = buf_random(DH_F32, C, 1, &seed), out = buf_new(T, N * C), dp = buf_new(T, N * C);
        dh_k_residual(T, N, C, x.raw, p.raw, f32(bias), &drop, out.raw);
        dh_k_dropout_grad(T, N, C, p.raw, &drop, dp.raw);
        int64_t dropped = 0;
        for (int64_t i = 0; i < N * C; i++) {
            const double f = factor_of(&drop, i / C, i % C);
            check_value("residual", get(out, i), get(x, i) + f * (get(p, i) + get(bias, i % C)),
                        tolerance);
            check_value("dropout gradient", get(dp, i), f * get(p, i), tolerance);
            dropped += f == 0;
        }
        /* 4263 draws of p = 0.25: six standard deviations are 0.04. */
        check_value("dropped share", (double)dropped / (N * C), 0.25, 0.04);
        dh_k_residual(T, N, C, x.raw, p.raw, NULL, NULL, out.raw);
        for (int64_t i = 0; i < N * C; i++)
            check_value("sum", get(out, i), get(x, i) + get(p, i), tolerance);
        dh_k_residual(T, N, C, x.raw, p.raw, NULL, NULL, p.raw); /* in place */
        assert_true(buf_same(p, out));
        FREE_ALL(x, p, bias, out, dp);
    }
}

/* A row keeps its mask wherever the mesh puts it; another step, site or sample has
 * another mask. */
static void dropout_depends_on_coordinates_alone(void **state)
{
    enum { N = 16, C = 128 };
    rows r;
    dh_dropout drop = dropout_for(&r, N, 8, 0.5f);
    buf ones = buf_new(DH_F32, N * C), all = buf_new(DH_F32, N * C), one = buf_new(DH_F32, C);
    for (int64_t i = 0; i < N * C; i++) set(ones, i, 1);
    dh_k_dropout_grad(DH_F32, N, C, ones.raw, &drop, all.raw);
    for (int64_t n = 0; n < N; n++) {
        dh_dropout part = drop;
        part.row_sample += n;
        part.row_pos += n;
        dh_k_dropout_grad(DH_F32, 1, C, ones.raw, &part, one.raw);
        assert_memory_equal(one.raw, at(all, n * C), C * sizeof(float));
    }
    const dh_dropout others[] = {{0.5f, 8, 3, 5, r.sample, r.pos},
                                 {0.5f, 7, 4, 5, r.sample, r.pos},
                                 {0.5f, 7, 3, 6, r.sample, r.pos},
                                 {0.5f, 7, 3, 5, r.sample + 8, r.pos},
                                 {0.5f, 7, 3, 5, r.sample, r.pos + 1}};
    for (size_t i = 0; i < DH_COUNTOF(others); i++) {
        dh_k_dropout_grad(DH_F32, 1, C, ones.raw, &others[i], one.raw);
        assert_memory_not_equal(one.raw, all.raw, C * sizeof(float));
    }
    FREE_ALL(ones, all, one);
}

/* ---- rotary embedding ------------------------------------------------------------------ */

static void rope_table_knows_scalings(void **state)
{
    enum { D = 64, POS = 5000 };
    buf table = buf_new(DH_F32, POS * D), scaled = buf_new(DH_F32, POS * D);
    dh_rope rope = {.theta = 500000, .scaling = DH_ROPE_SCALING_NONE};
    dh_k_rope_table(&rope, POS, D, f32(table));
    for (int64_t i = 0; i < D / 2; i += 5)
        for (int64_t pos = 0; pos < POS; pos += 613) {
            const double angle = (double)pos * pow(500000, -2.0 * (double)i / D);
            check_value("cos", get(table, pos * D + i), cos(angle), 1e-7);
            check_value("sin", get(table, pos * D + D / 2 + i), sin(angle), 1e-7);
        }
    /* Llama 3.1: the fastest pair is kept, the slowest is 8 times slower. */
    rope = (dh_rope){.theta = 500000,
                     .scaling = DH_ROPE_SCALING_LLAMA3,
                     .factor = 8,
                     .low_freq_factor = 1,
                     .high_freq_factor = 4,
                     .original_max_seq = 8192};
    dh_k_rope_table(&rope, POS, D, f32(scaled));
    assert_true(get(scaled, 4000 * D) == get(table, 4000 * D));
    assert_true(get(scaled, 4000 * D + D - 1) == get(table, 500 * D + D - 1));
    /* A middle pair, frequency blended as transformers' _compute_llama3_parameters. */
    const int64_t i = 17;
    const double f = pow(500000, -2.0 * (double)i / D), wavelength = 2 * 3.14159265358979323846 / f;
    assert_true(wavelength > 2048 && wavelength < 8192);
    const double smooth = (8192 / wavelength - 1) / 3, blended = (1 - smooth) * f / 8 + smooth * f;
    check_value("blend", get(scaled, 1000 * D + i), cos(1000 * blended), 1e-6);
    rope = (dh_rope){.theta = 500000, .scaling = DH_ROPE_SCALING_LINEAR, .factor = 4};
    dh_k_rope_table(&rope, POS, D, f32(scaled));
    assert_true(get(scaled, 4000 * D + 3) == get(table, 1000 * D + 3));
    /* Yarn: pairs below 64 ln(4096 / (32 * 2 pi)) / (2 ln 500000) = 7.3, rounded down, are kept,
     * those above 64 ln(4096 / (2 pi)) / (2 ln 500000) = 15.8, rounded up, stretched, and all are
     * multiplied by (1 + 0.07 ln 40) / (1 + 0.1 ln 40). */
    rope = (dh_rope){.theta = 500000,
                     .scaling = DH_ROPE_SCALING_YARN,
                     .factor = 40,
                     .original_max_seq = 4096,
                     .beta_fast = 32,
                     .beta_slow = 1,
                     .mscale = 0.7,
                     .mscale_all = 1};
    const double size = (1 + 0.07 * log(40)) / (1 + 0.1 * log(40));
    dh_k_rope_table(&rope, POS, D, f32(scaled));
    for (int64_t pair = 0; pair < D / 2; pair++) {
        const double stretched = fmin(fmax(((double)pair - 7) / (16 - 7), 0), 1);
        const double own = pow(500000, -2.0 * (double)pair / D);
        const double angle = 3001 * (stretched * own / 40 + (1 - stretched) * own);
        check_value("yarn", get(scaled, 3001 * D + pair), size * cos(angle), 1e-6);
        check_value("yarn", get(scaled, 3001 * D + D / 2 + pair), size * sin(angle), 1e-6);
    }
    /* A magnitude that is given takes the place of that; the usual one is the same. */
    rope.magnitude = 1.5;
    dh_k_rope_table(&rope, POS, D, f32(table));
    for (int64_t at = 0; at < D; at++)
        check_value("magnitude", get(table, 3001 * D + at), 1.5 / size * get(scaled, 3001 * D + at),
                    1e-6);
    rope.mscale = rope.mscale_all = 0;
    rope.factor = 8;
    rope.magnitude = 1.2079441541679836;
    dh_k_rope_table(&rope, POS, D, f32(table));
    rope.magnitude = 0;
    dh_k_rope_table(&rope, POS, D, f32(scaled));
    assert_true(buf_same(table, scaled));
    FREE_ALL(table, scaled);
}

/* Each pair's frequency divided by its factor: the short ones up to the first training's length. */
static void longrope_has_two_lists(void **state)
{
    enum { D = 8, FIRST = 40 };
    dh_rope rope = {.theta = 10000, .scaling = DH_ROPE_SCALING_LONGROPE, .original_max_seq = FIRST};
    const dh_longrope l = {.short_factors = {4, {1, 1.5, 2, 4}},
                           .long_factors = {4, {2, 5, 9, 30}},
                           .short_mscale = 1.25,
                           .long_mscale = 1.5};
    for (int64_t n = FIRST; n <= FIRST + 1; n++) {
        const double *factors = n > FIRST ? l.long_factors.at : l.short_factors.at;
        const double size = n > FIRST ? 1.5 : 1.25;
        buf table = buf_new(DH_F32, n * D);
        dh_k_longrope_table(&rope, &l, n, D, f32(table));
        for (int64_t i = 0; i < n * D / 2; i++) {
            const int64_t pos = i / (D / 2), pair = i % (D / 2);
            const double angle = (double)pos / (factors[pair] * pow(10000, 2.0 * (double)pair / D));
            check_value("cos", get(table, pos * D + pair), size * cos(angle), 1e-6);
            check_value("sin", get(table, pos * D + D / 2 + pair), size * sin(angle), 1e-6);
        }
        buf_free(table);
    }
}

/* Of one number of turns: Kimi K2's 1 turn lies at pair 64 ln(4096 / (2 pi)) / (2 ln 50000) =
 * 19.2, so that 19 is the last to be kept; 800 turns lie at -0.6, so that only 0 is, since what
 * begins and ends at 0 ends at 0.001 (_compute_yarn_parameters). */
static void yarn_may_blend_nothing(void **state)
{
    enum { D = 64, POS = 3002 };
    static const double turns[] = {1, 800};
    static const int64_t last_kept[] = {19, 0};
    buf table = buf_new(DH_F32, POS * D);
    for (size_t i = 0; i < DH_COUNTOF(turns); i++) {
        const dh_rope rope = {.theta = 50000,
                              .scaling = DH_ROPE_SCALING_YARN,
                              .factor = 32,
                              .original_max_seq = 4096,
                              .beta_fast = turns[i],
                              .beta_slow = turns[i],
                              .mscale = 1,
                              .mscale_all = 1};
        dh_k_rope_table(&rope, POS, D, f32(table));
        for (int64_t pair = 0; pair < D / 2; pair++) {
            const double own = 3001 * pow(50000, -2.0 * (double)pair / D);
            const double angle = pair <= last_kept[i] ? own : own / 32;
            check_value("yarn", get(table, 3001 * D + pair), cos(angle), 1e-6);
            check_value("yarn", get(table, 3001 * D + D / 2 + pair), sin(angle), 1e-6);
        }
    }
    buf_free(table);
}

static void rope_rotates_and_back(void **state)
{
    uint64_t seed = test_seed("rope");
    enum { N = 19, H = 3, KV = 1, D = 10, ROW = (H + 2 * KV) * D, POS = 50 };
    const dh_rope rope = {.theta = 10000};
    buf table = buf_new(DH_F32, POS * D);
    dh_k_rope_table(&rope, POS, D, f32(table));
    int32_t pos[N];
    for (int n = 0; n < N; n++) pos[n] = (int32_t)(test_rand(&seed) % POS);
    EACH_DTYPE(T)
    {
        const double tolerance = T == DH_BF16 ? 4.5e-3 : 1e-6;
        buf x = buf_random(T, N * ROW, 1, &seed), y = buf_new(T, N * ROW), z = buf_new(T, N * ROW);
        dh_k_rope(T, N, N, H, KV, D, x.raw, f32(table), pos, false, y.raw);
        for (int64_t n = 0; n < N; n++)
            for (int64_t c = 0; c < ROW; c++) {
                const int64_t i = n * ROW + c, d = c % D, pair = d % (D / 2);
                const double angle = pos[n] * pow(10000, -2.0 * (double)pair / D);
                const double other = get(x, d < D / 2 ? i + D / 2 : i - D / 2);
                const double rotated =
                    get(x, i) * cos(angle) + (d < D / 2 ? -other : other) * sin(angle);
                check_value("rope", get(y, i), c < (H + KV) * D ? rotated : get(x, i), tolerance);
            }
        dh_k_rope(T, N, N, H, KV, D, y.raw, f32(table), pos, true, z.raw);
        double *want = widen(x);
        check_close("rope and back", z, want, T == DH_BF16 ? 1e-2 : 1e-6);
        free(want);
        dh_k_rope(T, N, N, H, KV, D, x.raw, f32(table), pos, false, x.raw); /* in place */
        assert_true(buf_same(x, y));
        dh_k_rope(T, N, 7, H, KV, D, z.raw, f32(table), NULL, false, y.raw);
        for (int n = 0; n < N; n++) pos[n] = n % 7;
        dh_k_rope(T, N, 7, H, KV, D, z.raw, f32(table), pos, false, z.raw);
        assert_true(buf_same(y, z));
        FREE_ALL(x, y, z);
    }
    buf_free(table);
}

/* ---- embedding ------------------------------------------------------------------------- */

static void embedding_looks_up_and_scatters(void **state)
{
    uint64_t seed = test_seed("embedding");
    enum { N = 60, C = 139, V = 11, P = 20, V0 = 3, V1 = 9 };
    EACH_DTYPE(T)
    for (int shard = 0; shard < 2; shard++) {
        const int64_t v0 = shard ? V0 : 0, v1 = shard ? V1 : V;
        rows r;
        dh_dropout drop = dropout_for(&r, N, P, 0.2f);
        int32_t tokens[N];
        for (int n = 0; n < N; n++) tokens[n] = (int32_t)(test_rand(&seed) % V);
        buf wte = buf_random(T, V * C, 1, &seed), wpe = buf_random(T, P * C, 1, &seed);
        buf x = buf_new(T, N * C), dx = buf_random(T, N * C, 1, &seed);
        dh_k_embed_fwd(T, N, C, tokens, r.pos, at(wte, v0 * C), v0, v1, shard ? NULL : wpe.raw,
                       shard ? NULL : &drop, x.raw);
        double *dwte_want = zeros((v1 - v0) * C), *dwpe_want = zeros(P * C);
        for (int64_t i = 0; i < N * C; i++) {
            const int64_t token = tokens[i / C], c = i % C;
            const bool owned = token >= v0 && token < v1;
            const double f = shard ? 1 : factor_of(&drop, i / C, c);
            const double value = (owned ? get(wte, token * C + c) : 0) +
                                 (shard ? 0 : get(wpe, r.pos[i / C] * C + c));
            check_value("embedding", get(x, i), f * value, T == DH_BF16 ? 9e-3 : 1e-6);
            if (owned) dwte_want[(token - v0) * C + c] += f * get(dx, i);
            dwpe_want[r.pos[i / C] * C + c] += f * get(dx, i);
        }
        buf dwte = buf_random(DH_F32, (v1 - v0) * C, 1, &seed);
        buf dwpe = buf_random(DH_F32, P * C, 1, &seed);
        dh_k_embed_bwd(T, N, C, dx.raw, tokens, r.pos, shard ? NULL : &drop, v0, v1, P, f32(dwte),
                       f32(dwpe), false);
        check_close("dwte", dwte, dwte_want, 1e-5);
        check_close("dwpe", dwpe, dwpe_want, 1e-5);
        buf again = buf_copy(dwte);
        dh_k_embed_bwd(T, N, C, dx.raw, tokens, r.pos, shard ? NULL : &drop, v0, v1, P, f32(again),
                       NULL, true);
        for (int64_t i = 0; i < (v1 - v0) * C; i++) dwte_want[i] *= 2;
        check_close("dwte twice", again, dwte_want, 2e-5);
        free(dwte_want);
        free(dwpe_want);
        FREE_ALL(wte, wpe, x, dx, dwte, dwpe, again);
    }
}

/* ---- whole arrays -------------------------------------------------------------------------- */

static void casts_round_to_nearest_even(void **state)
{
    uint64_t seed = test_seed("casts");
    const int64_t n = 20011;
    buf x = buf_new(DH_F32, n), h = buf_new(DH_BF16, n), y = buf_new(DH_F32, n);
    for (int64_t i = 0; i < n; i++) { /* any bit pattern: NaN, infinities, subnormals, ties */
        uint32_t bits = (uint32_t)test_rand(&seed);
        if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
        memcpy(at(x, i), &bits, 4);
    }
    dh_k_cast(n, DH_F32, x.raw, DH_BF16, h.raw);
    dh_k_cast(n, DH_BF16, h.raw, DH_F32, y.raw);
    for (int64_t i = 0; i < n; i++) {
        const dh_bf16 want = dh_f32_to_bf16(f32(x)[i]);
        assert_int_equal(((dh_bf16 *)(void *)h.raw)[i], want);
        const float back = dh_bf16_to_f32(want);
        assert_memory_equal(at(y, i), &back, 4);
    }
    FREE_ALL(x, h, y);
}

static void adds_scales_copies(void **state)
{
    uint64_t seed = test_seed("add");
    const int64_t n = 33333;
    EACH_DTYPE(T)
    {
        buf a = buf_random(T, n, 1, &seed), b = buf_random(T, n, 1, &seed), y = buf_new(T, n);
        dh_k_add(T, n, a.raw, b.raw, y.raw);
        for (int64_t i = 0; i < n; i++)
            check_value("add", get(y, i), get(a, i) + get(b, i), T == DH_BF16 ? 4e-3 : 1e-7);
        dh_k_scale(T, n, 0.5f, a.raw, y.raw);
        for (int64_t i = 0; i < n; i++) assert_true(get(y, i) == 0.5 * get(a, i));
        dh_k_copy((size_t)n * dh_dtype_bytes(T), a.raw, y.raw);
        assert_true(buf_same(a, y));
        dh_k_zero((size_t)n * dh_dtype_bytes(T), y.raw);
        for (int64_t i = 0; i < n; i++) assert_true(get(y, i) == 0);
        FREE_ALL(a, b, y);
    }
}

/* In the order given, rounded once: as one addition after another in float32 has it. */
static void sums_are_in_order(void **state)
{
    enum { N_SUMMED = 5 };
    uint64_t seed = test_seed("sum_ordered");
    const int64_t n = 33333;
    EACH_DTYPE(T)
    {
        buf x[N_SUMMED], y = buf_new(T, n);
        const void *raw[N_SUMMED];
        for (int k = 0; k < N_SUMMED; k++) {
            x[k] = buf_random(T, n, 1, &seed);
            raw[k] = x[k].raw;
        }
        for (int n_x = 1; n_x <= N_SUMMED; n_x++) {
            dh_k_sum_ordered(T, n, n_x, raw, y.raw);
            for (int64_t i = 0; i < n; i++) {
                float sum = (float)get(x[0], i);
                for (int k = 1; k < n_x; k++) sum += (float)get(x[k], i);
                if (T == DH_BF16) sum = dh_bf16_to_f32(dh_f32_to_bf16(sum));
                assert_true((float)get(y, i) == sum);
            }
        }
        for (int k = 0; k < N_SUMMED; k++) buf_free(x[k]);
        buf_free(y);
    }
}

/* Some columns into others, of rows that are further apart; what lies beside them stays. */
static void rows_are_copied_where_they_belong(void **state)
{
    uint64_t seed = test_seed("rows");
    const int64_t n_rows = 211, n = 37, x_row = 53, y_row = 64, x0 = 9, y0 = 21;
    EACH_DTYPE(T)
    {
        buf x = buf_random(T, n_rows * x_row, 1, &seed),
            y = buf_random(T, n_rows * y_row, 1, &seed);
        buf before = buf_copy(y);
        dh_k_cast_rows(n_rows, n, T, at(x, x0), x_row, T, at(y, y0), y_row);
        for (int64_t i = 0; i < n_rows * y_row; i++) {
            const int64_t column = i % y_row - y0;
            const bool copied = column >= 0 && column < n;
            const double want = copied ? get(x, i / y_row * x_row + x0 + column) : get(before, i);
            assert_true(get(y, i) == want);
        }
        FREE_ALL(x, y, before);
    }
}

static void sums_in_float64(void **state)
{
    uint64_t seed = test_seed("sums");
    const int64_t sizes[] = {0, 1, 15, 4097, 100003};
    for (size_t k = 0; k < DH_COUNTOF(sizes); k++) {
        const int64_t n = sizes[k];
        buf x = buf_random(DH_F32, n, 1, &seed);
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += get(x, i);
        check_value("sum", dh_k_sum(n, f32(x)), sum, 1e-12);
        buf_free(x);
    }
}

static double square_sum(int64_t n, const float *x)
{
    double digits[DH_SQSUM_DIGITS];
    dh_k_sqsum(n, x, digits);
    return dh_k_exact_value(digits);
}

/* Of values from the smallest to the largest, cut anywhere and joined in another order, as
 * buckets, shards, stages and ranks cut them. */
static void squares_are_summed_exactly(void **state)
{
    uint64_t seed = test_seed("squares");
    const int64_t n = 32 * 3000 + 5;
    enum { PIECES = 40 };
    buf x = buf_random(DH_F32, n, 1, &seed);
    double squares = 0, whole[DH_SQSUM_DIGITS], pieces[PIECES][DH_SQSUM_DIGITS],
           sum[DH_SQSUM_DIGITS] = {0};
    for (int64_t i = 0; i < n; i++) squares += get(x, i) * get(x, i);
    check_value("sum of squares", square_sum(n, f32(x)), squares, 1e-12);
    for (int64_t i = 0; i < n; i++)
        f32(x)[i] = ldexpf(f32(x)[i], (int)(test_rand(&seed) % 250) - 140);
    dh_k_sqsum(n, f32(x), whole);
    omp_set_num_threads(3);
    dh_k_sqsum(n, f32(x), sum);
    omp_set_num_threads(2);
    assert_memory_equal(sum, whole, sizeof whole);
    int64_t end = n;
    for (int k = 0; k < PIECES; k++) {
        const int64_t begin = k + 1 < PIECES ? end - (int64_t)(test_rand(&seed) % 100) * 32 : 0;
        dh_k_sqsum(end - begin / 32 * 32, f32(x) + begin / 32 * 32, pieces[k]);
        end = begin / 32 * 32;
    }
    dh_k_exact_sum(PIECES, pieces[0], sum);
    assert_memory_equal(sum, whole, sizeof whole);
    memset(sum, 0, sizeof sum); /* as an all-reduce adds them */
    for (int k = 0; k < PIECES; k++)
        for (int i = 0; i < DH_SQSUM_DIGITS; i++) sum[i] += pieces[k][i];
    assert_true(dh_k_exact_value(sum) == dh_k_exact_value(whole));
    buf_free(x);
}

/* Runs one at a time, and joined. */
static void squares_by_runs(int64_t n, const float *x, double *digits)
{
    double pieces[2][DH_SQSUM_DIGITS] = {{0}};
    for (int64_t i = 0; i < n; i += 32) {
        dh_k_sqsum(DH_MIN((int64_t)32, n - i), x + i, pieces[1]);
        dh_k_exact_sum(2, pieces[0], digits);
        memcpy(pieces[0], digits, sizeof pieces[0]);
    }
}

/* Vectors of runs: all near each other, growing through the whole range, with zeros between, with
 * one run that is far from its neighbours, and with infinities. */
static void squares_are_summed_by_vectors(void **state)
{
    uint64_t seed = test_seed("square vectors");
    const int64_t n = 32 * 8 * 300 + 32 * 3 + 7;
    double whole[DH_SQSUM_DIGITS], runs[DH_SQSUM_DIGITS];
    for (int kind = 0; kind < 5; kind++) {
        buf x = buf_random(DH_F32, n, 1, &seed);
        for (int64_t i = 0; i < n; i++) {
            const int grown = (int)(i * 270 / n) - 148;
            const bool far = kind == 3 && i / 32 % 11 == 5;
            if (kind != 0) f32(x)[i] = ldexpf(f32(x)[i], far ? -grown / 2 : grown);
            if (kind == 2 && i / 32 % 3 > 0) f32(x)[i] = 0;
            if (kind == 4 && i == n / 2) f32(x)[i] = INFINITY;
        }
        dh_k_sqsum(n, f32(x), whole);
        squares_by_runs(n, f32(x), runs);
        assert_memory_equal(whole, runs, sizeof whole);
        buf_free(x);
    }
}

static void square_sums_of_extremes(void **state)
{
    float x[64] = {0};
    assert_true(square_sum(0, x) == 0 && square_sum(64, x) == 0);
    x[0] = 0x1p-149f;
    assert_true(square_sum(64, x) == 0x1p-298);
    for (int i = 0; i < 64; i++) x[i] = 0x1.fffffep127f;
    assert_true(square_sum(64, x) == 64 * ((double)x[0] * (double)x[0]));
    x[40] = INFINITY;
    assert_true(isinf(square_sum(64, x)));
    x[3] = NAN;
    assert_true(isnan(square_sum(64, x)));
}

static void finds_first_nonfinite(void **state)
{
    uint64_t seed = test_seed("non-finite");
    const int64_t n = 70001;
    EACH_DTYPE(T)
    {
        buf x = buf_random(T, n, 1, &seed);
        assert_int_equal(dh_k_first_nonfinite(T, n, x.raw), -1);
        set(x, n - 1, INFINITY);
        assert_int_equal(dh_k_first_nonfinite(T, n, x.raw), n - 1);
        set(x, 40000, NAN);
        set(x, 40001, -INFINITY);
        assert_int_equal(dh_k_first_nonfinite(T, n, x.raw), 40000);
        buf_free(x);
    }
}

const struct CMUnitTest pointwise_tests[] = {
    cmocka_unit_test(exp_is_within_its_bound),
    cmocka_unit_test(gelu_matches_tanh_form),
    cmocka_unit_test(swiglu_matches_reference),
    cmocka_unit_test(residual_adds_dropped_branch),
    cmocka_unit_test(rows_are_copied_where_they_belong),
    cmocka_unit_test(dropout_depends_on_coordinates_alone),
    cmocka_unit_test(rope_table_knows_scalings),
    cmocka_unit_test(longrope_has_two_lists),
    cmocka_unit_test(yarn_may_blend_nothing),
    cmocka_unit_test(rope_rotates_and_back),
    cmocka_unit_test(embedding_looks_up_and_scatters),
    cmocka_unit_test(casts_round_to_nearest_even),
    cmocka_unit_test(adds_scales_copies),
    cmocka_unit_test(sums_are_in_order),
    cmocka_unit_test(sums_in_float64),
    cmocka_unit_test(squares_are_summed_exactly),
    cmocka_unit_test(squares_are_summed_by_vectors),
    cmocka_unit_test(square_sums_of_extremes),
    cmocka_unit_test(finds_first_nonfinite),
};
const size_t n_pointwise_tests = DH_COUNTOF(pointwise_tests);
