/* Korthikanti et al. 2022 (arXiv 2205.05198): iteration times (tables 3 and 5), times of a layer
 * (table 4), scaling with data parallelism (6.3), on Selene. */
#include <math.h>
#include <string.h>

#include "validate/megatron.h"
#include "validate/table.h"

dh_status dh_korthikanti_job(dh_ctx *ctx, const dh_published *t, size_t row, dh_megatron_job *job)
{
    int64_t gpus;
    *job = (dh_megatron_job){.seq = 2048, .vocab = 51200, .overlapped_backward = true};
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

static void set_mode(dh_megatron_job *job, bool present_work)
{
    job->sequence_parallel = present_work;
    job->recompute = present_work ? DH_RECOMPUTE_KIND_SELECTIVE : DH_RECOMPUTE_KIND_FULL;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_cluster *selene,
                         const dh_published *t, size_t row)
{
    const char *model;
    dh_megatron_job job;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_korthikanti_job(ctx, t, row, &job));
    for (int present = 0; present < 2; present++) {
        double published;
        dh_megatron_time time;
        set_mode(&job, present);
        DH_TRY(dh_published_real(
            ctx, t, row, present ? "iter_s_present_work" : "iter_s_full_recompute", &published));
        DH_TRY(dh_megatron_time_of(ctx, selene, &job, &time));
        DH_TRY(dh_validation_add(ctx, v, time.iteration_ns * 1e-9, published, "%s %s", model,
                                 present ? "sequence parallel, selective" : "full recomputation"));
    }
    return DH_OK;
}

/* How far another model, Calculon, is from the same measurements. */
static dh_status remark_calculon(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    double mean = 0, most = 0;
    DH_TRY(dh_published_read(ctx, v->arena, "calculon_selfvalidation_output", &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        double published, predicted;
        DH_TRY(dh_published_real(ctx, &t, i, "published_iter_s", &published));
        DH_TRY(dh_published_real(ctx, &t, i, "calculon_iter_s", &predicted));
        const double error = 100 * fabs(predicted / published - 1);
        mean += error / (double)t.n_rows;
        most = DH_MAX(most, error);
    }
    v->remark = dh_arena_printf(
        v->arena, "Calculon on the same jobs: mean error %.3g %%, largest %.3g", mean, most);
    return v->remark ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory validating");
}

dh_status dh_validate_korthikanti(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *selene;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "selene", &selene));
    dh_status st = DH_OK;
    for (size_t i = 0; i < t.n_rows && st == DH_OK; i++) st = add_row(ctx, v, selene, &t, i);
    dh_cluster_destroy(selene);
    return st == DH_OK ? remark_calculon(ctx, v) : st;
}

/* ---- data parallelism -------------------------------------------------------------------- */

/* The 530B model with 8 times the batch on 8 times the devices: gradients are reduced after the
 * last backward. */
static dh_status add_scaling(dh_ctx *ctx, dh_validation *v, const dh_cluster *selene,
                             const dh_published *t, size_t row)
{
    dh_published jobs;
    dh_megatron_job job;
    dh_megatron_time time;
    int64_t dp;
    double published;
    const size_t row_530b = 2;
    DH_TRY(dh_published_int(ctx, t, row, "dp", &dp));
    DH_TRY(dh_published_real(ctx, t, row, "iter_s", &published));
    DH_TRY(dh_published_read(ctx, v->arena, "korthikanti22_table3_table5_iter_time", &jobs));
    DH_TRY(dh_korthikanti_job(ctx, &jobs, row_530b, &job));
    set_mode(&job, true);
    job.dp = dp;
    job.global_batch *= dp;
    DH_TRY(dh_megatron_time_of(ctx, selene, &job, &time));
    return dh_validation_add(ctx, v, time.iteration_ns * 1e-9, published, "530B, dp %lld",
                             (long long)dp);
}

dh_status dh_validate_korthikanti_scaling(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *selene;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "selene", &selene));
    dh_status st = DH_OK;
    for (size_t i = 0; i < t.n_rows && st == DH_OK; i++) st = add_scaling(ctx, v, selene, &t, i);
    dh_cluster_destroy(selene);
    return st;
}

/* ---- MFU and HFU ----------------------------------------------------------------------------- */

