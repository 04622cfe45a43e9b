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
                   DH_FAMILY_DEEPSEEK3 == 12 && DH_FAMILY_GPT_OSS == 13 && DH_FAMILY_LLAMA4 == 14,
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
                DH_FOR_GEMMA2 | DH_FOR_GEMMA3 | DH_FOR_GPT_OSS | DH_FOR_LLAMA4
#define FOR_WINDOW_LAYERS                                                                          \
    .families = DH_FOR_QWEN2 | DH_FOR_QWEN3 | DH_FOR_GEMMA2 | DH_FOR_GEMMA3 | DH_FOR_GPT_OSS |     \
                DH_FOR_LLAMA4
#define FOR_GEMMA .families = DH_FOR_GEMMA2 | DH_FOR_GEMMA3
#define FOR_EXPERTS                                                                                \
    .families =                                                                                    \
        DH_FOR_MIXTRAL | DH_FOR_QWEN3_MOE | DH_FOR_DEEPSEEK3 | DH_FOR_GPT_OSS | DH_FOR_LLAMA4
#define FOR_DENSE_LAYERS .families = DH_FOR_QWEN3_MOE | DH_FOR_DEEPSEEK3 | DH_FOR_LLAMA4
#define FOR_DEEPSEEK .families = DH_FOR_DEEPSEEK3
#define FOR_LINEAR .families = DH_FOR_LLAMA | DH_FOR_MIXTRAL
#define FOR_GPT2 .families = DH_FOR_GPT2

