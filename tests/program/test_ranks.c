/* Programs of whole meshes: they verify, and ranks of a class are alike. */
#include "meshes.h"
#include "program/program_spec.h"

/* Of the tiny models: all blocks together; one or a few; pieces of a block. */
static const int64_t buckets[] = {0, 400000, 50000};

/* Calls visit for meshes first, first + stride, ... of up to 8 ranks that the schedule can have. */
static void for_some_meshes(setup s, void (*visit)(const setup *), size_t first, size_t stride)
{
    static const struct {
        int64_t tp, pp, dp;
    } meshes[] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 4, 1}, {1, 1, 2},
                  {1, 1, 3}, {1, 1, 8}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}, {1, 2, 3}, {2, 2, 2},
                  {4, 2, 1}, {2, 4, 1}, {4, 1, 2}, {2, 1, 4}, {1, 4, 2}, {1, 2, 4}, {1, 8, 1}};
    for (size_t i = first; i < DH_COUNTOF(meshes); i += stride) {
        s.tp = meshes[i].tp;
        s.pp = meshes[i].pp;
        s.dp = meshes[i].dp;
        s.n_micro = s.pp == 3 ? 6 : 2 * s.pp;
        if (is_applicable(&s)) visit(&s);
    }
}

/* All meshes; of thin runs a third of them by turns, under sanitizers less. */
static void for_its_meshes(setup s, void (*visit)(const setup *), size_t turn)
{
    const size_t stride = test_stride(3, 8);
    for_some_meshes(s, visit, turn % stride, stride);
}

static const char *const schedules[] = {"1f1b",    "gpipe",    "interleaved-1f1b", "zb-h1",
                                        "zb-h2",   "zb-v",     "v-half",           "v-min",
                                        "zb-auto", "dhelix-w", "dualpipev"};

static void assert_verifies(const setup *s, const mesh_programs *m)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (verify(&ctx, m) == DH_OK && dh_mesh_verify(&ctx, &m->spec, NULL) == DH_OK) return;
    print_setup(s);
    fail_msg("%s", ctx.message);
}

static void verifies(const setup *s)
{
    mesh_programs *m = build(s);
    assert_verifies(s, m);
    destroy(m);
}

static void all_schedules_verify(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(schedules); i++)
        for (int variant = 0; variant < 4; variant++) {
            setup s = {.preset = variant & 1 ? "llama-tiny" : "gpt2-tiny",
                       .schedule = schedules[i],
                       .seq = 16,
                       .per_node = variant & 2 ? 1 : 0,
                       .dtype = variant & 1 ? DH_BF16 : DH_F32,
                       .zero = ((variant & 1) ^ (variant >> 1)) * (1 + (int64_t)i % 2),
                       .bucket = buckets[(i + (size_t)variant) % DH_COUNTOF(buckets)]};
            for_its_meshes(s, verifies, i + (size_t)variant);
        }
}

/* Strategies order the operators of co-executed slots by estimates: all members of a
 * group must come to the same order, though their shards may differ in size. */
static void strategies_verify(void **state)
{
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    static const char *const paired[] = {"dhelix-w", "dualpipev"};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < DH_COUNTOF(paired); k++)
            for (int variant = 0; variant < 2; variant++) {
                if ((i + k + (size_t)variant) % test_stride(2, 7)) continue;
                setup s = {.preset = variant ? "llama-tiny" : "gpt2-char",
                           .schedule = paired[k],
                           .seq = 16,
                           .per_node = variant,
                           .zero = variant,
                           .strategy = &rows[i]};
                /* Finding pairs takes its time: the four turns of a row share the meshes. */
                for_some_meshes(s, verifies, (i + k + (size_t)variant) % 3, 3);
            }
}

/* The W takes any number of stages and micro-batches: the corners, and some between. That the
 * schedules are right is tests/plan's; here, that their programs are. */
