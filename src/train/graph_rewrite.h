/* Programs written by hand, rewritten by passes before they are made: those that the caller names,
 * or the sequence that makes the program shortest. */
#ifndef DH_TRAIN_GRAPH_REWRITE_H
#define DH_TRAIN_GRAPH_REWRITE_H

#include "train/graph_run.h"

/* A rank's graph: the text's, rewritten, and checked.
 * out       caller frees, also on failure
 * errors    DH_EINVAL, DH_EUNSUPPORTED: the passes cannot be here, or leave out what is wanted */
dh_status dh_graph_run_rewrite(dh_ctx *ctx, const dh_graph_run *run, int64_t rank,
                               const dh_pass_list *passes, dh_graph **graph);

/* run->rewrites: what was tried, the shortest among it. in: run with mesh and ios */
dh_status dh_graph_run_search(dh_ctx *ctx, const dh_graph_run_options *options, dh_graph_run *run);

#endif
