/* Graphs of layers with linear attention: what context parallelism makes of them, in which order,
 * and that nothing of it grows with the sequence but the rank's own tokens. */
#include "graph_cases.h"

#include "config/mesh.h"

static dh_build build_linear(const dh_model *model, dh_mode mode, int64_t seq, bool ring)
{
    return (dh_build){.model = model,
                      .mode = mode,
                      .dtype = DH_BF16,
                      .batch = mode == DH_MODE_DECODE ? 1 : 2,
                      .seq = seq,
                      .cache_len = 32,
                      .loss_scale = 1.0 / 384,
                      .head_chunk_bytes = 1 << 20,
                      .linear_ring = ring};
}

static dh_model linear_model(const char *name, dh_feature_map map)
{
    dh_model m = preset(name);
    m.attention = DH_ATTENTION_LINEAR;
    m.feature_map = map;
    return m;
}

/* The layer of one rank, differentiated. */
static dh_graph *layer_of(const dh_model *model, int64_t seq, bool ring, int64_t cp,
                          int64_t cp_rank, int64_t tp)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_build build = build_linear(model, DH_MODE_TRAIN, seq / cp, ring);
    dh_graph *g;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
    assert_ok(&ctx, dh_pass_context_parallel(&ctx, g, cp, cp_rank));
    assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g, (dh_shard){.tp = tp, .tp_rank = tp - 1}));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    return g;
}

static int count(const dh_graph *g, dh_op_type type)
{
    int n = 0;
    for (size_t i = 0; i < g->ops.n; i++) n += g->ops.at[i].type == type;
    return n;
}

/* Place of the n-th operator of a type. */
static size_t place(const dh_graph *g, dh_op_type type, int n)
{
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == type && n-- == 0) return i;
    fail_msg("no %s", dh_op_info_of(type)->name);
    return 0;
}

static double work(const dh_graph *g, dh_op_type type)
{
    double sum = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == type) sum += dh_op_flops(g, &g->ops.at[i]);
    return sum;
}

/* ---- LASP-2 --------------------------------------------------------------------------------- */

/* One gather each way; between it and what reads it stands the attention inside the share, which
 * does not wait for it. */
static void one_gather_each_way_beside_attention(void **state)
{
    const dh_model m = linear_model("llama-tiny", DH_FEATURE_ELU);
    dh_graph *g = layer_of(&m, 64, false, 4, 1, 1);
    assert_int_equal(count(g, DH_OP_ALL_GATHER), 2);
    assert_int_equal(count(g, DH_OP_SHIFT) + count(g, DH_OP_RING_EXCHANGE), 0);
    static const dh_op_type ways[2][4] = {
        {DH_OP_LINEAR_STATE, DH_OP_LINEAR_ATTN, DH_OP_LINEAR_BEFORE, DH_OP_LINEAR_JOIN},
        {DH_OP_LINEAR_STATE_GRAD, DH_OP_LINEAR_ATTN_GRAD, DH_OP_LINEAR_BEFORE,
         DH_OP_LINEAR_JOIN_GRAD}};
    for (int way = 0; way < 2; way++) {
        const size_t state_op = place(g, ways[way][0], 0), gather = place(g, DH_OP_ALL_GATHER, way);
        const size_t attn = place(g, ways[way][1], 0), before = place(g, ways[way][2], way);
        assert_true(state_op < gather && gather < attn && attn < before &&
                    before < place(g, ways[way][3], 0));
        assert_int_equal(g->ops.at[gather].group, DH_GROUP_CP);
        assert_int_equal(g->ops.at[before].back, way);
        const uint32_t all = g->ops.at[gather].out[0];
        for (int k = 0; k < DH_MAX_OPERANDS; k++) assert_true(g->ops.at[attn].in[k] != all);
        assert_int_equal(g->ops.at[before].in[0], all);
        assert_int_equal(g->tensors.at[g->ops.at[attn].out[0]].dtype, DH_F32);
    }
    dh_graph_destroy(g);
}

