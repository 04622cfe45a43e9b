/* What commands say as JSON, for callers: the documents against the structs behind them. And the
 * lines of metrics that a caller of dh_train gets, against the file. */
#include "dh_test.h"

#include <jansson.h>

#include "dhelix/describe.h"
#include "dhelix/simulate.h"

static const char mesh_job[] =
    "model: {family: llama, n_layers: 4, width: 256, n_heads: 8, ffn_width: 512, vocab: 1000, "
    "max_seq: 128}\n"
    "train: {batch: 8, micro_batch: 1, seq_len: 128}\n"
    "parallel: {tp: 2, pp: 2}\nstrategy: dhelix\noverlap: {policy: list}\n";

static dh_job *job_of(const char *text, const char *const *overrides, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    assert_ok(&ctx,
              dh_job_parse(&ctx, text, strlen(text), "describe.yaml", ".", overrides, n, &job));
    return job;
}

/* The document of a call; frees the text. */
static json_t *read_document(dh_str *text)
{
    json_error_t error;
    assert_non_null(text->text);
    json_t *document = json_loads(text->text, 0, &error);
    if (!document) fail_msg("line %d: %s in %s", error.line, error.text, text->text);
    dh_str_fini(text);
    return document;
}

static int64_t integer_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("no integer %s", key);
    return json_integer_value(value);
}

static void test_check(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    dh_job *job = job_of(mesh_job, NULL, 0);
    assert_fails(&ctx, dh_describe_check(&ctx, job, 4, &text), DH_EINVAL, "ranks 0 to 3");
    assert_null(text.text);
    int64_t planned[2];
    for (int stage = 0; stage < 2; stage++) {
        assert_ok(&ctx, dh_describe_check(&ctx, job, 2 * stage, &text));
        json_t *said = read_document(&text);
        assert_int_equal(integer_of(said, "parameters"), dh_model_n_params(&job->model));
        assert_int_equal(integer_of(said, "tokens_per_step"), 8 * 128);
        assert_int_equal(json_array_size(json_object_get(said, "programs")), 2);
        planned[stage] = integer_of(said, "planned_bytes");
        json_decref(said);
    }
    assert_true(planned[0] != planned[1]); /* one has the embedding, the other the head */
    dh_job_destroy(job);
}

static void test_plan(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    dh_job *job = job_of(mesh_job, NULL, 0);
    const dh_describe_plan_options unknown = {.policy = "lisst"}, explained = {.explain = true};
    assert_fails(&ctx, dh_describe_plan(&ctx, job, &unknown, &text), DH_EMISSING, "list");
    assert_ok(&ctx, dh_describe_plan(&ctx, job, &explained, &text));
    json_t *said = read_document(&text), *row;
    assert_string_equal(json_string_value(json_object_get(said, "policy")), "list");
    const double bound_us = json_real_value(json_object_get(said, "bound_us"));
    assert_true(bound_us > 0);
    size_t i;
    json_array_foreach(json_object_get(said, "policies"), i, row)
        assert_true(json_real_value(json_object_get(row, "slot_us")) >= bound_us * (1 - 1e-9));
    assert_true(i > 2);
    double last_us = 0, alone_us = 0;
    json_array_foreach(json_object_get(said, "operators"), i, row)
    {
        last_us = fmax(last_us, json_real_value(json_object_get(row, "end_us")));
        if (strcmp(json_string_value(json_object_get(row, "stream")), "compute") == 0)
            alone_us += json_real_value(json_object_get(row, "alone_us"));
    }
    assert_true(alone_us > 0 && last_us >= alone_us * (1 - 1e-9));
    json_decref(said);
    dh_job_destroy(job);
}

