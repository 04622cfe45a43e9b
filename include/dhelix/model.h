/* A transformer's architecture: from a Hugging Face config.json, a built-in
 * preset, or a mapping in the job file. Sizes only; no weights. */
#ifndef DHELIX_MODEL_H
#define DHELIX_MODEL_H

#include "dhelix/export.h"
#include "dhelix/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Architectures: a row each in src/config/model.c, which says what the family alone decides. */
typedef enum dh_family {
    DH_FAMILY_GPT2,
    DH_FAMILY_LLAMA, /* SmolLM too */
    DH_FAMILY_MIXTRAL,
    DH_FAMILY_MISTRAL,
    DH_FAMILY_QWEN2, /* Qwen 2 and 2.5 */
    DH_FAMILY_PHI3,
    DH_FAMILY_QWEN3,
    DH_FAMILY_OLMO2,
    DH_FAMILY_SMOLLM3,
    DH_FAMILY_QWEN3_MOE,
    DH_FAMILY_GEMMA2,
    DH_FAMILY_GEMMA3, /* its text model */
    DH_FAMILY_DEEPSEEK3,
    DH_FAMILY_GPT_OSS, /* planned and simulated alone, as the one behind it */
    DH_FAMILY_LLAMA4,  /* its text model */
    DH_FAMILY_PHIMOE,  /* Phi-3.5-MoE */
    DH_FAMILY_OLMO3
} dh_family;
typedef enum dh_norm_kind { DH_NORM_LAYER, DH_NORM_RMS } dh_norm_kind;
/* Where a layer's two parts have their norms: before each, or on the result of each, before it is
 * added to the residual stream, or both. */
typedef enum dh_norm_place { DH_NORMS_BEFORE, DH_NORMS_AFTER, DH_NORMS_AROUND } dh_norm_place;
/* All except the first are gated: gate and value are columns of one GEMM. */
typedef enum dh_act_kind { DH_ACT_GELU_TANH, DH_ACT_SWIGLU, DH_ACT_GEGLU } dh_act_kind;
/* How tokens see those before them: softmax of scores, or sums of k v^T (linear attention). */
typedef enum dh_attention_kind { DH_ATTENTION_SOFTMAX, DH_ATTENTION_LINEAR } dh_attention_kind;
/* Of queries and keys of linear attention, channel by channel: 1 + elu(x) (Katharopoulos et al.
 * 2020, arXiv 2006.16236), x, or silu(x). */
typedef enum dh_feature_map { DH_FEATURE_ELU, DH_FEATURE_IDENTITY, DH_FEATURE_SILU } dh_feature_map;
typedef enum dh_rope_scaling {
    DH_ROPE_SCALING_NONE,
    DH_ROPE_SCALING_LINEAR,
    DH_ROPE_SCALING_LLAMA3,
    DH_ROPE_SCALING_YARN,    /* Peng et al. 2023, arXiv 2309.00071 */
    DH_ROPE_SCALING_LONGROPE /* Ding et al. 2024, arXiv 2402.13753 */
} dh_rope_scaling;

typedef struct dh_rope {
    double theta;
    dh_rope_scaling scaling;
    double factor, low_freq_factor, high_freq_factor; /* llama3; linear and yarn use factor */
    int64_t original_max_seq;                         /* llama3, yarn, longrope */
    /* yarn. Channels that turn more than beta_fast times in original_max_seq tokens stay. Channels
     * that turn less than beta_slow times are stretched. mscale and mscale_all are the weights of
     * ln factor in the magnitude of rotations and of scores (HF mscale, mscale_all_dim). If both
     * are 0, the magnitude is 1 + 0.1 ln factor. magnitude replaces it (HF attention_factor); 0:
     * not given. */
    double beta_fast, beta_slow, mscale, mscale_all, magnitude;
} dh_rope;

/* A divisor of the frequency of each pair of a head's channels: n of them; 0: no list. */
enum { DH_ROPE_MAX_PAIRS = 64 };
typedef struct dh_rope_factors {
    int64_t n;
    double at[DH_ROPE_MAX_PAIRS];
} dh_rope_factors;

/* longrope of Phi-3.5-MoE. Runs whose sequences have up to rope.original_max_seq tokens use the
 * short factors, others the long ones. mscale is the magnitude of rotations. */
typedef struct dh_longrope {
    dh_rope_factors short_factors, long_factors; /* HF short_factor, long_factor */
    double short_mscale, long_mscale;
} dh_longrope;

/* Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) on linears of the layers. A linear
 * then gives x W^T + b + scale (x A^T) B^T. Only A [rank, in] and B [out, rank] are trained.
 * rank 0: no adapters, and the whole model is trained. */
typedef struct dh_lora {
    int64_t rank;
    double alpha;     /* scale is alpha / rank; 0: 2 * rank, which is scale 2 */
    char targets[64]; /* linears, by the last part of Hugging Face's name: "q_proj,v_proj"; "" or
                       * "all-linear": all of a layer except experts and their router */
} dh_lora;

