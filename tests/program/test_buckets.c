/* Gradient buckets: what shares one, how large a transfer is, when it may start. */
#include "dh_test.h"

#include "program/program.h"
#include "program/program_spec.h"

enum { LAYERS = 4 };

static dh_model model_of(const char *preset)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, preset, &model));
    model.n_layers = LAYERS;
    return model;
}

static dh_program *build(const dh_model *model, int64_t tp, bool zero1, int64_t bucket_bytes,
                         dh_mode mode)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program *p;
    dh_program_spec spec = {.recipe = {.model = *model,
                                       .dtype = zero1 ? DH_BF16 : DH_F32,
                                       .micro_batch = 2,
                                       .seq = 16,
                                       .n_micro = mode == DH_MODE_TRAIN ? 2 : 1,
                                       .sharing = dh_sharing_of(zero1),
                                       .bucket_bytes = bucket_bytes},
                            .mode = mode};
    assert_ok(&ctx, dh_mesh_init(&ctx, 2, tp, 1, 1, 1, 0, 0, &spec.recipe.mesh));
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    assert_ok(&ctx, dh_mesh_verify(&ctx, &spec, NULL));
    return p;
}

/* Transfers of gradients over the data-parallel group: how many, and bytes of the largest. */
static size_t count_transfers(const dh_program *p, uint64_t *most)
{
    size_t n = 0;
    *most = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op *op = dh_instr_op(p, instr);
        if (dh_instr_graph(p, instr)->kind != DH_BLOCK_GRADS || op->group != DH_GROUP_DP_CP)
            continue;
        *most = DH_MAX(*most, dh_instr_operand(p, instr, 0)->n_bytes);
        n++;
    }
    return n;
}

/* Every element of a flat's matrices and vectors belongs to one parameter or to padding. */
static void expect_places(const dh_program *p)
{
    for (uint32_t f = 0; f < p->flats.n; f++) {
        const dh_flat *flat = &p->flats.at[f];
        const dh_operand *matrix = &flat->matrix[DH_BUF_GRAD], *vector = &flat->vector[DH_BUF_GRAD];
        const dh_buffer *grad =
            &p->buffers.at[matrix->buffer == DH_NONE ? vector->buffer : matrix->buffer];
        unsigned char *taken = calloc(grad->n_bytes, 1);
        assert_int_equal(grad->owner, f);
        assert_int_equal(flat->n_matrix, flat->n_pieces * flat->n_piece);
        for (size_t i = 0; i < p->params.n; i++) {
            const dh_operand *o = &p->homes.at[i].at[DH_BUF_GRAD];
            if (p->blocks.at[p->homes.at[i].block].flat != f) continue;
            assert_true(o->byte0 + o->n_bytes <= grad->n_bytes);
            for (uint64_t k = 0; k < o->n_bytes; k++) assert_int_equal(taken[o->byte0 + k]++, 0);
        }
        free(taken);
    }
}

static void a_large_bucket_holds_all(void **state)
{
    for (int zero1 = 0; zero1 < 2; zero1++) {
        const dh_model model = model_of("gpt2-tiny");
        uint64_t most;
        dh_program *p = build(&model, 1, zero1, 0, DH_MODE_TRAIN);
        assert_int_equal(p->flats.n, 1);
        assert_int_equal(count_transfers(p, &most), zero1 ? 2 : 1); /* vectors apart */
        expect_places(p);
        dh_program_destroy(p);
    }
}

