/* Three jobs that others measured, 530B on A100 and 15B and 405B on H100: nothing here was made
 * with them, and no constant rests on them. */
#include <string.h>

#include "validate/job.h"

typedef struct row {
    const char *model, *file, *cluster, *what;
    int64_t devices, seq;
    double published;
} row;

static dh_status add_set(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i,
                         const char *column, const char *key, const char **set)
{
    int64_t value;
    DH_TRY(dh_published_int(ctx, t, i, column, &value));
    *set = dh_arena_printf(v->arena, "%s=%lld", key, (long long)value);
    return *set ? DH_OK : dh_no_memory(ctx);
}

static dh_status read_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i, row *r,
                          dh_shipped_job *job)
{
    static const struct {
        const char *column, *key;
    } sets[] = {{"dp", "parallel.dp"},
                {"cp", "parallel.cp"},
                {"seq", "train.seq_len"},
                {"batch", "train.batch"}};
    DH_TRY(dh_published_text(ctx, t, i, "model", &r->model));
    DH_TRY(dh_published_text(ctx, t, i, "job", &r->file));
    DH_TRY(dh_published_text(ctx, t, i, "cluster", &r->cluster));
    DH_TRY(dh_published_text(ctx, t, i, "what", &r->what));
    DH_TRY(dh_published_int(ctx, t, i, "devices", &r->devices));
    DH_TRY(dh_published_int(ctx, t, i, "seq", &r->seq));
    DH_TRY(dh_published_real(ctx, t, i, "value", &r->published));
    *job = (dh_shipped_job){.file = r->file, .cluster = r->cluster};
    for (size_t k = 0; k < DH_COUNTOF(sets); k++)
        DH_TRY(add_set(ctx, v, t, i, sets[k].column, sets[k].key, &job->set[k]));
    return DH_OK;
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i)
{
    row r;
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(read_row(ctx, v, t, i, &r, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    if (step.devices != (double)r.devices)
        return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: its job has %.0f devices, not %lld", t->file,
                       i + 1, step.devices, (long long)r.devices);
    const double rate = step.causal_flops / step.devices / step.ns * 1e-3;
    const double predicted = strcmp(r.what, "s") == 0 ? step.ns * 1e-9 : rate;
    DH_TRY(dh_validation_add(ctx, v, predicted, r.published, "%s, %lld devices, %lld tokens, %s",
                             r.model, (long long)r.devices, (long long)r.seq, r.what));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_held_out(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i));
    return DH_OK;
}
