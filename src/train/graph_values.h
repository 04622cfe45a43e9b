/* Inputs of hand-written programs, from a safetensors file. */
#ifndef DH_TRAIN_GRAPH_VALUES_H
#define DH_TRAIN_GRAPH_VALUES_H

#include "train/graph_run.h"

/* The rank's part of ios[io], in the operand's layout. part: room for it.
 * errors    those of dh_graph_run_give, which has found none; DH_EINVAL an index out of range */
dh_status dh_graph_given_read(dh_ctx *ctx, const dh_graph_run *run, size_t io, int64_t rank,
                              void *part);

/* Whether passes may rewrite a program with these inputs. They may not if an input that a pass
 * takes for equal on all ranks is given by rank. NULL for given: not known, so they may. */
bool dh_graph_given_fits(const dh_graph_run *run, const dh_safetensors *given,
                         const dh_pass_list *passes);

#endif
