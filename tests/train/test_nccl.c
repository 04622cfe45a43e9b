/* NCCL's communicators on the cuda device's streams, over CUDA and NCCL as the host plays them:
 * meshes with a device for each rank have the cpu's losses, whatever the seed of the streams; calls
 * that do not fit together are found; failures end all ranks. Nothing here has seen a GPU. */
#include "ranks.h"

#include <nccl.h>
#include <pthread.h>

#include "run/cuda/device.h"
#include "run/cuda/host/host.h"

#define SMALL                                                                                      \
    "model.n_layers=2 train.seq_len=16 train.batch=4 train.steps=2 eval.every=2 eval.batches=1 "   \
    "optimizer.decay_steps=8 "
#define BY_NCCL "device=cuda parallel.gpu_comm=nccl "

/* As test_cuda has them; sums go round the ranks here, and are rounded to bf16 on the way. */
#define NCCL_TOLERANCE_F32 1e-6
#define NCCL_TOLERANCE_BF16 1e-3

static const struct {
    const char *model, *settings;
    int ranks;
    dh_dtype dtype;
} meshes[] = {
    {RUN_LLAMA, "parallel.tp=4", 4, DH_F32},
    {RUN_LLAMA, "parallel.tp=2 parallel.dp=2 train.dtype=bf16 strategy=dhelix", 4, DH_BF16},
    {RUN_GPT2, "parallel.tp=2 parallel.sequence=false", 2, DH_F32},
    {RUN_GPT2, "parallel.tp=2 strategy=part-wise(2)+dhelix", 2, DH_F32},
    {RUN_GPT2, "parallel.tp=4 strategy=intra-batch", 4, DH_F32},
    {RUN_GPT2, "parallel.tp=2 strategy=dhelix-rings", 2, DH_F32},
    {RUN_LLAMA, "parallel.tp=4 strategy=centauri topology.nodes=2", 4, DH_F32},
    {RUN_GPT2, "parallel.dp=4 parallel.zero=3", 4, DH_F32},
    {RUN_GPT2, "parallel.dp=2 parallel.zero=2 parallel.gather=forward parallel.bucket_mb=0.01", 2,
     DH_F32},
    {RUN_LLAMA, "parallel.cp=2 parallel.tp=2 strategy=dhelix", 4, DH_F32},
    {RUN_LLAMA, "parallel.cp=4", 4, DH_F32},
    {RUN_GPT2, "model.n_layers=4 parallel.pp=4 parallel.schedule=1f1b", 4, DH_F32},
    {RUN_GPT2, "model.n_layers=4 parallel.pp=2 parallel.schedule=zb-v", 2, DH_F32},
    {RUN_GPT2, "model.n_layers=4 parallel.pp=2 parallel.tp=2 strategy=dhelix", 4, DH_F32},
    {RUN_EXPERTS, "parallel.dp=4 parallel.ep=4 moe.mode=dropless", 4, DH_F32},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2 parallel.tp=2 moe.mode=capacity strategy=dhelix", 4,
     DH_F32},
    {RUN_EXPERTS,
     "parallel.dp=4 parallel.ep=4 moe.capacity=4 topology.nodes=2 strategy=two-stage+sequential", 4,
     DH_F32},
};

static void train(const char *model, const char *settings, const char *more, run_curve *curve)
{
    char all[400], out[300];
    snprintf(all, sizeof all, SMALL "%s %s", settings, more);
    run_folder(out, sizeof out, "run");
    run_curve_of(model, all, out, curve);
}

static void no_trouble(void)
{
    char text[200];
    dh_host_take_trouble(text);
    assert_string_equal(text, "");
    assert_int_equal(dh_host_n_objects(), 0);
}

