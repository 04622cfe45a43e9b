/* NCCL's all-reduce inside a node of 8 A100, 1 MiB to 1 GiB (nccl-tests, by the authors of vTrain).
 * The mean of the two repeats counts, which have columns of the same names. */
#include <string.h>

#include "dhelix/cluster.h"
#include "validate/table.h"

static dh_status mean_of_repeats(dh_ctx *ctx, const dh_published *t, size_t row, double *ns)
{
    double sum = 0;
    int n = 0;
    for (size_t c = 0; c < t->n_columns; c++) {
        double repeat;
        if (strcmp(t->columns[c], "time(ns)") != 0) continue;
        const char *cell = t->cells[row * t->n_columns + c];
        if (!dh_parse_f64(cell, &repeat))
            return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: time(ns) is \"%s\", not a number",
                           t->file, row + 1, cell);
        sum += repeat;
        n++;
    }
    if (n == 0) return dh_fail(ctx, DH_EMISSING, "%s has no column time(ns)", t->file);
    *ns = sum / n;
    return DH_OK;
}

/* Sizes in groups, each up to twice those of the one before. */
static dh_status begin_group(dh_ctx *ctx, dh_validation *v, double mib)
{
    int low = 1;
    while (2 * low <= mib) low *= 2;
    return low == 1 ? dh_validation_group(ctx, v, "1 MiB")
                    : dh_validation_group(ctx, v, "%d to %d MiB", low, 2 * low - 1);
}

static dh_status add_rows(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                          const dh_published *t)
{
    const dh_cluster_span span = {.size = 8, .nodes = {.n_nodes = 1, .max_per_node = 8}};
    for (size_t i = 0; i < t->n_rows; i++) {
        double bytes, ns = 0;
        DH_TRY(dh_published_real(ctx, t, i, "size(B)", &bytes));
        DH_TRY(mean_of_repeats(ctx, t, i, &ns));
        const dh_collective_time time =
            dh_cluster_collective(cluster, DH_OP_ALL_REDUCE, bytes, span);
        DH_TRY(begin_group(ctx, v, bytes / 1048576));
        DH_TRY(dh_validation_add(ctx, v, time.ns * 1e-3, ns * 1e-3, "%.0f MiB, %s", bytes / 1048576,
                                 dh_collective_name(time.by)));
    }
    return DH_OK;
}

dh_status dh_validate_nccl(dh_ctx *ctx, dh_validation *v)
{
    return dh_validation_on_cluster(ctx, v, "a100", add_rows);
}
