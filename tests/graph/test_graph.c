/* Graphs of real models: which operators they have, how much work that is, how the
 * head is cut, and what the check finds. */
#include "graph_cases.h"

#include "config/mesh.h"

/* ---- all shapes ------------------------------------------------------------------------ */

static void check_case(const graph_case *c, dh_graph *g)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    bool layer = c->kind == DH_BLOCK_LAYER, data = c->kind == DH_BLOCK_DATA;
    assert_int_equal(g->x_in != DH_NONE, layer || c->kind == DH_BLOCK_HEAD);
    assert_int_equal(g->dx_in != DH_NONE, c->backward && g->x_in != DH_NONE);
    assert_int_equal(g->dx_out != DH_NONE, c->backward && (layer || c->kind == DH_BLOCK_EMBED));
    for (size_t i = 0; i < g->ops.n && !data; i++) {
        assert_true(dh_op_bytes(g, &g->ops.at[i]) > 0);
        assert_true(dh_op_flops(g, &g->ops.at[i]) >= 0);
    }
}

static void every_graph_passes_its_check(void **state)
{
    assert_true(for_each_case(check_case) > 100);
}

/* ---- operators of a differentiated block -------------------------------------------------- */

typedef struct op_count {
    dh_phase phase;
    dh_op_type type;
    int n;
} op_count;

#define F DH_PHASE_F
#define B DH_PHASE_B
#define W DH_PHASE_W

static const op_count gpt2_layer[] = {
    {F, DH_OP_NORM, 2},       {F, DH_OP_LINEAR, 4},       {F, DH_OP_ATTN, 1},
    {F, DH_OP_ACT, 1},        {F, DH_OP_RESIDUAL, 2},     {B, DH_OP_LINEAR_DGRAD, 4},
    {B, DH_OP_NORM_DGRAD, 2}, {B, DH_OP_ATTN_GRAD, 1},    {B, DH_OP_ACT_GRAD, 1},
    {W, DH_OP_NORM_WGRAD, 2}, {W, DH_OP_LINEAR_WGRAD, 4}, {W, DH_OP_BIAS_GRAD, 4},
};
static const op_count gpt2_layer_dropout[] = {
    {F, DH_OP_NORM, 2},         {F, DH_OP_LINEAR, 4},     {F, DH_OP_ATTN, 1},
    {F, DH_OP_ACT, 1},          {F, DH_OP_RESIDUAL, 2},   {B, DH_OP_LINEAR_DGRAD, 4},
    {B, DH_OP_NORM_DGRAD, 2},   {B, DH_OP_ATTN_GRAD, 1},  {B, DH_OP_ACT_GRAD, 1},
    {B, DH_OP_DROPOUT_GRAD, 2}, {W, DH_OP_NORM_WGRAD, 2}, {W, DH_OP_LINEAR_WGRAD, 4},
    {W, DH_OP_BIAS_GRAD, 4},
};
static const op_count llama_layer[] = {
    {F, DH_OP_NORM, 2},         {F, DH_OP_LINEAR, 4},       {F, DH_OP_ROPE, 1},
    {F, DH_OP_ATTN, 1},         {F, DH_OP_ACT, 1},          {F, DH_OP_RESIDUAL, 2},
    {B, DH_OP_NORM_DGRAD, 2},   {B, DH_OP_LINEAR_DGRAD, 4}, {B, DH_OP_ATTN_GRAD, 1},
    {B, DH_OP_ROPE_GRAD, 1},    {B, DH_OP_ACT_GRAD, 1},     {W, DH_OP_NORM_WGRAD, 2},
    {W, DH_OP_LINEAR_WGRAD, 4},
};
/* The router's linear, and everything behind it; gradients of the norm's output from
 * router and experts are added. */
static const op_count mixtral_layer[] = {
    {F, DH_OP_NORM, 2},
    {F, DH_OP_LINEAR, 3},
    {F, DH_OP_ROPE, 1},
    {F, DH_OP_ATTN, 1},
    {F, DH_OP_ROUTER, 1},
    {F, DH_OP_ROUTER_SUMS, 1},
    {F, DH_OP_MOE_ORDER, 1},
    {F, DH_OP_MOE_PERMUTE, 1},
    {F, DH_OP_GROUPED_LINEAR, 2},
    {F, DH_OP_ACT, 1},
    {F, DH_OP_MOE_UNPERMUTE, 1},
    {F, DH_OP_RESIDUAL, 2},
    {B, DH_OP_NORM_DGRAD, 2},
    {B, DH_OP_LINEAR_DGRAD, 3},
    {B, DH_OP_ATTN_GRAD, 1},
    {B, DH_OP_ROPE_GRAD, 1},
    {B, DH_OP_MOE_UNPERMUTE_GRAD, 1},
    {B, DH_OP_GROUPED_DGRAD, 2},
    {B, DH_OP_ACT_GRAD, 1},
    {B, DH_OP_MOE_UNPERMUTE, 1},
    {B, DH_OP_ROUTER_GRAD, 1},
    {B, DH_OP_ADD, 1},
    {W, DH_OP_NORM_WGRAD, 2},
    {W, DH_OP_LINEAR_WGRAD, 3},
    {W, DH_OP_GROUPED_WGRAD, 2},
};
/* Over two ranks: every rank routes all tokens from gathered logits, and has a share of
 * every expert's columns. */
