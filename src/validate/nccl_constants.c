/* Collectives on nodes of H100 and B200, by latencies and bandwidths that NCCL's tuning has and nccl-tests
 * measured. At each size the fastest of a group's protocols and algorithms counts. An all-reduce
 * may also be a ring, which is a reduce-scatter and an all-gather. */
#include <math.h>
#include <string.h>

#include "dhelix/cluster.h"
#include "validate/table.h"

typedef struct constants {
    const char *collective;
    int64_t nodes, per_node;
    double latency_us, gb_per_s;
} constants;

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t row, constants *c)
{
    DH_TRY(dh_published_text(ctx, t, row, "collective", &c->collective));
    DH_TRY(dh_published_int(ctx, t, row, "nodes", &c->nodes));
    DH_TRY(dh_published_int(ctx, t, row, "ranks_per_node", &c->per_node));
    DH_TRY(dh_published_real(ctx, t, row, "latency_us", &c->latency_us));
    return dh_published_real(ctx, t, row, "gb_per_s", &c->gb_per_s);
}

static bool same_group(const constants *a, const constants *b)
{
    return a->nodes == b->nodes && a->per_node == b->per_node;
}

/* Microseconds of a vector, by the fastest row of the group. */
static dh_status fastest(dh_ctx *ctx, const dh_published *t, const constants *group, double bytes,
                         double *us)
{
    *us = INFINITY;
    for (size_t i = 0; i < t->n_rows; i++) {
        constants c;
        DH_TRY(read_row(ctx, t, i, &c));
        if (!same_group(&c, group)) continue;
        const double once = c.latency_us + bytes / c.gb_per_s * 1e-3;
        const bool ring =
            strcmp(group->collective, "all_reduce") == 0 && strcmp(c.collective, "all_gather") == 0;
        if (ring) *us = DH_MIN(*us, 2 * once);
        if (strcmp(c.collective, group->collective) == 0) *us = DH_MIN(*us, once);
    }
    return DH_OK;
}

static dh_op_type type_of(const char *collective)
{
    static const struct {
        const char *name;
        dh_op_type type;
    } types[] = {{"all_gather", DH_OP_ALL_GATHER},
                 {"reduce_scatter", DH_OP_REDUCE_SCATTER},
                 {"all_reduce", DH_OP_ALL_REDUCE},
                 {"all_to_all", DH_OP_ALL_TO_ALL}};
    for (size_t i = 0; i < DH_COUNTOF(types); i++)
        if (strcmp(types[i].name, collective) == 0) return types[i].type;
    return DH_N_OP_TYPE;
}

/* Whether a row before is of the same collective and group. */
static dh_status stands_before(dh_ctx *ctx, const dh_published *t, size_t row, const constants *c,
                               bool *before)
{
    *before = false;
    for (size_t i = 0; i < row && !*before; i++) {
        constants other;
        DH_TRY(read_row(ctx, t, i, &other));
        *before = same_group(&other, c) && strcmp(other.collective, c->collective) == 0;
    }
    return DH_OK;
}

static dh_status add_sizes(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                           const dh_published *t, const constants *c)
{
    static const int mib[] = {16, 64, 256, 1024};
    const dh_cluster_span span = {.size = c->nodes * c->per_node,
                                  .nodes = {.n_nodes = c->nodes, .max_per_node = c->per_node}};
    const dh_op_type type = type_of(c->collective);
    if (type == DH_N_OP_TYPE)
        return dh_fail(ctx, DH_EFORMAT, "%s: no collective is called %s", t->file, c->collective);
    dh_validation_begin_block(v);
    for (size_t i = 0; i < DH_COUNTOF(mib); i++) {
        const double bytes = mib[i] * 1048576.0;
        const dh_collective_time time = dh_cluster_collective(cluster, type, bytes, span);
        double us = 0;
        DH_TRY(fastest(ctx, t, c, bytes, &us));
        DH_TRY(dh_validation_add(ctx, v, time.ns * 1e-3, us, "%s %lldx%lld %d MiB, %s",
                                 c->collective, (long long)c->nodes, (long long)c->per_node, mib[i],
                                 dh_collective_name(time.by)));
    }
    return DH_OK;
}

static dh_status add_rows(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                          const dh_published *t)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        constants c;
        bool before = false;
        DH_TRY(read_row(ctx, t, i, &c));
        DH_TRY(stands_before(ctx, t, i, &c, &before));
        if (!before) DH_TRY(add_sizes(ctx, v, cluster, t, &c));
    }
    return DH_OK;
}

dh_status dh_validate_nccl_constants(dh_ctx *ctx, dh_validation *v)
{
    return dh_validation_on_cluster(ctx, v, v->table->rests_cluster, add_rows);
}
