/* A cluster fitted to measurements. */
#ifndef DH_DESCRIBE_CALIBRATED_H
#define DH_DESCRIBE_CALIBRATED_H

#include <jansson.h>

#include "calibrate/calibration.h"
#include "dhelix/describe.h"

typedef struct dh_calibrated {
    dh_cluster *base;
    dh_measured measured;
    dh_calibration fit;
} dh_calibrated;

/* Read the measurements, fit, and write the cluster file where one is asked for.
 * out       caller frees with dh_calibrated_fini, also after a failure
 * errors    DH_EFORMAT with file and line; DH_EINVAL, DH_EMISSING of the options; DH_EIO; DH_ENOMEM
 */
dh_status dh_calibrated_make(dh_ctx *ctx, const char *const *files, size_t n_files,
                             const dh_describe_calibrate_options *options,
                             dh_calibrated *calibrated);
void dh_calibrated_fini(dh_calibrated *calibrated);
/* NULL: out of memory */
json_t *dh_calibrated_json(const dh_calibrated *calibrated,
                           const dh_describe_calibrate_options *options);

#endif