/* Neighbours share a bucket while they fit: from the last block, as the backward goes. */
static void neighbours_share(void **state)
{
    const dh_model model = model_of("gpt2-tiny");
    const int64_t layer_bytes = (int64_t)12 * 64 * 64 * 4, room = (int64_t)8 * 64 * 4 * 4;
    uint64_t most;
    dh_program *p = build(&model, 1, false, 2 * (layer_bytes + room), DH_MODE_TRAIN);
    assert_int_equal(count_transfers(p, &most), 3);
    assert_true(most <= (uint64_t)(2 * (layer_bytes + room)));
    expect_places(p);
    /* The head is tied and has a norm alone; then come layers 3 and 2, 1 and 0, the embedding. */
    static const int first[] = {3, 1}, last[] = {2, 0};
    for (size_t f = 0; f < DH_COUNTOF(first); f++) {
        const dh_flat *flat = &p->flats.at[f];
        assert_int_equal(p->blocks.at[flat->first_block].layer, last[f]);
        assert_int_equal(p->blocks.at[flat->after].layer, last[f]);
        assert_true(p->blocks.at[flat->last_block].layer == first[f] || f == 0);
    }
    dh_program_destroy(p);
}

/* No transfer is larger than a bucket, but for the padding of a piece. */
static void pieces_bound_a_transfer(void **state)
{
    static const int64_t sizes[] = {1, 1000, 10000, 70000, 150000};
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++)
        for (int variant = 0; variant < 4; variant++) {
            const dh_model model = model_of(variant & 1 ? "llama-tiny" : "gpt2-tiny");
            const int64_t tp = 1 + (variant & 1);
            uint64_t most;
            dh_program *p = build(&model, tp, variant & 2, sizes[i], DH_MODE_TRAIN);
            const uint64_t vectors = 13ul * 64 * 4, padding = 2ul * DH_FLAT_ALIGN * sizeof(float);
            assert_true(count_transfers(p, &most) >= LAYERS);
            assert_true(most <= DH_MAX((uint64_t)sizes[i] + padding, vectors));
            expect_places(p);
            dh_program_destroy(p);
        }
}

/* Last instruction of a block that writes weight gradients of micro-batch mb. */
static uint32_t last_gradient(const dh_program *p, uint32_t block, int32_t mb)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (p->instrs.at[i].block == block && p->instrs.at[i].mb == mb &&
            dh_instr_op(p, &p->instrs.at[i])->phase == DH_PHASE_W)
            last = i;
    return last;
}

/* The first piece of a block waits for a gradient in it, not for the end of the block. */
static void the_first_piece_travels_early(void **state)
{
    const dh_model model = model_of("gpt2-tiny");
    dh_program *p = build(&model, 1, false, 70000, DH_MODE_TRAIN);
    int n_early = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        if (dh_instr_graph(p, instr)->kind != DH_BLOCK_GRADS || instr->op != 0) continue;
        const dh_operand *piece = dh_instr_operand(p, instr, 0);
        const dh_flat *flat = &p->flats.at[p->buffers.at[piece->buffer].owner];
        assert_true(instr->n_waits <= 1);
        n_early += instr->n_waits == 1 &&
                   p->waits.at[instr->wait0].instr < last_gradient(p, flat->after, 1);
    }
    assert_int_equal(n_early, LAYERS);
    dh_program_destroy(p);
}

static bool waits_for(const dh_program *p, uint32_t instr, uint32_t before)
{
    for (uint32_t w = 0; w < p->instrs.at[instr].n_waits; w++)
        if (p->waits.at[p->instrs.at[instr].wait0 + w].instr == before) return true;
    return false;
}

/* Two stages: on the last one all reductions wait until gradients for the stage before have left.
 */
