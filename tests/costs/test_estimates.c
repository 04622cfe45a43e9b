/* Estimates of collectives: the bytes that a rank sends over its link, and a latency a step. */
#include <math.h>
#include <string.h>

#include "costs/costs.h"
#include "dh_test.h"

enum { RANKS = 4, WHOLE = 1 << 20 }; /* elements of the whole vector, float32 */

static double estimate_ns(dh_op_type type, int64_t n_in, int64_t n_out)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh mesh;
    dh_arena *arena = dh_arena_create();
    const dh_cost_model model = {.link_bytes_per_s = {4e9, 4e9}, .link_latency_ns = {1000, 1000}};
    dh_tensor tensors[2] = {{.dtype = DH_F32, .ndim = 1, .shape = {n_in}, .base = DH_NONE},
                            {.dtype = DH_F32, .ndim = 1, .shape = {n_out}, .base = DH_NONE}};
    dh_op op;
    memset(&op, 0xff, sizeof op);
    op.wire = 0;
    op.type = type;
    op.phase = DH_PHASE_F;
    op.group = DH_GROUP_TP;
    op.in[0] = 0;
    op.out[0] = 1;
    dh_graph graph = {.tensors = {.at = tensors, .n = 2}, .ops = {.at = &op, .n = 1}};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, RANKS, 1, 1, 1, 1, 0, &mesh));
    const dh_costs *costs = dh_costs_estimated(arena, &model);
    assert_non_null(costs);
    const dh_cost_op at = {&graph, &op, &mesh, 0};
    const double ns = costs->solo(costs->self, &at).ns;
    dh_arena_destroy(arena);
    return ns;
}

/* Everybody has three quarters of the vector to send; for an all-reduce, twice. */
static void test_bytes_sent(void **state)
{
    const double once = 3 * 1000 + .75 * 4 * WHOLE / 4.;
    const double twice = 3 * 1000 + 2 * .75 * 4 * WHOLE / 4.;
    assert_true(fabs(estimate_ns(DH_OP_ALL_GATHER, WHOLE / RANKS, WHOLE) - once) < 1e-3);
    assert_true(fabs(estimate_ns(DH_OP_REDUCE_SCATTER, WHOLE, WHOLE / RANKS) - once) < 1e-3);
    assert_true(fabs(estimate_ns(DH_OP_ALL_TO_ALL, WHOLE, WHOLE) - once) < 1e-3);
    assert_true(fabs(estimate_ns(DH_OP_ALL_REDUCE, WHOLE, WHOLE) - twice) < 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes_sent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
