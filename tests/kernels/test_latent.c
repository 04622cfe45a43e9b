/* Latent attention's rows and the router by sigmoids, against their definitions. */
#include "kernel_test.h"

/* ---- router ------------------------------------------------------------------------------------
 */

enum { N = 41, E = 12, K = 3, GROUPS = 4, TOP = 2 };

static dh_grouped_router router_of(bool plain)
{
    return (dh_grouped_router){.N = N,
                               .E = E,
                               .top_k = K,
                               .n_groups = GROUPS,
                               .top_groups = TOP,
                               .scale = 2.5,
                               .plain = plain};
}

/* Sum of the two best of a group, by taking the best out. */
static double group_score(const double *choice, int group)
{
    double left[E / GROUPS], sum = 0;
    memcpy(left, choice + group * (E / GROUPS), sizeof left);
    for (int k = 0; k < 2; k++) {
        int best = 0;
        for (int e = 1; e < E / GROUPS; e++)
            if (left[e] > left[best]) best = e;
        sum += left[best];
        left[best] = -INFINITY;
    }
    return sum;
}

/* As Transformers does it: of all but the best groups choices become -inf. */
static void mask_groups(double *choice)
{
    double score[GROUPS];
    bool kept[GROUPS] = {false};
    for (int g = 0; g < GROUPS; g++) score[g] = group_score(choice, g);
    for (int k = 0; k < TOP; k++) {
        int best = -1;
        for (int g = 0; g < GROUPS; g++)
            if (!kept[g] && (best < 0 || score[g] > score[best])) best = g;
        kept[best] = true;
    }
    for (int e = 0; e < E; e++)
        if (!kept[e / (E / GROUPS)]) choice[e] = -INFINITY;
}

static void check_choice(const float *probs, const float *bias, const int32_t *experts)
{
    double choice[E];
    for (int e = 0; e < E; e++) choice[e] = (double)(probs[e] + bias[e]);
    mask_groups(choice);
    for (int j = 0; j < K; j++) {
        int best = 0;
        for (int e = 1; e < E; e++)
            if (choice[e] > choice[best]) best = e;
        assert_int_equal(experts[j], best);
        choice[best] = -INFINITY;
    }
}

typedef struct router_arg {
    const int32_t *experts;
    const float *dweights;
    bool plain;
} router_arg;

/* sum(dweights weights) with the choice held fixed. */
static double router_loss(const double *logits, const void *arg)
{
    const router_arg *a = arg;
    double loss = 0;
    for (int n = 0; n < N; n++) {
        double p[K], sum = 0;
        for (int j = 0; j < K; j++)
            sum += p[j] = 1 / (1 + exp(-logits[n * E + a->experts[n * K + j]]));
        for (int j = 0; j < K; j++)
            loss += 2.5 * a->dweights[n * K + j] * p[j] / (a->plain ? 1 : sum);
    }
    return loss;
}