static const op_count mixtral_layer_tp[] = {
    {F, DH_OP_NORM, 2},
    {F, DH_OP_LINEAR, 3},
    {F, DH_OP_ROPE, 1},
    {F, DH_OP_ATTN, 1},
    {F, DH_OP_ROUTER, 1},
    {F, DH_OP_ROUTER_SUMS, 1},
    {F, DH_OP_MOE_ORDER, 1},
    {F, DH_OP_MOE_PERMUTE, 1},
    {F, DH_OP_GROUPED_LINEAR, 2},
    {F, DH_OP_ACT, 1},
    {F, DH_OP_MOE_UNPERMUTE, 1},
    {F, DH_OP_RESIDUAL, 2},
    {F, DH_OP_ALL_GATHER, 3},
    {F, DH_OP_REDUCE_SCATTER, 2},
    {B, DH_OP_NORM_DGRAD, 2},
    {B, DH_OP_LINEAR_DGRAD, 3},
    {B, DH_OP_ATTN_GRAD, 1},
    {B, DH_OP_ROPE_GRAD, 1},
    {B, DH_OP_MOE_UNPERMUTE_GRAD, 1},
    {B, DH_OP_GROUPED_DGRAD, 2},
    {B, DH_OP_ACT_GRAD, 1},
    {B, DH_OP_MOE_UNPERMUTE, 1},
    {B, DH_OP_ROUTER_GRAD, 1},
    {B, DH_OP_ADD, 1},
    {B, DH_OP_ALL_GATHER, 2},
    {B, DH_OP_REDUCE_SCATTER, 3},
    {W, DH_OP_NORM_WGRAD, 2},
    {W, DH_OP_LINEAR_WGRAD, 3},
    {W, DH_OP_GROUPED_WGRAD, 2},
    {W, DH_OP_ALL_GATHER, 1},
};
/* Over two ranks the two gathers come again for the weight gradients. */
static const op_count llama_layer_tp[] = {
    {F, DH_OP_NORM, 2},
    {F, DH_OP_LINEAR, 4},
    {F, DH_OP_ROPE, 1},
    {F, DH_OP_ATTN, 1},
    {F, DH_OP_ACT, 1},
    {F, DH_OP_RESIDUAL, 2},
    {F, DH_OP_ALL_GATHER, 2},
    {F, DH_OP_REDUCE_SCATTER, 2},
    {B, DH_OP_NORM_DGRAD, 2},
    {B, DH_OP_LINEAR_DGRAD, 4},
    {B, DH_OP_ATTN_GRAD, 1},
    {B, DH_OP_ROPE_GRAD, 1},
    {B, DH_OP_ACT_GRAD, 1},
    {B, DH_OP_ALL_GATHER, 2},
    {B, DH_OP_REDUCE_SCATTER, 2},
    {W, DH_OP_NORM_WGRAD, 2},
    {W, DH_OP_LINEAR_WGRAD, 4},
    {W, DH_OP_ALL_GATHER, 2},
};
/* A ring of four: three exchanges of keys and values each way; gradients of keys and
 * values are passed on three times and then home. */
static const op_count gpt2_layer_cp[] = {
    {F, DH_OP_NORM, 2},          {F, DH_OP_LINEAR, 4},         {F, DH_OP_KV_PACK, 1},
    {F, DH_OP_RING_ATTN, 4},     {F, DH_OP_RING_EXCHANGE, 3},  {F, DH_OP_ACT, 1},
    {F, DH_OP_RESIDUAL, 2},      {B, DH_OP_LINEAR_DGRAD, 4},   {B, DH_OP_NORM_DGRAD, 2},
    {B, DH_OP_KV_PACK, 1},       {B, DH_OP_RING_ATTN_GRAD, 4}, {B, DH_OP_ADD, 3},
    {B, DH_OP_RING_EXCHANGE, 6}, {B, DH_OP_QKV_JOIN, 1},       {B, DH_OP_ACT_GRAD, 1},
    {W, DH_OP_NORM_WGRAD, 2},    {W, DH_OP_LINEAR_WGRAD, 4},   {W, DH_OP_BIAS_GRAD, 4},
};
static const op_count embed[] = {{F, DH_OP_EMBED, 1}, {W, DH_OP_EMBED_GRAD, 1}};
/* 128 rows in two chunks; the loss gradient belongs to the forward. */
static const op_count head[] = {
    {F, DH_OP_NORM, 1},       {F, DH_OP_LINEAR, 2},       {F, DH_OP_LOSS_STATS, 2},
    {F, DH_OP_LOSS, 2},       {F, DH_OP_LOSS_GRAD, 2},    {F, DH_OP_LINEAR_DGRAD, 2},
    {B, DH_OP_NORM_DGRAD, 1}, {F, DH_OP_LINEAR_WGRAD, 2}, {W, DH_OP_NORM_WGRAD, 1},
};

#define CASE(preset, kind, dropout, tp)                                                            \
    {                                                                                              \
        preset, kind, DH_MODE_TRAIN, DH_BF16, dropout, tp, true, 1, 1, false                       \
    }

