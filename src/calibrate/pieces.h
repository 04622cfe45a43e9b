/* Kernels that PyTorch runs for an operator of this program: one, or several. */
#ifndef DH_CALIBRATE_PIECES_H
#define DH_CALIBRATE_PIECES_H

#include "calibrate/measured.h"

enum { TRACED_PIECES = 4 };

/* One way to run an operator. Kernels of the same sizes take the same time, so that a piece may
 * count several times. */
typedef struct traced_way {
    int n;
    dh_measured_kernel at[TRACED_PIECES];
    int times[TRACED_PIECES];
    /* The axis of a GEMM's sizes that experts share among them. A traced GEMM of any length along
     * it is used, by its rate. -1: sizes are as they stand. */
    int free_axis;
} traced_way;

/* The ways of an operator, from 0; the first that a trace has counts. False: there are no more. */
bool traced_way_of(const dh_graph *graph, const dh_op *op, int way, traced_way *out);

#endif
