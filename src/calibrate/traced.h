/* A job's profile from PyTorch's traces of the same model: what runs under the same name there. */
#ifndef DH_CALIBRATE_TRACED_H
#define DH_CALIBRATE_TRACED_H

#include "calibrate/measured.h"
#include "costs/profile.h"
#include "dhelix/job.h"

typedef struct dh_traced {
    dh_arena *arena;                   /* owns the texts */
    dh_profile *profile;               /* imported: found in the traces; modelled: the others */
    DH_VEC(const char *) operators;    /* operators of the job that no trace has, and why */
    DH_VEC(const char *) measurements; /* measurements without an operator of the job */
} dh_traced;

/* Matches the operators of a job that names no passes with traces: GEMMs, attention and norms by
 * sizes and type, collectives by group and bytes. A kind counts with its median in one trace, and
 * with the mean over traces. Collectives count with the shortest over traces, since in the others a
 * rank waited.
 * out       caller frees with dh_traced_fini, also after a failure
 * errors    DH_EMISSING nothing matches; those of dh_measured_read */
dh_status dh_profile_from_traces(dh_ctx *ctx, const dh_job *job, const char *const *files,
                                 size_t n_files, dh_traced *traced);
void dh_traced_fini(dh_traced *traced);

#endif
