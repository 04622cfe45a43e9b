/* Shipped jobs of the DHelix paper (arXiv 2411.15871). */
#ifndef DH_VALIDATE_DHELIX_JOBS_H
#define DH_VALIDATE_DHELIX_JOBS_H

#include "validate/job.h"

/* The job of a row, as Megatron-LM runs it; what it points to is in the validation's arena.
 * in        table: with columns cluster ("64xA40"), model, seq, parallelism ("DP8 TP4 PP1 CP2")
 * errors    DH_EMISSING column; DH_EFORMAT cell; DH_ENOMEM */
dh_status dh_paper_job(dh_ctx *ctx, dh_validation *v, const dh_published *table, size_t row,
                       dh_shipped_job *job);

/* Settings of a mesh: "DP8 TP4 PP1 CP2".
 * errors    DH_EFORMAT; DH_ENOMEM */
dh_status dh_paper_mesh(dh_ctx *ctx, dh_validation *v, const char *text, dh_shipped_job *job);

/* Settings with which a system runs the job. name: as in column system.
 * errors    DH_EMISSING no such system; DH_ENOMEM */
dh_status dh_paper_system(dh_ctx *ctx, const char *name, dh_shipped_job *job);

#endif
