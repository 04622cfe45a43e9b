/* Profiles of jobs: measuring, importing, finding them. */
#ifndef DH_TRAIN_PROFILING_H
#define DH_TRAIN_PROFILING_H

#include <signal.h>

#include "costs/profile.h"
#include "dhelix/job.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_profile_options {
    bool quiet;                        /* no progress */
    int64_t samples;                   /* of every operator and pair; 0: 11 */
    double seconds;                    /* after this no sample is begun, once there are 3; 0: 60 */
    const volatile sig_atomic_t *stop; /* as in dh_train_options; then nothing is written */
} dh_profile_options;

/* Run the job's operators on its ranks and links, alone and in pairs: a model of one layer a
 * virtual stage with the job's sizes, on the job's data. Operators of every strategy are measured,
 * whatever the job's own strategy is.
 * out       caller frees; NULL in processes other than rank 0's
 * errors    those of training; DH_EINTERRUPTED */
dh_status dh_profile_measure(dh_ctx *ctx, const dh_job *job, const dh_profile_options *options,
                             dh_profile **profile);
/* For the setting `profile: measure`. It measures the operators of the job's strategy (for `auto`:
 * of every strategy) that the profile at the job's place lacks. They are stored there before any
 * rank continues. The job's vocabulary must be known.
 * errors    those of dh_profile_measure and dh_profile_store */
dh_status dh_profile_complete(dh_ctx *ctx, const dh_job *job, const dh_profile_options *options);
/* The job's operators with estimated times, and pairs by a matrix whose names are those of
 * dh_op_oef_name or labels.
 * in        name: the matrix's name, for messages
 * errors    DH_EMISSING the matrix has none of the job's pairs */
dh_status dh_profile_import(dh_ctx *ctx, const dh_job *job, const dh_oef_matrix *matrix,
                            const char *name, dh_profile **profile);

/* Where the job's profile lies unless told otherwise: profiles/HASH.json in data.cache,
 * $XDG_CACHE_HOME/dhelix or ~/.cache/dhelix, HASH being that of the profile's facts.
 * errors    DH_EMISSING no such folder */
dh_status dh_profile_place(dh_ctx *ctx, const dh_job *job, const dh_profile *profile, dh_str *path);
/* Write, with what a file of the same facts there has beside; creates folders. */
dh_status dh_profile_store(dh_ctx *ctx, const dh_profile *profile, const char *path);
/* The profile that the job uses, by its setting `profile`:
 *   none            none
 *   auto, measure   the profile at the job's place, if it is of use
 *   a file          it must be for this job and know its operators
 * out       NULL: none; caller frees
 * errors    for a named file: those of reading it; DH_EINVAL with the facts that do not match */
dh_status dh_profile_find(dh_ctx *ctx, const dh_job *job, dh_profile **profile);

#ifdef __cplusplus
}
#endif
#endif
