/* What only the kernels for CUDA have, and what their run on the host can find. Compiled without
 * cuda_calls.h's names: dh_k_f is the cpu's. */
#include "kernel_test.h"

#include <signal.h>

#include "cuda_faults.h"
#include "cuda_matrices.h"
#include "launch.h"
#include "run/cpu/fp8.h"
#include "run/cuda/kernels.h"

#ifndef DH_TEST_ON_GPU

/* ---- fibres: what a mistake in a kernel comes to --------------------------------------------- */

/* Of 100 orders of a block's threads, how many show that a barrier is missing. */
static void a_missing_barrier_changes_results(void **state)
{
    int wrong = 0, wrong_with_barrier = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        cuda_fault_seed(seed);
        wrong += !cuda_fault_reversed(false);
        cuda_fault_seed(seed);
        wrong_with_barrier += !cuda_fault_reversed(true);
    }
    assert_int_equal(wrong, 100);
    assert_int_equal(wrong_with_barrier, 0);
}

static void barriers_that_not_all_reach_end_the_process(void **state)
{
    assert_int_equal(signal_of(cuda_fault_left_block), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_left_warp), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_shared), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_none), 0);
}

#endif

/* ---- numbers of 8 bits ------------------------------------------------------------------------
 */

/* Codes in rows of 16 bytes, and what they are multiplied by, against what the cpu rounds to. */
static void check_codes(dh_fp8_format format, int64_t N, int64_t C, buf x, bool columns)
{
    const dh_fp8_grid grid = dh_fp8_grid_of(format);
    const int64_t runs = columns ? C : N, n = columns ? N : C, row = dh_cuda_fp8_row(n);
    buf want = buf_new(DH_BF16, N * C), scales = buf_new(DH_F32, DH_MAX(N, C));
    buf codes = buf_new(DH_U8, runs * row);
    if (columns) {
        dh_k_fp8_columns(format, N, C, (dh_bf16 *)(void *)x.raw, (dh_bf16 *)(void *)want.raw,
                         f32(scales));
        LAUNCH(dh_cuda_fp8_columns, format, N, C, x.raw, codes.raw, f32(scales));
    } else {
        dh_k_fp8_rows(format, N, C, (dh_bf16 *)(void *)x.raw, (dh_bf16 *)(void *)want.raw);
        LAUNCH(dh_cuda_fp8_rows, format, N, C, x.raw, codes.raw, f32(scales));
    }
    for (int64_t r = 0; r < runs; r++)
        for (int64_t i = 0; i < row; i++) {
            const float got = dh_fp8_value(grid, codes.raw[r * row + i]) * f32(scales)[r];
            const double is = i >= n ? 0 : get(want, columns ? i * C + r : r * C + i);
            if ((double)got != is)
                fail_msg("run %d, %d: %g, not %g", (int)r, (int)i, (double)got, is);
        }
    buf_free(codes);
    buf_free(scales);
    buf_free(want);
}

static void codes_are_what_the_cpu_rounds_to(void **state)
{
    static const int64_t sizes[][2] = {{1, 1}, {5, 40}, {33, 17}, {70, 96}, {16, 300}};
    uint64_t seed = test_seed("fp8");
    for (size_t s = 0; s < DH_COUNTOF(sizes); s++)
        for (dh_fp8_format f = DH_FP8_FORMAT_E4M3; f <= DH_FP8_FORMAT_E5M2; f++) {
            const int64_t N = sizes[s][0], C = sizes[s][1];
            buf x = buf_random(DH_BF16, N * C, 1, &seed);
            for (int64_t i = 0; i < N * C; i++)
                set(x, i, ldexp(get(x, i), (int)((i / C) % 7 * 5 - i % C % 5 * 6)));
            check_codes(f, N, C, x, false);
            check_codes(f, N, C, x, true);
            buf_free(x);
        }
}

/* Products of experts' rows, of codes, beside the cpu's of what it rounds to. */
enum { X_E = 3, X_RUNS = 6, X_ROWS = 200 };
static const int64_t x_ends[X_RUNS + 1] = {0, 7, 7, 71, 90, 91, 170};

