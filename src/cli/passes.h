/* The report of passes on a rank's graphs, as text. */
#ifndef DH_CLI_PASSES_H
#define DH_CLI_PASSES_H

#include "program/program.h"
#include "program/program_spec.h"

/* For every block: which passes were applied and where, which not and why; appended. */
dh_status dh_cli_describe_passes(dh_ctx *ctx, const dh_program_spec *spec, dh_str *out);

#endif
