/* Programs whose products make GELU: they verify, the gradient's product writes over nothing that
 * it reads, and a step takes no more memory than with two operators. */
#include "dh_test.h"

#include "program/program.h"
#include "program/program_spec.h"

static dh_program *build(dh_mode mode, dh_dtype dtype, dh_recompute_kind recompute, bool fuse)
{
    dh_ctx ctx = DH_CTX_INIT;
    static dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "gpt2-tiny", &model));
    if (model.vocab == 0) model.vocab = 65;
    const dh_program_spec spec = {.recipe = {.model = model,
                                             .dtype = dtype,
                                             .micro_batch = mode == DH_MODE_DECODE ? 1 : 2,
                                             .seq = mode == DH_MODE_DECODE ? 4 : 32,
                                             .n_micro = mode == DH_MODE_TRAIN ? 2 : 1,
                                             .dropout = 0.1,
                                             .global_tokens = 128,
                                             .recompute = recompute,
                                             .fuse_gelu = fuse},
                                  .mode = mode,
                                  .cache_len = 64};
    dh_program *p;
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    return p;
}

static bool overlap(const dh_program *p, const dh_operand *a, const dh_operand *b)
{
    const uint64_t at = p->buffers.at[a->buffer].offset + a->byte0,
                   bt = p->buffers.at[b->buffer].offset + b->byte0;
    return at < bt + b->n_bytes && bt < at + a->n_bytes;
}

/* What an instruction writes lies beside all that it reads, and its other output. */
static void expect_apart(const dh_program *p, const dh_instr *instr)
{
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
    for (int k = info->n_in; k < info->n_in + info->n_out; k++)
        for (int i = 0; i < k; i++) {
            const dh_operand *out = dh_instr_operand(p, instr, k),
                             *other = dh_instr_operand(p, instr, i);
            char text[256];
            if (out->buffer == DH_NONE || other->buffer == DH_NONE) continue;
            if (overlap(p, out, other))
                fail_msg("%s: operands %d and %d share bytes",
                         dh_instr_describe(p, (uint32_t)(instr - p->instrs.at), text, sizeof text),
                         k, i);
        }
}

static void what_products_write_lies_apart(void **state)
{
    for (int mode = DH_MODE_TRAIN; mode <= DH_MODE_DECODE; mode++)
        for (dh_dtype dtype = DH_F32; dtype <= DH_BF16; dtype = (dh_dtype)(dtype + 1)) {
            size_t n[2] = {0};
            dh_program *p = build((dh_mode)mode, dtype, DH_RECOMPUTE_KIND_NONE, true);
            for (size_t i = 0; i < p->instrs.n; i++) {
                const dh_op_type type = dh_instr_op(p, &p->instrs.at[i])->type;
                if (type == DH_OP_LINEAR_GELU || type == DH_OP_LINEAR_DGRAD_GELU)
                    expect_apart(p, &p->instrs.at[i]);
                n[0] += type == DH_OP_LINEAR_GELU;
                n[1] += type == DH_OP_LINEAR_DGRAD_GELU;
                assert_true(type != DH_OP_ACT && type != DH_OP_ACT_GRAD);
            }
            assert_true(n[0] > 0);
            assert_int_equal(n[1], mode == DH_MODE_TRAIN ? n[0] : 0);
            dh_program_destroy(p);
        }
}

static void they_take_no_more_memory(void **state)
{
    static const dh_recompute_kind kinds[] = {DH_RECOMPUTE_KIND_NONE, DH_RECOMPUTE_KIND_SELECTIVE,
                                              DH_RECOMPUTE_KIND_FULL};
    for (size_t i = 0; i < DH_COUNTOF(kinds); i++) {
        dh_program *two = build(DH_MODE_TRAIN, DH_BF16, kinds[i], false),
                   *one = build(DH_MODE_TRAIN, DH_BF16, kinds[i], true);
        print_message("  recomputation %d: %llu bytes, %llu with two operators\n", (int)kinds[i],
                      (unsigned long long)one->live_bytes, (unsigned long long)two->live_bytes);
        assert_true(one->live_bytes <= two->live_bytes);
        assert_true(one->instrs.n < two->instrs.n);
        dh_program_destroy(two);
        dh_program_destroy(one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_products_write_lies_apart),
        cmocka_unit_test(they_take_no_more_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
