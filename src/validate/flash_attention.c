/* FlashAttention-2 alone on an A100: the curves of its paper, forward and backward together, by
 * length, mask and head dimension. */
#include <string.h>

#include "validate/job.h"

/* The paper's section 4.1: 16,384 tokens of 2,048 channels. */
#define TOKENS 16384
#define CHANNELS 2048

/* Forward and backward of all samples. Backward is two and a half times as much: five products. */
static double both_ns(const dh_cluster *cluster, int64_t tokens, int64_t head_dim, bool causal)
{
    const double n = (double)tokens, pairs = causal ? n * n / 2 : n * n;
    const double operand = 2. * TOKENS * CHANNELS;
    dh_attention_work work = {.dtype = DH_BF16,
                              .flops = 4 * pairs * CHANNELS * TOKENS / n,
                              .bytes = 4 * operand,
                              .heads = (double)CHANNELS / (double)head_dim * TOKENS / n,
                              .queries = n,
                              .keys = n,
                              .pairs = pairs,
                              .head_dim = (double)head_dim};
    const double forward = dh_cluster_attention_ns(cluster, &work, false);
    work.flops *= 2.5;
    work.bytes *= 2;
    return forward + dh_cluster_attention_ns(cluster, &work, true);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                         const dh_published *t, size_t i)
{
    const char *mask;
    int64_t head_dim, tokens;
    double published;
    DH_TRY(dh_published_text(ctx, t, i, "causal", &mask));
    DH_TRY(dh_published_int(ctx, t, i, "head_dim", &head_dim));
    DH_TRY(dh_published_int(ctx, t, i, "tokens", &tokens));
    DH_TRY(dh_published_real(ctx, t, i, "tflops", &published));
    const bool causal = strcmp(mask, "yes") == 0;
    const double flops = 3.5 * 4 * (double)tokens * CHANNELS * TOKENS / (causal ? 2 : 1);
    return dh_validation_add(ctx, v, flops / both_ns(cluster, tokens, head_dim, causal) * 1e-3,
                             published, "%lld tokens, heads of %lld%s", (long long)tokens,
                             (long long)head_dim, causal ? ", causal" : "");
}

static dh_status add_rows(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                          const dh_published *t)
{
    for (size_t i = 0; i < t->n_rows; i++) DH_TRY(add_row(ctx, v, cluster, t, i));
    return DH_OK;
}

dh_status dh_validate_flash_attention(dh_ctx *ctx, dh_validation *v)
{
    return dh_validation_on_cluster(ctx, v, "a100", add_rows);
}
