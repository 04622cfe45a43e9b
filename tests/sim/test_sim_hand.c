/* Timelines reckoned by hand: programs of nothing but streams, waits and calls. */
#include "dh_test.h"

#include "sim/sim.h"

enum { MAX_ROWS = 12, MAX_RANKS = 4, NO = -1 };

/* What a row does: the operator, and the stream it is on. */
typedef enum act { GEMM, GATHER, RING, SEND, RECV } act;
static const struct {
    dh_op_type type;
    dh_group_kind group;
    uint8_t stream;
} acts[] = {[GEMM] = {DH_OP_NORM, DH_GROUP_SELF, DH_STREAM_COMPUTE},
            [GATHER] = {DH_OP_ALL_GATHER, DH_GROUP_TP, DH_STREAM_LOCAL},
            [RING] = {DH_OP_RING_EXCHANGE, DH_GROUP_CP, DH_STREAM_CROSS},
            [SEND] = {DH_OP_SEND, DH_GROUP_PP, DH_STREAM_CROSS},
            [RECV] = {DH_OP_RECV, DH_GROUP_PP, DH_STREAM_CROSS}};

/* An instruction: `a` and `b` are ids it waits for; of transfers, the other stage. Then
 * what is expected of it. */
typedef struct step_row {
    act act;
    int32_t ns;
    int a, b, peer;
    int64_t start, met, end;
} step_row;

/* ---- mocks ------------------------------------------------------------------------------- */

typedef struct mock {
    dh_program program;
    dh_graph graph, *graphs[1];
    dh_op ops[MAX_ROWS];
    dh_instr instrs[MAX_ROWS];
    dh_block blocks[MAX_RANKS];
    dh_operand operands[2 * DH_MAX_OPERANDS];
    dh_wait waits[2 * MAX_ROWS];
} mock;

/* Block k: its peer is stage k. An operator's `step` is its time. */
static void mock_init(mock *m, const dh_mesh *mesh, int64_t rank, const step_row *rows, size_t n)
{
    memset(m, 0, sizeof *m);
    memset(m->ops, 0xff, sizeof m->ops);
    memset(m->operands, 0xff, sizeof m->operands);
    m->graphs[0] = &m->graph;
    m->graph.ops.at = m->ops;
    m->graph.ops.n = n;
    m->program.graphs.at = m->graphs;
    m->program.graphs.n = 1;
    m->program.blocks.at = m->blocks;
    m->program.blocks.n = MAX_RANKS;
    m->program.instrs.at = m->instrs;
    m->program.instrs.n = n;
    m->program.operands.at = m->operands;
    m->program.waits.at = m->waits;
    m->program.mesh = *mesh;
    m->program.rank = rank;
    for (int32_t k = 0; k < MAX_RANKS; k++) m->blocks[k].peer = k;
    for (uint32_t i = 0; i < n; i++) {
        const step_row *row = &rows[i];
        dh_instr *instr = &m->instrs[i];
        m->ops[i].type = acts[row->act].type;
        m->ops[i].phase = DH_PHASE_F;
        m->ops[i].group = (int32_t)acts[row->act].group;
        m->ops[i].step = row->ns;
        *instr = (dh_instr){.block = (uint32_t)row->peer,
                            .op = i,
                            .stream = acts[row->act].stream,
                            .wait0 = (uint32_t)m->program.waits.n,
                            .work = DH_NONE};
        if (row->a != NO) m->waits[m->program.waits.n++] = (dh_wait){(uint32_t)row->a, DH_NONE};
        if (row->b != NO) m->waits[m->program.waits.n++] = (dh_wait){(uint32_t)row->b, DH_NONE};
        instr->n_waits = (uint16_t)(m->program.waits.n - instr->wait0);
    }
}

static dh_op_time step_time(const void *self, const dh_cost_op *op)
{
    (void)self;
    return (dh_op_time){op->op->step, DH_PAIR_MODELLED};
}

static int class_of(const dh_cost_op *op)
{
    return op->op->type == DH_OP_NORM ? 0 : op->op->type == DH_OP_ALL_GATHER ? 1 : 2;
}

/* self: double[3][3], the rate of a class (row) beside another (column) */
static dh_op_rates table_rates(const void *self, const dh_cost_op *a, const dh_cost_op *b)
{
    const double(*rate)[3] = self;
    return (dh_op_rates){rate[class_of(a)][class_of(b)], rate[class_of(b)][class_of(a)],
                         DH_PAIR_MODELLED};
}

