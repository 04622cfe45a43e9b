/* Programs of real models: they verify, fit a bound close to the live bytes, and
 * every seeded fault is found and named. */
#include "dh_test.h"

#include "program/program.h"
#include "program/program_spec.h"

static size_t scratch(const dh_graph *graph, const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? 1000 : 0;
}
static const dh_backend_info backend = {.name = "test", .workspace_bytes = scratch};

static dh_program *build(const char *preset, dh_mode mode, dh_dtype dtype, int64_t n_micro)
{
    dh_ctx ctx = DH_CTX_INIT;
    static dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, preset, &model));
    if (model.vocab == 0) model.vocab = 65;
    dh_program_spec spec = {.recipe = {.model = model,
                                       .dtype = dtype,
                                       .micro_batch = mode == DH_MODE_DECODE ? 1 : 2,
                                       .seq = mode == DH_MODE_DECODE ? 4 : 32,
                                       .n_micro = n_micro,
                                       .dropout = 0.1,
                                       .global_tokens = 128,
                                       .head_chunk_bytes = 32 * 1024,
                                       .backend = &backend},
                            .mode = mode,
                            .cache_len = 64};
    dh_program *p;
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    return p;
}

static void all_modes_verify(void **state)
{
    static const char *const presets[] = {"gpt2-char", "stories260K", "gpt2-tiny", "llama-tiny",
                                          "mixtral-tiny"};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(presets); i++)
        for (int mode = DH_MODE_TRAIN; mode <= DH_MODE_DECODE; mode++)
            for (int dtype = DH_F32; dtype <= DH_BF16; dtype++) {
                dh_program *p = build(presets[i], (dh_mode)mode, (dh_dtype)dtype,
                                      mode == DH_MODE_TRAIN ? 3 : 1);
                assert_ok(&ctx, dh_program_verify(&ctx, p));
                assert_true(p->slab_bytes >= p->live_bytes);
                assert_true((double)p->slab_bytes <= 1.1 * (double)p->live_bytes);
                dh_program_destroy(p);
            }
}

/* Training, evaluation and decoding share the persistent prefix of the slab. */
static void modes_agree_on_parameters(void **state)
{
    dh_program *train = build("gpt2-char", DH_MODE_TRAIN, DH_BF16, 2);
    for (int mode = DH_MODE_EVAL; mode <= DH_MODE_DECODE; mode++) {
        dh_program *p = build("gpt2-char", (dh_mode)mode, DH_BF16, 1);
        assert_int_equal(p->params.n, train->params.n);
        for (uint32_t i = 0; i < p->params.n; i++)
            for (int kind = DH_BUF_MASTER; kind <= DH_BUF_COPY; kind++) {
                const dh_operand *a = &p->homes.at[i].at[kind], *b = &train->homes.at[i].at[kind];
                assert_int_equal(a->buffer == DH_NONE, b->buffer == DH_NONE);
                if (a->buffer == DH_NONE) continue;
                assert_int_equal(p->buffers.at[a->buffer].offset + a->byte0,
                                 train->buffers.at[b->buffer].offset + b->byte0);
            }
        dh_program_destroy(p);
    }
    dh_program_destroy(train);
}

static void logits_never_whole(void **state)
{
    dh_program *p = build("gpt2-char", DH_MODE_TRAIN, DH_F32, 1);
    for (size_t i = 0; i < p->buffers.n; i++)
        if (p->buffers.at[i].kind == DH_BUF_ACT) {
            const dh_graph *g = p->graphs.at[p->blocks.at[p->buffers.at[i].owner].graph];
            const dh_tensor *t = &g->tensors.at[p->buffers.at[i].tensor];
            for (int a = 0; a < t->ndim; a++)
                if (t->axis[a] == DH_AXIS_VOCAB) assert_true(dh_tensor_bytes(t) <= 32 * 1024);
        }
    dh_program_destroy(p);
}

/* ---- context parallelism -------------------------------------------------------------------- */

