/* Gradients of every micro-batch reduced by themselves (parallel.gradient_sync: every): planned
 * memory by a closed form, traffic, all meshes and schedules, and that the verifier finds a
 * micro-batch that is left out, counted twice, or overwrites the sum of those before. */
#include "zero.h"

static dh_program *build_each(const setup *like, int64_t zero, bool each)
{
    dh_recipe how = {.sharing = dh_sharing_of(zero)};
    how.sharing.prefetch = 1;
    if (each) how.sharing.gradient_sync = DH_GRADIENT_SYNC_EVERY;
    return build_how(like, &how);
}

static const setup four = {.preset = "llama-tiny",
                           .schedule = "1f1b",
                           .tp = 1,
                           .pp = 1,
                           .dp = 4,
                           .n_micro = 4,
                           .seq = 16,
                           .bucket = 20000};

/* ---- memory ---------------------------------------------------------------------------------- */

/* In issue order: whole gradients, of any micro-batch, that are alive at once; shards to be added
 * too. */
static void count_alive(const dh_program *p, dh_buffer_kind kind, int *most)
{
    int *change = calloc(p->instrs.n + 2, sizeof *change), alive = 0;
    assert_non_null(change);
    for (uint32_t b = 0; b < p->buffers.n; b++) {
        uint32_t first = DH_NONE, last = 0;
        if (p->buffers.at[b].kind != kind) continue;
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            const dh_instr *instr = &p->instrs.at[i];
            const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
            for (int k = 0; k < info->n_in + info->n_out; k++) {
                if (dh_instr_operand(p, instr, k)->buffer != b) continue;
                first = DH_MIN(first, i);
                last = i;
            }
        }
        if (first == DH_NONE) continue;
        change[first]++;
        change[last + 1]--;
    }
    *most = 0;
    for (size_t i = 0; i <= p->instrs.n; i++) {
        alive += change[i];
        *most = DH_MAX(*most, alive);
    }
    free(change);
}

/* Where gradients of all micro-batches are added up whole, they are there with the activations of
 * all but the first. Reduced one by one there are the rank's shards, the whole gradients of two
 * buckets, and shards of two that are to be added. What persists is the same. */
static void gradients_take_their_shards_and_two_buckets(void **state)
{
    for (int variant = 0; variant < 8; variant++) {
        setup s = four;
        int whole, addends;
        s.dp = 4 << (variant & 1);
        s.dtype = variant & 2 ? DH_BF16 : DH_F32;
        const int64_t zero = variant & 4 ? 3 : 2;
        dh_program *last = build_each(&s, zero, false), *each = build_each(&s, zero, true);
        const gradients g = gradients_of(each);
        assert_true(each->flats.n >= 4);
        assert_int_equal(each->persistent_bytes, last->persistent_bytes);
        const uint64_t two = 2 * (g.most + g.most / (uint64_t)s.dp);
        assert_true(each->live_bytes <= last->live_bytes - g.whole + g.shards + two);
        assert_true(each->live_bytes < last->live_bytes && each->slab_bytes < last->slab_bytes);
        count_alive(each, DH_BUF_UNREDUCED, &whole);
        count_alive(each, DH_BUF_ADDEND, &addends);
        assert_in_range(whole, 2, 2);
        assert_in_range(addends, 1, 2);
        dh_program_destroy(last);
        dh_program_destroy(each);
    }
}

/* A step of one micro-batch is the same program. */
static void one_micro_batch_is_the_last(void **state)
{
    for (int64_t zero = 2; zero < 4; zero++) {
        setup s = four;
        s.n_micro = 1;
        dh_program *last = build_each(&s, zero, false), *each = build_each(&s, zero, true);
        assert_int_equal(dh_program_digest(last), dh_program_digest(each));
        dh_program_destroy(last);
        dh_program_destroy(each);
    }
}

/* ---- traffic --------------------------------------------------------------------------------- */

typedef struct traffic {
    int n_scattered, n_whole; /* reductions */
    uint64_t scattered, whole;
} traffic;

static traffic traffic_of(const dh_program *p)
{
    traffic t = {0};
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (kind_of(p, i) != DH_BLOCK_GRADS) continue;
        const uint64_t n_bytes = dh_instr_operand(p, &p->instrs.at[i], 0)->n_bytes;
        if (is(p, i, DH_OP_REDUCE_SCATTER)) t.n_scattered++, t.scattered += n_bytes;
        if (is(p, i, DH_OP_ALL_REDUCE)) t.n_whole++, t.whole += n_bytes;
    }
    return t;
}

