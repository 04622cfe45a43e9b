/* Built-in model shapes: one row each, published sizes or small ones for tests.
 *
 * Rows of the DHelix paper (arXiv 2411.15871, tables 3 to 5) are given there by width, feed-forward
 * width, layers, sequence and experts only. The doc of such a row names its additions. */
#include "base/base.h"
#include "base/needs.h"
#include "dhelix/model.h"

#include <string.h>

#define GPT2(layers, c, heads, v, t)                                                               \
    .family = DH_FAMILY_GPT2, .n_layers = (layers), .width = (c), .n_heads = (heads),              \
    .n_kv_heads = (heads), .head_dim = (c) / (heads), .ffn_width = 4 * (c), .vocab = (v),          \
    .max_seq = (t), .tied_head = true, .norm = DH_NORM_LAYER, .norm_eps = 1e-5,                    \
    .act = DH_ACT_GELU_TANH, .init_std = 0.02

#define ROTARY(...) ROTARY_EPS(1e-5, __VA_ARGS__)
#define ROTARY_EPS(eps, layers, c, heads, ...)                                                     \
    ROTARY_HEADS(eps, layers, c, heads, (c) / (heads), __VA_ARGS__)
#define ROTARY_HEADS(...) SIZES(DH_NORM_RMS, __VA_ARGS__)
#define SIZES(norm_, eps, layers, c, heads, d, kv, f, v, t)                                        \
    .n_layers = (layers), .width = (c), .n_heads = (heads), .n_kv_heads = (kv), .head_dim = (d),   \
    .ffn_width = (f), .vocab = (v), .max_seq = (t), .norm = (norm_), .norm_eps = (eps),            \
    .act = DH_ACT_SWIGLU, .init_std = 0.02

#define LLAMA(...) .family = DH_FAMILY_LLAMA, ROTARY(__VA_ARGS__)
#define QWEN2(...) .family = DH_FAMILY_QWEN2, .qkv_bias = true, ROTARY_EPS(1e-6, __VA_ARGS__)
#define QWEN3(layers, c, heads, kv, d, ...)                                                        \
    .family = DH_FAMILY_QWEN3, .qk_norm = true,                                                    \
    ROTARY_HEADS(1e-6, layers, c, heads, d, kv, __VA_ARGS__)
#define OLMO2(...)                                                                                 \
    .family = DH_FAMILY_OLMO2, .qk_norm_all = true, .norm_place = DH_NORMS_AFTER,                  \
    ROTARY_EPS(1e-6, __VA_ARGS__)
#define QWEN3_MOE(e, k, layers, c, heads, kv, d, ...)                                              \
    .family = DH_FAMILY_QWEN3_MOE, .qk_norm = true, .n_experts = (e), .top_k = (k),                \
    .router_aux_coef = 0.001, ROTARY_HEADS(1e-6, layers, c, heads, d, kv, __VA_ARGS__)
#define GEMMA(layers, c, heads, kv, d, f, v, t)                                                    \
    .n_layers = (layers), .width = (c), .n_heads = (heads), .n_kv_heads = (kv), .head_dim = (d),   \
    .ffn_width = (f), .vocab = (v), .max_seq = (t), .norm = DH_NORM_RMS, .norm_eps = 1e-6,         \
    .act = DH_ACT_GEGLU, .init_std = 0.02, .tied_head = true, .norm_place = DH_NORMS_AROUND,       \
    .norm_plus_one = true, .embed_scaled = true
#define GEMMA2(...)                                                                                \
    .family = DH_FAMILY_GEMMA2, .attn_softcap = 50, .logit_softcap = 30, GEMMA(__VA_ARGS__)
#define GEMMA3(...) .family = DH_FAMILY_GEMMA3, .qk_norm = true, .nth = 6, GEMMA(__VA_ARGS__)
#define MIXTRAL(e, k, aux, ...)                                                                    \
    .family = DH_FAMILY_MIXTRAL, .n_experts = (e), .top_k = (k), .router_aux_coef = (aux),         \
    ROTARY(__VA_ARGS__)

#define DEEPSEEK3(e, k, groups, top, scale, layers, c, heads, d, f, v, t)                          \
    .family = DH_FAMILY_DEEPSEEK3, .n_experts = (e), .top_k = (k), .n_groups = (groups),           \
    .top_groups = (top), .n_shared = 1, .rope_pairs = true, .router_scale = (scale),               \
    ROTARY_HEADS(1e-6, layers, c, heads, d, heads, f, v, t)

