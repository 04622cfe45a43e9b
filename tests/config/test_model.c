#include "dh_test.h"

#include "dhelix/model.h"

static dh_model preset(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    assert_ok(&ctx, dh_model_from_preset(&ctx, name, &m));
    return m;
}

static dh_status from_json(dh_ctx *ctx, const char *text, dh_model *m)
{
    return dh_model_from_config_json(ctx, text, strlen(text), m);
}

/* Fields one by one: padding bytes do not count. */
static void assert_same_model(const dh_model *a, const dh_model *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->width, b->width);
    assert_int_equal(a->n_heads, b->n_heads);
    assert_int_equal(a->n_kv_heads, b->n_kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->ffn_width, b->ffn_width);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->max_seq, b->max_seq);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->window_from, b->window_from);
    assert_int_equal(a->window_every, b->window_every);
    assert_int_equal(a->attention, b->attention);
    assert_int_equal(a->feature_map, b->feature_map);
    assert_int_equal(a->tied_head, b->tied_head);
    assert_int_equal(a->bias, b->bias);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_int_equal(a->norm, b->norm);
    assert_true(a->norm_eps == b->norm_eps);
    assert_true(a->query_scalar == b->query_scalar);
    assert_true(a->attn_softcap == b->attn_softcap && a->logit_softcap == b->logit_softcap);
    assert_int_equal(a->act, b->act);
    assert_true(a->rope.theta == b->rope.theta);
    assert_int_equal(a->rope.scaling, b->rope.scaling);
    assert_true(a->rope.factor == b->rope.factor);
    assert_true(a->rope.low_freq_factor == b->rope.low_freq_factor);
    assert_true(a->rope.high_freq_factor == b->rope.high_freq_factor);
    assert_int_equal(a->rope.original_max_seq, b->rope.original_max_seq);
    assert_int_equal(a->n_experts, b->n_experts);
    assert_int_equal(a->top_k, b->top_k);
    assert_true(a->router_aux_coef == b->router_aux_coef);
    assert_true(a->rope.beta_fast == b->rope.beta_fast && a->rope.beta_slow == b->rope.beta_slow);
    assert_true(a->rope.mscale == b->rope.mscale && a->rope.mscale_all == b->rope.mscale_all);
    assert_true(a->rope.magnitude == b->rope.magnitude);
    assert_memory_equal(&a->longrope, &b->longrope, sizeof a->longrope);
    assert_int_equal(a->attn_bias, b->attn_bias);
    assert_int_equal(a->head_bias, b->head_bias);
    assert_int_equal(a->norm_bias, b->norm_bias);
    assert_int_equal(a->sparsemixer, b->sparsemixer);
    assert_true(a->router_jitter == b->router_jitter);
    assert_int_equal(a->q_lora, b->q_lora);
    assert_int_equal(a->kv_lora, b->kv_lora);
    assert_int_equal(a->rope_dim, b->rope_dim);
    assert_int_equal(a->v_dim, b->v_dim);
    assert_int_equal(a->rope_pairs, b->rope_pairs);
    assert_int_equal(a->n_shared, b->n_shared);
    assert_int_equal(a->n_groups, b->n_groups);
    assert_int_equal(a->top_groups, b->top_groups);
    assert_int_equal(a->topk_plain, b->topk_plain);
    assert_true(a->router_scale == b->router_scale);
    assert_true(a->init_std == b->init_std);
}

static void presets_are_valid_and_documented(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n;
    const dh_model_preset *all = dh_model_presets(&n);
    for (size_t i = 0; i < n; i++) {
        assert_ok(&ctx, dh_model_validate(&ctx, &all[i].model));
        assert_string_equal(all[i].name, all[i].model.name);
        assert_true(strlen(all[i].doc) > 10);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(all[i].name, all[j].name);
    }
}

static void parameter_counts_are_the_published_ones(void **state)
{
    static const struct {
        const char *name;
        int64_t n_params;
    } known[] = {
        {"gpt2", 124439808},         {"gpt2-medium", 354823168},      {"gpt2-large", 774030080},
        {"gpt2-xl", 1557611200},     {"llama2-7b", 6738415616},       {"llama3-8b", 8030261248},
        {"llama3-70b", 70553706496}, {"llama3.1-405b", 405853388800}, {"mixtral-8x7b", 46702792704},
        {"stories260K", 260032}, /* the README's 260K */
        {"smollm2-135m", 134515008}, {"mistral-7b", 7248023552},      {"qwen2.5-0.5b", 494032768},
        {"qwen2.5-7b", 7615616512},  {"phi3-mini", 3821079552},       {"qwen3-0.6b", 596049920},
        {"qwen3-8b", 8190735360},    {"qwen3-30b-a3b", 30532122624},  {"olmo2-7b", 7298617344},
        {"smollm3-3b", 3075098624},  {"gemma3-1b", 999885952},        {"gemma2-2b", 2614341888},
    };
    for (size_t i = 0; i < DH_COUNTOF(known); i++) {
        dh_model m = preset(known[i].name);
        assert_int_equal(dh_model_n_params(&m), known[i].n_params);
    }
}

/* The paper names its models by their size in billions. */
static void paper_presets_have_the_size_in_their_name(void **state)
{
    size_t n, checked = 0;
    const dh_model_preset *all = dh_model_presets(&n);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(all[i].name, "dhelix-", 7)) continue;
        double billions = strtod(strrchr(all[i].name, '-') + 1, NULL);
        double have = (double)dh_model_n_params(&all[i].model) * 1e-9;
        if (fabs(have - billions) > 0.035 * billions)
            fail_msg("%s has %.2f billion parameters", all[i].name, have);
        checked++;
    }
    assert_int_equal(checked, 10);
}

/* Counted by hand for a model small enough to do so. */
static void flops_count_matmuls_and_causal_attention(void **state)
{
    dh_model g = preset("gpt2-tiny"); /* L2 C64 H4 F256 V512 */
    double matmul = 2 * (4.0 * 64 * 64 + 2.0 * 64 * 256) + 512.0 * 64;
    assert_true(dh_model_flops_per_token(&g, 128) == 6 * matmul + 12.0 * 2 * 64 * 128 / 2);

    dh_model x = preset("mixtral-tiny"); /* L2 C64 H8 D8 KV4 F96 E8 top 2 V512 */
    matmul = 2 * (64 * 64 * 2.0 + 64 * 32 * 2.0 + 64 * 8 + 2 * 3 * 64 * 96.0) + 512.0 * 64;
    assert_true(dh_model_flops_per_token(&x, 32) == 6 * matmul + 12.0 * 2 * 64 * 32 / 2);

    /* L2 C64 H8 D24 (8 rotated) V16, latents of 32 and 16, F48 E8 top 2 and a shared one, V512 */
    dh_model d = preset("deepseek-tiny");
    const double queries = 64 * 32 + 32 * 8 * 24, keys = 64 * (16 + 8) + 16 * 8 * (16 + 16);
    matmul = 2 * (queries + keys + 8 * 16 * 64 + 64 * 8 + 3 * 3 * 64 * 48.0) + 512.0 * 64;
    assert_true(dh_model_flops_per_token(&d, 32) == 6 * matmul + 6.0 * 2 * 8 * (24 + 16) * 32 / 2);
}

