/* Parts of a step: programs that make gradients, one that uses them. They lay persistent buffers
 * out alike, verify on all ranks together, and a part that lacks what another should have left is
 * found. */
#include "program/reshard.h"

#include "meshes.h"

static const setup setups[] = {
    {.preset = "gpt2-tiny", .schedule = "1f1b", .tp = 1, .pp = 1, .dp = 1},
    {.preset = "gpt2-tiny", .schedule = "1f1b", .tp = 2, .pp = 1, .dp = 2, .zero = 1},
    {.preset = "llama-tiny", .schedule = "1f1b", .tp = 1, .pp = 2, .dp = 2, .dtype = DH_BF16},
    {.preset = "llama-tiny",
     .schedule = "1f1b",
     .tp = 2,
     .pp = 1,
     .dp = 1,
     .cp = 2,
     .bucket = 20000},
    {.preset = "gpt2-tiny",
     .schedule = "zb-h1",
     .tp = 1,
     .pp = 2,
     .dp = 2,
     .zero = 1,
     .dtype = DH_BF16},
};

/* The programs of all ranks of a part. */
static mesh_programs *part_of(const setup *s, int64_t n_micro, dh_step_part part, bool adds,
                              bool goes_on, bool lean)
{
    setup own = *s;
    own.n_micro = n_micro;
    own.seq = 32;
    mesh_programs *m = prepare(&own);
    m->spec.part = part;
    m->spec.adds = adds;
    m->spec.goes_on = goes_on;
    m->spec.lean = lean;
    m->spec.base = lean ? 4096 : 0;
    return build_all(m);
}

static void assert_alike(const dh_program *a, const dh_program *b)
{
    assert_int_equal(a->persistent_bytes, b->persistent_bytes);
    assert_int_equal(a->homes.n, b->homes.n);
    for (size_t i = 0; i < a->homes.n; i++)
        for (int k = 0; k <= DH_BUF_ADAM_V; k++) {
            const dh_operand *x = &a->homes.at[i].at[k], *y = &b->homes.at[i].at[k];
            assert_true((x->buffer == DH_NONE) == (y->buffer == DH_NONE));
            if (x->buffer == DH_NONE) continue;
            assert_int_equal(a->buffers.at[x->buffer].offset + x->byte0,
                             b->buffers.at[y->buffer].offset + y->byte0);
            assert_int_equal(x->n_bytes, y->n_bytes);
        }
}

static size_t n_of(const dh_program *p, dh_op_type type)
{
    size_t n = 0;
    for (size_t i = 0; i < p->instrs.n; i++) n += dh_instr_op(p, &p->instrs.at[i])->type == type;
    return n;
}

static void parts_lie_alike_and_verify(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(setups); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        const int64_t few = setups[i].pp;
        mesh_programs *update = part_of(&setups[i], 4, DH_PART_UPDATE, false, false, false);
        assert_ok(&ctx, verify(&ctx, update));
        for (int k = 0; k < 8; k++) {
            mesh_programs *grads =
                part_of(&setups[i], k & 1 ? few : 4, DH_PART_GRADS, k & 2, k & 4, false);
            if (verify(&ctx, grads) != DH_OK) fail_msg("%zu, %d: %s", i, k, ctx.message);
            for (size_t r = 0; r < grads->n; r++) {
                assert_alike(grads->at[r], update->at[r]);
                assert_int_equal(n_of(grads->at[r], DH_OP_ADAMW), 0);
                assert_true(n_of(update->at[r], DH_OP_ADAMW) > 0);
                assert_int_equal(n_of(update->at[r], DH_OP_LOAD), 0);
            }
            destroy(grads);
        }
        destroy(update);
    }
}

/* Without moments, and without masters of matrices that have copies, from a place on. */
static void lean_parts_keep_what_they_use(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(setups); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        mesh_programs *lean = part_of(&setups[i], 4, DH_PART_GRADS, false, false, true);
        assert_ok(&ctx, verify(&ctx, lean));
        for (size_t r = 0; r < lean->n; r++) {
            const dh_program *p = lean->at[r];
            for (size_t b = 0; b < p->buffers.n; b++) {
                assert_true(p->buffers.at[b].kind != DH_BUF_ADAM_M);
                assert_true(p->buffers.at[b].offset >= 4096);
            }
            for (size_t k = 0; k < p->params.n; k++) {
                const bool copied = dh_param_is_matrix(&p->params.at[k]) && p->dtype != DH_F32;
                assert_true((p->homes.at[k].at[DH_BUF_MASTER].buffer == DH_NONE) == copied);
                assert_true((p->homes.at[k].at[DH_BUF_COPY].buffer != DH_NONE) == copied);
            }
        }
        destroy(lean);
    }
}

/* Each claim about what other parts do is one that the verifier relies on. */
static void what_no_part_left_is_missed(void **state)
{
    const setup *s = &setups[1];
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = part_of(s, 4, DH_PART_GRADS, false, true, false);
    for (size_t r = 0; r < m->n; r++) m->at[r]->goes_on = false;
    assert_fails(&ctx, verify(&ctx, m), DH_EVERIFY, "which was not summed over group");
    destroy(m);
    m = part_of(s, 4, DH_PART_GRADS, true, false, false);
    for (size_t r = 0; r < m->n; r++) m->at[r]->adds = false;
    assert_fails(&ctx, verify(&ctx, m), DH_EVERIFY, "reads");
    destroy(m);
    m = part_of(s, 4, DH_PART_UPDATE, false, false, false);
    for (size_t r = 0; r < m->n; r++) m->at[r]->part = DH_PART_STEP;
    assert_fails(&ctx, verify(&ctx, m), DH_EVERIFY, "reads");
    destroy(m);
}

