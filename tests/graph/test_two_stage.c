/* Collectives in two stages: the forms by hand, the bytes that leave a node against the closed
 * formulas, what is left alone and why, and every block of small models. */
#include "graph_cases.h"

#include "config/mesh.h"
#include "graph/pass.h"

static dh_mesh mesh_of(int64_t dp, int64_t tp, int64_t ep, int64_t per_node)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh m;
    assert_ok(&ctx, dh_mesh_init(&ctx, dp, tp, 1, 1, ep, 0, per_node, &m));
    return m;
}

static void rewrite(dh_graph *g, const dh_mesh *mesh, const char *passes, dh_pass_report *report)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_list list;
    const dh_graph_spec spec = {.mesh = *mesh};
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &list));
    const dh_pass_work work = {
        .graph = g, .spec = &spec, .args = list.at[0].args, .report = report};
    assert_ok(&ctx, list.at[0].pass->apply(&ctx, &work));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
}

/* ---- by hand: tp 4 on nodes of 2 ------------------------------------------------------------ */

static void becomes_on(const dh_mesh *mesh, const char *passes, const char *head, const char *ops,
                       const char *tensors, const char *want_ops)
{
    char text[2][4000];
    snprintf(text[0], sizeof text[0], "%s%s", head, ops);
    snprintf(text[1], sizeof text[1], "%s%s%s", head, tensors, want_ops);
    dh_graph *got = parse_graph(text[0]), *want = parse_graph(text[1]);
    rewrite(got, mesh, passes, NULL);
    assert_same_graph(got, want);
    rewrite(got, mesh, passes, NULL); /* again: nothing more */
    assert_same_graph(got, want);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

static void becomes(const char *passes, const char *head, const char *ops, const char *tensors,
                    const char *want_ops)
{
    const dh_mesh mesh = mesh_of(1, 4, 1, 2);
    becomes_on(&mesh, passes, head, ops, tensors, want_ops);
}

#define SUMMED                                                                                     \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=32 width=4\n"                                                                \
    "ends x_in=%0:x x_out=%3:y\n"                                                                  \
    "%0:x    act f32[32 tokens, 4 width]\n"                                                        \
    "%1:w    param f32[4 width, 4 width] slot=2\n"                                                 \
    "%2:p    act f32[32 tokens, 4 width]\n"                                                        \
    "%3:y    act f32[32 tokens, 4 width]\n"
#define SUM "F %2 = linear(%0, %1)\nF %3 = all_reduce(%2) {group=tp}\n"

static void sums_in_stages(void **state)
{
    becomes("two-stage", SUMMED, SUM,
            "%4:y.own act f32[16 tokens, 4 width]\n%5:y.sum act f32[16 tokens, 4 width]\n",
            "F %2 = linear(%0, %1)\n"
            "F %4 = reduce_scatter(%2) {group=tp-node}\n"
            "F %5 = all_reduce(%4) {group=tp-cross}\n"
            "F %3 = all_gather(%5) {group=tp-node}\n");
    becomes("two-stage(wide)", SUMMED, SUM,
            "%4:y.own act f32[16 tokens, 4 width]\n%5:y.sum act f32[16 tokens, 4 width]\n",
            "F %2 = linear(%0, %1)\n"
            "F %4 = reduce_scatter(%2) {group=tp-cross}\n"
            "F %5 = all_reduce(%4) {group=tp-node}\n"
            "F %3 = all_gather(%5) {group=tp-cross}\n");
    /* Rows go through the stages in two chunks, each when the GEMM has made it. */
    becomes("two-stage(parts=2)", SUMMED, SUM,
            "%4:p.0 act f32[16 tokens, 4 width] view=%2+0\n"
            "%5:y.0 act f32[16 tokens, 4 width] view=%3+0\n"
            "%6:y.0.own act f32[8 tokens, 4 width]\n%7:y.0.sum act f32[8 tokens, 4 width]\n"
            "%8:p.16 act f32[16 tokens, 4 width] view=%2+16\n"
            "%9:y.16 act f32[16 tokens, 4 width] view=%3+16\n"
            "%10:y.16.own act f32[8 tokens, 4 width]\n%11:y.16.sum act f32[8 tokens, 4 width]\n",
            "F %2 = linear(%0, %1) {parts=2}\n"
            "F %6 = reduce_scatter(%4) {group=tp-node}\n"
            "F %7 = all_reduce(%6) {group=tp-cross}\n"
            "F %5 = all_gather(%7) {group=tp-node}\n"
            "F %10 = reduce_scatter(%8) {group=tp-node}\n"
            "F %11 = all_reduce(%10) {group=tp-cross}\n"
            "F %9 = all_gather(%11) {group=tp-node}\n");
}

#define GATHERED                                                                                   \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=8 width=4\n"                                                                 \
    "ends x_in=%0:x x_out=%3:h\n"                                                                  \
    "%0:x    act f32[8 tokens, 4 width]\n"                                                         \
    "%1:w    param f32[6 ffn, 4 width] slot=2\n"                                                   \
    "%2:all  act f32[32 tokens, 4 width]\n"                                                        \
    "%3:h    act f32[32 tokens, 6 ffn]\n"
#define GATHER "F %2 = all_gather(%0) {group=tp}\nF %3 = linear(%2, %1)\n"

/* The shares of one place of both nodes travel; each node's rows are then put together there. */
static void gathers_in_stages(void **state)
{
#define BLOCKS                                                                                     \
    "%4:x.nodes act f32[16 tokens, 4 width]\n"                                                     \
    "%5:x.nodes.0 act f32[8 tokens, 4 width] view=%4+0\n"                                          \
    "%6:all.0 act f32[16 tokens, 4 width] view=%2+0\n"                                             \
    "%7:x.nodes.8 act f32[8 tokens, 4 width] view=%4+8\n"                                          \
    "%8:all.16 act f32[16 tokens, 4 width] view=%2+16\n"
#define STAGES                                                                                     \
    "F %4 = all_gather(%0) {group=tp-cross}\n"                                                     \
    "F %6 = all_gather(%5) {group=tp-node}\n"                                                      \
    "F %8 = all_gather(%7) {group=tp-node}\n"
    becomes("two-stage", GATHERED, GATHER, BLOCKS, STAGES "F %3 = linear(%2, %1)\n");
    becomes("two-stage(wide)", GATHERED, GATHER, "%4:x.node act f32[16 tokens, 4 width]\n",
            "F %4 = all_gather(%0) {group=tp-node}\n"
            "F %2 = all_gather(%4) {group=tp-cross}\n"
            "F %3 = linear(%2, %1)\n");
    becomes("two-stage(parts=2)", GATHERED, GATHER,
            BLOCKS "%9:all.0 act f32[16 tokens, 4 width] view=%2+0\n"
                   "%10:h.0 act f32[16 tokens, 6 ffn] view=%3+0\n"
                   "%11:all.16 act f32[16 tokens, 4 width] view=%2+16\n"
                   "%12:h.16 act f32[16 tokens, 6 ffn] view=%3+16\n",
            STAGES "F %10 = linear(%9, %1)\nF %12 = linear(%11, %1)\n");
}

#define SCATTERED                                                                                  \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=8 width=4\n"                                                                 \
    "ends x_in=%0:x x_out=%3:y\n"                                                                  \
    "%0:x    act f32[32 tokens, 4 width]\n"                                                        \
    "%1:w    param f32[4 width, 4 width] slot=2\n"                                                 \
    "%2:p    act f32[32 tokens, 4 width]\n"                                                        \
    "%3:y    act f32[8 tokens, 4 width]\n"
#define SCATTER "F %2 = linear(%0, %1)\nF %3 = reduce_scatter(%2) {group=tp}\n"

static void scatters_in_stages(void **state)
{
#define HALVES                                                                                     \
    "%4:y.nodes act f32[16 tokens, 4 width]\n"                                                     \
    "%5:p.0 act f32[16 tokens, 4 width] view=%2+0\n"                                               \
    "%6:y.nodes.0 act f32[8 tokens, 4 width] view=%4+0\n"                                          \
    "%7:p.16 act f32[16 tokens, 4 width] view=%2+16\n"                                             \
    "%8:y.nodes.8 act f32[8 tokens, 4 width] view=%4+8\n"
#define SUMS                                                                                       \
    "F %6 = reduce_scatter(%5) {group=tp-node}\n"                                                  \
    "F %8 = reduce_scatter(%7) {group=tp-node}\n"                                                  \
    "F %3 = reduce_scatter(%4) {group=tp-cross}\n"
    becomes("two-stage", SCATTERED, SCATTER, HALVES, "F %2 = linear(%0, %1)\n" SUMS);
    becomes("two-stage(parts=4)", SCATTERED, SCATTER, HALVES,
            "F %2 = linear(%0, %1) {parts=2}\n" SUMS);
    becomes("two-stage(wide)", SCATTERED, SCATTER, "%4:y.node act f32[16 tokens, 4 width]\n",
            "F %2 = linear(%0, %1)\n"
            "F %4 = reduce_scatter(%2) {group=tp-cross}\n"
            "F %3 = reduce_scatter(%4) {group=tp-node}\n");
}

#define ROUTED                                                                                     \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=8 width=4\n"                                                                 \
    "ends x_in=%0:own x_out=%6:back\n"                                                             \
    "%0:own     act f32[16 routed, 4 width]\n"                                                     \
    "%1:counts  act i64[8]\n"                                                                      \
    "%2:sent    act i64[9]\n"                                                                      \
    "%3:lengths act i64[8]\n"                                                                      \
    "%4:arrived act i64[9]\n"                                                                      \
    "%5:routed  act f32[40 routed, 4 width]\n"                                                     \
    "%6:back    act f32[16 routed, 4 width]\n"
#define ROUTE                                                                                      \
    "F %1 = clear()\n"                                                                             \
    "F %2 = moe_offsets(%1) {room=16, rows=16}\n"                                                  \
    "F %3 = all_to_all(%1) {group=ep}\n"                                                           \
    "F %4 = moe_offsets(%3) {room=40, rows=16}\n"                                                  \
    "F %5 = all_to_all_rows(%0, %2, %4) {group=ep, rows=16}\n"                                     \
    "F %6 = all_to_all_rows(%5, %4, %2) {group=ep, rows=16}\n"

/* Rows of experts and their lengths cross first, and go back last; room for all that two senders
 * have, which is less than the factor would give. */
static void rows_in_stages(void **state)
{
    static const char *const forms[] = {"two-stage", "two-stage(wide)"};
    const dh_mesh mesh = mesh_of(4, 1, 4, 2);
    for (size_t i = 0; i < DH_COUNTOF(forms); i++)
        becomes_on(&mesh, forms[i], ROUTED, ROUTE,
                   "%7:lengths.nodes act i64[8]\n"
                   "%8:arrived.nodes act i64[9]\n"
                   "%9:lengths.nodes.0 act i64[4] view=%7+0\n"
                   "%10:lengths.0 act i64[4] view=%3+0\n"
                   "%11:lengths.nodes.4 act i64[4] view=%7+4\n"
                   "%12:lengths.4 act i64[4] view=%3+4\n"
                   "%13:routed.nodes act f32[32 routed, 4 width]\n"
                   "%14:back.nodes act f32[32 routed, 4 width]\n",
                   "F %1 = clear()\n"
                   "F %2 = moe_offsets(%1) {room=16, rows=16}\n"
                   "F %7 = all_to_all(%1) {group=ep-cross}\n"
                   "F %10 = all_to_all(%9) {group=ep-node}\n"
                   "F %12 = all_to_all(%11) {group=ep-node}\n"
                   "F %4 = moe_offsets(%3) {room=40, rows=16}\n"
                   "F %8 = moe_offsets(%7) {room=32, rows=16}\n"
                   "F %13 = all_to_all_rows(%0, %2, %8) {group=ep-cross, rows=16}\n"
                   "F %5 = all_to_all_rows(%13, %8, %4) {group=ep-node, rows=16, blocks=2}\n"
                   "F %14 = all_to_all_rows(%5, %4, %8) {group=ep-node, rows=16, blocks=2}\n"
                   "F %6 = all_to_all_rows(%14, %8, %2) {group=ep-cross, rows=16}\n");
}

/* ---- what leaves a node -----------------------------------------------------------------------
 */

/* Bytes that a rank sends to other nodes: of its part in a collective over ranks that are all on
 * different nodes, or over all (a ring, and a personal message to each). */
static double leaves(const dh_graph *g, const dh_mesh *mesh)
{
    double sum = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (dh_op_info_of(op->type)->resource != DH_RES_COMM) continue;
        const dh_group_kind group = (dh_group_kind)op->group;
        const double n = (double)dh_mesh_group_size(mesh, group);
        const double in = (double)dh_tensor_bytes(&g->tensors.at[op->in[0]]);
        const double out = (double)dh_tensor_bytes(&g->tensors.at[op->out[0]]);
        const double rounds = op->type == DH_OP_ALL_REDUCE ? 2 : 1;
        if (!dh_mesh_group_is_local(mesh, group, 0)) sum += rounds * DH_MAX(in, out) * (n - 1) / n;
    }
    return sum;
}

