/* Stages that step before the norm of all gradients is known: programs of all ranks verify, stages
 * are one chain whose end steps once, what the others keep is transient, and a step that would stay
 * as it was taken is found. */
#include "meshes.h"

#include "plan/schedule.h"

static setup setup_of(const char *schedule, int64_t pp)
{
    return (setup){.preset = "llama-tiny",
                   .schedule = schedule,
                   .tp = 1,
                   .pp = pp,
                   .dp = 1,
                   .n_micro = 2 * pp,
                   .seq = 16};
}

static mesh_programs *prepare_ahead(const setup *s)
{
    mesh_programs *m = prepare(s);
    m->spec.recipe.post_validation = true;
    return m;
}

static mesh_programs *build_ahead(const setup *s)
{
    return build_all(prepare_ahead(s));
}

static const dh_op *op_at(const dh_program *p, uint32_t i)
{
    return dh_instr_op(p, &p->instrs.at[i]);
}

static int count(const dh_program *p, dh_op_type type)
{
    int n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) n += op_at(p, i)->type == type;
    return n;
}

/* The n-th from the end (from 0) of the optimizer's of a type; DH_NONE. */
static uint32_t from_end(const dh_program *p, dh_op_type type, int n)
{
    for (uint32_t i = (uint32_t)p->instrs.n; i-- > 0;)
        if (op_at(p, i)->type == type &&
            dh_instr_graph(p, &p->instrs.at[i])->kind == DH_BLOCK_OPT && n-- == 0)
            return i;
    return DH_NONE;
}

/* ---- programs ------------------------------------------------------------------------------- */

static int32_t norm_peer(const dh_program *p, dh_op_type type, int n)
{
    const uint32_t i = from_end(p, type, n);
    return i == DH_NONE ? -1 : p->blocks.at[p->instrs.at[i].block].peer;
}

/* From the end of the chain back to its beginning, over every stage once. */
static void assert_chain(const mesh_programs *m)
{
    const dh_mesh *mesh = &m->spec.recipe.mesh;
    const int64_t stride = mesh->ranks / mesh->pp;
    int64_t at = -1;
    int n_ends = 0, n_seen = 1;
    for (int64_t g = 0; g < mesh->pp; g++) {
        const dh_program *p = m->at[g * stride];
        const bool last = count(p, DH_OP_AMEND) == 0;
        assert_true(last == (dh_program_kept_bytes(p) == 0));
        if (!last) assert_int_equal(count(p, DH_OP_AMEND), count(p, DH_OP_ADAMW));
        if (last) at = g;
        n_ends += last;
    }
    assert_int_equal(n_ends, 1);
    /* Its only send goes back to the stage before; a further one's last send does too. */
    for (int32_t before; (before = norm_peer(m->at[at * stride], DH_OP_SEND, 0)) >= 0; n_seen++) {
        const dh_program *p = m->at[before * stride];
        assert_int_equal(norm_peer(p, DH_OP_RECV, 0), at);
        at = before;
        if (from_end(p, DH_OP_SEND, 1) == DH_NONE) {
            n_seen++;
            break;
        }
    }
    assert_int_equal(n_seen, mesh->pp);
}

static void assert_verifies(const setup *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = build_ahead(s);
    if (verify(&ctx, m) != DH_OK || dh_mesh_verify(&ctx, &m->spec, NULL) != DH_OK) {
        print_setup(s);
        fail_msg("%s", ctx.message);
    }
    assert_chain(m);
    destroy(m);
}

static void every_schedule_verifies(void **state)
{
    size_t n;
    int n_seen = 0;
    const dh_schedule_row *const *rows = dh_schedule_rows(&n);
    for (size_t i = 0; i < n; i++)
        for (int64_t pp = 2; pp <= 4; pp++) {
            setup s = setup_of(rows[i]->name, pp);
            s.preset = i % 2 ? "gpt2-tiny" : "llama-tiny";
            if (!is_applicable(&s)) continue;
            assert_verifies(&s);
            n_seen++;
        }
    assert_true(n_seen >= 30);
}

