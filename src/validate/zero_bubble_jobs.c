/* Zero Bubble (arXiv 2401.10241), table 4: throughput of four models on 8 to 32 A100, and the most
 * memory of a device, as jobs.
 *
 * ZB-1p is zb-h1, whose bubble rates table 5 has too; ZB-2p is left out, as a job cannot say how
 * many activations zb-auto may keep. No constant rests on this table. */
#include <ctype.h>
#include <string.h>

#include "validate/job.h"

#define GIB 1073741824.0

typedef struct published_row {
    const char *model, *schedule;
    int64_t n_micro, micro_batch;
    double samples, gib; /* a second and device; the table's GB are taken as GiB */
} published_row;

static const struct column {
    const char *schedule, *file_end, *set;
} columns[] = {
    {"1F1B", "", NULL},
    {"1F1B-I", "-interleaved", NULL},
    {"ZB-1p", "", "parallel.schedule=zb-h1"},
};

static const struct column *column_of(const char *schedule)
{
    for (size_t i = 0; i < DH_COUNTOF(columns); i++)
        if (strcmp(columns[i].schedule, schedule) == 0) return &columns[i];
    return NULL;
}

/* Sequences of a micro-batch, from the table of the models. */
static dh_status micro_batch_of(dh_ctx *ctx, dh_validation *v, const char *model,
                                int64_t *micro_batch)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, "zero_bubble_table3_configs", &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *name;
        DH_TRY(dh_published_text(ctx, &t, i, "model", &name));
        if (strcmp(name, model) == 0)
            return dh_published_int(ctx, &t, i, "micro_batch", micro_batch);
    }
    return dh_fail(ctx, DH_EMISSING, "%s has no model %s", t.file, model);
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const char *model,
                        const struct column *column, int64_t batch, dh_shipped_job *job)
{
    char *file = dh_arena_printf(v->arena, "zero-bubble-%s%s", model, column->file_end);
    const char *set = dh_arena_printf(v->arena, "train.batch=%lld", (long long)batch);
    if (!file || !set) return dh_fail(ctx, DH_ENOMEM, "out of memory validating");
    for (char *c = file; *c; c++) *c = (char)tolower((unsigned char)*c);
    *job = (dh_shipped_job){.file = file, .set = {set, column->set}, .cluster = "a100"};
    return DH_OK;
}

/* A row's job; job->file NULL: its schedule is none of ours. */
static dh_status read_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                          published_row *r, dh_shipped_job *job)
{
    *job = (dh_shipped_job){.file = NULL};
    DH_TRY(dh_published_text(ctx, t, row, "schedule", &r->schedule));
    const struct column *column = column_of(r->schedule);
    if (!column) return DH_OK;
    DH_TRY(dh_published_text(ctx, t, row, "model", &r->model));
    DH_TRY(dh_published_int(ctx, t, row, "microbatches", &r->n_micro));
    DH_TRY(dh_published_real(ctx, t, row, "samples_per_gpu_s", &r->samples));
    DH_TRY(dh_published_real(ctx, t, row, "mem_gb", &r->gib));
    DH_TRY(micro_batch_of(ctx, v, r->model, &r->micro_batch));
    return job_of(ctx, v, r->model, column, r->n_micro * r->micro_batch, job);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                         bool memory)
{
    published_row r = {.model = NULL};
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(read_row(ctx, v, t, row, &r, &job));
    if (!job.file) return DH_OK;
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    const double n = (double)(r.n_micro * r.micro_batch);
    const double predicted = memory ? step.memory_bytes / GIB : n / step.devices / step.ns * 1e9;
    DH_TRY(dh_validation_add(ctx, v, predicted, memory ? r.gib : r.samples, "%s m=%lld %s", r.model,
                             (long long)r.n_micro, r.schedule));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

static dh_status run(dh_ctx *ctx, dh_validation *v, bool memory)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_row(ctx, v, &t, i, memory));
    return DH_OK;
}

dh_status dh_validate_zero_bubble_jobs(dh_ctx *ctx, dh_validation *v)
{
    return run(ctx, v, false);
}

dh_status dh_validate_zero_bubble_memory(dh_ctx *ctx, dh_validation *v)
{
    return run(ctx, v, true);
}