static void differentiated_blocks_have_exactly_these_operators(void **state)
{
    static const struct {
        graph_case c;
        const op_count *rows;
        size_t n;
    } blocks[] = {
        {CASE("gpt2-tiny", DH_BLOCK_LAYER, 0, 1), gpt2_layer, DH_COUNTOF(gpt2_layer)},
        {CASE("gpt2-tiny", DH_BLOCK_LAYER, 0.1, 1), gpt2_layer_dropout,
         DH_COUNTOF(gpt2_layer_dropout)},
        {CASE("llama-tiny", DH_BLOCK_LAYER, 0, 1), llama_layer, DH_COUNTOF(llama_layer)},
        {CASE("llama-tiny", DH_BLOCK_LAYER, 0, 2), llama_layer_tp, DH_COUNTOF(llama_layer_tp)},
        {{"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_BF16, 0, 1, true, 4, 1, false},
         gpt2_layer_cp,
         DH_COUNTOF(gpt2_layer_cp)},
        {CASE("mixtral-tiny", DH_BLOCK_LAYER, 0, 1), mixtral_layer, DH_COUNTOF(mixtral_layer)},
        {CASE("mixtral-tiny", DH_BLOCK_LAYER, 0, 2), mixtral_layer_tp,
         DH_COUNTOF(mixtral_layer_tp)},
        {CASE("gpt2-tiny", DH_BLOCK_EMBED, 0, 1), embed, DH_COUNTOF(embed)},
        {CASE("gpt2-tiny", DH_BLOCK_HEAD, 0, 1), head, DH_COUNTOF(head)},
        {CASE("llama-tiny", DH_BLOCK_HEAD, 0, 1), head, DH_COUNTOF(head)},
    };
    for (size_t i = 0; i < DH_COUNTOF(blocks); i++) {
        int want[DH_N_PHASE][DH_N_OP_TYPE] = {{0}}, got[DH_N_PHASE][DH_N_OP_TYPE] = {{0}};
        for (size_t k = 0; k < blocks[i].n; k++)
            want[blocks[i].rows[k].phase][blocks[i].rows[k].type] = blocks[i].rows[k].n;
        dh_graph *g = build_case(&blocks[i].c);
        for (size_t k = 0; k < g->ops.n; k++) got[g->ops.at[k].phase][g->ops.at[k].type]++;
        for (int phase = 0; phase < DH_N_PHASE; phase++)
            for (int type = 0; type < DH_N_OP_TYPE; type++)
                if (got[phase][type] != want[phase][type])
                    fail_msg("block %zu of %s: %d operators %s in phase %d, want %d", i,
                             blocks[i].c.preset, got[phase][type],
                             dh_op_info_of((dh_op_type)type)->name, phase, want[phase][type]);
        dh_graph_destroy(g);
    }
}

/* The residual's gradient joins inside norm_dgrad: the first (second norm) takes
 * dx_out, the last gives dx_in. */
static void residual_gradients_meet_in_the_norms(void **state)
{
    graph_case c = CASE("gpt2-tiny", DH_BLOCK_LAYER, 0, 1);
    dh_graph *g = build_case(&c);
    uint32_t previous = g->dx_out;
    for (size_t i = 0; i < g->ops.n; i++) {
        if (g->ops.at[i].type != DH_OP_NORM_DGRAD) continue;
        assert_int_equal(g->ops.at[i].in[4], previous);
        previous = g->ops.at[i].out[0];
    }
    assert_int_equal(previous, g->dx_in);
    dh_graph_destroy(g);
}

static void only_training_graphs_have_a_backward(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    graph_case c = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_EVAL, DH_F32, 0.1, 1, false, 1, 1, false};
    dh_graph *g = build_case(&c);
    assert_fails(&ctx, dh_graph_differentiate(&ctx, g), DH_EINVAL, "built for training");
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == DH_OP_RESIDUAL) assert_int_equal(g->ops.at[i].in[3], DH_NONE);
    dh_graph_destroy(g);
    static const dh_model none;
    dh_build build = {.model = &none};
    assert_fails(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_OPT, &g), DH_EINVAL, "no builder");
}

/* ---- work ----------------------------------------------------------------------------------- */

static double flops_of(const dh_graph *g, dh_op_type type)
{
    double sum = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.at[i].type == type) sum += dh_op_flops(g, &g->ops.at[i]);
    return sum;
}

/* GPT-2 small, one sequence of 1024 tokens. Linears of a layer: 2 * 1024 * (768 * 2304
 * + 768 * 768 + 2 * 768 * 3072); head: 2 * 1024 * 768 * 50257; attention under the mask:
 * 2 GEMMs * 2 * 768 * 1024 * 1025 / 2. */
static void flops_of_gpt2_are_those_by_hand(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = preset("gpt2");
    dh_build build = {.model = &model,
                      .mode = DH_MODE_TRAIN,
                      .dtype = DH_BF16,
                      .batch = 1,
                      .seq = 1024,
                      .loss_scale = 1.0 / 1024,
                      .head_chunk_bytes = DH_HEAD_CHUNK_BYTES};
    dh_graph *layer, *top;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &layer));
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_HEAD, &top));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, layer));
    assert_ok(&ctx, dh_graph_differentiate(&ctx, top));
    assert_true(flops_of(layer, DH_OP_LINEAR) == 14495514624.0);
    assert_true(flops_of(layer, DH_OP_ATTN) == 1612185600.0);
    assert_true(flops_of(layer, DH_OP_ATTN_GRAD) == 2.5 * 1612185600.0);
    assert_true(flops_of(top, DH_OP_LINEAR) == 79047426048.0);
    const dh_graph *graphs[] = {layer, top};
    for (int i = 0; i < 2; i++) {
        double forward = flops_of(graphs[i], DH_OP_LINEAR);
        assert_true(flops_of(graphs[i], DH_OP_LINEAR_DGRAD) == forward);
        assert_true(flops_of(graphs[i], DH_OP_LINEAR_WGRAD) == forward);
    }
    dh_graph_destroy(layer);
    dh_graph_destroy(top);
}

