/* DeepSeek V3 (arXiv 2412.19437, section 2.1): latent attention, shared experts, routing by
 * sigmoids in groups; its config class, and yarn's stretching of rotary positions, which others may
 * have too.
 *
 * Its first layers may be without experts. Modules that predict further tokens are not computed:
 * they are left out, and a model is written without them. */
#include "model_classes.h"
#include "model_names.h"

#include <math.h>

/* ---- yarn ------------------------------------------------------------------------------------ */

dh_status dh_config_read_yarn(dh_ctx *ctx, const json_t *rope, dh_rope *out)
{
    static const dh_config_must musts[] = {
        {"truncate", "true", "the range of turns that is blended ends at whole channels"}};
    DH_TRY(dh_config_musts(ctx, rope, musts, DH_COUNTOF(musts)));
    DH_TRY(dh_config_real(ctx, rope, "beta_fast", 32, &out->beta_fast));
    DH_TRY(dh_config_real(ctx, rope, "beta_slow", 1, &out->beta_slow));
    DH_TRY(dh_config_real(ctx, rope, "mscale", 0, &out->mscale));
    DH_TRY(dh_config_real(ctx, rope, "mscale_all_dim", 0, &out->mscale_all));
    DH_TRY(dh_config_real(ctx, rope, "attention_factor", 0, &out->magnitude));
    if (dh_config_get(rope, "attention_factor") && !(out->magnitude > 0))
        return dh_fail(ctx, DH_EINVAL, "\"attention_factor\" is %g; it must be positive",
                       out->magnitude);
    return dh_config_int(ctx, rope, "original_max_position_embeddings", 0, &out->original_max_seq);
}

void dh_config_write_yarn(json_t *rope, const dh_rope *r)
{
    json_object_set_new(rope, "beta_fast", json_real(r->beta_fast));
    json_object_set_new(rope, "beta_slow", json_real(r->beta_slow));
    if (r->mscale > 0) json_object_set_new(rope, "mscale", json_real(r->mscale));
    if (r->mscale_all > 0) json_object_set_new(rope, "mscale_all_dim", json_real(r->mscale_all));
    if (r->magnitude > 0) json_object_set_new(rope, "attention_factor", json_real(r->magnitude));
    json_object_set_new(rope, "original_max_position_embeddings",
                        json_integer(r->original_max_seq));
}

/* ---- what a model must be -------------------------------------------------------------------- */

static dh_status check_latent(dh_ctx *ctx, const dh_model *m)
{
    if (m->n_kv_heads != m->n_heads)
        return dh_fail(ctx, DH_EINVAL,
                       "model n_kv_heads %lld differs from n_heads %lld; latent attention makes "
                       "keys and values of every head",
                       (long long)m->n_kv_heads, (long long)m->n_heads);
    if (m->kv_lora < 1 || m->kv_lora > DH_MODEL_MAX_WIDTH || m->q_lora < 0 ||
        m->q_lora > DH_MODEL_MAX_WIDTH)
        return dh_fail(ctx, DH_EINVAL,
                       "model kv_lora %lld, q_lora %lld: the deepseek_v3 family needs a positive "
                       "kv_lora, and a q_lora that is positive or 0 (none), up to %d",
                       (long long)m->kv_lora, (long long)m->q_lora, DH_MODEL_MAX_WIDTH);
    if (m->rope_dim < 2 || m->rope_dim % 2 || m->rope_dim >= m->head_dim)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope_dim is %lld; it must be even and less than head_dim %lld",
                       (long long)m->rope_dim, (long long)m->head_dim);
    if (m->v_dim < 1 || m->v_dim > m->head_dim)
        return dh_fail(ctx, DH_EINVAL,
                       "model v_dim is %lld; it must lie between 1 and head_dim %lld",
                       (long long)m->v_dim, (long long)m->head_dim);
    if (fabs(m->norm_eps - 1e-6) > 1e-12)
        return dh_fail(ctx, DH_EINVAL,
                       "model norm_eps is %g; norms of latent attention have 1e-6 in the "
                       "deepseek_v3 family, and the others must have it too",
                       m->norm_eps);
    return DH_OK;
}

