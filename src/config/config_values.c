/* Values of a config.json with the messages that name their key, and walks over tables of them. */
#include "config_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *dh_config_kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    default:
        return "a number";
    }
}

const json_t *dh_config_get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

dh_status dh_config_int(dh_ctx *ctx, const json_t *object, const char *key, int64_t fallback,
                        int64_t *out)
{
    const json_t *v = dh_config_get(object, key);
    *out = fallback;
    if (!v) return DH_OK;
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else if (json_is_real(v)) {
        const bool large = fabs(json_real_value(v)) >= 9.2e18; /* of an integer: base/json_text.h */
        return dh_fail(ctx, DH_EFORMAT, "\"%s\" is %g; it must be a whole number%s", key,
                       json_real_value(v), large ? " below 2^63" : "");
    } else {
        return dh_fail(ctx, DH_EFORMAT, "\"%s\" is %s; it must be a whole number", key,
                       dh_config_kind(v));
    }
    if (*out < 0)
        return dh_fail(ctx, DH_EFORMAT, "\"%s\" is %lld; it must not be negative", key,
                       (long long)*out);
    return DH_OK;
}

dh_status dh_config_real(dh_ctx *ctx, const json_t *object, const char *key, double fallback,
                         double *out)
{
    const json_t *v = dh_config_get(object, key);
    *out = fallback;
    if (!v) return DH_OK;
    if (!json_is_number(v))
        return dh_fail(ctx, DH_EFORMAT, "\"%s\" is %s; it must be a number", key,
                       dh_config_kind(v));
    *out = json_number_value(v);
    return DH_OK;
}

dh_status dh_config_bool(dh_ctx *ctx, const json_t *object, const char *key, bool fallback,
                         bool *out)
{
    const json_t *v = dh_config_get(object, key);
    *out = fallback;
    if (!v) return DH_OK;
    if (!json_is_boolean(v))
        return dh_fail(ctx, DH_EFORMAT, "\"%s\" is %s; it must be true or false", key,
                       dh_config_kind(v));
    *out = json_is_true(v);
    return DH_OK;
}

dh_status dh_config_text(dh_ctx *ctx, const json_t *object, const char *key, const char *fallback,
                         const char **out)
{
    const json_t *v = dh_config_get(object, key);
    *out = fallback;
    if (!v) return DH_OK;
    if (!json_is_string(v))
        return dh_fail(ctx, DH_EFORMAT, "\"%s\" is %s; it must be a string", key,
                       dh_config_kind(v));
    *out = json_string_value(v);
    return DH_OK;
}

/* ---- rows of a config class ---------------------------------------------------------- */

dh_status dh_config_ints(dh_ctx *ctx, const json_t *config, const dh_config_size *rows, size_t n,
                         dh_model *m)
{
    for (size_t i = 0; i < n; i++) {
        int64_t value;
        DH_TRY(dh_config_int(ctx, config, rows[i].key, rows[i].fallback, &value));
        memcpy((char *)m + rows[i].offset, &value, sizeof value);
    }
    return DH_OK;
}

/* The value as short JSON text, for messages. */
static void value_text(const json_t *v, char *buf, size_t cap)
{
    char *text = dh_json_print(v, JSON_ENCODE_ANY | JSON_COMPACT);
    snprintf(buf, cap, "%.80s", text ? text : "?");
    free(text);
}

static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

dh_status dh_config_musts(dh_ctx *ctx, const json_t *config, const dh_config_must *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = dh_config_get(config, rows[i].key);
        if (!v) continue;
        json_t *want;
        DH_TRY(dh_json_read(ctx, rows[i].want, strlen(rows[i].want), JSON_DECODE_ANY, NULL, &want));
        bool same = same_value(v, want);
        json_decref(want);
        if (same) continue;
        char text[96];
        value_text(v, text, sizeof text);
        return dh_fail(ctx, DH_EUNSUPPORTED, "\"%s\" is %s; only %s is supported (%s)", rows[i].key,
                       text, rows[i].want, rows[i].why);
    }
    return DH_OK;
}

dh_status dh_config_activation(dh_ctx *ctx, const json_t *config, const char *key,
                               const char *const *known, size_t n)
{
    const char *act;
    DH_TRY(dh_config_text(ctx, config, key, known[0], &act));
    for (size_t i = 0; i < n; i++)
        if (strcmp(act, known[i]) == 0) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED, "\"%s\" is \"%s\"; supported here: %s%s%s", key, act,
                   known[0], n > 1 ? ", " : "", n > 1 ? known[1] : "");
}
