/* What travels in a step of a real program: all of it is counted, as what it is, with its time. */
#include "../program/one_block.h"

#include "program/program_spec.h"
#include "report/cargo.h"

static size_t no_scratch(const dh_graph *graph, const dh_op *op)
{
    return 0;
}
static const dh_backend_info backend = {.name = "test", .workspace_bytes = no_scratch};

enum { N_MICRO = 3, LONG_NS = 1500, SHORT_NS = 1000 };

/* The second stage of two, split over two tensor-parallel ranks and copied once. */
static dh_program *build(bool zero1, int64_t bucket_bytes)
{
    dh_ctx ctx = DH_CTX_INIT;
    static dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "gpt2-tiny", &model));
    dh_program_spec spec = {.recipe = {.model = model,
                                       .micro_batch = 1,
                                       .seq = 16,
                                       .n_micro = N_MICRO,
                                       .sharing = dh_sharing_of(zero1),
                                       .bucket_bytes = bucket_bytes,
                                       .backend = &backend},
                            .mode = DH_MODE_TRAIN,
                            .rank = 4};
    dh_program *p;
    assert_ok(&ctx, dh_mesh_init(&ctx, 2, 2, 2, 1, 1, 2, 0, &spec.recipe.mesh));
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    return p;
}

static bool communicates(const dh_program *p, size_t id)
{
    return p->instrs.at[id].stream != DH_STREAM_COMPUTE;
}

/* One instruction after another; a communication runs into the computation behind it. */
static dh_span *make_spans(const dh_program *p)
{
    dh_span *spans = calloc(p->instrs.n, sizeof *spans);
    assert_non_null(spans);
    for (size_t i = 0; i < p->instrs.n; i++) {
        const bool runs_on = communicates(p, i) && i + 1 < p->instrs.n && !communicates(p, i + 1);
        const int64_t start = (int64_t)i * SHORT_NS;
        spans[i] = (dh_span){start, start, start + (runs_on ? LONG_NS : SHORT_NS)};
    }
    return spans;
}

/* Computations take as long alone; a communication a third of its time. */
static double *make_alone(const dh_program *p)
{
    double *alone = calloc(p->instrs.n, sizeof *alone);
    assert_non_null(alone);
    for (size_t i = 0; i < p->instrs.n; i++) alone[i] = communicates(p, i) ? 500 : SHORT_NS;
    return alone;
}

static int64_t sum_of_times(const dh_haul *h)
{
    int64_t ns = dh_haul_exposed_ns(h);
    for (int k = 0; k < DH_N_PHASE; k++) ns += h->times.beside_ns[k];
    return ns;
}

/* Gradients are reduced once, and shards of parameters gathered once. */
static void check_bytes(const dh_program *p, bool zero1, const dh_cargo_list *list)
{
    double matrices = 0;
    for (size_t i = 0; i < p->flats.n; i++) matrices += (double)p->flats.at[i].n_matrix;
    matrices *= sizeof(float);
    assert_true(list->all[DH_CARGO_GRADIENTS].n_bytes > matrices);
    assert_true(list->all[DH_CARGO_PARAMETERS].n_bytes == (zero1 ? matrices : 0));
    double scattered = 0;
    for (size_t i = 0; i < list->rows.n; i++)
        if (list->rows.at[i].type == DH_OP_REDUCE_SCATTER)
            scattered += list->rows.at[i].haul.n_bytes;
    assert_true(scattered == (zero1 ? matrices : 0));
}

static void check_rows(const dh_program *p, const dh_cargo_list *list)
{
    dh_haul sums[DH_N_CARGO] = {{0}};
    for (size_t i = 0; i < list->rows.n; i++) {
        const dh_cargo_row *row = &list->rows.at[i];
        dh_haul_add(&sums[row->cargo], &row->haul);
        assert_int_equal(row->mb, row->cargo == DH_CARGO_GRADIENTS ? N_MICRO - 1 : -1);
        assert_true(row->end_ns > row->start_ns);
        assert_int_equal(row->cargo == DH_CARGO_NORM, row->first_block == DH_NONE);
        for (size_t k = 0; k < i; k++) assert_true(list->rows.at[k].start_ns <= row->start_ns);
    }
    for (int c = DH_CARGO_GRADIENTS; c < DH_N_CARGO; c++) {
        const dh_haul *all = &list->all[c];
        assert_int_equal(sums[c].n, all->n);
        assert_int_equal(sums[c].ns, all->ns);
        assert_true(sums[c].n_bytes == all->n_bytes);
        assert_memory_equal(&sums[c].times, &all->times, sizeof all->times);
    }
    assert_true(list->rows.n < list->all[DH_CARGO_GRADIENTS].n);
}

