/* Every setting of a job file: one row each. Parser, help, printed job and man
 * page come from this table. */
#include "settings.h"

#include "base/base.h"
#include "base/c_locale.h"
#include "model_names.h"

#include <stdio.h>
#include <string.h>

static const char *const order_names[] = {"shuffle", "sequential", "random", NULL};
static const char *const format_names[] = {"text", "chat", NULL};
static const char *const packing_names[] = {"none", "pack", "group", NULL};
static const char *const fp8_names[] = {"off", "e4m3", "hybrid", NULL};
static const char *const dtype_names[] = {"f32", "bf16", NULL};
static const char *const recompute_names[] = {"none", "selective", "full", "attention", NULL};
static const char *const lr_names[] = {"cosine", "linear", "constant", NULL};
static const char *const reshard_names[] = {"true", "false", "node", NULL};
static const char *const regather_names[] = {"micro-batch", "stage", NULL};
static const char *const gather_names[] = {"optimizer", "forward", NULL};
static const char *const fuse_names[] = {"auto", "off", "1", "2", "4", "8", NULL};
static const char *const gradient_sync_names[] = {"last", "every", NULL};
static const char *const mpi_wait_names[] = {"yield", "sleep", "block", NULL};
static const char *const gpu_comm_names[] = {"auto", "nccl", "device", "host", NULL};
static const char *const capture_names[] = {"off", "auto", "on", NULL};
static const char *const fuse_gelu_names[] = {"auto", "off", "on", NULL};
static const char *const barrier_names[] = {"auto", "events", "full", NULL};
static const char *const spike_names[] = {"off", "stop", "back", NULL};
static const char *const elastic_names[] = {"stop", "continue", NULL};
static const char *const cp_linear_names[] = {"lasp2", "lasp1", NULL};
static const char *const cp_grad_names[] = {"compute", "float32", NULL};
static const char *const grad_names[] = {"float32", "compute", NULL};
static const char *const dispatch_names[] = {"flat", "node", "auto", NULL};
static const char *const tp_rows_names[] = {"whole", "shared", "auto", NULL};
static const char *const moe_names[] = {"dropless", "capacity", NULL};

/* Enumerations are stored as the index of their name. */
_Static_assert(DH_ORDER_SHUFFLE == 0 && DH_ORDER_SEQUENTIAL == 1 && DH_ORDER_RANDOM == 2, "order");
_Static_assert(DH_PACKING_NONE == 0 && DH_PACKING_PACK == 1 && DH_PACKING_GROUP == 2, "order");
_Static_assert(DH_FORMAT_TEXT == 0 && DH_FORMAT_CHAT == 1, "order");
_Static_assert(DH_F32 == 0 && DH_BF16 == 1, "order");
_Static_assert(DH_RECOMPUTE_NONE == 0 && DH_RECOMPUTE_SELECTIVE == 1 && DH_RECOMPUTE_FULL == 2 &&
                   DH_RECOMPUTE_ATTENTION == 3,
               "order");
_Static_assert(DH_LR_COSINE == 0 && DH_LR_LINEAR == 1 && DH_LR_CONSTANT == 2, "order");
_Static_assert(DH_RESHARD_TRUE == 0 && DH_RESHARD_FALSE == -1 && DH_RESHARD_NODE == -2, "order");
_Static_assert(DH_GATHER_OPTIMIZER == 0 && DH_GATHER_FORWARD == 1, "order");
_Static_assert(DH_FUSE_AUTO == 0 && DH_FUSE_OFF == 1 && DH_FUSE_8 == 5 &&
                   DH_COUNTOF(fuse_names) == DH_N_FUSE + 1,
               "order");
_Static_assert(DH_GRADIENT_SYNC_LAST == 0 && DH_GRADIENT_SYNC_EVERY == 1, "order");
_Static_assert(DH_MPI_WAIT_YIELD == 0 && DH_MPI_WAIT_SLEEP == 1 && DH_MPI_WAIT_BLOCK == 2, "order");
_Static_assert(DH_GPU_COMM_AUTO == 0 && DH_GPU_COMM_NCCL == 1 && DH_GPU_COMM_DEVICE == 2 &&
                   DH_GPU_COMM_HOST == 3,
               "order");
_Static_assert(DH_JOB_CAPTURE_OFF == 0 && DH_JOB_CAPTURE_AUTO == 1 && DH_JOB_CAPTURE_ON == 2,
               "order");
_Static_assert(DH_FUSE_GELU_AUTO == 0 && DH_FUSE_GELU_OFF == 1 && DH_FUSE_GELU_ON == 2, "order");
_Static_assert(DH_BARRIERS_AUTO == 0 && DH_BARRIERS_EVENTS == 1 && DH_BARRIERS_FULL == 2, "order");
_Static_assert(DH_SPIKE_OFF == 0 && DH_SPIKE_STOP == 1 && DH_SPIKE_BACK == 2, "order");
_Static_assert(DH_ELASTIC_STOP == 0 && DH_ELASTIC_CONTINUE == 1, "order");
_Static_assert(DH_ATTENTION_SOFTMAX == 0 && DH_ATTENTION_LINEAR == 1, "order");
_Static_assert(DH_FEATURE_ELU == 0 && DH_FEATURE_IDENTITY == 1 && DH_FEATURE_SILU == 2, "order");
_Static_assert(DH_CP_LINEAR_LASP2 == 0 && DH_CP_LINEAR_LASP1 == 1, "order");
_Static_assert(DH_MOE_DROPLESS == 0 && DH_MOE_CAPACITY == 1, "order");
_Static_assert(DH_FAMILY_GPT2 == 0 && DH_FAMILY_LLAMA == 1 && DH_FAMILY_MIXTRAL == 2 &&
                   DH_FAMILY_MISTRAL == 3 && DH_FAMILY_QWEN2 == 4 && DH_FAMILY_PHI3 == 5 &&
                   DH_FAMILY_QWEN3 == 6 && DH_FAMILY_OLMO2 == 7 && DH_FAMILY_SMOLLM3 == 8 &&
                   DH_FAMILY_QWEN3_MOE == 9 && DH_FAMILY_GEMMA2 == 10 && DH_FAMILY_GEMMA3 == 11 &&
                   DH_FAMILY_DEEPSEEK3 == 12 && DH_FAMILY_GPT_OSS == 13 && DH_FAMILY_LLAMA4 == 14 &&
                   DH_FAMILY_PHIMOE == 15 && DH_FAMILY_OLMO3 == 16,
               "order");

