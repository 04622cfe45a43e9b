/* Ranks that fail: the job ends with one message that names the rank and the cause, the
 * last checkpoint is intact, and fewer ranks continue from it.
 *
 * That nothing hangs is checked by the test's time limit. */
#include "ranks.h"

#include <fcntl.h>
#include <float.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const double loss_tolerance = 2e-5; /* as in test_meshes.c */
static char out[300];
static run_curve whole; /* of one rank, undisturbed */

/* A run that fails, with a fault or none. */
static dh_status fail_run(dh_ctx *ctx, const char *settings, const char *fault)
{
    dh_ctx_reset(ctx);
    if (fault) setenv("DHELIX_FAULT", fault, 1);
    run_alone = true; /* files may have a limit */
    dh_status st = run_job(ctx, RUN_GPT2, settings, out, NULL);
    run_alone = false;
    unsetenv("DHELIX_FAULT");
    return st;
}

/* Continue over another mesh to the end: the curve is that of a run without failure. */
static void goes_on(const char *settings, int64_t resumed_at)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    run_curve curve;
    if (run_job(&ctx, RUN_GPT2, settings, out, &result) != DH_OK)
        fail_msg("%s: %s", settings, ctx.message);
    if (resumed_at >= 0) assert_int_equal(result.resumed_at, resumed_at);
    assert_int_equal(result.steps, 20);
    run_read_curve(out, &curve);
    double d = run_distance(&whole, &curve, 0);
    if (!(d <= loss_tolerance)) fail_msg("%s: losses differ by %g", settings, d);
    assert_ok(&ctx, dh_dir_remove(&ctx, out));
}

static void expect(const dh_ctx *ctx, dh_status st, dh_status want, const char *part)
{
    if (st != want || !strstr(ctx->message, part))
        fail_msg("%s: %s\nwanted %s: ...%s...", dh_status_name(st), ctx->message,
                 dh_status_name(want), part);
}

/* Ranks wait 5 s for one that never comes: more than a busy machine makes a healthy one late. */

/* ---- silence ------------------------------------------------------------------------------- */

#define OFTEN " checkpoint.every=5"

static void a_late_rank_is_named(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_status st = fail_run(&ctx, "parallel.dp=2 parallel.tp=2 parallel.timeout_s=5" OFTEN,
                            "delay:3:2000:60000");
    printf("  %s\n", ctx.message);
    expect(&ctx, st, DH_ECOMM, "waited 5 s in ");
    expect(&ctx, st, DH_ECOMM, "did not come:");
    expect(&ctx, st, DH_ECOMM, " rank 3 (last finished ");
    goes_on("parallel.tp=2", -1);
}

static void a_rank_that_skips_a_call_is_noticed(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_status st =
        fail_run(&ctx, "parallel.dp=2 parallel.tp=2 parallel.timeout_s=5" OFTEN, "drop:1:2000");
    printf("  %s\n", ctx.message);
    expect(&ctx, st, DH_ECOMM, "rank");
    goes_on("ranks=1", -1);
}

