/* CoCoNet's split and reorder: the forms by hand, what is left alone and why, and that plain tensor
 * parallelism, rewritten, is sequence parallelism. */
#include "graph_cases.h"

#include "config/mesh.h"
#include "graph/pass.h"

static void rewrite(dh_graph *g, const char *passes, dh_pass_report *report)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_list list;
    dh_graph_spec spec = {.sharing.sequence = DH_SEQUENCE_WHOLE};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, 2, 1, 1, 1, 0, 0, &spec.mesh));
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &list));
    for (int64_t i = 0; i < list.n; i++) {
        const dh_pass_work work = {.graph = g,
                                   .spec = &spec,
                                   .rank = {.shard = {.tp = 2, .tp_rank = 1}, .rank = 1},
                                   .args = list.at[i].args,
                                   .report = report};
        assert_null(list.at[i].pass->applicable(&spec, list.at[i].args));
        assert_ok(&ctx, list.at[i].pass->apply(&ctx, &work));
        assert_ok(&ctx, dh_graph_check(&ctx, g));
    }
}

/* ---- by hand -------------------------------------------------------------------------------- */

#define HEAD                                                                                       \
    "dhelix.graph v2 program train f32\n"                                                          \
    "%0:x    range f32[8 tokens, 4 width] slot=0\n%1:w    range f32[4 width, 4 ffn] slot=1\n"      \
    "%2:b    range f32[4 width] slot=2\n%3:mine range f32[8 tokens, 4 heads] slot=3\n"             \
    "%4:p    act f32[8 tokens, 4 width]\n%5:s    act f32[8 tokens, 4 width]\n"                     \
    "%6:y    act f32[8 tokens, 4 width]\n%7:z    act f32[8 tokens, 4 width]\n"