/* clang-format off */
static const dh_setting settings[] = {
    INT("ranks", ranks, "auto", 0, DEGREE_MAX, .automatic = "dp*tp*pp*cp",
        .help = "ranks of the run; the flag --ranks and the launcher set it"),
    TEXT("out", out_dir, DH_SET_PATH, "run",
         .help = "run folder: checkpoints, metrics, reports"),
    TEXT("strategy", strategy, DH_SET_FLOW, "sequential",
         .help = "how communication is hidden: a row of `dhelix list strategies`; passes added to one, "
                 "ring-gemm(both)+dhelix; or {passes: [ring-gemm], schedule: dhelix-w, order: auto}; "
                 "auto: the row whose simulated step is shortest"),
    TEXT("device", device, DH_SET_STRING, "auto",
         .help = "what executes programs: a row of `dhelix list devices`; auto: that of DHELIX_DEVICE, else cpu"),
    TEXT("system", system, DH_SET_STRING, "dhelix",
         .help = "whose software is simulated: a row of `dhelix list systems`, and traits that it has beside, "
                 "as megatron-core+scores; what is trained is ours, dhelix"),

    TEXT("overlap.policy", overlap_policy, DH_SET_STRING, "auto",
         .help = "order of co-executed operators: a row of `dhelix list policies`; auto: the strategy's"),
    ENUM("overlap.barriers", overlap_barriers, "auto", barrier_names,
         .help = "between paired segments: full (DHelix's paper), events; auto: the strategy's"),
    BOOL("overlap.local", overlap_local, "true",
         .help = "node-local communication (TP) may run beside the other strand"),
    BOOL("overlap.cross", overlap_cross, "true",
         .help = "communication between nodes (CP, EP) may run beside the other strand"),
    BOOL("overlap.comm_comm", overlap_comm_comm, "true",
         .help = "communication of one strand may run beside that of the other"),
    BOOL("overlap.wgrad", overlap_wgrad, "true",
         .help = "weight gradients may leave their place"),
    FLOAT("overlap.memory", overlap_memory, "1.5", 0, 1e6, .unit = "blocks",
         .help = "memory that orders may take over one strand alone, in blocks' activations: less is slower"),
    TEXT("profile", profile, DH_SET_NAME_OR_PATH, "auto", .own = true,
         .help = "measured times of operators: auto takes what `dhelix profile` left for such a job, measure also measures what is missing before training, none estimates, or a file"),

    TEXT("model", model_spec, DH_SET_MODEL, NULL,
         .help = "a preset (`dhelix list models`), a config.json or its folder, or a mapping of the keys below"),
    TEXT("model.preset", model_spec, DH_SET_MODEL, NULL, .help = "preset that the other keys change"),
    TEXT("model.config", model_spec, DH_SET_MODEL, NULL, .help = "config.json that the other keys change"),
    TEXT("model.name", model.name, DH_SET_CHARS, NULL, .help = "name for reports"),
    ENUM("model.family", model.family, NULL, dh_family_names, .aliases = "model_type",
         .help = "architecture; needed without preset or config, fixed with one"),
    INT("model.n_layers", model.n_layers, NULL, 1, DH_MODEL_MAX_LAYERS,
        .aliases = "num_hidden_layers n_layer", .help = "layers"),
    INT("model.width", model.width, NULL, 1, DH_MODEL_MAX_WIDTH, .aliases = "hidden_size n_embd",
        .help = "hidden size C"),
    INT("model.n_heads", model.n_heads, NULL, 1, DH_MODEL_MAX_HEADS,
        .aliases = "num_attention_heads n_head", .help = "query heads"),
    INT("model.n_kv_heads", model.n_kv_heads, NULL, 1, DH_MODEL_MAX_HEADS,
        .aliases = "num_key_value_heads", .help = "key/value heads; follows n_heads where they were equal"),
    INT("model.head_dim", model.head_dim, NULL, 1, DH_MODEL_MAX_HEAD_DIM,
        .help = "channels of a head; follows width / n_heads"),
    INT("model.ffn_width", model.ffn_width, NULL, 1, DH_MODEL_MAX_FFN,
        .aliases = "intermediate_size n_inner", .help = "feed-forward width (per expert); gpt2: follows 4 * width"),
    INT("model.vocab", model.vocab, NULL, 0, DH_MODEL_MAX_VOCAB, .automatic = "the tokenizer's",
        .aliases = "vocab_size", .help = "vocabulary V"),
    INT("model.max_seq", model.max_seq, NULL, 1, DH_MODEL_MAX_SEQ,
        .aliases = "max_position_embeddings n_positions", .unit = "tokens", .help = "longest sequence"),
    INT("model.window", model.window, NULL, 0, DH_MODEL_MAX_SEQ, FOR_WINDOW, .aliases = "sliding_window",
        .unit = "tokens", .zero = "none", .help = "tokens that one sees, itself the last of them: sliding-window attention"),
    INT("model.window_from", model.window_from, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_WINDOW_LAYERS, .aliases = "max_window_layers",
        .unit = "layers", .help = "first layers, which see all nevertheless"),
    INT("model.window_every", model.window_every, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_WINDOW_LAYERS,
        .zero = "none", .help = "every so manieth layer sees all, too: 6, the 6th, 12th and so on"),
    ENUM("model.attention", model.attention, NULL, dh_attention_kind_names, FOR_LINEAR,
         .help = "softmax of scores, or linear: sums of k v^T, of one size whatever the length, and a norm of every head"),
    INT("model.softmax_every", model.softmax_every, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_LINEAR, .unit = "layers",
        .zero = "none", .help = "with linear attention: every so manieth layer has softmax instead; 4: the 4th, 8th and so on; with parallel.cp as in LASP-2H"),
    ENUM("model.feature_map", model.feature_map, NULL, dh_feature_map_names, FOR_LINEAR,
         .help = "linear attention: of queries and keys, channel by channel; elu: 1 + elu(x)"),
    BOOL("model.tied_head", model.tied_head, NULL, .aliases = "tie_word_embeddings",
         .help = "the head shares the token embedding"),
    BOOL("model.bias", model.bias, NULL, FOR_GPT2, .help = "biases in linears and LayerNorm"),
    FLOAT("model.norm_eps", model.norm_eps, NULL, 0, 1,
          .aliases = "rms_norm_eps layer_norm_epsilon layer_norm_eps", .help = "added to the variance in norms"),
    FLOAT("model.init_std", model.init_std, NULL, 0, 1e6, .aliases = "initializer_range",
          .help = "standard deviation of initial weights"),
    FLOAT("model.rope_theta", model.rope.theta, NULL, 0, 1e15, FOR_ROPE, .help = "base of rotary positions"),
    ENUM("model.rope_scaling", model.rope.scaling, NULL, dh_rope_scaling_names, FOR_ROPE,
         .help = "stretching of rotary positions"),
    FLOAT("model.rope_factor", model.rope.factor, NULL, 0, 1e9, FOR_ROPE, .help = "by how much (linear, llama3, yarn)"),
    FLOAT("model.rope_low_freq_factor", model.rope.low_freq_factor, NULL, 0, 1e9, FOR_ROPE, .help = "llama3"),
    FLOAT("model.rope_high_freq_factor", model.rope.high_freq_factor, NULL, 0, 1e9, FOR_ROPE, .help = "llama3"),
    INT("model.rope_original_max_seq", model.rope.original_max_seq, NULL, 0, DH_MODEL_MAX_SEQ, FOR_ROPE,
        .unit = "tokens", .help = "llama3, yarn: length of the first training"),
    FLOAT("model.rope_beta_fast", model.rope.beta_fast, NULL, 0, 1e9, FOR_ROPE, .help = "yarn: turns above which channels stay"),
    FLOAT("model.rope_beta_slow", model.rope.beta_slow, NULL, 0, 1e9, FOR_ROPE, .help = "yarn: turns below which channels are stretched"),
    FLOAT("model.rope_mscale", model.rope.mscale, NULL, 0, 1e9, FOR_ROPE, .aliases = "mscale",
          .help = "yarn: weight of ln(factor) in the magnitude of rotations"),
    FLOAT("model.rope_mscale_all", model.rope.mscale_all, NULL, 0, 1e9, FOR_ROPE, .aliases = "mscale_all_dim",
          .help = "yarn: weight of ln(factor) that is divided out of it again; deepseek_v3 scales scores by it"),
    FLOAT("model.rope_magnitude", model.rope.magnitude, NULL, 0, 1e9, FOR_ROPE, .aliases = "attention_factor",
          .zero = "by factor and mscale", .help = "yarn: magnitude of rotations"),
    INT("model.nth", model.nth, NULL, 0, DH_MODEL_MAX_LAYERS, .families = DH_FOR_SMOLLM3 | DH_FOR_GEMMA3 | DH_FOR_LLAMA4,
        .aliases = "no_rope_layer_interval sliding_window_pattern", .unit = "layers", .zero = "none",
        .help = "of so many layers the last has other rotary positions (gemma3_text), or none (smollm3, llama4_text)"),
    FLOAT("model.nth_rope_theta", model.rope_nth.theta, NULL, 0, 1e15, .families = DH_FOR_GEMMA3,
          .help = "base of rotary positions there"),
    ENUM("model.nth_rope_scaling", model.rope_nth.scaling, NULL, dh_rope_scaling_names, .families = DH_FOR_GEMMA3,
         .help = "stretching of rotary positions there"),
    FLOAT("model.nth_rope_factor", model.rope_nth.factor, NULL, 0, 1e9, .families = DH_FOR_GEMMA3,
          .help = "by how much (linear)"),
    FLOAT("model.query_scalar", model.query_scalar, NULL, 0, 1e9, FOR_GEMMA, .aliases = "query_pre_attn_scalar",
          .zero = "head_dim", .help = "scores of attention are divided by its root"),
    FLOAT("model.attn_softcap", model.attn_softcap, NULL, 0, 1e9, .families = DH_FOR_GEMMA2,
          .aliases = "attn_logit_softcapping", .zero = "none",
          .help = "scores s of attention stay between this and its negative: c tanh(s / c)"),
    FLOAT("model.logit_softcap", model.logit_softcap, NULL, 0, 1e9, FOR_GEMMA, .aliases = "final_logit_softcapping",
          .zero = "none", .help = "logits stay between this and its negative: c tanh(logits / c)"),
    INT("model.n_experts", model.n_experts, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_EXPERTS,
        .aliases = "num_local_experts num_experts", .help = "experts of a layer"),
    INT("model.dense_first", model.dense_first, NULL, 0, DH_MODEL_MAX_LAYERS, FOR_DENSE_LAYERS,
        .aliases = "first_k_dense_replace", .unit = "layers", .zero = "none", .help = "first layers, which have no experts"),
    INT("model.moe_every", model.moe_every, NULL, 0, DH_MODEL_MAX_LAYERS, .families = DH_FOR_QWEN3_MOE | DH_FOR_LLAMA4,
        .unit = "layers", .zero = "all",
        .help = "of the others every so manieth has experts: 2, the 2nd, 4th and so on"),
    INT("model.dense_width", model.dense_width, NULL, 0, DH_MODEL_MAX_FFN, FOR_DENSE_LAYERS, .zero = "none",
        .help = "feed-forward width of layers without experts"),
    INT("model.top_k", model.top_k, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_EXPERTS,
        .aliases = "num_experts_per_tok", .help = "experts a token is sent to"),
    BOOL("model.topk_plain", model.topk_plain, NULL, .families = DH_FOR_QWEN3_MOE | DH_FOR_DEEPSEEK3,
         .help = "a token's experts count by their probabilities as they are, which then do not sum to 1 (norm_topk_prob: false)"),
    FLOAT("model.router_aux_coef", model.router_aux_coef, NULL, 0, 1e6, FOR_EXPERTS,
          .aliases = "router_aux_loss_coef", .help = "weight of the load-balancing loss"),
    INT("model.q_lora", model.q_lora, NULL, 0, DH_MODEL_MAX_WIDTH, FOR_DEEPSEEK, .aliases = "q_lora_rank",
        .zero = "none", .help = "channels that queries are made of: latent attention"),
    INT("model.kv_lora", model.kv_lora, NULL, 1, DH_MODEL_MAX_WIDTH, FOR_DEEPSEEK, .aliases = "kv_lora_rank",
        .help = "channels that keys and values are made of"),
    INT("model.rope_dim", model.rope_dim, NULL, 2, DH_MODEL_MAX_HEAD_DIM, FOR_DEEPSEEK, .aliases = "qk_rope_head_dim",
        .help = "last channels of a head, which alone have rotary positions"),
    INT("model.v_dim", model.v_dim, NULL, 1, DH_MODEL_MAX_HEAD_DIM, FOR_DEEPSEEK, .aliases = "v_head_dim",
        .help = "channels of a head's values, at most head_dim"),
    BOOL("model.rope_pairs", model.rope_pairs, NULL, FOR_DEEPSEEK, .aliases = "rope_interleave",
         .help = "rotary positions turn neighbours, not halves"),
    INT("model.n_shared", model.n_shared, NULL, 0, DH_MODEL_MAX_EXPERTS, .families = DH_FOR_DEEPSEEK3 | DH_FOR_LLAMA4, .aliases = "n_shared_experts",
        .help = "experts that every token goes to"),
    INT("model.n_groups", model.n_groups, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_DEEPSEEK, .aliases = "n_group",
        .help = "groups of experts that a router chooses from first"),
    INT("model.top_groups", model.top_groups, NULL, 1, DH_MODEL_MAX_EXPERTS, FOR_DEEPSEEK, .aliases = "topk_group",
        .help = "groups that a token's experts are of"),
    FLOAT("model.router_scale", model.router_scale, NULL, 0, 1e6, FOR_DEEPSEEK, .aliases = "routed_scaling_factor",
          .help = "factor of the weights of a token's experts"),
    FLOAT("model.dropout", dropout, "0", 0, 0.999999, .aliases = "resid_pdrop",
          .help = "probability of dropping: embedding, attention output, residual"),

    PATHS("data.train", train_files, n_train_files, .own = true,
          .help = "training texts or token files, folders of them, or patterns (data/*.jsonl.gz)"),
    TEXT("data.weights", data_weights, DH_SET_INTS, "",
         .help = "shares of the samples, one an entry of data.train: 7,2,1; empty: the entries are one stream"),
    PATHS("data.val", val_files, n_val_files, .own = true, .help = "validation texts or token files"),
    TEXT("data.tokenizer", tokenizer, DH_SET_NAME_OR_PATH, "bytes", .own = true,
         .help = "bytes, chars, or the path of a tokenizer file or folder (GPT-2's: encoder.json and vocab.bpe)"),
    TEXT("data.text_field", text_field, DH_SET_STRING, "text", .help = "field of JSON lines that holds the text"),
    BOOL("data.special_tokens", special_tokens, "false",
         .help = "texts of the tokenizer's special tokens (<|endoftext|>) in the data become those tokens; false: they are "
                 "text like any other"),
    TEXT("data.cache", data_cache, DH_SET_PATH, "", .own = true, .help = "folder that keeps tokenized text, and compressed text unpacked; empty: none"),
    FLOAT("data.val_fraction", val_fraction, "0.1", 0, 0.9, .help = "tail of data.train used where data.val is not given"),
    ENUM("data.order", order, "shuffle", order_names,
         .help = "windows of an epoch in seeded order, in file order, or at random offsets"),
    ENUM("data.packing", packing, "none", packing_names,
         .help = "none: sequences are windows of the tokens; pack: whole documents side by side in sequences, which do not "
                 "see each other, padded at the end; group: the documents of the same sequences by length, with a mesh for each "
                 "of switch.groups"),
    ENUM("data.format", format, "text", format_names,
         .help = "text: every token is learnt; chat: JSON lines are conversations (messages, conversations, prompt and "
                 "completion, or instruction and output), of which the answers alone are; one a sequence, or by packing pack several"),
    TEXT("data.chat_template", chat_template, DH_SET_STRING, "auto",
         .help = "marks around the messages of a conversation: chatml, llama3, gemma, mistral, mistral-v7, phi3, phi4, olmo2, "
                 "deepseek, granite, command-r or plain; auto: those of "
                 "the tokenizer's chat_template, where it is one of these"),

    TEXT("switch.groups", switch_groups, DH_SET_ENTRIES, "",
         .help = "with data.packing group: the most tokens a document of a group has, rising to train.seq_len, and the mesh "
                 "that trains it, as [1024 dp=4, 8192 cp=2 tp=2]: dp, tp, pp, cp, schedule, virtual_stages, layer_split, "
                 "zero, sequence, bucket_mb, strategy, recompute, micro_batch, and micro_batches of one pass of its "
                 "program; parallel.* is where weights and optimizer live, there with any degree of zero, in groups with 0 or 1"),
    BOOL("switch.overlap", switch_overlap, "true",
         .help = "parameters move to the next group, and gradients back, while a group is computed; false: one after the "
                 "other, in less memory: that of one group's parameters and gradients, and of messages"),

    INT("train.steps", steps, "1000", 1, MANY, .aliases = "max_steps max_iters", .help = "optimizer steps"),
    INT("train.batch", global_batch, "8", 1, 1 << 30, .aliases = "batch_size global_batch global_batch_size",
        .unit = "sequences", .help = "per optimizer step, over all ranks"),
    INT("train.micro_batch", micro_batch, "auto", 0, 1 << 30, .aliases = "micro_batch_size",
        .unit = "sequences", .automatic = "batch/dp; 1 with pp > 1", .help = "per micro-batch and data-parallel rank"),
    INT("train.seq_len", seq_len, "auto", 0, DH_MODEL_MAX_SEQ, .aliases = "seq_length block_size",
        .unit = "tokens", .automatic = "model's longest, at most 1024", .help = "sequence length T"),
    INT("train.seed", seed, "1337", 0, MANY, .help = "of weights, data order and dropout"),
    ENUM("train.dtype", dtype, "f32", dtype_names, .help = "of computation; bf16 keeps float32 master weights"),
    ENUM("train.fp8", fp8, "off", fp8_names,
         .help = "operands of layers' products, rounded to 8 bits, each row and column with its own scale: e4m3 all; hybrid "
                 "gradients e5m2, others e4m3; with dtype bf16"),
    INT("train.threads", threads, "auto", 0, 4096, .automatic = "cores / ranks", .own = true, .help = "OpenMP threads of a rank"),
    ENUM("train.capture", capture, "off", capture_names,
         .help = "device cuda: a step's commands are captured once and launched as one (CUDA graph); auto: where all of them can be, "
                 "else it is said why not; on: or it is an error"),
    ENUM("train.fuse_gelu", fuse_gelu, "auto", fuse_gelu_names,
         .help = "products make GELU, and its gradient, of what they compute, in one operator: auto: where the device gains by it "
                 "(cuda), off, on"),
    ENUM("train.recompute", recompute, "none", recompute_names, .help = "activations computed again in backward; attention: its scores alone, which our attention never keeps"),
    TEXT("train.init_from", init_from, DH_SET_PATH, "", .help = "checkpoint, or safetensors file or folder; empty: new weights"),
    INT("train.log_every", log_every, "1", 0, MANY, .unit = "steps", .zero = "never", .help = "progress line on the terminal"),

    INT("lora.rank", model.lora.rank, "0", 0, 4096, .zero = "all weights are trained",
        .help = "low-rank adapters beside linears of train.init_from's model, which alone are trained"),
    FLOAT("lora.alpha", model.lora.alpha, "auto", 0, 1e6, .aliases = "lora_alpha", .automatic = "2 * rank",
          .help = "what adapters give is multiplied by alpha / rank"),
    TEXT("lora.targets", model.lora.targets, DH_SET_NAMES, "all-linear", .aliases = "target_modules",
         .help = "linears that have one, as q_proj,v_proj: the last part of Hugging Face's names; all-linear: all of "
                 "a layer but experts and routers"),
    TEXT("lora.init_from", lora_init_from, DH_SET_PATH, "",
         .help = "adapters to go on from: a folder of PEFT's, or a checkpoint of such a run; empty: new ones"),

    FLOAT("optimizer.lr", lr, "6e-4", 0, 1e3, .aliases = "learning_rate max_lr",
          .help = "highest learning rate (default: GPT-3 small's)"),
    FLOAT("optimizer.min_lr", min_lr, "0", 0, 1e3, .help = "learning rate at the end of the schedule"),
    ENUM("optimizer.schedule", lr_schedule, "cosine", lr_names, .aliases = "lr_schedule", .help = "from lr to min_lr after the warm-up"),
    INT("optimizer.warmup_steps", warmup_steps, "0", 0, MANY, .aliases = "warmup warmup_iters", .unit = "steps",
        .help = "linear rise to lr"),
    INT("optimizer.decay_steps", decay_steps, "auto", 0, MANY, .aliases = "lr_decay_iters lr_decay_steps", .unit = "steps",
        .automatic = "train.steps", .help = "step at which min_lr is reached"),
    FLOAT("optimizer.beta1", beta1, "0.9", 0, 0.9999999, .help = "AdamW: memory of the mean"),
    FLOAT("optimizer.beta2", beta2, "0.95", 0, 0.9999999, .help = "AdamW: memory of the square (0.95: GPT-3, Llama)"),
    FLOAT("optimizer.eps", eps, "1e-8", 0, 1, .help = "AdamW: added to the root of the square"),
    FLOAT("optimizer.weight_decay", weight_decay, "0.1", 0, 10, .help = "of matrices; vectors are not decayed (0.1: GPT-3, Llama)"),
    FLOAT("optimizer.grad_clip", grad_clip, "1", 0, 1e9, .zero = "off", .help = "largest norm of all gradients together"),
    FLOAT("optimizer.router_bias_rate", router_bias_rate, "0", 0, 1, FOR_DEEPSEEK, .zero = "off",
          .aliases = "moe_router_bias_update_rate",
          .help = "by how much each step moves an expert's bias in its router, down where it had more than its share of the "
                  "choices of the step, up where it had less: balance without a loss (DeepSeek V3: 0.001)"),
    BOOL("optimizer.post_validation", post_validation, "false", .aliases = "enable_optimizer_post_validation",
         .help = "pipelines: a stage steps before the norm of all gradients is known, keeps what it overwrites (12 bytes a "
                 "weight that it updates, where activations were), and steps again where clipping or a value that is not "
                 "finite says so; the same bits"),
    ENUM("optimizer.fuse", fuse, "auto", fuse_names,
         .help = "zero 1 and 2: each bucket's gradients, in so many pieces at least, are reduced, stepped by and gathered one piece "
                 "beside the next, before the norm of all is known (with grad_clip it keeps 12 bytes a weight that it updates, and "
                 "gathers behind the norm); the same bits; auto: by costs with strategy coconet, else off"),

    INT("eval.every", eval_every, "100", 0, MANY, .unit = "steps", .zero = "never", .help = "validation loss"),
    INT("eval.batches", eval_batches, "20", 0, MANY, .zero = "all windows", .help = "global batches per validation"),

    BOOL("metrics.tensorboard", tensorboard, "false",
         .help = "also write metrics as TensorBoard's event files, to tensorboard/ of the run folder"),
    INT("trace.step", trace_step, "0", 0, MANY, .unit = "step", .zero = "none",
        .help = "step whose timeline goes to trace-rank*.json of the run folder, for Perfetto; too late: the last"),

    INT("checkpoint.every", checkpoint_every, "0", 0, MANY, .unit = "steps", .zero = "only at the end", .help = "save weights and optimizer state"),
    BOOL("checkpoint.async", checkpoint_async, "false",
         .help = "a thread of each rank copies its share of them and writes the copy while the rank trains; the copy "
                 "takes 12 bytes a weight, shared out over the data-parallel ranks (`dhelix check` has it): where "
                 "that is to spare, say true"),
    INT("checkpoint.keep", checkpoint_keep, "2", 0, MANY, .zero = "all", .help = "newest checkpoints kept"),

    ENUM("spike.action", spike_action, "off", spike_names,
         .help = "when loss or gradient norm leaves the band of recent steps: nothing, stop before it is saved, or go back to the last good checkpoint and leave out the data since"),
    INT("spike.window", spike_window, "32", 4, DH_SPIKE_MAX_WINDOW, .unit = "steps", .help = "recent steps that make the band"),
    FLOAT("spike.deviations", spike_deviations, "8", 0.1, 1e6,
          .help = "the band ends so many mean deviations above the median of those steps"),
    INT("spike.most", spike_most, "10", 0, MANY, .help = "times a run goes back before it stops"),

    ENUM("elastic.action", elastic_action, "stop", elastic_names,
         .help = "when a rank is lost: end with a message that names it, or go on over fewer, the batch being the same: on the mesh of "
                 "most ranks whose tp, cp, pp and ep divide those of before, from what the others have in memory (all of the state, "
                 "with parallel.zero=0 and ranks alike), else from the newest checkpoint; MPI processes end either way; `dhelix "
                 "launch` starts them again over fewer"),
    INT("elastic.min_ranks", elastic_min_ranks, "1", 1, DEGREE_MAX, .help = "with fewer left the run ends"),

    INT("parallel.dp", dp, "auto", 0, DEGREE_MAX, .automatic = "ranks/(tp*pp*cp)", .help = "data parallel"),
    INT("parallel.tp", tp, "1", 1, DEGREE_MAX, .help = "tensor parallel; more ranks than model.n_kv_heads share heads of keys and values"),
    INT("parallel.pp", pp, "1", 1, DEGREE_MAX, .help = "pipeline stages"),
    INT("parallel.cp", cp, "1", 1, DEGREE_MAX, .help = "context parallel"),
    ENUM("parallel.cp_linear", cp_linear, "lasp2", cp_linear_names,
         .help = "context parallelism of linear attention: lasp2, one all-gather of states in each direction; lasp1, states "
                 "handed on from rank to rank, cp - 1 times (not with model.softmax_every)"),
    ENUM("parallel.cp_grad_dtype", cp_grad_dtype, "compute", cp_grad_names,
         .help = "type in which gradients of keys and values travel between context-parallel ranks: compute, that of "
                 "train.dtype; float32, rounded once"),
    INT("parallel.ep", ep, "1", 1, DEGREE_MAX, .help = "expert parallel, inside dp"),
    INT("parallel.virtual_stages", vpp, "1", 1, DH_MODEL_MAX_LAYERS, .help = "model chunks of a stage"),
    TEXT("parallel.schedule", schedule, DH_SET_NAME_OR_PATH, "1f1b",
         .help = "a row of `dhelix list schedules`, or a schedule in a CSV file"),
    TEXT("parallel.layer_split", layer_split, DH_SET_SPLIT, "", .automatic = "the split with the shortest simulated step",
         .help = "layers of each chunk in model order, as 3,4,4,3; -1: one fewer than an even share; "
                 "*: as even as can be, of all that are not listed; empty: even"),
    INT("parallel.max_activations", max_activations, "auto", 0, DEGREE_MAX, .automatic = "pp",
        .unit = "micro-batches",
        .help = "schedule zb-auto: activations that a stage keeps at most; 2 * pp hides its bubble"),
    FLOAT("parallel.wgrad_share", wgrad_share, "auto", 0.001, 1, .automatic = "that of the model's layers",
        .help = "schedule zb-auto: share of an activation still held between input and weight gradients"),
    INT("parallel.expert_tp", expert_tp, "auto", 0, DEGREE_MAX, .automatic = "tp", FOR_EXPERTS,
        .help = "tensor-parallel ranks that share an expert: all, each with some of its columns and every row; or 1: "
                "experts are spread over tp ranks too, which send their own share of rows"),
    BOOL("parallel.sequence", sequence_parallel, "true", .help = "tp splits the tokens between the linears too; false: every rank has them all"),
    INT("parallel.zero", zero, "0", 0, 3,
        .help = "shared out over dp (and cp): 1 optimizer state; 2 gradients too, reduced to shards as they come; 3 parameters too, gathered block by block"),
    INT("parallel.prefetch", prefetch, "1", 0, DH_MODEL_MAX_LAYERS, .unit = "blocks",
        .help = "zero 3: how many blocks ahead parameters are gathered, forward and backward"),
    {.key = "parallel.reshard_after_forward", .type = DH_SET_ENUM_OR_INT, AT(reshard), .fallback = "true", .names = reshard_names,
         .min = 2, .max = DEGREE_MAX, .unit = "ranks",
         .help = "zero 3: gathered parameters are released behind a block's forward (true), stay whole until its backward (false), "
                 "or stay as shards over a node's ranks (node) or so many neighbours (a number), which gather them among themselves"},
    ENUM("parallel.regather", regather, "micro-batch", regather_names,
         .help = "zero 3: parameters are gathered for each micro-batch, or once for those that follow each other through a virtual stage, "
                 "as with schedule looped-bfs all of a step do"),
    ENUM("parallel.gather", gather, "optimizer", gather_names,
         .help = "zero 1 and 2: parameters are gathered behind the optimizer, or beside the next step's first forwards, each bucket before what reads it"),
    ENUM("parallel.gradient_sync", gradient_sync, "last", gradient_sync_names,
         .help = "zero 2 and 3: gradients of a step's micro-batches are added up whole and reduced with the last one's, or every "
                 "micro-batch's are reduced and only shards stay"),
    BOOL("parallel.zero1", zero1, "false", .help = "the same as zero: 1"),
    FLOAT("parallel.bucket_mb", bucket_mb, "auto", 0.001, 1e6, .unit = "MB",
          .automatic = "4 for each rank that reduces together, at least 25",
          .help = "gradients reduced by one transfer: of neighbouring blocks together, of a larger block in pieces"),
    FLOAT("parallel.timeout_s", timeout_s, "auto", 0.001, 1e6, .unit = "s",
          .automatic = "in steps 20 times the slowest so far, at least 60; else 600", .help = "longest wait for another rank before the run ends, naming who did not come"),
    ENUM("parallel.mpi_wait", mpi_wait, "yield", mpi_wait_names,
         .help = "how MPI calls wait: yield and sleep leave the core to computing; block keeps it, and notices no timeout"),
    ENUM("parallel.gpu_comm", gpu_comm, "auto", gpu_comm_names,
         .help = "device cuda: ranks communicate by NCCL on their streams (nccl), threads that share a GPU by copies on it (device), all through "
                 "memory of the host (host), or each group by the first of these that it can (auto)"),
    INT("parallel.gpu_comm_sms", gpu_comm_sms, "auto", 0, 64, .automatic = "those with which a simulated step is shortest, by a profile; without one 16 on links inside of nodes, 8 between them",
        .help = "device cuda: processors of a GPU that calls of a stream take at most; products are planned for those that all streams leave"),

    INT("topology.nodes", nodes, "auto", 0, DEGREE_MAX, .automatic = "ranks / ranks_per_node, or 1", .help = "nodes, each with consecutive ranks"),
    INT("topology.ranks_per_node", ranks_per_node, "auto", 0, DEGREE_MAX, .automatic = "ranks / nodes", .help = "ranks of a node"),

    FLOAT("links.local.gbps", link_local.gbps, "0", 0, 1e9, .unit = "Gbit/s", .zero = "not paced", .help = "pace of transfers inside a node"),
    FLOAT("links.local.latency_us", link_local.latency_us, "0", 0, 1e9, .unit = "us", .help = "added to each of them"),
    FLOAT("links.cross.gbps", link_cross.gbps, "0", 0, 1e9, .unit = "Gbit/s", .zero = "not paced", .help = "pace of transfers between nodes"),
    FLOAT("links.cross.latency_us", link_cross.latency_us, "0", 0, 1e9, .unit = "us", .help = "added to each of them"),

    TEXT("slow.ranks", slow_ranks, DH_SET_INTS, "",
         .help = "stragglers, simulated only: ranks whose computation takes slow.factor times as long"),
    FLOAT("slow.factor", slow_factor, "1", 0.001, 1e6, .help = "of slow.ranks"),
    TEXT("slow.links", slow_links, DH_SET_INTS, "",
         .help = "simulated only: ranks whose communication takes slow.link_factor times as long"),
    TEXT("slow.nodes", slow_nodes, DH_SET_INTS, "",
         .help = "simulated only: nodes whose communication with others takes slow.link_factor times as long"),
    FLOAT("slow.link_factor", slow_link_factor, "1", 0.001, 1e6, .help = "of slow.links and slow.nodes"),

    ENUM("moe.mode", moe_mode, "dropless", moe_names, .help = "buffers sized by need up to a bound, or fixed with dropped tokens"),
    FLOAT("moe.capacity", moe_capacity, "2", 0.01, 1e6, .help = "buffer of an expert over its even share (dropless: the bound)"),
    FLOAT("moe.load", moe_load, "1", 1, 1e6,
          .help = "for predictions and orders: rows of the busiest expert over an even share, which is what routers "
                  "are trained towards; the rank that gets most of them sets the pace of its layer"),
    TEXT("moe.recorded", moe_recorded, DH_SET_PATH, "", .own = true,
         .help = "run folder whose recorded load of experts (experts.json) counts instead; empty: moe.load"),

    TEXT("stages.forward_ms", stage_ms[DH_STAGE_FORWARD], DH_SET_REALS, "",
         .help = "times instead of a model, for simulate alone: a forward of a virtual stage, in ms; one "
                 "for all, or one for each"),
    TEXT("stages.input_ms", stage_ms[DH_STAGE_INPUT], DH_SET_REALS, "",
         .help = "its backward as far as other stages wait for it: gradients of inputs"),
    TEXT("stages.weight_ms", stage_ms[DH_STAGE_WEIGHT], DH_SET_REALS, "",
         .help = "the rest of its backward: gradients of weights"),
    FLOAT("stages.transfer_ms", stage_transfer_ms, "0", 0, 1e9, .unit = "ms",
          .help = "from the end of a stage's work until another rank has its result"),
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
