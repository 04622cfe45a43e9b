/* Timelines reckoned by hand, and random ones against counting every nanosecond. */
#include "dh_test.h"

#include <math.h>

#include "report/timeline.h"

enum { MAX_INSTRS = 48, MAX_WAITS = 2, C = DH_STREAM_COMPUTE, L = DH_STREAM_LOCAL };
enum { X = DH_STREAM_CROSS, D = DH_STREAM_CROSS_DATA, NO = -1 };

/* An instruction as the cases write it: `a` and `b` are ids it waits for, or NO. */
typedef struct step_row {
    int stream;
    int64_t start, end;
    int a, b;
} step_row;

/* Of a communication: how long it waits for its partners, from its start on. */
typedef struct partners {
    int64_t wait;
    bool stages; /* they are of other pipeline stages */
} partners;

/* A program of nothing but streams, waits and groups. */
typedef struct mock {
    dh_program program;
    dh_graph graph, *graphs[1];
    dh_block block;
    dh_op ops[MAX_INSTRS];
    dh_instr instrs[MAX_INSTRS];
    dh_wait waits[MAX_INSTRS * MAX_WAITS];
    dh_span spans[MAX_INSTRS];
} mock;

/* Far from 0, as a clock that has run for months. */
static const int64_t base_ns = 12345678901234567;

/* with [n], or NULL: nobody waits */
static void mock_init(mock *m, const step_row *rows, const partners *with, size_t n)
{
    memset(m, 0, sizeof *m);
    m->program.instrs.at = m->instrs;
    m->program.waits.at = m->waits;
    m->program.instrs.n = n;
    m->program.mesh.pp = 2;
    m->program.blocks.at = &m->block;
    m->program.blocks.n = 1;
    m->program.graphs.at = m->graphs;
    m->program.graphs.n = 1;
    m->graphs[0] = &m->graph;
    m->graph.ops.at = m->ops;
    m->graph.ops.n = n;
    for (size_t i = 0; i < n; i++) {
        dh_instr *instr = &m->instrs[i];
        instr->op = (uint32_t)i;
        m->ops[i].phase = (dh_phase)(i % DH_N_PHASE);
        m->ops[i].group = with && with[i].stages ? DH_GROUP_PP : DH_GROUP_TP;
        instr->stream = (uint8_t)rows[i].stream;
        instr->wait0 = (uint32_t)m->program.waits.n;
        if (rows[i].a != NO)
            m->waits[m->program.waits.n++] = (dh_wait){(uint32_t)rows[i].a, DH_NONE};
        if (rows[i].b != NO)
            m->waits[m->program.waits.n++] = (dh_wait){(uint32_t)rows[i].b, DH_NONE};
        instr->n_waits = (uint16_t)(m->program.waits.n - instr->wait0);
        const int64_t start = base_ns + rows[i].start;
        m->spans[i] = (dh_span){start, start + (with ? with[i].wait : 0), base_ns + rows[i].end};
    }
}

static void assert_same(const dh_timeline *got, const dh_timeline *want)
{
    assert_int_equal(got->span_ns, want->span_ns);
    for (int e = 0; e < DH_N_ENGINE; e++) assert_int_equal(got->busy_ns[e], want->busy_ns[e]);
    assert_int_equal(got->alone_ns, want->alone_ns);
    assert_int_equal(got->hidden_ns, want->hidden_ns);
    assert_int_equal(got->exposed_ns, want->exposed_ns);
    for (int i = 0; i < DH_N_EXPOSURE; i++)
        assert_int_equal(got->exposed_by_ns[i], want->exposed_by_ns[i]);
    assert_int_equal(got->idle_ns, want->idle_ns);
    for (int i = 0; i < DH_N_WAITING; i++) assert_int_equal(got->waits_ns[i], want->waits_ns[i]);
}

/* ---- by hand ------------------------------------------------------------------------------- */

typedef struct hand_case {
    const char *what;
    size_t n;
    step_row rows[6];
    dh_timeline want;
} hand_case;

