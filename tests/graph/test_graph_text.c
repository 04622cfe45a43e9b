/* Graph text: every graph reads back equal, hand-written text is understood, faults
 * are named with their place, and damaged text never does harm. */
#include "graph_cases.h"

#include "config/mesh.h"

static dh_str print(const dh_graph *g)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_graph_print(&ctx, g, &text));
    return text;
}

/* ---- round trip ------------------------------------------------------------------------ */

static void assert_reads_back(const dh_graph *g)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = print(g);
    dh_graph *again;
    assert_ok(&ctx, dh_graph_parse(&ctx, text.text, text.len, &again));
    assert_true(dh_graph_equal(g, again));
    dh_str twice = print(again);
    assert_string_equal(text.text, twice.text);
    dh_str_fini(&twice);
    dh_str_fini(&text);
    dh_graph_destroy(again);
}

static void reads_back(const graph_case *c, dh_graph *g)
{
    assert_reads_back(g);
}

static void every_graph_reads_back(void **state)
{
    assert_true(for_each_case(reads_back) > 100);
}

static void the_optimizer_reads_back(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_opt_region regions[] = {{.flat = 3,
                                      .n = 4096,
                                      .decay = true,
                                      .counts = true,
                                      .master = 1,
                                      .adam_m = 2,
                                      .adam_v = 3,
                                      .copy = 4,
                                      .n_gathered = 8192,
                                      .group = DH_GROUP_DP_CP,
                                      .gather = 5},
                                     {.flat = 3,
                                      .n = 96,
                                      .grad = 6,
                                      .master = 7,
                                      .adam_m = 8,
                                      .adam_v = 9,
                                      .copy = DH_NONE,
                                      .gather = DH_NONE}};
    const dh_grad_reduction sums[] = {
        {.type = DH_OP_ALL_REDUCE,
         .group = DH_GROUP_TP,
         .range = 0,
         .n = 32,
         .shard = DH_NONE,
         .addend = DH_NONE},
        {.type = DH_OP_REDUCE_SCATTER,
         .group = DH_GROUP_DP_CP,
         .range = 1,
         .n = 64,
         .shard = 2,
         .n_shard = 32,
         .addend = DH_NONE},
        {.type = DH_OP_ADD, .group = -1, .range = 0, .n = 32, .shard = DH_NONE, .addend = 3}};
    const uint32_t shards[] = {4, 5};
    const dh_gather gather = {.shards = shards,
                              .n_pieces = 2,
                              .n_piece = 64,
                              .n_shard = 32,
                              .group = DH_GROUP_DP_CP,
                              .dtype = DH_BF16,
                              .phase = DH_PHASE_B};
    const dh_opt_norm at_once = {.group = DH_GROUP_WORLD};
    const dh_opt_norm ahead = {.group = DH_GROUP_STAGE, .before = true, .behind = true};
    dh_graph *graphs[8];
    assert_ok(&ctx, dh_graph_build_optimizer(&ctx, regions, 2, DH_BF16, &at_once, &graphs[0]));
    assert_ok(&ctx, dh_graph_build_optimizer(&ctx, regions, 2, DH_BF16, &ahead, &graphs[5]));
    assert_ok(&ctx, dh_graph_build_norm_link(&ctx, false, &graphs[6]));
    assert_ok(&ctx, dh_graph_build_norm_link(&ctx, true, &graphs[7]));
    assert_ok(&ctx, dh_graph_build_reductions(&ctx, sums, DH_COUNTOF(sums), &graphs[1]));
    assert_ok(&ctx, dh_graph_build_link(&ctx, true, DH_GROUP_PP, 64, 32, DH_F32, 0, &graphs[2]));
    assert_ok(&ctx,
              dh_graph_build_link(&ctx, false, DH_GROUP_PP_BACK, 64, 32, DH_F32, 8, &graphs[3]));
    assert_ok(&ctx, dh_graph_build_gather(&ctx, &gather, &graphs[4]));
    for (size_t i = 0; i < DH_COUNTOF(graphs); i++) {
        assert_ok(&ctx, dh_graph_check(&ctx, graphs[i]));
        assert_reads_back(graphs[i]);
        dh_graph_destroy(graphs[i]);
    }
}