/* Transformers does not know the class and so computes no other model in its place. */
static void linear_attention_is_kept(void **state)
{
    static const char *const presets[] = {"llama-tiny", "mixtral-tiny"};
    static const char *const types[] = {"\"linear_llama\"", "\"linear_mixtral\""};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(presets); i++)
        for (int map = DH_FEATURE_ELU; map <= DH_FEATURE_SILU; map++) {
            dh_model m = preset(presets[i]), again;
            char *text = NULL;
            m.attention = DH_ATTENTION_LINEAR;
            m.feature_map = (dh_feature_map)map;
            assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
            assert_non_null(strstr(text, types[i]));
            assert_ok(&ctx, from_json(&ctx, text, &again));
            assert_same_model(&m, &again);
            free(text);
        }
    dh_model m;
    assert_fails(
        &ctx, from_json(&ctx, "{\"model_type\": \"linear_llama\", \"feature_map\": \"relu\"}", &m),
        DH_EUNSUPPORTED, "elu, identity and silu");
    /* The same work a token at any length: L2 C64 F96 D8 H8 KV4 E8, top 2, V512. */
    m = preset("mixtral-tiny");
    m.attention = DH_ATTENTION_LINEAR;
    const double matmul =
        2 * (64 * 64 * 2.0 + 64 * 32 * 2.0 + 64 * 8 + 2 * 3 * 64 * 96.0) + 512.0 * 64;
    assert_true(dh_model_flops_per_token(&m, 32) == 6 * (matmul + 2 * (8 + 4) * 8.0 * 8));
    assert_true(dh_model_flops_per_token(&m, 32) == dh_model_flops_per_token(&m, 4096));
}

static void unknown_preset_names_the_nearest(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    assert_fails(&ctx, dh_model_from_preset(&ctx, "lama3-8b", &m), DH_EMISSING, "\"llama3-8b\"");
    assert_fails(&ctx, dh_model_from_preset(&ctx, "zzzzzzzzz", &m), DH_EMISSING, "list models");
}

/* Except those that are not computed, which test_presets.c has. */
static void every_preset_survives_config_json(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    size_t n;
    const dh_model_preset *all = dh_model_presets(&n);
    for (size_t i = 0; i < n; i++) {
        dh_model again;
        char *text = NULL;
        if (dh_model_not_computed(&all[i].model)) continue;
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &all[i].model, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&all[i].model, &again);
        free(text);
    }
    dh_model odd = preset("llama-tiny"), again; /* a number with no short decimal form */
    odd.rope.theta = 10000.0 / 3;
    odd.rope.scaling = DH_ROPE_SCALING_LINEAR;
    odd.rope.factor = 4;
    odd.head_dim = 32;
    odd.tied_head = true;
    char *text = NULL;
    assert_ok(&ctx, dh_model_to_config_json(&ctx, &odd, &text));
    assert_ok(&ctx, from_json(&ctx, text, &again));
    assert_same_model(&odd, &again);
    free(text);
}

static void reads_hugging_face_files(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    assert_ok(&ctx, from_json(&ctx,
                              "{\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_layer\": 5,"
                              " \"n_head\": 4, \"n_positions\": 512, \"n_ctx\": 512,"
                              " \"n_inner\": null, \"vocab_size\": 1000,"
                              " \"activation_function\": \"gelu_new\","
                              " \"summary_type\": \"cls_index\"}",
                              &m));
    assert_int_equal(m.ffn_width, 128);
    assert_int_equal(m.head_dim, 8);
    assert_true(m.tied_head && m.bias && m.norm_eps == 1e-5);
    assert_string_equal(m.name, "gpt2");

    /* Everything left out: transformers' defaults. */
    assert_ok(&ctx, from_json(&ctx, "{\"architectures\": [\"LlamaForCausalLM\"]}", &m));
    dh_model llama2 = preset("llama2-7b");
    assert_int_equal(dh_model_n_params(&m), dh_model_n_params(&llama2));
    assert_int_equal(m.n_kv_heads, 32);
    assert_false(m.tied_head);
    assert_ok(&ctx, from_json(&ctx,
                              "{\"model_type\": \"mixtral\", \"sliding_window\": 4096,"
                              "\"max_position_embeddings\": 4096}",
                              &m));
    assert_int_equal(m.n_experts, 8);
    assert_true(m.rope.theta == 1e6);
}

/* A window is kept as far as it hides anything, through config.json and back. */
static void windows_are_kept(void **state)
{
    static const struct {
        const char *json;
        int64_t window, from, every;
    } cases[] = {
        {"{\"model_type\": \"mistral\"}", 4096, 0, 0}, /* transformers' default */
        {"{\"model_type\": \"mistral\", \"sliding_window\": null}", 0, 0, 0},
        {"{\"model_type\": \"mistral\", \"sliding_window\": 8192, \"max_position_embeddings\": "
         "8192}",
         0, 0, 0},
        {"{\"model_type\": \"mixtral\", \"sliding_window\": 4096}", 4096, 0, 0},
        {"{\"model_type\": \"phi3\", \"sliding_window\": 2047}", 2047, 0, 0},
        {"{\"model_type\": \"phi3\"}", 0, 0, 0},
        {"{\"model_type\": \"qwen2\", \"sliding_window\": 512}", 0, 0, 0},
        {"{\"model_type\": \"qwen2\", \"use_sliding_window\": true}", 4096, 28, 0},
        {"{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 7, "
         "\"max_window_layers\": 32}",
         0, 0, 0},
        {"{\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"sliding_window\": 7, "
         "\"max_window_layers\": 3}",
         7, 3, 0},
        {"{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 7, "
         "\"num_hidden_layers\": 4, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
         "\"sliding_attention\", \"full_attention\"]}",
         7, 0, 2},
        {"{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 7, "
         "\"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\", \"sliding_attention\", "
         "\"sliding_attention\"]}",
         7, 1, 0},
        {"{\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"sliding_window\": 7, "
         "\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"full_attention\"]}",
         0, 0, 0},
    };
    static const struct {
        const char *types, *message;
        dh_status status;
    } refused[] = {
        {"[\"full_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
         "\"layer_types\" has a pattern", DH_EUNSUPPORTED},
        {"[\"full_attention\", \"sliding_attention\"]", "each of 4 layers", DH_EFORMAT},
        {"[\"chunked_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]",
         "chunked_attention", DH_EUNSUPPORTED},
        {"[1, \"full_attention\", \"full_attention\", \"full_attention\"]", "layer_types",
         DH_EUNSUPPORTED},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_model m, again;
        char *text;
        assert_ok(&ctx, from_json(&ctx, cases[i].json, &m));
        assert_int_equal(m.window, cases[i].window);
        assert_int_equal(m.window_from, cases[i].from);
        assert_int_equal(m.window_every, cases[i].every);
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&m, &again);
        free(text);
    }
    for (size_t i = 0; i < DH_COUNTOF(refused); i++) {
        char text[512];
        dh_model m;
        snprintf(text, sizeof text,
                 "{\"model_type\": \"qwen2\", \"use_sliding_window\": true, "
                 "\"num_hidden_layers\": 4, \"layer_types\": %s}",
                 refused[i].types);
        assert_fails(&ctx, from_json(&ctx, text, &m), refused[i].status, refused[i].message);
    }
    dh_model m = preset("llama-tiny");
    m.window = 8;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "window is 8");
    m = preset("mistral-7b");
    m.window = 8;
    assert_ok(&ctx, dh_model_validate(&ctx, &m));
    m.window_every = 2;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "all layers of the family");
    m = preset("qwen3-8b");
    m.window_every = 2;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "there is no window");
    m.window = 8;
    assert_ok(&ctx, dh_model_validate(&ctx, &m));
    assert_true(dh_model_window(&m, 0) == 8 && dh_model_window(&m, 1) == 0);
    m.window_every = 1;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "window_every is 1");
    m.window_every = 0;
    m.window_from = 37;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "window_from is 37");
    m.window_from = 2;
    assert_true(dh_model_window(&m, 1) == 0 && dh_model_window(&m, 2) == 8);
}

