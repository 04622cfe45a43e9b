/* Programs of whole meshes: they verify, reduced and full verification agree, and every
 * fault seeded into one rank's program is found and named with rank and instruction. */
#include "dh_test.h"

#include "program/ranks.h"

/* ---- meshes ------------------------------------------------------------------------------- */

typedef struct setup {
    const char *preset, *schedule;
    int64_t tp, pp, dp, per_node; /* per_node 0: one node */
    int64_t n_micro, seq;
    dh_dtype dtype;
    bool zero1;
    int64_t cp; /* 0: 1 */
    dh_recompute_kind recompute;
    const dh_strategy *strategy; /* NULL: sequential */
    int64_t bucket;              /* bytes of gradients; 0: the default, which holds these models */
    int64_t ep;                  /* 0: 1 */
    dh_moe_mode moe;
} setup;

/* Of the tiny models: all blocks together; one or a few; pieces of a block. */
static const int64_t buckets[] = {0, 400000, 50000};

typedef struct mesh_programs {
    dh_model model;
    dh_schedule *schedule;
    dh_ordering ordering; /* of the strategy; what one rank finds the others look up */
    dh_program_spec spec;
    dh_program **at; /* by rank */
    size_t n;
} mesh_programs;

static size_t scratch(const dh_graph *graph, const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? 1000 : 0;
}
static const dh_backend_info backend = {"test", scratch};

static const dh_schedule_row *row_named(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    assert_ok(&ctx, dh_schedule_find(&ctx, name, &row));
    return row;
}

static dh_schedule_spec schedule_spec(const setup *s)
{
    return (dh_schedule_spec){.n_ranks = (int32_t)s->pp, .n_micro = (int32_t)s->n_micro};
}

static bool is_applicable(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_spec spec = schedule_spec(s);
    return dh_schedule_applicable(&ctx, row_named(s->schedule), &spec) == DH_OK;
}

static mesh_programs *prepare(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = calloc(1, sizeof *m);
    assert_non_null(m);
    const dh_schedule_spec wanted = schedule_spec(s);
    assert_ok(&ctx, dh_model_from_preset(&ctx, s->preset, &m->model));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row_named(s->schedule), &wanted, &m->schedule));
    m->model.n_layers = DH_MAX(m->model.n_layers, m->schedule->n_stages);
    m->model.n_kv_heads = DH_MAX(m->model.n_kv_heads, s->tp);
    m->spec = (dh_program_spec){.model = &m->model,
                                .mode = DH_MODE_TRAIN,
                                .dtype = s->dtype,
                                .schedule = m->schedule,
                                .strategy = s->strategy,
                                .recompute = s->recompute,
                                .zero1 = s->zero1,
                                .bucket_bytes = s->bucket,
                                .micro_batch = 2,
                                .seq = s->seq,
                                .n_micro = s->n_micro,
                                .dropout = 0.1,
                                .loss_scale = 1.0 / 128,
                                .moe_mode = s->moe,
                                .moe_capacity = 2,
                                .backend = &backend};
    assert_ok(&ctx, dh_mesh_init(&ctx, s->dp, s->tp, s->pp, DH_MAX(s->cp, 1), DH_MAX(s->ep, 1), 0,
                                 s->per_node, &m->spec.mesh));
    if (!s->strategy) return m;
    assert_ok(&ctx, dh_strategy_ordering(&ctx, s->strategy, &m->ordering));
    m->ordering.cache = dh_order_cache_create();
    assert_non_null(m->ordering.cache);
    m->spec.ordering = &m->ordering;
    return m;
}

static mesh_programs *build(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = prepare(s);
    m->n = (size_t)m->spec.mesh.ranks;
    m->at = calloc(m->n, sizeof *m->at);
    assert_non_null(m->at);
    for (size_t r = 0; r < m->n; r++) {
        dh_program_spec spec = m->spec;
        spec.rank = (int64_t)r;
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &m->at[r]));
    }
    return m;
}