#define AT(field) .offset = offsetof(dh_job, field)
#define MANY 9007199254740992.0 /* 2^53: no limit in practice, and exact in a double */
#define DEGREE_MAX (1 << 24)

#define INT(k, field, def, lo, hi, ...)                                                            \
    {                                                                                              \
        .key = (k), .type = DH_SET_INT, AT(field), .fallback = (def), .min = (lo), .max = (hi),    \
        __VA_ARGS__                                                                                \
    }
#define FLOAT(k, field, def, lo, hi, ...)                                                          \
    {                                                                                              \
        .key = (k), .type = DH_SET_FLOAT, AT(field), .fallback = (def), .min = (lo), .max = (hi),  \
        __VA_ARGS__                                                                                \
    }
#define BOOL(k, field, def, ...)                                                                   \
    {                                                                                              \
        .key = (k), .type = DH_SET_BOOL, AT(field), .fallback = (def), __VA_ARGS__                 \
    }
#define ENUM(k, field, def, list, ...)                                                             \
    {                                                                                              \
        .key = (k), .type = DH_SET_ENUM, AT(field), .fallback = (def), .names = (list),            \
        __VA_ARGS__                                                                                \
    }
#define TEXT(k, field, kind, def, ...)                                                             \
    {                                                                                              \
        .key = (k), .type = (kind), AT(field), .fallback = (def), __VA_ARGS__                      \
    }
#define PATHS(k, field, count, ...)                                                                \
    {                                                                                              \
        .key = (k), .type = DH_SET_PATHS, AT(field), .offset_n = offsetof(dh_job, count),          \
        .fallback = "", __VA_ARGS__                                                                \
    }

#define FOR_ROPE .families = ~(unsigned)DH_FOR_GPT2
#define FOR_WINDOW                                                                                 \
    .families = DH_FOR_MIXTRAL | DH_FOR_MISTRAL | DH_FOR_QWEN2 | DH_FOR_PHI3 | DH_FOR_QWEN3 |      \
                DH_FOR_GEMMA2 | DH_FOR_GEMMA3 | DH_FOR_GPT_OSS | DH_FOR_LLAMA4 | DH_FOR_PHIMOE |   \
                DH_FOR_OLMO3
#define FOR_WINDOW_LAYERS                                                                          \
    .families = DH_FOR_QWEN2 | DH_FOR_QWEN3 | DH_FOR_GEMMA2 | DH_FOR_GEMMA3 | DH_FOR_GPT_OSS |     \
                DH_FOR_LLAMA4 | DH_FOR_OLMO3
#define FOR_NTH_ROPE .families = DH_FOR_GEMMA3 | DH_FOR_OLMO3
#define FOR_GEMMA .families = DH_FOR_GEMMA2 | DH_FOR_GEMMA3
#define FOR_EXPERTS                                                                                \
    .families = DH_FOR_MIXTRAL | DH_FOR_QWEN3_MOE | DH_FOR_DEEPSEEK3 | DH_FOR_GPT_OSS |            \
                DH_FOR_LLAMA4 | DH_FOR_PHIMOE
#define FOR_DENSE_LAYERS .families = DH_FOR_QWEN3_MOE | DH_FOR_DEEPSEEK3 | DH_FOR_LLAMA4
#define FOR_DEEPSEEK .families = DH_FOR_DEEPSEEK3
#define FOR_PHIMOE .families = DH_FOR_PHIMOE
#define FOR_LINEAR .families = DH_FOR_LLAMA | DH_FOR_MIXTRAL
#define FOR_GPT2 .families = DH_FOR_GPT2

