#include "kernel_test.h"

enum { N = 36, E = 8, K = 2, C = 300 };

/* sum(dweights weights) + coef * balancing loss of the rows, from logits, with the
 * choice of experts held fixed (it has no gradient). */
typedef struct router_arg {
    const int32_t *experts;
    const float *dweights;
    const double *counts;
    double coef;
} router_arg;

static double router_loss(const double *logits, const void *arg)
{
    const router_arg *a = arg;
    double loss = 0, prob_sums[E] = {0};
    for (int n = 0; n < N; n++) {
        double p[E], sum = 0, chosen = 0;
        for (int e = 0; e < E; e++) sum += p[e] = exp(logits[n * E + e]);
        for (int e = 0; e < E; e++) prob_sums[e] += p[e] /= sum;
        for (int j = 0; j < K; j++) chosen += p[a->experts[n * K + j]];
        for (int j = 0; j < K; j++)
            loss += a->dweights[n * K + j] * p[a->experts[n * K + j]] / chosen;
    }
    return loss + a->coef * dh_k_router_aux(E, N, a->counts, prob_sums);
}

static void router_chooses_and_differentiates(void **state)
{
    uint64_t seed = test_seed("router");
    EACH_DTYPE(T)
    {
        buf logits = buf_random(T, N * E, 2, &seed), probs = buf_new(DH_F32, N * E);
        buf weights = buf_new(DH_F32, N * K), dweights = buf_random(DH_F32, N * K, 1, &seed);
        buf dlogits = buf_new(T, N * E);
        set(logits, 3, 5); /* a tie at the top: the lower index comes first */
        set(logits, 6, 5);
        int32_t experts[N * K];
        double counts[E] = {0};
        double prob_sums[E] = {0};
        dh_k_router_fwd(T, N, E, K, logits.raw, f32(probs), experts, f32(weights));
        dh_k_router_sums(N, E, K, f32(probs), experts, counts, prob_sums);
        assert_true(experts[0] == 3 && experts[1] == 6);
        double total = 0;
        for (int e = 0; e < E; e++) total += counts[e];
        assert_true(total == N * K);
        for (int n = 0; n < N; n++) {
            check_value("weights", get(weights, n * K) + get(weights, n * K + 1), 1, 1e-6);
            for (int e = 0; e < E; e++)
                if (e != experts[n * K] && e != experts[n * K + 1])
                    assert_true(get(logits, n * E + e) <= get(logits, n * E + experts[n * K + 1]));
        }
        dh_k_router_bwd(T, N, E, K, f32(probs), experts, f32(weights), f32(dweights), counts, N,
                        0.7, dlogits.raw);
        double *x = widen(logits);
        const router_arg arg = {experts, f32(dweights), counts, 0.7};
        for (int64_t i = 0; i < N * E; i++)
            check_value("dlogits", get(dlogits, i),
                        finite_difference(router_loss, x, i, 1e-5, &arg),
                        T == DH_BF16 ? 4.5e-3 : 1e-6);
        free(x);
        buf all[] = {logits, probs, weights, dweights, dlogits};
        for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    }
}

/* Sparsemixer's masks of a row, as Transformers writes them: experts whose logit is too far below the
 * largest of those left. */
static int mask_far(const double *s, double jitter, int other, bool *far)
{
    int best = other == 0 ? 1 : 0;
    for (int e = 0; e < E; e++)
        if (e != other && s[e] > s[best]) best = e;
    for (int e = 0; e < E; e++)
        far[e] = e == other || (s[best] - s[e]) / fmax(fabs(s[e]), s[best]) > 2 * jitter;
    return best;
}

typedef struct mix_arg {
    const float *dweights;
    const double *counts;
    int experts[N][2];
    bool far[N][2][E];
} mix_arg;

static double mixed_weight(const double *s, const bool *far, int own)
{
    double sum = 0;
    for (int e = 0; e < E; e++) sum += far[e] ? 0 : exp(s[e]);
    return exp(s[own]) / sum;
}