static const hand_case cases[] = {
    {"nothing", 0, {{0}}, {0}},
    {"computation with a gap",
     2,
     {{C, 0, 5, NO, NO}, {C, 9, 12, NO, NO}},
     {.span_ns = 12, .busy_ns = {8, 0, 0}, .idle_ns = 4}},
    {"partly hidden, then awaited",
     4,
     {{C, 0, 10, NO, NO}, {L, 10, 30, 0, NO}, {C, 10, 18, NO, NO}, {C, 30, 40, 1, NO}},
     {.span_ns = 40,
      .busy_ns = {28, 20, 0},
      .alone_ns = 20,
      .hidden_ns = 8,
      .exposed_ns = 12,
      .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 12}}},
    {"an earlier transfer is in the way of the awaited one",
     3,
     {{L, 0, 10, NO, NO}, {L, 10, 21, NO, NO}, {C, 21, 25, 1, NO}},
     {.span_ns = 25,
      .busy_ns = {4, 21, 0},
      .alone_ns = 21,
      .exposed_ns = 21,
      .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 11, [DH_EXPOSED_CONTENTION] = 10}}},
    {"the step's end waits",
     2,
     {{C, 0, 10, NO, NO}, {X, 10, 30, 0, NO}},
     {.span_ns = 30,
      .busy_ns = {10, 0, 20},
      .alone_ns = 20,
      .exposed_ns = 20,
      .exposed_by_ns = {[DH_EXPOSED_TAIL] = 20}}},
    {"free to run, but late",
     3,
     {{C, 0, 5, NO, NO}, {L, 5, 20, NO, NO}, {C, 8, 10, NO, NO}},
     {.span_ns = 20,
      .busy_ns = {7, 15, 0},
      .alone_ns = 15,
      .hidden_ns = 2,
      .exposed_ns = 13,
      .exposed_by_ns = {[DH_EXPOSED_TAIL] = 10, [DH_EXPOSED_LATE] = 3}}},
    {"awaited through another stream, then a bubble",
     3,
     {{X, 0, 10, NO, NO}, {L, 10, 20, 0, NO}, {C, 25, 30, 1, NO}},
     {.span_ns = 30,
      .busy_ns = {5, 10, 10},
      .alone_ns = 20,
      .exposed_ns = 20,
      .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 20},
      .idle_ns = 5}},
    {"two at once count once, by the stronger cause: the shorter is hidden behind the longer",
     3,
     {{L, 0, 10, NO, NO}, {X, 0, 20, NO, NO}, {C, 20, 22, 1, NO}},
     {.span_ns = 22,
      .busy_ns = {2, 10, 20},
      .alone_ns = 30,
      .hidden_ns = 10,
      .exposed_ns = 20,
      .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 20}}},
    {"two hidden at once are both hidden",
     3,
     {{C, 0, 9, NO, NO}, {L, 2, 6, NO, NO}, {X, 4, 9, NO, NO}},
     {.span_ns = 9, .busy_ns = {9, 4, 5}, .alone_ns = 9, .hidden_ns = 9}},
    {"two on one link are one time of the link",
     4,
     {{X, 0, 10, NO, NO}, {D, 4, 15, NO, NO}, {C, 10, 12, 0, NO}, {C, 15, 16, 1, NO}},
     {.span_ns = 16,
      .busy_ns = {3, 0, 15},
      .alone_ns = 21,
      .hidden_ns = 8,
      .exposed_ns = 13,
      .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 13}}},
    {"instructions that take no time",
     5,
     {{C, 0, 0, NO, NO}, {L, 0, 0, 0, NO}, {C, 3, 3, 1, NO}, {C, 3, 5, NO, NO}, {X, 5, 5, 3, NO}},
     {.span_ns = 5, .busy_ns = {2, 0, 0}, .idle_ns = 3}},
};

