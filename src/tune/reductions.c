/* Reductions of gradients during the slots in which their gradients become complete, and gathers of
 * parameters during the slots that read them.
 *
 * Reductions become ready one after another during the last backward of a stage, and take turns on
 * their stream. Backward and reductions are two flows of the common clock (base/flow.h). Each
 * slows the other down. Reductions that are left when the rank has done its slots come after them.
 */
#include "base/flow.h"
#include "tune/estimate.h"

/* ---- beside a slot ------------------------------------------------------------------------ */

/* Work of a rank's slots beside what is left of reductions: the time it takes. */
static double run_beside(const tune_outline *o, double work_ns, double *left_ns)
{
    dh_flow flows[2] = {{work_ns, o->backward_speed}, {*left_ns, o->reduction_speed}};
    dh_flows_settle(flows, 2);
    double ns = 0;
    while (!dh_flow_is_done(&flows[0]) && !dh_flow_is_done(&flows[1]))
        ns += dh_flow_pair_step(&flows[0], &flows[1]);
    *left_ns = dh_flow_is_done(&flows[1]) ? 0 : flows[1].left_ns;
    return ns + flows[0].left_ns;
}

/* Reductions [first, end) become ready evenly over a slot of work_ns: the time the slot takes. */
static double reduce_beside(const tune_outline *o, size_t first, size_t end, double work_ns,
                            double *left_ns)
{
    double ns = 0;
    if (first == end) return run_beside(o, work_ns, left_ns);
    for (size_t k = first; k < end; k++) {
        ns += run_beside(o, work_ns / (double)(end - first), left_ns);
        *left_ns += o->reduction_ns[k];
    }
    return ns;
}

/* They begin when the slot's result is on its way to another stage. */
static void reduce_behind(const tune_outline *o, size_t first, size_t end, double work_ns,
                          double *left_ns)
{
    run_beside(o, work_ns, left_ns);
    for (size_t k = first; k < end; k++) *left_ns += o->reduction_ns[k];
}

/* ---- of a rank's stages --------------------------------------------------------------------- */

/* A rank's reductions are its stages', the last stage's first, by how long their backwards take. */
typedef struct sharing {
    const estimate *e;
    const tune_timetable *t;
    const tune_outline *o;
    int32_t rank;
    double all_ns, done_ns; /* of backwards: of all stages, of those that had their share */
} sharing;

static bool holds(const sharing *s, int32_t stage)
{
    const dh_schedule *sch = s->t->schedule;
    for (int32_t copy = 0; copy < sch->n_copies; copy++)
        if (sch->rank_of[copy * sch->n_stages + stage] == s->rank) return true;
    return false;
}

static double backward_of(const sharing *s, int32_t stage)
{
    if (!holds(s, stage)) return 0;
    return tune_backward_ns(&s->e->basis, &s->t->types[s->t->type_of[stage]]);
}

static sharing share_of_rank(const estimate *e, const tune_timetable *t, int32_t rank)
{
    sharing s = {.e = e, .t = t, .o = e->outlines[rank], .rank = rank};
    for (int32_t v = 0; v < t->schedule->n_stages; v++) s.all_ns += backward_of(&s, v);
    return s;
}

static size_t shared_out(const sharing *s)
{
    return s->all_ns > 0 ? (size_t)((double)s->o->n_reductions * s->done_ns / s->all_ns + .5) : 0;
}

/* Reductions [*first, *end) are the stage's; those of later stages have been taken. */
static void take_share(sharing *s, int32_t stage, size_t *first, size_t *end)
{
    *first = shared_out(s);
    s->done_ns += backward_of(s, stage);
    *end = shared_out(s);
}

/* ---- entries -------------------------------------------------------------------------------- */

static int32_t stage_of_type(const tune_timetable *t, int32_t type)
{
    int32_t stage = 0;
    while (t->type_of[stage] != type) stage++;
    return stage;
}

/* Gathers of a class's slots: of one that gathers all that it reads, and of the mean one. */
typedef struct gathers {
    double whole_ns, mean_ns;
} gathers;

