/* Busy, hidden, exposed and idle time of a step.
 *
 * A stream runs its instructions one after another, so its spans come sorted: a
 * cursor each meets every start and end in order of time, without sorting. Between two such
 * moments nothing changes, and the time between them is charged as a whole.
 *
 * By how much computations were slowed down follows from the time that each had a transfer beside
 * it, which the same pass counts, and from its own time.
 *
 * A vector clock tells for what the next computation waits. It has, by stream, the last instruction
 * that must end before it starts, as waits and the order of the streams say. */
#include <math.h>
#include <stdlib.h>

#include "program/clock.h"
#include "report/timeline.h"

static const char *const exposure_names[DH_N_EXPOSURE] = {[DH_EXPOSED_DEPENDENCY] = "dependency",
                                                          [DH_EXPOSED_CONTENTION] = "contention",
                                                          [DH_EXPOSED_TAIL] = "tail",
                                                          [DH_EXPOSED_LATE] = "late",
                                                          [DH_EXPOSED_SLOWDOWN] = "slowdown"};

static const char *const waiting_names[DH_N_WAITING] = {
    [DH_WAITS_STAGES] = "bubble", [DH_WAITS_PARTNERS] = "partners"};

const char *dh_exposure_name(dh_exposure cause)
{
    return (unsigned)cause < DH_N_EXPOSURE ? exposure_names[cause] : "?";
}

const char *dh_waiting_name(dh_waiting what)
{
    return (unsigned)what < DH_N_WAITING ? waiting_names[what] : "?";
}

typedef enum state { STANDS, WAITS, RUNS } state;

/* Where a stream stands. */
typedef struct cursor {
    const uint32_t *queue; /* its instructions */
    uint32_t n, next;      /* of queue[next], or before it where it stands */
    state state;
    int64_t at_ns; /* when it next starts, meets or ends an instruction; INT64_MAX: never again */
} cursor;

typedef struct sweep {
    const dh_program *program;
    const dh_span *spans;
    uint32_t *queues;     /* [instructions], one stream behind the other */
    dh_clock_vec *needed; /* by instruction, of ids plus one */
    cursor streams[DH_N_STREAM];
    int used[DH_N_STREAM]; /* [n_used] streams with instructions, ascending */
    int n_used;
    /* By instruction: of a computation the time beside a transfer, of a transfer that beside a
     * computation. */
    int64_t *beside_ns;
    /* By instruction: by how much each nanosecond beside transfers slowed a computation down. */
    const double *lost;
    dh_transfer_times *each; /* by instruction; NULL: not wanted */
} sweep;

/* ---- reading the program ------------------------------------------------------------------- */

static dh_status check_span(dh_ctx *ctx, const dh_span *spans, uint32_t id, uint32_t previous)
{
    const dh_span *span = &spans[id];
    if (span->end_ns < span->start_ns)
        return dh_fail(ctx, DH_EINVAL, "instruction %u ends %lld ns before it starts", id,
                       (long long)(span->start_ns - span->end_ns));
    if (span->met_ns < span->start_ns || span->met_ns > span->end_ns)
        return dh_fail(ctx, DH_EINVAL,
                       "instruction %u meets its partners before it starts or "
                       "after it ends",
                       id);
    if (previous && span->start_ns < spans[previous - 1].end_ns)
        return dh_fail(ctx, DH_EINVAL,
                       "instruction %u starts %lld ns before instruction %u, in front of it on its "
                       "stream, ended",
                       id, (long long)(spans[previous - 1].end_ns - span->start_ns), previous - 1);
    return DH_OK;
}

static void require(sweep *w, uint32_t id, uint8_t stream, uint32_t other)
{
    w->needed[id].at[stream] = DH_MAX(w->needed[id].at[stream], other + 1);
    dh_clock_merge(&w->needed[id], &w->needed[other]);
}

/* Instructions come in an order in which they could run, so one pass closes the clocks. */
static dh_status read_instr(dh_ctx *ctx, sweep *w, const dh_program *p, uint32_t id,
                            uint32_t previous)
{
    const dh_instr *instr = &p->instrs.at[id];
    DH_TRY(check_span(ctx, w->spans, id, previous));
    if (previous) require(w, id, instr->stream, previous - 1);
    for (uint32_t i = 0; i < instr->n_waits; i++) {
        const uint32_t other = p->waits.at[instr->wait0 + i].instr;
        if (other >= id)
            return dh_fail(ctx, DH_EINVAL, "instruction %u waits for instruction %u, a later one",
                           id, other);
        require(w, id, p->instrs.at[other].stream, other);
    }
    return DH_OK;
}

