/* DHelix (arXiv 2411.15871), figure 11: throughput of four systems on 64 A40, six models. */
#include <stdio.h>
#include <string.h>

#include "validate/dhelix_job.h"

enum { N_SYSTEMS = 4, BATCH_TOKENS = 1 << 23 };

/* The figure's systems, in its order, and what stands for them. Intra-batch: one strand whose
 * operators are issued where they can start first, so that its communication hides behind what does
 * not need it. Wavelet+ alternates operators of two strands, each with Megatron-LM's ways. */
static const struct {
    const char *strategy;
    bool megatron; /* costs of dh_paper_megatron_costs */
} systems[N_SYSTEMS] = {
    {"sequential", true}, {"list", false}, {"wavelet+", true}, {"dhelix", false}};

static dh_status read_job(dh_ctx *ctx, dh_arena *arena, const dh_published *t, size_t row,
                          dh_paper_job *job)
{
    const char *model, *sizes;
    int dp, tp, pp;
    *job = (dh_paper_job){.cp = 1};
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_text(ctx, t, row, "parallelism", &sizes));
    DH_TRY(dh_published_int(ctx, t, row, "seq", &job->seq));
    if (sscanf(sizes, "DP%d TP%d PP%d", &dp, &tp, &pp) != 3) // NOLINT(cert-err34-c): our file
        return dh_fail(ctx, DH_EFORMAT, "%s: \"%s\" is not DPn TPn PPn", t->file, sizes);
    job->dp = dp;
    job->tp = tp;
    job->pp = pp;
    job->global_batch = BATCH_TOKENS / job->seq;
    return dh_paper_model(ctx, arena, model, &job->model);
}

static dh_status simulate(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                          dh_paper_job *job, size_t system, double *step_ns)
{
    dh_paper_costs megatron;
    const dh_costs *costs;
    job->strategy = systems[system].strategy;
    DH_TRY(dh_cluster_costs(ctx, arena, cluster, &costs));
    if (systems[system].megatron) {
        DH_TRY(dh_paper_megatron_costs(ctx, arena, cluster, job, &megatron));
        costs = &megatron.costs;
    }
    return dh_paper_simulate(ctx, cluster, costs, job, &dh_paper_step, step_ns);
}

/* One model: TFLOP/s a device of the four systems, predicted and published. */
typedef struct bars {
    const char *model;
    double predicted[N_SYSTEMS], published[N_SYSTEMS];
    const char *names[N_SYSTEMS];
} bars;

static dh_status read_bars(dh_ctx *ctx, dh_arena *arena, const dh_cluster *cluster,
                           const dh_published *t, size_t first, bars *b)
{
    DH_TRY(dh_published_text(ctx, t, first, "model", &b->model));
    for (size_t s = 0; s < N_SYSTEMS; s++) {
        dh_paper_job job;
        double step_ns;
        DH_TRY(read_job(ctx, arena, t, first + s, &job));
        DH_TRY(dh_published_text(ctx, t, first + s, "system", &b->names[s]));
        DH_TRY(dh_published_real(ctx, t, first + s, "tflops_per_gpu", &b->published[s]));
        DH_TRY(simulate(ctx, arena, cluster, &job, s, &step_ns));
        const double devices = (double)(job.dp * job.tp * job.pp);
        b->predicted[s] = dh_paper_flops(&job) / devices / step_ns * 1e-3;
    }
    return DH_OK;
}

typedef dh_status add_bars(dh_ctx *ctx, dh_validation *v, const bars *b);

static dh_status each_model(dh_ctx *ctx, dh_validation *v, add_bars *add)
{
    dh_published t;
    dh_cluster *a40;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, "a40", &a40));
    dh_status st = DH_OK;
    for (size_t i = 0; i + N_SYSTEMS <= t.n_rows && st == DH_OK; i += N_SYSTEMS) {
        bars b;
        st = read_bars(ctx, v->arena, a40, &t, i, &b);
        if (st == DH_OK) st = add(ctx, v, &b);
    }
    dh_cluster_destroy(a40);
    return st;
}

/* ---- absolute -----------------------------------------------------------------------------------
 */

static dh_status add_throughput(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    for (size_t s = 0; s < N_SYSTEMS; s++)
        DH_TRY(dh_validation_add(ctx, v, b->predicted[s], b->published[s], "%s %s", b->model,
                                 b->names[s]));
    return DH_OK;
}

dh_status dh_validate_dhelix_systems(dh_ctx *ctx, dh_validation *v)
{
    return each_model(ctx, v, add_throughput);
}

/* ---- over Megatron-LM
 * ----------------------------------------------------------------------------- */

static dh_status add_speedups(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    for (size_t s = 1; s < N_SYSTEMS; s++)
        DH_TRY(dh_validation_add(ctx, v, 100 * (b->predicted[s] / b->predicted[0] - 1),
                                 100 * (b->published[s] / b->published[0] - 1), "%s %s", b->model,
                                 b->names[s]));
    return DH_OK;
}

/* Pairs of systems that the figure tells apart, and how many of them stand the other way round. */
static dh_status remark_orders(dh_ctx *ctx, dh_validation *v)
{
    int n_pairs = 0, n_wrong = 0;
    char wrong[512] = "";
    for (size_t i = 0; i < v->n_rows; i++)
        for (size_t k = i + 1; k < i / (N_SYSTEMS - 1) * (N_SYSTEMS - 1) + N_SYSTEMS - 1; k++) {
            const dh_validation_row *a = &v->rows[i], *b = &v->rows[k];
            if (a->published == b->published) continue;
            n_pairs++;
            if ((a->published < b->published) == (a->predicted < b->predicted)) continue;
            n_wrong++;
            const size_t used = strlen(wrong);
            snprintf(wrong + used, sizeof wrong - used, "; wrong: %s and %s", a->label, b->label);
        }
    for (size_t i = 0; i < v->n_rows; i++, n_pairs++) n_wrong += v->rows[i].predicted <= 0;
    v->remark = dh_arena_printf(v->arena, "%d of %d orders of two systems right%s",
                                n_pairs - n_wrong, n_pairs, wrong);
    return v->remark ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory validating");
}

dh_status dh_validate_dhelix_speedups(dh_ctx *ctx, dh_validation *v)
{
    DH_TRY(each_model(ctx, v, add_speedups));
    return remark_orders(ctx, v);
}
