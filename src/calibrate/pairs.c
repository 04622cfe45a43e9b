/* Profiles of ours: what their pairs say of overlap effectiveness, by classes of operators.
 *
 * A pair belongs to the classes of its operators, as a cluster's costs have them. Its effectiveness
 * is that of equation 1 of the paper, from the time that both take together. Two classes get the
 * median of their pairs. A profile's estimates and imported figures are not used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/calibration.h"

/* ---- reading --------------------------------------------------------------------------------- */

bool measured_is_profile(const char *text)
{
    enum { HEAD_BYTES = 4096 };
    char head[HEAD_BYTES];
    snprintf(head, sizeof head, "%.*s", HEAD_BYTES - 1, text);
    return strstr(head, "\"dhelix-profile\"") != NULL;
}

dh_op_type measured_op_type(const dh_profile_op *op)
{
    const size_t n = strcspn(op->key, " ");
    for (int t = 0; t < DH_N_OP_TYPE; t++) {
        const char *name = dh_op_info_of((dh_op_type)t)->name;
        if (strlen(name) == n && strncmp(name, op->key, n) == 0) return (dh_op_type)t;
    }
    return DH_N_OP_TYPE;
}

static bool class_of(const dh_profile *p, uint32_t at, dh_cluster_class *cls)
{
    const dh_profile_op *op = &p->ops.at[at];
    const dh_op_type type = measured_op_type(op);
    if (type == DH_N_OP_TYPE || op->source != DH_PAIR_MEASURED) return false;
    *cls = dh_cluster_class_by(type, dh_stream_engine(op->stream));
    return true;
}

static dh_status add_pair(const measured_file *file, const dh_profile *p,
                          const dh_profile_pair *pair)
{
    dh_measured_pair row = {.file = file->path};
    if (pair->source != DH_PAIR_MEASURED || !class_of(p, pair->a, &row.classes[0]) ||
        !class_of(p, pair->b, &row.classes[1]))
        return DH_OK;
    row.oef = dh_oef(p->ops.at[pair->a].solo_ns, p->ops.at[pair->b].solo_ns,
                     DH_MAX(pair->a_ns, pair->b_ns));
    return dh_vec_push(&file->m->pairs, row) ? DH_OK : measured_no_memory(file);
}

dh_status measured_read_profile(const measured_file *file)
{
    dh_profile *p;
    DH_TRY(dh_profile_parse(file->ctx, file->text, file->n_bytes, file->path, &p));
    dh_status st = measured_add_solos(file, p);
    for (size_t i = 0; st == DH_OK && i < p->pairs.n; i++) st = add_pair(file, p, &p->pairs.at[i]);
    dh_profile_destroy(p);
    return st;
}

/* ---- medians --------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Whichever way round. */
static bool is_of(const dh_measured_pair *p, int a, int b)
{
    const int c = (int)p->classes[0], d = (int)p->classes[1];
    return (c == a && d == b) || (c == b && d == a);
}

/* A cluster file has values from -10 to below 2. */
static double kept(double oef)
{
    return DH_MAX(-10, DH_MIN(oef, 1.999));
}

static void add_oef(dh_calibration *f, int a, int b, double *values)
{
    const dh_measured *m = f->measured;
    size_t n = 0;
    for (size_t i = 0; i < m->pairs.n; i++)
        if (is_of(&m->pairs.at[i], a, b)) values[n++] = m->pairs.at[i].oef;
    if (n == 0) return;
    qsort(values, n, sizeof *values, by_value);
    const double median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    f->oefs[f->n_oefs++] = (dh_calibration_oef){
        .classes = {(dh_cluster_class)a, (dh_cluster_class)b},
        .n = n,
        .base = dh_cluster_oef(f->base, (dh_cluster_class)a, (dh_cluster_class)b),
        .value = kept(median),
        .quarter = values[n / 4],
        .three_quarters = values[n - 1 - n / 4]};
    f->cluster.oef[a][b] = f->cluster.oef[b][a] = kept(median);
}

dh_status dh_calibration_find_oefs(dh_ctx *ctx, dh_calibration *f)
{
    double *values = DH_NEW_N(f->arena, double, f->measured->pairs.n + 1);
    if (!values) return dh_no_memory(ctx);
    for (int a = 0; a < DH_N_CLUSTER_CLASS; a++)
        for (int b = a; b < DH_N_CLUSTER_CLASS; b++) add_oef(f, a, b, values);
    return DH_OK;
}