static void destroy(mesh_programs *m)
{
    for (size_t r = 0; r < m->n; r++) dh_program_destroy(m->at[r]);
    free(m->at);
    dh_schedule_destroy(m->schedule);
    dh_order_cache_destroy(m->ordering.cache);
    free(m);
}

static dh_status verify(dh_ctx *ctx, const mesh_programs *m)
{
    return dh_programs_verify(ctx, (const dh_program *const *)m->at, m->n);
}

static void print_setup(const setup *s)
{
    print_message("%s, %s, %s: tp %lld pp %lld dp %lld cp %lld ep %lld, %lld ranks a node, %s%s, "
                  "recompute %d, experts' mode %d\n",
                  s->preset, s->schedule, s->strategy ? s->strategy->name : "sequential",
                  (long long)s->tp, (long long)s->pp, (long long)s->dp, (long long)s->cp,
                  (long long)s->ep, (long long)s->per_node, dh_dtype_name(s->dtype),
                  s->zero1 ? ", zero1" : "", (int)s->recompute, (int)s->moe);
}

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

/* All meshes; under sanitizers, which are after stray accesses, a third of them by turns. */
static void for_its_meshes(setup s, void (*visit)(const setup *), size_t turn)
{
    for_some_meshes(s, visit, TEST_SANITIZED ? turn % 3 : 0, TEST_SANITIZED ? 3 : 1);
}

static const char *const schedules[] = {"1f1b",    "gpipe",    "interleaved-1f1b", "zb-h1",
                                        "zb-h2",   "zb-v",     "v-half",           "v-min",
                                        "zb-auto", "dhelix-w", "dualpipev"};

static void verifies(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = build(s);
    if (verify(&ctx, m) != DH_OK || dh_mesh_verify(&ctx, &m->spec, NULL) != DH_OK) {
        print_setup(s);
        fail_msg("%s", ctx.message);
    }
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
                       .zero1 = (variant & 1) ^ (variant >> 1),
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
                setup s = {.preset = variant ? "llama-tiny" : "gpt2-char",
                           .schedule = paired[k],
                           .seq = 16,
                           .per_node = variant,
                           .zero1 = variant,
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

/* ---- classes ----------------------------------------------------------------------------------
 */

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
    if (a->waits.n) assert_memory_equal(a->waits.at, b->waits.at, a->waits.n * sizeof(uint32_t));
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

static void is_alike_within_classes(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = build(s);
    dh_rank_classes c;
    assert_ok(&ctx, dh_rank_classes_find(&ctx, &m->spec, &c));
    for (size_t r = 0; r < m->n; r++) assert_alike(m->at[c.first[c.of[r]]], m->at[r]);
    dh_rank_classes_fini(&c);
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
                   .zero1 = variant & 2,
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
                   .zero1 = i % 2,
                   .cp = 1 + i / 2 % 2,
                   .recompute = (dh_recompute_kind)(i % 3)};
        assert_ok(&ctx, dh_strategy_find(&ctx, names[i % 2], &s.strategy));
        verifies(&s);
        is_alike_within_classes(&s);
    }
}

static void context_parallelism_verifies(void **state)
{
    static const setup setups[] = {
        {"llama-tiny", "1f1b", 1, 1, 1, 0, 2, 16, DH_F32, false, 2, 0, NULL, 0, 0, 0},
        {"llama-tiny", "1f1b", 2, 2, 1, 0, 4, 16, DH_BF16, true, 2, 0, NULL, 50000, 0, 0},
        {"gpt2-tiny", "zb-h1", 1, 2, 2, 2, 4, 16, DH_F32, true, 2, 0, NULL, 50000, 0, 0},
        {"gpt2-tiny", "dhelix-w", 1, 2, 1, 1, 4, 32, DH_F32, false, 4, 0, NULL, 0, 0, 0},
        {"llama-tiny", "dhelix-w", 4, 1, 3, 12, 2, 16, DH_BF16, true, 2, 0, NULL, 50000, 0, 0},
    };
    for (size_t i = 0; i < DH_COUNTOF(setups); i++) {
        setup s = setups[i];
        verifies(&s);
        size_t n;
        const dh_strategy *rows = dh_strategies(&n);
        for (size_t k = 0; k < n; k++) {
            s.strategy = &rows[k];
            verifies(&s);
            is_alike_within_classes(&s);
        }
        s.recompute = DH_RECOMPUTE_KIND_FULL;
        verifies(&s);
    }
}

