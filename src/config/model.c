/* Consequences of a model's sizes: consistency, parameter count, FLOPs per token.
 *
 * The architecture follows from the family (norm, activation, which biases),
 * so a model is a dozen integers. Reading them is model_json.c (config.json)
 * and job_model.c (job file). */
#include "dhelix/model.h"

#include "base/base.h"
#include "base/needs.h"
#include "model_names.h"

#include <math.h>
#include <string.h>

/* ---- names and families -------------------------------------------------------- */

const char *const dh_family_names[DH_N_FAMILIES + 1] = {
    "gpt2",        "llama",   "mixtral",     "mistral",   "qwen2",  "phi3",
    "qwen3",       "olmo2",   "smollm3",     "qwen3_moe", "gemma2", "gemma3_text",
    "deepseek_v3", "gpt_oss", "llama4_text", "phimoe",    "olmo3",  NULL};
const char *const dh_rope_scaling_names[DH_N_ROPE_SCALINGS + 1] = {"none", "linear",   "llama3",
                                                                   "yarn", "longrope", NULL};

const char *const dh_attention_kind_names[DH_N_ATTENTION_KINDS + 1] = {"softmax", "linear", NULL};
const char *const dh_feature_map_names[DH_N_FEATURE_MAPS + 1] = {"elu", "identity", "silu", NULL};

/* Fields that the family alone decides. */
#define LLAMA_LIKE .norm = DH_NORM_RMS, .act = DH_ACT_SWIGLU, .rope = true
#define GEMMA                                                                                      \
    .norm = DH_NORM_RMS, .act = DH_ACT_GEGLU, .rope = true, .window = true, .window_layers = true, \
    .gemma = true, .nth_sees_all = true, .norm_place = DH_NORMS_AROUND
static const struct family_row {
    dh_norm_kind norm;
    dh_act_kind act;
    bool rope, biases, experts; /* has rotary positions; may have biases; has experts */
    bool qkv_bias;              /* has biases of queries, keys and values alone */
    bool phimoe;        /* LayerNorm with biases, others if it says so, sparsemixer, longrope */
    bool qk_norm;       /* norms heads of queries and keys */
    bool qk_norm_all;   /* norms all heads of queries, and of keys, together */
    bool window;        /* may have a window */
    bool window_layers; /* of some of its layers alone */
    bool nth;           /* may have layers of other positions, or of none */
    bool nth_sees_all;  /* these are the layers without the window, and all of them */
    bool dense_layers;  /* may have layers without experts among them */
    bool topk_plain;    /* may leave the weights of a token's experts as they are */
    bool linear;        /* may have linear attention */
    bool gemma;         /* norms by 1 + weight, embeddings scaled, softcaps, query scalar */
    bool latent;        /* latent attention, shared experts, routing by sigmoids */
    bool shared;        /* may have shared experts without it */
    const char *not_computed; /* NULL: all of it is */
    dh_norm_place norm_place;
} family_rows[DH_N_FAMILIES] = {
    [DH_FAMILY_GPT2] = {.norm = DH_NORM_LAYER, .act = DH_ACT_GELU_TANH, .biases = true},
    [DH_FAMILY_LLAMA] = {LLAMA_LIKE, .linear = true},
    [DH_FAMILY_MIXTRAL] = {LLAMA_LIKE, .experts = true, .window = true, .linear = true},
    [DH_FAMILY_MISTRAL] = {LLAMA_LIKE, .window = true},
    [DH_FAMILY_QWEN2] = {LLAMA_LIKE, .qkv_bias = true, .window = true, .window_layers = true},
    [DH_FAMILY_PHI3] = {LLAMA_LIKE, .window = true},
    [DH_FAMILY_QWEN3] = {LLAMA_LIKE, .qk_norm = true, .window = true, .window_layers = true},
    [DH_FAMILY_OLMO2] = {LLAMA_LIKE, .qk_norm_all = true, .norm_place = DH_NORMS_AFTER},
    [DH_FAMILY_SMOLLM3] = {LLAMA_LIKE, .nth = true},
    [DH_FAMILY_QWEN3_MOE] = {LLAMA_LIKE, .qk_norm = true, .experts = true, .topk_plain = true,
                             .dense_layers = true},
    [DH_FAMILY_GEMMA2] = {GEMMA},
    [DH_FAMILY_GEMMA3] = {GEMMA, .qk_norm = true, .nth = true},
    [DH_FAMILY_DEEPSEEK3] = {LLAMA_LIKE, .experts = true, .topk_plain = true, .dense_layers = true,
                             .latent = true},
    /* attention_bias, of which that of the output is left out: 0.05 % of the parameters, as are the
     * experts' biases and the sinks */
    [DH_FAMILY_GPT_OSS] = {LLAMA_LIKE, .qkv_bias = true, .experts = true, .window = true,
                           .window_layers = true,
                           .not_computed =
                               "attention sinks, biases of experts and routers, clamped "
                               "gates"},
    /* attention in chunks counts as a window of as many tokens, which sees up to twice as many;
     * norms of queries and keys have no weights there */
    [DH_FAMILY_LLAMA4] = {LLAMA_LIKE, .qk_norm = true, .experts = true, .window = true,
                          .window_layers = true, .nth = true, .shared = true, .dense_layers = true,
                          .not_computed =
                              "attention in chunks, its temperature, routers by sigmoids "
                              "that scale what experts read"},
    [DH_FAMILY_PHIMOE] = {.norm = DH_NORM_LAYER,
                          .act = DH_ACT_SWIGLU,
                          .rope = true,
                          .experts = true,
                          .window = true,
                          .phimoe = true},
    [DH_FAMILY_OLMO3] = {LLAMA_LIKE, .qk_norm_all = true, .norm_place = DH_NORMS_AFTER,
                         .window = true, .window_layers = true, .nth = true, .nth_sees_all = true},
};

