/* 1F1B over several virtual stages a rank: interleaved 1F1B, the same with separate weight
 * gradients, and combined 1F1B. Combined 1F1B has a forward and a backward in one slot.
 *
 * All three take micro-batches in rounds. A round passes all chunks of a rank before the next one
 * starts, and backwards begin with the last chunk. There are m / p rounds, rounded down. A round
 * has p micro-batches if p divides their number, else up to 2p - 1 (as in
 * torch.distributed.pipelining). */
#include "schedule_build.h"

/* ---- rounds ---------------------------------------------------------------------------------- */

static int32_t n_rounds(const dh_schedule_spec *spec)
{
    return DH_MAX(1, spec->n_micro / spec->n_ranks);
}

static int32_t round_of(const dh_schedule_spec *spec)
{
    return spec->n_micro / n_rounds(spec);
}

static dh_status check_rounds(dh_ctx *ctx, const char *name, const dh_schedule_spec *spec)
{
    const int32_t p = spec->n_ranks, m = spec->n_micro, n = n_rounds(spec);
    if (m % n == 0) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "%s: %d micro-batches are no multiple of %d, the rounds of %d pipeline stages "
                   "that fit into them; %d would be",
                   name, m, n, p, (m + p - 1) / p * p);
}

/* The k-th forward, or backward or part of one, of a rank. */
static dh_pipe_action kth(const dh_schedule_spec *spec, dh_pipe_kind kind, int32_t rank, int32_t k)
{
    const int32_t v = spec->n_chunks, round = round_of(spec);
    const int32_t in_round = k % (round * v), place = in_round / round;
    const int32_t chunk = kind == DH_PIPE_F ? place : v - 1 - place;
    return (dh_pipe_action){kind, chunk * spec->n_ranks + rank,
                            k / (round * v) * round + in_round % round};
}

static void build_kth(dh_builder *b, const dh_schedule_spec *spec, dh_pipe_kind kind, int32_t rank,
                      int32_t k)
{
    const dh_pipe_action a = kth(spec, kind, rank, k);
    dh_build_next(b, a.kind, a.stage, a.micro);
}

static dh_status needs_chunks(dh_ctx *ctx, const char *name, const char *plain,
                              const dh_schedule_spec *spec)
{
    if (spec->n_chunks < 2)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "%s needs at least 2 virtual stages a rank; %s is the schedule for 1", name,
                       plain);
    return check_rounds(ctx, name, spec);
}

/* ---- interleaved 1F1B ------------------------------------------------------------------------ */

static dh_status interleaved_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    return needs_chunks(ctx, "interleaved-1f1b", "1f1b", spec);
}

/* Forwards before the first backward. One round passes all chunks except the last. Twice the
 * distance to the last rank makes the backward ready when its turn comes. */
static int32_t warmup_of(const dh_schedule_spec *spec, int32_t rank)
{
    return 2 * (spec->n_ranks - 1 - rank) + (spec->n_chunks - 1) * round_of(spec);
}

static dh_status interleaved(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                             dh_schedule **schedule)
{
    const int32_t total = spec->n_micro * spec->n_chunks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < spec->n_ranks; g++) {
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

/* ---- interleaved Zero Bubble ----------------------------------------------------------------- */

static dh_status interleaved_zb_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    return needs_chunks(ctx, "interleaved-zb", "zb-h1", spec);
}

/* As ZB-H1 with one chunk. A rank runs as many forwards before its first input gradient as there
 * are ranks after it. Weight gradients follow their input gradients by as many as there are ranks
 * before it. A rank holds p activations, and a round for each chunk except the last. */
static dh_status interleaved_zb(dh_ctx *ctx, const dh_schedule_row *row,
                                const dh_schedule_spec *spec, dh_schedule **schedule)
{
    const int32_t total = spec->n_micro * spec->n_chunks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t g = 0; g < spec->n_ranks; g++) {
        const int32_t ahead = spec->n_ranks - 1 - g + (spec->n_chunks - 1) * round_of(spec);
        const int32_t warmup = DH_MIN(total, ahead);
        for (int32_t k = 0; k < warmup; k++) build_kth(&b, spec, DH_PIPE_F, g, k);
        for (int32_t k = 0; k < total; k++) {
            if (k + warmup < total) build_kth(&b, spec, DH_PIPE_F, g, k + warmup);
            build_kth(&b, spec, DH_PIPE_I, g, k);
            if (k >= g) build_kth(&b, spec, DH_PIPE_W, g, k - g);
        }
        for (int32_t k = DH_MAX(0, total - g); k < total; k++) build_kth(&b, spec, DH_PIPE_W, g, k);
    }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- combined 1F1B -------------------------------------------------------------------------- */

static dh_status combined_applicable(dh_ctx *ctx, const dh_schedule_spec *spec)
{
    return spec->n_chunks == 1 ? DH_OK : check_rounds(ctx, "combined-1f1b", spec);
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

const dh_schedule_row dh_row_interleaved = {
    .name = "interleaved-1f1b",
    .doc = "1F1B over several virtual stages a rank, bubble divided by their number (Megatron-LM, "
           "Narayanan et al. 2021, 2.2.2)",
    .placement = DH_PLACE_ROUND_ROBIN,
    .n_chunks = 0,
    .applicable = interleaved_applicable,
    .generate = interleaved,
};

const dh_schedule_row dh_row_interleaved_zb = {
    .name = "interleaved-zb",
    .doc = "zb-h1 over several virtual stages a rank (ScheduleInterleavedZeroBubble of PyTorch, "
           "after arXiv 2401.10241)",
    .placement = DH_PLACE_ROUND_ROBIN,
    .n_chunks = 0,
    .split_backward = true,
    .applicable = interleaved_zb_applicable,
    .generate = interleaved_zb,
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