static const setup expert_setups[] = {
    {"mixtral-tiny", "1f1b", 1, 1, 2, 0, 2, 16, DH_F32, false, 1, 0, NULL, 0, 2, DH_MOE_DROPLESS},
    {"mixtral-tiny", "1f1b", 2, 1, 4, 0, 2, 16, DH_BF16, true, 1, 0, NULL, 0, 2, DH_MOE_DROPLESS},
    {"mixtral-tiny", "1f1b", 1, 2, 4, 2, 4, 16, DH_F32, false, 1, 0, NULL, 0, 4, DH_MOE_CAPACITY},
    {"mixtral-tiny", "zb-h1", 1, 2, 6, 3, 4, 16, DH_F32, true, 1, 0, NULL, 50000, 2,
     DH_MOE_DROPLESS},
    {"mixtral-tiny", "dhelix-w", 2, 2, 2, 2, 4, 16, DH_BF16, true, 2, 0, NULL, 400000, 2,
     DH_MOE_DROPLESS},
    {"mixtral-tiny", "dhelix-w", 1, 2, 4, 0, 4, 16, DH_BF16, true, 2, 0, NULL, 0, 2,
     DH_MOE_CAPACITY},
};

/* All strategies on one of them, as finding pairs takes its time; cheap ones on all. */
static void expert_parallelism_verifies(void **state)
{
    size_t n;
    const dh_strategy *rows = dh_strategies(&n);
    for (size_t i = 0; i < DH_COUNTOF(expert_setups); i++) {
        setup s = expert_setups[i];
        verifies(&s);
        is_alike_within_classes(&s);
        for (int kind = DH_RECOMPUTE_KIND_SELECTIVE; kind <= DH_RECOMPUTE_KIND_FULL; kind++) {
            s.recompute = (dh_recompute_kind)kind;
            verifies(&s);
        }
    }
    setup s = {"mixtral-tiny", "dhelix-w", 1, 2, 2, 0, 4, 16, DH_F32, true, 1, 0, NULL, 0, 2, 0};
    for (size_t k = 0; k < n; k++) {
        s.strategy = &rows[k];
        verifies(&s);
        is_alike_within_classes(&s);
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
    const setup s = {"llama-tiny", "dhelix-w", 4, 2, 1,    0, 4, 16,
                     DH_F32,       false,      1, 0, NULL, 0, 0, 0};
    mesh_programs *m = prepare(&s);
    m->model.vocab = 13;
    for (int turn = 0; turn < 40; turn++)
        for (size_t i = 0; i < n; i++) {
            dh_ctx ctx = DH_CTX_INIT;
            if (i > 0 && strcmp(rows[i].policy, rows[0].policy) == 0) continue; /* no order */
            m->spec.strategy = &rows[i];
            dh_arena *arena = dh_arena_create();
            const dh_cost_model model = {
                .flops_per_s = log_uniform(&seed, 1e6, 1e12),
                .bytes_per_s = log_uniform(&seed, 1e6, 1e12),
                .link_bytes_per_s = {log_uniform(&seed, 1e6, 1e12), log_uniform(&seed, 1e6, 1e12)},
                .link_latency_ns = {log_uniform(&seed, 1, 1e6), log_uniform(&seed, 1, 1e6)}};
            m->spec.costs = dh_costs_estimated(arena, &model);
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
    s.zero1 = true;
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
    s.zero1 = true;
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
                     .zero1 = true};
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
                     .zero1 = true};
    mesh_programs *m = prepare(&s);
    m->model.width = m->model.head_dim = m->model.ffn_width = 8;
    m->model.n_heads = m->model.n_kv_heads = 1;
    m->model.vocab = 16;
    m->model.max_seq = 8;
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

/* ---- faults -------------------------------------------------------------------------------------
 */

static bool communicates(const dh_program *p, uint32_t i)
{
    return dh_op_info_of(dh_instr_op(p, &p->instrs.at[i])->type)->resource == DH_RES_COMM;
}

static bool is_transfer(const dh_program *p, uint32_t i)
{
    const dh_op_type type = dh_instr_op(p, &p->instrs.at[i])->type;
    return type == DH_OP_SEND || type == DH_OP_RECV;
}

/* The next communication with the same partners, in the same direction; DH_NONE. Calls
 * with different partners may sometimes change places without harm. */
static uint32_t next_call(const dh_program *p, uint32_t i)
{
    const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
    const int32_t peer = p->blocks.at[p->instrs.at[i].block].peer;
    for (uint32_t k = i + 1; k < p->instrs.n; k++) {
        const dh_op *other = dh_instr_op(p, &p->instrs.at[k]);
        if (!communicates(p, k) || other->group != op->group) continue;
        if (is_transfer(p, i) &&
            (other->type != op->type || p->blocks.at[p->instrs.at[k].block].peer != peer))
            continue;
        return k;
    }
    return DH_NONE;
}

/* Each returns false where it does not apply to the instruction. */
static bool swap_calls(dh_program *p, uint32_t i)
{
    const uint32_t next = next_call(p, i);
    if (next == DH_NONE) return false;
    const dh_instr moved = p->instrs.at[i];
    p->instrs.at[i] = p->instrs.at[next];
    p->instrs.at[next] = moved;
    return true;
}

static void halve_tensor(dh_program *p, uint32_t graph, uint32_t tensor)
{
    if (tensor == DH_NONE) return;
    dh_graph *g = p->graphs.at[graph];
    dh_tensor *t = &g->tensors.at[tensor];
    t->shape[t->ndim == 2 && t->shape[0] == 1 ? 1 : 0] /= 2;
    for (size_t k = 0; k < p->instrs.n; k++) {
        const dh_instr *i = &p->instrs.at[k];
        if (p->blocks.at[i->block].graph != graph) continue;
        const dh_op *op = &g->ops.at[i->op];
        const dh_op_info *info = dh_op_info_of(op->type);
        for (int n = 0; n < info->n_in + info->n_out; n++)
            if ((n < info->n_in ? op->in[n] : op->out[n - info->n_in]) == tensor)
                p->operands.at[i->operand0 + (uint32_t)n].n_bytes = (uint64_t)dh_tensor_bytes(t);
    }
}

static bool halve_size(dh_program *p, uint32_t i)
{
    const dh_op op = *dh_instr_op(p, &p->instrs.at[i]);
    const uint32_t graph = p->blocks.at[p->instrs.at[i].block].graph;
    const uint32_t in = op.in[0], out = op.type == DH_OP_SEND ? DH_NONE : op.out[0];
    const dh_tensor *t = &p->graphs.at[graph]->tensors.at[in == DH_NONE ? out : in];
    if (dh_tensor_elements(t) % 2) return false;
    if (in != out) halve_tensor(p, graph, in);
    halve_tensor(p, graph, out);
    return true;
}

static bool change_peer(dh_program *p, uint32_t i)
{
    if (!is_transfer(p, i)) return false;
    dh_block *b = &p->blocks.at[p->instrs.at[i].block];
    b->peer = (int32_t)((b->peer + 1) % p->mesh.pp);
    return true;
}

static bool change_tag(dh_program *p, uint32_t i)
{
    if (is_transfer(p, i)) p->blocks.at[p->instrs.at[i].block].tag ^= 1;
    return is_transfer(p, i);
}

static bool drop_call(dh_program *p, uint32_t i)
{
    uint32_t before = i;
    while (before-- > 0)
        if (p->instrs.at[before].stream == p->instrs.at[i].stream) break;
    if (before == UINT32_MAX) return false; /* waits for it would have no substitute */
    p->instrs.n--;
    memmove(&p->instrs.at[i], &p->instrs.at[i + 1], (p->instrs.n - i) * sizeof *p->instrs.at);
    for (size_t w = 0; w < p->waits.n; w++) {
        uint32_t *wait = &p->waits.at[w];
        *wait = *wait == i ? before : *wait > i ? *wait - 1 : *wait;
    }
    return true;
}

static bool drop_waits(dh_program *p, uint32_t i)
{
    const bool had = p->instrs.at[i].n_waits > 0;
    p->instrs.at[i].n_waits = 0;
    return had;
}

static bool move_stream(dh_program *p, uint32_t i)
{
    dh_instr *instr = &p->instrs.at[i];
    instr->stream = instr->stream == DH_STREAM_LOCAL ? DH_STREAM_CROSS : DH_STREAM_LOCAL;
    return true;
}

static const struct {
    const char *name;
    bool (*apply)(dh_program *p, uint32_t i);
} faults[] = {{"swap", swap_calls},   {"size", halve_size}, {"peer", change_peer},
              {"tag", change_tag},    {"drop", drop_call},  {"wait", drop_waits},
              {"stream", move_stream}};

static uint32_t random_call(const dh_program *p, uint64_t *seed)
{
    for (;;) {
        const uint32_t i = (uint32_t)(test_rand(seed) % p->instrs.n);
        if (communicates(p, i)) return i;
    }
}

static const setup fault_setups[] = {
    {"gpt2-tiny", "1f1b", 1, 4, 1, 0, 8, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0},
    {"llama-tiny", "1f1b", 2, 2, 2, 0, 4, 16, DH_BF16, true, 1, 0, NULL, 50000, 0, 0},
    {"gpt2-tiny", "zb-h1", 2, 4, 1, 2, 8, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0},
    {"llama-tiny", "interleaved-1f1b", 1, 2, 4, 1, 4, 16, DH_F32, true, 1, 0, NULL, 0, 0, 0},
    {"gpt2-tiny", "dhelix-w", 2, 2, 2, 4, 4, 16, DH_BF16, true, 1, 0, NULL, 50000, 0, 0},
    {"mixtral-tiny", "1f1b", 1, 1, 4, 0, 2, 16, DH_F32, true, 1, 0, NULL, 0, 2, DH_MOE_DROPLESS},
    {"mixtral-tiny", "dhelix-w", 2, 2, 2, 4, 4, 16, DH_F32, false, 1, 0, NULL, 50000, 2,
     DH_MOE_CAPACITY},
};

static setup ring_setup(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = {"llama-tiny", "1f1b", 4, 1, 1,    0, 2, 32,
               DH_F32,       false,  1, 0, NULL, 0, 1, DH_MOE_DROPLESS};
    assert_ok(&ctx, dh_strategy_find(&ctx, "intra-batch-bidirectional", &s.strategy));
    return s;
}

/* The faulty rank is one of those named, unless a long cycle was cut short. */
static void assert_names_rank(const dh_ctx *ctx, size_t rank, const char *fault)
{
    char want[32];
    snprintf(want, sizeof want, "rank %zu", rank);
    if (!strstr(ctx->message, want) && !strstr(ctx->message, "a cycle of"))
        fail_msg("%s on rank %zu: %s", fault, rank, ctx->message);
    assert_non_null(strstr(ctx->message, "instruction "));
}

static void faults_are_found_and_named(void **state)
{
    uint64_t seed = test_seed("faults_are_found_and_named");
    for (size_t n = 0; n <= DH_COUNTOF(fault_setups); n++)
        for (int turn = 0; turn < 6; turn++)
            for (size_t k = 0; k < DH_COUNTOF(faults); k++) {
                const setup s = n < DH_COUNTOF(fault_setups) ? fault_setups[n] : ring_setup();
                mesh_programs *m = build(&s);
                const size_t rank = test_rand(&seed) % m->n;
                dh_program *p = m->at[rank];
                const uint32_t i = random_call(p, &seed);
                char text[256];
                dh_instr_describe(p, i, text, sizeof text);
                if (faults[k].apply(p, i)) {
                    dh_ctx ctx = DH_CTX_INIT;
                    if (verify(&ctx, m) != DH_EVERIFY) {
                        print_setup(&s);
                        fail_msg("%s of %s is not found: %s", faults[k].name, text, ctx.message);
                    }
                    assert_names_rank(&ctx, rank, faults[k].name);
                }
                destroy(m);
            }
}

/* ---- reduced and full -------------------------------------------------------------------------
 */

static dh_status verify_reduced(dh_ctx *ctx, const mesh_programs *m, const dh_rank_classes *c)
{
    const dh_program **programs = calloc(c->n, sizeof(dh_program *));
    assert_non_null(programs);
    dh_status st = DH_OK;
    for (size_t k = 0; k < c->n; k++) programs[k] = m->at[c->first[k]];
    for (size_t k = 0; st == DH_OK && k < c->n; k++) st = dh_class_verify(ctx, programs[k]);
    if (st == DH_OK) st = dh_ranks_replay(ctx, programs, c->n, c->of);
    free(programs);
    return st;
}

/* The same fault in all ranks of one class, at random calls: swaps of any two calls that
 * follow each other, which may be harmless, among them. */
static bool swap_any(dh_program *p, uint32_t i)
{
    for (uint32_t k = i + 1; k < p->instrs.n; k++) {
        if (!communicates(p, k) || p->instrs.at[k].stream != p->instrs.at[i].stream) continue;
        const dh_instr moved = p->instrs.at[i];
        p->instrs.at[i] = p->instrs.at[k];
        p->instrs.at[k] = moved;
        return true;
    }
    return false;
}

static void reduced_agrees_with_full(void **state)
{
    uint64_t seed = test_seed("reduced_agrees_with_full");
    const setup setups[] = {
        {"llama-tiny", "1f1b", 4, 2, 2, 0, 4, 16, DH_BF16, true, 1, 0, NULL, 50000, 0, 0},
        {"gpt2-tiny", "zb-h1", 1, 2, 3, 0, 4, 16, DH_F32, true, 1, 0, NULL, 0, 0, 0},
        {"gpt2-tiny", "interleaved-1f1b", 2, 2, 3, 2, 4, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0},
        {"mixtral-tiny", "1f1b", 1, 1, 8, 0, 2, 16, DH_F32, true, 1, 0, NULL, 50000, 4, 0},
    };
    size_t n_failed = 0, n_passed = 0;
    for (size_t n = 0; n < DH_COUNTOF(setups); n++)
        for (int turn = 0; turn < 40; turn++) {
            mesh_programs *m = build(&setups[n]);
            dh_ctx ctx = DH_CTX_INIT, reduced = DH_CTX_INIT;
            dh_rank_classes c;
            assert_ok(&ctx, dh_rank_classes_find(&ctx, &m->spec, &c));
            assert_true(c.n < m->n);
            const uint32_t class = (uint32_t)(test_rand(&seed) % c.n);
            const size_t kind = test_rand(&seed) % (DH_COUNTOF(faults) + 1);
            const uint32_t i = random_call(m->at[c.first[class]], &seed);
            for (size_t r = 0; r < m->n; r++)
                if (c.of[r] == class)
                    (kind < DH_COUNTOF(faults) ? faults[kind].apply : swap_any)(m->at[r], i);
            const dh_status st = verify(&ctx, m);
            if (verify_reduced(&reduced, m, &c) != st) {
                print_setup(&setups[n]);
                fail_msg("full: %s; reduced: %s", ctx.message, reduced.message);
            }
            n_failed += st != DH_OK;
            n_passed += st == DH_OK;
            dh_rank_classes_fini(&c);
            destroy(m);
        }
    print_message("%zu faulty, %zu harmless\n", n_failed, n_passed);
    assert_true(n_failed > 40);
}

/* ---- messages
 * ------------------------------------------------------------------------------------ */

static uint32_t find(const dh_program *p, dh_op_type type)
{
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (dh_instr_op(p, &p->instrs.at[i])->type == type) return i;
    fail_msg("no instruction of type %d", (int)type);
    return 0;
}

/* Seeds one fault on one rank and compares what is said. Only a missing wait is left to
 * the rank's own verification, which finds most others first. */
static void expect(const setup *s, size_t rank, dh_op_type type,
                   bool (*fault)(dh_program *, uint32_t), const char *const *parts, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = build(s);
    assert_true(fault(m->at[rank], find(m->at[rank], type)));
    const dh_program *const *programs = (const dh_program *const *)m->at;
    assert_int_equal(fault == drop_waits ? dh_programs_verify(&ctx, programs, m->n)
                                         : dh_ranks_replay(&ctx, programs, m->n, NULL),
                     DH_EVERIFY);
    for (size_t i = 0; i < n; i++)
        if (!strstr(ctx.message, parts[i])) fail_msg("\"%s\" lacks \"%s\"", ctx.message, parts[i]);
    destroy(m);
}
#define EXPECT(s, rank, type, fault, ...)                                                          \
    expect(s, rank, type, fault, (const char *const[]){__VA_ARGS__},                               \
           DH_COUNTOF(((const char *const[]){__VA_ARGS__})))

static bool send_first(dh_program *p, uint32_t i)
{
    uint32_t send = find(p, DH_OP_SEND), recv = find(p, DH_OP_RECV);
    for (uint32_t k = 0; k < p->instrs.n; k++) p->instrs.at[k].n_waits = 0;
    while (dh_instr_op(p, &p->instrs.at[recv])->type != DH_OP_RECV || recv < send) recv++;
    const dh_instr moved = p->instrs.at[send];
    p->instrs.at[send] = p->instrs.at[recv];
    p->instrs.at[recv] = moved;
    return true;
}

static bool take_part_in(dh_program *p, uint32_t i)
{
    p->graphs.at[p->blocks.at[p->instrs.at[i].block].graph]->ops.at[p->instrs.at[i].op].group =
        DH_GROUP_EMBED;
    return true;
}

static uint32_t tensor_of(dh_program *p, uint32_t i, int operand, uint32_t *graph)
{
    *graph = p->blocks.at[p->instrs.at[i].block].graph;
    return dh_instr_op(p, &p->instrs.at[i])->in[operand];
}

/* Room for half of what may come back, as if this rank's moe.capacity were another. */
static bool halve_input(dh_program *p, uint32_t i)
{
    uint32_t graph, tensor = tensor_of(p, i, 0, &graph);
    halve_tensor(p, graph, tensor);
    return true;
}

static bool halve_offsets(dh_program *p, uint32_t i)
{
    uint32_t graph, tensor = tensor_of(p, i, 1, &graph);
    halve_tensor(p, graph, tensor);
    return true;
}

static void experts_exchange_alike(void **state)
{
    const setup s = expert_setups[0]; /* 32 tokens, 2 of 8 experts each; rows of 64 */
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, halve_size, "on group ep", "rank 0) is all_to_all_rows of",
           "rank 1) is all_to_all_rows of", "runs", "do not fit together");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, halve_input, "on group ep", "rank 1) is all_to_all_rows",
           "do not fit together");
    EXPECT(&s, 0, DH_OP_ALL_TO_ALL_ROWS, halve_offsets, "its operands do not fit", "rank 0");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL, halve_size, "all_to_all of", "rank 1", "rank 0");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, swap_calls, "deadlock", "all_to_all_rows", "rank 1");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, drop_waits, "rank 1", "a wait for instruction");
    EXPECT(&s, 0, DH_OP_ALL_TO_ALL_ROWS, drop_call, "on group ep", "rank 0", "rank 1");
}

