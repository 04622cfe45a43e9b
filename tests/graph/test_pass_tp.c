/* Tensor parallelism on graphs whose tokens are cut in parts, by hand: of every part a rank has
 * its share, and every part is gathered and reduced by itself. */
#include "graph_cases.h"

static void assert_splits_to(const char *text, const char *want_text, dh_sequence sequence)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = parse_graph(text), *want = parse_graph(want_text);
    const dh_shard shard = {.tp = 2, .tp_rank = 1, .sequence = sequence};
    assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g, shard));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    assert_same_graph(g, want);
    dh_graph_destroy(g);
    dh_graph_destroy(want);
}

/* ---- a norm in parts, a linear on all of it, a sum in parts -------------------------------- */

static const char layer[] = "dhelix.graph v2 layer eval f32\n"
                            "dims batch=2 seq=4 width=4\n"
                            "%0:x    act f32[8 tokens, 4 width]\n"
                            "%1:x.0  act f32[4 tokens, 4 width] view=%0+0\n"
                            "%2:x.1  act f32[4 tokens, 4 width] view=%0+4\n"
                            "%3:w    param f32[4 width] slot=0\n"
                            "%4:n    act f32[8 tokens, 4 width]\n"
                            "%5:n.0  act f32[4 tokens, 4 width] view=%4+0\n"
                            "%6:n.1  act f32[4 tokens, 4 width] view=%4+4\n"
                            "%7:s.0  act f32[4 tokens, 2]\n"
                            "%8:s.1  act f32[4 tokens, 2]\n"
                            "%9:w1   param f32[6 ffn, 4 width] slot=2\n"
                            "%10:w2  param f32[4 width, 6 ffn] slot=4\n"
                            "%11:h   act f32[8 tokens, 6 ffn]\n"
                            "%12:h.0 act f32[4 tokens, 6 ffn] view=%11+0\n"
                            "%13:h.1 act f32[4 tokens, 6 ffn] view=%11+4\n"
                            "%14:y   act f32[8 tokens, 4 width]\n"
                            "%15:y.0 act f32[4 tokens, 4 width] view=%14+0\n"
                            "%16:y.1 act f32[4 tokens, 4 width] view=%14+4\n"
                            "ends x_in=%0 x_out=%14\n"
                            "F %5, %7 = norm(%1, %3, -)\n"
                            "F %6, %8 = norm(%2, %3, -)\n"
                            "F %11 = linear(%4, %9)\n"
                            "F %15 = linear(%12, %10)\n"
                            "F %16 = linear(%13, %10)\n";

static const char layer_split[] = "dhelix.graph v2 layer eval f32\n"
                                  "dims batch=2 seq=4 width=4\n"
                                  "%0:x    act f32[4 tokens, 4 width]\n"
                                  "%1:x.0  act f32[2 tokens, 4 width] view=%0+0\n"
                                  "%2:x.1  act f32[2 tokens, 4 width] view=%0+2\n"
                                  "%3:w    param f32[4 width] slot=0\n"
                                  "%4:n    act f32[4 tokens, 4 width]\n"
                                  "%5:n.0  act f32[2 tokens, 4 width] view=%4+0\n"
                                  "%6:n.1  act f32[2 tokens, 4 width] view=%4+2\n"
                                  "%7:s.0  act f32[2 tokens, 2]\n"
                                  "%8:s.1  act f32[2 tokens, 2]\n"
                                  "%9:w1   param f32[3 ffn, 4 width] slot=2\n"
                                  "%10:w2  param f32[4 width, 3 ffn] slot=4\n"
                                  "%11:h   act f32[8 tokens, 3 ffn]\n"
                                  "%12:h.0 act f32[4 tokens, 3 ffn] view=%11+0\n"
                                  "%13:h.1 act f32[4 tokens, 3 ffn] view=%11+4\n"
                                  "%14:y   act f32[4 tokens, 4 width]\n"
                                  "%15:y.0 act f32[2 tokens, 4 width] view=%14+0\n"
                                  "%16:y.1 act f32[2 tokens, 4 width] view=%14+2\n"
                                  "%17:n.all    act f32[8 tokens, 4 width]\n"
                                  "%18:n.0      act f32[4 tokens, 4 width] view=%17+0\n"
                                  "%19:n.1      act f32[4 tokens, 4 width] view=%17+4\n"
                                  "%20:y.0.part act f32[4 tokens, 4 width]\n"
                                  "%21:y.1.part act f32[4 tokens, 4 width]\n"
                                  "ends x_in=%0 x_out=%14\n"
                                  "F %5, %7 = norm(%1, %3, -)\n"
                                  "F %6, %8 = norm(%2, %3, -)\n"
                                  "F %18 = all_gather(%5) {group=tp}\n"
                                  "F %19 = all_gather(%6) {group=tp}\n"
                                  "F %11 = linear(%17, %9)\n"
                                  "F %20 = linear(%12, %10)\n"
                                  "F %15 = reduce_scatter(%20) {group=tp}\n"
                                  "F %21 = linear(%13, %10)\n"
                                  "F %16 = reduce_scatter(%21) {group=tp}\n";