typedef struct hand_case {
    const char *what;
    double rate[3][3];
    double launch_ns, event_ns;
    int tp, cp, pp;
    size_t n[MAX_RANKS];
    step_row rows[MAX_RANKS][MAX_ROWS];
    int64_t bubble[MAX_RANKS];
    double slow0;   /* factor of rank 0's computations; 0: 1 */
    double host_ns; /* of a kernel, as slow_issue has them */
} hand_case;

#define FULL                                                                                       \
    {                                                                                              \
        {1, 1, 1}, {1, 1, 1},                                                                      \
        {                                                                                          \
            1, 1, 1                                                                                \
        }                                                                                          \
    }

static void mock_ranks(dh_ctx *ctx, const hand_case *c, mock *mocks)
{
    dh_mesh mesh;
    assert_ok(ctx, dh_mesh_init(ctx, 1, c->tp, c->pp, c->cp, 1, 1, 0, &mesh));
    for (int64_t r = 0; r < mesh.ranks; r++) mock_init(&mocks[r], &mesh, r, c->rows[r], c->n[r]);
}

/* A host that takes 100 ns for a kernel: gathers are three, and it waits for rings. */
static dh_issue slow_issue(const void *self, const dh_cost_op *op)
{
    (void)self;
    return (dh_issue){.n_kernels = op->op->type == DH_OP_ALL_GATHER ? 3 : 1,
                      .waits = op->op->type == DH_OP_RING_EXCHANGE};
}

static dh_sim *simulate_mocks(dh_ctx *ctx, const hand_case *c, const dh_sim_options *options,
                              const mock *mocks)
{
    const dh_program *programs[MAX_RANKS];
    const size_t n = (size_t)mocks[0].program.mesh.ranks;
    for (size_t r = 0; r < n; r++) programs[r] = &mocks[r].program;
    const dh_costs costs = {.name = "by hand",
                            .solo = step_time,
                            .beside = table_rates,
                            .launch_ns = c->launch_ns,
                            .event_ns = c->event_ns,
                            .host_ns = c->host_ns,
                            .issuer = {slow_issue, NULL},
                            .self = c->rate};
    dh_sim *sim = NULL;
    const dh_status st = dh_simulate_programs(ctx, programs, n, &costs, options, &sim);
    return st == DH_OK ? sim : NULL;
}

static dh_sim *simulate_with(dh_ctx *ctx, const hand_case *c, const dh_sim_options *options,
                             mock *mocks)
{
    mock_ranks(ctx, c, mocks);
    return simulate_mocks(ctx, c, options, mocks);
}

/* ---- cases -------------------------------------------------------------------------------- */