/* Share of a stage's slots that gather. If parameters stay for all micro-batches that follow each
 * other, the last slot of a run gathers for the next run. The slot during which reductions run
 * gathers, too. */
static double share_that_gathers(const estimate *e, const tune_timetable *t, int32_t stage,
                                 bool forward, bool last)
{
    const double n = t->n_gathers[!forward][stage], all = t->n_visits[!forward][stage];
    const bool has_last = !forward && t->classes[t->slots[t->last[stage]].cls].last;
    if (e->spec.recipe.sharing.regather != DH_REGATHER_STAGE || last) return 1;
    return has_last ? DH_MAX(n - 1, 0.0) / DH_MAX(all - 1, 1.0) : n / DH_MAX(all, 1.0);
}

/* Parameters that the stage of a type needs for a forward, or a backward. last: the slot that
 * completes its gradients. */
static void add_gathers(const estimate *e, const tune_timetable *t, int32_t type, bool forward,
                        bool last, gathers *g)
{
    const int32_t stage = stage_of_type(t, type);
    const sharing s = share_of_rank(e, t, t->schedule->rank_of[stage]);
    const double all_ns = forward ? s.o->forward_gather_ns : s.o->backward_gather_ns;
    if (all_ns <= 0 || s.all_ns <= 0) return;
    const double ns = all_ns * backward_of(&s, stage) / s.all_ns;
    g->whole_ns += ns;
    g->mean_ns += ns * share_that_gathers(e, t, stage, forward, last);
}

static gathers gathers_in(const estimate *e, const tune_timetable *t, const tune_class *c)
{
    gathers g = {0};
    if (c->f >= 0) add_gathers(e, t, c->f, true, false, &g);
    if (c->kind != DH_PIPE_W)
        add_gathers(e, t, c->type, c->kind == DH_PIPE_F, c->last && c->kind != DH_PIPE_F, &g);
    return g;
}

/* Time that communication adds to work at the same time, its own rest included. */
static double beside(const tune_outline *o, double comm_ns, double work_ns)
{
    double left_ns = comm_ns;
    const double ns = run_beside(o, work_ns, &left_ns);
    return ns + left_ns - work_ns;
}

/* Time that gathers alone add. They run before their blocks, or ahead, during earlier blocks. A
 * slot's first gathers then run during the end of the slot before. */
static double gathers_delay(const tune_outline *o, gathers g, double ns)
{
    if (g.whole_ns <= 0) return 0;
    const double one_ns = o->gathers_ahead ? beside(o, g.whole_ns, ns) : g.whole_ns;
    return one_ns * (g.mean_ns / g.whole_ns);
}

/* Reductions of a micro-batch that the next slot, a forward or a pair, does not hide. The next
 * backward waits for them. Gathers for that slot come after them. */
static double left_over(const estimate *e, const tune_timetable *t, const tune_class *c, double ns,
                        const tune_outline *o, double left_ns)
{
    const double next_ns = c->f >= 0 ? ns : tune_chain_ns(&e->basis.times->f, &t->types[c->type]);
    gathers g = {0};
    add_gathers(e, t, c->type, true, false, &g);
    return beside(o, g.mean_ns + left_ns, next_ns) - beside(o, g.mean_ns, next_ns);
}

double tune_reductions_delay(const estimate *e, const tune_timetable *t, const tune_class *c,
                             double ns)
{
    size_t first = 0, end = 0;
    if (ns <= 0) return 0;
    const int32_t stage = stage_of_type(t, c->type);
    const gathers g = gathers_in(e, t, c);
    sharing s = share_of_rank(e, t, t->schedule->rank_of[stage]);
    const double delay_ns = gathers_delay(s.o, g, ns);
    const bool each = s.o->reduces_each && (c->kind == DH_PIPE_B || c->kind == DH_PIPE_W);
    if (!(c->last || each) || s.o->n_reductions == 0) return delay_ns;
    for (int32_t v = t->schedule->n_stages; v-- > stage;)
        if (t->schedule->rank_of[v] == s.rank) take_share(&s, v, &first, &end);
    /* On one stream with the reductions: what these find no room for is behind the slot. */
    double left_ns = s.o->gathers_ahead ? g.mean_ns : 0;
    const double work_ns = s.o->gathers_ahead ? ns : ns + delay_ns;
    double reduced_ns = reduce_beside(s.o, first, end, work_ns, &left_ns);
    if (each && !c->last) reduced_ns += left_over(e, t, c, ns, s.o, left_ns);
    return DH_MAX(reduced_ns - ns, delay_ns);
}