typedef struct dh_model {
    char name[64];
    dh_family family;
    int64_t n_layers;
    int64_t width;        /* C, hidden size */
    int64_t n_heads;      /* H */
    int64_t n_kv_heads;   /* divides n_heads */
    int64_t head_dim;     /* D; HF default width / n_heads */
    int64_t ffn_width;    /* F; per expert where there are any */
    int64_t dense_first;  /* with experts: first layers, which have no experts */
    int64_t moe_every;    /* every n-th of the other layers has experts (2: the 2nd, 4th); 0: all */
    int64_t dense_width;  /* F of layers without experts; 0: there are none */
    int64_t vocab;        /* V; 0 only in a job whose tokenizer still has to decide it */
    int64_t max_seq;      /* longest sequence; rows of wpe for GPT-2 */
    int64_t window;       /* tokens that a token attends to, with itself; 0: all before it */
    int64_t window_from;  /* first layers, which have no window */
    int64_t window_every; /* every n-th layer has no window either (6: the 6th, 12th); 0: none */
    bool tied_head;       /* head shares the token embedding */
    bool bias;            /* GPT-2: biases in linears and LayerNorm (nanoGPT has an option) */
    bool qkv_bias;        /* Qwen 2: biases of queries, keys and values alone */
    bool attn_bias;       /* Phi-3.5-MoE: these, and one of attention's output */
    bool norm_bias;       /* Phi-3.5-MoE: biases of LayerNorm, whichever linears have one */
    bool head_bias;       /* Phi-3.5-MoE: a bias of the logits (HF lm_head_bias) */
    bool qk_norm;         /* Qwen 3: RMSNorm of every head of queries and keys */
    bool qk_norm_all;     /* OLMo 2, 3: RMSNorm of all heads of queries together, and of keys */
    dh_attention_kind attention; /* linear: in the llama and mixtral families */
    int64_t softmax_every; /* linear: every n-th layer has softmax attention (4: the 4th, the 8th);
                            * 0: none */
    dh_feature_map feature_map;
    dh_norm_kind norm;
    dh_norm_place norm_place;
    bool norm_plus_one;   /* Gemma: norms multiply by 1 + weight */
    bool embed_scaled;    /* Gemma: embeddings are multiplied by the root of width */
    double query_scalar;  /* scores are divided by its root; 0: head_dim */
    double attn_softcap;  /* Gemma 2: c: scores s of attention are c tanh(s / c); 0: as they are */
    double logit_softcap; /* c: logits are c tanh(logits / c); 0: as they are */
    double norm_eps;
    dh_act_kind act;
    dh_rope rope; /* all families but GPT-2 */
    dh_longrope longrope;
    int64_t nth; /* SmolLM 3, Gemma 3, OLMo 3: every n-th layer has rope_nth instead; 0: none */
    dh_rope rope_nth;  /* theta 0: no positions */
    int64_t n_experts; /* 0: dense */
    int64_t top_k;
    bool topk_plain; /* weights of a token's experts are not made to sum to 1: HF norm_topk_prob */
    /* Phi-3.5-MoE: sparsemixer's weights of a token's two experts (Liu et al. 2023, arXiv
     * 2310.00811, as Transformers computes it outside training): a softmax for each over the experts
     * whose scores are near the best (HF router_jitter_noise says how near), the second without the
     * first expert. */
    bool sparsemixer;
    double router_jitter;
    double router_aux_coef; /* HF router_aux_loss_coef */
    /* DeepSeek V3; 0 in other families, except n_shared in Llama 4. Latent attention: queries come from q_lora channels (0:
     * directly from width), keys and values from kv_lora channels. The last rope_dim of a head's
     * head_dim channels of queries and keys have rotary positions. All heads' keys share these.
     * A head's values have v_dim <= head_dim channels. */
    int64_t q_lora, kv_lora, rope_dim, v_dim;
    bool rope_pairs;     /* neighbours are rotated, not halves: HF rope_interleave */
    int64_t n_shared;    /* experts that every token goes to, as one of n_shared * ffn_width */
    int64_t n_groups;    /* of experts, for routing by sigmoids with a bias (HF n_group) */
    int64_t top_groups;  /* groups that a token's experts are of (HF topk_group) */
    double router_scale; /* of a token's weights (HF routed_scaling_factor) */
    double init_std;     /* HF initializer_range */
    dh_lora lora;        /* a property of the run, not in config.json */
} dh_model;

/* Number of parameters, without adapters. */
DH_API int64_t dh_model_n_params(const dh_model *model);
/* Number of trained parameters: all, or with adapters only theirs. */
DH_API int64_t dh_model_n_trained(const dh_model *model);
/* Whether the linear whose name ends in `module` ("q_proj") has an adapter. */
DH_API bool dh_model_adapts(const dh_model *model, const char *module);
/* Names of the linears that a layer of the model may have adapters of, each once; NULL behind the
 * last. */
DH_API const char *dh_model_linear(const dh_model *model, size_t i);
/* Factor of what adapters give; 0: there are none. */
DH_API double dh_model_lora_scale(const dh_model *model);
/* Model FLOPs of forward + backward for one token at sequence length T (MFU's numerator, PaLM
 * appendix B, with the causal half):
 *   matrices           6 * their parameters; 4 * for frozen ones, which have no gradient
 *   softmax attention  12 * L * H * D * T/2; less than T/2 in layers with a window
 *   linear attention   6 * L * (H + K) * D^2, for any T
 *   MoE                top_k experts
 * The embedding lookup does not count; the head does. */
