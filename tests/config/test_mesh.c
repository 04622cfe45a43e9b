#include "dh_test.h"

#include "config/mesh.h"

static dh_mesh mesh_of(int64_t dp, int64_t tp, int64_t pp, int64_t cp, int64_t ep, int64_t per_node)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh m;
    assert_ok(&ctx, dh_mesh_init(&ctx, dp, tp, pp, cp, ep, 0, per_node, &m));
    return m;
}

/* Groups of a kind: one for each place on the axes along which its members are alike, and for each
 * pair of stages that are each other's mirror image; of a stage all that the ranks come to. */
static int64_t n_groups(const dh_mesh *m, dh_group_kind kind)
{
    const bool shares = kind == DH_GROUP_DP_CP_SHARE || kind == DH_GROUP_EDP_CP_SHARE;
    if (dh_group_whole(kind) != kind || shares) return m->ranks / dh_mesh_group_size(m, kind);
    const int64_t sizes[DH_N_MESH_AXES] = {m->tp, m->cp, m->ep, m->edp, m->pp};
    int64_t n = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++)
        if (!dh_group_varies(kind, axis)) n *= sizes[axis];
    if (kind == DH_GROUP_KV) return n * m->tp / DH_MAX(m->kv_ranks, 1);
    return dh_group_joins_copies(kind) && m->pp > 1 ? n * (m->pp / 2) : n;
}

/* "0,2;1,3": all groups of a kind, by id. */
static void assert_groups(const dh_mesh *m, dh_group_kind kind, const char *want)
{
    dh_str s = DH_STR_INIT;
    for (int64_t id = 0; id < n_groups(m, kind); id++)
        for (int64_t rank = 0; rank < m->ranks; rank++) {
            if (dh_mesh_group_id(m, kind, rank) != id || dh_mesh_group_index(m, kind, rank) != 0)
                continue;
            for (int64_t i = 0; i < dh_mesh_group_size(m, kind); i++)
                dh_str_printf(&s, "%s%lld",
                              i       ? ","
                              : s.len ? ";"
                                      : "",
                              (long long)dh_mesh_group_member(m, kind, rank, i));
        }
    assert_string_equal(s.text, want);
    dh_str_fini(&s);
}

/* The worked example of Megatron-LM's parallel_state: 16 GPUs, tensor 2, pipeline 4. */
static void sixteen_ranks_as_in_megatron(void **state)
{
    dh_mesh m = mesh_of(2, 2, 4, 1, 1, 8);
    assert_groups(&m, DH_GROUP_TP, "0,1;2,3;4,5;6,7;8,9;10,11;12,13;14,15");
    assert_groups(&m, DH_GROUP_DP, "0,2;1,3;4,6;5,7;8,10;9,11;12,14;13,15");
    assert_groups(&m, DH_GROUP_PP, "0,4,8,12;1,5,9,13;2,6,10,14;3,7,11,15");
    assert_groups(&m, DH_GROUP_TP_PP, "0,1,4,5,8,9,12,13;2,3,6,7,10,11,14,15");
    assert_groups(&m, DH_GROUP_EMBED, "0,12;1,13;2,14;3,15");
    assert_groups(&m, DH_GROUP_STAGE, "0,1,2,3;4,5,6,7;8,9,10,11;12,13,14,15");
    assert_groups(&m, DH_GROUP_DP_CP_COPIES, "0,2,12,14;1,3,13,15;4,6,8,10;5,7,9,11");
    assert_groups(&m, DH_GROUP_EDP_CP_COPIES, "0,2,12,14;1,3,13,15;4,6,8,10;5,7,9,11");
    dh_mesh odd = mesh_of(1, 1, 3, 1, 1, 0);
    assert_groups(&odd, DH_GROUP_DP_CP_COPIES, "0,2");
    assert_int_equal(dh_mesh_group_index(&odd, DH_GROUP_DP_CP_COPIES, 1), -1);
    assert_int_equal(m.nodes, 2);
    for (int64_t rank = 0; rank < 16; rank++) {
        assert_true(dh_mesh_group_is_local(&m, DH_GROUP_TP, rank));
        assert_true(dh_mesh_group_is_local(&m, DH_GROUP_DP, rank));
        assert_false(dh_mesh_group_is_local(&m, DH_GROUP_PP, rank));
    }
    assert_int_equal(dh_mesh_group_index(&m, DH_GROUP_EMBED, 5), -1);
    assert_int_equal(dh_mesh_group_index(&m, DH_GROUP_EMBED, 13), 1);
}