static const hand_case cases[] = {
    {"a gather beside a GEMM, each slowed by the other",
     /* until 120 the gather runs at 1/2; the GEMM has then done 0.8 * 120 = 96 of 100 */
     {{1, .8, 1}, {.5, 1, 1}, {1, 1, 1}},
     0,
     0,
     1,
     1,
     1,
     {3},
     {{{GEMM, 100, NO, NO, 0, 0, 0, 124},
       {GATHER, 60, NO, NO, 0, 0, 0, 120},
       {GEMM, 10, 1, NO, 0, 124, 124, 134}}},
     {0},
     0,
     0},
    {"three streams: products of pairwise rates",
     /* [0,100): GEMM .5*.8 = .4, gather .5*1, ring .25*1: the gather's 50 are done.
      * [100,..): GEMM .8, ring .25; GEMM left 200-40 = 160, ring left 85-25 = 60.
      * GEMM ends at 300; ring left 60-50 = 10 and runs alone. */
     {{1, .5, .8}, {.5, 1, 1}, {.25, 1, 1}},
     0,
     0,
     1,
     1,
     1,
     {3},
     {{{GEMM, 200, NO, NO, 0, 0, 0, 300},
       {GATHER, 50, NO, NO, 0, 0, 0, 100},
       {RING, 85, NO, NO, 0, 0, 0, 310}}},
     {0},
     0,
     0},
    {"waits across streams, launches and events",
     /* launch 3 after the stream's previous, event 7 after what is waited for */
     FULL,
     3,
     7,
     1,
     1,
     1,
     {5},
     {{{GEMM, 10, NO, NO, 0, 0, 0, 10},
       {GEMM, 10, NO, NO, 0, 13, 13, 23},
       {GATHER, 20, 0, NO, 0, 17, 17, 37},
       {RING, 5, 1, 2, 0, 44, 44, 49},
       {GEMM, 10, 2, 3, 0, 56, 56, 66}}},
     {0},
     0,
     0},
    {"partners meet, and who waits slows nobody down",
     /* rank 0 reaches the gather at 10, rank 1 at 40; from then on both GEMMs run at half
      * speed: rank 0's has 100 - 30 = 70 left, of which 20 are done while the gather's 40 last */
     {{1, .5, 1}, {1, 1, 1}, {1, 1, 1}},
     0,
     0,
     2,
     1,
     1,
     {3, 3},
     {{{GEMM, 10, NO, NO, 0, 0, 0, 10},
       {GATHER, 40, 0, NO, 0, 10, 40, 80},
       {GEMM, 100, NO, NO, 0, 10, 10, 130}},
      {{GEMM, 40, NO, NO, 0, 0, 0, 40},
       {GATHER, 40, 0, NO, 0, 40, 40, 80},
       {GEMM, 5, NO, NO, 0, 40, 40, 50}}},
     {0, 0},
     0,
     0},
    {"a communication goes as its slowest member lets it",
     /* rank 0 computes beside it until 60 (rate 1/2), rank 1 does not */
     {{1, 1, 1}, {.5, 1, 1}, {1, 1, 1}},
     0,
     0,
     2,
     1,
     1,
     {2, 1},
     {{{GEMM, 60, NO, NO, 0, 0, 0, 60}, {GATHER, 50, NO, NO, 0, 0, 0, 80}},
      {{GATHER, 50, NO, NO, 0, 0, 0, 80}}},
     {0, 0},
     0,
     0},
    {"neither progresses beside the other: one after the other",
     {{1, 0, 1}, {-1, 1, 1}, {1, 1, 1}},
     0,
     0,
     1,
     1,
     1,
     {2},
     /* the gather stands still, and loses nothing, while the GEMM runs at full speed */
     {{{GEMM, 10, NO, NO, 0, 0, 0, 10}, {GATHER, 30, NO, NO, 0, 0, 0, 40}}},
     {0},
     0,
     0},
    {"two stages, two micro-batches, transfers of 2",
     /* F 10, B 20. Stage 1 begins when the first activation is there and then waits for
      * the second micro-batch no more; stage 0 has its bubble between its Fs and Bs. */
     FULL,
     0,
     0,
     1,
     1,
     2,
     {8, 8},
     {{{GEMM, 10, NO, NO, 0, 0, 0, 10},
       {SEND, 2, 0, NO, 1, 10, 10, 12},
       {GEMM, 10, NO, NO, 0, 10, 10, 20},
       {RECV, 2, NO, NO, 1, 12, 42, 44},
       {GEMM, 20, 3, NO, 0, 44, 44, 64},
       {SEND, 2, 2, NO, 1, 44, 44, 46},
       {RECV, 2, NO, NO, 1, 46, 76, 78},
       {GEMM, 20, 6, NO, 0, 78, 78, 98}},
      {{RECV, 2, NO, NO, 0, 0, 10, 12},
       {GEMM, 10, 0, NO, 0, 12, 12, 22},
       {GEMM, 20, NO, NO, 0, 22, 22, 42},
       {SEND, 2, 2, NO, 0, 42, 42, 44},
       {RECV, 2, NO, NO, 0, 44, 44, 46},
       {GEMM, 10, 4, NO, 0, 46, 46, 56},
       {GEMM, 20, NO, NO, 0, 56, 56, 76},
       {SEND, 2, 6, NO, 0, 76, 76, 78}}},
     /* stage 0: [20,42) before the first B, [64,76) before the second; stage 1: [0,10) */
     {34, 10},
     0,
     0},
    {"a straggler: rank 0 computes at two thirds of its speed",
     FULL,
     0,
     0,
     2,
     1,
     1,
     {3, 3},
     {{{GEMM, 20, NO, NO, 0, 0, 0, 30},
       {GATHER, 10, 0, NO, 0, 30, 30, 40},
       {GEMM, 20, 1, NO, 0, 40, 40, 70}},
      {{GEMM, 20, NO, NO, 0, 0, 0, 20},
       {GATHER, 10, 0, NO, 0, 20, 30, 40},
       {GEMM, 20, 1, NO, 0, 40, 40, 60}}},
     {0, 0},
     1.5,
     0},
    {"instructions that take no time",
     FULL,
     0,
     0,
     1,
     1,
     1,
     {4},
     {{{GEMM, 0, NO, NO, 0, 0, 0, 0},
       {GATHER, 0, 0, NO, 0, 0, 0, 0},
       {RING, 5, 1, NO, 0, 0, 0, 5},
       {GEMM, 0, 2, NO, 0, 5, 5, 5}}},
     {0},
     0,
     0},
};

