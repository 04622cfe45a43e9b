/* Hugging Face config.json <-> dh_model.
 *
 * Reading is a table walk. Each config class has rows "key -> field with range and default". The
 * defaults are those of transformers' classes, used when a key is absent or null. Rows "key must
 * have this value" are for switches that change the computation. Other keys do not matter and are
 * ignored. */
#include "base/needs.h"
#include "dhelix/model.h"

#include "model_classes.h"
#include "model_names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX_BYTES (1u << 20)

/* ---- GPT-2 --------------------------------------------------------------------------- */

static dh_status read_gpt2(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const dh_config_size ints[] = {
        {"n_layer", offsetof(dh_model, n_layers), 12},
        {"n_embd", offsetof(dh_model, width), 768},
        {"n_head", offsetof(dh_model, n_heads), 12},
        {"n_positions", offsetof(dh_model, max_seq), 1024},
        {"vocab_size", offsetof(dh_model, vocab), 50257},
    };
    static const dh_config_must musts[] = {
        {"scale_attn_weights", "true", "attention scores are divided by sqrt(head_dim)"},
        {"scale_attn_by_inverse_layer_idx", "false", "layers are scaled alike"},
    };
    static const char *const gelu_tanh[] = {"gelu_new", "gelu_pytorch_tanh"};
    DH_TRY(dh_config_ints(ctx, config, ints, DH_COUNTOF(ints), m));
    DH_TRY(dh_config_musts(ctx, config, musts, DH_COUNTOF(musts)));
    DH_TRY(
        dh_config_activation(ctx, config, "activation_function", gelu_tanh, DH_COUNTOF(gelu_tanh)));
    if (m->n_heads < 1 || m->width % m->n_heads)
        return dh_fail(ctx, DH_EINVAL,
                       "\"n_head\" %lld does not divide \"n_embd\" %lld into heads of equal width",
                       (long long)m->n_heads, (long long)m->width);
    m->n_kv_heads = m->n_heads;
    m->head_dim = m->width / m->n_heads;
    if (m->width <= INT64_MAX / 4) m->ffn_width = 4 * m->width; /* else refused by range */
    DH_TRY(dh_config_int(ctx, config, "n_inner", m->ffn_width, &m->ffn_width));
    DH_TRY(dh_config_real(ctx, config, "layer_norm_epsilon", 1e-5, &m->norm_eps));
    DH_TRY(dh_config_bool(ctx, config, "tie_word_embeddings", true, &m->tied_head));
    /* Not a key of GPT2Config: nanoGPT's bias-free variant. Loaders that do not
     * know it start the missing biases at zero, which is the same model. */
    return dh_config_bool(ctx, config, "bias", true, &m->bias);
}

static void write_gpt2(json_t *config, const dh_model *m)
{
    json_object_set_new(config, "n_layer", json_integer(m->n_layers));
    json_object_set_new(config, "n_embd", json_integer(m->width));
    json_object_set_new(config, "n_head", json_integer(m->n_heads));
    json_object_set_new(config, "n_positions", json_integer(m->max_seq));
    json_object_set_new(config, "vocab_size", json_integer(m->vocab));
    json_object_set_new(config, "n_inner", json_integer(m->ffn_width));
    json_object_set_new(config, "activation_function", json_string("gelu_new"));
    json_object_set_new(config, "layer_norm_epsilon", json_real(m->norm_eps));
    if (!m->bias) json_object_set_new(config, "bias", json_false());
}

/* ---- rotary positions ------------------------------------------------------------------ */

static dh_status read_rope_kind(dh_ctx *ctx, const json_t *rope, const char *where, dh_rope *out)
{
    const char *kind;
    DH_TRY(dh_config_text(ctx, rope, "type", "default", &kind));
    DH_TRY(dh_config_text(ctx, rope, "rope_type", kind, &kind)); /* the newer spelling wins */
    if (strcmp(kind, "default") == 0) return DH_OK;
    for (int i = 1; i < DH_ROPE_SCALING_LONGROPE; i++) /* which model_phimoe.c reads */
        if (strcmp(kind, dh_rope_scaling_names[i]) == 0) out->scaling = (dh_rope_scaling)i;
    if (out->scaling == DH_ROPE_SCALING_NONE)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "\"%s\" has type \"%s\"; supported are default, linear, llama3 and yarn, and "
            "of phimoe default and longrope",
            where, kind);
    DH_TRY(dh_config_real(ctx, rope, "factor", 0, &out->factor));
    if (out->scaling == DH_ROPE_SCALING_YARN) return dh_config_read_yarn(ctx, rope, out);
    if (out->scaling != DH_ROPE_SCALING_LLAMA3) return DH_OK;
    DH_TRY(dh_config_real(ctx, rope, "low_freq_factor", 0, &out->low_freq_factor));
    DH_TRY(dh_config_real(ctx, rope, "high_freq_factor", 0, &out->high_freq_factor));
    return dh_config_int(ctx, rope, "original_max_position_embeddings", 0, &out->original_max_seq);
}

