/* What passes share: who uses what, and that no operator is carried over unseen. */
#include "graph_cases.h"

#include "graph/rewrite.h"

/* ---- uses ------------------------------------------------------------------------------- */

static uint32_t storage_of(const dh_graph *g, uint32_t id)
{
    const uint32_t base = g->tensors.at[id].base;
    return base == DH_NONE ? id : base;
}

/* By looking at every operand of every operator. */
static uint32_t first_use(const dh_graph *g, uint32_t storage, uint32_t begin, uint32_t end,
                          bool writes)
{
    for (uint32_t i = begin; i < end; i++)
        for (int k = 0; k < DH_MAX_OPERANDS; k++) {
            const uint32_t id = writes ? g->ops.at[i].out[k] : g->ops.at[i].in[k];
            if (id != DH_NONE && storage_of(g, id) == storage) return i;
        }
    return DH_NONE;
}

static bool has_views(const dh_graph *g, uint32_t id)
{
    for (size_t i = 0; i < g->tensors.n; i++)
        if (g->tensors.at[i].base == id) return true;
    return false;
}

static void check_uses(const graph_case *c, dh_graph *g)
{
    rewrite_uses uses;
    assert_true(rewrite_uses_init(&uses, g));
    const uint32_t n = (uint32_t)g->ops.n;
    for (uint32_t id = 0; id < g->tensors.n; id++) {
        assert_int_equal(uses.in_parts[id], has_views(g, id));
        if (g->tensors.at[id].base != DH_NONE) continue;
        for (uint32_t begin = 0; begin <= n; begin += 3)
            for (int writes = 0; writes < 2; writes++)
                assert_int_equal(rewrite_first_use(&uses, id, begin, n - begin / 2, writes),
                                 first_use(g, id, begin, n - begin / 2, writes));
    }
    rewrite_uses_fini(&uses);
}

static void uses_are_those_of_every_operand(void **state)
{
    assert_true(for_each_case(check_uses) > 100);
}

/* ---- operators without a rule ----------------------------------------------------------- */

static dh_status context(dh_ctx *ctx, dh_graph *g)
{
    return dh_pass_context_parallel(ctx, g, 2, 0);
}

static dh_status tensor(dh_ctx *ctx, dh_graph *g)
{
    return dh_pass_tensor_parallel(ctx, g, (dh_shard){.tp = 2});
}

static dh_status experts(dh_ctx *ctx, dh_graph *g)
{
    return dh_pass_expert_parallel(ctx, g, (dh_shard){.tp = 1, .ep = 2}, 2, NULL);
}

static void passes_refuse_what_they_do_not_know(void **state)
{
    const struct {
        const char *message;
        dh_status (*apply)(dh_ctx *, dh_graph *);
    } passes[] = {{"context parallelism has no rule for operator copy", context},
                  {"tensor parallelism has no rule for operator copy", tensor},
                  {"expert parallelism has no rule for operator copy", experts}};
    const graph_case c = {
        .preset = "mixtral-tiny", .kind = DH_BLOCK_LAYER, .tp = 1, .cp = 1, .ep = 1};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(passes); i++) {
        dh_graph *g = build_case(&c);
        dh_tensor copy = g->tensors.at[g->x_out];
        const uint32_t id = dh_graph_add_tensor(g, &copy);
        dh_graph_add_op(g, DH_OP_COPY, DH_PHASE_F, REWRITE_IDS(g->x_out), REWRITE_IDS(id));
        assert_ok(&ctx, dh_graph_check(&ctx, g));
        assert_fails(&ctx, passes[i].apply(&ctx, g), DH_EUNSUPPORTED, passes[i].message);
        dh_graph_destroy(g);
    }
}

/* A clone would count a state's contribution twice. */
static void recomputation_refuses_what_has_other_effects(void **state)
{
    const graph_case c = {.preset = "mixtral-tiny",
                          .kind = DH_BLOCK_LAYER,
                          .tp = 1,
                          .backward = true,
                          .cp = 1,
                          .ep = 1};
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = build_case(&c);
    for (size_t i = 0; i < g->ops.n; i++) {
        dh_op *op = &g->ops.at[i];
        if (op->type != DH_OP_MOE_ORDER) continue;
        dh_tensor counts = g->tensors.at[op->out[1]];
        counts.kind = DH_TENSOR_STATE;
        counts.which = DH_STATE_ROUTER;
        op->out[2] = dh_graph_add_tensor(g, &counts);
    }
    assert_fails(&ctx, dh_pass_recompute(&ctx, g, DH_RECOMPUTE_KIND_FULL), DH_EUNSUPPORTED,
                 "moe_order");
    dh_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uses_are_those_of_every_operand),
        cmocka_unit_test(passes_refuse_what_they_do_not_know),
        cmocka_unit_test(recomputation_refuses_what_has_other_effects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