static void check_rank(const hand_case *c, const dh_sim_rank *got, size_t r)
{
    assert_int_equal(got->rank, r);
    for (size_t k = 0; k < c->n[r]; k++) {
        const step_row *want = &c->rows[r][k];
        if (got->spans[k].start_ns != want->start || got->spans[k].met_ns != want->met ||
            got->spans[k].end_ns != want->end)
            fail_msg("%s: rank %zu, instruction %zu ran %lld, %lld, %lld; want %lld, %lld, %lld",
                     c->what, r, k, (long long)got->spans[k].start_ns,
                     (long long)got->spans[k].met_ns, (long long)got->spans[k].end_ns,
                     (long long)want->start, (long long)want->met, (long long)want->end);
    }
    if (got->times.waits_ns[DH_WAITS_STAGES] != c->bubble[r])
        fail_msg("%s: rank %zu has a bubble of %lld, want %lld", c->what, r,
                 (long long)got->times.waits_ns[DH_WAITS_STAGES], (long long)c->bubble[r]);
}

static void check_timeline(const hand_case *c, const dh_sim *sim)
{
    int64_t step = 0;
    for (size_t r = 0; r < sim->n_classes; r++) {
        check_rank(c, &sim->ranks[r], r);
        for (size_t k = 0; k < c->n[r]; k++) step = DH_MAX(step, c->rows[r][k].end);
    }
    assert_int_equal(sim->step_ns, step);
}

static void expect_timeline(const hand_case *c, const dh_sim_options *options)
{
    dh_ctx ctx = DH_CTX_INIT;
    mock mocks[MAX_RANKS];
    dh_sim *sim = simulate_with(&ctx, c, options, mocks);
    if (!sim) fail_msg("%s: %s", c->what, ctx.message);
    check_timeline(c, sim);
    dh_sim_destroy(sim);
}

static void by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const dh_sim_slow slow = {.factor = {cases[i].slow0}};
        expect_timeline(&cases[i], &(dh_sim_options){.slow = &slow, .n_slow = 1});
    }
}

/* ---- parts ---------------------------------------------------------------------------------- */

/* By row, the same on all ranks: parts of its output, and which part of the output of the row it
 * waits for it wants, from 1 on; 0: all of it. */
typedef struct part_case {
    hand_case rows;
    int32_t parts[MAX_ROWS], wanted[MAX_ROWS];
} part_case;

static void give_parts(mock *m, const part_case *c)
{
    for (size_t i = 0; i < m->program.instrs.n; i++) {
        m->ops[i].parts = c->parts[i];
        m->instrs[i].part0 = m->program.n_parts;
        m->program.n_parts += c->parts[i] > 1 ? (uint32_t)c->parts[i] : 0;
        if (c->wanted[i]) m->waits[m->instrs[i].wait0].part = (uint32_t)c->wanted[i] - 1;
    }
}

static const part_case part_cases[] = {
    {.rows = {.what = "a gather's own parts are there at once, others as the wire brings them",
              /* it does 5 beside the first GEMM and is at 50, where the third of 4 parts is
               * there, at 55; 5 more beside the second, the last 45 alone */
              .rate = {{1, 1, 1}, {.5, 1, 1}, {1, 1, 1}},
              .tp = 2,
              .cp = 1,
              .pp = 1,
              .n = {4, 4},
              .rows = {{{GATHER, 100, NO, NO, 0, 0, 0, 110},
                        {GEMM, 10, 0, NO, 0, 0, 0, 10},
                        {GEMM, 10, 0, NO, 0, 55, 55, 65},
                        {GEMM, 10, 0, NO, 0, 110, 110, 120}},
                       {{GATHER, 100, NO, NO, 0, 0, 0, 110},
                        {GEMM, 10, 0, NO, 0, 0, 0, 10},
                        {GEMM, 10, 0, NO, 0, 55, 55, 65},
                        {GEMM, 10, 0, NO, 0, 110, 110, 120}}}},
     .parts = {4},
     .wanted = {0, 2, 3, 0}},
    {.rows = {.what = "parts of a product go out while others are computed; launches, events",
              .rate = FULL,
              .launch_ns = 3,
              .event_ns = 7,
              .tp = 1,
              .cp = 1,
              .pp = 1,
              .n = {5},
              .rows = {{{GEMM, 40, NO, NO, 0, 0, 0, 40},
                        {RING, 12, 0, NO, 0, 17, 17, 29},
                        {RING, 12, 0, NO, 0, 32, 32, 44},
                        {RING, 12, 0, NO, 0, 47, 47, 59},
                        {GEMM, 5, 1, NO, 0, 43, 43, 48}}}},
     .parts = {4},
     .wanted = {0, 1, 2, 4, 0}},
};

