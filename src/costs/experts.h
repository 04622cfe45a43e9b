/* Layers with experts in other software: exchanges of rows, and small kernels. */
#ifndef DH_COSTS_EXPERTS_H
#define DH_COSTS_EXPERTS_H

#include "costs/system.h"

/* Time alone of an operator of such a layer under the system's traits for experts (expert-kernels,
 * unfused-experts, shared-rows, one-copy).
 * in        plain_ns: what it takes without them
 * out       plain_ns where no such trait concerns it
 * cost      O(operators of the graph) */
double dh_expert_ns(const dh_system *system, const dh_cluster *cluster, const dh_cost_op *op,
                    double plain_ns);
/* Kernels that the host launches for an operator of such a layer, also for its gradients. Under
 * expert-kernels or unfused-experts they replace dh_torch_launches. 0: not one of these operators.
 * cost      O(operators of the graph) */
double dh_expert_launches(const dh_system *system, const dh_cost_op *op);
/* Whether the host then waits for how many rows come, without which it cannot launch what follows. */
bool dh_expert_waits(const dh_system *system, const dh_op *op);

#endif
