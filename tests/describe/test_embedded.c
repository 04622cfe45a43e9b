/* The library inside another program: calls that leave pointers out, numbers that are out of range,
 * one job in several threads, signals, forks, a locale with a decimal comma. */
#include "dh_test.h"

#include <locale.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dhelix/dhelix.h"

static const char mesh_job[] =
    "model: {family: llama, n_layers: 4, width: 256, n_heads: 8, ffn_width: 512, vocab: 1000, "
    "max_seq: 128}\n"
    "train: {batch: 8, micro_batch: 1, seq_len: 128}\n"
    "parallel: {tp: 2, pp: 2}\noverlap: {policy: list, memory: 1.5}\n"
    "slow: {ranks: '0,3', factor: 1.25}\n"
    "strategy: \"{passes: [ring-gemm], schedule: 1f1b, order: list}\"\n";

static dh_job *mesh_of(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    const char *overrides[] = {"strategy=sequential"};
    assert_ok(&ctx, dh_job_parse(&ctx, mesh_job, strlen(mesh_job), "embedded.yaml", ".", overrides,
                                 1, &job));
    return job;
}

/* ---- what callers leave out ------------------------------------------------------------------ */

/* Both take the call's own text, so that the last test finds which functions are not called. */
#define REFUSED(call)                                                                              \
    do {                                                                                           \
        dh_ctx ctx = DH_CTX_INIT;                                                                  \
        const dh_status st_ = (call);                                                              \
        if (st_ != DH_EINVAL || !strstr(ctx.message, "NULL"))                                      \
            fail_msg("%s: %s: %s", #call, dh_status_name(st_), ctx.message);                       \
    } while (0)
#define TAKEN(call)                                                                                \
    do {                                                                                           \
        dh_ctx ctx = DH_CTX_INIT;                                                                  \
        if ((call) != DH_OK) fail_msg("%s: %s", #call, ctx.message);                               \
    } while (0)

static void jobs_without_pointers(void **state)
{
    dh_job *job, *good = mesh_of();
    char *text;
    dh_str out = DH_STR_INIT;
    REFUSED(dh_job_create(&ctx, NULL));
    REFUSED(dh_job_load(&ctx, NULL, NULL, 0, &job));
    REFUSED(dh_job_load(&ctx, "a.yaml", NULL, 1, &job));
    REFUSED(dh_job_load(&ctx, "a.yaml", NULL, 0, NULL));
    REFUSED(dh_job_parse(&ctx, NULL, 0, NULL, NULL, NULL, 0, &job));
    TAKEN(dh_job_parse(&ctx, mesh_job, strlen(mesh_job), NULL, NULL, NULL, 0, &job));
    dh_job_destroy(job);
    REFUSED(dh_job_set(&ctx, NULL, "out", "run"));
    REFUSED(dh_job_set(&ctx, good, NULL, "run"));
    REFUSED(dh_job_set(&ctx, good, "out", NULL));
    REFUSED(dh_job_get(&ctx, NULL, "out", &out));
    REFUSED(dh_job_get(&ctx, good, NULL, &out));
    REFUSED(dh_job_get(&ctx, good, "out", NULL));
    REFUSED(dh_job_check(&ctx, NULL));
    REFUSED(dh_job_print(&ctx, NULL, &text));
    REFUSED(dh_job_print(&ctx, good, NULL));
    REFUSED(dh_job_print_common(&ctx, NULL, &out));
    REFUSED(dh_job_print_common(&ctx, good, NULL));
    assert_true(dh_job_help(NULL, 80, &out) > 50);
    dh_str_fini(&out);
    dh_job_destroy(good);
    dh_job_destroy(NULL);
}

static void models_and_clusters_without_pointers(void **state)
{
    dh_model model;
    dh_cluster *cluster;
    char *text;
    REFUSED(dh_model_validate(&ctx, NULL));
    REFUSED(dh_model_check_computed(&ctx, NULL));
    REFUSED(dh_model_from_preset(&ctx, NULL, &model));
    REFUSED(dh_model_from_preset(&ctx, "gpt2", NULL));
    REFUSED(dh_model_from_config_json(&ctx, NULL, 0, &model));
    REFUSED(dh_model_from_config_json(&ctx, "{}", 2, NULL));
    REFUSED(dh_model_from_config_file(&ctx, NULL, &model));
    REFUSED(dh_model_from_config_file(&ctx, "a", NULL));
    REFUSED(dh_model_to_config_json(&ctx, NULL, &text));
    REFUSED(dh_cluster_find(&ctx, NULL, &cluster));
    REFUSED(dh_cluster_find(&ctx, "a100", NULL));
    dh_cluster_destroy(NULL);
}

static void tokenizers_without_pointers(void **state)
{
    dh_tokenizer *tok, *bytes;
    dh_encoder *enc;
    dh_ids ids = {0};
    dh_str out = DH_STR_INIT;
    TAKEN(dh_tokenizer_bytes(&ctx, &bytes));
    TAKEN(dh_encoder_create(&ctx, bytes, &enc));
    REFUSED(dh_tokenizer_bytes(&ctx, NULL));
    REFUSED(dh_tokenizer_load(&ctx, NULL, &tok));
    REFUSED(dh_tokenizer_load(&ctx, "bytes", NULL));
    REFUSED(dh_tokenizer_from_gpt2(&ctx, NULL, 0, "", 0, &tok));
    REFUSED(dh_tokenizer_from_gpt2(&ctx, "{}", 2, NULL, 0, &tok));
    REFUSED(dh_tokenizer_from_hf(&ctx, NULL, 0, &tok));
    REFUSED(dh_tokenizer_from_spm(&ctx, NULL, 0, &tok));
    REFUSED(dh_tokenizer_from_llama2c(&ctx, NULL, 0, &tok));
    REFUSED(dh_tokenizer_from_chars_json(&ctx, NULL, 0, &tok));
    REFUSED(dh_tokenizer_chars_from_text(&ctx, NULL, 1, &tok));
    REFUSED(dh_tokenizer_save_chars(&ctx, NULL, "a"));
    REFUSED(dh_tokenizer_save_chars(&ctx, bytes, NULL));
    REFUSED(dh_tokenizer_encode(&ctx, NULL, "a", 1, 0, &ids));
    REFUSED(dh_tokenizer_encode(&ctx, bytes, NULL, 1, 0, &ids));
    REFUSED(dh_tokenizer_encode(&ctx, bytes, "a", 1, 0, NULL));
    TAKEN(dh_tokenizer_encode(&ctx, bytes, NULL, 0, 0, &ids));
    REFUSED(dh_encoder_create(&ctx, NULL, &enc));
    REFUSED(dh_encoder_create(&ctx, bytes, NULL));
    REFUSED(dh_encoder_encode(&ctx, NULL, "a", 1, 0, &ids));
    REFUSED(dh_encoder_encode(&ctx, enc, NULL, 1, 0, &ids));
    TAKEN(dh_encoder_encode(&ctx, enc, NULL, 0, 0, &ids));
    REFUSED(dh_tokenizer_decode(&ctx, NULL, NULL, 0, 0, &out));
    REFUSED(dh_tokenizer_decode(&ctx, bytes, NULL, 1, 0, &out));
    TAKEN(dh_tokenizer_decode(&ctx, bytes, NULL, 0, 0, &out));
    dh_encoder_destroy(enc);
    dh_encoder_destroy(NULL);
    dh_tokenizer_destroy(bytes);
    dh_tokenizer_destroy(NULL);
    dh_vec_fini(&ids);
    dh_str_fini(&out);
}

static void plans_without_pointers(void **state)
{
    dh_job *job = mesh_of(), *loaded;
    char text[64];
    dh_simulate_result simulated;
    dh_tune *tune;
    unsigned fixed;
    dh_str out = DH_STR_INIT;
    const dh_tune_config config = {{0}};
    REFUSED(dh_simulate_job(&ctx, NULL, NULL, &simulated));
    REFUSED(dh_simulate_job(&ctx, job, NULL, NULL));
    TAKEN(dh_simulate_job(&ctx, job, NULL, &simulated));
    REFUSED(dh_tune_load(&ctx, NULL, NULL, 0, &loaded, &fixed));
    REFUSED(dh_tune_load(&ctx, "a.yaml", NULL, 1, &loaded, &fixed));
    REFUSED(dh_tune_load(&ctx, "a.yaml", NULL, 0, &loaded, NULL));
    REFUSED(dh_tune_load_given(&ctx, NULL, NULL, 0, 4, &loaded, text, sizeof text));
    REFUSED(dh_tune_load_given(&ctx, "a.yaml", NULL, 1, 4, &loaded, text, sizeof text));
    REFUSED(dh_tune_load_given(&ctx, "a.yaml", NULL, 0, 4, &loaded, NULL, 0));
    REFUSED(dh_tune_search(&ctx, NULL, NULL, &tune));
    REFUSED(dh_tune_search(&ctx, job, NULL, NULL));
    TAKEN(dh_tune_search(&ctx, job, NULL, &tune));
    dh_tune_destroy(tune);
    dh_tune_destroy(NULL);
    REFUSED(dh_tune_apply(&ctx, NULL, job));
    REFUSED(dh_tune_apply(&ctx, &config, NULL));
    REFUSED(dh_describe_lists(&ctx, NULL));
    REFUSED(dh_describe_check(&ctx, NULL, 0, &out));
    REFUSED(dh_describe_check(&ctx, job, 0, NULL));
    REFUSED(dh_describe_plan(&ctx, NULL, NULL, &out));
    TAKEN(dh_describe_plan(&ctx, job, NULL, &out));
    REFUSED(dh_describe_order(&ctx, job, NULL, NULL));
    TAKEN(dh_describe_order(&ctx, job, NULL, &out));
    REFUSED(dh_describe_simulate(&ctx, NULL, NULL, &out));
    TAKEN(dh_describe_simulate(&ctx, job, NULL, &out));
    REFUSED(dh_describe_table(&ctx, NULL, NULL, 0, NULL, &out));
    REFUSED(dh_describe_tune(&ctx, NULL, NULL, &out));
    TAKEN(dh_describe_tune(&ctx, job, NULL, &out));
    REFUSED(dh_describe_calibrate(&ctx, NULL, 1, NULL, &out));
    REFUSED(dh_describe_calibrate(&ctx, NULL, 0, NULL, &out)); /* no cluster to be like */
    dh_str_fini(&out);
    dh_job_destroy(job);
}

static void runs_without_pointers(void **state)
{
    dh_job *job = mesh_of();
    dh_tokenizer *tok;
    dh_trained trained = {0};
    dh_trained_spec spec = {0};
    dh_generate_spec text = {0};
    dh_sampler sampler;
    dh_str out = DH_STR_INIT;
    const float logits[2] = {0};
    int32_t id;
    REFUSED(dh_train(&ctx, NULL, NULL, NULL));
    dh_ctx without_data = DH_CTX_INIT; /* as far as it gets, with neither options nor result */
    assert_fails(&without_data, dh_train(&without_data, job, NULL, NULL), DH_EINVAL,
                 "data.train is not set");
    const dh_describe_eval_options no_files = {.n_data = 1};
    REFUSED(dh_describe_eval(&ctx, NULL, NULL, &out));
    REFUSED(dh_describe_eval(&ctx, "a", NULL, NULL));
    REFUSED(dh_describe_eval(&ctx, "a", &no_files, &out));
    REFUSED(dh_describe_convert(&ctx, NULL, "b", NULL, &out));
    REFUSED(dh_describe_convert(&ctx, "a", NULL, NULL, &out));
    REFUSED(dh_describe_convert(&ctx, "a", "b", NULL, NULL));
    REFUSED(dh_describe_tokenize(&ctx, NULL, 1, NULL, &out));
    REFUSED(dh_describe_tokenize(&ctx, NULL, 0, NULL, NULL));
    const dh_describe_profile_options no_traces = {.n_traces = 1};
    REFUSED(dh_describe_profile(&ctx, NULL, NULL, &out));
    REFUSED(dh_describe_profile(&ctx, job, NULL, NULL));
    REFUSED(dh_describe_profile(&ctx, job, &no_traces, &out));
    REFUSED(dh_describe_train(&ctx, job, NULL, &out));
    REFUSED(dh_train_tokenizer(&ctx, NULL, &tok));
    REFUSED(dh_train_tokenizer(&ctx, job, NULL));
    REFUSED(dh_trained_open(&ctx, NULL, &trained));
    REFUSED(dh_trained_open(&ctx, &spec, &trained));
    dh_trained_close(&trained);
    dh_trained_close(NULL);
    REFUSED(dh_generate(&ctx, NULL, &text, NULL));
    REFUSED(dh_generate(&ctx, &trained, NULL, NULL));
    REFUSED(dh_generate(&ctx, &trained, &text, NULL));
    REFUSED(dh_sampler_init(&ctx, NULL, 2, 1, 0, 1, 1));
    TAKEN(dh_sampler_init(&ctx, &sampler, 2, 1, 0, 1, 1));
    REFUSED(dh_sampler_next(&ctx, &sampler, NULL, &id));
    REFUSED(dh_sampler_next(&ctx, &sampler, logits, NULL));
    dh_sampler_fini(&sampler);
    dh_sampler_fini(NULL);
    REFUSED(dh_report_write(&ctx, NULL, 1, NULL, "a.html"));
    const char *runs[] = {"a"};
    REFUSED(dh_report_write(&ctx, runs, 1, NULL, NULL));
    REFUSED(dh_report_traces(&ctx, NULL, "a.json"));
    REFUSED(dh_report_traces(&ctx, "a", NULL));
    REFUSED(dh_report_figures(&ctx, NULL, 1, NULL, "a", &out));
    REFUSED(dh_report_figures(&ctx, runs, 1, NULL, NULL, &out));
    REFUSED(dh_report_figures(&ctx, runs, 1, NULL, "a", NULL));
    dh_job_destroy(job);
}

/* Every function of the headers that can fail is called above. */
static void nothing_is_left_out(void **state)
{
    static const char *const headers[] = {"cluster", "describe",  "generate", "job",
                                          "model",   "report",    "sampler",  "simulate",
                                          "train",   "tokenizer", "tune"};
    dh_ctx ctx = DH_CTX_INIT;
    char *own, *text, path[64];
    size_t n, n_found = 0;
    regex_t call;
    assert_ok(&ctx, dh_file_read(&ctx, "tests/describe/test_embedded.c", 1 << 20, &own, &n));
    assert_int_equal(regcomp(&call, "DH_API dh_status (dh_[a-z0-9_]+)\\(", REG_EXTENDED), 0);
    for (size_t i = 0; i < DH_COUNTOF(headers); i++) {
        snprintf(path, sizeof path, "include/dhelix/%s.h", headers[i]);
        assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 20, &text, &n));
        regmatch_t at[2];
        for (const char *from = text; regexec(&call, from, 2, at, 0) == 0; from += at[0].rm_eo) {
            char wanted[96];
            snprintf(wanted, sizeof wanted, "REFUSED(%.*s(", (int)(at[1].rm_eo - at[1].rm_so),
                     from + at[1].rm_so);
            if (!strstr(own, wanted)) fail_msg("no %s", wanted);
            n_found++;
        }
        free(text);
    }
    assert_true(n_found >= 44);
    regfree(&call);
    free(own);
}

