/* Iteration time of a Megatron-LM job of one strand.
 *
 * The blocks' graphs are those that are trained here; their operators run one after the other, each
 * for its solo time on the cluster, communication exposed. What Megatron-LM of 2021 and 2022 did
 * differently is said where it is done:
 *   - without sequence parallelism an all-reduce stands where our graph has an all-gather and a
 *     reduce-scatter, and norms, dropout and residuals work on all tokens;
 *   - full recomputation repeats the whole forward of a layer;
 *   - the head's loss gradient belongs to its backward.
 * The schedule's clock does the rest. Transfers between stages block both ends, as in Megatron-LM's
 * schedules of that time, so they lengthen the slots. */
#include "validate/megatron.h"

#include <math.h>
#include <stdio.h>

#include "plan/schedule.h"

typedef struct walk {
    const dh_cluster *cluster;
    const dh_megatron_job *job;
    const dh_costs *costs;
    dh_mesh mesh;
} walk;

static double solo(const walk *w, const dh_graph *g, const dh_op *op)
{
    const dh_cost_op cost = {g, op, &w->mesh, 0};
    return w->costs->solo(w->costs->self, &cost).ns;
}

/* ---- operators --------------------------------------------------------------------------- */

static bool is_sharded_by_tokens(const walk *w, const dh_graph *g, const dh_op *op)
{
    const dh_tensor *x = op->in[0] == DH_NONE ? NULL : &g->tensors.at[op->in[0]];
    return w->job->tp > 1 && x && x->axis[0] == DH_AXIS_TOKENS &&
           x->shape[0] * w->job->tp == w->job->micro_batch * w->job->seq;
}

static double communication(const walk *w, const dh_graph *g, const dh_op *op)
{
    if (w->job->sequence_parallel) return solo(w, g, op);
    if (op->type != DH_OP_REDUCE_SCATTER) return 0;
    const dh_cluster_span span = dh_cluster_span_of(w->cluster, &w->mesh, DH_GROUP_TP, 0);
    const double bytes = (double)dh_tensor_bytes(&g->tensors.at[op->in[0]]);
    return dh_cluster_collective(w->cluster, DH_OP_ALL_REDUCE, bytes, span).ns;
}

static double op_ns(const walk *w, const dh_graph *g, const dh_op *op)
{
    if (dh_op_info_of(op->type)->resource == DH_RES_COMM) return communication(w, g, op);
    if (!w->job->sequence_parallel && is_sharded_by_tokens(w, g, op))
        return dh_cluster_memory_ns(w->cluster, dh_op_bytes(g, op) * (double)w->job->tp);
    return solo(w, g, op);
}

static double overlapped_ns(const walk *w, double compute_ns, double comm_ns)
{
    if (compute_ns < 1 || comm_ns < 1) return compute_ns + comm_ns;
    const double oef = dh_cluster_oef(w->cluster, DH_CLUSTER_GEMM, DH_CLUSTER_LOCAL);
    const dh_pair_time t =
        dh_pair_time_from_oef(llround(compute_ns), llround(comm_ns), oef, DH_PAIR_MODELLED);
    return (double)DH_MAX(t.f_ns, t.b_ns);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static bool is(const dh_graph *g, size_t i, dh_op_type type)
{
    return i < g->ops.n && g->ops.at[i].type == type;
}

/* Backward of a column-parallel linear: dgrad, x gathered again, wgrad, gradient of the bias,
 * reduction of dx. */
static bool is_column_backward(const dh_graph *g, size_t i)
{
    return is(g, i, DH_OP_LINEAR_DGRAD) && is(g, i + 1, DH_OP_ALL_GATHER) &&
           is(g, i + 2, DH_OP_LINEAR_WGRAD) && is(g, i + 3, DH_OP_BIAS_GRAD) &&
           is(g, i + 4, DH_OP_REDUCE_SCATTER);
}

static double column_backward_ns(const walk *w, const dh_graph *g, const dh_op *op)
{
    return overlapped_ns(w, op_ns(w, g, op), op_ns(w, g, op + 1)) +
           overlapped_ns(w, op_ns(w, g, op + 2) + op_ns(w, g, op + 3), op_ns(w, g, op + 4));
}

static double phase_ns(const walk *w, const dh_graph *g, bool backward)
{
    double sum = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if ((op->phase != DH_PHASE_F) != backward) continue;
        if (w->job->overlapped_backward && is_column_backward(g, i)) {
            sum += column_backward_ns(w, g, op);
            i += 4;
        } else {
            sum += op_ns(w, g, op);
        }
    }
    return sum;
}

/* Of the head's forward operators, those of the loss gradient. */
static double loss_gradient_ns(const walk *w, const dh_graph *g)
{
    double sum = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (op->phase == DH_PHASE_F &&
            (op->type == DH_OP_LINEAR_DGRAD || op->type == DH_OP_LINEAR_WGRAD ||
             op->type == DH_OP_LOSS_GRAD || op->type == DH_OP_REDUCE_SCATTER))
            sum += op_ns(w, g, op);
    }
    return sum;
}

