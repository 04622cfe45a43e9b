/* DHelix (arXiv 2411.15871), figure 11: throughput of four systems on 64 A40, six models. */
#include <stdio.h>
#include <string.h>

#include "validate/dhelix_job.h"

enum { N_SYSTEMS = 4, BATCH_TOKENS = 1 << 23 };

/* The figure's systems, in its order, and what stands for them. The first three are Megatron-LM
 * with its ways (dh_paper_megatron_costs); MegaScale, whose rings intra-batch has, does not
 * wait for transfers between stages (arXiv 2402.15627, 3.2). */
static const struct {
    const char *strategy;
    bool megatron, waits_for_transfers;
} systems[N_SYSTEMS] = {{"sequential", true, true},
                        {"intra-batch", true, false},
                        {"wavelet+", true, true},
                        {"dhelix", false, false}};

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
        const bool waits = systems[system].waits_for_transfers;
        DH_TRY(dh_paper_megatron_costs(ctx, arena, cluster, job, waits, &megatron));
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

/* ---- absolute ------------------------------------------------------------------------------- */

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

/* ---- over Megatron-LM ----------------------------------------------------------------------- */

static dh_status add_speedups(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    for (size_t s = 1; s < N_SYSTEMS; s++)
        DH_TRY(dh_validation_add(ctx, v, 100 * (b->predicted[s] / b->predicted[0] - 1),
                                 100 * (b->published[s] / b->published[0] - 1), "%s %s", b->model,
                                 b->names[s]));
    return DH_OK;
}

/* Whether two systems that the figure tells apart stand the same way round. */
static bool agree(const bars *b, size_t x, size_t y)
{
    return b->published[x] == b->published[y] ||
           (b->published[x] < b->published[y]) == (b->predicted[x] < b->predicted[y]);
}

/* One order a model. Those that are wrong are named. */
static dh_status add_order(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    char wrong[256] = "";
    for (size_t x = 0; x < N_SYSTEMS; x++)
        for (size_t y = x + 1; y < N_SYSTEMS; y++) {
            const size_t used = strlen(wrong);
            if (!agree(b, x, y))
                snprintf(wrong + used, sizeof wrong - used, "%s%s and %s", used ? ", " : "",
                         b->names[x], b->names[y]);
        }
    v->n_orders++;
    v->n_orders_right += !*wrong;
    if (!*wrong) return DH_OK;
    v->remark = dh_arena_printf(v->arena, "%s%s%s: the wrong way round %s",
                                v->remark ? v->remark : "", v->remark ? "; " : "", b->model, wrong);
    return v->remark ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory validating");
}

static dh_status add_speedups_and_order(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    DH_TRY(add_speedups(ctx, v, b));
    return add_order(ctx, v, b);
}

dh_status dh_validate_dhelix_speedups(dh_ctx *ctx, dh_validation *v)
{
    return each_model(ctx, v, add_speedups_and_order);
}
