/* Outputs that are complete in parts: an instruction waits for the part that has its rows and for
 * no more, storage is free only when all of an instruction is done, and every fault of such waits
 * is found and named. */
#include "one_block.h"

#include "program/ranks.h"

enum { TP = 2, ROWS = 24, WIDTH = 4 };

/* ---- by hand -------------------------------------------------------------------------------- */

/* A gathered tensor in 4 parts, read chunk by chunk; the rank's own two come first. */
static dh_program *gathering(int64_t rank, int parts, int part0)
{
    static const char text[] = "dhelix.graph v2 data train f32\n"
                               "dims batch=1 seq=8 width=4\n"
                               "%%0:x     act f32[4 tokens, 4 width]\n"
                               "%%1:w     act f32[4 width, 4 width]\n"
                               "%%2:all   act f32[8 tokens, 4 width]\n"
                               "%%3:a0    act f32[2 tokens, 4 width] view=%%2+0\n"
                               "%%4:a1    act f32[2 tokens, 4 width] view=%%2+2\n"
                               "%%5:a2    act f32[2 tokens, 4 width] view=%%2+4\n"
                               "%%6:a3    act f32[2 tokens, 4 width] view=%%2+6\n"
                               "%%7:mid   act f32[3 tokens, 4 width] view=%%2+1\n"
                               "%%8:y0    act f32[2 tokens, 4 width]\n"
                               "%%9:y1    act f32[2 tokens, 4 width]\n"
                               "%%10:y2   act f32[2 tokens, 4 width]\n"
                               "%%11:y3   act f32[2 tokens, 4 width]\n"
                               "%%12:ymid act f32[3 tokens, 4 width]\n"
                               "F %%0 = sum()\n"
                               "F %%1 = sum()\n"
                               "F %%2 = all_gather(%%0) {group=tp, parts=%d, part0=%d}\n"
                               "F %%10 = linear(%%5, %%1)\n"
                               "F %%11 = linear(%%6, %%1)\n"
                               "F %%8 = linear(%%3, %%1)\n"
                               "F %%12 = linear(%%7, %%1)\n"
                               "F %%9 = linear(%%4, %%1)\n";
    dh_ctx ctx = DH_CTX_INIT;
    char filled[sizeof text + 32];
    dh_graph *g;
    snprintf(filled, sizeof filled, text, parts, part0);
    assert_ok(&ctx, dh_graph_parse(&ctx, filled, strlen(filled), &g));
    return one_block(g, TP, rank);
}
enum { GATHER = 2, FIRST = 3, SECOND, THIRD, MIDDLE, FOURTH };

static void assert_waits(const dh_program *p, uint32_t instr, const dh_wait *want, uint16_t n)
{
    const dh_instr *i = &p->instrs.at[instr];
    assert_int_equal(i->n_waits, n);
    for (uint32_t k = 0; k < n; k++) {
        assert_int_equal(p->waits.at[i->wait0 + k].instr, want[k].instr);
        assert_int_equal(p->waits.at[i->wait0 + k].part, want[k].part);
    }
}

/* Rank 1 begins with chunks 2 and 3. What lies across chunks 0 and 1 wants both, and leaves
 * nothing to wait for. */
static void a_reader_waits_for_its_part(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = gathering(1, 4, 2);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    assert_waits(p, GATHER, (const dh_wait[]){{0, DH_NONE}}, 1);
    assert_waits(p, FIRST, (const dh_wait[]){{GATHER, 0}}, 1);
    assert_waits(p, SECOND, (const dh_wait[]){{GATHER, 1}}, 1);
    assert_waits(p, THIRD, (const dh_wait[]){{GATHER, 2}}, 1);
    assert_waits(p, MIDDLE, (const dh_wait[]){{GATHER, DH_NONE}}, 1);
    assert_waits(p, FOURTH, NULL, 0);
    assert_int_equal(p->n_parts, 4);
    dh_program_destroy(p);
    p = gathering(1, 0, 0);
    assert_waits(p, FIRST, (const dh_wait[]){{GATHER, DH_NONE}}, 1);
    assert_waits(p, SECOND, NULL, 0);
    assert_int_equal(p->n_parts, 0);
    dh_program_destroy(p);
}