/* Three generations: rope_theta and rope_scaling {"type"}, {"rope_type"}, and
 * one object rope_parameters that holds the theta too. */
static dh_status read_rope(dh_ctx *ctx, const json_t *config, double default_theta, dh_rope *out)
{
    static const dh_config_must musts[] = {
        {"partial_rotary_factor", "1", "all channels are rotated"}};
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    *out = (dh_rope){0};
    DH_TRY(dh_config_musts(ctx, config, musts, DH_COUNTOF(musts)));
    DH_TRY(dh_config_real(ctx, config, "rope_theta", default_theta, &out->theta));
    for (size_t i = 0; i < DH_COUNTOF(objects); i++) {
        const json_t *rope = dh_config_get(config, objects[i]);
        if (!rope) continue;
        if (!json_is_object(rope))
            return dh_fail(ctx, DH_EFORMAT, "\"%s\" is %s; it must be an object", objects[i],
                           dh_config_kind(rope));
        DH_TRY(dh_config_musts(ctx, rope, musts, DH_COUNTOF(musts)));
        DH_TRY(dh_config_real(ctx, rope, "rope_theta", out->theta, &out->theta));
        *out = (dh_rope){.theta = out->theta};
        DH_TRY(read_rope_kind(ctx, rope, objects[i], out));
    }
    return DH_OK;
}

/* An object with its type and what the type needs. */
static json_t *scaling_of(const dh_rope *r)
{
    json_t *rope = json_object();
    json_object_set_new(rope, "rope_type",
                        json_string(r->scaling ? dh_rope_scaling_names[r->scaling] : "default"));
    if (r->scaling == DH_ROPE_SCALING_NONE) return rope;
    json_object_set_new(rope, "factor", json_real(r->factor));
    if (r->scaling == DH_ROPE_SCALING_LLAMA3) {
        json_object_set_new(rope, "low_freq_factor", json_real(r->low_freq_factor));
        json_object_set_new(rope, "high_freq_factor", json_real(r->high_freq_factor));
        json_object_set_new(rope, "original_max_position_embeddings",
                            json_integer(r->original_max_seq));
    }
    if (r->scaling == DH_ROPE_SCALING_YARN) dh_config_write_yarn(rope, r);
    return rope;
}

json_t *dh_config_rope_object(const dh_rope *r)
{
    json_t *rope = scaling_of(r);
    json_object_set_new(rope, "rope_theta", json_real(r->theta));
    return rope;
}

static void write_rope(json_t *config, const dh_rope *r)
{
    json_object_set_new(config, "rope_theta", json_real(r->theta));
    if (r->scaling != DH_ROPE_SCALING_NONE)
        json_object_set_new(config, "rope_scaling", scaling_of(r));
}

dh_status dh_config_read_rope(dh_ctx *ctx, const json_t *config, double default_theta, dh_rope *out)
{
    return read_rope(ctx, config, default_theta, out);
}

void dh_config_write_rope(json_t *config, const dh_rope *r)
{
    write_rope(config, r);
}

/* ---- Llama and Mixtral -------------------------------------------------------------------- */

static dh_status read_head_dim(dh_ctx *ctx, const json_t *config, const llama_defaults *d,
                               dh_model *m)
{
    DH_TRY(dh_config_int(ctx, config, "head_dim", d->head_dim, &m->head_dim));
    if (dh_config_get(config, "head_dim") || d->head_dim) return DH_OK;
    if (m->n_heads < 1 || m->width % m->n_heads)
        return dh_fail(ctx, DH_EINVAL,
                       "\"num_attention_heads\" %lld does not divide \"hidden_size\" %lld and "
                       "\"head_dim\" is not given",
                       (long long)m->n_heads, (long long)m->width);
    m->head_dim = m->width / m->n_heads;
    return DH_OK;
}

