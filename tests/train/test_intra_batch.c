/* Training with tensor parallelism cut into rings (strategies intra-batch and
 * intra-batch-bidirectional) against the same mesh without: losses, repeatability.
 *
 * Tolerance. No GEMM's sum is cut, but a GEMM of fewer rows may be another kernel, and
 * the ranks' shares are added in the order of the ring: a last bit of a gradient may
 * differ, as between meshes (test_meshes.c), and so do the losses at most: 2e-5 in
 * float32; bf16 sums are rounded at each rank on the way: 2e-3. */
#include "ranks.h"

/* What share of the operators' time a run's summary gives to an operator; 0: none ran. */
static double share_of(const char *out, const char *op)
{
    char path[400];
    snprintf(path, sizeof path, "%s/summary.json", out);
    json_t *summary = json_load_file(path, 0, NULL);
    assert_non_null(summary);
    const double share =
        json_number_value(json_object_get(json_object_get(summary, "operator_share"), op));
    json_decref(summary);
    return share;
}

/* ---- losses --------------------------------------------------------------------------------- */

/* 20 steps; of bf16 four, since there a difference in the last place grows from step to step. */
typedef struct comparison {
    const char *settings;
    dh_dtype dtype;
    bool bidirectional; /* also both ways at once, which of two ranks is the same */
} comparison;

static double compare_with_plain(const char *model, const comparison *c, const char *strategy,
                                 const run_curve *plain)
{
    char settings[300], out[300];
    run_curve rings;
    snprintf(settings, sizeof settings, "%s strategy=%s", c->settings, strategy);
    run_folder(out, sizeof out, "rings");
    run_curve_of(model, settings, out, &rings);
    const bool both = strstr(strategy, "bidirectional") || strstr(strategy, "(both)");
    assert_true(share_of(out, "ring_exchange") > 0);
    assert_true((share_of(out, "ring_exchange_both") > 0) == both);
    const double d = run_distance(plain, &rings, 0);
    if (!(d <= run_tolerance(c->dtype))) fail_msg("%s: losses differ by %g", settings, d);
    return d;
}

static void rings_train_alike(const char *name, const char *model, const comparison *list, size_t n)
{
    double worst[DH_N_DTYPE] = {0};
    for (size_t i = 0; i < n; i++) {
        if (test_leaves_out(i)) continue;
        const comparison *c = &list[i];
        char out[300];
        run_curve plain;
        run_folder(out, sizeof out, "plain");
        run_curve_of(model, c->settings, out, &plain);
        assert_int_equal(plain.n, c->dtype == DH_BF16 ? 4 : 20);
        assert_true(share_of(out, "ring_exchange_both") == 0);
        double d = compare_with_plain(model, c, "intra-batch", &plain);
        if (c->bidirectional)
            d = fmax(d, compare_with_plain(model, c, "intra-batch-bidirectional", &plain));
        worst[c->dtype] = fmax(worst[c->dtype], d);
    }
    printf("  %s: losses differ by %.2g (f32), %.2g (bf16) at most\n", name, worst[DH_F32],
           worst[DH_BF16]);
}

static void a_gpt2_trains_alike(void **state)
{
    static const comparison list[] = {
        {"parallel.tp=2", DH_F32, false},
        {"parallel.tp=4", DH_F32, true},
        {"parallel.tp=2 parallel.pp=2 parallel.schedule=zb-h1", DH_F32, false},
        {"parallel.tp=2 parallel.cp=2", DH_F32, false},
        {"parallel.tp=2 train.recompute=selective", DH_F32, false},
        {"parallel.tp=4 train.recompute=full model.dropout=0.1", DH_F32, true},
        {"parallel.tp=4 train.dtype=bf16 train.steps=4", DH_BF16, true},
    };
    rings_train_alike("gpt2", RUN_GPT2, list, DH_COUNTOF(list));
}

static void a_llama_trains_alike(void **state)
{
    static const comparison list[] = {
        {"parallel.tp=4 parallel.dp=2 parallel.zero=1 topology.nodes=2", DH_F32, true},
        {"parallel.tp=2 parallel.pp=2 train.recompute=selective", DH_F32, false},
        {"parallel.tp=2 parallel.cp=2 train.dtype=bf16 train.steps=4", DH_BF16, false},
    };
    rings_train_alike("llama", RUN_LLAMA, list, DH_COUNTOF(list));
}

