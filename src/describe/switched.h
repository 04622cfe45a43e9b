/* The time of a step over several meshes, and the best meshes, as JSON. */
#ifndef DH_DESCRIBE_SWITCHED_H
#define DH_DESCRIBE_SWITCHED_H

#include <jansson.h>

#include "tune/lengths.h"

/* NULL: out of memory */
json_t *dh_switched_json(const dh_switched *switched, const dh_resolved *job);
/* Plans of a search, best first. NULL: out of memory */
json_t *dh_length_plans_json(const dh_length_plans *plans);
/* The best of a single group, which the others are compared with; NULL: there is none that fits. */
const dh_length_plan *dh_length_plans_packed(const dh_length_plans *plans);

#endif
