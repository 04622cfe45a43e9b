/* A request to stop is heeded in everything that takes long before a run's first step, and by what
 * only simulates and plans. */
#include "ranks.h"

#include "base/json_text.h"
#include "data/dataset.h"
#include "data/train_bpe.h"
#include "dhelix/tune.h"
#include "program/ranks.h"
#include "train/recipe.h"
#include "train/run.h"
#include "train/simulation.h"
#include "weights/checkpoint.h"
#include "weights/weights.h"

static volatile sig_atomic_t stop;

/* A context whose flag is set. */
static dh_ctx asked(void)
{
    stop = 1;
    return (dh_ctx){.rank = -1, .stop = &stop};
}

static dh_job *parse(const char *settings)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[400];
    dh_job *job;
    run_folder(out, sizeof out, "none");
    assert_ok(&ctx, run_parse(&ctx, RUN_LLAMA, settings, out, &job));
    return job;
}

static dh_resolved *resolve(const dh_job *job)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_resolved *r = NULL;
    const dh_resolve_options how = {.quiet = true};
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &how, &r));
    return r;
}

#define MESH "parallel.dp=2 parallel.tp=2 profile=none "

static void resolving_heeds_it(void **state)
{
    static const char *const settings[] = {MESH "strategy=auto",
                                           MESH "parallel.pp=2 parallel.layer_split=auto"};
    for (size_t i = 0; i < DH_COUNTOF(settings); i++) {
        dh_job *job = parse(settings[i]);
        dh_ctx ctx = asked();
        dh_resolved *r = NULL;
        const dh_resolve_options how = {.quiet = true};
        assert_fails(&ctx, dh_job_resolve(&ctx, job, &how, &r), DH_EINTERRUPTED, "stopped while");
        dh_resolved_destroy(resolve(job));
        dh_job_destroy(job);
    }
}

/* By one thread and by several. */
static void verifying_heeds_it(void **state)
{
    dh_job *job = parse(MESH "eval.every=1");
    dh_resolved *r = resolve(job);
    dh_session_spec spec = dh_train_session(&r->job, &r->recipe);
    dh_ctx ctx = asked(), plain = DH_CTX_INIT;
    assert_fails(&ctx, dh_session_verify_mesh(&ctx, &spec, NULL), DH_EINTERRUPTED,
                 "program was built");
    assert_ok(&plain, dh_session_verify_mesh(&plain, &spec, NULL));
    dh_program *programs[4];
    for (int rank = 0; rank < 4; rank++) {
        spec.rank = rank;
        assert_ok(&plain, dh_session_program(&plain, &spec, DH_MODE_TRAIN, 0, &programs[rank]));
    }
    dh_ctx_reset(&ctx);
    assert_fails(&ctx, dh_program_verify(&ctx, programs[0]), DH_EINTERRUPTED,
                 "program was verified");
    dh_ctx_reset(&ctx);
    assert_fails(&ctx, dh_ranks_replay(&ctx, (const dh_program *const *)programs, 4, NULL),
                 DH_EINTERRUPTED, "verified together");
    for (int rank = 0; rank < 4; rank++) dh_program_destroy(programs[rank]);
    dh_resolved_destroy(r);
    dh_job_destroy(job);
}

static void planning_heeds_it(void **state)
{
    dh_job *job = parse(MESH);
    dh_resolved *r = resolve(job);
    const dh_train_simulation how = {.n_slow_nodes = 0};
    dh_sim *sim;
    dh_tune *tune;
    dh_ctx ctx = asked();
    assert_fails(&ctx, dh_train_simulate(&ctx, r, &how, &sim), DH_EINTERRUPTED, "stopped while");
    ctx = asked();
    const dh_tune_options quiet = {.quiet = true, .n_threads = 2};
    assert_fails(&ctx, dh_tune_search(&ctx, job, &quiet, &tune), DH_EINTERRUPTED, "");
    assert_ptr_equal(ctx.stop, &stop);
    dh_resolved_destroy(r);
    dh_job_destroy(job);
}

static void characters_heed_it(void **state)
{
    const char *files[] = {run_text};
    dh_ctx ctx = asked(), plain = DH_CTX_INIT;
    dh_tokenizer *tok;
    assert_fails(&ctx, dh_dataset_chars(&ctx, files, 1, "text", &tok), DH_EINTERRUPTED,
                 "characters");
    assert_ok(&plain, dh_dataset_chars(&plain, files, 1, "text", &tok));
    dh_tokenizer_destroy(tok);
}

static void learning_merges_heeds_it(void **state)
{
    const char *files[] = {run_text};
    dh_ctx ctx = asked();
    dh_learned_bpe learned;
    assert_fails(&ctx, dh_bpe_learn(&ctx, files, 1, "text", 300, &learned), DH_EINTERRUPTED,
                 "words were counted");
}

/* With jansson's own allocator, as in other programs, and with ours. */
static void json_heeds_it(void **state)
{
    static const char text[] = "{\"a\": [1, 2, {\"b\": null}]}";
    dh_ctx ctx = asked(), plain = DH_CTX_INIT;
    json_t *document;
    assert_fails(&ctx, dh_json_read(&ctx, text, strlen(text), 0, NULL, &document), DH_EINTERRUPTED,
                 "JSON was read");
    assert_ok(&plain, dh_json_read(&plain, text, strlen(text), 0, NULL, &document));
    assert_non_null(document);
    json_decref(document);
}

