/* Low-rank adapters of a model: which linears of a family can have one, and how large they are. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "model_names.h"

/* ---- linears by name ---------------------------------------------------------------------- */

/* Families name the linears of a layer in three ways; those of latent attention have no
 * adapters. */
enum { NONE = 0, SEPARATE = 1, PHI3 = 2, GPT2 = 4 };

/* Sizes of one linear: Q, K and O are those of attention, F of the feed-forward part. */
typedef struct linear_row {
    const char *name;
    int families;
    bool ffn; /* experts have it, and no adapters, where there are any */
    int64_t (*in)(const dh_model *), (*out)(const dh_model *);
} linear_row;

static int64_t width(const dh_model *m)
{
    return m->width;
}

static int64_t ffn(const dh_model *m)
{
    return m->ffn_width;
}

static int64_t two_ffns(const dh_model *m)
{
    return 2 * m->ffn_width;
}

static int64_t queries(const dh_model *m)
{
    return m->n_heads * m->head_dim;
}

static int64_t keys(const dh_model *m)
{
    return m->n_kv_heads * m->head_dim;
}

static int64_t packed(const dh_model *m)
{
    return queries(m) + 2 * keys(m);
}

/* Rows of one name are linears of one name: GPT-2's attention and its feed-forward part both end in
 * c_proj. */
static const linear_row rows[] = {
    {"q_proj", SEPARATE, false, width, queries},
    {"k_proj", SEPARATE, false, width, keys},
    {"v_proj", SEPARATE, false, width, keys},
    {"qkv_proj", PHI3, false, width, packed},
    {"o_proj", SEPARATE | PHI3, false, queries, width},
    {"gate_proj", SEPARATE, true, width, ffn},
    {"up_proj", SEPARATE, true, width, ffn},
    {"gate_up_proj", PHI3, true, width, two_ffns},
    {"down_proj", SEPARATE | PHI3, true, ffn, width},
    {"c_attn", GPT2, false, width, packed},
    {"c_proj", GPT2, false, queries, width},
    {"c_fc", GPT2, true, width, ffn},
    {"c_proj", GPT2, true, ffn, width},
};

/* Of a model whose layers are alike. */
static bool layer_has(const dh_model *m, const linear_row *row)
{
    const int family = m->family == DH_FAMILY_GPT2        ? GPT2
                       : m->family == DH_FAMILY_PHI3      ? PHI3
                       : m->family == DH_FAMILY_DEEPSEEK3 ? NONE
                                                          : SEPARATE;
    return (row->families & family) && !(row->ffn && m->n_experts > 0);
}

/* Whether any of its layers does: those without experts have more than the others. */
static bool has(const dh_model *m, const linear_row *row)
{
    const dh_layer_kinds kinds = dh_model_kinds(m, 0, m->n_layers);
    bool any = false;
    for (int k = 0; k < kinds.n; k++) {
        const dh_model layer = dh_model_of_layer(m, kinds.layer[k]);
        any |= layer_has(&layer, row);
    }
    return any;
}

/* The next name of a list, behind commas and blanks; false: there is none. */
static bool next_name(const char **at, const char **name, size_t *n)
{
    *at += strspn(*at, ", ");
    *name = *at;
    *n = strcspn(*at, ", ");
    *at += *n;
    return *n > 0;
}

static bool is(const char *name, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(name, word, n) == 0;
}

bool dh_model_adapts(const dh_model *m, const char *module)
{
    const char *at = m->lora.targets, *name;
    size_t n;
    if (m->lora.rank == 0 || m->family == DH_FAMILY_DEEPSEEK3) return false;
    if (!*at) return true;
    while (next_name(&at, &name, &n))
        if (is(name, n, module) || is(name, n, "all-linear")) return true;
    return false;
}

const char *dh_model_linear(const dh_model *m, size_t i)
{
    for (size_t k = 0; k < DH_COUNTOF(rows); k++) {
        bool before = false;
        for (size_t j = 0; j < k; j++)
            before |= has(m, &rows[j]) && strcmp(rows[j].name, rows[k].name) == 0;
        if (has(m, &rows[k]) && !before && i-- == 0) return rows[k].name;
    }
    return NULL;
}