/* Matrices are reduced with each micro-batch, vectors, which every rank has whole, once. */
static void matrices_travel_with_every_micro_batch(void **state)
{
    dh_program *last = build_each(&four, 2, false), *each = build_each(&four, 2, true);
    const traffic once = traffic_of(last), often = traffic_of(each);
    const uint64_t n = (uint64_t)four.n_micro;
    assert_int_equal(often.scattered, n * once.scattered);
    assert_int_equal((uint64_t)often.n_scattered, n * (uint64_t)once.n_scattered);
    assert_int_equal(often.n_whole, once.n_whole);
    assert_int_equal(often.whole, once.whole);
    dh_program_destroy(last);
    dh_program_destroy(each);
}

/* ---- meshes, schedules, strategies -------------------------------------------------------------
 */

static void verify_each(const setup *s, int64_t prefetch, dh_gathered between)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = prepare(s);
    m->spec.recipe.sharing.gradient_sync = DH_GRADIENT_SYNC_EVERY;
    m->spec.recipe.sharing.prefetch = prefetch;
    m->spec.recipe.sharing.reshard = between;
    build_all(m);
    if (verify(&ctx, m) != DH_OK) {
        print_setup(s);
        fail_msg("%s", ctx.message);
    }
    assert_ok(&ctx, dh_mesh_verify(&ctx, &m->spec, NULL));
    destroy(m);
}

static void meshes_verify(void **state)
{
    const setup all[] = {
        {.tp = 2, .pp = 1, .dp = 2, .n_micro = 2},
        {.tp = 1, .pp = 2, .dp = 2, .n_micro = 3, .dtype = DH_BF16},
        {.tp = 2, .pp = 2, .dp = 2, .n_micro = 4, .recompute = DH_RECOMPUTE_KIND_FULL},
        {.tp = 1, .pp = 1, .dp = 2, .cp = 2, .n_micro = 3},
        {.preset = "mixtral-tiny", .tp = 1, .pp = 1, .dp = 4, .ep = 2, .n_micro = 2},
        {.preset = "mixtral-tiny", .tp = 1, .pp = 2, .dp = 2, .ep = 2, .n_micro = 3},
        {.preset = "gpt2-tiny", .tp = 2, .pp = 1, .dp = 3, .n_micro = 3}, /* tied */
        {.preset = "gpt2-tiny", .schedule = "zb-h1", .tp = 2, .pp = 2, .dp = 3, .n_micro = 4},
        {.preset = "gpt2-tiny", .schedule = "zb-v", .tp = 1, .pp = 2, .dp = 2, .n_micro = 4},
        {.preset = "gpt2-tiny", .schedule = "gpipe", .tp = 1, .pp = 2, .dp = 2, .n_micro = 3},
        {.tp = 2, .pp = 1, .dp = 4, .n_micro = 2, .per_node = 4},
    };
    for (size_t i = 0; i < DH_COUNTOF(all); i++)
        for (int variant = 0; variant < 3; variant++) {
            setup s = all[i];
            if (!s.preset) s.preset = "llama-tiny";
            if (!s.schedule) s.schedule = "1f1b";
            s.seq = 16;
            s.zero = variant < 2 ? 2 : 3;
            s.bucket = variant == 1 ? 0 : 20000;
            verify_each(&s, (int64_t)i % 2, (dh_gathered)(i % 3));
        }
}

static void ordered_slots_verify(void **state)
{
    static const char *const strategies[] = {"dhelix", "dhelix-paper", "dualpipe", "stp"};
    const setup meshes[] = {
        {.preset = "llama-tiny", .tp = 2, .pp = 1, .dp = 2, .n_micro = 4},
        {.preset = "gpt2-tiny", .tp = 1, .pp = 2, .dp = 2, .n_micro = 4, .dtype = DH_BF16},
        {.preset = "mixtral-tiny", .tp = 1, .pp = 1, .dp = 4, .ep = 2, .n_micro = 3}};
    dh_ctx ctx = DH_CTX_INIT;
    int n = 0;
    for (size_t w = 0; w < DH_COUNTOF(strategies); w++)
        for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
            setup s = meshes[i];
            s.schedule = "dhelix-w";
            s.seq = 16;
            s.zero = 2 + (int64_t)((w + i) % 2);
            s.bucket = 20000;
            assert_ok(&ctx, dh_strategy_find(&ctx, strategies[w], &s.strategy));
            if (!is_applicable(&s)) continue;
            verify_each(&s, 1, (dh_gathered)(w % 3));
            n++;
        }
    assert_true(n >= 8);
}