static dh_program *build_ring(int64_t tp, int64_t cp, int64_t rank, dh_mode mode)
{
    dh_ctx ctx = DH_CTX_INIT;
    static dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "stories260K", &model));
    dh_program_spec spec = {.recipe = {.model = model,
                                       .dtype = DH_BF16,
                                       .micro_batch = 2,
                                       .seq = 256,
                                       .n_micro = mode == DH_MODE_TRAIN ? 2 : 1,
                                       .dropout = 0.1,
                                       .global_tokens = 1024,
                                       .backend = &backend},
                            .mode = mode,
                            .rank = rank};
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, tp, 1, cp, 1, 0, 0, &spec.recipe.mesh));
    dh_program *p;
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    return p;
}

/* The part that is computed while an exchange travels does not wait for it. */
static void assert_overlaps(const dh_program *p)
{
    int n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *x = &p->instrs.at[i];
        const dh_op *exchange = dh_instr_op(p, x);
        if (exchange->type != DH_OP_RING_EXCHANGE) continue;
        for (uint32_t k = i + 1; k < p->instrs.n; k++) {
            const dh_op *part = dh_instr_op(p, &p->instrs.at[k]);
            if (part->type != DH_OP_RING_ATTN && part->type != DH_OP_RING_ATTN_GRAD) continue;
            if (p->instrs.at[k].block != x->block || p->instrs.at[k].mb != x->mb) break;
            bool waits = false;
            for (uint32_t w = 0; w < p->instrs.at[k].n_waits; w++)
                waits |= p->waits.at[p->instrs.at[k].wait0 + w].instr == i;
            assert_false(waits);
            n++;
            break;
        }
    }
    assert_true(n > 0);
}

/* In how many places of the slab the blocks lie that parts of one layer read. */
static int n_block_places(const dh_program *p, dh_op_type part, int operand)
{
    uint64_t places[16];
    int n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *x = &p->instrs.at[i];
        const bool wanted = dh_instr_op(p, x)->type == part;
        if (!wanted || x->mb != 0 || p->blocks.at[x->block].layer != 1) continue;
        uint64_t offset = p->buffers.at[dh_instr_operand(p, x, operand)->buffer].offset;
        int k = 0;
        while (k < n && places[k] != offset) k++;
        if (k == n) places[n++] = offset;
    }
    return n;
}

static void rings_verify_and_overlap(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int64_t tp = 1; tp <= 2; tp++)
        for (int64_t cp = 2; cp <= 8; cp *= 2)
            for (int mode = DH_MODE_TRAIN; mode <= DH_MODE_EVAL; mode++)
                for (int64_t rank = 0; rank < tp * cp; rank++) {
                    dh_program *p = build_ring(tp, cp, rank, (dh_mode)mode);
                    assert_ok(&ctx, dh_program_verify(&ctx, p));
                    assert_overlaps(p);
                    /* However long the ring, the block at hand and the one that comes; the
                     * places of two may differ from step to step among other buffers. */
                    assert_true(n_block_places(p, DH_OP_RING_ATTN, 1) <= 3);
                    assert_true(n_block_places(p, DH_OP_RING_ATTN_GRAD, 4) <= 3);
                    dh_program_destroy(p);
                }
}

/* ---- tensor parallelism in rings ------------------------------------------------------------ */

static dh_program *build_split(int64_t tp, int64_t rank, dh_recompute_kind recompute,
                               const char *strategy)
{
    dh_ctx ctx = DH_CTX_INIT;
    static dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "gpt2-char", &model));
    model.vocab = 65;
    dh_program_spec spec = {.recipe = {.model = model,
                                       .dtype = DH_BF16,
                                       .recompute = recompute,
                                       .micro_batch = 8,
                                       .seq = 64,
                                       .n_micro = 2,
                                       .dropout = 0.1,
                                       .global_tokens = 1024,
                                       .backend = &backend},
                            .mode = DH_MODE_TRAIN,
                            .rank = rank};
    assert_ok(&ctx, dh_strategy_find(&ctx, strategy, &spec.recipe.strategy));
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, tp, 1, 1, 1, 0, 0, &spec.recipe.mesh));
    dh_program *p;
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    return p;
}