static void numbers_read_back_exactly(void **state)
{
    uint64_t seed = test_seed("numbers_read_back_exactly");
    graph_case c = {"llama-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, 0.1, 1, false, 1, 1,
                    false};
    dh_graph *g = build_case(&c);
    for (int i = 0; i < 200; i++) {
        uint64_t bits = test_rand(&seed);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        g->dims.loss_scale = value;
        g->dims.rope.low_freq_factor = 1.0 / value;
        if (!isfinite(1.0 / value)) continue;
        g->dims.rope.scaling = DH_ROPE_SCALING_LLAMA3;
        g->dims.rope.original_max_seq = (int64_t)(bits >> 1);
        g->dims.longrope.long_factors.n = i % (DH_ROPE_MAX_PAIRS + 1);
        for (int64_t k = 0; k < g->dims.longrope.long_factors.n; k++)
            g->dims.longrope.long_factors.at[k] = k % 2 ? value : 1 / value;
        assert_reads_back(g);
    }
    dh_graph_destroy(g);
}

/* ---- by hand ------------------------------------------------------------------------------ */

static const char hand_written[] = "# two linears, the second on half of the rows\n"
                                   "\n"
                                   "dhelix.graph v2 layer train bf16   # kind, mode, type\n"
                                   "dims batch=1 seq=8 width=4 norm_eps=1e-5\n"
                                   "dims act=swiglu\r\n"
                                   "ends x_in=%0 x_out=%4:z            # tensors may come later\n"
                                   "%0:x    act bf16[8 tokens, 4 width]\n"
                                   "%1:w    param bf16 [ 4 width , 4 width ] slot=2\n"
                                   "%2:y    act bf16[8 tokens, 4 width]\n"
                                   "F  %2:y = linear(%0:x, %1:w)       # the bias is left out\n"
                                   "%3:y.4  act bf16[4 tokens, 4 width] view=%2:y+4\n"
                                   "%4:z    act bf16[4 tokens, 4 width]\n"
                                   "  F %4=linear(%3,%1,-)\n"
                                   "%5      act bf16[4 tokens, 4 width]\n"
                                   "%6      act bf16[8 tokens, 4 width]\n"
                                   "%7      input i32[8 tokens] slot=pos\n"
                                   "%8      act bf16[4 tokens, 4 width]\n"
                                   "F %6 = residual(%0, %2, -, %7, -) {site=mlp}\n"
                                   "O %8 = all_gather(%4) {group=dp-cp, flat=3}\n"
                                   "F send(%6) {group=pp}\n"
                                   "F %5 = recv()";

static void hand_written_text_is_understood(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    assert_ok(&ctx, dh_graph_parse(&ctx, hand_written, sizeof hand_written - 1, &g));
    assert_int_equal(g->kind, DH_BLOCK_LAYER);
    assert_int_equal(g->mode, DH_MODE_TRAIN);
    assert_int_equal(g->dtype, DH_BF16);
    assert_true(g->dims.seq == 8 && g->dims.norm_eps == 1e-5 && g->dims.act == DH_ACT_SWIGLU);
    assert_true(g->x_in == 0 && g->x_out == 4 && g->dx_in == DH_NONE);
    assert_int_equal(g->tensors.n, 9);
    assert_int_equal(g->ops.n, 6);
    const dh_tensor *w = &g->tensors.at[1], *half = &g->tensors.at[3];
    assert_true(w->kind == DH_TENSOR_PARAM && w->which == DH_PARAM_QKV_W && w->base == DH_NONE);
    assert_true(half->base == 2 && half->row0 == 4 && half->shape[0] == 4 && half->ndim == 2);
    assert_true(half->axis[0] == DH_AXIS_TOKENS && half->axis[1] == DH_AXIS_WIDTH);
    const dh_op *op = &g->ops.at[2];
    assert_true(op->type == DH_OP_RESIDUAL && op->phase == DH_PHASE_F);
    assert_true(op->in[0] == 0 && op->in[1] == 2 && op->in[2] == DH_NONE && op->in[3] == 7);
    assert_true(op->in[4] == DH_NONE && op->out[0] == 6 && op->out[1] == DH_NONE);
    assert_true(op->site == DH_SITE_MLP && op->group == -1 && op->flat == DH_NONE);
    assert_true(op[1].site == -1 && op[1].group == DH_GROUP_DP_CP && op[1].flat == 3);
    assert_reads_back(g);
    dh_graph_destroy(g);
}