const char *dh_model_not_computed(const dh_model *m)
{
    return family_rows[m->family].not_computed;
}

dh_status dh_model_check_computed(dh_ctx *ctx, const dh_model *m)
{
    DH_NEEDS(ctx, m);
    const char *parts = dh_model_not_computed(m);
    if (!parts) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "models of the %s family are only planned and simulated (dhelix plan, simulate, "
                   "tune): not computed are %s",
                   dh_family_names[m->family], parts);
}

/* ---- validation ------------------------------------------------------------------ */

static const struct size_row {
    const char *name;
    size_t offset;
    int64_t max;
} size_rows[] = {
    {"n_layers", offsetof(dh_model, n_layers), DH_MODEL_MAX_LAYERS},
    {"width", offsetof(dh_model, width), DH_MODEL_MAX_WIDTH},
    {"n_heads", offsetof(dh_model, n_heads), DH_MODEL_MAX_HEADS},
    {"n_kv_heads", offsetof(dh_model, n_kv_heads), DH_MODEL_MAX_HEADS},
    {"head_dim", offsetof(dh_model, head_dim), DH_MODEL_MAX_HEAD_DIM},
    {"ffn_width", offsetof(dh_model, ffn_width), DH_MODEL_MAX_FFN},
    {"vocab", offsetof(dh_model, vocab), DH_MODEL_MAX_VOCAB},
    {"max_seq", offsetof(dh_model, max_seq), DH_MODEL_MAX_SEQ},
};

static dh_status check_sizes(dh_ctx *ctx, const dh_model *m)
{
    for (size_t i = 0; i < DH_COUNTOF(size_rows); i++) {
        const struct size_row *row = &size_rows[i];
        int64_t value;
        memcpy(&value, (const char *)m + row->offset, sizeof value);
        if (value < 1 || value > row->max)
            return dh_fail(ctx, DH_EINVAL, "model %s is %lld; it must lie between 1 and %lld",
                           row->name, (long long)value, (long long)row->max);
    }
    return DH_OK;
}

