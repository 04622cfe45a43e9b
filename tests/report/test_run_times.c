/* What a run on several ranks says of its time: metrics, summary, traces. */
#include "train/ranks.h"

#include "report/timeline.h"

static char dir[256];

static json_t *load(const char *name)
{
    char path[400];
    json_error_t error;
    snprintf(path, sizeof path, "%s/run/%s", dir, name);
    json_t *object = json_load_file(path, 0, &error);
    if (!object) fail_msg("%s:%d: %s", path, error.line, error.text);
    return object;
}

static bool there(const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/run/%s", dir, name);
    return dh_path_exists(path);
}

static void train(const char *settings)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    snprintf(out, sizeof out, "%s/run", dir);
    assert_ok(&ctx, dh_dir_remove(&ctx, out));
    assert_ok(&ctx, run_job(&ctx, RUN_GPT2, settings, out, NULL));
}

static double ms(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_real(value)) fail_msg("no number %s", key);
    assert_true(json_real_value(value) >= 0);
    return json_real_value(value);
}

/* Numbers in files have nine digits. */
static void assert_near(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-6 * (fabs(a) + fabs(b)));
}

/* Lines of training steps; *last is the last one, for the caller to release. */
static int read_steps(json_t **last)
{
    char path[400], line[2048];
    int n = 0;
    snprintf(path, sizeof path, "%s/run/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    *last = NULL;
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        if (!json_object_get(object, "loss")) {
            json_decref(object);
            continue;
        }
        json_decref(*last);
        *last = object;
        n++;
    }
    fclose(f);
    return n;
}

/* Data parallelism over two nodes: reductions cross, none is local, and something is computed. */
static void several_ranks_report_their_times(void **state)
{
    train("parallel.dp=2 topology.nodes=2 train.steps=4 eval.every=0");
    json_t *line;
    assert_int_equal(read_steps(&line), 4);
    assert_true(ms(line, "compute_ms") > 0 && ms(line, "cross_ms") > 0);
    assert_true(ms(line, "local_ms") == 0);
    assert_near(ms(line, "hidden_ms") + ms(line, "exposed_ms"), ms(line, "alone_ms"));
    assert_true(ms(line, "compute_ms") + ms(line, "exposed_ms") <= ms(line, "step_ms"));
    json_decref(line);

    json_t *summary = load("summary.json");
    const json_t *times = json_object_get(summary, "times");
    const double hidden = ms(times, "hidden_ms"), exposed = ms(times, "exposed_ms");
    double causes = 0;
    for (int i = 0; i < DH_N_EXPOSURE; i++)
        causes += ms(json_object_get(times, "exposed_by_ms"), dh_exposure_name((dh_exposure)i));
    assert_near(causes, exposed);
    assert_near(ms(times, "compute_ms") + exposed + ms(times, "idle_ms"), ms(times, "span_ms"));
    assert_near(ms(summary, "hidden_share"), hidden / (hidden + exposed));
    json_decref(summary);
    assert_false(there("trace-rank0.json"));
}

/* Rank 1 sleeps, and rank 0 waits: for how long, as its summary has it. */
static double waits_for_a_late_rank(const char *settings, const char *what)
{
    setenv("DHELIX_FAULT", "delay:1:i1500:1500", 1);
    train(settings);
    unsetenv("DHELIX_FAULT");
    json_t *summary = load("summary.json");
    const json_t *times = json_object_get(summary, "times");
    const double waits = ms(times, what);
    assert_true(ms(times, "idle_ms") >= waits);
    json_decref(summary);
    return waits;
}

static void waiting_has_a_name(void **state)
{
    static const char tp[] = "parallel.tp=2 train.steps=4 eval.every=0";
    static const char pp[] = "parallel.pp=2 train.steps=4 eval.every=0";
    /* Far less than it slept: rank 0, too, may be kept from its core meanwhile. */
    assert_true(waits_for_a_late_rank(tp, "partners_ms") >= 300);
    assert_true(waits_for_a_late_rank(pp, "bubble_ms") >= 300);
}

static void one_rank_has_nothing_to_hide(void **state)
{
    train("train.steps=2 eval.every=0");
    json_t *line, *summary = load("summary.json");
    assert_int_equal(read_steps(&line), 2);
    assert_null(json_object_get(line, "exposed_ms"));
    assert_null(json_object_get(summary, "hidden_share"));
    json_decref(line);
    json_decref(summary);
}

static int64_t first_start(const json_t *trace)
{
    size_t at;
    json_t *event;
    json_array_foreach(json_object_get(trace, "traceEvents"), at, event)
    {
        const json_t *ts = json_object_get(event, "ts");
        if (ts) return (int64_t)json_number_value(ts);
    }
    fail_msg("no event");
    return 0;
}

/* Every rank writes the step asked for, on one clock; a step that never comes is the last. */
static void every_rank_writes_the_step_asked_for(void **state)
{
    static const char *const settings[] = {"trace.step=2", "trace.step=99"};
    for (size_t i = 0; i < DH_COUNTOF(settings); i++) {
        char text[200];
        snprintf(text, sizeof text, "parallel.pp=2 train.steps=3 eval.every=0 %s", settings[i]);
        train(text);
        json_t *a = load("trace-rank0.json"), *b = load("trace-rank1.json");
        assert_true(llabs(first_start(a) - first_start(b)) < 600 * (int64_t)1000000);
        json_decref(a);
        json_decref(b);
    }
}

static int set_up(void **state)
{
    test_tmpdir(dir, sizeof dir);
    return 0;
}

static int tear_down(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, dir) == DH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_ranks_report_their_times),
        cmocka_unit_test(waiting_has_a_name),
        cmocka_unit_test(one_rank_has_nothing_to_hide),
        cmocka_unit_test(every_rank_writes_the_step_asked_for),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
