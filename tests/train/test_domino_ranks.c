/* Training with micro-batches in parts, by rows, by columns and both (strategy domino) against the
 * same mesh without: losses, repeatability, and that an order of the parts' operators changes no
 * bit.
 *
 * Tolerance. A GEMM of fewer rows may be another kernel, and a weight's gradient is a float32 sum
 * of the parts' sums instead of one over all rows: what two meshes differ by (ranks.h), 2e-5 in
 * float32. In bf16 activations are the same values in other GEMMs, rounded in the last place
 * otherwise now and then: 2e-4 over 4 steps, ten times what was measured. By columns the gradient
 * of their common input is a sum of rounded sums, all of it rounded otherwise: 1e-3. Over 20 such
 * differences grow on their own: the Llama's validation loss differs by 1.5e-2 between two builds
 * of the plain run. */
#include "ranks.h"

enum { STEPS = 20, FEW_STEPS = 4 };
#define SHORT " train.steps=4 eval.every=4"

typedef struct comparison {
    const char *settings, *strategy;
    dh_dtype dtype;
} comparison;

static double allowed(const comparison *c)
{
    if (c->dtype == DH_F32) return run_tolerance(DH_F32);
    return strstr(c->strategy, "columns") ? 1e-3 : 2e-4;
}

static void trains_alike(const char *name, const char *model, const comparison *list, size_t n)
{
    double worst[DH_N_DTYPE] = {0};
    for (size_t i = 0; i < n; i++) {
        if (test_leaves_out(i)) continue;
        char settings[300], out[2][300];
        run_curve plain, parts;
        run_folder(out[0], sizeof out[0], "plain");
        run_folder(out[1], sizeof out[1], "parts");
        run_curve_of(model, list[i].settings, out[0], &plain);
        snprintf(settings, sizeof settings, "%s strategy=%s", list[i].settings, list[i].strategy);
        run_curve_of(model, settings, out[1], &parts);
        assert_int_equal(plain.n, list[i].dtype == DH_F32 ? STEPS : FEW_STEPS);
        assert_false(run_same_bytes(out[0], out[1], plain.n)); /* sums were grouped otherwise */
        const double d = run_distance(&plain, &parts, 0);
        if (!(d <= allowed(&list[i]))) fail_msg("%s: losses differ by %g", settings, d);
        worst[list[i].dtype] = fmax(worst[list[i].dtype], d);
    }
    printf("  %s: losses differ by %.2g (f32), %.2g (bf16) at most\n", name, worst[DH_F32],
           worst[DH_BF16]);
}

static void a_gpt2_trains_alike(void **state)
{
    static const comparison list[] = {
        {"parallel.tp=2 train.micro_batch=2", "domino", DH_F32},
        {"parallel.tp=4 train.micro_batch=4 parallel.sequence=false", "domino(4)", DH_F32},
        {"parallel.tp=2 train.micro_batch=2 train.recompute=full model.dropout=0.1 "
         "parallel.sequence=false",
         "domino", DH_F32},
        {"parallel.tp=2", "domino(parts=1,columns=2)", DH_F32},
        {"parallel.tp=2 train.micro_batch=2 train.recompute=full parallel.sequence=false",
         "domino(columns=4)", DH_F32},
        {"parallel.tp=4 train.micro_batch=2 train.dtype=bf16" SHORT, "domino", DH_BF16},
        {"parallel.tp=4 train.micro_batch=2 train.dtype=bf16" SHORT, "domino(columns=2)", DH_BF16},
        {"parallel.tp=2 train.micro_batch=2 train.dtype=bf16 parallel.sequence=false" SHORT,
         "domino", DH_BF16},
    };
    (void)state;
    trains_alike("gpt2", RUN_GPT2, list, DH_COUNTOF(list));
}

