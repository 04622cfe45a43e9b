/* Zero Bubble schedules made by hand: the weight gradient W is cut off the input gradient
 * I and moved into what were bubbles.
 *
 * ZB-H1 and ZB-H2: "Zero Bubble Pipeline Parallelism" (Qi et al., arXiv 2401.10241), section 2.
 * ZB-V: "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362), figure 3. */
#include "schedule_build.h"

/* ---- ZB-H1 and ZB-H2 ------------------------------------------------------------------------- */

/* A rank starts with `ahead` forwards and then goes I, W, F, with W `late` micro-batches
 * behind I; it holds at most ahead + late activations. */
static void build_one_rank(dh_builder *b, int32_t rank, int32_t m, int32_t ahead, int32_t late)
{
    ahead = DH_MIN(ahead, m);
    for (int32_t j = 0; j < ahead; j++) dh_build_next(b, DH_PIPE_F, rank, j);
    for (int32_t j = 0; j < m; j++) {
        dh_build_next(b, DH_PIPE_I, rank, j);
        if (j >= late) dh_build_next(b, DH_PIPE_W, rank, j - late);
        if (j + ahead < m) dh_build_next(b, DH_PIPE_F, rank, j + ahead);
    }
    for (int32_t j = DH_MAX(0, m - late); j < m; j++) dh_build_next(b, DH_PIPE_W, rank, j);
}

/* H1: as far ahead as 1F1B; W fills up to 1F1B's p activations. Bubble (p-1)(F + I - W). */
static dh_status zb_h1(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                       dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < p; g++) build_one_rank(&b, g, spec->n_micro, p - g, g);
    return dh_builder_finish(ctx, &b, schedule);
}

/* H2: forwards fill the wait for the first I, and W as much at the end, for 2p-1
 * activations. Bubble (p-1)(F + I - 2W) when ranks need not meet between steps. */
static dh_status zb_h2(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                       dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < p; g++) build_one_rank(&b, g, spec->n_micro, 2 * (p - g) - 1, 2 * g);
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- ZB-V ----------------------------------------------------------------------------------- */

/* One rank's two legs of the V, each with its counters of things done. The schedule is made
 * for at least 2p-1 micro-batches; those that do not exist are left out of it. */
typedef struct v_rank {
    dh_builder *b;
    int32_t m;
    int32_t stage[2];
    int32_t f[2], i[2], w[2];
} v_rank;

static void step(v_rank *r, dh_pipe_kind kind, int32_t leg)
{
    int32_t *count = kind == DH_PIPE_F ? r->f : kind == DH_PIPE_I ? r->i : r->w;
    int32_t j = count[leg]++;
    if (j < r->m) dh_build_next(r->b, kind, r->stage[leg], j);
}

static void step_back(v_rank *r, int32_t leg) /* I and its W at once */
{
    step(r, DH_PIPE_I, leg);
    step(r, DH_PIPE_W, leg);
}

static void build_v_rank(v_rank *r, int32_t p, int32_t g, int32_t n)
{
    /* Warm-up: down leg, then both, then the first micro-batches turn round. */
    for (int32_t k = 0; k < 2 * (p - g) - 1; k++) step(r, DH_PIPE_F, 0);
    for (int32_t k = 0; k < g; k++) {
        step(r, DH_PIPE_F, 1);
        step(r, DH_PIPE_F, 0);
    }
    for (int32_t k = 0; k < p - g; k++) {
        step(r, DH_PIPE_F, 1);
        step_back(r, 1);
    }
    /* Steady: one of each. */
    while (r->f[1] < r->f[0] || r->f[0] < n) {
        if (r->f[0] < n) step(r, DH_PIPE_F, 0);
        step_back(r, 0);
        step(r, DH_PIPE_F, 1);
        step_back(r, 1);
    }
    /* Cool-down: input gradients first, their Ws where the rank would wait. */
    for (int32_t k = 0; k < g; k++) {
        step(r, DH_PIPE_I, 0);
        step(r, DH_PIPE_I, 1);
    }
    for (int32_t k = 0; k < p - g; k++) step_back(r, 0);
    while (r->w[1] < r->i[1]) step(r, DH_PIPE_W, 1);
    while (r->w[0] < r->i[0]) step(r, DH_PIPE_W, 0);
}

static dh_status zb_v(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                      dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks, n = DH_MAX(spec->n_micro, 2 * p - 1);
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < p; g++) {
        v_rank r = {.b = &b, .m = spec->n_micro, .stage = {g, 2 * p - 1 - g}};
        build_v_rank(&r, p, g, n);
    }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- rows ----------------------------------------------------------------------------------- */

const dh_schedule_row dh_row_zb_h1 = {
    .name = "zb-h1",
    .doc = "weight gradients fill bubbles, 1F1B's activations (Zero Bubble, arXiv 2401.10241, 2.1)",
    .placement = DH_PLACE_LINEAR,
    .n_chunks = 1,
    .split_backward = true,
    .generate = zb_h1,
};

const dh_schedule_row dh_row_zb_h2 = {
    .name = "zb-h2",
    .doc = "no bubble when F = I = W, 2p-1 activations (Zero Bubble, arXiv 2401.10241, 2.2)",
    .placement = DH_PLACE_LINEAR,
    .n_chunks = 1,
    .split_backward = true,
    .generate = zb_h2,
};

const dh_schedule_row dh_row_zb_v = {
    .name = "zb-v",
    .doc =
        "V-shaped placement, no bubble when F = I = W with 1F1B's activations (arXiv 2405.15362)",
    .placement = DH_PLACE_FOLDED,
    .n_chunks = 2,
    .split_backward = true,
    .generate = zb_v,
};
