/* Orders from pairing plans: the blocks of both strands are taken two by two and each two
 * are planned as one problem (pairing.h). A forward with more blocks than the backward begins
 * alone, with what loads its data. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

/* Operators [first, first + n) of a strand. */
typedef struct part {
    uint32_t first, n;
} part;

static part part_of(const dh_slot_strand *strand, uint32_t block)
{
    part p = {0, 0};
    while (p.first < strand->n && strand->ops[p.first].block < block) p.first++;
    while (p.first + p.n < strand->n && strand->ops[p.first + p.n].block == block) p.n++;
    return p;
}

/* Operators of a plan: all except reductions, with numbers of their own. */
typedef struct side {
    dh_pair_op *ops;
    int32_t *preds;
    uint32_t *op;    /* [n] in the strand */
    int32_t *number; /* [part.n] in the plan, -1: reductions */
    int32_t n;
} side;

static bool side_init(side *s, const dh_slot_strand *strand, part p)
{
    size_t n_preds = 0, used = 0;
    for (uint32_t i = 0; i < p.n; i++) n_preds += strand->ops[p.first + i].n_preds;
    *s = (side){.ops = calloc((size_t)p.n + 1, sizeof *s->ops),
                .preds = calloc(n_preds + 1, sizeof *s->preds),
                .op = calloc((size_t)p.n + 1, sizeof *s->op),
                .number = calloc((size_t)p.n + 1, sizeof *s->number)};
    if (!s->ops || !s->preds || !s->op || !s->number) return false;
    for (uint32_t i = 0; i < p.n; i++) {
        const dh_slot_op *from = &strand->ops[p.first + i];
        s->number[i] = from->reduces ? -1 : s->n;
        if (from->reduces) continue;
        dh_pair_op *op = &s->ops[s->n];
        *op = (dh_pair_op){.name = dh_op_info_of(from->at.op->type)->name,
                           .engine = dh_stream_engine(from->stream),
                           .solo_ns = (int64_t)DH_MIN(from->ns + .5, (double)DH_PAIR_MAX_NS),
                           .preds = s->preds + used,
                           .movable = from->wgrad};
        for (uint32_t k = 0; k < from->n_preds; k++) {
            const uint32_t pred = from->preds[k];
            if (pred < p.first || s->number[pred - p.first] < 0) continue; /* an earlier block's */
            s->preds[used++] = s->number[pred - p.first];
            op->n_preds++;
        }
        s->op[s->n++] = p.first + i;
    }
    return true;
}

static void side_fini(side *s)
{
    free(s->ops);
    free(s->preds);
    free(s->op);
    free(s->number);
}

static dh_pair_time *times_together(const dh_slot *slot, const side s[2])
{
    const size_t n_b = (size_t)s[1].n;
    dh_pair_time *t = calloc((size_t)s[0].n * n_b + 1, sizeof *t);
    for (int32_t i = 0; t && i < s[0].n; i++)
        for (int32_t j = 0; j < s[1].n; j++)
            t[(size_t)i * n_b + (size_t)j] =
                dh_costs_together(slot->costs, &slot->strand[0].ops[s[0].op[i]].at,
                                  &slot->strand[1].ops[s[1].op[j]].at);
    return t;
}

/* ---- plan to order -------------------------------------------------------------------------- */

/* Where two blocks' operators went, relative to their firsts: what another two of the same
 * kind are issued by. */
typedef struct block_order {
    part from[2];
    dh_slot_pick *picks; /* [n] op relative to from[strand].first */
    uint32_t n;
} block_order;

typedef struct timed_pick {
    dh_slot_pick pick;
    int64_t start_ns;
    int32_t round;
    bool link;
} timed_pick;

/* By round, then by start; a transfer before computation that starts at the same time. */
static int by_start(const void *x, const void *y)
{
    const timed_pick *a = x, *b = y;
    if (a->round != b->round) return a->round - b->round;
    if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns ? -1 : 1;
    if (a->link != b->link) return a->link ? -1 : 1;
    if (a->pick.strand != b->pick.strand) return a->pick.strand - b->pick.strand;
    return a->pick.op < b->pick.op ? -1 : 1;
}

static uint32_t list_round(const dh_pair_plan *plan, int32_t round, const side s[2],
                           const part from[2], timed_pick *list)
{
    const dh_pair_round *at = &plan->rounds[round];
    const int32_t *ops[2] = {at->f_ops, at->b_ops}, n[2] = {at->n_f, at->n_b};
    const dh_pair_span *spans[2] = {plan->f_span, plan->b_span};
    uint32_t k = 0;
    for (uint8_t strand = 0; strand < 2; strand++)
        for (int32_t i = 0; i < n[strand]; i++) {
            const int32_t op = ops[strand][i];
            list[k++] = (timed_pick){
                .pick = {.op = s[strand].op[op] - from[strand].first, .strand = strand},
                .start_ns = spans[strand][op].start_ns,
                .round = round,
                .link = s[strand].ops[op].engine != DH_ENGINE_COMPUTE};
        }
    return k;
}

