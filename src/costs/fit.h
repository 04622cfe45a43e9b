/* Constants from measurements: least squares by Levenberg and Marquardt (Marquardt 1963), with
 * derivatives by differences.
 *
 * It suits few constants and expensive predictions: an iteration needs one more prediction of all
 * measurements than there are constants. The predictor may have kinks; steps that do not help are
 * taken back. Deterministic. */
#ifndef DH_COSTS_FIT_H
#define DH_COSTS_FIT_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DH_FIT_MAX_CONSTANTS = 8 };

/* How far predictions are from measurements with these constants.
 * out       residuals [n_residuals], finite */
typedef dh_status dh_fit_predict(dh_ctx *ctx, void *self, const double *constants,
                                 double *residuals);

typedef struct dh_fit_problem {
    size_t n_constants, n_residuals;
    const double *min, *max; /* [n_constants] */
    dh_fit_predict *predict;
    void *self;
    int max_steps; /* 0: 20 */
} dh_fit_problem;

/* in        constants [n_constants]: the start, inside the bounds
 * out       set only on DH_OK: the constants with the least sum of squares found, and the rms of
 *           the residuals there
 * errors    DH_EINVAL too many constants, or a start outside; those of predict; DH_ENOMEM */
dh_status dh_fit(dh_ctx *ctx, const dh_fit_problem *problem, double *constants, double *rms);

#ifdef __cplusplus
}
#endif
#endif
