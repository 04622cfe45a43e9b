/* Config classes that share Llama's keys and have layers of their own: OLMo 2 and 3, SmolLM 3, Qwen 3
 * with experts. */
#include "model_classes.h"

dh_status dh_config_read_olmo2(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 0, 11008, 50304, 2048, 1e-5, 1e4, 0};
    return dh_config_read_relative(ctx, config, &defaults, m);
}

/* ---- OLMo 3 ---------------------------------------------------------------------------------- */

/* Rotary positions are stretched in layers that see all tokens, and in no layer with a window. */
static dh_status read_olmo3_ropes(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    bool both;
    double theta;
    DH_TRY(dh_config_real(ctx, config, "rope_theta", 5e5, &theta));
    DH_TRY(dh_config_read_typed_ropes(ctx, config, theta, theta, m, &both));
    if (both) return DH_OK;
    DH_TRY(dh_config_read_rope(ctx, config, theta, &m->rope_nth));
    m->rope = (dh_rope){.theta = m->rope_nth.theta};
    return DH_OK;
}

dh_status dh_config_read_olmo3(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 0, 11008, 50304, 2048, 1e-5, 5e5, 0};
    int64_t window;
    DH_TRY(dh_config_read_relative(ctx, config, &defaults, m));
    DH_TRY(dh_config_read_nth_types(ctx, config, m, &m->nth));
    const int64_t absent = json_object_get(config, "sliding_window") ? 0 : 4096; /* null: none */
    DH_TRY(dh_config_int(ctx, config, "sliding_window", absent, &window));
    m->window = window < m->max_seq ? window : 0;
    m->window_every = m->window && m->nth <= m->n_layers ? m->nth : 0;
    return read_olmo3_ropes(ctx, config, m);
}

/* The older spelling has one theta, and scaling of layers that see all alone. */
void dh_config_write_olmo3(json_t *config, const dh_model *m)
{
    dh_config_write_relative(config, m);
    json_object_del(config, "rope_theta");
    json_object_del(config, "rope_scaling");
    if (m->rope.scaling == DH_ROPE_SCALING_NONE && m->rope.theta == m->rope_nth.theta)
        dh_config_write_rope(config, &m->rope_nth);
    else
        dh_config_write_typed_ropes(config, m);
    json_object_set_new(config, "sliding_window",
                        m->window ? json_integer(m->window) : json_null());
    dh_config_write_nth_types(config, m, m->nth);
}

/* ---- layers of two kinds --------------------------------------------------------------------- */

/* A list has an entry a layer: 0 for the n-th ones, 1 for others. */
static dh_status read_nope_layers(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    const json_t *list = dh_config_get(config, "no_rope_layers");
    if (!list) return DH_OK;
    const int64_t n = (int64_t)json_array_size(list);
    m->nth = m->nth > n ? m->nth : 0; /* none of so few layers */
    for (int64_t i = 0; i < n && !m->nth; i++)
        if (json_integer_value(json_array_get(list, (size_t)i)) == 0) m->nth = i + 1;
    bool fits = json_is_array(list) && n == m->n_layers;
    for (int64_t i = 0; i < n && fits; i++)
        fits = json_integer_value(json_array_get(list, (size_t)i)) ==
               (m->nth && (i + 1) % m->nth == 0 ? 0 : 1);
    if (fits) return DH_OK;
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "\"no_rope_layers\" must have a number for each of %lld layers, 0 for every n-th "
        "and 1 for the others; other patterns are not supported",
        (long long)m->n_layers);
}

dh_status dh_config_read_smollm3(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {36, 2048, 16, 4, 11008, 128256, 32768, 1e-6, 2e6, 0};
    DH_TRY(dh_config_read_relative(ctx, config, &defaults, m));
    DH_TRY(dh_config_bool(ctx, config, "tie_word_embeddings", true, &m->tied_head));
    DH_TRY(dh_config_int(ctx, config, "no_rope_layer_interval", 4, &m->nth));
    return read_nope_layers(ctx, config, m);
}

void dh_config_write_smollm3(json_t *config, const dh_model *m)
{
    json_t *list = json_array();
    dh_config_write_relative(config, m);
    json_object_set_new(config, "no_rope_layer_interval", json_integer(m->nth));
    for (int64_t i = 0; i < m->n_layers; i++)
        json_array_append_new(list, json_integer(m->nth && (i + 1) % m->nth == 0 ? 0 : 1));
    json_object_set_new(config, "no_rope_layers", list);
}

