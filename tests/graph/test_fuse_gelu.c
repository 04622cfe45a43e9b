/* Activations in products: the forms by hand, what is left alone and why, and whole layers. */
#include "graph_cases.h"

#include "config/mesh.h"
#include "graph/pass.h"

static void rewrite(dh_graph *g, dh_pass_report *report)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_pass *pass;
    const dh_graph_spec spec = {.mesh = {.tp = 1}, .fuse_gelu = true};
    const dh_pass_work work = {.graph = g, .spec = &spec, .report = report};
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    assert_ok(&ctx, dh_pass_find(&ctx, "fuse-gelu", &pass));
    assert_ok(&ctx, pass->apply(&ctx, &work));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
}

/* ---- by hand -------------------------------------------------------------------------------- */

#define LAYER                                                                                      \
    "dhelix.graph v2 layer train bf16\n"                                                           \
    "dims batch=1 seq=8 width=4 act=gelu_tanh\n"                                                   \
    "ends x_in=%0:x x_out=%5:y dx_out=%6:dy dx_in=%9:dx\n"                                         \
    "%0:x   act bf16[8 tokens, 4 width]\n"                                                         \
    "%1:w   param bf16[6 ffn, 4 width] slot=8\n"                                                   \
    "%2:b   param f32[6 ffn] slot=9\n"                                                             \
    "%3:h   act bf16[8 tokens, 6 ffn]\n"                                                           \
    "%4:g   act bf16[8 tokens, 6 ffn]\n"                                                           \
    "%5:y   act bf16[8 tokens, 4 width]\n"                                                         \
    "%6:dy  act bf16[8 tokens, 4 width]\n"                                                         \
    "%7:dg  act bf16[8 tokens, 6 ffn]\n"                                                           \
    "%8:dh  act bf16[8 tokens, 6 ffn]\n"                                                           \
    "%9:dx  act bf16[8 tokens, 4 width]\n"                                                         \
    "%10:w2 param bf16[4 width, 6 ffn] slot=10\n"                                                  \
    "%11:dw grad f32[4 width, 6 ffn] slot=10\n"

