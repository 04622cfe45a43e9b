/* DHelix (arXiv 2411.15871), figure 11: throughput of four systems on 64 A40, six models. */
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "validate/dhelix_jobs.h"

enum { N_SYSTEMS = 4 };

/* The figure's systems, in its order, as settings of the shipped jobs, which are Megatron-LM's. */
static const char *const systems[N_SYSTEMS][2] = {{NULL},
                                                  {"system=megascale", "strategy=intra-batch"},
                                                  {"strategy=wavelet+"},
                                                  {"system=dhelix", "strategy=dhelix"}};

dh_status dh_paper_job(dh_ctx *ctx, dh_validation *v, const char *model, dh_shipped_job *job)
{
    char *file = dh_arena_printf(v->arena, "dhelix-%s", model);
    if (!file) return dh_fail(ctx, DH_ENOMEM, "out of memory validating");
    dh_to_lower(file);
    *job = (dh_shipped_job){.file = file, .cluster = "a40"};
    return DH_OK;
}

/* One model: TFLOP/s a device of the four systems, predicted and published. */
typedef struct bars {
    const char *model;
    double predicted[N_SYSTEMS], published[N_SYSTEMS];
    const char *names[N_SYSTEMS];
    dh_shipped_job jobs[N_SYSTEMS];
    double step_ns[N_SYSTEMS];
} bars;

static dh_status read_bars(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t first,
                           bars *b)
{
    DH_TRY(dh_published_text(ctx, t, first, "model", &b->model));
    for (size_t s = 0; s < N_SYSTEMS; s++) {
        dh_shipped_step step;
        dh_shipped_job *job = &b->jobs[s];
        DH_TRY(dh_published_text(ctx, t, first + s, "system", &b->names[s]));
        DH_TRY(dh_published_real(ctx, t, first + s, "tflops_per_gpu", &b->published[s]));
        DH_TRY(dh_paper_job(ctx, v, b->model, job));
        for (int k = 0; k < 2; k++) job->set[k] = systems[s][k];
        DH_TRY(dh_shipped_step_of(ctx, v, job, &step));
        b->step_ns[s] = step.ns;
        b->predicted[s] = step.model_flops / step.devices / step.ns * 1e-3;
    }
    return DH_OK;
}

typedef dh_status add_bars(dh_ctx *ctx, dh_validation *v, const bars *b);

static dh_status each_model(dh_ctx *ctx, dh_validation *v, add_bars *add)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i + N_SYSTEMS <= t.n_rows; i += N_SYSTEMS) {
        bars b;
        DH_TRY(read_bars(ctx, v, &t, i, &b));
        DH_TRY(add(ctx, v, &b));
    }
    return DH_OK;
}

/* ---- absolute ------------------------------------------------------------------------------- */

static dh_status add_throughput(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    for (size_t s = 0; s < N_SYSTEMS; s++) {
        DH_TRY(dh_validation_add(ctx, v, b->predicted[s], b->published[s], "%s %s", b->model,
                                 b->names[s]));
        DH_TRY(dh_shipped_name_row(ctx, v, &b->jobs[s], b->step_ns[s]));
    }
    return DH_OK;
}

dh_status dh_validate_dhelix_systems(dh_ctx *ctx, dh_validation *v)
{
    return each_model(ctx, v, add_throughput);
}

/* ---- over Megatron-LM ----------------------------------------------------------------------- */

static dh_status add_speedups(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    for (size_t s = 1; s < N_SYSTEMS; s++) {
        DH_TRY(dh_validation_add(ctx, v, 100 * (b->predicted[s] / b->predicted[0] - 1),
                                 100 * (b->published[s] / b->published[0] - 1), "%s %s", b->model,
                                 b->names[s]));
        DH_TRY(dh_shipped_name_row(ctx, v, &b->jobs[s], b->step_ns[s]));
    }
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
