/* Expert parallelism as a rewrite: which operators and sizes it leaves, how much work and
 * how many bytes, and what it refuses. That such graphs read back is tested with all others. */
#include "graph_cases.h"

#include "config/mesh.h"

enum { EP = 4, ROWS = 128, TOP_K = 2, EXPERTS = 8, WIDTH = 64 }; /* of mixtral-tiny */

/* A layer of mixtral-tiny in float32, 2 * 64 tokens. */
static dh_graph *build(dh_mode mode, double capacity)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = preset("mixtral-tiny");
    const graph_case c = {"mixtral-tiny", DH_BLOCK_LAYER, mode, DH_F32, 0, 1, true, 1, 1, false};
    dh_build b = build_of(&c, &model);
    dh_graph *g;
    b.moe_capacity = capacity;
    assert_ok(&ctx, dh_graph_build(&ctx, &b, DH_BLOCK_LAYER, &g));
    return g;
}

static dh_graph *split(double capacity, int64_t ep, double room)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = build(DH_MODE_TRAIN, capacity);
    assert_ok(&ctx, dh_pass_expert_parallel(&ctx, g, (dh_shard){.tp = 1, .ep = ep}, room, NULL));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    return g;
}

static int count(const dh_graph *g, dh_op_type type, dh_phase phase)
{
    int n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += g->ops.at[i].type == type && g->ops.at[i].phase == phase;
    return n;
}

static int count_in(const dh_graph *g, dh_op_type type, dh_phase phase, dh_group_kind group)
{
    int n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += g->ops.at[i].type == type && g->ops.at[i].phase == phase &&
             g->ops.at[i].group == (int32_t)group;
    return n;
}

static const dh_op *nth(const dh_graph *g, dh_op_type type, int n)
{
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == type && n-- == 0) return &g->ops.at[i];
    fail_msg("no operator %s", dh_op_info_of(type)->name);
    return NULL;
}

static const dh_tensor *in(const dh_graph *g, const dh_op *op, int k)
{
    return &g->tensors.at[op->in[k]];
}

static const dh_tensor *out(const dh_graph *g, const dh_op *op)
{
    return &g->tensors.at[op->out[0]];
}

/* ---- operators ---------------------------------------------------------------------------- */

static void rows_go_there_and_back(void **state)
{
    dh_graph *g = split(0, EP, 2);
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL, DH_PHASE_F), 1); /* of counts, which have no */
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL, DH_PHASE_B), 0); /* gradient */
    assert_int_equal(count(g, DH_OP_MOE_OFFSETS, DH_PHASE_F), 1);
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL_ROWS, DH_PHASE_F), 2);
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL_ROWS, DH_PHASE_B), 2);
    const uint32_t sent = nth(g, DH_OP_MOE_ORDER, 0)->out[1];
    const uint32_t arrived = nth(g, DH_OP_MOE_OFFSETS, 0)->out[0];
    for (int i = 0; i < 4; i++) { /* to the experts and back; of gradients likewise */
        const dh_op *op = nth(g, DH_OP_ALL_TO_ALL_ROWS, i);
        assert_int_equal(op->group, DH_GROUP_EP);
        assert_int_equal(op->in[1], i % 2 == 0 ? sent : arrived);
        assert_int_equal(op->in[2], i % 2 == 0 ? arrived : sent);
        assert_int_equal(in(g, op, 0)->shape[0], i % 2 == 0 ? ROWS * TOP_K : 2 * ROWS * TOP_K);
        assert_int_equal(out(g, op)->shape[0], i % 2 == 0 ? 2 * ROWS * TOP_K : ROWS * TOP_K);
    }
    for (int i = 0; i < 2; i++) {
        const dh_op *op = nth(g, DH_OP_GROUPED_LINEAR, i);
        assert_int_equal(in(g, op, 1)->shape[0], EXPERTS / EP);
        assert_int_equal(op->in[2], arrived);
        assert_int_equal(in(g, op, 2)->shape[0], EXPERTS + 1);
        assert_int_equal(nth(g, DH_OP_GROUPED_WGRAD, i)->in[2], arrived);
    }
    dh_graph_destroy(g);
}