static dh_status check_heads(dh_ctx *ctx, const dh_model *m)
{
    if (m->n_heads % m->n_kv_heads)
        return dh_fail(ctx, DH_EINVAL,
                       "model n_kv_heads %lld does not divide n_heads %lld: every key/value head "
                       "serves the same number of query heads",
                       (long long)m->n_kv_heads, (long long)m->n_heads);
    if (family_rows[m->family].rope) {
        if (m->head_dim % 2)
            return dh_fail(ctx, DH_EINVAL,
                           "model head_dim %lld is odd; rotary positions turn pairs of channels",
                           (long long)m->head_dim);
        return DH_OK;
    }
    if (m->n_kv_heads != m->n_heads)
        return dh_fail(ctx, DH_EINVAL,
                       "model n_kv_heads %lld differs from n_heads %lld; the gpt2 family has no "
                       "grouped queries",
                       (long long)m->n_kv_heads, (long long)m->n_heads);
    if (m->head_dim * m->n_heads != m->width)
        return dh_fail(ctx, DH_EINVAL,
                       "model width %lld is not n_heads %lld * head_dim %lld; the gpt2 family "
                       "needs heads that divide the width",
                       (long long)m->width, (long long)m->n_heads, (long long)m->head_dim);
    return DH_OK;
}

static dh_status check_window(dh_ctx *ctx, const dh_model *m)
{
    const struct family_row *row = &family_rows[m->family];
    const bool some = m->window_from != 0 || m->window_every != 0;
    if (m->window < 0 || m->window > (row->window ? DH_MODEL_MAX_SEQ : 0))
        return dh_fail(ctx, DH_EINVAL, "model window is %lld; %s", (long long)m->window,
                       row->window ? "it must be 0 (none) or a number of tokens"
                                   : "the family has none (0)");
    if (some && (m->window == 0 || !row->window_layers))
        return dh_fail(ctx, DH_EINVAL, "model window_from %lld, window_every %lld: %s",
                       (long long)m->window_from, (long long)m->window_every,
                       m->window ? "all layers of the family have the window (0 both)"
                                 : "there is no window (0 both)");
    if (m->window_from < 0 || m->window_from > m->n_layers)
        return dh_fail(ctx, DH_EINVAL, "model window_from is %lld; it must lie between 0 and %lld",
                       (long long)m->window_from, (long long)m->n_layers);
    if (m->window_every < 0 || m->window_every == 1 || m->window_every > m->n_layers)
        return dh_fail(ctx, DH_EINVAL,
                       "model window_every is %lld; it must be 0 (none), or lie between 2 and %lld",
                       (long long)m->window_every, (long long)m->n_layers);
    const int64_t nth = m->family == DH_FAMILY_GEMMA2 ? 2 : m->nth;
    const int64_t every = nth <= m->n_layers ? nth : 0; /* none of fewer layers sees all */
    if (row->nth_sees_all && m->window && (m->window_from || m->window_every != every))
        return dh_fail(ctx, DH_EINVAL,
                       "model window_from %lld, window_every %lld: in the %s family every %lld-th "
                       "layer sees all (window_from 0, window_every %lld)",
                       (long long)m->window_from, (long long)m->window_every,
                       dh_family_names[m->family], (long long)every, (long long)every);
    return DH_OK;
}

static dh_status check_attention(dh_ctx *ctx, const dh_model *m)
{
    if ((unsigned)m->attention >= DH_N_ATTENTION_KINDS ||
        (unsigned)m->feature_map >= DH_N_FEATURE_MAPS)
        return dh_fail(ctx, DH_EINVAL, "model attention %d or feature_map %d is unknown",
                       (int)m->attention, (int)m->feature_map);
    if (m->attention == DH_ATTENTION_SOFTMAX)
        return m->feature_map == 0
                   ? DH_OK
                   : dh_fail(ctx, DH_EINVAL,
                             "model feature_map is %s, and attention softmax, which has none: give "
                             "model.attention=linear",
                             dh_feature_map_names[m->feature_map]);
    if (!family_rows[m->family].linear)
        return dh_fail(ctx, DH_EINVAL,
                       "model attention is linear; the %s family has softmax alone, llama and "
                       "mixtral may have it",
                       dh_family_names[m->family]);
    if (m->window)
        return dh_fail(ctx, DH_EINVAL,
                       "model.window is %lld, but linear attention sums over all earlier tokens: "
                       "give model.window=0",
                       (long long)m->window);
    return DH_OK;
}

