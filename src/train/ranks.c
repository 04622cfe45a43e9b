/* Agreement between ranks outside the program: statuses, paths, losses. */
#include "train/rank.h"

#include <stdlib.h>

#include "graph/stream.h"

dh_status dh_ranks_group(dh_ctx *ctx, const dh_ranks *r, const dh_mesh *mesh, dh_group_kind kind,
                         int stream, dh_comm_group **group)
{
    const int n = (int)dh_mesh_group_size(mesh, kind);
    *group = NULL;
    if (n == 1) return DH_OK;
    int *members = malloc((size_t)n * sizeof *members);
    if (!members) return dh_no_memory(ctx);
    for (int i = 0; i < n; i++) members[i] = (int)dh_mesh_group_member(mesh, kind, r->rank, i);
    dh_comm_group_spec spec = {.name = stream == DH_N_STREAM ? "control" : dh_group_name(kind),
                               .members = members,
                               .n = n,
                               .stream = stream,
                               .wire = DH_ENGINE_LOCAL};
    dh_status st = dh_comm_group_create(ctx, r->comm, &spec, group);
    free(members);
    return st;
}

/* A rank that failed takes no part. It may have left out a collective of another group. Its
 * partners would wait there, and other ranks for them. */
dh_status dh_ranks_agree(dh_ctx *ctx, const dh_ranks *ranks, dh_status st)
{
    if (!ranks->control) return st;
    if (st == DH_OK) return dh_comm_barrier(ctx, ranks->control);
    dh_comm_abort(ranks->comm, ctx->message);
    return st;
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
