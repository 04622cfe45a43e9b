/* Shapes of operands: the rows of the table hold for every graph that is made here, and find what
 * does not fit. */
#include "graph_cases.h"

#include "config/mesh.h"
#include "graph/shapes.h"

static int64_t members_of(const graph_case *c, const dh_op *op)
{
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return 1;
    return op->group == DH_GROUP_TP ? c->tp : op->group == DH_GROUP_CP ? c->cp : c->ep;
}

static int n_checked;
static bool met[DH_N_OP_TYPE];

static void check_graph(const graph_case *c, dh_graph *g)
{
    for (uint32_t i = 0; i < g->ops.n; i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_op *op = &g->ops.at[i];
        if (!dh_op_stands_alone(op->type) || preset(c->preset).n_experts > 0) continue;
        if (op->type == DH_OP_EMBED && g->mode == DH_MODE_DECODE) continue;
        assert_ok(&ctx, dh_op_check_shapes(&ctx, g, i, members_of(c, op)));
        met[op->type] = true;
        n_checked++;
    }
}

static void graphs_of_models_fit(void **state)
{
    for_each_case(check_graph);
    assert_true(n_checked > 5000);
    static const dh_op_type in_models[] = {
        DH_OP_EMBED,        DH_OP_NORM,         DH_OP_LINEAR,        DH_OP_ROPE,
        DH_OP_ATTN,         DH_OP_RESIDUAL,     DH_OP_ACT,           DH_OP_LOSS_STATS,
        DH_OP_LOSS,         DH_OP_LOSS_GRAD,    DH_OP_NORM_DGRAD,    DH_OP_LINEAR_DGRAD,
        DH_OP_LINEAR_WGRAD, DH_OP_ATTN_GRAD,    DH_OP_ALL_GATHER,    DH_OP_ALL_REDUCE,
        DH_OP_ACT_GRAD,     DH_OP_DROPOUT_GRAD, DH_OP_BIAS_GRAD,     DH_OP_ROPE_GRAD,
        DH_OP_EMBED_GRAD,   DH_OP_NORM_WGRAD,   DH_OP_REDUCE_SCATTER};
    for (size_t i = 0; i < DH_COUNTOF(in_models); i++)
        if (!met[in_models[i]]) fail_msg("%s was not met", dh_op_info_of(in_models[i])->name);
}

#define HEAD                                                                                       \
    "dhelix.graph v2 program train f32\n"                                                          \
    "dims batch=1 seq=8 n_heads=2 n_kv_heads=1 head_dim=4 act=swiglu\n"                            \
    "%0:x range f32[8, 6] slot=0\n%1:w range f32[4, 6] slot=1\n"                                   \
    "%2:b range bf16[8, 6] slot=2\n%3:i range i32[8] slot=3\n"                                     \
    "%4:v range f32[6] slot=4\n%5:y act f32[8, 4]\n%6:z act f32[4, 6]\n%7:s act f32[8, 2]\n"       \
    "%8:big act f32[24, 6]\n%9:n act f32[8, 6]\n%10:lse act f32[1, 2, 8]\n"

static void misfits_are_named(void **state)
{
    static const struct {
        const char *op, *message;
        dh_status status;
    } cases[] = {
        {"F %5 = linear(%0, %1)", NULL, DH_OK},
        {"F %5, - = linear_gelu(%0, %1, -)", NULL, DH_OK},
        {"F %5, %9 = linear_gelu(%0, %1, -)", "operand h is n f32[8, 6]; it must be f32 [8, 4]",
         DH_EINVAL},
        {"F %5 = linear(%0, %1, %4)", "operand b is v f32[6]; it must be f32 [4]", DH_EINVAL},
        {"F %7 = linear(%0, %1)", "operand y is s f32[8, 2]; it must be f32 [8, 4]", DH_EINVAL},
        {"F %5 = linear(%2, %1)", NULL, DH_OK},
        {"F %5 = linear(%3, %1)", "operand x is i i32[8]; it must be f32 or bf16 [N, I]",
         DH_EINVAL},
        {"F %9, %7 = norm(%0, %4)", NULL, DH_OK},
        {"F %9, %7 = norm(%0, %1)", "operand w is w f32[4, 6]; it must be f32 [6]", DH_EINVAL},
        {"F %9, %5 = norm(%0, %4)", "operand stats is y f32[8, 4]; it must be f32 [8, 2]",
         DH_EINVAL},
        {"F %9 = add(%0, %2)", "operand b is b bf16[8, 6]; it must be f32 [8, 6]", DH_EINVAL},
        {"F %9 = copy(%2)", "operand y is n f32[8, 6]; it must be bf16 [8, 6]", DH_EINVAL},
        {"F %8 = all_gather(%0) {group=tp}", NULL, DH_OK},
        {"F %9 = all_gather(%0) {group=tp}", "it must be f32 [24, 6]", DH_EINVAL},
        {"F %9 = all_reduce(%0) {group=tp}", NULL, DH_OK},
        {"F %6 = reduce_scatter(%0) {group=tp}",
         "operand x is x f32[8, 6]; it must be any type [rows that divide by 3]", DH_EINVAL},
        {"F %9 = all_to_all(%0) {group=tp}", "do not divide by the members", DH_EINVAL},
        {"F %5 = activation(%0)", "operand g is y f32[8, 4]; it must be f32 [8, 3]", DH_EINVAL},
        {"F %9, %10 = attention(%0)", "head_dim columns by dims", DH_EINVAL},
        {"F %9 = moe_permute(%0, %3)", "cannot stand in a program of its own", DH_EUNSUPPORTED},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        char text[1200];
        snprintf(text, sizeof text, "%s%s\n", HEAD, cases[i].op);
        dh_graph *g = parse_graph(text);
        const dh_status st = dh_op_check_shapes(&ctx, g, 0, 3);
        if (st != cases[i].status || (cases[i].message && !strstr(ctx.message, cases[i].message)))
            fail_msg("%s: %s: %s", cases[i].op, dh_status_name(st), ctx.message);
        dh_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_of_models_fit),
        cmocka_unit_test(misfits_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