/* Mixtral 8x7B, 512 tokens: two of eight experts each, or a capacity of 1.25 even shares,
 * 160 rows of an expert. */
static void flops_of_experts_are_those_by_hand(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = preset("mixtral-8x7b");
    const double product = 2.0 * 4096 * 14336;
    for (int capped = 0; capped <= 1; capped++) {
        dh_build build = {.model = &model,
                          .mode = DH_MODE_TRAIN,
                          .dtype = DH_BF16,
                          .batch = 2,
                          .seq = 256,
                          .loss_scale = 1.0 / 512,
                          .head_chunk_bytes = DH_HEAD_CHUNK_BYTES,
                          .moe_capacity = capped ? 1.25 : 0};
        const double rows = capped ? 8 * 160 : 2 * 512;
        dh_graph *g;
        assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
        assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
        for (size_t i = 0; i < g->ops.n; i++)
            if (g->ops.at[i].type == DH_OP_MOE_ORDER)
                assert_int_equal(g->ops.at[i].capacity, capped ? 160 : 0);
        assert_true(flops_of(g, DH_OP_GROUPED_LINEAR) == 3 * rows * product);
        assert_true(flops_of(g, DH_OP_GROUPED_DGRAD) == 3 * rows * product);
        assert_true(flops_of(g, DH_OP_GROUPED_WGRAD) == 3 * rows * product);
        dh_graph_destroy(g);
    }
}

/* ---- context parallelism -------------------------------------------------------------------- */

/* Every position belongs to one token of one rank; rows of a rank are in rising order. */
static void context_ranks_share_all_positions(void **state)
{
    for (int64_t cp = 1; cp <= 5; cp++) {
        int seen[5 * 12] = {0};
        const dh_dims d = {.seq = 12, .cp = cp};
        for (int64_t r = 0; r < cp; r++)
            for (int64_t t = 0; t < d.seq; t++) {
                int64_t pos = dh_cp_position(&d, r, t);
                assert_true(pos >= 0 && pos < cp * d.seq);
                assert_true(t == 0 || pos > dh_cp_position(&d, r, t - 1));
                seen[pos]++;
            }
        for (int64_t i = 0; i < cp * d.seq; i++) assert_int_equal(seen[i], 1);
    }
    const dh_dims odd = {.seq = 7};
    for (int64_t t = 0; t < 7; t++) assert_int_equal(dh_cp_position(&odd, 0, t), t);
}

/* By the mask itself: a pair is in a ring part exactly when the key is not behind the query. */
static void ring_parts_cover_the_mask(void **state)
{
    for (int64_t cp = 2; cp <= 5; cp++)
        for (int64_t r = 0; r < cp; r++)
            for (int32_t s = 0; s < cp; s++) {
                const dh_dims d = {.seq = 6, .cp = cp, .cp_rank = r};
                const dh_ring_part p = dh_ring_part_of(&d, s);
                assert_int_equal(p.from, (r + cp - s) % cp);
                for (int64_t q = 0; q < d.seq; q++)
                    for (int64_t k = 0; k < d.seq; k++) {
                        bool in = q >= p.q0 && q < p.q0 + p.n_q && k < p.n_k && (s > 0 || k <= q);
                        assert_true(in ==
                                    (dh_cp_position(&d, p.from, k) <= dh_cp_position(&d, r, q)));
                    }
            }
}

/* Pairs that a query sees of a window, counted one by one, over all layers: of the whole, and of
 * each part of a ring. Layers with the window have a graph of their own. */
static void flops_of_windows_count_what_is_seen(void **state)
{
    static const struct {
        int64_t window, from, every, layers;
        double share;
    } cases[] = {{3, 0, 0, 4, 1},   {5, 1, 0, 4, 0.75}, {11, 0, 2, 4, 0.5},
                 {9, 2, 3, 8, 0.5}, {40, 0, 0, 2, 1},   {4, 4, 0, 4, 0}};
    enum { SEQ = 24 };
    dh_model model = preset("llama-tiny");
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (int64_t cp = 1; cp <= 4; cp += cp == 1 ? 1 : 2) {
            dh_ctx ctx = DH_CTX_INIT;
            graph_case c = CASE("llama-tiny", DH_BLOCK_LAYER, 0, 1);
            dh_build build = build_of(&c, &model);
            double flops = 0, pairs = 0;
            model.window = cases[i].window;
            model.window_from = cases[i].from;
            model.window_every = cases[i].every;
            model.n_layers = cases[i].layers;
            build.batch = 1;
            build.seq = SEQ / cp;
            for (int64_t at = 0; at < cp * model.n_layers; at++) {
                const int64_t layer = at / cp, r = at % cp;
                dh_graph *g;
                build.layer = layer;
                assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
                assert_ok(&ctx, dh_pass_context_parallel(&ctx, g, cp, r));
                assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
                const double forward = flops_of(g, cp > 1 ? DH_OP_RING_ATTN : DH_OP_ATTN);
                assert_true(flops_of(g, cp > 1 ? DH_OP_RING_ATTN_GRAD : DH_OP_ATTN_GRAD) ==
                            2.5 * forward);
                flops += forward;
                dh_graph_destroy(g);
            }
            for (int64_t q = 0; q < SEQ; q++)
                for (int64_t k = 0; k <= q; k++)
                    pairs += q - k < cases[i].window ? 1 : 1 - cases[i].share;
            pairs *= (double)model.n_layers;
            const double want = 4 * pairs * (double)(model.n_heads * model.head_dim);
            if (!(fabs(flops / want - 1) <= 1e-12))
                fail_msg("window %lld, cp %lld: %.17g, by hand %.17g", (long long)model.window,
                         (long long)cp, flops, want);
        }
}