/* cp - 1 exchanges each way, each with the sum of the one before it. */
static void lasp1_hands_on_step_by_step(void **state)
{
    const dh_model m = linear_model("llama-tiny", DH_FEATURE_IDENTITY);
    dh_graph *g = layer_of(&m, 64, true, 4, 2, 1);
    assert_int_equal(count(g, DH_OP_ALL_GATHER), 0);
    assert_int_equal(count(g, DH_OP_SHIFT), 6);
    assert_int_equal(count(g, DH_OP_LINEAR_PASS), 4);
    assert_int_equal(count(g, DH_OP_FEATURE_MAP), 0);
    for (int i = 0; i < 6; i++) {
        const dh_op *shift = &g->ops.at[place(g, DH_OP_SHIFT, i)];
        assert_int_equal(shift->by, i < 3 ? 1 : 3);
        if (i % 3 == 0) continue;
        const dh_op *pass = &g->ops.at[place(g, DH_OP_LINEAR_PASS, i - 1 - i / 3)];
        const dh_op *last = &g->ops.at[place(g, DH_OP_SHIFT, i - 1)];
        assert_int_equal(shift->in[0], pass->out[0]);
        assert_int_equal(pass->in[1], last->out[0]);
        assert_int_equal(pass->back, i >= 3);
    }
    dh_graph_destroy(g);
}

/* Ranks have the same operators, so that one stands for all where their costs count. */
static void ranks_have_the_same_operators(void **state)
{
    const dh_model m = linear_model("mixtral-tiny", DH_FEATURE_SILU);
    for (int ring = 0; ring < 2; ring++) {
        dh_graph *first = layer_of(&m, 64, ring, 4, 0, 2);
        for (int64_t r = 1; r < 4; r++) {
            dh_graph *g = layer_of(&m, 64, ring, 4, r, 2);
            g->dims.cp_rank = 0;
            assert_same_graph(g, first);
            dh_graph_destroy(g);
        }
        dh_graph_destroy(first);
    }
}

/* What travels: a state of each sample and key head, whatever the length. */
static void what_travels_does_not_grow(void **state)
{
    const dh_model m = linear_model("llama-tiny", DH_FEATURE_ELU);
    for (int64_t tp = 1; tp <= 2; tp++)
        for (int64_t seq = 64; seq <= 4096; seq *= 8) {
            dh_graph *g = layer_of(&m, seq, false, 4, 1, tp);
            const dh_op *gather = &g->ops.at[place(g, DH_OP_LINEAR_STATE, 0) + 1];
            assert_int_equal(gather->type, DH_OP_ALL_GATHER);
            assert_int_equal(dh_tensor_bytes(&g->tensors.at[gather->in[0]]),
                             2 * m.n_kv_heads / tp * m.head_dim * m.head_dim * 4);
            dh_graph_destroy(g);
        }
}

static void shares_have_their_part_of_the_work(void **state)
{
    const dh_model m = linear_model("llama-tiny", DH_FEATURE_ELU);
    dh_graph *one = layer_of(&m, 1024, false, 1, 0, 1), *part = layer_of(&m, 1024, false, 4, 3, 1);
    assert_true(4 * work(part, DH_OP_LINEAR_ATTN) == work(one, DH_OP_LINEAR_ATTN));
    assert_true(4 * work(part, DH_OP_LINEAR_ATTN_GRAD) == work(one, DH_OP_LINEAR_ATTN_GRAD));
    assert_true(4 * work(part, DH_OP_LINEAR) == work(one, DH_OP_LINEAR));
    /* By hand: 2 samples of 1024 tokens; heads of queries and keys times D x D, and half a chunk of
     * 64 and itself twice. */
    const double d = (double)m.head_dim, h = (double)m.n_heads, kv = (double)m.n_kv_heads;
    assert_true(work(one, DH_OP_LINEAR_ATTN) == 2 * 2048 * d * (d * (h + kv) + 2 * h * 32.5));
    dh_graph_destroy(one);
    dh_graph_destroy(part);
}

/* Positions rise from rank to rank; no share has two pieces. */
static void shares_are_consecutive(void **state)
{
    dh_dims d = {.seq = 5, .cp = 3, .linear = 1};
    for (int64_t r = 0; r < 3; r++)
        for (int64_t t = 0; t < 5; t++) assert_int_equal(dh_cp_position(&d, r, t), r * 5 + t);
}

/* ---- LASP-2H ------------------------------------------------------------------------------------
 */

