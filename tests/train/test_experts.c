/* Mixtral over meshes against one rank, on real text: losses, gradient norms, the
 * auxiliary loss; the same bits where nothing but the order of work changes; checkpoints
 * between ways of placing experts; what ends a run that has no room.
 *
 * Tolerances are those of test_meshes.c. A difference in the last bits could make a router
 * choose otherwise and so become a visible one; in 20 steps of a small model that is rare
 * (the margin between two experts is seldom below 1e-6) and not seen with these seeds. */
#include "ranks.h"

static const double tolerance = 5e-5;

#define RUN_MIXTRAL                                                                                \
    "model: {family: mixtral, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 4,\n"   \
    "        ffn_width: 48, vocab: 65, max_seq: 32, n_experts: 4, top_k: 2,\n"                     \
    "        router_aux_coef: 0.05}\n"

/* The weights of 0.02 with which a model begins give scores whose ratios change with their last bits:
 * who is near another then does too. */
#define RUN_PHIMOE                                                                                 \
    "model: {family: phimoe, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 4,\n"    \
    "        ffn_width: 48, vocab: 65, max_seq: 32, n_experts: 4, router_jitter: 0.3,\n"           \
    "        attn_bias: true, head_bias: true, router_aux_coef: 0.05}\n"

/* Both experts of a token are of one group of two, and so on one rank. */
#define RUN_GROUPS                                                                                 \
    "model: {family: deepseek_v3, n_layers: 4, width: 32, n_heads: 8, head_dim: 12, rope_dim: "    \
    "4,\n"                                                                                         \
    "        v_dim: 8, q_lora: 24, kv_lora: 20, ffn_width: 40, n_experts: 8, top_k: 2,\n"          \
    "        n_groups: 4, top_groups: 1, vocab: 65, max_seq: 32}\n"

static const char *pair_model = RUN_MIXTRAL; /* of expect_close */

static void remove_run(const char *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_dir_remove(&ctx, out));
}

/* ---- meshes against one rank --------------------------------------------------------------- */

/* aux_loss of every step. */
static void read_aux(const char *out, int n, double *aux)
{
    char path[400], line[2048];
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    int n_seen = 0;
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL), *value = json_object_get(object, "aux_loss");
        if (value) {
            assert_true(n_seen < n);
            aux[n_seen++] = json_number_value(value);
        }
        json_decref(object);
    }
    fclose(f);
    assert_int_equal(n_seen, n);
}

/* Without experts over ranks, then with; test_every_mesh.c has all of them without the loss
 * that balances experts. */
static const char *const meshes[] = {
    "parallel.dp=2 parallel.zero=1",
    "parallel.cp=2",
    "parallel.pp=2 parallel.schedule=dhelix-w strategy=round-robin",
    "parallel.tp=2 parallel.pp=2 train.recompute=selective",
    "parallel.dp=2 parallel.ep=2",
    "parallel.dp=4 parallel.ep=4",
    "parallel.dp=4 parallel.ep=2 parallel.zero=1",
    "parallel.dp=2 parallel.ep=2 parallel.tp=2",
    "parallel.tp=2 parallel.expert_tp=1",
    ("parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.expert_tp=1 parallel.zero=1 "
     "train.recompute=full strategy=dhelix"),
    "parallel.dp=2 parallel.ep=2 parallel.cp=2 parallel.zero=1",
    "parallel.dp=2 parallel.ep=2 parallel.pp=2 train.recompute=selective",
    "parallel.dp=2 parallel.ep=2 parallel.pp=2 parallel.schedule=zb-v parallel.zero=1",
    "parallel.dp=4 parallel.ep=4 parallel.tp=2 topology.ranks_per_node=2",
};