static dh_status check_routing(dh_ctx *ctx, const dh_model *m)
{
    const int64_t groups = m->n_groups;
    if (m->n_shared < 1 || m->n_shared > DH_MODEL_MAX_EXPERTS)
        return dh_fail(ctx, DH_EINVAL, "model n_shared is %lld; it must lie between 1 and %d",
                       (long long)m->n_shared, DH_MODEL_MAX_EXPERTS);
    if (groups < 1 || m->n_experts % groups || m->n_experts / groups < 2)
        return dh_fail(ctx, DH_EINVAL,
                       "model n_groups is %lld; it must divide n_experts %lld into groups of at "
                       "least 2, whose best two count",
                       (long long)groups, (long long)m->n_experts);
    if (m->top_groups < 1 || m->top_groups > groups ||
        m->top_groups * (m->n_experts / groups) < m->top_k)
        return dh_fail(ctx, DH_EINVAL,
                       "model top_groups is %lld; it must lie between 1 and n_groups %lld, and "
                       "these have at least top_k %lld experts",
                       (long long)m->top_groups, (long long)groups, (long long)m->top_k);
    if (!isfinite(m->router_scale) || m->router_scale <= 0)
        return dh_fail(ctx, DH_EINVAL, "model router_scale is %g; it must be positive",
                       m->router_scale);
    if (m->router_aux_coef != 0)
        return dh_fail(ctx, DH_EINVAL,
                       "model router_aux_coef is %g; the deepseek_v3 family has no load-balancing "
                       "loss (0)",
                       m->router_aux_coef);
    return DH_OK;
}

dh_status dh_model_check_deepseek3(dh_ctx *ctx, const dh_model *m)
{
    if (m->lora.rank > 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "lora.rank %lld: adapters are not supported in the deepseek_v3 family (0)",
                       (long long)m->lora.rank);
    DH_TRY(check_latent(ctx, m));
    return check_routing(ctx, m);
}

dh_status dh_model_check_no_deepseek3(dh_ctx *ctx, const dh_model *m, bool shared)
{
    if (m->n_shared < 0 || m->n_shared > (shared ? DH_MODEL_MAX_EXPERTS : 0))
        return dh_fail(ctx, DH_EINVAL, "model n_shared is %lld; %s", (long long)m->n_shared,
                       shared
                           ? "it must be 0 (none) or a number of experts"
                           : "only the deepseek_v3 and llama4_text families have such experts (0)");
    if (!m->q_lora && !m->kv_lora && !m->rope_dim && !m->v_dim && !m->rope_pairs && !m->n_groups &&
        !m->top_groups && m->router_scale == 0)
        return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "model q_lora, kv_lora, rope_dim, v_dim, rope_pairs, n_groups, top_groups, "
                   "router_scale: only the deepseek_v3 family has these (0 all)");
}

int64_t dh_model_latent_params(const dh_model *m)
{
    const int64_t q_rows = m->n_heads * m->head_dim;
    const int64_t q = m->q_lora ? m->q_lora * (m->width + q_rows) : m->width * q_rows;
    const int64_t kv = m->width * (m->kv_lora + m->rope_dim) +
                       m->kv_lora * m->n_heads * (m->head_dim - m->rope_dim + m->v_dim);
    return q + kv + m->n_heads * m->v_dim * m->width;
}

/* ---- config class ---------------------------------------------------------------------------- */

static dh_status read_dense_layers(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    int64_t width;
    DH_TRY(dh_config_int(ctx, config, "first_k_dense_replace", 3, &m->dense_first));
    DH_TRY(dh_config_int(ctx, config, "intermediate_size", 18432, &width));
    m->dense_width = m->dense_first > 0 ? width : 0;
    return DH_OK;
}

static dh_status read_heads(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    int64_t nope;
    DH_TRY(dh_config_int(ctx, config, "qk_nope_head_dim", 128, &nope));
    DH_TRY(dh_config_int(ctx, config, "qk_rope_head_dim", 64, &m->rope_dim));
    DH_TRY(dh_config_int(ctx, config, "v_head_dim", 128, &m->v_dim));
    DH_TRY(dh_config_int(ctx, config, "kv_lora_rank", 512, &m->kv_lora));
    const bool none = json_is_null(json_object_get(config, "q_lora_rank"));
    DH_TRY(dh_config_int(ctx, config, "q_lora_rank", none ? 0 : 1536, &m->q_lora));
    DH_TRY(dh_config_bool(ctx, config, "rope_interleave", true, &m->rope_pairs));
    if (nope > DH_MODEL_MAX_HEAD_DIM || m->rope_dim > DH_MODEL_MAX_HEAD_DIM)
        return dh_fail(ctx, DH_EINVAL,
                       "\"qk_nope_head_dim\" %lld, \"qk_rope_head_dim\" %lld: heads may have up to "
                       "%d channels",
                       (long long)nope, (long long)m->rope_dim, DH_MODEL_MAX_HEAD_DIM);
    m->head_dim = nope + m->rope_dim;
    m->n_kv_heads = m->n_heads;
    return dh_config_int(ctx, config, "num_key_value_heads", m->n_heads, &m->n_kv_heads);
}

