/* Profiles of jobs: medians out of samples of known ranks; a job measured on threads, found
 * and used by later runs, refused where it does not fit; matrices from elsewhere. */
#include "train/ranks.h"

#include "train/profile.h"
#include "train/profiling.h"
#include "train/recipe.h"

static const char rest[] =
    "data: {train: tests/data/corpora/tinyshakespeare/input.txt, tokenizer: chars}\n"
    "train: {steps: 4, batch: 8, micro_batch: 1, seq_len: 32, threads: 1}\n"
    "eval: {every: 0}\n"
    "parallel: {timeout_s: 60}\n";

/* A job, with "key=value" changes that a NULL ends. */
static dh_job *job_of(const char *model, const char *const *changes)
{
    dh_ctx ctx = DH_CTX_INIT;
    char text[2048];
    size_t n = 0;
    dh_job *job;
    while (changes[n]) n++;
    snprintf(text, sizeof text, "%s%s", model, rest);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "profile.yaml", ".", changes, n, &job));
    return job;
}
#define JOB(model, ...) job_of((model), (const char *const[]){__VA_ARGS__, NULL})

static dh_profile *measure(dh_job *job)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_profile_options options = {.quiet = true, .samples = 3};
    dh_profile *p;
    assert_ok(&ctx, dh_profile_measure(&ctx, job, &options, &p));
    return p;
}

/* ---- samples ------------------------------------------------------------------------------ */

/* Two tensor-parallel pairs; sample s of probe i on rank r is as the test says. */
static void samples_become_medians(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job = JOB(RUN_GPT2, "ranks=4", "parallel.tp=2");
    job->model.vocab = 65;
    const dh_pass_list none = {.n = 0};
    dh_probe_job probe;
    dh_program *programs[4];
    dh_rank_samples ranks[4];
    int64_t *ns[4];
    dh_profile *p;
    enum { N = 5 };
    assert_ok(&ctx, dh_probe_job_init(&ctx, job, &none, &probe));
    for (int r = 0; r < 4; r++) {
        dh_session_spec spec = probe.spec;
        spec.rank = r;
        assert_ok(&ctx, dh_session_program(&ctx, &spec, DH_MODE_TRAIN, 0, &programs[r]));
        const size_t n = programs[r]->probes.n * 2 * N;
        ns[r] = calloc(n, sizeof *ns[r]);
        assert_non_null(ns[r]);
        /* Ranks 0 and 1 are one pair, 2 and 3 the other; 1 and 3 come 1000 earlier and wait. */
        for (size_t i = 0; i < n; i++)
            ns[r][i] = 5000 + 100 * (int64_t)(i % N) + (r % 2) * 1000 + (r / 2) * 10;
        ranks[r] = (dh_rank_samples){programs[r], ns[r], r};
    }
    assert_ok(&ctx, dh_profile_create(&ctx, "p", &p));
    assert_ok(&ctx, dh_profile_reduce(&ctx, ranks, 4, N, p));
    assert_true(p->pairs.n > 20);
    for (size_t i = 0; i < p->ops.n; i++) {
        const dh_profile_op *op = &p->ops.at[i];
        if (op->stream == 0) { /* all four: 5 values of each from 5000 to 6410 */
            assert_true(op->n_samples % N == 0 && op->n_samples >= N);
            continue;
        }
        if (!op->forward && !op->backward) continue; /* of data-parallel groups, of the world */
        assert_int_equal(op->n_samples, 2 * N);      /* a pair of ranks counts once */
        assert_in_range(op->solo_ns, 5200, 5210);
        assert_in_range(op->spread_ns, 100, 300);
    }
    const uint32_t norm = dh_profile_find_op(p, programs[0]->probe_classes.at[0].key);
    assert_int_equal(p->ops.at[norm].n_samples, 4 * N);
    assert_in_range(p->ops.at[norm].solo_ns, 5400, 6010);
    for (int r = 0; r < 4; r++) {
        dh_program_destroy(programs[r]);
        free(ns[r]);
    }
    dh_profile_destroy(p);
    dh_probe_job_fini(&probe);
    dh_job_destroy(job);
    (void)state;
}

