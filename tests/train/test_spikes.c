/* Steps whose loss or gradient norm leaves the band of those before: the run stops before it is
 * saved, or goes back and leaves the data out, on all ranks alike and whenever it is interrupted.
 */
#include "ranks.h"

#include "train/run.h"
#include "train/spikes.h"

enum { BATCH = 8, SEQ = 32, STEPS = 20, BAD_STEP = 14 };

static char data[300];

#define WATCHED                                                                                    \
    " data.order=sequential data.val_fraction=0 eval.every=0 spike.window=8 "                      \
    "optimizer.decay_steps=20 "
#define OFTEN " checkpoint.every=5"

/* ---- the band ------------------------------------------------------------------------------ */

static void a_band_ends_above_the_median(void **state)
{
    dh_band band = {.n_seen = 0};
    const double values[] = {100, 1, 2, 3, 4, 5}; /* the first is older than the window */
    for (size_t i = 0; i < 5; i++) dh_band_add(&band, 5, values[i]);
    assert_true(isfinite(dh_band_limit(&band, 5, 8)));
    assert_true(isinf(dh_band_limit(&band, 6, 8)));
    dh_band_add(&band, 5, values[5]);
    assert_true(fabs(dh_band_limit(&band, 5, 10) - (3 + 10 * 1.2)) < 1e-12);
    dh_band same = {.n_seen = 0};
    for (int i = 0; i < 4; i++) dh_band_add(&same, 4, 2.0);
    assert_true(fabs(dh_band_limit(&same, 4, 10) - (2 + 10 * .02)) < 1e-12);
}

static void a_band_comes_back_from_text(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_spikes made = {.n_back = 3}, read;
    char *text;
    for (int i = 0; i < 11; i++) {
        dh_band_add(&made.loss, 8, 1.0 / (i + 3));
        if (i < 5) dh_band_add(&made.grad_norm, 8, i);
    }
    assert_ok(&ctx, dh_spikes_print(&ctx, &made, 8, &text));
    assert_ok(&ctx, dh_spikes_parse(&ctx, text, strlen(text), 8, &read));
    assert_int_equal(read.n_back, 3);
    assert_int_equal(read.grad_norm.n_seen, 5);
    assert_true(dh_band_limit(&read.loss, 8, 8) == dh_band_limit(&made.loss, 8, 8));
    free(text);
    static const char *const bad[] = {"", "{", "[]",
                                      "{\"went_back\": -1, \"loss\": [], \"grad_norm\": []}",
                                      "{\"went_back\": 0, \"loss\": [\"1\"], \"grad_norm\": []}"};
    for (size_t i = 0; i < DH_COUNTOF(bad); i++)
        assert_fails(&ctx, dh_spikes_parse(&ctx, bad[i], strlen(bad[i]), 8, &read), DH_EFORMAT,
                     "bands of recent losses");
}

/* ---- runs ---------------------------------------------------------------------------------- */

/* Shakespeare, but what step BAD_STEP reads is made of its rarest characters. */
static int make_data(void **state)
{
    enum { N = 2 * STEPS * BATCH * SEQ };
    static char text[N];
    run_make_dir(state);
    FILE *in = fopen(RUN_WHOLE_TEXT, "r");
    assert_non_null(in);
    assert_int_equal(fread(text, 1, N, in), N);
    fclose(in);
    for (int i = 0; i < BATCH * SEQ; i++)
        text[(BAD_STEP - 1) * BATCH * SEQ + i] = "$3&XZ"[i * i % 5];
    snprintf(data, sizeof data, "%s/text", run_dir);
    FILE *out = fopen(data, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, N, out), N);
    return fclose(out);
}

static dh_status watched_run(dh_ctx *ctx, const char *settings, const char *out,
                             dh_train_result *result)
{
    char all[900];
    snprintf(all, sizeof all, "%s data.train=%s" WATCHED, settings, data);
    return run_job(ctx, RUN_GPT2, all, out, result);
}