static void trains_alike_on_every_mesh(const char *model)
{
    char one_out[300], out[300];
    run_curve one, many;
    double one_aux[20], aux[20], worst = 0, worst_aux = 0;
    run_folder(one_out, sizeof one_out, "one");
    run_folder(out, sizeof out, "mesh");
    run_curve_of(model, "ranks=1", one_out, &one);
    read_aux(one_out, 20, one_aux);
    assert_int_equal(one.n, 20);
    assert_true(one.loss[19] < one.loss[0] - 0.5 && isfinite(one.val[19]));
    size_t n_run = 0;
    for (size_t i = 0; i < DH_COUNTOF(meshes); i += test_is_slow() ? 6 : test_is_short() ? 2 : 1) {
        run_curve_of(model, meshes[i], out, &many);
        read_aux(out, 20, aux);
        double d = run_distance(&one, &many, 0);
        for (int k = 0; k < 20; k++) {
            worst_aux = fmax(worst_aux, fabs(aux[k] - one_aux[k]));
            d = fmax(d, fabs(many.norm[k] / one.norm[k] - 1.0) * 0.1);
        }
        if (!(d <= tolerance && worst_aux <= 1e-4))
            fail_msg("%s: losses differ by %g, auxiliary losses by %g", meshes[i], d, worst_aux);
        worst = fmax(worst, d);
        n_run++;
        remove_run(out);
    }
    remove_run(one_out);
    printf("  %zu meshes, losses differ by %.2g, auxiliary losses by %.2g at most\n", n_run, worst,
           worst_aux);
}

static void a_mixtral_trains_alike_on_every_mesh(void **state)
{
    trains_alike_on_every_mesh(RUN_MIXTRAL);
}

static void a_phimoe_trains_alike_on_every_mesh(void **state)
{
    trains_alike_on_every_mesh(RUN_PHIMOE);
}

/* Shares of a layer's choices that each of 4 experts had, [4 layers][4], and what ranks that share
 * them would get, [4 layers] by the number of ranks. */
static void read_experts(const char *out, double mean[16], double load[4][5])
{
    static const char *const ranks[] = {NULL, "1", "2", NULL, "4"};
    char path[400];
    snprintf(path, sizeof path, "%s/experts.json", out);
    json_t *root = json_load_file(path, 0, NULL), *layers = json_object_get(root, "layers");
    assert_int_equal(json_array_size(layers), 4);
    for (size_t i = 0; i < 16; i++) {
        json_t *layer = json_array_get(layers, i / 4);
        mean[i] = json_number_value(json_array_get(json_object_get(layer, "mean"), i % 4));
        const double most =
            json_number_value(json_array_get(json_object_get(layer, "most"), i % 4));
        assert_true(most >= mean[i] && most <= 0.5);
        if (ranks[i % 4 + 1])
            load[i / 4][i % 4 + 1] = json_number_value(
                json_object_get(json_object_get(layer, "load"), ranks[i % 4 + 1]));
    }
    json_decref(root);
}

/* The same tokens choose the same experts on every mesh, whichever ranks count them; what meets in
 * an exchange are more tokens where experts are spread, whose load is no more uneven. */
static void every_mesh_records_what_experts_get(void **state)
{
    static const char *const where[] = {"parallel.dp=2 parallel.ep=2 train.steps=2",
                                        "parallel.pp=2 parallel.tp=2 train.steps=2"};
    double one[16], many[16], one_load[4][5] = {{0}}, load[4][5] = {{0}};
    char out[300];
    run_curve curve;
    run_folder(out, sizeof out, "load");
    run_curve_of(RUN_MIXTRAL, "ranks=1 train.steps=2", out, &curve);
    read_experts(out, one, one_load);
    remove_run(out);
    for (size_t i = 0; i < DH_COUNTOF(where); i++) {
        run_curve_of(RUN_MIXTRAL, where[i], out, &curve);
        read_experts(out, many, load);
        for (int k = 0; k < 16; k++)
            if (fabs(one[k] - many[k]) > 1e-3)
                fail_msg("%s: expert %d of layer %d gets %g of the choices, on one rank %g",
                         where[i], k % 4, k / 4, many[k], one[k]);
        for (int layer = 0; layer < 4; layer++) {
            assert_true(fabs(load[layer][1] - 1) < 1e-8 && load[layer][2] > 1.001);
            assert_true(load[layer][4] >= load[layer][2]);
            assert_true(load[layer][4] <= one_load[layer][4] * (i == 0 ? 1 : 1.001));
        }
        remove_run(out);
    }
}

