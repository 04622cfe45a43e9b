/* Rows of cluster files, for their reader. */
#ifndef DH_CLUSTER_TABLE_H
#define DH_CLUSTER_TABLE_H

#include "costs/cluster.h"

typedef enum dh_cluster_kind {
    DH_CLUSTER_REAL,
    DH_CLUSTER_TEXT,
    DH_CLUSTER_KERNEL
} dh_cluster_kind;

typedef struct dh_cluster_setting {
    const char *key; /* dotted */
    dh_cluster_kind kind;
    size_t offset; /* in dh_cluster */
    const char *unit, *doc;
    double factor, min, max; /* REAL: to the struct's unit; range in the file's */
    bool optional;
    double absent; /* in the file's unit, where no file gives it */
} dh_cluster_setting;

const dh_cluster_setting *dh_cluster_settings(size_t *n);
extern const char *const dh_attention_kernel_names[]; /* by dh_attention_kernel, then NULL */
/* cluster_read.c: from text, n_bytes, need not be terminated; path: for messages, and as name. */
dh_status dh_cluster_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *path,
                           dh_cluster **cluster);
/* DH_N_CLUSTER_CLASS when the name is unknown. */
dh_cluster_class dh_cluster_class_parse(const char *name);

#endif