/* Hand-written: context parallel between tensor and data; experts over data. */
static void context_and_expert_groups(void **state)
{
    dh_mesh m = mesh_of(2, 2, 1, 2, 1, 0);
    assert_groups(&m, DH_GROUP_TP, "0,1;2,3;4,5;6,7");
    assert_groups(&m, DH_GROUP_CP, "0,2;1,3;4,6;5,7");
    assert_groups(&m, DH_GROUP_DP, "0,4;1,5;2,6;3,7");
    assert_groups(&m, DH_GROUP_DP_CP, "0,2,4,6;1,3,5,7");
    assert_groups(&m, DH_GROUP_TP_CP, "0,1,2,3;4,5,6,7");

    m = mesh_of(4, 2, 1, 1, 2, 0);
    assert_groups(&m, DH_GROUP_DP, "0,2,4,6;1,3,5,7");
    assert_groups(&m, DH_GROUP_EP, "0,2;1,3;4,6;5,7");
    assert_groups(&m, DH_GROUP_EDP, "0,4;1,5;2,6;3,7");
    assert_groups(&m, DH_GROUP_TP_EP, "0,1,2,3;4,5,6,7");
    assert_groups(&m, DH_GROUP_TP_EP_PP, "0,1,2,3;4,5,6,7");
    assert_groups(&m, DH_GROUP_DP_CP_NODE, "0,2,4,6;1,3,5,7");

    m = mesh_of(4, 2, 1, 1, 2, 4); /* two nodes: half of the data-parallel ranks on either */
    assert_groups(&m, DH_GROUP_DP_CP_NODE, "0,2;1,3;4,6;5,7");
    assert_groups(&m, DH_GROUP_EDP_CP_NODE, "0;1;2;3;4;5;6;7");
    m = mesh_of(4, 1, 1, 2, 1, 4);
    assert_groups(&m, DH_GROUP_DP_CP_NODE, "0,1,2,3;4,5,6,7");
    m = mesh_of(6, 1, 1, 1, 1, 3);
    assert_groups(&m, DH_GROUP_DP_CP_NODE, "0,1,2;3,4,5");
    m = mesh_of(3, 1, 2, 1, 1, 2); /* nodes end inside the group */
    assert_groups(&m, DH_GROUP_DP_CP_NODE, "0;1;2;3;4;5");

    m = mesh_of(4, 2, 1, 1, 2, 0);
    assert_int_equal(dh_mesh_coord(&m, 6).dp, 3);
    assert_int_equal(dh_mesh_coord(&m, 6).ep, 1);
    assert_int_equal(dh_mesh_coord(&m, 6).edp, 1);
}

static void check_coordinates(const dh_mesh *m)
{
    for (int64_t rank = 0; rank < m->ranks; rank++) {
        dh_coord c = dh_mesh_coord(m, rank);
        assert_true(c.tp < m->tp && c.cp < m->cp && c.dp < m->dp && c.pp < m->pp);
        assert_int_equal(c.dp, c.edp * m->ep + c.ep);
        assert_int_equal(dh_mesh_rank(m, c), rank);
    }
}

