/* Constants of cluster files next to their sources: sizes of devices, and how much slower
 * computation is during communication. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "dhelix/cluster.h"
#include "validate/table.h"

/* ---- data sheets --------------------------------------------------------------------------- */

static const struct {
    const char *gpu, *cluster;
} devices[] = {
    {"A40", "a40"},           {"A100-80G-SXM", "a100"}, {"A800-80G-SXM", "a800"},
    {"H100-80G-SXM", "h100"}, {"H800-80G-SXM", "h800"}, {"H200-141G-SXM", "h200"},
    {"B200", "b200"},
};

/* Data sheets count memory in units of their own: 80 GB are 84.99e9 bytes. */
#define GIB 1073741824.0

/* A cell that is a range or has several figures says nothing to compare. */
static dh_status add_cell(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                          const char *column, double value)
{
    const char *gpu, *cell;
    double published;
    DH_TRY(dh_published_text(ctx, t, row, "gpu", &gpu));
    DH_TRY(dh_published_text(ctx, t, row, column, &cell));
    if (!dh_parse_f64(cell, &published)) return DH_OK;
    const double decimal = round(value * 1e6) * 1e-6; /* without what units left in binary */
    return dh_validation_add(ctx, v, decimal, published, "%s %s", gpu, column);
}

static dh_status add_device(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                            const char *name)
{
    dh_cluster *c;
    DH_TRY(dh_cluster_find(ctx, name, &c));
    dh_status st = add_cell(ctx, v, t, row, "bf16_dense_tflops", c->bf16_flops_per_s * 1e-12);
    if (st == DH_OK) st = add_cell(ctx, v, t, row, "mem_reported_gib", c->memory_bytes / GIB);
    if (st == DH_OK) st = add_cell(ctx, v, t, row, "mem_bw_GBps", c->memory_bytes_per_s * 1e-9);
    if (st == DH_OK && c->node_switches == 1) /* others have no NVLink between all devices */
        st = add_cell(ctx, v, t, row, "nvlink_uni_GBps", c->local.bytes_per_s * 1e-9);
    dh_cluster_destroy(c);
    return st;
}

dh_status dh_validate_hardware(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *gpu;
        DH_TRY(dh_published_text(ctx, &t, i, "gpu", &gpu));
        for (size_t k = 0; k < DH_COUNTOF(devices); k++)
            if (strcmp(devices[k].gpu, gpu) == 0)
                DH_TRY(add_device(ctx, v, &t, i, devices[k].cluster));
    }
    return DH_OK;
}

/* ---- contention ---------------------------------------------------------------------------- */

typedef struct slowdown {
    double sum, most;
    int n;
} slowdown;

/* Of computation beside communication, in percent, while both run: 1 - OEF (pairing.h). */
static dh_status add_up(dh_ctx *ctx, const char *cluster, bool cross, slowdown *s)
{
    static const dh_cluster_class computes[] = {DH_CLUSTER_GEMM, DH_CLUSTER_ATTENTION,
                                                DH_CLUSTER_ATTENTION_GRAD};
    dh_cluster *c;
    DH_TRY(dh_cluster_find(ctx, cluster, &c));
    for (size_t i = 0; i < DH_COUNTOF(computes); i++)
        for (int k = 0; k <= (int)cross; k++) {
            const dh_cluster_class link = k ? DH_CLUSTER_CROSS : DH_CLUSTER_LOCAL;
            const double slower = 100 * (1 - dh_cluster_oef(c, computes[i], link));
            s->sum += slower;
            s->most = DH_MAX(s->most, slower);
            s->n++;
        }
    dh_cluster_destroy(c);
    return DH_OK;
}

/* "18.9%", or the middle of "20-30%". */
static double percent_of(const char *text)
{
    char *end;
    const double first = dh_strtod(text, &end);
    return *end == '-' ? (first + dh_strtod(end + 1, NULL)) / 2 : first;
}

dh_status dh_validate_contention(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    slowdown all = {0}, h100 = {0};
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(add_up(ctx, "a100", true, &all));
    DH_TRY(add_up(ctx, "h100", true, &all));
    DH_TRY(add_up(ctx, "h100", false, &h100));
    const struct {
        const char *begins;
        double predicted;
    } rows[] = {{"avg compute slowdown", all.sum / all.n},
                {"max compute slowdown", all.most},
                {"kernel slowdown on H100", h100.sum / h100.n}};
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *quantity, *value;
        DH_TRY(dh_published_text(ctx, &t, i, "quantity", &quantity));
        DH_TRY(dh_published_text(ctx, &t, i, "value", &value));
        for (size_t k = 0; k < DH_COUNTOF(rows); k++)
            if (strncmp(quantity, rows[k].begins, strlen(rows[k].begins)) == 0)
                DH_TRY(dh_validation_add(ctx, v, rows[k].predicted, percent_of(value), "%s",
                                         rows[k].begins));
    }
    return DH_OK;
}
