/* Phi-3.5-MoE: its config class, and the fields that only this family has.
 *
 * Transformers draws experts at random in training, and scales what experts read
 * (input_jitter_noise). Neither is computed: routing is that of its evaluation mode. So
 * input_jitter_noise is not kept, and a written config has 0. */
#include "model_classes.h"
#include "model_names.h"

#include <math.h>
#include <string.h>

/* ---- longrope ---------------------------------------------------------------------------------- */

static dh_status read_factors(dh_ctx *ctx, const json_t *rope, const char *key, int64_t head_dim,
                              dh_rope_factors *out)
{
    const json_t *list = dh_config_get(rope, key), *one;
    size_t i;
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || (int64_t)n != head_dim / 2 || n > DH_ROPE_MAX_PAIRS)
        return dh_fail(ctx, DH_EFORMAT,
                       "\"%s\" must be a list of numbers, one for each pair of a head's %lld "
                       "channels (up to %d pairs)",
                       key, (long long)head_dim, DH_ROPE_MAX_PAIRS);
    out->n = (int64_t)n;
    json_array_foreach(list, i, one)
    {
        out->at[i] = json_number_value(one);
        if (!json_is_number(one))
            return dh_fail(ctx, DH_EFORMAT, "\"%s\" has %s as number %zu; it must be a number", key,
                           dh_config_kind(one), i);
    }
    return DH_OK;
}

static dh_status read_longrope(dh_ctx *ctx, const json_t *rope, dh_model *m)
{
    static const dh_config_must musts[] = {
        {"partial_rotary_factor", "1", "all channels are rotated"}};
    dh_longrope *l = &m->longrope;
    m->rope.scaling = DH_ROPE_SCALING_LONGROPE;
    DH_TRY(dh_config_musts(ctx, rope, musts, DH_COUNTOF(musts)));
    DH_TRY(read_factors(ctx, rope, "short_factor", m->head_dim, &l->short_factors));
    DH_TRY(read_factors(ctx, rope, "long_factor", m->head_dim, &l->long_factors));
    DH_TRY(dh_config_real(ctx, rope, "short_mscale", 0, &l->short_mscale));
    DH_TRY(dh_config_real(ctx, rope, "long_mscale", 0, &l->long_mscale));
    DH_TRY(dh_config_real(ctx, rope, "rope_theta", m->rope.theta, &m->rope.theta));
    return dh_config_int(ctx, rope, "original_max_position_embeddings", 0,
                         &m->rope.original_max_seq);
}

/* The object that says how positions are stretched, if it says longrope; else NULL. */
static const json_t *longrope_of(const json_t *config)
{
    static const char *const objects[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < DH_COUNTOF(objects); i++) {
        const json_t *rope = dh_config_get(config, objects[i]);
        const json_t *type = rope ? dh_config_get(rope, "rope_type") : NULL;
        if (rope && !type) type = dh_config_get(rope, "type");
        const char *name = json_string_value(type);
        if (name && strcmp(name, dh_rope_scaling_names[DH_ROPE_SCALING_LONGROPE]) == 0) return rope;
    }
    return NULL;
}

static json_t *factors_of(const dh_rope_factors *f)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < f->n; i++) json_array_append_new(list, json_real(f->at[i]));
    return list;
}

/* ---- config ------------------------------------------------------------------------------------ */

/* Without what read_llama_like refuses in other families. */
static dh_status read_common(dh_ctx *ctx, const json_t *config, bool longrope, dh_model *m)
{
    static const llama_defaults defaults = {32, 4096, 32, 8, 6400, 32064, 131072, 1e-5, 1e6, 0};
    json_t *common = json_copy((json_t *)(uintptr_t)config);
    if (!common) return dh_no_memory(ctx);
    json_object_del(common, "attention_bias");
    if (longrope) {
        json_object_del(common, "rope_scaling");
        json_object_del(common, "rope_parameters");
    }
    const dh_status st = dh_config_read_windowed(ctx, common, &defaults, m);
    json_decref(common);
    return st;
}

dh_status dh_config_read_phimoe(dh_ctx *ctx, const json_t *config, dh_model *m)
{
    const json_t *rope = longrope_of(config);
    DH_TRY(read_common(ctx, config, rope != NULL, m));
    if (rope) DH_TRY(read_longrope(ctx, rope, m));
    DH_TRY(dh_config_bool(ctx, config, "attention_bias", false, &m->attn_bias));
    DH_TRY(dh_config_bool(ctx, config, "lm_head_bias", false, &m->head_bias));
    DH_TRY(dh_config_int(ctx, config, "num_local_experts", 16, &m->n_experts));
    DH_TRY(dh_config_int(ctx, config, "num_experts_per_tok", 2, &m->top_k));
    DH_TRY(dh_config_real(ctx, config, "router_jitter_noise", 0.01, &m->router_jitter));
    return dh_config_real(ctx, config, "router_aux_loss_coef", 0.001, &m->router_aux_coef);
}

