/* Operators on a cluster's device. */
#ifndef DH_CLUSTER_OPS_H
#define DH_CLUSTER_OPS_H

#include "costs/cluster.h"

/* Time alone of an operator that is not communication. */
double dh_cluster_op_ns(const dh_cluster *cluster, const dh_cost_op *op);
/* Of that, what rounding the operands to 8 bits takes; 0: they are not. */
double dh_cluster_rounding_ns(const dh_cluster *cluster, const dh_cost_op *op);

#endif
