/* Clusters: hardware described in a file (YAML, clusters/README.md). */
#ifndef DHELIX_CLUSTER_H
#define DHELIX_CLUSTER_H

#include "dhelix/export.h"
#include "dhelix/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_cluster dh_cluster;

/* A cluster by name (those that come with the library) or by path (a name with a slash or
 * ending in .yaml).
 * out       set only on DH_OK; caller frees with dh_cluster_destroy
 * errors    DH_EMISSING with the nearest name; DH_EFORMAT, DH_EINVAL with file, line and column;
 *           DH_EIO; DH_ENOMEM */
DH_API dh_status dh_cluster_find(dh_ctx *ctx, const char *name_or_path, dh_cluster **cluster);
DH_API void dh_cluster_destroy(dh_cluster *cluster);
/* Name of the i-th cluster that comes with the library, in alphabetical order; NULL: no more. */
DH_API const char *dh_cluster_name(size_t i);

#ifdef __cplusplus
}
#endif
#endif