static dh_status check_gemma(dh_ctx *ctx, const dh_model *m)
{
    const bool gemma = family_rows[m->family].gemma;
    if (m->norm_plus_one != gemma || m->embed_scaled != gemma)
        return dh_fail(ctx, DH_EINVAL,
                       "model norm_plus_one or embed_scaled differs from the %s family's",
                       dh_family_names[m->family]);
    if (!isfinite(m->query_scalar) || m->query_scalar < 0 || (m->query_scalar > 0 && !gemma))
        return dh_fail(ctx, DH_EINVAL, "model query_scalar is %g; it must be %s", m->query_scalar,
                       gemma ? "0 (head_dim) or above"
                             : "0: scores are divided by the root of head_dim");
    if (m->query_scalar > 1e9 || m->query_scalar != floor(m->query_scalar))
        return dh_fail(ctx, DH_EINVAL,
                       "model query_scalar is %.17g; it must be a whole number up to 1e9, as "
                       "Transformers has it",
                       m->query_scalar);
    if (!isfinite(m->logit_softcap) || m->logit_softcap < 0 || (m->logit_softcap > 0 && !gemma))
        return dh_fail(ctx, DH_EINVAL, "model logit_softcap is %g; it must be %s", m->logit_softcap,
                       gemma ? "0 (none) or above" : "0: the family has none");
    const bool caps = m->family == DH_FAMILY_GEMMA2;
    if (!isfinite(m->attn_softcap) || m->attn_softcap < 0 || (m->attn_softcap > 0 && !caps))
        return dh_fail(ctx, DH_EINVAL, "model attn_softcap is %g; it must be %s", m->attn_softcap,
                       caps ? "0 (none) or above"
                            : "0: scores of attention are capped in the gemma2 family alone");
    return DH_OK;
}

static dh_status check_family(dh_ctx *ctx, const dh_model *m)
{
    if ((unsigned)m->family >= DH_N_FAMILIES)
        return dh_fail(ctx, DH_EINVAL, "model family %d is unknown; there are %d", (int)m->family,
                       DH_N_FAMILIES);
    const struct family_row *row = &family_rows[m->family];
    const char *name = dh_family_names[m->family];
    if (m->norm != row->norm || m->act != row->act || m->norm_place != row->norm_place)
        return dh_fail(ctx, DH_EINVAL, "model norm or activation differs from the %s family's",
                       name);
    if (m->bias && !row->biases)
        return dh_fail(ctx, DH_EINVAL, "model bias is true; the %s family has no biases", name);
    if (m->qkv_bias != row->qkv_bias)
        return dh_fail(ctx, DH_EINVAL, "model qkv_bias is %s; the %s family has %s",
                       m->qkv_bias ? "true" : "false", name, row->qkv_bias ? "these" : "none");
    if (m->qk_norm != row->qk_norm)
        return dh_fail(ctx, DH_EINVAL, "model qk_norm is %s; the %s family has %s norms of heads",
                       m->qk_norm ? "true" : "false", name, row->qk_norm ? "these" : "no");
    if (m->qk_norm_all != row->qk_norm_all)
        return dh_fail(ctx, DH_EINVAL, "model qk_norm_all is %s; the %s family has %s norms",
                       m->qk_norm_all ? "true" : "false", name,
                       row->qk_norm_all ? "these" : "no such");
    if (m->nth < 0 || m->nth > (row->nth ? DH_MODEL_MAX_LAYERS : 0) || m->nth == 1)
        return dh_fail(ctx, DH_EINVAL, "model nth is %lld; %s", (long long)m->nth,
                       row->nth ? "it must be 0 (no such layers), or from 2 to the layers there are"
                                : "layers of the family are alike (0)");
    if (m->topk_plain && !row->topk_plain)
        return dh_fail(ctx, DH_EINVAL,
                       "model topk_plain is true; weights of a token's experts sum to 1 in the %s "
                       "family",
                       name);
    if (row->experts && (m->n_experts < 1 || m->n_experts > DH_MODEL_MAX_EXPERTS))
        return dh_fail(ctx, DH_EINVAL,
                       "model n_experts is %lld; the %s family needs between 1 and %d",
                       (long long)m->n_experts, name, DH_MODEL_MAX_EXPERTS);
    if (!row->experts && (m->n_experts || m->top_k))
        return dh_fail(ctx, DH_EINVAL,
                       "model n_experts %lld, top_k %lld: the %s family is dense (0 both); the "
                       "mixtral, qwen3_moe, deepseek_v3, phimoe, gpt_oss and llama4_text families "
                       "have experts",
                       (long long)m->n_experts, (long long)m->top_k, name);
    if (row->experts && (m->top_k < 1 || m->top_k > m->n_experts))
        return dh_fail(ctx, DH_EINVAL,
                       "model top_k is %lld; it must lie between 1 and n_experts %lld",
                       (long long)m->top_k, (long long)m->n_experts);
    return DH_OK;
}

