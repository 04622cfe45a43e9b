/* Programs of one graph that belongs to no model, written in the graph's text form.
 *
 * All operators run once, in the graph's order, on the same streams as in any program. Overlap
 * follows from the dependences. Inputs are tensors that the graph reads before it has written
 * them. Outputs are written tensors that are not intermediate values. */
#ifndef DH_PROGRAM_STANDALONE_H
#define DH_PROGRAM_STANDALONE_H

#include "program/program.h"
#include "program/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor that a program is given, leaves, or (updated in place) both. */
typedef struct dh_graph_io {
    uint32_t tensor; /* tensor of the graph; owns its storage */
    bool in, out;
} dh_graph_io;
typedef DH_VEC(dh_graph_io) dh_graph_ios;

/* Inputs and outputs of a checked graph.
 *   inputs    tensors that are read, or updated, before they are completely written
 *   outputs   written parameters, gradients, states and ranges; activations that nothing reads, the
 *             block's ends, and activations named in keep [n_keep]
 * out       in the order of the tensors; the caller frees, also on failure
 * errors    DH_EINVAL two of them have one name or one slot; DH_EMISSING a name to keep that no
 *           operator writes; DH_ENOMEM */
dh_status dh_graph_find_ios(dh_ctx *ctx, const dh_graph *graph, const char *const *keep,
                            size_t n_keep, dh_graph_ios *ios);

/* Operands, groups and indices of a graph that shall run on a mesh, operator by operator
 * (shapes.h). *op: the one at fault, on failure.
 * errors    DH_EINVAL, DH_EUNSUPPORTED */
dh_status dh_graph_check_alone(dh_ctx *ctx, const dh_graph *graph, const dh_mesh *mesh,
                               uint32_t *op);

/* The program of one rank, placed in memory, not yet verified. Buffer i is that of ios[i], at the
 * start of the slab. backend may be NULL: kernels need no scratch.
 * out       caller frees with dh_program_destroy
 * errors    DH_ENOMEM */
dh_status dh_program_of_graph(dh_ctx *ctx, const dh_graph *graph, const dh_graph_ios *ios,
                              const dh_mesh *mesh, int64_t rank, const dh_backend_info *backend,
                              dh_program **program);

#ifdef __cplusplus
}
#endif
#endif