/* A rank that stops for ever at a random instruction of its steps, computing or not. */
static void a_rank_may_stop_at_any_instruction(void **state)
{
    static const struct {
        const char *settings;
        int n_ranks, n_instrs; /* fewer than any rank's in 20 steps */
    } meshes[] = {{"parallel.dp=2 parallel.tp=2 parallel.zero=1", 4, 12000},
                  {"parallel.tp=2 parallel.pp=2 parallel.schedule=zb-h1", 4, 12000},
                  {"parallel.cp=2 parallel.pp=2", 4, 12000},
                  {"parallel.dp=4 parallel.zero=3 parallel.reshard_after_forward=2", 4, 6000}};
    uint64_t seed = test_seed("a_rank_may_stop_at_any_instruction");
    for (size_t m = 0; m < DH_COUNTOF(meshes); m += test_stride(1, 2)) {
        const int rank = (int)(test_rand(&seed) % (uint64_t)meshes[m].n_ranks);
        char settings[300], fault[100], name[24];
        dh_ctx ctx = DH_CTX_INIT;
        snprintf(settings, sizeof settings, "%s parallel.timeout_s=5" OFTEN, meshes[m].settings);
        snprintf(fault, sizeof fault, "hang:%d:i%d", rank,
                 1 + (int)(test_rand(&seed) % (uint64_t)meshes[m].n_instrs));
        snprintf(name, sizeof name, " rank %d (", rank);
        dh_status st = fail_run(&ctx, settings, fault);
        printf("  %s, %s: %s\n", meshes[m].settings, fault, ctx.message);
        expect(&ctx, st, DH_ECOMM, "waited 5 s in ");
        expect(&ctx, st, DH_ECOMM, "did not come:");
        expect(&ctx, st, DH_ECOMM, name);
        goes_on(m % 2 ? "parallel.dp=2 parallel.zero=3" : "ranks=1", -1);
    }
}

/* A delay that the timeout allows changes nothing. */
static void patience_is_rewarded(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    run_curve curve;
    static const char *const delays[] = {"delay:2:400:300", "delay:1:i3000:300"};
    for (size_t i = 0; i < DH_COUNTOF(delays); i++) {
        dh_status st = fail_run(&ctx, "parallel.dp=2 parallel.pp=2", delays[i]);
        if (st != DH_OK) fail_msg("%s", ctx.message);
        run_read_curve(out, &curve);
        assert_true(run_distance(&whole, &curve, 0) <= loss_tolerance);
        assert_ok(&ctx, dh_dir_remove(&ctx, out));
    }
}

/* Any rank at any call, during set-up, steps, validation or saving. */
static void any_call_may_fail(void **state)
{
    static const struct {
        const char *settings;
        int n_ranks, n_calls; /* a few more than the run has */
    } meshes[] = {
        {"parallel.dp=2 parallel.tp=2 parallel.zero=1", 4, 9000},
        {"parallel.tp=2 parallel.pp=2 parallel.schedule=zb-v", 4, 9000},
        {"parallel.dp=2 parallel.pp=2 parallel.schedule=dhelix-w", 4, 800},
        {"parallel.cp=2 parallel.dp=2", 4, 2500},
        {"parallel.dp=4 parallel.zero=2 parallel.gradient_sync=every parallel.bucket_mb=0.02", 4,
         1100},
        {"parallel.dp=2 parallel.tp=2 parallel.zero=3 strategy=dhelix", 4, 6000},
    };
    uint64_t seed = test_seed("any_call_may_fail");
    int n_failed = 0;
    for (int i = 0; i < (test_is_slow() ? 3 : 6); i++) {
        const size_t m = test_rand(&seed) % DH_COUNTOF(meshes);
        const char *kind = test_rand(&seed) % 2 ? "drop" : "delay";
        const int rank = (int)(test_rand(&seed) % (uint64_t)meshes[m].n_ranks);
        char settings[300], fault[100], alone[24];
        dh_ctx ctx = DH_CTX_INIT;
        snprintf(settings, sizeof settings, "%s parallel.timeout_s=1" OFTEN, meshes[m].settings);
        snprintf(
            fault, sizeof fault, "%s:%d:%d%s", kind, rank,
            (int)(1 + test_rand(&seed) % (uint64_t)(meshes[m].n_calls >> test_rand(&seed) % 10)),
            strcmp(kind, "delay") == 0 ? ":2000" : "");
        dh_status st = fail_run(&ctx, settings, fault);
        /* One that leaves out an agreement goes ahead alone: it may open a checkpoint's file
         * before there is one, and says so by itself. */
        snprintf(alone, sizeof alone, "rank %d: ", rank);
        const bool ahead = strcmp(kind, "drop") == 0 && st == DH_EIO &&
                           strncmp(ctx.message, alone, strlen(alone)) == 0;
        if (st != DH_OK && !ahead && (st != DH_ECOMM || !strstr(ctx.message, "rank")))
            fail_msg("%s, %s: %s: %s", settings, fault, dh_status_name(st), ctx.message);
        printf("  %s, %s: %s\n", meshes[m].settings, fault,
               st == DH_OK ? "no such call" : ctx.message);
        n_failed += st != DH_OK;
        if (st == DH_OK && strcmp(kind, "drop") == 0) {
            /* A receive left out is taken by the next one: nobody can tell. */
            assert_ok(&ctx, dh_dir_remove(&ctx, out));
            continue;
        }
        goes_on(m % 2 ? "parallel.dp=2" : "ranks=1", -1);
    }
    assert_true(n_failed >= 1);
}

