/* What data-parallel ranks share out: planned memory by closed forms, how long whole gradients
 * last, and that the verifier finds what is missing or comes too early. */
#include "zero.h"

/* ---- memory -------------------------------------------------------------------------------- */

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

/* Parameters of matrices too: what persists falls by what the other ranks have of them; whole are
 * those of prefetch + 1 blocks. */
static void parameters_take_their_shards_and_the_blocks_in_use(void **state)
{
    for (int variant = 0; variant < 6; variant++) {
        setup s = base;
        s.dp = variant & 1 ? 4 : 2;
        s.dtype = variant & 1 ? DH_BF16 : DH_F32;
        s.bucket = 1000; /* a block each in either program, in the same pieces */
        const int64_t prefetch = variant / 2;
        dh_program *two = build_zero(&s, 2), *three = build_ahead(&s, 3, prefetch);
        const gradients g = gradients_of(three);
        const uint64_t item = dh_dtype_bytes(s.dtype), dp = (uint64_t)s.dp;
        const uint64_t others = g.whole / sizeof(float) * item * (dp - 1) / dp;
        const uint64_t in_use = g.most / sizeof(float) * item * (uint64_t)(prefetch + 1);
        assert_int_equal(two->persistent_bytes - three->persistent_bytes, others);
        assert_true(three->live_bytes <= two->live_bytes - others + in_use);
        assert_true(three->slab_bytes <= two->slab_bytes - others + 2 * in_use);
        dh_program_destroy(two);
        dh_program_destroy(three);
    }
}

/* ---- the order of fully_shard --------------------------------------------------------------- */

/* The first instruction of a graph's kind, layer and phase; of gathers their release, if wanted. */
static uint32_t find(const dh_program *p, dh_block_kind kind, int layer, bool backward,
                     bool release)
{
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op *op = dh_instr_op(p, instr);
        if (kind_of(p, i) == kind && p->blocks.at[instr->block].layer == layer &&
            (op->phase != DH_PHASE_F) == backward && (op->type == DH_OP_RELEASE) == release &&
            instr->mb == 0)
            return i;
    }
    fail_msg("no such instruction of layer %d", layer);
    return 0;
}

static uint32_t last_of(const dh_program *p, int layer, bool backward)
{
    uint32_t last = DH_NONE;
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (kind_of(p, i) == DH_BLOCK_LAYER && p->blocks.at[p->instrs.at[i].block].layer == layer &&
            (dh_instr_op(p, &p->instrs.at[i])->phase != DH_PHASE_F) == backward)
            last = i;
    return last;
}

/* Layers 1 to n - 2, so that all neighbours are layers: embedding and head have the number 0. */
static void check_order(const dh_program *p, int n_layers, int depth, bool backward)
{
    const int step = backward ? -1 : 1;
    for (int l = 1; l < n_layers - 1; l++) {
        const uint32_t computes = find(p, DH_BLOCK_LAYER, l, backward, false);
        const uint32_t released = find(p, DH_BLOCK_GATHER, l, backward, true);
        assert_true(released > last_of(p, l, backward)); /* behind what uses it */
        const int ahead = l + depth * step, beyond = ahead + step;
        if (ahead > 0 && ahead < n_layers - 1)
            assert_true(find(p, DH_BLOCK_GATHER, ahead, backward, false) < computes);
        if (beyond <= 0 || beyond >= n_layers - 1) continue;
        const uint32_t next = find(p, DH_BLOCK_GATHER, beyond, backward, false);
        assert_true(next > released && waits_for(p, next, released));
    }
}

static void gathers_come_in_the_order_of_fully_shard(void **state)
{
    enum { N_LAYERS = 8 };
    dh_ctx ctx = DH_CTX_INIT;
    for (int depth = 0; depth < 4; depth++) {
        setup s = base;
        dh_program *p;
        s.zero = 3;
        mesh_programs *m = prepare(&s);
        m->spec.recipe.sharing.prefetch = depth;
        m->spec.recipe.model.n_layers = N_LAYERS;
        assert_ok(&ctx, dh_program_build(&ctx, &m->spec, &p));
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        for (int backward = 0; backward < 2; backward++) check_order(p, N_LAYERS, depth, backward);
        for (uint32_t i = 0; i < p->instrs.n; i++) /* a block is resharded, then its gradients go */
            if (is(p, i, DH_OP_REDUCE_SCATTER) && p->flats.at[0].first_block != DH_NONE) {
                const dh_operand *o = dh_instr_operand(p, &p->instrs.at[i], 0);
                const dh_flat *f = &p->flats.at[p->buffers.at[o->buffer].owner];
                const dh_block *block = &p->blocks.at[f->first_block];
                if (p->graphs.at[block->graph]->kind == DH_BLOCK_LAYER && block->layer > 0)
                    assert_true(i > find(p, DH_BLOCK_GATHER, block->layer, true, true));
            }
        dh_program_destroy(p);
        destroy(m);
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

/* A block that computes before its parameters are there, or after they have gone; a gather over
 * what is still used. */
static void wrong_gathers_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n_reads = 0, n_early = 0, n_over = 0;
    dh_program *p = build_ahead(&base, 3, 1);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        dh_instr *instr = &p->instrs.at[i];
        if (kind_of(p, i) != DH_BLOCK_GATHER) continue;
        const uint32_t whole = dh_instr_operand(p, instr, is(p, i, DH_OP_RELEASE) ? 0 : 1)->buffer;
        for (uint32_t k = i + 1; !is(p, i, DH_OP_RELEASE) && k < p->instrs.n; k++) {
            dh_instr *user = &p->instrs.at[k];
            if (!waits_for(p, k, i)) continue;
            const uint16_t n_waits = user->n_waits;
            user->n_waits = 0;
            expect_fault(p, "is missing");
            user->n_waits = n_waits;
            n_reads++;
            break;
        }
        if (!is(p, i, DH_OP_RELEASE)) {
            const uint16_t n_waits = instr->n_waits;
            instr->n_waits = 0;
            n_over += dh_program_verify(&ctx, p) == DH_EVERIFY;
            dh_ctx_reset(&ctx);
            instr->n_waits = n_waits;
            continue;
        }
        for (uint32_t k = i + 1; k < p->instrs.n && whole != DH_NONE; k++) {
            if (kind_of(p, k) != DH_BLOCK_GATHER || !is(p, k, DH_OP_RELEASE)) continue;
            dh_operand *released = &p->operands.at[instr->operand0];
            const dh_operand was = *released;
            *released = *dh_instr_operand(p, &p->instrs.at[k], 0);
            n_early += dh_program_verify(&ctx, p) == DH_EVERIFY;
            dh_ctx_reset(&ctx);
            *released = was;
            break;
        }
    }
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    assert_true(n_reads >= 6 && n_early >= 5 && n_over >= 3);
    dh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_take_their_shards_and_two_buckets),
        cmocka_unit_test(parameters_take_their_shards_and_the_blocks_in_use),
        cmocka_unit_test(gathers_come_in_the_order_of_fully_shard),
        cmocka_unit_test(one_rank_shares_nothing),
        cmocka_unit_test(missing_waits_are_found),
        cmocka_unit_test(early_release_is_found),
        cmocka_unit_test(missing_zeros_are_found),
        cmocka_unit_test(wrong_gathers_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
