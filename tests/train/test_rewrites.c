/* Programs by lot, rewritten by CoCoNet's passes and run on threads: the same numbers.
 *
 * Bits. Splitting an all-reduce and moving operators by rows change neither which numbers are added
 * nor their order, so every output of every rank keeps its bits. With part-wise a GEMM of fewer
 * rows may be another kernel, whose last bits differ; a few layers of values of about 1 carry that
 * on: measured 1e-6, allowed 1e-4. */
#include "graph_programs.h"

enum { WIDE = 8, MOST_VALUES = 64 };

/* A program in the making: values are [rows, WIDE] each. */
typedef struct maker {
    dh_str tensors, ops;
    uint64_t seed;
    uint32_t n; /* tensors */
    int64_t rows;
    uint32_t values[MOST_VALUES];
    size_t n_values;
    uint32_t slots;
} maker;

static size_t lot(maker *m, size_t n)
{
    return (size_t)(test_rand(&m->seed) % n);
}

static uint32_t tensor(maker *m, const char *name, const char *kind, const char *shape)
{
    dh_str_printf(&m->tensors, "%%%u:%s%u %s f32[%s]", m->n, name, m->n, kind, shape);
    if (strcmp(kind, "range") == 0) dh_str_printf(&m->tensors, " slot=%u", m->slots++);
    dh_str_printf(&m->tensors, "\n");
    return m->n++;
}

static uint32_t passing(maker *m)
{
    char shape[32];
    snprintf(shape, sizeof shape, "%lld, %d", (long long)m->rows, WIDE);
    return tensor(m, "v", "act", shape);
}

static uint32_t value(maker *m)
{
    /* Late ones more often: longer chains. */
    const size_t a = lot(m, m->n_values), b = lot(m, m->n_values);
    return m->values[DH_MAX(a, b)];
}

static void leaves(maker *m, uint32_t id)
{
    if (m->n_values < MOST_VALUES) m->values[m->n_values++] = id;
}

static uint32_t vector(maker *m)
{
    char shape[16];
    snprintf(shape, sizeof shape, "%d", WIDE);
    return tensor(m, "b", "range", shape);
}

static void add_linear(maker *m)
{
    char shape[32];
    const bool own = lot(m, 4) > 0;
    snprintf(shape, sizeof shape, own ? "%d heads, %d" : "%d, %d", WIDE, WIDE);
    const uint32_t x = value(m), w = tensor(m, own ? "own" : "w", "range", shape), y = passing(m);
    dh_str_printf(&m->ops, "F %%%u = linear(%%%u, %%%u)\n", y, x, w);
    leaves(m, y);
}

static void add_sum(maker *m)
{
    const uint32_t x = value(m), y = passing(m);
    dh_str_printf(&m->ops, "F %%%u = all_reduce(%%%u) {group=tp}\n", y, x);
    leaves(m, y);
}

static void add_residual(maker *m)
{
    const uint32_t x = value(m), p = value(m), b = vector(m), y = passing(m);
    if (lot(m, 2))
        dh_str_printf(&m->ops, "F %%%u = residual(%%%u, %%%u, %%%u, %%0, %%1) {site=mlp}\n", y, x,
                      p, b);
    else
        dh_str_printf(&m->ops, "F %%%u = add(%%%u, %%%u)\n", y, x, p);
    leaves(m, y);
}

static void add_norm(maker *m)
{
    char shape[32];
    snprintf(shape, sizeof shape, "%lld, 2", (long long)m->rows);
    const uint32_t x = value(m), w = vector(m), b = vector(m), y = passing(m);
    const uint32_t stats = tensor(m, "s", "act", shape);
    dh_str_printf(&m->ops, "F %%%u, %%%u = norm(%%%u, %%%u, %%%u)\n", y, stats, x, w, b);
    leaves(m, y);
    if (lot(m, 2)) return;
    const uint32_t dy = value(m), dres = value(m), dx = passing(m), dw = vector(m), db = vector(m);
    dh_str_printf(&m->ops, "B %%%u = norm_dgrad(%%%u, %%%u, %%%u, %%%u, %%%u)\n", dx, dy, x, w,
                  stats, dres);
    dh_str_printf(&m->ops, "W %%%u, %%%u = norm_wgrad(%%%u, %%%u, %%%u)\n", dw, db, dy, x, stats);
    leaves(m, dx);
}

