/* Simulated steps of a job, as text. */
#ifndef DH_CLI_SIMULATED_H
#define DH_CLI_SIMULATED_H

#include "describe/simulated.h"

/* A paragraph: how far off predictions of published steps like this one were. */
void dh_nearest_print(const dh_step_facts *facts, dh_str *out);
void dh_simulated_print(const dh_simulated_list *list, dh_str *out);

#endif