static dh_status read_llama_like(dh_ctx *ctx, const json_t *config, const llama_defaults *d,
                                 dh_model *m)
{
    const dh_config_size ints[] = {
        {"num_hidden_layers", offsetof(dh_model, n_layers), d->layers},
        {"hidden_size", offsetof(dh_model, width), d->width},
        {"num_attention_heads", offsetof(dh_model, n_heads), d->heads},
        {"intermediate_size", offsetof(dh_model, ffn_width), d->ffn},
        {"vocab_size", offsetof(dh_model, vocab), d->vocab},
        {"max_position_embeddings", offsetof(dh_model, max_seq), d->max_seq},
    };
    static const dh_config_must musts[] = {
        {"attention_bias", "false", "no biases in this family"},
        {"mlp_bias", "false", "no biases in this family"},
    };
    static const char *const silu[] = {"silu"};
    DH_TRY(dh_config_ints(ctx, config, ints, DH_COUNTOF(ints), m));
    DH_TRY(dh_config_musts(ctx, config, musts, DH_COUNTOF(musts)));
    DH_TRY(dh_config_activation(ctx, config, "hidden_act", silu, DH_COUNTOF(silu)));
    DH_TRY(dh_config_int(ctx, config, "num_key_value_heads", d->kv_heads ? d->kv_heads : m->n_heads,
                         &m->n_kv_heads));
    DH_TRY(read_head_dim(ctx, config, d, m));
    DH_TRY(dh_config_real(ctx, config, "rms_norm_eps", d->eps, &m->norm_eps));
    DH_TRY(dh_config_bool(ctx, config, "tie_word_embeddings", false, &m->tied_head));
    return read_rope(ctx, config, d->theta, &m->rope);
}

static dh_status read_llama(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 0, 11008, 32000, 2048, 1e-6, 1e4, 0};
    return read_llama_like(ctx, config, &defaults, m);
}

/* ---- windows ------------------------------------------------------------------------------- */

/* Kept where it is shorter than the longest sequence, and a layer has it. An absent one is the
 * class's, null is none. */
static dh_status read_window(dh_ctx *ctx, const json_t *config, int64_t absent, dh_model *m)
{
    int64_t window;
    if (json_object_get(config, "sliding_window")) absent = 0;
    DH_TRY(dh_config_int(ctx, config, "sliding_window", absent, &window));
    m->window = window < m->max_seq && m->window_from < m->n_layers ? window : 0;
    if (m->window == 0) m->window_from = m->window_every = 0;
    return DH_OK;
}

static bool has_window(const json_t *types, int64_t layer)
{
    return strcmp(json_string_value(json_array_get(types, (size_t)layer)), "sliding_attention") ==
           0;
}

dh_status dh_config_layer_types(dh_ctx *ctx, const json_t *config, int64_t n_layers,
                                const json_t **types)
{
    const json_t *list = dh_config_get(config, "layer_types"), *one;
    size_t i;
    *types = list;
    if (!list) return DH_OK;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != n_layers)
        return dh_fail(ctx, DH_EFORMAT, "\"layer_types\" must have a name for each of %lld layers",
                       (long long)n_layers);
    json_array_foreach(list, i, one)
    {
        const char *type = json_string_value(one);
        if (!type ||
            (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0))
            return dh_fail(
                ctx, DH_EUNSUPPORTED,
                "\"layer_types\" has \"%.60s\" for layer %zu (the first is 0); supported "
                "are full_attention and sliding_attention",
                type ? type : dh_config_kind(one), i);
    }
    return DH_OK;
}

/* Which layers have the window, one by one: all layers after the first ones, or all layers except
 * every n-th. */