static void a_fault_nobody_knows_is_refused(void **state)
{
    static const char *const faults[] = {"explode:1:2", "kill",      "kill:1",    "drop:1:2:3",
                                         "drop:1:x",    "delay:1:2", "drop:1:2:", "drop:-1:2",
                                         "drop:1:i2",   "hang:i1:2", "hang:1:i"};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        dh_status st = fail_run(&ctx, "parallel.dp=2", faults[i]);
        expect(&ctx, st, DH_EINVAL, "delay:RANK:AT:MS");
    }
}

/* ---- disk ------------------------------------------------------------------------------------ */

static void limit_files(rlim_t n_bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = n_bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Less than weights take is noticed before the first step. A file of moments is a header longer
 * than its moments: of that much less the first checkpoint knows. */
static void no_room_for_a_checkpoint(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    run_curve curve;
    char path[500];
    struct stat moments;
    run_curve_of(RUN_GPT2, "parallel.dp=2 parallel.tp=2 train.steps=10 optimizer.decay_steps=20",
                 out, &curve);
    signal(SIGXFSZ, SIG_IGN);
    limit_files(100000);
    dh_status st = fail_run(&ctx, "parallel.dp=2 parallel.tp=2" OFTEN, NULL);
    limit_files(RLIM_INFINITY);
    expect(&ctx, st, DH_EIO, "rank 0: while trying whether a checkpoint can be written");
    run_ckpt_file(path, sizeof path, out, 10, "optimizer.safetensors");
    assert_int_equal(stat(path, &moments), 0);
    limit_files((rlim_t)moments.st_size - 1);
    st = fail_run(&ctx, "parallel.dp=2 parallel.tp=2" OFTEN, NULL);
    limit_files(RLIM_INFINITY);
    printf("  %s\n", ctx.message);
    expect(&ctx, st, DH_EIO, "rank 0: while saving the checkpoint of step 15");
    goes_on("parallel.pp=2", 10);
}

static void cut_short(int step, const char *file)
{
    char path[500];
    dh_ctx ctx = DH_CTX_INIT;
    dh_map map;
    run_ckpt_file(path, sizeof path, out, step, file);
    assert_ok(&ctx, dh_map_open(&ctx, path, &map));
    const off_t half = (off_t)(map.n_bytes / 2);
    dh_map_close(&map);
    assert_int_equal(truncate(path, half), 0);
}

static void a_damaged_checkpoint_is_passed_over(void **state)
{
    for (const char *const *file = run_ckpt_files(); *file; file++) {
        run_curve curve;
        run_curve_of(RUN_GPT2,
                     "parallel.dp=2 parallel.zero=1 train.steps=10 optimizer.decay_steps=20" OFTEN,
                     out, &curve);
        cut_short(10, *file);
        goes_on("parallel.tp=2 parallel.pp=2", 5);
    }
}

/* ---- divergence ------------------------------------------------------------------------------ */

/* A file of weights with one that no product with it stays finite: NaN itself is refused on
 * loading. Element `at` of a tensor, counted from its end if < 0. */
static void poison(const char *path, const char *tensor, int64_t at)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_safetensors *file;
    uint64_t header;
    const float large = FLT_MAX;
    assert_ok(&ctx, dh_st_open(&ctx, path, &file));
    const dh_st_tensor *t = dh_st_find(file, tensor);
    assert_non_null(t);
    const off_t offset =
        (off_t)(t->offset + (size_t)(at < 0 ? t->n_items + at : at) * sizeof(float));
    dh_st_close(file);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &header, sizeof header, 0), sizeof header);
    assert_int_equal(pwrite(fd, &large, sizeof large, (off_t)(8 + header) + offset), sizeof large);
    close(fd);
}

