/* Optimizers fused with the sums before them and the gathers behind them (optimizer.fuse) leave the
 * bits of those that wait for the norm of all gradients: losses, norms, weights and moments. */
#include "ranks.h"

static const struct {
    const char *model, *settings;
    bool deep;
} runs[] = {
    {RUN_GPT2, "parallel.dp=2 parallel.zero=1", false},
    {RUN_LLAMA, "parallel.dp=2 parallel.tp=2 parallel.zero=2 train.dtype=bf16", false},
    {RUN_GPT2,
     "parallel.pp=2 parallel.dp=2 parallel.schedule=zb-v parallel.zero=1 "
     "parallel.bucket_mb=0.02",
     false},
    {RUN_LLAMA, "parallel.dp=4 parallel.zero=1 parallel.gather=forward", true},
    {RUN_LLAMA, "parallel.dp=2 parallel.cp=2 parallel.zero=2 parallel.bucket_mb=0.02", true},
    {RUN_EXPERTS, "parallel.dp=4 parallel.ep=2 parallel.zero=1 train.dtype=bf16", true},
    {RUN_LLAMA, "parallel.pp=2 parallel.schedule=dualpipe parallel.dp=2 parallel.zero=1", true},
    {RUN_GPT2,
     "parallel.pp=2 parallel.virtual_stages=2 parallel.schedule=interleaved-1f1b "
     "parallel.dp=2 parallel.zero=2 strategy=sequential",
     true},
};

static const char *const fused[] = {"1", "4"};

/* By settings that clip nothing, everything, or what lies above a norm. */
static void expect_same(size_t run, const char *fuse, double clip, run_curve *curve)
{
    char settings[400], out[2][300];
    run_curve own;
    for (int k = 0; k < 2; k++) {
        snprintf(settings, sizeof settings,
                 "%s train.steps=8 eval.every=8 optimizer.grad_clip=%.17g optimizer.fuse=%s",
                 runs[run].settings, clip, k ? fuse : "off");
        run_folder(out[k], sizeof out[k], k ? "fused" : "waits");
        run_curve_of(runs[run].model, settings, out[k], k ? &own : curve);
    }
    double norms = 0;
    for (int i = 0; i < curve->n; i++) norms = fmax(norms, fabs(curve->norm[i] - own.norm[i]));
    if (run_distance(curve, &own, 0) != 0 || curve->last != own.last || norms != 0 ||
        !run_same_bytes(out[0], out[1], curve->n))
        fail_msg("%s: other bits", settings);
    for (int k = 0; k < 2; k++) run_remove(out[k]);
}

static void fusing_changes_no_bit(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        run_curve curve;
        int n_above = 0;
        if (runs[i].deep && test_is_thin()) continue;
        for (size_t f = 0; f < DH_COUNTOF(fused); f++) expect_same(i, fused[f], 0, &curve);
        const double some = curve.norm[curve.n / 2] * 1.0001;
        expect_same(i, fused[i % 2], some, &curve);
        for (int k = 0; k < curve.n; k++) n_above += curve.norm[k] > some;
        if (n_above == 0 || n_above == curve.n)
            fail_msg("%s: %d of %d steps clip", runs[i].settings, n_above, curve.n);
        if (test_is_thin() && i > 0) continue;
        expect_same(i, "2", 0.02, &curve);
        expect_same(i, "2", 1e6, &curve);
    }
}

static void refused(const char *settings, const char *message)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "refused");
    assert_fails(&ctx, run_job(&ctx, RUN_GPT2, settings, out, NULL), DH_EINVAL, message);
}

static void what_cannot_be_fused_is_refused(void **state)
{
    refused("parallel.dp=2 optimizer.fuse=2", "parallel.zero 0 does not have: 1 or 2 would do");
    refused("parallel.dp=2 parallel.zero=3 optimizer.fuse=2", "parallel.zero 3 does not have");
    refused("parallel.dp=2 parallel.pp=2 parallel.zero=1 optimizer.fuse=2 "
            "optimizer.post_validation=true",
            "two ways of stepping before the norm");
    refused("optimizer.fuse=3", "optimizer.fuse");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fusing_changes_no_bit),
        cmocka_unit_test(what_cannot_be_fused_is_refused),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