static void add_pointwise(maker *m)
{
    const uint32_t x = value(m), other = value(m), y = passing(m);
    static const char *const forms[] = {"F %%%u = activation(%%%u)\n", "F %%%u = copy(%%%u)\n",
                                        "B %%%u = dropout_grad(%%%u, %%0, %%1) {site=mlp}\n"};
    const size_t i = lot(m, DH_COUNTOF(forms) + 1);
    if (i < DH_COUNTOF(forms))
        dh_str_printf(&m->ops, forms[i], y, x); // NOLINT
    else
        dh_str_printf(&m->ops, "B %%%u = activation_grad(%%%u, %%%u)\n", y, x, other);
    leaves(m, y);
}

static void add_weight_gradient(maker *m)
{
    char shape[32];
    snprintf(shape, sizeof shape, "%d, %d", WIDE, WIDE);
    const uint32_t dy = value(m), x = value(m), dw = tensor(m, "d", "act", shape), db = vector(m);
    dh_str_printf(&m->ops, "W %%%u = linear_wgrad(%%%u, %%%u)\nW %%%u = bias_grad(%%%u)\n", dw, dy,
                  x, db, dy);
}

/* Rows by hand: a scatter, and a gather of what came of it. */
static void add_rows(maker *m)
{
    char shape[32];
    snprintf(shape, sizeof shape, "%lld, %d", (long long)m->rows / 4, WIDE);
    const uint32_t x = value(m), part = tensor(m, "r", "act", shape),
                   more = tensor(m, "r", "act", shape), y = passing(m);
    dh_str_printf(&m->ops,
                  "F %%%u = reduce_scatter(%%%u) {group=tp}\nF %%%u = activation(%%%u)\n"
                  "F %%%u = all_gather(%%%u) {group=tp}\n",
                  part, x, more, part, y, more);
    leaves(m, y);
}

static char *program_by_lot(uint64_t seed)
{
    static void (*const kinds[])(maker *) = {
        add_linear,          add_sum, add_sum, add_residual, add_residual, add_norm, add_pointwise,
        add_weight_gradient, add_rows};
    maker m = {.tensors = DH_STR_INIT, .ops = DH_STR_INIT, .seed = seed, .rows = 8};
    char shape[48];
    if (lot(&m, 2)) m.rows = 16;
    dh_str_printf(&m.tensors,
                  "dhelix.graph v2 program train f32\ndims act=gelu_tanh norm=layer "
                  "norm_eps=1e-5 dropout=0.2\n"
                  "%%0:pos range i32[%lld] slot=0\n%%1:sample range i64[%lld] slot=1\n",
                  (long long)m.rows, (long long)m.rows);
    m.n = m.slots = 2;
    snprintf(shape, sizeof shape, "%lld tokens, %d", (long long)m.rows, WIDE);
    leaves(&m, tensor(&m, "x", "range", shape));
    snprintf(shape, sizeof shape, "%lld heads, %d", (long long)m.rows, WIDE);
    leaves(&m, tensor(&m, "own", "range", shape)); /* each rank's own */
    const size_t n = 6 + lot(&m, 14);
    for (size_t i = 0; i < n; i++) kinds[lot(&m, DH_COUNTOF(kinds))](&m);
    dh_str_append(&m.tensors, m.ops.text, m.ops.len);
    assert_false(m.tensors.failed);
    dh_str_fini(&m.ops);
    return m.tensors.text;
}

/* How far apart the outputs of two runs of one program are. */
static double distance(const test_program *a, const test_program *b)
{
    double most = 0;
    assert_int_equal(a->run.ios.n, b->run.ios.n);
    for (size_t i = 0; i < a->run.ios.n; i++) {
        if (!a->run.ios.at[i].out) continue;
        const dh_tensor *t = &a->text.graph->tensors.at[a->run.ios.at[i].tensor];
        for (int64_t r = 0; r < a->run.mesh.ranks; r++) {
            const size_t at = (size_t)r * a->run.ios.n + i;
            const double d = dh_graph_value_distance(t->dtype, dh_tensor_elements(t),
                                                     a->run.left[at], b->run.left[at]);
            most = DH_MAX(most, d);
        }
    }
    return most;
}

static size_t count(const dh_graph *g, dh_op_type type)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++) n += g->ops.at[i].type == type;
    return n;
}

static size_t count_in_parts(const dh_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += g->ops.at[i].type == DH_OP_REDUCE_SCATTER && g->ops.at[i].parts > 1;
    return n;
}

