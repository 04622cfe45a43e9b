/* metrics.jsonl and summary.json of a run. */
#ifndef DH_TRAIN_METRICS_H
#define DH_TRAIN_METRICS_H

#include <jansson.h>

#include "base/base.h"
#include "train/tensorboard.h"

typedef struct dh_metrics {
    int fd;
    char *path;            /* NULL: not open */
    dh_str line;           /* the last one written, with its end */
    dh_tensorboard events; /* gets every line too, where it is open; closed with the metrics */
} dh_metrics;

/* Opens DIR/metrics.jsonl for appending. Lines of steps after last_step, which a run wrote that
 * died after its last checkpoint, are dropped first: they will be written again. Lines that
 * cannot be read are moved to DIR/metrics.unreadable, and named. With last_step 0 the file of an
 * earlier start becomes metrics.N.jsonl. Memory does not depend on the file's length. */
dh_status dh_metrics_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_metrics *m);
/* One object, one line, one call of the system. Takes the reference. */
dh_status dh_metrics_write(dh_ctx *ctx, dh_metrics *m, json_t *object);
/* Syncs: written lines outlive a power cut. */
dh_status dh_metrics_sync(dh_ctx *ctx, const dh_metrics *m);
void dh_metrics_close(dh_metrics *m);
/* Whether DIR/metrics.jsonl has a line of the step with this key, near its end. */
dh_status dh_metrics_find(dh_ctx *ctx, const char *dir, int64_t step, const char *key, bool *found);

/* The lines of a file of metrics, counted. Zeroed before; caller frees with
 * dh_metrics_lines_fini. */
typedef struct dh_metrics_lines {
    size_t n, n_unreadable; /* unreadable: no objects with a step */
    dh_str numbers;         /* numbers of the first unreadable lines, from 1: "4, 17" */
} dh_metrics_lines;
/* errors    those of reading the file; DH_ENOMEM */
dh_status dh_metrics_count(dh_ctx *ctx, const char *path, dh_metrics_lines *lines);
void dh_metrics_lines_fini(dh_metrics_lines *lines);

/* Whole JSON document to a file, atomically. Takes the reference. */
dh_status dh_json_write(dh_ctx *ctx, const char *path, json_t *object);

#endif