/* ---- numbers out of range -------------------------------------------------------------------- */

static void options_are_bounded(void **state)
{
    static const struct {
        dh_tune_options options;
        const char *message;
    } refused[] = {{{.devices = INT64_MAX}, "1 to 16777216"},
                   {{.devices = -1}, "1 to 16777216"},
                   {{.memory_bytes = NAN}, "memory of nan"},
                   {{.memory_bytes = -1}, "memory of -1"},
                   {{.memory_bytes = INFINITY}, "memory of inf"},
                   {{.n_rows = SIZE_MAX}, "up to 1000000"},
                   {{.n_simulated = SIZE_MAX}, "up to 1000000"},
                   {{.n_threads = INT64_MAX}, "to 4096"},
                   {{.n_threads = -1}, "to 4096"},
                   {{.within = NAN}, "within=nan"}};
    dh_job *job = mesh_of();
    dh_ctx ctx = DH_CTX_INIT;
    dh_tune *tune;
    dh_str out = DH_STR_INIT;
    dh_sampler sampler;
    for (size_t i = 0; i < DH_COUNTOF(refused); i++) {
        assert_fails(&ctx, dh_tune_search(&ctx, job, &refused[i].options, &tune), DH_EINVAL,
                     refused[i].message);
        dh_ctx_reset(&ctx);
    }
    const dh_describe_simulate_options peak = {.peak_flops_per_s = NAN};
    assert_fails(&ctx, dh_describe_simulate(&ctx, job, &peak, &out), DH_EINVAL, "peak of nan");
    dh_ctx_reset(&ctx);
    const char *data[] = {"a"};
    const dh_describe_eval_options micro = {.data = data, .n_data = 1, .micro_batch = -1};
    assert_fails(&ctx, dh_describe_eval(&ctx, "a", &micro, &out), DH_EINVAL, "micro_batch: -1");
    dh_ctx_reset(&ctx);
    assert_fails(&ctx, dh_sampler_init(&ctx, &sampler, INT64_MAX, 1, 0, 1, 1), DH_EINVAL,
                 "vocabulary");
    dh_job_destroy(job);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { N_THREADS = 3, N_CALLS = TEST_SANITIZED ? 2 : 6 };

typedef struct sharing {
    const dh_job *job;
    char *want[3];
} sharing;

static char *text_of(const dh_job *job, int k)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str out = DH_STR_INIT;
    dh_status st = k == 0   ? dh_describe_simulate(&ctx, job, NULL, &out)
                   : k == 1 ? dh_describe_check(&ctx, job, 1, &out)
                            : dh_describe_plan(&ctx, job, NULL, &out);
    return st == DH_OK ? out.text : NULL;
}