/* ---- measuring ---------------------------------------------------------------------------- */

/* Every operator of the whole job has a measured time, and every pair that can overlap. */
static void check_complete(const dh_job *job, const dh_profile *p)
{
    size_t n_pairs = 0;
    for (size_t i = 0; i < p->ops.n; i++) {
        assert_int_equal(p->ops.at[i].source, DH_PAIR_MEASURED);
        assert_true(p->ops.at[i].n_samples >= 3 && p->ops.at[i].solo_ns >= 1);
        assert_true(p->ops.at[i].estimate_ns >= 1);
    }
    for (uint32_t f = 0; f < p->ops.n; f++)
        for (uint32_t b = 0; b < p->ops.n; b++) {
            const bool pairs = dh_profile_find_pair(p, f, b) != DH_NONE;
            if (pairs) assert_int_not_equal(p->ops.at[f].stream, p->ops.at[b].stream);
            n_pairs += pairs;
        }
    assert_int_equal(n_pairs, p->pairs.n);
    if (job->tp * job->cp * job->ep > 1) assert_true(n_pairs > 30);
    assert_true(p->launch_ns >= 1);
}

static void jobs_are_measured(void **state)
{
    static const char *const meshes[][3] = {
        {"ranks=1"},
        {"parallel.tp=2"},
        {"parallel.cp=2", "topology.nodes=2", "links.cross.gbps=8"},
        {"parallel.pp=2", "strategy=round-robin"},
        {"ranks=4", "parallel.tp=2", "parallel.zero=1"},
        {"parallel.ep=2", "ranks=2"}};
    static const char *const models[] = {RUN_GPT2,    RUN_LLAMA, RUN_GPT2,
                                         RUN_EXPERTS, RUN_GPT2,  RUN_EXPERTS};
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        if (test_leaves_out(i)) continue;
        const char *changes[4] = {meshes[i][0], meshes[i][1], meshes[i][2], NULL};
        print_message("%s\n", meshes[i][0]);
        dh_job *job = job_of(models[i], changes);
        dh_profile *p = measure(job);
        check_complete(job, p);
        dh_profile_destroy(p);
        dh_job_destroy(job);
    }
    (void)state;
}

/* ---- finding ------------------------------------------------------------------------------ */

static char folder[200];

static int in_own_cache(void **state)
{
    test_tmpdir(folder, sizeof folder);
    (void)state;
    return setenv("XDG_CACHE_HOME", folder, 1);
}

static int remove_cache(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    (void)state;
    return dh_dir_remove(&ctx, folder) != DH_OK;
}

static void costs_are_of(dh_job *job, const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_costs *costs;
    job->model.vocab = 65;
    dh_profile *rests_on;
    assert_ok(&ctx, dh_job_costs(&ctx, job->arena, job, &costs, &rests_on));
    dh_profile_destroy(rests_on);
    if (!strstr(costs->name, part)) fail_msg("\"%s\" lacks \"%s\"", costs->name, part);
    dh_job_destroy(job);
}

static void refused(dh_job *job, const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p;
    job->model.vocab = 65;
    assert_fails(&ctx, dh_profile_find(&ctx, job, &p), DH_EINVAL, part);
    dh_job_destroy(job);
}

