/* Verifying many ranks together: the replay, and which ranks are alike. */
#ifndef DH_PROGRAM_RANKS_H
#define DH_PROGRAM_RANKS_H

#include "program/program.h"
#include "program/program_spec.h"

/* Ranks of one class run the same instructions on operands at the same places, except the places
 * that dh_class_verify widens. A rank's i-th partner in a group is of the same class as that of
 * the other ranks of its class. classes.c explains why that is enough. */
typedef struct dh_rank_classes {
    size_t n;
    int64_t *first; /* by class: its lowest rank, which stands for the others */
    uint32_t *of;   /* by rank */
} dh_rank_classes;

/* Whether every kind of group lies on one node for all ranks or for none. */
bool dh_mesh_nodes_alike(const dh_mesh *mesh);
/* Where nodes are alike: ranks of one key have the same instructions with the same sizes and
 * waits. Below n_keys. */
size_t dh_rank_key(const dh_recipe *recipe, int64_t rank);
size_t dh_rank_n_keys(const dh_recipe *recipe);

/* Caller frees with dh_rank_classes_fini, also after a failure.
 * errors    DH_ENOMEM */
dh_status dh_rank_classes_find(dh_ctx *ctx, const dh_program_spec *spec, dh_rank_classes *classes);
void dh_rank_classes_fini(dh_rank_classes *classes);

/* Verifies the member of a class. Properties that could depend on the places of optimizer shards,
 * or of sequence parallelism's own rows in their blocks, are verified for every such place.
 * errors    DH_EVERIFY, DH_ENOMEM */
dh_status dh_class_verify(dh_ctx *ctx, const dh_program *program);

/* Joint replay of programs that each verify: communication only, no data. Every communication
 * blocks its stream until all its partners have arrived. If this replay ends, no communicator can
 * wait for ever, whatever it buffers. It also checks:
 *   - On every group calls match in order, kind, elements, type and subject (micro-batch; within a
 *     stage also block and operator). Transfers between stages also match in tag.
 *   - A group is used from one stream, the same on all its members.
 * The message names both ranks and instructions, or the cycle of waiting ranks.
 * in        programs [n]; class_of NULL: programs[i] is that of rank i of n; else
 *           programs[class_of[r]] stands for rank r, class_of [mesh.ranks]
 * errors    DH_EVERIFY, DH_ENOMEM */
dh_status dh_ranks_replay(dh_ctx *ctx, const dh_program *const *programs, size_t n,
                          const uint32_t *class_of);

/* Every gradient that a program's optimizer reads is the sum over all ranks that have the same
 * parameters, and over the rank's own copies of the model (verify_sums.c). As dh_program_verify. */
dh_status dh_sums_verify(dh_ctx *ctx, const dh_program *program);

/* Gradients of micro-batches that are reduced each by itself all count, once (verify_micro.c). As
 * dh_program_verify. */
dh_status dh_micro_verify(dh_ctx *ctx, const dh_program *program);

/* Steps that a program's optimizer takes ahead of the norm of all gradients are amended by it, and
 * all others go by it (verify_steps.c). As dh_program_verify. */
dh_status dh_steps_verify(dh_ctx *ctx, const dh_program *program);

/* The joint replay of a whole mesh, each of whose programs has been verified.
 * in        programs [n], that of rank i at i; n: all ranks of the mesh
 * errors    DH_EVERIFY; DH_EINVAL not the programs of one mesh; DH_ENOMEM
 * cost      O(instructions of all ranks) */
dh_status dh_programs_replay(dh_ctx *ctx, const dh_program *const *programs, size_t n);
/* Every program verifies, then dh_programs_replay. dh_mesh_verify shows the same with one program
 * for each class of ranks.
 * cost      that of dh_program_verify in addition */
dh_status dh_programs_verify(dh_ctx *ctx, const dh_program *const *programs, size_t n);

/* Whether two programs of one rank may run at the same time. Neither touches a byte that the other
 * writes, and they have different streams (verify_beside.c).
 * errors    DH_EVERIFY names both instructions and the bytes; DH_ENOMEM
 * cost      O(operands log operands) */
dh_status dh_programs_beside(dh_ctx *ctx, const dh_program *a, const dh_program *b);

#endif
