/* Collectives in parts: the form by hand, what is left alone and why, and every block of small
 * models: what is cut is put together again. */
#include "graph_cases.h"

#include "config/mesh.h"
#include "graph/pass.h"

static void rewrite(dh_graph *g, int64_t tp, int64_t rank, const char *passes,
                    dh_pass_report *report)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_list list;
    const dh_graph_spec spec = {.mesh = {.tp = tp}};
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &list));
    const dh_pass_work work = {.graph = g,
                               .spec = &spec,
                               .rank = {.shard = {.tp = tp, .tp_rank = rank}},
                               .args = list.at[0].args,
                               .report = report};
    assert_ok(&ctx, list.at[0].pass->apply(&ctx, &work));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
}

/* ---- by hand -------------------------------------------------------------------------------- */

#define GATHERED                                                                                   \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=16 width=4\n"                                                                \
    "ends x_in=%0:x x_out=%4:n dx_out=%5:dy\n"                                                     \
    "%0:x      act f32[16 tokens, 4 width]\n"                                                      \
    "%1:w      param f32[6 ffn, 4 width] slot=2\n"                                                 \
    "%2:all    act f32[32 tokens, 4 width]\n"                                                      \
    "%3:h      act f32[32 tokens, 6 ffn]\n"                                                        \
    "%4:n      act f32[32 tokens, 6 ffn]\n"                                                        \
    "%5:dy     act f32[32 tokens, 6 ffn]\n"                                                        \
    "%6:d.w    grad f32[6 ffn, 4 width] slot=2\n"