static dh_status check_yarn(dh_ctx *ctx, const dh_rope *r)
{
    if (!isfinite(r->beta_fast) || !isfinite(r->beta_slow) || r->beta_slow <= 0 ||
        r->beta_fast < r->beta_slow)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope beta_slow %g and beta_fast %g: yarn scaling needs 0 < slow <= "
                       "fast",
                       r->beta_slow, r->beta_fast);
    if (!isfinite(r->mscale) || !isfinite(r->mscale_all) || !isfinite(r->magnitude) ||
        r->mscale < 0 || r->mscale_all < 0 || r->magnitude < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope mscale %g, mscale_all %g and magnitude %g must not be negative",
                       r->mscale, r->mscale_all, r->magnitude);
    if (r->original_max_seq < 1 || r->theta <= 1)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope original_max_seq is %lld, theta %g; yarn scaling needs the "
                       "length the model was first trained at, and a theta above 1",
                       (long long)r->original_max_seq, r->theta);
    return DH_OK;
}

static dh_status check_rope(dh_ctx *ctx, const dh_rope *r)
{
    if (!isfinite(r->theta) || r->theta <= 0)
        return dh_fail(ctx, DH_EINVAL, "model rope theta is %g; it must be positive", r->theta);
    if ((unsigned)r->scaling >= DH_N_ROPE_SCALINGS)
        return dh_fail(ctx, DH_EINVAL, "model rope scaling %d is unknown", (int)r->scaling);
    const bool stretched =
        r->scaling != DH_ROPE_SCALING_NONE && r->scaling != DH_ROPE_SCALING_LONGROPE;
    if (stretched && (!isfinite(r->factor) || r->factor < 1))
        return dh_fail(ctx, DH_EINVAL, "model rope factor is %g; it must be at least 1", r->factor);
    if (r->scaling == DH_ROPE_SCALING_YARN) return check_yarn(ctx, r);
    if (r->scaling != DH_ROPE_SCALING_LLAMA3) return DH_OK;
    if (!isfinite(r->low_freq_factor) || r->low_freq_factor <= 0 ||
        !isfinite(r->high_freq_factor) || r->high_freq_factor <= r->low_freq_factor)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope low_freq_factor %g and high_freq_factor %g: llama3 scaling "
                       "needs 0 < low < high",
                       r->low_freq_factor, r->high_freq_factor);
    if (r->original_max_seq < 1)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope original_max_seq is %lld; llama3 scaling needs the length the "
                       "model was first trained at",
                       (long long)r->original_max_seq);
    return DH_OK;
}

/* Transformers takes "yarn" of Phi-3 for longrope, and refuses the others. */
static dh_status check_phi3(dh_ctx *ctx, const dh_model *m)
{
    if (m->family != DH_FAMILY_PHI3 || m->rope.scaling == DH_ROPE_SCALING_NONE) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "model rope scaling is %s; in the phi3 family rotary positions are stretched by "
                   "lists of factors (longrope) alone, which is not computed: only none is "
                   "supported",
                   dh_rope_scaling_names[m->rope.scaling]);
}

static dh_status check_reals(dh_ctx *ctx, const dh_model *m)
{
    if (!isfinite(m->norm_eps) || m->norm_eps <= 0 || m->norm_eps >= 1)
        return dh_fail(ctx, DH_EINVAL, "model norm_eps is %g; it must lie between 0 and 1",
                       m->norm_eps);
    if (!isfinite(m->init_std) || m->init_std < 0)
        return dh_fail(ctx, DH_EINVAL, "model init_std is %g; it must not be negative",
                       m->init_std);
    if (!isfinite(m->router_aux_coef) || m->router_aux_coef < 0)
        return dh_fail(ctx, DH_EINVAL, "model router_aux_coef is %g; it must not be negative",
                       m->router_aux_coef);
    return DH_OK;
}

