/* Shared inside src/config: values of a Hugging Face config.json, and tables of what a config
 * class reads and demands. Errors name the key. */
#ifndef DH_CONFIG_CONFIG_VALUES_H
#define DH_CONFIG_CONFIG_VALUES_H

#include "dhelix/model.h"

#include "base/json_text.h"

/* The value of a key, NULL when absent or null. */
const json_t *dh_config_get(const json_t *object, const char *key);
/* "an object", "a string", ... */
const char *dh_config_kind(const json_t *v);

/* The fallback where the key is absent or null.
 * errors    DH_EFORMAT a value of another type; a negative integer */
dh_status dh_config_int(dh_ctx *ctx, const json_t *object, const char *key, int64_t fallback,
                        int64_t *out);
dh_status dh_config_real(dh_ctx *ctx, const json_t *object, const char *key, double fallback,
                         double *out);
dh_status dh_config_bool(dh_ctx *ctx, const json_t *object, const char *key, bool fallback,
                         bool *out);
dh_status dh_config_text(dh_ctx *ctx, const json_t *object, const char *key, const char *fallback,
                         const char **out);

typedef struct dh_config_size {
    const char *key;
    size_t offset;    /* of an int64_t in dh_model */
    int64_t fallback; /* transformers' default */
} dh_config_size;
dh_status dh_config_ints(dh_ctx *ctx, const json_t *config, const dh_config_size *rows, size_t n,
                         dh_model *m);

/* A switch whose other settings we do not compute. */
typedef struct dh_config_must {
    const char *key;
    const char *want; /* JSON text; also the default */
    const char *why;
} dh_config_must;
/* Every key has its wanted value, or is absent.
 * errors    DH_EUNSUPPORTED a key has another value; DH_ENOMEM */
dh_status dh_config_musts(dh_ctx *ctx, const json_t *config, const dh_config_must *rows, size_t n);
/* The text must be one of n; the first is the default.
 * errors    DH_EUNSUPPORTED another text; DH_EFORMAT no text */
dh_status dh_config_activation(dh_ctx *ctx, const json_t *config, const char *key,
                               const char *const *known, size_t n);

#endif