static double leaves_of(const char *passes, const dh_mesh *mesh, const char *text)
{
    dh_graph *g = parse_graph(text);
    if (passes) rewrite(g, mesh, passes, NULL);
    const double bytes = leaves(g, mesh);
    dh_graph_destroy(g);
    return bytes;
}

static void what_leaves_a_node_is_the_formula(void **state)
{
    static const struct {
        const char *type;
        int64_t in, out;          /* in shares of a rank, of n */
        double one, narrow, wide; /* times B: coefficients by hand for 8 ranks, 4 on a node */
    } list[] = {{"all_reduce", 8, 8, 2 * 7.0 / 8, 2 * 1.0 / 8, 2 * 1.0 / 2},
                {"all_gather", 1, 8, 7.0 / 8, 1.0 / 8, 1.0 / 2},
                {"reduce_scatter", 8, 1, 7.0 / 8, 1.0 / 8, 1.0 / 2},
                {"all_to_all", 8, 8, 7.0 / 8, 1.0 / 2, 1.0 / 2}};
    const dh_mesh mesh = mesh_of(1, 8, 1, 4);
    for (size_t i = 0; i < DH_COUNTOF(list); i++) {
        char text[1000];
        const double b = 64 * 4 * sizeof(float);
        snprintf(text, sizeof text,
                 "dhelix.graph v2 layer train f32\n"
                 "dims batch=1 seq=64 width=4\n"
                 "ends x_in=%%0:x x_out=%%1:y\n"
                 "%%0:x act f32[%lld tokens, 4 width]\n"
                 "%%1:y act f32[%lld tokens, 4 width]\n"
                 "F %%1 = %s(%%0) {group=tp}\n",
                 (long long)list[i].in * 8, (long long)list[i].out * 8, list[i].type);
        assert_true(leaves_of(NULL, &mesh, text) == b * list[i].one);
        assert_true(leaves_of("two-stage", &mesh, text) == b * list[i].narrow);
        assert_true(leaves_of("two-stage(wide)", &mesh, text) == b * list[i].wide);
    }
}