static dh_status read_program(dh_ctx *ctx, sweep *w, const dh_program *p)
{
    uint32_t *end[DH_N_STREAM], *queue = w->queues; /* end of the read part of a stream */
    for (uint32_t id = 0; id < p->instrs.n; id++) w->streams[p->instrs.at[id].stream].n++;
    for (int s = 0; s < DH_N_STREAM; queue += w->streams[s++].n)
        w->streams[s].queue = end[s] = queue;
    for (int s = 0; s < DH_N_STREAM; s++)
        if (w->streams[s].n > 0) w->used[w->n_used++] = s;
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        const uint8_t stream = p->instrs.at[id].stream;
        const uint32_t *read = end[stream];
        DH_TRY(read_instr(ctx, w, p, id, read == w->streams[stream].queue ? 0 : read[-1] + 1));
        *end[stream]++ = id;
    }
    return DH_OK;
}

/* ---- moments --------------------------------------------------------------------------------- */

static void find_moment(const sweep *w, cursor *c)
{
    c->at_ns = INT64_MAX;
    if (c->next == c->n) return;
    const dh_span *span = &w->spans[c->queue[c->next]];
    c->at_ns = c->state == STANDS  ? span->start_ns
               : c->state == WAITS ? span->met_ns
                                   : span->end_ns;
}

static int64_t earliest_moment(const sweep *w)
{
    int64_t t = INT64_MAX;
    for (int i = 0; i < w->n_used; i++) t = DH_MIN(t, w->streams[w->used[i]].at_ns);
    return t;
}

/* Starts and ends of this moment, those of instructions that took no time included.
 * returns   the next moment */
static int64_t pass_moment(sweep *w, int64_t t)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < w->n_used; i++) {
        cursor *c = &w->streams[w->used[i]];
        for (; c->at_ns == t; find_moment(w, c)) {
            if (c->state == RUNS) c->next++;
            c->state = c->state == RUNS ? STANDS : c->state + 1;
        }
        next = DH_MIN(next, c->at_ns);
    }
    return next;
}

/* ---- charging the time between two moments --------------------------------------------------- */

/* Why the compute stream stands still while this communication stream runs. */
static dh_exposure cause_of(const sweep *w, int stream)
{
    const cursor *compute = &w->streams[DH_STREAM_COMPUTE], *c = &w->streams[stream];
    if (compute->next == compute->n) return DH_EXPOSED_TAIL;
    const uint32_t needed = w->needed[compute->queue[compute->next]].at[stream];
    const uint32_t runs = c->queue[c->next] + 1;
    if (needed == runs) return DH_EXPOSED_DEPENDENCY;
    return needed > runs ? DH_EXPOSED_CONTENTION : DH_EXPOSED_LATE;
}

/* For whom the compute stream waits where this communication stream does. */
static dh_waiting waiting_of(const sweep *w, int stream)
{
    const cursor *compute = &w->streams[DH_STREAM_COMPUTE], *c = &w->streams[stream];
    const uint32_t id = c->queue[c->next];
    const bool at_end = compute->next == compute->n;
    if (!at_end && w->needed[compute->queue[compute->next]].at[stream] <= id) return DH_N_WAITING;
    const dh_op *op = dh_instr_op(w->program, &w->program->instrs.at[id]);
    const bool stages =
        w->program->mesh.pp > 1 && dh_group_varies((dh_group_kind)op->group, DH_MESH_PP);
    return stages ? DH_WAITS_STAGES : DH_WAITS_PARTNERS;
}

static void charge_idle(const sweep *w, int64_t ns, dh_timeline *t)
{
    dh_waiting what = DH_N_WAITING;
    for (int i = 0; i < w->n_used; i++)
        if (w->streams[w->used[i]].state == WAITS) what = DH_MIN(what, waiting_of(w, w->used[i]));
    t->idle_ns += ns;
    if (what != DH_N_WAITING) t->waits_ns[what] += ns;
}

