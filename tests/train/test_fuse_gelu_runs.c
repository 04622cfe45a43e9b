/* Training with products that make GELU (train.fuse_gelu): on the cpu and the staged device, which
 * make product and activation one after the other, the bits are those of two operators. */
#include "ranks.h"

#include "train/recipe.h"

#define STEPS "train.steps=3 eval.every=3 eval.batches=1 "

static void train(const char *settings, const char *more, const char *name, char out[300],
                  run_curve *curve)
{
    char all[500];
    snprintf(all, sizeof all, STEPS "%s %s", settings, more);
    run_folder(out, 300, name);
    run_curve_of(RUN_GPT2, all, out, curve);
}

static void bits_are_those_of_two_operators(void **state)
{
    static const char *const jobs[] = {
        "train.dtype=bf16 model.dropout=0.1",
        "train.dtype=bf16 parallel.tp=2 strategy=dhelix",
        "train.recompute=full parallel.pp=2",
        "train.dtype=bf16 train.recompute=selective strategy=dhelix",
        "parallel.tp=2 strategy=part-wise(2)+dhelix",
        "parallel.tp=2 parallel.sequence=false strategy=domino parallel.dp=2",
        "parallel.pp=2 parallel.schedule=zb-h1 train.recompute=full train.dtype=bf16",
        "parallel.dp=2 parallel.zero=3 device=staged",
        "train.dtype=bf16 train.fp8=hybrid",
    };
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        char out[2][300];
        run_curve two, one;
        if (test_is_short() && i % 3 != 0) continue;
        train(jobs[i], "train.fuse_gelu=off", "two", out[0], &two);
        train(jobs[i], "train.fuse_gelu=on", "one", out[1], &one);
        if (run_distance(&two, &one, 0) != 0 || !run_same_bytes(out[0], out[1], two.n))
            fail_msg("%s: other bits, losses by %g", jobs[i], run_distance(&two, &one, 0));
    }
}

/* auto: the cpu gains nothing by it. */
static void the_setting_decides(void **state)
{
    static const struct {
        const char *settings;
        bool fuses;
    } jobs[] = {{"device=cpu", false},
                {"device=cpu train.fuse_gelu=on", true},
                {"device=staged train.fuse_gelu=auto", false},
                {"train.fuse_gelu=off", false}};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_job *job;
        dh_recipe recipe;
        assert_ok(&ctx, run_parse(&ctx, RUN_GPT2, jobs[i].settings, run_dir, &job));
        assert_ok(&ctx, dh_recipe_of_job(&ctx, job, &recipe));
        assert_int_equal(recipe.fuse_gelu, jobs[i].fuses);
        dh_job_destroy(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_setting_decides),
        cmocka_unit_test(bits_are_those_of_two_operators),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