static dh_status read_layer_types(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    const json_t *types;
    DH_TRY(dh_config_layer_types(ctx, config, m->n_layers, &types));
    if (!types) return DH_OK;
    bool behind = true, every = true;
    int64_t first[] = {m->n_layers, m->n_layers}; /* that sees all, that has the window */
    for (int64_t i = m->n_layers - 1; i >= 0; i--) first[has_window(types, i)] = i;
    for (int64_t i = 0; i < m->n_layers; i++) {
        const bool window = has_window(types, i);
        behind = behind && window == (i >= first[true]);
        every = every && window == ((i + 1) % (first[false] + 1) != 0);
    }
    if (!behind && !every)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"layer_types\" has a pattern that is not supported: the first layers of "
                       "one kind, or every n-th layer of one kind, would be right");
    m->window_from = behind ? first[true] : 0;
    m->window_every = behind ? 0 : first[false] + 1;
    return DH_OK;
}

static dh_status read_mistral(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 8, 14336, 32000, 131072, 1e-6, 1e4, 0};
    DH_TRY(read_llama_like(ctx, config, &defaults, m));
    return read_window(ctx, config, 4096, m);
}

/* Queries are scaled by 1 + beta ln(1 + position / original length), which is 1 for positions within
 * that length. */
static dh_status check_query_scale(dh_ctx *ctx, const json_t *config, const dh_model *m)
{
    const json_t *rope = dh_config_get(config, "rope_parameters");
    double beta;
    int64_t original;
    if (!rope)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"rope_parameters\" is missing; those of the class scale queries by their "
                       "position (llama_4_scaling_beta 0.1), which is not computed");
    DH_TRY(dh_config_real(ctx, rope, "llama_4_scaling_beta", 0, &beta));
    DH_TRY(dh_config_int(ctx, rope, "original_max_position_embeddings", 0, &original));
    if (beta == 0 || m->max_seq <= original) return DH_OK;
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "\"llama_4_scaling_beta\" is %g, which scales the queries of positions from %lld "
        "on; that is not computed, and \"max_position_embeddings\" is %lld",
        beta, (long long)original, (long long)m->max_seq);
}

static dh_status read_ministral3(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {34, 4096, 32, 8, 14336, 131072, 262144, 1e-5, 1e6, 128};
    DH_TRY(read_llama_like(ctx, config, &defaults, m));
    DH_TRY(check_query_scale(ctx, config, m));
    return read_window(ctx, config, 0, m);
}

static dh_status read_text_of_images(dh_ctx *ctx, const json_t *text, dh_model *m)
{
    const char *type;
    DH_TRY(dh_config_text(ctx, text, "model_type", "mistral", &type));
    DH_TRY(dh_config_check_causal(ctx, text));
    if (strcmp(type, "ministral3") == 0)
        DH_TRY(read_ministral3(ctx, text, m));
    else if (strcmp(type, "mistral") == 0)
        DH_TRY(read_mistral(ctx, text, m));
    else
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"model_type\" is \"%s\"; supported are mistral and ministral3", type);
    return dh_config_check_layer_types(ctx, text, m);
}

/* Of a model that reads images too the text model, as an object of its own. Whether the head is tied
 * is said beside it, where it is said. */
static dh_status read_mistral3_images(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    const json_t *text = dh_config_get(config, "text_config");
    if (!json_is_object(text))
        return dh_fail(
            ctx, DH_EFORMAT,
            "\"text_config\" of model_type \"mistral3\" is %s; it must be an object, the "
            "text model's configuration",
            text ? dh_config_kind(text) : "missing");
    if (read_text_of_images(ctx, text, m) != DH_OK)
        return dh_ctx_while(ctx, "reading \"text_config\"");
    return dh_config_bool(ctx, config, "tie_word_embeddings", m->tied_head, &m->tied_head);
}

/* The first max_window_layers see all, unless layer_types says which do. */
static dh_status read_qwen(dh_ctx *ctx, const json_t *config, const llama_defaults *d, dh_model *m)
{
    bool windowed;
    DH_TRY(read_llama_like(ctx, config, d, m));
    DH_TRY(dh_config_bool(ctx, config, "use_sliding_window", false, &windowed));
    if (!windowed) return DH_OK;
    DH_TRY(dh_config_int(ctx, config, "max_window_layers", 28, &m->window_from));
    if (m->window_from < 0)
        return dh_fail(ctx, DH_EINVAL, "\"max_window_layers\" is %lld; it must not be negative",
                       (long long)m->window_from);
    DH_TRY(read_layer_types(ctx, config, m));
    return read_window(ctx, config, 4096, m);
}

static dh_status read_qwen2(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 32, 22016, 151936, 32768, 1e-6, 1e4, 0};
    return read_qwen(ctx, config, &defaults, m);
}

