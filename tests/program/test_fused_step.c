/* Optimizers fused with the sums of gradients before them: programs of all ranks verify, a piece
 * steps while others are still being summed and is gathered at once where nothing is clipped, and a
 * step by another gradient's norm, or one that clipping would have to amend, is found. */
#include "meshes.h"

static setup setup_of(int64_t dp, int64_t zero)
{
    return (setup){.preset = "llama-tiny",
                   .schedule = "1f1b",
                   .tp = 1,
                   .pp = 1,
                   .dp = dp,
                   .zero = zero,
                   .n_micro = 2,
                   .seq = 16};
}

static mesh_programs *build_fused(const setup *s, int64_t pieces, bool clips)
{
    mesh_programs *m = prepare(s);
    m->spec.recipe.fuse = pieces;
    m->spec.recipe.clips = clips;
    return build_all(m);
}

static const dh_op *op_at(const dh_program *p, uint32_t i)
{
    return dh_instr_op(p, &p->instrs.at[i]);
}

static bool of_optimizer(const dh_program *p, uint32_t i)
{
    return dh_instr_graph(p, &p->instrs.at[i])->kind == DH_BLOCK_OPT;
}

/* The n-th of the optimizer's of a type (from 0); DH_NONE. */
static uint32_t nth(const dh_program *p, dh_op_type type, int n)
{
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (op_at(p, i)->type == type && of_optimizer(p, i) && n-- == 0) return i;
    return DH_NONE;
}

static int count(const dh_program *p, dh_op_type type)
{
    int n = 0;
    while (nth(p, type, n) != DH_NONE) n++;
    return n;
}

static dh_operand *operand(dh_program *p, uint32_t instr, int k)
{
    return &p->operands.at[p->instrs.at[instr].operand0 + (uint32_t)k];
}

static void every_axis_verifies(void **state)
{
    static const struct {
        const char *preset, *schedule;
        int64_t tp, dp, cp, ep, pp, zero, per_node, bucket;
        dh_dtype dtype;
    } rows[] = {
        {"gpt2-tiny", "1f1b", 1, 2, 1, 1, 1, 1, 0, 0, DH_F32},
        {"llama-tiny", "zb-h1", 2, 2, 1, 1, 2, 1, 4, 50000, DH_BF16},
        {"llama-tiny", "zb-v", 1, 2, 2, 1, 2, 2, 2, 50000, DH_F32},
        {"mixtral-tiny", "zb-h2", 1, 4, 1, 2, 2, 1, 4, 50000, DH_BF16},
        {"llama-tiny", "dualpipe", 1, 2, 1, 1, 4, 1, 0, 0, DH_F32},
        {"gpt2-tiny", "interleaved-1f1b", 1, 4, 1, 1, 2, 2, 2, 20000, DH_F32},
    };
    for (size_t i = 0; i < DH_COUNTOF(rows); i++)
        for (int k = 0; k < 4; k++) {
            dh_ctx ctx = DH_CTX_INIT;
            setup s = setup_of(rows[i].dp, rows[i].zero);
            s.preset = rows[i].preset;
            s.schedule = rows[i].schedule;
            s.tp = rows[i].tp;
            s.cp = rows[i].cp;
            s.ep = rows[i].ep;
            s.pp = rows[i].pp;
            s.per_node = rows[i].per_node;
            s.bucket = rows[i].bucket;
            s.dtype = rows[i].dtype;
            s.n_micro = 2 * s.pp;
            s.seq = 48;
            mesh_programs *m = build_fused(&s, k / 2 ? 4 : 1, k % 2);
            if (verify(&ctx, m) != DH_OK || dh_mesh_verify(&ctx, &m->spec, NULL) != DH_OK) {
                print_setup(&s);
                fail_msg("%s", ctx.message);
            }
            destroy(m);
        }
}

/* Without clipping a piece's gather stands before the next one's step, and waits for its own; no
 * step waits for the norm of all, or for another sum than its own. */
