/* Korthikanti et al. 2022 (arXiv 2205.05198), on Selene. Iteration times are in tables 3 and 5,
 * times of a layer in table 4, scaling with data parallelism in section 6.3. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "validate/korthikanti_jobs.h"

dh_status dh_korthikanti_job(dh_ctx *ctx, dh_validation *v, const char *model, dh_shipped_job *job)
{
    char *file = dh_arena_printf(v->arena, "korthikanti-%s", model);
    if (!file) return dh_no_memory(ctx);
    dh_to_lower(file);
    *job = (dh_shipped_job){.file = file, .cluster = "selene"};
    return DH_OK;
}

/* Without sequence parallelism and with full recomputation; else the paper's present work. */
static dh_status shipped_job(dh_ctx *ctx, dh_validation *v, const char *model, bool present,
                             dh_shipped_job *job)
{
    DH_TRY(dh_korthikanti_job(ctx, v, model, job));
    if (present) return DH_OK;
    job->set[0] = "train.recompute=full";
    job->set[1] = "parallel.sequence=false";
    return DH_OK;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const char *model;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    for (int present = 0; present < 2; present++) {
        double published;
        dh_shipped_job job;
        dh_shipped_step step;
        DH_TRY(shipped_job(ctx, v, model, present, &job));
        DH_TRY(dh_published_real(
            ctx, t, row, present ? "iter_s_present_work" : "iter_s_full_recompute", &published));
        DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
        DH_TRY(dh_validation_add(ctx, v, step.ns * 1e-9, published, "%s %s", model,
                                 present ? "sequence parallel, selective" : "full recomputation"));
        DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
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
    return v->remark ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_validate_korthikanti(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return remark_calculon(ctx, v);
}

/* ---- data parallelism -------------------------------------------------------------------- */

/* The 530B model with 8 times the batch on 8 times the devices. */
static dh_status add_scaling(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    dh_shipped_job job;
    dh_shipped_step step;
    int64_t dp;
    double published;
    DH_TRY(dh_published_int(ctx, t, row, "dp", &dp));
    DH_TRY(dh_published_real(ctx, t, row, "iter_s", &published));
    DH_TRY(shipped_job(ctx, v, "530B", true, &job));
    if (dp > 1) {
        job.set[0] = dh_arena_printf(v->arena, "parallel.dp=%lld", (long long)dp);
        job.set[1] = dh_arena_printf(v->arena, "train.batch=%lld", (long long)(280 * dp));
        if (!job.set[0] || !job.set[1]) return dh_no_memory(ctx);
    }
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(dh_validation_add(ctx, v, step.ns * 1e-9, published, "530B, dp %lld", (long long)dp));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_korthikanti_scaling(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_scaling(ctx, v, &t, i));
    return DH_OK;
}

/* ---- MFU and HFU ----------------------------------------------------------------------------- */

static dh_status add_utilisation(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const char *model;
    dh_shipped_job job;
    dh_shipped_step step;
    double mfu, hfu;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_real(ctx, t, row, "mfu_pct", &mfu));
    DH_TRY(dh_published_real(ctx, t, row, "hfu_pct", &hfu));
    DH_TRY(shipped_job(ctx, v, model, true, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    const double peak = step.devices * step.peak_flops_per_s * step.ns * 1e-9;
    DH_TRY(dh_validation_add(ctx, v, 100 * step.model_flops / peak, mfu,
                             "%s MFU: model FLOPs / (devices * 312 TFLOP/s * time)", model));
    DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
    DH_TRY(dh_validation_add(ctx, v, 100 * step.hardware_flops / peak, hfu,
                             "%s HFU: with recomputed attention", model));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_korthikanti_utilisation(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_utilisation(ctx, v, &t, i));
    return DH_OK;
}

/* ---- one layer ------------------------------------------------------------------------------ */

static const struct experiment {
    const char *name, *set[2];
} experiments[] = {
    {"baseline_no_recompute", {"train.recompute=none", "parallel.sequence=false"}},
    {"sequence_parallel", {"train.recompute=none", "parallel.sequence=true"}},
    {"baseline_full_recompute", {"train.recompute=full", "parallel.sequence=false"}},
    {"selective_recompute", {"train.recompute=attention", "parallel.sequence=false"}},
    {"selective+sequence", {"train.recompute=attention", "parallel.sequence=true"}},
};

/* When computation of a layer's forward or backward begins. */
static int64_t begin_of(const dh_sim_rank *r, int32_t layer, bool backward)
{
    const dh_program *p = r->program;
    int64_t begin = INT64_MAX;
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        if (dh_instr_graph(p, instr)->kind != DH_BLOCK_LAYER ||
            p->blocks.at[instr->block].layer != layer ||
            (dh_instr_op(p, instr)->phase != DH_PHASE_F) != backward ||
            dh_op_info_of(dh_instr_op(p, instr)->type)->resource != DH_RES_COMPUTE)
            continue;
        begin = DH_MIN(begin, r->spans[i].start_ns);
    }
    return begin;
}

/* The middle one of three layers: from its beginning to that of the one behind it. */
static dh_status layer_times(dh_ctx *ctx, dh_validation *v, const dh_shipped_job *job, double *f_ms,
                             double *b_ms, double *step_ns)
{
    dh_shipped_run run;
    dh_status st = dh_shipped_simulate(ctx, v, job, &run);
    if (st == DH_OK) {
        const dh_sim_rank *r = &run.sim->ranks[0];
        *f_ms = (double)(begin_of(r, 2, false) - begin_of(r, 1, false)) * 1e-6;
        *b_ms = (double)(begin_of(r, 0, true) - begin_of(r, 1, true)) * 1e-6;
        *step_ns = (double)run.sim->step_ns;
    }
    dh_shipped_fini(&run);
    return st;
}

static dh_status add_layer(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const char *name;
    double published[3];
    DH_TRY(dh_published_text(ctx, t, row, "experiment", &name));
    DH_TRY(dh_published_real(ctx, t, row, "fwd_ms", &published[0]));
    DH_TRY(dh_published_real(ctx, t, row, "bwd_ms", &published[1]));
    DH_TRY(dh_published_real(ctx, t, row, "combined_ms", &published[2]));
    for (size_t i = 0; i < DH_COUNTOF(experiments); i++) {
        static const char *const what[] = {"forward", "backward", "both"};
        const struct experiment *e = &experiments[i];
        if (strcmp(e->name, name) != 0) continue;
        const dh_shipped_job job = {.file = "korthikanti-22b",
                                    .cluster = "selene",
                                    .set = {"model.n_layers=3", e->set[0], e->set[1]}};
        double ms[3] = {0}, step_ns = 0;
        dh_validation_begin_block(v);
        DH_TRY(layer_times(ctx, v, &job, &ms[0], &ms[1], &step_ns));
        ms[2] = ms[0] + ms[1];
        for (int k = 0; k < 3; k++) {
            DH_TRY(dh_validation_add(ctx, v, ms[k], published[k], "%s %s", name, what[k]));
            DH_TRY(dh_shipped_name_row(ctx, v, &job, step_ns));
        }
        return DH_OK;
    }
    return dh_fail(ctx, DH_EMISSING, "%s: experiment %s is not known", t->file, name);
}

dh_status dh_validate_korthikanti_layer(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_layer(ctx, v, &t, i));
    return DH_OK;
}
