/* Narayanan et al. SC21 (arXiv 2104.04473), table 1: weak scaling from 32 to 3072 devices of
 * Selene.
 *
 * The paper gives neither the micro-batch nor the virtual stages of a row. It says that they were
 * chosen for throughput, so the shipped jobs have the fastest by simulation. */
#include "validate/job.h"

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    double published;
    const char *params;
    dh_shipped_step step;
    dh_shipped_job job = {.cluster = "selene"};
    DH_TRY(dh_published_text(ctx, t, row, "params_b", &params));
    DH_TRY(dh_published_real(ctx, t, row, "tflops_per_gpu", &published));
    job.file = dh_arena_printf(v->arena, "sc21-%sb", params);
    if (!job.file) return dh_no_memory(ctx);
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(dh_validation_add(ctx, v, step.hardware_flops / step.devices / step.ns * 1e-3, published,
                             "%sB on %.0f devices", params, step.devices));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_sc21(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