/* All ranks do the same work, together that of one rank. */
static void ring_attention_shares_the_work(void **state)
{
    graph_case c = CASE("llama-tiny", DH_BLOCK_LAYER, 0, 1);
    dh_graph *one = build_case(&c);
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = preset(c.preset);
    for (int64_t cp = 2; cp <= 4; cp *= 2) {
        c.cp = cp;
        for (int64_t r = 0; r < cp; r++) {
            dh_build build = build_of(&c, &model);
            dh_graph *g;
            assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
            assert_ok(&ctx, dh_pass_context_parallel(&ctx, g, cp, r));
            assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
            const double n = (double)cp;
            assert_true(n * flops_of(g, DH_OP_RING_ATTN) == flops_of(one, DH_OP_ATTN));
            assert_true(n * flops_of(g, DH_OP_RING_ATTN_GRAD) == flops_of(one, DH_OP_ATTN_GRAD));
            assert_true(n * flops_of(g, DH_OP_LINEAR) == flops_of(one, DH_OP_LINEAR));
            dh_graph_destroy(g);
        }
    }
    dh_graph_destroy(one);
}

static int count_ops(const dh_graph *g, dh_op_type type, dh_phase phase)
{
    int n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += g->ops.at[i].type == type && g->ops.at[i].phase == phase;
    return n;
}

/* Shoeybi et al. 2019, figure 4: two all-reduces a layer either way, and what lies between
 * the linears on all tokens; of experts also the sum of the router's gradient. */
static void whole_tokens_take_all_reduces(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny", "mixtral-tiny"};
    for (size_t i = 0; i < DH_COUNTOF(presets); i++) {
        graph_case c = CASE(presets[i], DH_BLOCK_LAYER, 0, 2);
        dh_graph *split = build_case(&c);
        c.sequence = DH_SEQUENCE_WHOLE;
        dh_graph *g = build_case(&c);
        const int routers = i == 2;
        assert_int_equal(count_ops(g, DH_OP_ALL_REDUCE, F), 2);
        assert_int_equal(count_ops(g, DH_OP_ALL_REDUCE, B), 2 + routers);
        for (int phase = 0; phase < DH_N_PHASE; phase++) {
            assert_int_equal(count_ops(g, DH_OP_ALL_GATHER, (dh_phase)phase), 0);
            assert_int_equal(count_ops(g, DH_OP_REDUCE_SCATTER, (dh_phase)phase), 0);
        }
        const dh_tensor *x = &g->tensors.at[g->x_in], *part = &split->tensors.at[split->x_in];
        assert_int_equal(x->shape[0], 128);
        assert_int_equal(part->shape[0], 64);
        assert_true(flops_of(g, DH_OP_NORM) == 2 * flops_of(split, DH_OP_NORM));
        if (!routers) assert_true(flops_of(g, DH_OP_LINEAR) == flops_of(split, DH_OP_LINEAR));
        dh_graph_destroy(split);
        dh_graph_destroy(g);
    }
}

static void context_parallelism_refuses(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    graph_case c = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_DECODE, DH_F32, 0, 1, false, 1, 1, false};
    dh_graph *g = build_case(&c);
    assert_fails(&ctx, dh_pass_context_parallel(&ctx, g, 2, 0), DH_EINVAL, "training");
    dh_graph_destroy(g);
    dh_model model = preset(c.preset);
    c.mode = DH_MODE_EVAL;
    dh_build build = build_of(&c, &model);
    build.seq = 9;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
    assert_fails(&ctx, dh_pass_context_parallel(&ctx, g, 2, 0), DH_EINVAL, "18 tokens");
    g->dims.cp_rank = 1;
    assert_fails(&ctx, dh_graph_check(&ctx, g), DH_EINVAL, "cp rank 1");
    g->dims.cp_rank = 0;
    g->ops.at[0].step = 1;
    assert_fails(&ctx, dh_graph_check(&ctx, g), DH_EINVAL, "op 0 norm has a step");
    g->ops.at[0].type = DH_OP_RING_ATTN;
    assert_fails(&ctx, dh_graph_check(&ctx, g), DH_EINVAL, "step 1");
    dh_graph_destroy(g);
}

/* A linear f32 [N,I] x [O,I] reads both and writes [N,O]; its weight gradient is
 * read and written. */
static void bytes_count_operands_once(void **state)
{
    graph_case c = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, 0, 1, true, 1, 1, false};
    dh_model model = preset(c.preset);
    dh_graph *g = build_case(&c);
    const double n = 128, w = (double)model.width;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        double bytes = dh_op_bytes(g, op);
        if (op->type == DH_OP_LINEAR && g->tensors.at[op->in[1]].which == DH_PARAM_PROJ_W)
            assert_true(bytes == 4 * (n * w + w * w + n * w));
        if (op->type == DH_OP_LINEAR_WGRAD && g->tensors.at[op->out[0]].which == DH_PARAM_PROJ_W)
            assert_true(bytes == 4 * (n * w + n * w + 2 * w * w));
    }
    dh_graph_destroy(g);
}

/* ---- head ----------------------------------------------------------------------------------- */

/* Views of `base` lie side by side from its first row to its last. */
static int assert_partitioned(const dh_graph *g, uint32_t base)
{
    int64_t row = 0;
    int n = 0;
    for (size_t i = 0; i < g->tensors.n; i++) {
        const dh_tensor *t = &g->tensors.at[i];
        if (t->base != base) continue;
        assert_int_equal(t->row0, row);
        row += t->shape[0];
        n++;
    }
    assert_int_equal(row, g->tensors.at[base].shape[0]);
    return n;
}

static void check_head(int64_t rows, int64_t chunk_bytes, dh_mode mode, dh_dtype dtype)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model = preset("gpt2-tiny");
    dh_build build = {.model = &model,
                      .mode = mode,
                      .dtype = dtype,
                      .batch = 1,
                      .seq = rows,
                      .head_chunk_bytes = chunk_bytes};
    dh_graph *g;
    assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_HEAD, &g));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    int n_logits = 0;
    for (size_t i = 0; i < g->tensors.n; i++) {
        const dh_tensor *t = &g->tensors.at[i];
        if (t->kind != DH_TENSOR_ACT || t->ndim != 2 || t->axis[1] != DH_AXIS_VOCAB) continue;
        assert_true(dh_tensor_bytes(t) <= chunk_bytes || t->shape[0] <= 64);
        n_logits += strcmp(t->name, "logits") == 0;
    }
    for (uint32_t i = 0; i < g->tensors.n; i++) {
        const dh_tensor *t = &g->tensors.at[i];
        bool cut = strcmp(t->name, "xn") == 0 || strcmp(t->name, "dxn") == 0 ||
                   (t->kind == DH_TENSOR_INPUT && t->base == DH_NONE && t->which == DH_IN_TARGETS);
        if (cut) assert_int_equal(assert_partitioned(g, i), n_logits);
    }
    dh_graph_destroy(g);
}

static void head_rows_are_cut_exactly(void **state)
{
    uint64_t seed = test_seed("head_rows_are_cut_exactly");
    dh_model model = preset("gpt2-tiny");
    const int64_t row_bytes = 4 * model.vocab;
    for (int i = 0; i < 60; i++) {
        int64_t rows = 1 + (int64_t)(test_rand(&seed) % 700);
        int64_t chunk = (int64_t)(test_rand(&seed) % (uint64_t)(400 * row_bytes));
        check_head(rows, chunk, i % 2 ? DH_MODE_TRAIN : DH_MODE_EVAL, i % 3 ? DH_F32 : DH_BF16);
    }
    check_head(128, 64 * row_bytes, DH_MODE_TRAIN, DH_F32);
    check_head(129, 128 * row_bytes - 1, DH_MODE_TRAIN, DH_F32);
}

static void decoding_makes_one_row_of_logits(void **state)
{
    graph_case c = {"gpt2-tiny", DH_BLOCK_HEAD, DH_MODE_DECODE, DH_BF16, 0, 1, false, 1, 1, false};
    dh_graph *g = build_case(&c);
    const dh_tensor *logits = &g->tensors.at[g->x_out];
    assert_int_equal(logits->shape[0], 1);
    assert_int_equal(logits->dtype, DH_F32);
    dh_graph_destroy(g);
}

/* ---- the check ------------------------------------------------------------------------------ */

/* y = activation(x); z = activation(y), with y made of two halves by views on request. */
static dh_graph *small_graph(void)
{
    dh_graph *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->x_out = g->dx_out = g->dx_in = g->loss_x = g->loss_dx = DH_NONE;
    dh_tensor t = {.name = "x",
                   .kind = DH_TENSOR_ACT,
                   .dtype = DH_F32,
                   .ndim = 2,
                   .shape = {8, 4},
                   .base = DH_NONE,
                   .which = DH_NONE};
    for (const char *name = "xyz"; *name; name++) {
        t.name[0] = *name;
        dh_graph_add_tensor(g, &t);
    }
    t.shape[0] = 4;
    t.base = 1;
    dh_graph_add_tensor(g, &t); /* %3, %4: rows of y */
    t.row0 = 4;
    dh_graph_add_tensor(g, &t);
    g->x_in = 0;
    return g;
}

static void apply(dh_graph *g, uint32_t in, uint32_t out)
{
    assert_int_not_equal(DH_NONE, dh_graph_add_op(g, DH_OP_ACT, DH_PHASE_F, &in, &out));
}

static void expect_fault(dh_graph *g, const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_fails(&ctx, dh_graph_check(&ctx, g), DH_EINVAL, part);
    dh_graph_destroy(g);
}

static void check_finds_order_faults(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = small_graph();
    apply(g, 0, 1);
    apply(g, 1, 2);
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    apply(g, 0, 2);
    expect_fault(g, "op 2 activation writes %2 z, which is written already");

    g = small_graph();
    apply(g, 1, 2);
    apply(g, 0, 1);
    expect_fault(g, "op 0 activation reads %1 y before any operator wrote it");

    g = small_graph();
    apply(g, 1, 0);
    expect_fault(g, "reads %1 y");

    g = small_graph();
    apply(g, 0, 0);
    expect_fault(g, "writes %0 x, which is written already");

    g = small_graph(); /* halves, then the whole */
    apply(g, 0, 3);
    apply(g, 0, 4);
    apply(g, 1, 2);
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    apply(g, 0, 3);
    expect_fault(g, "op 3 activation writes %3 z");

    g = small_graph(); /* one half is not the whole */
    apply(g, 0, 3);
    apply(g, 1, 2);
    expect_fault(g, "op 1 activation reads %1 y before any operator wrote all of it");
}

