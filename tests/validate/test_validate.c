/* Published tables: how they are read, how errors are counted, and that predictions stay as near
 * as they are said to be. */
#include "dh_test.h"
#include "validate/dhelix_job.h"
#include "validate/megatron.h"
#include "validate/table.h"

/* ---- reading ------------------------------------------------------------------------------ */

static void test_csv(void **state)
{
    static const char text[] = "# SOURCE: somewhere\n# more\nname,a,b\nx,1,2.5\n\n\"y, z\",3,\n";
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    dh_published t;
    const char *word;
    double real;
    int64_t whole;
    assert_ok(&ctx, dh_published_parse(&ctx, arena, text, sizeof text - 1, "t", &t));
    assert_string_equal(t.source, "SOURCE: somewhere");
    assert_int_equal(t.n_rows, 2);
    assert_int_equal(t.n_columns, 3);
    assert_ok(&ctx, dh_published_text(&ctx, &t, 1, "name", &word));
    assert_string_equal(word, "y, z");
    assert_ok(&ctx, dh_published_real(&ctx, &t, 0, "b", &real));
    assert_true(real == 2.5);
    assert_ok(&ctx, dh_published_int(&ctx, &t, 1, "a", &whole));
    assert_int_equal(whole, 3);
    assert_fails(&ctx, dh_published_int(&ctx, &t, 0, "b", &whole), DH_EFORMAT, "\"2.5\"");
    assert_fails(&ctx, dh_published_real(&ctx, &t, 1, "b", &real), DH_EFORMAT, "row 2");
    assert_fails(&ctx, dh_published_text(&ctx, &t, 0, "c", &word), DH_EMISSING, "no column c");
    dh_arena_destroy(arena);
}

static void test_csv_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    dh_published t;
    assert_fails(&ctx, dh_published_parse(&ctx, arena, "a,b\n1\n", 6, "t", &t), DH_EFORMAT,
                 "t:2: 1 cells");
    assert_fails(&ctx, dh_published_parse(&ctx, arena, "# a\n", 4, "t", &t), DH_EFORMAT,
                 "no line names the columns");
    assert_fails(&ctx, dh_published_read(&ctx, arena, "nothing", &t), DH_EMISSING, "nothing");
    dh_arena_destroy(arena);
}

/* ---- errors ------------------------------------------------------------------------------- */

static double error_by(dh_validation_measure measure, double predicted, double published)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_validation_table table = {.name = "t", .unit = "", .measure = measure};
    dh_validation v = {.arena = dh_arena_create(), .table = &table};
    assert_ok(&ctx, dh_validation_add(&ctx, &v, predicted, published, "row %d", 1));
    assert_string_equal(v.rows[0].label, "row 1");
    const double error = v.rows[0].error;
    dh_arena_destroy(v.arena);
    return error;
}

static void test_measures(void **state)
{
    assert_true(fabs(error_by(DH_VALIDATION_RELATIVE, 9, 10) - 10) < 1e-9);
    assert_true(fabs(error_by(DH_VALIDATION_RELATIVE, -11, -10) - 10) < 1e-9);
    assert_true(error_by(DH_VALIDATION_RELATIVE, 0, 0) == 0);
    assert_true(isinf(error_by(DH_VALIDATION_RELATIVE, 1, 0)));
    assert_true(fabs(error_by(DH_VALIDATION_POINTS, 40, 43.5) - 3.5) < 1e-9);
    assert_true(fabs(error_by(DH_VALIDATION_ABSOLUTE, 0.1, 0.2) - 0.1) < 1e-9);
}

/* An aim of the mean, an aim of no error at all, none. */
static void test_aims(void **state)
{
    const dh_validation_table none = {.name = "t"}, mean = {.name = "t", .aim = 3},
                              exact = {.name = "t", .exact = true};
    dh_validation v = {.table = &mean, .mean_error = 3, .max_error = 9};
    assert_false(dh_validation_has_aim(&none));
    assert_true(dh_validation_has_aim(&mean) && dh_validation_has_aim(&exact));
    assert_true(dh_validation_meets_aim(&v));
    v.mean_error = 3.1;
    assert_false(dh_validation_meets_aim(&v));
    v = (dh_validation){.table = &mean, .mean_error = 1, .n_orders = 2, .n_orders_right = 1};
    assert_false(dh_validation_meets_aim(&v));
    v = (dh_validation){.table = &exact, .mean_error = 0.001, .max_error = 0.1};
    assert_false(dh_validation_meets_aim(&v));
    v.mean_error = v.max_error = 0;
    assert_true(dh_validation_meets_aim(&v));
}

