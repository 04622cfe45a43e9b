/* Domino: that every block of every small model is cut, over which ranks ever, into as many parts
 * with as much to send as before; and what it leaves alone. */
#include "graph_cases.h"

#include "graph/pass.h"

enum { SAMPLES = 4 };

typedef struct setting {
    const char *preset;
    dh_block_kind kind;
    dh_mode mode;
    int64_t tp, cp;
    bool whole_tokens;
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
                          .whole_tokens = s->whole_tokens};
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
    int64_t n_bytes; /* that enter collectives of tensor parallelism */
    double flops;    /* of products */
} traffic;

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

static void compare(const setting *s, int parts)
{
    const dh_model model = preset(s->preset);
    char pass[32];
    snprintf(pass, sizeof pass, "domino(parts=%d)", parts);
    dh_graph *plain = make(s, &model, ""), *cut = make(s, &model, pass);
    const traffic a = traffic_of(plain), b = traffic_of(cut);
    assert_true(a.n_calls > 0);
    assert_int_equal(b.n_calls, parts * a.n_calls);
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
                        compare(&s, 2);
                        compare(&s, 4);
                    }
}

/* ---- order --------------------------------------------------------------------------------- */

/* Of a layer's forward without sequence parallelism: between a part's sum and its first reader
 * the other part computes. */
static void another_part_computes_behind_a_sum(void **state)
{
    const dh_model model = preset("gpt2-tiny");
    const setting s = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_EVAL, 2, 1, true};
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
    const setting one = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 1, 1, false};
    const setting decode = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_DECODE, 2, 1, false};
    const setting experts = {"mixtral-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 2, 1, false};
    const setting three = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 2, 1, true};
    const setting wide = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 64, 1, false};
    (void)state;
    assert_left_alone(&one, "domino", "parallel.tp=1");
    assert_left_alone(&decode, "domino", "decoding has one sequence");
    assert_left_alone(&experts, "domino", "model.n_experts");
    assert_left_alone(&three, "domino(3)", "train.micro_batch");
    assert_left_alone(&wide, "domino(4)", "divide by parallel.tp");
}

/* An operator that it has no rule for ends the rewrite. */
static void unknown_operators_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_model model = preset("gpt2-tiny");
    const setting s = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, 2, 1, false};
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
        cmocka_unit_test(it_says_where_it_does_not_apply),
        cmocka_unit_test(unknown_operators_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