/* Two kinds of layers and of rotary positions, in the old spelling and the new one; caps. */
static void gemma_is_kept(void **state)
{
    static const struct {
        const char *json;
        int64_t nth;
        double theta, theta_nth, factor_nth, softcap, scalar, attn_softcap;
    } cases[] = {
        {"{\"model_type\": \"gemma3_text\"}", 6, 1e4, 1e6, 0, 0, 256, 0},
        {"{\"model_type\": \"gemma3_text\", \"rope_theta\": 5e5, \"rope_local_base_freq\": 2e4,"
         "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}, \"query_pre_attn_scalar\": "
         "168,"
         "\"sliding_window_pattern\": 3}",
         3, 2e4, 5e5, 8, 0, 168, 0},
        {"{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 2, \"layer_types\":"
         "[\"sliding_attention\", \"full_attention\"], \"rope_parameters\": {\"full_attention\":"
         "{\"rope_type\": \"linear\", \"factor\": 2, \"rope_theta\": 3e5}, \"sliding_attention\":"
         "{\"rope_type\": \"default\", \"rope_theta\": 7e3}}}",
         2, 7e3, 3e5, 2, 0, 256, 0},
        {"{\"model_type\": \"gemma3\", \"vision_config\": {}, \"text_config\": {\"rope_scaling\":"
         "{\"rope_type\": \"linear\", \"factor\": 8}, \"sliding_window\": 1024}}",
         6, 1e4, 1e6, 8, 0, 256, 0},
        {"{\"model_type\": \"gemma2\"}", 0, 1e4, 0, 0, 30, 256, 50},
        {"{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": 7.5}", 0, 1e4, 0, 0, 30, 256,
         7.5},
        {"{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": null}", 0, 1e4, 0, 0, 30, 256,
         0},
        {"{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": null,"
         "\"final_logit_softcapping\": null, \"query_pre_attn_scalar\": 144}",
         0, 1e4, 0, 0, 0, 144, 0},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_model m, again;
        char *text;
        assert_ok(&ctx, from_json(&ctx, cases[i].json, &m));
        assert_int_equal(m.nth, cases[i].nth);
        assert_true(m.rope.theta == cases[i].theta && m.rope_nth.theta == cases[i].theta_nth);
        assert_true(m.rope_nth.factor == cases[i].factor_nth && m.rope.factor == 0);
        assert_true(m.logit_softcap == cases[i].softcap && m.query_scalar == cases[i].scalar);
        assert_true(m.attn_softcap == cases[i].attn_softcap);
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&m, &again);
        free(text);
    }
}

/* In every spelling of its positions what stretches them is of layers that see all alone. */
static void olmo3_is_kept(void **state)
{
#define YARN                                                                                       \
    "\"rope_type\": \"yarn\", \"factor\": 8.0, \"original_max_position_embeddings\": 8192, "       \
    "\"beta_fast\": 16, \"attention_factor\": 1.25"
    static const struct {
        const char *json;
        int64_t nth, every, window;
        double theta, theta_nth, factor;
    } cases[] = {
        {"{\"model_type\": \"olmo3\", \"max_position_embeddings\": 65536, \"rope_theta\": 1e5, "
         "\"rope_scaling\": {" YARN "}}",
         4, 4, 4096, 1e5, 1e5, 8},
        {"{\"model_type\": \"olmo3\", \"max_position_embeddings\": 65536, \"rope_parameters\": "
         "{\"rope_theta\": 1e5, " YARN "}}",
         4, 4, 4096, 1e5, 1e5, 8},
        {"{\"model_type\": \"olmo3\", \"max_position_embeddings\": 65536, \"sliding_window\": 64, "
         "\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 1e4}, \"full_attention\": "
         "{\"rope_theta\": 2e5, " YARN "}}}",
         4, 4, 64, 1e4, 2e5, 8},
        {"{\"model_type\": \"olmo3\", \"max_position_embeddings\": 65536, \"rope_theta\": 3e4, "
         "\"rope_parameters\": {\"full_attention\": {" YARN "}}}",
         4, 4, 4096, 3e4, 3e4, 8},
        {"{\"model_type\": \"olmo3\", \"num_hidden_layers\": 3, \"sliding_window\": 16, "
         "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"]}",
         2, 2, 16, 5e5, 5e5, 0},
        {"{\"model_type\": \"olmo3\", \"num_hidden_layers\": 3, \"sliding_window\": 16}", 4, 0, 16,
         5e5, 5e5, 0},
        {"{\"model_type\": \"olmo3\", \"sliding_window\": null}", 4, 0, 0, 5e5, 5e5, 0},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_model m, again;
        char *text;
        assert_ok(&ctx, from_json(&ctx, cases[i].json, &m));
        assert_int_equal(m.nth, cases[i].nth);
        assert_int_equal(m.window_every, cases[i].every);
        assert_int_equal(m.window, cases[i].window);
        assert_true(m.rope.theta == cases[i].theta && m.rope_nth.theta == cases[i].theta_nth);
        assert_true(m.rope.scaling == DH_ROPE_SCALING_NONE && m.rope_nth.factor == cases[i].factor);
        if (cases[i].factor > 0)
            assert_true(m.rope_nth.beta_fast == 16 && m.rope_nth.magnitude == 1.25 &&
                        m.rope_nth.original_max_seq == 8192);
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&m, &again);
        assert_int_equal(m.nth, again.nth);
        assert_int_equal(m.rope_nth.scaling, again.rope_nth.scaling);
        assert_true(m.rope_nth.theta == again.rope_nth.theta &&
                    m.rope_nth.factor == again.rope_nth.factor &&
                    m.rope_nth.beta_fast == again.rope_nth.beta_fast &&
                    m.rope_nth.beta_slow == again.rope_nth.beta_slow &&
                    m.rope_nth.magnitude == again.rope_nth.magnitude &&
                    m.rope_nth.original_max_seq == again.rope_nth.original_max_seq);
        free(text);
    }
}

/* Layers that all have the window are written as such. */
static void none_sees_all(void **state)
{
    static const char *const types[] = {"olmo3", "gemma3_text"};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(types); i++) {
        char json[96], *text;
        dh_model m, again;
        snprintf(json, sizeof json, "{\"model_type\": \"%s\", \"sliding_window\": 16}", types[i]);
        assert_ok(&ctx, from_json(&ctx, json, &m));
        m.nth = m.window_every = 0;
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_int_equal(dh_model_window(&again, m.n_layers - 1), 16);
        assert_int_equal(again.window_every, 0);
        free(text);
    }
}

