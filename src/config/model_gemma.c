/* Config classes of Gemma 2 and of Gemma 3's text model.
 *
 * Both know caps of attention's scores; of Gemma 3 Transformers reads one and does not apply it, so
 * it is refused. */
#include "model_classes.h"

#include <stdio.h>
#include <string.h>

typedef struct gemma_defaults {
    int64_t vocab, max_seq, every; /* every: of so many layers the last has no window */
    double theta, softcap;
} gemma_defaults;

/* ---- both ------------------------------------------------------------------------------------ */

/* A cap that is absent is the class's, null is none. */
static dh_status read_cap(dh_ctx *ctx, const json_t *config, const char *key, double usual,
                          double *cap)
{
    const bool none = json_is_null(json_object_get(config, key));
    return dh_config_real(ctx, config, key, none ? 0 : usual, cap);
}

static dh_status read_gemma(dh_ctx *ctx, const json_t *config, const gemma_defaults *d, dh_model *m)
{
    const dh_config_size ints[] = {
        {"num_hidden_layers", offsetof(dh_model, n_layers), 26},
        {"hidden_size", offsetof(dh_model, width), 2304},
        {"num_attention_heads", offsetof(dh_model, n_heads), 8},
        {"num_key_value_heads", offsetof(dh_model, n_kv_heads), 4},
        {"head_dim", offsetof(dh_model, head_dim), 256},
        {"intermediate_size", offsetof(dh_model, ffn_width), 9216},
        {"vocab_size", offsetof(dh_model, vocab), d->vocab},
        {"max_position_embeddings", offsetof(dh_model, max_seq), d->max_seq},
    };
    static const dh_config_must musts[] = {
        {"attention_bias", "false", "no biases in this family"},
    };
    static const char *const gelu_tanh[] = {"gelu_pytorch_tanh"};
    DH_TRY(dh_config_ints(ctx, config, ints, DH_COUNTOF(ints), m));
    DH_TRY(dh_config_musts(ctx, config, musts, DH_COUNTOF(musts)));
    DH_TRY(dh_config_activation(ctx, config, "hidden_activation", gelu_tanh, 1));
    DH_TRY(dh_config_real(ctx, config, "rms_norm_eps", 1e-6, &m->norm_eps));
    DH_TRY(dh_config_bool(ctx, config, "tie_word_embeddings", true, &m->tied_head));
    DH_TRY(dh_config_real(ctx, config, "query_pre_attn_scalar", 256, &m->query_scalar));
    DH_TRY(read_cap(ctx, config, "final_logit_softcapping", d->softcap, &m->logit_softcap));
    int64_t window;
    DH_TRY(dh_config_int(ctx, config, "sliding_window", 4096, &window));
    m->window = window < m->max_seq ? window : 0;
    return DH_OK;
}

/* Every n-th layer attends to all tokens; a model with fewer layers has none such. */
static void set_pattern(dh_model *m, int64_t every)
{
    m->window_every = m->window && every <= m->n_layers ? every : 0;
}

static void write_cap(json_t *config, const char *key, double cap)
{
    json_object_set_new(config, key, cap > 0 ? json_real(cap) : json_null());
}

static void write_gemma(json_t *config, const dh_model *m)
{
    dh_config_write_relative(config, m);
    json_object_del(config, "hidden_act");
    json_object_set_new(config, "hidden_activation", json_string("gelu_pytorch_tanh"));
    /* Transformers takes no other than a whole number. */
    const double scalar = m->query_scalar > 0 ? m->query_scalar : (double)m->head_dim;
    json_object_set_new(config, "query_pre_attn_scalar", json_integer((json_int_t)scalar));
    write_cap(config, "final_logit_softcapping", m->logit_softcap);
    write_cap(config, "attn_logit_softcapping", m->attn_softcap);
    json_object_set_new(config, "sliding_window", json_integer(m->window ? m->window : m->max_seq));
}

/* ---- Gemma 2 --------------------------------------------------------------------------------- */

dh_status dh_config_read_gemma2(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const gemma_defaults defaults = {256000, 8192, 2, 1e4, 30};
    int64_t every = defaults.every;
    DH_TRY(read_gemma(ctx, config, &defaults, m));
    DH_TRY(read_cap(ctx, config, "attn_logit_softcapping", 50, &m->attn_softcap));
    DH_TRY(dh_config_read_nth_types(ctx, config, m, &every));
    if (every != defaults.every)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "\"layer_types\" of Gemma 2 must have full_attention for every second layer");
    set_pattern(m, every);
    return dh_config_read_rope(ctx, config, defaults.theta, &m->rope);
}

void dh_config_write_gemma2(json_t *config, const dh_model *m)
{
    write_gemma(config, m);
    dh_config_write_nth_types(config, m, 2);
}

/* ---- Gemma 3 --------------------------------------------------------------------------------- */

static dh_status read_ropes(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    bool both;
    DH_TRY(dh_config_read_typed_ropes(ctx, config, 1e4, 1e6, m, &both));
    if (both) return DH_OK;
    DH_TRY(dh_config_read_rope(ctx, config, 1e6, &m->rope_nth));
    m->rope = (dh_rope){0};
    return dh_config_real(ctx, config, "rope_local_base_freq", 1e4, &m->rope.theta);
}

dh_status dh_config_read_gemma3(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const gemma_defaults defaults = {262208, 131072, 6, 1e6, 0};
    DH_TRY(read_gemma(ctx, config, &defaults, m));
    if (dh_config_get(config, "attn_logit_softcapping"))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "\"attn_logit_softcapping\" is given; scores of attention are capped in "
                       "Gemma 2 alone: only null is supported");
    DH_TRY(dh_config_int(ctx, config, "sliding_window_pattern", defaults.every, &m->nth));
    DH_TRY(dh_config_read_nth_types(ctx, config, m, &m->nth));
    set_pattern(m, m->nth);
    return read_ropes(ctx, config, m);
}

/* Of a model that reads images too the text model, as an object of its own. */
dh_status dh_config_read_gemma3_images(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    const json_t *text = dh_config_get(config, "text_config");
    if (!json_is_object(text))
        return dh_fail(ctx, DH_EFORMAT,
                       "\"text_config\" of model_type \"gemma3\" is %s; it must be an object, the "
                       "text model's configuration",
                       text ? dh_config_kind(text) : "missing");
    dh_status st = dh_config_check_causal(ctx, text);
    if (st == DH_OK) st = dh_config_read_gemma3(ctx, text, m);
    if (st == DH_OK) st = dh_config_check_layer_types(ctx, text, m);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "reading \"text_config\"");
}

/* Older spellings have no scaling of layers with a window: then an object for each type of layer. */
static void write_ropes(json_t *config, const dh_model *m)
{
    json_object_del(config,
                    "rope_theta"); /* which write_gemma took from the layers with a window */
    json_object_del(config, "rope_scaling");
    if (m->rope.scaling == DH_ROPE_SCALING_NONE) {
        dh_config_write_rope(config, &m->rope_nth);
        json_object_set_new(config, "rope_local_base_freq", json_real(m->rope.theta));
        return;
    }
    dh_config_write_typed_ropes(config, m);
}

void dh_config_write_gemma3(json_t *config, const dh_model *m)
{
    write_gemma(config, m);
    write_ropes(config, m);
    json_object_set_new(config, "sliding_window_pattern", json_integer(m->nth));
    dh_config_write_nth_types(config, m, m->nth);
}
