/* The cuda device, over CUDA's runtime on the host: whole runs have the cpu's losses within a
 * tolerance, whatever the seed of the streams; checkpoints go on on the other device; failures are
 * told by name, and leave nothing behind. Nothing here has seen a GPU. */
#include "ranks.h"

#include "run/cuda/device.h"
#include "run/cuda/host/host.h"

#define SMALL                                                                                      \
    "model.n_layers=2 train.batch=4 train.steps=3 eval.every=3 eval.batches=1 "                    \
    "optimizer.decay_steps=8 "

/* Sums are the same in another order: measured 3e-8 in float32, and 3e-5 in bf16, where a value
 * that lies between two may be rounded to either. */
#define CUDA_TOLERANCE_F32 1e-6
#define CUDA_TOLERANCE_BF16 5e-4

#define RUN_GEMMA                                                                                  \
    "model: {family: gemma3_text, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: "   \
    "8,\n"                                                                                         \
    "        ffn_width: 88, vocab: 65, max_seq: 32}\n"
#define RUN_DEEPSEEK                                                                               \
    "model: {family: deepseek_v3, n_layers: 4, width: 32, n_heads: 8, head_dim: 12, rope_dim: "    \
    "4,\n"                                                                                         \
    "        v_dim: 8, q_lora: 24, kv_lora: 20, ffn_width: 40, n_experts: 8, top_k: 3,\n"          \
    "        n_groups: 4, top_groups: 2, vocab: 65, max_seq: 32}\n"
#define RUN_OLMO                                                                                   \
    "model: {family: olmo2, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"     \
    "        ffn_width: 88, vocab: 65, max_seq: 32}\n"

static const struct {
    const char *model, *settings;
    dh_dtype dtype;
} jobs[] = {
    {RUN_GPT2, "model.dropout=0.1", DH_F32},
    {RUN_LLAMA, "train.dtype=bf16", DH_BF16},
    {RUN_EXPERTS, "moe.mode=dropless", DH_F32},
    {RUN_GPT2, "parallel.tp=2 strategy=dhelix", DH_F32},
    {RUN_GPT2, "parallel.dp=2 parallel.zero=1 parallel.bucket_mb=0.01", DH_F32},
    {RUN_LLAMA, "parallel.dp=2 parallel.tp=2", DH_F32},
    {RUN_LLAMA, "parallel.cp=2 train.recompute=full", DH_F32},
    {RUN_GPT2, "parallel.pp=2 train.dtype=bf16", DH_BF16},
    {RUN_GPT2, "parallel.pp=2 optimizer.post_validation=true optimizer.grad_clip=0.5", DH_F32},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2 strategy=wavelet+ moe.mode=dropless", DH_F32},
    {RUN_LLAMA, "model.attention=linear parallel.cp=2", DH_F32},
    {RUN_GEMMA, "train.dtype=bf16", DH_BF16},
    {RUN_GPT2, "train.dtype=bf16 train.fp8=hybrid parallel.tp=2 strategy=dhelix", DH_BF16},
    {RUN_LLAMA, "train.dtype=bf16 train.fp8=e4m3 train.capture=auto", DH_BF16},
    {RUN_EXPERTS, "train.dtype=bf16 train.fp8=hybrid parallel.dp=2 parallel.ep=2", DH_BF16},
    {RUN_OLMO, "parallel.tp=2", DH_F32},
    {RUN_DEEPSEEK, "parallel.ep=2 parallel.dp=2", DH_F32},
};

static void train(size_t job, const char *more, const char *name, char out[300], run_curve *curve)
{
    char settings[400];
    snprintf(settings, sizeof settings, SMALL "%s %s", jobs[job].settings, more);
    run_folder(out, 300, name);
    run_curve_of(jobs[job].model, settings, out, curve);
}

static void it_trains_as_the_cpu_does(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        char out[300];
        run_curve cpu, cuda;
        if (test_is_short() && i % (test_is_slow() ? 8 : 4) != 0) continue;
        if (test_is_thin() && !test_is_short() && i % 2 == 0 && i % 8 != 0) continue;
        train(i, "device=cpu", "cpu", out, &cpu);
        dh_host_seed_streams(i + 1);
        train(i, "device=cuda", "cuda", out, &cuda);
        const double d = run_distance(&cpu, &cuda, 0);
        print_message("%-60s %s: losses differ by %.1e\n", jobs[i].settings,
                      dh_dtype_name(jobs[i].dtype), d);
        if (!(d <= (jobs[i].dtype == DH_F32 ? CUDA_TOLERANCE_F32 : CUDA_TOLERANCE_BF16)))
            fail_msg("%s: losses differ by %g", jobs[i].settings, d);
        assert_int_equal(dh_host_n_objects(), 0);
    }
}

/* ---- GELU in products -------------------------------------------------------------------------
 */

/* Products with it, of 3 steps of 4 micro-batches and one of validation, in 2 layers: forward and
 * backward. */