static void later_runs_find_it(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str path = DH_STR_INIT;
    char named[400];
    dh_job *job = JOB(RUN_GPT2, "parallel.tp=2");
    dh_profile *p = measure(job);
    assert_ok(&ctx, dh_profile_place(&ctx, job, p, &path));
    assert_memory_equal(path.text, folder, strlen(folder));
    assert_ok(&ctx, dh_profile_store(&ctx, p, path.text));
    snprintf(named, sizeof named, "profile=%s", path.text);

    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2"), path.text);
    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2", "model.n_layers=2", "train.batch=4"), path.text);
    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2", named), path.text);
    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2", "profile=none"), "estimates");
    costs_are_of(JOB(RUN_GPT2, "parallel.cp=2"), "estimates");
    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2", "links.local.gbps=1"), "estimates");
    refused(JOB(RUN_GPT2, "parallel.tp=2", "train.dtype=bf16", named),
            "train.dtype is f32 there and bf16 here");
    refused(JOB(RUN_GPT2, "parallel.cp=2", named), "parallel.tp is 2 there and 1 here");
    refused(JOB(RUN_GPT2, "parallel.tp=2", "links.local.gbps=1", named),
            "links.local is not paced there");
    refused(JOB(RUN_GPT2, "parallel.tp=2", "model.width=64", named), "classes of operators");

    /* Another model beside it; what was there stays. */
    dh_job *other = JOB(RUN_GPT2, "parallel.tp=2", "model.width=64");
    dh_profile *q = measure(other), *both;
    assert_ok(&ctx, dh_profile_store(&ctx, q, path.text));
    assert_ok(&ctx, dh_profile_read(&ctx, path.text, &both));
    assert_true(both->ops.n > p->ops.n && both->ops.n > q->ops.n);
    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2", named), path.text);
    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2", "model.width=64", named), path.text);
    dh_profile_destroy(both);

    /* Damaged, it is no reason not to train; named, it is. */
    dh_profile *here;
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path.text, "{}", 2));
    costs_are_of(JOB(RUN_GPT2, "parallel.tp=2"), "estimates");
    dh_job *damaged = JOB(RUN_GPT2, "parallel.tp=2", named);
    assert_fails(&ctx, dh_profile_find(&ctx, damaged, &here), DH_EFORMAT, "not a profile");
    dh_profile_destroy(p);
    dh_profile_destroy(q);
    dh_job_destroy(job);
    dh_job_destroy(other);
    dh_job_destroy(damaged);
    dh_str_fini(&path);
    (void)state;
}

/* ---- every strategy ------------------------------------------------------------------------ */

static bool knows(const dh_profile *p, const char *op)
{
    for (size_t i = 0; i < p->ops.n; i++)
        if (strncmp(p->ops.at[i].key, op, strlen(op)) == 0) return true;
    return false;
}

/* Whatever the job's strategy, a profile has what any of them runs. */
static void all_strategies_are_measured(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    dh_str path = DH_STR_INIT;
    bool complete;
    dh_job *job = JOB(RUN_GPT2, "parallel.tp=4", "strategy=auto");
    dh_profile *p = measure(job), *found;
    assert_true(knows(p, "all_gather ") && knows(p, "ring_exchange "));
    assert_true(knows(p, "ring_exchange_both "));
    assert_ok(&ctx, dh_profile_is_complete(&ctx, job, &complete));
    assert_false(complete);
    assert_ok(&ctx, dh_profile_place(&ctx, job, p, &path));
    assert_ok(&ctx, dh_profile_store(&ctx, p, path.text));
    assert_ok(&ctx, dh_profile_is_complete(&ctx, job, &complete));
    assert_true(complete);
    char named[400];
    snprintf(named, sizeof named, "profile=%s", path.text);
    for (size_t i = 0; i < n; i++) { /* a file that is named must know all */
        char strategy[100];
        if (dh_strategy_runs(&ctx, &rows[i]) != DH_OK) { /* simulated only */
            dh_ctx_reset(&ctx);
            continue;
        }
        snprintf(strategy, sizeof strategy, "strategy=%s", rows[i].name);
        dh_job *one = JOB(RUN_GPT2, "parallel.tp=4", strategy, named);
        one->model.vocab = 65;
        assert_ok(&ctx, dh_profile_find(&ctx, one, &found));
        dh_profile_destroy(found);
        dh_job_destroy(one);
    }
    dh_profile_destroy(p);
    dh_job_destroy(job);
    dh_str_fini(&path);
}

static dh_profile *found_after(dh_job *job)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_profile_options options = {.quiet = true, .samples = 3};
    dh_profile *p;
    assert_ok(&ctx, dh_profile_complete(&ctx, job, &options));
    assert_ok(&ctx, dh_profile_find(&ctx, job, &p));
    assert_non_null(p);
    return p;
}

