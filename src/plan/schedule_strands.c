/* Schedules whose slots co-execute two strands: a forward and the backward of another
 * micro-batch that visit the ranks in the same direction.
 *
 * All are formulas for lockstep slots. A wave enters a rank path at slot 2w + offset and
 * moves one rank a slot; it carries one forward, one backward, or both. Two waves
 * that pass a rank have slots of different parity, so they never collide. */
#include "schedule_build.h"

/* ---- dhelix-w: folded, W-shaped ------------------------------------------------------------- */

/* DHelix (arXiv 2411.15871), figure 8. A wave runs down the ranks and up
 * again: 2p steps. Wave w carries the forward of micro-batch w through virtual stages
 * 0..2p-1, and the backward of micro-batch w-p through 2p-1..0. On the folded
 * placement stages k and 2p-1-k share a rank, so both are on one rank at every step
 * and become an SI block. The lag p is the least possible: the forward of j leaves its
 * last step, on rank 0, one slot before wave j+p enters there. This holds for every p
 * and m, with any remainder.
 *
 * Between slots a rank holds at most 2 min(p, m) activations of half a stage each. That is the p
 * stages of 1F1B's first rank. Inside an SI block one more grows while one shrinks.
 *
 * Let F, B and SI block of one virtual stage take f, b and c >= max(f, b). For m > p the time is
 * 2p (f + b) + 2 (m-1) c. The paper's bubble ratio (p-1)/(m-1+p s) follows, with
 * s = (f + b)/c. For m <= p no block forms and max(f, b) takes the place of c. */
static dh_status dhelix_w(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                          dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t j = 0; j < spec->n_micro; j++)
        for (int32_t step = 0; step < 2 * p; step++) {
            dh_build_at(&b, 2 * (int64_t)j + step, DH_PIPE_F, step, j);
            dh_build_at(&b, 2 * (int64_t)(j + p) + step, DH_PIPE_B, 2 * p - 1 - step, j);
        }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- bidirectional: two model copies in opposite directions --------------------------------- */

/* Even micro-batches run through copy 0 (rank g = stage g), odd ones through copy 1 (rank
 * g = stage p-1-g). Down waves, at slot 2w + g, carry forwards of copy 0 and backwards of
 * copy 1; up waves, at 2w + (p odd) + p-1-g, the other two. A backward takes the first
 * wave after its forward has arrived: floor(p/2) waves later for copy 0, ceil(p/2) for copy 1.
 *
 * Activations: between slots at most p, as in 1F1B. */
static dh_status bidirectional(dh_ctx *ctx, const dh_schedule_row *row,
                               const dh_schedule_spec *spec, dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks, odd = p % 2;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t j = 0; j < spec->n_micro; j++) {
        const int32_t copy = j % 2;
        const int64_t f_wave = j / 2, b_wave = f_wave + (copy == 0 ? p / 2 : (p + 1) / 2);
        const int32_t f_offset = copy == 0 ? 0 : odd, b_offset = copy == 0 ? odd : 0;
        b.schedule->copy_of[j] = copy;
        for (int32_t step = 0; step < p; step++) {
            dh_build_at(&b, 2 * f_wave + f_offset + step, DH_PIPE_F, step, j);
            dh_build_at(&b, 2 * b_wave + b_offset + step, DH_PIPE_B, p - 1 - step, j);
        }
    }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- wavelet: tick and tock ----------------------------------------------------------------- */

/* Wavelet (Wang et al., MLSys 2021): tick and tock copies of the model share the devices.
 * Tock runs half a period later, so that its forward meets tick's backward. Both copies
 * follow 1F1B's lockstep slots, tock one slot later. F of one copy is at g + 2j (+ 1), B of the
 * other at 2p-1-g + 2j (+ 1). Every slot of the steady phase holds one of each.
 *
 * Activations: 1F1B's for each copy, so up to 2p. */
static dh_status wavelet(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                         dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks;
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    for (int32_t j = 0; j < spec->n_micro; j++) {
        const int32_t tock = j % 2;
        const int64_t entry = 2 * (int64_t)(j / 2) + tock;
        b.schedule->copy_of[j] = tock;
        for (int32_t g = 0; g < p; g++) {
            dh_build_at(&b, entry + g, DH_PIPE_F, g, j);
            dh_build_at(&b, entry + (2 * p - 1 - g), DH_PIPE_B, g, j);
        }
    }
    return dh_builder_finish(ctx, &b, schedule);
}

/* ---- rows ----------------------------------------------------------------------------------- */

const dh_schedule_row dh_row_dhelix_w = {
    .name = "dhelix-w",
    .doc = "folded model, W-shaped waves of SI blocks; one strand's activations (DHelix, arXiv "
           "2411.15871, figure 8)",
    .placement = DH_PLACE_FOLDED,
    .n_chunks = 2,
    .pairs = true,
    .generate = dhelix_w,
};

const dh_schedule_row dh_row_bidirectional = {
    .name = "bidirectional",
    .doc = "two model copies in opposite directions, co-executed (Chimera, Li and Hoefler 2021; "
           "compared in arXiv 2411.15871)",
    .placement = DH_PLACE_BIDIRECTIONAL,
    .n_chunks = 1,
    .pairs = true,
    .generate = bidirectional,
};

const dh_schedule_row dh_row_wavelet = {
    .name = "wavelet",
    .doc =
        "tick and tock copies of the model half a period apart, no folding (Wavelet, Wang et al. "
        "2021)",
    .placement = DH_PLACE_PARALLEL,
    .n_chunks = 1,
    .pairs = true,
    .generate = wavelet,
};