static void a_llama_trains_alike(void **state)
{
    static const comparison list[] = {
        {"parallel.tp=4 train.micro_batch=2 model.dropout=0.1", "domino", DH_F32},
        {"parallel.tp=2 train.micro_batch=2 parallel.pp=2 train.recompute=selective "
         "parallel.schedule=zb-h1",
         "domino", DH_F32},
        {"parallel.tp=2 train.micro_batch=2", "domino+intra-batch", DH_F32},
        {"parallel.tp=2 parallel.dp=2 parallel.zero=1 train.micro_batch=2 train.dtype=bf16 "
         "parallel.sequence=false" SHORT,
         "domino(parts=1,columns=2)", DH_BF16},
        {"parallel.tp=4 parallel.pp=2 train.micro_batch=2 train.recompute=selective "
         "parallel.schedule=zb-h1 model.dropout=0.1",
         "domino(columns=2)", DH_F32},
        {"parallel.tp=4 train.micro_batch=2 train.dtype=bf16 parallel.sequence=false" SHORT,
         "domino", DH_BF16},
        {"parallel.tp=2 train.micro_batch=2 train.dtype=bf16" SHORT, "domino", DH_BF16},
    };
    (void)state;
    trains_alike("llama", RUN_LLAMA, list, DH_COUNTOF(list));
}

/* One run in the order of the graphs, two in the order that was chosen. */
static void orders_change_no_bit(void **state)
{
    enum { RUNS = 3 };
    static const struct {
        const char *settings, *strategies[RUNS];
    } cases[] = {
        {"parallel.tp=4 train.micro_batch=2 parallel.sequence=false train.dtype=bf16",
         {"{passes: [domino], order: sequential}", "domino", "domino"}},
        {"parallel.tp=2 train.micro_batch=2 model.dropout=0.1",
         {"{passes: [domino], order: sequential}", "domino", "domino"}},
        {"parallel.tp=2 train.micro_batch=2",
         {"domino(columns=2)", "domino(columns=2)+list", "domino(columns=2)+round-robin"}},
    };
    (void)state;
    for (size_t s = 0; s < DH_COUNTOF(cases); s++) {
        if (test_leaves_out(s)) continue;
        char out[RUNS][300];
        run_curve curve[RUNS];
        for (size_t k = 0; k < RUNS; k++) {
            const char *strategy = cases[s].strategies[k];
            dh_ctx ctx = DH_CTX_INIT;
            char folder[16], job[600];
            snprintf(folder, sizeof folder, "run%zu", k);
            run_folder(out[k], sizeof out[k], folder);
            snprintf(job, sizeof job, "%sstrategy: \"%s\"\n", RUN_LLAMA, strategy);
            if (run_job(&ctx, job, cases[s].settings, out[k], NULL) != DH_OK)
                fail_msg("%s: %s", strategy, ctx.message);
            run_read_curve(out[k], &curve[k]);
            if (!run_same_bytes(out[0], out[k], 20))
                fail_msg("%s, %s: other bits", cases[s].settings, strategy);
        }
    }
}

/* Where it does not apply the run is the plain one. */
static void other_jobs_are_left_alone(void **state)
{
    static const char *const settings[] = {"parallel.dp=2", "parallel.tp=2"}; /* micro_batch 1 */
    (void)state;
    for (size_t s = 0; s < DH_COUNTOF(settings); s++) {
        char out[2][300], words[100];
        run_curve curve[2];
        run_folder(out[0], sizeof out[0], "plain");
        run_folder(out[1], sizeof out[1], "parts");
        snprintf(words, sizeof words, "%s strategy=domino", settings[s]);
        run_curve_of(RUN_GPT2, settings[s], out[0], &curve[0]);
        run_curve_of(RUN_GPT2, words, out[1], &curve[1]);
        assert_true(run_same_bytes(out[0], out[1], 20));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt2_trains_alike),
        cmocka_unit_test(a_llama_trains_alike),
        cmocka_unit_test(orders_change_no_bit),
        cmocka_unit_test(other_jobs_are_left_alone),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
