/* Steps over several meshes as text. */
#ifndef DH_CLI_SWITCHED_H
#define DH_CLI_SWITCHED_H

#include "describe/switched.h"

void dh_switched_print(const dh_switched *switched, const dh_resolved *job, dh_str *out);
/* Plans of a search by length, best first, and what the best takes. */
void dh_length_plans_print(const dh_length_plans *plans, dh_str *out);

#endif
