/* What data-parallel ranks share out: planned memory by closed forms, how long whole gradients
 * last, and that the verifier finds what is missing or comes too early. */
#include "meshes.h"

static const setup base = {.preset = "llama-tiny",
                           .schedule = "1f1b",
                           .tp = 1,
                           .pp = 1,
                           .dp = 4,
                           .n_micro = 1,
                           .seq = 16,
                           .bucket = 20000};

static dh_program *build_zero(const setup *like, int64_t zero)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = *like;
    dh_program *p;
    s.zero = zero;
    mesh_programs *m = prepare(&s);
    assert_ok(&ctx, dh_program_build(&ctx, &m->spec, &p));
    destroy(m);
    return p;
}

/* ---- memory -------------------------------------------------------------------------------- */

typedef struct gradients {
    uint64_t whole, shards, most; /* bytes of matrices; most: of the largest bucket */
} gradients;

static gradients gradients_of(const dh_program *p)
{
    gradients g = {0};
    for (size_t i = 0; i < p->flats.n; i++) {
        const dh_flat *f = &p->flats.at[i];
        const uint64_t whole = (uint64_t)f->n_matrix * sizeof(float);
        g.whole += whole;
        g.shards += (uint64_t)(f->n_shard * f->n_pieces) * sizeof(float);
        g.most = DH_MAX(g.most, whole);
    }
    return g;
}

/* In issue order: buffers of unreduced gradients that are alive at once. */
static int most_unreduced(const dh_program *p)
{
    int most = 0;
    for (uint32_t at = 0; at < p->instrs.n; at++) {
        int alive = 0;
        for (uint32_t b = 0; b < p->buffers.n; b++) {
            bool before = false, behind = false;
            if (p->buffers.at[b].kind != DH_BUF_UNREDUCED) continue;
            for (uint32_t i = 0; i < p->instrs.n; i++) {
                const dh_instr *instr = &p->instrs.at[i];
                const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
                for (int k = 0; k < info->n_in + info->n_out; k++)
                    if (dh_instr_operand(p, instr, k)->buffer == b) {
                        before |= i <= at;
                        behind |= i >= at;
                    }
            }
            alive += before && behind;
        }
        most = DH_MAX(most, alive);
    }
    return most;
}

/* Persistent bytes fall by all gradients of matrices. What is alive at once falls from those to the
 * rank's shards of them and the whole gradients of two buckets: one that is made, one that is
 * reduced meanwhile. */
static void gradients_take_their_shards_and_two_buckets(void **state)
{
    for (int dp = 2; dp <= 8; dp *= 2) {
        setup s = base;
        s.dp = dp;
        dh_program *one = build_zero(&s, 1), *two = build_zero(&s, 2);
        const gradients g = gradients_of(two);
        assert_true(two->flats.n >= 4);
        assert_int_equal(g.shards * (uint64_t)dp, g.whole);
        assert_int_equal(one->persistent_bytes - two->persistent_bytes, g.whole);
        assert_true(two->live_bytes <= one->live_bytes - g.whole + g.shards + 2 * g.most);
        assert_true(two->live_bytes < one->live_bytes && two->slab_bytes < one->slab_bytes);
        assert_in_range(most_unreduced(two), 2, 2);
        dh_program_destroy(one);
        dh_program_destroy(two);
    }
}

/* One rank has all there is: nothing is shared out. */
static void one_rank_shares_nothing(void **state)
{
    setup s = base;
    s.dp = 1;
    dh_program *none = build_zero(&s, 0), *two = build_zero(&s, 2);
    assert_int_equal(dh_program_digest(none), dh_program_digest(two));
    dh_program_destroy(none);
    dh_program_destroy(two);
}

/* ---- seeded faults -------------------------------------------------------------------------- */

static bool is(const dh_program *p, uint32_t i, dh_op_type type)
{
    return dh_instr_op(p, &p->instrs.at[i])->type == type;
}

static void expect_fault(const dh_program *p, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (dh_program_verify(&ctx, p) != DH_EVERIFY) fail_msg("no fault found: %s", text);
    if (!strstr(ctx.message, text)) fail_msg("\"%s\" lacks \"%s\"", ctx.message, text);
}

/* Every wait of what releases gradients is needed, and of what reduces them. */
static void missing_waits_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n[2] = {0};
    dh_program *p = build_zero(&base, 2);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const bool releases = is(p, i, DH_OP_RELEASE), reduces = is(p, i, DH_OP_REDUCE_SCATTER);
        dh_instr *instr = &p->instrs.at[i];
        if (!(releases || reduces) || instr->n_waits == 0) continue;
        const uint16_t n_waits = instr->n_waits;
        instr->n_waits = 0;
        expect_fault(p, "is missing");
        instr->n_waits = n_waits;
        n[reduces]++;
    }
    assert_true(n[0] >= 3 && n[1] >= 3);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    dh_program_destroy(p);
}

/* Gradients that go before they are reduced. */
static void early_release_is_found(void **state)
{
    int n = 0;
    dh_program *p = build_zero(&base, 2);
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (!is(p, i, DH_OP_RELEASE)) continue;
        uint32_t next = i;
        while (next < p->instrs.n && !is(p, next, DH_OP_REDUCE_SCATTER)) next++;
        dh_operand *released = &p->operands.at[p->instrs.at[i].operand0];
        const dh_operand was = *released;
        *released = *dh_instr_operand(p, &p->instrs.at[next], 0);
        expect_fault(p, "before anything was written");
        *released = was;
        n++;
    }
    assert_true(n >= 3);
    dh_program_destroy(p);
}

/* What lies between gradients is summed too. */
static void missing_zeros_are_found(void **state)
{
    int n = 0;
    setup s = base;
    s.preset = "gpt2-char";
    s.dp = 5;
    dh_program *p = build_zero(&s, 2);
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (!is(p, i, DH_OP_CLEAR)) continue;
        dh_operand *cleared = &p->operands.at[p->instrs.at[i].operand0];
        const dh_operand was = *cleared;
        *cleared = (dh_operand){.buffer = DH_NONE};
        expect_fault(p, "before anything was written");
        *cleared = was;
        n++;
    }
    assert_true(n > 0);
    dh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_take_their_shards_and_two_buckets),
        cmocka_unit_test(one_rank_shares_nothing),
        cmocka_unit_test(missing_waits_are_found),
        cmocka_unit_test(early_release_is_found),
        cmocka_unit_test(missing_zeros_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