/* Layers of both kinds have the rings' tokens; a chunk is a sequence to linear attention. */
static void hybrids_have_two_chunks_with_a_state_each(void **state)
{
    dh_model m = linear_model("llama-tiny", DH_FEATURE_ELU);
    dh_graph *alone = layer_of(&m, 1024, false, 4, 1, 2);
    m.softmax_every = 2;
    for (int64_t r = 0; r < 4; r++) {
        dh_graph *g = layer_of(&m, 1024, false, 4, r, 2);
        dh_dims rings = g->dims;
        rings.linear = rings.zigzag = 0;
        for (int64_t t = 0; t < 256; t++)
            assert_int_equal(dh_cp_position(&g->dims, r, t), dh_cp_position(&rings, r, t));
        for (int64_t c = 0; c < 8; c++) {
            const dh_cp_chunk at = dh_cp_chunk_at(&g->dims, c);
            assert_int_equal(dh_cp_position(&g->dims, at.rank, at.own * 128), c * 128);
        }
        const dh_op_type types[] = {DH_OP_LINEAR_STATE, DH_OP_LINEAR_STATE_GRAD};
        for (size_t i = 0; i < DH_COUNTOF(types); i++) {
            const dh_op *own = &g->ops.at[place(g, types[i], 0)];
            const dh_op *one = &alone->ops.at[place(alone, types[i], 0)];
            assert_int_equal(g->tensors.at[own->out[0]].shape[0],
                             2 * alone->tensors.at[one->out[0]].shape[0]);
        }
        assert_true(work(g, DH_OP_LINEAR_ATTN) == work(alone, DH_OP_LINEAR_ATTN));
        assert_int_equal(count(g, DH_OP_ALL_GATHER), count(alone, DH_OP_ALL_GATHER));
        dh_graph_destroy(g);
    }
    dh_graph_destroy(alone);
}

static void hybrids_hand_nothing_on(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m = linear_model("llama-tiny", DH_FEATURE_ELU);
    m.softmax_every = 2;
    for (int odd = 0; odd < 2; odd++) {
        const dh_build build = build_linear(&m, DH_MODE_TRAIN, odd ? 15 : 16, !odd);
        dh_graph *g;
        assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
        assert_fails(&ctx, dh_pass_context_parallel(&ctx, g, 4, 1), DH_EINVAL,
                     odd ? "do not divide into" : "cp_linear=lasp2 would be right");
        dh_graph_destroy(g);
    }
}

/* ---- text, checks --------------------------------------------------------------------------- */

static void assert_reads_back(const dh_graph *g)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_graph_print(&ctx, g, &text));
    dh_graph *again = parse_graph(text.text);
    assert_same_graph(again, g);
    dh_graph_destroy(again);
    dh_str_fini(&text);
}

static void text_reads_back(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_model m = linear_model("llama-tiny", DH_FEATURE_SILU);
    dh_model hybrid = m;
    hybrid.softmax_every = 2;
    for (int64_t cp = 1; cp <= 4; cp++) {
        dh_graph *two = layer_of(&hybrid, 48, false, cp, cp - 1, 2);
        assert_reads_back(two);
        dh_graph_destroy(two);
        for (int ring = 0; ring < 2; ring++) {
            dh_graph *g = layer_of(&m, 48, ring, cp, cp - 1, 2);
            assert_reads_back(g);
            dh_graph_destroy(g);
        }
    }
    const dh_build build = build_linear(&m, DH_MODE_DECODE, 4, false);
    dh_graph *g;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
    const dh_op *op = &g->ops.at[place(g, DH_OP_LINEAR_CACHED, 0)];
    assert_int_equal(dh_tensor_bytes(&g->tensors.at[op->out[1]]),
                     m.n_kv_heads * m.head_dim * m.head_dim * 4);
    assert_reads_back(g);
    dh_graph_destroy(g);
}

static void check_finds_rows_of_other_sizes(void **state)
{
    const dh_model m = linear_model("llama-tiny", DH_FEATURE_ELU);
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = layer_of(&m, 64, false, 1, 0, 1);
    g->dims.n_kv_heads++;
    assert_fails(&ctx, dh_graph_check(&ctx, g), DH_EINVAL, "packed heads as dims have them");
    g->dims.n_kv_heads--;
    g->dims.seq = 3;
    assert_fails(&ctx, dh_graph_check(&ctx, g), DH_EINVAL, "is not whole samples");
    dh_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gather_each_way_beside_attention),
        cmocka_unit_test(lasp1_hands_on_step_by_step),
        cmocka_unit_test(ranks_have_the_same_operators),
        cmocka_unit_test(what_travels_does_not_grow),
        cmocka_unit_test(shares_have_their_part_of_the_work),
        cmocka_unit_test(shares_are_consecutive),
        cmocka_unit_test(hybrids_have_two_chunks_with_a_state_each),
        cmocka_unit_test(hybrids_hand_nothing_on),
        cmocka_unit_test(text_reads_back),
        cmocka_unit_test(check_finds_rows_of_other_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