static void programs_keep_their_numbers(void **state)
{
    static const struct {
        const char *passes;
        double allowed;
        bool sums; /* whether all-reduces may stay */
    } rewrites[] = {{"split", 0, false},
                    {"reorder", 0, true},
                    {"split, reorder", 0, false},
                    {"split, reorder(regather=false)", 0, false},
                    {"fuse", 0, true},
                    {"split, reorder, fuse", 0, false},
                    {"fuse(gather)", 0, true},
                    {"split, reorder, fuse(2, gather)", 0, false},
                    {"split, reorder, part-wise(1)", 1e-4, false}};
    uint64_t seed = test_seed("programs_keep_their_numbers");
    size_t n_moved = 0, n_fused = 0;
    for (int k = 0; k < 24; k++) {
        const uint64_t lot_of_program = test_rand(&seed);
        char *text = program_by_lot(lot_of_program);
        test_program plain;
        program_run(&plain, text, "parallel.tp=4 device=cpu", "", lot_of_program);
        for (size_t i = 0; i < DH_COUNTOF(rewrites); i++) {
            test_program other;
            program_run(&other, text, "parallel.tp=4", rewrites[i].passes, lot_of_program);
            const double d = distance(&plain, &other);
            if (!(d <= rewrites[i].allowed))
                fail_msg("%s changes outputs by %g of\n%s", rewrites[i].passes, d, text);
            assert_true(rewrites[i].sums || count(other.run.graphs[0], DH_OP_ALL_REDUCE) == 0);
            n_fused += count_in_parts(other.run.graphs[0]);
            n_moved += i == 2 && count(other.run.graphs[0], DH_OP_ALL_GATHER) !=
                                     count(plain.run.graphs[0], DH_OP_ALL_REDUCE) +
                                         count(plain.run.graphs[0], DH_OP_ALL_GATHER);
            program_fini(&other);
        }
        program_fini(&plain);
        free(text);
    }
    assert_true(n_moved > 4 && n_fused > 8); /* the rewrites do something */
}

/* ---- the optimizer --------------------------------------------------------------------------- */

/* Data-parallel ranks sum a gradient, each having its own, and step by it. */
static const char adam[] = "dhelix.graph v2 program train f32\n"
                           "%0:p range f32[32, 6] slot=0\n%1:m range f32[32, 6] slot=1\n%2:square "
                           "range f32[32, 6] slot=2\n"
                           "%3:own range f32[32 heads, 6] slot=3\n%4:norm range f64[1, 2] slot=4\n"
                           "%5:copy range bf16[32, 6] slot=5\n%6:g act f32[32, 6]\n"
                           "O %6 = all_reduce(%3) {group=dp}\nO %0, %1, %2, %5 = adamw(%6, %4)\n";

#define ADAM_SETTINGS "parallel.dp=4 optimizer.lr=0.1 optimizer.grad_clip=0"

/* A rank's rows of what its rewritten program leaves are those of the plain one; of moments that
 * stay with their rank the others are what they were. */
static void compare_rows(const test_program *plain, const test_program *other, const char *name,
                         int64_t rank, bool own)
{
    const float *a = program_left(plain, name, rank), *b = program_left(other, name, rank);
    const float *given = (const void *)dh_st_find(plain->given, name)->data;
    for (int64_t e = 0; e < (int64_t)32 * 6; e++) {
        const bool here = !own || e / (8 * 6) == rank;
        if (b[e] != (here ? a[e] : given[e]))
            fail_msg("%s of rank %lld: element %lld is %g", name, (long long)rank, (long long)e,
                     (double)b[e]);
    }
}

/* The paper's fused optimizer, found by the same rewrites as a layer's: an all-reduce and a step by
 * all rows become a pipeline of reduce-scatter, step and gather. */
