/* Two copies of the model: programs of all ranks verify, hold everything twice, and a sum between
 * copies that is left out everywhere is found. */
#include "meshes.h"

static const char *const schedules[] = {"wavelet", "bidirectional", "dualpipe"};

static setup setup_of(const char *schedule, int64_t pp, int64_t n_micro)
{
    return (setup){.preset = "llama-tiny",
                   .schedule = schedule,
                   .tp = 1,
                   .pp = pp,
                   .dp = 1,
                   .n_micro = n_micro,
                   .seq = 16};
}

static void assert_verifies(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = build(s);
    if (verify(&ctx, m) != DH_OK || dh_mesh_verify(&ctx, &m->spec, NULL) != DH_OK) {
        print_setup(s);
        fail_msg("%lld micro-batches: %s", (long long)s->n_micro, ctx.message);
    }
    destroy(m);
}

/* ---- programs ------------------------------------------------------------------------------- */

/* Micro-batches that fill no round, stages that complete out of their order; a tied embedding at
 * either end of either copy. */
static void any_number_of_micro_batches(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(schedules); i++)
        for (int64_t pp = 2; pp <= 5; pp++)
            for (int64_t m = 2; m <= 2 * pp + 3; m += TEST_SANITIZED ? 3 : 1) {
                setup s = setup_of(schedules[i], pp, m);
                s.preset = m % 2 ? "gpt2-tiny" : "llama-tiny";
                s.bucket = m % 3 ? 0 : 50000;
                if (is_applicable(&s)) assert_verifies(&s);
            }
}

static void other_axes_and_strategies(void **state)
{
    static const struct {
        const char *preset, *strategy;
        int64_t tp, dp, ep, zero, per_node, bucket;
        dh_dtype dtype;
    } rows[] = {
        {"gpt2-tiny", "sequential", 2, 2, 1, 1, 0, 0, DH_F32},
        {"llama-tiny", "dhelix", 2, 1, 1, 1, 2, 50000, DH_BF16},
        {"llama-tiny", "dhelix-paper", 2, 2, 1, 0, 4, 0, DH_BF16},
        {"gpt2-tiny", "dualpipe", 1, 2, 1, 1, 1, 50000, DH_F32},
        {"mixtral-tiny", "dualpipe", 1, 2, 2, 1, 2, 0, DH_F32},
        {"mixtral-tiny", "combined-1f1b", 2, 2, 2, 0, 0, 50000, DH_BF16},
    };
    for (size_t i = 0; i < DH_COUNTOF(schedules); i++)
        for (size_t k = 0; k < DH_COUNTOF(rows); k++) {
            dh_ctx ctx = DH_CTX_INIT;
            setup s = setup_of(schedules[i], k % 2 ? 4 : 2, 7);
            s.preset = rows[k].preset;
            s.tp = rows[k].tp;
            s.dp = rows[k].dp;
            s.ep = rows[k].ep;
            s.zero = rows[k].zero;
            s.per_node = rows[k].per_node;
            s.bucket = rows[k].bucket;
            s.dtype = rows[k].dtype;
            s.recompute = k % 3 ? DH_RECOMPUTE_KIND_NONE : DH_RECOMPUTE_KIND_SELECTIVE;
            assert_ok(&ctx, dh_strategy_find(&ctx, rows[k].strategy, &s.strategy));
            assert_verifies(&s);
            s.zero = 2; /* of copies on different ranks */
            if (strcmp(schedules[i], "wavelet") != 0) assert_verifies(&s);
        }
}

/* ---- memory --------------------------------------------------------------------------------- */

static uint64_t bytes_of(const mesh_programs *m, dh_buffer_kind kind)
{
    uint64_t n = 0;
    for (size_t r = 0; r < m->n; r++)
        for (size_t i = 0; i < m->at[r]->buffers.n; i++)
            if (m->at[r]->buffers.at[i].kind == kind) n += m->at[r]->buffers.at[i].n_bytes;
    return n;
}

