/* metrics.jsonl and summary.json of a run. */
#ifndef DH_TRAIN_METRICS_H
#define DH_TRAIN_METRICS_H

#include <jansson.h>
#include <stdio.h>

#include "dhelix/base.h"

typedef struct dh_metrics {
    FILE *file;
    char *path;
} dh_metrics;

/* Opens DIR/metrics.jsonl for appending; lines of steps after last_step (written by
 * a run that died behind its last checkpoint) are dropped first. */
dh_status dh_metrics_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_metrics *m);
/* One object, one line, flushed. Takes the reference. */
dh_status dh_metrics_write(dh_ctx *ctx, dh_metrics *m, json_t *object);
void dh_metrics_close(dh_metrics *m);

/* Whole JSON document to a file, atomically. Takes the reference. */
dh_status dh_json_write(dh_ctx *ctx, const char *path, json_t *object);

#endif