/* A layer of tp 2, ep 2, in which tp ranks have experts of their own or columns of each. */
static dh_graph *split_twice(double capacity, bool whole_experts)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_shard shard = {.tp = 2, .tp_rank = 1, .ep = 2, .whole_experts = whole_experts};
    dh_graph *g = build(DH_MODE_TRAIN, capacity);
    assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g, shard));
    assert_ok(&ctx, dh_pass_expert_parallel(&ctx, g, shard, 2, NULL));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    return g;
}

/* Half of the rows travel, to four ranks; experts are whole, their work is the same; nothing of a
 * layer's width is gathered or reduced for them. */
static void tensor_parallel_ranks_send_their_share(void **state)
{
    dh_graph *columns = split_twice(0, false), *whole = split_twice(0, true);
    for (int i = 0; i < 4; i++) {
        const dh_op *op = nth(whole, DH_OP_ALL_TO_ALL_ROWS, i);
        const dh_op *all = nth(columns, DH_OP_ALL_TO_ALL_ROWS, i);
        assert_true(op->group == DH_GROUP_TP_EP && all->group == DH_GROUP_EP);
        assert_int_equal((i % 2 ? out(whole, op) : in(whole, op, 0))->shape[0], ROWS * TOP_K / 2);
        assert_true(dh_op_bytes(whole, op) * 2 == dh_op_bytes(columns, all));
    }
    for (int i = 0; i < 2; i++) {
        const dh_tensor *w = in(whole, nth(whole, DH_OP_GROUPED_LINEAR, i), 1);
        const dh_tensor *part = in(columns, nth(columns, DH_OP_GROUPED_LINEAR, i), 1);
        assert_true(w->shape[0] == EXPERTS / 4 && part->shape[0] == EXPERTS / 2);
        assert_int_equal(w->shape[1] * w->shape[2], 2 * part->shape[1] * part->shape[2]);
        assert_true(dh_op_flops(whole, nth(whole, DH_OP_GROUPED_LINEAR, i)) ==
                    dh_op_flops(columns, nth(columns, DH_OP_GROUPED_LINEAR, i)));
    }
    assert_int_equal(count(columns, DH_OP_REDUCE_SCATTER, DH_PHASE_F), 2);
    assert_int_equal(count(whole, DH_OP_REDUCE_SCATTER, DH_PHASE_F), 1); /* of attention */
    assert_int_equal(in(whole, nth(whole, DH_OP_ROUTER_SUMS, 0), 1)->shape[0], ROWS);
    assert_int_equal(in(whole, nth(whole, DH_OP_MOE_ORDER, 0), 0)->shape[0], ROWS / 2);
    dh_graph_destroy(columns);
    dh_graph_destroy(whole);
}

/* A rank's rows have half of the columns where they travel, and the experts all; of
 * four tensor-parallel ranks a quarter. */
static void tensor_parallel_ranks_share_rows(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int64_t tp = 2; tp <= 4; tp *= 2) {
        const dh_shard shard = {.tp = tp, .tp_rank = 1, .ep = 2, .shared_rows = true};
        dh_graph *g = build(DH_MODE_TRAIN, 0);
        assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g, shard));
        assert_ok(&ctx, dh_pass_expert_parallel(&ctx, g, shard, 1.5, NULL));
        assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
        assert_ok(&ctx, dh_graph_check(&ctx, g));
        for (int i = 0; i < 4; i++) {
            const dh_op *op = nth(g, DH_OP_ALL_TO_ALL_ROWS, i);
            assert_int_equal(in(g, op, 0)->shape[1], WIDTH / tp);
            assert_int_equal((i % 2 ? in(g, op, 0) : out(g, op))->shape[0], 1.5 * ROWS * TOP_K);
        }
        const dh_op *op = nth(g, DH_OP_GROUPED_LINEAR, 0);
        assert_int_equal(in(g, op, 0)->shape[0], 1.5 * ROWS * TOP_K);
        assert_int_equal(in(g, op, 0)->shape[1], WIDTH);
        assert_int_equal(count_in(g, DH_OP_ALL_TO_ALL, DH_PHASE_F, DH_GROUP_TP), 2);
        assert_int_equal(count_in(g, DH_OP_ALL_TO_ALL, DH_PHASE_B, DH_GROUP_TP), 2);
        dh_graph_destroy(g);
    }
}

