/* Shared by the printer and the reader of graph text: what each value is called. */
#ifndef DH_GRAPH_TEXT_NAMES_H
#define DH_GRAPH_TEXT_NAMES_H

#include "graph/graph.h"

#define DH_GRAPH_TEXT_MAGIC "dhelix.graph"
#define DH_GRAPH_TEXT_VERSION "v2"

/* Names of an enumeration, index = value. */
typedef struct dh_name_set {
    const char *what; /* for messages: "block kind" */
    const char *const *names;
    size_t n;
} dh_name_set;

extern const dh_name_set dh_block_kind_names, dh_mode_names, dh_tensor_kind_names, dh_input_names,
    dh_state_names, dh_axis_names, dh_phase_names, dh_site_names;

/* "?" for a value outside the set, so that a broken graph still prints. */
static inline const char *dh_name_of(const dh_name_set *set, size_t value)
{
    return value < set->n ? set->names[value] : "?";
}

typedef enum dh_field_type {
    DH_FIELD_I64,
    DH_FIELD_F64,
    DH_FIELD_NAME,
    DH_FIELD_MAY_NAME,
    DH_FIELD_FACTORS
} dh_field_type;

/* A field of dh_dims. Numbers that are 0 are left out of the text, and the first name of
 * DH_FIELD_MAY_NAME, and empty lists (dh_rope_factors). */
typedef struct dh_dims_field {
    const char *name;
    dh_field_type type;
    size_t offset;
    const dh_name_set *names; /* of both kinds of names */
} dh_dims_field;

enum { DH_N_DIMS_FIELD = 71 };
extern const dh_dims_field dh_dims_fields[DH_N_DIMS_FIELD];

/* The six tensors by which a block joins its neighbours. */
typedef struct dh_end_field {
    const char *name;
    size_t offset; /* in dh_graph */
} dh_end_field;

enum { DH_N_END_FIELD = 6 };
extern const dh_end_field dh_end_fields[DH_N_END_FIELD];

static inline uint32_t *dh_graph_end(dh_graph *graph, size_t field)
{
    return (uint32_t *)(void *)((char *)graph + dh_end_fields[field].offset);
}

#endif