static void parts_are_shared_out_one_by_one(void **state)
{
    (void)state;
    assert_splits_to(layer, layer_split, DH_SEQUENCE_SPLIT);
}

/* ---- a head whose gradient leaves in parts ------------------------------------------------- */

static const char head[] = "dhelix.graph v2 head train f32\n"
                           "dims batch=2 seq=4 width=4 vocab=6\n"
                           "%0:x    act f32[8 tokens, 4 width]\n"
                           "%1:x.0  act f32[4 tokens, 4 width] view=%0+0\n"
                           "%2:x.1  act f32[4 tokens, 4 width] view=%0+4\n"
                           "%3:w    param f32[4 width] slot=0\n"
                           "%4:n    act f32[8 tokens, 4 width]\n"
                           "%5:n.0  act f32[4 tokens, 4 width] view=%4+0\n"
                           "%6:n.1  act f32[4 tokens, 4 width] view=%4+4\n"
                           "%7:s.0  act f32[4 tokens, 2]\n"
                           "%8:s.1  act f32[4 tokens, 2]\n"
                           "%9:wte  param f32[6 vocab, 4 width] slot=2\n"
                           "%10:l   act f32[8 tokens, 6 vocab]\n"
                           "%11:dn  act f32[8 tokens, 4 width]\n"
                           "ends x_in=%0 loss_x=%4 loss_dx=%11\n"
                           "F %5, %7 = norm(%1, %3, -)\n"
                           "F %6, %8 = norm(%2, %3, -)\n"
                           "F %10 = linear(%4, %9)\n"
                           "F %11 = linear_dgrad(%10, %9)\n";

static const char head_whole[] = "dhelix.graph v2 head train f32\n"
                                 "dims batch=2 seq=4 width=4 vocab=3\n"
                                 "%0:x    act f32[8 tokens, 4 width]\n"
                                 "%1:x.0  act f32[4 tokens, 4 width] view=%0+0\n"
                                 "%2:x.1  act f32[4 tokens, 4 width] view=%0+4\n"
                                 "%3:w    param f32[4 width] slot=0\n"
                                 "%4:n    act f32[8 tokens, 4 width]\n"
                                 "%5:n.0  act f32[4 tokens, 4 width] view=%4+0\n"
                                 "%6:n.1  act f32[4 tokens, 4 width] view=%4+4\n"
                                 "%7:s.0  act f32[4 tokens, 2]\n"
                                 "%8:s.1  act f32[4 tokens, 2]\n"
                                 "%9:wte  param f32[3 vocab, 4 width] slot=2\n"
                                 "%10:l   act f32[8 tokens, 3 vocab]\n"
                                 "%11:dn  act f32[8 tokens, 4 width]\n"
                                 "%12:dn.own act f32[8 tokens, 4 width]\n"
                                 "%13:n.0 act f32[4 tokens, 4 width] view=%11+0\n"
                                 "%14:n.0 act f32[4 tokens, 4 width] view=%12+0\n"
                                 "%15:n.1 act f32[4 tokens, 4 width] view=%11+4\n"
                                 "%16:n.1 act f32[4 tokens, 4 width] view=%12+4\n"
                                 "ends x_in=%0 loss_x=%4 loss_dx=%12\n"
                                 "F %5, %7 = norm(%1, %3, -)\n"
                                 "F %6, %8 = norm(%2, %3, -)\n"
                                 "F %10 = linear(%4, %9) {group=tp}\n"
                                 "F %11 = linear_dgrad(%10, %9)\n"
                                 "F %14 = all_reduce(%13) {group=tp}\n"
                                 "F %16 = all_reduce(%15) {group=tp}\n";