/* 40 rows of an expert for all tokens, 20 for those of a rank. */
static void ranks_share_a_capacity(void **state)
{
    dh_graph *g = split_twice(1.25, true);
    assert_int_equal(nth(g, DH_OP_MOE_ORDER, 0)->capacity, 20);
    assert_int_equal(in(g, nth(g, DH_OP_ALL_TO_ALL, 0), 0)->shape[0], EXPERTS * 20);
    dh_graph_destroy(g);
}

/* Every rank sends each expert as many rows: 40 of 1.25 even shares. */
static void capacity_makes_equal_blocks(void **state)
{
    dh_graph *g = split(1.25, EP, 2);
    assert_int_equal(nth(g, DH_OP_GROUPED_LINEAR, 0)->rows, 0);
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL, DH_PHASE_F), 2);
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL, DH_PHASE_B), 2);
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL_ROWS, DH_PHASE_F), 0);
    assert_int_equal(count(g, DH_OP_MOE_OFFSETS, DH_PHASE_F), 0);
    const dh_op *op = nth(g, DH_OP_ALL_TO_ALL, 0);
    assert_int_equal(in(g, op, 0)->shape[0], EXPERTS * 40);
    assert_int_equal(out(g, op)->shape[0], EXPERTS * 40);
    assert_int_equal(nth(g, DH_OP_GROUPED_LINEAR, 0)->in[2], nth(g, DH_OP_MOE_ORDER, 0)->out[1]);
    dh_graph_destroy(g);
}

static void one_rank_of_experts_changes_nothing(void **state)
{
    dh_graph *a = build(DH_MODE_TRAIN, 0), *b = build(DH_MODE_TRAIN, 0);
    dh_ctx ctx = DH_CTX_INIT;
    for (int64_t ep = 0; ep <= 1; ep++) {
        assert_ok(&ctx, dh_pass_expert_parallel(&ctx, b, (dh_shard){.tp = 1, .ep = ep}, 2, NULL));
        assert_true(dh_graph_equal(a, b));
    }
    dh_graph_destroy(a);
    dh_graph_destroy(b);
}

/* ---- sizes, work -------------------------------------------------------------------------- */

/* Room: a factor of the 256 choices of one rank's tokens, up to all that may come: two
 * choices of every token, or one where a rank has one expert. */
static void room_is_what_may_come_at_most(void **state)
{
    static const struct {
        int64_t ep;
        double room;
        int64_t rows;
    } cases[] = {{2, 1, 256}, {2, 1.5, 384}, {2, 1.999, 512}, {2, 2, 512},
                 {2, 9, 512}, {4, 3, 768},   {4, 1e30, 1024}, {8, 9, 1024}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_graph *g = split(0, cases[i].ep, cases[i].room);
        assert_int_equal(nth(g, DH_OP_MOE_OFFSETS, 0)->room, cases[i].rows);
        assert_int_equal(nth(g, DH_OP_GROUPED_LINEAR, 0)->rows, 256);
        assert_int_equal(nth(g, DH_OP_GROUPED_WGRAD, 0)->rows, 256);
        assert_int_equal(out(g, nth(g, DH_OP_GROUPED_LINEAR, 0))->shape[0], cases[i].rows);
        dh_graph_destroy(g);
    }
}

static double flops_of(const dh_graph *g, dh_op_type type)
{
    double sum = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == type) sum += dh_op_flops(g, &g->ops.at[i]);
    return sum;
}

