/* Zero Bubble (arXiv 2401.10241), tables 5 and 9: bubble rates of schedules. The jobs have the
 * times of a stage that its authors measured, instead of a model. Only the schedules and their
 * clock are tested.
 *
 * The interleaved schedule has one layer a chunk (section 5.1): chunks = (layers + 2) / stages, as
 * the first and last stage have one layer fewer. Of an activation 32 b s h of b s (34 h + 5 a s)
 * wait for W (table 1). */
#include <string.h>

#include "base/c_locale.h"
#include "train/stage_times.h"
#include "validate/zero_bubble_shapes.h"

typedef struct measured {
    const char *model;
    int64_t p, m;
    double f_ms, b_ms, w_ms, comm_ms;
    int64_t n_chunks;  /* chunks of the interleaved schedule */
    double held_share; /* share of an activation held between its I and its W */
} measured;

dh_status dh_zero_bubble_held_share(dh_ctx *ctx, const dh_published *configs, size_t row,
                                    double *share)
{
    int64_t heads, hidden, seq;
    DH_TRY(dh_published_int(ctx, configs, row, "heads", &heads));
    DH_TRY(dh_published_int(ctx, configs, row, "hidden", &hidden));
    DH_TRY(dh_published_int(ctx, configs, row, "seq", &seq));
    *share = 32.0 * (double)hidden / (34.0 * (double)hidden + 5.0 * (double)(heads * seq));
    return DH_OK;
}

static dh_status read_shape(dh_ctx *ctx, const dh_published *t, size_t row, measured *x)
{
    int64_t layers;
    DH_TRY(dh_published_int(ctx, t, row, "layers", &layers));
    x->n_chunks = (layers + 2) / x->p;
    return dh_zero_bubble_held_share(ctx, t, row, &x->held_share);
}

static dh_status find_shape(dh_ctx *ctx, dh_arena *arena, measured *x)
{
    dh_published configs;
    DH_TRY(dh_published_read(ctx, arena, "zero_bubble_table3_configs", &configs));
    for (size_t i = 0; i < configs.n_rows; i++) {
        const char *model;
        DH_TRY(dh_published_text(ctx, &configs, i, "model", &model));
        if (strcmp(model, x->model) == 0) return read_shape(ctx, &configs, i, x);
    }
    return dh_fail(ctx, DH_EMISSING, "no configuration of model %s", x->model);
}

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t row, measured *x)
{
    *x = (measured){0};
    DH_TRY(dh_published_text(ctx, t, row, "model", &x->model));
    DH_TRY(dh_published_int(ctx, t, row, "p", &x->p));
    DH_TRY(dh_published_int(ctx, t, row, "m", &x->m));
    DH_TRY(dh_published_real(ctx, t, row, "TF_ms", &x->f_ms));
    DH_TRY(dh_published_real(ctx, t, row, "TB_ms", &x->b_ms));
    DH_TRY(dh_published_real(ctx, t, row, "TW_ms", &x->w_ms));
    DH_TRY(dh_published_real(ctx, t, row, "Tcomm_ms", &x->comm_ms));
    return find_shape(ctx, t->arena, x);
}

/* A schedule of the published column, with the activations it may keep. */
typedef struct column {
    const char *name, *schedule;
    bool chunks;       /* as many virtual stages a rank as chunks */
    int64_t max_times; /* activations: p times this; 0: the schedule's own */
} column;

static dh_status add_set(dh_ctx *ctx, dh_validation *v, dh_shipped_job *job, const char *key,
                         double value)
{
    size_t n = 0;
    while (job->set[n]) n++;
    DH_CHECK(n < DH_SHIPPED_SETS, "%s is one setting too many", key);
    job->set[n] = dh_arena_printf(v->arena, "%s=%.12g", key, value);
    return job->set[n] ? DH_OK : dh_no_memory(ctx);
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const measured *x, const column *col,
                        dh_shipped_job *job)
{
    const double n = col->chunks ? (double)x->n_chunks : 1;
    char *file = dh_arena_printf(v->arena, "zero-bubble-times-%s", x->model);
    char *schedule = dh_arena_printf(v->arena, "parallel.schedule=%s", col->schedule);
    if (!file || !schedule) return dh_no_memory(ctx);
    dh_to_lower(file);
    *job = (dh_shipped_job){.file = file, .set = {schedule}};
    DH_TRY(add_set(ctx, v, job, "stages.forward_ms", x->f_ms / n));
    DH_TRY(add_set(ctx, v, job, "stages.input_ms", x->b_ms / n));
    DH_TRY(add_set(ctx, v, job, "stages.weight_ms", x->w_ms / n));
    DH_TRY(add_set(ctx, v, job, "stages.transfer_ms", x->comm_ms));
    DH_TRY(add_set(ctx, v, job, "train.batch", (double)x->m));
    if (col->chunks) DH_TRY(add_set(ctx, v, job, "parallel.virtual_stages", n));
    if (col->max_times == 0) return DH_OK;
    DH_TRY(add_set(ctx, v, job, "parallel.max_activations", (double)(col->max_times * x->p)));
    return add_set(ctx, v, job, "parallel.wgrad_share", x->held_share);
}

static dh_status add_cell(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                          const measured *x, const column *col)
{
    double published;
    dh_shipped_job job;
    dh_shipped_run run;
    dh_stage_times times;
    DH_TRY(dh_published_real(ctx, t, row, col->name, &published));
    DH_TRY(job_of(ctx, v, x, col, &job));
    dh_status st = dh_shipped_read(ctx, v, &job, &run);
    if (st == DH_OK) {
        st = dh_stage_times_find(ctx, run.job, &times);
        if (st == DH_OK)
            st = dh_validation_add(ctx, v, times.bubble, published, "%s p=%lld m=%lld %s", x->model,
                                   (long long)x->p, (long long)x->m, col->name);
        if (st == DH_OK) st = dh_shipped_name_row(ctx, v, &job, (double)times.step_ns);
        dh_stage_times_fini(&times);
    }
    dh_shipped_fini(&run);
    return st;
}

static dh_status run(dh_ctx *ctx, dh_validation *v, const column *columns, size_t n)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        measured x;
        DH_TRY(read_row(ctx, &t, i, &x));
        for (size_t c = 0; c < n; c++) DH_TRY(add_cell(ctx, v, &t, i, &x, &columns[c]));
    }
    return DH_OK;
}

dh_status dh_validate_zero_bubble(dh_ctx *ctx, dh_validation *v)
{
    static const column columns[] = {{"1F1B", "1f1b", false, 0},
                                     {"1F1B-I", "interleaved-1f1b", true, 0}};
    return run(ctx, v, columns, DH_COUNTOF(columns));
}

dh_status dh_validate_zero_bubble_split(dh_ctx *ctx, dh_validation *v)
{
    static const column columns[] = {{"ZB-H1", "zb-h1", false, 0},
                                     {"ZB-H2", "zb-h2", false, 0},
                                     {"ZB-1p", "zb-auto", false, 1},
                                     {"ZB-2p", "zb-auto", false, 2}};
    return run(ctx, v, columns, DH_COUNTOF(columns));
}