static dh_status read_qwen3(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 32, 22016, 151936, 32768, 1e-6, 1e4, 128};
    return read_qwen(ctx, config, &defaults, m);
}

dh_status dh_config_read_windowed(dh_ctx *ctx, const json_t *config, const llama_defaults *d,
                                  dh_model *m)
{
    DH_TRY(read_llama_like(ctx, config, d, m));
    return read_window(ctx, config, 0, m);
}

static dh_status read_phi3(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 3072, 32, 0, 8192, 32064, 4096, 1e-5, 1e4, 0};
    return dh_config_read_windowed(ctx, config, &defaults, m);
}

/* These have no windows here: Transformers gives one to every layer of Qwen 3 with experts. */
dh_status dh_config_read_relative(dh_ctx *ctx, const json_t *config, const llama_defaults *d,
                                  dh_model *m)
{
    static const dh_config_must musts[] = {
        {"use_sliding_window", "false", "every token sees all before it"}};
    DH_TRY(dh_config_musts(ctx, config, musts, DH_COUNTOF(musts)));
    return read_llama_like(ctx, config, d, m);
}

static dh_status read_mixtral(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 8, 14336, 32000, 131072, 1e-5, 1e6, 0};
    static const dh_config_must musts[] = {
        {"router_jitter_noise", "0", "routing is not randomized"}};
    DH_TRY(dh_config_read_windowed(ctx, config, &defaults, m));
    DH_TRY(dh_config_musts(ctx, config, musts, DH_COUNTOF(musts)));
    DH_TRY(dh_config_int(ctx, config, "num_local_experts", 8, &m->n_experts));
    DH_TRY(dh_config_int(ctx, config, "num_experts_per_tok", 2, &m->top_k));
    return dh_config_real(ctx, config, "router_aux_loss_coef", 0.001, &m->router_aux_coef);
}

static void write_llama(json_t *config, const dh_model *m)
{
    json_object_set_new(config, "num_hidden_layers", json_integer(m->n_layers));
    json_object_set_new(config, "hidden_size", json_integer(m->width));
    json_object_set_new(config, "num_attention_heads", json_integer(m->n_heads));
    json_object_set_new(config, "num_key_value_heads", json_integer(m->n_kv_heads));
    json_object_set_new(config, "head_dim", json_integer(m->head_dim));
    json_object_set_new(config, "intermediate_size", json_integer(m->ffn_width));
    json_object_set_new(config, "vocab_size", json_integer(m->vocab));
    json_object_set_new(config, "max_position_embeddings", json_integer(m->max_seq));
    json_object_set_new(config, "hidden_act", json_string("silu"));
    json_object_set_new(config, "rms_norm_eps", json_real(m->norm_eps));
    if (m->family == DH_FAMILY_LLAMA) json_object_set_new(config, "attention_bias", json_false());
    write_rope(config, &m->rope);
}

void dh_config_write_relative(json_t *config, const dh_model *m)
{
    write_llama(config, m);
}

/* Classes whose absent or null window has a meaning of its own. */
static void write_windowed(json_t *config, const dh_model *m)
{
    write_llama(config, m);
    json_object_set_new(config, "sliding_window",
                        m->window ? json_integer(m->window) : json_null());
}

static void write_qwen(json_t *config, const dh_model *m)
{
    write_llama(config, m);
    if (m->window == 0) return;
    json_t *types = json_array();
    for (int64_t i = 0; i < m->n_layers; i++)
        json_array_append_new(
            types, json_string(dh_model_window(m, i) ? "sliding_attention" : "full_attention"));
    json_object_set_new(config, "use_sliding_window", json_true());
    json_object_set_new(config, "sliding_window", json_integer(m->window));
    json_object_set_new(config, "max_window_layers", json_integer(m->window_from));
    json_object_set_new(config, "layer_types", types);
}

static void write_mixtral(json_t *config, const dh_model *m)
{
    write_windowed(config, m);
    json_object_set_new(config, "num_local_experts", json_integer(m->n_experts));
    json_object_set_new(config, "num_experts_per_tok", json_integer(m->top_k));
    json_object_set_new(config, "router_aux_loss_coef", json_real(m->router_aux_coef));
}

/* ---- config classes ------------------------------------------------------------------------ */