/* ---- checkpoints ------------------------------------------------------------------------------ */

static bool stops_when_set_up;

/* Linked with --wrap: every rank comes here when it has its programs, before it looks for a state. */
dh_status __real_dh_saver_open(dh_ctx *ctx, dh_run *run);
dh_status __wrap_dh_saver_open(dh_ctx *ctx, dh_run *run);
dh_status __wrap_dh_saver_open(dh_ctx *ctx, dh_run *run)
{
    if (stops_when_set_up) __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    return __real_dh_saver_open(ctx, run);
}

#define SHORT " train.steps=2 checkpoint.every=1 checkpoint.keep=0 eval.every=0"

static dh_status train(dh_ctx *ctx, const char *settings, const char *out, dh_train_result *result)
{
    dh_job *job;
    const dh_train_options quiet = {.quiet = true};
    DH_TRY(run_parse(ctx, RUN_LLAMA, settings, out, &job));
    dh_status st = dh_train(ctx, job, &quiet, result);
    dh_job_destroy(job);
    return st;
}

/* NULL-terminated. */
static char *summary_of(const char *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[400], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/summary.json", out);
    assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 20, &text, &n));
    return text;
}

/* What is cut short is not taken for damage: nothing is set aside, and no older one is taken. What
 * the run said of itself stays. */
static void reading_checkpoints_heeds_it(void **state)
{
    static const char *const meshes[] = {"", "parallel.dp=2", "parallel.pp=2"};
    char out[300], settings[256], weights[400];
    dh_ckpt *ckpt;
    dh_train_result result;
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        dh_ctx plain = DH_CTX_INIT, ctx = asked();
        run_folder(out, sizeof out, "run");
        snprintf(settings, sizeof settings, "%s" SHORT, meshes[i]);
        assert_ok(&plain, train(&plain, settings, out, &result));
        assert_fails(&ctx, dh_ckpt_find_latest(&ctx, out, true, &ckpt), DH_EINTERRUPTED,
                     "stopped while");
        ctx = asked();
        stop = 0;
        stops_when_set_up = true;
        char *said = summary_of(out);
        snprintf(settings, sizeof settings, "%s" SHORT " train.steps=4", meshes[i]);
        assert_int_equal(train(&ctx, settings, out, &result), DH_EINTERRUPTED);
        assert_non_null(strstr(ctx.message, "while opening the checkpoint"));
        assert_null(strstr(ctx.message, "resuming from")); /* by the rank that looks for it */
        dh_ctx_reset(&ctx);
        stops_when_set_up = false;
        char *says = summary_of(out);
        assert_string_equal(says, said);
        free(says);
        free(said);
        assert_ok(&plain, dh_ckpt_find_latest(&plain, out, true, &ckpt));
        assert_int_equal(dh_ckpt_get_state(ckpt)->step, 2);
        dh_ckpt_close(ckpt);
        stop = 0;
        assert_ok(&ctx, (dh_ctx_reset(&ctx), train(&ctx, settings, out, &result)));
        assert_int_equal(result.resumed_at, 2);
        assert_int_equal(result.steps, 4);

        ctx = asked();
        dh_trained trained;
        const dh_trained_spec spec = {.path = out, .micro_batch = 1, .seq = 8};
        assert_fails(&ctx, dh_trained_open(&ctx, &spec, &trained), DH_EINTERRUPTED,
                     "stopped while");

        /* Weights of another run: each rank reads its own. */
        snprintf(weights, sizeof weights, "%s" SHORT " train.init_from=%s/checkpoints/step-000004",
                 meshes[i], out);
        run_folder(settings, sizeof settings, "other");
        stops_when_set_up = true;
        assert_fails(&ctx, train(&ctx, weights, settings, &result), DH_EINTERRUPTED,
                     "stopped while");
        stops_when_set_up = false;
    }
}

/* Between two steps the flag is the ranks' to agree on: what is saved then is saved whole. */
static void stopping_later_saves(void **state)
{
    char out[300];
    dh_train_result result;
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt *ckpt;
    run_folder(out, sizeof out, "later");
    assert_fails(&ctx,
                 run_once(&ctx, RUN_LLAMA, "parallel.dp=2 checkpoint.every=5", out, &result, true),
                 DH_EINTERRUPTED, "stopped after step 1 of 20");
    dh_ctx_reset(&ctx);
    assert_ok(&ctx, dh_ckpt_find_latest(&ctx, out, true, &ckpt));
    assert_int_equal(dh_ckpt_get_state(ckpt)->step, 1);
    dh_ckpt_close(ckpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resolving_heeds_it),
        cmocka_unit_test(verifying_heeds_it),
        cmocka_unit_test(planning_heeds_it),
        cmocka_unit_test(characters_heed_it),
        cmocka_unit_test(learning_merges_heeds_it),
        cmocka_unit_test(json_heeds_it),
        cmocka_unit_test(reading_checkpoints_heeds_it),
        cmocka_unit_test(stopping_later_saves),
    };
    static const struct CMUnitTest of_others[] = {cmocka_unit_test(json_heeds_it)};
    if (cmocka_run_group_tests(of_others, NULL, NULL) != 0) return 1;
    dh_json_watch_memory();
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