/* Groups of a kind partition the world; all members agree on the member list. */
static void check_partition(const dh_mesh *m, dh_group_kind kind)
{
    int64_t size = dh_mesh_group_size(m, kind), n_members = 0, next_id = 0;
    for (int64_t rank = 0; rank < m->ranks; rank++) {
        int64_t id = dh_mesh_group_id(m, kind, rank);
        int64_t index = dh_mesh_group_index(m, kind, rank);
        if (index < 0) {
            const bool middle = 2 * dh_mesh_coord(m, rank).pp == m->pp - 1;
            assert_true(kind == DH_GROUP_EMBED || (dh_group_joins_copies(kind) && middle));
            continue;
        }
        assert_in_range(id, 0, n_groups(m, kind) - 1);
        n_members++;
        if (index == 0) assert_int_equal(id, next_id++); /* numbered by first members */
        assert_int_equal(dh_mesh_group_member(m, kind, rank, index), rank);
        int64_t before = -1, nodes = 0, last_node = -1, on_node = 0, most = 0;
        for (int64_t i = 0; i < size; i++) {
            int64_t member = dh_mesh_group_member(m, kind, rank, i);
            assert_true(member > before && member < m->ranks);
            before = member;
            assert_int_equal(dh_mesh_group_id(m, kind, member), id);
            assert_int_equal(dh_mesh_group_index(m, kind, member), i);
            on_node = dh_mesh_node(m, member) == last_node ? on_node + 1 : 1;
            if (on_node == 1) nodes++;
            most = DH_MAX(most, on_node);
            last_node = dh_mesh_node(m, member);
        }
        dh_group_span span = dh_mesh_group_span(m, kind, rank);
        assert_int_equal(span.n_nodes, nodes);
        assert_int_equal(span.max_per_node, most);
        assert_int_equal(dh_mesh_group_is_local(m, kind, rank), nodes == 1);
        if (dh_group_whole(kind) != kind && dh_group_spread(kind) == DH_STAGE_LOCAL)
            assert_int_equal(nodes, 1);
    }
    assert_int_equal(next_id, n_groups(m, kind));
    assert_int_equal(n_members, size * next_id);
}

/* Place of a rank among the members of its group on its node, and of its node among theirs; both -1
 * where nodes have different numbers of members. */
typedef struct grid_place {
    int64_t on_node, node, per_node, n_nodes;
} grid_place;

static grid_place place_in_grid(const dh_mesh *m, dh_group_kind kind, int64_t rank)
{
    const int64_t size = dh_mesh_group_size(m, kind);
    grid_place p = {.on_node = -1, .node = -1};
    int64_t counts[16] = {0}, last = -1;
    for (int64_t i = 0; i < size; i++) {
        const int64_t member = dh_mesh_group_member(m, kind, rank, i);
        if (dh_mesh_node(m, member) != last) p.n_nodes++;
        last = dh_mesh_node(m, member);
        if (member == rank) p.node = p.n_nodes - 1, p.on_node = counts[p.n_nodes - 1];
        counts[p.n_nodes - 1]++;
    }
    p.per_node = counts[0];
    for (int64_t k = 1; k < p.n_nodes; k++)
        if (counts[k] != p.per_node) return (grid_place){-1, -1, 0, 0};
    return p;
}

/* The stages of a group against its members by node, which know nothing of axes. Returns whether
 * there are any. */
static bool check_stages(const dh_mesh *m, dh_group_kind kind)
{
    dh_group_stages s;
    if (dh_group_whole(kind) != kind || dh_mesh_group_stages(m, kind, &s)) return false;
    assert_int_equal(dh_group_whole(s.local), kind);
    assert_int_equal(dh_group_whole(s.cross), kind);
    for (int64_t rank = 0; rank < m->ranks; rank++) {
        const grid_place p = place_in_grid(m, kind, rank);
        assert_int_equal(p.per_node, s.per_node);
        assert_int_equal(p.n_nodes, s.n_nodes);
        assert_true(s.per_node > 1 && s.n_nodes > 1);
        assert_int_equal(dh_mesh_group_index(m, s.local, rank), p.on_node);
        assert_int_equal(dh_mesh_group_index(m, s.cross, rank), p.node);
        for (int64_t i = 0; i < p.per_node; i++)
            assert_int_equal(dh_mesh_group_member(m, s.local, rank, i),
                             dh_mesh_group_member(m, kind, rank, p.node * p.per_node + i));
        for (int64_t i = 0; i < p.n_nodes; i++)
            assert_int_equal(dh_mesh_group_member(m, s.cross, rank, i),
                             dh_mesh_group_member(m, kind, rank, i * p.per_node + p.on_node));
        assert_true(dh_mesh_group_is_local(m, s.local, rank));
        assert_false(dh_mesh_group_is_local(m, s.cross, rank));
    }
    return true;
}

/* 16 ranks on nodes of 4: of tp 8 each group has two nodes; ep 4 at stride 2 has 2 ranks on each of
 * two; a reason where there are no stages. */