static const struct config_class {
    const char *model_type, *architecture;
    dh_family family;
    dh_status (*read)(dh_ctx *ctx, const json_t *config, dh_model *m);
    void (*write)(json_t *config, const dh_model *m); /* NULL: read only */
    bool linear; /* linear attention: of our own, transformers has no such class and refuses it */
} classes[] = {
    {"gpt2", "GPT2LMHeadModel", DH_FAMILY_GPT2, read_gpt2, write_gpt2, false},
    {"llama", "LlamaForCausalLM", DH_FAMILY_LLAMA, read_llama, write_llama, false},
    {"mixtral", "MixtralForCausalLM", DH_FAMILY_MIXTRAL, read_mixtral, write_mixtral, false},
    {"mistral", "MistralForCausalLM", DH_FAMILY_MISTRAL, read_mistral, write_windowed, false},
    {"ministral3", "Ministral3ForCausalLM", DH_FAMILY_MISTRAL, read_ministral3, NULL, false},
    {"mistral3", "Mistral3ForConditionalGeneration", DH_FAMILY_MISTRAL, read_mistral3_images, NULL,
     false},
    {"qwen2", "Qwen2ForCausalLM", DH_FAMILY_QWEN2, read_qwen2, write_qwen, false},
    {"qwen3", "Qwen3ForCausalLM", DH_FAMILY_QWEN3, read_qwen3, write_qwen, false},
    {"phi3", "Phi3ForCausalLM", DH_FAMILY_PHI3, read_phi3, write_windowed, false},
    {"olmo2", "Olmo2ForCausalLM", DH_FAMILY_OLMO2, dh_config_read_olmo2, dh_config_write_relative,
     false},
    {"olmo3", "Olmo3ForCausalLM", DH_FAMILY_OLMO3, dh_config_read_olmo3, dh_config_write_olmo3,
     false},
    {"smollm3", "SmolLM3ForCausalLM", DH_FAMILY_SMOLLM3, dh_config_read_smollm3,
     dh_config_write_smollm3, false},
    {"qwen3_moe", "Qwen3MoeForCausalLM", DH_FAMILY_QWEN3_MOE, dh_config_read_qwen3_moe,
     dh_config_write_qwen3_moe, false},
    {"gemma2", "Gemma2ForCausalLM", DH_FAMILY_GEMMA2, dh_config_read_gemma2, dh_config_write_gemma2,
     false},
    {"gemma3_text", "Gemma3ForCausalLM", DH_FAMILY_GEMMA3, dh_config_read_gemma3,
     dh_config_write_gemma3, false},
    {"gemma3", "Gemma3ForConditionalGeneration", DH_FAMILY_GEMMA3, dh_config_read_gemma3_images,
     NULL, false},
    {"deepseek_v3", "DeepseekV3ForCausalLM", DH_FAMILY_DEEPSEEK3, dh_config_read_deepseek3,
     dh_config_write_deepseek3, false},
    {"kimi_k2", "DeepseekV3ForCausalLM", DH_FAMILY_DEEPSEEK3, dh_config_read_deepseek3, NULL,
     false},
    {"linear_llama", "LinearLlamaForCausalLM", DH_FAMILY_LLAMA, read_llama, write_llama, true},
    {"linear_mixtral", "LinearMixtralForCausalLM", DH_FAMILY_MIXTRAL, read_mixtral, write_mixtral,
     true},
    {"phimoe", "PhimoeForCausalLM", DH_FAMILY_PHIMOE, dh_config_read_phimoe, dh_config_write_phimoe,
     false},
    /* as the published files call it */
    {"phimoe", "PhiMoEForCausalLM", DH_FAMILY_PHIMOE, dh_config_read_phimoe, NULL, false},
};

/* Names of the classes, also of those that are written as another, each once. */
static const char *supported(char *list, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < DH_COUNTOF(classes) && n < cap; i++)
        if (i == 0 || strcmp(classes[i].model_type, classes[i - 1].model_type) != 0)
            n += (size_t)snprintf(list + n, cap - n, "%s%s", i ? ", " : "", classes[i].model_type);
    return list;
}