static void an_optimizer_is_fused(void **state)
{
    static const struct {
        const char *passes;
        bool fused, gathered, sharded;
        size_t n_gathers, n_steps;
    } forms[] = {{"split", false, false, false, 1, 1},
                 {"split, reorder", false, false, false, 4, 1},
                 {"split, reorder(sharded)", false, false, true, 2, 1},
                 {"split, reorder(sharded), fuse(4)", true, false, true, 2, 4},
                 {"split, reorder(sharded), fuse(4, gather)", true, true, true, 0, 4},
                 {"split, reorder, fuse(2, gather)", true, true, false, 0, 2}};
    test_program plain;
    program_run(&plain, adam, ADAM_SETTINGS " device=cpu", "", 5);
    for (size_t i = 0; i < DH_COUNTOF(forms); i++) {
        test_program other;
        program_run(&other, adam, ADAM_SETTINGS, forms[i].passes, 5);
        const dh_graph *g = other.run.graphs[1];
        assert_int_equal(count(g, DH_OP_ALL_REDUCE), 0);
        assert_int_equal(count(g, DH_OP_ALL_GATHER), forms[i].n_gathers);
        assert_int_equal(count(g, DH_OP_ADAMW), forms[i].n_steps);
        assert_int_equal(count_in_parts(g), forms[i].fused);
        assert_true((count(g, DH_OP_SHIFT) > 0) == forms[i].gathered);
        for (int64_t r = 0; r < 4; r++) {
            compare_rows(&plain, &other, "p", r, false);
            compare_rows(&plain, &other, "m", r, forms[i].sharded);
            compare_rows(&plain, &other, "square", r, forms[i].sharded);
            assert_memory_equal(program_left(&plain, "copy", r), program_left(&other, "copy", r),
                                (size_t)32 * 6 * sizeof(uint16_t));
        }
        program_fini(&other);
    }
    program_fini(&plain);
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Links without latency: what a rewrite adds in calls costs nothing, so that it is worth its while
 * in programs as small as these. */
static const dh_costs *costs_of_tests(dh_arena *arena)
{
    const dh_cost_model model = {.link_latency_ns = {[DH_ENGINE_LOCAL] = 1, [DH_ENGINE_CROSS] = 1}};
    return dh_costs_estimated(arena, &model);
}

static bool has_pass(const dh_pass_list *list, const char *name)
{
    bool has = false;
    for (int64_t i = 0; i < list->n; i++) has |= strcmp(list->at[i].pass->name, name) == 0;
    return has;
}

static void what_is_found_keeps_its_numbers(void **state)
{
    dh_arena *arena = dh_arena_create();
    const dh_graph_run_options how = {
        .search = DH_GRAPH_SEARCH, .costs = costs_of_tests(arena), .quiet = true};
    uint64_t seed = test_seed("what_is_found_keeps_its_numbers");
    size_t n_rewritten = 0;
    for (int k = 0; k < 8; k++) {
        const uint64_t lot_of_program = test_rand(&seed);
        char *text = program_by_lot(lot_of_program);
        test_program plain, found;
        program_run(&plain, text, "parallel.tp=4 device=cpu", "", lot_of_program);
        program_run_as(&found, text, "parallel.tp=4", &how, lot_of_program);
        const dh_rewrites *r = found.run.rewrites;
        for (size_t i = 0; i < r->n; i++) assert_true(r->at[r->best].layer_ns <= r->at[i].layer_ns);
        assert_int_equal(r->at[0].passes.n, 0);
        n_rewritten += r->at[r->best].layer_ns < r->at[0].layer_ns;
        const double allowed = has_pass(&found.run.passes, "part-wise") ? 1e-4 : 0;
        assert_true(distance(&plain, &found) <= allowed);
        program_fini(&found);
        program_fini(&plain);
        free(text);
    }
    assert_true(n_rewritten > 2);
    dh_arena_destroy(arena);
}

/* The fused optimizer is found; moments stay with the rank that updates them only where they may.
 */
static void the_optimizer_is_found(void **state)
{
    dh_arena *arena = dh_arena_create();
    dh_graph_run_options how = {.costs = costs_of_tests(arena), .quiet = true};
    test_program plain, found;
    program_run(&plain, adam, ADAM_SETTINGS " device=cpu", "", 5);
    for (int sharded = 0; sharded < 2; sharded++) {
        how.search = sharded ? DH_GRAPH_SEARCH_SHARDED : DH_GRAPH_SEARCH;
        program_run_as(&found, adam, ADAM_SETTINGS, &how, 5);
        const dh_pass_list *passes = &found.run.passes;
        assert_int_equal(passes->n, 3); /* how many parts: by times of a few rows */
        assert_true(has_pass(passes, "split") && has_pass(passes, "fuse"));
        assert_string_equal(passes->at[1].pass->name, "reorder");
        assert_int_equal(passes->at[1].args[1], sharded);
        assert_true(passes->at[2].args[1]); /* gather */
        for (int64_t r = 0; r < 4; r++) {
            compare_rows(&plain, &found, "p", r, false);
            compare_rows(&plain, &found, "m", r, sharded);
            compare_rows(&plain, &found, "square", r, sharded);
        }
        program_fini(&found);
    }
    program_fini(&plain);
    dh_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_keep_their_numbers),
        cmocka_unit_test(an_optimizer_is_fused),
        cmocka_unit_test(what_is_found_keeps_its_numbers),
        cmocka_unit_test(the_optimizer_is_found),
    };
    return cmocka_run_group_tests(tests, programs_make_dir, programs_drop_dir);
}
