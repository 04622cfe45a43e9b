/* Jobs whose times were published: validation/jobs, which is part of the library. */
#ifndef DH_CONFIG_SHIPPED_H
#define DH_CONFIG_SHIPPED_H

#include "base/embedded.h"

#ifdef __cplusplus
extern "C" {
#endif

/* By name. */
const dh_embedded *dh_shipped_jobs(size_t *n);
/* The job of a name, "sc21-7.5b", or of a path, "validation/jobs/sc21-7.5b.yaml". NULL: there is none. */
const dh_embedded *dh_shipped_job_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif
