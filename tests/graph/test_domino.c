/* Domino: that every block of every small model is cut, by rows, by columns or both, over which
 * ranks ever, with as much to send as before in as many more calls; and what it leaves alone. */
#include "graph_cases.h"

#include "graph/pass.h"

enum { SAMPLES = 4 };

typedef struct setting {
    const char *preset;
    dh_block_kind kind;
    dh_mode mode;
    int64_t tp, cp;
    dh_sequence sequence;
} setting;

static dh_graph_spec spec_of(const setting *s, const dh_model *model, const char *passes)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph_spec spec = {.build = {.model = model,
                                    .mode = s->mode,
                                    .dtype = DH_BF16,
                                    .batch = SAMPLES,
                                    .seq = 32 / s->cp,
                                    .cache_len = 32,
                                    .dropout = 0.1,
                                    .loss_scale = 1,
                                    .head_chunk_bytes = 64 * 4 * model->vocab},
                          .mesh = {.tp = s->tp, .cp = s->cp, .ep = 1},
                          .sharing.sequence = s->sequence};
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &spec.passes));
    return spec;
}

static dh_graph *make(const setting *s, const dh_model *model, const char *passes)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_graph_spec spec = spec_of(s, model, passes);
    const dh_graph_rank rank = {.shard = {.tp = s->tp, .tp_rank = s->tp - 1, .ep = 1},
                                .cp_rank = s->cp - 1};
    dh_graph *g;
    assert_ok(&ctx, dh_graph_make(&ctx, &spec, s->kind, rank, NULL, &g));
    assert_ok(&ctx, dh_graph_check(&ctx, g));
    return g;
}

/* ---- volume -------------------------------------------------------------------------------- */

typedef struct traffic {
    int n_calls;
    int n_cut;       /* of them those by columns, if any are: of what a row-parallel linear makes */
    int64_t n_bytes; /* that enter collectives of tensor parallelism */
    double flops;    /* of products */
} traffic;

/* The sum of what a linear made, or what brings its gradient back. */
static bool is_of_linear(const dh_graph *g, const dh_op *comm)
{
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (op->type == DH_OP_LINEAR && op->out[0] == comm->in[0]) return true;
        if (op->type == DH_OP_LINEAR_DGRAD && op->in[0] == comm->out[0]) return true;
    }
    return false;
}

/* Statistics of the head's chunks are gathered with and without. */
static traffic traffic_of(const dh_graph *g)
{
    traffic t = {0};
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        const bool sends = dh_op_info_of(op->type)->resource == DH_RES_COMM;
        if (dh_op_multiplies(op->type)) t.flops += dh_op_flops(g, op);
        if (!sends || op->group != DH_GROUP_TP) continue;
        if (g->tensors.at[op->in[0]].dtype == DH_F32) continue;
        t.n_calls++;
        t.n_cut += is_of_linear(g, op);
        t.n_bytes += dh_tensor_bytes(&g->tensors.at[op->in[0]]);
    }
    return t;
}

static void assert_reads_back(const dh_graph *g)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    dh_graph *again;
    assert_ok(&ctx, dh_graph_print(&ctx, g, &text));
    assert_ok(&ctx, dh_graph_parse(&ctx, text.text, text.len, &again));
    assert_true(dh_graph_equal(g, again));
    dh_graph_destroy(again);
    dh_str_fini(&text);
}

static void compare(const setting *s, int parts, int columns)
{
    const dh_model model = preset(s->preset);
    char pass[40];
    snprintf(pass, sizeof pass, "domino(parts=%d, columns=%d)", parts, columns);
    dh_graph *plain = make(s, &model, ""), *cut = make(s, &model, pass);
    const traffic a = traffic_of(plain), b = traffic_of(cut);
    assert_true(a.n_calls > 0);
    assert_int_equal(b.n_calls, parts * (a.n_calls + (columns - 1) * a.n_cut));
    assert_int_equal(b.n_cut, parts * columns * a.n_cut);
    assert_int_equal(b.n_bytes, a.n_bytes);
    assert_true(a.flops == b.flops);
    assert_int_equal(plain->x_in == DH_NONE, cut->x_in == DH_NONE);
    if (plain->x_in != DH_NONE)
        assert_int_equal(plain->tensors.at[plain->x_in].shape[0],
                         cut->tensors.at[cut->x_in].shape[0]);
    assert_reads_back(cut);
    dh_graph_destroy(plain);
    dh_graph_destroy(cut);
}

/* Evaluation's head only computes, and with whole tokens nothing is gathered for it. */
static void as_much_travels_in_more_calls(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny"};
    (void)state;
    for (size_t m = 0; m < DH_COUNTOF(presets); m++)
        for (int kind = DH_BLOCK_EMBED; kind <= DH_BLOCK_HEAD; kind++)
            for (int mode = DH_MODE_TRAIN; mode <= DH_MODE_EVAL; mode++)
                for (int cp = 1; cp <= 2; cp++)
                    for (int whole = 0; whole <= 1; whole++) {
                        if (whole && mode == DH_MODE_EVAL && kind == DH_BLOCK_HEAD) continue;
                        const setting s = {presets[m], (dh_block_kind)kind, (dh_mode)mode, 2, cp,
                                           whole};
                        for (int parts = 1; parts <= SAMPLES; parts *= 2)
                            for (int columns = 1; columns <= 4; columns *= 2)
                                if (parts * columns > 1) compare(&s, parts, columns);
                    }
}

/* ---- order --------------------------------------------------------------------------------- */

/* Of a layer's forward without sequence parallelism: between a part's sum and its first reader
 * the other part computes. */
static void another_part_computes_behind_a_sum(void **state)
{
    const dh_model model = preset("gpt2-tiny");
    const setting s = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_EVAL, 2, 1, DH_SEQUENCE_WHOLE};
    dh_graph *g = make(&s, &model, "domino");
    int n_sums = 0, n_hidden = 0;
    (void)state;
    for (size_t i = 0; i < g->ops.n; i++) {
        if (g->ops.at[i].type != DH_OP_ALL_REDUCE) continue;
        size_t reader = i + 1, n_linear = 0;
        for (; g->ops.at[reader].in[1] != g->ops.at[i].out[0]; reader++)
            n_linear += g->ops.at[reader].type == DH_OP_LINEAR;
        n_sums++;
        n_hidden += n_linear == 2;
    }
    assert_int_equal(n_sums, 4);
    assert_int_equal(n_hidden, 3); /* the last one's reader ends the layer */
    dh_graph_destroy(g);
}

static bool reads(const dh_op *op, uint32_t id)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->in[k] == id) return true;
    return false;
}

typedef struct hiding {
    int n_sums, n_hidden; /* of them those between which and their reader a linear stands */
} hiding;

static hiding hiding_of(const char *passes)
{
    const dh_model model = preset("llama-tiny");
    const setting s = {"llama-tiny", DH_BLOCK_LAYER, DH_MODE_EVAL, 2, 1, DH_SEQUENCE_WHOLE};
    dh_graph *g = make(&s, &model, passes);
    hiding h = {0, 0};
    for (size_t i = 0; i < g->ops.n; i++) {
        if (g->ops.at[i].type != DH_OP_ALL_REDUCE) continue;
        bool hidden = false;
        size_t reader = i + 1;
        for (; !reads(&g->ops.at[reader], g->ops.at[i].out[0]); reader++)
            hidden |= g->ops.at[reader].type == DH_OP_LINEAR;
        assert_int_equal(g->ops.at[reader].type, DH_OP_JOIN_COLUMNS);
        h.n_sums++;
        h.n_hidden += hidden;
    }
    dh_graph_destroy(g);
    return h;
}

/* Of columns alone the last ones' sum is waited for; beside another part only where the layer
 * ends. */
static void columns_compute_behind_a_sum(void **state)
{
    const hiding alone = hiding_of("domino(parts=1, columns=4)"), both = hiding_of("domino(2, 2)");
    (void)state;
    assert_int_equal(alone.n_sums, 8);
    assert_int_equal(alone.n_hidden, 6);
    assert_int_equal(both.n_sums, 8);
    assert_int_equal(both.n_hidden, 7);
}