static void messages_name_both_ends(void **state)
{
    const setup pipe = {"llama-tiny", "1f1b", 1, 3, 1,    0, 3, 16,
                        DH_F32,       false,  1, 0, NULL, 0, 0, 0};
    const setup tensor = {"llama-tiny", "1f1b", 2, 1, 2,    0,      1, 16,
                          DH_F32,       false,  1, 0, NULL, 150000, 0, 0};
    EXPECT(&pipe, 1, DH_OP_SEND, change_tag, "two ends of a transfer", "rank 1) is send",
           "with tag 1", "rank 2) is recv", "with tag 0", "micro-batch 0");
    EXPECT(&pipe, 0, DH_OP_SEND, halve_size, "rank 0) is send of 1024 f32",
           "rank 1) is recv of 2048 f32");
    EXPECT(&pipe, 0, DH_OP_SEND, change_peer, "deadlock", "rank 0", "waits for rank 2", "rank 1");
    EXPECT(&pipe, 2, DH_OP_SEND, drop_call, "deadlock",
           "recv -> x (link, micro-batch 0, local stream, rank 1)", "waits for rank 2, which is at",
           "rank 2");
    EXPECT(&tensor, 3, DH_OP_ALL_GATHER, move_stream, "group tp", "rank 3", "stream");
    EXPECT(&tensor, 2, DH_OP_ALL_REDUCE, drop_call, "do not fit", "on group", "rank 2");
    EXPECT(&tensor, 1, DH_OP_ALL_GATHER, drop_waits, "rank 1", "a wait for instruction");
    EXPECT(&pipe, 1, DH_OP_RECV, take_part_in, "rank 1", "no part in group embed");
}

