/* Runs that go on without ranks they have lost: what they then compute is what a run over the
 * smaller mesh computes from a checkpoint of the same step, bit for bit, whether that step's state
 * was in a checkpoint or in the memory of the ranks that are left; and when they end instead.
 *
 * That nothing hangs is checked by the test's time limit. */
#include "ranks.h"

#include "train/elastic.h"

#define ELASTIC " elastic.action=continue checkpoint.every=5 checkpoint.keep=0 eval.every=5"
/* Of runs with a rank that hangs; one that leaves is noticed at once, however busy the machine. */
#define IMPATIENT " parallel.timeout_s=5"

static char out[300], by_hand[300];

static dh_status faulty_run_of(dh_ctx *ctx, const char *model, const char *settings,
                               const char *fault, dh_train_result *result)
{
    dh_ctx_reset(ctx);
    run_remove(out);
    setenv("DHELIX_FAULT", fault, 1);
    dh_status st = run_job(ctx, model, settings, out, result);
    unsetenv("DHELIX_FAULT");
    return st;
}

static dh_status faulty_run(dh_ctx *ctx, const char *settings, const char *fault,
                            dh_train_result *result)
{
    return faulty_run_of(ctx, RUN_GPT2, settings, fault, result);
}

/* The same in several runs: over each mesh up to the step at which it was left, from there on over
 * the next. */
static double made_by_hand_of(const char *model, const char *const *meshes, const int64_t *until,
                              size_t n)
{
    run_curve curve;
    char settings[300];
    run_remove(by_hand);
    for (size_t i = 0; i < n; i++) {
        if (until[i] == 0) continue;
        snprintf(settings, sizeof settings,
                 "%s checkpoint.every=5 checkpoint.keep=0 eval.every=5 train.steps=%d "
                 "optimizer.decay_steps=20",
                 meshes[i], (int)until[i]);
        run_curve_of(model, settings, by_hand, &curve);
    }
    return curve.last;
}

static double made_by_hand(const char *const *meshes, const int64_t *until, size_t n)
{
    return made_by_hand_of(RUN_GPT2, meshes, until, n);
}

/* Step by step, but for validations where by hand a run ended, and the loss of a step of which a
 * lost rank had a part: how many lack it. */
static int expect_same_curves(const run_curve *a, const run_curve *b)
{
    int n_untold = 0;
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        n_untold += isnan(a->loss[i]);
        assert_true(isnan(a->loss[i]) || (a->loss[i] == b->loss[i] && a->norm[i] == b->norm[i]));
        assert_true((i + 1) % 5 ? isnan(a->val[i]) : a->val[i] == b->val[i]);
    }
    return n_untold;
}

static int expect_same_run(double last_loss, double by_hand_loss)
{
    run_curve a, b;
    assert_true(last_loss == by_hand_loss);
    run_read_curve(out, &a);
    run_read_curve(by_hand, &b);
    const int n_untold = expect_same_curves(&a, &b);
    for (int step = 5; step <= 20; step += 5) assert_true(run_same_bytes(out, by_hand, step));
    run_remove(out);
    return n_untold;
}

/* memory: of a state that nobody but the lost rank had a part of there is the checkpoint alone. */
static const struct {
    const char *before, *after, *more, *fault;
    bool memory;
} cases[] = {
    {"parallel.dp=4", "parallel.dp=2", "", "leave:3:50", true},
    {"parallel.dp=4 parallel.zero=2", "parallel.dp=2", "checkpoint.async=true", "leave:0:70",
     false},
    {"parallel.dp=3 train.batch=6", "parallel.dp=2 train.batch=6", IMPATIENT, "hang:1:i2500", true},
    {"parallel.dp=2 parallel.tp=2", "parallel.tp=2", IMPATIENT, "hang:2:2600", true},
    {"parallel.dp=2 parallel.pp=2 parallel.zero=1", "parallel.pp=2", "checkpoint.async=true",
     "leave:1:i2000", false},
    {"parallel.dp=2 parallel.pp=2 parallel.schedule=zb-v optimizer.post_validation=true",
     "parallel.pp=2 parallel.schedule=zb-v optimizer.post_validation=true",
     "checkpoint.async=true spike.action=back", "leave:2:i4500", true},
    {"parallel.dp=2 parallel.cp=2 parallel.zero=1", "parallel.cp=2 parallel.zero=1", "",
     "leave:1:i4200", false},
    {"parallel.dp=2 train.dtype=bf16", "ranks=1 train.dtype=bf16", "device=staged", "leave:0:i3000",
     true},
    {"parallel.dp=2 topology.nodes=2", "ranks=1", "", "leave:1:5", false},
};