static dh_status add_utilisation(dh_ctx *ctx, dh_validation *v, const dh_cluster *selene,
                                 const dh_published *t, size_t row)
{
    const char *model;
    dh_megatron_job job;
    dh_megatron_time time;
    double mfu, hfu;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_real(ctx, t, row, "mfu_pct", &mfu));
    DH_TRY(dh_published_real(ctx, t, row, "hfu_pct", &hfu));
    DH_TRY(dh_korthikanti_job(ctx, t, row, &job));
    set_mode(&job, true);
    DH_TRY(dh_megatron_time_of(ctx, selene, &job, &time));
    const double devices = (double)(job.tp * job.pp * job.dp);
    const double peak = devices * selene->bf16_flops_per_s * time.iteration_ns * 1e-9;
    DH_TRY(dh_validation_add(ctx, v, 100 * dh_megatron_model_flops(&job) / peak, mfu,
                             "%s MFU: model FLOPs / (devices * 312 TFLOP/s * time)", model));
    return dh_validation_add(ctx, v, 100 * dh_megatron_hardware_flops(&job) / peak, hfu,
                             "%s HFU: with recomputed attention", model);
}

dh_status dh_validate_korthikanti_utilisation(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *selene;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "selene", &selene));
    dh_status st = DH_OK;
    for (size_t i = 0; i < t.n_rows && st == DH_OK; i++)
        st = add_utilisation(ctx, v, selene, &t, i);
    dh_cluster_destroy(selene);
    return st;
}

/* ---- one layer ------------------------------------------------------------------------------ */

static const struct experiment {
    const char *name;
    bool sequence_parallel;
    dh_recompute_kind recompute;
} experiments[] = {
    {"baseline_no_recompute", false, DH_RECOMPUTE_KIND_NONE},
    {"sequence_parallel", true, DH_RECOMPUTE_KIND_NONE},
    {"baseline_full_recompute", false, DH_RECOMPUTE_KIND_FULL},
    {"selective_recompute", false, DH_RECOMPUTE_KIND_SELECTIVE},
    {"selective+sequence", true, DH_RECOMPUTE_KIND_SELECTIVE},
};

static dh_status add_layer(dh_ctx *ctx, dh_validation *v, const dh_cluster *selene,
                           const dh_published *t, size_t row)
{
    const char *name;
    double f, b, both;
    DH_TRY(dh_published_text(ctx, t, row, "experiment", &name));
    DH_TRY(dh_published_real(ctx, t, row, "fwd_ms", &f));
    DH_TRY(dh_published_real(ctx, t, row, "bwd_ms", &b));
    DH_TRY(dh_published_real(ctx, t, row, "combined_ms", &both));
    dh_megatron_job job = {.heads = 64,
                           .hidden = 6144,
                           .layers = 48,
                           .seq = 2048,
                           .vocab = 51200,
                           .tp = 8,
                           .pp = 1,
                           .dp = 1,
                           .chunks = 1,
                           .micro_batch = 4,
                           .global_batch = 4,
                           .overlapped_backward = true};
    for (size_t i = 0; i < DH_COUNTOF(experiments); i++) {
        if (strcmp(experiments[i].name, name) != 0) continue;
        dh_megatron_time time;
        job.sequence_parallel = experiments[i].sequence_parallel;
        job.recompute = experiments[i].recompute;
        DH_TRY(dh_megatron_time_of(ctx, selene, &job, &time));
        DH_TRY(dh_validation_add(ctx, v, time.layer_f_ns * 1e-6, f, "%s forward", name));
        DH_TRY(dh_validation_add(ctx, v, time.layer_b_ns * 1e-6, b, "%s backward", name));
        return dh_validation_add(ctx, v, (time.layer_f_ns + time.layer_b_ns) * 1e-6, both,
                                 "%s both", name);
    }
    return dh_fail(ctx, DH_EMISSING, "%s: experiment %s is not known", t->file, name);
}

dh_status dh_validate_korthikanti_layer(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *selene;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "selene", &selene));
    dh_status st = DH_OK;
    for (size_t i = 0; i < t.n_rows && st == DH_OK; i++) st = add_layer(ctx, v, selene, &t, i);
    dh_cluster_destroy(selene);
    return st;
}