static void w_schedules_verify(void **state)
{
    uint64_t seed = test_seed("w_schedules_verify");
    int64_t sizes[10][2] = {{1, 64}, {16, 1}, {16, 17}, {2, 3}};
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++) {
        if (sizes[i][0] == 0) {
            sizes[i][0] = 1 + (int64_t)(test_rand(&seed) % 16);
            sizes[i][1] = 1 + (int64_t)(test_rand(&seed) % (128 / (uint64_t)sizes[i][0]));
        }
        const setup s = {.preset = "gpt2-tiny",
                         .schedule = "dhelix-w",
                         .tp = 1,
                         .dp = 1,
                         .pp = sizes[i][0],
                         .n_micro = sizes[i][1],
                         .seq = 8};
        verifies(&s);
    }
}

/* ---- classes -------------------------------------------------------------------------------- */

static bool may_move(const dh_tensor *t)
{
    return t->kind == DH_TENSOR_RANGE || t->kind == DH_TENSOR_INPUT;
}

/* What classes.c says of two ranks of one class. */
static void assert_alike(const dh_program *a, const dh_program *b)
{
    assert_int_equal(a->instrs.n, b->instrs.n);
    assert_int_equal(a->waits.n, b->waits.n);
    assert_int_equal(a->blocks.n, b->blocks.n);
    assert_int_equal(a->slab_bytes, b->slab_bytes);
    assert_int_equal(a->buffers.n, b->buffers.n);
    assert_int_equal(a->operands.n, b->operands.n);
    assert_memory_equal(a->instrs.at, b->instrs.at, a->instrs.n * sizeof *a->instrs.at);
    if (a->waits.n) assert_memory_equal(a->waits.at, b->waits.at, a->waits.n * sizeof *a->waits.at);
    for (size_t i = 0; i < a->blocks.n; i++) {
        assert_int_equal(a->blocks.at[i].peer, b->blocks.at[i].peer);
        assert_int_equal(a->blocks.at[i].tag, b->blocks.at[i].tag);
    }
    for (size_t i = 0; i < a->buffers.n; i++) {
        assert_int_equal(a->buffers.at[i].offset, b->buffers.at[i].offset);
        assert_int_equal(a->buffers.at[i].n_bytes, b->buffers.at[i].n_bytes);
    }
    for (size_t i = 0; i < a->instrs.n; i++) {
        const dh_op *op = dh_instr_op(a, &a->instrs.at[i]);
        const dh_op_info *info = dh_op_info_of(op->type);
        for (int k = 0; k < info->n_in + info->n_out; k++) {
            const uint32_t t = k < info->n_in ? op->in[k] : op->out[k - info->n_in];
            const dh_operand *x = dh_instr_operand(a, &a->instrs.at[i], k);
            const dh_operand *y = dh_instr_operand(b, &b->instrs.at[i], k);
            assert_int_equal(x->buffer, y->buffer);
            if (t == DH_NONE) continue;
            assert_int_equal(x->n_bytes, y->n_bytes);
            if (!may_move(&dh_instr_graph(a, &a->instrs.at[i])->tensors.at[t]))
                assert_int_equal(x->byte0, y->byte0);
        }
    }
}

static void assert_alike_within_classes(const mesh_programs *m)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_rank_classes c;
    assert_ok(&ctx, dh_rank_classes_find(&ctx, &m->spec, &c));
    for (size_t r = 0; r < m->n; r++) assert_alike(m->at[c.first[c.of[r]]], m->at[r]);
    dh_rank_classes_fini(&c);
}

static void is_alike_within_classes(const setup *s)
{
    mesh_programs *m = build(s);
    assert_alike_within_classes(m);
    destroy(m);
}

static void verifies_and_is_alike(const setup *s)
{
    mesh_programs *m = build(s);
    assert_verifies(s, m);
    assert_alike_within_classes(m);
    destroy(m);
}