static const char head_split[] = "dhelix.graph v2 head train f32\n"
                                 "dims batch=2 seq=4 width=4 vocab=3\n"
                                 "%0:x    act f32[4 tokens, 4 width]\n"
                                 "%1:x.0  act f32[2 tokens, 4 width] view=%0+0\n"
                                 "%2:x.1  act f32[2 tokens, 4 width] view=%0+2\n"
                                 "%3:w    param f32[4 width] slot=0\n"
                                 "%4:n    act f32[4 tokens, 4 width]\n"
                                 "%5:n.0  act f32[2 tokens, 4 width] view=%4+0\n"
                                 "%6:n.1  act f32[2 tokens, 4 width] view=%4+2\n"
                                 "%7:s.0  act f32[2 tokens, 2]\n"
                                 "%8:s.1  act f32[2 tokens, 2]\n"
                                 "%9:wte  param f32[3 vocab, 4 width] slot=2\n"
                                 "%10:l   act f32[8 tokens, 3 vocab]\n"
                                 "%11:dn  act f32[8 tokens, 4 width]\n"
                                 "%12:n.all act f32[8 tokens, 4 width]\n"
                                 "%13:n.0 act f32[4 tokens, 4 width] view=%12+0\n"
                                 "%14:n.1 act f32[4 tokens, 4 width] view=%12+4\n"
                                 "%15:dn.own act f32[4 tokens, 4 width]\n"
                                 "%16:n.0 act f32[4 tokens, 4 width] view=%11+0\n"
                                 "%17:n.0 act f32[2 tokens, 4 width] view=%15+0\n"
                                 "%18:n.1 act f32[4 tokens, 4 width] view=%11+4\n"
                                 "%19:n.1 act f32[2 tokens, 4 width] view=%15+2\n"
                                 "ends x_in=%0 loss_x=%4 loss_dx=%15\n"
                                 "F %5, %7 = norm(%1, %3, -)\n"
                                 "F %6, %8 = norm(%2, %3, -)\n"
                                 "F %13 = all_gather(%5) {group=tp}\n"
                                 "F %14 = all_gather(%6) {group=tp}\n"
                                 "F %10 = linear(%12, %9)\n"
                                 "F %11 = linear_dgrad(%10, %9)\n"
                                 "F %17 = reduce_scatter(%16) {group=tp}\n"
                                 "F %19 = reduce_scatter(%18) {group=tp}\n";

static void the_loss_gradient_is_reduced_by_parts(void **state)
{
    (void)state;
    assert_splits_to(head, head_whole, DH_SEQUENCE_WHOLE);
    assert_splits_to(head, head_split, DH_SEQUENCE_SPLIT);
}

/* ---- inputs of a part ---------------------------------------------------------------------- */

static const char masks[] = "dhelix.graph v2 layer train f32\n"
                            "dims batch=2 seq=4 width=4 dropout=0.5\n"
                            "%0:x    act f32[8 tokens, 4 width]\n"
                            "%1:x.1  act f32[4 tokens, 4 width] view=%0+4\n"
                            "%2:y    act f32[8 tokens, 4 width]\n"
                            "%3:y.1  act f32[4 tokens, 4 width] view=%2+4\n"
                            "%4:pos  input i32[8 tokens] slot=pos\n"
                            "%5:p.1  input i32[4 tokens] slot=pos view=%4+4\n"
                            "%6:w    param f32[4 width, 6 ffn] slot=4\n"
                            "%7:h    act f32[4 tokens, 6 ffn]\n"
                            "%8:f    act f32[4 tokens, 4 width]\n"
                            "ends x_in=%0 x_out=%2\n"
                            "F %7 = activation(%1)\n"
                            "F %8 = linear(%7, %6)\n"
                            "F %3 = residual(%1, %8, -, %5, %5) {site=mlp}\n";

static void positions_are_those_of_the_part(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = parse_graph(masks);
    const dh_shard shard = {.tp = 2, .tp_rank = 1};
    (void)state;
    assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g, shard));
    const dh_tensor *own = &g->tensors.at[g->ops.at[g->ops.n - 1].in[3]];
    assert_int_equal(own->base, 4);
    assert_int_equal(own->row0, 6);
    assert_int_equal(own->shape[0], 2);
    dh_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_shared_out_one_by_one),
        cmocka_unit_test(the_loss_gradient_is_reduced_by_parts),
        cmocka_unit_test(positions_are_those_of_the_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
