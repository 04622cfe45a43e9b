/* Constants of a cluster, fitted to measurements. */
#ifndef DH_CALIBRATE_FIT_H
#define DH_CALIBRATE_FIT_H

#include "calibrate/measured.h"

/* How far predictions are from rows: the mean of |predicted / measured - 1|. */
typedef struct dh_fit_error {
    size_t n;
    double mean;
} dh_fit_error;

typedef struct dh_fit_constant {
    const char *key, *unit; /* of cluster files; unit "": none */
    double base, value;     /* in the file's unit */
    bool fitted;            /* false: as the base has it */
    bool at_bound;          /* the rows would have it beyond what there can be */
    const char *why;        /* fitted or not: what it rests on */
    dh_fit_error used, held;
} dh_fit_constant;

typedef struct dh_fit_group {
    const char *name;
    dh_fit_error used, held, base; /* base: all rows, by the cluster that it began with */
    const dh_measured_row *worst;
    double worst_error; /* predicted / measured - 1 */
} dh_fit_group;

typedef struct dh_fit {
    dh_arena *arena;           /* owns the lists */
    struct dh_cluster cluster; /* the base, with the fitted constants; borrows the base's strings */
    const dh_cluster *base;
    dh_measured *measured;
    dh_fit_constant *constants;
    size_t n_constants;
    dh_fit_group *groups;
    size_t n_groups;
} dh_fit;

/* Fit what the rows determine. Marks a third of each group's rows as held.
 * in        base, measured: must outlive the fit; devices: of a node, 0: the base's, or as many as
 *           the rows have on one
 * out       caller frees with dh_fit_fini, also after a failure
 * errors    DH_EINVAL more ranks on a node than `devices`; DH_ENOMEM */
dh_status dh_fit_make(dh_ctx *ctx, const dh_cluster *base, dh_measured *measured, int64_t devices,
                      dh_fit *fit);
void dh_fit_fini(dh_fit *fit);
/* The cluster file, with what each constant rests on. like: the base, as a cluster file names it.
 */
dh_status dh_fit_print(dh_ctx *ctx, const dh_fit *fit, const char *like, dh_str *out);

#endif
