/* Strategies: what is run beside what. One row each; `dhelix list strategies`.
 *
 * A pipeline schedule says which forward and which backward share a slot. A strategy
 * says in what order the operators of the two strands are issued in such a slot; what
 * then overlaps follows from the streams: while the communication of one strand is
 * under way, the other strand computes. No order changes a bit of the results. */
#ifndef DHELIX_STRATEGY_H
#define DHELIX_STRATEGY_H

#include "dhelix/costs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an operator costs and occupies. Every rank must use the same. */
typedef struct dh_op_cost {
    int64_t ns;
    int stream; /* dh_stream (program.h) */
} dh_op_cost;

/* Operators of one strand of a slot, in an order that computes. */
typedef struct dh_strand {
    const dh_op_cost *ops;
    size_t n;
} dh_strand;

typedef struct dh_strategy {
    const char *name;
    const char *doc;      /* one line, with its source */
    const char *schedule; /* row that makes pairs for it; NULL: the job's */
    /* from_b [f.n + b.n]: whether the next operator comes from the backward strand. */
    void (*interleave)(dh_strand f, dh_strand b, unsigned char *from_b);
} dh_strategy;

const dh_strategy *dh_strategies(size_t *n);
/* errors: DH_EMISSING with the nearest name */
dh_status dh_strategy_find(dh_ctx *ctx, const char *name, const dh_strategy **strategy);

#ifdef __cplusplus
}
#endif
#endif