/* Every rank's tokens are as much work for the experts as before, whatever the room; both
 * ends of an exchange count the rows that travel. */
static void work_is_that_of_an_even_load(void **state)
{
    dh_graph *one = split(0, 1, 2), *g = split(0, EP, 3);
    assert_true(flops_of(g, DH_OP_GROUPED_LINEAR) == flops_of(one, DH_OP_GROUPED_LINEAR));
    assert_true(flops_of(g, DH_OP_GROUPED_WGRAD) == flops_of(one, DH_OP_GROUPED_WGRAD));
    for (int i = 0; i < 4; i++) {
        const dh_op *op = nth(g, DH_OP_ALL_TO_ALL_ROWS, i);
        assert_true(dh_op_flops(g, op) == 0);
        assert_true(dh_op_bytes(g, op) == 2.0 * ROWS * TOP_K * WIDTH * sizeof(float));
    }
    dh_graph_destroy(one);
    dh_graph_destroy(g);
}

/* ---- one copy per node --------------------------------------------------------------------- */

/* Four ranks on two nodes. */
static const dh_group_stages two_nodes = {
    .local = DH_GROUP_EP_NODE, .cross = DH_GROUP_EP_CROSS, .per_node = 2, .n_nodes = 2};

static dh_graph *by_node(double capacity, double room)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = build(DH_MODE_TRAIN, capacity);
    assert_ok(&ctx,
              dh_pass_expert_parallel(&ctx, g, (dh_shard){.tp = 1, .ep = EP}, room, &two_nodes));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    return g;
}

/* Choices, rows and weights cross nodes, rows come back; of gradients rows and weights, and rows. */
static void rows_cross_nodes_once(void **state)
{
    dh_graph *g = by_node(0, 3);
    const dh_op_type rows = DH_OP_ALL_TO_ALL_ROWS;
    assert_int_equal(count_in(g, rows, DH_PHASE_F, DH_GROUP_EP), 0);
    assert_int_equal(count_in(g, rows, DH_PHASE_F, DH_GROUP_EP_CROSS), 4);
    assert_int_equal(count_in(g, rows, DH_PHASE_B, DH_GROUP_EP_CROSS), 3);
    assert_int_equal(count_in(g, rows, DH_PHASE_F, DH_GROUP_EP_NODE), 2);
    assert_int_equal(count_in(g, rows, DH_PHASE_B, DH_GROUP_EP_NODE), 2);
    const dh_op *nodes = nth(g, DH_OP_MOE_NODES, 0), *order = nth(g, DH_OP_MOE_NODE_ORDER, 0);
    assert_int_equal(g->tensors.at[nodes->out[3]].shape[0], ROWS * 2);
    assert_int_equal(g->tensors.at[order->out[1]].shape[0], EXPERTS);
    assert_int_equal(in(g, order, 0)->shape[0], 2 * ROWS); /* every token of both nodes' ranks */
    assert_int_equal(order->room, 2 * ROWS * TOP_K);       /* each with both choices */
    for (int i = 0; i < 2; i++) { /* the experts' rows lie as without the detour */
        const dh_op *op = nth(g, DH_OP_GROUPED_LINEAR, i);
        assert_int_equal(in(g, op, 0)->shape[0], 3 * ROWS * TOP_K);
        assert_int_equal(in(g, op, 2)->shape[0], EXPERTS + 1);
        assert_int_equal(op->rows, ROWS * TOP_K);
    }
    dh_graph_destroy(g);
}

/* Of 8 experts a token's two are on one of two nodes in 2 C(4,2) of C(8,2) cases: it goes to 11/7
 * of them, with its row, its choices and their weights, where without the detour two rows go. */
static void what_crosses_is_the_expected_number(void **state)
{
    dh_graph *g = by_node(0, 3);
    const double places = ceil(ROWS * 11.0 / 7);
    const double row = WIDTH * sizeof(float), few = TOP_K * sizeof(float);
    double bytes = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (op->type == DH_OP_ALL_TO_ALL_ROWS && op->group == DH_GROUP_EP_CROSS)
            bytes += dh_op_bytes(g, op) / 2;
    }
    assert_true(bytes == places * (4 * row + 3 * few));
    dh_graph_destroy(g);
}