/* ---- what is left alone ------------------------------------------------------------------------
 */

static void what_is_left_says_why(void **state)
{
    const dh_mesh mesh = mesh_of(1, 4, 1, 2);
    dh_pass_report report = {.n_places = 0};
    dh_graph *g = parse_graph("dhelix.graph v2 layer train f32\n"
                              "dims batch=1 seq=6 width=4\n"
                              "ends x_in=%0:x x_out=%1:y\n"
                              "%0:x act f32[7 tokens, 4 width]\n"
                              "%1:y act f32[7 tokens, 4 width]\n"
                              "%2:c act i64[8 experts]\n"
                              "%3:d act i64[8 experts]\n"
                              "%4:z act f32[7 tokens, 4 width]\n"
                              "%5:o act i64[9]\n"
                              "%6:r act f32[7 tokens, 4 width]\n"
                              "F %1 = all_reduce(%0) {group=tp}\n"
                              "F %2 = clear()\n"
                              "F %3 = all_to_all(%2) {group=tp}\n"
                              "F %4 = ring_exchange(%1) {group=cp}\n"
                              "F %5 = moe_offsets(%2) {room=7, rows=7}\n"
                              "F %6 = all_to_all_rows(%1, %5, %5) {group=tp, rows=7}\n");
    rewrite(g, &mesh, "two-stage", &report);
    assert_int_equal(g->ops.n, 6);
    assert_int_equal(report.n_places, 0);
    assert_int_equal(report.left.n, 4);
    assert_string_equal(report.left.at[0].why, "its rows do not divide by the ranks of a stage");
    assert_string_equal(report.left.at[0].what, "all_reduce of x");
    assert_string_equal(report.left.at[1].why, "it carries lengths, a few bytes");
    assert_string_equal(report.left.at[2].why, "groups of its kind have no stages");
    assert_non_null(strstr(report.left.at[3].why, "their lengths are not exchanged"));
    dh_vec_fini(&report.left);
    dh_graph_destroy(g);
}