static void *use_shared(void *user)
{
    const sharing *s = user;
    for (int i = 0; i < N_CALLS; i++) {
        char *text = text_of(s->job, i % 3);
        const bool same = text && strcmp(text, s->want[i % 3]) == 0;
        free(text);
        if (!same) return "another text";
    }
    return NULL;
}

static void a_job_is_shared_by_threads(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    assert_ok(&ctx,
              dh_job_parse(&ctx, mesh_job, strlen(mesh_job), "shared.yaml", ".", NULL, 0, &job));
    sharing s = {.job = job};
    for (int k = 0; k < DH_MIN(N_CALLS, 3); k++) assert_non_null(s.want[k] = text_of(job, k));
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_shared, &s), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    for (int k = 0; k < 3; k++) free(s.want[k]);
    dh_job_destroy(job);
}

/* ---- a job that is only read ----------------------------------------------------------------- */

/* A copy in pages that nobody may write to: whatever writes to a `const dh_job *` ends the test. */
static const dh_job *protected_copy(const dh_job *job)
{
    void *at = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    memcpy(at, job, sizeof *job);
    assert_int_equal(mprotect(at, sizeof *job, PROT_READ), 0);
    return at;
}

static dh_job *trainable(const char *dir)
{
    static const char text[] =
        "model: {family: llama, n_layers: 2, width: 32, n_heads: 4, ffn_width: 64, max_seq: 32}\n"
        "train: {steps: 2, batch: 4, micro_batch: 1, seq_len: 32, threads: 1}\n"
        "data: {train: examples/data/tinyshakespeare.txt, tokenizer: bytes, val_fraction: 0.01}\n"
        "eval: {every: 1, batches: 1}\nparallel: {dp: 2, timeout_s: 600}\n"
        "slow: {ranks: '1', factor: 1.25}\nprofile: none\n";
    char out[300];
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    const char *overrides[] = {out};
    snprintf(out, sizeof out, "out=%s/run", dir);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "shared.yaml", ".", overrides, 1, &job));
    return job;
}

