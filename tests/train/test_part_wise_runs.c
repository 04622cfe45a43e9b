/* Training with collectives in parts (pass part-wise) against the same mesh without: losses, bits.
 *
 * Tolerance. No sum is cut or in another order; only a GEMM of fewer rows may be another kernel,
 * whose last bits differ: the losses then differ as between meshes (ranks.h). */
#include "ranks.h"

typedef struct comparison {
    const char *model, *settings, *strategy;
    dh_dtype dtype;
} comparison;

static void parts_train_alike(void **state)
{
    static const comparison list[] = {
        {RUN_GPT2, "parallel.tp=2", "part-wise(2)+sequential", DH_F32},
        {RUN_GPT2, "parallel.tp=4 model.dropout=0.1", "part-wise(1)+sequential", DH_F32},
        {RUN_GPT2, "parallel.tp=2 parallel.sequence=false", "part-wise(4)+sequential", DH_F32},
        {RUN_LLAMA, "parallel.tp=2 parallel.pp=2 train.recompute=full", "part-wise(2)+dhelix",
         DH_F32},
        /* Few steps: in bf16 what differs in a last place grows on its own (tolerances.md). */
        {RUN_LLAMA,
         "parallel.tp=4 parallel.sequence=false train.dtype=bf16 train.steps=4 eval.every=4",
         "part-wise(2)+sequential", DH_BF16},
        {RUN_EXPERTS, "parallel.tp=2 parallel.dp=2", "part-wise(2)+sequential", DH_F32},
        {RUN_GPT2, "parallel.tp=2", "part-wise(2,scatter)+sequential", DH_F32},
        {RUN_GPT2, "parallel.tp=4 model.dropout=0.1", "flux", DH_F32},
        {RUN_LLAMA, "parallel.tp=2 parallel.pp=2 train.recompute=full", "part-wise(scatter)+dhelix",
         DH_F32},
        {RUN_LLAMA, "parallel.tp=4 train.dtype=bf16 train.steps=4 eval.every=4",
         "part-wise(1,scatter)+sequential", DH_BF16},
    };
    const char *const few = test_is_slow() ? " train.steps=4" : "";
    for (size_t i = 0; i < DH_COUNTOF(list); i++) {
        if (test_leaves_out(i)) continue;
        const comparison *c = &list[i];
        char settings[300], out[2][300];
        run_curve plain, parts;
        run_folder(out[0], sizeof out[0], "plain");
        run_folder(out[1], sizeof out[1], "parts");
        snprintf(settings, sizeof settings, "%s%s", c->settings, few);
        run_curve_of(c->model, settings, out[0], &plain);
        snprintf(settings, sizeof settings, "%s%s strategy=%s", c->settings, few, c->strategy);
        run_curve_of(c->model, settings, out[1], &parts);
        const double d = run_distance(&plain, &parts, 0);
        printf("  %s: losses differ by %.2g, bits %s\n", settings, d,
               run_same_bytes(out[0], out[1], plain.n) ? "are the same" : "differ");
        if (!(d <= run_tolerance(c->dtype))) fail_msg("%s: losses differ by %g", settings, d);
    }
}

#define TP2 "parallel.tp=2 strategy=part-wise(2,scatter)+sequential"

/* Who runs beside whom, and a slow wire, change no bit; nor does doing it again. */
static void timing_decides_nothing(void **state)
{
    static const char *const settings[] = {
        TP2,
        ("links.local.gbps=0.2 links.local.latency_us=50 " TP2),
        "parallel.tp=2 strategy=part-wise(2,scatter)+dhelix",
    };
    char out[DH_COUNTOF(settings)][300];
    run_curve curve[DH_COUNTOF(settings)];
    for (size_t i = 0; i < DH_COUNTOF(settings); i++) {
        char name[16], all[200];
        const int n = run_steps(20);
        snprintf(name, sizeof name, "run%zu", i);
        snprintf(all, sizeof all, "%s train.steps=%d", settings[i], n);
        run_folder(out[i], sizeof out[i], name);
        run_curve_of(RUN_LLAMA, all, out[i], &curve[i]);
        assert_true(run_distance(&curve[0], &curve[i], 0) == 0);
        assert_true(run_same_bytes(out[0], out[i], n));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_train_alike),
        cmocka_unit_test(timing_decides_nothing),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
