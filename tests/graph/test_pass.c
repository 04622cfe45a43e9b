/* The table of passes: lists as text, what is refused, what comes to the same, and what a pass
 * says of the graphs that it was given. */
#include "graph_cases.h"

#include "graph/pass.h"

static dh_pass_list parse(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_list list;
    assert_ok(&ctx, dh_pass_list_parse(&ctx, text, &list));
    return list;
}

static void assert_prints(const char *text, const char *want)
{
    const dh_pass_list list = parse(text);
    dh_str out = DH_STR_INIT;
    dh_str_printf(&out, "%s", "");
    dh_pass_list_print(&list, &out);
    assert_string_equal(out.text, want);
    const dh_pass_list again = parse(out.text);
    assert_true(dh_pass_list_equal(&list, &again));
    dh_str_fini(&out);
}

static void test_text(void **state)
{
    (void)state;
    assert_prints("", "");
    assert_prints("ring-gemm", "ring-gemm");
    assert_prints(" ring-gemm ( ) ", "ring-gemm");
    assert_prints("ring-gemm(forth)", "ring-gemm");
    assert_prints("ring-gemm(both)", "ring-gemm(ways=both)");
    assert_prints("ring-gemm( ways = both )", "ring-gemm(ways=both)");
    assert_prints("part-wise(auto, scatter)", "part-wise(parts=auto, scatter)");
    assert_prints("domino(auto, auto)", "domino(parts=auto, columns=auto)");
    assert_prints("part-wise(fused, parts=2)", "part-wise(fused)");
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *part;
        dh_status status;
    } cases[] = {
        {"ring-gem", "did you mean ring-gemm", DH_EMISSING},
        {"ring-gemm,", "no pass is called", DH_EMISSING},
        {"ring-gemm(both", "not closed", DH_EINVAL},
        {"ring-gemm(sideways)", "\"sideways\"; it can be forth, both", DH_EINVAL},
        {"ring-gemm(ways=)", "it can be forth, both", DH_EINVAL},
        {"ring-gemm(parts=2)", "no parameter for \"parts\"; it has ways", DH_EINVAL},
        {"ring-gemm(both, 2)", "no parameter for \"2\"", DH_EINVAL},
        {"part-wise(0)", "parts is \"0\"; it can be auto, 1 to 16", DH_EINVAL},
        {"domino(all)", "parts is \"all\"; it can be auto, 1 to 8", DH_EINVAL},
        {"domino(columns=5)", "\"5\"; it can be auto, 1 to 4", DH_EINVAL},
        {"domino(0)", "parts is \"0\"; it can be auto, 1 to 8", DH_EINVAL},
        {"ring-gemm, ring-gemm(both)", "stands twice", DH_EINVAL},
        {"tensor-parallel", "follows from the job's settings", DH_EINVAL},
    };
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_pass_list list;
        assert_fails(&ctx, dh_pass_list_parse(&ctx, cases[i].text, &list), cases[i].status,
                     cases[i].part);
    }
}

/* A pass that would have to stand before one that it follows, and numbers out of range. */
static void test_order_and_ranges(void **state)
{
    const dh_pass early = {.name = "early",
                           .place = DH_PASS_BEFORE_GRADIENTS,
                           .params = {{.name = "n", .kind = DH_PASS_INT, .min = 1, .max = 8}}};
    const dh_pass late = {.name = "late", .place = DH_PASS_AFTER_RECOMPUTE};
    const dh_pass_list good = {.n = 2, .at = {{&early, {8}}, {&late, {0}}}};
    const dh_pass_list swapped = {.n = 2, .at = {{&late, {0}}, {&early, {8}}}};
    const dh_pass_list beyond = {.n = 1, .at = {{&early, {9}}}};
    dh_ctx ctx = DH_CTX_INIT;
    (void)state;
    assert_ok(&ctx, dh_pass_list_check(&ctx, &good));
    assert_fails(&ctx, dh_pass_list_check(&ctx, &swapped), DH_EINVAL,
                 "early works before differentiation and cannot follow late");
    dh_ctx_reset(&ctx);
    assert_fails(&ctx, dh_pass_list_check(&ctx, &beyond), DH_EINVAL, "n=9");
}

