/* Kernels that PyTorch launches for one of our operators.
 *
 * An operator is one kernel here. PyTorch adds a bias, applies dropout and sums a gradient by
 * kernels of their own, and the host issues every one of them. */
#ifndef DH_COSTS_LAUNCHES_H
#define DH_COSTS_LAUNCHES_H

#include "costs/costs.h"

/* Kernels, in those that the host launches from a module's forward. Kernels of gradients come from
 * the autograd engine, which takes a quarter of the time for each.
 * in        scores: attention is GEMMs and a softmax; eager: norms, rotations and activations are
 *           a kernel for every arithmetic operator
 * cost      O(1) */
double dh_torch_launches(const dh_cost_op *op, bool scores, bool eager);

#endif
