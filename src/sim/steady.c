/* The steady phase of a simulated step: a stretch of time in which all ranks repeat themselves.
 *
 * What a simulation does next depends on its state alone: what every stream is at and has left.
 * If every rank does in one stretch of time what it did in the stretch before, only `period`
 * micro-batches later, the state at the end of both is the same, and it repeats for as long as the
 * schedule does. A step with more micro-batches is then longer by whole stretches, exactly.
 *
 * The host is the one part of the state that does not repeat, where it is ahead of the device. Its
 * lead must not shrink: a period's issues take it no longer than the stretch. */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

/* The repeated instructions of a rank: instruction i + length is i one period later, and ran
 * period_ns later, for i in [first, end). */
typedef struct stretch {
    const dh_program *p;
    const dh_span *spans;
    dh_schedule_phase phase;
    int64_t period_ns;
    uint32_t first, end, length;
} stretch;

static bool is_same(const stretch *s, uint32_t i, uint32_t k)
{
    const dh_instr *a = &s->p->instrs.at[i], *b = &s->p->instrs.at[k];
    return a->block == b->block && a->op == b->op && a->stream == b->stream && a->mb >= 0 &&
           a->mb + s->phase.step == b->mb;
}

static bool is_span_later(const stretch *s, size_t a, size_t b)
{
    const dh_span *x = &s->spans[a], *y = &s->spans[b];
    return x->start_ns + s->period_ns == y->start_ns && x->met_ns + s->period_ns == y->met_ns &&
           x->end_ns + s->period_ns == y->end_ns;
}

/* Whether instruction i + length repeats i, in what it is, in what it waits for, and in time. */
static bool repeats(const stretch *s, uint32_t i)
{
    const uint32_t k = i + s->length;
    const dh_instr *a = &s->p->instrs.at[i], *b = &s->p->instrs.at[k];
    bool same = is_same(s, i, k) && a->n_waits == b->n_waits && is_span_later(s, i, k);
    for (uint32_t w = 0; same && w < a->n_waits; w++) {
        const dh_wait x = s->p->waits.at[a->wait0 + w], y = s->p->waits.at[b->wait0 + w];
        same = x.instr + s->length == y.instr && x.part == y.part;
    }
    const uint32_t n_parts = dh_instr_n_parts(s->p, i);
    for (uint32_t part = 0; same && n_parts > 1 && part < n_parts; part++)
        same = is_span_later(s, dh_program_part_span(s->p, i, part),
                             dh_program_part_span(s->p, k, part));
    return same;
}

/* The stretch around the middle instruction. period_ns 0: as it comes out. */
static bool find_stretch(stretch *s)
{
    const uint32_t n = (uint32_t)s->p->instrs.n, middle = n / 2;
    uint32_t again = middle + 1;
    while (again < n && !is_same(s, middle, again)) again++;
    if (again >= n) return false;
    s->length = again - middle;
    if (s->period_ns == 0) s->period_ns = s->spans[again].end_ns - s->spans[middle].end_ns;
    s->first = s->end = middle;
    while (s->first > 0 && repeats(s, s->first - 1)) s->first--;
    while (s->end + s->length < n && repeats(s, s->end)) s->end++;
    return s->end > s->first;
}

/* When the last instruction before the stretch had ended, and the first one after it began. */
typedef struct limits {
    int64_t from, until, longest;
} limits;

static void bound(const stretch *s, limits *l)
{
    for (uint32_t i = 0; i < s->first; i++) l->from = DH_MAX(l->from, s->spans[i].end_ns);
    for (uint32_t i = s->first; i < s->end + s->length; i++)
        l->longest = DH_MAX(l->longest, s->spans[i].end_ns - s->spans[i].start_ns);
    for (uint32_t i = s->end + s->length; i < s->p->instrs.n; i++)
        l->until = DH_MIN(l->until, s->spans[i].start_ns);
}

static bool host_keeps_up(const stretch *s, const dh_sim_host *host)
{
    if (!host->issued_ns) return true;
    return host->issued_ns[s->first + s->length] - host->issued_ns[s->first] <= s->period_ns;
}

