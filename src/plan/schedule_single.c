/* Schedules with a whole backward whose micro-batches are processed in turn: GPipe, 1F1B,
 * interleaved 1F1B, and 1F1B with the forward and the backward of its steady phase in one slot. */
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

/* ---- interleaved 1F1B ----------------------------------------------------------------------- */

/* The k-th forward (or backward) of a rank: micro-batches go in groups of p, and a group
 * passes all chunks before the next one starts; backwards begin with the last chunk. */
static dh_pipe_action kth(const dh_schedule_spec *spec, dh_pipe_kind kind, int32_t rank, int32_t k)
{
    const int32_t p = spec->n_ranks, v = spec->n_chunks;
    const int32_t group = k / (p * v), in_group = k % (p * v);
    const int32_t chunk = kind == DH_PIPE_F ? in_group / p : v - 1 - in_group / p;
    return (dh_pipe_action){kind, chunk * p + rank, group * p + in_group % p};
}

static void build_kth(dh_builder *b, const dh_schedule_spec *spec, dh_pipe_kind kind, int32_t rank,
                      int32_t k)
{
    const dh_pipe_action a = kth(spec, kind, rank, k);
    dh_build_next(b, a.kind, a.stage, a.micro);
}

static dh_status check_groups(dh_ctx *ctx, const char *name, const dh_schedule_spec *spec)
{
    const int32_t p = spec->n_ranks, m = spec->n_micro;
    if (m % p == 0) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "%s: %d micro-batches are no multiple of %d pipeline stages; %d would be", name,
                   m, p, (m + p - 1) / p * p);
}

static dh_status interleaved_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    if (spec->n_chunks < 2)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "interleaved-1f1b needs at least 2 virtual stages a rank; 1f1b is the "
                       "schedule for 1");
    return check_groups(ctx, "interleaved-1f1b", spec);
}

/* Forwards before the first backward: twice the distance to the last rank, so that the backward is
 * ready when its turn comes, and one group through all chunks but the last. */
static int32_t warmup_of(const dh_schedule_spec *spec, int32_t rank)
{
    const int32_t p = spec->n_ranks;
    return 2 * (p - 1 - rank) + (spec->n_chunks - 1) * p;
}

static dh_status interleaved(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                             dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks, v = spec->n_chunks, total = spec->n_micro * v;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < p; g++) {
        const int32_t warmup = DH_MIN(total, warmup_of(spec, g));
        int32_t k = 0;
        while (k < warmup) build_kth(&b, spec, DH_PIPE_F, g, k++);
        for (; k < total; k++) {
            build_kth(&b, spec, DH_PIPE_F, g, k);
            build_kth(&b, spec, DH_PIPE_B, g, k - warmup);
        }
        for (k = total - warmup; k < total; k++) build_kth(&b, spec, DH_PIPE_B, g, k);
    }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- combined 1F1B -------------------------------------------------------------------------- */

static dh_status combined_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    return spec->n_chunks == 1 ? DH_OK : check_groups(ctx, "combined-1f1b", spec);
}

/* One forward more before the first backward, and no forward of a slot needs its backward, nor the
 * other way round. With one virtual stage a rank that is 1F1B with warm-up slots for both ways. */
static dh_status combined(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                          dh_schedule **schedule)
{
    const int32_t total = spec->n_micro * spec->n_chunks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < spec->n_ranks; g++) {
        const int32_t warmup = DH_MIN(total, warmup_of(spec, g) + 1);
        for (int32_t k = 0; k < warmup; k++) build_kth(&b, spec, DH_PIPE_F, g, k);
        for (int32_t k = warmup; k < total; k++) {
            const dh_pipe_action f = kth(spec, DH_PIPE_F, g, k);
            const dh_pipe_action back = kth(spec, DH_PIPE_B, g, k - warmup);
            dh_build_next_pair(&b, f.stage, f.micro, back.stage, back.micro);
        }
        for (int32_t k = total - warmup; k < total; k++) build_kth(&b, spec, DH_PIPE_B, g, k);
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

const dh_schedule_row dh_row_1f1b = {
    .name = "1f1b",
    .doc = "one forward, one backward; at most p activations (PipeDream-Flush, Narayanan et al. "
           "2021, 2.2)",
    .placement = DH_PLACE_LINEAR,
    .n_chunks = 1,
    .generate = one_f_one_b,
};

const dh_schedule_row dh_row_interleaved = {
    .name = "interleaved-1f1b",
    .doc = "1F1B over several virtual stages a rank, bubble divided by their number (Megatron-LM, "
           "Narayanan et al. 2021, 2.2.2)",
    .placement = DH_PLACE_ROUND_ROBIN,
    .n_chunks = 0,
    .applicable = interleaved_applicable,
    .generate = interleaved,
};

const dh_schedule_row dh_row_combined = {
    .name = "combined-1f1b",
    .doc =
        "1F1B, interleaved or not, its forwards and backwards co-executed after one forward more "
        "(Megatron-Core, combined_1f1b)",
    .placement = DH_PLACE_ROUND_ROBIN,
    .n_chunks = 0,
    .pairs = true,
    .applicable = combined_applicable,
    .generate = combined,
};