/* ---- tables --------------------------------------------------------------------------------- */

/* Every table has rows, every prediction is a number, every aim that is set is met. */
static void test_tables(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n;
    const dh_validation_table *tables = dh_validation_tables(&n);
    assert_true(n >= 10);
    for (size_t i = 0; i < n; i++) {
        dh_validation *v;
        assert_ok(&ctx, dh_validate(&ctx, &tables[i], NULL, &v));
        assert_true(v->n_rows >= 2);
        assert_non_null(strstr(v->source, "SOURCE"));
        double sum = 0;
        for (size_t r = 0; r < v->n_rows; r++) {
            assert_true(isfinite(v->rows[r].predicted) && isfinite(v->rows[r].error));
            assert_true(v->rows[r].error <= v->max_error);
            sum += v->rows[r].error;
        }
        assert_true(fabs(sum / (double)v->n_rows - v->mean_error) < 1e-9 * (1 + sum));
        if (dh_validation_has_aim(&tables[i]) && !dh_validation_meets_aim(v))
            fail_msg("%s: mean error %g, aim %g", tables[i].name, v->mean_error, tables[i].aim);
        dh_validation_destroy(v);
    }
}

static void test_find(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_validation_table *table;
    assert_ok(&ctx, dh_validation_find(&ctx, "zero-bubble", &table));
    assert_string_equal(table->name, "zero-bubble");
    assert_fails(&ctx, dh_validation_find(&ctx, "zero-buble", &table), DH_EMISSING,
                 "did you mean zero-bubble");
}

/* Rows of a group follow each other; a name given twice goes on with the group. */
static void test_groups(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_validation_table table = {.name = "t", .unit = ""};
    dh_validation v = {.arena = dh_arena_create(), .table = &table};
    assert_ok(&ctx, dh_validation_add(&ctx, &v, 1, 1, "alone"));
    for (int i = 0; i < 3; i++) {
        assert_ok(&ctx, dh_validation_group(&ctx, &v, "group %d", i / 2));
        assert_ok(&ctx, dh_validation_add(&ctx, &v, 1, 1, "row %d", i));
    }
    assert_null(v.rows[0].group);
    assert_string_equal(v.rows[1].group, "group 0");
    assert_ptr_equal(v.rows[1].group, v.rows[2].group);
    assert_string_equal(v.rows[3].group, "group 1");
    dh_arena_destroy(v.arena);
}

/* ---- jobs of the DHelix paper --------------------------------------------------------------- */

static double step_of(const dh_cluster *cluster, dh_paper_job *job, bool megatron, bool whole)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    dh_paper_costs ways;
    const dh_costs *costs = &ways.costs;
    double ns = 0;
    job->whole = whole;
    if (megatron)
        assert_ok(&ctx, dh_paper_megatron_costs(&ctx, arena, cluster, job, true, &ways));
    else
        assert_ok(&ctx, dh_cluster_costs(&ctx, arena, cluster, &costs));
    assert_ok(&ctx, dh_paper_simulate(&ctx, cluster, costs, job, &dh_paper_step, &ns));
    dh_arena_destroy(arena);
    return ns;
}

/* Two short steps say how long a long one takes: as the long one does by itself. */
static void test_extrapolation(void **state)
{
    static const char *const strategies[] = {"sequential", "intra-batch", "wavelet+", "dhelix"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    dh_cluster *a40;
    assert_ok(&ctx, dh_cluster_find(&ctx, "a40", &a40));
    for (size_t s = 0; s < DH_COUNTOF(strategies); s++)
        for (int64_t pp = 1; pp <= 2; pp++) {
            dh_paper_job job = {.dp = 1, .tp = 8, .pp = pp, .cp = 1, .seq = 2048};
            assert_ok(&ctx, dh_paper_model(&ctx, arena, "GPT-30B", &job.model));
            job.model.n_layers = 4 * pp;
            job.global_batch = 36;
            job.strategy = strategies[s];
            const bool megatron = s < 3;
            const double whole = step_of(a40, &job, megatron, true);
            const double by_two = step_of(a40, &job, megatron, false);
            if (fabs(by_two / whole - 1) > 1e-6)
                fail_msg("%s on %d stages: %.0f ns, extrapolated %.0f", job.strategy, (int)pp,
                         whole, by_two);
        }
    dh_cluster_destroy(a40);
    dh_arena_destroy(arena);
}

/* ---- Megatron-LM jobs ----------------------------------------------------------------------- */

static const dh_megatron_job small = {.heads = 16,
                                      .hidden = 2048,
                                      .layers = 8,
                                      .seq = 1024,
                                      .vocab = 51200,
                                      .tp = 4,
                                      .pp = 2,
                                      .dp = 1,
                                      .chunks = 1,
                                      .micro_batch = 2,
                                      .global_batch = 16};

static dh_megatron_time time_of(const dh_megatron_job *job)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *cluster;
    dh_megatron_time time = {0};
    assert_ok(&ctx, dh_cluster_find(&ctx, "selene", &cluster));
    assert_ok(&ctx, dh_megatron_time_of(&ctx, cluster, job, &time));
    dh_cluster_destroy(cluster);
    return time;
}