/* Whether all ranks repeat themselves for two periods of the same time. */
static bool find_stretches(const dh_sim *sim, const dh_sim_node *node, dh_schedule_phase phase,
                           stretch *each, limits *l)
{
    *l = (limits){.until = sim->step_ns};
    for (size_t k = 0; k < sim->n_classes; k++) {
        stretch *s = &each[k];
        *s = (stretch){.p = sim->ranks[k].program,
                       .spans = sim->ranks[k].spans,
                       .phase = phase,
                       .period_ns = k > 0 ? each[0].period_ns : 0};
        if (!find_stretch(s) || !host_keeps_up(s, &node[k].costs->host)) return false;
        bound(s, l);
    }
    return l->until - l->from >= 2 * each[0].period_ns + l->longest;
}

/* ---- the step without a period ---------------------------------------------------------------- */

/* Instructions [cut, cut + length) are left out. Later instructions then ran one period earlier. An
 * instruction that waited for one that is left out waits for the same one a period before. */
static uint32_t cut_of(const stretch *s)
{
    return s->first + s->length;
}

static dh_program *cut_program(dh_arena *arena, const stretch *s)
{
    const uint32_t cut = cut_of(s), n = (uint32_t)s->p->instrs.n - s->length;
    dh_program *p = DH_NEW(arena, dh_program);
    dh_instr *instrs = DH_NEW_N(arena, dh_instr, n);
    dh_wait *waits = DH_NEW_N(arena, dh_wait, s->p->waits.n + 1);
    if (!p || !instrs || !waits) return NULL;
    memcpy(instrs, s->p->instrs.at, cut * sizeof *instrs);
    memcpy(instrs + cut, s->p->instrs.at + cut + s->length, (n - cut) * sizeof *instrs);
    if (s->p->waits.n > 0) memcpy(waits, s->p->waits.at, s->p->waits.n * sizeof *waits);
    for (uint32_t i = cut; i < n; i++)
        for (uint32_t w = 0; w < instrs[i].n_waits; w++)
            if (waits[instrs[i].wait0 + w].instr >= cut)
                waits[instrs[i].wait0 + w].instr -= s->length;
    *p = *s->p;
    p->n_micro -= s->phase.period;
    p->instrs.at = instrs;
    p->instrs.n = n;
    p->waits.at = waits;
    return p;
}

static void put_span(const stretch *s, uint32_t instr, const dh_span *from, dh_span *to)
{
    const int64_t ns = instr < cut_of(s) ? 0 : s->period_ns;
    *to = (dh_span){from->start_ns - ns, from->met_ns - ns, from->end_ns - ns};
}

static dh_span *cut_spans(dh_arena *arena, const stretch *s, const dh_program *p)
{
    dh_span *spans = DH_NEW_N(arena, dh_span, dh_program_n_spans(p) + 1);
    for (uint32_t i = 0; spans && i < p->instrs.n; i++) {
        const uint32_t was = i < cut_of(s) ? i : i + s->length;
        const uint32_t n_parts = dh_instr_n_parts(p, i);
        put_span(s, i, &s->spans[was], &spans[i]);
        for (uint32_t part = 0; n_parts > 1 && part < n_parts; part++)
            put_span(s, i, &s->spans[dh_program_part_span(s->p, was, part)],
                     &spans[dh_program_part_span(p, i, part)]);
    }
    return spans;
}

static double *cut_alone(dh_arena *arena, const stretch *s, const double *alone_ns, size_t n)
{
    const uint32_t cut = cut_of(s);
    double *alone = DH_NEW_N(arena, double, n + 1);
    if (!alone) return NULL;
    memcpy(alone, alone_ns, cut * sizeof *alone);
    memcpy(alone + cut, alone_ns + cut + s->length, (n - cut) * sizeof *alone);
    return alone;
}

static dh_status cut_rank(dh_ctx *ctx, const stretch *s, const dh_sim_op_costs *costs,
                          dh_sim *shorter, dh_sim_rank *r)
{
    const dh_program *p = cut_program(shorter->arena, s);
    dh_span *spans = p ? cut_spans(shorter->arena, s, p) : NULL;
    double *alone = p ? cut_alone(shorter->arena, s, r->alone_ns, p->instrs.n) : NULL;
    if (!spans || !alone) return dh_no_memory(ctx);
    for (uint32_t i = cut_of(s); i < cut_of(s) + s->length; i++) {
        const dh_instr *instr = &s->p->instrs.at[i];
        const dh_op *op = dh_instr_op(s->p, instr);
        const dh_op_time *solo = &costs->solo[costs->instrs[i].kind];
        shorter->solo_ns_by[solo->source] -= solo->ns * (double)r->n_ranks;
        if (!dh_op_multiplies(op->type)) continue;
        const double flops = dh_op_flops(dh_instr_graph(s->p, instr), op);
        r->flops -= flops;
        shorter->hardware_flops -= flops * (double)r->n_ranks;
    }
    r->program = p;
    r->spans = spans;
    r->alone_ns = alone;
    r->n_instrs -= s->length;
    shorter->n_instrs -= s->length;
    return dh_timeline_reduce(ctx, p, spans, alone, &r->times);
}