/* What is missing is measured once; another size of model needs more. */
static void missing_operators_are_measured(void **state)
{
    dh_job *job = JOB(RUN_GPT2, "parallel.tp=2", "strategy=auto", "profile=measure");
    dh_job *wider = JOB(RUN_GPT2, "parallel.tp=2", "model.width=64", "profile=measure");
    job->model.vocab = wider->model.vocab = 65;
    dh_profile *first = found_after(job), *again = found_after(job), *more = found_after(wider);
    assert_true(dh_profile_hash(first) == dh_profile_hash(again));
    assert_true(more->ops.n > first->ops.n);
    dh_profile_destroy(first);
    dh_profile_destroy(again);
    dh_profile_destroy(more);
    /* A rank that is this thread leaves it on the cores it had. */
    dh_job *alone = JOB(RUN_GPT2, "ranks=1", "profile=measure");
    alone->model.vocab = 65;
    dh_profile_destroy(found_after(alone));
    dh_job_destroy(job);
    dh_job_destroy(wider);
    dh_job_destroy(alone);
}

/* ---- importing ---------------------------------------------------------------------------- */

static void published_matrix_is_imported(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_oef_matrix *m;
    dh_profile *p;
    dh_job *job = JOB(RUN_GPT2, "parallel.tp=2");
    assert_ok(&ctx, dh_oef_matrix_read(
                        &ctx, "tests/data/published/dhelix_h100_pairwise_oef_matrix.csv", &m));
    assert_ok(&ctx, dh_profile_import(&ctx, job, m, "h100", &p));
    size_t n_unusual = 0;
    for (size_t i = 0; i < p->pairs.n; i++) {
        const dh_profile_pair *pair = &p->pairs.at[i];
        const dh_profile_op *f = &p->ops.at[pair->a], *b = &p->ops.at[pair->b];
        const double oef = dh_oef(f->solo_ns, b->solo_ns, DH_MAX(pair->a_ns, pair->b_ns));
        assert_int_equal(pair->source, DH_PAIR_IMPORTED);
        assert_int_equal(f->source, DH_PAIR_MODELLED);
        n_unusual += dh_oef_unusual(oef);
        /* intra_ag beside gemm_mlp_c: 1.32, and kept. */
        const bool is = strcmp(f->label, "linear h") == 0 && strncmp(b->key, "all_gather", 10) == 0;
        if (is) assert_true(fabs(oef - 1.32) < 0.01);
    }
    assert_true(n_unusual > 0);
    dh_profile_destroy(p);
    static const char mine[] = "op,norm_dgrad dx\nall_gather n1.all,0.5\n";
    static const char nobodys[] = "op,y\nx,0.5\n";
    dh_oef_matrix *small;
    assert_ok(&ctx, dh_oef_matrix_parse(&ctx, mine, strlen(mine), "mine", &small));
    assert_ok(&ctx, dh_profile_import(&ctx, job, small, "mine", &p));
    assert_int_equal(p->pairs.n, 1);
    dh_profile_destroy(p);
    dh_oef_matrix_destroy(small);
    assert_ok(&ctx, dh_oef_matrix_parse(&ctx, nobodys, strlen(nobodys), "nobody's", &small));
    assert_fails(&ctx, dh_profile_import(&ctx, job, small, "nobody's", &p), DH_EMISSING,
                 "none of the job's pairs");
    dh_oef_matrix_destroy(small);
    dh_oef_matrix_destroy(m);
    dh_job_destroy(job);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_become_medians),
        cmocka_unit_test(jobs_are_measured),
        cmocka_unit_test_setup_teardown(later_runs_find_it, in_own_cache, remove_cache),
        cmocka_unit_test_setup_teardown(all_strategies_are_measured, in_own_cache, remove_cache),
        cmocka_unit_test_setup_teardown(missing_operators_are_measured, in_own_cache, remove_cache),
        cmocka_unit_test(published_matrix_is_imported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
