/* Kernels that PyTorch launches for one of our operators.
 *
 * An operator is one kernel here. PyTorch adds a bias, applies dropout and sums a gradient by
 * kernels of their own, and the host issues every one of them. */
#ifndef DH_COSTS_LAUNCHES_H
#define DH_COSTS_LAUNCHES_H

#include "costs/costs.h"

/* Calibrated: vtrain_single, its rows of 12 and 20 layers: time of the autograd engine for a kernel over
 * that of a module's forward. The engine is C++; a forward passes through Python for every kernel.
 * Where the device is about as fast as the host, forwards wait for the host and backwards for the
 * device, and the share decides by how much. */
#define DH_AUTOGRAD_SHARE 0.25

/* Kernels, in those that the host launches from a module's forward. Kernels of gradients come from
 * the autograd engine, which takes a quarter of the time for each.
 * in        scores: attention is GEMMs and a softmax; eager: norms, rotations and activations are
 *           a kernel for every arithmetic operator
 * cost      O(1) */
double dh_torch_launches(const dh_cost_op *op, bool scores, bool eager);

#endif