static bool is_row_gemm(const dh_program *p, uint32_t i)
{
    const dh_op_type type = dh_instr_op(p, &p->instrs.at[i])->type;
    return type == DH_OP_LINEAR || type == DH_OP_LINEAR_DGRAD;
}

/* GEMMs behind an exchange in issue order that do not wait for it, nor for anything behind
 * it in its stream. */
static int n_hiding_gemms(const dh_program *p)
{
    int n = 0;
    for (uint32_t i = 0; i + 1 < p->instrs.n; i++) {
        const dh_op_type type = dh_instr_op(p, &p->instrs.at[i])->type;
        if (type != DH_OP_RING_EXCHANGE && type != DH_OP_RING_EXCHANGE_BOTH) continue;
        const dh_instr *gemm = &p->instrs.at[i + 1];
        assert_true(is_row_gemm(p, i + 1));
        for (uint32_t w = 0; w < gemm->n_waits; w++)
            assert_true(p->waits.at[gemm->wait0 + w].instr < i);
        n++;
    }
    return n;
}

/* Every exchange has a GEMM to hide behind, on every rank; and a rank needs no more memory. */
static void ring_gemms_verify_and_overlap(void **state)
{
    static const struct {
        const char *name;
        int64_t tp;
        int n_exchanges; /* of a collective */
    } cases[] = {{"intra-batch", 2, 1},
                 {"intra-batch", 4, 3},
                 {"intra-batch-bidirectional", 2, 1},
                 {"intra-batch-bidirectional", 4, 2}};
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (int recompute = 0; recompute <= DH_RECOMPUTE_KIND_FULL; recompute++)
            for (int64_t rank = 0; rank < cases[i].tp; rank++) {
                const dh_recompute_kind kind = (dh_recompute_kind)recompute;
                dh_program *plain = build_split(cases[i].tp, rank, kind, "sequential");
                dh_program *p = build_split(cases[i].tp, rank, kind, cases[i].name);
                assert_ok(&ctx, dh_program_verify(&ctx, p));
                const int rings = recompute == DH_RECOMPUTE_KIND_FULL ? 4 + 4 + 3 : 4 + 4;
                assert_int_equal(n_hiding_gemms(p), 2 * 4 * rings * cases[i].n_exchanges);
                assert_true((double)p->slab_bytes <= 1.01 * (double)plain->slab_bytes);
                dh_program_destroy(p);
                dh_program_destroy(plain);
            }
}

/* ---- seeded faults -------------------------------------------------------------------------- */

/* The first compute instruction of a type in layer 1. */
static uint32_t find(const dh_program *p, dh_op_type type)
{
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (dh_instr_op(p, &p->instrs.at[i])->type == type) return i;
    fail_msg("no instruction of type %d", (int)type);
    return 0;
}

static void overlapping_lifetimes_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = build("stories260K", DH_MODE_TRAIN, DH_F32, 1);
    /* Put the activation kept for the backward on top of the FFN's output. */
    uint32_t act = find(p, DH_OP_ACT);
    const dh_operand *h = dh_instr_operand(p, &p->instrs.at[act], 0);
    const dh_operand *f = dh_instr_operand(p, &p->instrs.at[act + 1], 3);
    p->buffers.at[f->buffer].offset = p->buffers.at[h->buffer].offset;
    assert_int_equal(dh_program_verify(&ctx, p), DH_EVERIFY);
    assert_non_null(strstr(ctx.message, "lifetimes overlap"));
    assert_non_null(strstr(ctx.message, "layer 0, micro-batch 0"));
    dh_program_destroy(p);
}

static void use_before_definition_is_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = build("stories260K", DH_MODE_TRAIN, DH_F32, 1);
    uint32_t rope = find(p, DH_OP_ROPE), attn = find(p, DH_OP_ATTN);
    dh_instr moved = p->instrs.at[rope];
    p->instrs.at[rope] = p->instrs.at[attn];
    p->instrs.at[attn] = moved;
    assert_int_equal(dh_program_verify(&ctx, p), DH_EVERIFY);
    assert_non_null(strstr(ctx.message, "attention"));
    dh_program_destroy(p);
}