/* What were dimensions of the graph are attributes of the operators that need them. */
static void former_dims_are_understood(void **state)
{
    static const char text[] =
        "dhelix.graph v2 layer train f32\n"
        "dims batch=2 seq=4 top_k=2 expert_capacity=3 expert_rows=24 router_rows=48\n"
        "%0:experts act i32[8 tokens, 2]\n%1:slots act i32[8 tokens, 2]\n"
        "%2:offsets act i64[5]\n%3:counts act i64[4]\n%4:arrived act i64[5]\n"
        "%5:x act f32[24 routed, 4 width]\n%6:w param f32[4 experts, 6 ffn, 4 width] slot=8\n"
        "%7:y act f32[24 routed, 6 ffn]\n"
        "%8:sums state f64[2, 4] slot=router\n%9:aux state f64[2] slot=aux\n"
        "F %0 = recv()\nF %5 = recv()\n"
        "F %1, %2, %3 = moe_order(%0)\nF %4 = moe_offsets(%3)\n"
        "F %7 = grouped_linear(%5, %6, %4)\nF %9 = router_aux(%8)\n";
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    assert_ok(&ctx, dh_graph_parse(&ctx, text, sizeof text - 1, &g));
    const dh_op *ops = g->ops.at;
    assert_true(ops[2].capacity == 3 && ops[2].room == 0 && ops[2].rows == 0);
    assert_true(ops[3].room == 24 && ops[3].capacity == 0);
    assert_int_equal(ops[4].rows, 2 * 4 * 2);
    assert_int_equal(ops[5].rows, 48);
    dh_str printed = print(g);
    assert_null(strstr(printed.text, "router_rows"));
    assert_non_null(strstr(printed.text, "moe_order(%0:experts) {capacity=3}"));
    dh_str_fini(&printed);
    assert_reads_back(g);
    dh_graph_destroy(g);
}

/* Of layers alone, and not where single tokens are decoded. */
static void formats_of_8_bits_read_back(void **state)
{
    const dh_model model = preset("llama-tiny");
    for (int kind = DH_BLOCK_EMBED; kind <= DH_BLOCK_HEAD; kind++)
        for (dh_mode mode = DH_MODE_TRAIN; mode <= DH_MODE_DECODE; mode++) {
            dh_ctx ctx = DH_CTX_INIT;
            const graph_case c = {
                .kind = (dh_block_kind)kind, .mode = mode, .dtype = DH_BF16, .cp = 1};
            dh_build build = build_of(&c, &model);
            dh_graph *g;
            build.fp8 = DH_FP8_HYBRID;
            assert_ok(&ctx, dh_graph_build(&ctx, &build, (dh_block_kind)kind, &g));
            dh_str printed = print(g);
            assert_int_equal(strstr(printed.text, " fp8=hybrid") != NULL,
                             kind == DH_BLOCK_LAYER && mode != DH_MODE_DECODE);
            dh_str_fini(&printed);
            assert_reads_back(g);
            dh_graph_destroy(g);
        }
}

static void printed_text_looks_as_documented(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    assert_ok(&ctx, dh_graph_parse(&ctx, hand_written, sizeof hand_written - 1, &g));
    dh_str text = print(g);
    assert_string_equal(text.text,
                        "dhelix.graph v2 layer train bf16\n"
                        "dims batch=1 seq=8 width=4 norm=layer norm_eps=1e-05 act=swiglu "
                        "rope_scaling=none\n"
                        "\n"
                        "%0:x                act bf16[8 tokens, 4 width]\n"
                        "%1:w                param bf16[4 width, 4 width] slot=2\n"
                        "%2:y                act bf16[8 tokens, 4 width]\n"
                        "%3:y.4              act bf16[4 tokens, 4 width] view=%2:y+4\n"
                        "%4:z                act bf16[4 tokens, 4 width]\n"
                        "%5                  act bf16[4 tokens, 4 width]\n"
                        "%6                  act bf16[8 tokens, 4 width]\n"
                        "%7                  input i32[8 tokens] slot=pos\n"
                        "%8                  act bf16[4 tokens, 4 width]\n"
                        "ends x_in=%0:x x_out=%4:z\n"
                        "\n"
                        "F  %2:y = linear(%0:x, %1:w, -)\n"
                        "F  %4:z = linear(%3:y.4, %1:w, -)\n"
                        "F  %6 = residual(%0:x, %2:y, -, %7, -) {site=mlp}\n"
                        "O  %8 = all_gather(%4:z) {group=dp-cp, flat=3}\n"
                        "F  send(%6) {group=pp}\n"
                        "F  %5 = recv()\n");
    dh_str_fini(&text);
    dh_graph_destroy(g);
}