static const dh_tune_options one_point = {.quiet = true, .n_simulated = 1, .n_threads = 2};
static const dh_describe_simulate_options sequential = {.strategies = "sequential"};

/* Every function that takes a job as const, one after the other: its message, NULL where all is
 * well. A run folder belongs to one run at a time. */
static const char *read_all_of(const dh_job *job, dh_ctx *ctx)
{
    char *text = NULL;
    dh_str out = DH_STR_INIT;
    dh_simulate_result simulated;
    dh_train_result trained = {0};
    dh_tune *tune = NULL;
    dh_tokenizer *tok = NULL;
    char profile[300];
    const dh_describe_profile_options few = {.out = profile, .samples = 1, .seconds = 0.001};
    snprintf(profile, sizeof profile, "%s/measured.json", job->out_dir);
    dh_status st = dh_job_get(ctx, job, "train.steps", &out);
    if (st == DH_OK) st = dh_job_print(ctx, job, &text);
    if (st == DH_OK) st = dh_job_print_common(ctx, job, &out);
    if (st == DH_OK) st = dh_describe_check(ctx, job, 1, &out);
    if (st == DH_OK) st = dh_describe_plan(ctx, job, NULL, &out);
    if (st == DH_OK) st = dh_describe_order(ctx, job, NULL, &out);
    if (st == DH_OK) st = dh_describe_simulate(ctx, job, &sequential, &out);
    if (st == DH_OK) st = dh_simulate_job(ctx, job, NULL, &simulated);
    if (st == DH_OK) st = dh_describe_tune(ctx, job, &one_point, &out);
    if (st == DH_OK) st = dh_tune_search(ctx, job, &one_point, &tune);
    if (st == DH_OK) st = dh_describe_profile(ctx, job, &few, &out);
    if (st == DH_OK) st = dh_train_tokenizer(ctx, job, &tok);
    if (st == DH_OK) st = dh_train(ctx, job, &(dh_train_options){.quiet = true}, &trained);
    const bool in_use = st != DH_OK && strstr(ctx->message, "is in use by ");
    if (st == DH_OK) st = dh_describe_train(ctx, job, &trained, &out);
    if (dh_job_n_micro(job) != 2 || dh_job_has_stage_times(job) || dh_job_has_rows(job) ||
        dh_job_splits(job) || dh_job_decay_end(job) < 2 || !(dh_job_lr(job, 1) > 0))
        st = dh_fail(ctx, DH_EINTERNAL, "another job");
    dh_tokenizer_destroy(tok);
    dh_tune_destroy(tune);
    dh_str_fini(&out);
    free(text);
    return st == DH_OK || in_use ? NULL : ctx->message;
}

