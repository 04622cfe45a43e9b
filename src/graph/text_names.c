/* Names used by graph text. A new field of dh_dims is a row here. */
#include "text_names.h"

#define NAMES(set, what_, ...)                                                                     \
    static const char *const set##_list[] = {__VA_ARGS__};                                         \
    const dh_name_set set = {what_, set##_list, DH_COUNTOF(set##_list)}

NAMES(
    dh_block_kind_names,
    "block kind", [DH_BLOCK_EMBED] = "embed", [DH_BLOCK_LAYER] = "layer", [DH_BLOCK_HEAD] = "head",
    [DH_BLOCK_DATA] = "data", [DH_BLOCK_OPT] = "optimizer", [DH_BLOCK_GRADS] = "gradients",
    [DH_BLOCK_LINK] = "link", [DH_BLOCK_EXPERTS] = "experts", [DH_BLOCK_ADAPTERS] = "adapters",
    [DH_BLOCK_PROGRAM] = "program", [DH_BLOCK_GATHER] = "gather", [DH_BLOCK_RESHARD] = "reshard");
NAMES(dh_mode_names,
      "mode", [DH_MODE_TRAIN] = "train", [DH_MODE_EVAL] = "eval", [DH_MODE_DECODE] = "decode");
NAMES(dh_tensor_kind_names, "tensor kind", [DH_TENSOR_ACT] = "act", [DH_TENSOR_INPUT] = "input",
      [DH_TENSOR_PARAM] = "param", [DH_TENSOR_GRAD] = "grad", [DH_TENSOR_STATE] = "state",
      [DH_TENSOR_RANGE] = "range");
NAMES(dh_input_names, "input", [DH_IN_TOKENS] = "tokens", [DH_IN_TARGETS] = "targets",
      [DH_IN_POS] = "pos", [DH_IN_SAMPLE] = "sample");
NAMES(dh_state_names, "state", [DH_STATE_LOSS] = "loss", [DH_STATE_SQSUM] = "sqsum",
      [DH_STATE_SQTOTAL] = "sqtotal", [DH_STATE_NORM] = "norm", [DH_STATE_ROUTER] = "router",
      [DH_STATE_SQCHAIN] = "sqchain", [DH_STATE_NORM_SO_FAR] = "norm_so_far",
      [DH_STATE_AUX] = "aux", [DH_STATE_TIED_GRAD] = "tied_grad", [DH_STATE_KV_CACHE] = "kv_cache");
NAMES(dh_axis_names,
      "axis", [DH_AXIS_NONE] = "none", [DH_AXIS_TOKENS] = "tokens", [DH_AXIS_WIDTH] = "width",
      [DH_AXIS_HEADS] = "heads", [DH_AXIS_FFN] = "ffn", [DH_AXIS_VOCAB] = "vocab",
      [DH_AXIS_EXPERTS] = "experts", [DH_AXIS_ROUTED] = "routed", [DH_AXIS_LATENT] = "latent");
NAMES(dh_phase_names,
      "phase", [DH_PHASE_F] = "F", [DH_PHASE_B] = "B", [DH_PHASE_W] = "W", [DH_PHASE_OPT] = "O");
NAMES(dh_site_names,
      "dropout site", [DH_SITE_EMBED] = "embed", [DH_SITE_ATTN] = "attn", [DH_SITE_MLP] = "mlp");

_Static_assert(DH_COUNTOF(dh_block_kind_names_list) == DH_N_BLOCK_KIND, "block kinds");
_Static_assert(DH_COUNTOF(dh_tensor_kind_names_list) == DH_N_TENSOR_KIND, "tensor kinds");
_Static_assert(DH_COUNTOF(dh_input_names_list) == DH_N_INPUT, "inputs");
_Static_assert(DH_COUNTOF(dh_state_names_list) == DH_N_STATE, "states");
_Static_assert(DH_COUNTOF(dh_axis_names_list) == DH_N_AXIS, "axes");
_Static_assert(DH_COUNTOF(dh_phase_names_list) == DH_N_PHASE, "phases");
_Static_assert(DH_COUNTOF(dh_site_names_list) == DH_N_SITE, "sites");

NAMES(norm_names, "norm", [DH_NORM_LAYER] = "layer", [DH_NORM_RMS] = "rms");
NAMES(act_names, "activation", [DH_ACT_GELU_TANH] = "gelu_tanh", [DH_ACT_SWIGLU] = "swiglu",
      [DH_ACT_GEGLU] = "geglu");
NAMES(scaling_names, "RoPE scaling", [DH_ROPE_SCALING_NONE] = "none",
      [DH_ROPE_SCALING_LINEAR] = "linear", [DH_ROPE_SCALING_LLAMA3] = "llama3",
      [DH_ROPE_SCALING_YARN] = "yarn", [DH_ROPE_SCALING_LONGROPE] = "longrope");

NAMES(fp8_names,
      "fp8 formats", [DH_FP8_OFF] = "off", [DH_FP8_E4M3] = "e4m3", [DH_FP8_HYBRID] = "hybrid");

#define I64(field)                                                                                 \
    {                                                                                              \
#field, DH_FIELD_I64, offsetof(dh_dims, field), NULL                                       \
    }
#define F64(name, field)                                                                           \
    {                                                                                              \
        name, DH_FIELD_F64, offsetof(dh_dims, field), NULL                                         \
    }
#define FACTORS(name, field)                                                                       \
    {                                                                                              \
        name, DH_FIELD_FACTORS, offsetof(dh_dims, field), NULL                                     \
    }
#define NAME(name, field, set)                                                                     \
    {                                                                                              \
        name, DH_FIELD_NAME, offsetof(dh_dims, field), set                                         \
    }

const dh_dims_field dh_dims_fields[DH_N_DIMS_FIELD] = {
    I64(batch),
    I64(seq),
    I64(width),
    I64(n_heads),
    I64(n_kv_heads),
    I64(head_dim),
    I64(ffn_width),
    I64(vocab),
    I64(max_seq),
    I64(cp),
    I64(cp_rank),
    I64(top_k),
    I64(topk_plain),
    I64(window),
    I64(window_from),
    I64(window_every),
    I64(layers),
    I64(linear),
    I64(feature_map),
    I64(linear_ring),
    I64(float_kv_grads),
    I64(zigzag),
    {"fp8", DH_FIELD_MAY_NAME, offsetof(dh_dims, fp8), &fp8_names},
    F64("aux_scale", aux_scale),
    NAME("norm", norm, &norm_names),
    F64("norm_eps", norm_eps),
    NAME("act", act, &act_names),
    F64("dropout", dropout),
    F64("loss_scale", loss_scale),
    F64("rope_theta", rope.theta),
    NAME("rope_scaling", rope.scaling, &scaling_names),
    F64("rope_factor", rope.factor),
    F64("rope_low_freq_factor", rope.low_freq_factor),
    F64("rope_high_freq_factor", rope.high_freq_factor),
    {"rope_original_max_seq", DH_FIELD_I64, offsetof(dh_dims, rope.original_max_seq), NULL},
    I64(norm_plus_one),
    F64("embed_scale", embed_scale),
    F64("attn_scale", attn_scale),
    F64("attn_softcap", attn_softcap),
    F64("logit_softcap", logit_softcap),
    F64("lora_scale", lora_scale),
    I64(nth),
    F64("nth_theta", rope_nth.theta),
    {"nth_scaling", DH_FIELD_MAY_NAME, offsetof(dh_dims, rope_nth.scaling), &scaling_names},
    F64("nth_factor", rope_nth.factor),
    F64("nth_low_freq_factor", rope_nth.low_freq_factor),
    F64("nth_high_freq_factor", rope_nth.high_freq_factor),
    F64("rope_beta_fast", rope.beta_fast),
    F64("rope_beta_slow", rope.beta_slow),
    F64("rope_mscale", rope.mscale),
    F64("rope_mscale_all", rope.mscale_all),
    F64("rope_magnitude", rope.magnitude),
    I64(rope_dim),
    I64(v_dim),
    I64(rope_pairs),
    I64(n_groups),
    I64(top_groups),
    F64("router_scale", router_scale),
    I64(router_balanced),
    {"nth_original_max_seq", DH_FIELD_I64, offsetof(dh_dims, rope_nth.original_max_seq), NULL},
    F64("nth_beta_fast", rope_nth.beta_fast),
    F64("nth_beta_slow", rope_nth.beta_slow),
    F64("nth_mscale", rope_nth.mscale),
    F64("nth_mscale_all", rope_nth.mscale_all),
    F64("nth_magnitude", rope_nth.magnitude),
    F64("rope_short_mscale", longrope.short_mscale),
    F64("rope_long_mscale", longrope.long_mscale),
    FACTORS("rope_short_factor", longrope.short_factors),
    FACTORS("rope_long_factor", longrope.long_factors),
    I64(sparsemixer),
    F64("router_jitter", router_jitter),
};
_Static_assert(sizeof(dh_norm_kind) == sizeof(unsigned) &&
                   sizeof(dh_act_kind) == sizeof(unsigned) &&
                   sizeof(dh_rope_scaling) == sizeof(unsigned) &&
                   sizeof(dh_fp8) == sizeof(unsigned),
               "enumerations of dh_dims are stored as unsigned");

#define END(field)                                                                                 \
    {                                                                                              \
#field, offsetof(dh_graph, field)                                                          \
    }
const dh_end_field dh_end_fields[DH_N_END_FIELD] = {END(x_in),  END(x_out),  END(dx_out),
                                                    END(dx_in), END(loss_x), END(loss_dx)};