static void it_goes_on_over_the_smaller_mesh(void **state)
{
    int n_resumed = 0, n_runs = 0;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        if (test_is_slow() ? i % 4 != 0 : test_is_short() && i % 3 == 1) continue;
        char settings[300];
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        snprintf(settings, sizeof settings, "%s %s" ELASTIC, cases[i].before, cases[i].more);
        if (faulty_run(&ctx, settings, cases[i].fault, &result) != DH_OK)
            fail_msg("%s, %s: %s", settings, cases[i].fault, ctx.message);
        printf("  %s, %s: from step %d%s\n", cases[i].before, cases[i].fault,
               (int)result.resumed_at, result.from_memory ? ", in memory" : "");
        assert_int_equal(result.steps, 20);
        assert_int_equal(result.from_memory, cases[i].memory);
        n_resumed += result.resumed_at > 0;
        n_runs++;
        const char *const meshes[] = {cases[i].before, cases[i].after};
        const int64_t until[] = {result.resumed_at, 20};
        expect_same_run(result.loss, made_by_hand(meshes, until, 2));
    }
    assert_int_equal(n_resumed, n_runs - 1); /* the last one has no state yet */
}

/* Parts of the model that only a lost rank had: the others need another mesh, and a checkpoint. In
 * the last case those that are left have all of the state, and a mesh of three of them too. */
static const struct {
    const char *model, *before, *after, *more, *fault;
    bool memory;
} other_meshes[] = {
    {RUN_GPT2, "parallel.tp=2 parallel.pp=2", "parallel.tp=2", "", "leave:3:i4000", false},
    {RUN_GPT2, "parallel.tp=2", "ranks=1", "", "leave:1:i7000", false},
    {RUN_GPT2, "parallel.pp=4 parallel.zero=1", "parallel.pp=2 parallel.zero=1",
     "checkpoint.async=true", "leave:0:i2500", false},
    {RUN_GPT2, "parallel.cp=2 parallel.pp=2 train.batch=9", "parallel.dp=3 train.batch=9", "",
     "leave:1:i4000", true},
    {RUN_EXPERTS, "parallel.dp=2 parallel.ep=2", "ranks=1", "", "leave:1:i9000", false},
    {RUN_GPT2, "parallel.dp=2 parallel.tp=2 train.batch=6", "parallel.dp=3 train.batch=6", "",
     "leave:0:i4500", true},
};

static void it_goes_on_over_another_mesh(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(other_meshes); i++) {
        if (test_is_slow() ? i % 3 != 0 : test_is_short() && i % 3 == 2) continue;
        char settings[300];
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        const char *const model = other_meshes[i].model;
        snprintf(settings, sizeof settings, "%s %s" ELASTIC, other_meshes[i].before,
                 other_meshes[i].more);
        if (faulty_run_of(&ctx, model, settings, other_meshes[i].fault, &result) != DH_OK)
            fail_msg("%s, %s: %s", settings, other_meshes[i].fault, ctx.message);
        printf("  %s, %s: from step %d%s\n", other_meshes[i].before, other_meshes[i].fault,
               (int)result.resumed_at, result.from_memory ? ", in memory" : "");
        assert_int_equal(result.steps, 20);
        assert_true(result.resumed_at > 0);
        assert_int_equal(result.from_memory, other_meshes[i].memory);
        const char *const meshes[] = {other_meshes[i].before, other_meshes[i].after};
        const int64_t until[] = {result.resumed_at, 20};
        expect_same_run(result.loss, made_by_hand_of(model, meshes, until, 2));
    }
}

/* Wherever in a step, or behind it: of instructions and calls of the sixth and seventh one. What
 * the lost rank takes along is its part of a loss, at most. */
