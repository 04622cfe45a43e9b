/* Tracked GEMMs: the form by hand, what is left alone and why, and the sums that come out. */
#include "graph_cases.h"

#include "config/mesh.h"
#include "graph/pass.h"

static void rewrite(dh_graph *g, int64_t tp, int64_t rank, dh_pass_report *report)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_list list;
    const dh_graph_spec spec = {.mesh = {.tp = tp}};
    assert_ok(&ctx, dh_pass_list_parse(&ctx, "track-trigger", &list));
    const dh_pass_work work = {.graph = g,
                               .spec = &spec,
                               .rank = {.shard = {.tp = tp, .tp_rank = rank}},
                               .args = list.at[0].args,
                               .report = report};
    assert_ok(&ctx, list.at[0].pass->apply(&ctx, &work));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
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

/* Rank 1 of 3: the rows of rank 2 are made first and leave for rank 0; with what came for rank 0
 * from rank 2 its own share of those rows leaves; what comes then is its own. */
static void steps_follow_the_product(void **state)
{
    dh_graph *got = parse_graph(SCATTERED "F %2 = linear(%0, %1)\n"
                                          "F %3 = reduce_scatter(%2) {group=tp}\n"
                                          "F %5 = linear_wgrad(%0, %0)\n"
                                          "F %4 = copy(%3)\n");
    dh_graph *want = parse_graph(SCATTERED "%6:p.2   act f32[16 tokens, 4 width] view=%2+32\n"
                                           "%7:p.in0 act f32[16 tokens, 4 width]\n"
                                           "%8:p.0   act f32[16 tokens, 4 width] view=%2+0\n"
                                           "%9:p.in1 act f32[16 tokens, 4 width]\n"
                                           "%10:p.1  act f32[16 tokens, 4 width] view=%2+16\n"
                                           "F %2 = linear(%0, %1) {parts=3, part0=2}\n"
                                           "F %7 = scatter_step(%6) {group=tp, by=2}\n"
                                           "F %9 = scatter_step(%8, %7) {group=tp, by=2}\n"
                                           "F %5 = linear_wgrad(%0, %0)\n"
                                           "F %3 = near_sum(%10, %9)\n"
                                           "F %4 = copy(%3)\n");
    rewrite(got, 3, 1, NULL);
    assert_same_graph(got, want);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

static void assert_left(const char *text, const char *why)
{
    dh_pass_report report = {.n_places = 0};
    dh_graph *got = parse_graph(text), *want = parse_graph(text);
    rewrite(got, 3, 0, &report);
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
    assert_left(SCATTERED "F %2 = copy(%0)\nF %3 = reduce_scatter(%2) {group=tp}\n",
                "it comes from no GEMM by rows");
    assert_left(SCATTERED "F %2 = linear(%0, %1)\nF %3 = reduce_scatter(%2) {group=tp}\n"
                          "F %5 = linear_wgrad(%0, %2)\n",
                "something else reads it");
}

/* Every rank's rows are added up over the ring, whichever rank: by whose shares they have. */
static void rings_add_all_shares(void **state)
{
    enum { N = 3 };
    dh_graph *g[N];
    unsigned came[N] = {0}; /* shares in what a rank has last got, a bit each; and of whose rows */
    int whose[N] = {-1, -1, -1};
    for (int r = 0; r < N; r++) {
        g[r] = parse_graph(SCATTERED "F %2 = linear(%0, %1)\n"
                                     "F %3 = reduce_scatter(%2) {group=tp}\nF %4 = copy(%3)\n");
        rewrite(g[r], N, r, NULL);
    }
    for (size_t step = 1; step < N; step++) {
        unsigned sent[N];
        int rows[N];
        for (int r = 0; r < N; r++) {
            const dh_op *op = &g[r]->ops.at[step];
            assert_int_equal(op->type, DH_OP_SCATTER_STEP);
            rows[r] = (int)(g[r]->tensors.at[op->in[0]].row0 / 16);
            assert_true(op->in[1] == DH_NONE ? step == 1 : whose[r] == rows[r]);
            sent[r] = came[r] | 1u << r;
        }
        for (int r = 0; r < N; r++) {
            const int to = (r + g[r]->ops.at[step].by) % N;
            assert_false(sent[r] & 1u << to && rows[r] != to);
            came[to] = sent[r];
            whose[to] = rows[r];
        }
    }
    for (int r = 0; r < N; r++) {
        assert_int_equal(whose[r], r);
        assert_int_equal(came[r] | 1u << r, 7);
        assert_int_equal(g[r]->tensors.at[g[r]->ops.at[N].in[0]].row0, 16 * r);
        dh_graph_destroy(g[r]);
    }
}

static int n_rings;

static void check_case(const graph_case *c, dh_graph *g)
{
    dh_pass_report report = {.n_places = 0};
    size_t n_candidates = 0;
    if (c->tp == 1) return;
    for (size_t i = 0; i < g->ops.n; i++)
        n_candidates +=
            g->ops.at[i].group == DH_GROUP_TP && g->ops.at[i].type == DH_OP_REDUCE_SCATTER;
    rewrite(g, c->tp, c->tp - 1, &report);
    assert_int_equal(report.n_places + report.left.n, n_candidates);
    n_rings += (int)report.n_places;
    dh_vec_fini(&report.left);
}

static void every_block_is_tracked(void **state)
{
    for_each_case(check_case);
    assert_true(n_rings > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_the_product),
        cmocka_unit_test(what_is_left_says_why),
        cmocka_unit_test(rings_add_all_shares),
        cmocka_unit_test(every_block_is_tracked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