/* Rank 1 of 2: x's rows from 4 on; only what is left is gathered. */
static void the_first_example_of_the_paper(void **state)
{
    dh_graph *got = parse_graph(HEAD "F %4 = linear(%0, %1)\nF %5 = all_reduce(%4) {group=tp}\n"
                                     "F %6 = residual(%0, %5, %2)\nF %7 = activation(%6)\n");
    dh_graph *want = parse_graph(HEAD "%8:s.own act f32[4 tokens, 4 width]\n"
                                      "%9:x.own range f32[4 tokens, 4 width] slot=0 view=%0+4\n"
                                      "%10:y.own act f32[4 tokens, 4 width]\n"
                                      "%11:z.own act f32[4 tokens, 4 width]\n"
                                      "F %4 = linear(%0, %1)\n"
                                      "F %8 = reduce_scatter(%4) {group=tp}\n"
                                      "F %10 = residual(%9, %8, %2)\nF %11 = activation(%10)\n"
                                      "F %7 = all_gather(%11) {group=tp}\n");
    rewrite(got, "split, reorder", NULL);
    assert_same_graph(got, want);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

/* Chunk by chunk through all that works by rows: rows 4 and 5 of x, then 6 and 7. */
static void the_example_is_fused(void **state)
{
    dh_graph *got = parse_graph(HEAD "F %4 = linear(%0, %1)\nF %5 = all_reduce(%4) {group=tp}\n"
                                     "F %6 = residual(%0, %5, %2)\nF %7 = activation(%6)\n");
    dh_graph *want =
        parse_graph(HEAD "%8:s.own act f32[4 tokens, 4 width]\n"
                         "%9:x.own range f32[4 tokens, 4 width] slot=0 view=%0+4\n"
                         "%10:y.own act f32[4 tokens, 4 width]\n"
                         "%11:z.own act f32[4 tokens, 4 width]\n"
                         "%12:x.own.0 range f32[2 tokens, 4 width] slot=0 view=%0+4\n"
                         "%13:y.own.0 act f32[2 tokens, 4 width] view=%10+0\n"
                         "%14:s.own.0 act f32[2 tokens, 4 width] view=%8+0\n"
                         "%15:y.own.0 act f32[2 tokens, 4 width] view=%10+0\n"
                         "%16:z.own.0 act f32[2 tokens, 4 width] view=%11+0\n"
                         "%17:x.own.1 range f32[2 tokens, 4 width] slot=0 view=%0+6\n"
                         "%18:y.own.1 act f32[2 tokens, 4 width] view=%10+2\n"
                         "%19:s.own.1 act f32[2 tokens, 4 width] view=%8+2\n"
                         "%20:y.own.1 act f32[2 tokens, 4 width] view=%10+2\n"
                         "%21:z.own.1 act f32[2 tokens, 4 width] view=%11+2\n"
                         "F %4 = linear(%0, %1)\nF %8 = reduce_scatter(%4) {group=tp, parts=2}\n"
                         "F %13 = residual(%12, %14, %2)\nF %16 = activation(%15)\n"
                         "F %18 = residual(%17, %19, %2)\nF %21 = activation(%20)\n"
                         "F %7 = all_gather(%11) {group=tp}\n");
    rewrite(got, "split, reorder, fuse", NULL);
    assert_same_graph(got, want);
    dh_pass_report report = {.n_places = 0};
    rewrite(got, "fuse(4)", &report);
    assert_same_graph(got, want);
    assert_int_equal(report.left.n, 1);
    assert_string_equal(report.left.at[0].why, "it is used in parts");
    dh_vec_fini(&report.left);
    dh_graph_destroy(got);
    dh_graph_destroy(want);
}

static void assert_left(const char *text, const char *passes, const char *why)
{
    dh_pass_report report = {.n_places = 0};
    dh_graph *g = parse_graph(text);
    rewrite(g, passes, &report);
    for (size_t i = 0; i < report.left.n; i++)
        if (strcmp(report.left.at[i].why, why) == 0) {
            dh_vec_fini(&report.left);
            dh_graph_destroy(g);
            return;
        }
    fail_msg("%zu were left, none since %s", report.left.n, why);
}

#define SUMMED HEAD "F %4 = linear(%0, %1)\nF %5 = all_reduce(%4) {group=tp}\n"

static void what_is_left_says_why(void **state)
{
    assert_left("dhelix.graph v2 program train f32\n%0:x range f32[7] slot=0\n%1:y act f32[7]\n"
                "F %1 = all_reduce(%0) {group=tp}\n",
                "split", "its rows do not divide by the ranks of its group");
    assert_left(SUMMED "F %6 = add(%5, %3)\n", "split, reorder",
                "an operand by rows is not the same on all ranks");
    assert_left(SUMMED "F %7 = linear(%0, %1)\nF %6 = add(%7, %5)\n", "split, reorder",
                "an operand by rows is not the same on all ranks");
    assert_left(SUMMED "%8:mb range f32[4 heads] slot=4\nF %6 = residual(%0, %5, %8)\n",
                "split, reorder", "an operand for all rows is not the same on all ranks");
    assert_left(SUMMED "%8:out range f32[8 tokens, 4 width] slot=4\nF %8 = add(%0, %5)\n",
                "split, reorder", "its result is no passing value");
    assert_left(SUMMED "W %2 = bias_grad(%5)\n", "split, reorder", "it is a sum over all rows");
    assert_left(SUMMED "F %6 = linear(%5, %1)\n", "split, fuse",
                "what reads it first does not work by rows");
    assert_left(SUMMED "F %6 = residual(%0, %5, %2)\n", "split, reorder, fuse(3)",
                "its rows are not so many equal parts");
    assert_left(HEAD "%8:own act f32[4 tokens, 4 width]\nF %8 = reduce_scatter(%0) {group=tp}\n",
                "fuse", "nothing reads it");
}

/* ---- sequence parallelism ------------------------------------------------------------------- */

static dh_graph *make(const char *name, dh_block_kind kind, int64_t tp, bool whole,
                      dh_recompute_kind recompute, const char *passes)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    const dh_model model = preset(name);
    dh_graph_spec spec = {.build = {.model = &model,
                                    .mode = DH_MODE_TRAIN,
                                    .dtype = DH_BF16,
                                    .batch = 2,
                                    .seq = 64,
                                    .dropout = 0.1,
                                    .loss_scale = 1.0 / 384,
                                    .head_chunk_bytes = 64 * 4 * model.vocab},
                          .recompute = recompute,
                          .sharing.sequence = whole ? DH_SEQUENCE_WHOLE : DH_SEQUENCE_SPLIT};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, tp, 1, 1, 1, 0, 0, &spec.mesh));
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &spec.passes));
    const dh_graph_rank rank = {
        .shard = {.tp = tp,
                  .tp_rank = tp - 1,
                  .ep = 1,
                  .sequence = whole ? DH_SEQUENCE_WHOLE : DH_SEQUENCE_SPLIT}};
    assert_true((dh_graph_sequence(&spec) == DH_SEQUENCE_WHOLE) ==
                (whole && strstr(passes, "reorder") == NULL));
    assert_ok(&ctx, dh_graph_make(&ctx, &spec, kind, rank, NULL, &g));
    return g;
}

/* Operators by type, elements that each reads, and bytes sent by collectives: a ring's, of which an
 * all-reduce has both halves. */
typedef struct tally {
    size_t n[DH_N_OP_TYPE];
    int64_t elements[DH_N_OP_TYPE];
    double sent;
} tally;

static tally tally_of(const dh_graph *g, int64_t tp)
{
    tally t = {.sent = 0};
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        t.n[op->type]++;
        if (op->in[0] == DH_NONE) continue;
        t.elements[op->type] += dh_tensor_elements(&g->tensors.at[op->in[0]]);
        const double share = (double)(tp - 1) / (double)tp;
        const double bytes = (double)dh_tensor_bytes(&g->tensors.at[op->in[0]]);
        if (op->type == DH_OP_ALL_REDUCE) t.sent += 2 * share * bytes;
        if (op->type == DH_OP_REDUCE_SCATTER) t.sent += share * bytes;
        if (op->type == DH_OP_ALL_GATHER) t.sent += (double)(tp - 1) * bytes;
    }
    return t;
}