static void it_may_happen_at_any_time(void **state)
{
    enum { CALLS = 24, INSTRS = 26 };
    int n_untold = 0, n_kept = 0;
    const int by = TEST_SANITIZED ? 12 : test_is_short() ? 6 : 2;
    for (int i = 0; i < CALLS + INSTRS; i += by) {
        char fault[40];
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        if (i < CALLS)
            snprintf(fault, sizeof fault, "leave:%d:%d", i / by % 2, 28 + i);
        else
            snprintf(fault, sizeof fault, "leave:%d:i%d", i / by % 2, 2500 + (i - CALLS) * 41);
        if (faulty_run(&ctx, "parallel.dp=2" ELASTIC, fault, &result) != DH_OK)
            fail_msg("%s: %s", fault, ctx.message);
        assert_true(result.from_memory);
        const char *const meshes[] = {"parallel.dp=2", "ranks=1"};
        const int64_t until[] = {result.resumed_at, 20};
        const int untold = expect_same_run(result.loss, made_by_hand(meshes, until, 2));
        assert_in_range(untold, 0, 1);
        n_untold += untold;
        n_kept++;
    }
    printf("  %d times from memory, %d times without the loss of a step\n", n_kept, n_untold);
    assert_true((n_untold > 0 || TEST_SANITIZED) && n_untold < n_kept / 2);
}

static void ranks_may_be_lost_one_after_another(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result first, last;
    char settings[300];
    snprintf(settings, sizeof settings, "parallel.dp=4%s", ELASTIC IMPATIENT);
    dh_status st = faulty_run(&ctx, settings, "leave:2:i300", &first);
    if (st == DH_OK) st = faulty_run(&ctx, settings, "leave:2:i300,hang:0:i4000", &last);
    if (st != DH_OK) fail_msg("%s", ctx.message);
    printf("  from step %d, then from step %d\n", (int)first.resumed_at, (int)last.resumed_at);
    assert_int_equal(last.steps, 20);
    assert_true(first.from_memory && last.from_memory && last.resumed_at > first.resumed_at);
    const char *const meshes[] = {"parallel.dp=4", "parallel.dp=2", "ranks=1"};
    const int64_t until[] = {first.resumed_at, last.resumed_at, 20};
    expect_same_run(last.loss, made_by_hand(meshes, until, 3));
}

/* ---- when they end ----------------------------------------------------------------------------
 */

static void it_ends_where_it_is_told_to(void **state)
{
    static const struct {
        const char *settings, *fault, *says;
        dh_status status;
    } ends[] = {
        {"parallel.dp=4", "leave:3:50", "", DH_ECOMM}, /* elastic.action=stop */
        {"parallel.dp=4 elastic.min_ranks=3" ELASTIC, "leave:3:50",
         "it could go on over 2 of 4 ranks (parallel.dp=2), the most that it can have (not 3: "
         "train.batch "
         "8 is not a multiple of parallel.dp = 3: 6 or 9 would be), but elastic.min_ranks is 3",
         DH_ECOMM},
        {"parallel.dp=2 parallel.tp=2 elastic.min_ranks=3" ELASTIC IMPATIENT, "hang:3:150",
         "over 2 of 4 ranks (parallel.dp=1)", DH_ECOMM},
        {"parallel.tp=2 parallel.pp=2" ELASTIC, "leave:3:50",
         "another mesh takes the state from a checkpoint, and ", DH_ECOMM},
        {"parallel.pp=4 parallel.layer_split=1,1,1,1" ELASTIC, "leave:3:50",
         "no mesh of them has degrees that divide the former ones: with 3 ranks, ", DH_ECOMM},
        {"parallel.dp=2 optimizer.lr=1000 optimizer.grad_clip=0 optimizer.warmup=0" ELASTIC, "", "",
         DH_EDIVERGED}, /* nobody is lost */
    };
    for (size_t i = 0; i < DH_COUNTOF(ends); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_status st = faulty_run(&ctx, ends[i].settings, ends[i].fault, NULL);
        printf("  %s\n", ctx.message);
        assert_int_equal(st, ends[i].status);
        if (st == DH_ECOMM) assert_non_null(strstr(ctx.message, "rank 3 (last finished "));
        assert_non_null(strstr(ctx.message, ends[i].says));
        run_remove(out);
    }
}

/* ---- what is left -----------------------------------------------------------------------------
 */

static void shrink(dh_ctx *ctx, const char *model, const char *settings, int64_t n_left,
                   double memory_bytes, dh_status *st, dh_shrunk *left)
{
    const char *overrides[8];
    char words[200], text[800], *at = NULL;
    size_t n = 0;
    dh_job *job;
    const dh_shrink_options options = {.memory_bytes = memory_bytes};
    dh_ctx_reset(ctx);
    snprintf(text, sizeof text,
             "%strain: {batch: 8, micro_batch: 1, seq_len: 32}\nelastic: {action: continue}\n",
             model);
    snprintf(words, sizeof words, "%s", settings);
    for (char *w = strtok_r(words, " ", &at); w; w = strtok_r(NULL, " ", &at)) overrides[n++] = w;
    assert_ok(ctx, dh_job_parse(ctx, text, strlen(text), "job.yaml", ".", overrides, n, &job));
    *st = dh_job_shrink(ctx, job, n_left, &options, left);
    if (*st == DH_OK) assert_int_equal(left->job.micro_batch, job->micro_batch);
    dh_job_destroy(job);
}