/* A pair of runs: losses, norms and weights differ by at most so much; 0: in no bit. */
static void expect_close(const char *a, const char *b, double allowed)
{
    char out_a[300], out_b[300], settings[300];
    run_curve curve_a, curve_b;
    const int n = run_steps(20);
    run_folder(out_a, sizeof out_a, "a");
    run_folder(out_b, sizeof out_b, "b");
    snprintf(settings, sizeof settings, "%s train.steps=%d", a, n);
    run_curve_of(pair_model, settings, out_a, &curve_a);
    snprintf(settings, sizeof settings, "%s train.steps=%d", b, n);
    run_curve_of(pair_model, settings, out_b, &curve_b);
    const double d = run_distance(&curve_a, &curve_b, 0);
    if (!(d <= allowed)) fail_msg("\"%s\" and \"%s\": losses differ by %g", a, b, d);
    if (allowed == 0 && !run_same_bytes(out_a, out_b, n))
        fail_msg("\"%s\" and \"%s\": other weights", a, b);
    remove_run(out_a);
    remove_run(out_b);
}

/* Several sequences a micro-batch; 6 sequences for 4 ranks to validate on; as many choices
 * dropped by every rank. */
static void expert_parallelism_keeps_micro_batches_apart(void **state)
{
    expect_close("train.micro_batch=2 eval.batches=0",
                 "train.micro_batch=2 eval.batches=0 parallel.dp=4 parallel.ep=4", tolerance);
    expect_close("data.val_fraction=0.0002", "data.val_fraction=0.0002 parallel.dp=4 parallel.ep=4",
                 tolerance);
    expect_close("parallel.dp=2 moe.mode=capacity moe.capacity=1",
                 "parallel.dp=2 moe.mode=capacity moe.capacity=1 parallel.ep=2 parallel.tp=2",
                 tolerance);
}

/* What only orders work or shards the optimizer changes no bit, nor does running again. */
static void orders_and_shards_of_experts_change_no_bit(void **state)
{
    static const char base[] = "parallel.dp=2 parallel.ep=2 parallel.pp=2 parallel.schedule=1f1b";
    static const char *const same[] = {
        "parallel.dp=2 parallel.ep=2 parallel.pp=2 parallel.schedule=dhelix-w strategy=round-robin",
        "parallel.dp=2 parallel.ep=2 parallel.pp=2 parallel.schedule=dhelix-w strategy=list",
        "parallel.dp=2 parallel.ep=2 parallel.pp=2 parallel.schedule=1f1b train.recompute=full",
        "parallel.dp=2 parallel.ep=2 parallel.pp=2 parallel.schedule=1f1b moe.capacity=4",
    };
    for (size_t i = 0; i < DH_COUNTOF(same); i += test_stride(1, 2)) expect_close(base, same[i], 0);
    expect_close("parallel.dp=4 parallel.ep=2", "parallel.dp=4 parallel.ep=2 parallel.zero=1", 0);
    static const char bf16[] = "parallel.dp=4 parallel.ep=2 parallel.zero=1 train.dtype=bf16";
    expect_close(bf16, bf16, 0);
}

/* ---- one copy per node --------------------------------------------------------------------- */

#define ON_TWO_NODES "parallel.dp=4 parallel.ep=4 topology.ranks_per_node=2 "

/* Flat and by node. */
static void expect_dispatches_close(const char *settings, double allowed)
{
    char node[300];
    snprintf(node, sizeof node, "%s moe.dispatch=node", settings);
    expect_close(settings, node, allowed);
}

/* A token with one expert is on one node: a sum over its experts there is that expert's row, and rows
 * lie in the same order at the experts. Four ranks in two nodes, with a rank's own place of each. */