static void everything_is_counted_once(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int variant = 0; variant < 4; variant++) {
        const bool zero1 = variant & 1;
        dh_program *p = build(zero1, variant & 2 ? 20000 : 0);
        dh_span *spans = make_spans(p);
        dh_cargo_list list;
        double *alone = make_alone(p);
        assert_ok(&ctx, dh_cargo_read(&ctx, p, spans, alone, &list));
        uint32_t n = 0, n_all = 0;
        int64_t ns = 0, ns_all = 0;
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            n += communicates(p, i);
            if (communicates(p, i)) ns += spans[i].end_ns - spans[i].start_ns;
            assert_int_equal(dh_instr_cargo(p, i) == DH_N_CARGO, !communicates(p, i));
        }
        for (int c = 0; c < DH_N_CARGO; c++) {
            n_all += list.all[c].n;
            ns_all += list.all[c].ns;
            assert_int_equal(sum_of_times(&list.all[c]), list.all[c].ns);
            assert_true((list.all[c].n > 0) == (zero1 || c != DH_CARGO_PARAMETERS));
            assert_true(list.all[c].alone_ns == 500.0 * list.all[c].n);
            assert_int_equal(dh_haul_hidden_ns(&list.all[c]) + dh_haul_exposed_ns(&list.all[c]),
                             500 * list.all[c].n);
        }
        assert_int_equal(n_all, n);
        assert_int_equal(ns_all, ns);
        check_bytes(p, zero1, &list);
        check_rows(p, &list);
        dh_cargo_list_fini(&list);
        free(spans);
        free(alone);
        dh_program_destroy(p);
    }
}

/* Whether some flat is of these blocks. */
static bool is_of_a_flat(const dh_program *p, const dh_cargo_row *row)
{
    for (size_t i = 0; i < p->flats.n; i++)
        if (p->flats.at[i].first_block == row->first_block) return true;
    return false;
}

/* What passes from one stage to the next lies in no flat, and what is gathered block by block in
 * none either: each says whose it is all the same. */
static void values_on_their_way_are_somebodys(void **state)
{
    static const dh_strategy staged = {
        .name = "staged",
        .passes = DH_PASSES(1, DH_PASS_USE(two_stage, DH_STAGES_NARROW, 1)),
        .policy = "sequential"};
    static dh_model model;
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "llama-tiny", &model));
    for (int64_t zero = 1; zero <= 4; zero++) {
        dh_program_spec spec = {.recipe = {.model = model,
                                           .strategy = &staged,
                                           .micro_batch = 1,
                                           .seq = 16,
                                           .n_micro = 1,
                                           .sharing = dh_sharing_of(zero),
                                           .bucket_bytes = 20000,
                                           .backend = &backend},
                                .mode = DH_MODE_TRAIN,
                                .rank = 2};
        dh_program *p;
        dh_cargo_list list;
        size_t n = 0;
        if (zero == 4) spec.recipe.sharing.reshard = DH_GATHERED_SHARE;
        assert_ok(&ctx, dh_mesh_init(&ctx, 4, 1, 1, 1, 1, 0, 2, &spec.recipe.mesh));
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
        dh_span *spans = make_spans(p);
        double *alone = make_alone(p);
        assert_ok(&ctx, dh_cargo_read(&ctx, p, spans, alone, &list));
        for (size_t i = 0; i < list.rows.n; i++) {
            if (list.rows.at[i].cargo == DH_CARGO_NORM) continue;
            assert_true(is_of_a_flat(p, &list.rows.at[i]));
            n += list.rows.at[i].type == DH_OP_ALL_GATHER;
        }
        assert_true(n > 1);
        dh_cargo_list_fini(&list);
        free(spans);
        free(alone);
        dh_program_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_counted_once),
        cmocka_unit_test(values_on_their_way_are_somebodys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