static bool comes_to(int64_t tp, const char *text, const char *want)
{
    const dh_graph_spec spec = {.mesh = {.tp = tp, .cp = 1, .ep = 1}};
    const dh_pass_list list = parse(text), other = parse(want);
    const dh_pass_list reduced = dh_pass_list_reduced(&spec, &list);
    return dh_pass_list_equal(&reduced, &other);
}

static void test_reduced(void **state)
{
    (void)state;
    assert_true(comes_to(1, "ring-gemm(both)", ""));
    assert_true(comes_to(2, "ring-gemm(both)", "ring-gemm"));
    assert_true(comes_to(3, "ring-gemm(both)", "ring-gemm(both)"));
    assert_false(comes_to(3, "ring-gemm(both)", "ring-gemm"));
}

static void test_varies_by(void **state)
{
    dh_graph_spec spec = {.mesh = {.tp = 4, .cp = 1, .ep = 1}};
    (void)state;
    assert_int_equal(dh_graph_varies_by(&spec), 0);
    spec.passes = parse("ring-gemm");
    assert_int_equal(dh_graph_varies_by(&spec), 1 << DH_MESH_TP);
    spec.mesh.cp = 2;
    assert_int_equal(dh_graph_varies_by(&spec), 1 << DH_MESH_TP | 1 << DH_MESH_CP);
    spec.mesh.tp = 1;
    assert_int_equal(dh_graph_varies_by(&spec), 1 << DH_MESH_CP);
}

/* ---- graphs -------------------------------------------------------------------------------- */

static dh_pass_report *report_of(dh_pass_reports *reports, const char *name)
{
    for (size_t i = 0; i < reports->n; i++)
        if (strcmp(reports->at[i].use.pass->name, name) == 0) return &reports->at[i];
    fail_msg("pass %s is not reported", name);
    return NULL;
}

/* The one loop gives what the passes give one after the other. */
static void test_made_by_hand(void **state)
{
    const dh_model model = preset("gpt2-tiny");
    const graph_case c = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, 0, 2, true, 2,
                          1,           false};
    const dh_graph_spec spec = {.build = build_of(&c, &model), .mesh = {.tp = 2, .cp = 2, .ep = 1}};
    const dh_graph_rank rank = {.shard = {.tp = 2, .tp_rank = 1, .ep = 1}, .cp_rank = 1};
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *made, *want = build_case(&c);
    (void)state;
    assert_ok(&ctx, dh_graph_make(&ctx, &spec, DH_BLOCK_LAYER, rank, NULL, &made));
    assert_true(dh_graph_equal(made, want));
    dh_graph_destroy(made);
    dh_graph_destroy(want);
}

static void test_reports(void **state)
{
    const dh_model model = preset("gpt2-tiny");
    const graph_case c = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, 0, 2, true, 1,
                          1,           false};
    const dh_graph_spec spec = {.build = build_of(&c, &model),
                                .mesh = {.tp = 2, .cp = 1, .ep = 1},
                                .passes = parse("ring-gemm")};
    const dh_graph_rank rank = {.shard = {.tp = 2, .ep = 1}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_reports reports = {0};
    dh_graph *g;
    (void)state;
    assert_ok(&ctx, dh_graph_make(&ctx, &spec, DH_BLOCK_LAYER, rank, &reports, &g));
    assert_int_equal(reports.n, 7);
    assert_non_null(strstr(report_of(&reports, "fuse-gelu")->idle, "train.fuse_gelu is off"));
    assert_string_equal(report_of(&reports, "context-parallel")->idle,
                        "every sequence is on one rank (parallel.cp=1)");
    assert_non_null(report_of(&reports, "recompute")->idle);
    const dh_pass_report *split = report_of(&reports, "tensor-parallel");
    assert_null(split->idle);
    assert_true(split->n_after > split->n_before);
    const dh_pass_report *rings = report_of(&reports, "ring-gemm");
    assert_int_equal(rings->n_after, g->ops.n);
    assert_true(rings->n_places > 0 && rings->n_after > rings->n_before);
    for (size_t i = 0; i < rings->left.n; i++) assert_non_null(rings->left.at[i].why);
    dh_graph_destroy(g);
    dh_pass_reports_fini(&reports);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_order_and_ranges),
        cmocka_unit_test(test_reduced),
        cmocka_unit_test(test_varies_by),
        cmocka_unit_test(test_made_by_hand),
        cmocka_unit_test(test_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
