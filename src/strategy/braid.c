/* Published fixed orders: the units of two strands take turns.
 *
 * A unit is half a layer: attention, or the MLP. It ends with the collective that carries its
 * result away. That is the sum or scatter over tensor parallelism. With experts it is the dispatch
 * of tokens (for attention's unit, which has the router) or the combine (for the MLP's). The four
 * components of the published plans, attention, dispatch, MLP and combine, are thus two units with
 * their ends. Forward units go attention, MLP, attention, ...; backward units the other way round.
 * One of each is a beat. A policy lists what a beat issues. Overlap follows from it: the end of a
 * unit is under way while the other strand's unit computes.
 *
 * - DualPipe (DeepSeek-V3, arXiv 2412.19437, 3.2.1): the W of a unit follows it by itself. The end
 *   of a backward unit runs during the next forward unit.
 * - Megatron-Core's combined_1f1b: the end of a backward unit also runs during its W. The last W
 *   comes at the end, to cover the transfer to the next stage.
 * - STP (arXiv 2510.27257): the backward is not split, W stays where the graph has it.
 *
 * With events the streams' own orders differ in little more than W. With barriers each beat's
 * rounds are those that the authors draw. One thing is ours: gathers of sequence parallelism, which
 * none of the three has. They come before a unit's first GEMM and are issued a step ahead, before
 * the other strand's weight gradients. Neither costs nor a limit of memory are looked at. */
#include <stdlib.h>

#include "strategy/slot.h"

typedef enum role { START, BODY, END, WEIGHTS } role;

typedef struct braid_step {
    uint8_t strand;
    role role;
    int8_t ahead; /* its unit: 0 the beat's, 1 the next one's, -1 the one before */
    bool round;   /* begins one: where the barriers are */
} braid_step;

typedef struct braid {
    const braid_step *beat;
    size_t n_steps;
    bool weights_in_place; /* in the body of their unit */
    bool last_weights_late;
} braid;

/* The operators of one strand. */
typedef struct thread {
    const dh_slot_strand *strand;
    uint32_t before, behind; /* operators before the first unit; first one behind the last */
    uint32_t *unit;          /* [n]: of the operators between */
    role *role;              /* [n] */
    uint32_t n_units;        /* two a layer; what follows the last one's end is one more */
    bool weights_in_place;
} thread;

/* ---- units of a layer ----------------------------------------------------------------------- */

static bool communicates(const dh_slot_op *op)
{
    return op->stream != DH_STREAM_COMPUTE && !op->wgrad && !op->reduces;
}

static bool multiplies(const dh_slot_op *op)
{
    switch (op->at.op->type) {
    case DH_OP_LINEAR:
    case DH_OP_LINEAR_DGRAD:
    case DH_OP_LINEAR_GELU:
    case DH_OP_LINEAR_DGRAD_GELU:
    case DH_OP_GROUPED_LINEAR:
    case DH_OP_GROUPED_DGRAD:
    case DH_OP_ATTN:
    case DH_OP_ATTN_GRAD:
    case DH_OP_RING_ATTN:
    case DH_OP_RING_ATTN_GRAD:
    case DH_OP_LINEAR_ATTN:
    case DH_OP_LINEAR_ATTN_GRAD:
        return true;
    default:
        return false;
    }
}

static uint32_t count_type(const dh_slot_op *ops, uint32_t n, dh_op_type type)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) count += ops[i].at.op->type == type;
    return count;
}

/* Half of the operators of the type stand at or before this place; n: there are none. */
static uint32_t half_of_type(const dh_slot_op *ops, uint32_t n, dh_op_type type)
{
    uint32_t left = count_type(ops, n, type) / 2, i = 0;
    if (left == 0) return n;
    for (; left > 0; i++) left -= ops[i].at.op->type == type;
    return i - 1;
}

/* The operator that ends the layer's first half: the residual of the forward's attention, or the
 * norm of the backward's MLP. A slot of weight gradients has another operator of that norm. */
static uint32_t middle_of(const dh_slot_op *ops, uint32_t n, bool forward)
{
    if (forward) return half_of_type(ops, n, DH_OP_RESIDUAL);
    const uint32_t place = half_of_type(ops, n, DH_OP_NORM_DGRAD);
    return place < n ? place : half_of_type(ops, n, DH_OP_NORM_WGRAD);
}

/* The exchange of tokens that takes them to the experts in the forward, their gradients back from
 * there in the backward; n: there is none. */
