/* Agreement between ranks outside the program: statuses, paths, losses. */
#include "train/rank.h"

dh_status dh_ranks_agree(dh_ctx *ctx, const dh_ranks *ranks, dh_status st)
{
    if (!ranks->control) return st;
    /* The lowest failing rank is the one to name. */
    const int32_t none = (int32_t)ranks->n;
    int32_t report = st == DH_OK ? 0 : none - (int32_t)ranks->rank, worst = report;
    dh_ctx inner = DH_CTX_INIT;
    dh_status sent =
        dh_comm_all_reduce(&inner, ranks->control, &report, &worst, 1, DH_I32, DH_REDUCE_MAX);
    if (st != DH_OK) return st;
    if (sent != DH_OK) return dh_fail(ctx, sent, "%s", inner.message);
    if (worst == 0) return DH_OK;
    return dh_fail(ctx, DH_ECOMM, "rank %d failed; its own message says why", none - worst);
}

dh_status dh_ranks_broadcast(dh_ctx *ctx, const dh_ranks *ranks, void *data, size_t n_bytes)
{
    if (!ranks->control) return DH_OK;
    return dh_comm_broadcast(ctx, ranks->control, data, (int64_t)n_bytes, DH_U8, 0);
}

dh_status dh_ranks_sum(dh_ctx *ctx, const dh_ranks *ranks, double *values, int64_t n)
{
    if (!ranks->control) return DH_OK;
    return dh_comm_all_reduce(ctx, ranks->control, values, values, n, DH_F64, DH_REDUCE_SUM);
}