/* alone: own times by instruction; 0: as long as it ran. */
static const struct {
    hand_case of;
    double alone[6];
} slowed_cases[] = {
    {{"a computation that stands still beside a transfer hides nothing",
      2,
      {{C, 0, 20, NO, NO}, {L, 5, 15, NO, NO}},
      {.span_ns = 20,
       .busy_ns = {20, 10, 0},
       .alone_ns = 10,
       .exposed_ns = 10,
       .exposed_by_ns = {[DH_EXPOSED_SLOWDOWN] = 10}}},
     {10}},
    {{"both slow each other down: of 7 alone 2 are lost",
      2,
      {{C, 0, 10, NO, NO}, {L, 0, 10, NO, NO}},
      {.span_ns = 10,
       .busy_ns = {10, 10, 0},
       .alone_ns = 7,
       .hidden_ns = 5,
       .exposed_ns = 2,
       .exposed_by_ns = {[DH_EXPOSED_SLOWDOWN] = 2}}},
     {8, 7}},
    {{"worse than one after the other",
      2,
      {{C, 0, 10, NO, NO}, {L, 0, 10, NO, NO}},
      {.span_ns = 10,
       .busy_ns = {10, 10, 0},
       .alone_ns = 3,
       .hidden_ns = -5,
       .exposed_ns = 8,
       .exposed_by_ns = {[DH_EXPOSED_SLOWDOWN] = 8}}},
     {2, 3}},
    {{"a transfer costs a computation beside it no more than its own duration",
      2,
      {{C, 0, 30, NO, NO}, {L, 5, 10, NO, NO}},
      {.span_ns = 30,
       .busy_ns = {30, 5, 0},
       .alone_ns = 5,
       .exposed_ns = 5,
       .exposed_by_ns = {[DH_EXPOSED_SLOWDOWN] = 5}}},
     {10}},
    {{"a computation beside no transfer is not slowed down by one",
      2,
      {{C, 0, 30, NO, NO}, {L, 30, 40, 0, NO}},
      {.span_ns = 40,
       .busy_ns = {30, 10, 0},
       .alone_ns = 10,
       .exposed_ns = 10,
       .exposed_by_ns = {[DH_EXPOSED_TAIL] = 10}}},
     {10}},
};

static const struct {
    hand_case of;
    partners with[6];
} late_cases[] = {
    {{"a late partner, while something is computed and after it",
      3,
      {{C, 0, 6, NO, NO}, {L, 2, 20, NO, NO}, {C, 20, 23, 1, NO}},
      {.span_ns = 23,
       .busy_ns = {9, 8, 0},
       .alone_ns = 8,
       .exposed_ns = 8,
       .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 8},
       .idle_ns = 6,
       .waits_ns = {[DH_WAITS_PARTNERS] = 6}}},
     {[1] = {10, false}}},
    {{"another stage is late, and a transfer in front of what is awaited",
      4,
      {{L, 0, 9, NO, NO}, {L, 9, 15, NO, NO}, {X, 0, 12, NO, NO}, {C, 16, 18, 1, 2}},
      {.span_ns = 18,
       .busy_ns = {2, 11, 1},
       .alone_ns = 12,
       .hidden_ns = 1,
       .exposed_ns = 11,
       .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 6, [DH_EXPOSED_CONTENTION] = 5},
       .idle_ns = 5,
       .waits_ns = {[DH_WAITS_STAGES] = 4}}},
     {[0] = {4, false}, [2] = {11, true}}},
    {{"no computation needs what waits, but the step's end does",
      3,
      {{L, 0, 9, NO, NO}, {C, 2, 4, NO, NO}, {X, 3, 9, NO, NO}},
      {.span_ns = 9,
       .busy_ns = {2, 1, 0},
       .alone_ns = 1,
       .exposed_ns = 1,
       .exposed_by_ns = {[DH_EXPOSED_TAIL] = 1},
       .idle_ns = 6,
       .waits_ns = {[DH_WAITS_STAGES] = 4}}},
     {[0] = {8, false}, [2] = {6, true}}},
};

