/* Simulated steps of a job, as text. */
#ifndef DH_CLI_SIMULATED_H
#define DH_CLI_SIMULATED_H

#include "describe/simulated.h"

void dh_simulated_print(const dh_simulated_list *list, dh_str *out);

#endif