static void every_axis_verifies(void **state)
{
    static const struct {
        const char *preset, *schedule;
        int64_t tp, dp, cp, ep, pp, zero, per_node, bucket;
        dh_dtype dtype;
    } rows[] = {
        {"gpt2-tiny", "1f1b", 2, 1, 1, 1, 4, 0, 0, 0, DH_F32},
        {"llama-tiny", "zb-h1", 2, 2, 1, 1, 2, 1, 4, 50000, DH_BF16},
        {"llama-tiny", "zb-v", 1, 2, 2, 1, 2, 2, 2, 50000, DH_F32},
        {"gpt2-tiny", "1f1b", 1, 2, 1, 1, 2, 3, 1, 50000, DH_BF16},
        {"mixtral-tiny", "1f1b", 2, 2, 1, 2, 2, 0, 0, 0, DH_F32},
        {"mixtral-tiny", "zb-h2", 1, 4, 1, 2, 2, 1, 4, 50000, DH_BF16},
        {"llama-tiny", "dualpipe", 1, 2, 1, 1, 4, 1, 0, 0, DH_F32},
    };
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        setup s = setup_of(rows[i].schedule, rows[i].pp);
        s.preset = rows[i].preset;
        s.tp = rows[i].tp;
        s.dp = rows[i].dp;
        s.cp = rows[i].cp;
        s.ep = rows[i].ep;
        s.zero = rows[i].zero;
        s.per_node = rows[i].per_node;
        s.bucket = rows[i].bucket;
        s.dtype = rows[i].dtype;
        s.seq = 48;
        assert_verifies(&s);
    }
}

/* Of 1F1B the first stage completes its gradients last where all stages take as long; where
 * another takes longer by far, that is asked for its own. */
static void the_chain_ends_where_gradients_are_last(void **state)
{
    setup s = setup_of("1f1b", 4);
    mesh_programs *m = prepare_ahead(&s);
    m->spec.recipe.model.n_layers = 16;
    m->spec.recipe.model.vocab = 64;
    m->spec.recipe.layer_split = "5,4,4,3";
    build_all(m);
    assert_int_equal(count(m->at[0], DH_OP_AMEND), 0);
    assert_int_equal(norm_peer(m->at[3], DH_OP_SEND, 0), 2); /* it is first, and goes on to 2 */
    destroy(m);
    s.schedule = "zb-h1";
    m = prepare_ahead(&s);
    m->spec.recipe.model.n_layers = 19;
    m->spec.recipe.model.vocab = 64;
    m->spec.recipe.layer_split = "1,1,1,16";
    build_all(m);
    assert_int_equal(count(m->at[3], DH_OP_AMEND), 0);
    destroy(m);
}