DH_API double dh_model_flops_per_token(const dh_model *model, int64_t seq_len);

/* Tokens that a token attends to in layer 0 <= layer < n_layers; 0: all before it. */
DH_API int64_t dh_model_window(const dh_model *model, int64_t layer);

/* Differences of a layer from the model's fields, one bit each. Layers of a kind have the same
 * operators on the same shapes, and the same work. Only values that a kernel derives from the
 * layer's number (nth) may differ. */
enum {
    DH_LAYER_DENSE = 1 << 0,    /* no experts, in a model that has them */
    DH_LAYER_SOFTMAX = 1 << 1,  /* softmax attention, in a model of linear attention */
    DH_LAYER_SEES_ALL = 1 << 2, /* no window, in a model that has one */
    DH_N_LAYER_KINDS = 1 << 3
};
DH_API unsigned dh_model_layer_kind(const dh_model *model, int64_t layer);
/* "layer without experts"; of kind 0 "layer". */
DH_API const char *dh_layer_kind_name(unsigned kind);

/* Kinds among some layers, in the order in which they first occur. */
typedef struct dh_layer_kinds {
    int n;
    int64_t layer[DH_N_LAYER_KINDS]; /* the first of the kind among them */
    int64_t count[DH_N_LAYER_KINDS]; /* how many of them there are */
} dh_layer_kinds;
/* Of layers [first, first + n). */
DH_API dh_layer_kinds dh_model_kinds(const dh_model *model, int64_t first, int64_t n);

/* The model as one of its layers sees it: as many layers, all of that one's kind. Of a model whose
 * layers are alike, the same. */
DH_API dh_model dh_model_of_layer(const dh_model *model, int64_t layer);
/* Chunks of a sequence on a context-parallel rank, in all layers: 2, an early and a late one, which
 * balance causal attention; 1 where every layer has linear attention. For a whole model, not for a
 * model as one layer sees it. */
DH_API int64_t dh_model_cp_chunks(const dh_model *model);
/* How many of the first n layers have experts. */
DH_API int64_t dh_model_n_routed(const dh_model *model, int64_t n);

/* Consistency of all fields. The message names the field and what would be right. Sizes are bounded
 * so that counts never overflow.
 * errors    DH_EINVAL a field; DH_EUNSUPPORTED a value that the family does not compute */
DH_API dh_status dh_model_validate(dh_ctx *ctx, const dh_model *model);

/* Parts of the model's family that no operator here computes: it is planned and simulated alone.
 * NULL: all is computed. */
DH_API const char *dh_model_not_computed(const dh_model *model);
/* errors    DH_EUNSUPPORTED there are such parts; the message names them */
DH_API dh_status dh_model_check_computed(dh_ctx *ctx, const dh_model *model);

/* Built-in presets, for `dhelix list models`. */
typedef struct dh_model_preset {
    const char *name;
    const char *doc; /* with source */
    dh_model model;
} dh_model_preset;
DH_API const dh_model_preset *dh_model_presets(size_t *n);
/* errors    DH_EMISSING an unknown name, with the nearest one */
DH_API dh_status dh_model_from_preset(dh_ctx *ctx, const char *name, dh_model *model);

/* A model from config.json text.
 *
 * Classes of Hugging Face: GPT2Config, LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config,
 * Qwen3Config, Qwen3MoeConfig, Phi3Config, PhimoeConfig, Olmo2Config, Olmo3Config, SmolLM3Config,
 * Gemma2Config, Gemma3TextConfig, DeepseekV3Config, and Kimi K2's, which is the last under another
 * name. Classes of our own for linear attention: model_type linear_llama or linear_mixtral, with
 * Llama's and Mixtral's keys, feature_map and softmax_every.
 *
 *   refused by name   fields with a meaning that we do not compute (other activations, unknown rope
 *                     scaling, kinds of layer_types); encoders and classifiers, by architectures,
 *                     is_causal and the like
 *   ignored           harmless unknown fields
 *   absent            Transformers' defaults
 *   window            kept where it is shorter than the longest sequence
 *   "bias": false     accepted for GPT-2 (nanoGPT's variant; not a key of Transformers)
 *
 * The file variant takes config.json or its folder.
 * errors    DH_EFORMAT syntax or type; DH_EINVAL sizes; DH_EUNSUPPORTED; DH_EIO */
DH_API dh_status dh_model_from_config_json(dh_ctx *ctx, const char *text, size_t n_bytes,
                                           dh_model *model);
DH_API dh_status dh_model_from_config_file(dh_ctx *ctx, const char *path, dh_model *model);
/* HF config.json text for the model (caller frees); reads back to the same model.
 * errors    DH_EUNSUPPORTED dh_model_check_computed */
DH_API dh_status dh_model_to_config_json(dh_ctx *ctx, const dh_model *model, char **text);

#ifdef __cplusplus
}
#endif
#endif
