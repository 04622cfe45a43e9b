/* Inspecting a run folder: what is there, and what resuming would do. */
#ifndef DH_TRAIN_INSPECT_H
#define DH_TRAIN_INSPECT_H

#include "dhelix/train.h"
#include "weights/checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_run_finding {
    int64_t step;
    dh_ckpt_condition condition; /* shapes of weights and moments counted in */
    size_t n_files;              /* 0: not even the manifest could be read */
    int64_t n_bytes;
    char message[DH_CTX_MESSAGE_BYTES]; /* the fault; "" where there is none */
} dh_run_finding;

typedef enum dh_resume {
    DH_RESUME_BEGINS,    /* there is no checkpoint: from the beginning */
    DH_RESUME_CONTINUES, /* from resume_step */
    DH_RESUME_REFUSED
} dh_resume;

typedef struct dh_run_findings {
    DH_VEC(dh_run_finding) checkpoints; /* newest first */
    dh_resume resume;                   /* the next action of `dhelix train` */
    int64_t resume_step;
    char lost[DH_CTX_MESSAGE_BYTES]; /* where all checkpoints are gone; else "" */
    size_t n_lines, n_unreadable;    /* of metrics.jsonl */
    char unreadable[160];            /* the numbers of the first of those */
} dh_run_findings;

/* Read everything that a resume depends on: checksums, shapes, state, metrics.
 * out       caller frees with dh_run_findings_fini
 * errors    DH_EMISSING no such folder; DH_EPERM, DH_EIO it cannot be listed; DH_ENOMEM */
dh_status dh_run_inspect(dh_ctx *ctx, const char *run_dir, dh_run_findings *found);
void dh_run_findings_fini(dh_run_findings *found);

#ifdef __cplusplus
}
#endif
#endif