static void the_smaller_mesh_has_most_ranks_then_fewest_changes(void **state)
{
    static const struct {
        const char *model, *settings;
        int64_t n_left;
        int64_t dp, tp, cp, pp, ep; /* dp 0: there is none */
        int64_t nodes, n_micro;
    } want[] = {
        /* Along dp: 8 sequences do not divide by 3. */
        {RUN_GPT2, "parallel.dp=4", 3, 2, 1, 1, 1, 1, 1, 4},
        {RUN_GPT2, "parallel.dp=4 train.batch=12", 3, 3, 1, 1, 1, 1, 1, 4},
        {RUN_GPT2, "parallel.dp=4 train.batch=12", 2, 2, 1, 1, 1, 1, 1, 6},
        {RUN_GPT2, "parallel.dp=4 train.micro_batch=2", 3, 2, 1, 1, 1, 1, 1, 2},
        {RUN_GPT2, "parallel.dp=4 topology.ranks_per_node=2", 3, 2, 1, 1, 1, 1, 1, 4},
        {RUN_GPT2, "parallel.dp=8 topology.ranks_per_node=2", 7, 4, 1, 1, 1, 1, 2, 2},
        {RUN_GPT2, "parallel.dp=2 parallel.tp=2 topology.nodes=2", 3, 1, 2, 1, 1, 1, 1, 8},
        {RUN_GPT2, "parallel.dp=4 elastic.min_ranks=3", 3, 0, 0, 0, 0, 0, 0, 0},
        {RUN_GPT2, "parallel.dp=1", 0, 0, 0, 0, 0, 0, 0, 0},
        /* Others: 3 ranks where the batch divides by 3, else 2, by one change, of which tp stays.
         */
        {RUN_GPT2, "parallel.dp=2 parallel.tp=2", 1, 1, 1, 1, 1, 1, 1, 8},
        {RUN_GPT2, "parallel.tp=2", 1, 1, 1, 1, 1, 1, 1, 8},
        {RUN_GPT2, "parallel.tp=2 parallel.pp=2", 3, 1, 2, 1, 1, 1, 1, 8},
        {RUN_GPT2, "parallel.tp=2 parallel.pp=2 train.batch=9", 3, 3, 1, 1, 1, 1, 1, 3},
        {RUN_GPT2, "parallel.tp=4", 3, 1, 2, 1, 1, 1, 1, 8},
        {RUN_GPT2, "parallel.tp=4 parallel.pp=2", 7, 1, 4, 1, 1, 1, 1, 8},
        {RUN_GPT2, "parallel.cp=2 parallel.pp=2", 2, 1, 1, 2, 1, 1, 1, 8},
        {RUN_GPT2, "parallel.tp=4 parallel.pp=6 model.n_layers=12 train.batch=9", 23, 3, 1, 1, 6, 1,
         1, 3}, /* and not dp 3, tp 2, pp 3: tp and pp would change */
        {RUN_GPT2, "parallel.cp=4 train.batch=12", 3, 3, 1, 1, 1, 1, 1, 4},
        {RUN_GPT2, "parallel.tp=2 elastic.min_ranks=2", 1, 0, 0, 0, 0, 0, 0, 0},
        /* What only a pipeline can have keeps one. */
        {RUN_GPT2, "parallel.tp=2 parallel.pp=2 optimizer.post_validation=true", 3, 1, 1, 1, 2, 1,
         1, 8},
        {RUN_GPT2, "parallel.pp=4 parallel.schedule=gpipe parallel.layer_split=1,1,1,1", 3, 0, 0, 0,
         0, 0, 0, 0},
        /* Nor has the schedule of two stages any other number, which no check of settings sees. */
        {RUN_GPT2,
         "parallel.tp=2 parallel.pp=2 train.batch=4 parallel.schedule=examples/pp2_zb-h1.csv", 3, 1,
         1, 1, 2, 1, 1, 4},
        /* 4 experts do not divide by 3; two data-parallel ranks share them, or each has all. */
        {RUN_EXPERTS, "parallel.dp=4 parallel.ep=4", 3, 2, 1, 1, 1, 2, 1, 4},
        {RUN_EXPERTS, "parallel.dp=4 parallel.ep=2", 3, 2, 1, 1, 1, 2, 1, 4},
        {RUN_EXPERTS, "parallel.dp=4 parallel.ep=4 train.batch=12", 3, 3, 1, 1, 1, 1, 1, 4},
    };
    for (size_t i = 0; i < DH_COUNTOF(want); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_shrunk left;
        dh_status st;
        shrink(&ctx, want[i].model, want[i].settings, want[i].n_left, 0, &st, &left);
        printf("  %s, %d left: %s\n", want[i].settings, (int)want[i].n_left,
               st == DH_OK ? left.text : ctx.message);
        assert_int_equal(st, want[i].dp ? DH_OK : DH_EINVAL);
        if (st != DH_OK) continue;
        assert_int_equal(left.job.dp, want[i].dp);
        assert_int_equal(left.job.tp, want[i].tp);
        assert_int_equal(left.job.cp, want[i].cp);
        assert_int_equal(left.job.pp, want[i].pp);
        assert_int_equal(left.job.ep, want[i].ep);
        assert_int_equal(left.job.ranks, want[i].dp * want[i].tp * want[i].cp * want[i].pp);
        assert_int_equal(left.job.nodes, want[i].nodes);
        assert_int_equal(dh_job_n_micro(&left.job), want[i].n_micro);
    }
}