static void classes_are_alike(void **state)
{
    for (int variant = 0; variant < 8; variant++) {
        setup s = {.preset = variant & 1 ? "llama-tiny" : "gpt2-tiny",
                   .schedule = "1f1b",
                   .seq = 16,
                   .per_node = variant & 1 ? 2 : 0,
                   .dtype = variant & 1 ? DH_BF16 : DH_F32,
                   .zero = variant & 2 ? 1 + (variant >> 2) : 0,
                   .bucket = buckets[variant & 4 ? 2 : 1]};
        if (s.per_node == 0) for_its_meshes(s, is_alike_within_classes, (size_t)variant);
        s.tp = 4;
        s.pp = 2;
        s.dp = 4;
        s.n_micro = 4;
        is_alike_within_classes(&s);
    }
}

/* Chunks lie elsewhere on every rank of a ring: each is a class of its own. */
static void ring_gemms_verify(void **state)
{
    static const char *const names[] = {"intra-batch", "intra-batch-bidirectional"};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < 6; i++) {
        setup s = {.preset = i % 2 ? "llama-tiny" : "mixtral-tiny",
                   .schedule = i % 2 ? "zb-h1" : "dhelix-w",
                   .tp = i < 3 ? 4 : 2,
                   .pp = 2,
                   .dp = 2,
                   .per_node = i % 3 ? 0 : 2,
                   .n_micro = 4,
                   .seq = 64,
                   .dtype = DH_BF16,
                   .zero = i % 2,
                   .cp = 1 + i / 2 % 2,
                   .recompute = (dh_recompute_kind)(i % 3)};
        assert_ok(&ctx, dh_strategy_find(&ctx, names[i % 2], &s.strategy));
        verifies_and_is_alike(&s);
    }
}

/* The order of parts is another on every rank. */
static void part_waits_verify(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_arena *arena = dh_arena_create();
    static const char *const strategies[] = {"part-wise+dhelix", "{passes: [part-wise(1)]}",
                                             "part-wise(scatter)+dhelix", "flux"};
    for (size_t i = 0; i < 8; i += test_is_slow() ? 3 : test_is_thin() && i % 3 ? 2 : 1) {
        setup s = {.preset = i % 2 ? "llama-tiny" : "mixtral-tiny",
                   .schedule = i % 2 ? "zb-h1" : "dhelix-w",
                   .tp = i % 4 < 2 ? 4 : 2,
                   .pp = 2,
                   .dp = 2,
                   .n_micro = 4,
                   .seq = 64,
                   .dtype = DH_BF16,
                   .recompute = (dh_recompute_kind)(i % 3)};
        assert_ok(&ctx, dh_strategy_read(&ctx, arena, strategies[i / 4 * 2 + i % 2], &s.strategy));
        verifies_and_is_alike(&s);
    }
    dh_arena_destroy(arena);
}

static void context_parallelism_verifies(void **state)
{
    static const setup setups[] = {
        {"llama-tiny", "1f1b", 1, 1, 1, 0, 2, 16, DH_F32, false, 2, 0, NULL, 0, 0, 0, false},
        {"llama-tiny", "1f1b", 2, 2, 1, 0, 4, 16, DH_BF16, true, 2, 0, NULL, 50000, 0, 0, false},
        {"gpt2-tiny", "zb-h1", 1, 2, 2, 2, 4, 16, DH_F32, true, 2, 0, NULL, 50000, 0, 0, false},
        {"gpt2-tiny", "dhelix-w", 1, 2, 1, 1, 4, 32, DH_F32, false, 4, 0, NULL, 0, 0, 0, false},
        {"llama-tiny", "dhelix-w", 4, 1, 3, 12, 2, 16, DH_BF16, true, 2, 0, NULL, 50000, 0, 0,
         false},
    };
    for (size_t i = 0; i < DH_COUNTOF(setups); i++) {
        setup s = setups[i];
        verifies(&s);
        size_t n;
        const dh_strategy *rows = dh_strategies(&n);
        const size_t stride = test_stride(3, 11);
        for (size_t k = i % stride; k < n; k += stride) {
            s.strategy = &rows[k];
            verifies_and_is_alike(&s);
        }
        s.recompute = DH_RECOMPUTE_KIND_FULL;
        verifies(&s);
    }
}