/* By model_type; older files have only architectures. */
static dh_status find_class(dh_ctx *ctx, const json_t *config, const struct config_class **found)
{
    const char *type;
    char list[512];
    DH_TRY(dh_config_text(ctx, config, "model_type", NULL, &type));
    const json_t *first = json_array_get(json_object_get(config, "architectures"), 0);
    const char *architecture = json_string_value(first);
    for (size_t i = 0; i < DH_COUNTOF(classes); i++)
        if (type ? strcmp(type, classes[i].model_type) == 0
                 : architecture && strcmp(architecture, classes[i].architecture) == 0) {
            *found = &classes[i];
            return DH_OK;
        }
    if (!type && !architecture)
        return dh_fail(ctx, DH_EFORMAT, "\"model_type\" is missing; it must be one of %s",
                       supported(list, sizeof list));
    return dh_fail(ctx, DH_EUNSUPPORTED, "\"%s\" is \"%s\"; supported are %s",
                   type ? "model_type" : "architectures", type ? type : architecture,
                   supported(list, sizeof list));
}

/* ---- what no class of these is ------------------------------------------------------------- */

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* Encoders and classifiers have the keys of the causal model that they were made of. */
static dh_status check_architecture(dh_ctx *ctx, const json_t *one)
{
    const char *name = json_string_value(one);
    bool causal = !name || ends_in(name, "ForCausalLM") || ends_in(name, "LMHeadModel");
    for (size_t i = 0; i < DH_COUNTOF(classes) && !causal; i++)
        causal = strcmp(name, classes[i].architecture) == 0;
    if (causal) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "\"architectures\" has \"%.100s\"; only causal language models are read, whose "
                   "names end in ForCausalLM or LMHeadModel",
                   name);
}

dh_status dh_config_check_causal(dh_ctx *ctx, const json_t *config)
{
    static const char why[] = "only causal language models are read";
    static const dh_config_must musts[] = {{"is_causal", "true", why},
                                           {"use_bidirectional_attention", "false", why},
                                           {"causal", "true", why},
                                           {"causal_attention", "true", why},
                                           {"problem_type", "null", why},
                                           {"use_bidirectional", "false", why},
                                           {"bidirectional", "false", why},
                                           {"is_encoder_decoder", "false", why},
                                           {"add_cross_attention", "false", why}};
    const json_t *names = json_object_get(config, "architectures"), *one;
    size_t i;
    DH_TRY(check_architecture(ctx, names)); /* a text that should be a list */
    json_array_foreach(names, i, one) DH_TRY(check_architecture(ctx, one));
    return dh_config_musts(ctx, config, musts, DH_COUNTOF(musts));
}

dh_status dh_config_check_layer_types(dh_ctx *ctx, const json_t *config, const dh_model *m)
{
    const json_t *types;
    int64_t window;
    DH_TRY(dh_config_layer_types(ctx, config, m->n_layers, &types));
    if (!types) return DH_OK;
    DH_TRY(dh_config_int(ctx, config, "sliding_window", 0, &window));
    for (int64_t i = 0; i < m->n_layers && window > 0 && window < m->max_seq; i++)
        if (has_window(types, i) && dh_model_window(m, i) == 0)
            return dh_fail(
                ctx, DH_EUNSUPPORTED,
                "\"layer_types\" has \"sliding_attention\" for layer %lld (the first is "
                "0), \"sliding_window\" is %lld: by the other keys of this %s model every "
                "token there sees all before it",
                (long long)i, (long long)window, dh_family_names[m->family]);
    return DH_OK;
}

/* Keeps the last part of a long "organisation/name". */
static void set_name(dh_model *m, const char *name)
{
    if (strlen(name) >= sizeof m->name) {
        const char *slash = strrchr(name, '/');
        if (slash && slash[1]) name = slash + 1;
    }
    snprintf(m->name, sizeof m->name, "%s", name);
}

static dh_status read_linear(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    const char *map;
    int i = 0;
    DH_TRY(dh_config_text(ctx, config, "feature_map", dh_feature_map_names[0], &map));
    while (i < DH_N_FEATURE_MAPS && strcmp(map, dh_feature_map_names[i]) != 0) i++;
    if (i == DH_N_FEATURE_MAPS)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"feature_map\" is \"%s\"; supported are elu, identity and silu", map);
    m->attention = DH_ATTENTION_LINEAR;
    m->feature_map = (dh_feature_map)i;
    return dh_config_int(ctx, config, "softmax_every", 0, &m->softmax_every);
}

