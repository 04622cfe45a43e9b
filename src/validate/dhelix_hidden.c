/* DHelix (arXiv 2411.15871), 6.2.1: how much of the communication systems hide on 64 A40.
 *
 * Means over the models of figure 11, of rank 0. report/timeline.h has what is hidden. */
#include <string.h>

#include "validate/dhelix_jobs.h"

static dh_status add_system(dh_ctx *ctx, dh_validation *v, const dh_published *jobs,
                            const char *system, double published)
{
    double sum = 0;
    int n = 0;
    for (size_t i = 0; i < jobs->n_rows; i++) {
        const char *name;
        dh_shipped_job job;
        dh_shipped_step step;
        DH_TRY(dh_published_text(ctx, jobs, i, "system", &name));
        if (strcmp(name, system) != 0) continue;
        DH_TRY(dh_paper_job(ctx, v, jobs, i, &job));
        DH_TRY(dh_paper_system(ctx, system, &job));
        DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
        sum += 100 * step.hidden_share;
        n++;
    }
    return dh_validation_add(ctx, v, sum / DH_MAX(n, 1), published, "%s", system);
}

dh_status dh_validate_dhelix_hidden(dh_ctx *ctx, dh_validation *v)
{
    dh_published t, jobs;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_published_read(ctx, v->arena, "dhelix_fig11_a40_tflops", &jobs));
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *system;
        double share;
        DH_TRY(dh_published_text(ctx, &t, i, "system", &system));
        DH_TRY(dh_published_real(ctx, &t, i, "hidden_pct", &share));
        DH_TRY(add_system(ctx, v, &jobs, system, share));
    }
    return DH_OK;
}
