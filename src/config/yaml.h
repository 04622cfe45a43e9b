/* YAML texts as nodes with places: what job files and cluster files are read through. */
#ifndef DH_CONFIG_YAML_H
#define DH_CONFIG_YAML_H

#include <yaml.h>

#include "dhelix/status.h"

typedef struct dh_yaml {
    dh_ctx *ctx;        /* takes messages */
    const char *origin; /* file name, or what the text came with */
    bool is_file;       /* places are lines and columns of it */
    const char *text;   /* [n_bytes] borrowed while it is opened */
    size_t n_bytes;
    yaml_document_t doc;
} dh_yaml;

/* Compose the only document of a text. Collections nested more deeply than any file of ours are
 * refused, in time linear in the text.
 * out       set only on DH_OK; borrows ctx and origin; free with dh_yaml_close
 * errors    DH_EFORMAT with the place, DH_ENOMEM */
dh_status dh_yaml_open(dh_ctx *ctx, const char *origin, bool is_file, const char *text,
                       size_t n_bytes, dh_yaml *yaml);
void dh_yaml_close(dh_yaml *yaml);

/* NULL: the text is empty. */
const yaml_node_t *dh_yaml_root(const dh_yaml *yaml);
/* Of a sequence's item or a mapping's pair. */
const yaml_node_t *dh_yaml_node(const dh_yaml *yaml, int id);
/* "job.yaml:3:7", counted from 1; the origin alone where it is no file. Into a caller's buffer. */
const char *dh_yaml_place(const dh_yaml *yaml, const yaml_node_t *node, char *buf, size_t cap);
/* "a mapping", "a sequence", "a plain value" */
const char *dh_yaml_kind(const yaml_node_t *node);
/* The text of a plain value, until the document is closed.
 * errors    DH_EFORMAT with the place */
dh_status dh_yaml_scalar(const dh_yaml *yaml, const yaml_node_t *node, const char **text);

/* A key with its value; path: the key with those of the mappings around it, with dots between. */
typedef dh_status dh_yaml_visit(void *self, const char *path, const yaml_node_t *key,
                                const yaml_node_t *value);
/* Visits the entries of a mapping, in order.
 * in        path: of the mapping, "" for the root
 * errors    DH_EFORMAT a key that is no plain value, or stands twice; DH_ENOMEM; the visits' */
dh_status dh_yaml_each(const dh_yaml *yaml, const char *path, const yaml_node_t *mapping,
                       dh_yaml_visit *visit, void *self);

#endif