/* Patterns of layers without positions, and what a token's experts weigh. */
static void layers_and_routers_of_their_own_are_kept(void **state)
{
    static const struct {
        const char *json;
        int64_t nth;
        bool plain;
    } cases[] = {
        {"{\"model_type\": \"smollm3\"}", 4, false},
        {"{\"model_type\": \"smollm3\", \"num_hidden_layers\": 2}", 4, false},
        {"{\"model_type\": \"smollm3\", \"num_hidden_layers\": 4, \"no_rope_layers\": [1, 0, 1, "
         "0]}",
         2, false},
        {"{\"model_type\": \"smollm3\", \"num_hidden_layers\": 4, \"no_rope_layers\": [1, 1, 1, "
         "1]}",
         0, false},
        {"{\"model_type\": \"qwen3_moe\"}", 0, true},
        {"{\"model_type\": \"qwen3_moe\", \"norm_topk_prob\": true, \"mlp_only_layers\": []}", 0,
         false},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_model m, again;
        char *text;
        assert_ok(&ctx, from_json(&ctx, cases[i].json, &m));
        assert_int_equal(m.nth, cases[i].nth);
        assert_true(m.topk_plain == cases[i].plain);
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&m, &again);
        free(text);
    }
}

static void reads_every_spelling_of_rope_scaling(void **state)
{
    static const char *const llama3[] = {
        "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", ",
        "\"rope_theta\": 500000, \"rope_scaling\": {\"type\": \"llama3\", ",
        "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", ",
    };
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    for (size_t i = 0; i < DH_COUNTOF(llama3); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"llama\", %s \"factor\": 8.0, \"low_freq_factor\": 1.0,"
                 "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}",
                 llama3[i]);
        assert_ok(&ctx, from_json(&ctx, text, &m));
        assert_int_equal(m.rope.scaling, DH_ROPE_SCALING_LLAMA3);
        assert_true(m.rope.theta == 5e5 && m.rope.factor == 8 && m.rope.high_freq_factor == 4);
        assert_int_equal(m.rope.original_max_seq, 8192);
    }
    assert_ok(&ctx, from_json(&ctx,
                              "{\"model_type\": \"llama\", \"rope_scaling\":"
                              " {\"type\": \"linear\", \"factor\": 4}}",
                              &m));
    assert_int_equal(m.rope.scaling, DH_ROPE_SCALING_LINEAR);
    assert_ok(&ctx, from_json(&ctx, "{\"model_type\": \"llama\", \"rope_scaling\": null}", &m));
    assert_int_equal(m.rope.scaling, DH_ROPE_SCALING_NONE);
    assert_ok(&ctx, from_json(&ctx,
                              "{\"model_type\": \"llama\", \"rope_parameters\":"
                              " {\"rope_type\": \"default\", \"rope_theta\": 123.5}}",
                              &m));
    assert_true(m.rope.theta == 123.5 && m.rope.scaling == DH_ROPE_SCALING_NONE);
}

/* Heads of 8 channels; the object of longrope has yet to end. */
#define PHIMOE                                                                                     \
    "{\"model_type\": \"phimoe\", \"hidden_size\": 32, \"num_attention_heads\": 4, "               \
    "\"num_key_value_heads\": 4, \"rope_scaling\": {\"type\": \"longrope\", "                      \
    "\"original_max_position_embeddings\": 512, "
#define MSCALES                                                                                    \
    ", \"long_factor\": [1, 2.5, 4, 8.125], \"short_mscale\": 1.25, \"long_mscale\": 1.5"

/* In either spelling; what is absent is Transformers' default. */
static void phimoe_is_kept(void **state)
{
    static const struct {
        const char *json;
        bool attn_bias, head_bias;
        double jitter, theta;
    } cases[] = {
        {"{\"model_type\": \"phimoe\"}", false, false, 0.01, 1e6},
        {"{\"model_type\": \"phimoe\", \"lm_head_bias\": true, \"router_jitter_noise\": 0, "
         "\"input_jitter_noise\": 0.5, \"rope_theta\": 100}",
         false, true, 0, 100},
        {PHIMOE "\"short_factor\": [1, 1, 2, 2]" MSCALES "}, \"attention_bias\": true}", true,
         false, 0.01, 1e6},
        {"{\"model_type\": \"phimoe\", \"hidden_size\": 32, \"num_attention_heads\": 4, "
         "\"num_key_value_heads\": 4, \"rope_parameters\": {\"rope_type\": \"longrope\", "
         "\"original_max_position_embeddings\": 512, \"rope_theta\": 7, "
         "\"short_factor\": [1, 1, 2, 2]" MSCALES "}}",
         false, false, 0.01, 7},
    };
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_model m, again;
        char *text;
        assert_ok(&ctx, from_json(&ctx, cases[i].json, &m));
        assert_true(m.attn_bias == cases[i].attn_bias && m.head_bias == cases[i].head_bias);
        assert_true(m.router_jitter == cases[i].jitter && m.rope.theta == cases[i].theta);
        assert_true(m.norm == DH_NORM_LAYER && m.sparsemixer && m.top_k == 2);
        if (m.rope.scaling == DH_ROPE_SCALING_LONGROPE) {
            assert_true(m.longrope.long_factors.n == 4 && m.longrope.long_factors.at[3] == 8.125);
            assert_true(m.longrope.short_mscale == 1.25 && m.longrope.long_mscale == 1.5);
            assert_int_equal(m.rope.original_max_seq, 512);
        }
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&m, &again);
        free(text);
    }
}

#define V3 "{\"model_type\": \"deepseek_v3\", \"first_k_dense_replace\": 0, "

/* Transformers' defaults are DeepSeek V3's, and config.json keeps what differs from them. */
static void deepseek_is_kept(void **state)
{
    static const char *const cases[] = {
        V3 "\"num_hidden_layers\": 2}",
        V3 "\"q_lora_rank\": null, \"norm_topk_prob\": false, \"rope_interleave\": false, "
           "\"n_group\": 1, \"topk_group\": 1, \"n_shared_experts\": 2, \"v_head_dim\": 192, "
           "\"routed_scaling_factor\": 1.25}",
        V3 "\"num_local_experts\": 64, \"rope_parameters\": {\"rope_type\": \"yarn\", "
           "\"rope_theta\": 5000, \"factor\": 40, \"original_max_position_embeddings\": 4096, "
           "\"mscale\": 0.7, \"mscale_all_dim\": 0.9, \"beta_fast\": 16}}",
    };
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m, again;
    char *text;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        assert_ok(&ctx, from_json(&ctx, cases[i], &m));
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&m, &again);
        free(text);
    }
    assert_int_equal(m.n_experts, 64);
    assert_true(m.rope.beta_fast == 16 && m.rope.beta_slow == 1 && m.rope.mscale_all == 0.9);
    const dh_model v3 = preset("deepseek-v3");
    assert_ok(&ctx, from_json(&ctx,
                              "{\"model_type\": \"deepseek_v3\", \"max_position_embeddings\": "
                              "163840}",
                              &m));
    assert_int_equal(dh_model_n_params(&m), dh_model_n_params(&v3));
    assert_int_equal(m.q_lora, 1536);
    /* As published, without the modules for further tokens. */
    assert_int_equal(dh_model_n_params(&v3), 671026419200);
    dh_model other = preset("llama-tiny");
    other.kv_lora = 8;
    assert_fails(&ctx, dh_model_validate(&ctx, &other), DH_EINVAL, "only the deepseek_v3 family");
    other = v3;
    other.lora.rank = 4;
    assert_fails(&ctx, dh_model_validate(&ctx, &other), DH_EUNSUPPORTED, "adapters");
}

/* Kimi K2 is of DeepSeek V3's class under a name of its own; its yarn blends nothing. */
static void kimi_is_read(void **state)
{
    static const char text[] =
        "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"kimi_k2\", "
        "\"first_k_dense_replace\": 1, \"max_position_embeddings\": 131072, \"n_group\": 1, "
        "\"n_routed_experts\": 384, \"num_attention_heads\": 64, \"num_key_value_heads\": 64, "
        "\"topk_group\": 1, \"routed_scaling_factor\": 2.827, \"rope_theta\": 50000.0, "
        "\"rope_scaling\": {\"beta_fast\": 1.0, \"beta_slow\": 1.0, \"factor\": 32.0, "
        "\"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, "
        "\"type\": \"yarn\"}, \"vocab_size\": 163840}";
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m, again;
    char *written;
    assert_ok(&ctx, from_json(&ctx, text, &m));
    assert_int_equal(dh_model_n_params(&m), 1026408232448);
    assert_true(m.rope.beta_fast == 1 && m.rope.beta_slow == 1 && m.rope.magnitude == 0);
    assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &written));
    assert_non_null(strstr(written, "\"model_type\": \"deepseek_v3\""));
    assert_ok(&ctx, from_json(&ctx, written, &again));
    assert_same_model(&m, &again);
    free(written);
    assert_ok(&ctx, from_json(&ctx,
                              "{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": "
                              "\"yarn\", \"factor\": 8, \"attention_factor\": 1.25, "
                              "\"original_max_position_embeddings\": 8192}}",
                              &m));
    assert_true(m.rope.magnitude == 1.25);
    assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &written));
    assert_ok(&ctx, from_json(&ctx, written, &again));
    assert_same_model(&m, &again);
    free(written);
    m.rope.magnitude = -1;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "magnitude -1");
}

/* Layers without experts, and layers of softmax attention among linear ones: which they are, what
 * they count, and that config.json keeps them. */
static void layer_kinds_are_kept(void **state)
{
#define STEP_2 "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [2, 1, 0, 4]"
    static const char *const cases[] = {
        "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 5}",
        "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 7, \"decoder_sparse_step\": 3}",
        "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 6, " STEP_2 "}",
        "{\"model_type\": \"linear_llama\", \"num_hidden_layers\": 6, \"softmax_every\": 4}",
        "{\"model_type\": \"linear_mixtral\", \"num_hidden_layers\": 4, \"softmax_every\": 2}",
    };
    static const char *const apart[] = {"DDD..", "DD.DD.D", "DDD.D.", "...S..", ".S.S"};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_model m, again;
        char *text;
        assert_ok(&ctx, from_json(&ctx, cases[i], &m));
        assert_ok(&ctx, dh_model_to_config_json(&ctx, &m, &text));
        assert_ok(&ctx, from_json(&ctx, text, &again));
        assert_same_model(&m, &again);
        free(text);
        assert_int_equal(m.n_layers, strlen(apart[i]));
        const dh_layer_kinds kinds = dh_model_kinds(&m, 0, m.n_layers);
        assert_int_equal(kinds.n, 2);
        assert_int_equal(kinds.count[0] + kinds.count[1], m.n_layers);
        int64_t params = 0, n_routed = 0;
        for (int64_t layer = 0; layer < m.n_layers; layer++) {
            const dh_model own = dh_model_of_layer(&m, layer);
            const char c = apart[i][layer];
            assert_int_equal(dh_model_layer_kind(&m, layer), c == 'D'   ? DH_LAYER_DENSE
                                                             : c == 'S' ? DH_LAYER_SOFTMAX
                                                                        : 0);
            assert_int_equal(own.n_experts > 0, m.n_experts > 0 && c != 'D');
            assert_int_equal(own.attention == DH_ATTENTION_LINEAR,
                             m.attention == DH_ATTENTION_LINEAR && c != 'S');
            assert_int_equal(dh_model_kinds(&own, 0, own.n_layers).n, 1);
            params += dh_model_n_params(&own);
            n_routed += own.n_experts > 0;
        }
        assert_int_equal(params, m.n_layers * dh_model_n_params(&m)); /* mean of those of layers */
        assert_int_equal(dh_model_n_routed(&m, m.n_layers), n_routed);
    }
}

static void layer_kinds_are_checked(void **state)
{
    static const struct {
        const char *preset;
        int64_t dense_first, moe_every, dense_width, softmax_every;
        const char *part;
    } cases[] = {
        {"deepseek-tiny", 2, 0, 96, 0, "model dense_first 2, moe_every 0:"},
        {"deepseek-tiny", 1, 0, 0, 0, "dense_width is 0; layers without experts need"},
        {"deepseek-tiny", 0, 0, 96, 0, "dense_width is 96; all layers have experts"},
        {"deepseek-tiny", -1, 0, 96, 0, "dense_first -1"},
        {"deepseek-tiny", 0, 1, 0, 0, "moe_every is 1"},
        {"mixtral-tiny", 1, 0, 96, 0, "in the mixtral family all layers"},
        {"llama-tiny", 1, 0, 96, 0, "in the llama family all layers"},
        {"llama-tiny", 0, 0, 0, 2, "softmax in all layers"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_model m = preset(cases[i].preset);
        m.dense_first = cases[i].dense_first;
        m.moe_every = cases[i].moe_every;
        m.dense_width = cases[i].dense_width;
        m.softmax_every = cases[i].softmax_every;
        assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, cases[i].part);
    }
    /* Every second of two layers: half linear, half softmax. */
    dh_model m = preset("llama-tiny"), linear = m, hybrid;
    linear.attention = DH_ATTENTION_LINEAR;
    hybrid = linear;
    hybrid.softmax_every = 2;
    assert_ok(&ctx, dh_model_validate(&ctx, &hybrid));
    assert_int_equal(m.n_layers, 2);
    assert_true(2 * dh_model_flops_per_token(&hybrid, 64) ==
                dh_model_flops_per_token(&m, 64) + dh_model_flops_per_token(&linear, 64));
    hybrid.softmax_every = 3;
    assert_fails(&ctx, dh_model_validate(&ctx, &hybrid), DH_EINVAL, "between 2 and n_layers 2");
}