/* Kernels of the host are slow. */
static void meshes_train_as_on_the_cpu(void **state)
{
    const size_t stride = test_is_short() ? 8 : 5;
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        run_curve cpu, cuda;
        if (test_is_thin() && i % stride != 1 && i + 1 < DH_COUNTOF(meshes)) continue;
        dh_host_set_devices(meshes[i].ranks);
        dh_host_seed_streams(i + 1);
        train(meshes[i].model, meshes[i].settings, "device=cpu", &cpu);
        train(meshes[i].model, meshes[i].settings, BY_NCCL, &cuda);
        const double d = run_distance(&cpu, &cuda, 0);
        print_message("%-80s losses differ by %.1e\n", meshes[i].settings, d);
        if (!(d <= (meshes[i].dtype == DH_F32 ? NCCL_TOLERANCE_F32 : NCCL_TOLERANCE_BF16)))
            fail_msg("%s: losses differ by %g", meshes[i].settings, d);
        no_trouble();
    }
}

/* Co-execution changes no bit, nor does a seed. */
static void overlap_changes_no_bit(void **state)
{
    static const char *const strategies[] = {"strategy=sequential", "strategy=dhelix",
                                             "strategy=wavelet+"};
    run_curve first, other;
    dh_host_set_devices(4);
    for (size_t i = 0; i < DH_COUNTOF(strategies) - test_is_thin(); i++) {
        dh_host_seed_streams(3 * i + 2);
        char settings[200];
        snprintf(settings, sizeof settings, "parallel.tp=2 parallel.dp=2 %s", strategies[i]);
        train(RUN_LLAMA, settings, BY_NCCL, i ? &other : &first);
        if (i > 0) assert_true(memcmp(&first.last, &other.last, sizeof first.last) == 0);
    }
    no_trouble();
}

/* A step that is launched as one graph, whose works run in another order each time. */
static void captured_steps_have_the_same_bits(void **state)
{
    static const struct {
        const char *model, *settings;
        int ranks;
    } jobs[] = {{RUN_GPT2, "model.dropout=0.1 train.batch=8", 1},
                {RUN_LLAMA, "parallel.tp=2 parallel.dp=2 strategy=dhelix", 4},
                {RUN_GPT2, "parallel.tp=2 strategy=part-wise(2)+dhelix train.dtype=bf16", 2},
                {RUN_GPT2, "model.n_layers=4 parallel.pp=2 parallel.schedule=1f1b", 2},
                {RUN_GPT2, "parallel.dp=2 parallel.zero=3", 2},
                {RUN_LLAMA, "parallel.cp=2", 2}};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        run_curve plain, captured;
        const size_t stride = test_stride(3, 6);
        if (i % stride != 4 % stride) continue;
        dh_host_set_devices(jobs[i].ranks);
        dh_host_seed_streams(i + 1);
        train(jobs[i].model, jobs[i].settings, "train.steps=3 " BY_NCCL, &plain);
        train(jobs[i].model, jobs[i].settings, "train.steps=3 train.capture=on " BY_NCCL,
              &captured);
        if (memcmp(&plain.last, &captured.last, sizeof plain.last) != 0)
            fail_msg("%s: %.17g captured, %.17g not", jobs[i].settings, captured.last, plain.last);
        no_trouble();
    }
}

static dh_status train_badly(const char *settings, dh_ctx *ctx)
{
    char out[300], all[400];
    run_folder(out, sizeof out, "failed");
    snprintf(all, sizeof all, SMALL "device=cuda %s", settings);
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

static void ranks_on_one_gpu_are_refused_or_have_other_links(void **state)
{
    run_curve cpu, cuda;
    dh_host_set_devices(1);
    expect_failure("parallel.tp=2 parallel.gpu_comm=nccl", DH_EUNSUPPORTED,
                   "members 0 and 1 of group tp have the same GPU");
    train(RUN_GPT2, "parallel.tp=2", "device=cpu", &cpu);
    train(RUN_GPT2, "parallel.tp=2", "device=cuda", &cuda);
    assert_true(run_distance(&cpu, &cuda, 0) <= NCCL_TOLERANCE_F32);
    no_trouble();
}

static void the_job_says_how_ranks_communicate(void **state)
{
    run_curve curve;
    dh_host_set_devices(2);
    train(RUN_GPT2, "parallel.tp=2 parallel.gpu_comm_sms=5", BY_NCCL, &curve);
    assert_int_equal(dh_host_last_ctas(), 5);
    assert_true(dh_host_last_spares());
    /* All are on one stream, whose communicators count once, those of evaluation too. */
    assert_int_equal(dh_host_last_product().sms, 132 - 5);
    train(RUN_GPT2, "parallel.tp=2 profile=none", BY_NCCL, &curve);
    assert_int_equal(dh_host_last_ctas(), 16);
    assert_false(dh_host_last_spares());
    train(RUN_GPT2, "parallel.tp=2 parallel.gpu_comm=host", "device=cuda", &curve);
    assert_int_equal(dh_host_last_product().sms, 0);
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "failed");
    assert_fails(
        &ctx,
        run_job(&ctx, RUN_GPT2, SMALL "device=cpu parallel.tp=2 parallel.gpu_comm=nccl", out, NULL),
        DH_EUNSUPPORTED, "device cpu has no communicator of its own");
}

