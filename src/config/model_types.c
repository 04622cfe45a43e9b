/* Layers of two types in turns, as Gemma and OLMo 3 have them: every n-th sees all, the others have a
 * window; and rotary positions of each type. */
#include "model_classes.h"

#include <string.h>

/* ---- which layers are which --------------------------------------------------------------------- */

static const char *type_of(int64_t layer, int64_t every)
{
    const bool sees_all = every > 0 && (layer + 1) % every == 0; /* 0: none does */
    return sees_all ? "full_attention" : "sliding_attention";
}

/* Of so many layers the last has no window: which number that is, by the list. */
dh_status dh_config_read_nth_types(dh_ctx *ctx, const json_t *config, const dh_model *m,
                                   int64_t *every)
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

void dh_config_write_nth_types(json_t *config, const dh_model *m, int64_t every)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < m->n_layers; i++)
        json_array_append_new(list, json_string(type_of(i, every)));
    json_object_set_new(config, "layer_types", list);
}

/* ---- rotary positions of each type --------------------------------------------------------------- */

/* NULL: none of the type's own. */
static const json_t *rope_of(const json_t *config, const char *type)
{
    const json_t *both = dh_config_get(config, "rope_parameters");
    return both ? dh_config_get(both, type) : NULL;
}

static dh_status read_typed(dh_ctx *ctx, const json_t *config, const char *type, double theta,
                            dh_rope *out)
{
    json_t *one = json_pack("{s:O?}", "rope_parameters", rope_of(config, type));
    if (!one) return dh_no_memory(ctx);
    const dh_status st = dh_config_read_rope(ctx, one, theta, out);
    json_decref(one);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "reading \"%s\"", type);
}

dh_status dh_config_read_typed_ropes(dh_ctx *ctx, const json_t *config, double theta,
                                     double theta_nth, dh_model *m, bool *found)
{
    *found = rope_of(config, "sliding_attention") || rope_of(config, "full_attention");
    if (!*found) return DH_OK;
    DH_TRY(read_typed(ctx, config, "sliding_attention", theta, &m->rope));
    return read_typed(ctx, config, "full_attention", theta_nth, &m->rope_nth);
}

void dh_config_write_typed_ropes(json_t *config, const dh_model *m)
{
    json_object_set_new(config, "rope_parameters",
                        json_pack("{so so}", "sliding_attention", dh_config_rope_object(&m->rope),
                                  "full_attention", dh_config_rope_object(&m->rope_nth)));
}