static void check_router(dh_dtype T, bool plain, uint64_t *seed)
{
    const dh_grouped_router r = router_of(plain);
    buf logits = buf_random(T, N * E, 3, seed), bias = buf_random(DH_F32, E, 0.5f, seed);
    buf probs = buf_new(DH_F32, N * E), weights = buf_new(DH_F32, N * K);
    buf dweights = buf_random(DH_F32, N * K, 1, seed), dlogits = buf_new(T, N * E);
    int32_t experts[N * K];
    double counts[E] = {0}, prob_sums[E] = {0}, total = 0, share = 0;
    set(logits, 2, get(logits, 1)); /* a tie, if the biases are equal: the lower index */
    set(bias, 2, get(bias, 1));
    dh_k_router_groups_fwd(&r, T, logits.raw, f32(bias), f32(probs), experts, f32(weights));
    for (int n = 0; n < N; n++) {
        double sum = 0;
        check_choice(f32(probs) + n * E, f32(bias), experts + n * K);
        for (int j = 0; j < K; j++) sum += get(weights, n * K + j);
        for (int j = 0; plain && j < K; j++)
            check_value("plain weight", get(weights, n * K + j),
                        2.5 * get(probs, n * E + experts[n * K + j]), 1e-6);
        if (!plain) check_value("weights", sum, 2.5, 1e-6);
    }
    dh_k_router_groups_bwd(&r, T, f32(probs), experts, f32(dweights), dlogits.raw);
    double *x = widen(logits);
    const router_arg arg = {experts, f32(dweights), plain};
    for (int64_t i = 0; i < (int64_t)N * E; i++)
        check_value("dlogits", get(dlogits, i), finite_difference(router_loss, x, i, 1e-5, &arg),
                    T == DH_BF16 ? 4.5e-3 : 1e-6);
    dh_k_router_groups_sums(N, E, K, f32(probs), experts, counts, prob_sums);
    for (int e = 0; e < E; e++) total += counts[e], share += prob_sums[e];
    assert_true(total == N * K);
    check_value("probabilities", share, N, 1e-9); /* each row's sum to 1 */
    free(x);
    buf all[] = {logits, bias, probs, weights, dweights, dlogits};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

static void router_chooses_in_groups(void **state)
{
    uint64_t seed = test_seed("grouped router");
    EACH_DTYPE(T)
    {
        check_router(T, false, &seed);
        check_router(T, true, &seed);
    }
}

/* A bias decides who is chosen, and has no part in the weights. */
static void bias_has_a_part_in_the_choice_alone(void **state)
{
    const dh_grouped_router r = {
        .N = 1, .E = 4, .top_k = 1, .n_groups = 2, .top_groups = 1, .scale = 1, .plain = true};
    const float logits[] = {2, 1, 0, -1};
    float bias[] = {0, 0, 0, 0}, probs[4], weight;
    int32_t expert;
    dh_k_router_groups_fwd(&r, DH_F32, logits, bias, probs, &expert, &weight);
    assert_int_equal(expert, 0);
    bias[3] = 5; /* the last group's two are the best ones now, and its best is 3 */
    dh_k_router_groups_fwd(&r, DH_F32, logits, bias, probs, &expert, &weight);
    assert_int_equal(expert, 3);
    check_value("weight", weight, 1 / (1 + exp(1)), 1e-6);
}

/* ---- rows --------------------------------------------------------------------------------------
 */

enum { ROWS = 9, H = 3, D = 14, R = 6, V = 5, P = D - R, POS = 40, KV = H * (P + V) };

/* Row n of packed qkv by the definition, in double. */
static void want_row(const dh_latent *l, const double *q, const double *kv, const double *k_rot,
                     const float *turn, double *qkv)
{
    for (int h = 0; h < H; h++)
        for (int d = 0; d < D; d++) {
            const int i = d - P, pair = i % (R / 2);
            const int a = l->pairs ? 2 * pair : pair, b = l->pairs ? a + 1 : a + R / 2;
            const double c = turn[i < 0 ? 0 : pair], s = turn[i < 0 ? 0 : R / 2 + pair];
            const double *x = q + h * D + P;
            const bool second = i >= R / 2;
            qkv[h * D + d] = i < 0    ? q[h * D + d]
                             : second ? x[b] * c + x[a] * s
                                      : x[a] * c - x[b] * s;
            qkv[(H + h) * D + d] = i < 0    ? kv[h * (P + V) + d]
                                   : second ? k_rot[b] * c + k_rot[a] * s
                                            : k_rot[a] * c - k_rot[b] * s;
            qkv[(2 * H + h) * D + d] = d < V ? kv[h * (P + V) + P + d] : 0;
        }
}

static double dot(buf a, buf b)
{
    double sum = 0;
    for (int64_t i = 0; i < a.n; i++) sum += get(a, i) * get(b, i);
    return sum;
}

static void check_rows(dh_dtype T, bool pairs, uint64_t *seed)
{
    const dh_latent l = {.N = ROWS, .H = H, .D = D, .R = R, .V = V, .pairs = pairs};
    const dh_rope rope = {.theta = 100};
    buf table = buf_new(DH_F32, POS * R), q = buf_random(T, ROWS * H * D, 1, seed);
    buf kv = buf_random(T, ROWS * KV, 1, seed), k_rot = buf_random(T, ROWS * R, 1, seed);
    buf qkv = buf_new(T, ROWS * 3 * H * D), dqkv = buf_random(T, ROWS * 3 * H * D, 1, seed);
    buf dq = buf_new(T, q.n), dkv = buf_new(T, kv.n), dk_rot = buf_new(T, k_rot.n);
    int32_t pos[ROWS];
    for (int n = 0; n < ROWS; n++) pos[n] = (int32_t)(test_rand(seed) % POS);
    dh_k_rope_table(&rope, POS, R, f32(table));
    dh_k_latent_pack(&l, T, q.raw, kv.raw, k_rot.raw, f32(table), pos, qkv.raw);
    double *wq = widen(q), *wkv = widen(kv), *wrot = widen(k_rot), *want = zeros(qkv.n);
    for (int n = 0; n < ROWS; n++)
        want_row(&l, wq + n * H * D, wkv + n * KV, wrot + n * R, f32(table) + pos[n] * R,
                 want + n * 3 * H * D);
    check_close("qkv", qkv, want, tolerance_of(T));
    /* It is linear: <dqkv, pack(x)> = <pack_bwd(dqkv), x>. */
    dh_k_latent_pack_bwd(&l, T, dqkv.raw, f32(table), pos, dq.raw, dkv.raw, dk_rot.raw);
    double there = 0;
    for (int64_t i = 0; i < qkv.n; i++) there += get(dqkv, i) * want[i];
    check_value("adjoint", dot(dq, q) + dot(dkv, kv) + dot(dk_rot, k_rot), there,
                T == DH_BF16 ? 0.03 : 1e-5);
    double *wants[] = {wq, wkv, wrot, want};
    for (size_t i = 0; i < DH_COUNTOF(wants); i++) free(wants[i]);
    buf all[] = {table, q, kv, k_rot, qkv, dqkv, dq, dkv, dk_rot};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

static void rows_are_packed_and_back(void **state)
{
    uint64_t seed = test_seed("latent rows");
    EACH_DTYPE(T)
    {
        check_rows(T, false, &seed);
        check_rows(T, true, &seed);
    }
}

static void heads_are_cut_and_filled_up(void **state)
{
    const dh_latent l = {.N = ROWS, .H = H, .D = D, .R = R, .V = V};
    uint64_t seed = test_seed("latent cut");
    EACH_DTYPE(T)
    {
        buf o = buf_random(T, ROWS * H * D, 1, &seed), cut = buf_new(T, ROWS * H * V);
        buf back = buf_new(T, ROWS * H * D);
        dh_k_latent_cut(&l, T, o.raw, cut.raw);
        dh_k_latent_cut_bwd(&l, T, cut.raw, back.raw);
        for (int64_t i = 0; i < (int64_t)ROWS * H; i++)
            for (int d = 0; d < D; d++) {
                if (d < V) assert_true(get(cut, i * V + d) == get(o, i * D + d));
                assert_true(get(back, i * D + d) == (d < V ? get(o, i * D + d) : 0));
            }
        buf_free(o);
        buf_free(cut);
        buf_free(back);
    }
}

/* Twice the same choices: what each expert has above its share, in whole numbers. */
static void load_is_what_is_above_the_share(void **state)
{
    const int32_t experts[] = {2, 0, 2, 3, 2, 0};
    float load[4];
    dh_k_router_load(6, 4, experts, load, false);
    dh_k_router_load(6, 4, experts, load, true);
    for (int e = 0; e < 4; e++) {
        static const int counts[] = {2, 0, 3, 1};
        assert_true(load[e] == (float)(2 * (4 * counts[e] - 6)));
    }
}

const struct CMUnitTest latent_tests[] = {
    cmocka_unit_test(router_chooses_in_groups),
    cmocka_unit_test(bias_has_a_part_in_the_choice_alone),
    cmocka_unit_test(load_is_what_is_above_the_share),
    cmocka_unit_test(rows_are_packed_and_back),
    cmocka_unit_test(heads_are_cut_and_filled_up),
};
const size_t n_latent_tests = DH_COUNTOF(latent_tests);
