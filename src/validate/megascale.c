/* MegaScale (arXiv 2402.15627), table 2: strong scaling of a 175B model, 256 to 12,288 devices.
 *
 * The rows of Megatron-LM: MegaScale's own have a parallel block and sliding windows, which no
 * model here has. No constant rests on this table. */
#include <string.h>

#include "validate/job.h"

enum { RANKS_OF_REPLICA = 64 }; /* tp 8, pp 8 */

static dh_status job_of(dh_ctx *ctx, dh_validation *v, int64_t devices, int64_t batch,
                        dh_shipped_job *job)
{
    *job = (dh_shipped_job){.file = "megascale-175b", .cluster = "a100"};
    job->set[0] =
        dh_arena_printf(v->arena, "parallel.dp=%lld", (long long)(devices / RANKS_OF_REPLICA));
    job->set[1] = dh_arena_printf(v->arena, "train.batch=%lld", (long long)batch);
    return job->set[0] && job->set[1] ? DH_OK : dh_no_memory(ctx);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const char *method;
    int64_t devices, batch;
    double published;
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(dh_published_text(ctx, t, row, "method", &method));
    if (strcmp(method, "Megatron-LM") != 0) return DH_OK;
    DH_TRY(dh_published_int(ctx, t, row, "gpus", &devices));
    DH_TRY(dh_published_int(ctx, t, row, "global_batch", &batch));
    DH_TRY(dh_published_real(ctx, t, row, "iter_s", &published));
    DH_TRY(job_of(ctx, v, devices, batch, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(dh_validation_add(ctx, v, step.ns * 1e-9, published, "%lld devices, %lld sequences",
                             (long long)devices, (long long)batch));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_megascale(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
