/* DHelix (arXiv 2411.15871), table 7: what becomes of communication on H100, by tensor-parallel
 * ranks; and 6.5: the largest model that trains on 64 A40.
 *
 * Table 7 does not name its model and mesh. Taken is Llama-39B, the model of section 6.4, over
 * tensor parallelism alone, so that all communication is what the table counts. Its visible parts
 * are slowdown, and launch interval: here every other cause of exposed time.
 *
 * Section 6.5 gives sizes that no row of tables 3 to 5 has. Here layers of Llama-39B are added until
 * the memory of a device is full: memory is linear in them, so two simulations make the line. It says
 * nothing of the optimizer. The sizes do: a second copy of the model takes 40 to 32, as 20 to 16
 * bytes a parameter would. Parameters and gradients (2 bytes each) are then there twice. The
 * optimizer (12 bytes) is there once, and data-parallel ranks do not share it. The two copies do
 * share it, which is ZeRO-1 over them alone. */
#include <string.h>

#include "validate/job.h"

#define PAPER "system=megatron-dhelix strategy=dhelix-paper"

/* ---- table 7 --------------------------------------------------------------------------------- */

static dh_status step_of(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                         int64_t *tp, dh_shipped_job *job, dh_shipped_step *step)
{
    DH_TRY(dh_published_int(ctx, t, row, "tp", tp));
    *job = (dh_shipped_job){.file = "dhelix-llama-39b", .cluster = "h100"};
    const char *sets = dh_arena_printf(
        v->arena, PAPER " parallel.dp=1 parallel.tp=%lld parallel.pp=1 train.batch=16",
        (long long)*tp);
    DH_TRY(dh_shipped_words(ctx, v, job, sets));
    return dh_shipped_step_of(ctx, v, job, step);
}

static dh_status add_part(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                          const char *column, double predicted, const char *label)
{
    int64_t tp;
    double published;
    DH_TRY(dh_published_int(ctx, t, row, "tp", &tp));
    DH_TRY(dh_published_real(ctx, t, row, column, &published));
    DH_TRY(
        dh_validation_add(ctx, v, 100 * predicted, published, "tp %lld %s", (long long)tp, label));
    dh_validation_series(v, label);
    return DH_OK;
}

dh_status dh_validate_dhelix_h100(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        int64_t tp;
        dh_shipped_job job;
        dh_shipped_step step;
        DH_TRY(step_of(ctx, v, &t, i, &tp, &job, &step));
        DH_TRY(add_part(ctx, v, &t, i, "hidden_pct", step.hidden_share, "hidden"));
        DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
    }
    return DH_OK;
}

dh_status dh_validate_dhelix_h100_visible(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        int64_t tp;
        dh_shipped_job job;
        dh_shipped_step step;
        DH_TRY(step_of(ctx, v, &t, i, &tp, &job, &step));
        DH_TRY(add_part(ctx, v, &t, i, "visible_slowdown_pct", step.slowdown_share, "slowdown"));
        DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
        DH_TRY(add_part(ctx, v, &t, i, "visible_launch_interval_pct",
                        1 - step.hidden_share - step.slowdown_share, "launch interval"));
        DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
    }
    return DH_OK;
}

/* ---- section 6.5 ----------------------------------------------------------------------------- */

/* Half-precision gradients, and an optimizer that data-parallel ranks do not share. */
static const struct {
    const char *system, *sets;
} largest[] = {
    {"Megatron-LM", "system=megatron-core+half-gradients parallel.zero=0 train.batch=32"},
    {"DHelix", "system=megatron-dhelix+half-gradients strategy=dhelix-paper parallel.zero=0 "
               "train.batch=32"},
    {"Bidirectional", "system=megatron-dhelix+half-gradients strategy=list "
                      "parallel.schedule=bidirectional parallel.dp=1 train.batch=8"},
};

static dh_status measure_layers(dh_ctx *ctx, dh_validation *v, const char *sets, int layers,
                                dh_shipped_job *job, dh_shipped_step *step)
{
    *job = (dh_shipped_job){.file = "dhelix-llama-39b", .cluster = "a40"};
    DH_TRY(dh_shipped_words(ctx, v, job,
                            dh_arena_printf(v->arena, "%s model.n_layers=%d", sets, layers)));
    return dh_shipped_step_of(ctx, v, job, step);
}

static dh_status add_largest(dh_ctx *ctx, dh_validation *v, const char *system, double published)
{
    dh_shipped_job jobs[2];
    dh_shipped_step less, more;
    size_t i = 0;
    while (i < DH_COUNTOF(largest) && strcmp(largest[i].system, system) != 0) i++;
    if (i == DH_COUNTOF(largest))
        return dh_fail(ctx, DH_EMISSING, "nothing is known of system %s", system);
    DH_TRY(measure_layers(ctx, v, largest[i].sets, 8, &jobs[0], &less));
    DH_TRY(measure_layers(ctx, v, largest[i].sets, 12, &jobs[1], &more));
    const double part =
        (more.device_bytes - less.memory_bytes) / (more.memory_bytes - less.memory_bytes);
    const double params = less.n_params + part * (more.n_params - less.n_params);
    DH_TRY(dh_validation_add(ctx, v, params * 1e-9, published, "%s", system));
    return dh_shipped_name_row(ctx, v, &jobs[1], more.ns);
}

dh_status dh_validate_dhelix_largest(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *system;
        double published;
        DH_TRY(dh_published_text(ctx, &t, i, "system", &system));
        DH_TRY(dh_published_real(ctx, &t, i, "billion", &published));
        DH_TRY(add_largest(ctx, v, system, published));
    }
    return DH_OK;
}
