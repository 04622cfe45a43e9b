/* Jobs of the DHelix paper (arXiv 2411.15871), simulated: the programs that would be trained. */
#ifndef DH_VALIDATE_DHELIX_JOB_H
#define DH_VALIDATE_DHELIX_JOB_H

#include "dhelix/cluster.h"
#include "sim/simulate.h"
#include "validate/table.h"

typedef struct dh_paper_job {
    dh_model model;
    int64_t dp, tp, pp, cp;
    int64_t seq;
    int64_t global_batch; /* sequences */
    const char *strategy; /* row of dh_strategies */
    bool whole;           /* every micro-batch is simulated */
} dh_paper_job;

/* What a simulated step is asked for. */
enum { DH_PAPER_ANSWERS = 8 };
typedef struct dh_paper_question {
    int n; /* <= DH_PAPER_ANSWERS */
    /* Times of the step, ns [n]; each grows evenly with the number of micro-batches. */
    dh_status (*ask)(dh_ctx *ctx, const dh_sim *sim, double *ns);
} dh_paper_question;
extern const dh_paper_question dh_paper_step; /* its time alone */

/* A model of tables 3 to 5 by name; dp, tp, pp, cp and strategy are left alone.
 * errors    DH_EMISSING */
dh_status dh_paper_model(dh_ctx *ctx, dh_arena *arena, const char *name, dh_model *model);
/* Simulate a step on the cluster's nodes. Of a long one two short ones are simulated, and
 * what more micro-batches add to a steady pipeline is added.
 * out       ns [question->n] */
dh_status dh_paper_simulate(dh_ctx *ctx, const dh_cluster *cluster, const dh_costs *costs,
                            const dh_paper_job *job, const dh_paper_question *question, double *ns);
/* Costs of a cluster, with what Megatron-LM does differently from our single strand; must stay
 * where it is while it is used.
 *   - Its own attention repeated keys and values to the number of query heads before they were
 *     exchanged.
 *   - Its ring's backward starts with the block that came last, so that gradients of keys and
 *     values are home after cp - 1 exchanges in half precision; ours make cp in float32.
 *   - Of one backward, tensor parallelism's communication for input gradients is not hidden behind
 *     weight gradients, nor the other way round. That is not said in the paper, but follows from
 *     it: were it hidden, the links would be busy for too much of Megatron-LM's time to allow the
 *     speed-ups of figure 11 with the shares of figure 3.
 *   - Where asked for: a rank waits for transfers to and from other stages, computing nothing. */
typedef struct dh_paper_costs {
    dh_costs costs;
    const dh_costs *cluster;
    double kv_repeats;
    int64_t cp;
    bool waits_for_transfers;
} dh_paper_costs;
dh_status dh_paper_megatron_costs(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                                  const dh_paper_job *job, bool waits_for_transfers,
                                  dh_paper_costs *costs);

/* FLOPs of a step, all devices, as Megatron-LM counts them: causality not used, nothing
 * recomputed. */
double dh_paper_flops(const dh_paper_job *job);

#endif