/* One stage has nobody to step ahead of. */
static void one_stage_steps_once(void **state)
{
    setup s = setup_of("1f1b", 1);
    s.dp = 2;
    mesh_programs *a = build_ahead(&s), *b = build(&s);
    for (size_t r = 0; r < a->n; r++)
        assert_true(dh_program_digest(a->at[r]) == dh_program_digest(b->at[r]));
    destroy(a);
    destroy(b);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Twelve bytes of each weight that a rank updates, where activations were. */
static void what_is_kept_takes_the_place_of_activations(void **state)
{
    for (int64_t zero = 0; zero <= 2; zero++) {
        setup s = setup_of("1f1b", 2);
        uint64_t most = 0, most_plain = 0;
        s.dp = 2;
        s.zero = zero;
        mesh_programs *a = build_ahead(&s), *b = build(&s);
        for (size_t r = 0; r < a->n; r++) {
            const dh_program *p = a->at[r], *q = b->at[r];
            const uint64_t kept = dh_program_kept_bytes(p);
            uint64_t moments = 0;
            for (size_t i = 0; i < p->buffers.n; i++)
                if (p->buffers.at[i].kind == DH_BUF_ADAM_M) moments += p->buffers.at[i].n_bytes;
            if (kept) assert_int_equal(kept, 3 * moments);
            assert_true(p->persistent_bytes - q->persistent_bytes < 1024); /* two more sums */
            assert_true(p->slab_bytes <= DH_MAX(q->slab_bytes, p->persistent_bytes + kept) + 1024 +
                                             (zero == 2 ? kept : 0));
            most = DH_MAX(most, kept);
            most_plain = DH_MAX(most_plain, dh_program_kept_bytes(q));
        }
        assert_true(most > 100000);
        assert_int_equal(most_plain, 0);
        destroy(a);
        destroy(b);
    }
}

/* ---- faults --------------------------------------------------------------------------------- */

static dh_operand *operand(dh_program *p, uint32_t instr, int k)
{
    return &p->operands.at[p->instrs.at[instr].operand0 + (uint32_t)k];
}

enum { ADAMW_NORM = 1, AMEND_NORM = 1, AMEND_SO_FAR = 2, AMEND_OLD = 3 };

/* Each is one that races with nobody, and that all partners meet in. */
static void amend_less(dh_program *p)
{
    drop(p, from_end(p, DH_OP_AMEND, 1));
}

static void amend_by_part(dh_program *p)
{
    const uint32_t i = from_end(p, DH_OP_AMEND, 1);
    *operand(p, i, AMEND_NORM) = *operand(p, i, AMEND_SO_FAR);
}

static void amend_from_elsewhere(dh_program *p)
{
    const uint32_t i = from_end(p, DH_OP_AMEND, 0), k = from_end(p, DH_OP_AMEND, 1);
    const dh_operand old = *operand(p, i, AMEND_OLD);
    *operand(p, i, AMEND_OLD) = *operand(p, k, AMEND_OLD);
    *operand(p, k, AMEND_OLD) = old;
}

/* What comes back is not looked at: the factor is made anew of what was there. */
static void take_no_answer(dh_program *p)
{
    const uint32_t recv = from_end(p, DH_OP_RECV, 0);
    const uint32_t n_out = (uint32_t)dh_op_info_of(DH_OP_RECV)->n_in;
    assert_int_equal(n_out, 0);
    operand(p, recv, 0)->buffer = dh_program_state_buffer(p, DH_STATE_SQCHAIN);
}

static void step_at_once_by_part(dh_program *p)
{
    while (from_end(p, DH_OP_AMEND, 0) != DH_NONE) drop(p, from_end(p, DH_OP_AMEND, 0));
    for (int n = 0; from_end(p, DH_OP_ADAMW, n) != DH_NONE; n++) {
        const uint32_t i = from_end(p, DH_OP_ADAMW, n);
        operand(p, i, dh_op_info_of(DH_OP_ADAMW)->n_in + 4)->buffer = DH_NONE;
    }
}

/* The end of the chain, which keeps nothing, leaves out what the others told it. */
static void end_without_the_others(dh_program *p)
{
    const uint32_t clip = from_end(p, DH_OP_CLIP, 0);
    operand(p, clip, 0)->buffer = dh_program_state_buffer(p, DH_STATE_SQCHAIN);
}

static void not_waiting(dh_program *p)
{
    const uint32_t clip = from_end(p, DH_OP_CLIP, 0);
    assert_true(p->instrs.at[clip].n_waits > 0);
    p->instrs.at[clip].n_waits = 0;
}

static void drop_answer(dh_program *p)
{
    drop(p, from_end(p, DH_OP_RECV, 0));
}

static void faults_are_found(void **state)
{
    static const struct {
        void (*seed)(dh_program *p);
        bool at_end; /* of the chain; else where it begins */
        const char *message;
    } faults[] = {
        {amend_less, false, "no later operator corrects it"},
        {amend_by_part, false, "is final, but it uses a norm that does not cover"},
        {amend_from_elsewhere, false, "no later operator corrects it"},
        {take_no_answer, false, "is final, but it uses a norm that does not cover"},
        {step_at_once_by_part, false, "is final, but it uses a norm that does not cover"},
        {end_without_the_others, true, "is final, but it uses a norm that does not cover"},
        {not_waiting, false, "instruction "},
        {drop_answer, false, ""},
    };
    for (size_t f = 0; f < DH_COUNTOF(faults); f++)
        for (int64_t zero = 0; zero <= 1; zero++) {
            dh_ctx ctx = DH_CTX_INIT;
            setup s = setup_of("1f1b", 3);
            s.dp = 2;
            s.zero = zero;
            mesh_programs *m = build_ahead(&s);
            dh_program *hurt = NULL;
            assert_ok(&ctx, verify(&ctx, m));
            for (size_t r = 0; r < m->n && !hurt; r++)
                if ((count(m->at[r], DH_OP_AMEND) == 0) == faults[f].at_end) hurt = m->at[r];
            assert_non_null(hurt);
            faults[f].seed(hurt);
            const dh_status st = verify(&ctx, m);
            if (st != DH_EVERIFY || !strstr(ctx.message, faults[f].message))
                fail_msg("fault %zu, zero %lld: %s", f, (long long)zero, ctx.message);
            destroy(m);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_verifies),
        cmocka_unit_test(every_axis_verifies),
        cmocka_unit_test(the_chain_ends_where_gradients_are_last),
        cmocka_unit_test(one_stage_steps_once),
        cmocka_unit_test(what_is_kept_takes_the_place_of_activations),
        cmocka_unit_test(faults_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