static void all_ranks_hold_everything_twice(void **state)
{
    static const dh_buffer_kind kinds[] = {DH_BUF_MASTER, DH_BUF_COPY, DH_BUF_GRAD, DH_BUF_ADAM_M,
                                           DH_BUF_ADAM_V};
    for (size_t i = 0; i < DH_COUNTOF(schedules); i++) {
        setup s = setup_of("1f1b", 4, 8), two = s;
        s.dtype = two.dtype = DH_BF16;
        two.schedule = schedules[i];
        mesh_programs *one_copy = build(&s), *copies = build(&two);
        for (size_t k = 0; k < DH_COUNTOF(kinds); k++) {
            assert_true(bytes_of(one_copy, kinds[k]) > 0);
            assert_int_equal(bytes_of(copies, kinds[k]), 2 * bytes_of(one_copy, kinds[k]));
        }
        destroy(one_copy);
        destroy(copies);
    }
}

/* A rank alone with its shards: copies that lie on different ranks are ranks of data. */
static void zero_shards_over_copies(void **state)
{
    setup s = setup_of("1f1b", 4, 8), two = setup_of("dualpipe", 4, 8);
    two.zero = 1;
    mesh_programs *one_copy = build(&s), *copies = build(&two);
    const uint64_t one = bytes_of(one_copy, DH_BUF_ADAM_M), both = bytes_of(copies, DH_BUF_ADAM_M);
    assert_true(both < one + one / 20 + 10000); /* vectors are not sharded, pieces are filled up */
    assert_int_equal(bytes_of(copies, DH_BUF_GRAD) / 1000000,
                     2 * bytes_of(one_copy, DH_BUF_GRAD) / 1000000);
    destroy(one_copy);
    destroy(copies);
}

/* ---- faults --------------------------------------------------------------------------------- */

static bool is_sum(dh_op_type type, bool on_rank)
{
    if (on_rank) return type == DH_OP_ADD;
    return type == DH_OP_ALL_REDUCE || type == DH_OP_REDUCE_SCATTER;
}

/* Drops the sums in the reductions behind a backward, on the rank or over ranks: those that stay
 * would lack the waits of those before them. How many there were. */
static int drop_sums(dh_program *p, bool on_rank)
{
    int n = 0;
    for (uint32_t i = (uint32_t)p->instrs.n; i-- > 0;) {
        if (dh_instr_graph(p, &p->instrs.at[i])->kind != DH_BLOCK_GRADS) continue;
        if (!is_sum(dh_instr_op(p, &p->instrs.at[i])->type, on_rank)) continue;
        drop(p, i);
        n++;
    }
    return n;
}

static void a_sum_that_all_leave_out_is_found(void **state)
{
    static const struct {
        const char *schedule;
        bool on_rank;
        int64_t zero;
        const char *message;
    } rows[] = {{"dualpipe", false, 0, "was not summed over group dp-cp-copies"},
                {"bidirectional", false, 1, "was not summed over group dp-cp-copies"},
                {"wavelet", true, 0, "is not added to the first's"}};
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        setup s = setup_of(rows[i].schedule, 2, 4);
        s.zero = rows[i].zero;
        mesh_programs *m = build(&s);
        assert_ok(&ctx, verify(&ctx, m));
        for (size_t r = 0; r < m->n; r++) assert_true(drop_sums(m->at[r], rows[i].on_rank) > 0);
        assert_int_equal(verify(&ctx, m), DH_EVERIFY);
        if (!strstr(ctx.message, rows[i].message)) fail_msg("%s", ctx.message);
        assert_non_null(strstr(ctx.message, "rank "));
        destroy(m);
    }
}

/* Both ranks of a pair step by what they have if one leaves a sum out, or neither meets the other.
 */
static void a_sum_that_one_leaves_out_is_found(void **state)
{
    for (size_t rank = 0; rank < 4; rank++) {
        dh_ctx ctx = DH_CTX_INIT;
        const setup s = setup_of("dualpipe", 4, 8);
        mesh_programs *m = build(&s);
        dh_program *p = m->at[rank];
        for (uint32_t i = (uint32_t)p->instrs.n; i-- > 0;) {
            if (dh_instr_op(p, &p->instrs.at[i])->group != DH_GROUP_DP_CP_COPIES) continue;
            drop(p, i);
            break;
        }
        assert_int_equal(verify(&ctx, m), DH_EVERIFY);
        destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_micro_batches),
        cmocka_unit_test(other_axes_and_strategies),
        cmocka_unit_test(all_ranks_hold_everything_twice),
        cmocka_unit_test(zero_shards_over_copies),
        cmocka_unit_test(a_sum_that_all_leave_out_is_found),
        cmocka_unit_test(a_sum_that_one_leaves_out_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