static void pieces_are_a_pipeline(void **state)
{
    const setup s = setup_of(2, 1);
    mesh_programs *m = build_fused(&s, 4, false), *plain = build(&s);
    const dh_program *p = m->at[0];
    const int n = count(p, DH_OP_ALL_GATHER);
    assert_true(n >= 4 && n > count(plain->at[0], DH_OP_ALL_GATHER));
    assert_int_equal(count(p, DH_OP_AMEND), 0);
    assert_int_equal(dh_program_kept_bytes(p), 0);
    for (int k = 0; k + 1 < n; k++)
        assert_true(nth(p, DH_OP_ALL_GATHER, k) < nth(p, DH_OP_ADAMW, k + 1));
    assert_true(nth(p, DH_OP_ADAMW, n - 1) < nth(p, DH_OP_ALL_REDUCE, 0));
    assert_true(nth(plain->at[0], DH_OP_ALL_REDUCE, 0) < nth(plain->at[0], DH_OP_ADAMW, 0));
    destroy(m);
    destroy(plain);
}

/* With clipping twelve bytes of each weight of a shard are kept, where activations were. */
static void clipping_keeps_what_it_may_amend(void **state)
{
    const setup s = setup_of(2, 1);
    mesh_programs *m = build_fused(&s, 2, true);
    const dh_program *p = m->at[0];
    uint64_t moments = 0;
    for (size_t i = 0; i < p->buffers.n; i++)
        if (p->buffers.at[i].kind == DH_BUF_ADAM_M) moments += p->buffers.at[i].n_bytes;
    assert_int_equal(dh_program_kept_bytes(p), 3 * moments);
    assert_int_equal(count(p, DH_OP_AMEND), count(p, DH_OP_ADAMW));
    destroy(m);
}

/* ---- faults --------------------------------------------------------------------------------- */

enum { NORM = 1 };

static void step_by_another(dh_program *p)
{
    *operand(p, nth(p, DH_OP_ADAMW, 1), NORM) = *operand(p, nth(p, DH_OP_CLIP, 0), 1);
}

static void square_another(dh_program *p)
{
    *operand(p, nth(p, DH_OP_SQSUM, 1), 0) = *operand(p, nth(p, DH_OP_SQSUM, 0), 0);
}

static void amend_not(dh_program *p)
{
    drop(p, nth(p, DH_OP_AMEND, 0));
}

static void keep_not(dh_program *p)
{
    drop(p, nth(p, DH_OP_AMEND, 0));
    operand(p, nth(p, DH_OP_ADAMW, 0), dh_op_info_of(DH_OP_ADAMW)->n_in + 4)->buffer = DH_NONE;
}

static void gather_not(dh_program *p)
{
    drop(p, nth(p, DH_OP_ALL_GATHER, 0));
}

static void faults_are_found(void **state)
{
    static const struct {
        void (*seed)(dh_program *p);
        bool clips, all; /* all ranks have it */
        const char *message;
    } faults[] = {
        {step_by_another, false, true, "uses the norm of one gradient and reads another"},
        {square_another, false, true, "uses the norm of one gradient and reads another"},
        {amend_not, true, true, "no later operator corrects it"},
        {keep_not, true, true, "is final, but it uses a norm that does not cover"},
        {gather_not, false, true, ""},
    };
    for (size_t f = 0; f < DH_COUNTOF(faults); f++) {
        dh_ctx ctx = DH_CTX_INIT;
        const setup s = setup_of(2, 1);
        mesh_programs *m = build_fused(&s, 2, faults[f].clips);
        assert_ok(&ctx, verify(&ctx, m));
        for (size_t r = 0; r < (faults[f].all ? m->n : 1); r++) faults[f].seed(m->at[r]);
        const dh_status st = verify(&ctx, m);
        if (st != DH_EVERIFY || !strstr(ctx.message, faults[f].message))
            fail_msg("fault %zu: %s", f, ctx.message);
        destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_axis_verifies),
        cmocka_unit_test(pieces_are_a_pipeline),
        cmocka_unit_test(clipping_keeps_what_it_may_amend),
        cmocka_unit_test(faults_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