static void a_copy_per_node_changes_no_bit_of_one_expert(void **state)
{
    static const char *const same[] = {
        ON_TWO_NODES "model.top_k=1 moe.capacity=4",
        ON_TWO_NODES "model.top_k=1 moe.mode=capacity moe.capacity=1",
        ON_TWO_NODES "model.top_k=1 moe.capacity=4 train.dtype=bf16 parallel.zero=1",
        "parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.expert_tp=1 model.top_k=1 "
        "topology.ranks_per_node=2 moe.capacity=4",
        ON_TWO_NODES "model.top_k=1 moe.capacity=4 parallel.pp=2 strategy=dhelix",
        ON_TWO_NODES "model.top_k=1 moe.capacity=4 train.recompute=full train.micro_batch=2",
    };
    for (size_t i = 0; i < DH_COUNTOF(same); i += test_stride(1, 3))
        expect_dispatches_close(same[i], 0);
}

static void nor_of_experts_on_one_node(void **state)
{
    pair_model = RUN_GROUPS;
    expect_dispatches_close(ON_TWO_NODES "moe.capacity=4", 0);
    pair_model = RUN_MIXTRAL;
}

/* Sums of a token's experts are rounded on each node: they differ in the last bits. */
static void a_copy_per_node_trains_alike(void **state)
{
    expect_dispatches_close(ON_TWO_NODES "moe.capacity=4", tolerance);
    expect_dispatches_close(ON_TWO_NODES "moe.mode=capacity moe.capacity=1", tolerance);
    expect_dispatches_close("parallel.dp=4 parallel.ep=4 parallel.tp=2 topology.ranks_per_node=4 "
                            "moe.capacity=4",
                            tolerance);
}

static double cross_bytes(const char *settings)
{
    char path[400], out[300], line[2048];
    run_curve curve;
    double bytes = 0;
    run_folder(out, sizeof out, "bytes");
    run_curve_of(RUN_MIXTRAL, settings, out, &curve);
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL), *value = json_object_get(object, "cross_bytes");
        if (value) bytes = json_number_value(value);
        json_decref(object);
    }
    fclose(f);
    remove_run(out);
    return bytes;
}

/* Where every token chooses all 4 experts, a rank's tokens have a row for each of the other three
 * ranks, and one for the other node. By node each row takes its token's choices with it, and their
 * weights there and the weights' gradients back; and a rank tells how many rows it sends. All other
 * bytes are the same. 2 sequences of 32 tokens a rank and step, 4 layers. */
static void what_crosses_nodes_is_the_formula(void **state)
{
    static const char all[] =
        ON_TWO_NODES "model.top_k=4 moe.capacity=4 train.steps=1 eval.every=0";
    char node[300];
    const double tokens = 2 * 32, layers = 4, micro = 2, row = 32 * sizeof(float), k = 4;
    const double counts_flat = 3 * sizeof(int64_t), counts_node = sizeof(int64_t);
    const double flat = layers * (4 * 3 * tokens * row + micro * counts_flat);
    const double once =
        layers * (4 * tokens * row + 3 * tokens * k * sizeof(float) + micro * counts_node);
    snprintf(node, sizeof node, "%s moe.dispatch=node", all);
    const double by_flat = cross_bytes(all), by_node = cross_bytes(node);
    if (by_flat - flat != by_node - once || by_node <= once)
        fail_msg("flat %.0f bytes, by node %.0f; of rows %.0f and %.0f", by_flat, by_node, flat,
                 once);
}

/* ---- shared rows ----------------------------------------------------------------------------- */

#define TWO_A_NODE "parallel.dp=4 parallel.ep=4 parallel.tp=2 topology.ranks_per_node=2 "