typedef struct experts_case {
    dh_grouped_kind kind;
    dh_fp8_format a_format;
    bool accumulate;
} experts_case;

/* Tiles of 128 that are whole and cut; experts of odd rows, whose codes begin at any byte. */
static const int64_t x_sizes[][2] = {{40, 72}, {131, 67}, {67, 200}};

static dh_bf16 *bf16_of(buf x)
{
    return (dh_bf16 *)(void *)x.raw;
}

/* x [N,C] as codes; rounded: as the cpu has them. By rows, or by columns of experts; offsets NULL:
 * all experts have as many rows. */
static dh_cuda_codes encode(dh_fp8_format format, bool columns, const int64_t *offsets, int64_t N,
                            int64_t C, buf x, buf rounded, buf codes, buf scales)
{
    if (!columns) {
        dh_k_fp8_rows(format, N, C, bf16_of(x), bf16_of(rounded));
        LAUNCH(dh_cuda_fp8_rows, format, N, C, x.raw, codes.raw, f32(scales));
        return (dh_cuda_codes){format, codes.raw, f32(scales)};
    }
    int64_t even[X_E + 1];
    for (int64_t e = 0; e <= X_E; e++) even[e] = e * (N / X_E);
    const int64_t n_runs = offsets ? X_RUNS : X_E;
    dh_k_fp8_expert_columns(format, X_E, n_runs, offsets ? offsets : even, C, bf16_of(x),
                            bf16_of(rounded), f32(scales));
    LAUNCH(dh_cuda_fp8_expert_columns, format, X_E, n_runs, offsets, N, C, x.raw, codes.raw,
           f32(scales));
    return (dh_cuda_codes){format, codes.raw, f32(scales)};
}

static void check_experts(const experts_case *c, int64_t O, int64_t I, uint64_t *seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t x_offsets[X_RUNS + 1]; /* not x_ends: where a GPU reads them */
    memcpy(x_offsets, x_ends, sizeof x_offsets);
    const bool forward = c->kind == DH_GROUPED_FORWARD, wgrad = c->kind == DH_GROUPED_WGRAD;
    const int64_t a_cols = forward ? I : O, b_rows = wgrad ? X_ROWS : X_E * O;
    const int64_t n_out = wgrad ? X_E * O * I : X_ROWS * (forward ? O : I);
    const int64_t most = dh_cuda_fp8_row(X_ROWS) * dh_cuda_fp8_row(X_E * O);
    const dh_grouped_desc d = {c->kind, DH_BF16, X_E, O, I, X_ROWS, c->accumulate};
    buf in[2] = {buf_random(DH_BF16, X_ROWS * a_cols, 1, seed),
                 buf_random(DH_BF16, b_rows * I, 1, seed)};
    buf rounded[2], codes[2], scales[2], out[2];
    for (int k = 0; k < 2; k++) {
        const int64_t cols = k ? I : a_cols;
        for (int64_t i = 0; i < in[k].n; i++)
            set(in[k], i, ldexp(get(in[k], i), (int)(i / cols % 5 - i % cols % 4)));
        rounded[k] = buf_new(DH_BF16, in[k].n);
        codes[k] = buf_new(DH_U8, most);
        scales[k] = buf_new(DH_F32, DH_MAX(X_ROWS, X_E * DH_MAX(O, I)));
        out[k] = buf_random(wgrad ? DH_F32 : DH_BF16, n_out, 1, seed);
    }
    memcpy(out[1].raw, out[0].raw, (size_t)n_out * dh_dtype_bytes(out[0].dtype));
    const dh_cuda_codes a = encode(c->a_format, wgrad, x_offsets, X_ROWS, a_cols, in[0], rounded[0],
                                   codes[0], scales[0]);
    const dh_cuda_codes b = encode(DH_FP8_FORMAT_E4M3, !forward, wgrad ? x_offsets : NULL, b_rows,
                                   I, in[1], rounded[1], codes[1], scales[1]);
    dh_grouped *g;
    assert_ok(&ctx, dh_grouped_create(&ctx, &d, &g));
    void *ws = scratch_new(dh_grouped_workspace(g));
    assert_ok(&ctx, dh_grouped_run(&ctx, g, X_RUNS, x_offsets, rounded[0].raw, rounded[1].raw,
                                   out[0].raw, ws));
    const int64_t before = cuda_mma_count();
    LAUNCH(dh_cuda_grouped_fp8, &d, X_RUNS, x_offsets, &a, &b, out[1].raw);
    assert_true(multiplied_since(before, true));
    for (int64_t i = 0; i < n_out; i++)
        check_value("experts in fp8", get(out[1], i), get(out[0], i), wgrad ? 2e-5 : 1e-2);
    scratch_free(ws, dh_grouped_workspace(g));
    dh_grouped_destroy(g);
    for (int k = 0; k < 2; k++) {
        buf all[] = {in[k], rounded[k], codes[k], scales[k], out[k]};
        for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    }
}