static void what_cannot_be_captured_is_named(void **state)
{
    run_curve plain, captured;
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    dh_host_set_devices(2);
    expect_failure("parallel.tp=2 parallel.gpu_comm=host train.capture=on", DH_EUNSUPPORTED,
                   "goes through memory of the host");
    run_folder(out, sizeof out, "failed");
    assert_fails(&ctx,
                 run_job(&ctx, RUN_EXPERTS,
                         SMALL "device=cuda parallel.dp=2 parallel.ep=2 moe.mode=dropless "
                               "train.capture=on",
                         out, NULL),
                 DH_EUNSUPPORTED, "a step cannot be captured: operator ");
    print_message("  %s\n", ctx.message);
    assert_fails(&ctx, run_job(&ctx, RUN_GPT2, SMALL "device=cpu train.capture=on", out, NULL),
                 DH_EUNSUPPORTED, "device cpu captures no steps");
    train(RUN_GPT2, "parallel.tp=2 parallel.gpu_comm=host", "device=cuda", &plain);
    train(RUN_GPT2, "parallel.tp=2 parallel.gpu_comm=host", "device=cuda train.capture=auto",
          &captured);
    assert_true(memcmp(&plain.last, &captured.last, sizeof plain.last) == 0);
}

static void a_captured_step_that_fails_ends_all(void **state)
{
    dh_host_set_devices(2);
    for (int64_t n = 200; n <= 1000; n += 400) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_host_fail_kernel(n);
        assert_int_not_equal(train_badly("parallel.tp=2 train.capture=on", &ctx), DH_OK);
        dh_host_fail_kernel(0);
    }
}

/* A kernel that fails on one rank ends what the others wait for on their streams. */
static void a_rank_that_fails_ends_all(void **state)
{
    dh_host_set_devices(4);
    for (int64_t n = 200; n <= 1400; n += 400 * (int64_t)test_stride(1, 3)) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_host_fail_kernel(n);
        assert_int_not_equal(train_badly("parallel.tp=2 parallel.dp=2", &ctx), DH_OK);
        dh_host_fail_kernel(0);
    }
}

static void memory_that_is_not_there_is_told_of(void **state)
{
    dh_host_set_devices(2);
    for (int64_t n = 30; n < 400; n += 61 * (int64_t)test_stride(1, 3)) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_host_fail_allocation(n);
        assert_int_not_equal(train_badly("parallel.tp=2 train.steps=1", &ctx), DH_OK);
        dh_host_fail_allocation(0);
    }
}

static void who_waits_too_long_says_so(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_host_set_devices(2);
    dh_host_delay_kernel(300, 4 * INT64_C(1000000000));
    assert_int_equal(train_badly("parallel.tp=2 parallel.timeout_s=0.5", &ctx), DH_ECOMM);
    assert_non_null(strstr(ctx.message, "waited"));
    dh_host_delay_kernel(0, 0);
}

/* ---- what the host's NCCL finds ----------------------------------------------------------------
 */

enum { N = 2, COUNT = 64 };

typedef struct member {
    int rank;
    ncclUniqueId id;
    void (*call)(struct member *m);
    ncclComm_t comm;
    cudaStream_t stream;
    float *at;
    cudaError_t ended;
} member;