/* Keys and values that ranks have alike are summed of every micro-batch. */
static void shared_heads_verify(void **state)
{
    setup s = {.preset = "llama-tiny",
               .schedule = "1f1b",
               .tp = 4,
               .pp = 1,
               .dp = 2,
               .n_micro = 3,
               .seq = 16,
               .zero = 2,
               .bucket = 20000};
    n_kv_heads = 2;
    verify_each(&s, 1, DH_GATHERED_NOTHING);
    n_kv_heads = 0;
}

static void two_copies_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p;
    setup s = four;
    s.schedule = "dualpipe";
    s.pp = 2;
    s.zero = 2;
    mesh_programs *m = prepare(&s);
    m->spec.recipe.sharing.gradient_sync = DH_GRADIENT_SYNC_EVERY;
    assert_fails(&ctx, dh_program_build(&ctx, &m->spec, &p), DH_EUNSUPPORTED, "gradient_sync=last");
    destroy(m);
}

/* ---- seeded faults -----------------------------------------------------------------------------
 */

/* Operands of reductions of one type, one after another made wrong. */
static void swap_operand(dh_program *p, dh_op_type type, int operand, const char *found)
{
    int n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        if (kind_of(p, i) != DH_BLOCK_GRADS || !is(p, i, type) || instr->mb < 2) continue;
        dh_operand *o = &p->operands.at[instr->operand0 + (uint32_t)operand];
        const dh_operand was = *o;
        o->buffer--; /* as the micro-batch before has it */
        expect_fault(p, found);
        *o = was;
        n++;
    }
    assert_true(n >= 4);
}

/* A micro-batch counts twice, and the next one not at all. */
static void wrong_micro_batches_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p = build_each(&four, 2, true);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    swap_operand(p, DH_OP_ADD, 1, "");
    swap_operand(p, DH_OP_REDUCE_SCATTER, 0, "");
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    dh_program_destroy(p);
}

/* The shard goes straight to the sums, or what is to be added is left out: nobody races. */
static void sums_that_are_lost_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n[2] = {0};
    dh_program *p = build_each(&four, 2, true);
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        if (kind_of(p, i) != DH_BLOCK_GRADS || instr->mb < 1) continue;
        if (is(p, i, DH_OP_ADD)) { /* the sum so far, twice */
            dh_operand *addend = &p->operands.at[instr->operand0 + 1];
            const dh_operand was = *addend;
            *addend = *dh_instr_operand(p, instr, 0);
            expect_fault(p, "do not count once");
            *addend = was;
            n[0]++;
        }
        if (is(p, i, DH_OP_REDUCE_SCATTER)) { /* over the tensor-parallel ranks */
            dh_graph *g = p->graphs.at[p->blocks.at[instr->block].graph];
            const int32_t was = g->ops.at[instr->op].group;
            g->ops.at[instr->op].group = DH_GROUP_TP;
            expect_fault(p, "not summed once");
            g->ops.at[instr->op].group = was;
            n[1]++;
        }
    }
    assert_true(n[0] >= 6 && n[1] >= 6);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    dh_program_destroy(p);
}

/* Every wait of what adds, releases and reduces is needed. */
static void missing_waits_are_found(void **state)
{
    int n = 0;
    dh_program *p = build_each(&four, 2, true);
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        dh_instr *instr = &p->instrs.at[i];
        if (kind_of(p, i) != DH_BLOCK_GRADS || instr->n_waits == 0) continue;
        const uint16_t n_waits = instr->n_waits;
        instr->n_waits = 0;
        expect_fault(p, "is missing");
        instr->n_waits = n_waits;
        n++;
    }
    assert_true(n >= 12);
    dh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_take_their_shards_and_two_buckets),
        cmocka_unit_test(one_micro_batch_is_the_last),
        cmocka_unit_test(matrices_travel_with_every_micro_batch),
        cmocka_unit_test(meshes_verify),
        cmocka_unit_test(ordered_slots_verify),
        cmocka_unit_test(shared_heads_verify),
        cmocka_unit_test(two_copies_are_refused),
        cmocka_unit_test(wrong_micro_batches_are_found),
        cmocka_unit_test(sums_that_are_lost_are_found),
        cmocka_unit_test(missing_waits_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
