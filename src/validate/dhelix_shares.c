/* DHelix (arXiv 2411.15871), figure 3: what Megatron-LM's iteration time goes into, 64 A40. And the
 * shares that its text gives.
 *
 * A share of communication is time in which it ran and computation stood still. That is all time of
 * tensor and expert parallelism, and time of context parallelism with no computation during it.
 * "Others" is work of no layer: embedding and head, the optimizer, reductions of gradients,
 * transfers between stages, bubbles. The figure's jobs exchange keys and values, so they have
 * context-parallel ranks. These are taken from figure 12. The model of experts has the mesh of
 * table 6. */
#include <string.h>

#include "base/c_locale.h"
#include "validate/dhelix_jobs.h"

static const char *const columns[DH_N_STEP_PARTS] = {[DH_STEP_TP] = "tp_comm",
                                                     [DH_STEP_CP] = "cp_comm",
                                                     [DH_STEP_EP] = "ep_comm",
                                                     [DH_STEP_COMPUTE] = "compute",
                                                     [DH_STEP_OTHERS] = "others"};

/* The job of figure 12 of that model, or a job file of its own; its file NULL: there is none. */
static dh_status job_of(dh_ctx *ctx, dh_validation *v, const dh_published *jobs, const char *model,
                        dh_shipped_job *job)
{
    *job = (dh_shipped_job){0};
    for (size_t i = 0; i < jobs->n_rows; i++) {
        const char *figure, *name;
        DH_TRY(dh_published_text(ctx, jobs, i, "figure", &figure));
        DH_TRY(dh_published_text(ctx, jobs, i, "model", &name));
        if (strcmp(figure, "12") == 0 && strcmp(name, model) == 0)
            return dh_paper_job(ctx, v, jobs, i, job);
    }
    char *file = dh_arena_printf(v->arena, "dhelix-%s", model);
    if (!file) return dh_no_memory(ctx);
    dh_to_lower(file);
    if (dh_shipped_is_there(file)) *job = (dh_shipped_job){.file = file, .cluster = "a40"};
    return DH_OK;
}

/* A part that neither has is no row. */
static dh_status add_part(dh_ctx *ctx, dh_validation *v, const char *model, int part,
                          double predicted, double published)
{
    if (predicted == 0 && published == 0) return DH_OK;
    DH_TRY(
        dh_validation_add(ctx, v, 100 * predicted, 100 * published, "%s %s", model, columns[part]));
    dh_validation_series(v, columns[part]);
    return DH_OK;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t,
                         const dh_published *jobs, size_t row)
{
    const char *model;
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(job_of(ctx, v, jobs, model, &job));
    if (!job.file) return DH_OK;
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    dh_validation_begin_block(v);
    for (int s = 0; s < DH_N_STEP_PARTS; s++) {
        const size_t before = v->n_rows;
        double published;
        DH_TRY(dh_published_real(ctx, t, row, columns[s], &published));
        DH_TRY(add_part(ctx, v, model, s, step.shares[s], published));
        if (v->n_rows > before) DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
    }
    return DH_OK;
}

dh_status dh_validate_dhelix_shares(dh_ctx *ctx, dh_validation *v)
{
    dh_published t, jobs;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_published_read(ctx, v->arena, "dhelix_figs12_13a_15_tflops", &jobs));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, &jobs, i));
    return DH_OK;
}

/* ---- shares in the text ---------------------------------------------------------------------- */

static dh_status add_text_share(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const char *model, *share, *cluster;
    int64_t seq;
    double published;
    dh_shipped_job job;
    dh_shipped_step step;
    int part = 0;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_text(ctx, t, row, "cluster", &cluster));
    DH_TRY(dh_published_text(ctx, t, row, "share", &share));
    DH_TRY(dh_published_int(ctx, t, row, "seq", &seq));
    DH_TRY(dh_published_real(ctx, t, row, "pct", &published));
    while (part < DH_N_STEP_PARTS && strcmp(columns[part], share) != 0) part++;
    if (part == DH_N_STEP_PARTS)
        return dh_fail(ctx, DH_EFORMAT, "%s: no share is called %s", t->file, share);
    DH_TRY(dh_paper_job(ctx, v, t, row, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(dh_validation_add(ctx, v, 100 * step.shares[part], published, "%s %lldK, %s, %s", model,
                             (long long)(seq >> 10), cluster, share));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_dhelix_text(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_text_share(ctx, v, &t, i));
    return DH_OK;
}