/* A pass gone wrong is looked at in print: that must work for any contents. */
static void broken_graphs_print(void **state)
{
    graph_case c = {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, 0.1, 1, true, 1, 1, false};
    dh_graph *g = build_case(&c);
    g->kind = (dh_block_kind)99;
    g->dtype = DH_N_DTYPE;
    g->x_in = 12345;
    g->tensors.at[0].ndim = 7;
    g->tensors.at[0].kind = (dh_tensor_kind)9;
    memset(g->tensors.at[1].name, 'x', sizeof g->tensors.at[1].name);
    g->tensors.at[2].base = 4000000000u;
    g->tensors.at[3].axis[0] = (dh_axis)50;
    g->ops.at[0].type = DH_N_OP_TYPE;
    g->ops.at[1].in[0] = 70000;
    g->ops.at[2].group = 1000;
    g->ops.at[2].site = 1000;
    dh_str text = print(g);
    assert_non_null(strstr(text.text, "%70000"));
    dh_str_fini(&text);
    dh_graph_destroy(g);
}

/* ---- faults -------------------------------------------------------------------------------- */

/* Replace the first `old` of the hand-written text. */
static char *edited(const char *old, const char *new)
{
    const char *at = strstr(hand_written, old);
    if (!at) fail_msg("the text has no \"%s\"", old);
    char *text = malloc(sizeof hand_written + strlen(new));
    assert_non_null(text);
    sprintf(text, "%.*s%s%s", (int)(at - hand_written), hand_written, new, at + strlen(old));
    return text;
}

