/* What the suites of runs on many ranks share: small jobs on real text, their curves and
 * their checkpoints. */
#ifndef TEST_TRAIN_RANKS_H
#define TEST_TRAIN_RANKS_H

#include "dh_test.h"

#include <jansson.h>

#include "dhelix/train.h"
#include "weights/safetensors.h"

enum { RUN_MAX_STEPS = 40 };

/* Every size divides by 2 and, where the mesh asks for it, by 4; the vocabulary by neither. */
#define RUN_GPT2                                                                                   \
    "model: {family: gpt2, n_layers: 4, width: 32, n_heads: 4, vocab: 65, max_seq: 32}\n"
#define RUN_LLAMA                                                                                  \
    "model: {family: llama, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"     \
    "        ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false}\n"
/* Without the load-balancing loss, which depends on what is in one micro-batch. */
#define RUN_EXPERTS                                                                                \
    "model: {family: mixtral, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"   \
    "        ffn_width: 40, n_experts: 4, top_k: 2, router_aux_coef: 0, vocab: 65, max_seq: 32,\n" \
    "        tied_head: false}\n"

/* A layer without experts, then three with them. */
#define RUN_DENSE_FIRST                                                                            \
    "model: {family: qwen3_moe, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n" \
    "        ffn_width: 40, n_experts: 4, top_k: 2, router_aux_coef: 0.01, vocab: 65,\n"           \
    "        max_seq: 32, dense_first: 1, dense_width: 88, tied_head: false}\n"

/* Largest difference of losses between a mesh and one rank. A mesh adds the same float32 products
 * in another grouping: partial sums of tensor-parallel GEMMs, of micro-batches over data-parallel
 * ranks, of attention over context-parallel ones. A gradient so differs by a few units of 6e-8 of
 * its size, and the optimizer, which divides by the root mean square, turns that into as much of
 * the learning rate where a gradient is almost zero. Measured over 20 steps: up to 6e-6 in the loss
 * with other data, below 5e-7 here and in random meshes; allowed: 2e-5. In bf16 activations are
 * rounded at other places, 2^-9 each: measured 2e-4 over 4 steps, allowed 2e-3. */
static inline double run_tolerance(dh_dtype dtype)
{
    return dtype == DH_F32 ? 2e-5 : 2e-3;
}

static inline void run_remove(const char *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_dir_remove(&ctx, out));
}

/* The suite's own folder; set-up and tear-down of its group. */
static char run_dir[256];

/* What runs read: Shakespeare. Under sanitizers, where characters of all of it take as long as ten
 * steps, its beginning and each character that this lacks. */
#define RUN_WHOLE_TEXT "tests/data/corpora/tinyshakespeare/input.txt"
static char run_text[300] = RUN_WHOLE_TEXT;

static inline void run_shorten_text(void)
{
    enum { SOME = 200000 };
    dh_ctx ctx = DH_CTX_INIT;
    dh_map whole;
    dh_str some = DH_STR_INIT;
    bool is_there[256] = {false};
    assert_ok(&ctx, dh_map_open(&ctx, RUN_WHOLE_TEXT, &whole));
    assert_true(whole.n_bytes > SOME);
    const char *text = (const char *)whole.at;
    dh_str_append(&some, text, SOME);
    for (size_t i = 0; i < whole.n_bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (i >= SOME && !is_there[c]) dh_str_append(&some, &text[i], 1);
        is_there[c] = true;
    }
    dh_map_close(&whole);
    snprintf(run_text, sizeof run_text, "%s/text", run_dir);
    assert_false(some.failed);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, run_text, some.text, some.len));
    dh_str_fini(&some);
}

static inline int run_make_dir(void **state)
{
    test_tmpdir(run_dir, sizeof run_dir);
    if (test_is_slow()) run_shorten_text();
    return 0;
}

static inline int run_drop_dir(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, run_dir) == DH_OK ? 0 : -1;
}

/* Path of a folder in it, free of what an earlier test that failed may have left there. */
static inline void run_folder(char *path, size_t cap, const char *name)
{
    snprintf(path, cap, "%s/%s", run_dir, name);
    run_remove(path);
}

/* What a run leaves: one entry a step, NaN where there is none. */
typedef struct run_curve {
    int n;
    double loss[RUN_MAX_STEPS], norm[RUN_MAX_STEPS], val[RUN_MAX_STEPS];
    double last; /* of run_curve_of: the last loss, with all its bits */
} run_curve;

/* Follows the steps of the runs below, where it is set. */
static void (*watch_steps)(void *self, const char *line, size_t n_bytes);
static void *watching;

/* Steps of runs that are compared with each other, not more than n: where one step differs, so do
 * those behind it. */
static inline int run_steps(int n)
{
    return test_is_slow() ? DH_MIN(n, 4) : n;
}

