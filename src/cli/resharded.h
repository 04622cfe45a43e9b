/* Reshards between two layouts as text. */
#ifndef DH_CLI_RESHARDED_H
#define DH_CLI_RESHARDED_H

#include "describe/resharded.h"

void dh_resharded_print(const dh_resharded *resharded, dh_str *out);

#endif