static void faults_are_named_with_their_place(void **state)
{
    static const struct {
        const char *old, *new;
        dh_status status;
        const char *message;
    } faults[] = {
        {"dhelix.graph", "dhelix.grph", DH_EFORMAT,
         "line 3, column 1: expected dhelix.graph v2, found 'dhelix.grph'"},
        {"v2", "v1", DH_EFORMAT, "line 3, column 14: graph text version 'v1' cannot be read"},
        {"layer train", "layr train", DH_EFORMAT,
         "line 3, column 17: unknown block kind 'layr'; did you mean 'layer'?"},
        {"layer train", "layer 7", DH_EFORMAT, "unknown mode '7'; it can be train, eval, decode"},
        {"train bf16", "train bf16 f32", DH_EFORMAT, "expected the end of the line, found 'f32'"},
        {"train bf16", "train bf17", DH_EFORMAT, "did you mean 'bf16'?"},
        {"seq=8", "sec=8", DH_EFORMAT,
         "line 4, column 14: unknown dimension 'sec'; did you mean 'seq'?"},
        {"seq=8", "batch=8", DH_EFORMAT, "line 4, column 14: batch is given twice"},
        {"seq=8", "seq=-8", DH_EFORMAT, "line 4, column 18: seq is '-8'; it must be an integer"},
        {"seq=8", "seq=", DH_EFORMAT, "line 4, column 19: seq is 'width'"},
        {"seq=8", "seq 8", DH_EFORMAT, "line 4, column 18: expected '=', found '8'"},
        {"1e-5", "nan", DH_EFORMAT, "line 4, column 37: norm_eps is 'nan'"},
        {"1e-5", "1e999", DH_EFORMAT, "norm_eps is '1e999'; it must be a finite number"},
        {"1e-5", "", DH_EFORMAT, "line 4, column 37: expected norm_eps, found the end of the line"},
        {"act=swiglu", "act=swigl", DH_EFORMAT, "did you mean 'swiglu'?"},
        {"ends x_in", "ends y_in", DH_EFORMAT,
         "line 6, column 6: unknown block end 'y_in'; did you mean 'x_in'?"},
        {"x_in=%0", "x_in=%0 x_in=%0", DH_EFORMAT, "line 6, column 14: x_in is given twice"},
        {"x_out=%4:z", "x_out=%44", DH_EFORMAT,
         "line 6, column 20: there is no tensor %44; the text has 9"},
        {"x_out=%4:z", "x_out=%4:y", DH_EFORMAT,
         "line 6, column 20: tensor %4 is called 'z', not 'y'"},
        {"x_out=%4:z", "x_out=%99999999999999999999", DH_EFORMAT, "must be below 1000000"},
        {"x_out=%4:z", "x_out=%z", DH_EFORMAT, "expected the number of a tensor, found 'z'"},
        {"%0:x ", "%0: ", DH_EFORMAT, "line 7, column 4: expected the name of a tensor"},
        {"%0:x ", "%0:a-name-of-more-than-23-bytes ", DH_EFORMAT, "longer than 23 bytes"},
        {"%1:w ", "%2:w ", DH_EFORMAT, "line 8, column 1: this is tensor %1, not %2"},
        {"%1:w    param", "%1:w    parm", DH_EFORMAT,
         "line 8, column 9: unknown tensor kind 'parm'; did you mean 'param'?"},
        {"act bf16[8", "act bf16(8", DH_EFORMAT, "line 7, column 17: expected '[', found '('"},
        {"[8 tokens, 4 width]", "[8 tokens, 4 width", DH_EFORMAT, "expected ']', found"},
        {"[8 tokens, 4 width]", "[8 tokens, 4, 4, 4]", DH_EFORMAT, "at most 3 axes"},
        {"[8 tokens", "[8 tokns", DH_EFORMAT, "unknown axis 'tokns'; did you mean 'tokens'?"},
        {"[8 tokens", "[many tokens", DH_EFORMAT, "size of an axis is 'many'"},
        {"[8 tokens", "[0 tokens", DH_EINVAL, "while reading line 7: tensor %0 x: axis 0 has size"},
        {"slot=2", "slot=200", DH_EINVAL, "while reading line 8: tensor %1 w has slot 200"},
        {"slot=2", "slt=2", DH_EFORMAT, "unknown tensor attribute 'slt'; did you mean 'slot'?"},
        {"slot=2", "slot=2 slot=3", DH_EFORMAT, "slot is given twice"},
        {"slot=2", "", DH_EINVAL, "while reading line 8: tensor %1 w needs a slot"},
        {"slot=pos", "slot=poss", DH_EFORMAT, "unknown input 'poss'; did you mean 'pos'?"},
        {"view=%2:y+4", "view=%2:y", DH_EFORMAT, "line 11, column 46: expected '+', found the end"},
        {"view=%2:y+4", "view=%2:y+5", DH_EINVAL,
         "while reading line 11: tensor %3 y.4 does not lie inside its base %2 y"},
        {"linear(%0", "linaer(%0", DH_EFORMAT,
         "line 10, column 11: unknown operator 'linaer'; did you mean 'linear'?"},
        {"linear(%0:x, %1:w)", "linear(%0:x)", DH_EFORMAT,
         "line 10, column 11: linear lacks input 2, w"},
        {"linear(%0:x, %1:w)", "linear(%0:x, -)", DH_EFORMAT, "linear lacks input 2, w"},
        {"linear(%3,%1,-)", "linear(%3,%1,-,%1)", DH_EFORMAT, "linear has 3 inputs, not 4"},
        {"linear(%3,%1,-)", "linear(%3,%1,-,-,-,-,-,-)", DH_EFORMAT, "more than 7 operands"},
        {"linear(%3,%1,-)", "linear(%3,%1,-", DH_EFORMAT, "expected ')', found the end of the"},
        {"F  %2:y = linear", "F  linear", DH_EFORMAT, "linear lacks output 1, y"},
        {"F  %2:y = linear", "F  %2:y linear", DH_EFORMAT, "expected '=', found 'linear'"},
        {"F  %2:y =", "F  %5 =", DH_EINVAL,
         "while reading line 13: op 1 linear reads %3 y.4 before any operator wrote it"},
        {"F %4=linear", "F %2=linear", DH_EINVAL,
         "while reading line 13: op 1 linear writes %2 y, which is written already"},
        {"  F %4", "  X %4", DH_EFORMAT,
         "line 13, column 3: unknown statement 'X'; it can be F, B, W, O, dims, ends"},
        {"  F %4", "  \x01 %4", DH_EFORMAT, "line 13, column 3: expected a tensor"},
        {"site=mlp", "site=mpl", DH_EFORMAT, "did you mean 'mlp'?"},
        {"site=mlp", "cite=mlp", DH_EFORMAT, "did you mean 'site'?"},
        {"flat=3", "group=dp", DH_EFORMAT, "group is given twice"},
        {"site=mlp", "group=tp", DH_EFORMAT, "residual has no group"},
        {"group=dp-cp", "group=dp-pc", DH_EFORMAT, "unknown group 'dp-pc'; did you mean 'dp-cp'?"},
        {"flat=3}", "flat=3", DH_EFORMAT, "expected '}', found the end of the line"},
        {"flat=3}", "flat=4294967295}", DH_EFORMAT, "from 0 to 4294967294"},
    };
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        char *text = edited(faults[i].old, faults[i].new);
        dh_graph *g = NULL;
        assert_fails(&ctx, dh_graph_parse(&ctx, text, strlen(text), &g), faults[i].status,
                     faults[i].message);
        assert_null(g);
        free(text);
    }
}