/* With a capacity blocks inside a node are equal, as large as without the detour, and one for each
 * source node; what crosses nodes is as many rows as there are. */
static void a_capacity_is_of_the_sender(void **state)
{
    dh_graph *g = by_node(1.25, 2);
    const dh_op *order = nth(g, DH_OP_MOE_NODE_ORDER, 0);
    assert_true(order->capacity == 40 && order->room == 0);
    assert_int_equal(count(g, DH_OP_ALL_TO_ALL_ROWS, DH_PHASE_F), 4);
    assert_int_equal(count_in(g, DH_OP_ALL_TO_ALL, DH_PHASE_F, DH_GROUP_EP_NODE), 2 * 2);
    assert_int_equal(count_in(g, DH_OP_ALL_TO_ALL, DH_PHASE_B, DH_GROUP_EP_NODE), 2 * 2);
    const dh_op *op = nth(g, DH_OP_GROUPED_LINEAR, 0);
    assert_int_equal(in(g, op, 0)->shape[0], EXPERTS * 40);
    assert_int_equal(op->in[2], nth(g, DH_OP_MOE_ORDER, 0)->out[1]);
    assert_int_equal(op->rows, 0);
    dh_graph_destroy(g);
}

static void graphs_by_node_read_back(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int capped = 0; capped < 2; capped++) {
        dh_graph *g = by_node(capped, 2), *again;
        dh_str text = DH_STR_INIT;
        assert_ok(&ctx, dh_graph_print(&ctx, g, &text));
        assert_ok(&ctx, dh_graph_parse(&ctx, text.text, text.len, &again));
        assert_true(dh_graph_equal(g, again));
        dh_str_fini(&text);
        dh_graph_destroy(again);
        dh_graph_destroy(g);
    }
}

/* ---- refused ------------------------------------------------------------------------------ */

static void refuse(dh_graph *g, int64_t ep, double room, const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_shard shard = {.tp = 1, .ep = ep};
    assert_fails(&ctx, dh_pass_expert_parallel(&ctx, g, shard, room, NULL), DH_EINVAL, part);
    dh_graph_destroy(g);
}

static void expert_parallelism_refuses(void **state)
{
    refuse(build(DH_MODE_TRAIN, 0), 3, 2, "8 experts do not divide by parallel.ep=3");
    refuse(build(DH_MODE_TRAIN, 0), 2, 0.99, "moe.capacity=0.99 leaves no room");
    refuse(build(DH_MODE_TRAIN, 0), 2, (double)NAN, "leaves no room");
    refuse(build(DH_MODE_DECODE, 0), 2, 2, "training and evaluation");
    refuse(split(0, 1, 2), 2, 2, "forward graphs");
    graph_case dense = {"llama-tiny", DH_BLOCK_LAYER, DH_MODE_EVAL, DH_F32, 0, 1, false, 1, 1,
                        false};
    refuse(build_case(&dense), 2, 2, "the layer has no experts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_there_and_back),
        cmocka_unit_test(tensor_parallel_ranks_send_their_share),
        cmocka_unit_test(tensor_parallel_ranks_share_rows),
        cmocka_unit_test(ranks_share_a_capacity),
        cmocka_unit_test(capacity_makes_equal_blocks),
        cmocka_unit_test(one_rank_of_experts_changes_nothing),
        cmocka_unit_test(room_is_what_may_come_at_most),
        cmocka_unit_test(work_is_that_of_an_even_load),
        cmocka_unit_test(rows_cross_nodes_once),
        cmocka_unit_test(what_crosses_is_the_expected_number),
        cmocka_unit_test(a_capacity_is_of_the_sender),
        cmocka_unit_test(graphs_by_node_read_back),
        cmocka_unit_test(expert_parallelism_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