static const setup expert_setups[] = {
    {"mixtral-tiny", "1f1b", 1, 1, 2, 0, 2, 16, DH_F32, false, 1, 0, NULL, 0, 2, DH_MOE_DROPLESS,
     false},
    {"mixtral-tiny", "1f1b", 2, 1, 4, 0, 2, 16, DH_BF16, true, 1, 0, NULL, 0, 2, DH_MOE_DROPLESS,
     false},
    {"mixtral-tiny", "1f1b", 1, 2, 4, 2, 4, 16, DH_F32, false, 1, 0, NULL, 0, 4, DH_MOE_CAPACITY,
     false},
    {"mixtral-tiny", "zb-h1", 1, 2, 6, 3, 4, 16, DH_F32, true, 1, 0, NULL, 50000, 2,
     DH_MOE_DROPLESS, false},
    {"mixtral-tiny", "dhelix-w", 2, 2, 2, 2, 4, 16, DH_BF16, true, 2, 0, NULL, 400000, 2,
     DH_MOE_DROPLESS, false},
    {"mixtral-tiny", "dhelix-w", 1, 2, 4, 0, 4, 16, DH_BF16, true, 2, 0, NULL, 0, 2,
     DH_MOE_CAPACITY, false},
    {"mixtral-tiny", "1f1b", 2, 1, 4, 0, 2, 16, DH_BF16, true, 1, 0, NULL, 0, 2, DH_MOE_DROPLESS,
     true},
    {"mixtral-tiny", "dhelix-w", 2, 2, 2, 2, 4, 16, DH_F32, true, 2, 0, NULL, 0, 2, DH_MOE_CAPACITY,
     true},
};

/* All strategies on one of them, as finding pairs takes its time; cheap ones on all. */
static void expert_parallelism_verifies(void **state)
{
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    for (size_t i = 0; i < DH_COUNTOF(expert_setups); i++) {
        setup s = expert_setups[i];
        verifies_and_is_alike(&s);
        for (int kind = DH_RECOMPUTE_KIND_SELECTIVE; kind <= DH_RECOMPUTE_KIND_FULL; kind++) {
            s.recompute = (dh_recompute_kind)kind;
            verifies(&s);
        }
    }
    setup s = {"mixtral-tiny", "dhelix-w", 1, 2,    2, 0, 4, 16,   DH_F32,
               true,           1,          0, NULL, 0, 2, 0, false};
    for (size_t k = 0; k < n; k += test_stride(2, 5)) {
        s.strategy = &rows[k];
        verifies_and_is_alike(&s);
    }
}

static double log_uniform(uint64_t *seed, double lo, double hi)
{
    return lo * pow(hi / lo, (double)(test_rand(seed) % 1000) / 1000);
}

/* Shards of the vocabulary of 4, 4, 4 and 1 rows, and rates at which they matter. */
static void strategies_agree_on_uneven_shards(void **state)
{
    uint64_t seed = test_seed("strategies_agree_on_uneven_shards");
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    const setup s = {"llama-tiny", "dhelix-w", 4, 2,    1, 0, 4, 16,   DH_F32,
                     false,        1,          0, NULL, 0, 0, 0, false};
    mesh_programs *m = prepare(&s);
    m->spec.recipe.model.vocab = 13;
    for (int turn = 0; turn < (int)(40 / test_stride(8, 20)); turn++)
        for (size_t i = 0; i < n; i++) {
            dh_ctx ctx = DH_CTX_INIT;
            if (i > 0 && strcmp(rows[i].policy, rows[0].policy) == 0) continue; /* no order */
            m->spec.recipe.strategy = &rows[i];
            dh_arena *arena = dh_arena_create();
            const dh_cost_model model = {
                .flops_per_s = log_uniform(&seed, 1e6, 1e12),
                .bytes_per_s = log_uniform(&seed, 1e6, 1e12),
                .link_bytes_per_s = {log_uniform(&seed, 1e6, 1e12), log_uniform(&seed, 1e6, 1e12)},
                .link_latency_ns = {log_uniform(&seed, 1, 1e6), log_uniform(&seed, 1, 1e6)}};
            m->spec.recipe.costs = dh_costs_estimated(arena, &model);
            if (dh_mesh_verify(&ctx, &m->spec, NULL) != DH_OK)
                fail_msg("%s: %s", rows[i].name, ctx.message);
            dh_arena_destroy(arena);
        }
    destroy(m);
}

