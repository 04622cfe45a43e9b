/* Schedules with a whole backward that take micro-batches through a stage one after another: GPipe,
 * breadth-first over several virtual stages, and 1F1B. */
#include "schedule_build.h"

/* ---- GPipe: all forwards, then all backwards ---------------------------------------------- */

static dh_status gpipe(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                       dh_schedule **schedule)
{
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < spec->n_ranks; g++) {
        for (int32_t j = 0; j < spec->n_micro; j++) dh_build_next(&b, DH_PIPE_F, g, j);
        for (int32_t j = 0; j < spec->n_micro; j++) dh_build_next(&b, DH_PIPE_B, g, j);
    }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- breadth-first: GPipe through the virtual stages, one after another -------------------- */

static dh_status looped_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    if (spec->n_chunks >= 2) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "looped-bfs needs at least 2 virtual stages a rank; gpipe is the schedule for "
                   "1");
}

static dh_status looped_bfs(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                            dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks, v = spec->n_chunks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < p; g++) {
        for (int32_t k = 0; k < v; k++)
            for (int32_t j = 0; j < spec->n_micro; j++) dh_build_next(&b, DH_PIPE_F, k * p + g, j);
        for (int32_t k = v - 1; k >= 0; k--)
            for (int32_t j = 0; j < spec->n_micro; j++) dh_build_next(&b, DH_PIPE_B, k * p + g, j);
    }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- 1F1B: a backward as soon as there is one ------------------------------------------------ */

/* In lockstep slots, F(g, j) is at g + 2j and B(g, j) at 2p-1-g + 2j: never at once, and
 * F stays p-g micro-batches ahead. */
static dh_status one_f_one_b(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                             dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < p; g++)
        for (int32_t j = 0; j < spec->n_micro; j++) {
            dh_build_at(&b, g + 2 * (int64_t)j, DH_PIPE_F, g, j);
            dh_build_at(&b, 2 * p - 1 - g + 2 * (int64_t)j, DH_PIPE_B, g, j);
        }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- rows ----------------------------------------------------------------------------------- */

const dh_schedule_row dh_row_gpipe = {
    .name = "gpipe",
    .doc = "all forwards, then all backwards; m activations (GPipe, Huang et al. 2019, 2.3)",
    .placement = DH_PLACE_LINEAR,
    .n_chunks = 1,
    .generate = gpipe,
};

const dh_schedule_row dh_row_looped_bfs = {
    .name = "looped-bfs",
    .doc = "all forwards of one virtual stage after another, then all backwards; m activations of "
           "each (Breadth-First Pipeline Parallelism, arXiv 2211.05953, 3)",
    .placement = DH_PLACE_ROUND_ROBIN,
    .n_chunks = 0,
    .breadth_first = true,
    .applicable = looped_applicable,
    .generate = looped_bfs,
};

const dh_schedule_row dh_row_1f1b = {
    .name = "1f1b",
    .doc = "one forward, one backward; at most p activations (PipeDream-Flush, Narayanan et al. "
           "2021, 2.2)",
    .placement = DH_PLACE_LINEAR,
    .n_chunks = 1,
    .generate = one_f_one_b,
};