static void expect_fault(dh_program *p, const char *a, const char *b)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_int_equal(dh_program_verify(&ctx, p), DH_EVERIFY);
    if (!strstr(ctx.message, a) || !strstr(ctx.message, b))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", ctx.message, a, b);
    dh_program_destroy(p);
}

static dh_wait *wait_of(dh_program *p, uint32_t instr)
{
    return &p->waits.at[p->instrs.at[instr].wait0];
}

static void faults_are_found_and_named(void **state)
{
    dh_program *p = gathering(1, 4, 2);
    p->instrs.at[FIRST].n_waits = 0;
    expect_fault(p, "instruction 3 linear", "a wait for part 0 of instruction 2 is missing");

    p = gathering(1, 4, 2);
    wait_of(p, THIRD)->part = 1;
    expect_fault(p, "instruction 5 linear", "a wait for part 2 of instruction 2 is missing");

    p = gathering(1, 4, 2);
    wait_of(p, MIDDLE)->part = 2;
    expect_fault(p, "instruction 6 linear", "a wait for part 3 of instruction 2 is missing");

    p = gathering(1, 4, 2);
    wait_of(p, FIRST)->part = 4;
    expect_fault(p, "part 4 of instruction 2", "which has 4");

    /* begun with another chunk than its readers were told */
    p = gathering(1, 4, 2);
    p->graphs.at[0]->ops.at[GATHER].part0 = 1;
    expect_fault(p, "instruction 3 linear", "a wait for part 1 of instruction 2 is missing");

    /* the gather still sends x when its first part is there */
    p = gathering(1, 4, 2);
    const dh_operand *x = dh_instr_operand(p, &p->instrs.at[GATHER], 0);
    const dh_operand *y = dh_instr_operand(p, &p->instrs.at[FIRST], 3);
    p->buffers.at[y->buffer].offset = p->buffers.at[x->buffer].offset;
    expect_fault(p, "instruction 3 linear", "overwrites");

    p = gathering(1, 4, 2);
    wait_of(p, GATHER)->instr = FIRST;
    expect_fault(p, "deadlock", "instruction 2 all_gather");
}

static void expect_misfit(dh_program *zero, dh_program *one, const char *what)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p[TP] = {zero, one};
    const dh_status st = dh_programs_verify(&ctx, (const dh_program *const *)p, TP);
    assert_int_equal(st, what ? DH_EVERIFY : DH_OK);
    if (what && !strstr(ctx.message, what)) fail_msg("\"%s\" lacks \"%s\"", ctx.message, what);
    for (int r = 0; r < TP; r++) dh_program_destroy(p[r]);
}

static dh_program *scattering(int64_t rank, int part0)
{
    static const char text[] = "dhelix.graph v2 data train f32\n"
                               "dims batch=1 seq=8 width=4\n"
                               "%%0:x act f32[8 tokens, 4 width]\n"
                               "%%1:y act f32[4 tokens, 4 width]\n"
                               "F %%0 = sum()\n"
                               "F %%1 = reduce_scatter(%%0) {group=tp, parts=2, part0=%d}\n";
    dh_ctx ctx = DH_CTX_INIT;
    char filled[sizeof text + 16];
    dh_graph *g;
    snprintf(filled, sizeof filled, text, part0);
    assert_ok(&ctx, dh_graph_parse(&ctx, filled, strlen(filled), &g));
    return one_block(g, TP, rank);
}

static void partners_have_the_same_parts(void **state)
{
    expect_misfit(gathering(0, 4, 0), gathering(1, 4, 2), NULL);
    expect_misfit(gathering(0, 4, 0), gathering(1, 4, 0), "the communicator does with 2");
    expect_misfit(gathering(0, 4, 0), gathering(1, 2, 1), "in 2 parts");
    expect_misfit(gathering(0, 4, 0), gathering(1, 0, 0), "do not fit together");
    expect_misfit(scattering(0, 0), scattering(1, 0), NULL);
    expect_misfit(scattering(0, 1), scattering(1, 1), "the communicator does with 0");
}

/* ---- rows that leave ------------------------------------------------------------------------ */

enum { N_SHIFTING = 3 };

