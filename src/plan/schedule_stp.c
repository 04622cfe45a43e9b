/* STP, synergistic tensor and pipeline parallelism (arXiv 2510.27257, section 4; open code
 * MICLAB-BUPT/STP). The placement is V-shaped, with two virtual stages a rank. Where two
 * micro-batches can share a slot, the all-reduces of one run during the computation of the other.
 *
 * Rank g of p first runs forwards that fill the pipeline, then forwards paired with forwards. A
 * forward with an input gradient and one with the remaining weight gradient follow. In the steady
 * phase forwards are paired with whole backwards. At the end backwards are split, so that weight
 * gradients fill the bubbles. It is made for at least 3p - 1 micro-batches. Missing ones are left
 * out.
 *
 * Exposed are the all-reduces of lone forwards, 2p + 1 (2p on odd ranks). Rank 0 holds 3p
 * activations. Rank g holds up to g more that wait only for their weight gradient. The bubble is
 * (p-1)(F + AR + I - W), in addition to the exposed all-reduces.
 *
 * Where weight gradients of a stage are left over, the authors go on with whole backwards. Here an
 * input gradient then shares its slot with the oldest weight gradient of its stage, which takes
 * as long, and gradients are added by micro-batch. */
#include "schedule_build.h"

/* A leg of the V on one rank: micro-batches so far. */
typedef struct leg {
    int32_t stage, f, b, w; /* forwards, backwards whole or not, weight gradients */
} leg;

typedef struct stp_rank {
    dh_builder *to;
    leg legs[2];
    int32_t n_micro;
} stp_rank;

/* Actions of a slot that exist; a pair that lacks one is the other. */
static void put(stp_rank *r, dh_pipe_action a, dh_pipe_action b)
{
    const bool has_a = a.micro < r->n_micro, has_b = b.micro < r->n_micro;
    if (has_a && has_b)
        dh_build_next_two(r->to, a, b);
    else if (has_a || has_b)
        dh_build_next(r->to, has_a ? a.kind : b.kind, has_a ? a.stage : b.stage,
                      has_a ? a.micro : b.micro);
}

static void put_one(stp_rank *r, dh_pipe_action a)
{
    if (a.micro < r->n_micro) dh_build_next(r->to, a.kind, a.stage, a.micro);
}

static dh_pipe_action forward(stp_rank *r, int of)
{
    leg *l = &r->legs[of];
    return (dh_pipe_action){DH_PIPE_F, l->stage, l->f++};
}

static dh_pipe_action input(stp_rank *r, int of)
{
    leg *l = &r->legs[of];
    return (dh_pipe_action){DH_PIPE_I, l->stage, l->b++};
}

static dh_pipe_action weight(stp_rank *r, int of)
{
    leg *l = &r->legs[of];
    return (dh_pipe_action){DH_PIPE_W, l->stage, l->w++};
}

static dh_pipe_action whole(stp_rank *r, int of)
{
    leg *l = &r->legs[of];
    l->w++;
    return (dh_pipe_action){DH_PIPE_B, l->stage, l->b++};
}

static bool has_left(const stp_rank *r, int of)
{
    return r->legs[of].w < r->legs[of].b;
}

/* A backward alone: behind weight gradients that are left over, the oldest takes the place of its
 * own. */
static void backward(stp_rank *r, int of)
{
    if (!has_left(r, of)) {
        put_one(r, whole(r, of));
        return;
    }
    const dh_pipe_action i = input(r, of);
    put(r, i, weight(r, of));
}

static void leftover(stp_rank *r)
{
    put_one(r, weight(r, has_left(r, 1) ? 1 : 0));
}

static void fill(stp_rank *r, int32_t g, int32_t to_middle)
{
    for (int32_t k = 0; k < 2 * to_middle; k++) put_one(r, forward(r, 0));
    for (int32_t k = 0; k < g + 1; k++) {
        put_one(r, forward(r, 0));
        put_one(r, forward(r, 1));
    }
    if (g % 2 == 0) put_one(r, forward(r, 0));
    for (int32_t k = 0; k < (g + 1) / 2; k++) {
        const dh_pipe_action first = forward(r, 0);
        put(r, first, forward(r, 0));
    }
    for (int32_t k = 0; k < to_middle; k++) {
        const dh_pipe_action f = forward(r, 1);
        put(r, f, input(r, 1));
        const dh_pipe_action next = forward(r, 0);
        put(r, next, weight(r, 1));
    }
}

/* The legs take turns; the last g backwards leave their weight gradients for later. */
static void steady(stp_rank *r, int32_t g, int32_t n_whole)
{
    for (int32_t k = 0; k < n_whole + g; k++) {
        const int of = k % 2 == 0;
        const dh_pipe_action f = forward(r, of);
        put(r, f, k < n_whole ? whole(r, of) : input(r, of));
    }
}

static void drain(stp_rank *r, int32_t g, int32_t to_middle, int32_t n)
{
    while (r->legs[1].f < n) {
        backward(r, 0);
        const dh_pipe_action f = forward(r, 1);
        put(r, f, input(r, 1));
    }
    for (int32_t k = 0; k < g + 1; k++) {
        backward(r, 0);
        backward(r, 1);
    }
    backward(r, 0);
    for (int32_t k = 0; k < to_middle; k++) {
        leftover(r);
        leftover(r);
        backward(r, 0);
    }
    while (has_left(r, 0) || has_left(r, 1)) leftover(r);
}

static dh_status stp(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *spec,
                     dh_schedule **schedule)
{
    const int32_t p = spec->n_ranks, m = spec->n_micro, n = DH_MAX(m, 3 * p - 1);
    dh_builder b;
    DH_TRY(dh_builder_init(ctx, &b, row->name, row->placement, spec));
    b.any_pair = true;
    for (int32_t g = 0; g < p; g++) {
        stp_rank r = {.to = &b, .legs = {{.stage = g}, {.stage = 2 * p - 1 - g}}, .n_micro = m};
        fill(&r, g, p - 1 - g);
        steady(&r, g, 2 * (n - 3 * p + 1) + 1 + g);
        drain(&r, g, p - 1 - g, n);
    }
    return dh_builder_finish(ctx, &b, schedule);
}

const dh_schedule_row dh_row_stp = {
    .name = "stp",
    .doc =
        "V-shaped placement, all-reduces of one micro-batch during another's computation, backward "
        "whole in the steady phase, 3p activations (STP, arXiv 2510.27257)",
    .placement = DH_PLACE_FOLDED,
    .n_chunks = 2,
    .pairs = true,
    .split_backward = true,
    .settles = 3,
    .generate = stp,
};