/* Reductions, which no plan knows, come last: beside whatever follows, on streams of their own. */
static void write_order(const dh_pair_plan *plan, const side s[2], bool barriers, timed_pick *list,
                        block_order *order)
{
    uint32_t n = 0;
    for (int32_t i = 0; i < plan->n_rounds; i++) {
        n += list_round(plan, i, s, order->from, list + n);
    }
    if (n) qsort(list, n, sizeof *list, by_start);
    for (uint32_t i = 0; i < n; i++) {
        order->picks[i] = list[i].pick;
        order->picks[i].barrier = barriers && (i == 0 || list[i].round != list[i - 1].round);
    }
    for (uint8_t strand = 0; strand < 2; strand++)
        for (uint32_t i = 0; i < order->from[strand].n; i++)
            if (s[strand].number[i] < 0)
                order->picks[n++] = (dh_slot_pick){.op = i, .strand = strand};
    order->n = n;
}

static dh_status plan_blocks(dh_ctx *ctx, const dh_slot *slot, const dh_pair_policy *policy,
                             const dh_order_options *options, block_order *order)
{
    side s[2] = {{0}, {0}};
    dh_pair_plan *own = NULL;
    const dh_pair_plan *plan = NULL;
    const size_t n = (size_t)order->from[0].n + order->from[1].n + 1;
    const bool ok = side_init(&s[0], &slot->strand[0], order->from[0]) &&
                    side_init(&s[1], &slot->strand[1], order->from[1]);
    dh_pair_time *together = ok ? times_together(slot, s) : NULL;
    timed_pick *list = calloc(n, sizeof *list);
    order->picks = calloc(n, sizeof *order->picks);
    const dh_pair_problem problem = {.f = {s[0].ops, s[0].n},
                                     .b = {s[1].ops, s[1].n},
                                     .together = together,
                                     .round_ns = (int64_t)slot->costs->event_ns};
    dh_status st = DH_OK;
    if (!together || !list || !order->picks)
        st = dh_no_memory(ctx);
    else if (options->plans)
        st = dh_pair_memo_get(ctx, options->plans, policy, &problem, &options->pairing, &plan);
    else if ((st = dh_pair_plan_make(ctx, policy, &problem, &options->pairing, &own)) == DH_OK)
        plan = own;
    if (st == DH_OK) write_order(plan, s, options->barriers, list, order);
    dh_pair_plan_destroy(own);
    side_fini(&s[0]);
    side_fini(&s[1]);
    free(together);
    free(list);
    return st;
}

/* ---- blocks --------------------------------------------------------------------------------- */

static bool same_part(const dh_slot_strand *strand, part a, part b)
{
    if (a.n != b.n) return false;
    for (uint32_t i = 0; i < a.n; i++) {
        const dh_slot_op *x = &strand->ops[a.first + i], *y = &strand->ops[b.first + i];
        if (x->reduces && y->reduces) continue;
        if (x->at.graph != y->at.graph || x->at.op != y->at.op || x->stream != y->stream)
            return false;
    }
    return true;
}

static const block_order *find(const dh_slot *slot, const block_order *list, size_t n,
                               const part from[2])
{
    for (size_t i = 0; i < n; i++)
        if (same_part(&slot->strand[0], list[i].from[0], from[0]) &&
            same_part(&slot->strand[1], list[i].from[1], from[1]))
            return &list[i];
    return NULL;
}

static uint32_t issue(const block_order *like, const part from[2], dh_slot_pick *order)
{
    for (uint32_t i = 0; i < like->n; i++) {
        order[i] = like->picks[i];
        order[i].op += from[order[i].strand].first;
    }
    return like->n;
}

static dh_status order_by_plans(dh_ctx *ctx, const dh_slot *slot, const char *policy_name,
                                const dh_order_options *options, dh_slot_pick *order)
{
    const dh_pair_policy *policy;
    DH_TRY(dh_pair_policy_find(ctx, policy_name, &policy));
    const uint32_t n_f = slot->strand[0].n_blocks, n_b = slot->strand[1].n_blocks;
    const uint32_t n_blocks = DH_MAX(n_f, n_b), alone = n_b && n_f > n_b ? n_f - n_b : 0;
    block_order *made = calloc((size_t)n_blocks + 1, sizeof *made);
    dh_status st = made ? DH_OK : dh_no_memory(ctx);
    size_t n_made = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; st == DH_OK && i < n_blocks; i++) {
        const part none = {0, 0};
        const part from[2] = {part_of(&slot->strand[0], i),
                              i < alone ? none : part_of(&slot->strand[1], i - alone)};
        const block_order *like = find(slot, made, n_made, from);
        if (!like) {
            made[n_made] = (block_order){.from = {from[0], from[1]}};
            like = &made[n_made++];
            st = plan_blocks(ctx, slot, policy, options, &made[n_made - 1]);
        }
        if (st == DH_OK) n += issue(like, from, order + n);
    }
    for (size_t i = 0; i < n_made; i++) free(made[i].picks);
    free(made);
    return st;
}

dh_status slot_order_dp(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                        dh_slot_pick *order)
{
    return order_by_plans(ctx, slot, "dp", options, order);
}

dh_status slot_order_exact(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                           dh_slot_pick *order)
{
    return order_by_plans(ctx, slot, "exact", options, order);
}