static void experts_multiply_codes(void **state)
{
    static const experts_case cases[] = {{DH_GROUPED_FORWARD, DH_FP8_FORMAT_E4M3, false},
                                         {DH_GROUPED_DGRAD, DH_FP8_FORMAT_E4M3, false},
                                         {DH_GROUPED_DGRAD, DH_FP8_FORMAT_E5M2, false},
                                         {DH_GROUPED_WGRAD, DH_FP8_FORMAT_E4M3, false},
                                         {DH_GROUPED_WGRAD, DH_FP8_FORMAT_E5M2, true}};
    uint64_t seed = test_seed("experts in fp8");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (size_t k = 0; k < DH_COUNTOF(x_sizes); k += test_stride(1, 3))
            check_experts(&cases[i], x_sizes[k][0], x_sizes[k][1], &seed);
}

/* ---- the same bits as the cpu, where that is promised ------------------------------------------
 */

static void masks_are_those_of_the_cpu(void **state)
{
    enum { N = 7, C = 200 };
    uint64_t seed = test_seed("masks");
    int64_t sample[N];
    int32_t pos[N];
    for (int n = 0; n < N; n++) {
        sample[n] = (int64_t)test_rand(&seed);
        pos[n] = (int32_t)(test_rand(&seed) % 4096);
    }
    EACH_DTYPE(T)
    {
        const dh_dropout drop = {0.3f, 11, 5, 9, sample, pos};
        const dh_scalars scalars = {.step = 5, .seed = 11};
        const dh_cuda_dropout same = {0.3f, 9, &scalars, sample, pos};
        buf x = buf_random(T, N * C, 1, &seed), a = buf_new(T, N * C), b = buf_new(T, N * C);
        dh_k_dropout_grad(T, N, C, x.raw, &drop, a.raw);
        LAUNCH(dh_cuda_dropout_grad, T, N, C, x.raw, &same, b.raw);
        assert_true(buf_same(a, b));
        buf_free(x);
        buf_free(a);
        buf_free(b);
    }
}

/* ---- the step's scalars -------------------------------------------------------------------------
 */

/* In digits as an all-reduce leaves them: above 2^32. */
static void gradients_are_clipped_to_their_norm(void **state)
{
    uint64_t seed = test_seed("clip");
    enum { n = 5000 };
    buf x = buf_random(DH_F32, n, 3, &seed);
    double digits[DH_SQSUM_DIGITS], norm[2], square = 0;
    for (int64_t i = 0; i < n; i++) square += get(x, i) * get(x, i);
    dh_k_sqsum(n, f32(x), digits);
    for (int i = 0; i < DH_SQSUM_DIGITS; i++) digits[i] *= 3;
    dh_scalars s = {.grad_clip = 1};
    LAUNCH(dh_cuda_clip, digits, &s, norm);
    check_value("norm", norm[0], sqrt(3 * square), 1e-12);
    check_value("factor", norm[1], 1 / (sqrt(3 * square) + 1e-6), 1e-12);
    s.grad_clip = 1e9;
    LAUNCH(dh_cuda_clip, digits, &s, norm);
    assert_true(norm[1] == 1);
    s.grad_clip = 0;
    LAUNCH(dh_cuda_clip, digits, &s, norm);
    assert_true(norm[1] == 1);
    digits[0] = INFINITY;
    LAUNCH(dh_cuda_clip, digits, &s, norm);
    assert_true(isinf(norm[0]));
    digits[0] = NAN;
    LAUNCH(dh_cuda_clip, digits, &s, norm);
    assert_true(isnan(norm[0]));
    buf_free(x);
}

