/* Korthikanti et al. 2022 (arXiv 2205.05198), figures 1 and 7: memory of a device.
 *
 * Activations are counted in our own graph of a layer: tensors that the forward writes, or that
 * enter it, and the backward reads. Megatron-LM keeps more, which is added where the graph has the
 * operator: a byte for each dropped-out element, as its masks are stored and ours are made again;
 * and for attention, unless it is recomputed, softmax, mask and dropped-out scores, 5 bytes each
 * (the paper's equation 1), which blockwise attention never has. Without sequence parallelism every
 * rank has all tokens of what is split over them. */
#include <stdio.h>
#include <string.h>

#include "graph/graph.h"
#include "plan/schedule.h"
#include "validate/table.h"

#define GIB 1073741824.0

/* ---- jobs ----------------------------------------------------------------------------------- */

typedef struct megatron_job {
    int64_t heads, hidden, layers, seq, vocab;
    int64_t tp, pp, dp, chunks; /* chunks: virtual stages of a rank, 1: 1F1B */
    int64_t micro_batch, global_batch;
    bool sequence_parallel;
    dh_recompute_kind recompute; /* selective: of attention's scores alone */
} megatron_job;

/* A row of the jobs; how it is run is left at nothing recomputed. */
static dh_status korthikanti_job(dh_ctx *ctx, const dh_published *t, size_t row, megatron_job *job)
{
    int64_t gpus;
    *job = (megatron_job){.seq = 2048, .vocab = 51200};
    DH_TRY(dh_published_int(ctx, t, row, "heads", &job->heads));
    DH_TRY(dh_published_int(ctx, t, row, "hidden", &job->hidden));
    DH_TRY(dh_published_int(ctx, t, row, "layers", &job->layers));
    DH_TRY(dh_published_int(ctx, t, row, "tp", &job->tp));
    DH_TRY(dh_published_int(ctx, t, row, "pp", &job->pp));
    DH_TRY(dh_published_int(ctx, t, row, "interleave", &job->chunks));
    DH_TRY(dh_published_int(ctx, t, row, "gpus", &gpus));
    DH_TRY(dh_published_int(ctx, t, row, "global_batch", &job->global_batch));
    DH_TRY(dh_published_int(ctx, t, row, "micro_batch", &job->micro_batch));
    job->dp = gpus / (job->tp * job->pp);
    return DH_OK;
}

static void model_of(const megatron_job *job, dh_model *model)
{
    *model = (dh_model){.family = DH_FAMILY_GPT2,
                        .n_layers = job->layers,
                        .width = job->hidden,
                        .n_heads = job->heads,
                        .n_kv_heads = job->heads,
                        .head_dim = job->hidden / job->heads,
                        .ffn_width = 4 * job->hidden,
                        .vocab = job->vocab,
                        .max_seq = job->seq,
                        .tied_head = true,
                        .bias = true,
                        .norm = DH_NORM_LAYER,
                        .norm_eps = 1e-5,
                        .act = DH_ACT_GELU_TANH,
                        .init_std = 0.02};
    snprintf(model->name, sizeof model->name, "gpt");
}

/* Graph of a layer on tensor-parallel rank 0, forward and backward, nothing recomputed. */
static dh_status layer_graph(dh_ctx *ctx, const megatron_job *job, dh_graph **graph)
{
    dh_model model;
    model_of(job, &model);
    const dh_build build = {.model = &model,
                            .mode = DH_MODE_TRAIN,
                            .dtype = DH_BF16,
                            .batch = job->micro_batch,
                            .seq = job->seq,
                            .dropout = 0.1,
                            .loss_scale = 1,
                            .head_chunk_bytes = INT64_MAX / 4};
    dh_graph *g;
    DH_TRY(dh_graph_build(ctx, &build, DH_BLOCK_LAYER, &g));
    dh_status st = dh_pass_tensor_parallel(ctx, g, (dh_shard){.tp = job->tp});
    if (st == DH_OK) st = dh_graph_differentiate(ctx, g);
    if (st != DH_OK) {
        dh_graph_destroy(g);
        return st;
    }
    *graph = g;
    return DH_OK;
}