static void in_parts_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(part_cases); i++) {
        const part_case *c = &part_cases[i];
        dh_ctx ctx = DH_CTX_INIT;
        mock mocks[MAX_RANKS];
        mock_ranks(&ctx, &c->rows, mocks);
        for (int64_t r = 0; r < mocks[0].program.mesh.ranks; r++) give_parts(&mocks[r], c);
        dh_sim *sim = simulate_mocks(&ctx, &c->rows, &(dh_sim_options){0}, mocks);
        if (!sim) fail_msg("%s: %s", c->rows.what, ctx.message);
        check_timeline(&c->rows, sim);
        dh_sim_destroy(sim);
    }
}

/* Rank 1's links take twice as long: what it is part of takes that long for all, and its own
 * computation does not. */
static void slow_links(void **state)
{
    (void)state;
    static const hand_case c = {.what = "slow links",
                                .rate = FULL,
                                .tp = 2,
                                .cp = 1,
                                .pp = 1,
                                .n = {3, 3},
                                .rows = {{{GEMM, 20, NO, NO, 0, 0, 0, 20},
                                          {GATHER, 10, 0, NO, 0, 20, 20, 40},
                                          {GEMM, 20, 1, NO, 0, 40, 40, 60}},
                                         {{GEMM, 20, NO, NO, 0, 0, 0, 20},
                                          {GATHER, 10, 0, NO, 0, 20, 20, 40},
                                          {GEMM, 5, 1, NO, 0, 40, 40, 45}}}};
    const dh_sim_slow slow = {.rank = 1, .factor = {1, 2, 2}};
    expect_timeline(&c, &(dh_sim_options){.slow = &slow, .n_slow = 1});
}

/* Kernels are issued from 0, 100, 400 and 500 on; the ring ends at 1500, when the host goes on. */
static void late_host(void **state)
{
    static const hand_case c = {.what = "late host",
                                .rate = FULL,
                                .tp = 1,
                                .cp = 1,
                                .pp = 1,
                                .n = {6},
                                .rows = {{{GEMM, 500, NO, NO, 0, 0, 0, 500},
                                          {GATHER, 50, NO, NO, 0, 100, 100, 150},
                                          {GEMM, 10, NO, NO, 0, 500, 500, 510},
                                          {RING, 1000, NO, NO, 0, 500, 500, 1500},
                                          {GEMM, 10, NO, NO, 0, 1500, 1500, 1510},
                                          {GEMM, 10, NO, NO, 0, 1600, 1600, 1610}}},
                                .host_ns = 100};
    (void)state;
    expect_timeline(&c, &(dh_sim_options){0});
}

/* Two ranks on one core: both at half speed until 40, when rank 0 has done its 20 and rank 1 20 of
 * its 40; that one then has the core alone. */
static void shared_cores(void **state)
{
    (void)state;
    static const hand_case c = {.what = "shared cores",
                                .rate = FULL,
                                .tp = 2,
                                .cp = 1,
                                .pp = 1,
                                .n = {3, 3},
                                .rows = {{{GEMM, 20, NO, NO, 0, 0, 0, 40},
                                          {GATHER, 10, 0, NO, 0, 40, 60, 70},
                                          {GEMM, 20, 1, NO, 0, 70, 70, 110}},
                                         {{GEMM, 40, NO, NO, 0, 0, 0, 60},
                                          {GATHER, 10, 0, NO, 0, 60, 60, 70},
                                          {GEMM, 20, 1, NO, 0, 70, 70, 110}}}};
    dh_ctx ctx = DH_CTX_INIT;
    mock mocks[MAX_RANKS];
    expect_timeline(&c, &(dh_sim_options){.cores = 1});
    dh_sim *sim = simulate_with(&ctx, &c, &(dh_sim_options){.cores = 2}, mocks);
    assert_int_equal(sim->step_ns, 70); /* each its own: 40, 50, 70 */
    dh_sim_destroy(sim);
}