static void check_by_hand(const hand_case *c, const partners *with, const double *own)
{
    dh_ctx ctx = DH_CTX_INIT;
    mock m;
    dh_timeline got = {.span_ns = -1};
    mock_init(&m, c->rows, with, c->n);
    double alone[DH_COUNTOF(c->rows)];
    for (size_t i = 0; i < c->n; i++)
        alone[i] = own && own[i] > 0 ? own[i] : (double)(m.spans[i].end_ns - m.spans[i].met_ns);
    print_message("%s\n", c->what);
    assert_ok(&ctx, dh_timeline_reduce(&ctx, &m.program, m.spans, alone, &got));
    assert_same(&got, &c->want);
}

static void by_hand(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) check_by_hand(&cases[i], NULL, NULL);
    for (size_t i = 0; i < DH_COUNTOF(late_cases); i++)
        check_by_hand(&late_cases[i].of, late_cases[i].with, NULL);
    for (size_t i = 0; i < DH_COUNTOF(slowed_cases); i++)
        check_by_hand(&slowed_cases[i].of, NULL, slowed_cases[i].alone);
}

/* ---- against counting ------------------------------------------------------------------------ */

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = dh_mix64(*state);
    return (uint32_t)(*state >> 33) % n;
}

/* A step as streams would run it: an instruction starts when its stream is free and what
 * it waits for has ended, or a little later. */
static size_t draw_rows(uint64_t *seed, step_row *rows)
{
    const size_t n = 1 + draw(seed, MAX_INSTRS);
    int64_t free_at[DH_N_STREAM] = {0};
    for (size_t i = 0; i < n; i++) {
        step_row *r = &rows[i];
        *r = (step_row){.stream = (int)draw(seed, DH_N_STREAM), .a = NO, .b = NO};
        if (i > 0 && draw(seed, 2)) r->a = (int)draw(seed, (uint32_t)i);
        if (i > 0 && draw(seed, 4) == 0) r->b = (int)draw(seed, (uint32_t)i);
        r->start = free_at[r->stream];
        if (r->a != NO) r->start = DH_MAX(r->start, rows[r->a].end);
        if (r->b != NO) r->start = DH_MAX(r->start, rows[r->b].end);
        if (draw(seed, 3) == 0) r->start += draw(seed, 6);
        r->end = r->start + draw(seed, 9);
        free_at[r->stream] = r->end;
    }
    return n;
}

static void draw_partners(uint64_t *seed, const step_row *rows, size_t n, partners *with)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t lasts = (uint32_t)(rows[i].end - rows[i].start);
        with[i] = (partners){.stages = draw(seed, 2)};
        if (rows[i].stream != C && draw(seed, 2)) with[i].wait = draw(seed, lasts + 1);
    }
}

/* after[i][j]: i cannot start before j has ended. */
typedef struct order {
    bool after[MAX_INSTRS][MAX_INSTRS];
} order;

static void close_order(const step_row *rows, size_t n, order *o)
{
    memset(o, 0, sizeof *o);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            if (rows[j].stream != rows[i].stream && rows[i].a != (int)j && rows[i].b != (int)j)
                continue;
            o->after[i][j] = true;
            for (size_t k = 0; k < j; k++) o->after[i][k] |= o->after[j][k];
        }
}

/* What has met its partners, or has not. */
static int found_at(const step_row *rows, const partners *with, size_t n, int stream, int64_t t,
                    bool met)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].stream == stream && rows[i].start <= t && t < rows[i].end &&
            (t >= rows[i].start + with[i].wait) == met)
            return (int)i;
    return NO;
}

/* The compute instruction that is to start next, at t or later. One that took no time
 * counts as passed at its moment. */
static int next_compute(const step_row *rows, size_t n, int64_t t)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].stream == C && (rows[i].start > t || rows[i].end > t)) return (int)i;
    return NO;
}