static uint32_t running_on(const sweep *w, int stream)
{
    return w->streams[stream].queue[w->streams[stream].next];
}

static void charge_one(const sweep *w, int stream, dh_exposure cause, int64_t ns)
{
    dh_transfer_times *t = &w->each[running_on(w, stream)];
    if (w->streams[DH_STREAM_COMPUTE].state != RUNS) {
        t->exposed_by_ns[cause] += ns;
        return;
    }
    const uint32_t computed = running_on(w, DH_STREAM_COMPUTE);
    const int64_t lost = llround((double)ns * w->lost[computed]);
    t->exposed_by_ns[DH_EXPOSED_SLOWDOWN] += lost;
    t->beside_ns[dh_instr_op(w->program, &w->program->instrs.at[computed])->phase] += ns - lost;
}

static void charge(const sweep *w, int64_t ns, dh_timeline *t)
{
    const bool computes = w->streams[DH_STREAM_COMPUTE].state == RUNS;
    dh_exposure cause = DH_N_EXPOSURE; /* none: nothing communicates */
    bool busy[DH_N_ENGINE] = {false};
    for (int i = 0; i < w->n_used; i++) {
        const int s = w->used[i];
        if (w->streams[s].state != RUNS) continue;
        busy[dh_stream_engine((dh_stream)s)] = true;
        if (s == DH_STREAM_COMPUTE) continue;
        const dh_exposure own = cause_of(w, s);
        cause = DH_MIN(cause, own);
        if (computes) w->beside_ns[running_on(w, s)] += ns;
        if (w->each) charge_one(w, s, own, ns);
    }
    for (int e = 0; e < DH_N_ENGINE; e++) t->busy_ns[e] += busy[e] ? ns : 0;
    t->span_ns += ns;
    if (cause == DH_N_EXPOSURE) {
        if (!computes) charge_idle(w, ns, t);
    } else if (computes) {
        w->beside_ns[running_on(w, DH_STREAM_COMPUTE)] += ns;
    } else {
        t->exposed_by_ns[cause] += ns;
    }
}

static void run(sweep *w, dh_timeline *timeline)
{
    for (int i = 0; i < w->n_used; i++) find_moment(w, &w->streams[w->used[i]]);
    for (int64_t t = earliest_moment(w); t != INT64_MAX;) {
        const int64_t next = pass_moment(w, t);
        if (next != INT64_MAX) charge(w, next - t, timeline);
        t = next;
    }
}

/* Through the whole step; beside_ns [instructions] is added to. */
static dh_status sweep_over(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                            int64_t *beside_ns, const double *lost, dh_transfer_times *each,
                            dh_timeline *timeline)
{
    sweep w = {.program = program,
               .spans = spans,
               .beside_ns = beside_ns,
               .lost = lost,
               .each = each,
               .queues = calloc(program->instrs.n + 1, sizeof *w.queues),
               .needed = calloc(program->instrs.n + 1, sizeof *w.needed)};
    dh_status st = w.queues && w.needed ? read_program(ctx, &w, program) : dh_no_memory(ctx);
    *timeline = (dh_timeline){0};
    if (st == DH_OK) run(&w, timeline);
    free(w.queues);
    free(w.needed);
    return st;
}

/* ---- own times ------------------------------------------------------------------------------- */

/* Operators in the same place of one graph: all take the same time alone. */
typedef struct kinds {
    const dh_program *program;
    size_t *first;  /* by graph: kind of its operator 0 */
    double *sum_ns; /* by kind, of those that had nothing beside them */
    uint32_t *n;
} kinds;

static size_t kind_of(const kinds *k, const dh_instr *i)
{
    return k->first[k->program->blocks.at[i->block].graph] + i->op;
}

static double ran_ns(const dh_program *p, const dh_span *spans, uint32_t id)
{
    const bool computes = p->instrs.at[id].stream == DH_STREAM_COMPUTE;
    return (double)(spans[id].end_ns - (computes ? spans[id].start_ns : spans[id].met_ns));
}

static bool kinds_init(kinds *k, const dh_program *p)
{
    size_t n = 0;
    *k = (kinds){.program = p, .first = calloc(p->graphs.n + 1, sizeof *k->first)};
    for (size_t g = 0; k->first && g < p->graphs.n; n += p->graphs.at[g++]->ops.n) k->first[g] = n;
    k->sum_ns = calloc(n + 1, sizeof *k->sum_ns);
    k->n = calloc(n + 1, sizeof *k->n);
    return k->first && k->sum_ns && k->n;
}