/* A job: a model, what `settings` ("parallel.dp=2 train.dtype=bf16") changes, 20 steps of 8
 * sequences of Shakespeare, into folder out. */
static inline dh_status run_parse(dh_ctx *ctx, const char *model, const char *settings,
                                  const char *out, dh_job **job)
{
    static const char rest[] =
        "data: {tokenizer: chars, val_fraction: 0.01}\n"
        "train: {steps: 20, batch: 8, micro_batch: 1, seq_len: 32, threads: 1}\n"
        "optimizer: {lr: 3.0e-3, warmup: 4}\n"
        "eval: {every: 10, batches: 6}\n"
        "parallel: {timeout_s: 600}\n"; /* however busy the machine is */
    char text[4096], words[1024], out_setting[400], text_setting[320];
    const char *overrides[64] = {text_setting, out_setting};
    size_t n = 2;
    snprintf(text, sizeof text, "%s%s", model, rest);
    snprintf(words, sizeof words, "%s", settings);
    snprintf(out_setting, sizeof out_setting, "out=%s", out);
    snprintf(text_setting, sizeof text_setting, "data.train=%s", run_text);
    char *at = NULL;
    for (char *word = strtok_r(words, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
        assert_true(n < DH_COUNTOF(overrides));
        overrides[n++] = word;
    }
    return dh_job_parse(ctx, text, strlen(text), "ranks.yaml", ".", overrides, n, job);
}

static volatile sig_atomic_t run_is_stopped;
static inline void run_stop(void *self)
{
    __atomic_store_n(&run_is_stopped, 1, __ATOMIC_RELAXED); /* by every rank */
}

/* Train such a job; one step when asked to stop. */
static inline dh_status run_once(dh_ctx *ctx, const char *model, const char *settings,
                                 const char *out, dh_train_result *result, bool stop)
{
    dh_job *job;
    dh_train_result own;
    DH_TRY(run_parse(ctx, model, settings, out, &job));
    run_is_stopped = 0;
    dh_train_options options = {.quiet = true,
                                .stop = stop ? &run_is_stopped : NULL,
                                .on_start = stop ? run_stop : NULL,
                                .on_step = watch_steps,
                                .self = watching};
    dh_status st = dh_train(ctx, job, &options, result ? result : &own);
    dh_job_destroy(job);
    return st;
}

static inline void run_read_curve(const char *out, run_curve *curve)
{
    char path[400], line[2048];
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    for (int i = 0; i < RUN_MAX_STEPS; i++)
        curve->loss[i] = curve->norm[i] = curve->val[i] = (double)NAN;
    curve->n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        int step = (int)json_integer_value(json_object_get(object, "step"));
        assert_in_range(step, 1, RUN_MAX_STEPS);
        json_t *loss = json_object_get(object, "loss"), *val = json_object_get(object, "val_loss");
        if (loss) {
            curve->loss[step - 1] = json_number_value(loss);
            curve->norm[step - 1] = json_number_value(json_object_get(object, "grad_norm"));
            curve->n = DH_MAX(curve->n, step);
        }
        if (val) curve->val[step - 1] = json_number_value(val);
        json_decref(object);
    }
    fclose(f);
}

static inline const char *run_ckpt_file(char *path, size_t cap, const char *out, int step,
                                        const char *file)
{
    snprintf(path, cap, "%s/checkpoints/step-%06d/%s", out, step, file);
    return path;
}

static inline const char *const *run_ckpt_files(void)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", NULL};
    return files;
}

/* Whether weights and moments of two checkpoints are the same bytes. */
static inline bool run_same_bytes(const char *out_a, const char *out_b, int step)
{
    dh_ctx ctx = DH_CTX_INIT;
    bool same = true;
    for (const char *const *file = run_ckpt_files(); *file; file++) {
        char path_a[500], path_b[500];
        dh_map a, b;
        run_ckpt_file(path_a, sizeof path_a, out_a, step, *file);
        run_ckpt_file(path_b, sizeof path_b, out_b, step, *file);
        assert_ok(&ctx, dh_map_open(&ctx, path_a, &a));
        assert_ok(&ctx, dh_map_open(&ctx, path_b, &b));
        assert_true(a.n_bytes > 1000);
        same = same && a.n_bytes == b.n_bytes && memcmp(a.at, b.at, a.n_bytes) == 0;
        dh_map_close(&a);
        dh_map_close(&b);
    }
    return same;
}

/* ---- another device than the cpu ---------------------------------------------------------------
 */

/* Set by a suite where it compares runs with the cpu's itself, or where one more run would disturb
 * what it counts. */
static bool run_alone;

/* Jobs that DHELIX_DEVICE puts on another device run on the cpu too, for its bits. Not where a
 * setting names the device, and not where a fault or who watches belongs to one of the runs. */