/* ---- activations of a layer ----------------------------------------------------------------- */

static bool reads(const dh_op *op, uint32_t tensor)
{
    for (int k = 0; k < DH_MAX_OPERANDS; k++)
        if (op->in[k] == tensor) return true;
    return false;
}

static bool is_kept(const dh_graph *g, uint32_t tensor)
{
    bool written = tensor == g->x_in, read = false;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        for (int k = 0; op->phase == DH_PHASE_F && k < DH_MAX_OPERANDS; k++)
            written |= op->out[k] == tensor;
        read |= op->phase != DH_PHASE_F && reads(op, tensor);
    }
    return g->tensors.at[tensor].kind == DH_TENSOR_ACT && written && read;
}

/* Ranks that have the same rows of a tensor split over tokens: all, unless sequence-parallel. */
static double copies(const megatron_job *j, const dh_tensor *t)
{
    const bool sharded =
        t->axis[0] == DH_AXIS_TOKENS && t->shape[0] * j->tp == j->micro_batch * j->seq;
    return sharded && !j->sequence_parallel ? (double)j->tp : 1;
}

static double score_bytes(const megatron_job *j)
{
    return 5 * (double)(j->micro_batch * j->heads) / (double)j->tp * (double)j->seq *
           (double)j->seq;
}

static double kept_bytes(const dh_graph *g, const megatron_job *j)
{
    const dh_tensor *x = &g->tensors.at[g->x_in];
    double sum = 0;
    if (j->recompute == DH_RECOMPUTE_KIND_FULL) return copies(j, x) * (double)dh_tensor_bytes(x);
    for (uint32_t i = 0; i < g->tensors.n; i++)
        if (is_kept(g, i))
            sum += copies(j, &g->tensors.at[i]) * (double)dh_tensor_bytes(&g->tensors.at[i]);
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (op->type == DH_OP_RESIDUAL) {
            const dh_tensor *y = &g->tensors.at[op->out[0]];
            sum += copies(j, y) * (double)dh_tensor_elements(y);
        }
        if (op->type == DH_OP_ATTN && j->recompute == DH_RECOMPUTE_KIND_NONE) sum += score_bytes(j);
    }
    return sum;
}

static dh_status layer_bytes(dh_ctx *ctx, const megatron_job *job, double *bytes)
{
    dh_graph *g;
    DH_TRY(layer_graph(ctx, job, &g));
    *bytes = kept_bytes(g, job);
    dh_graph_destroy(g);
    return DH_OK;
}

/* Layers whose activations the first stage keeps at a time. */
static dh_status layers_kept(dh_ctx *ctx, dh_arena *arena, const megatron_job *j, double *layers)
{
    const dh_schedule_row *row;
    dh_schedule *schedule;
    const dh_schedule_spec spec = {.n_ranks = (int32_t)j->pp,
                                   .n_micro = (int32_t)(j->global_batch / j->micro_batch),
                                   .n_chunks = (int32_t)j->chunks};
    dh_schedule_use *use = DH_NEW_N(arena, dh_schedule_use, j->pp);
    if (!use) return dh_fail(ctx, DH_ENOMEM, "out of memory counting activations");
    DH_TRY(dh_schedule_find(ctx, j->chunks > 1 ? "interleaved-1f1b" : "1f1b", &row));
    DH_TRY(dh_schedule_generate(ctx, row, &spec, &schedule));
    dh_status st = dh_schedule_validate(ctx, schedule, use);
    dh_schedule_destroy(schedule);
    *layers = (double)use[0].peak * (double)j->layers / (double)(j->pp * j->chunks);
    return st;
}

/* ---- parameters ----------------------------------------------------------------------------- */

/* Master, gradient and two moments in float32, and a bf16 copy of matrices. The figure leaves
 * embeddings out. */