static void check_finds_operand_faults(void **state)
{
    dh_graph *g = small_graph();
    apply(g, DH_NONE, 1);
    expect_fault(g, "op 0 activation lacks operand h");

    g = small_graph();
    apply(g, 0, 77);
    expect_fault(g, "op 0 activation: operand g is %77");

    g = small_graph();
    apply(g, 0, 1);
    g->ops.at[0].type = DH_N_OP_TYPE;
    expect_fault(g, "op 0 has no valid type");

    g = small_graph();
    apply(g, 0, 1);
    g->ops.at[0].group = DH_N_GROUPS;
    expect_fault(g, "group");

    g = small_graph();
    g->loss_x = 5;
    expect_fault(g, "block end %5");

    g = small_graph();
    g->mode = (dh_mode)7;
    expect_fault(g, "no valid kind, mode or type");
}

/* Kernels take sizes from operands: these must agree. */
static void check_finds_attention_of_other_rows(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny"};
    for (size_t i = 0; i < DH_COUNTOF(presets); i++)
        for (int64_t cp = 1; cp <= 2; cp++) {
            graph_case c = CASE(presets[i], DH_BLOCK_LAYER, 0, 1);
            c.cp = cp;
            dh_ctx ctx = DH_CTX_INIT;
            dh_graph *g = build_case(&c);
            assert_ok(&ctx, dh_graph_check(&ctx, g));
            for (size_t k = 0; k < g->ops.n; k++) {
                const dh_op *op = &g->ops.at[k];
                if (op->type != DH_OP_ATTN && op->type != DH_OP_RING_ATTN) continue;
                g->tensors.at[op->out[1]].shape[0] = 1;
            }
            expect_fault(g, "attention: ");
        }
}

/* Every row of a packed row has a position. */
static void check_finds_positions_of_other_rows(void **state)
{
    dh_model model = preset("gpt2-tiny");
    for (int64_t cp = 1; cp <= 2; cp++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_graph *g;
        graph_case c = CASE("gpt2-tiny", DH_BLOCK_LAYER, 0, 1);
        dh_build build = build_of(&c, &model);
        build.documents = true;
        assert_ok(&ctx, dh_graph_build(&ctx, &build, DH_BLOCK_LAYER, &g));
        assert_ok(&ctx, dh_pass_context_parallel(&ctx, g, cp, 0));
        assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
        assert_ok(&ctx, dh_graph_check(&ctx, g));
        for (size_t i = 0; i < g->tensors.n; i++)
            if (g->tensors.at[i].kind == DH_TENSOR_INPUT) g->tensors.at[i].shape[0]--;
        expect_fault(g, "no position for each row");
    }
}

/* Of 4 columns a whole has two and two, of as many rows. */
static void check_finds_columns_of_other_sizes(void **state)
{
    static const char text[] = "dhelix.graph v2 layer eval f32\n"
                               "%0:x act f32[8 tokens, 4 width]\n"
                               "%1:a act f32[8 tokens, 2 width]\n"
                               "%2:b act f32[8 tokens, 2 width]\n"
                               "%3:y act f32[8 tokens, 4 width]\n"
                               "ends x_in=%0 x_out=%3\n"
                               "F %1, %2 = split_columns(%0)\n"
                               "F %3 = join_columns(%1, %2)\n";
    static const char *const faults[] = {"op 0 split_columns: its parts are not the columns of x",
                                         "op 1 join_columns: its parts are not the columns of y"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph_destroy(parse_graph(text));
    for (uint32_t id = 0; id < 4; id++) {
        dh_graph *g = parse_graph(text);
        g->tensors.at[id].shape[1]++;
        expect_fault(g, faults[id == 3]);
    }
    dh_graph *g = parse_graph(text);
    g->tensors.at[0].shape[0] = g->tensors.at[1].shape[0] = g->tensors.at[2].shape[0] = 4;
    assert_fails(&ctx, dh_graph_check(&ctx, g), DH_EINVAL, faults[1]);
    dh_graph_destroy(g);
}

/* Columns that are moved lie inside what they leave and where they go. */
static void check_finds_columns_that_leave(void **state)
{
    static const char text[] = "dhelix.graph v2 reshard eval f32\n"
                               "%0:x range f32[8, 4] slot=0\n"
                               "%1:m act f32[16]\n"
                               "%2:y range f32[8, 5] slot=1\n"
                               "F %1 = take_columns(%0) {from=2, columns=2}\n"
                               "F %2 = put_columns(%1) {to=3, columns=2, adds=1}\n";
    static const struct {
        uint32_t op;
        dh_op_attr attr;
        int64_t value;
    } faults[] = {{0, DH_ATTR_FROM, 3}, {0, DH_ATTR_COLUMNS, 1}, {0, DH_ATTR_COLUMNS, 0},
                  {1, DH_ATTR_TO, 4},   {1, DH_ATTR_COLUMNS, 1}, {1, DH_ATTR_FROM, 1}};
    dh_graph_destroy(parse_graph(text));
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        dh_graph *g = parse_graph(text);
        dh_op_attr_set(&g->ops.at[faults[i].op], faults[i].attr, faults[i].value);
        expect_fault(g, "its columns do not lie inside");
    }
    dh_graph *g = parse_graph(text);
    for (uint32_t id = 0; id < 3; id++) g->tensors.at[id].dtype = DH_BF16;
    expect_fault(g, "op 1 put_columns"); /* only float32 is added */
}

