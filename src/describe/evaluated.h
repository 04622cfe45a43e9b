/* The loss of a trained model on given data. */
#ifndef DH_DESCRIBE_EVALUATED_H
#define DH_DESCRIBE_EVALUATED_H

#include <jansson.h>

#include "dhelix/describe.h"

typedef struct dh_evaluated {
    double loss;
    int64_t sequences, tokens, bytes; /* bytes of their text; 0: not known */
} dh_evaluated;

/* errors    those of the model and of the data; DH_EINVAL an option out of its range */
dh_status dh_evaluated_make(dh_ctx *ctx, const char *path, const dh_describe_eval_options *options,
                            dh_evaluated *evaluated);
/* Information of the tokens in bits over the bytes of their text: it compares tokenizers. */
double dh_evaluated_bits_per_byte(const dh_evaluated *evaluated);
/* NULL: out of memory */
json_t *dh_evaluated_json(const dh_evaluated *evaluated);

#endif