static void kinds_fini(kinds *k)
{
    free(k->first);
    free(k->sum_ns);
    free(k->n);
}

static void add_instr(kinds *k, uint32_t id, double ns)
{
    const size_t kind = kind_of(k, &k->program->instrs.at[id]);
    k->sum_ns[kind] += ns;
    k->n[kind]++;
}

/* By engine: time here over measured time, of instructions that had nothing beside them. */
static void find_scale(const dh_program *p, const dh_span *spans, const double *measured_ns,
                       const int64_t *beside_ns, double scale[DH_N_ENGINE])
{
    double here[DH_N_ENGINE] = {0}, measured[DH_N_ENGINE] = {0};
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        if (beside_ns[id] > 0 || measured_ns[id] <= 0) continue;
        const dh_engine e = dh_stream_engine((dh_stream)p->instrs.at[id].stream);
        here[e] += ran_ns(p, spans, id);
        measured[e] += measured_ns[id];
    }
    for (int e = 0; e < DH_N_ENGINE; e++)
        scale[e] = here[e] > 0 && measured[e] > 0 ? here[e] / measured[e] : 1;
}

static dh_status find_alone(dh_ctx *ctx, const dh_program *p, const dh_span *spans,
                            const double *measured_ns, const int64_t *beside_ns, double *alone_ns)
{
    kinds k;
    double scale[DH_N_ENGINE];
    const bool ok = kinds_init(&k, p);
    for (uint32_t id = 0; ok && id < p->instrs.n; id++)
        if (beside_ns[id] == 0) add_instr(&k, id, ran_ns(p, spans, id));
    if (measured_ns) find_scale(p, spans, measured_ns, beside_ns, scale);
    for (uint32_t id = 0; ok && id < p->instrs.n; id++) {
        const size_t kind = kind_of(&k, &p->instrs.at[id]);
        alone_ns[id] = ran_ns(p, spans, id);
        if (k.n[kind] > 0)
            alone_ns[id] = k.sum_ns[kind] / k.n[kind];
        else if (measured_ns && measured_ns[id] > 0)
            alone_ns[id] =
                measured_ns[id] * scale[dh_stream_engine((dh_stream)p->instrs.at[id].stream)];
    }
    kinds_fini(&k);
    return ok ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_timeline_measured(dh_ctx *ctx, const dh_program *program, const dh_costs *costs,
                               double *measured_ns)
{
    kinds k;
    const bool ok = kinds_init(&k, program);
    for (size_t g = 0; ok && g < program->graphs.n; g++)
        for (size_t i = 0; i < program->graphs.at[g]->ops.n; i++) {
            const dh_graph *graph = program->graphs.at[g];
            const dh_cost_op at = {graph, &graph->ops.at[i], &program->mesh, program->rank};
            const dh_op_time time = costs->solo(costs->self, &at);
            if (time.source == DH_PAIR_MEASURED) k.sum_ns[k.first[g] + i] = time.ns;
        }
    for (uint32_t id = 0; ok && id < program->instrs.n; id++)
        measured_ns[id] = k.sum_ns[kind_of(&k, &program->instrs.at[id])];
    kinds_fini(&k);
    return ok ? DH_OK : dh_no_memory(ctx);
}

/* By how much a computation beside transfers took longer than alone. */
static double slowed_ns(const dh_program *p, const dh_span *spans, const double *alone_ns,
                        const int64_t *beside_ns, uint32_t id)
{
    if (!alone_ns || p->instrs.at[id].stream != DH_STREAM_COMPUTE || beside_ns[id] == 0) return 0;
    return DH_MIN(ran_ns(p, spans, id) - alone_ns[id], (double)beside_ns[id]);
}

static void add_up(const dh_program *p, const dh_span *spans, const double *alone_ns,
                   const int64_t *beside_ns, dh_timeline *t)
{
    double slowed = 0, alone = 0;
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        slowed += slowed_ns(p, spans, alone_ns, beside_ns, id);
        if (p->instrs.at[id].stream != DH_STREAM_COMPUTE)
            alone += alone_ns ? alone_ns[id] : ran_ns(p, spans, id);
    }
    t->alone_ns = llround(alone);
    t->exposed_by_ns[DH_EXPOSED_SLOWDOWN] = llround(slowed);
    for (int i = 0; i < DH_N_EXPOSURE; i++) t->exposed_ns += t->exposed_by_ns[i];
    t->hidden_ns = t->alone_ns - t->exposed_ns;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Work space for the sweeps of a step, and own times. */
typedef struct scratch {
    int64_t *beside_ns;
    double *alone_ns; /* or what each nanosecond lost */
} scratch;

static dh_status scratch_init(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                              scratch *s, dh_timeline *all)
{
    *s = (scratch){calloc(program->instrs.n + 1, sizeof *s->beside_ns),
                   calloc(program->instrs.n + 1, sizeof *s->alone_ns)};
    if (!s->beside_ns || !s->alone_ns) return dh_no_memory(ctx);
    return sweep_over(ctx, program, spans, s->beside_ns, NULL, NULL, all);
}

static void scratch_fini(scratch *s)
{
    free(s->beside_ns);
    free(s->alone_ns);
}

dh_status dh_timeline_reduce(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                             const double *alone_ns, dh_timeline *timeline)
{
    scratch s;
    dh_timeline result;
    const dh_status st = scratch_init(ctx, program, spans, &s, &result);
    if (st == DH_OK) add_up(program, spans, alone_ns, s.beside_ns, &result);
    if (st == DH_OK) *timeline = result;
    scratch_fini(&s);
    return st;
}

dh_status dh_timeline_observe(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                              const double *measured_ns, dh_timeline *timeline)
{
    scratch s;
    dh_timeline result;
    dh_status st = scratch_init(ctx, program, spans, &s, &result);
    if (st == DH_OK) st = find_alone(ctx, program, spans, measured_ns, s.beside_ns, s.alone_ns);
    if (st == DH_OK) add_up(program, spans, s.alone_ns, s.beside_ns, &result);
    if (st == DH_OK) *timeline = result;
    scratch_fini(&s);
    return st;
}

/* Every nanosecond beside transfers has lost the same part of itself. */
static void find_lost(const dh_program *p, const dh_span *spans, const double *alone_ns,
                      const int64_t *beside_ns, double *lost)
{
    for (uint32_t id = 0; id < p->instrs.n; id++)
        if (beside_ns[id] > 0)
            lost[id] = slowed_ns(p, spans, alone_ns, beside_ns, id) / (double)beside_ns[id];
}

dh_status dh_timeline_transfers(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                                const double *alone_ns, dh_transfer_times *each)
{
    scratch s;
    dh_timeline all;
    for (size_t i = 0; i < program->instrs.n; i++) each[i] = (dh_transfer_times){{0}, {0}};
    dh_status st = scratch_init(ctx, program, spans, &s, &all);
    if (st == DH_OK) {
        find_lost(program, spans, alone_ns, s.beside_ns, s.alone_ns);
        st = sweep_over(ctx, program, spans, s.beside_ns, s.alone_ns, each, &all);
    }
    scratch_fini(&s);
    return st;
}

void dh_timeline_add(dh_timeline *sum, const dh_timeline *one)
{
    sum->span_ns += one->span_ns;
    for (int e = 0; e < DH_N_ENGINE; e++) sum->busy_ns[e] += one->busy_ns[e];
    sum->alone_ns += one->alone_ns;
    sum->hidden_ns += one->hidden_ns;
    sum->exposed_ns += one->exposed_ns;
    for (int i = 0; i < DH_N_EXPOSURE; i++) sum->exposed_by_ns[i] += one->exposed_by_ns[i];
    sum->idle_ns += one->idle_ns;
    for (int i = 0; i < DH_N_WAITING; i++) sum->waits_ns[i] += one->waits_ns[i];
}

int64_t dh_timeline_compute_ns(const dh_timeline *timeline)
{
    return timeline->busy_ns[DH_ENGINE_COMPUTE] - timeline->exposed_by_ns[DH_EXPOSED_SLOWDOWN];
}

double dh_timeline_hidden_share(const dh_timeline *timeline)
{
    return timeline->alone_ns > 0 ? (double)timeline->hidden_ns / (double)timeline->alone_ns : 0;
}