static void empty_text_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g = NULL;
    assert_fails(&ctx, dh_graph_parse(&ctx, NULL, 0, &g), DH_EFORMAT,
                 "line 1, column 1: expected dhelix.graph v2, found the end of the text");
    const char *blank = "\n# nothing\n  \n";
    assert_fails(&ctx, dh_graph_parse(&ctx, blank, strlen(blank), &g), DH_EFORMAT, "line 4");
    assert_null(g);
}

/* ---- damage --------------------------------------------------------------------------------- */

/* Exactly as long as its contents, so that a sanitizer sees any byte too many. */
static void parse_exactly(const char *text, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    dh_graph *g = NULL;
    if (dh_graph_parse(&ctx, copy, n, &g) == DH_OK) {
        assert_ok(&ctx, dh_graph_check(&ctx, g));
        assert_reads_back(g);
        dh_graph_destroy(g);
    } else {
        assert_null(g);
        assert_true(ctx.message[0] != '\0');
    }
    free(copy);
}

static void every_prefix_is_harmless(void **state)
{
    for (size_t n = 0; n < sizeof hand_written; n++) parse_exactly(hand_written, n);
}

/* Overwrite, delete, repeat or exchange a few spans. */
static size_t damage(char *text, size_t n, size_t cap, uint64_t *seed)
{
    for (uint64_t k = test_rand(seed) % 4 + 1; k > 0 && n > 40; k--) {
        size_t at = test_rand(seed) % (n - 32), len = test_rand(seed) % 32;
        size_t other = test_rand(seed) % (n - 32);
        switch (test_rand(seed) % 5) {
        case 0:
            text[at] = (char)test_rand(seed);
            break;
        case 1:
            text[at] = "%:-+,=()[]{}#0919FBWO \n"[test_rand(seed) % 23];
            break;
        case 2:
            memmove(text + at, text + at + len, n - at - len);
            n -= len;
            break;
        case 3:
            memmove(text + at, text + other, len);
            break;
        default:
            if (n + len > cap) break;
            memmove(text + at + len, text + at, n - at);
            n += len;
            break;
        }
    }
    return n;
}

static void damaged_text_is_harmless(void **state)
{
    uint64_t seed = test_seed("damaged_text_is_harmless");
    static const graph_case cases[] = {
        {"gpt2-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_BF16, 0.1, 1, true, 1, 1, false},
        {"llama-tiny", DH_BLOCK_LAYER, DH_MODE_TRAIN, DH_F32, 0, 2, true, 2, 1, false},
        {"gpt2-tiny", DH_BLOCK_HEAD, DH_MODE_TRAIN, DH_BF16, 0, 2, true, 1, 1, false},
    };
    for (size_t c = 0; c < DH_COUNTOF(cases); c++) {
        dh_graph *g = build_case(&cases[c]);
        dh_str text = print(g);
        size_t cap = text.len + 256;
        char *copy = malloc(cap);
        assert_non_null(copy);
        for (int i = 0; i < 700; i++) {
            memcpy(copy, text.text, text.len);
            parse_exactly(copy, damage(copy, text.len, cap, &seed));
        }
        free(copy);
        dh_str_fini(&text);
        dh_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_graph_reads_back),
        cmocka_unit_test(the_optimizer_reads_back),
        cmocka_unit_test(numbers_read_back_exactly),
        cmocka_unit_test(hand_written_text_is_understood),
        cmocka_unit_test(former_dims_are_understood),
        cmocka_unit_test(formats_of_8_bits_read_back),
        cmocka_unit_test(printed_text_looks_as_documented),
        cmocka_unit_test(broken_graphs_print),
        cmocka_unit_test(faults_are_named_with_their_place),
        cmocka_unit_test(empty_text_is_refused),
        cmocka_unit_test(every_prefix_is_harmless),
        cmocka_unit_test(damaged_text_is_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