static int64_t zero;

static const char *why_not(const dh_mesh *mesh, const char *passes)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_list list;
    const dh_graph_spec spec = {.mesh = *mesh, .sharing = dh_sharing_of(zero)};
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &list));
    return list.at[0].pass->applicable(&spec, list.at[0].args);
}

static void where_it_does_not_apply(void **state)
{
    dh_mesh mesh = mesh_of(1, 4, 1, 4);
    assert_non_null(strstr(why_not(&mesh, "two-stage"), "one node"));
    mesh = mesh_of(2, 2, 1, 2);
    assert_string_equal(why_not(&mesh, "two-stage"),
                        "no group of ranks has several on each of several nodes");
    mesh = mesh_of(2, 6, 1, 4);
    assert_non_null(strstr(why_not(&mesh, "two-stage"), "unequal"));
    mesh = mesh_of(1, 4, 1, 2);
    assert_non_null(strstr(why_not(&mesh, "two-stage(whole)"), "order=whole"));
    assert_null(why_not(&mesh, "two-stage"));
    assert_null(why_not(&mesh, "two-stage(auto, auto)"));
    mesh = mesh_of(4, 1, 1, 2); /* gradients */
    assert_null(why_not(&mesh, "two-stage"));
    zero = 1; /* sums to shards have stages too */
    assert_null(why_not(&mesh, "two-stage"));
    mesh = mesh_of(1, 4, 1, 2);
    assert_null(why_not(&mesh, "two-stage"));
    zero = 0;
}

