/* The rewrites of a layer that make it shortest: CoCoNet's autotuner.
 *
 * A sequence is a list of passes, each of which may be left out: split, reorder (keeping gathered
 * data or gathering it again), fuse, part-wise with a number of parts. All sequences that are legal
 * for a job, and different from each other there, are tried on its layer. The layer's forward and
 * then its backward run in order on the clock of planned orders (dh_slot_time). The shortest wins;
 * of equals the one with fewest rewrites.
 *
 * For a program written by hand all operators are tried as they stand. Two more choices are tried
 * there: gathers by chunks, and (where allowed) moments that stay with the rank that updates them.
 *
 * Source: Jangda et al., ASPLOS 2022 (arXiv 2105.05720), section 5. */
#ifndef DH_STRATEGY_REWRITES_H
#define DH_STRATEGY_REWRITES_H

#include "strategy/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DH_MAX_REWRITES = 112 };

typedef struct dh_rewrites_tried {
    dh_pass_list passes; /* reduced: what would change nothing is left out */
    double layer_ns;     /* of a micro-batch's forward and backward in one layer; of a program */
    /* program/rewrites.h: bytes that the layer keeps for a micro-batch from forward to backward,
     * most bytes that it holds itself, and the resulting memory of a rank. */
    double kept_bytes, peak_bytes, step_bytes;
    bool fits;
} dh_rewrites_tried;

typedef struct dh_rewrites {
    dh_rewrites_tried at[DH_MAX_REWRITES]; /* the first: no rewrite at all */
    size_t n, best;
} dh_rewrites;

/* Every sequence that a job may have, each once. */
void dh_rewrites_list(const dh_graph_spec *graphs, dh_rewrites *rewrites);
/* And what they take. graphs: its passes are not looked at. Deterministic.
 * errors    DH_ENOMEM; of a layer that cannot be built
 * cost      a layer's graph and its two timings a sequence */
dh_status dh_rewrites_find(dh_ctx *ctx, const dh_graph_spec *graphs, const dh_costs *costs,
                           dh_rewrites *rewrites);
/* Makes the first rank's graph of a program of its own. */
typedef struct dh_rewrites_maker {
    /* By a sequence. out: caller frees; NULL: the sequence may not be here */
    dh_status (*make)(dh_ctx *ctx, const void *self, const dh_pass_list *passes, dh_graph **graph);
    const void *self;
    const dh_mesh *mesh;
    bool sharded; /* tensors that only their updater reads may differ by rank (pass reorder) */
} dh_rewrites_maker;
/* Every program that sequences make of it, each by the first of them, and the shortest.
 * Deterministic.
 * errors    DH_ENOMEM; of the maker
 * cost      a graph and its timing a sequence */
dh_status dh_rewrites_find_alone(dh_ctx *ctx, const dh_rewrites_maker *maker, const dh_costs *costs,
                                 dh_rewrites *rewrites);

/* "split, reorder"; "no rewrite" of none */
void dh_rewrites_print(const dh_pass_list *passes, dh_str *out);

#ifdef __cplusplus
}
#endif
#endif
