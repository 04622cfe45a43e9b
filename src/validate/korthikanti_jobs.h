/* Shipped jobs of Korthikanti et al. 2022 (arXiv 2205.05198). */
#ifndef DH_VALIDATE_KORTHIKANTI_JOBS_H
#define DH_VALIDATE_KORTHIKANTI_JOBS_H

#include "validate/job.h"

/* The job of a model ("22B", ...) as the paper's present work runs it, on selene; what it points to
 * is in the validation's arena. */
dh_status dh_korthikanti_job(dh_ctx *ctx, dh_validation *v, const char *model, dh_shipped_job *job);

#endif