typedef struct sharer {
    pthread_t thread;
    const dh_job *job;
    const char *wrong;
    dh_ctx ctx;
} sharer;

static void *read_shared(void *user)
{
    sharer *s = user;
    s->wrong = read_all_of(s->job, &s->ctx);
    return NULL;
}

static void a_job_is_never_written_to(void **state)
{
    char dir[256];
    dh_ctx ctx = DH_CTX_INIT;
    sharer sharers[N_THREADS];
    test_tmpdir(dir, sizeof dir);
    dh_job *job = trainable(dir);
    const dh_job *only_read = protected_copy(job);
    for (int i = 0; i < N_THREADS; i++) {
        sharers[i] = (sharer){.job = only_read, .ctx = DH_CTX_INIT};
        assert_int_equal(pthread_create(&sharers[i].thread, NULL, read_shared, &sharers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(sharers[i].thread, NULL);
    for (int i = 0; i < N_THREADS; i++)
        if (sharers[i].wrong) fail_msg("thread %d: %s", i, sharers[i].wrong);
    munmap((void *)(uintptr_t)only_read, sizeof *job);
    dh_job_destroy(job);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* Every function of the headers that takes a job as const is called there. */
static void none_that_reads_is_left_out(void **state)
{
    static const char *const headers[] = {"describe", "job", "simulate", "train", "tune"};
    dh_ctx ctx = DH_CTX_INIT;
    char *own, *text, path[64];
    size_t n, n_found = 0;
    regex_t takes;
    assert_ok(&ctx, dh_file_read(&ctx, "tests/describe/test_embedded.c", 1 << 20, &own, &n));
    char *from_here = strstr(own, "static const char *read_all_of(");
    assert_non_null(from_here);
    *strstr(from_here, "typedef struct sharer") = '\0';
    assert_int_equal(
        regcomp(&takes, "DH_API [a-z_0-9]+ (dh_[a-z0-9_]+)\\([^;]*const dh_job \\*", REG_EXTENDED),
        0);
    for (size_t i = 0; i < DH_COUNTOF(headers); i++) {
        snprintf(path, sizeof path, "include/dhelix/%s.h", headers[i]);
        assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 20, &text, &n));
        regmatch_t at[2];
        for (const char *from = text; regexec(&takes, from, 2, at, 0) == 0; from += at[0].rm_eo) {
            char wanted[96];
            snprintf(wanted, sizeof wanted, "%.*s(", (int)(at[1].rm_eo - at[1].rm_so),
                     from + at[1].rm_so);
            if (!strstr(from_here, wanted)) fail_msg("no %s", wanted);
            n_found++;
        }
        free(text);
    }
    assert_true(n_found >= 19);
    regfree(&takes);
    free(own);
}

/* ---- signals --------------------------------------------------------------------------------- */

static volatile sig_atomic_t is_asked;
static size_t n_watched, n_changed;
static struct sigaction hosts[NSIG];

/* A thread of the run gets the signal, while others read the flag. */
static void ask(int number)
{
    __atomic_store_n(&is_asked, number, __ATOMIC_RELAXED);
}

/* Of each signal, as the host set it. 32 and 33 belong to the C library. */
static void compare_handlers(void *self, const char *line, size_t n_bytes)
{
    for (int i = 1; i < NSIG; i++) {
        struct sigaction is;
        if (sigaction(i, NULL, &is) != 0) continue;
        n_changed += is.sa_handler != hosts[i].sa_handler || is.sa_flags != hosts[i].sa_flags;
    }
    n_watched++;
    if (self) raise(SIGUSR1);
}

/* The host's handler ends a run by its own flag; handlers and mask stay as they are. */
static void signals_are_the_hosts(void **state)
{
    char dir[256];
    sigset_t before, after;
    const struct sigaction mine = {.sa_handler = ask};
    struct sigaction old;
    assert_int_equal(sigaction(SIGUSR1, &mine, &old), 0);
    for (int i = 1; i < NSIG; i++) sigaction(i, NULL, &hosts[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    test_tmpdir(dir, sizeof dir);
    dh_job *job = trainable(dir);
    for (int raises = 1; raises >= 0; raises--) {
        dh_ctx ctx = {.rank = -1, .stop = &is_asked};
        is_asked = 0;
        const dh_train_options options = {
            .quiet = true, .on_step = compare_handlers, .self = raises ? hosts : NULL};
        if (raises)
            assert_fails(&ctx, dh_train(&ctx, job, &options, NULL), DH_EINTERRUPTED,
                         "after step 1");
        else
            assert_ok(&ctx, dh_train(&ctx, job, &options, NULL));
        assert_int_equal(is_asked, raises ? SIGUSR1 : 0);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < NSIG; i++)
        assert_int_equal(sigismember(&before, i), sigismember(&after, i));
    compare_handlers(NULL, NULL, 0);
    assert_true(n_watched >= 3);
    assert_int_equal(n_changed, 0);
    sigaction(SIGUSR1, &old, NULL);
    dh_job_destroy(job);
    dh_ctx plain = DH_CTX_INIT;
    assert_ok(&plain, dh_dir_remove(&plain, dir));
}

/* ---- forks ----------------------------------------------------------------------------------- */

static bool trains(const char *dir)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job = trainable(dir);
    dh_train_result result;
    const bool ok = dh_train(&ctx, job, &(dh_train_options){.quiet = true}, &result) == DH_OK;
    if (!ok) fprintf(stderr, "%s\n", ctx.message);
    dh_job_destroy(job);
    return ok && result.steps == 2;
}

/* After runs of the parent, whose threads the child has not. */
static void a_child_of_a_fork_trains(void **state)
{
    char dir[256], inner[300];
    int status;
    dh_ctx ctx = DH_CTX_INIT;
    test_tmpdir(dir, sizeof dir);
    snprintf(inner, sizeof inner, "%s/child", dir);
    assert_true(trains(dir));
    assert_ok(&ctx, dh_dir_create(&ctx, inner));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) _exit(trains(inner) ? 7 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- locales --------------------------------------------------------------------------------- */

/* A locale with a decimal comma, which localedef of the C library itself compiles; false: there is
 * no localedef. */
static bool set_comma(const char *dir)
{
    char command[2000];
    snprintf(command, sizeof command,
             "printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \".\"\\ngrouping 3;3\\n"
             "END LC_NUMERIC\\n' >'%s/source' && localedef -c -i '%s/source' '%s/comma' "
             ">/dev/null 2>&1",
             dir, dir, dir);
    if (system(command) < 0) return false;
    setenv("LOCPATH", dir, 1);
    return setlocale(LC_ALL, "comma") != NULL;
}

static void numbers_have_a_point_in_any_locale(void **state)
{
    char dir[] = "/tmp/dhelix-locale-XXXXXX", text[64];
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *before = mesh_of(), *after;
    char *want, *said, *plain = text_of(before, 0);
    assert_ok(&ctx, dh_job_print(&ctx, before, &want));
    assert_non_null(mkdtemp(dir));
    if (!set_comma(dir)) {
        print_message("no localedef: no locale with a decimal comma was tried\n");
        skip();
    }
    assert_string_equal(localeconv()->decimal_point, ",");
    after = mesh_of();
    assert_ok(&ctx, dh_job_print(&ctx, after, &said));
    assert_string_equal(said, want);
    free(said);
    assert_ok(&ctx, dh_job_print(&ctx, before, &said));
    assert_string_equal(said, want);
    free(said);
    said = text_of(after, 0);
    assert_string_equal(said, plain);
    assert_ok(&ctx, dh_job_set(&ctx, after, "optimizer.lr", "0.0015"));
    assert_true(after->lr == 0.0015);
    assert_int_equal(dh_job_set(&ctx, after, "optimizer.lr", "0,5"), DH_EINVAL);
    dh_ctx_reset(&ctx);
    assert_int_equal(dh_fail(&ctx, DH_EINVAL, "%g", 1.5), DH_EINVAL);
    assert_string_equal(ctx.message, "1.5");
    assert_string_equal(dh_format_bytes(text, sizeof text, 1536), "1.50 KiB");
    snprintf(text, sizeof text, "%g", 1.5); /* the host's own */
    assert_string_equal(text, "1,5");
    setlocale(LC_ALL, "C");
    dh_ctx_reset(&ctx);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    free(said);
    free(plain);
    free(want);
    dh_job_destroy(after);
    dh_job_destroy(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_shared_by_threads),
        cmocka_unit_test(a_job_is_never_written_to),
        cmocka_unit_test(none_that_reads_is_left_out),
        cmocka_unit_test(signals_are_the_hosts),
        cmocka_unit_test(a_child_of_a_fork_trains),
        cmocka_unit_test(jobs_without_pointers),
        cmocka_unit_test(models_and_clusters_without_pointers),
        cmocka_unit_test(tokenizers_without_pointers),
        cmocka_unit_test(plans_without_pointers),
        cmocka_unit_test(runs_without_pointers),
        cmocka_unit_test(nothing_is_left_out),
        cmocka_unit_test(options_are_bounded),
        cmocka_unit_test(numbers_have_a_point_in_any_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