/* A product in two parts, the last one first, of which the first that is made leaves. */
static dh_program *shifting(int64_t rank, int by)
{
    static const char text[] = "dhelix.graph v2 data train f32\n"
                               "dims batch=1 seq=8 width=4\n"
                               "%%0:x    act f32[8 tokens, 4 width]\n"
                               "%%1:w    act f32[4 width, 4 width]\n"
                               "%%2:p    act f32[8 tokens, 4 width]\n"
                               "%%3:p.4  act f32[4 tokens, 4 width] view=%%2+4\n"
                               "%%4:came act f32[4 tokens, 4 width]\n"
                               "F %%0 = sum()\n"
                               "F %%1 = sum()\n"
                               "F %%2 = linear(%%0, %%1) {parts=2, part0=1}\n"
                               "F %%4 = shift(%%3) {group=tp, by=%d}\n";
    dh_ctx ctx = DH_CTX_INIT;
    char filled[sizeof text + 16];
    dh_graph *g;
    snprintf(filled, sizeof filled, text, by);
    assert_ok(&ctx, dh_graph_parse(&ctx, filled, strlen(filled), &g));
    return one_block(g, N_SHIFTING, rank);
}
enum { PRODUCT = 2, SHIFT = 3 };

static void expect_shifts(const int by[N_SHIFTING], const char *what)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p[N_SHIFTING];
    for (int r = 0; r < N_SHIFTING; r++) p[r] = shifting(r, by[r]);
    const dh_status st = dh_programs_verify(&ctx, (const dh_program *const *)p, N_SHIFTING);
    assert_int_equal(st, what ? DH_EVERIFY : DH_OK);
    if (what && !strstr(ctx.message, what)) fail_msg("\"%s\" lacks \"%s\"", ctx.message, what);
    for (int r = 0; r < N_SHIFTING; r++) dh_program_destroy(p[r]);
}

static void rows_leave_when_they_are_made(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = shifting(0, 1);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    assert_waits(p, SHIFT, (const dh_wait[]){{PRODUCT, 0}}, 1);
    dh_program_destroy(p);

    p = shifting(0, 1);
    p->instrs.at[SHIFT].n_waits = 0;
    expect_fault(p, "instruction 3 shift", "a wait for part 0 of instruction 2 is missing");
    p = shifting(0, 1); /* made in another order than who sends was told */
    p->graphs.at[0]->ops.at[PRODUCT].part0 = 0;
    expect_fault(p, "instruction 3 shift", "a wait for part 1 of instruction 2 is missing");

    expect_shifts((const int[]){1, 1, 1}, NULL);
    expect_shifts((const int[]){2, 2, 2}, NULL);
    expect_shifts((const int[]){1, 1, 2}, "do not fit together");
    expect_shifts((const int[]){3, 3, 3}, "goes on by 3 places");
    expect_shifts((const int[]){0, 0, 0}, "it can be 1 to 2");
}

/* ---- at random ------------------------------------------------------------------------------ */

typedef struct making {
    dh_graph *graph;
    uint64_t seed;
    int64_t rank;
    uint32_t whole[64]; /* tensors of all rows */
    uint32_t n_whole;
} making;

static int64_t up_to(making *m, int64_t n)
{
    return (int64_t)(test_rand(&m->seed) % (uint64_t)n);
}

static uint32_t add_tensor(making *m, int64_t rows, uint32_t base, int64_t row0)
{
    dh_tensor t = {.kind = DH_TENSOR_ACT,
                   .dtype = DH_F32,
                   .ndim = 2,
                   .shape = {rows, WIDTH},
                   .axis = {DH_AXIS_TOKENS, DH_AXIS_WIDTH},
                   .base = base,
                   .row0 = row0,
                   .which = DH_NONE};
    snprintf(t.name, sizeof t.name, "t%zu", m->graph->tensors.n);
    const uint32_t id = dh_graph_add_tensor(m->graph, &t);
    assert_int_not_equal(id, DH_NONE);
    return id;
}

static dh_op *add_op(making *m, dh_op_type type, uint32_t x, uint32_t w, uint32_t y)
{
    const uint32_t in[DH_MAX_OPERANDS] = {x, w, DH_NONE}, out[DH_MAX_OPERANDS] = {y};
    const uint32_t id = dh_graph_add_op(m->graph, type, DH_PHASE_F, in, out);
    assert_int_not_equal(id, DH_NONE);
    dh_op *op = &m->graph->ops.at[id];
    if (dh_op_info_of(type)->resource == DH_RES_COMM) op->group = DH_GROUP_TP;
    return op;
}

