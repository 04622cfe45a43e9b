/* Checkpoints written while training goes on: what they hold, that the run does go on, and what
 * becomes of them where a thread cannot write, a rank fails or there is no memory for the copy.
 *
 * That nothing hangs is checked by the test's time limit. */
#include "ranks.h"

#include <semaphore.h>
#include <time.h>

#include "train/recipe.h"
#include "train/run.h"

/* ---- the moment that a share is written: linked with --wrap --------------------------------- */

static int64_t held_step, failing_step, failing_rank, lost_step;
static sem_t release; /* lets a held one go */

static void reset(void)
{
    held_step = failing_step = failing_rank = lost_step = -1;
    sem_destroy(&release);
    sem_init(&release, 0, 0);
}

dh_status __real_dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                             const float *copy);
dh_status __wrap_dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                             const float *copy);
dh_status __wrap_dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                             const float *copy)
{
    if (save->step == held_step) {
        struct timespec late;
        clock_gettime(CLOCK_REALTIME, &late);
        late.tv_sec += 120;
        if (sem_timedwait(&release, &late) != 0)
            return dh_fail(ctx, DH_EINTERNAL, "the run does not go on");
    }
    if (save->step == failing_step && run->ranks.rank == failing_rank)
        return dh_fail(ctx, DH_EIO, "the disk is gone");
    return __real_dh_save_put(ctx, run, save, share, copy);
}

/* A copy that is not through before the next step has begun. */
static bool late_copies;
static _Atomic int n_begun, n_copies, n_late; /* steps; copies of ranks, every fifth step */

void __real_dh_run_begin_step(const dh_run *run);
void __wrap_dh_run_begin_step(const dh_run *run);
void __wrap_dh_run_begin_step(const dh_run *run)
{
    n_begun++;
    __real_dh_run_begin_step(run);
}

dh_status __real_dh_share_copy(dh_ctx *ctx, const dh_session *session, const dh_share *share,
                               float *copy);
dh_status __wrap_dh_share_copy(dh_ctx *ctx, const dh_session *session, const dh_share *share,
                               float *copy);
dh_status __wrap_dh_share_copy(dh_ctx *ctx, const dh_session *session, const dh_share *share,
                               float *copy)
{
    const int n_ranks = (int)session->spec.recipe.mesh.ranks;
    const int step = 5 * (n_copies++ / n_ranks + 1);
    const int64_t end_ns = dh_now_ns() + INT64_C(120000000000);
    if (!late_copies || step == 20) return __real_dh_share_copy(ctx, session, share, copy);
    while (n_begun < (step + 1) * n_ranks) {
        if (dh_now_ns() > end_ns) return dh_fail(ctx, DH_EINTERNAL, "the run does not go on");
        dh_sleep_until_ns(dh_now_ns() + 1000000);
    }
    dh_sleep_until_ns(dh_now_ns() + 30000000); /* more than the rest of the step takes */
    n_late++;
    return __real_dh_share_copy(ctx, session, share, copy);
}

dh_status __real_dh_saver_check(dh_ctx *ctx, dh_run *run);
dh_status __wrap_dh_saver_check(dh_ctx *ctx, dh_run *run);
dh_status __wrap_dh_saver_check(dh_ctx *ctx, dh_run *run)
{
    if (run->step == lost_step && run->ranks.rank == failing_rank) {
        for (int64_t i = 0; i < run->ranks.n; i++) sem_post(&release);
        return dh_fail(ctx, DH_EIO, "this rank is lost");
    }
    return __real_dh_saver_check(ctx, run);
}

/* /proc/meminfo of a machine that is full. */
static bool no_memory;
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    static char text[] = "MemTotal:       1000 kB\nMemFree:  7 kB\nMemAvailable:   500 kB\n";
    if (no_memory && strcmp(path, "/proc/meminfo") == 0) return fmemopen(text, strlen(text), "r");
    return __real_fopen(path, mode);
}

/* ---- what they hold -------------------------------------------------------------------------- */

#define BESIDE " checkpoint.async=true checkpoint.keep=0 checkpoint.every=5"
#define BETWEEN " checkpoint.keep=0 checkpoint.every=5"

static const struct {
    const char *model, *settings;
} meshes[] = {
    {RUN_GPT2, "ranks=1"},
    {RUN_GPT2, "parallel.dp=2 train.dtype=bf16 parallel.zero=1"},
    {RUN_GPT2, "parallel.dp=2 parallel.tp=2 parallel.zero=2 parallel.bucket_mb=0.01"},
    {RUN_LLAMA, "parallel.dp=4 parallel.zero=3"},
    {RUN_GPT2, "parallel.dp=2 parallel.pp=2 parallel.schedule=zb-v parallel.zero=1"},
    {RUN_LLAMA, "parallel.cp=2 parallel.tp=2 parallel.zero=1"},
    {RUN_EXPERTS, "parallel.dp=4 parallel.ep=2 parallel.zero=1"},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.expert_tp=1"},
};