static double mix_loss(const double *logits, const void *arg)
{
    const mix_arg *a = arg;
    double loss = 0, prob_sums[E] = {0};
    for (int n = 0; n < N; n++) {
        const double *s = logits + n * E;
        double sum = 0;
        for (int e = 0; e < E; e++) sum += exp(s[e]);
        for (int e = 0; e < E; e++) prob_sums[e] += exp(s[e]) / sum;
        for (int j = 0; j < 2; j++)
            loss += a->dweights[n * 2 + j] * mixed_weight(s, a->far[n][j], a->experts[n][j]);
    }
    return loss + 0.7 * dh_k_router_aux(E, N, a->counts, prob_sums);
}

static void check_mixed(dh_dtype T, double jitter, uint64_t *seed)
{
    buf logits = buf_random(T, N * E, 2, seed), probs = buf_new(DH_F32, N * E);
    buf weights = buf_new(DH_F32, N * 2), dweights = buf_random(DH_F32, N * 2, 1, seed);
    buf dlogits = buf_new(T, N * E);
    int32_t experts[N * 2];
    double counts[E] = {0}, prob_sums[E] = {0};
    int n_near = 0;
    set(logits, 3, 5); /* a tie at the top: the lower index comes first */
    set(logits, 6, 5);
    for (int e = 0; e < E; e++) set(logits, (N - 1) * E + e, 0); /* no logit is far */
    double *x = widen(logits);
    mix_arg arg = {.dweights = f32(dweights), .counts = counts};
    dh_k_router_mix_fwd(T, N, E, jitter, logits.raw, f32(probs), experts, f32(weights));
    dh_k_router_sums(N, E, 2, f32(probs), experts, counts, prob_sums);
    assert_true(experts[0] == 3 && experts[1] == 6);
    for (int n = 0; n < N; n++)
        for (int j = 0; j < 2; j++) {
            const int own = mask_far(x + n * E, jitter, j ? arg.experts[n][0] : -1, arg.far[n][j]);
            arg.experts[n][j] = own;
            assert_int_equal(experts[n * 2 + j], own);
            check_value("weight", get(weights, n * 2 + j),
                        mixed_weight(x + n * E, arg.far[n][j], own), 1e-6);
            for (int e = 0; e < E; e++) n_near += !arg.far[n][j][e];
        }
    assert_true(n_near > 2 * N && n_near < 2 * N * (E - 1)); /* some, and not all */
    dh_k_router_mix_bwd(T, N, E, jitter, logits.raw, f32(probs), experts, f32(dweights), counts, N,
                        0.7, dlogits.raw);
    for (int64_t i = 0; i < N * E; i++)
        check_value("dlogits", get(dlogits, i), finite_difference(mix_loss, x, i, 1e-5, &arg),
                    T == DH_BF16 ? 4.5e-3 : 1e-6);
    free(x);
    buf all[] = {logits, probs, weights, dweights, dlogits};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

static void sparsemixer_mixes_near_experts(void **state)
{
    uint64_t seed = test_seed("sparsemixer");
    EACH_DTYPE(T)
    {
        check_mixed(T, 0.05, &seed);
        check_mixed(T, 0.4, &seed);
    }
}

/* As many rows for every expert, a row's experts different. */
static void dealt_choices_are_even(void **state)
{
    int32_t experts[N * 3];
    int64_t n[E] = {0};
    dh_k_router_deal(N, E, 3, experts);
    for (int64_t i = 0; i < N * 3; i++) {
        n[experts[i]]++;
        assert_true(i % 3 == 0 || experts[i] != experts[i - 1]);
        assert_true(i % 3 != 2 || experts[i] != experts[i - 2]);
    }
    for (int e = 0; e < E; e++) assert_in_range(n[e], N * 3 / E, N * 3 / E + 1);
    int64_t counts[E];
    memset(counts, 0xff, sizeof counts);
    dh_k_moe_count(N * 3, E, experts, counts);
    assert_memory_equal(counts, n, sizeof n);
}

static void runs_follow_one_another(void **state)
{
    const int64_t counts[] = {3, 0, 5, 1}, want[] = {0, 3, 3, 8, 9};
    int64_t offsets[5];
    dh_k_moe_offsets(4, counts, offsets);
    assert_memory_equal(offsets, want, sizeof want);
}

/* Every choice has a slot of its expert, in row order; capacity drops the last ones. */
static void order_is_by_expert_then_row(void **state)
{
    const int32_t experts[] = {2, 0, 2, 1, 0, 2, 2, 0};
    int32_t slot[8];
    int64_t offsets[5];
    dh_k_moe_order(4, 4, 2, experts, 0, offsets, slot);
    const int32_t want[] = {4, 0, 5, 3, 1, 6, 7, 2};
    const int64_t want_offsets[] = {0, 3, 4, 8, 8};
    assert_memory_equal(slot, want, sizeof want);
    assert_memory_equal(offsets, want_offsets, sizeof want_offsets);
    dh_k_moe_order(4, 4, 2, experts, 2, offsets, slot);
    const int32_t want_capped[] = {4, 0, 5, 2, 1, -1, -1, -1};
    const int64_t want_capped_offsets[] = {0, 2, 4, 6, 8};
    assert_memory_equal(slot, want_capped, sizeof want_capped);
    assert_memory_equal(offsets, want_capped_offsets, sizeof want_capped_offsets);
}

/* Experts 0 and 1 are on node 0, 2 and 3 on node 1. Row 1 goes to node 1 once for both choices, row 2
 * to both; a choice of row 3 was dropped. */
static void a_row_goes_once_to_a_node(void **state)
{
    const int32_t experts[] = {1, 0, 3, 2, 0, 3, 2, 1}, slots[] = {1, 0, 5, 4, 2, 6, -1, 3};
    int32_t rows[8], here[8 * 2];
    int64_t starts[3];
    dh_k_moe_nodes(4, 4, 2, 2, experts, slots, 8, rows, starts, here);
    const int32_t want[] = {0, -1, 3, -1, 1, 4, -1, 2};
    const int64_t want_starts[] = {0, 3, 5};
    const int32_t want_here[] = {1, 0, 0, -1, -1, 1, 1, 0, -1, 1, -1, -1, -1, -1, -1, -1};
    assert_memory_equal(rows, want, sizeof want);
    assert_memory_equal(starts, want_starts, sizeof want_starts);
    assert_memory_equal(here, want_here, sizeof want_here);
}

/* Two rows from node 0, one from node 1, whose two experts here are numbers 2 and 3; a fourth row is
 * nobody's, whatever it says. */
static void choices_are_by_node_then_expert(void **state)
{
    const int32_t here[] = {1, 0, -1, 1, 0, -1, 0, 1};
    const int64_t arrived[] = {0, 2, 3};
    int32_t slots[8];
    int64_t counts[4];
    const int64_t want_counts[] = {1, 2, 1, 0};
    const int32_t free_slots[] = {1, 0, -1, 2, 3, -1, -1, -1};
    const int32_t capped[] = {2, 0, -1, 3, 4, -1, -1, -1};
    const int32_t few[] = {1, 0, -1, 2, -1, -1, -1, -1};
    const struct {
        int64_t capacity, room;
        const int32_t *slots;
    } cases[] = {{0, 0, free_slots}, {0, 4, free_slots}, {0, 3, few}, {2, 0, capped}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_k_moe_node_order(4, 4, 2, 2, here, arrived, cases[i].capacity, cases[i].room, counts,
                            slots);
        assert_memory_equal(counts, want_counts, sizeof want_counts);
        assert_memory_equal(slots, cases[i].slots, sizeof slots);
    }
    const int64_t more[] = {0, 2, 9}; /* than the buffer has: the fourth row is then node 1's */
    const int32_t with_fourth[] = {1, 0, -1, 2, 3, -1, 4, 5};
    dh_k_moe_node_order(4, 4, 2, 2, here, more, 0, 0, counts, slots);
    assert_memory_equal(slots, with_fourth, sizeof slots);
}

/* Capacity 9 is the even share: as many slots as choices, and still some of them empty. */
static void rows_move_there_and_back(void **state)
{
    static const int64_t capacities[] = {0, 6, N * K / E};
    uint64_t seed = test_seed("permute");
    EACH_DTYPE(T)
    for (size_t way = 0; way < DH_COUNTOF(capacities); way++) {
        const int64_t capacity = capacities[way];
        const double tolerance = T == DH_BF16 ? 9e-3 : 1e-5;
        const int64_t n_slots = capacity ? E * capacity : N * K;
        int32_t experts[N * K], slot[N * K];
        int64_t offsets[E + 1];
        for (int n = 0; n < N; n++) {
            experts[n * K] = (int32_t)(test_rand(&seed) % E);
            experts[n * K + 1] = (experts[n * K] + 1 + (int32_t)(test_rand(&seed) % (E - 1))) % E;
        }
        dh_k_moe_order(N, E, K, experts, capacity, offsets, slot);
        buf x = buf_random(T, N * C, 1, &seed), y = buf_random(T, n_slots * C, 1, &seed);
        buf weights = buf_random(DH_F32, N * K, 1, &seed), out = buf_new(T, N * C);
        buf dy = buf_random(T, n_slots * C, 1, &seed), dweights = buf_new(DH_F32, N * K);
        dh_k_moe_permute(T, N, C, K, x.raw, slot, n_slots, y.raw);
        dh_k_moe_unpermute(T, N, C, K, y.raw, slot, f32(weights), out.raw);
        dh_k_moe_unpermute_bwd(T, N, C, K, x.raw, y.raw, slot, f32(weights), n_slots, dy.raw,
                               f32(dweights));
        double *used = zeros(n_slots);
        for (int64_t i = 0; i < N * K; i++) {
            if (slot[i] >= 0) used[slot[i]] = 1;
            double dot = 0;
            for (int64_t c = 0; c < C; c++) {
                const double value = get(x, i / K * C + c);
                dot += value * value;
                if (slot[i] < 0) continue;
                assert_true(get(y, slot[i] * C + c) == value);
                check_value("dy", get(dy, slot[i] * C + c), get(weights, i) * value, tolerance);
            }
            check_value("dweights", get(dweights, i), slot[i] < 0 ? 0 : dot, 1e-5);
        }
        for (int64_t i = 0; i < n_slots * C; i++)
            if (used[i / C] == 0) assert_true(get(y, i) == 0 && get(dy, i) == 0);
        for (int64_t i = 0; i < N * C; i++) {
            double sum = 0;
            for (int64_t j = i / C * K; j < i / C * K + K; j++)
                if (slot[j] >= 0) sum += get(weights, j) * get(x, i);
            check_value("unpermuted", get(out, i), sum, tolerance);
        }
        dh_k_moe_unpermute(T, N, C, K, y.raw, slot, NULL, out.raw);
        if (!capacity)
            for (int64_t i = 0; i < N * C; i++)
                check_value("permute gradient", get(out, i), K * get(x, i), tolerance);
        free(used);
        buf all[] = {x, y, weights, out, dy, dweights};
        for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    }
}

/* ---- grouped products ---------------------------------------------------------------------- */

enum { G_E = 3, G_RUNS = 6, G_O = 40, G_I = 24, G_ROWS = 700 };

/* Runs of rows with lengths around those of the tiles, one empty; some rows are left over. */
static void draw_runs(uint64_t *seed, int64_t offsets[G_RUNS + 1])
{
    static const int64_t edges[] = {0, 1, 31, 32, 33, 63, 64, 96, 100};
    offsets[0] = 0;
    for (int s = 0; s < G_RUNS; s++)
        offsets[s + 1] = offsets[s] + (s == 2 ? 0 : edges[test_rand(seed) % DH_COUNTOF(edges)]);
}

static void check_rows(dh_grouped_kind kind, const int64_t *offsets, buf a, buf w, buf y)
{
    const bool forward = kind == DH_GROUPED_FORWARD;
    const int64_t cols = forward ? G_O : G_I, inner = forward ? G_I : G_O;
    for (int64_t r = 0, s = 0; r < G_ROWS; r++) {
        while (s < G_RUNS && r >= offsets[s + 1]) s++;
        for (int64_t c = 0; c < cols; c++) {
            double want = 0;
            for (int64_t k = 0; s < G_RUNS && k < inner; k++)
                want += get(a, r * inner + k) *
                        get(w, s % G_E * G_O * G_I + (forward ? c * G_I + k : k * G_I + c));
            check_value("grouped", get(y, r * cols + c), want, tolerance_of(y.dtype));
        }
    }
}

static void check_weights(const int64_t *offsets, buf dy, buf x, const double *before, buf dw)
{
    for (int64_t i = 0; i < G_E * G_O * G_I; i++) {
        const int64_t e = i / (G_O * G_I), o = i / G_I % G_O, c = i % G_I;
        double want = before ? before[i] : 0;
        for (int64_t s = e; s < G_RUNS; s += G_E)
            for (int64_t r = offsets[s]; r < offsets[s + 1]; r++)
                want += get(dy, r * G_O + o) * get(x, r * G_I + c);
        check_value("grouped wgrad", get(dw, i), want, 2e-5);
    }
}

static void run_grouped(dh_grouped_kind kind, dh_dtype T, bool accumulate, uint64_t *seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    const bool wgrad = kind == DH_GROUPED_WGRAD;
    const int64_t a_cols = kind == DH_GROUPED_FORWARD ? G_I : G_O;
    const dh_grouped_desc desc = {kind, T, G_E, G_O, G_I, G_ROWS, accumulate};
    int64_t offsets[G_RUNS + 1];
    dh_grouped *g;
    draw_runs(seed, offsets);
    assert_ok(&ctx, dh_grouped_create(&ctx, &desc, &g));
    buf a = buf_random(T, G_ROWS * a_cols, 1, seed);
    buf b = buf_random(T, wgrad ? G_ROWS * G_I : G_E * G_O * G_I, 1, seed);
    buf c = wgrad ? buf_random(DH_F32, G_E * G_O * G_I, 1, seed)
                  : buf_random(T, G_ROWS * (a_cols == G_I ? G_O : G_I), 1, seed);
    double *before = widen(c);
    void *ws = scratch_new(dh_grouped_workspace(g));
    assert_ok(&ctx, dh_grouped_run(&ctx, g, G_RUNS, offsets, a.raw, b.raw, c.raw, ws));
    if (wgrad)
        check_weights(offsets, a, b, accumulate ? before : NULL, c);
    else
        check_rows(kind, offsets, a, b, c);
    scratch_free(ws, dh_grouped_workspace(g));
    dh_grouped_destroy(g);
    free(before);
    buf all[] = {a, b, c};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

static void runs_of_rows_meet_their_experts(void **state)
{
    uint64_t seed = test_seed("grouped");
    for (int i = 0; i < 5; i++) EACH_DTYPE(T)
        {
            run_grouped(DH_GROUPED_FORWARD, T, false, &seed);
            run_grouped(DH_GROUPED_DGRAD, T, false, &seed);
            run_grouped(DH_GROUPED_WGRAD, T, false, &seed);
            run_grouped(DH_GROUPED_WGRAD, T, true, &seed);
        }
}

const struct CMUnitTest moe_tests[] = {
    cmocka_unit_test(router_chooses_and_differentiates),
    cmocka_unit_test(sparsemixer_mixes_near_experts),
    cmocka_unit_test(dealt_choices_are_even),
    cmocka_unit_test(order_is_by_expert_then_row),
    cmocka_unit_test(a_row_goes_once_to_a_node),
    cmocka_unit_test(choices_are_by_node_then_expert),
    cmocka_unit_test(runs_follow_one_another),
    cmocka_unit_test(rows_move_there_and_back),
    cmocka_unit_test(runs_of_rows_meet_their_experts),
};
const size_t n_moe_tests = DH_COUNTOF(moe_tests);
