/* A profile of the cuda device, here of one that the host plays: what a run takes from it, and what
 * a cluster file does (dhelix profile, then dhelix calibrate). The figures of a played device mean
 * nothing; that they arrive does. */
#include "ranks.h"

#include "costs/profile.h"
#include "describe/calibrated.h"
#include "run/cuda/device.h"
#include "run/cuda/host/host.h"
#include "train/link_sms.h"
#include "train/profile.h"
#include "train/profiling.h"

#define JOB                                                                                        \
    "model.n_layers=2 train.batch=4 train.steps=2 eval.every=2 eval.batches=1 train.seq_len=16 "   \
    "parallel.tp=2 device=cuda parallel.gpu_comm=nccl "

/* Measured once, for all tests. */
static dh_profile *profile;
static char profile_path[400], out[300];

static int measure(void **state)
{
    const dh_profile_options options = {.quiet = true, .samples = 3};
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    run_make_dir(state);
    run_folder(out, sizeof out, "run");
    snprintf(profile_path, sizeof profile_path, "%s/profile.json", run_dir);
    dh_host_set_devices(2);
    assert_ok(&ctx, run_parse(&ctx, RUN_GPT2, JOB, out, &job));
    assert_ok(&ctx, dh_profile_measure(&ctx, job, &options, &profile));
    assert_ok(&ctx, dh_profile_write(&ctx, profile, profile_path));
    dh_job_destroy(job);
    return 0;
}

static int drop(void **state)
{
    dh_profile_destroy(profile);
    return run_drop_dir(state);
}

/* ---- a run ------------------------------------------------------------------------------------
 */

static void everything_is_measured(void **state)
{
    size_t n_links = 0;
    for (size_t i = 0; i < profile->ops.n; i++) {
        assert_true(profile->ops.at[i].n_samples >= 3 && profile->ops.at[i].solo_ns >= 1);
        n_links += profile->ops.at[i].stream != DH_STREAM_COMPUTE;
    }
    assert_true(n_links >= 2 && profile->pairs.n > 30);
    print_message("  %zu operators, %zu of them on links, %zu pairs\n", profile->ops.n, n_links,
                  profile->pairs.n);
}

/* Communicators hold what is chosen by it, and products are planned for the rest. */
static void communicators_hold_what_a_profile_says(void **state)
{
    const dh_resolve_options quiet = {.quiet = true};
    dh_ctx ctx = DH_CTX_INIT;
    char settings[700], text[200];
    dh_job *job;
    dh_resolved *resolved;
    dh_link_choice choice;
    run_curve curve;
    snprintf(settings, sizeof settings, JOB "profile=%s parallel.gpu_comm_search=true",
             profile_path);
    assert_ok(&ctx, run_parse(&ctx, RUN_GPT2, settings, out, &job));
    assert_ok(&ctx, dh_job_resolve(&ctx, job, &quiet, &resolved));
    assert_ok(&ctx, dh_resolved_link_sms(&ctx, resolved, &choice));
    assert_true(choice.known && choice.sms.processors == 132 && choice.n_tried > 0);
    assert_true(choice.held_ns <= choice.full_ns);
    run_curve_of(RUN_GPT2, settings, out, &curve);
    assert_int_equal(dh_host_last_product().sms,
                     choice.held ? 132 - dh_link_sms_held(&choice.sms) : 0);
    bool is_one = false;
    for (int s = 0; choice.held && s < DH_N_STREAM; s++)
        is_one |= choice.sms.of[s] == dh_host_last_ctas();
    assert_true(is_one || !choice.held);
    dh_resolved_destroy(resolved);
    dh_job_destroy(job);
    dh_host_take_trouble(text);
    assert_string_equal(text, "");
    assert_int_equal(dh_host_n_objects(), 0);
}

/* ---- a cluster, by hand ------------------------------------------------------------------------
 */

static bool is_link(const dh_profile_op *op)
{
    return dh_stream_engine(op->stream) == DH_ENGINE_LOCAL;
}

