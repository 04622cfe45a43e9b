/* Programs of tensor-parallel ranks that have heads of keys and values alike: they verify, the
 * heads count once in the gradient norm, and a sum that is left out everywhere is found. */
#include "meshes.h"

static setup setup_of(int64_t kv_heads)
{
    n_kv_heads = kv_heads;
    return (setup){.preset = "llama-tiny",
                   .schedule = "1f1b",
                   .tp = 4,
                   .pp = 1,
                   .dp = 1,
                   .n_micro = 2,
                   .seq = 16};
}

static void programs_verify(void **state)
{
    static const struct {
        const char *preset, *schedule, *strategy;
        int64_t kv_heads, pp, dp, zero, per_node, bucket;
        dh_dtype dtype;
    } rows[] = {
        {"llama-tiny", "1f1b", NULL, 2, 1, 1, 0, 0, 0, DH_F32},
        {"llama-tiny", "1f1b", NULL, 1, 2, 2, 1, 4, 50000, DH_BF16},
        {"llama-tiny", "zb-h1", NULL, 2, 2, 2, 2, 2, 5000, DH_F32},
        {"llama-tiny", "1f1b", NULL, 2, 1, 4, 3, 2, 0, DH_BF16},
        {"llama-tiny", "dhelix-w", "dhelix", 2, 2, 1, 0, 2, 0, DH_BF16},
        {"llama-tiny", "dualpipe", "dualpipe", 2, 2, 1, 0, 0, 0, DH_F32},
        {"mixtral-tiny", "1f1b", NULL, 2, 1, 2, 1, 1, 0, DH_F32},
    };
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        setup s = setup_of(rows[i].kv_heads);
        s.preset = rows[i].preset;
        s.schedule = rows[i].schedule;
        s.pp = rows[i].pp;
        s.dp = rows[i].dp;
        s.zero = rows[i].zero;
        s.per_node = rows[i].per_node;
        s.bucket = rows[i].bucket;
        s.dtype = rows[i].dtype;
        s.n_micro = 4;
        if (rows[i].strategy)
            assert_ok(&ctx, dh_strategy_find(&ctx, rows[i].strategy, &s.strategy));
        mesh_programs *m = build(&s);
        if (verify(&ctx, m) != DH_OK || dh_mesh_verify(&ctx, &m->spec, NULL) != DH_OK) {
            print_setup(&s);
            fail_msg("row %zu: %s", i, ctx.message);
        }
        destroy(m);
    }
}

/* ---- the gradient norm ----------------------------------------------------------------------- */

static int64_t n_counted(const dh_program *p)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (dh_instr_op(p, &p->instrs.at[i])->type == DH_OP_SQSUM)
            n += (int64_t)(dh_instr_operand(p, &p->instrs.at[i], 0)->n_bytes / sizeof(float));
    return n;
}

static int64_t n_repeated(const dh_program *p)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < p->params.n; i++) n += p->params.at[i].n_repeated;
    return n;
}

/* Every rank counts what it has but vectors of others and, unless it is the first that has them,
 * keys and values; padding counts as zeros, wherever shards of it lie. */
static void heads_count_once(void **state)
{
    for (int64_t zero = 0; zero <= 3; zero++) {
        setup s = setup_of(2);
        s.dp = zero ? 2 : 1;
        s.zero = zero;
        mesh_programs *m = build(&s);
        int64_t counted[4] = {0};
        for (size_t r = 0; r < m->n; r++)
            counted[dh_mesh_coord(&m->spec.recipe.mesh, (int64_t)r).tp] += n_counted(m->at[r]);
        const int64_t twice = n_repeated(m->at[0]);
        assert_true(twice > 0);
        assert_int_equal(counted[2] - counted[1], twice);
        assert_int_equal(counted[2] - counted[3], twice);
        assert_true(counted[0] >= counted[2]); /* and vectors that all have */
        destroy(m);
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Another group's sum in its place: the call is there, and moves other ranks' gradients. */
static int meet_others(dh_program *p)
{
    int n = 0;
    for (size_t g = 0; g < p->graphs.n; g++)
        for (size_t i = 0; p->graphs.at[g]->kind == DH_BLOCK_GRADS && i < p->graphs.at[g]->ops.n;
             i++) {
            dh_op *op = &p->graphs.at[g]->ops.at[i];
            if (op->group != DH_GROUP_KV) continue;
            op->group = DH_GROUP_TP;
            n++;
        }
    return n;
}

static void a_sum_over_other_ranks_is_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = setup_of(2);
    mesh_programs *m = build(&s);
    assert_ok(&ctx, verify(&ctx, m));
    for (size_t r = 0; r < m->n; r++) assert_true(meet_others(m->at[r]) > 0);
    assert_fails(&ctx, verify(&ctx, m), DH_EVERIFY, "are not summed over group kv");
    destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_verify),
        cmocka_unit_test(heads_count_once),
        cmocka_unit_test(a_sum_over_other_ranks_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