static void expect(const char *before, const char *after)
{
    dh_graph *got = parse_graph(before), *want = parse_graph(after);
    rewrite(got, NULL);
    assert_same_graph(got, want);
    rewrite(got, NULL); /* again: nothing more */
    assert_same_graph(got, want);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

/* The gradient's product stands where its activation did, behind what h may come from. */
static void both_ways_become_one_operator(void **state)
{
    expect(LAYER "F %3 = linear(%0, %1, %2)\n"
                 "F %4 = activation(%3)\n"
                 "F %5 = linear(%4, %10, -)\n"
                 "B %7 = linear_dgrad(%6, %10)\n"
                 "W %11 = linear_wgrad(%6, %4)\n"
                 "B %8 = activation_grad(%7, %3)\n"
                 "B %9 = linear_dgrad(%8, %1)\n",
           LAYER "F %4, %3 = linear_gelu(%0, %1, %2)\n"
                 "F %5 = linear(%4, %10, -)\n"
                 "W %11 = linear_wgrad(%6, %4)\n"
                 "B %8 = linear_dgrad_gelu(%6, %10, %3)\n"
                 "B %9 = linear_dgrad(%8, %1)\n");
}

/* As in evaluation. */
static void what_nobody_reads_is_not_made(void **state)
{
    expect(LAYER "F %3 = linear(%0, %1, %2)\n"
                 "F %4 = activation(%3)\n"
                 "F %5 = linear(%4, %10, -)\n",
           LAYER "F %4, - = linear_gelu(%0, %1, %2)\n"
                 "F %5 = linear(%4, %10, -)\n");
}

/* Of products that are to have the same bits one leaves h: all do, though the forward's is not
 * read. An activation that weight gradients alone want is made with the product. */
static void what_is_computed_again_is_computed_alike(void **state)
{
    static const char again[] = "%12:h.re act bf16[8 tokens, 6 ffn]\n"
                                "%13:g.re act bf16[8 tokens, 6 ffn]\n";
    char before[2000], after[2000];
    snprintf(before, sizeof before,
             "%s%s"
             "F %%3 = linear(%%0, %%1, %%2)\n"
             "F %%4 = activation(%%3)\n"
             "F %%5 = linear(%%4, %%10, -)\n"
             "B %%12 = linear(%%0, %%1, %%2)\n"
             "B %%7 = linear_dgrad(%%6, %%10)\n"
             "B %%8 = activation_grad(%%7, %%12)\n"
             "W %%13 = activation(%%12)\n"
             "W %%11 = linear_wgrad(%%6, %%13)\n",
             LAYER, again);
    snprintf(after, sizeof after,
             "%s%s"
             "F %%4, %%3 = linear_gelu(%%0, %%1, %%2)\n"
             "F %%5 = linear(%%4, %%10, -)\n"
             "B %%13, %%12 = linear_gelu(%%0, %%1, %%2)\n"
             "B %%8 = linear_dgrad_gelu(%%6, %%10, %%12)\n"
             "W %%11 = linear_wgrad(%%6, %%13)\n",
             LAYER, again);
    expect(before, after);
}

/* ---- what is left ---------------------------------------------------------------------------- */

static const struct {
    const char *ops, *why;
} lefts[] = {
    {"%12:g2 act bf16[8 tokens, 6 ffn]\n"
     "F %3 = linear(%0, %1, %2)\nF %4 = activation(%3)\nB %12 = activation(%3)\n",
     "its activation is computed again, of the same values"},
    {"F %3 = linear(%0, %1, %2) {parts=2}\nF %4 = activation(%3)\n",
     "its rows are complete in parts"},
    {"%12:g.0 act bf16[4 tokens, 6 ffn] view=%4+0\n"
     "F %3 = linear(%0, %1, %2)\nF %4 = activation(%3)\nF %5 = linear(%4, %10, -)\n",
     "its rows are used in parts"},
    {"F %3 = linear(%0, %1, %2)\nB %4 = activation(%3)\n",
     "its activation belongs to another phase"},
    {"%12:h2 act bf16[8 tokens, 6 ffn]\n%13:g2 act bf16[8 tokens, 6 ffn]\n"
     "F %3 = linear(%0, %1, %2)\nF %4 = activation(%3)\n"
     "F %12 = linear(%0, %1, %2) {parts=2}\nF %13 = activation(%12)\n",
     "another one of its weight stays"},
    {"%12:s act bf16[8 tokens, 6 ffn]\n"
     "F %3 = linear(%0, %1, %2) {parts=2}\nB %7 = linear_dgrad(%6, %10)\n"
     "B %8 = activation_grad(%7, %3)\nB %12 = add(%7, %8)\n",
     "it is read by others too"},
    {"F %3 = linear(%0, %1, %2) {parts=2}\nB %7 = linear_dgrad(%6, %10) {parts=4}\n"
     "B %8 = activation_grad(%7, %3)\n",
     "its rows are complete in parts"},
    {"%12:dg.4 act bf16[4 tokens, 6 ffn] view=%7+4\n"
     "F %3 = linear(%0, %1, %2) {parts=2}\nB %7 = linear_dgrad(%6, %10)\n"
     "B %8 = activation_grad(%7, %3)\n",
     "its rows are used in parts"},
};

static void expect_left(const char *text, const char *why)
{
    dh_graph *got = parse_graph(text), *want = parse_graph(text);
    dh_pass_report report = {.n_places = 0};
    bool said = false;
    rewrite(got, &report);
    assert_same_graph(got, want);
    assert_int_equal(report.n_places, 0);
    for (size_t i = 0; i < report.left.n; i++) said |= strcmp(report.left.at[i].why, why) == 0;
    if (!said) fail_msg("not said: %s", why);
    dh_vec_fini(&report.left);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

static void what_cannot_be_one_stays_and_is_told_of(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(lefts); i++) {
        char text[2000];
        snprintf(text, sizeof text, "%s%s", LAYER, lefts[i].ops);
        expect_left(text, lefts[i].why);
    }
    expect_left("dhelix.graph v2 layer train bf16\n"
                "dims batch=1 seq=8 width=4 act=gelu_tanh\n"
                "%0:x   act bf16[8 tokens, 4 width]\n"
                "%1:w   param f32[6 ffn, 4 width] slot=8\n"
                "%2:h   act f32[8 tokens, 6 ffn]\n"
                "%3:g   act f32[8 tokens, 6 ffn]\n"
                "ends x_in=%0 x_out=%3\n"
                "F %2 = linear(%0, %1, -)\n"
                "F %3 = activation(%2)\n",
                "its operands are of two types");
}

static void products_in_fp8_stay(void **state)
{
    dh_graph *got = parse_graph(LAYER "F %3 = linear(%0, %1, %2)\nF %4 = activation(%3)\n"),
             *want = parse_graph(LAYER "F %3 = linear(%0, %1, %2)\nF %4 = activation(%3)\n");
    dh_pass_report report = {.n_places = 0};
    got->dims.fp8 = want->dims.fp8 = DH_FP8_HYBRID;
    rewrite(got, &report);
    assert_same_graph(got, want);
    assert_int_equal(report.left.n, 1);
    assert_string_equal(report.left.at[0].why, "it is a product in fp8");
    assert_string_equal(report.left.at[0].what, "linear -> h");
    dh_vec_fini(&report.left);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

/* ---- whole layers ---------------------------------------------------------------------------- */

static int count(const dh_graph *g, dh_op_type type)
{
    int n = 0;
    for (size_t i = 0; i < g->ops.n; i++) n += g->ops.at[i].type == type;
    return n;
}

static dh_graph *layer_of(const dh_model *model, dh_recompute_kind recompute, bool fuse)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    const graph_case c = {.kind = DH_BLOCK_LAYER, .mode = DH_MODE_TRAIN, .dtype = DH_BF16, .cp = 1};
    const dh_graph_spec spec = {.build = build_of(&c, model),
                                .mesh = {.tp = 1, .cp = 1, .ep = 1, .pp = 1, .dp = 1, .edp = 1},
                                .recompute = recompute,
                                .fuse_gelu = fuse};
    const dh_graph_rank rank = {.shard = DH_SHARD_WHOLE};
    assert_ok(&ctx, dh_graph_make(&ctx, &spec, DH_BLOCK_LAYER, rank, NULL, &g));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    return g;
}

/* Forward, forward again, gradients. */
static void layers_of_gpt2_have_no_activation_left(void **state)
{
    static const struct {
        dh_recompute_kind recompute;
        int n[4]; /* fused, fused gradients, activations, their gradients */
    } kinds[] = {{DH_RECOMPUTE_KIND_NONE, {1, 1, 0, 0}},
                 {DH_RECOMPUTE_KIND_SELECTIVE, {0, 1, 2, 0}},
                 {DH_RECOMPUTE_KIND_FULL, {2, 1, 0, 0}}};
    const dh_model model = preset("gpt2-tiny");
    for (size_t i = 0; i < DH_COUNTOF(kinds); i++) {
        dh_graph *g = layer_of(&model, kinds[i].recompute, true);
        assert_int_equal(count(g, DH_OP_LINEAR_GELU), kinds[i].n[0]);
        assert_int_equal(count(g, DH_OP_LINEAR_DGRAD_GELU), kinds[i].n[1]);
        assert_int_equal(count(g, DH_OP_ACT), kinds[i].n[2]);
        assert_int_equal(count(g, DH_OP_ACT_GRAD), kinds[i].n[3]);
        for (size_t k = 0; k < g->ops.n; k++) /* forward and again: both leave h */
            if (g->ops.at[k].type == DH_OP_LINEAR_GELU)
                assert_int_not_equal(g->ops.at[k].out[1], DH_NONE);
        dh_graph_destroy(g);
    }
}

static void other_activations_and_devices_have_theirs(void **state)
{
    const dh_model llama = preset("llama-tiny"), gpt2 = preset("gpt2-tiny");
    dh_graph *gated = layer_of(&llama, DH_RECOMPUTE_KIND_NONE, true),
             *plain = layer_of(&gpt2, DH_RECOMPUTE_KIND_NONE, false);
    assert_int_equal(count(gated, DH_OP_ACT), 1);
    assert_int_equal(count(gated, DH_OP_LINEAR_GELU), 0);
    assert_int_equal(count(plain, DH_OP_ACT_GRAD), 1);
    assert_int_equal(count(plain, DH_OP_LINEAR_DGRAD_GELU), 0);
    dh_graph_destroy(gated);
    dh_graph_destroy(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_become_one_operator),
        cmocka_unit_test(what_nobody_reads_is_not_made),
        cmocka_unit_test(what_is_computed_again_is_computed_alike),
        cmocka_unit_test(what_cannot_be_one_stays_and_is_told_of),
        cmocka_unit_test(products_in_fp8_stay),
        cmocka_unit_test(layers_of_gpt2_have_no_activation_left),
        cmocka_unit_test(other_activations_and_devices_have_theirs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