static void run_both_ways(size_t i, const char *more, const char *between, const char *beside)
{
    char settings[300];
    run_curve a, b;
    snprintf(settings, sizeof settings, "%s%s" BETWEEN, meshes[i].settings, more);
    run_reference_of(meshes[i].model, settings, between, &a);
    snprintf(settings, sizeof settings, "%s%s" BESIDE, meshes[i].settings, more);
    n_begun = n_copies = n_late = 0;
    run_compared_of(meshes[i].model, settings, beside, &b);
    assert_true(a.last == b.last);
    for (int step = 5; step <= 20; step += 5)
        if (!run_same_bytes(between, beside, step))
            fail_msg("%s%s: checkpoint %d is another", meshes[i].settings, more, step);
    run_remove(between);
    run_remove(beside);
}

/* Every byte of every checkpoint, and of what comes of the run. */
static void they_are_the_same_files(void **state)
{
    char between[300], beside[300];
    reset();
    run_folder(between, sizeof between, "between");
    run_folder(beside, sizeof beside, "beside");
    for (size_t i = 0; i < DH_COUNTOF(meshes); i += test_is_slow() ? 6 : test_is_short() ? 2 : 1)
        run_both_ways(i, "", between, beside);
}

/* Steps begin while their masters and moments are still to be copied, and change them no earlier:
 * the optimizer waits, and so do gathers of parameters at the beginning of a step. */
static void updates_wait_for_the_copy(void **state)
{
    static const struct {
        size_t mesh;
        const char *more;
    } late[] = {{0, ""},
                {1, " device=staged"},
                {1, " parallel.gather=forward eval.every=5"},
                {2, ""},
                {4, " optimizer.post_validation=true"}};
    char between[300], beside[300];
    reset();
    run_folder(between, sizeof between, "between");
    run_folder(beside, sizeof beside, "beside");
    for (size_t i = 0; i < DH_COUNTOF(late); i += test_stride(2, 3)) {
        late_copies = true;
        run_both_ways(late[i].mesh, late[i].more, between, beside);
        late_copies = false;
        printf("  %s%s: %d late copies\n", meshes[late[i].mesh].settings, late[i].more, n_late);
        assert_true(n_late > 0);
    }
}

static uint64_t sum_of_copies(const char *model, const char *settings, uint64_t *whole)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_resolve_options how = {.quiet = true};
    const char *overrides[8];
    char words[300], *at = NULL;
    size_t n = 0;
    uint64_t sum = 0;
    dh_job *job;
    dh_resolved *resolved;
    snprintf(words, sizeof words, "%s", settings);
    for (char *w = strtok_r(words, " ", &at); w; w = strtok_r(NULL, " ", &at)) overrides[n++] = w;
    char text[2000];
    snprintf(text, sizeof text, "%strain: {batch: 8, micro_batch: 1, seq_len: 32}\n", model);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job.yaml", ".", overrides, n, &job));
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &how, &resolved));
    for (int64_t r = 0; r < resolved->job.ranks; r++) {
        uint64_t n_bytes;
        dh_program *program;
        dh_session_spec spec = dh_train_session(&resolved->job, &resolved->recipe);
        spec.rank = r;
        assert_ok(&ctx, dh_session_program(&ctx, &spec, DH_MODE_TRAIN, 0, &program));
        assert_ok(&ctx, dh_saver_bytes(&ctx, program, &n_bytes));
        sum += n_bytes;
        dh_program_destroy(program);
    }
    *whole = (uint64_t)dh_model_n_params(&resolved->job.model) * 3 * sizeof(float);
    dh_resolved_destroy(resolved);
    dh_job_destroy(job);
    return sum;
}

/* No element is copied twice. */
static void copies_are_one_copy_of_the_state(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        uint64_t whole;
        const uint64_t sum = sum_of_copies(meshes[i].model, meshes[i].settings, &whole);
        if (sum != whole)
            fail_msg("%s: %llu bytes, not %llu", meshes[i].settings, (unsigned long long)sum,
                     (unsigned long long)whole);
    }
}

/* ---- beside training --------------------------------------------------------------------------
 */

static const char *const few[] = {"ranks=1" BESIDE,
                                  "parallel.dp=2 parallel.tp=2 parallel.zero=1" BESIDE};

/* The checkpoint of step 5 is not written before the run has made step 9; that of step 10 waits
 * for it. */
static void let_go_at_9(void *self, const char *line, size_t n_bytes)
{
    int64_t *n_seen = self;
    char text[2048];
    snprintf(text, sizeof text, "%.*s", (int)n_bytes, line);
    ++*n_seen;
    if (strstr(text, "\"step\":9,"))
        for (int i = 0; i < 4; i++) sem_post(&release);
}

