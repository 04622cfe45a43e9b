/* A search's result, as text. */
#ifndef DH_CLI_TUNED_H
#define DH_CLI_TUNED_H

#include "describe/tuned.h"

void dh_tuned_print(const dh_tuned *tuned, dh_str *out);

#endif
