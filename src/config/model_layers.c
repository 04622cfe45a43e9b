/* Layers that differ: the kind of each layer, and the model as one layer sees it.
 *
 * Rules among a model's fields say which layers differ from the description by its other fields.
 * Code that works on one layer asks for the model of that layer, whose layers are all alike. It
 * needs to know of no rule. */
#include "model_names.h"

#include "base/base.h"

static bool is_dense(const dh_model *m, int64_t layer)
{
    const bool left_out = m->moe_every > 1 && (layer + 1) % m->moe_every != 0;
    return m->n_experts > 0 && (layer < m->dense_first || left_out);
}

static bool is_softmax(const dh_model *m, int64_t layer)
{
    return m->attention == DH_ATTENTION_LINEAR && m->softmax_every > 0 &&
           (layer + 1) % m->softmax_every == 0;
}

static bool sees_all(const dh_model *m, int64_t layer)
{
    return m->window > 0 && dh_model_window(m, layer) == 0;
}

int64_t dh_model_cp_chunks(const dh_model *m)
{
    return m->attention == DH_ATTENTION_LINEAR && m->softmax_every == 0 ? 1 : 2;
}

unsigned dh_model_layer_kind(const dh_model *m, int64_t layer)
{
    return (is_dense(m, layer) ? DH_LAYER_DENSE : 0u) |
           (is_softmax(m, layer) ? DH_LAYER_SOFTMAX : 0u) |
           (sees_all(m, layer) ? DH_LAYER_SEES_ALL : 0u);
}

/* A family has one way in which layers are apart. */
const char *dh_layer_kind_name(unsigned kind)
{
    return kind & DH_LAYER_DENSE      ? "layer without experts"
           : kind & DH_LAYER_SOFTMAX  ? "layer of softmax attention"
           : kind & DH_LAYER_SEES_ALL ? "layer without a window"
                                      : "layer";
}

dh_layer_kinds dh_model_kinds(const dh_model *m, int64_t first, int64_t n)
{
    dh_layer_kinds kinds = {.n = 0};
    for (int64_t layer = first; layer < first + n; layer++) {
        const unsigned kind = dh_model_layer_kind(m, layer);
        int k = 0;
        while (k < kinds.n && dh_model_layer_kind(m, kinds.layer[k]) != kind) k++;
        if (k == kinds.n) {
            kinds.layer[k] = layer;
            kinds.n++;
        }
        kinds.count[k]++;
    }
    return kinds;
}

dh_model dh_model_of_layer(const dh_model *model, int64_t layer)
{
    dh_model m = *model;
    m.dense_first = m.moe_every = m.dense_width = m.softmax_every = 0;
    m.window = dh_model_window(model, layer);
    m.window_from = m.window_every = 0;
    if (is_dense(model, layer)) {
        m.ffn_width = model->dense_width;
        m.n_experts = m.top_k = m.n_shared = m.n_groups = m.top_groups = 0;
        m.topk_plain = false;
        m.router_scale = m.router_aux_coef = 0;
    }
    if (is_softmax(model, layer)) {
        m.attention = DH_ATTENTION_SOFTMAX;
        m.feature_map = 0;
    }
    return m;
}

int64_t dh_model_n_routed(const dh_model *m, int64_t n)
{
    int64_t routed = 0;
    for (int64_t layer = 0; m->n_experts > 0 && layer < n; layer++) routed += !is_dense(m, layer);
    return routed;
}

/* ---- validation ------------------------------------------------------------------------------ */

static dh_status check_every(dh_ctx *ctx, const dh_model *m, const char *name, int64_t every)
{
    if (every == 0 || (every > 1 && every <= m->n_layers)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "model %s is %lld; it must be 0, or lie between 2 and n_layers %lld", name,
                   (long long)every, (long long)m->n_layers);
}

static dh_status check_dense(dh_ctx *ctx, const dh_model *m)
{
    DH_TRY(check_every(ctx, m, "moe_every", m->moe_every));
    const int64_t routed = dh_model_n_routed(m, m->n_layers);
    if (m->dense_first < 0 || (m->n_experts > 0 && routed == 0))
        return dh_fail(ctx, DH_EINVAL,
                       "model dense_first %lld, moe_every %lld: at least one of the %lld layers "
                       "must have experts, and the first dense_first layers have none",
                       (long long)m->dense_first, (long long)m->moe_every, (long long)m->n_layers);
    const bool some = m->n_experts > 0 && routed < m->n_layers;
    if (m->dense_width < (some ? 1 : 0) || m->dense_width > (some ? DH_MODEL_MAX_FFN : 0))
        return dh_fail(ctx, DH_EINVAL, "model dense_width is %lld; %s", (long long)m->dense_width,
                       some ? "layers without experts need a feed-forward width"
                            : "all layers have experts, or none (0)");
    return DH_OK;
}

dh_status dh_model_check_layers(dh_ctx *ctx, const dh_model *m, bool dense)
{
    if (!dense && (m->dense_first || m->moe_every || m->dense_width))
        return dh_fail(ctx, DH_EINVAL,
                       "model dense_first %lld, moe_every %lld, dense_width %lld: in the %s family "
                       "all layers have experts, or none: leave these out, or 0",
                       (long long)m->dense_first, (long long)m->moe_every,
                       (long long)m->dense_width, dh_family_names[m->family]);
    DH_TRY(check_dense(ctx, m));
    if (m->softmax_every && m->attention != DH_ATTENTION_LINEAR)
        return dh_fail(ctx, DH_EINVAL,
                       "model softmax_every is %lld, and attention softmax in all layers: give "
                       "model.attention=linear, or leave it out (0)",
                       (long long)m->softmax_every);
    return check_every(ctx, m, "softmax_every", m->softmax_every);
}