static void *member_main(void *arg)
{
    member *m = arg;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t state = ncclInProgress;
    DH_CHECK(cudaSetDevice(m->rank) == cudaSuccess, "no device");
    DH_CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) == cudaSuccess &&
                 cudaMalloc((void **)&m->at, N * COUNT * sizeof(float)) == cudaSuccess,
             "no memory");
    ncclCommInitRankConfig(&m->comm, N, m->id, m->rank, &config);
    while (state == ncclInProgress) ncclCommGetAsyncError(m->comm, &state);
    m->call(m);
    m->ended = cudaStreamSynchronize(m->stream);
    ncclCommAbort(m->comm);
    cudaStreamDestroy(m->stream);
    cudaFree(m->at);
    return NULL;
}

static void other_length(member *m)
{
    ncclAllReduce(m->at, m->at, m->rank ? COUNT : COUNT / 2, ncclFloat32, ncclSum, m->comm,
                  m->stream);
}

static void other_kind(member *m)
{
    if (m->rank)
        ncclAllGather(m->at, m->at, COUNT, ncclFloat32, m->comm, m->stream);
    else
        ncclReduceScatter(m->at, m->at, COUNT, ncclFloat32, ncclSum, m->comm, m->stream);
}

static void other_order(member *m)
{
    for (int k = 0; k < 2; k++)
        if (k == m->rank)
            ncclSend(m->at, COUNT, ncclFloat32, 1 - m->rank, m->comm, m->stream);
        else
            ncclAllReduce(m->at, m->at, COUNT, ncclFloat32, ncclSum, m->comm, m->stream);
}

static void both_send_first(member *m)
{
    ncclSend(m->at, COUNT, ncclFloat32, 1 - m->rank, m->comm, m->stream);
    ncclRecv(m->at, COUNT, ncclFloat32, 1 - m->rank, m->comm, m->stream);
}

static void longer_than_its_receive(member *m)
{
    if (m->rank)
        ncclSend(m->at, COUNT, ncclFloat32, 0, m->comm, m->stream);
    else
        ncclRecv(m->at, COUNT / 2, ncclFloat32, 1, m->comm, m->stream);
}

static void calls_that_do_not_fit_are_found(void **state)
{
    static const struct {
        void (*call)(member *m);
        const char *says;
    } cases[] = {{other_length, "all-reduce of 32 elements"},
                 {other_kind, "member 0 calls reduce-scatter"},
                 {other_order, "a group of transfers"},
                 {both_send_first, "wait for transfers"},
                 {longer_than_its_receive, "bytes, member"}};
    dh_host_set_devices(N);
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        ncclUniqueId id;
        pthread_t threads[N];
        member members[N];
        char text[200];
        ncclGetUniqueId(&id);
        for (int r = 0; r < N; r++) {
            members[r] = (member){.rank = r, .id = id, .call = cases[i].call};
            assert_int_equal(pthread_create(&threads[r], NULL, member_main, &members[r]), 0);
        }
        for (int r = 0; r < N; r++) pthread_join(threads[r], NULL);
        dh_host_take_trouble(text);
        if (!strstr(text, cases[i].says)) fail_msg("\"%s\" does not say %s", text, cases[i].says);
        assert_int_equal(members[0].ended, cudaErrorLaunchFailure);
        assert_int_equal(dh_host_n_objects(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_do_not_fit_are_found),
        cmocka_unit_test(meshes_train_as_on_the_cpu),
        cmocka_unit_test(overlap_changes_no_bit),
        cmocka_unit_test(ranks_on_one_gpu_are_refused_or_have_other_links),
        cmocka_unit_test(the_job_says_how_ranks_communicate),
        cmocka_unit_test(captured_steps_have_the_same_bits),
        cmocka_unit_test(what_cannot_be_captured_is_named),
        cmocka_unit_test(a_captured_step_that_fails_ends_all),
        cmocka_unit_test(a_rank_that_fails_ends_all),
        cmocka_unit_test(memory_that_is_not_there_is_told_of),
        cmocka_unit_test(who_waits_too_long_says_so),
    };
    setenv("DHELIX_GEMM_PEAK", "1e9", 1); /* the trial takes hours here */
    if (!dh_device_add(&dh_device_cuda)) return 1;
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