static dh_status read_config(dh_ctx *ctx, const json_t *config, dh_model *model)
{
    if (!json_is_object(config))
        return dh_fail(ctx, DH_EFORMAT, "the file holds %s; a model configuration is an object",
                       dh_config_kind(config));
    const struct config_class *class = NULL;
    DH_TRY(find_class(ctx, config, &class));
    DH_TRY(dh_config_check_causal(ctx, config));
    dh_model m;
    dh_model_init(&m, class->family);
    DH_TRY(class->read(ctx, config, &m));
    /* Readers of image models check the layers of their text models. */
    if (class->read != dh_config_read_gemma3_images && class->read != read_mistral3_images)
        DH_TRY(dh_config_check_layer_types(ctx, config, &m));
    if (class->linear) DH_TRY(read_linear(ctx, config, &m));
    DH_TRY(dh_config_real(ctx, config, "initializer_range", 0.02, &m.init_std));
    const char *name;
    DH_TRY(dh_config_text(ctx, config, "_name_or_path", "", &name));
    set_name(&m, *name ? name : class->model_type);
    DH_TRY(dh_model_validate(ctx, &m));
    *model = m;
    return DH_OK;
}

dh_status dh_model_from_config_json(dh_ctx *ctx, const char *text, size_t n_bytes, dh_model *model)
{
    DH_NEEDS(ctx, text);
    DH_NEEDS(ctx, model);
    json_error_t error;
    json_t *config;
    DH_TRY(dh_json_read(ctx, text, n_bytes, JSON_REJECT_DUPLICATES, &error, &config));
    if (!config)
        return dh_fail(ctx, DH_EFORMAT, "config.json line %d, column %d: %s", error.line,
                       error.column, error.text);
    dh_status st = read_config(ctx, config, model);
    json_decref(config);
    return st;
}

dh_status dh_model_from_config_file(dh_ctx *ctx, const char *path, dh_model *model)
{
    DH_NEEDS(ctx, path);
    DH_NEEDS(ctx, model);
    dh_str file = DH_STR_INIT;
    dh_str_printf(&file, dh_path_is_dir(path) ? "%s/config.json" : "%s", path);
    if (file.failed || !file.text) {
        dh_str_fini(&file);
        return dh_no_memory(ctx);
    }
    char *text = NULL;
    size_t n_bytes = 0;
    dh_status st = dh_file_read(ctx, file.text, CONFIG_MAX_BYTES, &text, &n_bytes);
    if (st == DH_OK) {
        st = dh_model_from_config_json(ctx, text, n_bytes, model);
        if (st != DH_OK) dh_ctx_while(ctx, "reading %s", file.text);
    }
    free(text);
    dh_str_fini(&file);
    return st;
}

/* ---- writing -------------------------------------------------------------------------------- */

static const struct config_class *writer_of(const dh_model *m)
{
    const bool linear = m->attention == DH_ATTENTION_LINEAR;
    for (size_t i = 0; i < DH_COUNTOF(classes); i++)
        if (classes[i].family == m->family && classes[i].linear == linear && classes[i].write)
            return &classes[i];
    return NULL;
}

dh_status dh_model_to_config_json(dh_ctx *ctx, const dh_model *model, char **text)
{
    DH_NEEDS(ctx, model);
    DH_NEEDS(ctx, text);
    DH_TRY(dh_model_validate(ctx, model));
    DH_TRY(dh_model_check_computed(ctx, model));
    const struct config_class *class = writer_of(model);
    json_t *config = json_object();
    if (*model->name) json_object_set_new(config, "_name_or_path", json_string(model->name));
    json_object_set_new(config, "architectures", json_pack("[s]", class->architecture));
    json_object_set_new(config, "model_type", json_string(class->model_type));
    class->write(config, model);
    if (class->linear)
        json_object_set_new(config, "feature_map",
                            json_string(dh_feature_map_names[model->feature_map]));
    if (model->softmax_every)
        json_object_set_new(config, "softmax_every", json_integer(model->softmax_every));
    json_object_set_new(config, "tie_word_embeddings", json_boolean(model->tied_head));
    json_object_set_new(config, "initializer_range", json_real(model->init_std));
    return dh_json_text_exact(ctx, config, JSON_INDENT(2), text);
}