/* The first row is the job as given. Each strategy's step is that of the job with it. */
static void test_simulate(void **state)
{
    static const char *const strategies[] = {"dhelix", "sequential"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    dh_cluster *cluster;
    dh_job *job = job_of(mesh_job, NULL, 0);
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &cluster));
    const dh_describe_simulate_options both = {.cluster = cluster,
                                               .strategies = "sequential,dhelix"};
    assert_ok(&ctx, dh_describe_simulate(&ctx, job, &both, &text));
    json_t *said = read_document(&text);
    dh_job_destroy(job);
    double first_ms = 0;
    for (size_t i = 0; i < 2; i++) {
        char setting[64];
        const char *overrides[] = {setting};
        dh_simulate_result result;
        const dh_simulate_options how = {.cluster = cluster, .quiet = true};
        snprintf(setting, sizeof setting, "strategy=%s", strategies[i]);
        job = job_of(mesh_job, overrides, 1);
        assert_ok(&ctx, dh_simulate_job(&ctx, job, &how, &result));
        const json_t *row = json_array_get(json_object_get(said, "strategies"), i);
        assert_string_equal(json_string_value(json_object_get(row, "strategy")), strategies[i]);
        const double ms = json_real_value(json_object_get(row, "step_ms"));
        assert_true(fabs(ms - result.step_s * 1e3) < 1e-9 * ms);
        assert_int_equal(integer_of(row, "peak_bytes"), result.peak_bytes);
        if (i == 0) first_ms = ms;
        assert_int_equal(json_is_true(json_object_get(row, "as_given")), i == 0);
        assert_string_equal(json_string_value(json_object_get(row, "schedule")),
                            i == 0 ? "dhelix-w" : "1f1b");
        assert_true(fabs(json_real_value(json_object_get(row, "speed_up")) - first_ms / ms) < 1e-9);
        dh_job_destroy(job);
    }
    json_decref(said);
    dh_cluster_destroy(cluster);
}

/* A table's cells are the steps of the job with their values, or why it cannot have them; commas in
 * brackets are part of a value. */
static void test_table(void **state)
{
    static const char *const settings[] = {"parallel.layer_split=[2,2],[1,1,2]",
                                           "train.micro_batch=1,2"};
    static const char *const common[] = {"strategy=sequential"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    char dir[200], path[256];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/job.yaml", dir);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, mesh_job, strlen(mesh_job)));
    dh_cluster *cluster;
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &cluster));
    dh_describe_table_options how = {.cluster = cluster, .settings = settings, .n_settings = 2};
    assert_ok(&ctx, dh_describe_table(&ctx, path, common, 1, &how, &text));
    json_t *said = read_document(&text);
    const json_t *cells = json_object_get(said, "cells");
    assert_int_equal(json_array_size(cells), 4);
    for (size_t i = 0; i < 2; i++) {
        char setting[64];
        const char *overrides[] = {common[0], "parallel.layer_split=[2,2]", setting};
        dh_simulate_result result;
        const dh_simulate_options one = {.cluster = cluster, .quiet = true};
        snprintf(setting, sizeof setting, "train.micro_batch=%zu", i + 1);
        dh_job *job = job_of(mesh_job, overrides, 3);
        assert_ok(&ctx, dh_simulate_job(&ctx, job, &one, &result));
        const double ms = json_real_value(json_object_get(json_array_get(cells, i), "step_ms"));
        assert_true(fabs(ms - result.step_s * 1e3) < 1e-9 * ms);
        const json_t *reason = json_object_get(json_array_get(cells, i + 2), "reason");
        assert_non_null(strstr(json_string_value(reason), "layer_split has 3 entries"));
        dh_job_destroy(job);
    }
    json_decref(said);
    how.n_settings = 0;
    assert_fails(&ctx, dh_describe_table(&ctx, path, common, 1, &how, &text), DH_EINVAL,
                 "one or two");
    dh_cluster_destroy(cluster);
}