static dh_exposure cause_at(const step_row *rows, size_t n, const order *o, int comm, int64_t t)
{
    const int next = next_compute(rows, n, t);
    if (next == NO) return DH_EXPOSED_TAIL;
    if (!o->after[next][comm]) return DH_EXPOSED_LATE;
    for (size_t i = (size_t)comm + 1; i < n; i++)
        if (rows[i].stream == rows[comm].stream && o->after[next][i]) return DH_EXPOSED_CONTENTION;
    return DH_EXPOSED_DEPENDENCY;
}

/* Also what waits in front of a later one of its stream that the next computation needs. */
static dh_waiting waiting_for(const step_row *rows, const partners *with, size_t n, const order *o,
                              int64_t t)
{
    const int next = next_compute(rows, n, t);
    dh_waiting what = DH_N_WAITING;
    for (int s = C + 1; s < DH_N_STREAM; s++) {
        const int comm = found_at(rows, with, n, s, t, false);
        if (comm == NO || (next != NO && !o->after[next][comm])) continue;
        what = DH_MIN(what, with[comm].stages ? DH_WAITS_STAGES : DH_WAITS_PARTNERS);
    }
    return what;
}

/* How long a computation had a transfer beside it. */
static int64_t count_beside(const step_row *rows, const partners *with, size_t n, size_t computed)
{
    int64_t ns = 0;
    for (int64_t t = rows[computed].start; t < rows[computed].end; t++) {
        bool any = false;
        for (int s = C + 1; s < DH_N_STREAM; s++) any |= found_at(rows, with, n, s, t, true) != NO;
        ns += any;
    }
    return ns;
}

/* Own times, and what is lost to them. */
static void count_slowdown(const step_row *rows, const partners *with, size_t n,
                           const double *alone, dh_timeline *want)
{
    double slowed = 0, alone_ns = 0;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].stream != C) {
            alone_ns += alone[i];
            continue;
        }
        const int64_t beside = count_beside(rows, with, n, i);
        if (beside > 0)
            slowed += DH_MIN((double)(rows[i].end - rows[i].start) - alone[i], (double)beside);
    }
    want->alone_ns = llround(alone_ns);
    want->exposed_by_ns[DH_EXPOSED_SLOWDOWN] = llround(slowed);
    want->exposed_ns += want->exposed_by_ns[DH_EXPOSED_SLOWDOWN];
    want->hidden_ns = want->alone_ns - want->exposed_ns;
}

/* each [n]: of every communication; where nothing is slowed down */
static void count(const step_row *rows, const partners *with, size_t n, const order *o,
                  dh_timeline *want, dh_transfer_times *each)
{
    int64_t first = INT64_MAX, last = 0;
    for (size_t i = 0; i < n; i++) {
        first = DH_MIN(first, rows[i].start);
        last = DH_MAX(last, rows[i].end);
    }
    *want = (dh_timeline){.span_ns = last - first};
    memset(each, 0, n * sizeof *each);
    for (int64_t t = first; t < last; t++) {
        dh_exposure cause = DH_N_EXPOSURE;
        bool busy[DH_N_ENGINE] = {false};
        const int computed = found_at(rows, with, n, C, t, true);
        const bool computes = computed != NO;
        for (int s = 0; s < DH_N_STREAM; s++) {
            const int i = found_at(rows, with, n, s, t, true);
            if (i == NO) continue;
            busy[dh_stream_engine((dh_stream)s)] = true;
            if (s == C) continue;
            const dh_exposure own = cause_at(rows, n, o, i, t);
            cause = DH_MIN(cause, own);
            if (computes)
                each[i].beside_ns[computed % DH_N_PHASE]++;
            else
                each[i].exposed_by_ns[own]++;
        }
        for (int e = 0; e < DH_N_ENGINE; e++) want->busy_ns[e] += busy[e];
        const dh_waiting what = waiting_for(rows, with, n, o, t);
        if (cause == DH_N_EXPOSURE) {
            want->idle_ns += !computes;
            if (!computes && what != DH_N_WAITING) want->waits_ns[what]++;
        } else if (!computes) {
            want->exposed_ns++;
            want->exposed_by_ns[cause]++;
        }
    }
}

