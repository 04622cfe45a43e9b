/* DualPipe (DeepSeek-V3 technical report, arXiv 2412.19437, 3.2.1), and DualPipeV, which is
 * Sea AI Lab's cut in half of it.
 *
 * Every rank serves two lanes: lane 0 enters the pipeline near it, lane 1 arrives from the far
 * end. In the main phase, a forward of one lane is co-executed with a backward of the
 * other. DualPipe: two model copies in opposite directions, and rank g and p-1-g are mirror
 * images. DualPipeV is one half of that: one copy on a folded placement, the lanes are
 * the legs of the V. One generator serves both, with h = half the ranks, or all of them.
 *
 * It is made for at least 2h micro-batches a lane. Missing ones are left out. */
#include <stdlib.h>

#include "schedule_build.h"

typedef struct lane {
    int32_t stage;
    int32_t first, n; /* micro-batches of the lane */
    int32_t f, b;     /* forwards and backwards counted so far */
} lane;

typedef struct dual_rank {
    dh_builder *b;
    lane lanes[2];
    dh_pipe_action *late; /* weight gradients still to do, first in first out */
    size_t n_late, next_late;
} dual_rank;

static void forward(dual_rank *r, int32_t of)
{
    lane *l = &r->lanes[of];
    int32_t j = l->f++;
    if (j < l->n) dh_build_next(r->b, DH_PIPE_F, l->stage, l->first + j);
}

static void backward(dual_rank *r, int32_t of, bool split)
{
    lane *l = &r->lanes[of];
    int32_t j = l->b++;
    if (split) /* a place in the queue even for one that does not exist: keeps the count */
        r->late[r->n_late++] = (dh_pipe_action){DH_PIPE_W, j < l->n ? l->stage : -1, l->first + j};
    if (j < l->n) dh_build_next(r->b, split ? DH_PIPE_I : DH_PIPE_B, l->stage, l->first + j);
}

static void weight(dual_rank *r)
{
    dh_pipe_action w = r->late[r->next_late++];
    if (w.stage >= 0) dh_build_next(r->b, w.kind, w.stage, w.micro);
}

static void both(dual_rank *r, int32_t f_of, int32_t b_of)
{
    lane *fl = &r->lanes[f_of], *bl = &r->lanes[b_of];
    if (fl->f < fl->n && bl->b < bl->n) {
        dh_build_next_pair(r->b, fl->stage, fl->first + fl->f++, bl->stage, bl->first + bl->b++);
        return;
    }
    forward(r, f_of);
    backward(r, b_of, false);
}

/* n: micro-batches of a lane, at least 2h; i: distance of the rank from the end where lane 0
 * enters, the lanes meet at i = h-1. */
static void build_rank(dual_rank *r, int32_t h, int32_t i, int32_t n)
{
    const int32_t to_middle = h - 1 - i;
    for (int32_t k = 0; k < 2 * to_middle; k++) forward(r, 0);
    for (int32_t k = 0; k < i + 1; k++) {
        forward(r, 0);
        forward(r, 1);
    }
    for (int32_t k = 0; k < to_middle; k++) {
        backward(r, 1, true);
        weight(r);
        forward(r, 1);
    }
    for (int32_t k = 0; k < n - 2 * h + i + 1; k++) { /* the main phase */
        if (k == 0 && to_middle == 0) { /* the middle starts one by one: a shorter warm-up */
            forward(r, 0);
            backward(r, 1, false);
        } else {
            both(r, 0, 1);
        }
        both(r, 1, 0);
    }
    for (int32_t k = 0; k < to_middle; k++) {
        backward(r, 1, false);
        both(r, 1, 0);
    }
    const int32_t half = (i + 1) / 2; /* from here on W is left for later */
    for (int32_t k = 0; k < i + 1; k++) {
        backward(r, 1, i % 2 ? k >= half : k > half);
        backward(r, 0, k >= half);
    }
    for (int32_t k = 0; k < to_middle; k++) {
        weight(r);
        backward(r, 0, true);
    }
    while (r->next_late < r->n_late) weight(r);
}

/* Build all ranks; lanes(rank) says what the two lanes of a rank are. */
typedef void (*lanes_of)(const dh_schedule *s, int32_t rank, lane lanes[2]);

static dh_status build_all(dh_ctx *ctx, dh_builder *b, int32_t h, int32_t n, lanes_of lanes,
                           dh_schedule **schedule)
{
    const int32_t p = b->schedule->n_ranks;
    dh_pipe_action *late = calloc(2 * (size_t)n, sizeof *late);
    b->out_of_memory = !late;
    for (int32_t g = 0; g < p && late; g++) {
        dual_rank r = {.b = b, .late = late};
        lanes(b->schedule, g, r.lanes);
        build_rank(&r, h, h < p ? DH_MIN(g, p - 1 - g) : g, n);
    }
    free(late);
    return dh_builder_finish(ctx, b, schedule);
}

/* ---- DualPipe ------------------------------------------------------------------------------- */

static dh_status dualpipe_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    if (spec->n_ranks % 2 == 0) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "dualpipe: %d pipeline stages; ranks come in mirrored pairs, so the number must "
                   "be even (dualpipev takes any)",
                   spec->n_ranks);
}

/* The first half of the micro-batches runs along the ranks, the rest against them. */
static void dualpipe_lanes(const dh_schedule *s, int32_t g, lane lanes[2])
{
    const int32_t p = s->n_ranks, m = s->n_micro, along = (m + 1) / 2;
    const int32_t far = g < p / 2; /* the lane of the copy that enters at the last rank */
    lanes[1 - far] = (lane){.stage = g, .first = 0, .n = along};
    lanes[far] = (lane){.stage = p - 1 - g, .first = along, .n = m - along};
}

static dh_status dualpipe(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                          dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks, along = (spec->n_micro + 1) / 2;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t j = along; j < spec->n_micro; j++) b.schedule->copy_of[j] = 1;
    return build_all(ctx, &b, p / 2, DH_MAX(along, p), dualpipe_lanes, schedule);
}

/* ---- DualPipeV ------------------------------------------------------------------------------ */

static void dualpipev_lanes(const dh_schedule *s, int32_t g, lane lanes[2])
{
    lanes[0] = (lane){.stage = g, .n = s->n_micro};
    lanes[1] = (lane){.stage = 2 * s->n_ranks - 1 - g, .n = s->n_micro};
}

static dh_status dualpipev(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                           dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    return build_all(ctx, &b, p, DH_MAX(spec->n_micro, 2 * p), dualpipev_lanes, schedule);
}

/* ---- rows ----------------------------------------------------------------------------------- */

const dh_schedule_row dh_row_dualpipe = {
    .name = "dualpipe",
    .doc = "two model copies in opposite directions, F and B co-executed in the main phase, p+1 "
           "activations "
           "(DeepSeek-V3, arXiv 2412.19437, 3.2.1)",
    .placement = DH_PLACE_BIDIRECTIONAL,
    .n_chunks = 1,
    .pairs = true,
    .split_backward = true,
    .applicable = dualpipe_applicable,
    .generate = dualpipe,
};

const dh_schedule_row dh_row_dualpipev = {
    .name = "dualpipev",
    .doc = "DualPipe on a V-shaped placement with one model copy (DeepSeek's DualPipe repository)",
    .placement = DH_PLACE_FOLDED,
    .n_chunks = 2,
    .pairs = true,
    .split_backward = true,
    .generate = dualpipev,
};