static void stages_by_hand(void **state)
{
    dh_mesh m = mesh_of(2, 8, 1, 1, 1, 4);
    dh_group_stages s;
    assert_null(dh_mesh_group_stages(&m, DH_GROUP_TP, &s));
    assert_int_equal(s.per_node, 4);
    assert_groups(&m, s.local, "0,1,2,3;4,5,6,7;8,9,10,11;12,13,14,15");
    assert_groups(&m, s.cross, "0,4;1,5;2,6;3,7;8,12;9,13;10,14;11,15");
    assert_string_equal(dh_mesh_group_stages(&m, DH_GROUP_DP_CP, &s),
                        "every rank of its group is on a node of its own");
    assert_string_equal(dh_mesh_group_stages(&m, DH_GROUP_CP, &s),
                        "groups of its kind have no stages");
    m = mesh_of(4, 2, 1, 1, 4, 4);
    assert_null(dh_mesh_group_stages(&m, DH_GROUP_EP, &s));
    assert_groups(&m, s.local, "0,2;1,3;4,6;5,7");
    assert_groups(&m, s.cross, "0,4;1,5;2,6;3,7");
    assert_string_equal(dh_mesh_group_stages(&m, DH_GROUP_TP, &s), "its group is on one node");
    m = mesh_of(2, 6, 1, 1, 1, 4);
    assert_string_equal(dh_mesh_group_stages(&m, DH_GROUP_TP, &s),
                        "nodes cut groups into unequal parts");
}

/* Eight tensor-parallel ranks, two heads of keys and values. */
static void ranks_with_the_same_heads(void **state)
{
    dh_mesh m = mesh_of(1, 8, 2, 1, 1, 4);
    assert_int_equal(dh_mesh_group_size(&m, DH_GROUP_KV), 1);
    m.kv_ranks = 4;
    assert_groups(&m, DH_GROUP_KV, "0,1,2,3;4,5,6,7;8,9,10,11;12,13,14,15");
    check_partition(&m, DH_GROUP_KV);
    for (int64_t tp = 2; tp <= 16; tp++)
        for (int64_t n = 2; n <= tp; n++)
            for (int64_t per_node = 1; tp % n == 0 && per_node <= 2 * tp; per_node++) {
                if (2 * tp % per_node) continue;
                m = mesh_of(2, tp, 1, 1, 1, per_node);
                m.kv_ranks = n;
                check_partition(&m, DH_GROUP_KV);
            }
}

/* Runs of data-parallel ranks, across nodes or inside them, from the fastest axis on; of experts'
 * copies, which are fewer. */
static void neighbours_that_share(void **state)
{
    dh_mesh m = mesh_of(8, 2, 1, 1, 1, 4);
    assert_int_equal(dh_mesh_group_size(&m, DH_GROUP_DP_CP_SHARE), 1);
    m.share_ranks = 4;
    assert_groups(&m, DH_GROUP_DP_CP_SHARE, "0,2,4,6;1,3,5,7;8,10,12,14;9,11,13,15");
    m = mesh_of(4, 1, 1, 4, 1, 8);
    m.share_ranks = 2;
    assert_groups(&m, DH_GROUP_DP_CP_SHARE, "0,1;2,3;4,5;6,7;8,9;10,11;12,13;14,15");
    m.share_ranks = 8;
    assert_groups(&m, DH_GROUP_DP_CP_SHARE, "0,1,2,3,4,5,6,7;8,9,10,11,12,13,14,15");
    m = mesh_of(8, 1, 1, 1, 2, 8);
    m.share_ranks = 2;
    assert_groups(&m, DH_GROUP_DP_CP_SHARE, "0,1;2,3;4,5;6,7");
    assert_groups(&m, DH_GROUP_EDP_CP_SHARE, "0,2;1,3;4,6;5,7");
    for (int64_t dp = 1; dp <= 12; dp++)
        for (int64_t cp = 1; cp <= 4; cp++)
            for (int64_t n = 2; n < dp * cp; n++)
                for (int64_t ep = 1; dp * cp % n == 0 && ep <= dp; ep++) {
                    if (dp % ep) continue;
                    m = mesh_of(dp, 2, 2, cp, ep, 0);
                    m.share_ranks = n;
                    check_partition(&m, DH_GROUP_DP_CP_SHARE);
                    check_partition(&m, DH_GROUP_EDP_CP_SHARE);
                }
}