static uint32_t some_rows(making *m, int64_t rows)
{
    const uint32_t base = m->whole[up_to(m, m->n_whole)];
    return add_tensor(m, rows, base, up_to(m, ROWS - rows + 1));
}

/* A new tensor of all rows, in parts or not: gathered, or the product of another one. */
static void add_writer(making *m)
{
    static const int32_t parts[] = {0, 2, 4, 6, 12};
    const int32_t n = parts[up_to(m, DH_COUNTOF(parts))];
    const bool gathers = up_to(m, 2);
    const uint32_t x = gathers ? some_rows(m, ROWS / TP) : m->whole[up_to(m, m->n_whole)];
    const uint32_t y = add_tensor(m, ROWS, DH_NONE, 0);
    dh_op *op = add_op(m, gathers ? DH_OP_ALL_GATHER : DH_OP_LINEAR, x, 0, y);
    op->parts = n;
    op->part0 = (int32_t)(n == 0 ? 0 : gathers ? m->rank * n / TP : up_to(m, n));
    m->whole[m->n_whole++] = y;
}

/* Some rows of any of them, on either stream. */
static void add_reader(making *m)
{
    const int64_t rows = 1 + up_to(m, ROWS / 3);
    const uint32_t x = some_rows(m, rows), y = add_tensor(m, rows, DH_NONE, 0);
    add_op(m, up_to(m, 2) ? DH_OP_COPY : DH_OP_ALL_REDUCE, x, DH_NONE, y);
}

static dh_program *draw_program(uint64_t seed)
{
    making m = {.graph = calloc(1, sizeof *m.graph), .seed = seed};
    dh_graph *g = m.graph;
    assert_non_null(g);
    g->kind = DH_BLOCK_DATA;
    g->x_in = g->x_out = g->dx_in = g->dx_out = g->loss_x = g->loss_dx = DH_NONE;
    m.rank = up_to(&m, TP);
    for (int i = 0; i < 2; i++) { /* a weight of as many rows, and something to begin with */
        const uint32_t id = add_tensor(&m, ROWS, DH_NONE, 0);
        add_op(&m, DH_OP_SUM, DH_NONE, DH_NONE, id);
        m.whole[m.n_whole++] = id;
    }
    for (int i = 0; i < 40; i++) (up_to(&m, 4) ? add_reader : add_writer)(&m);
    return one_block(g, TP, m.rank);
}

static bool is_found(const dh_program *p)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_status st = dh_program_verify(&ctx, p);
    if (st != DH_OK && !strstr(ctx.message, "wait")) fail_msg("%s", ctx.message);
    return st == DH_EVERIFY;
}

/* Takes a part off what an instruction waits for, or the wait away; true: a part. */
static bool weaken(dh_program *p, dh_instr *instr)
{
    dh_wait *wait = &p->waits.at[instr->wait0];
    const uint32_t last = dh_instr_n_parts(p, wait->instr) - 1;
    const uint32_t part = wait->part == DH_NONE ? last : wait->part;
    if (part > 0)
        wait->part = part - 1;
    else
        instr->n_waits = 0;
    return part > 0;
}

/* Between two streams no wait is to spare: without it, or for one part less, it is a fault. */
static void every_wait_is_needed(void **state)
{
    uint64_t seed = test_seed("every_wait_is_needed");
    int n_weakened[2] = {0, 0};
    for (int turn = 0; turn < 200; turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_program *p = draw_program(test_rand(&seed));
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            const dh_instr was = p->instrs.at[i];
            if (was.n_waits == 0) continue;
            assert_int_equal(was.n_waits, 1);
            const dh_wait wait = *wait_of(p, i);
            n_weakened[weaken(p, &p->instrs.at[i])]++;
            if (!is_found(p))
                fail_msg("turn %d: what instruction %u waits for can be less", turn, i);
            p->instrs.at[i] = was;
            *wait_of(p, i) = wait;
        }
        dh_program_destroy(p);
    }
    print_message("%d waits dropped, %d for a part less\n", n_weakened[0], n_weakened[1]);
    assert_true(n_weakened[0] > 100 && n_weakened[1] > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_waits_for_its_part),
        cmocka_unit_test(faults_are_found_and_named),
        cmocka_unit_test(partners_have_the_same_parts),
        cmocka_unit_test(rows_leave_when_they_are_made),
        cmocka_unit_test(every_wait_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