static void assert_same_tally(const tally *a, const tally *b, const char *what)
{
    for (int t = 0; t < DH_N_OP_TYPE; t++)
        if (a->n[t] != b->n[t] || a->elements[t] != b->elements[t])
            fail_msg("%s: %s: %zu of %lld elements, not %zu of %lld", what,
                     dh_op_info_of((dh_op_type)t)->name, a->n[t], (long long)a->elements[t],
                     b->n[t], (long long)b->elements[t]);
    assert_true(a->sent == b->sent);
}

static void sequence_parallelism_is_found(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny", "stories260K"};
    for (size_t p = 0; p < DH_COUNTOF(presets); p++)
        for (int kind = DH_BLOCK_EMBED; kind <= DH_BLOCK_HEAD; kind++)
            for (int recompute = 0; recompute <= DH_RECOMPUTE_KIND_FULL; recompute++)
                for (int64_t tp = 2; tp <= (p == 1 ? 2 : 4); tp += 2) {
                    const dh_block_kind block = (dh_block_kind)kind;
                    const dh_recompute_kind again = (dh_recompute_kind)recompute;
                    dh_graph *plain = make(presets[p], block, tp, true, again, "");
                    dh_graph *want = make(presets[p], block, tp, false, again, "");
                    dh_graph *got = make(presets[p], block, tp, true, again, "split, reorder");
                    dh_graph *kept =
                        make(presets[p], block, tp, true, again, "split, reorder(regather=false)");
                    const tally a = tally_of(got, tp), b = tally_of(want, tp),
                                c = tally_of(kept, tp), d = tally_of(plain, tp);
                    if (recompute == DH_RECOMPUTE_KIND_NONE) {
                        assert_same_tally(&a, &b, presets[p]);
                        /* As much is sent as by all-reduces, where nothing is gathered again. */
                        if (kind == DH_BLOCK_LAYER) assert_true(c.sent == d.sent);
                    }
                    assert_true(a.n[DH_OP_ALL_REDUCE] == 0 && c.n[DH_OP_ALL_REDUCE] == 0);
                    if (want->x_out != DH_NONE)
                        assert_true(got->tensors.at[got->x_out].shape[0] ==
                                    want->tensors.at[want->x_out].shape[0]);
                    dh_graph_destroy(plain);
                    dh_graph_destroy(want);
                    dh_graph_destroy(got);
                    dh_graph_destroy(kept);
                }
}

static void jobs_say_why_not(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = preset("gpt2-tiny"), experts = preset("mixtral-tiny");
    dh_graph_spec spec = {.build = {.model = &model, .batch = 2, .seq = 8},
                          .sharing.sequence = DH_SEQUENCE_WHOLE};
    const int64_t none[DH_MAX_PASS_PARAMS] = {0};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, 2, 1, 1, 1, 0, 0, &spec.mesh));
    assert_null(dh_pass_row_split.applicable(&spec, none));
    assert_non_null(strstr(dh_pass_row_reorder.applicable(&spec, none), "no pass split before it"));
    assert_ok(&ctx, dh_pass_list_parse(&ctx, "split, reorder", &spec.passes));
    assert_null(dh_pass_row_reorder.applicable(&spec, none));
    spec.build.seq = 7;
    spec.build.batch = 1;
    assert_non_null(strstr(dh_pass_row_reorder.applicable(&spec, none), "do not divide"));
    assert_int_equal(dh_graph_sequence(&spec), DH_SEQUENCE_WHOLE);
    assert_non_null(strstr(dh_pass_row_fuse.applicable(&spec, none), "every rank has all tokens"));
    spec.build.seq = 8;
    assert_null(dh_pass_row_fuse.applicable(&spec, none));
    spec.build.model = &experts;
    assert_non_null(strstr(dh_pass_row_reorder.applicable(&spec, none), "experts"));
    spec.sharing.sequence = DH_SEQUENCE_SPLIT;
    assert_non_null(strstr(dh_pass_row_split.applicable(&spec, none), "tokens are split already"));
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, 1, 1, 1, 1, 0, 0, &spec.mesh));
    assert_non_null(strstr(dh_pass_row_split.applicable(&spec, none), "one rank"));
    assert_non_null(strstr(dh_pass_row_fuse.applicable(&spec, none), "one rank"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_example_of_the_paper),
        cmocka_unit_test(the_example_is_fused),
        cmocka_unit_test(what_is_left_says_why),
        cmocka_unit_test(sequence_parallelism_is_found),
        cmocka_unit_test(jobs_say_why_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
