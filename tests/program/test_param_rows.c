/* Rows of a parameter used by themselves: where they lie, whether a gradient's are written for the
 * first time, and that an operator waits for what used the same rows and for nothing else. */
#include "one_block.h"

enum { TP = 2, PARTS = 4 };

static dh_model model;

/* The rank's weight of the attention's projection. */
static dh_param weight(void)
{
    dh_param w;
    const dh_shard shard = {.tp = TP, .tp_rank = 1};
    assert_true(dh_param_describe(&model, DH_BLOCK_LAYER, 0, DH_PARAM_PROJ_W, &w));
    assert_true(dh_param_shard(&w, shard, &w));
    assert_true(w.shape[0] % PARTS == 0);
    return w;
}

typedef struct making {
    dh_graph *graph;
    uint32_t whole[DH_N_TENSOR_KIND]; /* the parameter and its gradient */
    uint32_t x;                       /* something to compute with */
    uint64_t seed;
} making;

static uint32_t add_tensor(making *m, dh_tensor_kind kind, int64_t row0, int64_t n)
{
    const bool persists = kind != DH_TENSOR_ACT, whole = row0 < 0;
    dh_tensor t = {.kind = kind,
                   .dtype = DH_F32,
                   .ndim = 2,
                   .shape = {n, weight().shape[1]},
                   .base = whole || !persists ? DH_NONE : m->whole[kind],
                   .row0 = whole ? 0 : row0,
                   .which = persists ? DH_PARAM_PROJ_W : DH_NONE};
    snprintf(t.name, sizeof t.name, "t%zu", m->graph->tensors.n);
    const uint32_t id = dh_graph_add_tensor(m->graph, &t);
    assert_int_not_equal(id, DH_NONE);
    return id;
}

static uint32_t add_op(making *m, dh_op_type type, uint32_t a, uint32_t b, uint32_t y)
{
    const uint32_t in[DH_MAX_OPERANDS] = {a, b}, out[DH_MAX_OPERANDS] = {y};
    const uint32_t id = dh_graph_add_op(m->graph, type, DH_PHASE_F, in, out);
    assert_int_not_equal(id, DH_NONE);
    if (type == DH_OP_ALL_REDUCE) m->graph->ops.at[id].group = DH_GROUP_TP;
    return id;
}

static making begin(uint64_t seed)
{
    making m = {.graph = calloc(1, sizeof *m.graph), .seed = seed};
    dh_graph *g = m.graph;
    assert_non_null(g);
    g->kind = DH_BLOCK_LAYER;
    g->x_in = g->x_out = g->dx_in = g->dx_out = g->loss_x = g->loss_dx = DH_NONE;
    for (int kind = DH_TENSOR_PARAM; kind <= DH_TENSOR_GRAD; kind++)
        m.whole[kind] = add_tensor(&m, (dh_tensor_kind)kind, -1, weight().shape[0]);
    m.x = add_tensor(&m, DH_TENSOR_ACT, -1, 1);
    add_op(&m, DH_OP_SUM, DH_NONE, DH_NONE, m.x);
    return m;
}

/* Adds to rows of the gradient, on the stream that computes. */
static uint32_t write_rows(making *m, int64_t row0, int64_t n)
{
    return add_op(m, DH_OP_LINEAR_WGRAD, m->x, m->x, add_tensor(m, DH_TENSOR_GRAD, row0, n));
}

/* Reads rows of the gradient on the stream that communicates. */
static uint32_t send_rows(making *m, int64_t row0, int64_t n)
{
    const uint32_t rows = add_tensor(m, DH_TENSOR_GRAD, row0, n);
    return add_op(m, DH_OP_ALL_REDUCE, rows, DH_NONE, add_tensor(m, DH_TENSOR_ACT, -1, n));
}

static dh_program *finish(making *m)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = one_block_of(&model, m->graph, TP, 1);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    return p;
}

/* ---- by hand -------------------------------------------------------------------------------- */

static void assert_waits_for(const dh_program *p, uint32_t instr, uint32_t earlier)
{
    const dh_instr *i = &p->instrs.at[instr];
    assert_int_equal(i->n_waits, earlier != DH_NONE);
    if (earlier != DH_NONE) assert_int_equal(p->waits.at[i->wait0].instr, earlier);
}

