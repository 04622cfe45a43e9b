/* Layers of each virtual stage, left to costs (parallel.layer_split: auto). */
#include "ranks.h"

#include "train/recipe.h"
#include "train/simulation.h"

typedef struct found {
    char split[64];
    int64_t step_ns;
    uint64_t peak_bytes; /* most of any rank */
} found;

/* A model whose head takes as long as several of its layers. */
static dh_status step_of(dh_ctx *ctx, const char *settings, const char *split, found *f)
{
    dh_job *job;
    dh_cluster *cluster;
    dh_resolved *r = NULL;
    dh_sim *sim = NULL;
    char text[600];
    *f = (found){.step_ns = 0};
    snprintf(text, sizeof text,
             "model: {family: llama, n_layers: 8, width: 1024, n_heads: 16, ffn_width: 2816, "
             "vocab: 64000, max_seq: "
             "1024}\ndata: {train: none}\ntrain: {dtype: bf16, seq_len: 1024, batch: 8, "
             "micro_batch: 1}\nparallel.layer_split: \"%s\"\n%s",
             split, settings);
    assert_ok(ctx, dh_job_parse(ctx, text, strlen(text), "job", NULL, NULL, 0, &job));
    assert_ok(ctx, dh_cluster_find(ctx, "h100", &cluster));
    const dh_resolve_options how = {.cluster = cluster, .quiet = true};
    const dh_train_simulation plain = {.n_slow_nodes = 0};
    dh_status st = dh_job_resolve(ctx, job, &how, &r);
    if (st == DH_OK) {
        snprintf(f->split, sizeof f->split, "%s", r->job.layer_split);
        assert_string_equal(r->job.layer_split, r->recipe.layer_split);
        st = dh_train_simulate(ctx, r, &plain, &sim);
    }
    if (st == DH_OK) f->step_ns = sim->step_ns;
    for (size_t k = 0; st == DH_OK && k < sim->n_classes; k++)
        f->peak_bytes = DH_MAX(f->peak_bytes, sim->ranks[k].memory.peak_bytes);
    dh_sim_destroy(sim);
    dh_resolved_destroy(r);
    dh_cluster_destroy(cluster);
    dh_job_destroy(job);
    return st;
}

/* The shortest step of all splits with at least one layer a stage. */
static int64_t best_of_all(const char *settings, int n_stages, int left, const char *first)
{
    int64_t best = INT64_MAX;
    char split[64];
    if (n_stages == 1) {
        dh_ctx ctx = DH_CTX_INIT;
        found f;
        snprintf(split, sizeof split, "%s%d", first, left);
        return step_of(&ctx, settings, split, &f) == DH_OK ? f.step_ns : INT64_MAX;
    }
    for (int n = 1; n <= left - (n_stages - 1); n++) {
        snprintf(split, sizeof split, "%s%d,", first, n);
        best = DH_MIN(best, best_of_all(settings, n_stages - 1, left - n, split));
    }
    return best;
}

/* Against every split there is, of pipelines and of a folded placement. */
static void it_finds_the_best_split(void **state)
{
    static const struct {
        const char *settings;
        int n_stages;
    } jobs[] = {{"parallel: {pp: 4, schedule: 1f1b}\nstrategy: sequential\n", 4},
                {"parallel: {pp: 2, tp: 2}\nstrategy: dhelix\n", 4},
                {"parallel: {pp: 2, schedule: zb-v}\nstrategy: sequential\n", 4},
                {"parallel: {pp: 3, schedule: zb-auto}\nstrategy: sequential\n", 3}};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        if (test_is_thin() && i > 1) break;
        dh_ctx ctx = DH_CTX_INIT;
        found own, even;
        assert_ok(&ctx, step_of(&ctx, jobs[i].settings, "auto", &own));
        assert_ok(&ctx, step_of(&ctx, jobs[i].settings, "*", &even));
        const int64_t best = best_of_all(jobs[i].settings, jobs[i].n_stages, 8, "");
        printf("  %s: %s %.3f ms, even %.3f, best of all %.3f\n", jobs[i].settings, own.split,
               (double)own.step_ns * 1e-6, (double)even.step_ns * 1e-6, (double)best * 1e-6);
        assert_true(own.step_ns < even.step_ns);
        assert_true((double)own.step_ns <= 1.01 * (double)best);
    }
}

/* The same search gives the same split, and the split it gives has the step it was chosen by. */
static void it_says_what_it_took(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    found first, again, given;
    const char *settings = "parallel: {pp: 4, schedule: interleaved-1f1b, virtual_stages: 2}\n";
    assert_ok(&ctx, step_of(&ctx, settings, "auto", &first));
    assert_ok(&ctx, step_of(&ctx, settings, "auto", &again));
    assert_string_equal(first.split, again.split);
    assert_ok(&ctx, step_of(&ctx, settings, first.split, &given));
    assert_int_equal(first.step_ns, given.step_ns);
    assert_ok(&ctx, step_of(&ctx, "strategy: sequential\n", "auto", &given));
    assert_string_equal(given.split, "*");
}

/* More stages than layers have no split; the error is that of the even one. */
static void what_cannot_be_split_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    found f;
    assert_fails(&ctx, step_of(&ctx, "parallel: {pp: 16}\nstrategy: sequential\n", "auto", &f),
                 DH_EINVAL, "layer split");
}

/* Real ranks take the split, and it changes no loss by more than another grouping of sums does. */
static void runs_take_it(void **state)
{
    char out[2][300];
    run_curve curve[2];
    static const char *const splits[] = {"1,3", "auto"};
    for (int k = 0; k < 2; k++) {
        char settings[200];
        snprintf(settings, sizeof settings,
                 "parallel.pp=2 parallel.layer_split=%s train.steps=4 strategy=sequential",
                 splits[k]);
        run_folder(out[k], sizeof out[k], "split");
        if (k)
            run_compared_of(RUN_LLAMA, settings, out[k], &curve[k]);
        else
            run_reference_of(RUN_LLAMA, settings, out[k], &curve[k]);
    }
    assert_true(run_distance(&curve[0], &curve[1], 0) <= 5e-5);
    for (int k = 0; k < 2; k++) run_remove(out[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_finds_the_best_split),
        cmocka_unit_test(it_says_what_it_took),
        cmocka_unit_test(what_cannot_be_split_is_refused),
        cmocka_unit_test(runs_take_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