static void refuses_what_it_does_not_compute(void **state)
{
    static const struct {
        const char *json, *part;
        dh_status status;
    } cases[] = {
        {"{\"model_type\": \"gpt2\", \"activation_function\": \"gelu\"}", "\"gelu\"",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"gpt2\", \"scale_attn_by_inverse_layer_idx\": true}",
         "scale_attn_by_inverse_layer_idx", DH_EUNSUPPORTED},
        {"{\"model_type\": \"llama\", \"attention_bias\": true}", "attention_bias",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"llama\", \"mlp_bias\": true}", "mlp_bias", DH_EUNSUPPORTED},
        {"{\"model_type\": \"llama\", \"hidden_act\": \"relu\"}", "relu", DH_EUNSUPPORTED},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"dynamic\"}}", "dynamic",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"yarn\"}}", "factor is 0",
         DH_EINVAL},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}",
         "original_max_seq is 0", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
         "\"original_max_position_embeddings\": 64, \"attention_factor\": 0}}",
         "\"attention_factor\" is 0", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
         "\"original_max_position_embeddings\": 64, \"beta_fast\": 0.5}}",
         "beta_fast", DH_EINVAL},
        {"{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 3}",
         "model dense_first 3, moe_every 0:", DH_EINVAL},
        {V3 "\"scoring_func\": \"softmax\"}", "scoring_func", DH_EUNSUPPORTED},
        {V3 "\"topk_method\": \"greedy\"}", "topk_method", DH_EUNSUPPORTED},
        {V3 "\"attention_bias\": true}", "attention_bias", DH_EUNSUPPORTED},
        {V3 "\"num_key_value_heads\": 8}", "n_kv_heads 8", DH_EINVAL},
        {V3 "\"qk_nope_head_dim\": 129, \"qk_rope_head_dim\": 63}", "rope_dim is 63", DH_EINVAL},
        {V3 "\"v_head_dim\": 193}", "v_dim is 193", DH_EINVAL},
        {V3 "\"kv_lora_rank\": 0}", "kv_lora 0", DH_EINVAL},
        {V3 "\"rms_norm_eps\": 1e-5}", "norm_eps is 1e-05", DH_EINVAL},
        {V3 "\"n_shared_experts\": 0}", "n_shared is 0", DH_EINVAL},
        {V3 "\"n_group\": 7}", "n_groups is 7", DH_EINVAL},
        {V3 "\"topk_group\": 9}", "top_groups is 9", DH_EINVAL},
        {V3 "\"num_experts_per_tok\": 64, \"topk_group\": 1}", "top_groups is 1", DH_EINVAL},
        {V3 "\"routed_scaling_factor\": 0}", "router_scale is 0", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"partial_rotary_factor\": 0.5}", "partial_rotary_factor",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"mixtral\", \"router_jitter_noise\": 0.1}", "router_jitter_noise",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"phimoe\", \"attention_bias\": true, \"num_local_experts\": 1}",
         "top_k", DH_EINVAL},
        {"{\"model_type\": \"phimoe\", \"num_experts_per_tok\": 3}", "top_k is 3", DH_EINVAL},
        {"{\"model_type\": \"phimoe\", \"router_jitter_noise\": -1}", "router_jitter is -1",
         DH_EINVAL},
        {"{\"model_type\": \"phimoe\", \"hidden_act\": \"gelu\"}", "hidden_act", DH_EUNSUPPORTED},
        {PHIMOE "\"short_factor\": [1, 1, 2]" MSCALES "}}", "\"short_factor\" must be a list",
         DH_EFORMAT},
        {PHIMOE "\"short_factor\": [1, 1, 2, true]" MSCALES "}}", "as number 3", DH_EFORMAT},
        {PHIMOE "\"short_factor\": [1, 1, 2, 1e-320]" MSCALES "}}", "rope_short_factor has 9.99",
         DH_EINVAL},
        {PHIMOE "\"short_factor\": [1, 1, 2, 0]" MSCALES "}}", "rope_short_factor has 0",
         DH_EINVAL},
        {PHIMOE "\"short_factor\": [1, 1, 2, 2], \"long_factor\": [1, 1, 2, 2]}}",
         "rope_short_mscale 0", DH_EINVAL},
        {PHIMOE "\"short_factor\": [1, 1, 2, 2], \"partial_rotary_factor\": 0.5" MSCALES "}}",
         "partial_rotary_factor", DH_EUNSUPPORTED},
        {"{\"model_type\": \"phimoe\", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "scaling is linear", DH_EUNSUPPORTED},
        {"{\"model_type\": \"olmo3\", \"num_hidden_layers\": 2, \"layer_types\": "
         "[\"full_attention\", \"sliding_attention\"]}",
         "every n-th layer", DH_EUNSUPPORTED},
        {"{\"model_type\": \"olmo3\", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8}}",
         "original_max_seq", DH_EINVAL},
        {"{\"model_type\": \"olmo3\", \"rope_parameters\": {\"sliding_attention\": {}, "
         "\"full_attention\": {\"rope_type\": \"longrope\"}}}",
         "reading \"full_attention\"", DH_EUNSUPPORTED},
        {"{\"model_type\": \"ministral3\"}", "\"rope_parameters\" is missing", DH_EUNSUPPORTED},
        {"{\"model_type\": \"mistral3\"}", "\"text_config\" of model_type \"mistral3\" is missing",
         DH_EFORMAT},
        {"{\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"qwen2\"}}",
         "reading \"text_config\": \"model_type\" is \"qwen2\"", DH_EUNSUPPORTED},
        {"{\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"ministral3\", "
         "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 48.0, "
         "\"original_max_position_embeddings\": 8192, \"llama_4_scaling_beta\": 0.1}}}",
         "\"llama_4_scaling_beta\" is 0.1, which scales the queries", DH_EUNSUPPORTED},
        {"{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, "
         "\"original_max_position_embeddings\": 4096}}",
         "longrope", DH_EUNSUPPORTED},
        {"{\"model_type\": \"gemma2\", \"query_pre_attn_scalar\": 20.5}", "whole number",
         DH_EINVAL},
        {"{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"longrope\"}}", "longrope",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": -1}", "attn_softcap is -1",
         DH_EINVAL},
        {"{\"model_type\": \"gemma3_text\", \"attn_logit_softcapping\": 50.0}",
         "\"attn_logit_softcapping\" is given", DH_EUNSUPPORTED},
        {"{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": null, \"num_hidden_layers\": 2, "
         "\"layer_types\": [\"full_attention\", \"full_attention\"]}",
         "layer_types", DH_EUNSUPPORTED},
        {"{\"model_type\": \"gemma3_text\", \"use_bidirectional_attention\": true}",
         "use_bidirectional_attention", DH_EUNSUPPORTED},
        {"{\"model_type\": \"gemma3_text\", \"hidden_activation\": \"gelu\"}", "gelu",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"gemma3\"}", "\"text_config\" of model_type \"gemma3\" is missing",
         DH_EFORMAT},
        {"{\"model_type\": \"gemma3\", \"text_config\": [1]}", "is an array", DH_EFORMAT},
        {"{\"model_type\": \"gemma3\", \"text_config\": {\"attention_bias\": true}}",
         "reading \"text_config\": \"attention_bias\"", DH_EUNSUPPORTED},
        {"{\"model_type\": \"qwen3_moe\", \"decoder_sparse_step\": 0}", "decoder_sparse_step",
         DH_EINVAL},
        {"{\"model_type\": \"qwen3_moe\", \"decoder_sparse_step\": 25}", "moe_every is 25",
         DH_EINVAL},
        {"{\"model_type\": \"qwen3_moe\", \"mlp_only_layers\": [0, 3]}", "has 3 and not 1",
         DH_EUNSUPPORTED},
        {"{\"model_type\": \"qwen3_moe\", \"mlp_only_layers\": [24]}", "numbers of layers",
         DH_EFORMAT},
        {"{\"model_type\": \"smollm3\", \"num_hidden_layers\": 4, \"no_rope_layers\": [1, 0, 0, "
         "1]}",
         "other patterns", DH_EUNSUPPORTED},
        {"{\"model_type\": \"smollm3\", \"num_hidden_layers\": 4, \"no_rope_layers\": [1, 1]}",
         "each of 4 layers", DH_EUNSUPPORTED},
        {"{\"model_type\": \"bert\"}", "qwen2, qwen3, phi3", DH_EUNSUPPORTED},
        {"{\"model_type\": \"bloom\", \"architectures\": [\"BloomForCausalLM\"]}",
         "\"model_type\" is \"bloom\"; supported are gpt2, llama", DH_EUNSUPPORTED},
        {"{\"architectures\": [\"BloomForCausalLM\"]}", "deepseek_v3, kimi_k2", DH_EUNSUPPORTED},
        {"{}", "model_type", DH_EFORMAT},
        {"[1]", "an array", DH_EFORMAT},
        {"{\"model_type\": \"gpt2\",", "line 1", DH_EFORMAT},
        {"{\"model_type\": \"gpt2\", \"model_type\": \"llama\"}", "duplicate", DH_EFORMAT},
        {"{\"model_type\": 3}", "must be a string", DH_EFORMAT},
        {"{\"model_type\": \"gpt2\", \"n_layer\": \"12\"}", "\"n_layer\" is a string", DH_EFORMAT},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 12.5}", "whole number", DH_EFORMAT},
        {"{\"model_type\": \"gpt2\", \"n_layer\": -1}", "negative", DH_EFORMAT},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", "n_layers is 0", DH_EINVAL},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 9223372036854775807, \"n_head\": 1}", "width",
         DH_EINVAL},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 99999999999999999999}",
         "\"n_layer\" is 1e+20; it must be a whole number below 2^63", DH_EFORMAT},
        {"{\"model_type\": \"gpt2\", \"n_head\": 0}", "n_head", DH_EINVAL},
        {"{\"model_type\": \"gpt2\", \"n_head\": 7}", "\"n_head\" 7", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"num_key_value_heads\": 5}", "n_kv_heads 5", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"num_attention_heads\": 7}", "num_attention_heads",
         DH_EINVAL},
        {"{\"model_type\": \"llama\", \"head_dim\": 65}", "odd", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"head_dim\": 0}", "head_dim is 0", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"rms_norm_eps\": -1}", "norm_eps", DH_EINVAL},
        {"{\"model_type\": \"llama\", \"tie_word_embeddings\": 1}", "true or false", DH_EFORMAT},
        {"{\"model_type\": \"llama\", \"rope_scaling\": 2}", "must be an object", DH_EFORMAT},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}}",
         "low_freq_factor", DH_EINVAL},
        {"{\"model_type\": \"mixtral\", \"num_experts_per_tok\": 9}", "top_k", DH_EINVAL},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_model m = {.n_layers = 77};
        dh_status st = from_json(&ctx, cases[i].json, &m);
        if (st != cases[i].status || !strstr(ctx.message, cases[i].part))
            fail_msg("%s: %s \"%s\"", cases[i].json, dh_status_name(st), ctx.message);
        assert_int_equal(m.n_layers, 77); /* untouched on failure */
        dh_ctx_reset(&ctx);
    }
}