static uint32_t dispatch_of(const dh_slot_op *ops, uint32_t n, bool forward)
{
    uint32_t later = forward ? 1 : 0; /* the combine */
    for (uint32_t i = n; i-- > 0;)
        if (communicates(&ops[i]) && ops[i].at.op->group == DH_GROUP_EP && later-- == 0) return i;
    return n;
}

/* How many of a layer's operators belong to its first unit. */
static uint32_t cut_of(const dh_slot_op *ops, uint32_t n, bool forward)
{
    const uint32_t dispatch = dispatch_of(ops, n, forward), middle = middle_of(ops, n, forward);
    if (dispatch < n) return dispatch + 1;
    for (uint32_t i = DH_MIN(middle + 1, n); i-- > 0;)
        if (communicates(&ops[i])) return i + 1;
    return middle;
}

/* Where the layer's last collective ends the second unit; what follows it begins the unit
 * behind. */
static uint32_t end_of(const dh_slot_op *ops, uint32_t cut, uint32_t n)
{
    for (uint32_t i = n; i-- > cut;)
        if (communicates(&ops[i])) return i + 1;
    return n;
}

/* ---- a strand ------------------------------------------------------------------------------- */

static bool is_layer(const dh_slot_op *op)
{
    return op->at.graph->kind == DH_BLOCK_LAYER;
}

static bool is_apart(const thread *t, uint32_t op)
{
    const dh_slot_op *at = &t->strand->ops[op];
    return at->reduces || (at->wgrad && !t->weights_in_place);
}

/* Roles of a unit's operators: its end are collectives behind everything else of it, its start
 * reaches to the last collective before its first GEMM. */
static void set_roles(thread *t, uint32_t first, uint32_t end)
{
    const dh_slot_op *ops = t->strand->ops;
    uint32_t gemm = first, start = first, last = end;
    while (gemm < end && (ops[gemm].wgrad || !multiplies(&ops[gemm]))) gemm++;
    for (uint32_t i = first; i < gemm && gemm < end; i++)
        if (communicates(&ops[i])) start = i + 1;
    while (last > start && (communicates(&ops[last - 1]) || ops[last - 1].wgrad)) last--;
    for (uint32_t i = first; i < end; i++)
        t->role[i] = is_apart(t, i)                       ? WEIGHTS
                     : i < start                          ? START
                     : i >= last && communicates(&ops[i]) ? END
                                                          : BODY;
}

/* Operators of the block that begins here, reductions behind its backward among them. */
static uint32_t block_length(const dh_slot_strand *s, uint32_t first)
{
    uint32_t n = 1;
    while (first + n < s->n && s->ops[first + n].block == s->ops[first].block) n++;
    return n;
}

/* The two units of a layer, of which the first may have begun behind the layer before. */
static void add_layer(thread *t, uint32_t first, uint32_t n, uint32_t *begun)
{
    const dh_slot_op *ops = &t->strand->ops[first];
    const uint32_t cut = cut_of(ops, n, ops->at.op->phase == DH_PHASE_F), end = end_of(ops, cut, n);
    for (uint32_t i = 0; i < n; i++)
        t->unit[first + i] = t->n_units + (i >= cut) + (i >= end && !is_apart(t, first + i));
    set_roles(t, *begun, first + cut);
    set_roles(t, first + cut, first + end);
    *begun = first + end;
    t->n_units += 2;
}

static bool thread_init(thread *t, const dh_slot_strand *strand, bool weights_in_place)
{
    const uint32_t n = strand->n;
    *t = (thread){.strand = strand, .before = n, .behind = n, .weights_in_place = weights_in_place};
    t->unit = calloc((size_t)n + 1, sizeof *t->unit);
    t->role = calloc((size_t)n + 1, sizeof *t->role);
    if (!t->unit || !t->role) return false;
    uint32_t begun = n;
    for (uint32_t i = 0, length; i < n; i += length) {
        length = block_length(strand, i);
        if (!is_layer(&strand->ops[i])) continue;
        if (t->before == n) t->before = begun = i;
        add_layer(t, i, length, &begun);
        t->behind = i + length;
    }
    set_roles(t, begun, t->behind);
    return true;
}

static void thread_fini(thread *t)
{
    free(t->unit);
    free(t->role);
}

/* ---- orders --------------------------------------------------------------------------------- */

typedef struct braiding {
    const braid *by;
    thread threads[2];
    dh_slot_pick *order;
    uint32_t n;
    bool barriers, barrier; /* wanted; due before the next operator */
} braiding;

