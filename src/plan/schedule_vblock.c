/* V-Min and V-Half of "Pipeline Parallelism with Controllable Memory" (Qi et al., arXiv
 * 2405.15362). The less time passes between an activation's birth and its death, the fewer
 * live at once.
 *
 * A building block says when one micro-batch visits the two legs of the V on each rank, in
 * lockstep slots of equal F, I and W. Repeated every 6 slots (2 F, 2 I, 2 W) it never
 * meets itself; weight gradients take the free slots, first in first out. The authors also
 * move actions of warm-up and cool-down forward into gaps. Here only executing the lists
 * does that. Memory is the same, the bubble a little longer. */
#include <stdlib.h>

#include "schedule_build.h"

enum { PERIOD = 6, N_VISITS = 4 };

typedef struct visit {
    dh_pipe_kind kind;
    int32_t stage;
    int64_t slot; /* of micro-batch 0 */
} visit;

/* F down, F up, I down, I up, of rank g. */
typedef void (*building_block)(int32_t p, int32_t g, visit visits[N_VISITS]);

/* Everything travels at one rank a slot. The pause lets repeated blocks pass each other. */
static void v_min_block(int32_t p, int32_t g, visit visits[N_VISITS])
{
    const int64_t pause = p % 3 == 0 ? 2 : 0;
    visits[0] = (visit){DH_PIPE_F, g, g};
    visits[1] = (visit){DH_PIPE_F, 2 * p - 1 - g, (int64_t)2 * p - 1 - g};
    visits[2] = (visit){DH_PIPE_I, 2 * p - 1 - g, (int64_t)2 * p + pause + g};
    visits[3] = (visit){DH_PIPE_I, g, (int64_t)4 * p + pause - 1 - g};
}

/* Down at half speed, up at full speed. */
static void v_half_block(int32_t p, int32_t g, visit visits[N_VISITS])
{
    const int64_t pause = p % 2 == 0 ? 3 : 0;
    visits[0] = (visit){DH_PIPE_F, g, (int64_t)2 * g};
    visits[1] = (visit){DH_PIPE_F, 2 * p - 1 - g, (int64_t)3 * p - 2 - g};
    visits[2] = (visit){DH_PIPE_I, 2 * p - 1 - g, (int64_t)3 * p + pause - 1 + 2 * (int64_t)g};
    visits[3] = (visit){DH_PIPE_I, g, (int64_t)6 * p + pause - 2 - g};
}

/* The visit that a slot belongs to, and its micro-batch; NULL: the slot is free. */
static const visit *visit_at(const visit visits[N_VISITS], int64_t slot, int32_t m, int32_t *micro)
{
    for (int k = 0; k < N_VISITS; k++) {
        int64_t since = slot - visits[k].slot;
        if (since < 0 || since % PERIOD != 0 || since / PERIOD >= m) continue;
        *micro = (int32_t)(since / PERIOD);
        return &visits[k];
    }
    return NULL;
}

/* late: room for 2m weight gradients. */
static void build_rank(dh_builder *b, int32_t m, const visit visits[N_VISITS], dh_pipe_action *late)
{
    int32_t n_late = 0, n_done = 0;
    for (int64_t slot = 0; n_done < 2 * m; slot++) {
        int32_t micro;
        const visit *at = visit_at(visits, slot, m, &micro);
        if (at) {
            dh_build_at(b, slot, at->kind, at->stage, micro);
            if (at->kind == DH_PIPE_I)
                late[n_late++] = (dh_pipe_action){DH_PIPE_W, at->stage, micro};
        } else if (n_done < n_late) {
            dh_pipe_action w = late[n_done++];
            dh_build_at(b, slot, w.kind, w.stage, w.micro);
        }
    }
}

static dh_status repeat(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                        building_block block, dh_schedule **schedule)
{
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    dh_pipe_action *late = calloc(2 * (size_t)spec->n_micro, sizeof *late);
    b.out_of_memory = !late;
    for (int32_t g = 0; g < spec->n_ranks && late; g++) {
        visit visits[N_VISITS];
        block(spec->n_ranks, g, visits);
        build_rank(&b, spec->n_micro, visits, late);
    }
    free(late);
    return dh_builder_finish(ctx, &b, schedule);
}

static dh_status v_min(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                       dh_schedule **schedule)
{
    return repeat(ctx, row, spec, v_min_block, schedule);
}

static dh_status v_half(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                        dh_schedule **schedule)
{
    return repeat(ctx, row, spec, v_half_block, schedule);
}

/* ---- rows ---------------------------------------------------------------------------------- */

const dh_schedule_row dh_row_v_half = {
    .name = "v-half",
    .doc = "V-shaped placement, half of 1F1B's activations (arXiv 2405.15362)",
    .placement = DH_PLACE_FOLDED,
    .n_chunks = 2,
    .split_backward = true,
    .generate = v_half,
};

const dh_schedule_row dh_row_v_min = {
    .name = "v-min",
    .doc = "V-shaped placement, a third of 1F1B's activations (arXiv 2405.15362)",
    .placement = DH_PLACE_FOLDED,
    .n_chunks = 2,
    .split_backward = true,
    .generate = v_min,
};