static void check_finds_tensor_faults(void **state)
{
    struct fault {
        dh_tensor tensor;
        const char *part;
    };
    const dh_tensor half = {.name = "half",
                            .kind = DH_TENSOR_ACT,
                            .dtype = DH_F32,
                            .ndim = 2,
                            .shape = {4, 4},
                            .base = 1,
                            .row0 = 4,
                            .which = DH_NONE};
    struct fault faults[17];
    size_t n = 0;
#define FAULT(edit, text)                                                                          \
    do {                                                                                           \
        faults[n] = (struct fault){half, text};                                                    \
        dh_tensor *t = &faults[n++].tensor;                                                        \
        edit;                                                                                      \
    } while (0)
    FAULT(t->row0 = 5, "does not lie inside its base %1 y");
    FAULT(t->row0 = -1, "does not lie inside its base");
    FAULT(t->row0 = INT64_MAX, "does not lie inside its base");
    FAULT(t->shape[1] = 3, "does not lie inside its base");
    FAULT(t->dtype = DH_BF16, "does not lie inside its base");
    FAULT(t->ndim = 1, "does not lie inside its base");
    FAULT(t->base = 3, "%3, which owns no storage");
    FAULT(t->base = 99, "%99, which owns no storage");
    FAULT(t->base = DH_NONE, "row 4 of nothing");
    FAULT(t->ndim = 4, "4 axes");
    FAULT(t->shape[0] = 0, "axis 0 has size 0");
    FAULT((t->shape[0] = INT64_MAX, t->base = DH_NONE), "axis 0 has size");
    FAULT(t->which = 3, "has no slot");
    FAULT((t->kind = DH_TENSOR_PARAM), "needs a slot");
    FAULT((t->kind = DH_TENSOR_STATE, t->which = DH_N_STATE), "must be below 10");
    FAULT((t->kind = DH_TENSOR_PARAM, t->which = 0), "does not lie inside its base");
    FAULT(t->name[2] = ' ', "no valid name");
#undef FAULT
    for (size_t i = 0; i < n; i++) {
        dh_graph *g = small_graph();
        dh_graph_add_tensor(g, &faults[i].tensor);
        expect_fault(g, faults[i].part);
    }
}

static void equality_sees_every_part(void **state)
{
    graph_case c = CASE("llama-tiny", DH_BLOCK_LAYER, 0.1, 2);
    dh_graph *a = build_case(&c), *b = build_case(&c);
    assert_true(dh_graph_equal(a, b));
#define DIFFERS(lvalue, other)                                                                     \
    do {                                                                                           \
        __typeof__(lvalue) keep = (lvalue);                                                        \
        (lvalue) = (other);                                                                        \
        assert_false(dh_graph_equal(a, b));                                                        \
        (lvalue) = keep;                                                                           \
        assert_true(dh_graph_equal(a, b));                                                         \
    } while (0)
    DIFFERS(b->mode, DH_MODE_EVAL);
    DIFFERS(b->dims.cp, 2);
    DIFFERS(b->dims.cp_rank, 1);
    DIFFERS(b->ops.at[2].capacity, 1);
    DIFFERS(b->ops.at[2].room, 1);
    DIFFERS(b->ops.at[2].rows, 1);
    DIFFERS(b->ops.at[2].step, 1);
    DIFFERS(b->ops.at[2].vocab0, 17);
    DIFFERS(b->ops.at[2].flat, 1);
    DIFFERS(b->dims.rope.theta, 17);
    DIFFERS(b->dx_in, 0);
    DIFFERS(b->tensors.at[1].name[0], 'Q');
    DIFFERS(b->tensors.at[1].axis[1], DH_AXIS_VOCAB);
    DIFFERS(b->tensors.at[1].row0, 1);
    DIFFERS(b->ops.at[2].group, 5);
    DIFFERS(b->ops.at[2].site, 1);
    DIFFERS(b->ops.at[2].in[1], 0);
    DIFFERS(b->ops.n, b->ops.n - 1);
#undef DIFFERS
    dh_graph_destroy(a);
    dh_graph_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_graph_passes_its_check),
        cmocka_unit_test(differentiated_blocks_have_exactly_these_operators),
        cmocka_unit_test(residual_gradients_meet_in_the_norms),
        cmocka_unit_test(only_training_graphs_have_a_backward),
        cmocka_unit_test(flops_of_gpt2_are_those_by_hand),
        cmocka_unit_test(flops_of_experts_are_those_by_hand),
        cmocka_unit_test(context_ranks_share_all_positions),
        cmocka_unit_test(ring_parts_cover_the_mask),
        cmocka_unit_test(ring_attention_shares_the_work),
        cmocka_unit_test(flops_of_windows_count_what_is_seen),
        cmocka_unit_test(check_finds_positions_of_other_rows),
        cmocka_unit_test(whole_tokens_take_all_reduces),
        cmocka_unit_test(context_parallelism_refuses),
        cmocka_unit_test(bytes_count_operands_once),
        cmocka_unit_test(head_rows_are_cut_exactly),
        cmocka_unit_test(decoding_makes_one_row_of_logits),
        cmocka_unit_test(check_finds_order_faults),
        cmocka_unit_test(check_finds_operand_faults),
        cmocka_unit_test(check_finds_attention_of_other_rows),
        cmocka_unit_test(check_finds_columns_of_other_sizes),
        cmocka_unit_test(check_finds_columns_that_leave),
        cmocka_unit_test(check_finds_tensor_faults),
        cmocka_unit_test(equality_sees_every_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
