/* What is said of steps over several meshes before they run: the documents and passes of a run's
 * own steps, times that are those of its programs, and memory that they have. */
#include "ranks.h"

#include "train/run.h"
#include "train/simulation.h"
#include "train/switched.h"

static char data_dir[300];

static int make_data(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t seed = test_seed("lengths to count");
    run_make_dir(state);
    snprintf(data_dir, sizeof data_dir, "%s/texts", run_dir);
    assert_ok(&ctx, dh_dir_create(&ctx, data_dir));
    for (int i = 0; i < 120; i++) {
        char path[400], text[40];
        const size_t n = 2 + test_rand(&seed) % (test_rand(&seed) % 4 ? 8 : 31);
        for (size_t k = 0; k < n; k++) text[k] = (char)('a' + test_rand(&seed) % 20);
        snprintf(path, sizeof path, "%s/%03d.txt", data_dir, i);
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
    }
    return 0;
}

#define TRAIN                                                                                      \
    "data.train=%s data.tokenizer=bytes data.val_fraction=0 model.vocab=256 eval.every=0 "         \
    "train.batch=8 data.packing=%s %s"

static dh_resolved *resolve(const char *packing, const char *more, dh_job **job)
{
    dh_ctx ctx = DH_CTX_INIT;
    char words[1000];
    const char *sets[32];
    size_t n = 0;
    dh_resolved *resolved;
    snprintf(words, sizeof words, TRAIN, data_dir, packing, more);
    char *at = NULL;
    for (char *w = strtok_r(words, " ", &at); w; w = strtok_r(NULL, " ", &at)) sets[n++] = w;
    static const char text[] = RUN_GPT2 "train: {steps: 20, micro_batch: 1, seq_len: 32}\n"
                                        "profile: none\n";
    const dh_resolve_options how = {.quiet = true};
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", ".", sets, n, job));
    assert_ok(&ctx, dh_job_resolve(&ctx, *job, &how, &resolved));
    return resolved;
}

static dh_switched price(const dh_resolved *job)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds;
    dh_switched s;
    char reading[DH_READING_BYTES];
    assert_ok(&ctx, dh_switched_documents(&ctx, job, NULL, reading, &ds));
    assert_string_equal(reading, "the job's data");
    if (dh_switched_simulate(&ctx, job, ds, &s) != DH_OK) fail_msg("%s", ctx.message);
    dh_dataset_close(ds);
    return s;
}

/* Of all steps' lines. */
static double sum_of(const char *out, const char *key, int64_t n_steps)
{
    char path[400], line[2048];
    double sum = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (int64_t i = 0; i < n_steps && fgets(line, sizeof line, f); i++) {
        json_t *object = json_loads(line, 0, NULL);
        sum += json_number_value(json_object_get(object, key));
        json_decref(object);
    }
    fclose(f);
    return sum;
}

/* The very steps that a run then makes are counted, and its slab is what was said. */
static void a_runs_own_steps_are_counted(void **state)
{
    static const char mesh[] = "ranks=4 parallel.zero=1 switch.groups=8,dp=4;32,tp=2,pp=2";
    char settings[1000], out[300];
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    dh_job *job;
    dh_resolved *resolved = resolve("group", mesh, &job);
    const dh_switched s = price(resolved);
    double passes = 0, docs = 0, bytes = 0;
    run_folder(out, sizeof out, "run");
    snprintf(settings, sizeof settings, TRAIN " train.steps=%lld", data_dir, "group", mesh,
             (long long)s.n_steps);
    if (run_job(&ctx, RUN_GPT2, settings, out, &result) != DH_OK) fail_msg("%s", ctx.message);
    for (size_t i = 0; i < s.n; i++) {
        const dh_switched_group *g = &s.groups[i];
        passes += g->passes * (double)s.n_steps;
        docs += g->load.docs * (double)s.n_steps;
        bytes += (double)(g->moves.params_bytes + g->moves.grads_bytes) * (double)s.n_steps;
    }
    assert_true(s.n_steps > 2 && s.groups[0].at_home && !s.groups[1].at_home);
    assert_true(fabs(passes - sum_of(out, "passes", s.n_steps)) < 1e-6);
    assert_true(fabs(docs - sum_of(out, "documents", s.n_steps)) < 1e-6);
    assert_true(s.groups[1].passes >= 1); /* every step has a long one */
    assert_true(fabs(bytes - sum_of(out, "switch_bytes", s.n_steps)) < 1e-6);
    assert_true(s.peak_bytes <= result.slab_planned);
    assert_true((double)s.peak_bytes > 0.7 * (double)result.slab_planned);
    dh_resolved_destroy(resolved);
    dh_job_destroy(job);
}

/* One group at home, in one pass: the time of the packed step, whose optimizer may begin a little
 * earlier or later, with attention of documents for that of whole rows. */
static void one_group_takes_the_packed_step(void **state)
{
    static const char mesh[] = "parallel.dp=2 parallel.tp=2 switch.groups=32,dp=2,tp=2,"
                               "micro_batches=4";
    dh_ctx ctx = DH_CTX_INIT;
    const dh_train_simulation plain = {0};
    dh_job *job, *packed_job;
    dh_sim *sim;
    dh_resolved *resolved = resolve("group", mesh, &job);
    dh_resolved *packed = resolve("pack", "parallel.dp=2 parallel.tp=2", &packed_job);
    const dh_switched s = price(resolved);
    assert_ok(&ctx, dh_train_simulate(&ctx, packed, &plain, &sim));
    assert_true(s.groups[0].passes == 1 && s.groups[0].moves.params_bytes == 0);
    assert_true(fabs(s.step_ns / (double)sim->step_ns - 1) < 0.1);
    assert_true(fabs(s.packed_ns / s.step_ns - 1) < 1e-6);
    assert_fails(&ctx, dh_train_simulate(&ctx, resolved, &plain, &sim), DH_EUNSUPPORTED,
                 "several meshes");
    dh_sim_destroy(sim);
    dh_resolved_destroy(packed);
    dh_resolved_destroy(resolved);
    dh_job_destroy(packed_job);
    dh_job_destroy(job);
}

static void lengths_come_from_a_file(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[400], reading[DH_READING_BYTES];
    dh_dataset *ds;
    dh_job *job;
    dh_resolved *r = resolve("group", "ranks=2 switch.groups=8;32,tp=2", &job);
    snprintf(path, sizeof path, "%s/lengths", run_dir);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "5\n33\n\n40\n1\n", 11));
    assert_ok(&ctx, dh_switched_documents(&ctx, r, path, reading, &ds));
    assert_string_equal(reading, "a list of 4 lengths, one a line");
    assert_int_equal(dh_dataset_windows(ds, 32), 3); /* 32 of 33; 32 of 40; 7 and 4 */
    dh_dataset_close(ds);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "5\nlong\n", 7));
    assert_fails(&ctx, dh_switched_documents(&ctx, r, path, reading, &ds), DH_EFORMAT,
                 "lengths:2: \"long\"");
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "1\n", 2));
    assert_fails(&ctx, dh_switched_documents(&ctx, r, path, reading, &ds), DH_EINVAL,
                 "no document of two");
    dh_resolved_destroy(r);
    dh_job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_runs_own_steps_are_counted),
        cmocka_unit_test(one_group_takes_the_packed_step),
        cmocka_unit_test(lengths_come_from_a_file),
    };
    return cmocka_run_group_tests(tests, make_data, run_drop_dir);
}
