/* A job's operators measured, alone and in pairs, or read from a matrix or traces; as a file. */
#ifndef DH_DESCRIBE_PROFILED_H
#define DH_DESCRIBE_PROFILED_H

#include <jansson.h>

#include "calibrate/traced.h"
#include "costs/profile.h"
#include "dhelix/describe.h"

typedef struct dh_profiled {
    dh_profile *profile; /* NULL: another process has it */
    bool from_traces;    /* traced has the profile, and what was not matched */
    dh_traced traced;
    dh_str path; /* path of the written file */
    double seconds;
} dh_profiled;

/* Measure or read, and write the profile.
 * out       caller frees with dh_profiled_fini, also after a failure
 * errors    as dh_describe_profile */
dh_status dh_profiled_make(dh_ctx *ctx, const dh_job *job,
                           const dh_describe_profile_options *options, dh_profiled *profiled);
void dh_profiled_fini(dh_profiled *profiled);
/* *document NULL: out of memory */
dh_status dh_profiled_json(dh_ctx *ctx, const dh_profiled *profiled, json_t **document);

#endif