static void products_make_gelu_where_they_can(void **state)
{
    static const struct {
        const char *model, *settings;
        int n;
    } runs[] = {
        {RUN_GPT2, "train.dtype=bf16", 3 * 4 * 2 * 2 + 4 * 2},
        {RUN_GPT2, "train.recompute=full", 3 * 4 * 2 * 3 + 4 * 2},
        {RUN_GPT2, "train.recompute=selective", 3 * 4 * 2 + 4 * 2}, /* the gradient's */
        {RUN_GPT2, "train.fuse_gelu=off", 0},
        {RUN_GPT2, "train.dtype=bf16 train.fp8=e4m3", 0},
        {RUN_GPT2, "model.ffn_width=100", 0}, /* rows that cuBLASLt has none for */
        {RUN_LLAMA, "train.fuse_gelu=on", 0},
    };
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        char settings[300], out[300];
        run_curve cpu, cuda;
        if (test_is_short() && i % (test_is_slow() ? 6 : 3) != 0) continue;
        snprintf(settings, sizeof settings, SMALL "%s device=cpu", runs[i].settings);
        run_folder(out, sizeof out, "cpu");
        run_curve_of(runs[i].model, settings, out, &cpu);
        const int64_t before = dh_host_n_gelu();
        snprintf(settings, sizeof settings, SMALL "%s device=cuda", runs[i].settings);
        run_folder(out, sizeof out, "cuda");
        run_curve_of(runs[i].model, settings, out, &cuda);
        const double d = run_distance(&cpu, &cuda, 0);
        print_message("%-35s %lld products with GELU, losses differ by %.1e\n", runs[i].settings,
                      (long long)(dh_host_n_gelu() - before), d);
        assert_int_equal(dh_host_n_gelu() - before, runs[i].n);
        assert_true(d <=
                    (strstr(runs[i].settings, "bf16") ? CUDA_TOLERANCE_BF16 : CUDA_TOLERANCE_F32));
    }
}

/* GELU of a sum before it is rounded is another number than GELU of it afterwards: whatever the
 * order of a step, and what is made again, it is the same one. */
static void order_decides_nothing_of_it(void **state)
{
    static const char *const others[] = {"strategy=dhelix", "strategy=dhelix train.recompute=full",
                                         "train.capture=auto"};
    const char *const base = SMALL "device=cuda train.dtype=bf16 parallel.tp=2 ";
    char out[2][300], settings[400];
    run_curve one, other;
    run_folder(out[0], sizeof out[0], "base");
    run_folder(out[1], sizeof out[1], "other");
    snprintf(settings, sizeof settings, "%s strategy=sequential", base);
    run_curve_of(RUN_GPT2, settings, out[0], &one);
    for (size_t i = 0; i < DH_COUNTOF(others); i++) {
        if (test_is_short() && i != 1) continue;
        run_remove(out[1]);
        snprintf(settings, sizeof settings, "%s %s", base, others[i]);
        run_curve_of(RUN_GPT2, settings, out[1], &other);
        if (run_distance(&one, &other, 0) != 0 || !run_same_bytes(out[0], out[1], one.n))
            fail_msg("%s: other bits", others[i]);
    }
}

/* Two steps on one device, the third on the other; then the other way round. */
static void a_run_goes_on_on_the_other_device(void **state)
{
    static const char *const orders[][2] = {{"cpu", "cuda"}, {"cuda", "cpu"}};
    char whole[300], parts[300], settings[400];
    run_curve cpu, other;
    train(3, "device=cpu eval.every=1", "whole", whole, &cpu);
    for (size_t i = 0; i < DH_COUNTOF(orders); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        snprintf(settings, sizeof settings, "train.steps=2 eval.every=1 device=%s", orders[i][0]);
        train(3, settings, "parts", parts, &other);
        snprintf(settings, sizeof settings, SMALL "%s eval.every=1 device=%s", jobs[3].settings,
                 orders[i][1]);
        assert_ok(&ctx, run_job(&ctx, jobs[3].model, settings, parts, &result));
        assert_int_equal(result.resumed_at, 2);
        run_read_curve(parts, &other);
        assert_true(run_distance(&cpu, &other, 0) <= CUDA_TOLERANCE_F32);
    }
}

/* What a failed run says; nothing is left of it. */
static void expect_failure(const char *settings, dh_status want, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300], all[400];
    run_folder(out, sizeof out, "failed");
    snprintf(all, sizeof all, SMALL "device=cuda %s", settings);
    const dh_status st = run_job(&ctx, RUN_GPT2, all, out, NULL);
    print_message("  %s\n", ctx.message);
    assert_int_equal(st, want);
    assert_non_null(strstr(ctx.message, text));
    assert_int_equal(dh_host_n_objects(), 0);
}

static void a_kernel_that_fails_is_told_by_name(void **state)
{
    static const int64_t nth[] = {1, 300, 600};
    for (size_t i = 0; i < DH_COUNTOF(nth); i++) {
        dh_host_fail_kernel(nth[i]);
        expect_failure(i == 1 ? "parallel.dp=2" : "", DH_EINTERNAL, "cudaErrorLaunchFailure");
        dh_host_fail_kernel(0);
    }
}

/* Each allocation, stream and event of a program in turn, in leaps. */
static void memory_that_is_not_there_is_told_of(void **state)
{
    int n_failures = 0;
    for (int64_t n = 1; n < 600; n += n < 12 ? 1 : 97, n_failures++) {
        dh_host_fail_allocation(n);
        expect_failure("train.steps=1", DH_ENOMEM, "out of memory");
        dh_host_fail_allocation(0);
    }
    assert_true(n_failures > 15);
}

static void a_machine_without_a_gpu_says_so(void **state)
{
    dh_host_set_devices(0);
    expect_failure("", DH_EMISSING,
                   "the machine has no GPU, or no driver for it (cudaErrorNoDevice: no "
                   "CUDA-capable device is detected)");
    dh_host_set_devices(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_trains_as_the_cpu_does),
        cmocka_unit_test(products_make_gelu_where_they_can),
        cmocka_unit_test(order_decides_nothing_of_it),
        cmocka_unit_test(a_run_goes_on_on_the_other_device),
        cmocka_unit_test(a_kernel_that_fails_is_told_by_name),
        cmocka_unit_test(memory_that_is_not_there_is_told_of),
        cmocka_unit_test(a_machine_without_a_gpu_says_so),
    };
    setenv("DHELIX_GEMM_PEAK", "1e9", 1); /* the trial takes hours here */
    if (!dh_device_add(&dh_device_cuda)) return 1;
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
