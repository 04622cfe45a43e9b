/* Korthikanti et al. 2022 (arXiv 2205.05198), figures 1 and 7: memory of a device, as the jobs'
 * system would need it (system_memory.h).
 *
 * The figures count states and activations of layers, without embedding and head: figure 1 on the
 * first stage, figure 7 of one layer. A layer's activations are here those of a model of so many
 * layers on one stage, over their number. */
#include "validate/korthikanti_jobs.h"

#define GIB 1073741824.0

/* A job's settings behind those that it has. */
static void set(dh_shipped_job *job, const char *const *settings)
{
    size_t n = 0;
    while (job->set[n]) n++;
    for (size_t i = 0; settings[i]; i++) job->set[n++] = settings[i];
}

/* ---- figure 1 ------------------------------------------------------------------------------- */

static dh_status add_bytes(dh_ctx *ctx, dh_validation *v, const dh_shipped_job *job, double ns,
                           uint64_t bytes, double published, const char *model, const char *what)
{
    DH_TRY(dh_validation_add(ctx, v, (double)bytes / GIB, published, "%s %s", model, what));
    return dh_shipped_name_row(ctx, v, job, ns);
}

/* Tensor parallelism alone, nothing recomputed. The first stage keeps no more than with twice as
 * many micro-batches as stages, so that no more are simulated. */
static dh_status baseline(dh_ctx *ctx, dh_validation *v, const dh_published *jobs, size_t row,
                          dh_shipped_job *job)
{
    int64_t pp, micro_batch;
    DH_TRY(dh_published_int(ctx, jobs, row, "pp", &pp));
    DH_TRY(dh_published_int(ctx, jobs, row, "micro_batch", &micro_batch));
    const char *batch =
        dh_arena_printf(v->arena, "train.batch=%lld", (long long)(2 * pp * micro_batch));
    if (!batch) return dh_no_memory(ctx);
    set(job, (const char *[]){"train.recompute=none", "parallel.sequence=false", batch, NULL});
    return DH_OK;
}

static dh_status add_memory(dh_ctx *ctx, dh_validation *v, const dh_published *t,
                            const dh_published *jobs, size_t row)
{
    const char *model;
    dh_shipped_job present, plain;
    dh_shipped_step step;
    double published[3];
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_real(ctx, t, row, "param_opt_grad_gib", &published[0]));
    DH_TRY(dh_published_real(ctx, t, row, "act_gib_baseline", &published[1]));
    DH_TRY(dh_published_real(ctx, t, row, "act_gib_seqsel", &published[2]));
    DH_TRY(dh_korthikanti_job(ctx, v, model, &present));
    plain = present;
    DH_TRY(baseline(ctx, v, jobs, row, &plain));
    DH_TRY(dh_shipped_step_of(ctx, v, &plain, &step));
    DH_TRY(add_bytes(ctx, v, &plain, step.ns, step.first_stage.layer_states_bytes, published[0],
                     model, "parameters and optimizer"));
    DH_TRY(add_bytes(ctx, v, &plain, step.ns, step.first_stage.layers_kept_bytes, published[1],
                     model, "activations, tensor parallel"));
    DH_TRY(dh_shipped_step_of(ctx, v, &present, &step));
    return add_bytes(ctx, v, &present, step.ns, step.first_stage.layers_kept_bytes, published[2],
                     model, "activations, sequence parallel, selective");
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
    const char *column, *set[3];
} ways[] = {
    {"none", {"train.recompute=none", "parallel.sequence=false"}},
    {"seq_parallel", {"train.recompute=none", "parallel.sequence=true"}},
    {"selective", {"train.recompute=attention", "parallel.sequence=false"}},
    {"seq+selective", {"train.recompute=attention", "parallel.sequence=true"}},
    {"full_recompute", {"train.recompute=full", "parallel.sequence=false"}},
};

/* Two layers on one stage, one micro-batch. */
static dh_status layers_job(dh_ctx *ctx, dh_validation *v, const char *model, const struct way *way,
                            dh_shipped_job *job)
{
    static const char *const layers[] = {"model.n_layers=2",
                                         "parallel.pp=1",
                                         "parallel.virtual_stages=1",
                                         "parallel.schedule=1f1b",
                                         "train.micro_batch=1",
                                         "train.batch=1",
                                         NULL};
    DH_TRY(dh_korthikanti_job(ctx, v, model, job));
    set(job, layers);
    set(job, way->set);
    return DH_OK;
}

static dh_status add_shares(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const char *model;
    double whole = 0;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    for (size_t i = 0; i < DH_COUNTOF(ways); i++) {
        double published;
        dh_shipped_job job;
        dh_shipped_step step;
        DH_TRY(dh_published_real(ctx, t, row, ways[i].column, &published));
        DH_TRY(layers_job(ctx, v, model, &ways[i], &job));
        DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
        const double bytes = (double)step.first_stage.layers_kept_bytes;
        if (i == 0) {
            whole = bytes; /* 100 % by definition */
            continue;
        }
        DH_TRY(dh_validation_add(ctx, v, 100 * bytes / whole, published, "%s %s", model,
                                 ways[i].column));
        DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
    }
    return DH_OK;
}

dh_status dh_validate_memory_shares(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_shares(ctx, v, &t, i));
    return DH_OK;
}
