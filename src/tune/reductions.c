/* Reductions of gradients during the slots in which their gradients become complete, and gathers of
 * parameters during the slots that read them.
 *
 * The model is a line of work, and a stream of these communications at the same time, in the order
 * of a program (program/gathers.c, slots.c). A communication begins when the one before it has ended
 * and the work that it needs is done. A block waits for the gather of its parameters, and so for the
 * reductions before that gather. Work and communications are two flows of the common clock
 * (base/flow.h), which slow each other down. Communications that are left at the end of the rank's
 * slots run after them. */
#include <math.h>
#include <stdlib.h>

#include "base/flow.h"
#include "tune/estimate.h"

double tune_run_beside(tune_speeds speeds, double work_ns, double *left_ns)
{
    dh_flow flows[2] = {{work_ns, speeds.own}, {*left_ns, speeds.comm}};
    dh_flows_settle(flows, 2);
    double ns = 0;
    while (!dh_flow_is_done(&flows[0]) && !dh_flow_is_done(&flows[1]))
        ns += dh_flow_pair_step(&flows[0], &flows[1]);
    *left_ns = dh_flow_is_done(&flows[1]) ? 0 : flows[1].left_ns;
    return ns + flows[0].left_ns;
}

/* ---- a line of work, and communications during it ------------------------------------------- */

enum { MOST_SLOTS = 6 };

typedef struct line {
    const estimate *e;
    const tune_outline *o;                         /* of its rank */
    size_t n_whole;                                /* blocks at once */
    double work_ns;                                /* all work that was added */
    double work_at[MOST_SLOTS], ns_at[MOST_SLOTS]; /* slots' ends: work; time once it has run */
    int n_slots;
    double done_ns, ns;        /* work and time that have passed */
    size_t unsettled, settled; /* the communications from one to the other are a bucket's */
} line;

static line line_of(const estimate *e, int32_t rank, int n_strands)
{
    const int64_t prefetch = e->spec.recipe.sharing.prefetch;
    e->t->comms.n = 0;
    return (line){.e = e, .o = e->outlines[rank], .n_whole = (size_t)(n_strands * (prefetch + 1))};
}

static void end_slot(line *l, double work_ns)
{
    l->work_ns += work_ns;
    l->ns_at[l->n_slots] = -1;
    l->work_at[l->n_slots++] = l->work_ns;
}

static dh_status add_comm(const line *l, tune_comm c)
{
    tune_comms *all = &l->e->t->comms;
    c.number = all->n;
    return dh_vec_push(all, c) ? DH_OK : dh_no_memory(l->e->ctx);
}