static dh_status read_routing(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    bool normed;
    DH_TRY(dh_config_int(ctx, config, "n_shared_experts", 1, &m->n_shared));
    DH_TRY(dh_config_int(ctx, config, "num_local_experts", 256, &m->n_experts)); /* newer files */
    DH_TRY(dh_config_int(ctx, config, "n_routed_experts", m->n_experts, &m->n_experts));
    DH_TRY(dh_config_int(ctx, config, "num_experts_per_tok", 8, &m->top_k));
    DH_TRY(dh_config_int(ctx, config, "n_group", 8, &m->n_groups));
    DH_TRY(dh_config_int(ctx, config, "topk_group", 4, &m->top_groups));
    DH_TRY(dh_config_real(ctx, config, "routed_scaling_factor", 2.5, &m->router_scale));
    DH_TRY(dh_config_bool(ctx, config, "norm_topk_prob", true, &normed));
    m->topk_plain = !normed;
    return DH_OK;
}

dh_status dh_config_read_deepseek3(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    static const dh_config_size ints[] = {
        {"num_hidden_layers", offsetof(dh_model, n_layers), 61},
        {"hidden_size", offsetof(dh_model, width), 7168},
        {"num_attention_heads", offsetof(dh_model, n_heads), 128},
        {"moe_intermediate_size", offsetof(dh_model, ffn_width), 2048},
        {"vocab_size", offsetof(dh_model, vocab), 129280},
        {"max_position_embeddings", offsetof(dh_model, max_seq), 4096},
    };
    static const dh_config_must musts[] = {
        {"attention_bias", "false", "no biases in this family"},
        {"scoring_func", "\"sigmoid\"", "experts are chosen by sigmoids"},
        {"topk_method", "\"noaux_tc\"", "experts are chosen in groups, with a bias"},
        {"moe_layer_freq", "1", "every layer after the first ones has experts"}};
    static const char *const silu[] = {"silu"};
    DH_TRY(dh_config_ints(ctx, config, ints, DH_COUNTOF(ints), m));
    DH_TRY(dh_config_musts(ctx, config, musts, DH_COUNTOF(musts)));
    DH_TRY(read_dense_layers(ctx, config, m));
    DH_TRY(dh_config_activation(ctx, config, "hidden_act", silu, DH_COUNTOF(silu)));
    DH_TRY(read_heads(ctx, config, m));
    DH_TRY(read_routing(ctx, config, m));
    DH_TRY(dh_config_real(ctx, config, "rms_norm_eps", 1e-6, &m->norm_eps));
    DH_TRY(dh_config_bool(ctx, config, "tie_word_embeddings", false, &m->tied_head));
    return dh_config_read_rope(ctx, config, 1e4, &m->rope);
}

void dh_config_write_deepseek3(json_t *config, const dh_model *m)
{
    dh_config_write_relative(config, m);
    json_object_del(config, "head_dim"); /* Transformers': rope_dim */
    dh_config_write_dense_width(config, m);
    json_object_set_new(config, "moe_intermediate_size", json_integer(m->ffn_width));
    json_object_set_new(config, "first_k_dense_replace", json_integer(m->dense_first));
    json_object_set_new(config, "num_nextn_predict_layers", json_integer(0));
    json_object_set_new(config, "q_lora_rank", m->q_lora ? json_integer(m->q_lora) : json_null());
    json_object_set_new(config, "kv_lora_rank", json_integer(m->kv_lora));
    json_object_set_new(config, "qk_nope_head_dim", json_integer(m->head_dim - m->rope_dim));
    json_object_set_new(config, "qk_rope_head_dim", json_integer(m->rope_dim));
    json_object_set_new(config, "v_head_dim", json_integer(m->v_dim));
    json_object_set_new(config, "rope_interleave", json_boolean(m->rope_pairs));
    json_object_set_new(config, "n_shared_experts", json_integer(m->n_shared));
    json_object_set_new(config, "n_routed_experts", json_integer(m->n_experts));
    json_object_set_new(config, "num_experts_per_tok", json_integer(m->top_k));
    json_object_set_new(config, "n_group", json_integer(m->n_groups));
    json_object_set_new(config, "topk_group", json_integer(m->top_groups));
    json_object_set_new(config, "routed_scaling_factor", json_real(m->router_scale));
    json_object_set_new(config, "norm_topk_prob", json_boolean(!m->topk_plain));
}