double tune_first_gathers_delay(const estimate *e)
{
    const tune_timetable *t = e->long_one;
    const tune_outline *o = e->outlines[t->schedule->rank_of[0]];
    const double forward_ns = tune_chain_ns(&e->basis.times->f, &t->types[t->type_of[0]]);
    double gathered_ns = 0, latest_ns = forward_ns;
    for (size_t k = 0; k < o->n_first_gathers; k++) {
        const double left = 1 - (double)k / (double)o->n_first_gathers;
        gathered_ns += o->first_gather_ns[k];
        latest_ns = DH_MAX(latest_ns, gathered_ns + left * forward_ns);
    }
    return latest_ns - forward_ns;
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

/* The next of the rank's stages by when their gradients are complete, and of those that are at once
 * the last stage; -1: none is behind `after`. */
static int32_t next_complete(const sharing *s, int32_t after)
{
    int32_t next = -1;
    for (int32_t v = s->t->schedule->n_stages; v-- > 0;) {
        if (!holds(s, v) || v == after) continue;
        const double ns = complete_ns(s->e, v), from = after < 0 ? -1 : complete_ns(s->e, after);
        if (ns < from || (ns == from && v > after)) continue;
        if (next < 0 || ns < complete_ns(s->e, next)) next = v;
    }
    return next;
}

/* With two copies of the model sums begin when both have the gradients, which may be behind the
 * rank's own slots. */
static double reductions_of_copies(sharing *s)
{
    const dh_schedule *sch = s->t->schedule;
    double left_ns = 0, before_ns = -1, own_ns = 0;
    for (int32_t v = 0; v < sch->n_copies * sch->n_stages; v++)
        if (sch->rank_of[v] == s->rank) own_ns = DH_MAX(own_ns, s->e->t->scratch[s->t->last[v]]);
    for (int32_t v = next_complete(s, -1); v >= 0; v = next_complete(s, v)) {
        const double ns = complete_ns(s->e, v);
        size_t first, end;
        if (before_ns >= 0) run_beside(s->o, ns - before_ns, &left_ns);
        take_share(s, v, &first, &end);
        for (size_t k = first; k < end; k++) left_ns += s->o->reduction_ns[k];
        before_ns = ns;
    }
    return DH_MAX(before_ns, own_ns) - own_ns + left_ns;
}

/* A backward goes from the last stage to the first; between two of a rank it does other slots. */
double tune_reductions_behind(const estimate *e, int32_t rank)
{
    const tune_timetable *t = e->long_one;
    double left_ns = 0, before_ns = -1;
    if (e->outlines[rank]->n_reductions == 0) return 0;
    sharing s = share_of_rank(e, t, rank);
    if (t->schedule->n_copies > 1) return reductions_of_copies(&s);
    for (int32_t v = t->schedule->n_stages; v-- > 0;) {
        size_t first, end;
        if (t->schedule->rank_of[v] != rank) continue;
        const int32_t cls = t->slots[t->last[v]].cls;
        const tune_slot_cost *cost = &e->costs[cls];
        const double end_ns = e->t->scratch[t->last[v]], begin_ns = end_ns - cost->ns;
        if (before_ns >= 0) run_beside(s.o, DH_MAX(begin_ns - before_ns, 0.0), &left_ns);
        take_share(&s, v, &first, &end);
        if (t->classes[cls].last || s.o->reduces_each)
            reduce_beside(s.o, first, end, cost->ns - cost->delay_ns, &left_ns);
        else
            reduce_behind(s.o, first, end, cost->ns, &left_ns);
        before_ns = end_ns;
    }
    return left_ns;
}
