/* Groups in two stages, as programs of whole meshes: all verify; what crosses nodes is the closed
 * formula; a stage of a gradient's sum, or of a parameter's gather, that all ranks leave out is
 * found. */
#include "meshes.h"
#include "strategy/strategy.h"

static setup setup_of(const char *strategy, int64_t tp, int64_t dp, int64_t per_node)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = {"llama-tiny", "1f1b", tp, 1,    dp, per_node, 2, 32,   DH_F32,
               false,        1,      0,  NULL, 0,  0,        0, false};
    assert_ok(&ctx, dh_strategy_find(&ctx, strategy, &s.strategy));
    return s;
}

/* centauri, whatever costs would choose */
static const dh_strategy staged = {.name = "staged",
                                   .passes =
                                       DH_PASSES(1, DH_PASS_USE(two_stage, DH_STAGES_NARROW, 1)),
                                   .policy = "sequential"};

/* ---- bytes --------------------------------------------------------------------------------- */

static int64_t larger_side(const dh_graph *g, const dh_op *op)
{
    return DH_MAX(dh_tensor_bytes(&g->tensors.at[op->in[0]]),
                  dh_tensor_bytes(&g->tensors.at[op->out[0]]));
}

typedef enum carried { LAYERS, GRADIENTS, PARAMETERS } carried;

static carried what_carries(const dh_graph *g, const dh_op *op)
{
    if (g->kind == DH_BLOCK_GATHER) return PARAMETERS;
    if (g->kind == DH_BLOCK_OPT && op->type == DH_OP_ALL_GATHER) return PARAMETERS;
    return g->kind == DH_BLOCK_GRADS ? GRADIENTS : LAYERS;
}

/* n times what the rank sends over links between nodes of one kind: rings of the group's members, n
 * of the group of all. */
static int64_t crossing(const dh_program *p, carried what, int64_t n)
{
    int64_t sum = 0;
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_graph *g = dh_instr_graph(p, instr);
        const dh_op *op = dh_instr_op(p, instr);
        const bool sums_norm = g->kind == DH_BLOCK_OPT && op->type != DH_OP_ALL_GATHER;
        if (dh_op_info_of(op->type)->resource != DH_RES_COMM || sums_norm ||
            dh_stream_engine((dh_stream)instr->stream) != DH_ENGINE_CROSS ||
            what_carries(g, op) != what)
            continue;
        const int64_t members = dh_mesh_group_size(&p->mesh, (dh_group_kind)op->group);
        const int64_t rounds = op->type == DH_OP_ALL_REDUCE ? 2 : 1;
        sum += rounds * larger_side(g, op) * (members - 1) * (n / members);
    }
    return sum;
}

/* gathers_first: those of parameters at the beginning of a step, where the optimizer has them. */
static int64_t crossing_of(const setup *s, bool gathers_first, carried what, int64_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = prepare(s);
    m->spec.recipe.sharing.gather = gathers_first ? DH_GATHER_FORWARD : DH_GATHER_OPTIMIZER;
    build_all(m);
    assert_ok(&ctx, verify(&ctx, m));
    const int64_t sum = crossing(m->at[0], what, n);
    for (size_t r = 1; r < m->n; r++) assert_int_equal(crossing(m->at[r], what, n), sum);
    destroy(m);
    return sum;
}

/* Of n = k N ranks one sends (N - 1) / (n - 1) of what it did in one stage, whatever the calls. */
static void check_crossing(const setup *one, bool gathers_first, carried what, int64_t n,
                           int64_t n_nodes)
{
    setup two = *one;
    two.strategy = &staged;
    const int64_t before = crossing_of(one, gathers_first, what, n);
    assert_true(before > 0);
    assert_int_equal(crossing_of(&two, gathers_first, what, n) * (n - 1), before * (n_nodes - 1));
}