/* Sums over tensor-parallel ranks are rounded for each expert, in place of each token. */
static void shared_rows_train_alike(void **state)
{
    static const char *const cases[] = {
        TWO_A_NODE "moe.capacity=4",
        "parallel.dp=2 parallel.ep=2 parallel.tp=2 moe.mode=capacity moe.capacity=1",
        ("parallel.dp=4 parallel.ep=4 parallel.tp=2 topology.ranks_per_node=4 moe.capacity=4 "
         "moe.dispatch=node train.recompute=full strategy=dhelix"),
        "parallel.dp=2 parallel.ep=2 parallel.tp=4 moe.capacity=4 train.recompute=selective",
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i += test_stride(1, 3)) {
        char shared[300];
        snprintf(shared, sizeof shared, "%s parallel.expert_rows=shared", cases[i]);
        expect_close(cases[i], shared, tolerance);
    }
}

/* As above; of each row a rank sends half the columns. */
static void what_a_rank_sends_is_its_share(void **state)
{
    static const char all[] = TWO_A_NODE "model.top_k=4 moe.capacity=4 train.steps=1 eval.every=0";
    char shared[300];
    const double tokens = 2 * 32, layers = 4, row = 32 * sizeof(float);
    snprintf(shared, sizeof shared, "%s parallel.expert_rows=shared", all);
    const double whole = cross_bytes(all), half = cross_bytes(shared);
    if (whole - half != layers * 4 * 3 * tokens * row / 2)
        fail_msg("whole rows %.0f bytes, shared %.0f", whole, half);
}

static void train_in_two_parts(const char *first, const char *then, const char *out,
                               run_curve *curve)
{
    char settings[400];
    dh_ctx ctx = DH_CTX_INIT;
    dh_train_result result;
    snprintf(settings, sizeof settings, "%s train.steps=10 optimizer.decay_steps=20", first);
    run_curve_of(RUN_MIXTRAL, settings, out, curve);
    if (run_job(&ctx, RUN_MIXTRAL, then, out, &result) != DH_OK)
        fail_msg("%s: %s", then, ctx.message);
    assert_int_equal(result.resumed_at, 10);
    run_read_curve(out, curve);
}

static void a_run_goes_on_with_experts_elsewhere(void **state)
{
    static const struct {
        const char *first, *then;
    } cases[] = {
        {"parallel.dp=2 parallel.ep=2", "ranks=1"},
        {"ranks=1", "parallel.dp=2 parallel.ep=2 parallel.zero=1"},
        {"parallel.dp=4 parallel.ep=2 parallel.zero=1", "parallel.dp=4 parallel.ep=4"},
        {"parallel.dp=4 parallel.ep=4", "parallel.dp=2 parallel.ep=2 parallel.tp=2"},
        {"parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.expert_tp=1 parallel.zero=1",
         "parallel.tp=2 parallel.dp=2"},
        {"parallel.dp=2 parallel.ep=2 parallel.cp=2 parallel.zero=1",
         "parallel.pp=2 parallel.tp=2"},
    };
    run_curve whole, parts;
    char out[300];
    double worst = 0;
    run_folder(out, sizeof out, "parts");
    run_curve_of(RUN_MIXTRAL, "ranks=1", out, &whole);
    remove_run(out);
    for (size_t i = 0; i < DH_COUNTOF(cases); i += test_stride(1, 3)) {
        train_in_two_parts(cases[i].first, cases[i].then, out, &parts);
        const double d = run_distance(&whole, &parts, 0);
        if (!(d <= tolerance))
            fail_msg("\"%s\", then \"%s\": losses differ by %g", cases[i].first, cases[i].then, d);
        worst = fmax(worst, d);
        remove_run(out);
    }
    printf("  losses differ by %.2g at most\n", worst);
}

/* ---- refused, or ended ---------------------------------------------------------------------- */

static void too_many_rows_end_the_run(void **state)
{
    static const char *const parts[] = {"moe_offsets", "layer ", "rank ", "rows come to",
                                        "raise moe.capacity to 1."};
    char out[300];
    dh_ctx ctx = DH_CTX_INIT;
    run_folder(out, sizeof out, "full");
    assert_int_equal(
        run_job(&ctx, RUN_MIXTRAL, "parallel.dp=2 parallel.ep=2 moe.capacity=1.01", out, NULL),
        DH_EINVAL);
    for (size_t i = 0; i < DH_COUNTOF(parts); i++)
        if (!strstr(ctx.message, parts[i])) fail_msg("\"%s\" lacks \"%s\"", ctx.message, parts[i]);
    remove_run(out);
}

