/* Zero Bubble (arXiv 2401.10241), table 4: throughput of four models on 8 to 32 A100, and the most
 * memory of a device, as jobs.
 *
 * ZB-1p and ZB-2p are zb-auto with p and 2p activations, as in tables 5 and 9. Their optimizer is
 * validated after the step (section 4), so a stage goes on to the next step when it has ended its
 * own. Their throughput therefore follows from the longest stage's span, that of other schedules
 * from the whole step. No constant rests on this table. */
#include <string.h>

#include "base/c_locale.h"
#include "validate/zero_bubble_shapes.h"

#define GIB 1073741824.0

typedef struct published_row {
    const char *model, *schedule;
    int64_t n_stages, n_micro, micro_batch;
    double held_share;   /* of an activation, from its I to its W */
    bool overlaps;       /* a step's end, the next one's beginning */
    double samples, gib; /* a second and device; the table's GB are taken as GiB */
} published_row;

static const struct column {
    const char *schedule, *file_end;
    int times; /* activations of zb-auto: stages times this; 0: the file's schedule */
} columns[] = {
    {"1F1B", "", 0},
    {"1F1B-I", "-interleaved", 0},
    {"ZB-1p", "", 1},
    {"ZB-2p", "", 2},
};

static const struct column *column_of(const char *schedule)
{
    for (size_t i = 0; i < DH_COUNTOF(columns); i++)
        if (strcmp(columns[i].schedule, schedule) == 0) return &columns[i];
    return NULL;
}

/* From the table of the models. */
static dh_status find_sizes(dh_ctx *ctx, dh_validation *v, published_row *r)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, "zero_bubble_table3_configs", &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *name;
        DH_TRY(dh_published_text(ctx, &t, i, "model", &name));
        if (strcmp(name, r->model) != 0) continue;
        DH_TRY(dh_published_int(ctx, &t, i, "micro_batch", &r->micro_batch));
        return dh_zero_bubble_held_share(ctx, &t, i, &r->held_share);
    }
    return dh_fail(ctx, DH_EMISSING, "%s has no model %s", t.file, r->model);
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const published_row *r,
                        const struct column *column, dh_shipped_job *job)
{
    char *file = dh_arena_printf(v->arena, "zero-bubble-%s%s", r->model, column->file_end);
    const char *batch =
        dh_arena_printf(v->arena, "train.batch=%lld", (long long)(r->n_micro * r->micro_batch));
    const char *kept = dh_arena_printf(v->arena, "parallel.max_activations=%lld",
                                       (long long)(column->times * r->n_stages));
    const char *held = dh_arena_printf(v->arena, "parallel.wgrad_share=%.4g", r->held_share);
    if (!file || !batch || !kept || !held) return dh_no_memory(ctx);
    dh_to_lower(file);
    *job = (dh_shipped_job){.file = file, .set = {batch}, .cluster = "a100"};
    if (column->times == 0) return DH_OK;
    job->set[1] = "parallel.schedule=zb-auto";
    job->set[2] = kept;
    job->set[3] = held;
    job->set[4] = "system=megatron-2022+overlapping-steps";
    return DH_OK;
}

/* A row's job. */
static dh_status read_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                          published_row *r, dh_shipped_job *job)
{
    DH_TRY(dh_published_text(ctx, t, row, "schedule", &r->schedule));
    const struct column *column = column_of(r->schedule);
    if (!column)
        return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: no schedule is %s", t->file, row + 1,
                       r->schedule);
    DH_TRY(dh_published_text(ctx, t, row, "model", &r->model));
    DH_TRY(dh_published_int(ctx, t, row, "pp_gpus", &r->n_stages));
    DH_TRY(dh_published_int(ctx, t, row, "microbatches", &r->n_micro));
    DH_TRY(dh_published_real(ctx, t, row, "samples_per_gpu_s", &r->samples));
    DH_TRY(dh_published_real(ctx, t, row, "mem_gb", &r->gib));
    DH_TRY(find_sizes(ctx, v, r));
    r->overlaps = column->times > 0;
    return job_of(ctx, v, r, column, job);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                         bool memory)
{
    published_row r = {.model = NULL};
    dh_shipped_job job;
    dh_shipped_step step;
    DH_TRY(read_row(ctx, v, t, row, &r, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    const double n = (double)(r.n_micro * r.micro_batch);
    const double ns = r.overlaps ? step.period_ns : step.ns;
    const double predicted = memory ? step.memory_bytes / GIB : n / step.devices / ns * 1e9;
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
