/* Zero Bubble (arXiv 2401.10241), tables 5 and 9: bubble rates of schedules, from the times of a
 * stage that its authors measured: nothing but the schedules and their clock is tested.
 *
 * Bubble rate = (cost - m (TF + TB + TW)) / cost, where cost is the longest time from a stage's
 * first to its last slot; the optimizer step of ZB schedules needs no common barrier. The
 * interleaved schedule has one layer a chunk (section 5.1): chunks = (layers + 2) / stages, as the
 * first and last stage have one layer fewer. */
#include <math.h>
#include <string.h>

#include "plan/schedule.h"
#include "validate/table.h"

typedef struct measured {
    const char *model;
    int64_t p, m;
    double f_ms, b_ms, w_ms, comm_ms;
    int32_t n_chunks; /* of the interleaved schedule */
} measured;

static dh_status chunks_of(dh_ctx *ctx, dh_arena *arena, measured *x)
{
    dh_published configs;
    DH_TRY(dh_published_read(ctx, arena, "zero_bubble_table3_configs", &configs));
    for (size_t i = 0; i < configs.n_rows; i++) {
        const char *model;
        int64_t layers;
        DH_TRY(dh_published_text(ctx, &configs, i, "model", &model));
        DH_TRY(dh_published_int(ctx, &configs, i, "layers", &layers));
        if (strcmp(model, x->model) == 0) x->n_chunks = (int32_t)((layers + 2) / x->p);
    }
    return x->n_chunks > 0 ? DH_OK
                           : dh_fail(ctx, DH_EMISSING, "no configuration of model %s", x->model);
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
    return chunks_of(ctx, t->arena, x);
}

static int64_t ns(double ms)
{
    return (int64_t)llround(ms * 1e6);
}

/* A schedule of the published column, with the activations it may keep. */
typedef struct column {
    const char *name, *schedule;
    bool chunks;       /* as many virtual stages a rank as chunks */
    int32_t max_times; /* activations: p times this; 0: the schedule's own */
} column;

static dh_status bubble_of(dh_ctx *ctx, const measured *x, const column *col, double *rate)
{
    const dh_schedule_row *row;
    dh_schedule *schedule;
    dh_schedule_timing timing;
    const int32_t n = col->chunks ? x->n_chunks : 1;
    const dh_schedule_costs costs = {
        .every = {.f_ns = ns(x->f_ms / n), .i_ns = ns(x->b_ms / n), .w_ns = ns(x->w_ms / n)},
        .p2p_ns = ns(x->comm_ms)};
    const dh_schedule_spec spec = {.n_ranks = (int32_t)x->p,
                                   .n_micro = (int32_t)x->m,
                                   .n_chunks = n,
                                   .costs = &costs,
                                   .max_activations = col->max_times * (int32_t)x->p};
    DH_TRY(dh_schedule_find(ctx, col->schedule, &row));
    DH_TRY(dh_schedule_generate(ctx, row, &spec, &schedule));
    dh_status st = dh_schedule_time(ctx, schedule, &costs, &timing);
    dh_schedule_destroy(schedule);
    DH_TRY(st);
    const double cost = (double)(row->split_backward ? timing.longest_span_ns : timing.makespan_ns);
    *rate = 1 - (double)x->m * (x->f_ms + x->b_ms + x->w_ms) * 1e6 / cost;
    dh_schedule_timing_fini(&timing);
    return DH_OK;
}

static dh_status run(dh_ctx *ctx, dh_validation *v, const column *columns, size_t n)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        measured x;
        DH_TRY(read_row(ctx, &t, i, &x));
        for (size_t c = 0; c < n; c++) {
            double published, predicted;
            DH_TRY(dh_published_real(ctx, &t, i, columns[c].name, &published));
            DH_TRY(bubble_of(ctx, &x, &columns[c], &predicted));
            DH_TRY(dh_validation_add(ctx, v, predicted, published, "%s p=%lld m=%lld %s", x.model,
                                     (long long)x.p, (long long)x.m, columns[c].name));
        }
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