/* Whole copies of the model take more than its parts: what has no memory is no mesh. */
static void a_mesh_without_the_memory_is_none(void **state)
{
    static const char job[] = "parallel.dp=2 parallel.tp=2 train.batch=6";
    dh_ctx ctx = DH_CTX_INIT;
    dh_shrunk left;
    dh_status st;
    int64_t before = 0;
    bool parts = false;
    shrink(&ctx, RUN_GPT2, job, 3, 1000, &st, &left);
    assert_fails(&ctx, st, DH_EINVAL, "with 3 ranks, they need ");
    for (double bytes = 1e5; before < 3; bytes *= test_is_slow() ? 1.2 : 1.05) {
        assert_true(bytes < 1e9);
        shrink(&ctx, RUN_GPT2, job, 3, bytes, &st, &left);
        if (st != DH_OK) continue;
        assert_true(left.job.ranks >= before);
        before = left.job.ranks;
        parts |= left.job.tp == 2 && left.job.dp == 1;
        if (before < 3) assert_non_null(strstr(left.text, "(not 3: they need "));
    }
    assert_true(parts);
}

/* One that is lost in the first step: nothing is validated or saved before it. */
static void it_may_happen_in_the_first_step(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    const char *const mesh = "ranks=1";
    const int64_t until = 20;
    dh_status st = faulty_run(&ctx, "parallel.dp=2" ELASTIC, "leave:1:i200", &result);
    if (st != DH_OK) fail_msg("%s", ctx.message);
    assert_true(result.from_memory && result.resumed_at == 0);
    assert_int_equal(expect_same_run(result.loss, made_by_hand(&mesh, &until, 1)), 0);
}

static void no_more_ranks_than_there_are(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_fails(
        &ctx,
        faulty_run(&ctx, "parallel.dp=2 elastic.action=continue elastic.min_ranks=3", "", NULL),
        DH_EINVAL, "elastic.min_ranks 3: the run begins with 2 ranks");
}

static int prepare(void **state)
{
    test_tmpdir(run_dir, sizeof run_dir);
    run_folder(out, sizeof out, "run");
    run_folder(by_hand, sizeof by_hand, "by-hand");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smaller_mesh_has_most_ranks_then_fewest_changes),
        cmocka_unit_test(a_mesh_without_the_memory_is_none),
        cmocka_unit_test(it_goes_on_over_the_smaller_mesh),
        cmocka_unit_test(it_goes_on_over_another_mesh),
        cmocka_unit_test(it_may_happen_at_any_time),
        cmocka_unit_test(it_may_happen_in_the_first_step),
        cmocka_unit_test(ranks_may_be_lost_one_after_another),
        cmocka_unit_test(it_ends_where_it_is_told_to),
        cmocka_unit_test(no_more_ranks_than_there_are),
    };
    return cmocka_run_group_tests(tests, prepare, run_drop_dir);
}
