/* Shapes and types of an operator's operands, for graphs that nobody but their author has seen.
 *
 * Graphs that the program makes have the shapes of their builders. A graph that was written by hand
 * is held against one row an operator type before a kernel sees it. */
#ifndef DH_GRAPH_SHAPES_H
#define DH_GRAPH_SHAPES_H

#include "graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether an operator can stand in a program of its own. Its row must be known, and the graph must
 * have all that the operator needs in addition to its operands. */
bool dh_op_stands_alone(dh_op_type type);

/* Whether the operands of an operator fit each other, the graph's dims and its group of n_members
 * ranks (1: it has none). The graph has passed dh_graph_check.
 * errors    DH_EUNSUPPORTED it cannot stand alone; DH_EINVAL names the operand, what it is and what
 *           would be right */
dh_status dh_op_check_shapes(dh_ctx *ctx, const dh_graph *graph, uint32_t op, int64_t n_members);

/* Least number that no value of an integer operand may reach, since the kernel takes a place by
 * it; 0: any value will do. Counts inputs. */
int64_t dh_op_index_bound(const dh_graph *graph, const dh_op *op, int input);

#ifdef __cplusplus
}
#endif
#endif