static void rows_are_apart(void **state)
{
    const int64_t n = weight().shape[0] / 2;
    making m = begin(0);
    const uint32_t first = write_rows(&m, 0, n), second = write_rows(&m, n, n);
    const uint32_t sent = send_rows(&m, 0, n);
    const uint32_t beside = write_rows(&m, n, n), behind = write_rows(&m, 0, n);
    const uint32_t all = send_rows(&m, 0, 2 * n);
    dh_program *p = finish(&m);
    assert_false(p->instrs.at[first].accumulate || p->instrs.at[second].accumulate);
    assert_true(p->instrs.at[beside].accumulate && p->instrs.at[behind].accumulate);
    assert_waits_for(p, sent, first);
    assert_waits_for(p, beside, DH_NONE);
    assert_waits_for(p, behind, sent);
    assert_waits_for(p, all, behind);
    dh_program_destroy(p);
}

static void rows_lie_in_the_parameter(void **state)
{
    const dh_param w = weight();
    const int64_t n = w.shape[0] / PARTS;
    making m = begin(0);
    for (int k = 0; k < PARTS; k++) {
        const uint32_t rows = add_tensor(&m, DH_TENSOR_PARAM, k * n, n);
        add_op(&m, DH_OP_COPY, rows, DH_NONE, add_tensor(&m, DH_TENSOR_ACT, -1, n));
    }
    dh_program *p = finish(&m);
    const uint32_t param = dh_program_param(p, w.name);
    assert_int_not_equal(param, DH_NONE);
    const dh_operand *home = &p->homes.at[param].at[DH_BUF_MASTER];
    for (int k = 0; k < PARTS; k++) {
        const dh_operand *o = dh_instr_operand(p, &p->instrs.at[1 + k], 0);
        assert_int_equal(o->buffer, home->buffer);
        assert_int_equal(o->n_bytes, home->n_bytes / PARTS);
        assert_int_equal(o->byte0, home->byte0 + (uint64_t)k * o->n_bytes);
    }
    dh_program_destroy(p);
}

/* An operator adds to all of its output or to nothing of it. */
static void a_whole_of_which_a_part_was_written_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const int64_t n = weight().shape[0] / 2;
    making m = begin(0);
    write_rows(&m, 0, n);
    write_rows(&m, 0, 2 * n);
    dh_program *p = one_block_of(&model, m.graph, TP, 1);
    assert_fails(&ctx, dh_program_verify(&ctx, p), DH_EVERIFY, "before anything was written there");
    dh_program_destroy(p);
}

/* ---- at random ------------------------------------------------------------------------------ */

static int64_t up_to(making *m, int64_t n)
{
    return (int64_t)(test_rand(&m->seed) % (uint64_t)n);
}

/* Every part once, then any rows in any order. */
static dh_program *draw_program(uint64_t seed)
{
    making m = begin(seed);
    const int64_t n_rows = weight().shape[0], part = n_rows / PARTS;
    for (int k = 0; k < PARTS; k++) write_rows(&m, (k * 3 + 1) % PARTS * part, part);
    for (int i = 0; i < 30; i++) {
        const int64_t row0 = up_to(&m, n_rows), n = 1 + up_to(&m, n_rows - row0);
        (up_to(&m, 2) ? write_rows : send_rows)(&m, row0, n);
    }
    return finish(&m);
}

/* Without any of its waits a program is at fault: none is for other rows' sake. */
static void every_wait_is_needed(void **state)
{
    uint64_t seed = test_seed("every_wait_is_needed");
    int n_dropped = 0;
    for (int turn = 0; turn < 100; turn++) {
        dh_program *p = draw_program(test_rand(&seed));
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            dh_ctx ctx = DH_CTX_INIT;
            const uint16_t n_waits = p->instrs.at[i].n_waits;
            const bool adds = p->instrs.at[i].accumulate;
            if (dh_instr_op(p, &p->instrs.at[i])->type == DH_OP_LINEAR_WGRAD)
                assert_int_equal(adds, i > PARTS);
            if (n_waits == 0) continue;
            p->instrs.at[i].n_waits = 0;
            if (dh_program_verify(&ctx, p) != DH_EVERIFY)
                fail_msg("turn %d: what instruction %u waits for is not needed", turn, i);
            p->instrs.at[i].n_waits = n_waits;
            n_dropped++;
        }
        dh_program_destroy(p);
    }
    print_message("%d waits dropped\n", n_dropped);
    assert_true(n_dropped > 500);
}

int main(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (dh_model_from_preset(&ctx, "gpt2-tiny", &model) != DH_OK) return 1;
    model.vocab = 65;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_apart),
        cmocka_unit_test(rows_lie_in_the_parameter),
        cmocka_unit_test(a_whole_of_which_a_part_was_written_is_refused),
        cmocka_unit_test(every_wait_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
