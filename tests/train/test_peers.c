/* Jobs whose ranks share a GPU and communicate by copies on it, over CUDA as the host plays it:
 * meshes train with the bits of gpu_comm=host; jobs choose their links by where ranks are; failures
 * end all ranks; profiles measure pairs. Nothing here has seen a GPU. */
#include "ranks.h"

#include "run/cuda/device.h"
#include "run/cuda/host/host.h"
#include "train/profile.h"
#include "train/profiling.h"

#define SMALL                                                                                      \
    "model.n_layers=2 train.batch=4 train.steps=2 train.seq_len=16 eval.every=2 eval.batches=1 "   \
    "optimizer.decay_steps=8 device=cuda "

/* ---- jobs -------------------------------------------------------------------------------------
 */

static const struct {
    const char *model, *settings;
} meshes[] = {
    {RUN_LLAMA, "parallel.tp=4"},
    {RUN_LLAMA, "parallel.tp=2 parallel.dp=2 train.dtype=bf16 strategy=dhelix"},
    {RUN_GPT2, "parallel.tp=2 parallel.sequence=false"},
    {RUN_GPT2, "parallel.tp=2 strategy=part-wise(2)+dhelix"},
    {RUN_GPT2, "parallel.tp=2 strategy=dhelix-rings"},
    {RUN_GPT2, "parallel.dp=4 parallel.zero=3"},
    {RUN_GPT2, "parallel.dp=2 parallel.zero=2 parallel.gather=forward parallel.bucket_mb=0.01"},
    {RUN_LLAMA, "parallel.cp=2 parallel.tp=2 strategy=dhelix"},
    {RUN_GPT2, "model.n_layers=4 parallel.pp=4 parallel.schedule=1f1b"},
    {RUN_GPT2, "model.n_layers=4 parallel.pp=2 parallel.schedule=zb-v train.dtype=bf16"},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2 moe.mode=dropless"},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2 parallel.tp=2 moe.mode=capacity strategy=dhelix"},
    {RUN_EXPERTS,
     "parallel.dp=4 parallel.ep=4 moe.capacity=4 topology.nodes=2 strategy=two-stage+sequential"},
    {RUN_LLAMA, "parallel.tp=2 links.local.gbps=0.5 links.local.latency_us=50"},
};

static void train(const char *model, const char *settings, const char *more, run_curve *curve)
{
    char all[400], out[300];
    snprintf(all, sizeof all, SMALL "%s %s", settings, more);
    run_folder(out, sizeof out, "run");
    run_curve_of(model, all, out, curve);
}

static void expect_same_bits(const run_curve *a, const run_curve *b, const char *settings)
{
    if (a->n == b->n && memcmp(&a->last, &b->last, sizeof a->last) == 0 &&
        memcmp(a->norm, b->norm, (size_t)a->n * sizeof *a->norm) == 0)
        return;
    fail_msg("%s: loss %.17g on the device, %.17g through the host", settings, b->last, a->last);
}

static void meshes_have_the_bits_of_the_host(void **state)
{
    const size_t stride = test_stride(3, 6);
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        run_curve host, device;
        if (i % stride != 1 % stride) continue;
        dh_host_set_devices(1);
        dh_host_seed_streams(i + 1);
        train(meshes[i].model, meshes[i].settings, "parallel.gpu_comm=host", &host);
        train(meshes[i].model, meshes[i].settings, "parallel.gpu_comm=device", &device);
        expect_same_bits(&host, &device, meshes[i].settings);
        assert_int_equal(dh_host_n_objects(), 0);
        print_message("  %s\n", meshes[i].settings);
    }
}

static dh_status train_badly(const char *settings, dh_ctx *ctx)
{
    char out[300], all[400];
    run_folder(out, sizeof out, "failed");
    snprintf(all, sizeof all, SMALL "%s", settings);
    const dh_status st = run_job(ctx, RUN_GPT2, all, out, NULL);
    print_message("  %s\n", ctx->message);
    assert_int_equal(dh_host_n_objects(), 0);
    return st;
}

static void expect_failure(const char *settings, dh_status want, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_int_equal(train_badly(settings, &ctx), want);
    assert_non_null(strstr(ctx.message, text));
}