/* clang-format off */
static const dh_setting settings[] = {
    INT("ranks", ranks, "auto", 0, DEGREE_MAX, .automatic = "dp*tp*pp*cp",
        .help = "ranks of the run; the flag --ranks and the launcher set it"),
    TEXT("out", out_dir, DH_SET_PATH, "run",
         .help = "run folder: checkpoints, metrics, reports"),
    TEXT("strategy", strategy, DH_SET_FLOW, "sequential",
         .help = "how communication is hidden: a row of `dhelix list strategies`; a row with passes added, as in "
                 "ring-gemm(both)+dhelix; a mapping such as {passes: [ring-gemm], schedule: dhelix-w, order: "
                 "auto}; or auto, the one with the shortest simulated step, of rows and of combinations of their parts"),
    TEXT("device", device, DH_SET_STRING, "auto",
         .help = "what executes programs: a row of `dhelix list devices`; auto: the device that DHELIX_DEVICE "
                 "names, else cpu"),
    TEXT("system", system, DH_SET_STRING, "dhelix",
         .help = "the software that is simulated: a row of `dhelix list systems`, with more traits if needed, as "
                 "in megatron-core+scores. Training always runs our own software, dhelix"),

    TEXT("overlap.policy", overlap_policy, DH_SET_NAME_OR_PATH, "auto",
         .help = "how the order of co-executed operators is found: a row of `dhelix list policies`; auto: the "
                 "strategy's policy; or a file that `dhelix plan --write` wrote, for the order in it"),
    ENUM("overlap.barriers", overlap_barriers, "auto", barrier_names,
         .help = "how paired segments wait for each other: full (a barrier, as in DHelix's paper) or events; "
                 "auto: as the strategy says"),
    BOOL("overlap.local", overlap_local, "true",
         .help = "communication inside a node (TP) may run during the other strand's computation"),
    BOOL("overlap.cross", overlap_cross, "true",
         .help = "communication between nodes (CP, EP) may run during the other strand's computation"),
    BOOL("overlap.comm_comm", overlap_comm_comm, "true",
         .help = "communication of one strand may run during communication of the other"),
    BOOL("overlap.wgrad", overlap_wgrad, "true",
         .help = "weight gradients may move away from their place in the backward pass"),
    FLOAT("overlap.memory", overlap_memory, "auto", 0.001, 1e6, .unit = "blocks",
         .automatic = "what a device has left after everything else and its reserve; 1.5 where its memory is not known",
         .help = "memory that co-executed strands may take beyond one strand alone, in activations of a block; with less, "
                 "orders are slower"),
    TEXT("profile", profile, DH_SET_NAME_OR_PATH, "auto", .own = true,
         .help = "where measured operator times come from. auto: the file that `dhelix profile` wrote for such a "
                 "job; measure: the same, and missing operators are measured before training; none: estimates "
                 "only; or a file"),

    TEXT("model", model_spec, DH_SET_MODEL, NULL,
         .help = "the model: a preset (`dhelix list models`), a config.json or its folder, or a mapping of the "
                 "keys below"),
    TEXT("model.preset", model_spec, DH_SET_MODEL, NULL,
         .help = "preset that the other model keys change"),
    TEXT("model.config", model_spec, DH_SET_MODEL, NULL,
         .help = "config.json that the other model keys change"),
    TEXT("model.name", model.name, DH_SET_CHARS, NULL,
         .help = "name for reports"),
    ENUM("model.family", model.family, NULL, dh_family_names, .aliases = "model_type",
         .help = "architecture; required without preset or config, and fixed by one of these"),
    INT("model.n_layers", model.n_layers, NULL, 1, DH_MODEL_MAX_LAYERS,
        .aliases = "num_hidden_layers n_layer", .help = "layers"),
    INT("model.width", model.width, NULL, 1, DH_MODEL_MAX_WIDTH, .aliases = "hidden_size n_embd",
        .help = "hidden size C"),
    INT("model.n_heads", model.n_heads, NULL, 1, DH_MODEL_MAX_HEADS,
        .aliases = "num_attention_heads n_head", .help = "query heads"),
    INT("model.n_kv_heads", model.n_kv_heads, NULL, 1, DH_MODEL_MAX_HEADS,
        .aliases = "num_key_value_heads", .help = "key/value heads; the same as n_heads where the two were equal"),
    INT("model.head_dim", model.head_dim, NULL, 1, DH_MODEL_MAX_HEAD_DIM,
        .help = "channels of a head; computed as width / n_heads when not given"),
    INT("model.ffn_width", model.ffn_width, NULL, 1, DH_MODEL_MAX_FFN,
        .aliases = "intermediate_size n_inner",
         .help = "feed-forward width (of one expert); gpt2: 4 * width when not given"),
    INT("model.vocab", model.vocab, NULL, 0, DH_MODEL_MAX_VOCAB, .automatic = "the tokenizer's",
        .aliases = "vocab_size", .help = "vocabulary V"),
    INT("model.max_seq", model.max_seq, NULL, 1, DH_MODEL_MAX_SEQ,
        .aliases = "max_position_embeddings n_positions", .unit = "tokens", .help = "longest sequence"),
    INT("model.window", model.window, NULL, 0, DH_MODEL_MAX_SEQ, FOR_WINDOW, .aliases = "sliding_window",
        .unit = "tokens", .zero = "none", .help = "sliding-window attention: number of tokens that a token "
                                                  "attends to, including itself"),
    INT("model.window_from", model.window_from, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_WINDOW_LAYERS, .aliases = "max_window_layers",
        .unit = "layers", .help = "first layers without a sliding window"),
    INT("model.window_every", model.window_every, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_WINDOW_LAYERS,
        .zero = "none", .help = "every n-th layer has no sliding window; 6: the 6th, 12th, ... layer"),
    ENUM("model.attention", model.attention, NULL, dh_attention_kind_names, FOR_LINEAR,
         .help = "softmax attention, or linear attention: a running sum of k v^T whose size does not depend on "
                 "the length, and a norm of every head"),
    INT("model.softmax_every", model.softmax_every, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_LINEAR, .unit = "layers",
        .zero = "none", .help = "linear attention: every n-th layer has softmax attention; 4: the 4th, 8th, ... "
                                "layer. With parallel.cp this is LASP-2H"),
    ENUM("model.feature_map", model.feature_map, NULL, dh_feature_map_names, FOR_LINEAR,
         .help = "linear attention: function applied to each channel of queries and keys; elu: 1 + elu(x)"),
    BOOL("model.tied_head", model.tied_head, NULL, .aliases = "tie_word_embeddings",
         .help = "the head shares the token embedding"),
    BOOL("model.bias", model.bias, NULL, FOR_GPT2, .help = "biases in linears and LayerNorm"),
    BOOL("model.attn_bias", model.attn_bias, NULL, FOR_PHIMOE, .aliases = "attention_bias",
         .help = "biases of queries, keys, values and attention's output"),
    BOOL("model.head_bias", model.head_bias, NULL, FOR_PHIMOE, .aliases = "lm_head_bias", .help = "a bias of the logits"),
    FLOAT("model.norm_eps", model.norm_eps, NULL, 0, 1,
          .aliases = "rms_norm_eps layer_norm_epsilon layer_norm_eps", .help = "added to the variance in norms"),
    FLOAT("model.init_std", model.init_std, NULL, 0, 1e6, .aliases = "initializer_range",
          .help = "standard deviation of initial weights"),
    FLOAT("model.rope_theta", model.rope.theta, NULL, 0, 1e15, FOR_ROPE, .help = "base of rotary positions"),
    ENUM("model.rope_scaling", model.rope.scaling, NULL, dh_rope_scaling_names, FOR_ROPE,
         .help = "how rotary positions are scaled to longer sequences"),
    FLOAT("model.rope_factor", model.rope.factor, NULL, 0, 1e9, FOR_ROPE,
         .help = "scaling factor (linear, llama3, yarn)"),
    FLOAT("model.rope_low_freq_factor", model.rope.low_freq_factor, NULL, 0, 1e9, FOR_ROPE,
         .help = "llama3: low_freq_factor of its scaling"),
    FLOAT("model.rope_high_freq_factor", model.rope.high_freq_factor, NULL, 0, 1e9, FOR_ROPE,
         .help = "llama3: high_freq_factor of its scaling"),
    INT("model.rope_original_max_seq", model.rope.original_max_seq, NULL, 0, DH_MODEL_MAX_SEQ, FOR_ROPE,
        .unit = "tokens", .help = "llama3, yarn, longrope: sequence length of the first training"),
    TEXT("model.rope_short_factor", model.longrope.short_factors, DH_SET_FACTORS, NULL, FOR_PHIMOE, .aliases = "short_factor",
         .help = "longrope: divisor of each pair's frequency in sequences of up to rope_original_max_seq tokens"),
    TEXT("model.rope_long_factor", model.longrope.long_factors, DH_SET_FACTORS, NULL, FOR_PHIMOE, .aliases = "long_factor",
         .help = "longrope: the same in longer sequences"),
    FLOAT("model.rope_short_mscale", model.longrope.short_mscale, NULL, 0, 1e9, FOR_PHIMOE, .aliases = "short_mscale",
          .help = "longrope: magnitude of rotations in sequences of up to rope_original_max_seq tokens"),
    FLOAT("model.rope_long_mscale", model.longrope.long_mscale, NULL, 0, 1e9, FOR_PHIMOE, .aliases = "long_mscale",
          .help = "longrope: the same in longer sequences"),
    FLOAT("model.rope_beta_fast", model.rope.beta_fast, NULL, 0, 1e9, FOR_ROPE,
         .help = "yarn: channels with more turns than this are not scaled"),
    FLOAT("model.rope_beta_slow", model.rope.beta_slow, NULL, 0, 1e9, FOR_ROPE,
         .help = "yarn: channels with fewer turns than this are fully scaled"),
    FLOAT("model.rope_mscale", model.rope.mscale, NULL, 0, 1e9, FOR_ROPE, .aliases = "mscale",
          .help = "yarn: weight of ln(factor) in the magnitude of rotations"),
    FLOAT("model.rope_mscale_all", model.rope.mscale_all, NULL, 0, 1e9, FOR_ROPE, .aliases = "mscale_all_dim",
          .help = "yarn: weight of ln(factor) by which that magnitude is divided again; deepseek_v3 scales "
                  "attention scores by it"),
    FLOAT("model.rope_magnitude", model.rope.magnitude, NULL, 0, 1e9, FOR_ROPE, .aliases = "attention_factor",
          .zero = "computed from factor and mscale", .help = "yarn: magnitude of rotations"),
    INT("model.nth", model.nth, NULL, 0, DH_MODEL_MAX_LAYERS,
        .families = DH_FOR_SMOLLM3 | DH_FOR_GEMMA3 | DH_FOR_LLAMA4 | DH_FOR_OLMO3,
        .aliases = "no_rope_layer_interval sliding_window_pattern", .unit = "layers", .zero = "none",
        .help = "every n-th layer has other rotary positions (gemma3_text, olmo3) or none (smollm3, llama4_text)"),
    FLOAT("model.nth_rope_theta", model.rope_nth.theta, NULL, 0, 1e15, FOR_NTH_ROPE,
          .help = "every n-th layer: base of its rotary positions"),
    ENUM("model.nth_rope_scaling", model.rope_nth.scaling, NULL, dh_rope_scaling_names, FOR_NTH_ROPE,
         .help = "every n-th layer: how its rotary positions are scaled"),
    FLOAT("model.nth_rope_factor", model.rope_nth.factor, NULL, 0, 1e9, FOR_NTH_ROPE,
          .help = "every n-th layer: scaling factor (linear, llama3, yarn)"),
    FLOAT("model.nth_rope_low_freq_factor", model.rope_nth.low_freq_factor, NULL, 0, 1e9, FOR_NTH_ROPE,
          .help = "every n-th layer: rope_low_freq_factor"),
    FLOAT("model.nth_rope_high_freq_factor", model.rope_nth.high_freq_factor, NULL, 0, 1e9, FOR_NTH_ROPE,
          .help = "every n-th layer: rope_high_freq_factor"),
    INT("model.nth_rope_original_max_seq", model.rope_nth.original_max_seq, NULL, 0, DH_MODEL_MAX_SEQ, FOR_NTH_ROPE,
        .unit = "tokens", .help = "every n-th layer: rope_original_max_seq"),
    FLOAT("model.nth_rope_beta_fast", model.rope_nth.beta_fast, NULL, 0, 1e9, FOR_NTH_ROPE,
          .help = "every n-th layer: rope_beta_fast"),
    FLOAT("model.nth_rope_beta_slow", model.rope_nth.beta_slow, NULL, 0, 1e9, FOR_NTH_ROPE,
          .help = "every n-th layer: rope_beta_slow"),
    FLOAT("model.nth_rope_mscale", model.rope_nth.mscale, NULL, 0, 1e9, FOR_NTH_ROPE,
          .help = "every n-th layer: rope_mscale"),
    FLOAT("model.nth_rope_mscale_all", model.rope_nth.mscale_all, NULL, 0, 1e9, FOR_NTH_ROPE,
          .help = "every n-th layer: rope_mscale_all"),
    FLOAT("model.nth_rope_magnitude", model.rope_nth.magnitude, NULL, 0, 1e9, FOR_NTH_ROPE,
          .zero = "computed from factor and mscale", .help = "every n-th layer: rope_magnitude"),
    FLOAT("model.query_scalar", model.query_scalar, NULL, 0, 1e9, FOR_GEMMA, .aliases = "query_pre_attn_scalar",
          .zero = "head_dim", .help = "attention scores are divided by the square root of this number"),
    FLOAT("model.attn_softcap", model.attn_softcap, NULL, 0, 1e9, .families = DH_FOR_GEMMA2,
          .aliases = "attn_logit_softcapping", .zero = "none",
          .help = "soft limit c of attention scores: s becomes c tanh(s / c)"),
    FLOAT("model.logit_softcap", model.logit_softcap, NULL, 0, 1e9, FOR_GEMMA, .aliases = "final_logit_softcapping",
          .zero = "none", .help = "soft limit c of logits: they become c tanh(logits / c)"),
    INT("model.n_experts", model.n_experts, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_EXPERTS,
        .aliases = "num_local_experts num_experts", .help = "experts of a layer"),
    INT("model.dense_first", model.dense_first, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_DENSE_LAYERS,
        .aliases = "first_k_dense_replace", .unit = "layers", .zero = "none",
         .help = "first layers, which have no experts"),
    INT("model.moe_every", model.moe_every, NULL, 0, DH_MODEL_MAX_LAYERS, .families = DH_FOR_QWEN3_MOE | DH_FOR_LLAMA4,
        .unit = "layers", .zero = "all",
        .help = "every n-th of the other layers has experts; 2: the 2nd, 4th, ... layer"),
    INT("model.dense_width", model.dense_width, NULL, 0, DH_MODEL_MAX_FFN, FOR_DENSE_LAYERS, .zero = "none",
        .help = "feed-forward width of layers without experts"),
    INT("model.top_k", model.top_k, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_EXPERTS,
        .aliases = "num_experts_per_tok", .help = "experts per token"),
    BOOL("model.topk_plain", model.topk_plain, NULL, .families = DH_FOR_QWEN3_MOE | DH_FOR_DEEPSEEK3,
         .help = "the weights of a token's experts are their probabilities, not scaled to a sum of 1 "
                 "(norm_topk_prob: false)"),
    FLOAT("model.router_jitter", model.router_jitter, NULL, 0, 1e6, FOR_PHIMOE, .aliases = "router_jitter_noise",
          .help = "sparsemixer: experts whose score is within twice this share of the best one take part in a weight's "
                  "softmax"),
    FLOAT("model.router_aux_coef", model.router_aux_coef, NULL, 0, 1e6, FOR_EXPERTS,
          .aliases = "router_aux_loss_coef", .help = "weight of the load-balancing loss"),
    INT("model.q_lora", model.q_lora, NULL, 0, DH_MODEL_MAX_WIDTH, FOR_DEEPSEEK, .aliases = "q_lora_rank",
        .zero = "none", .help = "latent attention: channels from which queries are computed"),
    INT("model.kv_lora", model.kv_lora, NULL, 1, DH_MODEL_MAX_WIDTH, FOR_DEEPSEEK, .aliases = "kv_lora_rank",
        .help = "latent attention: channels from which keys and values are computed"),
    INT("model.rope_dim", model.rope_dim, NULL, 2, DH_MODEL_MAX_HEAD_DIM, FOR_DEEPSEEK, .aliases = "qk_rope_head_dim",
        .help = "latent attention: last channels of a head, the only ones with rotary positions"),
    INT("model.v_dim", model.v_dim, NULL, 1, DH_MODEL_MAX_HEAD_DIM, FOR_DEEPSEEK, .aliases = "v_head_dim",
        .help = "latent attention: channels of a head's values, at most head_dim"),
    BOOL("model.rope_pairs", model.rope_pairs, NULL, FOR_DEEPSEEK, .aliases = "rope_interleave",
         .help = "rotary positions turn pairs of neighbouring channels, not pairs from the two halves"),
    INT("model.n_shared", model.n_shared, NULL, 0, DH_MODEL_MAX_EXPERTS, .families = DH_FOR_DEEPSEEK3 | DH_FOR_LLAMA4, .aliases = "n_shared_experts",
        .help = "shared experts: every token goes to them"),
    INT("model.n_groups", model.n_groups, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_DEEPSEEK, .aliases = "n_group",
        .help = "groups of experts; the router chooses groups first"),
    INT("model.top_groups", model.top_groups, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_DEEPSEEK, .aliases = "topk_group",
        .help = "groups from which a token's experts are chosen"),
    FLOAT("model.router_scale", model.router_scale, NULL, 0, 1e6, FOR_DEEPSEEK, .aliases = "routed_scaling_factor",
          .help = "factor applied to the weights of a token's experts"),
    FLOAT("model.dropout", dropout, "0", 0, 0.999999, .aliases = "resid_pdrop",
          .help = "probability of dropping a value of embedding, attention output and residual"),

    PATHS("data.train", train_files, n_train_files, .own = true,
          .help = "training texts or token files: files, folders, or patterns (data/*.jsonl.gz)"),
    TEXT("data.weights", data_weights, DH_SET_INTS, "",
         .help = "share of each entry of data.train in the samples, as in 7,2,1; empty: all entries form one "
                 "stream"),
    PATHS("data.val", val_files, n_val_files, .own = true, .help = "validation texts or token files"),
    TEXT("data.tokenizer", tokenizer, DH_SET_NAME_OR_PATH, "bytes", .own = true,
         .help = "bytes, chars, or the path of a tokenizer file or folder (GPT-2's: encoder.json and vocab.bpe)"),
    TEXT("data.text_field", text_field, DH_SET_STRING, "text",
         .help = "field of JSON lines that holds the text"),
    BOOL("data.special_tokens", special_tokens, "false",
         .help = "texts of special tokens (<|endoftext|>) in the data become these tokens; false: they are plain "
                 "text"),
    TEXT("data.cache", data_cache, DH_SET_PATH, "", .own = true,
         .help = "folder for tokenized text and unpacked compressed text; empty: nothing is kept"),
    FLOAT("data.val_fraction", val_fraction, "0.1", 0, 0.9,
         .help = "share at the end of data.train that is used for validation when data.val is not given"),
    ENUM("data.order", order, "shuffle", order_names,
         .help = "order of windows in an epoch: shuffled by seed, in file order, or at random offsets"),
    ENUM("data.packing", packing, "none", packing_names,
         .help = "how documents fill sequences. none: sequences are windows of the tokens. pack: whole documents "
                 "share a sequence without attending to each other, with padding at the end. group: as pack, but "
                 "documents are grouped by length, and each group has its own mesh (switch.groups)"),
    ENUM("data.format", format, "text", format_names,
         .help = "text: the loss counts every token. chat: each JSON line is a conversation (messages, "
                 "conversations, prompt and completion, or instruction and output), and the loss counts only its "
                 "answers; one per sequence, or several with packing pack"),
    TEXT("data.chat_template", chat_template, DH_SET_STRING, "auto",
         .help = "marks around the messages of a conversation: chatml, llama3, gemma, mistral, mistral-v7, phi3, "
                 "phi4, olmo2, deepseek, granite, command-r or plain; auto: recognised from the tokenizer's "
                 "chat_template"),

    TEXT("switch.groups", switch_groups, DH_SET_ENTRIES, "",
         .help = "with data.packing group: for each group its longest document and its mesh, as in [1024 dp=4, "
                 "8192 cp=2 tp=2]; lengths rise to train.seq_len. Mesh settings: dp, tp, pp, cp, schedule, "
                 "virtual_stages, layer_split, zero (0 or 1), sequence, bucket_mb, strategy, recompute, "
                 "micro_batch, and micro_batches per pass. Weights and optimizer state stay in the layout of "
                 "parallel.*, with any degree of ZeRO"),
    BOOL("switch.overlap", switch_overlap, "true",
         .help = "parameters move to the next group, and gradients back, during a group's computation; false: one "
                 "after the other, which saves the memory of one group's parameters, gradients and messages"),

    INT("train.steps", steps, "1000", 1, MANY, .aliases = "max_steps max_iters", .help = "optimizer steps"),
    INT("train.batch", global_batch, "8", 1, 1 << 30, .aliases = "batch_size global_batch global_batch_size",
        .unit = "sequences", .help = "global batch: sequences per optimizer step over all ranks"),
    INT("train.micro_batch", micro_batch, "auto", 0, 1 << 30, .aliases = "micro_batch_size",
        .unit = "sequences", .automatic = "batch/dp; 1 with pp > 1",
         .help = "sequences per micro-batch and data-parallel rank"),
    INT("train.seq_len", seq_len, "auto", 0, DH_MODEL_MAX_SEQ, .aliases = "seq_length block_size",
        .unit = "tokens", .automatic = "model's longest, at most 1024",
         .help = "sequence length T"),
    INT("train.seed", seed, "1337", 0, MANY, .help = "seed of weights, data order and dropout"),
    ENUM("train.dtype", dtype, "f32", dtype_names,
         .help = "type of computation; bf16 keeps float32 master weights"),
    ENUM("train.fp8", fp8, "off", fp8_names,
         .help = "8-bit operands in the layers' matrix multiplications, with one scale per row and column; needs "
                 "dtype bf16. e4m3: all operands; hybrid: e5m2 for gradients, e4m3 for the others"),
    INT("train.threads", threads, "auto", 0, 4096, .automatic = "cores / ranks", .own = true, .help = "OpenMP threads of a rank"),
    ENUM("train.capture", capture, "off", capture_names,
         .help = "device cuda: the commands of a step are captured once and launched as one CUDA graph. auto: if "
                 "all of them can be captured, otherwise the reason is printed; on: an error if they cannot"),
    ENUM("train.fuse_gelu", fuse_gelu, "auto", fuse_gelu_names,
         .help = "matrix multiplications apply GELU, or its gradient, to their results in the same operator; "
                 "auto: on devices that gain by it (cuda)"),
    ENUM("train.recompute", recompute, "none", recompute_names,
         .help = "activations that the backward pass computes again; attention: the attention scores only, which "
                 "our attention never keeps"),
    TEXT("train.init_from", init_from, DH_SET_PATH, "",
         .help = "initial weights: a checkpoint, or a safetensors file or folder; empty: new weights"),
    INT("train.log_every", log_every, "1", 0, MANY, .unit = "steps", .zero = "never",
         .help = "steps between progress lines on the terminal"),

    INT("lora.rank", model.lora.rank, "0", 0, 4096, .zero = "all weights are trained",
        .help = "rank of low-rank adapters on the linears of train.init_from's model; only adapters are trained"),
    FLOAT("lora.alpha", model.lora.alpha, "auto", 0, 1e6, .aliases = "lora_alpha", .automatic = "2 * rank",
          .help = "the adapters' output is multiplied by alpha / rank"),
    TEXT("lora.targets", model.lora.targets, DH_SET_NAMES, "all-linear", .aliases = "target_modules",
         .help = "linears with an adapter, as in q_proj,v_proj: the last part of Hugging Face's names; "
                 "all-linear: every linear of a layer except experts and routers"),
    TEXT("lora.init_from", lora_init_from, DH_SET_PATH, "",
         .help = "adapters to start from: a PEFT folder, or a checkpoint of a run with adapters; empty: new ones"),

    FLOAT("optimizer.lr", lr, "6e-4", 0, 1e3, .aliases = "learning_rate max_lr",
          .help = "highest learning rate (default: that of GPT-3 small)"),
    FLOAT("optimizer.min_lr", min_lr, "0", 0, 1e3, .help = "learning rate at the end of the schedule"),
    ENUM("optimizer.schedule", lr_schedule, "cosine", lr_names, .aliases = "lr_schedule",
         .help = "how the learning rate goes from lr to min_lr after the warm-up"),
    INT("optimizer.warmup_steps", warmup_steps, "0", 0, MANY, .aliases = "warmup warmup_iters", .unit = "steps",
        .help = "steps of linear rise to lr"),
    INT("optimizer.decay_steps", decay_steps, "auto", 0, MANY, .aliases = "lr_decay_iters lr_decay_steps", .unit = "steps",
        .automatic = "train.steps", .help = "step at which min_lr is reached"),
    FLOAT("optimizer.beta1", beta1, "0.9", 0, 0.9999999,
         .help = "AdamW: decay rate of the mean of gradients"),
    FLOAT("optimizer.beta2", beta2, "0.95", 0, 0.9999999,
         .help = "AdamW: decay rate of the mean of squared gradients (0.95: GPT-3, Llama)"),
    FLOAT("optimizer.eps", eps, "1e-8", 0, 1,
         .help = "AdamW: added to the root of the mean square"),
    FLOAT("optimizer.weight_decay", weight_decay, "0.1", 0, 10,
         .help = "weight decay of matrices; vectors have none (0.1: GPT-3, Llama)"),
    FLOAT("optimizer.grad_clip", grad_clip, "1", 0, 1e9, .zero = "off",
         .help = "largest norm of all gradients together; larger ones are scaled down"),
    FLOAT("optimizer.router_bias_rate", router_bias_rate, "0", 0, 1, FOR_DEEPSEEK, .zero = "off",
          .aliases = "moe_router_bias_update_rate",
          .help = "balance without a loss: each step changes an expert's router bias by this much, down if it had "
                  "more than its share of the tokens, up if it had less (DeepSeek V3: 0.001)"),
    BOOL("optimizer.post_validation", post_validation, "false", .aliases = "enable_optimizer_post_validation",
         .help = "pipelines: a stage updates its weights before the norm of all gradients is known. It keeps the "
                 "old values (12 bytes per updated weight, in the activations' memory) and repeats the update if "
                 "clipping or a value that is not finite requires it. The bits are the same"),
    ENUM("optimizer.fuse", fuse, "auto", fuse_names,
         .help = "zero 1 and 2: minimum number of pieces per gradient bucket. One piece is reduced, updated and "
                 "gathered during the same work for the next, before the norm of all gradients is known. With "
                 "grad_clip this keeps 12 bytes per updated weight and gathers after the norm. The bits are the "
                 "same. auto: by costs with strategy coconet, else off"),

    INT("eval.every", eval_every, "100", 0, MANY, .unit = "steps", .zero = "never",
         .help = "steps between validations"),
    INT("eval.batches", eval_batches, "20", 0, MANY, .zero = "all windows",
         .help = "global batches per validation"),

    BOOL("metrics.tensorboard", tensorboard, "false",
         .help = "also write metrics as TensorBoard event files, to tensorboard/ in the run folder"),
    INT("trace.step", trace_step, "0", 0, MANY, .unit = "step", .zero = "none",
        .help = "step whose timeline is written to trace-rank*.json in the run folder, for Perfetto; a step after "
                "the last means the last"),

    INT("checkpoint.every", checkpoint_every, "0", 0, MANY, .unit = "steps", .zero = "only at the end",
         .help = "steps between checkpoints of weights and optimizer state"),
    BOOL("checkpoint.last", checkpoint_last, "true",
         .help = "write a checkpoint after the last step. false: only those of checkpoint.every. A run that is "
                 "stopped still writes one"),
    BOOL("checkpoint.async", checkpoint_async, "false",
         .help = "checkpoints are written in the background: a thread of each rank copies the rank's share and "
                 "writes the copy during training. The copies take 12 bytes per weight, divided among the "
                 "data-parallel ranks (`dhelix check` prints it)"),
    INT("checkpoint.keep", checkpoint_keep, "2", 0, MANY, .zero = "all",
         .help = "number of newest checkpoints to keep"),

    ENUM("spike.action", spike_action, "off", spike_names,
         .help = "what happens when loss or gradient norm leaves the band of recent steps. off: nothing; stop: "
                 "the run ends before the step is saved; back: the run returns to the last good checkpoint and "
                 "skips the data since"),
    INT("spike.window", spike_window, "32", 4, DH_SPIKE_MAX_WINDOW, .unit = "steps",
         .help = "number of recent steps that define the band"),
    FLOAT("spike.deviations", spike_deviations, "8", 0.1, 1e6,
          .help = "width of the band above the median of these steps, in mean deviations"),
    INT("spike.most", spike_most, "10", 0, MANY,
         .help = "how often a run goes back before it stops"),

    ENUM("elastic.action", elastic_action, "stop", elastic_names,
         .help = "what happens when a rank is lost. stop: the run ends with a message that names the rank. "
                 "continue: the run goes on with fewer ranks and the same batch, on the largest mesh whose tp, "
                 "cp, pp and ep divide the old ones. State comes from the other ranks' memory if they hold all of "
                 "it (parallel.zero 0), else from the newest checkpoint. MPI processes end either way; `dhelix "
                 "launch` starts them again with fewer ranks"),
    INT("elastic.min_ranks", elastic_min_ranks, "1", 1, DEGREE_MAX,
         .help = "the run ends when fewer ranks are left"),

    INT("parallel.dp", dp, "auto", 0, DEGREE_MAX, .automatic = "ranks/(tp*pp*cp)",
         .help = "data-parallel ranks"),
    INT("parallel.tp", tp, "1", 1, DEGREE_MAX,
         .help = "tensor-parallel ranks; if there are more of them than model.n_kv_heads, several share a "
                 "key/value head"),
    INT("parallel.pp", pp, "1", 1, DEGREE_MAX,
         .help = "pipeline stages"),
    INT("parallel.cp", cp, "1", 1, DEGREE_MAX,
         .help = "context-parallel ranks"),
    ENUM("parallel.cp_linear", cp_linear, "lasp2", cp_linear_names,
         .help = "context parallelism of linear attention. lasp2: one all-gather of states in each direction; "
                 "lasp1: states are passed from rank to rank, cp - 1 times (not with model.softmax_every)"),
    ENUM("parallel.cp_grad_dtype", cp_grad_dtype, "compute", cp_grad_names,
         .help = "type in which context-parallel ranks exchange gradients of keys and values. compute: the type "
                 "of train.dtype; float32: rounded once, at the end"),
    INT("parallel.ep", ep, "1", 1, DEGREE_MAX,
         .help = "expert-parallel ranks, inside dp"),
    INT("parallel.virtual_stages", vpp, "1", 1, DH_MODEL_MAX_LAYERS,
         .help = "model chunks per pipeline stage"),
    TEXT("parallel.schedule", schedule, DH_SET_NAME_OR_PATH, "1f1b",
         .help = "a row of `dhelix list schedules`, or a schedule in a CSV file"),
    TEXT("parallel.layer_split", layer_split, DH_SET_SPLIT, "", .automatic = "the split with the shortest simulated step",
         .help = "layers of each chunk in model order, as in 3,4,4,3. -1: one fewer than an even share; *: an "
                 "even share of the layers not listed; empty: all even"),
    INT("parallel.max_activations", max_activations, "auto", 0, DEGREE_MAX, .automatic = "pp",
        .unit = "micro-batches",
        .help = "schedule zb-auto: most activations that a stage keeps; 2 * pp removes its bubble"),
    FLOAT("parallel.wgrad_share", wgrad_share, "auto", 0.001, 1, .automatic = "computed from the model's layers",
        .help = "schedule zb-auto: share of an activation that is kept between input gradients and weight "
                "gradients"),
    ENUM("parallel.expert_rows", expert_rows, "whole", tp_rows_names,
         .help = "what tensor-parallel ranks that have columns of the same experts send. whole: each sends whole "
                 "rows; shared: each sends its share of a row's columns, which they gather at the experts; auto: "
                 "whichever is faster by costs"),
    INT("parallel.expert_tp", expert_tp, "auto", 0, DEGREE_MAX, .automatic = "tp", FOR_EXPERTS,
        .help = "tensor-parallel ranks that share an expert. tp: each rank has some columns of every expert and "
                "receives all rows; 1: experts are spread over the tp ranks too, and each rank sends only its own "
                "share of rows"),
    BOOL("parallel.sequence", sequence_parallel, "true",
         .help = "sequence parallelism: tensor-parallel ranks split the tokens between linears; false: every rank "
                 "holds all tokens there"),
    INT("parallel.zero", zero, "0", 0, 3,
        .help = "what data-parallel (and context-parallel) ranks shard. 1: optimizer state; 2: gradients too, "
                "reduced to shards in the backward; 3: parameters too, gathered block by block"),
    INT("parallel.prefetch", prefetch, "1", 0, DH_MODEL_MAX_LAYERS, .unit = "blocks",
        .help = "zero 3: number of blocks by which gathering runs ahead of the computation"),
    {.key = "parallel.reshard_after_forward", .type = DH_SET_ENUM_OR_INT, AT(reshard), .fallback = "true", .names = reshard_names,
         .min = 2, .max = DEGREE_MAX, .unit = "ranks",
         .help = "zero 3: what happens to gathered parameters after a block's forward. true: released; false: "
                 "kept until its backward; node: kept as shards over a node's ranks; a number: kept as shards "
                 "over so many neighbours"},
    ENUM("parallel.regather", regather, "micro-batch", regather_names,
         .help = "zero 3: parameters are gathered for each micro-batch, or once for successive micro-batches of a "
                 "virtual stage (with schedule looped-bfs: all of a step)"),
    ENUM("parallel.gather", gather, "optimizer", gather_names,
         .help = "zero 1 and 2: parameters are gathered after the optimizer, or during the next step's first "
                 "forwards, each bucket before its first use"),
    ENUM("parallel.gradient_sync", gradient_sync, "last", gradient_sync_names,
         .help = "zero 2 and 3: last: gradients are accumulated whole and reduced with the last micro-batch; "
                 "every: each micro-batch's gradients are reduced, and only shards are kept"),
    ENUM("parallel.grad_dtype", grad_dtype, "float32", grad_names,
         .help = "type in which data-parallel ranks reduce gradients: float32; or compute, the type of train.dtype, "
                 "which halves the bytes in bf16. Each rank adds its micro-batches in float32, rounds the sum for "
                 "the transfer, and steps by the result in float32"),
    FLOAT("parallel.bucket_mb", bucket_mb, "auto", 0.001, 1e6, .unit = "MB",
          .automatic = "4 for each rank that reduces together, at least 25",
          .help = "size of one gradient reduction: small neighbouring blocks are reduced together, larger blocks "
                  "in pieces"),
    FLOAT("parallel.timeout_s", timeout_s, "auto", 0.001, 1e6, .unit = "s",
          .automatic = "20 times the slowest step so far, at least 60; before the first step 600",
         .help = "longest wait for another rank; then the run ends and names the rank that is missing"),
    ENUM("parallel.mpi_wait", mpi_wait, "yield", mpi_wait_names,
         .help = "how MPI calls wait. yield and sleep leave the core to computation; block keeps the core and "
                 "notices no timeout"),
    ENUM("parallel.gpu_comm", gpu_comm, "auto", gpu_comm_names,
         .help = "device cuda: how ranks communicate. nccl: NCCL on the ranks' streams; device: copies on the "
                 "GPU, for threads that share one; host: through host memory; auto: each group uses the first of "
                 "these that is possible"),
    INT("parallel.gpu_comm_sms", gpu_comm_sms, "auto", 0, 64,
        .automatic = "none are held: calls use as many as fill their links, 16 inside a node and 8 between nodes, and "
                     "matrix multiplications are planned for all",
        .help = "SMs of a GPU that communication on one stream holds; matrix multiplications are planned for the "
                "rest"),
    BOOL("parallel.gpu_comm_search", gpu_comm_search, "false",
         .help = "hold the number of SMs with the shortest simulated step, or none, by a cluster file or a profile"),

    INT("topology.nodes", nodes, "auto", 0, DEGREE_MAX, .automatic = "ranks / ranks_per_node, or 1",
         .help = "number of nodes, each with consecutive ranks"),
    INT("topology.ranks_per_node", ranks_per_node, "auto", 0, DEGREE_MAX, .automatic = "ranks / nodes",
         .help = "ranks per node"),

    FLOAT("links.local.gbps", link_local.gbps, "0", 0, 1e9, .unit = "Gbit/s", .zero = "not paced",
         .help = "pace of transfers inside a node"),
    FLOAT("links.local.latency_us", link_local.latency_us, "0", 0, 1e9, .unit = "us",
         .help = "latency added to each transfer inside a node"),
    FLOAT("links.cross.gbps", link_cross.gbps, "0", 0, 1e9, .unit = "Gbit/s", .zero = "not paced",
         .help = "pace of transfers between nodes"),
    FLOAT("links.cross.latency_us", link_cross.latency_us, "0", 0, 1e9, .unit = "us",
         .help = "latency added to each transfer between nodes"),

    TEXT("slow.ranks", slow_ranks, DH_SET_INTS, "",
         .help = "simulated stragglers: ranks whose computation takes slow.factor times as long"),
    FLOAT("slow.factor", slow_factor, "1", 0.001, 1e6,
         .help = "how many times as long slow.ranks compute"),
    TEXT("slow.links", slow_links, DH_SET_INTS, "",
         .help = "simulated slow links: ranks whose communication takes slow.link_factor times as long"),
    TEXT("slow.nodes", slow_nodes, DH_SET_INTS, "",
         .help = "simulated slow links: nodes whose communication with other nodes takes slow.link_factor times "
                 "as long"),
    FLOAT("slow.link_factor", slow_link_factor, "1", 0.001, 1e6,
         .help = "how many times as long slow.links and slow.nodes communicate"),

    ENUM("moe.mode", moe_mode, "dropless", moe_names,
         .help = "dropless: buffers have the size that is needed, up to a bound; capacity: buffers have a fixed "
                 "size, and tokens beyond it are dropped"),
    FLOAT("moe.capacity", moe_capacity, "2", 0.01, 1e6,
         .help = "size of an expert's buffer, as a multiple of its even share (dropless: the bound)"),
    ENUM("moe.dispatch", moe_dispatch, "flat", dispatch_names,
         .help = "how tokens travel to experts on other nodes. flat: a copy for each of a token's experts; node: "
                 "one copy for each node that has some of them, which sums their results before they go back; "
                 "auto: whichever is faster by costs"),
    FLOAT("moe.load", moe_load, "1", 1, 1e6,
          .help = "for predictions and orders: rows of the busiest expert, as a multiple of an even share. The "
                  "rank with the most rows sets the pace of its layer; 1: balanced"),
    TEXT("moe.recorded", moe_recorded, DH_SET_PATH, "", .own = true,
         .help = "run folder whose recorded expert load (experts.json) replaces moe.load; empty: moe.load"),

    TEXT("stages.forward_ms", stage_ms[DH_STAGE_FORWARD], DH_SET_REALS, "",
         .help = "simulate only, instead of a model: time of a virtual stage's forward; one number for all "
                 "stages, or one per stage"),
    TEXT("stages.input_ms", stage_ms[DH_STAGE_INPUT], DH_SET_REALS, "",
         .help = "time of the input gradients of a virtual stage's backward, for which other stages wait"),
    TEXT("stages.weight_ms", stage_ms[DH_STAGE_WEIGHT], DH_SET_REALS, "",
         .help = "time of the weight gradients of a virtual stage's backward"),
    FLOAT("stages.transfer_ms", stage_transfer_ms, "0", 0, 1e9, .unit = "ms",
          .help = "time from the end of a stage's work until another rank has its result"),
};
/* clang-format on */

const dh_setting *dh_settings(size_t *n)
{
    *n = DH_COUNTOF(settings);
    return settings;
}

/* ---- lookup ---------------------------------------------------------------------- */

bool dh_setting_has_alias(const dh_setting *s, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = s->aliases; p && *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, word, n) == 0) return true;
        p += len + strspn(p + len, " ");
    }
    return false;
}

const dh_setting *dh_setting_find(const char *key)
{
    for (size_t i = 0; i < DH_COUNTOF(settings); i++)
        if (strcmp(settings[i].key, key) == 0) return &settings[i];
    for (size_t i = 0; i < DH_COUNTOF(settings); i++)
        if (dh_setting_same_section(settings[i].key, key) &&
            dh_setting_has_alias(&settings[i], dh_setting_last_part(key)))
            return &settings[i];
    return NULL;
}

bool dh_setting_is_section(const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < DH_COUNTOF(settings); i++)
        if (strncmp(settings[i].key, key, n) == 0 && settings[i].key[n] == '.') return true;
    return false;
}

bool dh_setting_in_model(const dh_setting *s)
{
    return s->offset >= offsetof(dh_job, model) &&
           s->offset < offsetof(dh_job, model) + sizeof(dh_model);
}