/* Rank 1 of 2: its own 16 rows at once, then 8 and 8 of the other's; what reads all, all. */
static void a_gather_is_used_as_it_comes(void **state)
{
    dh_graph *got = parse_graph(GATHERED "F %2 = all_gather(%0) {group=tp}\n"
                                         "F %3 = linear(%2, %1)\n"
                                         "F %4 = copy(%3)\n"
                                         "W %6 = linear_wgrad(%5, %2)\n");
    dh_graph *want = parse_graph(GATHERED "%7:h.16   act f32[16 tokens, 6 ffn] view=%3+16\n"
                                          "%8:all.0  act f32[8 tokens, 4 width] view=%2+0\n"
                                          "%9:h.0    act f32[8 tokens, 6 ffn] view=%3+0\n"
                                          "%10:all.8 act f32[8 tokens, 4 width] view=%2+8\n"
                                          "%11:h.8   act f32[8 tokens, 6 ffn] view=%3+8\n"
                                          "F %2 = all_gather(%0) {group=tp, parts=4, part0=2}\n"
                                          "F %7 = linear(%0, %1)\n"
                                          "F %9 = linear(%8, %1)\n"
                                          "F %11 = linear(%10, %1)\n"
                                          "F %4 = copy(%3)\n"
                                          "W %6 = linear_wgrad(%5, %2)\n");
    rewrite(got, 2, 1, "part-wise", NULL);
    assert_same_graph(got, want);
    rewrite(got, 2, 1, "part-wise", NULL); /* again: nothing more */
    assert_same_graph(got, want);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

#define SUMMED                                                                                     \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=16 width=4\n"                                                                \
    "ends x_in=%0:x x_out=%3:y\n"                                                                  \
    "%0:x    act f32[16 tokens, 4 width]\n"                                                        \
    "%1:w    param f32[4 width, 4 width] slot=2\n"                                                 \
    "%2:p    act f32[16 tokens, 4 width]\n"                                                        \
    "%3:y    act f32[16 tokens, 4 width]\n"

static void a_product_is_summed_as_it_is_made(void **state)
{
    dh_graph *got = parse_graph(SUMMED "F %2 = linear(%0, %1)\nF %3 = all_reduce(%2) {group=tp}\n");
    dh_graph *want = parse_graph(SUMMED "%4:p.0 act f32[8 tokens, 4 width] view=%2+0\n"
                                        "%5:y.0 act f32[8 tokens, 4 width] view=%3+0\n"
                                        "%6:p.8 act f32[8 tokens, 4 width] view=%2+8\n"
                                        "%7:y.8 act f32[8 tokens, 4 width] view=%3+8\n"
                                        "F %2 = linear(%0, %1) {parts=2}\n"
                                        "F %5 = all_reduce(%4) {group=tp}\n"
                                        "F %7 = all_reduce(%6) {group=tp}\n");
    rewrite(got, 2, 0, "part-wise(2)", NULL);
    assert_same_graph(got, want);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

#define SCATTERED                                                                                  \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=48 width=4\n"                                                                \
    "ends x_in=%0:x x_out=%4:n\n"                                                                  \
    "%0:x    act f32[48 tokens, 4 width]\n"                                                        \
    "%1:w    param f32[4 width, 4 width] slot=2\n"                                                 \
    "%2:p    act f32[48 tokens, 4 width]\n"                                                        \
    "%3:y    act f32[16 tokens, 4 width]\n"                                                        \
    "%4:n    act f32[16 tokens, 4 width]\n"                                                        \
    "%5:d.w  grad f32[4 width, 4 width] slot=2\n"

/* Rank 1 of 3: the rows of rank 2 are made first, then those of rank 0, its own last. Those that
 * leave are for the next rank, then for the one before; what comes is from the one before, then
 * from the next. The sum stands behind what does not need it. */
static void a_product_leaves_as_it_is_made(void **state)
{
    dh_graph *got = parse_graph(SCATTERED "F %2 = linear(%0, %1)\n"
                                          "F %3 = reduce_scatter(%2) {group=tp}\n"
                                          "W %5 = linear_wgrad(%0, %0)\n"
                                          "F %4 = copy(%3)\n");
    dh_graph *want = parse_graph(SCATTERED "%6:p.came    act f32[32 tokens, 4 width]\n"
                                           "%7:p.32      act f32[8 tokens, 4 width] view=%2+32\n"
                                           "%8:p.came.0  act f32[8 tokens, 4 width] view=%6+0\n"
                                           "%9:p.40      act f32[8 tokens, 4 width] view=%2+40\n"
                                           "%10:p.came.8 act f32[8 tokens, 4 width] view=%6+8\n"
                                           "%11:p.0      act f32[8 tokens, 4 width] view=%2+0\n"
                                           "%12:p.came.16 act f32[8 tokens, 4 width] view=%6+16\n"
                                           "%13:p.8      act f32[8 tokens, 4 width] view=%2+8\n"
                                           "%14:p.came.24 act f32[8 tokens, 4 width] view=%6+24\n"
                                           "%15:p.came.0 act f32[16 tokens, 4 width] view=%6+0\n"
                                           "%16:p.16     act f32[16 tokens, 4 width] view=%2+16\n"
                                           "%17:p.came.16 act f32[16 tokens, 4 width] view=%6+16\n"
                                           "F %2 = linear(%0, %1) {parts=6, part0=4}\n"
                                           "F %8 = shift(%7) {group=tp, by=1}\n"
                                           "F %10 = shift(%9) {group=tp, by=1}\n"
                                           "F %12 = shift(%11) {group=tp, by=2}\n"
                                           "F %14 = shift(%13) {group=tp, by=2}\n"
                                           "F %3 = sum_shares(%15, %16, %17)\n"
                                           "W %5 = linear_wgrad(%0, %0)\n"
                                           "F %4 = copy(%3)\n");
    rewrite(got, 3, 1, "part-wise(scatter)", NULL);
    assert_same_graph(got, want);
    rewrite(got, 3, 1, "part-wise(scatter)", NULL);
    assert_same_graph(got, want);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

/* In one phase the sum waits for who reads it; tiles say of how many rows the kernel is. */
static void a_sum_stands_where_it_is_read(void **state)
{
    dh_graph *got = parse_graph(SCATTERED "F %2 = linear(%0, %1)\n"
                                          "F %3 = reduce_scatter(%2) {group=tp}\n"
                                          "F %5 = linear_wgrad(%0, %0)\n"
                                          "F %4 = copy(%3)\n");
    rewrite(got, 3, 0, "part-wise(1, scatter)", NULL);
    assert_int_equal(got->ops.n, 6);
    assert_int_equal(got->ops.at[3].type, DH_OP_LINEAR_WGRAD);
    assert_int_equal(got->ops.at[4].type, DH_OP_SUM_SHARES);
    assert_int_equal(got->ops.at[4].in[0], DH_NONE);
    dh_graph_destroy(got);

    got = parse_graph(GATHERED "F %2 = all_gather(%0) {group=tp}\nF %3 = linear(%2, %1)\n"
                               "F %4 = copy(%3)\n");
    rewrite(got, 2, 0, "part-wise(2, fused)", NULL);
    for (size_t i = 1; i < 4; i++) assert_int_equal(got->ops.at[i].tile_of, 32);
    dh_graph_destroy(got);
}

static void assert_left(const char *text, const char *pass, const char *why)
{
    dh_pass_report report = {.n_places = 0};
    dh_graph *got = parse_graph(text), *want = parse_graph(text);
    rewrite(got, strstr(text, "reduce_scatter") ? 3 : 2, 0, pass, &report);
    assert_int_equal(report.n_places, 0);
    assert_int_equal(report.left.n, 1);
    assert_string_equal(report.left.at[0].why, why);
    assert_same_graph(got, want);
    dh_vec_fini(&report.left);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

static void what_is_left_says_why(void **state)
{
    static const char gathered[] = GATHERED "F %2 = all_gather(%0) {group=tp}\n"
                                            "F %3 = linear(%2, %1)\nF %4 = copy(%3)\n";
    static const char summed[] = SUMMED "F %2 = linear(%0, %1)\nF %3 = all_reduce(%2) {group=tp}\n";
    assert_left(gathered, "part-wise(3)", "its rows are not so many equal parts");
    assert_left(gathered, "part-wise(4)", "a GEMM of one part's rows would be too small");
    assert_left(summed, "part-wise(1)", "one part is all of it");
    assert_left(summed, "part-wise(4)", "a GEMM of one part's rows would be too small");
    assert_left(SCATTERED "F %2 = linear(%0, %1)\nF %3 = reduce_scatter(%2) {group=tp}\n",
                "part-wise(3, scatter)", "its rows are not so many equal parts");
    assert_left(SCATTERED "F %2 = copy(%0)\nF %3 = reduce_scatter(%2) {group=tp}\n",
                "part-wise(scatter)", "it comes from no GEMM by rows");
    assert_left(GATHERED "F %2 = all_gather(%0) {group=tp}\n", "part-wise", "nothing reads it");
    assert_left(GATHERED "F %2 = all_gather(%0) {group=tp}\nW %6 = linear_wgrad(%5, %2)\n",
                "part-wise", "what reads it first is no GEMM by rows");
    assert_left(GATHERED "F %2 = all_gather(%0) {group=tp}\nB %3 = linear(%2, %1)\n", "part-wise",
                "its GEMM belongs to another phase");
    assert_left(SUMMED "F %2 = copy(%0)\nF %3 = all_reduce(%2) {group=tp}\n", "part-wise",
                "it comes from no GEMM by rows");
}

/* ---- real blocks ---------------------------------------------------------------------------- */

static int n_gathers, n_sums, n_scatters;

/* Every place is cut on every rank, what is left has a reason, and text carries all of it. */
static void check_passed(const graph_case *c, dh_graph *g, bool scatter)
{
    if (c->tp == 1) return;
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_report report = {.n_places = 0};
    dh_str text = DH_STR_INIT;
    size_t n_candidates = 0, n_in_parts = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        n_candidates += op->group == DH_GROUP_TP &&
                        (op->type == DH_OP_ALL_GATHER || op->type == DH_OP_ALL_REDUCE ||
                         (op->type == DH_OP_REDUCE_SCATTER && scatter));
    }
    rewrite(g, c->tp, c->tp - 1, scatter ? "part-wise(2, scatter)" : "part-wise(2)", &report);
    for (size_t i = 0; i < g->ops.n; i++) {
        n_in_parts += dh_op_n_parts(&g->ops.at[i]) > 1;
        n_gathers += dh_op_n_parts(&g->ops.at[i]) > 1 && g->ops.at[i].type == DH_OP_ALL_GATHER;
        n_sums += dh_op_n_parts(&g->ops.at[i]) > 1 && g->ops.at[i].type != DH_OP_ALL_GATHER;
        n_scatters += g->ops.at[i].type == DH_OP_SUM_SHARES;
    }
    assert_int_equal(n_in_parts, report.n_places);
    assert_int_equal(report.n_places + report.left.n, n_candidates);
    dh_graph *again;
    assert_ok(&ctx, dh_graph_print(&ctx, g, &text));
    assert_ok(&ctx, dh_graph_parse(&ctx, text.text, text.len, &again));
    assert_true(dh_graph_equal(g, again));
    dh_graph_destroy(again);
    dh_str_fini(&text);
    dh_vec_fini(&report.left);
}

static void check_case(const graph_case *c, dh_graph *g)
{
    check_passed(c, g, false);
}

static void check_scattered_case(const graph_case *c, dh_graph *g)
{
    check_passed(c, g, true);
}

static void every_block_is_cut(void **state)
{
    for_each_case(check_case);
    assert_int_equal(n_scatters, 0);
    for_each_case(check_scattered_case);
    print_message("%d gathers and %d products in parts, %d scatters\n", n_gathers, n_sums,
                  n_scatters);
    assert_true(n_gathers > 100 && n_sums > 100 && n_scatters > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gather_is_used_as_it_comes),
        cmocka_unit_test(a_product_is_summed_as_it_is_made),
        cmocka_unit_test(a_product_leaves_as_it_is_made),
        cmocka_unit_test(a_sum_stands_where_it_is_read),
        cmocka_unit_test(what_is_left_says_why),
        cmocka_unit_test(every_block_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