/* Programs of another mesh on the same ranks: until 20 computations share the device; then one is
 * beside a transfer that does not mind, and from 30 on two transfers share the wire. */
static void programs_beside_each_other(void **state)
{
    (void)state;
    static const hand_case first = {
        .what = "beside another",
        .rate = {{.5, 1, 1}, {1, .5, .5}, {1, .5, .5}},
        .tp = 2,
        .cp = 1,
        .pp = 1,
        .n = {2, 2},
        .rows = {{{GEMM, 20, NO, NO, 0, 0, 0, 30}, {GATHER, 10, 0, NO, 0, 30, 30, 50}},
                 {{GEMM, 20, NO, NO, 0, 0, 0, 30}, {GATHER, 10, 0, NO, 0, 30, 30, 50}}}};
    static const hand_case second = {
        .what = "beside",
        .tp = 1,
        .cp = 2,
        .pp = 1,
        .n = {2, 2},
        .rows = {{{GEMM, 10, NO, NO, 0, 0, 0, 0}, {RING, 20, 0, NO, 0, 0, 0, 0}},
                 {{GEMM, 10, NO, NO, 0, 0, 0, 0}, {RING, 20, 0, NO, 0, 0, 0, 0}}}};
    dh_ctx ctx = DH_CTX_INIT;
    mock mocks[MAX_RANKS], others[MAX_RANKS];
    mock_ranks(&ctx, &second, others);
    const dh_program *const beside[] = {&others[0].program, &others[1].program};
    mock_ranks(&ctx, &first, mocks);
    dh_sim *sim = simulate_mocks(&ctx, &first, &(dh_sim_options){.beside = beside}, mocks);
    if (!sim) fail_msg("%s", ctx.message);
    check_timeline(&first, sim);
    assert_int_equal(sim->beside_ns, 50);
    dh_sim_destroy(sim);
    sim = simulate_mocks(&ctx, &first, &(dh_sim_options){0}, mocks);
    assert_int_equal(sim->step_ns, 30);
    assert_int_equal(sim->beside_ns, 0);
    dh_sim_destroy(sim);
    others[1].program.rank = 0;
    assert_null(simulate_mocks(&ctx, &first, &(dh_sim_options){.beside = beside}, mocks));
    assert_int_equal(ctx.status, DH_EINVAL);
}

/* ---- what cannot be simulated ------------------------------------------------------------- */

static void refuses(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    mock mocks[MAX_RANKS];
    const hand_case deadlock = {.rate = FULL,
                                .tp = 1,
                                .cp = 1,
                                .pp = 2,
                                .n = {1, 0},
                                .rows = {{{SEND, 1, NO, NO, 1, 0, 0, 0}}}};
    assert_null(simulate_with(&ctx, &deadlock, &(dh_sim_options){0}, mocks));
    assert_int_equal(ctx.status, DH_EVERIFY);
    assert_non_null(strstr(ctx.message, "send"));
    dh_ctx_reset(&ctx);
    const hand_case negative = {.rate = FULL,
                                .tp = 1,
                                .cp = 1,
                                .pp = 1,
                                .n = {1},
                                .rows = {{{GEMM, -1, NO, NO, 0, 0, 0, 0}}}};
    assert_null(simulate_with(&ctx, &negative, &(dh_sim_options){0}, mocks));
    assert_int_equal(ctx.status, DH_EINVAL);
    dh_ctx_reset(&ctx);
    const hand_case backwards = {.rate = FULL,
                                 .tp = 1,
                                 .cp = 1,
                                 .pp = 1,
                                 .n = {1},
                                 .rows = {{{GEMM, 1, NO, NO, 0, 0, 0, 0}}}};
    const dh_sim_slow endless = {.factor = {INFINITY}};
    assert_null(
        simulate_with(&ctx, &backwards, &(dh_sim_options){.slow = &endless, .n_slow = 1}, mocks));
    assert_int_equal(ctx.status, DH_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),      cmocka_unit_test(in_parts_by_hand),
        cmocka_unit_test(slow_links),   cmocka_unit_test(late_host),
        cmocka_unit_test(shared_cores), cmocka_unit_test(programs_beside_each_other),
        cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