static bool has_checkpoint(const char *out, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/checkpoints/%s", out, name);
    return dh_path_is_dir(path);
}

static const char *const meshes[] = {"ranks=1", "parallel.dp=2 parallel.zero=1",
                                     "parallel.tp=2 parallel.pp=2"};

static void a_run_stops_before_a_spike_is_saved(void **state)
{
    char out[300], settings[400];
    run_folder(out, sizeof out, "stop");
    for (size_t i = 0; i < DH_COUNTOF(meshes); i += test_stride(1, 2)) {
        dh_ctx ctx = DH_CTX_INIT;
        snprintf(settings, sizeof settings,
                 "%s spike.action=stop checkpoint.every=13 checkpoint.keep=0", meshes[i]);
        assert_fails(&ctx, watched_run(&ctx, settings, out, NULL), DH_EDIVERGED,
                     "step 14: the loss is");
        /* Alone it is the best there is; beside an older one it is the suspect. */
        assert_true(has_checkpoint(out, "step-000013"));
        assert_false(has_checkpoint(out, "step-000014"));
        run_remove(out);
        snprintf(settings, sizeof settings,
                 "%s spike.action=stop checkpoint.every=13 train.steps=4", meshes[i]);
        assert_ok(&ctx, watched_run(&ctx, settings, out, NULL));
        snprintf(settings, sizeof settings,
                 "%s spike.action=stop checkpoint.every=13 checkpoint.keep=0", meshes[i]);
        assert_fails(&ctx, watched_run(&ctx, settings, out, NULL), DH_EDIVERGED,
                     "step 14: the loss is");
        assert_true(has_checkpoint(out, "step-000004") && has_checkpoint(out, "suspect-000013"));
        assert_false(has_checkpoint(out, "step-000013"));
        run_remove(out);
    }
}

/* Up to `steps` first, then to the end. */
static void go_back_in_parts(const char *mesh, int steps, const char *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    char settings[400];
    snprintf(settings, sizeof settings, "%s spike.action=back train.steps=%d" OFTEN, mesh, steps);
    assert_ok(&ctx, watched_run(&ctx, settings, out, &result));
    snprintf(settings, sizeof settings, "%s spike.action=back" OFTEN, mesh);
    if (steps < STEPS) assert_ok(&ctx, watched_run(&ctx, settings, out, &result));
    assert_int_equal(result.steps, STEPS);
}

static int64_t left_out_samples(const char *out)
{
    char path[400], line[2048];
    int64_t n = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        const json_t *value = json_object_get(object, "left_out_samples");
        if (value) n = json_integer_value(value);
        json_decref(object);
    }
    fclose(f);
    return n;
}

/* Continued before the spike, the bands come from the checkpoint; behind it, what is left out. */
static void going_back_is_the_same_run_in_parts(void **state)
{
    char whole[300], parts[300];
    for (size_t i = 0; i < DH_COUNTOF(meshes); i += test_stride(1, 2)) {
        run_curve curve;
        run_folder(whole, sizeof whole, "whole");
        go_back_in_parts(meshes[i], STEPS, whole);
        assert_int_equal(left_out_samples(whole), (BAD_STEP - 10) * BATCH);
        run_read_curve(whole, &curve);
        for (int s = 0; s < STEPS; s++) assert_true(curve.loss[s] < 4.5); /* ln 65 = 4.17 */
        for (int steps = 10; steps <= 15; steps += 5) {
            run_folder(parts, sizeof parts, "parts");
            go_back_in_parts(meshes[i], steps, parts);
            if (!run_same_bytes(whole, parts, STEPS))
                fail_msg("%s: a run in parts at step %d is another run", meshes[i], steps);
        }
    }
}

/* ---- asked to stop meanwhile ----------------------------------------------------------------- */

static volatile sig_atomic_t stop;
static enum { NEVER, AS_IT_IS_LOOKED_FOR, AS_IT_IS_READ } stops;
static bool goes_back;