dh_status dh_model_validate(dh_ctx *ctx, const dh_model *m)
{
    DH_NEEDS(ctx, m);
    DH_TRY(check_family(ctx, m));
    DH_TRY(check_gemma(ctx, m));
    DH_TRY(check_sizes(ctx, m));
    DH_TRY(check_window(ctx, m));
    DH_TRY(check_attention(ctx, m));
    DH_TRY(dh_model_check_layers(ctx, m, family_rows[m->family].dense_layers));
    DH_TRY(check_heads(ctx, m));
    if (family_rows[m->family].rope) DH_TRY(check_rope(ctx, &m->rope));
    if (m->nth && m->rope_nth.theta != 0) DH_TRY(check_rope(ctx, &m->rope_nth));
    DH_TRY(check_phi3(ctx, m));
    DH_TRY(dh_model_check_phimoe(ctx, m, family_rows[m->family].phimoe));
    DH_TRY(family_rows[m->family].latent
               ? dh_model_check_deepseek3(ctx, m)
               : dh_model_check_no_deepseek3(ctx, m, family_rows[m->family].shared));
    DH_TRY(check_reals(ctx, m));
    return dh_model_check_lora(ctx, m);
}

void dh_model_init(dh_model *m, dh_family family)
{
    *m = (dh_model){.family = family,
                    .norm = family_rows[family].norm,
                    .act = family_rows[family].act,
                    .bias = family_rows[family].biases,
                    .qkv_bias = family_rows[family].qkv_bias,
                    .qk_norm = family_rows[family].qk_norm,
                    .qk_norm_all = family_rows[family].qk_norm_all,
                    .norm_place = family_rows[family].norm_place,
                    .norm_bias = family_rows[family].phimoe,
                    .sparsemixer = family_rows[family].phimoe,
                    .router_jitter = family_rows[family].phimoe ? 0.01 : 0,
                    .norm_plus_one = family_rows[family].gemma,
                    .embed_scaled = family_rows[family].gemma,
                    .tied_head = family == DH_FAMILY_GPT2 || family_rows[family].gemma,
                    .norm_eps = 1e-5,
                    .init_std = 0.02};
    if (family_rows[family].rope) m->rope.theta = 10000;
    if (family_rows[family].experts && !family_rows[family].latent) m->router_aux_coef = 0.001;
    if (family_rows[family].latent) {
        m->norm_eps = 1e-6;
        m->rope_pairs = true;
        m->n_shared = m->n_groups = m->top_groups = 1;
        m->router_scale = 1;
    }
    if (family == DH_FAMILY_SMOLLM3 || family == DH_FAMILY_LLAMA4)
        m->nth = 4; /* transformers' defaults */
    if (family_rows[family].shared) m->n_shared = 1;
    if (family == DH_FAMILY_GEMMA3) {
        m->nth = 6;
        m->rope_nth.theta = 1e6;
    }
    if (family == DH_FAMILY_OLMO3) {
        m->nth = 4;
        m->rope.theta = m->rope_nth.theta = 5e5;
    }
    if (family == DH_FAMILY_GEMMA2) {
        m->attn_softcap = 50;
        m->logit_softcap = 30;
    }
}

/* ---- sizes --------------------------------------------------------------------------- */

/* Weights a token is multiplied with in the attention of one layer: Q, K, V, output. */
static int64_t attention_matmul_params(const dh_model *m)
{
    if (m->kv_lora) return dh_model_latent_params(m);
    return 2 * m->width * m->head_dim * (m->n_heads + m->n_kv_heads);
}

/* One feed-forward block: two matrices with GELU, three where it is gated. */
static int64_t ffn_matmul_params(const dh_model *m)
{
    return (m->act == DH_ACT_GELU_TANH ? 2 : 3) * m->width * m->ffn_width;
}