static void impossible_expert_meshes_are_refused(void **state)
{
    static const struct {
        const char *settings, *message;
    } cases[] = {
        {"parallel.dp=3 parallel.ep=3 train.batch=6", "parallel.ep 3 does not divide"},
        {"parallel.dp=2 parallel.ep=4", "parallel.ep"},
        {"parallel.dp=2 parallel.ep=2 moe.capacity=0.9", "moe.capacity=0.9 leaves no room"},
        {"parallel.tp=4 parallel.expert_tp=2", "parallel.expert_tp 2 is neither 1 nor"},
        {"parallel.tp=2 parallel.expert_tp=1 parallel.sequence=false", "needs parallel.sequence"},
        {"parallel.dp=4 parallel.ep=4 parallel.tp=2 parallel.expert_tp=1",
         "parallel.ep 4 * parallel.tp 2 does not divide"},
    };
    static const char *const not_by_node[] = {
        "moe.dispatch=node", "parallel.dp=4 parallel.ep=4 moe.dispatch=node",
        "parallel.dp=4 parallel.ep=2 topology.ranks_per_node=2 moe.dispatch=node",
        "parallel.dp=4 parallel.ep=4 topology.ranks_per_node=1 moe.dispatch=node"};
    static const char *const not_shared[] = {
        "parallel.expert_rows=shared", "parallel.dp=2 parallel.ep=2 parallel.expert_rows=shared",
        "parallel.tp=2 parallel.expert_rows=shared",
        "parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.expert_tp=1 "
        "parallel.expert_rows=shared",
        "parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.sequence=false "
        "parallel.expert_rows=shared"};
    char out[300];
    run_folder(out, sizeof out, "refused");
    for (size_t i = 0; i < DH_COUNTOF(not_shared); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        assert_fails(&ctx, run_job(&ctx, RUN_MIXTRAL, not_shared[i], out, NULL), DH_EUNSUPPORTED,
                     "parallel.expert_rows=shared gives tensor-parallel ranks a share");
        assert_false(dh_path_exists(out));
    }
    for (size_t i = 0; i < DH_COUNTOF(not_by_node); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        assert_fails(&ctx, run_job(&ctx, RUN_MIXTRAL, not_by_node[i], out, NULL), DH_EUNSUPPORTED,
                     "moe.dispatch=node sends a token once to each node, but");
        assert_false(dh_path_exists(out));
    }
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        assert_fails(&ctx, run_job(&ctx, RUN_MIXTRAL, cases[i].settings, out, NULL), DH_EINVAL,
                     cases[i].message);
        assert_false(dh_path_exists(out));
    }
}

/* ---- entry ---------------------------------------------------------------------------------- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mixtral_trains_alike_on_every_mesh),
        cmocka_unit_test(a_phimoe_trains_alike_on_every_mesh),
        cmocka_unit_test(every_mesh_records_what_experts_get),
        cmocka_unit_test(expert_parallelism_keeps_micro_batches_apart),
        cmocka_unit_test(orders_and_shards_of_experts_change_no_bit),
        cmocka_unit_test(a_copy_per_node_changes_no_bit_of_one_expert),
        cmocka_unit_test(nor_of_experts_on_one_node),
        cmocka_unit_test(a_copy_per_node_trains_alike),
        cmocka_unit_test(what_crosses_nodes_is_the_formula),
        cmocka_unit_test(shared_rows_train_alike),
        cmocka_unit_test(what_a_rank_sends_is_its_share),
        cmocka_unit_test(a_run_goes_on_with_experts_elsewhere),
        cmocka_unit_test(too_many_rows_end_the_run),
        cmocka_unit_test(impossible_expert_meshes_are_refused),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