static void the_run_goes_on_meanwhile(void **state)
{
    char out[300], whole[300];
    run_curve curve;
    run_folder(out, sizeof out, "run");
    run_folder(whole, sizeof whole, "whole");
    for (size_t i = 0; i < DH_COUNTOF(few); i++) {
        int64_t n_seen = 0;
        reset();
        run_curve_of(RUN_GPT2, few[i], whole, &curve);
        held_step = 5;
        watch_steps = let_go_at_9;
        watching = &n_seen;
        run_curve_of(RUN_GPT2, few[i], out, &curve);
        watch_steps = NULL;
        assert_int_equal(n_seen, 20);
        for (int step = 5; step <= 20; step += 5) assert_true(run_same_bytes(out, whole, step));
        run_remove(out);
        run_remove(whole);
    }
}

/* ---- failures ---------------------------------------------------------------------------------
 */

static bool is_there(const char *out, int step)
{
    char path[500];
    return dh_path_exists(run_ckpt_file(path, sizeof path, out, step, "manifest.json"));
}

static void expect_leftovers_gone(const char *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t *steps;
    size_t n;
    char path[400], command[500];
    assert_ok(&ctx, dh_ckpt_list(&ctx, out, &steps, &n));
    free(steps);
    snprintf(path, sizeof path, "%s/checkpoints", out);
    snprintf(command, sizeof command, "test -z \"$(find %s -name '.tmp*')\"", path);
    assert_int_equal(system(command), 0);
}

static void goes_on_to(const char *settings, const char *out, double last)
{
    run_curve curve;
    reset();
    run_curve_of(RUN_GPT2, settings, out, &curve);
    assert_true(curve.last == last);
    run_remove(out);
}

/* The run ends at a step boundary with the thread's message, whichever rank's it is. */
static void a_thread_that_cannot_write_ends_the_run(void **state)
{
    char out[300];
    run_curve whole;
    run_folder(out, sizeof out, "run");
    for (size_t i = 0; i < DH_COUNTOF(few); i++) {
        reset();
        run_curve_of(RUN_GPT2, few[i], out, &whole);
        run_remove(out);
        for (int64_t rank = 0; rank < (i == 0 ? 1 : 4); rank += 3) {
            for (int64_t step = 10; step <= 20; step += 10) {
                dh_ctx ctx = DH_CTX_INIT;
                char want[100];
                reset();
                failing_step = step;
                failing_rank = rank;
                dh_status st = run_job(&ctx, RUN_GPT2, few[i], out, NULL);
                snprintf(want, sizeof want,
                         "while saving the checkpoint of step %d: the disk is gone", (int)step);
                printf("  %s\n", ctx.message);
                assert_int_equal(st, DH_EIO);
                assert_non_null(strstr(ctx.message, want));
                assert_true(is_there(out, (int)step - 5));
                assert_false(is_there(out, (int)step));
                expect_leftovers_gone(out);
                goes_on_to(few[i], out, whole.last);
            }
        }
    }
}

/* What was handed over before the ranks knew of a failure is not lost: their threads complete it
 * without them. */
static void a_checkpoint_under_way_outlives_its_run(void **state)
{
    char out[300];
    run_curve whole;
    run_folder(out, sizeof out, "run");
    for (size_t i = 0; i < DH_COUNTOF(few); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        reset();
        run_curve_of(RUN_GPT2, few[i], out, &whole);
        run_remove(out);
        held_step = 10;
        lost_step = 12;
        failing_rank = i == 0 ? 0 : 2;
        assert_int_equal(run_job(&ctx, RUN_GPT2, few[i], out, NULL), DH_EIO);
        assert_non_null(strstr(ctx.message, "this rank is lost"));
        assert_true(is_there(out, 10));
        expect_leftovers_gone(out);
        goes_on_to(few[i], out, whole.last);
    }
}

static void no_memory_is_said_before_the_first_step(void **state)
{
    char out[300];
    dh_ctx ctx = DH_CTX_INIT;
    reset();
    run_folder(out, sizeof out, "run");
    no_memory = true;
    dh_status st = run_job(&ctx, RUN_GPT2, few[1], out, NULL);
    no_memory = false;
    printf("  %s\n", ctx.message);
    assert_int_equal(st, DH_ENOMEM);
    assert_non_null(strstr(ctx.message, " of memory")); /* of all, or of their verification */
    assert_non_null(strstr(ctx.message, "500.00 KiB are free"));
    assert_false(is_there(out, 5));
    run_remove(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_the_same_files),
        cmocka_unit_test(updates_wait_for_the_copy),
        cmocka_unit_test(copies_are_one_copy_of_the_state),
        cmocka_unit_test(the_run_goes_on_meanwhile),
        cmocka_unit_test(a_thread_that_cannot_write_ends_the_run),
        cmocka_unit_test(a_checkpoint_under_way_outlives_its_run),
        cmocka_unit_test(no_memory_is_said_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
