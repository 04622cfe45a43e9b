/* Weights of any kind as a Hugging Face folder. */
#ifndef DH_DESCRIBE_CONVERTED_H
#define DH_DESCRIBE_CONVERTED_H

#include <jansson.h>

#include "dhelix/describe.h"

typedef struct dh_converted {
    size_t n_tensors, n_tokenizer_files;
    int64_t n_parameters;
    bool for_transformers; /* it reads a tokenizer from the folder */
} dh_converted;

/* errors    as dh_describe_convert */
dh_status dh_converted_make(dh_ctx *ctx, const char *path, const char *out,
                            const dh_describe_convert_options *options, dh_converted *converted);
/* NULL: out of memory */
json_t *dh_converted_json(const char *out, const dh_converted *converted);

#endif
