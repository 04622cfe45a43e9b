/* Products of 8 bits that others measured alone, on H100 and H200: what gemm.fp8 rests on. */
#include <string.h>

#include "dhelix/cluster.h"
#include "validate/table.h"

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i)
{
    const char *name;
    dh_gemm_shape s = {.dtype = DH_BF16, .fp8 = true, .batch = 1};
    double published;
    dh_cluster *cluster;
    DH_TRY(dh_published_text(ctx, t, i, "cluster", &name));
    DH_TRY(dh_published_int(ctx, t, i, "m", &s.rows));
    DH_TRY(dh_published_int(ctx, t, i, "n", &s.columns));
    DH_TRY(dh_published_int(ctx, t, i, "k", &s.shared));
    DH_TRY(dh_published_real(ctx, t, i, "tflops", &published));
    if (v->rested_on && strcmp(name, v->table->rests_cluster) != 0) return DH_OK;
    DH_TRY(dh_validation_cluster(ctx, v, name, &cluster));
    const double flops = 2 * (double)s.rows * (double)s.columns * (double)s.shared;
    const double rate = flops / dh_cluster_gemm_ns(cluster, &s) * 1e-3;
    dh_cluster_destroy(cluster);
    return dh_validation_add(ctx, v, rate, published, "%s, %lld x %lld x %lld", name,
                             (long long)s.rows, (long long)s.columns, (long long)s.shared);
}

dh_status dh_validate_gemm_fp8(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