/* Parameters that move to another layout while gradients are computed at home: what either writes
 * lies apart. Where a pass uses the bytes of what arrives, or both have the same streams, that is
 * said. */
static void what_runs_beside_lies_apart(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup other = {.preset = "gpt2-tiny",
                         .schedule = "1f1b",
                         .tp = 4,
                         .pp = 1,
                         .dp = 1,
                         .n_micro = 4,
                         .seq = 32};
    dh_reshard r;
    dh_program *move;
    mesh_programs *home = part_of(&setups[1], 4, DH_PART_UPDATE, false, false, false);
    mesh_programs *away = prepare(&other);
    const dh_layout from = {.recipe = &home->spec.recipe, .part = DH_PART_UPDATE};
    const dh_layout to = {.recipe = &away->spec.recipe,
                          .base = DH_LAYOUT_BEHIND,
                          .part = DH_PART_GRADS,
                          .lean = true};
    assert_ok(&ctx, dh_reshard_open(&ctx, &from, &to, DH_RESHARD_PARAMS, &r));
    assert_ok(&ctx, dh_reshard_plan(&ctx, &r, DH_RESHARD_HOTSPA, DH_RESHARD_EVEN_WIRES, 0, NULL));
    for (int64_t rank = 0; rank < r.n_ranks; rank++) {
        dh_program *pass;
        r.beside = true;
        assert_ok(&ctx, dh_reshard_program(&ctx, &r, rank, 0, &backend, &move));
        dh_program_spec spec = home->spec;
        spec.rank = rank;
        spec.part = DH_PART_GRADS;
        spec.keep_bytes = move->slab_bytes;
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &pass));
        assert_ok(&ctx, dh_programs_beside(&ctx, move, pass));
        assert_ok(&ctx, dh_programs_beside(&ctx, pass, move));
        move->beside = false;
        assert_fails(&ctx, dh_programs_beside(&ctx, move, pass), DH_EVERIFY, "separate streams");
        move->beside = true;
        dh_program_destroy(pass);
        spec.keep_bytes = 0;
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &pass));
        assert_fails(&ctx, dh_programs_beside(&ctx, move, pass), DH_EVERIFY, "share bytes");
        assert_fails(&ctx, dh_programs_beside(&ctx, pass, move), DH_EVERIFY, "share bytes");
        dh_program_destroy(pass);
        dh_program_destroy(move);
    }
    dh_reshard_fini(&r);
    destroy(home);
    destroy(away);
}

/* With ZeRO-2 the optimizer's program finds shards of gradients, which last, and has no whole ones;
 * with ZeRO-3 of matrices themselves too, and gathers nothing. */
static void the_optimizer_may_keep_shards_alone(void **state)
{
    for (int zero = 2; zero <= 3; zero++) {
        dh_ctx ctx = DH_CTX_INIT;
        setup s = {.preset = "gpt2-tiny", .schedule = "1f1b", .tp = 1, .pp = 1, .dp = 4, .zero = 1};
        mesh_programs *whole = part_of(&s, 4, DH_PART_UPDATE, false, false, false);
        s.zero = zero;
        mesh_programs *shards = part_of(&s, 4, DH_PART_UPDATE, false, false, false);
        assert_ok(&ctx, verify(&ctx, shards));
        for (size_t r = 0; r < shards->n; r++) {
            uint64_t gradients[2] = {0}, masters[2] = {0};
            for (int k = 0; k < 2; k++) {
                const dh_program *p = k ? shards->at[r] : whole->at[r];
                for (size_t b = 0; b < p->buffers.n; b++) {
                    const dh_buffer *buffer = &p->buffers.at[b];
                    assert_true(buffer->kind != DH_BUF_UNREDUCED);
                    if (buffer->kind == DH_BUF_GRAD) gradients[k] += buffer->n_bytes;
                    if (buffer->kind == DH_BUF_MASTER) masters[k] += buffer->n_bytes;
                }
            }
            assert_true(gradients[1] > 0 && gradients[1] < gradients[0] / 3);
            assert_true(zero == 3 ? masters[1] > 0 && masters[1] < masters[0] / 3
                                  : masters[1] == masters[0]);
            assert_int_equal(n_of(shards->at[r], DH_OP_ALL_GATHER) == 0, zero == 3);
        }
        destroy(whole);
        destroy(shards);
    }
}

/* Gradients that do not last, and copies of the model, have no parts. */
static void parts_that_cannot_be_are_refused(void **state)
{
    static const struct {
        setup s;
        const char *why;
    } cases[] = {
        {{.preset = "gpt2-tiny", .schedule = "1f1b", .tp = 1, .pp = 1, .dp = 2, .zero = 2},
         "parallel.zero=2"},
        {{.preset = "gpt2-tiny", .schedule = "1f1b", .tp = 1, .pp = 1, .dp = 2, .zero = 3},
         "parallel.zero=3"},
        {{.preset = "gpt2-tiny", .schedule = "dualpipe", .tp = 1, .pp = 2, .dp = 1},
         "two copies of the model"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        setup s = cases[i].s;
        dh_program *p;
        s.n_micro = 4;
        s.seq = 32;
        mesh_programs *m = prepare(&s);
        m->spec.part = DH_PART_GRADS;
        assert_fails(&ctx, dh_program_build(&ctx, &m->spec, &p), DH_EUNSUPPORTED, cases[i].why);
        destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_lie_alike_and_verify),
        cmocka_unit_test(lean_parts_keep_what_they_use),
        cmocka_unit_test(what_no_part_left_is_missed),
        cmocka_unit_test(what_runs_beside_lies_apart),
        cmocka_unit_test(the_optimizer_may_keep_shards_alone),
        cmocka_unit_test(parts_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
