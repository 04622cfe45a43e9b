/* MosaicML's benchmarks of MPT models, llm-foundry: FSDP on A100, and on H100 in bf16 and fp8. No
 * constant rests on these tables. */
#include <string.h>

#include "validate/job.h"

typedef struct row {
    const char *model, *recompute;
    const char *precision, *sharding; /* of H100 alone */
    int64_t seq, devices, micro_batch, n_micro;
    double published;
} row;

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t i, bool h100, row *r)
{
    *r = (row){.precision = "bf16", .sharding = "full"};
    DH_TRY(dh_published_text(ctx, t, i, "model", &r->model));
    DH_TRY(dh_published_text(ctx, t, i, "act_ckpt", &r->recompute));
    DH_TRY(dh_published_int(ctx, t, i, "seq", &r->seq));
    DH_TRY(dh_published_int(ctx, t, i, "gpus", &r->devices));
    DH_TRY(dh_published_int(ctx, t, i, "micro_batch", &r->micro_batch));
    DH_TRY(dh_published_int(ctx, t, i, "grad_accum", &r->n_micro));
    DH_TRY(dh_published_real(ctx, t, i, "tps_per_gpu", &r->published));
    if (!h100) return DH_OK;
    DH_TRY(dh_published_text(ctx, t, i, "precision", &r->precision));
    return dh_published_text(ctx, t, i, "sharding", &r->sharding);
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const row *r, bool h100, dh_shipped_job *job)
{
    const struct {
        const char *key;
        int64_t value;
    } sets[] = {{"train.seq_len", r->seq},
                {"model.max_seq", r->seq},
                {"parallel.dp", r->devices},
                {"train.micro_batch", r->micro_batch},
                {"train.batch", r->micro_batch * r->n_micro * r->devices}};
    *job = (dh_shipped_job){.file = dh_arena_printf(v->arena, "mpt-%s", r->model),
                            .cluster = h100 ? "h100" : "a100"};
    bool ok = job->file != NULL;
    size_t n = 0;
    for (; n < DH_COUNTOF(sets); n++) {
        job->set[n] = dh_arena_printf(v->arena, "%s=%lld", sets[n].key, (long long)sets[n].value);
        ok = ok && job->set[n];
    }
    job->set[n] = dh_arena_printf(v->arena, "train.recompute=%s", r->recompute);
    ok = ok && job->set[n++];
    if (strcmp(r->precision, "fp8") == 0) job->set[n++] = "train.fp8=hybrid";
    if (strcmp(r->sharding, "grad") == 0) job->set[n++] = "parallel.reshard_after_forward=false";
    return ok ? DH_OK : dh_no_memory(ctx);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i, bool h100)
{
    row r;
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(read_row(ctx, t, i, h100, &r));
    DH_TRY(job_of(ctx, v, &r, h100, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    const double tokens = (double)(r.micro_batch * r.n_micro * r.seq); /* of a device in a step */
    DH_TRY(dh_validation_add(ctx, v, tokens / step.ns * 1e9, r.published,
                             "%s, %lld tokens, %lld devices%s%s", r.model, (long long)r.seq,
                             (long long)r.devices, h100 ? ", " : "", h100 ? r.precision : ""));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

static dh_status validate(dh_ctx *ctx, dh_validation *v, bool h100)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i, h100));
    return DH_OK;
}

dh_status dh_validate_mpt(dh_ctx *ctx, dh_validation *v)
{
    return validate(ctx, v, false);
}

dh_status dh_validate_mpt_h100(dh_ctx *ctx, dh_validation *v)
{
    return validate(ctx, v, true);
}
