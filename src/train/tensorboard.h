/* Event files as TensorBoard reads them. */
#ifndef DH_TRAIN_TENSORBOARD_H
#define DH_TRAIN_TENSORBOARD_H

#include <jansson.h>

#include "base/base.h"

typedef struct dh_tensorboard {
    int fd;
    char *path;    /* NULL: not open */
    dh_str record; /* the last one written */
} dh_tensorboard;

/* Begins a file DIR/tensorboard/events.out.tfevents.SECONDS.HOST.PID. It withdraws what other files
 * of the folder have of steps after last_step.
 * errors    DH_EIO, DH_ENOMEM */
dh_status dh_tensorboard_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_tensorboard *t);
/* A line of metrics: an event of its "step" with a scalar for each of the other numbers, named by
 * its key. */
dh_status dh_tensorboard_write(dh_ctx *ctx, dh_tensorboard *t, const json_t *line);
void dh_tensorboard_close(dh_tensorboard *t);

#endif