static void every_mesh_up_to_16_ranks(void **state)
{
    int n = 0, n_stages = 0;
    for (int64_t dp = 1; dp <= 16; dp++)
        for (int64_t tp = 1; dp * tp <= 16; tp++)
            for (int64_t pp = 1; dp * tp * pp <= 16; pp++)
                for (int64_t cp = 1; dp * tp * pp * cp <= 16; cp++)
                    for (int64_t ep = 1; ep <= dp; ep++) {
                        if (dp % ep) continue;
                        for (int64_t per_node = 1; per_node <= 16; per_node++) {
                            if (dp * tp * pp * cp % per_node) continue;
                            dh_mesh m = mesh_of(dp, tp, pp, cp, ep, per_node);
                            check_coordinates(&m);
                            for (int kind = 0; kind < DH_N_GROUPS; kind++) {
                                check_partition(&m, (dh_group_kind)kind);
                                n_stages += check_stages(&m, (dh_group_kind)kind);
                            }
                            n++;
                        }
                    }
    assert_in_range(n, 1000, 10000);
    assert_true(n_stages > 200);
}

static void a_million_ranks(void **state)
{
    dh_mesh m = mesh_of(2048, 8, 16, 4, 64, 8);
    assert_int_equal(m.ranks, 1 << 20);
    uint64_t seed = test_seed("a_million_ranks");
    for (int trial = 0; trial < 1000; trial++) {
        int64_t rank = (int64_t)(test_rand(&seed) % (uint64_t)m.ranks);
        for (int kind = 0; kind < DH_N_GROUPS; kind++) {
            int64_t index = dh_mesh_group_index(&m, (dh_group_kind)kind, rank);
            if (index >= 0)
                assert_int_equal(dh_mesh_group_member(&m, (dh_group_kind)kind, rank, index), rank);
        }
        assert_true(dh_mesh_group_is_local(&m, DH_GROUP_TP, rank));
        assert_int_equal(dh_mesh_group_span(&m, DH_GROUP_EP, rank).n_nodes, 64);
        assert_int_equal(dh_mesh_group_span(&m, DH_GROUP_WORLD, rank).n_nodes, m.nodes);
    }
}

static void names_differ(void **state)
{
    for (int a = 0; a < DH_N_GROUPS; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(dh_group_name((dh_group_kind)a),
                                    dh_group_name((dh_group_kind)b));
}

static void errors_name_the_number(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_mesh m;
    assert_fails(&ctx, dh_mesh_init(&ctx, 2, 0, 1, 1, 1, 0, 0, &m), DH_EINVAL, "parallel.tp is 0");
    assert_fails(&ctx, dh_mesh_init(&ctx, 6, 1, 1, 1, 4, 0, 0, &m), DH_EINVAL, "parallel.ep 4");
    assert_fails(&ctx, dh_mesh_init(&ctx, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1, 0, 0, &m),
                 DH_EINVAL, "more than");
    assert_fails(&ctx, dh_mesh_init(&ctx, 4, 1, 1, 1, 1, 3, 0, &m), DH_EINVAL, "topology.nodes 3");
    assert_fails(&ctx, dh_mesh_init(&ctx, 4, 1, 1, 1, 1, 0, 3, &m), DH_EINVAL, "ranks_per_node 3");
    assert_fails(&ctx, dh_mesh_init(&ctx, 4, 1, 1, 1, 1, 2, 4, &m), DH_EINVAL, "leave one");
    assert_fails(&ctx, dh_mesh_init(&ctx, 4, 1, 1, 1, 1, -1, 0, &m), DH_EINVAL, "negative");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_ranks_as_in_megatron),
        cmocka_unit_test(context_and_expert_groups),
        cmocka_unit_test(stages_by_hand),
        cmocka_unit_test(ranks_with_the_same_heads),
        cmocka_unit_test(neighbours_that_share),
        cmocka_unit_test(every_mesh_up_to_16_ranks),
        cmocka_unit_test(a_million_ranks),
        cmocka_unit_test(names_differ),
        cmocka_unit_test(errors_name_the_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