static int by_issue(const void *x, const void *y)
{
    const tune_comm *a = x, *b = y;
    if (a->issued != b->issued) return a->issued < b->issued ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

/* Sorts the communications, and finds where gathers may begin. n_whole blocks may be whole at once:
 * gather number k waits for release number k - n_whole, or for the last release before it if there
 * are fewer. Work that waits for a gather also waits for every communication before that gather. */
static void put_in_order(const tune_comms *all, size_t n_whole)
{
    size_t n_gathers = 0, n_gone = 0;
    if (all->n > 0) qsort(all->at, all->n, sizeof *all->at, by_issue);
    for (size_t i = 0; i < all->n; i++) {
        tune_comm *c = &all->at[i];
        if (c->kind == TUNE_COMM_RELEASE) all->at[n_gone++].nth_gone = c->issued;
        if (c->kind != TUNE_COMM_GATHER || ++n_gathers <= n_whole || n_gone == 0) continue;
        c->ready = all->at[DH_MIN(n_gathers - n_whole, n_gone) - 1].nth_gone;
    }
    for (size_t i = all->n; i-- > 1;)
        all->at[i - 1].before = DH_MIN(all->at[i - 1].before, all->at[i].before);
}

static void pass(line *l, double ns, double work_ns)
{
    for (int k = 0; k < l->n_slots; k++) {
        const double left_ns = l->work_at[k] - l->done_ns;
        if (l->ns_at[k] < 0 && left_ns <= work_ns + DH_FLOW_RESIDUE_NS)
            l->ns_at[k] = l->ns + (work_ns > 0 ? DH_MIN(left_ns / work_ns, 1.0) * ns : 0);
    }
    l->ns += ns;
    l->done_ns += work_ns;
}

/* Returns the time for which communications go on after the last slot. */
static double run_line(line *l)
{
    const tune_comms *all = &l->e->t->comms;
    double end_ns = 0;
    put_in_order(all, l->n_whole);
    for (size_t i = 0; i < all->n; i++) {
        const tune_comm *c = &all->at[i];
        if (c->kind == TUNE_COMM_RELEASE) continue;
        const double wait_ns = DH_MAX(c->ready - l->done_ns, 0.0);
        pass(l, wait_ns, wait_ns);
        dh_flow flows[2] = {{DH_MIN(c->before, l->work_ns) - l->done_ns, l->o->backward_speed},
                            {c->ns, l->o->reduction_speed}};
        dh_flows_settle(flows, 2);
        while (!dh_flow_is_done(&flows[0]) && !dh_flow_is_done(&flows[1])) {
            const double before_ns = flows[0].left_ns, ns = dh_flow_pair_step(&flows[0], &flows[1]);
            pass(l, ns, before_ns - flows[0].left_ns);
        }
        if (!dh_flow_is_done(&flows[1])) pass(l, flows[1].left_ns, 0);
        end_ns = l->ns;
    }
    pass(l, l->work_ns - l->done_ns, l->work_ns - l->done_ns);
    return DH_MAX(end_ns - l->ns_at[l->n_slots - 1], 0.0);
}

/* ---- the blocks of a slot --------------------------------------------------------------------- */

static int64_t blocks_of(const tune_stage *s)
{
    return s->n_layers + s->embed + s->head;
}

static bool holds(const tune_timetable *t, int32_t rank, int32_t stage)
{
    const dh_schedule *s = t->schedule;
    for (int32_t copy = 0; copy < s->n_copies; copy++)
        if (s->rank_of[copy * s->n_stages + stage] == rank) return true;
    return false;
}

/* The place of a stage's blocks among the rank's. */
static int64_t first_block(const tune_timetable *t, int32_t rank, int32_t stage)
{
    int64_t n = 0;
    for (int32_t v = 0; v < stage; v++)
        if (holds(t, rank, v)) n += blocks_of(&t->types[t->type_of[v]]);
    return n;
}

/* A stage's blocks on the line, in the order in which a strand comes to them. */
typedef struct strand {
    const tune_exchange *blocks; /* [n] in the order of the forward */
    int64_t n;
    bool forward;
    double begin_ns, first_ns, layer_ns, work_ns;
} strand;

static strand strand_of(const line *l, const tune_timetable *t, int32_t stage, int32_t rank,
                        int32_t kind, double work_ns)
{
    const tune_times *times = l->e->basis.times;
    const tune_chain *chains[DH_N_PIPE_KINDS] = {[DH_PIPE_F] = &times->f,
                                                 [DH_PIPE_B] = &times->b,
                                                 [DH_PIPE_I] = &times->i,
                                                 [DH_PIPE_W] = &times->w};
    const tune_chain *chain = chains[kind];
    const tune_stage *s = &t->types[t->type_of[stage]];
    const double layer_ns = DH_MAX(tune_more_ns(chain, s), 0.0);
    const double embed_ns = s->embed ? DH_MAX(chain->embed, 0.0) : 0;
    const double head_ns = s->head ? DH_MAX(chain->head, 0.0) : 0;
    const double all_ns = (double)s->n_layers * layer_ns + embed_ns + head_ns;
    const double scale = all_ns > 0 ? work_ns / all_ns : 0;
    const bool forward = kind == DH_PIPE_F, ends = forward ? s->embed : s->head;
    return (strand){.blocks = l->e->outlines[rank]->blocks + first_block(t, rank, stage),
                    .n = blocks_of(s),
                    .forward = forward,
                    .begin_ns = l->work_ns,
                    .first_ns = scale * (!ends     ? layer_ns
                                         : forward ? embed_ns
                                                   : head_ns),
                    .layer_ns = scale * layer_ns,
                    .work_ns = work_ns};
}

/* Work before the strand comes to its block i. */
static double begin_of(const strand *s, int64_t i)
{
    if (i <= 0) return s->begin_ns;
    return s->begin_ns + (i >= s->n ? s->work_ns : s->first_ns + (double)(i - 1) * s->layer_ns);
}

static dh_status add_gathers(const line *l, const strand *s)
{
    const dh_sharing *by = &l->e->spec.recipe.sharing;
    const bool stays = by->reshard == DH_GATHERED_WHOLE;
    for (int64_t i = 0; i < s->n; i++) {
        const tune_exchange *b = &s->blocks[s->forward ? i : s->n - 1 - i];
        const double ns = s->forward ? b->forward_ns : b->backward_ns;
        const tune_comm gather = {.kind = TUNE_COMM_GATHER,
                                  .ns = ns,
                                  .issued = begin_of(s, i - by->prefetch),
                                  .before = begin_of(s, i)};
        const tune_comm release = {
            .kind = TUNE_COMM_RELEASE, .issued = begin_of(s, i + 1), .before = INFINITY};
        if (ns > 0) DH_TRY(add_comm(l, gather));
        if (stays ? !s->forward : ns > 0) DH_TRY(add_comm(l, release));
    }
    return DH_OK;
}

/* The work waits at this place for the reductions of the bucket before. */
static void settle(line *l, double work_ns)
{
    for (; l->unsettled < l->settled; l->unsettled++)
        l->e->t->comms.at[l->unsettled].before = work_ns;
}

/* Gradients that stay whole are reduced in pieces as they are made. With sharded gradients at most
 * two buckets are whole at once: a block's gradients are reduced when its work is done and the bucket
 * before is gone.
 * in        behind: all reductions begin when the slot's result is on its way to another stage */
static dh_status add_reductions(line *l, const strand *s, bool behind)
{
    const bool goes = l->e->spec.recipe.sharing.gradients;
    if (l->o->reduces_each) settle(l, s->begin_ns);
    for (int64_t i = 0; i < s->n; i++) {
        const tune_exchange *b = &s->blocks[s->n - 1 - i];
        const double begin = begin_of(s, i), end = begin_of(s, behind ? s->n : i + 1);
        const int32_t n = goes || behind ? DH_MIN(b->n_pieces, 1) : b->n_pieces;
        if (goes && !behind && n > 0) settle(l, end);
        if (n > 0) l->unsettled = l->e->t->comms.n;
        for (int32_t k = 0; k < n; k++)
            DH_TRY(add_comm(l, (tune_comm){.kind = TUNE_COMM_REDUCE,
                                           .ns = b->reduce_ns / n,
                                           .issued = end,
                                           .ready = end - (end - begin) * (n - 1 - k) / n,
                                           .before = INFINITY}));
        l->settled = l->e->t->comms.n;
    }
    return DH_OK;
}

/* ---- slots that follow each other ------------------------------------------------------------- */

static int32_t stage_of_type(const tune_timetable *t, int32_t type)
{
    int32_t stage = 0;
    while (t->type_of[stage] != type) stage++;
    return stage;
}

/* A slot of a class, with gathers of all that it reads, or none. */
static dh_status add_slot(line *l, const tune_timetable *t, const tune_class *c, double ns,
                          bool gathers)
{
    const int32_t stage = stage_of_type(t, c->type), rank = t->schedule->rank_of[stage];
    const strand own = strand_of(l, t, stage, rank, c->kind, ns);
    const bool completes = c->kind == DH_PIPE_B || c->kind == DH_PIPE_W;
    if (completes && (c->last || l->o->reduces_each)) DH_TRY(add_reductions(l, &own, false));
    if (gathers && c->kind != DH_PIPE_W) DH_TRY(add_gathers(l, &own));
    if (gathers && c->f >= 0) {
        const int32_t forward = stage_of_type(t, c->f);
        const strand f = strand_of(l, t, forward, t->schedule->rank_of[forward], DH_PIPE_F, ns);
        DH_TRY(add_gathers(l, &f));
    }
    end_slot(l, ns);
    return DH_OK;
}

/* Time of a slot of the class right after a slot like it, whose communications may still run.
 * Reductions of a step's last micro-batch are in the last slot alone.
 * in        between: slots of other kinds run between the two */
static dh_status time_slot(const estimate *e, const tune_timetable *t, const tune_class *c,
                           double own_ns, bool gathers, bool between, double *ns, double *left_ns)
{
    static const int32_t whole[] = {DH_PIPE_F, DH_PIPE_B};
    static const int32_t split[] = {DH_PIPE_F, DH_PIPE_I, DH_PIPE_W};
    const bool in_parts = c->kind == DH_PIPE_I || c->kind == DH_PIPE_W ||
                          (c->kind == DH_PIPE_F && e->schedule->split_backward);
    const int32_t *kinds = in_parts ? split : whole;
    const int n = c->f >= 0 || !between ? 1 : in_parts ? 3 : 2;
    int own = 0;
    line l = line_of(e, t->schedule->rank_of[stage_of_type(t, c->type)], c->f >= 0 ? 2 : 1);
    while (n > 1 && kinds[own] != c->kind) own++;
    for (int k = gathers || l.o->reduces_each ? own : own + n; k <= own + n; k++) {
        tune_class of = {.kind = kinds[k % n], .f = -1, .type = c->type};
        const bool is_own = k % n == own;
        if (is_own) of = *c;
        if (k < own + n) of.last = false;
        DH_TRY(add_slot(&l, t, &of, is_own ? own_ns : tune_slot_cost_of(&e->basis, t, &of).ns,
                        gathers));
    }
    *left_ns = run_line(&l);
    *ns = l.ns_at[l.n_slots - 1] - (l.n_slots > 1 ? l.ns_at[l.n_slots - 2] : 0);
    return DH_OK;
}

/* Share of a class's slots that gather. If parameters stay for all micro-batches that follow each
 * other, the last slot of a run gathers for the next run. The slot during which reductions run
 * gathers, too. */
static double share_that_gathers(const estimate *e, const tune_timetable *t, const tune_class *c)
{
    const int32_t stage = stage_of_type(t, c->type);
    const bool forward = c->kind == DH_PIPE_F;
    const double n = t->n_gathers[!forward][stage], all = t->n_visits[!forward][stage];
    const bool has_last = !forward && t->classes[t->slots[t->last[stage]].cls].last;
    if (!e->spec.recipe.sharing.parameters || c->kind == DH_PIPE_W) return 0;
    if (e->spec.recipe.sharing.regather != DH_REGATHER_STAGE || (c->last && !forward)) return 1;
    return has_last ? DH_MAX(n - 1, 0.0) / DH_MAX(all - 1, 1.0) : n / DH_MAX(all, 1.0);
}

static bool stays_whole(const estimate *e)
{
    const dh_sharing *by = &e->spec.recipe.sharing;
    return by->parameters && by->reshard == DH_GATHERED_WHOLE;
}

/* Share of a class's slots that come after one of the other direction. If parameters stay whole, 1:
 * a forward finds them as the backward left them. */
static double share_that_turns(const estimate *e, const tune_timetable *t, const tune_class *c)
{
    const bool whole = c->f < 0 && (c->kind == DH_PIPE_F || c->kind == DH_PIPE_B);
    const int32_t stage = stage_of_type(t, c->type), backward = c->kind != DH_PIPE_F;
    const double all = t->n_visits[backward][stage];
    return whole && all > 0 && !stays_whole(e) ? t->n_turns[backward][stage] / all : 1;
}

dh_status tune_reductions_beside(const estimate *e, const tune_timetable *t, const tune_class *c,
                                 tune_slot_cost *cost)
{
    const tune_outline *o = e->outlines[t->schedule->rank_of[stage_of_type(t, c->type)]];
    const double gathers = share_that_gathers(e, t, c), turns = share_that_turns(e, t, c);
    const double alone_ns = cost->ns;
    if (alone_ns <= 0 || !(gathers > 0 || c->last || o->reduces_each)) return DH_OK;
    for (int k = 0; k < 4; k++) {
        const double share = (k & 1 ? gathers : 1 - gathers) * (k & 2 ? turns : 1 - turns);
        double own_ns, left_ns;
        if (share <= 0) continue;
        DH_TRY(time_slot(e, t, c, alone_ns, k & 1, k & 2, &own_ns, &left_ns));
        cost->delay_ns += share * (own_ns - alone_ns);
        cost->left_ns += share * left_ns;
    }
    cost->ns += cost->delay_ns;
    return DH_OK;
}

/* ---- around the slots --------------------------------------------------------------------------- */

/* Parameters stored as shards: nothing comes before the first slot of all, in which its first blocks
 * could be gathered. */
static dh_status begin_with_gathers(const estimate *e, double *delay_ns)
{
    const tune_timetable *t = e->long_one;
    const tune_class f = {.kind = DH_PIPE_F, .f = -1, .type = t->type_of[0]};
    const double own_ns = tune_slot_cost_of(&e->basis, t, &f).ns;
    line l = line_of(e, t->schedule->rank_of[0], 1);
    double later_ns, left_ns;
    DH_TRY(time_slot(e, t, &f, own_ns, true, stays_whole(e), &later_ns, &left_ns));
    e->t->comms.n = 0;
    DH_TRY(add_slot(&l, t, &f, own_ns, true));
    run_line(&l);
    *delay_ns = DH_MAX(l.ns_at[0] - later_ns, 0.0);
    return DH_OK;
}

dh_status tune_first_gathers_delay(const estimate *e, double *delay_ns)
{
    const tune_timetable *t = e->long_one;
    const tune_outline *o = e->outlines[t->schedule->rank_of[0]];
    const double forward_ns = tune_chain_ns(&e->basis.times->f, &t->types[t->type_of[0]]);
    double gathered_ns = 0, latest_ns = forward_ns;
    if (e->spec.recipe.sharing.parameters) return begin_with_gathers(e, delay_ns);
    for (size_t k = 0; k < o->n_first_gathers; k++) {
        const double left = 1 - (double)k / (double)o->n_first_gathers;
        gathered_ns += o->first_gather_ns[k];
        latest_ns = DH_MAX(latest_ns, gathered_ns + left * forward_ns);
    }
    *delay_ns = latest_ns - forward_ns;
    return DH_OK;
}

tune_behind tune_reductions_behind(const estimate *e, const tune_timetable *t, int32_t stage)
{
    const int32_t rank = t->schedule->rank_of[stage], cls = t->slots[t->last[stage]].cls;
    const tune_outline *o = e->outlines[rank];
    const int64_t n = blocks_of(&t->types[t->type_of[stage]]), first = first_block(t, rank, stage);
    tune_behind behind = {.beside_slots = {o->backward_speed, o->reduction_speed},
                          .transfer_speed = o->transfer_speed};
    behind.holds_up = e->spec.recipe.sharing.parameters;
    behind.waits = !t->classes[cls].last && !o->reduces_each;
    for (int64_t i = first; i < first + n; i++) behind.ns += o->blocks[i].reduce_ns;
    if (!behind.waits) {
        behind.during_ns = DH_MAX(behind.ns - e->costs[cls].left_ns, 0.0);
        behind.ns = e->costs[cls].left_ns;
    }
    return behind;
}

/* When a stage's gradients are complete, in all copies of the model. */
static double complete_ns(const estimate *e, int32_t stage)
{
    const tune_timetable *t = e->long_one;
    double ns = 0;
    for (int32_t copy = 0; copy < t->schedule->n_copies; copy++)
        ns = DH_MAX(ns, e->t->scratch[t->last[copy * t->schedule->n_stages + stage]]);
    return ns;
}

/* On the line is other work until the gradients are complete in both. */
dh_status tune_reductions_of_copies(const estimate *e, int32_t rank, double *behind_ns)
{
    const tune_timetable *t = e->long_one;
    double own_ns = 0;
    line l = line_of(e, rank, 1);
    for (int32_t v = t->schedule->n_stages; v-- > 0;) {
        if (!holds(t, rank, v)) continue;
        const strand s = strand_of(&l, t, v, rank, DH_PIPE_B, 0);
        const strand at = {.blocks = s.blocks, .n = s.n, .begin_ns = complete_ns(e, v)};
        l.work_ns = DH_MAX(l.work_ns, at.begin_ns);
        DH_TRY(add_reductions(&l, &at, true));
    }
    for (int32_t v = 0; v < t->schedule->n_copies * t->schedule->n_stages; v++)
        if (t->schedule->rank_of[v] == rank) own_ns = DH_MAX(own_ns, e->t->scratch[t->last[v]]);
    l.work_ns = DH_MAX(l.work_ns, own_ns);
    end_slot(&l, 0);
    *behind_ns = run_line(&l) + l.work_ns - own_ns;
    return DH_OK;
}