static void a_norm_that_is_not_finite_changes_nothing(void **state)
{
    uint64_t seed = test_seed("adamw stop");
    enum { n = 1000 };
    const dh_scalars s = {.lr = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const double norms[][2] = {{INFINITY, 0}, {NAN, 1}, {1, 1}};
    for (size_t k = 0; k < DH_COUNTOF(norms); k++) {
        buf p = buf_random(DH_F32, n, 1, &seed), g = buf_random(DH_F32, n, 1, &seed);
        buf m = buf_new(DH_F32, n), v = buf_new(DH_F32, n), before = buf_copy(p);
        LAUNCH(dh_cuda_adamw, &s, norms[k], true, n, f32(g), f32(p), f32(m), f32(v), NULL, NULL);
        assert_true(buf_same(p, before) == (k < 2));
        buf all[] = {p, g, m, v, before};
        for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    }
}

/* AdamW that keeps what it overwrites, by the norm of a part, then an amendment by that of all:
 * what AdamW by that of all does. Where the part clips already nothing but what is kept changes. */
static void an_amended_step_is_the_step_of_all(void **state)
{
    static const struct {
        double so_far[2], norm[2];
    } cases[] = {{{1, 1}, {1, 1}},        {{1, 1}, {8, .5}},    {{8, .5}, {16, .25}},
                 {{1, 1}, {INFINITY, 0}}, {{NAN, 1}, {NAN, 1}}, {{8, .5}, {NAN, 1}},
                 {{INFINITY, 0}, {1, 1}}};
    uint64_t seed = test_seed("amend");
    const dh_scalars s = {.lr = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    for (size_t k = 0; k < 2 * DH_COUNTOF(cases); k++) {
        const int64_t n = k % 2 ? 1001 : 1000;
        const double so_far[2] = {cases[k / 2].so_far[0], cases[k / 2].so_far[1]};
        const double norm[2] = {cases[k / 2].norm[0], cases[k / 2].norm[1]};
        buf p = buf_random(DH_F32, n, 1, &seed), g = buf_random(DH_F32, n, 1, &seed);
        buf m = buf_random(DH_F32, n, 1, &seed), v = buf_new(DH_F32, n), c = buf_new(DH_BF16, n);
        buf before = buf_copy(p), old = buf_new(DH_F32, 3 * n);
        buf p1 = buf_copy(p), m1 = buf_copy(m), v1 = buf_copy(v), c1 = buf_copy(c);
        LAUNCH(dh_cuda_adamw, &s, norm, true, n, f32(g), f32(p1), f32(m1), f32(v1),
               (dh_bf16 *)(void *)c1.raw, NULL);
        LAUNCH(dh_cuda_adamw, &s, so_far, true, n, f32(g), f32(p), f32(m), f32(v),
               (dh_bf16 *)(void *)c.raw, f32(old));
        assert_true(buf_same(p, before) == !(so_far[0] == 1));
        assert_memory_equal(old.raw, before.raw, (size_t)n * sizeof(float));
        LAUNCH(dh_cuda_amend, &s, norm, so_far, true, n, f32(g), f32(old), f32(p), f32(m), f32(v),
               (dh_bf16 *)(void *)c.raw);
        assert_true(buf_same(p, p1) && buf_same(m, m1) && buf_same(v, v1));
        /* Of a step that was taken back the copy is the kept weights rounded. */
        for (int64_t i = 0; i < n && so_far[0] == 1; i++)
            assert_int_equal(((dh_bf16 *)(void *)c.raw)[i], dh_f32_to_bf16(f32(p1)[i]));
        buf all[] = {p, g, m, v, c, before, old, p1, m1, v1, c1};
        for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    }
}

/* Without decay (vectors) the first step moves by lr against the gradient's sign. */
static void vectors_do_not_decay(void **state)
{
    const dh_scalars s = {.lr = 0.5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 1};
    const double norm[2] = {1, 1};
    float g = 2, p = 8, m = 0, v = 0;
    LAUNCH(dh_cuda_adamw, &s, norm, false, 1, &g, &p, &m, &v, NULL, NULL);
    check_value("p", p, 7.5, 1e-6);
    g = 2, p = 8, m = 0, v = 0;
    LAUNCH(dh_cuda_adamw, &s, norm, true, 1, &g, &p, &m, &v, NULL, NULL);
    check_value("p", p, 3.5, 1e-6);
}

static void losses_are_summed_with_their_rows(void **state)
{
    uint64_t seed = test_seed("loss total");
    enum { n = 3001 };
    buf loss = buf_random(DH_F32, n, 1, &seed);
    int32_t targets[n];
    double sum = 0, rows = 0, total[2] = {-7, -7};
    for (int i = 0; i < n; i++) {
        targets[i] = i % 3 == 1 ? -1 : i;
        sum += get(loss, i);
        rows += i % 3 != 1;
    }
    LAUNCH(dh_cuda_ce_total, n, f32(loss), targets, false, total);
    check_value("losses", total[0], sum, 1e-12);
    assert_true(total[1] == rows);
    LAUNCH(dh_cuda_ce_total, n, f32(loss), targets, true, total);
    check_value("losses", total[0], 2 * sum, 1e-12);
    assert_true(total[1] == 2 * rows);
    buf_free(loss);
}

/* Logits of float32 whose gradient goes into bf16 products. */
static void gradients_of_logits_are_narrowed(void **state)
{
    uint64_t seed = test_seed("narrow");
    enum { n = 5, V = 131 };
    int32_t targets[n] = {3, -1, 130, 0, 64};
    buf logits = buf_random(DH_F32, n * V, 5, &seed), wide = buf_new(DH_F32, n * V);
    buf stats = buf_new(DH_F32, 3 * n), got = buf_new(DH_BF16, n * V);
    LAUNCH(dh_cuda_ce_stats, DH_F32, n, 0, V, logits.raw, targets, f32(stats));
    LAUNCH(dh_cuda_ce_grad, DH_F32, DH_F32, NULL, n, 0, V, logits.raw, targets, f32(stats), 0.5f,
           wide.raw);
    LAUNCH(dh_cuda_ce_grad, DH_F32, DH_BF16, NULL, n, 0, V, logits.raw, targets, f32(stats), 0.5f,
           got.raw);
    for (int64_t i = 0; i < n * V; i++)
        assert_int_equal(((dh_bf16 *)(void *)got.raw)[i], dh_f32_to_bf16(f32(wide)[i]));
    buf all[] = {logits, wide, stats, got};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* More choices than a block numbers at once, some experts without any. */
static void choices_are_ordered_as_on_the_cpu(void **state)
{
    enum { N = 700, E = 11, K = 3 };
    static const int64_t capacities[] = {0, 100, 300};
    uint64_t seed = test_seed("order");
    int32_t experts[N * K], want[N * K], got[N * K];
    int64_t want_offsets[E + 1], got_offsets[E + 1];
    for (int i = 0; i < N * K; i++) experts[i] = (int32_t)(test_rand(&seed) % (E - 2)) + 1;
    for (size_t k = 0; k < DH_COUNTOF(capacities); k++) {
        dh_k_moe_order(N, E, K, experts, capacities[k], want_offsets, want);
        LAUNCH(dh_cuda_moe_order, N, E, K, experts, capacities[k], got_offsets, got);
        assert_memory_equal(got, want, sizeof want);
        assert_memory_equal(got_offsets, want_offsets, sizeof want_offsets);
    }
}

/* The same of places by node, of what came to such places, and of slots in them; choices are
 * distinct, as a router's are, and some were dropped. */
static void places_are_ordered_as_on_the_cpu(void **state)
{
    enum { N = 700, E = 12, K = 3, NODES = 4, PLACES = N * K };
    static const struct {
        int64_t capacity, room;
    } cases[] = {{0, 0}, {0, 900}, {300, 0}};
    static int32_t want_here[PLACES * K], got_here[PLACES * K], want[PLACES * K], got[PLACES * K];
    uint64_t seed = test_seed("places");
    int32_t experts[N * K], slots[N * K], want_rows[N * K], got_rows[N * K];
    int64_t want_starts[NODES + 1], got_starts[NODES + 1], want_counts[E], got_counts[E];
    for (int i = 0; i < N * K; i++) {
        const int32_t first = i % K ? experts[i - i % K] : (int32_t)(test_rand(&seed) % E);
        experts[i] = (first + i % K * (1 + i % 2)) % E;
        slots[i] = test_rand(&seed) % 8 ? i : -1;
    }
    dh_k_moe_nodes(N, E, K, NODES, experts, slots, PLACES, want_rows, want_starts, want_here);
    LAUNCH(dh_cuda_moe_nodes, N, E, K, NODES, experts, slots, PLACES, got_rows, got_starts,
           got_here);
    assert_memory_equal(got_rows, want_rows, sizeof want_rows);
    assert_memory_equal(got_starts, want_starts, sizeof want_starts);
    assert_memory_equal(got_here, want_here, sizeof want_here);
    assert_true(want_starts[NODES] > N && want_starts[NODES] < PLACES);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_k_moe_node_order(PLACES, E, K, NODES, want_here, want_starts, cases[i].capacity,
                            cases[i].room, want_counts, want);
        LAUNCH(dh_cuda_moe_node_order, PLACES, E, K, NODES, want_here, want_starts,
               cases[i].capacity, cases[i].room, got_counts, got);
        assert_memory_equal(got_counts, want_counts, sizeof want_counts);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void balancing_losses_add_up(void **state)
{
    const double counts[3] = {5, 0, 7}, prob_sums[3] = {1.5, 2, 2.5};
    const double want = dh_k_router_aux(3, 6, counts, prob_sums);
    double aux[2] = {-1, -1};
    LAUNCH(dh_cuda_router_aux, 3, 6, counts, prob_sums, false, aux);
    check_value("loss", aux[0], want, 1e-14);
    assert_true(aux[1] == 1);
    LAUNCH(dh_cuda_router_aux, 3, 6, counts, prob_sums, true, aux);
    check_value("loss", aux[0], 2 * want, 1e-14);
    assert_true(aux[1] == 2);
}

/* Only where the step's scalars say so. */
static void choices_are_dealt_when_told(void **state)
{
    int32_t experts[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    dh_scalars s = {.even_experts = 0};
    LAUNCH(dh_cuda_router_deal, 4, 3, 2, &s, experts);
    assert_int_equal(experts[0], 9);
    s.even_experts = 1;
    LAUNCH(dh_cuda_router_deal, 4, 3, 2, &s, experts);
    for (int i = 0; i < 8; i++) assert_int_equal(experts[i], i % 3);
}

const struct CMUnitTest cuda_tests[] = {
#ifndef DH_TEST_ON_GPU
    cmocka_unit_test(a_missing_barrier_changes_results),
    cmocka_unit_test(barriers_that_not_all_reach_end_the_process),
#endif
    cmocka_unit_test(codes_are_what_the_cpu_rounds_to),
    cmocka_unit_test(experts_multiply_codes),
    cmocka_unit_test(masks_are_those_of_the_cpu),
    cmocka_unit_test(gradients_are_clipped_to_their_norm),
    cmocka_unit_test(a_norm_that_is_not_finite_changes_nothing),
    cmocka_unit_test(an_amended_step_is_the_step_of_all),
    cmocka_unit_test(vectors_do_not_decay),
    cmocka_unit_test(losses_are_summed_with_their_rows),
    cmocka_unit_test(gradients_of_logits_are_narrowed),
    cmocka_unit_test(choices_are_ordered_as_on_the_cpu),
    cmocka_unit_test(places_are_ordered_as_on_the_cpu),
    cmocka_unit_test(balancing_losses_add_up),
    cmocka_unit_test(choices_are_dealt_when_told),
};
const size_t n_cuda_tests = DH_COUNTOF(cuda_tests);
