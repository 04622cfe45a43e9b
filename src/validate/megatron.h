/* Iteration time of a Megatron-LM job of one strand, from the operators of its blocks. */
#ifndef DH_VALIDATE_MEGATRON_H
#define DH_VALIDATE_MEGATRON_H

#include "dhelix/cluster.h"
#include "validate/table.h"

/* How Megatron-LM was run. */
typedef struct dh_megatron_job {
    int64_t heads, hidden, layers, seq, vocab;
    int64_t tp, pp, dp, chunks; /* chunks: virtual stages of a rank, 1: 1F1B */
    int64_t micro_batch, global_batch;
    bool sequence_parallel; /* else norms and dropout are computed by every tensor-parallel rank */
    /* Backward of column-parallel linears: the reduction of the input gradient under the weight
     * gradient, and the input gathered again under the input gradient (Korthikanti et al. 2022,
     * 4.2.2; not in SC21). */
    bool overlapped_backward;
    dh_recompute_kind recompute; /* selective: of attention's scores alone */
} dh_megatron_job;

typedef struct dh_megatron_time {
    double layer_f_ns, layer_b_ns; /* b: with what is computed again */
    double head_f_ns, head_b_ns;
    double embed_f_ns, embed_b_ns;
    double transfer_ns;  /* of an activation between stages */
    double optimizer_ns; /* all parameters of a rank, once */
    double reduce_ns;    /* gradients over data-parallel ranks and of the tied embedding */
    double iteration_ns;
} dh_megatron_time;

/* errors: those of graphs and schedules; DH_ENOMEM */
dh_status dh_megatron_time_of(dh_ctx *ctx, const dh_cluster *cluster, const dh_megatron_job *job,
                              dh_megatron_time *time);

/* Graph of a block on tensor-parallel rank 0, forward and backward, nothing recomputed. Caller
 * frees with dh_graph_destroy. */
dh_status dh_megatron_graph(dh_ctx *ctx, const dh_megatron_job *job, dh_block_kind kind,
                            dh_graph **graph);

/* Floating-point operations of an iteration, all devices (Narayanan et al. SC21, equation 3;
 * Korthikanti et al. 2022, appendix A). Model FLOPs: forward and backward, causality not used.
 * Hardware FLOPs: with what is computed again. */
double dh_megatron_model_flops(const dh_megatron_job *job);
double dh_megatron_hardware_flops(const dh_megatron_job *job);

/* A row of the jobs of Korthikanti et al. 2022; how it is run is left at nothing recomputed. */
dh_status dh_korthikanti_job(dh_ctx *ctx, const dh_published *table, size_t row,
                             dh_megatron_job *job);

#endif