static inline bool run_has_cpu_beside(const char *settings)
{
    const char *device = getenv("DHELIX_DEVICE");
    return device && *device && strcmp(device, "cpu") != 0 && !strstr(settings, "device=") &&
           !getenv("DHELIX_FAULT") && !watch_steps && !run_alone;
}

/* What lies in the run's folder before it begins is where its continuation on the cpu begins. */
static inline void run_copy_folder(const char *out, const char *to)
{
    char command[800];
    run_remove(to);
    if (!dh_path_exists(out)) return;
    snprintf(command, sizeof command, "cp -r '%s' '%s'", out, to);
    assert_int_equal(system(command), 0);
}

static inline bool run_same_number(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* The same job on the cpu, in a folder that run_copy_folder made: the numbers of every step, and
 * weights and moments behind the last, bit for bit. */
static inline void run_expect_cpu(const char *model, const char *settings, const char *out,
                                  const char *cpu_out, bool stop, dh_status status)
{
    dh_ctx ctx = DH_CTX_INIT;
    char on_cpu[1024];
    run_curve a, b;
    snprintf(on_cpu, sizeof on_cpu, "%s device=cpu", settings);
    const dh_status st = run_once(&ctx, model, on_cpu, cpu_out, NULL, stop);
    if (st != status) fail_msg("%s: %s: %s", on_cpu, dh_status_name(st), ctx.message);
    run_read_curve(out, &a);
    run_read_curve(cpu_out, &b);
    assert_int_equal(a.n, b.n);
    for (int i = 0; i < a.n; i++)
        if (!run_same_number(a.loss[i], b.loss[i]) || !run_same_number(a.norm[i], b.norm[i]) ||
            !run_same_number(a.val[i], b.val[i]))
            fail_msg("%s: step %d: loss %.17g, norm %.17g, on the cpu %.17g, %.17g", settings,
                     i + 1, a.loss[i], a.norm[i], b.loss[i], b.norm[i]);
    if (!run_same_bytes(out, cpu_out, a.n))
        fail_msg("%s: weights or moments are not the cpu's", settings);
    run_remove(cpu_out);
}

/* Train such a job, and where DHELIX_DEVICE says another device compare with the cpu. */
static inline dh_status run_job_until(dh_ctx *ctx, const char *model, const char *settings,
                                      const char *out, dh_train_result *result, bool stop)
{
    char cpu_out[400];
    if (!run_has_cpu_beside(settings)) return run_once(ctx, model, settings, out, result, stop);
    snprintf(cpu_out, sizeof cpu_out, "%s.cpu", out);
    run_copy_folder(out, cpu_out);
    const dh_status st = run_once(ctx, model, settings, out, result, stop);
    if (st == DH_OK || st == DH_EINTERRUPTED)
        run_expect_cpu(model, settings, out, cpu_out, stop, st);
    return st;
}

static inline dh_status run_job(dh_ctx *ctx, const char *model, const char *settings,
                                const char *out, dh_train_result *result)
{
    return run_job_until(ctx, model, settings, out, result, false);
}

/* Train and read the curve; the run must succeed. */
static inline void run_curve_of(const char *model, const char *settings, const char *out,
                                run_curve *curve)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    if (run_job(&ctx, model, settings, out, &result) != DH_OK)
        fail_msg("%s: %s", settings, ctx.message);
    assert_int_equal(result.slab_planned, result.slab_peak);
    run_read_curve(out, curve);
    curve->last = result.loss;
}

/* Of a run whose bits others are to have: the cpu's. */
static inline void run_reference_of(const char *model, const char *settings, const char *out,
                                    run_curve *curve)
{
    char on_cpu[1024];
    snprintf(on_cpu, sizeof on_cpu, "%s device=cpu", settings);
    run_curve_of(model, on_cpu, out, curve);
}

/* Of a run that is compared with such a one. */
static inline void run_compared_of(const char *model, const char *settings, const char *out,
                                   run_curve *curve)
{
    run_alone = true;
    run_curve_of(model, settings, out, curve);
    run_alone = false;
}

/* Largest difference of losses, and of validation losses, over steps [from, n). */
static inline double run_distance(const run_curve *a, const run_curve *b, int from)
{
    double worst = 0;
    int n_seen = 0;
    assert_int_equal(a->n, b->n);
    for (int i = from; i < a->n; i++) {
        assert_true(isnan(a->val[i]) == isnan(b->val[i]));
        double pairs[2][2] = {{a->loss[i], b->loss[i]}, {a->val[i], b->val[i]}};
        for (int k = 0; k < (isnan(a->val[i]) ? 1 : 2); k++) {
            double d = fabs(pairs[k][0] - pairs[k][1]);
            if (!(d <= worst)) worst = d;
            n_seen++;
        }
    }
    assert_true(n_seen > 0);
    return worst;
}

#endif
