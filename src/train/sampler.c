/* Token sampling: greedy, temperature, top-k, top-p. */
#include "dhelix/sampler.h"
#include "base/base.h"
#include "base/needs.h"

#include <math.h>
#include <stdlib.h>

dh_status dh_sampler_init(dh_ctx *ctx, dh_sampler *sampler, int64_t vocab, double temperature,
                          int64_t top_k, double top_p, uint64_t seed)
{
    DH_NEEDS(ctx, sampler);
    if (!(temperature >= 0) || !isfinite(temperature))
        return dh_fail(ctx, DH_EINVAL, "temperature is %g; it must be 0 (greedy) or more",
                       temperature);
    if (!isfinite(top_p)) return dh_fail(ctx, DH_EINVAL, "top-p is %g; it must be a number", top_p);
    if (top_k < 0)
        return dh_fail(ctx, DH_EINVAL, "top-k is %lld; it must be 0 (off) or more",
                       (long long)top_k);
    if (vocab < 1 || vocab > INT32_MAX)
        return dh_fail(ctx, DH_EINVAL, "a vocabulary of %lld tokens: 1 to %d would be right",
                       (long long)vocab, INT32_MAX);
    *sampler = (dh_sampler){.temperature = temperature,
                            .top_k = top_k,
                            .top_p = top_p,
                            .state = seed ? seed : 1, /* 0 is a fixed point of xorshift */
                            .vocab = vocab,
                            .scratch = malloc((size_t)vocab * sizeof *sampler->scratch)};
    return sampler->scratch ? DH_OK : dh_no_memory(ctx);
}

void dh_sampler_fini(dh_sampler *sampler)
{
    if (!sampler) return;
    free(sampler->scratch);
    sampler->scratch = NULL;
}

static float draw(dh_sampler *s)
{
    s->state ^= s->state >> 12;
    s->state ^= s->state << 25;
    s->state ^= s->state >> 27;
    return dh_u32_to_unit((uint32_t)((s->state * 0x2545F4914F6CDD1Du) >> 32));
}

static int32_t greedy(const float *logits, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

static dh_status check_finite(dh_ctx *ctx, const float *logits, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return dh_fail(ctx, DH_EDIVERGED,
                           "the model's logit of token %lld is %g: there is nothing to draw from",
                           (long long)i, (double)logits[i]);
    return DH_OK;
}

/* Softmax of logits / temperature into the scratch, ids in order. False: the temperature is so
 * close to 0 that a quotient is not finite. */
static bool probabilities(dh_sampler *s, const float *logits)
{
    float max = -INFINITY, sum = 0;
    const float t = (float)s->temperature;
    for (int64_t i = 0; i < s->vocab; i++) max = fmaxf(max, logits[i] / t);
    if (!isfinite(max)) return false;
    for (int64_t i = 0; i < s->vocab; i++) {
        s->scratch[i].id = (int32_t)i;
        s->scratch[i].p = expf(logits[i] / t - max);
        sum += s->scratch[i].p;
    }
    for (int64_t i = 0; i < s->vocab; i++) s->scratch[i].p /= sum;
    return true;
}

static int by_probability(const void *x, const void *y)
{
    const struct dh_candidate *a = x, *b = y;
    if (a->p != b->p) return a->p > b->p ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* Keeps the candidates that can be in the nucleus, sorted. Candidates below (1 - top_p) / (n - 1)
 * cannot: even all of them together are outside it. */
static int64_t sort_candidates(dh_sampler *s, bool nucleus)
{
    float cutoff = nucleus ? (1.0f - (float)s->top_p) / (float)(s->vocab - 1) : 0.0f;
    int64_t n = 0;
    for (int64_t i = 0; i < s->vocab; i++)
        if (s->scratch[i].p >= cutoff) s->scratch[n++] = s->scratch[i];
    qsort(s->scratch, (size_t)n, sizeof *s->scratch, by_probability);
    return n;
}

/* An id by the probabilities in the scratch. */
static int32_t choose(dh_sampler *s)
{
    bool nucleus = s->top_p > 0 && s->top_p < 1 && s->vocab > 1;
    bool top_k = s->top_k > 0 && s->top_k < s->vocab;
    float coin = draw(s);
    int64_t n = s->vocab;
    float mass = 1.0f;
    if (nucleus || top_k) n = sort_candidates(s, nucleus);
    if (top_k) {
        n = DH_MIN(n, s->top_k);
        mass = 0;
        for (int64_t i = 0; i < n; i++) mass += s->scratch[i].p;
    }
    if (nucleus) {
        float sum = 0, limit = (float)s->top_p * mass;
        int64_t last = n - 1;
        for (int64_t i = 0; i < n; i++) {
            sum += s->scratch[i].p;
            if (sum > limit) {
                last = i;
                break;
            }
        }
        n = last + 1;
        mass = sum;
    }
    float point = coin * mass, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += s->scratch[i].p;
        if (point < sum) return s->scratch[i].id;
    }
    return s->scratch[n - 1].id; /* rounding: the point fell behind the last */
}

dh_status dh_sampler_next(dh_ctx *ctx, dh_sampler *sampler, const float *logits, int32_t *id)
{
    DH_NEEDS(ctx, sampler);
    DH_NEEDS(ctx, logits);
    DH_NEEDS(ctx, id);
    DH_TRY(check_finite(ctx, logits, sampler->vocab));
    const bool random = sampler->temperature != 0 && probabilities(sampler, logits);
    *id = random ? choose(sampler) : greedy(logits, sampler->vocab);
    return DH_OK;
}