/* Of every transfer, the parts of its time add up to it; slowdown is what computations beside it
 * lose, each evenly over its time beside transfers. */
static void check_transfers(const mock *m, const step_row *rows, const partners *with,
                            const double *alone)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_transfer_times each[MAX_INSTRS];
    const size_t n = m->program.instrs.n;
    assert_ok(&ctx, dh_timeline_transfers(&ctx, &m->program, m->spans, alone, each));
    for (size_t i = 0; i < n; i++) {
        if (rows[i].stream == C) continue;
        int64_t ns = 0;
        double lost = 0;
        for (int k = 0; k < DH_N_PHASE; k++) ns += each[i].beside_ns[k];
        for (int k = 0; k < DH_N_EXPOSURE; k++) ns += each[i].exposed_by_ns[k];
        assert_int_equal(ns, m->spans[i].end_ns - m->spans[i].met_ns);
        for (int64_t t = rows[i].start + with[i].wait; t < rows[i].end; t++) {
            const int c = found_at(rows, with, n, C, t, true);
            if (c == NO) continue;
            const double beside = (double)count_beside(rows, with, n, (size_t)c);
            lost += DH_MIN((double)(rows[c].end - rows[c].start) - alone[c], beside) / beside;
        }
        /* Rounded once for each stretch of time. */
        assert_true(fabs((double)each[i].exposed_by_ns[DH_EXPOSED_SLOWDOWN] - lost) <= 8);
    }
}

static void random_steps_as_counted(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t seed = test_seed("timeline");
    dh_timeline sum = {0};
    for (int round = 0; round < 2000; round++) {
        step_row rows[MAX_INSTRS];
        partners with[MAX_INSTRS];
        const size_t n = draw_rows(&seed, rows);
        order o;
        mock m;
        dh_timeline want, got;
        dh_transfer_times each[MAX_INSTRS], wanted[MAX_INSTRS];
        double alone[MAX_INSTRS];
        draw_partners(&seed, rows, n, with);
        close_order(rows, n, &o);
        count(rows, with, n, &o, &want, wanted);
        mock_init(&m, rows, with, n);
        for (size_t i = 0; i < n; i++) alone[i] = draw(&seed, 9);
        count_slowdown(rows, with, n, alone, &want);
        assert_ok(&ctx, dh_timeline_reduce(&ctx, &m.program, m.spans, alone, &got));
        assert_same(&got, &want);
        assert_ok(&ctx, dh_timeline_transfers(&ctx, &m.program, m.spans, NULL, each));
        assert_memory_equal(each, wanted, n * sizeof *each);
        check_transfers(&m, rows, with, alone);
        assert_int_equal(got.span_ns, dh_timeline_compute_ns(&got) + got.exposed_ns + got.idle_ns);
        assert_int_equal(got.alone_ns, got.hidden_ns + got.exposed_ns);
        dh_timeline_add(&sum, &got);
    }
    /* Every kind of time came up, and sums keep what every step keeps. */
    int64_t causes = 0;
    for (int i = 0; i < DH_N_EXPOSURE; i++) {
        assert_true(sum.exposed_by_ns[i] > 0);
        causes += sum.exposed_by_ns[i];
    }
    assert_int_equal(causes, sum.exposed_ns);
    assert_int_equal(sum.span_ns, dh_timeline_compute_ns(&sum) + sum.exposed_ns + sum.idle_ns);
    assert_true(sum.hidden_ns != 0 && sum.waits_ns[0] > 0 && sum.waits_ns[1] > 0);
    assert_true(sum.idle_ns > sum.waits_ns[0] + sum.waits_ns[1]);
}

/* ---- own times of a step that ran ------------------------------------------------------------ */

enum { N_OBSERVED = 5 };

