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

/* ---- layers ---------------------------------------------------------------------------------- */

static const char *type_of(int64_t layer, int64_t every)
{
    return (layer + 1) % every == 0 ? "full_attention" : "sliding_attention";
}

/* Of so many layers the last has no window: which number that is, by the list. */
static dh_status read_types(dh_ctx *ctx, const json_t *config, const dh_model *m, int64_t *every)
{
    const json_t *list;
    DH_TRY(dh_config_layer_types(ctx, config, m->n_layers, &list));
    if (!list) return DH_OK;
    const int64_t n = (int64_t)json_array_size(list);
    int64_t first = 0;
    while (first < n) {
        const char *type = json_string_value(json_array_get(list, (size_t)first));
        if (strcmp(type, "full_attention") == 0) break;
        first++;
    }
    if (first < n || *every <= n) *every = first + 1; /* else there are fewer layers than that */
    bool fits = *every > 1;
    for (int64_t i = 0; i < n && fits; i++) {
        const char *type = json_string_value(json_array_get(list, (size_t)i));
        fits = strcmp(type, type_of(i, *every)) == 0;
    }
    if (fits) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "\"layer_types\" must have full_attention for every n-th layer (from 2 on) and "
                   "sliding_attention for the others");
}

static void write_types(json_t *config, const dh_model *m, int64_t every)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < m->n_layers; i++)
        json_array_append_new(list, json_string(type_of(i, every)));
    json_object_set_new(config, "layer_types", list);
}

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
    DH_TRY(read_types(ctx, config, m, &every));
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
    write_types(config, m, 2);
}

/* ---- Gemma 3 --------------------------------------------------------------------------------- */

/* Newer files have an object for each type of layer in one. */
static dh_status read_ropes(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const char *const types[2] = {"sliding_attention", "full_attention"};
    const json_t *both = dh_config_get(config, "rope_parameters");
    if (!both || !dh_config_get(both, types[0])) {
        DH_TRY(dh_config_read_rope(ctx, config, 1e6, &m->rope_nth));
        m->rope = (dh_rope){0};
        return dh_config_real(ctx, config, "rope_local_base_freq", 1e4, &m->rope.theta);
    }
    for (int i = 0; i < 2; i++) {
        json_t *one = json_pack("{s:O?}", "rope_parameters", dh_config_get(both, types[i]));
        if (!one) return dh_fail(ctx, DH_ENOMEM, "out of memory");
        const dh_status st =
            dh_config_read_rope(ctx, one, i ? 1e6 : 1e4, i ? &m->rope_nth : &m->rope);
        json_decref(one);
        DH_TRY(st);
    }
    return DH_OK;
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
    DH_TRY(read_types(ctx, config, m, &m->nth));
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
    json_object_set_new(config, "rope_parameters",
                        json_pack("{so so}", "sliding_attention", dh_config_rope_object(&m->rope),
                                  "full_attention", dh_config_rope_object(&m->rope_nth)));
}

void dh_config_write_gemma3(json_t *config, const dh_model *m)
{
    write_gemma(config, m);
    write_ropes(config, m);
    json_object_set_new(config, "sliding_window_pattern", json_integer(m->nth));
    write_types(config, m, m->nth);
}