static void model_of(const dh_megatron_job *job, dh_model *model)
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

dh_status dh_megatron_graph(dh_ctx *ctx, const dh_megatron_job *job, dh_block_kind kind,
                            dh_graph **graph)
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
    DH_TRY(dh_graph_build(ctx, &build, kind, &g));
    dh_status st = dh_pass_tensor_parallel(ctx, g, (dh_shard){.tp = job->tp});
    if (st == DH_OK) st = dh_graph_differentiate(ctx, g);
    if (st != DH_OK) {
        dh_graph_destroy(g);
        return st;
    }
    *graph = g;
    return DH_OK;
}

static dh_status block_times(dh_ctx *ctx, const walk *w, dh_megatron_time *t)
{
    dh_graph *g;
    DH_TRY(dh_megatron_graph(ctx, w->job, DH_BLOCK_LAYER, &g));
    t->layer_f_ns = phase_ns(w, g, false);
    t->layer_b_ns = phase_ns(w, g, true);
    if (w->job->recompute == DH_RECOMPUTE_KIND_FULL) t->layer_b_ns += t->layer_f_ns;
    dh_graph_destroy(g);
    DH_TRY(dh_megatron_graph(ctx, w->job, DH_BLOCK_HEAD, &g));
    const double moved = loss_gradient_ns(w, g);
    t->head_f_ns = phase_ns(w, g, false) - moved;
    t->head_b_ns = phase_ns(w, g, true) + moved;
    dh_graph_destroy(g);
    DH_TRY(dh_megatron_graph(ctx, w->job, DH_BLOCK_EMBED, &g));
    t->embed_f_ns = phase_ns(w, g, false);
    t->embed_b_ns = phase_ns(w, g, true);
    dh_graph_destroy(g);
    return DH_OK;
}

/* ---- once an iteration --------------------------------------------------------------------- */

/* Parameters of the fullest rank: matrices of its layers, and the embedding. */
static double rank_params(const dh_megatron_job *job)
{
    const double h = (double)job->hidden, layers = (double)job->layers / (double)job->pp;
    return (12 * h * h * layers + (double)job->vocab * h) / (double)job->tp;
}

/* Megatron-LM's mixed-precision optimizer, in bytes a parameter: gradients to the norm (read 4),
 * unscaled (8), zeroed (4); Adam reads master, gradient and two moments and writes three of them
 * (28); the half-precision copy is made from the master (6). */
static double optimizer_ns(const walk *w)
{
    return dh_cluster_memory_ns(w->cluster, rank_params(w->job) * (4 + 8 + 4 + 28 + 6));
}

/* Gradients in float32, summed after the last backward; those of the embedding over both ends of
 * the pipeline. */
static double reduce_ns(const walk *w)
{
    const dh_megatron_job *j = w->job;
    const double embedding = 4 * (double)j->vocab * (double)j->hidden / (double)j->tp;
    const dh_cluster_span data = dh_cluster_span_of(w->cluster, &w->mesh, DH_GROUP_DP, 0);
    const dh_cluster_span ends = dh_cluster_span_of(w->cluster, &w->mesh, DH_GROUP_EMBED, 0);
    double ns = dh_cluster_collective(w->cluster, DH_OP_ALL_REDUCE, 4 * rank_params(j), data).ns;
    if (j->pp > 1) ns += dh_cluster_collective(w->cluster, DH_OP_ALL_REDUCE, embedding, ends).ns;
    return ns;
}

/* Each tensor-parallel rank sends its part of the tokens; without sequence parallelism the
 * receivers gather them (Narayanan et al. SC21, 4.1). */
static double transfer_ns(const walk *w)
{
    const dh_megatron_job *j = w->job;
    if (j->pp == 1) return 0;
    const double bytes = 2 * (double)(j->micro_batch * j->seq * j->hidden);
    const dh_cluster_span stages = dh_cluster_span_of(w->cluster, &w->mesh, DH_GROUP_PP, 0);
    const dh_cluster_span inside = dh_cluster_span_of(w->cluster, &w->mesh, DH_GROUP_TP, 0);
    double ns = dh_cluster_collective(w->cluster, DH_OP_SEND, bytes / (double)j->tp, stages).ns;
    if (!j->sequence_parallel)
        ns += dh_cluster_collective(w->cluster, DH_OP_ALL_GATHER, bytes, inside).ns;
    return ns;
}

/* ---- the pipeline --------------------------------------------------------------------------- */

