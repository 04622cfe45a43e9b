/* Which operator runs on which stream: by what it occupies, its group, and what that is for. */
#include "dh_test.h"

#include "graph/stream.h"

static dh_stream stream_of(dh_group_kind group, int64_t dp, int64_t tp, int64_t pp, int64_t nodes)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh mesh;
    const dh_op op = {.type = DH_OP_ALL_REDUCE, .group = (int32_t)group};
    assert_ok(&ctx, dh_mesh_init(&ctx, dp, tp, pp, 1, 1, nodes, 0, &mesh));
    return dh_stream_of(&op, &mesh, mesh.ranks - 1);
}

static void computation_has_one_stream(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh mesh;
    assert_ok(&ctx, dh_mesh_init(&ctx, 2, 2, 2, 1, 1, 2, 0, &mesh));
    for (int type = 0; type < DH_N_OP_TYPE; type++) {
        const dh_op op = {.type = (dh_op_type)type, .group = DH_GROUP_WORLD};
        const bool links = dh_op_info_of(op.type)->resource == DH_RES_COMM;
        const dh_stream stream = dh_stream_of(&op, &mesh, 0);
        assert_int_equal(stream != DH_STREAM_COMPUTE, links);
        assert_int_equal(dh_engine_is_link(dh_stream_engine(stream)), links);
    }
}

/* One node: every group is local. Two nodes of 4 ranks, stages apart: tp and dp are. */
static void data_does_not_stand_before_layers(void **state)
{
    static const struct {
        dh_group_kind group;
        dh_stream one_node, two_nodes;
    } rows[] = {{DH_GROUP_TP, DH_STREAM_LOCAL, DH_STREAM_LOCAL},
                {DH_GROUP_PP, DH_STREAM_LOCAL_STAGES, DH_STREAM_CROSS_STAGES},
                {DH_GROUP_DP_CP, DH_STREAM_LOCAL_DATA, DH_STREAM_LOCAL_DATA},
                {DH_GROUP_TP_PP, DH_STREAM_LOCAL_DATA, DH_STREAM_CROSS_DATA},
                {DH_GROUP_EMBED, DH_STREAM_LOCAL_DATA, DH_STREAM_CROSS_DATA},
                {DH_GROUP_WORLD, DH_STREAM_LOCAL_DATA, DH_STREAM_CROSS_DATA}};
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        assert_int_equal(stream_of(rows[i].group, 2, 2, 2, 1), rows[i].one_node);
        assert_int_equal(stream_of(rows[i].group, 2, 2, 2, 2), rows[i].two_nodes);
    }
}

/* Two copies of the model are ranks of data too. */
static void one_rank_of_data_needs_no_stream_for_it(void **state)
{
    for (int group = 0; group < DH_N_GROUPS; group++) {
        const dh_stream stream = stream_of((dh_group_kind)group, 1, 2, 2, 2);
        const bool copies = dh_group_joins_copies((dh_group_kind)group);
        assert_int_not_equal(stream, DH_STREAM_LOCAL_DATA);
        assert_int_equal(stream == DH_STREAM_CROSS_DATA, copies);
    }
}

/* Layers of one rank send nothing that a transfer between stages could hold up. */
static void stages_alone_need_no_stream_for_transfers(void **state)
{
    assert_int_equal(stream_of(DH_GROUP_PP, 2, 1, 2, 1), DH_STREAM_LOCAL);
    assert_int_equal(stream_of(DH_GROUP_PP, 2, 1, 2, 2), DH_STREAM_CROSS);
}

static void every_stream_has_a_name_of_its_own(void **state)
{
    for (int a = 0; a < DH_N_STREAM; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(dh_stream_name((dh_stream)a), dh_stream_name((dh_stream)b));
    assert_string_equal(dh_stream_name(DH_N_STREAM), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computation_has_one_stream),
        cmocka_unit_test(data_does_not_stand_before_layers),
        cmocka_unit_test(one_rank_of_data_needs_no_stream_for_it),
        cmocka_unit_test(stages_alone_need_no_stream_for_transfers),
        cmocka_unit_test(every_stream_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
