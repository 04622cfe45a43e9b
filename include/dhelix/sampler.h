/* Drawing the next token from logits. */
#ifndef DHELIX_SAMPLER_H
#define DHELIX_SAMPLER_H

#include "dhelix/export.h"
#include "dhelix/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_sampler {
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off */
    double top_p;       /* outside (0, 1): off */
    uint64_t state;     /* generator; set by dh_sampler_init */
    struct dh_candidate {
        float p;
        int32_t id;
    } * scratch; /* [vocab] */
    int64_t vocab;
} dh_sampler;

/* The generator is xorshift64* (Vigna 2014). It is drawn once a token, and only when the choice is
 * random, as llama2.c does. The same seed therefore gives llama2.c's texts.
 * out       caller frees with dh_sampler_fini
 * errors    DH_EINVAL a value out of range; DH_ENOMEM */
DH_API dh_status dh_sampler_init(dh_ctx *ctx, dh_sampler *sampler, int64_t vocab,
                                 double temperature, int64_t top_k, double top_p, uint64_t seed);
DH_API void dh_sampler_fini(dh_sampler *sampler);
/* The next token's id.
 * errors    DH_EDIVERGED a logit is NaN or infinite */
DH_API dh_status dh_sampler_next(dh_ctx *ctx, dh_sampler *sampler, const float *logits,
                                 int32_t *id);

#ifdef __cplusplus
}
#endif
#endif