static dh_status fill_costs(dh_ctx *ctx, const dh_megatron_job *job, const dh_megatron_time *t,
                            int32_t n_stages, dh_stage_cost *stage)
{
    if (job->layers % n_stages != 0)
        return dh_fail(ctx, DH_EINVAL, "%lld layers do not divide into %d stages",
                       (long long)job->layers, n_stages);
    const double layers = (double)job->layers / n_stages;
    for (int32_t v = 0; v < n_stages; v++) {
        double f = layers * t->layer_f_ns, b = layers * t->layer_b_ns;
        if (v == 0) f += t->embed_f_ns, b += t->embed_b_ns;
        if (v == n_stages - 1) f += t->head_f_ns, b += t->head_b_ns;
        stage[v] = (dh_stage_cost){.f_ns = llround(f + t->transfer_ns),
                                   .b_ns = llround(b + t->transfer_ns)};
    }
    return DH_OK;
}

static dh_status pipeline_ns(dh_ctx *ctx, dh_arena *arena, const dh_megatron_job *job,
                             const dh_megatron_time *t, double *ns)
{
    const int32_t n_stages = (int32_t)(job->pp * job->chunks);
    dh_stage_cost *stage = DH_NEW_N(arena, dh_stage_cost, n_stages);
    if (!stage) return dh_fail(ctx, DH_ENOMEM, "out of memory timing a pipeline");
    DH_TRY(fill_costs(ctx, job, t, n_stages, stage));
    const dh_schedule_costs costs = {.stage = stage};
    const dh_schedule_spec spec = {.n_ranks = (int32_t)job->pp,
                                   .n_micro =
                                       (int32_t)(job->global_batch / job->dp / job->micro_batch),
                                   .n_chunks = (int32_t)job->chunks};
    const dh_schedule_row *row;
    dh_schedule *schedule;
    dh_schedule_timing timing;
    DH_TRY(dh_schedule_find(ctx, job->chunks > 1 ? "interleaved-1f1b" : "1f1b", &row));
    DH_TRY(dh_schedule_generate(ctx, row, &spec, &schedule));
    dh_status st = dh_schedule_time(ctx, schedule, &costs, &timing);
    dh_schedule_destroy(schedule);
    DH_TRY(st);
    *ns = (double)timing.makespan_ns;
    dh_schedule_timing_fini(&timing);
    return DH_OK;
}

static dh_status time_in(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                         const dh_megatron_job *job, dh_megatron_time *time)
{
    dh_cluster software = *cluster;
    if (job->recompute == DH_RECOMPUTE_KIND_SELECTIVE && software.attention == DH_ATTENTION_SCORES)
        software.attention = DH_ATTENTION_SCORES_RECOMPUTE;
    walk w = {.cluster = &software, .job = job};
    dh_megatron_time t = {0};
    double pipeline = 0;
    DH_TRY(dh_cluster_costs(ctx, arena, &software, &w.costs));
    DH_TRY(dh_cluster_mesh(ctx, cluster, job->dp, job->tp, job->pp, 1, 1, &w.mesh));
    DH_TRY(block_times(ctx, &w, &t));
    t.transfer_ns = transfer_ns(&w);
    t.optimizer_ns = optimizer_ns(&w);
    t.reduce_ns = reduce_ns(&w);
    DH_TRY(pipeline_ns(ctx, arena, job, &t, &pipeline));
    t.iteration_ns = pipeline + t.reduce_ns + t.optimizer_ns;
    *time = t;
    return DH_OK;
}

dh_status dh_megatron_time_of(dh_ctx *ctx, const dh_cluster *cluster, const dh_megatron_job *job,
                              dh_megatron_time *time)
{
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_fail(ctx, DH_ENOMEM, "out of memory timing a job");
    dh_status st = time_in(ctx, arena, cluster, job, time);
    dh_arena_destroy(arena);
    return st;
}

/* ---- FLOPs ---------------------------------------------------------------------------------- */

/* Forward of a layer: GEMMs 24 B s h^2, scores 4 B s^2 h. Forward and backward are three times
 * that, a full recomputation is once more. With selective recomputation the paper counts scores six
 * times (72 B L s h^2 (1 + s/3h + ...)), which is kept here since its HFU is. */
static double layers_flops(const dh_megatron_job *j, double gemms, double scores)
{
    const double tokens = (double)(j->global_batch * j->seq), h = (double)j->hidden;
    return (double)j->layers *
           (gemms * 24 * tokens * h * h + scores * 4 * tokens * (double)j->seq * h);
}

static double head_flops(const dh_megatron_job *j)
{
    return 6 * (double)(j->global_batch * j->seq) * (double)j->hidden * (double)j->vocab;
}

double dh_megatron_model_flops(const dh_megatron_job *job)
{
    return layers_flops(job, 3, 3) + head_flops(job);
}

double dh_megatron_hardware_flops(const dh_megatron_job *job)
{
    const double full = job->recompute == DH_RECOMPUTE_KIND_FULL;
    const double scores = full + 3 * (job->recompute == DH_RECOMPUTE_KIND_SELECTIVE);
    return layers_flops(job, 3 + full, 3 + scores) + head_flops(job);
}