static double state_bytes(const dh_graph *g, const megatron_job *j)
{
    double sum = 0;
    for (uint32_t i = 0; i < g->tensors.n; i++) {
        const dh_tensor *t = &g->tensors.at[i];
        if (t->kind == DH_TENSOR_PARAM)
            sum += (double)dh_tensor_elements(t) * (t->dtype == DH_BF16 ? 18 : 16);
    }
    return sum * (double)j->layers / (double)j->pp;
}

/* ---- figure 1 ------------------------------------------------------------------------------- */

static dh_status add_memory(dh_ctx *ctx, dh_validation *v, const dh_published *t,
                            const dh_published *jobs, size_t row)
{
    const char *model;
    megatron_job job;
    dh_graph *g;
    double published[3], layers = 0, bytes;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_real(ctx, t, row, "param_opt_grad_gib", &published[0]));
    DH_TRY(dh_published_real(ctx, t, row, "act_gib_baseline", &published[1]));
    DH_TRY(dh_published_real(ctx, t, row, "act_gib_seqsel", &published[2]));
    DH_TRY(korthikanti_job(ctx, jobs, row, &job));
    DH_TRY(layer_graph(ctx, &job, &g));
    const double state = state_bytes(g, &job);
    dh_graph_destroy(g);
    DH_TRY(layers_kept(ctx, v->arena, &job, &layers));
    DH_TRY(
        dh_validation_add(ctx, v, state / GIB, published[0], "%s parameters and optimizer", model));
    DH_TRY(layer_bytes(ctx, &job, &bytes));
    DH_TRY(dh_validation_add(ctx, v, bytes * layers / GIB, published[1],
                             "%s activations, tensor parallel", model));
    job.sequence_parallel = true;
    job.recompute = DH_RECOMPUTE_KIND_SELECTIVE;
    DH_TRY(layer_bytes(ctx, &job, &bytes));
    return dh_validation_add(ctx, v, bytes * layers / GIB, published[2],
                             "%s activations, sequence parallel, selective", model);
}

dh_status dh_validate_memory(dh_ctx *ctx, dh_validation *v)
{
    dh_published t, jobs;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_published_read(ctx, v->arena, "korthikanti22_table3_table5_iter_time", &jobs));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_memory(ctx, v, &t, &jobs, i));
    return DH_OK;
}

/* ---- figure 7 ------------------------------------------------------------------------------- */

static const struct way {
    const char *column;
    bool sequence_parallel;
    dh_recompute_kind recompute;
} ways[] = {
    {"none", false, DH_RECOMPUTE_KIND_NONE},
    {"seq_parallel", true, DH_RECOMPUTE_KIND_NONE},
    {"selective", false, DH_RECOMPUTE_KIND_SELECTIVE},
    {"seq+selective", true, DH_RECOMPUTE_KIND_SELECTIVE},
    {"full_recompute", false, DH_RECOMPUTE_KIND_FULL},
};

static dh_status add_shares(dh_ctx *ctx, dh_validation *v, const dh_published *t,
                            const dh_published *jobs, size_t row)
{
    const char *model;
    megatron_job job;
    double whole = 0;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(korthikanti_job(ctx, jobs, row, &job));
    for (size_t i = 0; i < DH_COUNTOF(ways); i++) {
        double bytes, published;
        job.sequence_parallel = ways[i].sequence_parallel;
        job.recompute = ways[i].recompute;
        DH_TRY(dh_published_real(ctx, t, row, ways[i].column, &published));
        DH_TRY(layer_bytes(ctx, &job, &bytes));
        if (i == 0) {
            whole = bytes; /* 100 % by definition */
            continue;
        }
        DH_TRY(dh_validation_add(ctx, v, 100 * bytes / whole, published, "%s %s", model,
                                 ways[i].column));
    }
    return DH_OK;
}

dh_status dh_validate_memory_shares(dh_ctx *ctx, dh_validation *v)
{
    dh_published t, jobs;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_published_read(ctx, v->arena, "korthikanti22_table3_table5_iter_time", &jobs));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_shares(ctx, v, &t, &jobs, i));
    return DH_OK;
}