/* Linked with --wrap: all ranks come to both, the second with the path of what is gone back to. */
dh_status __real_dh_run_resume(dh_ctx *ctx, dh_run *run, bool *resumed);
dh_status __wrap_dh_run_resume(dh_ctx *ctx, dh_run *run, bool *resumed);
dh_status __wrap_dh_run_resume(dh_ctx *ctx, dh_run *run, bool *resumed)
{
    const bool back = run->step > 0;
    if (back) __atomic_store_n(&goes_back, true, __ATOMIC_RELAXED);
    if (back && stops == AS_IT_IS_LOOKED_FOR) __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    return __real_dh_run_resume(ctx, run, resumed);
}

dh_status __real_dh_ckpt_open(dh_ctx *ctx, const char *dir, const char *path, bool checksums,
                              dh_ckpt **out);
dh_status __wrap_dh_ckpt_open(dh_ctx *ctx, const char *dir, const char *path, bool checksums,
                              dh_ckpt **out);
dh_status __wrap_dh_ckpt_open(dh_ctx *ctx, const char *dir, const char *path, bool checksums,
                              dh_ckpt **out)
{
    dh_status st = __real_dh_ckpt_open(ctx, dir, path, checksums, out);
    if (stops == AS_IT_IS_READ && __atomic_load_n(&goes_back, __ATOMIC_RELAXED))
        __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    return st;
}

/* Nothing of what is half read is saved, and the same command makes the run that nobody stopped. */
static void going_back_heeds_a_request_to_stop(void **state)
{
    char whole[300], out[300], settings[400];
    for (size_t i = 0; i < DH_COUNTOF(meshes); i += test_stride(1, 2)) {
        dh_ctx plain = DH_CTX_INIT;
        run_folder(whole, sizeof whole, "whole");
        go_back_in_parts(meshes[i], STEPS, whole);
        snprintf(settings, sizeof settings, "%s spike.action=back" OFTEN, meshes[i]);
        for (int at = AS_IT_IS_LOOKED_FOR; at <= AS_IT_IS_READ; at++) {
            dh_ctx ctx = {.rank = -1, .stop = &stop};
            run_folder(out, sizeof out, "stopped");
            stop = 0;
            goes_back = false;
            stops = at == AS_IT_IS_READ ? AS_IT_IS_READ : AS_IT_IS_LOOKED_FOR;
            assert_fails(&ctx, watched_run(&ctx, settings, out, NULL), DH_EINTERRUPTED,
                         "while going back from a spike");
            assert_true(goes_back);
            assert_false(has_checkpoint(out, "step-000013"));
            assert_true(has_checkpoint(out, "step-000010"));
            stops = NEVER;
            assert_ok(&plain, watched_run(&plain, settings, out, NULL));
            assert_int_equal(left_out_samples(out), (BAD_STEP - 10) * BATCH);
            if (!run_same_bytes(whole, out, STEPS))
                fail_msg("%s: a run that was stopped while it went back is another run", meshes[i]);
        }
    }
}

static void going_back_has_an_end(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "end");
    assert_fails(&ctx, watched_run(&ctx, "ranks=1 spike.action=back spike.most=0" OFTEN, out, NULL),
                 DH_EDIVERGED, "as often as spike.most allows");
    run_folder(out, sizeof out, "end");
    assert_fails(
        &ctx, watched_run(&ctx, "parallel.dp=2 spike.action=back checkpoint.every=19", out, NULL),
        DH_EDIVERGED, "no checkpoint yet to go back to");
    assert_fails(&ctx, watched_run(&ctx, "ranks=1 spike.action=back", out, NULL), DH_EINVAL,
                 "give checkpoint.every");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_band_ends_above_the_median),
        cmocka_unit_test(a_band_comes_back_from_text),
        cmocka_unit_test(a_run_stops_before_a_spike_is_saved),
        cmocka_unit_test(going_back_is_the_same_run_in_parts),
        cmocka_unit_test(going_back_heeds_a_request_to_stop),
        cmocka_unit_test(going_back_has_an_end),
    };
    return cmocka_run_group_tests(tests, make_data, run_drop_dir);
}