/* A stage that receives before it sends what its neighbour needs first. */
static void deadlock_shows_the_cycle(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {"llama-tiny", "1f1b", 1, 2, 1, 0, 2, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0};
    mesh_programs *m = build(&s);
    assert_true(send_first(m->at[0], 0));
    const dh_program *const *programs = (const dh_program *const *)m->at;
    assert_int_equal(dh_ranks_replay(&ctx, programs, m->n, NULL), DH_EVERIFY);
    static const char *const parts[] = {
        "deadlock: instruction ", "recv -> x (link, micro-batch 0, local stream, rank 0)",
        "waits for rank 1, which is at instruction", "waits for rank 0", "the first named here"};
    for (size_t i = 0; i < DH_COUNTOF(parts); i++)
        if (!strstr(ctx.message, parts[i])) fail_msg("\"%s\" lacks \"%s\"", ctx.message, parts[i]);
    destroy(m);
}

static void other_meshes_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {"llama-tiny", "1f1b", 1, 2, 1, 0, 2, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0};
    mesh_programs *m = build(&s);
    const dh_program *programs[] = {m->at[1], m->at[0]};
    assert_fails(&ctx, dh_programs_verify(&ctx, programs, 2), DH_EINVAL, "in order");
    assert_fails(&ctx, dh_programs_verify(&ctx, programs + 1, 1), DH_EINVAL, "rank 0 of 2");
    assert_ok(&ctx, dh_programs_verify(&ctx, programs, 0));
    destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_agree_on_uneven_shards),
        cmocka_unit_test(strategies_verify),
        cmocka_unit_test(w_schedules_verify),
        cmocka_unit_test(ring_gemms_verify),
        cmocka_unit_test(context_parallelism_verifies),
        cmocka_unit_test(expert_parallelism_verifies),
        cmocka_unit_test(all_schedules_verify),
        cmocka_unit_test(classes_are_alike),
        cmocka_unit_test(classes_are_few),
        cmocka_unit_test(uneven_nodes_verify),
        cmocka_unit_test(shards_of_padding_verify),
        cmocka_unit_test(faults_are_found_and_named),
        cmocka_unit_test(reduced_agrees_with_full),
        cmocka_unit_test(experts_exchange_alike),
        cmocka_unit_test(messages_name_both_ends),
        cmocka_unit_test(deadlock_shows_the_cycle),
        cmocka_unit_test(other_meshes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
