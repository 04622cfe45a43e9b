/* Sharing: which ranks store, gather and reduce what, and when. Settings of
 * section parallel decide: zero, gradient_sync and sequence; gather, regather, prefetch and
 * reshard_after_forward. They are translated here and nowhere else. Fields have the names of
 * settings. */
#ifndef DH_CONFIG_SHARING_H
#define DH_CONFIG_SHARING_H

#include "dhelix/job.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The part of gathered parameters that stays from a block's forward to its backward. It is the
 * rank's own shard, a share that the ranks of a node gather among themselves, or all. */
typedef enum dh_gathered { DH_GATHERED_NOTHING, DH_GATHERED_SHARE, DH_GATHERED_WHOLE } dh_gathered;

/* The tokens that a tensor-parallel rank has between its linears: its part of them (sequence
 * parallelism), or all. */
typedef enum dh_sequence { DH_SEQUENCE_SPLIT, DH_SEQUENCE_WHOLE } dh_sequence;

/* All zero: every data-parallel (and context-parallel) rank has everything, and each setting has
 * its default. */
typedef struct dh_sharing {
    bool moments;    /* sharded: masters and moments, which their rank steps (ZeRO-1) */
    bool gradients;  /* sharded too: sums of gradients (ZeRO-2) */
    bool parameters; /* sharded too: parameters, gathered block by block (ZeRO-3) */
    /* With gradients: those of a step are reduced with the last micro-batch, or those of every
     * micro-batch are, and shards are summed up. */
    dh_gradient_sync gradient_sync;
    /* Without parameters: what the optimizer updated is gathered after it, or at the beginning of
     * the next step, during its first forwards. */
    dh_param_gather gather;
    /* With parameters: they are gathered for each micro-batch, or once for all micro-batches that
     * follow each other through a virtual stage. */
    dh_regather_by regather;
    dh_gathered reshard;  /* with parameters: what stays of a block after its forward */
    int64_t prefetch;     /* with parameters: blocks ahead whose parameters are gathered */
    dh_sequence sequence; /* tokens between the linears of tensor-parallel ranks */
} dh_sharing;

/* By a degree of ZeRO; everything else is the default. */
static inline dh_sharing dh_sharing_of(int64_t zero)
{
    return (dh_sharing){.moments = zero >= 1, .gradients = zero >= 2, .parameters = zero >= 3};
}
/* The degree of ZeRO, for messages. */
static inline int64_t dh_sharing_zero(const dh_sharing *sharing)
{
    return sharing->moments + sharing->gradients + sharing->parameters;
}
/* Whether parameters are sharded by their optimizer alone: all ranks have them during a step. */
static inline bool dh_sharing_steps_shards(const dh_sharing *sharing)
{
    return sharing->moments && !sharing->parameters;
}
/* Whether gradients are reduced more than once a step, which has so many micro-batches. */
static inline bool dh_sharing_reduces_each(const dh_sharing *sharing, int64_t n_micro)
{
    return sharing->gradient_sync == DH_GRADIENT_SYNC_EVERY && sharing->gradients && n_micro > 1;
}
/* By all of a job's settings. A setting about what is not sharded has no say. */
dh_sharing dh_sharing_of_job(const dh_job *job);

#ifdef __cplusplus
}
#endif
#endif