double dh_model_lora_scale(const dh_model *m)
{
    if (m->lora.rank == 0) return 0;
    return m->lora.alpha > 0 ? m->lora.alpha / (double)m->lora.rank : 2;
}

/* Elements of one layer's adapters, of a model whose layers are alike. */
static int64_t layer_params(const dh_model *m)
{
    int64_t n = 0;
    for (size_t i = 0; i < DH_COUNTOF(rows); i++)
        if (layer_has(m, &rows[i]) && dh_model_adapts(m, rows[i].name))
            n += m->lora.rank * (rows[i].in(m) + rows[i].out(m));
    return n;
}

int64_t dh_model_n_trained(const dh_model *m)
{
    const dh_layer_kinds kinds = dh_model_kinds(m, 0, m->n_layers);
    int64_t n = 0;
    if (m->lora.rank == 0) return dh_model_n_params(m);
    for (int k = 0; k < kinds.n; k++) {
        const dh_model layer = dh_model_of_layer(m, kinds.layer[k]);
        n += kinds.count[k] * layer_params(&layer);
    }
    return n;
}

/* ---- validation ---------------------------------------------------------------------------- */

static bool is_known(const dh_model *m, const char *name, size_t n)
{
    for (size_t i = 0; i < DH_COUNTOF(rows); i++)
        if (has(m, &rows[i]) && is(name, n, rows[i].name)) return true;
    return is(name, n, "all-linear");
}

/* A layer without any would have nothing to train. */
static dh_status check_every_layer(dh_ctx *ctx, const dh_model *m)
{
    const dh_layer_kinds kinds = dh_model_kinds(m, 0, m->n_layers);
    for (int k = 0; k < kinds.n; k++) {
        const dh_model layer = dh_model_of_layer(m, kinds.layer[k]);
        if (layer_params(&layer) == 0)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "lora.targets \"%s\" names no linear that layer %lld has, which has "
                           "experts: name one that all layers have, as q_proj, too",
                           m->lora.targets, (long long)kinds.layer[k]);
    }
    return DH_OK;
}

dh_status dh_model_check_lora(dh_ctx *ctx, const dh_model *m)
{
    const char *at = m->lora.targets, *name;
    size_t n;
    if (m->lora.rank < 0 || m->lora.rank > DH_MODEL_MAX_LORA_RANK)
        return dh_fail(ctx, DH_EINVAL, "lora.rank is %lld; it must lie between 0 (none) and %d",
                       (long long)m->lora.rank, DH_MODEL_MAX_LORA_RANK);
    if (!isfinite(m->lora.alpha) || m->lora.alpha < 0)
        return dh_fail(ctx, DH_EINVAL, "lora.alpha is %g; it must be positive, or 0 (2 * rank)",
                       m->lora.alpha);
    if (m->lora.rank == 0) return DH_OK;
    const double scale = dh_model_lora_scale(m);
    if (!(scale >= FLT_MIN && scale <= FLT_MAX))
        return dh_fail(
            ctx, DH_EINVAL,
            "lora.alpha %g / rank %lld scales adapters by %g, which float32 does not hold",
            m->lora.alpha, (long long)m->lora.rank, scale);
    while (next_name(&at, &name, &n)) {
        if (is_known(m, name, n)) continue;
        dh_str names = DH_STR_INIT;
        const char *linear;
        for (size_t i = 0; (linear = dh_model_linear(m, i)); i++)
            dh_str_printf(&names, "%s, ", linear);
        dh_fail(ctx, DH_EINVAL,
                "lora.targets names %.*s, and no layer of this model has such a linear: there are "
                "%sor all-linear for all of them%s",
                (int)n, name, names.text ? names.text : "?",
                m->n_experts > 0 ? " (experts and their router have no adapters)" : "");
        dh_str_fini(&names);
        return DH_EINVAL;
    }
    return check_every_layer(ctx, m);
}
