/* More tensor-parallel ranks than heads of keys and values: runs of ranks have the same head.
 * Losses and gradient norms against one rank's, and checkpoints from one mesh to another.
 *
 * Norms are compared relatively: up to 7e-5 measured, a head that counted twice would change them
 * by percents. */
#include "ranks.h"

static const double norm_tolerance = 5e-4;

#define SIZES                                                                                      \
    "n_layers: 4, width: 32, n_heads: 8, head_dim: 8, vocab: 65, max_seq: 32, tied_head: false, "
#define LLAMA "model: {family: llama, " SIZES "ffn_width: 88, n_kv_heads: 2}\n"

static const struct {
    const char *model, *mesh;
} rows[] = {
    {LLAMA, "parallel.tp=4"},
    {LLAMA, "parallel.tp=4 parallel.dp=2 parallel.zero=1 train.recompute=selective"},
    {LLAMA, "parallel.tp=8 parallel.sequence=false"},
    {LLAMA, "parallel.tp=4 parallel.dp=2 parallel.zero=2 parallel.bucket_mb=0.01"},
    {LLAMA, "parallel.tp=4 parallel.dp=2 parallel.zero=3"},
    {LLAMA, "parallel.tp=4 parallel.cp=2"},
    {LLAMA, "parallel.tp=4 parallel.pp=2 parallel.schedule=dhelix-w strategy=dhelix "
            "topology.nodes=2"},
    {LLAMA, "parallel.tp=4 parallel.pp=2 parallel.schedule=dualpipe strategy=dualpipe"},
    {"model: {family: llama, " SIZES "ffn_width: 88, n_kv_heads: 1}\n", "parallel.tp=4"},
    {"model: {family: qwen2, " SIZES "ffn_width: 88, n_kv_heads: 2}\n",
     "parallel.tp=4 parallel.dp=2 parallel.zero=1"},
    {"model: {family: qwen3, " SIZES "ffn_width: 88, n_kv_heads: 2}\n", "parallel.tp=4"},
    {"model: {family: phi3, " SIZES "ffn_width: 88, n_kv_heads: 2}\n", "parallel.tp=8"},
    {"model: {family: mixtral, " SIZES "ffn_width: 40, n_experts: 4, top_k: 2, "
     "router_aux_coef: 0, n_kv_heads: 2}\n",
     "parallel.tp=4 parallel.dp=2 parallel.ep=2 moe.capacity=8"},
};

static double norm_distance(const run_curve *a, const run_curve *b)
{
    double worst = 0;
    for (int i = 0; i < a->n; i++) worst = fmax(worst, fabs(b->norm[i] / a->norm[i] - 1));
    return worst;
}

/* Thin: what has a path of its own. */
static bool is_taken(size_t i)
{
    return !test_is_thin() || i == 1 || i == 9;
}

static void ranks_with_the_same_heads_train_as_one_rank(void **state)
{
    char one_out[300], out[300];
    double worst = 0, worst_norm = 0;
    run_folder(one_out, sizeof one_out, "one");
    run_folder(out, sizeof out, "mesh");
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        run_curve one, many;
        if (!is_taken(i)) continue;
        run_curve_of(rows[i].model, "ranks=1 moe.capacity=8", one_out, &one);
        run_curve_of(rows[i].model, rows[i].mesh, out, &many);
        const double d = run_distance(&one, &many, 0), n = norm_distance(&one, &many);
        if (!(d <= run_tolerance(DH_F32)) || !(n <= norm_tolerance))
            fail_msg("%s%s: losses differ by %g, norms by %g", rows[i].model, rows[i].mesh, d, n);
        worst = fmax(worst, d);
        worst_norm = fmax(worst_norm, n);
        run_remove(one_out);
        run_remove(out);
    }
    printf("  losses differ by %.2g at most, gradient norms by %.2g of them\n", worst, worst_norm);
}

/* Heads are saved once, by the first rank that has them, and read by all. */
static void a_checkpoint_goes_from_mesh_to_mesh(void **state)
{
    static const struct {
        const char *model, *first, *then;
        bool same_mesh;
    } parts[] = {
        {"model: {family: qwen2, " SIZES "ffn_width: 88, n_kv_heads: 2}\n",
         "parallel.tp=4 parallel.dp=2 parallel.zero=1", "parallel.tp=2", false},
        {LLAMA, "parallel.tp=2 parallel.pp=2", "parallel.tp=8", false},
        {LLAMA, "parallel.tp=4 parallel.dp=2 parallel.zero=3 train.dtype=bf16",
         "parallel.tp=4 parallel.dp=2 parallel.zero=3 train.dtype=bf16", true},
    };
    char whole_out[300], out[300];
    run_folder(whole_out, sizeof whole_out, "whole");
    run_folder(out, sizeof out, "parts");
    for (size_t i = 0; i < DH_COUNTOF(parts); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        run_curve whole, both;
        char settings[400];
        if (test_is_thin() && i != 0) continue;
        snprintf(settings, sizeof settings, "%s train.steps=10 optimizer.decay_steps=20",
                 parts[i].first);
        run_curve_of(parts[i].model, parts[i].same_mesh ? parts[i].then : "ranks=1", whole_out,
                     &whole);
        run_curve_of(parts[i].model, settings, out, &both);
        assert_ok(&ctx, run_job(&ctx, parts[i].model, parts[i].then, out, &result));
        assert_int_equal(result.resumed_at, 10);
        run_read_curve(out, &both);
        const double d = run_distance(&whole, &both, 0);
        if (!(d <= (parts[i].same_mesh ? 0 : run_tolerance(DH_F32))))
            fail_msg("%s, then %s: losses differ by %g", parts[i].first, parts[i].then, d);
        if (parts[i].same_mesh) assert_true(run_same_bytes(whole_out, out, 20));
        run_remove(whole_out);
        run_remove(out);
    }
}

static void what_cannot_repeat_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "refused");
    assert_fails(&ctx,
                 run_job(&ctx, "model: {family: olmo2, " SIZES "ffn_width: 88, n_kv_heads: 2}\n",
                         "parallel.tp=4", out, NULL),
                 DH_EUNSUPPORTED, "norms of all keys together");
    assert_fails(&ctx, run_job(&ctx, LLAMA, "parallel.tp=4 lora.rank=4", out, NULL),
                 DH_EUNSUPPORTED, "adapters (lora.rank 4) of keys and values");
    assert_fails(&ctx,
                 run_job(&ctx, LLAMA,
                         "parallel.tp=4 data.packing=group train.steps=1 "
                         "switch.groups=32",
                         out, NULL),
                 DH_EUNSUPPORTED, "with data.packing group: ranks would share the 2 heads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_with_the_same_heads_train_as_one_rank),
        cmocka_unit_test(a_checkpoint_goes_from_mesh_to_mesh),
        cmocka_unit_test(what_cannot_repeat_is_refused),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