/* Mistral 3 with images: its text model, whose head the outer object ties. */
static void reads_text_models_of_images(void **state)
{
    static const char one[] =
        "{\"model_type\": \"mistral3\", \"architectures\": [\"Mistral3ForConditionalGeneration\"], "
        "\"text_config\": {\"model_type\": \"mistral\", \"sliding_window\": null, \"vocab_size\": "
        "131072, \"rope_theta\": 1e9, \"head_dim\": 128, \"hidden_size\": 5120}, "
        "\"vision_config\": "
        "{}}";
    static const char two[] =
        "{\"model_type\": \"mistral3\", \"tie_word_embeddings\": true, \"text_config\": "
        "{\"model_type\": \"ministral3\", \"max_position_embeddings\": 8192, \"rope_parameters\": "
        "{\"type\": \"yarn\", \"factor\": 48.0, \"rope_theta\": 1e8, \"llama_4_scaling_beta\": "
        "0.1, "
        "\"original_max_position_embeddings\": 8192}}}";
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    assert_ok(&ctx, from_json(&ctx, one, &m));
    assert_true(m.family == DH_FAMILY_MISTRAL && m.width == 5120 && m.vocab == 131072);
    assert_true(!m.tied_head && m.window == 0 && m.rope.theta == 1e9 && m.head_dim == 128);
    assert_ok(&ctx, from_json(&ctx, two, &m));
    assert_true(m.tied_head && m.n_layers == 34 && m.rope.scaling == DH_ROPE_SCALING_YARN);
    assert_true(m.rope.theta == 1e8 && m.rope.factor == 48 && m.window == 0);
}

/* Encoders and classifiers have the keys of the causal model that they were made of. */
static void reads_causal_models_alone(void **state)
{
    static const char *const read[] = {
        "\"architectures\": [\"Qwen2ForCausalLM\"], \"is_causal\": true",
        "\"architectures\": [\"GPT2LMHeadModel\"], \"is_encoder_decoder\": false",
        "\"architectures\": null, \"is_causal\": null, \"use_bidirectional_attention\": false",
        "\"architectures\": [], \"add_cross_attention\": false"};
    static const struct {
        const char *keys, *part;
    } refused[] = {
        {"\"causal\": false", "\"causal\" is false; only true is supported"},
        {"\"causal_attention\": false", "\"causal_attention\" is false"},
        {"\"problem_type\": \"regression\"", "\"problem_type\" is \"regression\"; only null"},
        {"\"architectures\": [\"Qwen2ForCausalLM\"], \"is_causal\": false",
         "\"is_causal\" is false; only true is supported (only causal language models are read)"},
        {"\"use_bidirectional_attention\": true", "\"use_bidirectional_attention\" is true"},
        {"\"use_bidirectional_attention\": \"all\"", "\"use_bidirectional_attention\" is \"all\""},
        {"\"bidirectional\": true", "\"bidirectional\" is true"},
        {"\"is_encoder_decoder\": true", "\"is_encoder_decoder\" is true"},
        {"\"add_cross_attention\": true", "\"add_cross_attention\" is true"},
        {"\"architectures\": [\"Qwen2ForCausalLM\", \"Qwen2ForSequenceClassification\"]",
         "\"architectures\" has \"Qwen2ForSequenceClassification\"; only causal language models"},
        {"\"architectures\": [\"Qwen2ForTokenClassification\"]", "Qwen2ForTokenClassification"},
        {"\"architectures\": [\"Qwen2ForQuestionAnswering\"]", "Qwen2ForQuestionAnswering"},
        {"\"architectures\": [\"Qwen2ForMaskedLM\"]", "end in ForCausalLM or LMHeadModel"},
        {"\"architectures\": [\"Qwen2Model\"]", "\"Qwen2Model\""},
        {"\"architectures\": \"Qwen2EncoderModel\"", "\"Qwen2EncoderModel\""},
    };
    static const char *const types[] = {"gpt2", "qwen2", "deepseek_v3", "gemma2"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    char text[512];
    for (size_t t = 0; t < DH_COUNTOF(types); t++) {
        for (size_t i = 0; i < DH_COUNTOF(read); i++) {
            snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s}", types[t], read[i]);
            assert_ok(&ctx, from_json(&ctx, text, &m));
        }
        for (size_t i = 0; i < DH_COUNTOF(refused); i++) {
            snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s}", types[t], refused[i].keys);
            assert_fails(&ctx, from_json(&ctx, text, &m), DH_EUNSUPPORTED, refused[i].part);
        }
    }
    assert_fails(&ctx,
                 from_json(&ctx,
                           "{\"model_type\": \"gemma3\", \"text_config\": "
                           "{\"use_bidirectional_attention\": true}}",
                           &m),
                 DH_EUNSUPPORTED, "reading \"text_config\": \"use_bidirectional_attention\"");
    assert_ok(&ctx, from_json(&ctx,
                              "{\"model_type\": \"gemma3\", \"architectures\": "
                              "[\"Gemma3ForConditionalGeneration\"], \"text_config\": {}}",
                              &m));
}