/* What overrides say stays, and what the file says does not. */
static void test_tune(void **state)
{
    static const char *const overrides[] = {"parallel.tp=2", "strategy=auto"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    char dir[200], path[256];
    dh_cluster *cluster;
    dh_job *job;
    unsigned fixed;
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/job.yaml", dir);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, mesh_job, strlen(mesh_job)));
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &cluster));
    assert_ok(&ctx, dh_tune_load(&ctx, path, overrides, 2, &job, &fixed));
    assert_int_equal(fixed, 1u << DH_TUNE_TP);
    const dh_tune_options how = {.cluster = cluster,
                                 .devices = 4,
                                 .fixed = fixed,
                                 .strategies = "sequential,dhelix",
                                 .schedules = "1f1b",
                                 .n_rows = 5,
                                 .n_simulated = 2,
                                 .quiet = true};
    assert_ok(&ctx, dh_describe_tune(&ctx, job, &how, &text));
    json_t *said = read_document(&text), *row;
    size_t i;
    bool other_stages = false;
    json_array_foreach(json_object_get(said, "ranked"), i, row)
    {
        const json_t *settings = json_object_get(row, "settings");
        assert_int_equal(integer_of(settings, "parallel.tp"), 2);
        other_stages |= integer_of(settings, "parallel.pp") != 2;
    }
    assert_int_equal(i, 5);
    assert_true(other_stages);
    assert_int_equal(integer_of(said, "devices"), 4);
    json_decref(said);
    dh_job_destroy(job);
    dh_cluster_destroy(cluster);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- training ------------------------------------------------------------------------------- */

typedef struct heard {
    dh_str lines; /* a line each */
    int64_t n, stop_at;
    volatile sig_atomic_t stop;
} heard;

static void hear(void *self, const char *line, size_t n_bytes)
{
    heard *h = self;
    dh_str_append(&h->lines, line, n_bytes);
    dh_str_append(&h->lines, "\n", 1);
    if (++h->n == h->stop_at) h->stop = 1;
}

static dh_status train(dh_ctx *ctx, const char *out, const char *ranks, heard *h, dh_str *summary)
{
    static const char text[] =
        "model: {family: gpt2, n_layers: 2, width: 32, n_heads: 4, vocab: 65, max_seq: 32}\n"
        "data: {train: tests/data/corpora/tinyshakespeare/input.txt, tokenizer: chars,\n"
        "       val_fraction: 0.01}\n"
        "train: {steps: 6, batch: 4, seq_len: 32, threads: 1}\neval: {every: 3, batches: 1}\n";
    char setting[300];
    const char *overrides[] = {setting, ranks};
    snprintf(setting, sizeof setting, "out=%s", out);
    dh_job *job = job_of(text, overrides, 2);
    dh_train_result result;
    const dh_train_options how = {.quiet = true, .stop = &h->stop, .on_step = hear, .self = h};
    dh_status st = dh_train(ctx, job, &how, &result);
    if (st == DH_OK) st = dh_describe_train(ctx, job, &result, summary);
    dh_job_destroy(job);
    return st;
}

/* Steps' lines in order; those of validations are in the file alone. */
static void check_lines(const char *out, const heard *h)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[300], *text, *at = NULL;
    size_t n_bytes;
    dh_str steps = DH_STR_INIT;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 20, &text, &n_bytes));
    for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at))
        if (!strstr(line, "val_loss")) dh_str_printf(&steps, "%s\n", line);
    assert_string_equal(steps.text, h->lines.text);
    dh_str_fini(&steps);
    free(text);
}

static void test_train(void **state)
{
    static const char *const ranks[] = {"parallel.tp=1", "parallel.tp=2"};
    dh_ctx ctx = DH_CTX_INIT;
    char dir[200], out[256];
    test_tmpdir(dir, sizeof dir);
    for (size_t i = 0; i < 2; i++) {
        dh_str text = DH_STR_INIT;
        heard h = {.stop_at = 2};
        snprintf(out, sizeof out, "%s/%zu", dir, i);
        assert_fails(&ctx, train(&ctx, out, ranks[i], &h, &text), DH_EINTERRUPTED, "after step ");
        const int64_t stopped_after = h.n; /* the step behind the one that asked */
        assert_int_equal(stopped_after, 3);
        h.stop = 0;
        assert_ok(&ctx, train(&ctx, out, ranks[i], &h, &text));
        assert_int_equal(h.n, 6);
        check_lines(out, &h);
        json_t *said = read_document(&text);
        assert_int_equal(integer_of(said, "steps"), 6);
        assert_int_equal(integer_of(said, "resumed_at"), stopped_after);
        json_decref(said);
        dh_str_fini(&h.lines);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check), cmocka_unit_test(test_plan), cmocka_unit_test(test_simulate),
        cmocka_unit_test(test_table), cmocka_unit_test(test_tune), cmocka_unit_test(test_train)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