/* That `auto` has these links is seen by what it says of captured steps. */
static void jobs_choose_by_where_ranks_are(void **state)
{
    run_curve host, device;
    static const char *const settings = "parallel.tp=2 train.capture=auto";
    dh_host_set_devices(1);
    expect_failure("parallel.tp=2 train.capture=on", DH_EUNSUPPORTED,
                   "meets ranks whose steps are graphs of their own");
    expect_failure("parallel.tp=2 parallel.gpu_comm=host train.capture=on", DH_EUNSUPPORTED,
                   "goes through memory of the host");
    train(RUN_GPT2, settings, "parallel.gpu_comm=host", &host);
    train(RUN_GPT2, settings, "parallel.gpu_comm=auto", &device);
    expect_same_bits(&host, &device, settings);
    dh_host_set_devices(2);
    expect_failure("parallel.tp=2 parallel.gpu_comm=device", DH_EUNSUPPORTED,
                   "members 0 and 1 of group tp have GPUs of their own");
    expect_failure("parallel.tp=2 parallel.gpu_comm=device device=cpu", DH_EUNSUPPORTED,
                   "device cpu has no communicator of its own");
}

/* NCCL takes the time that it takes: it is not used where links are to be paced. */
static void paced_links_are_not_nccls(void **state)
{
    dh_host_set_devices(2);
    expect_failure("parallel.tp=2 parallel.gpu_comm=nccl links.local.gbps=1", DH_EUNSUPPORTED,
                   "links.local is paced");
    expect_failure("parallel.tp=2 links.local.gbps=1 train.capture=on", DH_EUNSUPPORTED,
                   "goes through memory of the host");
}

/* ---- failures ---------------------------------------------------------------------------------
 */

static void a_kernel_that_fails_ends_all(void **state)
{
    dh_host_set_devices(1);
    for (int64_t n = 200; n <= 1400; n += 400 * (int64_t)test_stride(1, 3)) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_host_fail_kernel(n);
        assert_int_equal(train_badly("parallel.tp=2 parallel.dp=2", &ctx), DH_EINTERNAL);
        assert_non_null(strstr(ctx.message, "cudaErrorLaunchFailure"));
        dh_host_fail_kernel(0);
    }
}

static void memory_that_is_not_there_is_told_of(void **state)
{
    dh_host_set_devices(1);
    for (int64_t n = 30; n < 500; n += 41 * (int64_t)test_stride(3, 6)) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_host_fail_allocation(n);
        assert_int_not_equal(train_badly("parallel.tp=2 train.steps=1 links.local.gbps=10", &ctx),
                             DH_OK);
        dh_host_fail_allocation(0);
    }
}

static void who_waits_too_long_says_so(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_host_set_devices(1);
    dh_host_delay_kernel(300, 4 * INT64_C(1000000000));
    assert_int_equal(train_badly("parallel.tp=2 parallel.timeout_s=0.5", &ctx), DH_ECOMM);
    assert_non_null(strstr(ctx.message, "waited"));
    dh_host_delay_kernel(0, 0);
}

/* ---- profiles ---------------------------------------------------------------------------------
 */

static void pairs_are_measured_on_these_links(void **state)
{
    const dh_profile_options options = {.quiet = true, .samples = 1};
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    dh_job *job;
    dh_profile *profile;
    size_t n_links = 0, n_pairs = 0;
    dh_host_set_devices(1);
    run_folder(out, sizeof out, "profiled");
    assert_ok(&ctx, run_parse(&ctx, RUN_GPT2,
                              SMALL "parallel.tp=2 parallel.gpu_comm=device links.local.gbps=1 "
                                    "links.local.latency_us=2000 model.n_layers=1",
                              out, &job));
    assert_ok(&ctx, dh_profile_measure(&ctx, job, &options, &profile));
    for (size_t i = 0; i < profile->ops.n; i++) {
        if (profile->ops.at[i].stream == DH_STREAM_COMPUTE) continue;
        n_links++;
        assert_true(profile->ops.at[i].solo_ns >= 2000 * 1000);
    }
    n_pairs = profile->pairs.n;
    print_message("  %zu operators, %zu of them on links, %zu pairs\n", profile->ops.n, n_links,
                  n_pairs);
    assert_true(n_links >= 2 && n_pairs > 30);
    dh_profile_destroy(profile);
    dh_job_destroy(job);
    assert_int_equal(dh_host_n_objects(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meshes_have_the_bits_of_the_host),
        cmocka_unit_test(jobs_choose_by_where_ranks_are),
        cmocka_unit_test(paced_links_are_not_nccls),
        cmocka_unit_test(a_kernel_that_fails_ends_all),
        cmocka_unit_test(memory_that_is_not_there_is_told_of),
        cmocka_unit_test(who_waits_too_long_says_so),
        cmocka_unit_test(pairs_are_measured_on_these_links),
    };
    setenv("DHELIX_GEMM_PEAK", "1e9", 1); /* the trial takes hours here */
    if (!dh_device_add(&dh_device_cuda)) return 1;
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