/* layer_types of classes that do not read them: what they say is computed, or refused. */
static void layer_types_are_not_ignored(void **state)
{
    static const char *const kinds[] = {"linear_attention", "mamba", "conv", "chunked_attention"};
    static const char *const plain[] = {"gpt2",  "llama", "mistral", "mixtral",   "phi3",
                                        "qwen2", "olmo2", "smollm3", "qwen3_moe", "deepseek_v3"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m;
    char text[512], part[96];
    for (size_t t = 0; t < DH_COUNTOF(plain); t++) {
        const bool windowed = strcmp(plain[t], "mistral") == 0 ||
                              strcmp(plain[t], "mixtral") == 0 || strcmp(plain[t], "phi3") == 0;
        const struct {
            const char *types, *window, *part; /* part: of the message, NULL: it is read */
        } cases[] = {
            {"\"full_attention\", \"full_attention\"", "null", NULL},
            {"\"sliding_attention\", \"full_attention\"", "1048576", NULL},
            {"\"sliding_attention\", \"sliding_attention\"", "64", windowed ? NULL : "for layer 0"},
            {"\"full_attention\", \"sliding_attention\"", "64",
             windowed ? NULL : "\"sliding_attention\" for layer 1"},
        };
        for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
            snprintf(text, sizeof text,
                     "{\"model_type\": \"%s\", \"%s\": 2, \"first_k_dense_replace\": 0, "
                     "\"layer_types\": [%s], \"sliding_window\": %s}",
                     plain[t], t ? "num_hidden_layers" : "n_layer", cases[i].types,
                     cases[i].window);
            if (cases[i].part)
                assert_fails(&ctx, from_json(&ctx, text, &m), DH_EUNSUPPORTED, cases[i].part);
            else
                assert_ok(&ctx, from_json(&ctx, text, &m));
        }
        for (size_t i = 0; i < DH_COUNTOF(kinds); i++) {
            snprintf(text, sizeof text,
                     "{\"model_type\": \"%s\", \"%s\": 3, \"first_k_dense_replace\": 0, "
                     "\"layer_types\": [\"full_attention\", \"full_attention\", \"%s\"]}",
                     plain[t], t ? "num_hidden_layers" : "n_layer", kinds[i]);
            snprintf(part, sizeof part, "\"layer_types\" has \"%s\" for layer 2", kinds[i]);
            assert_fails(&ctx, from_json(&ctx, text, &m), DH_EUNSUPPORTED, part);
        }
    }
    assert_fails(&ctx,
                 from_json(&ctx,
                           "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, "
                           "\"layer_types\": [\"full_attention\"]}",
                           &m),
                 DH_EFORMAT, "each of 2 layers");
    assert_fails(&ctx,
                 from_json(&ctx,
                           "{\"model_type\": \"gemma3\", \"text_config\": "
                           "{\"num_hidden_layers\": 2, \"layer_types\": [\"conv\", \"conv\"]}}",
                           &m),
                 DH_EUNSUPPORTED, "\"conv\" for layer 0");
}

static void validation_names_the_field(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model m = preset("gpt2");
    m.vocab = 0;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "vocab is 0");
    m = preset("gpt2");
    m.n_kv_heads = 6;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "grouped queries");
    m = preset("gpt2");
    m.head_dim = 32;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "width 768");
    m = preset("llama-tiny");
    m.bias = true;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "no biases");
    m = preset("llama-tiny");
    m.qkv_bias = true;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "qkv_bias is true");
    m = preset("llama-tiny");
    m.n_experts = 4;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "dense");
    m = preset("mixtral-tiny");
    m.rope.theta = NAN;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "theta");
    m = preset("gpt2");
    m.attention = DH_ATTENTION_LINEAR;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "softmax alone");
    m = preset("mixtral-tiny");
    m.attention = DH_ATTENTION_LINEAR;
    m.window = 8;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "model.window=0");
    m = preset("llama-tiny");
    m.feature_map = DH_FEATURE_SILU;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "model.attention=linear");
    m = preset("llama-tiny");
    m.attention = (dh_attention_kind)2;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "attention 2");
    m = preset("mixtral-tiny");
    m.family = (dh_family)99;
    assert_fails(&ctx, dh_model_validate(&ctx, &m), DH_EINVAL, "family 99");
}

static void reads_files_and_folders(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    dh_model m, tiny = preset("llama-tiny");
    assert_fails(&ctx, dh_model_from_config_file(&ctx, dir, &m), DH_EIO, "config.json");
    char *text = NULL;
    assert_ok(&ctx, dh_model_to_config_json(&ctx, &tiny, &text));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
    assert_ok(&ctx, dh_model_from_config_file(&ctx, dir, &m));
    assert_same_model(&m, &tiny);
    assert_ok(&ctx, dh_model_from_config_file(&ctx, path, &m));
    assert_same_model(&m, &tiny);

    /* Every truncation is an error that names the file, never a model. */
    for (size_t n = 0; n + 1 < strlen(text); n += 7) {
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
        assert_fails(&ctx, dh_model_from_config_file(&ctx, path, &m), DH_EFORMAT, path);
    }
    free(text);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_are_valid_and_documented),
        cmocka_unit_test(parameter_counts_are_the_published_ones),
        cmocka_unit_test(paper_presets_have_the_size_in_their_name),
        cmocka_unit_test(flops_count_matmuls_and_causal_attention),
        cmocka_unit_test(unknown_preset_names_the_nearest),
        cmocka_unit_test(every_preset_survives_config_json),
        cmocka_unit_test(reads_hugging_face_files),
        cmocka_unit_test(windows_are_kept),
        cmocka_unit_test(linear_attention_is_kept),
        cmocka_unit_test(olmo3_is_kept),
        cmocka_unit_test(none_sees_all),
        cmocka_unit_test(layers_and_routers_of_their_own_are_kept),
        cmocka_unit_test(gemma_is_kept),
        cmocka_unit_test(reads_every_spelling_of_rope_scaling),
        cmocka_unit_test(deepseek_is_kept),
        cmocka_unit_test(phimoe_is_kept),
        cmocka_unit_test(kimi_is_read),
        cmocka_unit_test(layer_kinds_are_kept),
        cmocka_unit_test(layer_kinds_are_checked),
        cmocka_unit_test(refuses_what_it_does_not_compute),
        cmocka_unit_test(reads_text_models_of_images),
        cmocka_unit_test(reads_causal_models_alone),
        cmocka_unit_test(layer_types_are_not_ignored),
        cmocka_unit_test(validation_names_the_field),
        cmocka_unit_test(reads_files_and_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