/* Rings inside the pairs of two strands: the bits of one strand with the same rings, since an
 * order changes none. */
static void rings_inside_pairs(void **state)
{
    static const struct {
        const char *model, *settings, *strategies[2];
    } cases[] = {
        {RUN_GPT2, "parallel.tp=2", {"intra-batch", "dhelix-rings"}},
        {RUN_LLAMA,
         "parallel.tp=4 train.dtype=bf16",
         {"intra-batch-bidirectional", "ring-gemm(both)+dhelix"}},
        {RUN_LLAMA,
         "parallel.tp=2 parallel.cp=2 train.recompute=selective",
         {"intra-batch", "dhelix-rings"}},
        {RUN_GPT2, "parallel.tp=2 parallel.pp=2", {"intra-batch", "dhelix-rings"}},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        if (test_leaves_out(i)) continue;
        char settings[300], out[2][300];
        run_curve curve[2];
        for (int k = 0; k < 2; k++) {
            run_folder(out[k], sizeof out[k], k ? "pairs" : "one");
            snprintf(settings, sizeof settings, "%s strategy=%s", cases[i].settings,
                     cases[i].strategies[k]);
            run_curve_of(cases[i].model, settings, out[k], &curve[k]);
        }
        assert_true(share_of(out[1], "ring_exchange") > 0);
        assert_true(run_distance(&curve[0], &curve[1], 0) == 0);
        assert_true(run_same_bytes(out[0], out[1], 20));
    }
}

/* And so as near to the plain run. */
static void pairs_with_rings_train_alike(void **state)
{
    static const comparison list[] = {{"parallel.tp=2", DH_F32, false},
                                      {"parallel.tp=2 train.dtype=bf16", DH_BF16, false}};
    for (size_t i = 0; i < DH_COUNTOF(list); i++) {
        if (test_leaves_out(i)) continue;
        char out[300];
        run_curve plain;
        run_folder(out, sizeof out, "plain");
        run_curve_of(RUN_GPT2, list[i].settings, out, &plain);
        printf("  %s, dhelix-rings: losses differ by %.2g\n", list[i].settings,
               compare_with_plain(RUN_GPT2, &list[i], "dhelix-rings", &plain));
    }
}

static void a_mixtral_trains_alike(void **state)
{
    static const comparison list[] = {{"parallel.tp=2 parallel.dp=2", DH_F32, false}};
    rings_train_alike("mixtral", RUN_EXPERTS, list, DH_COUNTOF(list));
}

/* ---- the same bits -------------------------------------------------------------------------- */

static void a_run_repeats_bit_for_bit(void **state)
{
    static const char *const repeated[] = {
        "parallel.tp=4 strategy=intra-batch train.dtype=bf16",
        "parallel.tp=4 strategy=intra-batch-bidirectional model.dropout=0.1",
    };
    for (size_t i = 0; i < DH_COUNTOF(repeated); i++) {
        if (test_leaves_out(i)) continue;
        char out[2][300];
        run_curve curve[2];
        run_folder(out[0], sizeof out[0], "first");
        run_folder(out[1], sizeof out[1], "second");
        for (int k = 0; k < 2; k++) run_curve_of(RUN_LLAMA, repeated[i], out[k], &curve[k]);
        assert_true(run_distance(&curve[0], &curve[1], 0) == 0);
        assert_true(run_same_bytes(out[0], out[1], 20));
    }
}

/* Without tensor parallelism there is nothing to cut. */
static void other_meshes_are_left_alone(void **state)
{
    char out[2][300];
    run_curve curve[2];
    run_folder(out[0], sizeof out[0], "first");
    run_folder(out[1], sizeof out[1], "second");
    run_curve_of(RUN_GPT2, "parallel.dp=2", out[0], &curve[0]);
    run_curve_of(RUN_GPT2, "parallel.dp=2 strategy=intra-batch", out[1], &curve[1]);
    assert_true(run_distance(&curve[0], &curve[1], 0) == 0);
    assert_true(run_same_bytes(out[0], out[1], 20));
}

/* ---- entry ---------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt2_trains_alike),
        cmocka_unit_test(a_llama_trains_alike),
        cmocka_unit_test(rings_inside_pairs),
        cmocka_unit_test(pairs_with_rings_train_alike),
        cmocka_unit_test(a_mixtral_trains_alike),
        cmocka_unit_test(a_run_repeats_bit_for_bit),
        cmocka_unit_test(other_meshes_are_left_alone),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