/* ---- every block --------------------------------------------------------------------------------
 */

static bool spans(const dh_graph *g, const dh_mesh *mesh, const dh_op *op)
{
    dh_group_stages s;
    const dh_tensor *in = op->in[0] == DH_NONE ? NULL : &g->tensors.at[op->in[0]];
    return dh_op_info_of(op->type)->resource == DH_RES_COMM && in && in->kind == DH_TENSOR_ACT &&
           !dh_mesh_group_stages(mesh, (dh_group_kind)op->group, &s);
}

/* No collective of a group that spans nodes is left, in any block, forward and backward. */
static void every_block_in_stages(void **state)
{
    static const char *const forms[] = {"two-stage", "two-stage(wide)", "two-stage(parts=2)"};
    static const graph_case cases[] = {
        {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, .1, 4, true, 1, 1, false},
        {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, 0, 4, true, 1, 1, true},
        {"stories260K", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_BF16, 0, 4, true, 1, 1, false},
        {"stories260K", DH_BLOCK_HEAD, DH_MODE_TRAIN, DH_BF16, 0, 4, true, 1, 1, false},
        {"stories260K", DH_BLOCK_EMBED, DH_MODE_EVAL, DH_F32, 0, 4, false, 1, 1, false},
        {"mixtral-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_BF16, 0, 1, true, 1, 4, false},
        {"mixtral-tiny", DH_BLOCK_LAYER, DH_MODE_EVAL, DH_F32, 0, 1, false, 1, 4, false},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (size_t k = 0; k < DH_COUNTOF(forms); k++) {
            const dh_mesh mesh = mesh_of(cases[i].ep, cases[i].tp, cases[i].ep, 2);
            dh_graph *g = build_case(&cases[i]);
            size_t n_spans = 0, n_left = 0;
            for (size_t o = 0; o < g->ops.n; o++) n_spans += spans(g, &mesh, &g->ops.at[o]);
            rewrite(g, &mesh, forms[k], NULL);
            for (size_t o = 0; o < g->ops.n; o++) n_left += spans(g, &mesh, &g->ops.at[o]);
            assert_true(n_spans > 0);
            assert_int_equal(n_left, 0);
            dh_graph_destroy(g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_in_stages),
        cmocka_unit_test(gathers_in_stages),
        cmocka_unit_test(scatters_in_stages),
        cmocka_unit_test(rows_in_stages),
        cmocka_unit_test(what_leaves_a_node_is_the_formula),
        cmocka_unit_test(what_is_left_says_why),
        cmocka_unit_test(where_it_does_not_apply),
        cmocka_unit_test(every_block_in_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
