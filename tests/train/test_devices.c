/* Devices train alike: whole runs on every device leave the bits that they leave on the first, the
 * cpu, in the memory planned; a checkpoint of one goes on on another; failures are told of alike.
 */
#include "ranks.h"

#include "run/exec/device.h"

static const struct {
    const char *model, *settings;
} jobs[] = {
    {RUN_GPT2, "parallel.tp=2 parallel.pp=2 strategy=dhelix model.dropout=0.1"},
    {RUN_GPT2, "parallel.tp=2 strategy=intra-batch"},
    {RUN_LLAMA, "parallel.tp=2 parallel.cp=2 train.dtype=bf16 strategy=dhelix"},
    {RUN_LLAMA, "parallel.cp=2 strategy=intra-batch-bidirectional"},
    {RUN_GPT2, "parallel.pp=2 parallel.dp=2 parallel.zero=1 parallel.bucket_mb=0.01"},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2 strategy=wavelet+ moe.mode=dropless"},
    {RUN_GPT2, "parallel.pp=4 optimizer.post_validation=true"},
    {RUN_LLAMA, "train.recompute=full"},
};

/* Two steps of a job with more settings, in a folder of this name. */
static void train(size_t job, const char *more, const char *name, char out[300], run_curve *curve)
{
    char settings[400];
    snprintf(settings, sizeof settings, "train.steps=2 eval.every=2 eval.batches=1 %s %s",
             jobs[job].settings, more);
    run_folder(out, 300, name);
    run_curve_of(jobs[job].model, settings, out, curve);
}

static void devices_give_the_same_bits(void **state)
{
    size_t n;
    const dh_device *const *devices = dh_devices(&n);
    assert_true(n > 1);
    for (size_t i = 0; i < DH_COUNTOF(jobs); i += test_stride(1, 3)) {
        char first_out[300], out[300], more[100];
        run_curve first, other;
        train(i, "device=cpu", "first", first_out, &first);
        for (size_t d = 1; d < n; d++) {
            snprintf(more, sizeof more, "device=%s", devices[d]->name);
            train(i, more, "other", out, &other);
            if (run_distance(&first, &other, 0) != 0 || !run_same_bytes(first_out, out, 2))
                fail_msg("%s: other bits with %s", jobs[i].settings, more);
        }
    }
}

#define DECAY " optimizer.decay_steps=8" /* the same, however far a run goes */

/* Three steps on the cpu; one there, and two after it elsewhere. */
static void a_run_goes_on_on_another_device(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    char whole[300], parts[300], settings[400];
    run_curve curve;
    train(0, "device=cpu train.steps=3" DECAY, "whole", whole, &curve);
    train(0, "device=cpu train.steps=1" DECAY, "parts", parts, &curve);
    snprintf(settings, sizeof settings, "%s train.steps=3 device=staged" DECAY, jobs[0].settings);
    assert_ok(&ctx, run_job(&ctx, jobs[0].model, settings, parts, &result));
    assert_int_equal(result.resumed_at, 1);
    assert_true(run_same_bytes(whole, parts, 3));
}

/* A rank that never comes is named, whatever its device was doing meanwhile. */
static void a_late_rank_is_named(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "late");
    setenv("DHELIX_FAULT", "delay:1:300:60000", 1);
    const dh_status st =
        run_job(&ctx, RUN_GPT2, "parallel.dp=2 parallel.tp=2 parallel.timeout_s=2 device=staged",
                out, NULL);
    unsetenv("DHELIX_FAULT");
    printf("  %s\n", ctx.message);
    assert_int_equal(st, DH_ECOMM);
    assert_non_null(strstr(ctx.message, "waited 2 s in "));
    assert_non_null(strstr(ctx.message, " rank 1 (last finished "));
}

static void a_device_nobody_knows_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "unknown");
    assert_int_equal(run_job(&ctx, RUN_GPT2, "device=abacus", out, NULL), DH_EMISSING);
    assert_non_null(strstr(ctx.message, "no device is called \"abacus\"; there are cpu, staged"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_give_the_same_bits),
        cmocka_unit_test(a_run_goes_on_on_another_device),
        cmocka_unit_test(a_late_rank_is_named),
        cmocka_unit_test(a_device_nobody_knows_is_refused),
    };
    setenv("DHELIX_STAGED_SEED", "1", 1);
    printf("DHELIX_STAGED_SEED=%s\n", getenv("DHELIX_STAGED_SEED"));
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
