/* Shipped jobs of the DHelix paper (arXiv 2411.15871). */
#ifndef DH_VALIDATE_DHELIX_JOBS_H
#define DH_VALIDATE_DHELIX_JOBS_H

#include "validate/job.h"

/* The job of figure 11 of a model of tables 3 to 5, as Megatron-LM runs it, on a40; what it points
 * to is in the validation's arena. */
dh_status dh_paper_job(dh_ctx *ctx, dh_validation *v, const char *model, dh_shipped_job *job);

#endif