static int64_t layer_bias_params(const dh_model *m)
{
    int64_t qkv = m->head_dim * (m->n_heads + 2 * m->n_kv_heads);
    int64_t norms = m->bias || m->norm_bias ? 2 * m->width : 0;
    if (!m->bias)
        return norms + (m->qkv_bias || m->attn_bias ? qkv : 0) + (m->attn_bias ? m->width : 0);
    return norms + qkv + m->width + m->ffn_width + m->width;
}

/* Of a layer of a model whose layers are alike. */
static int64_t layer_params(const dh_model *m)
{
    int64_t n_ffns = m->n_experts ? m->n_experts + m->n_shared : 1;
    int64_t router = m->n_experts * (m->width + (m->n_groups > 0 ? 1 : 0)); /* and its bias */
    int64_t norms =
        (m->norm_place == DH_NORMS_AROUND ? 4 : 2) * m->width + (m->qk_norm ? 2 * m->head_dim : 0) +
        (m->qk_norm_all ? (m->n_heads + m->n_kv_heads) * m->head_dim : 0) + m->q_lora + m->kv_lora;
    return norms + attention_matmul_params(m) + router + n_ffns * ffn_matmul_params(m) +
           layer_bias_params(m);
}

/* Its parameters with which a token is multiplied. */
static int64_t layer_matmul_params(const dh_model *m)
{
    int64_t used_ffns = m->n_experts ? m->top_k + m->n_shared : 1;
    return attention_matmul_params(m) + m->n_experts * m->width + used_ffns * ffn_matmul_params(m);
}

static int64_t is_linear(const dh_model *m)
{
    return m->attention == DH_ATTENTION_LINEAR;
}

/* Over all layers. */
static int64_t sum_layers(const dh_model *m, int64_t (*of)(const dh_model *m))
{
    int64_t sum = 0;
    const dh_layer_kinds kinds = dh_model_kinds(m, 0, m->n_layers);
    for (int k = 0; k < kinds.n; k++) {
        const dh_model layer = dh_model_of_layer(m, kinds.layer[k]);
        sum += kinds.count[k] * of(&layer);
    }
    return sum;
}

int64_t dh_model_n_params(const dh_model *m)
{
    int64_t positions = m->family == DH_FAMILY_GPT2 ? m->max_seq * m->width : 0;
    int64_t last_norm = m->bias || m->norm_bias ? 2 * m->width : m->width;
    int64_t head_bias = m->head_bias ? m->vocab : 0;
    int64_t embeddings = m->vocab * m->width * (m->tied_head ? 1 : 2);
    return embeddings + positions + sum_layers(m, layer_params) + last_norm + head_bias;
}

int64_t dh_model_window(const dh_model *m, int64_t layer)
{
    const bool whole = m->window_every > 0 && (layer + 1) % m->window_every == 0;
    return layer >= m->window_from && !whole ? m->window : 0;
}

/* Tokens that one of T sees, on average, summed over layers of softmax attention. That is T / 2.
 * With a window it is the window, except that the sequence's first tokens see fewer. */
static double tokens_seen(const dh_model *m, double seq_len)
{
    double n = 0;
    for (int64_t layer = 0; m->window > 0 && layer < m->n_layers; layer++) {
        const double window = (double)dh_model_window(m, layer);
        if (window > 0 && window < seq_len)
            n += window - window * window / (2 * seq_len) - seq_len / 2;
    }
    return (double)(m->n_layers - sum_layers(m, is_linear)) * seq_len / 2 + n;
}

double dh_model_flops_per_token(const dh_model *m, int64_t seq_len)
{
    double matmul = (double)(sum_layers(m, layer_matmul_params) + m->vocab * m->width);
    /* Two products of T x T x D a head; the second's D is that of values. */
    const int64_t v_dim = m->v_dim ? m->v_dim : m->head_dim;
    double attention =
        (double)(m->n_heads * (m->head_dim + v_dim)) / 2 * tokens_seen(m, (double)seq_len);
    /* Linear attention: k v^T, and q times the sum of them. */
    double sums = (double)(sum_layers(m, is_linear) * (m->n_heads + m->n_kv_heads)) *
                  (double)(m->head_dim * m->head_dim);
    if (m->lora.rank > 0)
        return 4 * matmul + 6 * (double)dh_model_n_trained(m) + 6 * sums + 12 * attention;
    return 6 * (matmul + sums) + 12 * attention;
}