/* Moving an operator to another stream needs waits both ways. */
static void missing_wait_is_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = build("stories260K", DH_MODE_TRAIN, DH_F32, 1);
    uint32_t id = find(p, DH_OP_RESIDUAL);
    dh_instr *moved = &p->instrs.at[id], *next = &p->instrs.at[id + 1];
    moved->stream = DH_STREAM_LOCAL;
    assert_int_equal(dh_program_verify(&ctx, p), DH_EVERIFY);
    assert_non_null(strstr(ctx.message, "wait"));
    dh_ctx_reset(&ctx);
    const dh_wait waits[] = {{id - 1, DH_NONE}, {id, DH_NONE}};
    for (int i = 0; i < 2; i++) assert_true(dh_vec_push(&p->waits, waits[i]));
    moved->wait0 = (uint32_t)p->waits.n - 2;
    next->wait0 = (uint32_t)p->waits.n - 1;
    moved->n_waits = next->n_waits = 1;
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    next->n_waits = 0;
    assert_int_equal(dh_program_verify(&ctx, p), DH_EVERIFY);
    assert_non_null(strstr(ctx.message, "residual"));
    dh_program_destroy(p);
}

static void cyclic_wait_is_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = build("stories260K", DH_MODE_TRAIN, DH_F32, 1);
    uint32_t id = find(p, DH_OP_RESIDUAL), later = id + 3;
    assert_true(dh_vec_push(&p->waits, ((dh_wait){later, DH_NONE})));
    p->instrs.at[id].wait0 = (uint32_t)p->waits.n - 1;
    p->instrs.at[id].n_waits = 1;
    assert_int_equal(dh_program_verify(&ctx, p), DH_EVERIFY);
    assert_non_null(strstr(ctx.message, "deadlock"));
    dh_program_destroy(p);
}

static void buffer_behind_the_slab_is_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = build("stories260K", DH_MODE_TRAIN, DH_F32, 1);
    p->slab_bytes -= 1;
    assert_int_equal(dh_program_verify(&ctx, p), DH_EVERIFY);
    assert_non_null(strstr(ctx.message, "after the end of the slab"));
    dh_program_destroy(p);
}

/* Random offsets of one buffer: either the program still verifies because the new
 * place is free, or the verifier says so; it never crashes, and most moves are found. */
static void random_moves_are_found(void **state)
{
    uint64_t seed = test_seed("random_moves_are_found");
    dh_program *p = build("gpt2-char", DH_MODE_TRAIN, DH_F32, 2);
    int found = 0;
    const int n = 200;
    for (int i = 0; i < n; i++) {
        uint32_t b = (uint32_t)(test_rand(&seed) % p->buffers.n);
        uint64_t old = p->buffers.at[b].offset;
        p->buffers.at[b].offset =
            test_rand(&seed) % (p->slab_bytes - p->buffers.at[b].n_bytes) / 64 * 64;
        dh_ctx ctx = DH_CTX_INIT;
        found += dh_program_verify(&ctx, p) == DH_EVERIFY;
        p->buffers.at[b].offset = old;
    }
    assert_true(found > n / 2);
    dh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_modes_verify),
        cmocka_unit_test(modes_agree_on_parameters),
        cmocka_unit_test(logits_never_whole),
        cmocka_unit_test(rings_verify_and_overlap),
        cmocka_unit_test(ring_gemms_verify_and_overlap),
        cmocka_unit_test(overlapping_lifetimes_are_found),
        cmocka_unit_test(use_before_definition_is_found),
        cmocka_unit_test(missing_wait_is_found),
        cmocka_unit_test(cyclic_wait_is_found),
        cmocka_unit_test(buffer_behind_the_slab_is_found),
        cmocka_unit_test(random_moves_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
