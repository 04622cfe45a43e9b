/* Constants of cluster files, fitted again to the table that they rest on, and their predictions
 * for rows left out of the fit. */
#include <stdlib.h>
#include <string.h>

#include "costs/fit.h"
#include "validate/table.h"

_Static_assert((int)DH_VALIDATION_CONSTANTS <= (int)DH_FIT_MAX_CONSTANTS, "all can be fitted");

/* TUNING: every step simulates the table's jobs once for each constant and once more. Shipped
 * constants are near the best. Three steps bring all tables within 0.1 % of the least sum of
 * squares. */
enum { STEPS = 3 };

typedef struct fitting {
    const dh_validation_table *table;
    const char *cluster;
    size_t n, n_rows;
    bool part;      /* without the rows left out */
    bool *left_out; /* [n_rows] */
} fitting;

/* A table's rows with these constants. */
static dh_status predict(dh_ctx *ctx, const fitting *f, const double *constants, dh_validation **v)
{
    dh_cluster_change changes[DH_VALIDATION_CONSTANTS];
    for (size_t i = 0; i < f->n; i++)
        changes[i] = (dh_cluster_change){f->table->rests[i], constants[i]};
    dh_validation_steps *steps = dh_validation_steps_create();
    if (!steps) return dh_no_memory(ctx);
    dh_status st = dh_validate_changed(ctx, f->table, f->cluster, steps, changes, f->n, v);
    dh_validation_steps_destroy(steps);
    return st;
}

static dh_status residuals(dh_ctx *ctx, void *self, const double *constants, double *residual)
{
    const fitting *f = self;
    dh_validation *v;
    DH_TRY(predict(ctx, f, constants, &v));
    for (size_t i = 0; i < f->n_rows; i++) {
        const dh_validation_row *r = &v->rows[i];
        const double scale = f->table->measure == DH_VALIDATION_RELATIVE ? r->published : 100;
        residual[i] = f->part && f->left_out[i] ? 0 : (r->predicted - r->published) / scale;
    }
    dh_validation_destroy(v);
    return DH_OK;
}

/* The second of every three blocks. */
static void leave_out(fitting *f, const dh_validation *v, size_t *n)
{
    int blocks = -1, last = 0;
    *n = 0;
    for (size_t i = 0; i < f->n_rows; i++) {
        if (i == 0 || v->rows[i].block != last) blocks++;
        last = v->rows[i].block;
        f->left_out[i] = blocks % 3 == 1;
        *n += f->left_out[i];
    }
}

/* Mean errors of rows, and of those left out. */
static dh_status errors_of(dh_ctx *ctx, const fitting *f, const double *constants, double *rest,
                           double *left_out)
{
    dh_validation *v;
    double sum[2] = {0};
    size_t n[2] = {0};
    DH_TRY(predict(ctx, f, constants, &v));
    for (size_t i = 0; i < f->n_rows; i++) {
        sum[f->left_out[i]] += v->rows[i].error;
        n[f->left_out[i]]++;
    }
    dh_validation_destroy(v);
    *rest = n[0] ? sum[0] / (double)n[0] : 0;
    *left_out = n[1] ? sum[1] / (double)n[1] : 0;
    return DH_OK;
}

static double all_of(const dh_validation_fit *fit, double rest, double left_out)
{
    const double n = (double)fit->n_rows, out = (double)fit->n_left_out;
    return (rest * (n - out) + left_out * out) / n;
}

static dh_status fit_constants(dh_ctx *ctx, fitting *f, bool part, const double *shipped,
                               const double *min, const double *max, double *constants)
{
    double rms;
    const dh_fit_problem p = {.n_constants = f->n,
                              .n_residuals = f->n_rows,
                              .min = min,
                              .max = max,
                              .predict = residuals,
                              .self = f,
                              .max_steps = STEPS};
    f->part = part;
    memcpy(constants, shipped, f->n * sizeof *constants);
    return dh_fit(ctx, &p, constants, &rms);
}

static dh_status read_shipped(dh_ctx *ctx, const fitting *f, double *shipped, double *min,
                              double *max)
{
    dh_cluster *c;
    DH_TRY(dh_cluster_find(ctx, f->cluster ? f->cluster : f->table->rests_cluster, &c));
    dh_status st = DH_OK;
    for (size_t i = 0; i < f->n && st == DH_OK; i++) {
        dh_cluster_number number = {0};
        st = dh_cluster_get(ctx, c, f->table->rests[i], &number);
        shipped[i] = number.value;
        min[i] = number.min;
        max[i] = number.max;
    }
    dh_cluster_destroy(c);
    return st;
}

static dh_status fit_both(dh_ctx *ctx, fitting *f, dh_validation_fit *fit)
{
    enum { N = DH_VALIDATION_CONSTANTS };
    double shipped[N] = {0}, min[N], max[N], all[N] = {0}, part[N] = {0}, rest, out;
    DH_TRY(read_shipped(ctx, f, shipped, min, max));
    DH_TRY(errors_of(ctx, f, shipped, &rest, &fit->shipped_left_out));
    fit->shipped = all_of(fit, rest, fit->shipped_left_out);
    DH_TRY(fit_constants(ctx, f, false, shipped, min, max, all));
    DH_TRY(fit_constants(ctx, f, true, shipped, min, max, part));
    DH_TRY(errors_of(ctx, f, all, &rest, &out));
    fit->fitted = all_of(fit, rest, out);
    DH_TRY(errors_of(ctx, f, part, &fit->part, &fit->part_left_out));
    for (size_t i = 0; i < f->n; i++)
        fit->constants[i] =
            (dh_validation_constant){f->table->rests[i], shipped[i], all[i], part[i]};
    return DH_OK;
}

static size_t n_constants(const dh_validation_table *table)
{
    size_t n = 0;
    while (n < DH_VALIDATION_CONSTANTS && table->rests[n]) n++;
    return n;
}

dh_status dh_validation_fit_table(dh_ctx *ctx, const dh_validation_table *table,
                                  const char *cluster, dh_validation_fit *fit)
{
    fitting f = {.table = table, .cluster = cluster, .n = n_constants(table)};
    dh_validation *v;
    if (f.n == 0)
        return dh_fail(ctx, DH_EINVAL, "no constant of a cluster file rests on table %s",
                       table->name);
    dh_validation_steps *steps = dh_validation_steps_create();
    if (!steps) return dh_no_memory(ctx);
    dh_status st = dh_validate_changed(ctx, table, cluster, steps, NULL, 0, &v);
    dh_validation_steps_destroy(steps);
    if (st != DH_OK) return st;
    *fit = (dh_validation_fit){.n_constants = f.n, .n_rows = v->n_rows};
    f.n_rows = v->n_rows;
    f.left_out = calloc(f.n_rows + 1, sizeof *f.left_out);
    if (f.left_out) leave_out(&f, v, &fit->n_left_out);
    dh_validation_destroy(v);
    st = f.left_out ? fit_both(ctx, &f, fit) : dh_no_memory(ctx);
    free(f.left_out);
    return st;
}