/* ---- Qwen 3 with experts --------------------------------------------------------------------- */

static bool is_listed(const json_t *list, int64_t layer)
{
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one) if (json_integer_value(one) == layer) return true;
    return false;
}

static dh_status check_list(dh_ctx *ctx, const json_t *list, int64_t n_layers)
{
    size_t i;
    const json_t *one;
    bool fits = json_is_array(list);
    json_array_foreach(list, i, one) fits = fits && json_is_integer(one) &&
                                            json_integer_value(one) >= 0 &&
                                            json_integer_value(one) < n_layers;
    if (fits) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT,
                   "\"mlp_only_layers\" must be a list of numbers of layers, from 0 to %lld",
                   (long long)n_layers - 1);
}

/* Two kinds of layers have no experts: those that mlp_only_layers names, and those that are not the
 * n-th. */
static dh_status read_dense_layers(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    int64_t step;
    const json_t *list = dh_config_get(config, "mlp_only_layers");
    DH_TRY(dh_config_int(ctx, config, "decoder_sparse_step", 1, &step));
    if (step < 1)
        return dh_fail(ctx, DH_EINVAL, "\"decoder_sparse_step\" is %lld; it must be positive",
                       (long long)step);
    m->moe_every = step > 1 ? step : 0;
    if (list) DH_TRY(check_list(ctx, list, m->n_layers));
    while (m->dense_first < m->n_layers && is_listed(list, m->dense_first)) m->dense_first++;
    for (int64_t layer = m->dense_first; layer < m->n_layers; layer++)
        if (is_listed(list, layer) && (layer + 1) % step == 0)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "\"mlp_only_layers\" has %lld and not %lld; supported are the first "
                           "layers, and all except every n-th (decoder_sparse_step)",
                           (long long)layer, (long long)m->dense_first);
    return DH_OK;
}

dh_status dh_config_read_qwen3_moe(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const llama_defaults defaults = {24, 2048, 32, 4, 6144, 151936, 32768, 1e-6, 1e4, 0};
    bool normed;
    DH_TRY(dh_config_read_relative(ctx, config, &defaults, m));
    DH_TRY(read_dense_layers(ctx, config, m));
    if (m->dense_first || m->moe_every) m->dense_width = m->ffn_width;
    DH_TRY(dh_config_int(ctx, config, "moe_intermediate_size", 768, &m->ffn_width));
    DH_TRY(dh_config_int(ctx, config, "num_local_experts", 128, &m->n_experts)); /* newer files */
    DH_TRY(dh_config_int(ctx, config, "num_experts", m->n_experts, &m->n_experts));
    DH_TRY(dh_config_int(ctx, config, "num_experts_per_tok", 8, &m->top_k));
    DH_TRY(dh_config_bool(ctx, config, "norm_topk_prob", false, &normed));
    m->topk_plain = !normed;
    return dh_config_real(ctx, config, "router_aux_loss_coef", 0.001, &m->router_aux_coef);
}

void dh_config_write_dense_width(json_t *config, const dh_model *m)
{
    if (m->dense_width)
        json_object_set_new(config, "intermediate_size", json_integer(m->dense_width));
    else
        json_object_del(config, "intermediate_size");
}

void dh_config_write_qwen3_moe(json_t *config, const dh_model *m)
{
    dh_config_write_relative(config, m);
    dh_config_write_dense_width(config, m);
    if (m->moe_every)
        json_object_set_new(config, "decoder_sparse_step", json_integer(m->moe_every));
    json_t *list = m->dense_first ? json_array() : NULL;
    for (int64_t i = 0; i < m->dense_first; i++) json_array_append_new(list, json_integer(i));
    if (list) json_object_set_new(config, "mlp_only_layers", list);
    json_object_set_new(config, "moe_intermediate_size", json_integer(m->ffn_width));
    json_object_set_new(config, "num_experts", json_integer(m->n_experts));
    json_object_set_new(config, "num_experts_per_tok", json_integer(m->top_k));
    json_object_set_new(config, "norm_topk_prob", json_boolean(!m->topk_plain));
    json_object_set_new(config, "router_aux_loss_coef", json_real(m->router_aux_coef));
}
