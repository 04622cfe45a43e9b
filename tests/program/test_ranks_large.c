/* Meshes of a thousand ranks: built and verified, with what it took printed. */
#include "dh_test.h"

#include "program/program.h"
#include "program/program_spec.h"

static size_t scratch(const dh_graph *graph, const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? 4096 : 0;
}
static const dh_backend_info backend = {.name = "test", .workspace_bytes = scratch};

typedef struct large {
    const char *preset, *schedule;
    int64_t tp, pp, dp, layers, micro; /* layers 0: the model's own */
    bool zero1;
    size_t n_classes;
} large;

static void verify(const large *l)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    const dh_schedule_row *row;
    dh_schedule *schedule;
    const dh_schedule_spec wanted = {.n_ranks = (int32_t)l->pp, .n_micro = (int32_t)l->micro};
    assert_ok(&ctx, dh_model_from_preset(&ctx, l->preset, &model));
    if (l->layers) model.n_layers = l->layers;
    assert_ok(&ctx, dh_schedule_find(&ctx, l->schedule, &row));
    assert_ok(&ctx, dh_schedule_generate(&ctx, row, &wanted, &schedule));
    dh_program_spec spec = {.recipe = {.model = model,
                                       .dtype = DH_BF16,
                                       .schedule = schedule,
                                       .sharing = dh_sharing_of(l->zero1),
                                       .micro_batch = 1,
                                       .seq = 2048,
                                       .n_micro = l->micro,
                                       .backend = &backend}};
    assert_ok(&ctx, dh_mesh_init(&ctx, l->dp, l->tp, l->pp, 1, 1, 0, 8, &spec.recipe.mesh));
    dh_mesh_footprint f;
    const int64_t start = dh_now_ns();
    assert_ok(&ctx, dh_mesh_verify(&ctx, &spec, &f));
    char time[32], bytes[32];
    print_message(
        "%s %s tp %d pp %d dp %d: %zu ranks of %zu classes, %llu instructions, slab %s: %s\n",
        l->preset, l->schedule, (int)l->tp, (int)l->pp, (int)l->dp, f.n_ranks, f.n_classes,
        (unsigned long long)f.n_instrs, dh_format_bytes(bytes, sizeof bytes, (double)f.slab_bytes),
        dh_format_ns(time, sizeof time, (double)(dh_now_ns() - start)));
    assert_int_equal(f.n_ranks, l->tp * l->pp * l->dp);
    assert_int_equal(f.n_classes, l->n_classes);
    dh_schedule_destroy(schedule);
}

static void a_thousand_ranks_verify(void **state)
{
    static const large meshes[] = {
        {"llama2-7b", "1f1b", 8, 16, 8, 32, 32, false, 16 * 3},
        {"llama2-7b", "zb-h1", 8, 16, 8, 32, 32, true, 16 * 3 * 2},
        {"dhelix-gpt-6.7b", "interleaved-1f1b", 4, 8, 32, 64, 16, true, 8 * 3 * 2},
        {"llama3-70b", "dhelix-w", 8, 8, 16, 0, 32, true, 8 * 3 * 2},
    };
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) verify(&meshes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thousand_ranks_verify)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
