/* Tables of simulated steps, as text. */
#ifndef DH_CLI_GRID_H
#define DH_CLI_GRID_H

#include "describe/grid.h"

/* For two settings a matrix of one figure; for one setting a row of all figures for each value.
 * errors    DH_EINVAL more values than a matrix has columns; DH_ENOMEM */
dh_status dh_grid_print(dh_ctx *ctx, const dh_grid *grid, dh_grid_figure figure, dh_str *out);

#endif
