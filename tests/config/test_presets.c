/* Presets to plan with: sizes as published, and which of them are not computed. */
#include "dh_test.h"

#include "dhelix/model.h"

static dh_model preset(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    assert_ok(&ctx, dh_model_from_preset(&ctx, name, &m));
    return m;
}

/* Numbers of the published config.json. */
static void shapes_are_the_published_ones(void **state)
{
    static const struct {
        const char *name;
        int64_t layers, width, heads, kv_heads, head_dim, ffn, experts, top_k, shared, vocab,
            max_seq;
    } known[] = {
        {"qwen3-235b-a22b", 94, 4096, 64, 4, 128, 1536, 128, 8, 0, 151936, 40960},
        {"qwen3-30b-a3b", 48, 2048, 32, 4, 128, 768, 128, 8, 0, 151936, 40960},
        {"deepseek-v3", 61, 7168, 128, 128, 192, 2048, 256, 8, 1, 129280, 163840},
        {"kimi-k2", 61, 7168, 64, 64, 192, 2048, 384, 8, 1, 163840, 131072},
        {"gpt-oss-120b", 36, 2880, 64, 8, 64, 2880, 128, 4, 0, 201088, 131072},
        {"phi-3.5-moe", 32, 4096, 32, 8, 128, 6400, 16, 2, 0, 32064, 131072},
        {"llama4-scout", 48, 5120, 40, 8, 128, 8192, 16, 1, 1, 202048, 262144},
    };
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(known); i++) {
        const dh_model m = preset(known[i].name);
        assert_int_equal(m.n_layers, known[i].layers);
        assert_int_equal(m.width, known[i].width);
        assert_int_equal(m.n_heads, known[i].heads);
        assert_int_equal(m.n_kv_heads, known[i].kv_heads);
        assert_int_equal(m.head_dim, known[i].head_dim);
        assert_int_equal(m.ffn_width, known[i].ffn);
        assert_int_equal(m.n_experts, known[i].experts);
        assert_int_equal(m.top_k, known[i].top_k);
        assert_int_equal(m.n_shared, known[i].shared);
        assert_int_equal(m.vocab, known[i].vocab);
        assert_int_equal(m.max_seq, known[i].max_seq);
    }
}

/* gpt-oss: layers with and without a window take turns. Scout: every fourth layer sees all tokens,
 * without positions. */
static void windows_are_the_published_ones(void **state)
{
    const dh_model oss = preset("gpt-oss-120b"), scout = preset("llama4-scout");
    (void)state;
    for (int64_t layer = 0; layer < oss.n_layers; layer++)
        assert_int_equal(dh_model_window(&oss, layer), layer % 2 ? 0 : 128);
    for (int64_t layer = 0; layer < scout.n_layers; layer++)
        assert_int_equal(dh_model_window(&scout, layer), layer % 4 == 3 ? 0 : 8192);
    assert_int_equal(scout.nth, 4);
    assert_true(scout.rope_nth.theta == 0);
}

/* Models to plan with: totals in billions as published. Of gpt-oss biases of experts and outputs, and
 * sinks, are left out; of Scout the 0.87 billion of its vision encoder (108.64 in all). */
static void sizes_for_planning_are_the_published_ones(void **state)
{
    static const struct {
        const char *name;
        double billions;
    } known[] = {{"qwen3-235b-a22b", 235.09}, {"qwen3-30b-a3b", 30.53}, {"deepseek-v3", 671.03},
                 {"kimi-k2", 1026.41},        {"gpt-oss-120b", 116.83}, {"llama4-scout", 107.77},
                 {"phi-3.5-moe", 41.87}};
    dh_ctx ctx = DH_CTX_INIT;
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(known); i++) {
        const dh_model m = preset(known[i].name);
        const double own = (double)dh_model_n_params(&m) * 1e-9;
        assert_ok(&ctx, dh_model_validate(&ctx, &m));
        if (fabs(own / known[i].billions - 1) > 0.005)
            fail_msg("%s has %.2f billion parameters, not %.2f", known[i].name, own,
                     known[i].billions);
    }
}

/* What no operator computes is said, and not written as another model. */
static void models_to_plan_with_are_not_computed(void **state)
{
    static const char *const names[] = {"gpt-oss-120b", "llama4-scout"};
    dh_ctx ctx = DH_CTX_INIT;
    char *text;
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        const dh_model m = preset(names[i]);
        assert_non_null(dh_model_not_computed(&m));
        assert_fails(&ctx, dh_model_check_computed(&ctx, &m), DH_EUNSUPPORTED,
                     "only planned and simulated");
        assert_fails(&ctx, dh_model_to_config_json(&ctx, &m, &text), DH_EUNSUPPORTED, "computed");
    }
    dh_model m = preset("kimi-k2");
    assert_ok(&ctx, dh_model_check_computed(&ctx, &m));
    assert_null(dh_model_not_computed(&m));
    m = preset("gpt-oss-120b");
    m.n_shared = 1;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "n_shared is 1");
}

#define FACTORS4(x) x ", " x ", " x ", " x
#define FACTORS16(x) FACTORS4(x) ", " FACTORS4(x) ", " FACTORS4(x) ", " FACTORS4(x)
#define FACTORS64(x) FACTORS16(x) ", " FACTORS16(x) ", " FACTORS16(x) ", " FACTORS16(x)

/* The published config.json of Phi-3.5-MoE, with other lists of factors: the preset, and longrope. */
static void phimoe_is_read(void **state)
{
    static const char config[] =
        "{\"architectures\": [\"PhiMoEForCausalLM\"], \"model_type\": \"phimoe\", "
        "\"attention_bias\": true, \"lm_head_bias\": true, \"hidden_act\": \"silu\", "
        "\"hidden_size\": 4096, \"intermediate_size\": 6400, \"num_attention_heads\": 32, "
        "\"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"num_local_experts\": 16, "
        "\"num_experts_per_tok\": 2, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, "
        "\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [" FACTORS64(
            "2.5") "], \"short_factor\": [" FACTORS64("1") "], \"long_mscale\": 1.243163121016122, "
                                                           "\"short_mscale\": 1.243163121016122, "
                                                           "\"original_max_position_embeddings\": "
                                                           "4096}, "
                                                           "\"max_position_embeddings\": 131072, "
                                                           "\"sliding_window\": 131072, "
                                                           "\"router_jitter_noise\": 0.01, "
                                                           "\"input_jitter_noise\": 0.01, "
                                                           "\"vocab_size\": 32064}";
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    const dh_model known = preset("phi-3.5-moe");
    (void)state;
    assert_ok(&ctx, dh_model_from_config_json(&ctx, config, strlen(config), &m));
    assert_int_equal(m.family, DH_FAMILY_PHIMOE);
    assert_int_equal(dh_model_n_params(&m), dh_model_n_params(&known));
    assert_int_equal(m.n_experts, 16);
    assert_int_equal(m.window, 0);
    assert_true(m.attn_bias && m.head_bias && m.norm_bias && m.sparsemixer);
    assert_true(m.router_jitter == 0.01 && m.rope.scaling == DH_ROPE_SCALING_LONGROPE);
    assert_true(m.longrope.long_factors.n == 64 && m.longrope.long_factors.at[63] == 2.5);
    assert_true(m.longrope.short_mscale == 1.243163121016122);
    assert_ok(&ctx, dh_model_check_computed(&ctx, &m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_the_published_ones),
        cmocka_unit_test(windows_are_the_published_ones),
        cmocka_unit_test(sizes_for_planning_are_the_published_ones),
        cmocka_unit_test(models_to_plan_with_are_not_computed),
        cmocka_unit_test(phimoe_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
