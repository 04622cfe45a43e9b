/* Schedules of stages with given times, as JSON. */
#ifndef DH_DESCRIBE_STAGE_TIMES_H
#define DH_DESCRIBE_STAGE_TIMES_H

#include <jansson.h>

#include "train/stage_times.h"

/* NULL: out of memory */
json_t *dh_stage_times_json(const dh_stage_times *times);

#endif