static dh_status cut(dh_ctx *ctx, const dh_sim *sim, const dh_sim_node *node, const stretch *each,
                     const limits *l, dh_sim *shorter)
{
    *shorter = *sim;
    shorter->programs = NULL;
    shorter->n_programs = 0;
    shorter->arena = dh_arena_create();
    if (!shorter->arena) return dh_no_memory(ctx);
    shorter->ranks = DH_NEW_N(shorter->arena, dh_sim_rank, sim->n_classes);
    if (!shorter->ranks) return dh_no_memory(ctx);
    shorter->step_ns -= each[0].period_ns;
    for (size_t k = 0; k < sim->n_classes; k++) {
        dh_sim_rank *r = &shorter->ranks[k];
        *r = sim->ranks[k];
        if (r->memory.peak_ns >= l->until) r->memory.peak_ns -= each[0].period_ns;
        DH_TRY(cut_rank(ctx, &each[k], node[k].costs, shorter, r));
    }
    return DH_OK;
}

dh_status dh_sim_without_period(dh_ctx *ctx, const dh_sim *sim, const dh_sim_node *node,
                                dh_schedule_phase phase, dh_sim **shorter)
{
    limits l;
    stretch *each = calloc(sim->n_classes, sizeof *each);
    dh_sim *made = calloc(1, sizeof *made);
    dh_status st = each && made ? DH_OK : dh_no_memory(ctx);
    *shorter = NULL;
    if (st == DH_OK && find_stretches(sim, node, phase, each, &l)) {
        st = cut(ctx, sim, node, each, &l, made);
        if (st == DH_OK) *shorter = made;
    }
    if (!*shorter) dh_sim_destroy(made);
    free(each);
    return st;
}

/* ---- a step with more periods --------------------------------------------------------------- */

void dh_sim_extend(const dh_sim *sim, const double *shorter, size_t n, double *sums)
{
    for (size_t i = 0; i < n; i++) sums[i] += (double)sim->n_more * (sums[i] - shorter[i]);
}

static void lengthen(int64_t *sum, int64_t shorter, int64_t n_more)
{
    *sum += n_more * (*sum - shorter);
}

static void lengthen_times(dh_timeline *times, const dh_timeline *shorter, int64_t n_more)
{
    enum { N = sizeof(dh_timeline) / sizeof(int64_t) };
    _Static_assert(sizeof(dh_timeline) == N * sizeof(int64_t), "fields of one type");
    int64_t with[N], without[N];
    memcpy(with, times, sizeof with);
    memcpy(without, shorter, sizeof without);
    for (int i = 0; i < N; i++) lengthen(&with[i], without[i], n_more);
    memcpy(times, with, sizeof with);
}

void dh_sim_lengthen(dh_sim *sim, dh_sim *shorter, int64_t n_more)
{
    sim->shorter = shorter;
    sim->n_more = n_more;
    lengthen(&sim->step_ns, shorter->step_ns, n_more);
    sim->n_instrs += (uint64_t)n_more * (sim->n_instrs - shorter->n_instrs);
    dh_sim_extend(sim, &shorter->hardware_flops, 1, &sim->hardware_flops);
    dh_sim_extend(sim, shorter->solo_ns_by, DH_N_PAIR_SOURCES, sim->solo_ns_by);
    for (size_t k = 0; k < sim->n_classes; k++) {
        dh_sim_rank *r = &sim->ranks[k];
        const dh_sim_rank *less = &shorter->ranks[k];
        lengthen_times(&r->times, &less->times, n_more);
        r->n_instrs += (uint64_t)n_more * (r->n_instrs - less->n_instrs);
        lengthen(&r->memory.peak_ns, less->memory.peak_ns, n_more);
        dh_sim_extend(sim, &less->flops, 1, &r->flops);
    }
}
