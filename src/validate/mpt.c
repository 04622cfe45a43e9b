/* MosaicML's benchmarks of MPT models, llm-foundry: FSDP on A100. No constant rests on this table.
 */
#include "validate/job.h"

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                        int64_t *tokens, dh_shipped_job *job)
{
    const char *model, *recompute;
    int64_t seq, devices, micro_batch, n_micro;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_text(ctx, t, row, "act_ckpt", &recompute));
    DH_TRY(dh_published_int(ctx, t, row, "seq", &seq));
    DH_TRY(dh_published_int(ctx, t, row, "gpus", &devices));
    DH_TRY(dh_published_int(ctx, t, row, "micro_batch", &micro_batch));
    DH_TRY(dh_published_int(ctx, t, row, "grad_accum", &n_micro));
    const struct {
        const char *key;
        int64_t value;
    } sets[] = {{"train.seq_len", seq},
                {"model.max_seq", seq},
                {"parallel.dp", devices},
                {"train.micro_batch", micro_batch},
                {"train.batch", micro_batch * n_micro * devices}};
    *tokens = micro_batch * n_micro * seq; /* of a device in a step */
    *job = (dh_shipped_job){.file = dh_arena_printf(v->arena, "mpt-%s", model), .cluster = "a100"};
    bool ok = job->file != NULL;
    for (size_t i = 0; i < DH_COUNTOF(sets); i++) {
        job->set[i] = dh_arena_printf(v->arena, "%s=%lld", sets[i].key, (long long)sets[i].value);
        ok = ok && job->set[i];
    }
    job->set[DH_COUNTOF(sets)] = dh_arena_printf(v->arena, "train.recompute=%s", recompute);
    return ok && job->set[DH_COUNTOF(sets)] ? DH_OK
                                            : dh_fail(ctx, DH_ENOMEM, "out of memory validating");
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row)
{
    const char *model;
    int64_t tokens, seq, devices;
    double published;
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_int(ctx, t, row, "seq", &seq));
    DH_TRY(dh_published_int(ctx, t, row, "gpus", &devices));
    DH_TRY(dh_published_real(ctx, t, row, "tps_per_gpu", &published));
    DH_TRY(job_of(ctx, v, t, row, &tokens, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(dh_validation_add(ctx, v, (double)tokens / step.ns * 1e9, published,
                             "%s, %lld tokens, %lld devices", model, (long long)seq,
                             (long long)devices));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_mpt(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