#define DHELIX "DHelix paper "
#define AS_LLAMA3                                                                                  \
    "; assumed: Llama 3's heads of 128 and 8 KV heads, vocab 32000 (gives the paper's size)"
#define AS_GPT3 "; assumed: heads of 128, GPT-2 vocab, learned positions, tied head"
#define AS_PHI                                                                                     \
    "; assumed: Phi-3.5-MoE's 32 heads, 8 KV heads, top-2, vocab 32064, with Mixtral's RMSNorm "   \
    "and router"

// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result): small constants
static const dh_model_preset presets[] = {
    {"gpt2",
     "GPT-2 small, 124M (OpenAI 2019; HF gpt2)",
     {.name = "gpt2", GPT2(12, 768, 12, 50257, 1024), .bias = true}},
    {"gpt2-medium",
     "GPT-2 medium, 355M (HF gpt2-medium)",
     {.name = "gpt2-medium", GPT2(24, 1024, 16, 50257, 1024), .bias = true}},
    {"gpt2-large",
     "GPT-2 large, 774M (HF gpt2-large)",
     {.name = "gpt2-large", GPT2(36, 1280, 20, 50257, 1024), .bias = true}},
    {"gpt2-xl",
     "GPT-2 XL, 1.56B (HF gpt2-xl)",
     {.name = "gpt2-xl", GPT2(48, 1600, 25, 50257, 1024), .bias = true}},
    {"llama2-7b",
     "Llama 2 7B (HF meta-llama/Llama-2-7b-hf)",
     {.name = "llama2-7b", LLAMA(32, 4096, 32, 32, 11008, 32000, 4096), .rope = {.theta = 1e4}}},
    {"llama3-8b",
     "Llama 3 8B (HF meta-llama/Meta-Llama-3-8B)",
     {.name = "llama3-8b", LLAMA(32, 4096, 32, 8, 14336, 128256, 8192), .rope = {.theta = 5e5}}},
    {"llama3-70b",
     "Llama 3 70B (HF meta-llama/Meta-Llama-3-70B)",
     {.name = "llama3-70b", LLAMA(80, 8192, 64, 8, 28672, 128256, 8192), .rope = {.theta = 5e5}}},
    {"llama3.1-405b",
     "Llama 3.1 405B (HF meta-llama/Llama-3.1-405B: 8 KV heads, llama3 RoPE)",
     {.name = "llama3.1-405b",
      LLAMA(126, 16384, 128, 8, 53248, 128256, 131072),
      .rope = {.theta = 5e5,
               .scaling = DH_ROPE_SCALING_LLAMA3,
               .factor = 8,
               .low_freq_factor = 1,
               .high_freq_factor = 4,
               .original_max_seq = 8192}}},
    {"mixtral-8x7b",
     "Mixtral 8x7B, 46.7B (HF mistralai/Mixtral-8x7B-v0.1)",
     {.name = "mixtral-8x7b",
      MIXTRAL(8, 2, 0.02, 32, 4096, 32, 8, 14336, 32000, 32768),
      .rope = {.theta = 1e6}}},

    {"smollm2-135m",
     "SmolLM2 135M (HF HuggingFaceTB/SmolLM2-135M, of the Llama family)",
     {.name = "smollm2-135m",
      LLAMA(30, 576, 9, 3, 1536, 49152, 8192),
      .tied_head = true,
      .rope = {.theta = 1e5}}},
    {"mistral-7b",
     "Mistral 7B (HF mistralai/Mistral-7B-v0.3: no window)",
     {.name = "mistral-7b",
      .family = DH_FAMILY_MISTRAL,
      ROTARY(32, 4096, 32, 8, 14336, 32768, 32768),
      .rope = {.theta = 1e6}}},
    {"qwen2.5-0.5b",
     "Qwen2.5 0.5B (HF Qwen/Qwen2.5-0.5B)",
     {.name = "qwen2.5-0.5b",
      QWEN2(24, 896, 14, 2, 4864, 151936, 32768),
      .tied_head = true,
      .rope = {.theta = 1e6}}},
    {"qwen2.5-7b",
     "Qwen2.5 7B (HF Qwen/Qwen2.5-7B)",
     {.name = "qwen2.5-7b", QWEN2(28, 3584, 28, 4, 18944, 152064, 131072), .rope = {.theta = 1e6}}},
    {"qwen3-0.6b",
     "Qwen3 0.6B (HF Qwen/Qwen3-0.6B)",
     {.name = "qwen3-0.6b",
      QWEN3(28, 1024, 16, 8, 128, 3072, 151936, 40960),
      .tied_head = true,
      .rope = {.theta = 1e6}}},
    {"qwen3-8b",
     "Qwen3 8B (HF Qwen/Qwen3-8B)",
     {.name = "qwen3-8b",
      QWEN3(36, 4096, 32, 8, 128, 12288, 151936, 40960),
      .rope = {.theta = 1e6}}},
    {"qwen3-30b-a3b",
     "Qwen3 30B A3B, 128 experts, top-8 (HF Qwen/Qwen3-30B-A3B)",
     {.name = "qwen3-30b-a3b",
      QWEN3_MOE(128, 8, 48, 2048, 32, 4, 128, 768, 151936, 40960),
      .rope = {.theta = 1e6}}},
    {"qwen3-235b-a22b",
     "Qwen3 235B A22B, 128 experts, top-8 (HF Qwen/Qwen3-235B-A22B)",
     {.name = "qwen3-235b-a22b",
      QWEN3_MOE(128, 8, 94, 4096, 64, 4, 128, 1536, 151936, 40960),
      .rope = {.theta = 1e6}}},
    {"olmo2-7b",
     "OLMo 2 7B (HF allenai/OLMo-2-1124-7B)",
     {.name = "olmo2-7b", OLMO2(32, 4096, 32, 32, 11008, 100352, 4096), .rope = {.theta = 5e5}}},
    {"smollm3-3b",
     "SmolLM3 3B (HF HuggingFaceTB/SmolLM3-3B: every fourth layer without positions)",
     {.name = "smollm3-3b",
      .family = DH_FAMILY_SMOLLM3,
      .nth = 4,
      ROTARY_EPS(1e-6, 36, 2048, 16, 4, 11008, 128256, 65536),
      .tied_head = true,
      .rope = {.theta = 5e6}}},
    {"gemma2-2b",
     "Gemma 2 2B (HF google/gemma-2-2b)",
     {.name = "gemma2-2b",
      GEMMA2(26, 2304, 8, 4, 256, 9216, 256000, 8192),
      .window = 4096,
      .window_every = 2,
      .query_scalar = 256,
      .rope = {.theta = 1e4}}},
    {"gemma3-1b",
     "Gemma 3 1B (HF google/gemma-3-1b-pt)",
     {.name = "gemma3-1b",
      GEMMA3(26, 1152, 4, 1, 256, 6912, 262144, 32768),
      .window = 512,
      .window_every = 6,
      .query_scalar = 256,
      .rope = {.theta = 1e4},
      .rope_nth = {.theta = 1e6}}},
    {"phi3-mini",
     "Phi-3 mini, 3.8B (HF microsoft/Phi-3-mini-4k-instruct, as far as its window of 2047 tokens)",
     {.name = "phi3-mini",
      .family = DH_FAMILY_PHI3,
      ROTARY(32, 3072, 32, 32, 8192, 32064, 2047),
      .rope = {.theta = 1e4}}},

    {"dhelix-llama-8b",
     DHELIX "table 3: Llama-8B, the shape of Llama 3 8B, sequences to 16384",
     {.name = "dhelix-llama-8b",
      LLAMA(32, 4096, 32, 8, 14336, 128256, 16384),
      .rope = {.theta = 5e5}}},
    {"dhelix-llama-25b",
     DHELIX "table 3: Llama-25B" AS_LLAMA3,
     {.name = "dhelix-llama-25b",
      LLAMA(28, 8192, 64, 8, 28672, 32000, 16384),
      .rope = {.theta = 5e5}}},
    {"dhelix-llama-39b",
     DHELIX "table 3: Llama-39B" AS_LLAMA3,
     {.name = "dhelix-llama-39b",
      LLAMA(12, 16384, 128, 8, 53248, 32000, 16384),
      .rope = {.theta = 5e5}}},
    {"dhelix-llama-66b",
     DHELIX "table 3: Llama-66B, sequences to 32768" AS_LLAMA3,
     {.name = "dhelix-llama-66b",
      LLAMA(76, 8192, 64, 8, 28672, 32000, 32768),
      .rope = {.theta = 5e5}}},
    {"dhelix-gpt-6.7b",
     DHELIX "table 4: GPT-6.7B" AS_GPT3,
     {.name = "dhelix-gpt-6.7b", GPT2(32, 4096, 32, 50257, 16384), .bias = true}},
    {"dhelix-gpt-18b",
     DHELIX "table 4: GPT-18B" AS_GPT3,
     {.name = "dhelix-gpt-18b", GPT2(40, 6144, 48, 50257, 16384), .bias = true}},
    {"dhelix-gpt-30b",
     DHELIX "table 4: GPT-30B" AS_GPT3,
     {.name = "dhelix-gpt-30b", GPT2(16, 12288, 96, 50257, 16384), .bias = true}},
    {"dhelix-phi-16b",
     DHELIX "table 5: phi-16B, 16 experts" AS_PHI,
     {.name = "dhelix-phi-16b",
      MIXTRAL(16, 2, 0.001, 12, 4096, 32, 8, 6400, 32064, 4096),
      .rope = {.theta = 1e4}}},
    {"dhelix-phi-31b",
     DHELIX "table 5: Phi-31B, 16 experts" AS_PHI,
     {.name = "dhelix-phi-31b",
      MIXTRAL(16, 2, 0.001, 24, 4096, 32, 8, 6400, 32064, 4096),
      .rope = {.theta = 1e4}}},
    {"dhelix-phi-42b",
     DHELIX "table 5: Phi-42B, 16 experts" AS_PHI,
     {.name = "dhelix-phi-42b",
      MIXTRAL(16, 2, 0.001, 32, 4096, 32, 8, 6400, 32064, 4096),
      .rope = {.theta = 1e4}}},

    {"deepseek-v3",
     "DeepSeek V3, 671B (HF deepseek-ai/DeepSeek-V3), without the modules for further tokens",
     {.name = "deepseek-v3",
      DEEPSEEK3(256, 8, 8, 4, 2.5, 61, 7168, 128, 192, 2048, 129280, 163840),
      .dense_first = 3,
      .dense_width = 18432,
      .q_lora = 1536,
      .kv_lora = 512,
      .rope_dim = 64,
      .v_dim = 128,
      .rope = {.theta = 1e4,
               .scaling = DH_ROPE_SCALING_YARN,
               .factor = 40,
               .original_max_seq = 4096,
               .beta_fast = 32,
               .beta_slow = 1,
               .mscale = 1,
               .mscale_all = 1}}},
    {"kimi-k2",
     "Kimi K2, 1.03T, 384 experts, top-8 (HF moonshotai/Kimi-K2-Base)",
     {.name = "kimi-k2",
      DEEPSEEK3(384, 8, 1, 1, 2.827, 61, 7168, 64, 192, 2048, 163840, 131072),
      .dense_first = 1,
      .dense_width = 18432,
      .q_lora = 1536,
      .kv_lora = 512,
      .rope_dim = 64,
      .v_dim = 128,
      .rope = {.theta = 5e4,
               .scaling = DH_ROPE_SCALING_YARN,
               .factor = 32,
               .original_max_seq = 4096,
               .beta_fast = 1,
               .beta_slow = 1,
               .mscale = 1,
               .mscale_all = 1}}},
    {"gpt-oss-120b",
     "gpt-oss-120b, 117B, 128 experts, top-4 (HF openai/gpt-oss-120b); to be planned and simulated",
     {.name = "gpt-oss-120b",
      .family = DH_FAMILY_GPT_OSS,
      .qkv_bias = true,
      .n_experts = 128,
      .top_k = 4,
      .router_aux_coef = 0.9,
      ROTARY_HEADS(1e-5, 36, 2880, 64, 64, 8, 2880, 201088, 131072),
      .window = 128,
      .window_every = 2,
      .rope = {.theta = 150000,
               .scaling = DH_ROPE_SCALING_YARN,
               .factor = 32,
               .original_max_seq = 4096,
               .beta_fast = 32,
               .beta_slow = 1}}},
    {"phi-3.5-moe",
     "Phi-3.5-MoE, 41.9B, 16 experts, top-2 (HF microsoft/Phi-3.5-MoE-instruct), without the "
     "factors "
     "of its longrope: model.config reads them",
     {.name = "phi-3.5-moe",
      .family = DH_FAMILY_PHIMOE,
      .attn_bias = true,
      .norm_bias = true,
      .head_bias = true,
      .sparsemixer = true,
      .router_jitter = 0.01,
      .n_experts = 16,
      .top_k = 2,
      .router_aux_coef = 0.001,
      SIZES(DH_NORM_LAYER, 1e-5, 32, 4096, 32, 128, 8, 6400, 32064, 131072),
      .rope = {.theta = 1e4}}},
    {"llama4-scout",
     "Llama 4 Scout's text model, 108B, 16 experts, top-1, one shared (HF "
     "meta-llama/Llama-4-Scout-17B-16E); to be planned and simulated",
     {.name = "llama4-scout",
      .family = DH_FAMILY_LLAMA4,
      .qk_norm = true,
      .n_experts = 16,
      .top_k = 1,
      .n_shared = 1,
      .router_aux_coef = 0.001,
      ROTARY_HEADS(1e-5, 48, 5120, 40, 128, 8, 8192, 202048, 262144),
      .window = 8192,
      .window_every = 4,
      .nth = 4,
      .rope = {.theta = 5e5,
               .scaling = DH_ROPE_SCALING_LLAMA3,
               .factor = 8,
               .low_freq_factor = 1,
               .high_freq_factor = 4,
               .original_max_seq = 8192}}},
    {"gpt2-tiny",
     "a small GPT-2 for tests: 2 layers, width 64",
     {.name = "gpt2-tiny", GPT2(2, 64, 4, 512, 128), .bias = true}},
    {"gpt2-char",
     "nanoGPT's character model for CPUs (README of karpathy/nanoGPT): no biases; vocab 65 is "
     "tinyshakespeare's alphabet, give model.vocab: auto for other texts",
     {.name = "gpt2-char", GPT2(4, 128, 4, 65, 64), .bias = false}},
    {"llama-tiny",
     "a small Llama with grouped queries for tests: 2 layers, width 64",
     {.name = "llama-tiny", LLAMA(2, 64, 4, 2, 176, 512, 256), .rope = {.theta = 1e4}}},
    {"stories260K",
     "karpathy/tinyllamas stories260K: a trained Llama for TinyStories",
     {.name = "stories260K",
      LLAMA(5, 64, 8, 4, 172, 512, 512),
      .tied_head = true,
      .rope = {.theta = 1e4}}},
    {"mixtral-tiny",
     "a small Mixtral for tests: 2 layers, width 64, 8 experts, top-2",
     {.name = "mixtral-tiny",
      MIXTRAL(8, 2, 0.02, 2, 64, 8, 4, 96, 512, 512),
      .rope = {.theta = 1e4}}},
    {"deepseek-tiny",
     "a small DeepSeek V3 for tests: 2 layers, width 64, 8 experts in 4 groups, top-2",
     {.name = "deepseek-tiny",
      DEEPSEEK3(8, 2, 4, 2, 2.5, 2, 64, 8, 24, 48, 512, 512),
      .q_lora = 32,
      .kv_lora = 16,
      .rope_dim = 8,
      .v_dim = 16,
      .rope = {.theta = 1e4}}},
};
// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)

const dh_model_preset *dh_model_presets(size_t *n)
{
    *n = DH_COUNTOF(presets);
    return presets;
}

dh_status dh_model_from_preset(dh_ctx *ctx, const char *name, dh_model *model)
{
    DH_NEEDS(ctx, name);
    DH_NEEDS(ctx, model);
    const char *names[DH_COUNTOF(presets)];
    for (size_t i = 0; i < DH_COUNTOF(presets); i++) {
        names[i] = presets[i].name;
        if (strcmp(name, names[i]) == 0) {
            *model = presets[i].model;
            return DH_OK;
        }
    }
    const char *near = dh_nearest(name, names, DH_COUNTOF(names));
    if (near)
        return dh_fail(ctx, DH_EMISSING, "no model preset is named \"%s\"; did you mean \"%s\"?",
                       name, near);
    return dh_fail(ctx, DH_EMISSING,
                   "no model preset is named \"%s\"; `dhelix list models` shows them", name);
}
