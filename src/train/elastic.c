/* Which mesh is left when ranks are lost. A rank of tensor, context or pipeline parallelism has
 * what no other has; a data-parallel one is one of several alike, and the others can do its work.
 */
#include "train/elastic.h"

#include "base/base.h"

static dh_status try_dp(dh_ctx *ctx, const dh_job *job, int64_t dp, dh_job *smaller)
{
    *smaller = *job;
    smaller->dp = dp;
    smaller->ranks = job->ranks / job->dp * dp;
    smaller->nodes = 0;
    if (job->ranks_per_node > 0 && smaller->ranks % job->ranks_per_node != 0)
        smaller->ranks_per_node = 0;
    return dh_job_check(ctx, smaller);
}

dh_status dh_job_shrink(dh_ctx *ctx, const dh_job *job, int64_t n_left, dh_job *smaller)
{
    const int64_t others = job->ranks / job->dp;
    for (int64_t dp = DH_MIN(n_left / others, job->dp - 1); dp >= 1; dp--) {
        dh_ctx why = DH_CTX_INIT;
        if (dp * others < job->elastic_min_ranks)
            return dh_fail(
                ctx, DH_EINVAL,
                "with %lld ranks left parallel.dp could be %lld, which makes %lld ranks, "
                "and elastic.min_ranks is %lld",
                (long long)n_left, (long long)dp, (long long)(dp * others),
                (long long)job->elastic_min_ranks);
        if (try_dp(&why, job, dp, smaller) == DH_OK) return DH_OK;
    }
    return dh_fail(ctx, DH_EINVAL,
                   "%lld ranks are left, and the job takes a multiple of tp * pp * cp = %lld, of "
                   "which train.batch %lld gives each as many micro-batches of %lld",
                   (long long)n_left, (long long)others, (long long)job->global_batch,
                   (long long)job->micro_batch);
}