/* What the parts say adds up: two stages of four layers, eight micro-batches, one of them in the
 * pipe. */
static void test_iteration(void **state)
{
    dh_megatron_job job = small;
    const dh_megatron_time t = time_of(&job);
    const double stage = 4 * (t.layer_f_ns + t.layer_b_ns) + 2 * t.transfer_ns;
    const double last = stage + t.head_f_ns + t.head_b_ns;
    const double rest = t.iteration_ns - t.reduce_ns - t.optimizer_ns;
    assert_true(rest > 8 * last && rest < 8 * last + 2 * stage);
    assert_true(t.transfer_ns > 0 && t.optimizer_ns > 0 && t.reduce_ns > 0);
}

static void test_modes(void **state)
{
    dh_megatron_job job = small;
    const dh_megatron_time none = time_of(&job);
    job.recompute = DH_RECOMPUTE_KIND_FULL;
    const dh_megatron_time full = time_of(&job);
    job.recompute = DH_RECOMPUTE_KIND_SELECTIVE;
    const dh_megatron_time selective = time_of(&job);
    job.overlapped_backward = true;
    const dh_megatron_time overlapped = time_of(&job);
    job.chunks = 2;
    const dh_megatron_time interleaved = time_of(&job);
    assert_true(fabs(full.layer_b_ns - none.layer_b_ns - none.layer_f_ns) < 1);
    assert_true(selective.layer_b_ns > none.layer_b_ns && selective.layer_b_ns < full.layer_b_ns);
    assert_true(overlapped.layer_b_ns < selective.layer_b_ns);
    assert_true(interleaved.layer_f_ns == overlapped.layer_f_ns);
    job.layers = 9;
    dh_ctx ctx = DH_CTX_INIT;
    dh_cluster *cluster;
    dh_megatron_time time;
    assert_ok(&ctx, dh_cluster_find(&ctx, "selene", &cluster));
    assert_fails(&ctx, dh_megatron_time_of(&ctx, cluster, &job, &time), DH_EINVAL,
                 "9 layers do not divide into 4 stages");
    dh_cluster_destroy(cluster);
}

/* SC21's equation 3 and appendix A of Korthikanti et al., term by term. */
static void test_flops(void **state)
{
    dh_megatron_job job = small;
    const double B = 16, s = 1024, l = 8, h = 2048, V = 51200;
    assert_true(fabs(dh_megatron_model_flops(&job) /
                         (72 * B * l * s * h * h * (1 + s / (6 * h) + V / (12 * h * l))) -
                     1) < 1e-12);
    job.recompute = DH_RECOMPUTE_KIND_FULL;
    assert_true(fabs(dh_megatron_hardware_flops(&job) /
                         (96 * B * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h))) -
                     1) < 1e-12);
    job.recompute = DH_RECOMPUTE_KIND_SELECTIVE;
    assert_true(fabs(dh_megatron_hardware_flops(&job) /
                         (72 * B * l * s * h * h * (1 + s / (3 * h) + V / (12 * h * l))) -
                     1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_csv),       cmocka_unit_test(test_csv_refused),
        cmocka_unit_test(test_measures),  cmocka_unit_test(test_aims),
        cmocka_unit_test(test_groups),    cmocka_unit_test(test_extrapolation),
        cmocka_unit_test(test_tables),    cmocka_unit_test(test_find),
        cmocka_unit_test(test_iteration), cmocka_unit_test(test_modes),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