static void what_crosses_is_the_formula(void **state)
{
    static const struct {
        int64_t tp, dp, per_node;
    } meshes[] = {{4, 1, 2}, {1, 4, 2}, {1, 8, 2}, {1, 12, 4}, {2, 4, 4}};
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++)
        for (int64_t zero = 0; zero <= 3; zero++) {
            const int64_t tp = meshes[i].tp, dp = meshes[i].dp, per_node = meshes[i].per_node;
            const bool of_data = tp <= per_node;
            const int64_t n = of_data ? dp : tp, n_nodes = tp * dp / per_node;
            setup one = setup_of("sequential", tp, dp, per_node);
            if (zero > 0 && !of_data) continue;
            one.zero = zero;
            check_crossing(&one, false, of_data ? GRADIENTS : LAYERS, n, n_nodes);
            if (zero > 0) check_crossing(&one, false, PARAMETERS, n, n_nodes);
            if (zero == 1 || zero == 2) check_crossing(&one, true, PARAMETERS, n, n_nodes);
        }
}

/* ---- sums that are left out ---------------------------------------------------------------- */

/* Those of a type on an engine's links. */
static bool drop_calls(dh_program *p, dh_block_kind kind, dh_op_type type, dh_engine engine)
{
    const size_t n = p->instrs.n;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const dh_instr instr = p->instrs.at[i];
        const bool drops = dh_instr_graph(p, &instr)->kind == kind &&
                           dh_instr_op(p, &instr)->type == type &&
                           dh_stream_engine((dh_stream)instr.stream) == engine;
        if (!drops) p->instrs.at[kept++] = instr;
    }
    p->instrs.n = kept;
    return kept < n;
}

static void a_stage_that_all_leave_out_is_found(void **state)
{
    static const struct {
        dh_op_type type;
        dh_engine engine;
        int64_t zero;
    } stages[] = {
        {DH_OP_REDUCE_SCATTER, DH_ENGINE_LOCAL, 0}, {DH_OP_ALL_REDUCE, DH_ENGINE_CROSS, 0},
        {DH_OP_ALL_GATHER, DH_ENGINE_LOCAL, 0},     {DH_OP_REDUCE_SCATTER, DH_ENGINE_LOCAL, 1},
        {DH_OP_REDUCE_SCATTER, DH_ENGINE_CROSS, 1}, {DH_OP_REDUCE_SCATTER, DH_ENGINE_LOCAL, 2},
        {DH_OP_REDUCE_SCATTER, DH_ENGINE_CROSS, 2}};
    for (size_t i = 0; i < DH_COUNTOF(stages); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        setup s = setup_of("centauri", 1, 4, 2);
        s.strategy = &staged;
        s.zero = stages[i].zero;
        mesh_programs *m = build(&s);
        assert_ok(&ctx, dh_sums_verify(&ctx, m->at[1]));
        assert_true(drop_calls(m->at[1], DH_BLOCK_GRADS, stages[i].type, stages[i].engine));
        assert_int_equal(dh_sums_verify(&ctx, m->at[1]), DH_EVERIFY);
        assert_non_null(strstr(ctx.message, "was not summed over group dp-cp"));
        destroy(m);
    }
}

/* Gathers of parameters that a step's optimizer, or the next step, has. */
static void a_gather_that_all_leave_out_is_found(void **state)
{
    for (int k = 0; k < 8; k++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_engine engine = k & 1 ? DH_ENGINE_CROSS : DH_ENGINE_LOCAL;
        setup s = setup_of("centauri", 1, 4, 2);
        s.strategy = &staged;
        s.zero = 1 + (k >> 2);
        mesh_programs *m = prepare(&s);
        m->spec.recipe.sharing.gather = k & 2 ? DH_GATHER_FORWARD : DH_GATHER_OPTIMIZER;
        build_all(m);
        assert_ok(&ctx, dh_sums_verify(&ctx, m->at[2]));
        assert_true(
            drop_calls(m->at[2], k & 2 ? DH_BLOCK_GATHER : DH_BLOCK_OPT, DH_OP_ALL_GATHER, engine));
        assert_int_equal(dh_sums_verify(&ctx, m->at[2]), DH_EVERIFY);
        assert_non_null(strstr(ctx.message, "group dp-cp does not gather them all"));
        destroy(m);
    }
}

