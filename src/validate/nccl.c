/* NCCL's all-reduce inside a node of 8 A100, 1 MiB to 1 GiB (nccl-tests, by the authors of vTrain):
 * the mean of the two repeats. */
#include "dhelix/cluster.h"
#include "validate/table.h"

static dh_status add_rows(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                          const dh_published *t)
{
    const dh_cluster_span span = {.size = 8, .nodes = {.n_nodes = 1, .max_per_node = 8}};
    for (size_t i = 0; i < t->n_rows; i++) {
        double bytes, ns;
        DH_TRY(dh_published_real(ctx, t, i, "size(B)", &bytes));
        DH_TRY(dh_published_real(ctx, t, i, "time(ns)", &ns));
        const dh_collective_time time =
            dh_cluster_collective(cluster, DH_OP_ALL_REDUCE, bytes, span);
        DH_TRY(dh_validation_add(ctx, v, time.ns * 1e-3, ns * 1e-3, "%.0f MiB, %s", bytes / 1048576,
                                 dh_collective_name(time.by)));
    }
    return DH_OK;
}

dh_status dh_validate_nccl(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *a100;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "a100", &a100));
    dh_status st = add_rows(ctx, v, a100, &t);
    dh_cluster_destroy(a100);
    return st;
}