static bool is_product(const dh_profile_op *op)
{
    static const char *const products[] = {"linear ", "linear_gelu ", "linear_dgrad ",
                                           "linear_dgrad_gelu ", "linear_wgrad "};
    for (size_t i = 0; i < DH_COUNTOF(products); i++)
        if (strncmp(op->key, products[i], strlen(products[i])) == 0) return true;
    return false;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The middle of what is gained by a product and a call on the link that run together. */
static double median_of_products_and_calls(const dh_profile *p, size_t *n)
{
    double *values = malloc((p->pairs.n + 1) * sizeof *values), median;
    *n = 0;
    for (size_t i = 0; i < p->pairs.n; i++) {
        const dh_profile_pair *pair = &p->pairs.at[i];
        const dh_profile_op *a = &p->ops.at[pair->a], *b = &p->ops.at[pair->b];
        if (!(is_product(a) && is_link(b)) && !(is_link(a) && is_product(b))) continue;
        const double together = (double)DH_MAX(pair->a_ns, pair->b_ns);
        values[(*n)++] =
            ((double)(a->solo_ns + b->solo_ns) - together) / (double)DH_MIN(a->solo_ns, b->solo_ns);
    }
    assert_true(*n > 2);
    qsort(values, *n, sizeof *values, by_value);
    median = *n % 2 ? values[*n / 2] : (values[*n / 2 - 1] + values[*n / 2]) / 2;
    free(values);
    return fmax(-10, fmin(median, 1.999)); /* what a cluster file may have */
}

static void what_is_measured_arrives_in_a_cluster(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char yaml[400];
    dh_calibrated c;
    dh_cluster *h100, *written;
    size_t n_pairs, n_found = 0;
    snprintf(yaml, sizeof yaml, "%s/played.yaml", run_dir);
    const dh_profile *p = profile;
    const double median = median_of_products_and_calls(p, &n_pairs);
    const char *const files[] = {profile_path};
    const dh_describe_calibrate_options how = {.like = "h100", .out = yaml};
    if (dh_calibrated_make(&ctx, files, 1, &how, &c) != DH_OK) fail_msg("%s", ctx.message);
    assert_int_equal(c.measured.pairs.n, p->pairs.n);
    for (size_t i = 0; i < c.fit.n_oefs; i++) {
        const dh_calibration_oef *o = &c.fit.oefs[i];
        n_found += o->n;
        if (o->classes[0] != DH_CLUSTER_GEMM || o->classes[1] != DH_CLUSTER_LOCAL) continue;
        assert_int_equal(o->n, n_pairs);
        assert_true(fabs(o->value - median) < 1e-9);
    }
    assert_int_equal(n_found, p->pairs.n); /* each counts once */
    assert_ok(&ctx, dh_cluster_find(&ctx, yaml, &written));
    assert_ok(&ctx, dh_cluster_find(&ctx, "h100", &h100));
    const double said = dh_cluster_oef(written, DH_CLUSTER_GEMM, DH_CLUSTER_LOCAL);
    print_message("  %zu pairs, %zu of products and calls: overlap effectiveness %.4f, h100 %.4f\n",
                  p->pairs.n, n_pairs, said,
                  dh_cluster_oef(h100, DH_CLUSTER_GEMM, DH_CLUSTER_LOCAL));
    assert_true(fabs(said - median) <= 5.1e-4); /* the file has three decimals */
    assert_true(dh_cluster_oef(written, DH_CLUSTER_GEMM, DH_CLUSTER_CROSS) ==
                dh_cluster_oef(h100, DH_CLUSTER_GEMM, DH_CLUSTER_CROSS)); /* not measured */
    dh_cluster_destroy(written);
    dh_cluster_destroy(h100);
    dh_calibrated_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_measured),
        cmocka_unit_test(communicators_hold_what_a_profile_says),
        cmocka_unit_test(what_is_measured_arrives_in_a_cluster),
    };
    setenv("DHELIX_GEMM_PEAK", "1e9", 1); /* the trial takes hours here */
    if (!dh_device_add(&dh_device_cuda)) return 1;
    return cmocka_run_group_tests(tests, measure, drop);
}
