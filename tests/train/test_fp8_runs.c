/* Training with products of 8 bits (train.fp8): what changes their bits, and what may not.
 *
 * Each row and column has a scale of its own, so that who runs beside whom, in what slices of rows
 * and on which device change nothing; the ranks that a row is cut over (tensor parallelism) scale
 * their parts of it. Against bf16 operands lose 5 or 6 of 8 bits: losses are near, never equal. */
#include "ranks.h"

#define STEPS "train.dtype=bf16 train.steps=6 eval.every=6 eval.batches=1 "

static void train(const char *model, const char *settings, const char *name, char out[300],
                  run_curve *curve)
{
    char all[500];
    snprintf(all, sizeof all, STEPS "%s", settings);
    run_folder(out, 300, name);
    run_curve_of(model, all, out, curve);
}

/* Under sanitizers fewer of cases that are alike. */
static size_t at_most(size_t n, size_t n_sanitized)
{
    return test_is_slow() ? DH_MIN(n, n_sanitized) : n;
}

static void expect_same(const char *model, const char *settings, const char *const *more)
{
    char base_out[300], out[300], all[400];
    run_curve base, curve;
    train(model, settings, "base", base_out, &base);
    for (size_t i = 0; i < at_most(SIZE_MAX, 1) && more[i]; i++) {
        snprintf(all, sizeof all, "%s %s", settings, more[i]);
        train(model, all, "other", out, &curve);
        if (run_distance(&base, &curve, 0) != 0 || !run_same_bytes(base_out, out, base.n))
            fail_msg("%s: with \"%s\" other bits: losses by %g", settings, more[i],
                     run_distance(&base, &curve, 0));
    }
}

static void overlap_changes_no_bit(void **state)
{
    static const char *const of_tp[] = {
        "device=staged strategy=dhelix", "strategy=wavelet+", "strategy=part-wise(2)+sequential",
        "train.recompute=full",          "strategy=dhelix",   NULL};
    static const char *const of_pp[] = {"strategy=dhelix", "parallel.zero=3", NULL};
    expect_same(RUN_LLAMA, "train.fp8=hybrid parallel.tp=2", of_tp);
    expect_same(RUN_GPT2, "train.fp8=e4m3 parallel.pp=2 parallel.dp=2 parallel.zero=1", of_pp);
}

/* Also products of experts, whose rows come from other ranks in any number. */
static void overlap_changes_no_bit_of_experts(void **state)
{
    static const char *const of_ep[] = {"strategy=dhelix device=staged", "train.recompute=full",
                                        "strategy=wavelet+", "parallel.zero=3", NULL};
    static const char *const one[] = {"strategy=dhelix", NULL};
    expect_same(RUN_EXPERTS, "train.fp8=hybrid parallel.dp=2 parallel.ep=2 moe.mode=dropless",
                TEST_SANITIZED ? one : of_ep);
    if (!TEST_SANITIZED)
        expect_same(RUN_EXPERTS, "train.fp8=e4m3 parallel.tp=2 moe.mode=capacity", one);
}

/* Measured up to 6.2e-4 from bf16, up to 1.1e-4 between meshes over these steps. */
static const double nearby = 0.005;

static void losses_are_near_those_of_bf16(void **state)
{
    static const char *const models[] = {RUN_LLAMA, RUN_GPT2, RUN_EXPERTS};
    static const char *const kinds[] = {"off", "e4m3", "hybrid"};
    for (size_t m = 0; m < at_most(DH_COUNTOF(models), 1); m++) {
        run_curve curves[3];
        for (int k = 0; k < 3; k++) {
            char settings[100], out[300];
            snprintf(settings, sizeof settings, "train.fp8=%s", kinds[k]);
            train(models[m], settings, kinds[k], out, &curves[k]);
        }
        for (int k = 1; k < 3; k++) {
            const double d = run_distance(&curves[0], &curves[k], 0);
            printf("  model %zu, %s: losses differ from bf16's by %.2g\n", m, kinds[k], d);
            if (!(d > 0 && d < nearby)) fail_msg("%s: losses differ by %g", kinds[k], d);
        }
        if (run_distance(&curves[1], &curves[2], 0) == 0) fail_msg("gradients are not e5m2");
    }
}

/* Rows are scaled alike wherever they are; only parts of rows have scales of their own. */
static void expect_near(const char *model, const char *const *meshes, size_t n)
{
    char out[300];
    run_curve one, many;
    train(model, "train.fp8=hybrid train.micro_batch=1", "one", out, &one);
    for (size_t i = 0; i < n; i++) {
        char settings[200];
        snprintf(settings, sizeof settings, "train.fp8=hybrid %s", meshes[i]);
        train(model, settings, "many", out, &many);
        const double d = run_distance(&one, &many, 0);
        printf("  %s: losses differ from one rank's by %.2g\n", meshes[i], d);
        if (!(d < nearby)) fail_msg("%s: losses differ by %g", meshes[i], d);
    }
}

static void meshes_agree(void **state)
{
    static const char *const meshes[] = {"parallel.dp=2", "parallel.pp=2", "parallel.tp=2",
                                         "parallel.cp=2", "parallel.tp=2 parallel.sequence=false"};
    static const char *const of_experts[] = {
        "parallel.dp=2 parallel.ep=2", "parallel.pp=2", "parallel.tp=2",
        "parallel.tp=2 parallel.dp=2 parallel.ep=2 parallel.expert_tp=1"};
    expect_near(RUN_LLAMA, meshes, at_most(DH_COUNTOF(meshes), 1));
    expect_near(RUN_EXPERTS, of_experts, at_most(DH_COUNTOF(of_experts), 1));
}

/* Weights are float32 in a checkpoint, from which a run goes on with these products or others. */
static void a_checkpoint_goes_on(void **state)
{
#define DECAY " optimizer.decay_steps=6"
    char out[300], whole[300];
    run_curve curve;
    train(RUN_GPT2, "train.fp8=hybrid" DECAY, "whole", whole, &curve);
    static const char *const goes_on[] = {"hybrid", "off"};
    for (int k = 0; k < (int)at_most(2, 1); k++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        char settings[300];
        train(RUN_GPT2, "train.fp8=hybrid train.steps=3" DECAY, "parts", out, &curve);
        snprintf(settings, sizeof settings, STEPS "train.fp8=%s" DECAY, goes_on[k]);
        assert_ok(&ctx, run_job(&ctx, RUN_GPT2, settings, out, &result));
        assert_int_equal(run_same_bytes(whole, out, 6), k == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_changes_no_bit),
        cmocka_unit_test(overlap_changes_no_bit_of_experts),
        cmocka_unit_test(losses_are_near_those_of_bf16),
        cmocka_unit_test(meshes_agree),
        cmocka_unit_test(a_checkpoint_goes_on),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