static void issue(braiding *b, uint8_t strand, uint32_t op)
{
    b->order[b->n++] = (dh_slot_pick){.op = op, .strand = strand, .barrier = b->barrier};
    b->barrier = false;
}

static void issue_range(braiding *b, uint8_t strand, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) issue(b, strand, i);
}

static void issue_role(braiding *b, uint8_t strand, int64_t unit, role wanted)
{
    const thread *t = &b->threads[strand];
    for (uint32_t i = t->before; i < t->behind; i++)
        if (t->unit[i] == unit && t->role[i] == wanted) issue(b, strand, i);
}

static bool is_late(const braiding *b, const braid_step *s, int64_t unit)
{
    return b->by->last_weights_late && s->role == WEIGHTS &&
           unit + 1 == b->threads[s->strand].n_units;
}

static void issue_beat(braiding *b, int64_t beat)
{
    for (size_t i = 0; i < b->by->n_steps; i++) {
        const braid_step *s = &b->by->beat[i];
        const int64_t unit = beat + s->ahead;
        if (s->round) b->barrier = b->barriers;
        if (!is_late(b, s, unit)) issue_role(b, s->strand, unit, s->role);
    }
}

/* Operators before the first layer and after the last one have no partner. */
static void issue_all(braiding *b)
{
    const thread *f = &b->threads[0], *back = &b->threads[1];
    const int64_t n_units = DH_MAX(f->n_units, back->n_units);
    issue_range(b, 0, 0, f->before);
    issue_beat(b, -1); /* the start of the first forward unit */
    issue_range(b, 1, 0, back->before);
    for (int64_t beat = 0; beat <= n_units; beat++) issue_beat(b, beat);
    issue_range(b, 0, f->behind, f->strand->n);
    issue_range(b, 1, back->behind, back->strand->n);
    if (b->by->last_weights_late) issue_role(b, 1, (int64_t)back->n_units - 1, WEIGHTS);
}

static dh_status order_by(dh_ctx *ctx, const dh_slot *slot, const braid *by,
                          const dh_order_options *options, dh_slot_pick *order)
{
    braiding b = {.by = by, .order = order, .barriers = options->barriers};
    bool ok = true;
    for (int s = 0; s < 2; s++)
        ok &= thread_init(&b.threads[s], &slot->strand[s], by->weights_in_place);
    if (ok) issue_all(&b);
    thread_fini(&b.threads[0]);
    thread_fini(&b.threads[1]);
    return ok ? DH_OK : dh_no_memory(ctx);
}

/* ---- the published plans -------------------------------------------------------------------- */

enum { FORWARD, BACKWARD };

dh_status slot_order_dualpipe(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                              dh_slot_pick *order)
{
    static const braid_step beat[] = {
        {BACKWARD, END, -1, true},     {BACKWARD, START, 0, false}, {FORWARD, BODY, 0, false},
        {FORWARD, END, 0, true},       {BACKWARD, BODY, 0, false},  {FORWARD, START, 1, false},
        {BACKWARD, WEIGHTS, 0, false},
    };
    static const braid plan = {.beat = beat, .n_steps = DH_COUNTOF(beat)};
    return order_by(ctx, slot, &plan, options, order);
}

dh_status slot_order_combined(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                              dh_slot_pick *order)
{
    static const braid_step beat[] = {
        {BACKWARD, START, 0, false},   {FORWARD, BODY, 0, false}, {FORWARD, END, 0, true},
        {BACKWARD, BODY, 0, false},    {BACKWARD, END, 0, true},  {FORWARD, START, 1, false},
        {BACKWARD, WEIGHTS, 0, false},
    };
    static const braid plan = {
        .beat = beat, .n_steps = DH_COUNTOF(beat), .last_weights_late = true};
    return order_by(ctx, slot, &plan, options, order);
}

dh_status slot_order_stp(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                         dh_slot_pick *order)
{
    static const braid_step beat[] = {
        {BACKWARD, START, 0, false},   {FORWARD, BODY, 0, false}, {FORWARD, END, 0, true},
        {BACKWARD, BODY, 0, false},    {BACKWARD, END, 0, true},  {FORWARD, START, 1, false},
        {BACKWARD, WEIGHTS, 0, false},
    };
    static const braid plan = {.beat = beat, .n_steps = DH_COUNTOF(beat), .weights_in_place = true};
    return order_by(ctx, slot, &plan, options, order);
}