/* Operators by instruction: 0 and 2 are of one kind, so are 1 and 3; 4 never runs alone. */
static void observe(const double *measured_ns, dh_timeline *got)
{
    static const step_row rows[N_OBSERVED] = {{C, 0, 10, NO, NO},
                                              {L, 10, 20, 0, NO},
                                              {C, 20, 35, 1, NO},
                                              {L, 22, 40, NO, NO},
                                              {C, 35, 50, NO, NO}};
    dh_ctx ctx = DH_CTX_INIT;
    mock m;
    mock_init(&m, rows, NULL, N_OBSERVED);
    m.instrs[2].op = 0;
    m.instrs[3].op = 1;
    assert_ok(&ctx, dh_timeline_observe(&ctx, &m.program, m.spans, measured_ns, got));
}

static void own_times_are_those_of_what_ran_alone(void **state)
{
    static const dh_timeline want = {
        .span_ns = 50,
        .busy_ns = {40, 28, 0},
        .alone_ns = 20,
        .hidden_ns = 5,
        .exposed_ns = 15,
        .exposed_by_ns = {[DH_EXPOSED_DEPENDENCY] = 10, [DH_EXPOSED_SLOWDOWN] = 5}};
    dh_timeline got;
    observe(NULL, &got);
    assert_same(&got, &want);
}

/* Kind 0 took 10 here and 5 in the profile, so kind 4 takes 2 x 6 alone: 3 of its 15 are lost. */
static void own_times_of_others_are_measured_ones_to_scale(void **state)
{
    static const double measured[N_OBSERVED] = {5, 0, 5, 0, 6};
    dh_timeline got;
    observe(measured, &got);
    assert_int_equal(got.exposed_by_ns[DH_EXPOSED_SLOWDOWN], 5 + 3);
    assert_int_equal(got.alone_ns, 20);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static void share_of_the_hidden(void **state)
{
    const dh_timeline none = {.span_ns = 5},
                      some = {.alone_ns = 4, .hidden_ns = 3, .exposed_ns = 1};
    assert_true(dh_timeline_hidden_share(&none) == 0);
    assert_true(dh_timeline_hidden_share(&some) == 0.75);
    for (int i = 0; i < DH_N_EXPOSURE; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(dh_exposure_name((dh_exposure)i),
                                    dh_exposure_name((dh_exposure)j));
}

static void impossible_times_are_refused(void **state)
{
    static const step_row backwards[] = {{C, 5, 4, NO, NO}},
                          overlapping[] = {{C, 0, 5, NO, NO}, {C, 4, 6, NO, NO}},
                          later[] = {{C, 0, 5, 1, NO}, {L, 0, 5, NO, NO}},
                          never[] = {{L, 0, 5, NO, NO}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_timeline got = {.span_ns = 77};
    mock m;
    mock_init(&m, backwards, NULL, 1);
    assert_fails(&ctx, dh_timeline_reduce(&ctx, &m.program, m.spans, NULL, &got), DH_EINVAL,
                 "instruction 0 ends 1 ns before it starts");
    mock_init(&m, overlapping, NULL, 2);
    assert_fails(&ctx, dh_timeline_reduce(&ctx, &m.program, m.spans, NULL, &got), DH_EINVAL,
                 "instruction 1 starts 1 ns before instruction 0");
    mock_init(&m, later, NULL, 2);
    assert_fails(&ctx, dh_timeline_reduce(&ctx, &m.program, m.spans, NULL, &got), DH_EINVAL,
                 "instruction 0 waits for instruction 1");
    mock_init(&m, never, &(partners){.wait = 6}, 1);
    assert_fails(&ctx, dh_timeline_reduce(&ctx, &m.program, m.spans, NULL, &got), DH_EINVAL,
                 "instruction 0 meets its partners before");
    assert_int_equal(got.span_ns, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(random_steps_as_counted),
        cmocka_unit_test(own_times_are_those_of_what_ran_alone),
        cmocka_unit_test(own_times_of_others_are_measured_ones_to_scale),
        cmocka_unit_test(share_of_the_hidden),
        cmocka_unit_test(impossible_times_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
