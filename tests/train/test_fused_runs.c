/* Optimizers fused with the sums before them and the gathers behind them (optimizer.fuse) leave the
 * bits of those that wait for the norm of all gradients: losses, norms, weights and moments. */
#include "ranks.h"

#include "train/recipe.h"
#include "train/simulation.h"

static const struct {
    const char *model, *settings;
    bool deep;
} runs[] = {
    {RUN_GPT2, "parallel.dp=2 parallel.zero=1", false},
    {RUN_LLAMA, "parallel.dp=2 parallel.tp=2 parallel.zero=2 train.dtype=bf16", false},
    {RUN_GPT2,
     "parallel.pp=2 parallel.dp=2 parallel.schedule=zb-v parallel.zero=1 "
     "parallel.bucket_mb=0.02",
     false},
    {RUN_LLAMA, "parallel.dp=4 parallel.zero=1 parallel.gather=forward", true},
    {RUN_LLAMA, "parallel.dp=2 parallel.cp=2 parallel.zero=2 parallel.bucket_mb=0.02", true},
    {RUN_EXPERTS, "parallel.dp=4 parallel.ep=2 parallel.zero=1 train.dtype=bf16", true},
    {RUN_LLAMA, "parallel.pp=2 parallel.schedule=dualpipe parallel.dp=2 parallel.zero=1", true},
    {RUN_GPT2,
     "parallel.pp=2 parallel.virtual_stages=2 parallel.schedule=interleaved-1f1b "
     "parallel.dp=2 parallel.zero=2 strategy=sequential",
     true},
};

static const char *const fused[] = {"1", "4"};

/* By settings that clip nothing, everything, or what lies above a norm. */
static void expect_same(size_t run, const char *fuse, double clip, run_curve *curve)
{
    char settings[400], out[2][300];
    run_curve own;
    for (int k = 0; k < 2; k++) {
        snprintf(settings, sizeof settings,
                 "%s train.steps=8 eval.every=8 optimizer.grad_clip=%.17g optimizer.fuse=%s",
                 runs[run].settings, clip, k ? fuse : "off");
        run_folder(out[k], sizeof out[k], k ? "fused" : "waits");
        if (k)
            run_compared_of(runs[run].model, settings, out[k], &own);
        else
            run_reference_of(runs[run].model, settings, out[k], curve);
    }
    double norms = 0;
    for (int i = 0; i < curve->n; i++) norms = fmax(norms, fabs(curve->norm[i] - own.norm[i]));
    if (run_distance(curve, &own, 0) != 0 || curve->last != own.last || norms != 0 ||
        !run_same_bytes(out[0], out[1], curve->n))
        fail_msg("%s: other bits", settings);
    for (int k = 0; k < 2; k++) run_remove(out[k]);
}

static void fusing_changes_no_bit(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        run_curve curve;
        int n_above = 0;
        if (runs[i].deep && test_is_thin()) continue;
        for (size_t f = 0; f < DH_COUNTOF(fused); f++)
            if (!test_is_thin() || f != i % 2) expect_same(i, fused[f], 0, &curve);
        const double some = curve.norm[curve.n / 2] * 1.0001;
        expect_same(i, fused[i % 2], some, &curve);
        for (int k = 0; k < curve.n; k++) n_above += curve.norm[k] > some;
        if (n_above == 0 || n_above == curve.n)
            fail_msg("%s: %d of %d steps clip", runs[i].settings, n_above, curve.n);
        if (test_is_thin() && i > 0) continue;
        expect_same(i, "2", 0.02, &curve);
        expect_same(i, "2", 1e6, &curve);
    }
}

static void refused(const char *settings, const char *message)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "refused");
    assert_fails(&ctx, run_job(&ctx, RUN_GPT2, settings, out, NULL), DH_EINVAL, message);
}

static void what_cannot_be_fused_is_refused(void **state)
{
    refused("parallel.dp=2 optimizer.fuse=2", "parallel.zero 0 does not have: 1 or 2 would do");
    refused("parallel.dp=2 parallel.zero=3 optimizer.fuse=2", "parallel.zero 3 does not have");
    refused("parallel.dp=2 parallel.pp=2 parallel.zero=1 optimizer.fuse=2 "
            "optimizer.post_validation=true",
            "two ways of stepping before the norm");
    refused("optimizer.fuse=3", "optimizer.fuse");
}

/* ---- the search ------------------------------------------------------------------------------ */

static dh_resolved *resolve(const char *settings, dh_cluster **cluster, dh_job **job)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_resolved *resolved;
    char text[600];
    snprintf(text, sizeof text,
             "model: {family: gpt2, n_layers: 4, width: 1024, n_heads: 16, vocab: 8192, max_seq: "
             "512}\ndata: {train: none}\ntrain: {dtype: bf16, seq_len: 512, batch: 8, "
             "micro_batch: 1}\nparallel: {dp: 8}\n%s",
             settings);
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", NULL, NULL, 0, job));
    assert_ok(&ctx, dh_cluster_find(&ctx, "h100", cluster));
    const dh_resolve_options how = {.cluster = *cluster, .quiet = true};
    assert_ok(&ctx, dh_job_resolve(&ctx, *job, &how, &resolved));
    return resolved;
}

static int64_t fused_by(const char *settings, const dh_fusions **fusions, dh_fusions *copy)
{
    dh_cluster *cluster;
    dh_job *job;
    dh_resolved *r = resolve(settings, &cluster, &job);
    const int64_t pieces = r->recipe.fuse;
    if (r->fusions) *copy = *r->fusions;
    *fusions = r->fusions ? copy : NULL;
    dh_resolved_destroy(r);
    dh_cluster_destroy(cluster);
    dh_job_destroy(job);
    return pieces;
}

#define SEARCHED "strategy: coconet\n"

/* Without clipping the pipeline is the shortest, and whatever is chosen is no longer than the plain
 * optimizer; who says what, or has nothing to fuse, is not searched for. */
static void the_search_finds_it(void **state)
{
    const dh_fusions *f;
    dh_fusions seen;
    const int64_t found =
        fused_by(SEARCHED "optimizer: {grad_clip: 0}\nparallel.zero: 1\n", &f, &seen);
    assert_non_null(f);
    assert_true(found > 0 && f->at[f->best].pieces == found);
    for (size_t i = 0; i < DH_N_FUSIONS; i++)
        assert_true(!f->at[i].fits || f->at[f->best].step_ns <= f->at[i].step_ns);
    assert_true(f->at[f->best].step_ns < f->at[0].step_ns);
    fused_by(SEARCHED "parallel.zero: 1\n", &f, &seen);
    assert_non_null(f);
    assert_true(f->at[f->best].step_ns <= f->at[0].step_ns);
    static const char *const closed[] = {"parallel.zero: 1\n", SEARCHED,
                                         SEARCHED "optimizer: {fuse: off}\nparallel.zero: 1\n"};
    for (size_t i = 0; i < DH_COUNTOF(closed); i++) {
        assert_int_equal(fused_by(closed[i], &f, &seen), 0);
        assert_null(f);
    }
    assert_int_equal(fused_by("optimizer: {fuse: 4}\nparallel.zero: 2\n", &f, &seen), 4);
    assert_null(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fusing_changes_no_bit),
        cmocka_unit_test(what_cannot_be_fused_is_refused),
        cmocka_unit_test(the_search_finds_it),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