static void reductions_wait_for_the_last_send(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_model model = model_of("gpt2-tiny");
    static const char *const names[] = {"1f1b", "gpipe"};
    for (size_t s = 0; s < DH_COUNTOF(names); s++) {
        const dh_schedule_row *row;
        const dh_schedule_spec want = {.n_ranks = 2, .n_micro = 4};
        dh_schedule *schedule;
        dh_program *p;
        dh_program_spec spec = {
            .recipe = {.model = model, .micro_batch = 1, .seq = 16, .n_micro = 4}, .rank = 3};
        assert_ok(&ctx, dh_schedule_find(&ctx, names[s], &row));
        assert_ok(&ctx, dh_schedule_generate(&ctx, row, &want, &schedule));
        spec.recipe.schedule = schedule;
        assert_ok(&ctx, dh_mesh_init(&ctx, 2, 1, 2, 1, 1, 0, 0, &spec.recipe.mesh));
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
        assert_ok(&ctx, dh_mesh_verify(&ctx, &spec, NULL));
        uint32_t n_sends = 0, last_send = 0, first_reduction = DH_NONE;
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
            if (op->group == DH_GROUP_DP_CP && first_reduction == DH_NONE) first_reduction = i;
            if (op->type != DH_OP_SEND) continue;
            last_send = i;
            n_sends++;
        }
        assert_true(n_sends == 4 && first_reduction != DH_NONE);
        assert_true(waits_for(p, first_reduction, last_send));
        dh_program_destroy(p);
        dh_schedule_destroy(schedule);
    }
}

/* Where a stage is not the rank's last: it does not wait for what the next slots receive. */
static void reductions_wait_for_no_receive(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_model model = model_of("gpt2-tiny");
    const dh_schedule_row *row;
    const dh_schedule_spec want = {.n_ranks = 2, .n_micro = 4, .n_chunks = 2};
    dh_schedule *schedule;
    size_t n_reductions = 0, n_sends = 0;
    assert_ok(&ctx, dh_schedule_find(&ctx, "interleaved-1f1b", &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &want, &schedule));
    for (int64_t rank = 0; rank < 4; rank++) {
        dh_program_spec spec = {.recipe = {.model = model,
                                           .micro_batch = 1,
                                           .seq = 16,
                                           .n_micro = 4,
                                           .schedule = schedule},
                                .rank = rank};
        dh_program *p;
        assert_ok(&ctx, dh_mesh_init(&ctx, 2, 1, 2, 1, 1, 0, 0, &spec.recipe.mesh));
        assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            const dh_instr *instr = &p->instrs.at[i];
            if (dh_instr_op(p, instr)->group != DH_GROUP_DP_CP) continue;
            n_reductions++;
            for (uint32_t w = 0; w < instr->n_waits; w++) {
                const uint32_t on = p->waits.at[instr->wait0 + w].instr;
                const dh_op_type type = dh_instr_op(p, &p->instrs.at[on])->type;
                if (type == DH_OP_RECV) fail_msg("rank %d: %u waits for %u", (int)rank, i, on);
                n_sends += type == DH_OP_SEND;
            }
        }
        dh_program_destroy(p);
    }
    assert_true(n_reductions > 4 && n_sends >= 2);
    dh_schedule_destroy(schedule);
}

/* Evaluation between steps finds the parameters where training put them. */
static void evaluation_agrees(void **state)
{
    for (int zero1 = 0; zero1 < 2; zero1++) {
        const dh_model model = model_of("llama-tiny");
        dh_program *train = build(&model, 2, zero1, 50000, DH_MODE_TRAIN);
        dh_program *eval = build(&model, 2, zero1, 50000, DH_MODE_EVAL);
        for (size_t i = 0; i < train->params.n; i++)
            for (int kind = DH_BUF_MASTER; kind <= DH_BUF_COPY; kind++) {
                const dh_operand *a = &train->homes.at[i].at[kind],
                                 *b = &eval->homes.at[i].at[kind];
                assert_int_equal(a->buffer == DH_NONE, b->buffer == DH_NONE);
                if (a->buffer == DH_NONE) continue;
                assert_int_equal(train->buffers.at[a->buffer].offset + a->byte0,
                                 eval->buffers.at[b->buffer].offset + b->byte0);
            }
        dh_program_destroy(train);
        dh_program_destroy(eval);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_bucket_holds_all),
        cmocka_unit_test(neighbours_share),
        cmocka_unit_test(pieces_bound_a_transfer),
        cmocka_unit_test(the_first_piece_travels_early),
        cmocka_unit_test(evaluation_agrees),
        cmocka_unit_test(reductions_wait_for_the_last_send),
        cmocka_unit_test(reductions_wait_for_no_receive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
