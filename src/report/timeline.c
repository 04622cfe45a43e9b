/* Busy, hidden, exposed and idle time of a step.
 *
 * A stream runs its instructions one after another, so its spans come sorted: a
 * cursor each meets every start and end in order of time, without sorting. Between two such
 * moments nothing changes, and the time between them is charged as a whole.
 *
 * What the next computation waits for is read from a vector clock: by stream, the last
 * instruction that must end before it starts, as waits and the order of the streams say. */
#include <stdlib.h>

#include "program/clock.h"
#include "report/timeline.h"

static const char *const exposure_names[DH_N_EXPOSURE] = {[DH_EXPOSED_DEPENDENCY] = "dependency",
                                                          [DH_EXPOSED_CONTENTION] = "contention",
                                                          [DH_EXPOSED_TAIL] = "tail",
                                                          [DH_EXPOSED_OTHER] = "other"};

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
    uint32_t *end[DH_N_STREAM], *queue = w->queues; /* of what is read of a stream */
    for (uint32_t id = 0; id < p->instrs.n; id++) w->streams[p->instrs.at[id].stream].n++;
    for (int s = 0; s < DH_N_STREAM; queue += w->streams[s++].n)
        w->streams[s].queue = end[s] = queue;
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
    for (int s = 0; s < DH_N_STREAM; s++) t = DH_MIN(t, w->streams[s].at_ns);
    return t;
}

/* Starts and ends of this moment, those of instructions that took no time included.
 * returns   the next moment */
static int64_t pass_moment(sweep *w, int64_t t)
{
    int64_t next = INT64_MAX;
    for (int s = 0; s < DH_N_STREAM; s++) {
        cursor *c = &w->streams[s];
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
    return needed > runs ? DH_EXPOSED_CONTENTION : DH_EXPOSED_OTHER;
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
    for (int s = 0; s < DH_N_STREAM; s++)
        if (w->streams[s].state == WAITS) what = DH_MIN(what, waiting_of(w, s));
    t->idle_ns += ns;
    if (what != DH_N_WAITING) t->waits_ns[what] += ns;
}

static void charge_one(const sweep *w, int stream, dh_exposure cause, int64_t ns)
{
    const cursor *compute = &w->streams[DH_STREAM_COMPUTE], *c = &w->streams[stream];
    dh_transfer_times *t = &w->each[c->queue[c->next]];
    if (compute->state != RUNS) {
        t->exposed_by_ns[cause] += ns;
        return;
    }
    const dh_instr *computed = &w->program->instrs.at[compute->queue[compute->next]];
    t->hidden_ns[dh_instr_op(w->program, computed)->phase] += ns;
}

static void charge(const sweep *w, int64_t ns, dh_timeline *t)
{
    dh_exposure cause = DH_N_EXPOSURE; /* none: nothing communicates */
    bool busy[DH_N_ENGINE] = {false};
    for (int s = 0; s < DH_N_STREAM; s++) {
        if (w->streams[s].state != RUNS) continue;
        busy[dh_stream_engine((dh_stream)s)] = true;
        if (s == DH_STREAM_COMPUTE) continue;
        const dh_exposure own = cause_of(w, s);
        cause = DH_MIN(cause, own);
        if (w->each) charge_one(w, s, own, ns);
    }
    for (int e = 0; e < DH_N_ENGINE; e++) t->busy_ns[e] += busy[e] ? ns : 0;
    t->span_ns += ns;
    const bool computes = w->streams[DH_STREAM_COMPUTE].state == RUNS;
    if (cause == DH_N_EXPOSURE) {
        if (!computes) charge_idle(w, ns, t);
    } else if (computes) {
        t->hidden_ns += ns;
    } else {
        t->exposed_ns += ns;
        t->exposed_by_ns[cause] += ns;
    }
}

static void run(sweep *w, dh_timeline *timeline)
{
    for (int s = 0; s < DH_N_STREAM; s++) find_moment(w, &w->streams[s]);
    for (int64_t t = earliest_moment(w); t != INT64_MAX;) {
        const int64_t next = pass_moment(w, t);
        if (next != INT64_MAX) charge(w, next - t, timeline);
        t = next;
    }
}

/* ---- entries --------------------------------------------------------------------------------- */

static dh_status reduce(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                        dh_transfer_times *each, dh_timeline *timeline)
{
    sweep w = {.program = program,
               .spans = spans,
               .each = each,
               .queues = calloc(program->instrs.n + 1, sizeof *w.queues),
               .needed = calloc(program->instrs.n + 1, sizeof *w.needed)};
    dh_status st = w.queues && w.needed
                       ? read_program(ctx, &w, program)
                       : dh_fail(ctx, DH_ENOMEM, "out of memory reading a step's times");
    if (st == DH_OK) {
        dh_timeline result = {0};
        run(&w, &result);
        *timeline = result;
    }
    free(w.queues);
    free(w.needed);
    return st;
}

dh_status dh_timeline_reduce(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                             dh_timeline *timeline)
{
    return reduce(ctx, program, spans, NULL, timeline);
}

dh_status dh_timeline_transfers(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                                dh_transfer_times *each)
{
    dh_timeline all;
    for (size_t i = 0; i < program->instrs.n; i++) each[i] = (dh_transfer_times){{0}, {0}};
    return reduce(ctx, program, spans, each, &all);
}

void dh_timeline_add(dh_timeline *sum, const dh_timeline *one)
{
    sum->span_ns += one->span_ns;
    for (int e = 0; e < DH_N_ENGINE; e++) sum->busy_ns[e] += one->busy_ns[e];
    sum->hidden_ns += one->hidden_ns;
    sum->exposed_ns += one->exposed_ns;
    for (int i = 0; i < DH_N_EXPOSURE; i++) sum->exposed_by_ns[i] += one->exposed_by_ns[i];
    sum->idle_ns += one->idle_ns;
    for (int i = 0; i < DH_N_WAITING; i++) sum->waits_ns[i] += one->waits_ns[i];
}

double dh_timeline_hidden_share(const dh_timeline *timeline)
{
    const int64_t communicating = timeline->hidden_ns + timeline->exposed_ns;
    return communicating > 0 ? (double)timeline->hidden_ns / (double)communicating : 0;
}