void dh_config_write_phimoe(json_t *config, const dh_model *m)
{
    dh_config_write_relative(config, m);
    json_object_del(config, "rope_scaling");
    if (m->head_dim * m->n_heads == m->width) json_object_del(config, "head_dim"); /* the class's */
    if (m->rope.scaling == DH_ROPE_SCALING_LONGROPE)
        json_object_set_new(config, "rope_scaling",
                            json_pack("{ss so so sf sf sI}", "rope_type", "longrope",
                                      "short_factor", factors_of(&m->longrope.short_factors),
                                      "long_factor", factors_of(&m->longrope.long_factors),
                                      "short_mscale", m->longrope.short_mscale, "long_mscale",
                                      m->longrope.long_mscale, "original_max_position_embeddings",
                                      (json_int_t)m->rope.original_max_seq));
    json_object_set_new(config, "sliding_window",
                        m->window ? json_integer(m->window) : json_null());
    json_object_set_new(config, "attention_bias", json_boolean(m->attn_bias));
    json_object_set_new(config, "lm_head_bias", json_boolean(m->head_bias));
    json_object_set_new(config, "num_local_experts", json_integer(m->n_experts));
    json_object_set_new(config, "num_experts_per_tok", json_integer(m->top_k));
    json_object_set_new(config, "router_aux_loss_coef", json_real(m->router_aux_coef));
    json_object_set_new(config, "router_jitter_noise", json_real(m->router_jitter));
    json_object_set_new(config, "input_jitter_noise", json_real(0));
}

/* ---- what a model must be ---------------------------------------------------------------------- */

static dh_status check_factors(dh_ctx *ctx, const dh_model *m, const char *name,
                               const dh_rope_factors *f)
{
    if (f->n != m->head_dim / 2 || f->n > DH_ROPE_MAX_PAIRS)
        return dh_fail(ctx, DH_EINVAL,
                       "model %s has %lld numbers; longrope needs one for each pair of a head's "
                       "%lld channels (up to %d pairs)",
                       name, (long long)f->n, (long long)m->head_dim, DH_ROPE_MAX_PAIRS);
    for (int64_t i = 0; i < f->n; i++)
        if (!isfinite(f->at[i]) || f->at[i] <= 0 || !isfinite(1 / f->at[i]))
            return dh_fail(ctx, DH_EINVAL,
                           "model %s has %g; its numbers must be positive, and so large that "
                           "rotations can be divided by them",
                           name, f->at[i]);
    return DH_OK;
}

static bool has_factors(const dh_longrope *l)
{
    return l->short_factors.n || l->long_factors.n || l->short_mscale != 0 || l->long_mscale != 0;
}

static dh_status check_longrope(dh_ctx *ctx, const dh_model *m)
{
    const dh_longrope *l = &m->longrope;
    if (m->rope.scaling == DH_ROPE_SCALING_NONE)
        return has_factors(l) ? dh_fail(ctx, DH_EINVAL,
                                        "model rope scaling is none, and factors or mscale of "
                                        "longrope are given: give model.rope_scaling=longrope")
                              : DH_OK;
    if (m->rope.scaling != DH_ROPE_SCALING_LONGROPE)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "model rope scaling is %s; the phimoe family has longrope or none",
                       dh_rope_scaling_names[m->rope.scaling]);
    DH_TRY(check_factors(ctx, m, "rope_short_factor", &l->short_factors));
    DH_TRY(check_factors(ctx, m, "rope_long_factor", &l->long_factors));
    if (!isfinite(l->short_mscale) || l->short_mscale <= 0 || !isfinite(l->long_mscale) ||
        l->long_mscale <= 0)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope_short_mscale %g and rope_long_mscale %g: longrope needs both, "
                       "and positive",
                       l->short_mscale, l->long_mscale);
    if (m->rope.original_max_seq < 1)
        return dh_fail(ctx, DH_EINVAL,
                       "model rope original_max_seq is %lld; longrope needs the length the model "
                       "was first trained at",
                       (long long)m->rope.original_max_seq);
    return DH_OK;
}

static dh_status check_none(dh_ctx *ctx, const dh_model *m)
{
    if (m->rope.scaling == DH_ROPE_SCALING_LONGROPE ||
        m->rope_nth.scaling == DH_ROPE_SCALING_LONGROPE)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "model rope scaling is longrope, which is computed in the phimoe family "
                       "alone, not in %s",
                       dh_family_names[m->family]);
    if (has_factors(&m->longrope) || m->attn_bias || m->norm_bias || m->head_bias ||
        m->sparsemixer || m->router_jitter != 0)
        return dh_fail(ctx, DH_EINVAL,
                       "model attn_bias, norm_bias, head_bias, sparsemixer, router_jitter or "
                       "factors of longrope are given; the %s family has none of these",
                       dh_family_names[m->family]);
    return DH_OK;
}

dh_status dh_model_check_phimoe(dh_ctx *ctx, const dh_model *m, bool phimoe)
{
    if (!phimoe) return check_none(ctx, m);
    if (!m->sparsemixer || !m->norm_bias)
        return dh_fail(ctx, DH_EINVAL,
                       "model sparsemixer or norm_bias is false; the phimoe family has both");
    if (m->top_k != 2)
        return dh_fail(ctx, DH_EINVAL,
                       "model top_k is %lld; sparsemixer chooses 2 experts of a token",
                       (long long)m->top_k);
    if (!isfinite(m->router_jitter) || m->router_jitter < 0)
        return dh_fail(ctx, DH_EINVAL, "model router_jitter is %g; it must not be negative",
                       m->router_jitter);
    return check_longrope(ctx, m);
}
