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
 * died behind its last checkpoint, are dropped first: they will be written again. Lines that
 * cannot be read are moved to DIR/metrics.unreadable, and named. */
dh_status dh_metrics_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_metrics *m);
/* One object, one line, one call of the system. Takes the reference. */
dh_status dh_metrics_write(dh_ctx *ctx, dh_metrics *m, json_t *object);
/* What was written outlives a cut of power. */
dh_status dh_metrics_sync(dh_ctx *ctx, const dh_metrics *m);
void dh_metrics_close(dh_metrics *m);
/* Whether DIR/metrics.jsonl has a line of the step with this key. */
dh_status dh_metrics_find(dh_ctx *ctx, const char *dir, int64_t step, const char *key, bool *found);

/* The lines of a text of metrics, parted. Zeroed before; caller frees with dh_metrics_lines_fini.
 */
typedef struct dh_metrics_lines {
    dh_str kept;       /* of steps up to the last */
    dh_str unreadable; /* no objects with a step */
    dh_str numbers;    /* of the unreadable, from 1: "4, 17"; the first few */
    size_t n, n_unreadable;
} dh_metrics_lines;
/* errors: DH_ENOMEM */
dh_status dh_metrics_part(dh_ctx *ctx, const char *text, size_t n_bytes, int64_t last_step,
                          dh_metrics_lines *lines);
void dh_metrics_lines_fini(dh_metrics_lines *lines);

/* Whole JSON document to a file, atomically. Takes the reference. */
dh_status dh_json_write(dh_ctx *ctx, const char *path, json_t *object);

#endif
