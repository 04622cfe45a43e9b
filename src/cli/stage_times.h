/* Schedules of stages with given times, as text. */
#ifndef DH_CLI_STAGE_TIMES_H
#define DH_CLI_STAGE_TIMES_H

#include "describe/stage_times.h"

void dh_stage_times_print(const dh_stage_times *times, dh_str *out);

#endif
