/* Constants of a cluster, fitted to measurements. */
#ifndef DH_CALIBRATE_CALIBRATION_H
#define DH_CALIBRATE_CALIBRATION_H

#include "calibrate/measured.h"

/* How far predictions are from rows: the mean of |predicted / measured - 1|. */
typedef struct dh_calibration_error {
    size_t n;
    double mean;
} dh_calibration_error;

typedef struct dh_calibration_constant {
    const char *key, *unit; /* of cluster files; unit "": none */
    double base, value;     /* in the file's unit */
    bool fitted;            /* false: as the base has it, or it follows */
    bool follows;           /* in proportion to another one that is fitted */
    bool at_bound;          /* the rows would have it beyond what there can be */
    const char *why;        /* fitted or not: what it rests on */
    dh_calibration_error used, held;
} dh_calibration_constant;

typedef struct dh_calibration_group {
    const char *name;
    dh_calibration_error used, held, base; /* base: all rows, by the cluster that it began with */
    const dh_measured_row *worst;
    double worst_error; /* predicted / measured - 1 */
} dh_calibration_group;

/* Overlap effectiveness of two classes: the median of all measured pairs of them. */
typedef struct dh_calibration_oef {
    dh_cluster_class classes[2];
    size_t n; /* pairs */
    double base, value;
    double quarter, three_quarters; /* first and third quartile of the pairs */
} dh_calibration_oef;

enum { DH_MOST_OEFS = DH_N_CLUSTER_CLASS * (DH_N_CLUSTER_CLASS + 1) / 2 };

typedef struct dh_calibration {
    dh_arena *arena;           /* owns the lists */
    struct dh_cluster cluster; /* the base, with the fitted constants; borrows the base's strings */
    const dh_cluster *base;
    dh_measured *measured;
    dh_calibration_constant *constants;
    size_t n_constants;
    dh_calibration_group *groups;
    size_t n_groups;
    dh_calibration_oef oefs[DH_MOST_OEFS];
    size_t n_oefs;
} dh_calibration;

/* Fits the constants that the rows determine. Marks a third of each group's rows as held.
 *
 * in        base, measured: must outlive the fit
 *           devices: number on a node; 0: the base's, or the most that rows have on one
 * out       caller frees with dh_calibration_fini, also after a failure
 * errors    DH_EINVAL more ranks on a node than `devices`, a row faster than the base's device or
 *           links can be, no row or pair left; DH_ENOMEM */
dh_status dh_calibration_make(dh_ctx *ctx, const dh_cluster *base, dh_measured *measured,
                              int64_t devices, dh_calibration *fit);
void dh_calibration_fini(dh_calibration *fit);
/* A step of dh_calibration_make: what pairs say. */
dh_status dh_calibration_find_oefs(dh_ctx *ctx, dh_calibration *fit);
/* The cluster file, with what each constant rests on. like: the base, as a cluster file names
 * it. */
dh_status dh_calibration_print(dh_ctx *ctx, const dh_calibration *fit, const char *like,
                               dh_str *out);

#endif
