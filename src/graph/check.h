/* Shared inside src/graph: the check with the object at fault told apart from the
 * message, so that a reader of text can name the line; operators and storage. */
#ifndef DH_GRAPH_CHECK_H
#define DH_GRAPH_CHECK_H

#include "graph/graph.h"

typedef struct dh_graph_fault {
    uint32_t tensor, op; /* at most one of both; DH_NONE: the graph as a whole */
} dh_graph_fault;

/* dh_graph_check; fault is set only on failure. */
dh_status dh_graph_check_at(dh_ctx *ctx, const dh_graph *graph, dh_graph_fault *fault);

/* An operator that is in no graph: operands beyond the type's are absent, attributes unset. */
dh_op dh_op_make(dh_op_type type, dh_phase phase, const uint32_t *in, const uint32_t *out);

/* The tensor whose storage this one uses: itself, or what it is a view of. */
static inline uint32_t dh_graph_storage(const dh_graph *graph, uint32_t tensor)
{
    const uint32_t base = graph->tensors.at[tensor].base;
    return base == DH_NONE ? tensor : base;
}

/* Characters of a tensor's name: those that need no quotes in text. */
static inline bool dh_graph_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

#endif