static size_t count_classes(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = prepare(s);
    dh_rank_classes c;
    assert_ok(&ctx, dh_rank_classes_find(&ctx, &m->spec, &c));
    const size_t n = c.n;
    dh_rank_classes_fini(&c);
    destroy(m);
    return n;
}

static void classes_are_few(void **state)
{
    setup s = {.preset = "llama-tiny",
               .schedule = "1f1b",
               .tp = 4,
               .pp = 2,
               .dp = 8,
               .n_micro = 4,
               .seq = 16,
               .per_node = 8};
    assert_int_equal(count_classes(&s), 2 * 3);
    s.zero = 1;
    assert_int_equal(count_classes(&s), 2 * 3 * 2);
    dh_ctx ctx = DH_CTX_INIT;
    s.tp = 8;
    assert_int_equal(count_classes(&s), 2 * 3 * 2);
    assert_ok(&ctx, dh_strategy_find(&ctx, "intra-batch", &s.strategy));
    assert_int_equal(count_classes(&s), 2 * 8 * 2);
    s.strategy = NULL;
    s.tp = 2;
    s.dp = 3;
    s.per_node = 3; /* some tensor-parallel groups straddle nodes, some do not */
    assert_int_equal(count_classes(&s), 2 * 2 * 3);
    s = (setup){.preset = "mixtral-tiny",
                .schedule = "1f1b",
                .tp = 2,
                .pp = 2,
                .dp = 8,
                .ep = 4,
                .n_micro = 4,
                .seq = 16};
    assert_int_equal(count_classes(&s), 2 * 2 * 2);
    s.zero = 1;
    assert_int_equal(count_classes(&s), 2 * 2 * 2 * 2);
    s.dp = 4; /* one copy of the experts */
    assert_int_equal(count_classes(&s), 2 * 2 * 2);
}

static void uneven_nodes_verify(void **state)
{
    const setup s = {.preset = "gpt2-tiny",
                     .schedule = "1f1b",
                     .tp = 2,
                     .pp = 2,
                     .dp = 3,
                     .n_micro = 4,
                     .seq = 16,
                     .per_node = 3,
                     .zero = 1};
    verifies(&s);
}

/* Shards of a small block may hold nothing but padding. */
static void shards_of_padding_verify(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {.preset = "gpt2-tiny",
                     .schedule = "1f1b",
                     .tp = 1,
                     .pp = 1,
                     .dp = 64,
                     .n_micro = 1,
                     .seq = 8,
                     .dtype = DH_BF16,
                     .zero = 1};
    mesh_programs *m = prepare(&s);
    dh_model *model = &m->spec.recipe.model;
    model->width = model->head_dim = model->ffn_width = 8;
    model->n_heads = model->n_kv_heads = 1;
    model->vocab = 16;
    model->max_seq = 8;
    for (int64_t r = 0; r < s.dp; r += 21) {
        dh_program_spec spec = m->spec;
        spec.rank = r;
        dh_program *p;
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        dh_program_destroy(p);
    }
    assert_ok(&ctx, dh_mesh_verify(&ctx, &m->spec, NULL));
    destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_agree_on_uneven_shards),
        cmocka_unit_test(strategies_verify),
        cmocka_unit_test(w_schedules_verify),
        cmocka_unit_test(ring_gemms_verify),
        cmocka_unit_test(part_waits_verify),
        cmocka_unit_test(context_parallelism_verifies),
        cmocka_unit_test(expert_parallelism_verifies),
        cmocka_unit_test(all_schedules_verify),
        cmocka_unit_test(classes_are_alike),
        cmocka_unit_test(classes_are_few),
        cmocka_unit_test(uneven_nodes_verify),
        cmocka_unit_test(shards_of_padding_verify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