/* A linear with a bias, by columns: as many elements of it. */
static void a_bias_is_cut_with_its_weight(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = parse_graph("dhelix.graph v2 layer train f32\n"
                              "dims batch=4 seq=2 width=4\n"
                              "%0:x  act f32[8 tokens, 6 ffn]\n"
                              "%1:w  param f32[4 width, 6 ffn] slot=4\n"
                              "%2:b  param f32[4 width] slot=5\n"
                              "%3:y  act f32[8 tokens, 4 width]\n"
                              "ends x_in=%0 x_out=%3\n"
                              "F %3 = linear(%0, %1, %2)\n");
    dh_graph *want = parse_graph("dhelix.graph v2 layer train f32\n"
                                 "dims batch=4 seq=2 width=4\n"
                                 "%0:x    act f32[8 tokens, 6 ffn]\n"
                                 "%1:w    param f32[4 width, 6 ffn] slot=4\n"
                                 "%2:b    param f32[4 width] slot=5\n"
                                 "%3:y    act f32[8 tokens, 4 width]\n"
                                 "%4:w.0  param f32[2 width, 6 ffn] slot=4 view=%1+0\n"
                                 "%5:w.1  param f32[2 width, 6 ffn] slot=4 view=%1+2\n"
                                 "%6:b.0  param f32[2 width] slot=5 view=%2+0\n"
                                 "%7:b.1  param f32[2 width] slot=5 view=%2+2\n"
                                 "%8:y.c0 act f32[8 tokens, 2 width]\n"
                                 "%9:y.c1 act f32[8 tokens, 2 width]\n"
                                 "ends x_in=%0 x_out=%3\n"
                                 "F %8 = linear(%0, %4, %6)\n"
                                 "F %9 = linear(%0, %5, %7)\n"
                                 "F %3 = join_columns(%8, %9)\n");
    const dh_model model = preset("gpt2-tiny");
    const setting s = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 2, 1, DH_SEQUENCE_SPLIT};
    const dh_graph_spec spec = spec_of(&s, &model, "domino(parts=1, columns=2)");
    const dh_pass_work work = {.graph = g, .spec = &spec, .args = spec.passes.at[0].args};
    (void)state;
    assert_ok(&ctx, spec.passes.at[0].pass->apply(&ctx, &work));
    assert_same_graph(g, want);
    dh_graph_destroy(g);
    dh_graph_destroy(want);
}

/* ---- what is left alone -------------------------------------------------------------------- */

static void assert_left_alone(const setting *s, const char *passes, const char *why)
{
    const dh_model model = preset(s->preset);
    const dh_graph_spec spec = spec_of(s, &model, passes);
    const dh_pass_use *use = &spec.passes.at[0];
    const char *got = use->pass->applicable(&spec, use->args);
    if (!got || !strstr(got, why)) fail_msg("%s: %s", passes, got ? got : "it applies");
    assert_int_equal(dh_pass_list_reduced(&spec, &spec.passes).n, 0);
}

static void it_says_where_it_does_not_apply(void **state)
{
    const setting one = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 1, 1, DH_SEQUENCE_SPLIT};
    const setting decode = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_DECODE, 2, 1, DH_SEQUENCE_SPLIT};
    const setting experts = {"mixtral-tiny",   DH_BLOCK_LAYER, DH_MODE_TRAIN, 2, 1,
                             DH_SEQUENCE_SPLIT};
    const setting three = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 2, 1, DH_SEQUENCE_WHOLE};
    const setting wide = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 64, 1, DH_SEQUENCE_SPLIT};
    (void)state;
    assert_left_alone(&one, "domino", "parallel.tp=1");
    assert_left_alone(&decode, "domino", "decoding has one sequence");
    assert_left_alone(&experts, "domino", "model.n_experts");
    assert_left_alone(&three, "domino(3)", "train.micro_batch");
    assert_left_alone(&wide, "domino(4)", "divide by parallel.tp");
    assert_left_alone(&decode, "domino(1, 2)", "decoding has one sequence");
    assert_left_alone(&experts, "domino(1, 2)", "model.n_experts");
    assert_left_alone(&three, "domino(1)", "one part of rows and of columns");
    assert_left_alone(&three, "domino(1, 3)", "model.width");
    assert_left_alone(&three, "domino(2, 3)", "model.width");
}

/* An operator that it has no rule for ends the rewrite. */
static void unknown_operators_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_model model = preset("gpt2-tiny");
    const setting s = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 2, 1, DH_SEQUENCE_SPLIT};
    const dh_graph_spec spec = spec_of(&s, &model, "domino");
    dh_graph *g;
    (void)state;
    assert_ok(&ctx, dh_graph_build(&ctx, &spec.build, DH_BLOCK_LAYER, &g));
    g->ops.at[2].type = DH_OP_ADD;
    const dh_pass_work work = {.graph = g, .spec = &spec, .args = spec.passes.at[0].args};
    assert_fails(&ctx, spec.passes.at[0].pass->apply(&ctx, &work), DH_EUNSUPPORTED,
                 "domino has no rule for operator add");
    dh_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_much_travels_in_more_calls),
        cmocka_unit_test(another_part_computes_behind_a_sum),
        cmocka_unit_test(columns_compute_behind_a_sum),
        cmocka_unit_test(a_bias_is_cut_with_its_weight),
        cmocka_unit_test(it_says_where_it_does_not_apply),
        cmocka_unit_test(unknown_operators_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