/* ---- what costs choose ----------------------------------------------------------------------- */

static bool in_stages(const dh_program *p, carried what)
{
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        if (what_carries(dh_instr_graph(p, instr), dh_instr_op(p, instr)) == what &&
            dh_stream_engine((dh_stream)instr->stream) == DH_ENGINE_LOCAL)
            return true;
    }
    return false;
}

/* Where bytes between nodes are what takes long, sums and gathers go in stages; where calls are, in
 * one. */
static void costs_choose_sums(void **state)
{
    static const dh_cost_model slow = {
        .link_bytes_per_s = {[DH_ENGINE_LOCAL] = 1e11, [DH_ENGINE_CROSS] = 1e8},
        .link_latency_ns = {[DH_ENGINE_LOCAL] = 1, [DH_ENGINE_CROSS] = 1}};
    static const dh_cost_model late = {
        .link_bytes_per_s = {[DH_ENGINE_LOCAL] = 1e11, [DH_ENGINE_CROSS] = 1e11},
        .link_latency_ns = {[DH_ENGINE_LOCAL] = 1e9, [DH_ENGINE_CROSS] = 1}};
    for (int64_t zero = 0; zero <= 3; zero++)
        for (int is_slow = 0; is_slow < 2; is_slow++) {
            dh_ctx ctx = DH_CTX_INIT;
            dh_arena *arena = dh_arena_create();
            setup s = setup_of("centauri", 1, 4, 2);
            s.zero = zero;
            mesh_programs *m = prepare(&s);
            m->spec.recipe.costs = dh_costs_estimated(arena, is_slow ? &slow : &late);
            build_all(m);
            assert_ok(&ctx, verify(&ctx, m));
            for (size_t r = 0; r < m->n; r++) {
                assert_int_equal(in_stages(m->at[r], GRADIENTS), is_slow);
                assert_int_equal(in_stages(m->at[r], PARAMETERS), is_slow && zero > 0);
            }
            destroy(m);
            dh_arena_destroy(arena);
        }
}

/* The same mesh by classes of ranks, which differ by place on the axis that nodes cut. */
static void classes_verify(void **state)
{
    static const struct {
        int64_t tp, dp, per_node, ep, zero;
    } meshes[] = {{4, 2, 2, 1, 0}, {2, 8, 8, 1, 0},  {1, 16, 4, 8, 0}, {2, 16, 4, 8, 0},
                  {2, 8, 8, 1, 1}, {1, 16, 4, 8, 2}, {4, 8, 8, 1, 2}};
    for (size_t i = 0; i < 2 * DH_COUNTOF(meshes); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const size_t k = i / 2;
        setup s = setup_of("centauri", meshes[k].tp, meshes[k].dp, meshes[k].per_node);
        if (meshes[k].ep > 1) s.preset = "mixtral-tiny", s.ep = meshes[k].ep;
        if (meshes[k].ep == 1 && i % 2) continue;
        s.moe = i % 2 ? DH_MOE_DROPLESS : DH_MOE_CAPACITY;
        s.zero = meshes[k].zero;
        mesh_programs *m = prepare(&s);
        dh_mesh_footprint all;
        assert_ok(&ctx, dh_mesh_verify(&ctx, &m->spec, &all));
        assert_true(all.n_classes < all.n_ranks || s.zero > 0);
        destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_crosses_is_the_formula),
        cmocka_unit_test(a_stage_that_all_leave_out_is_found),
        cmocka_unit_test(a_gather_that_all_leave_out_is_found),
        cmocka_unit_test(costs_choose_sums),
        cmocka_unit_test(classes_verify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