static void one_ranks_overflow_ends_all_with_the_cause(void **state)
{
    static const struct {
        const char *settings, *tensor;
        int64_t at;
        const char *cause; /* the rank that has the element, and where it shows first */
    } cases[] = {
        {"parallel.pp=2", "h.3.mlp.c_fc.weight", 0, "rank 1: while training step 1"},
        {"parallel.pp=2 parallel.schedule=zb-v", "h.1.mlp.c_fc.weight", 0,
         "rank 1: while training step 1"},
        {"parallel.tp=2", "h.2.mlp.c_fc.weight", -1, "rank 1: while training step 1"},
        {"parallel.tp=2 parallel.pp=2", "h.0.mlp.c_fc.weight", 0, "rank 0: while training step 1"},
        {"parallel.dp=2 parallel.zero=1", "h.2.mlp.c_fc.weight", 0,
         "while training step 1: instruction"},
        {"parallel.dp=2 parallel.zero=3", "h.2.mlp.c_fc.weight", 0,
         "while training step 1: instruction"},
    };
    char weights[500], settings[900];
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char first[300];
        run_curve curve;
        snprintf(first, sizeof first, "%s/clean", run_dir);
        run_curve_of(RUN_GPT2, "train.steps=1", first, &curve);
        poison(run_ckpt_file(weights, sizeof weights, first, 1, "model.safetensors"),
               cases[i].tensor, cases[i].at);
        snprintf(settings, sizeof settings, "%s train.init_from=%s", cases[i].settings, weights);
        dh_status st = fail_run(&ctx, settings, NULL);
        printf("  %s: %s\n", cases[i].settings, ctx.message);
        expect(&ctx, st, DH_EDIVERGED, cases[i].cause);
        expect(&ctx, st, DH_EDIVERGED, "non-finite value");
        char checkpoints[400];
        snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", out);
        assert_false(dh_path_exists(checkpoints));
        assert_ok(&ctx, dh_dir_remove(&ctx, out));
        assert_ok(&ctx, dh_dir_remove(&ctx, first));
        dh_ctx_reset(&ctx);
    }
}

/* ---- asked to stop ------------------------------------------------------------------------- */

static void a_stop_is_one_for_all_ranks(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_status st = run_job_until(&ctx, RUN_GPT2, "parallel.dp=2 parallel.pp=2", out, NULL, true);
    expect(&ctx, st, DH_EINTERRUPTED, "stopped after step 1 of 20");
    goes_on("parallel.tp=2", 1);
}

/* ---- entry ---------------------------------------------------------------------------------- */

static int prepare(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    test_tmpdir(run_dir, sizeof run_dir);
    snprintf(out, sizeof out, "%s/run", run_dir);
    run_curve_of(RUN_GPT2, "ranks=1", out, &whole);
    return dh_dir_remove(&ctx, out) == DH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_is_named),
        cmocka_unit_test(a_rank_that_skips_a_call_is_noticed),
        cmocka_unit_test(a_rank_may_stop_at_any_instruction),
        cmocka_unit_test(patience_is_rewarded),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(a_fault_nobody_knows_is_refused),
        cmocka_unit_test(no_room_for_a_checkpoint),
        cmocka_unit_test(a_damaged_checkpoint_is_passed_over),
        cmocka_unit_test(one_ranks_overflow_ends_all_with_the_cause),
        cmocka_unit_test(a_stop_is_one_for_all_ranks),
    };
    return cmocka_run_group_tests(tests, prepare, run_drop_dir);
}
